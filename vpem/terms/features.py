"""Terms of data split by features: what each hub adds to the sum, and how it updates its own block.

`FeatureTerms` are those of Gaussian mixtures, and what all other kinds of local terms answer to;
`RowTerms` is what is the same for all, whatever the densities are.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem._core.covariances import covariances_diag, covariances_full
from vpem._core.mahalanobis import mahalanobis_diag
from vpem._core.moments import moments_diag, moments_full
from vpem._core.normalise import normalise
from vpem._core.sweep import sweep
from vpem.checks import Doubles, Floats, Indices, Mask
from vpem.network.partition import Blocks
from vpem.terms.density import Density
from vpem.terms.mixture import (
    Factors,
    Mixture,
    block_views,
    covariance_shape,
    is_diagonal,
)
from vpem.terms.rows import Arranges, Known, Rows, arrange_rows
from vpem.terms.statistics import Statistics, enough_rows
from vpem.terms.units import FLOOR, Scaling

CHUNK_BYTES = 1 << 24
"""Size aimed at for the terms of one chunk of rows, over all hubs or agents."""

NEGLIGIBLE = 1e-22
"""Responsibilities that together weigh less than this are left out of a component's moments."""

NONE, NO_TABLE = np.zeros(0), np.zeros((0, 0))
"""What kernels take for row weights, or for statistics, that there are not."""


class RowTerms:
    """Rows in chunks, their weights, and responsibilities from sums."""

    units = 0  # power of two in which squared distances are counted under masks
    log_constant = 0.0
    constant_in_sums = False
    """Whether each hub adds its own part of that to what is summed, and it is 0 here."""
    least_rows = 0.5
    """Effective samples (sum of responsibilities) below which a component has collapsed, in rows:
    see `vpem.steps.runs.least_weight`."""
    known: Known | None = None  # labels, say, of some rows
    n_factors = 0  # that hubs share (`vpem.terms.factors.FactorTerms`)
    is_gaussian = True  # all features
    observed: Any = None  # (M, d) in block order, 1 where a value is there; None: all are
    looks_at_gaps = False  # in the working memory, of every feature
    is_proper = False  # a prior keeps every component from being singular
    add_up: Callable[[Doubles], float] = staticmethod(np.sum)
    """Adds up a number of each hub here (B,), over all processes."""

    def __init__(
        self,
        rows: Rows,  # give chunks runs and precision
        blocks: Blocks,
        covariance_type: str,
        row_weights: Doubles | None,  # (M,); None: 1
        n_threads: int,
        dtype: np.dtype[np.floating],  # of the terms
    ) -> None:
        self.rows, self.blocks, self.covariance_type = rows, blocks, covariance_type
        self.n_threads, self.n_samples = n_threads, rows.n_samples
        self.row_weights = None if row_weights is None else np.ascontiguousarray(row_weights)
        self.total_weight = float(self.n_samples if row_weights is None else row_weights.sum())
        self.itemsize = dtype.itemsize
        """Bytes of a number that is sent."""
        self.resolution = float(np.finfo(dtype).eps) / 2
        """Relative change of a log-likelihood that rounding alone can make."""
        # Of all processes: features, and those of the widest hub.
        self.n_features = blocks.n_features
        self.widest = int(blocks.widths.max(initial=0))

    def slice_rows(self, rows: slice, following: slice | None = None) -> Self:
        """Return the terms of a run of rows, which are counted from 0 in it.

        ``following`` are rows that will be worked on next: of data in a file they are read ahead.
        """
        weights = None if self.row_weights is None else self.row_weights[rows]
        chosen = self._having(self.rows.slice_rows(rows, following), weights)
        chosen.known = None if self.known is None else self.known.slice_rows(rows)
        return chosen

    def select_rows(self, rows: Indices, row_weights: Doubles | None = None) -> Self:
        """Return the terms of some rows, for sweeps: rows may come twice, and weigh 1 or so much.

        They are read together, and kept in memory unless they are too many.
        """
        chosen = self._having(self.rows.select_rows(rows), row_weights)
        chosen.known = None if self.known is None else self.known.select_rows(rows)
        return chosen

    def _having(self, rows: Rows, row_weights: Doubles | None) -> Self:
        """Return the same terms of these rows."""
        chosen = copy(self)
        chosen.rows, chosen.row_weights, chosen.n_samples = rows, row_weights, rows.n_samples
        total = rows.n_samples if row_weights is None else row_weights.sum()
        chosen.total_weight = float(total)
        return chosen

    def __copy__(self) -> Self:
        """Return the same terms; as `copy` would, but in less time than a small batch takes."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def chunks(self, n_values: int) -> Iterator[slice]:
        """Yield runs of rows for which ``n_values`` numbers a row fit in the working memory."""
        n_values = max(1, n_values, self.n_features if self.looks_at_gaps else 0)
        step = max(64, CHUNK_BYTES // (self.itemsize * n_values))
        for run in self.rows.runs():
            for start in range(run.start, run.stop, step):
                yield slice(start, min(start + step, run.stop))

    def responsibilities(
        self, mixture: Density, sums: Floats, rows: slice
    ) -> tuple[Floats, Doubles]:
        """Responsibilities (R, m, K) times row weights, and log-likelihood (R,) of these rows.

        Sums are of terms (R, m, K), or of how they differ from the first (R, m, K - 1): of these
        the log-likelihood is without minus half of what they differ from.
        """
        log_weights = np.broadcast_to(mixture.log_weights, (len(sums), mixture.n_components))
        out = np.empty((*sums.shape[:2], mixture.n_components), dtype=sums.dtype)
        log_likelihoods = np.empty(sums.shape[:2])
        normalise(sums, np.ascontiguousarray(log_weights), out, log_likelihoods, self.n_threads)
        if self.known is not None:
            self.known.look(out, rows)
        if self.row_weights is None:
            return out, log_likelihoods.sum(axis=1)
        weights = self.row_weights[rows]
        out *= weights[:, None].astype(out.dtype)
        return out, log_likelihoods @ weights

    def drawn(self, rng: np.random.Generator, n_components: int, columns: Indices) -> Self:
        """Return the same terms with what they draw of a start, if anything."""
        return self

    def begun(self, start: Any) -> Any:
        """Return parameters that come from elsewhere as those of these terms."""
        return start

    def resuming(self, mixture: Density) -> Self:
        """Return these terms as they were when a mixture was saved."""
        return self

    def log_prior(self, mixture: Any) -> float:
        """Log-density of parameters under a prior that terms have a part of; here there is none."""
        return 0.0

    def sweep(
        self: Any, mixture: Any, factors: Any, mix: Doubles, statistics: Any = None
    ) -> Doubles:
        """Take the sum ``mix @ Q`` and all that depends on it, chunk by chunk: (R,)."""
        totals = np.zeros(len(mix))
        for rows in self.chunks(self.blocks.n_blocks * mixture.n_components):
            sums = mixed(mix, self.local(factors, rows))
            responsibilities, log_likelihoods = self.responsibilities(mixture, sums, rows)
            totals += log_likelihoods
            if statistics is not None:
                self.summarize_by(statistics, responsibilities, rows, factors)
        return totals

    def summarize_by(
        self: Any, statistics: Any, responsibilities: Floats, rows: slice, factors: Any,
        varying: Floats | None = None,
    ) -> None:  # fmt: skip
        """Add rows to the statistics, by the parameters that their responsibilities come from.

        What they miss is expected by these; ``varying`` weighs its spread.
        """
        self.summarize(statistics, responsibilities, rows)

    def _weights(self, rows: slice) -> Doubles:
        if self.row_weights is None:
            return np.ones(rows.stop - rows.start)
        return self.row_weights[rows]


def reweighted(weights: Doubles, component: int, weight: float) -> Doubles:
    """Return mixing weights (R, K) of which one is so much, and the others as they were."""
    weights = weights.copy()
    others = np.delete(np.arange(weights.shape[1]), component)
    rest = weights[:, others].sum(axis=1, keepdims=True)
    weights[:, others] *= (1 - weight) / np.where(rest > 0, rest, 1.0)
    weights[:, component] = weight
    return weights


def mixed(mix: Doubles, terms: Floats) -> Floats:
    """Sums ``mix @ terms`` (R, m, K) of terms (B, m, K)."""
    flat = terms.reshape(len(terms), -1)
    if len(mix) == 1 and bool((mix == 1).all()):
        sums = flat.sum(axis=0, keepdims=True)
    else:
        sums = (mix @ flat).astype(flat.dtype)
    return np.ascontiguousarray(sums).reshape(len(mix), *terms.shape[1:])


class FeatureTerms(RowTerms):
    """Local terms of data split by features over hubs, Valdeira et al., sections 5 and 6.

    X (M, d) is in the user's order and units, ``scaling`` the units to fit in, squared those of
    ``reg_covar``, which is added to the diagonal of every covariance. ``dtype`` is the precision of
    the data and of the terms; statistics are kept in float64. ``skip_negligible`` leaves rows out
    of a component's moments where their responsibility is so small (below `NEGLIGIBLE` / M) that
    all of them together are below the rounding of one row's weight.
    """

    doubt = 0.0
    """Share of each row that a start by clusters divides evenly among all components."""
    tells_expected = True
    """Whether `expected` finds log-densities from statistics."""
    by_responsibilities = True
    """Whether rows and their responsibilities are all that statistics are made of."""
    misses = False  # values: blocks have seen fewer rows than a component (`Statistics.seen`)
    least_seen = 0.0  # effective rows that a block needs of a component to change its parameters
    latest: Any = None  # factors by which the M-step expects what is missing
    spread: Any = None  # (d,) variances of what is observed, where values are missing
    share: Any = 1.0  # of the rows' weight that hubs have something of (`vpem.terms.missing`)
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
        self.log_constant = float(FeatureTerms.constants(self).sum())

    def constants(self) -> Doubles:
        """What each hub here has of `log_constant`, (B,)."""
        blocks, scale = self.blocks, self.scaling.scale
        per_feature = -0.5 * np.log(2 * np.pi) - np.log(scale[blocks.order])
        constants = np.bincount(blocks.block_of, per_feature, blocks.n_blocks)
        return self.total_weight * constants.astype(np.float64, copy=False)

    def slice_rows(self, rows: slice, following: slice | None = None) -> Self:
        chosen = super().slice_rows(rows, following)
        chosen.log_constant = self.log_constant * (chosen.total_weight / self.total_weight)
        chosen._sample_covariance = None
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
        chosen.log_constant = float(FeatureTerms.constants(chosen).sum())
        chosen.least = NEGLIGIBLE * lightest / n_samples if self.skips_negligible else 0.0
        return chosen

    # ---- E-step --------------------------------------------------------------------------------

    def prepare(self, mixture: Mixture) -> Factors:
        """Factor every block for the E-step; see `Mixture.factored`."""
        return mixture.factored(self.rows.dtype)

    def local(self, factors: Factors, rows: slice) -> Floats:
        """Terms ``Q`` of each hub for these rows, shape (B, m, K), Valdeira et al., (12)."""
        terms = factors.terms(self.rows.read(rows), self.blocks.offsets, self.n_threads)
        if self.known is not None:
            self.known.add(terms, rows)
        return terms

    def distances(self, centres: Doubles, rows: slice) -> Floats:
        """Squared distances of each hub's part of these rows to centres (L, d), (B, m, L)."""
        data = self.rows.read(rows)
        points = np.ascontiguousarray(centres, dtype=data.dtype)
        out = np.empty((self.blocks.n_blocks, len(data), len(points)), dtype=data.dtype)
        ones = np.ones((1, points.shape[1]), dtype=data.dtype)
        zeros = np.zeros((1, self.blocks.n_blocks), dtype=data.dtype)
        mahalanobis_diag(data, self.blocks.offsets, points, ones, zeros, out, self.n_threads)
        return out

    def apart(self, factors: Factors, rows: slice) -> tuple[Doubles, Doubles]:
        """Mahalanobis distances (B, m, K) of what rows have, and log-determinants of that part."""
        alone = replace(factors, log_dets=np.zeros_like(factors.log_dets))
        log_dets = factors.log_dets.T[:, None, :].astype(np.float64)
        return self.local(alone, rows).astype(np.float64), log_dets

    def widths_of(self, rows: slice) -> Indices:
        """Features that rows have of each hub, (B, m), or (B, 1) where they have all."""
        return self.blocks.widths[:, None]

    def there(self, rows: slice) -> NDArray[np.uint8] | None:
        """Which values rows have (m, d), in block order; None: all."""
        return None

    squares = distances
    """By what is there of each hub's part of these rows; here all is."""

    def sweep(
        self, mixture: Mixture, factors: Factors, mix: Doubles, statistics: Statistics | None = None
    ) -> Doubles:
        """Take the sum ``mix @ Q`` and all that depends on it in one pass over the rows.

        ``mix`` (R, B) is the sum as a matrix over the blocks' terms. The rows are added to
        statistics about the current means; the log-likelihood (R,) is without `log_constant`.
        """
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
        """Add these rows to the statistics, each hub by its own root's responsibilities."""
        statistics.counts += responsibilities.sum(axis=1, dtype=np.float64)
        kernel = moments_diag if self._is_diagonal else moments_full
        kernel(
            self.rows.read(rows),
            responsibilities,
            self.blocks.offsets,
            statistics.shifts,
            statistics.first,
            statistics.second,
            self.n_threads,
        )

    def update(self, statistics: Statistics) -> Mixture:
        """Parameters from the statistics, Valdeira et al., equations (5a), (9) and (11)."""
        counts = statistics.counts
        n = self.blocks.of_feature(counts)
        used = n > 0
        means = statistics.shifts.astype(np.float64)
        np.add(means, statistics.first / np.where(used, n, 1.0), out=means, where=used)
        covariances = np.empty_like(statistics.second)
        common = (statistics.first, statistics.second, counts, self.blocks.offsets, self.reg_covar)
        if self._is_diagonal:
            spherical = self.covariance_type.endswith("spherical")
            covariances_diag(*common, spherical, covariances)
        else:
            covariances_full(*common, covariances)
        return self.mixture(counts / counts.sum(axis=1, keepdims=True), means, covariances)

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
        counts = np.where(hubs[:, None], other.counts, statistics.counts)
        columns = hubs[self.blocks.block_of]
        first = np.where(columns, other.first, statistics.first)
        if self._is_diagonal:
            second = np.where(columns, other.second, statistics.second)
        else:
            copies = 1 if self._is_tied else len(first)
            sizes = copies * self.blocks.widths.astype(np.int64) ** 2
            second = np.where(np.repeat(hubs, sizes), other.second, statistics.second)
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

    def update_early(self, statistics: Statistics, row: float) -> Mixture:
        """Parameters from statistics in which `enough` rows count, each of them this much."""
        return self.update(statistics)

    def statistics_of(self, mixture: Mixture, weight: float, n_roots: int) -> Statistics:
        """Statistics of rows of this total weight for which `update` gives ``mixture``."""
        return self.recentred(self._about_means(mixture, weight, n_roots), mixture.means)

    def _about_means(self, mixture: Mixture, weight: float, n_roots: int) -> Statistics:
        """`statistics_of` about the means as they are, in double precision."""
        counts = weight * mixture.weights
        if len(counts) != n_roots:
            counts = np.repeat(counts.mean(axis=0, keepdims=True), n_roots, axis=0)
        n = self.blocks.of_feature(counts)
        if self._is_diagonal:
            n = n.sum(axis=0, keepdims=True) if self._is_tied else n
            second = n * (mixture.covariances - self.reg_covar)
        else:
            second = mixture.covariances.copy()
            copies = 1 if self._is_tied else mixture.n_components
            for columns, count, width, view in self._banded(second, copies):
                floors = self.reg_covar[columns].reshape(count, 1, width)
                view[..., np.arange(width), np.arange(width)] -= floors
                of_hubs = n[:, columns].reshape(-1, count, width)[..., 0].T
                of_hubs = of_hubs.sum(axis=1, keepdims=True) if self._is_tied else of_hubs
                view *= of_hubs[..., None, None]
        return Statistics(counts, np.zeros_like(mixture.means), second, mixture.means)

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
        return np.asarray(counts @ np.broadcast_to(log_dets, (len(counts), log_dets.shape[1])))

    def _over_hubs(self, seconds: Doubles) -> Doubles:
        """Sum over each hub (B,) of what is laid out as second moments are."""
        blocks = self.blocks
        if self._is_diagonal:
            sums = np.bincount(blocks.block_of, seconds.sum(axis=0), blocks.n_blocks)
            return sums.astype(np.float64, copy=False)
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
        """Return the mixture of one component that is fitted to all rows."""
        statistics = self.empty(np.zeros((1, self.blocks.n_features)), 1)
        for rows in self.chunks(self.blocks.n_features):
            weights = self._weights(rows)
            if rows.start == 0 and weights.sum() > 0:  # about a point among the rows that weigh
                near = weights @ self.rows.read(rows).astype(np.float64, copy=False)
                statistics = self.empty(near[None] / weights.sum(), 1)
            shares = weights[None, :, None].astype(self.rows.dtype)
            self.summarize(statistics, np.ascontiguousarray(shares), rows)
        return self.update(statistics)

    def start(self, centres: Doubles) -> Mixture:
        """Equal weights, means at ``centres`` (K, d), every covariance the block's sample one."""
        n_components = len(centres)
        weights = np.full((1, n_components), 1.0 / n_components)
        copies = 1 if self._is_tied else n_components
        covariances = self._repeated(self.sample_covariance, copies)
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
        return replace(mixture, weights=weights, means=means, covariances=covariances)


NATURAL = 3951074175
"""CRC-32 of what natural compression makes of the numbers of `self_check`."""


def self_check() -> float:
    """Return the difference of kernels from plain NumPy: up to 1, rounding explains it."""
    from vpem._core import codecs
    from vpem._core import sweep as kernels
    from vpem._core.threads import one_blas_thread

    rng = np.random.default_rng(0)
    n_rows, n_components = 20_133, 3  # enough for two threads
    blocks = [slice(0, 5), slice(5, 6), slice(6, 15)]
    offsets, hub = np.array([0, 5, 6, 15], dtype=np.intp), np.repeat([0, 1, 2], [5, 1, 9])
    # Whiteners (K, 15, 15), block by block, and some with a diagonal alone.
    full = np.tril(rng.normal(size=(n_components, 15, 15))) + 3 * np.eye(15)
    full *= hub[:, None] == hub
    diagonal = np.eye(15) * rng.uniform(0.5, 2.0, (n_components, 15, 1))
    log_weights = np.full((1, n_components), -np.log(n_components))
    worst = 0.0
    for dtype, allowed in ((np.float64, 1e-10), (np.float32, 1e-3)):
        for whiteners in (full, diagonal):
            is_diagonal = whiteners is diagonal
            rows = rng.normal(size=(n_rows, 15)).astype(dtype)
            means = rng.normal(size=(n_components, 15)).astype(dtype)
            log_dets = rng.normal(size=(n_components, len(blocks))).astype(dtype)
            if is_diagonal:
                inverse = np.diagonal(whiteners, axis1=1, axis2=2).ravel() ** 2
            else:
                inverse = np.concatenate([whiteners[:, one, one].ravel() for one in blocks])
            counts, first = np.zeros((1, n_components)), np.zeros((n_components, 15))
            second = np.zeros(len(inverse))
            with one_blas_thread():
                log_likelihood = kernels.sweep(
                    rows, np.empty(0), offsets, means, inverse.astype(dtype), is_diagonal,
                    log_dets, np.ones((1, len(blocks))), log_weights, counts, first, second, 0.0, 2,
                )  # fmt: skip
            apart = rows.astype(np.float64) - means.astype(np.float64)[:, None]
            distances = np.square(apart @ whiteners.swapaxes(1, 2)).sum(axis=2)
            scores = log_weights.T - (distances + log_dets.sum(axis=1)[:, None]) / 2
            log_densities = np.logaddexp.reduce(scores)
            weighted = np.exp(scores - log_densities)[:, :, None] * apart
            if is_diagonal:
                squares = (weighted * apart).sum(axis=1).ravel()
            else:
                products = np.tril(weighted.swapaxes(1, 2) @ apart)
                squares = np.concatenate([products[:, one, one].ravel() for one in blocks])
            for kernel, plain in (
                (log_likelihood, log_densities.sum()),
                (counts, np.exp(scores - log_densities).sum(axis=1)),
                (first, weighted.sum(axis=1)),
                (second, squares),
            ):
                size = max(1.0, float(np.abs(plain).max()))
                worst = max(worst, float(np.abs(kernel - plain).max()) / (size * allowed))
    # Codecs draw from their keys alone: the same bits on every machine.
    values, decoded = np.linspace(-1.0, 1.0, 148).reshape(4, 37), np.empty((4, 37))
    keys = np.arange(1, 5, dtype=np.uint64)
    codecs.natural_transmit(values, keys, 3, decoded, np.zeros(4, dtype=np.uint8), 1)
    return worst if zlib.crc32(decoded.tobytes()) == NATURAL else float("inf")
