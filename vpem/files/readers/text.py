"""Text tables, CSV and its kin, as frames: a stream of UTF-8 that pyarrow reads.

First it is found which character parts their fields, and what stands above the names.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from vpem.errors import FileError, InputError, Setting, VpemError
from vpem.files.arrow import give_back, is_text, numbers_in
from vpem.files.opening import EXPANSION, advice, open_unpacked, read_limit, stream_of
from vpem.files.readers.frames import MISSING_MARKS, LazyFrame
from vpem.files.table_settings import TableSettings
from vpem.network.schema import Report

START = 1 << 16  # bytes in which delimiter and names are looked for
LOOKED_AT = 30  # lines of them
LONGEST_NAMES = 20  # lines over which names may extend
LONGEST_LINE = 1 << 24

NAMED = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " ", "pipe": "|"}
PREFERRED = "\t;|, "
"""Delimiters that all lines have as often, the likeliest first: numbers may have a comma."""

MARKS = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
         (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip
"""Byte order marks of encodings but UTF-8."""


@dataclass(frozen=True)
class TextTable:
    """A text table, looked at."""

    file: Path
    source: str
    delimiter: str  # between its fields
    encoding: str | None  # None: UTF-8
    skipped: int  # lines above the names
    first: bytes | None  # in place of the line of names, in UTF-8
    runs: bool  # several blanks are one delimiter
    codes: frozenset[int]  # columns of digits, some with zeros in front or too many for a number

    def open(self) -> BinaryIO:
        """Open it, as UTF-8 from the line of names on."""
        stream = open_unpacked(self.file)
        try:
            if self.encoding is not None:
                decoder = codecs.getincrementaldecoder(self.encoding)()
                stream = _changed(stream, lambda part: decoder.decode(part, not part).encode())
            for _ in range(self.skipped + (self.first is not None)):
                stream.readline(LONGEST_LINE)
            if self.runs:
                stream = _changed(stream, _single_blanks())
            if self.first is None:
                return stream
            before = iter([self.first])
            return _changed(stream, lambda part: next(before, b"") + part)
        except BaseException:
            stream.close()
            raise

    def pieces(self, n_bytes: int) -> Iterator[pa.BufferReader]:
        """Yield lines of about so many bytes, which are rows unless values have line breaks."""
        with self.open() as stream:
            rest = b""
            while part := stream.read(n_bytes):
                lines = rest + part
                end = len(lines) if len(part) < n_bytes else lines.rfind(b"\n") + 1
                yield pa.BufferReader(memoryview(lines)[:end])
                rest = lines[end:]
            if rest:
                yield pa.BufferReader(rest)


def _changed(stream: BinaryIO, change: Callable[[bytes], bytes]) -> BinaryIO:
    """Return a stream whose parts are changed; the last part is empty."""
    parts = filter(None, map(change, chain(iter(partial(stream.read, START), b""), [b""])))
    return stream_of(lambda _: next(parts, b""), stream.close)


def _single_blanks() -> Callable[[bytes], bytes]:
    """Return what makes one blank of several, and none of those at the ends of a line."""
    rest = b""

    def change(part: bytes) -> bytes:
        nonlocal rest
        lines = (rest + part).split(b"\n")
        rest = lines.pop() if part else b""
        if len(rest) > LONGEST_LINE:
            raise ValueError("straddling object straddles two block boundaries")
        return b"".join(b" ".join(line.split()) + b"\n" for line in lines)

    return change


def look_at(file: Path, source: str, table: TableSettings, candidates: str) -> TextTable:
    """Find out how a text table is written; ``candidates`` may be between its fields."""
    with open_unpacked(file) as stream:
        start = stream.read(START + 1)
    by_mark = next((name for mark, name in MARKS if start.startswith(mark)), None)
    encoding = by_mark if table.encoding is None else table.encoding
    if encoding is None and start.startswith(codecs.BOM_UTF8):
        start = start[3:]
    decoder = codecs.getincrementaldecoder(encoding or "utf-8")("strict" if encoding else "replace")
    try:
        lines = re.split(r"\r\n|\n|\r", decoder.decode(start))
    except UnicodeError as error:
        raise not_this_text(source, encoding) from error
    if len(start) > START and len(lines) > 1:
        lines.pop()
    delimiter = None if table.delimiter is None else NAMED.get(table.delimiter, table.delimiter)
    if delimiter is not None and (
        len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0'
    ):
        raise InputError(f"the delimiter must be one character (or 'tab'), got {table.delimiter!r}")
    skipped = 0
    if lines and (named := re.fullmatch(r'"?sep=(.)"?', lines[0].strip())):
        delimiter = delimiter or named[1]
        skipped = 1
    header: str | None = None
    while skipped < len(lines) and not lines[skipped].strip():
        skipped += 1
    while skipped < len(lines) and (line := lines[skipped]).startswith(("#", "%")):
        header, skipped = line.lstrip("#% ").strip(), skipped + 1
    content_lines = [line for line in lines[skipped:] if line.strip()]
    for count in range(1, min(len(content_lines), LONGEST_NAMES) + 1):
        # Names go on to where their quotation marks are closed.
        names_line = "\n".join(content_lines[:count])
        if names_line.count('"') % 2 == 0:
            content_lines = [names_line, *content_lines[count:]]
            break
    below = content_lines[:LOOKED_AT]
    delimiter = delimiter or _found(below, candidates)
    runs = delimiter == " " and not any('"' in line for line in below)
    first = None
    if header is not None and below and not table.no_header:
        [names, fields] = _counts([header, below[0]], delimiter)
        # The line above the data is their names, or else it is among what is skipped.
        if names == fields:
            first, skipped = header, skipped - 1
    if first is None and len(below) > 1 and "\n" not in below[0] and not table.no_header:
        head, *counts = _counts(below, delimiter)
        if {head + 1} == set(counts) and below[0].strip():
            # A line of names that is one short becomes as long as the rows.
            at_end = delimiter != " " and all(line.endswith(delimiter) for line in below[1:])
            first = f"{below[0]}{delimiter}" if at_end else f'""{delimiter}{below[0]}'
    content = None if first is None else (first + "\n").encode()
    utf8 = encoding is None or codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii")
    marks = {*MISSING_MARKS, *table.marks}
    data = content_lines[1 - table.no_header :]
    rows = csv.reader(data, delimiter=delimiter) if delimiter != " " else map(str.split, data)
    codes = set()
    for place, column in enumerate(zip_longest(*rows, fillvalue="")):
        values = {value.strip() for value in column} - marks
        digits = all(re.fullmatch("[0-9]+", value) for value in values)
        if digits and any(re.fullmatch("0[0-9]+|[0-9]{19,}", value) for value in values):
            codes.add(place)
    encoding = None if utf8 else encoding
    return TextTable(file, source, delimiter, encoding, skipped, content, runs, frozenset(codes))


def not_this_text(source: str, encoding: str | None) -> FileError:
    if encoding is not None:
        return FileError(f"{source} is no text in ", Setting("encoding", encoding), "; try another")
    return FileError(
        f"{source} is not UTF-8 text; name its encoding: ", Setting("encoding", "latin-1"),
        " for most of Western Europe, or cp1252 of Windows",
    )  # fmt: skip


def _counts(lines: list[str], mark: str) -> list[int]:
    """Return how often a delimiter stands in each line, outside quotation marks."""
    bare = (re.sub(r'"[^"]*"', "q", line) for line in lines)
    if mark == " ":
        return [max(len(line.split()) - 1, 0) for line in bare]
    return [line.count(mark) for line in bare]


def _found(lines: list[str], candidates: str) -> str:
    """Return the delimiter that all lines have as often, or else the first has most often."""
    counts = {mark: _counts(lines, mark) or [0] for mark in candidates}
    for mark in PREFERRED:
        # The names may be one fewer, where the rows have some.
        same = set(counts.get(mark, [0])[1:])
        if len(same) == 1 and counts[mark][0] and counts[mark][0] in {*same, min(same) - 1}:
            return mark
    # Blanks stand in names, too.
    return max(candidates.replace(" ", "") or " ", key=lambda mark: counts[mark][0])


OF_A_COLUMN = 3000  # bytes that reading a column takes, however short it is
LINES_OF_A_NAME = 4  # at most
BLOCK_BYTES = 1 << 24  # the longest row of a text, and how much of it shows what columns hold
PIECE_BYTES = 1 << 20  # how much is parsed at once, or more: so many bytes a column
OF_A_PIECE = 1 << 11

NULL, WHOLE, NUMBER, TEXT = pa.null(), pa.int64(), pa.float64(), pa.string()


def _kind_of(pieces: set[pa.DataType]) -> pa.DataType | None:
    """Return what a column holds whose pieces hold these; None where they do not show it."""
    kinds = {TEXT} if TEXT in pieces else pieces - {NULL}
    kinds = {NUMBER} if kinds == {WHOLE, NUMBER} else kinds or {NULL}
    return kinds.pop() if len(kinds) == 1 else None


def _has_fractions(column: pa.ChunkedArray) -> bool:
    values, missing = numbers_in(column)
    return bool((values != np.floor(values))[~missing].any())


def _handle(row: arrow_csv.InvalidRow) -> str:
    """Leave out a line of another length if it begins with a sign of comments."""
    return "skip" if row.text.lstrip().startswith("#") else "error"


def text_frame(file: Path, source: str, table: TableSettings, candidates: str) -> LazyFrame:
    """Open a text table, which may be packed; ``candidates`` may be between its fields."""
    text = look_at(file, source, table, candidates)
    with text.open() as stream:
        n_columns = 1 + stream.readline(BLOCK_BYTES).count(text.delimiter.encode())
    n_bytes, size = n_columns * OF_A_COLUMN, os.stat(text.file).st_size
    if n_bytes > max(read_limit(), size * EXPANSION):
        raise FileError(
            f"{source} has {n_columns} columns in {size} bytes; if features are rows, "
            f"transpose it; {advice(n_bytes)}"
        )
    header = not table.no_header

    # One thread, since only then pyarrow says in which row it found an error.
    reading = partial(arrow_csv.ReadOptions, use_threads=False)
    parsing = arrow_csv.ParseOptions(
        delimiter=text.delimiter, newlines_in_values=True, invalid_row_handler=_handle
    )
    piece = min(BLOCK_BYTES, max(PIECE_BYTES, n_columns * OF_A_PIECE))

    own: Report = {"autogenerate_column_names": not header}
    with _said(text, header):
        try:
            options = reading(block_size=piece, **own)
            start = next(text.pieces(BLOCK_BYTES), pa.BufferReader(b""))
            with arrow_csv.open_csv(start, options, parsing) as reader:
                for _ in reader:
                    pass
                schema = reader.schema
        except pa.ArrowInvalid:  # all of it shows what columns hold, or what is wrong
            block = reading(block_size=BLOCK_BYTES, **own)
            with text.open() as stream, arrow_csv.open_csv(stream, block, parsing) as reader:
                schema = reader.schema
        give_back()
        raw, kinds = list(schema.names), list(schema.types)
    kinds = [pa.string() if n in text.codes else kind for n, kind in enumerate(kinds)]
    names, unnamed = _names_of(raw, text, header)

    def read(columns: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        marks = (*MISSING_MARKS, *table.marks)
        texts = columns if table.thousands is not None else {*as_text, *text.codes} & {*columns}
        known = dict.fromkeys(map(str, texts), TEXT)
        converting = partial(
            arrow_csv.ConvertOptions,
            null_values=[*marks, *(f" {one}" for one in marks if one)],
            decimal_point=table.point,
        )
        # By number: columns may have one name, or none.
        numbered: Report = {
            "column_names": [str(n) for n in range(len(raw))], "skip_rows_after_names": int(header)
        }  # fmt: skip
        chosen = [str(column) for column in columns]

        def parse(block: int, kinds: Report) -> list[pa.ChunkedArray]:
            """Read in blocks of a size; what columns hold that are not given is found out."""
            options = reading(block_size=block, **numbered)
            how = converting(include_columns=chosen, column_types=kinds)
            with text.open() as stream:
                return list(arrow_csv.read_csv(stream, options, parsing, how).columns)

        def shown(most: int | None) -> tuple[Report, int]:
            """Return what columns hold by so many pieces, or all, and how many rows these have.

            What the pieces do not show is left out.
            """
            seen: dict[str, set[pa.DataType]] = {name: set() for name in chosen}
            n_rows, skipped = 0, numbered
            how = converting(include_columns=chosen, column_types=known)
            for lines in islice(text.pieces(piece), most):
                part = arrow_csv.read_csv(lines, reading(**skipped), parsing, how)
                n_rows, skipped = n_rows + len(part), numbered | {"skip_rows_after_names": 0}
                for name, kind in zip(part.column_names, part.schema.types, strict=True):
                    seen[name].add(kind)
            give_back()
            every = {name: _kind_of(one) for name, one in seen.items()}
            return {name: kind for name, kind in every.items() if kind is not None}, n_rows

        with _said(text, header):
            for most in (1, None) if size > piece else ():  # all of a short one is read at once
                with suppress(pa.ArrowInvalid):
                    found, n_rows = shown(most)
                    # A block may have shown fractions, which then have to be there.
                    wider = [
                        name for name, kind in found.items()
                        if most and kind == WHOLE and kinds[int(name)] == NUMBER
                    ]  # fmt: skip
                    read = parse(piece, found | dict.fromkeys(wider, NUMBER))
                    sure = all(_has_fractions(read[chosen.index(name)]) for name in wider)
                    if sure and (most or len(read[0]) == n_rows):
                        break
            else:
                read = parse(BLOCK_BYTES, known)
        for values in read:
            if is_text(values.type) and not pa.types.is_string(values.type):
                raise not_this_text(source, text.encoding)
        return read

    return LazyFrame(
        source, tuple(names), tuple(kinds), read, frozenset(unnamed) & {0}, header, file=file
    )


def _names_of(raw: list[str], text: TextTable, header: bool) -> tuple[list[str], list[int]]:
    """Return what columns are called, and which have no name in the file."""
    for name in raw if header else ():
        # Several lines with a delimiter are lines of the table, and no name.
        n_lines = len(name.strip().splitlines())
        if n_lines > LINES_OF_A_NAME or (n_lines > 1 and text.delimiter in name):
            raise FileError(
                f"{text.source}: a column name has a line break; is a quotation mark left open?"
            )
    # In spreadsheets long names are broken into lines.
    joined = (" ".join(map(str.strip, name.strip().splitlines())) for name in raw)
    names = list(joined) if header else [f"column {n}" for n in range(len(raw))]
    unnamed = [n for n, name in enumerate(names) if not name or name == f"Unnamed: {n}"]
    for n in unnamed:
        names[n] = f"column {n}"
    return names, unnamed


@contextmanager
def _said(text: TextTable, header: bool) -> Iterator[None]:
    """Turn what pyarrow raises into FileError.

    A row of another length that is no UTF-8 cannot be shown to its handler: an error all the same.
    """
    before = sys.unraisablehook
    sys.unraisablehook = lambda one: (
        None if isinstance(one.exc_value, UnicodeDecodeError) else before(one)
    )
    try:
        yield
    except VpemError:
        raise
    except UnicodeDecodeError as error:
        raise not_this_text(text.source, text.encoding) from error
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        message = str(error)
        if "UTF8" in message:
            raise not_this_text(text.source, text.encoding) from error
        ragged = re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", message)
        if ragged:
            number, expected, got = ragged.groups()
            row = f"row {int(number) - 1 - header} (counted from 0)" if number else "a row"
            sentence = (
                f"{row} has {got} fields instead of {expected}; check the delimiter, and remove "
                "what stands above the names"
            )
        elif "Empty CSV" in message:
            sentence = "the file has no rows"
        elif "straddles" in message or "straddling" in message:
            sentence = f"a row is longer than {BLOCK_BYTES} bytes; is a quotation mark left open?"
        else:
            sentence = f"the file cannot be parsed ({message})"
        raise FileError(f"{text.source}: {sentence}") from error
    finally:
        sys.unraisablehook = before
