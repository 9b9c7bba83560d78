"""Covariates on mixing weights: EM as it is written in NumPy, over agents as pooled."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal

from vpem import connect, fit_vpem, logit_coefficients, logit_errors, make_graph
from vpem._core.threads import one_blas_thread
from vpem.errors import InputError, NotConvergedWarning
from vpem.files.models import model_as_json, read_model
from vpem.fits.spread import fit_spread, own_columns
from vpem.network.partition import from_lists
from vpem.sums.connect import spread
from vpem.terms.families.kinds import Kinds

from .thread_engine import together

KINDS = Kinds(("gaussian",) * 3 + ("covariate",) * 2)
HUBS = [[0, 1], [2, 3, 4]]
K = 3


def drawn(n_rows=500, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n_rows, 2)) * [1, 5] + [2, -3]
    eta = np.stack([np.zeros(n_rows), 0.8 * z[:, 0] - 1.1, 0.2 * z[:, 1] + 0.3], axis=1)
    labels = (softmax(eta, axis=1).cumsum(axis=1) < rng.random((n_rows, 1))).sum(axis=1)
    means = np.array([[0, 0, 0], [1.5, 0, 1], [0, 2, -1]])[labels]
    return np.hstack([rng.normal(size=(n_rows, 3)) + means, z])


def fitted(X, hubs=HUBS, **options):
    options = {"init": [0, 1, 2], "tol": 0, "max_iter": 12, "reg_covar": 0.0} | options
    graph = make_graph("star", len(hubs))
    net = connect(graph, from_lists(hubs, X.shape[1]), hops=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        return fit_vpem(X, net, n_components=K, kinds=KINDS, **options)


def densities(means, covariances, Y):
    pairs = zip(means, covariances, strict=True)
    return np.stack([multivariate_normal.logpdf(Y, m, c) for m, c in pairs], axis=1)


def logit(shares, x, weights, at):
    """Newton steps to the multinomial logit of responsibilities (M, K), first as reference."""
    k, p = at.shape
    for _ in range(30):
        chances = softmax(x @ at.T, axis=1)
        gradient = ((shares - chances) * weights[:, None]).T @ x
        blocks = np.einsum("i,ik,il->ikl", weights, chances, -chances)
        blocks[:, range(k), range(k)] += weights[:, None] * chances
        information = np.einsum("ikl,ip,iq->kplq", blocks[:, 1:, 1:], x, x)
        size = (k - 1) * p
        step = np.linalg.solve(information.reshape(size, size), gradient[1:].ravel())
        at = at + np.vstack([np.zeros(p), step.reshape(k - 1, p)])
    return at


def textbook(X, start, n_iter, weights):
    """EM with pi_k(z) in NumPy: log-likelihood of each E-step, coefficients."""
    Y, x = X[:, :3], np.column_stack([np.ones(len(X)), X[:, 3:]])
    means, at = start.assembled_means[:, :3], np.zeros((K, 3))
    covariances = start.parts[0].core.assembled_covariances
    history = []
    mask = np.zeros((3, 3))
    mask[:2, :2] = mask[2, 2] = 1
    for _ in range(n_iter):
        scores = densities(means, covariances, Y) + x @ at.T
        scores -= logsumexp(x @ at.T, axis=1, keepdims=True)
        history.append(weights @ logsumexp(scores, axis=1))
        shares = softmax(scores, axis=1)
        weighted = shares * weights[:, None]
        n = weighted.sum(axis=0)
        means = weighted.T @ Y / n[:, None]
        apart = Y - means[:, None]
        covariances = np.einsum("ik,kij,kil->kjl", weighted, apart, apart) / n[:, None, None] * mask
        at = logit(shares, x, weights, at)
    return np.array(history), at


@pytest.mark.parametrize("weighed", [False, True])
def test_fits_are_those_of_em_written_in_numpy(weighed):
    X = drawn()
    weights = np.random.default_rng(1).uniform(0.5, 2, len(X)) if weighed else np.ones(len(X))
    given = {"sample_weight": weights} if weighed else {}
    start = fitted(X, max_iter=0, **given).mixture
    fit = fitted(X, **given)
    history, at = textbook(X, start, 12, weights)
    np.testing.assert_allclose(fit.history[:, 0], history, rtol=1e-10)
    np.testing.assert_allclose(logit_coefficients(fit.mixture), at, atol=1e-8)
    assert fit.mixture.n_parameters == (K - 1) * 3 + K * 3 + K * (3 + 1)


def test_of_several_hubs_or_missing_they_are_refused():
    X = drawn(60)
    with pytest.raises(InputError, match="several hubs"):
        fit_vpem(
            X,
            connect(make_graph("star", 2), from_lists([[0, 1, 3], [2, 4]], 5), hops=0),
            n_components=2,
            kinds=KINDS,
        )
    with pytest.raises(InputError, match="all columns are covariates"):
        fit_vpem(
            X[:, :2], connect(make_graph("star", 1), from_lists([[0, 1]], 2), hops=0),
            n_components=2, kinds=Kinds(("covariate",) * 2),
        )  # fmt: skip
    X[3, 4] = np.nan
    with pytest.raises(InputError, match="covariate has missing"):
        fit_vpem(
            X,
            connect(make_graph("star", 2), from_lists(HUBS, 5), hops=0),
            n_components=2,
            kinds=KINDS,
            missing="marginalize",
        )


def latent_classes(n_rows=1500):
    rng = np.random.default_rng(5)
    z = rng.normal(size=(n_rows, 2))
    eta = np.column_stack([np.zeros(n_rows), 0.4 + z[:, 0], -0.3 - 0.8 * z[:, 1]])
    labels = (softmax(eta, axis=1).cumsum(axis=1) < rng.random((n_rows, 1))).sum(axis=1)
    rows = [[0.9, 0.8, 0.1, 0.2, 0.85, 0.15], [0.1, 0.2, 0.9, 0.85, 0.5, 0.1]]
    chances = np.array([*rows, [0.8, 0.15, 0.7, 0.1, 0.1, 0.9]])
    ones = (rng.random((n_rows, 6)) < chances[labels]).astype(float)
    return np.hstack([ones, z])


CLASSES = Kinds(("bernoulli",) * 6 + ("covariate",) * 2)


def test_latent_classes_are_those_of_flexmix():
    """R: flexmix(Y ~ 1, model = FLXMCmvbinary(), concomitant = FLXPmultinom(~ z + w))."""
    X = latent_classes()
    net = connect(make_graph("star", 3), from_lists([[0, 1, 2], [3, 4, 5], [6, 7]], 8), hops=0)
    fit = fit_vpem(X, net, n_components=3, kinds=CLASSES, tol=1e-13, max_iter=1000, seed=0)
    mixture = fit.mixture
    assert fit.log_likelihood * len(X) == pytest.approx(-4900.446434897, rel=1e-9)
    assert mixture.n_parameters == 24
    wanted = [[0.3029257726, 1.0104324735, 0.04673319462]]
    wanted += [[-0.5279454764, 0.1470396582, -0.84645201933]]
    np.testing.assert_allclose(logit_coefficients(mixture)[1:], wanted, atol=1e-5)
    # What the model says of rows is what the fit found, and so after it was moved to a file.
    assert mixture.score_samples(X).mean() == pytest.approx(fit.log_likelihood, rel=1e-9)
    # The information is minus the second differences of the log-likelihood.
    part, step = mixture.parts[-1], 1e-3

    def value(*moves):
        tables = {name: table.copy() for name, table in part.tables.items()}
        for (k, j), size in moves:
            if j:
                tables["coefficients"][k, j - 1] += size
            else:
                tables["intercepts"][k] += size
        parts = (*mixture.parts[:-1], replace(part, tables=tables))
        return replace(mixture, parts=parts).score_samples(X).sum()

    cells = [(k, j) for k in (1, 2) for j in range(3)]
    signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    bends = [
        [sum(a * b * value((i, a * step), (j, b * step)) for a, b in signs) for j in cells]
        for i in cells
    ]
    information = -np.array(bends) / (4 * step**2)
    errors = np.sqrt(np.diagonal(np.linalg.inv(information))).reshape(2, 3)
    found = logit_errors(mixture, X)
    assert found[0].tolist() == [0, 0, 0]
    np.testing.assert_allclose(found[1:], errors, rtol=1e-4)


def test_over_processes_it_is_one_process():
    X = latent_classes(200)
    partition = from_lists([[0, 1, 2], [3, 4, 5], [6, 7]], 8)
    net = connect(make_graph("star", 3), partition, hops=0)
    options = {"n_components": 3, "tol": 0, "max_iter": 5, "init": [0, 1, 2]}

    def run(engine):
        ranked = spread(net, engine)
        columns = own_columns(ranked)
        own = X[:, columns] if len(columns) else None
        kinds = CLASSES.take_features(columns) if len(columns) else None
        return fit_spread(own, ranked, kinds=kinds, **options)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with one_blas_thread():
            found = together(3, run)[0]
        wanted = fit_vpem(X, net, kinds=CLASSES, **options)
    np.testing.assert_allclose(found.history, wanted.history, rtol=1e-12)
    np.testing.assert_allclose(
        logit_coefficients(found.mixture), logit_coefficients(wanted.mixture), rtol=1e-8
    )
    assert found.communication == wanted.communication


def test_rows_are_not_drawn_and_files_keep_coefficients(tmp_path):
    X = drawn(200)
    fit = fitted(X, max_iter=3)
    with pytest.raises(InputError, match="covariates have no distribution"):
        fit.mixture.sample(3, np.random.default_rng(0))
    fit.save(tmp_path / "m.h5")
    model = read_model(tmp_path / "m.h5")
    again = logit_coefficients(model.mixture)
    np.testing.assert_array_equal(again, logit_coefficients(fit.mixture))
    assert model_as_json(model)["covariates"]["coefficients"] == again.tolist()
    for option in ({"accelerate": "squarem"}, {"batch_size": 50}):
        with pytest.raises(InputError, match="coefficients of covariates"):
            fitted(X, **option)
    with pytest.raises(InputError, match="need all of its covariates"):
        model.mixture.marginal([0, 1, 2, 3])
