"""Samplers of latents: their laws and streams; kernels do as their twins, on any threads."""

from functools import partial

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import kstest

from vpem._core import compartments, latents, proposals, topics
from vpem._core.langevin import langevin
from vpem.errors import InputError, NumericalError
from vpem.network.codecs import parse_codec
from vpem.saem.individuals import Streams, from_counts, from_long
from vpem.saem.models.lda import LdaModel
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.models.model import floored, make_model
from vpem.saem.samplers import (
    DRIFT,
    LEAP,
    WALK,
    Exact,
    Hmc,
    Langevin,
    Mala,
    Metropolis,
    _roots,
    precisions,
    propose,
    sampler_of,
)

from .cells_saem import BOYS, THEO
from .tables import each, over
from .twins import models as numpy_twins
from .twins.models import BY_CL_AND_KE, BY_V_AND_KE, LAG, ORAL, TWO


@pytest.fixture(scope="module")
def boys():
    return LinearModel(BOYS)


@pytest.fixture(scope="module")
def theophylline():
    return OneCompartmentModel(THEO)


def run(model, sampler, seed=0, n_chains=50, burn_in=60, n_iter=120, names=None):
    """Draws (iterations, chains, n, q) after the burn-in."""
    theta, z = model.start()
    chains = sampler.begin(model, theta, z, n_chains, seed)
    chains.streams = Streams.from_names(names or model.individuals.names, seed)
    draws = []
    for now in range(1, n_iter + 1):
        sampler.move(model, theta, chains, now, max(0, now - burn_in))
        if now > burn_in:
            draws.append(chains.z.copy())
    return np.array(draws), chains


def errors(model, draws):
    """Relative error of the variances of the latents, their mean; and of the means, in sd."""
    theta, _ = model.start()
    means, covariances = model.posterior(theta)
    variances = np.einsum("nii->ni", covariances)
    flat = draws.reshape(-1, *means.shape)
    off = (flat.mean(axis=0) - means) / np.sqrt(variances)
    return (flat.var(axis=0) / variances).mean() - 1, np.abs(off).max()


@each("sampler", [Exact(), Metropolis(), Mala(), Hmc()])
def test_exact_samplers_have_the_posterior_as_their_law(boys, sampler):
    draws, chains = run(boys, sampler, 1)
    variance, mean = errors(boys, draws)
    assert abs(variance) < 0.02
    assert mean < 0.2
    if chains.tried.any() and sampler.name != "hmc":  # its steps are long enough
        assert (np.abs(chains.accepted / chains.tried - sampler.target) < 0.15).all()


def test_langevin_is_biased_as_its_step_says(boys):
    """A normal law in units of its variances has the variance 1 / (1 - h / 4)."""
    for h in (0.2, 0.8):
        variance, _ = errors(boys, run(boys, Langevin(step=h, decay=0, n_steps=5))[0])
        assert variance == pytest.approx(1 / (1 - h / 4) - 1, abs=0.025)
    falling, _ = errors(boys, run(boys, Langevin(step=0.8, decay=1.0, n_steps=5))[0][-20:])
    assert abs(falling) < 0.06
    plain = run(boys, Langevin(), n_iter=5)[1].z
    exact = Langevin(codec=parse_codec("float64"))
    np.testing.assert_array_equal(run(boys, exact, n_iter=5)[1].z, plain)


def test_a_dithered_gradient_leaves_the_mean_and_widens_the_law(boys):
    options = {"step": 0.3, "decay": 0, "n_steps": 5}
    plain, _ = errors(boys, run(boys, Langevin(**options))[0])
    wide, mean = errors(boys, run(boys, Langevin(codec=parse_codec("qsgd:2bits"), **options))[0])
    assert wide > plain + 0.01
    assert mean < 0.3


def test_curvatures_of_a_normal_law_and_of_one_slope(boys):
    theta, _ = boys.start()
    means, covariances = boys.posterior(theta)
    found = precisions(boys, theta, means)
    np.testing.assert_allclose(found, np.linalg.inv(covariances), rtol=1e-6)
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=(20, 4)) * 10.0 ** rng.integers(0, 9, (20, 1))
    slopes[0] = 1e9
    found = _roots(np.eye(4) * 1e-6 + slopes[:, :, None] * slopes[:, None])
    assert np.isfinite(found).all()
    assert (np.einsum("nii->ni", found) > 0).all()


def test_latents_whose_variances_are_as_good_as_zero_are_moved():
    model = make_model("two-compartment", THEO, covariance="full")
    theta, _ = model.start()
    B, _, sds = model.unpack(theta)
    sd = np.array([0.9, 1e-5, 2.0, 3.0])
    for seed in range(20):
        factors = np.random.default_rng(seed).normal(size=(4, 3))
        omega = floored(factors @ factors.T) * np.outer(sd, sd)
        law = model.kernels(np.concatenate([model.law.pack(B, omega), sds]))
        root = law.population()[2]
        sizes = np.sqrt(np.outer(np.diag(omega), np.diag(omega)))
        np.testing.assert_allclose(root @ root.T / sizes, omega / sizes, atol=1e-4)


# ---- streams ------------------------------------------------------------------------------------


APART = [
    ("boys", Exact()), ("boys", Metropolis(n_steps=2)), ("theophylline", Mala(n_steps=2)),
    ("theophylline", Hmc(n_steps=2)), ("boys", Langevin(n_steps=3, step=0.05)),
    ("theophylline", Langevin(n_steps=3, step=0.05, codec=parse_codec("qsgd:4bits"))),
]  # fmt: skip


@each(("name", "sampler"), APART)
def test_an_individual_draws_alike_whoever_else_is_there(boys, theophylline, name, sampler):
    model = {"boys": boys, "theophylline": theophylline}[name]
    theta, z = model.start()
    whole = sampler.begin(model, theta, z, 3, 7)
    parts = [np.array(one) for one in ([0], [7, 3, 1], [9, 2, 4, 5, 6, 8, 10, 11])]
    apart = [model.take_individuals(which) for which in parts]
    chains = [
        sampler.begin(one, theta, z[which], 3, 7) for one, which in zip(apart, parts, strict=True)
    ]
    for now in range(1, 13):
        for one, some in zip((model, *apart), (whole, *chains), strict=True):
            sampler.move(one, theta, some, now, max(0, now - 10))
    for one, which in zip(chains, parts, strict=True):
        np.testing.assert_array_equal(one.z, whole.z[:, which])


def test_streams_are_uniform_and_apart():
    names = [f"p{i}" for i in range(40)]
    streams = Streams.from_names(names, 3)
    u = streams.derive_stream(1, 0).uniforms(5, 30)
    assert kstest(u.ravel(), "uniform").pvalue > 1e-3
    assert kstest(streams.derive_stream(2, 1).normals(5, 30).ravel(), "norm").pvalue > 1e-3
    again = Streams.from_names(names, 4)
    for other in (
        *(streams.derive_stream(*at) for at in ((2, 0), (1, 1))),
        again.derive_stream(1, 0),
    ):
        assert abs(np.corrcoef(u.ravel(), other.uniforms(5, 30).ravel())[0, 1]) < 0.06
    flat = u.transpose(1, 0, 2).reshape(40, -1)
    apart = np.corrcoef(flat)[~np.eye(40, dtype=bool)]
    assert np.abs(apart).max() < 0.4
    assert len(np.unique(u)) == u.size


# ---- what is refused ----------------------------------------------------------------------------


def test_steps_that_run_away_are_told(theophylline):
    with pytest.raises(NumericalError, match="ran away"):
        run(theophylline, Langevin(step=30.0, decay=0), n_chains=2)


@each(
    ("name", "options", "words"),
    [
        ("slice", {}, "sampler must be one of"),
        ("mala", {"decay": 1}, "takes no decay"),
        ("mala", {"n_steps": 0}, "n_steps must be"),
        ("langevin", {"step": -1}, "step must be"),
        ("metropolis", {"target": 1}, "target must be"),
    ],
)
def test_options_that_no_sampler_takes(name, options, words):
    with pytest.raises(InputError, match=words):
        sampler_of(name, **options)


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
        return LinearModel(BOYS)
    if name == "constant":
        return OneCompartmentModel(THEO, covariance="full")
    keep = THEO.times > 0
    ids, dose = THEO.ids[THEO.individual_of][keep], THEO.covariate("dose")[keep]
    later = from_long(ids, THEO.times[keep], THEO.values[keep], {"dose": dose})
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
    for j, step in enumerate(1e-5 * np.eye(2)):
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
    for codec in (None, "qsgd:2bits", "qsgd:16bits")
]
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
