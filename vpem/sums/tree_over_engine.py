"""The sum along a tree whose agents live in several processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.engines.placement import Placement
from vpem.sums.neighbours import Exchange, Traffic, row_bytes
from vpem.sums.over_engine import IN_FLIGHT, Flying, _OverEngine
from vpem.sums.scalars import Scalars, beside
from vpem.sums.tree import TreeSum

__all__ = ["TreeOverEngine"]

Ranks = NDArray[np.intp]


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

    def __init__(self, agents: Placement, holders: Placement, total: TreeSum) -> None:
        super().__init__(total.tree, total.agents)
        self.mix = None
        self.holders = holders
        self.roots = Placement(holders.engine, holders.ranks[:1])
        self.traffic = Traffic()
        engine, homes, on = agents.engine, agents.ranks, self._every_way
        levels = [] if self._alone else [level[on[level]] for level in self._levels]
        root = int(self.agents[0] if self._alone else self.tree.depth.argmin())
        self._home = int(homes[root])
        self._all_hear = len(np.unique(homes[on])) == engine.size

        leaves = np.concatenate([root, *levels], axis=None)[1:].astype(np.intp)
        parents = self.tree.parent[leaves]
        apart = homes[leaves] != homes[parents]
        ends = np.stack([homes[leaves], homes[parents]])[:, apart]
        near = np.concatenate([ends[1][ends[0] == engine.rank], ends[0][ends[1] == engine.rank]])
        self._near = np.unique(near)
        self._joined = engine.neighbours(self._near.tolist()) if apart.any() else None

        # Sums of agents here, of children elsewhere, and the total.
        here = np.flatnonzero(on & (homes == engine.rank))
        ghosts = leaves[apart & (homes[parents] == engine.rank)]
        place = np.full(agents.n_agents, -1, dtype=np.intp)
        place[here], place[ghosts] = np.arange(len(here)), len(here) + np.arange(len(ghosts))
        self._n_states = len(here) + len(ghosts) + 1
        self.values_per_item = IN_FLIGHT * int(np.bincount(homes[on]).max() + len(leaves) + 1)
        self._own = place[self.agents[holders.own]]
        self._root = place[root]
        self._upward = [self._toward_root(level, homes, place) for level in reversed(levels)]
        self._downward = self._away_from_root(levels, homes)
        self._n_children = int((homes[parents] == engine.rank).sum())

    def _exchange(self, ends: Ranks, rows: Ranks) -> Exchange | None:
        """A row of the states goes from one process to another (2, n), where there are any."""
        if self._joined is None or not ends.size:
            return None
        (source, target), rank = ends, self.holders.engine.rank
        return Exchange(
            self._joined,
            [rows[(source == rank) & (target == near)] for near in self._near],
            [rows[(source == near) & (target == rank)] for near in self._near],
        )

    def _toward_root(self, level: Ranks, homes: Ranks, place: Ranks) -> _Level:
        """How agents of one depth send their sums to their parents."""
        parents, rank = self.tree.parent[level], self.holders.engine.rank
        ends = np.stack([homes[level], homes[parents]])
        apart, added = ends[0] != ends[1], ends[1] == rank
        return _Level(
            self._exchange(ends[:, apart], place[level[apart]]),
            place[level[added]].tolist(),
            place[parents[added]].tolist(),
            int((ends[0] == rank).sum()),
        )

    def _away_from_root(self, levels: list[Ranks], homes: Ranks) -> list[Exchange | None]:
        """How the total comes to each process, depth by depth."""
        found, heard = [], {self._home}
        for level in levels:
            sources: dict[int, int] = {}
            for child, parent in zip(homes[level], homes[self.tree.parent[level]], strict=True):
                if child not in heard:
                    sources.setdefault(int(child), int(parent))
            heard |= set(sources)
            ends = np.array([list(sources.values()), list(sources)], dtype=np.intp)
            found.append(self._exchange(ends, np.full(ends.shape[1], self._n_states - 1)))
        return found

    def _sum(self, terms: Floats, scalars: Scalars | None) -> Flying:
        values, kind = beside(terms, scalars), self.charge
        states = [np.zeros((self._n_states, own.shape[1]), dtype=own.dtype) for own in values]
        for each, own in zip(states, values, strict=True):
            each[self._own] = own
        size = row_bytes(states)
        for level in self._upward:
            if level.exchange is not None:
                yield from level.exchange.run(states)
                self.traffic.add(kind, 0, level.exchange.n_sent * size)
            for child, parent in zip(level.children, level.parents, strict=True):
                for each in states:
                    each[parent] += each[child]
            self.traffic.add(kind, level.n_sent * size, 0)
        if self._root >= 0:
            for each in states:
                each[-1] = each[self._root]
        for exchange in self._downward:
            if exchange is not None:
                yield from exchange.run(states)
                self.traffic.add(kind, 0, exchange.n_sent * size)
        self.traffic.add(kind, self._n_children * size, 0)
        total = [each[-1:].copy() for each in states]
        if not self._all_hear:
            # Processes without an agent on the way are told, so that they run the same loop.
            total = self.holders.engine.bcast(total, self._home)
        if scalars is not None:
            scalars.found = total[1]
        return total[0].reshape(1, *terms.shape[1:])

    def aggregate(
        self, received: NDArray[np.float64], senders: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Add up what some senders (a, P), or all, have sent on its way to the root: (1, P)."""
        who = np.arange(self.n_senders) if senders is None else senders
        every = np.zeros((self.n_senders, received.shape[1]), dtype=received.dtype)
        every[who] = received if self.weights is None else self.weights[who, None] * received
        return self.reduce(every[self.holders.own][:, None])[:, 0]


@dataclass
class _Level:
    """What one depth of the tree sends: to other processes, and within this one."""

    exchange: Exchange | None
    children: list[int]
    parents: list[int]
    n_sent: int
