"""Gaussian blocks of which rows miss values: terms of what is observed, and expected moments.

Rows come sorted by which of a block's values they miss, in tiles. Where less than half is missing
the values that are there are whitened together with all others of the tile, and what the missing
ones could explain is projected out: with ``W = L^-1`` and ``W_m = Q R`` its columns of the missing
features, ``Sigma_oo`` has the squared distance ``|(1 - Q Q^T) W d|^2`` and the log-determinant
``log|Sigma| + 2 sum log R_ii``. Where more is missing ``Sigma_oo`` is factored itself.
"""
import numpy as np

from cython.parallel cimport prange, threadid
from libc.math cimport log, sqrt

from vpem._core.blas cimport add_gram, multiply_lower
from vpem._core.lapack cimport cholesky
from vpem._core.real cimport real
from vpem._core.shares cimport add_shares, all_kept, at_once, share_begin, worth

cdef enum:
    TILE = 256


cdef inline double dot(const double* one, const double* other, int n) noexcept nogil:
    """Four sums side by side, which one after the other would wait for each other."""
    cdef double a = 0, b = 0, c = 0, e = 0
    cdef int i = 0
    while i + 4 <= n:
        a += one[i] * other[i]
        b += one[i + 1] * other[i + 1]
        c += one[i + 2] * other[i + 2]
        e += one[i + 3] * other[i + 3]
        i += 4
    while i < n:
        a += one[i] * other[i]
        i += 1
    return (a + b) + (c + e)


cdef inline double take_out(const double* basis, double* values, int n) noexcept nogil:
    """Take out of the values what lies along a vector of length one; how much that was."""
    cdef double along = dot(basis, values, n)
    cdef int i
    for i in range(n):
        values[i] -= along * basis[i]
    return along


cdef void project(
    const double* whitener,          # IN  (n, n) row-major, lower triangular
    int n,
    const int* missing,              # IN  (n_missing,) descending
    int n_missing,
    double* basis,                   # OUT (n_missing, n)  orthonormal; row a is 0 before missing[a]
    double* upper,                   # OUT (n_missing, n_missing)  R
) noexcept nogil:
    """Orthonormal basis of the columns of the missing features, by modified Gram-Schmidt."""
    cdef int a, c, i, j
    cdef double length
    cdef double* own
    for a in range(n_missing):
        j = missing[a]
        own = basis + a * n
        for i in range(j):
            own[i] = 0
        for i in range(j, n):
            own[i] = whitener[i * n + j]
        for c in range(a):
            upper[c * n_missing + a] = take_out(
                basis + c * n + missing[c], own + missing[c], n - missing[c]
            )
        length = sqrt(dot(own + j, own + j, n - j))
        upper[a * n_missing + a] = length
        for i in range(j, n):
            own[i] /= length


cdef void factor_observed(
    const double* covariance,        # IN  (n, n)
    int n,
    const int* there,                # IN  (n_there,)
    int n_there,
    double* lower,                   # OUT (n_there, n_there)  Cholesky factor
) noexcept nogil:
    cdef int i, j
    for i in range(n_there):
        for j in range(i + 1):
            lower[i * n_there + j] = covariance[there[i] * n + there[j]]
    cholesky(lower, n_there)


cdef inline void solve_lower(const double* lower, int n, double* values) noexcept nogil:
    cdef int i
    for i in range(n):
        values[i] = (values[i] - dot(lower + i * n, values, i)) / lower[i * n + i]


cdef int split(
    const unsigned char* observed, int n, int* there, int* missing,
) noexcept nogil:
    """Which of a row's values are there (ascending) and missing (descending): how many miss."""
    cdef int j, n_there = 0, n_missing = 0
    for j in range(n):
        if observed[j]:
            there[n_there] = j
            n_there += 1
    for j in range(n - 1, -1, -1):
        if not observed[j]:
            missing[n_missing] = j
            n_missing += 1
    return n_missing


cdef void gather(
    const real* rows,                # IN  (m, d)  from the block's first feature on
    const unsigned char* observed,   # IN  (m, d)
    Py_ssize_t d,
    const int* order,                # IN  (n_rows,)
    Py_ssize_t n_rows,
    int n,
    const double* mean,              # IN  (n,)
    double* out,                     # OUT (n_rows, n)  0 where missing
) noexcept nogil:
    cdef Py_ssize_t i, at
    cdef int j
    for i in range(n_rows):
        at = order[i] * d
        for j in range(n):
            out[i * n + j] = <double>rows[at + j] - mean[j] if observed[at + j] else 0


cdef void tile_terms(
    const real* rows,                # IN  (m, d)  from the block's first feature on
    const unsigned char* observed,   # IN  (m, d)
    Py_ssize_t d,
    int n,
    const int* order,                # IN  (n_rows,)  rows of the tile
    const int* pattern,              # IN  (n_rows,)  equal where the same values miss
    Py_ssize_t n_rows,
    bint direct,
    const double[:, ::1] means,      # IN  (K, d)
    Py_ssize_t left,
    const double* whiteners,         # IN  (n_copies, n, n)
    const double* covariances,       # IN  (n_copies, n, n)
    const double[:, ::1] log_dets,   # IN  (n_copies, B)
    Py_ssize_t b,
    real[:, :, ::1] terms,           # OUT (B, m, K)  these rows of block b
    double* scratch,                 # WORK
    int* places,                     # WORK (2 n)
) noexcept nogil:
    cdef Py_ssize_t n_components = means.shape[0], n_copies = log_dets.shape[0]
    cdef Py_ssize_t k, c, i, first, end
    cdef double* tile = scratch
    cdef double* basis = tile + TILE * n
    cdef double* upper = basis + n * n
    cdef double* row
    cdef int* there = places
    cdef int* missing = places + n
    cdef int a, j, n_missing, n_there
    cdef double total, log_det
    for k in range(n_components):
        c = k if n_copies > 1 else 0
        gather(rows, observed, d, order, n_rows, n, &means[k, left], tile)
        if not direct:
            multiply_lower(whiteners + c * n * n, tile, <int>n_rows, n)
        first = 0
        while first < n_rows:
            end = first + 1
            while end < n_rows and pattern[end] == pattern[first]:
                end += 1
            n_missing = split(observed + order[first] * d, n, there, missing)
            n_there = n - n_missing
            if direct:
                factor_observed(covariances + c * n * n, n, there, n_there, basis)
                log_det = 0
                for j in range(n_there):
                    log_det += 2 * log(basis[j * n_there + j])
            else:
                project(whiteners + c * n * n, n, missing, n_missing, basis, upper)
                log_det = log_dets[c, b]
                for a in range(n_missing):
                    log_det += 2 * log(upper[a * n_missing + a])
            for i in range(first, end):
                row = tile + i * n
                total = log_det
                if direct:
                    for j in range(n_there):
                        row[j] = row[there[j]]
                    solve_lower(basis, n_there, row)
                    total += dot(row, row, n_there)
                else:
                    for a in range(n_missing):
                        j = missing[a]
                        take_out(basis + a * n + j, row + j, n - j)
                    total += dot(row, row, n)
                terms[b, order[i], k] = <real>total
            first = end


cdef double work_of(const Py_ssize_t[::1] offsets, const int[:, ::1] tiles) noexcept nogil:
    """Nanoseconds a component that a thread takes for the tiles, roughly."""
    cdef Py_ssize_t t, width
    cdef double total = 0
    for t in range(tiles.shape[0]):
        width = offsets[tiles[t, 0] + 1] - offsets[tiles[t, 0]]
        total += (tiles[t, 2] - tiles[t, 1]) * (width * width / 8.0 + 3 * width)
    return total


def marginal_full(
    const real[:, ::1] rows,             # IN  (m, d)  anything where a value is missing
    const unsigned char[:, ::1] observed,  # IN  (m, d)
    const Py_ssize_t[::1] offsets,       # IN  (B + 1,)
    const int[:, ::1] tiles,             # IN  (T, 4)  block, begin, end, and whether most miss
    const int[::1] order,                # IN  (n,)    rows, tile by tile
    const int[::1] pattern,              # IN  (n,)    equal neighbours miss the same values
    const double[:, ::1] means,          # IN  (K, d)
    const double[::1] covariances,       # IN  (n_copies * sum d_b^2,)
    const double[::1] whiteners,         # IN  (n_copies * sum d_b^2,)  from `cholesky_blocks`
    const double[:, ::1] log_dets,       # IN  (n_copies, B)
    real[:, :, ::1] terms,               # OUT (B, m, K)  rows in no tile of a block are left alone
    int n_threads,
):
    """Terms ``log|Sigma_oo| + (x_o - mu_o)^T Sigma_oo^-1 (x_o - mu_o)`` of what is observed.

    See `tests.twins.assign.marginal_full`.
    """
    cdef Py_ssize_t n_tiles = tiles.shape[0], d = rows.shape[1], widest = 1, t, b, left, begin
    cdef Py_ssize_t n_copies = log_dets.shape[0]
    cdef int n
    starts = np.zeros(offsets.shape[0], dtype=np.intp)
    cdef Py_ssize_t[::1] start = starts
    for b in range(offsets.shape[0] - 1):
        n = <int>(offsets[b + 1] - offsets[b])
        widest = max(widest, <Py_ssize_t>n)
        start[b + 1] = start[b] + n_copies * n * n
    if n_tiles == 0:
        return
    n_threads = worth(n_threads, n_tiles, work_of(offsets, tiles) * means.shape[0])
    cdef double[:, ::1] scratch = np.empty((n_threads, (TILE + 2 * widest) * widest))
    cdef int[:, ::1] places = np.empty((n_threads, 2 * widest), dtype=np.intc)
    for t in prange(
        n_tiles, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_tiles, n_threads),
    ):
        b = tiles[t, 0]
        left = offsets[b]
        n = <int>(offsets[b + 1] - left)
        begin = tiles[t, 1]
        tile_terms(
            &rows[0, left], &observed[0, left], d, n, &order[begin], &pattern[begin],
            tiles[t, 2] - begin, tiles[t, 3] != 0, means, left, &whiteners[start[b]],
            &covariances[start[b]], log_dets, b, terms, &scratch[threadid(), 0],
            &places[threadid(), 0],
        )


cdef void fill_direct(
    const double* covariance,        # IN  (n, n)
    int n,
    const int* there, int n_there,   # IN  (n_there,)
    const int* missing, int n_missing,
    double* tile,                    # INOUT (n_rows, n)  missing ones are filled
    Py_ssize_t n_rows,
    double* conditional,             # OUT (n_missing, n_missing)
    double* scratch,                 # WORK (2 n n + n)
) noexcept nogil:
    """Conditional means and covariance by factoring what is observed."""
    cdef double* lower = scratch
    cdef double* solved = lower + n_there * n_there
    cdef double* values = scratch + 2 * n * n
    cdef double total
    cdef double* row
    cdef int a, c, j
    cdef Py_ssize_t i
    factor_observed(covariance, n, there, n_there, lower)
    for a in range(n_missing):
        for j in range(n_there):
            solved[a * n_there + j] = covariance[missing[a] * n + there[j]]
        solve_lower(lower, n_there, solved + a * n_there)
    for a in range(n_missing):
        for c in range(a + 1):
            total = dot(solved + a * n_there, solved + c * n_there, n_there)
            conditional[a * n_missing + c] = covariance[missing[a] * n + missing[c]] - total
    for i in range(n_rows):
        row = tile + i * n
        for j in range(n_there):
            values[j] = row[there[j]]
        solve_lower(lower, n_there, values)
        for a in range(n_missing):
            row[missing[a]] = dot(solved + a * n_there, values, n_there)


cdef void fill_projected(
    const double* whitener,          # IN  (n, n)
    int n,
    const int* missing, int n_missing,
    double* tile,                    # INOUT (n_rows, n)  missing ones are filled
    double* white,                   # INOUT (n_rows, n)  whitened with zeros there; used up
    Py_ssize_t n_rows,
    double* conditional,             # OUT (n_missing, n_missing)
    double* scratch,                 # WORK (2 n n + n)
) noexcept nogil:
    """Conditional means and covariance by what best explains the whitened values."""
    cdef double* basis = scratch
    cdef double* upper = scratch + n * n
    cdef double* values = scratch + 2 * n * n
    cdef double total
    cdef int a, c, e, j
    cdef Py_ssize_t i
    project(whitener, n, missing, n_missing, basis, upper)
    for i in range(n_rows):
        for a in range(n_missing):
            j = missing[a]
            values[a] = -take_out(basis + a * n + j, white + i * n + j, n - j)
        for a in range(n_missing - 1, -1, -1):
            total = values[a]
            for c in range(a + 1, n_missing):
                total -= upper[a * n_missing + c] * values[c]
            values[a] = total / upper[a * n_missing + a]
            tile[i * n + missing[a]] = values[a]
    # R^-1 in place of R, then R^-1 R^-T.
    for a in range(n_missing - 1, -1, -1):
        upper[a * n_missing + a] = 1 / upper[a * n_missing + a]
        for c in range(n_missing - 1, a, -1):
            total = 0
            for e in range(a + 1, c + 1):
                total += upper[a * n_missing + e] * upper[e * n_missing + c]
            upper[a * n_missing + c] = -total * upper[a * n_missing + a]
    for a in range(n_missing):
        for c in range(a + 1):
            total = 0
            for j in range(a, n_missing):
                total += upper[a * n_missing + j] * upper[c * n_missing + j]
            conditional[a * n_missing + c] = total


cdef void tile_moments(
    const real* rows,                # IN  (m, d)  from the block's first feature on
    const unsigned char* observed,   # IN  (m, d)
    Py_ssize_t d,
    int n,
    const int* order,                # IN  (n_rows,)
    const int* pattern,              # IN  (n_rows,)
    Py_ssize_t n_rows,
    bint direct,
    const real[:, :, ::1] responsibilities,    # IN  (R, m, K)
    const real[:, :, ::1] spread_weights,      # IN  (1 or B, m, K)
    const double[:, ::1] means,      # IN  (K, d)
    const real[:, ::1] shifts,       # IN  (K, d)
    Py_ssize_t left,
    const double* whiteners,         # IN  (n_copies, n, n)
    const double* covariances,       # IN  (n_copies, n, n)
    Py_ssize_t n_copies,
    Py_ssize_t b,
    double* first_moment,            # INOUT (K, d)  from the block's first feature on
    double* second_moment,           # INOUT (n_copies, n, n)
    double* seen,                    # INOUT (K,)
    double* scratch,                 # WORK
    int* places,                     # WORK (2 n)
) noexcept nogil:
    cdef Py_ssize_t n_components = means.shape[0]
    cdef Py_ssize_t r = b if responsibilities.shape[0] > 1 else 0
    cdef Py_ssize_t s = b if spread_weights.shape[0] > 1 else 0
    cdef Py_ssize_t k, c, i, first, end
    cdef double* tile = scratch
    cdef double* white = tile + TILE * n
    cdef double* conditional = white + TILE * n
    cdef double* work = conditional + n * n
    cdef double* total = second_moment
    cdef int* there = places
    cdef int* missing = places + n
    cdef int a, e, j, n_missing, lower, higher
    cdef double weight, root, sum_of, entry
    cdef bint whitened
    for k in range(n_components):
        c = k if n_copies > 1 else 0
        sum_of = 0
        for i in range(n_rows):
            sum_of += responsibilities[r, order[i], k]
        if sum_of == 0:
            continue
        seen[k] += sum_of
        total = second_moment + c * n * n
        gather(rows, observed, d, order, n_rows, n, &means[k, left], tile)
        whitened = False
        first = 0
        while first < n_rows:
            end = first + 1
            while end < n_rows and pattern[end] == pattern[first]:
                end += 1
            n_missing = split(observed + order[first] * d, n, there, missing)
            if n_missing:
                if direct:
                    fill_direct(
                        covariances + c * n * n, n, there, n - n_missing, missing, n_missing,
                        tile + first * n, end - first, conditional, work,
                    )
                else:
                    if not whitened:
                        for i in range(first * n, n_rows * n):
                            white[i] = tile[i]
                        multiply_lower(
                            whiteners + c * n * n, white + first * n, <int>(n_rows - first), n
                        )
                        whitened = True
                    fill_projected(
                        whiteners + c * n * n, n, missing, n_missing, tile + first * n,
                        white + first * n, end - first, conditional, work,
                    )
                weight = 0
                for i in range(first, end):
                    weight += spread_weights[s, order[i], k]
                for a in range(n_missing):
                    for e in range(a + 1):
                        lower = missing[a]
                        higher = missing[e]
                        total[higher * n + lower] += weight * conditional[a * n_missing + e]
            first = end
        for i in range(n_rows):
            weight = responsibilities[r, order[i], k]
            root = sqrt(weight)
            for j in range(n):
                entry = tile[i * n + j] + (means[k, left + j] - <double>shifts[k, left + j])
                first_moment[k * d + j] += weight * entry
                tile[i * n + j] = root * entry
        add_gram(<const double*>tile, total, <int>n_rows, n, 1.0)


def marginal_moments_full(
    const real[:, ::1] rows,             # IN  (m, d)
    const unsigned char[:, ::1] observed,  # IN  (m, d)
    const Py_ssize_t[::1] offsets,       # IN  (B + 1,)
    const int[:, ::1] tiles,             # IN  (T, 4)  blocks ascending
    const int[::1] order,                # IN  (n,)
    const int[::1] pattern,              # IN  (n,)
    const real[:, :, ::1] responsibilities,    # IN  (R, m, K)
    const real[:, :, ::1] spread_weights,      # IN  (1 or B, m, K)  of what missing values vary by
    const double[:, ::1] means,          # IN  (K, d)  what missing values are expected from
    const double[::1] covariances,       # IN  (n_copies * sum d_b^2,)
    const double[::1] whiteners,         # IN  (n_copies * sum d_b^2,)
    const real[:, ::1] shifts,           # IN  (K, d)
    double[:, ::1] first_moment,         # INOUT (K, d)   added to
    double[::1] second_moment,           # INOUT (n_copies * sum d_b^2,)  lower triangles
    double[:, ::1] seen,                 # INOUT (B, K)   sum g of the rows in the tiles of a block
    int n_threads,
):
    """Add the expected moments of the blocks of these rows about ``shifts``.

    See `tests.twins.assign.marginal_moments_full`.
    """
    cdef Py_ssize_t n_tiles = tiles.shape[0], d = rows.shape[1], n_components = means.shape[0]
    cdef Py_ssize_t widest = 1, squares = 0, t, b, left, begin, n_copies, share, n_shares
    cdef Py_ssize_t most = 0, own, own_shares
    cdef int n
    for b in range(offsets.shape[0] - 1):
        n = <int>(offsets[b + 1] - offsets[b])
        widest = max(widest, <Py_ssize_t>n)
        squares += <Py_ssize_t>n * n
    if n_tiles == 0:
        return
    n_copies = second_moment.shape[0] // squares
    cdef Py_ssize_t[::1] start = np.zeros(offsets.shape[0], dtype=np.intp)
    # A block's tiles are shared out by themselves: its sums do not depend on other blocks.
    cdef Py_ssize_t[::1] tile_of = np.zeros(offsets.shape[0], dtype=np.intp)
    for t in range(n_tiles):
        tile_of[tiles[t, 0] + 1] += 1
    for b in range(offsets.shape[0] - 1):
        n = <int>(offsets[b + 1] - offsets[b])
        start[b + 1] = start[b] + n_copies * n * n
        most = max(most, tile_of[b + 1])
        tile_of[b + 1] += tile_of[b]
    cdef double work = work_of(offsets, tiles) * n_components
    n_shares = all_kept(
        most, (d + seen.shape[0]) * n_components + second_moment.shape[0]
    )
    n_threads = worth(n_threads, n_shares, work)
    cdef double[:, ::1] scratch = np.empty((n_threads, (2 * TILE + 3 * widest + 1) * widest))
    cdef int[:, ::1] places = np.empty((n_threads, 2 * widest), dtype=np.intc)
    cdef double[:, :, ::1] firsts = np.zeros((n_shares, n_components, d))
    cdef double[:, ::1] seconds = np.zeros((n_shares, second_moment.shape[0]))
    cdef double[:, :, ::1] seens = np.zeros((n_shares, seen.shape[0], n_components))
    for share in prange(
        n_shares, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1,
    ):
        for b in range(offsets.shape[0] - 1):
            own = tile_of[b + 1] - tile_of[b]
            own_shares = min(own, n_shares)
            if share >= own_shares:
                continue
            left = offsets[b]
            n = <int>(offsets[b + 1] - left)
            for t in range(
                tile_of[b] + share_begin(share, own_shares, own),
                tile_of[b] + share_begin(share + 1, own_shares, own),
            ):
                begin = tiles[t, 1]
                tile_moments(
                    &rows[0, left], &observed[0, left], d, n, &order[begin], &pattern[begin],
                    tiles[t, 2] - begin, tiles[t, 3] != 0, responsibilities, spread_weights, means,
                    shifts, left,
                    &whiteners[start[b]], &covariances[start[b]], n_copies, b,
                    &firsts[share, 0, left], &seconds[share, start[b]], &seens[share, b, 0],
                    &scratch[threadid(), 0], &places[threadid(), 0],
                )
    add_shares(&firsts[0, 0, 0], n_shares, shifts.shape[0] * d, &first_moment[0, 0])
    add_shares(&seconds[0, 0], n_shares, second_moment.shape[0], &second_moment[0])
    add_shares(&seens[0, 0, 0], n_shares, seen.shape[0] * n_components, &seen[0, 0])


cdef void row_terms_diag(
    const real* row,                     # IN  (d,)
    const unsigned char* observed,       # IN  (d,)
    const Py_ssize_t[::1] offsets,       # IN  (B + 1,)
    const double[:, ::1] means,          # IN  (K, d)
    const double[:, ::1] precisions,     # IN  (n_copies, d)
    const double[:, ::1] log_variances,  # IN  (n_copies, d)
    real[:, :, ::1] terms,               # OUT (B, m, K)  row m
    Py_ssize_t m,
) noexcept nogil:
    cdef Py_ssize_t n_components = means.shape[0], n_copies = precisions.shape[0]
    cdef Py_ssize_t b, k, c, j
    cdef double total, entry
    for b in range(offsets.shape[0] - 1):
        for k in range(n_components):
            c = k if n_copies > 1 else 0
            total = 0
            for j in range(offsets[b], offsets[b + 1]):
                entry = row[j] - means[k, j]
                entry = log_variances[c, j] + entry * entry * precisions[c, j]
                total = total + (entry if observed[j] else 0)
            terms[b, m, k] = <real>total


def marginal_diag(
    const real[:, ::1] rows,             # IN  (m, d)  finite where a value is missing
    const unsigned char[:, ::1] observed,  # IN  (m, d)
    const Py_ssize_t[::1] offsets,       # IN  (B + 1,)
    const double[:, ::1] means,          # IN  (K, d)
    const double[:, ::1] precisions,     # IN  (n_copies, d)  inverse variances
    const double[:, ::1] log_variances,  # IN  (n_copies, d)
    real[:, :, ::1] terms,               # OUT (B, m, K)
    int n_threads,
):
    """Terms of the observed values of blocks with diagonal covariance.

    See `tests.twins.assign.marginal_diag`.
    """
    cdef Py_ssize_t n_rows = rows.shape[0], d = rows.shape[1], m
    if n_rows == 0 or d == 0:
        np.asarray(terms)[...] = 0
        return
    cdef const real* data = &rows[0, 0]
    cdef const unsigned char* known = &observed[0, 0]
    n_threads = worth(n_threads, n_rows, 1.5 * n_rows * means.shape[0] * d)
    for m in prange(
        n_rows, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_rows, n_threads),
    ):
        row_terms_diag(
            data + m * d, known + m * d, offsets, means, precisions, log_variances, terms, m
        )


cdef void tile_moments_diag(
    const real* rows,                          # IN  (n_rows, d)
    const unsigned char* observed,             # IN  (n_rows, d)
    Py_ssize_t n_rows,
    Py_ssize_t d,
    const real[:, :, ::1] responsibilities,    # IN  (R, M, K)  rows first..first + n_rows
    Py_ssize_t first,
    const Py_ssize_t[::1] offsets,             # IN  (B + 1,)
    const real[:, ::1] shifts,                 # IN  (K, d)
    Py_ssize_t n_copies,
    double* first_moment,                      # INOUT (K, d)
    double* second_moment,                     # INOUT (n_copies, d)
    double* seen,                              # INOUT (K, d)
) noexcept nogil:
    cdef Py_ssize_t n_components = shifts.shape[0], n_roots = responsibilities.shape[0]
    cdef Py_ssize_t b, k, m, j
    cdef double weight, own, entry
    cdef double* total
    for m in range(n_rows):
        for k in range(n_components):
            total = second_moment + (k * d if n_copies > 1 else 0)
            for b in range(offsets.shape[0] - 1):
                weight = responsibilities[b if n_roots > 1 else 0, first + m, k]
                for j in range(offsets[b], offsets[b + 1]):
                    own = weight if observed[m * d + j] else 0
                    entry = rows[m * d + j] - shifts[k, j]
                    seen[k * d + j] += own
                    first_moment[k * d + j] += own * entry
                    total[j] += own * entry * entry


def marginal_moments_diag(
    const real[:, ::1] rows,                   # IN  (m, d)  finite where a value is missing
    const unsigned char[:, ::1] observed,      # IN  (m, d)
    const real[:, :, ::1] responsibilities,    # IN  (R, m, K)
    const Py_ssize_t[::1] offsets,             # IN  (B + 1,)
    const real[:, ::1] shifts,                 # IN  (K, d)
    double[:, ::1] first_moment,               # INOUT (K, d)         added to
    double[:, ::1] second_moment,              # INOUT (n_copies, d)  added to
    double[:, ::1] seen,                       # INOUT (K, d)         sum g of rows that have it
    int n_threads,
):
    """Add the weighted moments of the observed values about ``shifts``, feature by feature.

    See `tests.twins.assign.marginal_moments_diag`.
    """
    cdef Py_ssize_t n_rows = rows.shape[0], d = rows.shape[1]
    cdef Py_ssize_t n_tiles = (n_rows + TILE - 1) // TILE
    cdef Py_ssize_t n_copies = second_moment.shape[0], tile, first, count
    cdef Py_ssize_t share, n_shares
    if n_rows == 0 or d == 0:
        return
    cdef double work = 2.0 * n_rows * shifts.shape[0] * d
    n_shares = all_kept(n_tiles, (2 * shifts.shape[0] + n_copies) * d)
    n_threads = worth(n_threads, n_shares, work)
    cdef double[:, :, ::1] firsts = np.zeros((n_shares, shifts.shape[0], d))
    cdef double[:, :, ::1] seconds = np.zeros((n_shares, n_copies, d))
    cdef double[:, :, ::1] seens = np.zeros((n_shares, shifts.shape[0], d))
    cdef const real* data = &rows[0, 0]
    cdef const unsigned char* known = &observed[0, 0]
    for share in prange(
        n_shares, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1,
    ):
        for tile in range(
            share_begin(share, n_shares, n_tiles), share_begin(share + 1, n_shares, n_tiles)
        ):
            first = tile * TILE
            count = min(<Py_ssize_t>TILE, n_rows - first)
            tile_moments_diag(
                data + first * d, known + first * d, count, d, responsibilities, first, offsets,
                shifts, n_copies, &firsts[share, 0, 0], &seconds[share, 0, 0], &seens[share, 0, 0],
            )
    add_shares(&firsts[0, 0, 0], n_shares, shifts.shape[0] * d, &first_moment[0, 0])
    add_shares(&seconds[0, 0, 0], n_shares, n_copies * d, &second_moment[0, 0])
    add_shares(&seens[0, 0, 0], n_shares, shifts.shape[0] * d, &seen[0, 0])
