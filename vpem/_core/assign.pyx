"""Nearest centres of rows, squared distances, and sums of rows by cluster: a pass of Lloyd's."""
import numpy as np

from cython.parallel cimport prange, threadid
from libc.float cimport DBL_EPSILON, FLT_EPSILON
from libc.math cimport sqrt
from scipy.linalg.cython_blas cimport dgemm, sgemm

from vpem._core.real cimport real
from vpem._core.simd cimport vpem_instruction_set

cdef extern from "simd/nearest.h" nogil:
    double vpem_apart_d(int, const double*, const double*, long)
    double vpem_apart_f(int, const float*, const double*, long)
    double vpem_gather_d(
        int, const double*, long, long, const double*, const double*, const int*, double*, double*,
        double*)
    double vpem_gather_f(
        int, const float*, long, long, const double*, const double*, const int*, double*, double*,
        double*)
    void vpem_move_d(int, const double*, long, long, const double*, long, double*, double*)
    void vpem_move_f(int, const float*, long, long, const float*, long, float*, double*)
    void vpem_four_rows_d(
        int, const double*, long, const double*, long, long, double*, long, double)
    void vpem_four_rows_f(int, const float*, long, const float*, long, long, float*, long, float)
    void vpem_least_d(
        int, const double*, long, const double*, long, double*, double*, double*)
    void vpem_least_f(int, const float*, long, const float*, long, float*, float*, float*)

cdef enum:
    TILE = 256              # most rows looked at together
    LEAST_TILE = 32
    TILE_BYTES = 1 << 18    # of the rows of a tile, where they are wide
    LEAST_DIRECT = 64       # features, and
    MOST_DIRECT = 24        # centres, to multiply as rows stand in memory instead of by BLAS
    PANEL = 256             # features multiplied at a time: bounds what products lose to rounding
    MOST_CHUNKS = 64        # of rows whose sums are added up apart from others'
    CHUNK_VALUES = 1 << 22  # of the sums of all chunks together


cdef struct Pass:
    # What all tiles of a pass share.
    int isa
    Py_ssize_t d
    Py_ssize_t n_centres
    Py_ssize_t n_roots
    Py_ssize_t tile         # rows of one
    Py_ssize_t panel        # features of one
    bint direct             # whether rows are multiplied four at a time
    double rounding         # of a distance, relative to (|row| + reach)^2


cdef inline double apart(
    int isa, const real* row, const double* centre, Py_ssize_t d
) noexcept nogil:
    """Squared distance in double precision, always added up in the same order."""
    if real is double:
        return vpem_apart_d(isa, <const double*>row, centre, d)
    else:
        return vpem_apart_f(isa, <const float*>row, centre, d)


cdef inline void products(
    const real* rows,       # IN    (n_rows, width)
    const real* centres,    # IN    (K, d)  the first of these features
    real* out,              # INOUT (K, stride)  -2 centres @ rows.T
    int n_rows,
    int n_centres,
    int width,
    int d,
    int stride,
    real keep,              # IN    what `out` is multiplied by before
) noexcept nogil:
    cdef char first = b"T"
    cdef char second = b"N"
    cdef real scale = -2
    if real is double:
        dgemm(
            &first, &second, &n_rows, &n_centres, &width, &scale, <double*>rows, &width,
            <double*>centres, &d, &keep, out, &stride,
        )
    else:
        sgemm(
            &first, &second, &n_rows, &n_centres, &width, &scale, <float*>rows, &width,
            <float*>centres, &d, &keep, out, &stride,
        )


cdef inline void move_and_multiply(
    const Pass* plan,
    const real* rows,       # IN    (n_rows, d)  the first of some features
    Py_ssize_t n_rows,
    const real* shift,      # IN    (width,)
    Py_ssize_t width,
    const real* moved,      # IN    (K, d)       the first of these features
    real* near,             # WORK  (n_rows, width), four rows at least
    double* lengths,        # INOUT (n_rows,)    squared, of rows less the shift: added to
    real* values,           # INOUT (K, stride)  -2 moved @ (rows - shift).T is added to
    Py_ssize_t stride,
    bint fresh,             # IN    whether nothing is there yet
) noexcept nogil:
    """Some features of a few rows, with those of all centres."""
    cdef real keep = 0 if fresh else 1
    if real is double:
        vpem_move_d(plan.isa, rows, n_rows, plan.d, shift, width, near, lengths)
        if plan.direct:
            vpem_four_rows_d(
                plan.isa, near, width, moved, plan.n_centres, plan.d, values, stride, keep
            )
            return
    else:
        vpem_move_f(plan.isa, rows, n_rows, plan.d, shift, width, near, lengths)
        if plan.direct:
            vpem_four_rows_f(
                plan.isa, near, width, moved, plan.n_centres, plan.d, values, stride, keep
            )
            return
    products(
        near, moved, values, <int>n_rows, <int>plan.n_centres, <int>width, <int>plan.d,
        <int>stride, keep,
    )


cdef void place_centres(
    const double* centres,   # IN  (K, d)
    Py_ssize_t n_centres,
    Py_ssize_t d,
    real* shift,             # OUT (d,)    their mean
    real* moved,             # OUT (K, d)  centres less that
    real* norms,             # OUT (K,)    squared lengths of these
    double* reach,           # OUT         the largest length
) noexcept nogil:
    cdef Py_ssize_t j, k
    cdef double total
    cdef real entry
    reach[0] = 0
    for j in range(d):
        total = 0
        for k in range(n_centres):
            total = total + centres[k * d + j]
        shift[j] = <real>(total / n_centres)
    for k in range(n_centres):
        total = 0
        for j in range(d):
            entry = <real>(centres[k * d + j] - shift[j])
            moved[k * d + j] = entry
            total = total + <double>entry * entry
        norms[k] = <real>total
        reach[0] = max(reach[0], sqrt(total))


cdef void assign_tile(
    const Pass* plan,
    const real* rows,        # IN  (n_rows, d)
    Py_ssize_t n_rows,
    const double* centres,   # IN  (K, d)
    const real* moved,       # IN  (K, d)   centres less the shift
    const real* norms,       # IN  (K,)     their squared norms
    const real* shift,       # IN  (d,)
    double reach,            # IN           the largest of their norms
    int* labels,             # INOUT (n_rows,)
    bint* others,            # OUT   (n_rows,)  whether a label is another than before
    real* scratch,           # WORK  (tile, panel + K)
) noexcept nogil:
    """Labels of one tile."""
    cdef Py_ssize_t d = plan.d, n_centres = plan.n_centres
    cdef real* near = scratch
    cdef real* values = scratch + plan.tile * plan.panel
    cdef Py_ssize_t m, k, left = 0, width, step, stride = (n_rows + 7) // 8 * 8
    cdef real limit
    cdef real best[TILE]
    cdef real second[TILE]
    cdef real place[TILE]
    cdef double lengths[TILE]
    cdef double entry, found, least
    cdef int label
    for m in range(n_rows):
        lengths[m] = 0
    while left == 0 or left < d:
        width = min(plan.panel, d - left)
        step = 4 if plan.direct else n_rows
        m = 0
        while m < n_rows:
            move_and_multiply(
                plan, rows + m * d + left, min(step, n_rows - m), shift + left, width,
                moved + left, near, lengths + m, values + m, stride, left == 0,
            )
            m = m + step
        left = left + plan.panel
    if real is double:
        vpem_least_d(plan.isa, values, stride, norms, n_centres, best, second, place)
    else:
        vpem_least_f(plan.isa, values, stride, norms, n_centres, best, second, place)
    for m in range(n_rows):
        label = <int>place[m]
        entry = sqrt(lengths[m]) + reach
        limit = <real>(best[m] + plan.rounding * entry * entry)
        if not second[m] > limit:
            # Too near to tell by the products: compare the distances themselves.
            least = apart(plan.isa, rows + m * d, centres + label * d, d)
            for k in range(n_centres):
                if k != label and not values[k * stride + m] + norms[k] > limit:
                    found = apart(plan.isa, rows + m * d, centres + k * d, d)
                    if found < least or (found == least and k < label):
                        least = found
                        label = <int>k
        others[m] = labels[m] != label
        labels[m] = label


cdef inline double gather(
    const Pass* plan,
    const real* rows,          # IN    (n_rows, d)
    Py_ssize_t n_rows,
    const double* weights,     # IN    (n_rows,), or NULL
    const double* centres,     # IN    (K, d)
    const int* labels,         # IN    (n_rows,)
    double* distances,         # OUT   (n_rows,)
    double* counts,            # INOUT (K,)
    double* sums,              # INOUT (K, d)
) noexcept nogil:
    """Add the rows to the sums of their clusters; the weighted sum of their distances."""
    if real is double:
        return vpem_gather_d(
            plan.isa, <const double*>rows, n_rows, plan.d, weights, centres, labels, distances,
            counts, sums,
        )
    else:
        return vpem_gather_f(
            plan.isa, <const float*>rows, n_rows, plan.d, weights, centres, labels, distances,
            counts, sums,
        )


cdef Py_ssize_t cut(
    const Py_ssize_t[::1] bounds,   # IN  (N + 1,)
    Py_ssize_t step,
    Py_ssize_t[:, ::1] pieces,      # OUT (most, 4)  worker, first row, last, place of its sums
    Py_ssize_t[::1] chunks,         # OUT (most + 1,)  the first piece of each
    Py_ssize_t* n_places,           # OUT  how many sums are kept apart
) noexcept nogil:
    """Cut rows in chunks of a thread: many small workers, or a part of a large one.

    A worker that is in one piece has its sums added where they belong (place -1).
    """
    cdef Py_ssize_t worker, first, last, n = 0, n_chunks = 0, filled = step
    n_places[0] = 0
    for worker in range(bounds.shape[0] - 1):
        first = bounds[worker]
        last = bounds[worker + 1]
        if first == last:
            continue
        if last - first > step:
            filled = step
            while first < last:
                chunks[n_chunks] = n
                n_chunks = n_chunks + 1
                pieces[n, 0] = worker
                pieces[n, 1] = first
                pieces[n, 2] = min(first + step, last)
                pieces[n, 3] = n_places[0]
                n_places[0] += 1
                first = pieces[n, 2]
                n = n + 1
            continue
        if filled + (last - first) > step:
            filled = 0
            chunks[n_chunks] = n
            n_chunks = n_chunks + 1
        filled = filled + (last - first)
        pieces[n, 0] = worker
        pieces[n, 1] = first
        pieces[n, 2] = last
        pieces[n, 3] = -1
        n = n + 1
    chunks[n_chunks] = n
    return n_chunks


cdef void pass_over(
    const Pass* plan,
    const Py_ssize_t* pieces,   # IN    (n_pieces, 4) as `cut` makes them
    Py_ssize_t n_pieces,
    const real* rows,           # IN    (M, d)
    const double* weights,      # IN    (M,), or NULL
    const double* centres,      # IN    (R, K, d)
    const real* moved,          # IN    (R, K d + 1)
    const real* norms,          # IN    (R, K)
    const real* shift,          # IN    (R, d + 1)
    const double* reach,        # IN    (R,)
    int* labels,                # INOUT (M,)
    double* distances,          # OUT   (M,)
    double* counts,             # INOUT (N, K)
    double* sums,               # INOUT (N, K, d)
    double* inertias,           # INOUT (N,)
    Py_ssize_t* changes,        # INOUT (N,)
    double* partial,            # INOUT (n_places, K d + K + 2)  sums, counts, inertia, changes
    real* scratch,              # WORK  (tile, panel + K)
) noexcept nogil:
    """Rows of one chunk: its tiles, and of each tile the rows of every worker."""
    cdef Py_ssize_t d = plan.d, n_centres = plan.n_centres, size = n_centres * d
    cdef Py_ssize_t piece = 0, first = pieces[1], end = pieces[4 * n_pieces - 2]
    cdef Py_ssize_t root, last, begin, stop, worker, m, changed
    cdef const double* places
    cdef const double* heavy
    cdef double* own
    cdef double inertia
    cdef bint others[TILE]
    while first < end:
        root = pieces[4 * piece] if plan.n_roots > 1 else 0
        last = min(first + plan.tile, pieces[4 * piece + 2] if plan.n_roots > 1 else end)
        places = centres + root * size
        assign_tile(
            plan, rows + first * d, last - first, places, moved + root * (size + 1),
            norms + root * n_centres, shift + root * (d + 1), reach[root], labels + first, others,
            scratch,
        )
        begin = first
        while begin < last:
            stop = min(last, pieces[4 * piece + 2])
            worker = pieces[4 * piece]
            heavy = NULL
            if weights != NULL:
                heavy = weights + begin
            changed = 0
            for m in range(begin - first, stop - first):
                changed = changed + others[m]
            if pieces[4 * piece + 3] < 0:
                inertia = gather(
                    plan, rows + begin * d, stop - begin, heavy, places, labels + begin,
                    distances + begin, counts + worker * n_centres, sums + worker * size,
                )
                inertias[worker] += inertia
                changes[worker] += changed
            else:
                own = partial + pieces[4 * piece + 3] * (size + n_centres + 2)
                inertia = gather(
                    plan, rows + begin * d, stop - begin, heavy, places, labels + begin,
                    distances + begin, own + size, own,
                )
                own[size + n_centres] += inertia
                own[size + n_centres + 1] += changed
            begin = stop
            if stop == pieces[4 * piece + 2]:
                piece = piece + 1
        first = last


cdef void add_up(
    const Py_ssize_t[:, ::1] pieces,
    Py_ssize_t n_pieces,
    const double[:, ::1] partial,     # IN    (n_places, K d + K + 2)
    double[:, ::1] counts,            # INOUT (N, K)
    double[:, :, ::1] sums,           # INOUT (N, K, d)
    double[::1] inertias,             # INOUT (N,)
    Py_ssize_t[::1] changes,          # INOUT (N,)
) noexcept nogil:
    """Add the sums of pieces to those of their workers, one after the other."""
    cdef Py_ssize_t n_centres = counts.shape[1], d = sums.shape[2], size = n_centres * d
    cdef Py_ssize_t piece, worker, k, j
    cdef const double* own
    cdef double* total
    for piece in range(n_pieces):
        if pieces[piece, 3] < 0:
            continue
        worker = pieces[piece, 0]
        own = &partial[pieces[piece, 3], 0]
        if d:
            total = &sums[worker, 0, 0]
            for j in range(size):
                total[j] += own[j]
        for k in range(n_centres):
            counts[worker, k] += own[size + k]
        inertias[worker] += own[size + n_centres]
        changes[worker] += <Py_ssize_t>own[size + n_centres + 1]


def assign_rows(
    const real[:, ::1] rows,          # IN    (M, d)        worker by worker
    const double[::1] weights,        # IN    (M,), or (0,): all rows alike
    const Py_ssize_t[::1] bounds,     # IN    (N + 1,)      where each worker's rows begin, and M
    const double[:, :, ::1] centres,  # IN    (R, K, d)     R is 1 or N
    int[::1] labels,                  # INOUT (M,)
    double[::1] distances,            # OUT   (M,)
    double[:, ::1] counts,            # INOUT (N, K)        added to
    double[:, :, ::1] sums,           # INOUT (N, K, d)     added to
    double[::1] inertias,             # INOUT (N,)          added to
    Py_ssize_t[::1] changes,          # INOUT (N,)          added to
    int n_threads,
):
    """Assign the rows of workers to their nearest centres and add them to their clusters' sums.

    See `vpem._core.reference_assign.assign_rows`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], d = rows.shape[1], n_centres = centres.shape[1]
    cdef Py_ssize_t n_roots = centres.shape[0], n_workers = bounds.shape[0] - 1
    cdef Py_ssize_t root, most, step, n_chunks, n_places, chunk, thread
    if n_samples == 0:
        return
    # How rows are cut does not depend on the threads, so the sums do not either.
    cdef Py_ssize_t size = n_centres * (d + 1)
    most = max(1, min(<Py_ssize_t>MOST_CHUNKS, CHUNK_VALUES // max(size, 1)))
    step = max(max(<Py_ssize_t>TILE, 8 * n_centres), max(8192 // max(d, 1), -(-n_samples // most)))
    step = -(-step // TILE) * TILE
    cdef Pass plan
    plan.isa = vpem_instruction_set()
    plan.d = d
    plan.n_centres = n_centres
    plan.n_roots = n_roots
    plan.direct = d >= LEAST_DIRECT and n_centres <= MOST_DIRECT
    plan.panel = max(<Py_ssize_t>1, min(<Py_ssize_t>PANEL, d))
    plan.tile = TILE_BYTES // (max(d, 1) * <Py_ssize_t>sizeof(real)) // LEAST_TILE * LEAST_TILE
    plan.tile = max(<Py_ssize_t>LEAST_TILE, min(<Py_ssize_t>TILE, plan.tile))
    # Twice the bounds of what is lost in the shifted products and in the distances themselves.
    plan.rounding = 4.0 * (plan.panel + d // plan.panel + 8)
    plan.rounding *= DBL_EPSILON if real is double else FLT_EPSILON
    most = n_workers + n_samples // step + 1
    cdef Py_ssize_t[:, ::1] pieces = np.empty((most, 4), dtype=np.intp)
    cdef Py_ssize_t[::1] chunks = np.empty(most + 1, dtype=np.intp)
    n_chunks = cut(bounds, step, pieces, chunks, &n_places)
    n_threads = max(1, min(n_threads, <int>n_chunks))
    dtype = np.float64 if real is double else np.float32
    cdef real[:, ::1] shift = np.empty((n_roots, d + 1), dtype=dtype)
    cdef real[:, ::1] moved = np.empty((n_roots, n_centres * d + 1), dtype=dtype)
    cdef real[:, ::1] norms = np.empty((n_roots, n_centres), dtype=dtype)
    cdef double[::1] reach = np.empty(n_roots)
    cdef real[:, ::1] scratch = np.zeros(
        (n_threads, plan.tile * (plan.panel + n_centres)), dtype=dtype
    )
    cdef double[:, ::1] partial = np.zeros((n_places, size + 2))
    cdef const real* data = &rows[0, 0] if d else NULL
    cdef const double* points = &centres[0, 0, 0] if d else NULL
    cdef const double* heavy = &weights[0] if weights.shape[0] else NULL
    cdef double* total = &sums[0, 0, 0] if d else NULL
    for root in range(n_roots):
        place_centres(
            points + root * n_centres * d, n_centres, d, &shift[root, 0], &moved[root, 0],
            &norms[root, 0], &reach[root],
        )
    for chunk in prange(n_chunks, nogil=True, num_threads=n_threads, schedule="dynamic"):
        thread = threadid()
        pass_over(
            &plan, &pieces[chunks[chunk], 0], chunks[chunk + 1] - chunks[chunk], data, heavy,
            points, &moved[0, 0], &norms[0, 0], &shift[0, 0], &reach[0], &labels[0], &distances[0],
            &counts[0, 0], total, &inertias[0], &changes[0],
            &partial[0, 0] if n_places else NULL, &scratch[thread, 0],
        )
    add_up(pieces, chunks[n_chunks], partial, counts, sums, inertias, changes)


def distances_to(
    const real[:, ::1] rows,        # IN  (M, d)
    const double[:, ::1] points,    # IN  (L, d)
    double[:, ::1] out,             # OUT (L, M)
    int n_threads,
):
    """Squared distances of all rows to a few points.

    See `vpem._core.reference_assign.distances_to`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], d = rows.shape[1], n_points = points.shape[0]
    cdef Py_ssize_t m, k
    cdef const real* data = &rows[0, 0] if n_samples and d else NULL
    cdef const double* places = &points[0, 0] if n_points and d else NULL
    cdef int isa = vpem_instruction_set()
    n_threads = max(1, min(n_threads, <int>(1 + n_samples // TILE)))
    for m in prange(n_samples, nogil=True, num_threads=n_threads, schedule="static"):
        for k in range(n_points):
            out[k, m] = apart(isa, data + m * d, places + k * d, d)
