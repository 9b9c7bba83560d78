"""Logs of a party beside its studies: its messages, and what runs have disclosed of its data.

Lines are JSON, each written in one piece at the end of the file, so that what a process did is
there however it ends: one for every message that was sent or received; and one before the first sum
of a run, with another once it has ended, since a run that was interrupted has spent. Data are
distinguished by HMAC-SHA-256 under a key beside the ledger, so that a copy of it alone does not
show whether guessed data are these.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from vpem.errors import FileError
from vpem.files.opening import AS_IT_IS, PathLike, open_regular
from vpem.network.schema import COUNT, TEXT, Choice, Place, Report, State, TableOf, check

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

    def __init__(self, path: PathLike, **about: object) -> None:
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
        self.size = known.st_size  # bytes of the file
        regular = stat.S_ISREG(known.st_mode)
        if not regular or (self.size and os.read(self._file, len(BEGINS)) != BEGINS):
            os.close(self._file)
            self._file = -1
            raise FileError(
                f"{self.path} is no log of messages, and nothing is added to it; move it away, or "
                "name another file with --log"
            )
        os.lseek(self._file, max(0, self.size - LONGEST), os.SEEK_SET)
        tail = os.read(self._file, LONGEST)
        rest = len(tail) - tail.rfind(b"\n") - 1
        if rest:  # the machine went down meanwhile: what is no whole line is cut off
            self._about["cut"] = rest
            self.size -= rest
            os.ftruncate(self._file, self.size)

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


def _line(entry: Mapping[str, object]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _utc(seconds: float) -> str:
    """Write a time as logs do: 2026-11-22T13:37:30.123456Z."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


MESSAGE = TableOf(some={
    "time": TEXT, "way": Choice(("sent", "received")), "peer": TEXT, "kind": TEXT, "bytes": COUNT,
    "hmac": TEXT,
})  # fmt: skip
"""A line of a log: when (ISO 8601, UTC) how many payload bytes went where, and about what."""

RUN = TableOf(some={"time": TEXT, "run": TableOf(some={"id": TEXT})})
"""The line above those of a run."""

COUNTS = ("sent", "received", "bytes_sent", "bytes_received")
"""Messages and payload bytes either way."""


def read_log(paths: Iterable[PathLike], last_run: bool = False) -> Report:
    """Sum up logs of one member, the oldest first; by default all runs in them.

    ``totals`` has `COUNTS` by kind and peer, ``cut`` the lines cut short as the machine went down.
    """
    runs, times, cut = list[State](), list[str](), 0
    totals: dict[tuple[str, str], dict[str, int]] = {}
    for of_run, line in _lines(paths):
        if line is None:
            cut += 1
        elif not of_run:
            total = totals.setdefault((line["kind"], line["peer"]), dict.fromkeys(COUNTS, 0))
            total[line["way"]] += 1
            total[f"bytes_{line['way']}"] += line["bytes"]
            times = [*times[:1], line["time"]]
        elif not runs or runs[-1]["id"] != line["id"]:
            if last_run:
                runs, times, cut, totals = [], [], 0, {}
            runs.append({"command": None, **line})
            cut += "cut" in line
    sums = {name: sum(total[name] for total in totals.values()) for name in COUNTS}
    return {
        "runs": runs,
        "messages": sums["sent"] + sums["received"],
        "bytes": sums["bytes_sent"] + sums["bytes_received"],
        "first": times[0] if times else None,
        "last": times[-1] if times else None,
        "cut": cut,
        "totals": [{"kind": kind, "peer": peer, **one} for (kind, peer), one in totals.items()],
    }


def messages(paths: Iterable[PathLike]) -> Iterator[State]:
    """Yield the messages of logs, one by one, each as `MESSAGE` has it."""
    return (line for of_run, line in _lines(paths) if line is not None and not of_run)


def _lines(paths: Iterable[PathLike]) -> Iterator[tuple[bool, State | None]]:
    """Yield the content of each line (None: cut short), after whether it is about a run."""
    for path in paths:
        has_begun = False
        with open_regular(path) as file:
            for number, line in enumerate(iter(partial(file.readline, LONGEST), b""), 1):
                if has_begun and len(line) < LONGEST and not line.endswith(b"\n"):
                    yield False, None
                    continue
                try:
                    content = json.loads(line)
                    of_run = "run" in content
                    check(RUN if of_run else MESSAGE, content, Place(str(path)))
                    mark, digits = (content["run"]["id"], 16) if of_run else (content["hmac"], 64)
                    is_dated = datetime.fromisoformat(content["time"]).tzinfo is not None
                    has_begun |= of_run
                    whole = line.endswith(b"\n") and has_begun and is_dated
                    if not whole or not re.fullmatch(f"[0-9a-f]{{{digits}}}", mark):
                        raise ValueError
                except (FileError, ValueError, TypeError, RecursionError):
                    raise FileError(
                        f"{path} is no log of messages, or is damaged in line {number}"
                    ) from None
                yield of_run, {"time": content["time"], **content["run"]} if of_run else content


LEDGER = "data.spent"
"""Its name, in the folder of the studies, which share it; of its key ``data.spent.key``."""

KEY_BYTES = 32

LONGEST_ENTRY = 1 << 20
"""Bytes of a line, which names the files of one party."""

PROTECTS = ("all", "outsiders")
"""From whom noise may protect: all who take part or see the result, or who sees that alone."""


@dataclass(frozen=True)
class Ran:
    """A run that could read data here: keyed digests of files by their paths.

    ``noise`` has ``epsilon``, ``delta`` and ``multiplier`` of all releases together; None: none.
    ``sums`` in which data travelled are None where no end was noted: it counts as any other.
    """

    run: str
    time: str
    study: str
    edition: int
    command: str
    data: Mapping[str, str]
    parties: int
    masked: bool
    noise: Mapping[str, float] | None = None
    protects: str | None = None
    sums: int | None = None
    ended: str | None = None

    def __post_init__(self) -> None:
        digests = ((self.run, 16), (self.study, 32), *((one, 64) for one in self.data.values()))
        counts = (self.edition, self.parties, self.sums or 0)
        noise = {} if self.noise is None else self.noise
        if (
            not all(re.fullmatch(f"[0-9a-f]{{{length}}}", digest) for digest, length in digests)
            or not all(type(one) is int and 0 <= one < 1 << 53 for one in counts)
            or not all(type(one) is float and isfinite(one) and one > 0 for one in noise.values())
            or set(noise) != (set() if self.noise is None else {"epsilon", "delta", "multiplier"})
            or self.protects not in ((None,) if self.noise is None else PROTECTS)
            or type(self.masked) is not bool
            or not self.command.isidentifier()
            or not datetime.fromisoformat(self.time).tzinfo
            or not datetime.fromisoformat(self.ended or self.time).tzinfo
        ):
            raise ValueError("no entry of a ledger")

    def has_read(self, names: Iterable[str]) -> bool:
        """Whether it could read a file of one of these paths or contents."""
        return not {*self.data, *self.data.values()}.isdisjoint(names)


class Spent:
    """The ledger in a folder; one that is not there yet has no runs."""

    def __init__(self, folder: PathLike) -> None:
        self.path = Path(folder) / LEDGER

    def digests(self, files: Iterable[Path]) -> dict[str, str]:
        """Return keyed digests of files' contents, by their paths."""
        beside = self.path.with_name(f"{LEDGER}.key")
        if not beside.exists():
            from vpem.files.studies.identities import write_new

            try:
                write_new(beside, secrets.token_bytes(KEY_BYTES), 0o600)
            except FileError:
                if not beside.exists():  # no other member in this folder has made it meanwhile
                    raise
        with open_regular(beside) as file:
            key = file.read(KEY_BYTES + 1)
        if len(key) != KEY_BYTES:
            raise FileError(f"{beside} is damaged: the key of {self.path} has {KEY_BYTES} bytes")
        digests = {}
        for path in files:
            with open_regular(path) as file:
                digest = hashlib.file_digest(file, lambda: hmac.new(key, digestmod="sha256"))
            digests[str(path.absolute())] = digest.hexdigest()
        return digests

    def runs(self) -> list[Ran]:
        """Return all runs that may have disclosed something, the oldest first."""
        if not os.path.lexists(self.path):
            return []
        runs: dict[str, Ran] = {}
        with open_regular(self.path) as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_ENTRY), b""), 1):
                try:
                    entry = json.loads(line)
                    if len(entry) == 3:
                        entry = vars(runs[entry["run"]]) | entry
                    elif entry["run"] in runs or len(entry) != len(fields(Ran)):
                        raise ValueError
                    if not line.endswith(b"\n"):
                        raise ValueError
                    runs[entry["run"]] = Ran(**entry)
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    raise FileError(
                        f"{self.path} is damaged in line {number}, so that what was spent is not "
                        "known; repair that line, or remove it if its run disclosed nothing"
                    ) from None
        return [ran for ran in runs.values() if ran.sums != 0]

    def begin(self, ran: Ran, check: Callable[[], None]) -> None:
        """Note a run that begins, unless a check of those before raises something."""
        self._add(vars(ran), check)

    def end(self, run: Ran, sums: int) -> None:
        """Note how many sums data of a run travelled in, once it has ended."""
        from vpem.files.studies.signed import now  # keys of studies, which few that read logs need

        self._add({"run": run.run, "ended": now(), "sums": sums})

    def _add(self, entry: Mapping[str, object], check: Callable[[], None] = lambda: None) -> None:
        """Add a whole line that is on the disk then, or nothing; one process at a time."""
        line = _line(entry)
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | AS_IT_IS
            with open(os.open(self.path, flags, 0o600), "ab", buffering=0) as file:
                with suppress(ImportError):
                    import fcntl

                    fcntl.flock(file, fcntl.LOCK_EX)
                self.runs()  # what is damaged does not get worse
                check()
                size = os.fstat(file.fileno()).st_size
                if file.write(line) < len(line):
                    file.truncate(size)
                    raise OSError(0, "no space left on the disk")
                os.fsync(file.fileno())
        except FileError:  # of the check
            raise
        except OSError as error:
            raise FileError(
                f"what a run tells cannot be noted in {self.path}: {error.strerror}"
            ) from None
