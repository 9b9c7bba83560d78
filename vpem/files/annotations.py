"""What datasets note of their rows: ids, labels and weights, one value a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import Labels
from vpem.errors import InputError
from vpem.files.hdf5 import find, read_array

if TYPE_CHECKING:
    import h5py


STORED = "sample_weight"
"""What datasets call the weights of their rows."""


def as_column(what: str, values: ArrayLike, n_samples: int, source: str) -> Labels:
    """Return ids or labels as an array of strings, integers or floats, one a row."""
    column = np.asarray(values)
    if column.dtype.kind == "O" and all(isinstance(value, str) for value in column.flat):
        column = column.astype(str)
    if column.dtype.kind == "b":
        column = column.astype(np.int64)
    if column.dtype.kind not in "Uiuf":
        raise InputError(f"{source}: {what} must be strings or numbers, got {column.dtype}")
    _check_length(what, column, n_samples, source)
    return column


def as_weights(values: ArrayLike, n_samples: int, source: str) -> NDArray[np.float64]:
    """Return weights of rows (n_samples,) as doubles; InputError unless finite and not negative."""
    column = np.asarray(values)
    if column.dtype.kind not in "iuf":
        raise InputError(f"{source}: sample weights must be numbers, got {column.dtype}")
    _check_length("sample weights", column, n_samples, source)
    weights = column.astype(np.float64)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{source}: the sample weight of row {row} is {weights[row]:g}, but weights are finite "
            "and not negative"
        )
    return weights


def read_weights(
    file: h5py.File, name: str | None, n_samples: int, stored: bool = True, needed: bool = True
) -> NDArray[np.float64] | None:
    """Return weights (n_samples,) from a one-dimensional dataset of a file.

    Where no name is given, those that datasets call ``sample_weight`` are taken if ``stored``. None
    where there are none, unless a name is given and ``needed``.
    """
    if name is None:
        if not stored or find(file, STORED) is None:
            return None
        name = STORED
    if not needed and find(file, name) is None:
        return None
    values = read_array(file, name, shape=(n_samples,), kinds="iuf")
    return as_weights(values, n_samples, f"{file.filename}: {name}")


def _check_length(what: str, column: Labels, n_samples: int, source: str) -> None:
    """Raise InputError unless there is one value a row."""
    if column.shape != (n_samples,):
        raise InputError(
            f"{source}: X has {n_samples} rows, but {what} have shape "
            f"{' x '.join(map(str, column.shape)) or 'of a single value'}"
        )
