"""What logs of messages come to (`vpem.files.studies.message_log`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from vpem.errors import FileError
from vpem.files.opening import PathLike, open_regular
from vpem.files.studies.message_log import LONGEST
from vpem.network.schema import State

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

    def add(self, entry: Entry) -> None:
        """Count a message."""
        if entry.sent:
            self.sent += 1
            self.bytes_sent += entry.size
        else:
            self.received += 1
            self.bytes_received += entry.size


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
        self.totals.setdefault((entry.kind, entry.peer), Totals()).add(entry)
        self.first = self.first or entry.time
        self.last = entry.time


def read_log(paths: Iterable[PathLike], last_run: bool = False) -> Logged:
    """Sum up logs of one member, the oldest first; by default all runs in them."""
    found = Logged()
    for about, entry in _lines(paths):
        if about is not None and (not found.runs or found.runs[-1]["id"] != about["id"]):
            found = Logged() if last_run else found
            found.runs.append(about)
            found.cut += "cut" in about
        elif entry is not None:
            found.add(entry)
        elif about is None:
            found.cut += 1
    return found


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
    found = json.loads(line)
    time = datetime.fromisoformat(found["time"])
    if time.tzinfo is None or not line.endswith(b"\n"):
        raise ValueError
    if "run" in found:
        about = found["run"]
        if not re.fullmatch("[0-9a-f]{16}", about["id"]):
            raise ValueError
        return {"time": found["time"], **about}, None
    way, size, digest = found["way"], found["bytes"], found["hmac"]
    texts = all(isinstance(found[name], str) for name in ("peer", "kind"))
    if way not in ("sent", "received") or type(size) is not int or size < 0 or not texts:
        raise ValueError
    if not run or not DIGEST.fullmatch(digest):
        raise ValueError
    return None, Entry(
        run, found["time"], way == "sent", found["peer"], found["kind"], size, digest
    )
