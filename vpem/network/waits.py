"""How long messages take along a tree whose links fail: each waits until its link is up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vpem.network.faults import Faults
from vpem.network.graph import Graph
from vpem.network.routes import Routes

AT_ONCE = 32
"""Rounds that are drawn together."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Waits:
    """Rounds that messages take along a tree in which links are down, or agents late, at times.

    A message over a link that is down in a round is sent in the first one in which it is up, and
    whoever has to add it waits for it: nothing is lost, and no message is counted twice.
    """

    graph: Graph
    tree: Routes  # ways to the root
    faults: Faults
    seed: int

    @cached_property
    def _edges(self) -> NDArray[np.intp]:
        """Number of the edge from every agent to its parent; of the root any."""
        low, high = self.graph.edges.T
        n, agents, parent = self.graph.n_nodes, np.arange(len(self.tree.parent)), self.tree.parent
        keys = low * n + high
        order = np.argsort(keys)
        wanted = np.minimum(agents, parent) * n + np.maximum(agents, parent)
        places: NDArray[np.intp] = order[np.searchsorted(keys, wanted, sorter=order) % len(keys)]
        return places

    def _rounds(self, number: tuple[int, ...]) -> Iterator[Mask]:
        """Which agents' links to their parents are up (N,), round by round."""
        rng = np.random.default_rng([self.seed, *number])
        while True:
            drawn = self.faults.draw(self.graph, AT_ONCE, rng, dropout=False)
            yield from drawn.up[:, self._edges]

    def taken(self, on: Mask, number: tuple[int, ...], source: int | None = None) -> int:
        """Return the rounds until all messages of the agents ``on`` (N,) have arrived.

        With all agents are all on their ways to the root, where sums go; or all hear the message of
        ``source``. ``number`` names the messages: others have other draws.
        """
        parent = self.tree.parent
        leaves = np.flatnonzero(on & (self.tree.depth > 0))
        above, left = parent[leaves], np.ones(len(leaves), dtype=np.bool_)
        waiting = np.bincount(above, minlength=len(parent))
        heard = ~on
        if source is not None:
            heard[source] = True
        for rounds, up in enumerate(self._rounds(number)):
            if not left.any():
                return rounds
            if source is None:
                goes = left & up[leaves] & (waiting[leaves] == 0)
                np.subtract.at(waiting, above[goes], 1)
                left &= ~goes
            else:
                goes = left & up[leaves] & (heard[leaves] | heard[above])
                heard[leaves[goes]] = heard[above[goes]] = True
                left &= ~goes
        raise AssertionError
