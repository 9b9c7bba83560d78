"""Nearest centres of rows, and passes of Lloyd's algorithm that look at few rows again."""
import numpy as np

from cython.parallel cimport prange, threadid
from libc.float cimport DBL_EPSILON, FLT_EPSILON, FLT_MAX
from libc.math cimport INFINITY, fma, isnan, sqrt
from libc.string cimport memcpy

from vpem._core.real cimport real
from vpem._core.shares cimport at_once, worth
from vpem._core.simd cimport vpem_instruction_set

cdef extern from "simd/nearest.h" nogil:
    enum:
        VPEM_STEP
    double vpem_apart_d(int, const double*, const double*, Py_ssize_t)
    double vpem_apart_f(int, const float*, const double*, Py_ssize_t)
    void vpem_apart_from_four_d(
        int, const double*, Py_ssize_t, Py_ssize_t, const double*, double*, Py_ssize_t)
    void vpem_apart_from_four_f(
        int, const float*, Py_ssize_t, Py_ssize_t, const double*, double*, Py_ssize_t)
    double vpem_measure_d(
        int, const double*, Py_ssize_t, Py_ssize_t, const double*, const double*, const int*,
        double*)
    double vpem_measure_f(
        int, const float*, Py_ssize_t, Py_ssize_t, const double*, const double*, const int*,
        double*)
    void vpem_enter_d(int, const double*, Py_ssize_t, double, double*, double*)
    void vpem_enter_f(int, const float*, Py_ssize_t, double, double*, double*)
    void vpem_squares_d(
        int, const double*, const Py_ssize_t*, Py_ssize_t, const double*, Py_ssize_t,
        const double*, double*, double*)
    void vpem_squares_f(
        int, const float*, const Py_ssize_t*, Py_ssize_t, const double*, Py_ssize_t, const double*,
        double*, double*)
    void vpem_fetch_d(int, const double*, const Py_ssize_t*, Py_ssize_t, Py_ssize_t)
    void vpem_fetch_f(int, const float*, const Py_ssize_t*, Py_ssize_t, Py_ssize_t)
    void vpem_turn_d(
        int, const double*, const Py_ssize_t*, Py_ssize_t, Py_ssize_t, const double*, Py_ssize_t,
        double*, double*)
    void vpem_turn_f(
        int, const float*, const Py_ssize_t*, Py_ssize_t, Py_ssize_t, const float*, Py_ssize_t,
        float*, float*)
    void vpem_products_d(
        int, const double*, Py_ssize_t, const double*, Py_ssize_t, Py_ssize_t, const double*,
        double*)
    void vpem_products_f(
        int, const float*, Py_ssize_t, const float*, Py_ssize_t, Py_ssize_t, const float*, float*)
    void vpem_least_d(
        int, const double*, const double*, Py_ssize_t, double, double, double*, int*, char*,
        float*, float*)
    void vpem_least_f(
        int, const float*, const float*, Py_ssize_t, double, double, float*, int*, char*, float*,
        float*)
    Py_ssize_t vpem_doubtful(
        int, const int*, float*, float*, Py_ssize_t, const float*, Py_ssize_t, Py_ssize_t,
        Py_ssize_t*)

cdef enum:
    STEP = 64               # rows that are looked at together, as simd/nearest.h has it
    GLANCE = 512            # rows whose bounds are looked at together
    FETCHED = 1 << 17       # bytes of rows that are fetched before they are looked at
    PANEL = 128             # features multiplied at a time: bounds what products lose to rounding
    MOST_CHUNKS = 64        # of rows whose sums are added up apart from others'
    CHUNK_VALUES = 1 << 22  # of the sums of all chunks together
    ROWS_A_CENTRE = 32      # of a chunk at least
    SAMPLED = 256           # rows by which the work of a pass is told

cdef double UP = 1 + 1.0 / (1 << 22)    # what single precision may lose, and more
cdef double DOWN = 1 - 1.0 / (1 << 22)


cdef struct Pass:
    # What all rows of a pass share.
    int isa
    Py_ssize_t d
    Py_ssize_t n_centres
    Py_ssize_t panel        # features of one
    double rounding         # of a squared distance, relative to (|row| + reach)^2


cdef struct Nearest:
    # What is found of a few rows.
    int place[STEP]
    char tied[STEP]
    float upper[STEP]       # the distance to the nearest centre is at most this,
    float lower[STEP]       # to any other at least this


cdef inline double apart(
    int isa, const real* row, const double* centre, Py_ssize_t d
) noexcept nogil:
    """Squared distance in double precision, always added up in the same order."""
    if real is double:
        return vpem_apart_d(isa, <const double*>row, centre, d)
    else:
        return vpem_apart_f(isa, <const float*>row, centre, d)


cdef void place_centres(
    const double* centres,   # IN  (K, d)
    Py_ssize_t n_centres,
    Py_ssize_t d,
    real* shift,             # OUT (d,)    their mean
    real* moved,             # OUT (K, d)  -2 times centres less that
    real* norms,             # OUT (K,)    squared lengths of centres less that
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
            moved[k * d + j] = -2 * entry
            total = total + <double>entry * entry
        norms[k] = <real>total
        reach[0] = max(reach[0], sqrt(total))


cdef void look_at(
    const Pass* plan,
    const real* rows,        # IN    (M, d)
    Py_ssize_t* at,          # INOUT (known,)  rows of which the first are taken, STEP at most;
                             #                 up to there places beyond get the last of them
    Py_ssize_t known,        # IN              how many, at least 1
    const double* centres,   # IN    (K, d)
    const real* moved,       # IN    (K, d)    -2 times centres less the shift
    const real* norms,       # IN    (K,)      their squared lengths
    const real* shift,       # IN    (d,)
    double reach,            # IN              the largest length
    Nearest* found,          # OUT
    real* scratch,           # WORK  (STEP, panel + K + 2)
) noexcept nogil:
    """Find the nearest centres of a few rows."""
    cdef Py_ssize_t d = plan.d, n_centres = plan.n_centres
    cdef real* near = scratch
    cdef real* values = near + STEP * plan.panel
    cdef real* lengths = values + STEP * n_centres
    cdef real* limits = lengths + STEP
    cdef Py_ssize_t m, k, left = 0, width, n_rows = min(known, <Py_ssize_t>STEP)
    cdef double off, least
    cdef const real* row
    cdef const real* fresh = norms
    cdef int label
    for m in range(n_rows, STEP):
        at[m] = at[n_rows - 1]
    for m in range(STEP):
        lengths[m] = 0
    while left == 0 or left < d:
        width = min(plan.panel, d - left)
        if real is double:
            vpem_turn_d(plan.isa, rows + left, at, known, d, shift + left, width, near, lengths)
            vpem_products_d(
                plan.isa, near, width, moved + left, n_centres, d, fresh, values
            )
        else:
            vpem_turn_f(plan.isa, rows + left, at, known, d, shift + left, width, near, lengths)
            vpem_products_f(
                plan.isa, near, width, moved + left, n_centres, d, fresh, values
            )
        left = left + plan.panel
        fresh = NULL
    if real is double:
        vpem_least_d(
            plan.isa, values, lengths, n_centres, plan.rounding, reach, limits, found.place,
            found.tied, found.upper, found.lower,
        )
    else:
        vpem_least_f(
            plan.isa, values, lengths, n_centres, plan.rounding, reach, limits, found.place,
            found.tied, found.upper, found.lower,
        )
    for m in range(n_rows):
        if not found.tied[m]:
            continue
        # Too near to tell by the products: compare the distances themselves.
        row = rows + at[m] * d
        label = found.place[m]
        least = apart(plan.isa, row, centres + label * d, d)
        for k in range(n_centres):
            if k != found.place[m] and not values[k * STEP + m] > limits[m]:
                off = apart(plan.isa, row, centres + k * d, d)
                if off < least or (off == least and k < label):
                    least = off
                    label = <int>k
        found.place[m] = label
        # Where the next one is as near no bound tells them apart.
        found.upper[m] = <float>(sqrt(least) * UP)
        found.lower[m] = 0


cdef inline double nanoseconds(Py_ssize_t d, Py_ssize_t n_centres) noexcept nogil:
    """Of a row whose nearest centre is looked for, roughly."""
    return 5 + 0.5 * d + 0.1 * n_centres + 0.02 * n_centres * d


cdef void prepare(Pass* plan, Py_ssize_t d, Py_ssize_t n_centres, double epsilon) noexcept:
    plan.isa = vpem_instruction_set()
    plan.d = d
    plan.n_centres = n_centres
    plan.panel = max(<Py_ssize_t>1, min(<Py_ssize_t>PANEL, d))
    # Twice the bounds of what is lost in the shifted products and in the distances themselves.
    plan.rounding = 4.0 * (plan.panel + d // plan.panel + 8) * epsilon


def nearest_rows(
    const real[:, ::1] rows,          # IN  (M, d)
    const double[:, ::1] centres,     # IN  (K, d)
    int[::1] labels,                  # OUT (M,)
    double[::1] distances,            # OUT (M,)
    int n_threads,
):
    """Find the nearest centres of rows, and their squared distances.

    See `tests.twins.assign.nearest_rows`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], d = rows.shape[1], n_centres = centres.shape[0]
    cdef Py_ssize_t chunk, size, n_chunks, thread
    if n_samples == 0:
        return
    cdef Pass plan
    prepare(&plan, d, n_centres, DBL_EPSILON if real is double else FLT_EPSILON)
    dtype = np.float64 if real is double else np.float32
    cdef real[::1] shift = np.empty(d + 1, dtype=dtype)
    cdef real[::1] moved = np.empty(n_centres * d + 1, dtype=dtype)
    cdef real[::1] norms = np.empty(n_centres, dtype=dtype)
    cdef double reach
    cdef const real* data = &rows[0, 0] if d else NULL
    cdef const double* points = &centres[0, 0] if d else NULL
    place_centres(points, n_centres, d, &shift[0], &moved[0], &norms[0], &reach)
    size = (max(<Py_ssize_t>GLANCE, 8192 // max(d, 1)) + STEP - 1) // STEP * STEP
    n_chunks = (n_samples + size - 1) // size
    n_threads = worth(n_threads, n_chunks, n_samples * nanoseconds(d, n_centres))
    cdef real[:, ::1] scratch = np.zeros(
        (n_threads, STEP * (plan.panel + n_centres + 2)), dtype=dtype
    )
    for chunk in prange(n_chunks, nogil=True, num_threads=n_threads, schedule="dynamic"):
        thread = threadid()
        label_rows(
            &plan, data, chunk * size, min(n_samples, (chunk + 1) * size), points, &moved[0],
            &norms[0], &shift[0], reach, &labels[0], &distances[0], &scratch[thread, 0],
        )


cdef void label_rows(
    const Pass* plan,
    const real* rows,        # IN   (M, d)
    Py_ssize_t first,        # IN            rows from here
    Py_ssize_t last,         # IN            to here
    const double* centres,   # IN   (K, d)
    const real* moved,       # IN   (K, d)   as `place_centres` has them, like the next three
    const real* norms,       # IN   (K,)
    const real* shift,       # IN   (d,)
    double reach,
    int* labels,             # OUT  (M,)
    double* distances,       # OUT  (M,)
    real* scratch,           # WORK (STEP, panel + K + 2)
) noexcept nogil:
    cdef Py_ssize_t m, n
    cdef Py_ssize_t at[STEP]
    cdef Nearest found
    while first < last:
        n = min(<Py_ssize_t>STEP, last - first)
        for m in range(n):
            at[m] = first + m
        look_at(plan, rows, at, n, centres, moved, norms, shift, reach, &found, scratch)
        for m in range(n):
            labels[first + m] = found.place[m]
            distances[first + m] = apart(
                plan.isa, rows + (first + m) * plan.d, centres + found.place[m] * plan.d, plan.d
            )
        first = first + n


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


cdef Py_ssize_t step_of(Py_ssize_t n_samples, Py_ssize_t d, Py_ssize_t n_centres) noexcept:
    """Rows of a chunk: by the shape alone, so that sums do not depend on the threads."""
    cdef Py_ssize_t size = n_centres * (d + 1), most, step
    most = max(1, min(<Py_ssize_t>MOST_CHUNKS, CHUNK_VALUES // max(size, 1)))
    step = max(max(<Py_ssize_t>GLANCE, ROWS_A_CENTRE * n_centres), 8192 // max(d, 1))
    step = max(step, n_samples // most + 1)
    return (step + GLANCE - 1) // GLANCE * GLANCE


cdef struct Totals:
    # Where rows of a worker are added up: P = K + K d + 1 numbers, in two parts.
    double* high
    double* low
    Py_ssize_t* changes
    bint* touched


cdef struct Seen:
    # What is kept of rows from pass to pass, of all of them.
    const double* weights   # (M,), or NULL
    const double* about     # (d,)
    int* labels             # (M,)
    float* upper            # (M,)
    float* lower            # (M,)


cdef inline void add_row(
    const Pass* plan, const real* row, double weight, Py_ssize_t label, Totals* to
) noexcept nogil:
    """Add a row, in two parts a number, to the count and the sum of a cluster."""
    cdef double before = to.high[label], after = before + weight, part = after - before
    cdef Py_ssize_t place = plan.n_centres + label * plan.d
    to.high[label] = after
    to.low[label] += (before - (after - part)) + (weight - part)
    if real is double:
        vpem_enter_d(plan.isa, row, plan.d, weight, to.high + place, to.low + place)
    else:
        vpem_enter_f(plan.isa, row, plan.d, weight, to.high + place, to.low + place)


cdef void reassign(
    const Pass* plan,
    const real* rows,        # IN  (M, d)
    const Py_ssize_t* at,    # IN  (n_rows,)  which rows
    const int* owner,        # IN  (n_rows,)  which of the totals they belong to
    Py_ssize_t n_rows,
    const Nearest* found,    # IN
    const Seen* seen,
    Totals* totals,
) noexcept nogil:
    """Take note of what was found of a few rows."""
    cdef Py_ssize_t i = 0, m, last = plan.n_centres * (plan.d + 1), n
    cdef const real* row
    cdef double weight
    cdef int before, label
    cdef Totals* to
    while i < n_rows:
        n = 0
        while i + n < n_rows and owner[i + n] == owner[i] and isnan(seen.upper[at[i + n]]):
            n = n + 1
        to = &totals[owner[i]]
        if n > 0:
            if real is double:
                vpem_squares_d(
                    plan.isa, rows, at + i, n, seen.about, plan.d, seen.weights, to.high + last,
                    to.low + last,
                )
            else:
                vpem_squares_f(
                    plan.isa, rows, at + i, n, seen.about, plan.d, seen.weights, to.high + last,
                    to.low + last,
                )
        i = i + max(n, <Py_ssize_t>1)
    for i in range(n_rows):
        m = at[i]
        before = seen.labels[m]
        label = found.place[i]
        to = &totals[owner[i]]
        if isnan(seen.upper[m]):
            # Not added up yet.
            row = rows + m * plan.d
            weight = seen.weights[m] if seen.weights != NULL else 1.0
            to.touched[0] = True
            to.changes[0] += before != label
            add_row(plan, row, weight, label, to)
        elif before != label:
            row = rows + m * plan.d
            weight = seen.weights[m] if seen.weights != NULL else 1.0
            to.touched[0] = True
            to.changes[0] += 1
            add_row(plan, row, -weight, before, to)
            add_row(plan, row, weight, label, to)
        seen.labels[m] = label
        # Infinite where it is not a number: that is what rows have that are not added up.
        seen.upper[m] = found.upper[i] if found.upper[i] < INFINITY else <float>INFINITY
        seen.lower[m] = found.lower[i] if found.lower[i] > 0 else 0


cdef void follow_chunk(
    const Pass* plan,
    const Py_ssize_t* pieces,   # IN    (n_pieces, 4) as `cut` makes them
    Py_ssize_t n_pieces,
    bint own_roots,             # IN    whether each worker has centres of its own
    const real* rows,           # IN    (M, d)
    const double* centres,      # IN    (R, K, d)
    const real* placed,         # IN    (R, K d + K + d) as `place_centres` has them
    const double* reach,        # IN    (R,)
    const float* moves,         # IN    (R, 3, K)
    const Seen* seen,
    Totals* totals,             # IN    (n_pieces,)
    real* scratch,              # WORK  (STEP, panel + K + 2)
) noexcept nogil:
    """Rows of one chunk: those in doubt are collected, and looked at some at a time."""
    cdef Py_ssize_t d = plan.d, k = plan.n_centres, size = k * d, width = size + k + d
    cdef Py_ssize_t piece, first, last, stop, n = 0, more, done, i, root = 0
    cdef Py_ssize_t at[GLANCE + STEP + 1]
    cdef int owner[GLANCE + STEP + 1]
    cdef Nearest found
    cdef const real* place = placed
    for piece in range(n_pieces):
        first = pieces[4 * piece + 1]
        last = pieces[4 * piece + 2]
        if own_roots:
            root = pieces[4 * piece]
            place = placed + root * width
        while first < last:
            stop = min(first + GLANCE, last)
            more = vpem_doubtful(
                plan.isa, seen.labels + first, seen.upper + first, seen.lower + first,
                stop - first, moves + root * 3 * k, k, first, at + n,
            )
            if more * d * <Py_ssize_t>sizeof(real) <= FETCHED:
                if real is double:
                    vpem_fetch_d(plan.isa, rows, at + n, more, d)
                else:
                    vpem_fetch_f(plan.isa, rows, at + n, more, d)
            for i in range(n, n + more):
                owner[i] = <int>piece
            n = n + more
            first = stop
            done = 0
            while n - done >= STEP or (
                done < n and first == last and (own_roots or piece == n_pieces - 1)
            ):
                more = min(n - done, <Py_ssize_t>STEP)
                if more < STEP:
                    # Places beyond are written to.
                    for i in range(more):
                        at[i] = at[done + i]
                        owner[i] = owner[done + i]
                    n = n - done
                    done = 0
                look_at(
                    plan, rows, at + done, n - done, centres + root * size, place, place + size,
                    place + size + k, reach[root], &found, scratch,
                )
                reassign(plan, rows, at + done, owner + done, more, &found, seen, totals)
                done = done + more
            for i in range(done, n):
                at[i - done] = at[i]
                owner[i - done] = owner[i]
            n = n - done


cdef double share_in_doubt(
    const Seen* seen,
    Py_ssize_t n_samples,
    const float* moves,         # IN  (3, K)  of the first root
    Py_ssize_t n_centres,
) noexcept nogil:
    """Share of rows that will be looked at, by some of them."""
    cdef Py_ssize_t i, m, n = min(n_samples, <Py_ssize_t>SAMPLED)
    cdef int label, doubts = 0
    cdef float limit
    for i in range(n):
        m = i * n_samples // n
        label = max(seen.labels[m], 0)
        limit = max(seen.lower[m] - moves[n_centres + label], moves[2 * n_centres + label])
        doubts = doubts + (not seen.upper[m] + moves[label] < limit)
    return <double>doubts / n


cdef void moves_of(
    const double* before,    # IN  (K, d)
    const double* centres,   # IN  (K, d)
    Py_ssize_t n_centres,
    Py_ssize_t d,
    int isa,
    bint all_pairs,          # IN  whether distances between centres are worth their time
    float* moves,            # OUT (3, K)  see simd/nearest.inc
) noexcept nogil:
    cdef Py_ssize_t k, other
    cdef double most = 0, next = 0, off
    cdef float* others = moves + n_centres
    cdef float* half = others + n_centres
    for k in range(n_centres):
        off = sqrt(vpem_apart_d(isa, before + k * d, centres + k * d, d)) * UP
        moves[k] = <float>(off * UP)
        next = max(next, min(most, off))
        most = max(most, off)
        half[k] = 0 if n_centres > 1 and not all_pairs else <float>INFINITY
    for k in range(n_centres):
        others[k] = <float>((next if moves[k] >= <float>(most * UP) else most) * UP)
    if not all_pairs:
        return
    for k in range(n_centres):
        for other in range(k):
            off = 0.5 * sqrt(vpem_apart_d(isa, centres + other * d, centres + k * d, d)) * DOWN
            off = min(off * DOWN, <double>FLT_MAX)
            half[k] = min(half[k], <float>off)
            half[other] = min(half[other], <float>off)


cdef void add_up(
    const Py_ssize_t[:, ::1] pieces,
    Py_ssize_t n_pieces,
    const double[:, :, ::1] partial,  # IN    (n_places, 2, P)
    const Totals* parts,              # IN    (n_pieces,)
    double[:, :, ::1] totals,         # INOUT (N, 2, P)
    Py_ssize_t[::1] changes,          # INOUT (N,)
) noexcept nogil:
    """Add the sums of pieces to those of their workers, one after the other."""
    cdef Py_ssize_t piece, i, worker
    cdef double before, after, part
    cdef const double* more
    for piece in range(n_pieces):
        worker = pieces[piece, 0]
        if pieces[piece, 3] < 0 or not parts[piece].touched[0]:
            continue
        changes[worker] += parts[piece].changes[0]
        more = &partial[pieces[piece, 3], 0, 0]
        for i in range(totals.shape[2]):
            before = totals[worker, 0, i]
            after = before + more[i]
            part = after - before
            totals[worker, 0, i] = after
            totals[worker, 1, i] += (
                (before - (after - part)) + (more[i] - part) + more[totals.shape[2] + i]
            )


def follow_rows(
    const real[:, ::1] rows,          # IN    (M, d)        worker by worker
    const double[::1] weights,        # IN    (M,), or (0,): all rows alike
    const Py_ssize_t[::1] bounds,     # IN    (N + 1,)      where each worker's rows begin, and M
    const double[:, :, ::1] centres,  # IN    (R, K, d)     R is 1 or N
    const double[:, :, ::1] before,   # IN    (R, K, d)     those that `upper` and `lower` are about
    const double[::1] about,          # IN    (d,)
    int[::1] labels,                  # INOUT (M,)
    float[::1] upper,                 # INOUT (M,)
    float[::1] lower,                 # INOUT (M,)
    double[:, :, ::1] totals,         # INOUT (N, 2, K + K d + 1)
    Py_ssize_t[::1] changes,          # INOUT (N,)          added to
    int n_threads,
):
    """Assign the rows of workers after their centres have moved, and keep their clusters' sums.

    See `tests.twins.assign.follow_rows`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], d = rows.shape[1], n_centres = centres.shape[1]
    cdef Py_ssize_t n_roots = centres.shape[0], n_workers = bounds.shape[0] - 1
    cdef Py_ssize_t root, most, step, n_chunks, n_places, n_pieces, chunk, thread, piece, own
    cdef Py_ssize_t size = n_centres * d, width = size + n_centres + d
    cdef double work
    if n_samples == 0:
        return
    cdef Pass plan
    prepare(&plan, d, n_centres, DBL_EPSILON if real is double else FLT_EPSILON)
    step = step_of(n_samples, d, n_centres)
    most = n_workers + n_samples // step + 1
    cdef Py_ssize_t[:, ::1] pieces = np.empty((most, 4), dtype=np.intp)
    cdef Py_ssize_t[::1] chunks = np.empty(most + 1, dtype=np.intp)
    n_chunks = cut(bounds, step, pieces, chunks, &n_places)
    n_pieces = chunks[n_chunks]
    dtype = np.float64 if real is double else np.float32
    cdef real[:, ::1] placed = np.empty((n_roots, width), dtype=dtype)
    cdef double[::1] reach = np.empty(n_roots)
    cdef float[:, ::1] moves = np.empty((n_roots, 3 * n_centres), dtype=np.float32)
    cdef double[:, :, ::1] partial = np.zeros((n_places, 2, totals.shape[2]))
    cdef Py_ssize_t[:, ::1] notes = np.zeros((n_pieces, 2), dtype=np.intp)
    cdef char[::1] room = np.empty(n_pieces * sizeof(Totals), dtype=np.int8)
    cdef Totals* parts = <Totals*>&room[0]
    cdef double* to
    cdef const real* data = &rows[0, 0] if d else NULL
    cdef const double* points = &centres[0, 0, 0] if d else NULL
    cdef const double* old = &before[0, 0, 0] if d else NULL
    cdef Seen seen
    seen.weights = &weights[0] if weights.shape[0] else NULL
    seen.about = &about[0] if d else NULL
    seen.labels = &labels[0]
    seen.upper = &upper[0]
    seen.lower = &lower[0]
    for piece in range(n_pieces):
        own = pieces[piece, 3]
        to = &totals[pieces[piece, 0], 0, 0] if own < 0 else &partial[own, 0, 0]
        parts[piece].high = to
        parts[piece].low = to + totals.shape[2]
        parts[piece].changes = &notes[piece, 0] if own >= 0 else &changes[pieces[piece, 0]]
        parts[piece].touched = <bint*>&notes[piece, 1]
    for root in range(n_roots):
        place_centres(
            points + root * size, n_centres, d, &placed[root, size + n_centres],
            &placed[root, 0], &placed[root, size], &reach[root],
        )
        own = n_samples if n_roots == 1 else bounds[root + 1] - bounds[root]
        moves_of(
            old + root * size, points + root * size, n_centres, d, plan.isa,
            4 * n_centres <= own, &moves[root, 0],
        )
    work = n_samples + n_samples * share_in_doubt(&seen, n_samples, &moves[0, 0], n_centres) * (
        nanoseconds(d, n_centres)
    )
    n_threads = worth(n_threads, n_chunks, work)
    cdef real[:, ::1] scratch = np.zeros(
        (n_threads, STEP * (plan.panel + n_centres + 2)), dtype=dtype
    )
    for chunk in prange(n_chunks, nogil=True, num_threads=n_threads, schedule="dynamic"):
        thread = threadid()
        follow_chunk(
            &plan, &pieces[chunks[chunk], 0], chunks[chunk + 1] - chunks[chunk], n_roots > 1,
            data, points, &placed[0, 0], &reach[0], &moves[0, 0], &seen, parts + chunks[chunk],
            &scratch[thread, 0],
        )
    add_up(pieces, n_pieces, partial, parts, totals, changes)


cdef double moment_inertia(
    const double* high,       # IN (P,)     counts, sums and squares about a point,
    const double* low,        # IN (P,)     and what they lack
    const double* about,      # IN (d,)
    const double* centres,    # IN (K, d)
    Py_ssize_t n_centres,
    Py_ssize_t d,
) noexcept nogil:
    """Inertia about the centres, in about twice the digits of a number.

    It is ``Q - sum_k g_k.(2 (s_k - n_k a) - n_k g_k)`` with ``g_k = c_k - a``.
    """
    cdef Py_ssize_t k, j, last = n_centres * (d + 1)
    cdef double total = high[last], rest = low[last]
    cdef double far, lack, off, less, part, product, lost, count, short, value, after
    for k in range(n_centres):
        count = high[k]
        short = low[k]
        for j in range(d):
            # far + lack = c - a
            far = centres[k * d + j] - about[j]
            part = far - centres[k * d + j]
            lack = (centres[k * d + j] - (far - part)) - (about[j] + part)
            # off + less = 2 s - n (2 a + far + lack), of which each product is exact
            off = 2 * high[n_centres + k * d + j]
            less = 2 * (low[n_centres + k * d + j] - short * about[j]) - short * far - count * lack
            product = 2 * count * about[j]
            lost = fma(2 * count, about[j], -product)
            value = -product
            after = off + value
            part = after - off
            less += ((off - (after - part)) + (value - part)) - lost
            off = after
            product = count * far
            lost = fma(count, far, -product)
            value = -product
            after = off + value
            part = after - off
            less += ((off - (after - part)) + (value - part)) - lost
            off = after
            # total -= (far + lack) (off + less)
            product = far * off
            lost = fma(far, off, -product)
            value = -product
            after = total + value
            part = after - total
            rest += ((total - (after - part)) + (value - part)) - (lost + far * less + lack * off)
            total = after
    return total + rest


def inertias_of(
    const double[:, :, ::1] totals,   # IN  (N, 2, K + K d + 1)
    const double[::1] about,          # IN  (d,)
    const double[:, :, ::1] centres,  # IN  (R, K, d)     R is 1 or N
    double[::1] inertias,             # OUT (N,)
):
    """Inertias of workers' rows by their moments.

    See `tests.twins.assign.inertias_of`.
    """
    cdef Py_ssize_t worker, root, n_centres = centres.shape[1], d = centres.shape[2]
    cdef const double* point = &about[0] if d else NULL
    for worker in range(totals.shape[0]):
        root = worker if centres.shape[0] > 1 else 0
        inertias[worker] = moment_inertia(
            &totals[worker, 0, 0], &totals[worker, 1, 0], point,
            &centres[root, 0, 0] if d else NULL, n_centres, d,
        )


def measure_rows(
    const real[:, ::1] rows,          # IN    (M, d)     worker by worker
    const double[::1] weights,        # IN    (M,), or (0,): all rows alike
    const Py_ssize_t[::1] bounds,     # IN    (N + 1,)   where each worker's rows begin, and M
    const double[:, :, ::1] centres,  # IN    (R, K, d)  R is 1 or N
    const int[::1] labels,            # IN    (M,)
    double[::1] distances,            # OUT   (M,)
    double[::1] inertias,             # INOUT (N,)       added to
    int n_threads,
):
    """Squared distances of rows to the centres of their clusters, and their sums.

    See `tests.twins.assign.measure_rows`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], d = rows.shape[1], n_workers = bounds.shape[0] - 1
    cdef Py_ssize_t size = centres.shape[1] * d, most, step, n_chunks, n_places, chunk, piece
    cdef Py_ssize_t first, root
    if n_samples == 0:
        return
    step = step_of(n_samples, d, 1)
    most = n_workers + n_samples // step + 1
    cdef Py_ssize_t[:, ::1] pieces = np.empty((most, 4), dtype=np.intp)
    cdef Py_ssize_t[::1] chunks = np.empty(most + 1, dtype=np.intp)
    n_chunks = cut(bounds, step, pieces, chunks, &n_places)
    n_threads = worth(n_threads, n_chunks, n_samples * (4 + 0.4 * d))
    cdef double[::1] found = np.empty(chunks[n_chunks])
    cdef const real* data = &rows[0, 0] if d else NULL
    cdef const double* points = &centres[0, 0, 0] if d else NULL
    cdef const double* heavy = &weights[0] if weights.shape[0] else NULL
    cdef int isa = vpem_instruction_set()
    cdef bint own_roots = centres.shape[0] > 1
    for chunk in prange(n_chunks, nogil=True, num_threads=n_threads, schedule="dynamic"):
        for piece in range(chunks[chunk], chunks[chunk + 1]):
            first = pieces[piece, 1]
            root = pieces[piece, 0] if own_roots else 0
            if real is double:
                found[piece] = vpem_measure_d(
                    isa, data + first * d, pieces[piece, 2] - first, d,
                    heavy + first if heavy != NULL else NULL, points + root * size,
                    &labels[first], &distances[first],
                )
            else:
                found[piece] = vpem_measure_f(
                    isa, data + first * d, pieces[piece, 2] - first, d,
                    heavy + first if heavy != NULL else NULL, points + root * size,
                    &labels[first], &distances[first],
                )
    for piece in range(chunks[n_chunks]):
        inertias[pieces[piece, 0]] += found[piece]


def distances_to(
    const real[:, ::1] rows,        # IN  (M, d)
    const double[:, ::1] points,    # IN  (L, d)
    double[:, ::1] out,             # OUT (L, M)
    int n_threads,
):
    """Squared distances of all rows to a few points.

    See `tests.twins.assign.distances_to`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], d = rows.shape[1], n_points = points.shape[0]
    cdef Py_ssize_t m, n, k, own, size, part, n_parts
    if n_samples == 0 or n_points == 0:
        return
    cdef const real* data = &rows[0, 0] if d else NULL
    cdef int isa = vpem_instruction_set()
    # Four points side by side; past the last the same one again.
    cdef double[:, ::1] sides = np.zeros((n_points // 4 + 1, 4 * d + 1))
    for k in range(n_points // 4 * 4, n_points // 4 * 4 + 4):
        for m in range(d):
            sides[n_points // 4, 4 * m + k % 4] = points[min(k, n_points - 1), m]
    for k in range(n_points // 4 * 4):
        for m in range(d):
            sides[k // 4, 4 * m + k % 4] = points[k, m]
    n_threads = worth(n_threads, n_samples, n_samples * n_points * (1.5 + 0.2 * d))
    size = min(at_once(n_samples, n_threads), <Py_ssize_t>GLANCE)
    n_parts = (n_samples + size - 1) // size
    cdef double[:, :, ::1] found = np.empty((n_threads, 4, size))
    for part in prange(n_parts, nogil=True, num_threads=n_threads, schedule="dynamic"):
        n = min(size, n_samples - part * size)
        for k in range(0, n_points, 4):
            if real is double:
                vpem_apart_from_four_d(
                    isa, data + part * size * d, n, d, &sides[k // 4, 0],
                    &found[threadid(), 0, 0], size,
                )
            else:
                vpem_apart_from_four_f(
                    isa, data + part * size * d, n, d, &sides[k // 4, 0],
                    &found[threadid(), 0, 0], size,
                )
            for own in range(k, min(k + 4, n_points)):
                memcpy(
                    &out[own, part * size], &found[threadid(), own - k, 0], n * sizeof(double)
                )
