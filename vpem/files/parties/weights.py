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


def joined_weights(
    parties: Sequence[Party],
    held: Mapping[int, Holding],
    rows: Mapping[int, NDArray[np.intp]],
    name: str | None,  # of weights; None: rows weigh alike
    holders: Placement,
) -> NDArray[np.float64] | None:
    """Find the weights (M,) of rows of which parties have different features; all learn them.

    One or more parties have them, and those agree. ``rows`` are a party's own numbers (M,), -1
    where it lacks the row. InputError is the same in every process.
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
    """Put the weights of parties that hold different rows, and all have some, below each other."""
    if name is None:
        return None

    def weights(party: int) -> NDArray[np.float64]:
        found = held[party].sample_weight
        if found is None:
            raise InputError(f"party {parties[party].name!r} has no sample weights called {name!r}")
        return found

    found = for_each(holders, range(len(parties)), weights)
    return np.concatenate([np.empty(0), *found.values()])
