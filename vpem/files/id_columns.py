"""Which column of a table holds ids of its rows, where nobody has said so."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vpem.errors import InputError, VpemError
from vpem.files.importers import PARQUET_SUFFIXES, TEXT_SUFFIXES
from vpem.files.opening import check_readable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["columns_of", "id_column_of"]

ID_NAMES = ("id", "ids")
"""Of columns that are hardly meant to be features, in any case of letters."""

MOST = 20
"""Columns of text among which ids are looked for."""


def id_column_of(path: str | os.PathLike[str], besides: Sequence[str | None] = ()) -> str | None:
    """Find the column that holds the ids of a table's rows.

    It is the one called ``id`` or ``ids``, or else the only column of text that has no value twice
    and none empty.

    Parameters
    ----------
    path : path
        A table, as `vpem.files.importers.read_table` reads.
    besides : sequence of str or None
        Columns that hold something else.

    Returns
    -------
    str or None
        None if there is no such column, there are several, or the file cannot be read (which
        whoever reads it says).
    """
    try:
        file = check_readable(path)
        kinds, read = _opened(file)
        names = [name for name in kinds if name not in besides]
        called = [name for name in names if name.casefold() in ID_NAMES]
        if called:
            return called[0] if len(called) == 1 else None
        from vpem.files.arrow import is_text

        text = [name for name in names if is_text(kinds[name])]
        if not 0 < len(text) <= MOST:
            return None
        table = read(tuple(text))
        found = [name for name in text if _distinct(name, table[name], os.fspath(path))]
    except VpemError:
        return None
    return found[0] if len(found) == 1 else None


def columns_of(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of a table's columns.

    Raises
    ------
    FileError, InputError
        If it cannot be read.
    """
    return list(_opened(check_readable(path))[0])


def _opened(file: Path) -> tuple[dict[str, pa.DataType], Any]:
    """Return names and types of columns, and what reads some of them."""
    from vpem.files.delimited import delimiter_of, kinds_of, read_delimited
    from vpem.files.parquet import parquet_kinds, read_parquet

    nothing = (None,) * 4
    source = os.fspath(file)
    suffix = (file.with_suffix("").suffix if file.suffix.lower() == ".gz" else file.suffix).lower()
    if suffix in PARQUET_SUFFIXES:
        kinds = parquet_kinds(file)
        return kinds, lambda chosen: _named(
            *read_parquet(file, source, (nothing, (), chosen, True))
        )
    mark = delimiter_of(file, source, TEXT_SUFFIXES[suffix], None)
    kinds = kinds_of(file, source, mark)
    return kinds, lambda chosen: _named(
        *read_delimited(file, source, True, mark, (nothing, (), chosen, True))
    )


def _named(names: list[str], roles: Any, table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the columns that were read, by their names without white space around them."""
    from vpem.files.columns import kept_columns

    kept = kept_columns(len(names), roles)
    return {names[column]: values for column, values in zip(kept, table.columns, strict=True)}


def _distinct(name: str, column: pa.ChunkedArray, source: str) -> bool:
    """Whether a column of text has no value twice, and none empty."""
    from vpem.files.arrow import annotation_of

    try:
        values = annotation_of(name, column, source)
    except InputError:
        return False
    return len(np.unique(values)) == len(values)
