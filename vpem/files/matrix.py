"""A matrix in a file, of which no more is in memory than is worked on."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.checks import Floats, available_memory, check_memory
from vpem.errors import FileError, InputError, Setting, VpemWarning
from vpem.files.hdf5 import check_matrix, open_file
from vpem.files.levels import Recoding
from vpem.files.read_ahead import FileRows, ReadAhead, pieces
from vpem.files.row_runs import RowRuns, reads_of
from vpem.files.storage import Inflation
from vpem.files.unpacking import Unpacking
from vpem.network.partition import Blocks
from vpem.terms.matrix import Shaped
from vpem.terms.scaling import Scaling

READ_BYTES = 1 << 26
"""Size of one read from a file."""

LEAST_READ = 1 << 20
"""Reads are not made smaller than this."""


class FileMatrix(Shaped):
    """A matrix in an HDF5 file that is read a run of rows at a time.

    The file stays open until `close`; one read has about ``read_bytes``. ``observer``, which
    matrices of some rows or columns inherit, is told the path and how far a pass over the rows has
    come. VpemWarning if the dataset is stored in chunks that make reading by rows slow.
    """

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
        self._unpacking = Unpacking.of(self._dataset)
        self._opened = self._state()
        self.shape: tuple[int, int] = self._dataset.shape
        stored = self._dataset.dtype
        single = stored.kind == "f" and stored.itemsize <= 4
        self.dtype: np.dtype[np.floating] = np.dtype(np.float32 if single else np.float64)
        self._row_bytes: int = max(1, self.shape[1] * self.dtype.itemsize)
        self.memory_limit: int | None = None
        self.observer: Callable[[str, float], None] | None = None
        self._columns: list[int] | None = None
        self._changes: dict[int, Recoding] = {}
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
        stop, failure = start + len(out), None
        try:
            if out.size:
                self._packed.check(slice(start, stop))
                if self._unpacking is not None:
                    self._unpacking.read_into(out, start)
                else:
                    self._dataset.read_direct(out, np.s_[start:stop])
                for j, change in self._changes.items():
                    out[:, j] = change.of(out[:, j])
        except FileError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            failure = error
        # Of a file that is shorter now HDF5 reads zeros.
        if self._file and self._state() != self._opened:
            raise FileError(f"{self.path} was changed while it was read; run again") from failure
        if failure is not None:
            raise FileError(
                f"{self.path}: rows {start} to {stop} cannot be read; the file is damaged "
                f"({failure})"
            ) from failure

    def _state(self) -> tuple[int, int]:
        """Size of the file that is open, and when it was written to."""
        found = os.fstat(self._file.id.get_vfd_handle())
        return found.st_size, found.st_mtime_ns

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

    def recoded(self, changes: Mapping[int, Recoding]) -> FileMatrix:
        """Return the matrix with other values in some columns (`vpem.files.levels.recoded`)."""
        chosen, columns, done = copy(self), self._columns, dict(self._changes)
        for place, change in changes.items():
            j = place if columns is None else columns[place]
            done[j] = done[j].then(change) if j in done else change
        chosen._changes = done
        return chosen

    def beyond(self, limit: int | None) -> FileMatrix | None:
        """Return the matrix as it is read from disk; None where ``limit`` bytes hold it twice."""
        # Fitting takes a second copy of what is in memory, in the order of the hubs.
        if limit is None or 2 * self.nbytes <= limit:
            return None
        found = self.in_reads_of(self._step(min(READ_BYTES, limit // 8)))
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
        """Yield every run of rows with the number of its first; it is there until the next is."""
        shape = (min(self.step, self.shape[0]), self._dataset.shape[1])
        buffers = [np.empty(shape, dtype=self.dtype) for _ in range(2)]
        runs = pieces(slice(0, self.shape[0]), self.step)
        with ReadAhead(self._fill) as ahead:
            coming = next(runs, None)
            while (run := coming) is not None:
                found = ahead.end() if ahead.run else self._fill(run, buffers[0])
                if (coming := next(runs, None)) is not None:
                    ahead.begin(coming, buffers[found is buffers[0]])
                part = found[: run.stop - run.start]
                yield run.start, part if self._columns is None else part[:, self._columns]
                self.note(run.stop)

    def note(self, stop: int) -> None:
        """Tell the observer, if there is one, how much of the rows a pass has come to."""
        if self.observer is not None:
            self.observer(self.path, stop / self.shape[0])

    def _fill(self, rows: slice, buffer: Floats) -> Floats:
        """Read rows, with all columns, into a buffer that may be longer, which is returned."""
        self.read_into(buffer[: rows.stop - rows.start], rows.start)
        return buffer

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def check_kept_beside(
    X: Floats | FileMatrix, needed: int, what: str, *instead: str | Setting
) -> None:
    """Raise InputError where a fit keeps more bytes beside its data than their memory limit allows.

    ``instead`` says what else can be done, of data with a limit.
    """
    check_memory(needed, what)
    if isinstance(X, FileMatrix):
        limit = available_memory() if X.memory_limit is None else X.memory_limit
        if needed > limit:
            raise InputError(
                f"{what} is kept in memory and takes {needed / 1e6:.4g} MB, but the memory limit "
                f"is {limit / 1e6:.4g} MB; raise it, or ",
                *instead,
            )
