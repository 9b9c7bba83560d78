"""Mixed models of every kind find the parameters that their data were drawn with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import expit, gammaln, logsumexp

from vpem.saem.doses import Doses
from vpem.saem.fit import fit_saem
from vpem.saem.individuals import Individuals, from_long
from vpem.saem.models.model import Doubles
from vpem.saem.results import SaemFit

FILE = """
import numpy as np
from vpem.saem.structures.ode import ode
from vpem.saem.structures.structure import curve

@curve(top="log", rate="log")
def falls(time, top=5.0, rate=0.2):
    return top * np.exp(-rate * time)

@ode(1, top="log", rate="log")
def drained(time, amounts, top=5.0, rate=0.2):
    return -rate * amounts

@drained.first
def full(top, rate):
    return (top,)
"""


class Case(NamedTuple):
    """Data, the model of them, and the parameters that they were drawn with, by name."""

    data: Individuals
    model: str
    options: Mapping[str, Any]
    truth: Mapping[str, float]


def fitted(case: Case, **changes: Any) -> SaemFit:
    """A short fit."""
    short = {"n_iter": 100, "tol": 0.0, "n_conditional": 40, "n_importance": 20} | changes
    return fit_saem(case.data, case.model, model_options=case.options, **short)


def table(
    times: Doubles, values: Doubles, doses: Doses | None = None, **covariates: Doubles
) -> Individuals:
    """Individuals of values (n, m) at the same times (m,), with covariates (n, 1) or (1, m)."""
    n, m = values.shape
    columns = {name: np.broadcast_to(one, (n, m)).ravel() for name, one in covariates.items()}
    found = from_long(np.repeat(np.arange(n), m), np.tile(times, n), values.ravel(), columns)
    return replace(found, doses=doses)


def given(n: int, times: list[float], amount: float, duration: float = 0.0) -> Doses:
    """The same doses of n individuals."""
    who = np.repeat(np.arange(n), len(times))
    every = np.ones(len(who))
    return Doses.from_lists(n, who, np.tile(times, n), amount * every, duration * every)


def infused(t: Doubles, rate: Doubles, duration: float) -> Doubles:
    """What is left of an amount 1 that runs in, and goes with this rate; 0 before."""
    since = np.maximum(t, 0.0)
    if not duration:
        return np.where(t > 0, np.exp(-rate * since), 0.0)
    running = np.minimum(since, duration)
    return -np.expm1(-rate * running) * np.exp(-rate * (since - running)) / (rate * duration)


def over(starts: list[float], effect: Callable[[float], Doubles]) -> Doubles:
    """Effects of doses add up."""
    found: Doubles = np.sum([effect(start) for start in starts], axis=0)
    return found


def drawn(rng: np.random.Generator, n: int, *laws: tuple[float, float]) -> list[Doubles]:
    """Parameters (n, 1) that are log-normal, by median and sd."""
    return [middle * np.exp(sd * rng.normal(size=(n, 1))) for middle, sd in laws]


def bolus(rng: np.random.Generator) -> Case:
    n, t = 24, np.array([0.5, 2, 6, 11, 13, 20, 25, 30, 40])
    cl, v = drawn(rng, n, (3.0, 0.3), (20.0, 0.2))
    f = over([0, 12, 24], lambda at: 100 / v * infused(t - at, cl / v, 0))
    y = f * (1 + 0.1 * rng.normal(size=f.shape))
    options = {"parameters": ("cl", "v"), "error": "proportional"}
    truth = {"log cl": np.log(3), "log v": np.log(20), "var(log cl)": 0.09, "residual sd": 0.1}
    return Case(table(t, y, given(n, [0, 12, 24], 100)), "one-compartment", options, truth)


def oral(rng: np.random.Generator) -> Case:
    """Outcomes: in plasma by 10 %, in saliva by 0.3. The peaks are after the third dose."""
    n, t = 24, np.array([1, 4, 8, 11.5, 13, 20, 25, 30, 37, 38.5, 44, 50])
    ka, cl, v = drawn(rng, n, (1.2, 0.3), (3.0, 0.3), (20.0, 0.2))
    f = over(
        [0, 12, 24],
        lambda at: 100 * ka / (v * ka - cl) * (infused(t - at, cl / v, 0) - infused(t - at, ka, 0)),
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
    return Case(data, "one-compartment", options, truth)


def infusion(rng: np.random.Generator) -> Case:
    n, t = 24, np.array([0.5, 1, 2, 4, 8, 12, 23.5, 25, 28, 36, 48])
    weight = rng.normal(70, 10, (n, 1))
    cl, v1, v2 = drawn(rng, n, (5.0, 0.3), (20.0, 0.2), (40.0, 0.25))
    cl *= (weight / 70) ** 0.75
    k, out, back = cl / v1, 3 / v1, 3 / v2
    total = k + out + back
    fast = (total + np.sqrt(total**2 - 4 * k * back)) / 2
    slow = total - fast
    share = (fast - back) / (fast - slow)
    left = 1 - share
    f = (
        500
        / v1
        * over(
            [0, 24],
            lambda at: share * infused(t - at, fast, 1) + left * infused(t - at, slow, 1),
        )
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
    return Case(data, "two-compartment", options, truth)


def logistic(rng: np.random.Generator) -> Case:
    n, t = 30, np.arange(0.0, 12.0)
    (top,) = drawn(rng, n, (10.0, 0.2))
    y = top / (1 + np.exp(-(t - 5) / 1.2)) + 0.3 * rng.normal(size=(n, len(t)))
    options = {"curve": "logistic", "random": ("asymptote",)}
    truth = {"midpoint": 5.0, "scale": 1.2, "residual sd": 0.3}
    return Case(table(t, y), "curve", options, truth)


def predictor(error: str) -> Callable[[np.random.Generator], Case]:
    """Yes or no, or counts, with a random intercept alone."""

    def case(rng: np.random.Generator) -> Case:
        n, t = 60, np.arange(-5.0, 6.0)
        eta = 0.5 + rng.normal(size=(n, 1)) + 0.3 * t
        y = rng.poisson(np.exp(eta))
        if error == "bernoulli":
            y = rng.random((n, len(t))) < expit(eta)
        options = {"slopes": ("time",), "random": ("intercept",), "error": error}
        truth = {"intercept": 0.5, "slope": 0.3, "var(intercept)": 1.0}
        return Case(table(t, y.astype(float)), "linear", options, truth)

    return case


CASES = {
    "bolus": bolus, "oral": oral, "infusion": infusion, "logistic": logistic,
    "bernoulli": predictor("bernoulli"), "poisson": predictor("poisson"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_truth_is_found(name: str) -> None:
    case = CASES[name](np.random.default_rng(7))
    fit = fitted(case)
    errors = dict(zip(fit.model.parameters, fit.standard_errors, strict=True))
    off = {one: (fit.estimates[one] - true) / errors[one] for one, true in case.truth.items()}
    assert all(abs(one) < 4 for one in off.values()), off  # nor is any NaN
    assert np.isfinite(fit.log_likelihood.value)
    which = np.array([4, 1, 7])
    model, z = fit.model.expand_about(fit.theta), fit.given.means[None]
    part = model.take_individuals(which).statistics(z[:, which])
    assert_allclose(part, model.statistics(z)[which], rtol=1e-12)


@pytest.mark.parametrize("error", ["bernoulli", "poisson"])
def test_predictors_are_the_maximum_of_the_likelihood(error: str) -> None:
    """A random intercept alone: the likelihood is an integral over one number, by quadrature."""
    case = predictor(error)(np.random.default_rng(7))
    fit = fitted(case, n_iter=200, n_importance=200)
    nodes = np.linspace(-7, 7, 401)  # trapezoids of what vanishes at both ends are exact
    weights = np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi) * (nodes[1] - nodes[0])
    t, y = (one.reshape(60, -1)[..., None] for one in (case.data.times, case.data.values))

    def minus(at: Doubles) -> float:
        eta = at[0] + at[1] * t + np.exp(at[2] / 2) * nodes
        base = np.logaddexp(0, eta) if error == "bernoulli" else np.exp(eta) + gammaln(y + 1)
        each = (y * eta - base).sum(axis=1)
        return -float(logsumexp(each, axis=1, b=weights).sum())

    best = minimize(minus, [0.0, 0.0, 0.0], method="BFGS")
    exact = np.array([*best.x[:2], np.exp(best.x[2])])
    assert (np.abs(fit.theta - exact) < 0.2 * fit.standard_errors).all(), (fit.theta, exact)
    assert abs(fit.log_likelihood.value + best.fun) < 4 * fit.log_likelihood.error + 0.02


def test_limits_of_censored_values() -> None:
    """Of the lowest third only the limit is known: almost as good as values, if it is told."""
    rng = np.random.default_rng(3)
    n, t = 24, np.arange(1.0, 11.0)
    cl, v = drawn(rng, n, (5.0, 0.2), (20.0, 0.15))
    y = 100 / v * np.exp(-cl / v * t) + 0.2 * rng.normal(size=(n, len(t)))
    limit = np.quantile(y, 0.35)
    options = {"parameters": ("cl", "v")}
    cut, doses = np.maximum(y, limit), given(n, [0], 100)
    whole, told, taken = (
        fitted(Case(table(t, one, doses, **more), "one-compartment", options, {}))
        for one, more in ((y, {}), (cut, {"censored": (y < limit).astype(float)}), (cut, {}))
    )
    places = [0, 1, 4]  # means and the residual sd
    off = np.abs(told.theta - whole.theta) / told.standard_errors
    assert (off[places] < 1.5).all()
    worse = np.abs(taken.theta - whole.theta) / told.standard_errors
    assert (worse[places] > 2 * off[places]).all()


def test_own_curves_and_equations_are_the_same(tmp_path: Path) -> None:
    """A function and the equation that it solves find the same, as errors of a step are small."""
    (tmp_path / "own.py").write_text(FILE)
    rng = np.random.default_rng(3)
    t = np.arange(0.0, 10.0, 2.0)
    top, rate = drawn(rng, 3, (6.0, 0.2), (0.25, 0.2))
    data = table(t, top * np.exp(-rate * t) + 0.05 * rng.normal(size=(3, len(t))))
    few = {"n_iter": 8, "n_conditional": 4, "n_importance": 10, "n_chains": 1}
    curve, equation = (
        fitted(Case(data, "curve", {"curve": f"{tmp_path}/own.py:{name}"}, {}), **few)
        for name in ("falls", "drained")
    )
    assert_allclose(equation.theta, curve.theta, rtol=1e-4)
    assert_allclose(equation.log_likelihood.value, curve.log_likelihood.value, rtol=1e-4)


def test_devices_do_not_show() -> None:
    for name in ("oral", "infusion"):
        case = CASES[name](np.random.default_rng(7))
        few = {"n_iter": 4, "n_conditional": 3, "n_importance": 10}
        one, three = (fitted(case, **few, devices=k) for k in (1, 3))
        assert_allclose(three.trace, one.trace, rtol=1e-8)  # but for the order of additions
        assert_allclose(three.theta, one.theta, rtol=1e-8)
