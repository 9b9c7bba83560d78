"""What kernels that move individuals' latents share."""
from libc.math cimport exp, fmax, fmin
from libc.stdint cimport uint64_t

from scipy.special.cython_special cimport ndtri

from vpem._core.codecs cimport draw


cdef inline double uniform_of(uint64_t stream, uint64_t index) noexcept nogil:
    """Uniform number inside (0, 1) of one index."""
    return (<double>(<long long>(draw(stream, index) >> 11)) + 0.5) * (1.0 / 9007199254740992.0)


cdef inline double normal_of(uint64_t stream, uint64_t index) noexcept nogil:
    """Standard normal number of one index."""
    return ndtri(uniform_of(stream, index))


cdef inline double curve(
    double t, double dose, double ka, double cl, double ke, double* slopes, bint with_slopes,
) noexcept nogil:
    """Concentration, and its derivatives in log ka, log cl and log ke."""
    cdef double low = fmin(ka, ke), high = fmax(ka, ke), x = (high - low) * t
    cdef double mean, bend = 0, gone, common, f, of_high, of_low
    if x < 0.05:
        mean = 1 + x * (-1.0 / 2 + x * (1.0 / 6 + x * (-1.0 / 24 + x * (
            1.0 / 120 + x * (-1.0 / 720 + x / 5040)))))
        bend = -1.0 / 2 + x * (1.0 / 3 + x * (-1.0 / 8 + x * (1.0 / 30 + x * (
            -1.0 / 144 + x * (1.0 / 840 - x / 5760)))))
    else:
        gone = exp(-x)
        mean = (1 - gone) / x
        bend = (gone - mean) / x
    common = ka * ke * (dose / cl * exp(-low * t) * t)
    f = common * mean
    if with_slopes:
        of_high = common * t * bend * high
        of_low = -low * t * f - common * t * bend * low
        slopes[0] = f + (of_high if ka >= ke else of_low)
        slopes[1] = -f
        slopes[2] = f + (of_low if ka >= ke else of_high)
    return f
