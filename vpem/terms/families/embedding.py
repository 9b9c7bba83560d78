"""Mixed data as numbers between which distances mean something, for a start's clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.checks import Floats
from vpem.network.partition import Blocks
from vpem.terms.features import FeatureTerms
from vpem.terms.matrix import MemoryRows, Rows, Shaped
from vpem.terms.missing import terms_of
from vpem.terms.missing_patterns import observed_moments
from vpem.terms.scaling import Scaling

if TYPE_CHECKING:
    from vpem.terms.families.mixed import MixedTerms
    from vpem.terms.families.part import PartTerms


NEAR_NORMAL: dict[str, Callable[[Floats], Floats]] = {
    "poisson": np.log1p, "negative-binomial": np.log1p, "exponential": np.cbrt, "gamma": np.cbrt,
}  # fmt: skip
"""By which values of a family lie about as far apart as those of a normal one: counts on a log
scale, and positive ones by the cube root of Wilson and Hilferty, which 0 has too."""


def embedding(terms: MixedTerms) -> FeatureTerms:
    """Return terms of the same rows as numbers, hub by hub, of which distances are asked.

    A category is as many numbers as it has levels, each 1 where that is the level; others are one
    number (`NEAR_NORMAL`). Every feature has variance 1, of a category all its numbers together.
    """
    matrix = _Embedded(terms)
    means, deviations = observed_moments(matrix, terms.row_weights)
    together = np.sqrt(np.bincount(matrix.feature_of, np.square(deviations), len(matrix.widths)))
    scaling = Scaling.by(means, together[matrix.feature_of])
    made = terms_of(
        matrix, matrix.blocks, "diag", missing=terms.misses, scaling=scaling,
        row_weights=terms.row_weights, n_threads=terms.n_threads, dtype=terms.dtype,
    )  # fmt: skip
    made.n_features = int(terms.add_up(matrix.blocks.widths.astype(np.float64)))
    made.widest, made.add_up = terms.widest, terms.add_up
    return made


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
        own = tuple(np.arange(begin, end, dtype=np.intp) for begin, end in pairwise(bounds))
        self.blocks = Blocks(own, whole.roots, whole.agents)
        self.shape, self.dtype = (terms.n_samples, int(self.ends[-1])), terms.dtype

    def __getitem__(self, rows: slice) -> Floats:
        return self.of(self.terms.parts, rows)

    def of(self, parts: Sequence[PartTerms], rows: slice) -> Floats:
        """Numbers (m, e) of some rows of these parts."""
        out = np.empty((rows.stop - rows.start, self.shape[1]), dtype=self.dtype)
        for part, places in zip(parts, self.terms.places, strict=True):
            data = part.embedded(rows)
            begins = self.ends[places]
            if not part.features.n_levels.any():
                out[:, begins] = NEAR_NORMAL.get(part.family, np.asarray)(data)
                continue
            for column, begin, count in zip(
                data.T, begins.tolist(), part.features.n_levels.tolist(), strict=True
            ):
                own = out[:, begin : begin + count]
                own[...] = column[:, None] == np.arange(count)
                own[np.isnan(column)] = np.nan
        return out

    def runs(self) -> Iterator[tuple[int, Floats]]:
        """Yield runs of rows with the number of the first of each."""
        for rows in self.terms.chunks(self.shape[1]):
            yield rows.start, self[rows]

    def arranged(self, blocks: Blocks, scaling: Scaling, dtype: DTypeLike) -> _EmbeddedRows:
        """Return the rows, which are in block order, in the units of fitting."""
        return _EmbeddedRows(self, scaling)


class _EmbeddedRows:
    """Rows of `_Embedded` (`vpem.terms.matrix.Rows`)."""

    def __init__(self, matrix: _Embedded, scaling: Scaling) -> None:
        self._matrix, self._scaling = matrix, scaling
        self.n_samples, self.dtype = len(matrix), matrix.dtype

    def _fitted(self, values: Floats) -> Floats:
        return np.ascontiguousarray(self._scaling.apply(values), dtype=self.dtype)

    def runs(self) -> Iterator[slice]:
        """Runs of rows that are best read whole, in order."""
        return self._matrix.terms.rows.runs()

    def read(self, rows: slice) -> Floats:
        """A run of rows, shape (m, e), C-contiguous."""
        return self._fitted(self._matrix[rows])

    def take(self, indices: NDArray[np.intp]) -> Floats:
        """Some rows, shape (len(indices), e)."""
        parts = [part.some(indices, None) for part in self._matrix.terms.parts]
        return self._fitted(self._matrix.of(parts, slice(0, len(indices))))

    def some(self, indices: NDArray[np.intp]) -> Rows:
        """Some rows as rows of their own, in memory: those that a start looks at."""
        return MemoryRows.of(self.take(indices))

    def part(self, rows: slice, following: slice | None = None) -> Rows:
        """A run of rows as rows of their own, in memory."""
        return MemoryRows.of(self.read(rows))

    def cut(self, step: int) -> None:
        """Let runs have so many rows, as those of other processes have."""
        self._matrix.terms.rows.cut(step)
