"""Temporary files beside results: whose they are, and who removes them.

The name of one tells the process that writes it, as exactly as the machine knows it. SIGTERM
removes it; what SIGKILL has left is removed by the next who writes in that folder, if the process
that it names is certain to have ended.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from vpem.errors import FileError

_NAME = re.compile(r"\.vpem-([0-9a-f]{24})-(\d{1,10})-(\d{1,20})-[0-9a-f]{12}(\..*)?")


def _machine() -> str | None:
    """Return what tells this machine since it was started, and what it counts processes in."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        counted = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # no Linux: nothing is known of other processes
        return None
    return f"{booted.replace('-', '')[:16]}{counted & 0xFFFFFFFF:08x}"


def _begun(process: int) -> str | None:
    """Return when a process was started, in ticks of the machine; None: that cannot be told."""
    try:
        told = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return told.rpartition(")")[2].split()[19]


def _name(suffix: str) -> str:
    """Return a name for a file of this process."""
    machine, begun = _machine(), _begun(os.getpid())
    owner = f"{machine}-{os.getpid()}-{begun}-" if machine and begun else ""
    return f".vpem-{owner}{secrets.token_hex(6)}{suffix}"


def _has_ended(process: int, begun: str) -> bool:
    """Whether a process of this machine is certain to have ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    now = _begun(process)
    return now is not None and now != begun


def remove_stale(folder: Path) -> None:
    """Remove temporary files of processes of this machine that have ended; others stay."""
    machine = _machine()
    with suppress(OSError):
        for name in os.listdir(folder):
            found = _NAME.fullmatch(name)
            if found and found[1] == machine and _has_ended(int(found[2]), found[3]):
                with suppress(OSError):
                    os.unlink(folder / name)


@contextmanager
def temporary_beside(target: Path, mode: int = 0o666) -> Iterator[Path]:
    """Make an empty file in the folder of ``target``, with its ending; remove it at the end.

    ``mode`` says who may read and write it, less the umask. Nothing is removed if it was moved
    meanwhile.
    """
    remove_stale(target.parent)
    temporary = target.with_name(_name(target.suffix))

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
def new_folder(folder: Path, *, parents: bool = False) -> Iterator[None]:
    """Make a folder; if the block raises, those that were made go again where they are empty."""
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        try:
            folder.mkdir(parents=parents, exist_ok=True)
        except OSError as error:
            raise FileError(
                f"{folder} cannot be made: {error.strerror}; give another folder"
            ) from None
        yield
    except BaseException:
        for one in made:
            with suppress(OSError):
                one.rmdir()
        raise
