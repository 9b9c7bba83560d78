"""What members of a study say when something goes wrong: one sentence each, and nothing is lost.

    python -m benchmarks.faults [FAULT ...] [--times 20] [--json]

Makes a study of three parties and a server by commands, each in a folder of its own, and lets every
fault happen to a copy: `vpem fit --study` runs at all four, and something is wrong at lab or on its
way. Prints exit code, seconds and last sentence of each, and ends with 1 if any is not as it
should be, a process does not end, has a traceback, or leaves half a file. A full disk needs root,
and a wrong clock a C compiler. ``--times`` is how often members are killed, and links cut.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .lines import http, ssh
from .walk import PARTIES, SERVER, Told, Walk, made
from .wrongs import (
    SOON,
    another_command,
    another_key,
    another_version,
    by_proxy,
    clock,
    cut,
    edited,
    ended,
    full,
    instead,
    killed,
    no_proxy,
    older_edition,
    revoked,
    server_last,
    stopped,
    swapped,
    twice,
    with_table,
    with_words,
)

WAITED = (4, "nothing has been heard of lab")
PRIVATE = (2, "lab ended: it cannot use its data")
Says = tuple[int, str]


@dataclass(frozen=True)
class Fault:
    """One of them: begins the members, and with which codes and sentences they should end.

    With ``same`` all end with the same bytes as without it.
    """

    happens: Callable[[Walk], None]
    lab: Says = (0, "")
    others: Says = (0, "")
    same: bool = False
    server: Says | None = None


FAULTS = {
    "nothing": Fault(lambda walk: walk.begin(), same=True),
    "another key": Fault(another_key, (2, "lab.key is not the key of lab.crt"), WAITED),
    "swapped keys": Fault(swapped, (2, "the certificate is that of clinic, not of lab"), WAITED),
    "revoked": Fault(revoked, (2, "does not know the certificate of lab")),
    "older edition": Fault(older_edition, (2, "lab has edition"), (2, "and lab has edition")),
    "edited study": Fault(edited, (2, "heart.toml has been changed since hub signed it"), WAITED),
    "clock a day behind": Fault(clock(-1), (2, "the clock"), WAITED),
    "expired": Fault(clock(1.5), (2, "was valid until"), WAITED),
    "closed port": Fault(instead(None), (4, "refuses connections"), (4, "nothing has been heard")),
    "SSH at the port": Fault(instead(ssh), (2, "answers with SSH"), (2, "answers with SSH")),
    "HTTP at the port": Fault(instead(http), (2, "with plain HTTP"), (2, "with plain HTTP")),
    "proxy without password": Fault(by_proxy("200 OK", "", "u:p"), (2, "a password"), WAITED),
    "proxy with password": Fault(by_proxy("200 OK", "u:p", "u:p"), same=True),
    "proxy refuses": Fault(by_proxy("403 Forbidden"), (2, "HTTP 403 Forbidden"), WAITED),
    "no proxy there": Fault(no_proxy, (4, "cannot be used"), (4, "nothing has been heard")),
    "other features": Fault(with_table(lambda text: text.replace("lab_1", "income", 1)),
                            (2, "there is no column 'lab_1'"), PRIVATE),
    "no id in common": Fault(with_table(lambda text: text.replace("\nP", "\nQ")),
                             (2, "no id in common"), (2, "no id in common")),
    "fewer rows": Fault(with_table(lambda text: text[: text.rindex("P")], "--align", "none"),
                        (2, "not aligned"), (2, "not aligned")),
    "other options": Fault(with_words("--seed", 2), (2, "lab has 2"), (2, "lab has 2")),
    "another command": Fault(another_command, (2, "lab 'vpem kmeans'"), (2, "lab 'vpem kmeans'")),
    "another version": Fault(another_version, (2, "lab has vpem 9.9.9"), (2, "lab has 9.9.9")),
    "full disk: model": Fault(full("--output"), (2, "No space left"), same=True),
    "full disk: server's model": Fault(full("--output", SERVER), same=True,
                                      server=(2, "No space left")),
    "full disk: labels": Fault(full("--labels"), (2, "No space left"), same=True),
    "full disk: checkpoint": Fault(full("--checkpoint"), (2, "No space left"), PRIVATE),
    "full disk: log": Fault(full("--log"), (2, "No space left"), PRIVATE),
    "Ctrl-C": Fault(ended("lab", signal.SIGINT), (130, "the state after"), (130, "the state")),
    "killed for good": Fault(ended("lab", signal.SIGKILL), (-9, ""), WAITED),
    "lab twice": Fault(twice, same=True),
    "server last": Fault(server_last, same=True),
    "stopped for 40 s": Fault(stopped(40), same=True),
    "stopped for too long": Fault(stopped(40, *SOON), (4, "nothing has been heard of hub"), WAITED),
}  # fmt: skip
REPEATED = {"party killed": killed(*PARTIES), "server killed": killed(SERVER)}


# ---- running -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What came of a fault."""

    fault: str
    told: dict[str, Told]
    wrong: list[str]


def judge(fault: Fault, walk: Walk, told: dict[str, Told], right: dict[str, str]) -> list[str]:
    """Return what is not as it should be."""
    wrong = []
    expected = {"lab": fault.lab, "lab again": (2, "another process"),
                SERVER: fault.server or fault.others}  # fmt: skip
    for name, one in told.items():
        code, says = expected.get(name, fault.others)
        fits = one.code == code or (one.code == 4 and name != "lab" and code == 2)
        heard = says in one.err or one.code == 4
        if not fits or not heard or "Traceback" in one.err:
            wrong.append(f"{name} ends with {one.code}")
        elif len(one.errors) != (code > 0):
            wrong.append(f"{name} has {len(one.errors)} sentences")
    apart = "lab/" if fault.lab[0] else "none"
    own = {name: value for name, value in walk.kept().items() if not name.startswith(apart)}
    if fault.same and own.items() - right.items():
        wrong.append("other bytes")
    if fault.same and not own:
        wrong.append("no results")
    left = [str(path) for path in walk.home.rglob(".vpem-*")]
    return wrong + [f"left {path}" for path in left]


@contextmanager
def members(study: Path) -> Iterator[Walk]:
    """Make the members of a copy of a study; their files go in the end."""
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(Path(folder, "walk"), study)
        try:
            yield walk
        finally:
            walk.end(0.0)
            for small in walk.home.glob("*/small"):
                if small.is_mount():
                    subprocess.run(["umount", str(small)], check=True)


def faults(names: Sequence[str], times: int) -> Iterator[Outcome]:
    """Let faults happen, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        plain, brief = made(Path(folder, "plain")), None
        with members(plain) as walk:
            FAULTS["nothing"].happens(walk)
            walk.end()
            right = walk.kept()
        for name in names:
            for number in range(times if name in REPEATED else 1):
                study = plain
                if name == "expired":
                    study = brief = brief or made(Path(folder, "brief"), days=1)
                with members(study) as walk:
                    fault = _begin(name, walk, times, random.Random(number))
                    told = walk.end()
                    wrong = judge(fault, walk, told, right)
                yield Outcome(name, told, wrong)


def _begin(name: str, walk: Walk, times: int, rng: random.Random) -> Fault:
    """Let one happen."""
    if name in REPEATED:
        REPEATED[name](walk, rng)
    elif name == "links cut":
        cut(walk, times, rng)
    else:
        FAULTS[name].happens(walk)
        return FAULTS[name]
    return Fault(lambda _: None, same=True)


def show(line: Outcome, as_json: bool) -> None:
    """Print what came of a fault."""
    if as_json:
        told = {name: [one.code, round(one.seconds, 1), one.last]
                for name, one in line.told.items()}  # fmt: skip
        print(json.dumps({"fault": line.fault, "told": told, "wrong": line.wrong}), flush=True)
        return
    print(f"{line.fault}: {', '.join(line.wrong) or 'as it should be'}", flush=True)
    for name, one in line.told.items():
        print(f"    {name:10} {one.code!s:>4} {one.seconds:6.1f} s  {one.last}", flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """Print a few lines for each fault."""
    every = [*FAULTS, *REPEATED, "links cut"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(every)}")
    parser.add_argument("--times", type=int, default=20, help="kills, and cuts of links")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    given = parser.parse_args(words)
    if unknown := [name for name in given.faults if name not in every]:
        parser.error(f"no fault called {unknown[0]!r}; there are {', '.join(every)}")
    right = True
    for line in faults(given.faults or every, given.times):
        right = right and not line.wrong
        show(line, given.json)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
