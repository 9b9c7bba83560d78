"""Corpora on disk: a table with a line a word of a document, or HDF5 with a sparse matrix."""

from __future__ import annotations

import csv
import os
from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vpem.checks import check_memory, read_float
from vpem.errors import FileError, InputError, MissingColumnError, did_you_mean, shorten
from vpem.files.endings import ending_of
from vpem.files.foreign import names_in, read_matrix
from vpem.files.hdf5 import (
    atomic_write,
    create,
    describe_element,
    find,
    is_group,
    open_read,
    read_attribute,
    read_strings,
    write_array,
    write_attribute,
    write_strings,
)
from vpem.files.long_csv import LONGEST_NAME, is_long_csv, read_cells
from vpem.files.opening import check_unpacked
from vpem.files.readers.anndata_files import sparse_in, sparse_kind
from vpem.files.readers.sparse import check_parts
from vpem.saem.corpus import from_counts, gather
from vpem.saem.formats.individuals import ENCODING, read_individuals
from vpem.saem.individuals import Individuals

if TYPE_CHECKING:
    import h5py


PathLike = str | os.PathLike[str]

COLUMNS = {"id": "document", "time": "word", "value": "count"}
"""What the columns of a corpus are called where nothing else is said, by what they are."""

BYTES_OF_ENTRY = 80
"""What an entry of a sparse matrix takes while documents are made of it."""

BYTES_OF_NAME = 64


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
        raise InputError(f"{path} is no CSV table, so that its columns have no names to choose")
    with open_read(path) as file:
        if dataset is not None or read_attribute(file, "encoding-type") != ENCODING:
            return _read_hdf5(file, os.fspath(path), dataset or "X")
    found = read_individuals(path)
    if found.words is None:
        raise InputError(f"{path} holds individuals without words; a corpus needs a vocabulary")
    places = found.times.astype(np.int64)
    return gather(found.individual_of, places, found.values, found.names, found.words, found.source)


def _read_csv(path: PathLike, given: dict[str, str]) -> Individuals:
    source = os.fspath(path)
    three = [given.get(name, usual) for name, usual in COLUMNS.items()]

    def places(header: list[str]) -> list[int]:
        names = [field.strip() for field in header]
        if len(set(names)) < len(names):
            raise InputError(f"{source}: the names of its columns, in its first line, must differ")
        if "value" not in given and three[-1] not in names:
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
    found = gather(
        documents, order[places_of], np.frombuffer(counts), tuple(numbers[0]), words, source
    )
    return replace(found, columns=dict(zip(COLUMNS, three, strict=False)))


def _read_hdf5(file: h5py.File, source: str, name: str) -> Individuals:
    """Read a matrix of counts, with names of documents and words."""
    item = find(file, name)
    kind = sparse_kind(item)
    if kind is None:
        if is_group(item):
            raise FileError(f"{source}: {name} is no matrix, sparse or dense")
        dense = np.asarray(read_matrix(file, name, source, None, None))
        names, words = (_names(file, which, dense.shape) for which in (0, 1))
        return from_counts(dense, words, names, source)
    parts, shape = sparse_in(item, f"{source}: {name}")
    data, indices, indptr = check_parts(parts, shape, kind, f"{source}: {name}")
    check_memory(len(data) * BYTES_OF_ENTRY, source)
    names, words = (_names(file, which, shape) for which in (0, 1))
    sizes = indptr[1:].astype(np.intp) - indptr[:-1].astype(np.intp)
    runs = np.repeat(np.arange(len(sizes)), sizes)
    documents, places = (runs, indices) if kind == "csr" else (indices, runs)
    return gather(documents, places, data.astype(np.float64), names, words, source)


def _names(file: h5py.File, which: int, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names of documents (0) or words (1); numbers where there are none."""
    group, alone, what = (("obs", "obs_names", "documents"), ("var", "var_names", "words"))[which]
    if is_group(find(file, group)):
        found = names_in(file, group)
    elif find(file, alone) is not None:
        found = read_strings(file, alone)
    else:
        check_unpacked(shape[which] * BYTES_OF_NAME, file.filename)
        return tuple(map(str, range(shape[which])))
    if len(found) != shape[which] or len(set(found)) < len(found):
        raise FileError(
            f"{file.filename}: {shape[which]} {what} need as many different names, got "
            f"{len(found)}, {len(set(found))} of them different"
        )
    return found


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
