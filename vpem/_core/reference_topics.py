"""Twins in NumPy of the kernels of topics, which take the same arguments."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, ndtri, psi

__all__ = ["bound_of_topics", "density_of_topics", "means_of_topics", "sweep_topics"]

Vector = NDArray[np.float64]
Places = NDArray[np.intp]
MASK = (1 << 64) - 1


def _stir(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def _draw(stream: int, place: int) -> int:
    return _stir((stream + (place + 1) * 0x9E3779B97F4A7C15) & MASK)


def _uniform(stream: int, place: int) -> float:
    return ((_draw(stream, place) >> 11) + 0.5) * 2.0**-53


def _log_gamma(shape: float, stream: int) -> float:
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


def shares_of(z: Vector) -> Vector:
    """Proportions (..., K) of topics: ``exp(z_k) / sum_j exp(z_j)``."""
    odds = np.exp(z - z.max(axis=-1, keepdims=True))
    found: Vector = odds / odds.sum(axis=-1, keepdims=True)
    return found


def sweep_topics(
    first: Places,
    words: Places,
    counts: Vector,
    topics: Vector,
    alpha: float,
    keys: NDArray[np.uint64],
    z: Vector,
    n_threads: int,
) -> None:
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
                below = np.cumsum(shares_of(z[c, i]) * topics[own], axis=1)
                stream = _stir(int(keys[2 * sweep, i]))
                held = np.zeros(K)
                for place, line in enumerate(below):
                    u = line[-1] * _uniform(stream, c * len(own) + place)
                    held[min(int((line <= u).sum()), K - 1)] += 1
                stream = _stir(int(keys[2 * sweep + 1, i]))
                for k in range(K):
                    z[c, i, k] = _log_gamma(alpha + held[k], _draw(stream, c * K + k))
                z[c, i] -= z[c, i].mean() - ndtri(_uniform(_stir((stream + 1) & MASK), c))


def means_of_topics(
    first: Places,
    documents: Places,
    counts: Vector,
    topics: Vector,
    shares: Vector,
    groups: Places,
    weights: Vector,
    out: Vector,
    n_threads: int,
) -> None:
    """Add ``w_i n_iv theta_ik phi_kv / sum_j theta_ij phi_jv``, means over chains, to (G, K, V)."""
    words = np.repeat(np.arange(len(first) - 1), np.diff(first))
    for v, i, count in zip(words.tolist(), documents.tolist(), counts.tolist(), strict=True):
        if groups[i] >= 0:
            odds = shares[:, i] * topics[v]
            each = odds / odds.sum(axis=1, keepdims=True)
            out[groups[i], :, v] += weights[i] * count * each.mean(axis=0)


def density_of_topics(
    first: Places,
    words: Places,
    counts: Vector,
    topics: Vector,
    alpha: float,
    z: Vector,
    value: Vector,
    slope: Vector,
    n_threads: int,
) -> None:
    """``sum_v n_v log sum_k theta_k phi_kv + log Dirichlet(theta) - m^2 / 2``, m the mean of z.

    The Dirichlet law is of the logarithms of theta: ``alpha sum_k log theta_k`` and its constant.
    """
    shares = shares_of(z)
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


def bound_of_topics(
    first: Places,
    words: Places,
    counts: Vector,
    topics: Vector,
    alpha: float,
    n_iter: int,
    tol: float,
    gamma: Vector,
    value: Vector,
    n_threads: int,
) -> None:
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
