"""The density of individuals' latents given their rows, and its gradient: what kernels move by.

A law is made of arrays once an iteration, and read without allocation, an individual at a time.
"""
from cython.parallel cimport prange
from libc.math cimport INFINITY, M_PI, exp, fabs, fmax, isfinite, log, log1p, sqrt

import numpy as np

from scipy.special.cython_special cimport log_ndtr

from vpem._core.compartments cimport AT_ONCE, Rates, courses_at, curve_at, rates_of
from vpem._core.shares cimport at_once, worth

cdef enum:
    NORMAL = 0
    EXPONENTIAL = 1
    BERNOULLI = 2
    POISSON = 3


cdef class Latents:
    """Latents of n individuals, normal with a mean (n, q) and one precision (q, q)."""

    def __init__(
        self,
        const double[:, ::1] mean,             # (n, q)
        const double[:, ::1] precision,        # (q, q)
    ):
        self.n = mean.shape[0]
        self.q = mean.shape[1]
        if self.q > MOST_LATENTS:
            raise ValueError("too many latents")
        self.mean = mean
        self.precision = precision
        try:
            self.wide = np.linalg.cholesky(np.linalg.inv(precision))
        except np.linalg.LinAlgError:  # units so far apart that rounding shows: each in its own
            sizes = np.sqrt(np.diag(precision))
            scaled = np.linalg.inv(precision / np.outer(sizes, sizes))
            self.wide = np.linalg.cholesky((scaled + scaled.T) / 2) / sizes[:, None]
        self.cost = 0

    cdef void put(self, Py_ssize_t i, Law* law) noexcept nogil:
        law.q = self.q
        law.mean = &self.mean[i, 0]
        law.precision = &self.precision[0, 0]
        law.wide = &self.wide[0, 0]
        law.own = NULL

    def population(self):
        """Mean (n, q), precision and root of the covariance of latents without rows."""
        return np.asarray(self.mean), np.asarray(self.precision), np.asarray(self.wide)

    def density(
        self,
        const double[:, :, ::1] z,             # IN  (chains, n, q)
        double[:, ::1] values,                 # OUT (chains, n)  log-density, up to a constant
        double[:, :, ::1] slopes,              # OUT (chains, n, q)  or (0, n, q): none
    ):
        """See `tests.twins.models`."""
        cdef double unused[MOST_LATENTS]
        cdef Py_ssize_t i, c
        cdef bint with_slope = slopes.shape[0] > 0
        cdef Law law
        for i in range(self.n):
            self.put(i, &law)
            for c in range(z.shape[0]):
                values[c, i] = density(&law, &z[c, i, 0],
                                       &slopes[c, i, 0] if with_slope else unused, with_slope)


cdef class Lines(Latents):
    """Squares about each individual's least squares: ``(z - own)^T cross (z - own) / variance``."""
    cdef const double[:, ::1] own
    cdef const double[:, :, ::1] cross
    cdef double variance

    def __init__(
        self,
        const double[:, ::1] mean,             # (n, q)
        const double[:, ::1] precision,        # (q, q)
        const double[:, ::1] own,              # (n, q)
        const double[:, :, ::1] cross,         # (n, q, q)
        double variance,
    ):
        Latents.__init__(self, mean, precision)
        self.own = own
        self.cross = cross
        self.variance = variance
        self.cost = 10.0 * self.q

    cdef void put(self, Py_ssize_t i, Law* law) noexcept nogil:
        Latents.put(self, i, law)
        law.own = &self.own[i, 0]
        law.cross = &self.cross[i, 0, 0]
        law.variance = self.variance


cdef class Curves(Latents):
    """Rows about curves, or linear predictors, each with the error of its outcome."""
    cdef int code
    cdef const double[:, ::1] base
    cdef const Py_ssize_t[::1] places
    cdef const Py_ssize_t[::1] first
    cdef const double[::1] times
    cdef const double[:, ::1] columns
    cdef const double[::1] values
    cdef const unsigned char[::1] outcomes
    cdef const signed char[::1] censored
    cdef const int[::1] kinds
    cdef const double[:, ::1] noise
    cdef double[::1] logs
    cdef const Py_ssize_t[::1] first_dose
    cdef const double[::1] dose_times
    cdef const double[::1] amounts
    cdef const double[::1] durations

    def __init__(
        self,
        const double[:, ::1] mean,             # (n, q)
        const double[:, ::1] precision,        # (q, q)
        int code,                              # see `compartments.pxd`; -1: columns by parameters
        const double[:, ::1] base,             # (n, m)   parameters of each, if they do not vary
        const Py_ssize_t[::1] places,          # (q,)     which of these the latents are
        const Py_ssize_t[::1] first,           # (n + 1,) rows of each individual
        const double[::1] times,               # (N,)
        const double[:, ::1] columns,          # (N, m), or (0, m) of a curve
        const double[::1] values,              # (N,)
        const unsigned char[::1] outcomes,     # (N,)
        const signed char[::1] censored,       # (N,)     1: the value is an upper limit; -1: lower
        const int[::1] kinds,                  # (K,)     law of each outcome
        const double[:, ::1] noise,            # (K, 2)   a and b: sd^2 = a^2 + b^2 f^2
        const Py_ssize_t[::1] first_dose,      # (n + 1,)
        const double[::1] dose_times,
        const double[::1] amounts,
        const double[::1] durations,
    ):
        cdef Py_ssize_t k
        Latents.__init__(self, mean, precision)
        if base.shape[1] > MOST_PARAMETERS:
            raise ValueError("too many parameters of a curve")
        self.code = code
        self.base = base
        self.places = places
        self.first = first
        self.times = times
        self.columns = columns
        self.values = values
        self.outcomes = outcomes
        self.censored = censored
        self.kinds = kinds
        self.noise = noise
        self.logs = np.empty(noise.shape[0])
        for k in range(noise.shape[0]):
            self.logs[k] = log(noise[k, 0])
        self.first_dose = first_dose
        self.dose_times = dose_times
        self.amounts = amounts
        self.durations = durations
        self.cost = 40.0 * times.shape[0] / fmax(1.0, self.n)

    cdef void put(self, Py_ssize_t i, Law* law) noexcept nogil:
        cdef Py_ssize_t row = self.first[i], dose = self.first_dose[i]
        Latents.put(self, i, law)
        law.code = self.code
        law.m = self.base.shape[1]
        law.base = &self.base[i, 0]
        law.places = &self.places[0]
        law.n_rows = self.first[i + 1] - row
        law.times = &self.times[0] + row
        law.columns = &self.columns[0, 0] + row * law.m if self.code < 0 else NULL
        law.values = &self.values[0] + row
        law.outcomes = &self.outcomes[0] + row
        law.censored = &self.censored[0] + row
        law.kinds = &self.kinds[0]
        law.noise = &self.noise[0, 0]
        law.logs = &self.logs[0]
        law.n_doses = self.first_dose[i + 1] - dose
        law.dose_times = &self.dose_times[0] + dose
        law.amounts = &self.amounts[0] + dose
        law.durations = &self.durations[0] + dose

    def expand(
        self,
        const double[:, :, ::1] z,             # IN  (chains, n, q)
        const double[:, :, ::1] shares,        # IN  (n, r, q), or (n, 0, q)
        const Py_ssize_t[::1] fixed,           # IN  (r,)     against which latents move by shares
        const int[::1] forms,                  # IN  (K,)     1: sd^2 = a^2, 2: b^2 f^2, 3: both
        const Py_ssize_t[::1] scored,          # IN  (K,)     place of its variances; -1: none
        double[:, :, ::1] squares,             # INOUT (chains, n, K)     of residuals, in sds of 1
        double[:, :, ::1] score,               # INOUT (chains, n, w)
        double[:, :, :, ::1] info,             # INOUT (chains, n, w, w)  lower half
        int n_threads,
    ):
        """Add up over rows what `vpem.saem.models.outcomes.Outcomes.expansion` says."""
        cdef Py_ssize_t n = self.n, i, c, chains = z.shape[0]
        n_threads = worth(n_threads, n, (30.0 + self.cost) * n * chains)
        for i in prange(
            n, nogil=True, num_threads=n_threads, schedule="dynamic",
            chunksize=at_once(n, n_threads),
        ):
            for c in range(chains):
                self.expand_one(i, &z[c, i, 0], shares, fixed, forms, scored, score.shape[2],
                                &squares[c, i, 0], &score[c, i, 0], &info[c, i, 0, 0])

    cdef void expand_one(
        self, Py_ssize_t i, const double* z, const double[:, :, ::1] shares,
        const Py_ssize_t[::1] fixed, const int[::1] forms, const Py_ssize_t[::1] scored,
        Py_ssize_t w, double* squares, double* score, double* info,
    ) noexcept nogil:
        cdef double phi[MOST_PARAMETERS]
        cdef double bends[MOST_PARAMETERS]
        cdef Law law
        cdef Rates rates
        cdef Bend bend
        cdef Py_ssize_t row, a, b, k, place
        cdef double f
        self.put(i, &law)
        prepare(&law, z, phi, &rates)
        for row in range(law.n_rows):
            f = predicted(&law, phi, &rates, row, bends, True)
            k = law.outcomes[row]
            bend_of(law.kinds[k], law.noise[2 * k], law.noise[2 * k + 1], forms[k],
                    law.values[row], f, law.censored[row], &bend)
            squares[k] += bend.square
            for a in range(fixed.shape[0]):
                for b in range(law.q):
                    bends[fixed[a]] -= shares[i, a, b] * bends[law.places[b]]
            for a in range(law.m):
                score[a] += bend.slope * bends[a]
                for b in range(a + 1):
                    info[a * w + b] += bend.weight * bends[a] * bends[b]
            place = scored[k]
            if place < 0:
                continue
            for a in range(bend.n):
                score[place + a] += bend.of_variance * bend.by[a]
                for b in range(law.m):
                    info[(place + a) * w + b] += bend.cross * bend.by[a] * bends[b]
                for b in range(a + 1):
                    info[(place + a) * w + place + b] += bend.info * bend.by[a] * bend.by[b]


cdef double density(
    const Law* law, const double* z, double* slope, bint with_slope,
) noexcept nogil:
    """Log-density of latents up to a constant, -inf where it has none; and its gradient."""
    cdef Py_ssize_t q = law.q, a, b
    cdef double total = 0, inner
    for a in range(q):
        inner = 0
        for b in range(q):
            inner += law.precision[a * q + b] * (z[b] - law.mean[b])
        total -= 0.5 * inner * (z[a] - law.mean[a])
        slope[a] = -inner
    if law.own == NULL:
        total += of_rows(law, z, slope, with_slope)
    else:
        for a in range(q):
            inner = 0
            for b in range(q):
                inner += law.cross[a * q + b] * (z[b] - law.own[b])
            inner = inner / law.variance
            total -= 0.5 * inner * (z[a] - law.own[a])
            slope[a] -= inner
    return total if isfinite(total) else -INFINITY


cdef double of_rows(
    const Law* law, const double* z, double* slope, bint with_slope,
) noexcept nogil:
    """Log-density of an individual's rows; its gradient is added."""
    cdef double phi[MOST_PARAMETERS]
    cdef double bends[MOST_PARAMETERS]
    cdef double found[AT_ONCE]
    cdef double total = 0, f, weight = 0
    cdef Rates rates
    cdef Py_ssize_t row, a, k
    prepare(law, z, phi, &rates)
    for row in range(law.n_rows):
        if with_slope or law.code < 0:
            f = predicted(law, phi, &rates, row, bends, with_slope)
        else:
            if row % AT_ONCE == 0:
                courses_at(law.code, &rates, law.times + row, min(AT_ONCE, law.n_rows - row),
                           law.dose_times, law.amounts, law.durations, law.n_doses, found)
            f = found[row % AT_ONCE]
        k = law.outcomes[row]
        total += of_row(law.kinds[k], law.noise[2 * k], law.noise[2 * k + 1], law.logs[k],
                        law.values[row], f, law.censored[row], with_slope, &weight)
        if with_slope:
            for a in range(law.q):
                slope[a] += weight * bends[law.places[a]]
    return total


cdef inline void prepare(const Law* law, const double* z, double* phi, Rates* rates) noexcept nogil:
    """All parameters (m,) of an individual with latents z, and their rates."""
    cdef Py_ssize_t k
    for k in range(law.m):
        phi[k] = law.base[k]
    for k in range(law.q):
        phi[law.places[k]] = z[k]
    if law.code >= 0:
        rates_of(law.code, phi, rates)


cdef inline double predicted(
    const Law* law, const double* phi, const Rates* rates, Py_ssize_t row, double* bends,
    bint with_slope,
) noexcept nogil:
    """Curve or linear predictor of a row, and its derivatives (m,) in the parameters."""
    cdef Py_ssize_t k
    cdef double f = 0
    if law.code >= 0:
        return curve_at(law.code, rates, law.times[row], law.dose_times, law.amounts,
                        law.durations, law.n_doses, bends, with_slope)
    for k in range(law.m):
        bends[k] = law.columns[row * law.m + k]
        f += bends[k] * phi[k]
    return f


cdef struct Bend:
    # What a row says of the curve and its variances, see `vpem.saem.models.outcomes.Outcome.bends`.
    double square, slope, weight, of_variance, cross, info
    Py_ssize_t n    # variances
    double by[2]    # by what each is multiplied


cdef void bend_of(
    int kind, double a, double b, int form, double y, double f, int censored, Bend* out,
) noexcept nogil:
    cdef double variance, rest, grow, sd, u, hazard, precision, of_f, curve = 1
    out.n = 0
    out.square = 0
    if kind == POISSON or kind == BERNOULLI:
        rest = exp(f) if kind == POISSON else 1 / (1 + exp(-f))
        out.slope = y - rest
        out.weight = rest if kind == POISSON else rest * (1 - rest)
        return
    variance = a * a + b * b * f * f
    rest = y - f
    if kind == EXPONENTIAL:
        rest = log(y) - log(f)
        curve = 1 / f
    if form & 1:
        out.by[0] = 1
        out.n = 1
    if form & 2:
        out.by[out.n] = f * f
        out.n += 1
    out.square = (rest / f) ** 2 if form == 2 else rest * rest
    grow = 2 * b * b * f
    out.of_variance = 0.5 * (rest * rest / variance - 1) / variance
    of_f = rest / variance
    precision = 1 / variance
    out.info = 0.5 / (variance * variance)
    if censored != 0:
        sd = sqrt(variance)
        u = censored * rest / sd
        hazard = exp(-0.5 * (u * u + log(2 * M_PI)) - log_ndtr(u))
        of_f = -censored * hazard / sd
        precision = fmax(hazard * (hazard + u), 0.0) / variance
        out.of_variance = -0.5 * u * hazard / variance
        out.info = out.of_variance * out.of_variance
    out.slope = of_f * curve + out.of_variance * grow
    out.weight = precision * curve * curve + out.info * grow * grow
    out.cross = out.info * grow


cdef inline double of_row(
    int kind, double a, double b, double log_a, double y, double f, int censored, bint with_slope,
    double* weight,
) noexcept nogil:
    """Log-density of a row, up to what only y is in; and its derivative in the prediction f."""
    cdef double variance = a * a + b * b * f * f, sd = a, size = log_a, u, gone
    cdef double found = 0, slope = 0
    if kind == BERNOULLI:  # f is the logit of the probability of 1
        gone = exp(-fabs(f))
        if with_slope:
            weight[0] = y - (1 if f >= 0 else gone) / (1 + gone)
        return y * f - fmax(f, 0) - log1p(gone)
    if kind == POISSON:  # f is the logarithm of the mean
        gone = exp(f)
        weight[0] = y - gone
        return y * f - gone
    if kind == EXPONENTIAL:
        u = (log(y) - log(f)) / a
        slope = -1 / (a * f)
    else:
        if b != 0:
            sd = sqrt(variance)
            size = log(sd)
        u = (y - f) / sd
        if with_slope or censored != 0:
            found = b * b * f / variance
            slope = -1 / sd - u * found
    if censored == 0:
        weight[0] = -u * slope - found
        return -0.5 * u * u - size
    if censored < 0:
        u = -u
        slope = -slope
    found = log_ndtr(u)
    weight[0] = slope * exp(-0.5 * u * u - found) / sqrt(2 * M_PI)
    return found
