"""Which columns of a table are what: features, labels, ids, workers, weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vpem.checks import read_int
from vpem.errors import InputError, Setting, brief, did_you_mean, shorten
from vpem.files.labels_for_fit import columns_of_labels
from vpem.files.readers.frames import Wanted
from vpem.files.table_settings import words_in

NOTED = ("label", "id", "worker", "weight")
"""What columns may hold beside features."""


@dataclass(frozen=True)
class Choice:
    """What the columns of a table are, by their numbers."""

    noted: dict[str, int]  # labels, ids, workers and weights that there are
    features: list[int]
    chosen: bool  # by name, one by one; else all other columns
    free: list[int]  # not dropped
    known: list[int] = field(default_factory=list)  # labels for the fit

    @property
    def taken(self) -> set[int]:
        """Columns that hold something beside features."""
        return {*self.noted.values(), *self.known}


def choose(names: Sequence[str], wanted: Wanted, source: str) -> Choice:
    """Say what the columns of a table are, after checking that each is there and for one thing."""
    table, columns = wanted.table, wanted.columns
    lacking = wanted.lacking if wanted.weights_needed else (*wanted.lacking, "weight")
    known = list(names)
    told = dict(zip(NOTED, (table.label_column, table.id_column, table.worker_column,
                            wanted.weights), strict=True))  # fmt: skip
    noted: dict[str, int] = {}
    for what, column in told.items():
        if column is None or (what in lacking and column not in known):
            continue
        place = resolve_column(f"{what} column", column, known, source)
        assert place is not None
        for other, taken in noted.items():
            if taken == place:
                raise InputError(
                    f"{source}: column {known[place]!r} cannot hold both {other}s and {what}s"
                )
        noted[what] = place
    fitted = columns_of_labels(table.labels_for_fit, known)
    for place in fitted:
        also = [what for what, one in noted.items() if one == place and what != "label"]
        if also:
            raise InputError(
                f"{source}: column {known[place]!r} cannot hold both {also[0]}s and labels"
            )
    dropped = set(columns_in("drop", table.drop, known, source))
    for what, place in noted.items():
        if place in dropped:
            raise InputError(f"{source}: the {what} column {known[place]!r} is also dropped")
    free = [n for n in range(len(known)) if n not in dropped]
    chosen = columns is not None or table.features is not None
    if columns is not None:
        features = _of_a_model(columns, known, source)
    elif table.features is not None:
        features = columns_in("features", table.features, known, source)
    else:
        features = [n for n in free if n not in noted.values() and n not in fitted]
    holders = {place: what for what, place in noted.items()} | dict.fromkeys(fitted, "label")
    _check(features, holders, dropped, known, source)
    return Choice(noted, features, chosen, free, fitted)


def _of_a_model(
    columns: Sequence[str] | frozenset[str], names: list[str], source: str
) -> list[int]:
    """Return the columns of a model's features."""
    if not isinstance(columns, frozenset):
        found = (resolve_column("column", name, names, source) for name in columns)
        return [place for place in found if place is not None]
    there = [n for n, name in enumerate(names) if name in columns]
    if not there:
        raise InputError(
            f"{source} has none of the features {shorten(map(repr, sorted(columns)))}; its "
            f"columns are {shorten(names, 10)}"
        )
    return there


def columns_in(setting: str, value: object, names: list[str], source: str) -> list[int]:
    """Return the columns that a list of names, places and ranges of places names, in its order."""
    # A column may have a comma in its name.
    words = (value,) if isinstance(value, str) and value in names else words_in(setting, value)
    found: list[int] = []
    for word in words:
        ends = re.fullmatch("([0-9]{1,9})-([0-9]{1,9})", word) if isinstance(word, str) else None
        if ends is not None and word not in names:
            low, high = (int(end) for end in ends.groups())
            if not low <= high < len(names):
                raise InputError(
                    f"{source}: there are no columns {word}; the {len(names)} columns are "
                    f"numbered from 0 to {len(names) - 1}"
                )
            found += range(low, high + 1)
            continue
        place = resolve_column("column", word, names, source)
        assert place is not None
        found.append(place)
    return found


def _check(
    features: list[int], holders: dict[int, str], dropped: set[int], names: list[str], source: str
) -> None:
    """Raise InputError where a feature is named twice, is something else too, or there is none."""
    seen: set[int] = set()
    for place in features:
        why = f"holds {holders[place]}s" if place in holders else ""
        why = why or ("is dropped" if place in dropped else "is one already" * (place in seen))
        if why:
            raise InputError(f"{source}: {names[place]!r} cannot be a feature: it {why}")
        seen.add(place)
    first: dict[str, int] = {}
    for place, name in enumerate(names):
        if first.setdefault(name, place) != place:
            raise InputError(
                f"{source}: columns {first[name]} and {place} are both called {name!r}; rename "
                "one, or pass ",
                Setting("no_header", True),
                " if the first row is data",
            )
    if not features:
        raise InputError(f"{source}: no column is left for the features")


def resolve_column(
    what: str, column: str | int | None, names: list[str], source: str
) -> int | None:
    """Return the number of a column given by name or number."""
    if column is None:
        return None
    if isinstance(column, str):
        if names.count(column) > 1:
            raise InputError(f"{source}: several columns are called {column!r}; give a number")
        if column in names:
            return names.index(column)
        number = read_int(column)
        if number is None:
            raise InputError(
                f"{source}: there is no {what} {brief(column)}{did_you_mean(column, names)}; the "
                f"columns are {shorten(names, 10)}"
            )
        column = number
    if isinstance(column, bool | np.bool_) or not isinstance(column, int | np.integer):
        raise InputError(f"{what} must be a name or a number, got {column!r}")
    if not -len(names) <= column < len(names):
        raise InputError(
            f"{source}: there is no {what} {column}; the {len(names)} columns are numbered from 0 "
            f"to {len(names) - 1}, or from -1 backwards"
        )
    return int(column) % len(names)
