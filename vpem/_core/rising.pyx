"""Logarithms of rising factorials of large counts, for the sizes of negative binomials."""
import numpy as np

from cython.parallel cimport prange
from libc.math cimport lgamma, log1p

from vpem._core.real cimport real
from vpem._core.shares cimport add_shares, all_kept, at_once, share_begin, worth

cdef enum:
    TILE = 256
    EXPENSIVE = 25    # nanoseconds of one logarithm and what goes with it


cdef inline double stirling(double z) noexcept nogil:
    """``log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2``, z at least 64."""
    cdef double inverse = 1 / z, square = inverse * inverse
    return inverse * (1.0 / 12 - square * (1.0 / 360 - square / 1260))


cdef inline double half_and_more(double z) noexcept nogil:
    """``log z - digamma(z)``, z at least 64."""
    cdef double inverse = 1 / z, square = inverse * inverse
    return inverse * (0.5 + inverse * (1.0 / 12 - square * (1.0 / 120 - square / 252)))


cdef inline double trigamma(double z) noexcept nogil:
    """Of z at least 64."""
    cdef double inverse = 1 / z, square = inverse * inverse
    return inverse * (1 + inverse * (0.5 + inverse * (1.0 / 6 - square * (1.0 / 30 - square / 42))))


cdef void row_terms_rising(
    const real* row,                    # IN  (n,)
    double first,                       # IN             T
    const Py_ssize_t[::1] offsets,      # IN  (B + 1,)
    const double[:, :, ::1] line,       # IN  (n, 2, K)
    const double[:, ::1] sizes,         # IN  (n, K)
    real[:, :, ::1] terms,              # INOUT (B, M, K)  row m
    Py_ssize_t m,
) noexcept nogil:
    cdef Py_ssize_t b, j, k
    cdef double x, rest, base, rising, constant
    for b in range(offsets.shape[0] - 1):
        for j in range(offsets[b], offsets[b + 1]):
            x = row[j]
            if not x >= first:
                continue
            rest = x - first
            constant = lgamma(x + 1)
            for k in range(terms.shape[2]):
                base = sizes[j, k] + first
                rising = (base + rest - 0.5) * log1p(rest / base) - rest
                rising += stirling(base + rest) - stirling(base)
                terms[b, m, k] += <real>(
                    line[j, 0, k] + line[j, 1, k] * x + 2 * (constant - rising)
                )


def rising_terms(
    const real[:, ::1] rows,            # IN  (M, n)       counts, in the order of the blocks
    double first,                       # IN               T, at least 64: less adds nothing
    const Py_ssize_t[::1] offsets,      # IN  (B + 1,)
    const double[:, :, ::1] line,       # IN  (n, 2, K)    constants and slopes
    const double[:, ::1] sizes,         # IN  (n, K)
    real[:, :, ::1] terms,              # INOUT (B, M, K)  added to
    int n_threads,
):
    """Add the terms of large counts that are negative binomial.

    See `tests.twins.models.rising_terms`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], n = rows.shape[1], m
    cdef double work = <double>EXPENSIVE * n * n_samples * sizes.shape[1]
    if n_samples == 0 or n == 0:
        return
    n_threads = worth(n_threads, n_samples, work)
    for m in prange(
        n_samples, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_samples, n_threads),
    ):
        row_terms_rising(&rows[m, 0], first, offsets, line, sizes, terms, m)


cdef void row_moments_rising(
    const real* row,                           # IN   (n,)
    const double[::1] edges,                   # IN   (P,)
    const real[:, :, ::1] responsibilities,    # IN   (R, M, K)  row m
    Py_ssize_t m,
    const Py_ssize_t[::1] offsets,             # IN   (B + 1,)
    const double[:, ::1] sizes,                # IN   (n, K)
    double* found,                             # INOUT (n, P, 3, K)
) noexcept nogil:
    cdef Py_ssize_t b, j, k, p, r, n_components = sizes.shape[1], n_edges = edges.shape[0]
    cdef double x, rest, base, size, weight, slope, square
    cdef double* into
    for b in range(offsets.shape[0] - 1):
        r = b if responsibilities.shape[0] > 1 else 0
        for j in range(offsets[b], offsets[b + 1]):
            x = row[j]
            if not x >= edges[0]:
                continue
            p = 0
            while p + 1 < n_edges and x >= edges[p + 1]:
                p += 1
            rest = x - edges[p]
            into = found + 3 * (j * n_edges + p) * n_components
            for k in range(n_components):
                weight, size = responsibilities[r, m, k], sizes[j, k]
                base = size + edges[p]
                slope = log1p(rest / base) + half_and_more(base) - half_and_more(base + rest)
                square = trigamma(base) - trigamma(base + rest)
                into[k] += weight
                into[n_components + k] += weight * (size * slope)
                into[2 * n_components + k] += weight * (size * (slope - size * square))


def rising_moments(
    const real[:, ::1] rows,                   # IN  (M, n)
    const double[::1] edges,                   # IN  (P,)       ascending, at least 64
    const real[:, :, ::1] responsibilities,    # IN  (R, M, K)
    const Py_ssize_t[::1] offsets,             # IN  (B + 1,)
    const double[:, ::1] sizes,                # IN  (n, K)
    double[:, :, :, ::1] sums,                 # INOUT (n, P, 3, K)  added to
    int n_threads,
):
    """Add how logarithms of large counts' rising factorials change with the sizes.

    See `tests.twins.models.rising_moments`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], n = rows.shape[1], n_sums = sums.size
    cdef Py_ssize_t n_tiles = (n_samples + TILE - 1) // TILE, tile, share, n_shares, m
    cdef double work = 2.0 * EXPENSIVE * n * n_samples * sizes.shape[1]
    if n_samples == 0 or n == 0:
        return
    n_shares = all_kept(n_tiles, n_sums)
    n_threads = worth(n_threads, n_shares, work)
    cdef double[:, ::1] found = np.zeros((n_shares, n_sums))
    for share in prange(
        n_shares, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1,
    ):
        for tile in range(
            share_begin(share, n_shares, n_tiles), share_begin(share + 1, n_shares, n_tiles)
        ):
            for m in range(tile * TILE, min(n_samples, (tile + 1) * TILE)):
                row_moments_rising(
                    &rows[m, 0], edges, responsibilities, m, offsets, sizes, &found[share, 0],
                )
    add_shares(&found[0, 0], n_shares, n_sums, &sums[0, 0, 0, 0])
