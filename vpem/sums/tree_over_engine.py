"""Sums along a tree whose agents live in several processes: who sends what, and the exact sum."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.engines.engine import about
from vpem.engines.placement import Placement
from vpem.sums.adding import Addends
from vpem.sums.exchanges import Exchange, row_bytes
from vpem.sums.neighbours import Traffic, finished
from vpem.sums.over_engine import IN_FLIGHT, Flying, _OverEngine
from vpem.sums.scalars import Scalars
from vpem.sums.tree import AlongTree, TreeSum

Ranks = NDArray[np.intp]
T = TypeVar("T")


class TreeWays:
    """Who sends what to whom along a tree whose agents live in several processes, or in one.

    An array of states has a row for each agent of this process that is on the way of one which has
    something to add, one for each of their children elsewhere, and one for the total.

    Parameters
    ----------
    agents, holders : Placement
        Where agents live, and where those do that have something to add.
    total : AlongTree
        The sum, as one process takes it.

    Attributes
    ----------
    n_states : int
        Rows of an array.
    own : ndarray of int
        Rows of those here that have something to add.
    home, root : int
        Process of the root, and its row there; -1 elsewhere.
    upward, downward : list
        What each depth sends, from the deepest on; how the total comes to each process.
    n_children : int
        Agents whose parents are here.
    most : int
        Rows of the process that has most, at most.
    """

    def __init__(self, agents: Placement, holders: Placement, total: AlongTree) -> None:
        self.engine, self.tree, self._homes = agents.engine, total.tree, agents.ranks
        engine, homes, on = agents.engine, agents.ranks, total.every_way
        levels = total.levels_used
        root = int(total.agents[0] if not levels else self.tree.depth.argmin())
        self.home = int(homes[root])
        self._all_hear = len(np.unique(homes[on])) == engine.size

        leaves = np.concatenate([root, *levels], axis=None)[1:].astype(np.intp)
        parents = self.tree.parent[leaves]
        apart = homes[leaves] != homes[parents]
        ends = np.stack([homes[leaves], homes[parents]])[:, apart]
        near = np.concatenate([ends[1][ends[0] == engine.rank], ends[0][ends[1] == engine.rank]])
        self._near = np.unique(near)
        self._joined = engine.neighbours(self._near.tolist()) if apart.any() else None

        # Agents here, children elsewhere, and the total.
        here = np.flatnonzero(on & (homes == engine.rank))
        ghosts = leaves[apart & (homes[parents] == engine.rank)]
        place = np.full(agents.n_agents, -1, dtype=np.intp)
        place[here], place[ghosts] = np.arange(len(here)), len(here) + np.arange(len(ghosts))
        self.n_states = len(here) + len(ghosts) + 1
        self.most = int(np.bincount(homes[on]).max() + len(leaves) + 1)
        self.own = place[total.agents[holders.own]]
        self.root = int(place[root])
        self.upward = [self._toward_root(level, homes, place) for level in reversed(levels)]
        self.downward = self._away_from_root(levels, homes)
        self.n_children = int((homes[parents] == engine.rank).sum())

    def _exchange(self, ends: Ranks, rows: Ranks) -> Exchange | None:
        """A row of the states goes from one process to another (2, n), where there are any."""
        if self._joined is None or not ends.size:
            return None
        (source, target), rank = ends, self.engine.rank
        return Exchange(
            (self.engine, self._joined),
            [rows[(source == rank) & (target == near)] for near in self._near],
            [rows[(source == near) & (target == rank)] for near in self._near],
        )

    def _toward_root(self, level: Ranks, homes: Ranks, place: Ranks) -> TreeLevel:
        """How agents of one depth send their sums to their parents."""
        parents, rank = self.tree.parent[level], self.engine.rank
        ends = np.stack([homes[level], homes[parents]])
        apart, added, sent = ends[0] != ends[1], ends[1] == rank, ends[0] == rank
        return TreeLevel(
            self._exchange(ends[:, apart], place[level[apart]]),
            level[sent],
            place[level[sent]],
            place[level[added & ~sent]],
            place[level[added]].tolist(),
            place[parents[added]].tolist(),
        )

    def relay(self, agents: Ranks) -> Iterator[Exchange]:
        """How messages of some agents, a row each, go on to the root as they are, hop by hop."""
        depth, parent = self.tree.depth, self.tree.parent
        at, rows = agents.copy(), np.arange(len(agents))
        for hops in range(int(depth[at].max(initial=0)), 0, -1):
            moved = rows[depth[at] == hops]
            ends = self._homes[np.stack([at[moved], parent[at[moved]]])]
            apart = ends[0] != ends[1]
            exchange = self._exchange(ends[:, apart], moved[apart])
            if exchange is not None:
                yield exchange
            at[moved] = parent[at[moved]]

    def tell(self, states: Sequence[NDArray[Any]], kind: str, traffic: Traffic) -> Generator[None]:
        """Bring the total, the last row of some arrays, to all processes on the way down."""
        for exchange in self.downward:
            if exchange is not None:
                yield from exchange.run(states, kind)
                traffic.add(kind, 0, exchange.n_sent * row_bytes(states))

    def follow(self, total: T) -> T:
        """Let processes without an agent on the way know the total: they run the same loop."""
        if self._all_hear:
            return total
        with about(self.engine, "following"):
            found: T = self.engine.bcast(total, self.home)
        return found

    def _away_from_root(self, levels: list[Ranks], homes: Ranks) -> list[Exchange | None]:
        """How the total comes to each process, depth by depth."""
        found, heard = [], {self.home}
        for level in levels:
            sources: dict[int, int] = {}
            for child, parent in zip(homes[level], homes[self.tree.parent[level]], strict=True):
                if child not in heard:
                    sources.setdefault(int(child), int(parent))
            heard |= set(sources)
            ends = np.array([list(sources.values()), list(sources)], dtype=np.intp)
            found.append(self._exchange(ends, np.full(ends.shape[1], self.n_states - 1)))
        return found


@dataclass
class TreeLevel:
    """What agents of one depth send to their parents.

    Attributes
    ----------
    exchange : Exchange or None
        Over processes.
    agents, rows : ndarray of int
        Of this process, and their rows.
    heard : ndarray of int
        Rows of those elsewhere whose parents are here.
    children, parents : list of int
        Rows of all whose parents are here, and of these.
    """

    exchange: Exchange | None
    agents: Ranks
    rows: Ranks
    heard: Ranks
    children: list[int]
    parents: list[int]


class TreeOverEngine(_OverEngine, TreeSum):
    """Adds terms along a tree, with messages between processes whose agents are joined in it only.

    Agents of one depth after the other send their sums to their parents, which add them to theirs.
    Then the total goes from parents to children, to each process once.

    Parameters
    ----------
    agents, holders : Placement
        Where agents live, and where those do that have something to add.
    total : TreeSum
        The sum, as one process takes it.
    """

    exact = True
    carries = True

    def __init__(self, agents: Placement, holders: Placement, total: TreeSum) -> None:
        super().__init__(total.tree, total.agents)
        self.waits = total.waits
        self.mix = None
        self.holders = holders
        self.roots = Placement(holders.engine, holders.ranks[:1])
        self.traffic = Traffic()
        self._near = TreeWays(agents, holders, total)
        self.values_per_item = IN_FLIGHT * self._near.most

    def _sum(
        self, terms: Floats, scalars: Scalars | None, who: NDArray[np.intp] | None = None
    ) -> Flying:
        own = Addends(self.holders, terms, scalars, self.exponents, who)
        values, kind, near = own.apart(), self.charge, self._near
        states = [np.zeros((near.n_states, one.shape[1]), dtype=one.dtype) for one in values]
        for each, value in zip(states, values, strict=True):
            each[near.own] = value
        size = row_bytes(states)
        for level in near.upward:
            if level.exchange is not None:
                yield from level.exchange.run(states, kind)
                self.traffic.add(kind, 0, level.exchange.n_sent * size)
            for child, parent in zip(level.children, level.parents, strict=True):
                for each in states:
                    each[parent] += each[child]
            self.traffic.add(kind, len(level.rows) * size, 0)
        if near.root >= 0:
            for each in states:
                each[-1] = each[near.root]
        yield from near.tell(states, kind, self.traffic)
        self.traffic.add(kind, near.n_children * size, 0)
        return lambda: own.total(near.follow([each[-1].copy() for each in states]))

    def hear(
        self, messages: NDArray[np.uint8], senders: NDArray[np.intp] | None = None
    ) -> NDArray[np.uint8]:
        """Bring messages (a, size) of the senders here to the root, which has those of all."""
        here, near = self.here(senders), self._near
        if here is None or self._alone:
            return messages
        every = np.zeros((len(here), messages.shape[1]), dtype=np.uint8)
        every[here] = messages
        for exchange in near.relay(self.agents if senders is None else self.agents[senders]):
            finished(exchange.run([every], self.charge))
            self.traffic.add(self.charge, 0, exchange.n_sent * messages.shape[1])
        return every if near.root >= 0 else messages

    def announce(
        self, received: NDArray[np.float64], senders: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Add up what the root alone has of some senders (a, P), or of all, and tell it."""
        near = self._near
        total = np.zeros((near.n_states, received.shape[1]))
        if near.root >= 0:
            total[-1] = self.added(received, senders)
        finished(near.tell([total], self.charge, self.traffic))
        return near.follow(total[-1:].copy())

    def aggregate(
        self, received: NDArray[np.float64], senders: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Add up what some senders (a, P), or all, have sent on its way to the root: (1, P)."""
        if self.holders.masks is not None:
            self.count_tag(senders)
        who = np.arange(self.n_senders) if senders is None else senders
        every = np.zeros((self.n_senders, received.shape[1]), dtype=received.dtype)
        every[who] = received if self.weights is None else self.weights[who, None] * received
        found = finished(self._sum(every[self.holders.own][:, None], None, senders))()
        return found[:, 0].astype(np.float64, copy=False)
