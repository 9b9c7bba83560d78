"""Where the rows of a table lie: in one file or in several, in a folder, or in an object store.

Files follow one another by their paths, part-2 before part-10. As with Spark, names that begin with
``_`` or ``.``, copies under way and empty files are no parts of a folder, and folders called
``key=value`` say what is so of all rows in them.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from vpem.checks import available_memory
from vpem.errors import FileError, InputError, VpemError
from vpem.files.opening import PathLike, open_regular
from vpem.files.temporaries import MARGIN, PART, temporary_beside

if TYPE_CHECKING:
    from pyarrow import NativeFile

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "http", "https")

LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}
"""Folders of tables some of whose files no longer count."""

SECRET = re.compile(r"[?&][^=&]*(secret|token|password|key)[^=&]*=", re.IGNORECASE)


def as_address(path: PathLike) -> str | None:
    """Return an address, as it was before a `Path` was made of it; None of files of this machine.

    >>> as_address(Path("s3://bucket/table"))
    's3://bucket/table'
    """
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

        if self.system is not None:
            return self.system.open_input_file(self.path)
        open_regular(self.path).close()  # which says what else it is
        return pa.OSFile(self.path)

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
    found: list[Stored] = []
    for path in paths:
        address = as_address(path)
        found += _here(os.fspath(path)) if address is None else _elsewhere(address)
    if len(found) == 1:
        return found
    found.sort(key=lambda one: (_natural(one.source), one.source))
    places = [os.path.realpath(one.path) if one.system is None else one.path for one in found]
    seen: dict[str, Stored] = {}
    for place, one in zip(places, found, strict=True):
        if place in seen:
            raise InputError(f"{one.source} is named twice; its rows would count twice")
        seen[place] = one
    return found


def _natural(path: str) -> list[list[tuple[int, str]]]:
    """Return by what paths are put in order: folder by folder, with numbers by their size."""
    return [
        [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", name)]
        for name in path.split("/")
    ]


def _is_hidden(name: str) -> bool:
    return name[0] == "." or (name[0] == "_" and "=" not in name) or name.endswith("._COPYING_")


def _of_rows(paths: Iterable[tuple[str, int]], source: str) -> Iterator[str]:
    """Yield those of the files in a folder (path from there, size) that Spark takes for parts."""
    for path, size in paths:
        names = path.split("/")
        log = next((LOGS[name] for name in names if name in LOGS), None)
        if log is not None:
            raise FileError(
                f"{source} is a {log} table, whose log says which of its files count; write what "
                "it holds now as Parquet, and give that"
            )
        if size and not any(map(_is_hidden, names)):
            yield path


def _here(name: str) -> list[Stored]:
    if not os.path.isdir(name):
        if not glob.has_magic(name) or os.path.lexists(name):
            return [Stored(name, name)]
        fitting = [one for one in glob.glob(name, recursive=True) if not one.endswith(os.sep)]
        if not fitting:
            raise FileError(f"no file fits {name!r}")
        return [file for one in fitting for file in _here(one)]

    def refuse(error: OSError) -> None:
        raise FileError(f"{error.filename} cannot be read: {error.strerror}") from error

    inside: list[tuple[str, int]] = []
    for folder, folders, names in os.walk(name, onerror=refuse):
        logs = {*LOGS} & {*folders}
        folders[:] = [one for one in folders if not _is_hidden(one)]
        for one in folders:
            if os.path.islink(path := os.path.join(folder, one)):
                raise FileError(f"{path} is a link to a folder, which is not followed; name it too")
        for path in (os.path.join(folder, one) for one in (*logs, *names)):
            size = os.stat(path).st_size if os.path.exists(path) else 1
            inside.append((Path(os.path.relpath(path, name)).as_posix(), size))
    paths = [os.path.join(name, one) for one in _of_rows(inside, name)]
    if not paths:
        raise FileError(f"{name} is a folder, not a file, and has no files of rows")
    return [Stored(path, path) for path in paths]


def _elsewhere(address: str) -> list[Stored]:
    from pyarrow import fs

    scheme, _, rest = address.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if (at and (":" in user or scheme == "s3")) or SECRET.search(address):
        raise InputError(
            "an address with a password or key would be kept in models and reports; give these in "
            "the environment (AWS_ACCESS_KEY_ID) or a profile (AWS_PROFILE) instead"
        )
    if scheme in ("http", "https"):
        raise FileError(f"{address} is not read over the web; download the file first")
    with reaching(address):
        more = "&" if "?" in address else "?"
        patience = f"{more}retry_limit_seconds=15" if scheme in ("gs", "gcs") else ""
        system, path = fs.FileSystem.from_uri(address + patience)
        root = path.partition("*")[0].rpartition("/")[0] if "*" in path else path
        info = system.get_file_info(root)
        listed = []
        if info.type == fs.FileType.Directory:
            listed = system.get_file_info(fs.FileSelector(root, recursive=True))
    if info.type == fs.FileType.File and root == path:
        return [Stored(path, f"{scheme}://{path}", system)]
    if info.type == fs.FileType.NotFound:
        raise FileError(f"{address} does not exist")
    inside = [
        (one.path[len(root) :].lstrip("/"), one.size)
        for one in listed
        if one.type == fs.FileType.File and (root == path or _fits(one.path, path))
    ]
    paths = [f"{root}/{one}" for one in _of_rows(inside, address)]
    if not paths:
        raise FileError(f"{address} has no file of rows")
    return [Stored(one, f"{scheme}://{one}", system) for one in paths]


def _fits(path: str, pattern: str) -> bool:
    one, two = path.split("/"), pattern.split("/")
    return len(one) == len(two) and all(map(fnmatch, one, two))


@contextmanager
def within_reach(files: Sequence[Stored]) -> Iterator[tuple[list[Stored], bool]]:
    """Copy what is elsewhere and not Parquet to this machine; yield the files, and if any was."""
    with ExitStack() as stack:
        ours = [stack.enter_context(_copied(one)) if one.system else one for one in files]
        yield ours, ours != [*files]


@contextmanager
def _copied(file: Stored) -> Iterator[Stored]:
    folder = Path(tempfile.gettempdir())
    with ExitStack() as stack:
        with reaching(file.source), file.open() as stream:
            if stream.read(4) != b"PAR1":
                size = stream.size()
                if size > min(available_memory(), shutil.disk_usage(folder).free - MARGIN):
                    raise InputError(
                        f"{file.source} has {size / 1e9:.4g} GB, and is no Parquet, which is read "
                        "where it is; download it, and name that"
                    )
                name = folder / PurePosixPath(file.path).name
                path = stack.enter_context(temporary_beside(name, 0o600))
                stream.seek(0)
                with open(path, "wb") as copy:
                    while part := stream.read(PART):
                        copy.write(part)
                file = replace(file, path=str(path), system=None)
        yield file


@contextmanager
def reaching(where: str) -> Iterator[None]:
    """Turn what is raised where a file cannot be reached into FileError."""
    from pyarrow import ArrowException

    try:
        yield
    except VpemError:
        raise
    except (OSError, ArrowException) as error:
        reason = " ".join(str(error).split())
        raise FileError(f"{where} cannot be reached: {reason[:300]}") from error
