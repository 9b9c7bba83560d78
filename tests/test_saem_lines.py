"""Lines whose random effects are integrated out: formulas beside direct ones, and R's lme4."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as t_law

from vpem.saem.estimates import Summary
from vpem.saem.fit import fit_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_long
from vpem.saem.models.linear import LinearModel

from .cli_support import ROOT
from .tables import each

CASES = {
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


def bends(f, at, steps):
    """Minus second derivatives of a function by central differences, extrapolated once."""

    def hessian(h):
        E = np.diag(h)
        ends = [
            [f(at + a + b) - f(at + a - b) - f(at - a + b) + f(at - a - b) for b in E] for a in E
        ]
        return -np.array(ends) / (4 * np.outer(h, h))

    return (4 * hessian(steps / 2) - hessian(steps)) / 3


@each("case", CASES)
def test_likelihood_and_information_are_those_of_a_normal_law(case):
    options, moved = CASES[case]
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


@each("options", [{}, {"random": ("intercept",)}, {"slopes": ("time", "x", "time:x")}])
def test_moving_time_changes_the_intercept_only(options):
    fits = [fit_saem(people(n=30, moved=by), "linear", model_options=options)
            for by in (0.0, 2005.0)]  # fmt: skip
    first = Summary(fits[0].saved).parameters[1]
    for fit in fits:
        assert fit.converged
        assert fit.log_likelihood.value == pytest.approx(fits[0].log_likelihood.value, abs=1e-6)
        one = Summary(fit.saved).parameters[1]
        for name in ("value", "error", "lower", "upper", "p_value", "freedom"):
            assert getattr(one, name) == pytest.approx(getattr(first, name), rel=1e-6), name


def test_neither_devices_show_nor_copies_beside_weights():
    data = people()
    one, many = (fit_saem(data, "linear", devices=devices) for devices in (1, 7))
    for name in ("theta", "standard_errors"):
        np.testing.assert_allclose(getattr(many, name), getattr(one, name), rtol=1e-8)
    np.testing.assert_allclose(many.certain.freedom, one.certain.freedom, rtol=1e-6)
    twice = from_long(
        np.repeat(np.arange(50), np.tile(data.counts, 2)), np.tile(data.times, 2),
        np.tile(data.values, 2),
    )  # fmt: skip
    heavy = replace(data, weights=np.full(25, 2.0))
    models = LinearModel(twice), LinearModel(heavy)
    one, two = (model.integrated(model.start()[0]) for model in models)
    np.testing.assert_allclose(two.theta, one.theta, rtol=1e-8)
    np.testing.assert_allclose(two.certain.covariance, one.certain.covariance, rtol=1e-6)


def test_tests_are_lmertests():
    """lmerTest 3.1: lmer(height ~ age + (age | Subject), Oxboys), and by maximum likelihood."""
    fit = fit_saem(read_individuals(ROOT / "data" / "oxford_boys.csv"), "linear")
    np.testing.assert_allclose(fit.theta[:2], [149.37175, 6.5254675], rtol=1e-6)
    np.testing.assert_allclose(fit.standard_errors[:2], [1.554604, 0.329766], rtol=1e-4)
    np.testing.assert_allclose(fit.certain.test_errors[:2], [1.585416, 0.336302], rtol=1e-4)
    np.testing.assert_allclose(fit.certain.freedom[:2], [25, 25], rtol=1e-3)
    assert fit.log_likelihood.value == pytest.approx(-362.9839, abs=1e-4)


def test_groups_of_few_individuals_differ_as_often_as_they_should():
    """Two groups of three, and no effect: by the normal law of 1 in 5 p is below 0.05."""
    found = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        who, t = np.repeat(np.arange(6), 10), np.tile(np.arange(10.0), 6)
        values = rng.normal(size=6)[who] + 0.5 * rng.normal(size=60)
        data = from_long(who, t, values, {"group": (who < 3) * 1.0})
        model = LinearModel(data, ("time", "group"), ("intercept",))
        one = model.integrated(model.start()[0])
        error, freedom = one.certain.test_errors[2], one.certain.freedom[2]
        found.append(2 * t_law.sf(abs(one.theta[2]) / error, freedom))
    assert 1 <= np.sum(np.array(found) < 0.05) <= 12
    assert freedom == pytest.approx(4, rel=1e-3)


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
