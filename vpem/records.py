"""Records: of settings, whose fields know their help, bounds, choices and flags, and of results.

Both show themselves by a few facts: a line where they are printed, a table in a notebook.
"""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest
from numbers import Number
from string import Formatter
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from vpem.errors import InputError, Setting, brief, check_choice, did_you_mean, printable, warn

FRAMEWORKS = ("dask", "ray")
"""Who places the workers of a command, which all run it."""
ENGINES = ("tls", "nvflare")
"""How members of a study reach each other: over links of their own, or inside a job of NVFlare."""

T = TypeVar("T", bound="Settings")

Sentence = tuple[str | Setting, ...]

Condition = Callable[[Mapping[str, Any]], bool]

Rule = tuple[Condition, Sentence]

Row = tuple[str, Condition, str | Sentence]
"""A rule of several settings of a record, whose names have blanks between."""


@dataclass(frozen=True)
class About:
    """What there is to know of a setting beside its name, type and default."""

    help: str  # for a reader of ``--help``
    heading: str = ""  # under which it stands there; by default that of its record
    flags: str = ""  # its options, where they are not its name with dashes: "-k --components"
    choices: tuple[str, ...] = ()  # all words that it may be
    also: Mapping[str, str] = field(default_factory=dict)  # other names of these, in capitals
    words: tuple[str, ...] = ()  # some of those that it may be, which a shell offers
    least: float | None = None  # bounds of a number
    most: float | None = None
    above: bool = False  # whether the first of them is excluded
    file: Any = None  # what becomes of the file it names: "read", "written", a role of commands'
    local: bool = False  # whether members of a study may each have a value of their own
    hidden: bool = False  # whether ``--help`` is silent about it
    often: bool = False  # whether a short ``--help`` has it
    idle: Rule | list[Rule] | None = None  # of the values of all: whether it has no effect; why

    def why_idle(self, values: Mapping[str, object]) -> Sentence | None:
        """Return why the setting has no effect beside these values of all; None where it has."""
        return next((why for when, why in self.rules if when(values)), None)

    @property
    def rules(self) -> list[Rule]:
        return self.idle if isinstance(self.idle, list) else [self.idle] if self.idle else []


def setting(default: Any, help: str, **known: Any) -> Any:
    """Return a field of a record; ``known`` as in `About`."""
    return field(default=default, metadata={"about": About(help, **known)})


unset, off = partial(setting, None), partial(setting, False)
"""Return fields that are not set by default, or off."""


def changed(
    record: type[Settings] | None = None, name: str = "", default: Any = ..., **known: Any
) -> Any:
    """Return a field of another record with another default, help or anything else.

    Without a record it is the inherited field of the same name.
    """
    if record is None:
        return partial(changed, default=default, **known)  # which the record itself completes
    one = record.settings_by_name[name]
    default = one.default if default is ... else default
    return field(default=default, metadata={"about": replace(describe_field(one), **known)})


def describe_field(one: Field[object]) -> About:
    known: About = one.metadata["about"]
    return known


RENAMED = {
    "path": ("consensus", ""),
    "skip_negligible": ("every_weight", ", which is its opposite"),
}
"""What settings are called that had another name before, and what else became of them."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Settings:
    """A record of settings, checked when it is made.

    Raises
    ------
    InputError
        If a value is out of bounds or none of the choices, or has no effect beside another.
    """

    settings_by_name: ClassVar[dict[str, Field[object]]] = {}
    kept: ClassVar[bool] = True
    """Whether models keep the values, which say what was fitted."""

    # Not by `dataclasses.dataclass`, which compiles methods for every class: a shell would wait.
    def __init_subclass__(
        cls, heading: str = "", kept: bool = True, rows: Sequence[Row] = ()
    ) -> None:
        cls.kept = kept
        known: dict[str, Field[object]] = {}
        for base in reversed(cls.__mro__[1:]):
            known |= vars(base).get("settings_by_name", {})
        cls.settings_by_name = known
        for name, kind in vars(cls).get("__annotations__", {}).items():
            one = vars(cls).get(name)
            if isinstance(one, partial):
                one = one(cls, name)
            if isinstance(one, Field):
                if not describe_field(one).heading:
                    one.metadata = {"about": replace(describe_field(one), heading=heading)}  # type: ignore[assignment]
                one.name, one.type = name, kind
                known[name] = one
                setattr(cls, name, one.default)
        for names, when, why in rows:
            added = when, sentence(why) if isinstance(why, str) else why
            for name in names.split():
                before = known[name]
                known[name] = changed(cls, name, idle=[*describe_field(before).rules, added])
                known[name].name, known[name].type = name, before.type
        listed = (
            f"{one.name} : {one.type}, default={one.default!r}\n    {describe_field(one).help}"
            for one in cls.fields()
        )
        cls.__doc__ = "\n".join((cls.__doc__ or "", "\nAttributes\n----------", *listed))

    def __init__(self, **given: object) -> None:
        known = self.settings_by_name
        for name in given:
            if name not in known:
                hint = did_you_mean(name, known)
                now, remark = RENAMED.get(name, ("", ""))
                if now in known:
                    hint = f"; it is now called {now}{remark}"
                raise TypeError(f"{type(self).__name__} has no setting {name!r}{hint}")
        vars(self).update({name: one.default for name, one in known.items()} | given)
        self.__post_init__()

    def __setattr__(self, name: str, value: object = None) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; see its method `changed`")

    __delattr__ = __setattr__

    def __eq__(self, other: object) -> bool:
        """Whether all values are the same; arrays are where they are one array."""
        if type(other) is not type(self):
            return NotImplemented
        pairs = ((value, getattr(other, name)) for name, value in self)
        return all((one is two or one == two) is True for one, two in pairs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self)})"

    def __post_init__(self) -> None:
        given, known = vars(self), self.settings_by_name
        for name in self._not_default():
            given[name] = _checked(known[name], given[name])
        self.refuse_idle()

    def _not_default(self) -> list[str]:
        """Return the settings whose value is another object than the default."""
        given, known = vars(self), self.settings_by_name.items()
        return [name for name, one in known if given.get(name, one.default) is not one.default]

    def refuse_idle(self, **facts: object) -> None:
        """Raise InputError where a setting has no effect beside the others and these facts."""
        values = vars(self) | facts
        for name in self._not_default():
            for when, why in describe_field(self.settings_by_name[name]).rules:
                if when(values) and self.has_changed(name):
                    refuse(name, why, Setting(name))

    def has_changed(self, name: str) -> bool:
        """Whether a setting is not the default; arrays answer with arrays, and never are."""
        return str(getattr(self, name) == self.settings_by_name[name].default) != "True"

    @classmethod
    def fields(cls) -> tuple[Field[object], ...]:
        """Return the settings of the record, in order."""
        return tuple(cls.settings_by_name.values())

    @classmethod
    def resolve(cls, settings: Self | None, /, **changes: object) -> Self:
        """Return a record, or the default one, with changes; InputError if of another kind."""
        if not isinstance(settings, cls | None):
            raise InputError(f"settings must be {cls.__name__}, got {type(settings).__name__}")
        return cls(**changes) if settings is None else settings.changed(**changes)

    @classmethod
    def of(cls, settings: Self | None, /, **changes: object) -> Self:
        """Former name of `resolve`."""
        warnings.warn("of is resolve now", DeprecationWarning, stacklevel=2)
        return cls.resolve(settings, **changes)

    def changed(self, **changes: object) -> Self:
        """Return the record with other values."""
        same = all(vars(self).get(name, changes) is value for name, value in changes.items())
        return self if same else type(self)(**{**vars(self), **changes})

    def into(self, record: type[T], **changes: object) -> T:
        """Return another record, of the settings that both have, with changes."""
        shared = {one.name for one in record.fields()}
        return record(**{name: value for name, value in self if name in shared} | changes)

    def values(self, *without: str) -> dict[str, Any]:
        """Return the values by name, but for some."""
        return {name: value for name, value in self if name not in without}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((one.name, getattr(self, one.name)) for one in self.fields())


BY_FIT_ALONE = (
    " is for 'vpem fit' alone; transform features first, by 'vpem data import --power fit' or "
    "scikit-learn's PowerTransformer"
)


def _checked(one: Field[object], value: Any) -> Any:
    """Return the value of a setting, or raise InputError if it cannot be that."""
    known, kinds = describe_field(one), str(one.type).split(" | ")
    if value is None and "None" in kinds:
        return value
    number_or_word = known.choices and "str" in kinds and {"int", "float"} & set(kinds)
    if isinstance(value, str) and number_or_word and value not in known.choices:
        number = "an integer" if "int" in kinds else "a number"
        choices = f"{number} of at least {known.least:g}, or {', '.join(known.choices)}"
        raise InputError(Setting(one.name), f" must be {choices}, got {brief(value)}")
    if kinds == ["bool"] and type(value).__name__ not in ("bool", "bool_"):
        raise InputError(Setting(one.name), f" must be true or false, got {value!r}")
    if (one.name, value) == ("scale", "power") and value not in known.choices:
        raise InputError(Setting(one.name, value), BY_FIT_ALONE)
    if known.choices and (isinstance(value, str) or kinds[0] == "str"):
        value = known.also.get(str(value).upper(), value)
        return check_choice(one.name, value, known.choices)
    by_name = isinstance(value, str) and {"str", "Any"} & set(kinds)
    if known.least is not None and not by_name and not ("Any" in kinds and not is_number(value)):
        from vpem.checks import check_int, check_number  # load NumPy, which `--help` must not

        if "int" in kinds:
            most = None if known.most is None else int(known.most)
            return check_int(one.name, value, least=int(known.least), most=most)
        return check_number(one.name, value, least=known.least, most=known.most, above=known.above)
    return value


def is_number(value: object) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def refused(name: str | Setting, why: Sentence) -> InputError:
    """Return the error of a rule: a sentence about the setting, or one that names it itself."""
    whole = isinstance(why[0], Setting) or why[0][0].isalpha()
    return InputError(*why) if whole else InputError(name, *why)


spared: dict[tuple[str, Sentence], str] = {}
"""Where settings are from that are for several runs, by name and reason; "" once it is said."""


def refuse(name: str, why: Sentence, called: str | Setting) -> None:
    """Raise the error of a rule; warn, once a setting, if that is for several runs."""
    error, origin = refused(called, why), spared.get((name, why))
    if origin is None:
        raise error
    if origin:
        spared.update((one, "") for one in spared if one[0] == name)
        warn(*error.parts, f"; {origin}")


def not_both(one: str, other: str) -> Rule:
    """Return the rule of ``other``, that ``one`` and it exclude each other."""
    sentence = ("give ", Setting(one), " or ", Setting(other), ", not both")
    return lambda given: given.get(one) not in (None, False), sentence


def sentence(text: str) -> Sentence:
    """Return a sentence with settings in braces: "take {split=rows}, or {agents}"."""
    words = re.split(r"\{(\w+)=?(.*?)\}", text)
    values = (int(one) if one.isdecimal() else one or None for one in words[2::3])
    named = map(Setting, words[1::3], values)
    return tuple(filter(None, chain(*zip_longest(words[::3], named))))


def rule(when: Condition, text: str) -> Rule:
    return when, sentence(text)


MILD: set[Sentence] = set()
"""Reasons that no default value is refused for, not even where it is typed."""


def mild(one: Rule) -> Rule:
    """Return a rule whose reason is in `MILD`."""
    MILD.add(one[1])
    return one


def _is(value: object, expected: object) -> bool:
    if expected in (None, ...):  # by identity: a value may be an array
        return value is None if expected is None else value is not None and value is not False
    return value in expected if isinstance(expected, tuple) else value == expected


def beside(text: str, **values: object) -> Rule:
    """Return the rule of a setting beside others of these values: one of a tuple, or any (...)."""
    known = values.items()
    return lambda given: all(_is(given.get(name), one) for name, one in known), sentence(text)


def unless(text: str, **values: object) -> Rule:
    """Return the rule of a setting beside another, if known, that has another value."""
    ((name, value),) = values.items()
    return lambda given: name in given and not _is(given[name], value), sentence(text)


class _Facts(Formatter):
    """Formats numbers of things, and words for what is or is not, or may not be.

    So ``{n_hubs:hub}``, ``{is_here:yes|no}``, ``{file:?none}``.
    """

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, object]) -> Any:
        return args[0](str(key))

    def format_field(self, value: object, format_spec: str) -> str:
        if format_spec.startswith("?"):
            return format_spec[1:] if value in (None, "") else str(value)
        if "|" in format_spec:
            return format_spec.split("|")[0 if value else 1]
        if format_spec.isalpha() and len(format_spec) > 1:
            return f"{value} {format_spec}{'' if value == 1 else 's'}"
        return str(super().format_field(value, format_spec))


def stated(line: str, get: Callable[[str], object]) -> str:
    """Fill a line such as "{n_hubs:hub}" with facts, got by their names."""
    return _Facts().vformat(line, (get,), {})


class Shown:
    """What shows itself by a few facts, and never by its arrays.

    A class says which: ``class Graph(Shown, facts="{n_agents:agent}, {n_edges:edge}")``.
    """

    _facts: ClassVar[str] = ""
    _in_notebooks: ClassVar[str] = ""  # what returns HTML besides, by its name

    def __init_subclass__(cls, facts: str = "", **others: object) -> None:
        super().__init_subclass__(**others)
        cls._facts = facts or cls._facts
        cls.__repr__ = Shown.__repr__  # type: ignore[method-assign]  # before a dataclass makes one

    def __repr__(self) -> str:
        return f"{type(self).__name__}({printable(stated(self._facts, partial(getattr, self)))})"

    def _repr_html_(self) -> str:
        from pkgutil import resolve_name

        facts = printable(stated(self._facts, partial(getattr, self))).split(", ")
        more: str = resolve_name(self._in_notebooks)(self) if self._in_notebooks else ""
        return Table([[fact] for fact in facts], [type(self).__name__])._repr_html_() + more


@dataclass(frozen=True)
class Table:
    """A table of a result, for terminals, notebooks and pages.

    Columns ``right`` are aligned there, by default all but the first, which names the rows. Where
    there is little room columns ``spare`` may be left out, the first of them first.
    """

    rows: Sequence[Sequence[object]]
    heads: Sequence[str] = ()
    caption: str = ""  # above
    right: Collection[str] | None = None
    spare: Sequence[str] = ()
    note: str = ""  # below

    @property
    def aligned(self) -> Collection[str]:
        """Heads of the columns that are aligned on the right."""
        return self.heads[1:] if self.right is None else self.right

    def __str__(self) -> str:
        """Return cells in columns, two blanks apart, and no blanks at the end of lines."""
        lines = [[*map(printable, line)] for line in [self.heads, *self.rows]]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        """Return it as HTML; what it says is escaped, in one line, without control characters."""
        from html import escape

        marks = [RIGHT if head in self.aligned else LEFT for head in self.heads]

        def cell(tag: str, value: object, mark: str = LEFT) -> str:
            return f"<{tag}{mark}>{escape(printable(value))}</{tag.split()[0]}>"

        def line(cells: Sequence[object], first: str, others: str) -> str:
            tags = [first, *[others] * (len(cells) - 1)]
            return f"<tr>{''.join(map(cell, tags, cells, [*marks, *[LEFT] * len(cells)]))}</tr>"

        column, row = 'th scope="col"', 'th scope="row"'
        caption = cell("caption", self.caption) if self.caption else ""
        head = f"<thead>{line(self.heads, column, column)}</thead>" if any(self.heads) else ""
        body = "".join(line(cells, row, "td") for cells in self.rows)
        note = cell("p", self.note) if self.note else ""
        return f"<div class='wide'><table>{caption}{head}<tbody>{body}</tbody></table>{note}</div>"


LEFT, RIGHT = ' style="text-align: left"', ' class="n" style="text-align: right"'


def words_in(name: str, value: object) -> tuple[str | int, ...]:
    """Return the words of a sequence, or of text with commas between, quoted if they have some."""
    if value is None:
        return ()
    if isinstance(value, str):
        rows = list(csv.reader([value], skipinitialspace=True))
        return tuple(word.strip() for word in rows[0]) if rows else ()
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    items = list(value) if isinstance(value, Sequence) else None
    if items is None or not all(isinstance(one, str | int | float) for one in items):
        raise InputError(Setting(name), f" must be words with commas, or a list, got {value!r}")
    return tuple(one if isinstance(one, int) else str(one) for one in items)
