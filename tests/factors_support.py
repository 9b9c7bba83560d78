"""EM of a mixture of factor analysers with block-diagonal noise, all features in one place."""

import numpy as np
from scipy.special import logsumexp


def projected(noise, blocks, kind, shares):
    """Noise (K, d, d) of unexplained second moments, of the structure that a covariance type has.

    It is the M-step: the mean over what parameters are shared by.
    """
    if kind.startswith("tied"):
        noise = np.broadcast_to(np.tensordot(shares, noise, axes=1), noise.shape)
    found = np.zeros_like(noise)
    for own in blocks:
        place = np.ix_(range(len(noise)), own, own)
        part = noise[place]
        if "diag" in kind or "spherical" in kind:
            part = part * np.eye(len(own))
        if "spherical" in kind:
            mean = np.trace(part, axis1=1, axis2=2) / max(len(own), 1)
            part = mean[:, None, None] * np.eye(len(own))
        found[place] = part
    return found


def textbook(X, blocks, kind, start, n_iter, sample_weight=None):
    """Ghahramani and Hinton (1996): log-likelihoods before each step, and parameters at the end.

    ``start`` is (weights, means, noise (K, d, d), loadings (K, d, q)).
    """
    weights, means, noise, loadings = (np.array(part) for part in start)
    (k, d, q), history = loadings.shape, []
    given = np.ones(len(X)) if sample_weight is None else sample_weight
    for _ in range(n_iter):
        logs, expected, spread = np.empty((len(X), k)), [], []
        for j in range(k):
            covariance = loadings[j] @ loadings[j].T + noise[j]
            off = X - means[j]
            solved = np.linalg.solve(covariance, off.T).T
            log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
            logs[:, j] = np.log(weights[j]) - 0.5 * ((off * solved).sum(axis=1) + log_det)
            expected.append(solved @ loadings[j])
            back = np.linalg.solve(covariance, loadings[j])
            spread.append(np.eye(q) - loadings[j].T @ back)
        totals = logsumexp(logs, axis=1)
        history.append(given @ totals)
        shares = np.exp(logs - totals[:, None]) * given[:, None]
        counts = shares.sum(axis=0)
        weights, unexplained = counts / counts.sum(), np.empty((k, d, d))
        for j in range(k):
            regressors = np.column_stack([expected[j], np.ones(len(X))])
            squares = (regressors * shares[:, [j]]).T @ regressors
            squares[:q, :q] += counts[j] * spread[j]
            crossed = (X * shares[:, [j]]).T @ regressors
            found = crossed @ np.linalg.inv(squares)
            loadings[j], means[j] = found[:, :q], found[:, q]
            second = (X * shares[:, [j]]).T @ X - found @ crossed.T
            unexplained[j] = second / counts[j]
        noise = projected(unexplained, blocks, kind, weights)
    return np.array(history), (weights, means, noise, loadings)
