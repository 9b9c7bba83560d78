"""Kernels of Metropolis and adjusted Langevin moves: as their twins, on any number of threads."""

import numpy as np
import pytest

from tests.test_langevin_kernels import model_of
from vpem._core import proposals, reference_proposals
from vpem.saem.models.linear import LinearModel
from vpem.saem.samplers import Mala, Metropolis
from vpem.saem.streams import Streams

from .tables import each, over

MODULES = (proposals, reference_proposals)


@pytest.fixture(scope="module", params=["linear", "constant", "proportional"])
def model(request):
    return model_of(request.param)


def moved(model, monkeypatch, module, step, gain, n_chains=3, n_moves=6, n_threads=1, start=None):
    """Latents, scales, steps and counts after some moves."""
    name = "propose_linear" if isinstance(model, LinearModel) else "propose_one_compartment"
    monkeypatch.setattr(f"{type(model).__module__}.{name}", getattr(module, name))
    theta, z = model.start()
    rng = np.random.default_rng(5)
    chains = z + 0.05 * rng.normal(size=(n_chains, *z.shape)) if start is None else start.copy()
    scales = 0.05 + 0.2 * rng.uniform(size=z.shape)
    steps = step * (1 + rng.uniform(size=len(z)))
    keys = rng.integers(0, 2**64, size=(2, n_moves, model.n), dtype=np.uint64)
    counts = model.propose(theta, chains, scales, steps, *keys, gain, 0.5, n_threads)
    return chains, scales, steps, counts


@over(step=[0.0, 0.4], gain=[0.0, 0.3], n_chains=[1, 4])
def test_kernels_are_their_twins(model, monkeypatch, step, gain, n_chains):
    ours, twins = (moved(model, monkeypatch, one, step, gain, n_chains) for one in MODULES)
    np.testing.assert_array_equal(ours[3], twins[3])
    assert 0 < ours[3].sum() < 6 * n_chains * model.n
    for a, b in zip(ours[:3], twins[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@each("step", [0.0, 0.4])
def test_threads_do_not_show(model, monkeypatch, step):
    found = [
        moved(model, monkeypatch, proposals, step, 0.3, n_chains=60, n_threads=n_threads)
        for n_threads in (1, 2, 3)
    ]
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("sampler", [Metropolis(), Mala()], ids=lambda one: one.name)
def test_samplers_move_alike_without_a_kernel(model, sampler, monkeypatch):
    theta, z = model.start()
    streams = Streams.of(model.individuals.names, 11)
    found = []
    for by_kernel in (True, False):
        if not by_kernel:
            monkeypatch.setattr(type(model), "propose", lambda *arguments: None)
        chains = sampler.begin(model, theta, z, 3)
        for now in range(1, 11):
            sampler.move(model, theta, chains, streams, now, max(0, now - 6))
        found.append(chains)
    for name in ("z", "scales", "steps", "tried", "accepted"):
        ours, theirs = (getattr(one, name) for one in found)
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, err_msg=name)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("step", [0.0, 0.4])
def test_chains_leave_where_there_is_no_density(module, step, monkeypatch):
    """A start without a density does not stay, and makes no other chain stay."""
    model = model_of("constant")
    start = np.repeat(model.start()[1][None], 2, axis=0)
    start[1, 4, 0] = 720.0  # exp of it is infinite
    chains, _, _, counts = moved(model, monkeypatch, module, step, 0.0, 2, start=start)
    assert np.isfinite(chains).all()
    assert (counts >= 0).all()
    assert counts.sum() > 20


def test_adjusted_steps_are_not_stuck_where_the_density_is_steep():
    """Predictions far too small, of a proportional error: the gradient is enormous."""
    model = model_of("proportional")
    theta, z = model.start()
    streams = Streams.of(model.individuals.names, 3)
    sampler = Mala()
    chains = sampler.begin(model, theta, z, 20)
    for now in range(1, 61):
        sampler.move(model, theta, chains, streams, now, 0)
    chains.z[:, :, 1] += 1.5
    low = model.log_complete(chains.z, theta)
    for now in range(61, 161):
        sampler.move(model, theta, chains, streams, now, now)
    high = model.log_complete(chains.z, theta)
    assert (high > low + 10).mean() > 0.95
