"""What a file or a saved state must hold: a table of fields, checked before anything is used.

A schema is a dict of exactly these keys, a list or a tuple of exactly these items, one of the
fields below, or an object that is saved itself. Sizes in it are numbers, a choice of numbers, or
names: a name stands for the size that is known by it, or else for the first that is met, to which
all others are held. What is saved of an object, checked and restored all follows from its schema.
"""

from __future__ import annotations

import math
from collections import abc
from dataclasses import astuple, dataclass, replace
from operator import attrgetter
from typing import Any, NoReturn, Protocol, TypeVar, Union

import numpy as np

from vpem.errors import FileError, Setting

Schema = Union["Field", "Stateful", "dict[str, Any]", "list[Schema]", "tuple[Schema, ...]"]
"""A field, an object that is saved, or a dict, list or tuple of schemas."""

Fields = abc.Mapping[str, Schema]
"""Schemas by name."""

State = dict[str, Any]
"""What a loop or a sum keeps of itself: numbers, text and arrays by name, and such tables."""

Report = dict[str, Any]
"""An object of JSON: what a fit reports, or the options that it was given."""

Owner = TypeVar("Owner")

Size = int | str | tuple[int, ...]
Sizes = dict[str, int]

LARGEST_COUNT = 1 << 53
"""Of anything that is counted: sums of some of these still are 64-bit integers."""

MOST_SHOWN = 40
"""Characters of a value in a message."""

KINDS = {"f": "real numbers", "i": "integers", "u": "integers", "b": "true/false values"}

SUM_ERROR = 1e-5
"""By which a sum of real numbers may differ from what it must be."""


@dataclass(frozen=True)
class Place:
    """Where something stands, for messages."""

    file: str  # "the checkpoint x.h5"
    path: str = ""  # "run.loop.counts"
    advice: tuple[str | Setting, ...] = ()  # what to do if it is wrong

    def inside(self, *names: str | int) -> Place:
        """Return the place of a part of it, or of a part of that."""
        return replace(self, path=".".join(map(str, (self.path, *names) if self.path else names)))

    def refuse(self, expected: str, got: str) -> NoReturn:
        self.fail(f"must be {expected}, got {got}")

    def fail(self, what: str) -> NoReturn:
        then = ("; ", *self.advice) if self.advice else ()
        raise FileError(f"{self.file}: {self.path or 'what it holds'} {what}", *then)


KEPT = Place("what was kept of the run", advice=("start it again",))
"""Where the parameters stand from which the others resume without members that are lost."""


def check(schema: Schema, value: object, place: Place, sizes: Sizes | None = None) -> None:
    """Check that a value is what a schema says; FileError names the first field that is not.

    ``sizes`` are known by name; those that are met first are added.
    """
    sizes = {} if sizes is None else sizes
    if isinstance(schema, Field):
        if expected := schema._expected(value, place, sizes):
            place.refuse(expected, describe(value))
    elif isinstance(schema, dict):
        if not isinstance(value, dict):
            place.refuse("a table of " + ", ".join(schema), describe(value))
        for name in schema:
            if name not in value:
                place.inside(name).fail("is missing")
        for name in value:
            if name not in schema:
                place.inside(name[:MOST_SHOWN]).fail("is not known here")
        for name, inner in schema.items():
            check(inner, value[name], place.inside(name), sizes)
    elif not isinstance(schema, list | tuple):
        check(schema.schema(), value, place, sizes)
    else:
        if type(value) is not type(schema) or len(value) != len(schema):
            place.refuse(f"a {type(schema).__name__} of {len(schema)}", describe(value))
        for number, (inner, item) in enumerate(zip(schema, value, strict=True)):
            check(inner, item, place.inside(number), sizes)


def save(schema: Schema, value: Any, back: bool = False) -> Any:
    """Return a value, or by the names of a dict attributes of an object, as they are saved.

    With ``back`` return what was saved of a value, once it has been checked, as it was.
    """
    if isinstance(schema, Field):
        return schema._saved(value, back)
    if isinstance(schema, list | tuple):
        pairs = zip(schema, value, strict=True)
        return type(schema)(save(inner, item, back) for inner, item in pairs)
    if not isinstance(schema, dict):
        return schema.state()
    if isinstance(value, dict):
        return {name: save(inner, value[name], back) for name, inner in schema.items()}
    saved = {}
    for name, inner in schema.items():
        if isinstance(inner, PLACED):
            at = _attribute(value, name, inner)
            saved[name] = save(inner, value if at == "." else attrgetter(at)(value))
        else:
            saved[name] = inner.state()
    return saved


def restore(schema: abc.Mapping[str, Schema], owner: Owner, state: State) -> Owner:
    """Set attributes of an object to what was saved, once it has been checked; return it."""
    for name, inner in schema.items():
        if not isinstance(inner, PLACED):
            inner.restore(state[name])
            continue
        if isinstance(inner, tuple):  # of objects, each of which stays
            for one, held, saved in zip(inner, getattr(owner, name), state[name], strict=True):
                assert isinstance(one, dict)
                restore(one, held, saved)
            continue
        above, _, at = _attribute(owner, name, inner).rpartition(".")
        holder = attrgetter(above)(owner) if above else owner
        inner = inner.schema if isinstance(inner, As) and inner.back is None else inner
        known = getattr(holder, at) if at else owner
        if isinstance(inner, dict) and not isinstance(known, dict):
            restore(inner, known, state[name])
        elif isinstance(known, list):  # others may hold it too
            known[:] = save(inner, state[name], back=True)
        else:
            setattr(holder, at, save(inner, state[name], back=True))
    return owner


def _attribute(owner: object, name: str, schema: Schema) -> str:
    """Say where in an object a field is, or in one that it holds, after a point."""
    if isinstance(schema, As) and schema.at:
        return schema.at
    return f"_{name}" if hasattr(owner, f"_{name}") else name


def describe(value: object) -> str:
    """Say in a few words what a value is."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, np.ndarray):
        shape = " x ".join(map(str, value.shape)) or "an array without dimensions of"
        return f"{shape} {KINDS.get(value.dtype.kind, 'values')}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, dict):
        return f"a table of {len(value)}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, int) and value.bit_length() > 128:
        return "an integer of more than 128 bits"
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _range(least: float, most: float) -> str:
    if least == -math.inf:
        return "" if most == math.inf else f" of at most {most}"
    return f" of at least {least}" if most >= LARGEST_COUNT else f" from {least} to {most}"


class Stateful(Protocol):
    """What goes on from where it was saved: which fields are, it says once, in its schema.

    A field is the attribute of its name, with an underscore before it if there is one, or is an
    object that is saved itself.
    """

    def schema(self) -> dict[str, Schema]:
        """Return what is saved, as it must be at the sizes of this object."""
        return {}

    def state(self) -> State:
        """Return what is saved now."""
        state: State = save(self.schema(), self)
        return state

    def restore(self, state: State) -> None:
        """Go on from what was saved, which has been checked."""
        restore(self.schema(), self, state)


class Field:
    """What a value must be."""

    def _saved(self, value: Any, back: bool) -> Any:
        """Return a value as it is saved, or ``back`` as it was; see `save`."""
        return value

    def _expected(self, value: object, place: Place, sizes: Sizes) -> str | None:
        """Say what it must be, if it is not; sizes met first are bound, parts checked in place."""
        raise NotImplementedError


@dataclass(frozen=True)
class As(Field):
    """What its schema says, where it has another form before it is saved, or another name."""

    schema: Schema
    to: abc.Callable[[Any], Any] | None = None  # from what an object has to what is saved
    back: abc.Callable[[Any], Any] | None = None
    at: str = ""
    """Attribute of the object, "traffic.delivered" say, if it is not of this name; "." stands for
    the object itself, of which some attributes are saved in a table."""

    def _expected(self, value: object, place: Place, sizes: Sizes) -> None:
        check(self.schema, value, place, sizes)

    def _saved(self, value: Any, back: bool) -> Any:
        turn = self.back if back else self.to
        return save(self.schema, value, back) if turn is None else turn(value)


def record(make: abc.Callable[..., object], schema: dict[str, Any] | tuple[Schema, ...]) -> As:
    """Return the schema of records that ``make`` makes of their fields, by name or in order."""
    if isinstance(schema, dict):
        return As(schema, lambda one: save(schema, one), lambda saved: make(**saved))
    return As(schema, astuple, lambda saved: make(*saved))


def or_nan(schema: Schema) -> As:
    """Return the schema of a number that is saved as None where it is NaN."""
    return As(
        Maybe(schema),
        lambda value: None if math.isnan(value) else value,
        lambda saved: math.nan if saved is None else saved,
    )


@dataclass(frozen=True)
class Integer(Field):
    least: int = 0
    most: int = LARGEST_COUNT
    size: str = ""  # name of the size that it stands for
    below: str = ""  # name of a size, met before, that it is less than: a place in a list

    def _expected(self, value: object, place: Place, sizes: Sizes) -> str | None:
        least, most = self.least, self.most
        if self.size in sizes:
            least = most = sizes[self.size]
        elif self.below:
            most = sizes[self.below] - 1
        if type(value) is not int or not least <= value <= most:
            named = f", the number of {self.size}" if len(self.size) > 1 else ""
            return f"an integer{_range(least, most)}" if least < most else f"{least}{named}"
        if self.size:
            sizes[self.size] = value
        return None


@dataclass(frozen=True)
class Number(Field):
    """A finite real number in a range."""

    least: float = -math.inf
    most: float = math.inf
    nan: bool = False  # it may be NaN
    whole: bool = False  # it may be an integer, as JSON of other programs may have it

    def _expected(self, value: Any, place: Place, sizes: Sizes) -> str | None:
        good = isinstance(value, float) and math.isfinite(value)
        good = good or (self.whole and type(value) is int and abs(value) <= LARGEST_COUNT)
        good = good and self.least <= value <= self.most
        if good or (self.nan and isinstance(value, float) and math.isnan(value)):
            return None
        finite = "" if self.nan else "finite "
        return f"a {finite}real number{_range(self.least, self.most)}"


@dataclass(frozen=True)
class NumberList(Field):
    """A list of finite numbers, or of lists of them of one length, as JSON has arrays."""

    depth: int = 1  # 2: of lists of lists
    least: float = -math.inf  # of the numbers

    def _expected(self, value: object, place: Place, sizes: Sizes) -> str | None:
        if isinstance(value, list):
            try:
                array = np.array(value) if value else np.zeros((0,) * self.depth)
            except (ValueError, OverflowError):
                array = np.array(None)
            is_number = array.dtype.kind in "iuf" and array.ndim == self.depth
            if is_number and np.isfinite(array).all() and not (array < self.least).any():
                return None
        what = "a list" if self.depth == 1 else "a list of lists of one length"
        return f"{what} of finite numbers{_range(self.least, math.inf)}"


@dataclass(frozen=True)
class Choice(Field):
    """One of some plain values; of none given any text."""

    values: tuple[object, ...] = ()

    def _expected(self, value: object, place: Place, sizes: Sizes) -> str | None:
        if any(type(value) is type(one) and value == one for one in self.values):
            return None
        if not self.values:
            return None if isinstance(value, str) else "text"
        return " or ".join(map(describe, self.values))


@dataclass(frozen=True)
class Plain(Field):
    """Nothing, true, false, a number or text; or lists and tables of these, some levels deep."""

    depth: int = 8

    def _expected(self, value: object, place: Place, sizes: Sizes) -> str | None:
        if value is None or isinstance(value, bool | int | float | str):
            return None
        if not self.depth or not isinstance(value, dict | list | tuple):
            return "a plain value"
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in inside:
            check(Plain(self.depth - 1), item, place.inside(name), sizes)
        return None


@dataclass(frozen=True)
class Maybe(Field):
    schema: Schema

    def _expected(self, value: object, place: Place, sizes: Sizes) -> None:
        if value is not None:
            check(self.schema, value, place, sizes)

    def _saved(self, value: Any, back: bool) -> Any:
        return None if value is None else save(self.schema, value, back)


@dataclass(frozen=True)
class ListOf(Field):
    item: Schema
    length: int | str | None = None  # how many there are
    least: int = 0  # how many there are at least

    def _saved(self, value: Any, back: bool) -> Any:
        differs = isinstance(self.item, Field | dict)
        return [save(self.item, one, back) for one in value] if differs else list(value)

    def _expected(self, value: object, place: Place, sizes: Sizes) -> str | None:
        length = sizes.get(self.length) if isinstance(self.length, str) else self.length
        if not isinstance(value, list) or length not in (None, len(value)):
            return "a list" + ("" if length is None else f" of {length}")
        if len(value) < self.least:
            return f"a list of at least {self.least}"
        if isinstance(self.length, str):
            sizes[self.length] = len(value)
        for number, item in enumerate(value):
            check(self.item, item, place.inside(number), sizes)
        return None


@dataclass(frozen=True)
class TableOf(Field):
    item: Schema | None = None  # what each item is; None leaves it to others to check them
    some: Fields | None = None  # items that must be there
    known: Fields | None = None  # items that may be there, or be None

    def _expected(self, value: object, place: Place, sizes: Sizes) -> str | None:
        if not isinstance(value, dict):
            return "a table"
        if self.item is not None:
            for name, item in value.items():
                check(self.item, item, place.inside(name), sizes)
        if self.some is not None:
            items = {name: item for name, item in value.items() if name in self.some}
            check(dict(self.some), items, place, sizes)
        for name, known in (self.known or {}).items():
            if value.get(name) is not None:
                check(known, value[name], place.inside(name), sizes)
        return None


@dataclass(frozen=True)
class Array(Field):
    """An array of a type ("f8", or only what it holds: "f", "i", "b") and a shape."""

    kind: str
    shape: tuple[Size, ...]
    least: float = -math.inf
    most: float = math.inf
    below: str = ""  # name of a size, met before, that its values are less than
    positive: bool = False  # values must be above 0
    nan: bool = False  # values may be NaN
    inf: bool = False  # values may be infinite
    sums: float | None = None  # what its values add up to along the last axis

    def _expected(self, value: object, place: Place, sizes: Sizes) -> str | None:
        if not isinstance(value, np.ndarray) or value.ndim != len(self.shape):
            return self._words(sizes)
        for length, size in zip(value.shape, self.shape, strict=True):
            known = sizes.setdefault(size, length) if isinstance(size, str) else size
            if length not in (known if isinstance(known, tuple) else (known,)):
                return self._words(sizes)
        if not value.dtype.str[1:].startswith(self.kind):
            place.refuse(f"{self._words(sizes)} of type {self.kind}", value.dtype.str[1:])
        most, got = sizes[self.below] - 1 if self.below else self.most, ""
        good = np.ones(value.shape, dtype=np.bool_)
        if value.dtype.kind == "f":
            good = np.isfinite(value) | (np.isnan(value) if self.nan else False)
            good |= np.isinf(value) if self.inf else False
        with np.errstate(invalid="ignore"):
            good &= ~((value < self.least) | (value > most) | (self.positive & (value <= 0)))
        if not good.all():
            got = f"{value[~good][0]} among them"
        elif self.sums is not None:
            with np.errstate(over="ignore"):
                totals = value.sum(axis=-1).reshape(-1)
            off = ~(np.abs(totals - self.sums) <= SUM_ERROR)
            if off.any():
                got = f"a sum of {totals[off][0]:g}"
        if got:
            place.refuse(self._words(sizes), got)
        return None

    def _words(self, sizes: Sizes) -> str:
        lengths = []
        for size in self.shape:
            one = sizes.get(size, "any number of") if isinstance(size, str) else size
            choice = dict.fromkeys(one) if isinstance(one, tuple) else [one]
            lengths.append(" or ".join(map(str, choice)))
        finite = "positive " if self.positive else "" if self.nan or self.inf else "finite "
        finite = finite if self.kind[0] == "f" else ""
        sized = " x ".join(lengths) or "an array without dimensions of"
        words = f"{sized} {finite}{KINDS[self.kind[0]]}"
        sums = "" if self.sums is None else f" that sum to {self.sums:g}"
        most = sizes[self.below] - 1 if self.below else self.most
        return f"{words}{_range(self.least, most)}{sums}"


PLACED = (Field, dict, list, tuple)
"""Schemas of what stands in attributes, and is no object that is saved itself."""

COUNT, NUMBER, REAL, PLAIN, TEXT = Integer(), Number(), Number(whole=True), Plain(), Choice()
FLAG, NOTHING = Choice((False, True)), Choice((None,))

RESTART = ("start again with ", Setting("force", True), " instead of ", Setting("resume"))
"""What to do where a checkpoint cannot be gone on from, in parts of a sentence."""
