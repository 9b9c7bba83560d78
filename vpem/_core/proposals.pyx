"""Moves of the latents of all individuals and chains that are accepted or not.

Random numbers come from the keys of each move and individual and the place of the number. Threads
take individuals, so that what an individual learns from its chains does not depend on them.
"""
from cython.parallel cimport prange
from libc.float cimport DBL_MAX
from libc.math cimport M_PI, exp, fmax, fmin, log, log1p, sqrt
from libc.stdint cimport uint64_t

from vpem._core.codecs cimport stir
from vpem._core.latents cimport (
    MOST_LATENTS, Latents, Law, density, normal_of, turn, turn_back, uniform_of,
)
from vpem._core.shares cimport at_once, worth

cdef enum:
    TAME = 5
    TAIL = 6        # degrees of freedom of proposals that do not depend on where a chain is
    WALK = 0
    DRIFT = 1
    LEAP = 2

cdef struct Moves:
    # How an individual's chains move: see `vpem.saem.samplers`.
    Py_ssize_t n, n_chains, n_moves, n_leaps
    const double* root                  # (q, q)
    const double* centre                # (q,)
    double* scales                      # IN, OUT (q,)
    double* size                        # IN, OUT
    const unsigned long long* moves     # (moves, n) from this individual's on
    const unsigned long long* chances
    double gain
    double target


cdef inline double tame(double slope) noexcept nogil:
    """Drift that is bounded, so that no chain is stuck where the density is steep."""
    return fmin(fmax(slope, -TAME), TAME)


cdef inline double slope_at(
    const Law* law, const Moves* how, const double* z, double* slope,
) noexcept nogil:
    """Log-density, and its bounded gradient in units of the root."""
    cdef double found = density(law, z, slope, True)
    cdef Py_ssize_t j
    turn_back(how.root, slope, law.q)
    for j in range(law.q):
        slope[j] = tame(slope[j])
    return found


cdef inline double far(
    const Law* law, const Moves* how, const double* z, bint wide,
) noexcept nogil:
    """Log-density of independent proposals at z, up to a constant."""
    cdef double u[MOST_LATENTS]
    cdef double total = 0, inner
    cdef Py_ssize_t i, j, q = law.q
    if wide:
        for i in range(q):
            inner = 0
            for j in range(q):
                inner += law.precision[i * q + j] * (z[j] - law.mean[j])
            total -= 0.5 * inner * (z[i] - law.mean[i])
        return total
    for i in range(q):
        u[i] = z[i] - how.centre[i]
        for j in range(i):
            u[i] -= how.root[i * q + j] * u[j]
        u[i] /= how.root[i * q + i]
        total += u[i] * u[i]
    return -0.5 * (TAIL + q) * log1p(total / TAIL)


cdef void walk(
    const Law* law, const Moves* how,
    double* z,                        # IN, OUT (chains, n, q) from this individual's on
    double* before,                   # WORK (chains,)
    long long* accepted,              # OUT
) noexcept nogil:
    """Sweeps: a random walk along each column of the root, then an independent proposal."""
    cdef double proposed[MOST_LATENTS]
    cdef double slope[MOST_LATENTS]
    cdef Py_ssize_t q = law.q, k, j, i, c, width = how.n * q, good
    cdef double after, normal
    cdef uint64_t noise, chance
    for c in range(how.n_chains):
        before[c] = fmax(density(law, z + c * width, slope, False), -DBL_MAX)
    for k in range(how.n_moves):
        j = k % (q + 1)
        noise = stir(how.moves[k * how.n])
        chance = stir(how.chances[k * how.n])
        if j == q:
            jump(law, how, noise, chance, z, before, k // (q + 1) % 2 == 1)
            continue
        good = 0
        for c in range(how.n_chains):
            normal = normal_of(noise, c) * how.scales[j]
            for i in range(q):
                proposed[i] = z[c * width + i] + normal * how.root[i * q + j]
            after = density(law, proposed, slope, False)
            if log(uniform_of(chance, c)) < after - before[c]:
                before[c] = after
                good += 1
                for i in range(j, q):
                    z[c * width + i] = proposed[i]
        accepted[0] += good
        if how.gain > 0:
            how.scales[j] *= exp(how.gain * (<double>good / <double>how.n_chains - how.target))


cdef void jump(
    const Law* law, const Moves* how, uint64_t noise, uint64_t chance,
    double* z,                        # IN, OUT (chains, n, q) from this individual's on
    double* before,                   # IN, OUT (chains,)
    bint wide,
) noexcept nogil:
    """Proposals about the centre, or of the population (wide), wherever chains are."""
    cdef double proposed[MOST_LATENTS]
    cdef double u[MOST_LATENTS]
    cdef double slope[MOST_LATENTS]
    cdef Py_ssize_t q = law.q, i, c, width = how.n * q
    cdef double after, spread, odds
    cdef uint64_t place
    for c in range(how.n_chains):
        place = how.n_chains + 3 * c
        spread = -2 * log(uniform_of(chance, place) * uniform_of(chance, place + 1)
                          * uniform_of(chance, place + 2))
        spread = 1 if wide else sqrt(TAIL / spread)
        for i in range(q):
            u[i] = spread * normal_of(noise, c * q + i)
        turn(law.wide if wide else how.root, u, q, proposed)
        for i in range(q):
            proposed[i] += law.mean[i] if wide else how.centre[i]
        after = density(law, proposed, slope, False)
        odds = after - before[c] + far(law, how, z + c * width, wide)
        odds -= far(law, how, proposed, wide)
        if log(uniform_of(chance, c)) < odds:
            before[c] = after
            for i in range(q):
                z[c * width + i] = proposed[i]


cdef void drift(
    const Law* law, const Moves* how,
    double* z,                        # IN, OUT (chains, n, q) from this individual's on
    double* before,                   # WORK (chains,)
    double* slopes,                   # WORK (chains, q)
    long long* accepted,              # OUT
    int kind,
) noexcept nogil:
    """Adjusted Langevin moves, or Hamiltonian ones, of the chains of one individual."""
    cdef double proposed[MOST_LATENTS]
    cdef double slope[MOST_LATENTS]
    cdef double pace[MOST_LATENTS]
    cdef double way[MOST_LATENTS]
    cdef Py_ssize_t q = law.q, k, j, c, width = how.n * q, good, leap
    cdef double h, root, back, forth, after = 0, odds
    cdef uint64_t noise, chance
    for c in range(how.n_chains):
        before[c] = fmax(slope_at(law, how, z + c * width, slopes + c * q), -DBL_MAX)
    for k in range(how.n_moves):
        noise = stir(how.moves[k * how.n])
        chance = stir(how.chances[k * how.n])
        good = 0
        for c in range(how.n_chains):
            forth = 0
            back = 0
            for j in range(q):
                pace[j] = normal_of(noise, c * q + j)
                forth += pace[j] * pace[j]
                slope[j] = slopes[c * q + j]
                proposed[j] = z[c * width + j]
            h = how.size[0]
            if kind == DRIFT:
                root = sqrt(h)
                for j in range(q):
                    pace[j] = 0.5 * h * slope[j] + root * pace[j]
                turn(how.root, pace, q, way)
                for j in range(q):
                    proposed[j] += way[j]
                after = slope_at(law, how, proposed, slope)
                for j in range(q):
                    back += (pace[j] + 0.5 * h * slope[j]) ** 2 / h
            else:
                h *= 0.8 + 0.4 * uniform_of(chance, how.n_chains + c)
                for leap in range(how.n_leaps):
                    for j in range(q):
                        pace[j] += (0.5 if leap == 0 else 1.0) * h * slope[j]
                    turn(how.root, pace, q, way)
                    for j in range(q):
                        proposed[j] += h * way[j]
                    after = slope_at(law, how, proposed, slope)
                for j in range(q):
                    back += (pace[j] + 0.5 * h * slope[j]) ** 2
            odds = after - before[c] - 0.5 * back + 0.5 * forth
            if log(uniform_of(chance, c)) < odds:
                before[c] = after
                good += 1
                for j in range(q):
                    z[c * width + j] = proposed[j]
                    slopes[c * q + j] = slope[j]
        accepted[0] += good
        if how.gain > 0:
            how.size[0] *= exp(how.gain * (<double>good / <double>how.n_chains - how.target))
            if kind == LEAP:  # no way is longer than to the far side of a normal law
                how.size[0] = fmin(how.size[0], 0.5 * M_PI / <double>how.n_leaps)


cdef void one(
    Latents latents, Py_ssize_t i, Moves how, double* z, double* work, long long* accepted,
    int kind,
) noexcept nogil:
    """All moves of one individual."""
    cdef Law law
    latents.put(i, &law)
    accepted[0] = 0
    if kind == WALK:
        walk(&law, &how, z, work, accepted)
    else:
        drift(&law, &how, z, work, work + how.n_chains, accepted, kind)


def propose(
    Latents latents not None,
    int kind,                                  # 0: walk, 1: drift, 2: leap
    int n_leaps,
    const double[:, :, ::1] roots,             # IN  (n, q, q)  lower triangles
    const double[:, ::1] centres,              # IN  (n, q)
    double[:, ::1] scales,                     # IN, OUT (n, q)
    double[::1] steps,                         # IN, OUT (n,)
    const unsigned long long[:, ::1] moves,    # IN  (moves, n)  keys
    const unsigned long long[:, ::1] chances,  # IN  (moves, n)  keys
    double gain,                               # IN  of the adaptation; 0: none
    double target,                             # IN  acceptance
    double[:, :, ::1] z,                       # IN, OUT (chains, n, q)
    double[:, ::1] work,                       # WORK (n, chains (1 + q))
    long long[::1] accepted,                   # OUT (n,)
    int n_threads,
):
    """Propose and accept latents; see `vpem.saem.samplers.propose`, which does the same."""
    cdef Py_ssize_t n = z.shape[1], i
    cdef Moves how
    if latents.n != n or latents.q != z.shape[2]:
        raise ValueError("latents are not those of the law")
    how.n = n
    how.n_chains = z.shape[0]
    how.n_moves = moves.shape[0]
    how.n_leaps = n_leaps
    how.gain = gain
    how.target = target
    n_threads = worth(n_threads, n, (30.0 + latents.cost) * n * how.n_chains * how.n_moves)
    for i in prange(
        n, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n, n_threads),
    ):
        begin(latents, i, how, kind, roots, centres, scales, steps, moves, chances, z, work,
              accepted)


cdef void begin(
    Latents latents, Py_ssize_t i, Moves how, int kind, const double[:, :, ::1] roots,
    const double[:, ::1] centres, double[:, ::1] scales, double[::1] steps,
    const unsigned long long[:, ::1] moves, const unsigned long long[:, ::1] chances,
    double[:, :, ::1] z, double[:, ::1] work, long long[::1] accepted,
) noexcept nogil:
    how.root = &roots[i, 0, 0]
    how.centre = &centres[i, 0]
    how.scales = &scales[i, 0]
    how.size = &steps[i]
    how.moves = &moves[0, i]
    how.chances = &chances[0, i]
    one(latents, i, how, &z[0, i, 0], &work[i, 0], &accepted[i], kind)
