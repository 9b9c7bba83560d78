"""Uplinks of a sum at a server: laws, whatever is asked for, and that every algorithm sums."""

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import vpem
from vpem import make_graph
from vpem.network.codecs import parse_codec
from vpem.network.ledger import Ledger
from vpem.network.partition import contiguous, evenly
from vpem.sums.connect import connect, connect_workers
from vpem.sums.counted import add_vectors
from vpem.sums.partial import Presence, Uplink
from vpem.sums.quantizer import Quantizer
from vpem.sums.server import ServerSum
from vpem.sums.sum import Sum
from vpem.terms.lowrank.entries import from_matrices

from .tables import each

DATA = Path(__file__).parent.parent / "data"
WEIGHTS = np.array([0.4, 0.1, 0.2, 0.3])
N, P = 4, 12


def values(seed=0):
    return np.random.default_rng(seed).normal(size=(N, P)) + 3.0


def server():
    return ServerSum(N).counted_on(Ledger(make_graph("star", N))).weighted(WEIGHTS)


def uplink(rng, codec=None, probability=None, step=None):
    quantizer = None if codec is None else Quantizer(parse_codec(codec), P)
    presence = None if probability is None else Presence(np.full(N, probability))
    total = Uplink(server(), quantizer, rng, presence)
    return total if step is None else total.remember(step, np.zeros((N, P)), np.zeros((1, P)))


ASKED = {
    "nothing": {},
    "few bits": {"codec": "qsgd:4bits"},
    "some": {"probability": 0.5},
    "a memory": {"step": 0.2},
    "few bits of some": {"codec": "qsgd:4bits", "probability": 0.5},
    "few bits, of a memory": {"codec": "qsgd:4bits", "step": 0.2},
    "some, of a memory": {"probability": 0.5, "step": 0.2},
    "all three": {"codec": "qsgd:4bits", "probability": 0.5, "step": 0.2},
}


def taken(total, given):
    """One sum of what the active have, as its caller takes it."""
    total.draw()
    some = given if total.active is None else given[total.active]
    if total.values is not None:
        return total.estimate(some, np.zeros((1, P)))
    return total.add(some)


@pytest.mark.parametrize("name", ASKED)
def test_a_sum_of_any_uplink_is_that_of_all_on_average(name):
    total = uplink(np.random.default_rng(1), **ASKED[name])
    given, n = values(), 1000
    sums = []
    for _ in range(n):
        if total.values is not None:
            total.values[...], total.kept[...] = 1.0, 1.0
        sums.append(taken(total, given)[0])
    off = np.mean(sums, axis=0) - WEIGHTS @ given
    assert (np.abs(off) < 4.5 * np.std(sums, axis=0) / np.sqrt(n) + 1e-12).all()


@each(
    ("asked", "most"),
    [
        ({"probability": 1.0}, 0.0), ({"codec": "float64"}, 0.0), ({"codec": "qsgd:15bits"}, 1e-3),
        ({"step": 0.2}, 1e-15), ({"codec": "float32", "probability": 1.0, "step": 0.2}, 1e-6),
    ],
)  # fmt: skip
def test_where_nothing_is_lost_it_is_the_servers_sum(asked, most):
    total = uplink(np.random.default_rng(2), **asked)
    for seed in range(3):
        found = taken(total, values(seed))
        np.testing.assert_allclose(found, WEIGHTS @ values(seed)[None], rtol=most)


@pytest.mark.parametrize("codec", ["qsgd:3bits", "topk:0.3"])
def test_a_memory_keeps_the_sum_of_what_was_seen(codec):
    rng = np.random.default_rng(4)
    step = 1.0 if codec.startswith("topk") else 0.1
    total = uplink(rng, codec, 0.6, step)
    for _ in range(400):
        taken(total, values())
        np.testing.assert_allclose(total.kept, WEIGHTS @ total.values[None], rtol=1e-12)
    # What does not change is known in the end, whatever is lost on the way.
    np.testing.assert_allclose(total.values, values(), rtol=1e-4)
    np.testing.assert_allclose(total.add(values()[total.active]), WEIGHTS @ values()[None], 1e-4)


def test_messages_of_the_active_are_counted():
    total = uplink(np.random.default_rng(5), "qsgd:4bits", 0.5)
    size, ledger = parse_codec("qsgd:4bits").message_size(P), total.server.ledger
    n_messages = 0
    for _ in range(6):
        total.begin("estep", 1, P, 8)
        total.add(values()[total.active])
        n_messages += len(total.active)
    assert 0 < n_messages < 6 * N
    assert ledger.of_kind("server")["messages"] == 2 * n_messages
    assert ledger.bytes == n_messages * (8 * P + size)


def test_an_uplink_is_a_sum_of_terms():
    terms = np.random.default_rng(6).normal(size=(N, 5, 3))
    plain = ServerSum(N).counted_on(Ledger(make_graph("star", N)))
    total = Uplink(plain, Quantizer(parse_codec("float64"), 15), np.random.default_rng(0))
    np.testing.assert_array_equal(total.reduce(terms), terms.sum(axis=0, keepdims=True))
    flat = terms.reshape(N, 15)
    np.testing.assert_array_equal(add_vectors(total, flat), flat.sum(axis=0)[None])


# ---- every algorithm sums ------------------------------------------------------------------------


def rows(X, recipe, topology="star", **options):
    given = {"compress": options.pop("rounds")} if "rounds" in options else {}
    network = connect_workers(make_graph(topology, 4), **given)
    return recipe(X, evenly(len(X), 4), network, **options).communication


def features(X, recipe, topology="star", compress=None, **options):
    held = contiguous(X.shape[1], 3)
    network = connect(make_graph(topology, 3), held, compress=compress)
    return recipe(X, network, **options).communication


def imputed(X, **options):
    drawn = np.random.default_rng(0).random((4, *X.shape)) < 0.5
    seen = from_matrices([np.where(own, X, np.nan) for own in drawn])
    return vpem.fit_imputation(seen, max_iter=5, **options).communication


def individuals(**options):
    found = vpem.fit_saem(
        vpem.read_individuals(DATA / "oxford_boys.csv"),
        devices=4, n_iter=5, n_chains=1, n_conditional=3, n_importance=10, **options,
    )  # fmt: skip
    return found.ledger.summary()


FEW = {"max_iter": 3, "tol": 0.0}
NOISY = {"compress": "qsgd:8bits", "participation": 0.5}
ALGORITHMS = {
    "VP-EM": lambda X: features(X, vpem.fit_vpem, **FEW),
    "VP-EM, compressed": lambda X: features(X, vpem.fit_vpem, compress="qsgd:8bits", **FEW),
    "VP-EM, compressed rounds": lambda X: features(
        X, vpem.fit_vpem, "cycle", "natural:12bits", **FEW
    ),
    "EM over rows": lambda X: rows(X, vpem.fit_em, **FEW),
    "FedEM": lambda X: rows(X, vpem.fit_fedem, **NOISY, **FEW),
    "FedEM on a graph": lambda X: rows(X, vpem.fit_fedem, "cycle", rounds="qsgd:12bits", **FEW),
    "VR-FedEM": lambda X: rows(X, vpem.fit_fedem, variance_reduction=True, **NOISY, **FEW),
    "FedMissEM": lambda X: imputed(X, scale="standard", **NOISY),
    "SAEM": lambda X: individuals(),
    "SAEM, compressed": lambda X: individuals(codec="qsgd:8bits", participation=0.5),
    "SAEM, models": lambda X: individuals(average="models"),
    "k-means over rows": lambda X: rows(X, vpem.kmeans_rows, init="random"),
    "k-means on a graph": lambda X: rows(X, vpem.kmeans_rows, "cycle"),
    "k-means over features": lambda X: features(X, vpem.kmeans_features),
    "k-means in one shot": lambda X: features(X, vpem.kmeans_features, method="grid"),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_message_is_one_of_a_sum(name, overlapping, monkeypatch):
    seen = Counter()
    send = Sum._send

    def counting(self, kind, size, **how):
        parts = ("messages", "bytes", "rounds")
        before = {part: getattr(self.ledger, part, 0) for part in parts}
        send(self, kind, size, **how)
        seen.update({part: getattr(self.ledger, part, 0) - before[part] for part in parts})

    monkeypatch.setattr(Sum, "_send", counting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vpem.VpemWarning)
        told = ALGORITHMS[name](overlapping(0, 60, 6))
    assert told["bytes"] > 0
    assert {part: told[part] for part in seen} == dict(seen)
