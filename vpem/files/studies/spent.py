"""What runs have disclosed of a party's data: a ledger beside its studies, for this party alone.

A line of JSON is added before the first sum of a run, and one once it has ended: a run that was
interrupted has spent. Data are distinguished by HMAC-SHA-256 under a key beside the ledger, so that
a copy of it alone does not show whether guessed data are these.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

from vpem.errors import FileError
from vpem.files.opening import AS_IT_IS, PathLike, open_regular

FILE = "data.spent"
"""Its name, in the folder of the studies, which share it; of its key ``data.spent.key``."""

KEY_BYTES = 32

LONGEST = 1 << 20
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
        self.path = Path(folder) / FILE

    def digests(self, files: Iterable[Path]) -> dict[str, str]:
        """Return keyed digests of files' contents, by their paths."""
        beside = self.path.with_name(f"{FILE}.key")
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
            for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), 1):
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
        self._add({"run": run.run, "ended": now(), "sums": sums})

    def _add(self, entry: Mapping[str, Any], check: Callable[[], None] = lambda: None) -> None:
        """Add a whole line that is on the disk then, or nothing; one process at a time."""
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
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


def now() -> str:
    """Return the time as ledgers have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
