"""Fits of features of several families: what they must equal, over every sum and every way."""

import warnings

import numpy as np
import pytest
from scipy import stats

from vpem import connect, fit_vpem, make_graph
from vpem.errors import VpemWarning
from vpem.network.holdings import from_lists
from vpem.terms.families.kinds import Kinds

from .tables import each

NAMES = ("gaussian", "categorical", "gaussian", "poisson", "gaussian", "categorical", "bernoulli")
HELD = [[0, 1], [2, 3, 4], [5, 6]]
LEVELS = 4


def mixed(seed=0, n_samples=400):
    """Overlapping rows of three clusters."""
    rng = np.random.default_rng(seed)
    z = rng.integers(3, size=n_samples)
    shares = rng.dirichlet(np.full(LEVELS, 2.0), size=(3, 2))
    columns = [
        rng.normal(size=n_samples) + 1.2 * z,
        [rng.choice(LEVELS, p=shares[k, 0]) for k in z],
        rng.normal(size=n_samples) - z,
        rng.poisson(np.array([1.0, 4.0, 9.0])[z]),
        rng.normal(size=n_samples) + 0.5 * z,
        [rng.choice(LEVELS, p=shares[k, 1]) for k in z],
        rng.random(n_samples) < np.array([0.2, 0.5, 0.7])[z],
    ]
    return np.column_stack(columns).astype(float)


def star(held=HELD):
    width = sum(map(len, held))
    return connect(make_graph("star", len(held)), from_lists(held, width), hops=0)


def fit(X, network=None, **how):
    how = {"n_components": 3, "init": [3, 77, 120], "max_iter": 6, "tol": 0.0, **how}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        kinds = how.pop("kinds", Kinds(NAMES, (0, LEVELS, 0, 0, 0, LEVELS, 0)))
        return fit_vpem(X, star() if network is None else network, kinds=kinds, **how)


def textbook(X, start, n_iter, weights):
    """EM in NumPy from a start: log-likelihoods."""
    tables = {part.family: part for part in start.parts}
    numbers, codes = [0, 2, 4], [1, 5]
    means = tables["gaussian"].core.assembled_means.copy()
    covariances = tables["gaussian"].core.assembled_covariances.copy()
    levels = np.split(tables["categorical"].tables["probabilities"], 2, axis=1)
    (zero_one,) = tables["bernoulli"].tables.values()
    (rates,) = tables["poisson"].tables.values()
    zero_one, rates, shares, found = zero_one[:, 0], rates[:, 0], np.full(3, 1 / 3), []
    for _ in range(n_iter):
        logs = np.tile(np.log(shares), (len(X), 1))
        for k in range(3):
            for own in ([0], [1, 2]):
                law = stats.multivariate_normal(means[k][own], covariances[k][np.ix_(own, own)])
                logs[:, k] += law.logpdf(X[:, numbers][:, own])
            for j, table in zip(codes, levels, strict=True):
                logs[:, k] += np.log(table[k, X[:, j].astype(int)])
            logs[:, k] += stats.poisson(rates[k]).logpmf(X[:, 3])
            logs[:, k] += stats.bernoulli(zero_one[k]).logpmf(X[:, 6])
        top = np.logaddexp.reduce(logs, axis=1)
        found.append(weights @ top)
        g = weights[:, None] * np.exp(logs - top[:, None])
        n = g.sum(axis=0)
        shares, means = n / n.sum(), g.T @ X[:, numbers] / n[:, None]
        for k in range(3):
            off = X[:, numbers] - means[k]
            covariances[k] = (g[:, k, None] * off).T @ off / n[k] + 1e-6 * np.eye(3)
        for j, table in zip(codes, levels, strict=True):
            table[:] = (g.T @ (X[:, [j]] == np.arange(LEVELS))) / n[:, None]
        rates, zero_one = g.T @ X[:, 3] / n, g.T @ X[:, 6] / n
    return np.array(found)


@each("weighted", [False, True])
def test_exact_sum_is_textbook_em(weighted):
    X = mixed()
    weights = np.random.default_rng(1).integers(1, 4, len(X)).astype(float)
    weights = weights if weighted else np.ones(len(X))
    given = {"sample_weight": weights} if weighted else {}
    start = fit(X, max_iter=0, **given).mixture
    found = fit(X, max_iter=8, **given)
    wanted = textbook(X, start, 8, weights)
    np.testing.assert_allclose(found.history[:, 0], wanted, rtol=1e-12)
    assert (np.diff(wanted) > 0).all()
    scores = found.mixture.score_samples(X)
    assert found.log_likelihood == pytest.approx(np.average(scores, weights=weights), rel=1e-12)
