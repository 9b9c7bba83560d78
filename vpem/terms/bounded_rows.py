"""Sums over rows that one row can move by little, and exactly: rows clipped to public bounds.

Everything that is summed lies on a grid of integers. Responsibilities are rounded down to
multiples of ``2^-g`` and coordinates toward zero to multiples of ``2^-h``, so that every product of
a responsibility and two coordinates is a multiple of ``2^-(g + 2 h)``; so few rows are added at a
time that a double holds their sum exactly, whatever the order, and sums of chunks are added as
integers. Hence what a row adds does not depend on which other rows there are, to the last bit: no
rounding of floating point sums tells of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError
from vpem.terms.matrix import Rows
from vpem.terms.residuals import WIDEST, Parts, Residuals, farthest

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]

SHARE_BITS, COORDINATE_BITS = 12, 10
"""g and h, where there are not too many rows."""

EXACT_BITS = 53
"""Bits of a double."""

MOST_ROWS = 2048
"""Rows that are added at a time."""

BELOW_ONE = 1 - 2.0**-40
"""By which lengths that are clipped are multiplied: rounding does not make them longer then."""


@dataclass(frozen=True)
class Grid:
    """Units of what is summed; ``share_bits`` are g, ``coordinate_bits`` h.

    What a worker sends are multiples of ``2^-f`` (``message_bits``), of which doubles hold the sum
    of all.
    """

    share_bits: int
    coordinate_bits: int
    message_bits: int

    @classmethod
    def of(cls, n_samples: int, n_features: int) -> Grid:
        """Return the finest grid on which the sums of so many rows fit."""
        needed = log2(max(n_samples, 2) * farthest(n_features))
        coarser = max(0, ceil((needed - 30) / 3))
        bits = SHARE_BITS - coarser, COORDINATE_BITS - coarser
        fine = bits[0] + 2 * bits[1]
        message = min(fine, EXACT_BITS - 3 - ceil(needed))
        if coarser > 4 or message < 8:
            raise InputError(
                f"{n_samples} rows of {n_features} features are too many for sums on a grid of "
                "integers; fit to fewer"
            )
        return cls(*bits, message)

    @property
    def fine_bits(self) -> int:
        """Sums are multiples of ``2^-(g + 2 h)`` where they are made."""
        return self.share_bits + 2 * self.coordinate_bits

    @property
    def unit(self) -> float:
        """What a worker sends are multiples of this."""
        return 2.0**-self.message_bits

    @property
    def rounds(self) -> bool:
        """Whether what a worker sends is rounded: by at most half a unit each."""
        return self.message_bits < self.fine_bits

    def sent(self, sums: Integers) -> Vector:
        """Return sums in units of ``2^-(g + 2 h)`` as a worker sends them, in units of 1."""
        shift = self.fine_bits - self.message_bits
        if shift:
            sums = (sums + (1 << (shift - 1))) >> shift
        found: Vector = sums.astype(np.float64) * self.unit
        return found


class BoundedRows:
    """Rows of the workers of this process, clipped to bounds and in units of these.

    Rows are in the units of the user. ``bounds`` (2, d), the least and largest value of each
    feature, become -1 and 1, unless ``units`` (2, d) around them do. ``clipped`` counts rows of
    each worker that had values beyond.
    """

    def __init__(
        self, parts: Sequence[Rows], bounds: Vector, grid: Grid, units: Vector | None = None
    ) -> None:
        self._parts, self.grid, self._bounds = list(parts), grid, bounds
        units = bounds if units is None else units
        self._middle, self._half = units.mean(axis=0), np.ptp(units, axis=0) / 2
        self.clipped = [self._count(part, bounds) for part in self._parts]

    @property
    def n_workers(self) -> int:
        """Workers of this process."""
        return len(self._parts)

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return len(self._middle)

    @staticmethod
    def _count(part: Rows, bounds: Vector) -> int:
        """Rows of a worker that have values beyond the bounds."""
        found = 0
        for run in part.runs() if part.n_samples else ():
            rows = part.read(run)
            found += int(((rows < bounds[0]) | (rows > bounds[1])).any(axis=1).sum())
        return found

    def chunks(self, worker: int, most: int = MOST_ROWS) -> Iterator[Vector]:
        """Yield a worker's rows, at most so many at a time."""
        part = self._parts[worker]
        for run in part.runs() if part.n_samples else ():
            rows = part.read(run).astype(np.float64, copy=False)
            for begin in range(0, len(rows), most):
                some = np.clip(rows[begin : begin + most], *self._bounds)
                some = (some - self._middle) / self._half
                yield np.clip(some, -1.0, 1.0, out=some)

    def histograms(self, worker: int, n_bins: int) -> Integers:
        """Count a worker's rows by each feature, in so many equal bins, shape (d, n_bins)."""
        d = len(self._middle)
        found = np.zeros(d * n_bins, dtype=np.int64)
        for rows in self.chunks(worker):
            cells = np.minimum(((rows + 1) * (n_bins / 2)).astype(np.int64), n_bins - 1)
            cells += np.arange(d) * n_bins
            found += np.bincount(cells.ravel(), minlength=found.size)
        return found.reshape(d, n_bins)

    def sketch(
        self, worker: int, centre: Vector, directions: Vector, n_bins: int, reach: float
    ) -> Integers:
        """Count a worker's rows in the cells (n_bins ** q,) of a grid over a few directions (d, q).

        A row's coordinates are ``(x - centre) directions``; cells go from ``-reach`` to ``reach``,
        and what is beyond is counted in the last.
        """
        q = directions.shape[1]
        found = np.zeros(n_bins**q, dtype=np.int64)
        for rows in self.chunks(worker):
            places = ((rows - centre) @ directions + reach) * (n_bins / (2 * reach))
            cells = np.clip(np.floor(np.nan_to_num(places)), 0, n_bins - 1).astype(np.int64)
            flat = cells @ (n_bins ** np.arange(q - 1, -1, -1, dtype=np.int64))
            found += np.bincount(flat, minlength=found.size)
        return found

    def residuals(self, worker: int, parts: Parts, layout: Residuals) -> Integers:
        """Run the E-step on a worker's rows: sums of `Residuals`, in units of the grid, (P,)."""
        sums = ResidualSums(layout, self.grid)
        for rows in self.chunks(worker):
            every = [parts.residuals(rows, component) for component in range(layout.n_components)]
            norms = np.stack([np.einsum("ij,ij->i", z, z) for z in every], axis=1)
            sums.add(every, parts.responsibilities(norms))
        return layout.packed(sums.counts, sums.firsts, sums.seconds)


class ResidualSums:
    """Sums of `Residuals`, to which rows are added: exactly, whatever their order.

    In units of ``2^-(g + 2 h)``: ``counts`` (K,), ``firsts`` (K, d) and ``seconds`` (copies,
    n_second).
    """

    def __init__(self, layout: Residuals, grid: Grid) -> None:
        self.layout, self.grid = layout, grid
        k = layout.n_components
        self.counts = np.zeros(k, dtype=np.int64)
        self.firsts = np.zeros((k, layout.n_features), dtype=np.int64)
        self.seconds = np.zeros((layout.copies, layout.n_second), dtype=np.int64)
        room = 2.0 ** (EXACT_BITS - grid.fine_bits)
        self._most = max(1, min(MOST_ROWS, floor(room / layout.radius)))

    def add(self, residuals: Sequence[Vector], shares: Vector) -> None:
        """Add rows, of which each component has residuals (m, d), and responsibilities (m, K)."""
        for begin in range(0, len(shares), self._most):
            some = slice(begin, begin + self._most)
            own = np.nan_to_num(np.floor(shares[some] * 2.0**self.grid.share_bits))
            for component, z in enumerate(residuals):
                self._add(component, z[some], own[:, component])

    def _add(self, component: int, z: Vector, own: Vector) -> None:
        layout, h = self.layout, self.grid.coordinate_bits
        z = _clipped(z, layout) * 2.0**h
        np.trunc(z, out=z)
        count = int(own.sum())
        # In units of 2^-(g + 2 h), all of them.
        self.counts[component] += count << 2 * h
        self.firsts[component] += (own @ z).astype(np.int64) << h
        copy = 0 if layout.copies == 1 else component
        self.seconds[copy] += _second(own, z, layout.shape) - count * _identity(layout, h)


def _clipped(z: Vector, layout: Residuals) -> Vector:
    """Clip residuals (m, d) to their radius, and their coordinates where these are squared."""
    if layout.shape == "diag":
        z = np.clip(z, -WIDEST, WIDEST)
    norms = np.einsum("ij,ij->i", z, z)
    ratios = np.sqrt(layout.radius / np.maximum(norms, layout.radius)) * BELOW_ONE
    found: Vector = np.nan_to_num(z * ratios[:, None])
    return found


def _second(own: Vector, z: Vector, shape: str) -> Integers:
    """Second moments (n_second,) of residuals (m, d) that count so much each (m,)."""
    if shape == "full":
        whole = (z * own[:, None]).T @ z
        return whole[np.tril_indices(z.shape[1])].astype(np.int64)
    squares = own @ np.square(z)
    if shape == "diag":
        return np.asarray(squares.astype(np.int64))
    return np.asarray([squares.astype(np.int64).sum()])


def _identity(layout: Residuals, h: int) -> Integers:
    """What the identity is among second moments, in units of ``2^-2h``, shape (n_second,)."""
    d = layout.n_features
    if layout.shape == "full":
        rows, columns = np.tril_indices(d)
        return np.where(rows == columns, np.int64(1 << 2 * h), np.int64(0))
    one = 1 if layout.shape == "diag" else d
    return np.full(layout.n_second, one << 2 * h, dtype=np.int64)
