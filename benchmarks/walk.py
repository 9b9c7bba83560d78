"""A study of three parties and a server on this machine, made and run by commands only."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

import vpem_cli
from vpem.engines.tls.server import free_port

from .lines import Line, Listener

SERVER = "hub"
PARTIES = ("clinic", "lab", "imaging")
ALL = (SERVER, *PARTIES)
MAIN = "import vpem_cli; vpem_cli.main()"
FIT = ("-k", 3, "--align", "ids", "--hops", 0, "--split", "features", "--tol", 0, "--max-iter", 300,
       "--seed", 1, "--command", "fit", "--command", "kmeans", "--command", "select")  # fmt: skip
ROWS, KNOWN, WIDTH = 200, 190, 3
"""Rows, how many of them each party knows, features of each."""
LOOK = 0.05


@dataclass(frozen=True)
class Told:
    """What a process left behind: exit code, seconds, stderr; a code of None: it did not end."""

    code: int | None
    seconds: float
    err: str

    @property
    def errors(self) -> list[str]:
        """Its sentences of error."""
        begin = "vpem: error: "
        lines = self.err.splitlines()
        return [line.removeprefix(begin) for line in lines if line.startswith(begin)]

    @property
    def last(self) -> str:
        """The sentence it ended with."""
        return (self.errors or self.err.splitlines() or [""])[-1]


def commands(folder: Path, *lines: Sequence[object]) -> None:
    """Run commands of vpem in a folder, in this process."""
    with contextlib.chdir(folder):
        for words in lines:
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = vpem_cli.run(list(map(str, words)))
            if code:
                raise RuntimeError(f"{words}: {err.getvalue()}")


def made(home: Path, days: int = 365) -> Path:
    """Make a study in a new folder, with a folder in it for each member.

    The study has a port for the server that is not its door: what lies between is a `Line`.
    """
    for name in ALL:
        (home / name).mkdir(mode=0o700, parents=True)
        own = days if name == "lab" else 365
        commands(home / name, ("party", "init", "--name", name, "--days", own))
    _write_tables(home)
    address, door = free_port(), free_port()
    (home / "ports").write_text(f"{address} {door}")
    where = ("--star", f"127.0.0.1:{address}", "--listen", f"127.0.0.1:{door}", "--timeout", 60)
    commands(home / SERVER, ("study", "init", "heart", *where, *FIT))
    for name in PARTIES:
        share(home, name)
        asked = ("party", "request", "heart.toml", f"{name}.csv", "--id-column", "patient")
        commands(home / name, asked)
        shutil.copy(home / name / f"{name}.request", home / SERVER)
        commands(home / SERVER, ("study", "approve", f"{name}.request", "--yes"))
    share(home, *PARTIES)
    return home


def share(home: Path, *names: str) -> None:
    """Give some parties the study as the server has it."""
    for name in names:
        shutil.copy(home / SERVER / "heart.toml", home / name)


def _write_tables(home: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=ROWS)
    far = 1.2 * rng.choice([-1, 1], size=3 * WIDTH)
    X = rng.standard_normal((ROWS, 3 * WIDTH)) + labels[:, None] * far
    for turn, name in enumerate(PARTIES):
        columns = X[:, turn * WIDTH : (turn + 1) * WIDTH]
        with (home / name / f"{name}.csv").open("w") as file:
            print("patient", *(f"{name}_{j}" for j in range(WIDTH)), sep=",", file=file)
            for row in rng.permutation(ROWS)[:KNOWN]:
                values = (f"{value:.6f}" for value in columns[row])
                print(f"P{row:03d}", *values, sep=",", file=file)


class Walk:
    """The members of a study, a copy of that of `made`, who are about to run something."""

    def __init__(self, home: Path, study: Path) -> None:
        self.home = Path(shutil.copytree(study, home))
        self.address, door = map(int, (home / "ports").read_text().split())
        self.line = Line(self.address, door)
        # Shells let what runs in the background ignore Ctrl-C, and children inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.beside: list[Listener] = []
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._began: dict[str, float] = {}
        self._gone: list[subprocess.Popen[bytes]] = []

    def folder(self, name: str) -> Path:
        """Where a member is at home."""
        return self.home / name

    def words(self, name: str, command: str = "fit") -> list[object]:
        """Return what a member types."""
        words: list[object] = [command, "--study", "heart.toml", "--as", name]
        if name != SERVER:
            words += [f"{name}.csv", "--id-column", "patient", "-o", "model.h5"]
        if command == "fit":
            words += ["--checkpoint", "c.ckpt", "--checkpoint-every", 5]
            words += ["--labels", "labels.csv"] * (name != SERVER)
        return words

    def start(self, name: str, *words: object, key: str = "", **environment: str) -> None:
        """Begin a process of a member, to be known by a key."""
        key = key or name
        if key in self.running:
            self._gone.append(self.running[key])
        kept = {word: value for word, value in os.environ.items() if "_proxy" not in word.lower()}
        kept |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "NO_COLOR": "1"}
        with (self.home / f"{key}.err").open("w") as err:
            self.running[key] = subprocess.Popen(
                [sys.executable, "-c", MAIN, *map(str, words)], cwd=self.folder(name),
                env=kept | environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=err,
            )  # fmt: skip
        self._began[key] = time.monotonic()

    def begin(
        self, *more: object, at: Sequence[str] = ALL, command: str = "fit",
        own: dict[str, Sequence[object]] | None = None,
        environment: dict[str, dict[str, str]] | None = None,
    ) -> None:  # fmt: skip
        """Let some members run the same, with words and variables of their own."""
        for name in at:
            words = [*self.words(name, command), *more, *(own or {}).get(name, ())]
            self.start(name, *words, **(environment or {}).get(name, {}))

    def until(self, name: str, file: str = "c.ckpt", seconds: float = 60.0) -> None:
        """Wait until a file of a member is there."""
        ends = time.monotonic() + seconds
        while not (self.folder(name) / file).exists() and time.monotonic() < ends:
            time.sleep(LOOK)

    def send(self, name: str, number: int) -> None:
        """Send a signal to a member's process."""
        self.running[name].send_signal(number)

    def kill(self, name: str) -> None:
        """End a member's process as a power cut does."""
        self.running[name].kill()
        self.running[name].wait()

    def end(self, seconds: float = 120.0) -> dict[str, Told]:
        """Wait for all processes; those that do not end are killed."""
        left, taken, spent = dict(self.running), dict[str, float](), 0.0
        while left and spent < seconds:
            for key, process in list(left.items()):
                if process.poll() is not None:
                    taken[key] = time.monotonic() - self._began[key]
                    del left[key]
            time.sleep(LOOK)
            spent += LOOK
        for process in left.values():
            process.kill()
            process.wait()
        for listener in (self.line, *self.beside):
            listener.close()
        return {
            key: Told(
                None if key in left else process.returncode,
                taken.get(key, seconds),
                (self.home / f"{key}.err").read_text(),
            )
            for key, process in self.running.items()
        }

    def kept(self) -> dict[str, str]:
        """Return hashes of what parties have at the end: of models all but the report's seconds."""
        found = {}
        for name in PARTIES:
            for file in ("model.h5", "labels.csv"):
                path = self.folder(name) / file
                if path.exists():
                    content = _numbers(path) if path.suffix == ".h5" else path.read_bytes()
                    found[f"{name}/{file}"] = hashlib.sha256(content).hexdigest()
        return found


def _numbers(path: Path) -> bytes:
    """Return what a model holds beside its report."""
    found: list[bytes] = []

    def add(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and name != "report":
            found.append(name.encode() + np.asarray(item[()]).tobytes())

    with h5py.File(path) as file:
        file.visititems(add)
    return b"".join(found)
