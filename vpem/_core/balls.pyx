"""Balls of a graph: the nodes within a number of hops of one node, by truncated BFS."""


cdef int grow_ball(
    const int[::1] indptr,   # IN  (n_nodes + 1,) where the neighbours of each node begin
    const int[::1] indices,  # IN  (n_edges * 2,)
    int root,                # IN  node in the middle
    int hops,                # IN  how far the ball reaches
    int[::1] stamp,          # WORK (n_nodes,) closed nodes have mark or more; reached ones get it
    int mark,                # IN  greater than every stamp but those of removed nodes
    int[::1] queue,          # OUT (n_nodes,) the ball, nearest first, in its first places
) noexcept nogil:
    cdef int begin = 0, end, size = 1, place, edge, node, other, _hop
    stamp[root] = mark
    queue[0] = root
    for _hop in range(hops):
        end = size
        for place in range(begin, end):
            node = queue[place]
            for edge in range(indptr[node], indptr[node + 1]):
                other = indices[edge]
                if stamp[other] < mark:
                    stamp[other] = mark
                    queue[size] = other
                    size += 1
        if size == end:
            break
        begin = end
    return size


def ball(
    const int[::1] indptr,
    const int[::1] indices,
    int root,
    int hops,
    int[::1] stamp,
    int mark,
    int[::1] queue,
):
    """Write the nodes within `hops` of `root` into `queue` and return how many they are.

    See the twin in `tests.twins.codecs` for the arguments. Nodes whose stamp is `mark` or more are
    walls: a removed node carries the greatest integer for ever.
    """
    cdef int size
    with nogil:
        size = grow_ball(indptr, indices, root, hops, stamp, mark, queue)
    return size


cdef int measure(
    const int[::1] indptr,   # IN  (n_nodes + 1,) where the neighbours of each node begin
    const int[::1] indices,  # IN  (n_edges * 2,)
    int root,                # IN  node to measure from
    int[::1] steps,          # OUT (n_nodes,) hops from the root, -1 where it does not reach
    int[::1] queue,          # WORK (n_nodes,)
) noexcept nogil:
    cdef int place = 0, size = 1, edge, node = root, other
    for other in range(<int>steps.shape[0]):
        steps[other] = -1
    steps[root] = 0
    queue[0] = root
    while place < size:
        node = queue[place]
        place += 1
        for edge in range(indptr[node], indptr[node + 1]):
            other = indices[edge]
            if steps[other] < 0:
                steps[other] = steps[node] + 1
                queue[size] = other
                size += 1
    return steps[node]


def hops_from(
    const int[::1] indptr,
    const int[::1] indices,
    int root,
    int[::1] steps,
    int[::1] queue,
):
    """Write every node's distance from `root` into `steps` and return the greatest.

    See the twin in `tests.twins.codecs` for the arguments.
    """
    cdef int most
    with nogil:
        most = measure(indptr, indices, root, steps, queue)
    return most
