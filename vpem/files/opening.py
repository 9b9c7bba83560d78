"""How a file that anybody may have made is opened, unpacked, and its format recognised.

Only regular files are opened: a pipe would wait for ever and a device never end. What is read, or
unpacked as a stream, is bounded by what the file holds; what it stores in little space (fill
values, compressed zeros) may come to `read_limit` bytes all the same. The format of a file is what
it begins with, not what it is called.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader, RawIOBase, TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO
from unicodedata import normalize

from vpem.checks import check_memory, parse_bytes
from vpem.errors import FileError, InputError, Setting, VpemError, shorten

PathLike = str | os.PathLike[str]

AS_IT_IS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""How files are opened besides: no wait for writers of pipes, no change of ends of lines."""

READ_LIMIT = "VPEM_READ_LIMIT"
"""Environment variable: a size such as 2G, in place of `USUAL_LIMIT`."""

USUAL_LIMIT = 1 << 26
"""Bytes that may be made of a file however little it stores."""

EXPANSION = 100
"""Bytes that may be made of each byte that is stored, beyond the limit."""


def read_limit() -> int:
    """Return how many bytes may be made of what stores less: the environment's `READ_LIMIT`."""
    text = os.environ.get(READ_LIMIT, "").strip()
    if not text:
        return USUAL_LIMIT
    try:
        return parse_bytes(text)
    except InputError as error:
        raise InputError(f"the environment variable {READ_LIMIT}: {error}") from None


def advice(n_bytes: float) -> str:
    """Return what to do about what needs a limit of ``n_bytes``: "; set VPEM_READ_LIMIT=..."."""
    size = max(1, int(n_bytes))
    unit, mark = (1 << 30, "G") if size > 1 << 32 else (1 << 20, "M")
    return f"if you trust the file, set {READ_LIMIT}={-(-size // unit)}{mark}"


def check_readable(path: PathLike) -> Path:
    """Return ``path`` if it is a regular file that can be opened and is not empty."""
    with open_regular(path) as file:
        if not os.fstat(file.fileno()).st_size:
            raise FileError(f"{path} is empty")
    return Path(path)


@contextmanager
def open_text(path: PathLike) -> Iterator[TextIO]:
    """Open a regular UTF-8 file that is not empty, to read its lines as they are."""
    check_readable(path)
    with open_regular(path) as file, TextIOWrapper(file, "utf-8-sig", newline="") as text:
        yield text


def open_regular(path: PathLike) -> BufferedReader:
    """Open a regular file to read its bytes; links to one are followed.

    What is opened is looked at, not what the name stood for before.
    """
    name = os.fspath(path)
    if not name:
        raise FileError("'' does not exist")
    try:
        descriptor = os.open(name, os.O_RDONLY | AS_IT_IS)
    except (OSError, ValueError) as error:
        raise FileError(_why(name, error)) from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise FileError(f"{name} is a folder, not a file")
    kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))
    what = next((word for test, word in kinds if test(mode)), "something else")
    raise FileError(f"{name} is not an ordinary file but {what}; save its content to a file first")


def identity_of_file(path: str) -> tuple[int | str, ...]:
    """Return what all names of a file share, whether it exists already or not."""
    with suppress(OSError, ValueError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    try:
        folder, name = os.path.split(os.path.realpath(path))
        home = os.stat(folder)
    except (OSError, ValueError):  # it cannot be written, which is said later
        return (path,)
    if ignores_case(folder):
        name = normalize("NFC", name).casefold()
    return home.st_dev, home.st_ino, name


def ignores_case(folder: str) -> bool:
    """Whether names in a folder are the same in capitals."""
    with suppress(OSError):
        return folder.swapcase() != folder and os.path.samefile(folder, folder.swapcase())
    return False


def _why(name: str, error: Exception) -> str:
    number = getattr(error, "errno", None)
    if number in (errno.ENOENT, errno.ENOTDIR):
        return f"{name!r} does not exist"
    if number == errno.ELOOP:
        return f"{name} is a link that leads to itself"
    if number == errno.ENXIO:  # sockets, and devices that are not there
        return f"{name} is not an ordinary file"
    return f"{name} cannot be read: {getattr(error, 'strerror', None) or error}"


@contextmanager
def damaged(what: str, failures: type[Exception] | tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn what a library raises on a damaged file into FileError: ``what`` is wrong, and why."""
    try:
        yield
    except VpemError:
        raise
    except failures as error:
        raise FileError(f"{what} ({error})") from error


def read_bytes(path: PathLike, times: int = 1) -> bytes:
    """Return the content of a regular file; ``times`` its size must be within `read_limit`."""
    most = read_limit() // times
    with open_regular(path) as file:
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise FileError(_why(os.fspath(path), error)) from error
        if len(content) > most:
            size = os.fstat(file.fileno()).st_size
            raise FileError(
                f"{path} has {size} bytes, more than the {most} that are read "
                f"at once; {advice(times * size)}"
            )
    return content


def read_text(path: PathLike, times: int = 1) -> str:
    r"""Return the content of a UTF-8 file, with or without a byte order mark; lines end with \n."""
    try:
        text = read_bytes(path, times).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text; save it as UTF-8") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_unpacked(
    n_bytes: int, path: PathLike, source: str | None = None, size: int | None = None
) -> None:
    """Raise an error if what a file packs would take far more memory than its size.

    FileError beyond `read_limit` and `EXPANSION` times the file, InputError beyond this machine's
    memory.
    """
    if size is None:  # standard input is kept under another name
        size = os.stat(path).st_size if os.path.exists(path) else 0
    if n_bytes > max(read_limit(), EXPANSION * size):
        raise FileError(
            f"{source or path} declares values of {n_bytes / 1e9:.4g} GB in {size} bytes; "
            f"{advice(n_bytes)}"
        )
    check_memory(n_bytes, source or os.fspath(path))


PACKINGS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}
"""What packed files begin with."""

FAILURES = (
    OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError, ValueError,
    NotImplementedError, struct.error, MemoryError,
)  # fmt: skip
"""What damaged ones raise."""

LZMA_MEMORY = 1 << 28  # bytes that xz may take for its dictionary
UNPACKED_BYTES = 1 << 16  # of a file packed by xz, that are read or unpacked at once
DIRECTORY_BYTES = 1 << 22  # of the list of members of a zip file

END, END_64, LOCATOR_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), b"PK\x06\x07"
"""End of a zip file, and of a large one (APPNOTE.TXT, 4.3.14 to 4.3.16)."""


def packing_of(start: bytes) -> str | None:
    """Return how a file is packed that begins so; None if it is not."""
    return next((name for mark, name in PACKINGS.items() if start.startswith(mark)), None)


class _Stream(RawIOBase):
    """Bytes of a function, and how it is closed."""

    def __init__(self, read: Callable[[int], bytes], close: Callable[[], None]) -> None:
        self._read, self._close, self._left = read, close, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            self._left = memoryview(self._read(len(buffer)))
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._close()
        super().close()


def stream_of(read: Callable[[int], bytes], close: Callable[[], None]) -> BinaryIO:
    """Return a stream of what ``read`` returns, at most so many bytes as asked; none at its end."""
    return BufferedReader(_Stream(read, close), 1 << 16)


def open_unpacked(path: PathLike) -> BinaryIO:
    """Open a regular file, or what it unpacks to (a zip file's only member), to read its bytes.

    Reading raises FileError if the file is damaged or unpacks to far more than it has (`EXPANSION`,
    `read_limit`).
    """
    with ExitStack() as stack:
        file = stack.enter_context(open_regular(path))
        packing = packing_of(file.read(6))
        file.seek(0)
        if packing is None:
            stack.pop_all()
            return file
        most, found = max(read_limit(), EXPANSION * os.fstat(file.fileno()).st_size), 0
        unpack: Callable[[int], bytes]
        try:
            if packing == "gzip":
                unpack = stack.enter_context(gzip.GzipFile(fileobj=file, mode="rb")).read
            elif packing == "bzip2":
                unpack = stack.enter_context(bz2.BZ2File(file)).read
            elif packing == "xz":
                parts = _unpacked_xz(file)
                unpack = lambda _: next(parts, b"")  # noqa: E731
            else:
                archive = stack.enter_context(open_zip(file, path))
                members = [
                    info for info in archive.infolist()
                    if not info.is_dir() and not info.filename.startswith("__MACOSX/")
                ]  # fmt: skip
                if len(members) != 1:
                    listed = shorten(repr(info.filename) for info in members)
                    raise FileError(
                        f"{path} is a zip file of {len(members)} files"
                        f"{f' ({listed})' if members else ''}; unpack it, and give the one that is "
                        "meant"
                    )
                unpack = stack.enter_context(archive.open(members[0])).read
        except FileError:
            raise
        except FAILURES as error:
            raise FileError(f"{path} cannot be unpacked: {error}") from error

        def read(size: int) -> bytes:
            nonlocal found
            try:
                part = unpack(size)
            except FAILURES as error:
                raise FileError(f"{os.fspath(path)} cannot be unpacked: {error}") from error
            found += len(part)
            if found > most:
                raise FileError(
                    f"{os.fspath(path)} unpacks to more than {EXPANSION} times its size; unpack it "
                    f"yourself, or, {advice(16 * found)}"
                )
            return part

        return stream_of(read, stack.pop_all().close)


def _unpacked_xz(file: BinaryIO) -> Iterator[bytes]:
    """Yield what xz packed, for which no more memory is taken than `LZMA_MEMORY`."""
    rest = file.read(UNPACKED_BYTES)
    while rest:
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LZMA_MEMORY)
        while not unpacker.eof:
            more = rest or file.read(UNPACKED_BYTES) if unpacker.needs_input else b""
            if not more and unpacker.needs_input:
                raise EOFError("it is cut short")
            rest = b""
            if part := unpacker.decompress(more, UNPACKED_BYTES):
                yield part
        rest = unpacker.unused_data.lstrip(b"\0")
        rest = rest or file.read(UNPACKED_BYTES).lstrip(b"\0")


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


START = 4096
"""Bytes that are looked at."""

KNOWN = (
    (b"PAR1", "parquet"), (b"ARROW1", "arrow"), (b"\x93NUMPY", "npy"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"), (b"MATLAB 7.3 MAT-file", "hdf5"),
)  # fmt: skip

ENDINGS = {
    ".h5": "an HDF5 file", ".hdf5": "an HDF5 file", ".h5ad": "an HDF5 file",
    ".parquet": "a Parquet file", ".pq": "a Parquet file", ".feather": "a Feather file",
    ".arrow": "an Arrow file", ".npy": "an array of NumPy", ".npz": "an archive of NumPy",
}  # fmt: skip
"""What files are that are no text, by what their names end in."""

SAVE_CSV = "save the sheet as CSV"
OTHERS: tuple[tuple[bytes, str, str], ...] = (
    (b"\xd0\xcf\x11\xe0", "an Excel file", SAVE_CSV),
    (b"FEA1", "a Feather file of version 1", "write it again with a newer pandas or R (version 2)"),
    (b"SQLite format 3\0", "an SQLite database", "export the table as CSV"),
    (b"MATLAB 5.0 MAT-file", "a MATLAB file before version 7.3",
     "save it with -v7.3, or write the matrix as CSV (writematrix)"),
    (b"<stata_dta>", "a Stata file", "write it as CSV (export delimited)"),
    (b"$FL2", "an SPSS file", "save it as CSV"),
    (b"$FL3", "an SPSS file", "save it as CSV"),
    (b"RDX", "a file of R's save()", "write the table as CSV (write.csv)"),
    (b"X\n\0\0\0", "a file of R's saveRDS()", "write the table as CSV (write.csv)"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd", "unpack it first (unzstd)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "unpack it, and give the file that is meant"),
    (b"Rar!", "a RAR archive", "unpack it, and give the file that is meant"),
    (b"%PDF", "a PDF file", "give the table itself, as CSV"),
    (b"\x89PNG", "a picture", "give a table, as CSV"),
    (b"Obj\x01", "an Avro file", "write it as Parquet or CSV"),
    (b"ORC", "an ORC file", "write it as Parquet or CSV"),
)  # fmt: skip
"""What other files begin with, what they are, and what to do."""

TEXTS = ((b"<?xml", "XML"), (b"{", "JSON"), (b'[{', "JSON"), (b"[[", "JSON"), (b"[\n", "JSON"),
         (b"[ ", "JSON"), (b"@relation", "an ARFF file (Weka)"))  # fmt: skip
"""What other text begins with, in small letters."""

WIDE = (b"\xff\xfe", b"\xfe\xff")

PICKLES = tuple(b"\x80" + bytes([version]) for version in range(2, 6))


def format_of(path: PathLike, source: str, encoding: str | None = None) -> str:
    """Return the format of a file: "hdf5", "parquet", "arrow", "npy", "npz" or "text".

    FileError for formats that are not read, with what to do. ``encoding`` is that of text, if it is
    known.
    """
    import h5py

    file = check_readable(path)
    with open_regular(file) as opened:
        start = opened.read(START)
        if packing_of(start) == "zip":
            with open_zip(opened, source) as archive:
                names = archive.namelist()
            if names and all(name.endswith(".npy") for name in names):
                return "npz"
            if any(name.startswith(("xl/", "word/", "ppt/")) for name in names):
                raise FileError(f"{source} is an Excel file; {SAVE_CSV}")
            if "mimetype" in names or "Index/Document.iwa" in names:
                raise FileError(f"{source} is a spreadsheet or document; {SAVE_CSV}")
    for mark, kind in KNOWN:
        if start.startswith(mark):
            return kind
    if h5py.is_hdf5(str(file)):  # behind something else
        return "hdf5"
    if packing_of(start) is not None:
        with open_unpacked(file) as stream:
            start = stream.read(START)
        for mark, kind in KNOWN:
            if start.startswith(mark):
                raise FileError(f"{source} is packed {kind.upper()}; unpack it first")
        if start[257:262] == b"ustar":
            raise FileError(f"{source} is an archive (tar); unpack it, and give the file meant")
        if packing_of(start) is not None:
            raise FileError(f"{source} is packed twice; unpack it first")
    _refuse_other(start, source, file, encoding)
    called = ENDINGS.get(file.suffix.lower())
    if called is not None:
        raise FileError(f"{source} is not {called}, although it is called so; is it damaged?")
    return "text"


def _refuse_other(start: bytes, source: str, file: Path, encoding: str | None) -> None:
    for mark, what, instead in OTHERS:
        if start.startswith(mark):
            raise FileError(f"{source} is {what}; {instead}")
    if start.startswith(PICKLES):
        raise FileError(
            f"{source} is a pickle, which could run any program and is not read; write the table "
            "as Parquet or CSV"
        )
    plain = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if plain[:15].lower().startswith((b"<!doctype html", b"<html")):
        raise FileError(f"{source} is a web page, not a table; download the file itself")
    for mark, what in TEXTS:
        if plain[: len(mark)].lower() == mark or (mark[:1] == b"@" and mark in plain.lower()):
            raise FileError(f"{source} is {what}; write the table as CSV")
    if b"\0" in start and encoding is None and not start.startswith(WIDE):
        halves = {order: start[at::2] for order, at in (("le", 1), ("be", 0))}
        order = next((one for one, half in halves.items() if 2 * half.count(0) > len(half)), None)
        if order is not None and not min(half.count(0) for half in halves.values()):
            raise FileError(f"{source} is no UTF-8 text; name its encoding: ",
                            Setting("encoding", f"utf-16-{order}"))  # fmt: skip
        raise FileError(
            f"{source} is no text, and {file.suffix or 'its format'} is not read; give CSV, "
            "Parquet, Feather, .npy, .npz, .h5ad or HDF5"
        )
