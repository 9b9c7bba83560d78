"""What reaches the server: means of all devices, whoever is active and however coarse the codec."""

from pathlib import Path

import numpy as np
import pytest

from vpem.errors import InputError, NotConvergedWarning, VpemWarning
from vpem.network.codecs import parse_codec
from vpem.network.partition import Workers, evenly
from vpem.saem.fit import fit_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_matrix
from vpem.saem.models.bifactor import BifactorModel
from vpem.saem.models.linear import LinearModel
from vpem.saem.saem import run_saem
from vpem.saem.samplers import Exact
from vpem.saem.server import SaemServer
from vpem.terms.units import Scaling

from .tables import each_once

DATA = Path(__file__).resolve().parents[1] / "data"
BOYS = np.array([149.372, 6.525, 62.790, 8.375, 2.712, 0.4355])


@pytest.fixture(scope="module")
def boys():
    return LinearModel(read_individuals(DATA / "oxford_boys.csv"))


def run(model, devices, codec=None, feedback="none", **options):
    """How far estimates are off, relatively; and the run."""
    held = evenly(model.n, devices) if isinstance(devices, int) else devices
    codec = None if codec is None else parse_codec(codec)
    server = SaemServer(held.counts / model.n, codec, feedback, model.pieces)
    options = {"n_iter": 300, "burn_in": 100, "n_chains": 2, **options}
    found = run_saem(model, held, Exact(), server, **options)
    return np.abs(found.theta / BOYS - 1).max(), found, server


@pytest.mark.parametrize(
    ("codec", "participation"), [("topk:0.2", 1.0), ("qsgd:2bits", 1.0), ("topk:0.5", 0.4)]
)
def test_coarse_codecs_with_feedback_find_the_estimates(boys, codec, participation):
    for feedback in ("error", "memory"):
        off = run(boys, 13, codec, feedback, n_iter=500, participation=participation)[0]
        assert off < 0.06


@pytest.mark.filterwarnings("ignore:after 300 iterations no latents")
def test_changes_are_compressed_without_collapse(boys):
    """Plain top-k or few bits make variances zero; changes leave out less, but are biased."""
    for codec, most in (("topk:0.5", 0.2), ("qsgd:2bits", 0.1)):
        assert run(boys, 4, codec)[0] > 0.5
        assert run(boys, 4, codec, "change")[0] < most


def test_statistics_of_no_latents_are_told(boys):
    with pytest.warns(NotConvergedWarning, match="too coarse with feedback none"):
        found = run(boys, 4, "topk:0.2", tol=1e3, window=20)[1]
    assert not found.holds
    assert not found.converged


@pytest.mark.filterwarnings("ignore:after 10 iterations no latents")
def test_statistics_go_down_where_changes_come_up(boys):
    options = {"n_iter": 10, "burn_in": 5, "tol": 0.0}
    plain = run(boys, 4, "topk:0.5", **options)[2].ledger.of_kind("server")
    change = run(boys, 4, "topk:0.5", "change", **options)[2].ledger.of_kind("server")
    assert change["messages"] == plain["messages"]
    more = 8 * (boys.size - len(boys.parameters))
    assert change["bytes"] - plain["bytes"] == 10 * 4 * more


@pytest.mark.parametrize("participation", [0.1, 0.5])
def test_the_server_has_the_mean_of_all_on_average(participation):
    """Devices of very different sizes: each message as likely, the expected step that of all."""
    weights = np.array([0.7, 0.2, 0.1])
    values = np.array([[1.0, 0.0], [5.0, 2.0], [-20.0, 9.0]])
    rng = np.random.default_rng(0)
    total = np.zeros(2)
    n, step = 4000, 0.05
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


@each_once(feedback=["none", "memory"], participation=[0.15, 0.5])
def test_seldom_active_devices_of_different_sizes(boys, feedback, participation):
    uneven = Workers((np.arange(18), np.arange(18, 24), np.arange(24, 26)), ("a", "b", "c"))
    options = {"n_iter": 500, "burn_in": 150, "participation": participation}
    off = [run(boys, uneven, None, feedback, seed=seed, **options)[0] for seed in range(3)]
    assert np.median(off) < (0.08 if feedback == "none" else 0.025)


def test_averaged_models_keep_those_of_inactive_devices(boys):
    """Otherwise the mean jumps with who is active, and never settles."""
    options = {"average": "models", "participation": 0.4, "n_iter": 400}
    found = run(boys, 6, **options)[1]
    late = np.array(found.trace[-40:])
    whole = run(boys, 6, average="models", n_iter=400)[1].theta
    assert (late.std(axis=0) / np.abs(whole)).max() < 0.01
    np.testing.assert_allclose(found.theta, whole, rtol=0.05)


def test_damping_is_that_of_the_codec():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 4))
    units = Scaling.none(4)
    for codec, feedback, damping in (
        ("topk:0.25", "none", 1.0),
        ("topk:0.25", "change", 0.125),
        ("topk:0.25", "error", 0.125),
        ("float32", "memory", 0.5),
    ):
        server = SaemServer(np.full(3, 1 / 3), parse_codec(codec), feedback, (slice(0, 4),))
        server.begin(values, units, 1.0, rng)
        assert server.damping == pytest.approx(damping, rel=1e-5)


@pytest.mark.parametrize(("codec", "omega"), [(None, 0.0), ("randk:0.2", 4.0), ("topk:0.2", 0.8)])
def test_longest_steps_are_told_and_long_ones_warned_of(codec, omega):
    data = read_individuals(DATA / "oxford_boys.csv")
    how = {"n_iter": 6, "burn_in": 2, "n_conditional": 2, "n_importance": 10, "tol": 0.0}
    how |= {"devices": 4, "codec": codec, "participation": 0.5}
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
    with pytest.raises(InputError, match="must be auto, or a number above 0"):
        fit_saem(data, "linear", longest_step=1.5, **how)


def test_coarse_codecs_of_many_statistics():
    rng = np.random.default_rng(1)
    groups = np.repeat([0, 1], 4)
    loadings = np.zeros((8, 3))
    loadings[:, 0] = rng.uniform(0.6, 1.1, 8)
    loadings[np.arange(8), 1 + groups] = rng.uniform(0.5, 0.9, 8)
    Y = rng.normal(size=(300, 3)) @ loadings.T + 0.6 * rng.normal(size=(300, 8))
    model = BifactorModel(from_matrix(Y), groups.tolist())

    def likelihood(codec, feedback):
        server = SaemServer(np.full(6, 1 / 6), codec and parse_codec(codec), feedback, model.pieces)
        options = {"n_iter": 300, "burn_in": 150, "n_chains": 2}
        found = run_saem(model, evenly(300, 6), Exact(), server, **options)
        assert found.holds
        return model.marginal(found.theta).sum()

    exact = likelihood(None, "none")
    for codec in ("topk:0.05", "qsgd:2bits"):
        for feedback in ("error", "memory"):
            assert likelihood(codec, feedback) > exact - 15, (codec, feedback)
