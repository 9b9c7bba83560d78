"""Observations are made of matrices with gaps, or of lists of entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import as_array, check_memory
from vpem.errors import InputError, shorten
from vpem.terms.lowrank.observations import Observations


def from_matrices(
    matrices: Any,
    *,
    row_names: Sequence[str] | None = None,
    column_names: Sequence[str] | None = None,
    source: str = "the observations",
    weights: Any = None,
) -> Observations:
    """Make observations of one matrix (I, J) an observer, NaN where it saw nothing.

    Matrices and weights are arrays of one shape, one or a list or a dict by name of them; every
    column and every observer has an entry. See `weighted`.
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
    if weights is None:
        _check(found)
        return found
    several = isinstance(weights, Mapping | list | tuple)
    listed = list(weights.values() if isinstance(weights, Mapping) else weights)
    every = [as_array("weights", one) for one in (listed if several else [weights])]
    if [one.shape for one in every] != [shape] * len(named):
        raise InputError(
            f"{source}: weights must be {len(named)} matrices of {_by(shape)}, as the entries are"
        )
    pairs = zip(every, places, strict=True)
    return weighted(found, [one.astype(np.float64).ravel()[at] for one, at in pairs])


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
    weights: NDArray[np.float64] | None = None,
    partial: bool = False,
) -> Observations:
    """Make observations of a list of entries (m,), in any order, each once an observer.

    Observers, rows and columns are numbers from 0. With ``partial`` others, elsewhere, may have
    seen what is missing here, so that a column may have no entry: `check_covered` is for later.
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
    if weights is not None:
        return weighted(found, np.split(weights[order], ends), partial)
    _check(found, partial)
    return found


def weighted(
    found: Observations, weights: Sequence[NDArray[np.float64]], partial: bool = False
) -> Observations:
    """Let entries weigh unlike each other: ``weights`` (m_i,) of each observer's, in their order.

    An entry of weight 2 counts as two observations, of which others count as one; one of weight 0
    was not seen. ``partial`` is as for `from_triplets`.
    """
    n_columns = found.shape[1]
    for name, places, own in zip(found.names, found.places, weights, strict=True):
        wrong = ~(np.isfinite(own) & (own >= 0))
        if wrong.any():
            row, column = divmod(int(places[np.argmax(wrong)]), n_columns)
            raise InputError(
                f"{found.source}: weights must be finite and not negative, but what {name} saw at "
                f"row {found.row_names[row]!r}, column {found.column_names[column]!r} weighs "
                f"{own[np.argmax(wrong)]:g}"
            )
    heavy = replace(found, weights=tuple(weights)).chosen([own > 0 for own in weights])
    _check(heavy, partial)
    return heavy


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


def _check(found: Observations, partial: bool = False) -> None:
    """Refuse values that are not finite, and columns and observers without entries."""
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
    if not partial:
        seen = found.times_seen > 0
        # Rows without entries are for methods to refuse.
        if not np.any(seen, axis=0).all():
            check_covered(found, np.any(seen, axis=1), np.any(seen, axis=0))
    if not found.counts.all():
        idle = [found.names[number] for number in np.flatnonzero(found.counts == 0)]
        raise InputError(f"{found.source}: {shorten(idle)} saw nothing; leave such observers out")


def check_covered(found: Observations, rows: ArrayLike, columns: ArrayLike) -> None:
    """Refuse a mask that hides a whole row or column: nothing there tells what it was.

    ``rows`` (I,) and ``columns`` (J,) say whether anybody saw an entry of each.
    """
    hidden, kinds = [], []
    for what, names, any_seen in (
        ("row", found.row_names, rows),
        ("column", found.column_names, columns),
    ):
        unseen = np.flatnonzero(~np.asarray(any_seen, dtype=np.bool_))
        if len(unseen):
            empty = [repr(names[place]) for place in unseen]
            hidden.append(f"{what}{'s' if len(empty) > 1 else ''} {shorten(empty)}")
            kinds.append(f"{what}s")
    if hidden:
        raise InputError(
            f"{found.source}: nobody saw any entry of {' and of '.join(hidden)}, so nothing can be "
            f"imputed there; leave such {' and '.join(kinds)} out"
        )
