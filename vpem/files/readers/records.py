"""Records as frames: rows whose fields have names and types, of NumPy or of HDF5."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vpem.files.readers.frames import Frame


def frame_of_arrays(
    columns: Mapping[str, NDArray[Any]],
    source: str,
    index: Sequence[str] = (),
    unread: Mapping[str, str] | None = None,
) -> Frame:
    """Return a frame of columns that are in memory, arrays of shape (M,)."""
    names = tuple(columns)
    made = [_as_arrow(columns[name]) for name in names]

    def read(kept: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        return [made[column] for column in kept]

    kinds = tuple(column.type for column in made)
    places = frozenset(n for n, name in enumerate(names) if name in index)
    return Frame(source, names, kinds, read, places, unread=dict(unread or {}))


def frame_of_records(records: NDArray[np.void], source: str) -> Frame:
    """Return a frame of an array of records, shape (M,), after `check_fields`.

    Fields of several numbers become as many columns.
    """
    assert records.dtype.names is not None
    columns: dict[str, NDArray[Any]] = {}
    for name in records.dtype.names:
        values = records[name]
        if values.ndim == 1:
            columns[name] = values
            continue
        flat = values.reshape(len(values), math.prod(values.shape[1:]))
        columns |= {f"{name} {n}": flat[:, n] for n in range(flat.shape[1])}
    return frame_of_arrays(columns, source)


def _as_arrow(values: NDArray[Any]) -> pa.ChunkedArray:
    """Return a column of Arrow; bytes are UTF-8 text."""
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind == "S":
        native = np.char.decode(native, "utf-8", "replace")
    if native.dtype.kind == "f" and native.dtype.itemsize > 8:
        native = native.astype(np.float64)
    return pa.chunked_array([pa.array(np.ascontiguousarray(native))])
