"""Observations on disk: HDF5 with a matrix or a list of entries an observer, and long CSV."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.errors import FileError, InputError, did_you_mean, shorten
from vpem.files.hdf5 import (
    atomic_write,
    check_encoding,
    create,
    find,
    is_group,
    list_members,
    open_read,
    read_array,
    read_column,
    read_strings,
    write_array,
    write_strings,
)
from vpem.files.long_csv import LONGEST_NAME, NUMBER, finite_number, read_cells
from vpem.files.opening import read_limit
from vpem.terms.lowrank.entries import from_matrices, from_triplets
from vpem.terms.lowrank.observations import Observations

if TYPE_CHECKING:
    import h5py

__all__ = ["read_observations", "write_observations"]

PathLike = str | os.PathLike[str]
ENCODING = "vpem-observations"
VERSION = "0.1.0"
COLUMNS = ("observer", "row", "column", "value")
MOST_OBSERVERS = 1 << 20


def read_observations(path: PathLike, dataset: str | None = None) -> Observations:
    """Read observations from HDF5 or from a long CSV table.

    Parameters
    ----------
    path : path
        A ``.csv`` file with the columns observer, row, column and value; or an HDF5 file with the
        group ``observers``, or with a matrix ``X``, NaN where nothing was seen.
    dataset : str, optional
        Path inside the HDF5 file of a matrix to read instead.

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
    if Path(path).suffix.lower() == ".csv":
        if dataset is not None:
            raise InputError(f"{path} is a CSV table: there is no dataset {dataset!r} inside it")
        return _read_csv(path)
    return _read_hdf5(path, dataset)


# ---- CSV ----------------------------------------------------------------------------------------


def _read_csv(path: PathLike) -> Observations:
    source = os.fspath(path)
    texts: tuple[list[str], list[str], list[str]] = ([], [], [])
    values: list[float] = []
    for where, cells in read_cells(path, lambda header: _places(header, source)):
        value = finite_number(cells[3])
        if value is None:
            raise InputError(
                f"{where} has the value {cells[3][:40]!r}, which is no finite number; leave out "
                "the lines of what was not seen"
            )
        values.append(value)
        for what, text, into in zip(COLUMNS, cells, texts, strict=False):
            if not 0 < len(text) <= LONGEST_NAME or "\0" in text:
                raise InputError(f"{where} names no {what} that can be used, got {text[:40]!r}")
            into.append(text)
    if not values:
        raise InputError(f"{source} has a header but no entries")
    (names, observers), (row_names, rows), (column_names, columns) = map(_numbered, texts)
    return from_triplets(
        observers,
        rows,
        columns,
        np.array(values),
        names=names,
        row_names=row_names,
        column_names=column_names,
        source=source,
    )


def _places(fields: list[str], source: str) -> list[int]:
    """Places of observer, row, column and value in the header."""
    found = [field.strip().lower() for field in fields]
    if sorted(found) == sorted(COLUMNS):
        return [found.index(name) for name in COLUMNS]
    lacking = [name for name in COLUMNS if name not in found]
    if lacking:
        hint = did_you_mean(lacking[0], found)
        problem = f"has no column {lacking[0]!r}{hint}"
    else:
        problem = "has more columns"
    raise InputError(
        f"{source} must be a table with the columns {', '.join(COLUMNS)} named in its first line, "
        f"but it {problem}; got {shorten([repr(field) for field in fields]) or 'an empty line'}"
    )


def _numbered(texts: list[str]) -> tuple[list[str], NDArray[np.intp]]:
    """Return names in order and the number of each text's."""
    different = set(texts)
    if all(NUMBER.fullmatch(text) for text in different):
        names = sorted(different, key=lambda text: (float(text), text))
    else:
        names = sorted(different)
    number = {name: place for place, name in enumerate(names)}
    return names, np.array([number[text] for text in texts], dtype=np.intp)


# ---- HDF5 ---------------------------------------------------------------------------------------


def _read_hdf5(path: PathLike, dataset: str | None) -> Observations:
    source = os.fspath(path)
    with open_read(path) as file:
        group = None if dataset is not None else find(file, "observers")
        if group is not None:
            check_encoding(file, ENCODING, VERSION)
            if not is_group(group):
                raise FileError(f"{source}: observers must be a group with a member an observer")
            return _read_observers(file, group, source)
    from vpem.files.datasets import read_dataset

    data = read_dataset(path, dataset)
    rows = None if data.ids is None else [str(name) for name in data.ids.tolist()]
    return from_matrices(data.X, row_names=rows, column_names=data.feature_names, source=source)


def _read_observers(file: h5py.File, group: h5py.Group, source: str) -> Observations:
    """Read matrices, or lists of entries, of all observers."""
    keys = _in_order(list_members(group, MOST_OBSERVERS))
    if not keys:
        raise FileError(f"{source}: the group observers is empty")
    named = find(file, "observer_names") is not None
    names = read_strings(file, "observer_names", shape=(len(keys),)) if named else tuple(keys)
    labels = [_labels(file, name) for name in ("row_names", "column_names")]
    shape: list[int | None] = [None if one is None else len(one) for one in labels]
    members = [find(group, key) for key in keys]
    listed = [is_group(member) for member in members]
    if not any(listed):
        matrices = {}
        for key in keys:
            matrices[key] = read_array(group, key, shape=tuple(shape))
            shape = list(matrices[key].shape)
        found = from_matrices(matrices, row_names=labels[0], column_names=labels[1], source=source)
        return _renamed(found, names, source)
    if not all(listed):
        odd = keys[listed.index(not listed[0])]
        raise FileError(
            f"{source}: observers must all have matrices or all have lists of entries, but those "
            f"of {keys[0]!r} and {odd!r} differ"
        )
    parts = [_read_entries(member, source) for member in members]
    for place in range(2):
        if labels[place] is None:
            number = 1 + max(int(part[place].max(initial=-1)) for part in parts)
            # Entries of one column each could declare any number of them.
            if number * 8 > max(read_limit(), os.path.getsize(source) * 8):
                raise FileError(
                    f"{source}: a list of entries has {COLUMNS[place + 1]} {number - 1}, but a "
                    "file of this size cannot have an entry in each; number them from 0"
                )
            labels[place] = [f"{COLUMNS[place + 1]} {one}" for one in range(number)]
    for key, part in zip(keys, parts, strict=True):
        for place in range(2):
            most = len(labels[place] or ())
            if part[place].size and not 0 <= part[place].min() <= part[place].max() < most:
                wrong = part[place][(part[place] < 0) | (part[place] >= most)][0]
                raise InputError(
                    f"{source}: observer {key!r} has an entry in {COLUMNS[place + 1]} {wrong}, but "
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
    )


def _read_entries(member: h5py.Group, source: str) -> tuple[Floats, ...]:
    """Read rows, columns and values of one observer."""
    rows = read_array(member, "rows", ndim=1, kinds="iu")
    columns = read_array(member, "columns", shape=rows.shape, kinds="iu")
    values = read_array(member, "values", shape=rows.shape)
    for what, numbers in (("rows", rows), ("columns", columns)):
        if numbers.size and numbers.max() > np.iinfo(np.int64).max // 2:
            raise FileError(
                f"{source}: {member.name}/{what} holds {numbers.max()}, no number of one"
            )
    return rows.astype(np.int64), columns.astype(np.int64), values


def _labels(file: h5py.File, name: str) -> list[str] | None:
    """Names of rows or columns, strings or numbers, or None."""
    if find(file, name) is None:
        return None
    return [str(value) for value in read_column(file, name).tolist()]


def _in_order(keys: Sequence[str]) -> list[str]:
    """Members of a group: those called by numbers by size, others by the alphabet."""
    if all(key.isdecimal() and key.isascii() and len(key) < 20 for key in keys):
        return sorted(keys, key=lambda key: (int(key), key))
    return sorted(keys)


def _renamed(found: Observations, names: Sequence[str], source: str) -> Observations:
    from dataclasses import replace

    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise InputError(f"{source}: two observers are called {twice!r}; their names must differ")
    return replace(found, names=tuple(names))


def write_observations(path: PathLike, found: Observations, force: bool = False) -> None:
    """Write observations to HDF5, a list of entries an observer, all or nothing.

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
    with (
        atomic_write(path, force, "observations") as temporary,
        create(temporary, ENCODING, VERSION) as file,
    ):
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
