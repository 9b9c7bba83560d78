"""Features that are multivariate t within a component and hub.

A t is a Gaussian whose scatter is divided by a scale of each row's own, ``u ~ Gamma(nu/2, nu/2)``:
``x | u ~ N(mu, Psi / u)``. So a hub's term follows from the Mahalanobis distance ``delta`` that a
Gaussian's has, and the M-step takes the moments of a Gaussian of rows that weigh
``E[u | x] = (nu + p) / (nu + delta)``, p the features that the row has of the hub (Lange, Little
and Taylor 1989; Peel and McLachlan 2000; values missing: Liu and Rubin 1995).

Scales are known up to a factor alone, as far as scatter goes. Where components have scatters of
their own, the M-step finds that factor too (parameter expansion: Liu, Rubin and Wu 1998; of the
scatter, Kent, Tyler and Vardi 1994): the same maxima, in fewer steps, and the likelihood still
never falls. Tied scatter would need one factor for all degrees of freedom; there it is 1, plain EM.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln, polygamma

from vpem.checks import Floats
from vpem.terms.covariances import Factors, is_tied
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import MissingTerms
from vpem.terms.missing_patterns import marginal_terms
from vpem.terms.missing_statistics import MissingFactors
from vpem.terms.mixture import Mixture
from vpem.terms.statistics import MissingStatistics, Statistics

__all__ = [
    "LEAST_DOF",
    "MOST_DOF",
    "START_DOF",
    "StudentFactors",
    "StudentStatistics",
    "StudentTerms",
    "degrees_of_freedom",
]

LEAST_DOF = 1.0
"""Tails of a Cauchy: with heavier ones a few equal rows can have a likelihood beyond all bounds
(Fernandez and Steel 1999)."""

MOST_DOF = 1e4
"""As good as a Gaussian: densities differ from its by about ``(delta^2 - ...) / 4 MOST_DOF``."""

START_DOF = 10.0

Table = NDArray[np.float64]


def degrees_of_freedom(gaps: Table) -> Table:
    """Solve ``log(nu/2) - digamma(nu/2) = gap`` for nu, within the bounds.

    The left side falls from infinity to 0 as nu rises, so that gaps of 0 or less have the largest
    nu. Newton's steps in ``1/(nu/2)`` from Minka's approximation (2002).
    """
    most, least = (np.log(h) - digamma(h) for h in (MOST_DOF / 2, LEAST_DOF / 2))
    gaps = np.clip(gaps, most, least)
    half = (3 - gaps + np.sqrt(np.square(gaps - 3) + 24 * gaps)) / (12 * gaps)
    for _ in range(5):
        slope = 1 / half - polygamma(1, half)
        half = half / (1 + (np.log(half) - digamma(half) - gaps) / (half * slope))
    return np.clip(2 * half, LEAST_DOF, MOST_DOF)


@dataclass(frozen=True)
class StudentFactors:
    """What the E-step needs of locations, scatters and degrees of freedom.

    Attributes
    ----------
    gaussian : Factors
        Of the Gaussian mixture with these means and covariances.
    dof : ndarray of shape (K, B)
        Degrees of freedom.
    """

    gaussian: Factors
    dof: Table


@dataclass
class StudentStatistics:
    """Expected statistics of every hub, summed over rows; g are responsibilities.

    Attributes
    ----------
    counts : ndarray of shape (R, K)
        Sum of g.
    moments : Statistics
        Of a Gaussian, by ``g u``.
    there, scaled, gaps : ndarray of shape (B, K)
        Sums of ``g``, ``g u`` and ``g (u - 1 - E log u)`` of rows that have something of a hub.
    seen : ndarray of shape (K, d)
        Sum of g of rows that have a feature, where values are missing and scatter is diagonal.
    """

    counts: Table
    moments: Statistics
    there: Table
    scaled: Table
    gaps: Table
    seen: Table = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def tables(self) -> list[Table]:
        """What is added up besides the moments."""
        return [getattr(self, one.name) for one in fields(self) if one.name != "moments"]

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take."""
        return self.moments.nbytes + sum(table.nbytes for table in self.tables)

    def add(self, other: StudentStatistics, times: float = 1.0) -> None:
        """Add so many times the statistics of other rows about the same shift."""
        self.moments.add(other.moments, times)
        for own, table in zip(self.tables, other.tables, strict=True):
            own += times * table

    def scale(self, factor: float) -> None:
        """Multiply all of it."""
        self.moments.scale(factor)
        for own in self.tables:
            own *= factor


class StudentTerms:
    """Terms, statistics and M-steps of t features, over those of a Gaussian.

    Parameters
    ----------
    inner : FeatureTerms
        Of the same features; `vpem.terms.missing.MissingTerms` where values are missing.
    """

    def __init__(self, inner: FeatureTerms) -> None:
        self.inner = inner
        self._distances: tuple[StudentFactors, slice, Table] | None = None

    # ---- E-step --------------------------------------------------------------------------------

    def prepare(self, mixture: Mixture, dof: Table) -> StudentFactors:
        """Factor every block; dof has shape (K, B)."""
        return StudentFactors(self.inner.prepare(mixture), dof)

    def local(self, factors: StudentFactors, rows: slice) -> Floats:
        """Terms of each hub for these rows, (B, m, K), of `log_constant` as a Gaussian's are.

        ``log|Psi| + (nu + p) log(1 + delta / nu) + p log(nu / 2) + 2 log Gamma(nu / 2)
        - 2 log Gamma((nu + p) / 2)``, which tends to the Gaussian's ``log|Psi| + delta``.
        """
        apart, log_dets = self._apart(factors, rows)
        dof, width = self._dof(factors), self._widths(rows)
        tops = int(self.inner.blocks.widths.max(initial=0)) + 1
        each = np.arange(tops)[:, None, None]
        half = 0.5 * factors.dof.T
        constants = each * np.log(half) + 2 * (gammaln(half) - gammaln(half + 0.5 * each))
        out = np.log1p(apart / dof)
        out *= dof + width[:, :, None]
        out += constants[width, np.arange(len(width))[:, None]]
        out += log_dets
        return out.astype(self.inner.rows.dtype)

    def _dof(self, factors: StudentFactors) -> Table:
        return factors.dof.T[:, None, :]

    def _widths(self, rows: slice) -> NDArray[np.intp]:
        """Features that rows have of each hub, (B, m), or (B, 1) where they have all."""
        blocks, inner = self.inner.blocks, self.inner
        if not isinstance(inner, MissingTerms):
            return blocks.widths[:, None]
        observed = inner.observed[rows]
        own = [observed[:, a:b].sum(axis=1) for a, b in pairwise(blocks.offsets)]
        return np.stack(own).astype(np.intp)

    def _apart(self, factors: StudentFactors, rows: slice) -> tuple[Table, Table]:
        """Mahalanobis distances (B, m, K) of what rows have, and log-determinants of that part."""
        inner, gaussian = self.inner, factors.gaussian
        if isinstance(inner, MissingTerms):
            assert isinstance(gaussian, MissingFactors)
            log_dets = self._log_dets(inner, gaussian, rows)
            distances = inner.local(gaussian, rows).astype(np.float64) - log_dets
            np.maximum(distances, 0.0, out=distances)
        else:
            alone = replace(gaussian, log_dets=np.zeros_like(gaussian.log_dets))
            distances = inner.local(alone, rows).astype(np.float64)
            log_dets = gaussian.log_dets.T[:, None, :].astype(np.float64)
        self._distances = (factors, rows, distances)
        return distances, log_dets

    @staticmethod
    def _log_dets(inner: MissingTerms, gaussian: MissingFactors, rows: slice) -> Table:
        """Log-determinants of the scatter of what rows have: terms of rows at the means."""
        observed = inner.observed[rows]
        nowhere = np.zeros(observed.shape)
        found = marginal_terms(
            nowhere, observed, inner.plan(rows), inner.blocks, np.zeros_like(gaussian.means),
            gaussian.mixture.covariances, gaussian.inverse, gaussian.log_dets, inner.n_threads,
        )  # fmt: skip
        return found.astype(np.float64, copy=False)

    # ---- M-step --------------------------------------------------------------------------------

    def empty(self, centres: Floats, n_roots: int) -> StudentStatistics:
        """Statistics of no rows about centres (K, d)."""
        n_blocks, n_components = self.inner.blocks.n_blocks, len(centres)
        there, scaled, gaps = np.zeros((3, n_blocks, n_components))
        moments = self.inner.empty(centres, n_blocks)
        seen = np.zeros(moments.shifts.shape if self._by_feature else (0, 0))
        counts = np.zeros((n_roots, n_components))
        return StudentStatistics(counts, moments, there, scaled, gaps, seen)

    @property
    def _by_feature(self) -> bool:
        return isinstance(self.inner, MissingTerms) and self.inner.by_responsibilities

    def summarize(
        self,
        statistics: StudentStatistics,
        responsibilities: Floats,
        rows: slice,
        factors: StudentFactors | None,
    ) -> None:
        """Add these rows to the statistics, each hub by its own root's responsibilities.

        ``factors`` are of the parameters by which scales and missing values are expected; at a
        start, where there are none, every scale is 1, and missing values are expected by the
        spread of the data.
        """
        inner, blocks = self.inner, self.inner.blocks
        shape = (blocks.n_blocks, *responsibilities.shape[1:])
        all_of = np.broadcast_to(responsibilities, shape)
        width = self._widths(rows)[:, :, None]
        if factors is None:
            scales, gaps = np.ones((1, 1, 1)), np.zeros((1, 1, 1))
        else:
            kept = self._distances
            found = kept is not None and kept[0] is factors and kept[1] == rows
            apart = kept[2] if found and kept is not None else self._apart(factors, rows)[0]
            degrees = self._dof(factors) + width
            scales = degrees / (self._dof(factors) + apart)
            gaps = scales - 1 - np.log(scales) + (np.log(degrees / 2) - digamma(degrees / 2))
        counted = np.where(width > 0, all_of, 0).astype(np.float64)
        statistics.counts += responsibilities.sum(axis=1, dtype=np.float64)
        statistics.there += counted.sum(axis=1)
        statistics.scaled += (counted * scales).sum(axis=1)
        statistics.gaps += (counted * gaps).sum(axis=1)
        weights = np.ascontiguousarray(all_of * scales, dtype=inner.rows.dtype)
        if isinstance(inner, MissingTerms) and factors is not None:
            varying = np.ascontiguousarray(responsibilities)
            inner.summarize_by(statistics.moments, weights, rows, factors.gaussian, varying)
        else:
            inner.summarize(statistics.moments, weights, rows)
        if self._by_feature:
            assert isinstance(inner, MissingTerms)
            there = inner.observed[rows].astype(np.float64)
            for b, (a, e) in enumerate(pairwise(blocks.offsets)):
                statistics.seen[:, a:e] += counted[b].T @ there[:, a:e]

    def update(self, statistics: StudentStatistics, dof: Table) -> tuple[Mixture, Table]:
        """Locations, scatters and degrees of freedom (K, B) from the statistics.

        ``dof`` are those before, which hubs keep that have next to no rows of a component.
        """
        inner, there = self.inner, statistics.there
        mixture = inner.update(self._as_gaussian(statistics))
        least = inner.least_seen if isinstance(inner, MissingTerms) else 0.0
        kept = (there <= least) | (inner.blocks.widths == 0)[:, None]
        safe = np.where(kept, 1.0, there)
        gaps = statistics.gaps / safe
        if not is_tied(inner.covariance_type):
            mean = np.where(kept, 1.0, statistics.scaled / safe)
            gaps -= mean - 1 - np.log(mean)
        return mixture, np.where(kept.T, dof, degrees_of_freedom(gaps).T)

    def _as_gaussian(self, statistics: StudentStatistics) -> Statistics:
        """Statistics for which a Gaussian's M-step gives the locations and scatters of the t.

        About the new locations, ``first / scaled`` away from the old ones, first moments are 0 and
        second ones the scatter times what it is divided by: the rows of the hub times the factor
        by which their scales are too large, or the rows where scatter is tied.
        """
        inner, blocks, moments = self.inner, self.inner.blocks, statistics.moments
        if isinstance(moments, MissingStatistics):
            scaled = moments.seen if self._by_feature else blocks.of_feature(moments.seen)
            there = statistics.seen if self._by_feature else blocks.of_feature(statistics.there)
        else:
            scaled, there = (blocks.of_feature(n) for n in (statistics.scaled, statistics.there))
        some = scaled > 0
        safe = np.where(some, scaled, 1.0)
        moved = inner.recentred(moments, moments.shifts + np.where(some, moments.first / safe, 0.0))
        moved.first *= there / safe
        moved.counts = statistics.counts
        if not is_tied(inner.covariance_type):
            scaled = np.where(statistics.scaled > 0, statistics.scaled, 1.0)
            inner.scale_hubs(moved.second, statistics.there / scaled)
        if isinstance(moved, MissingStatistics):
            moved.seen = statistics.seen if self._by_feature else statistics.there
        return moved
