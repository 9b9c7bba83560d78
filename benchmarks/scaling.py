"""How the time of an iteration grows with rows, features, components, agents and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from vpem import find_hubs, make_graph, mixing_matrix, mixing_rate
from vpem.sums.consensus import ConsensusSum

from .measure import Options, call, compare
from .peers import CASES, rows_of
from .problems import exact, mixture_rows, network, one_block, sweep_once

# What grows: the values it takes, and the problem (rows, features, K, agents of one feature).
SWEEPS: dict[str, tuple[Callable[[int], tuple[int, int, int, int]], dict[str, list[int]]]] = {
    "rows M": (lambda m: (m, 32, 4, 0), {
        "tiny": [500, 1000], "small": [5_000, 20_000, 80_000],
        "medium": [10_000, 40_000, 160_000], "full": [10_000, 100_000, 1_000_000]}),
    "features d": (lambda d: (5_000, d, 2, 0), {
        "tiny": [4, 8], "small": [8, 32, 128], "medium": [8, 32, 128, 256],
        "full": [8, 32, 128, 256, 512]}),
    "components K": (lambda k: (20_000, 32, k, 0), {
        "tiny": [2, 4], "small": [2, 8, 32], "medium": [2, 8, 32], "full": [2, 8, 32, 128]}),
    "agents N": (lambda n: (2_000, n, 3, n), {
        "tiny": [10, 20], "small": [10, 100, 1_000], "medium": [10, 100, 1_000, 10_000],
        "full": [10, 100, 1_000, 10_000]}),
}  # fmt: skip
WORK = {"features d": 2}
"""The time grows by this power of what grows; by 1 where nothing is said."""

NETWORK = {"tiny": 100, "small": 1_000, "medium": 10_000, "full": 10_000}


def growth(options: Options, what: str) -> dict[str, Any]:
    """Time one iteration at each value, and the power of growth between the last two."""
    problem, values = SWEEPS[what]
    timed = {}
    for value in values[options.size]:
        m, d, k, n_agents = problem(value)
        joined = exact(network(d)) if n_agents else one_block(d)
        timed[f"vpem, {value}"] = call(
            sweep_once(mixture_rows(m, d, k), joined, k, options.threads)
        )
    mixture_rows.cache_clear()
    points = values[options.size]
    size = f"(M, d, K, agents) = {problem(points[0])} ... {problem(points[-1])}"
    found = compare(options, f"growth with {what}", size, f"vpem, {points[0]}", timed, x=points)
    last = [found["median"][f"vpem, {value}"] for value in points[-2:]]
    power = np.log(last[1] / last[0]) / np.log(points[-1] / points[-2])
    found["facts"] |= {"power": float(power), "expected": WORK.get(what, 1)}
    return found


def threads(options: Options) -> Iterator[dict[str, Any]]:
    """One thread against all of them, on the cases of `peers` and on 100 agents."""
    for case, (_, d, k) in (CASES | {"100 agents": CASES["A"]}).items():
        m = rows_of("A" if case == "100 agents" else case, options.size)
        joined = one_block(d)
        if case == "100 agents":
            joined = network(d, "geometric", hops=1, mean_degree=31)
        for dtype in (np.float64, np.float32):
            rows = mixture_rows(m, d, k).astype(dtype, copy=False)
            runs = {n: sweep_once(rows, joined, k, n) for n in (1, options.threads)}
            one, all_ = runs[1](), runs[options.threads]()
            error = float(np.abs(one.covariances - all_.covariances).max())
            assert error < (1e-10 if dtype == np.float64 else 1e-3), error
            timed = {f"vpem, {n} thread(s)": call(run) for n, run in runs.items()}
            size = f"{case} {m:,} x {d}, K = {k}, {np.dtype(dtype)}"
            yield compare(options, "threads", size, "vpem, 1 thread(s)", timed, difference=error)


def setup(options: Options) -> dict[str, Any]:
    """What a network computes once: hubs, weights, operator, mixing rate."""
    n = NETWORK[options.size]
    graph = make_graph("small-world", n, seed=0, mean_degree=10)
    hubs, mixing = find_hubs(graph, 1), mixing_matrix(graph)
    rounds = {
        "vpem, hubs": lambda: find_hubs(graph, 1),
        "vpem, weights": lambda: mixing_matrix(graph),
        "vpem, mixing rate": lambda: mixing_rate(mixing),
        "vpem, operator": lambda: ConsensusSum(mixing, hubs, 100, n_threads=options.threads),
    }
    timed = {who: call(what) for who, what in rounds.items()}
    size = f"{n:,} agents, mean degree {graph.mean_degree:.3g}, {len(hubs)} hubs of 1 hop"
    found = compare(options, "set-up", size, "vpem, hubs", timed)
    return found | {"facts": {"together": sum(found["median"].values())}}


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield growth in each direction, threads, and the set-up of a large network."""
    for what in SWEEPS:
        yield growth(options, what)
    yield from threads(options)
    yield setup(options)
