"""Text tables as frames: CSV and its kin, read by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from vpem.errors import FileError, Setting, VpemError
from vpem.files.arrow import is_text
from vpem.files.delimited import BLOCK_BYTES, check_width, delimiter_of, explain, numbered
from vpem.files.frames import Frame
from vpem.files.opening import open_unzipped
from vpem.files.table_settings import TableSettings
from vpem.files.text_numbers import MISSING_MARKS

__all__ = ["not_utf8", "text_frame"]


def text_frame(file: Path, source: str, table: TableSettings, candidates: str) -> Frame:
    """Open a text table.

    Parameters
    ----------
    file : path
        The file.
    source : str
        What messages call it.
    table : TableSettings
        How it is read.
    candidates : str
        Characters that may be between its fields.

    Raises
    ------
    FileError
        If it cannot be read or parsed.
    """
    mark = delimiter_of(file, source, candidates, table.delimiter)
    check_width(file, source, mark)
    header = not table.no_header
    reading, parsing = _options(mark, header)
    with (
        _said(source, header),
        open_unzipped(file) as stream,
        csv.open_csv(stream, read_options=reading, parse_options=parsing) as reader,
    ):
        raw, kinds = list(reader.schema.names), list(reader.schema.types)
    names = [name.strip() for name in raw] if header else numbered(len(raw))
    unnamed = [n for n, name in enumerate(names) if not name or name == f"Unnamed: {n}"]
    for n in unnamed:
        names[n] = f"column {n}"
    if any("\n" in name for name in names):
        raise FileError(f"{source}: a column name has a line break; is a quotation mark left open?")

    def read(kept: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        marks = (*MISSING_MARKS, *table.marks)
        texts = range(len(raw)) if table.thousands is not None else as_text
        converting = csv.ConvertOptions(
            include_columns=[raw[column] for column in kept],
            column_types={raw[column]: pa.string() for column in texts},
            null_values=[*marks, *(f" {one}" for one in marks if one)],
            decimal_point=table.decimal,
        )
        with _said(source, header), open_unzipped(file) as stream:
            found = csv.read_csv(
                stream, read_options=reading, parse_options=parsing, convert_options=converting
            )
        columns = list(found.columns)
        for column, values in zip(kept, columns, strict=True):
            if is_text(values.type) and not pa.types.is_string(values.type):
                raise not_utf8(f"{source}: column {names[column]!r}")
        return columns

    return Frame(source, tuple(names), tuple(kinds), read, frozenset(unnamed[:1]) & {0}, header)


def not_utf8(what: str) -> FileError:
    """Return the error of text in another encoding."""
    return FileError(
        f"{what} is not UTF-8 text; name its encoding, such as ", Setting("encoding", "latin-1")
    )


def _options(mark: str, header: bool) -> tuple[csv.ReadOptions, csv.ParseOptions]:
    """Return how a text is taken apart."""
    # One thread, since only then pyarrow says in which row it found an error.
    reading = csv.ReadOptions(
        use_threads=False, block_size=BLOCK_BYTES, autogenerate_column_names=not header
    )
    return reading, csv.ParseOptions(delimiter=mark, newlines_in_values=True)


@contextmanager
def _said(source: str, header: bool) -> Iterator[None]:
    """Turn what pyarrow raises into a sentence."""
    try:
        yield
    except VpemError:
        raise
    except UnicodeDecodeError as error:
        raise not_utf8(source) from error
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        if "UTF8" in str(error):
            raise not_utf8(source) from error
        explain(str(error), source, header, error)
