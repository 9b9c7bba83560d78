"""Curves, latents, classes and log-likelihoods by a fit of SAEM."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from vpem.errors import InputError
from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_long, from_matrix
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.prediction import Predictor
from vpem.saem.structures.formulas import Compartments

DATA = Path(__file__).resolve().parents[1] / "data"
QUICK = {"n_iter": 60, "burn_in": 40, "tol": 0.0, "n_importance": 500}


@pytest.fixture(scope="module")
def boys():
    return read_individuals(DATA / "oxford_boys.csv")


@pytest.fixture(scope="module")
def subjects():
    return read_individuals(DATA / "theophylline.csv")


@pytest.fixture(scope="module")
def growth(boys):
    return fit_saem(boys, "linear", sampler="exact", n_conditional=500, **QUICK)


@pytest.fixture(scope="module")
def drug(subjects):
    return fit_saem(subjects, "one-compartment", n_chains=8, n_conditional=150, **QUICK).saved


# ---- the linear model, where all has a formula --------------------------------------------------


def bayes(fit, boys, one):
    """Mean and covariance of a boy's line given his rows, by the formula."""
    beta, theta = fit.theta[:2], fit.theta
    omega = np.array([[theta[2], theta[3]], [theta[3], theta[4]]])
    rows = slice(boys.first[one], boys.first[one + 1])
    X = np.column_stack([np.ones(rows.stop - rows.start), boys.times[rows]])
    covariance = X @ omega @ X.T + theta[5] * np.eye(len(X))
    gain = omega @ X.T @ np.linalg.inv(covariance)
    return beta + gain @ (boys.values[rows] - X @ beta), omega - gain @ X @ omega


def test_latents_are_those_of_bayes_rule(growth, boys):
    found = Predictor(growth.saved).latents(boys)
    for one in (0, 7, 25):
        mean, covariance = bayes(growth, boys, one)
        np.testing.assert_allclose(found.means[one], mean, rtol=1e-9)
        np.testing.assert_allclose(found.covariances[one], covariance, rtol=1e-6)
        sd = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose(found.lower[one], mean - 1.96 * sd, atol=0.3 * sd.max())


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_curves_of_lines(growth, boys, level):
    times = np.array([-1.0, 0.0, 2.0])
    found = Predictor(growth, level=level, n_draws=20_000).curves(boys.take([3, 9]), times)
    assert found.at.names == ("4", "10")
    X = np.column_stack([np.ones(3), times])
    for place, one in enumerate((3, 9)):
        mean, covariance = bayes(growth, boys, one)
        rows = slice(3 * place, 3 * place + 3)
        np.testing.assert_allclose(found.fitted[rows], X @ mean, rtol=1e-9)
        half = norm.ppf((1 + level) / 2) * np.sqrt(np.diag(X @ covariance @ X.T))
        np.testing.assert_allclose(found.upper[rows] - X @ mean, half, rtol=0.06)
        np.testing.assert_allclose(X @ mean - found.lower[rows], half, rtol=0.06)


def test_at_the_rows_themselves(growth, boys):
    found = Predictor(growth).curves(boys)
    assert found.at is boys
    assert np.sqrt(np.mean((found.fitted - boys.values) ** 2)) < 0.66  # the residual sd
    grid = Predictor(growth).curves(boys.take([5]), boys.times[45:54])
    np.testing.assert_allclose(grid.fitted, found.fitted[45:54], rtol=1e-12)


def test_score_is_the_log_likelihood(growth, boys):
    found = Predictor(growth).score(boys)
    assert found.error == 0
    assert found.value == pytest.approx(growth.log_likelihood.value, abs=0.2)
    np.testing.assert_allclose(found.each, growth.model.marginal(growth.theta))


def test_population_line(growth, boys):
    times = np.array([-1.0, 0.5])
    found = Predictor(growth, n_draws=20_000).population(times)
    beta, theta = growth.theta[:2], growth.theta
    X = np.column_stack([np.ones(2), times])
    np.testing.assert_allclose(found.fitted, X @ beta, rtol=1e-12)
    omega = np.array([[theta[2], theta[3]], [theta[3], theta[4]]])
    half = 1.96 * np.sqrt(np.diag(X @ omega @ X.T))
    np.testing.assert_allclose(found.upper - X @ beta, half, rtol=0.05)
    of_boys = Predictor(growth).population(individuals=boys)
    np.testing.assert_allclose(of_boys.fitted, beta[0] + beta[1] * boys.times, rtol=1e-12)


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
    np.testing.assert_allclose(
        predictor.population([0.0], {"x": 2.0}).fitted, fit.theta[0] + 2 * fit.theta[1]
    )


# ---- one compartment ----------------------------------------------------------------------------


def test_known_individuals_and_the_same_rows_given_anew(drug, subjects):
    times = np.array([0.5, 2.0, 9.0, 24.0])
    predictor = Predictor(drug, n_draws=2000)
    anew, known = predictor.curves(subjects, times), predictor.stored(subjects.names, times)
    width = known.upper - known.lower
    assert np.abs(anew.fitted - known.fitted).max() < 0.12 * width.max()
    for end in ("lower", "upper"):
        assert np.abs(getattr(anew, end) - getattr(known, end)).max() < 0.2 * width.max()
    assert known.at.covariates["dose"][0] == subjects.covariates["dose"][0]


def test_an_individual_is_predicted_alike_in_any_company(drug, subjects):
    predictor = Predictor(drug, n_draws=50)
    together = predictor.curves(subjects.take([0, 4, 11]), [1.0, 5.0])
    alone = predictor.curves(subjects.take([4]), [1.0, 5.0])
    for name in ("fitted", "lower", "upper"):
        np.testing.assert_array_equal(getattr(together, name)[2:4], getattr(alone, name))
    other = Predictor(drug, n_draws=50, seed=1).curves(subjects.take([4]), [1.0, 5.0])
    assert not np.array_equal(other.fitted, alone.fitted)


def test_population_curve_is_that_of_the_mean_latents(drug, subjects):
    times = np.linspace(0, 24, 7)
    found = Predictor(drug).population(times, {"dose": 4.5})
    person = from_long(np.zeros(7), times, np.ones(7), {"dose": np.full(7, 4.5)})
    wanted = Compartments().predict(drug.theta[None, None, :3], person)[0]
    np.testing.assert_allclose(found.fitted, wanted)
    assert (found.lower <= found.fitted).all()
    assert (found.fitted <= found.upper).all()
    double = Predictor(drug).population(times, {"dose": 9.0})
    np.testing.assert_allclose(double.upper, 2 * found.upper, rtol=1e-12)


def test_score_of_others_by_importance_sampling(drug, subjects):
    found = Predictor(drug, n_draws=400).score(subjects, 500)
    assert 0 < found.error < 0.3
    assert found.value == pytest.approx(drug.log_likelihood.value, abs=0.4)
    half = Predictor(drug, n_draws=400).score(subjects.take(np.arange(6)), 500)
    np.testing.assert_array_equal(half.each, found.each[:6])


def test_the_default_grid(drug):
    found = Predictor(drug, n_draws=20).stored(["3"])
    assert found.at.n_rows == 50
    assert (found.at.times[0], found.at.times[-1]) == drug.time_range


# ---- factors and classes ------------------------------------------------------------------------


def test_factor_scores_by_regression():
    rng = np.random.default_rng(3)
    table = rng.standard_normal((80, 3)) @ rng.standard_normal((3, 6))
    data = from_matrix(table + rng.standard_normal((80, 6)))
    options = {"groups": [0, 0, 0, 1, 1, 1]}
    fit = fit_saem(data, "bifactor", model_options=options, sampler="exact", **QUICK)
    predictor = Predictor(fit.saved)
    found = predictor.latents(data.take([0, 5]))
    means, loadings, variances = fit.model.unpack(fit.theta)
    covariance = loadings @ loadings.T + np.diag(variances)
    scores = (data.values.reshape(80, 6)[[0, 5]] - means) @ np.linalg.solve(covariance, loadings)
    np.testing.assert_allclose(found.means, scores, rtol=1e-6)
    calls = (lambda: predictor.curves(data), predictor.stored, lambda: predictor.population([0.0]))
    for call in calls:
        with pytest.raises(InputError, match="no curves over time; ask for the latents"):
            call()
    with pytest.raises(InputError, match="has no classes"):
        predictor.responsibilities(data)


def test_classes_of_a_mixture():
    rng = np.random.default_rng(4)
    labels = np.arange(90) % 2
    table = rng.standard_normal((90, 2)) + 3.0 * labels[:, None]
    data = from_matrix(table)
    fit = fit_saem(data, "gmm", model_options={"n_components": 2, "rows": [0, 1]}, **QUICK)
    predictor = Predictor(fit.saved)
    found = predictor.responsibilities(data)
    np.testing.assert_allclose(found, fit.model.responsibilities(fit.theta), rtol=1e-9)
    assert np.mean(found.argmax(axis=1) == labels) > 0.95
    one = predictor.responsibilities(data.take([4]))
    np.testing.assert_allclose(one[0], found[4], rtol=1e-9)
    assert predictor.score(data).value == pytest.approx(fit.log_likelihood.value)
    with pytest.raises(InputError, match="are classes, with no curves"):
        predictor.curves(data)
    with pytest.raises(InputError, match="give data with the same items"):
        predictor.responsibilities(from_matrix(np.zeros((3, 3))))


# ---- a model of one's own -----------------------------------------------------------------------


class Own(LinearModel):
    """A model that a file cannot hold."""

    def take_individuals(self, which):
        return Own(self.individuals.take(which), shift=self.shift)


def test_own_models_are_given_again(boys, tmp_path):
    fit = fit_saem(boys, Own, **QUICK)
    save_saem(tmp_path / "own.h5", fit)
    saved = read_saem(tmp_path / "own.h5")
    with pytest.raises(InputError, match="model Own is a user's own, which a file does not hold"):
        Predictor(saved)
    times = [0.0, 0.5]
    of_file = Predictor(saved, Own).curves(boys.take([2]), times)
    np.testing.assert_array_equal(of_file.fitted, Predictor(fit, Own).curves(
        boys.take([2]), times).fitted)  # fmt: skip
    stored = Predictor(fit).stored(["3"], times)
    np.testing.assert_array_equal(stored.fitted, Predictor(saved, Own).stored(["3"], times).fitted)
    with pytest.raises(InputError, match="give what makes it of other individuals"):
        Predictor(fit).curves(boys)
    with pytest.raises(InputError, match="other parameters or latents"):
        Predictor(saved, OneCompartmentModel).curves(
            read_individuals(DATA / "theophylline.csv"))  # fmt: skip


# ---- what is wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ([], "the times must be 1 to"),
        ([[1.0]], "the times must be 1 to"),
        (["noon"], "the times must be 1 to"),
        ([0.0, np.nan], "the times must be finite"),
        ([-1.0], "has a time before the dose, -1"),
    ],
    ids=["none", "table", "text", "nan", "negative"],
)
def test_times(drug, times, told):
    with pytest.raises(InputError, match=told):
        Predictor(drug).stored(["1"], times)


def test_who_and_what(drug, subjects):
    predictor = Predictor(drug)
    with pytest.raises(InputError, match="the fit has no individual '13'"):
        predictor.stored(["13"])
    with pytest.raises(InputError, match="has no covariate 'dose'"):
        predictor.population([1.0])
    with pytest.raises(InputError, match="a dose that is negative, -4"):
        predictor.population([1.0], {"dose": -4.0})
    with pytest.raises(InputError, match="has no covariate 'dose'"):
        predictor.curves(dataclasses.replace(subjects, covariates={}))
    for options in ({"level": 1.0}, {"n_draws": 1}, {"seed": -1}):
        with pytest.raises(InputError):
            Predictor(drug, **options)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_options": {"slopes": 5}}, "the options of the fit make no model linear"),
        ({"model_options": {"slopes": [["time"]]}}, "no covariate|make no model"),
        ({"model_options": {"slopes": [["time"]], "error": "poisson"}}, "make no model"),
        ({"model_options": {"colour": 5}}, "colour"),
        ({"theta": (2, -1.0)}, "estimate of 'var\\(intercept\\)' must be positive"),
        ({"theta": (5, 0.0)}, "estimate of 'residual variance' must be positive"),
        ({"theta": (3, 1e3)}, "not positive definite"),
    ],
    ids=["options", "listed", "linked", "unknown", "variance", "residual", "indefinite"],
)
def test_fits_that_nobody_made(growth, boys, changes, told):
    saved = growth.saved
    if "theta" in changes:
        place, value = changes["theta"]
        theta = saved.theta.copy()
        theta[place] = value
        changes = {"theta": theta}
    with pytest.raises(InputError, match=told):
        Predictor(dataclasses.replace(saved, **changes)).curves(boys)


@pytest.mark.parametrize(("place", "value"), [(0, 1e300), (1, -1e300), (6, 1e300)])
def test_estimates_out_of_all_reason(drug, subjects, place, value):
    theta = drug.theta.copy()
    theta[place] = value
    predictor = Predictor(dataclasses.replace(drug, theta=theta), n_draws=20)
    with pytest.raises(InputError, match="nothing finite follows"):
        predictor.score(subjects.take([0]), 20)


# ---- where a covariate has its zero -------------------------------------------------------------


def moved_rows(error, moved):
    """Rows of 40 individuals, whose times and covariates lie elsewhere."""
    rng = np.random.default_rng(5)
    each, times = np.repeat(np.arange(40), 8), np.tile(np.arange(-4.0, 4.0), 40)
    x, group = rng.normal(3, 1, 320), (each % 2).astype(float)
    slopes = 0.1 + rng.normal(0, 0.3, 40)
    eta = 0.3 + rng.normal(0, 0.8, 40)[each] + slopes[each] * times + 0.1 * x
    values = {
        "constant": eta + 0.5 * rng.normal(size=320),
        "poisson": rng.poisson(np.exp(eta)),
        "bernoulli": rng.random(320) < 1 / (1 + np.exp(-eta)),
    }[error]
    return from_long(each, times + moved, values * 1.0, {"x": x + moved, "group": group + moved})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"slopes": ("time", "x"), "random": ("intercept", "time")},
        {"effects": ("intercept:group", "time:group")},
    ],
    ids=str,
)
def test_lines_far_from_zero_are_predicted_alike(options):
    found = []
    for moved in (0.0, 2005.0):
        data = moved_rows("constant", moved)
        predictor = Predictor(fit_saem(data, "linear", model_options=options).saved)
        found.append((predictor.curves(data).fitted,
                      predictor.population(individuals=data).fitted,
                      predictor.score(data).value / 320))  # fmt: skip
    for near, far in zip(*found, strict=True):
        np.testing.assert_allclose(far, near, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
@pytest.mark.parametrize("error", ["poisson", "bernoulli"])
def test_counts_and_answers_far_from_zero_are_predicted_alike(error):
    few = {"n_iter": 20, "tol": 0.0, "n_conditional": 10, "n_importance": 20}
    found, options = [], {"error": error, "slopes": ("time", "x"), "random": ("intercept", "time")}
    for moved in (0.0, 2005.0):
        data = moved_rows(error, moved)
        fit = fit_saem(data, "linear", model_options=options, **few).saved
        curves = [Predictor(fit, seed=s, n_draws=200).curves(data).fitted for s in (0, 1)]
        found.append((Predictor(fit).population(individuals=data).fitted, *curves))
    (population, one, two), (same, far, _) = found
    np.testing.assert_allclose(same, population, rtol=1e-8)
    # Curves of individuals are means of draws: as far from each other as those of two seeds.
    noise = np.sqrt(np.square(one - two).mean())
    assert noise < 0.15 * one.std()
    assert np.sqrt(np.square(one - far).mean()) < 2 * noise
