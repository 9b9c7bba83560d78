"""The exact sum along a spanning tree: toward its root, and back."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vpem.network.ledger import Ledger
from vpem.network.routes import Routes
from vpem.sums.server import Exact

__all__ = ["TreeSum"]


class TreeSum(Exact):
    """Adds terms on their way to the root of a tree, which sends the total back to all.

    Each agent waits for the sums of its children, adds its own term and sends the sum to its
    parent. What arrives at the root is the total, which travels the same links back. Both ways
    take as many rounds as the tree is high, and one message a link: the numbers are those of a
    server, but nobody needs to be reached by all. An agent without a term only forwards, and takes
    no part where no agent below it has one.

    To all who take a sum at a server (`vpem.sums.counted.AtServer`) the root is one.

    Parameters
    ----------
    tree : Routes
        Ways to the root (`vpem.network.trees.grow_tree`).
    agents : array of int
        Of each that has something to add.
    """

    way = path = "tree"
    kind = "estep"

    def __init__(self, tree: Routes, agents: NDArray[np.intp]) -> None:
        super().__init__(len(agents))
        self.tree = tree
        self.agents = agents

    @property
    def shape(self) -> dict[str, int]:
        """The root, and the hops to the agents farthest from it."""
        return {"root": int(self.tree.depth.argmin()), "hops": self.tree.hops}

    @cached_property
    def _levels(self) -> list[NDArray[np.intp]]:
        """Agents by hops to the root, from 1."""
        return [np.flatnonzero(self.tree.depth == hops + 1) for hops in range(self.tree.hops)]

    @cached_property
    def _every_way(self) -> NDArray[np.bool_]:
        return self._ways(self.agents)

    def _links(self, ledger: Ledger) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Links of each agent, in the order of `Routes.leaves`, to its parent and back."""
        leaves = self.tree.leaves
        pairs = list(zip(leaves.tolist(), self.tree.parent[leaves].tolist(), strict=True))
        up = np.array([ledger.link(*pair) for pair in pairs], dtype=np.intp)
        return up, self.tree.links_down(ledger)

    def _ways(self, agents: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which nodes lie on the ways of some agents to the root."""
        on = np.zeros(len(self.tree.parent), dtype=np.bool_)
        on[agents] = True
        for level in () if self._alone else reversed(self._levels):
            on[self.tree.parent[level[on[level]]]] = True
        return on

    def _over(
        self, links: NDArray[np.intp], size: int | NDArray[np.int64], who: NDArray[np.intp] | None
    ) -> None:
        """Count a message over those links that lie on the ways of some, or of all."""
        on = self._every_way if who is None else self._ways(self.agents[who])
        rounds = int(self.tree.depth[on].max(initial=0))
        if rounds and len(links):
            # A sum is as long as the longest of what it is of.
            used = links[on[self.tree.leaves]]
            self._send(self.charge, int(np.max(size)), links=used, rounds=rounds)

    def count(
        self, sizes: int | NDArray[np.int64], senders: NDArray[np.intp] | None = None
    ) -> None:
        """Count sums of this size on their way to the root, of some senders or of all."""
        self._over(self._up, sizes, senders)

    def broadcast(
        self, size: int | NDArray[np.int64], receivers: NDArray[np.intp] | None = None
    ) -> None:
        """Count a message of the root to some of the senders, or to all."""
        self._over(self._down, size, receivers)

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        """Count how all agents hear what the root has decided, or what one of them has.

        Over every link of the tree goes one message, away from who has it.
        """
        leaves, parent = self.tree.leaves, self.tree.parent
        on = np.zeros(len(parent), dtype=np.bool_)
        hops = self.tree.depth
        if source is not None:
            hops = np.zeros_like(hops)
            node = int(self.agents[source])
            while parent[node] != node:
                on[node] = True
                hops[parent[node]] = hops[node] + 1
                node = int(parent[node])
            for level in self._levels:
                others = level[~on[level]]
                hops[others] = hops[parent[others]] + 1
        if self.ledger is not None:
            links = np.where(on[leaves], self._up, self._down)
            self._send(kind, size, links=links, rounds=int(hops.max(initial=0)))
