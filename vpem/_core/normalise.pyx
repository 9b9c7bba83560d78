"""Responsibilities and per-row log-likelihoods from the summed terms, and terms as differences."""
import numpy as np

from cython.parallel cimport prange
from libc.math cimport INFINITY, exp, isnan, log

from vpem._core.real cimport real
from vpem._core.shares cimport at_once, worth

cdef enum:
    ROWS_A_PIECE = 1024  # whose sum is taken by one thread, whatever their number


cdef void normalise_row(
    const real* sums,             # IN  (K,), or (K - 1,) differences from the first, which is 0
    Py_ssize_t implied,           # IN  components that have none: 0 or 1
    const double* log_weights,    # IN  (K,)
    Py_ssize_t n_components,
    real* responsibilities,       # OUT (K,)
    double* log_likelihood,       # OUT (1,)
) noexcept nogil:
    """Log-sum-exp of one row, shifted by its largest entry."""
    cdef Py_ssize_t k
    cdef double largest = -INFINITY, total = 0, value
    for k in range(n_components):
        value = log_weights[k]
        if k >= implied:
            value -= 0.5 * sums[k - implied]
        if isnan(value):
            largest = value
            break
        if value > largest:
            largest = value
    if largest == -INFINITY:
        # No component reaches this row: what is known of it is the mixing weights alone.
        for k in range(n_components):
            responsibilities[k] = <real>exp(log_weights[k])
        log_likelihood[0] = -INFINITY
        return
    for k in range(n_components):
        value = log_weights[k]
        if k >= implied:
            value -= 0.5 * sums[k - implied]
        value = exp(value - largest)
        responsibilities[k] = <real>value
        total += value
    for k in range(n_components):
        responsibilities[k] = <real>(responsibilities[k] / total)
    log_likelihood[0] = largest + log(total)


def normalise(
    const real[:, :, ::1] sums,              # IN  (R, M, K)  sum of the blocks' terms, or
                                             #     (R, M, K - 1)  of their differences
    const double[:, ::1] log_weights,        # IN  (R, K)
    real[:, :, ::1] responsibilities,        # OUT (R, M, K)
    double[:, ::1] log_likelihoods,          # OUT (R, M)     without the constant of 2 pi
    int n_threads,
):
    """Softmax of ``log pi - s / 2`` over the components, and its normaliser, root by root.

    See `vpem._core.reference.normalise`.
    """
    cdef Py_ssize_t n_roots = sums.shape[0], n_samples = sums.shape[1]
    cdef Py_ssize_t n_components = log_weights.shape[1], n_values = sums.shape[2]
    cdef Py_ssize_t implied = n_components - n_values
    cdef Py_ssize_t i, r, m, n_rows = n_roots * n_samples
    cdef const real* first
    if not 0 <= implied <= 1 or responsibilities.shape[2] != n_components:
        raise ValueError("sums must have a value for every component, or for all but the first")
    if n_rows == 0:
        return
    n_threads = worth(n_threads, n_rows, n_rows * (20.0 + 6 * n_components))
    first = &sums[0, 0, 0] if n_values else NULL
    for i in prange(
        n_rows, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_rows, n_threads),
    ):
        r = i // n_samples
        m = i - r * n_samples
        normalise_row(
            first + i * n_values, implied, &log_weights[r, 0], n_components,
            &responsibilities[r, m, 0], &log_likelihoods[r, m],
        )


cdef double differ_rows(
    const real* terms,            # IN  (n_rows, L)
    const double* row_weights,    # IN  (n_rows,) or NULL
    Py_ssize_t n_rows,
    Py_ssize_t n_values,          # L
    double most,
    real* out,                    # OUT (n_rows, L - 1)
) noexcept nogil:
    """Differences of some rows; returns the sum of their first values."""
    cdef Py_ssize_t m, k
    cdef double found = 0, value, first, least
    for m in range(n_rows):
        first = least = terms[0]
        if first > most:
            first = most
        for k in range(1, n_values):
            value = terms[k]
            if value < least:
                least = value
            if value > most:
                value = most
            out[k - 1] = <real>(value - first)
        if least == INFINITY:
            first = INFINITY  # no component reaches this row
        found += first if row_weights == NULL else row_weights[m] * first
        terms += n_values
        out += n_values - 1
    return found


def differences(
    const real[:, :, ::1] terms,             # IN  (B, M, L)
    const double[::1] row_weights,           # IN  (M,), or (0,): all 1
    real[:, :, ::1] out,                     # OUT (B, M, L - 1)
    double[::1] firsts,                      # INOUT (B,)  sums are added
    int n_threads,
):
    """How values differ from the first of their row, and the sum of the first ones over the rows.

    See `vpem._core.reference.differences`.
    """
    cdef Py_ssize_t n_blocks = terms.shape[0], n_samples = terms.shape[1]
    cdef Py_ssize_t n_values = terms.shape[2]
    cdef Py_ssize_t n_pieces = (n_samples + ROWS_A_PIECE - 1) // ROWS_A_PIECE, i, b, m
    if n_blocks * n_samples == 0:
        return
    dtype = np.float64 if real is double else np.float32
    cdef double most = np.finfo(dtype).max * 2.0**-24
    cdef double[::1] found = np.empty(n_blocks * n_pieces)
    cdef const double* weights = &row_weights[0] if row_weights.shape[0] else NULL
    cdef real* into = &out[0, 0, 0] if n_values > 1 else NULL
    n_threads = worth(n_threads, n_blocks * n_pieces, 2.0 * n_blocks * n_samples * n_values)
    for i in prange(
        n_blocks * n_pieces, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1,
    ):
        b = i // n_pieces
        m = (i - b * n_pieces) * ROWS_A_PIECE
        found[i] = differ_rows(
            &terms[b, m, 0], weights + m if weights != NULL else NULL,
            min(<Py_ssize_t>ROWS_A_PIECE, n_samples - m), n_values, most,
            into + (b * n_samples + m) * (n_values - 1),
        )
    for b in range(n_blocks):
        for i in range(n_pieces):
            firsts[b] += found[b * n_pieces + i]
