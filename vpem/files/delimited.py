"""CSV tables: the names of their columns first, then the columns that are used."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from pyarrow import csv

from vpem.errors import FileError, InputError, Setting, VpemError, VpemWarning
from vpem.files.columns import Chosen, Roles, kept_columns, roles_of
from vpem.files.opening import EXPANSION, advice, read_limit
from vpem.files.packed import open_unpacked
from vpem.files.readers.common import is_number

__all__ = [
    "BLOCK_BYTES",
    "check_width",
    "delimiter_of",
    "explain",
    "kinds_of",
    "numbered",
    "read_delimited",
]

OF_A_COLUMN = 3000  # bytes that reading a column takes, however short it is
BLOCK_BYTES = 1 << 24  # the longest row of a CSV file, and how much of it is parsed at once
DELIMITER_NAMES = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " "}
WIDE_ENCODINGS = (b"\xff\xfe", b"\xfe\xff")


def delimiter_of(file: Path, source: str, candidates: str, delimiter: str | None) -> str:
    """Return the delimiter given, or the one that the first line shows."""
    with open_unpacked(file) as stream:
        start = stream.read(1 << 16)
    if start.startswith(WIDE_ENCODINGS) or b"\0" in start:
        raise FileError(f"{source} is not UTF-8 text; save it as UTF-8")
    if delimiter is not None:
        character = DELIMITER_NAMES.get(delimiter, delimiter)
        if len(character) != 1 or not character.isascii() or character in '"\r\n\0':
            raise InputError(f"the delimiter must be one character (or 'tab'), got {delimiter!r}")
        return character
    lines = start.strip(b"\r\n").splitlines() or [b""]
    return max(candidates, key=lambda mark: lines[0].count(mark.encode()))


def check_width(file: Path, source: str, delimiter: str) -> None:
    """Raise FileError if the columns of a CSV file take far more memory than the file."""
    with open_unpacked(file) as stream:
        line = stream.readline(BLOCK_BYTES)
    n_columns = 1 + line.count(delimiter.encode())
    n_bytes, size = n_columns * OF_A_COLUMN, os.stat(file).st_size
    if n_bytes > max(read_limit(), size * EXPANSION):
        raise FileError(
            f"{source} has {n_columns} columns in {size} bytes; if features are rows, transpose "
            f"it; {advice(n_bytes)}"
        )


def kinds_of(file: Path, source: str, delimiter: str) -> dict[str, pa.DataType]:
    """Return what the columns of a CSV file are called and hold, as far as its beginning shows.

    Raises
    ------
    FileError
        If it cannot be read.
    """
    check_width(file, source, delimiter)
    reading = csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        with (
            open_unpacked(file) as stream,
            csv.open_csv(stream, read_options=reading, parse_options=parsing) as reader,
        ):
            return {field.name.strip(): field.type for field in reader.schema}
    except UnicodeDecodeError as error:
        raise FileError(f"{source} is not UTF-8 text; save it as UTF-8") from error
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        explain(str(error), source, True, error)


def read_delimited(
    file: Path, source: str, header: bool, delimiter: str, chosen: Chosen
) -> tuple[list[str], Roles, pa.Table]:
    """Read a CSV file: first the names, then the columns that are used."""
    check_width(file, source, delimiter)
    # One thread, since only then pyarrow says in which row it found an error.
    reading = csv.ReadOptions(
        use_threads=False, block_size=BLOCK_BYTES, autogenerate_column_names=not header
    )
    parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        with (
            open_unpacked(file) as stream,
            csv.open_csv(stream, read_options=reading, parse_options=parsing) as reader,
        ):
            raw = list(reader.schema.names)
        names = [name.strip() for name in raw] if header else numbered(len(raw))
        if any("\n" in name for name in names):
            raise FileError(
                f"{source}: a column name has a line break; is a quotation mark left open?"
            )
        roles = roles_of(names, chosen, source)
        if header and all(is_number(names[column]) for column in roles[1]):
            warnings.warn(
                VpemWarning(
                    f"{source}: the first row was taken for names although it holds numbers; if it "
                    "is data, pass ",
                    Setting("header", False),
                ),
                stacklevel=3,
            )
        as_text = [raw[column] for column in roles[0][:-1] if column is not None]
        converting = csv.ConvertOptions(
            include_columns=[raw[column] for column in kept_columns(len(raw), roles)],
            column_types=dict.fromkeys(as_text, pa.string()),
        )
        with open_unpacked(file) as stream:
            table = csv.read_csv(
                stream, read_options=reading, parse_options=parsing, convert_options=converting
            )
    except VpemError:
        raise
    except UnicodeDecodeError as error:
        raise FileError(f"{source} is not UTF-8 text; save it as UTF-8") from error
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        explain(str(error), source, header, error)
    return names, roles, table


def explain(message: str, source: str, header: bool, error: BaseException) -> NoReturn:
    """Raise FileError with a sentence for what pyarrow says of a CSV file."""
    ragged = re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", message)
    if ragged:
        number, expected, found = ragged.groups()
        row = f"row {int(number) - 1 - header} (counted from 0)" if number else "a row"
        sentence = f"{row} has {found} fields instead of {expected}; check the delimiter"
    elif "Empty CSV" in message:
        sentence = "the file has no rows"
    elif "UTF8" in message:
        sentence = "the file is not UTF-8 text; save it as UTF-8"
    elif "straddles" in message or "straddling" in message:
        sentence = f"a row is longer than {BLOCK_BYTES} bytes; is a quotation mark left open?"
    else:
        sentence = f"the file cannot be parsed ({message})"
    raise FileError(f"{source}: {sentence}") from error


def numbered(n_columns: int) -> list[str]:
    """Return names for the columns of a table that has none."""
    return [f"column {column}" for column in range(n_columns)]
