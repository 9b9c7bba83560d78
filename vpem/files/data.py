"""The door for data: whatever a dataset is read from, in whichever format it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from vpem.checks import check_dtype
from vpem.errors import FileError, InputError, Setting
from vpem.files.datasets import Dataset, as_matrix
from vpem.files.families import FamilyChoice, settle
from vpem.files.matrix import FileMatrix
from vpem.files.opening import format_of
from vpem.files.readers.frames import LazyFrame, ReadOptions, refuse_large
from vpem.files.table_settings import TableSettings

if TYPE_CHECKING:
    from vpem.files.readers.tabular import ColumnProfile
    from vpem.files.results import Imputed


ANY = ",;\t| "
"""What may be between fields, but in .tsv."""

NAMED = ("label_column", "id_column", "worker_column")

STDIN = "-"


def read_data(
    path: str | os.PathLike[str],
    table: TableSettings | None = None,  # how it is read, as the user says
    *,
    kept: TableSettings | None = None,  # how a model's data were read; its columns may be missing
    dataset: str | None = None,  # path of a matrix inside an HDF5 file
    dtype: DTypeLike | None = None,  # float32 or float64; by default the file's
    memory_limit: int | None = None,  # in bytes
    sample_weight: str | int | None = None,  # a column, or a path in HDF5
    weights_needed: bool = True,
    columns: Sequence[str] | frozenset[str] | None = None,  # in this order; of a set those there
    keep_constant: bool = False,  # other rows may vary
    on_disk: bool = False,  # however little memory they would take
    profiles: list[ColumnProfile] | None = None,  # filled, a profile a column
) -> Dataset:
    """Read a dataset from a table or an HDF5 file; ``-`` is standard input.

    Values are not checked for being finite (`vpem.checks.check_finite`). ``left_out`` of the result
    has the columns of a plain table that are no features, with the reason. Where families are asked
    for, text is codes; what these are `vpem.files.families.settle` says. Where two copies of the
    values would exceed ``memory_limit``, those of HDF5 stay on disk, as a `FileMatrix`, and tables
    are refused.
    """
    precision = check_dtype(dtype)
    given = TableSettings.of(table)
    asked = given
    if kept is not None:  # a model knows its families
        asked = given.with_defaults_of(kept.without_choice()).changed(family=kept.family)
    named = zip(NAMED, ("label", "id", "worker"), strict=True)
    # Columns that a model names, and not the user, may be absent.
    lacking = [
        what
        for name, what in named
        if kept is not None and getattr(given, name) is None and getattr(kept, name) is not None
    ]
    wanted = ReadOptions(
        asked, dataset, memory_limit, sample_weight, weights_needed, columns,
        tuple(lacking), keep_constant, on_disk, profiles, kept is not None,
    )  # fmt: skip
    with _local(path) as (file, source, wholly):
        found = _read(file, source, wanted)
        if wholly and isinstance(found.X, FileMatrix):
            found.X = found.X[:]
    if precision is not None:
        X = found.X
        of_file = isinstance(X, FileMatrix)
        found.X = X.in_precision(precision) if of_file else as_matrix(X, source, precision)
    return found


@contextmanager
def _local(path: str | os.PathLike[str]) -> Iterator[tuple[Path, str, bool]]:
    """Yield the file that is read, what messages call it, and whether it will soon be gone."""
    if os.fspath(path) != STDIN:
        yield Path(path), os.fspath(path), False
        return
    from vpem.files.temporaries import spooled

    source = "standard input"
    with spooled() as file:
        try:
            yield file, source, True
        except (FileError, InputError) as error:
            # The name of the temporary file would say nothing to the user.
            parts = (
                part.replace(os.fspath(file), source) if isinstance(part, str) else part
                for part in error.parts
            )
            raise (FileError if isinstance(error, FileError) else InputError)(*parts) from None


def _read(file: Path, source: str, wanted: ReadOptions) -> Dataset:
    """Read a file by its format."""
    kind = format_of(file, source, wanted.table.encoding)
    if kind == "hdf5":
        from vpem.files.readers.hdf5_files import read_hdf5

        return read_hdf5(file, source, wanted)
    if kind in ("npy", "npz"):
        from vpem.files.readers import numpy_files

        return (numpy_files.read_npy if kind == "npy" else numpy_files.read_npz)(
            file, source, wanted
        )
    if wanted.dataset is not None:
        raise InputError(
            Setting("dataset"), f" is a place inside HDF5 or .npz, which {source} is not"
        )  # fmt: skip
    from vpem.files.readers.tabular import dataset_of

    refuse_large(os.stat(file).st_size // 2, wanted.memory_limit, source)
    return dataset_of(_frame(file, source, kind, wanted.table), wanted)


def _frame(file: Path, source: str, kind: str, table: TableSettings) -> LazyFrame:
    """Open a table of text, Parquet or Arrow."""
    if kind == "text":
        from vpem.files.readers.text import text_frame

        packed = file.suffix.lower() in (".gz", ".bz2", ".xz", ".zip")
        ending = (file.with_suffix("").suffix if packed else file.suffix).lower()
        return text_frame(file, source, table, "\t" if ending == ".tsv" else ANY)
    from vpem.files.readers.tabular import arrow_frame, parquet_frame

    return (parquet_frame if kind == "parquet" else arrow_frame)(file, source)


def open_frame(path: str | os.PathLike[str], table: TableSettings) -> LazyFrame | None:
    """Open all columns of a table, whatever they are; None for files that hold a matrix."""
    source = os.fspath(path)
    kind = format_of(path, source, table.encoding)
    if kind not in ("text", "parquet", "arrow"):
        return None
    return _frame(Path(path), source, kind, table)


def read_dataset(
    path: str | os.PathLike[str],
    dataset: str | None = None,
    dtype: DTypeLike | None = None,
    *,
    table: TableSettings | None = None,
    memory_limit: int | None = None,
    sample_weight: str | int | None = None,
    **changes: Any,
) -> Dataset:
    """Read a dataset from a table or an HDF5 file; docs/reference/file-formats.md has all formats.

    Parameters
    ----------
    path : path
        The file.
    dataset : str, optional
        Path inside an HDF5 file of a two-dimensional numeric dataset. Then only its values are
        read; by default ``X`` is, with everything stored beside it.
    dtype : {"float32", "float64"}, optional
        Precision in memory; by default that of the file, float64 for integers.
    table : TableSettings, optional
        How a table is read.
    memory_limit : int, optional
        In bytes: where two copies of the values would be larger, those of HDF5 stay on disk, as a
        `FileMatrix`, and tables are refused. By default all are read.
    sample_weight : str or int, optional
        Weights of the rows: a column of a table, or a path inside an HDF5 file; by default
        ``sample_weight`` of an HDF5 file, if it is there.
    **changes
        Settings of `TableSettings`: ``features``, ``drop``, ``id_column``, ``label_column``,
        ``worker_column``, ``family``, ``na``, ``decimal``, ``thousands``, ``encoding``,
        ``delimiter``, ``no_header``.

    Returns
    -------
    Dataset
        The data; not checked for values that are not finite. ``left_out`` has the columns of a
        plain table that are no features, with the reason.

    Raises
    ------
    FileError
        If the file cannot be read, or is not what it must be.
    InputError
        If its parts do not fit each other, or a column that is named is not there.
    """
    how = TableSettings.of(table, **changes)
    found = read_data(
        path,
        how,
        dataset=dataset,
        dtype=dtype,
        memory_limit=memory_limit,
        sample_weight=sample_weight,
    )
    return settle(found, FamilyChoice.of(how.family), found.partition)


def filled_columns(
    path: str | os.PathLike[str], table: TableSettings, found: Imputed
) -> dict[str, Any] | None:
    """Return the columns of a table with its gaps filled, for `vpem.files.results.write_columns`.

    Features are numbers, whole ones where a column has no others; other columns are what they were.
    None where the file is no table or cannot be read again; FileError if it has changed.
    """
    import pyarrow as pa

    frame = open_frame(path, table)
    if frame is None:
        return None
    place = {name: column for column, name in enumerate(found.column_names)}
    others = [n for n, name in enumerate(frame.names) if name not in place]
    read = dict(zip(others, frame.read(others, others), strict=True)) if others else {}
    values, times = found.stacked
    columns: dict[str, Any] = {**found.numbered(frame.names)}
    for n, name in enumerate(frame.names):
        if n in read:
            column = read[n]
            # Text that was read by a dictionary is text again.
            if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(frame.kinds[n]):
                column = column.cast(column.type.value_type)
            columns[_free(name, columns)] = pa.chunked_array(column.chunks * times, column.type)
        elif name in place:
            filled = values[:, place.pop(name)]
            whole = bool(np.all(filled == np.round(filled)) and np.all(np.abs(filled) < 2**53))
            columns[_free(name, columns)] = filled.astype(np.int64) if whole else filled
    if place or any(len(column) != len(values) for column in columns.values()):
        raise FileError(f"{os.fspath(path)} has changed since it was read; impute it again")
    return columns


def _free(name: str, taken: dict[str, Any]) -> str:
    """Return the name of a column, or one with a number where another column has it."""
    free, count = name, 0
    while free in taken:
        count += 1
        free = f"{name}.{count}"
    return free
