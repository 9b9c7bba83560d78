"""SAEM: the estimates of linear and nonlinear models, on one device and on many."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vpem.errors import InputError, NotConvergedWarning
from vpem.network.codecs import parse_codec
from vpem.network.partition import by_label, evenly
from vpem.saem.fit import fit_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_matrix
from vpem.saem.models.bifactor import BifactorModel
from vpem.saem.models.gmm import GmmModel
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.saem import run_saem, step_size
from vpem.saem.samplers import Exact, Metropolis, sampler_of
from vpem.saem.server import SaemServer

from .tables import each

DATA = Path(__file__).resolve().parents[1] / "data"
BOYS = np.array([149.372, 6.525, 62.790, 8.375, 2.712, 0.4355])
"""Maximum likelihood: intercept, slope, variances and covariance, residual variance."""


@pytest.fixture(scope="module")
def boys():
    return read_individuals(DATA / "oxford_boys.csv")


@pytest.fixture(scope="module")
def theophylline():
    return read_individuals(DATA / "theophylline.csv")


def run(model, devices=1, sampler=None, codec=None, feedback="none", **options):
    """A run, and what was reported."""
    held = evenly(model.n, devices) if isinstance(devices, int) else devices
    codec = None if codec is None else parse_codec(codec)
    server = SaemServer(held.counts / model.n, codec, feedback, model.pieces)
    options = {"n_iter": 120, "burn_in": 50, "n_chains": 2, "tol": 0.0, **options}
    return run_saem(model, held, sampler or Exact(), server, **options), server


# ---- estimates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["exact", "metropolis"])
def test_oxford_boys(boys, sampler):
    options = {"sampler": sampler, "n_iter": 300, "burn_in": 100, "tol": 0.0, "n_chains": 10}
    n_steps = {"n_steps": 2} if sampler == "metropolis" else {}
    fits = [
        fit_saem(boys, "linear", devices=devices, sampler_options=n_steps, **options)
        for devices in (1, 4, 13)
    ]
    for fit in fits:
        np.testing.assert_allclose(fit.theta, BOYS, rtol=0.01)
        assert fit.log_likelihood.value == pytest.approx(-362.984, abs=0.1)
        assert fit.log_likelihood.error == 0
        # Averaging statistics is the same as having all at one device.
        np.testing.assert_allclose(fit.theta, fits[0].theta, rtol=1e-9)
        np.testing.assert_allclose(fit.given.means, fits[0].given.means, rtol=1e-9)
    assert fits[0].ledger.bytes == 0
    assert 0 < fits[1].ledger.bytes < fits[2].ledger.bytes


def test_errors_are_those_of_the_likelihood(boys):
    options = {"sampler": "exact", "tol": 0.0, "n_chains": 10}
    fit = fit_saem(boys, "linear", n_iter=200, burn_in=60, **options)
    theta, model = fit.theta, fit.model
    steps = np.diag(1e-3 * np.abs(theta))

    def value(at):
        return model.marginal(at).sum()

    bend = np.array(
        [
            [
                value(theta + a + b) - value(theta + a - b) - value(theta - a + b)
                + value(theta - a - b)
                for b in steps
            ]
            for a in steps
        ]
    ) / (4 * np.outer(steps.diagonal(), steps.diagonal()))  # fmt: skip
    exact = np.sqrt(np.diag(np.linalg.inv(-bend)))
    np.testing.assert_allclose(fit.standard_errors, exact, rtol=0.05)
    assert fit.log_likelihood.value == pytest.approx(value(theta), abs=1e-9)
    assert fit.given.shrinkage[0] == pytest.approx(0.0008, abs=3e-4)
    means, covariances = model.posterior(theta)
    sd = np.sqrt(np.einsum("nii->ni", covariances))
    np.testing.assert_allclose(fit.given.means, means, atol=0.15 * sd.max())
    np.testing.assert_allclose((fit.given.upper - fit.given.lower) / sd, 3.92, atol=0.5)


def test_errors_in_any_units(boys):
    """Variances of a tiny unit are smaller than any nudge of a fixed size."""
    options = {"sampler": "exact", "n_iter": 60, "burn_in": 30, "tol": 0.0, "n_importance": 10,
               "n_chains": 5}  # fmt: skip
    small = replace(boys, values=boys.values * 1e-4)
    one, other = fit_saem(boys, **options), fit_saem(small, **options)
    units = np.array([1e-4, 1e-4, *[1e-8] * 4])
    assert other.standard_errors / units == pytest.approx(one.standard_errors, rel=1e-2)


def test_theophylline(theophylline):
    """Near nlme's linearised fit: log ka 0.466, log cl -3.227, log ke -2.455, sd 0.71."""
    fit = fit_saem(
        theophylline, "one-compartment", model_options={"random": ("ka", "cl")}, devices=3,
        sampler_options={"n_steps": 2}, n_iter=400, burn_in=200, tol=0.0, n_conditional=60,
        n_importance=1000,
    )  # fmt: skip
    got = fit.estimates
    assert got["log ka"] == pytest.approx(0.466, abs=0.06)
    assert got["log cl"] == pytest.approx(-3.227, abs=0.05)
    assert got["log ke"] == pytest.approx(-2.455, abs=0.05)
    assert got["residual sd"] == pytest.approx(0.71, abs=0.02)
    assert got["var(log ka)"] == pytest.approx(0.43, abs=0.06)
    assert fit.log_likelihood.value == pytest.approx(-178, abs=0.6)
    assert fit.log_likelihood.error < 0.1
    assert (np.abs(fit.acceptance - 0.44) < 0.15).all()
    assert fit.given.means.shape == (12, 2)


def test_bifactor_reaches_the_top_of_the_likelihood():
    """Loadings against the maximum of the dense likelihood, from many iterations of EM."""
    rng = np.random.default_rng(4)
    groups = [0, 0, 0, 0, 1, 1, 1, 1]
    loadings = np.zeros((8, 3))
    loadings[:, 0] = [1.0, 0.9, 1.1, 0.8, 0.9, 1.0, 0.7, 1.2]
    loadings[np.arange(8), 1 + np.array(groups)] = [0.8, 0.6, 0.7, 0.9, 0.9, 0.5, 0.8, 0.7]
    z = rng.normal(size=(400, 3))
    model = BifactorModel(from_matrix(2 + z @ loadings.T + 0.5 * rng.normal(size=(400, 8))), groups)
    best = expectation_maximization(model, 1000)
    found, _ = run(model, 4, n_iter=500, burn_in=300, n_chains=5)
    theta, _ = model.canonical(found.theta, found.chains.z)
    top, _ = model.canonical(best, found.chains.z)
    np.testing.assert_allclose(theta, top, atol=0.05)
    assert model.marginal(top).sum() - model.marginal(theta).sum() < 0.4
    np.testing.assert_allclose(theta.reshape(4, -1)[1], loadings[:, 0], atol=0.25)


def expectation_maximization(model, n_iter):
    """EM of a bi-factor model, its conditional moments exact."""
    theta, _ = model.start()
    rows, columns = np.tril_indices(1 + model.n_groups)
    for _ in range(n_iter):
        means, covariances = model.posterior(theta)
        statistics = model.statistics(means[None])
        statistics[:, model.pieces[1]] += covariances[:, rows, columns]
        theta = model.maximize(statistics.sum(axis=0), model.counts)
    return theta


def test_mixtures_are_close_to_those_of_em(overlapping):
    model = GmmModel(from_matrix(overlapping(0, 400, 3)), 3, rows=[0, 100, 200])
    theta, _ = model.start()
    for _ in range(600):
        total = model.expected(model.responsibilities(theta)).sum(axis=0)
        theta = model.maximize(total, model.counts)
    near = {"n_iter": 500, "burn_in": 100, "n_chains": 4, "start": theta}
    found, _ = run(model, 5, **near)
    best = model.marginal(theta).sum()
    assert best - 0.5 < model.marginal(found.theta).sum() < best + 0.5
    assert np.abs(found.theta - theta)[:3].max() < 0.03


# ---- the algorithms -----------------------------------------------------------------------------


def test_feedback_does_nothing_to_exact_messages(boys):
    model = LinearModel(boys)
    thetas = [run(model, 5, feedback=one)[0].theta for one in ("none", "error", "memory")]
    for theta in thetas[1:]:
        np.testing.assert_allclose(theta, thetas[0], rtol=1e-9)
    fine = run(model, 5, codec="qsgd:16bits", feedback="memory")[0].theta
    np.testing.assert_allclose(fine, thetas[0], rtol=0.02)


@pytest.mark.filterwarnings("ignore:after 400 iterations no latents")
def test_feedback_repairs_top_k(boys):
    model = LinearModel(boys)
    off = {}
    for feedback in ("none", "error", "memory"):
        options = {"n_iter": 400, "burn_in": 100}
        found, server = run(model, 4, codec="topk:0.5", feedback=feedback, **options)
        off[feedback] = np.abs(found.theta / BOYS - 1).max()
    exact = run(model, 4, n_iter=400, burn_in=100)[1]
    assert off["none"] > 0.5
    assert off["memory"] < 0.05
    assert off["error"] < 0.05
    assert server.ledger.bytes < exact.ledger.bytes


def test_quantized_statistics_and_gradients_come_near(boys):
    model = LinearModel(boys)
    sampler = sampler_of("langevin", step=0.3, codec=parse_codec("qsgd:8bits"), n_steps=3)
    options = {"n_iter": 300, "burn_in": 80, "participation": 0.6}
    found, _ = run(model, 6, sampler, "qsgd:8bits", "memory", **options)
    np.testing.assert_allclose(found.theta[:2], BOYS[:2], rtol=0.02)
    np.testing.assert_allclose(found.theta[2:], BOYS[2:], rtol=0.15)


@pytest.mark.parametrize("feedback", ["none", "memory"])
def test_some_devices_at_a_time(boys, feedback):
    options = {"n_iter": 500, "burn_in": 100, "participation": 0.5, "seed": 3, "decay": 1.0}
    found, server = run(LinearModel(boys), 13, feedback=feedback, **options)
    assert 0.4 < np.mean(found.n_active) / 13 < 0.6
    np.testing.assert_allclose(found.theta, BOYS, rtol=0.1 if feedback == "none" else 0.03)
    sent = server.ledger.of_kind("server")
    assert sent["messages"] == 2 * sum(found.n_active)


def test_averaged_models_are_biased_where_devices_differ(boys):
    """Sorted individuals: what differs between devices is lost from their own variances."""
    model = LinearModel(boys)
    sorted_boys = by_label(boys.sums(boys.values) > np.median(boys.sums(boys.values)), 2)
    models, _ = run(model, sorted_boys, average="models", n_iter=200)
    statistics, _ = run(model, sorted_boys, n_iter=200)
    np.testing.assert_allclose(statistics.theta, BOYS, rtol=0.02)
    assert models.theta[2] < 0.7 * BOYS[2]
    alone, _ = run(model, 1, average="models")
    np.testing.assert_allclose(alone.theta, run(model, 1)[0].theta, rtol=1e-12)


def test_models_are_weighed_by_individuals_or_devices(boys):
    model = LinearModel(boys)
    uneven = by_label(np.arange(26) < 20, 2)
    uneven = type(uneven)((np.arange(20), np.arange(20, 26)), uneven.names)
    by_each, _ = run(model, uneven, average="models")
    by_device, _ = run(model, uneven, average="models", shares="devices")
    assert abs(by_each.theta[0] - BOYS[0]) < 0.1
    own = boys.sums(boys.values) / boys.counts
    expected = (own[:20].mean() + own[20:].mean()) / 2 - own.mean()
    assert by_device.theta[0] - by_each.theta[0] == pytest.approx(expected, abs=0.3)


@pytest.mark.filterwarnings("ignore:after 10 iterations no latents")
def test_the_ledger_counts_what_is_sent(boys):
    model = LinearModel(boys)
    _, server = run(model, 4, n_iter=10, burn_in=5)
    P, p = model.size, len(model.parameters)
    assert server.ledger.of_kind("setup") == {"messages": 4, "bytes": 32 * P, "rounds": 1}
    assert server.ledger.of_kind("server")["bytes"] == 10 * 4 * 8 * (P + p)
    _, coded = run(model, 4, codec="topk:0.2", n_iter=10, burn_in=5)
    size = parse_codec("topk:0.2").message_size(P)
    assert coded.ledger.of_kind("server")["bytes"] == 10 * 4 * (size + 8 * p)


def test_names_not_order_make_the_numbers(boys):
    model = LinearModel(boys)
    mixed = np.random.default_rng(0).permutation(26)
    one, _ = run(model, sampler=Metropolis(n_steps=1), n_iter=6, burn_in=3)
    two, _ = run(model.take_individuals(mixed), sampler=Metropolis(n_steps=1), n_iter=6, burn_in=3)
    np.testing.assert_allclose(two.chains.z, one.chains.z[:, mixed], rtol=1e-9)


# ---- steps and stopping -------------------------------------------------------------------------


def test_steps_are_one_and_then_fall():
    assert [step_size(r, 3, 1.0) for r in range(1, 7)] == [1, 1, 1, 1, 1 / 2, 1 / 3]


def test_flat_parameters_stop_the_run(boys):
    options = {"sampler": "exact", "window": 20, "n_chains": 10, "average": "models"}
    fit = fit_saem(boys, n_iter=2000, burn_in=50, tol=0.05, **options)
    assert fit.converged
    assert fit.n_iter < 2000
    assert len(fit.trace) == fit.n_iter + 1
    with pytest.warns(NotConvergedWarning, match="has not converged in 60 iterations"):
        short = fit_saem(boys, n_iter=60, burn_in=10, tol=1e-9, **options)
    assert not short.converged


def test_units_fit_what_varies():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 3)) * [1, 100, 0] + [0, 5, 7]
    model = LinearModel(from_matrix(values))
    model.statistics = lambda z: values
    np.testing.assert_allclose((values / model.units(values)).std(axis=0), [1, 1, 0], atol=1e-12)


# ---- what is refused ----------------------------------------------------------------------------


@each(
    ("options", "words"),
    [
        ({"model": "linea"}, "did you mean 'linear'"),
        ({"model_options": {"slope": 1}}, "option of the model linear must be one of slopes"),
        ({"devices": 27}, "27"),
        ({"devices": evenly(25, 2)}, "devices hold 25 individuals"),
        ({"sampler": "gibs"}, "sampler must be one of"),
        ({"decay": 0.5}, "decay must be a number above 0.5"),
        ({"burn_in": 1001}, "burn_in must be an integer"),
        ({"participation": 0}, "participation must be"),
        ({"tol": -1}, "tol must be a finite number of at least 0"),
        ({"average": "model"}, "did you mean 'models'"),
        ({"average": "models", "codec": "topk:0.5"}, "sends models exactly"),
        ({"feedback": "some"}, "feedback must be one of"),
        ({"codec": "topk:2"}, "topk"),
        ({"gradient_codec": "qsgd:4bits"}, "takes no codec"),
        ({"start": [1.0, 2.0]}, "the first parameters of model LinearModel must have shape"),
        ({"model": lambda individuals: 3}, "returns a SaemModel"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_options_that_are_refused(boys, options, words):
    with pytest.raises(InputError, match=words):
        fit_saem(boys, **options)


def test_a_mixture_is_drawn_exactly(overlapping):
    data = from_matrix(overlapping(0, 60, 2))
    with pytest.raises(InputError, match="are discrete, which mala cannot move"):
        fit_saem(data, "gmm", model_options={"n_components": 2}, sampler="mala")
    fit = fit_saem(data, "gmm", model_options={"n_components": 2}, tol=0.0, n_iter=60, burn_in=30)
    assert fit.log_likelihood.error == 0
    assert fit.log_likelihood.value == pytest.approx(fit.model.marginal(fit.theta).sum())


def test_a_model_of_ones_own(boys):
    class Own(LinearModel):
        pass

    fit = fit_saem(boys, Own, sampler="exact", n_iter=60, burn_in=30, tol=0.0, n_chains=5)
    assert isinstance(fit.model, Own)
    with pytest.raises(InputError, match="no Gaussian posterior"):
        fit_saem(read_individuals(DATA / "theophylline.csv"), OneCompartmentModel, sampler="exact")
