"""The NumPy twin of the graph kernels in `balls`: what they compute, written to be read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["ball", "hops_from"]


def ball(
    indptr: NDArray[np.int32],  # (n_nodes + 1,)
    indices: NDArray[np.int32],  # (2 n_edges,) the neighbours, node after node
    root: int,
    hops: int,
    stamp: NDArray[np.int32],  # (n_nodes,), in and out
    mark: int,
    queue: NDArray[np.int32],  # (n_nodes,), out
) -> int:
    """Write the nodes within ``hops`` of ``root`` into ``queue`` and return how many they are.

    The ball is ``{v : dist(root, v) <= hops}``, distances being taken among open nodes only; the
    nearest nodes come first. A node is open while its stamp is less than ``mark``, which is greater
    than every stamp but those of removed nodes, the greatest integer; nodes reached are stamped
    ``mark``.
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
    """Write the hops from ``root``, -1 where it does not lead, into ``steps``; return the greatest.

    ``queue`` (n_nodes,) is a work array; the graph is as for `ball`.
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
