"""Tables into datasets: CSV (also gzipped) and Parquet."""

from __future__ import annotations

import os
from collections.abc import Sequence

from vpem.checks import Labels, check_finite
from vpem.errors import (
    InputError,
    Setting,
    check_choice,
)
from vpem.files.columns import Column, kept_columns
from vpem.files.datasets import Dataset
from vpem.files.hdf5 import check_readable
from vpem.network.holdings import from_worker_of_row

__all__ = ["is_table", "read_table"]

TEXT_SUFFIXES = {".csv": ",;\t", ".tsv": "\t", ".txt": "\t,; "}
PARQUET_SUFFIXES = (".parquet", ".pq")

MISSINGS = ("refuse", "keep")
KEEP = ("say with ", Setting("missing", "keep"), " that they are to be kept as missing")


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name is that of a table, as `read_table` reads."""
    name = os.fspath(path).lower().removesuffix(".gz")
    return name.endswith((*TEXT_SUFFIXES, *PARQUET_SUFFIXES))


def read_table(
    path: str | os.PathLike[str],
    *,
    label_column: Column | None = None,
    id_column: Column | None = None,
    worker_column: Column | None = None,
    weight_column: Column | None = None,
    header: bool = True,
    delimiter: str | None = None,
    drop_columns: Sequence[Column] = (),
    columns: Sequence[Column] | frozenset[str] | None = None,
    missing: str = "refuse",
    weights_needed: bool = True,
) -> Dataset:
    """Read a CSV or Parquet table as a dataset.

    Parameters
    ----------
    path : path
        A ``.csv``, ``.tsv`` or ``.txt`` file (UTF-8, also with ``.gz``) or a ``.parquet`` file.
    label_column, id_column, worker_column, weight_column : str or int, optional
        The columns of known classes, of what the rows are called, of who holds each row (a name
        or a number from 0), and of the rows' weights: by name, or by number from 0 (negative
        numbers count from the end). Of labels, ids and workers integers stay integers; in a CSV
        file everything else is text, so "007" stays "007".
    header : bool
        The first row of a CSV file holds the names of the columns; without, they are called
        "column 0", "column 1", ...
    delimiter : str, optional
        The character between the fields of a CSV file. By default a tab for ``.tsv``; otherwise
        the one of comma, semicolon and tab (for ``.txt`` also blank) that is most frequent in the
        first line.
    drop_columns : sequence of str or int
        Columns to leave out.
    columns : sequence of str or int, or frozenset of str, optional
        The features, in this order; of a set those that are there, in the order of the table. By
        default every other column is one.
    missing : {"refuse", "keep"}
        What is done with empty cells (and nulls, NaN) of features. "keep" makes them NaN; a column
        without any value is refused all the same.
    weights_needed : bool
        Whether the column of weights must be there.

    Returns
    -------
    Dataset
        The features. True/false values become 1 and 0.

    Raises
    ------
    FileError
        If the file cannot be read or parsed.
    InputError
        If a column named is not there or named twice, a feature or the weights hold text or dates,
        or a value is not finite, or missing unless these are kept.
    """
    from vpem.files.arrow import annotation_of, matrix_of, weights_of
    from vpem.files.delimited import delimiter_of, read_delimited
    from vpem.files.parquet import read_parquet

    check_choice("missing", missing, MISSINGS)
    file = check_readable(path)
    source = os.fspath(path)
    suffix = file.with_suffix("").suffix if file.suffix.lower() == ".gz" else file.suffix
    suffix = suffix.lower()
    wanted = columns if columns is None or isinstance(columns, frozenset) else tuple(columns)
    annotations = (label_column, id_column, worker_column, weight_column)
    chosen = (annotations, tuple(drop_columns), wanted, weights_needed)
    if suffix in TEXT_SUFFIXES:
        text = delimiter_of(file, source, TEXT_SUFFIXES[suffix], delimiter)
        names, roles, table = read_delimited(file, source, header, text, chosen)
    elif suffix in PARQUET_SUFFIXES:
        if delimiter is not None or not header:
            raise InputError(f"{source}: a Parquet file has neither delimiter nor header row")
        names, roles, table = read_parquet(file, source, chosen)
    else:
        hint = "; HDF5 files are used as they are" if suffix in (".h5", ".hdf5", ".h5ad") else ""
        raise InputError(
            f"{source} must be a .csv, .tsv or .txt file (also .gz) or a .parquet file{hint}"
        )
    if table.num_rows == 0:
        raise InputError(f"{source} has no rows")
    (label, identity, worker, weight), features = roles
    column_of = dict(zip(kept_columns(len(names), roles), table.columns, strict=True))

    def noted(column: int | None) -> Labels | None:
        return None if column is None else annotation_of(names[column], column_of[column], source)

    workers = noted(worker)
    weights = None if weight is None else weights_of(names[weight], column_of[weight], source)
    dataset = Dataset(
        matrix_of([(names[c], column_of[c]) for c in features], table.num_rows, source),
        tuple(names[c] for c in features),
        ids=noted(identity),
        labels=noted(label),
        workers=None if workers is None else from_worker_of_row(workers),
        sample_weight=weights,
        source=source,
    )
    try:
        if missing == "keep":
            from vpem.terms.missing_patterns import check_missing

            check_missing(dataset.X, dataset.feature_names)
        else:
            check_finite(dataset.X, dataset.feature_names, KEEP)
    except InputError as error:
        raise InputError(f"{source}: ", *error.parts) from None
    return dataset
