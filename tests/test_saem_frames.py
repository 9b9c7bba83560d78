"""Where a covariate has its zero changes nothing but intercepts, and what varies with them."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, gammaln, logsumexp

from vpem import fit_saem
from vpem.saem.estimates import lacking_errors
from vpem.saem.individuals import from_long
from vpem.saem.models.model import make_model

OFFSETS = (10.0, 70.0, 300.0, 2005.0)
QUICK = {"n_iter": 40, "tol": 0.0, "n_conditional": 20, "n_importance": 100, "seed": 3}
RANDOM = {
    "an intercept": {"random": ["intercept"]},
    "both": {"random": ["intercept", "time"]},
    "both, an effect": {"random": ["intercept", "time"], "effects": ["intercept:group"]},
    "products": {"slopes": ["time", "time:time", "group", "time:group"], "random": ["intercept"]},
    "a slope without its intercept": {"slopes": ["time", "x"], "random": ["x"]},
}


def measured(error, moved, seed=5):
    """Rows of 30 individuals at times that are moved, and what they were drawn from."""
    rng = np.random.default_rng(seed)
    each, times = np.repeat(np.arange(30), 8), np.tile(np.arange(-4.0, 4.0), 30)
    eta = 0.3 + rng.normal(0, 0.8, 30)[each] + 0.1 * times
    group, x = (each % 2).astype(float) + 5, rng.normal(3, 1, 240)
    values = {
        "poisson": rng.poisson(np.exp(eta)),
        "bernoulli": rng.random(240) < 1 / (1 + np.exp(-eta)),
        "proportional": (5 + eta) * (1 + 0.1 * rng.normal(size=240)),
    }[error]
    return from_long(each, times + moved, values * 1.0, {"group": group, "x": x})


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("error", ["poisson", "bernoulli", "proportional"])
@pytest.mark.parametrize("kind", RANDOM)
def test_moving_time_changes_nothing_but_intercepts(kind, error, devices):
    options = {"error": error, **RANDOM[kind]}
    fits = [
        fit_saem(measured(error, moved), "linear", model_options=options, devices=devices, **QUICK)
        for moved in (0.0, *OFFSETS)
    ]
    names = fits[0].model.parameters
    steady = [name for name in names if name in ("slope of time:time", "slope of x", "var(slope)")]
    if "slope of time:time" not in names:
        steady.append("slope")
    for moved, found in zip(OFFSETS, fits[1:], strict=True):
        assert found.log_likelihood.value == pytest.approx(fits[0].log_likelihood.value, rel=1e-6)
        for name in steady:
            assert found.estimates[name] == pytest.approx(fits[0].estimates[name], rel=1e-5)
            assert found.errors[name] == pytest.approx(fits[0].errors[name], rel=1e-4, nan_ok=True)
        if kind == "an intercept":
            before = fits[0].estimates["intercept"] - moved * fits[0].estimates["slope"]
            assert found.estimates["intercept"] == pytest.approx(before, rel=1e-6)
            means = fits[0].given.means - moved * fits[0].estimates["slope"]
            np.testing.assert_allclose(found.given.means, means, rtol=1e-6)


@pytest.mark.parametrize("kind", RANDOM)
def test_a_model_inside_is_the_same_model(kind):
    made = make_model("linear", measured("poisson", 30.0), error="poisson", **RANDOM[kind])
    inside = made.inside()
    rng = np.random.default_rng(0)
    theta, z = inside.start()
    B, omega = rng.normal(0, 0.3, len(inside.law.coefficients)), np.eye(len(inside.latents)) + 0.3
    unpacked = np.zeros(inside.law.mask.shape)
    unpacked[inside.law.places] = B
    theta = inside.law.pack(unpacked, omega)
    z = z[None] + rng.normal(size=(3, *z.shape))
    about = inside.expand_about(theta)
    outer = inside.outside(theta)
    turned = np.linalg.slogdet(inside.turn)[1]
    np.testing.assert_allclose(
        made.expand_about(outer).log_complete(about.shown(z), outer) + turned,
        about.log_complete(z, theta), rtol=1e-8,
    )  # fmt: skip
    np.testing.assert_allclose(np.linalg.solve(inside.jacobian, outer), theta, rtol=1e-6, atol=1e-8)


def test_columns_inside_are_unrelated_and_those_of_individuals_effects():
    data = measured("poisson", 2005.0)
    options = {"slopes": ["time", "time:time", "group", "x"], "random": ["intercept"]}
    inside = make_model("linear", data, error="poisson", **options).inside()
    X = inside.law.frame.design(data)
    assert X.shape[1] == 4
    np.testing.assert_allclose(X.T @ X / len(X), np.eye(4), atol=1e-6)
    C = inside.law.design[:, : -inside.law.n_carried]
    np.testing.assert_allclose(C.T @ C / len(C), np.eye(2), atol=1e-9)


def test_a_fit_begins_with_what_another_found():
    data = measured("poisson", 2005.0)
    options = {"error": "poisson", "random": ["intercept"]}
    first = fit_saem(data, "linear", model_options=options, **QUICK)
    again = fit_saem(data, "linear", model_options=options, start=first.theta, **QUICK)
    np.testing.assert_allclose(again.trace[0], first.theta, rtol=1e-9)


def quadrature(data, columns, points=601):
    """Marginal log-likelihood of counts with a random intercept, by parameters (g, log omega)."""
    X = np.column_stack([np.ones(data.n_rows), *(data.covariates[name] for name in columns)])
    nodes = np.linspace(-6, 6, points)
    weights = np.exp(-0.5 * nodes**2)

    def value(at):
        eta = (X @ at[:-1])[:, None] + np.exp(at[-1] / 2) * nodes
        each = data.values[:, None] * eta - np.exp(eta) - gammaln(data.values + 1)[:, None]
        inside = np.add.reduceat(each, data.first[:-1], axis=0)
        return float(logsumexp(inside + np.log(weights / weights.sum()), axis=1).sum())

    return value


def curvature(value, at, step=1e-3):
    """Second derivatives of a function, by central differences."""
    moves = step * np.eye(len(at))
    return np.array([[
        (value(at + a + b) - value(at + a - b) - value(at - a + b) + value(at - a - b))
        / (4 * step**2) for b in moves] for a in moves])  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
def test_a_column_that_differs_mostly_between_individuals_is_found_as_others(seed):
    """What rows say of it, latents hide: it is found, and known, as by integrating them out."""
    rng = np.random.default_rng(seed)
    own, size = rng.normal(0, 2, 60), rng.integers(2, 8, 60)
    each = np.repeat(np.arange(60), size)
    x = own[each] + 0.05 * rng.normal(size=len(each))
    eta = 2 + 0.1 * x + rng.normal(0, 0.8, 60)[each]
    data = from_long(each, np.arange(len(each)), rng.poisson(np.exp(eta)) * 1.0, {"x": x})
    value = quadrature(data, ["x"])
    best = minimize(lambda at: -value(at), [2.0, 0.1, 0.0], method="BFGS").x
    errors = np.sqrt(np.diag(np.linalg.inv(-curvature(value, best))))
    found = fit_saem(
        data, "linear", seed=seed,
        model_options={"slopes": ["x"], "random": ["intercept"], "error": "poisson"},
    )  # fmt: skip
    theta = np.append(found.theta[:2], np.log(found.theta[2]))
    assert found.converged
    assert np.abs((theta - best) / errors).max() < 0.15
    told = found.standard_errors / [1, 1, found.theta[2]]
    assert told == pytest.approx(errors, rel=0.1)


@pytest.mark.parametrize("error", ["poisson", "bernoulli"])
def test_coefficients_keep_their_errors_where_a_variance_is_zero(error):
    """They are those of the model without latents."""
    rng = np.random.default_rng(0)
    each, times = np.repeat(np.arange(40), 6), np.tile(np.arange(6.0), 40)
    group = rng.integers(0, 2, 40)[each] * 1.0
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
        from_long(each, times, drawn * 1.0, {"group": group}), "linear", n_iter=300,
        model_options={"random": ["intercept"], "effects": ["intercept:group"], "error": error},
    )  # fmt: skip
    assert np.isnan(found.errors["var(intercept)"])
    told = lacking_errors(found.model.parameters, found.standard_errors)
    assert told.startswith("there are no standard errors of var(intercept)")
    assert told.endswith("are given these")
    wanted = np.sqrt(np.diag(np.linalg.inv(information)))
    assert found.standard_errors[:3] == pytest.approx(wanted, rel=0.05)
    assert np.abs((found.theta[:3] - b) / wanted).max() < 0.15
