"""HDF5 files: writing that is all or nothing, and reading what anybody may have made.

Writing goes to a temporary file beside the target, which takes the target's place only when it is
complete. Reading follows hard links only, and makes no more than the file holds; whatever h5py
raises on a damaged file becomes one sentence here, since nothing else calls it to read.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import AnyArray, Labels, check_memory, read_int
from vpem.errors import FileError, InputError, Setting, VpemError, brief, printable
from vpem.files.lakes import as_address
from vpem.files.opening import EXPANSION, PathLike, advice, check_readable, open_regular, read_limit
from vpem.files.storage import Inflation, check_storage, lengths_of_strings, most_of
from vpem.files.temporaries import check_ending, temporary_beside

if TYPE_CHECKING:
    import h5py


SAEM_FIT, INDIVIDUALS = "vpem-saem", "vpem-individuals"  # what files say that they are
LARGE_TEXT = 1 << 20  # bytes from which strings are stored compressed


@contextmanager
def write_file(
    path: PathLike, force: bool, kind: str, encoding: str, version: str
) -> Iterator[h5py.File]:
    """Yield an HDF5 file of a ``kind`` to be filled, which is written all or not at all."""
    with atomic_write(path, force, kind) as temporary, create(temporary, encoding, version) as file:
        yield file


@contextmanager
def read_file(path: PathLike, encoding: str, version: str, otherwise: str) -> Iterator[h5py.File]:
    """Open a file of this encoding; FileError: it is another, and not ``otherwise``."""
    with open_read(path) as file:
        if check_encoding(file, encoding, version) != encoding:
            raise FileError(f"{path} is not {otherwise}")
        yield file


@contextmanager
def made_of(path: PathLike) -> Iterator[None]:
    """Turn what objects say of what they are made of into FileError: the file is damaged."""
    try:
        yield
    except FileError:
        raise
    except (VpemError, KeyError, ValueError, TypeError) as error:
        raise FileError(f"{path} is damaged: {error}") from error


@contextmanager
def create(path: PathLike, encoding_type: str, encoding_version: str) -> Iterator[h5py.File]:
    """Create an HDF5 file whose bytes depend on its content only; use inside `atomic_write`.

    All metadata have checksums in this version of the format, and where strings have a fixed length
    nothing but metadata leads the reader on: a damaged file is refused, not followed. Raises
    OSError at the end, if anything could not be written.
    """
    import h5py

    with _Disk(path) as disk:
        try:
            with h5py.File(disk, "w", libver=("v110", "v110")) as file:
                describe_element(file, encoding_type, encoding_version)
                yield file
        finally:
            if disk.failure is not None:
                raise disk.failure


class _Disk(FileIO):
    """A file as HDF5 writes it, which goes on where a disk is full.

    HDF5 may crash where what it still holds cannot be written. So that is hidden from it: the first
    failure is kept, and what follows goes nowhere.
    """

    def __init__(self, path: PathLike) -> None:
        super().__init__(os.fspath(path), "w+")
        self.failure: OSError | None = None

    def write(self, content: Any) -> int:
        left = memoryview(content).cast("B")
        size = len(left)
        try:
            while len(left) and self.failure is None:
                left = left[super().write(left) :]
        except OSError as error:
            self.failure = error
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size) if self.failure is None else size or 0
        except OSError as error:
            self.failure = error
            return size or 0


def write_attribute(item: h5py.Group | h5py.Dataset, name: str, text: str) -> None:
    """Write a text attribute of a group or dataset, of fixed length."""
    item.attrs[name] = _fixed([text]).reshape(())


def describe_element(item: h5py.Group | h5py.Dataset, encoding_type: str, version: str) -> None:
    """Say of an element what it is, in AnnData's manner."""
    write_attribute(item, "encoding-type", encoding_type)
    write_attribute(item, "encoding-version", version)


def _fixed(strings: Sequence[str]) -> NDArray[np.bytes_]:
    """Return strings as UTF-8 of one length, that of the longest."""
    import h5py

    encoded = [string.encode("utf-8") for string in strings]
    longest = max(map(len, encoded), default=0)
    return np.array(encoded, dtype=h5py.string_dtype("utf-8", max(longest, 1)))


def write_array(group: h5py.Group, name: str, values: ArrayLike) -> None:
    """Write numbers with the attributes that AnnData gives an array (or a scalar)."""
    array = np.asarray(values)
    dataset = group.create_dataset(name, data=array, track_times=False)
    describe_element(dataset, "array" if array.ndim else "numeric-scalar", "0.2.0")


def write_strings(group: h5py.Group, name: str, values: Sequence[str] | NDArray[np.str_]) -> None:
    """Write strings as AnnData does; InputError for a NUL, which HDF5 cannot store."""
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


def write_column(group: h5py.Group, name: str, values: Labels) -> None:
    """Write numbers as `write_array` does, or else the text of values as `write_strings` does."""
    if values.dtype.kind in "iufb":
        write_array(group, name, values)
    else:
        write_strings(group, name, values.astype(np.str_))


def check_writable(path: PathLike, force: bool = False, kind: str | None = None) -> Path:
    """Return the file that `atomic_write` would replace or create, before results are computed.

    Links are followed. The ending must be one of a ``kind`` of `vpem.files.temporaries.ENDINGS`.
    """
    if not os.fspath(path):
        raise FileError("the name of the output file is empty")
    if kind is not None:
        check_ending(path, kind)
    if (address := as_address(path)) is not None:
        raise FileError(f"{address} is an address, where nothing is written; give a file here")
    try:
        target = Path(os.path.realpath(path))
        folder = target.parent
        if target.is_symlink():
            raise FileError(f"{path} is a link that leads to itself; write to another name")
        if target.is_dir():
            raise FileError(f"{path} is a folder; give the name of a file")
        if not folder.is_dir():
            raise FileError(f"{path} cannot be written: there is no folder {folder}")
        if os.path.exists(path) and not os.path.isfile(path):
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
def atomic_write(path: PathLike, force: bool = False, kind: str | None = None) -> Iterator[Path]:
    """Write a file completely or not at all: yield an empty temporary file to be filled.

    It lies in the same folder, with the same suffix; it replaces the target when the block ends,
    and is removed when the block raises. A full disk is a FileError, and the old file stays.
    """
    target = check_writable(path, force, kind)
    try:
        with temporary_beside(target) as temporary:
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


def _flush(path: Path) -> None:
    """Make the content of a file, or the names in a folder, safe on disk."""
    if os.name == "nt":
        if path.is_dir():  # Windows opens no folders, and keeps their names by itself
            return
        descriptor = os.open(path, os.O_RDWR)
    else:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


LONGEST_PATH = 64  # members on the way to an element
MOST_MEMBERS = 1 << 20
MOST_LISTED = 10_000  # links that are followed to list what a file holds

FAILURES = (
    OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError,
)  # fmt: skip
"""What h5py raises on damaged files."""


HEAP = struct.Struct("<4sB3xQ")
HEAP_OBJECT = struct.Struct("<H6xQ")
"""Heads of a global heap, which holds strings, and of an object in it (HDF5 format, III.E)."""

SEARCHED = 1 << 26  # bytes of a file in which heaps are looked for


def open_file(path: PathLike) -> h5py.File:
    """Open an HDF5 file for reading; the caller closes it."""
    import h5py

    check_readable(path)
    name = os.fspath(path)
    if not h5py.is_hdf5(name):
        raise FileError(f"{path} is not an HDF5 file")
    # HDF5 would never end where there is free space in a heap that has no size.
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        lengths = data[14:15] if data[8:9] < b"\x02" else data[10:11]
        at = data.find(b"GCOL", 0, SEARCHED) if lengths == b"\x08" else -1
        # Heaps do not overlap: all objects together are no longer than the file.
        left = min(len(data), SEARCHED) // HEAP_OBJECT.size
        while 0 <= at <= len(data) - HEAP.size and left > 0:
            _, version, size = HEAP.unpack_from(data, at)
            place, end = at + HEAP.size, min(at + size, len(data))
            while version == 1 and place + HEAP_OBJECT.size <= end and left > 0:
                number, length = HEAP_OBJECT.unpack_from(data, place)
                step = HEAP_OBJECT.size + -(-length // 8) * 8 if number else length
                if step == 0:
                    raise FileError(f"{path} is damaged: a heap of its strings never ends")
                place, left = place + step, left - 1
            at = data.find(b"GCOL", at + 4, SEARCHED)
    try:
        # Runs of whole chunks are read once: without a cache they go where they belong.
        return h5py.File(name, "r", locking="best-effort", rdcc_nbytes=0)
    except FAILURES as error:
        if "truncated" in str(error):
            raise FileError(f"{path} is cut short; copy or download it again") from error
        raise FileError(f"{path} cannot be opened; it is damaged ({error})") from error


@contextmanager
def open_read(path: PathLike) -> Iterator[h5py.File]:
    """Open an HDF5 file to read; FileError too where h5py fails on what no check foresaw."""
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
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        # What is raised elsewhere than inside h5py is no damage of the file, but an error of ours.
        if trace is None or "h5py" not in Path(trace.tb_frame.f_code.co_filename).parts:
            raise
        raise FileError(f"{path} is damaged ({error})") from error


_spent: dict[int, int] = {}
"""Bytes that were made of each file that is open, by the number that HDF5 gives it."""


def _number(file: h5py.File) -> int:
    import h5py

    return int(h5py.h5o.get_info(file.id).fileno)


def spend(dataset: h5py.Dataset, n_bytes: int, where: str) -> None:
    """Count what is made of a file: one dataset may be in it by many names."""
    file = dataset.file
    number = _number(file)
    total = _spent[number] = _spent.get(number, 0) + n_bytes
    most = read_limit() + most_of(os.path.getsize(file.filename))
    if total > most:
        raise FileError(
            f"{where} cannot be read: all that the file declares takes more than {most} bytes, far "
            f"more than it stores; {advice(total)}"
        )
    check_memory(dataset.size * dataset.dtype.itemsize, where)


def find(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """Return the member of ``group`` called ``name`` (a path), or None if there is none.

    Only hard links are followed: others lead out of the file, in circles, or through endless names.
    """
    import h5py

    where = place_of(group, name)
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) > LONGEST_PATH:
        raise FileError(f"{place_of(group, name[:40])}... leads through {len(parts)} groups")
    with reading(where):
        node: object = group.file if name.startswith("/") else group
        for part in parts:
            if not isinstance(node, h5py.Group) or not node.id.links.exists(part.encode()):
                return None
            kind = node.id.links.get_info(part.encode()).type
            if kind == h5py.h5l.TYPE_SOFT:
                raise FileError(
                    f"{where} is a soft link, which is not followed; copy what it stands for"
                )
            if kind != h5py.h5l.TYPE_HARD:
                raise FileError(
                    f"{where} is a link to another file, which is not followed; copy it in"
                )
            node = node[part]
        return node


def is_group(item: object) -> bool:
    import h5py

    return isinstance(item, h5py.Group)


def list_members(group: h5py.Group, most: int = MOST_MEMBERS) -> list[str]:
    """Return the names of a group's members, at most so many, in the order of the file."""
    where = place_of(group, "")
    with reading(where):
        names = _names(group, most + 1)
    if len(names) > most:
        raise FileError(f"{where} has more than {most} members")
    return names


def _names(group: h5py.Group, most: int) -> list[str]:
    names: list[bytes] = []

    def record_name(name: bytes) -> bool | None:
        names.append(name)
        return True if len(names) >= most else None

    group.id.links.iterate(record_name)
    return [name.decode("utf-8") for name in names]


def list_datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """Return a file's own datasets, by path, each once; of the first `MOST_LISTED` links."""
    import h5py

    datasets: dict[str, h5py.Dataset] = {}
    seen = {h5py.h5o.get_info(file.id).addr}
    left, groups = MOST_LISTED, [("", file)]
    with reading(file.filename):
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
                    datasets[f"{path}{name}"] = item
    return dict(sorted(datasets.items()))


def place_of(item: h5py.Group | h5py.Dataset, name: str) -> str:
    """Return "file: /path" for messages."""
    import h5py

    inside = f"{item.name or ''}/{name}".replace("//", "/").strip("/")
    # Of the identifier itself: to make a file of it takes several times as long.
    return f"{os.fsdecode(h5py.h5f.get_name(item.id))}: {inside or 'the root group'}"


@contextmanager
def reading(where: str) -> Iterator[None]:
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
) -> AnyArray:
    """Read a numeric dataset after checking its NumPy kinds, dimensions and size.

    In ``shape`` None is any length. The result is C-contiguous, native, and no wider than a double.
    """
    where = place_of(group, name)
    dataset = _dataset(group, name, kinds, ndim, shape)
    with reading(where):
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
    dataset = _dataset(group, name, "iuf", 2)
    with reading(where):
        check_storage(dataset, where)
        if 0 in dataset.shape:
            raise FileError(f"{where} has no values")
    return dataset


def read_strings(
    group: h5py.Group, name: str, *, shape: Sequence[int | None] = (None,)
) -> tuple[str, ...]:
    """Read a one-dimensional dataset of UTF-8 strings of at most 4096 characters.

    They are read a run at a time: they may be padding mostly, or the same one many times.
    """
    import h5py

    where = place_of(group, name)
    dataset = _dataset(group, name, "", 1, shape)
    with reading(where):
        spend(dataset, check_storage(dataset, where, text=True), where)
        Inflation(dataset, where).check()
        have = os.path.getsize(dataset.file.filename)
        variable = h5py.check_string_dtype(dataset.dtype).length is None
        most = max(read_limit(), have if variable else EXPANSION * have)
        longest = dataset.dtype.itemsize
        too_long = f"{where} holds a string of more than {LONGEST_STRING} characters"
        too_many = f"{where} holds strings of more than {most} bytes"
        if variable:
            # Where lengths are unknown, none is longer than the file.
            lengths = lengths_of_strings(dataset, where)
            total, longest = 0, have if lengths is None else 0
            for sizes in lengths or ():
                total += int(sizes.sum(dtype=np.int64))
                longest = max(longest, int(sizes.max(initial=0)))
                if longest > 4 * LONGEST_STRING:
                    raise FileError(too_long)
                if total > most:
                    raise FileError(f"{too_many}; {advice(total)}")
        step = max(RUN_BYTES // max(longest, 1), 16, 0 if variable else (dataset.chunks or (0,))[0])
        text = dataset.asstr("utf-8", "strict")
        strings: list[str] = []
        total = 0
        for start in range(0, dataset.size, step):
            part = text[start : start + step].tolist()
            total += sum(map(len, part))
            if total > most:
                raise FileError(f"{too_many}; {advice(total)}")
            strings += part
        if any(len(string) > LONGEST_STRING for string in strings):
            raise FileError(too_long)
        return tuple(strings)


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


def attribute_of(path: PathLike, name: str = "encoding-type") -> str:
    """Return a text attribute of a file, "" if it has none or is no HDF5: what it says it is."""
    import h5py

    if not h5py.is_hdf5(os.fspath(path)):
        return ""
    with open_read(path) as file:
        return read_attribute(file, name) or ""


def read_value(item: h5py.Group | h5py.Dataset, name: str) -> Any:
    """Return an attribute that is a single number or text, or None if there is no such one."""
    import h5py

    with reading(f"{place_of(item, '')}: attribute {name}"):
        attribute = _attribute(item, name)
        # One text of variable length is no longer than the file; others are as long as they say.
        if (
            attribute is None
            or attribute.get_space().get_simple_extent_type() != h5py.h5s.SCALAR
            or attribute.get_type().get_size() > LONGEST_ATTRIBUTE
        ):
            return None
        return item.attrs[name]


def read_shape(item: h5py.Group | h5py.Dataset, name: str) -> tuple[int, int] | None:
    """Return an attribute that is two whole numbers, not negative, or None if there is none."""
    with reading(f"{place_of(item, '')}: attribute {name}"):
        attribute = _attribute(item, name)
        if attribute is None or attribute.shape != (2,) or attribute.dtype.kind not in "iu":
            return None
        rows, columns = (int(count) for count in item.attrs[name])
        return (rows, columns) if min(rows, columns) >= 0 else None


def _attribute(item: h5py.Group | h5py.Dataset, name: str) -> h5py.h5a.AttrID | None:
    import h5py

    key = name.encode()
    return h5py.h5a.open(item.id, key) if h5py.h5a.exists(item.id, key) else None


def check_encoding(file: h5py.File, expected: str, version: str) -> str | None:
    """Return the ``encoding-type`` or None; FileError if not ``expected``, or of a newer major."""
    encoding = read_attribute(file, "encoding-type")
    if encoding is not None and encoding.startswith("vpem-") and encoding != expected:
        raise FileError(f"{file.filename} is a {encoding} file, not a {expected} file")
    if encoding == expected:
        written = read_attribute(file, "encoding-version") or "none"
        check_version(file.filename, written, version)
    return encoding


def check_version(path: PathLike, written: str, version: str) -> None:
    """Raise FileError if a newer major version wrote the file."""
    major = read_int(written.split(".")[0])
    if major is None or major < 0:
        raise FileError(f"{path} has no readable encoding-version (got {brief(written)})")
    if major > int(version.split(".")[0]):
        raise FileError(
            f"{path} was written by a newer vpem (format {printable(written)[:40]}, "
            f"this one reads {version}); update vpem"
        )


def _dataset(
    group: h5py.Group,
    name: str,
    kinds: str | None = None,
    ndim: int | None = None,
    shape: Sequence[int | None] | None = None,
) -> h5py.Dataset:
    """Return the dataset ``name``, refusing what is missing, no dataset, or stored elsewhere.

    With ``kinds`` (of NumPy; "": UTF-8 text) what it holds and its dimensions are checked, too,
    before anything is allocated.
    """
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
        if kinds is None:
            return item
        dtype, sizes = item.dtype, item.shape
        fits = dtype.kind in kinds if kinds else h5py.check_string_dtype(dtype) is not None
        if not fits:
            expected = " or ".join(dict.fromkeys(KINDS[kind] for kind in kinds)) or "UTF-8 strings"
            raise FileError(
                f"{where} holds {KINDS.get(dtype.kind, dtype)}; it must hold {expected}"
            )
        if sizes is None:
            raise FileError(f"{where} is empty")
        words = " x ".join(map(str, sizes)) or "a single value"
        if ndim is not None and len(sizes) != ndim:
            raise FileError(f"{where} must have {ndim} dimension{'s' * (ndim > 1)}, got {words}")
        if shape is not None and (
            len(shape) != len(sizes)
            or any(want not in (None, have) for want, have in zip(shape, sizes, strict=True))
        ):
            expected = " x ".join("any" if want is None else str(want) for want in shape)
            raise FileError(f"{where} must have shape {expected}, got {words}")
    return item
