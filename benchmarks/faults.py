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
import base64
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .lines import Listener, free_port, http, other_clock, proxy, ssh
from .walk import PARTIES, SERVER, Told, Walk, commands, made, share

__all__ = ["FAULTS", "main"]

OTHERS = (SERVER, "clinic", "imaging")
SOON = ("--timeout", 15)
"""For members who wait in vain."""
LONG = ("--max-iter", 100_000)
"""For runs that are to end in their midst."""
DAY = 86400
WAITED = (4, "nothing has been heard of lab")
PRIVATE = (2, "lab ended: it cannot use its data")
Says = tuple[int, str]


@dataclass(frozen=True)
class Fault:
    """One of them.

    Attributes
    ----------
    happens : callable
        Given the members, who have not begun; begins them.
    lab, others : (int, str)
        Exit codes, and what the sentences say.
    server : (int, str) or None
        Of the server, where it says something else than others.
    same : bool
        Whether all end with the same bytes as without it.
    """

    happens: Callable[[Walk], None]
    lab: Says = (0, "")
    others: Says = (0, "")
    same: bool = False
    server: Says | None = None


# ---- keys, certificates, studies, clocks ---------------------------------------------------------


def another_key(walk: Walk) -> None:
    """Put a key into lab's folder that is not that of its certificate."""
    with tempfile.TemporaryDirectory() as folder:
        commands(Path(folder), ("party", "init", "--name", "lab"))
        shutil.copy(Path(folder, "lab.key"), walk.folder("lab"))
    walk.begin(*SOON)


def swapped(walk: Walk) -> None:
    """Put clinic's key and certificate where lab's were."""
    for end in ("key", "crt"):
        shutil.copy(walk.folder("clinic") / f"clinic.{end}", walk.folder("lab") / f"lab.{end}")
    walk.begin(*SOON)


def revoked(walk: Walk) -> None:
    """Revoke lab's certificate, which it has not heard of."""
    commands(walk.folder(SERVER), ("study", "revoke", "lab"))
    share(walk.home, "clinic", "imaging")
    walk.begin()


def older_edition(walk: Walk) -> None:
    """Let lab have the edition before the last."""
    commands(walk.folder(SERVER), ("study", "approve", "lab.request", "--yes"))
    share(walk.home, "clinic", "imaging")
    walk.begin(*SOON)


def edited(walk: Walk) -> None:
    """Change a number in lab's copy of the study."""
    study = walk.folder("lab") / "heart.toml"
    study.write_text(study.read_text().replace("seed = 1", "seed = 2", 1))
    walk.begin(*SOON)


def clock(days: float, who: str = "lab") -> Callable[[Walk], None]:
    """Return what sets a member's clock wrong by days; lab's certificate is valid for one."""

    def happens(walk: Walk) -> None:
        walk.begin(*SOON, environment={who: other_clock(walk.home, days * DAY)})

    return happens


# ---- the way -------------------------------------------------------------------------------------


def instead(answer: Callable[..., object] | None) -> Callable[[Walk], None]:
    """Return what lets something else answer at the server's address, or nothing."""

    def happens(walk: Walk) -> None:
        walk.line.close()
        if answer is not None:
            walk.beside.append(Listener(walk.address, answer))
        walk.begin(*SOON)

    return happens


def by_proxy(status: str, user: str = "", needs: str = "") -> Callable[[Walk], None]:
    """Return what lets lab go through a proxy that answers so."""

    def happens(walk: Walk) -> None:
        found = proxy(walk.address, status, base64.b64encode(needs.encode()))
        walk.beside.append(found)
        address = f"http://{user}{'@' * bool(user)}127.0.0.1:{found.port}"
        walk.begin(*SOON, environment={"lab": {"https_proxy": address}})

    return happens


def no_proxy(walk: Walk) -> None:
    """Name a proxy to lab that is not there."""
    address = f"http://127.0.0.1:{free_port()}"
    walk.begin(*SOON, environment={"lab": {"https_proxy": address}})


def with_table(change: Callable[[str], str], *more: object) -> Callable[[Walk], None]:
    """Return what changes lab's table."""

    def happens(walk: Walk) -> None:
        table = walk.folder("lab") / "lab.csv"
        table.write_text(change(table.read_text()))
        walk.begin(*SOON, *more)

    return happens


def with_words(*words: object) -> Callable[[Walk], None]:
    """Return what lets lab type something else."""
    return lambda walk: walk.begin(*SOON, own={"lab": words})


def another_command(walk: Walk) -> None:
    """Let lab run another command of the study."""
    walk.begin(*SOON, at=OTHERS)
    walk.start("lab", *walk.words("lab", "kmeans"), *SOON)


def another_version(walk: Walk) -> None:
    """Let lab have another version of vpem."""
    (walk.home / "sitecustomize.py").write_text("import vpem\nvpem.__version__ = '9.9.9'\n")
    walk.begin(*SOON, environment={"lab": {"PYTHONPATH": str(walk.home)}})


def full(option: str, who: str = "lab") -> Callable[[Walk], None]:
    """Return what lets a member write a file where there is no room."""

    def happens(walk: Walk) -> None:
        small = walk.folder(who) / "small"
        small.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(small)]
        subprocess.run(mount, check=True)
        (small / "fill").write_bytes(bytes(60 << 10))
        name = {"--output": "model.h5", "--labels": "labels.csv"}.get(option, "file")
        walk.begin(own={who: (option, f"small/{name}")})

    return happens


# ---- processes -----------------------------------------------------------------------------------


def ended(name: str, number: int) -> Callable[[Walk], None]:
    """Return what sends a signal to a member in the midst of a run."""

    def happens(walk: Walk) -> None:
        walk.begin(*LONG, *SOON)
        walk.until("lab")
        walk.send(name, number)

    return happens


def twice(walk: Walk) -> None:
    """Start lab once more while it runs."""
    walk.begin()
    walk.until("lab", "lab-heart.log")
    time.sleep(2.0)
    walk.start("lab", *walk.words("lab"), key="lab again")


def server_last(walk: Walk) -> None:
    """Let the server come last."""
    walk.begin(at=PARTIES)
    time.sleep(8.0)
    walk.begin(at=[SERVER])


def stopped(walk: Walk) -> None:
    """Let lab's process stand still for longer than signs of life may be missing."""
    walk.begin(*SOON)
    walk.until("lab")
    walk.send("lab", signal.SIGSTOP)
    time.sleep(30.0)
    walk.send("lab", signal.SIGCONT)


def killed(*names: str) -> Callable[[Walk, random.Random], None]:
    """Return what kills one of these members at a random moment, and begins it again."""

    def happens(walk: Walk, rng: random.Random) -> None:
        name = rng.choice(names)
        walk.begin()
        time.sleep(rng.uniform(0.5, 5.0))
        if walk.running[name].poll() is None:
            walk.kill(name)
            time.sleep(rng.uniform(0.0, 3.0))
            walk.start(name, *walk.words(name), "--resume-if-any", "--force")

    return happens


def cut(walk: Walk, times: int, rng: random.Random) -> None:
    """Cut all links at random moments of a run."""
    walk.begin()
    while walk.line.cuts < times and any(one.poll() is None for one in walk.running.values()):
        time.sleep(rng.uniform(0.02, 0.15))
        walk.line.cut()


FAULTS = {
    "nothing": Fault(lambda walk: walk.begin(), same=True),
    "another key": Fault(another_key, (2, "lab.key is not the key of lab.crt"), WAITED),
    "swapped keys": Fault(swapped, (2, "the certificate is that of clinic, not of lab"), WAITED),
    "revoked": Fault(revoked, (2, "does not know the certificate of lab")),
    "older edition": Fault(older_edition, (2, "lab has edition"), (2, "and lab has edition")),
    "edited study": Fault(edited, (2, "heart.toml has been changed since hub signed it"), WAITED),
    "clock a day behind": Fault(clock(-1), (2, "the clock"), WAITED),
    "expired": Fault(clock(1.5), (2, "was valid until"), WAITED),
    "server's clock ahead": Fault(clock(1.5, SERVER), (2, "clock"), (2, "has expired")),
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
    "stopped for 30 s": Fault(stopped, same=True),
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
                if name in ("expired", "server's clock ahead"):
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
