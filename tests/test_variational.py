"""Variational fits are scikit-learn's at one agent, a Wishart a hub with several, and monotone."""

import warnings
from functools import partial

import numpy as np
import pytest
from scipy.special import betaln, digamma, gammaln, logsumexp
from sklearn.mixture import BayesianGaussianMixture

import vpem
from vpem.errors import InputError
from vpem.files.models import Model, read_model, write_model
from vpem.fits.spread import fit_spread, own_columns
from vpem.fits.vpem import fit_vpem
from vpem.network.graph import make_graph
from vpem.network.partition import Workers, from_lists
from vpem.sums.connect import connect, connect_workers, spread

from .resume_support import check_resumes
from .thread_engine import together

PRIORS = ("dirichlet_process", "dirichlet_distribution")
K, D = 6, 4
ROWS = [1, 11, 22, 31, 41, 52]
"""Rows that weigh 1 or 2 where rows weigh 0, 1, 2, 0, ..."""


@pytest.fixture(scope="module")
def X():
    """Three clusters that overlap, of features that depend on each other."""
    rng = np.random.default_rng(5)
    parts = [
        rng.normal(size=(n, D)) @ rng.normal(size=(D, D)) + 1.5 * rng.normal(size=D)
        for n in (70, 50, 30)
    ]
    return np.concatenate(parts)


def network_of(n_agents, topology="star", **how):
    parts = [part.tolist() for part in np.array_split(np.arange(D), n_agents)]
    return connect(make_graph(topology, n_agents), from_lists(parts, D), **how)


def fit(X, n_agents=1, prior=PRIORS[0], *, topology="star", how=None, **changes):
    given = {"n_components": K, "weight_concentration_prior_type": prior, "tol": 0.0}
    network = network_of(n_agents, topology, **(how or {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vpem.NotConvergedWarning)
        return fit_vpem(X, network, **{**given, "max_iter": 5, "reg_covar": 0.0, **changes})


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


@pytest.mark.parametrize("kind", ["full", "tied", "spherical"])
@pytest.mark.parametrize("prior", PRIORS)
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


def twin(X, groups, shares, n_iter):
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


@pytest.mark.parametrize("n_agents", [2, 4])
def test_a_wishart_a_hub_is_the_twin(X, n_agents):
    own = fit(X, n_agents, PRIORS[1], max_iter=6)
    start = fit(X, n_agents, PRIORS[1], max_iter=0).mixture
    groups = np.array_split(np.arange(D), n_agents)
    blocks, bounds = twin(X, groups, start.predict_proba(X), 6)
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


@pytest.mark.parametrize("kind", ["diag", "tied-diag"])
@pytest.mark.parametrize("prior", PRIORS)
def test_diagonal_variances_are_independent_gammas_whatever_the_partition(X, kind, prior):
    """Not as scikit-learn's, whose variances share the freedom of a Wishart of all features."""
    given = {"max_iter": 8, "reg_covar": "auto", "degrees_of_freedom_prior": 1.5}
    for more in ({}, given):
        alone = fit(X, D, prior, covariance_type=kind.replace("-diag", "").replace("diag", "full"))
        found = [fit(X, n, prior, covariance_type=kind, **more) for n in (1, 2, D)]
        if not more:
            found.append(alone)  # the twin above is of one feature an agent
        for one in found[1:]:
            np.testing.assert_allclose(one.history[:, 0], found[0].history[:, 0], rtol=1e-12)
            assert one.log_likelihood == pytest.approx(found[0].log_likelihood, rel=1e-12)
            ours, theirs = (m.mixture.predict_proba(X) for m in (one, found[0]))
            np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-12)


def holed(X):
    rng = np.random.default_rng(2)
    X = np.where(rng.random(X.shape) < 0.25, np.nan, X)
    return X[~np.isnan(X).all(axis=1)]


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(
    "how",
    [
        *({"covariance_type": kind} for kind in vpem.settings.COVARIANCE_TYPES),
        {"missing": "marginalize"},
        {"missing": "marginalize", "covariance_type": "tied"},
        {"accelerate": "local:4,squarem"},
        {"missing": "marginalize", "accelerate": "squarem"},
        {"init": "random", "prior_covariance": 0.1, "mean_precision_prior": 1e-3},
        {"degrees_of_freedom_prior": 7.5, "weight_concentration_prior": 1e-3},
    ],
    ids=str,
)
def test_the_bound_never_falls_with_several_hubs(X, how, prior):
    data = holed(X) if "missing" in how else X
    found = fit(data, 2, prior, max_iter=40, **how)
    assert np.diff(found.history[:, 0]).min() > -1e-9 * abs(found.history[0, 0])
    assert found.recoveries == []


@pytest.mark.parametrize("kind", ["full", "tied"])
def test_batches_never_lower_the_bound_and_one_batch_is_the_fit(X, kind):
    found = fit(X, 2, covariance_type=kind, batch_size=40, max_iter=6)
    energies = np.array(found.free_energy)
    assert np.diff(energies).min() > -1e-9 * abs(energies[0])
    stochastic = fit(X, 2, covariance_type=kind, batch_size=40, step_size=0.7, max_iter=6)
    assert abs(stochastic.log_likelihood - found.log_likelihood) < 1.0


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


@pytest.mark.parametrize("kind", ["diag", "spherical", "tied-diag", "tied-spherical"])
@pytest.mark.parametrize("how", [{}, {"accelerate": "squarem"}], ids=str)
def test_features_alone_in_their_hubs_may_be_missing_whatever_covariances_are_called(X, kind, how):
    data, full = holed(X), "tied" if kind.startswith("tied") else "full"
    given = {"missing": "marginalize", "n_components": 5, "init": [0, 9, 20, 30, 40]} | how
    one, other = (fit(data, D, covariance_type=name, **given) for name in (kind, full))
    np.testing.assert_allclose(one.history, other.history, rtol=1e-9)
    np.testing.assert_allclose(one.mixture.seen, other.mixture.seen, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(one.mixture.means, other.mixture.means, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("topology", ["star", "cycle"])
@pytest.mark.parametrize("kind", ["full", "tied", "diag", "tied-spherical"])
@pytest.mark.parametrize("how", [{}, {"accelerate": "squarem"}], ids=str)
def test_a_hub_without_features_has_the_rows_of_its_root_and_changes_nothing(
    X, kind, topology, how
):
    data = holed(X)
    given = {"missing": "marginalize", "weight_concentration_prior_type": PRIORS[0], "tol": 0.0}
    given |= {"n_components": 4, "init": [0, 9, 20, 30], "covariance_type": kind, "max_iter": 5}
    fits = []
    for features in ([[], [0], [1], [2], [3]], [[0], [1], [2], [3]]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", vpem.errors.VpemWarning)
            network = connect(make_graph(topology, len(features)), from_lists(features, D))
            fits.append(fit_vpem(data, network, **given, **how))
    first, found = fits
    np.testing.assert_array_equal(first.mixture.seen[0], first.mixture.counts[0])
    near = {"rtol": 1e-8 if topology == "star" else 1e-4}
    np.testing.assert_allclose(first.mixture.seen[1:], found.mixture.seen, **near)
    np.testing.assert_allclose(first.log_likelihood, found.log_likelihood, **near)


def rows_network(n, topology="star"):
    return connect_workers(make_graph(topology, n))


@pytest.mark.parametrize("kind", ["full", "tied-diag"])
def test_rows_that_workers_hold_are_the_same_sum(X, kind):
    given = {"n_components": K, "weight_concentration_prior_type": PRIORS[0], "tol": 0.0}
    given |= {"max_iter": 5, "init": list(range(0, 60, 10)), "covariance_type": kind}
    runs = [part.tolist() for part in np.array_split(np.arange(len(X)), 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vpem.NotConvergedWarning)
        whole = fit_vpem(X, network_of(1), **given)
        workers = Workers(tuple(map(np.array, runs)), ("a", "b", "c"))
        split = vpem.fit_em(X, workers, rows_network(3), **given)
        again = partial(vpem.fit_em, X, workers, rows_network(3), **given)
        np.testing.assert_allclose(split.history[:, 0], whole.history[:, 0], rtol=1e-12)
        np.testing.assert_allclose(split.mixture.counts, whole.mixture.counts, atol=1e-9)
        check_resumes(lambda saver: again(saver=saver), same_posterior)


def same_posterior(one, other):
    assert np.array_equal(one.history, other.history)
    for name, values in one.mixture.arrays().items():
        assert np.array_equal(values, other.mixture.arrays()[name]), name


@pytest.mark.parametrize("changes", [{}, {"accelerate": "squarem"}, {"batch_size": 50}])
def test_resumed_is_uninterrupted_to_the_bit(X, changes):
    check_resumes(lambda saver: fit(X, 2, saver=saver, **changes), same_posterior)


def test_sums_weights_and_precision(X):
    plain = fit(X, 4)
    rounds = fit(X, 4, topology="cycle", how={"consensus": "rounds", "n_rounds": 60})
    operator = fit(X, 4, topology="cycle", how={"consensus": "operator", "n_rounds": 60})
    np.testing.assert_allclose(rounds.history, operator.history, rtol=1e-9)
    np.testing.assert_allclose(rounds.log_likelihood, plain.log_likelihood, rtol=1e-4)
    masked = fit(X, 4, how={"secure_sum": True})
    np.testing.assert_allclose(masked.history, plain.history, rtol=1e-6)
    times = np.arange(len(X)) % 3
    weighed = fit(X, 4, sample_weight=times.astype(float), init=ROWS)
    places = np.repeat(np.arange(len(X)), times)
    rows = [int(np.searchsorted(places, row)) for row in ROWS]
    repeated = fit(X[places], 4, init=rows)
    np.testing.assert_allclose(weighed.history, repeated.history, rtol=1e-10)
    single = fit(X.astype(np.float32), 4, dtype="float32")
    np.testing.assert_allclose(single.log_likelihood, plain.log_likelihood, atol=1e-3)
    # The bound travels in the terms: a fit sends what EM does.
    em = fit(X, 4, None)
    assert plain.communication["bytes"] == em.communication["bytes"]


@pytest.mark.parametrize("topology", ["star", "cycle"])
def test_processes_find_what_one_does(X, topology):
    whole, joined = fit(X, 4, topology=topology), network_of(4, topology)

    def work(engine):
        ranked = spread(joined, engine)
        given = {"n_components": K, "weight_concentration_prior_type": PRIORS[0], "tol": 0.0}
        own = X[:, own_columns(ranked)]
        return fit_spread(own, ranked, max_iter=5, reg_covar=0.0, **given)

    first, _ = together(2, work)
    np.testing.assert_allclose(first.history, whole.history, rtol=1e-12)
    for name, values in whole.mixture.arrays().items():
        np.testing.assert_allclose(first.mixture.arrays()[name], values, rtol=1e-9, atol=1e-12)


def test_models_keep_the_posterior_and_say_what_is_in_use(X, tmp_path):
    found = fit(X, 2, max_iter=60, weight_concentration_prior=1e-3)
    mixture = found.mixture
    names = tuple("abcd")
    report = found.describe(names, ("one", "two"))
    assert sum(report["in_use"]) == mixture.n_in_use < K
    assert report["lower_bound"] == found.log_likelihood
    assert "bic" not in report
    path = tmp_path / "m.h5"
    write_model(path, found.kept(names, report, {}))
    read = read_model(path).mixture
    same_posterior(found, type(found)(**{**vars(found), "mixture": read}))
    assert np.array_equal(read.predict_proba(X), mixture.predict_proba(X))
    again = fit(X, 2, init=read, max_iter=1, weight_concentration_prior=1e-3)
    assert abs(again.log_likelihood - found.log_likelihood) < 0.05
    plain = Model(mixture.plain, names, {}, found.history)
    write_model(tmp_path / "plain.h5", plain)
    assert type(read_model(tmp_path / "plain.h5").mixture) is vpem.Mixture


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"covariance_type": "diag", "missing": "marginalize"}, "different numbers of rows"),
        ({"degrees_of_freedom_prior": 1.0}, "widest hub less 1"),
        ({"sample_weight": np.full(150, 1e-3)}, "worth whole rows"),
        ({"prior": None, "mean_precision_prior": 2.0}, "EM has none"),
    ],
)
def test_what_a_prior_cannot_be_is_said(X, changes, said):
    data = holed(X) if "missing" in changes else X
    with pytest.raises(InputError, match=said):
        fit(data, 2, **changes)


def test_estimators_take_scikit_learns_names(X, tmp_path):
    how = {"weight_concentration_prior_type": PRIORS[1], "n_components": K, "tol": 1e-3}
    model = vpem.VPEM(agents=2, weight_concentration_prior=1e-3, **how).fit(X)
    assert model.lower_bound_ == pytest.approx(model.lower_bounds_[-1])
    assert sorted(set(model.predict(X))) <= np.flatnonzero(model.mixture_.in_use).tolist()
    write_model(tmp_path / "m.h5", model)
    again = vpem.load(tmp_path / "m.h5")
    assert again.get_params()["weight_concentration_prior_type"] == PRIORS[1]
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    with pytest.raises(InputError, match="how many rows"):
        vpem.VPEM(**how).partial_fit(X)
    by_rows = vpem.DistributedGaussianMixture(workers=3, **how).fit(X)
    assert by_rows.mixture_.prior.kind == PRIORS[1]
