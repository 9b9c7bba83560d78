"""SAEM finds the maximum of the likelihood, of models of every kind and from where they begin."""

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import expit, gammaln, logsumexp
from scipy.stats import t as t_law

from vpem.errors import InputError
from vpem.network.partition import evenly
from vpem.saem.doses import Doses
from vpem.saem.estimates import Summary, lacking_errors
from vpem.saem.fit import fit_saem
from vpem.saem.individuals import from_long, from_matrix
from vpem.saem.models.bifactor import BifactorModel
from vpem.saem.models.linear import LinearModel, _Lines
from vpem.saem.saem import run_saem, step_size
from vpem.saem.samplers import Exact
from vpem.saem.server import SaemServer

from .cells_saem import BOYS, THEO, TOP
from .resume_support import check_resumes
from .tables import each

# ---- data that are known ------------------------------------------------------------------------


def bends(f, at, steps):
    """Minus second derivatives of a function by central differences, extrapolated once."""

    def hessian(h):
        E = np.diag(h)
        ends = np.zeros(E.shape)
        for i, j in combinations_with_replacement(range(len(h)), 2):
            a, b = E[[i, j]]
            ends[i, j] = f(at + a + b) - f(at + a - b) - f(at - a + b) + f(at - a - b)
            ends[j, i] = ends[i, j]
        return -ends / (4 * np.outer(h, h))

    return (4 * hessian(steps / 2) - hessian(steps)) / 3


def errors_of(information):
    return np.sqrt(np.diag(np.linalg.inv(information)))


def test_oxford_boys():
    options = {"n_iter": 300, "burn_in": 100, "tol": 0.0, "n_chains": 10}
    fit = fit_saem(BOYS, "linear", sampler="metropolis", **options)
    theta, model = fit.theta, fit.model
    assert_allclose(theta, TOP, rtol=0.01)
    assert fit.log_likelihood.value == pytest.approx(-362.984, abs=0.1)
    assert fit.log_likelihood.error == 0
    assert fit.log_likelihood.value == pytest.approx(model.marginal(theta).sum(), abs=1e-9)
    wanted = errors_of(bends(lambda at: model.marginal(at).sum(), theta, 1e-3 * np.abs(theta)))
    assert_allclose(fit.standard_errors, wanted, rtol=0.05)
    assert fit.given.shrinkage[0] == pytest.approx(0.0008, abs=3e-4)
    means, covariances = model.posterior(theta)
    sd = np.sqrt(np.einsum("nii->ni", covariances))
    assert_allclose(fit.given.means, means, atol=0.15 * sd.max())
    assert_allclose((fit.given.upper - fit.given.lower) / sd, 3.92, atol=0.5)


def test_theophylline():
    """Near nlme's linearised fit: log ka 0.466, log cl -3.227, log ke -2.455, sd 0.71."""
    fit = fit_saem(
        THEO, "one-compartment", model_options={"random": ("ka", "cl")}, n_iter=400, burn_in=200,
        tol=0.0, n_conditional=40, n_importance=500,
    )  # fmt: skip
    for name, value, off in (
        ("log ka", 0.466, 0.06), ("log cl", -3.227, 0.05), ("log ke", -2.455, 0.05),
        ("residual sd", 0.71, 0.02), ("var(log ka)", 0.43, 0.06),
    ):  # fmt: skip
        assert fit.estimates[name] == pytest.approx(value, abs=off)
    assert fit.log_likelihood.value == pytest.approx(-178, abs=0.6)
    assert fit.log_likelihood.error < 0.1
    assert (np.abs(fit.acceptance - 0.44) < 0.15).all()


# ---- beside the maximum that is found otherwise -------------------------------------------------


def run(model, devices, **options):
    """A run with exact draws."""
    server = SaemServer(np.full(devices, 1 / devices), None, "none", model.pieces)
    return run_saem(model, evenly(model.n, devices), Exact(), server, tol=0.0, **options)


def fitted(case, **changes):
    """A short fit of data, a model, its options, and parameters that data were drawn with."""
    short = {"n_iter": 100, "tol": 0.0, "n_conditional": 40, "n_importance": 20} | changes
    return fit_saem(case[0], case[1], model_options=case[2], **short)


# ---- beside the maximum that is found otherwise -------------------------------------------------


def test_bifactor_reaches_the_top_of_the_likelihood():
    """Loadings against the maximum of the dense likelihood, from many iterations of EM."""
    rng = np.random.default_rng(4)
    groups = [0, 0, 0, 0, 1, 1, 1, 1]
    loadings = np.zeros((8, 3))
    loadings[:, 0] = [1.0, 0.9, 1.1, 0.8, 0.9, 1.0, 0.7, 1.2]
    loadings[np.arange(8), 1 + np.array(groups)] = [0.8, 0.6, 0.7, 0.9, 0.9, 0.5, 0.8, 0.7]
    z = rng.normal(size=(400, 3))
    model = BifactorModel(from_matrix(2 + z @ loadings.T + 0.5 * rng.normal(size=(400, 8))), groups)
    best, _ = model.start()
    rows, columns = np.tril_indices(1 + model.n_groups)
    for _ in range(800):
        means, covariances = model.posterior(best)
        statistics = model.statistics(means[None])
        statistics[:, model.pieces[1]] += covariances[:, rows, columns]
        best = model.maximize(statistics.sum(axis=0), model.counts)
    found = run(model, 4, n_iter=400, burn_in=300, n_chains=5)
    theta, top = (model.canonical(one, found.chains.z)[0] for one in (found.theta, best))
    assert_allclose(theta, top, atol=0.05)
    assert model.marginal(top).sum() - model.marginal(theta).sum() < 0.4
    assert_allclose(theta.reshape(4, -1)[1], loadings[:, 0], atol=0.25)


def test_lines_are_the_maximum_that_formulas_find():
    """With a fixed column and an effect, beside formulas that are tested below."""
    rng = np.random.default_rng(11)
    n, t = 20, np.arange(5.0)
    x, w = rng.normal(size=n), rng.normal(size=(n, len(t)))
    z = rng.multivariate_normal([3.0, 1.0], [[1.0, 0.2], [0.2, 0.4]], size=n)
    y = z[:, :1] + 0.7 * x[:, None] + z[:, 1:] * t + 0.5 * w + rng.normal(size=w.shape)
    data = table(t, y, x=x[:, None], w=w)
    options = {
        "slopes": ("time", "w"), "random": ("intercept", "time"), "effects": ("intercept:x",)
    }  # fmt: skip
    few = {"model_options": options, "n_conditional": 2, "n_iter": 300, "n_chains": 30}
    found, top = (fit_saem(data, "linear", **few, tol=tol) for tol in (0.0, 0.1))
    assert top.log_likelihood.value > found.log_likelihood.value > top.log_likelihood.value - 0.05
    assert (np.abs(found.theta - top.theta) < 0.1 * top.standard_errors).all()
    # At once, from wherever it begins, and broken off where formulas have ended it too.
    again = fit_saem(data, "linear", **few, start=found.theta, devices=2)
    assert_allclose(again.theta, top.theta, rtol=1e-8)
    assert (top.n_iter, again.n_iter, top.change < 1e-8) == (1, 1, True)
    assert np.array_equal(top.trace[-1], top.theta)
    check_resumes(lambda saver: fit_saem(data, "linear", **few, devices=2, saver=saver))


def test_lines_of_few_rows_have_the_smallest_coefficients_in_units_of_columns():
    """Of individuals with one row to four, or many at one time: beside each by itself."""
    rng = np.random.default_rng(2)
    counts = np.array([1, 3, 2, 4, 1, 3, 250, 270, 290])
    times = rng.normal(50.0, 2.0, counts.sum())
    times[14:] = np.repeat([50 / 7, 20 / 3, 4.7], counts[6:])
    who = np.repeat([f"{one}" for one in range(len(counts))], counts)
    given = {"w": rng.normal(size=len(who))}
    data = from_long(who, times, rng.normal(size=len(who)), given)
    model = LinearModel(data, slopes=("time", "w"), random=("intercept", "time"))
    rest = data.values - data.covariates["w"] * model.law.shift[2, 0]
    for at, z in enumerate(model.start()[1]):
        here = model.individuals.individual_of == at
        X = np.column_stack([np.ones(counts[at]), data.times[here]])
        units = np.sqrt((X**2).mean(axis=0))
        both = np.column_stack([rest, data.covariates["w"]])[here]
        best = np.linalg.lstsq(X / units, both, rcond=None)[0] / units[:, None]
        assert_allclose(np.column_stack([z, model._turn[at]]), best, rtol=1e-9)


def test_lines_with_a_variance_of_zero_go_on_until_the_next_look():
    """There may be maxima at several bounds: iterations tell which of them is near."""
    rng = np.random.default_rng(0)
    who, times = np.repeat(range(40), 6), np.tile(np.arange(6.0), 40)
    values = 2 + 0.5 * times + 0.5 * rng.normal(size=240)
    own = rng.normal(size=(2, 40))[:, who]
    few = {"n_iter": 9, "burn_in": 4, "n_chains": 2, "window": 3}
    flat, steep = (
        fit_saem(from_long(who, times, one), "linear", **few)
        for one in (values, values + own[0] + own[1] * times)
    )
    known = [np.isfinite(one.standard_errors).all() for one in (flat, steep)]
    assert known == [False, True]
    assert (flat.converged, flat.n_iter, steep.n_iter) == (True, 3, 1)


def likelihood(data, columns, error):
    """Log-likelihood of lines with a random intercept alone, of (coefficients, log variance)."""
    X = np.column_stack([np.ones(data.n_rows), *map(data.product, columns)])
    nodes = np.linspace(-7, 7, 151)  # trapezoids of what vanishes at both ends are exact
    weights = np.exp(-0.5 * nodes**2)
    y = data.values[:, None]

    def value(at):
        eta = (X @ at[:-1])[:, None] + np.exp(at[-1] / 2) * nodes
        base = np.logaddexp(0, eta) if error == "bernoulli" else np.exp(eta) + gammaln(y + 1)
        inside = np.add.reduceat(y * eta - base, data.first[:-1], axis=0)
        return float(logsumexp(inside + np.log(weights / weights.sum()), axis=1).sum())

    return value


def top_of(value, start):
    """Where a log-likelihood is highest, and standard errors by its curvature there."""
    best = minimize(lambda at: -value(at), start, method="BFGS").x
    return best, errors_of(bends(value, best, np.full(len(best), 1e-2)))


@each("error", ["bernoulli", "poisson"])
def test_predictors_are_the_maximum_of_the_likelihood(error):
    """A random intercept alone: the likelihood is an integral over one number, by quadrature."""
    case = predictor(error)(np.random.default_rng(7))
    fit = fitted(case, n_iter=200, n_importance=100)
    value = likelihood(case[0], ["time"], error)
    best, _ = top_of(value, np.zeros(3))
    exact = np.array([*best[:2], np.exp(best[2])])
    assert (np.abs(fit.theta - exact) < 0.2 * fit.standard_errors).all(), (fit.theta, exact)
    assert abs(fit.log_likelihood.value - value(best)) < 4 * fit.log_likelihood.error + 0.02


def test_a_column_that_differs_mostly_between_individuals_is_found_as_others():
    """What rows say of it, latents hide: it is found, and known, as by integrating them out."""
    rng = np.random.default_rng(1)
    own, size = rng.normal(0, 2, 60), rng.integers(2, 8, 60)
    whose = np.repeat(np.arange(60), size)
    x = own[whose] + 0.05 * rng.normal(size=len(whose))
    eta = 2 + 0.1 * x + rng.normal(0, 0.8, 60)[whose]
    data = from_long(whose, np.arange(len(whose)), rng.poisson(np.exp(eta)) * 1.0, {"x": x})
    best, errors = top_of(likelihood(data, ["x"], "poisson"), [2.0, 0.1, 0.0])
    options = {"slopes": ["x"], "random": ["intercept"], "error": "poisson"}
    found = fit_saem(data, "linear", seed=1, model_options=options)
    theta = np.append(found.theta[:2], np.log(found.theta[2]))
    assert found.converged
    assert np.abs((theta - best) / errors).max() < 0.15
    assert found.standard_errors / [1, 1, found.theta[2]] == pytest.approx(errors, rel=0.1)


@each("error", ["poisson", "bernoulli"])
def test_coefficients_keep_their_errors_where_a_variance_is_zero(error):
    """They are those of the model without latents."""
    rng = np.random.default_rng(0)
    whose, times = np.repeat(np.arange(40), 6), np.tile(np.arange(6.0), 40)
    group = rng.integers(0, 2, 40)[whose] * 1.0
    X = np.column_stack([np.ones(240), times, group])
    eta, b = 0.2 * times - 0.2, np.zeros(3)
    drawn = rng.poisson(np.exp(eta)) if error == "poisson" else rng.random(240) < expit(eta)
    for _ in range(25):
        mean = np.exp(X @ b) if error == "poisson" else expit(X @ b)
        weight = mean if error == "poisson" else mean * (1 - mean)
        information = X.T @ (weight[:, None] * X)
        b += np.linalg.solve(information, X.T @ (drawn - mean))
    found = fit_saem(
        from_long(whose, times, drawn * 1.0, {"group": group}), "linear", n_iter=110, tol=0.0,
        n_importance=20,
        model_options={"random": ["intercept"], "effects": ["intercept:group"], "error": error},
    )  # fmt: skip
    told = lacking_errors(found.model.parameters, found.standard_errors)
    assert told.startswith("there are no standard errors of var(intercept)")
    assert told.endswith("are given these")
    wanted = errors_of(information)
    assert found.standard_errors[:3] == pytest.approx(wanted, rel=0.05)
    assert np.abs((found.theta[:3] - b) / wanted).max() < 0.15


# ---- models of every kind, by what their data were drawn with -----------------------------------


def table(times, values, doses=None, **covariates):
    """Individuals of values (n, m) at the same times (m,), with covariates (n, 1) or (1, m)."""
    n, m = values.shape
    columns = {name: np.broadcast_to(one, (n, m)).ravel() for name, one in covariates.items()}
    found = from_long(np.repeat(np.arange(n), m), np.tile(times, n), values.ravel(), columns)
    return replace(found, doses=doses)


def given(n, times, amount, duration=0.0):
    """The same doses of n individuals."""
    who = np.repeat(np.arange(n), len(times))
    every = np.ones(len(who))
    return Doses.from_lists(n, who, np.tile(times, n), amount * every, duration * every)


def infused(t, rate, duration):
    """What is left of an amount 1 that runs in, and goes with this rate; 0 before."""
    since = np.maximum(t, 0.0)
    if not duration:
        return np.where(t > 0, np.exp(-rate * since), 0.0)
    running = np.minimum(since, duration)
    return -np.expm1(-rate * running) * np.exp(-rate * (since - running)) / (rate * duration)


def drawn(rng, n, *laws):
    """Parameters (n, 1) that are log-normal, by median and sd."""
    return [middle * np.exp(sd * rng.normal(size=(n, 1))) for middle, sd in laws]


def oral(rng):
    """Outcomes: in plasma by 10 %, in saliva by 0.3. The peaks are after the third dose."""
    n, t = 14, np.array([1, 4, 8, 11.5, 13, 20, 25, 30, 37, 38.5, 44, 50])
    ka, cl, v = drawn(rng, n, (1.2, 0.3), (3.0, 0.3), (20.0, 0.2))
    f = sum(
        100 * ka / (v * ka - cl) * (infused(t - at, cl / v, 0) - infused(t - at, ka, 0))
        for at in (0, 12, 24)
    )
    plasma = f * (1 + 0.1 * rng.normal(size=f.shape))
    both = np.hstack([plasma, f + 0.3 * rng.normal(size=f.shape)])
    outcome = np.repeat([[0.0, 1.0]], len(t), axis=1)
    data = table(np.tile(t, 2), both, given(n, [0, 12, 24], 100), outcome=outcome)
    options = {"parameters": ("ka", "cl", "v"), "error": ("proportional", "constant")}
    truth = {
        "log ka": np.log(1.2), "log cl": np.log(3), "log v": np.log(20),
        "residual sd of outcome 0": 0.1, "residual sd of outcome 1": 0.3,
    }  # fmt: skip
    return data, "one-compartment", options, truth


def infusion(rng):
    n, t = 14, np.array([0.5, 1, 2, 4, 8, 12, 23.5, 25, 28, 36, 48])
    weight = rng.normal(70, 10, (n, 1))
    cl, v1, v2 = drawn(rng, n, (5.0, 0.3), (20.0, 0.2), (40.0, 0.25))
    cl *= (weight / 70) ** 0.75
    k, out, back = cl / v1, 3 / v1, 3 / v2
    total = k + out + back
    fast = (total + np.sqrt(total**2 - 4 * k * back)) / 2
    share = (fast - back) / (fast - (slow := total - fast))
    f = sum(
        500 / v1 * (share * infused(t - at, fast, 1) + (1 - share) * infused(t - at, slow, 1))
        for at in (0, 24)
    )
    y = f * (1 + 0.1 * rng.normal(size=f.shape)) + 0.2 * rng.normal(size=f.shape)
    data = table(t, y, given(n, [0, 24], 500, 1.0), weight=weight)
    options = {
        "error": "combined", "random": ("cl", "v1", "v2"), "effects": ("cl:log(weight/70)",)
    }  # fmt: skip
    truth = {
        "log cl": np.log(5), "log v1": np.log(20), "log q": np.log(3), "log v2": np.log(40),
        "beta(log cl, log(weight/70))": 0.75, "additive sd": 0.2, "proportional sd": 0.1,
    }  # fmt: skip
    return data, "two-compartment", options, truth


def ridge(rng):
    """Trees far from their asymptote: it and the rate are almost exchangeable, and stay finite."""
    n, t = 14, np.array([3.0, 5, 10, 15, 20, 25])
    top = 100 + 4 * rng.normal(size=(n, 1))
    y = top + (-8.5 - top) * np.exp(-np.exp(-3.23) * t) + 0.7 * rng.normal(size=(n, len(t)))
    truth = {"asymptote": 100.0, "start": -8.5, "log rate": -3.23}
    return table(t, y), "curve", {"curve": "asymptotic", "random": ("asymptote",)}, truth


def predictor(error):
    """Yes or no, or counts, with a random intercept alone."""

    def case(rng):
        n, t = 60, np.arange(-5.0, 6.0)
        eta = 0.5 + rng.normal(size=(n, 1)) + 0.3 * t
        y = rng.poisson(np.exp(eta))
        if error == "bernoulli":
            y = rng.random((n, len(t))) < expit(eta)
        options = {"slopes": ("time",), "random": ("intercept",), "error": error}
        truth = {"intercept": 0.5, "slope": 0.3, "var(intercept)": 1.0}
        return table(t, y.astype(float)), "linear", options, truth

    return case


def counts(rng):
    """Coefficients of covariates that stay begin at 0, and steps of counts are not too long."""
    n, m = 60, 4
    x = rng.normal(size=(n, 1))
    y = rng.poisson(np.exp(1.8 + x + 0.5 * rng.normal(size=(n, 1))), size=(n, m))
    options = {"slopes": ("x",), "random": ("intercept",), "error": "poisson"}
    truth = {"intercept": 1.8, "slope of x": 1.0}
    return table(np.arange(m), y * 1.0, x=x), "linear", options, truth


CASES = [oral, infusion, ridge, predictor("bernoulli"), counts]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_truth_is_found(case):
    seed, more = (3, {"n_iter": 200, "n_conditional": 80}) if case is ridge else (7, {})
    data, model, options, truth = case(np.random.default_rng(seed))
    fit = fitted((data, model, options), **more)
    off = {one: (fit.estimates[one] - true) / fit.errors[one] for one, true in truth.items()}
    assert all(abs(one) < 4 for one in off.values()), off  # nor is any NaN
    assert np.isfinite(fit.log_likelihood.value)
    which = np.array([4, 1, 7])
    model, z = fit.model.expand_about(fit.theta), fit.given.means[None]
    part = model.take_individuals(which).statistics(z[:, which])
    assert_allclose(part, model.statistics(z)[which], rtol=1e-12)


def test_a_variance_at_its_bound_is_not_paid_for_by_another():
    """Of a combined error whose proportional part is none, the additive part is the best alone."""
    rng = np.random.default_rng(4)
    t = np.linspace(0, 1, 8)
    data = table(t, 5 + 3 * t + 0.5 * rng.normal(size=(30, 1)) + 0.1 * rng.normal(size=(30, 8)))
    how = {"n_iter": 120, "burn_in": 80, "tol": 0.0, "n_importance": 100}
    fits = [
        fit_saem(data, "linear", model_options={"random": ["intercept"], "error": error}, **how)
        for error in ("combined", "constant")
    ]
    assert fits[0].log_likelihood.value > fits[1].log_likelihood.value - 0.5


# ---- what is refused ----------------------------------------------------------------------------


def test_steps_are_one_and_then_fall():
    assert [step_size(r, 3, 1.0) for r in range(1, 7)] == [1, 1, 1, 1, 1 / 2, 1 / 3]


@each(
    ("options", "words"),
    [
        ({"model": "linea"}, "did you mean 'linear'"),
        ({"model_options": {"slope": 1}}, "option of the model linear must be one of slopes"),
        ({"devices": 27}, "27"),
        ({"devices": evenly(25, 2)}, "devices hold 25 individuals"),
        ({"sampler": "gibs"}, "sampler must be one of"),
        ({"decay": 0.5}, "decay must be a number above 0.5"),
        ({"burn_in": 1001}, "burn_in must be an integer"),
        ({"participation": 0}, "participation must be"),
        ({"tol": -1}, "tol must be a finite number of at least 0"),
        ({"average": "model"}, "did you mean 'models'"),
        ({"average": "models", "codec": "topk:0.5"}, "sends models exactly"),
        ({"feedback": "some"}, "feedback must be one of"),
        ({"codec": "topk:2"}, "topk"),
        ({"longest_step": 1.5}, "must be auto, or a number above 0"),
        ({"gradient_codec": "qsgd:4bits"}, "takes no codec"),
        ({"start": [1.0, 2.0]}, "the first parameters of model LinearModel must have shape"),
        ({"model": lambda individuals: 3}, "returns a SaemModel"),
        ({"model": "gmm", "model_options": {"n_components": 2}, "sampler": "mala"},
         "are discrete, which mala cannot move"),
        ({"seed": -1}, "seed must be"),
    ],
)  # fmt: skip
def test_options_that_are_refused(options, words):
    first = BOYS.first[:-1]
    data = from_long(BOYS.names, np.zeros(26), BOYS.values[first]) if "mala" in words else BOYS
    with pytest.raises(InputError, match=words):
        fit_saem(data, **options)


# ---- lines whose random effects are integrated out: beside direct formulas, and R's lme4 ---------


LINES = {
    "lines": ({}, 0.0),
    "one intercept each": ({"random": ("intercept",)}, 30.0),
    "diagonal": ({"slopes": ("time", "w"), "covariance": "diagonal"}, 0.0),
    "effects": ({"slopes": ("time", "w"), "random": ("intercept", "time"),
                 "effects": ("intercept:x", "time:x")}, 3.0),
}  # fmt: skip


def people(n=25, seed=0, moved=0.0):
    """Individuals of 2 to 7 rows, with an x of each and a w of each row, that overlap."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, 8, size=n)
    who = np.repeat(np.arange(n), counts)
    times = rng.normal(size=len(who))
    x, w = rng.normal(size=n)[who], 100 + rng.normal(size=len(who))
    b = rng.multivariate_normal([2, 0.3], [[1.0, 0.3], [0.3, 0.5]], size=n)[who]
    values = b[:, 0] + b[:, 1] * times + 0.5 * x + 0.2 * (w - 100) + rng.normal(size=len(who))
    return from_long(who, times + moved, values, {"x": x, "w": w})


def direct(model, theta):
    """The log-likelihood by the normal law of each individual's rows."""
    B, omega, s = model.unpack(theta)
    data, design = model.individuals, model.columns(model.individuals)
    whole = model.law.means(B)[data.individual_of]
    rest, Z = data.values - (design * whole).sum(axis=1), design[:, model.law.random]
    total = 0.0
    for i in range(model.n):
        rows = slice(*data.first[i : i + 2])
        V, e = Z[rows] @ omega @ Z[rows].T + s * np.eye(data.counts[i]), rest[rows]
        total += np.linalg.slogdet(2 * np.pi * V)[1] + e @ np.linalg.solve(V, e)
    return -total / 2


@each("case", LINES)
def test_likelihood_and_information_are_those_of_a_normal_law(case):
    options, moved = LINES[case]
    model = LinearModel(people(moved=moved), **options)
    found = model.integrated(model.start()[0])
    assert found.each.sum() == pytest.approx(direct(model, found.theta), rel=1e-9)
    assert model.marginal(found.theta).sum() == pytest.approx(direct(model, found.theta), rel=1e-9)
    errors = np.sqrt(np.diag(found.certain.covariance))
    known = np.isfinite(errors)
    steps = np.where(known, errors, 1e-3)
    assert known.sum() >= len(known) - 1
    wanted = bends(lambda theta: direct(model, theta), found.theta, 0.005 * steps)
    scale = np.sqrt(np.outer(np.diag(wanted), np.diag(wanted)))[np.ix_(known, known)]
    off = (found.certain.information - wanted)[np.ix_(known, known)] / scale
    assert np.abs(off).max() < 1e-5
    # Nothing near is better, and elsewhere formulas say the same without a maximum.
    for i in np.flatnonzero(known):
        for h in (-0.05, 0.05):
            near = found.theta + h * steps * (np.arange(len(errors)) == i)
            assert direct(model, near) < found.each.sum()
    near = found.theta * 1.01
    assert model.integrated(near, best=False).each.sum() == pytest.approx(direct(model, near))


def test_tests_are_lmertests():
    """lmerTest 3.1: lmer(height ~ age + (age | Subject), Oxboys), and by maximum likelihood."""
    fit = fit_saem(BOYS, "linear")
    assert_allclose(fit.theta[:2], [149.37175, 6.5254675], rtol=1e-6)
    assert_allclose(fit.standard_errors[:2], [1.554604, 0.329766], rtol=1e-4)
    assert_allclose(fit.certain.test_errors[:2], [1.585416, 0.336302], rtol=1e-4)
    assert_allclose(fit.certain.freedom[:2], [25, 25], rtol=1e-3)
    assert fit.log_likelihood.value == pytest.approx(-362.9839, abs=1e-4)
    group = (np.arange(6) < 3).repeat(10) * 1.0  # two of three, and no effect
    values = np.random.default_rng(0).normal(size=(6, 1)) + np.random.default_rng(1).normal(
        size=(6, 10)
    )
    data = from_long(np.repeat(np.arange(6), 10), np.tile(np.arange(10.0), 6), values.ravel(),
                     {"group": group})  # fmt: skip
    model = LinearModel(data, ("time", "group"), ("intercept",))
    certain = model.integrated(model.start()[0]).certain
    assert certain.freedom[2] == pytest.approx(4, rel=1e-3)
    assert certain.test_errors[2] > 1.1 * np.sqrt(certain.covariance[2, 2])


def test_a_variance_of_zero_leaves_the_others_their_errors():
    """lme4's Dyestuff2: the batches do not differ, and the intercept's error is 0.667."""
    rng = np.random.default_rng(1)
    values = 5.0 + rng.normal(size=(6, 5))
    values -= values.mean(axis=1, keepdims=True) - 5.0
    data = from_long(np.repeat(np.arange(6), 5), np.tile(np.arange(5.0), 6), values.ravel())
    fit = fit_saem(data, "linear", model_options={"slopes": ()})
    assert fit.errors["intercept"] == pytest.approx(values.std() / np.sqrt(30), rel=1e-4)
    assert np.isnan(fit.errors["var(intercept)"])
    assert np.isfinite(fit.errors["residual variance"])


def test_columns_that_say_the_same_have_no_errors():
    """Nothing tells two coefficients of one column apart: no formula says anything of them."""
    data = people()
    twin = from_long(data.individual_of, data.times, data.values,
                     {"w": data.covariates["w"], "v": 2 * data.covariates["w"]})  # fmt: skip
    model = LinearModel(twin, ("w", "v"), ("intercept",))
    assert model.integrated(model.start()[0]) is None


def test_few_individuals_are_told():
    few = {"n_iter": 20, "tol": 0.0, "n_conditional": 20, "n_importance": 20}
    fit = fit_saem(people(n=8), "curve", model_options={"curve": "asymptotic"}, **few)
    assert (fit.certain.freedom[:3] == 5).all()
    assert np.isinf(fit.certain.freedom[3:]).all()
    one = Summary(fit.saved).parameters[0]
    if np.isfinite(one.error):
        assert one.upper - one.value == pytest.approx(t_law.ppf(0.975, 5) * one.error)


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_sums_of_a_look_that_finds_no_maximum_are_counted(monkeypatch):
    """Lines without residuals are looked at after the first iteration, unless tol is 0."""
    who, times = np.repeat(np.arange(6), 4), np.tile(np.arange(4.0), 6)
    data = from_long(who, times, np.random.default_rng(0).normal(size=6)[who] + times)
    evaluate, sums, sent = _Lines.evaluate_at, [], []

    def counted(lines, now):
        found = evaluate(lines, now)
        sums.append(lines.size)
        return found

    monkeypatch.setattr(_Lines, "evaluate_at", counted)
    for tol in (0.0, 0.1):
        fit = fit_saem(data, "linear", n_iter=12, burn_in=6, devices=3, tol=tol)
        assert not fit.converged
        sent.append((len(sums), fit.ledger.messages, fit.ledger.bytes))
    more, messages, n_bytes = np.diff(sent, axis=0)[0] - [sent[0][0], 0, 0]
    assert more > 2
    assert (messages, n_bytes) == (6 * more, 24 * more * (sums[0] + len(fit.theta)))
