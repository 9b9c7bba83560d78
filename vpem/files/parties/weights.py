"""Weights of rows that parties hold: one for a row that several have, or each party's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vpem.engines.each import for_each
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.files.parties.manifest import Party
from vpem.files.parties.opening import Holding

__all__ = ["joined_weights", "stacked_weights"]


def joined_weights(
    parties: Sequence[Party],
    held: Mapping[int, Holding],
    rows: Mapping[int, NDArray[np.intp]],
    name: str | None,
    holders: Placement,
) -> NDArray[np.float64] | None:
    """Find the weights of rows of which parties have different features; all learn them.

    Parameters
    ----------
    parties : sequence of Party
        All parties; one or more of them have weights, and those agree.
    held : mapping of int to Holding
        Those held here.
    rows : mapping of int to ndarray of shape (M,)
        For each of these, its number of each row; -1 where it lacks the row.
    name : str or None
        What weights are called; None: rows weigh alike.
    holders : Placement
        Who holds which.

    Returns
    -------
    ndarray of shape (M,) or None

    Raises
    ------
    InputError
        In every process the same, if no party has weights, a row has none, or two parties
        give one row different ones.
    """
    if name is None:
        return None
    own = {}
    for party, holding in held.items():
        if holding.sample_weight is not None:
            there = rows[party] >= 0
            own[party] = np.full(len(there), np.nan)
            own[party][there] = holding.sample_weight[rows[party][there]]
    every = holders.allgather(own)
    if not every:
        raise InputError(f"no party has sample weights called {name!r}")
    first = min(every)
    found = every[first].copy()
    for party, weights in every.items():
        wrong = np.abs(weights - found) > 0
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"row {row} has the weight {found[row]:g} at one party and {weights[row]:g} at "
                f"{parties[party].name!r}; leave {name!r} out of one's file"
            )
        found = np.where(np.isnan(found), weights, found)
    if np.isnan(found).any():
        row = int(np.argmax(np.isnan(found)))
        raise InputError(f"row {row} has no weight: no party that has it has {name!r}")
    return found


def stacked_weights(
    parties: Sequence[Party],
    held: Mapping[int, Holding],
    name: str | None,
    holders: Placement,
) -> NDArray[np.float64] | None:
    """Put the weights of parties that hold different rows one below the other.

    Parameters
    ----------
    parties : sequence of Party
        All parties; each has weights of its own rows.
    held, name, holders
        As for `joined_weights`.

    Returns
    -------
    ndarray or None
        Of the rows of the parties held here.

    Raises
    ------
    InputError
        In every process the same, if a party has none.
    """
    if name is None:
        return None

    def weights(party: int) -> NDArray[np.float64]:
        found = held[party].sample_weight
        if found is None:
            raise InputError(f"party {parties[party].name!r} has no sample weights called {name!r}")
        return found

    found = for_each(holders, range(len(parties)), weights)
    return np.concatenate([np.empty(0), *found.values()])
