"""What packed files unpack to, read as a stream: no more than a file of its size may become."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import struct
import zipfile
import zlib
from contextlib import ExitStack
from io import BufferedReader, RawIOBase
from typing import Any, BinaryIO

from vpem.errors import FileError, shorten
from vpem.files.opening import EXPANSION, PathLike, advice, open_plain, read_limit

PACKINGS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}
"""What files begin with that are packed."""

FAILURES = (
    OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError, ValueError,
    NotImplementedError, struct.error, MemoryError,
)  # fmt: skip
"""What damaged ones raise."""

LZMA_MEMORY = 1 << 28
"""Bytes that xz may take for its dictionary."""

DIRECTORY_BYTES = 1 << 22
"""Bytes of the list of members of a zip file."""

END, END_64, LOCATOR_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), b"PK\x06\x07"
"""End of a zip file, and of a large one (APPNOTE.TXT, 4.3.14 to 4.3.16)."""


def packing_of(start: bytes) -> str | None:
    """Return how a file is packed that begins so; None if it is not."""
    return next((name for mark, name in PACKINGS.items() if start.startswith(mark)), None)


class _Counted(RawIOBase):
    """Bytes of a packed file, as long as there are not far more than the file has."""

    def __init__(self, path: PathLike, stream: Any, size: int, stack: ExitStack) -> None:
        self._path, self._stream, self._stack = os.fspath(path), stream, stack
        self._most = max(read_limit(), EXPANSION * size)
        self._found = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            part = self._stream.read(len(buffer))
        except FAILURES as error:
            raise FileError(f"{self._path} cannot be unpacked: {error}") from error
        buffer[: len(part)] = part
        self._found += len(part)
        if self._found > self._most:
            raise FileError(
                f"{self._path} unpacks to more than {EXPANSION} times its size; unpack it "
                f"yourself, or, {advice(16 * self._found)}"
            )
        return len(part)

    def close(self) -> None:
        if not self.closed:
            self._stack.close()
        super().close()


def open_unpacked(path: PathLike) -> BinaryIO:
    """Open a regular file, or what it unpacks to (a zip file's only member), to read its bytes.

    Reading raises FileError if the file is damaged or unpacks to far more than it has (`EXPANSION`,
    `read_limit`).
    """
    with ExitStack() as stack:
        file = stack.enter_context(open_plain(path))
        packing = packing_of(file.read(6))
        file.seek(0)
        if packing is None:
            stack.pop_all()
            return file
        size = os.fstat(file.fileno()).st_size
        try:
            stream = _unpacked(file, packing, path, stack)
        except FileError:
            raise
        except FAILURES as error:
            raise FileError(f"{path} cannot be unpacked: {error}") from error
        return BufferedReader(_Counted(path, stream, size, stack.pop_all()), 1 << 16)


def _unpacked(file: BinaryIO, packing: str, path: PathLike, stack: ExitStack) -> Any:
    """Return the stream of what a file unpacks to."""
    if packing == "gzip":
        return stack.enter_context(gzip.GzipFile(fileobj=file, mode="rb"))
    if packing == "bzip2":
        return stack.enter_context(bz2.BZ2File(file))
    if packing == "xz":
        return _Xz(file)
    archive = stack.enter_context(open_zip(file, path))
    members = [
        info for info in archive.infolist()
        if not info.is_dir() and not info.filename.startswith("__MACOSX/")
    ]  # fmt: skip
    if len(members) != 1:
        listed = shorten(repr(info.filename) for info in members)
        raise FileError(
            f"{path} is a zip file of {len(members)} files{f' ({listed})' if members else ''}; "
            "unpack it, and give the one that is meant"
        )
    return stack.enter_context(archive.open(members[0]))


class _Xz:
    """A file packed by xz, of which only so much memory is taken as `LZMA_MEMORY`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unpacker = self._new()

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LZMA_MEMORY)

    def read(self, size: int) -> bytes:
        """Return at most so many bytes; none at the end."""
        while True:
            if self._unpacker.eof:
                rest = self._unpacker.unused_data.lstrip(b"\0")
                rest = rest or self._file.read(1 << 16).lstrip(b"\0")
                if not rest:
                    return b""
                self._unpacker = self._new()
                part = self._unpacker.decompress(rest, size)
            else:
                more = self._file.read(1 << 16) if self._unpacker.needs_input else b""
                if not more and self._unpacker.needs_input:
                    raise EOFError("it is cut short")
                part = self._unpacker.decompress(more, size)
            if part:
                return part


def open_zip(file: BinaryIO, path: PathLike) -> zipfile.ZipFile:
    """Open a zip file whose list of members is not too long."""
    size = os.fstat(file.fileno()).st_size
    tail = min(size, END.size + 0xFFFF)
    file.seek(size - tail)
    end = file.read(tail)
    place = end.rfind(b"PK\x05\x06")
    listed = 0
    if 0 <= place <= len(end) - END.size:
        listed = END.unpack_from(end, place)[5]
        large = size - tail + place - 20 - END_64.size
        if end[max(place - 20, 0) : place].startswith(LOCATOR_64) and large >= 0:
            file.seek(large)
            listed = max(listed % 0xFFFFFFFF, END_64.unpack(file.read(END_64.size))[8])
    file.seek(0)
    if listed > DIRECTORY_BYTES:
        raise FileError(f"{path} lists too many members to be read; unpack it, and give one")
    try:
        return zipfile.ZipFile(file)
    except FAILURES as error:
        raise FileError(f"{path} cannot be unpacked: {error}") from error
