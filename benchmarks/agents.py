"""The paper's scale: 100 agents with one feature each, on graphs, against one block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .measure import Options, call, compare
from .problems import exact, mixture_rows, network, one_block, sweep_once

SIZES = {"tiny": (600, 20), "small": (6_000, 100), "medium": (30_000, 100), "full": (150_000, 100)}
GRAPHS = {"dense": 31, "sparse": 9.7}


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield the graphs with 1 hop, then 0 hops, each in the same run as one block."""
    m, n_agents = SIZES[options.size]
    k, threads = 3, options.threads
    X = mixture_rows(m, n_agents, k)
    joined = {"vpem, one block": one_block(n_agents)}
    facts: dict[str, Any] = {"threads": threads}
    for name, degree in GRAPHS.items():
        hubs = network(n_agents, "geometric", hops=1, mean_degree=min(degree, n_agents - 1))
        joined[f"vpem, {name}, 100 rounds"] = hubs
        joined[f"vpem, {name}, exact sums"] = exact(hubs)
        facts[name] = {"blocks": hubs.blocks.widths.tolist(), "roots": hubs.total.n_roots}
    alone = network(n_agents, "geometric", mean_degree=min(31, n_agents - 1))
    joined["vpem, 0 hops, roots' own"] = alone
    joined["vpem, 0 hops, exact sums"] = exact(alone)
    timed = {who: call(sweep_once(X, how, k, threads)) for who, how in joined.items()}
    size = f"{m:,} x {n_agents}, K = {k}, {threads} thread(s)"
    yield compare(options, "agents", size, "vpem, one block", timed, **facts)
