"""What is taken over all individuals, of whom each process has those of its own devices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.engines.placement import Placement

Vector = NDArray[np.float64]


class Together:
    """Individuals of all processes: only sums over them, and counts, leave a process.

    ``numbers`` (n_here,) say which of all those of this process are, ``sizes`` (m, 4) are
    individuals and rows of each part, and as they count, by weights; as an attribute those of all
    processes. ``parts`` are individuals of each device of this process, where sums are masked;
    None: one part of all.
    """

    def __init__(
        self,
        place: Placement,
        numbers: NDArray[np.intp],
        sizes: Vector,
        parts: list[NDArray[np.intp]] | None = None,
    ) -> None:
        self.place, self.engine = place, place.engine
        self.numbers, self.parts = numbers, parts
        self.sizes: tuple[float, ...] = tuple(self.add(sizes).tolist())

    def add(self, values: Vector) -> Any:
        """Return the sum of what all parts of all processes have, (m, ...)."""
        if self.parts is None:
            return self.place.allreduce(np.asarray(values[0]))
        flat = values.astype(np.float64).reshape(len(values), int(np.prod(values.shape[1:])))
        return self.place.add_up(flat).reshape(values.shape[1:])

    def of(self, values: Vector, which: NDArray[np.intp]) -> Vector:
        """Return the values (m, ...) of some of all individuals, each known to its own process."""
        found = np.zeros((len(which), *values.shape[1:]))
        place = {number: row for row, number in enumerate(self.numbers.tolist())}
        for one, number in enumerate(which.tolist()):
            if number in place:
                found[one] = values[place[number]]
        shared: Vector = self.place.allreduce(found)
        return shared

    def largest(self, values: Any) -> Any:
        """Return the largest of all processes' values; where sums are masked, not whose it is."""
        if self.parts is None:
            return self.engine.allreduce(values, "max")
        given = np.asarray(values)
        flat = given.ravel()
        if given.dtype.kind in "bu":
            return self.place.any(flat > 0).astype(given.dtype).reshape(given.shape)
        bits = flat.astype(np.float64).view(np.int64)
        keys = bits ^ ((bits >> 63) & LAST)  # ordered as the numbers are
        found = self.place.largest(np.tile(keys, (len(self.parts), 1)), -LAST - 1, LAST)
        turned = found ^ ((found >> 63) & LAST)
        return np.asarray(turned, dtype=np.int64).view(np.float64).reshape(given.shape)

    def same(self, times: Vector | None) -> Vector | None:
        """Return the times (T,) of all processes that have any; None if they differ."""
        if self.parts is None:
            first, *others = [one for one in self.engine.allgather(times) if one is not None]
            return first if all(np.array_equal(first, one) for one in others) else None
        width = int(self.largest(np.array([0.0 if times is None else len(times)]))[0])
        odd = times is not None and len(times) != width
        own = np.full((2, width), -np.inf)
        if times is not None and not odd:
            own = np.stack([times, -times])
        ends = self.largest(own)
        differ = self.place.any([odd])[0] or not np.array_equal(ends[0], -ends[1])
        return None if differ else np.asarray(ends[0])

    def median(self, values: Vector) -> Vector:
        """Return the median of each column (n_here, q), NaN left out, found by counting.

        By bisection of the bits of a number: all that is told are counts of values below some.
        """
        bits = np.ascontiguousarray(values).view(np.int64)
        keys = np.where(bits < 0, ~bits.view(np.uint64), bits.view(np.uint64) | TOP)
        known = ~np.isnan(values)
        n = self._count(known[None])[0]
        ranks = np.stack([(n - 1) // 2, n // 2])
        low, high = np.zeros(ranks.shape, np.uint64), np.full(ranks.shape, ~np.uint64(0))
        for _ in range(64):
            middle = low + (high - low) // np.uint64(2)
            below = self._count((keys <= middle[:, None]) & known)
            enough = below > ranks
            high, low = np.where(enough, middle, high), np.where(enough, low, middle + ONE)
        ends = np.where(high & TOP, high ^ TOP, ~high).view(np.float64)
        found: Vector = ends.sum(axis=0) / 2
        return found

    def _count(self, flags: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Count over all individuals flags (r, n_here, q) of those here: (r, q)."""
        if self.parts is None:
            return self.place.allreduce(flags.sum(axis=1))
        each = np.array([flags[:, part].sum(axis=1).ravel() for part in self.parts], np.float64)
        flat = each.reshape(len(self.parts), flags.shape[0] * flags.shape[2])
        found: NDArray[np.intp] = np.rint(self.place.add(flat)).astype(np.intp)
        return found.reshape(flags.shape[0], flags.shape[2])


LAST = (1 << 63) - 1
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

    @property
    def masked(self) -> bool:
        """Whether sums are masked, of each device apart."""
        return self.together is not None and self.together.parts is not None

    @property
    def parts(self) -> list[Any]:
        """Individuals of this process, those of each device where sums are masked."""
        parts = None if self.together is None else self.together.parts
        return [slice(None)] if parts is None else parts

    def total(self, values: Vector) -> Any:
        """Add up values (n, ...) of individuals, by weights."""
        weighed = self.weighed(values, self.weights)
        each = [weighed[part].sum(axis=0) for part in self.parts]
        return self.add(np.array(each).reshape(len(each), *values.shape[1:]))

    def products(self, values: Vector) -> Any:
        """Add up products of values (n, P) of individuals with each other, by weights: (P, P)."""
        weighed = self.weighed(values, self.weights)
        each = [values[part].T @ weighed[part] for part in self.parts]
        return self.add(np.array(each).reshape(len(each), *values.shape[1:] * 2))

    def add(self, totals: Vector) -> Any:
        """Add up totals (m, ...) of all `parts`, of all processes."""
        return totals[0] if self.together is None else self.together.add(totals)

    def largest(self, values: Any) -> Any:
        """Return the largest of all processes' values."""
        return values if self.together is None else self.together.largest(values)

    def mean(self, values: Vector) -> Any:
        """Return the mean of values (n, ...) of individuals."""
        return self.total(values) / self.everyone[0]

    def variance(self, values: Vector) -> Any:
        """Return the variance of values (n, ...) of individuals."""
        return self.mean((values - self.mean(values)) ** 2)

    def mean_of_rows(self, values: Vector) -> Any:
        """Return the mean of values (N, ...) of rows."""
        whose = self.individual_of
        weighed = self.weighed(values, None if self.weights is None else self.weights[whose])
        if not self.masked:
            return self.add(weighed.sum(axis=0)[None]) / self.everyone[1]
        each = [weighed[np.isin(whose, part)].sum(axis=0) for part in self.parts]
        return self.add(np.array(each).reshape(len(each), *values.shape[1:])) / self.everyone[1]

    def median(self, values: Vector) -> Vector:
        """Return the medians (q,) of values (n, q) of individuals, NaN left out."""
        if self.together is not None:
            return self.together.median(values)
        found: Vector = np.nanmedian(values, axis=0)
        return found

    def of(self, values: Vector, which: NDArray[np.intp]) -> Vector:
        """Return the values (m, ...) of some of all individuals."""
        return values[which] if self.together is None else self.together.of(values, which)
