"""Reading elements of HDF5 that anybody may have made: no more than the file holds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Labels, read_int
from vpem.errors import FileError, brief, printable
from vpem.files.opening import EXPANSION, advice, read_limit
from vpem.files.storage import Inflation, check_storage, lengths_of_strings
from vpem.files.walking import find, place_of, reading, spend

if TYPE_CHECKING:
    import h5py


LONGEST_STRING = 4096
LONGEST_ATTRIBUTE = 1 << 16
RUN_BYTES = 1 << 24
KINDS = {
    "b": "true/false values",
    "i": "integers",
    "u": "integers",
    "f": "real numbers",
    "c": "complex numbers",
    "S": "strings",
    "O": "strings or other objects",
    "V": "records or opaque bytes",
}


def read_array(
    group: h5py.Group,
    name: str,
    *,
    ndim: int | None = None,
    shape: Sequence[int | None] | None = None,
    kinds: str = "iuf",
) -> NDArray[Any]:
    """Read a numeric dataset after checking its NumPy kinds, dimensions and size.

    In ``shape`` None stands for any length. The result is C-contiguous, in native byte order, and
    no wider than a double.
    """
    where = place_of(group, name)
    dataset = _dataset(group, name)
    with reading(where):
        _check_kind(dataset, where, kinds)
        _check_shape(dataset, where, ndim, shape)
        spend(dataset, check_storage(dataset, where), where)
        Inflation(dataset, where).check()
        values, dtype = np.asarray(dataset[()]), dataset.dtype
        wide = dtype.kind == "f" and dtype.itemsize > 8
        native = np.dtype(np.float64) if wide else dtype.newbyteorder("=")
        with np.errstate(over="ignore"):  # what is too large for a double is infinite then
            return np.ascontiguousarray(values, dtype=native).reshape(values.shape)


def check_matrix(group: h5py.Group, name: str) -> h5py.Dataset:
    """Return a two-dimensional numeric dataset unread, to be read a run of rows at a time."""
    where = place_of(group, name)
    dataset = _dataset(group, name)
    with reading(where):
        _check_kind(dataset, where, "iuf")
        _check_shape(dataset, where, 2, None)
        check_storage(dataset, where)
        if 0 in dataset.shape:
            raise FileError(f"{where} has no values")
    return dataset


def read_strings(
    group: h5py.Group, name: str, *, shape: Sequence[int | None] = (None,)
) -> tuple[str, ...]:
    """Read a one-dimensional dataset of UTF-8 strings of at most 4096 characters."""
    import h5py

    where = place_of(group, name)
    dataset = _dataset(group, name)
    with reading(where):
        if h5py.check_string_dtype(dataset.dtype) is None:
            found = KINDS.get(dataset.dtype.kind, str(dataset.dtype))
            raise FileError(f"{where} holds {found}; it must hold UTF-8 strings")
        _check_shape(dataset, where, 1, shape)
        spend(dataset, check_storage(dataset, where, text=True), where)
        Inflation(dataset, where).check()
        strings = _strings(dataset, where)
        if any(len(string) > LONGEST_STRING for string in strings):
            raise FileError(f"{where} holds a string of more than {LONGEST_STRING} characters")
        return tuple(strings)


def _strings(dataset: h5py.Dataset, where: str) -> list[str]:
    """Read strings a run at a time: they may be padding mostly, or the same one many times."""
    import h5py

    have = os.path.getsize(dataset.file.filename)
    variable = h5py.check_string_dtype(dataset.dtype).length is None
    most = max(read_limit(), have if variable else EXPANSION * have)
    longest = dataset.dtype.itemsize
    if variable:
        lengths = lengths_of_strings(dataset, where)
        # Where lengths cannot be told, none is longer than the file.
        longest = have if lengths is None else _check_lengths(lengths, most, where)
    step = max(RUN_BYTES // max(longest, 1), 16, 0 if variable else (dataset.chunks or (0,))[0])
    text = dataset.asstr("utf-8", "strict")
    strings: list[str] = []
    total = 0
    for start in range(0, dataset.size, step):
        part = text[start : start + step].tolist()
        total += sum(map(len, part))
        if total > most:
            raise FileError(f"{where} holds strings of more than {most} bytes; {advice(total)}")
        strings += part
    return strings


def _check_lengths(lengths: Iterator[NDArray[np.uint32]], most: int, where: str) -> int:
    """Refuse strings that are too long, each or together; return how long the longest is."""
    total = longest = 0
    for part in lengths:
        total += int(part.sum(dtype=np.int64))
        longest = max(longest, int(part.max(initial=0)))
        if longest > 4 * LONGEST_STRING:
            raise FileError(f"{where} holds a string of more than {LONGEST_STRING} characters")
        if total > most:
            raise FileError(f"{where} holds strings of more than {most} bytes; {advice(total)}")
    return longest


def read_column(group: h5py.Group, name: str) -> Labels:
    """Read a one-dimensional dataset of strings or numbers (true/false values included)."""
    import h5py

    dataset = _dataset(group, name)
    with reading(place_of(group, name)):
        text = h5py.check_string_dtype(dataset.dtype) is not None
    if text:
        return np.array(read_strings(group, name), dtype=str)
    return read_array(group, name, ndim=1, kinds="iufb")


def read_attribute(item: h5py.Group | h5py.Dataset, name: str) -> str | None:
    """Return a text attribute of a group or dataset, or None if it is absent or not text."""
    value = read_value(item, name)
    if isinstance(value, bytes | np.bytes_):
        with reading(f"{place_of(item, '')}: attribute {name}"):
            return value.decode("utf-8")
    return str(value) if isinstance(value, str) else None


def read_value(item: h5py.Group | h5py.Dataset, name: str) -> Any:
    """Return an attribute that is a single number or text, or None if there is no such one."""
    import h5py

    with reading(f"{place_of(item, '')}: attribute {name}"):
        key = name.encode()
        if not h5py.h5a.exists(item.id, key):
            return None
        found = h5py.h5a.open(item.id, key)
        # One text of variable length is no longer than the file; others are as long as they say.
        plain = found.get_space().get_simple_extent_type() == h5py.h5s.SCALAR
        if not plain or found.get_type().get_size() > LONGEST_ATTRIBUTE:
            return None
        return item.attrs[name]


def read_shape(item: h5py.Group | h5py.Dataset, name: str) -> tuple[int, int] | None:
    """Return an attribute that is two whole numbers, not negative, or None if there is none."""
    import h5py

    with reading(f"{place_of(item, '')}: attribute {name}"):
        key = name.encode()
        if not h5py.h5a.exists(item.id, key):
            return None
        found = h5py.h5a.open(item.id, key)
        if found.shape != (2,) or found.dtype.kind not in "iu":
            return None
        rows, columns = (int(count) for count in item.attrs[name])
        return (rows, columns) if min(rows, columns) >= 0 else None


def check_encoding(file: h5py.File, expected: str, version: str) -> str | None:
    """Return the ``encoding-type`` of a file, or None if it has none.

    FileError unless it is ``expected``, of this or an earlier major ``version``.
    """
    found = read_attribute(file, "encoding-type")
    if found is not None and found.startswith("vpem-") and found != expected:
        raise FileError(f"{file.filename} is a {found} file, not a {expected} file")
    if found == expected:
        written = read_attribute(file, "encoding-version") or "none"
        major = read_int(written.split(".")[0])
        if major is None or major < 0:
            raise FileError(
                f"{file.filename} has no readable encoding-version (got {brief(written)})"
            )
        if major > int(version.split(".")[0]):
            raise FileError(
                f"{file.filename} was written by a newer vpem (format {printable(written)[:40]}, "
                f"this one reads {version}); update vpem"
            )
    return found


def _dataset(group: h5py.Group, name: str) -> h5py.Dataset:
    """Return the dataset ``name``, refusing what is missing, no dataset, or stored elsewhere."""
    import h5py

    where = place_of(group, name)
    item = find(group, name)
    if item is None:
        raise FileError(f"{where} does not exist")
    if not isinstance(item, h5py.Dataset):
        raise FileError(f"{where} is a group, not a dataset")
    with reading(where):
        if item.is_virtual or item.external:
            raise FileError(f"{where} keeps its values in other files, which are not followed")
    return item


def _check_kind(dataset: h5py.Dataset, where: str, kinds: str) -> None:
    """Refuse values of other kinds, by NumPy's letters."""
    found = dataset.dtype
    if found.kind not in kinds:
        wanted = " or ".join(dict.fromkeys(KINDS[kind] for kind in kinds))
        raise FileError(f"{where} holds {KINDS.get(found.kind, found)}; it must hold {wanted}")


def _check_shape(
    dataset: h5py.Dataset, where: str, ndim: int | None, shape: Sequence[int | None] | None
) -> None:
    """Check dimensions before anything is allocated."""
    found = dataset.shape
    if found is None:
        raise FileError(f"{where} is empty")
    words = " x ".join(map(str, found)) or "a single value"
    if ndim is not None and len(found) != ndim:
        raise FileError(f"{where} must have {ndim} dimension{'s' * (ndim > 1)}, got {words}")
    if shape is not None and (
        len(shape) != len(found)
        or any(want not in (None, have) for want, have in zip(shape, found, strict=True))
    ):
        wanted = " x ".join("any" if want is None else str(want) for want in shape)
        raise FileError(f"{where} must have shape {wanted}, got {words}")
