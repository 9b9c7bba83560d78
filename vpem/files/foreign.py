"""Matrices of numbers in HDF5 files that anybody may have made, AnnData among them."""

from __future__ import annotations

import h5py
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from vpem.checks import Floats
from vpem.errors import FileError, InputError, Setting, did_you_mean, shorten
from vpem.files.hdf5 import find, list_datasets, read_array, read_attribute, read_strings
from vpem.files.matrix import FileMatrix


def as_matrix(values: ArrayLike, source: str, dtype: DTypeLike | None = None) -> Floats:
    """Return ``values`` as a C-contiguous matrix of float32 or float64."""
    matrix = np.asarray(values)
    shape = " x ".join(map(str, matrix.shape))
    if matrix.dtype.kind not in "iuf":
        raise InputError(f"{source}: X must hold real numbers, got {matrix.dtype}")
    if matrix.ndim != 2:
        raise InputError(
            f"{source}: X must have two dimensions (examples by features), got {matrix.ndim} "
            f"(shape {shape or 'of a single value'})"
        )
    if matrix.size == 0:
        raise InputError(f"{source}: X has no values (shape {shape})")
    if dtype is None:
        small = matrix.dtype.kind == "f" and matrix.dtype.itemsize <= 4
        dtype = np.float32 if small else np.float64
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(matrix, dtype=dtype)
    if converted.dtype.itemsize < matrix.dtype.itemsize and (
        np.isinf(converted).sum() > np.isinf(matrix).sum()
    ):
        raise InputError(f"{source}: X holds values too large for {converted.dtype}; use float64")
    return converted


def read_matrix(
    file: h5py.File,
    name: str,
    source: str,
    dtype: DTypeLike | None,
    memory_limit: int | None,
) -> Floats | FileMatrix:
    """Read the two-dimensional dataset ``name``, or say which ones there are."""
    item = find(file, name)
    if item is None:
        present = _matrices(file)
        hint = did_you_mean(name, present)
        listed = shorten(f"{path} ({shape})" for path, shape in present.items())
        lacking = f"{file.filename} has no {name}; "
        if not present:
            raise FileError(
                f"{lacking}nor another 2-D dataset; write its columns side by side into one"
            )
        raise FileError(
            f"{lacking}pass one of its 2-D numeric datasets with ",
            Setting("dataset"),
            f"{hint}: {listed}",
        )
    if memory_limit is not None and isinstance(item, h5py.Dataset):
        matrix = FileMatrix(file.filename, name, 0)
        stored = matrix.beyond(memory_limit)
        if stored is not None:
            return stored
        matrix.close()
    return as_matrix(read_array(file, name, ndim=2), source, dtype)


def _matrices(file: h5py.File) -> dict[str, str]:
    """Return path and shape of every two-dimensional numeric dataset that is not empty."""
    return {
        name: " x ".join(map(str, item.shape))
        for name, item in list_datasets(file).items()
        if item.dtype.kind in "iuf" and item.ndim == 2 and item.size
    }


def names_in(file: h5py.File, group: str) -> tuple[str, ...]:
    """Return the names that AnnData keeps for its rows (obs) or columns (var)."""
    frame = find(file, group)
    if not isinstance(frame, h5py.Group):
        raise FileError(
            f"{file.filename}: {group} is not in the layout of current AnnData; save the file "
            "again with a newer anndata, or pass ",
            Setting("dataset", "X"),
        )
    name = read_attribute(frame, "_index") or "_index"
    values = f"{name}/values" if isinstance(find(frame, name), h5py.Group) else name
    return read_strings(frame, values)
