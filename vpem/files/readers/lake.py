"""Tables of one or more files whose rows follow one another: in memory, or read part by part.

A part that is read at once is a row group of Parquet, or a whole file of another format. Columns
are found by name in every file; their types may differ as numbers do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from threading import Lock

import numpy as np
import pyarrow as pa

from vpem.checks import Floats, check_memory, extremes
from vpem.errors import FileError, InputError, Setting
from vpem.files.arrow import decoded, fill_column, is_numeric, is_text, plain_kind
from vpem.files.datasets import Dataset
from vpem.files.lakes import Stored
from vpem.files.matrix import FileMatrix
from vpem.files.opening import damaged
from vpem.files.readers.frames import LazyFrame, ReadOptions, choose, refuse_large, refuse_marks
from vpem.files.readers.tabular import FAILURES, dataset_of, noted_in, nothing_left

HEAD = 100_000
"""Rows by which columns are judged that stay on disk."""

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

Columns = list[pa.ChunkedArray]


def dataset_of_parts(
    files: Sequence[Stored], frames: Sequence[LazyFrame], source: str, options: ReadOptions
) -> Dataset:
    """Return a dataset of files whose rows follow one another, on disk beyond the memory limit."""
    limit, chosen = options.memory_limit, (options.table.features, options.columns)
    joined = _JoinedFrames(source, with_folders(files, frames), chosen != (None, None))
    frame = joined.whole
    if joined.unlike:
        choice = choose(frame.names, options, source)
        joined.refuse_unlike([*choice.features, *choice.taken])
    known = frames[0].parts is not None and len({*frame.names}) == len(frame.names)
    n_bytes = sum(file.state()[0] for file in files) // 2
    # A number may take two bytes of text.
    if limit is not None and (known or (len(files) > 1 and 16 * n_bytes > limit)):
        choice = choose(frame.names, options, source)
        numbers = [n for n in choice.features if is_numeric(plain_kind(frame.kinds[n]))]
        n_bytes = sum(one.n_rows for one in frames) * len(numbers) * 8
    if limit is None or 2 * n_bytes <= limit:
        return dataset_of(frame, options)
    for file in () if known else files:  # each is read at once
        refuse_large(file.state()[0] // (2 if len(files) == 1 else 1), limit, file.source)
    return _on_disk(joined, options, limit)


def frame_of_parts(files: Sequence[Stored], frames: Sequence[LazyFrame], source: str) -> LazyFrame:
    """Return the frame of files whose rows follow one another; of a single one its own."""
    return _JoinedFrames(source, with_folders(files, frames), lenient=False).whole


def with_folders(files: Sequence[Stored], frames: Sequence[LazyFrame]) -> Sequence[LazyFrame]:
    """Add a column for each key of folders, unless files have one of that name."""
    every = [file.folders for file in files]
    for file, own in zip(files, every, strict=True):
        for key in own.keys() ^ every[0].keys():
            raise InputError(
                f"of {file.source} and {files[0].source} only one is in a folder {key}=...; file "
                "all of a table alike"
            )
    for key in (one for one in every[0] if one not in frames[0].names):
        values = pa.array([None if own[key] == NO_VALUE else own[key] for own in every])
        for kind in (pa.int64(), pa.float64()):
            if pa.types.is_string(values.type):
                with suppress(pa.ArrowInvalid):
                    numbers = values.cast(kind)
                    # Folders 1 and 01 are two.
                    if len(numbers.unique()) == len(values.unique()):
                        values = numbers
        frames = [_with_value(*one, key) for one in zip(frames, values, strict=True)]
    return frames


def _with_value(frame: LazyFrame, value: pa.Scalar, name: str) -> LazyFrame:
    """Return a frame with a column of one value behind its own."""
    place = len(frame.names)

    def own(columns: Sequence[int]) -> list[int]:
        return [n for n in columns if n != place] or [0]

    def added(columns: Sequence[int], arrays: Columns) -> Columns:
        if place not in columns:
            return arrays
        column = pa.chunked_array([pa.repeat(value, len(arrays[0]))], type=value.type)
        return [*arrays[: len(columns) - 1], column]

    def read(columns: Sequence[int], as_text: Sequence[int]) -> Columns:
        return added(columns, frame.read(own(columns), [n for n in as_text if n != place]))

    def pieces(columns: Sequence[int], first: int) -> Iterator[Columns]:
        return (added(columns, piece) for piece in frame.pieces_from(own(columns), first))

    return replace(
        frame, names=(*frame.names, name), kinds=(*frame.kinds, value.type), read=read,
        pieces=pieces, folders=frame.folders | {place}, ranged=None,
    )  # fmt: skip


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that has the values of both, None where there is none."""
    if pa.null() in (one, other):
        return other if one == pa.null() else one
    kinds = [plain_kind(one), plain_kind(other)]
    for kind, beside in (kinds, kinds[::-1]):
        if pa.types.is_decimal(kind) and pa.types.is_integer(beside):
            return pa.float64()  # no decimal has all of them
    both = [pa.schema([("x", kind)]) for kind in kinds]
    with suppress(pa.ArrowException):
        return pa.unify_schemas(both, promote_options="permissive").field("x").type
    return None


def unlike(frame: LazyFrame, what: str, other: LazyFrame, has: object = "") -> InputError:
    """Return the error of a file that is not as another of its table."""
    return InputError(
        f"{frame.source} has {what} {other.source} has{f' {has}' if has else ''}; write it alike "
        "in all files of a table, name columns that all have alike with ", Setting("features"),
        ", or add ", Setting("parties", True), " if each file is one party's",
    )  # fmt: skip


UNLIKE = pa.sparse_union([])
"""Type of a column that is not alike in all files: no feature, nor looked at for anything else."""


class _JoinedFrames:
    """Frames of files whose rows follow one another; if ``lenient`` all that is read is alike."""

    def __init__(self, source: str, frames: Sequence[LazyFrame], lenient: bool) -> None:
        self.frames, first = frames, frames[0]
        self.names = first.names
        self.places = [{name: n for n, name in enumerate(one.names)} for one in frames]
        self.unlike: dict[int, InputError] = {}
        """Why columns cannot be read, by number."""
        for one in () if lenient else frames:
            for here, there in ((one, first), (first, one)):
                if lacking := {*there.names} - {*here.names}:
                    raise unlike(here, f"no column {min(lacking)!r}, which", there)
        kinds = []
        for column, name in enumerate(self.names):
            try:
                places = [self._of_file(number, [column])[0] for number in range(len(frames))]
                own = [one.kinds[n] for one, n in zip(frames, places, strict=True)]
                kinds.append(self._kind(name, own) or pa.string())
            except InputError as error:
                if not lenient:
                    raise
                self.unlike[column] = error
                kinds.append(UNLIKE)
        self.frame = LazyFrame(
            source, self.names, tuple(kinds), self.read, first.index, first.header,
            folders=first.folders,
        )  # fmt: skip

    @property
    def whole(self) -> LazyFrame:
        """The frame of all files; of a single one its own, with its index."""
        only = self.frames[0]
        return self.frame if len(self.frames) > 1 else only if only.ranged is None else only.ranged

    def refuse_unlike(self, columns: Sequence[int]) -> None:
        for column in sorted(self.unlike.keys() & {*columns}):
            raise self.unlike[column]

    def _kind(
        self, name: str, kinds: Sequence[pa.DataType], strict: bool = False
    ) -> pa.DataType | None:
        """Return the type of a column of which all files have some; None: text may be, of CSV."""
        kind, first = pa.null(), self.frames[0]
        for number, own in enumerate(kinds):
            frame = self.frames[min(number, len(self.frames) - 1)]
            both = kind if own == kind else _common(kind, own)
            if both is None:
                if not strict and frame.parts is None and is_text(own) != is_text(kind):
                    return None
                raise unlike(frame, f"{own} in column {name!r}, where", first, kind)
            if both != kind:
                kind, first = both, frame
        return kind

    def _of_file(self, number: int, columns: Sequence[int]) -> list[int]:
        places = self.places[number]
        for name in (self.names[n] for n in columns):
            if name not in places:
                raise unlike(self.frames[number], f"no column {name!r}, which", self.frames[0])
        return [places[self.names[n]] for n in columns]

    def read(self, columns: Sequence[int], as_text: Sequence[int]) -> Columns:
        """Return columns of all rows, as `LazyFrame.read`."""
        if all(one.parts is not None for one in self.frames):
            n_bytes = sum(one.n_rows for one in self.frames) * len(columns) * 8
            check_memory(n_bytes, f"the table of {len(self.frames)} files")

        def read_all(texts: Sequence[int]) -> list[Columns]:
            every = []
            for number, frame in enumerate(self.frames):
                own = self._of_file(number, columns)
                ordered = sorted(own)
                arrays = frame.read(ordered, self._of_file(number, texts))
                every.append([arrays[ordered.index(n)] for n in own])
            return every

        named = [self.names[n] for n in columns]
        read = [*zip(*read_all(as_text), strict=True)]
        kinds = [
            self._kind(name, [one.type for one in pieces])
            for name, pieces in zip(named, read, strict=True)
        ]
        if None in kinds:  # in one file such columns would be text
            texts = {n for n, kind in zip(columns, kinds, strict=True) if kind is None}
            read = [*zip(*read_all(sorted({*as_text, *texts})), strict=True)]
        return [self._together(*one) for one in zip(named, read, strict=True)]

    def _together(self, name: str, pieces: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
        kind = self._kind(name, [one.type for one in pieces], strict=True)
        with damaged(f"{self.frame.source}: column {name!r}", FAILURES):
            same = [
                one if one.type == kind
                else decoded(one).cast(kind, safe=not pa.types.is_floating(kind))
                for one in pieces
            ]  # fmt: skip
        return pa.chunked_array([chunk for one in same for chunk in one.chunks], type=kind)

    def units(self) -> list[tuple[int, int, int]]:
        """Return file, number there, and rows of each part that is read apart."""
        parts = [(one.n_rows,) if one.parts is None else one.parts for one in self.frames]
        return [(f, n, count) for f, some in enumerate(parts) for n, count in enumerate(some)]

    def pieces(self, columns: Sequence[int], number: int = 0, part: int = 0) -> Iterator[Columns]:
        """Yield columns of consecutive rows, from a part of a file on."""
        for n in range(number, len(self.frames)):
            own = self._of_file(n, columns)
            ordered = sorted(own)
            for piece in self.frames[n].pieces_from(ordered, part if n == number else 0):
                yield [piece[ordered.index(place)] for place in own]

    def read_head(self, columns: Sequence[int], as_text: Sequence[int]) -> Columns:
        """Return columns of the first rows."""
        pieces, n_rows = [[pa.chunked_array([], pa.null()) for _ in columns]], 0
        for piece in self.pieces(columns):
            pieces.append(piece)
            if (n_rows := n_rows + len(piece[0])) >= HEAD:
                break
        every = zip(columns, zip(*pieces, strict=True), strict=True)
        return [self._together(self.names[n], one).slice(0, HEAD) for n, one in every]


def _on_disk(joined: _JoinedFrames, options: ReadOptions, limit: int) -> Dataset:
    """Return a dataset whose features stay in the files: those that the first rows show."""
    frame, names = joined.frame, joined.names
    choice, source = choose(names, options, frame.source), frame.source
    judged = replace(options, memory_limit=None, keep_constant=True, profiles=None)
    head = dataset_of(replace(frame, read=joined.read_head), judged)
    places, left_out = [names.index(name) for name in head.feature_names], head.left_out
    refuse_marks(options.table, source)
    kinds = {names[n]: plain_kind(frame.kinds[n]) for n in places}
    for name, kind in kinds.items():
        if not is_numeric(kind) and kind != pa.null():
            raise InputError(
                f"{source}: {name!r} is text, which becomes codes or numbers in memory alone; "
                "leave it out with ", Setting("drop", name), ", or raise the memory limit",
            )  # fmt: skip
    if not (choice.chosen or options.keep_constant):
        low, high = extremes(head.X)
        alike = [n for n, same in zip(places, low >= high, strict=True) if same]
        low, high = extremes(TableMatrix(joined, alike)) if alike else (low[:0], high[:0])
        for n, least, most in zip(alike, low, high, strict=True):
            if least >= most:
                left_out[names[n]] = "constant" if least == most else "no values"
        places = [n for n in places if names[n] not in left_out]
        if not places:
            raise nothing_left(frame, left_out)
    matrix = TableMatrix(joined, places)
    numbers = sorted(choice.taken)
    texts = [*choice.known, *(n for what, n in choice.noted.items() if what != "weight")]
    columns = dict(zip(numbers, frame.read(numbers, texts), strict=True)) if numbers else {}
    return Dataset(
        matrix.beyond(min(limit, 2 * matrix.nbytes - 1)),
        tuple(names[n] for n in places),
        **noted_in(frame, choice.noted, choice.known, columns, options.table),
        source=source,
        left_out={name: left_out[name] for name in names if name in left_out},
        table=options.table,
    )


class TableMatrix(FileMatrix):
    """Columns of numbers in the files of a table, decoded a run of rows at a time."""

    def __init__(self, joined: _JoinedFrames, columns: Sequence[int]) -> None:
        self.path = joined.frame.source
        self._reader = reader = _Reader(joined, columns)
        kinds = {plain_kind(joined.frame.kinds[n]) for n in columns}
        shape = reader.ends[-1] if reader.ends else 0, len(columns)
        self._begin(shape, kinds <= {pa.float32(), pa.float16()}, 1, 0)

    def _read(self, out: Floats, start: int) -> None:
        self._reader.fill(out, start)

    def close(self) -> None:
        self._reader.pieces = None


class _Reader:
    """Decodes consecutive rows; the last that were decoded stay, for who reads on."""

    def __init__(self, joined: _JoinedFrames, columns: Sequence[int]) -> None:
        self.joined, self.columns, self.units = joined, columns, joined.units()
        self.ends = list(accumulate(count for _, _, count in self.units))
        self.pieces: Iterator[Columns] | None = None
        self.piece: Columns = []
        self.first = self.end = 0
        self.lock = Lock()

    def fill(self, out: Floats, start: int) -> None:
        """Fill ``out``, shape (m, columns), with the rows from ``start`` on."""
        done = 0
        with self.lock:
            while done < len(out):
                self._go_to(start + done)
                begin = start + done - self.first
                to = out[done : done + self.end - start - done]
                for place, piece in enumerate(self.piece):
                    column = piece.slice(begin, len(to))
                    if column.type == pa.null():
                        to[:, place] = np.nan
                    else:
                        fill_column(to[:, place], decoded(column))
                done += len(to)

    def _go_to(self, row: int) -> None:
        """Decode the piece that has a row, from the begin of its part unless it comes soon."""
        if self.first <= row < self.end:
            return
        number, part, count = self.units[unit := bisect_right(self.ends, row)]
        begin = self.ends[unit] - count
        if self.pieces is None or row < self.first or self.end < begin:
            self.pieces, self.end = self.joined.pieces(self.columns, number, part), begin
        while self.end <= row:
            if (piece := next(self.pieces, None)) is None:
                self.pieces = None
                source = self.joined.frames[number].source
                raise FileError(f"{source} has fewer rows than it said; is it damaged?")
            self.piece, self.first = piece, self.end
            self.end += len(piece[0])
