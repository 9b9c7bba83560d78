"""Rows of the data where the kernels want them: in memory, or read ahead from a file."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vpem.blocks import Blocks
from vpem.checks import row_blocks
from vpem.errors import FileError, InputError, VpemWarning
from vpem.hdf5 import check_matrix, open_file
from vpem.scaling import Scaling

__all__ = [
    "FileMatrix",
    "FileRows",
    "MemoryRows",
    "Rows",
    "arrange_rows",
    "available_memory",
    "parse_bytes",
]

READ_BYTES = 1 << 26
"""Size of one read from a file."""

LEAST_READ = 1 << 20
"""Reads are not made smaller than this."""

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Rows(Protocol):
    """Rows in block order and in the units and precision of fitting."""

    n_samples: int
    dtype: np.dtype[Any]

    def runs(self) -> Iterator[slice]:
        """Runs of rows that are best read whole, in order."""

    def read(self, rows: slice) -> NDArray[Any]:
        """A run of rows, shape (m, d), C-contiguous."""

    def take(self, indices: NDArray[np.intp]) -> NDArray[Any]:
        """Some rows, shape (len(indices), d)."""


class MemoryRows:
    """Rows of an array.

    Parameters
    ----------
    X : ndarray of shape (M, d)
        In the user's order and units. Used as it is where order, units and precision agree.
    blocks : Blocks
        Order of the features.
    scaling : Scaling
        Units.
    dtype : dtype
        Precision.
    """

    def __init__(self, X: NDArray[Any], blocks: Blocks, scaling: Scaling, dtype: Any) -> None:
        if blocks.in_order and scaling.is_none:
            self._rows = blocks.arrange(X, dtype)
        else:
            self._rows = np.empty(X.shape, dtype=dtype)
            arrange_into(self._rows, X, blocks, scaling)
        self.n_samples = len(X)
        self.dtype = self._rows.dtype

    def runs(self) -> Iterator[slice]:
        """All rows at once."""
        yield slice(0, self.n_samples)

    def read(self, rows: slice) -> NDArray[Any]:
        """A run of rows, shape (m, d), C-contiguous."""
        return self._rows[rows]

    def take(self, indices: NDArray[np.intp]) -> NDArray[Any]:
        """Some rows, shape (len(indices), d)."""
        return self._rows[indices]


class FileMatrix:
    """A matrix in an HDF5 file that is read a run of rows at a time.

    Parameters
    ----------
    path : path
        The file; it stays open until `close`.
    name : str
        Path of the two-dimensional dataset inside.
    read_bytes : int
        Size aimed at for one read.

    Warns
    -----
    VpemWarning
        If the dataset is stored in chunks that make reading by rows slow.
    """

    ndim = 2

    def __init__(
        self, path: str | os.PathLike[str], name: str = "X", read_bytes: int = READ_BYTES
    ) -> None:
        self.path = os.fspath(path)
        self._file = open_file(path)
        try:
            self._dataset = check_matrix(self._file, name)
        except BaseException:
            self._file.close()
            raise
        self.shape: tuple[int, int] = self._dataset.shape
        stored = self._dataset.dtype
        single = stored.kind == "f" and stored.itemsize <= 4
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if single else np.float64)
        row_bytes = max(1, self.shape[1] * self.dtype.itemsize)
        self._columns: list[int] | None = None
        self.chunk_rows = self._dataset.chunks[0] if self._dataset.chunks else 1
        self.step = max(1, max(read_bytes, LEAST_READ) // row_bytes)
        if self.chunk_rows <= self.step:
            self.step -= self.step % self.chunk_rows
        elif self.chunk_rows * row_bytes <= READ_BYTES:
            self.step = self.chunk_rows
        else:
            warnings.warn(
                f"{self.path}: {name} is stored in chunks of {self.chunk_rows} rows, which makes "
                "reading by rows slow; write it anew with 'vpem data repack'",
                VpemWarning,
                stacklevel=2,
            )

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Size in memory, were it read whole."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((stop - start, self._dataset.shape[1]), dtype=self.dtype)
        self.read_into(out, start)
        return out if self._columns is None else out[:, self._columns]

    def read_into(self, out: NDArray[Any], start: int) -> None:
        """Fill ``out``, shape (m, columns stored), with the rows from ``start`` on."""
        stop = start + len(out)
        try:
            if out.size:
                self._dataset.read_direct(out, np.s_[start:stop])
        except (OSError, RuntimeError, ValueError) as error:
            raise FileError(
                f"{self.path}: rows {start} to {stop} cannot be read; the file is damaged ({error})"
            ) from error

    @property
    def is_whole(self) -> bool:
        """Whether no columns were selected."""
        return self._columns is None

    def select(self, columns: Sequence[int]) -> FileMatrix:
        """Return the matrix of these columns, in this order."""
        chosen = copy(self)
        chosen._columns = list(columns)
        chosen.shape = (self.shape[0], len(chosen._columns))
        return chosen

    def take(self, indices: NDArray[np.intp]) -> NDArray[Any]:
        """Some rows, shape (len(indices), d)."""
        return np.concatenate([self[int(row) : int(row) + 1] for row in indices])

    def runs(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield every run of rows with the number of its first."""
        for start in range(0, self.shape[0], self.step):
            yield start, self[start : start + self.step]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class FileRows:
    """Rows of a file, the next run of which is read while this one is worked on.

    Parameters
    ----------
    matrix : FileMatrix
        The file.
    blocks, scaling, dtype
        As for `MemoryRows`.
    """

    def __init__(self, matrix: FileMatrix, blocks: Blocks, scaling: Scaling, dtype: Any) -> None:
        self._matrix = matrix
        self._blocks = blocks
        self._scaling = scaling
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="vpem-read")
        self._run: tuple[int, NDArray[Any]] | None = None
        self._next: tuple[int, Future[NDArray[Any]]] | None = None
        self.n_samples = len(matrix)
        self.dtype = np.dtype(dtype)
        self._step = matrix.step
        self._n_runs = -(-self.n_samples // self._step)
        as_stored = blocks.in_order and scaling.is_none and matrix.dtype == self.dtype
        self._is_direct = as_stored and matrix.is_whole
        # Pages once touched are used again: new ones cost as much as reading does.
        shape = (min(self._step, self.n_samples), matrix.shape[1])
        self._free = [np.empty(shape, dtype=self.dtype) for _ in range(2)]

    def runs(self) -> Iterator[slice]:
        """Runs of rows that are read from the file at once."""
        for run in range(self._n_runs):
            yield slice(run * self._step, min((run + 1) * self._step, self.n_samples))

    def _load(self, run: int, buffer: NDArray[Any]) -> NDArray[Any]:
        start = run * self._step
        out = buffer[: min(self._step, self.n_samples - start)]
        if self._is_direct:
            self._matrix.read_into(out, start)
        else:
            data = self._matrix[start : start + len(out)]
            arrange_into(out, data, self._blocks, self._scaling)
        return buffer

    def read(self, rows: slice) -> NDArray[Any]:
        """Rows of one run, shape (m, d), C-contiguous; the run after it is read meanwhile.

        They are there until rows of another run are asked for.
        """
        number = rows.start // self._step
        if self._run is None or self._run[0] != number:
            if self._run is not None:
                self._free.append(self._run[1])
                self._run = None
            if self._next is not None:
                ahead, future = self._next
                self._next = None
                found = future.result()
                if ahead == number:
                    self._run = (number, found)
                else:
                    self._free.append(found)
            if self._run is None:
                self._run = (number, self._load(number, self._free.pop()))
            # After the last run the first comes again, for the next sweep.
            following = (number + 1) % self._n_runs
            if following != number:
                future = self._reader.submit(self._load, following, self._free.pop())
                self._next = (following, future)
        first = number * self._step
        return self._run[1][rows.start - first : rows.stop - first]

    def take(self, indices: NDArray[np.intp]) -> NDArray[Any]:
        """Some rows, shape (len(indices), d)."""
        return self._blocks.arrange(self._scaling.apply(self._matrix.take(indices)), self.dtype)


def arrange_into(out: NDArray[Any], X: NDArray[Any], blocks: Blocks, scaling: Scaling) -> None:
    """Write rows in block order and fit units, a cache of them at a time."""
    for start, part in row_blocks(X):
        scaled = scaling.apply(part)
        ordered = scaled if blocks.in_order else scaled[:, blocks.order]
        out[start : start + len(part)] = ordered


def arrange_rows(X: Any, blocks: Blocks, scaling: Scaling, dtype: Any) -> Rows:
    """Rows in block order and fit units, of an array or of a `FileMatrix`."""
    kind = FileRows if isinstance(X, FileMatrix) else MemoryRows
    return kind(X, blocks, scaling, dtype)


def available_memory() -> int:
    """Bytes of memory that this process may hope for: half of what the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def parse_bytes(text: str) -> int:
    """Read a size such as 600MB, 2G or 1048576.

    Raises
    ------
    InputError
        If it is no positive size.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, flags=re.IGNORECASE)
    size = int(float(found[1]) * UNITS[found[2].upper()]) if found else 0
    if size < 1:
        raise InputError(f"a size must be a number of bytes such as 600MB or 2G, got {text!r}")
    return size
