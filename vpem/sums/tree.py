"""The exact sum along a spanning tree: toward its root, and back."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vpem.network.faults import Faults
from vpem.network.graph import Graph
from vpem.network.ledger import Ledger
from vpem.network.routes import Routes
from vpem.network.waits import Waits
from vpem.sums.adding import TAG_BYTES
from vpem.sums.counted import AtServer
from vpem.sums.server import Exact


class AlongTree(AtServer):
    """A sum at the root of a tree, to which messages go from agent to agent, and back to all.

    Each agent waits for what its children send, adds its own and sends the sum to its parent. What
    arrives at the root is the total, which travels the same links back. Both ways take as many
    rounds as the tree is high, and one message a link: nobody needs to be reached by all. An agent
    that has nothing to add only forwards, and takes no part where no agent below it has anything.

    Messages of which every sender has a size of its own, as codecs have written them, cannot be
    added: they travel to the root as they are, those of all agents below in one message a link.

    Where links fail, or agents are late, a message waits until its link is up: sums are the same,
    and take more rounds (`vpem.network.waits`).

    To all who take a sum at a server (`vpem.sums.counted.AtServer`) the root is one.
    """

    way = path = "tree"
    kind = "estep"
    tree: Routes
    """Ways to the root (`vpem.network.trees.grow_tree`)."""
    agents: NDArray[np.intp]
    """Of each that has something to add."""
    waits: Waits | None = None
    """How long messages take where links fail or agents are late; None: each a round."""

    def failing(self, graph: Graph, faults: Faults, seed: int) -> Self:
        """Return the same sum where links of a graph fail."""
        failing = copy(self)
        failing.waits = Waits(graph, self.tree, faults, seed)
        return failing

    @property
    def _sent_before(self) -> tuple[int, ...]:
        """What no two messages share: how many were sent before, and in how many rounds."""
        return (0, 0) if self.ledger is None else (self.ledger.messages, self.ledger.rounds)

    @property
    def shape(self) -> dict[str, int]:
        """The root, and the hops to the agents farthest from it."""
        return {"root": self.root, "hops": self.tree.hops}

    @property
    def root(self) -> int:
        """Agent at the root."""
        return int(self.tree.depth.argmin())

    @cached_property
    def _levels(self) -> list[NDArray[np.intp]]:
        """Agents by hops to the root, from 1."""
        return [np.flatnonzero(self.tree.depth == hops + 1) for hops in range(self.tree.hops)]

    @cached_property
    def every_way(self) -> NDArray[np.bool_]:
        """Which nodes lie on the way of any who has something to add."""
        return self._ways(self.agents)

    @property
    def levels_used(self) -> list[NDArray[np.intp]]:
        """Those of them that send something, by hops to the root; none where one has all."""
        return [] if self._alone else [level[self.every_way[level]] for level in self._levels]

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
        self, size: int | NDArray[np.int64], who: NDArray[np.intp] | None, *, upward: bool
    ) -> None:
        """Count messages of one size, or of each leaf's, over the links on the ways of some."""
        on = self.every_way if who is None else self._ways(self.agents[who])
        rounds = int(self.tree.depth[on].max(initial=0))
        links = self._up if upward else self._down
        if rounds and len(links):
            if self.waits is not None:
                rounds = self.waits.taken(on, self._sent_before, None if upward else self.root)
            used = on[self.tree.leaves]
            sizes = size if np.ndim(size) == 0 else np.asarray(size)[used]
            self._send(self.charge, sizes, links=links[used], rounds=rounds)

    def _below(
        self, sizes: NDArray[np.int64], senders: NDArray[np.intp] | None
    ) -> NDArray[np.int64]:
        """Bytes of all that some senders, or all, who are a leaf or below it send, of each leaf."""
        carried = np.zeros(len(self.tree.parent), dtype=np.int64)
        carried[self.agents if senders is None else self.agents[senders]] = sizes
        for level in reversed(self._levels):
            np.add.at(carried, self.tree.parent[level], carried[level])
        return carried[self.tree.leaves]

    def count(
        self, sizes: int | NDArray[np.int64], senders: NDArray[np.intp] | None = None
    ) -> None:
        """Count sums of this size on their way to the root, of some senders or of all.

        Or of each sender a message of its own size.
        """
        if np.ndim(sizes):
            sizes = self._below(np.asarray(sizes), senders)
        self._over(sizes, senders, upward=True)

    def broadcast(
        self, size: int | NDArray[np.int64], receivers: NDArray[np.intp] | None = None
    ) -> None:
        """Count a message of the root to some of the senders, or to all."""
        self._over(int(np.max(size, initial=0)), receivers, upward=False)

    def count_tag(self, senders: NDArray[np.intp] | None = None, tag: int = TAG_BYTES) -> None:
        """Count what stands behind messages under masks, on its way and back."""
        if self.ledger is not None and len(self._up):
            for who, links in ((senders, self._up), (None, self._down)):
                on = self.every_way if who is None else self._ways(self.agents[who])
                self.ledger.grow(self.charge, tag, links[on[self.tree.leaves]])

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        """Count how all agents hear what the root has decided, or what one of them has.

        Over every link of the tree goes one message, away from who has it.
        """
        leaves, parent = self.tree.leaves, self.tree.parent
        on = np.zeros(len(parent), dtype=np.bool_)
        hops = self.tree.depth
        start = self.root if source is None else int(self.agents[source])
        if source is not None:
            hops, node = np.zeros_like(hops), start
            while parent[node] != node:
                on[node] = True
                hops[parent[node]] = hops[node] + 1
                node = int(parent[node])
            for level in self._levels:
                others = level[~on[level]]
                hops[others] = hops[parent[others]] + 1
        if self.ledger is not None:
            links, rounds = np.where(on[leaves], self._up, self._down), int(hops.max(initial=0))
            if self.waits is not None:
                rounds = self.waits.taken(np.ones_like(on), self._sent_before, start)
            self._send(kind, size, links=links, rounds=rounds)


class TreeSum(AlongTree, Exact):
    """The exact sum along a tree: the numbers are those of a server.

    Parameters
    ----------
    tree : Routes
        Ways to the root (`vpem.network.trees.grow_tree`).
    agents : array of int
        Of each that has something to add.
    """

    def __init__(self, tree: Routes, agents: NDArray[np.intp]) -> None:
        super().__init__(len(agents))
        self.tree = tree
        self.agents = agents
