"""What is sent before the first iteration: the graph, by flooding, and features, to their roots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpem._core.balls import hops_from
from vpem.network.distances import eccentricities
from vpem.network.graph import Graph
from vpem.network.hubs import Hub
from vpem.network.ledger import Ledger

NUMBER_BYTES = 4
"""Of the number of an agent."""


@dataclass(frozen=True)
class Routes:
    """The way from every agent to the root of its hub."""

    parent: NDArray[np.intp]  # (n_nodes,); a root is its own
    depth: NDArray[np.intp]  # (n_nodes,) hops to the root

    @property
    def leaves(self) -> NDArray[np.intp]:
        """Agents that are no roots, farthest first."""
        away = np.flatnonzero(self.depth > 0)
        return away[np.argsort(-self.depth[away], kind="stable")]

    def links_down(self, ledger: Ledger) -> NDArray[np.intp]:
        """Numbers of the links over which each leaf hears from its root, in their order."""
        found = [ledger.link(int(self.parent[leaf]), int(leaf)) for leaf in self.leaves]
        return np.array(found, dtype=np.intp)

    @property
    def hops(self) -> int:
        """Hops of the longest way."""
        return int(self.depth.max(initial=0))


def find_routes(graph: Graph, hubs: Sequence[Hub]) -> Routes:
    """Return shortest ways inside each hub; of several the one through the smallest numbers."""
    indptr, indices = graph.adjacency
    parent = np.arange(graph.n_nodes, dtype=np.intp)
    depth = np.zeros(graph.n_nodes, dtype=np.intp)
    inside = np.full(graph.n_nodes, -1, dtype=np.intp)
    for hub in hubs:
        members = np.array(sorted({hub.root, *hub.agents}), dtype=np.intp)
        if len(members) == 1:
            continue
        inside[members] = np.arange(len(members))
        parts = [indices[indptr[node] : indptr[node + 1]] for node in members]
        near = [inside[part][inside[part] >= 0].astype(np.int32) for part in parts]
        begin = np.concatenate([[0], np.cumsum([len(part) for part in near])]).astype(np.int32)
        ends = np.concatenate(near)
        steps, queue = np.empty(len(members), np.int32), np.empty(len(members), np.int32)
        hops_from(begin, ends, int(inside[hub.root]), steps, queue)
        for place, node in enumerate(members):
            if steps[place] > 0:
                closer = near[place][steps[near[place]] == steps[place] - 1]
                parent[node], depth[node] = members[closer[0]], steps[place]
        inside[members] = -1
    return Routes(parent, depth)


def charge_hubs(ledger: Ledger, graph: Graph) -> None:
    """Count the flooding by which agents learn the graph, on which each then finds the same hubs.

    In the first round every agent sends its neighbours its number and theirs; in each round after
    it passes on to all its neighbours what it heard for the first time in the round before.
    """
    charge_flooding(ledger, graph, NUMBER_BYTES * (graph.n_nodes + 2 * graph.n_edges))


def charge_flooding(ledger: Ledger, graph: Graph, record: int) -> None:
    """Count how all hear of what agents have, so many bytes together."""
    heard = eccentricities(graph) + 1  # rounds in which an agent has something new to pass on
    ledger.send("flooding", 0, times=heard[ledger.sources], rounds=int(heard.max()))
    # Over all rounds every record goes over every link once.
    ledger.grow("flooding", record)


def charge_features(
    ledger: Ledger, routes: Routes, widths: Sequence[int], n_samples: int, itemsize: int
) -> None:
    """Count the features on their way from each agent to the root of its hub, hop by hop.

    ``widths`` are features of each agent; a row of one takes ``itemsize`` bytes.
    """
    messages = np.zeros(len(routes.parent), dtype=np.int64)
    values = np.zeros(len(routes.parent), dtype=np.int64)
    for node in routes.leaves:
        if node < len(widths) and widths[node]:
            messages[node] += 1
            values[node] += widths[node]
        if messages[node]:
            parent = routes.parent[node]
            link = ledger.link(int(node), int(parent))
            size = values[node] * n_samples * itemsize
            ledger.send("setup", 0, links=[link], times=messages[node])
            ledger.grow("setup", size, links=[link])
            if routes.depth[parent]:
                messages[parent] += messages[node]
                values[parent] += values[node]
    ledger.send("setup", 0, times=0, rounds=routes.hops)


def charge_answers(ledger: Ledger, routes: Routes, size: int) -> None:
    """Count how roots tell the agents of their hubs, hop by hop, what rows belong to."""
    ledger.send("labels", size, links=routes.links_down(ledger), rounds=routes.hops)
