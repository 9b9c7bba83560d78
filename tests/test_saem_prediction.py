"""What follows from a fit: intervals, criteria, curves, latents, classes, residuals, checks."""

import math
from dataclasses import replace

import h5py
import numpy as np
import pytest
from scipy.stats import kstest, norm

from vpem.errors import InputError
from vpem.pictures.saem import draw_check, draw_effects, draw_observed, draw_residuals
from vpem.saem.conditional import covariance_of, linearized_log_likelihood
from vpem.saem.diagnostics import residuals_of, simulate, visual_checks
from vpem.saem.estimates import Summary, criteria_of
from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.individuals import from_long, from_matrix
from vpem.saem.models.gmm import GmmModel
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.prediction import Predictor
from vpem.saem.structures.formulas import Compartments

from .cells_saem import BOYS, THEO
from .tables import each

QUICK = {"n_iter": 60, "burn_in": 40, "tol": 0.0, "n_conditional": 40, "n_importance": 500}

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
def growth():
    return fit_saem(BOYS, "linear", sampler="exact", **QUICK)


@pytest.fixture(scope="module")
def drug():
    return fit_saem(THEO, "one-compartment", **QUICK | {"n_chains": 8, "n_conditional": 150}).saved


def test_spreads_correlations_and_intervals_are_those_of_lme(growth):
    found = Summary(growth.saved)
    for name, known in LME["sd"].items():
        one = found.spreads[name]
        np.testing.assert_allclose([one.lower, one.value, one.upper], known, rtol=0.02)
    (one,) = found.correlations
    np.testing.assert_allclose([one.lower, one.value, one.upper], LME["cor"], atol=0.02)
    criteria = criteria_of(growth.saved, growth.log_likelihood.value, 26, 234)
    minus = criteria["minus_2_log_likelihood"]
    assert [minus, criteria["aic"]] == pytest.approx([LME["-2LL"], LME["AIC"]], abs=0.3)
    assert criteria["bic"] == pytest.approx(minus + 6 * math.log(26))
    assert criteria["bicc"] == pytest.approx(minus + 5 * math.log(26) + math.log(234))
    # lmerTest 3.1: lmer(height ~ age + (age | Subject), Oxboys)
    assert found.tests["slope"] == pytest.approx(1.38e-16, rel=0.1)
    spread = growth.saved.means[:, 1].std() / found.spreads["slope"].value
    assert found.shrinkage["slope"][1] == pytest.approx(1 - spread, abs=0.01)


def test_the_delta_method_is_what_simulated_estimates_say(growth):
    """Sds, correlations and intervals of 200,000 draws about the estimates."""
    covariance = covariance_of(growth.saved.information)
    draws = np.random.default_rng(0).multivariate_normal(growth.theta, covariance / 1e4, 200_000)
    found = Summary(growth.saved)
    correlation = draws[:, 3] / np.sqrt(draws[:, 2] * draws[:, 4])
    assert found.correlations[0].error == pytest.approx(100 * correlation.std(), rel=0.02)
    assert found.spreads["slope"].error == pytest.approx(100 * np.sqrt(draws[:, 4]).std(), rel=0.02)
    np.testing.assert_allclose(found.together, np.corrcoef(draws.T), atol=0.01)


def test_back_from_logarithms_and_at_a_boundary(growth):
    names = ("log ka", "logit f", "var(log ka)", "cov(log ka, logit f)", "var(logit f)",
             "residual sd")  # fmt: skip
    saved = replace(
        growth.saved, **OLD, parameters=names, latents=names[:2],
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
        growth.saved, **OLD, parameters=names, latents=names[:1],
        theta=np.array([1, 1, 0.2, 0.2, 0.1, 0.5]),
        information=np.eye(6) * 100, standard_errors=np.full(6, 0.1), shrinkage=np.array([0.1]),
    )  # fmt: skip
    found = criteria_of(saved, -50.0, 10, 100)
    assert found["bicc"] == pytest.approx(100 + 3 * math.log(10) + 3 * math.log(100))
    assert Summary(saved).tests == {name: pytest.approx(0.0455, abs=1e-3) for name in names[2:4]}


def test_linearized_is_exact_for_lines_and_nlmes_for_curves(growth):
    model, theta = LinearModel(BOYS), growth.theta
    found = linearized_log_likelihood(model, theta, model.posterior(theta)[0])
    assert found == pytest.approx(model.marginal(theta).sum(), abs=1e-6)
    curves = OneCompartmentModel(THEO, random=("ka", "cl"))
    theta, z = np.array(NLME["theta"]), curves.start()[1]
    curves = curves.expand_about(theta)
    B = curves.unpack(theta)[0]
    mean, omega = curves.population(theta)
    for _ in range(40):  # nlme's tangents touch at the modes
        values, slopes = curves.structure.slopes(curves.whole(z[None], B), THEO)
        slopes = slopes[..., :2]
        for i in range(curves.n):
            rows = slice(*THEO.first[i : i + 2])
            J, rest = slopes[0, rows], THEO.values[rows] - values[0, rows]
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


# ---- the linear model, where all has a formula --------------------------------------------------


def bayes(fit, times, values):
    """Mean and covariance of a line given rows, by the formula."""
    (*beta, a, b, c, variance), X = fit.theta, np.column_stack([np.ones(len(times)), times])
    omega = np.array([[a, b], [b, c]])
    gain = omega @ X.T @ np.linalg.inv(X @ omega @ X.T + variance * np.eye(len(X)))
    return beta + gain @ (values - X @ beta), omega - gain @ X @ omega


def test_latents_are_those_of_bayes_rule(growth):
    found = Predictor(growth.saved).latents(BOYS)
    for one in (0, 7, 25):
        rows = slice(*BOYS.first[one : one + 2])
        mean, covariance = bayes(growth, BOYS.times[rows], BOYS.values[rows])
        np.testing.assert_allclose(found.means[one], mean, rtol=1e-9)
        np.testing.assert_allclose(found.covariances[one], covariance, rtol=1e-6)
        sd = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose(found.lower[one], mean - 1.96 * sd, atol=0.3 * sd.max())
    new = Predictor(growth).latents(from_long(["new"], [0.5], [160.0]))
    np.testing.assert_allclose(new.means[0], bayes(growth, [0.5], [160.0])[0], rtol=1e-8)
    score = Predictor(growth).score(BOYS)
    assert score.error == 0
    assert score.value == pytest.approx(growth.log_likelihood.value, abs=0.2)
    np.testing.assert_allclose(score.each, growth.model.marginal(growth.theta))


@each("level", [0.5, 0.95])
def test_curves_of_lines(growth, level):
    times = np.array([-1.0, 0.0, 2.0])
    predictor = Predictor(growth, level=level, n_draws=20_000)
    found = predictor.curves(BOYS.take([3, 9]), times)
    assert found.at.names == ("4", "10")
    X = np.column_stack([np.ones(3), times])
    wide = norm.ppf((1 + level) / 2)
    for place, one in enumerate((3, 9)):
        rows = slice(*BOYS.first[one : one + 2])
        mean, covariance = bayes(growth, BOYS.times[rows], BOYS.values[rows])
        rows = slice(3 * place, 3 * place + 3)
        np.testing.assert_allclose(found.fitted[rows], X @ mean, rtol=1e-9)
        half = wide * np.sqrt(np.diag(X @ covariance @ X.T))
        np.testing.assert_allclose(found.upper[rows] - X @ mean, half, rtol=0.06)
        np.testing.assert_allclose(X @ mean - found.lower[rows], half, rtol=0.06)
    population, (*beta, a, b, c, _) = predictor.population(times), growth.theta
    np.testing.assert_allclose(population.fitted, X @ beta, rtol=1e-12)
    half = wide * np.sqrt(np.diag(X @ np.array([[a, b], [b, c]]) @ X.T))
    np.testing.assert_allclose(population.upper - X @ beta, half, rtol=0.05)
    of_boys = predictor.population(individuals=BOYS)
    np.testing.assert_allclose(of_boys.fitted, beta[0] + beta[1] * BOYS.times, rtol=1e-12)
    at_rows = Predictor(growth).curves(BOYS)
    assert at_rows.at is BOYS
    grid = Predictor(growth).curves(BOYS.take([5]), BOYS.times[45:54])
    np.testing.assert_allclose(grid.fitted, at_rows.fitted[45:54], rtol=1e-12)


def test_slopes_of_covariates():
    rng = np.random.default_rng(2)
    ids, x, group = np.repeat(np.arange(12), 4), rng.standard_normal(48), np.repeat([0.0, 1.0], 24)
    data = from_long(ids, np.tile(np.arange(4), 12), 3 + 2 * x + rng.standard_normal(48),
                     {"x": x, "group": group})  # fmt: skip
    fit = fit_saem(data, "linear", model_options={"slopes": ("x",)}, **QUICK).saved
    predictor = Predictor(fit)
    found = predictor.curves(data)
    line = predictor.latents(data).means
    np.testing.assert_allclose(found.fitted, line[ids, 0] + line[ids, 1] * x, rtol=1e-9)
    with pytest.raises(InputError, match="changes from"):
        predictor.curves(data, [0, 1])
    with pytest.raises(InputError, match="changes from row to row, and a fit does not hold it"):
        predictor.stored()
    at_two = predictor.population([0.0], {"x": 2.0}).fitted
    np.testing.assert_allclose(at_two, fit.theta[0] + 2 * fit.theta[1])


# ---- one compartment ----------------------------------------------------------------------------


def test_known_individuals_and_the_same_rows_given_anew(drug):
    times = np.array([0.5, 2.0, 9.0, 24.0])
    predictor = Predictor(drug, n_draws=2000)
    anew, known = predictor.curves(THEO, times), predictor.stored(THEO.names, times)
    width = known.upper - known.lower
    assert np.abs(anew.fitted - known.fitted).max() < 0.12 * width.max()
    for end in ("lower", "upper"):
        assert np.abs(getattr(anew, end) - getattr(known, end)).max() < 0.2 * width.max()
    assert known.at.covariates["dose"][0] == THEO.covariates["dose"][0]
    found = Predictor(drug, n_draws=20).stored(["3"])
    assert found.at.n_rows == 50
    assert (found.at.times[0], found.at.times[-1]) == drug.time_range


def test_an_individual_is_predicted_alike_in_any_company(drug):
    predictor = Predictor(drug, n_draws=50)
    together = predictor.curves(THEO.take([0, 4, 11]), [1.0, 5.0])
    alone = predictor.curves(THEO.take([4]), [1.0, 5.0])
    for name in ("fitted", "lower", "upper"):
        np.testing.assert_array_equal(getattr(together, name)[2:4], getattr(alone, name))
    other = Predictor(drug, n_draws=50, seed=1).curves(THEO.take([4]), [1.0, 5.0])
    assert not np.array_equal(other.fitted, alone.fitted)
    found = Predictor(drug, n_draws=400).score(THEO, 500)
    assert 0 < found.error < 0.3
    assert found.value == pytest.approx(drug.log_likelihood.value, abs=0.4)
    half = Predictor(drug, n_draws=400).score(THEO.take(np.arange(6)), 500)
    np.testing.assert_array_equal(half.each, found.each[:6])


def test_population_curve_is_that_of_the_mean_latents(drug):
    times = np.linspace(0, 24, 7)
    found = Predictor(drug).population(times, {"dose": 4.5})
    person = from_long(np.zeros(7), times, np.ones(7), {"dose": np.full(7, 4.5)})
    wanted = Compartments().predict(drug.theta[None, None, :3], person)[0]
    np.testing.assert_allclose(found.fitted, wanted)
    assert (found.lower <= found.fitted).all()
    assert (found.fitted <= found.upper).all()
    double = Predictor(drug).population(times, {"dose": 9.0})
    np.testing.assert_allclose(double.upper, 2 * found.upper, rtol=1e-12)


# ---- factors, classes, and models of a user's own -----------------------------------------------


def test_factor_scores_by_regression():
    rng = np.random.default_rng(3)
    table = rng.standard_normal((80, 3)) @ rng.standard_normal((3, 6))
    data = from_matrix(table + rng.standard_normal((80, 6)))
    options = {"model_options": {"groups": [0, 0, 0, 1, 1, 1]}, "n_chains": 2}
    fit = fit_saem(data, "bifactor", **QUICK, **options)
    predictor = Predictor(fit.saved)
    found = predictor.latents(data.take([0, 5]))
    means, loadings, variances = fit.model.unpack(fit.theta)
    covariance = loadings @ loadings.T + np.diag(variances)
    scores = (data.values.reshape(80, 6)[[0, 5]] - means) @ np.linalg.solve(covariance, loadings)
    np.testing.assert_allclose(found.means, scores, rtol=1e-6)
    for call in (
        lambda: predictor.curves(data),
        predictor.stored,
        lambda: predictor.population([0]),
    ):
        with pytest.raises(InputError, match="no curves over time; ask for the latents"):
            call()
    with pytest.raises(InputError, match="has no classes"):
        predictor.responsibilities(data)


def test_classes_of_a_mixture():
    rng = np.random.default_rng(4)
    labels = np.arange(90) % 2
    data = from_matrix(rng.standard_normal((90, 2)) + 3.0 * labels[:, None])
    fit = fit_saem(data, "gmm", model_options={"n_components": 2, "rows": [0, 1]}, **QUICK)
    predictor = Predictor(fit.saved)
    found = predictor.responsibilities(data)
    np.testing.assert_allclose(found, fit.model.responsibilities(fit.theta), rtol=1e-9)
    assert np.mean(found.argmax(axis=1) == labels) > 0.95
    np.testing.assert_allclose(predictor.responsibilities(data.take([4]))[0], found[4], rtol=1e-9)
    assert fit.log_likelihood.error == 0
    assert predictor.score(data).value == pytest.approx(fit.log_likelihood.value)
    with pytest.raises(InputError, match="are classes, with no curves"):
        predictor.curves(data)
    with pytest.raises(InputError, match="give data with the same items"):
        predictor.responsibilities(from_matrix(np.zeros((3, 3))))


class Own(LinearModel):
    """A model that a file cannot hold."""

    def take_individuals(self, which):
        return Own(self.individuals.take(which), shift=self.shift)


def test_own_models_are_given_again(tmp_path):
    fit = fit_saem(BOYS, Own, **QUICK)
    save_saem(tmp_path / "own.h5", fit)
    saved = read_saem(tmp_path / "own.h5")
    with pytest.raises(InputError, match="model Own is a user's own, which a file does not hold"):
        Predictor(saved)
    times, some = [0.0, 0.5], BOYS.take([2])
    of_file, of_fit = (Predictor(one, Own).curves(some, times).fitted for one in (saved, fit))
    np.testing.assert_array_equal(of_file, of_fit)
    of_file = Predictor(saved, Own).stored(["3"], times).fitted
    np.testing.assert_array_equal(Predictor(fit).stored(["3"], times).fitted, of_file)
    with pytest.raises(InputError, match="give what makes it of other individuals"):
        Predictor(fit).curves(BOYS)
    with pytest.raises(InputError, match="other parameters or latents"):
        Predictor(saved, OneCompartmentModel).curves(THEO)


# ---- what is wrong ------------------------------------------------------------------------------


def changed(theta, place, value):
    theta = theta.copy()
    theta[place] = value
    return theta


@each(
    ("ask", "told"),
    [
        *((lambda it, times=times: it.stored(["1"], times), "the times must be 1 to")
          for times in ([], [[1.0]], ["noon"])),
        (lambda it: it.stored(["1"], [0.0, np.nan]), "the times must be finite"),
        (lambda it: it.stored(["1"], [-1.0]), "has a time before the dose, -1"),
        (lambda it: it.stored(["13"]), "the fit has no individual '13'"),
        (lambda it: it.population([1.0]), "has no covariate 'dose'"),
        (lambda it: it.population([1.0], {"dose": -4.0}), "a dose that is negative, -4"),
        (lambda it: it.curves(replace(THEO, covariates={})), "has no covariate 'dose'"),
        # Faults of new data are not laid on the fit.
        (lambda it: it.curves(replace(THEO, times=THEO.times - 2, source="new.csv")),
         "^new.csv: individual '1' has a time before the dose, [^;]*; [^;]*$"),
        *((lambda it, one=one: Predictor(it.saved, **one), next(iter(one)))
          for one in ({"level": 1.0}, {"n_draws": 1}, {"seed": -1})),
        *((lambda it, at=at: Predictor(
               replace(it.saved, theta=changed(it.saved.theta, *at)), n_draws=20
           ).score(THEO.take([0]), 20), "nothing finite follows")
          for at in ((0, 1e300), (1, -1e300), (6, 1e300))),
    ],
)  # fmt: skip
def test_who_when_and_what(drug, ask, told):
    with pytest.raises(InputError, match=told):
        ask(Predictor(drug))


@each(
    ("changes", "told"),
    [
        ({"model_options": {"slopes": 5}}, "the options of the fit make no model linear"),
        ({"model_options": {"slopes": [["time"]]}}, "no covariate|make no model"),
        ({"model_options": {"slopes": [["time"]], "error": "poisson"}}, "make no model"),
        ({"model_options": {"colour": 5}}, "colour"),
        ((2, -1.0), "estimate of 'var\\(intercept\\)' must be positive"),
        ((5, 0.0), "estimate of 'residual variance' must be positive"),
        ((3, 1e3), "not positive definite"),
    ],
)
def test_fits_that_nobody_made(growth, changes, told):
    if isinstance(changes, tuple):
        changes = {"theta": changed(growth.theta, *changes)}
    with pytest.raises(InputError, match=told):
        Predictor(replace(growth.saved, **changes)).curves(BOYS)


# ---- whether a fit describes data: right where it is, and not where it is wrong -----------------

THETA = np.array([10.0, 2.0, 4.0, 0.5, 0.25, 1.0])
OMEGA = np.array([[4.0, 0.5], [0.5, 0.25]])
X = np.column_stack([np.ones(6), np.arange(6.0)])
N = 200
PEOPLE = from_long(np.repeat(np.arange(N), 6), np.tile(np.arange(6.0), N), np.zeros(6 * N))


@pytest.fixture(scope="module")
def drawn():
    """Individuals of a model, and a fit that has its parameters."""
    values = simulate(LinearModel(PEOPLE, shift=0.0), THETA, 1, seed=5)[0]
    data = replace(PEOPLE, values=values)
    few = {"n_iter": 4, "burn_in": 2, "tol": 0.0, "n_conditional": 4, "n_importance": 20}
    return data, replace(fit_saem(data, "linear", **few).saved, theta=THETA)


def test_simulated_data_have_the_moments_of_the_model():
    found = simulate(LinearModel(PEOPLE, shift=0.0), THETA, 300, seed=1).reshape(300 * N, 6)
    np.testing.assert_allclose(found.mean(axis=0), X @ THETA[:2], atol=0.06)
    np.testing.assert_allclose(np.cov(found.T), X @ OMEGA @ X.T + np.eye(6), rtol=0.03, atol=0.05)


def test_residuals_of_the_true_model_are_standard_normal(drawn):
    data, fit = drawn
    found = residuals_of(Predictor(fit, n_draws=2000), data)
    for values in (found.among, found.npde):
        assert kstest(values, "norm").pvalue > 0.01
        assert np.abs(np.corrcoef(values.reshape(N, 6).T) - np.eye(6)).max() < 0.2
    np.testing.assert_allclose(found.population, np.tile(X @ THETA[:2], N))
    np.testing.assert_allclose(found.individual, data.values - found.fitted)
    root = np.linalg.cholesky(X @ OMEGA @ X.T + np.eye(6))
    exact = np.linalg.solve(root, (data.values - found.population).reshape(N, 6).T).T
    assert np.abs(found.among - exact.ravel()).mean() < 0.06  # the moments are of 2000 draws
    # Of a wrong model they are not.
    wrong = replace(fit, theta=changed(THETA, 5, 4.0))
    assert kstest(residuals_of(Predictor(wrong), data).npde, "norm").pvalue < 1e-6


@each("sign", [1.0, -1.0])
def test_limits_have_their_place_among_what_was_simulated(drawn, sign):
    """Half of the values censored: errors stay standard normal, and the check counts limits."""
    data, fit = drawn
    limit = 15.0
    out = sign * data.values < sign * limit
    censored = replace(
        data, values=np.where(out, limit, data.values), covariates={"censored": sign * out}
    )
    predictor = Predictor(fit, n_draws=1000)
    found = residuals_of(predictor, censored)
    assert np.isnan(found.individual[out]).all()
    assert np.isfinite(found.npde).all()
    for row in found.npde.reshape(N, 6).T:
        assert kstest(row, "norm").pvalue > 0.01
    (check,) = visual_checks(predictor, censored, n_sims=200)
    (share,) = check.limited
    np.testing.assert_allclose(share.observed, out.reshape(N, 6).mean(axis=0))
    assert ((share.lower <= share.observed) & (share.observed <= share.upper)).sum() >= 5
    assert min((sign * one.observed).min() for one in check.shares) == sign * limit
    side = "below" if sign > 0 else "above"
    assert side in draw_check(fit, censored).figure.axes[1].get_ylabel()


def test_a_check_covers_the_true_model_and_shows_a_wrong_one(drawn):
    data, fit = drawn
    (check,) = visual_checks(Predictor(fit), data)
    assert check.times.tolist() == [0, 1, 2, 3, 4, 5]
    table = data.values.reshape(N, 6)
    for share, percent in zip(check.shares, (5, 50, 95), strict=True):
        np.testing.assert_allclose(share.observed, np.percentile(table, percent, axis=0))
        assert (share.lower < share.middle).all()
        assert ((share.lower <= share.observed) & (share.observed <= share.upper)).sum() >= 5
    wrong = replace(fit, theta=changed(THETA, 4, 1.0))
    (check,) = visual_checks(Predictor(wrong), data, n_bins=3)
    assert len(check.times) == 3
    assert check.shares[2].observed[-1] < check.shares[2].lower[-1]
    two = replace(data, covariates={"outcome": np.tile([1.0, 2.0], 3 * N)})
    assert [len(one.rows) for one in visual_checks(Predictor(fit), two)] == [3 * N, 3 * N]
    group = replace(data, covariates={"group": np.repeat(np.arange(N) % 2, 6).astype(float)})
    for draw, panels, words in (  # pictures say in words what they show
        (draw_observed, 2, "1200 measurements"), (draw_residuals, 6, "npde mean"),
        (draw_check, 1, "of 18 lie outside"), (draw_effects, 4, "intercept with group"),
    ):  # fmt: skip
        picture = draw(fit, group)
        assert len(picture.figure.axes) == panels
        assert words in picture.alt
