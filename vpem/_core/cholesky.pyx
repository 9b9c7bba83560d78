"""Cholesky factors of the covariance blocks: what whitens a block, and its log-determinant."""
from libc.float cimport DBL_EPSILON, FLT_EPSILON
from libc.math cimport isfinite, log
from libc.string cimport memset

from vpem._core.lapack cimport cholesky, invert_lower
from vpem._core.real cimport real


cdef int whiten_block(
    const real* covariance,  # IN    (n, n)
    real* block,             # INOUT (n, n)  the same in, inverse Cholesky factor out
    int n,
    real* log_det,           # OUT   (1,)
) noexcept nogil:
    """Factor one block in place; non-zero where it is not positive definite but for rounding."""
    cdef int i, j
    cdef real total = 0
    cdef real least = 64 * n * (DBL_EPSILON if real is double else FLT_EPSILON)
    if n == 0:
        log_det[0] = 0
        return 0
    if cholesky(block, n) != 0:
        return 1
    for i in range(n):
        if not isfinite(block[i * n + i]):
            return 1
        if not block[i * n + i] * block[i * n + i] > least * covariance[i * n + i]:
            return 1
        total += log(block[i * n + i])
        for j in range(i + 1, n):
            block[i * n + j] = 0
    log_det[0] = 2 * total
    return invert_lower(block, n)


def cholesky_blocks(
    const real[::1] covariances,          # IN  (n_copies * sum d_b^2,)  block by block
    const Py_ssize_t[::1] offsets,        # IN  (B + 1,)  first feature of each block
    Py_ssize_t n_copies,                  # IN  covariances a block: K, or 1 when tied
    real[::1] whiteners,                  # OUT (n_copies * sum d_b^2,)  inverse Cholesky factors
    real[:, ::1] log_dets,                # OUT (n_copies, B)
    unsigned char[:, ::1] failed,         # OUT (n_copies, B)  1 where singular to rounding
):
    """Whitening factor ``L^-1`` and ``log|Sigma|`` of every covariance block, ``Sigma = L L^T``.

    See `tests.twins.mixture.cholesky_blocks`.
    """
    cdef Py_ssize_t n_blocks = offsets.shape[0] - 1
    cdef Py_ssize_t b, c, start = 0, size
    cdef int n
    cdef bint singular = False
    whiteners[:] = covariances
    with nogil:
        for b in range(n_blocks):
            n = <int>(offsets[b + 1] - offsets[b])
            size = <Py_ssize_t>n * n
            for c in range(n_copies):
                failed[c, b] = 0
                log_dets[c, b] = 0
                if n > 0 and whiten_block(
                    &covariances[start], &whiteners[start], n, &log_dets[c, b]
                ) != 0:
                    failed[c, b] = singular = True
                    log_dets[c, b] = 0
                    memset(&whiteners[start], 0, size * sizeof(real))
                start += size
    return singular
