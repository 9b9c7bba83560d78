"""The log of a party: a line for every message that it sent or received.

Lines are JSON. Each is written when the message is, in one piece and at the end of the file, so
that what a process did is there however it ends.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vpem.errors import FileError
from vpem.files.opening import AS_IT_IS, PathLike

if TYPE_CHECKING:
    from vpem.engines.tls.news import Sent


LARGEST = 1 << 26
"""Bytes of a log; a longer one is set aside under another name, and the next begins."""

LONGEST = 4096
"""Bytes of a line: names and kinds are short."""

BEGINS = b'{"time":"'
"""What every line begins with."""


def log_beside(study: PathLike, member: str) -> Path:
    """Return where a member's messages of a study are noted: lab-heart.log beside heart.toml."""
    path = Path(study)
    return path.with_name(f"{member}-{path.stem}.log")


class MessageLog:
    """Notes messages at the end of a file that only its owner may read (mode 0600).

    A file that has grown beyond `LARGEST` bytes is set aside (``lab-heart.1.log``, ``.2.log``...).
    Lines are written at once; where the disk takes no more, those that it has are whole. The first
    says ``about`` the run.
    """

    def __init__(self, path: PathLike, **about: Any) -> None:
        self.path = Path(path)
        self.n_messages = 0
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._file = -1
        self._about = {"id": secrets.token_hex(8), **about}
        self._open()
        self._begin()
        self._check()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def note(self, message: Sent) -> None:
        """Note a message; any thread may.

        If it could not be noted, what is in the file is whole. The run is to end then; others may
        be told why, and nothing more is noted.
        """
        line = _line(
            {
                "time": _utc(message.time),
                "way": "sent" if message.sent else "received",
                "peer": message.peer,
                "kind": message.topic,
                "bytes": message.size,
                "hmac": message.digest,
            }
        )
        if self._failure is not None:
            return
        with self._lock:
            if self._size + len(line) > LARGEST:
                self._set_aside()
            self._write(line)
            self.n_messages += self._failure is None
        self._check()

    def _check(self) -> None:
        """Raise FileError where a message could not be noted."""
        if self._failure is not None:
            raise FileError(
                f"messages can no longer be noted in {self.path}: {self._failure}; make room, or "
                "name a file elsewhere with --log"
            )

    def close(self) -> None:
        """See that what was written is on the disk."""
        with self._lock:
            if self._file >= 0:
                try:
                    os.fsync(self._file)
                except OSError as error:
                    self._failure = self._failure or (error.strerror or str(error))
                os.close(self._file)
                self._file = -1

    def _open(self) -> None:
        """Open the file, or say in a sentence why it cannot be."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | AS_IT_IS
        try:
            self._file = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise FileError(f"{self.path} cannot be written: {error.strerror}") from None
        known = os.fstat(self._file)
        self._size = known.st_size
        if not stat.S_ISREG(known.st_mode) or not self._looks_right():
            os.close(self._file)
            self._file = -1
            raise FileError(
                f"{self.path} is no log of messages, and nothing is added to it; move it away, or "
                "name another file with --log"
            )

    def _looks_right(self) -> bool:
        """Whether the file is empty or begins as a log does; what is no whole line is cut off."""
        if self._size and os.read(self._file, len(BEGINS)) != BEGINS:
            return False
        os.lseek(self._file, max(0, self._size - LONGEST), os.SEEK_SET)
        tail = os.read(self._file, LONGEST)
        rest = len(tail) - tail.rfind(b"\n") - 1
        if rest:  # the machine went down meanwhile
            self._about["cut"] = rest
            self._size -= rest
            os.ftruncate(self._file, self._size)
        return True

    def _begin(self) -> None:
        """Write what the run is."""
        self._write(_line({"time": _utc(datetime.now(UTC).timestamp()), "run": self._about}))

    def _write(self, line: bytes) -> None:
        if self._failure is not None or self._file < 0:
            return
        try:
            written = os.write(self._file, line)
            if written < len(line):
                # What has no room is no line: nobody is to take it for one.
                os.ftruncate(self._file, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += written
        except OSError as error:
            self._failure = error.strerror or str(error)

    def _set_aside(self) -> None:
        """Give the file another name, and begin the next."""
        if self._failure is not None or self._file < 0:
            return
        number = 1
        while os.path.lexists(aside := self.path.with_suffix(f".{number}{self.path.suffix}")):
            number += 1
        try:
            os.rename(self.path, aside)
            os.close(self._file)
            self._file = -1
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | AS_IT_IS
            self._file = os.open(self.path, flags, 0o600)
        except OSError as error:
            self._failure = error.strerror or str(error)
            return
        self._size = 0
        self._begin()


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _utc(seconds: float) -> str:
    """Write a time as logs do: 2026-11-22T13:37:30.123456Z."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
