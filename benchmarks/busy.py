"""Fits on one thread and on more, on the machine as it is and beside processes that never wait."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vpem import NotConvergedWarning, connect, fit_vpem, make_graph
from vpem.network.partition import contiguous

from .measure import VPEM, Options, call, compare
from .problems import mixture_rows

DATA = Path(__file__).parents[1] / "data" / "breast_cancer.h5"
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
LONG_ENOUGH = 0.1
"""Seconds that a contender takes at least, so that some slices of the system's clock are in it."""

Fit = tuple[int, int, int, int, str, int, dict[str, Any]]
"""Rows, features, components, agents, topology, iterations, other options."""

COMMAND: Fit = (0, 0, 0, 0, "", 0, {})
"""The command ``vpem fit``."""

TINY: tuple[Fit, ...] = ((300, 8, 2, 4, "star", 2, {}),)
SMALL: tuple[Fit, ...] = (
    COMMAND,
    (569, 30, 2, 3, "star", 100, {}),
    (569, 30, 2, 10, "cycle", 50, {}),
    (569, 30, 2, 3, "star", 30, {"compress": "natural:12bits"}),
    (17_898, 8, 4, 1, "star", 40, {}),
    (17_898, 8, 4, 8, "cycle", 20, {}),
)
MEDIUM: tuple[Fit, ...] = (
    (60_000, 30, 6, 3, "star", 6, {}),
    (60_000, 30, 6, 3, "star", 10, {"covariance_type": "diag"}),
)
LARGE: tuple[Fit, ...] = ((150_000, 100, 3, 1, "star", 2, {}),)
CASES = {
    "tiny": TINY, "small": SMALL, "medium": SMALL + MEDIUM, "full": SMALL + MEDIUM + LARGE
}  # fmt: skip


@contextmanager
def beside(n: int) -> Iterator[None]:
    """Run the body beside so many processes that compute all the time, and end with it."""
    running = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(n)]
    try:
        time.sleep(0.2 if n else 0.0)
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def fits(case: Fit) -> Callable[[int], Callable[[], None]]:
    """Whole fits of a case from its first rows, as many as take long enough, by threads."""
    m, d, k, n_agents, topology, n_iter, options = case
    X = mixture_rows(m, d, k, 1.0)
    graph = make_graph(topology, n_agents)
    sums = {name: options[name] for name in options if name == "compress"}
    how = {name: options[name] for name in options if name != "compress"}
    joined = connect(graph, contiguous(d, n_agents), hops=int(not graph.has_server), **sums)

    def run(threads: int, repeats: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConvergedWarning)
            for _ in range(repeats):
                fit_vpem(
                    X, joined, n_components=k, init=list(range(k)), tol=0.0, max_iter=n_iter,
                    n_threads=threads, **how,
                )  # fmt: skip

    run(1, 1)
    repeats = max(1, round(LONG_ENOUGH / call(lambda: run(1, 1))())) if case not in TINY else 1
    return lambda threads: lambda: run(threads, repeats)


def command(folder: str, threads: int) -> Callable[[], None]:
    """The command ``vpem fit`` as a whole, start of Python included."""
    words = ["fit", str(DATA), "--threads", str(threads), "-o", f"{folder}/{threads}.h5", "--force"]

    def run() -> None:
        subprocess.run([sys.executable, *VPEM, *words], check=True, capture_output=True)

    return run


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield seconds on one thread and on more: beside nobody, and beside busy processes."""
    counts = (1, max(2, options.threads))
    with TemporaryDirectory() as folder:
        for case in CASES[options.size]:
            if case == COMMAND:
                name, made = f"vpem fit {DATA.name}", partial(command, folder)
            else:
                m, d, k, n_agents, topology, _, more = case
                size = (f"{m:,} x {d}", f"K = {k}", f"{topology} of {n_agents}")
                name, made = ", ".join([*size, *more.values()]), fits(case)
            timed = {f"vpem, {n} thread(s)": call(made(n)) for n in counts}
            for n_busy in (0, os.cpu_count() or 1):
                with beside(n_busy):
                    where = f"{name}, beside {n_busy} busy processes"
                    yield compare(options, "busy", where, next(iter(timed)), timed)
