"""Responsibilities and per-row log-likelihoods from the summed terms, and terms as differences."""
import numpy as np

from cython.parallel cimport prange
from libc.math cimport INFINITY, exp, fabs, isnan, log

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
    cdef Py_ssize_t k, top = 0
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
            top = k
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
        value = exp(value - largest) if k != top or isnan(largest) else 1.0
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

    See `tests.twins.mixture.normalise`.
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


cdef inline double nearer(double apart, double limit) noexcept nogil:
    """How far something is that counts as nearer beyond a limit."""
    if apart > limit:
        return limit * (2 - limit / apart)
    return apart


cdef double differ_row(
    const real* terms, Py_ssize_t n_values, double limit, real* out,
) noexcept nogil:
    """Differences of a row of which some value is far away; returns its first one."""
    cdef Py_ssize_t k
    cdef double first, least = terms[0]
    for k in range(1, n_values):
        if terms[k] < least:
            least = terms[k]
    if least == INFINITY:  # no component reaches this row
        for k in range(1, n_values):
            out[k - 1] = 0
        return least
    first = nearer(terms[0] - least, limit)
    for k in range(1, n_values):
        out[k - 1] = <real>(nearer(terms[k] - least, limit) - first)
    return first + least


cdef double differ_rows(
    const real* terms,            # IN  (n_rows, L)
    const double* row_weights,    # IN  (n_rows,) or NULL
    Py_ssize_t n_rows,
    Py_ssize_t n_values,          # L
    double limit,
    real* out,                    # OUT (n_rows, L - 1)
) noexcept nogil:
    """Differences of some rows; returns the sum of their first values."""
    cdef Py_ssize_t m, k
    cdef double found[4]          # so that additions need not wait for each other
    cdef double first, apart, farthest
    found[0] = found[1] = found[2] = found[3] = 0
    if n_values == 2 and row_weights == NULL:
        for m in range(n_rows):
            first = terms[2 * m]
            apart = terms[2 * m + 1] - first
            out[m] = <real>apart
            if not 2 * fabs(apart) <= limit or not fabs(first) < INFINITY:
                first = differ_row(terms + 2 * m, 2, limit, out + m)
            found[m & 3] += first
        return (found[0] + found[1]) + (found[2] + found[3])
    for m in range(n_rows):
        first, farthest = terms[0], 0
        for k in range(1, n_values):
            apart = terms[k] - first
            out[k - 1] = <real>apart
            farthest = max(farthest, fabs(apart))
        # Values differ by twice that at most; what is no number is not below either.
        if not 2 * farthest <= limit or not fabs(first) < INFINITY:
            first = differ_row(terms, n_values, limit, out)
        found[m & 3] += first if row_weights == NULL else row_weights[m] * first
        terms += n_values
        out += n_values - 1
    return (found[0] + found[1]) + (found[2] + found[3])


def differences(
    const real[:, :, ::1] terms,             # IN  (B, M, L)
    const double[::1] row_weights,           # IN  (M,), or (0,): all 1
    real[:, :, ::1] out,                     # OUT (B, M, L - 1)
    double[::1] firsts,                      # INOUT (B,)  sums are added
    double limit,                            # IN          above 0
    int n_threads,
):
    """How values differ from the first of their row, and the sum of the first ones over the rows.

    See `tests.twins.mixture.differences`.
    """
    cdef Py_ssize_t n_blocks = terms.shape[0], n_samples = terms.shape[1]
    cdef Py_ssize_t n_values = terms.shape[2]
    cdef Py_ssize_t n_pieces = (n_samples + ROWS_A_PIECE - 1) // ROWS_A_PIECE, i, b, m
    if n_blocks * n_samples == 0:
        return
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
            min(<Py_ssize_t>ROWS_A_PIECE, n_samples - m), n_values, limit,
            into + (b * n_samples + m) * (n_values - 1),
        )
    for b in range(n_blocks):
        for i in range(n_pieces):
            firsts[b] += found[b * n_pieces + i]
