"""Units, and where a covariate has its zero, change nothing; what is barely there."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, gammaln, logsumexp

from vpem.errors import NumericalError
from vpem.saem.conditional import (
    Conditional,
    covariance_of,
    importance_log_likelihood,
    observed_information,
    sample_conditional,
)
from vpem.saem.estimates import lacking_errors
from vpem.saem.fit import fit_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import Streams, from_long, from_matrix
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.models.model import floored, make_model
from vpem.saem.prediction import Predictor
from vpem.saem.samplers import Exact, Langevin

from .cli_support import ROOT
from .tables import each, each_once, pairwise

BOYS = read_individuals(ROOT / "data" / "oxford_boys.csv")
DRUG = read_individuals(ROOT / "data" / "theophylline.csv")
QUICK = {"n_iter": 40, "burn_in": 20, "tol": 0.0, "n_conditional": 30, "n_importance": 60}


def rescaled(data, time=1.0, value=1.0, dose=1.0, since=0.0):
    covariates = {name: dose * values for name, values in data.covariates.items()}
    times = time * data.times + since
    return replace(data, times=times, values=value * data.values, covariates=covariates)


@each_once(
    sampler=["exact", "metropolis", "mala"], units=[(525600, 1), (1e-6, 1), (1, 1e-6), (1e3, 1e6)]
)
def test_units_of_a_linear_model_do_not_matter(sampler, units):
    time, value = units
    fits = [fit_saem(one, sampler=sampler, **QUICK) for one in (BOYS, rescaled(BOYS, time, value))]
    slope = value / time
    units = np.array([value, slope, value**2, value * slope, slope**2, value**2])
    np.testing.assert_allclose(fits[1].theta / units, fits[0].theta, rtol=1e-5)
    np.testing.assert_allclose(
        fits[1].standard_errors / units, fits[0].standard_errors, rtol=1e-4, equal_nan=True
    )
    moved = fits[1].log_likelihood.value + BOYS.n_rows * np.log(value)
    assert moved == pytest.approx(fits[0].log_likelihood.value, abs=1e-3)
    assert np.isfinite(fits[0].standard_errors).all()


@each(("time", "value", "dose"), [(60, 1, 1), (1 / 8760, 1e-6, 1e-6), (1, 1e-9, 1e3)])
def test_units_of_a_dose_do_not_matter(time, value, dose):
    options = {**QUICK, "sampler_options": {"n_steps": 1}, "n_chains": 1, "n_iter": 30}
    fits = [
        fit_saem(one, "one-compartment", **options)
        for one in (DRUG, rescaled(DRUG, time, value, dose))
    ]
    shift = np.array([-np.log(time), np.log(dose / value / time), -np.log(time)])
    np.testing.assert_allclose(fits[1].theta[:3] - shift, fits[0].theta[:3], rtol=1e-4)
    np.testing.assert_allclose(fits[1].theta[3:-1], fits[0].theta[3:-1], rtol=1e-3)
    assert fits[1].theta[-1] / value == pytest.approx(fits[0].theta[-1], rel=1e-4)


def test_items_far_from_zero_are_as_near_it():
    rng = np.random.default_rng(0)
    loadings = np.array([[1, 0.8, 0], [0.9, 0.6, 0], [0.8, 0, 0.7], [1.1, 0, 0.9]])
    Y = rng.normal(size=(100, 3)) @ loadings.T + 0.5 * rng.normal(size=(100, 4))
    options = {"model_options": {"groups": [0, 0, 1, 1]}, "n_chains": 4, **QUICK}
    near, far, small = (
        fit_saem(from_matrix(one), "bifactor", **options) for one in (Y, Y + 1e6, 1e-7 * Y)
    )
    np.testing.assert_allclose(far.theta[4:], near.theta[4:], rtol=1e-5)
    np.testing.assert_allclose(far.theta[:4] - 1e6, near.theta[:4], atol=1e-6)
    np.testing.assert_allclose(small.theta[4:12], 1e-7 * near.theta[4:12], rtol=1e-6)
    np.testing.assert_allclose(small.theta[12:], 1e-14 * near.theta[12:], rtol=1e-6)


# ---- where a covariate has its zero -------------------------------------------------------------

FEW = {"n_iter": 14, "tol": 0.0, "n_conditional": 10, "n_importance": 30, "seed": 3}
RANDOM = {
    "an intercept": {"random": ["intercept"]},
    "both": {"random": ["intercept", "time"]},
    "both, an effect": {"random": ["intercept", "time"], "effects": ["intercept:group"]},
    "products": {"slopes": ["time", "time:time", "group", "time:group"], "random": ["intercept"]},
    "a slope without its intercept": {"slopes": ["time", "x"], "random": ["x"]},
}


def measured(error, moved, seed=5, slopes=0.0):
    """Rows of 30 individuals at times that are moved, and whose slopes vary."""
    rng = np.random.default_rng(seed)
    each_row, times = np.repeat(np.arange(30), 8), np.tile(np.arange(-4.0, 4.0), 30)
    slope = 0.1 + slopes * rng.normal(size=30)[each_row]
    eta = 0.3 + rng.normal(0, 0.8, 30)[each_row] + slope * times
    group, x = (each_row % 2).astype(float) + 5, rng.normal(3, 1, 240)
    values = {
        "constant": eta + 0.5 * rng.normal(size=240),
        "poisson": rng.poisson(np.exp(eta)),
        "bernoulli": rng.random(240) < 1 / (1 + np.exp(-eta)),
        "proportional": (5 + eta) * (1 + 0.1 * rng.normal(size=240)),
    }[error]
    return from_long(each_row, times + moved, values * 1.0, {"group": group, "x": x})


@pairwise(
    kind=RANDOM, error=["poisson", "bernoulli", "proportional"], devices=[1, 4],
    moved=[10.0, 70.0, 2005.0],
)  # fmt: skip
def test_moving_time_changes_nothing_but_intercepts(kind, error, devices, moved):
    options = {"error": error, **RANDOM[kind]}
    first, found = (
        fit_saem(measured(error, by), "linear", model_options=options, devices=devices, **FEW)
        for by in (0.0, moved)
    )
    names = first.model.parameters
    steady = [name for name in names if name in ("slope of time:time", "slope of x", "var(slope)")]
    if "slope of time:time" not in names:
        steady.append("slope")
    assert found.log_likelihood.value == pytest.approx(first.log_likelihood.value, rel=1e-6)
    for name in steady:
        assert found.estimates[name] == pytest.approx(first.estimates[name], rel=1e-5)
        assert found.errors[name] == pytest.approx(first.errors[name], rel=1e-4, nan_ok=True)
    if kind == "an intercept":
        before = first.estimates["intercept"] - moved * first.estimates["slope"]
        assert found.estimates["intercept"] == pytest.approx(before, rel=1e-6)
        means = first.given.means - moved * first.estimates["slope"]
        np.testing.assert_allclose(found.given.means, means, rtol=1e-6)


@each("kind", RANDOM)
def test_a_model_inside_is_the_same_model(kind):
    made = make_model("linear", measured("poisson", 30.0), error="poisson", **RANDOM[kind])
    inside = made.inside()
    rng = np.random.default_rng(0)
    theta, z = inside.start()
    B, omega = np.zeros(inside.law.mask.shape), np.eye(len(inside.latents)) + 0.3
    B[inside.law.places] = rng.normal(0, 0.3, len(inside.law.coefficients))
    theta = inside.law.pack(B, omega)
    z = z[None] + rng.normal(size=(3, *z.shape))
    about = inside.expand_about(theta)
    outer = inside.outside(theta)
    turned = np.linalg.slogdet(inside.turn)[1]
    np.testing.assert_allclose(
        made.expand_about(outer).log_complete(about.shown(z), outer) + turned,
        about.log_complete(z, theta), rtol=1e-8,
    )  # fmt: skip
    np.testing.assert_allclose(np.linalg.solve(inside.jacobian, outer), theta, rtol=1e-6, atol=1e-8)


def test_columns_inside_are_unrelated_and_a_fit_begins_with_what_another_found():
    data = measured("poisson", 2005.0)
    options = {"slopes": ["time", "time:time", "group", "x"], "random": ["intercept"]}
    inside = make_model("linear", data, error="poisson", **options).inside()
    X = inside.law.frame.design(data)
    assert X.shape[1] == 4
    np.testing.assert_allclose(X.T @ X / len(X), np.eye(4), atol=1e-6)
    C = inside.law.design[:, : -inside.law.n_carried]
    np.testing.assert_allclose(C.T @ C / len(C), np.eye(2), atol=1e-9)
    options = {"error": "poisson", "random": ["intercept"]}
    first = fit_saem(data, "linear", model_options=options, **FEW)
    again = fit_saem(data, "linear", model_options=options, start=first.theta, **FEW)
    np.testing.assert_allclose(again.trace[0], first.theta, rtol=1e-9)


@each(
    "options",
    [
        {},
        {"slopes": ("time", "x"), "random": ("intercept", "time")},
        {"effects": ("intercept:group", "time:group")},
    ],
)
def test_lines_far_from_zero_are_predicted_alike(options):
    found = []
    for moved in (0.0, 2005.0):
        data = measured("constant", moved, slopes=0.3)
        predictor = Predictor(fit_saem(data, "linear", model_options=options).saved)
        found.append((predictor.curves(data).fitted,
                      predictor.population(individuals=data).fitted,
                      predictor.score(data).value / 240))  # fmt: skip
    for near, far in zip(*found, strict=True):
        np.testing.assert_allclose(far, near, rtol=0, atol=1e-6)


def test_answers_far_from_zero_are_predicted_alike():
    few = {"n_iter": 20, "tol": 0.0, "n_conditional": 10, "n_importance": 20}
    options = {"error": "bernoulli", "slopes": ("time", "x"), "random": ("intercept", "time")}
    found = []
    for moved in (0.0, 2005.0):
        data = measured("bernoulli", moved, slopes=0.3)
        fit = fit_saem(data, "linear", model_options=options, **few).saved
        curves = [Predictor(fit, seed=s, n_draws=120).curves(data).fitted for s in (0, 1)]
        found.append((Predictor(fit).population(individuals=data).fitted, *curves))
    (population, one, two), (same, far, _) = found
    np.testing.assert_allclose(same, population, rtol=1e-8)
    # Curves of individuals are means of draws: as far from each other as those of two seeds.
    noise = np.sqrt(np.square(one - two).mean())
    assert noise < 0.15 * one.std()
    assert np.sqrt(np.square(one - far).mean()) < 2 * noise


def quadrature(data, columns, points=301):
    """Marginal log-likelihood of counts with a random intercept, by parameters (g, log omega)."""
    X = np.column_stack([np.ones(data.n_rows), *(data.covariates[name] for name in columns)])
    nodes = np.linspace(-6, 6, points)
    weights = np.exp(-0.5 * nodes**2)

    def value(at):
        eta = (X @ at[:-1])[:, None] + np.exp(at[-1] / 2) * nodes
        each_row = data.values[:, None] * eta - np.exp(eta) - gammaln(data.values + 1)[:, None]
        inside = np.add.reduceat(each_row, data.first[:-1], axis=0)
        return float(logsumexp(inside + np.log(weights / weights.sum()), axis=1).sum())

    return value


def curvature(value, at, step=1e-3):
    """Second derivatives of a function, by central differences."""
    moves = step * np.eye(len(at))
    return np.array([[
        (value(at + a + b) - value(at + a - b) - value(at - a + b) + value(at - a - b))
        / (4 * step**2) for b in moves] for a in moves])  # fmt: skip


def test_a_column_that_differs_mostly_between_individuals_is_found_as_others():
    """What rows say of it, latents hide: it is found, and known, as by integrating them out."""
    rng = np.random.default_rng(1)
    own, size = rng.normal(0, 2, 60), rng.integers(2, 8, 60)
    whose = np.repeat(np.arange(60), size)
    x = own[whose] + 0.05 * rng.normal(size=len(whose))
    eta = 2 + 0.1 * x + rng.normal(0, 0.8, 60)[whose]
    data = from_long(whose, np.arange(len(whose)), rng.poisson(np.exp(eta)) * 1.0, {"x": x})
    value = quadrature(data, ["x"])
    best = minimize(lambda at: -value(at), [2.0, 0.1, 0.0], method="BFGS").x
    errors = np.sqrt(np.diag(np.linalg.inv(-curvature(value, best))))
    found = fit_saem(
        data, "linear", seed=1,
        model_options={"slopes": ["x"], "random": ["intercept"], "error": "poisson"},
    )  # fmt: skip
    theta = np.append(found.theta[:2], np.log(found.theta[2]))
    assert found.converged
    assert np.abs((theta - best) / errors).max() < 0.15
    told = found.standard_errors / [1, 1, found.theta[2]]
    assert told == pytest.approx(errors, rel=0.1)


@each("error", ["poisson", "bernoulli"])
def test_coefficients_keep_their_errors_where_a_variance_is_zero(error):
    """They are those of the model without latents."""
    rng = np.random.default_rng(0)
    whose, times = np.repeat(np.arange(40), 6), np.tile(np.arange(6.0), 40)
    group = rng.integers(0, 2, 40)[whose] * 1.0
    X = np.column_stack([np.ones(240), times, group])
    drawn = {
        "poisson": lambda eta: rng.poisson(np.exp(eta)),
        "bernoulli": lambda eta: rng.random(240) < expit(eta),
    }[error](0.2 * times - 0.2)
    b = np.zeros(3)
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
    assert np.isnan(found.errors["var(intercept)"])
    told = lacking_errors(found.model.parameters, found.standard_errors)
    assert told.startswith("there are no standard errors of var(intercept)")
    assert told.endswith("are given these")
    wanted = np.sqrt(np.diag(np.linalg.inv(information)))
    assert found.standard_errors[:3] == pytest.approx(wanted, rel=0.05)
    assert np.abs((found.theta[:3] - b) / wanted).max() < 0.15


# ---- what is barely there -----------------------------------------------------------------------


def test_floored_covariances_keep_their_units():
    good = np.array([[1e12, 0.5e3], [0.5e3, 1e-6]])
    np.testing.assert_array_equal(floored(good, np.array([1.0, 1e-18])), good)
    wrong = np.array([[4.0, 100.0], [100.0, -1.0]])
    found = floored(wrong, np.array([1e-3, 1e-6]))
    np.testing.assert_allclose(np.diag(found), [4.0, 1e-6], rtol=1e-6)
    assert np.linalg.eigvalsh(found).min() > 0


def test_errors_of_variances_that_are_zero_are_not_told():
    """The others' are."""
    rng = np.random.default_rng(1)
    n, times = 40, np.arange(5.0)
    y = 3 + rng.normal(size=(n, 1)) + 2 * times + 0.5 * rng.normal(size=(n, 5))
    model = LinearModel(from_long(np.repeat(range(n), 5), np.tile(times, n), y.ravel()))
    theta = np.array([3.0, 2.0, 1.0, 0.0, 1e-7, 0.25])
    chains = Exact().begin(model, theta, model.start()[1], 2)
    given = sample_conditional(model, theta, Exact(), chains, after=0, late=1)
    errors = np.sqrt(np.diag(covariance_of(observed_information(model, theta, given))))
    assert np.isnan(errors[4])
    assert errors[0] == pytest.approx(np.sqrt((1 + 0.25 * 0.6) / n), rel=0.2)
    assert errors[5] == pytest.approx(0.25 * np.sqrt(2 / (4 * n)), rel=0.2)


def test_errors_are_none_where_rows_do_not_tell():
    nothing = np.array([[1.0, 1.0, 0], [1.0, 1.0, 0], [0, 0, 2.0]])
    assert np.isnan(covariance_of(nothing)).all()
    nothing[2] = nothing[:, 2] = np.nan
    nothing[0, 1] = nothing[1, 0] = 0.5
    errors = np.sqrt(np.diag(covariance_of(nothing)))
    np.testing.assert_allclose(errors, [1.1547, 1.1547, np.nan], rtol=1e-4)


def test_few_draws_leave_no_direction_out_and_steps_that_run_away_are_told():
    model = LinearModel(BOYS)
    theta, z = model.start()
    means, covariances = model.posterior(theta)
    flat = np.einsum("nij,j->ni", np.linalg.cholesky(covariances), [1.0, 1.0])
    singular = flat[:, :, None] * flat[:, None, :]
    nobody = np.zeros(0)
    given = Conditional(means, singular, means, means, 0.95, nobody, nobody, nobody, 2, nobody)
    streams = Streams.from_names(model.individuals.names, 0)
    found = importance_log_likelihood(model, theta, given, streams, after=0)
    assert found.value == pytest.approx(model.marginal(theta).sum(), abs=5 * found.error)
    assert found.error < 0.2
    sampler = Langevin(step=100.0, decay=0, n_steps=4)
    chains = sampler.begin(model, theta, z, 1)
    with pytest.raises(NumericalError, match="ran away"):
        sample_conditional(model, theta, sampler, chains, after=0, late=1)


def test_a_placebo_has_the_clearance_of_others():
    first = DRUG.individual_of == 0
    nothing = {"dose": np.where(first, 0.0, DRUG.covariate("dose"))}
    data = replace(DRUG, values=np.where(first, 0.0, DRUG.values), covariates=nothing)
    theta, z = OneCompartmentModel(data).start()
    assert np.abs(z - z.mean(axis=0)).max() < 1.5
    fit = fit_saem(
        data, "one-compartment", sampler="langevin", n_iter=60, burn_in=40, tol=0.0,
        n_conditional=20, n_importance=100,
    )  # fmt: skip
    assert np.abs(fit.theta[:3] - theta[:3]).max() < 0.5
