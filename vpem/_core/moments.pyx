"""Weighted first and second moments of the blocks about a shift: the statistics of the M-step."""
import numpy as np

from cython.parallel cimport prange, threadid
from libc.math cimport sqrt

from vpem._core.blas cimport add_gram
from vpem._core.real cimport real
from vpem._core.shares cimport add_shares, all_kept, share_begin, worth

cdef enum:
    TILE = 256


cdef void tile_moments_full(
    const real* rows,                          # IN   (n_rows, d)
    Py_ssize_t n_rows,
    Py_ssize_t d,
    const real[:, :, ::1] responsibilities,    # IN   (R, M, K)  rows first..first + n_rows
    Py_ssize_t first,
    const Py_ssize_t[::1] offsets,             # IN   (B + 1,)
    const real[:, ::1] shifts,                 # IN   (K, d)
    bint tied,
    double* first_moment,                      # INOUT (K, d)
    double* second_moment,                     # INOUT (n_copies * sum d_b^2,)
    real* scratch,                             # WORK (TILE + widest, widest)
) noexcept nogil:
    cdef Py_ssize_t n_components = shifts.shape[0], n_roots = responsibilities.shape[0]
    cdef Py_ssize_t b, r, k, m, i, j, left, width, start = 0
    cdef real weight, root
    cdef real entry
    cdef real* gram
    cdef double* total
    for b in range(offsets.shape[0] - 1):
        r = b if n_roots > 1 else 0
        left = offsets[b]
        width = offsets[b + 1] - left
        if width == 0:
            continue
        gram = scratch + TILE * width
        for k in range(n_components):
            for m in range(n_rows):
                weight = responsibilities[r, first + m, k]
                root = sqrt(weight)
                for j in range(width):
                    entry = rows[m * d + left + j] - shifts[k, left + j]
                    first_moment[k * d + left + j] += weight * entry
                    scratch[m * width + j] = root * entry
            total = second_moment + start + (0 if tied else k * width * width)
            if real is double:
                add_gram(<const double*>scratch, total, <int>n_rows, <int>width, 1.0)
            else:
                # Single precision inside a tile, double precision over the tiles.
                add_gram(<const float*>scratch, <float*>gram, <int>n_rows, <int>width, 0.0)
                for i in range(width):
                    for j in range(i + 1):
                        total[i * width + j] += gram[i * width + j]
        start += (1 if tied else n_components) * width * width


def moments_full(
    const real[:, ::1] rows,                   # IN  (M, d)
    const real[:, :, ::1] responsibilities,    # IN  (R, M, K)  R = 1: shared by all blocks
    const Py_ssize_t[::1] offsets,             # IN  (B + 1,)
    const real[:, ::1] shifts,                 # IN  (K, d)
    double[:, ::1] first_moment,               # INOUT (K, d)   sum g (x - shift), added to
    double[::1] second_moment,                 # INOUT (n_copies * sum d_b^2,)  lower triangles
    int n_threads,
):
    """Add the weighted moments of these rows about ``shifts``, block by block.

    See `tests.twins.mixture.moments_full`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], d = rows.shape[1]
    cdef Py_ssize_t n_tiles = (n_samples + TILE - 1) // TILE
    cdef Py_ssize_t widest = 1, squares = 0, tile, b, first, count, width, share, n_shares
    cdef double work = 0
    for b in range(offsets.shape[0] - 1):
        width = offsets[b + 1] - offsets[b]
        widest = max(widest, width)
        squares += width * width
        work += width * width / 24.0 + width / 2.0 + 5
    if n_samples == 0 or d == 0:
        return
    cdef bint tied = shifts.shape[0] > 1 and second_moment.shape[0] == squares
    work *= n_samples * shifts.shape[0]
    n_shares = all_kept(n_tiles, shifts.shape[0] * d + second_moment.shape[0])
    n_threads = worth(n_threads, n_shares, work)
    dtype = np.float64 if real is double else np.float32
    cdef real[:, ::1] scratch = np.empty((n_threads, (TILE + widest) * widest), dtype=dtype)
    cdef double[:, :, ::1] firsts = np.zeros((n_shares, shifts.shape[0], d))
    cdef double[:, ::1] seconds = np.zeros((n_shares, second_moment.shape[0]))
    cdef const real* data = &rows[0, 0]
    for share in prange(
        n_shares, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1,
    ):
        for tile in range(
            share_begin(share, n_shares, n_tiles), share_begin(share + 1, n_shares, n_tiles)
        ):
            first = tile * TILE
            count = min(<Py_ssize_t>TILE, n_samples - first)
            tile_moments_full(
                data + first * d, count, d, responsibilities, first, offsets, shifts, tied,
                &firsts[share, 0, 0], &seconds[share, 0], &scratch[threadid(), 0],
            )
    add_shares(&firsts[0, 0, 0], n_shares, shifts.shape[0] * d, &first_moment[0, 0])
    add_shares(&seconds[0, 0], n_shares, second_moment.shape[0], &second_moment[0])


cdef void tile_moments_diag(
    const real* rows,                          # IN   (n_rows, d)
    Py_ssize_t n_rows,
    Py_ssize_t d,
    const real[:, :, ::1] responsibilities,    # IN   (R, M, K)  rows first..first + n_rows
    Py_ssize_t first,
    const Py_ssize_t[::1] offsets,             # IN   (B + 1,)
    const real[:, ::1] shifts,                 # IN   (K, d)
    Py_ssize_t n_copies,
    double* first_moment,                      # INOUT (K, d)
    double* second_moment,                     # INOUT (n_copies, d)
) noexcept nogil:
    cdef Py_ssize_t n_components = shifts.shape[0], n_roots = responsibilities.shape[0]
    cdef Py_ssize_t b, r, k, m, j
    cdef double weight, entry
    cdef double* total
    for m in range(n_rows):
        for k in range(n_components):
            total = second_moment + (k * d if n_copies > 1 else 0)
            for b in range(offsets.shape[0] - 1):
                r = b if n_roots > 1 else 0
                weight = responsibilities[r, first + m, k]
                for j in range(offsets[b], offsets[b + 1]):
                    entry = rows[m * d + j] - shifts[k, j]
                    first_moment[k * d + j] += weight * entry
                    total[j] += weight * entry * entry


def moments_diag(
    const real[:, ::1] rows,                   # IN  (M, d)
    const real[:, :, ::1] responsibilities,    # IN  (R, M, K)
    const Py_ssize_t[::1] offsets,             # IN  (B + 1,)
    const real[:, ::1] shifts,                 # IN  (K, d)
    double[:, ::1] first_moment,               # INOUT (K, d)         added to
    double[:, ::1] second_moment,              # INOUT (n_copies, d)  added to
    int n_threads,
):
    """Add the weighted moments of these rows about ``shifts``, feature by feature.

    See `tests.twins.mixture.moments_diag`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], d = rows.shape[1]
    cdef Py_ssize_t n_tiles = (n_samples + TILE - 1) // TILE
    cdef Py_ssize_t n_copies = second_moment.shape[0], tile, first, count
    cdef Py_ssize_t share, n_shares
    cdef double work = 0.75 * d + 1.5 * (offsets.shape[0] - 1)
    if n_samples == 0 or d == 0:
        return
    work *= n_samples * shifts.shape[0]
    n_shares = all_kept(n_tiles, (shifts.shape[0] + n_copies) * d)
    n_threads = worth(n_threads, n_shares, work)
    cdef double[:, :, ::1] firsts = np.zeros((n_shares, shifts.shape[0], d))
    cdef double[:, :, ::1] seconds = np.zeros((n_shares, n_copies, d))
    cdef const real* data = &rows[0, 0]
    for share in prange(
        n_shares, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1,
    ):
        for tile in range(
            share_begin(share, n_shares, n_tiles), share_begin(share + 1, n_shares, n_tiles)
        ):
            first = tile * TILE
            count = min(<Py_ssize_t>TILE, n_samples - first)
            tile_moments_diag(
                data + first * d, count, d, responsibilities, first, offsets, shifts, n_copies,
                &firsts[share, 0, 0], &seconds[share, 0, 0],
            )
    add_shares(&firsts[0, 0, 0], n_shares, shifts.shape[0] * d, &first_moment[0, 0])
    add_shares(&seconds[0, 0, 0], n_shares, n_copies * d, &second_moment[0, 0])
