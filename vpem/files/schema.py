"""What a file or a saved state must hold: a table of fields, checked before anything is used.

A schema is a dict of exactly these keys, a list or a tuple of exactly these items, or one of the
fields below. Sizes in it are numbers, a choice of numbers, or names: a name stands for the size
that is known by it, or else for the first that is met, to which all others are held.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from vpem.errors import FileError, Setting

__all__ = [
    "COUNT",
    "FLAG",
    "LARGEST_COUNT",
    "NOTHING",
    "NUMBER",
    "PLAIN",
    "TEXT",
    "Array",
    "Choice",
    "Integer",
    "ListOf",
    "Mapping",
    "Maybe",
    "Number",
    "Place",
    "Plain",
    "Schema",
    "check",
]

Schema = Any
"""A dict, list or tuple of schemas, or a `Field`."""

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
    """Where something stands, for messages.

    Attributes
    ----------
    file : str
        What it is in: "the checkpoint x.h5".
    path : str
        Names of what is around it, and its own: "run.loop.counts".
    advice : tuple of str or Setting
        What to do if it is wrong, in parts of a sentence.
    """

    file: str
    path: str = ""
    advice: tuple[str | Setting, ...] = ()

    def inside(self, *names: str | int) -> Place:
        """Return the place of a part of it, or of a part of that."""
        return replace(self, path=".".join(map(str, (self.path, *names) if self.path else names)))

    def refuse(self, wanted: str, got: str) -> NoReturn:
        """Raise FileError: it must be what is wanted."""
        self.fail(f"must be {wanted}, got {got}")

    def fail(self, what: str) -> NoReturn:
        """Raise FileError, saying what is wrong with it."""
        then = ("; ", *self.advice) if self.advice else ()
        raise FileError(f"{self.file}: {self.path or 'what it holds'} {what}", *then)


def check(schema: Schema, value: Any, place: Place, **sizes: int) -> None:
    """Check that a value is what a schema says.

    Parameters
    ----------
    schema : dict, list, tuple or field
        What it must be.
    value : object
        What was read.
    place : Place
        Where it was read, for the message.
    **sizes : int
        Sizes that are known by name.

    Raises
    ------
    FileError
        Naming the first field that is something else, what it must be, and what it is.
    """
    _check(schema, value, place, sizes)


def _check(schema: Schema, value: Any, place: Place, sizes: Sizes) -> None:
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            place.refuse("a table of " + ", ".join(schema), told(value))
        for name in schema:
            if name not in value:
                place.inside(name).fail("is missing")
        for name in value:
            if name not in schema:
                place.inside(name[:MOST_SHOWN]).fail("is not known here")
        for name, own in schema.items():
            _check(own, value[name], place.inside(name), sizes)
    elif isinstance(schema, list | tuple):
        if type(value) is not type(schema) or len(value) != len(schema):
            place.refuse(f"a {type(schema).__name__} of {len(schema)}", told(value))
        for number, (own, item) in enumerate(zip(schema, value, strict=True)):
            _check(own, item, place.inside(number), sizes)
    else:
        schema.check(value, place, sizes)


def told(value: Any) -> str:
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


def _range(least: float | None, most: float | None) -> str:
    if least is None:
        return "" if most is None else f" of at most {most}"
    if most is None or most == LARGEST_COUNT:
        return f" of at least {least}"
    return f" from {least} to {most}"


@dataclass(frozen=True)
class Integer:
    """An integer.

    Attributes
    ----------
    least, most : int
        Range.
    size : str
        Name of the size that it stands for.
    below : str
        Name of a size, met before, that it is less than: a place in a list.
    """

    least: int = 0
    most: int = LARGEST_COUNT
    size: str = ""
    below: str = ""

    def check(self, value: Any, place: Place, sizes: Sizes) -> None:
        """Refuse anything else."""
        least, most = self.least, self.most
        if self.size in sizes:
            least = most = sizes[self.size]
        elif self.below:
            most = sizes[self.below] - 1
        if type(value) is not int or not least <= value <= most:
            wanted = f"an integer{_range(least, most)}" if least < most else str(least)
            place.refuse(wanted, told(value))
        if self.size:
            sizes[self.size] = value


@dataclass(frozen=True)
class Number:
    """A finite real number.

    Attributes
    ----------
    least, most : float or None
        Range; None: any.
    """

    least: float | None = None
    most: float | None = None

    def check(self, value: Any, place: Place, sizes: Sizes) -> None:
        """Refuse anything else."""
        if (
            not isinstance(value, float)
            or not math.isfinite(value)
            or (self.least is not None and value < self.least)
            or (self.most is not None and value > self.most)
        ):
            place.refuse(f"a finite real number{_range(self.least, self.most)}", told(value))


@dataclass(frozen=True)
class Choice:
    """One of some plain values; of none given any text."""

    values: tuple[Any, ...] = ()

    def check(self, value: Any, place: Place, sizes: Sizes) -> None:
        """Refuse anything else."""
        if not self.values:
            if not isinstance(value, str):
                place.refuse("text", told(value))
        elif not any(type(value) is type(one) and value == one for one in self.values):
            place.refuse(" or ".join(map(told, self.values)), told(value))


@dataclass(frozen=True)
class Plain:
    """Nothing, true, false, a number or text; or lists and tables of these, some levels deep."""

    depth: int = 8

    def check(self, value: Any, place: Place, sizes: Sizes) -> None:
        """Refuse anything else."""
        if value is None or isinstance(value, bool | int | float | str):
            return
        if not self.depth or not isinstance(value, dict | list | tuple):
            place.refuse("a plain value", told(value))
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in inside:
            Plain(self.depth - 1).check(item, place.inside(name), sizes)


@dataclass(frozen=True)
class Maybe:
    """What its schema says, or None."""

    schema: Schema

    def check(self, value: Any, place: Place, sizes: Sizes) -> None:
        """Refuse anything else."""
        if value is not None:
            _check(self.schema, value, place, sizes)


@dataclass(frozen=True)
class ListOf:
    """A list of items that are alike.

    Attributes
    ----------
    item : schema
        What each is.
    length : int or str, optional
        How many there are.
    least : int
        How many there are at least.
    """

    item: Schema
    length: int | str | None = None
    least: int = 0

    def check(self, value: Any, place: Place, sizes: Sizes) -> None:
        """Refuse anything else."""
        wanted = sizes.get(self.length) if isinstance(self.length, str) else self.length
        if not isinstance(value, list) or len(value) != (len(value) if wanted is None else wanted):
            place.refuse("a list" + ("" if wanted is None else f" of {wanted}"), told(value))
        if len(value) < self.least:
            place.refuse(f"a list of at least {self.least}", told(value))
        if isinstance(self.length, str):
            sizes[self.length] = len(value)
        for number, item in enumerate(value):
            _check(self.item, item, place.inside(number), sizes)


@dataclass(frozen=True)
class Mapping:
    """A table of any names.

    Attributes
    ----------
    item : schema, optional
        What each item is; None leaves it to others to check them.
    some : dict of schemas, optional
        Items that must be there.
    """

    item: Schema | None = None
    some: dict[str, Schema] | None = None

    def check(self, value: Any, place: Place, sizes: Sizes) -> None:
        """Refuse anything else."""
        if not isinstance(value, dict):
            place.refuse("a table", told(value))
        if self.item is not None:
            for name, item in value.items():
                _check(self.item, item, place.inside(name), sizes)
        if self.some is not None:
            own = {name: item for name, item in value.items() if name in self.some}
            _check(self.some, own, place, sizes)


@dataclass(frozen=True)
class Array:
    """An array.

    Attributes
    ----------
    kind : str
        Its type, as "f8", or only what it holds: "f", "i", "b".
    shape : tuple of sizes
        Its shape.
    least, most : float or None
        Range of its values; None: any.
    nan : bool
        Whether values may be NaN; they are finite otherwise.
    sums : float or None
        What its values add up to along the last axis.
    """

    kind: str
    shape: tuple[Size, ...]
    least: float | None = None
    most: float | None = None
    nan: bool = False
    sums: float | None = None

    def check(self, value: Any, place: Place, sizes: Sizes) -> None:
        """Refuse anything else."""
        if not isinstance(value, np.ndarray) or not self._fits(value.shape, sizes):
            place.refuse(self._words(sizes), told(value))
        if not value.dtype.str[1:].startswith(self.kind):
            place.refuse(f"{self._words(sizes)} of type {self.kind}", value.dtype.str[1:])
        wrong = self._wrong(value)
        if wrong is not None:
            place.refuse(self._words(sizes), wrong)

    def _fits(self, shape: Sequence[int], sizes: Sizes) -> bool:
        """Whether a shape is as it must be; sizes met for the first time are bound."""
        if len(shape) != len(self.shape):
            return False
        for found, wanted in zip(shape, self.shape, strict=True):
            if isinstance(wanted, str):
                if sizes.setdefault(wanted, found) != found:
                    return False
            elif found not in (wanted if isinstance(wanted, tuple) else (wanted,)):
                return False
        return True

    def _words(self, sizes: Sizes) -> str:
        lengths = [
            str(sizes.get(one, "any number of")) if isinstance(one, str)
            else " or ".join(map(str, dict.fromkeys(one))) if isinstance(one, tuple) else str(one)
            for one in self.shape
        ]  # fmt: skip
        finite = "" if self.nan or self.kind[0] != "f" else "finite "
        words = f"{' x '.join(lengths)} {finite}{KINDS[self.kind[0]]}"
        sums = "" if self.sums is None else f" that sum to {self.sums:g}"
        return f"{words}{_range(self.least, self.most)}{sums}"

    def _wrong(self, value: NDArray[Any]) -> str | None:
        """Name the first value that cannot be; None where there is none."""
        good = np.ones(value.shape, dtype=np.bool_)
        if value.dtype.kind == "f":
            good = np.isfinite(value) | (np.isnan(value) if self.nan else False)
        with np.errstate(invalid="ignore"):
            if self.least is not None:
                good &= ~(value < self.least)
            if self.most is not None:
                good &= ~(value > self.most)
        if not good.all():
            return f"{value[~good][0]} among them"
        if self.sums is not None:
            with np.errstate(over="ignore"):
                found = value.sum(axis=-1).reshape(-1)
            off = ~(np.abs(found - self.sums) <= SUM_ERROR)
            if off.any():
                return f"a sum of {found[off][0]:g}"
        return None


COUNT = Integer()
FLAG = Choice((False, True))
NOTHING = Choice((None,))
NUMBER = Number()
PLAIN = Plain()
TEXT = Choice()
