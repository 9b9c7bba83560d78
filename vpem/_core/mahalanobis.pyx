"""Local terms of the E-step: log-determinant plus squared Mahalanobis distance, block by block."""
import numpy as np

from cython.parallel cimport prange, threadid

from vpem._core.blas cimport multiply_lower
from vpem._core.real cimport real
from vpem._core.shares cimport at_once, worth

cdef enum:
    TILE = 256


cdef void tile_terms_full(
    const real* rows,                # IN  (n_rows, d)     one tile of the data
    Py_ssize_t n_rows,
    Py_ssize_t d,
    const Py_ssize_t[::1] offsets,   # IN  (B + 1,)
    const real[:, ::1] means,        # IN  (K, d)
    const real* whiteners,           # IN  (n_copies * sum d_b^2,)
    const real[:, ::1] log_dets,     # IN  (n_copies, B)
    real[:, :, ::1] terms,           # OUT (B, M, K)       rows first..first + n_rows
    Py_ssize_t first,
    real* scratch,                   # WORK (TILE, largest d_b)
) noexcept nogil:
    cdef Py_ssize_t n_blocks = offsets.shape[0] - 1
    cdef Py_ssize_t n_components = means.shape[0], n_copies = log_dets.shape[0]
    cdef Py_ssize_t b, k, c, m, j, left, width, start = 0
    cdef real total, entry
    cdef const real* row
    for b in range(n_blocks):
        left = offsets[b]
        width = offsets[b + 1] - left
        for k in range(n_components):
            c = k if n_copies > 1 else 0
            for m in range(n_rows):
                row = rows + m * d + left
                for j in range(width):
                    scratch[m * width + j] = row[j] - means[k, left + j]
            if width > 0:
                multiply_lower(
                    whiteners + start + c * width * width, scratch, <int>n_rows, <int>width
                )
            for m in range(n_rows):
                total = log_dets[c, b]
                for j in range(width):
                    entry = scratch[m * width + j]
                    total = total + entry * entry
                terms[b, first + m, k] = total
        start += n_copies * width * width


def mahalanobis_full(
    const real[:, ::1] rows,            # IN  (M, d)   features in the order of the blocks
    const Py_ssize_t[::1] offsets,      # IN  (B + 1,)
    const real[:, ::1] means,           # IN  (K, d)
    const real[::1] whiteners,          # IN  (n_copies * sum d_b^2,)  from `cholesky_blocks`
    const real[:, ::1] log_dets,        # IN  (n_copies, B)
    real[:, :, ::1] terms,              # OUT (B, M, K)
    int n_threads,
):
    """Terms ``log|Sigma| + (x - mu)^T Sigma^-1 (x - mu)`` of blocks with full covariance.

    See `tests.twins.mixture.mahalanobis_full`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], d = rows.shape[1]
    cdef Py_ssize_t n_tiles = (n_samples + TILE - 1) // TILE
    cdef Py_ssize_t widest = 1, tile, b, first, count, width
    cdef double work = 0
    for b in range(offsets.shape[0] - 1):
        width = offsets[b + 1] - offsets[b]
        widest = max(widest, width)
        work += width * width / 24.0 + width / 2.0 + 3
    n_threads = worth(n_threads, n_tiles, work * n_samples * means.shape[0])
    dtype = np.float64 if real is double else np.float32
    cdef real[:, ::1] scratch = np.empty((n_threads, TILE * widest), dtype=dtype)
    cdef const real* data = &rows[0, 0] if n_samples and d else NULL
    cdef const real* factors = &whiteners[0] if whiteners.shape[0] else NULL
    for tile in prange(
        n_tiles, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_tiles, n_threads),
    ):
        first = tile * TILE
        count = min(<Py_ssize_t>TILE, n_samples - first)
        tile_terms_full(
            data + first * d, count, d, offsets, means, factors, log_dets, terms, first,
            &scratch[threadid(), 0],
        )


cdef void row_terms_diag(
    const real* row,                 # IN  (d,)
    const Py_ssize_t[::1] offsets,   # IN  (B + 1,)
    const real[:, ::1] means,        # IN  (K, d)
    const real[:, ::1] precisions,   # IN  (n_copies, d)
    const real[:, ::1] log_dets,     # IN  (n_copies, B)
    real[:, :, ::1] terms,           # OUT (B, M, K)  row m
    Py_ssize_t m,
) noexcept nogil:
    cdef Py_ssize_t n_components = means.shape[0], n_copies = log_dets.shape[0]
    cdef Py_ssize_t b, k, c, j
    cdef real total, entry
    for b in range(offsets.shape[0] - 1):
        for k in range(n_components):
            c = k if n_copies > 1 else 0
            total = log_dets[c, b]
            for j in range(offsets[b], offsets[b + 1]):
                entry = row[j] - means[k, j]
                total = total + entry * entry * precisions[c, j]
            terms[b, m, k] = total


def mahalanobis_diag(
    const real[:, ::1] rows,            # IN  (M, d)
    const Py_ssize_t[::1] offsets,      # IN  (B + 1,)
    const real[:, ::1] means,           # IN  (K, d)
    const real[:, ::1] precisions,      # IN  (n_copies, d)  inverse variances
    const real[:, ::1] log_dets,        # IN  (n_copies, B)
    real[:, :, ::1] terms,              # OUT (B, M, K)
    int n_threads,
):
    """Terms of blocks with diagonal covariance (squared distances when all precisions are one).

    See `tests.twins.mixture.mahalanobis_diag`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], d = rows.shape[1], m
    cdef double work = d / 2.0 + 1.5 * (offsets.shape[0] - 1)
    cdef const real* data = &rows[0, 0] if n_samples and d else NULL
    n_threads = worth(n_threads, n_samples, work * n_samples * means.shape[0])
    for m in prange(
        n_samples, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_samples, n_threads),
    ):
        row_terms_diag(data + m * d, offsets, means, precisions, log_dets, terms, m)
