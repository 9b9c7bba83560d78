"""What reaches the server: means of all devices, whoever is active and however coarse the codec."""

import numpy as np
import pytest

from vpem.errors import NotConvergedWarning, VpemWarning
from vpem.network.codecs import parse_codec
from vpem.network.partition import Workers, by_label, evenly
from vpem.saem.fit import fit_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_matrix
from vpem.saem.models.bifactor import BifactorModel
from vpem.saem.models.linear import LinearModel
from vpem.saem.saem import run_saem
from vpem.saem.samplers import Exact, Metropolis, sampler_of
from vpem.saem.server import SaemServer
from vpem.terms.units import Scaling

from .cli_support import ROOT
from .tables import each, each_once

BOYS = np.array([149.372, 6.525, 62.790, 8.375, 2.712, 0.4355])
"""Maximum likelihood: intercept, slope, variances and covariance, residual variance."""


@pytest.fixture(scope="module")
def boys():
    return LinearModel(read_individuals(ROOT / "data" / "oxford_boys.csv"))


def run(model, devices, codec=None, feedback="none", sampler=None, **options):
    """How far estimates are off, relatively; the run, and what was reported."""
    held = evenly(model.n, devices) if isinstance(devices, int) else devices
    codec = None if codec is None else parse_codec(codec)
    server = SaemServer(held.counts / model.n, codec, feedback, model.pieces)
    options = {"n_iter": 200, "burn_in": 70, "n_chains": 2, "tol": 0.0, **options}
    found = run_saem(model, held, sampler or Exact(), server, **options)
    off = np.abs(found.theta / BOYS - 1).max() if len(found.theta) == 6 else np.nan
    return off, found, server


# ---- codecs -------------------------------------------------------------------------------------


def test_feedback_does_nothing_to_exact_messages(boys):
    few = {"n_iter": 60, "burn_in": 25}
    plain, *others = (run(boys, 5, None, one, **few)[1] for one in ("none", "error", "memory"))
    for other in others:
        np.testing.assert_allclose(other.theta, plain.theta, rtol=1e-9)
    fine = run(boys, 5, "qsgd:16bits", "memory", **few)[1]
    np.testing.assert_allclose(fine.theta, plain.theta, rtol=0.02)


@each(
    ("codec", "participation"), [("topk:0.2", 1.0), ("qsgd:2bits", 1.0), ("topk:0.5", 0.4)]
)  # fmt: skip
def test_coarse_codecs_with_feedback_find_the_estimates(boys, codec, participation):
    options = {"participation": participation, "n_iter": 220 if participation == 1 else 400}
    options |= {"burn_in": 100}
    for feedback in ("error", "memory"):
        assert run(boys, 13, codec, feedback, **options)[0] < 0.06


@pytest.mark.filterwarnings("ignore:after 200 iterations no latents")
def test_without_feedback_variances_are_lost_and_told(boys):
    """Plain top-k or few bits make variances zero; changes leave out less, but are biased."""
    for codec, most in (("topk:0.5", 0.2), ("qsgd:2bits", 0.1)):
        assert run(boys, 4, codec)[0] > 0.5
        assert run(boys, 4, codec, "change")[0] < most
    with pytest.warns(NotConvergedWarning, match="too coarse with feedback none"):
        found = run(boys, 4, "topk:0.2", tol=1e3, window=20)[1]
    assert (found.holds, found.converged) == (False, False)


def test_quantized_statistics_and_gradients_come_near(boys):
    sampler = sampler_of("langevin", step=0.3, codec=parse_codec("qsgd:8bits"), n_steps=3)
    found = run(boys, 6, "qsgd:8bits", "memory", sampler, participation=0.6)[1]
    np.testing.assert_allclose(found.theta[:2], BOYS[:2], rtol=0.02)
    np.testing.assert_allclose(found.theta[2:], BOYS[2:], rtol=0.15)


@pytest.mark.filterwarnings("ignore:after 10 iterations no latents")
def test_the_ledger_counts_what_is_sent(boys):
    few, P, p = {"n_iter": 10, "burn_in": 5}, boys.size, len(boys.parameters)
    exact = run(boys, 4, **few)[2].ledger
    assert exact.of_kind("setup") == {"messages": 4, "bytes": 32 * P, "rounds": 1}
    assert exact.of_kind("server")["bytes"] == 10 * 4 * 8 * (P + p)
    coded, change = (
        run(boys, 4, "topk:0.2", how, **few)[2].ledger.of_kind("server")
        for how in ("none", "change")
    )
    size = parse_codec("topk:0.2").message_size(P)
    assert coded["bytes"] == 10 * 4 * (size + 8 * p)
    # Statistics go down where changes come up.
    assert change["messages"] == coded["messages"]
    assert change["bytes"] - coded["bytes"] == 10 * 4 * 8 * (P - p)


def test_damping_is_that_of_the_codec():
    values, units = np.random.default_rng(0).normal(size=(3, 4)), Scaling.none(4)
    for codec, feedback, damping in (
        ("topk:0.25", "none", 1.0),
        ("topk:0.25", "change", 0.125),
        ("topk:0.25", "error", 0.125),
        ("float32", "memory", 0.5),
    ):
        server = SaemServer(np.full(3, 1 / 3), parse_codec(codec), feedback, (slice(0, 4),))
        server.begin(values, units, 1.0, np.random.default_rng(0))
        assert server.damping == pytest.approx(damping, rel=1e-5)


@each(("codec", "omega"), [(None, 0.0), ("randk:0.2", 4.0), ("topk:0.2", 0.8)])
def test_longest_steps_are_told_and_long_ones_warned_of(boys, codec, omega):
    how = {"n_iter": 6, "burn_in": 2, "n_conditional": 2, "n_importance": 10, "tol": 0.0}
    how |= {"devices": 4, "codec": codec, "participation": 0.5}
    data = boys.individuals
    told = fit_saem(data, "linear", **how).settings
    assert told["omega"] == pytest.approx(omega, rel=0.3)  # of as many numbers as there are
    left = 1 - told["omega"] if codec == "topk:0.2" else 1 / (1 + told["omega"])
    assert told["safe_step"] == pytest.approx(left if codec is None else left / 2)
    assert told["longest_step"] == told["safe_step"]
    shorter = fit_saem(data, "linear", longest_step=0.01, **how).settings
    assert shorter["longest_step"] == 0.01
    if codec is not None:
        with pytest.warns(VpemWarning, match=f"{told['safe_step']:.3g} is safe"):
            longer = fit_saem(data, "linear", longest_step="0.9", **how).settings
        assert longer["longest_step"] == 0.9


def test_coarse_codecs_of_many_statistics():
    rng = np.random.default_rng(1)
    groups = np.repeat([0, 1], 4)
    loadings = np.zeros((8, 3))
    loadings[:, 0] = rng.uniform(0.6, 1.1, 8)
    loadings[np.arange(8), 1 + groups] = rng.uniform(0.5, 0.9, 8)
    Y = rng.normal(size=(150, 3)) @ loadings.T + 0.6 * rng.normal(size=(150, 8))
    model = BifactorModel(from_matrix(Y), groups.tolist())
    options, found = {"n_iter": 200, "burn_in": 100}, {}
    for how in ((None, "none"), ("topk:0.05", "error"), ("qsgd:2bits", "memory")):
        found[how[0]] = run(model, 6, *how, **options)[1]
        assert found[how[0]].holds
    exact, *others = (model.marginal(one.theta).sum() for one in found.values())
    assert min(others) > exact - 15


# ---- devices that are not always there ----------------------------------------------------------


@each("participation", [0.1, 0.5])
def test_the_server_has_the_mean_of_all_on_average(participation):
    """Devices of very different sizes: each message as likely, the expected step that of all."""
    weights = np.array([0.7, 0.2, 0.1])
    values = np.array([[1.0, 0.0], [5.0, 2.0], [-20.0, 9.0]])
    rng = np.random.default_rng(0)
    total = np.zeros(2)
    n, step = 2000, 0.05
    server = SaemServer(weights, None, "none", (slice(0, 2),))
    server.begin(np.zeros((3, 2)), Scaling.none(2), participation, rng)
    for _ in range(n):
        server.statistic = np.zeros(2)
        active = server.draw(2)
        if len(active):
            server.gather(values[active], values[active], step)
            total += server.statistic
    sd = step * np.sqrt(((weights[:, None] * values) ** 2).sum(axis=0) / participation / n)
    assert (np.abs(total / n - step * weights @ values) < 4 * sd).all()


@each("feedback", ["none", "memory"])
def test_some_devices_at_a_time(boys, feedback):
    options = {"n_iter": 500, "participation": 0.5, "seed": 3, "decay": 1.0}
    off, found, server = run(boys, 13, None, feedback, **options)
    assert 0.4 < np.mean(found.n_active) / 13 < 0.6
    assert off < (0.1 if feedback == "none" else 0.03)
    assert server.ledger.of_kind("server")["messages"] == 2 * sum(found.n_active)


def test_devices_that_are_seldom_active_take_larger_steps(boys):
    """So that all forget alike: by the step over the participation, or all of the way."""
    kept = []

    class Noting(SaemServer):
        def begin(self, local, *others):
            kept.append(local.copy())
            super().begin(local, *others)

        def gather(self, local, smoothed, step):
            before, active = kept[-1], self.members.senders
            rate = min(1.0, step / 0.4)
            kept.append(before.copy())
            kept[-1][active] = before[active] + rate * (local - before[active])
            np.testing.assert_allclose(smoothed, kept[-1][active], rtol=1e-12)
            super().gather(local, smoothed, step)

    held = evenly(26, 5)
    server = Noting(held.counts / 26, None, "memory", boys.pieces)
    few = {"n_iter": 12, "burn_in": 2, "tol": 0.0, "n_chains": 2}
    found = run_saem(boys, held, Exact(), server, participation=0.4, **few)
    assert len(kept) > 6
    assert min(found.steps) < 0.4


@each_once(feedback=["none", "memory"], participation=[0.15, 0.5])
def test_seldom_active_devices_of_different_sizes(boys, feedback, participation):
    uneven = Workers((np.arange(18), np.arange(18, 24), np.arange(24, 26)), ("a", "b", "c"))
    options = {"n_iter": 500, "burn_in": 150, "participation": participation}
    off = [run(boys, uneven, None, feedback, seed=seed, **options)[0] for seed in range(3)]
    assert np.median(off) < (0.08 if feedback == "none" else 0.025)


# ---- averaged models ----------------------------------------------------------------------------


def test_averaged_models_are_biased_where_devices_differ(boys):
    """Sorted individuals: what differs between devices is lost from their own variances."""
    data = boys.individuals
    sums = data.sums(data.values)
    apart = by_label(sums > np.median(sums), 2)
    models = run(boys, apart, average="models", n_iter=200, burn_in=50)[1]
    off, _, _ = run(boys, apart, n_iter=200, burn_in=50)
    assert off < 0.02
    assert models.theta[2] < 0.7 * BOYS[2]
    few = {"n_iter": 60, "burn_in": 25}
    alone, plain = (run(boys, 1, average=one, **few)[1] for one in ("models", "statistics"))
    np.testing.assert_allclose(alone.theta, plain.theta, rtol=1e-12)


def test_models_are_weighed_by_individuals_or_devices(boys):
    uneven = Workers((np.arange(20), np.arange(20, 26)), ("a", "b"))
    by_each, by_device = (
        run(boys, uneven, average="models", n_iter=120, burn_in=50, **how)[1].theta
        for how in ({}, {"shares": "devices"})
    )
    assert abs(by_each[0] - BOYS[0]) < 0.1
    data = boys.individuals
    own = data.sums(data.values) / data.counts
    expected = (own[:20].mean() + own[20:].mean()) / 2 - own.mean()
    assert by_device[0] - by_each[0] == pytest.approx(expected, abs=0.3)


def test_averaged_models_keep_those_of_inactive_devices(boys):
    """Otherwise the mean jumps with who is active, and never settles."""
    found = run(boys, 6, average="models", participation=0.4, n_iter=250)[1]
    late = np.array(found.trace[-40:])
    whole = run(boys, 6, average="models", n_iter=250)[1].theta
    assert (late.std(axis=0) / np.abs(whole)).max() < 0.01
    np.testing.assert_allclose(found.theta, whole, rtol=0.05)


# ---- numbers of individuals ---------------------------------------------------------------------


def test_names_not_order_make_the_numbers(boys):
    mixed = np.random.default_rng(0).permutation(26)
    few = {"sampler": Metropolis(n_steps=1), "n_iter": 6, "burn_in": 3}
    one, two = (run(model, 1, **few)[1] for model in (boys, boys.take_individuals(mixed)))
    np.testing.assert_allclose(two.chains.z, one.chains.z[:, mixed], rtol=1e-9)


def test_units_fit_what_varies():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 3)) * [1, 100, 0] + [0, 5, 7]
    model = LinearModel(from_matrix(values))
    model.statistics = lambda z: values
    np.testing.assert_allclose((values / model.units(values)).std(axis=0), [1, 1, 0], atol=1e-12)
