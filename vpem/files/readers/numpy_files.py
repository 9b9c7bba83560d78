"""Arrays of NumPy, .npy and .npz: never a pickle, and no larger than they say and have."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from vpem.checks import AnyArray, Labels
from vpem.errors import FileError, InputError, Setting, did_you_mean, shorten
from vpem.files.datasets import Dataset, as_matrix, default_names
from vpem.files.opening import check_unpacked, damaged, open_regular, open_zip
from vpem.files.readers.frames import ReadOptions, check_fields, refuse_large
from vpem.files.readers.matrices import dataset_of_matrix, dense_of
from vpem.network.schema import Report

DAMAGED = "cannot be read; it is damaged"
READ_BYTES = 1 << 20  # at once: what is packed is unpacked beside where it goes
NOTED = ("ids", "labels", "sample_weight")
SPARSE = {"data", "indices", "indptr", "format", "shape"}
"""Members of what scipy.sparse.save_npz writes."""


def read_npy(file: Path, source: str, options: ReadOptions) -> Dataset:
    """Read a matrix, or an array of records; Python objects are refused."""
    with open_regular(file) as opened, damaged(f"{source} {DAMAGED}", Exception):
        array = _read(opened, os.stat(file).st_size, source, options)
    return _dataset_of(array, {}, source, options)


def read_npz(file: Path, source: str, options: ReadOptions) -> Dataset:
    """Read the matrix ``X`` of an archive, or its only one, and what else it has of the rows."""
    arrays: dict[str, Labels] = {}
    with (
        open_regular(file) as opened,
        damaged(f"{source} {DAMAGED}", Exception),
        open_zip(opened, source) as archive,
    ):
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        check_unpacked(sum(info.file_size for info in members.values()), file, source)
        sparse, name, listed = set(members) >= SPARSE, "", shorten(members, 10)
        if options.dataset is not None and not sparse:
            name = options.dataset
            if name not in members:
                hint = did_you_mean(name, members)
                raise InputError(f"{source} has no array {name!r}{hint}; it has {listed}")
        elif not sparse:
            others = [one for one in members if one not in (*NOTED, "feature_names")]
            if {"row", "col", "format"} <= set(members):
                raise InputError(
                    f"{source} holds a sparse matrix as coo; save it as csr (X.tocsr())"
                )
            if "X" not in members and len(others) != 1:
                raise InputError(
                    f"{source} has several arrays and none is called X: {listed}; name the one "
                    "that is meant with ",
                    Setting("dataset"),
                )
            name = "X" if "X" in members else others[0]
        table = options.table
        named = (table.label_column, table.id_column, table.worker_column, options.sample_weight)
        read = {name, "feature_names", *NOTED, *(str(one) for one in named if one is not None)}
        read |= SPARSE if sparse else set()
        for each, info in members.items():
            if each in read:
                with archive.open(info) as stream:
                    arrays[each] = _read(stream, info.file_size, source, options)
    if not sparse:
        return _dataset_of(arrays.pop(name), arrays, source, options)
    # As scipy.sparse.save_npz writes it.
    layout = _text(arrays["format"].reshape(-1)[:1].tolist()[0])
    shape = [int(length) for length in arrays["shape"].reshape(-1)[:3]]
    if layout not in ("csr", "csc") or len(shape) != 2:
        raise InputError(f"{source} holds a sparse matrix as {layout!r}; save it as csr")
    parts = arrays["data"], arrays["indices"], arrays["indptr"]
    X = dense_of(parts, (shape[0], shape[1]), layout, file, source, options.memory_limit)
    return _dataset_of(X, {}, source, options)


def list_npz(file: Path) -> dict[str, str]:
    """Return type and shape of each array of an archive, as it says itself; none is unpacked."""
    listing = {}
    with (
        open_regular(file) as opened,
        damaged(f"{file} {DAMAGED}", Exception),
        open_zip(opened, file) as archive,
    ):
        for info in archive.infolist():
            with archive.open(info) as stream:
                shape, _, dtype = _header(stream)
            kind = "text" if dtype.kind in "US" else dtype.name
            name = info.filename.removesuffix(".npy")
            listing[name] = f"{kind}, {' x '.join(map(str, shape)) or 'one value'}"
    return listing


def _dataset_of(
    array: AnyArray, beside: dict[str, AnyArray], source: str, options: ReadOptions
) -> Dataset:
    if array.dtype.names is not None:
        if array.ndim != 1:
            raise InputError(f"{source}: records must have one dimension, got {array.ndim}")
        from vpem.files.readers.tabular import dataset_of, frame_of_records

        return dataset_of(frame_of_records(array, source), options)
    if array.dtype.kind == "b":
        array = array.astype(np.float64)
    X = as_matrix(array, source)
    names = beside.get("feature_names")
    if names is not None and (names.ndim != 1 or names.dtype.kind not in "US"):
        raise InputError(f"{source}: feature_names must be a list of text, got {names.dtype}")
    called = default_names(X.shape[1]) if names is None else tuple(map(_text, names.tolist()))

    def find_labels(name: str) -> Labels | None:
        values = beside.get(name)
        if values is not None and values.dtype.kind == "S":
            return np.char.decode(values, "utf-8", "replace")
        return values

    noted: Report = {name: find_labels(name) for name in NOTED}
    whole = Dataset(X, called, source=source, **noted)
    return dataset_of_matrix(whole, find_labels, options, strict=False)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _read(stream: Any, size: int, source: str, options: ReadOptions) -> AnyArray:
    """Read an array, of a stream that has so many bytes, after checking what it says it holds."""
    shape, fortran, dtype = _header(stream)
    if dtype.hasobject:
        raise FileError(
            f"{source} holds Python objects, which are pickles and are not read; save numbers and "
            "text (astype(float), astype(str))"
        )
    n_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes > size:
        raise FileError(f"{source} is cut short: it says that it holds {n_bytes} bytes")
    if dtype.names is not None:
        check_fields(dtype, source)
    refuse_large(n_bytes, options.memory_limit, source)
    content, have = bytearray(n_bytes), 0
    while have < n_bytes and (count := stream.readinto(memoryview(content)[have:][:READ_BYTES])):
        have += count
    if have < n_bytes:
        raise FileError(f"{source} is cut short: {have} bytes of {n_bytes} are there")
    flat: AnyArray = np.frombuffer(content, dtype)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(stream)
    if version == (1, 0):
        header = npy.read_array_header_1_0(stream)
    elif version == (2, 0):
        header = npy.read_array_header_2_0(stream)
    else:
        raise ValueError(f"version {version[0]}.{version[1]} of the format is not known")
    shape, fortran, dtype = header
    if min(shape, default=0) < 0 or dtype.itemsize == 0:
        raise ValueError(f"shape {shape}, type {dtype}")
    return tuple(map(int, shape)), bool(fortran), dtype
