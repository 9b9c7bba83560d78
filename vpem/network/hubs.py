"""Which agents share their features: hubs by h-hop clustering of a graph, or by the likelihood.

With them what is sent before the first iteration: the graph, by flooding, and features, to roots.
"""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vpem._core.balls import ball, hops_from
from vpem.checks import check_int
from vpem.errors import VpemWarning
from vpem.network.graph import Graph, check_seed
from vpem.network.ledger import Ledger
from vpem.network.schema import Report

NUMBER_BYTES = 4
"""Of the number of an agent."""

VALUE_BYTES = 8
"""Of a feature of a row, or a number of a moment, on its way."""

LEAST_GAIN = 1e-12
"""Of a move, below which it is rounding."""

FEW = 10
"""Agents all of whose partitions are looked at."""

WIDEST_BALL = 32
"""Agents near one, beyond which they are not tried one by one around it."""

Agents = frozenset[int]

HubOf = dict[int, Agents]
"""Hub of each agent."""

Move = tuple[list[Agents], list[Agents]]
"""Hubs that end, and those that take their agents."""


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
        If ``hops`` or ``seed`` is not an integer of at least 0.

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
    if not isinstance(seed, np.random.Generator):
        check_int("seed", seed, least=0)
    n = graph.n_agents
    if hops == 0:
        return [Hub(agent, (agent,)) for agent in range(n)]
    hubs = [Hub(n, tuple(range(n)))] if graph.has_server else []
    indptr, indices = graph.adjacency
    reach = min(hops, n)
    removed = np.iinfo(np.int32).max
    stamp = np.zeros(n, np.int32)
    queue = np.empty(n, np.int32)
    mark = 0
    left = 0 if graph.has_server else n
    rank = check_seed(seed).permutation(n).tolist() if left else []
    heap = [(-n, rank[node], node) for node in range(left)]
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
    if warn:
        warn_of_one(graph, hubs, hops)
    return hubs


def warn_of_one(graph: Graph, hubs: Sequence[Hub], hops: int) -> None:
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


@lru_cache(maxsize=4)
def diameter(graph: Graph) -> int:
    """Hops between the two nodes farthest apart in a connected graph; 0 for a single node.

    Along the links of a directed graph, where there and back may differ.
    """
    if graph.is_directed:  # a search from each: bounds need links that lead both ways
        n, (source, target) = graph.n_agents, graph.arcs
        indptr = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=n))])
        indices = target[np.argsort(source, kind="stable")].astype(np.int32)
        steps, queue = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
        starts = indptr.astype(np.int32)
        return max(int(hops_from(starts, indices, node, steps, queue)) for node in range(n))
    return int(eccentricities(graph, only_diameter=True).max())


@lru_cache(maxsize=4)
def eccentricities(graph: Graph, *, only_diameter: bool = False) -> NDArray[np.intp]:
    """Return the hops (n_nodes,) from each node of a connected graph to the one farthest from it.

    A search from one node bounds the eccentricity of every other, and nodes whose bounds meet need
    none of their own (Takes and Kosters 2013). With ``only_diameter`` lower bounds are returned as
    soon as the largest of them is the diameter.
    """
    indptr, indices = graph.adjacency
    n = graph.n_nodes
    low, high = np.zeros(n, dtype=np.intp), np.full(n, n, dtype=np.intp)
    steps, queue = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
    widest = True
    while True:
        open_ones = low < high
        if only_diameter:
            # Nodes that cannot be farther from others than what was found do not matter.
            open_ones &= high > low.max()
        if not open_ones.any():
            return low
        # Nodes at the rim raise lower bounds, nodes in the middle lower the upper ones.
        places = np.flatnonzero(open_ones)
        node = int(places[high[places].argmax() if widest else low[places].argmin()])
        widest = not widest
        farthest = hops_from(indptr, indices, node, steps, queue)
        np.maximum(low, np.maximum(steps, farthest - steps), out=low)
        np.minimum(high, farthest + steps, out=high)


@dataclass(frozen=True)
class Routes:
    """The way from every agent to the root of its hub."""

    parent: NDArray[np.intp]  # (n_nodes,); a root is its own
    depth: NDArray[np.intp]  # (n_nodes,) hops to the root
    leaves: NDArray[np.intp] = field(init=False)  # agents that are no roots, farthest first
    hops: int = field(init=False)  # of the longest way

    def __post_init__(self) -> None:
        away = np.flatnonzero(self.depth > 0)
        leaves = away[np.argsort(-self.depth[away], kind="stable")]
        vars(self).update(leaves=leaves, hops=int(self.depth.max(initial=0)))

    def links_up(self, ledger: Ledger) -> NDArray[np.intp]:
        """Numbers of the links over which each leaf sends to its root, in their order."""
        return ledger.link(self.leaves, self.parent[self.leaves])

    def links_down(self, ledger: Ledger) -> NDArray[np.intp]:
        """Numbers of the links over which each leaf hears from its root, in their order."""
        return ledger.link(self.parent[self.leaves], self.leaves)


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


def charge_flooding(ledger: Ledger, graph: Graph, record: int | None = None) -> None:
    """Count how all hear of what agents have, so many bytes together; None: of the graph.

    In the first round every agent sends its neighbours its own, of the graph its number and theirs;
    in each round after it passes on to all what it heard for the first time in the round before. On
    the graph each then finds the same hubs.
    """
    if record is None:
        record = NUMBER_BYTES * (graph.n_nodes + 2 * graph.n_edges)
    heard = eccentricities(graph) + 1  # rounds in which an agent has something new to pass on
    ledger.send("flooding", 0, times=heard[ledger.sources], rounds=int(heard.max()))
    # Over all rounds every record goes over every link once.
    ledger.grow("flooding", record)


def charge_features(
    ledger: Ledger, routes: Routes, widths: Sequence[int], n_samples: int, itemsize: int
) -> None:
    """Count features on their way to roots, hop by hop; of agents' ``widths`` and bytes an item."""
    messages = np.zeros(len(routes.parent), dtype=np.int64)
    values = np.zeros(len(routes.parent), dtype=np.int64)
    for node, link in zip(routes.leaves, routes.links_up(ledger), strict=True):
        if node < len(widths) and widths[node]:
            messages[node] += 1
            values[node] += widths[node]
        if messages[node]:
            parent = routes.parent[node]
            size = int(values[node]) * n_samples * itemsize
            ledger.send("setup", 0, links=[link], times=messages[node])
            ledger.grow("setup", size, links=[link])
            if routes.depth[parent]:
                messages[parent] += messages[node]
                values[parent] += values[node]
    ledger.send("setup", 0, times=0, rounds=routes.hops)


def charge_answers(ledger: Ledger, routes: Routes, size: int) -> None:
    """Count the labels of the rows on their way from roots to the agents of hubs, hop by hop."""
    ledger.send("labels", size, links=routes.links_down(ledger), rounds=routes.hops)


@dataclass(frozen=True)
class LikelyHubs:
    """Hubs that were chosen by what they gain, and how.

    ``gain`` is by how much the penalized log-likelihood (nats per sample) rises at least above that
    of no hub of several agents; None where hubs are foretold without data.
    """

    hubs: list[Hub]  # each agent in exactly one
    gain: float | None
    meetings: list[Hub]  # who has shown features to whom (`find_meetings`)
    sent: Ledger  # what it took to find them
    first: Report = field(default_factory=dict)  # log_likelihood, n_iter of no hops

    def describe(self) -> Report:
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
    meetings = []
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
        meetings.append(Hub(root, tuple(shown)))
    return meetings


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
        routes = find_routes(graph, [Hub(meeting.root, tuple(within(graph, hops, meeting.root)))])
        charge_features(ledger, routes, shown, n_samples, VALUE_BYTES)
        width = sum(shown)
        record += NUMBER_BYTES + VALUE_BYTES * n_copies * (1 + width + width * (width + 1) // 2)
    charge_flooding(ledger, graph, record)


def within(graph: Graph, hops: int, node: int) -> list[int]:
    """Return the agents within so many hops of one, in ascending order."""
    n = graph.n_agents
    stamp, queue = np.zeros(n, np.int32), np.empty(n, np.int32)
    size = ball(*graph.adjacency, node, min(hops, n), stamp, 1, queue)
    return sorted(queue[:size].tolist())


def gains(
    correlations: NDArray[np.float64],  # (K, d, d), as far as R is known
    weights: NDArray[np.float64],  # (K,), w
    columns: Sequence[NDArray[np.intp]],  # of each agent
    per_entry: float = 0.0,
) -> Callable[[Agents], float]:
    """Return what gives the gain of some agents, whose features are joint, over each of them alone.

    ``sum_k w_k (sum_a log|R_ka| - log|R_kS|) / 2`` in nats per sample, less ``per_entry`` for each
    entry of a covariance that a hub S adds to those of its agents a: the total correlation of
    Gaussian features in each component. By Jensen's inequality the log-likelihood per sample of a
    mixture whose responsibilities the moments are taken with rises by at least the first part, when
    its covariances are joined and one M-step is made.
    """

    def log_det(of: NDArray[np.intp]) -> float:
        """Mean over components of ``log|R|`` of some features; of dependent ones -inf."""
        _, log_dets = np.linalg.slogdet(correlations[:, of[:, None], of])
        return float(weights @ log_dets)

    def gain(agents: Agents) -> float:
        parts = [columns[agent] for agent in sorted(agents) if len(columns[agent])]
        if len(parts) < 2:
            return 0.0
        widths = np.array([len(one) for one in parts])
        entries = (widths.sum() ** 2 - (widths**2).sum()) / 2
        separate = sum(log_det(one) for one in parts if len(one) > 1)
        return (separate - log_det(np.concatenate(parts))) / 2 - per_entry * float(entries)

    return gain


def search_hubs(
    graph: Graph,  # without a server
    hops: int,  # at least 1
    gain: Callable[[Agents], float],  # of a set of agents; 0 of one alone
    widths: Sequence[int],  # features of each; wide agents become roots
    seed: int = 0,  # settles the order of agents, which decides between equals
) -> tuple[list[Hub], float]:
    """Split agents into hubs whose gains have a large sum, which is returned too.

    Of up to `FEW` agents all partitions are looked at. More are searched from no hubs and from hubs
    by size: agents move to a hub next to them or out of theirs, change places, gather others around
    them, and hubs join, until no move makes the sum larger. What is found is the better of the two:
    never worse than hubs by size, and not always the best. Hubs are in the order of their first
    agents.
    """
    search = _Search(graph, hops, gain, widths, seed)
    if graph.n_agents <= FEW:
        best = search.exact()
    else:
        alone = [frozenset([agent]) for agent in range(graph.n_agents)]
        by_size = [frozenset(hub.agents) for hub in find_hubs(graph, hops, seed, warn=False)]
        best = max((search.climb(start) for start in (alone, by_size)), key=search.total)
    hubs = [Hub(search.roots[hub], tuple(sorted(hub))) for hub in sorted(best, key=min)]
    warn_of_one(graph, hubs, hops)
    return hubs, search.total(best)


class _Search:
    """Local search among partitions; see `search_hubs`."""

    def __init__(
        self,
        graph: Graph,
        hops: int,
        gain: Callable[[Agents], float],
        widths: Sequence[int],
        seed: int,
    ) -> None:
        self.hops, self.gain, self.widths = hops, gain, widths
        indptr, indices = graph.adjacency
        ends = zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True)
        self.near = [set(indices[begin:end].tolist()) for begin, end in ends]
        self.balls = [within(graph, hops, node) for node in range(graph.n_agents)]
        self.order = np.random.default_rng(seed).permutation(graph.n_agents).tolist()
        self.roots: dict[Agents, int] = {}
        self._gains: dict[Agents, float] = {}

    def total(self, hubs: Sequence[Agents]) -> float:
        return sum(self.value(hub) for hub in sorted(hubs, key=min))

    def value(self, agents: Agents) -> float:
        """What a hub gains; -inf where there can be none of these agents."""
        if agents not in self._gains:
            # Its root is near all, by ways among them; of several it is that of the shortest ways.
            shortest = None
            for root in sorted(agents):
                seen, rim, way = {root}, {root}, 0
                for hop in range(1, self.hops + 1):
                    rim = {b for a in rim for b in self.near[a] if b in agents and b not in seen}
                    if not rim:
                        break
                    seen |= rim
                    way += hop * sum(self.widths[agent] for agent in rim)
                if len(seen) == len(agents) and (shortest is None or way < shortest[0]):
                    shortest = way, root
            if shortest is not None:
                self.roots[agents] = shortest[1]
            self._gains[agents] = -np.inf if shortest is None else self.gain(agents)
        return self._gains[agents]

    def split(self, agents: Agents) -> list[Agents]:
        """Hubs of what is left of one: itself, or its connected parts, or agents alone."""
        if not agents or self.value(agents) > -np.inf:
            return [agents] if agents else []
        parts, left = [], set(agents)
        while left:
            part, rim = set(), {min(left)}
            while rim:
                part |= rim
                rim = {b for a in rim for b in self.near[a] & left} - part
            left -= part
            parts.append(frozenset(part))
        if len(parts) > 1:
            return [one for part in parts for one in self.split(part)]
        return [frozenset([agent]) for agent in sorted(agents)]

    def climb(self, start: Sequence[Agents]) -> list[Agents]:
        """Let agents move until no move is better than none."""
        hub_of = {agent: hub for hub in start for agent in hub}
        waiting = set(hub_of)
        while waiting:
            for agent in self.order:
                if agent not in waiting:
                    continue
                waiting.remove(agent)
                best, most = None, LEAST_GAIN
                for move in self._moves(agent, hub_of):
                    rise = self.total(move[1]) - self.total(move[0])
                    if rise > most:
                        best, most = move, rise
                if best is not None:
                    moved = {one for hub in best[1] for one in hub}
                    hub_of.update((one, hub) for hub in best[1] for one in hub)
                    waiting |= moved.union(*(self.near[one] for one in moved))
        return sorted(set(hub_of.values()), key=min)

    def _moves(self, agent: int, hub_of: HubOf) -> Iterator[Move]:
        current, alone = hub_of[agent], frozenset([agent])
        rest = self.split(current - alone)
        if rest:
            yield [current], [alone, *rest]
        for hub in sorted({hub_of[other] for other in self.near[agent]} - {current}, key=min):
            yield [current, hub], [hub | alone, *rest]
            yield [current, hub], [hub | current]
            for other in sorted(hub):
                one = frozenset([other])
                yield [current, hub], [hub - one | alone, current - alone | one]
        near = frozenset(self.balls[agent])
        yield self._around(near, hub_of)
        if len(near) <= WIDEST_BALL:
            yield self._gathered(agent, hub_of)

    def _around(self, agents: Agents, hub_of: HubOf) -> Move:
        """Make a hub of some agents, whatever hubs they are in."""
        ended = sorted({hub_of[agent] for agent in agents}, key=min)
        left = [part for hub in ended for part in self.split(hub - agents)]
        return ended, [agents, *left]

    def _gathered(self, agent: int, hub_of: HubOf) -> Move:
        hub = frozenset([agent])
        best, most = ([hub_of[agent]], [hub_of[agent]]), -np.inf
        while True:
            rises = []
            for other in sorted(set(self.balls[agent]) - hub):
                if self.near[other] & hub:
                    move = self._around(hub | {other}, hub_of)
                    rises.append((self.total(move[1]) - self.total(move[0]), -other, move))
            if not rises:
                return best
            rise, other, move = max(rises, key=lambda one: one[:2])
            if rise == -np.inf:
                return best
            hub |= {-other}
            if rise > most:
                best, most = move, rise

    def exact(self) -> list[Agents]:
        """Return the best of all partitions, by the best of every set of agents.

        The hub of a set's first agent is tried with every set of others: ``3^N / 2`` sums.
        """
        n = len(self.near)
        worth, chosen = [0.0] * (1 << n), [0] * (1 << n)

        def agents(bits: int) -> Agents:
            return frozenset(agent for agent in range(n) if bits >> agent & 1)

        values = [self.value(agents(bits)) if bits else 0.0 for bits in range(1 << n)]
        for bits in range(1, 1 << n):
            first, most = bits & -bits, -np.inf
            others = part = bits ^ first
            while True:
                rise = values[first | part] + worth[others ^ part]
                if rise > most + LEAST_GAIN:
                    most, chosen[bits] = rise, first | part
                if not part:
                    break
                part = (part - 1) & others
            worth[bits] = most
        left, hubs = (1 << n) - 1, []
        while left:
            hubs.append(agents(chosen[left]))
            left ^= chosen[left]
        return hubs
