"""Individuals, corpora, and which device has which individuals, on disk.

Individuals are a long CSV table, with a line a measurement or a dose, or HDF5 with a column a
dataset; corpora a table with a line a word of a document, or HDF5 with a sparse matrix.
"""

from __future__ import annotations

import csv
import math
import os
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import h5py
import numpy as np

from vpem.checks import Mask, check_memory, read_float
from vpem.engines.engine import Engine
from vpem.errors import FileError, InputError, MissingColumnError, did_you_mean, shorten
from vpem.files.datasets import names_in, read_matrix
from vpem.files.hdf5 import (
    INDIVIDUALS,
    atomic_write,
    check_encoding,
    create,
    describe_element,
    find,
    is_group,
    list_members,
    open_read,
    read_array,
    read_attribute,
    read_strings,
    write_array,
    write_attribute,
    write_file,
    write_strings,
)
from vpem.files.observations import LONGEST_NAME, is_long_csv, read_cells, sort_names
from vpem.files.opening import PathLike, check_unpacked, open_text
from vpem.files.readers.matrices import check_parts, sparse_in, sparse_kind
from vpem.files.temporaries import ending_of
from vpem.network.partition import Workers
from vpem.network.schema import Report
from vpem.saem.doses import Doses, doses_of, doses_of_lines, event_columns, measured_lines
from vpem.saem.individuals import Individuals, from_counts, from_long, gather, in_words, join_words

ENCODING = INDIVIDUALS
VERSION = "0.1.0"
DOSES = ("times", "amounts", "durations")

MOST_COLUMNS = 1024
MISSING = ("", "NA", "NaN", "nan", ".")

COLUMNS = {"id": "document", "time": "word", "value": "count"}
"""What the columns of a corpus are called where nothing else is said, by what they are."""

BYTES_OF_ENTRY = 80
"""What an entry of a sparse matrix takes while documents are made of it."""

BYTES_OF_NAME = 64


def read_long(
    path: PathLike,
    three: tuple[str, str, str],
    covariates: Sequence[str] | None,
    also: Sequence[str],
    words: Collection[str],
    missing: bool,
    doses: Mapping[str, str] | None,
    texts: Collection[str] = (),
) -> Individuals:
    """Read the lines of a CSV table; parameters as of `read_individuals`."""
    source, columns = os.fspath(path), list(three)
    others: list[str] = []
    events: dict[str, str] = {}
    odd: dict[str, tuple[str, str]] = {}  # where the first of a column that may be text is one

    def places(header: list[str]) -> list[int]:
        names, chosen = [field.strip() for field in header], covariates
        if covariates is not None:
            chosen = [*covariates, *(name for name in also if name in names)]
        if doses is not None:
            events.update(event_columns(names, doses, {*three, *(chosen or ())}, source))
        listed = _columns(names, three, chosen, source)
        others.extend(name for name in listed if name not in events.values())
        columns.extend([*others, *events.values()])
        return [names.index(name) for name in columns]

    wheres, ids = [], []  # where lines are, if some are doses
    table: list[list[str | float]] = []
    for where, cells in read_cells(path, places):
        if not 0 < len(cells[0]) <= LONGEST_NAME or "\0" in cells[0]:
            raise InputError(f"{where} names no individual, got {cells[0][:40]!r}")
        ids.append(cells[0])
        if events:
            wheres.append(where)
        may_miss = columns[2 if missing or events else 3 :]
        row: list[str | float] = []
        for name, cell in zip(columns[1:], cells[1:], strict=True):
            as_words = name in others and name in words
            if not as_words and name in others and name in texts:
                as_words = cell not in MISSING and read_float(cell, finite=True) is None
                if as_words:
                    odd.setdefault(name, (cell, where))
            row.append(cell if as_words else _number(cell, name, name in may_miss, where))
        table.append(row)
    if not ids:
        raise InputError(f"{source} has a header but no rows")
    numbered: dict[str, list[str]] = {}
    read = {}
    for name, column in zip(columns[1:], zip(*table, strict=True), strict=True):
        if name in odd and any(isinstance(cell, float) and cell == cell for cell in column):
            _number(odd[name][0], name, True, odd[name][1])
        is_text = name in odd or isinstance(column[0], str)
        words_of = ["" if isinstance(cell, float) else cell for cell in column] if is_text else []
        read[name] = np.array(_numbered(name, words_of, numbered) if is_text else column)
    named: Report = dict(zip(("id", "time", "value"), three, strict=True))
    if numbered:
        named["words"] = numbered
    labels, (_, time, value) = np.array(ids, dtype=object), three
    rows: slice | Mask = slice(None)
    given = None
    if events:
        lines = {name: read[column] for name, column in events.items()}
        rows, dosed = measured_lines(lines, read[value], wheres)
        empty = rows & np.isnan(read[value])
        if empty.any() and not missing:
            _number("", value, False, wheres[int(empty.argmax())])
        if not rows.any():
            raise InputError(f"{source} has doses, but no measurements")
        named["doses"] = {name: column for name, column in events.items() if name != column}
    individuals = from_long(
        labels[rows], read[time][rows], read[value][rows],
        {name: read[name][rows] for name in others}, source, missing,
    )  # fmt: skip
    if events:
        at = [where for where, is_dose in zip(wheres, dosed, strict=True) if is_dose]
        lines = {name: column[dosed] for name, column in lines.items()}
        given = doses_of_lines(
            individuals.names, labels[dosed], read[time][dosed], lines, at, source
        )
    return replace(individuals, columns=named, doses=given)


def _numbered(name: str, cells: Sequence[Any], numbered: dict[str, list[str]]) -> list[float]:
    """Places of a column's words in the alphabet; numbers are words too, unless they are places."""
    numbers = [math.nan if cell in MISSING else read_float(cell, finite=True) for cell in cells]
    known = [number for number in numbers if number is not None]
    if len(known) == len(numbers):
        if {number for number in known if number == number} <= {0.0, 1.0} or 0.0 in known:
            return known
        cells = [cell if cell in MISSING else f"{number:g}"
                 for cell, number in zip(cells, known, strict=True)]  # fmt: skip
    numbered[name] = sort_names({cell for cell in cells if cell not in MISSING})
    place = {word: float(number) for number, word in enumerate(numbered[name])}
    return [place.get(cell, math.nan) for cell in cells]


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
    if may_miss and text in MISSING:
        return math.nan
    number = read_float(text, finite=True)
    if number is not None:
        return number
    advice = (
        "write words as 0 and 1, or leave out such columns"
        if may_miss
        else "leave out lines of what was not measured"
    )
    if text in MISSING and not may_miss:
        advice += "; --missing marginalize does so where the value alone is missing"
    if read_float(text.replace(",", ".", 1), finite=True) is not None:
        advice = "write numbers with a decimal point"
    raise InputError(f"{where} has {text[:40]!r} for {column!r}, no finite number; {advice}")


def read_individuals(
    path: PathLike,
    *,
    id: str = "id",
    time: str = "time",
    value: str = "value",
    covariates: Mapping[str, str] | Collection[str] | None = None,
    also: Mapping[str, str] | Collection[str] = (),
    words: Collection[str] = ("outcome",),
    texts: Collection[str] = (),
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
    covariates : sequence of str, or mapping, optional
        Which other columns to read, or by the names that they are to have; None: all. They hold
        numbers, or nothing (or ``NA``, ``.``) where they are missing.
    also : sequence of str, or mapping
        Further columns to read if they are there.
    words : sequence of str
        Which of these may hold words, which are then numbered from 0 in the order of
        the alphabet; ``columns["words"]`` has them.
    texts : sequence of str
        Which may hold nothing but words, numbered alike; ``Sex=Male`` is then the covariate that is
        1 for the word ``Male`` of ``Sex``, and 0 for others.
    missing : bool
        Whether values may be missing in the same way, or NaN: such rows are left out.
    doses : mapping of str to str, optional
        Lines of a CSV table may be doses: columns of `vpem.saem.doses.EVENTS` that have
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
    listed, more = (
        dict(some) if isinstance(some, Mapping) else {name: name for name in some}
        for some in (covariates or (), also)
    )
    named, also = listed | more, list(more.values())
    columns = None if covariates is None else list(listed.values())
    if is_long_csv(path):
        words, texts = ([named.get(name, name) for name in some] for some in (words, texts))
        long = read_long(path, (id, time, value), columns, also, words, missing, doses, texts)
        return _renamed(long, {} if columns is None else named)
    source = os.fspath(path)
    with open_read(path) as file:
        check_encoding(file, ENCODING, VERSION)
        names = read_strings(file, "names")
        counts = read_array(file, "counts", shape=(len(names),), kinds="iu")
        times = read_array(file, "times", ndim=1)
        values = read_array(file, "values", shape=times.shape)
        # Counts of any size would be summed to nonsense.
        if not names or counts.min() < 1 or counts.max() > len(times):
            raise FileError(f"{source}: counts must be the numbers of rows of individuals, from 1")
        if int(counts.astype(object).sum()) != len(times):
            raise FileError(f"{source}: counts must add up to its {len(times)} rows")
        group = find(file, "covariates")
        if group is not None and not is_group(group):
            raise FileError(f"{source}: covariates must be a group with one member per covariate")
        have = [] if group is None else sorted(list_members(group, MOST_COLUMNS))
        chosen = have
        if columns is not None:
            chosen = list(dict.fromkeys([*columns, *(name for name in also if name in have)]))
        for name in chosen:
            if name not in have:
                raise MissingColumnError(
                    f"{source} has no covariate {name!r}{did_you_mean(name, have)}", name
                )
        read = {name: read_array(group, name, shape=times.shape) for name in chosen}
        vocabulary = None if find(file, "words") is None else read_strings(file, "words")
        given = _read_doses(file, len(names), source)
        tables, numbered = find(file, "covariate_words"), {}
        if tables is not None and is_group(tables):  # the words that covariates are the numbers of
            for name in list_members(tables, MOST_COLUMNS):
                if name in read:
                    numbered[name] = list(read_strings(tables, name))
    if len(set(names)) < len(names):
        raise InputError(f"{source}: two individuals have the same name; their names must differ")
    if vocabulary is not None and not np.isin(times, np.arange(len(vocabulary))).all():
        raise FileError(f"{source}: times must be numbers of its {len(vocabulary)} words, from 0")
    ids = np.repeat(np.array(names, dtype=object), counts.astype(np.intp))
    individuals = from_long(ids, times, values, read, source, missing)
    described = {"words": numbered} if numbered else {}
    individuals = replace(individuals, words=vocabulary, doses=given, columns=described)
    return _renamed(individuals, {} if columns is None else named)


def _read_doses(file: h5py.File, n: int, source: str) -> Doses | None:
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
    return Doses.from_lists(n, who, times, *columns)


def _renamed(read: Individuals, named: Mapping[str, str]) -> Individuals:
    """Return individuals with those covariates that were read by their names."""
    named = {name: column for name, column in named.items() if column in read.covariates}
    others = {name: column for name, column in named.items() if name != column}
    if not others:
        return read
    columns = {**read.columns, "covariates": others}
    if "words" in columns:
        words = columns["words"]
        columns["words"] = {name: words[one] for name, one in named.items() if one in words}
    covariates = {name: read.covariates[one] for name, one in named.items()}
    return replace(read, covariates=covariates, columns=columns)


def chain(parts: Sequence[Individuals]) -> Individuals:
    """Put individuals of several sources, no two of one name, one after the other."""
    if len(parts) == 1:
        return parts[0]
    vocabularies = [part.words for part in parts if part.words is not None]
    if 0 < len(vocabularies) < len(parts):
        some = next(part.source for part in parts if part.words is None)
        raise InputError(f"{some} has no words, but others are documents; give documents only")
    if vocabularies:  # documents of several sources have one vocabulary
        every = join_words(vocabularies)
        parts = [in_words(part, every)[0] for part in parts]
    parts = list(numbered_alike(dict(enumerate(parts))).values())
    names = tuple(name for part in parts for name in part.names)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        sources = " and ".join(part.source for part in parts if twice in part.names)
        raise InputError(f"{sources} both have an individual {twice!r}; their names must differ")
    ends = np.cumsum([0, *(part.n_rows for part in parts)])
    first = [part.first[:-1] + end for part, end in zip(parts, ends, strict=False)]
    shared = [name for name in parts[0].covariates if all(name in one.covariates for one in parts)]
    return Individuals(
        names,
        np.concatenate([*first, ends[-1:]]).astype(np.intp),
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.values for part in parts]),
        {name: np.concatenate([part.covariates[name] for part in parts]) for name in shared},
        ", ".join(part.source for part in parts),
        parts[0].columns,
        None if parts[0].weights is None else np.concatenate([part.weights for part in parts]),
        words=parts[0].words,
        doses=None if parts[0].doses is None else Doses.chain([doses_of(part) for part in parts]),
    )


def numbered_alike(
    parts: Mapping[int, Individuals], engine: Engine | None = None
) -> dict[int, Individuals]:
    """Number words of covariates of all, in all processes, alike; if some have doses, all have."""
    local = [(one.doses is not None, one.columns.get("words", {})) for one in parts.values()]
    everyones = [local] if engine is None else engine.allgather(local)
    have_doses, words = zip(*(one for some in everyones for one in some), strict=True)
    # Tables of words of covariates are joined, which then have the same numbers everywhere.
    tables = {
        name: sort_names(word for table in words for word in table.get(name, ()))
        for name in dict.fromkeys(name for table in words for name in table)
    }
    numbered = {place: numbered_as(one, tables) for place, one in parts.items()}
    if not any(have_doses):
        return numbered
    return {place: replace(one, doses=doses_of(one)) for place, one in numbered.items()}


def numbered_as(individuals: Individuals, tables: Mapping[str, Sequence[str]]) -> Individuals:
    """Return individuals whose covariates are numbers of words in these tables."""
    if not tables:
        return individuals
    words_of = individuals.columns.get("words", {})
    covariates = dict(individuals.covariates)
    for name, words in tables.items():
        if name not in covariates or list(words_of.get(name, ())) == list(words):
            continue
        lacking = [word for word in words_of.get(name, ()) if word not in words]
        if lacking or name not in words_of:
            what = shorten([repr(word) for word in lacking]) or "numbers"
            raise InputError(
                f"{individuals.source}: {name} has {what}, where others have "
                f"{shorten([repr(word) for word in words])}; give the same words everywhere"
            )
        numbers = np.array([*(words.index(word) for word in words_of[name]), np.nan])
        values = covariates[name]
        covariates[name] = numbers[np.where(np.isnan(values), -1, values).astype(np.intp)]
    columns = {
        **individuals.columns,
        "words": {name: list(words) for name, words in tables.items()},
    }
    return replace(individuals, covariates=covariates, columns=columns)


def write_individuals(path: PathLike, found: Individuals, force: bool = False) -> None:
    """Write individuals to HDF5, all or nothing."""
    with write_file(path, force, "individuals", ENCODING, VERSION) as file:
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
            of_doses = file.create_group("doses")
            write_array(of_doses, "counts", found.doses.counts.astype(np.int64))
            for name, column in zip(DOSES, found.doses.columns, strict=True):
                write_array(of_doses, name, column)


def read_corpus(
    path: PathLike, columns: Mapping[str, str] | None = None, dataset: str | None = None
) -> Individuals:
    """Read documents: which words come in them, and how often.

    Parameters
    ----------
    path : path
        A ``.csv``, ``.tsv`` or ``.txt`` file, also packed, with a line a word of a document and
        names of the columns in its first line; or HDF5 with a sparse (CSR, CSC) or dense matrix of
        counts ``X``, documents by words, as AnnData writes it (``.h5ad``) or with names in
        ``obs_names`` and ``var_names``.
    columns : mapping, optional
        Names of the columns of a table with the document (``id``), the word (``time``) and how
        often it comes there (``value``), where they are not those of `COLUMNS`. Without a column of
        counts each line is one word. Lines of the same word in a document are added up.
    dataset : str, optional
        Where in an HDF5 file the matrix is, such as ``layers/counts``; by default ``X``.

    Returns
    -------
    Individuals
        Documents in the order in which they come first, words of a table in order, those of a
        matrix as they come.

    Raises
    ------
    FileError
        If the file cannot be read, or an element is not what it must be.
    InputError
        If a column is missing, a count is not a whole number, or a document has no words.
    """
    if is_long_csv(path):
        if dataset is not None:
            raise InputError(f"{path} is a table, in which there is no dataset {dataset!r}")
        return _read_csv(path, dict(columns or {}))
    if columns:
        raise InputError(f"names of columns are for CSV tables, which {path} is not")
    with open_read(path) as file:
        if dataset is not None or read_attribute(file, "encoding-type") != ENCODING:
            source, name = os.fspath(path), dataset or "X"
            item = find(file, name)
            kind = sparse_kind(item)
            if kind is None:
                if is_group(item):
                    raise FileError(f"{source}: {name} is no matrix, sparse or dense")
                dense = np.asarray(read_matrix(file, name, source, None))
                names, words = (_names(file, which, dense.shape) for which in (0, 1))
                return from_counts(dense, words, names, source)
            parts, shape = sparse_in(item, f"{source}: {name}")
            data, indices, indptr = check_parts(parts, shape, kind, f"{source}: {name}")
            check_memory(len(data) * BYTES_OF_ENTRY, source)
            names, words = (_names(file, which, shape) for which in (0, 1))
            sizes = indptr[1:].astype(np.intp) - indptr[:-1].astype(np.intp)
            runs = np.repeat(np.arange(len(sizes)), sizes)
            documents, where = (runs, indices) if kind == "csr" else (indices, runs)
            return gather(documents, where, data.astype(np.float64), names, words, source)
    individuals = read_individuals(path)
    if individuals.words is None:
        raise InputError(f"{path} holds individuals without words; a corpus needs a vocabulary")
    places = individuals.times.astype(np.int64)
    return gather(
        individuals.individual_of, places, individuals.values, individuals.names,
        individuals.words, individuals.source,
    )  # fmt: skip


def read_vocabulary(path: PathLike) -> tuple[str, ...]:
    """Read words from a text file with one a line, all different."""
    try:
        with open_text(path) as lines:
            words = [line.strip() for line in lines if line.strip()]
    except UnicodeDecodeError:
        raise FileError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    wrong = any(len(word) > LONGEST_NAME or "\0" in word for word in words)
    if wrong or not words or len(set(words)) < len(words):
        raise InputError(f"{path} must be a vocabulary: words, a line each, all different")
    return tuple(words)


def _read_csv(path: PathLike, columns: dict[str, str]) -> Individuals:
    source = os.fspath(path)
    three = [columns.get(name, usual) for name, usual in COLUMNS.items()]

    def places(header: list[str]) -> list[int]:
        names = [field.strip() for field in header]
        if len(set(names)) < len(names):
            raise InputError(f"{source}: the names of its columns, in its first line, must differ")
        if "value" not in columns and three[-1] not in names:
            three.pop()
        lacking = [name for name in three if name not in names]
        if lacking:
            have = shorten(map(repr, names)) or "an empty line"
            raise MissingColumnError(
                f"{source} has no column {lacking[0]!r}{did_you_mean(lacking[0], names)} in its "
                f"first line, and a corpus is a table of documents, words and counts; got {have}",
                *lacking,
            )
        return [names.index(name) for name in three]

    numbers: tuple[dict[str, int], dict[str, int]] = ({}, {})
    entries = (array("q"), array("q"))
    counts = array("d")
    for where, cells in read_cells(path, places):
        for what, text, known, into in zip(("document", "word"), cells, numbers, entries,
                                           strict=False):  # fmt: skip
            if not 0 < len(text) <= LONGEST_NAME or "\0" in text:
                raise InputError(f"{where} names no {what}, got {text[:40]!r}")
            into.append(known.setdefault(text, len(known)))
        count = read_float(cells[2], finite=True) if len(cells) > 2 else 1.0
        if count is None or count < 0 or count != int(count):
            raise InputError(
                f"{where} has the count {cells[2][:40]!r}; counts are whole numbers from 0"
            )
        counts.append(count)
    if not counts:
        raise InputError(f"{source} has a header but no words")
    documents, places_of = (np.frombuffer(one, dtype=np.int64) for one in entries)
    words = sorted(numbers[1])
    order = np.empty(len(words), dtype=np.int64)
    order[[numbers[1][word] for word in words]] = np.arange(len(words))
    individuals = gather(
        documents, order[places_of], np.frombuffer(counts), tuple(numbers[0]), words, source
    )
    return replace(individuals, columns=dict(zip(COLUMNS, three, strict=False)))


def _names(file: h5py.File, which: int, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names of documents (0) or words (1); numbers where there are none."""
    group, alone, what = (("obs", "obs_names", "documents"), ("var", "var_names", "words"))[which]
    if is_group(find(file, group)):
        strings = names_in(file, group)
    elif find(file, alone) is not None:
        strings = read_strings(file, alone)
    else:
        check_unpacked(shape[which] * BYTES_OF_NAME, file.filename)
        return tuple(map(str, range(shape[which])))
    if len(strings) != shape[which] or len(set(strings)) < len(strings):
        raise FileError(
            f"{file.filename}: {shape[which]} {what} need as many different names, got "
            f"{len(strings)}, {len(set(strings))} of them different"
        )
    return strings


def write_corpus(path: PathLike, found: Individuals, force: bool = False) -> None:
    """Write documents, all or nothing.

    Parameters
    ----------
    path : path
        ``.csv`` or ``.tsv``: a line a word of a document, with columns document, word and count.
        Else HDF5, as AnnData writes a sparse matrix of documents by words (``.h5ad``).
    found : Individuals
        Documents, of words.
    force : bool
        Replace an existing file.

    Raises
    ------
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    InputError
        If there are no words.
    """
    words = found.words
    if words is None:
        raise InputError(f"{found.source} has no words, so that it is no corpus")
    ending = ending_of(path)
    with atomic_write(path, force, "corpora") as temporary:
        if ending in (".csv", ".tsv"):
            with open(temporary, "w", encoding="utf-8", newline="") as stream:
                lines = csv.writer(
                    stream, delimiter="\t" if ending == ".tsv" else ",", lineterminator="\n"
                )
                lines.writerow(COLUMNS.values())
                rows = zip(found.individual_of, found.times, found.values, strict=True)
                lines.writerows([found.names[i], words[int(t)], int(v)] for i, t, v in rows)
            return
        with create(temporary, "anndata", "0.1.0") as file:
            for name, strings in (("obs", found.names), ("var", words)):
                frame = file.create_group(name)
                describe_element(frame, "dataframe", "0.2.0")
                write_attribute(frame, "_index", "_index")
                frame.attrs["column-order"] = np.array([], dtype=np.float64)
                write_strings(frame, "_index", strings)
            X = file.create_group("X")
            describe_element(X, "csr_matrix", "0.1.0")
            X.attrs["shape"] = np.array([found.n_individuals, len(words)], dtype=np.int64)
            write_array(X, "data", found.values)
            write_array(X, "indices", found.times.astype(np.int32))
            write_array(X, "indptr", found.first.astype(np.int64))


def read_devices(path: str | os.PathLike[str], individuals: Sequence[str]) -> Workers:
    """Read who holds whom: JSON, ``{"device": [individual, ...], ...}``, individuals by name.

    A name that is a whole number may be written as a number. Devices stand in the order of the
    file; their "rows" are numbers of individuals, each of which is held once.
    """
    places = {name: place for place, name in enumerate(individuals)}

    def number(device: str, one: object) -> int:
        word = str(one) if type(one) is int else one
        if not isinstance(word, str) or word not in places:
            hint = did_you_mean(word, places) if isinstance(word, str) else ""
            raise InputError(
                f"{path}: device {device!r} has {one!r}, but no individual is called so{hint}"
            )
        return places[word]

    from vpem.files.networks import read_holders

    return read_holders(path, "device", "individual", individuals, number, may_be_empty=False)
