"""Measurements that a model draws, and residuals of those that it was given."""

from dataclasses import replace

import numpy as np
import pytest

from vpem.saem.individuals import Streams, from_long
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.models.model import SaemModel

IDS = np.repeat(["a", "b", "c"], [3, 5, 4])
TIMES = np.concatenate([np.arange(1.0, 1 + count) for count in (3, 5, 4)])
PEOPLE = from_long(IDS, TIMES, np.exp(-TIMES / 9) + 1, {"dose": np.full(12, 4.0)})
LINES = np.array([[1.0, 0.5], [2.0, -0.5], [0.0, 1.0]])
CASES = {
    "linear": (LinearModel, {}, np.array([1.0, 0.0, 1.0, 0.0, 1.0, 0.25]), LINES,
               lambda curve: np.full(curve.shape, 0.5)),
    "constant": (OneCompartmentModel, {}, np.array([0.5, -3, -2.5, 0.1, 0.1, 0.1, 0.7]),
                 np.tile([0.5, -3, -2.5], (3, 1)), lambda curve: np.full(curve.shape, 0.7)),
    "proportional": (OneCompartmentModel, {"error": "proportional"},
                     np.array([0.5, -3, -2.5, 0.1, 0.1, 0.1, 0.2]),
                     np.tile([0.5, -3, -2.5], (3, 1)), lambda curve: 0.2 * curve),
}  # fmt: skip


def drawn(model: SaemModel, theta, z, people=PEOPLE, n_chains=4000):
    stream = Streams.from_names(people.names, 7).derive_stream(1, 0)
    return model.draw_values(np.repeat(z[None], n_chains, axis=0), theta, stream, people)


@pytest.mark.parametrize("case", CASES)
def test_drawn_values_have_the_law_of_the_model(case):
    made, options, theta, z, sds = CASES[case]
    model = made(PEOPLE, **options).expand_about(theta)
    curve = model.curve(z[None], PEOPLE)[0]
    found = drawn(model, theta, z)
    np.testing.assert_allclose(found.mean(axis=0), curve, atol=5 * sds(curve).max() / 4000**0.5)
    np.testing.assert_allclose(found.std(axis=0), sds(curve), rtol=0.06)
    apart = np.corrcoef(found.T) - np.eye(12)
    assert np.abs(apart).max() < 0.08  # rows and individuals have numbers of their own
    # Somebody draws the same, whoever else is there.
    alone = model.take_individuals(np.array([1]))
    np.testing.assert_array_equal(
        drawn(alone, theta, z[1:2], alone.individuals, 50), found[:50, 3:8]
    )


@pytest.mark.parametrize("case", CASES)
def test_weighted_residuals_are_apart_in_standard_deviations(case):
    made, options, theta, z, sds = CASES[case]
    model = made(PEOPLE, **options).expand_about(theta)
    curve = model.curve(z[None], PEOPLE)[0]
    found = model.weighted_residuals(z[None], theta)[0]
    np.testing.assert_allclose(found * sds(curve), PEOPLE.values - curve, rtol=1e-12)
    limits = replace(PEOPLE, covariates={**PEOPLE.covariates, "censored": np.eye(12)[4]})
    kept = made(limits, **options).weighted_residuals(z[None], theta)[0]
    assert np.flatnonzero(np.isnan(kept)).tolist() == [4]
    means, covariance = model.prior(theta, PEOPLE)
    assert means.shape == (3, len(model.latents))
    np.testing.assert_array_equal(covariance, model.population(theta)[1])
