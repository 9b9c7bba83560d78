"""The log of a party: a line for every message that it sent or received, and sums of these.

Lines are JSON. Each is written when the message is, in one piece and at the end of the file, so
that what a process did is there however it ends.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem.errors import FileError
from vpem.files.opening import AS_IT_IS, PathLike, open_regular
from vpem.network.schema import State

if TYPE_CHECKING:
    from vpem.engines.tls.faults import Sent


LARGEST = 1 << 26  # bytes of a log; a longer one is renamed, and the next begins
LONGEST = 4096  # bytes of a line: names and kinds are short
BEGINS = b'{"time":"'  # every line


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
        self._file, self.size = -1, 0
        self._about = {"id": secrets.token_hex(8), **about}
        self._open()
        self._begin()
        self._check()

    def record_message(self, message: Sent) -> None:
        """Note a message; any thread may.

        If it could not be noted, what is in the file is whole. The run is to end then; others may
        hear why, and nothing more is noted.
        """
        line = _line({
            "time": _utc(message.time), "way": "sent" if message.sent else "received",
            "peer": message.peer, "kind": message.topic, "bytes": message.size,
            "hmac": message.digest,
        })  # fmt: skip
        if self._failure is not None:
            return
        with self._lock:
            if self.size + len(line) > LARGEST:
                self._set_aside()
            self._write(line)
            self.n_messages += self._failure is None
        self._check()

    def _check(self) -> None:
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
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | AS_IT_IS
        try:
            self._file = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise FileError(f"{self.path} cannot be written: {error.strerror}") from None
        known = os.fstat(self._file)
        self.size = known.st_size
        if not stat.S_ISREG(known.st_mode) or not self._looks_right():
            os.close(self._file)
            self._file = -1
            raise FileError(
                f"{self.path} is no log of messages, and nothing is added to it; move it away, or "
                "name another file with --log"
            )

    def _looks_right(self) -> bool:
        """Whether the file is empty or begins as a log does; what is no whole line is cut off."""
        if self.size and os.read(self._file, len(BEGINS)) != BEGINS:
            return False
        os.lseek(self._file, max(0, self.size - LONGEST), os.SEEK_SET)
        tail = os.read(self._file, LONGEST)
        rest = len(tail) - tail.rfind(b"\n") - 1
        if rest:  # the machine went down meanwhile
            self._about["cut"] = rest
            self.size -= rest
            os.ftruncate(self._file, self.size)
        return True

    def _begin(self) -> None:
        self._write(_line({"time": _utc(datetime.now(UTC).timestamp()), "run": self._about}))

    def _write(self, line: bytes) -> None:
        if self._failure is not None or self._file < 0:
            return
        try:
            written = os.write(self._file, line)
            if written < len(line):
                # A line without room is cut off, so that it is never taken for a whole one.
                os.ftruncate(self._file, self.size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.size += written
        except OSError as error:
            self._failure = error.strerror or str(error)

    def _set_aside(self) -> None:
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
        self.size = 0
        self._begin()


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _utc(seconds: float) -> str:
    """Write a time as logs do: 2026-11-22T13:37:30.123456Z."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """A message of a log."""

    run: str
    time: str  # ISO 8601, UTC
    sent: bool  # and not received
    peer: str
    kind: str  # what it was about
    size: int  # payload bytes
    digest: str  # their SHA-256


@dataclass
class Totals:
    """Messages and payload bytes either way."""

    sent: int = 0
    received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass
class Logged:
    """What a log comes to."""

    runs: list[State] = field(default_factory=list)  # id, time, command, ... of each
    totals: dict[tuple[str, str], Totals] = field(default_factory=dict)  # by kind and peer
    first: str | None = None  # time of a message
    last: str | None = None
    cut: int = 0  # lines cut short as the machine went down

    def add(self, entry: Entry) -> None:
        """Count a message."""
        total = self.totals.setdefault((entry.kind, entry.peer), Totals())
        if entry.sent:
            total.sent += 1
            total.bytes_sent += entry.size
        else:
            total.received += 1
            total.bytes_received += entry.size
        self.first = self.first or entry.time
        self.last = entry.time

    def report(self) -> dict[str, Any]:
        """Return the whole as plain values."""
        totals = [
            {"kind": kind, "peer": peer, **vars(counts)}
            for (kind, peer), counts in self.totals.items()
        ]
        return {
            "runs": [{"command": None, **run} for run in self.runs],
            "messages": sum(row["sent"] + row["received"] for row in totals),
            "bytes": sum(row["bytes_sent"] + row["bytes_received"] for row in totals),
            "first": self.first,
            "last": self.last,
            "cut": self.cut,
            "totals": totals,
        }


def read_log(paths: Iterable[PathLike], last_run: bool = False) -> Logged:
    """Sum up logs of one member, the oldest first; by default all runs in them."""
    logged = Logged()
    for about, entry in _lines(paths):
        if about is not None and (not logged.runs or logged.runs[-1]["id"] != about["id"]):
            logged = Logged() if last_run else logged
            logged.runs.append(about)
            logged.cut += "cut" in about
        elif entry is not None:
            logged.add(entry)
        elif about is None:
            logged.cut += 1
    return logged


def entries(paths: Iterable[PathLike]) -> Iterator[Entry]:
    """Yield the messages of logs, one by one; see `read_log`."""
    return (entry for _, entry in _lines(paths) if entry is not None)


def _lines(paths: Iterable[PathLike]) -> Iterator[tuple[State | None, Entry | None]]:
    """Yield what is said of a run, or a message, of each line; neither of one cut short."""
    for path in paths:
        run = ""
        with open_regular(path) as file:
            for number, line in enumerate(iter(partial(file.readline, LONGEST), b""), 1):
                if run and len(line) < LONGEST and not line.endswith(b"\n"):
                    yield None, None
                    continue
                try:
                    about, entry = _read(line, run)
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    raise FileError(
                        f"{path} is no log of messages, or is damaged in line {number}"
                    ) from None
                run = run if about is None else about["id"]
                yield about, entry


def _read(line: bytes, run: str) -> tuple[State | None, Entry | None]:
    """Read a line; raises ValueError and the like where it is none of a log."""
    content = json.loads(line)
    time = datetime.fromisoformat(content["time"])
    if time.tzinfo is None or not line.endswith(b"\n"):
        raise ValueError
    if "run" in content:
        about = content["run"]
        if not re.fullmatch("[0-9a-f]{16}", about["id"]):
            raise ValueError
        return {"time": content["time"], **about}, None
    way, size, digest = content["way"], content["bytes"], content["hmac"]
    texts = all(isinstance(content[name], str) for name in ("peer", "kind"))
    if way not in ("sent", "received") or type(size) is not int or size < 0 or not texts:
        raise ValueError
    if not run or not DIGEST.fullmatch(digest):
        raise ValueError
    return None, Entry(
        run, content["time"], way == "sent", content["peer"], content["kind"], size, digest
    )
