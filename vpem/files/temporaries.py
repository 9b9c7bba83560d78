"""Temporary files beside results, standard input as a file, and what names of files end in.

The name of a temporary file gives the process that writes it, as exactly as the machine knows it.
SIGTERM removes it; what SIGKILL has left is removed by the next process that writes in that folder,
if the process that it names is certain to have ended.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from vpem.checks import available_memory
from vpem.errors import FileError, InputError
from vpem.files.opening import PathLike

_NAME = re.compile(r"\.vpem-([0-9a-f]{24})-(\d{1,10})-(\d{1,20})-[0-9a-f]{12}(\..*)?")


def _begun(process: int) -> str | None:
    """Return when a process was started, in ticks of the machine; None: unknown."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return facts.rpartition(")")[2].split()[19]


@contextmanager
def temporary_beside(target: Path, mode: int = 0o666) -> Iterator[Path]:
    """Make an empty file in the folder of ``target``, with its ending; remove it at the end.

    ``mode`` (less the umask) says who may read and write it. It stays if it was moved meanwhile.
    Temporary files there of ended processes of this machine are removed.
    """
    machine, begun = None, _begun(os.getpid())
    with suppress(OSError):  # no Linux: nothing is known of other processes
        # This machine since it was started, and what it counts processes in.
        booted = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        counted = os.stat("/proc/self/ns/pid").st_ino
        machine = f"{booted.replace('-', '')[:16]}{counted & 0xFFFFFFFF:08x}"
    with suppress(OSError):
        for name in os.listdir(target.parent):
            named = _NAME.fullmatch(name)
            if not named or named[1] != machine:
                continue
            try:
                os.kill(int(named[2]), 0)
                now = _begun(int(named[2]))
                has_ended = now is not None and now != named[3]
            except ProcessLookupError:
                has_ended = True
            except (OSError, OverflowError):
                has_ended = False
            if has_ended:
                with suppress(OSError):
                    os.unlink(target.parent / name)
    owner = f"{machine}-{os.getpid()}-{begun}-" if machine and begun else ""
    temporary = target.with_name(f".vpem-{owner}{secrets.token_hex(6)}{target.suffix}")

    def end(number: int, _: FrameType | None) -> None:
        temporary.unlink(missing_ok=True)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    caught = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    try:
        if caught:
            signal.signal(signal.SIGTERM, end)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
        if caught:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def new_folder(folder: Path, *files: Path, parents: bool = False) -> Iterator[None]:
    """Make a folder; if the block raises, it goes again, with its parents where they are empty.

    Files that the block makes in it go, too, but none that was there before.
    """
    new_files = [one for one in files if not one.exists()]
    new_folders = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        try:
            folder.mkdir(parents=parents, exist_ok=True)
        except OSError as error:
            raise FileError(
                f"{folder} cannot be made: {error.strerror}; give another folder"
            ) from None
        yield
    except BaseException:
        for remove in [*(one.unlink for one in new_files), *(one.rmdir for one in new_folders)]:
            with suppress(OSError):
                remove()
        raise


PART = 1 << 20
MARGIN = 1 << 26
"""Bytes that stay free in the folder for temporary files."""


@contextmanager
def spooled(
    stream: Any = None, what: str = "standard input", name: str = "input"
) -> Iterator[Path]:
    """Write a stream, by default standard input, to a temporary file that is there in the block.

    It may be as large as half of the memory, and as the folder for temporary files has room for.
    """
    if stream is None and (sys.stdin is None or sys.stdin.isatty()):
        raise InputError("'-' stands for standard input, but nothing is piped in; name a file")
    stream = getattr(sys.stdin, "buffer", None) if stream is None else stream
    if stream is None:
        raise InputError("standard input gives text, not bytes; name a file")
    folder = Path(tempfile.gettempdir())
    most = available_memory()
    with temporary_beside(folder / name, 0o600) as path:
        size = 0
        try:
            with open(path, "wb") as file:
                while part := stream.read(PART):
                    size += len(part)
                    if size > most or shutil.disk_usage(folder).free < MARGIN:
                        raise InputError(
                            f"{what} has more than {(size - len(part)) / 1e9:.4g} GB; save "
                            "it to a file, and name that"
                        )
                    file.write(part)
        except OSError as error:
            raise FileError(
                f"{what} cannot be kept in {folder} ({error}); name another folder in the "
                "environment variable TMPDIR"
            ) from error
        if not size:
            raise FileError(f"{what} is empty")
        yield path


HDF5 = (".h5", ".hdf5", "")
"""A name without an ending says nothing else."""

ENDINGS: dict[str, tuple[str, ...]] = {
    "models": HDF5,
    "clusterings": HDF5,
    "fits of SAEM": HDF5,
    "datasets": (*HDF5, ".h5ad"),
    "observations": HDF5,
    "individuals": HDF5,
    "corpora": (*HDF5, ".h5ad", ".csv", ".tsv"),
    "imputations": (*HDF5, ".csv", ".parquet"),
    "checkpoints": (*HDF5, ".ckpt"),
    "results": (".csv", ".parquet", ".h5", ".hdf5"),
    "pictures": (".png", ".svg", ".pdf"),
    "reports": (".html", ".htm"),
    "imputed values": (".csv", ".parquet"),
    "exported models": (".npz", ".json"),
    "traces": (".jsonl", *HDF5),
}
"""Kinds of files, and the endings that agree with what is in them."""

ROWS = "a table of the rows and what they belong to is written by 'vpem predict MODEL DATA -o'"
INSTEAD = {
    "models": f"{ROWS}, parameters for other programs by 'vpem model export MODEL -o'",
    "clusterings": f"{ROWS}, centres by 'vpem model show --json'",
    "fits of SAEM": "curves as a table are written by 'vpem predict FIT -o', estimates by 'vpem "
    "model export FIT -o'",
}
"""What a user who names a table may want of a file that is none."""


def ending_of(path: PathLike) -> str:
    """Return what a name ends in, in small letters: ".h5"; "" of one like "fit-0.5"."""
    ending = Path(path).suffix.lower()
    return ending if ending[1:2].isalpha() else ""


def check_ending(path: PathLike, kind: str) -> str:
    """Return the ending of a file of a ``kind`` of `ENDINGS`; InputError if it is another's."""
    endings = ENDINGS[kind]
    ending = ending_of(path)
    if ending not in endings:
        *first, last = (one for one in endings if one)
        listed = f"{', '.join(first)} or {last}" if first else last
        instead = f"; {INSTEAD[kind]}" if kind in INSTEAD else ""
        raise InputError(f"{kind} are written to {listed} files, got {os.fspath(path)}{instead}")
    return ending
