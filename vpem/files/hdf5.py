"""Files: safe reading of HDF5 that anybody may have made, and writing that is all or nothing.

Reading never follows a link out of the file, never unpickles, and checks type, dimensions and
size before it allocates. Writing goes to a temporary file beside the target, which takes the
target's place only when it is complete.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import FileError, InputError, Setting, VpemError

if TYPE_CHECKING:
    import h5py

__all__ = [
    "atomic_write",
    "check_encoding",
    "check_matrix",
    "check_memory",
    "check_readable",
    "check_writable",
    "create",
    "describe_element",
    "find",
    "open_file",
    "open_read",
    "read_array",
    "read_attribute",
    "read_column",
    "read_strings",
    "write_array",
    "write_attribute",
    "write_strings",
]

PathLike = str | os.PathLike[str]

# The most that deflate can shrink data, with a margin: a dataset declared larger than this times
# its file holds nothing but fill values.
LARGEST_COMPRESSION = 1100
# Declared sizes below this (bytes) are read whatever the size of the file.
HARMLESS_SIZE = 1 << 26
LONGEST_STRING = 4096
LARGE_TEXT = 1 << 20  # bytes from which strings are stored compressed
MOST_LINKS = 16
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


def check_readable(path: PathLike) -> Path:
    """Return ``path`` if it is an ordinary file that can be opened.

    Raises
    ------
    FileError
        If it is missing, a folder, a device, empty, or not readable.
    """
    file = Path(path)
    try:
        if not os.fspath(path) or not file.exists():
            raise FileError(f"{os.fspath(path)!r} does not exist")
        if file.is_dir():
            raise FileError(f"{path} is a folder, not a file")
        if not file.is_file():
            raise FileError(f"{path} is not an ordinary file")
        with file.open("rb") as stream:
            if not stream.read(1):
                raise FileError(f"{path} is empty")
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    return file


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
    except (OSError, RuntimeError, ValueError) as error:
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
        The open file; read it through `find`, `read_array`, `read_strings`, `read_attribute`.

    Raises
    ------
    FileError
        As `open_file`.
    """
    with open_file(path) as file:
        yield file


def find(group: h5py.Group, name: str) -> Any:
    """Return the member of ``group`` called ``name`` (a path), or None if there is none.

    Soft links are followed inside the file only.

    Raises
    ------
    FileError
        If the path leads out of the file, runs in a circle, or is damaged.
    """
    where = _where(group, name)
    with _reading(where):
        return _walk(group, name, where, 0)


def _walk(group: h5py.Group, path: str, where: str, depth: int) -> Any:
    """Follow ``path`` one link at a time so that no link out of the file is ever opened."""
    import h5py

    if depth > MOST_LINKS:
        raise FileError(f"{where} is a link that runs in a circle")
    node: Any = group.file if path.startswith("/") else group
    for part in path.split("/"):
        if part in ("", "."):
            continue
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            return None
        if isinstance(link, h5py.SoftLink):
            node = _walk(node, link.path, where, depth + 1)
        elif isinstance(link, h5py.HardLink):
            node = node[part]
        else:
            raise FileError(f"{where} is a link to another file, which is not followed; copy it in")
    return node


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
        _check_shape(dataset, where, 2, None, whole=False)
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
        strings = tuple(dataset.asstr("utf-8", "strict")[()].tolist())
        if any(len(string) > LONGEST_STRING for string in strings):
            raise FileError(f"{where} holds a string of more than {LONGEST_STRING} characters")
        return strings


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
    with _reading(f"{_where(item, '')}: attribute {name}"):
        value = item.attrs.get(name)
        if isinstance(value, bytes | np.bytes_):
            return value.decode("utf-8")
        return str(value) if isinstance(value, str) else None


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


def check_memory(n_bytes: int, what: str) -> None:
    """Raise InputError if ``n_bytes`` exceed the memory of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if n_bytes > memory:
        raise InputError(
            f"{what} needs {n_bytes / 1e9:.4g} GB, but this machine has {memory / 1e9:.4g} GB of "
            "memory"
        )


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
    except (OSError, RuntimeError, LookupError, ValueError, TypeError) as error:
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
    dataset: h5py.Dataset,
    where: str,
    ndim: int | None,
    shape: Sequence[int | None] | None,
    *,
    whole: bool = True,
) -> None:
    """Check dimensions and size before anything is allocated; ``whole``: all of it at once."""
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
    n_bytes = math.prod(found) * dataset.dtype.itemsize
    stored = os.path.getsize(dataset.file.filename)
    if n_bytes > max(HARMLESS_SIZE, LARGEST_COMPRESSION * stored):
        raise FileError(
            f"{where} declares {words} values ({n_bytes / 1e9:.4g} GB), which a file of "
            f"{stored} bytes cannot hold"
        )
    if whole:
        check_memory(n_bytes, where)


@contextmanager
def create(path: PathLike, encoding_type: str, encoding_version: str) -> Iterator[h5py.File]:
    """Create an HDF5 file whose bytes depend on its content only; use inside `atomic_write`.

    All metadata have checksums in this version of the format, and where strings have a fixed
    length nothing but metadata leads the reader on: a damaged file is refused, not followed.

    Parameters
    ----------
    path : path
        The (temporary) file.
    encoding_type, encoding_version : str
        What the file is; written as attributes of the root.

    Yields
    ------
    h5py.File
        The open file.
    """
    import h5py

    with h5py.File(os.fspath(path), "w", libver=("v110", "v110")) as file:
        describe_element(file, encoding_type, encoding_version)
        yield file


def write_attribute(item: h5py.Group | h5py.Dataset, name: str, text: str) -> None:
    """Write a text attribute of a group or dataset, of fixed length."""
    item.attrs[name] = _fixed([text]).reshape(())


def describe_element(item: h5py.Group | h5py.Dataset, encoding_type: str, version: str) -> None:
    """Say of an element what it is, in AnnData's manner."""
    write_attribute(item, "encoding-type", encoding_type)
    write_attribute(item, "encoding-version", version)


def _fixed(strings: Sequence[str]) -> NDArray[Any]:
    """Return strings as UTF-8 of one length, that of the longest."""
    import h5py

    encoded = [string.encode("utf-8") for string in strings]
    longest = max(map(len, encoded), default=0)
    return np.array(encoded, dtype=h5py.string_dtype("utf-8", max(longest, 1)))


def write_array(group: h5py.Group, name: str, values: Any, chunks: Any = None) -> None:
    """Write numbers with the attributes that AnnData gives an array (or a scalar)."""
    array = np.asarray(values)
    dataset = group.create_dataset(name, data=array, chunks=chunks, track_times=False)
    describe_element(dataset, "array" if array.ndim else "numeric-scalar", "0.2.0")


def write_strings(group: h5py.Group, name: str, values: Sequence[str] | NDArray[np.str_]) -> None:
    """Write strings with the attributes that AnnData gives a string array.

    Raises
    ------
    InputError
        If a string holds a NUL character, which HDF5 cannot store, or is too long.
    """
    strings = [str(value) for value in values]
    for string in strings:
        if "\0" in string or len(string) > LONGEST_STRING:
            raise InputError(
                f"{name} holds {string[:40]!r}, which cannot be stored: a string has at most "
                f"{LONGEST_STRING} characters, none of them NUL"
            )
    try:
        data = _fixed(strings)
    except UnicodeEncodeError as error:
        raise InputError(f"{name} holds text that is not Unicode ({error.reason})") from error
    # One long string pads all others: that is worth squeezing out again.
    packing = {"compression": "gzip", "compression_opts": 1} if data.nbytes > LARGE_TEXT else {}
    dataset = group.create_dataset(name, data=data, track_times=False, **packing)
    describe_element(dataset, "string-array", "0.2.0")


def check_writable(path: PathLike, force: bool = False) -> Path:
    """Check that a result can be written to ``path``, before it is computed.

    Parameters
    ----------
    path : path
        The file to write; a link is followed.
    force : bool
        Replace an existing file.

    Returns
    -------
    Path
        The file that `atomic_write` would replace or create.

    Raises
    ------
    FileError
        If it exists and ``force`` is False, is a folder or device, or its folder is missing or
        not writable.
    """
    if not os.fspath(path):
        raise FileError("the name of the output file is empty")
    try:
        target = Path(os.path.realpath(path))
        folder = target.parent
        if target.is_dir():
            raise FileError(f"{path} is a folder; give the name of a file")
        if not folder.is_dir():
            raise FileError(f"{path} cannot be written: there is no folder {folder}")
        if target.exists() and not target.is_file():
            raise FileError(f"{path} is not an ordinary file; write to another name")
        if target.exists() and not force:
            raise FileError(f"{path} exists; pass ", Setting("force", True), " to replace it")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise FileError(f"{path} cannot be written: the folder {folder} is not writable")
    except FileError:
        raise
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be written: {error}") from error
    return target


@contextmanager
def atomic_write(path: PathLike, force: bool = False) -> Iterator[Path]:
    """Write a file completely or not at all.

    Parameters
    ----------
    path : path
        The file to write.
    force : bool
        Replace an existing file (it stays as it was if writing fails).

    Yields
    ------
    Path
        An empty temporary file in the same folder and with the same suffix, to be filled. It
        replaces the target when the block ends, and is removed when the block raises.

    Raises
    ------
    FileError
        As `check_writable`, or if writing fails (a full disk).
    """
    target = check_writable(path, force)
    temporary = target.with_name(f".vpem-{secrets.token_hex(6)}{target.suffix}")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        if target.exists():
            shutil.copymode(target, temporary)
        yield temporary
        _flush(temporary)
        os.replace(temporary, check_writable(path, force))
        _flush(target.parent)
    except VpemError:
        raise
    except OSError as error:
        raise FileError(f"{path} could not be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Make the content of a file, or the names in a folder, safe on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
