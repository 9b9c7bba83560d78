"""Data split by features of which values are missing: each hub adds what it can see.

With block-diagonal covariance a hub's term is the log-density of the values it has of its block,
and nothing where it has none; the M-step of a block takes the rows of which it has something.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem._core.assign import nearest_rows
from vpem._core.covariances import covariances_full
from vpem._core.missing import marginal_diag, marginal_moments_diag, marginal_moments_full
from vpem._core.threads import one_blas_thread
from vpem.checks import Doubles, Floats, Indices, row_blocks
from vpem.network.partition import Blocks
from vpem.terms.features import FeatureTerms, RowTerms
from vpem.terms.mixture import Factors, Mixture, block_views, factorise
from vpem.terms.rows import Arranges, MemoryRows, Plan, Rows, marginal_terms, pattern_plan
from vpem.terms.statistics import Statistics, enough_rows
from vpem.terms.units import Add, Reach, Scaling, alone

LEAST_SEEN = 0.5
"""Effective rows that a block needs of a component to change its parameters; where rows weigh less
than 1 on average it shrinks with them."""

LEAST_VARIANCE = 1e-100
"""Of a constant feature, where values are expected by the spread of the data alone."""

NO_ROWS = np.array(1e-200)
"""Effective rows that are none: no mean could be taken of them."""

FEWEST_ROWS = 10
"""Fewer do not show what is usual: one of them may be the one that is far away."""

MOST_ROWS = 1000
"""More do not show it better."""


@dataclass
class _Found:
    """What is computed once from the pattern of missing values of some rows."""

    plans: dict[tuple[int, int], Plan] = field(default_factory=dict)  # of chunks
    split: list[MissingTerms] = field(default_factory=list)  # complete rows, and the others
    parts: dict[tuple[int, int], _Found] = field(default_factory=dict)  # of runs of these rows


class MissingTerms(FeatureTerms):
    """Local terms of data that miss values, which are integrated out.

    X (M, d) is NaN where a value is missing; every row and every column has a value. ``add`` adds
    what every process finds of its own rows, where several have some; of rows in ``reach``, in
    units of fitting, all is known already. ``observed`` (M, d), in block order, is 1 where a value
    is present; ``centre`` and ``spread`` (d,) are mean and variance of these. Missing values of
    rows that become means are filled by the mean.

    ``share`` is the part of the rows' weight that has a feature (d,), where covariances are
    diagonal, or something of a block (B,). A block changes parameters of a component of which it
    has seen ``least_seen`` effective rows.
    """

    looks_at_gaps = misses = True

    def __init__(
        self,
        X: Floats | Arranges,
        blocks: Blocks,
        covariance_type: str,
        *,
        scaling: Scaling,
        row_weights: Doubles | None = None,
        add: Add = alone,
        reach: Reach | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            X, blocks, covariance_type, scaling=scaling, row_weights=row_weights, **options
        )
        # Where features of a block depend on each other, missing ones are expected by parameters.
        self.by_responsibilities = self._is_diagonal
        self._add = add
        self._there: Doubles | None = None
        data = self.rows.read(slice(0, self.n_samples))
        self.observed = np.ascontiguousarray(~np.isnan(data), dtype=np.uint8)
        data = np.where(self.observed, data, 0)
        if reach is None:
            # Of the observed values of the rows of all processes; in ``data`` others are 0.
            weights = self._weights(slice(0, self.n_samples))
            there = add(weights @ self.observed)
            seen = there
            if not self._is_diagonal:  # something of each block
                seen = add(np.array([
                    weights @ self.observed[:, begin:end].any(axis=1)
                    for begin, end in pairwise(blocks.offsets)
                ]))  # fmt: skip
            total = float(add(np.array([self.total_weight]))[0])
            self.share = seen / max(total, np.finfo(np.float64).tiny)
            safe = np.where(there > 0, there, 1.0)
            self.centre = np.zeros(blocks.n_features)
            self.spread = np.zeros(blocks.n_features)
            for rows in self.chunks(blocks.n_features):
                self.centre += weights[rows] @ data[rows].astype(np.float64)
            self.centre = add(self.centre) / safe
            for rows in self.chunks(blocks.n_features):
                away = np.square(data[rows] - self.centre) * self.observed[rows]
                self.spread += weights[rows] @ away
            self.spread = add(self.spread) / safe
        else:
            # Features are one block, of which every row has some.
            order = self.blocks.order
            assert reach.there is not None
            self._there = (reach.mass * reach.there)[order]
            self.share = reach.there[order] if self._is_diagonal else np.ones(1)
            self.centre, self.spread = reach.points.centre[order], reach.points.variances[order]
        np.copyto(data, self.centre.astype(data.dtype), where=self.observed == 0)
        self.rows = MemoryRows.wrap(data)
        self.log_constant = float(self.constants().sum())
        self.least_seen = LEAST_SEEN * min(1.0, self.total_weight / max(self.n_samples, 1))
        self._found = _Found()
        self.latest: Factors | None = None  # None: a start

    def constants(self, there: Doubles | None = None) -> Doubles:
        """Sum constants over rows that have a value of each feature and weigh so much, (d,)."""
        if there is None:
            there = self._weights(slice(0, self.n_samples)) @ self.observed
        blocks = self.blocks
        per_feature = -0.5 * np.log(2 * np.pi) - np.log(self.scaling.scale[blocks.order])
        constants = np.bincount(blocks.block_of, there * per_feature, blocks.n_blocks)
        return constants.astype(np.float64, copy=False)

    def among(
        self, rows: Rows, n_samples: int, total: float | None = None, lightest: float = 1.0
    ) -> Self:
        chosen = super().among(rows, n_samples, total, lightest)
        if self._there is None:
            chosen.log_constant = float(self._add(np.array([self.log_constant]))[0])
        else:
            chosen.log_constant = float(self.constants(self._there).sum())
        chosen.least_seen = LEAST_SEEN * min(1.0, chosen.total_weight / n_samples)
        return chosen

    def slice_rows(self, rows: slice, following: slice | None = None) -> Self:
        chosen = super().slice_rows(rows, following)
        chosen.observed = self.observed[rows]
        chosen.log_constant = float(chosen.constants().sum())
        chosen._found = self._found.parts.setdefault((rows.start, rows.stop), _Found())
        return chosen

    def plan(self, rows: slice) -> Plan | None:
        """In which order these rows are worked on, where covariances are full."""
        if self._is_diagonal:
            return None
        key = (rows.start, rows.stop)
        plans = self._found.plans
        if key not in plans:
            plans[key] = pattern_plan(self.observed[rows], self.blocks)
        return plans[key]

    def prepare(self, mixture: Mixture) -> Factors:
        """Factor every block for the E-step, and remember whose expectations the M-step takes."""
        self.latest = factorise(mixture, np.float64)
        return self.latest

    def local(self, factors: Factors, rows: slice) -> Floats:
        """Terms of each hub for what it has of these rows, shape (B, m, K); 0 of nothing."""
        terms = self._marginal(self.rows.read(rows), factors, rows)
        if self.known is not None:
            self.known.add(terms, rows)
        return terms

    def _marginal(self, data: Floats, factors: Factors, rows: slice) -> Floats:
        """Terms of data (m, d) in the place of these rows, by what is there of them."""
        return marginal_terms(
            data, self.observed[rows], self.plan(rows), self.blocks, factors.means,
            factors.covariances, factors.inverse, factors.log_dets, self.n_threads,
        )  # fmt: skip

    def apart(self, factors: Factors, rows: slice) -> tuple[Doubles, Doubles]:
        # Log-determinants of the scatter of what rows have: terms of rows at the means.
        centred = replace(factors, means=np.zeros_like(factors.means))
        nowhere = np.zeros(self.observed[rows].shape)
        log_dets = self._marginal(nowhere, centred, rows).astype(np.float64, copy=False)
        distances = self.local(factors, rows).astype(np.float64) - log_dets
        np.maximum(distances, 0.0, out=distances)
        return distances, log_dets

    def widths_of(self, rows: slice) -> Indices:
        observed, ends = self.observed[rows], pairwise(self.blocks.offsets)
        return np.stack([observed[:, a:b].sum(axis=1) for a, b in ends]).astype(np.intp)

    def there(self, rows: slice) -> NDArray[np.uint8] | None:
        there: NDArray[np.uint8] = self.observed[rows]
        return there

    def squares(self, centres: Doubles, rows: slice) -> Floats:
        """Squared distances by what is there of each block of these rows to centres, (B, m, L)."""
        data, observed = self.rows.read(rows), self.observed[rows]
        out = np.empty((self.blocks.n_blocks, len(data), len(centres)), dtype=data.dtype)
        ones = np.ones((1, centres.shape[1]))
        points = np.ascontiguousarray(centres, dtype=np.float64)
        marginal_diag(
            data, observed, self.blocks.offsets, points, ones, np.zeros_like(ones), out,
            self.n_threads,
        )  # fmt: skip
        return out

    def distances(self, centres: Doubles, rows: slice) -> Floats:
        """Squared distances by what is there of each block, times the share of it; (B, m, L)."""
        self.latest = None
        out, observed = self.squares(centres, rows), self.observed[rows]
        for b, width in enumerate(self.blocks.widths):
            of_block = observed[:, self.blocks.offsets[b] : self.blocks.offsets[b + 1]]
            if not of_block.all():
                there = of_block.sum(axis=1, dtype=np.intp)
                out[b] *= (width / np.maximum(there, 1))[:, None].astype(out.dtype)
        return out

    def sweep(
        self, mixture: Mixture, factors: Factors, mix: Doubles, statistics: Statistics | None = None
    ) -> Doubles:
        """Take the sum ``mix @ Q`` and all that depends on it, chunk by chunk.

        Rows that miss nothing go through the compiled sweep. Parameters and result are those of
        `vpem.terms.features.FeatureTerms.sweep`.
        """
        if self.known is not None:
            return RowTerms.sweep(self, mixture, factors, mix, statistics)
        if not self._found.split:
            complete = np.asarray(self.observed.all(axis=1))
            for chosen in (complete, ~complete):
                if chosen.all():
                    part = copy(self)
                    part._found = _Found()
                else:
                    weights = None if self.row_weights is None else self.row_weights[chosen]
                    part = self.select_rows(np.flatnonzero(chosen), weights)
                self._found.split.append(part)
        whole, others = self._found.split
        log_likelihoods = np.zeros(len(mix))
        if whole.n_samples:
            means, inverse, log_dets = (
                np.ascontiguousarray(part, dtype=self.rows.dtype)
                for part in (factors.means, factors.inverse, factors.log_dets)
            )
            rounded = replace(factors, means=means, inverse=inverse, log_dets=log_dets)
            before = 0.0 if statistics is None else statistics.counts.copy()
            log_likelihoods += whole._sweep_complete(mixture, rounded, mix, statistics)
            if statistics is not None:
                gained = statistics.counts - before
                seen = statistics.seen
                assert seen is not None
                seen += self.blocks.of_feature(gained) if self._is_diagonal else gained
        if others.n_samples:
            log_likelihoods += RowTerms.sweep(others, mixture, factors, mix, statistics)
        return log_likelihoods

    _sweep_complete = FeatureTerms.sweep

    def select_rows(self, rows: Indices, row_weights: Doubles | None = None) -> Self:
        chosen = super().select_rows(rows, row_weights)
        chosen.observed = self.observed[rows]
        chosen._found = _Found()
        return chosen

    def summarize(self, statistics: Statistics, responsibilities: Floats, rows: slice) -> None:
        """Add these rows to the statistics, missing values as the latest mixture expects them.

        At a start, where there is none: by the centres and the spread of the data.
        """
        self.summarize_by(statistics, responsibilities, rows, self._expecting(statistics.shifts))

    def summarize_by(
        self, statistics: Statistics, responsibilities: Floats, rows: slice, factors: Factors,
        varying: Floats | None = None,
    ) -> None:  # fmt: skip
        """Add rows, missing values as ``factors`` expect them; ``varying`` weighs their spread."""
        varying = responsibilities if varying is None else np.ascontiguousarray(varying)
        factors = factors.plain
        statistics.counts += responsibilities.sum(axis=1, dtype=np.float64)
        data, observed = self.rows.read(rows), self.observed[rows]
        if self._is_diagonal:
            marginal_moments_diag(
                data, observed, responsibilities, self.blocks.offsets, statistics.shifts,
                statistics.first, statistics.second, statistics.seen, self.n_threads,
            )  # fmt: skip
            return
        plan = self.plan(rows)
        assert plan is not None
        marginal_moments_full(
            data, observed, self.blocks.offsets, plan.tiles, plan.order, plan.pattern,
            responsibilities, varying, factors.means, factors.covariances, factors.inverse,
            statistics.shifts, statistics.first, statistics.second, statistics.seen,
            self.n_threads,
        )  # fmt: skip

    def _expecting(self, centres: Floats) -> Factors:
        """The latest parameters; or a diagonal mixture about centres, one about the mean of all."""
        n_components = len(centres)
        if self.latest is not None and len(self.latest.means) == n_components:
            return self.latest
        copies = 1 if self._is_tied else n_components
        spread = np.maximum(self.spread, LEAST_VARIANCE)
        if self.covariance_type.endswith("spherical"):
            spread = self._averaged(spread[None])[0]
        covariances = np.repeat(spread[None], copies, axis=0)
        if not self._is_diagonal:
            parts = np.split(spread, self.blocks.offsets[1:-1])
            covariances = np.concatenate(
                [np.empty(0), *(np.tile(np.diag(p).ravel(), copies) for p in parts if len(p))]
            )
        means = self.centre[None].copy() if n_components == 1 else centres.astype(np.float64)
        weights = np.full((1, n_components), 1.0 / n_components)
        return factorise(self.mixture(weights, means, covariances), np.float64)

    def _about_means(self, mixture: Mixture, weight: float, n_roots: int) -> Statistics:
        """Statistics for which `update` gives a mixture, about its means.

        Every block sees the same part of each component's rows, as it does of all. Where stochastic
        EM settles does not depend on that, only how far a step moves a block.
        """
        plain = super()._about_means(mixture, weight, n_roots)
        if self._is_diagonal:
            second = plain.second * self.share
            seen = self.blocks.of_feature(plain.counts) * self.share
            return replace(plain, second=second, seen=seen)
        copies = 1 if self._is_tied else mixture.n_components
        per_feature = self.share[self.blocks.block_of]
        for columns, count, width, view in self._banded(plain.second, copies):
            view *= per_feature[columns].reshape(count, width)[:, 0, None, None, None]
        return replace(plain, seen=plain.counts * self.share[:, None])

    def _determinants(self, statistics: Statistics, mixture: Mixture, factors: Factors) -> Doubles:
        """Log-determinants (B,) of blocks' covariances, each as often as it is seen."""
        seen = statistics.seen
        assert seen is not None
        if not self._is_diagonal:
            return np.asarray((factors.log_dets.astype(np.float64).T * seen).sum(axis=1))
        covariances = mixture.covariances
        logs = np.log(np.where(covariances > 0, covariances, 1.0))
        return self._over_hubs(logs * seen)

    def update_early(self, statistics: Statistics, row: float) -> Mixture:
        """Parameters from statistics of few rows; of blocks with less than `enough`, as before."""
        widths = 1 if self._is_diagonal else self.blocks.widths[:, None]
        return self._updated(statistics, row * enough_rows(widths))

    def update(self, statistics: Statistics) -> Mixture:
        """Parameters from the statistics; where a block has next to no rows, as they were.

        Parameters of which nothing is seen change no expectation: keeping them is a generalised
        M-step.
        """
        return self._updated(statistics, np.array(self.least_seen))

    def _updated(self, statistics: Statistics, least: Doubles = NO_ROWS) -> Mixture:
        """Parameters from the statistics, where a block has seen at least so much."""
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
        return self.mixture(counts / counts.sum(axis=1, keepdims=True), means, covariances)

    def sample(self) -> Mixture:
        """Return one component after one M-step from the features' own variances."""
        terms = copy(self)
        terms.latest = None
        statistics = terms.empty(self.centre[None], 1)
        for rows in self.chunks(self.blocks.n_features):
            weights = self._weights(rows)[None, :, None].astype(self.rows.dtype)
            terms.summarize(statistics, np.ascontiguousarray(weights), rows)
        return terms.update(statistics)


def terms_of(X: Floats | Arranges, *arguments: Any, missing: bool, **options: Any) -> FeatureTerms:
    """Return the terms of data that miss values, or of data that do not."""
    kind = MissingTerms if missing else FeatureTerms
    return kind(X, *arguments, **options)


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
    return np.bincount(blocks.block_of, widths, blocks.n_blocks).astype(np.float64)


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
    width = rows.shape[1]
    out = np.empty((1, len(rows), len(points)), dtype=rows.dtype)
    ones, ends = np.ones((1, width)), np.array([0, width], dtype=np.intp)
    known = np.ascontiguousarray(np.where(observed, rows, 0).astype(rows.dtype, copy=False))
    marginal_diag(
        known, observed, ends, np.ascontiguousarray(points, dtype=np.float64), ones,
        np.zeros_like(ones), out, n_threads,
    )  # fmt: skip
    squares: Floats = out[0]
    return squares


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
