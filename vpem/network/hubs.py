"""Which agents share their features: h-hop clustering of a graph into hubs."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vpem._core.balls import ball
from vpem.checks import check_int
from vpem.errors import VpemWarning
from vpem.network.graph import Graph, check_seed


@dataclass(frozen=True)
class Hub:
    """Agents that send their features to one of them."""

    root: int  # one of the agents, or the server of a star
    agents: tuple[int, ...]  # ascending; with the root, unless it is a server


def find_hubs(
    graph: Graph, hops: int, seed: int | np.random.Generator = 0, *, warn: bool = True
) -> list[Hub]:
    """Split the agents of a graph into hubs (Valdeira et al., section 6, "Graph Clustering").

    Over and over, the node with most nodes within ``hops`` hops becomes a root, and it and those
    nodes become a hub and leave the graph; distances are taken in what is left of the graph.

    Parameters
    ----------
    graph : Graph
        The agents and who talks to whom.
    hops : int
        How far features may travel, at least 0. With 0 every agent is a hub of its own.
    seed : int or Generator
        Decides between nodes with equally many others near: in each search they are ranked by one
        random order of the nodes.
    warn : bool
        Whether to warn where there is but one.

    Returns
    -------
    list of Hub
        The hubs in the order in which they left the graph (with ``hops = 0``, where all nodes are
        equal, in the order of the agents). Each agent is in exactly one.

    Raises
    ------
    InputError
        If ``hops`` is not an integer of at least 0.

    Warns
    -----
    VpemWarning
        If one node receives the features of all agents.

    Notes
    -----
    What a node has within reach only shrinks as others leave, so its last count is an upper bound
    and only nodes at the top of a heap of bounds are counted again: the result is that of counting
    all nodes each time.
    """
    hops = check_int("hops", hops, least=0)
    rng = check_seed(seed)
    n = graph.n_agents
    if hops == 0:
        return [Hub(agent, (agent,)) for agent in range(n)]
    hubs = [Hub(n, tuple(range(n)))] if graph.has_server else _extract(graph, hops, rng)
    if warn:
        warn_of_one(graph, hubs, hops)
    return hubs


def warn_of_one(graph: Graph, hubs: Sequence[Hub], hops: int) -> None:
    """Warn where one node receives the features of all agents."""
    if len(hubs) == 1 and graph.n_nodes > 1:
        root = hubs[0].root
        known = root == graph.n_agents or graph.names
        who = graph.name(root) if known else f"agent {root}"
        warnings.warn(
            f"hops={hops} centralizes the data: {who} receives the raw features of every agent;"
            " take fewer hops to keep them apart",
            VpemWarning,
            stacklevel=3,
        )


def _extract(graph: Graph, hops: int, rng: np.random.Generator) -> list[Hub]:
    """Return the hubs of a graph without a server, for at least one hop."""
    n = graph.n_agents
    indptr, indices = graph.adjacency
    reach = min(hops, n)
    removed = np.iinfo(np.int32).max
    stamp = np.zeros(n, np.int32)
    queue = np.empty(n, np.int32)
    mark = 0
    left = n
    hubs = []
    rank = rng.permutation(n).tolist()
    heap = [(-n, rank[node], node) for node in range(n)]
    heapq.heapify(heap)
    while left:
        bound, order, node = heapq.heappop(heap)
        if stamp[node] == removed:
            continue
        if -bound > left:
            heapq.heappush(heap, (-left, order, node))
            continue
        mark += 1
        size = ball(indptr, indices, node, reach, stamp, mark, queue)
        if heap and heap[0] < (-size, order, node):
            heapq.heappush(heap, (-size, order, node))
            continue
        members = np.sort(queue[:size])
        stamp[members] = removed
        left -= size
        hubs.append(Hub(node, tuple(members.tolist())))
    return hubs
