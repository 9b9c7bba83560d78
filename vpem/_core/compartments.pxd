"""Concentrations after doses in one or two compartments, for kernels that move parameters."""

cdef enum:
    ORAL = 1           # doses are absorbed: the first parameter is ka
    TWO = 2            # two compartments: then cl, v1, q, v2
    LAG = 4            # the last parameter is the time until absorption begins
    BY_CL_AND_KE = 8   # one compartment: the pair of parameters, by default cl and v
    BY_V_AND_KE = 16
    FORMULA = 64       # of `formula_at`: its number from bit 7 on, two bits a scale from 10 on
    MOST_PARAMETERS = 6
    AT_ONCE = 16       # most rows of `courses_at`

cdef struct Rates:
    double ka, k, k12, k21, v, lag
    double fast, slow, apart   # of two compartments: of the two exponentials; k21 - slow
    double scaled[4]           # parameters of a formula on their scales, and as they are
    double natural[4]


cdef void rates_of(int code, const double* phi, Rates* rates) noexcept nogil

cdef double curve_at(
    int code, const Rates* rates, double t, const double* dose_times, const double* amounts,
    const double* durations, Py_ssize_t n_doses, double* slopes, bint with_slopes,
) noexcept nogil

cdef void courses_at(
    int code, const Rates* rates, const double* times, Py_ssize_t n, const double* dose_times,
    const double* amounts, const double* durations, Py_ssize_t n_doses, double* found,
) noexcept nogil
