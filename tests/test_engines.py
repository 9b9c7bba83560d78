"""Engines find what one process does, and carry the bytes that ledgers count; their messages."""

import ast
import contextlib
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import vpem
from vpem import fit_fedem, fit_imputation, kmeans_features, kmeans_rows
from vpem._core.threads import one_blas_thread
from vpem.engines.engine import Engine, StalledError
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.fits.spread import fit_spread, own_columns
from vpem.network.codecs import parse_codec
from vpem.network.graph import make_graph
from vpem.network.ledger import Ledger
from vpem.network.messages import decode, encode
from vpem.network.partition import contiguous, evenly, from_lists
from vpem.saem.server import SaemServer
from vpem.sums.connect import connect, connect_workers, spread, spread_workers
from vpem.sums.partial import Presence, Uplink
from vpem.sums.quantizer import Quantizer
from vpem.terms.lowrank.entries import from_matrices, split

from . import (
    over_bootstrap,
    over_discriminant,
    over_fits,
    over_missing,
    over_row_states,
    over_rows,
    over_selection,
    over_sums,
)
from .forks import ROOT
from .tables import each, over
from .thread_engine import over_queues, together
from .tls_support import members_together

over_members = partial(together, engine=over_queues)
"""Members of a study whose links are queues."""
SERVER, SHARED = (4, (1, 2, 3)), (3, None)
"""Processes, and those that hold something: the first a server that holds nothing, or all, fewer
than agents."""


def at_the_end(told):
    """How many cases a suite says that it has tried, once it got to its end."""
    word, number = told.split()
    assert word in ("compared", "checked")
    return int(number)


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@pytest.mark.parametrize(
    ("suite", "run", "n_ranks", "seats"),
    [
        (over_sums, over_members, *SERVER),
        (over_sums, members_together, *SHARED),
        (over_fits, over_members, *SERVER),
        (over_rows, over_members, *SHARED),
        (over_missing, over_members, *SERVER),
        (over_row_states, over_members, *SERVER),
        (over_selection, over_members, *SERVER),
        (over_bootstrap, over_members, *SERVER),
        (over_discriminant, over_members, *SERVER),
    ],
)
def test_processes_find_what_one_does(suite, run, n_ranks, seats):
    """Sums over queues and TLS; all else asks nothing of an engine but these."""
    # Over queues all ways are tried, over TLS those that are not over MPI.
    how = {"ways": over_sums.OTHERS} if run is members_together else {}
    with one_blas_thread():
        first, *others = run(n_ranks, partial(suite.main, **how), seats=seats)
    assert isinstance(first, str), first
    assert at_the_end(first) > 0
    assert all(isinstance(other, str) for other in others), others


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@pytest.mark.parametrize(
    ("topology", "how", "seats"),
    [
        ("star", {}, (1, 2, 3)),
        ("path", {"sum": "tree"}, (0, 1, 2)),
        ("path", {}, (0, 1, 2)),
        ("path", {"hops": 1}, (0, 1, 2)),
        ("star", {"compress": "qsgd:8bits"}, (1, 2, 3)),
        ("path", {"compress": "topk:0.3", "sum": "tree"}, (0, 1, 2)),
        ("path", {"compress": "natural:12bits", "hops": 1}, (0, 1, 2)),
        ("star", {"secure_sum": True}, (1, 2, 3)),
        ("path", {"secure_sum": True, "sum": "tree"}, (0, 1, 2)),
    ],
)
def test_links_carry_the_bytes_that_ledgers_count(topology, how, seats):
    X = over_fits.overlapping()
    joined = connect(make_graph(topology, 3), from_lists(over_fits.HELD[3], 8), **{"hops": 0} | how)

    def work(engine):
        ranked = spread(joined, engine)
        own = X[:, own_columns(ranked)] if len(ranked.agents.own) else None
        fit = fit_spread(own, ranked, n_components=3, max_iter=3, init="kmeans", seed=1)
        traffic = ranked.total.traffic
        return fit.communication["by_kind"], engine._post.sent, Counter(traffic.on_wire)

    found = over_members(max(seats) + 1, work, seats=seats)
    sent = Counter()
    for _, messages, _ in found:
        for _, topic, size in messages:
            sent[topic] += size
    counted, keys = found[0][0], Ledger(joined.graph)
    if joined.agents.masks is not None:
        joined.total.counted_on(keys).charge_keys()  # which go with their signatures
    for kind in ("setup", "estep", "server"):
        assert sent[kind] == counted[kind]["bytes"] - keys.of_kind(kind)["bytes"]
    assert sent["setup"] > 0
    handed = sum((on_wire for _, _, on_wire in found), Counter())
    assert handed["estep"] + handed["server"] == sent["estep"] + sent["server"]


def test_one_process():
    engine = Engine()
    for check in (over_sums.check_values, over_sums.check_roots):
        check(engine, 5)
    engine.send("x", 0)
    assert engine.recv(0) == "x"
    assert Placement.here(3).nodes.tolist() == [0, 0, 0, 0]


def test_who_does_not_answer_is_named():
    def work(engine):
        Placement.evenly(engine, 3, ("a", "b", "c"))
        return engine.rank or engine.allreduce(np.ones(1))

    stalled, one = together(2, work, timeout=0.2)
    assert isinstance(stalled, StalledError)
    assert "rank 1 (b to c) has not answered" in str(stalled)
    assert one == 1


@pytest.mark.parametrize("theirs", [{0: "mine"}, {1: "a", 7: "b"}, ["a"], {"1": "a"}])
def test_nobody_speaks_for_another(theirs):
    def work(engine):
        if engine.rank:
            return engine.allgather(theirs)
        return Placement.evenly(engine, 2).allgather({0: "own"})

    refused, _ = together(2, work)
    assert isinstance(refused, vpem.InputError)
    assert str(refused).startswith("rank 1 (agent 1) has sent something else than what it has")


def test_nothing_else_knows_mpi():
    found = set()
    for folder in (Path(vpem.__file__).parent, ROOT / "cli"):
        for path in folder.rglob("*.py"):
            text = path.read_text()
            if "mpi" not in text.lower():
                continue
            for node in ast.walk(ast.parse(text)):
                names = [getattr(node, name, None) for name in ("id", "attr", "module")]
                names += [alias.name for alias in getattr(node, "names", ())
                          if isinstance(alias, ast.alias)]  # fmt: skip
                known = [name for name in names if isinstance(name, str)]
                if any(name.startswith(("mpi4py", "MPI", "Mpi")) for name in known):
                    found.add(path.name)
    assert found == {"mpi.py"}


def test_an_engine_may_say_where_agents_live():
    class Seated(Engine):
        size, seats, rank = 3, (1, 2), 1

    place = Placement.evenly(Seated(), 2, ["lab", "clinic"])
    assert (place.ranks.tolist(), place.own.tolist()) == ([1, 2], [0])
    assert (place.engine.names, place.nodes.tolist()) == (["this process"], [1, 2, 0])
    with pytest.raises(vpem.InputError, match="2 parties have data, but there are 3 agents"):
        Placement.evenly(Seated(), 3)


# ---- messages ------------------------------------------------------------------------------------

VALUES = [
    None, True, 3, -2.5, float("inf"), "héllo", b"\x00\xff", [], (), {}, [1, [2, (3, {"a": None})]],
    {1: "one", "two": 2, (1, 2): [3]}, np.float32(1.5), np.int64(7),
    np.zeros((0, 3)), np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::-1], np.array(2.5),
    np.array([b"ab", b"c"]), np.array([["x", "yz"]]), np.array([True, False]), np.array([""]),
]  # fmt: skip


@each("value", VALUES)
def test_messages_come_back(value):
    back = decode(encode(value))
    assert type(back) is type(value)
    np.testing.assert_equal(back, value)
    if isinstance(value, np.ndarray):
        assert back.dtype == value.dtype
        assert back.shape == value.shape


def test_nan_comes_back():
    assert np.isnan(decode(encode(float("nan"))))


@each(
    "value", [object(), {1, 2}, np.array([object()]), [lambda: 0], 1j, np.datetime64("2020-01-01")]
)
def test_nothing_else_is_sent(value):
    with pytest.raises(TypeError, match="cannot be sent"):
        encode(value)


def test_damaged_messages_are_refused():
    whole = encode({"x": np.arange(4.0), "y": [1, b"abc"]})
    damaged = [whole[:end] for end in range(len(whole))] + [whole + b"x", b"", b"vpem" * 9]
    for message in damaged:
        with pytest.raises(InputError, match="damaged"):
            decode(message)


HEADERS = [
    '{"a":"|O","s":[1],"g":false}', '{"a":"<f8","s":[-1],"g":false}', "[1]",
    '{"a":"<U1000000000","s":[0,1],"g":false,"b":8}', '{"a":"<U0","s":[1000000000],"g":false}',
    '{"a":"<f8","s":[4294967296,4294967296],"g":false}', '{"a":"<f8","s":[1.0],"g":false}',
    '{"a":"f8,f8","s":[1],"g":false}', '{"a":"<M8","s":[1],"g":false}', '{"b":8.0}', '{"b":true}',
    '{"a":"<f8","s":[1],"g":true}', '{"a":"<f8","s":[' + "1," * 99 + '1],"g":false}',
    '{"d":[[1,2],[1,3]]}', '{"d":[[{"l":[]},2]]}', '{"d":[[1]]}', '{"l":{"b":8}}', '{"x":[]}', "{}",
    '{"l":[],"t":[]}', '{"l":' * 100 + "1" + "}" * 100, "[" * 100_000, "1" * 5000,
]  # fmt: skip


@each("header", HEADERS)
def test_no_header_makes_what_is_not_there(header):
    text = header.encode()
    for rest in (b"", bytes(8)):
        with pytest.raises(InputError, match="damaged"):
            decode(b"vpem" + len(text).to_bytes(8, "little") + text + rest)


def test_mutated_messages_are_read_or_refused():
    rng = np.random.default_rng(0)
    wholes = [encode(value) for value in VALUES] + [encode(VALUES)]
    for number in range(3000):
        message = bytearray(wholes[number % len(wholes)])
        for _ in range(rng.integers(1, 4)):
            at = rng.integers(len(message))
            message[at : at + rng.integers(3)] = rng.bytes(rng.integers(3))
        with contextlib.suppress(InputError):
            encode(decode(message))


quiet = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
SEATS = (1, 2, 3)
"""Members that hold something; the first is a server that holds nothing."""

SOME = ("qsgd:4bits", "topk:0.3", "float32")
CODECS = (*SOME, "natural:12bits", "randk:0.5", "blockp:8")


def sent_of(parts):
    """Bytes by kind that all processes gave to the engine."""
    found = Counter()
    for part in parts:
        if isinstance(part, BaseException):
            raise part
        for _, topic, size in part[1]:
            found[topic] += size
    return found


@quiet
@over(
    codec=[None, *SOME, "randk:0.5"], memory=["first", "zero", "none"],
    variance_reduction=[False, True], covariance_type=["full", "tied"], topology=["star", "path"],
)  # fmt: skip
def test_fedem(codec, memory, variance_reduction, covariance_type, topology):
    if memory != "first" and codec in (None, "topk:0.3")[: 1 + (memory == "none")]:
        return  # which is refused
    X, workers = np.random.default_rng(0).normal(size=(90, 3)), evenly(90, 3)
    X[:45] += 1.5
    way, kind = ("server", "server") if topology == "star" else ("tree", "estep")
    network = connect_workers(make_graph(topology, 3), sum=way)
    how = {
        "compress": codec, "memory": memory, "variance_reduction": variance_reduction,
        "covariance_type": covariance_type, "n_components": 2, "init": [3, 70], "max_iter": 4,
        "tol": 0.0, "seed": 3,
    }  # fmt: skip

    def work(engine):
        ranked = spread_workers(network, engine)
        rows = [X[workers.rows[worker]] for worker in ranked.agents.own]
        found = fit_fedem(np.concatenate([X[:0], *rows]), workers, ranked, **how)
        return found, engine._post.sent

    parts = together(4, work, over_queues, seats=SEATS)
    sent, one = sent_of(parts), fit_fedem(X, workers, network, **how)
    found = parts[0][0]
    assert found.communication == one.communication
    counted = found.communication["by_kind"]
    # The farthest row's distance is agreed on, which the ledger counts as a number up and down.
    number = 8 if codec is None else 4
    if topology == "star":
        assert sent["setup"] + sent["server"] == (
            counted["setup"]["bytes"] + counted["server"]["bytes"] - 3 * 2 * number
        )
    if codec is not None:
        assert sent[kind] == counted[kind]["bytes"]
        assert found.run.history.objective == one.run.history.objective
        for fit, _ in parts:
            np.testing.assert_array_equal(fit.run.statistic, one.run.statistic)


@quiet
@over(
    codec=SOME, recipe=[kmeans_features, kmeans_rows], topology=["star", "path"],
    participation=[1.0, 0.6],
)  # fmt: skip
def test_kmeans(codec, recipe, topology, participation):
    X, over_rows = np.random.default_rng(0).normal(size=(60, 6)), recipe is kmeans_rows
    graph, way = make_graph(topology, 3), "server" if topology == "star" else "tree"
    options = {"sum": way, "compress": codec}
    held = evenly(60, 3) if over_rows else contiguous(6, 3)
    network = connect_workers(graph, **options) if over_rows else connect(graph, held, **options)
    how = {"n_clusters": 2, "seed": 0, "max_iter": 4, "participation": participation}

    def work(engine):
        ranked = (spread_workers if over_rows else spread)(network, engine)
        own = [held.rows[one] if over_rows else held.features[one] for one in ranked.agents.own]
        own = np.concatenate([np.empty(0, dtype=np.intp), *own])
        if over_rows:
            return recipe(X[own], held, ranked, **how), engine._post.sent
        return recipe(X[:, own], ranked, **how), engine._post.sent

    parts = together(4, work, over_queues, seats=SEATS)
    sent_of(parts)
    found, one = parts[0][0], recipe(X, *([held] if over_rows else []), network, **how)
    assert found.communication == one.communication
    np.testing.assert_array_equal(found.history, one.history)
    kind, home = ("server", 0) if topology == "star" else ("estep", 2)
    sent = [(sender, *one) for sender, (_, sent) in enumerate(parts) for one in sent]
    up, down = (
        [size for sender, to, topic, size in sent if topic == kind and size and ends(sender, to)]
        for ends in (lambda _, to: to == home, lambda sender, _: sender == home)
    )
    # Beside messages there are flags of a byte: a worker's rows no longer move.
    counted = found.communication["by_kind"][kind]
    if participation < 1:
        # The total comes to all processes; in the ledger to those who take part.
        (total,) = set(down)
        down = [total] * len(up)
    flags = counted["messages"] - len(up) - len(down)
    assert flags == 0 or over_rows
    assert counted["bytes"] == sum(up) + sum(down) + flags


@quiet
@over(codec=SOME, law=["gaussian", "poisson"], variance_reduction=[False, True])
def test_imputation(codec, law, variance_reduction):
    rng = np.random.default_rng(3)
    seen = np.where(rng.random((12, 7)) < 0.7, rng.poisson(3.0, size=(12, 7)), np.nan)
    given = split(from_matrices(seen), 3, "random", rng)
    network = connect_workers(make_graph("star", 3))
    how = {
        "rank": 2, "ridge": 1.0, "scale": "none", "law": law, "compress": codec, "max_iter": 4,
        "tol": 0.0, "seed": 3, "variance_reduction": variance_reduction,
    }  # fmt: skip

    def work(engine):
        ranked = spread_workers(network, engine)
        own = given.seen_by(set(ranked.agents.own.tolist()))
        return fit_imputation(own, network=ranked, **how), engine._post.sent

    parts = together(4, work, over_queues, seats=SEATS)
    sent, one = sent_of(parts), fit_imputation(given, network=network, **how)
    for found, _ in parts:
        np.testing.assert_array_equal(found.run.statistic, one.run.statistic)
        assert found.communication == one.communication
    # First statistics go as they are, and come back with those that follow.
    counted = one.communication["by_kind"]
    assert sent["server"] == counted["setup"]["bytes"] + counted["server"]["bytes"]


@quiet
@over(codec=CODECS, feedback=["none", "change", "error", "memory"])
def test_devices_of_saem(codec, feedback):
    rng = np.random.default_rng(1)
    pieces, drawn = (slice(0, 3), slice(3, 9)), rng.normal(size=(8, 3, 9))
    graph = make_graph("star", 3)

    def found_by(network, own):
        here = np.isin(np.arange(3), own)[:, None]
        shares = np.array([0.5, 0.3, 0.2])
        server = SaemServer(shares, parse_codec(codec), feedback, pieces, network)
        server.begin(np.where(here, drawn[0], 0.0), None, 0.7, np.random.default_rng(2))
        path = []
        for local in drawn[1:]:
            active = server.draw(9)
            mine = np.where(here, local, 0.0)[active]
            server.gather(mine, 0.9 * mine, 0.5)
            path.append(server.statistic)
        return np.array(path), server.ledger.of_links()[1][server.total._up].sum()

    def work(engine):
        ranked = spread_workers(connect_workers(graph), engine)
        return found_by(ranked, ranked.agents.own), engine._post.sent

    wanted, up = found_by(connect_workers(graph), np.arange(3))
    parts = together(4, work, over_queues, seats=SEATS)
    sent_of(parts)
    for (path, counted), _ in parts:
        np.testing.assert_allclose(path, wanted, rtol=1e-13, atol=1e-14)
        assert counted == up
    # What units are made of is counted as a first statistic, and agreed on apart.
    handed = sum(size for _, messages in parts[1:] for to, _, size in messages if to == 0)
    assert handed == up - 3 * 9 * 8


@over(codec=[*CODECS, "float64"], pieces=[(5,), (2, 0, 4), (1, 7)], n_exact=[0, 2])
def test_messages_say_what_is_received(codec, pieces, n_exact):
    ends = np.cumsum([0, *pieces])
    parts = tuple(slice(a, b) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
    sends = Quantizer(parse_codec(codec), parts, n_exact=n_exact)
    values = np.random.default_rng(0).normal(size=(4, ends[-1] + n_exact))

    def draw(n):
        return np.arange(n, dtype=np.uint64)

    messages = sends.pack(values, draw)
    np.testing.assert_array_equal(sends.unpack(messages), sends.transmit(values, draw))
    assert messages.shape == (4, sends.message_size)


@over(codec=["qsgd:4bits", "topk:0.5"], probability=[None, 0.6], step=[1.0, 0.4])
def test_what_a_server_keeps_is_the_sum_of_what_it_has_of_each(codec, probability, step):
    rng = np.random.default_rng(1)
    sends = Quantizer(parse_codec(codec), 6)
    presence = None if probability is None else Presence(np.full(5, probability))
    uplink = Uplink(connect_workers(make_graph("star", 5)).total.server, sends, rng, presence)
    uplink.remember(step, np.zeros((5, 6)), np.zeros((1, 6)))
    about = rng.normal(size=6)
    for _ in range(9):
        uplink.draw()
        before = uplink.kept.copy()
        found = uplink.estimate(rng.normal(size=(len(uplink.senders), 6)), about)
        np.testing.assert_allclose(uplink.kept[0], uplink.values.sum(axis=0), atol=1e-13)
        share = 1.0 if uplink.biased else 1.0 / uplink.chance
        np.testing.assert_allclose(found, before + share * (uplink.kept - before) / step)
