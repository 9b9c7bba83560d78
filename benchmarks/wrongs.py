"""What may go wrong among the members of a study: each lets one thing happen to a walk."""

from __future__ import annotations

import base64
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from vpem.engines.tls.server import free_port

from .lines import Listener, other_clock, proxy
from .walk import PARTIES, SERVER, Walk, commands, share

OTHERS = (SERVER, "clinic", "imaging")
SOON = ("--timeout", 15)
"""For members who wait in vain."""
LONG = ("--max-iter", 100_000)
"""For runs that are to end in their midst."""
DAY = 86400


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


def stopped(seconds: float, *more: object) -> Callable[[Walk], None]:
    """Return what lets lab's process stand still for a while."""

    def happens(walk: Walk) -> None:
        walk.begin(*more)
        walk.until("lab")
        walk.send("lab", signal.SIGSTOP)
        time.sleep(seconds)
        walk.send("lab", signal.SIGCONT)

    return happens


def killed(*names: str) -> Callable[[Walk, random.Random], None]:
    """Return what kills one of these members at a random moment, and begins it again."""

    def happens(walk: Walk, rng: random.Random) -> None:
        name = rng.choice(names)
        walk.begin()
        if rng.random() < 0.7:  # else while members meet
            walk.until("lab")
        time.sleep(rng.uniform(0.0, 5.0))
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
