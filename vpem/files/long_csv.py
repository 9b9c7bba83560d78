"""Long CSV tables, a line a measurement, that anybody may have written."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import read_float
from vpem.errors import FileError, InputError, did_you_mean, shorten
from vpem.files.opening import PathLike, check_readable
from vpem.files.packed import open_unpacked

LONGEST_NAME = 4096
DELIMITERS = ",;\t"
"""Of columns: what the first line has most of."""
ENDINGS = re.compile(
    r"\.((csv|tsv|txt)(\.(gz|bz2|xz|zip))?|parquet|pq|feather|arrow)$", re.IGNORECASE
)
COLUMNS = re.compile(r"\.(parquet|pq|feather|arrow)$", re.IGNORECASE)


def is_long_csv(path: PathLike) -> bool:
    """Whether a file's name is that of a long table, which may be packed."""
    return ENDINGS.search(os.fspath(path)) is not None


def header_of(path: PathLike) -> list[str]:
    """Return the names of the columns of a table of text; of other files, or a broken one, none."""
    if not is_long_csv(path) or not os.path.exists(path):
        return []
    try:
        with _opened(path) as lines:
            return next(lines, [])
    except (FileError, OSError, UnicodeDecodeError, csv.Error):  # as whoever reads the rest says
        return []


class _Columns:
    """The rows of a Parquet, Feather or Arrow file as text, after their names, as csv has lines."""

    def __init__(self, path: PathLike) -> None:
        from vpem.files.readers.arrow_frames import arrow_frame, parquet_frame

        source = os.fspath(path)
        opened = parquet_frame if source.lower().endswith((".parquet", ".pq")) else arrow_frame
        self.frame, self.line_num = opened(Path(source), source), 0
        self.rows: Iterator[Any] | None = None

    def __iter__(self) -> _Columns:
        return self

    def __next__(self) -> list[str]:
        self.line_num += 1
        if self.rows is None:
            read = self.frame.read(range(len(self.frame.names)), ())
            self.rows = zip(*(column.to_pylist() for column in read), strict=True)
            return list(self.frame.names)
        return [
            "" if value is None else f"{value:.17g}" if isinstance(value, float)
            else str(int(value) if isinstance(value, bool) else value) for value in next(self.rows)
        ]  # fmt: skip


@contextmanager
def _opened(path: PathLike) -> Iterator[Any]:
    """Yield a reader of the lines of a file, which may be packed."""
    if COLUMNS.search(os.fspath(path)):
        yield _Columns(path)
        return
    with TextIOWrapper(open_unpacked(path), "utf-8-sig", newline="") as stream:
        first = stream.readline()
        mark = max(DELIMITERS, key=first.count)
        yield csv.reader(chain([first], stream), strict=True, delimiter=mark)


def is_long(header: Sequence[str]) -> bool:
    """Whether these are the columns of a table with a line a measurement."""
    return {"row", "column", "value"} <= {name.strip().lower() for name in header}


def read_cells(
    path: PathLike, places_of: Callable[[list[str]], Sequence[int]]
) -> Iterator[tuple[str, list[str]]]:
    """Yield where each line of a CSV is, for messages, and its cells at ``places_of(header)``.

    Names are in its first line, with commas, semicolons or tabs between; the file is UTF-8 and may
    be packed. Empty lines are left out; InputError where a line has more or fewer fields than the
    header.
    """
    source = os.fspath(path)
    try:
        check_readable(path)
        with _opened(path) as reader:
            header: list[str] = next(reader, [])
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


def sort_names(names: Iterable[str]) -> list[str]:
    """Return different names in order: numbers by size, others by the alphabet."""
    numbers = {name: read_float(name, finite=True) for name in names}
    if None in numbers.values():
        return sorted(numbers)
    return sorted(numbers, key=lambda name: (numbers[name], name))


@dataclass
class Entries:
    """A long table of entries of a matrix."""

    texts: dict[str, list[str]]  # what each is of: row, column
    values: NDArray[np.float64]  # (m,), finite
    weights: NDArray[np.float64] | None  # (m,)

    def numbered(self, what: str) -> tuple[list[str], NDArray[np.intp]]:
        """Return the names of one kind, in order, and the number of each entry's."""
        names = sort_names(self.texts[what])
        number = {name: place for place, name in enumerate(names)}
        return names, np.array([number[text] for text in self.texts[what]], dtype=np.intp)


def read_entries(path: PathLike, kinds: Sequence[str], weight: str | None = None) -> Entries:
    """Read a long table, a line an entry: its columns ``kinds``, ``value`` and ``weight``."""
    source = os.fspath(path)
    columns = [*kinds, "value", *([] if weight is None else [weight.strip().lower()])]

    def places_of(header: list[str]) -> list[int]:
        return _places(header, columns, source)

    texts: dict[str, list[str]] = {kind: [] for kind in kinds}
    numbers: tuple[list[float], list[float]] = ([], [])
    for where, cells in read_cells(path, places_of):
        values = cells[len(kinds) :]
        for what, text, into in zip(("value", "weight"), values, numbers, strict=False):
            value = read_float(text, finite=True)
            if value is None:
                raise InputError(
                    f"{where} has the {what} {text[:40]!r}, which is no finite number; leave out "
                    "the lines of what was not seen"
                )
            into.append(value)
        for kind, text in zip(kinds, cells, strict=False):
            if not 0 < len(text) <= LONGEST_NAME or "\0" in text:
                raise InputError(f"{where} names no {kind} that can be used, got {text[:40]!r}")
            texts[kind].append(text)
    if not numbers[0]:
        raise InputError(f"{source} has a header but no entries")
    found, weights = map(np.array, numbers)
    return Entries(texts, found, None if weight is None else weights)


def _places(fields: list[str], columns: list[str], source: str) -> list[int]:
    """Places of columns in the header, which may have others."""
    found = [field.strip().lower() for field in fields]
    wrong = [name for name in columns if found.count(name) != 1]
    if not wrong:
        return [found.index(name) for name in columns]
    lacking = [name for name in wrong if name not in found]
    if lacking:
        hint = did_you_mean(lacking[0], found)
        problem = f"has no column {lacking[0]!r}{hint}"
    else:
        problem = f"has the column {wrong[0]!r} twice"
    got = shorten([repr(field) for field in fields]) or "an empty line"
    raise InputError(
        f"{source} must be a table with the columns {', '.join(columns)} named in its first line, "
        f"but it {problem}; got {got}"
    )
