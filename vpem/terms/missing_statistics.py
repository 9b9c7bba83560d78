"""Expected statistics of blocks of which rows miss values, and parameters from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem._core.covariances import covariances_full
from vpem.checks import Floats
from vpem.terms.covariances import Factors, block_views
from vpem.terms.mixture import Mixture
from vpem.terms.statistics import BlockStatistics, MissingStatistics, Statistics, enough_rows


@dataclass(frozen=True)
class MissingFactors(Factors):
    """Factors in double precision, and the mixture that they are of."""

    mixture: Mixture

    def in_precision(self, dtype: DTypeLike) -> Factors:
        """Return the factors in the precision of the data."""
        means, inverse, log_dets = (
            np.ascontiguousarray(part, dtype=dtype)
            for part in (self.means, self.inverse, self.log_dets)
        )
        return Factors(means, inverse, log_dets, self.failed)


class MissingBlockStatistics(BlockStatistics):
    """`BlockStatistics` in which a block, or a feature, has seen fewer rows than a component.

    Attributes
    ----------
    share : ndarray of shape (d,) where covariances are diagonal, else (B,)
        Part of the rows' weight that has a feature, or something of a block.
    least_seen : float
        Effective rows that a block needs of a component to change its parameters.
    """

    share: NDArray[np.float64]
    least_seen: float

    def _expecting(self, centres: Floats) -> MissingFactors:
        """Return what values are expected by, of as many components as there are centres (K, d)."""
        raise NotImplementedError

    @property
    def by_responsibilities(self) -> bool:
        """Whether rows and their responsibilities are all that statistics are made of.

        Where features of a block depend on each other, missing ones are expected by the parameters
        of the time.
        """
        return self._is_diagonal

    def empty(self, centres: Floats, n_roots: int) -> MissingStatistics:
        """Statistics of no rows about centres (K, d)."""
        made = super().empty(centres, n_roots)
        n_components, d = made.shifts.shape
        shape = (n_components, d) if self._is_diagonal else (self.blocks.n_blocks, n_components)
        return MissingStatistics(
            made.counts, made.first, made.second, made.shifts, seen=np.zeros(shape)
        )

    def recentred(self, statistics: Statistics, centres: Floats) -> MissingStatistics:
        """Return the same statistics about other centres (K, d)."""
        assert isinstance(statistics, MissingStatistics)
        moved = super().recentred(statistics, centres)
        assert isinstance(moved, MissingStatistics)
        return replace(moved, seen=statistics.seen.copy())

    def _per_feature(self, statistics: Statistics) -> NDArray[np.float64]:
        assert isinstance(statistics, MissingStatistics)
        if self._is_diagonal:
            return statistics.seen
        return self.blocks.of_feature(statistics.seen)

    def with_hubs_of(
        self, statistics: Statistics, other: Statistics, hubs: NDArray[np.bool_]
    ) -> MissingStatistics:
        """Return the statistics with those hubs' (B,) part taken from other ones."""
        assert isinstance(statistics, MissingStatistics)
        assert isinstance(other, MissingStatistics)
        taken = super().with_hubs_of(statistics, other, hubs)
        columns = hubs[self.blocks.block_of] if self._is_diagonal else hubs[:, None]
        return MissingStatistics(**vars(taken), seen=np.where(columns, other.seen, statistics.seen))

    def _about_means(self, mixture: Mixture, weight: float, n_roots: int) -> MissingStatistics:
        """Statistics for which `update` gives a mixture, about its means.

        Every block sees the same part of each component's rows, as it does of all. Where stochastic
        EM settles does not depend on that, only how far a step moves a block.
        """
        made = super()._about_means(mixture, weight, n_roots)
        if self._is_diagonal:
            second = made.second * self.share
            seen = self.blocks.of_feature(made.counts) * self.share
            return MissingStatistics(made.counts, made.first, second, made.shifts, seen=seen)
        copies = 1 if self._is_tied else mixture.n_components
        per_feature = self.share[self.blocks.block_of]
        for columns, count, width, view in self._banded(made.second, copies):
            view *= per_feature[columns].reshape(count, width)[:, 0, None, None, None]
        return MissingStatistics(**vars(made), seen=made.counts * self.share[:, None])

    def _determinants(
        self, statistics: Statistics, mixture: Mixture, factors: Factors
    ) -> NDArray[np.float64]:
        """Log-determinants (B,) of blocks' covariances, each as often as it is seen."""
        assert isinstance(statistics, MissingStatistics)
        seen = statistics.seen
        if not self._is_diagonal:
            found: NDArray[np.float64] = (factors.log_dets.astype(np.float64).T * seen).sum(axis=1)
            return found
        covariances = mixture.covariances
        logs = np.log(np.where(covariances > 0, covariances, 1.0))
        return self._over_hubs(logs * seen)

    def update(self, statistics: Statistics) -> Mixture:
        """Parameters from the statistics; where a block has next to no rows, as they were.

        Parameters of which nothing is seen change no expectation: keeping them is a generalised
        M-step.
        """
        return self._updated(statistics, np.array(self.least_seen))

    def update_early(self, statistics: Statistics, row: float) -> Mixture:
        """Parameters from statistics of few rows; where a block has not `enough`, as they were."""
        widths = 1 if self._is_diagonal else self.blocks.widths[:, None]
        return self._updated(statistics, row * enough_rows(widths))

    def _updated(self, statistics: Statistics, least: NDArray[np.float64]) -> Mixture:
        """Parameters from the statistics, where a block has seen at least so much."""
        assert isinstance(statistics, MissingStatistics)
        before = self._expecting(statistics.shifts).mixture
        n = statistics.seen
        few = n < least
        columns = few if self._is_diagonal else self.blocks.of_feature(few)
        first = np.where(columns, 0.0, statistics.first)
        per_feature = n if self._is_diagonal else self.blocks.of_feature(n)
        means = statistics.shifts.astype(np.float64)
        np.add(means, first / np.where(columns, 1.0, per_feature), out=means, where=~columns)
        means = np.where(columns, before.means, means)
        if self._is_diagonal:
            covariances = self._variances(statistics, first, least, before)
        else:
            covariances = np.empty_like(statistics.second)
            covariances_full(
                first, statistics.second, n, self.blocks.offsets, self.reg_covar, covariances
            )
            if not self._is_tied and few.any():
                new = block_views(covariances, self.blocks.widths, before.n_components)
                old = block_views(before.covariances, self.blocks.widths, before.n_components)
                for b, k in np.argwhere(few):
                    new[b][k] = old[b][k]
        counts = statistics.counts
        weights = counts / counts.sum(axis=1, keepdims=True)
        return Mixture(self.blocks, self.covariance_type, weights, means, covariances, self.scaling)

    def _variances(
        self,
        statistics: MissingStatistics,
        first: NDArray[np.float64],
        least: NDArray[np.float64],
        before: Mixture,
    ) -> NDArray[np.float64]:
        """Variance of every feature by its own rows, of a block by all its values if spherical."""
        n = statistics.seen
        drop = np.square(first) / np.where(n < least, 1.0, n)
        value = statistics.second - (drop.sum(axis=0, keepdims=True) if self._is_tied else drop)
        total = n.sum(axis=0, keepdims=True) if self._is_tied else n
        if self.covariance_type.endswith("spherical"):
            value, total = (self._over_blocks(np.maximum(part, 0.0)) for part in (value, total))
        found = np.maximum(value / np.where(total > 0, total, 1.0), 0.0) + self.reg_covar
        kept: NDArray[np.float64] = np.where(total < least, before.covariances, found)
        return kept

    def _over_blocks(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over the features of each block, told to each of them; (n, d)."""
        sums = np.zeros((len(values), self.blocks.n_blocks))
        for own, row in zip(sums, values, strict=True):
            np.add.at(own, self.blocks.block_of, row)
        found: NDArray[np.float64] = sums[:, self.blocks.block_of]
        return found
