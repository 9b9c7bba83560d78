"""The nine agents of the VP-EM paper's supplement: their hubs, and what one hop buys."""

from __future__ import annotations

from typing import Any

import numpy as np

from vpem import connect, find_hubs
from vpem.files.examples import simulate
from vpem.network.graph import from_edges
from vpem.network.partition import contiguous

from ..problems import quietly
from .runs import fit

EDGES = ((2, 1), (2, 3), (2, 4), (2, 5), (5, 6), (6, 7), (6, 8), (5, 9))
"""Links of the supplement's Figure 1, agents numbered from 1."""

PAPER = ((2, (1, 2, 3, 4, 5)), (6, (6, 7, 8)), (9, (9,)))
"""Roots and agents of its hubs, for 1 hop."""

SIZES: dict[str, dict[str, Any]] = {
    "small": {"samples": 400, "ties": 20, "max_iter": 60},
    "full": {"samples": 20_000, "ties": 1000, "max_iter": 3000},
}
HOPS = (0, 1, 2)
WIDTH = 2
"""Features of each agent."""


def measure(options: Any) -> dict[str, Any]:
    """Find the hubs under many seeds of ties, and fit with hops from none to all."""
    size = SIZES[options.size]
    graph = from_edges(np.array(EDGES) - 1, n_agents=9)
    n = graph.n_agents
    hubs = set()
    for seed in range(size["ties"]):
        found = quietly(find_hubs, graph, 1, seed=seed)
        hubs.add(tuple((hub.root + 1, tuple(agent + 1 for agent in hub.agents)) for hub in found))
    d = WIDTH * n
    data, _ = simulate(size["samples"], d, 3, overlap=0.1, seed=9)
    start = np.random.default_rng(9).choice(len(data.X), 3, replace=False).tolist()
    runs = []
    for hops in HOPS:
        network = quietly(connect, graph, contiguous(d, n), hops=hops)
        one = fit(data.X, network, n_components=3, init=start, max_iter=size["max_iter"],
                  n_threads=options.threads)  # fmt: skip
        sent = one.communication["by_kind"]
        runs.append({
            "hops": hops,
            "hubs": [[hub.root, *hub.agents] for hub in network.hubs],
            "features": [list(map(int, block)) for block in network.blocks.features],
            "entries": int(sum(len(block) ** 2 for block in network.blocks.features)),
            "parameters": one.mixture.n_parameters,
            "log-likelihood": one.log_likelihood, "BIC": one.bic,
            "iterations": one.n_iter, "converged": one.converged,
            "rounds": network.n_rounds,
            "raw feature bytes": int(sent.get("setup", {"bytes": 0})["bytes"]),
            "bytes an iteration": int(
                (one.communication["bytes"] - sent.get("setup", {"bytes": 0})["bytes"])
                / one.n_iter
            ),
        })  # fmt: skip
    return {"size": options.size, **size, "hubs": sorted(hubs), "edges": graph.edges.tolist(),
            "n_agents": n, "n_features": d, "runs": runs}  # fmt: skip
