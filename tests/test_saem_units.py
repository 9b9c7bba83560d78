"""Units and odd data: results do not depend on what is measured in what."""

from pathlib import Path

import numpy as np
import pytest

from vpem.errors import InputError, NumericalError
from vpem.saem.conditional import (
    Conditional,
    covariance_of,
    importance_log_likelihood,
    observed_information,
    sample_conditional,
)
from vpem.saem.fit import fit_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import Streams, from_long, from_matrix
from vpem.saem.models.bifactor import BifactorModel
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.models.model import floored
from vpem.saem.samplers import Exact, Langevin

from .tables import each, each_once

DATA = Path(__file__).resolve().parents[1] / "data"
QUICK = {"n_iter": 40, "burn_in": 20, "tol": 0.0, "n_conditional": 60, "n_importance": 200}


def rescaled(data, time=1.0, value=1.0, dose=1.0, since=0.0, above=0.0):
    ids = np.array(data.names, dtype=object)[data.individual_of]
    covariates = {name: dose * values for name, values in data.covariates.items()}
    return from_long(ids, time * data.times + since, value * data.values + above, covariates)


@each_once(
    sampler=["exact", "metropolis", "mala"], units=[(525600, 1), (1e-6, 1), (1, 1e-6), (1e3, 1e6)]
)
def test_units_of_a_linear_model_do_not_matter(sampler, units):
    time, value = units
    data = read_individuals(DATA / "oxford_boys.csv")
    fits = [fit_saem(one, sampler=sampler, **QUICK) for one in (data, rescaled(data, time, value))]
    slope = value / time
    units = np.array([value, slope, value**2, value * slope, slope**2, value**2])
    np.testing.assert_allclose(fits[1].theta / units, fits[0].theta, rtol=1e-5)
    np.testing.assert_allclose(
        fits[1].standard_errors / units, fits[0].standard_errors, rtol=1e-4, equal_nan=True
    )
    moved = fits[1].log_likelihood.value + data.n_rows * np.log(value)
    assert moved == pytest.approx(fits[0].log_likelihood.value, abs=1e-3)
    assert np.isfinite(fits[0].standard_errors).all()


@pytest.mark.parametrize(
    ("time", "value", "dose"), [(60, 1, 1), (1 / 8760, 1, 1), (1, 1e-6, 1e-6), (1, 1e-9, 1e3)]
)
def test_units_of_a_dose_do_not_matter(time, value, dose):
    data = read_individuals(DATA / "theophylline.csv")
    options = {**QUICK, "sampler_options": {"n_steps": 1}, "n_chains": 1, "n_iter": 30}
    fits = [
        fit_saem(one, "one-compartment", **options)
        for one in (data, rescaled(data, time, value, dose))
    ]
    shift = np.array([-np.log(time), np.log(dose / value / time), -np.log(time)])
    np.testing.assert_allclose(fits[1].theta[:3] - shift, fits[0].theta[:3], rtol=1e-4)
    np.testing.assert_allclose(fits[1].theta[3:-1], fits[0].theta[3:-1], rtol=1e-3)
    assert fits[1].theta[-1] / value == pytest.approx(fits[0].theta[-1], rel=1e-4)


def test_items_far_from_zero_are_as_near_it():
    rng = np.random.default_rng(0)
    loadings = np.array([[1, 0.8, 0], [0.9, 0.6, 0], [0.8, 0, 0.7], [1.1, 0, 0.9]])
    Y = rng.normal(size=(100, 3)) @ loadings.T + 0.5 * rng.normal(size=(100, 4))
    options = {"model_options": {"groups": [0, 0, 1, 1]}, "sampler": "exact", **QUICK}
    near, far, small = (
        fit_saem(from_matrix(one), "bifactor", **options) for one in (Y, Y + 1e6, 1e-7 * Y)
    )
    np.testing.assert_allclose(far.theta[4:], near.theta[4:], rtol=1e-5)
    np.testing.assert_allclose(far.theta[:4] - 1e6, near.theta[:4], atol=1e-6)
    np.testing.assert_allclose(small.theta[4:12], 1e-7 * near.theta[4:12], rtol=1e-6)
    np.testing.assert_allclose(small.theta[12:], 1e-14 * near.theta[12:], rtol=1e-6)


def test_times_may_be_years():
    """Intercepts at year 0: nearly a multiple of the slopes."""
    data = read_individuals(DATA / "oxford_boys.csv")
    fit = fit_saem(rescaled(data, since=2000.0), sampler="exact", **QUICK)
    assert fit.log_likelihood.value == pytest.approx(-363.0, abs=0.6)
    assert fit.theta[1] == pytest.approx(6.525, abs=0.02)
    assert fit.theta[0] + 2000 * fit.theta[1] == pytest.approx(149.37, abs=0.05)


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
    _, z = model.start()
    chains = Exact().begin(model, theta, z, 2)
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


def test_few_draws_leave_no_direction_out():
    model = LinearModel(read_individuals(DATA / "oxford_boys.csv"))
    theta, _ = model.start()
    means, covariances = model.posterior(theta)
    flat = np.einsum("nij,j->ni", np.linalg.cholesky(covariances), [1.0, 1.0])
    singular = flat[:, :, None] * flat[:, None, :]
    nobody = np.zeros(0)
    given = Conditional(means, singular, means, means, 0.95, nobody, nobody, nobody, 2, nobody)
    streams = Streams.from_names(model.individuals.names, 0)
    found = importance_log_likelihood(model, theta, given, streams, after=0)
    assert found.value == pytest.approx(model.marginal(theta).sum(), abs=5 * found.error)
    assert found.error < 0.2


def test_steps_that_run_away_at_the_estimates_are_told():
    model = LinearModel(read_individuals(DATA / "oxford_boys.csv"))
    theta, z = model.start()
    sampler = Langevin(step=100.0, decay=0, n_steps=4)
    chains = sampler.begin(model, theta, z, 1)
    with pytest.raises(NumericalError, match="ran away"):
        sample_conditional(model, theta, sampler, chains, after=0, late=1)


def test_a_placebo_has_the_clearance_of_others():
    data = read_individuals(DATA / "theophylline.csv")
    first = data.individual_of == 0
    ids = np.array(data.names, dtype=object)[data.individual_of]
    dose = np.where(first, 0.0, data.covariate("dose"))
    model = OneCompartmentModel(
        from_long(ids, data.times, np.where(first, 0.0, data.values), {"dose": dose})
    )
    theta, z = model.start()
    assert np.abs(z - z.mean(axis=0)).max() < 1.5
    fit = fit_saem(
        model.individuals, "one-compartment", sampler="langevin", n_iter=60, burn_in=40, tol=0.0,
        n_conditional=20, n_importance=100,
    )  # fmt: skip
    assert np.abs(fit.theta[:3] - theta[:3]).max() < 0.5


@each(
    ("make", "words"),
    [
        (
            lambda t: LinearModel(from_long([0, 0, 1, 1], [0, 1, 0, 1], [3.0] * 4)).start(),
            "values are 3",
        ),
        (
            lambda t: OneCompartmentModel(rescaled(t, value=0.0), first=(0, 0, 0)).start(),
            "values are 0",
        ),
        (lambda t: OneCompartmentModel(rescaled(t, value=0.0)), "no individual tells"),
        (lambda t: OneCompartmentModel(rescaled(t, dose=0.0)), "no individual tells"),
        (lambda t: BifactorModel(from_matrix(np.eye(4) - 1), [0, 0, 1, 1]), None),
        (
            lambda t: BifactorModel(from_matrix([[1.0, 2], [2.0, 2], [3, 2]]), [0, 0]).start(),
            "item 1 is 2 for all individuals",
        ),
    ],
)
def test_values_that_say_nothing(make, words):
    theophylline = read_individuals(DATA / "theophylline.csv")
    if words is None:
        make(theophylline)
        return
    with pytest.raises(InputError, match=words):
        make(theophylline)
