"""Metropolis moves and adjusted Langevin moves of the latents of all individuals and chains.

Random numbers come from the keys of each move and individual and the place of the number. Threads
take individuals, so that what an individual learns from its chains does not depend on them.
"""
from cython.parallel cimport prange
from libc.float cimport DBL_MAX
from libc.math cimport INFINITY, exp, fmax, fmin, isfinite, log, sqrt
from libc.stdint cimport uint64_t

from vpem._core.codecs cimport stir
from vpem._core.latents cimport curve, normal_of, uniform_of
from vpem._core.shares cimport at_once, worth

cdef enum:
    MOST_LATENTS = 16
    TAME = 5

cdef struct Law:
    Py_ssize_t q
    const double* mean          # (q,)    of the latents
    const double* precision     # (q, q)
    double variance             # of residuals
    # Linear: squares about least squares.
    const double* own           # (q,)
    const double* cross         # (q, q)
    # One compartment: rows.
    const double* times
    const double* doses
    const double* values
    Py_ssize_t n_rows
    int proportional


cdef inline double tame(double slope) noexcept nogil:
    """Drift that is bounded, so that no chain is stuck where the density is steep."""
    return fmin(fmax(slope, -TAME), TAME)


cdef inline double density(
    const Law* law, const double* z, double* slope, bint with_slope,
) noexcept nogil:
    """Log-density of latents up to a constant, -inf where it has none; and its gradient."""
    cdef Py_ssize_t q = law.q, a, b, row
    cdef double total = 0, inner, part, f, ka, cl, ke, rest, weight
    cdef double bends[3]
    for a in range(q):
        inner = 0
        for b in range(q):
            inner += law.precision[a * q + b] * (z[b] - law.mean[b])
        total -= 0.5 * inner * (z[a] - law.mean[a])
        slope[a] = -inner
    if law.times == NULL:
        for a in range(q):
            inner = 0
            for b in range(q):
                inner += law.cross[a * q + b] * (z[b] - law.own[b])
            inner = inner / law.variance
            total -= 0.5 * inner * (z[a] - law.own[a])
            slope[a] -= inner
    else:
        ka = exp(z[0])
        cl = exp(z[1])
        ke = exp(z[2])
        part = 0
        for row in range(law.n_rows):
            f = curve(law.times[row], law.doses[row], ka, cl, ke, bends, with_slope)
            rest = law.values[row] - f
            if law.proportional:
                rest = rest / f
                part -= 0.5 * rest * rest / law.variance + log(f)
                weight = (rest * law.values[row] / (f * law.variance) - 1) / f
            else:
                part -= 0.5 * rest * rest / law.variance
                weight = rest / law.variance
            if with_slope:
                for a in range(3):
                    slope[a] += weight * bends[a]
        total += part
    return total if isfinite(total) else -INFINITY


cdef void walk(
    const Law* law,
    double* z,                        # IN, OUT (chains, n, q) from this individual's on
    double* before,                   # WORK (chains,)
    double* scales,                   # IN, OUT (q,)
    long long* accepted,              # OUT
    Py_ssize_t i, Py_ssize_t n, Py_ssize_t n_chains, Py_ssize_t n_steps,
    const unsigned long long* moves, const unsigned long long* chances, double gain, double target,
) noexcept nogil:
    """Random walk of the chains of one individual."""
    cdef double work[MOST_LATENTS]
    cdef Py_ssize_t q = law.q, step, j, c, row, width = n * q, good
    cdef double held, after
    cdef uint64_t noise, chance
    for c in range(n_chains):
        before[c] = fmax(density(law, z + c * width, work, False), -DBL_MAX)
    for step in range(n_steps):
        for j in range(q):
            row = (step * q + j) * n + i
            noise = stir(moves[row])
            chance = stir(chances[row])
            good = 0
            for c in range(n_chains):
                held = z[c * width + j]
                z[c * width + j] = held + normal_of(noise, c) * scales[j]
                after = density(law, z + c * width, work, False)
                if log(uniform_of(chance, c)) < after - before[c]:
                    before[c] = after
                    good += 1
                else:
                    z[c * width + j] = held
            accepted[0] += good
            if gain > 0:
                scales[j] *= exp(gain * (<double>good / <double>n_chains - target))


cdef void drift(
    const Law* law,
    double* z,                        # IN, OUT (chains, n, q) from this individual's on
    double* before,                   # WORK (chains,)
    double* slopes,                   # WORK (chains, q)
    const double* scales,             # IN (q,)
    double* size,                     # IN, OUT step
    long long* accepted,              # OUT
    Py_ssize_t i, Py_ssize_t n, Py_ssize_t n_chains, Py_ssize_t n_steps,
    const unsigned long long* moves, const unsigned long long* chances, double gain, double target,
) noexcept nogil:
    """Adjusted Langevin moves of the chains of one individual."""
    cdef double proposed[MOST_LATENTS]
    cdef double slope[MOST_LATENTS]
    cdef Py_ssize_t q = law.q, step, j, c, width = n * q, good
    cdef double h, root, normal, back, forth, after, odds
    cdef uint64_t noise, chance
    for c in range(n_chains):
        before[c] = fmax(density(law, z + c * width, slopes + c * q, True), -DBL_MAX)
        for j in range(q):
            slopes[c * q + j] = tame(slopes[c * q + j] * scales[j])
    for step in range(n_steps):
        noise = stir(moves[step * n + i])
        chance = stir(chances[step * n + i])
        h = size[0]
        root = sqrt(h)
        good = 0
        for c in range(n_chains):
            forth = 0
            for j in range(q):
                normal = normal_of(noise, c * q + j)
                forth += normal * normal
                proposed[j] = z[c * width + j] + scales[j] * (
                    0.5 * h * slopes[c * q + j] + root * normal)
            after = density(law, proposed, slope, True)
            back = 0
            for j in range(q):
                slope[j] = tame(slope[j] * scales[j])
                normal = (z[c * width + j] - proposed[j]) / scales[j] - 0.5 * h * slope[j]
                back += normal * normal
            odds = after - before[c] - 0.5 * back / h + 0.5 * forth
            if log(uniform_of(chance, c)) < odds:
                before[c] = after
                good += 1
                for j in range(q):
                    z[c * width + j] = proposed[j]
                    slopes[c * q + j] = slope[j]
        accepted[0] += good
        if gain > 0:
            size[0] = h * exp(gain * (<double>good / <double>n_chains - target))


def propose_linear(
    const double[:, ::1] own,                  # IN  (n, q)      least squares
    const double[:, :, ::1] cross,             # IN  (n, q, q)   X^T X
    const double[::1] mean,                    # IN  (q,)
    const double[:, ::1] precision,            # IN  (q, q)
    double variance,                           # IN  of residuals
    double[:, ::1] scales,                     # IN, OUT (n, q)
    double[::1] steps,                         # IN, OUT (n,)    0: a random walk
    const unsigned long long[:, ::1] moves,    # IN  (moves, n)  keys
    const unsigned long long[:, ::1] chances,  # IN  (moves, n)  keys
    double gain,                               # IN  of the adaptation; 0: none
    double target,                             # IN  acceptance
    double[:, :, ::1] z,                       # IN, OUT (chains, n, q)
    double[:, ::1] work,                       # WORK (n, chains (1 + q))
    long long[::1] accepted,                   # OUT (n,)
    int n_threads,
):
    """Metropolis or adjusted Langevin moves of a linear mixed model.

    See `vpem._core.reference_proposals.propose_linear`.
    """
    cdef Py_ssize_t n = z.shape[1], q = z.shape[2], i
    cdef Py_ssize_t n_chains = z.shape[0], n_moves = moves.shape[0]
    if q > MOST_LATENTS:
        raise ValueError("too many latents")
    n_threads = worth(n_threads, n, 30.0 * n * n_chains * n_moves * q)
    for i in prange(
        n, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n, n_threads),
    ):
        accepted[i] = 0
        linear_one(i, n, q, n_chains, n_moves, &own[i, 0], &cross[i, 0, 0], &mean[0],
                   &precision[0, 0], variance, &scales[i, 0], &steps[i], &moves[0, 0],
                   &chances[0, 0], gain, target, &z[0, i, 0], &work[i, 0], &accepted[i])


cdef void linear_one(
    Py_ssize_t i, Py_ssize_t n, Py_ssize_t q, Py_ssize_t n_chains, Py_ssize_t n_moves,
    const double* own, const double* cross, const double* mean, const double* precision,
    double variance, double* scales, double* step, const unsigned long long* moves,
    const unsigned long long* chances, double gain, double target, double* z, double* work,
    long long* accepted,
) noexcept nogil:
    cdef Law law
    law.q = q
    law.mean = mean
    law.precision = precision
    law.variance = variance
    law.own = own
    law.cross = cross
    law.times = NULL
    law.doses = NULL
    law.values = NULL
    law.n_rows = 0
    law.proportional = 0
    one(&law, i, n, n_chains, n_moves, scales, step, moves, chances, gain, target, z, work,
        accepted)


cdef inline void one(
    const Law* law, Py_ssize_t i, Py_ssize_t n, Py_ssize_t n_chains, Py_ssize_t n_moves,
    double* scales, double* step, const unsigned long long* moves,
    const unsigned long long* chances, double gain, double target, double* z, double* work,
    long long* accepted,
) noexcept nogil:
    """All moves of one individual."""
    if step[0] > 0:
        drift(law, z, work, work + n_chains, scales, step, accepted, i, n, n_chains, n_moves,
              moves, chances, gain, target)
    else:
        walk(law, z, work, scales, accepted, i, n, n_chains, n_moves // law.q, moves, chances,
             gain, target)


def propose_one_compartment(
    const Py_ssize_t[::1] first,               # IN  (n + 1,)    rows of each individual
    const double[::1] times,                   # IN  (N,)
    const double[::1] doses,                   # IN  (N,)
    const double[::1] values,                  # IN  (N,)
    bint proportional,                         # IN  whether the error is
    const double[::1] mean,                    # IN  (3,)
    const double[:, ::1] precision,            # IN  (3, 3)
    double sd,                                 # IN  of residuals
    double[:, ::1] scales,                     # IN, OUT (n, 3)
    double[::1] steps,                         # IN, OUT (n,)    0: a random walk
    const unsigned long long[:, ::1] moves,    # IN  (moves, n)  keys
    const unsigned long long[:, ::1] chances,  # IN  (moves, n)  keys
    double gain,                               # IN  of the adaptation; 0: none
    double target,                             # IN  acceptance
    double[:, :, ::1] z,                       # IN, OUT (chains, n, 3)
    double[:, ::1] work,                       # WORK (n, 4 chains)
    long long[::1] accepted,                   # OUT (n,)
    int n_threads,
):
    """Metropolis or adjusted Langevin moves of a one-compartment model.

    See `vpem._core.reference_proposals.propose_one_compartment`.
    """
    cdef Py_ssize_t n = z.shape[1], i
    cdef Py_ssize_t n_chains = z.shape[0], n_moves = moves.shape[0]
    n_threads = worth(n_threads, n, 20.0 * times.shape[0] * n_chains * n_moves)
    for i in prange(
        n, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n, n_threads),
    ):
        accepted[i] = 0
        curve_one(i, n, n_chains, n_moves, &times[first[i]], &doses[first[i]], &values[first[i]],
                  first[i + 1] - first[i], proportional, &mean[0], &precision[0, 0], sd * sd,
                  &scales[i, 0], &steps[i], &moves[0, 0], &chances[0, 0], gain, target,
                  &z[0, i, 0], &work[i, 0], &accepted[i])


cdef void curve_one(
    Py_ssize_t i, Py_ssize_t n, Py_ssize_t n_chains, Py_ssize_t n_moves, const double* times,
    const double* doses, const double* values, Py_ssize_t n_rows, bint proportional,
    const double* mean, const double* precision, double variance, double* scales, double* step,
    const unsigned long long* moves, const unsigned long long* chances, double gain,
    double target, double* z, double* work, long long* accepted,
) noexcept nogil:
    cdef Law law
    law.q = 3
    law.mean = mean
    law.precision = precision
    law.variance = variance
    law.own = NULL
    law.cross = NULL
    law.times = times
    law.doses = doses
    law.values = values
    law.n_rows = n_rows
    law.proportional = proportional
    one(&law, i, n, n_chains, n_moves, scales, step, moves, chances, gain, target, z, work,
        accepted)
