"""Agents as MPI ranks: what a second rank gains, and what neighbours cost against all-reduce."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vpem.engines.engine import Engine
from vpem.errors import VpemWarning
from vpem.fits.rows import fit_em
from vpem.fits.spread import fit_spread
from vpem.network.graph import make_graph
from vpem.network.partition import contiguous, evenly
from vpem.sums.connect import connect, connect_workers, spread, spread_workers

from .measure import ROOT, Options, compare

ROWS = {"tiny": 2_000, "small": 100_000, "medium": 300_000, "full": 1_000_000}
WIDTH, K = 16, 3  # features of each of two agents; components
ROUNDS = 10
CHUNK = 50_000
FIT: dict[str, Any] = {"n_components": K, "init": [0, 1, 2], "tol": 0.0, "n_threads": 1}


def launcher() -> str | None:
    """Return the mpiexec beside the interpreter, or another."""
    beside = Path(sys.executable).parent
    return shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")


def launched(n_ranks: int, *words: object) -> Callable[[], float]:
    """Return a contender: seconds that ranks of their own measured."""

    def seconds() -> float:
        command = [launcher() or "", "-n", str(n_ranks), sys.executable, "-m", "benchmarks.mpi"]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [*command, *map(str, words)], capture_output=True, text=True, check=True, cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}, timeout=600,
        )  # fmt: skip
        return float(done.stdout)

    return seconds


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield seconds of an iteration with 1 and 2 ranks, and of a round and an all-reduce."""
    m = ROWS[options.size]
    absent = {} if launcher() else {"mpiexec": "not found; try: pip install mpich mpi4py"}
    one = "vpem, 1 rank"
    ranks = {one: launched(1, "iteration", m), "vpem, 2 ranks": launched(2, "iteration", m)}
    case = f"VP-EM, {m:,} x {2 * WIDTH}, 2 agents, K={K}, star, 1 thread a rank"
    yield compare(options, "strong scaling", case, one, {} if absent else ranks, absent)
    ranks = {one: launched(1, "rows", m), "vpem, 2 ranks": launched(2, "rows", m)}
    case = f"distributed EM, {m:,} x {WIDTH} over 2 workers, K={K}, star, 1 thread a rank"
    yield compare(options, "strong scaling", case, one, {} if absent else ranks, absent)
    base = "vpem, all-reduce"
    sums = {base: launched(2, "all-reduce", m), "vpem, a round": launched(2, "round", m)}
    case = f"{m:,} x {K} float64 of each of 2 ranks, in chunks of {CHUNK:,} rows"
    yield compare(options, "a sum", case, base, {} if absent else sums, absent)


def an_iteration(engine: Engine, run: Callable[[int], Any], *counts: int) -> float:
    """Seconds an iteration, by the last two of runs of so many; those before them warm up."""
    taken = []
    for count in counts:
        engine.barrier()
        began = time.perf_counter()
        run(count)
        taken.append(time.perf_counter() - began)
    return max(taken[-1] - taken[-2], 1e-9) / (counts[-1] - counts[-2])


def iteration(engine: Engine, m: int) -> float:
    """Seconds an iteration, of two agents on however many ranks there are."""
    network = spread(connect(make_graph("star", 2), contiguous(2 * WIDTH, 2), hops=0), engine)
    labels = np.random.default_rng(0).integers(K, size=m)
    parts = [
        np.random.default_rng(1 + agent).standard_normal((m, WIDTH)) + labels[:, None]
        for agent in network.agents.own
    ]
    X = np.concatenate(parts, axis=1) if parts else None
    return an_iteration(engine, lambda n: fit_spread(X, network, max_iter=n, **FIT), 1, 2, 6)


def rows_iteration(engine: Engine, m: int) -> float:
    """Seconds an iteration of distributed EM, of two workers on however many ranks there are."""
    workers = evenly(m, 2)
    network = spread_workers(connect_workers(make_graph("star", 2)), engine)
    parts = []
    for worker in network.agents.own:
        rng = np.random.default_rng(1 + worker)
        rows = len(workers.rows[worker])
        parts.append(rng.standard_normal((rows, WIDTH)) + rng.integers(K, size=(rows, 1)))
    X = np.concatenate([np.empty((0, WIDTH)), *parts])
    return an_iteration(engine, lambda n: fit_em(X, workers, network, max_iter=n, **FIT), 1, 2, 12)


def one_sum(engine: Engine, what: str, m: int) -> float:
    """Seconds of one round, or of one all-reduce, of two ranks' terms."""
    rounds = what == "round"
    how: dict[str, Any] = {"n_rounds": ROUNDS, "acceleration": "none"} if rounds else {}
    graph = make_graph("path" if rounds else "star", 2)
    total = spread_workers(connect_workers(graph, **how), engine).total
    terms = np.ones((len(total.holders.own), m, K))
    chunks = [slice(start, start + CHUNK) for start in range(0, m, CHUNK)]
    for _ in range(2):  # the first warms up
        engine.barrier()
        began = time.perf_counter()
        for _ in range(1 if rounds else ROUNDS):
            for _ in total.flow(iter(chunks), lambda rows: terms[:, rows]):
                pass
        seconds = time.perf_counter() - began
    return seconds / ROUNDS


def main(what: str, m: str) -> None:
    """Measure as a rank; the first prints the seconds."""
    from vpem.engines.mpi import MpiEngine

    warnings.simplefilter("ignore", VpemWarning)
    engine, measures = MpiEngine(), {"iteration": iteration, "rows": rows_iteration}
    one = measures.get(what) or partial(one_sum, what=what)
    seconds = one(engine, m=int(m))
    if engine.rank == 0:
        print(seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
