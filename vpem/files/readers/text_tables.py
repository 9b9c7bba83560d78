"""Text tables as frames: CSV and its kin, read by pyarrow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from pyarrow import csv

from vpem.errors import FileError, VpemError
from vpem.files.arrow import is_text
from vpem.files.opening import EXPANSION, advice, read_limit
from vpem.files.readers.common import MISSING_MARKS
from vpem.files.readers.frames import Frame
from vpem.files.readers.text_streams import TextTable, look_at, not_this_text
from vpem.files.table_settings import TableSettings

OF_A_COLUMN = 3000  # bytes that reading a column takes, however short it is
LINES_OF_A_NAME = 4  # at most
BLOCK_BYTES = 1 << 24  # the longest row of a text, and how much of it is parsed at once


def text_frame(file: Path, source: str, table: TableSettings, candidates: str) -> Frame:
    """Open a text table, which may be packed; ``candidates`` may be between its fields."""
    text = look_at(file, source, table, candidates)
    _check_width(text)
    header = not table.no_header
    parsing = csv.ParseOptions(
        delimiter=text.delimiter, newlines_in_values=True, invalid_row_handler=_is_comment
    )
    with (
        _said(text, header),
        text.open() as stream,
        csv.open_csv(stream, read_options=_reading(not header), parse_options=parsing) as reader,
    ):
        raw, kinds = list(reader.schema.names), list(reader.schema.types)
    kinds = [pa.string() if n in text.codes else kind for n, kind in enumerate(kinds)]
    if header and any(_swallowed(name, text.delimiter) for name in raw):
        raise FileError(f"{source}: a column name has a line break; is a quotation mark left open?")
    # In spreadsheets long names are broken into lines.
    joined = (" ".join(map(str.strip, name.strip().splitlines())) for name in raw)
    names = list(joined) if header else [f"column {n}" for n in range(len(raw))]
    unnamed = [n for n, name in enumerate(names) if not name or name == f"Unnamed: {n}"]
    for n in unnamed:
        names[n] = f"column {n}"

    def read(kept: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        marks = (*MISSING_MARKS, *table.marks)
        texts = kept if table.thousands is not None else {*as_text, *text.codes} & {*kept}
        converting = csv.ConvertOptions(
            include_columns=[str(column) for column in kept],
            column_types={str(column): pa.string() for column in texts},
            null_values=[*marks, *(f" {one}" for one in marks if one)],
            decimal_point=table.point,
        )
        # By number: columns may have one name, or none.
        reading = _reading(True, [str(n) for n in range(len(raw))], header)
        with _said(text, header), text.open() as stream:
            found = csv.read_csv(
                stream, read_options=reading, parse_options=parsing, convert_options=converting
            )
        for values in found.columns:
            if is_text(values.type) and not pa.types.is_string(values.type):
                raise not_this_text(source, text.encoding)
        return list(found.columns)

    return Frame(
        source, tuple(names), tuple(kinds), read, frozenset(unnamed) & {0}, header, file=file
    )


def _swallowed(name: str, delimiter: str) -> bool:
    """Whether a name has lines of a table in it, rather than being of several lines itself."""
    lines = name.strip().splitlines()
    return len(lines) > LINES_OF_A_NAME or (len(lines) > 1 and delimiter in name)


def _is_comment(row: csv.InvalidRow) -> str:
    """Say that a line of another length is left out if it begins with a sign of comments."""
    return "skip" if row.text.lstrip().startswith("#") else "error"


def _reading(
    made_up: bool, names: Sequence[str] | None = None, header: bool = False
) -> csv.ReadOptions:
    """Return how a text is read: with names of its own, made up, or given."""
    # One thread, since only then pyarrow says in which row it found an error.
    return csv.ReadOptions(
        use_threads=False,
        block_size=BLOCK_BYTES,
        column_names=names,
        autogenerate_column_names=made_up and names is None,
        skip_rows_after_names=int(header and names is not None),
    )


def _check_width(text: TextTable) -> None:
    """Raise FileError if the columns of a text take far more memory than the file."""
    with text.open() as stream:
        line = stream.readline(BLOCK_BYTES)
    n_columns = 1 + line.count(text.delimiter.encode())
    n_bytes, size = n_columns * OF_A_COLUMN, os.stat(text.file).st_size
    if n_bytes > max(read_limit(), size * EXPANSION):
        raise FileError(
            f"{text.source} has {n_columns} columns in {size} bytes; if features are rows, "
            f"transpose it; {advice(n_bytes)}"
        )


@contextmanager
def _said(text: TextTable, header: bool) -> Iterator[None]:
    """Turn what pyarrow raises into a sentence."""
    try:
        yield
    except VpemError:
        raise
    except UnicodeDecodeError as error:
        raise not_this_text(text.source, text.encoding) from error
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        if "UTF8" in str(error):
            raise not_this_text(text.source, text.encoding) from error
        _explain(str(error), text.source, header, error)


def _explain(message: str, source: str, header: bool, error: BaseException) -> NoReturn:
    """Raise FileError with a sentence for what pyarrow says of a CSV file."""
    ragged = re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", message)
    if ragged:
        number, expected, found = ragged.groups()
        row = f"row {int(number) - 1 - header} (counted from 0)" if number else "a row"
        sentence = (
            f"{row} has {found} fields instead of {expected}; check the delimiter, and remove "
            "what stands above the names"
        )
    elif "Empty CSV" in message:
        sentence = "the file has no rows"
    elif "straddles" in message or "straddling" in message:
        sentence = f"a row is longer than {BLOCK_BYTES} bytes; is a quotation mark left open?"
    else:
        sentence = f"the file cannot be parsed ({message})"
    raise FileError(f"{source}: {sentence}") from error
