"""Features whose logarithms are Gaussian within a component."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.terms.families.columns import Columns
from vpem.terms.families.family import Features, Table
from vpem.terms.families.located import GaussianLaw, LocatedTerms
from vpem.terms.families.part import How, Part
from vpem.terms.missing import MissingTerms


def _logs(values: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.log(values)
    return found


class LogNormalLaw(GaussianLaw):
    """Log-normal features: the core of a part is that of their logarithms.

    ``log f(x) = log phi(log x) - sum_j log x_j``, phi the Gaussian's density.
    """

    name: ClassVar[str] = "log-normal"
    change = staticmethod(_logs)

    def wrong(self, values: Floats) -> NDArray[np.bool_]:
        """Which values (m,) have no logarithm."""
        return ~(np.isfinite(values) & (values > 0))

    def terms_of(self, part: Part, values: NDArray[np.float64], there: NDArray[np.bool_]) -> Floats:
        """``-2 log f`` (B, m, K) of each hub, of what is there of rows."""
        logs = np.where(there, _logs(values), 0.0)
        terms = super().terms_of(part, logs, there)
        for own, columns in zip(terms, part.features.blocks.features, strict=True):
            own += 2 * logs[:, columns].sum(axis=1, keepdims=True)
        return terms

    def means(self, part: Part) -> Table:
        """Expected values ``exp(mu + s^2 / 2)``, (K, n), of logarithms of variance s^2."""
        found: Table = np.exp(super().means(part) + 0.5 * super().variances(part))
        return found

    def variances(self, part: Part) -> Table:
        """``(exp(s^2) - 1)`` times the squares of the means, (K, n)."""
        found: Table = np.expm1(super().variances(part)) * np.square(self.means(part))
        return found

    def draw(self, part: Part, labels: NDArray[np.intp], rng: np.random.Generator) -> Table:
        """Draw rows of these components, (m, n)."""
        drawn: Table = np.exp(super().draw(part, labels, rng))
        return drawn

    def terms(self, columns: Columns, features: Features, how: How) -> LogNormalTerms:
        """Return the terms of data."""
        return LogNormalTerms(self, columns, features, how)


class LogNormalTerms(LocatedTerms):
    """Rows of log-normal features: the terms of their logarithms, and how dense these lie."""

    def constants(self, rows: slice) -> NDArray[np.float64]:
        """What ``-2 log f`` has whatever the parameters are, (B, m)."""
        inner = self.inner
        scale, shift = inner.scaling.scale[inner.blocks.order], inner.scaling.shift
        logs = inner.rows.read(rows) * scale + shift[inner.blocks.order]
        if isinstance(inner, MissingTerms):
            logs = logs * inner.observed[rows]
        own = [logs[:, a:b].sum(axis=1) for a, b in pairwise(inner.blocks.offsets)]
        found: NDArray[np.float64] = super().constants(rows) + 2 * np.stack(own)
        return found
