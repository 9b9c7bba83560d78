"""Features that are multivariate t within a component and hub.

A t is a Gaussian whose scatter is divided by a scale of each row's own, ``u ~ Gamma(nu/2, nu/2)``:
``x | u ~ N(mu, Psi / u)``. So a hub's term follows from the Mahalanobis distance ``delta`` that a
Gaussian's has, and the M-step takes the moments of a Gaussian of rows that weigh ``E[u | x] = (nu +
p) / (nu + delta)``, p the features that the row has of the hub (Lange, Little and Taylor 1989; Peel
and McLachlan 2000; values missing: Liu and Rubin 1995).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Floats, Indices, Mask
from vpem.terms.families.counts import shape_of
from vpem.terms.families.family import Features, Part, Table, Tables
from vpem.terms.families.located import GaussianLaw, LocatedTerms
from vpem.terms.mixture import Factors, Mixture
from vpem.terms.statistics import Statistics, Sums, enough_rows

LEAST_DOF = 1.0
"""Tails of a Cauchy: with heavier ones a few equal rows can have a likelihood beyond all bounds
(Fernandez and Steel 1999)."""

MOST_DOF = 1e4
"""As good as a Gaussian: z standard deviations from the location of a feature log-densities differ
by ``(z^4 - 2 z^2 - 1) / (4 nu)``."""

START_DOF = 10.0
"""Of components before their first M-step."""

LIGHTER = 4.0
"""Degrees of freedom from which on variances are reported as they are."""


def degrees_of_freedom(gaps: Table) -> Table:
    """Solve ``log(nu/2) - digamma(nu/2) = gap`` for nu, within the bounds.

    The left side falls from infinity to 0 as nu rises, so that gaps of 0 or less have the largest
    nu.
    """
    return np.clip(2 * shape_of(gaps), LEAST_DOF, MOST_DOF)


def student_terms(apart: Table, log_dets: Table, dof: Table, widths: Indices) -> Doubles:
    """``-2 log f`` of each hub (B, m, K), but for what a Gaussian's has besides.

    ``log|Psi| + (nu + p) log(1 + delta / nu) + p log(nu / 2) + 2 log Gamma(nu / 2)
    - 2 log Gamma((nu + p) / 2)``, which tends to the Gaussian's ``log|Psi| + delta``: delta are
    Mahalanobis distances (B, m, K) of what rows have, nu (K, B) degrees of freedom, p (B, 1 or m)
    the features that rows have of each hub.
    """
    from scipy.special import gammaln

    half = 0.5 * dof.T
    each = 0.5 * np.arange(int(widths.max(initial=0)) + 1)[:, None, None]
    constants = 2 * (each * np.log(half) + gammaln(half) - gammaln(half + each))
    out = np.log1p(apart / dof.T[:, None, :])
    out *= dof.T[:, None, :] + widths[:, :, None]
    out += constants[widths, np.arange(len(widths))[:, None]]
    out += log_dets
    return out


@dataclass
class StudentStatistics(Sums):
    """Expected statistics of every hub, summed over rows; g are responsibilities.

    ``there`` and ``gaps`` are sums of ``g`` and ``g (u - 1 - E log u)`` of rows that have something
    of a hub; ``seen`` that of g of rows that have a feature, where values are missing and scatter
    is diagonal.
    """

    counts: Table  # (R, K) sum of g
    moments: Statistics  # of a Gaussian, by ``g u``
    there: Table  # (B, K)
    gaps: Table  # (B, K)
    seen: Table = field(default_factory=lambda: np.zeros((0, 0)))


@dataclass(frozen=True)
class StudentFactors:
    """What the E-step needs of locations, scatters and degrees of freedom."""

    gaussian: Factors  # by these means and covariances
    dof: Table  # (K, B)


class StudentTerms(LocatedTerms):
    """Rows of t features: their terms, statistics and M-steps, over those of a Gaussian."""

    latest: StudentFactors | None = None
    _distances: tuple[StudentFactors, slice, Table] | None = None

    @property
    def sums(self) -> Self:
        return self

    def forget(self) -> None:
        super().forget()
        self.latest = None

    # ---- E-step --------------------------------------------------------------------------------

    def prepare(self, part: Part) -> tuple[Any, NDArray[np.uint8]]:
        gaussian = self.inner.prepare(part.core)
        self.latest = StudentFactors(gaussian, dof_of(part))
        return self.latest, gaussian.failed

    def add_terms(self, ready: StudentFactors, rows: slice, out: Floats) -> None:
        apart, log_dets = self._apart(ready, rows)
        terms = student_terms(apart, log_dets, ready.dof, self.inner.widths_of(rows))
        terms += self.constants(rows)[:, :, None]
        out += terms.astype(out.dtype, copy=False)

    def _apart(self, factors: StudentFactors, rows: slice) -> tuple[Table, Table]:
        """Mahalanobis distances (B, m, K) of what rows have, and log-determinants of that part."""
        inner, gaussian = self.inner, factors.gaussian
        if inner.gaps is None:
            alone = replace(gaussian, log_dets=np.zeros_like(gaussian.log_dets))
            distances = inner.local(alone, rows).astype(np.float64)
            log_dets = gaussian.log_dets.T[:, None, :].astype(np.float64)
        else:
            # Log-determinants of the scatter of what rows have: terms of rows at the means.
            centred = replace(gaussian, means=np.zeros_like(gaussian.means))
            nowhere = np.zeros(inner.gaps.observed[rows].shape)
            at_means = inner.gaps.terms(nowhere, centred, rows, inner.n_threads)
            log_dets = at_means.astype(np.float64, copy=False)
            distances = inner.local(gaussian, rows).astype(np.float64) - log_dets
            np.maximum(distances, 0.0, out=distances)
        self._distances = (factors, rows, distances)
        return distances, log_dets

    # ---- M-step --------------------------------------------------------------------------------

    def empty(self, centres: Floats, n_roots: int) -> StudentStatistics:
        n_blocks, n_components = self.inner.blocks.n_blocks, len(centres)
        there, gaps = np.zeros((2, n_blocks, n_components))
        moments = self.inner.empty(centres, n_blocks)
        seen = np.zeros(moments.shifts.shape if self.by_feature else (0, 0))
        counts = np.zeros((n_roots, n_components))
        return StudentStatistics(counts, moments, there, gaps, seen)

    def summarize(
        self, statistics: StudentStatistics, responsibilities: Floats, rows: slice
    ) -> None:
        """Add these rows to the statistics, each hub by its own root's responsibilities.

        At a start, where there are no parameters to expect them by, every scale is 1.
        """
        from scipy.special import digamma

        inner, blocks, factors = self.inner, self.inner.blocks, self.latest
        shape = (blocks.n_blocks, *responsibilities.shape[1:])
        all_of = np.broadcast_to(responsibilities, shape)
        width = inner.widths_of(rows)[:, :, None]
        if factors is None:
            scales, gaps = np.ones((1, 1, 1)), np.zeros((1, 1, 1))
        else:
            saved = self._distances
            is_saved = saved is not None and saved[0] is factors and saved[1] == rows
            apart = saved[2] if is_saved and saved is not None else self._apart(factors, rows)[0]
            degrees = factors.dof.T[:, None, :] + width
            scales = degrees / (factors.dof.T[:, None, :] + apart)
            gaps = scales - 1 - np.log(scales) + (np.log(degrees / 2) - digamma(degrees / 2))
        counted = np.where(width > 0, all_of, 0).astype(np.float64)
        statistics.counts += responsibilities.sum(axis=1, dtype=np.float64)
        statistics.there += counted.sum(axis=1)
        statistics.gaps += (counted * gaps).sum(axis=1)
        weights = np.ascontiguousarray(all_of * scales, dtype=inner.rows.dtype)
        if factors is None:
            inner.summarize(statistics.moments, weights, rows)
        else:
            inner.summarize_by(
                statistics.moments, weights, rows, factors.gaussian, responsibilities
            )
        if self.by_feature and (observed := inner.there(rows)) is not None:
            there = observed.astype(np.float64)
            for b, (a, e) in enumerate(pairwise(blocks.offsets)):
                statistics.seen[:, a:e] += counted[b].T @ there[:, a:e]

    def update(
        self, statistics: StudentStatistics, weights: Table, row: float | None = None
    ) -> Part:
        """M-step: locations, scatters, and degrees of freedom (K, B).

        Locations are means by the scales, and scatter is about these, but divided by the rows. Hubs
        that have next to no rows of a component keep its degrees of freedom.
        """
        inner, blocks, moments = self.inner, self.inner.blocks, statistics.moments
        seen = statistics.seen if self.by_feature else blocks.of_feature(statistics.there)
        scaled = moments.per_feature(blocks)
        # Statistics of a Gaussian: about locations first moments are 0 of however many rows.
        some = scaled > 0
        safe = np.where(some, scaled, 1.0)
        moved = inner.recentred(moments, moments.shifts + np.where(some, moments.first / safe, 0.0))
        moved.first *= seen / safe
        moved.counts = statistics.counts
        if moved.seen is not None:
            moved.seen = statistics.seen if self.by_feature else statistics.there
        core, there = replace(inner.update(moved, row), weights=weights), statistics.there
        if self.latest is None:
            return self._part(core)
        least = inner.least_seen if row is None else row * enough_rows(blocks.widths[:, None])
        stays = (there <= least) | (blocks.widths == 0)[:, None]
        dof = degrees_of_freedom(statistics.gaps / np.where(stays, 1.0, there))
        return self._part(core, np.where(stays.T, self.latest.dof, dof.T))

    def recentred(self, statistics: StudentStatistics, centres: Floats) -> StudentStatistics:
        moments = self.inner.recentred(statistics.moments, centres)
        names = ("counts", "there", "gaps", "seen")
        copies = {name: getattr(statistics, name).copy() for name in names}
        return replace(statistics, moments=moments, **copies)

    def with_hubs_of(
        self, statistics: StudentStatistics, other: StudentStatistics, hubs: Mask
    ) -> StudentStatistics:
        moments = self.inner.with_hubs_of(statistics.moments, other.moments, hubs)
        counts, there, gaps = (
            np.where(hubs[:, None], getattr(other, name), getattr(statistics, name))
            for name in ("counts", "there", "gaps")
        )
        seen = statistics.seen
        if self.by_feature:
            seen = np.where(hubs[self.inner.blocks.block_of], other.seen, seen)
        return StudentStatistics(counts, moments, there, gaps, seen)

    def _part(self, core: Mixture, dof: Table | None = None) -> Part:
        if dof is None:
            dof = np.full((core.n_components, self.features.blocks.n_blocks), START_DOF)
        tables = {"dof": np.ascontiguousarray(dof[:, self.features.blocks.widths > 0])}
        return Part(self.law, self.features, tables, core)

    # ---- starts and repairs ---------------------------------------------------------------------

    def reseeded(self, part: Part, component: int, centre: Table) -> Part:
        dof = dof_of(part)
        dof[component] = START_DOF
        return self._part(super().reseeded(part, component, centre).core, dof)

    def take_rows(
        self, rows: slice | Indices, following: slice | None = None, weights: Doubles | None = None
    ) -> Self:
        chosen = super().take_rows(rows, following, weights)
        chosen._distances = None
        return chosen


class StudentLaw(GaussianLaw):
    """Multivariate t features: scatter in place of covariance, and degrees of freedom a hub.

    Locations are the expected values where these exist (nu > 1).
    """

    name = "t"
    domains: ClassVar[dict[str, str]] = {"dof": "positive"}  # degrees of freedom
    each = "hub"
    terms = StudentTerms

    def tables_over(self, part: Part, features: Features, origin: Indices) -> Tables:
        """Degrees of freedom of other hubs: the mean over their features."""
        blocks = features.blocks
        of_feature = dof_of(part)[:, part.features.blocks.block_of[origin]]
        runs = (blocks.offsets[b : b + 2] for b in np.flatnonzero(blocks.widths))
        means = [of_feature[:, begin:end].mean(axis=1) for begin, end in runs]
        return {"dof": np.array(means).reshape(len(means), len(of_feature)).T}

    def terms_of(self, part: Part, values: Doubles, there: Mask) -> Floats:
        core, blocks = part.core, part.features.blocks
        gaussian = super().terms_of(part, values, there)
        # Of rows at the locations the same without the distance.
        centred = replace(part, core=replace(core, means=np.zeros_like(core.means)))
        at_centre = np.broadcast_to(core.scaling.shift, values.shape)
        log_dets = super().terms_of(centred, at_centre, there)
        apart = np.maximum(gaussian - log_dets, 0.0).astype(np.float64)
        counts = [there[:, columns].sum(axis=1, dtype=np.intp) for columns in blocks.features]
        widths = np.stack(counts) if counts else np.zeros((0, len(there)), dtype=np.intp)
        return student_terms(apart, log_dets.astype(np.float64), dof_of(part), widths)

    def variances(self, part: Part) -> Table:
        """Variances ``Psi nu / (nu - 2)``, (K, n); with nu below `LIGHTER` as if it were that.

        Tails of 2 degrees of freedom have none, and of little more one that says nothing of where
        most rows are.
        """
        dof = np.maximum(dof_of(part), LIGHTER)
        blocks = part.features.blocks
        factors = (dof / (dof - 2))[:, blocks.block_of]
        variances: Table = super().variances(part) * factors
        return variances

    def covariances(self, part: Part) -> Doubles:
        """Scatters, as much wider as `variances` are."""
        variances = self.variances(part)[:, part.features.blocks.position]
        joint = super().covariances(part)
        wider = np.sqrt(variances / np.diagonal(joint, axis1=1, axis2=2))
        return joint * wider[:, :, None] * wider[:, None, :]

    def draw(self, part: Part, labels: Indices, rng: np.random.Generator) -> Table:
        """Draw rows of these components, (m, n): Gaussian ones, divided by scales of each hub."""
        core, blocks = part.core, part.features.blocks
        away = core.drawn(labels, rng) - core.assembled_means[labels]
        half = 0.5 * dof_of(part)[labels]
        scales = rng.gamma(half, 1 / half)[:, blocks.block_of[blocks.position]]
        drawn: Table = core.assembled_means[labels] + away / np.sqrt(scales)
        return drawn[:, blocks.order]


def dof_of(part: Part) -> Table:
    """Degrees of freedom (K, B) of all hubs; `START_DOF` of those without such features."""
    filled, dof = part.features.blocks.widths > 0, part.tables["dof"]
    padded = np.full((len(dof), len(filled)), START_DOF)
    padded[:, filled] = dof
    return padded
