"""Workers that hold rows: which of them live in this process, and what processes tell each other.

Recipes over rows are written once, by these steps. In one process (`Crew`) each hands back what it
was given; `RankCrew` takes it to the other processes, all of which take the same steps.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from vpem.engines.mpi import MpiTeam

__all__ = ["Crew", "RankCrew", "runs_of"]


class Crew:
    """All workers live in this process."""

    apart = False
    """Whether some workers may live in other processes, and data are those of this one's."""

    def own(self, n_workers: int) -> range:
        """Workers of this process."""
        return range(n_workers)

    def add(self, values: NDArray[Any]) -> NDArray[Any]:
        """Sum of all processes' arrays."""
        return values

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        """Largest of all processes' values."""
        return values

    def join(self, values: NDArray[Any]) -> NDArray[Any]:
        """All processes' values (n_i,), by process."""
        return values

    def told(self, value: Any, worker: int) -> Any:
        """What the process of a worker has, in every process."""
        return value

    def gather(self, values: list[Any]) -> list[Any]:
        """All processes' values, by process, in the first; in others what they gave."""
        return values

    def place(self, values: NDArray[Any], n_workers: int) -> NDArray[Any]:
        """Put what this process's workers have (n_i, P) among zeros for all others, (n, P)."""
        return values

    def whole(self, network: Any) -> Any:
        """Return a network as one process has it."""
        return network


class RankCrew(Crew):
    """Workers that live on MPI ranks, in runs.

    Parameters
    ----------
    team : MpiTeam
        Where they live.
    network : Network
        As one process would have it.
    """

    apart = True

    def __init__(self, team: MpiTeam, network: Any) -> None:
        self.team = team
        self._network = network

    def own(self, n_workers: int) -> range:
        """Workers of this rank."""
        return self.team.own

    def add(self, values: NDArray[Any]) -> NDArray[Any]:
        """Sum of all ranks' arrays."""
        return self.team.add(np.array(values, order="C"))

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        """Largest of all ranks' values."""
        return self.team.largest(np.array(values, order="C"))

    def join(self, values: NDArray[Any]) -> NDArray[Any]:
        """All ranks' values (n_i,), by rank."""
        sizes = self.team.gather_all(np.array([len(values)], dtype=np.int64))
        return self.team.gather_all(values, sizes.tolist())

    def told(self, value: Any, worker: int) -> Any:
        """What the rank of a worker has, on every rank."""
        return self.team.tell(value, worker)

    def gather(self, values: list[Any]) -> list[Any]:
        """All ranks' values, by rank, in the first; in others what they gave."""
        parts = self.team.gather_at(values, 0)
        return values if parts is None else [value for part in parts for value in part]

    def place(self, values: NDArray[Any], n_workers: int) -> NDArray[Any]:
        """Put what this rank's workers have (n_i, P) among zeros for all others, (n, P)."""
        out = np.zeros((n_workers, *values.shape[1:]), dtype=values.dtype)
        out[self.team.own.start : self.team.own.stop] = values[: len(self.team.own)]
        return out

    def whole(self, network: Any) -> Any:
        """Return the network as one process has it."""
        return self._network


def runs_of(counts: NDArray[np.intp]) -> list[slice]:
    """Where each worker's rows are, worker by worker."""
    return [slice(int(a), int(b)) for a, b in pairwise(np.cumsum([0, *counts]))]
