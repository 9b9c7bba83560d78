"""Laws of latents and Langevin kernels: as their twins, and on any number of threads."""

from pathlib import Path

import numpy as np
import pytest

from vpem._core import latents
from vpem._core.langevin import langevin
from vpem.network.codecs import parse_codec
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_long
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.samplers import Langevin

from .tables import over
from .twins import models as numpy_twins
from .twins.models import BY_CL_AND_KE, ORAL

DATA = Path(__file__).resolve().parents[1] / "data"


def model_of(name):
    if name == "linear":
        return LinearModel(read_individuals(DATA / "oxford_boys.csv"))
    data = read_individuals(DATA / "theophylline.csv")
    if name == "constant":
        return OneCompartmentModel(data, covariance="full")
    keep = data.times > 0
    ids = np.array(data.names, dtype=object)[data.individual_of][keep]
    dose = data.covariate("dose")[keep]
    return OneCompartmentModel(
        from_long(ids, data.times[keep], data.values[keep], {"dose": dose}), error="proportional"
    )


@pytest.fixture(scope="module", params=["linear", "constant", "proportional"])
def model(request):
    return model_of(request.param)


def rows_of(code, rng, n=5):
    """Arguments of `Curves`: laws of all kinds and sides, one parameter that does not vary."""
    counts = rng.integers(1, 9, n)
    first = np.concatenate([[0], np.cumsum(counts)])
    N, q = int(first[-1]), 2
    outcomes = rng.integers(0, 6, N).astype(np.uint8)
    kinds = np.array([0, 0, 0, 1, 2, 3], np.int32)
    noise = np.array([[0.4, 0.0], [0.0, 0.3], [0.2, 0.3], [0.5, 0.0], [0.0, 0.0], [0.0, 0.0]])
    values = np.where(kinds[outcomes] == 2, rng.integers(0, 2, N), rng.integers(1, 6, N))
    censored = np.where(kinds[outcomes] < 2, rng.integers(-1, 2, N), 0).astype(np.int8)
    columns = rng.uniform(0.1, 1.0, (N, 3)) if code < 0 else np.zeros((0, 3))
    half = rng.normal(size=(q, q))
    places = np.array([2, 0] if code else [1, 0])
    base = rng.uniform(0.2, 1, (n, 3 if code else 2))
    return (
        rng.normal(size=(n, q)), half @ half.T + np.eye(q), code, base, places, first,
        rng.uniform(0.1, 3, N), columns, values.astype(float), outcomes, censored, kinds, noise,
        np.arange(n + 1), np.zeros(n), rng.uniform(2, 9, n), np.zeros(n),
    )  # fmt: skip


def filled(law, z):
    """Log-densities and gradients at z."""
    values, slopes = np.empty(z.shape[:2]), np.empty(z.shape)
    law.density(z, values, slopes)
    return values, slopes


@over(code=[-1, 0, ORAL | BY_CL_AND_KE], seed=[0, 1])
def test_laws_are_their_twins_and_gradients_are_derivatives(code, seed):
    rng = np.random.default_rng(seed)
    given = rows_of(code, rng)
    ours, twin = latents.Curves(*given), numpy_twins.Curves(*given)
    z = rng.uniform(0.1, 1, (3, 5, 2))
    values, slopes = filled(ours, z)
    assert np.isfinite(values).all()
    for a, b in zip((values, slopes), filled(twin, z), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    for j in range(2):
        step = 1e-5 * np.eye(2)[j]
        bend = (filled(ours, z + step)[0] - filled(ours, z - step)[0]) / 2e-5
        np.testing.assert_allclose(slopes[..., j], bend, rtol=1e-5, atol=1e-6)


def test_models_and_kernels_have_the_same_law(model):
    """Up to a constant of each individual."""
    theta, z = model.start()
    z = z + 0.05 * np.random.default_rng(0).normal(size=(3, *z.shape))
    values, slopes = filled(model.kernels(theta), z)
    apart = values - model.log_complete(z, theta)
    np.testing.assert_allclose(apart, np.broadcast_to(apart[0], apart.shape), atol=1e-9)
    np.testing.assert_allclose(slopes, model.gradient(z, theta), rtol=1e-8, atol=1e-8)


def roots_of(model, rng):
    """Some lower triangles."""
    n, q = model.n, len(model.latents)
    return 0.05 * (np.eye(q) + np.tril(rng.uniform(size=(n, q, q))))


def test_threads_do_not_show(model):
    theta, z = model.start()
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, size=(2, 3, model.n), dtype=np.uint64)
    start = z + 0.05 * rng.normal(size=(100, *z.shape))  # enough for threads
    roots, found = roots_of(model, rng), []
    for n_threads in (1, 2, 3):
        moved, faults = start.copy(), np.zeros(start.shape[:2], np.uint8)
        langevin(model.kernels(theta), roots, *keys, 0.3, 3, moved, faults, n_threads)
        found.append(moved)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("codec", [None, "qsgd:2bits", "qsgd:8bits", "qsgd:16bits"])
def test_the_sampler_takes_the_same_steps_without_a_kernel(model, codec, monkeypatch):
    codec = None if codec is None else parse_codec(codec)
    sampler = Langevin(n_steps=4, step=0.02, codec=codec)
    theta, z = model.start()
    found = []
    for by_kernel in (True, False):
        if not by_kernel:
            monkeypatch.setattr(type(model), "kernels", lambda *arguments: None)
        chains = sampler.begin(model, theta, z, 3, 11)
        for now in range(1, 4):
            sampler.move(model, theta, chains, now, 0)
        found.append(chains.z)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)


def test_chains_that_run_away_are_marked():
    model = model_of("constant")
    theta, z = model.start()
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, size=(2, 3, model.n), dtype=np.uint64)
    moved, faults = np.repeat(z[None], 2, axis=0), np.zeros((2, model.n), np.uint8)
    moved[1, 4, 0] = np.nan
    langevin(model.kernels(theta), roots_of(model, rng), *keys, 0.1, 3, moved, faults, 1)
    assert faults.tolist() == [[0] * 12, [0] * 4 + [1] + [0] * 7]
