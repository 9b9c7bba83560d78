"""Which values rows miss, sums of what they have, and distances by it.

Rows of a block are worked on in an order by what they miss of it (`pattern_plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem._core.assign import nearest_rows
from vpem._core.missing import (
    marginal_diag,
    marginal_full,
    marginal_moments_diag,
    marginal_moments_full,
)
from vpem._core.threads import one_blas_thread
from vpem.checks import Doubles, Floats, Indices, Mask, row_blocks
from vpem.network.partition import Blocks
from vpem.terms.rows import Arranges
from vpem.terms.statistics import Statistics
from vpem.terms.units import Add, Scaling, sum_features

if TYPE_CHECKING:
    from vpem.terms.features import FeatureTerms
    from vpem.terms.mixture import Factors

TILE = 256
"""Most rows of a tile, as in the kernels."""

FEWEST_ROWS = 10
"""Fewer do not show what is usual: one of them may be the one that is far away."""

MOST_ROWS = 1000
"""More do not show it better."""


Plan = tuple[NDArray[np.intc], NDArray[np.intc], NDArray[np.intc]]
"""In which order rows are worked on, block by block, as `pattern_plan` finds it."""


def pattern_plan(observed: NDArray[np.uint8], blocks: Blocks) -> Plan:
    """Sort rows by what they miss of each block; ``observed`` (m, d) is in block order.

    Returned are tiles (T, 4): a block, first place and end in an order of rows, and 1 where more
    than half of the block is missing in these; this order (n,), in which rows that miss the same
    values of the block are neighbours, and rows of which it has nothing are in none of its tiles;
    and patterns (n,), equal for neighbours that miss the same values.
    """
    n_samples = len(observed)
    orders, patterns, tiles = [], [], []
    place = 0
    whole: int | None = None
    for b in range(blocks.n_blocks):
        width = int(blocks.widths[b])
        if width == 0 or n_samples == 0:
            continue
        of_block = observed[:, blocks.offsets[b] : blocks.offsets[b + 1]]
        if of_block.all():
            # Rows as they come, once for all such blocks.
            if whole is None:
                whole = place
                orders.append(np.arange(n_samples, dtype=np.intc))
                patterns.append(np.zeros(n_samples, dtype=np.intc))
                place += n_samples
            tiles.append(_tiles(b, whole, n_samples, 0))
            continue
        packed = np.packbits(of_block, axis=1)
        keys = np.ascontiguousarray(packed).view(f"V{packed.shape[1]}").ravel()
        if packed.shape[1] <= 8:
            wide = np.zeros((n_samples, 8), dtype=np.uint8)
            wide[:, : packed.shape[1]] = packed
            keys = wide.view(np.uint64).ravel()
        _, number = np.unique(keys, return_inverse=True)
        n_there = of_block.sum(axis=1, dtype=np.intp)
        for direct in (False, True):
            rows = np.flatnonzero((n_there > 0) & ((2 * n_there < width) == direct))
            if len(rows) == 0:
                continue
            rows = rows[np.argsort(number[rows], kind="stable")]
            orders.append(rows.astype(np.intc))
            patterns.append(number[rows].astype(np.intc))
            tiles.append(_tiles(b, place, len(rows), int(direct)))
            place += len(rows)
    if not tiles:
        nothing = np.empty(0, dtype=np.intc)
        return np.empty((0, 4), dtype=np.intc), nothing, nothing
    return np.concatenate(tiles), np.concatenate(orders), np.concatenate(patterns)


def _tiles(b: int, place: int, count: int, direct: int) -> NDArray[np.intc]:
    begins = np.arange(place, place + count, TILE)
    ends = np.minimum(begins + TILE, place + count)
    columns = [np.full(len(begins), b), begins, ends, np.full(len(begins), direct)]
    return np.ascontiguousarray(np.stack(columns, axis=1), dtype=np.intc)


@dataclass
class Gaps:
    """Which values some rows miss, and what follows from that pattern once for all sweeps."""

    observed: NDArray[np.uint8]  # (M, d) in block order, 1 where a value is there
    blocks: Blocks
    is_diagonal: bool
    plans: dict[tuple[int, int], Plan] = field(default_factory=dict)  # of chunks
    parts: dict[tuple[int, int], Gaps] = field(default_factory=dict)  # of runs of these rows
    split: list[FeatureTerms] = field(default_factory=list)  # complete rows, and the others

    def select_rows(self, rows: slice | Indices | Mask) -> Gaps:
        """Return what some rows miss, counted from 0."""
        return Gaps(self.observed[rows], self.blocks, self.is_diagonal)

    def slice_rows(self, rows: slice) -> Gaps:
        """Return what a run of rows misses: the same whenever they are asked for."""
        key = (rows.start, rows.stop)
        if key not in self.parts:
            self.parts[key] = self.select_rows(rows)
        return self.parts[key]

    def weights_there(self, weights: Doubles, chunks: Callable[[int], Iterator[slice]]) -> Doubles:
        """Weight (d,) of the rows that have a feature; marks take as much as data while added."""
        there = np.zeros(self.blocks.n_features)
        for rows in chunks(self.blocks.n_features):
            there += weights[rows] @ self.observed[rows]
        return there

    def moments(
        self, data: Floats, weights: Doubles, chunks: Callable[[int], Iterator[slice]], add: Add
    ) -> tuple[Doubles, Doubles, Doubles]:
        """Share of the rows' weight that has something, and moments of what is there.

        Of rows of all processes, whose ``data`` (M, d) are 0 where values are missing. The share is
        of each feature (d,), or of each block (B,) where covariances are full.
        """
        blocks, observed = self.blocks, self.observed
        there = seen = add(self.weights_there(weights, chunks))
        if not self.is_diagonal:
            ends = pairwise(blocks.offsets)
            seen = add(np.array([weights @ observed[:, a:b].any(axis=1) for a, b in ends]))
        total = float(add(np.array([weights.sum()]))[0])
        safe = np.where(there > 0, there, 1.0)
        centre, spread = np.zeros((2, blocks.n_features))
        for rows in chunks(blocks.n_features):
            centre += weights[rows] @ data[rows].astype(np.float64, copy=False)
        centre = add(centre) / safe

        def squares(rows: slice) -> Doubles:  # of one chunk at a time
            away = data[rows] - centre
            np.square(away, out=away)
            away *= observed[rows]
            return weights[rows] @ away

        for rows in chunks(blocks.n_features):
            spread += squares(rows)
        return seen / max(total, np.finfo(np.float64).tiny), centre, add(spread) / safe

    def plan(self, rows: slice) -> Plan | None:
        """In which order these rows are worked on, where covariances are full."""
        if self.is_diagonal:
            return None
        key = (rows.start, rows.stop)
        if key not in self.plans:
            self.plans[key] = pattern_plan(self.observed[rows], self.blocks)
        return self.plans[key]

    def widths_of(self, rows: slice) -> Indices:
        """Features (B, m) that rows have of each hub."""
        observed, ends = self.observed[rows], pairwise(self.blocks.offsets)
        return np.stack([observed[:, a:b].sum(axis=1) for a, b in ends]).astype(np.intp)

    def terms(self, data: Floats, factors: Factors, rows: slice, n_threads: int) -> Floats:
        """Terms (B, m, K) of data in the place of these rows, by what is there; 0 of nothing.

        Data (m, d) are in block order, and finite where values are missing; factors are in double
        precision.
        """
        observed, offsets, plan = self.observed[rows], self.blocks.offsets, self.plan(rows)
        out = np.zeros((self.blocks.n_blocks, len(data), len(factors.means)), dtype=data.dtype)
        means, covariances, inverse = factors.means, factors.covariances, factors.inverse
        if plan is None:
            logs = np.ascontiguousarray(np.log(np.where(covariances > 0, covariances, 1.0)))
            marginal_diag(data, observed, offsets, means, inverse, logs, out, n_threads)
        else:
            marginal_full(
                data, observed, offsets, *plan, means, covariances, inverse, factors.log_dets, out,
                n_threads,
            )  # fmt: skip
        return out

    def squares(self, data: Floats, centres: Doubles, rows: slice, n_threads: int) -> Floats:
        """Squared distances (B, m, L) of what is there of each block of these rows to centres."""
        return _squares(data, self.observed[rows], self.blocks.offsets, centres, n_threads)

    def widen(self, squares: Floats, rows: slice) -> None:
        """Multiply squared distances (B, m, L) by the share of each block that is there."""
        observed, offsets = self.observed[rows], self.blocks.offsets
        for b, width in enumerate(self.blocks.widths):
            of_block = observed[:, offsets[b] : offsets[b + 1]]
            if not of_block.all():
                there = of_block.sum(axis=1, dtype=np.intp)
                squares[b] *= (width / np.maximum(there, 1))[:, None].astype(squares.dtype)

    def add_moments(
        self, statistics: Statistics, data: Floats, responsibilities: Floats, varying: Floats,
        factors: Factors, rows: slice, n_threads: int,
    ) -> None:  # fmt: skip
        """Add rows but for their counts, missing values as ``factors`` expect them."""
        observed, offsets = self.observed[rows], self.blocks.offsets
        moments = (statistics.shifts, statistics.first, statistics.second, statistics.seen)
        plan = self.plan(rows)
        if plan is None:
            marginal_moments_diag(data, observed, responsibilities, offsets, *moments, n_threads)
            return
        marginal_moments_full(
            data, observed, offsets, *plan, responsibilities, np.ascontiguousarray(varying),
            factors.means, factors.covariances, factors.inverse, *moments, n_threads,
        )  # fmt: skip


def weighed(distances: Doubles, row_weights: Doubles | None) -> float:
    """Sum of squared distances (M,) times row weights."""
    return float(distances.sum() if row_weights is None else distances @ row_weights)


def diagonals(terms: FeatureTerms) -> Doubles:
    """Squared distance (B,) of opposite corners of a box around all rows, in each hub."""
    blocks = terms.blocks
    ends = np.full((2, blocks.n_features), -np.inf)
    for rows in terms.chunks(blocks.n_features):
        data = terms.rows.read(rows)
        np.fmax(ends, [data.max(axis=0), (-data).max(axis=0)], out=ends)
    widths = np.maximum(ends.sum(axis=0), 0.0) ** 2
    return sum_features(blocks, widths)


def usual_squares(rows: Floats) -> Doubles:
    """Median squared distance (d,) of rows (m, d) from their median, of those that are away at all.

    A few values that lie far away do not change it. It is 0 where values are too few.
    """
    squares = np.zeros(rows.shape[1])
    for feature, column in enumerate(rows.T):
        there = column[np.isfinite(column)]
        if len(there) >= FEWEST_ROWS:
            off = (there - np.median(there)) ** 2
            squares[feature] = np.median(off[off > 0]) if off.any() else 0.0
    return squares


def spread_rows(n_rows: int) -> Indices:
    """Return numbers of rows, spread evenly, of which `usual_squares` are computed."""
    return np.linspace(0, n_rows - 1, min(n_rows, MOST_ROWS)).astype(np.intp)


def squares_of_observed(
    rows: Floats, observed: NDArray[np.uint8], points: Doubles, n_threads: int
) -> Floats:
    """Squared distances by what is there of rows (m, d) to points (L, d), shape (m, L)."""
    known = np.ascontiguousarray(np.where(observed, rows, 0).astype(rows.dtype, copy=False))
    ends = np.array([0, rows.shape[1]], dtype=np.intp)
    squares: Floats = _squares(known, observed, ends, points, n_threads)[0]
    return squares


def _squares(
    data: Floats, observed: NDArray[np.uint8], offsets: Indices, points: Doubles, n_threads: int
) -> Floats:
    out = np.empty((len(offsets) - 1, len(data), len(points)), dtype=data.dtype)
    ones, points = np.ones((1, points.shape[1])), np.ascontiguousarray(points, np.float64)
    marginal_diag(data, observed, offsets, points, ones, np.zeros_like(ones), out, n_threads)
    return out


def nearest(
    X: Floats | Arranges,
    centres: Doubles,
    scaling: Scaling,
    n_threads: int,
    observed: NDArray[np.uint8] | None = None,
) -> tuple[NDArray[np.int32], Doubles]:
    """Nearest centre (M,) of each row and its squared distance (M,), some rows at a time.

    Rows (M, d) are in the units of the centres (K, d), of which the first of several is taken;
    distances are in those of ``scaling``. Values count where ``observed`` (M, d) is 1; None: all
    that are not NaN.
    """
    labels, distances = np.full(len(X), -1, dtype=np.int32), np.empty(len(X))
    places = np.ascontiguousarray(scaling.apply(centres), dtype=np.float64)
    with one_blas_thread():
        for start, part in row_blocks(X):
            rows = np.ascontiguousarray(scaling.apply(part))
            if rows.dtype not in (np.float32, np.float64):
                rows = rows.astype(np.float64)
            end = start + len(rows)
            there = None if observed is None else observed[start:end]
            if there is None and np.isnan(rows).any():
                there = np.ascontiguousarray(~np.isnan(rows), dtype=np.uint8)
            if there is not None:
                squares = squares_of_observed(rows, there, places, n_threads)
                labels[start:end] = squares.argmin(axis=1)
                distances[start:end] = squares.min(axis=1)
                continue
            nearest_rows(rows, places, labels[start:end], distances[start:end], n_threads)
    return labels, distances
