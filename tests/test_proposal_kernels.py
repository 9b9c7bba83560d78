"""Kernels of moves that are accepted or not: as in NumPy, on any number of threads."""

import numpy as np
import pytest

from tests.test_langevin_kernels import model_of
from vpem._core import proposals
from vpem.saem.samplers import DRIFT, LEAP, WALK, Hmc, Mala, Metropolis, propose

from .tables import each, over

SAMPLERS = [Metropolis(), Mala(), Hmc()]
KINDS = {WALK: Metropolis(target=0.5), DRIFT: Mala(target=0.5), LEAP: Hmc(target=0.5)}


@pytest.fixture(scope="module", params=["linear", "constant", "proportional"])
def model(request):
    return model_of(request.param)


def moved(model, kind, gain, *, n_chains=3, n_threads=0, start=None):
    """Latents, scales, steps and counts after some moves; no threads: in NumPy."""
    theta, z = model.start()
    rng = np.random.default_rng(5)
    chains = Mala().begin(model, theta, z, n_chains)
    at = z + 0.05 * rng.normal(size=(n_chains, *z.shape)) if start is None else start.copy()
    scales = 0.5 + 2 * rng.uniform(size=z.shape)
    steps = 0.4 * (1 + rng.uniform(size=len(z)))
    keys = rng.integers(0, 2**64, size=(2, 12, model.n), dtype=np.uint64)
    counts = np.zeros(model.n, np.int64)
    units, law = (chains.roots, chains.centres, scales, steps, *keys, gain), model.kernels(theta)
    if n_threads:
        room = np.empty((model.n, n_chains * (1 + z.shape[1])))
        leaps, target = KINDS[kind].n_leaps, KINDS[kind].target
        proposals.propose(law, kind, leaps, *units, target, at, room, counts, n_threads)
    else:
        propose(law, KINDS[kind], *units, at, counts)
    return at, scales, steps, counts


@over(kind=KINDS, gain=[0.0, 0.3], n_chains=[1, 4])
def test_kernels_do_what_numpy_does(model, kind, gain, n_chains):
    plain, ours = (
        moved(model, kind, gain, n_chains=n_chains, n_threads=threads) for threads in (0, 1)
    )
    np.testing.assert_array_equal(ours[3], plain[3])
    assert 0 < ours[3].sum() <= 12 * n_chains * model.n
    for a, b in zip(ours[:3], plain[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


@each("kind", KINDS)
def test_threads_do_not_show(model, kind):
    found = [moved(model, kind, 0.3, n_chains=60, n_threads=threads) for threads in (1, 2, 3)]
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda one: one.name)
def test_samplers_move_alike_without_a_kernel(model, sampler, monkeypatch):
    theta, z = model.start()
    found = []
    for by_kernel in (True, False):
        if not by_kernel:
            monkeypatch.setattr(type(model), "kernels", lambda *arguments: None)
        chains = sampler.begin(model, theta, z, 3, 11)
        for now in range(1, 11):
            sampler.move(model, theta, chains, now, max(0, now - 6))
        found.append(chains)
    for name in ("z", "roots", "scales", "steps", "tried", "accepted"):
        ours, theirs = (getattr(one, name) for one in found)
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, err_msg=name)


@over(n_threads=[0, 1], kind=KINDS)
def test_chains_leave_where_there_is_no_density(n_threads, kind):
    """A start without a density does not stay, and makes no other chain stay."""
    model = model_of("constant")
    start = np.repeat(model.start()[1][None], 2, axis=0)
    start[1, 4, 0] = 720.0  # exp of it is infinite
    chains, _, _, counts = moved(model, kind, 0.0, n_chains=2, n_threads=n_threads, start=start)
    assert np.isfinite(chains).all()
    assert (counts >= 0).all()
    assert counts.sum() > 20


def test_adjusted_steps_are_not_stuck_where_the_density_is_steep():
    """Predictions far too small, of a proportional error: the gradient is enormous."""
    model = model_of("proportional")
    theta, z = model.start()
    sampler = Mala()
    chains = sampler.begin(model, theta, z, 20, 3)
    for now in range(1, 61):
        sampler.move(model, theta, chains, now, 0)
    chains.z[:, :, 1] += 1.5
    low = model.log_complete(chains.z, theta)
    for now in range(61, 161):
        sampler.move(model, theta, chains, now, now)
    high = model.log_complete(chains.z, theta)
    assert (high > low + 10).mean() > 0.95
