"""What an M-step takes: means of all devices, whoever is there and however coarse the codec is."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from vpem import connect_workers, make_graph
from vpem.errors import InputError, NotConvergedWarning, VpemWarning
from vpem.network.codecs import parse_codec
from vpem.network.partition import Workers, evenly
from vpem.saem.fit import fit_saem
from vpem.saem.individuals import from_matrix
from vpem.saem.models.linear import LinearModel
from vpem.saem.saem import draws_until, run_saem
from vpem.saem.samplers import Exact
from vpem.saem.server import SaemServer
from vpem.settings import SaemSettings
from vpem.terms.units import Scaling

from .cells_saem import ABSENT, BOYS, COMPRESSED, DOSES, HELD, MASKED, TOP, TOPICS, fit, same
from .cells_saem import BOYS as DATA
from .resume_support import check_resumes
from .tables import each


@pytest.fixture(scope="module")
def boys():
    return LinearModel(DATA)


def run(model, devices, codec=None, feedback="none", **options):
    """How far estimates are off, relatively; the run, and what was reported."""
    held = evenly(model.n, devices) if isinstance(devices, int) else devices
    codec = None if codec is None else parse_codec(codec)
    server = SaemServer(held.counts / model.n, codec, feedback, model.pieces)
    options = {"n_iter": 200, "burn_in": 70, "n_chains": 2, "tol": 0.0, **options}
    found = run_saem(model, held, Exact(), server, **options)
    return np.abs(found.theta / TOP - 1).max(), found, server


# ---- codecs -------------------------------------------------------------------------------------


def test_feedback_does_nothing_to_exact_messages(boys):
    few = {"n_iter": 60, "burn_in": 25}
    plain, *others = (run(boys, 5, None, one, **few)[1] for one in ("none", "error", "memory"))
    for other in others:
        np.testing.assert_allclose(other.theta, plain.theta, rtol=1e-9)
    fine = run(boys, 5, "qsgd:16bits", "memory", **few)[1]
    np.testing.assert_allclose(fine.theta, plain.theta, rtol=0.02)


@each(
    ("codec", "participation", "feedback"),
    [("topk:0.2", 1.0, "error"), ("qsgd:2bits", 1.0, "memory"), ("topk:0.5", 0.4, "memory")],
)
def test_coarse_codecs_with_feedback_find_the_estimates(boys, codec, participation, feedback):
    options = {"participation": participation, "n_iter": 220 if participation == 1 else 400}
    assert run(boys, 13, codec, feedback, burn_in=100, **options)[0] < 0.06


@pytest.mark.filterwarnings("ignore:after 200 iterations no latents")
def test_without_feedback_variances_are_lost_and_told(boys):
    """Plain top-k or few bits make variances zero; changes leave out less, but are biased."""
    for codec, most in (("topk:0.5", 0.2), ("qsgd:2bits", 0.1)):
        assert run(boys, 4, codec)[0] > 0.5
        assert run(boys, 4, codec, "change")[0] < most
    with pytest.warns(NotConvergedWarning, match="too coarse with feedback none"):
        found = run(boys, 4, "topk:0.2", tol=1e3, window=20)[1]
    assert (found.holds, found.converged) == (False, False)


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


# ---- devices that are not always there ----------------------------------------------------------


def test_the_server_has_the_mean_of_all_on_average():
    """Devices of very different sizes: each message as likely, the expected step that of all."""
    weights = np.array([0.7, 0.2, 0.1])
    values = np.array([[1.0, 0.0], [5.0, 2.0], [-20.0, 9.0]])
    rng, n, step = np.random.default_rng(0), 2000, 0.05
    for participation in (0.1, 0.5):
        total = np.zeros(2)
        server = SaemServer(weights, None, "none", (slice(0, 2),))
        server.begin(np.zeros((3, 2)), Scaling.none(2), participation, rng)
        for _ in range(n):
            server.statistic = np.zeros(2)
            active = server.draw(2)
            if len(active):
                server.gather(values[active], values[active], step)
                total += server.statistic
        spread = np.sqrt(((weights[:, None] * values) ** 2).sum(axis=0) / participation / n)
        assert (np.abs(total / n - step * weights @ values) < 4 * step * spread).all()


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


@each(("feedback", "participation"), [("none", 0.15), ("memory", 0.5)])
def test_seldom_active_devices_of_different_sizes(boys, feedback, participation):
    uneven = Workers((np.arange(18), np.arange(18, 24), np.arange(24, 26)), ("a", "b", "c"))
    options, off = {"n_iter": 500, "burn_in": 150, "participation": participation}, []
    for seed in range(3):
        error, found, server = run(boys, uneven, None, feedback, seed=seed, **options)
        assert abs(np.mean(found.n_active) / 3 - participation) < 0.1
        assert server.ledger.of_kind("server")["messages"] == 2 * sum(found.n_active)
        off.append(error)
    assert np.median(off) < (0.08 if feedback == "none" else 0.025)


# ---- averaged models ----------------------------------------------------------------------------


def test_averaged_models_keep_those_of_inactive_devices(boys):
    """Otherwise the mean jumps with who is active, and never settles. Of one device it is exact."""
    found = run(boys, 6, average="models", participation=0.4, n_iter=250)[1]
    late = np.array(found.trace[-40:])
    whole = run(boys, 6, average="models", n_iter=250)[1].theta
    assert (late.std(axis=0) / np.abs(whole)).max() < 0.01
    np.testing.assert_allclose(found.theta, whole, rtol=0.05)
    alone, plain = (
        run(boys, 1, average=one, n_iter=60, burn_in=25)[1] for one in ("models", "statistics")
    )
    np.testing.assert_allclose(alone.theta, plain.theta, rtol=1e-12)


# ---- numbers of individuals ---------------------------------------------------------------------


def test_units_fit_what_varies():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 3)) * [1, 100, 0] + [0, 5, 7]
    model = LinearModel(from_matrix(values))
    model.statistics = lambda z: values
    np.testing.assert_allclose((values / model.units(values)).std(axis=0), [1, 1, 0], atol=1e-12)


LATEST, GROWING = {"method": "fl-saem"}, {"method": "mcem"}
TEN = {"n_iter": 10, "burn_in": 4, "n_chains": 3, "seed": 5}


@dataclass(frozen=True)
class Watched(Exact):
    """Draws exactly, and keeps what was drawn of whom."""

    seen: list = field(default_factory=list)

    def move(self, model, theta, chains, now, late):
        super().move(model, theta, chains, now, late)
        self.seen.append((model.individuals.names, chains.z.copy(), now))


def moments(z, data, which):
    """Mean latents, their products and the mean square of residuals, of individuals' draws."""
    mean = z.mean(axis=(0, 1))
    products = np.einsum("cni,cnj->ij", z, z) / (z.shape[0] * z.shape[1])
    squares = []
    for place, one in enumerate(which):
        mine = data.individual_of == one
        lines = z[:, place, :1] + z[:, place, 1:] * data.times[mine]
        squares.append(np.square(data.values[mine] - lines).mean())
    return mean, products, float(np.mean(squares))


def parameters(mean, products, square):
    covariance = products - np.outer(mean, mean)
    return np.array([*mean, *covariance[np.tril_indices(2)], square])


def watched(participation=1.0, held=None, **options):
    """Draws of every iteration and the parameters after it; who was there, by individuals."""
    model, held, sampler = LinearModel(BOYS), held or evenly(26, 5), Watched()
    server = SaemServer(held.counts / 26, None, "none", model.pieces)
    how = TEN | {"participation": participation} | options
    run = run_saem(model, held, sampler, server, **how)
    return sampler.seen, np.array(run.trace), run


@each("participation", [1.0, 0.5])
def test_algorithm_two_takes_the_latest_draws_of_those_who_are_there(participation):
    seen, trace, run = watched(participation, **LATEST)
    names, draws = list(BOYS.names), iter(seen)
    before = trace[0]
    for count, found in zip(run.n_active, trace[1:], strict=True):
        if count == 0:  # nobody there: nothing moves
            np.testing.assert_array_equal(found, before)
            continue
        who, z, _ = next(draws)
        which = [names.index(one) for one in who]
        np.testing.assert_allclose(found, parameters(*moments(z, BOYS, which)), rtol=1e-10)
        before = found
    assert next(draws, None) is None
    assert (participation == 1) == (set(run.n_active) == {5})
    assert run.steps == [1.0] * 10
    averaged = watched(participation)[1]
    assert not np.allclose(averaged[-1], trace[-1], rtol=1e-6)


@each("growth", [0.0, 0.7, 1.0])
def test_mcem_takes_the_mean_of_more_and_more_draws(growth):
    seen, trace, _ = watched(**GROWING, growth=growth)
    assert [now for _, _, now in seen] == list(range(1, len(seen) + 1))
    at = 0
    for r in range(1, 11):
        several = int(np.ceil(r**growth))
        z = np.concatenate([z for _, z, _ in seen[at : at + several]])
        at += several
        wanted = parameters(*moments(z, BOYS, range(26)))
        np.testing.assert_allclose(trace[r], wanted, rtol=1e-10)
        assert draws_until(SaemSettings(method="mcem", growth=growth), r) == at
    assert at == len(seen)


@each("shares", ["individuals", "devices"])
def test_algorithm_one_takes_the_mean_of_the_latest_models(shares):
    held = Workers((np.arange(20), np.arange(20, 26)), ("a", "b"))
    seen, trace, _ = watched(**LATEST, held=held, average="models", shares=shares)
    weights = held.counts if shares == "individuals" else None
    for (_, z, _), found in zip(seen, trace[1:], strict=True):
        models = [parameters(*moments(z[:, some], BOYS, some)) for some in held.rows]
        wanted = np.average(models, axis=0, weights=weights)
        np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_algorithm_five_takes_messages_as_they_are():
    """The largest numbers of a message in units of their spread; nothing is added to the next."""
    model, held = LinearModel(BOYS), evenly(26, 5)
    server = SaemServer(held.counts / 26, parse_codec("topk:0.5"), "none", model.pieces)
    heard, gather = [], server.gather

    def listened(local, smoothed, step):
        units = server.members.quantizer.basis
        gather(local, smoothed, step)
        scaled = local / units.scale
        for row in scaled:  # of six numbers three
            row[np.argsort(np.abs(row))[:3]] = 0.0
        weights = server.weights[server.members.senders]
        wanted = weights @ (scaled * units.scale) / weights.sum()
        heard.append(np.abs(server.statistic - wanted).max() / np.abs(wanted).max())

    server.gather = listened
    run_saem(model, held, Exact(), server, **TEN, **LATEST, participation=0.7)
    assert heard
    assert max(heard) < 1e-6  # kept numbers travel in single precision


@each("how", [LATEST, GROWING])
def test_one_machine_has_the_same(how):
    alone = fit_saem(BOYS, n_chains=2, n_iter=8, burn_in=4, n_conditional=2, n_importance=10, **how)
    for network in ({}, {"topology": "path", "network": {"sum": "tree"}}, {"network": MASKED}):
        same(fit(**how, **network, tol=0.0), alone, 1e-8)
    same(fit("path", {"consensus_tol": 1e-12}, **how, tol=0.0), alone, 1e-8)
    assert (alone.settings["tol"], alone.converged) == (0, False)
    assert ("growth" in alone.settings) == (how is GROWING)
    assert not {"method", "growth"} & set(fit().settings)


@each("how", [
    LATEST | COMPRESSED | ABSENT, GROWING | COMPRESSED, LATEST | {"average": "models"},
    GROWING | {"batch_size": 3, "growth": 0.5},
])  # fmt: skip
def test_they_resume_to_the_bit(how):
    check_resumes(lambda saver: fit(**how, tol=0.0, saver=saver))


@each(("data", "how"), [(DOSES, LATEST | ABSENT), (TOPICS, GROWING)])
def test_other_models_take_them(data, how):
    found = fit(**data, **how, tol=0.0)
    assert found.settings["method"] == how["method"]
    assert np.isfinite(found.theta).all()


@each(("how", "why"), [
    (LATEST | {"tol": 0.2}, "settled"), (GROWING | {"window": 7}, "convergence"),
    (LATEST | {"decay": 0.9}, "latest draws alone"), ({"growth": 1.5}, "is for"),
    (LATEST | {"longest_step": 0.5}, "latest draws alone"), (GROWING | ABSENT, "falling"),
    (LATEST | {"codec": "topk:0.5", "feedback": "error"}, "as it is"),
    ({"method": "em"}, "must be one of"), (GROWING | {"growth": -1.0}, "from 0 to 2"),
    (LATEST | ABSENT | {"topology": "cycle"}, "among neighbours none knows"),
])  # fmt: skip
def test_what_cannot_be_is_said(how, why):
    options = dict(how)
    network = connect_workers(make_graph(options.pop("topology", "star"), 3))
    with pytest.raises(InputError, match=why):
        fit_saem(BOYS, network=network, devices=HELD, **options)
