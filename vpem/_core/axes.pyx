"""Axes that covariances have in common, with variances of their own along them."""
import numpy as np

from libc.math cimport exp, log
from scipy.linalg.cython_blas cimport daxpy, ddot, dgemm
from scipy.linalg.cython_lapack cimport dgesv

cdef enum:
    RECALLED = 5  # steps that say how pairs of axes depend on each other

cdef int ONE = 1
cdef double UNIT = 1, ZERO = 0
cdef char PLAIN = b"N", TRANSPOSED = b"T"


cdef double turn(
    const double[:, :, ::1] covariances, const double[::1] shares,  # IN (K, w, w), (K,)
    const double[:, ::1] axes,     # IN   (w, w)  columns
    bint equal,
    double[:, :, ::1] work,        # WORK (K, w, w)
    double[:, :, ::1] turned,      # OUT  (K, w, w)  D^T S_k D
    double[::1] weights,           # OUT  (K,)  of components, in slopes of what is minimised
) noexcept nogil:
    """Return what is minimised over axes; BLAS reads them transposed, covariances as they are."""
    cdef int k = <int>covariances.shape[0], w = <int>axes.shape[0], n = k * w, c, j
    cdef double* given = <double*>&covariances[0, 0, 0]
    cdef double* columns = <double*>&axes[0, 0]
    cdef double top = 0, value = 0, total = 0
    dgemm(&PLAIN, &PLAIN, &w, &n, &w, &UNIT, columns, &w, given, &w, &ZERO, &work[0, 0, 0], &w)
    for c in range(k):
        dgemm(&PLAIN, &TRANSPOSED, &w, &w, &w, &UNIT, &work[c, 0, 0], &w, columns, &w,
              &ZERO, &turned[c, 0, 0], &w)
        weights[c] = 0
        for j in range(w):
            weights[c] += log(turned[c, j, j])
        value += shares[c] * weights[c]
        top = weights[c] if c == 0 else max(top, weights[c])
    for c in range(k):
        weights[c] = exp((weights[c] - top) / w) * shares[c] if equal else shares[c]
        total += weights[c]
    for c in range(k if equal else 0):
        weights[c] /= total
    return top + w * log(total) if equal else value


def common_axes(
    const double[:, :, ::1] covariances,  # IN  (K, w, w)
    const double[::1] shares,             # IN  (K,)  of rows
    const double[:, :, ::1] starts,       # IN  (S, w, w)  axes, columns
    bint equal,                           # one volume
    int most,                             # steps
    double settled,                       # nats per row: what a step promises at the end
    double[:, ::1] axes,                  # OUT (w, w)
    double[:, ::1] spreads,               # OUT (K, w)  variances along them
):
    """Axes along which variances are least, from the best start: `tests.twins.axes.common_axes`."""
    cdef int k = <int>covariances.shape[0], w = <int>axes.shape[0], n = w * (w - 1) // 2
    cdef double[:, :, :, ::1] turned = np.empty((3, k, w, w))  # two that alternate, and work
    cdef double[:, :, ::1] found = np.array([starts[0]] * 2), system = np.empty((2, w, w))
    cdef double[:, :, ::1] past = np.empty((2, RECALLED, n + 1))  # steps, falls of slopes
    cdef double[:, ::1] weights = np.empty((2, k)), own = np.empty((3, n + 1))
    cdef double* slopes = &own[0, 0]
    cdef double* bends = &own[1, 0]
    cdef double* step = &own[2, 0]
    cdef int[::1] pivots = np.empty(w, dtype=np.intc)
    cdef double[RECALLED] parts, products
    cdef int i, j, c, r = 0, number, pair, n_past = 0, at = 0, info
    cdef double value = 0, there, slope, bend, less, by_i, by_j, part, promised, length = 1
    with nogil:
        for c in range(starts.shape[0]):
            there = turn(covariances, shares, starts[c], equal, turned[2], turned[1 - at],
                         weights[1 - at])
            if c == 0 or there < value:
                value, at = there, 1 - at
                found[at] = starts[c]
        for number in range(most):
            if number:
                r = n_past % RECALLED
                for i in range(n):
                    past[0, r, i], past[1, r, i] = length * step[i], slopes[i]
            pair = 0  # slopes and bends of each pair of axes
            for i in range(w):
                for j in range(i):
                    slope, bend, less = 0, -2, 0
                    for c in range(k):
                        by_i = weights[at, c] / turned[at, c, i, i]
                        by_j = weights[at, c] / turned[at, c, j, j]
                        part = turned[at, c, i, j]
                        slope += (by_i - by_j) * part
                        bend += by_i * turned[at, c, j, j] + by_j * turned[at, c, i, i]
                        less += (by_i / turned[at, c, i, i] + by_j / turned[at, c, j, j]) * part**2
                    less = bend - 2 * less
                    slopes[pair] = step[pair] = slope
                    bends[pair] = max(less if less > 0.2 * bend else bend, 1e-10)
                    pair += 1
            if number:
                part = -1
                daxpy(&n, &part, slopes, &ONE, &past[1, r, 0], &ONE)
                n_past += 1
            for i in range(n_past - 1, max(n_past - RECALLED, 0) - 1, -1):  # Nocedal's two loops
                r = i % RECALLED
                products[r] = ddot(&n, &past[0, r, 0], &ONE, &past[1, r, 0], &ONE)
                parts[r] = ddot(&n, &past[0, r, 0], &ONE, step, &ONE) / products[r]
                part = -parts[r]
                if products[r] > 0:
                    daxpy(&n, &part, &past[1, r, 0], &ONE, step, &ONE)
            for i in range(n):
                step[i] /= bends[i]
            for i in range(max(n_past - RECALLED, 0), n_past):
                r = i % RECALLED
                part = parts[r] - ddot(&n, &past[1, r, 0], &ONE, step, &ONE) / products[r]
                if products[r] > 0:
                    daxpy(&n, &part, &past[0, r, 0], &ONE, step, &ONE)
            if not ddot(&n, slopes, &ONE, step, &ONE) > 0:
                n_past = 0
                for i in range(n):
                    step[i] = slopes[i] / bends[i]
            for i in range(n):
                step[i] = 0.5 if step[i] > 0.5 else -0.5 if step[i] < -0.5 else step[i]
            promised = 2 * ddot(&n, slopes, &ONE, step, &ONE)
            if not promised > settled:
                break
            length = 2
            while length > 2e-6:
                length /= 2
                pair = 0  # Cayley's transform, by LAPACK, which reads matrices transposed
                for i in range(w):
                    system[0, i, i] = system[1, i, i] = 1
                    for j in range(i):
                        part = 0.5 * length * step[pair]
                        system[0, i, j] = system[1, j, i] = part
                        system[0, j, i] = system[1, i, j] = -part
                        pair += 1
                dgesv(&w, &w, &system[0, 0, 0], &w, &pivots[0], &system[1, 0, 0], &w, &info)
                dgemm(&TRANSPOSED, &PLAIN, &w, &w, &w, &UNIT, &system[1, 0, 0], &w,
                      &found[at, 0, 0], &w, &ZERO, &found[1 - at, 0, 0], &w)
                there = turn(covariances, shares, found[1 - at], equal, turned[2], turned[1 - at],
                             weights[1 - at])
                if there <= value - 1e-4 * length * promised:
                    break
            else:
                break
            value, at = there, 1 - at
    axes[...] = found[at]
    np.asarray(spreads)[...] = np.diagonal(turned[at], axis1=1, axis2=2)
