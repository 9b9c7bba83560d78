"""Members of a study on this machine, in folders of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vpem.files.studies.logs import log_beside, read_log

from .studies import make_study

PORT = 4433
"""Where members with an address listen."""
VPEM = Path(sys.executable).with_name("vpem")
Report = dict[str, Any]


@dataclass
class Ended:
    """A process of a member that has ended: its exit code, its report, what it said."""

    name: str
    code: int
    out: str
    err: str

    @property
    def report(self) -> Report:
        """What it printed, as JSON."""
        if self.code not in (0, 3):
            raise RuntimeError(f"{self.name} ended with {self.code}: {self.err}")
        found: Report = json.loads(self.out)
        return found


class Members:
    """A study 'bench' whose members have a folder each, the server of a star first.

    ``shape`` has rows, features and components of the data; ``within``, given a member's number and
    the words of a command, the words that run it where the member lives.
    """

    def __init__(
        self,
        home: Path,
        addresses: Sequence[str],
        options: Report,
        shape: tuple[int, int, int],
        within: Callable[..., list[str]],
    ) -> None:
        self.home, self.options, self._within = home, options, within
        star = options["topology"] == "star"
        self.names = [f"party{n}" for n in range(len(addresses) - star)]
        if star:
            self.names.insert(0, "hub")
        rows, features, components = shape
        self.data = home / "all.h5"
        run("data", "simulate", "-n", rows, "-d", features, "-k", components, "--overlap", 0.2,
            "--agents", len(addresses) - star, "-q", "-o", self.data)  # fmt: skip
        run("data", "split", self.data, "-q", "-o", home / "cut")
        self._agree(addresses, star)

    def _agree(self, addresses: Sequence[str], star: bool) -> None:
        dialled = {
            name: (address, PORT) if name == "hub" or not star else None
            for name, address in zip(self.names, addresses, strict=True)
        }
        # All files have the same rows in the same order; workers' have rows of their own.
        aligned = {} if self.options.get("split") == "rows" else {"align": "none"}
        fit = aligned | self.options
        make_study(self.home, dialled, {"fit": fit}, name="bench", timeout=60.0)
        for name in self.names[star:]:
            cut = self.home / "cut" / f"agent_{name.removeprefix('party')}.h5"
            cut.rename(self.folder(name) / f"{name}.h5")

    def folder(self, name: str) -> Path:
        """Where a member's files are."""
        return self.home / name

    def start(self, name: str, *words: object) -> subprocess.Popen[str]:
        """Begin `vpem fit` at a member."""
        own = [] if name == "hub" else [f"{name}.h5"]
        command = [VPEM, "fit", "--study", "bench.toml", "--as", name, *own, "--json", *words]
        return subprocess.Popen(
            self._within(self.names.index(name), *map(str, command)), cwd=self.folder(name),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip

    def fit(self, *words: object, timeout: float = 600.0) -> list[Ended]:
        """Run `vpem fit` at all members, and wait for them."""
        started = {name: self.start(name, *words) for name in self.names}
        return [end(name, process, timeout) for name, process in started.items()]

    def alone(self, *more: str) -> list[str]:
        """Return the words of the same fit of all the data in one place."""
        own = [f"--{name}={value}" for name, value in self.options.items()]
        return [str(VPEM), "fit", str(self.data), "--json", "-q", *own, *more]

    def simulated(self) -> Report:
        """Return the report of one process."""
        found: Report = json.loads(run(*self.alone()[1:]))
        return found

    def log(self, name: str) -> Report:
        """Return what the last run's log of a member comes to."""
        return read_log([log_beside(self.folder(name) / "bench.toml", name)], last_run=True)


def environment() -> dict[str, str]:
    """Return the variables of a member: one thread, which sleeps while it waits."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def run(*words: object) -> str:
    """Run vpem here, and return what it prints."""
    return output(VPEM, *words)


def output(*words: object) -> str:
    """Return what a command prints."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=environment())
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


def end(name: str, process: subprocess.Popen[str], timeout: float) -> Ended:
    """Wait for a member's process; one that does not end is killed, with the code -9."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    return Ended(name, process.returncode, out, err)


def numbers(report: Report) -> Report:
    """Return what a fit has found, of its report."""
    names = ("history", "log_likelihood", "mixing_weights", "n_iter", "converged", "init_rows")
    return {name: report[name] for name in names}
