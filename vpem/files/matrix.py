"""Rows of the data where the kernels want them: in memory, or read ahead from a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.checks import Floats
from vpem.errors import FileError, VpemWarning
from vpem.files.hdf5 import check_matrix, open_file
from vpem.files.row_runs import RowRuns, reads_of
from vpem.files.storage import Inflation
from vpem.network.blocks import Blocks
from vpem.terms.matrix import arrange_into
from vpem.terms.scaling import Scaling

__all__ = ["FileMatrix", "FileRows"]

READ_BYTES = 1 << 26
"""Size of one read from a file."""

LEAST_READ = 1 << 20
"""Reads are not made smaller than this."""


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
            self._packed = Inflation(self._dataset, f"{self.path}: {name}")
        except BaseException:
            self._file.close()
            raise
        self.shape: tuple[int, int] = self._dataset.shape
        stored = self._dataset.dtype
        single = stored.kind == "f" and stored.itemsize <= 4
        self.dtype: np.dtype[np.floating] = np.dtype(np.float32 if single else np.float64)
        self._row_bytes: int = max(1, self.shape[1] * self.dtype.itemsize)
        self.memory_limit: int | None = None
        self._columns: list[int] | None = None
        self._rows: RowRuns | None = None
        self.chunk_rows: int = self._dataset.chunks[0] if self._dataset.chunks else 1
        self.step = self._step(read_bytes)
        if self.chunk_rows > self.step:
            warnings.warn(
                f"{self.path}: {name} is stored in chunks of {self.chunk_rows} rows, which makes "
                "reading by rows slow; write it anew with 'vpem data repack'",
                VpemWarning,
                stacklevel=2,
            )

    def _step(self, read_bytes: int) -> int:
        """Rows of a read of this size: whole chunks where they are not too large."""
        step = max(1, max(read_bytes, LEAST_READ) // self._row_bytes)
        chunk = self.chunk_rows
        if chunk <= step:
            return step - step % chunk
        return chunk if chunk * self._row_bytes <= READ_BYTES else step

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Size in memory, were it read whole."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def __getitem__(self, rows: slice) -> Floats:
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((stop - start, self._dataset.shape[1]), dtype=self.dtype)
        self.read_into(out, start)
        return out if self._columns is None else out[:, self._columns]

    def read_into(self, out: Floats, start: int) -> None:
        """Fill ``out``, shape (m, columns stored), with the rows from ``start`` on."""
        if self._rows is None:
            self._read(out, start)
            return
        for read in self._rows.reads(start, start + len(out), self.step):
            if read.chosen is None:
                self._read(out[read.places], read.rows.start)
            else:
                out[read.places] = self._stored(read.rows)[read.chosen]

    def _stored(self, rows: slice) -> Floats:
        """Rows of the file, with all columns."""
        out = np.empty((rows.stop - rows.start, self._dataset.shape[1]), dtype=self.dtype)
        self._read(out, rows.start)
        return out

    def _read(self, out: Floats, start: int) -> None:
        """Fill ``out`` with the rows of the file from ``start`` on."""
        stop = start + len(out)
        try:
            if out.size:
                self._packed.check(slice(start, stop))
                self._dataset.read_direct(out, np.s_[start:stop])
        except FileError:
            raise
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
        before = self._columns
        chosen._columns = [column if before is None else before[column] for column in columns]
        chosen.shape = (self.shape[0], len(chosen._columns))
        return chosen

    def beyond(self, limit: int | None) -> FileMatrix | None:
        """Return the matrix as it is read from disk; None where memory may hold it twice.

        Parameters
        ----------
        limit : int or None
            How much memory that is, in bytes; None: any.
        """
        # Fitting takes a second copy of what is in memory, in the order of the hubs.
        if limit is None or 2 * self.nbytes <= limit:
            return None
        found = self.in_reads_of(self._step(min(READ_BYTES, limit // 16)))
        found.memory_limit = limit
        return found

    def in_precision(self, dtype: np.dtype[np.floating]) -> FileMatrix:
        """Return the same matrix, read as numbers of this precision."""
        chosen = copy(self)
        chosen.dtype = dtype
        return chosen

    def of_rows(self, groups: Sequence[NDArray[np.intp]]) -> FileMatrix:
        """Return the matrix of some rows, increasing in each group, group by group."""
        chosen = copy(self)
        rows = [group if self._rows is None else self._rows.of(group) for group in groups]
        chosen._rows = RowRuns(rows)
        chosen.shape = (len(chosen._rows), self.shape[1])
        return chosen

    def in_reads_of(self, n_rows: int) -> FileMatrix:
        """Return the same matrix, read so many rows at a time."""
        chosen = copy(self)
        chosen.step = max(1, n_rows)
        return chosen

    def arranged(self, blocks: Blocks, scaling: Scaling, dtype: DTypeLike) -> FileRows:
        """Return the rows in block order, in the units and precision of fitting."""
        return FileRows(self, blocks, scaling, dtype)

    def take(self, indices: NDArray[np.intp]) -> Floats:
        """Some rows, shape (len(indices), d), by few reads where they lie close together."""
        rows = np.asarray(indices, dtype=np.intp)
        found = np.empty((len(rows), self._dataset.shape[1]), dtype=self.dtype)
        for read in reads_of(rows if self._rows is None else self._rows.of(rows), self.step):
            found[read.places] = self._stored(read.rows)[read.chosen]
        return found if self._columns is None else found[:, self._columns]

    def runs(self) -> Iterator[tuple[int, Floats]]:
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

    def __init__(
        self, matrix: FileMatrix, blocks: Blocks, scaling: Scaling, dtype: DTypeLike
    ) -> None:
        self._matrix = matrix
        self._blocks = blocks
        self._scaling = scaling
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="vpem-read")
        self._held: list[tuple[slice, Floats]] = []
        self._keeps = 1
        self._next: tuple[slice, Future[Floats]] | None = None
        self.n_samples = len(matrix)
        self.dtype: np.dtype[np.floating] = np.empty(0, dtype).dtype
        self.step = matrix.step
        as_stored = blocks.in_order and scaling.is_none and matrix.dtype == self.dtype
        self._is_direct = as_stored and matrix.is_whole
        # Pages once touched are used again: new ones cost as much as reading does.
        self._free: list[Floats] = []

    def cut(self, step: int) -> None:
        """Read so many rows at a time, of which those before stay: sums under way look back."""
        self.step, self._keeps = step, 2
        self._free.clear()

    def runs(self) -> Iterator[slice]:
        """Runs of rows that are read from the file at once."""
        return _pieces(slice(0, self.n_samples), self.step)

    def _load(self, rows: slice, buffer: Floats) -> Floats:
        out = buffer[: rows.stop - rows.start]
        if self._is_direct:
            self._matrix.read_into(out, rows.start)
        else:
            arrange_into(out, self._matrix[rows], self._blocks, self._scaling)
        return buffer

    def read(self, rows: slice) -> Floats:
        """Rows of one run, shape (m, d), C-contiguous; the run after it is read meanwhile.

        They are there until rows of another run are asked for.
        """
        whole = slice(0, self.n_samples)
        run = _piece_of(whole, self.step, rows)
        # After the last run the first comes again, for the next sweep.
        return self.read_in(run, rows, _piece_at(whole, self.step, run.stop % self.n_samples))

    def read_in(self, run: slice, rows: slice, following: slice | None) -> Floats:
        """Rows of a run of at most `step` rows, which is read whole; then ``following`` is."""
        held = dict(self._there())
        if (run.start, run.stop) not in held:
            while len(self._held) >= self._keeps:
                self._free.append(self._held.pop(0)[1])
            self._held.append((run, self._fetch(run)))
            held = dict(self._there())
            if following is not None and (following.start, following.stop) not in held:
                future = self._reader.submit(self._load, following, self._buffer())
                self._next = (following, future)
        return held[run.start, run.stop][rows.start - run.start : rows.stop - run.start]

    def _there(self) -> Iterator[tuple[tuple[int, int], Floats]]:
        return (((run.start, run.stop), rows) for run, rows in self._held)

    def _fetch(self, run: slice) -> Floats:
        """Take a run that was read ahead, or read it."""
        if self._next is not None:
            ahead, future = self._next
            self._next = None
            found = future.result()
            if ahead == run:
                return found
            self._free.append(found)
        return self._load(run, self._buffer())

    def _buffer(self) -> Floats:
        """Return room for a run."""
        if self._free:
            return self._free.pop()
        shape = (min(self.step, self.n_samples), self._matrix.shape[1])
        return np.empty(shape, dtype=self.dtype)

    def take(self, indices: NDArray[np.intp]) -> Floats:
        """Some rows, shape (len(indices), d)."""
        return self._blocks.arrange(self._scaling.apply(self._matrix.take(indices)), self.dtype)

    def part(self, rows: slice, following: slice | None = None) -> FilePart:
        """A run of rows as rows of their own, counted from 0; which run will be wanted next."""
        return FilePart(self, rows, following)


class FilePart:
    """A run of rows of a file, of which nothing else is read.

    Parameters
    ----------
    whole : FileRows
        All rows.
    rows : slice
        Which of them.
    following : slice, optional
        What is read ahead when these have been.
    """

    def __init__(self, whole: FileRows, rows: slice, following: slice | None) -> None:
        self._whole = whole
        self._rows = rows
        self._following = following
        self.n_samples = rows.stop - rows.start
        self.dtype: np.dtype[np.floating] = whole.dtype

    def runs(self) -> Iterator[slice]:
        """Runs of rows that are read from the file at once."""
        return _pieces(slice(0, self.n_samples), self._whole.step)

    def read(self, rows: slice) -> Floats:
        """Rows of one run, shape (m, d), C-contiguous."""
        step, first = self._whole.step, self._rows.start
        wanted = slice(first + rows.start, first + rows.stop)
        run = _piece_of(self._rows, step, wanted)
        if run.stop < self._rows.stop:
            following: slice | None = _piece_at(self._rows, step, run.stop)
        elif self._following is not None:
            following = _piece_at(self._following, step, self._following.start)
        else:
            following = None
        return self._whole.read_in(run, wanted, following)

    def take(self, indices: NDArray[np.intp]) -> Floats:
        """Some rows, shape (len(indices), d)."""
        return self._whole.take(indices + self._rows.start)

    def cut(self, step: int) -> None:
        """Read so many rows at a time."""
        self._whole.cut(step)

    def part(self, rows: slice, following: slice | None = None) -> FilePart:
        """A run of these rows as rows of their own."""
        first = self._rows.start
        inner = slice(first + rows.start, first + rows.stop)
        if following is not None:
            following = slice(first + following.start, first + following.stop)
        return FilePart(self._whole, inner, following)


def _piece_at(rows: slice, step: int, start: int) -> slice:
    return slice(start, min(start + step, rows.stop))


def _piece_of(rows: slice, step: int, wanted: slice) -> slice:
    """Which piece of ``rows`` holds the rows wanted."""
    return _piece_at(rows, step, wanted.start - (wanted.start - rows.start) % step)


def _pieces(rows: slice, step: int) -> Iterator[slice]:
    """Cut a run of rows in pieces of ``step``."""
    for start in range(rows.start, rows.stop, step):
        yield _piece_at(rows, step, start)
