"""Levels of categories: names become codes 0 to L - 1, in the order of the names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, Labels, Matrix, read_float, row_blocks
from vpem.errors import InputError, Setting

if TYPE_CHECKING:
    from vpem.files.matrix import FileMatrix


MOST_LEVELS = 1000
"""A category that is read has no more: each is a parameter of every component."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Recoding:
    """What becomes of the values of a column."""

    values: Values  # (n,) known ones, increasing
    codes: Values  # (n,), NaN: missing, as are all other values

    @classmethod
    def places(cls, values: Values) -> Recoding:
        """Return that by which each value becomes its place among all."""
        return cls(values, np.arange(len(values), dtype=np.float64))

    @classmethod
    def names(cls, have: Sequence[str], among: Sequence[str]) -> Recoding:
        """Return how codes of names become those of the same names, or numbers, among others."""
        place = {_number_or(name): code for code, name in enumerate(among)}
        place |= {name: code for code, name in enumerate(among)}
        codes = [place.get(name, place.get(_number_or(name), np.nan)) for name in have]
        return cls(np.arange(len(have), dtype=np.float64), np.array(codes, dtype=np.float64))

    def recode(self, column: Labels) -> Values:
        """Return what becomes of a column, shape (m,)."""
        if not len(self.values):
            return np.full(len(column), np.nan)
        values = column.astype(np.float64)
        places = np.minimum(np.searchsorted(self.values, values), len(self.values) - 1)
        return np.where(self.values[places] == values, self.codes[places], np.nan)

    def then(self, other: Recoding) -> Recoding:
        """Return one that does this, and then another to what has come of it."""
        return Recoding(self.values, other.recode(self.codes))


def in_levels(
    X: Floats | FileMatrix, have: Mapping[int, Sequence[str]], levels: Mapping[int, Sequence[str]]
) -> tuple[Matrix, dict[int, tuple[int, list[str]]]]:
    """Return a matrix whose codes stand for a model's levels, found by name; NaN for other levels.

    ``have`` names the levels of coded columns; numbers of other columns are called as they are
    written. Also returned, by column: how many values have no level, and some of their names.
    """
    changes = {}
    for j, names in levels.items():
        if j in have:
            changes[j] = Recoding.names(have[j], names)
            continue
        numbers = [(_number_or(name), float(code)) for code, name in enumerate(names)]
        known = sorted(one for one in numbers if not isinstance(one[0], str))
        values, codes = np.array(known, dtype=np.float64).reshape(-1, 2).T
        changes[j] = Recoding(values, codes)
    unseen: dict[int, tuple[int, list[str]]] = {}
    open_ = [j for j, one in changes.items() if j not in have or np.isnan(one.codes).any()]
    for _, part in row_blocks(X) if open_ else ():
        for j in open_:
            column = part[:, j]
            new = column[~np.isnan(column) & np.isnan(changes[j].recode(column))]
            if len(new):
                few = np.unique(new)[:3]
                called = [have[j][int(v)] for v in few] if j in have else [*named_numbers(few)]
                count, before = unseen.get(j, (0, []))
                unseen[j] = count + len(new), list(dict.fromkeys([*before, *called]))[:3]
    return recoded(X, changes), unseen


def _number_or(name: str) -> str | float:
    number = read_float(name)
    return name if number is None else number


def check_levels(name: str, n_levels: int, n_values: int, source: str) -> None:
    """Raise InputError where a category has too many levels for its values that are not missing."""
    if n_levels > MOST_LEVELS:
        raise InputError(
            f"{source}: {name!r} has more than {MOST_LEVELS} different values, and each would be a "
            "parameter of every component; merge the rare ones, or leave it out with ",
            Setting("drop", name),
        )
    if n_levels == n_values > 2:
        raise InputError(
            f"{source}: {name!r} has a different value in each of its {n_values} rows, from which "
            "no component can learn; if it identifies the rows, pass ",
            Setting("id_column", name), ", else leave it out with ", Setting("drop", name),
        )  # fmt: skip


def distinct(
    parts: Sequence[Matrix],
    columns: Sequence[int],
    names: Sequence[str],
    source: str,
    lenient: bool = False,
) -> dict[int, Values]:
    """Return values of some columns of (m, d) parts, increasing; ``lenient``: any number."""
    distinct_values: dict[int, Values] = {j: np.empty(0) for j in columns}
    there = dict.fromkeys(columns, 0)
    for start, part in (block for X in parts for block in row_blocks(X)):
        for j in columns:
            values = part[:, j].astype(np.float64)
            values = values[~np.isnan(values)]
            if np.isinf(values).any():
                row = start + int(np.argmax(np.isinf(part[:, j])))
                raise InputError(f"{source}: {names[j]!r} is infinite in row {row}, counted from 0")
            there[j] += len(values)
            distinct_values[j] = np.union1d(distinct_values[j], values)
            if len(distinct_values[j]) > MOST_LEVELS:
                check_levels(names[j], len(distinct_values[j]), there[j], source)
    for j in [] if lenient else columns:
        check_levels(names[j], len(distinct_values[j]), there[j], source)
    return distinct_values


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of levels in their order: by their letters, or by size if all are numbers."""
    numbers = [(read_float(name), name) for name in names]
    if any(number is None for number, _ in numbers):
        return tuple(sorted(name for _, name in numbers))
    return tuple(name for _, name in sorted(numbers))


def named_numbers(values: NDArray[np.floating]) -> tuple[str, ...]:
    """Return what numbers are called as levels: 5, 2.5."""
    return tuple(
        str(int(value)) if value == np.floor(value) and abs(value) < 1e15 else str(value)
        for value in values
    )


def recoded(X: Any, changes: Mapping[int, Recoding]) -> Any:
    """Return a matrix (M, d) with other values in some columns."""
    changes = {j: one for j, one in changes.items() if not np.array_equal(one.values, one.codes)}
    if not changes:
        return X
    if not isinstance(X, np.ndarray):
        return X.recoded(changes)
    changed = X.copy()
    for j, change in changes.items():
        changed[:, j] = change.recode(X[:, j])
    return changed
