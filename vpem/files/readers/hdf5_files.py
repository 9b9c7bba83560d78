"""AnnData (.h5ad): matrices of cells by genes, dense or sparse, and what is noted of the cells.

The layout is that of https://anndata.readthedocs.io/en/stable/fileformat-prose.html.

HDF5 files of pandas (PyTables): tables in the fixed and in the table format.

What pandas pickles is never unpickled: text of the fixed format, which is left out; and lists of
names, of which the pickle's own words are read as text.

HDF5 files of data: datasets of vpem, AnnData, tables of pandas, records, and any matrix.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Labels, read_int
from vpem.errors import FileError, InputError, Setting, did_you_mean, shorten
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
    list_members,
    open_read,
    read_array,
    read_attribute,
    read_column,
    read_shape,
    read_strings,
    read_value,
)
from vpem.files.readers.frames import Wanted, check_fields
from vpem.files.readers.matrices import Matrix, Parts, dataset_of_matrix, dense_of
from vpem.network.partition import Partition, Workers, from_agent_of_feature, from_worker_of_row

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


Columns = dict[str, NDArray[Any]]

DEEPEST = 4
MOST_BLOCKS = 10_000
HARMLESS = {
    "PROTO", "FRAME", "MARK", "LIST", "EMPTY_LIST", "APPEND", "APPENDS", "STOP", "PUT", "BINPUT",
    "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "INT",
    "BININT", "BININT1", "BININT2",
}  # fmt: skip
"""Words of a pickle of a list of names: none of them makes anything else."""


def frames_in(file: h5py.File) -> list[str]:
    """Return the paths of the tables that pandas has written to a file, each group's once."""
    import h5py

    found: list[str] = []
    groups = [("", file, 0)]
    seen: set[int] = set()
    while groups and len(found) < MOST_BLOCKS:
        path, group, depth = groups.pop(0)
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:
            continue
        seen.add(address)
        if path and (read_attribute(group, "pandas_type") or "").startswith("frame"):
            found.append(path)
        elif depth < DEEPEST:
            members = [(name, find(group, name)) for name in list_members(group)]
            groups += [
                (f"{path}/{name}".strip("/"), one, depth + 1)
                for name, one in members
                if is_group(one)
            ]
    return found


def read_pandas(file: h5py.File, frames: list[str], source: str, wanted: Wanted) -> Dataset:
    """Read a table that pandas has written, of the ``frames`` that `frames_in` finds.

    ``wanted.dataset`` names the table where there are several.
    """
    from vpem.files.readers.numpy_files import frame_of_arrays
    from vpem.files.readers.tabular import dataset_of

    path = (wanted.dataset or "").strip("/") or frames[0]
    if path not in frames or (wanted.dataset is None and len(frames) > 1):
        raise InputError(
            f"{source} holds tables of pandas; name one of them with ", Setting("dataset"),
            f"{did_you_mean(path, frames) if wanted.dataset else ''}: {shorten(frames, 10)}",
        )  # fmt: skip
    group = find(file, path)
    where = f"{source}: {path}"
    unread: dict[str, str] = {}
    if read_attribute(group, "pandas_type") == "frame":
        index, columns = _fixed(group, unread, where)
    else:
        index, columns = _table(group, unread, where)
    lengths = {len(values) for values in (*columns.values(), *index.values())}
    if len(lengths) > 1:
        raise FileError(f"{where}: its columns have different lengths; the file is damaged")
    if not columns:
        listed = shorten((f"{name} ({why})" for name, why in unread.items()), 10)
        raise InputError(
            f"{where}: no column is left for the features: {listed or 'there is none'}"
        )
    index = {
        name: values
        for name, values in index.items()
        if name not in columns and not (
            values.dtype.kind in "iu" and np.array_equal(values, np.arange(len(values)))
        )
    }  # fmt: skip
    frame = frame_of_arrays({**index, **columns}, source, tuple(index), unread)
    return dataset_of(frame, wanted)


def _fixed(group: h5py.Group, unread: dict[str, str], where: str) -> tuple[Columns, Columns]:
    """Return index and columns of the fixed format: blocks of columns of one type."""
    count = read_value(group, "nblocks")
    if not isinstance(count, int | np.integer) or not 0 <= count <= MOST_BLOCKS:
        raise FileError(f"{where}: its number of blocks is {count!r}; the file is damaged")
    order = _texts(group, "axis0", where)
    columns: Columns = {}
    for block in range(int(count)):
        names = _texts(group, f"block{block}_items", where)
        item = find(group, f"block{block}_values")
        kind = None if item is None or is_group(item) else item.dtype.kind
        dated = read_attribute(item, "value_type") if kind is not None else None
        if kind not in ("i", "u", "f") or dated is not None:
            why = "dates" if (dated or "").startswith(("date", "time")) else "text, pickled"
            unread |= dict.fromkeys(names, why)
            continue
        values = read_array(group, f"block{block}_values", ndim=2)
        if read_value(item, "transposed") is None:
            values = values.T
        if values.shape[1] != len(names):
            raise FileError(f"{where}: block {block} has {values.shape[1]} columns and "
                            f"{len(names)} names; the file is damaged")  # fmt: skip
        columns |= {name: values[:, n] for n, name in enumerate(names)}
    return _index(group), {name: columns[name] for name in order if name in columns}


def _index(group: h5py.Group) -> Columns:
    """Return the index of the fixed format, where it is text or whole numbers."""
    item = find(group, "axis1")
    if item is None or is_group(item) or item.ndim != 1 or item.dtype.kind not in "iuS":
        return {}
    if read_attribute(item, "kind") not in ("string", "integer"):
        return {}
    return {"index": read_array(group, "axis1", ndim=1, kinds="iuS")}


def _table(group: h5py.Group, unread: dict[str, str], where: str) -> tuple[Columns, Columns]:
    """Return index and columns of the table format: records with blocks of columns."""
    item = find(group, "table")
    if item is None or is_group(item) or item.dtype.names is None:
        raise FileError(f"{where} has no table; the file is damaged")
    check_fields(item.dtype, where)
    records = read_array(group, "table", ndim=1, kinds="V")
    index: Columns = {}
    columns: Columns = {}
    for field in records.dtype.names or ():
        values = records[field]
        if field == "index":
            if read_attribute(item, "index_kind") in ("string", "integer"):
                index[field] = values
            continue
        names = _names_of(read_value(item, f"{field}_kind"), field, values)
        kind = read_attribute(item, f"{field}_dtype") or ""
        if read_attribute(item, f"{field}_meta") == "category":
            unread |= dict.fromkeys(names, "categories, by codes")
            continue
        if kind.startswith(("datetime", "timedelta")):
            unread |= dict.fromkeys(names, "dates")
            continue
        flat = values.reshape(len(values), math.prod(values.shape[1:]))
        if flat.shape[1] != len(names):
            raise FileError(f"{where}: {field} has {flat.shape[1]} columns and {len(names)} names")
        columns |= {name: flat[:, n] for n, name in enumerate(names)}
    order = _words(read_value(group, "non_index_axes"))
    placed = {name: n for n, name in enumerate(order)}
    return index, dict(sorted(columns.items(), key=lambda one: placed.get(one[0], len(placed))))


def _names_of(pickled: object, field: str, values: NDArray[Any]) -> list[str]:
    """Return the names of the columns of a block; its own where they cannot be known."""
    names = _words(pickled)
    width = math.prod(values.shape[1:])
    if names and len(names) == width:
        return names
    return [field] if width == 1 else [f"{field} {n}" for n in range(width)]


def _words(pickled: object) -> list[str]:
    """Return the text in a pickle of lists of names, which nothing is made of."""
    if isinstance(pickled, str):
        pickled = pickled.encode("latin-1", "replace")
    if not isinstance(pickled, bytes):
        return []
    found: list[str] = []
    try:
        for word, argument, _ in pickletools.genops(bytes(pickled)):
            if word.name not in (*HARMLESS, "TUPLE", "TUPLE2"):
                return []
            if isinstance(argument, str) and word.name.endswith("UNICODE"):
                found.append(argument)
    except Exception:
        return []
    return found


def _texts(group: h5py.Group, name: str, where: str) -> list[str]:
    """Return names of columns, which may be numbers."""
    item = find(group, name)
    if item is None or is_group(item) or item.dtype.kind not in "iuS":
        raise FileError(f"{where}: the names of its columns are stored in a way that is not known")
    values = read_array(group, name, ndim=1, kinds="iuS")
    if values.dtype.kind == "S":
        return [value.decode("utf-8", "replace") for value in values.tolist()]
    return [str(value) for value in values.tolist()]


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
    from vpem.files.readers.numpy_files import frame_of_records
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
