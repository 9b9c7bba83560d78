"""NumPy twins of `families`, `rising`, `compartments`, `latents` and `topics` of `vpem._core`.

Names and arguments are the same. Shapes of families: ``M`` rows, ``n`` features in the order of the
blocks, ``K`` components, ``B`` blocks with ``offsets (B + 1,)``, ``R`` roots with an estimate of
their own (1 or B). Values that are missing are NaN; they add nothing.

Amounts x of a depot, of the first and of the second compartment change by ``dx/dt = M x + u``, u
what is infused; what a dose leaves is ``exp(M t)``'s. Derivatives are by a complex step.
"""

import math
from itertools import pairwise

import numpy as np
from scipy.special import digamma, expit, gammaln, log_ndtr, ndtri, polygamma, psi, softmax

from vpem.saem.structures.formulas import BY_CL_AND_KE, BY_V_AND_KE, LAG, ORAL, TWO

POISSON, LOGARITHM = 1, 2


def _blocks(offsets):
    """Blocks that have features, and which."""
    runs = enumerate(pairwise(offsets))
    return [(b, slice(int(i), int(j))) for b, (i, j) in runs if i < j]


def _cells(rows, firsts):
    """Cell of each value (M, n): of a missing one C, of one that is no level C + 1."""
    end = firsts[-1]
    known = (rows >= 0) & (rows < np.diff(firsts))
    cells = np.where(known, rows, 0).astype(np.intp) + firsts[:-1]
    return np.where(known, cells, np.where(np.isnan(rows), end, end + 1))


def cell_terms(rows, offsets, firsts, table, terms, n_threads):
    """Terms of categories: ``terms[b, m, k] += sum_j table[firsts[j] + x_mj, k]``, j in block b.

    Row C of the table is what a missing value adds, row C + 1 what one adds that is no level.
    """
    cells = _cells(rows, firsts)
    for b, block in _blocks(offsets):
        found = np.zeros(terms.shape[1:])
        for column in cells[:, block].T:
            found += table[column]
        terms[b] += found.astype(terms.dtype, copy=False)


def cell_moments(rows, responsibilities, offsets, firsts, counts, n_threads):
    """Counts of levels: ``counts[firsts[j] + l, k] += sum_m gamma_mk [x_mj = l]``."""
    cells, end = _cells(rows, firsts), int(firsts[-1])
    for b, block in _blocks(offsets):
        shares = responsibilities[b if len(responsibilities) > 1 else 0].T
        for j, column in enumerate(cells[:, block].T, block.start):
            own = slice(firsts[j], firsts[j + 1])
            for k, weights in enumerate(shares):
                counts[own, k] += np.bincount(column, weights, end + 2)[own]


def _functions(rows, kind):
    """Functions of each value, (M, n) each: 1, x, and log x for `LOGARITHM`; 0 of a missing one."""
    rows = rows.astype(np.float64, copy=False)
    seen = ~np.isnan(rows)
    found = [seen.astype(np.float64), np.where(seen, rows, 0)]
    if kind == LOGARITHM:
        found.append(np.log(np.where(seen, rows, 1)))
    return found


def product_terms(rows, offsets, kind, table, terms, n_threads):
    """Terms of exponential families: ``terms[b, m, k] += sum_j h(x_mj) + T(x_mj) . eta_jk``.

    ``T(x) = (1, x)`` and ``h(x) = 0`` for ``kind`` 0, ``h(x) = 2 log x!`` for 1 (counts), and
    ``T(x) = (1, x, log x)``, ``h(x) = 0`` for 2. ``table`` (F, n, K) holds ``eta``, in double
    precision: what is large may cancel.
    """
    functions = _functions(rows, kind)
    for b, block in _blocks(offsets):
        found = np.zeros(terms.shape[1:])
        for values, factors in zip(functions, table, strict=True):
            found += values[:, block] @ factors[block]
        if kind == POISSON:
            found += 2 * gammaln(functions[1][:, block] + 1).sum(axis=1)[:, None]
        terms[b] += found.astype(terms.dtype, copy=False)


def product_moments(rows, responsibilities, offsets, kind, sums, n_threads):
    """Sums over rows: ``sums[f, j, k] += sum_m gamma_mk T_f(x_mj)``, T as in `product_terms`."""
    functions = _functions(rows, kind)
    for b, block in _blocks(offsets):
        shares = responsibilities[b if len(responsibilities) > 1 else 0]
        for values, into in zip(functions, sums, strict=True):
            into[block] += values[:, block].T @ shares.astype(np.float64, copy=False)


def rising_terms(rows, first, offsets, line, sizes, terms, n_threads):
    """Terms of negative binomial counts ``x >= T`` (``first``), for sizes ``r``.

    ``terms[b, m, k] += sum_j line_j0k + line_j1k x - 2 log(Gamma(x + r) / Gamma(r + T)) - ...``:
    of the rising factorial ``(r + T) (r + T + 1) .. (r + x - 1)`` its logarithm without that of
    ``(r + T)^(x - T)``, which is in the line. Of ``log x!`` all is added.
    """
    for b, block in _blocks(offsets):
        for j in range(block.start, block.stop):
            own = np.flatnonzero(rows[:, j] >= first)
            x = rows[own, j, None].astype(np.float64)
            base = sizes[j] + first
            rising = gammaln(x - first + base) - gammaln(base) - (x - first) * np.log(base)
            found = line[j, 0] + line[j, 1] * x + 2 * (gammaln(x + 1) - rising)
            terms[b, own] += found.astype(terms.dtype)


def rising_moments(rows, edges, responsibilities, offsets, sizes, sums, n_threads):
    """Derivatives by ``log r`` of ``log Gamma(x + r) / Gamma(r + e)``, by the edge e below x.

    Over the rows whose count x lies from ``edges[p]`` on and below the next one:
    ``sums[j, p, 0, k] += gamma_mk``, ``sums[j, p, 1, k] += gamma_mk sum_i r / (r + i)`` and
    ``sums[j, p, 2, k] += gamma_mk sum_i r i / (r + i)^2``, i from ``edges[p]`` to x - 1. These are
    ``r (psi(x + r) - psi(e + r))``, and that less ``r^2 (psi'(e + r) - psi'(x + r))``.
    """
    for b, block in _blocks(offsets):
        shares = responsibilities[b if len(responsibilities) > 1 else 0].astype(np.float64)
        for j in range(block.start, block.stop):
            bins = np.searchsorted(edges, rows[:, j], side="right") - 1
            bins[np.isnan(rows[:, j])] = -1
            for p, first in enumerate(edges):
                own = np.flatnonzero(bins == p)
                x, size = rows[own, j, None].astype(np.float64), sizes[j]
                slope = size * (digamma(x + size) - digamma(first + size))
                square = size**2 * (polygamma(1, first + size) - polygamma(1, x + size))
                for f, found in enumerate((np.ones_like(slope), slope, slope - square)):
                    sums[j, p, f] += (shares[own] * found).sum(axis=0)


STEP = 1e-30


def curves(
    code, phi, first, times, first_dose, dose_times, amounts, durations, found, slopes, n_threads
):
    """Concentrations (chains, N) in one or two compartments, and derivatives (chains, N, m).

    Parameters are logarithms: ka with `ORAL`; cl and v, or cl and ke with `BY_CL_AND_KE`, or v and
    ke with `BY_V_AND_KE`, or cl, v1, q and v2 with `TWO`; the lag of absorption with `LAG`. Doses
    ``first_dose[i]`` to ``first_dose[i + 1]`` are those of individual i: of an amount at a time, at
    once or over a duration; they go into the depot with `ORAL`, else into the first compartment. A
    dose at the time of a row does not count yet. ``n_threads`` has no effect.
    """
    for c, i in np.ndindex(phi.shape[:2]):
        given = slice(first_dose[i], first_dose[i + 1])
        doses = (dose_times[given], amounts[given], durations[given])
        for row in range(first[i], first[i + 1]):
            found[c, row] = _at(code, phi[c, i].astype(complex), times[row], *doses).real
            for j in range(phi.shape[2] if len(slopes) else 0):
                moved = phi[c, i] + 1j * STEP * (np.arange(phi.shape[2]) == j)
                slopes[c, row, j] = _at(code, moved, times[row], *doses).imag / STEP


def _exponential(matrix):
    """Exponential of a small matrix, by squares of that of a part of it.

    SciPy's loses half of the digits where rates of a triangular matrix are close.
    """
    halvings = max(0, int(np.frexp(np.abs(matrix).max())[1]) + 3)
    part = matrix / 2.0**halvings
    found = term = np.eye(len(matrix), dtype=complex)
    for order in range(1, 18):
        term = term @ part / order
        found = found + term
    for _ in range(halvings):
        found = found @ found
    return found


def _at(code, phi, t, starts, amounts, durations):
    """Concentration of one individual at one time."""
    oral = code & ORAL
    rest = np.exp(phi[oral:])
    lag = rest[-1] if code & LAG else 0.0
    if code & TWO:
        v, k, k12, k21 = rest[1], rest[0] / rest[1], rest[2] / rest[1], rest[2] / rest[3]
    elif code & BY_V_AND_KE:
        v, k, k12, k21 = rest[0], rest[1], 0.0, 0.0
    elif code & BY_CL_AND_KE:
        v, k, k12, k21 = rest[0] / rest[1], rest[1], 0.0, 0.0
    else:
        v, k, k12, k21 = rest[1], rest[0] / rest[1], 0.0, 0.0
    ka = np.exp(phi[0]) if oral else 0.0
    # A last state that is 1 while a dose runs in.
    flows = np.zeros((4, 4), dtype=complex)
    flows[:3, :3] = [[-ka, 0, 0], [ka, -k - k12, k21], [0, k12, -k21]]
    into = 0 if oral else 1
    total = 0j
    for start, amount, duration in zip(starts, amounts, durations, strict=True):
        passed = t - start - lag
        if passed.real <= 0:
            continue
        state = np.zeros(4, dtype=complex)
        if duration > 0:
            running = flows.copy()
            running[into, 3] = amount / duration
            while_running = passed if passed.real < duration else duration
            state = _exponential(running * while_running)[:, 3]
            passed = passed - while_running
            state[3] = 0.0
        else:
            state[into] = amount
        total += (_exponential(flows * passed) @ state)[1]
    return complex(total / v)


class _Population:
    """Latents that are normal without rows."""

    def population(self):
        """Mean (n, q), precision and root of the covariance of latents without rows."""
        return self.mean, self.precision, np.linalg.cholesky(np.linalg.inv(self.precision))


class Lines(_Population):
    """``-(z - m)^T P (z - m) / 2 - (z - own)^T cross (z - own) / (2 variance)``."""

    def __init__(self, mean, precision, own, cross, variance):
        self.mean, self.precision = mean, precision
        self.own, self.cross, self.variance = own, cross, variance

    def density(self, z, values, slopes):
        """Fill the log-density (chains, n) and its gradient (chains, n, q)."""
        prior = np.einsum("ij,cnj->cni", self.precision, z - self.mean)
        rows = np.einsum("nij,cnj->cni", self.cross, z - self.own) / self.variance
        found = -0.5 * (prior * (z - self.mean) + rows * (z - self.own)).sum(axis=-1)
        values[...] = np.where(np.isfinite(found), found, -np.inf)
        slopes[...] = -prior - rows


class Curves(_Population):
    """Rows about ``f``, of laws 0 normal, 1 log-normal, 2 Bernoulli (logit f), 3 Poisson (log f).

    Normal rows have the variance ``a^2 + b^2 f^2``, logarithms of log-normal ones ``a^2``.
    """

    def __init__(
        self,
        mean,
        precision,
        code,
        base,
        places,
        first,
        times,
        columns,
        values,
        outcomes,
        censored,
        kinds,
        noise,
        first_dose,
        dose_times,
        amounts,
        durations,
    ):
        self.mean, self.precision, self.code, self.base = mean, precision, code, base
        self.places, self.first, self.times, self.columns = places, first, times, columns
        self.values, self.censored = values, censored
        self.kinds, (self.a, self.b) = kinds[outcomes], noise[outcomes].T
        self.doses = (first_dose, dose_times, amounts, durations)

    def density(self, z, values, slopes):
        """Fill the log-density (chains, n) and its gradient (chains, n, q)."""
        phi = np.repeat(self.base[None], len(z), axis=0)
        phi[..., self.places] = z
        with np.errstate(all="ignore"):
            f, bends = self._predict(phi)
            each, weight = self._rows(f)
            prior = np.einsum("ij,cnj->cni", self.precision, z - self.mean)
            found = np.add.reduceat(each, self.first[:-1], axis=1)
            found = found - 0.5 * (prior * (z - self.mean)).sum(axis=-1)
            added = np.add.reduceat(weight[..., None] * bends, self.first[:-1], axis=1)
        values[...] = np.where(np.isfinite(found), found, -np.inf)
        slopes[...] = added[..., self.places] - prior

    def _predict(self, phi):
        """Predictions (chains, N) and their derivatives (chains, N, m) of parameters."""
        of = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        if self.code < 0:
            return (self.columns * phi[:, of]).sum(axis=-1), self.columns[None]
        found = np.empty((len(phi), len(of)))
        slopes = np.empty((*found.shape, phi.shape[2]))
        curves(self.code, phi, self.first, self.times, *self.doses, found, slopes, 1)
        return found, slopes

    def _rows(self, f):
        """Log-density of rows (chains, N), and its derivative in the predictions."""
        y, a, b = self.values, self.a, self.b
        variance = np.where(self.kinds == 1, a**2, a**2 + (b * f) ** 2)
        sd = np.sqrt(variance)
        u = np.where(self.kinds == 1, np.log(y / f), y - f) / sd
        bend = np.where(self.kinds == 1, 0.0, b**2 * f / variance)
        slope = np.where(self.kinds == 1, -1 / (a * f), -1 / sd - u * bend)
        each, weight = -0.5 * u**2 - np.log(sd), -u * slope - bend
        side = self.censored.astype(np.float64)
        tail = log_ndtr(side * u)
        held = side * slope * np.exp(-0.5 * u**2 - tail) / np.sqrt(2 * np.pi)
        each, weight = np.where(side, tail, each), np.where(side, held, weight)
        choose = [self.kinds == 2, self.kinds == 3]
        each = np.select(choose, [y * f - np.logaddexp(0, f), y * f - np.exp(f)], each)
        return each, np.select(choose, [y - expit(f), y - np.exp(f)], weight)


MASK = (1 << 64) - 1


def _stir(word):
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def _draw(stream, place):
    return _stir((stream + (place + 1) * 0x9E3779B97F4A7C15) & MASK)


def _uniform(stream, place):
    return ((_draw(stream, place) >> 11) + 0.5) * 2.0**-53


def _log_gamma(shape, stream):
    """Logarithm of a gamma number: ``d v`` with ``v = (1 + x / sqrt(9 d))^3``, ``d = a - 1/3``."""
    more = 0.0
    if shape < 1:
        more = math.log(_uniform(stream, 0)) / shape
        shape += 1
    d = shape - 1 / 3
    place = 1
    while True:
        x = float(ndtri(_uniform(stream, place)))
        v = 1 + x / math.sqrt(9 * d)
        chance = math.log(_uniform(stream, place + 1))
        if v > 0 and chance < 0.5 * x**2 + d - d * v**3 + d * math.log(v**3):
            return math.log(d * v**3) + more
        place += 2


def sweep_topics(first, words, counts, topics, alpha, keys, z, n_threads):
    """Gibbs sweeps: a topic of each word with odds ``theta_k phi_kv``, then ``theta`` given these.

    ``theta`` is Dirichlet with parameters ``alpha + n_k``, as gamma numbers over their sum; z has
    the gamma numbers' logarithms, moved to a mean that is standard normal.
    """
    n_chains, n, K = z.shape
    for sweep in range(len(keys) // 2):
        for c in range(n_chains):
            for i in range(n):
                rows = slice(first[i], first[i + 1])
                own = np.repeat(words[rows], counts[rows].astype(np.intp))
                below = np.cumsum(softmax(z[c, i], axis=-1) * topics[own], axis=1)
                stream = _stir(int(keys[2 * sweep, i]))
                held = np.zeros(K)
                for place, line in enumerate(below):
                    u = line[-1] * _uniform(stream, c * len(own) + place)
                    held[min(int((line <= u).sum()), K - 1)] += 1
                stream = _stir(int(keys[2 * sweep + 1, i]))
                for k in range(K):
                    z[c, i, k] = _log_gamma(alpha + held[k], _draw(stream, c * K + k))
                z[c, i] -= z[c, i].mean() - ndtri(_uniform(_stir((stream + 1) & MASK), c))


def means_of_topics(first, documents, counts, topics, shares, groups, weights, out, n_threads):
    """Add ``w_i n_iv theta_ik phi_kv / sum_j theta_ij phi_jv``, means over chains, to (G, K, V)."""
    words = np.repeat(np.arange(len(first) - 1), np.diff(first))
    for v, i, count in zip(words.tolist(), documents.tolist(), counts.tolist(), strict=True):
        if groups[i] >= 0:
            odds = shares[:, i] * topics[v]
            each = odds / odds.sum(axis=1, keepdims=True)
            out[groups[i], :, v] += weights[i] * count * each.mean(axis=0)


def density_of_topics(first, words, counts, topics, alpha, z, value, slope, n_threads):
    """``sum_v n_v log sum_k theta_k phi_kv + log Dirichlet(theta) - m^2 / 2``, m the mean of z.

    The Dirichlet density is that of log theta: ``alpha sum_k log theta_k`` and its constant.
    """
    shares = softmax(z, axis=-1)
    for i in range(z.shape[1]):
        rows = slice(first[i], first[i + 1])
        odds = shares[:, i, None] * topics[words[rows]]
        run = odds.sum(axis=-1)
        value[:, i] = np.log(run) @ counts[rows]
        hits = (odds / run[..., None] * counts[rows][:, None]).sum(axis=1)
        slope[:, i] = hits - counts[rows].sum() * shares[:, i]
    K, middle = z.shape[-1], z.mean(axis=-1)
    most = z.max(axis=-1)
    logs = z - (most + np.log(np.exp(z - most[..., None]).sum(axis=-1)))[..., None]
    value += alpha * logs.sum(axis=-1) + gammaln(K * alpha) - K * gammaln(alpha) - middle**2 / 2
    slope += alpha - K * alpha * shares - middle[..., None] / K


def bound_of_topics(first, words, counts, topics, alpha, n_iter, tol, gamma, value, n_threads):
    """Blei, Ng and Jordan 2003: ``gamma_k = alpha + e_k sum_v n_v phi_kv / sum_j e_j phi_jv``.

    ``e_k = exp(psi(gamma_k) - psi(sum_j gamma_j))``; the bound is ``sum_v n_v log sum_k e_k
    phi_kv`` less the divergence of the law of proportions from the one that the model begins with.
    """
    K = gamma.shape[1]
    for i in range(len(gamma)):
        rows = slice(first[i], first[i + 1])
        own, n = topics[words[rows]], counts[rows]
        gamma[i] = alpha + n.sum() / K
        middle = psi(alpha * K + n.sum())
        for _ in range(n_iter):
            e = np.exp(psi(gamma[i]) - middle)
            fresh = alpha + e * ((n / (own @ e)) @ own)
            change = np.abs(fresh - gamma[i]).max()
            gamma[i] = fresh
            if change < tol:
                break
        logs = psi(gamma[i]) - middle
        value[i] = n @ np.log(own @ np.exp(logs)) + ((alpha - gamma[i]) * logs).sum()
        value[i] += (gammaln(gamma[i]) - gammaln(alpha)).sum()
        value[i] += gammaln(K * alpha) - gammaln(alpha * K + n.sum())
