"""Datasets of matrices: which of their columns are features, and what is noted of the rows.

Sparse matrices are made dense, after what they say of themselves is checked. HDF5 files have
datasets of vpem, AnnData (.h5ad), records, or any matrix. The layout of AnnData, matrices of cells
by genes with what is noted of the cells, is that of
https://anndata.readthedocs.io/en/stable/fileformat-prose.html. Tables of pandas (PyTables) keep
names and text as pickles, and are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Floats, Labels, no_measurement, read_int, row_blocks
from vpem.errors import FileError, InputError, did_you_mean
from vpem.files.datasets import (
    ENCODING,
    VERSION,
    Dataset,
    as_weights,
    default_names,
    names_in,
    read_exponents,
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
from vpem.files.matrix import FileMatrix, is_stored, select_columns
from vpem.files.opening import check_unpacked
from vpem.files.readers.frames import (
    ReadOptions,
    ask_of_ids,
    blank_marks,
    check_fields,
    choose,
    labels_of_columns,
    only_guesses,
    refuse_large,
    refuse_marks,
    take_counts,
    warn_of_guesses,
    warn_of_marks,
)
from vpem.network.partition import from_agent_of_feature, from_worker_of_row
from vpem.network.schema import Report

if TYPE_CHECKING:
    import h5py


Parts = tuple[AnyArray, AnyArray, AnyArray]
"""Values, their columns (rows), and where each row (column) begins."""


def dense_of(
    parts: Parts,
    shape: tuple[int, int],
    kind: str,
    file: Path,
    source: str,
    memory_limit: int | None,
) -> Floats:
    """Return a sparse matrix ("csr", "csc") of `Parts` as a dense one (M, d).

    It is float32 where values are real numbers of at most 32 bits, else float64; FileError if it
    takes far more than the file, InputError if it exceeds ``memory_limit`` (bytes).
    """
    import scipy.sparse

    data, indices, indptr = check_parts(parts, shape, kind, source)
    small = data.dtype.kind == "f" and data.dtype.itemsize <= 4
    dtype = np.dtype(np.float32 if small else np.float64)
    n_bytes = shape[0] * shape[1] * dtype.itemsize
    check_unpacked(n_bytes, file, source)
    refuse_large(n_bytes, memory_limit, source)
    sparse_type = scipy.sparse.csr_matrix if kind == "csr" else scipy.sparse.csc_matrix
    sparse = sparse_type((data.astype(dtype), indices, indptr), shape=shape)
    return np.ascontiguousarray(sparse.toarray(), dtype=dtype)


def check_parts(parts: Parts, shape: tuple[int, int], kind: str, source: str) -> Parts:
    """Return the parts of a sparse matrix, as `dense_of` takes them, if they fit each other."""
    data, indices, indptr = (np.asarray(part) for part in parts)
    runs, across = shape if kind == "csr" else shape[::-1]
    fits = (
        data.ndim == indices.ndim == indptr.ndim == 1
        and data.dtype.kind in "iufb"
        and indices.dtype.kind in "iu"
        and indptr.dtype.kind in "iu"
        and len(data) == len(indices)
        and len(indptr) == runs + 1
        and indptr[0] == 0
        and indptr[-1] == len(data)
        and bool((indptr[1:] >= indptr[:-1]).all())
        and (not len(indices) or (indices.min() >= 0 and indices.max() < across))
    )
    if not fits:
        raise FileError(f"{source}: the parts of the sparse matrix do not fit each other")
    return data, indices, indptr


Note = Callable[[str], Labels | None]
"""What a file has beside a matrix, of a name: (M,)."""


def dataset_of_matrix(
    dataset: Dataset, note: Note, options: ReadOptions, *, strict: bool
) -> Dataset:
    """Choose among the columns of a matrix; if ``strict``, those that tell nothing are features."""
    table = options.table
    noted: dict[str, Labels] = {}
    for what in ("label", "id", "worker"):
        name = getattr(table, f"{what}_column")
        values = note(name) if isinstance(name, str) else None
        if values is not None and values.ndim == 1:
            noted[what] = values
            table = table.changed(**{f"{what}_column": None})
    column = options.sample_weight
    if isinstance(column, str) and (values := note(column)) is not None:
        noted["weight"], column = values, None
    known, name = None, table.labels_for_fit
    values = note(name) if isinstance(name, str) else None
    if values is not None:
        if len(values) != dataset.n_samples:
            raise InputError(
                f"{dataset.source}: {name} has {len(values)} labels, but the data have "
                f"{dataset.n_samples} rows"
            )
        lists = [one.tolist() for one in ([values] if values.ndim == 1 else values.T)]
        called = [f"{name} {place}" for place in range(len(lists))]
        known = labels_of_columns(lists, called, table.marks, dataset.source)
        table = table.changed(labels_for_fit=None)
    columns = options.columns
    if columns is not None and not set(columns) & set(dataset.feature_names):
        columns = None  # a matrix whose columns have no names is as wide as the model
    reading = replace(options, table=table, sample_weight=column, columns=columns)
    choice = choose(dataset.feature_names, reading, dataset.source)
    for what, place in choice.noted.items():
        noted[what] = _column(dataset.X, place)
    if choice.known:
        columns_of = [_column(dataset.X, place).tolist() for place in choice.known]
        names = [dataset.feature_names[place] for place in choice.known]
        known = labels_of_columns(columns_of, names, table.marks, dataset.source)
    features, left_out = choice.features, {}
    X: Any = select_columns(dataset.X, features)
    if not is_stored(X):
        codes = () if dataset.kinds is None else dataset.kinds.columns_of("categorical")
        X = blank_marks(X, table, [n for n, j in enumerate(features) if j not in codes])
        called = [dataset.feature_names[n] for n in features]
        plain = not choice.chosen and options.columns is None and not options.keep_constant
        if plain and strict:
            ask_of_ids(dataset.source, called, X)
        elif plain and len(X) > 1:
            missing = np.isnan(X)
            empty = missing.all(axis=0)
            first = X[missing.argmin(axis=0), np.arange(X.shape[1])]
            constant = (missing | (first == X)).all(axis=0) & ~empty
            why = {int(n): "no values" for n in np.flatnonzero(empty)}
            why |= {int(n): "constant" for n in np.flatnonzero(constant)}
            if len(why) == len(features):
                raise InputError(f"{dataset.source}: no column has more than one value")
            words = {one: no_measurement(one, X[:, n]) for n, one in enumerate(called)}
            words |= {called[n]: word for n, word in why.items()}
            left_out = take_counts(
                dataset.source, {one: word for one, word in words.items() if word}
            )
            chosen = [n for n, one in enumerate(called) if one not in left_out]
            if not chosen:
                raise only_guesses(dataset.source, left_out)
            X, features = select_columns(X, chosen), [features[n] for n in chosen]
            warn_of_guesses(dataset.source, left_out, called, [called[n] for n in chosen])
        if options.columns is None:
            warn_of_marks(dataset.source, X, [dataset.feature_names[n] for n in features])
    else:
        refuse_marks(table, dataset.source)
    partition, kinds = dataset.partition, dataset.kinds
    if partition is not None and features != list(range(dataset.n_features)):
        agents, names = partition.agent_of[features], list(partition.names)
        if dataset.edges is None:  # agents without any stay where links lead to them
            there, agents = np.unique(agents, return_inverse=True)
            names = [names[agent] for agent in there]
        partition = from_agent_of_feature(agents, names)
    weights = dataset.sample_weight
    if "weight" in noted:
        weights = as_weights(noted["weight"], len(X), dataset.source)
    return replace(
        dataset,
        X=X,
        feature_names=tuple(dataset.feature_names[n] for n in features),
        ids=noted.get("id", dataset.ids),
        labels=noted.get("label", dataset.labels),
        partition=partition,
        workers=from_worker_of_row(noted["worker"]) if "worker" in noted else dataset.workers,
        sample_weight=weights,
        left_out=left_out,
        table=options.table,
        kinds=None if kinds is None else kinds.take_features(features),
        labels_for_fit=known,
    )


def _column(X: Floats | FileMatrix, place: int) -> Labels:
    """Return the numbers of a column (M,), integers where all are whole."""
    column = select_columns(X, [place])
    values = np.concatenate([part[:, 0].copy() for _, part in row_blocks(column)])
    finite = np.isfinite(values).all() and (np.abs(values) < 2**53).all()
    return values.astype(np.int64) if finite and (values == np.floor(values)).all() else values


SPARSE_KINDS = {"csr_matrix": "csr", "csc_matrix": "csc", "csr": "csr", "csc": "csc"}


def read_hdf5(path: Path, source: str, options: ReadOptions) -> Dataset:
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

        from vpem.files.readers.tabular import dataset_of, frame_of_records

        check_fields(item.dtype, f"{source}: {name}")
        frame = frame_of_records(read_array(file, name, ndim=1, kinds="V"), source)
        return replace(dataset_of(frame, options), format="records")


def read_anndata(file: h5py.File, source: str, options: ReadOptions) -> Dataset:
    """Read ``X``, a layer, or another matrix of the cells."""
    name = (options.dataset or "X").strip("/")
    X = _values(file, name, source, options)
    of_genes = name == "X" or name.startswith("layers/")
    columns = "var" if of_genes else "raw/var" if name == "raw/X" else None
    names = default_names(X.shape[1]) if columns is None else names_in(file, columns)
    n_rows = len(X)
    weights = None
    if not isinstance(options.sample_weight, str) or not _has_obs(file, options.sample_weight):
        of_file = None if options.sample_weight is None else str(options.sample_weight)
        weights = read_weights(file, of_file, n_rows, True, options.weights_needed)
    ids = np.array(names_in(file, "obs"), dtype=str)

    def find_labels(called: str) -> Labels | None:
        return _column_of_obs(file, called, n_rows) if _has_obs(file, called) else None

    dataset = Dataset(X, names, ids=ids, sample_weight=weights, source=source)
    for what in ("label", "id", "worker"):
        named = getattr(options.table, f"{what}_column")
        if not isinstance(named, str) or named in names or read_int(named) is not None:
            continue
        if what not in options.lacking and not _has_obs(file, named):
            known = [one for one in find(file, "obs") or () if not one.startswith("_")]
            listed = ", ".join(known[:10]) or "none"
            raise InputError(
                f"{file.filename}: obs has no column {named!r}{did_you_mean(named, known)}; its "
                f"columns are {listed}"
            )
    return dataset_of_matrix(dataset, find_labels, options, strict=True)


def _has_obs(file: h5py.File, name: object) -> bool:
    if not isinstance(name, str) or not name or "/" in name:
        return False
    return find(file, f"obs/{name}") is not None


def _column_of_obs(file: h5py.File, name: str, n_rows: int) -> Labels:
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


def _refuse_missing(missing: NDArray[np.bool_], where: str, file: h5py.File) -> None:
    if missing.any():
        raise InputError(
            f"{file.filename}: row {int(np.argmax(missing))} (counted from 0) has no value in "
            f"{where}; fill it in, or leave the column out"
        )


def _stored(file: h5py.File, name: str, item: object, source: str, options: ReadOptions) -> Dataset:
    X: Any
    if item is not None and not is_group(item) and read_attribute(item, "MATLAB_class"):
        # MATLAB writes columns first.
        X = np.ascontiguousarray(np.asarray(read_matrix(file, name, source, None)).T)
    else:
        X = _values(file, name, source, options)

    def find_labels(called: str) -> Labels | None:
        one = find(file, called) if called.strip("/") else None
        if one is None or is_group(one) or one.ndim not in (1, 2):
            return None
        if one.ndim == 2:
            return read_array(file, called) if called != name else None
        return read_column(file, called)

    inside = None if options.sample_weight is None else str(options.sample_weight)
    is_whole = options.dataset is None
    weights = read_weights(file, inside, len(X), is_whole, options.weights_needed)
    names = default_names(X.shape[1])
    more: Report = {}
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
    if (power := read_attribute(file, "power")) is not None:
        more["powers"] = read_exponents(power, source)
    whole = Dataset(X, names, sample_weight=weights, source=source, **more)
    unread = replace(options, sample_weight=None)
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


def sparse_kind(item: object) -> str | None:
    """Return whether a group is a sparse matrix by rows ("csr") or columns ("csc")."""
    if not is_group(item):
        return None
    encoding = read_attribute(item, "encoding-type") or read_attribute(item, "h5sparse_format")
    return SPARSE_KINDS.get(encoding or "")


def _values(file: h5py.File, name: str, source: str, options: ReadOptions) -> Floats | FileMatrix:
    """Return a matrix, a sparse one as a dense one."""
    item, where = find(file, name), f"{source}: {name}"
    if (kind := sparse_kind(item)) is None:
        return read_matrix(file, name, source, options.in_memory)
    parts, shape = sparse_in(item, where)
    return dense_of(parts, shape, kind, Path(file.filename), where, options.memory_limit)


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
