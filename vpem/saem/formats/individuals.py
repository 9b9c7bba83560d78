"""Individuals on disk: a long CSV table, or HDF5 with a column a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from vpem.errors import FileError, InputError, MissingColumnError, did_you_mean, shorten
from vpem.files.hdf5 import (
    atomic_write,
    check_encoding,
    create,
    find,
    is_group,
    list_members,
    open_read,
    read_array,
    read_strings,
    write_array,
    write_strings,
)
from vpem.files.long_csv import is_long_csv, sort_names
from vpem.saem.corpus import share_words
from vpem.saem.doses import Doses, doses_of
from vpem.saem.formats import INDIVIDUALS
from vpem.saem.formats.long_table import MOST_COLUMNS, LongTable
from vpem.saem.individuals import Individuals, from_long

PathLike = str | os.PathLike[str]
ENCODING = INDIVIDUALS
VERSION = "0.1.0"
DOSES = ("times", "amounts", "durations")


def read_individuals(
    path: PathLike,
    *,
    id: str = "id",
    time: str = "time",
    value: str = "value",
    covariates: Sequence[str] | None = None,
    also: Sequence[str] = (),
    words: Sequence[str] = ("outcome",),
    texts: Sequence[str] = (),
    missing: bool = False,
    doses: Mapping[str, str] | None = None,
) -> Individuals:
    """Read individuals from HDF5 or from a long CSV table.

    Parameters
    ----------
    path : path
        A ``.csv``, ``.tsv`` or ``.txt`` file, also packed, with a line a measurement and names of
        the columns in its first line; a Parquet or Arrow file of such columns; or an HDF5 file as
        `write_individuals` makes it.
    id, time, value : str
        Names of the three columns of a CSV table.
    covariates : sequence of str, optional
        Which other columns to read; None: all. They hold numbers, or nothing (or ``NA``, ``.``)
        where they are missing.
    also : sequence of str
        Further columns to read if they are there.
    words : sequence of str
        Which of the other columns may hold words, which are then numbered from 0 in the order of
        the alphabet; ``columns["words"]`` has them.
    texts : sequence of str
        Which may hold nothing but words, numbered alike; ``Sex=Male`` is then the covariate that is
        1 for the word ``Male`` of ``Sex``, and 0 for others.
    missing : bool
        Whether values may be missing in the same way, or NaN: such rows are left out.
    doses : mapping of str to str, optional
        Lines of a CSV table may be doses: columns of `vpem.saem.formats.events.EVENTS` that have
        another name. None: such columns are covariates as others.

    Returns
    -------
    Individuals
        In the order of the file.

    Raises
    ------
    FileError
        If the file cannot be read, or an element is not what it must be.
    InputError
        If a column is missing or holds something else than numbers, or the rows of an individual
        are in several places.
    """
    if is_long_csv(path):
        three = (id, time, value)
        table = LongTable(path, three, covariates, also, words, missing, doses, texts)
        return table.individuals()
    return _read_hdf5(path, covariates, also, missing)


def _read_hdf5(
    path: PathLike, covariates: Sequence[str] | None, also: Sequence[str], missing: bool
) -> Individuals:
    source = os.fspath(path)
    with open_read(path) as file:
        check_encoding(file, ENCODING, VERSION)
        names = read_strings(file, "names")
        counts = read_array(file, "counts", shape=(len(names),), kinds="iu")
        times = read_array(file, "times", ndim=1)
        values = read_array(file, "values", shape=times.shape)
        # Counts of any size would be summed to nonsense.
        if not names or counts.min() < 1 or counts.max() > len(times):
            raise FileError(f"{source}: counts must be the rows of each individual, at least one")
        if int(counts.astype(object).sum()) != len(times):
            raise FileError(f"{source}: counts must add up to its {len(times)} rows")
        group = find(file, "covariates")
        if group is not None and not is_group(group):
            raise FileError(f"{source}: covariates must be a group with a member a covariate")
        have = [] if group is None else sorted(list_members(group, MOST_COLUMNS))
        wanted = have
        if covariates is not None:
            wanted = list(dict.fromkeys([*covariates, *(name for name in also if name in have)]))
        for name in wanted:
            if name not in have:
                raise MissingColumnError(
                    f"{source} has no covariate {name!r}{did_you_mean(name, have)}", name
                )
        read = {name: read_array(group, name, shape=times.shape) for name in wanted}
        words = None if find(file, "words") is None else read_strings(file, "words")
        doses = _read_doses(file, len(names), source)
        numbered = _read_numbered(file, read)
    if len(set(names)) < len(names):
        raise InputError(f"{source}: two individuals have the same name; their names must differ")
    if words is not None and not np.isin(times, np.arange(len(words))).all():
        raise FileError(f"{source}: times must be numbers of its {len(words)} words, from 0")
    ids = np.repeat(np.array(names, dtype=object), counts.astype(np.intp))
    found = from_long(ids, times, values, read, source, missing)
    told = {"words": numbered} if numbered else {}
    return replace(found, words=words, doses=doses, columns=told)


def _read_doses(file: h5py.File, n: int, source: str) -> Doses | None:
    """Read the doses of n individuals, where there are any."""
    group = find(file, "doses")
    if group is None:
        return None
    if not is_group(group):
        raise FileError(f"{source}: doses must be a group")
    counts = read_array(group, "counts", shape=(n,), kinds="iu")
    times = read_array(group, "times", ndim=1)
    columns = [read_array(group, name, shape=times.shape) for name in ("amounts", "durations")]
    if counts.min() < 0 or int(counts.astype(object).sum()) != len(times):
        raise FileError(f"{source}: the counts of doses must add up to its {len(times)} doses")
    for column in (times, *columns):
        if not np.isfinite(column).all() or (column is not times and column.min(initial=0) < 0):
            raise FileError(f"{source}: doses must be finite numbers, amounts and durations from 0")
    who = np.repeat(np.arange(n), counts.astype(np.intp))
    return Doses.of(n, who, times, *columns)


def _read_numbered(file: h5py.File, read: Mapping[str, NDArray[Any]]) -> dict[str, list[str]]:
    """Read the words that covariates are the numbers of."""
    group = find(file, "covariate_words")
    if group is None or not is_group(group):
        return {}
    names = [name for name in list_members(group, MOST_COLUMNS) if name in read]
    return {name: list(read_strings(group, name)) for name in names}


def chain(parts: Sequence[Individuals]) -> Individuals:
    """Put individuals of several sources, no two of one name, one after the other."""
    if len(parts) == 1:
        return parts[0]
    tables = join_numbers([part.columns.get("words", {}) for part in parts])
    parts = [numbered_as(part, tables) for part in share_words(parts)]
    given = any(part.doses is not None for part in parts)
    names = tuple(name for part in parts for name in part.names)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        sources = " and ".join(part.source for part in parts if twice in part.names)
        raise InputError(f"{sources} both have an individual {twice!r}; their names must differ")
    ends = np.cumsum([0, *(part.n_rows for part in parts)])
    first = [part.first[:-1] + end for part, end in zip(parts, ends, strict=False)]
    kept = [name for name in parts[0].covariates if all(name in one.covariates for one in parts)]
    return Individuals(
        names,
        np.concatenate([*first, ends[-1:]]).astype(np.intp),
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.values for part in parts]),
        {name: np.concatenate([part.covariates[name] for part in parts]) for name in kept},
        ", ".join(part.source for part in parts),
        parts[0].columns,
        None if parts[0].weights is None else np.concatenate([part.weights for part in parts]),
        words=parts[0].words,
        doses=Doses.chain([doses_of(part) for part in parts]) if given else None,
    )


def join_numbers(tables: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    """Join tables of words of covariates, which then have the same numbers everywhere."""
    names = dict.fromkeys(name for table in tables for name in table)
    return {
        name: sort_names(word for table in tables for word in table.get(name, ())) for name in names
    }


def numbered_as(found: Individuals, tables: Mapping[str, Sequence[str]]) -> Individuals:
    """Return individuals whose covariates are numbers of words in these tables."""
    if not tables:
        return found
    own = found.columns.get("words", {})
    covariates = dict(found.covariates)
    for name, words in tables.items():
        if name not in covariates or list(own.get(name, ())) == list(words):
            continue
        lacking = [word for word in own.get(name, ()) if word not in words]
        if lacking or name not in own:
            what = shorten([repr(word) for word in lacking]) or "numbers"
            raise InputError(
                f"{found.source}: {name} has {what}, where others have "
                f"{shorten([repr(word) for word in words])}; give the same words everywhere"
            )
        numbers = np.array([*(words.index(word) for word in own[name]), np.nan])
        values = covariates[name]
        covariates[name] = numbers[np.where(np.isnan(values), -1, values).astype(np.intp)]
    told = {**found.columns, "words": {name: list(words) for name, words in tables.items()}}
    return replace(found, covariates=covariates, columns=told)


def write_individuals(path: PathLike, found: Individuals, force: bool = False) -> None:
    """Write individuals to HDF5, all or nothing."""
    with (
        atomic_write(path, force, "individuals") as temporary,
        create(temporary, ENCODING, VERSION) as file,
    ):
        write_strings(file, "names", found.names)
        write_array(file, "counts", found.counts.astype(np.int64))
        write_array(file, "times", found.times)
        write_array(file, "values", found.values)
        if found.words is not None:
            write_strings(file, "words", found.words)
        group = file.create_group("covariates")
        for name, values in found.covariates.items():
            write_array(group, name, values)
        if found.columns.get("words"):
            tables = file.create_group("covariate_words")
            for name, words in found.columns["words"].items():
                write_strings(tables, name, words)
        if found.doses is not None:
            given = file.create_group("doses")
            write_array(given, "counts", found.doses.counts.astype(np.int64))
            for name, column in zip(DOSES, found.doses.columns, strict=True):
                write_array(given, name, column)
