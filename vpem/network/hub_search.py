"""The partition into hubs whose gains have the largest sum, by search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpem.network.graph import Graph
from vpem.network.hubs import Hub, find_hubs, warn_of_one
from vpem.network.likely_hubs import within

LEAST_GAIN = 1e-12
"""Of a move, below which it is rounding."""

FEW = 10
"""Agents all of whose partitions are looked at."""

WIDEST_BALL = 32
"""Agents near one, beyond which they are not tried one by one around it."""

Agents = frozenset[int]

Partition = dict[int, Agents]
"""Hub of each agent."""

Move = tuple[list[Agents], list[Agents]]
"""Hubs that end, and those that take their agents."""


@dataclass(frozen=True)
class Gains:
    """What agents gain by features that are joint in a hub.

    ``sum_k w_k (sum_a log|R_ka| - log|R_kS|) / 2`` in nats per sample, less ``per_entry`` for each
    entry of a covariance that a hub S adds to those of its agents a: the total correlation of
    Gaussian features in each component. By Jensen's inequality the log-likelihood per sample of a
    mixture whose responsibilities the moments are taken with rises by at least the first part, when
    its covariances are joined and one M-step is made.
    """

    correlations: NDArray[np.float64]  # (K, d, d), as far as R is known
    weights: NDArray[np.float64]  # (K,), w
    columns: Sequence[NDArray[np.intp]]  # of each agent
    per_entry: float = 0.0

    def __call__(self, agents: Agents) -> float:
        """Return what some agents gain over each of them alone."""
        held = [self.columns[agent] for agent in sorted(agents) if len(self.columns[agent])]
        if len(held) < 2:
            return 0.0
        widths = np.array([len(one) for one in held])
        entries = (widths.sum() ** 2 - (widths**2).sum()) / 2
        apart = sum(self._log_det(one) for one in held if len(one) > 1)
        return (apart - self._log_det(np.concatenate(held))) / 2 - self.per_entry * float(entries)

    def _log_det(self, columns: NDArray[np.intp]) -> float:
        """Mean over components of ``log|R|`` of some features; of dependent ones -inf."""
        _, found = np.linalg.slogdet(self.correlations[:, columns[:, None], columns])
        return float(self.weights @ found)


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
        """What all hubs gain."""
        return sum(self.value(hub) for hub in sorted(hubs, key=min))

    def value(self, agents: Agents) -> float:
        """What a hub gains; -inf where there can be none of these agents."""
        if agents not in self._gains:
            root = self._root(agents)
            if root is not None:
                self.roots[agents] = root
            self._gains[agents] = -np.inf if root is None else self.gain(agents)
        return self._gains[agents]

    def _root(self, agents: Agents) -> int | None:
        """Agent that all are near, by ways among them; of several that of the shortest ways."""
        found = None
        for root in sorted(agents):
            seen, rim, way = {root}, {root}, 0
            for hop in range(1, self.hops + 1):
                rim = {b for a in rim for b in self.near[a] if b in agents and b not in seen}
                if not rim:
                    break
                seen |= rim
                way += hop * sum(self.widths[agent] for agent in rim)
            if len(seen) == len(agents) and (found is None or way < found[0]):
                found = way, root
        return None if found is None else found[1]

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

    def _moves(self, agent: int, hub_of: Partition) -> Iterator[Move]:
        """What an agent can do."""
        own, alone = hub_of[agent], frozenset([agent])
        rest = self.split(own - alone)
        if rest:
            yield [own], [alone, *rest]
        for hub in sorted({hub_of[other] for other in self.near[agent]} - {own}, key=min):
            yield [own, hub], [hub | alone, *rest]
            yield [own, hub], [hub | own]
            for other in sorted(hub):
                one = frozenset([other])
                yield [own, hub], [hub - one | alone, own - alone | one]
        near = frozenset(self.balls[agent])
        yield self._around(near, hub_of)
        if len(near) <= WIDEST_BALL:
            yield self._gathered(agent, hub_of)

    def _around(self, agents: Agents, hub_of: Partition) -> Move:
        """Make a hub of some agents, whatever hubs they are in."""
        ended = sorted({hub_of[agent] for agent in agents}, key=min)
        left = [part for hub in ended for part in self.split(hub - agents)]
        return ended, [agents, *left]

    def _gathered(self, agent: int, hub_of: Partition) -> Move:
        """Make the best hub around an agent that is found by adding one after the other."""
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
        values = [self.value(_agents(bits)) if bits else 0.0 for bits in range(1 << n)]
        for bits in range(1, 1 << n):
            first, most = bits & -bits, -np.inf
            others = part = bits ^ first
            while True:
                found = values[first | part] + worth[others ^ part]
                if found > most + LEAST_GAIN:
                    most, chosen[bits] = found, first | part
                if not part:
                    break
                part = (part - 1) & others
            worth[bits] = most
        left, hubs = (1 << n) - 1, []
        while left:
            hubs.append(_agents(chosen[left]))
            left ^= chosen[left]
        return hubs


def _agents(bits: int) -> Agents:
    """Agents whose bits are set."""
    return frozenset(agent for agent in range(bits.bit_length()) if bits >> agent & 1)
