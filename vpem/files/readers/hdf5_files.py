"""HDF5 files of data: datasets of vpem, AnnData, tables of pandas, records, and any matrix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vpem.checks import Labels
from vpem.errors import FileError, InputError
from vpem.files.annotations import read_weights
from vpem.files.datasets import ENCODING, VERSION, Dataset, default_names
from vpem.files.foreign import read_matrix
from vpem.files.hdf5 import (
    check_encoding,
    find,
    is_group,
    list_datasets,
    open_read,
    read_array,
    read_attribute,
    read_column,
    read_strings,
)
from vpem.files.kept_kinds import read_kinds
from vpem.files.readers.anndata_files import dense_in, read_anndata, sparse_kind
from vpem.files.readers.frames import Wanted, check_fields
from vpem.files.readers.matrices import Matrix, dataset_of_matrix
from vpem.files.readers.pandas_files import frames_in, read_pandas
from vpem.network.partition import Partition, Workers, from_agent_of_feature, from_worker_of_row

if TYPE_CHECKING:
    import h5py


def read_hdf5(path: Path, source: str, wanted: Wanted) -> Dataset:
    """Read a dataset of an HDF5 file."""
    with open_read(path) as file:
        name = "X" if wanted.dataset is None else wanted.dataset
        kind = check_encoding(file, ENCODING, VERSION) if wanted.dataset is None else None
        kind = kind or read_attribute(file, "encoding-type")
        both = find(file, "obs") is not None and find(file, "var") is not None
        whole = wanted.dataset is None or is_group(find(file, "obs"))
        if kind == "anndata" or (kind is None and both and whole):
            return read_anndata(file, source, wanted)
        item = find(file, name)
        if item is None or (is_group(item) and sparse_kind(item) is None):
            frames = frames_in(file) if kind is None else []
            if frames:
                return read_pandas(file, frames, source, wanted)
            if wanted.dataset is None and (alone := _records_in(file)) is not None:
                name, item = alone, find(file, alone)
        if (
            item is not None
            and not is_group(item)
            and item.dtype.names is not None
            and item.ndim == 1
        ):
            return _records(file, name, source, wanted)
        return _stored(file, name, item, source, wanted)


def _records(file: h5py.File, name: str, source: str, wanted: Wanted) -> Dataset:
    """Read a dataset whose rows are records."""
    from vpem.files.readers.records import frame_of_records
    from vpem.files.readers.tabular import dataset_of

    check_fields(find(file, name).dtype, f"{source}: {name}")
    return dataset_of(frame_of_records(read_array(file, name, ndim=1, kinds="V"), source), wanted)


def _stored(file: h5py.File, name: str, item: Any, source: str, wanted: Wanted) -> Dataset:
    """Read a matrix, and what a dataset of vpem has beside it."""
    kind = sparse_kind(item)
    X: Any
    if kind is not None:
        X = dense_in(item, name, kind, source, wanted)
    elif item is not None and not is_group(item) and read_attribute(item, "MATLAB_class"):
        # MATLAB writes columns first.
        X = np.ascontiguousarray(np.asarray(read_matrix(file, name, source, None, None)).T)
    else:
        X = read_matrix(file, name, source, None, wanted.in_memory)

    def note(called: str) -> Labels | None:
        one = find(file, called) if called.strip("/") else None
        if one is None or is_group(one) or one.ndim not in (1, 2):
            return None
        if one.ndim == 2:
            return read_array(file, called) if called != name else None
        return read_column(file, called)

    inside = None if wanted.weights is None else str(wanted.weights)
    own = wanted.dataset is None
    weights = read_weights(file, inside, len(X), own, wanted.weights_needed)
    names = _read_names(file, X.shape[1]) if own else default_names(X.shape[1])
    more: dict[str, Any] = {}
    if own:
        more = {
            "ids": _read_column(file, "ids"),
            "labels": _read_column(file, "labels"),
            "partition": _read_partition(file, X.shape[1]),
            "workers": _read_workers(file, X.shape[0]),
            "kinds": read_kinds(file, X.shape[1]),
            "edges": None if find(file, "graph/edges") is None else read_array(file, "graph/edges"),
        }
    whole = Dataset(X, names, sample_weight=weights, source=source, **more)
    unread = replace(wanted, weights=None)
    return dataset_of_matrix(Matrix(whole, note, strict=True), unread)


def _records_in(file: h5py.File) -> str | None:
    """Return the path of the only dataset of records, where there is no matrix."""
    there = list_datasets(file)
    records = [path for path, item in there.items() if item.dtype.names is not None]
    matrices = [path for path, item in there.items() if item.dtype.kind in "iuf" and item.ndim == 2]
    return records[0] if len(records) == 1 and not matrices else None


def _read_names(file: h5py.File, n_features: int) -> tuple[str, ...]:
    """Return the stored feature names, or the default ones."""
    if find(file, "feature_names") is None:
        return default_names(n_features)
    return read_strings(file, "feature_names")


def _read_column(file: h5py.File, name: str) -> Labels | None:
    """Return ids or labels, strings or numbers, or None."""
    return None if find(file, name) is None else read_column(file, name)


def _read_partition(file: h5py.File, n_features: int) -> Partition | None:
    """Return the stored partition, or None."""
    named = find(file, "agent_names") is not None
    if find(file, "partition") is None:
        if named:
            raise FileError(f"{file.filename} has agent_names but no partition of the features")
        return None
    agent_of = read_array(file, "partition", kinds="iu", shape=(n_features,))
    names = read_strings(file, "agent_names") if named else None
    try:
        return from_agent_of_feature(agent_of, names)
    except InputError as error:
        raise InputError(f"{file.filename}: {error}") from None


def _read_workers(file: h5py.File, n_samples: int) -> Workers | None:
    """Return who holds which rows, or None."""
    if find(file, "workers") is None:
        return None
    worker_of = read_array(file, "workers", kinds="iu", shape=(n_samples,))
    names = None if find(file, "worker_names") is None else read_strings(file, "worker_names")
    try:
        return from_worker_of_row(worker_of, names)
    except InputError as error:
        raise InputError(f"{file.filename}: {error}") from None
