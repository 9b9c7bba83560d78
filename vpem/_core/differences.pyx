"""Nearest centres of rows whose features hubs hold, as every root finds them.

Hubs add up differences of squared distances, ``|x - c_k|^2 - |x - c_1|^2``: of what is there of a
row they are one product of matrices a hub, and the sum of the hubs is one more, tile by tile.
"""
import numpy as np

from cython.parallel cimport prange, threadid
from scipy.linalg.cython_blas cimport dgemm, sgemm

from vpem._core.real cimport real
from vpem._core.shares cimport share_begin, shares_of, worth

cdef enum:
    MOST_ROWS = 256         # of a tile
    LEAST_ROWS = 16
    TILE_VALUES = 1 << 15   # of all that a tile works with


cdef struct Plan:
    # What all tiles share.
    Py_ssize_t d
    Py_ssize_t n_hubs       # all as one where the sum is exact
    Py_ssize_t n_roots
    Py_ssize_t n_others     # centres but the first, K - 1
    Py_ssize_t tile         # rows of one
    bint mixes              # whether the sum is not exact
    bint gaps               # whether values are missing


cdef inline void multiply(
    char first, int n, int m, int k, const real* a, int lda, const real* b, int ldb, real keep,
    real* out, int ldo,
) noexcept nogil:
    """BLAS's ``out = a' b + keep out``, column by column; ``first`` says what a' is."""
    cdef char second = b"N"
    cdef real one = 1
    if real is double:
        dgemm(&first, &second, &n, &m, &k, &one, <double*>a, &lda, <double*>b, &ldb, &keep, out,
              &ldo)
    else:
        sgemm(&first, &second, &n, &m, &k, &one, <float*>a, &lda, <float*>b, &ldb, &keep, out,
              &ldo)


cdef void differences_of(
    const Plan* plan,
    const real* rows,               # IN   (n, d)
    const unsigned char* observed,  # IN   (n, d), or NULL
    Py_ssize_t n,
    const Py_ssize_t* offsets,      # IN   (n_hubs + 1,)
    const real* shift,              # IN   (d,)
    const real* normals,            # IN   (K - 1, d)
    const real* levels,             # IN   (K - 1, d)       where values are missing
    const real* constants,          # IN   (n_hubs, K - 1)  where none are
    const real* mix,                # IN   (R, n_hubs)
    real* near,                     # WORK (n, d)
    real* seen,                     # WORK (n, d)           where values are missing
    real* local,                    # WORK (n_hubs, K - 1, n)
    real* out,                      # OUT  (R, K - 1, n)
) noexcept nogil:
    """Differences of the rows of a tile, as every root finds them."""
    cdef Py_ssize_t d = plan.d, v = plan.n_others, hub, m, j, k, size = v * n
    cdef real* own
    cdef int width, rows_of = <int>n, columns = <int>d, others = <int>v
    for m in range(n):
        for j in range(d):
            near[m * d + j] = rows[m * d + j] - shift[j]
    if plan.gaps:
        for m in range(n * d):
            seen[m] = observed[m] != 0
            near[m] = near[m] if observed[m] else 0
    own = local if plan.mixes else out
    for hub in range(plan.n_hubs):
        width = <int>(offsets[hub + 1] - offsets[hub])
        j = offsets[hub]
        for k in range(v):
            for m in range(n):
                own[k * n + m] = 0 if plan.gaps else constants[hub * v + k]
        if width:
            multiply[real](b"T", rows_of, others, width, near + j, columns, normals + j, columns, 1,
                           own, rows_of)
            if plan.gaps:
                multiply[real](b"T", rows_of, others, width, seen + j, columns, levels + j, columns,
                               1, own, rows_of)
        own = own + size
    if plan.mixes:
        multiply[real](b"N", <int>size, <int>plan.n_roots, <int>plan.n_hubs, local, <int>size, mix,
                       <int>plan.n_hubs, 0, out, <int>size)


cdef void gather(
    const Plan* plan,
    const real* rows,               # IN    (n, d)
    const unsigned char* observed,  # IN    (n, d), or NULL
    const double* weights,          # IN    (n,), or NULL
    Py_ssize_t n,
    Py_ssize_t begin,               # IN    of the columns that a root has the sums of
    Py_ssize_t end,
    const real* found,              # IN    (K - 1, n)
    int* labels,                    # INOUT (n,)
    double* counts,                 # INOUT (K,)
    double* sums,                   # INOUT (K, d)
    double* there,                  # INOUT (K, d)  where values are missing
    double* least,                  # INOUT         least differences
    double* changed,                # INOUT
) noexcept nogil:
    """Labels of the rows of a tile in the eyes of one root, and its sums of their clusters."""
    cdef Py_ssize_t d = plan.d, m, j, k, place
    cdef real best[MOST_ROWS]
    cdef int nearest[MOST_ROWS]
    cdef double weight
    for m in range(n):
        best[m] = 0
        nearest[m] = 0
    for k in range(plan.n_others):
        for m in range(n):
            if found[k * n + m] < best[m]:
                best[m] = found[k * n + m]
                nearest[m] = <int>k + 1
    for m in range(n):
        weight = 1 if weights == NULL else weights[m]
        least[0] += weight * best[m]
        changed[0] += labels[m] != nearest[m]
        labels[m] = nearest[m]
        counts[nearest[m]] += weight
        place = nearest[m] * d
        if plan.gaps:
            for j in range(begin, end):
                if observed[m * d + j]:
                    sums[place + j] += weight * rows[m * d + j]
                    there[place + j] += weight
        else:
            for j in range(begin, end):
                sums[place + j] += weight * rows[m * d + j]


cdef void add_first(
    const Plan* plan,
    const real* rows,               # IN    (n, d)
    const unsigned char* observed,  # IN    (n, d), or NULL
    const double* weights,          # IN    (n,), or NULL
    Py_ssize_t n,
    const double* centre,           # IN    (d,)
    double* out,                    # INOUT (d,)
) noexcept nogil:
    """Squared distances to the first centre, feature by feature."""
    cdef Py_ssize_t d = plan.d, m, j
    cdef double weight, off
    for m in range(n):
        weight = 1 if weights == NULL else weights[m]
        if plan.gaps:
            for j in range(d):
                off = rows[m * d + j] - centre[j] if observed[m * d + j] else 0
                out[j] += weight * off * off
        else:
            for j in range(d):
                off = rows[m * d + j] - centre[j]
                out[j] += weight * off * off


def assign_features(
    const real[:, ::1] rows,                # IN    (M, d)     hub by hub
    const unsigned char[:, ::1] observed,   # IN    (M, d), or (0, d): nothing is missing
    const double[::1] weights,              # IN    (M,), or (0,): all rows alike
    const Py_ssize_t[::1] offsets,          # IN    (B + 1,)   where each hub's features begin
    const double[:, ::1] centres,           # IN    (K, d)
    const double[:, ::1] mix,               # IN    (R, B)     R is 1 or B
    int[:, :] labels,                       # INOUT (R, M)
    double[:, ::1] counts,                  # INOUT (R, K)     added to
    double[:, ::1] sums,                    # INOUT (K, d)     added to
    double[:, ::1] there,                   # INOUT (K, d)     added to, if values are missing
    double[::1] first,                      # INOUT (B,)       added to
    double[::1] least,                      # INOUT (R,)       added to
    Py_ssize_t[::1] changes,                # INOUT (R,)       added to
    int n_threads,
):
    """Assign rows to their nearest centres by differences that hubs have, in every root's eyes.

    See `tests.twins.assign.assign_features`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], n_centres = centres.shape[0]
    cdef Py_ssize_t size, total, n_shares, share, thread, begin, last, n, root
    cdef Py_ssize_t of_first, of_least
    cdef Plan plan
    if n_samples == 0 or rows.shape[1] == 0:
        return
    plan.d = rows.shape[1]
    plan.n_roots = mix.shape[0]
    plan.n_others = n_centres - 1
    plan.gaps = observed.shape[0] > 0
    dtype = np.float64 if real is double else np.float32
    cdef Py_ssize_t[2] whole = [0, plan.d]
    cdef const Py_ssize_t[::1] places = offsets
    cdef Py_ssize_t hub, j, k
    plan.mixes = plan.n_roots > 1
    for hub in range(mix.shape[1]):
        plan.mixes = plan.mixes or mix[0, hub] != 1
    if not plan.mixes:
        places = whole
    plan.n_hubs = places.shape[0] - 1
    # Of a tile: rows, what is there of them, differences of the hubs, and of the roots.
    size = plan.d * (1 + plan.gaps)
    size += plan.n_others * (plan.n_roots + (plan.n_hubs if plan.mixes else 0))
    plan.tile = max(<Py_ssize_t>LEAST_ROWS, min(<Py_ssize_t>MOST_ROWS, TILE_VALUES // size))
    # Of a share: sums, what is there of them, distances to the first centre, and of every root
    # counts, least differences and changes.
    of_first = n_centres * plan.d * (1 + plan.gaps)
    of_least = of_first + plan.d + plan.n_roots * n_centres
    total = of_least + 2 * plan.n_roots
    cdef Py_ssize_t n_tiles = (n_samples + plan.tile - 1) // plan.tile
    cdef double cost = plan.n_others + 6
    if plan.mixes:
        cost += 0.1 * plan.n_others * plan.n_hubs
    cost = n_samples * (plan.d * (1.2 + 0.05 * plan.n_others) + plan.n_roots * cost)
    n_shares = shares_of(n_tiles, cost, total)
    n_threads = worth(n_threads, n_shares, cost)
    # About the first centre: between centres at whole numbers ties are ties.
    cdef real[:, ::1] planes = np.empty((n_centres, plan.d), dtype=dtype)
    heights = np.empty((plan.n_others, plan.d))
    cdef double[:, ::1] height = heights
    cdef double off, of_first_centre
    for j in range(plan.d):
        planes[0, j] = <real>centres[0, j]
        of_first_centre = centres[0, j] - planes[0, j]
        for k in range(plan.n_others):
            off = centres[k + 1, j] - planes[0, j]
            height[k, j] = off * off - of_first_centre * of_first_centre
            planes[k + 1, j] = <real>(-2 * (off - of_first_centre))
    constants_of = np.empty((plan.n_hubs, plan.n_others), dtype=dtype)
    for hub in range(plan.n_hubs):
        constants_of[hub] = np.add.reduce(heights[:, places[hub]:places[hub + 1]], axis=1)
    cdef const real[:, ::1] levels = heights.astype(dtype) if plan.gaps else planes
    cdef const real[:, ::1] constants = constants_of
    cdef const real[:, ::1] mixing = np.asarray(mix, dtype=dtype) if plan.mixes else planes
    sums_of_shares = np.zeros((n_shares, total))
    cdef double[:, ::1] partial = sums_of_shares
    cdef real[:, ::1] work = np.empty((n_threads, plan.tile * size), dtype=dtype)
    cdef const unsigned char* seen = &observed[0, 0] if plan.gaps else NULL
    cdef const real* normal = &planes[1, 0] if plan.n_others else NULL
    cdef const real* level = &levels[0, 0] if plan.n_others and plan.gaps else NULL
    cdef const real* constant = &constants[0, 0] if plan.n_others else NULL
    cdef const double* heavy = &weights[0] if weights.shape[0] else NULL
    cdef double* own
    cdef real* near
    cdef real* there_of
    cdef real* local
    cdef real* out
    for share in prange(
        n_shares, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1,
    ):
        thread = threadid()
        own = &partial[share, 0]
        near = &work[thread, 0]
        there_of = near + plan.tile * plan.d
        local = near + plan.tile * plan.d * (1 + plan.gaps)
        out = local
        if plan.mixes:
            out = local + plan.tile * plan.n_others * plan.n_hubs
        begin = plan.tile * share_begin(share, n_shares, n_tiles)
        last = min(plan.tile * share_begin(share + 1, n_shares, n_tiles), n_samples)
        while begin < last:
            n = min(plan.tile, last - begin)
            if plan.n_others:
                differences_of(
                    &plan, &rows[begin, 0], seen + begin * plan.d if plan.gaps else NULL, n,
                    &places[0], &planes[0, 0], normal, level, constant, &mixing[0, 0], near,
                    there_of, local, out,
                )
            add_first(
                &plan, &rows[begin, 0], seen + begin * plan.d if plan.gaps else NULL,
                heavy + begin if heavy != NULL else NULL, n, &centres[0, 0], own + of_first,
            )
            for root in range(plan.n_roots):
                gather(
                    &plan, &rows[begin, 0], seen + begin * plan.d if plan.gaps else NULL,
                    heavy + begin if heavy != NULL else NULL, n,
                    offsets[root] if plan.n_roots > 1 else 0,
                    offsets[root + 1] if plan.n_roots > 1 else plan.d,
                    out + root * plan.n_others * n, &labels[root, begin],
                    own + of_first + plan.d + root * n_centres, own, own + n_centres * plan.d,
                    own + of_least + root, own + of_least + plan.n_roots + root,
                )
            begin = begin + n
    # One after the other, whoever had them.
    totals = sums_of_shares[0] if n_shares == 1 else sums_of_shares.sum(axis=0)
    cdef const double[::1] found = totals
    for k in range(n_centres):
        for j in range(plan.d):
            sums[k, j] += found[k * plan.d + j]
            if plan.gaps:
                there[k, j] += found[(n_centres + k) * plan.d + j]
    for root in range(plan.n_roots):
        for k in range(n_centres):
            counts[root, k] += found[of_first + plan.d + root * n_centres + k]
        least[root] += found[of_least + root]
        changes[root] += <Py_ssize_t>found[of_least + plan.n_roots + root]
    for hub in range(offsets.shape[0] - 1):
        first[hub] += np.add.reduce(totals[of_first + offsets[hub]:of_first + offsets[hub + 1]])
