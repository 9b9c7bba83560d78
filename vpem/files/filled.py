"""Tables with their gaps filled: all columns as they were, in their order, under their names."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vpem.errors import FileError
from vpem.files.data import open_frame
from vpem.files.imputations import Imputed
from vpem.files.table_settings import TableSettings


def filled_columns(
    path: str | os.PathLike[str], table: TableSettings, found: Imputed
) -> dict[str, Any] | None:
    """Return the columns of a table with its gaps filled, for `vpem.files.tables.write_columns`.

    Features are numbers, whole ones where a column has no others; other columns are what they were.
    None where the file is no table or cannot be read again; FileError if it has changed.
    """
    frame = open_frame(path, table)
    if frame is None:
        return None
    place = {name: column for column, name in enumerate(found.column_names)}
    others = [
        n for n, name in enumerate(frame.names) if name not in place and name not in frame.unread
    ]
    read = dict(zip(others, frame.read(others, others), strict=True)) if others else {}
    values, times = found.stacked
    columns: dict[str, Any] = {**found.numbered(frame.names)}
    for n, name in enumerate(frame.names):
        if n in read:
            column = _stored(read[n], frame.kinds[n])
            columns[_free(name, columns)] = pa.chunked_array(column.chunks * times, column.type)
        elif name in place:
            columns[_free(name, columns)] = _numbers(values[:, place.pop(name)])
    if place or any(len(column) != len(values) for column in columns.values()):
        raise FileError(f"{os.fspath(path)} has changed since it was read; impute it again")
    return columns


def _stored(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column as it stands in the file: text that was read by a dictionary is text."""
    read_so = pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(kind)
    return column.cast(column.type.value_type) if read_so else column


def _numbers(values: NDArray[np.float64]) -> NDArray[Any]:
    """Return numbers as whole ones, if all are."""
    whole = bool(np.all(values == np.round(values)) and np.all(np.abs(values) < 2**53))
    return values.astype(np.int64) if whole else values


def _free(name: str, taken: dict[str, Any]) -> str:
    """Return the name of a column, or one with a number where another column has it."""
    found, count = name, 0
    while found in taken:
        count += 1
        found = f"{name}.{count}"
    return found
