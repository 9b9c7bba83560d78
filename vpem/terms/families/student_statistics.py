"""What t features need besides what Gaussian ones do: degrees of freedom, terms, statistics."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from vpem.terms.families.family import Table
from vpem.terms.families.positive import shape_of
from vpem.terms.statistics import Statistics

LEAST_DOF = 1.0
"""Tails of a Cauchy: with heavier ones a few equal rows can have a likelihood beyond all bounds
(Fernandez and Steel 1999)."""

MOST_DOF = 1e4
"""As good as a Gaussian: z standard deviations from the location of a feature log-densities differ
by ``(z^4 - 2 z^2 - 1) / (4 nu)``."""


def degrees_of_freedom(gaps: Table) -> Table:
    """Solve ``log(nu/2) - digamma(nu/2) = gap`` for nu, within the bounds.

    The left side falls from infinity to 0 as nu rises, so that gaps of 0 or less have the largest
    nu.
    """
    return np.clip(2 * shape_of(gaps), LEAST_DOF, MOST_DOF)


def student_terms(
    apart: Table, log_dets: Table, dof: Table, widths: NDArray[np.intp]
) -> NDArray[np.float64]:
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
class StudentStatistics:
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
