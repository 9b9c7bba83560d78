"""Laws of individuals' latents given their rows, and random numbers, for kernels that move them."""
from libc.stdint cimport uint64_t

from scipy.special.cython_special cimport ndtri

from vpem._core.codecs cimport draw

cdef enum:
    MOST_LATENTS = 16
    MOST_PARAMETERS = 32

cdef struct Law:
    Py_ssize_t q
    const double* mean          # (q,)    of the latents
    const double* precision     # (q, q)
    const double* wide          # (q, q)  root of the covariance
    # A normal law of lines: squares about least squares; own is NULL where there are rows instead.
    const double* own           # (q,)
    const double* cross         # (q, q)
    double variance
    # Rows.
    int code                    # of the curve
    Py_ssize_t m                # its parameters
    const double* base          # (m,)    those that do not vary
    const Py_ssize_t* places    # (q,)    which the latents are
    Py_ssize_t n_rows
    const double* times
    const double* columns       # (rows, m)  of a linear predictor
    const double* values
    const unsigned char* outcomes
    const signed char* censored
    const int* kinds            # (outcomes,)
    const double* noise         # (outcomes, 2)
    const double* logs          # (outcomes,)    of the first of these
    Py_ssize_t n_doses
    const double* dose_times
    const double* amounts
    const double* durations

cdef class Latents:
    cdef const double[:, ::1] mean
    cdef const double[:, ::1] precision
    cdef const double[:, ::1] wide
    cdef readonly Py_ssize_t n
    cdef readonly Py_ssize_t q
    cdef double cost
    cdef void put(self, Py_ssize_t i, Law* law) noexcept nogil

cdef double density(
    const Law* law, const double* z, double* slope, bint with_slope,
) noexcept nogil


cdef inline double uniform_of(uint64_t stream, uint64_t index) noexcept nogil:
    """Uniform number inside (0, 1) of one index."""
    return (<double>(<long long>(draw(stream, index) >> 11)) + 0.5) * (1.0 / 9007199254740992.0)


cdef inline double normal_of(uint64_t stream, uint64_t index) noexcept nogil:
    """Standard normal number of one index."""
    return ndtri(uniform_of(stream, index))


cdef inline void turn(
    const double* root, const double* x, Py_ssize_t q, double* out,
) noexcept nogil:
    """``L x`` of a lower triangle (q, q)."""
    cdef Py_ssize_t i, j
    for i in range(q):
        out[i] = 0
        for j in range(i + 1):
            out[i] += root[i * q + j] * x[j]


cdef inline void turn_back(const double* root, double* x, Py_ssize_t q) noexcept nogil:
    """``L^T x`` of a lower triangle (q, q), in place."""
    cdef Py_ssize_t i, j
    cdef double total
    for i in range(q):
        total = 0
        for j in range(i, q):
            total += root[j * q + i] * x[j]
        x[i] = total
