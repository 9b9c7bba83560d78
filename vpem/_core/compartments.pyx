"""Concentrations after doses in one or two compartments, and their derivatives.

What a unit dose leaves after a time t is the response of a chain of stages, each emptied at a rate
of first order: ``E[a] = exp(-a t)``, ``E[a, b] = (exp(-a t) - exp(-b t)) / (b - a)``, and so on,
divided differences of an exponential, which are positive whatever their rates are, equal ones too.
A second compartment and derivatives are sums of longer chains, whose Laplace transforms are
products: of ``1 / (s + a)``, and of ``s / (s + a) = 1 - a / (s + a)``. An infusion is one more
stage with the rate 0.
"""
from cython.parallel cimport prange
from libc.math cimport cbrt, exp, expm1, fabs, fmax, pow, sqrt

from vpem._core.shares cimport at_once, worth

cdef enum:
    MOST = 6      # stages of a chain
    TERMS = 19    # of a series of rates that are close

cdef double STEP = cbrt(2.220446049250313e-16)  # of differences


# ---- chains -------------------------------------------------------------------------------------

cdef double close(const double* x, Py_ssize_t order, double t) noexcept nogil:
    """E of ``order + 1`` rates in order that differ by less than 1 / t, without exp(-x[0] t)."""
    cdef double h[TERMS]
    cdef double d, found = 0, scale = 1
    cdef Py_ssize_t i, m
    h[0] = 1
    for m in range(1, TERMS):
        h[m] = 0
    for i in range(1, order + 1):
        d = (x[0] - x[i]) * t
        for m in range(1, TERMS):
            h[m] += d * h[m - 1]
        scale *= t / i
    for m in range(TERMS):
        found += scale * h[m]
        scale /= order + m + 1
    return found


cdef void fill(const double* x, Py_ssize_t n, double t, double* table) noexcept nogil:
    """E of all runs i..j of n rates in order, at ``table[i * MOST + j]``."""
    cdef Py_ssize_t i, j, width
    cdef double d
    for i in range(n):
        table[i * MOST + i] = exp(-x[i] * t)
    for width in range(1, n):
        for i in range(n - width):
            j = i + width
            d = (x[j] - x[i]) * t
            if width == 1:
                table[i * MOST + j] = table[i * MOST + i] * t * (-expm1(-d) / d if d > 0 else 1.0)
            elif d < 1:
                table[i * MOST + j] = table[i * MOST + i] * close(x + i, width, t)
            else:
                table[i * MOST + j] = (
                    table[i * MOST + j - 1] - table[(i + 1) * MOST + j]) / (x[j] - x[i])


cdef double chain(const double* rates, Py_ssize_t n, double t, double duration) noexcept nogil:
    """What a unit dose, at once or over a duration, has left in the last of n stages."""
    cdef double x[MOST]
    cdef double begun[MOST * MOST]
    cdef double ended[MOST * MOST]
    cdef double rate, found = 0
    cdef Py_ssize_t i, j, zero = 1 if duration > 0 else 0
    if n == 1 and zero == 0:
        return exp(-rates[0] * t)
    x[0] = 0
    for i in range(n):
        rate = rates[i]
        j = i + zero
        while j > zero and x[j - 1] > rate:
            x[j] = x[j - 1]
            j -= 1
        x[j] = rate
    if zero == 0 or t <= duration:
        fill(x, n + zero, t, begun)
        found = begun[n + zero - 1]
        return found / duration if zero else found
    fill(x, n + 1, duration, begun)
    fill(x + 1, n, t - duration, ended)
    for j in range(n):
        found += begun[j + 1] * ended[j * MOST + n - 1]
    return found / duration


cdef double absorbed(
    double ka, double k, double t, double* slopes, bint with_slopes,
) noexcept nogil:
    """An oral dose, at once: ``ka E[ka, k]``, and its derivatives in log ka and log k."""
    cdef double low = min(ka, k), x = (max(ka, k) - low) * t, mean, bend, f, of_high, of_low
    mean = (1 - exp(-x) if x > 1 else -expm1(-x)) / x if x > 0 else 1.0  # 1: nothing cancels
    f = ka * t * exp(-low * t) * mean
    if with_slopes:
        if x < 0.05:
            bend = -1.0 / 2 + x * (1.0 / 3 + x * (-1.0 / 8 + x * (1.0 / 30 + x * (
                -1.0 / 144 + x * (1.0 / 840 - x / 5760)))))
        else:
            bend = (1 - x * mean - mean) / x
        of_high = ka * t * exp(-low * t) * bend * (x + low * t)
        of_low = -low * t * f - ka * t * exp(-low * t) * bend * low * t
        slopes[0] = f + (of_high if ka >= k else of_low)
        slopes[1] = of_low if ka >= k else of_high
    return f


# ---- responses to a unit dose -------------------------------------------------------------------

cdef double joined(
    const double* head, Py_ssize_t n, double more, double t, double duration,
) noexcept nogil:
    """Return `chain` of n rates and one more."""
    cdef double rates[MOST]
    cdef Py_ssize_t i
    for i in range(n):
        rates[i] = head[i]
    rates[n] = more
    return chain(rates, n + 1, t, duration)


cdef double one_response(
    int code, const Rates* rates, double t, double duration, double* slopes, bint with_slopes,
) noexcept nogil:
    """One compartment: amount, and derivatives in the logarithms of ka and k, and in t."""
    cdef double x[3]
    cdef double f
    cdef double ka = rates.ka, k = rates.k
    if not code & ORAL:
        x[0] = x[1] = k
        f = chain(x, 1, t, duration)
        if with_slopes:
            slopes[1] = -k * chain(x, 2, t, duration)
        return f
    x[0], x[1], x[2] = k, ka, k
    if duration == 0:
        f = absorbed(ka, k, t, slopes, with_slopes)
    else:
        f = ka * chain(x, 2, t, duration)
        if with_slopes:
            slopes[1] = -k * ka * chain(x, 3, t, duration)
            x[2] = ka
            slopes[0] = f - ka * ka * chain(x, 3, t, duration)
    if with_slopes and code & LAG:
        slopes[4] = ka * chain(x, 1, t, duration) - ka * f
    return f


cdef double two_response(
    int code, const Rates* rates, double t, double duration, double* slopes, bint with_slopes,
) noexcept nogil:
    """Two compartments: amount in the first, derivatives in logarithms of rates, and in t.

    Without absorption its transform is ``G = (s + k21) / D = 1 / (s + fast) + apart / D``, with
    ``D = (s + fast) (s + slow)``; dG/dk = -G^2, dG/dk12 = -G s / D, dG/dk21 = k12 s / D^2.
    """
    cdef double x[MOST]
    cdef double f, pair, two, three, four, ka = rates.ka, c = rates.apart, b = rates.slow, gain
    cdef Py_ssize_t oral = 1 if code & ORAL else 0
    gain = ka if oral else 1.0
    x[0], x[1], x[2], x[3] = rates.fast, rates.slow, rates.fast, rates.slow
    if not oral:
        pair = chain(x, 1, t, duration) + c * chain(x, 2, t, duration)
    else:
        pair = joined(x, 1, ka, t, duration) + c * joined(x, 2, ka, t, duration)
    f = gain * pair
    if not with_slopes:
        return f
    four = joined(x, 4, ka, t, duration) if oral else chain(x, 4, t, duration)
    three = joined(x, 3, ka, t, duration) if oral else chain(x, 3, t, duration)
    x[1] = rates.fast
    two = joined(x, 2, ka, t, duration) if oral else chain(x, 2, t, duration)
    slopes[1] = -rates.k * gain * (two + 2 * c * three + c * c * four)
    slopes[2] = -rates.k12 * gain * (two + (c - b) * three - c * b * four)
    slopes[3] = rates.k21 * gain * rates.k12 * (three - b * four)
    if oral:
        x[1], x[2] = ka, rates.slow
        two = joined(x, 2, ka, t, duration)
        x[1], x[2] = rates.slow, ka
        slopes[0] = f - ka * ka * (two + c * joined(x, 3, ka, t, duration))
        if code & LAG:
            slopes[4] = ka * (chain(x, 1, t, duration) + c * chain(x, 2, t, duration)) - ka * f
    return f


# ---- formulas -----------------------------------------------------------------------------------

cdef double formula_at(int code, const double* p, double t) noexcept nogil:
    """Formula of its number in `vpem.saem.structures.formulas.FORMULAS`."""
    cdef int number = (code >> 7) & 7
    if number == 0:
        return p[0] / (1 + exp((p[1] - t) / p[2]))
    if number == 1:
        return p[0] + (p[1] - p[0]) / (1 + exp((p[2] - t) / p[3]))
    if number == 2:
        return p[0] * exp(-p[1] * pow(p[2], t))
    if number == 3:
        return p[0] + (p[1] - p[0]) * exp(-p[2] * t)
    if number == 4:
        return p[0] * exp(-p[1] * t) + p[2] * exp(-p[3] * t)
    if number == 5:
        return p[0] * t / (p[1] + t)
    return p[0] + p[1] * t / (p[2] + t)


cdef inline int scale_of(int code, Py_ssize_t j) noexcept nogil:
    """Scale of a parameter, 1: none, 2: logarithm, 3: logit; 0: there is no such parameter."""
    return (code >> (10 + 2 * j)) & 3


cdef inline double natural_of(int scale, double x) noexcept nogil:
    return x if scale == 1 else exp(x) if scale == 2 else 1 / (1 + exp(-x))


cdef void differences(int code, const Rates* rates, double t, double* slopes) noexcept nogil:
    """Derivatives of a formula in its parameters on their scales, by central differences."""
    cdef double p[4]
    cdef double step, up, down, above
    cdef int scale
    cdef Py_ssize_t j
    for j in range(4):
        p[j] = rates.natural[j]
    for j in range(4):
        scale = scale_of(code, j)
        if scale == 0:
            return
        step = STEP * fmax(fabs(rates.scaled[j]), 1e-3 if scale == 1 else 1.0)
        up, down = rates.scaled[j] + step, rates.scaled[j] - step
        p[j] = natural_of(scale, up)
        above = formula_at(code, p, t)
        p[j] = natural_of(scale, down)
        slopes[j] = (above - formula_at(code, p, t)) / (up - down)
        p[j] = rates.natural[j]


# ---- curves -------------------------------------------------------------------------------------

cdef void rates_of(int code, const double* phi, Rates* rates) noexcept nogil:
    """Rates of parameters on their scales, which are logarithms; of a formula parameters."""
    cdef Py_ssize_t j = 1 if code & ORAL else 0
    cdef double over, root
    if code & FORMULA:
        while j < 4 and scale_of(code, j):
            rates.scaled[j], rates.natural[j] = phi[j], natural_of(scale_of(code, j), phi[j])
            j += 1
        return
    rates.ka = exp(phi[0]) if code & ORAL else 0.0
    rates.lag = 0
    if not code & TWO:
        if code & BY_V_AND_KE:
            rates.v, rates.k = exp(phi[j]), exp(phi[j + 1])
        elif code & BY_CL_AND_KE:
            rates.v, rates.k = exp(phi[j] - phi[j + 1]), exp(phi[j + 1])
        else:
            rates.v, rates.k = exp(phi[j + 1]), exp(phi[j] - phi[j + 1])
        if code & LAG:
            rates.lag = exp(phi[j + 2])
        return
    rates.v, rates.k = exp(phi[j + 1]), exp(phi[j] - phi[j + 1])
    rates.k12, rates.k21 = exp(phi[j + 2] - phi[j + 1]), exp(phi[j + 2] - phi[j + 3])
    if code & LAG:
        rates.lag = exp(phi[j + 4])
    over = rates.k + rates.k12 - rates.k21
    root = sqrt(over * over + 4 * rates.k12 * rates.k21)
    rates.fast = 0.5 * (rates.k + rates.k12 + rates.k21 + root)
    rates.slow = rates.k / rates.fast * rates.k21
    if over > 0:  # (fast - k21) (k21 - slow) = k12 k21
        rates.apart = 2 * rates.k12 / (over + root) * rates.k21
    else:
        rates.apart = 0.5 * (root - over)


cdef double curve_at(
    int code, const Rates* rates, double t, const double* dose_times, const double* amounts,
    const double* durations, Py_ssize_t n_doses, double* slopes, bint with_slopes,
) noexcept nogil:
    """Concentration at a time, or a formula, and derivatives in the parameters on their scales.

    Doses are in the order of time; one that begins at the time itself does not count yet.
    """
    cdef double total[5]    # of ka, k, k12, k21 and t
    cdef double own[5]
    cdef double f = 0, size, passed
    cdef Py_ssize_t d, j
    if code & FORMULA:
        if with_slopes:
            differences(code, rates, t, slopes)
        return formula_at(code, rates.natural, t)
    if with_slopes:
        for j in range(5):
            total[j] = own[j] = 0
    for d in range(n_doses):
        passed = t - dose_times[d] - rates.lag
        if not passed > 0:
            continue
        size = amounts[d] / rates.v
        if code & TWO:
            f += size * two_response(code, rates, passed, durations[d], own, with_slopes)
        else:
            f += size * one_response(code, rates, passed, durations[d], own, with_slopes)
        if with_slopes:
            for j in range(5):
                total[j] += size * own[j]
    if not with_slopes:
        return f
    j = 1 if code & ORAL else 0
    slopes[0] = total[0]
    if code & TWO:
        slopes[j] = total[1]
        slopes[j + 1] = -total[1] - total[2] - f
        slopes[j + 2] = total[2] + total[3]
        slopes[j + 3] = -total[3]
        j += 4
    elif code & BY_V_AND_KE:
        slopes[j], slopes[j + 1] = -f, total[1]
        j += 2
    elif code & BY_CL_AND_KE:
        slopes[j], slopes[j + 1] = -f, total[1] + f
        j += 2
    else:
        slopes[j], slopes[j + 1] = total[1], -total[1] - f
        j += 2
    if code & LAG:
        slopes[j] = -rates.lag * total[4]
    return f


cdef void courses_at(
    int code, const Rates* rates, const double* times, Py_ssize_t n, const double* dose_times,
    const double* amounts, const double* durations, Py_ssize_t n_doses, double* found,
) noexcept nogil:
    """Return `curve_at` n times: exponentials of what is absorbed at once do not wait for others.
    """
    cdef double decay[AT_ONCE]
    cdef double rest[AT_ONCE]
    cdef double low = min(rates.ka, rates.k), apart = max(rates.ka, rates.k) - low, passed, x, size
    cdef Py_ssize_t d, row
    cdef bint plain = code & ORAL and not code & (TWO | FORMULA)
    for d in range(n_doses if plain else 0):
        plain = plain and durations[d] == 0
    for row in range(n):
        found[row] = 0 if plain else curve_at(code, rates, times[row], dose_times, amounts,
                                              durations, n_doses, NULL, False)
    for d in range(n_doses if plain else 0):
        size = amounts[d] / rates.v
        for row in range(n):
            passed = times[row] - dose_times[d] - rates.lag
            decay[row] = exp(-low * passed) if passed > 0 else 0
            x = apart * passed
            if passed > 0 and x > 0:
                rest[row] = (1 - exp(-x) if x > 1 else -expm1(-x)) / x
            else:
                rest[row] = 1
        for row in range(n):
            passed = times[row] - dose_times[d] - rates.lag
            if passed > 0:
                found[row] += size * (rates.ka * passed * decay[row] * rest[row])


def curves(
    int code,                          # IN  see `compartments.pxd`
    const double[:, :, ::1] phi,       # IN  (chains, n, m)
    const Py_ssize_t[::1] first,       # IN  (n + 1,)        rows of each individual
    const double[::1] times,           # IN  (N,)
    const Py_ssize_t[::1] first_dose,  # IN  (n + 1,)        doses of each individual
    const double[::1] dose_times,      # IN  (E,)
    const double[::1] amounts,         # IN  (E,)
    const double[::1] durations,       # IN  (E,)
    double[:, ::1] found,              # OUT (chains, N)
    double[:, :, ::1] slopes,          # OUT (chains, N, m)  or (0, 0, 0): none
    int n_threads,
):
    """Concentrations of individuals in chains, see `tests.twins.models.curves`."""
    cdef Py_ssize_t n = phi.shape[1], i
    cdef bint with_slopes = slopes.shape[0] > 0
    cdef double each = 100.0 * (1 + times.shape[0] * (1 + dose_times.shape[0]) / max(1, n))
    if phi.shape[2] > MOST_PARAMETERS:
        raise ValueError("too many parameters")
    n_threads = worth(n_threads, n, each * phi.shape[0])
    for i in prange(
        n, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n, n_threads),
    ):
        curves_of_one(code, phi, i, first, times, first_dose[i], first_dose[i + 1] - first_dose[i],
                      dose_times, amounts, durations, found, slopes, with_slopes)


cdef void curves_of_one(
    int code, const double[:, :, ::1] phi, Py_ssize_t i, const Py_ssize_t[::1] first,
    const double[::1] times, Py_ssize_t dose, Py_ssize_t n_doses, const double[::1] dose_times,
    const double[::1] amounts, const double[::1] durations, double[:, ::1] found,
    double[:, :, ::1] slopes, bint with_slopes,
) noexcept nogil:
    cdef Rates rates
    cdef double own[MOST_PARAMETERS]
    cdef Py_ssize_t c, row, j
    for c in range(phi.shape[0]):
        rates_of(code, &phi[c, i, 0], &rates)
        for row in range(first[i], first[i + 1]):
            found[c, row] = curve_at(
                code, &rates, times[row], &dose_times[0] + dose, &amounts[0] + dose,
                &durations[0] + dose, n_doses, own, with_slopes)
            if with_slopes:
                for j in range(phi.shape[2]):
                    slopes[c, row, j] = own[j]
