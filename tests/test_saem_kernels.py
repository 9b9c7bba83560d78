"""Kernels of SAEM: as their twins, as models without them, and on any number of threads."""

from functools import partial

import numpy as np
import pytest
from scipy.special import softmax

from vpem._core import compartments, latents, proposals, topics
from vpem._core.langevin import langevin
from vpem.network.codecs import parse_codec
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import Streams, from_counts, from_long
from vpem.saem.models.lda import LdaModel
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.samplers import DRIFT, LEAP, WALK, Hmc, Langevin, Mala, Metropolis, propose

from .cli_support import ROOT
from .tables import each, over
from .twins import models as numpy_twins
from .twins.models import BY_CL_AND_KE, BY_V_AND_KE, LAG, ORAL, TWO

# ---- curves of compartments ---------------------------------------------------------------------

CODES = {
    ORAL: 3, ORAL | BY_CL_AND_KE: 3, ORAL | BY_V_AND_KE | LAG: 4, 0: 2, BY_CL_AND_KE: 2,
    TWO: 4, TWO | ORAL: 5, TWO | ORAL | LAG: 6,
}  # fmt: skip
DOSES = {
    "one": [(0.0, 4.0, 0.0)],
    "several": [(0.0, 4.0, 0.0), (3.0, 2.0, 0.0), (3.5, 0.0, 0.0), (20.0, 9.0, 0.0)],
    "infused": [(0.5, 4.0, 2.0), (4.0, 3.0, 0.5)],
    "none": [],
}
TIMES = np.array([-1.0, 0.0, 0.1, 1.0, 2.5, 3.0, 6.0, 24.0])


def curves(module, code, phi, doses, n_threads=1, with_slopes=True):
    """Concentrations and derivatives, of individuals with the same rows and doses."""
    chains, n, m = phi.shape
    first, given = np.arange(n + 1) * len(TIMES), np.arange(n + 1) * len(doses)
    columns = [np.tile(column, n) for column in np.reshape(np.array(doses, float), (-1, 3)).T]
    found = np.empty((chains, n * len(TIMES)))
    slopes = np.empty((chains, n * len(TIMES), m) if with_slopes else (0, 0, 0))
    module.curves(code, phi, first, np.tile(TIMES, n), given, *columns, found, slopes, n_threads)
    return found, slopes


@over(code=CODES, doses=DOSES)
def test_compartments_are_their_twin_at_close_rates_and_far_ones(code, doses):
    m, rng = CODES[code], np.random.default_rng(CODES[code])
    phi = rng.normal(size=(2, 5, m))
    phi[:, 0] = 0.0  # rates that are the same
    phi[:, 1] = 1e-9 * rng.normal(size=(2, m))
    phi[:, 2] = 1e-3 * rng.normal(size=(2, m))
    ours, twins = (curves(one, code, phi, DOSES[doses]) for one in (compartments, numpy_twins))
    for a, b in zip(ours, twins, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-12, atol=1e-12)
    alone = curves(compartments, code, phi, DOSES[doses], 3, False)[0]
    np.testing.assert_array_equal(alone, ours[0])


# ---- laws of latents ----------------------------------------------------------------------------


def model_of(name):
    if name == "linear":
        return LinearModel(read_individuals(ROOT / "data" / "oxford_boys.csv"))
    data = read_individuals(ROOT / "data" / "theophylline.csv")
    if name == "constant":
        return OneCompartmentModel(data, covariance="full")
    keep = data.times > 0
    ids, dose = data.ids[data.individual_of][keep], data.covariate("dose")[keep]
    later = from_long(ids, data.times[keep], data.values[keep], {"dose": dose})
    return OneCompartmentModel(later, error="proportional")


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


# ---- moves of chains ----------------------------------------------------------------------------

KINDS = {WALK: Metropolis(target=0.5), DRIFT: Mala(target=0.5), LEAP: Hmc(target=0.5)}


def moved(model, kind, gain=0.3, *, n_chains=60, n_threads=0, start=None):
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


def drifted(model, start=None, h=0.3, n_threads=1):
    """Latents and faults after Langevin steps of which each gradient has two bits."""
    theta, z = model.start()
    rng, q = np.random.default_rng(0), z.shape[1]
    keys = rng.integers(0, 2**64, size=(2, 3, model.n), dtype=np.uint64)
    at = z + 0.05 * rng.normal(size=(100, *z.shape)) if start is None else start.copy()
    roots = 0.05 * (np.eye(q) + np.tril(rng.uniform(size=(model.n, q, q))))
    faults = np.zeros(at.shape[:2], np.uint8)
    langevin(model.kernels(theta), roots, *keys, h, 3, at, faults, n_threads)
    return at, faults


@over(kind=KINDS, gain=[0.0, 0.3], n_chains=[1, 4])
def test_kernels_of_moves_do_what_numpy_does(model, kind, gain, n_chains):
    plain, ours = (
        moved(model, kind, gain, n_chains=n_chains, n_threads=threads) for threads in (0, 1)
    )
    np.testing.assert_array_equal(ours[3], plain[3])
    assert 0 < ours[3].sum() <= 12 * n_chains * model.n
    for a, b in zip(ours[:3], plain[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_threads_do_not_show(model):
    for run in (drifted, *(partial(moved, kind=kind) for kind in KINDS)):
        one, *others = (run(model, n_threads=threads) for threads in (1, 2, 3))
        for other in others:
            for a, b in zip(one, other, strict=True):
                np.testing.assert_array_equal(a, b)


SAMPLERS = [Metropolis(), Mala(), Hmc()]
SAMPLERS += [
    Langevin(n_steps=4, step=0.02, codec=None if codec is None else parse_codec(codec))
    for codec in (None, "qsgd:2bits", "qsgd:8bits", "qsgd:16bits")
]


@each("sampler", SAMPLERS)
def test_samplers_move_alike_without_a_kernel(model, sampler):
    theta, z = model.start()
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(2):
            chains = sampler.begin(model, theta, z, 3, 11)
            for now in range(1, 11):
                sampler.move(model, theta, chains, now, max(0, now - 6))
            found.append(chains)
            patch.setattr(type(model), "kernels", lambda *arguments: None)
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


def test_langevin_chains_that_run_away_are_marked():
    model = model_of("constant")
    start = np.repeat(model.start()[1][None], 2, axis=0)
    start[1, 4, 0] = np.nan
    assert drifted(model, start, 0.1)[1].tolist() == [[0] * 12, [0] * 4 + [1] + [0] * 7]


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


# ---- topics -------------------------------------------------------------------------------------


@each(("n_topics", "n_chains"), [(1, 1), (4, 2)])
def test_kernels_of_topics_do_what_their_twins_do(n_topics, n_chains):
    """One topic and several, one chain and two, words that come often, on two threads."""
    rng = np.random.default_rng(3)
    counts = rng.poisson(0.7, (9, 12))
    counts[0] = [30, *[0] * 11]
    counts[:, 1] += 1
    model = LdaModel(from_counts(counts), n_topics)
    rows = model._first, model._words, model._counts
    phi = np.ascontiguousarray(rng.dirichlet(np.ones(12), n_topics).T)
    z = rng.normal(size=(n_chains, 9, n_topics)) * 3
    keys = np.ascontiguousarray(Streams.from_names(model.individuals.names, 1).keys_at(2, 4))
    shares, group = softmax(z, axis=-1), np.array([0, 1, -1, 1, 0, 0, 1, 1, 0])

    def run(kernels, n_threads):
        found, out = z.copy(), np.zeros((2, n_topics, 12))
        value, slope = np.empty((n_chains, 9)), np.empty(z.shape)
        gamma, bound = np.empty((9, n_topics)), np.empty(9)
        kernels.sweep_topics(*rows, phi, 0.3, keys, found, n_threads)
        by_word = model._by_word
        kernels.means_of_topics(*by_word, phi, shares, group, np.arange(9.0), out, n_threads)
        kernels.density_of_topics(*rows, phi, 0.3, z, value, slope, n_threads)
        kernels.bound_of_topics(*rows, phi, 0.3, 50, 1e-6, gamma, bound, n_threads)
        return found, out, value, slope, gamma, bound

    for ours, theirs in zip(run(topics, 2), run(numpy_twins, 1), strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-9, 1e-9)
