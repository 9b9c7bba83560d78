"""A matrix in a file, of which no more is in memory than is worked on.

The next rows are read while the kernels work on these. Rows that a process gets piece by piece are
kept in a temporary file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Self, TypeGuard

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.checks import Floats, available_memory, check_memory
from vpem.errors import FileError, InputError, Setting, VpemWarning
from vpem.files.hdf5 import check_matrix, open_file
from vpem.files.levels import Recoding
from vpem.files.storage import Inflation, Unpacking
from vpem.files.temporaries import temporary_beside
from vpem.network.partition import Blocks
from vpem.terms.rows import MemoryRows, Shaped, arrange_into
from vpem.terms.units import Scaling

if TYPE_CHECKING:
    from concurrent.futures import Future


SETTLED = 3e-3
"""Seconds after which the kernels have their processors."""


class ReadAhead:
    """Loads a run of rows in a thread while another is worked on.

    It begins when the kernels have begun, or at once where a caller waits for it. A thread that
    wakes while those of the kernels do takes the place of one, which then waits beside another for
    as long as the system does not see the processor that is free again: ten milliseconds or more.
    Reads are of ``step`` rows, of which so many runs stay as it ``keeps``.
    """

    def __init__(self, load: Callable[[slice, Floats], Floats], step: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._load = load
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="vpem-read")
        self._awaited = Event()
        self._future: Future[Floats] | None = None
        self.run: slice | None = None
        self.held: dict[tuple[int, int], Floats] = {}
        """Runs that are there, by first row and end, the oldest first."""
        self.free: list[Floats] = []
        """Pages once touched are used again: new ones cost as much as reading does."""
        self.step, self.keeps = step, 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._awaited.set()
        self._reader.shutdown()

    def begin(self, run: slice, buffer: Floats) -> None:
        """Have a run loaded into a buffer."""
        self._awaited.clear()
        self.run = run
        self._future = self._reader.submit(self._soon, run, buffer)

    def end(self) -> Floats:
        """Return what `begin` was called with last, loaded."""
        assert self._future is not None
        future, self._future, self.run = self._future, None, None
        self._awaited.set()
        return future.result()

    def _soon(self, run: slice, buffer: Floats) -> Floats:
        self._awaited.wait(SETTLED)
        return self._load(run, buffer)


class FileRows:
    """Rows of a file, the next run of which is read while this one is worked on.

    They may be a run of the rows, counted from 0; ``following`` is read ahead when these have been.
    """

    def __init__(
        self, matrix: FileMatrix, blocks: Blocks, scaling: Scaling, dtype: DTypeLike
    ) -> None:
        self._matrix = matrix
        self._blocks = blocks
        self._scaling = scaling
        self.n_samples = len(matrix)
        self.dtype: np.dtype[np.floating] = np.empty(0, dtype).dtype
        as_stored = blocks.in_order and scaling.is_none and matrix.dtype == self.dtype
        self._is_direct = as_stored and matrix.is_whole
        self._rows = slice(0, self.n_samples)
        # After the last run the first comes again, for the next sweep.
        self._following: slice | None = self._rows
        self._reads = ReadAhead(self._load, matrix.step)

    @property
    def step(self) -> int:
        """Rows that are read at a time, on which processes agree (`vpem.fits.parts`)."""
        return self._reads.step

    def cut(self, step: int) -> None:
        """Read so many rows at a time, of which those before stay: sums under way look back."""
        self._reads.step, self._reads.keeps = step, 2
        self._reads.free.clear()

    def runs(self) -> Iterator[slice]:
        """Runs of rows that are read from the file at once."""
        return pieces(slice(0, self.n_samples), self._reads.step)

    def _load(self, rows: slice, buffer: Floats) -> Floats:
        out = buffer[: rows.stop - rows.start]
        if self._is_direct:
            self._matrix.read_into(out, rows.start)
        else:
            arrange_into(out, self._matrix[rows], self._blocks, self._scaling)
        return buffer

    def read(self, rows: slice) -> Floats:
        """Rows of one run (m, d), valid until another is read; the next is read meanwhile."""
        reads, first = self._reads, self._rows.start + rows.start
        begin = first - (first - self._rows.start) % reads.step
        run = _piece_at(self._rows, reads.step, begin)
        key = run.start, run.stop
        if key not in reads.held:
            while len(reads.held) >= reads.keeps:
                reads.free.append(reads.held.pop(next(iter(reads.held))))
            ahead = reads.run
            loaded = None if ahead is None else reads.end()
            if loaded is None or ahead != run:
                if loaded is not None:
                    reads.free.append(loaded)
                loaded = self._load(run, self._buffer())
            reads.held[key] = loaded
            self._matrix.report_progress(run.stop)
            following = self._following
            if run.stop < self._rows.stop:
                following = _piece_at(self._rows, reads.step, run.stop)
            elif following is not None:
                following = _piece_at(following, reads.step, following.start)
            if following is not None and (following.start, following.stop) not in reads.held:
                reads.begin(following, self._buffer())
        return reads.held[key][first - run.start : first - run.start + rows.stop - rows.start]

    def _buffer(self) -> Floats:
        if self._reads.free:
            return self._reads.free.pop()
        shape = (min(self._reads.step, len(self._matrix)), self._matrix.shape[1])
        return np.empty(shape, dtype=self.dtype)

    def take(self, indices: NDArray[np.intp]) -> Floats:
        """Some rows, shape (len(indices), d)."""
        values = self._matrix.take(indices + self._rows.start)
        return self._blocks.arrange(self._scaling.apply(values), self.dtype)

    def select_rows(self, indices: NDArray[np.intp]) -> MemoryRows | FileRows:
        """Some rows as rows of their own, in memory where they take no more than a read does."""
        rows: MemoryRows | FileRows
        if len(indices) <= self._reads.step or (np.diff(indices) <= 0).any():
            rows = MemoryRows.wrap(self.take(indices))
        else:
            chosen = self._matrix.of_rows([indices + self._rows.start])
            rows = FileRows(chosen, self._blocks, self._scaling, self.dtype)
        if self._reads.keeps > 1:
            rows.cut(self._reads.step)
        return rows

    def slice_rows(self, rows: slice, following: slice | None = None) -> FileRows:
        """A run of rows as rows of their own, counted from 0; which run will be read next."""
        part, first = copy(self), self._rows.start
        part._rows = slice(first + rows.start, first + rows.stop)
        part._following = None
        if following is not None:
            part._following = slice(first + following.start, first + following.stop)
        part.n_samples = rows.stop - rows.start
        return part


def _piece_at(rows: slice, step: int, start: int) -> slice:
    return slice(start, min(start + step, rows.stop))


def pieces(rows: slice, step: int) -> Iterator[slice]:
    """Cut a run of rows in pieces of ``step``."""
    for start in range(rows.start, rows.stop, step):
        yield _piece_at(rows, step, start)


WASTE = 8
"""At most this many rows are read for each that is needed."""

Indices = NDArray[np.intp]


Read = tuple[slice, Indices | None, slice | Indices]
"""Rows of a file that are read at once, the needed ones (m,) among them (None: all), and where
these go."""


class RowRuns:
    """Rows of a file, run after run, counted from 0; those of each group (m_i,) increase."""

    def __init__(self, rows: Sequence[Indices]) -> None:
        begins, lengths = [np.empty(0, dtype=np.intp)], [np.empty(0, dtype=np.intp)]
        for group in rows:
            if len(group):
                breaks = np.flatnonzero(np.diff(group) != 1) + 1
                ends = np.concatenate([[0], breaks, [len(group)]])
                begins.append(group[ends[:-1]])
                lengths.append(np.diff(ends))
        self._begins = np.concatenate(begins)
        self._ends = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.intp)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def file_rows(self, indices: Indices) -> Indices:
        """Return the rows of the file that have these numbers here."""
        run = np.searchsorted(self._ends, indices, side="right") - 1
        rows: Indices = self._begins[run] + indices - self._ends[run]
        return rows

    def reads(self, start: int, stop: int, most: int) -> Iterator[Read]:
        """Yield reads of at most ``most`` rows that fetch the rows from ``start`` to ``stop``."""
        first = int(np.searchsorted(self._ends, start, side="right")) - 1
        last = int(np.searchsorted(self._ends, stop, side="left"))
        mean = (stop - start) / max(last - first, 1)
        if mean < WASTE:
            yield from reads_of(self.file_rows(np.arange(start, stop)), most)
            return
        for run in range(first, last):
            begin, end = max(start, int(self._ends[run])), min(stop, int(self._ends[run + 1]))
            shift = int(self._begins[run]) - int(self._ends[run])
            places = slice(begin - start, end - start)
            yield slice(begin + shift, end + shift), None, places


def reads_of(rows: Indices, most: int) -> Iterator[Read]:
    """Yield reads of at most ``most`` rows of a file that fetch some, in whatever order."""
    order = np.argsort(rows, kind="stable")
    inside = rows[order]
    # Apart where more would be read along than `WASTE` rows for each that is needed.
    breaks = np.flatnonzero(np.diff(inside) > WASTE) + 1
    for begin, end in zip([0, *breaks], [*breaks, len(rows)], strict=True):
        while begin < end:
            low = int(inside[begin])
            cut = min(end, int(np.searchsorted(inside, low + most, side="left")))
            needed = inside[begin:cut]
            yield slice(low, int(needed[-1]) + 1), needed - low, order[begin:cut]
            begin = cut


READ_BYTES = 1 << 26  # size of one read from a file
LEAST_READ = 1 << 20  # reads are not made smaller than this


class FileMatrix(Shaped):
    """A matrix in an HDF5 file that is read a run of rows at a time (of tables: `TableMatrix`).

    The file stays open until `close`; one read has about ``read_bytes``. ``observer``, which
    matrices of some rows or columns inherit, is given the path and how far a pass over the rows has
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
        self._unpacking = Unpacking.for_dataset(self._dataset)
        self._opened = self._state()
        stored, chunks = self._dataset.dtype, self._dataset.chunks
        single = stored.kind == "f" and stored.itemsize <= 4
        self._begin(self._dataset.shape, single, chunks[0] if chunks else 1, read_bytes)
        if self.chunk_rows > self.step:
            warnings.warn(
                f"{self.path}: {name} is stored in chunks of {self.chunk_rows} rows, which makes "
                "reading by rows slow; rewrite it with 'vpem data repack'",
                VpemWarning,
                stacklevel=2,
            )

    def _begin(
        self, shape: tuple[int, int], single: bool, chunk_rows: int, read_bytes: int
    ) -> None:
        """Begin with all of a matrix, of single precision or double."""
        self.shape, self._width = shape, shape[1]
        self.dtype: np.dtype[np.floating] = np.dtype(np.float32 if single else np.float64)
        self._row_bytes: int = max(1, shape[1] * self.dtype.itemsize)
        self.memory_limit: int | None = None
        self.observer: Callable[[str, float], None] | None = None
        self._columns: list[int] | None = None
        self._changes: dict[int, Recoding] = {}
        self._rows: RowRuns | None = None
        self.chunk_rows = chunk_rows
        self.step = self._step(read_bytes)

    def _step(self, read_bytes: int) -> int:
        """Rows of a read of this size: whole chunks where they are not too large."""
        step = max(1, max(read_bytes, LEAST_READ) // self._row_bytes)
        chunk = self.chunk_rows
        if chunk <= step:
            return step - step % chunk
        return chunk if chunk * self._row_bytes <= READ_BYTES else step

    def __getitem__(self, rows: slice) -> Floats:
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((stop - start, self._width), dtype=self.dtype)
        self.read_into(out, start)
        return out if self._columns is None else out[:, self._columns]

    def read_into(self, out: Floats, start: int) -> None:
        """Fill ``out``, shape (m, columns stored), with the rows from ``start`` on."""
        if self._rows is None:
            self._read_recoded(out, start)
            return
        for rows, chosen, places in self._rows.reads(start, start + len(out), self.step):
            if chosen is None:
                self._read_recoded(out[places], rows.start)
            else:
                out[places] = self._stored(rows)[chosen]

    def _stored(self, rows: slice) -> Floats:
        out = np.empty((rows.stop - rows.start, self._width), dtype=self.dtype)
        self._read_recoded(out, rows.start)
        return out

    def _read_recoded(self, out: Floats, start: int) -> None:
        self._read(out, start)
        for j, change in self._changes.items():
            out[:, j] = change.recode(out[:, j])

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
        status = os.fstat(self._file.id.get_vfd_handle())
        return status.st_size, status.st_mtime_ns

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
        matrix = self.in_reads_of(self._step(min(READ_BYTES, limit // 8)))
        matrix.memory_limit = limit
        return matrix

    def in_precision(self, dtype: np.dtype[np.floating]) -> FileMatrix:
        """Return the same matrix, read as numbers of this precision."""
        chosen = copy(self)
        chosen.dtype = dtype
        return chosen

    def of_rows(self, groups: Sequence[NDArray[np.intp]]) -> FileMatrix:
        """Return the matrix of some rows, increasing in each group, group by group."""
        chosen = copy(self)
        rows = [group if self._rows is None else self._rows.file_rows(group) for group in groups]
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
        out = np.empty((len(rows), self._width), dtype=self.dtype)
        rows = rows if self._rows is None else self._rows.file_rows(rows)
        for run, chosen, places in reads_of(rows, self.step):
            out[places] = self._stored(run)[chosen]
        return out if self._columns is None else out[:, self._columns]

    def runs(self) -> Iterator[tuple[int, Floats]]:
        """Yield every run of rows with the number of its first; it is there until the next is."""
        shape = (min(self.step, self.shape[0]), self._width)
        buffers = [np.empty(shape, dtype=self.dtype) for _ in range(2)]
        runs = pieces(slice(0, self.shape[0]), self.step)
        with ReadAhead(self._fill, self.step) as ahead:
            coming = next(runs, None)
            while (run := coming) is not None:
                buffer = ahead.end() if ahead.run else self._fill(run, buffers[0])
                if (coming := next(runs, None)) is not None:
                    ahead.begin(coming, buffers[buffer is buffers[0]])
                part = buffer[: run.stop - run.start]
                yield run.start, part if self._columns is None else part[:, self._columns]
                self.report_progress(run.stop)

    def report_progress(self, stop: int) -> None:
        """Tell the observer, if there is one, how much of the rows a pass has come to."""
        if self.observer is not None:
            self.observer(self.path, stop / self.shape[0])

    def _fill(self, rows: slice, buffer: Floats) -> Floats:
        self.read_into(buffer[: rows.stop - rows.start], rows.start)
        return buffer

    def close(self) -> None:
        self._file.close()


def is_stored(X: object) -> TypeGuard[FileMatrix]:
    """Whether a matrix is read from a file, a run of rows at a time."""
    return isinstance(X, FileMatrix)


def select_rows(X: Any, groups: Sequence[NDArray[np.intp]]) -> Any:
    """Return some rows of a matrix, increasing in each group, group by group; of a file unread."""
    if is_stored(X):
        return X.of_rows(groups)
    return np.asarray(X)[np.concatenate([np.empty(0, dtype=np.intp), *groups])]


def select_columns(X: Floats | FileMatrix, columns: Sequence[int]) -> Floats | FileMatrix:
    """Return the matrix of these columns, in this order."""
    if list(columns) == list(range(X.shape[1])):
        return X
    return X.select(columns) if is_stored(X) else np.ascontiguousarray(np.asarray(X)[:, columns])


def check_kept_beside(
    X: Floats | FileMatrix, needed: int, what: str, *instead: str | Setting
) -> None:
    """Raise InputError where a fit keeps more beside data than the limit; ``instead``: remedies."""
    check_memory(needed, what)
    if is_stored(X):
        limit = available_memory() if X.memory_limit is None else X.memory_limit
        if needed > limit:
            raise InputError(
                f"{what} is kept in memory and takes {needed / 1e6:.4g} MB, but the memory limit "
                f"is {limit / 1e6:.4g} MB; raise it, or ",
                *instead,
            )


class Spool:
    """A matrix (M, d) that is written run by run, and then read; FileError if there is no room.

    The file lies in the folder for temporary files (``TMPDIR``). It loses its name as soon as it is
    read, so that nothing is left of it however the process ends.
    """

    def __init__(self, shape: tuple[int, int], dtype: np.dtype[np.floating]) -> None:
        import h5py

        folder = Path(tempfile.gettempdir())
        self._name = f"the folder for temporary files, {folder}"
        needed = shape[0] * shape[1] * dtype.itemsize
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise FileError(
                f"{self._name}, has room for {free / 1e9:.4g} GB, but features that travel take "
                f"{needed / 1e9:.4g} GB; name another in the environment variable TMPDIR"
            )
        self._row = 0
        with ExitStack() as stack:
            try:
                self._path = stack.enter_context(temporary_beside(folder / "rows.h5"))
                self._file = stack.enter_context(h5py.File(self._path, "w"))
                self._dataset = self._file.create_dataset("X", shape, dtype, track_times=False)
            except OSError as error:
                raise FileError(f"{self._name}, cannot be written ({error})") from error
            self._stack = stack.pop_all()

    def add(self, rows: Floats) -> None:
        """Write the next rows, shape (m, d)."""
        try:
            self._dataset[self._row : self._row + len(rows)] = rows
        except OSError as error:
            self._stack.close()
            raise FileError(f"{self._name}, cannot be written ({error})") from error
        self._row += len(rows)

    def matrix(self, step: int) -> FileMatrix:
        """Return what was written, to be read so many rows at a time."""
        with self._stack:
            try:
                self._file.close()
            except OSError as error:
                raise FileError(f"{self._name}, cannot be written ({error})") from error
            return FileMatrix(self._path).in_reads_of(step)
