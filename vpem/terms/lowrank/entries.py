"""Observations made of matrices or lists of entries, split among observers, or hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from vpem.checks import Doubles, Indices, as_array, check_int, check_memory, check_number
from vpem.errors import InputError, check_choice, shorten
from vpem.network.partition import Partition, contiguous
from vpem.settings import DEALS
from vpem.terms.lowrank.observations import Observations


def from_matrices(
    matrices: object,
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
            raise InputError(f"{source}: two observers have the same name; their names must differ")
    elif isinstance(matrices, list | tuple):
        named = {f"observer {number}": matrix for number, matrix in enumerate(matrices)}
    else:
        named = {"observer 0": matrices}
    if not named:
        raise InputError(f"{source}: there are no observers")
    shape: tuple[int, ...] | None = None
    places, values = [], []
    for name, entries in named.items():
        matrix = as_array(f"the entries of {name}", entries)
        if matrix.ndim != 2 or matrix.dtype.kind not in "iufb" or not matrix.size:
            raise InputError(
                f"{source}: {name} must have a matrix of numbers, rows by columns, got shape "
                f"{matrix.shape} of type {matrix.dtype}"
            )
        if shape is not None and matrix.shape != shape:
            raise InputError(
                f"{source}: all observers see one matrix, but that of {name} is "
                f"{matrix.shape[0]} x {matrix.shape[1]} and those before it are {shape[0]} x "
                f"{shape[1]}"
            )
        shape = matrix.shape
        flat = matrix.astype(np.float64).ravel()
        seen = np.flatnonzero(~np.isnan(flat))
        places.append(seen)
        values.append(flat[seen])
    assert shape is not None
    observations = Observations(
        tuple(places),
        tuple(values),
        _names("row", row_names, shape[0], source),
        _names("column", column_names, shape[1], source),
        tuple(named),
        source=source,
    )
    if weights is None:
        _check(observations)
        return observations
    several = isinstance(weights, Mapping | list | tuple)
    listed = list(weights.values() if isinstance(weights, Mapping) else weights)
    every = [as_array("weights", one) for one in (listed if several else [weights])]
    if [one.shape for one in every] != [shape] * len(named):
        raise InputError(
            f"{source}: weights must be {len(named)} matrices of {shape[0]} x {shape[1]}, as the "
            "entries are"
        )
    pairs = zip(every, places, strict=True)
    return weighted(observations, [one.astype(np.float64).ravel()[at] for one, at in pairs])


def from_triplets(
    observers: Indices,
    rows: Indices,
    columns: Indices,
    values: Doubles,
    *,
    names: Sequence[str],
    row_names: Sequence[str],
    column_names: Sequence[str],
    source: str = "the observations",
    weights: Doubles | None = None,
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
    observations = Observations(
        tuple(np.split(places, ends)),
        tuple(np.split(values, ends)),
        _names("row", row_names, n_rows, source),
        _names("column", column_names, n_columns, source),
        _names("observer", names, len(names), source),
        source=source,
    )
    if weights is not None:
        return weighted(observations, np.split(weights[order], ends), partial)
    _check(observations, partial)
    return observations


def weighted(
    observations: Observations, weights: Sequence[Doubles], partial: bool = False
) -> Observations:
    """Let entries weigh unlike each other: ``weights`` (m_i,) of each observer's, in their order.

    An entry of weight 2 counts as two observations, of which others count as one; one of weight 0
    was not seen. ``partial`` is as for `from_triplets`.
    """
    for observer, observer_weights in enumerate(weights):
        wrong = ~(np.isfinite(observer_weights) & (observer_weights >= 0))
        if wrong.any():
            first, what = observations.said_of(observer, wrong)
            raise InputError(
                f"{observations.source}: weights must be finite and not negative, but {what} "
                f"weighs {observer_weights[first]:g}"
            )
    heavy = replace(observations, weights=tuple(weights)).chosen([one > 0 for one in weights])
    _check(heavy, partial)
    return heavy


def _names(what: str, names: Sequence[str] | None, number: int, source: str) -> tuple[str, ...]:
    """Names of rows, columns or observers: all different, as many as there are."""
    if names is None:
        return tuple(f"{what} {place}" for place in range(number))
    strings = tuple(map(str, names))
    if len(strings) != number:
        raise InputError(f"{source}: there are {number} {what}s but {len(strings)} names of them")
    if len(set(strings)) < number:
        counts: dict[str, int] = {}
        for name in strings:
            counts[name] = counts.get(name, 0) + 1
        twice = next(name for name, count in counts.items() if count > 1)
        raise InputError(f"{source}: two {what}s are called {twice!r}; their names must differ")
    return strings


def _check(observations: Observations, partial: bool = False) -> None:
    """Refuse values that are not finite, and columns and observers without entries."""
    for observer, values in enumerate(observations.values):
        finite = np.isfinite(values)
        if not finite.all():
            first, what = observations.said_of(observer, ~finite)
            raise InputError(
                f"{observations.source}: {what} is {values[first]}; leave out what was not seen"
            )
    if not observations.n_entries:
        raise InputError(f"{observations.source}: no observer saw a single entry")
    if not partial:
        seen = observations.times_seen > 0
        # Rows without entries are for methods to refuse.
        if not np.any(seen, axis=0).all():
            check_covered(observations, np.any(seen, axis=1), np.any(seen, axis=0))
    if not observations.counts.all():
        idle = [observations.names[number] for number in np.flatnonzero(observations.counts == 0)]
        raise InputError(
            f"{observations.source}: {shorten(idle)} saw nothing; leave such observers out"
        )


def check_covered(observations: Observations, rows: ArrayLike, columns: ArrayLike) -> None:
    """Refuse a mask that hides a whole row or column, of which nothing would be known.

    ``rows`` (I,) and ``columns`` (J,) say whether any observer saw an entry of each.
    """
    hidden, kinds = [], []
    for what, names, any_seen in (
        ("row", observations.row_names, rows),
        ("column", observations.column_names, columns),
    ):
        unseen = np.flatnonzero(~np.asarray(any_seen, dtype=np.bool_))
        if len(unseen):
            empty = [repr(names[place]) for place in unseen]
            hidden.append(f"{what}{'s' if len(empty) > 1 else ''} {shorten(empty)}")
            kinds.append(f"{what}s")
    if hidden:
        raise InputError(
            f"{observations.source}: no observer saw any entry of {' and of '.join(hidden)}, so "
            f"nothing can be imputed there; leave such {' and '.join(kinds)} out"
        )


@dataclass(frozen=True)
class Hidden:
    """Entries that were taken away from all who saw them; one line for each observer of one."""

    places: Indices  # (m,) ``row * J + column``
    values: Doubles  # (m,) what was seen there
    n_places: int  # different entries
    n_seen: int  # different entries seen before


def split(
    observations: Observations,
    n_observers: int,
    by: str = "random",
    rng: np.random.Generator | None = None,
) -> Observations:
    """Deal the entries that one observer saw out to several, who hold parts of one matrix.

    ``by`` says what is dealt: "random", entries in nearly equal numbers, for which ``rng`` is
    needed; or whole "rows" or "features", in runs of neighbours. The result has ``n_copies`` 1.
    """
    check_choice("split", by, DEALS)
    n_observers = check_int("n_workers", n_observers, least=1)
    if by == "features":
        return split_columns(observations, contiguous(observations.shape[1], n_observers))
    _refuse_several(observations)
    what, most = (
        ("rows", observations.shape[0]) if by == "rows" else ("entries", observations.n_entries)
    )
    if n_observers > most:
        raise InputError(
            f"{n_observers} workers cannot share {most} {what}, since each needs at least one; "
            f"give at most {most} workers"
        )
    (places,) = observations.places
    if by == "rows":
        owner_of_row = np.repeat(
            np.arange(n_observers), [len(p) for p in np.array_split(range(most), n_observers)]
        )
        owner = owner_of_row[places // observations.shape[1]]
    else:
        assert rng is not None
        owner = rng.permutation(np.arange(most) % n_observers)
    return _dealt(observations, owner, [f"worker {number}" for number in range(n_observers)])


def split_columns(observations: Observations, partition: Partition) -> Observations:
    """Deal the columns that one observer saw out to the agents that hold them."""
    _refuse_several(observations)
    return _dealt(
        observations,
        partition.agent_of[observations.places[0] % observations.shape[1]],
        partition.names,
    )


def _refuse_several(observations: Observations) -> None:
    if observations.n_observers != 1:
        raise InputError(
            f"{observations.source} has {observations.n_observers} observers of its own; leave out "
            "the number of workers, which splits the matrix of one"
        )


def _dealt(observations: Observations, owner: Indices, names: Sequence[str]) -> Observations:
    (places,), (values,) = observations.places, observations.values
    parts = [np.flatnonzero(owner == number) for number in range(len(names))]
    weights = None if observations.weights is None else observations.weights[0]
    return replace(
        observations,
        places=tuple(places[part] for part in parts),
        values=tuple(values[part] for part in parts),
        weights=None if weights is None else tuple(weights[part] for part in parts),
        names=tuple(names),
        n_copies=1,
    )


def hide(
    observations: Observations,
    share: float,
    rng: np.random.Generator,
    every: Sequence[Indices] | None = None,
) -> tuple[Observations, Hidden]:
    """Take away a share of the entries, drawn at random, from all observers who saw them.

    The share, above 0 and below 1, counts different entries seen, and is met as nearly as can be:
    every row, column and observer keeps an entry. ``every`` has the entries that each observer saw,
    where ``observations`` has those of some alone.
    """
    share = check_number("holdout", share, least=0.0, most=1.0)
    if share in (0.0, 1.0):
        raise InputError(f"holdout must be above 0 and below 1, got {share:g}")
    all_places = observations.places if every is None else every
    places = np.concatenate(all_places)
    owner = np.repeat(np.arange(observations.n_observers), observations.counts)
    order = np.argsort(places, kind="stable")
    seen, first = np.unique(places[order], return_index=True)
    owners = np.split(owner[order], first[1:])
    n_hidden = max(1, round(share * len(seen)))
    # Entries that are not the last of their row, column or of one who saw them.
    rows, columns = np.divmod(seen, observations.shape[1])
    in_row, in_column = np.bincount(rows).tolist(), np.bincount(columns).tolist()
    of_owner = observations.counts.tolist()
    spared: list[int] = []
    for entry in rng.permutation(len(seen)).tolist():
        if len(spared) == n_hidden:
            break
        row, column, who = int(rows[entry]), int(columns[entry]), owners[entry].tolist()
        if in_row[row] > 1 and in_column[column] > 1 and all(of_owner[one] > 1 for one in who):
            in_row[row] -= 1
            in_column[column] -= 1
            for one in who:
                of_owner[one] -= 1
            spared.append(entry)
    away = seen[spared]
    if not len(away):
        raise InputError(
            f"{observations.source}: no entry can be hidden, since every one is the last of its "
            "row, column or observer; leave out the holdout"
        )
    taken = [np.isin(of_observer, away) for of_observer in observations.places]
    rest = observations.chosen([~out for out in taken])
    if observations.sizes is not None:
        gone = np.array([np.isin(entries, away).sum() for entries in all_places], dtype=np.intp)
        rest = replace(rest, sizes=observations.sizes - gone)
    out = observations.chosen(taken)
    return rest, Hidden(
        np.concatenate(out.places), np.concatenate(out.values), len(away), len(seen)
    )
