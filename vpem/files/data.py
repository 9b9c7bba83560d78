"""The door for data: whatever a dataset is read from, in whichever format it is.

Beside the features stand labels of some rows, from columns of the data or from a file of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.checks import Labels, precision_of
from vpem.errors import FileError, InputError, Setting, did_you_mean, shorten
from vpem.files.datasets import Dataset, as_matrix
from vpem.files.families import settle
from vpem.files.lakes import Stored, as_address, find_files, within_reach
from vpem.files.opening import PathLike, format_of
from vpem.files.readers.frames import (
    LazyFrame,
    ReadOptions,
    SomeLabels,
    known_label,
    labels_of_columns,
    refuse_large,
)
from vpem.files.table_settings import ID_NAMES, ROW_NAMES, TableSettings
from vpem.network.schema import Report

if TYPE_CHECKING:
    from vpem.files.results import Imputed


ANY = ",;\t| "
"""What may be between fields, but in .tsv."""

STDIN = "-"

PACKED = (".gz", ".bz2", ".xz", ".zip")

NOT_OF_LABELS = ("features", "drop", "family", "id_column", "label_column", "worker_column")
"""Settings of tables that are about the columns of the data."""


def read_dataset(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    dataset: str | None = None,
    dtype: DTypeLike | None = None,
    *,
    table: TableSettings | None = None,
    memory_limit: int | None = None,
    sample_weight: str | int | None = None,
    **changes: object,
) -> Dataset:
    """Read a dataset from a table or an HDF5 file; docs/reference/file-formats.md has all formats.

    Parameters
    ----------
    path : path or sequence of paths
        The file; or a folder, a pattern (``part-*.parquet``), an address (``s3://bucket/table``) or
        several of these, for a table whose files follow one another: docs/how-to/lakes.md.
    dataset : str, optional
        Path inside an HDF5 file of a two-dimensional numeric dataset. Then only its values are
        read; by default ``X`` is, with everything stored beside it.
    dtype : {"float32", "float64"}, optional
        Precision in memory; by default that of the file, float64 for integers.
    table : TableSettings, optional
        How a table is read.
    memory_limit : int, optional
        In bytes: where two copies of the values would be larger, those of HDF5, and of Parquet and
        several files, stay on disk, as a `FileMatrix`; other tables are refused. By default all
        are read.
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
        If its parts do not fit each other, a column that is named is not there, or a setting of
        ``table`` has no effect on this format.
    """
    table = TableSettings.resolve(table, **changes)
    data = read_data(
        path,
        table,
        dataset=dataset,
        dtype=dtype,
        memory_limit=memory_limit,
        sample_weight=sample_weight,
    )
    return settle(data, table.family, data.partition)


def read_data(
    path: PathLike | Sequence[PathLike],
    table: TableSettings | None = None,  # how it is read, as the user says
    *,
    kept: TableSettings | None = None,  # how a model's data were read; its columns may be missing
    dtype: DTypeLike | None = None,  # float32 or float64; by default the file's
    of_several: bool = False,  # files, which a setting without effect on this one may be for
    **options: Any,  # of `ReadOptions`
) -> Dataset:
    """Read a dataset from a table or an HDF5 file; ``-`` is standard input.

    Values are not checked for being finite (`vpem.checks.check_finite`). ``left_out`` of the result
    has the columns of a plain table that are no features, with the reason. Where families are given
    text is codes (see `vpem.files.families.settle`). Where two copies of the values exceed
    ``memory_limit``, HDF5, Parquet and several files stay on disk, as a `FileMatrix`, and other
    tables are refused; so is what the user says that has no effect on the format.
    """
    precision = None if dtype is None else precision_of(dtype)
    table = choices = TableSettings.resolve(table)
    lacking: list[str] = []
    if kept is not None:  # a model knows its families and features
        defaults = kept.changed(features=None, drop=None)
        table = choices.with_defaults_of(defaults).changed(family=kept.family)
        # Columns that a model names, and not the user, may be absent.
        for what in ("label", "id", "worker"):
            name = f"{what}_column"
            if getattr(choices, name) is None and getattr(kept, name) is not None:
                lacking.append(what)
    how = ReadOptions(table, lacking=tuple(lacking), lenient=kept is not None, **options)
    with _local(path) as (files, source, is_temporary):
        kind, file = _kind_of(files, table), Path(files[0].path)
        if kind == "hdf5":
            from vpem.files.readers.matrices import read_hdf5

            data = read_hdf5(file, source, how)
        elif how.dataset is not None and kind != "npz":
            raise InputError(
                Setting("dataset"), f" is a place inside HDF5 or .npz, which {source} is not"
            )
        elif kind in ("npy", "npz"):
            from vpem.files.readers.numpy_files import read_npy, read_npz

            data = (read_npy if kind == "npy" else read_npz)(file, source, how)
        else:
            from vpem.files.arrow import give_back
            from vpem.files.readers.lake import dataset_of_parts

            if is_temporary:  # it cannot be read again
                refuse_large(sum(one.state()[0] for one in files) // 2, how.memory_limit, source)
            frames = [_frame(one, kind, table) for one in files]
            frames = [replace(one, parts=None) for one in frames] if is_temporary else frames
            data = dataset_of_parts(files, frames, source, how)
            give_back()
        data.format = data.format or kind
        if is_temporary:
            data.X = data.X[:]
    if precision is not None:
        data.X = as_matrix(data.X, source, precision)
    if not of_several:
        choices.refuse_idle(format=data.format)
    return data


@contextmanager
def _local(path: Any) -> Iterator[tuple[list[Stored], str, bool]]:
    """Yield the files that are read, what messages call them, and if they will soon be gone."""
    paths = [path] if isinstance(path, str | os.PathLike) else [*path]
    words = [as_address(one) or os.fspath(one) for one in paths]
    if not words:
        raise InputError("no file of data is named")
    if STDIN not in words:
        with within_reach(find_files(words)) as (files, copied):
            more = f" and {len(words) - 1} more" if len(words) > 1 else ""
            yield files, words[0] + more, copied
        return
    if len(words) > 1:
        raise InputError("standard input (-) is one file; name files, or give it alone")
    from vpem.files.temporaries import spooled

    source = "standard input"
    with spooled() as file:
        try:
            yield [Stored(str(file), source)], source, True
        except (FileError, InputError) as error:
            # The name of the temporary file would say nothing to the user.
            parts = (
                part.replace(os.fspath(file), source) if isinstance(part, str) else part
                for part in error.parts
            )
            raise (FileError if isinstance(error, FileError) else InputError)(*parts) from None


def _kind_of(files: Sequence[Stored], table: TableSettings) -> str:
    """Return the format of files, which are tables of one if they are several."""
    kinds = dict[str, str]()
    for file in files:
        kind = "parquet" if file.system else format_of(file.path, file.source, table.encoding)
        kinds.setdefault(kind, file.source)
        if len(kinds) > 1 or (len(files) > 1 and kind not in ("parquet", "arrow", "text")):
            listed = ", ".join(f"{source} is {kind}" for kind, source in kinds.items())
            raise InputError(
                f"give one dataset, got {len(files)} files; add ", Setting("parties", True),
                " if each is one party's, or name files of one table, all Parquet, all Feather or "
                f"all text: {listed}",
            )  # fmt: skip
    return kind


def _frame(file: Stored, kind: str, table: TableSettings) -> LazyFrame:
    path = Path(file.path)
    if kind == "text":
        from vpem.files.readers.text import text_frame

        ending = (path.with_suffix("") if path.suffix.lower() in PACKED else path).suffix.lower()
        return text_frame(path, file.source, table, "\t" if ending == ".tsv" else ANY)
    from vpem.files.readers.tabular import arrow_frame, parquet_frame

    return (parquet_frame if kind == "parquet" else arrow_frame)(file)


def open_frame(path: str | os.PathLike[str], table: TableSettings) -> LazyFrame | None:
    """Open all columns of a table, whatever they are; None for files that hold a matrix."""
    with _local(path) as (files, source, _):
        kind = _kind_of(files, table)
        if kind not in ("text", "parquet", "arrow"):
            return None
        from vpem.files.readers.lake import frame_of_parts

        return frame_of_parts(files, [_frame(one, kind, table) for one in files], source)


def filled_columns(
    path: str | os.PathLike[str], table: TableSettings, imputed: Imputed
) -> Report | None:
    """Return the columns of a table with its gaps filled, for `vpem.files.results.write_columns`.

    Features are numbers, whole ones where a column has no others; other columns are what they were.
    None where the file is no table or cannot be read again; FileError if it has changed.
    """
    import pyarrow as pa

    frame = open_frame(path, table)
    if frame is None:
        return None
    place = {name: column for column, name in enumerate(imputed.column_names)}
    others = [n for n, name in enumerate(frame.names) if name not in place]
    read = dict(zip(others, frame.read(others, others), strict=True)) if others else {}
    values, times = imputed.stacked
    columns: Report = {**imputed.numbered(frame.names)}
    column: Any
    for n, name in enumerate(frame.names):
        if n in read:
            column = read[n]
            # Text that was read by a dictionary is text again.
            if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(frame.kinds[n]):
                column = column.cast(column.type.value_type)
            column = pa.chunked_array(column.chunks * times, column.type)
        elif name in place:
            column = values[:, place.pop(name)]
            if np.all(column == np.round(column)) and np.all(np.abs(column) < 2**53):
                column = column.astype(np.int64)
        else:
            continue
        free, count = name, 0
        while free in columns:
            count += 1
            free = f"{name}.{count}"
        columns[free] = column
    if place or any(len(column) != len(values) for column in columns.values()):
        raise FileError(f"{os.fspath(path)} has changed since it was read; impute it again")
    return columns


def settle_labels(
    of_data: SomeLabels | None,
    data: Sequence[Dataset],
    ids: Labels | None,
    table: TableSettings,
    folder: str = "",
) -> SomeLabels | None:
    """Return labels that were read with the data, or read them from a file of their own.

    Rows of the files of ``data`` follow one another and are called ``ids`` (M,). A file of labels
    (one a row, or with ids) is looked for from ``folder``; InputError if there is neither a column
    nor a file that goes with the rows.
    """
    setting = table.labels_for_fit
    if setting is None or of_data is not None:
        return of_data
    path, first = Path(folder, str(setting)), data[0]
    if not isinstance(setting, str) or not path.is_file():
        names = (*first.feature_names, *first.left_out)
        hint = did_you_mean(str(setting), names)
        raise InputError(
            f"{first.source}: ", Setting("labels_for_fit"), f" names {str(setting)!r}, which is "
            f"neither a column{hint} nor a file; the columns are {shorten(names, 10)}",
        )  # fmt: skip
    n_rows = sum(one.n_samples for one in data)
    table = TableSettings().changed(**table.values(*NOT_OF_LABELS, "labels_for_fit"))
    source = os.fspath(path)
    frame = open_frame(path, table.changed(no_header=False))
    if frame is None:
        raise InputError(f"{source}: labels for the fit are read from a table (CSV, Parquet)")
    head = frame.names[0].strip().casefold()
    keyed = head in (*ID_NAMES, *ROW_NAMES) and len(frame.names) > 1
    packed = path.suffix.lower() in (*PACKED, ".zst")
    is_text = not packed and format_of(path, source, table.encoding) == "text"
    if len(frame.names) == 1 and is_text:
        try:
            lines = path.read_text(encoding=table.encoding or "utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: {error}; see ", Setting("encoding")) from None
        # Blank ones too, without a head if there is one.
        columns = [[line.strip().strip('"') for line in lines[len(lines) == n_rows + 1 :]]]
    else:
        places = range(len(frame.names))
        columns = [one.to_pylist() for one in frame.read(places, places)]
    if keyed:
        named, marks = frame.names[1:], table.marks
        labels = labels_of_columns(columns[1:], named, marks, source)
        return labels.take_rows(_lines(columns[0], head in ROW_NAMES, ids, n_rows, source))
    if len(columns[0]) != n_rows:
        raise InputError(
            f"{source} has {len(columns[0])} lines, but the data have {n_rows} rows; give one a "
            "row, blank where it is unknown, or a first column 'id' (or 'row', counted from 0)"
        )
    return labels_of_columns(columns, frame.names, table.marks, source)


def _lines(
    column: Sequence[object], numbered: bool, ids: Labels | None, n_rows: int, source: str
) -> NDArray[np.intp]:
    """Return the line of each row (M,); -1: none."""
    if numbered:
        known = {str(row): row for row in range(n_rows)}
    elif ids is None:
        raise InputError(
            f"{source} has labels by id, but the data have no ids; name their column with ",
            Setting("id_column"), ", or call the first column 'row' and count from 0",
        )  # fmt: skip
    else:
        known = {known_label(one, frozenset()): row for row, one in enumerate(ids.tolist())}
    line = np.full(n_rows, -1, dtype=np.intp)
    strange = []
    for number, one in enumerate(column):
        word = known_label(one, frozenset())
        row = known.get(word)
        if row is None:
            strange.append(word)
        elif line[row] >= 0:
            raise InputError(f"{source} has two labels of {word[:40]!r}; leave one out")
        else:
            line[row] = number
    if strange:
        listed = shorten((repr(word[:40]) for word in strange), 3)
        what = "a label of" if len(strange) == 1 else f"labels of {len(strange)} rows,"
        raise InputError(f"{source} has {what} {listed}, of which the data have no row")
    return line
