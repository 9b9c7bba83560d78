"""What an M-step takes: the latest draws of who is there, more and more of them, or averages."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from vpem.errors import InputError
from vpem.network.codecs import parse_codec
from vpem.network.partition import evenly
from vpem.saem.fit import fit_saem
from vpem.saem.models.linear import LinearModel
from vpem.saem.saem import draws_until, run_saem
from vpem.saem.samplers import Exact
from vpem.saem.server import SaemServer
from vpem.settings import SaemSettings

from .cells_saem import ABSENT, BOYS, COMPRESSED, DOSES, HELD, MASKED, TOPICS, fit, same
from .resume_support import check_resumes
from .tables import each

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


def watched(participation=1.0, **options):
    """Draws of every iteration and the parameters after it; who was there, by individuals."""
    model, held, sampler = LinearModel(BOYS), evenly(26, 5), Watched()
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


def test_algorithm_one_takes_the_mean_of_the_latest_models():
    seen, trace, _ = watched(**LATEST, average="models", shares="devices")
    for (_, z, _), found in zip(seen, trace[1:], strict=True):
        rows = evenly(26, 5).rows
        models = [parameters(*moments(z[:, some], BOYS, some)) for some in rows]
        np.testing.assert_allclose(found, np.mean(models, axis=0), rtol=1e-10)


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
    assert alone.settings["tol"] == 0
    assert not alone.converged


@each("how", [
    LATEST | ABSENT, GROWING, GROWING | COMPRESSED, LATEST | COMPRESSED | ABSENT,
    LATEST | {"average": "models"}, GROWING | {"batch_size": 3, "growth": 0.5},
])  # fmt: skip
def test_they_resume_to_the_bit(how):
    check_resumes(lambda saver: fit(**how, tol=0.0, saver=saver))


def test_other_models_take_them():
    for data in (DOSES, TOPICS):
        for how in (LATEST | ABSENT, GROWING):
            found = fit(**data, **how, tol=0.0)
            assert found.settings["method"] == how["method"]
            assert np.isfinite(found.theta).all()


def test_nothing_is_said_of_them_without_them():
    assert not {"method", "growth"} & set(fit().settings)
    assert "growth" not in fit(**LATEST, tol=0.0).settings


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
    topology = options.pop("topology", "star")
    with pytest.raises(InputError, match=why):
        fit(topology, held=HELD, **options) if "tol" in options else fit_saem(
            BOYS, network=None if topology == "star" else network_of(topology),
            devices=HELD, **options,
        )  # fmt: skip


def network_of(topology):
    from vpem import connect_workers, make_graph

    return connect_workers(make_graph(topology, 3))
