"""Levels of categories: names become codes 0 to L - 1, in the order of the names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, row_blocks
from vpem.errors import InputError, Setting

if TYPE_CHECKING:
    from vpem.files.matrix import FileMatrix

__all__ = ["MOST_LEVELS", "check_levels", "distinct", "named_numbers", "recode", "recoded"]

MOST_LEVELS = 1000
"""A category that is read has no more: each is a parameter of every component."""

Values = NDArray[np.float64]


def check_levels(name: str, n_levels: int, n_values: int, source: str) -> None:
    """Raise InputError where a category has too many levels to be one.

    Parameters
    ----------
    name : str
        Of the column.
    n_levels, n_values : int
        Different values, and values that are not missing.
    source : str
        The file.
    """
    if n_levels > MOST_LEVELS:
        raise InputError(
            f"{source}: {name!r} has more than {MOST_LEVELS} different values, and each would be a "
            "parameter of every component; join those that are rare, or leave it out with ",
            Setting("drop", name),
        )
    if n_levels == n_values > 2:
        raise InputError(
            f"{source}: {name!r} has another value in each of its {n_values} rows, of which no "
            "component could learn anything; if it names the rows say ",
            Setting("id_column", name), ", else leave it out with ", Setting("drop", name),
        )  # fmt: skip


def distinct(
    X: Floats | FileMatrix,
    columns: Sequence[int],
    names: Sequence[str],
    source: str,
    lenient: bool = False,
) -> dict[int, Values]:
    """Return the different values of some columns, in increasing order, without what is missing.

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data.
    columns : sequence of int
        Which.
    names : sequence of str of length d
        Of the features.
    source : str
        The file.
    lenient : bool
        Whether there may be as many values as rows.

    Raises
    ------
    InputError
        If there are too many of them (`check_levels`), or a value is infinite.
    """
    found: dict[int, Values] = {j: np.empty(0) for j in columns}
    there = dict.fromkeys(columns, 0)
    for start, part in row_blocks(X):
        for j in columns:
            values = part[:, j].astype(np.float64)
            values = values[~np.isnan(values)]
            if np.isinf(values).any():
                row = start + int(np.argmax(np.isinf(part[:, j])))
                raise InputError(f"{source}: {names[j]!r} is infinite in row {row}, counted from 0")
            there[j] += len(values)
            found[j] = np.union1d(found[j], values)
            if len(found[j]) > MOST_LEVELS:
                check_levels(names[j], len(found[j]), there[j], source)
    for j in [] if lenient else columns:
        check_levels(names[j], len(found[j]), there[j], source)
    return found


def named_numbers(values: NDArray[np.floating]) -> tuple[str, ...]:
    """Return what numbers are called as levels: 5, 2.5."""
    return tuple(
        str(int(value)) if value == np.floor(value) and abs(value) < 1e15 else str(value)
        for value in values
    )


def recoded(X: Floats | FileMatrix, values: Mapping[int, Values]) -> Any:
    """Return a matrix some of whose columns have codes: the place of each value among some.

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data.
    values : dict of int to ndarray
        By column its values in increasing order; what is none of them becomes missing.
    """
    if not isinstance(X, np.ndarray):
        return X.recoded(values)
    found = X.copy()
    recode(found, values)
    return found


def recode(X: Floats, values: Mapping[int, Values]) -> None:
    """Do what `recoded` says, in place."""
    for j, known in values.items():
        column = X[:, j].astype(np.float64)
        places = np.searchsorted(known, column)
        places[places == len(known)] = 0
        same = known[places] == column if len(known) else np.zeros(len(column), dtype=bool)
        X[:, j] = np.where(same, places, np.nan)
