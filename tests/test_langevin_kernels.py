"""Langevin kernels: as their twins, as the NumPy loop, and on any number of threads."""

from pathlib import Path

import numpy as np
import pytest

from vpem._core import langevin, reference_langevin
from vpem.network.codecs import parse_codec
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_long
from vpem.saem.langevin import Langevin
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.one_compartment import OneCompartmentModel
from vpem.saem.streams import Streams

from .tables import over

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
        from_long(ids, data.times[keep], data.values[keep], {"dose": dose}), "proportional"
    )


@pytest.fixture(scope="module", params=["linear", "constant", "proportional"])
def model(request):
    return model_of(request.param)


def pieces(model, n_chains, n_steps, seed):
    """Arguments that the kernels share."""
    theta, z = model.start()
    rng = np.random.default_rng(seed)
    chains = z + 0.05 * rng.normal(size=(n_chains, *z.shape))
    keys = rng.integers(0, 2**64, size=(2, n_steps, model.n), dtype=np.uint64)
    return theta, chains, 0.05 + 0.05 * rng.uniform(size=z.shape), keys


@over(levels=[0, 1, 7, 32767], chains=[(1, 1), (3, 4)])
def test_kernels_are_their_twins(model, levels, chains, monkeypatch):
    n_chains, n_steps = chains
    name = "langevin_linear" if isinstance(model, LinearModel) else "langevin_one_compartment"
    home = f"{type(model).__module__}.{name}"
    theta, z, scales, keys = pieces(model, n_chains, n_steps, levels)
    found = []
    for module in (langevin, reference_langevin):
        monkeypatch.setattr(home, getattr(module, name))
        moved = z.copy()
        faults = model.langevin(theta, moved, scales, *keys, 0.3, levels, 1)
        assert not faults.any()
        found.append(moved)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-11)
    assert np.abs(found[0] - z).min() > 0


def test_threads_do_not_show(model):
    theta, z, scales, keys = pieces(model, 100, 3, 0)  # enough for threads
    found = []
    for n_threads in (1, 2, 3):
        moved = z.copy()
        model.langevin(theta, moved, scales, *keys, 0.3, 3, n_threads)
        found.append(moved)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("codec", [None, "qsgd:2bits", "qsgd:8bits"])
def test_the_sampler_takes_the_same_steps_without_a_kernel(model, codec, monkeypatch):
    codec = None if codec is None else parse_codec(codec)
    sampler = Langevin(n_steps=4, step=0.02, codec=codec)
    theta, z = model.start()
    streams = Streams.of(model.individuals.names, 11)
    found = []
    for by_kernel in (True, False):
        if not by_kernel:
            monkeypatch.setattr(type(model), "langevin", lambda *arguments: None)
        chains = sampler.begin(model, theta, z, 3)
        for now in range(1, 4):
            sampler.move(model, theta, chains, streams, now, 0)
        found.append(chains.z)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)


@pytest.mark.parametrize("module", [langevin, reference_langevin])
def test_chains_that_run_away_are_marked(module, monkeypatch):
    model = model_of("constant")
    monkeypatch.setattr(
        f"{type(model).__module__}.langevin_one_compartment", module.langevin_one_compartment
    )
    theta, z, scales, keys = pieces(model, 2, 3, 0)
    z[1, 4, 0] = np.nan
    faults = model.langevin(theta, z, scales, *keys, 0.1, 3, 1)
    assert faults.tolist() == [[0] * 12, [0] * 4 + [1] + [0] * 7]
