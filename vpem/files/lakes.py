"""Where the rows of a table lie: in one file or in several, in a folder, or in an object store.

Files follow one another by their paths, part-2 before part-10. As with Spark, names that begin with
``_`` or ``.``, copies under way and empty files are no parts of a folder, and folders called
``key=value`` say what is so of all rows in them.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from vpem.errors import FileError, InputError
from vpem.files.opening import PathLike, damaged
from vpem.files.temporaries import spooled

if TYPE_CHECKING:
    from pyarrow import NativeFile

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "http", "https")

PLAIN = "%/:?#[]@!$&'()*+,;="
"""Signs that addresses are written with; spaces and letters of other scripts are put for users."""

LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}
"""Folders of tables some of whose files no longer count."""

SECRET = re.compile(r"[?&][^=&]*(secret|token|password|key)[^=&]*=", re.IGNORECASE)


def as_address(path: PathLike) -> str | None:
    """Return an address as it was before a `Path` was made of it; None of files of this machine."""
    text = os.fspath(path).replace(os.sep, "/")
    scheme, colon, _ = text.partition(":/")
    return re.sub(":/+", "://", text) if colon and scheme.lower() in SCHEMES else None


@dataclass(frozen=True)
class Stored:
    """A file, of this machine or, with a file ``system`` of pyarrow, elsewhere."""

    path: str
    source: str  # as messages call it
    system: Any = None

    def open(self) -> NativeFile:
        """Open it where any part of it is read."""
        import pyarrow as pa

        here = self.system is None
        return pa.OSFile(os.fsencode(self.path)) if here else self.system.open_input_file(self.path)

    def state(self) -> tuple[int, object]:
        """Return its size and when it was written to."""
        if self.system is None:
            status = os.stat(self.path)
            return status.st_size, status.st_mtime_ns
        info = self.system.get_file_info(self.path)
        return int(info.size or 0), info.mtime_ns

    @property
    def folders(self) -> dict[str, str]:
        """What folders of its path say: {"year": "2024"} of ``year=2024/part.parquet``."""
        pairs = (unquote(one).partition("=") for one in PurePosixPath(self.source).parts[:-1])
        return {key: value for key, equals, value in pairs if key and equals}


def find_files(paths: Sequence[PathLike]) -> list[Stored]:
    """Return the files that paths, folders, patterns and addresses stand for, in order."""
    found = [file for path in paths for file in _files_of(path)]
    found.sort(key=lambda one: (_natural(one.source), one.source))
    seen = set[str]()
    for one in found if len(found) > 1 else ():
        place = one.path if one.system else os.path.realpath(one.path)
        if place in seen:
            raise InputError(f"{one.source} is there twice; its rows would count twice")
        seen.add(place)
    return found


def _natural(path: str) -> list[list[tuple[int, str]]]:
    """Return by what paths are put in order: folder by folder, with numbers by their size."""
    return [
        [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", name)]
        for name in path.split("/")
    ]


def _is_hidden(name: str) -> bool:
    return name[0] == "." or (name[0] == "_" and "=" not in name) or name.endswith("._COPYING_")


def _files_of(path: PathLike) -> Sequence[Stored]:
    name, address = os.fspath(path), as_address(path)
    if address is not None:
        return _elsewhere(address)
    if os.path.isdir(name):
        root = name.rstrip("/") or "/"
        with damaged(f"{name} cannot be read", OSError):
            return [Stored(one, one) for one in _inside(_walked(root), root, name)]
    if not glob.has_magic(name) or os.path.lexists(name):
        return [Stored(name, name)]
    fitting = glob.glob(name, recursive=True)
    if not fitting:
        raise FileError(f"no file fits {name!r}")
    folders = tuple(f"{one}{os.sep}" for one in fitting if os.path.isdir(one))  # of **
    apart = (one for one in fitting if not one.startswith(folders))
    return [file for one in apart for file in _files_of(one)]


def _walked(folder: str) -> Iterator[tuple[str, int]]:
    """Yield what is in a folder, with its bytes; -1: no ordinary file, 0: no file."""

    def refuse(error: OSError) -> None:
        raise error

    for parent, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        inside, above = (
            f"{parent.replace(os.sep, '/').rstrip('/')}/",
            Path(os.path.realpath(parent)),
        )
        for name in folders:
            yield inside + name, 0
            if os.path.islink(inside + name) and above.is_relative_to(
                os.path.realpath(inside + name)
            ):
                raise FileError(f"{inside + name} is a link to a folder that it is in; remove it")
        folders[:] = [name for name in folders if not _is_hidden(name)]
        for path in (inside + name for name in files if not _is_hidden(name)):
            status = os.stat(path)  # a link that leads nowhere has none: rows are lacking
            yield path, status.st_size if stat.S_ISREG(status.st_mode) else -1


def _listed(system: Any, root: str) -> Iterator[tuple[str, int]]:
    from pyarrow.fs import FileSelector

    for one in system.get_file_info(FileSelector(root, recursive=True)):
        yield one.path, one.size or 0


def _inside(
    found: Iterable[tuple[str, int]], root: str, source: str, pattern: str = ""
) -> list[str]:
    """Return the files of a folder that Spark would take for parts of a table."""
    regex = re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
    fits = re.compile(f"{regex}(/.*)?" if pattern else ".*", re.DOTALL)
    taken, logs = list[str](), dict[str, str]()
    for path, n_bytes in found:
        names = path[len(root) :].strip("/").split("/")
        for name in LOGS.keys() & {*names}:
            logs[path[: path.index(f"/{name}") + 1]] = LOGS[name]
        if n_bytes and fits.fullmatch(path) and not any(map(_is_hidden, names)):
            taken.append(path)
    for folder, log in logs.items():
        if not pattern or any(path.startswith(folder) for path in taken):
            raise FileError(
                f"{source} is a {log} table, whose log says which of its files count; write what "
                "it holds now as Parquet, and give that"
            )
    if not taken and pattern:
        raise FileError(f"no file fits {source!r}")
    if not taken:
        raise FileError(f"{source} is a folder, not a file, and has no files of rows")
    return taken


def _elsewhere(address: str) -> list[Stored]:
    from pyarrow import ArrowException, fs

    scheme, _, rest = address.partition("://")
    if re.match(r"[^/]*:[^/]*@", rest) or SECRET.search(address):
        raise InputError(
            "an address with a password or key would be kept in models and reports; give these in "
            "the environment (AWS_ACCESS_KEY_ID) or a profile (AWS_PROFILE) instead"
        )
    if scheme.lower() in ("http", "https"):
        raise FileError(f"{address} is not read over the web; download the file first")
    is_google = scheme.lower() in ("gs", "gcs")
    patience = f"{'&' if '?' in address else '?'}retry_limit_seconds=15" if is_google else ""
    with damaged(f"{address} cannot be reached", (ArrowException, OSError)):
        uri = f"{scheme.lower()}://{quote(rest, safe=PLAIN)}{patience}"
        system, path = fs.FileSystem.from_uri(uri)
        root, pattern = path, ""
        if "*" in path:
            root, pattern = path.partition("*")[0].rpartition("/")[0], path
        kind = system.get_file_info(root).type
        if kind == fs.FileType.NotFound:
            raise FileError(f"{address} does not exist")
        is_file = kind == fs.FileType.File
        paths = [path] if is_file else _inside(_listed(system, root), root, address, pattern)
    return [Stored(one, f"{scheme}://{one}", system) for one in paths]


@contextmanager
def within_reach(files: Sequence[Stored]) -> Iterator[tuple[list[Stored], bool]]:
    """Copy what is elsewhere and not Parquet to this machine; yield the files, and if any was."""
    ours = [*files]
    with ExitStack() as stack:
        for place, file in enumerate(files):
            if file.system is None:
                continue
            with damaged(f"{file.source} cannot be read", OSError), file.open() as stream:
                if stream.read(4) != b"PAR1":
                    stream.seek(0)
                    copy = spooled(stream, file.source, PurePosixPath(file.path).name)
                    ours[place] = replace(file, path=str(stack.enter_context(copy)), system=None)
        yield ours, ours != [*files]
