"""What a family of densities answers to, whose features are independent within a component.

Parameters and statistics of such a family are tables of K rows: every feature has some cells of
each, side by side in block order. What is done with tables whatever they mean (adding, sending,
keeping, joining) is therefore done once, for all families; a family knows what is in the cells.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.checks import Floats, Indices, Mask
from vpem.network.partition import Blocks

Table = NDArray[np.float64]
Tables = dict[str, Table]
"""Parameters or statistics by name, each of shape (K, C) with C cells in block order."""


@dataclass(frozen=True)
class Features:
    """The features of one family, over all hubs."""

    columns: Indices  # (n,) among all features of the user, ascending
    blocks: Blocks  # each hub's of these n; width 0: none
    n_levels: Indices  # (n,) in block order; 0: no category

    @property
    def n_features(self) -> int:
        """Number of features, n."""
        return self.blocks.n_features

    def cells(self, a_feature: Indices) -> Indices:
        """Feature (in block order) of each cell, (C,), where a feature has so many (n,)."""
        return np.repeat(np.arange(len(a_feature), dtype=np.intp), a_feature)

    @cached_property
    def level_offsets(self) -> Indices:
        """First cell of each feature where each has a cell a level, and the end; (n + 1,)."""
        return np.concatenate([[0], np.cumsum(self.n_levels)]).astype(np.intp)


def where_seen(totals: Table, seen: Table, name: str, pooled: Tables | None) -> Table:
    """Return totals by responsibilities, (K, C); where there are none, the pooled ``name``."""
    some = seen > 0
    averages = np.divide(totals, seen, out=np.zeros_like(totals), where=some)
    return averages if pooled is None else np.where(some, averages, pooled[name])


def row_shares(n_components: int) -> Table:
    """Return what part of a start is the row's own, (K, 1): about half, of each another.

    Of discrete data rows may be equal, and components that start alike would stay alike.
    """
    return 0.45 + 0.1 * (np.arange(n_components)[:, None] + 0.5) / n_components


class Family(ABC):
    """Densities of features that are independent of each other within a component.

    Data come a run of rows at a time, (m, n) in block order, in the user's units; NaN where a value
    is missing, which adds nothing to a term and nothing to statistics. Responsibilities have shape
    (R, m, K) with the weights of rows in them; R is 1 where all hubs share them, else B, and each
    feature takes those of its own hub.
    """

    name: ClassVar[str]
    domains: ClassVar[dict[str, str]]
    """Parameters, and what each may be: "positive", "probability", "simplex" (the cells of a
    feature add up to 1). The first has the expected values, unless a family says otherwise."""
    sums: ClassVar[tuple[str, ...]] = ("seen", "total")
    """Statistics, which are sums over rows: "seen" are responsibilities of rows that have the
    feature, and "total" those times values."""

    def a_feature(self, features: Features) -> dict[str, Indices]:
        """Cells that each feature (n,) has of each parameter, by its name: one, but of levels."""
        return dict.fromkeys(self.domains, np.ones(features.n_features, dtype=np.intp))

    def n_free(self, features: Features) -> int:
        """Free parameters of one component."""
        return len(self.domains) * features.n_features

    @abstractmethod
    def wrong(self, values: Floats) -> Mask:
        """Which values (m,) of a feature, none of them missing, this family cannot have."""

    @abstractmethod
    def ready(self, parameters: Tables, features: Features, dtype: DTypeLike) -> dict[str, Floats]:
        """What kernels take of the parameters: logarithms, constants; finite everywhere."""

    @abstractmethod
    def add_terms(
        self,
        ready: dict[str, Floats],
        features: Features,
        data: Floats,
        out: Floats,
        n_threads: int,
    ) -> None:
        """Add ``-2 log f`` of each hub's features to ``out`` (B, m, K), constants included."""

    def empty(self, features: Features, n_components: int) -> Tables:
        """Statistics of no rows: `sums`, with a cell a feature."""
        return {name: np.zeros((n_components, features.n_features)) for name in self.sums}

    @abstractmethod
    def add_moments(
        self,
        statistics: Tables,
        ready: dict[str, Floats] | None,
        features: Features,
        data: Floats,
        responsibilities: Floats,
        n_threads: int,
    ) -> None:
        """Add some rows to the statistics.

        ``ready`` is made of the parameters that responsibilities were found with, for statistics
        that are expected values under them; None where there were none yet (a start).
        """

    @abstractmethod
    def update(self, statistics: Tables, features: Features, pooled: Tables | None) -> Tables:
        """M-step: parameters from the statistics.

        ``pooled`` (1, C) are those of all rows in one component, which a component has of a feature
        that none of its rows has; None: these are being found, of features that some row has.
        """

    def start_near(self, centres: Table, features: Features, pooled: Tables) -> Tables:
        """Parameters to start from near rows of the data (K, n): between them and the pooled.

        Of other parameters than expected values those of all rows.
        """
        first, *others = self.domains
        repeated = {name: np.repeat(pooled[name], len(centres), axis=0) for name in others}
        share, usual = row_shares(len(centres)), pooled[first]
        between = share * centres + (1 - share) * usual
        return {first: np.where(np.isnan(centres), usual, between), **repeated}

    def means(self, parameters: Tables, features: Features) -> Table:
        """Expected value of each feature in each component (K, n); of a category its mode."""
        return parameters[next(iter(self.domains))]

    @abstractmethod
    def variances(self, parameters: Tables, features: Features) -> Table:
        """Variance of each feature in each component (K, n); of a category that of all levels.

        That is ``1 - sum_l p_l^2``, the variances of zeros and ones that say which level it is.
        """

    def draw(
        self, parameters: Tables, features: Features, labels: Indices, rng: np.random.Generator
    ) -> Table:
        """Draw rows of these components (m,), shape (m, n)."""
        return self.sample({name: table[labels] for name, table in parameters.items()}, rng)

    def sample(self, parameters: Tables, rng: np.random.Generator) -> Table:
        """Draw rows, each by parameters of its own (m, n), of families with one cell a feature."""
        raise NotImplementedError
