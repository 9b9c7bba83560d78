"""Tables of one or more files whose rows follow one another: in memory, or read part by part.

A part that is read at once is a row group of Parquet, or a whole file of another format. Columns
are found by name in every file; their types may differ as numbers do.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from vpem.checks import Floats, check_memory, extremes, read_float
from vpem.errors import FileError, InputError, Setting, shorten
from vpem.files.arrow import decoded, fill_column, is_numeric, is_text, plain_kind
from vpem.files.datasets import Dataset, names_apart
from vpem.files.lakes import Stored
from vpem.files.matrix import FileMatrix
from vpem.files.opening import damaged
from vpem.files.readers.frames import (
    ColumnRoles,
    LazyFrame,
    ReadOptions,
    choose,
    marked_numbers,
    refuse_large,
)
from vpem.files.readers.tabular import FAILURES, dataset_of, noted_in, nothing_left

HEAD = 100_000
"""Rows by which columns are judged that stay on disk."""

BATCH_BYTES = 1 << 22
BUFFER_BYTES = 1 << 20
"""Bytes that are decoded at a time, and read of a column."""

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

Columns = list[pa.ChunkedArray]


class TableParts:
    """Files of a table, opened, and the parts of which they consist."""

    def __init__(self, files: Sequence[Stored], frames: Sequence[LazyFrame], lenient: bool) -> None:
        first, self.files, self.frames = frames[0], files, frames
        self.states = [file.state() for file in files]
        self.names: tuple[str, ...] = first.names
        self.places: list[dict[str, int]] = []
        for one in frames:
            names = dict(zip(one.names, range(len(one.names)), strict=True))
            pairs = ((one, first), (first, one))
            for (here, there), lacking in zip(
                pairs, (set(first.names) - {*names}, {*names} - set(first.names)), strict=True
            ):
                if lacking and not lenient:
                    raise unlike(here.source, f"has no column {min(lacking)!r}, which", there, "")
            self.places.append(names)
        kinds = [self._kind(name) for name in first.names]
        self.kinds = dict(zip(first.names, kinds, strict=True))
        self._add_folders()

    def _kind(self, name: str) -> pa.DataType:
        """Return the type of a column in all files."""
        kind, first = pa.null(), None
        for frame, places in zip(self.frames, self.places, strict=True):
            if name not in places:
                continue
            own = frame.kinds[places[name]]
            both = common(kind, own)
            if both is None:
                if frame.counts is None and is_text(own) != is_text(kind):
                    return pa.string()  # CSV, in which numbers can be read as text
                assert first is not None
                raise unlike(frame.source, f"has {own} in column {name!r}, where", first, str(kind))
            kind, first = both, first if kind == both and first is not None else frame
        return kind

    def _add_folders(self) -> None:
        every = [file.folders for file in self.files]
        for file, own in zip(self.files, every, strict=True):
            if own.keys() != every[0].keys():
                key = min(own.keys() ^ every[0].keys())
                with_it, without = (file, self.files[0]) if key in own else (self.files[0], file)
                raise InputError(
                    f"{without.source} is in no folder {key}=..., as {with_it.source} is; file all "
                    "of a table alike"
                )
        self.said: dict[str, list[Any]] = {}
        for key in every[0]:
            if key in self.kinds:  # files know it themselves
                continue
            words = [None if own[key] == NO_VALUE else own[key] for own in every]
            known = [word for word in words if word is not None]
            read: Any = str
            if all(re.fullmatch(r"[-+]?\d{1,18}", word) for word in known):
                read = int
            elif all(read_float(word) is not None for word in known):
                read = float
            self.said[key] = [None if word is None else read(word) for word in words]
            self.names += (key,)
            self.kinds[key] = pa.array(self.said[key]).type

    @property
    def folders(self) -> frozenset[int]:
        return frozenset(n for n, name in enumerate(self.names) if name in self.said)

    def read_file(self, number: int, columns: Sequence[int], texts: Sequence[int]) -> Columns:
        """Return columns of one file."""
        frame, places = self.frames[number], self.places[number]
        names = [self.names[column] for column in columns]
        for name in names:
            if name not in places and name not in self.said:
                raise unlike(frame.source, f"has no column {name!r}, which", self.frames[0], "")
        own = sorted(places[name] for name in names if name in places)
        as_text = [places[name] for name in (self.names[n] for n in texts) if name in places]
        read = dict(zip(own, frame.read(own, as_text), strict=True)) if own else {}
        n_rows = len(read[own[0]]) if own else self._length(number)
        return [
            read[places[name]] if name in places else self._of_folder(number, name, n_rows)
            for name in names
        ]

    def _length(self, number: int) -> int:
        frame = self.frames[number]
        return len(frame.read([0], [])[0]) if frame.counts is None else sum(frame.counts)

    def _of_folder(self, number: int, name: str, n_rows: int) -> pa.ChunkedArray:
        value = pa.scalar(self.said[name][number], self.kinds[name])
        return pa.chunked_array([pa.repeat(value, n_rows)], type=self.kinds[name])

    def read(self, columns: Sequence[int], as_text: Sequence[int]) -> Columns:
        """Return columns of all rows, as `LazyFrame.read`."""
        if None not in (counts := [one.counts for one in self.frames]):
            n_rows = sum(map(sum, counts))  # type: ignore[arg-type]
            check_memory(n_rows * len(columns) * 8, f"the table of {len(self.files)} files")
        numbers = range(len(self.files))
        read = [self.read_file(n, columns, as_text) for n in numbers]
        mixed = [
            column for place, column in enumerate(columns)
            if len({is_text(plain_kind(one[place].type)) for one in read
                    if not pa.types.is_null(one[place].type)}) > 1
        ]  # fmt: skip
        if mixed:  # only of CSV: of others types are known before
            read = [self.read_file(n, columns, sorted({*as_text, *mixed})) for n in numbers]
        return [
            self._together(name, [one[place] for one in read])
            for place, name in enumerate(self.names[column] for column in columns)
        ]

    def _together(self, name: str, pieces: Columns) -> pa.ChunkedArray:
        kind, first = pieces[0].type, 0
        for number, piece in enumerate(pieces):
            both = common(kind, piece.type)
            if both is None:
                said = f"has {piece.type} in column {name!r}, where"
                raise unlike(self.frames[number].source, said, self.frames[first], str(kind))
            kind, first = both, first if both == kind else number
        with damaged(f"{self.files[0].source} and others: column {name!r}", FAILURES):
            same = [
                piece if piece.type == kind
                else decoded(piece).cast(kind, safe=not pa.types.is_floating(kind))
                for piece in pieces
            ]  # fmt: skip
        return pa.chunked_array([chunk for piece in same for chunk in piece.chunks], type=kind)

    # ---- parts that are read apart -------------------------------------------------------------

    def units(self) -> list[tuple[int, int, int]]:
        """Return file, number there, and rows of each part."""
        units = []
        for number, frame in enumerate(self.frames):
            counts = (self._length(number),) if frame.counts is None else frame.counts
            units += [(number, n, count) for n, count in enumerate(counts)]
        return units

    def pieces(self, columns: Sequence[int], number: int, group: int) -> Iterator[Columns]:
        """Yield columns of consecutive rows, from a part of a file on."""
        from pyarrow import parquet

        for n in range(number, len(self.files)):
            file, frame = self.files[n], self.frames[n]
            begin = group if n == number else 0
            if file.state() != self.states[n]:
                raise FileError(f"{file.source} was changed while it was read; run again")
            if frame.counts is None:
                yield self.read_file(n, columns, [])
            elif begin < len(frame.counts):
                names = [self.names[column] for column in columns]
                batch = max(1, BATCH_BYTES // (8 * max(len(names), 1)))
                with (
                    damaged(f"{file.source} cannot be read as Parquet", FAILURES),
                    parquet.ParquetFile(file.open(), buffer_size=BUFFER_BYTES) as opened,
                ):
                    groups = range(begin, min(len(frame.counts), opened.metadata.num_row_groups))
                    own = [name for name in names if name in self.places[n]]
                    for rows in opened.iter_batches(batch, row_groups=groups, columns=own):
                        there = dict(zip(rows.schema.names, rows.columns, strict=True))
                        yield [
                            pa.chunked_array([there[name]]) if name in there
                            else self._of_folder(n, name, len(rows))
                            for name in names
                        ]  # fmt: skip

    def head(self, frame: LazyFrame) -> LazyFrame:
        """Return a frame of the first rows."""

        def read(columns: Sequence[int], as_text: Sequence[int]) -> Columns:
            pieces: list[Columns] = []
            for piece in self.pieces(columns, 0, 0):
                pieces.append(piece)
                if sum(len(one[0]) for one in pieces) >= HEAD:
                    break
            if not pieces:
                return [pa.chunked_array([], type=frame.kinds[n]) for n in columns]
            every = zip(*pieces, strict=True)
            return [
                self._together(self.names[n], [*one]).slice(0, HEAD)
                for n, one in zip(columns, every, strict=True)
            ]

        return replace(frame, read=read)


def common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that has the values of both, None where there is none."""
    if one == other:
        return one
    if not pa.types.is_null(one) and not pa.types.is_null(other):
        one, other = plain_kind(one), plain_kind(other)
    both = [pa.schema([("x", kind)]) for kind in (one, other)]
    with suppress(pa.ArrowException):
        return pa.unify_schemas(both, promote_options="permissive").field("x").type
    return None


def unlike(source: str, what: str, other: LazyFrame, has: str) -> InputError:
    """Return the error of a file that has ``what`` and another that has it otherwise."""
    return InputError(
        f"{source} {what} {other.source} has{f' {has}' if has else ''}; write it alike in all "
        "files of a table, name columns that all have alike with ", Setting("features"),
        ", or add ", Setting("parties", True), " if each file is one party's",
    )  # fmt: skip


def frame_of_parts(
    files: Sequence[Stored], frames: Sequence[LazyFrame], source: str, lenient: bool
) -> LazyFrame:
    """Return the frame of files whose rows follow one another; of a single one its own."""
    if len(files) == 1 and not files[0].folders:
        return frames[0]
    return _joined(TableParts(files, frames, lenient), source)


def _joined(parts: TableParts, source: str) -> LazyFrame:
    kinds = tuple(parts.kinds[name] for name in parts.names)
    first = parts.frames[0]
    return LazyFrame(
        source, parts.names, kinds, parts.read, first.index, first.header, folders=parts.folders
    )


def dataset_of_parts(
    files: Sequence[Stored],
    frames: Sequence[LazyFrame],
    source: str,
    options: ReadOptions,
    once: bool = False,
) -> Dataset:
    """Return the dataset of files whose rows follow one another, on disk beyond the memory limit.

    Files that are there ``once`` are read into memory.
    """
    table, limit = options.table, options.memory_limit
    lenient = table.features is not None or options.columns is not None
    frame = frame_of_parts(files, frames, source, lenient)
    known, n_bytes = frames[0].counts is not None, sum(file.state()[0] for file in files) // 2
    if known:
        choice = choose(names_apart(frame.names, source), options, source)
        numbers = [n for n in choice.features if is_numeric(plain_kind(frame.kinds[n]))]
        n_bytes = sum(sum(one.counts or ()) for one in frames) * len(numbers) * 8
    if limit is None or 2 * n_bytes <= limit:
        return dataset_of(frame, options)
    if once:
        refuse_large(n_bytes, limit, source)
    for file in () if known else files:  # each is read at once
        refuse_large(file.state()[0] // (2 if len(files) == 1 else 1), limit, file.source)
    parts = TableParts(files, frames, lenient)
    frame = _joined(parts, source)
    return _stored(parts, frame, choose(frame.names, options, source), options)


def _stored(
    parts: TableParts, frame: LazyFrame, choice: ColumnRoles, options: ReadOptions
) -> Dataset:
    """Return a dataset whose features stay in the files: those that the first rows show."""
    source, names = frame.source, list(frame.names)
    judged = replace(options, memory_limit=None, keep_constant=True, profiles=None)
    head = dataset_of(parts.head(frame), judged)
    places, left_out = [names.index(name) for name in head.feature_names], head.left_out
    if marked_numbers(options.table):
        raise InputError(
            Setting("na"), f" changes values, which are read from disk of {source}; raise the "
            "memory limit",
        )  # fmt: skip
    kinds = {n: plain_kind(frame.kinds[n]) for n in places}
    words = [
        names[n] for n in places if not is_numeric(kinds[n]) and not pa.types.is_null(kinds[n])
    ]
    if words:
        raise InputError(
            f"{source}: {shorten(map(repr, words))} is text, which becomes codes or numbers in "
            "memory alone; leave it out with ", Setting("drop", words[0]),
            ", or raise the memory limit",
        )  # fmt: skip
    if not (choice.chosen or options.keep_constant):
        low, high = extremes(head.X)
        alike = [n for n, same in zip(places, low >= high, strict=True) if same]
        low, high = extremes(TableMatrix(source, parts, alike)) if alike else (low[:0], high[:0])
        for n, least, most in zip(alike, low, high, strict=True):
            if least >= most:
                left_out[names[n]] = "constant" if least == most else "no values"
        places = [n for n in places if names[n] not in left_out]
        if not places:
            raise nothing_left(frame, left_out)
    matrix = TableMatrix(source, parts, places)
    stored = matrix.beyond(min(options.memory_limit or 0, 2 * matrix.nbytes - 1))
    assert stored is not None
    wanted = sorted(choice.taken)
    texts = [*choice.known, *(n for what, n in choice.noted.items() if what != "weight")]
    columns = dict(zip(wanted, frame.read(wanted, texts), strict=True)) if wanted else {}
    return Dataset(
        stored,
        tuple(names[n] for n in places),
        **noted_in(frame, choice.noted, choice.known, columns, options.table),
        source=source,
        left_out={name: left_out[name] for name in names if name in left_out},
        table=options.table,
    )


class TableMatrix(FileMatrix):
    """Columns of numbers in the files of a table, decoded a run of rows at a time."""

    def __init__(self, source: str, parts: TableParts, columns: Sequence[int]) -> None:
        self.path = source
        kinds = [plain_kind(parts.kinds[parts.names[n]]) for n in columns]
        units = parts.units()
        shape = sum(count for _, _, count in units), len(columns)
        self._begin(shape, all(one in (pa.float32(), pa.float16()) for one in kinds), 1, 0)
        self._reader = _Reader(parts, columns, units)

    def _read(self, out: Floats, start: int) -> None:
        if out.size:
            self._reader.fill(out, start)

    def close(self) -> None:
        self._reader.pieces = None


class _Reader:
    """Decodes consecutive rows; the last that were decoded stay, for who reads on."""

    def __init__(
        self, parts: TableParts, columns: Sequence[int], units: list[tuple[int, int, int]]
    ) -> None:
        self.parts, self.columns, self.units = parts, columns, units
        self.ends = list(accumulate(count for _, _, count in units))
        self.pieces: Iterator[Columns] | None = None
        self.piece: Columns = []
        self.first = self.end = 0
        self.lock = Lock()

    def fill(self, out: Floats, start: int) -> None:
        """Fill ``out``, shape (m, columns), with the rows from ``start`` on."""
        with self.lock:
            done = 0
            while done < len(out):
                self._go_to(start + done)
                begin = start + done - self.first
                some = min(len(out) - done, self.end - self.first - begin)
                for place, column in enumerate(self.piece):
                    part = column.slice(begin, some)
                    if not is_numeric(plain_kind(part.type)):
                        if part.null_count < some:
                            self._refuse(place, start + done)
                        out[done : done + some, place] = np.nan
                        continue
                    fill_column(out[done : done + some, place], decoded(part))
                done += some

    def _refuse(self, place: int, row: int) -> None:
        parts, number = self.parts, self.units[bisect_right(self.ends, row)][0]
        name, kind = parts.names[self.columns[place]], self.piece[place].type
        raise unlike(
            parts.frames[number].source, f"has {kind} in column {name!r}, where", parts.frames[0],
            str(parts.kinds[name]),
        )  # fmt: skip

    def _go_to(self, row: int) -> None:
        """Decode the piece that has a row, from the begin of its part unless it comes soon."""
        if self.first <= row < self.end:
            return
        unit = bisect_right(self.ends, row)
        begin = self.ends[unit] - self.units[unit][2]
        if self.pieces is None or row < self.first or self.end < begin:
            number, group, _ = self.units[unit]
            self.pieces, self.end = self.parts.pieces(self.columns, number, group), begin
        while self.end <= row:
            piece = next(self.pieces, None)
            if piece is None:
                self.pieces, self.first, self.end = None, 0, 0
                source = self.parts.files[self.units[unit][0]].source
                raise FileError(f"{source} has fewer rows than it said; is it damaged?")
            self.piece, self.first = piece, self.end
            self.end += len(piece[0])
