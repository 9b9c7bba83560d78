"""Rows of the data where the kernels want them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Protocol, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.checks import Floats, Matrix, row_blocks
from vpem.network.partition import Blocks
from vpem.terms.scaling import Scaling


class Rows(Protocol):
    """Rows in block order and in the units and precision of fitting."""

    n_samples: int
    dtype: np.dtype[np.floating]

    def runs(self) -> Iterator[slice]:
        """Runs of rows that are best read whole, in order."""

    def read(self, rows: slice) -> Floats:
        """A run of rows, shape (m, d), C-contiguous."""

    def take(self, indices: NDArray[np.intp]) -> Floats:
        """Some rows, shape (len(indices), d)."""

    def some(self, indices: NDArray[np.intp]) -> Rows:
        """Some rows as rows of their own, kept in memory unless they are too many."""

    def part(self, rows: slice, following: slice | None = None) -> Rows:
        """A run of rows as rows of their own, counted from 0; which run will be wanted next."""

    def cut(self, step: int) -> None:
        """Let runs have so many rows, as those of other processes have."""


class Arranges(Matrix, Protocol):
    """A matrix that arranges its own rows, such as `vpem.files.matrix.FileMatrix`."""

    def arranged(self, blocks: Blocks, scaling: Scaling, dtype: DTypeLike) -> Rows:
        """Return the rows in block order, in the units and precision of fitting."""


class Shaped:
    """The shape of a matrix that is read a run of rows at a time."""

    ndim = 2
    shape: tuple[int, int]
    dtype: np.dtype[np.floating]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Size in memory, were it read whole."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize


class MemoryRows:
    """Rows of an array (M, d), in the user's order and units; used as it is where all agrees."""

    _step: int | None = None

    def __init__(self, X: Floats, blocks: Blocks, scaling: Scaling, dtype: DTypeLike) -> None:
        if blocks.in_order and scaling.is_none:
            self._rows = blocks.arrange(X, np.dtype(dtype))
        else:
            self._rows = np.empty(X.shape, dtype=dtype)
            arrange_into(self._rows, X, blocks, scaling)
        self.n_samples = len(X)
        self.dtype = self._rows.dtype

    @classmethod
    def of(cls, rows: Floats) -> Self:
        """Return rows (m, d) that are in block order and in the units and precision of fitting."""
        made = cls.__new__(cls)
        made._rows, made.n_samples, made.dtype = rows, len(rows), rows.dtype
        return made

    def runs(self) -> Iterator[slice]:
        """All rows at once, unless they are cut."""
        step = self._step or max(1, self.n_samples)
        for start in range(0, max(1, self.n_samples), step):
            yield slice(start, min(start + step, self.n_samples))

    def cut(self, step: int) -> None:
        """Let runs have so many rows, as those of other processes have."""
        self._step = step

    def read(self, rows: slice) -> Floats:
        """A run of rows, shape (m, d), C-contiguous."""
        return self._rows[rows]

    def take(self, indices: NDArray[np.intp]) -> Floats:
        """Some rows, shape (len(indices), d)."""
        return self._rows[indices]

    def some(self, indices: NDArray[np.intp]) -> MemoryRows:
        """Some rows as rows of their own."""
        chosen = copy(self)
        chosen._rows = self._rows[indices]
        chosen.n_samples = len(chosen._rows)
        return chosen

    def part(self, rows: slice, following: slice | None = None) -> MemoryRows:
        """A run of rows as rows of their own, counted from 0."""
        chosen = copy(self)
        chosen._rows = self._rows[rows]
        chosen.n_samples = len(chosen._rows)
        return chosen


def arrange_into(out: Floats, X: Floats, blocks: Blocks, scaling: Scaling) -> None:
    """Write rows in block order and fit units, a cache of them at a time."""
    for start, part in row_blocks(X):
        scaled = scaling.apply(part)
        ordered = scaled if blocks.in_order else scaled[:, blocks.order]
        out[start : start + len(part)] = ordered


def arrange_rows(X: Floats | Arranges, blocks: Blocks, scaling: Scaling, dtype: DTypeLike) -> Rows:
    """Rows in block order and fit units, of an array or of what arranges its own rows."""
    if isinstance(X, np.ndarray):
        return MemoryRows(X, blocks, scaling, dtype)
    return X.arranged(blocks, scaling, dtype)
