"""Residuals and predictive checks: right where the model is, and not where it is wrong."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest

from vpem.pictures.saem import draw_check, draw_effects, draw_observed, draw_residuals
from vpem.saem.diagnostics import residuals_of, simulate, visual_checks
from vpem.saem.fit import fit_saem
from vpem.saem.individuals import from_long
from vpem.saem.models.linear import LinearModel
from vpem.saem.prediction import Predictor

from .cli_support import ROOT, done

THETA = np.array([10.0, 2.0, 4.0, 0.5, 0.25, 1.0])
TIMES = np.tile(np.arange(6.0), 300)
PEOPLE = from_long(np.repeat(np.arange(300), 6), TIMES, np.zeros(1800))
QUICK = {"n_iter": 4, "burn_in": 2, "tol": 0.0, "n_conditional": 4, "n_importance": 20}


@pytest.fixture(scope="module")
def drawn():
    """300 individuals of a model, and a fit that has its parameters."""
    model = LinearModel(PEOPLE, shift=0.0)
    data = replace(PEOPLE, values=simulate(model, THETA, 1, seed=5)[0])
    fit = fit_saem(data, "linear", **QUICK).saved
    return data, replace(fit, theta=THETA)


def test_simulated_data_have_the_moments_of_the_model():
    model = LinearModel(PEOPLE, shift=0.0)
    found = simulate(model, THETA, 200, seed=1).reshape(200 * 300, 6)
    X = np.column_stack([np.ones(6), np.arange(6.0)])
    omega = np.array([[4.0, 0.5], [0.5, 0.25]])
    np.testing.assert_allclose(found.mean(axis=0), X @ THETA[:2], atol=0.06)
    np.testing.assert_allclose(np.cov(found.T), X @ omega @ X.T + np.eye(6), rtol=0.03, atol=0.05)


def test_residuals_of_the_true_model_are_standard_normal(drawn):
    data, fit = drawn
    found = residuals_of(Predictor(fit, n_draws=2000), data)
    for values in (found.among, found.npde):
        assert kstest(values, "norm").pvalue > 0.01
        table = values.reshape(300, 6)
        assert np.abs(np.corrcoef(table.T) - np.eye(6)).max() < 0.15
    X = np.column_stack([np.ones(6), np.arange(6.0)])
    np.testing.assert_allclose(found.population, np.tile(X @ THETA[:2], 300))
    np.testing.assert_allclose(found.individual, data.values - found.fitted)
    root = np.linalg.cholesky(X @ [[4.0, 0.5], [0.5, 0.25]] @ X.T + np.eye(6))
    exact = np.linalg.solve(root, (data.values - found.population).reshape(300, 6).T).T
    assert np.abs(found.among - exact.ravel()).mean() < 0.06  # the moments are of 2000 draws
    # Of a wrong model they are not.
    wrong = replace(fit, theta=np.array([10.0, 2.0, 4.0, 0.5, 0.25, 4.0]))
    assert kstest(residuals_of(Predictor(wrong), data).npde, "norm").pvalue < 1e-6


def test_limits_have_their_place_among_what_was_simulated(drawn):
    """Half of the values censored: errors stay standard normal, and the check counts limits."""
    data, fit = drawn
    limit = 15.0
    below = data.values < limit
    censored = replace(
        data,
        values=np.where(below, limit, data.values),
        covariates={"censored": below.astype(float)},
    )
    predictor = Predictor(fit, n_draws=1000)
    found = residuals_of(predictor, censored)
    assert np.isnan(found.individual[below]).all()
    assert np.isfinite(found.npde).all()
    for row in found.npde.reshape(300, 6).T:
        assert kstest(row, "norm").pvalue > 0.01
    (check,) = visual_checks(predictor, censored, n_sims=200)
    (share,) = check.limited
    np.testing.assert_allclose(share.observed, below.reshape(300, 6).mean(axis=0))
    assert ((share.lower <= share.observed) & (share.observed <= share.upper)).sum() >= 5
    assert min(one.observed.min() for one in check.shares) == limit
    assert "below" in draw_check(fit, censored).figure.axes[1].get_ylabel()


def test_a_check_covers_the_true_model_and_shows_a_wrong_one(drawn):
    data, fit = drawn
    (check,) = visual_checks(Predictor(fit), data)
    assert check.times.tolist() == [0, 1, 2, 3, 4, 5]
    table = data.values.reshape(300, 6)
    for share, percent in zip(check.shares, (5, 50, 95), strict=True):
        np.testing.assert_allclose(share.observed, np.percentile(table, percent, axis=0))
        assert (share.lower < share.middle).all()
        assert ((share.lower <= share.observed) & (share.observed <= share.upper)).sum() >= 5
    wrong = replace(fit, theta=np.array([10.0, 2.0, 4.0, 0.5, 1.0, 1.0]))
    (check,) = visual_checks(Predictor(wrong), data, n_bins=3)
    assert len(check.times) == 3
    assert check.shares[2].observed[-1] < check.shares[2].lower[-1]
    two = replace(data, covariates={"outcome": np.tile([1.0, 2.0], 900)})
    assert [len(one.rows) for one in visual_checks(Predictor(fit), two)] == [900, 900]


def test_pictures_say_in_words_what_they_show(drawn):
    data, fit = drawn
    group = replace(data, covariates={"group": np.repeat(np.arange(300) % 2, 6).astype(float)})
    for draw, panels, words in (
        (draw_observed, 2, "1800 measurements"), (draw_residuals, 6, "npde mean"),
        (draw_check, 1, "of 18 lie outside"), (draw_effects, 4, "intercept with group"),
    ):  # fmt: skip
        picture = draw(fit, group)
        assert len(picture.figure.axes) == panels
        assert words in picture.alt
    assert draw_check(fit, data).alt == draw_check(fit, data).alt


def test_a_table_of_residuals(capsys, drawn, tmp_path):
    from vpem.saem.formats.fits import save_saem

    boys = ROOT / "data" / "oxford_boys.csv"
    save_saem(tmp_path / "f.h5", drawn[1])
    words = ("predict", tmp_path / "f.h5", boys, "--residuals")
    lines = done(capsys, *words).out.splitlines()
    assert lines[0] == "id,time,value,population,fitted,iwres,pwres,npde"
    assert len(lines) == 235
    told = done(capsys, *words, "--json").json["residuals"]
    row = dict(zip(lines[0].split(","), lines[7].split(","), strict=True))
    assert all(float(row[name]) == told[name][6] for name in row if name != "id")
    left = [float(row[name]) for name in ("value", "fitted")]
    assert left[0] - left[1] == pytest.approx(float(row["iwres"]) * np.sqrt(THETA[-1]))
