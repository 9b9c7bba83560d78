"""The NumPy twin of the graph kernel in `balls`: what it computes, written to be read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["ball"]


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
