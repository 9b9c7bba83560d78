"""Long CSV tables, a line a measurement, that anybody may have written."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence

from vpem.errors import FileError, InputError
from vpem.files.opening import PathLike, open_text

__all__ = ["LONGEST_NAME", "NUMBER", "finite_number", "read_cells"]

LONGEST_NAME = 4096
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def finite_number(text: str) -> float | None:
    """Read a finite number as people write it; None: it is something else."""
    number = float(text) if NUMBER.fullmatch(text) else math.nan
    return number if math.isfinite(number) else None


def read_cells(
    path: PathLike, places_of: Callable[[list[str]], Sequence[int]]
) -> Iterator[tuple[str, list[str]]]:
    """Yield where each line is, for messages, and its cells.

    Parameters
    ----------
    path : path
        The file: UTF-8, names of the columns in its first line. Empty lines are left out.
    places_of : callable
        Of the header: places of the cells that are wanted, in their order.

    Raises
    ------
    FileError
        If the file cannot be read, or is no CSV.
    InputError
        If a line has more or fewer fields than the header.
    """
    source = os.fspath(path)
    try:
        with open_text(path) as stream:
            reader = csv.reader(stream, strict=True)
            header = next(reader, [])
            places = places_of(header)
            for fields in reader:
                if not "".join(fields).strip() and len(fields) < 2:
                    continue
                where = f"{source}: line {reader.line_num}"
                if len(fields) != len(header):
                    count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
                    raise InputError(f"{where} has {count}, the header {len(header)}")
                yield where, [fields[place].strip() for place in places]
    except UnicodeDecodeError:
        raise FileError(f"{source} is not UTF-8 text; save it as UTF-8") from None
    except csv.Error as error:
        raise FileError(f"{source}: line {reader.line_num} is no CSV: {error}") from None
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{source} cannot be read: {error.strerror or error}") from error
