"""What a fit says of individuals: curves, latents, classes, log-likelihoods, residuals, checks."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest, norm

from vpem.errors import InputError
from vpem.pictures.saem import draw_check, draw_effects, draw_observed, draw_residuals
from vpem.saem.diagnostics import residuals_of, simulate, visual_checks
from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_long, from_matrix
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.prediction import Predictor
from vpem.saem.structures.formulas import Compartments

from .cli_support import ROOT, done
from .tables import each

QUICK = {"n_iter": 60, "burn_in": 40, "tol": 0.0, "n_conditional": 40, "n_importance": 500}


@pytest.fixture(scope="module")
def boys():
    return read_individuals(ROOT / "data" / "oxford_boys.csv")


@pytest.fixture(scope="module")
def subjects():
    return read_individuals(ROOT / "data" / "theophylline.csv")


@pytest.fixture(scope="module")
def growth(boys):
    return fit_saem(boys, "linear", sampler="exact", **QUICK)


@pytest.fixture(scope="module")
def drug(subjects):
    more = QUICK | {"n_chains": 8, "n_conditional": 150}
    return fit_saem(subjects, "one-compartment", **more).saved


# ---- the linear model, where all has a formula --------------------------------------------------


def bayes(fit, times, values):
    """Mean and covariance of a line given rows, by the formula."""
    (*beta, a, b, c, variance), X = fit.theta, np.column_stack([np.ones(len(times)), times])
    omega = np.array([[a, b], [b, c]])
    gain = omega @ X.T @ np.linalg.inv(X @ omega @ X.T + variance * np.eye(len(X)))
    return beta + gain @ (values - X @ beta), omega - gain @ X @ omega


def test_latents_are_those_of_bayes_rule(growth, boys):
    found = Predictor(growth.saved).latents(boys)
    for one in (0, 7, 25):
        rows = slice(*boys.first[one : one + 2])
        mean, covariance = bayes(growth, boys.times[rows], boys.values[rows])
        np.testing.assert_allclose(found.means[one], mean, rtol=1e-9)
        np.testing.assert_allclose(found.covariances[one], covariance, rtol=1e-6)
        sd = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose(found.lower[one], mean - 1.96 * sd, atol=0.3 * sd.max())
    new = Predictor(growth).latents(from_long(["new"], [0.5], [160.0]))
    np.testing.assert_allclose(new.means[0], bayes(growth, [0.5], [160.0])[0], rtol=1e-8)
    score = Predictor(growth).score(boys)
    assert score.error == 0
    assert score.value == pytest.approx(growth.log_likelihood.value, abs=0.2)
    np.testing.assert_allclose(score.each, growth.model.marginal(growth.theta))


@each("level", [0.5, 0.95])
def test_curves_of_lines(growth, boys, level):
    times = np.array([-1.0, 0.0, 2.0])
    predictor = Predictor(growth, level=level, n_draws=20_000)
    found = predictor.curves(boys.take([3, 9]), times)
    assert found.at.names == ("4", "10")
    X = np.column_stack([np.ones(3), times])
    wide = norm.ppf((1 + level) / 2)
    for place, one in enumerate((3, 9)):
        rows = slice(*boys.first[one : one + 2])
        mean, covariance = bayes(growth, boys.times[rows], boys.values[rows])
        rows = slice(3 * place, 3 * place + 3)
        np.testing.assert_allclose(found.fitted[rows], X @ mean, rtol=1e-9)
        half = wide * np.sqrt(np.diag(X @ covariance @ X.T))
        np.testing.assert_allclose(found.upper[rows] - X @ mean, half, rtol=0.06)
        np.testing.assert_allclose(X @ mean - found.lower[rows], half, rtol=0.06)
    population, (*beta, a, b, c, _) = predictor.population(times), growth.theta
    np.testing.assert_allclose(population.fitted, X @ beta, rtol=1e-12)
    half = wide * np.sqrt(np.diag(X @ np.array([[a, b], [b, c]]) @ X.T))
    np.testing.assert_allclose(population.upper - X @ beta, half, rtol=0.05)
    of_boys = predictor.population(individuals=boys)
    np.testing.assert_allclose(of_boys.fitted, beta[0] + beta[1] * boys.times, rtol=1e-12)


def test_at_the_rows_themselves(growth, boys):
    found = Predictor(growth).curves(boys)
    assert found.at is boys
    assert np.sqrt(np.mean((found.fitted - boys.values) ** 2)) < 0.66  # the residual sd
    grid = Predictor(growth).curves(boys.take([5]), boys.times[45:54])
    np.testing.assert_allclose(grid.fitted, found.fitted[45:54], rtol=1e-12)


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


def test_known_individuals_and_the_same_rows_given_anew(drug, subjects):
    times = np.array([0.5, 2.0, 9.0, 24.0])
    predictor = Predictor(drug, n_draws=2000)
    anew, known = predictor.curves(subjects, times), predictor.stored(subjects.names, times)
    width = known.upper - known.lower
    assert np.abs(anew.fitted - known.fitted).max() < 0.12 * width.max()
    for end in ("lower", "upper"):
        assert np.abs(getattr(anew, end) - getattr(known, end)).max() < 0.2 * width.max()
    assert known.at.covariates["dose"][0] == subjects.covariates["dose"][0]
    found = Predictor(drug, n_draws=20).stored(["3"])
    assert found.at.n_rows == 50
    assert (found.at.times[0], found.at.times[-1]) == drug.time_range


def test_an_individual_is_predicted_alike_in_any_company(drug, subjects):
    predictor = Predictor(drug, n_draws=50)
    together = predictor.curves(subjects.take([0, 4, 11]), [1.0, 5.0])
    alone = predictor.curves(subjects.take([4]), [1.0, 5.0])
    for name in ("fitted", "lower", "upper"):
        np.testing.assert_array_equal(getattr(together, name)[2:4], getattr(alone, name))
    other = Predictor(drug, n_draws=50, seed=1).curves(subjects.take([4]), [1.0, 5.0])
    assert not np.array_equal(other.fitted, alone.fitted)
    found = Predictor(drug, n_draws=400).score(subjects, 500)
    assert 0 < found.error < 0.3
    assert found.value == pytest.approx(drug.log_likelihood.value, abs=0.4)
    half = Predictor(drug, n_draws=400).score(subjects.take(np.arange(6)), 500)
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


def test_own_models_are_given_again(boys, subjects, tmp_path):
    fit = fit_saem(boys, Own, **QUICK)
    save_saem(tmp_path / "own.h5", fit)
    saved = read_saem(tmp_path / "own.h5")
    with pytest.raises(InputError, match="model Own is a user's own, which a file does not hold"):
        Predictor(saved)
    times, some = [0.0, 0.5], boys.take([2])
    of_file, of_fit = (Predictor(one, Own).curves(some, times).fitted for one in (saved, fit))
    np.testing.assert_array_equal(of_file, of_fit)
    of_file, of_fit = (
        Predictor(saved, Own).stored(["3"], times),
        Predictor(fit).stored(["3"], times),
    )
    np.testing.assert_array_equal(of_fit.fitted, of_file.fitted)
    with pytest.raises(InputError, match="give what makes it of other individuals"):
        Predictor(fit).curves(boys)
    with pytest.raises(InputError, match="other parameters or latents"):
        Predictor(saved, OneCompartmentModel).curves(subjects)


# ---- what is wrong ------------------------------------------------------------------------------


@each(
    ("ask", "told"),
    [
        (lambda it, s: it.stored(["1"], []), "the times must be 1 to"),
        (lambda it, s: it.stored(["1"], [[1.0]]), "the times must be 1 to"),
        (lambda it, s: it.stored(["1"], ["noon"]), "the times must be 1 to"),
        (lambda it, s: it.stored(["1"], [0.0, np.nan]), "the times must be finite"),
        (lambda it, s: it.stored(["1"], [-1.0]), "has a time before the dose, -1"),
        (lambda it, s: it.stored(["13"]), "the fit has no individual '13'"),
        (lambda it, s: it.population([1.0]), "has no covariate 'dose'"),
        (lambda it, s: it.population([1.0], {"dose": -4.0}), "a dose that is negative, -4"),
        (lambda it, s: it.curves(replace(s, covariates={})), "has no covariate 'dose'"),
        # Faults of new data are not laid on the fit.
        (lambda it, s: it.curves(replace(s, times=s.times - 2, source="new.csv")),
         "^new.csv: individual '1' has a time before the dose, [^;]*; [^;]*$"),
        (lambda it, s: Predictor(it.saved, level=1.0), "level"),
        (lambda it, s: Predictor(it.saved, n_draws=1), "n_draws"),
        (lambda it, s: Predictor(it.saved, seed=-1), "seed"),
    ],
)  # fmt: skip
def test_who_when_and_what(drug, subjects, ask, told):
    with pytest.raises(InputError, match=told):
        ask(Predictor(drug), subjects)


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
def test_fits_that_nobody_made(growth, boys, changes, told):
    saved = growth.saved
    if isinstance(changes, tuple):
        changes = {"theta": changed(saved.theta, *changes)}
    with pytest.raises(InputError, match=told):
        Predictor(replace(saved, **changes)).curves(boys)


def changed(theta, place, value):
    theta = theta.copy()
    theta[place] = value
    return theta


@each(("place", "value"), [(0, 1e300), (1, -1e300), (6, 1e300)])
def test_estimates_out_of_all_reason(drug, subjects, place, value):
    theta = changed(drug.theta, place, value)
    predictor = Predictor(replace(drug, theta=theta), n_draws=20)
    with pytest.raises(InputError, match="nothing finite follows"):
        predictor.score(subjects.take([0]), 20)


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


def test_pictures_say_in_words_what_they_show(drawn):
    data, fit = drawn
    group = replace(data, covariates={"group": np.repeat(np.arange(N) % 2, 6).astype(float)})
    for draw, panels, words in (
        (draw_observed, 2, "1200 measurements"), (draw_residuals, 6, "npde mean"),
        (draw_check, 1, "of 18 lie outside"), (draw_effects, 4, "intercept with group"),
    ):  # fmt: skip
        picture = draw(fit, group)
        assert len(picture.figure.axes) == panels
        assert words in picture.alt


def test_a_table_of_residuals(capsys, drawn, tmp_path):
    save_saem(tmp_path / "f.h5", drawn[1])
    words = ("predict", tmp_path / "f.h5", ROOT / "data" / "oxford_boys.csv", "--residuals")
    lines = done(capsys, *words).out.splitlines()
    assert lines[0] == "id,time,value,population,fitted,iwres,pwres,npde"
    assert len(lines) == 235
    told = done(capsys, *words, "--json").json["residuals"]
    row = dict(zip(lines[0].split(","), lines[7].split(","), strict=True))
    assert all(float(row[name]) == told[name][6] for name in row if name != "id")
    left = [float(row[name]) for name in ("value", "fitted")]
    assert left[0] - left[1] == pytest.approx(float(row["iwres"]) * np.sqrt(THETA[-1]))
