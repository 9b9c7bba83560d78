"""What is taken over all individuals, of whom each process has those of its own devices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.engines.engine import Engine

__all__ = ["Together"]

Vector = NDArray[np.float64]


class Together:
    """Individuals of all processes: only sums over them, and counts, leave a process.

    Parameters
    ----------
    engine : Engine
        The processes.
    numbers : ndarray of shape (n_here,)
        Which of all individuals those of this process are.
    n_rows : int
        Rows of the individuals of this process.
    """

    def __init__(self, engine: Engine, numbers: NDArray[np.intp], n_rows: int) -> None:
        self.engine = engine
        self.numbers = numbers
        here = np.array([len(numbers), n_rows], dtype=np.int64)
        self.n_individuals, self.n_rows = map(int, engine.allreduce(here))

    def add(self, values: Any) -> Any:
        """Return the sum of what all processes have."""
        return self.engine.allreduce(np.asarray(values))

    def of(self, values: Vector, which: NDArray[np.intp]) -> Vector:
        """Return the values (m, ...) of some of all individuals, each known to its own process."""
        found = np.zeros((len(which), *values.shape[1:]))
        place = {number: row for row, number in enumerate(self.numbers.tolist())}
        for one, number in enumerate(which.tolist()):
            if number in place:
                found[one] = values[place[number]]
        shared: Vector = self.engine.allreduce(found)
        return shared

    def median(self, values: Vector) -> Vector:
        """Return the median of each column (n_here, q), NaN left out, found by counting.

        By bisection of the bits of a number: all that is told are counts of values below some.
        """
        bits = np.ascontiguousarray(values).view(np.int64)
        keys = np.where(bits < 0, ~bits.view(np.uint64), bits.view(np.uint64) | TOP)
        known = ~np.isnan(values)
        n = self.add(known.sum(axis=0))
        ranks = np.stack([(n - 1) // 2, n // 2])
        low, high = np.zeros(ranks.shape, np.uint64), np.full(ranks.shape, ~np.uint64(0))
        for _ in range(64):
            middle = low + (high - low) // np.uint64(2)
            below = self.add(((keys <= middle[:, None]) & known).sum(axis=1))
            enough = below > ranks
            high, low = np.where(enough, middle, high), np.where(enough, low, middle + ONE)
        ends = np.where(high & TOP, high ^ TOP, ~high).view(np.float64)
        found: Vector = ends.sum(axis=0) / 2
        return found


TOP = np.uint64(1 << 63)
ONE = np.uint64(1)
