"""What is taken over all individuals, of whom each process has those of its own devices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.engines.engine import Engine

__all__ = ["Everyone", "Together"]

Vector = NDArray[np.float64]


class Together:
    """Individuals of all processes: only sums over them, and counts, leave a process.

    Parameters
    ----------
    engine : Engine
        The processes.
    numbers : ndarray of shape (n_here,)
        Which of all individuals those of this process are.
    sizes : tuple of float
        Individuals and rows of this process, and as they count, by weights.

    Attributes
    ----------
    sizes : tuple of float
        The same of all processes.
    """

    def __init__(self, engine: Engine, numbers: NDArray[np.intp], sizes: tuple[float, ...]) -> None:
        self.engine = engine
        self.numbers = numbers
        self.sizes: tuple[float, ...] = tuple(engine.allreduce(np.array(sizes)).tolist())

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


class Everyone:
    """What is taken over all individuals, those of other processes too, by those of this one."""

    weights: Vector | None
    together: Together | None

    @property
    def n_individuals(self) -> int:
        """Number of individuals of this process."""
        raise NotImplementedError

    @property
    def n_rows(self) -> int:
        """Number of rows of this process."""
        raise NotImplementedError

    @property
    def counts(self) -> NDArray[np.intp]:
        """Rows of each individual, (n,)."""
        raise NotImplementedError

    @property
    def individual_of(self) -> NDArray[np.intp]:
        """Individual of each row, (N,)."""
        raise NotImplementedError

    @property
    def number(self) -> tuple[int, int]:
        """Number of all individuals, and of all rows."""
        if self.together is None:
            return self.n_individuals, self.n_rows
        return int(self.together.sizes[0]), int(self.together.sizes[1])

    @property
    def everyone(self) -> tuple[float, float]:
        """Individuals and rows as they count, by weights."""
        if self.weights is None:
            return self.number
        if self.together is None:
            return float(self.weights.sum()), float(self.weights @ self.counts)
        return self.together.sizes[2], self.together.sizes[3]

    def weighed(self, values: Vector, weights: Vector | None) -> Vector:
        """Multiply values (m, ...) by weights (m,), if there are any."""
        if weights is None:
            return values
        return values * weights.reshape(-1, *(1,) * (values.ndim - 1))

    def total(self, values: Vector) -> Any:
        """Add up values (n, ...) of individuals, by weights."""
        return self.add(self.weighed(values, self.weights).sum(axis=0))

    def add(self, totals: Any) -> Any:
        """Add up totals of all processes."""
        return totals if self.together is None else self.together.add(totals)

    def largest(self, values: Any) -> Any:
        """Return the largest of all processes' values."""
        return values if self.together is None else self.together.engine.allreduce(values, "max")

    def mean(self, values: Vector) -> Any:
        """Return the mean of values (n, ...) of individuals."""
        return self.total(values) / self.everyone[0]

    def variance(self, values: Vector) -> Any:
        """Return the variance of values (n, ...) of individuals."""
        return self.mean((values - self.mean(values)) ** 2)

    def mean_of_rows(self, values: Vector) -> Any:
        """Return the mean of values (N, ...) of rows."""
        weights = None if self.weights is None else self.weights[self.individual_of]
        return self.add(self.weighed(values, weights).sum(axis=0)) / self.everyone[1]

    def median(self, values: Vector) -> Vector:
        """Return the medians (q,) of values (n, q) of individuals, NaN left out."""
        if self.together is not None:
            return self.together.median(values)
        found: Vector = np.nanmedian(values, axis=0)
        return found

    def of(self, values: Vector, which: NDArray[np.intp]) -> Vector:
        """Return the values (m, ...) of some of all individuals."""
        return values[which] if self.together is None else self.together.of(values, which)
