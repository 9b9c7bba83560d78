"""Columns of the data that one family has, read through the rows that all families share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.checks import Floats, Matrix, row_blocks
from vpem.network.partition import Blocks
from vpem.terms.families.family import Features
from vpem.terms.matrix import Rows, Shaped
from vpem.terms.scaling import Scaling

Change = Callable[[Floats], Floats]
"""What becomes of values before they are scaled."""


class Columns(Shaped):
    """The columns of one family as a matrix of their own, which arranges its own rows.

    ``X`` (M, d) has all columns, in the user's order and units, ``rows`` the same in block order;
    ``change`` makes something else of values: their logarithms, say.
    """

    def __init__(
        self, X: Matrix, rows: Rows, features: Features, blocks: Blocks, change: Change | None
    ) -> None:
        self._X, self._rows, self._columns, self._change = X, rows, features.columns, change
        self._places = blocks.position[features.columns[features.blocks.order]]
        self.shape = (len(X), features.n_features)
        self.dtype = rows.dtype

    def __getitem__(self, rows: slice) -> Floats:
        return self._own(self._X[rows])

    def _own(self, part: Floats) -> Floats:
        values = part[:, self._columns]
        return values if self._change is None else self._change(values)

    def runs(self) -> Iterator[tuple[int, Floats]]:
        """Yield runs of rows with the number of the first of each."""
        for start, part in row_blocks(self._X):
            yield start, self._own(part)

    def arranged(self, blocks: Blocks, scaling: Scaling, dtype: DTypeLike) -> PartRows:
        """Return the rows in block order, in the units and precision of fitting."""
        precision: np.dtype[np.floating] = np.empty(0, dtype).dtype
        units = None if scaling.is_none else scaling.of(blocks.order)
        return PartRows(self._rows, self._places, units, precision, self._change)


@dataclass
class PartRows:
    """Rows of one family's columns (`vpem.terms.matrix.Rows`)."""

    whole: Rows  # all, in block order and the user's units
    places: NDArray[np.intp]  # (n,) of the columns
    units: Scaling | None  # of fitting, for these columns
    dtype: np.dtype[np.floating]
    change: Change | None  # of values, before
    n_samples: int = field(init=False)

    def __post_init__(self) -> None:
        self.n_samples = self.whole.n_samples

    def runs(self) -> Iterator[slice]:
        """Runs of rows that are best read whole, in order."""
        return self.whole.runs()

    def cut(self, step: int) -> None:
        """Let runs have so many rows, as those of other processes have."""
        self.whole.cut(step)

    def read(self, rows: slice) -> Floats:
        """A run of rows, shape (m, n), C-contiguous."""
        return self._fitted(self.whole.read(rows))

    def take(self, indices: NDArray[np.intp]) -> Floats:
        """Some rows, shape (len(indices), n)."""
        return self._fitted(self.whole.take(indices))

    def _fitted(self, rows: Floats) -> Floats:
        values = rows[:, self.places]
        if self.change is not None:
            values = self.change(values)
        if self.units is not None:
            values = self.units.apply(values)
        return np.ascontiguousarray(values, dtype=self.dtype)

    def some(self, indices: NDArray[np.intp]) -> PartRows:
        """Some rows as rows of their own."""
        return replace(self, whole=self.whole.some(indices))

    def part(self, rows: slice, following: slice | None = None) -> PartRows:
        """A run of rows as rows of their own, counted from 0."""
        return replace(self, whole=self.whole.part(rows, following))
