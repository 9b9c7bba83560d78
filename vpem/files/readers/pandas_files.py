"""HDF5 files of pandas (PyTables): tables in the fixed and in the table format.

What pandas pickles is never unpickled: text of the fixed format, which is left out; and lists of
names, of which the pickle's own words are read as text.
"""

from __future__ import annotations

import math
import pickletools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import FileError, InputError, Setting, did_you_mean, shorten
from vpem.files.datasets import Dataset
from vpem.files.hdf5 import find, is_group, list_members, read_array, read_attribute, read_value
from vpem.files.readers.frames import Wanted, check_fields

if TYPE_CHECKING:
    import h5py


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
    from vpem.files.readers.records import frame_of_arrays
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
