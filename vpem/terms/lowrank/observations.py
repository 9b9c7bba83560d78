"""Partial matrices: which entries (say, site and time) each observer saw, and what it saw there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import as_array, check_memory
from vpem.errors import InputError, shorten
from vpem.terms.lowrank.laws import Law

__all__ = [
    "Observations",
    "check_law",
    "from_matrices",
    "from_triplets",
]


@dataclass(frozen=True)
class Observations:
    """Entries of an I x J matrix as n observers saw them; several may have seen the same one.

    Parameters
    ----------
    places : tuple of ndarray of shape (m_i,)
        ``places[i]`` are the entries that observer i saw, ``row * J + column``, increasing.
    values : tuple of ndarray of shape (m_i,)
        What it saw there.
    row_names, column_names : tuple of str
        Of the matrix, (I,) and (J,).
    names : tuple of str
        Of the observers, all different.
    n_copies : int or None
        Copies of the matrix that observers hold parts of, where they are fewer than the observers:
        1 for parts of one matrix.
    source : str
        Where they are from, for messages.
    """

    places: tuple[NDArray[np.intp], ...]
    values: tuple[NDArray[np.float64], ...]
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]
    names: tuple[str, ...]
    n_copies: int | None = None
    source: str = "the observations"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix, I and J."""
        return len(self.row_names), len(self.column_names)

    @property
    def n_observers(self) -> int:
        """Number of observers, n."""
        return len(self.places)

    @property
    def counts(self) -> NDArray[np.intp]:
        """Number of entries that each observer saw, shape (n,)."""
        return np.array([part.size for part in self.places], dtype=np.intp)

    @property
    def n_seen(self) -> int:
        """Different entries of the matrix that somebody saw."""
        return len(np.unique(np.concatenate(self.places)))

    @property
    def n_entries(self) -> int:
        """Number of entries of all observers together."""
        return int(self.counts.sum())

    @property
    def times_seen(self) -> NDArray[np.intp]:
        """How many observers saw each entry, shape (I, J)."""
        rows, columns = self.shape
        every = np.concatenate(self.places)
        return np.bincount(every, minlength=rows * columns).reshape(self.shape)

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean over observers of each entry, NaN where nobody saw it, shape (I, J)."""
        rows, columns = self.shape
        total = np.bincount(
            np.concatenate(self.places), np.concatenate(self.values), rows * columns
        )
        seen = self.times_seen
        found = np.full(self.shape, np.nan)
        np.divide(total.reshape(self.shape), seen, out=found, where=seen > 0)
        return found

    def matrix(self, observer: int) -> NDArray[np.float64]:
        """What one observer saw, NaN elsewhere, shape (I, J)."""
        found = np.full(self.shape, np.nan)
        found.ravel()[self.places[observer]] = self.values[observer]
        return found


def from_matrices(
    matrices: Any,
    *,
    row_names: Sequence[str] | None = None,
    column_names: Sequence[str] | None = None,
    source: str = "the observations",
) -> Observations:
    """Make observations of one matrix an observer, NaN where it saw nothing.

    Parameters
    ----------
    matrices : array of shape (I, J), or a list or dict by name of them
        All of one shape.
    row_names, column_names : sequence of str, optional
        "row 0", "row 1", ... and "column 0", ... by default.
    source : str
        Where they are from, for messages.

    Returns
    -------
    Observations

    Raises
    ------
    InputError
        If they are no matrices of one shape, an entry is infinite, or a row, a column or an
        observer has none.
    """
    if isinstance(matrices, Mapping):
        named = {str(name): matrix for name, matrix in matrices.items()}
        if len(named) < len(matrices):
            raise InputError(f"{source}: two observers have one name; their names must differ")
    elif isinstance(matrices, list | tuple):
        named = {f"observer {number}": matrix for number, matrix in enumerate(matrices)}
    else:
        named = {"observer 0": matrices}
    if not named:
        raise InputError(f"{source}: there are no observers")
    shape: tuple[int, ...] | None = None
    places, values = [], []
    for name, given in named.items():
        matrix = as_array(f"the entries of {name}", given)
        if matrix.ndim != 2 or matrix.dtype.kind not in "iufb" or not matrix.size:
            raise InputError(
                f"{source}: {name} must have a matrix of numbers, rows by columns, got shape "
                f"{matrix.shape} of type {matrix.dtype}"
            )
        if shape is not None and matrix.shape != shape:
            raise InputError(
                f"{source}: all observers see one matrix, but that of {name} is "
                f"{_by(matrix.shape)} and those before it are {_by(shape)}"
            )
        shape = matrix.shape
        flat = matrix.astype(np.float64).ravel()
        seen = np.flatnonzero(~np.isnan(flat))
        places.append(seen)
        values.append(flat[seen])
    assert shape is not None
    found = Observations(
        tuple(places),
        tuple(values),
        _names("row", row_names, shape[0], source),
        _names("column", column_names, shape[1], source),
        tuple(named),
        source=source,
    )
    _check(found)
    return found


def from_triplets(
    observers: NDArray[np.intp],
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
    values: NDArray[np.float64],
    *,
    names: Sequence[str],
    row_names: Sequence[str],
    column_names: Sequence[str],
    source: str = "the observations",
) -> Observations:
    """Make observations of a list of entries, in any order.

    Parameters
    ----------
    observers, rows, columns : ndarray of shape (m,)
        Numbers from 0.
    values : ndarray of shape (m,)
        What was seen.
    names, row_names, column_names : sequence of str
        Of observers (n,), rows (I,) and columns (J,).
    source : str
        Where they are from, for messages.

    Returns
    -------
    Observations

    Raises
    ------
    InputError
        If an observer has an entry twice, a value is not finite, or a row, a column or an observer
        has no entry.
    """
    n_rows, n_columns = len(row_names), len(column_names)
    check_memory(8 * n_rows * n_columns, f"{source}: a matrix of {n_rows} x {n_columns}")
    places = rows * n_columns + columns
    order = np.lexsort((places, observers))
    observers, places, values = observers[order], places[order], values[order]
    again = np.flatnonzero((np.diff(observers) == 0) & (np.diff(places) == 0))
    if again.size:
        one = int(again[0])
        row, column = divmod(int(places[one]), n_columns)
        raise InputError(
            f"{source}: observer {names[observers[one]]!r} has row {row_names[row]!r}, column "
            f"{column_names[column]!r} twice ({values[one]:g} and {values[one + 1]:g}); keep one"
        )
    ends = np.cumsum(np.bincount(observers, minlength=len(names)))[:-1]
    found = Observations(
        tuple(np.split(places, ends)),
        tuple(np.split(values, ends)),
        _names("row", row_names, n_rows, source),
        _names("column", column_names, n_columns, source),
        _names("observer", names, len(names), source),
        source=source,
    )
    _check(found)
    return found


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _names(what: str, names: Sequence[str] | None, number: int, source: str) -> tuple[str, ...]:
    """Names of rows, columns or observers: all different, as many as there are."""
    if names is None:
        return tuple(f"{what} {place}" for place in range(number))
    found = tuple(map(str, names))
    if len(found) != number:
        raise InputError(f"{source}: there are {number} {what}s but {len(found)} names of them")
    if len(set(found)) < number:
        counts: dict[str, int] = {}
        for name in found:
            counts[name] = counts.get(name, 0) + 1
        twice = next(name for name, count in counts.items() if count > 1)
        raise InputError(f"{source}: two {what}s are called {twice!r}; their names must differ")
    return found


def _check(found: Observations) -> None:
    """Refuse values that are not finite, and rows, columns and observers without entries."""
    n_columns = found.shape[1]
    for name, places, values in zip(found.names, found.places, found.values, strict=True):
        finite = np.isfinite(values)
        if not finite.all():
            row, column = divmod(int(places[np.argmin(finite)]), n_columns)
            raise InputError(
                f"{found.source}: what {name} saw at row {found.row_names[row]!r}, column "
                f"{found.column_names[column]!r} is {values[np.argmin(finite)]}; leave out what "
                "was not seen"
            )
    if not found.n_entries:
        raise InputError(f"{found.source}: nobody saw a single entry")
    _check_covered(found)
    if not found.counts.all():
        idle = [found.names[number] for number in np.flatnonzero(found.counts == 0)]
        raise InputError(f"{found.source}: {shorten(idle)} saw nothing; leave such observers out")


def _check_covered(found: Observations) -> None:
    """Refuse a mask that hides a whole row or column: nothing there tells what it was."""
    seen = found.times_seen > 0
    hidden, kinds = [], []
    for what, names, any_seen in (
        ("row", found.row_names, seen.any(axis=1)),
        ("column", found.column_names, seen.any(axis=0)),
    ):
        if not any_seen.all():
            empty = [repr(names[place]) for place in np.flatnonzero(~any_seen)]
            hidden.append(f"{what}{'s' if len(empty) > 1 else ''} {shorten(empty)}")
            kinds.append(f"{what}s")
    if hidden:
        raise InputError(
            f"{found.source}: nobody saw any entry of {' and of '.join(hidden)}, so nothing can be "
            f"imputed there; leave such {' and '.join(kinds)} out"
        )


def check_law(found: Observations, law: Law) -> None:
    """Raise InputError where a value cannot be of the law: counts that are no counts, say."""
    n_columns = found.shape[1]
    for name, places, values in zip(found.names, found.places, found.values, strict=True):
        wrong, wanted = law.fault(values)
        if wrong.any():
            first = int(np.argmax(wrong))
            row, column = divmod(int(places[first]), n_columns)
            others = f"; {int(wrong.sum())} of its values are not" if wrong.sum() > 1 else ""
            raise InputError(
                f"{found.source}: under the {law.name} law values must {wanted}, but what {name} "
                f"saw at row {found.row_names[row]!r}, column {found.column_names[column]!r} is "
                f"{values[first]:g}{others}"
            )
