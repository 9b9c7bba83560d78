"""Families whose features in a hub are joint, with locations and scatter of six covariance types.

Features, or their logarithms, are Gaussian within a component.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Floats, Indices, Mask
from vpem.network.partition import Blocks
from vpem.terms.families.family import ABOVE_0, Columns, Family, Features, Part, Table
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture, variances_of
from vpem.terms.rows import observed_moments
from vpem.terms.units import Scaling, floors_of, sharing, sum_features

if TYPE_CHECKING:
    from vpem.terms.families.mixed import MixedTerms


class LocatedTerms:
    """Rows of features that are Gaussian, or whose logarithms are: ``inner`` are their terms."""

    def __init__(
        self, law: GaussianLaw, columns: Columns, features: Features, whole: MixedTerms
    ) -> None:
        self.law, self.features = law, features
        misses = any(bool(np.isnan(part).any()) for _, part in columns.runs())
        hubs = sharing(features.blocks, whole.covariance_type, whole.scale)
        if misses:
            scaling = Scaling.standardize(*observed_moments(columns, whole.row_weights), hubs)
        else:
            scaling = Scaling.standard(columns, whole.row_weights, hubs=hubs)
        self.inner: FeatureTerms = FeatureTerms(
            columns, features.blocks, whole.covariance_type, missing=misses, scaling=scaling,
            row_weights=whole.row_weights, reg_covar=floors_of(whole.floor, whole.scale, scaling),
            n_threads=whole.n_threads, dtype=whole.dtype, skip_negligible=whole.skips_negligible,
        )  # fmt: skip
        self.scaling, self.reg_covar = self.inner.scaling, self.inner.reg_covar
        self.by_feature = self.inner.misses and self.inner.by_responsibilities
        """Whether it is counted which features rows have: scatter is diagonal, values missing."""

    @property
    def sums(self) -> Any:
        return self.inner

    def forget(self) -> None:
        self.inner.latest = None

    def prepare(self, part: Part) -> tuple[Any, NDArray[np.uint8]]:
        """Factor every block, and remember them for expected values of the M-step."""
        factors = self.inner.prepare(part.core)
        return factors, factors.failed

    def add_terms(self, ready: Any, rows: slice, out: Floats) -> None:
        out += self.inner.local(ready, rows)
        out += self.constants(rows)[:, :, None]

    def constants(self, rows: slice) -> Doubles:
        """What ``-2 log f`` has whatever the parameters are, (B, m) or (B, 1).

        Of logarithms of the values also how dense these lie.
        """
        inner, there = self.inner, self.inner.there(rows)
        constants = _constants(there, inner.blocks, inner.scaling)
        if self.law.change is None:
            return constants
        scale, shift = inner.scaling.scale[inner.blocks.order], inner.scaling.shift
        logs = inner.rows.read(rows) * scale + shift[inner.blocks.order]
        if there is not None:
            logs = logs * there
        sums = [logs[:, a:b].sum(axis=1) for a, b in pairwise(inner.blocks.offsets)]
        return np.asarray(constants + 2 * np.stack(sums))

    def numbers(self, rows: slice) -> Floats:
        data, there = self.inner.rows.read(rows), self.inner.there(rows)
        if there is None:
            return data
        return np.where(there != 0, data, np.nan).astype(data.dtype)

    def at_rows(self, indices: Indices) -> Doubles:
        return self.inner.at_rows(indices)

    def middle(self, part: Part, weights: Doubles) -> Doubles:
        middle: Doubles = weights @ part.core.means
        return middle

    def update(self, statistics: Any, weights: Doubles, row: float | None = None) -> Part:
        return self._part(replace(self.inner.update(statistics, row), weights=weights))

    def _part(self, core: Mixture) -> Part:
        return Part(self.law, self.features, core=core)

    def start(self, centres: Table, weights: Doubles) -> Part:
        """Locations at centres (K, n), every covariance the block's sample one."""
        return self._part(replace(self.inner.start(centres), weights=weights))

    def reseeded(self, part: Part, component: int, centre: Table) -> Part:
        return replace(part, core=self.inner.reseeded(part.core, component, centre, 0.0))

    def take_rows(
        self, rows: slice | Indices, following: slice | None = None, weights: Doubles | None = None
    ) -> Self:
        chosen = copy(self)
        if isinstance(rows, slice):
            chosen.inner = self.inner.slice_rows(rows, following)
        else:
            chosen.inner = self.inner.select_rows(rows, weights)
        return chosen


class GaussianLaw(Family):
    """Gaussian features among those of other families."""

    name = "gaussian"
    has_core = True
    terms = LocatedTerms

    def terms_of(self, part: Part, values: Doubles, there: Mask) -> Floats:
        core: Mixture = part.core
        terms, _ = core.terms_of(values, there)
        inside = core.blocks.arrange(there, np.bool_)
        terms += _constants(inside, core.blocks, core.scaling)[:, :, None]
        return terms

    def means(self, part: Part) -> Table:
        means: Table = part.core.assembled_means[:, part.core.blocks.order]
        return means

    def variances(self, part: Part) -> Table:
        scale, order = part.core.scaling.scale, part.core.blocks.order
        variances: Table = (variances_of(part.core) * np.square(scale))[:, order]
        return variances

    def covariances(self, part: Part) -> Doubles:
        """Covariances (K or 1, n, n) of features, in the order of ``part.features.columns``."""
        assembled: Doubles = part.core.assembled_covariances
        return assembled.reshape(-1, *assembled.shape[-2:])

    def draw(self, part: Part, labels: Indices, rng: np.random.Generator) -> Table:
        drawn: Table = part.core.drawn(labels, rng)[:, part.core.blocks.order]
        return drawn


def _constants(there: NDArray[np.generic] | None, blocks: Blocks, scaling: Scaling) -> Doubles:
    """What ``-2 log f`` of Gaussian features has whatever the parameters are, (B, m).

    ``there`` (m, n) says which values are there, in block order; None: all, (B, 1).
    """
    of_columns = np.log(2 * np.pi) + 2 * np.log(scaling.scale[blocks.order])
    if there is None:
        return sum_features(blocks, of_columns)[:, None]
    constants = np.zeros((blocks.n_blocks, len(there)))
    for one, (begin, end) in zip(constants, pairwise(blocks.offsets.tolist()), strict=True):
        one[...] = there[:, begin:end] @ of_columns[begin:end]
    return constants


def _logs(values: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs: Floats = np.log(values)
    return logs


class LogNormalLaw(GaussianLaw):
    """Log-normal features: the core of a part is that of their logarithms.

    ``log f(x) = log phi(log x) - sum_j log x_j``, phi the Gaussian's density.
    """

    name = "log-normal"
    change = staticmethod(_logs)
    between, values = (ABOVE_0, np.inf), "numbers above 0"

    def terms_of(self, part: Part, values: Doubles, there: Mask) -> Floats:
        logs = np.where(there, _logs(values), 0.0)
        terms = super().terms_of(part, logs, there)
        for term, columns in zip(terms, part.features.blocks.features, strict=True):
            term += 2 * logs[:, columns].sum(axis=1, keepdims=True)
        return terms

    def means(self, part: Part) -> Table:
        """Expected values ``exp(mu + s^2 / 2)``, (K, n), of logarithms of variance s^2."""
        means: Table = np.exp(super().means(part) + 0.5 * super().variances(part))
        return means

    def variances(self, part: Part) -> Table:
        """``(exp(s^2) - 1)`` times the squares of the means, (K, n)."""
        variances: Table = np.expm1(super().variances(part)) * np.square(self.means(part))
        return variances

    def covariances(self, part: Part) -> Doubles:
        """``(exp(s_ij) - 1)`` times the products of the means."""
        means = self.means(part)[:, part.features.blocks.position]
        joint: Doubles = np.expm1(super().covariances(part))
        return joint * means[:, :, None] * means[:, None, :]

    def draw(self, part: Part, labels: Indices, rng: np.random.Generator) -> Table:
        drawn: Table = np.exp(super().draw(part, labels, rng))
        return drawn
