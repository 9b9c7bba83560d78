"""Observations on disk: HDF5 with a matrix or a list of entries an observer, and long CSV."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vpem.checks import read_int
from vpem.errors import FileError, InputError
from vpem.files.annotations import STORED
from vpem.files.data import STDIN, read_data
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
from vpem.files.long_csv import header_of, is_long, read_entries
from vpem.files.opening import check_readable, read_limit
from vpem.terms.lowrank.entries import from_matrices, from_triplets
from vpem.terms.lowrank.observations import Observations

if TYPE_CHECKING:
    import h5py

    from vpem.files.datasets import Dataset
    from vpem.files.table_settings import TableSettings


PathLike = str | os.PathLike[str]
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
    if is_long(header) or "observer" in map(str.lower, header):
        if dataset is not None:
            raise InputError(f"{path} is a CSV table: there is no dataset {dataset!r} inside it")
        return _read_csv(path, sample_weight)
    matrix = dataset is not None or os.fspath(path) == STDIN
    found = None if matrix else _read_observers_of(path, sample_weight)
    if found is not None:
        return found
    how: dict[str, Any] = {"dataset": dataset, "sample_weight": sample_weight}
    data = read_data(path, table, keep_constant=True, **how)
    if tell is not None:
        tell(data)
    return _of_matrix(data, sample_weight is not None)


# ---- CSV ----------------------------------------------------------------------------------------


def _read_csv(path: PathLike, weight: str | None) -> Observations:
    found = read_entries(path, KINDS, weight)
    (names, observers), (row_names, rows), (column_names, columns) = map(found.numbered, KINDS)
    listed = from_triplets(
        observers,
        rows,
        columns,
        found.values,
        names=names,
        row_names=row_names,
        column_names=column_names,
        source=os.fspath(path),
        weights=found.weights,
    )
    return replace(listed, long=True)


# ---- HDF5 ---------------------------------------------------------------------------------------


def _read_observers_of(path: PathLike, weight: str | None) -> Observations | None:
    """Read the group of observers of an HDF5 file; None: there is none."""
    import h5py

    file = check_readable(path)
    if not h5py.is_hdf5(file):
        return None
    with open_read(file) as stream:
        group = find(stream, "observers")
        if group is None:
            return None
        check_encoding(stream, ENCODING, VERSION)
        if not is_group(group):
            raise FileError(f"{path}: observers must be a group with a member an observer")
        return _read_observers(stream, group, os.fspath(path), weight)


def _of_matrix(data: Dataset, weighted: bool) -> Observations:
    """Return what one observer saw, who saw what of a matrix is not missing."""
    rows = None if data.ids is None else [str(name) for name in data.ids.tolist()]
    weights = None
    if weighted and data.sample_weight is not None:
        weights = np.broadcast_to(data.sample_weight[:, None], data.X.shape)
    names = data.feature_names
    return from_matrices(
        data.X, row_names=rows, column_names=names, source=data.source, weights=weights
    )


def _read_observers(
    file: h5py.File, group: h5py.Group, source: str, weight: str | None
) -> Observations:
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
        weights = None
        if weight is not None:
            weights = {key: read_array(file, f"{weight}/{key}", shape=tuple(shape)) for key in keys}
        found = from_matrices(
            matrices, row_names=labels[0], column_names=labels[1], source=source, weights=weights
        )
        if len(set(names)) < len(names):
            twice = next(name for name in names if list(names).count(name) > 1)
            raise InputError(
                f"{source}: two observers are called {twice!r}; their names must differ"
            )
        return replace(found, names=tuple(names))
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


def _read_entries(member: h5py.Group, source: str, weight: str | None) -> tuple[Any, ...]:
    """Read rows, columns and values, and weights if there are any, of one observer."""
    rows = read_array(member, "rows", ndim=1, kinds="iu")
    columns = read_array(member, "columns", shape=rows.shape, kinds="iu")
    values = read_array(member, "values", shape=rows.shape)
    for what, numbers in (("rows", rows), ("columns", columns)):
        if numbers.size and numbers.max() > np.iinfo(np.int64).max // 2:
            raise FileError(
                f"{source}: {member.name}/{what} holds {numbers.max()}, no number of one"
            )
    found = rows.astype(np.int64), columns.astype(np.int64), values
    if weight is None:
        return found
    return *found, read_array(member, weight, shape=rows.shape, kinds="iuf").astype(np.float64)


def _labels(file: h5py.File, name: str) -> list[str] | None:
    """Names of rows or columns, strings or numbers, or None."""
    if find(file, name) is None:
        return None
    return [str(value) for value in read_column(file, name).tolist()]


def _in_order(keys: Sequence[str]) -> list[str]:
    """Members of a group: those called by numbers by size, others by the alphabet."""
    numbers = {key: read_int(key) for key in keys}
    by_size = None not in numbers.values()
    return sorted(keys, key=lambda key: (numbers[key] if by_size else 0, key))


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
            if found.weights is not None:
                write_array(member, STORED, found.weights[number])
