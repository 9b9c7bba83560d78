"""HDF5 files of data: datasets of vpem, AnnData (.h5ad), records, and any matrix.

The layout of AnnData, matrices of cells by genes with what is noted of the cells, is that of
https://anndata.readthedocs.io/en/stable/fileformat-prose.html. Tables of pandas (PyTables) keep
names and text as pickles, and are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vpem.checks import Labels, read_int
from vpem.errors import FileError, InputError, did_you_mean
from vpem.files.datasets import (
    ENCODING,
    VERSION,
    Dataset,
    default_names,
    names_in,
    read_matrix,
    read_weights,
)
from vpem.files.elements import read_kinds
from vpem.files.hdf5 import (
    check_encoding,
    find,
    is_group,
    list_datasets,
    open_read,
    read_array,
    read_attribute,
    read_column,
    read_shape,
    read_strings,
)
from vpem.files.readers.frames import ReadOptions, check_fields
from vpem.files.readers.matrices import Parts, dataset_of_matrix, dense_of
from vpem.network.partition import from_agent_of_feature, from_worker_of_row

if TYPE_CHECKING:
    import h5py


SPARSE_KINDS = {"csr_matrix": "csr", "csc_matrix": "csc", "csr": "csr", "csc": "csc"}


def read_hdf5(path: Path, source: str, options: ReadOptions) -> Dataset:
    """Read a dataset of an HDF5 file."""
    with open_read(path) as file:
        name = "X" if options.dataset is None else options.dataset
        kind = check_encoding(file, ENCODING, VERSION) if options.dataset is None else None
        kind = kind or read_attribute(file, "encoding-type")
        both = find(file, "obs") is not None and find(file, "var") is not None
        whole = options.dataset is None or is_group(find(file, "obs"))
        if kind == "anndata" or (kind is None and both and whole):
            return read_anndata(file, source, options)
        item = find(file, name)
        if item is None or (is_group(item) and sparse_kind(item) is None):
            there = list_datasets(file)
            for parent in {path.rpartition("/")[0] for path in there if kind is None} - {""}:
                if (read_attribute(find(file, parent), "pandas_type") or "").startswith("frame"):
                    raise InputError(
                        f"{source} holds a table as pandas keeps it in HDF5 (PyTables), which is "
                        "not read; write it with df.to_parquet('table.parquet'), or as CSV"
                    )
            if options.dataset is None:
                # The only records of a file that has no matrix need no name.
                records = [path for path, one in there.items() if one.dtype.names is not None]
                matrices = [one for one in there.values() if one.dtype.kind in "iuf"]
                if len(records) == 1 and all(one.ndim != 2 for one in matrices):
                    name, item = records[0], find(file, records[0])
        if item is None or is_group(item) or item.dtype.names is None or item.ndim != 1:
            return _stored(file, name, item, source, options)

        from vpem.files.readers.numpy_files import frame_of_records
        from vpem.files.readers.tabular import dataset_of

        check_fields(item.dtype, f"{source}: {name}")
        frame = frame_of_records(read_array(file, name, ndim=1, kinds="V"), source)
        return dataset_of(frame, options)


def read_anndata(file: h5py.File, source: str, options: ReadOptions) -> Dataset:
    """Read ``X``, a layer, or another matrix of the cells."""
    name = (options.dataset or "X").strip("/")
    item = find(file, name)
    kind = sparse_kind(item)
    if kind is None:
        X = read_matrix(file, name, source, None, options.in_memory)
    else:
        X = dense_in(item, name, kind, source, options)
    of_genes = name == "X" or name.startswith("layers/")
    columns = "var" if of_genes else "raw/var" if name == "raw/X" else None
    names = default_names(X.shape[1]) if columns is None else names_in(file, columns)
    n_rows = len(X)
    weights = None
    if not isinstance(options.weights, str) or not _noted(file, options.weights):
        of_file = None if options.weights is None else str(options.weights)
        weights = read_weights(file, of_file, n_rows, True, options.weights_needed)
    ids = np.array(names_in(file, "obs"), dtype=str)

    def find_labels(called: str) -> Labels | None:
        return _column(file, called, n_rows) if _noted(file, called) else None

    dataset = Dataset(X, names, ids=ids, sample_weight=weights, source=source)
    for what in ("label", "id", "worker"):
        named = getattr(options.table, f"{what}_column")
        if not isinstance(named, str) or named in names or read_int(named) is not None:
            continue
        if what not in options.lacking and not _noted(file, named):
            known = [one for one in find(file, "obs") or () if not one.startswith("_")]
            listed = ", ".join(known[:10]) or "none"
            raise InputError(
                f"{file.filename}: obs has no column {named!r}{did_you_mean(named, known)}; its "
                f"columns are {listed}"
            )
    return dataset_of_matrix(dataset, find_labels, options, strict=True)


def _noted(file: h5py.File, name: object) -> bool:
    if not isinstance(name, str) or not name or "/" in name:
        return False
    return find(file, f"obs/{name}") is not None


def _column(file: h5py.File, name: str, n_rows: int) -> Labels:
    where = f"obs/{name}"
    item = find(file, where)
    if not is_group(item):
        column = read_column(file, where)
        old = find(file, f"obs/__categories/{name}")
        if old is not None:
            column = _of_codes(column, read_column(file, f"obs/__categories/{name}"), where, file)
    elif find(item, "codes") is not None:
        codes = read_array(item, "codes", ndim=1, kinds="iu")
        column = _of_codes(codes, read_column(item, "categories"), where, file)
    elif find(item, "values") is not None:
        text = read_attribute(item, "encoding-type") == "nullable-string-array"
        column = (
            np.array(read_strings(item, "values"), dtype=str) if text
            else read_column(item, "values")
        )  # fmt: skip
        if find(item, "mask") is not None:
            _refuse_missing(read_array(item, "mask", ndim=1, kinds="iub") != 0, where, file)
    else:
        raise FileError(f"{file.filename}: {where} is stored in a way that is not known here")
    if column.shape != (n_rows,):
        raise FileError(f"{file.filename}: {where} has {len(column)} values for {n_rows} rows")
    return column.astype(np.int64) if column.dtype.kind == "b" else column


def _of_codes(codes: Labels, categories: Labels, where: str, file: h5py.File) -> Labels:
    if codes.dtype.kind not in "iu" or (len(codes) and int(codes.max()) >= len(categories)):
        raise FileError(f"{file.filename}: {where} has codes of no category")
    places = codes.astype(np.intp)
    _refuse_missing(places < 0, where, file)
    return categories[places]


def _refuse_missing(missing: Any, where: str, file: h5py.File) -> None:
    if missing.any():
        raise InputError(
            f"{file.filename}: row {int(np.argmax(missing))} (counted from 0) has no value in "
            f"{where}; fill it in, or leave the column out"
        )


def _stored(file: h5py.File, name: str, item: Any, source: str, options: ReadOptions) -> Dataset:
    kind = sparse_kind(item)
    X: Any
    if kind is not None:
        X = dense_in(item, name, kind, source, options)
    elif item is not None and not is_group(item) and read_attribute(item, "MATLAB_class"):
        # MATLAB writes columns first.
        X = np.ascontiguousarray(np.asarray(read_matrix(file, name, source, None, None)).T)
    else:
        X = read_matrix(file, name, source, None, options.in_memory)

    def find_labels(called: str) -> Labels | None:
        one = find(file, called) if called.strip("/") else None
        if one is None or is_group(one) or one.ndim not in (1, 2):
            return None
        if one.ndim == 2:
            return read_array(file, called) if called != name else None
        return read_column(file, called)

    inside = None if options.weights is None else str(options.weights)
    is_whole = options.dataset is None
    weights = read_weights(file, inside, len(X), is_whole, options.weights_needed)
    names = default_names(X.shape[1])
    more: dict[str, Any] = {}
    if is_whole:
        if find(file, "agent_names") is not None and find(file, "partition") is None:
            raise FileError(f"{file.filename} has agent_names but no partition of the features")
        if find(file, "feature_names") is not None:
            names = read_strings(file, "feature_names")
        more = {
            "ids": None if find(file, "ids") is None else read_column(file, "ids"),
            "labels": None if find(file, "labels") is None else read_column(file, "labels"),
            "partition": _read_holders(
                file, "partition", "agent_names", X.shape[1], from_agent_of_feature
            ),
            "workers": _read_holders(
                file, "workers", "worker_names", X.shape[0], from_worker_of_row
            ),
            "kinds": read_kinds(file, X.shape[1]),
            "edges": None if find(file, "graph/edges") is None else read_array(file, "graph/edges"),
        }
    whole = Dataset(X, names, sample_weight=weights, source=source, **more)
    unread = replace(options, weights=None)
    return dataset_of_matrix(whole, find_labels, unread, strict=True)


def _read_holders(
    file: h5py.File, name: str, names: str, count: int, make: Callable[..., Any]
) -> Any:
    """Return who holds which features (rows), as ``make`` takes it; None: none is stored."""
    if find(file, name) is None:
        return None
    holder_of = read_array(file, name, kinds="iu", shape=(count,))
    called = None if find(file, names) is None else read_strings(file, names)
    try:
        return make(holder_of, called)
    except InputError as error:
        raise InputError(f"{file.filename}: {error}") from None


def sparse_kind(item: Any) -> str | None:
    """Return whether a group is a sparse matrix by rows ("csr") or columns ("csc")."""
    if not is_group(item):
        return None
    encoding = read_attribute(item, "encoding-type") or read_attribute(item, "h5sparse_format")
    return SPARSE_KINDS.get(encoding or "")


def dense_in(group: h5py.Group, name: str, kind: str, source: str, options: ReadOptions) -> Any:
    """Return a sparse matrix as a dense one."""
    parts, shape = sparse_in(group, f"{source}: {name}")
    file = Path(group.file.filename)
    return dense_of(parts, shape, kind, file, f"{source}: {name}", options.memory_limit)


def sparse_in(group: h5py.Group, source: str) -> tuple[Parts, tuple[int, int]]:
    """Return the parts of a sparse matrix, which may not fit each other, and its shape."""
    shape = read_shape(group, "shape") or read_shape(group, "h5sparse_shape")
    if shape is None or 0 in shape:
        raise FileError(f"{source} is a sparse matrix that does not say how large it is")
    parts = (
        read_array(group, "data", ndim=1, kinds="iufb"),
        read_array(group, "indices", ndim=1, kinds="iu"),
        read_array(group, "indptr", ndim=1, kinds="iu"),
    )
    return parts, shape
