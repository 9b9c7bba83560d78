"""Observations on disk: HDF5 with a matrix or a list of entries an observer, and long CSV.

A long table has a line a measurement; anybody may have written it.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from io import TextIOWrapper
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, read_float, read_int
from vpem.errors import FileError, InputError, did_you_mean, shorten
from vpem.files.data import STDIN, read_data
from vpem.files.datasets import STORED
from vpem.files.hdf5 import (
    check_encoding,
    find,
    is_group,
    list_members,
    open_read,
    read_array,
    read_column,
    read_strings,
    write_array,
    write_file,
    write_strings,
)
from vpem.files.lakes import Stored
from vpem.files.opening import PathLike, check_readable, open_unpacked, read_limit
from vpem.files.table_settings import TableSettings
from vpem.terms.lowrank.entries import from_matrices, from_triplets
from vpem.terms.lowrank.observations import Observations

if TYPE_CHECKING:
    import h5py

    from vpem.files.datasets import Dataset


LONGEST_NAME = 4096
DELIMITERS = ",;\t"
"""Of columns: what the first line has most of."""
ENDINGS = re.compile(
    r"\.((csv|tsv|txt)(\.(gz|bz2|xz|zip))?|parquet|pq|feather|arrow)$", re.IGNORECASE
)
COLUMNS = re.compile(r"\.(parquet|pq|feather|arrow)$", re.IGNORECASE)

ENCODING = "vpem-observations"
VERSION = "0.1.0"
KINDS = ("observer", "row", "column")
MOST_OBSERVERS = 1 << 20


def read_observations(
    path: PathLike,
    dataset: str | None = None,
    sample_weight: str | None = None,
    *,
    table: TableSettings | None = None,
    tell: Callable[[Dataset], None] | None = None,
) -> Observations:
    """Read observations from HDF5, from a long CSV table, or from a matrix with gaps.

    Parameters
    ----------
    path : path
        A ``.csv`` file with the columns observer, row, column and value; an HDF5 file with the
        group ``observers``; or a matrix of any format that `vpem.read_dataset` reads, empty or NaN
        where nothing was seen; ``-`` is one from standard input.
    dataset : str, optional
        Path inside the HDF5 file of a matrix to read instead.
    sample_weight : str, optional
        What the entries weigh (`vpem.terms.lowrank.entries.weighted`): a column of a CSV table; a
        member of each observer's list of entries; a group with a matrix an observer beside
        matrices; or of a matrix a weight a row: beside ``X``, or a column of a table. Default: all
        alike.
    table : TableSettings, optional
        How a table that is a matrix is read.
    tell : callable, optional
        Is given the dataset that was read of a matrix.

    Returns
    -------
    Observations
        Rows, columns and observers of a CSV table are in the order of their names: of numbers by
        size, of others by the alphabet.

    Raises
    ------
    FileError
        If the file cannot be read, or an element is not what it must be.
    InputError
        If an observer has an entry twice, a value is not a finite number, or a row, a column or an
        observer has no entry.
    """
    header = header_of(path)
    table = TableSettings.resolve(table)
    if is_long(header) or "observer" in map(str.lower, header):
        table.refuse_idle(format="entries")
        if dataset is not None:
            raise InputError(f"{path} is a CSV table: there is no dataset {dataset!r} inside it")
        named, values, weights = read_entries([path], KINDS, sample_weight)
        (names, observers), (row_names, rows), (column_names, columns) = named
        listed = from_triplets(
            observers,
            rows,
            columns,
            values,
            names=names,
            row_names=row_names,
            column_names=column_names,
            source=os.fspath(path),
            weights=weights,
        )
        return replace(listed, long=True)
    if dataset is None and os.fspath(path) != STDIN:
        import h5py

        if h5py.is_hdf5(check_readable(path)):
            with open_read(path) as file:
                group = find(file, "observers")
                if group is not None:
                    check_encoding(file, ENCODING, VERSION)
                    if not is_group(group):
                        raise FileError(
                            f"{path}: observers must be a group with a member an observer"
                        )
                    table.refuse_idle(format="entries")
                    return _read_members(file, group, os.fspath(path), sample_weight)
    data = read_data(path, table, keep_constant=True, dataset=dataset, sample_weight=sample_weight)
    if tell is not None:
        tell(data)
    # One observer saw what of a matrix is not missing.
    row_ids = None if data.ids is None else [str(name) for name in data.ids.tolist()]
    weights = None
    if sample_weight is not None and data.sample_weight is not None:
        weights = np.broadcast_to(data.sample_weight[:, None], data.X.shape)
    return from_matrices(
        data.X,
        row_names=row_ids,
        column_names=data.feature_names,
        source=data.source,
        weights=weights,
    )


def _read_members(
    file: h5py.File, group: h5py.Group, source: str, weight: str | None
) -> Observations:
    keys = list_members(group, MOST_OBSERVERS)
    if not keys:
        raise FileError(f"{source}: the group observers is empty")
    # Those called by numbers are in order by size, others by the alphabet.
    numbers = {key: read_int(key) for key in keys}
    by_size = None not in numbers.values()
    keys.sort(key=lambda key: (numbers[key] if by_size else 0, key))
    named = find(file, "observer_names") is not None
    names = read_strings(file, "observer_names", shape=(len(keys),)) if named else tuple(keys)
    labels: list[list[str] | None] = [
        None
        if find(file, name) is None
        else [str(value) for value in read_column(file, name).tolist()]
        for name in ("row_names", "column_names")
    ]
    shape: list[int | None] = [None if one is None else len(one) for one in labels]
    members = [find(group, key) for key in keys]
    listed = [is_group(member) for member in members]
    if not any(listed):
        matrices = {}
        for key in keys:
            matrices[key] = read_array(group, key, shape=tuple(shape))
            shape = list(matrices[key].shape)
        weights = None
        if weight is not None:
            weights = {key: read_array(file, f"{weight}/{key}", shape=tuple(shape)) for key in keys}
        observations = from_matrices(
            matrices, row_names=labels[0], column_names=labels[1], source=source, weights=weights
        )
        if len(set(names)) < len(names):
            twice = next(name for name in names if list(names).count(name) > 1)
            raise InputError(
                f"{source}: two observers are called {twice!r}; their names must differ"
            )
        return replace(observations, names=tuple(names))
    if not all(listed):
        odd = keys[listed.index(not listed[0])]
        raise FileError(
            f"{source}: observers must all have matrices or all have lists of entries, but those "
            f"of {keys[0]!r} and {odd!r} differ"
        )
    parts = [_read_entries(member, source, weight) for member in members]
    for place in range(2):
        if labels[place] is None:
            number = 1 + max(int(part[place].max(initial=-1)) for part in parts)
            # Entries of one column each could declare any number of them.
            if number * 8 > max(read_limit(), os.path.getsize(source) * 8):
                raise FileError(
                    f"{source}: a list of entries has {KINDS[place + 1]} {number - 1}, but a "
                    "file of this size cannot have an entry in each; number them from 0"
                )
            labels[place] = [f"{KINDS[place + 1]} {one}" for one in range(number)]
    for key, part in zip(keys, parts, strict=True):
        for place in range(2):
            most = len(labels[place] or ())
            if part[place].size and not 0 <= part[place].min() <= part[place].max() < most:
                wrong = part[place][(part[place] < 0) | (part[place] >= most)][0]
                raise InputError(
                    f"{source}: observer {key!r} has an entry in {KINDS[place + 1]} {wrong}, but "
                    f"they are numbered 0 to {most - 1}"
                )
    counts = [len(part[2]) for part in parts]
    return from_triplets(
        np.repeat(np.arange(len(parts)), counts),
        np.concatenate([part[0] for part in parts]).astype(np.intp),
        np.concatenate([part[1] for part in parts]).astype(np.intp),
        np.concatenate([part[2] for part in parts]).astype(np.float64),
        names=names,
        row_names=labels[0] or (),
        column_names=labels[1] or (),
        source=source,
        weights=None if weight is None else np.concatenate([part[3] for part in parts]),
    )


def _read_entries(member: h5py.Group, source: str, weight: str | None) -> tuple[AnyArray, ...]:
    rows = read_array(member, "rows", ndim=1, kinds="iu")
    columns = read_array(member, "columns", shape=rows.shape, kinds="iu")
    values = read_array(member, "values", shape=rows.shape)
    for what, numbers in (("rows", rows), ("columns", columns)):
        if numbers.size and numbers.max() > np.iinfo(np.int64).max // 2:
            raise FileError(
                f"{source}: {member.name}/{what} holds {numbers.max()}, no number of one"
            )
    entries = rows.astype(np.int64), columns.astype(np.int64), values
    if weight is None:
        return entries
    return *entries, read_array(member, weight, shape=rows.shape, kinds="iuf").astype(np.float64)


def write_observations(path: PathLike, found: Observations, force: bool = False) -> None:
    """Write observations to HDF5, a list of entries an observer, all or nothing.

    Weights, if there are any, are called ``sample_weight``.

    Parameters
    ----------
    path : path
        The file.
    found : Observations
        What to write.
    force : bool
        Replace an existing file.

    Raises
    ------
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    """
    with write_file(path, force, "observations", ENCODING, VERSION) as file:
        write_strings(file, "row_names", found.row_names)
        write_strings(file, "column_names", found.column_names)
        write_strings(file, "observer_names", found.names)
        group = file.create_group("observers")
        for number, (places, values) in enumerate(zip(found.places, found.values, strict=True)):
            member = group.create_group(str(number))
            rows, columns = np.divmod(places, found.shape[1])
            write_array(member, "rows", rows.astype(np.int64))
            write_array(member, "columns", columns.astype(np.int64))
            write_array(member, "values", values)
            if found.weights is not None:
                write_array(member, STORED, found.weights[number])


def is_long_csv(path: PathLike) -> bool:
    """Whether a file's name is that of a long table, which may be packed."""
    return ENDINGS.search(os.fspath(path)) is not None


def is_long(header: Sequence[str]) -> bool:
    return {"row", "column", "value"} <= {name.strip().lower() for name in header}


def header_of(path: PathLike) -> list[str]:
    """Return the names of the columns of a table of text; of other files, or a broken one, none."""
    if not is_long_csv(path) or not os.path.exists(path):
        return []
    try:
        with closing(_lines(path)) as lines:
            return next(lines, (0, []))[1]
    except (FileError, OSError, UnicodeDecodeError):  # the reader of the rest says why
        return []


Named = tuple[list[str], NDArray[np.intp]]
"""Names of rows, columns or observers, in order, and the number of each entry's (m,)."""


def read_entries(
    paths: Sequence[PathLike], kinds: Sequence[str], weight: str | None = None
) -> tuple[list[Named], NDArray[np.float64], NDArray[np.float64] | None]:
    """Read long tables, a line an entry, that follow one another.

    Returned are what their columns ``kinds`` name, values, which are finite, and weights.
    """
    texts: dict[str, list[str]] = {kind: [] for kind in kinds}
    numbers: tuple[list[float], list[float]] = ([], [])
    columns = [*kinds, "value", *([] if weight is None else [weight.strip().lower()])]
    for path in paths:
        source, before = os.fspath(path), len(numbers[0])
        for where, cells in read_cells(path, partial(_places_of, columns, source)):
            values = cells[len(kinds) :]
            for what, text, into in zip(("value", "weight"), values, numbers, strict=False):
                value = read_float(text, finite=True)
                if value is None:
                    raise InputError(
                        f"{where} has the {what} {text[:40]!r}, which is no finite number; leave "
                        "out the lines of what was not seen"
                    )
                into.append(value)
            for kind, text in zip(kinds, cells, strict=False):
                if not 0 < len(text) <= LONGEST_NAME or "\0" in text:
                    raise InputError(f"{where} names no {kind} that can be used, got {text[:40]!r}")
                texts[kind].append(text)
        if len(numbers[0]) == before:
            raise InputError(f"{source} has a header but no entries")
    named = []
    for kind in kinds:
        names = sort_names(texts[kind])
        number = {name: place for place, name in enumerate(names)}
        named.append((names, np.array([number[text] for text in texts[kind]], dtype=np.intp)))
    values_of, weights = map(np.array, numbers)
    return named, values_of, None if weight is None else weights


def _places_of(columns: Sequence[str], source: str, header: list[str]) -> list[int]:
    names = [field.strip().lower() for field in header]
    wrong = [name for name in columns if names.count(name) != 1]
    if not wrong:
        return [names.index(name) for name in columns]
    lacking = [name for name in wrong if name not in names]
    if lacking:
        problem = f"has no column {lacking[0]!r}{did_you_mean(lacking[0], names)}"
    else:
        problem = f"has the column {wrong[0]!r} twice"
    got = shorten([repr(field) for field in header]) or "an empty line"
    raise InputError(
        f"{source} must be a table with the columns {', '.join(columns)} named in its first "
        f"line, but it {problem}; got {got}"
    )


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
        with closing(_lines(path)) as lines:
            _, header = next(lines, (0, []))
            places = places_of(header)
            for number, fields in lines:
                if not "".join(fields).strip() and len(fields) < 2:
                    continue
                where = f"{source}: line {number}"
                if len(fields) != len(header):
                    count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
                    raise InputError(f"{where} has {count}, the header {len(header)}")
                yield where, [fields[place].strip() for place in places]
    except UnicodeDecodeError:
        raise FileError(f"{source} is not UTF-8 text; save it as UTF-8") from None
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{source} cannot be read: {error.strerror or error}") from error


def _lines(path: PathLike) -> Generator[tuple[int, list[str]], None, None]:
    """Yield the number and the fields of each line of a table, which may be packed.

    Rows of a Parquet, Feather or Arrow file are text after their names, as csv has lines.
    """
    source = os.fspath(path)
    if COLUMNS.search(source):
        from vpem.files.readers.tabular import arrow_frame, parquet_frame

        opened = parquet_frame if source.lower().endswith((".parquet", ".pq")) else arrow_frame
        frame = opened(Stored(source, source))
        frame = frame if frame.ranged is None else frame.ranged
        read = frame.read(range(len(frame.names)), ())
        yield 1, list(frame.names)
        for number, row in enumerate(zip(*(one.to_pylist() for one in read), strict=True), 2):
            yield number, [
                "" if value is None else f"{value:.17g}" if isinstance(value, float)
                else str(int(value) if isinstance(value, bool) else value) for value in row
            ]  # fmt: skip
        return
    with TextIOWrapper(open_unpacked(path), "utf-8-sig", newline="") as stream:
        first = stream.readline()
        mark = max(DELIMITERS, key=first.count)
        reader = csv.reader(chain([first], stream), strict=True, delimiter=mark)
        try:
            for fields in reader:
                yield reader.line_num, fields
        except csv.Error as error:
            raise FileError(f"{source}: line {reader.line_num} is no CSV: {error}") from None


def sort_names(names: Iterable[str]) -> list[str]:
    """Return different names in order: numbers by size, others by the alphabet."""
    numbers = {name: read_float(name, finite=True) for name in names}
    if None in numbers.values():
        return sorted(numbers)
    return sorted(numbers, key=lambda name: (numbers[name], name))
