"""How times are taken: interleaved, so that a slow minute of the machine is shared by all."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

import vpem

OWN = ("vpem", "kernel")
"""Contenders of these names are ours; ``--once`` runs no others."""

VPEM = ("-c", "from vpem_cli import main; raise SystemExit(main())")
"""The command vpem as arguments of Python, wherever its script was installed."""

DGEMM_SIZE = 768

ROOT = Path(__file__).parents[1]

# Linux counts the parent's memory at the fork as the child's own: a small process stands between.
BETWEEN = """
import os, subprocess, sys, time
began = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
printed = child.stdout.read()
_, status, usage = os.wait4(child.pid, 0)
unit = 1 if sys.platform == "darwin" else 1024
print(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, unit * usage.ru_maxrss,
      os.waitstatus_to_exitcode(status))
sys.stdout.flush()
sys.stdout.buffer.write(printed)
"""


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    size: str = "small"
    repeats: int = 5
    threads: int = 1
    once: bool = False
    update: bool = False
    pulsars: Path | None = None


@contextmanager
def stopwatch(into: list[float]) -> Iterator[None]:
    """Append the seconds that the body takes."""
    began = time.perf_counter()
    yield
    into.append(time.perf_counter() - began)


def iteration(run: Callable[[int], Any], few: int, many: int) -> Callable[[], float]:
    """Return a contender: seconds an iteration, from runs of few and of many iterations.

    What a run does once (checks, set-up, a last E-step) is in both and falls out.
    """

    def seconds() -> float:
        taken: list[float] = []
        for count in (few, many):
            with stopwatch(taken):
                run(count)
        return max(taken[1] - taken[0], 1e-9) / (many - few)  # noise can be larger at tiny sizes

    return seconds


def call(function: Callable[[], Any]) -> Callable[[], float]:
    """Return a contender: seconds a call."""

    def seconds() -> float:
        taken: list[float] = []
        with stopwatch(taken):
            function()
        return taken[0]

    return seconds


def processor(function: Callable[[], Any]) -> Callable[[], float]:
    """Return a contender: seconds of this thread's processor a call, whoever else is running."""

    def seconds() -> float:
        began = time.thread_time()
        function()
        return time.thread_time() - began

    return seconds


def compare(
    options: Options,
    name: str,
    case: str,
    base: str,
    contenders: dict[str, Callable[[], float]],
    absent: dict[str, str] | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """Run each contender once to warm up, then ``repeats`` rounds of all; return one result.

    Every round begins with another contender, so that none always runs on the other's cache.
    ``times_as_fast`` is the median over rounds of base / contender. A peer that fails is among the
    absent, with the reason.
    """
    names, absent = list(contenders), dict(absent or {})
    if options.once:
        names = [who for who in names if who.startswith(OWN)]
        base = base if base in names else next(iter(names), base)
    seconds: dict[str, list[float]] = {who: [] for who in names}
    warm = 0 if options.once or options.size == "tiny" else 1
    for turn in range(warm + (1 if options.once else options.repeats)):
        first = turn % max(len(names), 1)
        for who in names[first:] + names[:first]:
            if who in absent:
                continue
            try:
                taken = contenders[who]()
            except Exception as error:
                if who.startswith(OWN):
                    raise
                absent[who] = failure(error)
                del seconds[who]
                continue
            if turn >= warm:
                seconds[who].append(taken)
    return summary(name, case, base, seconds, absent, facts)


def failure(error: Exception) -> str:
    """Say in a line that something failed, and why."""
    return f"it failed: {' '.join(str(error).split())[-200:] or type(error).__name__}"


def summary(
    name: str,
    case: str,
    base: str,
    seconds: dict[str, list[float]],
    absent: dict[str, str] | None,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Return a result: what each contender took in each round, and base / contender over rounds."""
    if base not in seconds:
        base = next(iter(seconds), base)
    ratios = {
        who: [b / max(t, 1e-12) for b, t in zip(seconds[base], own, strict=True)]
        for who, own in seconds.items()
    }
    return {
        "name": name, "case": case, "base": base, "absent": absent or {}, "facts": facts,
        "median": {who: statistics.median(own) for who, own in seconds.items()},
        "times_as_fast": {who: statistics.median(own) for who, own in ratios.items()},
        "load": os.getloadavg()[0], "seconds": seconds,
    }  # fmt: skip


class Usage(NamedTuple):
    """What a command took: by the clock, of processors (seconds), peak memory (bytes), printed."""

    seconds: float
    processors: float
    peak: float
    printed: str


def usage(*command: str) -> Usage:
    """Run a command in a process of its own, from the folder of the project."""
    done = subprocess.run(
        [sys.executable, "-c", BETWEEN, *command], capture_output=True, text=True, cwd=ROOT,
        check=False,
    )  # fmt: skip
    head, _, printed = done.stdout.partition("\n")
    *taken, code = map(float, head.split())
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code:.0f}: {done.stderr[-500:]}")
    return Usage(*taken, printed)


@cache
def _square(dtype: str) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((DGEMM_SIZE, DGEMM_SIZE)).astype(dtype)


def dgemm(dtype: Any = np.float64) -> Callable[[], float]:
    """Return a contender: seconds a flop of a square matrix product on one thread.

    Together with the number of threads this is the arithmetic limit.
    """
    square = _square(np.dtype(dtype).name)

    def seconds() -> float:
        taken: list[float] = []
        with threadpool_limits(1):
            for _ in range(3):
                with stopwatch(taken):
                    square @ square
        return min(taken) / (2 * DGEMM_SIZE**3)

    return seconds


@cache
def r_packages() -> dict[str, str]:
    """Versions of R and of its packages that are peers."""
    names = ("nlme", "lme4", "mclust")
    if shutil.which("Rscript") is None:
        return dict.fromkeys(("R", *names), "absent")
    ask = "for (one in commandArgs(TRUE)) cat(one, if (requireNamespace(one, quietly = TRUE)) "
    ask += "as.character(packageVersion(one)) else 'absent', '\\n')"
    done = subprocess.run(
        ["Rscript", "-e", ask, "base", *names], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return dict.fromkeys(("R", *names), "absent")
    found = dict(line.split() for line in done.stdout.splitlines())
    return {"R": found.pop("base"), **found}


def environment() -> dict[str, Any]:
    """Return what a reader must know to compare the numbers with others."""
    from vpem._core.sweep import instruction_set

    model = platform.processor() or platform.machine()
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        names = [line for line in facts.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    packages = {"vpem": vpem.__version__}
    for name in ("numpy", "scipy", "scikit-learn", "daal4py", "pyarrow", "pandas", "pynlme"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = "absent"
    return {
        "processor": model,
        "processors": os.cpu_count(),
        "instructions": instruction_set(),
        "load_before": os.getloadavg()[0],
        "system": platform.system(),
        "python": platform.python_version(),
        **packages,
        **r_packages(),
    }
