"""What follows from estimates, as nlme has it: intervals, spreads, correlations, criteria."""

import math
from dataclasses import replace

import h5py
import numpy as np
import pytest

from vpem.saem.conditional import covariance_of, linearized_log_likelihood
from vpem.saem.estimates import Summary, criteria_of
from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_matrix
from vpem.saem.models.gmm import GmmModel
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel

from .cli_support import ROOT

QUICK = {"n_iter": 80, "burn_in": 40, "tol": 0.0, "n_importance": 500}

LME = {  # nlme 3.1: intervals(lme(height ~ age, random = ~ age | Subject, Oxboys, method = "ML"))
    "sd": {"intercept": (6.0370, 7.9240, 10.4010), "slope": (1.2402, 1.6467, 2.1865)},
    "cor": (0.3476, 0.6418, 0.8210),
    "-2LL": 725.9677, "AIC": 737.9677,
}  # fmt: skip
OLD = dict.fromkeys(("covariance", "freedom", "test_errors"))
"""What files of older versions have not."""

NLME = {  # nlme(conc ~ SSfol(Dose, Time, lKe, lKa, lCl), Theoph, random = pdDiag(lKa + lCl ~ 1))
    "theta": (0.4657339, -3.2272226, -2.4547038, 0.6435777**2, 0.1669281**2, 0.7092541),
    "logLik": -177.0214,
}  # fmt: skip


@pytest.fixture(scope="module")
def boys():
    return read_individuals(ROOT / "data" / "oxford_boys.csv")


@pytest.fixture(scope="module")
def growth(boys):
    return fit_saem(boys, "linear", **QUICK).saved


def test_spreads_correlations_and_intervals_are_those_of_lme(growth):
    found = Summary(growth)
    for name, known in LME["sd"].items():
        one = found.spreads[name]
        np.testing.assert_allclose([one.lower, one.value, one.upper], known, rtol=0.02)
    (one,) = found.correlations
    np.testing.assert_allclose([one.lower, one.value, one.upper], LME["cor"], atol=0.02)
    criteria = criteria_of(growth, growth.log_likelihood.value, 26, 234)
    assert criteria["minus_2_log_likelihood"] == pytest.approx(LME["-2LL"], abs=0.3)
    assert criteria["aic"] == pytest.approx(LME["AIC"], abs=0.3)
    minus = criteria["minus_2_log_likelihood"]
    assert criteria["bic"] == pytest.approx(minus + 6 * math.log(26))
    assert criteria["bicc"] == pytest.approx(minus + 5 * math.log(26) + math.log(234))
    # lmerTest 3.1: lmer(height ~ age + (age | Subject), Oxboys)
    assert found.tests["slope"] == pytest.approx(1.38e-16, rel=0.1)
    assert found.shrinkage["slope"][1] == pytest.approx(
        1 - growth.means[:, 1].std() / found.spreads["slope"].value, abs=0.01
    )


def test_the_delta_method_is_what_simulated_estimates_say(growth):
    """Sds, correlations and intervals of 200,000 draws about the estimates."""
    covariance = covariance_of(growth.information)
    draws = np.random.default_rng(0).multivariate_normal(growth.theta, covariance / 1e4, 200_000)
    found = Summary(growth)
    correlation = draws[:, 3] / np.sqrt(draws[:, 2] * draws[:, 4])
    assert found.correlations[0].error == pytest.approx(100 * correlation.std(), rel=0.02)
    assert found.spreads["slope"].error == pytest.approx(100 * np.sqrt(draws[:, 4]).std(), rel=0.02)
    np.testing.assert_allclose(found.together, np.corrcoef(draws.T), atol=0.01)


def test_back_from_logarithms_and_at_a_boundary(growth):
    names = ("log ka", "logit f", "var(log ka)", "cov(log ka, logit f)", "var(logit f)",
             "residual sd")  # fmt: skip
    saved = replace(
        growth, **OLD, parameters=names, latents=names[:2],
        theta=np.array([1.0, 0.0, 0.25, 0, 0, 1.0]),
        information=np.diag([100.0, 25.0, 400.0, np.nan, np.nan, 100.0]),
        standard_errors=np.array([0.1, 0.2, 0.05, np.nan, np.nan, 0.1]),
    )  # fmt: skip
    found = Summary(saved)
    ka, f = found.back
    assert (ka.name, f.name) == ("ka", "f")
    np.testing.assert_allclose([ka.value, ka.error], [math.e, 0.1 * math.e])
    np.testing.assert_allclose([ka.lower, ka.upper], np.exp([1 - 0.196, 1 + 0.196]), rtol=1e-4)
    np.testing.assert_allclose([f.value, f.error], [0.5, 0.05])
    assert found.variation == {"log ka": pytest.approx(100 * math.sqrt(math.exp(0.25) - 1))}
    assert found.spreads["log ka"].error == pytest.approx(0.05)
    for unknown in (found.spreads["logit f"], found.correlations[0], found.parameters[4]):
        assert math.isnan(unknown.error)
        assert math.isnan(unknown.lower)
    assert found.parameters[2].lower > 0


def test_what_does_not_vary_and_its_effects_are_charged_by_rows(growth):
    names = ("log cl", "log ke", "beta(log cl, wt)", "beta(log ke, wt)", "var(log cl)",
             "residual sd")  # fmt: skip
    saved = replace(
        growth, **OLD, parameters=names, latents=names[:1],
        theta=np.array([1, 1, 0.2, 0.2, 0.1, 0.5]),
        information=np.eye(6) * 100, standard_errors=np.full(6, 0.1), shrinkage=np.array([0.1]),
    )  # fmt: skip
    found = criteria_of(saved, -50.0, 10, 100)
    assert found["bicc"] == pytest.approx(100 + 3 * math.log(10) + 3 * math.log(100))
    assert Summary(saved).tests == {name: pytest.approx(0.0455, abs=1e-3) for name in names[2:4]}


def test_linearized_is_exact_for_lines_and_nlmes_for_curves(boys, growth):
    model = LinearModel(boys)
    exact = model.marginal(growth.theta)
    means = model.posterior(growth.theta)[0]
    found = linearized_log_likelihood(model, growth.theta, means)
    assert found == pytest.approx(exact.sum(), abs=1e-6)
    subjects = read_individuals(ROOT / "data" / "theophylline.csv")
    curves = OneCompartmentModel(subjects, random=("ka", "cl"))
    theta, z = np.array(NLME["theta"]), curves.start()[1]
    curves = curves.expand_about(theta)
    B = curves.unpack(theta)[0]
    mean, omega = curves.population(theta)
    for _ in range(40):  # nlme's tangents touch at the modes
        values, slopes = curves.structure.slopes(curves.whole(z[None], B), subjects)
        slopes = slopes[..., :2]
        for i in range(curves.n):
            rows = slice(*subjects.first[i : i + 2])
            J, rest = slopes[0, rows], subjects.values[rows] - values[0, rows]
            gain = omega @ J.T @ np.linalg.inv(J @ omega @ J.T + theta[-1] ** 2 * np.eye(len(J)))
            z[i] = mean + gain @ (rest + J @ (z[i] - mean))
    found = linearized_log_likelihood(curves, theta, z)
    assert found == pytest.approx(NLME["logLik"], abs=0.002)


def test_a_fit_of_an_older_vpem_is_read(growth, tmp_path):
    save_saem(tmp_path / "old.h5", growth)
    with h5py.File(tmp_path / "old.h5", "r+") as file:
        for name in ("log_likelihood/linearized", *OLD):
            del file[name]
    found = read_saem(tmp_path / "old.h5")
    assert math.isnan(found.log_likelihood.linearized)
    assert Summary(found).as_json()["standard_deviations"]["slope"]["estimate"] > 0


# ---- errors of weights, which add up to 1 -------------------------------------------------------


def blobs(n):
    rng = np.random.default_rng(3)
    own = rng.choice(3, size=n, p=[0.6, 0.25, 0.15])
    return from_matrix(rng.normal(size=(n, 1)) + np.array([0.0, 40.0, 90.0])[own][:, None])


def test_errors_of_weights_are_a_multinomials_where_components_are_apart(tmp_path):
    n, few = 400, {"n_iter": 60, "burn_in": 10, "tol": 0.0, "n_conditional": 10, "n_chains": 4}
    options = {"n_components": 3, "rows": [0, 1, 2], "reg_covar": 1e-9}
    fit = fit_saem(blobs(n), "gmm", model_options=options, **few)
    weights = fit.theta[:3]
    assert weights.min() > 0.1  # the rows are of three blobs
    wanted = np.sqrt(weights * (1 - weights) / n)
    np.testing.assert_allclose(fit.standard_errors[:3], wanted, rtol=1e-3)
    spread = np.sqrt(fit.theta[6:9])
    np.testing.assert_allclose(fit.standard_errors[3:6], spread / np.sqrt(n * weights), rtol=1e-3)
    # A weight that is alone is certain.
    alone = fit_saem(blobs(60), "gmm", model_options={"n_components": 1}, **few)
    assert (alone.theta[0], alone.standard_errors[0]) == (1.0, 0.0)
    assert (alone.standard_errors[1:] > 0).all()
    save_saem(tmp_path / "one.h5", alone)
    assert read_saem(tmp_path / "one.h5").standard_errors[0] == 0.0


def test_constraints_are_those_of_the_covariance_given_them():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5))
    units = np.array([1.0, 1e4, 1e-3, 1.0, 7.0])
    information = (root @ root.T + np.eye(5)) * np.outer(units, units)
    rows = np.array([[1.0, 1.0, 1.0, 0.0, 0.0]])
    whole = np.linalg.inv(information)
    across = whole @ rows.T
    wanted = np.sqrt(np.diag(whole - across @ across.T / (rows @ across)))
    errors = np.sqrt(np.diag(covariance_of(information, rows)))
    np.testing.assert_allclose(errors, wanted, rtol=1e-6)
    np.testing.assert_array_equal(covariance_of(information), covariance_of(information, None))
    model = GmmModel(blobs(9), 2)
    np.testing.assert_array_equal(model.constraints(model.start()[0]), [[1, 1, 0, 0, 0, 0]])
