"""Consensus rounds: repeated products with a sparse mixing matrix, many values at once."""
import numpy as np

from cython.parallel cimport prange, threadid
from libc.string cimport memcpy, memset

from vpem._core.real cimport real
from vpem._core.shares cimport at_once, worth
from vpem._core.simd cimport (
    vpem_instruction_set, vpem_lanes_d, vpem_lanes_f, vpem_mix_d, vpem_mix_f,
)

cdef enum:
    CACHE_BYTES = 262144
    ROUND_WIDTH = 32  # twice the most values of a vector


cdef void tile_rounds(
    const int* indptr,
    const int* indices,
    const real* weights,
    real* states,             # INOUT (N, n_values)  columns first..first + count
    Py_ssize_t n_agents,
    Py_ssize_t n_values,
    Py_ssize_t first,
    Py_ssize_t count,
    Py_ssize_t width,         # of the work arrays: count rounded up to whole vectors
    const double* steps,      # IN (n_rounds,)
    Py_ssize_t n_rounds,
    int isa,
    real* here,               # WORK (N, width)
    real* there,              # WORK (N, width)
) noexcept nogil:
    """All rounds of a few values, which stay in cache from the first to the last."""
    cdef Py_ssize_t n, number
    cdef real* swap
    for n in range(n_agents):
        memcpy(here + n * width, states + n * n_values + first, count * sizeof(real))
        memset(here + n * width + count, 0, (width - count) * sizeof(real))
    memset(there, 0, n_agents * width * sizeof(real))
    for number in range(n_rounds):
        if real is double:
            vpem_mix_d(isa, indptr, indices, weights, here, there, n_agents, width, steps[number])
        else:
            vpem_mix_f(isa, indptr, indices, weights, here, there, n_agents, width,
                       <float>steps[number])
        swap = here
        here = there
        there = swap
    for n in range(n_agents):
        memcpy(states + n * n_values + first, here + n * width, count * sizeof(real))


def consensus_rounds(
    const int[::1] indptr,        # IN    (N + 1,)
    const int[::1] indices,       # IN    (nnz,)
    const real[::1] weights,      # IN    (nnz,)       mixing matrix in CSR form
    real[:, ::1] states,          # INOUT (N, V)       one column a value
    const double[::1] steps,      # IN    (S,)         1, and how far each later round goes
    int n_threads,
):
    """Run S rounds between neighbours on ``states``: ``W^S states`` where all steps are 1.

    See `tests.twins.mixture.consensus_rounds`.
    """
    cdef Py_ssize_t n_agents = states.shape[0], n_values = states.shape[1]
    cdef Py_ssize_t n_rounds = steps.shape[0]
    if n_agents == 0 or n_values == 0 or n_rounds == 0:
        return
    cdef int isa = vpem_instruction_set()
    cdef Py_ssize_t step = 2 * (vpem_lanes_d(isa) if real is double else vpem_lanes_f(isa))
    # Few enough values at a time for both states of all agents to stay in cache.
    cdef Py_ssize_t width = CACHE_BYTES // (2 * n_agents * <int>sizeof(real)) // step * step
    width = max(step, min(width, (n_values + step - 1) // step * step))
    cdef Py_ssize_t n_tiles = (n_values + width - 1) // width
    cdef Py_ssize_t tile, first, size = (n_agents * width + 15) // 16 * 16
    n_threads = worth(n_threads, n_tiles, n_rounds * n_values * (0.07 * weights.shape[0]))
    dtype = np.float64 if real is double else np.float32
    memory = np.empty(2 * n_threads * size + 64, dtype=dtype)
    skip = -memory.ctypes.data % 64 // memory.itemsize
    cdef real[::1] work = memory[skip:]
    for tile in prange(
        n_tiles, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1,
    ):
        first = tile * width
        tile_rounds(
            &indptr[0], &indices[0], &weights[0], &states[0, 0], n_agents, n_values, first,
            min(width, n_values - first), width, &steps[0], n_rounds, isa,
            &work[2 * threadid() * size], &work[(2 * threadid() + 1) * size],
        )


def neighbour_round(
    const int[::1] indptr,        # IN    (n + 1,)
    const int[::1] indices,       # IN    (nnz,)       columns below N
    const real[::1] weights,      # IN    (nnz,)       some rows of the mixing matrix in CSR form
    const real[:, ::1] states,    # IN    (N, V)       of all neighbours, those of these rows first
    real[:, ::1] mixed,           # INOUT (>= n, V)    states before, and those after
    double step,                  # IN                 1, or how far the round goes
    int n_threads,
):
    """Run one round for some agents: ``mixed = step W states + (1 - step) mixed``.

    V must be a multiple of `ROUND_WIDTH` and both arrays must begin at a multiple of 64 bytes.
    See `tests.twins.mixture.neighbour_round`.
    """
    cdef Py_ssize_t n_agents = indptr.shape[0] - 1, width = states.shape[1], n
    if n_agents <= 0 or width == 0:
        return
    cdef int isa = vpem_instruction_set()
    if width % ROUND_WIDTH or <size_t>&states[0, 0] % 64 or <size_t>&mixed[0, 0] % 64:
        raise ValueError("states must be aligned to 64 bytes and as wide as whole vectors")
    n_threads = worth(n_threads, n_agents, width * (0.07 * weights.shape[0]))
    for n in prange(
        n_agents, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_agents, n_threads),
    ):
        if real is double:
            vpem_mix_d(isa, &indptr[n], &indices[0], &weights[0], &states[0, 0], &mixed[n, 0],
                       1, width, step)
        else:
            vpem_mix_f(isa, &indptr[n], &indices[0], &weights[0], &states[0, 0], &mixed[n, 0],
                       1, width, <float>step)
