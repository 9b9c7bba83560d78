"""Terms of data of several families: a list of parts, one a family, each over all hubs.

For a start's clusters the data are numbers between which distances mean something (`embedded`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.checks import Doubles, Floats, Indices, Mask
from vpem.network.partition import Blocks
from vpem.terms.density import reweighted
from vpem.terms.families.family import Columns, IndependentTerms, PartRows
from vpem.terms.families.kinds import LAWS, Kinds
from vpem.terms.families.located import LocatedTerms
from vpem.terms.families.mixture import MixedMixture, scaling_of
from vpem.terms.features import FeatureTerms
from vpem.terms.rows import (
    Arranges,
    MemoryRows,
    Rows,
    RowTerms,
    Shaped,
    arrange_rows,
    observed_moments,
)
from vpem.terms.statistics import Sums, enough_rows
from vpem.terms.units import Scaling

PartTerms = IndependentTerms | LocatedTerms


class _Embedded(Shaped):
    """Mixed data as a matrix of numbers (M, e), which arranges its own rows.

    In block order, ``widths`` (d,) are numbers that each feature has and ``feature_of`` (e,) the
    feature of each number; ``blocks`` are numbers of each hub.
    """

    def __init__(self, terms: MixedTerms) -> None:
        self.terms, whole = terms, terms.blocks
        self.widths = np.ones(whole.n_features, dtype=np.intp)
        for part, places in zip(terms.parts, terms.places, strict=True):
            self.widths[places] = np.maximum(part.features.n_levels, 1)
        self.feature_of = np.repeat(np.arange(len(self.widths)), self.widths)
        self.ends = np.concatenate([[0], np.cumsum(self.widths)]).astype(np.intp)
        bounds = self.ends[whole.offsets]
        columns = tuple(np.arange(begin, end, dtype=np.intp) for begin, end in pairwise(bounds))
        self.blocks = Blocks(columns, whole.roots, whole.agents)
        self.shape, self.dtype = (terms.n_samples, int(self.ends[-1])), terms.dtype

    def __getitem__(self, rows: slice) -> Floats:
        return self.embed(self.terms.parts, rows)

    def embed(self, parts: Sequence[PartTerms], rows: slice) -> Floats:
        """Numbers (m, e) of some rows of these parts."""
        out = np.empty((rows.stop - rows.start, self.shape[1]), dtype=self.dtype)
        for part, places in zip(parts, self.terms.places, strict=True):
            data, begins = part.numbers(rows), self.ends[places]
            if not part.features.n_levels.any():
                out[:, begins] = part.law.near_normal(data)
                continue
            for column, begin, count in zip(
                data.T, begins.tolist(), part.features.n_levels.tolist(), strict=True
            ):
                indicators = out[:, begin : begin + count]
                indicators[...] = column[:, None] == np.arange(count)
                indicators[np.isnan(column)] = np.nan
        return out

    def runs(self) -> Iterator[tuple[int, Floats]]:
        for rows in self.terms.chunks(self.shape[1]):
            yield rows.start, self[rows]

    def arranged(self, blocks: Blocks, scaling: Scaling, dtype: DTypeLike) -> _EmbeddedRows:
        return _EmbeddedRows(self.terms.rows, slice(None), scaling, self.dtype, None, self)


@dataclass
class _EmbeddedRows(PartRows):
    """Rows of `_Embedded` (`vpem.terms.rows.Rows`)."""

    matrix: _Embedded

    def read(self, rows: slice) -> Floats:
        return self._fitted(self.matrix[rows])

    def take(self, indices: Indices) -> Floats:
        parts = [part.take_rows(indices) for part in self.matrix.terms.parts]
        return self._fitted(self.matrix.embed(parts, slice(0, len(indices))))

    def select_rows(self, indices: Indices) -> Rows:
        """Some rows as rows of their own, in memory: those that a start looks at."""
        return MemoryRows.wrap(self.take(indices))

    def slice_rows(self, rows: slice, following: slice | None = None) -> Rows:
        """A run of rows as rows of their own, in memory."""
        return MemoryRows.wrap(self.read(rows))


@dataclass(frozen=True)
class MixedFactors:
    """What the E-step needs of every part."""

    parts: tuple[Any, ...]  # of each family
    n_components: int
    failed: NDArray[np.uint8]  # (n_copies, B), 1: unusable


@dataclass
class MixedStatistics(Sums):
    """Sufficient statistics of every part."""

    counts: Doubles  # (R, K) n_k, as each root finds it
    parts: tuple[Any, ...]  # of each family
    shifts: Floats  # (K, d) of locations, in block order


class MixedTerms(RowTerms):
    """Local terms of data whose features are of several families.

    A hub's term is the sum of those of its families: within a component they are independent. Other
    parameters are as for `vpem.terms.features.FeatureTerms`.
    """

    doubt = 0.1
    """EM never leaves a probability of 0, which clusters without a level would begin with."""
    tells_expected = is_gaussian = False
    looks_at_gaps = True
    by_responsibilities = False
    """Parts may expect what is missing, or what cannot be seen, by the parameters of the time."""

    def __init__(
        self,
        X: Floats | Arranges,  # (M, d); NaN: missing; categories as codes
        blocks: Blocks,
        covariance_type: str,  # of families with scatter
        *,
        kinds: Kinds,
        misses: bool = False,  # values are missing, of any process
        scale: str = "none",  # of families with locations: "none", "standard"
        row_weights: Doubles | None = None,
        reg_covar: float | str = "auto",
        n_threads: int = 1,
        dtype: DTypeLike = np.float64,
        skip_negligible: bool = True,
    ) -> None:
        precision: np.dtype[np.floating] = np.empty(0, dtype).dtype
        rows = arrange_rows(X, blocks, Scaling.none(blocks.n_features), X.dtype)
        super().__init__(rows, blocks, covariance_type, row_weights, n_threads, precision)
        self.kinds, self.misses, self.dtype = kinds, misses, precision
        self.scale, self.floor, self.skips_negligible = scale, reg_covar, skip_negligible
        self.parts: list[PartTerms] = []
        self._measured: FeatureTerms | None = None
        self.places: list[Indices] = []
        for family, features in kinds.split(blocks).items():
            law = LAWS[family]
            columns = Columns(X, self.rows, features, blocks, law.change)
            self.parts.append(law.terms(law, columns, features, self))
            self.places.append(blocks.position[features.ordered])
        self.scaling = scaling_of([p.features for p in self.parts], [p.scaling for p in self.parts])
        """Units of fitting, of each feature as the user numbers them."""
        self.reg_covar = np.zeros(blocks.n_features)
        for part, places in zip(self.parts, self.places, strict=True):
            self.reg_covar[places] = part.reg_covar

    def constants(self) -> Doubles:
        """What each hub here has of `log_constant`, (B,): nothing, it is in the terms."""
        return np.zeros(self.blocks.n_blocks)

    def slice_rows(self, rows: slice, following: slice | None = None) -> Self:
        chosen = super().slice_rows(rows, following)
        chosen.parts = [part.take_rows(rows, following) for part in self.parts]
        chosen._measured = None
        return chosen

    def select_rows(self, rows: Indices, row_weights: Doubles | None = None) -> Self:
        chosen = super().select_rows(rows, row_weights)
        chosen.parts = [part.take_rows(rows, weights=row_weights) for part in self.parts]
        chosen._measured = None
        return chosen

    # ---- E-step --------------------------------------------------------------------------------

    def prepare(self, mixture: MixedMixture) -> MixedFactors:
        """Make what the E-step needs of every part, and remember it for the M-step."""
        prepared = tuple(
            terms.prepare(part) for terms, part in zip(self.parts, mixture.parts, strict=True)
        )
        copies = 1 if mixture.is_tied else mixture.n_components
        failed = np.zeros((copies, self.blocks.n_blocks), dtype=np.uint8)
        for _, failed_here in prepared:
            if failed_here is not None:
                failed |= failed_here
        ready = tuple(one for one, _ in prepared)
        return MixedFactors(ready, mixture.n_components, failed)

    def local(self, factors: MixedFactors, rows: slice) -> Floats:
        shape = (self.blocks.n_blocks, rows.stop - rows.start, factors.n_components)
        out = np.zeros(shape, dtype=self.dtype)
        for terms, ready in zip(self.parts, factors.parts, strict=True):
            terms.add_terms(ready, rows, out)
        if self.known is not None:
            self.known.add(out, rows)
        return out

    # ---- M-step --------------------------------------------------------------------------------

    def empty(self, centres: Floats, n_roots: int) -> MixedStatistics:
        counts = np.zeros((n_roots, len(centres)))
        parts = tuple(
            terms.sums.empty(np.ascontiguousarray(centres[:, places]), n_roots)
            for terms, places in zip(self.parts, self.places, strict=True)
        )
        return MixedStatistics(counts, parts, centres)

    def summarize(self, statistics: MixedStatistics, responsibilities: Floats, rows: slice) -> None:
        """Add these rows to the statistics, each hub by its own root's responsibilities."""
        statistics.counts += responsibilities.sum(axis=1, dtype=np.float64)
        for terms, one in zip(self.parts, statistics.parts, strict=True):
            terms.sums.summarize(one, responsibilities, rows)

    def update(self, statistics: MixedStatistics, row: float | None = None) -> MixedMixture:
        """Parameters from statistics, or of those in which `enough` rows count, each this much."""
        counts = statistics.counts
        weights = counts / counts.sum(axis=1, keepdims=True)
        both = zip(self.parts, statistics.parts, strict=True)
        parts = tuple(terms.update(one, weights, row) for terms, one in both)
        return MixedMixture(self.blocks, self.kinds, self.covariance_type, weights, parts)

    def recentred(self, statistics: MixedStatistics, centres: Floats) -> MixedStatistics:
        parts = tuple(
            terms.sums.recentred(one, np.ascontiguousarray(centres[:, places]))
            for terms, one, places in zip(self.parts, statistics.parts, self.places, strict=True)
        )
        return MixedStatistics(statistics.counts.copy(), parts, centres)

    def with_hubs_of(
        self, statistics: MixedStatistics, other: MixedStatistics, hubs: Mask
    ) -> MixedStatistics:
        counts = np.where(hubs[:, None], other.counts, statistics.counts)
        both = zip(self.parts, statistics.parts, other.parts, strict=True)
        parts = tuple(terms.sums.with_hubs_of(one, two, hubs) for terms, one, two in both)
        return MixedStatistics(counts, parts, statistics.shifts)

    def enough(self, counts: Doubles) -> Mask:
        """Whether so many rows a component (R, K) are enough for an M-step, for each root (R,)."""
        suffices: Mask = counts.min(axis=1) >= enough_rows(self.widest)
        return suffices

    def blank(self, n_components: int) -> MixedMixture:
        common = (self.blocks, self.kinds, self.covariance_type, n_components)
        return MixedMixture.blank(*common, self.scaling)

    # ---- starts and repairs ---------------------------------------------------------------------

    def at_rows(self, indices: Indices) -> Doubles:
        """Rows of the data as centres, shape (len(indices), d), in block order and fit units.

        What is missing is as in all rows together.
        """
        values = np.empty((len(indices), self.blocks.n_features))
        for terms, places in zip(self.parts, self.places, strict=True):
            values[:, places] = terms.at_rows(indices)
        return values

    def middle(self, mixture: MixedMixture) -> Doubles:
        """A centre (d,) that is no row: means of numbers, the commonest levels of categories."""
        middle, weights = np.empty(self.blocks.n_features), mixture.weights.mean(axis=0)
        for terms, part, places in zip(self.parts, mixture.parts, self.places, strict=True):
            middle[places] = terms.middle(part, weights)
        return middle

    def start(self, centres: Doubles) -> MixedMixture:
        """Equal weights, and each family's parameters to start from at ``centres`` (K, d)."""
        weights = np.full((1, len(centres)), 1.0 / len(centres))
        parts = tuple(
            terms.start(np.ascontiguousarray(centres[:, places]), weights)
            for terms, places in zip(self.parts, self.places, strict=True)
        )
        return MixedMixture(self.blocks, self.kinds, self.covariance_type, weights, parts)

    def reseeded(
        self, mixture: MixedMixture, component: int, centre: Doubles, weight: float
    ) -> MixedMixture:
        weights = reweighted(mixture.weights, component, weight)
        parts = tuple(
            terms.reseeded(part, component, centre[places])
            for terms, part, places in zip(self.parts, mixture.parts, self.places, strict=True)
        )
        return replace(mixture, weights=weights, parts=parts)

    @property
    def measured(self) -> FeatureTerms:
        """The same rows as numbers, hub by hub, between which distances are taken.

        A category is as many numbers as it has levels, each 1 where that is the level; others are
        one number (`Family.near_normal`). Every feature has variance 1, of a category all its
        numbers together.
        """
        if self._measured is None:
            matrix = _Embedded(self)
            means, deviations = observed_moments(matrix, self.row_weights)
            together = np.sqrt(
                np.bincount(matrix.feature_of, np.square(deviations), len(matrix.widths))
            )
            scaling = Scaling.standardize(means, together[matrix.feature_of])
            measured = FeatureTerms(
                matrix, matrix.blocks, "diag", missing=self.misses, scaling=scaling,
                row_weights=self.row_weights, n_threads=self.n_threads, dtype=self.dtype,
            )  # fmt: skip
            measured.n_features = int(self.add_up(matrix.blocks.widths.astype(np.float64)))
            measured.widest, measured.add_up = self.widest, self.add_up
            self._measured = measured
        return self._measured

    def of_clusters(self, centres: Doubles, n_roots: int) -> MixedStatistics:
        """Statistics of no rows, of as many clusters as centres; nothing is expected of them."""
        for terms in self.parts:
            terms.forget()
        first = self.at_rows(np.zeros(1, dtype=np.intp))
        return self.empty(np.repeat(first, len(centres), axis=0), n_roots)
