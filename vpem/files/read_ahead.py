"""Rows of a file where the kernels want them: the next are read while these are worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.checks import Floats
from vpem.network.partition import Blocks
from vpem.terms.matrix import MemoryRows, arrange_into
from vpem.terms.scaling import Scaling

if TYPE_CHECKING:
    from concurrent.futures import Future

    from vpem.files.matrix import FileMatrix


SETTLED = 3e-3
"""Seconds after which the kernels have their processors."""


class ReadAhead:
    """Loads a run of rows in a thread while another is worked on.

    It begins when the kernels have begun, or at once where somebody waits for it. A thread that
    wakes while those of the kernels do takes the place of one, which then waits beside another for
    as long as the system does not see the processor that is free again: ten milliseconds or more.
    """

    def __init__(self, load: Callable[[slice, Floats], Floats]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._load = load
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="vpem-read")
        self._awaited = Event()
        self._future: Future[Floats] | None = None
        self.run: slice | None = None

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
    """Rows of a file, the next run of which is read while this one is worked on."""

    def __init__(
        self, matrix: FileMatrix, blocks: Blocks, scaling: Scaling, dtype: DTypeLike
    ) -> None:
        self._matrix = matrix
        self._blocks = blocks
        self._scaling = scaling
        self._ahead = ReadAhead(self._load)
        self._held: list[tuple[slice, Floats]] = []
        self._keeps = 1
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
        return pieces(slice(0, self.n_samples), self.step)

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
            self._matrix.note(run.stop)
            held = dict(self._there())
            if following is not None and (following.start, following.stop) not in held:
                self._ahead.begin(following, self._buffer())
        return held[run.start, run.stop][rows.start - run.start : rows.stop - run.start]

    def _there(self) -> Iterator[tuple[tuple[int, int], Floats]]:
        return (((run.start, run.stop), rows) for run, rows in self._held)

    def _fetch(self, run: slice) -> Floats:
        """Take a run that was read ahead, or read it."""
        if (ahead := self._ahead.run) is not None:
            found = self._ahead.end()
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

    def some(self, indices: NDArray[np.intp]) -> MemoryRows | FileRows:
        """Some rows as rows of their own, in memory where they take no more than a read does."""
        found: MemoryRows | FileRows
        if len(indices) <= self.step or (np.diff(indices) <= 0).any():
            found = MemoryRows.of(self.take(indices))
        else:
            chosen = self._matrix.of_rows([indices])
            found = FileRows(chosen, self._blocks, self._scaling, self.dtype)
        if self._keeps > 1:
            found.cut(self.step)
        return found

    def part(self, rows: slice, following: slice | None = None) -> FilePart:
        """A run of rows as rows of their own, counted from 0; which run will be wanted next."""
        return FilePart(self, rows, following)


class FilePart:
    """A run of rows of a file; ``following`` is read ahead when these have been."""

    def __init__(self, whole: FileRows, rows: slice, following: slice | None) -> None:
        self._whole = whole
        self._rows = rows
        self._following = following
        self.n_samples = rows.stop - rows.start
        self.dtype: np.dtype[np.floating] = whole.dtype

    def runs(self) -> Iterator[slice]:
        """Runs of rows that are read from the file at once."""
        return pieces(slice(0, self.n_samples), self._whole.step)

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

    def some(self, indices: NDArray[np.intp]) -> MemoryRows | FileRows:
        """Some rows as rows of their own."""
        return self._whole.some(indices + self._rows.start)

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


def pieces(rows: slice, step: int) -> Iterator[slice]:
    """Cut a run of rows in pieces of ``step``."""
    for start in range(rows.start, rows.stop, step):
        yield _piece_at(rows, step, start)
