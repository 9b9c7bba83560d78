"""Sums of one vector a worker, over workers that live on several MPI ranks.

A rank without workers looks on: where every worker is a root of its own it is told what the first
root finds, so that it runs the same loop with parameters of somebody.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.engines.crew import RankCrew
from vpem.sums.ranks import RankConsensusSum, RankServerSum, _OnRanks

__all__ = ["RankConsensusVectors", "RankServerVectors"]


class _OfWorkers(_OnRanks):
    """What both sums share: events are the workers', each of whom has one block of all features."""

    crew: RankCrew

    def report(self, found: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what every root found, (R,), the same on every rank to the last bit."""
        return super().report(found if self._shared else found[: len(self.numbers)])

    def pool(self, events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the events of all ranks."""
        if not self.team.largest(np.array([len(events)], dtype=np.int64))[0]:
            return []
        return [tuple(event) for event in self.team.everyones(list(map(list, events)))]


class RankServerVectors(_OfWorkers, RankServerSum):
    """Adds the vectors of all workers, those of other ranks by all-reduce."""


class RankConsensusVectors(_OfWorkers, RankConsensusSum):
    """Consensus rounds between neighbouring workers, in messages between neighbouring ranks."""

    def __init__(self, *given: Any, **options: Any) -> None:
        RankConsensusSum.__init__(self, *given, **options)
        self._some_look_on = 0 in self._counts
        self.n_roots = max(1, len(self.numbers))

    def reduce(self, terms: NDArray[Any], rows: slice = slice(None)) -> NDArray[Any]:
        """Sum vectors (N, m, K) of this rank's workers: (R, m, K)."""
        found = super().reduce(terms, rows)
        if not self._some_look_on:
            return found
        first = found[:1] if len(found) else np.empty((1, *terms.shape[1:]), terms.dtype)
        told = self.team.tell_array(np.ascontiguousarray(first), self._leader)
        return found if len(found) else told
