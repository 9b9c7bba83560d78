"""Hubs that are chosen by the likelihood, and who has to show features to whom for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vpem._core.balls import ball
from vpem.errors import InputError, Setting
from vpem.network.graph import Graph
from vpem.network.hubs import Hub, find_hubs
from vpem.network.ledger import Ledger
from vpem.network.routes import NUMBER_BYTES, Routes, charge_features, charge_flooding, find_routes
from vpem.network.schema import Report

VALUE_BYTES = 8
"""Of a feature of a row, or a number of a moment, on its way."""


@dataclass(frozen=True)
class LikelyHubs:
    """Hubs that were chosen by what they gain, and how.

    ``gain`` is by how much the penalized log-likelihood (nats per sample) rises at least above that
    of no hub of several agents; None where hubs are foretold without data (`foretell_hubs`).
    """

    hubs: list[Hub]  # each agent in exactly one
    gain: float | None
    meetings: list[Hub]  # who has shown features to whom (`find_meetings`)
    sent: Ledger  # what it took to find them
    first: Report = field(default_factory=dict)  # log_likelihood, n_iter of no hops

    def describe(self) -> Report:
        """Describe the choice in values that JSON can hold."""
        shown = [{"root": one.root, "agents": list(one.agents)} for one in self.meetings]
        return {"by": "likelihood", "gain": self.gain, "first_fit": self.first, "shown": shown}


def find_meetings(graph: Graph, hops: int) -> list[Hub]:
    """Return where features of every two agents meet that could share a hub.

    Two could if some node is within ``hops`` of both. Nodes with most others near come first; each
    is shown features of those that no node before it has seen together with another of them:
    ``root`` sees the features of all ``agents``, itself among them.
    """
    near = [within(graph, hops, node) for node in range(graph.n_agents)]
    met: set[tuple[int, int]] = set()
    found = []
    for root in sorted(range(graph.n_agents), key=lambda node: (-len(near[node]), node)):
        new = {
            (one, other)
            for one in near[root]
            for other in near[root]
            if one < other and (one, other) not in met
        }
        if not new:
            continue
        shown = sorted({root, *(agent for pair in new for agent in pair)})
        met.update((one, other) for one in shown for other in shown if one < other)
        found.append(Hub(root, tuple(shown)))
    return found


def route_to(graph: Graph, hops: int, root: int) -> Routes:
    """Return shortest ways to an agent from all within so many hops of it."""
    return find_routes(graph, [Hub(root, tuple(within(graph, hops, root)))])


def charge_meetings(
    ledger: Ledger,
    graph: Graph,
    hops: int,
    meetings: Sequence[Hub],
    widths: Sequence[int],  # features of each agent
    sizes: tuple[int, int],  # rows, and covariances (K; 1: tied)
) -> None:
    """Count features on their way to where they meet, and moments on their way to all."""
    n_samples, n_copies = sizes
    record = 0
    for meeting in meetings:
        shown = [w if a in meeting.agents else 0 for a, w in enumerate(widths)]
        charge_features(ledger, route_to(graph, hops, meeting.root), shown, n_samples, VALUE_BYTES)
        width = sum(shown)
        record += NUMBER_BYTES + VALUE_BYTES * n_copies * (1 + width + width * (width + 1) // 2)
    charge_flooding(ledger, graph, record)


def foretell_hubs(
    graph: Graph, hops: int, widths: Sequence[int], sizes: tuple[int, int], seed: int
) -> LikelyHubs:
    """Return hubs by size and what it takes to choose by likelihood, but for the first fit.

    Parameters are those of `find_hubs` and `charge_meetings`.
    """
    meetings, sent = find_meetings(graph, hops), Ledger(graph)
    charge_meetings(sent, graph, hops, meetings, widths, sizes)
    return LikelyHubs(find_hubs(graph, hops, seed), None, meetings, sent)


def hubs_of(graph: Graph, hops: int, seed: int, way: str, chosen: LikelyHubs | None) -> list[Hub]:
    """Return hubs by size, or those that were chosen; InputError if they should have been."""
    if way == "size":
        return find_hubs(graph, hops, seed)
    if chosen is None:
        raise InputError(
            Setting("hubs", way), " is by the data, of which connect sees none; call "
            "vpem.fits.likely_hubs.connect_by_likelihood, or take ", Setting("hubs", "size"),
        )  # fmt: skip
    return chosen.hubs


def within(graph: Graph, hops: int, node: int) -> list[int]:
    """Agents within so many hops of one."""
    n = graph.n_agents
    stamp, queue = np.zeros(n, np.int32), np.empty(n, np.int32)
    size = ball(*graph.adjacency, node, min(hops, n), stamp, 1, queue)
    return sorted(queue[:size].tolist())
