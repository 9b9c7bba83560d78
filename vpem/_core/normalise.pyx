"""Responsibilities and per-row log-likelihoods from the summed terms."""
from cython.parallel cimport prange
from libc.math cimport INFINITY, exp, isnan, log

from vpem._core.real cimport real
from vpem._core.shares cimport at_once, worth


cdef void normalise_row(
    const real* sums,             # IN  (K,)
    const double* log_weights,    # IN  (K,)
    Py_ssize_t n_components,
    real* responsibilities,       # OUT (K,)
    double* log_likelihood,       # OUT (1,)
) noexcept nogil:
    """Log-sum-exp of one row, shifted by its largest entry."""
    cdef Py_ssize_t k
    cdef double largest = -INFINITY, total = 0, value
    for k in range(n_components):
        value = log_weights[k] - 0.5 * sums[k]
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
        value = exp(log_weights[k] - 0.5 * sums[k] - largest)
        responsibilities[k] = <real>value
        total += value
    for k in range(n_components):
        responsibilities[k] = <real>(responsibilities[k] / total)
    log_likelihood[0] = largest + log(total)


def normalise(
    const real[:, :, ::1] sums,              # IN  (R, M, K)  sum of the blocks' terms
    const double[:, ::1] log_weights,        # IN  (R, K)
    real[:, :, ::1] responsibilities,        # OUT (R, M, K)
    double[:, ::1] log_likelihoods,          # OUT (R, M)     without the constant of 2 pi
    int n_threads,
):
    """Softmax of ``log pi - s / 2`` over the components, and its normaliser, root by root.

    See `vpem._core.reference.normalise`.
    """
    cdef Py_ssize_t n_roots = sums.shape[0], n_samples = sums.shape[1], n_components = sums.shape[2]
    cdef Py_ssize_t i, r, m, n_rows = n_roots * n_samples
    n_threads = worth(n_threads, n_rows, n_rows * (20.0 + 6 * n_components))
    for i in prange(
        n_rows, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_rows, n_threads),
    ):
        r = i // n_samples
        m = i - r * n_samples
        normalise_row(
            &sums[r, m, 0], &log_weights[r, 0], n_components,
            &responsibilities[r, m, 0], &log_likelihoods[r, m],
        )
