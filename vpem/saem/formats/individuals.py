"""Individuals on disk: a long CSV table, or HDF5 with a column a dataset."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

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
from vpem.files.long_csv import LONGEST_NAME, finite_number, is_long_csv, read_cells
from vpem.saem.corpus import share_words
from vpem.saem.individuals import Individuals, from_long

__all__ = ["chain", "read_individuals", "write_individuals"]

PathLike = str | os.PathLike[str]
ENCODING = "vpem-individuals"
VERSION = "0.1.0"
MOST_COLUMNS = 1024
_MISSING = ("", "NA", "NaN", "nan", ".")


def read_individuals(
    path: PathLike,
    *,
    id: str = "id",
    time: str = "time",
    value: str = "value",
    covariates: Sequence[str] | None = None,
    missing: bool = False,
) -> Individuals:
    """Read individuals from HDF5 or from a long CSV table.

    Parameters
    ----------
    path : path
        A ``.csv``, ``.tsv`` or ``.txt`` file, also packed, with a line a measurement and names of
        the columns in its first line; or an HDF5 file as `write_individuals` makes it.
    id, time, value : str
        Names of the three columns of a CSV table.
    covariates : sequence of str, optional
        Which other columns to read; None: all. They hold numbers, or nothing (or ``NA``, ``.``)
        where they are missing.
    missing : bool
        Whether values may be missing in the same way, or NaN: such rows are left out.

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
        return _read_csv(path, (id, time, value), covariates, missing)
    return _read_hdf5(path, covariates, missing)


def _read_csv(
    path: PathLike,
    three: tuple[str, str, str],
    covariates: Sequence[str] | None,
    missing: bool,
) -> Individuals:
    source = os.fspath(path)
    ids: list[str] = []
    numbers: list[list[float]] = []
    others: list[str] = []
    may_miss = {three[2]} if missing else set()

    def places(header: list[str]) -> list[int]:
        names = [field.strip() for field in header]
        others.extend(_columns(names, three, covariates, source))
        may_miss.update(others)
        return [names.index(name) for name in (*three, *others)]

    for where, cells in read_cells(path, places):
        if not 0 < len(cells[0]) <= LONGEST_NAME or "\0" in cells[0]:
            raise InputError(f"{where} names no individual, got {cells[0][:40]!r}")
        ids.append(cells[0])
        named = zip((*three[1:], *others), cells[1:], strict=True)
        numbers.append([_number(cell, name, name in may_miss, where) for name, cell in named])
    if not ids:
        raise InputError(f"{source} has a header but no rows")
    table = np.array(numbers)
    read = {name: table[:, 2 + place] for place, name in enumerate(others)}
    labels = np.array(ids, dtype=object)
    found = from_long(labels, table[:, 0], table[:, 1], read, source, missing)
    return replace(found, columns=dict(zip(("id", "time", "value"), three, strict=True)))


def _columns(
    header: list[str], three: tuple[str, ...], covariates: Sequence[str] | None, source: str
) -> list[str]:
    """Names of the covariates to read."""
    if len(set(header)) < len(header) or len(header) > MOST_COLUMNS:
        raise InputError(
            f"{source}: the names of its columns, in the first line, must differ and be at most "
            f"{MOST_COLUMNS}"
        )
    others = [name for name in header if name not in three and name]
    if covariates is not None:
        others = list(dict.fromkeys(covariates))
    lacking = [what for what in (*three, *others) if what not in header]
    if lacking:
        have = shorten([repr(name) for name in header]) or "an empty line"
        *first, last = [f"{what!r}{did_you_mean(what, header)}" for what in lacking]
        named = f"columns {', '.join(first)} and {last}" if first else f"column {last}"
        raise MissingColumnError(f"{source} has no {named} in its first line; got {have}", *lacking)
    return others


def _number(text: str, column: str, may_miss: bool, where: str) -> float:
    if may_miss and text in _MISSING:
        return math.nan
    number = finite_number(text)
    if number is not None:
        return number
    advice = "leave out such columns" if may_miss else "leave out lines of what was not measured"
    if text in _MISSING and not may_miss:
        advice += "; --missing marginalize does so where the value alone is missing"
    if finite_number(text.replace(",", ".", 1)) is not None:
        advice = "write numbers with a decimal point"
    raise InputError(f"{where} has {text[:40]!r} for {column!r}, no finite number; {advice}")


def _read_hdf5(path: PathLike, covariates: Sequence[str] | None, missing: bool) -> Individuals:
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
        wanted = have if covariates is None else list(dict.fromkeys(covariates))
        for name in wanted:
            if name not in have:
                raise MissingColumnError(
                    f"{source} has no covariate {name!r}{did_you_mean(name, have)}", name
                )
        read = {name: read_array(group, name, shape=times.shape) for name in wanted}
        words = None if find(file, "words") is None else read_strings(file, "words")
    if len(set(names)) < len(names):
        raise InputError(f"{source}: two individuals have the same name; their names must differ")
    if words is not None and not np.isin(times, np.arange(len(words))).all():
        raise FileError(f"{source}: times must be numbers of its {len(words)} words, from 0")
    ids = np.repeat(np.array(names, dtype=object), counts.astype(np.intp))
    return replace(from_long(ids, times, values, read, source, missing), words=words)


def chain(parts: Sequence[Individuals]) -> Individuals:
    """Put individuals of several sources one after the other.

    Raises
    ------
    InputError
        If two of them have one name.
    """
    if len(parts) == 1:
        return parts[0]
    parts = share_words(parts)
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
    )


def write_individuals(path: PathLike, found: Individuals, force: bool = False) -> None:
    """Write individuals to HDF5, all or nothing.

    Raises
    ------
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    """
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
