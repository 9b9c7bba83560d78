"""Samplers of latents: their laws, their streams, and that neither order nor threads show."""

import numpy as np
import pytest
from scipy.stats import kstest

from vpem.errors import InputError, NumericalError
from vpem.network.codecs import parse_codec
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import Streams
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.models.model import floored, make_model
from vpem.saem.samplers import (
    Exact,
    Hmc,
    Langevin,
    Mala,
    Metropolis,
    _roots,
    precisions,
    sampler_of,
)

from .cli_support import ROOT
from .tables import each

DATA = ROOT / "data"


@pytest.fixture(scope="module")
def boys():
    return LinearModel(read_individuals(DATA / "oxford_boys.csv"))


@pytest.fixture(scope="module")
def theophylline():
    return OneCompartmentModel(read_individuals(DATA / "theophylline.csv"))


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


def test_many_bits_of_a_gradient_are_all_of_it(boys):
    plain = run(boys, Langevin(), n_iter=5)[1].z
    gaps = []
    for bits in (4, 8, 16):
        coded = Langevin(codec=parse_codec(f"qsgd:{bits}bits"))
        gaps.append(np.abs(run(boys, coded, n_iter=5)[1].z - plain).max())
    assert gaps[0] > 4 * gaps[1] > 16 * gaps[2]
    assert gaps[2] < 1e-2
    exact = Langevin(codec=parse_codec("float64"))
    np.testing.assert_array_equal(run(boys, exact, n_iter=5)[1].z, plain)


def test_a_dithered_gradient_leaves_the_mean_and_widens_the_law(boys):
    options = {"step": 0.3, "decay": 0, "n_steps": 5}
    plain, _ = errors(boys, run(boys, Langevin(**options))[0])
    wide, mean = errors(boys, run(boys, Langevin(codec=parse_codec("qsgd:2bits"), **options))[0])
    assert wide > plain + 0.01
    assert mean < 0.3


def test_samplers_of_a_curve_agree(theophylline):
    means = []
    for sampler in (Metropolis(), Mala(), Hmc()):
        draws, _ = run(theophylline, sampler, n_chains=16)
        flat = draws.reshape(-1, *draws.shape[2:])
        means.append((flat.mean(axis=0), flat.std(axis=0)))
    (a, sd), *others = means
    for b, other in others:
        assert (np.abs(a - b) / sd).max() < 0.15
        np.testing.assert_allclose(sd, other, rtol=0.1)


def test_curvatures_of_a_normal_law(boys):
    theta, _ = boys.start()
    precision = np.linalg.inv(boys.posterior(theta)[1])
    means, _ = boys.posterior(theta)
    np.testing.assert_allclose(precisions(boys, theta, means), precision, rtol=1e-6)


def test_units_of_a_curvature_that_is_one_slope():
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=(20, 4)) * 10.0 ** rng.integers(0, 9, (20, 1))
    slopes[0] = 1e9
    found = _roots(np.eye(4) * 1e-6 + slopes[:, :, None] * slopes[:, None])
    assert np.isfinite(found).all()
    assert (np.einsum("nii->ni", found) > 0).all()


def test_latents_whose_variances_are_as_good_as_zero_are_moved():
    model = make_model(
        "two-compartment", read_individuals(DATA / "theophylline.csv"), covariance="full"
    )
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

SAMPLERS = [
    Metropolis(n_steps=2),
    Mala(n_steps=2),
    Hmc(n_steps=2),
    Langevin(n_steps=3, step=0.05),
    Langevin(n_steps=3, step=0.05, codec=parse_codec("qsgd:4bits")),
]


@each(
    ("name", "sampler"),
    [("boys", Exact()), *((name, one) for name in ("boys", "theophylline") for one in SAMPLERS)],
)
def test_an_individual_draws_alike_whoever_else_is_there(boys, theophylline, name, sampler):
    model = {"boys": boys, "theophylline": theophylline}[name]
    theta, z = model.start()
    whole = sampler.begin(model, theta, z, 3, 7)
    parts = [np.array(one) for one in ([0], [7, 3, 1], [9, 2, 4, 5, 6, 8, 10, 11])]
    models = [model.take_individuals(which) for which in parts]
    chains = [
        sampler.begin(m, theta, z[which], 3, 7) for m, which in zip(models, parts, strict=True)
    ]
    for now in range(1, 13):
        late = max(0, now - 10)
        sampler.move(model, theta, whole, now, late)
        for m, one in zip(models, chains, strict=True):
            sampler.move(m, theta, one, now, late)
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
