"""What datasets note of their rows: ids, labels and weights, one value a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import Labels
from vpem.errors import InputError
from vpem.files.reading import read_array
from vpem.files.walking import find

if TYPE_CHECKING:
    import h5py

__all__ = ["STORED", "as_column", "as_weights", "read_weights"]

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
    """Return weights of rows as doubles, finite and not negative.

    Raises
    ------
    InputError
        If they are not, naming the first row, or there are more or fewer than rows.
    """
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
    """Return the weights in a one-dimensional dataset of a file.

    Parameters
    ----------
    file : h5py.File
        The file.
    name : str or None
        Path of the dataset.
    n_samples : int
        Number of rows.
    stored : bool
        Where none is named, take what datasets call ``sample_weight``, if it is there.
    needed : bool
        Whether what is named must be there.

    Returns
    -------
    ndarray of shape (n_samples,) or None

    Raises
    ------
    FileError
        If there is no such dataset of numbers, or it has another length.
    InputError
        As `as_weights`.
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
