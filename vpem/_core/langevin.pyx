"""Langevin steps of the latents of all individuals and chains, the gradient dithered on the way.

Random numbers come from the keys of each step and individual and the place of the number, so that
threads do not show.
"""
from cython.parallel cimport prange
from libc.float cimport FLT_MAX
from libc.math cimport INFINITY, exp, fabs, fmax, isfinite, nextafterf, sqrt
from libc.stdint cimport uint64_t

from vpem._core.codecs cimport draw, draw_uniform, stir
from vpem._core.latents cimport curve, normal_of
from vpem._core.shares cimport at_once, worth

cdef enum:
    MOST_LATENTS = 16


cdef inline int dither(
    double* slope,          # IN, OUT (q,)
    Py_ssize_t q, uint64_t key, long long levels,
) noexcept nogil:
    """Replace a gradient by what is received of it; non-zero where its norm is no float."""
    cdef double s[4]
    cdef double most = 0, total, norm, scale, step, place
    cdef float sent
    cdef Py_ssize_t j
    cdef long long level
    cdef uint64_t stream = stir(key)
    s[0] = s[1] = s[2] = s[3] = 0
    for j in range(q):
        s[j % 4] += slope[j] * slope[j]
        most = fmax(most, fabs(slope[j]))
    total = (s[0] + s[1]) + (s[2] + s[3])
    norm = fmax(most, sqrt(total))
    if not isfinite(total) or not norm <= FLT_MAX:
        return 1
    sent = <float>norm
    if <double>sent < norm:
        sent = nextafterf(sent, INFINITY)
    scale = <double>levels / <double>sent if sent > 0 else 0
    step = <double>sent / <double>levels
    for j in range(q):
        place = fabs(slope[j]) * scale
        level = <long long>place
        level += draw_uniform(stream, j) < place - <double>level
        level = min(level, levels)
        slope[j] = step * <double>(-level if slope[j] < 0 else level)
    return 0


cdef inline int take_step(
    double* z, double* slope,         # IN, OUT (q,)
    const double* scales, Py_ssize_t q, double step, uint64_t noise, uint64_t dithers,
    Py_ssize_t chain, long long levels,
) noexcept nogil:
    """One step from z, whose gradient is given; non-zero where it has none."""
    cdef Py_ssize_t j
    cdef double root = sqrt(step)
    for j in range(q):
        slope[j] = scales[j] * slope[j]
        if not isfinite(slope[j]):
            return 1
    if levels > 0 and dither(slope, q, draw(stir(dithers), chain), levels) != 0:
        return 1
    for j in range(q):
        z[j] += scales[j] * (0.5 * step * slope[j] + root * normal_of(stir(noise), chain * q + j))
    return 0


cdef int linear_chain(
    double* z,                        # IN, OUT (q,)
    Py_ssize_t q, Py_ssize_t i, Py_ssize_t n, Py_ssize_t chain, Py_ssize_t n_steps,
    const double* own, const double* cross, const double* mean, const double* precision,
    double variance, const double* scales, const unsigned long long* noise,
    const unsigned long long* dithers, double step, long long levels,
) noexcept nogil:
    """All steps of one chain; non-zero where it ran away."""
    cdef double slope[MOST_LATENTS]
    cdef double inner, outer
    cdef Py_ssize_t k, a, b
    for k in range(n_steps):
        for a in range(q):
            inner = 0
            outer = 0
            for b in range(q):
                outer += precision[a * q + b] * (z[b] - mean[b])
                inner += cross[a * q + b] * (z[b] - own[b])
            slope[a] = -outer - inner / variance
        if take_step(z, slope, scales, q, step, noise[k * n + i], dithers[k * n + i], chain,
                     levels) != 0:
            return 1
    return 0


def langevin_linear(
    const double[:, ::1] own,                  # IN  (n, q)      least squares
    const double[:, :, ::1] cross,             # IN  (n, q, q)   X^T X
    const double[::1] mean,                    # IN  (q,)
    const double[:, ::1] precision,            # IN  (q, q)
    double variance,                           # IN  of residuals
    const double[:, ::1] scales,               # IN  (n, q)
    const unsigned long long[:, ::1] noise,    # IN  (steps, n)  keys
    const unsigned long long[:, ::1] dithers,  # IN  (steps, n)  keys
    double step,
    long long levels,                          # IN  0: gradients as they are
    double[:, :, ::1] z,                       # IN, OUT (chains, n, q)
    unsigned char[:, ::1] faults,              # OUT (chains, n)  1 where a chain ran away
    int n_threads,
):
    """Langevin steps of a linear mixed model.

    See `vpem._core.reference_langevin.langevin_linear`.
    """
    cdef Py_ssize_t n = z.shape[1], q = z.shape[2], i, c, each
    cdef Py_ssize_t n_steps = noise.shape[0], n_chains = z.shape[0]
    if q > MOST_LATENTS:
        raise ValueError("too many latents")
    n_threads = worth(n_threads, n * n_chains, 20.0 * n * n_chains * n_steps * q)
    for each in prange(
        n * n_chains, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n * n_chains, n_threads),
    ):
        c = each // n
        i = each - c * n
        faults[c, i] = linear_chain(
            &z[c, i, 0], q, i, n, c, n_steps, &own[i, 0], &cross[i, 0, 0], &mean[0],
            &precision[0, 0], variance, &scales[i, 0], &noise[0, 0], &dithers[0, 0], step, levels,
        )


# ---- one compartment ----------------------------------------------------------------------------

cdef int curve_chain(
    double* z,                        # IN, OUT (3,)
    Py_ssize_t i, Py_ssize_t n, Py_ssize_t chain, Py_ssize_t n_steps,
    const double* times, const double* doses, const double* values, Py_ssize_t n_rows,
    bint proportional, const double* mean, const double* precision, double sd,
    const double* scales, const unsigned long long* noise, const unsigned long long* dithers,
    double step, long long levels,
) noexcept nogil:
    """All steps of one chain; non-zero where it ran away."""
    cdef double slope[3]
    cdef double bends[3]
    cdef double f = 0, weight, ka, cl, ke
    cdef Py_ssize_t k, a, b, row
    for k in range(n_steps):
        for a in range(3):
            slope[a] = 0
            for b in range(3):
                slope[a] -= precision[3 * a + b] * (z[b] - mean[b])
        ka = exp(z[0])
        cl = exp(z[1])
        ke = exp(z[2])
        for row in range(n_rows):
            f = curve(times[row], doses[row], ka, cl, ke, bends, True)
            if proportional:
                weight = ((values[row] - f) / f * values[row] / (f * sd * sd) - 1) / f
            else:
                weight = (values[row] - f) / (sd * sd)
            for a in range(3):
                slope[a] += weight * bends[a]
        if take_step(z, slope, scales, 3, step, noise[k * n + i], dithers[k * n + i], chain,
                     levels) != 0:
            return 1
    return 0


def langevin_one_compartment(
    const Py_ssize_t[::1] first,               # IN  (n + 1,)    rows of each individual
    const double[::1] times,                   # IN  (N,)
    const double[::1] doses,                   # IN  (N,)
    const double[::1] values,                  # IN  (N,)
    bint proportional,                         # IN  whether the error is
    const double[::1] mean,                    # IN  (3,)
    const double[:, ::1] precision,            # IN  (3, 3)
    double sd,                                 # IN  of residuals
    const double[:, ::1] scales,               # IN  (n, 3)
    const unsigned long long[:, ::1] noise,    # IN  (steps, n)  keys
    const unsigned long long[:, ::1] dithers,  # IN  (steps, n)  keys
    double step,
    long long levels,                          # IN  0: gradients as they are
    double[:, :, ::1] z,                       # IN, OUT (chains, n, 3)
    unsigned char[:, ::1] faults,              # OUT (chains, n)  1 where a chain ran away
    int n_threads,
):
    """Langevin steps of a one-compartment model.

    See `vpem._core.reference_langevin.langevin_one_compartment`.
    """
    cdef Py_ssize_t n = z.shape[1], i, c, each
    cdef Py_ssize_t n_steps = noise.shape[0], n_chains = z.shape[0]
    n_threads = worth(n_threads, n * n_chains, 20.0 * times.shape[0] * n_chains * n_steps)
    for each in prange(
        n * n_chains, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n * n_chains, n_threads),
    ):
        c = each // n
        i = each - c * n
        faults[c, i] = curve_chain(
            &z[c, i, 0], i, n, c, n_steps, &times[first[i]], &doses[first[i]], &values[first[i]],
            first[i + 1] - first[i], proportional, &mean[0], &precision[0, 0], sd, &scales[i, 0],
            &noise[0, 0], &dithers[0, 0], step, levels,
        )
