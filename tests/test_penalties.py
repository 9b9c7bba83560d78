"""Penalties of the mean log-likelihood: M-steps by formulas, never lower, alike by all ways."""

import json
import warnings
from functools import partial

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import vpem
from vpem import InputError, connect_workers, fit_em, fit_fedem, make_graph
from vpem.network.partition import contiguous, evenly, from_worker_of_row
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.priors import parse_penalty

from .cli_support import done
from .resume_support import check_resumes
from .tables import each, over

pytestmark = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")

K, D, M = 3, 4, 150
PENALTIES = (
    "ridge:0.2",
    "lasso:0.08",
    "elastic-net:0.2:0.5",
    "inverse-wishart:7:0.5",
    "dirichlet:4",
    "elastic-net:0.1:0.7,inverse-wishart,dirichlet:2",
)
PAIRS = [
    (kind, penalty)
    for kind in COVARIANCE_TYPES
    for penalty in PENALTIES
    if kind not in ("full", "tied")
    or not {"lasso", "elastic"} & set(penalty.split(":")[0].split("-"))
]
STARTS = [3, 70, 130]


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(4)
    centres = np.array([[0, 0, 0, 5.0], [3, 0, 9, 5], [0, 2, 0, 5]])
    spread = np.array([1, 2, 5, 0.5])
    return np.repeat(centres, M // K, axis=0) + spread * rng.normal(size=(M, D))


def holed(X):
    X = np.where(np.random.default_rng(2).random(X.shape) < 0.2, np.nan, X)
    X[STARTS] = np.nan_to_num(X[STARTS], nan=1.0)
    return X[~np.isnan(X).all(axis=1)]


def given(kind, penalty, **more):
    same = {"n_components": K, "covariance_type": kind, "penalty": penalty, "init": STARTS}
    return same | {"tol": 0.0, "reg_covar": 0.0, "n_threads": 1} | more


def rows_fit(X, kind, penalty, workers=3, topology="star", how=None, **more):
    network = connect_workers(make_graph(topology, workers), **(how or {}))
    held = from_worker_of_row(np.arange(len(X)) % workers)
    return fit_em(X, held, network, **given(kind, penalty, **more))


def densities(X, model):
    """Log-densities (M, K) and weights of what a fit found, in the user's units."""
    means, covariances = model.assembled_means, dense(model)
    logs = [multivariate_normal.logpdf(X, *one) for one in zip(means, covariances, strict=True)]
    return np.array(logs).T + np.log(model.assembled_weights)


def dense(model):
    found = model.assembled_covariances
    kind = model.covariance_type
    if kind.endswith("spherical"):
        found = np.reshape(found, -1)[:, None, None] * np.eye(D)
    elif kind.endswith("diag"):
        found = np.array([np.diag(one) for one in np.reshape(found, (-1, D))])
    return np.broadcast_to(np.reshape(found, (-1, D, D)), (K, D, D))


def value(X, model, penalty):
    """R of parameters, less what it is at its least, and the data's covariance, by formulas."""
    words, kind = parse_penalty(penalty), model.covariance_type
    apart, covariances = model.assembled_means - X.mean(axis=0), dense(model)
    squares = sum(b @ np.linalg.solve(C, b) for b, C in zip(apart, covariances, strict=True))
    sds = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    total = words.ridge / 2 * squares + words.lasso * np.abs(apart / sds).sum()
    total -= (words.concentration - 1) * np.log(K * model.assembled_weights).sum() / len(X)
    if not words.wishart:
        return total
    sample = np.cov(X.T)  # divisor M - 1
    copies = covariances[: 1 if kind.startswith("tied") else K]
    size = 1 if kind.endswith("diag") else D
    nu = size + 2 if words.freedom is None else words.freedom
    c = K ** (-2 / size) if words.scale is None else words.scale

    def inverse_wishart(C, P, d):
        """Twice minus the logarithm of the density of a covariance (d, d), but for a constant."""
        return (nu + d + 1) * np.linalg.slogdet(C)[1] + np.trace(np.linalg.solve(C, P))

    for C in copies:
        if kind in ("full", "tied"):
            pairs = [(C, c * sample, D)]
        elif kind.endswith("diag"):
            pairs = [
                (C[j : j + 1, j : j + 1], c * sample[j : j + 1, j : j + 1], 1) for j in range(D)
            ]
        else:
            pairs = [(C[:1, :1], c * np.trace(sample)[None, None] / D, 1)]
        for C, P, d in pairs:
            mode = P / (nu + d + 1)
            total += (inverse_wishart(C, P, d) - inverse_wishart(mode, P, d)) / 2 / len(X)
    return total


def deviation(n, x, p, scatter, ridge, lasso):
    """Inverse of a standard deviation that means have in common, by the zero of its slope."""

    def shrunk(rho):
        return np.sign(x) * np.maximum(n * rho * np.abs(x) - lasso, 0.0) / (n + ridge)

    def slope(rho):
        return -p / rho + rho * scatter + (n * x * (rho * x - shrunk(rho))).sum()

    rho = brentq(slope, 1e-6, 1e6, xtol=1e-15, rtol=1e-14, maxiter=500)
    return rho, shrunk(rho) / rho


def least(X, model, penalty):
    """Parameters of the M-step after a model, by equations that are solved one by one."""
    words, kind = parse_penalty(penalty), model.covariance_type
    logs = densities(X, model)
    r = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    n, about, rows = r.sum(axis=0), X - X.mean(axis=0), len(X)
    weights = (n + words.concentration - 1) / (rows + K * (words.concentration - 1))
    x = r.T @ about / n[:, None]
    S = np.array([(r[:, k, None] * (about - x[k])).T @ (about - x[k]) for k in range(K)])
    ridge, lasso, sample = words.ridge * rows, words.lasso * rows, np.cov(X.T)
    one_d = kind.endswith(("diag", "spherical"))
    size = 1 if kind.endswith("diag") else D
    nu = size + 2 if words.freedom is None else words.freedom
    c = K ** (-2 / size) if words.scale is None else words.scale
    power, P = (nu + (2 if one_d else D + 1), c * sample) if words.wishart else (0, 0 * sample)
    groups = [list(range(K))] if kind.startswith("tied") else [[k] for k in range(K)]
    means, covariances = np.zeros((K, D)), np.zeros((K, D, D))
    if not one_d:
        for group in groups:
            total = P.copy()
            for k in group:
                means[k] = n[k] * x[k] / (n[k] + ridge)
                total += S[k] + n[k] * np.outer(x[k] - means[k], x[k] - means[k])
                total += ridge * np.outer(means[k], means[k])
            for k in group:
                covariances[k] = total / (power + n[group].sum())
        return weights, means + X.mean(axis=0), covariances
    columns = [list(range(D))] if kind.endswith("spherical") else [[j] for j in range(D)]
    for group in groups:
        for some in columns:
            # A sphere's variance is one number, with a prior of its own.
            p = sum(n[group]) * len(some) + power
            scatter = sum(S[k][j, j] for k in group for j in some) + np.trace(
                P[np.ix_(some, some)]
            ) / len(some)

            every = np.ix_(group, some)
            several = np.repeat(n[group][:, None], len(some), axis=1)
            rho, means[every] = deviation(several, x[every], p, scatter, ridge, lasso)
            for k in group:
                covariances[k, some, some] = rho**-2
    return weights, means + X.mean(axis=0), covariances


@each(["kind", "penalty"], PAIRS)
def test_an_m_step_is_the_least_of_its_equations(X, kind, penalty):
    before = rows_fit(X, kind, penalty, max_iter=2).mixture
    after = rows_fit(X, kind, penalty, max_iter=3).mixture
    same = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10)
    weights, means, covariances = least(X, before, penalty)
    same(after.assembled_weights, weights)
    same(after.assembled_means, means)
    same(dense(after), covariances)


@each(["kind", "penalty"], PAIRS)
def test_what_is_reported_is_the_penalised_mean_and_never_falls(X, kind, penalty):
    fit = rows_fit(X, kind, penalty, max_iter=12)
    mean = logsumexp(densities(X, fit.mixture), axis=1).mean()
    R = value(X, fit.mixture, penalty)
    assert fit.log_likelihood == pytest.approx(mean, abs=1e-10)
    assert -fit.log_prior / M == pytest.approx(R, abs=1e-10)
    assert R > 0
    report = fit.describe(["a", "b", "c", "d"], fit.workers.names)
    assert report["penalised_log_likelihood"] == pytest.approx(mean - R, abs=1e-10)
    assert not fit.recoveries
    assert np.diff(fit.history.ravel()).min() > -1e-9


@each(["kind", "penalty"], [*PAIRS[::4], PAIRS[-1]])
def test_fedem_without_noise_is_the_same_em(X, kind, penalty):
    for data, more in ((X, {}), (holed(X), {"missing": "marginalize"})):
        em = rows_fit(data, kind, penalty, max_iter=8, **more)
        workers = from_worker_of_row(np.arange(len(data)) % 3)
        fed = fit_fedem(data, workers, **given(kind, penalty, max_iter=7, step_size=1.0, **more))
        np.testing.assert_allclose(
            fed.history, em.history[1:].tolist() + fed.history[-1:].tolist(), 1e-10
        )
        assert fed.log_prior == pytest.approx(em.log_prior, rel=1e-9)
        assert fed.log_likelihood == pytest.approx(em.log_likelihood, rel=1e-10)
        assert (np.diff(fed.history.ravel()) > -1e-9).all()


WAYS = {
    "one worker": (1, "star", {}, 1e-10),
    "tree": (3, "path", {"sum": "tree"}, 1e-10),
    "rounds": (3, "cycle", {"n_rounds": 60}, 1e-8),
    "masks": (3, "star", {"secure_sum": True}, 1e-6),
}


@over(way=list(WAYS), penalty=[PENALTIES[0], PENALTIES[-1]])
def test_ways_of_summing_do_not_matter(X, way, penalty):
    kind = "full" if penalty.startswith("ridge") else "diag"
    workers, topology, how, tolerance = WAYS[way]
    more = {"max_iter": 5, "init": rows_fit(X, kind, penalty, max_iter=1).mixture}
    wanted = rows_fit(X, kind, penalty, **more)
    found = rows_fit(X, kind, penalty, workers, topology, how, **more)
    np.testing.assert_allclose(found.history, wanted.history + 0 * found.history, rtol=tolerance)
    assert found.log_prior == pytest.approx(wanted.log_prior, rel=100 * tolerance)


def test_units_weights_and_copies_of_rows(X):
    same = partial(rows_fit, kind="diag", penalty=PENALTIES[-1], max_iter=6)
    wanted, found = same(X), same(X * [1, 1e3, 1e-3, 10] + [0, 5e3, 1, -20])
    np.testing.assert_allclose(found.log_prior, wanted.log_prior, 1e-9)
    weights = np.where(np.arange(M) % 5 == 0, 2.0, 1.0)
    doubled = np.concatenate([X, X[weights == 2]])
    heavy = rows_fit(X, "tied-diag", "lasso:0.05", max_iter=6, sample_weight=weights)
    twice = rows_fit(doubled, "tied-diag", "lasso:0.05", max_iter=6)
    np.testing.assert_allclose(heavy.history, twice.history, 1e-10)


@over(penalty=["ridge:0.02", "lasso:0.02,dirichlet:2"], kind=["diag", "spherical"])
def test_in_batches_and_faster_it_ends_where_em_does(X, penalty, kind):
    wanted = rows_fit(X, kind, penalty, max_iter=120)
    for more in ({"batch_size": 20, "max_iter": 40}, {"accelerate": "squarem", "max_iter": 60}):
        found = rows_fit(X, kind, penalty, **more)
        assert found.history[-1, 0] == pytest.approx(wanted.history[-1, 0], abs=0.02)
    # Stochastic EM: parameters stand for statistics of which they are the mode.
    going = rows_fit(
        X, kind, penalty, batch_size=75, step_size=0.9, max_iter=1, init=wanted.mixture
    )
    assert abs(going.history[-1, 0] - wanted.history[-1, 0]) < 2.0


def test_statistics_of_a_mode_have_it_again(X):
    for kind, penalty in PAIRS:
        fit = rows_fit(X, kind, penalty, workers=1, max_iter=4)
        from vpem.fits.prepare import penalised
        from vpem.settings import FitSettings
        from vpem.terms.features import FeatureTerms

        settings = FitSettings(**{**given(kind, penalty), "init": "kmeans"})
        terms = FeatureTerms(
            X, fit.mixture.blocks, kind, scaling=fit.mixture.scaling, reg_covar=0.0
        )
        terms = penalised(terms, settings).with_sample_covariance(terms.sample_covariance)
        back = terms.update(terms.statistics_of(fit.mixture, float(M), 1))
        for name, array in back.arrays().items():
            np.testing.assert_allclose(array, fit.mixture.arrays()[name], 1e-9, 1e-9)


def test_resumes_to_the_bit(X):
    for recipe, more in ((fit_em, {}), (fit_fedem, {"participation": 0.7})):
        options = given("diag", PENALTIES[-1], max_iter=4, **more)
        network = connect_workers(make_graph("star", 3))
        fit = partial(recipe, X, evenly(M, 3), network, **options)
        check_resumes(lambda saver, fit=fit: fit(saver=saver))


def test_a_lasso_leaves_features_out(tmp_path, monkeypatch, capsys, X):
    """The last feature is noise in all components, and a strong lasso says so."""
    monkeypatch.chdir(tmp_path)
    vpem.write_dataset("x.h5", vpem.Dataset(X, tuple("abcd")))
    words = ["--covariance", "tied-diag", "--penalty", "lasso:0.1", "-k", "3", "--workers", "3"]
    for command in (
        ["fit", "x.h5", "--split", "rows"],
        ["fedem", "x.h5", "--compress", "qsgd:8bits"],
    ):
        told = done(capsys, *command, *words, "-o", "m.h5", "--force", "--json").out
        report = json.loads(told)
        assert 3 in report["features_left_out"]
        assert report["prior"] == {"penalty": "lasso:0.1"}
        both = report["log_likelihood"] + report["log_prior"] / M
        assert report["penalised_log_likelihood"] == pytest.approx(both, rel=1e-12)
        shown = done(capsys, "model", "show", "m.h5").out
        assert "left out" in shown
        assert "penalised" in shown
    model = vpem.read_model("m.h5")
    assert np.ptp(model.mixture.assembled_means[:, 3]) < 1e-12


REFUSED = {
    "lasso": "must be ridge:L",
    "ridge:x": "must be ridge:L",
    "ridge:nan": "must be ridge:L",
    "elastic-net:1": "must be ridge:L",
    "": "must be ridge:L",
    "ridge:0": "numbers of ridge must be above 0",
    "elastic-net:1:2": "share of lasso at most 1",
    "ridge:1,lasso:1": "two penalties of means",
    "dirichlet:1,dirichlet:2": "has dirichlet twice",
    "dirichlet:0.9": "at least 1",
    "inverse-wishart:0.5": "must be above the number of features",
}


@each("penalty", REFUSED)
def test_penalties_that_are_none(X, penalty):
    with pytest.raises(InputError, match=REFUSED[penalty]):
        rows_fit(X, "spherical" if "wishart" not in penalty else "full", penalty, max_iter=1)


def test_what_goes_without_a_penalty(X, capsys):
    held = evenly(M, 3)
    for recipe in (fit_em, fit_fedem):
        with pytest.raises(InputError, match="need diagonal covariances"):
            recipe(X, held, **given("full", "lasso:1"))
    with pytest.raises(InputError, match="each hub makes its own"):
        vpem.fit_vpem(X, vpem.connect(make_graph("star", 1), contiguous(D, 1)), penalty="ridge:1")
    with pytest.raises(InputError, match="not both"):
        fit_em(X, held, **given("full", "ridge:1", weight_concentration_prior_type="map"))


class PenalisedMean(vpem.ExponentialFamily):
    """A normal mean with a ridge: what a user writes of R."""

    size = 1

    def expectation(self, parameters, X):
        return X.mean(axis=0)

    def maximization(self, statistic):
        return statistic[0] / 1.5

    def objective(self, parameters, X):
        return -0.5 * float(((X - parameters) ** 2).mean())

    def penalty(self, parameters):
        return 0.25 * parameters**2


def test_a_family_of_ones_own_has_a_penalty(X):
    fit = vpem.fit_family(PenalisedMean(), X[:, :1], 3, start=0.0)
    wanted = X[:, 0].mean() / 1.5
    assert fit.parameters == pytest.approx(wanted, rel=1e-12)
    objective = -0.5 * ((X[:, 0] - wanted) ** 2).mean() - 0.25 * wanted**2
    assert fit.objective == pytest.approx(objective, rel=1e-12)


def test_estimators_have_it(X):
    for kind in (vpem.DistributedGaussianMixture, vpem.FedEM):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = kind(
                K, workers=3, covariance_type="diag", penalty="ridge:0.2", random_state=0
            ).fit(X)
        assert model.fit_.log_prior < 0
        assert model.get_params()["penalty"] == "ridge:0.2"
    with pytest.raises((TypeError, AttributeError, InputError)):
        vpem.VPEM(penalty="ridge:1").fit(X)
