"""Ways into HDF5 that anybody may have made: opening, and following hard links only.

Whatever h5py raises on a damaged file becomes one sentence here and in `vpem.files.reading`: nobody
else calls it to read.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem.checks import check_memory
from vpem.errors import FileError, VpemError
from vpem.files.opening import PathLike, advice, check_readable, open_regular, read_limit
from vpem.files.storage import most_of

if TYPE_CHECKING:
    import h5py


LONGEST_PATH = 64
"""Members on the way to an element."""

MOST_MEMBERS = 1 << 20
MOST_LISTED = 10_000
"""Links that are looked at where a file is asked what it holds."""

FAILURES = (
    OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError,
)  # fmt: skip
"""What h5py raises on damaged files."""


HEAP = struct.Struct("<4sB3xQ")
HEAP_OBJECT = struct.Struct("<H6xQ")
"""Heads of a global heap, which holds strings, and of an object in it (HDF5 format, III.E)."""

SEARCHED = 1 << 26
"""Bytes of a file in which heaps are looked for."""


def _check_heaps(path: PathLike) -> None:
    """Raise FileError where HDF5 would never end: free space in a heap that has no size."""
    with (
        open_regular(path) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
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


def open_file(path: PathLike) -> h5py.File:
    """Open an HDF5 file for reading; whoever calls closes it."""
    import h5py

    check_readable(path)
    name = os.fspath(path)
    if not h5py.is_hdf5(name):
        raise FileError(f"{path} is not an HDF5 file")
    _check_heaps(path)
    try:
        # Runs of whole chunks are read once: without a cache they go where they are wanted.
        return h5py.File(name, "r", locking="best-effort", rdcc_nbytes=0)
    except FAILURES as error:
        if "truncated" in str(error):
            raise FileError(f"{path} is cut short; copy or download it again") from error
        raise FileError(f"{path} cannot be opened; it is damaged ({error})") from error


@contextmanager
def open_read(path: PathLike) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading through the functions of this module.

    Where h5py fails on a part of the file that nobody foresaw, that is a FileError too.
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
    """
    import h5py

    where = place_of(group, name)
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) > LONGEST_PATH:
        raise FileError(f"{place_of(group, name[:40])}... leads through {len(parts)} groups")
    with reading(where):
        node: Any = group.file if name.startswith("/") else group
        for part in parts:
            if not isinstance(node, h5py.Group) or not node.id.links.exists(part.encode()):
                return None
            _check_link(node.id.links.get_info(part.encode()), where)
            node = node[part]
        return node


def is_group(item: object) -> bool:
    """Whether what `find` returned is a group."""
    import h5py

    return isinstance(item, h5py.Group)


def _check_link(info: h5py.h5l.LinkInfo, where: str) -> None:
    """Refuse every link that is no hard one."""
    import h5py

    if info.type == h5py.h5l.TYPE_SOFT:
        raise FileError(f"{where} is a soft link, which is not followed; copy what it stands for")
    if info.type != h5py.h5l.TYPE_HARD:
        raise FileError(f"{where} is a link to another file, which is not followed; copy it in")


def list_members(group: h5py.Group, most: int = MOST_MEMBERS) -> list[str]:
    """Return the names of a group's members, at most so many, in the order of the file."""
    where = place_of(group, "")
    with reading(where):
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
    """
    import h5py

    found: dict[str, h5py.Dataset] = {}
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
                    found[f"{path}{name}"] = item
    return dict(sorted(found.items()))


def place_of(item: h5py.Group | h5py.Dataset, name: str) -> str:
    """Return "file: /path" for messages."""
    inside = f"{item.name or ''}/{name}".replace("//", "/").strip("/")
    return f"{item.file.filename}: {inside or 'the root group'}"


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
