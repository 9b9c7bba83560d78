"""How far agents are from each other: eccentricities and the diameter, with few searches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem._core.balls import hops_from
from vpem.network.graph import Graph


def eccentricities(graph: Graph) -> NDArray[np.intp]:
    """Return the hops (n_nodes,) from each node of a connected graph to the one farthest from it.

    A search from one node bounds the eccentricity of every other, and nodes whose bounds meet need
    none of their own (Takes and Kosters 2013).
    """
    low, high = _bounds(graph, only_diameter=False)
    assert (low == high).all()
    return low


def diameter(graph: Graph) -> int:
    """Hops between the two nodes farthest apart in a connected graph; 0 for a single node."""
    low, _ = _bounds(graph, only_diameter=True)
    return int(low.max())


def _bounds(graph: Graph, only_diameter: bool) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Lower and upper bounds of eccentricities, searched for until they say enough."""
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
            return low, high
        # Nodes at the rim raise lower bounds, nodes in the middle lower the upper ones.
        places = np.flatnonzero(open_ones)
        node = int(places[high[places].argmax() if widest else low[places].argmin()])
        widest = not widest
        found = hops_from(indptr, indices, node, steps, queue)
        np.maximum(low, np.maximum(steps, found - steps), out=low)
        np.minimum(high, found + steps, out=high)
