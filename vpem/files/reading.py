"""Reading HDF5 that anybody may have made: hard links only, and no more than the file holds.

Whatever h5py raises on a damaged file becomes one sentence here: nobody else calls it to read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import FileError, VpemError
from vpem.files.opening import EXPANSION, PathLike, advice, check_memory, check_readable, read_limit
from vpem.files.storage import Inflation, check_storage, lengths_of_strings

if TYPE_CHECKING:
    import h5py

__all__ = [
    "check_encoding",
    "check_matrix",
    "find",
    "is_group",
    "list_datasets",
    "list_members",
    "open_file",
    "open_read",
    "read_array",
    "read_attribute",
    "read_column",
    "read_strings",
    "read_value",
]

LONGEST_STRING = 4096
RUN_BYTES = 1 << 24
LONGEST_PATH = 64
"""Members on the way to an element."""

MOST_MEMBERS = 1 << 20
MOST_LISTED = 10_000
"""Links that are looked at where a file is asked what it holds."""

TABLES = (".csv", ".tsv", ".txt", ".gz", ".parquet")
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
FAILURES = (
    OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError,
)  # fmt: skip
"""What h5py raises on damaged files."""


def open_file(path: PathLike) -> h5py.File:
    """Open an HDF5 file for reading; whoever calls closes it.

    Raises
    ------
    FileError
        If it is missing, a folder, not readable, not HDF5, or cut short.
    """
    import h5py

    check_readable(path)
    name = os.fspath(path)
    if not h5py.is_hdf5(name):
        table = name.lower().endswith(TABLES)
        hint = "; 'vpem data import' makes one of a table" if table else ""
        raise FileError(f"{path} is not an HDF5 file{hint}")
    try:
        # Runs of whole chunks are read once: without a cache they go where they are wanted.
        return h5py.File(name, "r", locking="best-effort", rdcc_nbytes=0)
    except FAILURES as error:
        if "truncated" in str(error):
            raise FileError(f"{path} is cut short; copy or download it again") from error
        raise FileError(f"{path} cannot be opened; it is damaged ({error})") from error


@contextmanager
def open_read(path: PathLike) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading.

    Parameters
    ----------
    path : path
        The file.

    Yields
    ------
    h5py.File
        The open file; read it through the functions of this module.

    Raises
    ------
    FileError
        As `open_file`, and where h5py fails on a part of the file that nobody foresaw.
    """
    try:
        with open_file(path) as file:
            number = _number(file)
            _spent[number] = 0
            try:
                yield file
            finally:
                _spent.pop(number, None)
    except VpemError:
        raise
    except FAILURES as error:
        if not _is_from_h5py(error):
            raise
        raise FileError(f"{path} is damaged ({error})") from error


_spent: dict[int, int] = {}
"""Bytes that were made of each file that is open, by the number that HDF5 gives it."""


def _number(file: h5py.File) -> int:
    """Return the number that HDF5 gives a file as long as it is open."""
    import h5py

    return int(h5py.h5o.get_info(file.id).fileno)


def _spend(dataset: h5py.Dataset, n_bytes: int, where: str) -> None:
    """Count what is made of a file: one dataset may be in it by many names."""
    file = dataset.file
    number = _number(file)
    total = _spent[number] = _spent.get(number, 0) + n_bytes
    most = 2 * read_limit() + EXPANSION * os.path.getsize(file.filename)
    if total > most:
        raise FileError(
            f"{where} cannot be read: all that the file declares takes more than {most} bytes, far "
            f"more than it stores; {advice(total)}"
        )
    check_memory(dataset.size * dataset.dtype.itemsize, where)


def _is_from_h5py(error: BaseException) -> bool:
    """Whether an error was raised inside h5py: then it is the file's, not ours."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "h5py" in Path(trace.tb_frame.f_code.co_filename).parts


def find(group: h5py.Group, name: str) -> Any:
    """Return the member of ``group`` called ``name`` (a path), or None if there is none.

    Only hard links are followed: others lead out of the file, in circles, or through more names
    than anybody could have written.

    Raises
    ------
    FileError
        If there is another link on the path, or the file is damaged.
    """
    import h5py

    where = _where(group, name)
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) > LONGEST_PATH:
        raise FileError(f"{_where(group, name[:40])}... leads through {len(parts)} groups")
    with _reading(where):
        node: Any = group.file if name.startswith("/") else group
        for part in parts:
            if not isinstance(node, h5py.Group) or not node.id.links.exists(part.encode()):
                return None
            _check_link(node.id.links.get_info(part.encode()), where)
            node = node[part]
        return node


def is_group(item: Any) -> bool:
    """Whether what `find` returned is a group."""
    import h5py

    return isinstance(item, h5py.Group)


def _check_link(info: Any, where: str) -> None:
    """Refuse every link that is no hard one."""
    import h5py

    if info.type == h5py.h5l.TYPE_SOFT:
        raise FileError(f"{where} is a soft link, which is not followed; copy what it stands for")
    if info.type != h5py.h5l.TYPE_HARD:
        raise FileError(f"{where} is a link to another file, which is not followed; copy it in")


def list_members(group: h5py.Group, most: int = MOST_MEMBERS) -> list[str]:
    """Return the names of a group's members, in the order of the file.

    Parameters
    ----------
    group : h5py.Group
        The group.
    most : int
        How many there may be.

    Raises
    ------
    FileError
        If there are more, a name is not UTF-8 text, or the group is damaged.
    """
    where = _where(group, "")
    with _reading(where):
        names = _names(group, most + 1)
    if len(names) > most:
        raise FileError(f"{where} has more than {most} members")
    return names


def _names(group: h5py.Group, most: int) -> list[str]:
    """Return names of at most ``most`` members."""
    found: list[bytes] = []

    def note(name: bytes) -> bool | None:
        found.append(name)
        return True if len(found) >= most else None

    group.id.links.iterate(note)
    return [name.decode("utf-8") for name in found]


def list_datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """Return the datasets that a file holds itself, by path; each object once, by one path.

    Only the first `MOST_LISTED` links are looked at.

    Raises
    ------
    FileError
        If the file is damaged.
    """
    import h5py

    found: dict[str, h5py.Dataset] = {}
    seen = {h5py.h5o.get_info(file.id).addr}
    left, groups = MOST_LISTED, [("", file)]
    with _reading(file.filename):
        while groups and left > 0:
            path, group = groups.pop(0)
            for name in _names(group, left):
                left -= 1
                info = group.id.links.get_info(name.encode())
                if info.type != h5py.h5l.TYPE_HARD or info.u in seen:
                    continue
                seen.add(info.u)
                item = group[name]
                if isinstance(item, h5py.Group):
                    groups.append((f"{path}{name}/", item))
                elif isinstance(item, h5py.Dataset) and not (item.is_virtual or item.external):
                    found[f"{path}{name}"] = item
    return dict(sorted(found.items()))


def read_array(
    group: h5py.Group,
    name: str,
    *,
    ndim: int | None = None,
    shape: Sequence[int | None] | None = None,
    kinds: str = "iuf",
) -> NDArray[Any]:
    """Read a numeric dataset after checking its type, dimensions and size.

    Parameters
    ----------
    group : h5py.Group
        Where to look.
    name : str
        Path of the dataset in ``group``.
    ndim : int, optional
        Number of dimensions it must have.
    shape : sequence of int or None, optional
        Lengths it must have; None stands for any length.
    kinds : str
        NumPy kind letters that are accepted.

    Returns
    -------
    ndarray
        The values, C-contiguous and in native byte order.

    Raises
    ------
    FileError
        If there is no such dataset or it is not what it must be.
    """
    where = _where(group, name)
    dataset = _dataset(group, name)
    with _reading(where):
        dtype = dataset.dtype
        if dtype.kind not in kinds:
            wanted = " or ".join(dict.fromkeys(KINDS[kind] for kind in kinds))
            raise FileError(f"{where} holds {KINDS.get(dtype.kind, dtype)}; it must hold {wanted}")
        _check_shape(dataset, where, ndim, shape)
        _spend(dataset, check_storage(dataset, where), where)
        Inflation(dataset, where).check()
        values = np.asarray(dataset[()])
        return np.ascontiguousarray(values, dtype=dtype.newbyteorder("=")).reshape(values.shape)


def check_matrix(group: h5py.Group, name: str) -> h5py.Dataset:
    """Return a two-dimensional numeric dataset unread, to be read a run of rows at a time.

    Raises
    ------
    FileError
        If there is no such dataset or it is not what it must be.
    """
    where = _where(group, name)
    dataset = _dataset(group, name)
    with _reading(where):
        if dataset.dtype.kind not in "iuf":
            found = KINDS.get(dataset.dtype.kind, dataset.dtype)
            raise FileError(f"{where} holds {found}; it must hold real numbers")
        _check_shape(dataset, where, 2, None)
        check_storage(dataset, where)
        if 0 in dataset.shape:
            raise FileError(f"{where} has no values")
    return dataset


def read_strings(
    group: h5py.Group, name: str, *, shape: Sequence[int | None] = (None,)
) -> tuple[str, ...]:
    """Read a one-dimensional dataset of UTF-8 strings.

    Parameters
    ----------
    group : h5py.Group
        Where to look.
    name : str
        Path of the dataset in ``group``.
    shape : sequence of int or None
        The length it must have; ``(None,)`` stands for any.

    Returns
    -------
    tuple of str
        The strings.

    Raises
    ------
    FileError
        If there is no such dataset, it holds something else, or a string is not UTF-8 or is
        longer than 4096 characters.
    """
    import h5py

    where = _where(group, name)
    dataset = _dataset(group, name)
    with _reading(where):
        if h5py.check_string_dtype(dataset.dtype) is None:
            found = KINDS.get(dataset.dtype.kind, str(dataset.dtype))
            raise FileError(f"{where} holds {found}; it must hold UTF-8 strings")
        _check_shape(dataset, where, 1, shape)
        _spend(dataset, check_storage(dataset, where, text=True), where)
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


def read_column(group: h5py.Group, name: str) -> NDArray[Any]:
    """Read a one-dimensional dataset of strings or numbers (true/false values included).

    Raises
    ------
    FileError
        As `read_strings` and `read_array`.
    """
    import h5py

    dataset = _dataset(group, name)
    with _reading(_where(group, name)):
        text = h5py.check_string_dtype(dataset.dtype) is not None
    if text:
        return np.array(read_strings(group, name), dtype=str)
    return read_array(group, name, ndim=1, kinds="iufb")


def read_attribute(item: h5py.Group | h5py.Dataset, name: str) -> str | None:
    """Return a text attribute of a group or dataset, or None if it is absent or not text."""
    value = read_value(item, name)
    if isinstance(value, bytes | np.bytes_):
        with _reading(f"{_where(item, '')}: attribute {name}"):
            return value.decode("utf-8")
    return str(value) if isinstance(value, str) else None


def read_value(item: h5py.Group | h5py.Dataset, name: str) -> Any:
    """Return an attribute that is a single number or text, or None if there is no such one.

    Raises
    ------
    FileError
        If the file is damaged there.
    """
    import h5py

    with _reading(f"{_where(item, '')}: attribute {name}"):
        key = name.encode()
        if not h5py.h5a.exists(item.id, key):
            return None
        found = h5py.h5a.open(item.id, key)
        # One text of variable length is no longer than the file; others are as long as they say.
        plain = found.get_space().get_simple_extent_type() == h5py.h5s.SCALAR
        if not plain or found.get_type().get_size() > 4 * LONGEST_STRING:
            return None
        return item.attrs[name]


def check_encoding(file: h5py.File, expected: str, version: str) -> str | None:
    """Check that ``file`` is not another kind of vpem file, nor from a newer vpem.

    Parameters
    ----------
    file : h5py.File
        The open file.
    expected : str
        The ``encoding-type`` that vpem writes for what is being read ("vpem-dataset").
    version : str
        The ``encoding-version`` that this vpem writes.

    Returns
    -------
    str or None
        The file's ``encoding-type``, None if it has none.

    Raises
    ------
    FileError
        If it is another kind of vpem file, or of a later major version.
    """
    found = read_attribute(file, "encoding-type")
    if found is not None and found.startswith("vpem-") and found != expected:
        raise FileError(f"{file.filename} is a {found} file, not a {expected} file")
    if found == expected:
        written = read_attribute(file, "encoding-version") or "none"
        major = written.split(".")[0]
        if not major.isdecimal():
            raise FileError(f"{file.filename} has no readable encoding-version (got {written!r})")
        if int(major) > int(version.split(".")[0]):
            raise FileError(
                f"{file.filename} was written by a newer vpem (format {written}, this one reads "
                f"{version}); update vpem"
            )
    return found


def _where(item: h5py.Group | h5py.Dataset, name: str) -> str:
    """Return "file: /path" for messages."""
    inside = f"{item.name or ''}/{name}".replace("//", "/").strip("/")
    return f"{item.file.filename}: {inside or 'the root group'}"


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turn whatever h5py raises on a damaged file into one sentence."""
    try:
        yield
    except VpemError:
        raise
    except MemoryError as error:
        raise FileError(f"{where} does not fit in memory") from error
    except FAILURES as error:
        raise FileError(
            f"{where} cannot be read: it is damaged, or stored in a way not known here ({error})"
        ) from error


def _dataset(group: h5py.Group, name: str) -> Any:
    """Return the dataset ``name``, refusing what is missing, no dataset, or stored elsewhere."""
    import h5py

    where = _where(group, name)
    item = find(group, name)
    if item is None:
        raise FileError(f"{where} does not exist")
    if not isinstance(item, h5py.Dataset):
        raise FileError(f"{where} is a group, not a dataset")
    with _reading(where):
        if item.is_virtual or item.external:
            raise FileError(f"{where} keeps its values in other files, which are not followed")
    return item


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
