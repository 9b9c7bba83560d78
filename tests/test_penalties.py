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
from vpem.saem.estimates import describe_fit
from vpem.saem.fit import fit_saem
from vpem.saem.individuals import Individuals
from vpem.saem.models.linear import LinearModel
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.priors import parse_penalty

from .cli_support import done
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


@each(["penalty", "kind"], [("elastic-net:0.03:0.6,dirichlet:2", "diag")])
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
    "elastic-net:1:2": "share of lasso from 0 to 1",
    "elastic-net:1:-0.1": "share of lasso from 0 to 1",
    "elastic-net:0:0.5": "must be above 0",
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
    ridges = (rows_fit(X, "full", one, max_iter=5) for one in ("elastic-net:0.3:0", "ridge:0.3"))
    np.testing.assert_array_equal(*(fit.mixture.assembled_means for fit in ridges))
    held = evenly(M, 3)
    for recipe in (fit_em, fit_fedem):
        with pytest.raises(InputError, match="need diagonal covariances"):
            recipe(X, held, **given("full", "lasso:1"))
    with pytest.raises(InputError, match="each hub makes its own"):
        vpem.fit_vpem(X, vpem.connect(make_graph("star", 1), contiguous(D, 1)), penalty="ridge:1")
    with pytest.raises(InputError, match="leave one out"):
        fit_em(X, held, **given("full", "dirichlet:2", fix="weights"))
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
                K, workers=3, covariance_type="diag", penalty="ridge:0.2", max_iter=20
            ).fit(X)
        assert model.fit_.log_prior < 0
        assert model.get_params()["penalty"] == "ridge:0.2"
    with pytest.raises((TypeError, AttributeError, InputError)):
        vpem.VPEM(penalty="ridge:1").fit(X)


# ---- SAEM ----------------------------------------------------------------------------------------


def grown(n=40, seed=3):
    """Lines of individuals, whose slopes depend on one of two covariates."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, n)) * [[1.0], [4.0]]
    z = np.array([10, 2]) + rng.normal(size=(n, 2)) * [1.5, 0.7] + np.outer(a, [0, 0.6])
    times = np.tile([-1.0, 0.0, 1.0, 2.0], n)
    values = np.repeat(z[:, 0], 4) + np.repeat(z[:, 1], 4) * times + 0.4 * rng.normal(size=4 * n)
    covariates = {"a": np.repeat(a, 4), "b": np.repeat(b, 4)}
    names = tuple(f"i{one}" for one in range(n))
    return Individuals(names, np.arange(n + 1) * 4, times, values, covariates)


EFFECTS = ["intercept:a", "intercept:b", "time:a", "time:b"]
SHRUNK = ("ridge:0.3", "lasso:0.2", "elastic-net:0.4:0.6", "inverse-wishart:5:0.7")


def population(penalty, covariance, individuals):
    options = {"effects": EFFECTS, "covariance": covariance}
    return LinearModel(individuals, **options).under(parse_penalty(penalty))


@over(penalty=[*SHRUNK, "lasso:0.2,inverse-wishart"], covariance=["diagonal", "full"])
def test_an_m_step_of_a_population_is_the_least_of_its_equations(penalty, covariance):
    words, individuals = parse_penalty(penalty), grown()
    if words.lasso and covariance == "full":
        with pytest.raises(InputError, match="need a diagonal covariance"):
            population(penalty, covariance, individuals)
        return
    model = population(penalty, covariance, individuals)
    law, n = model.law, 40
    z = np.random.default_rng(7).normal(size=(1, n, 2)) * 2 + [[9, 3]]
    B, omega, _ = law.maximize(law.statistics(z).mean(axis=0).sum(axis=0), n)
    C = np.column_stack([np.ones(n), *(individuals.covariates[one][::4] for one in "ab")])
    sizes = np.array([0, *C[:, 1:].std(axis=0)]) * (words.ridge > 0 or words.lasso > 0)
    full, u = covariance == "full", z[0]
    width = 2 if full else 1
    power = (width + 2 if words.freedom is None else words.freedom) + width + 1
    scale = (1.0 if words.scale is None else words.scale) * np.diag(begun(individuals, covariance))
    if not words.wishart:
        power, scale = 0, 0 * scale
    if not words.lasso:
        gram = C.T @ C + n * words.ridge * np.diag(sizes**2)
        wanted = np.linalg.solve(gram, C.T @ u).T
        left = u - C @ wanted.T
        spread = left.T @ left + n * words.ridge * (wanted * sizes**2) @ wanted.T + scale
        spread = (spread if full else np.diag(np.diag(spread))) / (n + power)
    else:  # a condition of every coefficient, and of the variance
        wanted, spread = B, omega
        for r in range(2):
            left, v = u[:, r] - C @ B[r], omega[r, r]
            slope = C.T @ left / v - n * words.ridge * sizes**2 * B[r] / v
            bound = n * words.lasso * sizes / np.sqrt(v)
            zero = (B[r] == 0) & (sizes > 0)
            np.testing.assert_allclose(slope[~zero], (bound * np.sign(B[r]))[~zero], 0, 1e-8)
            assert (np.abs(slope)[zero] <= bound[zero]).all()
            a = n * words.lasso * (sizes * np.abs(B[r])).sum()
            A = left @ left + n * words.ridge * (sizes**2 * B[r] ** 2).sum() + scale[r, r]
            sd = (a + np.sqrt(a * a + 4 * (n + power) * A)) / (2 * (n + power))
            assert np.sqrt(v) == pytest.approx(sd, rel=1e-10)
        assert (B == 0).any()
    np.testing.assert_allclose(B, wanted, 1e-10, 1e-10)
    np.testing.assert_allclose(omega, spread, 1e-10, 1e-10)


def begun(individuals, covariance):
    """Variances that the model begins with."""
    model = LinearModel(individuals, effects=EFFECTS, covariance=covariance)
    return np.diag(model.unpack(model.start()[0])[1])


@each("penalty", SHRUNK[1::2])
def test_saem_ends_where_the_penalised_likelihood_is_best(penalty):
    individuals, words = grown(), parse_penalty(penalty)
    fit = fit_saem(
        individuals, "linear", model_options={"effects": EFFECTS, "covariance": "diagonal"},
        penalty=penalty, n_iter=100, n_chains=40, tol=0.0, n_importance=10, devices=2,
    )  # fmt: skip
    plain = LinearModel(individuals, effects=EFFECTS, covariance="diagonal")
    sizes = np.array([individuals.covariates[one][::4].std() for one in "ab"])
    ridge, lasso = words.ridge, words.lasso
    known = words.scale * begun(individuals, "diagonal") if words.wishart else None

    def penalised(theta):
        """What SAEM is to lower: minus the mean log-likelihood, and r by its formula."""
        B, omega, _ = plain.unpack(theta)
        b, v = B[:, 1:] * sizes, np.diag(omega)
        r = ridge / 2 * (b**2 / v[:, None]).sum() + lasso * (np.abs(b) / np.sqrt(v)[:, None]).sum()
        if words.wishart:
            power = words.freedom + 2
            each = power * np.log(v) + known / v
            each -= power * np.log(known / power) + power
            r += each.sum() / 2 / 40
        return -plain.marginal(theta).mean() + r, r

    value, r = penalised(fit.theta)
    assert fit.settings["penalty_value"] == pytest.approx(r, rel=1e-9)
    report = describe_fit(fit, evenly(40, 2))
    assert report["penalised_log_likelihood"] == pytest.approx(-40 * value, rel=1e-9)
    spread = np.where(np.isfinite(fit.standard_errors), fit.standard_errors, 0.1)
    for unit in np.eye(len(fit.theta)):
        for step in (-0.2, 0.2):
            assert penalised(fit.theta + step * unit * spread)[0] > value - 2e-4
    if lasso > 0.15:
        zero = [name for name, one in fit.estimates.items() if one == 0]
        assert zero
        assert all(name.startswith("beta(") for name in zero)


class Penalised(LinearModel):
    """What a user's own model says of r."""

    def penalty(self, theta):
        return 0.5 * float(theta[-1])


def test_a_model_of_ones_own_says_what_its_penalty_is():
    fit = fit_saem(grown(12), lambda data: Penalised(data), n_iter=20, tol=0.0, n_importance=10)
    assert fit.settings["penalty_value"] == pytest.approx(0.5 * fit.theta[-1], rel=1e-12)
    with pytest.raises(InputError, match="effects of covariates"):
        fit_saem(grown(12), "linear", penalty="ridge:1")
    options = {"effects": ["intercept:a"], "random": ["slope"], "error": "proportional"}
    with pytest.raises(InputError, match="does not vary between them"):
        fit_saem(grown(12), "linear", model_options=options, penalty="ridge:1")


def test_a_curve_leaves_effects_out_at_the_shell(tmp_path, monkeypatch, capsys):
    """And goes on to the bit; what was fitted says so, and predicts."""
    monkeypatch.chdir(tmp_path)
    data = grown(12)
    lines = ["id,time,value,a,b"] + [
        f"{who},{t},{np.exp(v / 10)},{a},{b}"
        for who, t, v, a, b in zip(
            np.repeat(data.names, 4), data.times, data.values, *data.covariates.values(),
            strict=True,
        )
    ]  # fmt: skip
    (tmp_path / "g.csv").write_text("\n".join(lines))
    words = ["saem", "g.csv", "--model", "linear", "--error", "proportional", "--effects",
             "intercept:b,time:b", "--covariance", "diagonal", "--penalty", "lasso:0.6",
             "--iterations", "25", "--tol", "0", "--importance-draws", "10"]  # fmt: skip
    report = json.loads(done(capsys, *words, "-o", "s.h5", "--json").out)
    assert report["settings"]["penalty"] == "lasso:0.6"
    zero = [name for name, one in report["estimates"].items() if one == 0]
    assert zero
    assert "penalised" in done(capsys, "model", "show", "s.h5").out
    assert "by lasso:0.6" in done(capsys, *words, "-o", "s.h5", "--force").out
    done(capsys, "predict", "s.h5", "g.csv", "-o", "p.csv")
