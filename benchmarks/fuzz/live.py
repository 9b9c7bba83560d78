"""Doors that stand open, and whoever comes to them: strangers, and members who mean no good.

Servers and relays are processes of their own on this machine. Each kind counts messages and
connections, what was wrong, and how much memory the process took above what it had.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vpem.engines.tls.server import free_port
from vpem.files.studies.identities import make_identity

from ..studies import make_study
from .frames import PATHS, FalseMember
from .lines import forget_peak, greeting, resident, sealed
from .mutations import pick
from .runs import CONTROL
from .strangers import Stranger

LOOK_EVERY = 50
"""Comings after which a member comes too, and memory is looked at."""

WARM = 1500
"""Comings before memory is looked at: buffers and caches fill."""

GROWTH = 4_000_000
"""Bytes that a process may have more in the end than after the first comings, at most."""

PEAK = 1_000_000
"""Bytes that strangers may make it have, at most, at any time."""

SOON = 2.0
"""Seconds in which a member gets in, whoever else is there."""


@dataclass
class Seen:
    """What a siege came to: messages and connections; how often the other end ended in a sentence.

    Seconds are the longest that a member had to wait at the door; bytes are memory of the process
    after the first comings, in the end, and at most.
    """

    count: int = 0
    ends: int = 0
    seconds: float = 0.0
    before: int = 0
    after: int = 0
    peak: int = 0
    defects: Counter[str] = field(default_factory=Counter)


class Place:
    """A study of some members, their folders, and free ports."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ports = {name: free_port() for name in ("hub", "relay")}
        studies, self.identities = make_study(
            home, {"hub": self.address("hub"), "lab": None, "clinic": None},
            {"fit": {"topology": "star", "hops": 0, "components": 2}},
            relay=self.address("relay"), timeout=3600.0,
        )  # fmt: skip
        self.identities["stranger"] = make_identity(home, "stranger")
        self.roster = studies["hub"].roster

    def address(self, name: str) -> tuple[str, int]:
        """Where somebody is dialled."""
        return "127.0.0.1", self.ports[name]

    @contextmanager
    def stands(self, name: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program at somebody's folder until the end."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        process = subprocess.Popen(
            [sys.executable, *command], cwd=self.home / name, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            self._await(name, process)
            yield process
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _await(self, name: str, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and process.poll() is None:
            try:
                socket.create_connection(self.address(name), 1.0).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"{name} does not stand: {process.communicate()[0]}")


# ---- sieges --------------------------------------------------------------------------------------

VPEM = ("-c", "import vpem_cli; vpem_cli.main()")
SERVER = (*VPEM, "fit", "--study", "heart.toml", "--as", "hub")
RELAY = (*VPEM, "relay", "heart.toml", "--log", "relay.log")


def strangers(place: Place, rng: np.random.Generator, most: Stop) -> Seen:
    """Come to a server that waits, and to a relay, without a certificate."""
    found = Seen()
    somebody = Stranger(place.identities["stranger"], rng)
    with place.stands("hub", *SERVER) as hub, place.stands("relay", *RELAY) as relay:
        watched = {"hub": _Watched(hub, found), "relay": _Watched(relay, found)}
        for number in most.numbers():
            name = "hub" if number % 2 else "relay"
            somebody.come(place.address(name))
            found.count += 1
            if number % LOOK_EVERY == 0:
                for one, process in watched.items():
                    process.look(number)
                    _gets_in(place, one, found)
        for process in watched.values():
            process.end(PEAK)
        somebody.end()
    return found


def at_relay(place: Place, rng: np.random.Generator, most: Stop) -> Seen:
    """Come to a relay as members who send whatever they like."""
    found = Seen()
    members = [FalseMember(place.identities[name], place.roster, rng) for name in ("lab", "clinic")]
    with place.stands("relay", *RELAY) as relay:
        process = _Watched(relay, found)
        for number in most.numbers(lambda: found.count):
            found.count += pick(rng, members).talk(place.address("relay"), str(pick(rng, PATHS)))
            if number % LOOK_EVERY == 0:
                process.look(number)
                _gets_in(place, "relay", found)
        process.end()
    return found


def at_member(place: Place, rng: np.random.Generator, most: Stop) -> Seen:
    """Talk to a member as another that sends whatever it likes."""
    found = Seen()
    lab = FalseMember(place.identities["lab"], place.roster, rng)
    folder = str(place.home / "hub")
    command = ("-m", "benchmarks.fuzz.standing", folder, "hub", str(place.ports["hub"]))
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    with place.stands("hub", *command) as hub:
        process = _Watched(hub, found)
        for number in most.numbers(lambda: found.count):
            found.count += lab.talk(place.address("hub"))
            process.read()
            if number % LOOK_EVERY == 0:
                process.look(number)
        process.end()
    return found


LIVE = {"handshake": strangers, "relay": at_relay, "link": at_member}
"""By name, as kinds of files have them."""


@dataclass
class Stop:
    """When a siege is over: after so many comings, or seconds."""

    count: int | None
    seconds: float

    def numbers(self, done: Any = None) -> Iterator[int]:
        """Count from 0 until it is."""
        until, number = time.monotonic() + self.seconds, 0
        while True:
            come = number if done is None else done()
            over = time.monotonic() > until if self.count is None else come >= self.count
            if over:
                return
            yield number
            number += 1


def besiege(name: str, rng: np.random.Generator, stop: Stop, folder: Path) -> Seen:
    """Run one of `LIVE` in a folder."""
    home = folder / f"live-{name}"
    home.mkdir(mode=0o700)
    return LIVE[name](Place(home), rng, stop)


def _gets_in(place: Place, name: str, found: Seen) -> None:
    """Come as a member, who gets in soon."""
    began = time.monotonic()
    try:
        with sealed(place.address(name), place.identities["clinic"]) as line:
            if b" 101 " not in greeting(line, "/check"):
                found.defects["a member was turned away"] += 1
    except OSError as error:
        found.defects[f"a member did not get in: {error}"] += 1
    taken = time.monotonic() - began
    found.seconds = max(found.seconds, taken)
    if taken > SOON:
        found.defects[f"a member waited more than {SOON:g} s"] += 1


class _Watched:
    """A process whose memory and words are looked at."""

    def __init__(self, process: subprocess.Popen[bytes], found: Seen) -> None:
        self.process, self.found = process, found
        self.before = 0
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._rest = b""

    def look(self, number: int) -> None:
        """See whether it lives, and remember what it has after the first comings."""
        if self.process.poll() is not None:
            raise RuntimeError(f"a process has ended with {self.process.returncode}")
        self.read()
        if number >= WARM and not self.before:
            self.before = resident(self.process.pid)
            forget_peak(self.process.pid)

    def read(self) -> None:
        """Read what it says: plain lines, or JSON of how it ended."""
        assert self.process.stdout is not None
        number = self.process.stdout.fileno()
        while select.select([number], [], [], 0)[0]:
            piece = os.read(number, 1 << 16)
            if not piece:
                break
            self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self._judge(line.decode("utf-8", "replace"))

    def _judge(self, line: str) -> None:
        told: Any = json.loads(line) if line.startswith("{") else line
        if isinstance(told, dict):
            self.found.ends += bool(told.get("sentence"))
            if told.get("defect"):
                self.found.defects[told["defect"][-900:]] += 1
            line = told.get("sentence") or ""
        if CONTROL.search(line) or "\n" in line:
            self.found.defects["control characters"] += 1
        if "Traceback" in line:
            self.found.defects["traceback"] += 1
        if not isinstance(told, dict) and self.found.defects["traceback"]:
            print(line, file=sys.stderr)

    def end(self, most: int | None = None) -> None:
        """Look at it for the last time; at most so many bytes more may have been had."""
        self.look(0)
        after, peak = resident(self.process.pid), resident(self.process.pid, "VmHWM")
        before = self.before or after
        found = self.found
        if after - before >= found.after - found.before:
            found.before, found.after, found.peak = before, after, peak
        if after - before > GROWTH:
            found.defects[f"{(after - before) / 1e6:.1f} MB more in the end"] += 1
        if most is not None and self.before and peak - before > most:
            found.defects[f"strangers took {(peak - before) / 1e6:.2f} MB"] += 1
