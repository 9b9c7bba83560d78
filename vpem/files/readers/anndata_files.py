"""AnnData (.h5ad): matrices of cells by genes, dense or sparse, and what is noted of the cells.

The layout is that of https://anndata.readthedocs.io/en/stable/fileformat-prose.html.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vpem.checks import Labels, read_int
from vpem.errors import FileError, InputError, did_you_mean
from vpem.files.annotations import read_weights
from vpem.files.datasets import Dataset, default_names
from vpem.files.foreign import names_in, read_matrix
from vpem.files.hdf5 import (
    find,
    is_group,
    read_array,
    read_attribute,
    read_column,
    read_shape,
    read_strings,
)
from vpem.files.readers.frames import Wanted
from vpem.files.readers.matrices import Matrix, dataset_of_matrix
from vpem.files.readers.sparse import Parts, dense_of

if TYPE_CHECKING:
    import h5py


KINDS = {"csr_matrix": "csr", "csc_matrix": "csc", "csr": "csr", "csc": "csc"}


def read_anndata(file: h5py.File, source: str, wanted: Wanted) -> Dataset:
    """Read ``X``, a layer, or another matrix of the cells."""
    name = (wanted.dataset or "X").strip("/")
    item = find(file, name)
    kind = sparse_kind(item)
    if kind is None:
        X = read_matrix(file, name, source, None, wanted.in_memory)
    else:
        X = dense_in(item, name, kind, source, wanted)
    of_genes = name == "X" or name.startswith("layers/")
    columns = "var" if of_genes else "raw/var" if name == "raw/X" else None
    names = default_names(X.shape[1]) if columns is None else names_in(file, columns)
    n_rows = len(X)
    weights = None
    if not isinstance(wanted.weights, str) or not _noted(file, wanted.weights):
        of_file = None if wanted.weights is None else str(wanted.weights)
        weights = read_weights(file, of_file, n_rows, True, wanted.weights_needed)
    ids = np.array(names_in(file, "obs"), dtype=str)

    def note(called: str) -> Labels | None:
        return _column(file, called, n_rows) if _noted(file, called) else None

    dataset = Dataset(X, names, ids=ids, sample_weight=weights, source=source)
    _check_named(file, wanted, names)
    return dataset_of_matrix(Matrix(dataset, note, strict=True), wanted)


def sparse_kind(item: Any) -> str | None:
    """Return whether a group is a sparse matrix by rows ("csr") or columns ("csc")."""
    if not is_group(item):
        return None
    encoding = read_attribute(item, "encoding-type") or read_attribute(item, "h5sparse_format")
    return KINDS.get(encoding or "")


def dense_in(group: h5py.Group, name: str, kind: str, source: str, wanted: Wanted) -> Any:
    """Return a sparse matrix as a dense one."""
    parts, shape = sparse_in(group, f"{source}: {name}")
    file = Path(group.file.filename)
    return dense_of(parts, shape, kind, file, f"{source}: {name}", wanted.memory_limit)


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


def _noted(file: h5py.File, name: object) -> bool:
    """Whether ``obs`` has a column of this name."""
    if not isinstance(name, str) or not name or "/" in name:
        return False
    return find(file, f"obs/{name}") is not None


def _check_named(file: h5py.File, wanted: Wanted, genes: tuple[str, ...]) -> None:
    """Raise InputError where a column of labels, ids or workers is not there."""
    table = wanted.table
    for what in ("label", "id", "worker"):
        name = getattr(table, f"{what}_column")
        if not isinstance(name, str) or name in genes or read_int(name) is not None:
            continue
        if what not in wanted.lacking and not _noted(file, name):
            known = [one for one in find(file, "obs") or () if not one.startswith("_")]
            listed = ", ".join(known[:10]) or "none"
            raise InputError(
                f"{file.filename}: obs has no column {name!r}{did_you_mean(name, known)}; its "
                f"columns are {listed}"
            )


def _column(file: h5py.File, name: str, n_rows: int) -> Labels:
    """Return a column of ``obs``: numbers, text, or categories."""
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
    """Return the categories that codes stand for."""
    if codes.dtype.kind not in "iu" or (len(codes) and int(codes.max()) >= len(categories)):
        raise FileError(f"{file.filename}: {where} has codes of no category")
    places = codes.astype(np.intp)
    _refuse_missing(places < 0, where, file)
    return categories[places]


def _refuse_missing(missing: Any, where: str, file: h5py.File) -> None:
    """Raise InputError where a row has no value."""
    if missing.any():
        raise InputError(
            f"{file.filename}: row {int(np.argmax(missing))} (counted from 0) has no value in "
            f"{where}; fill it in, or leave the column out"
        )
