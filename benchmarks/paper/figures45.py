"""Figures 4 and 5 of the VP-EM paper: 100 agents on dense and on sparse geometric graphs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from vpem import Graph, connect, make_graph
from vpem.files.examples import simulate
from vpem.network.partition import contiguous
from vpem.sums.connect import Network

from ..problems import exact, one_block
from .runs import ROUNDS, fit, kept, quiet_connect, sum_errors

SIZES: dict[str, dict[str, Any]] = {
    "small": {"agents": 24, "samples": 1_500, "networks": 2, "max_iter": 25,
              "degrees": {"dense": 8.0, "sparse": 3.0}},
    "full": {"agents": 100, "samples": 150_000, "networks": 5, "max_iter": 300,
             "degrees": {"dense": 31.0, "sparse": 9.7}},
}  # fmt: skip
"""Full: the paper's (N, M, five networks, mean degrees)."""

K = 3
OVERLAP = 0.05
TOL = 1e-6

JUDGED_ROUNDS = (5, 10, 20, 40, 60, 80, 100, 150, 200, 300, 400)

METHODS = ("EM", "block EM", "VP-EM, 100 rounds", "VP-EM, auto rounds")


def networks(graph: Graph) -> dict[str, Network]:
    """Return the same hubs with exact sums, with the paper's 100 rounds, and with enough."""
    held = contiguous(graph.n_agents, graph.n_agents)
    plain = quiet_connect(graph, held, hops=1, n_rounds=ROUNDS, acceleration="none")
    auto = connect(graph, held, hops=1)
    return dict(zip(METHODS[1:], (exact(plain), plain, auto), strict=True))


def facts(graph: Graph, network: Network, plain_rounds: int) -> dict[str, Any]:
    """Return what is told of a graph and its hubs."""
    sizes = [len(hub.agents) for hub in network.hubs]
    return {
        "mean degree": graph.mean_degree,
        "edges": graph.n_edges,
        "hubs": len(sizes),
        "largest hub": max(sizes),
        "singletons": sizes.count(1),
        "mixing rate": network.mixing_rate,
        "plain rounds to 1e-6": plain_rounds,
    }


def errors_by_rounds(graph: Graph) -> dict[str, list[float]]:
    """Return the consensus error ``max |C - 1|`` after numbers of rounds, plain and accelerated."""
    return {
        acceleration: [
            quiet_connect(graph, hops=1, n_rounds=s, acceleration=acceleration).consensus_error
            for s in JUDGED_ROUNDS
        ]
        for acceleration in ("none", "chebyshev")
    }


def one_network(size: dict[str, Any], number: int, threads: int) -> list[dict[str, Any]]:
    """Draw data, a start and a graph of each density; fit by every method."""
    n, m = size["agents"], size["samples"]
    data, _ = simulate(m, n, K, overlap=OVERLAP, seed=number)
    rows = np.random.default_rng([number, 45]).choice(m, K, replace=False).tolist()
    common = {"n_components": K, "init": rows, "tol": TOL, "max_iter": size["max_iter"],
              "n_threads": threads}  # fmt: skip
    central = kept(fit(data.X, one_block(n), **common), data.X)
    found = []
    for density, degree in size["degrees"].items():
        graph = make_graph("geometric", n, seed=number, mean_degree=degree)
        several = networks(graph)
        plain = connect(graph, contiguous(n, n), hops=1, acceleration="none").n_rounds
        first = number % len(several)
        curves = {"EM": central}
        for method in [*several][first:] + [*several][:first]:
            one = fit(data.X, several[method], **common)
            curves[method] = kept(one, data.X) | {"sum errors": sum_errors(one, data.X)}
            print(f"network {number}, {density}, {method}: {one.n_iter} iterations, "
                  f"{one.seconds:.0f} s", file=sys.stderr, flush=True)  # fmt: skip
        about = facts(graph, several[METHODS[2]], int(plain))
        found.append({"network": number, "density": density, **about, "fits": curves,
                      "errors by rounds": errors_by_rounds(graph)})  # fmt: skip
        if number == 0:
            found[-1]["drawn"] = {
                "positions": np.asarray(graph.positions).tolist(),
                "edges": graph.edges.tolist(),
                "hubs": [[hub.root, *hub.agents] for hub in several[METHODS[2]].hubs],
            }
    return found


def measure(options: Any) -> dict[str, Any]:
    """Fit every network by every method, from the same rows; methods take turns at being first."""
    size = SIZES[options.size]
    runs = []
    for number in range(size["networks"]):
        runs += one_network(size, number, options.threads)
    return {"size": options.size, **size, "runs": runs}
