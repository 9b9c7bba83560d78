"""Terms of data split by features: what each hub adds to the sum, and how it updates its own block.

`FeatureTerms` are those of Gaussian mixtures, and what all other kinds of local terms answer to.

Missing values are integrated out: with block-diagonal covariance a hub's term is the log-density of
the values it has of its block, and nothing where it has none; the M-step of a block takes the rows
of which it has something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem._core.covariances import covariances_diag, covariances_full
from vpem._core.mahalanobis import mahalanobis_diag
from vpem._core.moments import moments_diag, moments_full
from vpem._core.sweep import sweep
from vpem.checks import Doubles, Floats, Indices, Mask
from vpem.network.partition import Blocks
from vpem.rules import DECOMPOSED
from vpem.terms.decomposed import constrained
from vpem.terms.density import reweighted
from vpem.terms.missing import Gaps
from vpem.terms.mixture import (
    Factors,
    Mixture,
    block_views,
    covariance_shape,
    factorise,
    is_diagonal,
)
from vpem.terms.rows import Arranges, MemoryRows, Rows, RowTerms, SomeRows, arrange_rows
from vpem.terms.statistics import Statistics, enough_rows
from vpem.terms.units import FLOOR, Add, Reach, Scaling, alone, sum_features

NEGLIGIBLE = 1e-22
"""Responsibilities that together weigh less than this are left out of a component's moments."""

LEAST_SEEN = 0.5
"""Effective rows that a block needs of a component to change its parameters; where rows weigh less
than 1 on average it shrinks with them."""

LEAST_VARIANCE = 1e-100
"""Of a constant feature, where values are expected by the spread of the data alone."""

TINY = np.finfo(np.float64).tiny
NO_ROWS = np.array(1e-200)
"""Effective rows that are none: no mean could be taken of them."""

NONE, NO_TABLE = np.zeros(0), np.zeros((0, 0))
"""What kernels take for row weights, or for statistics, that there are not."""


class FeatureTerms(RowTerms):
    """Local terms of data split by features over hubs, Valdeira et al., sections 5 and 6.

    X (M, d) is in the user's order and units, ``scaling`` the units to fit in, squared those of
    ``reg_covar``, which is added to the diagonal of every covariance. ``dtype`` is the precision of
    the data and of the terms; statistics are kept in float64. ``skip_negligible`` leaves rows out
    of a component's moments where their responsibility is so small (below `NEGLIGIBLE` / M) that
    all of them together are below the rounding of one row's weight.

    Of data with ``missing`` values X is NaN where one is; every row and every column has a value.
    ``add`` adds what every process finds of its own rows, where several have some; of rows in
    ``reach``, in units of fitting, all is known already. ``centre`` and ``spread`` (d,) are mean
    and variance of what is observed; missing values of rows that become means are filled by the
    mean. ``share`` is the part of the rows' weight that has a feature (d,), where covariances are
    diagonal, or something of a block (B,). A block changes parameters of a component of which it
    has seen ``least_seen`` effective rows.
    """

    doubt = 0.0
    """Share of each row that a start by clusters divides evenly among all components."""
    tells_expected = True
    """Whether `expected` finds log-densities from statistics."""
    by_responsibilities = True
    """Whether rows and their responsibilities are all that statistics are made of."""
    misses = False  # values: blocks have seen fewer rows than a component (`Statistics.seen`)
    least_seen = 0.0  # effective rows that a block needs of a component to change its parameters
    latest: Factors | None = None  # by which the M-step expects what is missing; None: a start
    centre: Doubles
    spread: Doubles | None = None
    share: Doubles | float = 1.0
    eigenvalue_ratio: float | None = None  # at most, of covariances in a hub
    before: Mixture | None = None  # of the latest E-step, in whose orientations an M-step begins
    _there: Doubles | None = None
    counting: Callable[..., Any] = staticmethod(np.min)  # rows of components, to be `enough`
    _sample_covariance: Doubles | None = None
    _precisions: tuple[Factors, Doubles] | None = None

    def __init__(
        self,
        X: Floats | Arranges,
        blocks: Blocks,
        covariance_type: str,
        *,
        scaling: Scaling,
        row_weights: Doubles | None = None,
        reg_covar: float | Doubles = FLOOR,
        n_threads: int = 1,
        dtype: DTypeLike = np.float64,
        skip_negligible: bool = True,
        missing: bool = False,
        add: Add = alone,
        reach: Reach | None = None,
    ) -> None:
        rows = arrange_rows(X, blocks, scaling, dtype)
        super().__init__(rows, blocks, covariance_type, row_weights, n_threads, rows.dtype)
        self._is_tied = covariance_type.startswith("tied")
        self._is_diagonal, self.scaling = is_diagonal(covariance_type), scaling
        self.reg_covar = np.broadcast_to(reg_covar, (blocks.n_features,))[blocks.order]
        self.least, self.skips_negligible = 0.0, skip_negligible
        if skip_negligible and self.n_samples:
            lightest = 1.0
            if row_weights is not None:
                lightest = float(row_weights.min(initial=np.inf, where=row_weights > 0))
            self.least = NEGLIGIBLE * lightest / self.n_samples
        self._add = add
        if missing:
            self._look_at_gaps(X, reach)
        self.log_constant = float(self.constants().sum())

    def _look_at_gaps(self, X: Floats | Arranges, reach: Reach | None) -> None:
        """Find what is missing, and moments of what is not, of the rows of all processes."""
        blocks = self.blocks
        self.misses = self.looks_at_gaps = True
        # Where features of a block depend on each other, missing ones are expected by parameters.
        self.by_responsibilities = self._is_diagonal
        data = self.rows.read(slice(0, self.n_samples))
        observed = (~np.isnan(data, order="C")).view(np.uint8)
        self.gaps = Gaps(observed, blocks, self._is_diagonal)
        if not isinstance(X, np.ndarray) or np.may_share_memory(data, X):
            data = data.copy()
        np.copyto(data, 0, where=observed == 0)
        if reach is None:
            weights, chunks = self._weights(slice(0, self.n_samples)), self.chunks
            found = self.gaps.moments(data, weights, chunks, self._add)
            self.share, self.centre, self.spread = found
        else:
            # Features are one block, of which every row has some.
            order = blocks.order
            assert reach.there is not None
            self._there = (reach.mass * reach.there)[order]
            self.share = reach.there[order] if self._is_diagonal else np.ones(1)
            self.centre, self.spread = reach.points.centre[order], reach.points.variances[order]
        np.copyto(data, self.centre.astype(data.dtype), where=observed == 0)
        self.rows = MemoryRows.wrap(data)
        self.least_seen = LEAST_SEEN * min(1.0, self.total_weight / max(self.n_samples, 1))

    def constants(self, there: Doubles | None = None) -> Doubles:
        """What each hub here has of `log_constant`, (B,), of rows that have a feature (d,)."""
        blocks, scale = self.blocks, self.scaling.scale
        per_feature = -0.5 * np.log(2 * np.pi) - np.log(scale[blocks.order])
        if self.gaps is None:
            return self.total_weight * sum_features(blocks, per_feature)
        if there is None:
            weights = self._weights(slice(0, self.n_samples))
            there = self.gaps.weights_there(weights, self.chunks)
        return sum_features(blocks, there * per_feature)

    def slice_rows(self, rows: slice, following: slice | None = None) -> Self:
        chosen = super().slice_rows(rows, following)
        chosen._sample_covariance = None
        if self.gaps is None:
            chosen.log_constant = self.log_constant * (chosen.total_weight / self.total_weight)
        else:
            chosen.gaps = self.gaps.slice_rows(rows)
            chosen.log_constant = float(chosen.constants().sum())
        return chosen

    def select_rows(self, rows: Indices, row_weights: Doubles | None = None) -> Self:
        chosen = super().select_rows(rows, row_weights)
        chosen.gaps = self.gaps and self.gaps.select_rows(rows)
        return chosen

    def among(
        self, rows: Rows, n_samples: int, total: float | None = None, lightest: float = 1.0
    ) -> Self:
        """Return the terms of these rows, as some of so many that others hold the rest of.

        ``rows`` has these, and all others where all processes ask for them. All together are
        ``n_samples`` and weigh ``total`` (None: as many); no row of positive weight has less than
        ``lightest``.
        """
        chosen = copy(self)
        chosen.rows = rows
        chosen.n_samples = n_samples
        chosen.total_weight = float(n_samples) if total is None else total
        chosen.least = NEGLIGIBLE * lightest / n_samples if self.skips_negligible else 0.0
        if self.gaps is not None and self._there is None:
            chosen.log_constant = float(self._add(np.array([self.log_constant]))[0])
        else:
            chosen.log_constant = float(chosen.constants(self._there).sum())
        if self.misses:
            chosen.least_seen = LEAST_SEEN * min(1.0, chosen.total_weight / n_samples)
        return chosen

    # ---- E-step --------------------------------------------------------------------------------

    def prepare(self, mixture: Mixture) -> Factors:
        """Factor every block for the E-step; see `Mixture.factored`.

        Where values are missing it is remembered whose expectations the M-step takes.
        """
        if self.covariance_type in DECOMPOSED:
            self.before = mixture
        if self.gaps is None:
            return mixture.factored(self.rows.dtype)
        self.latest = factorise(mixture, np.float64)
        return self.latest

    def local(self, factors: Factors, rows: slice) -> Floats:
        """Terms ``Q`` of each hub for these rows, shape (B, m, K), Valdeira et al., (12).

        They are of what rows have of each hub, 0 of nothing.
        """
        data = self.rows.read(rows)
        if self.gaps is None:
            terms = factors.terms(data, self.blocks.offsets, self.n_threads)
        else:
            terms = self.gaps.terms(data, factors.plain, rows, self.n_threads)
        if self.known is not None:
            self.known.add(terms, rows)
        return terms

    def distances(self, centres: Doubles, rows: slice) -> Floats:
        """Squared distances of each hub's part of these rows to centres (L, d), (B, m, L).

        Where values are missing, of what is there times the share of it: a start follows.
        """
        squares = self.squares(centres, rows)
        if self.gaps is not None:
            self.latest = None
            self.gaps.widen(squares, rows)
        return squares

    def squares(self, centres: Doubles, rows: slice) -> Floats:
        """`distances` by what is there of each hub's part of these rows."""
        data = self.rows.read(rows)
        if self.gaps is not None:
            return self.gaps.squares(data, centres, rows, self.n_threads)
        points = np.ascontiguousarray(centres, dtype=data.dtype)
        out = np.empty((self.blocks.n_blocks, len(data), len(points)), dtype=data.dtype)
        ones = np.ones((1, points.shape[1]), dtype=data.dtype)
        zeros = np.zeros((1, self.blocks.n_blocks), dtype=data.dtype)
        mahalanobis_diag(data, self.blocks.offsets, points, ones, zeros, out, self.n_threads)
        return out

    def widths_of(self, rows: slice) -> Indices:
        """Features that rows have of each hub, (B, m), or (B, 1) where they have all."""
        return self.blocks.widths[:, None] if self.gaps is None else self.gaps.widths_of(rows)

    def there(self, rows: slice) -> NDArray[np.uint8] | None:
        """Which values rows have (m, d), in block order; None: all."""
        return None if self.gaps is None else self.gaps.observed[rows]

    def sweep(
        self, mixture: Mixture, factors: Factors, mix: Doubles, statistics: Statistics | None = None
    ) -> Doubles:
        """Take the sum ``mix @ Q`` and all that depends on it in one pass over the rows.

        ``mix`` (R, B) is the sum as a matrix over the blocks' terms. The rows are added to
        statistics about the current means; the log-likelihood (R,) is without `log_constant`. Rows
        that miss nothing go through the compiled sweep, others chunk by chunk.
        """
        if self.gaps is None:
            return self.sweep_complete(mixture, factors, mix, statistics)
        if self.known is not None:
            return RowTerms.sweep(self, mixture, factors, mix, statistics)
        if not self.gaps.split:
            complete = np.asarray(self.gaps.observed.all(axis=1))
            for chosen in (complete, ~complete):
                if chosen.all():
                    part = copy(self)
                    part.gaps = self.gaps.select_rows(slice(None))
                else:
                    weights = None if self.row_weights is None else self.row_weights[chosen]
                    data = self.rows.read(slice(0, self.n_samples))
                    rows: MemoryRows = SomeRows(data, np.flatnonzero(chosen))
                    if chosen is complete:
                        rows = MemoryRows.wrap(data[chosen])
                    part = self._having(rows, weights)
                    part.gaps = self.gaps.select_rows(chosen)
                self.gaps.split.append(part)
        whole, others = self.gaps.split
        log_likelihoods = np.zeros(len(mix))
        if whole.n_samples:
            means, inverse, log_dets = (
                np.ascontiguousarray(part, dtype=self.rows.dtype)
                for part in (factors.means, factors.inverse, factors.log_dets)
            )
            rounded = replace(factors, means=means, inverse=inverse, log_dets=log_dets)
            before = 0.0 if statistics is None else statistics.counts.copy()
            log_likelihoods += whole.sweep_complete(mixture, rounded, mix, statistics)
            if statistics is not None:
                gained = statistics.counts - before
                seen = statistics.seen
                assert seen is not None
                seen += self.blocks.of_feature(gained) if self._is_diagonal else gained
        if others.n_samples:
            log_likelihoods += RowTerms.sweep(others, mixture, factors, mix, statistics)
        return log_likelihoods

    def sweep_complete(
        self, mixture: Mixture, factors: Factors, mix: Doubles, statistics: Statistics | None
    ) -> Doubles:
        if self.known is not None:
            return RowTerms.sweep(self, mixture, factors, mix, statistics)
        log_weights = mixture.log_weights
        if len(log_weights) < len(mix):
            log_weights = np.repeat(log_weights, len(mix), axis=0)
        log_likelihoods = np.zeros(len(mix))
        for run in self.rows.runs():
            log_likelihoods += sweep(
                self.rows.read(run),
                NONE if self.row_weights is None else self.row_weights[run],
                self.blocks.offsets,
                factors.means,
                factors.inverse.reshape(-1),
                mixture.is_diagonal,
                factors.log_dets,
                mix,
                np.ascontiguousarray(log_weights),
                NO_TABLE if statistics is None else statistics.counts,
                NO_TABLE if statistics is None else statistics.first,
                NONE if statistics is None else statistics.second.reshape(-1),
                self.least,
                self.n_threads,
            )
        return log_likelihoods

    # ---- M-step --------------------------------------------------------------------------------

    def summarize(self, statistics: Statistics, responsibilities: Floats, rows: slice) -> None:
        """Add these rows to the statistics, each hub by its own root's responsibilities.

        Missing values are as the latest mixture expects them.
        """
        factors = None if self.gaps is None else self._expecting(statistics.shifts)
        self.summarize_by(statistics, responsibilities, rows, factors)

    def summarize_by(
        self, statistics: Statistics, responsibilities: Floats, rows: slice,
        factors: Factors | None, varying: Floats | None = None,
    ) -> None:  # fmt: skip
        statistics.counts += responsibilities.sum(axis=1, dtype=np.float64)
        data = self.rows.read(rows)
        if self.gaps is not None:
            assert factors is not None
            self.gaps.add_moments(
                statistics, data, responsibilities,
                responsibilities if varying is None else varying, factors.plain, rows,
                self.n_threads,
            )  # fmt: skip
            return
        kernel = moments_diag if self._is_diagonal else moments_full
        kernel(
            data,
            responsibilities,
            self.blocks.offsets,
            statistics.shifts,
            statistics.first,
            statistics.second,
            self.n_threads,
        )

    def _expecting(self, centres: Floats) -> Factors:
        """The latest parameters; or a diagonal mixture about centres, one about the mean of all."""
        n_components = len(centres)
        if self.latest is not None and len(self.latest.means) == n_components:
            return self.latest
        assert self.spread is not None
        spread = np.maximum(self.spread, LEAST_VARIANCE)
        if self.covariance_type.endswith("spherical"):
            spread = self._averaged(spread[None])[0]
        one = spread[None]
        if not self._is_diagonal:
            parts = np.split(spread, self.blocks.offsets[1:-1])
            one = np.concatenate([np.empty(0), *(np.diag(part).ravel() for part in parts)])
        covariances = self._repeated(one, 1 if self._is_tied else n_components)
        means = self.centre[None].copy() if n_components == 1 else centres.astype(np.float64)
        weights = np.full((1, n_components), 1.0 / n_components)
        return factorise(self.mixture(weights, means, covariances), np.float64)

    def update(self, statistics: Statistics, row: float | None = None) -> Mixture:
        """Parameters from the statistics, Valdeira et al., equations (5a), (9) and (11).

        Where a block has next to no rows they are as they were: parameters of which nothing is seen
        change no expectation, and keeping them is a generalised M-step. With ``row``, what each of
        `enough` rows counts, so do blocks that have seen less of a component than that.
        """
        if statistics.seen is not None:
            widths = 1 if self._is_diagonal else self.blocks.widths[:, None]
            least = self.least_seen if row is None else row * enough_rows(widths)
            return self.hold(self._updated(statistics, least))
        counts = statistics.counts
        n = self.blocks.of_feature(counts)
        means = statistics.shifts.astype(np.float64)
        if np.count_nonzero(used := counts > 0) == used.size:
            means += statistics.first / n
        else:
            used = self.blocks.of_feature(used)
            np.add(means, statistics.first / np.where(used, n, 1.0), out=means, where=used)
        covariances = np.empty_like(statistics.second)
        common = (statistics.first, statistics.second, counts, self.blocks.offsets, self.reg_covar)
        if self._is_diagonal:
            spherical = self.covariance_type.endswith("spherical")
            covariances_diag(*common, spherical, covariances)
        else:
            covariances_full(*common, covariances)
        within = counts.sum(axis=1, keepdims=True)  # 0 where all rows are noise
        shares = counts / np.maximum(within, TINY)
        return self.hold(self._constrained(self.mixture(shares, means, covariances), counts))

    def _constrained(self, free: Mixture, counts: Doubles) -> Mixture:
        """Return the M-step in the family of covariances, of that without it, which is changed."""
        known, before = None, self.before
        if self.covariance_type not in DECOMPOSED:
            return free.constrained(counts, ratio=self.eigenvalue_ratio)
        if before is not None and before.n_components == free.n_components:
            known = before.covariances
        own = free.covariances, counts, known
        free.covariances[...] = constrained(self.covariance_type, self.blocks, *own)
        return free

    def _updated(self, statistics: Statistics, least: Doubles | float = NO_ROWS) -> Mixture:
        """Parameters from statistics, where a block has seen at least so much."""
        before, n = self._expecting(statistics.shifts), statistics.seen
        assert n is not None
        few = n < least
        columns = few if self._is_diagonal else self.blocks.of_feature(few)
        first = np.where(columns, 0.0, statistics.first)
        per_feature = statistics.per_feature(self.blocks)
        means = statistics.shifts.astype(np.float64)
        np.add(means, first / np.where(columns, 1.0, per_feature), out=means, where=~columns)
        means = np.where(columns, before.means, means)
        if self._is_diagonal:
            # Of every feature by its own rows, of a block by all its values if spherical.
            drop, value, total = np.square(first) / np.where(few, 1.0, n), statistics.second, n
            if self._is_tied:
                drop, total = drop.sum(axis=0, keepdims=True), n.sum(axis=0, keepdims=True)
            value = value - drop
            if self.covariance_type.endswith("spherical"):
                value, total = (self._over_blocks(np.maximum(part, 0.0)) for part in (value, total))
            variances = np.maximum(value / np.where(total > 0, total, 1.0), 0.0) + self.reg_covar
            covariances = np.where(total < least, before.covariances, variances)
        else:
            covariances = np.empty_like(statistics.second)
            covariances_full(
                first, statistics.second, n, self.blocks.offsets, self.reg_covar, covariances
            )
            if not self._is_tied and few.any():
                new = block_views(covariances, self.blocks.widths, len(means))
                old = block_views(before.covariances, self.blocks.widths, len(means))
                for b, k in np.argwhere(few):
                    new[b][k] = old[b][k]
        counts = statistics.counts
        free = self.mixture(counts / counts.sum(axis=1, keepdims=True), means, covariances)
        if self._is_diagonal and self.covariance_type in DECOMPOSED:
            # As if all rows had all features, those that are missing with variances as they were:
            # of both it is the same function of the variances that grows.
            rows = self.blocks.of_feature(counts)
            there = np.minimum(n / np.where(rows > 0, rows, 1.0), 1.0)
            filled = there * covariances + (1 - there) * before.covariances
            return self._constrained(replace(free, covariances=filled), counts)
        return self._constrained(free, counts if self._is_diagonal else n)

    def mixture(self, weights: Doubles, means: Doubles, covariances: Doubles) -> Mixture:
        """Return the mixture of these parameters over the hubs here, in units of fitting."""
        return Mixture(self.blocks, self.covariance_type, weights, means, covariances, self.scaling)

    # ---- statistics about other centres, of some hubs, of a mixture -----------------------------

    def empty(self, centres: Floats, n_roots: int) -> Statistics:
        """Statistics of no rows about centres (K, d)."""
        shifts = np.ascontiguousarray(centres, dtype=self.rows.dtype)
        n_components = len(shifts)
        shape = shifts.shape if self._is_diagonal else (self.blocks.n_blocks, n_components)
        return Statistics(
            np.zeros((n_roots, n_components)),
            np.zeros(shifts.shape),
            np.zeros(covariance_shape(self.blocks, self.covariance_type, n_components)),
            shifts,
            seen=np.zeros(shape) if self.misses else None,
        )

    of_clusters = empty

    def of_labels(self, labels: NDArray[np.int32], centres: Floats) -> Statistics:
        """Statistics of all rows, each in the component of its label, about centres (K, d)."""
        statistics = self.empty(centres, 1)
        for rows in self.chunks(self.blocks.n_features) if self.n_samples else ():
            shares = (labels[rows, None] == np.arange(len(centres))).astype(self.rows.dtype)
            if self.row_weights is not None:
                shares *= self.row_weights[rows, None].astype(shares.dtype)
            self.summarize(statistics, shares[None], rows)
        return statistics

    def _banded(self, flat: Doubles, copies: int) -> Iterator[tuple[slice, int, int, Doubles]]:
        """Views of shape (blocks, copies, width, width), one a band, into a flat array."""
        start = 0
        for columns, hubs, width in self.blocks.bands:
            count = hubs.stop - hubs.start
            stop = start + count * copies * width * width
            yield columns, count, width, flat[start:stop].reshape(count, copies, width, width)
            start = stop

    def recentred(self, statistics: Statistics, centres: Floats) -> Statistics:
        """Return the same statistics about other centres (K, d)."""
        shifts = np.ascontiguousarray(centres, dtype=self.rows.dtype)
        moved = statistics.shifts.astype(np.float64) - shifts
        seen = None if statistics.seen is None else statistics.seen.copy()
        first = statistics.first + statistics.per_feature(self.blocks) * moved
        second = statistics.second.copy()
        if self._is_diagonal:
            change = moved * (statistics.first + first)
            second += change.sum(axis=0) if self._is_tied else change
        elif moved.any():
            n_components = len(moved)
            copies = 1 if self._is_tied else n_components
            for columns, count, width, view in self._banded(second, copies):
                # With t' = t + n s about the new centre, U' = U + t s^T + s t'^T.
                s, old, new = (
                    part[:, columns].reshape(n_components, count, width).swapaxes(0, 1)
                    for part in (moved, statistics.first, first)
                )
                if self._is_tied:
                    view[:, 0] += old.swapaxes(1, 2) @ s + s.swapaxes(1, 2) @ new
                else:
                    view += old[..., None] * s[..., None, :] + s[..., None] * new[..., None, :]
        counts = statistics.counts.copy()
        return replace(
            statistics, counts=counts, first=first, second=second, shifts=shifts, seen=seen
        )

    def with_hubs_of(self, statistics: Statistics, other: Statistics, hubs: Mask) -> Statistics:
        """Return the statistics with those hubs' (B,) part taken from other ones."""
        other = self.recentred(other, statistics.shifts)
        # They lie as parameters do.
        runs, columns = FeatureTerms.blank(self, len(other.first)).runs, hubs[self.blocks.block_of]
        counts = np.where(hubs[:, None], other.counts, statistics.counts)
        first = np.where(columns, other.first, statistics.first)
        second = runs["covariances"].where(hubs, other.second, statistics.second)
        seen = statistics.seen
        if seen is not None and other.seen is not None:
            seen = np.where(columns if self._is_diagonal else hubs[:, None], other.seen, seen)
        return Statistics(counts, first, second, statistics.shifts, seen=seen)

    def enough(self, counts: Doubles) -> Mask:
        """Whether so many rows a component (R, K) are enough for an M-step, for each root (R,).

        Ten times as many as a mean and a variance, or a covariance of the widest hub's features,
        need at least to be sound: hubs that went ahead would impose their clusters on the others.
        """
        widest = 1 if self._is_diagonal else self.widest
        return np.asarray(self.counting(counts, axis=1) >= enough_rows(widest))

    def statistics_of(self, mixture: Mixture, weight: float, n_roots: int) -> Statistics:
        """Statistics of rows of this total weight for which `update` gives ``mixture``."""
        return self.recentred(self._about_means(mixture, weight, n_roots), mixture.means)

    def _about_means(self, mixture: Mixture, weight: float, n_roots: int) -> Statistics:
        """`statistics_of` about the means as they are, in double precision.

        Where values are missing every block sees the same part of each component's rows, as it does
        of all. Where stochastic EM settles does not depend on that, only how far a step moves a
        block.
        """
        counts = weight * mixture.weights
        if len(counts) != n_roots:
            counts = np.repeat(counts.mean(axis=0, keepdims=True), n_roots, axis=0)
        n = self.blocks.of_feature(counts)
        if self._is_diagonal:
            n = n.sum(axis=0, keepdims=True) if self._is_tied else n
            second = n * (mixture.covariances - self.reg_covar) * self.share
        else:
            second = mixture.covariances.copy()
            copies = 1 if self._is_tied else mixture.n_components
            share = np.broadcast_to(self.share, self.blocks.n_blocks)[self.blocks.block_of]
            for columns, count, width, view in self._banded(second, copies):
                floors = self.reg_covar[columns].reshape(count, 1, width)
                view[..., np.arange(width), np.arange(width)] -= floors
                of_hubs = n[:, columns].reshape(-1, count, width)[..., 0].T
                of_hubs = of_hubs.sum(axis=1, keepdims=True) if self._is_tied else of_hubs
                view *= of_hubs[..., None, None]
                view *= share[columns].reshape(count, width)[:, 0, None, None, None]
        seen = None
        if self.misses:
            if self._is_diagonal:
                seen = self.blocks.of_feature(counts) * self.share
            else:
                seen = counts * np.reshape(self.share, (-1, 1))
        return Statistics(counts, np.zeros_like(mixture.means), second, mixture.means, seen=seen)

    def expected(self, statistics: Statistics, mixture: Mixture, factors: Factors) -> float:
        """Expected ``log g~`` of the rows in statistics that all roots share, under a mixture.

        ``sum_m sum_k gamma_mk log g~_mk`` without `log_constant`, from the statistics alone:
        ``sum_k n_k log pi_k - (n_k log|Sigma_k| + tr(Sigma_k^-1 U_k)) / 2``, U_k about the mean.
        """
        counts = statistics.counts[0]
        used = counts > 0
        value = float(counts[used] @ mixture.log_weights[0, used])
        hubs = 0.5 * self._determinants(statistics, mixture, factors)
        about = statistics
        if not np.array_equal(statistics.shifts, factors.means):
            about = self.recentred(statistics, factors.means)
        if self._precisions is None or self._precisions[0] is not factors:
            self._precisions = (factors, self._lower_precisions(factors))
        hubs += 0.5 * self._over_hubs(self._precisions[1] * about.second)
        return value - float(self.add_up(hubs))

    def _determinants(self, statistics: Statistics, mixture: Mixture, factors: Factors) -> Doubles:
        """Log-determinants (B,) of hubs' covariances, each as often as its component is found."""
        counts, log_dets = statistics.counts[0], factors.log_dets.astype(np.float64)
        seen = statistics.seen
        if seen is not None and self._is_diagonal:
            covariances = mixture.covariances
            return self._over_hubs(np.log(np.where(covariances > 0, covariances, 1.0)) * seen)
        if seen is not None:
            return np.asarray((log_dets.T * seen).sum(axis=1))
        return np.asarray(counts @ np.broadcast_to(log_dets, (len(counts), log_dets.shape[1])))

    def _over_hubs(self, seconds: Doubles) -> Doubles:
        """Sum over each hub (B,) of what is laid out as second moments are."""
        blocks = self.blocks
        if self._is_diagonal:
            return sum_features(blocks, seconds.sum(axis=0))
        views = block_views(seconds, blocks.widths, seconds.size // max(1, blocks.n_entries))
        return np.array([float(view.sum()) for view in views])

    def _averaged(self, values: Doubles) -> Doubles:
        """Mean of what is (n, d) over each block, repeated for each of its features."""
        means = self._over_blocks(values) / self.blocks.widths[self.blocks.block_of]
        return np.asfortranarray(means)

    def _over_blocks(self, values: Doubles) -> Doubles:
        """Sum over the features of each block, repeated for each of them; (n, d)."""
        sums = np.zeros((self.blocks.n_blocks, len(values)))
        np.add.at(sums, self.blocks.block_of, values.T)
        return np.ascontiguousarray(sums[self.blocks.block_of].T)

    def _lower_precisions(self, factors: Factors) -> Doubles:
        """Inverse covariances for the trace with a symmetric matrix whose lower half is given."""
        factors = factors.plain
        inverse = factors.inverse.astype(np.float64)
        if self._is_diagonal:
            return inverse
        out = np.empty_like(inverse)
        copies = factors.log_dets.shape[0]
        both = zip(self._banded(inverse, copies), self._banded(out, copies), strict=True)
        for (_, _, width, lower), (_, _, _, view) in both:
            np.matmul(lower.swapaxes(2, 3), lower, out=view)
            view *= np.tri(width) + np.tri(width, k=-1)
        return out

    @property
    def measured(self) -> FeatureTerms:
        """Rows between which distances mean something: these."""
        return self

    def blank(self, n_components: int) -> Mixture:
        """Return a mixture of so many components with everything but parameters."""
        return Mixture.blank(self.blocks, self.covariance_type, n_components, self.scaling)

    # ---- starts and repairs ---------------------------------------------------------------------

    def at_rows(self, indices: Indices) -> Doubles:
        """Rows of the data as centres, shape (len(indices), d), in block order and fit units."""
        return self.rows.take(indices).astype(np.float64)

    def middle(self, mixture: Mixture) -> Doubles:
        """The mean of a mixture (d,): a centre that is no row."""
        middle: Doubles = mixture.weights.mean(axis=0) @ mixture.means
        return middle

    def with_sample_covariance(self, covariances: Doubles) -> FeatureTerms:
        """Return the same terms with a sample covariance that is known from elsewhere."""
        chosen = copy(self)
        chosen._sample_covariance = covariances
        return chosen

    def informed_by(self, plain: FeatureTerms) -> FeatureTerms:
        """Return the same terms with what others without a prior know of all rows."""
        return self.with_sample_covariance(plain.sample_covariance)

    def knowing(self, statistics: Statistics) -> FeatureTerms:
        """Return the same terms with the sample covariance of statistics of all rows."""
        return self.with_sample_covariance(self.update(statistics).covariances)

    @property
    def sample_covariance(self) -> Doubles:
        """Each block's own sample covariance (divisor M) plus ``reg_covar``, for one component."""
        if self._sample_covariance is None:
            self._sample_covariance = self.sample().covariances
        return self._sample_covariance

    def sample(self) -> Mixture:
        """Return the mixture of one component that is fitted to all rows.

        Missing values are expected by the features' own variances.
        """
        terms = copy(self)
        terms.latest = None
        about = np.zeros(self.blocks.n_features) if self.gaps is None else self.centre
        statistics = terms.empty(about[None], 1)
        for rows in terms.chunks(self.blocks.n_features):
            weights = self._weights(rows)
            if self.gaps is None and rows.start == 0 and weights.sum() > 0:
                # About a point among the rows that weigh.
                near = weights @ self.rows.read(rows).astype(np.float64, copy=False)
                statistics = self.empty(near[None] / weights.sum(), 1)
            shares = weights[None, :, None].astype(self.rows.dtype)
            terms.summarize(statistics, np.ascontiguousarray(shares), rows)
        return terms.update(statistics)

    def start(self, centres: Doubles) -> Mixture:
        """Equal weights, means at ``centres`` (K, d), every covariance the block's sample one."""
        k = len(centres)
        weights = np.full((1, k), 1.0 / k)
        covariances = self._repeated(self.sample_covariance, 1 if self._is_tied else k)
        return self.mixture(weights, np.array(centres, dtype=np.float64), covariances)

    def _repeated(self, one: Doubles, times: int) -> Doubles:
        """Return so many copies of what each block has one of, laid out as covariances are."""
        if self._is_diagonal:
            return np.repeat(one, times, axis=0)
        views = block_views(one, self.blocks.widths, 1)
        parts = [np.repeat(view, times, axis=0).ravel() for view in views]
        return np.concatenate([np.empty(0), *parts])

    def reseeded(self, mixture: Mixture, component: int, centre: Doubles, weight: float) -> Mixture:
        """Reinitialise one component: this mean (d,), the sample covariance, this mixing weight."""
        weights, means = reweighted(mixture.weights, component, weight), mixture.means.copy()
        means[component] = centre
        covariances = mixture.covariances
        if not self._is_tied:
            covariances = covariances.copy()
            if self._is_diagonal:
                covariances[component] = self.sample_covariance[0]
            else:
                widths = self.blocks.widths
                views = block_views(covariances, widths, weights.shape[1])
                fresh = block_views(self.sample_covariance, widths, 1)
                for view, sample in zip(views, fresh, strict=True):
                    view[component] = sample[0]
        renewed = replace(mixture, weights=weights, means=means, covariances=covariances)
        return self.hold(renewed.constrained())
