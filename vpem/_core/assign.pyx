"""Nearest centres of rows, squared distances, and sums of rows by cluster: a pass of Lloyd's."""
import numpy as np

from cython.parallel cimport prange, threadid
from libc.math cimport INFINITY, sqrt
from scipy.linalg.cython_blas cimport dgemm, sgemm

from vpem._core.blas cimport real

cdef enum:
    TILE = 256
    LEAST_CHUNK = 4096     # rows whose sums are added up apart from others'
    MOST_CHUNKS = 64
    CHUNK_VALUES = 1 << 22  # of the sums of all chunks together


cdef inline double squared_distance(
    const real* row,        # IN  (d,)
    const double* centre,   # IN  (d,)
    Py_ssize_t d,
) noexcept nogil:
    """In double precision and always in the same order, so that equal input gives equal output."""
    cdef double a = 0, b = 0, c = 0, e = 0, p, q, r, s
    cdef Py_ssize_t j = 0
    while j + 4 <= d:
        p = <double>row[j] - centre[j]
        q = <double>row[j + 1] - centre[j + 1]
        r = <double>row[j + 2] - centre[j + 2]
        s = <double>row[j + 3] - centre[j + 3]
        a = a + p * p
        b = b + q * q
        c = c + r * r
        e = e + s * s
        j = j + 4
    while j < d:
        p = <double>row[j] - centre[j]
        a = a + p * p
        j = j + 1
    return (a + b) + (c + e)


cdef inline double squared_distance_and_sum(
    const real* row,        # IN    (d,)
    const double* centre,   # IN    (d,)
    double weight,          # IN
    double* total,          # INOUT (d,)  weight times the row is added
    Py_ssize_t d,
) noexcept nogil:
    """`squared_distance`, and the row added to a sum on the way."""
    cdef double a = 0, b = 0, c = 0, e = 0, p, q, r, s
    cdef Py_ssize_t j = 0
    while j + 4 <= d:
        p = <double>row[j]
        q = <double>row[j + 1]
        r = <double>row[j + 2]
        s = <double>row[j + 3]
        total[j] = total[j] + weight * p
        total[j + 1] = total[j + 1] + weight * q
        total[j + 2] = total[j + 2] + weight * r
        total[j + 3] = total[j + 3] + weight * s
        p = p - centre[j]
        q = q - centre[j + 1]
        r = r - centre[j + 2]
        s = s - centre[j + 3]
        a = a + p * p
        b = b + q * q
        c = c + r * r
        e = e + s * s
        j = j + 4
    while j < d:
        p = <double>row[j]
        total[j] = total[j] + weight * p
        p = p - centre[j]
        a = a + p * p
        j = j + 1
    return (a + b) + (c + e)


cdef inline double shifted(
    const real* row,        # IN  (d,)
    const real* shift,      # IN  (d,)
    real* out,              # OUT (d,)  row - shift
    Py_ssize_t d,
) noexcept nogil:
    """Move a row; its squared length."""
    cdef real a = 0, b = 0, c = 0, e = 0, p, q, r, s
    cdef Py_ssize_t j = 0
    while j + 4 <= d:
        p = row[j] - shift[j]
        q = row[j + 1] - shift[j + 1]
        r = row[j + 2] - shift[j + 2]
        s = row[j + 3] - shift[j + 3]
        out[j] = p
        out[j + 1] = q
        out[j + 2] = r
        out[j + 3] = s
        a = a + p * p
        b = b + q * q
        c = c + r * r
        e = e + s * s
        j = j + 4
    while j < d:
        p = row[j] - shift[j]
        out[j] = p
        a = a + p * p
        j = j + 1
    return (<double>a + b) + (<double>c + e)


cdef inline void products(
    const real* rows,       # IN  (n_rows, d)
    const real* centres,    # IN  (K, d)
    real* out,              # OUT (K, n_rows)  -2 centres @ rows.T
    int n_rows,
    int n_centres,
    int d,
) noexcept nogil:
    cdef char first = b"T"
    cdef char second = b"N"
    cdef real scale = -2, keep = 0
    if real is double:
        dgemm(
            &first, &second, &n_rows, &n_centres, &d, &scale, <double*>rows, &d, <double*>centres,
            &d, &keep, out, &n_rows,
        )
    else:
        sgemm(
            &first, &second, &n_rows, &n_centres, &d, &scale, <float*>rows, &d, <float*>centres,
            &d, &keep, out, &n_rows,
        )


cdef inline void least_two(
    const real* values,     # IN  (K, n_rows)
    const real* norms,      # IN  (K,)
    Py_ssize_t n_rows,
    Py_ssize_t n_centres,
    real* best,             # OUT (n_rows,)
    real* second,           # OUT (n_rows,)
    real* place,            # OUT (n_rows,)  number of the best
) noexcept nogil:
    """The two least of every column of ``values + norms``, several columns at a time."""
    cdef Py_ssize_t m, k
    cdef real value, larger, norm, number, least, next_least, who
    cdef const real* line
    for m in range(n_rows):
        best[m] = values[m] + norms[0]
        second[m] = <real>INFINITY
        place[m] = 0
    for k in range(1, n_centres):
        line = values + k * n_rows
        norm = norms[k]
        number = <real>k
        for m in range(n_rows):
            value = line[m] + norm
            least = best[m]
            next_least = second[m]
            who = place[m]
            larger = least if least > value else value
            next_least = larger if larger < next_least else next_least
            who = number if value < least else who
            least = value if value < least else least
            best[m] = least
            second[m] = next_least
            place[m] = who


cdef Py_ssize_t assign_tile(
    const real* rows,        # IN  (n_rows, d)
    Py_ssize_t n_rows,
    Py_ssize_t d,
    const double* centres,   # IN  (K, d)
    Py_ssize_t n_centres,
    const real* moved,       # IN  (K, d)   centres less the shift
    const real* norms,       # IN  (K,)     their squared norms
    const real* shift,       # IN  (d,)
    double reach,            # IN           the largest of their norms
    double rounding,         # IN           of a distance, relative to (|row| + reach)^2
    int* labels,             # INOUT (n_rows,)
    real* scratch,           # WORK  (TILE, d + K)
) noexcept nogil:
    """Labels of one tile; how many are others than before."""
    cdef real* near = scratch
    cdef real* values = scratch + TILE * d
    cdef Py_ssize_t m, k, changed = 0
    cdef real limit
    cdef real best[TILE]
    cdef real second[TILE]
    cdef real place[TILE]
    cdef double lengths[TILE]
    cdef double entry, found, least
    cdef int label
    for m in range(n_rows):
        lengths[m] = shifted(rows + m * d, shift, near + m * d, d)
    products(near, moved, values, <int>n_rows, <int>n_centres, <int>d)
    least_two(values, norms, n_rows, n_centres, &best[0], &second[0], &place[0])
    for m in range(n_rows):
        label = <int>place[m]
        entry = sqrt(lengths[m]) + reach
        limit = <real>(best[m] + rounding * entry * entry)
        if not second[m] > limit:
            # Too near to tell by the products: compare the distances themselves.
            least = squared_distance(rows + m * d, centres + label * d, d)
            for k in range(n_centres):
                if k != label and not values[k * n_rows + m] + norms[k] > limit:
                    found = squared_distance(rows + m * d, centres + k * d, d)
                    if found < least or (found == least and k < label):
                        least = found
                        label = <int>k
        if labels[m] != label:
            labels[m] = label
            changed = changed + 1
    return changed


cdef double sum_tile(
    const real* rows,          # IN    (n_rows, d)
    Py_ssize_t n_rows,
    Py_ssize_t d,
    const double* weights,     # IN    of all rows, or NULL
    Py_ssize_t begin,          # IN    where these rows' begin
    const double* centres,     # IN    (K, d)
    const int* labels,         # IN    (n_rows,)
    double* distances,         # OUT   (n_rows,)
    double* counts,            # INOUT (K,)
    double* sums,              # INOUT (K, d)
) noexcept nogil:
    """Add the rows to the sums of their clusters; the weighted sum of their distances."""
    cdef Py_ssize_t m, k
    cdef double inertia = 0, weight
    for m in range(n_rows):
        k = labels[m]
        weight = 1 if weights == NULL else weights[begin + m]
        counts[k] += weight
        distances[m] = squared_distance_and_sum(
            rows + m * d, centres + k * d, weight, sums + k * d, d
        )
        inertia = inertia + weight * distances[m]
    return inertia


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
    cdef Py_ssize_t n_roots = centres.shape[0]
    if n_samples == 0:
        return
    # How rows are cut does not depend on the threads, so the sums do not either.
    cdef Py_ssize_t size = n_centres * (d + 1), root
    most = max(1, min(MOST_CHUNKS, CHUNK_VALUES // max(size, 1)))
    step = max(LEAST_CHUNK, -(-n_samples // most))
    step = -(-step // TILE) * TILE
    cuts = [np.arange(bounds[i], bounds[i + 1], step) for i in range(counts.shape[0])]
    owners = np.repeat(np.arange(len(cuts)), [len(cut) for cut in cuts])
    cdef Py_ssize_t[::1] begins = np.concatenate([*cuts, [n_samples]])
    cdef Py_ssize_t[::1] owner = owners
    cdef Py_ssize_t n_chunks = len(owners), chunk, first, last, count
    n_threads = max(1, min(n_threads, <int>n_chunks))
    dtype = np.float64 if real is double else np.float32
    points = np.asarray(centres)
    middle = points.mean(axis=1).astype(dtype)
    near = np.ascontiguousarray(points - middle[:, None], dtype=dtype)
    lengths = np.einsum("rkj,rkj->rk", near, near)
    cdef real[:, ::1] shift = middle
    cdef real[:, :, ::1] moved = near
    cdef real[:, ::1] norms = np.ascontiguousarray(lengths, dtype=dtype)
    cdef double[::1] reach = np.sqrt(lengths.max(axis=1).astype(np.float64))
    # Twice the bounds of what is lost in the shifted products and in the distances themselves.
    cdef double rounding = 4.0 * (d + 8) * np.finfo(dtype).eps
    cdef real[:, ::1] scratch = np.empty((n_threads, TILE * (d + n_centres)), dtype=dtype)
    cdef double[:, ::1] partial = np.zeros((n_chunks, size))
    cdef double[::1] found = np.zeros(n_chunks)
    cdef Py_ssize_t[::1] others = np.zeros(n_chunks, dtype=np.intp)
    cdef const real* data = &rows[0, 0] if d else NULL
    cdef const double* places = &centres[0, 0, 0] if d else NULL
    cdef const real* moved_places = &moved[0, 0, 0] if d else NULL
    cdef const real* origin = &shift[0, 0] if d else NULL
    cdef const double* heavy = &weights[0] if weights.shape[0] else NULL
    for chunk in prange(n_chunks, nogil=True, num_threads=n_threads, schedule="dynamic"):
        root = owner[chunk] if n_roots > 1 else 0
        first = begins[chunk]
        last = begins[chunk + 1]
        while first < last:
            count = min(<Py_ssize_t>TILE, last - first)
            others[chunk] += assign_tile(
                data + first * d, count, d, places + root * n_centres * d, n_centres,
                moved_places + root * n_centres * d, &norms[root, 0], origin + root * d,
                reach[root], rounding, &labels[first], &scratch[threadid(), 0],
            )
            found[chunk] += sum_tile(
                data + first * d, count, d, heavy, first, places + root * n_centres * d,
                &labels[first], &distances[first], &partial[chunk, 0],
                &partial[chunk, 0] + n_centres,
            )
            first = first + count
    present, starts = np.unique(owners, return_index=True)
    added = np.add.reduceat(np.asarray(partial), starts, axis=0)
    np.asarray(counts)[present] += added[:, :n_centres]
    np.asarray(sums)[present] += added[:, n_centres:].reshape(len(present), n_centres, d)
    np.asarray(inertias)[present] += np.add.reduceat(np.asarray(found), starts)
    np.asarray(changes)[present] += np.add.reduceat(np.asarray(others), starts)


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
    n_threads = max(1, min(n_threads, <int>(1 + n_samples // TILE)))
    for m in prange(n_samples, nogil=True, num_threads=n_threads, schedule="static"):
        for k in range(n_points):
            out[k, m] = squared_distance(data + m * d, places + k * d, d)
