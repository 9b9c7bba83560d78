"""Priors: variational posteriors and modes, as others find them, never lower, alike by all ways."""

import shutil
import subprocess
from functools import partial

import numpy as np
import pytest
from scipy.special import betaln, digamma, gammaln, logsumexp
from sklearn.mixture import BayesianGaussianMixture

import vpem
from vpem.errors import InputError
from vpem.files.models import Model, read_model, write_model
from vpem.fits.vpem import fit_vpem
from vpem.network.graph import make_graph
from vpem.network.partition import Workers, from_lists
from vpem.settings import COVARIANCE_TYPES
from vpem.sums.connect import connect, connect_workers

from .cli_support import done, run
from .missing_support import dense
from .resume_support import check_resumes
from .tables import each, over

pytestmark = pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")

PRIORS = ("dirichlet_process", "dirichlet_distribution")
PROCESS, MAP = PRIORS[0], "map"
K, D = 6, 4
FEW = 3  # components of modes, which do not come to be without rows
STARTS = {PROCESS: [1, 11, 22, 31, 41, 52], MAP: [1, 22, 41]}
"""Rows that weigh 1 or 2 where rows weigh 0, 1, 2, 0, ..."""
MISSING = {"missing": "marginalize"}
NAMES = tuple("abcd")


@pytest.fixture(scope="module")
def X():
    """Three clusters that overlap, of features that depend on each other."""
    rng = np.random.default_rng(5)
    parts = [
        rng.normal(size=(n, D)) @ rng.normal(size=(D, D)) + 1.5 * rng.normal(size=D)
        for n in (70, 50, 30)
    ]
    return np.concatenate(parts)


def holed(X):
    rng = np.random.default_rng(2)
    X = np.where(rng.random(X.shape) < 0.25, np.nan, X)
    return X[~np.isnan(X).all(axis=1)]


def network_of(n_agents, topology="star", **how):
    parts = [part.tolist() for part in np.array_split(np.arange(D), n_agents)]
    return connect(make_graph(topology, n_agents), from_lists(parts, D), **how)


def given_of(prior):
    components = FEW if prior == MAP else K
    return {"n_components": components, "weight_concentration_prior_type": prior, "tol": 0.0}


def fit(X, n_agents=1, prior=PROCESS, *, topology="star", how=None, **changes):
    """Five iterations, without a floor below covariances."""
    network = network_of(n_agents, topology, **(how or {}))
    return fit_vpem(X, network, **given_of(prior) | {"max_iter": 5, "reg_covar": 0.0} | changes)


mode = partial(fit, prior=MAP)


def rows_fit(X, prior, kind="full", topology="star", **changes):
    """The same, of rows that three workers hold."""
    runs = [part.tolist() for part in np.array_split(np.arange(len(X)), 3)]
    workers, rounds = Workers(tuple(map(np.array, runs)), NAMES[:3]), {}
    if topology != "star":
        rounds = {"n_rounds": 80}
    network = connect_workers(make_graph(topology, 3), **rounds)
    given = {"max_iter": 5, "init": STARTS[prior], "covariance_type": kind}
    return vpem.fit_em(X, workers, network, **given_of(prior) | given | changes)


def alike(one, other):
    """To the bit."""
    assert np.array_equal(one.history, other.history)
    assert (one.log_likelihood, one.log_prior) == (other.log_likelihood, other.log_prior)
    for name, values in one.mixture.arrays().items():
        assert np.array_equal(values, other.mixture.arrays()[name]), name


# ---- variational posteriors ---------------------------------------------------------------------


def constants(model, n_rows):
    """What scikit-learn leaves out of its bound: the normalisers of the prior, and of rows."""
    k, nu, beta = K, model.degrees_of_freedom_prior_, model.mean_precision_prior_
    log_det = {
        "full": lambda p: np.linalg.slogdet(p)[1],
        "tied": lambda p: np.linalg.slogdet(p)[1],
        "spherical": lambda p: D * np.log(p),
    }[model.covariance_type](model.covariance_prior_)
    wishart = 0.5 * nu * (D * np.log(2) - log_det) + gammaln((nu - np.arange(D)) / 2).sum()
    alpha = model.weight_concentration_prior_
    weights = k * betaln(1, alpha)
    if model.weight_concentration_prior_type == "dirichlet_distribution":
        weights = k * gammaln(alpha) - gammaln(k * alpha)
    priors = k * (wishart - 0.5 * D * np.log(beta)) + weights
    return -priors - 0.5 * n_rows * D * np.log(2 * np.pi)


@over(kind=["full", "tied", "spherical"], prior=PRIORS)
def test_one_agent_is_scikit_learn_iteration_by_iteration(X, kind, prior):
    start = fit(X, 1, prior, covariance_type=kind, max_iter=0).mixture
    model = BayesianGaussianMixture(
        n_components=K, covariance_type=kind, weight_concentration_prior_type=prior, reg_covar=0.0
    )
    model._check_parameters(X)
    model._initialize(X, start.predict_proba(X))
    bounds = []
    for _ in range(4):
        _, log_resp = model._e_step(X)
        model._m_step(X, log_resp)
        bounds.append(model._compute_lower_bound(log_resp, 0.0))
    model._set_parameters(model._get_parameters())
    found = fit(X, 1, prior, covariance_type=kind)
    mixture = found.mixture
    same = partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10)
    same(mixture.assembled_weights, model.weights_)
    same(mixture.assembled_means, model.means_)
    same(mixture.assembled_covariances, model.covariances_)
    same(mixture.mean_precisions[0], model.mean_precision_)
    same(mixture.degrees_of_freedom[0], np.atleast_1d(model.degrees_of_freedom_))
    same(np.squeeze(mixture.concentrations), np.squeeze(model.weight_concentration_))
    same(mixture.predict_proba(X), model.predict_proba(X))
    same(mixture.score_samples(X), model.score_samples(X))
    # After an M-step the bound is that of the free energy of batches, here of all rows.
    batches = fit(X, 1, prior, covariance_type=kind, batch_size=len(X))
    free = np.array(batches.free_energy)[-4:] - constants(model, len(X))
    np.testing.assert_allclose(free, np.ravel(bounds), rtol=1e-8)
    same(batches.history, found.history)


def log_wishart(nu, log_det, steps):
    """Logarithm of the normaliser of a Wishart distribution by its inverse scale, without pi."""
    d = len(steps)
    return 0.5 * nu * (log_det - d * np.log(2)) - gammaln((nu - steps) / 2).sum()


def posterior_of_block(own, shares):
    """Normal-Wishart posterior (nu, beta, m, W^-1) of a block's features, and its prior."""
    counts, m0, p = shares.sum(axis=0), own.mean(axis=0), np.atleast_2d(np.cov(own.T))
    beta, mean = 1 + counts, shares.T @ own / counts[:, None]
    inverse = []
    for k in range(K):
        off, away = own - mean[k], mean[k] - m0
        scatter = (shares[:, k, None] * off).T @ off
        inverse.append(p + scatter + counts[k] / beta[k] * np.outer(away, away))
    m = (m0 + counts[:, None] * mean) / beta[:, None]
    return own.shape[1] + counts, beta, m, inverse, m0, p


def expected_of_block(own, nu, beta, m, inverse, m0, p):
    """Expected log-densities (n, K), and the divergence from the prior (Bishop 2006, 10.2)."""
    d, steps, terms, divergence = own.shape[1], np.arange(own.shape[1]), [], 0.0
    for k in range(K):
        w, off, apart = np.linalg.inv(inverse[k]), own - m[k], m[k] - m0
        log_det = np.linalg.slogdet(inverse[k])[1]
        log_lambda = digamma((nu[k] - steps) / 2).sum() + d * np.log(2) - log_det
        squares = d / beta[k] + nu[k] * np.einsum("ij,jk,ik->i", off, w, off)
        terms.append(0.5 * (log_lambda - squares - d * np.log(2 * np.pi)))
        divergence += log_wishart(nu[k], log_det, steps)
        divergence -= log_wishart(float(d), np.linalg.slogdet(p)[1], steps)
        divergence += 0.5 * ((nu[k] - d) * log_lambda - nu[k] * d + nu[k] * np.trace(p @ w))
        divergence += 0.5 * (d / beta[k] - d + d * np.log(beta[k]) + nu[k] * apart @ w @ apart)
    return np.transpose(terms), divergence


def variational_twin(X, groups, shares, n_iter):
    """Variational Bayes with a Wishart a block: posteriors of the blocks, and lower bounds."""
    alpha, bounds = 1.0 / K, []
    for _ in range(n_iter):
        counts = shares.sum(axis=0)
        logs = digamma(alpha + counts) - digamma(1 + len(X))
        bound = gammaln(alpha + counts).sum() - gammaln(1 + len(X)) - K * gammaln(alpha)
        bound, terms = bound - counts @ logs, np.tile(logs, (len(X), 1))
        blocks = [posterior_of_block(X[:, columns], shares) for columns in groups]
        for columns, block in zip(groups, blocks, strict=True):
            own, divergence = expected_of_block(X[:, columns], *block)
            terms, bound = terms + own, bound - divergence
        bounds.append(bound + logsumexp(terms, axis=1).sum())
        shares = np.exp(terms - logsumexp(terms, axis=1, keepdims=True))
    return blocks, np.array(bounds)


@each("n_agents", [2, 4])
def test_a_wishart_a_hub_is_the_twin(X, n_agents):
    own = fit(X, n_agents, PRIORS[1], max_iter=6)
    start = fit(X, n_agents, PRIORS[1], max_iter=0).mixture
    groups = np.array_split(np.arange(D), n_agents)
    blocks, bounds = variational_twin(X, groups, start.predict_proba(X), 6)
    np.testing.assert_allclose(own.history[1:, 0], bounds[:5], rtol=1e-12)
    np.testing.assert_allclose(own.root_log_likelihood[0], bounds[5], rtol=1e-12)
    for b, (nu, beta, m, inverse, *_) in enumerate(blocks):
        _, means, covariances = own.mixture.block(b)
        units = own.mixture.scaling.take_features(groups[b])
        means, squares = units.undo(means), np.outer(units.scale, units.scale)
        np.testing.assert_allclose(own.mixture.degrees_of_freedom[b], nu, rtol=1e-10)
        np.testing.assert_allclose(own.mixture.mean_precisions[b], beta, rtol=1e-10)
        np.testing.assert_allclose(means, m, rtol=1e-10, atol=1e-12)
        found = covariances * squares * nu[:, None, None]
        np.testing.assert_allclose(found, inverse, rtol=1e-10, atol=1e-10)


def test_a_hub_whose_feature_is_missing_has_the_posterior_of_the_rows_that_have_it(X):
    data = X.copy()
    data[::3, 3] = np.nan
    found = fit(data, 4, missing="marginalize", max_iter=8).mixture
    before = fit(data, 4, missing="marginalize", max_iter=7).mixture
    shares = before.predict_proba(data, missing="marginalize")
    there = ~np.isnan(data[:, 3])
    nu, beta, means, *_ = posterior_of_block(data[there][:, 3:], shares[there])
    np.testing.assert_allclose(found.degrees_of_freedom[3], nu, rtol=1e-8)
    np.testing.assert_allclose(found.mean_precisions[3], beta, rtol=1e-8)
    np.testing.assert_allclose(found.assembled_means[:, 3:], means, rtol=1e-7)


@over(
    kind=["diag", "spherical", "tied-diag", "tied-spherical"], how=[{}, {"accelerate": "squarem"}]
)
def test_features_alone_in_their_hubs_may_be_missing_whatever_covariances_are_called(X, kind, how):
    data, full = holed(X), "tied" if kind.startswith("tied") else "full"
    given = {"missing": "marginalize", "n_components": 5, "init": [0, 9, 20, 30, 40]} | how
    one, other = (fit(data, D, covariance_type=name, **given) for name in (kind, full))
    np.testing.assert_allclose(one.history, other.history, rtol=1e-9)
    np.testing.assert_allclose(one.mixture.seen, other.mixture.seen, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(one.mixture.means, other.mixture.means, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@over(
    kind=["full", "tied", "diag", "tied-spherical"], topology=["star", "cycle"],
    how=[{}, {"accelerate": "squarem"}],
)  # fmt: skip
def test_a_hub_without_features_has_the_rows_of_its_root_and_changes_nothing(
    X, kind, topology, how
):
    data = holed(X)
    given = {"missing": "marginalize", "weight_concentration_prior_type": PRIORS[0], "tol": 0.0}
    given |= {"n_components": 4, "init": [0, 9, 20, 30], "covariance_type": kind, "max_iter": 5}
    fits = []
    for features in ([[], [0], [1], [2], [3]], [[0], [1], [2], [3]]):
        network = connect(make_graph(topology, len(features)), from_lists(features, D))
        fits.append(fit_vpem(data, network, **given, **how))
    first, found = fits
    np.testing.assert_array_equal(first.mixture.seen[0], first.mixture.counts[0])
    near = {"rtol": 1e-8 if topology == "star" else 1e-4}
    np.testing.assert_allclose(first.mixture.seen[1:], found.mixture.seen, **near)
    np.testing.assert_allclose(first.log_likelihood, found.log_likelihood, **near)


# ---- modes ------------------------------------------------------------------------------------


def shared(values, tied):
    return np.broadcast_to(values.sum(axis=0), values.shape) if tied else values


def mode_twin(X, shares, kind, groups, kappa=0.01, freedom=None, scale=None):
    """Mode (means, covariances of all features, log-density) of one M-step, hub by hub."""
    k, tied = shares.shape[1], kind.startswith("tied")
    n, m0, copies = shares.sum(axis=0), X.mean(axis=0), 1 if tied else k
    xbar = shares.T @ X / n[:, None]
    means = (n[:, None] * xbar + kappa * m0) / (n + kappa)[:, None]
    covariances, density = np.zeros((k, D, D)), 0.0
    for own in groups if not kind.endswith("diag") else [[j] for j in range(D)]:
        d = len(own)
        nu = d + 2 if freedom is None else freedom
        factor = k ** (-2 / d) if scale is None else scale
        P = factor * np.atleast_2d(np.cov(X[:, own].T))
        scatters = []
        for c in range(k):
            off, away = X[:, own] - xbar[c, own], xbar[c, own] - m0[own]
            pull = kappa * n[c] / (kappa + n[c])
            scatters.append((shares[:, c, None] * off).T @ off + pull * np.outer(away, away))
        scatters, seen = shared(np.array(scatters), tied), shared(n, tied)
        if kind.endswith("spherical"):
            variance = np.trace(P) / d
            found = [
                (variance + np.trace(one)) / (nu + 2 + d * (k // copies + rows)) * np.eye(d)
                for one, rows in zip(scatters, seen, strict=True)
            ]
        else:
            found = [
                (P + one) / (nu + d + 1 + k // copies + rows)
                for one, rows in zip(scatters, seen, strict=True)
            ]
        for c, one in enumerate(found):
            covariances[c][np.ix_(own, own)] = one
            away = means[c, own] - m0[own]
            inner = kappa * away @ np.linalg.solve(one, away) + np.linalg.slogdet(one)[1]
            density -= 0.5 * inner
            if c < copies and kind.endswith("spherical"):
                density -= 0.5 * ((nu + 2) * np.log(one[0, 0]) + variance / one[0, 0])
            elif c < copies:
                density -= 0.5 * (nu + d + 1) * np.linalg.slogdet(one)[1]
                density -= 0.5 * np.trace(np.linalg.solve(one, P))
    return n / len(X), means, covariances, density


def densities(X, weights, means, covariances):
    parts = []
    for weight, mean, one in zip(weights, means, covariances, strict=True):
        off = X - mean
        squares = np.einsum("ij,ij->i", off @ np.linalg.inv(one), off)
        parts.append(np.log(weight) - 0.5 * (squares + np.linalg.slogdet(2 * np.pi * one)[1]))
    return np.transpose(parts)


OWN = {"mean_precision_prior": 3.0, "degrees_of_freedom_prior": 4.5, "prior_covariance": 0.3}


@over(n_agents=[1, 3], kind=COVARIANCE_TYPES, given=[{}, OWN])
def test_modes_are_the_twins(X, kind, n_agents, given):
    groups = np.array_split(np.arange(D), n_agents)
    asked = dict(zip(("kappa", "freedom", "scale"), given.values(), strict=False))
    shares = mode(X, n_agents, covariance_type=kind, max_iter=0, **given).mixture.predict_proba(X)
    found = mode(X, n_agents, covariance_type=kind, max_iter=4, **given)
    penalised = []
    for _ in range(4):
        weights, means, covariances, density = mode_twin(X, shares, kind, groups, **asked)
        logs = densities(X, weights, means, covariances)
        shares = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
        penalised.append(logsumexp(logs, axis=1).sum() + density)
    same = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-10)
    same(found.mixture.assembled_weights, weights)
    same(found.mixture.assembled_means, means)
    same(dense(found.mixture)[1], covariances)
    total = logsumexp(logs, axis=1).sum()
    same(found.log_likelihood * len(X), total)
    same(found.mixture.score_samples(X).sum(), total)
    # The history has the density of the prior relative to its mode: another constant.
    ours = np.append(found.history[1:, 0], total + found.log_prior)
    same(ours - ours[0], np.array(penalised) - penalised[0], atol=1e-7)
    assert found.log_prior < 0
    assert found.bic == pytest.approx(-2 * total + found.mixture.n_parameters * np.log(len(X)))


MSTEP = """
suppressMessages(library(mclust))
X <- as.matrix(read.csv("x.csv", header=FALSE)); z <- as.matrix(read.csv("z.csv", header=FALSE))
show <- function(v) cat(format(as.vector(v), digits=17), "\n")
for (name in c("VVV", "EEE", "VII")) {
  m <- mstep(X, name, z, prior=priorControl())$parameters
  show(m$mean); show(m$variance$sigma)
}
for (name in c("V", "E")) for (j in 1:ncol(X)) {
  m <- mstep(X[, j], name, z, prior=priorControl())$parameters
  show(m$mean); show(m$variance$sigmasq)
}
e <- em(X, "VVV", m <- mstep(X, "VVV", z, prior=priorControl())$parameters,
        prior=priorControl(), control=emControl(tol=c(0, 0), itmax=4))
show(c(e$loglik, bic("VVV", e$loglik, nrow(X), ncol(X), ncol(z))))
"""


def has_mclust():
    if shutil.which("Rscript") is None:
        return False
    asked = ["Rscript", "-e", 'quit(status = !requireNamespace("mclust", quietly = TRUE))']
    return subprocess.run(asked, check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not has_mclust(), reason="needs R and mclust")
def test_m_steps_are_those_of_mclust(X, tmp_path):
    shares = mode(X, 1, max_iter=0).mixture.predict_proba(X)
    for name, values in (("x", X), ("z", shares)):
        np.savetxt(tmp_path / f"{name}.csv", values, delimiter=",", fmt="%.17g")
    told = subprocess.run(
        ["Rscript", "-e", MSTEP], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    lines = iter([np.array(line.split(), dtype=float) for line in told.splitlines()])
    groups, same = [np.arange(D)], partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10)
    for kind in ("full", "tied", "spherical"):
        _, means, covariances, _ = mode_twin(X, shares, kind, groups)
        same(next(lines).reshape(FEW, D), means)
        same(np.broadcast_to(next(lines).reshape(-1, D, D), (FEW, D, D)), covariances)
    for kind in ("diag", "tied-diag"):
        _, means, covariances, _ = mode_twin(X, shares, kind, groups)
        for j in range(D):
            same(next(lines), means[:, j])
            same(np.broadcast_to(next(lines), FEW), covariances[:, j, j])
    found = mode(X, 1, max_iter=5)
    log_likelihood, bic = next(lines)
    same(found.log_likelihood * len(X), log_likelihood)
    same(-found.bic, bic)


def test_a_feature_that_a_component_hardly_sees_keeps_the_prior(X):
    """Of rows that lack a feature its mode is that of those that have it."""
    data = X.copy()
    data[::3, 3] = np.nan
    given = {"covariance_type": "diag", "init": STARTS[MAP]} | MISSING
    before, found = (mode(data, 1, **given, max_iter=n).mixture for n in (4, 5))
    shares, there = before.predict_proba(data, missing="marginalize"), ~np.isnan(data[:, 3])
    own = np.repeat(data[there, 3:], D, axis=1)
    # Cov of the twin is of what is there; that of a fit is of the same rows, times M / (M - 1).
    M, m = len(data), there.sum()
    scale = FEW**-2 * (M / (M - 1)) * ((m - 1) / m)
    _, means, covariances, _ = mode_twin(own, shares[there], "diag", [], scale=scale)
    np.testing.assert_allclose(found.assembled_means[:, 3], means[:, 3], rtol=1e-8)
    np.testing.assert_allclose(dense(found)[1][:, 3, 3], covariances[:, 3, 3], rtol=1e-8)


# ---- by all ways --------------------------------------------------------------------------------

HOWS = [
    {},
    {"accelerate": "local:4,squarem"},
    {"init": "random", "prior_covariance": 0.1, "mean_precision_prior": 1e-3},
    {"degrees_of_freedom_prior": 7.5},
]


def with_gaps(X, prior, kind, misses):
    """Data, and what is said of their gaps, which diagonal posteriors of several features lack."""
    if misses and (prior == MAP or kind in ("full", "tied")):
        return holed(X), MISSING
    return X, {}


@over(prior=[*PRIORS, MAP], kind=COVARIANCE_TYPES, how=HOWS, misses=[False, True])
def test_bound_and_penalised_likelihood_never_fall(X, prior, kind, how, misses):
    data, more = with_gaps(X, prior, kind, misses)
    found = fit(data, 2, prior, covariance_type=kind, max_iter=15, **how, **more)
    assert np.diff(found.history[:, 0]).min() > -1e-9 * abs(found.history[0, 0])
    assert found.recoveries == []
    if prior == MAP:
        scores = found.mixture.score_samples(data, **more)
        assert found.log_likelihood == pytest.approx(scores.mean(), rel=1e-12)
        last = found.log_likelihood * found.total_weight + found.log_prior
        assert last >= found.history[-1, 0] - 1e-9 * abs(last)


@over(prior=[PROCESS, MAP], kind=COVARIANCE_TYPES, misses=[False, True])
def test_batches_never_lower_them_and_one_batch_is_the_fit(X, prior, kind, misses):
    data, more = with_gaps(X, prior, kind, misses)
    batches = partial(fit, data, 2, prior, covariance_type=kind, max_iter=4, **more)
    found, whole, one = batches(batch_size=40), batches(), batches(batch_size=len(data))
    energies = np.array(found.free_energy)
    assert np.diff(energies).min() > -1e-9 * abs(energies[0])
    np.testing.assert_allclose(one.history, whole.history, rtol=1e-9)
    other = batches(batch_size=40, step_size=0.7)
    assert abs(other.log_likelihood - found.log_likelihood) < 1.0


@over(
    prior=[*PRIORS, MAP], kind=["diag", "tied-diag"],
    how=[{}, {"reg_covar": "auto", "degrees_of_freedom_prior": 1.5}, {"accelerate": "squarem"}],
)  # fmt: skip
def test_diagonal_fits_do_not_depend_on_who_holds_which_features(X, prior, kind, how):
    """Posteriors are not scikit-learn's, whose variances share the freedom of one Wishart."""
    found = [fit(X, n, prior, covariance_type=kind, max_iter=8, **how) for n in (1, 2, D)]
    if prior != MAP and not how:
        same = "tied" if kind.startswith("tied") else "full"  # of one feature an agent
        found.append(fit(X, D, prior, covariance_type=same, max_iter=8))
    for one in found[1:]:
        np.testing.assert_allclose(one.history[:, 0], found[0].history[:, 0], rtol=1e-9)
        assert one.log_likelihood == pytest.approx(found[0].log_likelihood, rel=1e-9)
        ours, theirs = (m.mixture.predict_proba(X) for m in (one, found[0]))
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)


@over(prior=[PROCESS, MAP], kind=COVARIANCE_TYPES, misses=[False, True], topology=["star", "cycle"])
def test_rows_that_workers_hold_are_the_same_sum(X, prior, kind, misses, topology):
    data, more = with_gaps(X, prior, kind, misses)
    given = {"init": STARTS[prior], "reg_covar": "auto"}
    whole = fit(data, 1, prior, covariance_type=kind, **given, **more)
    split = rows_fit(data, prior, kind, topology, **more)
    close = 1e-10 if topology == "star" else 1e-6
    np.testing.assert_allclose(split.history[:, 0], whole.history[:, 0], rtol=close)
    np.testing.assert_allclose(split.log_likelihood, whole.log_likelihood, rtol=close)
    if prior == MAP:
        np.testing.assert_allclose(split.log_prior, whole.log_prior, rtol=10 * close)
    elif topology == "star":
        np.testing.assert_allclose(split.mixture.counts, whole.mixture.counts, atol=1e-9)


@over(prior=[PROCESS, MAP], changes=[{}, {"accelerate": "squarem"}, {"batch_size": 50}])
def test_fits_over_rows_are_resumed_to_the_bit(X, prior, changes):
    check_resumes(lambda saver: rows_fit(X, prior, saver=saver, **changes), alike)


@each(
    ("prior", "changes", "said"),
    [
        (PROCESS, {"covariance_type": "diag"} | MISSING, "different numbers of rows"),
        *(
            (prior, changes, said)
            for prior in (PROCESS, MAP)
            for changes, said in (
                ({"degrees_of_freedom_prior": 1.0}, "widest hub less 1"),
                ({"sample_weight": np.full(150, 1e-3)}, "worth whole rows"),
            )
        ),
        (None, {"mean_precision_prior": 2.0}, "EM has none"),
        (MAP, {"weight_concentration_prior": 0.5}, "mixing weights, which have no prior"),
        (MAP, {"n_factors": 1}, "prior of their own"),
        (MAP, {"kinds": vpem.Kinds(("t",) * D)}, "conjugate to Gaussian"),
    ],
)
def test_what_a_prior_cannot_be_is_said(X, prior, changes, said):
    with pytest.raises(InputError, match=said):
        fit(holed(X) if "missing" in changes else X, 2, prior, **changes)


# ---- models, estimators, the shell --------------------------------------------------------------


def test_models_keep_the_posterior_and_say_what_is_in_use(X, tmp_path):
    found = fit(X, 2, max_iter=60, weight_concentration_prior=1e-3)
    mixture = found.mixture
    report = found.describe(NAMES, ("one", "two"))
    assert sum(report["in_use"]) == mixture.n_in_use < K
    assert report["lower_bound"] == found.log_likelihood
    assert "bic" not in report
    path = tmp_path / "m.h5"
    write_model(path, found.kept(NAMES, report, {}))
    read = read_model(path).mixture
    alike(found, type(found)(**{**vars(found), "mixture": read}))
    assert np.array_equal(read.predict_proba(X), mixture.predict_proba(X))
    again = fit(X, 2, init=read, max_iter=1, weight_concentration_prior=1e-3)
    assert abs(again.log_likelihood - found.log_likelihood) < 0.05
    plain = Model(mixture.plain, NAMES, {}, found.history)
    write_model(tmp_path / "plain.h5", plain)
    assert type(read_model(tmp_path / "plain.h5").mixture) is vpem.Mixture


def test_reports_models_and_estimators_say_what_counts_the_prior(X, tmp_path):
    found = mode(X, 2, max_iter=60)
    report = found.describe(NAMES, ("one", "two"))
    assert report["prior"] == {
        "weight_concentration_prior_type": "map",
        "mean_precision_prior": 0.01,
        "degrees_of_freedom_prior": [4.0, 4.0],
        "prior_covariance": [1 / 3, 1 / 3],
    }
    both = report["log_likelihood"] + report["log_prior"] / len(X)
    assert report["penalised_log_likelihood"] == pytest.approx(both, rel=1e-12)
    assert report["bic"] == found.mixture.bic(found.log_likelihood * len(X), len(X))
    write_model(tmp_path / "m.h5", found.kept(NAMES, report, {}))
    again = read_model(tmp_path / "m.h5")
    assert again.report["prior"] == report["prior"]
    assert np.array_equal(again.mixture.predict_proba(X), found.mixture.predict_proba(X))
    for prior in (MAP, PRIORS[1]):
        how = {"weight_concentration_prior_type": prior, "tol": 1e-3}
        by_rows = vpem.DistributedGaussianMixture(FEW, workers=3, **how)
        for model in (vpem.VPEM(FEW, agents=2, **how).fit(X), by_rows.fit(X)):
            assert model.lower_bound_ == pytest.approx(model.lower_bounds_[-1])
            write_model(tmp_path / "e.h5", model, force=True)
            loaded = vpem.load(tmp_path / "e.h5")
            assert loaded.get_params()["weight_concentration_prior_type"] == prior
            assert np.array_equal(loaded.predict_proba(X), model.predict_proba(X))
            if prior == MAP:
                assert model.lower_bound_ < model.score(X)
            else:
                assert set(model.predict(X)) <= set(np.flatnonzero(model.mixture_.in_use))
    with pytest.raises(InputError, match="how many rows"):
        vpem.VPEM(**how).partial_fit(X)


def test_the_shell_fits_shows_and_selects(X, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savetxt("x.csv", X, delimiter=",", header="a,b,c,d", comments="")
    given = ["x.csv", "--agents", "2", "--prior", "map", "--json"]
    one = done(capsys, "fit", *given, "-k", "3", "-o", "m.h5").json
    same = fit_vpem(X, network_of(2), n_components=3, weight_concentration_prior_type=MAP)
    assert one["log_likelihood"] == pytest.approx(same.log_likelihood, rel=1e-9)
    assert one["bic"] == pytest.approx(same.bic, rel=1e-9)
    shown = done(capsys, "model", "show", "m.h5", "--json").json["report"]
    assert shown["prior"] == one["prior"]
    assert "penalised log-likelihood per sample" in done(capsys, "model", "show", "m.h5").out
    assert "penalised" in done(capsys, "fit", *given[:-1], "-k", "3").out
    labels = done(capsys, "predict", "m.h5", "x.csv", "--json").json
    assert labels["n_samples"] == len(X)
    several = done(capsys, "select", *given, "-k", "2-3", "--jobs", "1").json
    assert several["cells"][1]["bic"] == pytest.approx(one["bic"], rel=1e-9)
    best = done(capsys, "fit", *given, "-k", "2-3").json
    assert best["n_components"] == several["cells"][several["chosen"]]["n_components"]
    refused = run(capsys, "select", "x.csv", "--prior", "dirichlet_process")
    assert refused.code == 2
    assert "map" in refused.sentence
    refused = run(capsys, "fit", *given, "-k", "3", "--concentration", "1")
    assert refused.code == 2
    assert "mixing weights, which have no prior" in refused.sentence
