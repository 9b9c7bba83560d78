"""Langevin steps of the latents of all individuals and chains, the gradient dithered on the way.

Random numbers come from the keys of each step and individual and the place of the number, so that
threads do not show.
"""
from cython.parallel cimport prange
from libc.float cimport FLT_MAX
from libc.math cimport INFINITY, fabs, fmax, isfinite, nextafterf, sqrt
from libc.stdint cimport uint64_t

from vpem._core.codecs cimport draw, draw_uniform, stir
from vpem._core.latents cimport (
    MOST_LATENTS, Latents, Law, density, normal_of, turn, turn_back,
)
from vpem._core.shares cimport at_once, worth


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


cdef int chain(
    Latents latents, Py_ssize_t i, Py_ssize_t n, Py_ssize_t c, Py_ssize_t n_steps,
    double* z,                        # IN, OUT (q,)
    const double* root, const unsigned long long* noise, const unsigned long long* dithers,
    double step, long long levels,
) noexcept nogil:
    """All steps of one chain; non-zero where it ran away."""
    cdef double slope[MOST_LATENTS]
    cdef double way[MOST_LATENTS]
    cdef double half = 0.5 * step, width = sqrt(step)
    cdef uint64_t stream
    cdef Py_ssize_t k, j, q = latents.q
    cdef Law law
    latents.put(i, &law)
    for k in range(n_steps):
        density(&law, z, slope, True)
        turn_back(root, slope, q)
        for j in range(q):
            if not isfinite(slope[j]):
                return 1
        if levels > 0 and dither(slope, q, draw(stir(dithers[k * n + i]), c), levels) != 0:
            return 1
        stream = stir(noise[k * n + i])
        for j in range(q):
            slope[j] = half * slope[j] + width * normal_of(stream, c * q + j)
        turn(root, slope, q, way)
        for j in range(q):
            z[j] += way[j]
    return 0


def langevin(
    Latents latents not None,
    const double[:, :, ::1] roots,             # IN  (n, q, q)   lower triangles
    const unsigned long long[:, ::1] noise,    # IN  (steps, n)  keys
    const unsigned long long[:, ::1] dithers,  # IN  (steps, n)  keys
    double step,
    long long levels,                          # IN  0: gradients as they are
    double[:, :, ::1] z,                       # IN, OUT (chains, n, q)
    unsigned char[:, ::1] faults,              # OUT (chains, n)  1 where a chain ran away
    int n_threads,
):
    """Langevin steps; see `vpem.saem.samplers.Langevin`, which takes the same without a kernel."""
    cdef Py_ssize_t n = z.shape[1], i, c, each
    cdef Py_ssize_t n_steps = noise.shape[0], n_chains = z.shape[0]
    if latents.n != n or latents.q != z.shape[2]:
        raise ValueError("latents are not those of the law")
    n_threads = worth(n_threads, n * n_chains,
                      (30.0 + latents.cost) * n * n_chains * n_steps)
    for each in prange(
        n * n_chains, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n * n_chains, n_threads),
    ):
        c = each // n
        i = each - c * n
        faults[c, i] = chain(
            latents, i, n, c, n_steps, &z[c, i, 0], &roots[i, 0, 0], &noise[0, 0],
            &dithers[0, 0], step, levels,
        )
