"""The NumPy twin of the graph kernels in `balls`: what they compute, written to be read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["ball", "hops_from"]


def ball(
    indptr: NDArray[np.int32],
    indices: NDArray[np.int32],
    root: int,
    hops: int,
    stamp: NDArray[np.int32],
    mark: int,
    queue: NDArray[np.int32],
) -> int:
    """Write the nodes within ``hops`` of ``root`` into ``queue`` and return how many they are.

    The ball is ``{v : dist(root, v) <= hops}``, distances being taken among open nodes only.

    Parameters
    ----------
    indptr : ndarray of shape (n_nodes + 1,)
        Where each node's neighbours begin in ``indices``.
    indices : ndarray of shape (2 n_edges,)
        The neighbours, node after node.
    root : int
        The node in the middle, an open one.
    hops : int
        How far the ball reaches; 0 is the root alone.
    stamp : ndarray of shape (n_nodes,)
        Work array. A node is open while its stamp is less than ``mark``; nodes reached are
        stamped ``mark``, and a node removed for good carries the greatest integer.
    mark : int
        A number greater than every stamp but those of removed nodes.
    queue : ndarray of shape (n_nodes,)
        On return its first places hold the ball, nearest nodes first.

    Returns
    -------
    int
        The number of nodes in the ball, the root included.
    """
    stamp[root] = mark
    queue[0] = root
    begin, size = 0, 1
    for _ in range(hops):
        end = size
        for node in queue[begin:end]:
            for other in indices[indptr[node] : indptr[node + 1]]:
                if stamp[other] < mark:
                    stamp[other] = mark
                    queue[size] = other
                    size += 1
        if size == end:
            break
        begin = end
    return size


def hops_from(
    indptr: NDArray[np.int32],
    indices: NDArray[np.int32],
    root: int,
    steps: NDArray[np.int32],
    queue: NDArray[np.int32],
) -> int:
    """Write every node's distance from ``root`` into ``steps`` and return the greatest.

    Parameters
    ----------
    indptr, indices
        As for `ball`.
    root : int
        Where to measure from.
    steps : ndarray of shape (n_nodes,)
        On return the hops from the root, -1 for nodes that it does not reach.
    queue : ndarray of shape (n_nodes,)
        Work array.

    Returns
    -------
    int
        The eccentricity of the root among the nodes that it reaches.
    """
    steps[:] = -1
    steps[root] = 0
    queue[0] = root
    place, size = 0, 1
    while place < size:
        node = queue[place]
        place += 1
        for other in indices[indptr[node] : indptr[node + 1]]:
            if steps[other] < 0:
                steps[other] = steps[node] + 1
                queue[size] = other
                size += 1
    return int(steps.max())
