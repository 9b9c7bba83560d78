"""Consensus rounds: repeated products with a sparse mixing matrix, many values at once."""
import numpy as np

from cython.parallel cimport prange, threadid
from libc.string cimport memcpy

from vpem._core.blas cimport real

cdef enum:
    CACHE_BYTES = 262144


cdef void mix_once(
    const int* indptr,        # IN  (N + 1,)
    const int* indices,       # IN  (nnz,)
    const real* weights,      # IN  (nnz,)
    const real* states,       # IN  (N, width)
    real* mixed,              # OUT (N, width)
    Py_ssize_t n_agents,
    Py_ssize_t width,
) noexcept nogil:
    """One round: every agent takes the weighted mean of its neighbours and itself."""
    cdef Py_ssize_t n, v
    cdef int e
    cdef real weight
    cdef const real* theirs
    cdef real* own
    for n in range(n_agents):
        own = mixed + n * width
        for v in range(width):
            own[v] = 0
        for e in range(indptr[n], indptr[n + 1]):
            weight = weights[e]
            theirs = states + indices[e] * width
            for v in range(width):
                own[v] = own[v] + weight * theirs[v]


cdef void tile_rounds(
    const int* indptr,
    const int* indices,
    const real* weights,
    real* states,             # INOUT (N, n_values)  columns first..first + width
    Py_ssize_t n_agents,
    Py_ssize_t n_values,
    Py_ssize_t first,
    Py_ssize_t width,
    Py_ssize_t n_rounds,
    real* here,               # WORK (N, width)
    real* there,              # WORK (N, width)
) noexcept nogil:
    """All rounds of a few values, which stay in cache from the first to the last."""
    cdef Py_ssize_t n, s
    cdef real* swap
    for n in range(n_agents):
        memcpy(here + n * width, states + n * n_values + first, width * sizeof(real))
    for s in range(n_rounds):
        mix_once(indptr, indices, weights, here, there, n_agents, width)
        swap = here
        here = there
        there = swap
    for n in range(n_agents):
        memcpy(states + n * n_values + first, here + n * width, width * sizeof(real))


def consensus_rounds(
    const int[::1] indptr,        # IN    (N + 1,)
    const int[::1] indices,       # IN    (nnz,)
    const real[::1] weights,      # IN    (nnz,)       mixing matrix in CSR form
    real[:, ::1] states,          # INOUT (N, V)       one column a value
    Py_ssize_t n_rounds,
    int n_threads,
):
    """Overwrite ``states`` by ``W^S states``, as S rounds between neighbours.

    See `vpem._core.reference.consensus_rounds`.
    """
    cdef Py_ssize_t n_agents = states.shape[0], n_values = states.shape[1]
    if n_agents == 0 or n_values == 0 or n_rounds == 0:
        return
    cdef Py_ssize_t width = max(<Py_ssize_t>8, CACHE_BYTES // (2 * n_agents * <int>sizeof(real)))
    width = min(width, n_values)
    cdef Py_ssize_t n_tiles = (n_values + width - 1) // width
    cdef Py_ssize_t tile, first
    n_threads = max(1, min(n_threads, <int>n_tiles))
    dtype = np.float64 if real is double else np.float32
    cdef real[:, :, ::1] work = np.empty((n_threads, 2, n_agents * width), dtype=dtype)
    for tile in prange(n_tiles, nogil=True, num_threads=n_threads, schedule="static"):
        first = tile * width
        tile_rounds(
            &indptr[0], &indices[0], &weights[0], &states[0, 0], n_agents, n_values, first,
            min(width, n_values - first), n_rounds,
            &work[threadid(), 0, 0], &work[threadid(), 1, 0],
        )
