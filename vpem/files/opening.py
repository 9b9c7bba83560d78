"""The door: how a file that anybody may have made is opened, and how much may be made of it.

Only regular files are opened: a pipe would wait for ever and a device never end. What is read is
bounded by what the file holds; what a file stores in little space (fill values, compressed zeros)
may come to `read_limit` bytes all the same.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import TextIO

from vpem.checks import check_memory, parse_bytes
from vpem.errors import FileError, InputError

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
    wanted = os.environ.get(READ_LIMIT, "").strip()
    if not wanted:
        return USUAL_LIMIT
    try:
        return parse_bytes(wanted)
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
def open_regular(path: PathLike) -> Iterator[BufferedReader]:
    """Open a regular file to read its bytes; links to one are followed.

    What is opened is looked at, not what the name stood for before.
    """
    file = open_plain(path)
    with file:
        yield file


@contextmanager
def open_text(path: PathLike) -> Iterator[TextIO]:
    """Open a regular UTF-8 file that is not empty, to read its lines as they are."""
    check_readable(path)
    with open_regular(path) as file, TextIOWrapper(file, "utf-8-sig", newline="") as text:
        yield text


def open_plain(path: PathLike) -> BufferedReader:
    """Open a regular file to read its bytes; whoever calls closes it. See `open_regular`."""
    name = os.fspath(path)
    if not name:
        raise FileError("'' does not exist")
    try:
        descriptor = os.open(name, os.O_RDONLY | AS_IT_IS)
    except (OSError, ValueError) as error:
        raise FileError(_why(name, error)) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise FileError(f"{name} is {_kind(mode)}")
    return os.fdopen(descriptor, "rb")


def _why(name: str, error: Exception) -> str:
    """Say why a file could not be opened."""
    number = getattr(error, "errno", None)
    if number in (errno.ENOENT, errno.ENOTDIR):
        return f"{name!r} does not exist"
    if number == errno.ELOOP:
        return f"{name} is a link that leads to itself"
    if number == errno.ENXIO:  # sockets, and devices that are not there
        return f"{name} is not an ordinary file"
    return f"{name} cannot be read: {getattr(error, 'strerror', None) or error}"


def _kind(mode: int) -> str:
    """Say what is no regular file."""
    if stat.S_ISDIR(mode):
        return "a folder, not a file"
    kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))
    what = next((word for test, word in kinds if test(mode)), "something else")
    return f"not an ordinary file but {what}; save its content to a file first"


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


def check_unpacked(n_bytes: int, path: PathLike, source: str | None = None) -> None:
    """Raise an error if what a file packs would take far more memory than its size.

    FileError beyond `read_limit` and `EXPANSION` times the file, InputError beyond this machine's
    memory.
    """
    # Standard input is kept under another name.
    size = os.stat(path).st_size if os.path.exists(path) else 0
    if n_bytes > max(read_limit(), EXPANSION * size):
        raise FileError(
            f"{source or path} declares values of {n_bytes / 1e9:.4g} GB in {size} bytes; "
            f"{advice(n_bytes)}"
        )
    check_memory(n_bytes, source or os.fspath(path))
