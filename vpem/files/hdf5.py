"""Files: writing that is all or nothing, and the names of `walking` and `reading`.

Writing goes to a temporary file beside the target, which takes the target's place only when it is
complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import Labels
from vpem.errors import FileError, InputError, Setting, VpemError
from vpem.files.endings import check_ending
from vpem.files.opening import PathLike
from vpem.files.reading import (
    LONGEST_STRING,
)
from vpem.files.temporaries import temporary_beside

if TYPE_CHECKING:
    import h5py


LARGE_TEXT = 1 << 20  # bytes from which strings are stored compressed


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

    HDF5 may crash where what it still holds cannot be written. It never hears of that: the first
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


def write_array(
    group: h5py.Group, name: str, values: ArrayLike, chunks: tuple[int, ...] | None = None
) -> None:
    """Write numbers with the attributes that AnnData gives an array (or a scalar)."""
    array = np.asarray(values)
    dataset = group.create_dataset(name, data=array, chunks=chunks, track_times=False)
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

    Links are followed. ``kind`` is one of `vpem.files.endings.ENDINGS`, and no other may have the
    ending.
    """
    if not os.fspath(path):
        raise FileError("the name of the output file is empty")
    if kind is not None:
        check_ending(path, kind)
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
