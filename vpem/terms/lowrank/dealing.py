"""Entries of matrices are dealt out to observers, or hidden from all, to be found again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_int, check_number
from vpem.errors import InputError, check_choice
from vpem.network.partition import Partition, contiguous
from vpem.settings import DEALS
from vpem.terms.lowrank.observations import Observations


@dataclass(frozen=True)
class Hidden:
    """Entries that were taken away from all who saw them; one line for each observer of one."""

    places: NDArray[np.intp]  # (m,) ``row * J + column``
    values: NDArray[np.float64]  # (m,) what was seen there
    n_places: int  # different entries
    n_seen: int  # different entries that somebody saw before


def split(
    found: Observations,
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
        return split_columns(found, contiguous(found.shape[1], n_observers))
    _refuse_several(found)
    what, most = ("rows", found.shape[0]) if by == "rows" else ("entries", found.n_entries)
    if n_observers > most:
        raise InputError(
            f"{n_observers} workers cannot share {most} {what}, since each needs at least one; "
            f"give at most {most} workers"
        )
    (places,) = found.places
    if by == "rows":
        owner_of_row = np.repeat(
            np.arange(n_observers), [len(p) for p in np.array_split(range(most), n_observers)]
        )
        owner = owner_of_row[places // found.shape[1]]
    else:
        assert rng is not None
        owner = rng.permutation(np.arange(most) % n_observers)
    return _dealt(found, owner, [f"worker {number}" for number in range(n_observers)])


def split_columns(found: Observations, held: Partition) -> Observations:
    """Deal the columns that one observer saw out to the agents that hold them."""
    _refuse_several(found)
    return _dealt(found, held.agent_of[found.places[0] % found.shape[1]], held.names)


def _refuse_several(found: Observations) -> None:
    """Raise InputError where there is more than one observer."""
    if found.n_observers != 1:
        raise InputError(
            f"{found.source} has {found.n_observers} observers of its own; leave out the number of "
            "workers, which splits the matrix of one"
        )


def _dealt(found: Observations, owner: NDArray[np.intp], names: Sequence[str]) -> Observations:
    """Give every entry of the one observer to its owner."""
    (places,), (values,) = found.places, found.values
    parts = [np.flatnonzero(owner == number) for number in range(len(names))]
    weights = None if found.weights is None else found.weights[0]
    return replace(
        found,
        places=tuple(places[part] for part in parts),
        values=tuple(values[part] for part in parts),
        weights=None if weights is None else tuple(weights[part] for part in parts),
        names=tuple(names),
        n_copies=1,
    )


def hide(
    found: Observations,
    share: float,
    rng: np.random.Generator,
    every: Sequence[NDArray[np.intp]] | None = None,
) -> tuple[Observations, Hidden]:
    """Take away a share of the entries, drawn at random, from all observers who saw them.

    The share, above 0 and below 1, is of the different entries seen, and is kept to as nearly as
    can be: every row, column and observer keeps an entry. ``every`` has the entries that each
    observer saw, where ``found`` has those of some alone.
    """
    share = check_number("holdout", share, least=0.0, most=1.0)
    if share in (0.0, 1.0):
        raise InputError(f"holdout must be above 0 and below 1, got {share:g}")
    held = found.places if every is None else every
    places = np.concatenate(held)
    owner = np.repeat(np.arange(found.n_observers), found.counts)
    order = np.argsort(places, kind="stable")
    seen, first = np.unique(places[order], return_index=True)
    owners = np.split(owner[order], first[1:])
    wanted = max(1, round(share * len(seen)))
    away = seen[list(_spared(found, seen, owners, wanted, rng))]
    if not len(away):
        raise InputError(
            f"{found.source}: no entry can be hidden, since every one is the last of its row, "
            "column or observer; leave out the holdout"
        )
    taken = [np.isin(own, away) for own in found.places]
    rest = found.chosen([~out for out in taken])
    if found.sizes is not None:
        gone = np.array([np.isin(own, away).sum() for own in held], dtype=np.intp)
        rest = replace(rest, sizes=found.sizes - gone)
    out = found.chosen(taken)
    return rest, Hidden(
        np.concatenate(out.places), np.concatenate(out.values), len(away), len(seen)
    )


def _spared(
    found: Observations,
    seen: NDArray[np.intp],
    owners: Sequence[NDArray[np.intp]],
    wanted: int,
    rng: np.random.Generator,
) -> Iterator[int]:
    """Draw entries that are not the last of their row, column or of one who saw them."""
    rows, columns = np.divmod(seen, found.shape[1])
    in_row = np.bincount(rows).tolist()
    in_column = np.bincount(columns).tolist()
    of_owner = found.counts.tolist()
    for entry in rng.permutation(len(seen)).tolist():
        if not wanted:
            return
        row, column, who = int(rows[entry]), int(columns[entry]), owners[entry].tolist()
        if in_row[row] > 1 and in_column[column] > 1 and all(of_owner[one] > 1 for one in who):
            in_row[row] -= 1
            in_column[column] -= 1
            for one in who:
                of_owner[one] -= 1
            wanted -= 1
            yield entry
