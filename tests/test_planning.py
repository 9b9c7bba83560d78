"""A plan says what a fit will do: its messages, held against a real run's, and its time."""

import json
import sys
from dataclasses import asdict

import networkx as nx
import numpy as np
import pytest

from vpem import (
    InputError,
    VpemWarning,
    connect,
    connect_workers,
    find_hubs,
    fit_em,
    fit_vpem,
    make_graph,
    mixing_matrix,
    mixing_rate,
)
from vpem.fits import plan as module
from vpem.fits.plan import _network, _work, iteration_time, plan
from vpem.fits.settings import PlanSettings
from vpem.network.codecs import parse_codec
from vpem.network.graph import from_edges
from vpem.network.ledger import KINDS
from vpem.network.messages import LinkSpeed, parse_link
from vpem.network.partition import contiguous, evenly
from vpem.sums import forecast
from vpem.sums.consensus import ConsensusSum, rounds_needed

from .tables import each, each_once, over


@pytest.fixture(autouse=True)
def no_fastest_weights(monkeypatch):
    """Which a plan of few agents looks for to show them, by a solver, where nothing asks for it."""
    monkeypatch.setattr(module, "SMALL", 0)


CASES = [
    ("cycle", 8, {"hops": 1}),
    ("cycle", 6, {"hops": 0, "n_rounds": 40, "acceleration": "none"}),
    ("path", 7, {"hops": 2}),
    ("geometric", 20, {"hops": 1, "weights": "laplacian"}),
    ("path", 6, {"hops": 0, "weights": "fastest", "consensus_tol": 1e-3}),
    ("cycle", 7, {"hops": 1, "eigenvalue": "estimated"}),
    ("star", 5, {"hops": 0}),
    ("path", 6, {"hops": 0, "sum": "tree"}),
    ("geometric", 12, {"hops": 1, "sum": "tree"}),
    ("complete", 4, {"hops": 0}),
    ("star", 4, {"secure_sum": True}),
    ("path", 5, {"secure_sum": True, "sum": "tree"}),
]


def of_fit(told, n_iter):
    """Return what a plan says of a fit of so many iterations, kind by kind."""
    setup, iteration, last = (told[part]["by_kind"] for part in ("setup", "iteration", "last"))
    return {
        kind: {
            what: setup[kind][what] + n_iter * iteration[kind][what] + last[kind][what]
            for what in ("messages", "bytes", "rounds")
        }
        for kind in KINDS
    }


def foretold(overlapping, topology, n, d, options, *, rows, draw=0, link=None, **how):
    """A plan, and a fit of d features that n agents hold over the same network."""
    graph, held = make_graph(topology, n, seed=1), contiguous(d, n)
    asked = {name: how[name] for name in ("n_components", "n_factors", "dtype", "batch_size")
             if name in how} | {"hops": 0, **options}  # fmt: skip
    told = plan(graph, held, n_samples=rows, link=link, **asked)
    network = connect(graph, held, **{"hops": 0, **options})
    init = range(how.get("n_components", 2))
    fit = fit_vpem(overlapping(draw, rows, d), network, init=init, **how)
    assert fit.recoveries == []
    return told, fit


@each_once(graph=CASES, mixture=[(2, "float64"), (3, "float32")])
def test_the_prediction_is_what_a_fit_sends(graph, mixture, overlapping):
    (topology, n, options), (k, dtype) = graph, mixture
    # No component has too few rows for its hub, of which all would hear.
    told, fit = foretold(
        overlapping, topology, n, 2 * n + 1, {"seed": 2, **options}, rows=200, n_components=k,
        dtype=dtype, tol=1e-2, reg_covar=0.01,
    )  # fmt: skip
    assert fit.n_iter > 1
    sent, network = told["communication"], fit.network
    if network.total.way == "consensus":
        tree = plan(
            network.graph, contiguous(2 * n + 1, n), n_samples=200, n_components=k, dtype=dtype,
            seed=2, hops=options.get("hops", 0), sum="tree",
        )  # fmt: skip
        wanted = tree["communication"]["iteration"]
        assert told["along_a_tree"] == {name: wanted[name] for name in told["along_a_tree"]}
    assert fit.communication["by_kind"] == of_fit(sent, fit.n_iter)
    setup, iteration, last = (sent[part]["by_agent"] for part in ("setup", "iteration", "last"))
    for name, found in fit.communication["by_agent"].items():
        expected = np.add(setup[name], last[name]) + fit.n_iter * np.array(iteration[name])
        np.testing.assert_array_equal(found, expected)
    assert (sent["is_expected"], sent["n_drawn"], sent["partitioned"]) == (False, 0, 0.0)
    setup = sent["setup"]["by_kind"]
    assert setup["estep"]["messages"] == setup["stopping"]["messages"] == 0
    agreed = sent["iteration"]["bytes"] - sent["last"]["bytes"]
    assert sent["last"]["bytes"] > 0
    alike = network.total.is_alike and dtype == "float64"  # by the total all know when to stop
    assert (agreed == 0) == alike
    assert "batch" not in sent
    assert told["rounds"] == network.n_rounds
    assert told["consensus_error"] == network.consensus_error
    assert told["mixing_rate"] == network.mixing_rate
    assert [hub["root"] for hub in told["hubs"]] == [hub.root for hub in network.hubs]


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
@each_once(
    network=[
        ("star", {}),
        ("star", {"secure_sum": True}),
        ("path", {"sum": "tree"}),
        ("path", {"sum": "tree", "secure_sum": True}),
        ("cycle", {"hops": 1}),
        ("path", {"sum": "tree", "compress": "natural:12bits"}),
        ("star", {"compress": "float32"}),
    ],
    model=[(2, 1), (3, 2)],
)
def test_factors_are_foretold_with_what_goes_ahead_of_rows(network, model, overlapping):
    (topology, options), (k, q) = network, model
    told, fit = foretold(
        overlapping, topology, 5, 10, options, rows=120, link="8Mbit,5ms", n_components=k,
        n_factors=q, tol=1e-12, max_iter=3, reg_covar=0.01, labels=range(5),
    )  # fmt: skip
    wanted = of_fit(told["communication"], 3)
    wanted["labels"] = told["communication"]["labels"]["by_kind"]["labels"]
    compare_counts(fit.communication["by_kind"], wanted, "compress" in options)
    plain = plan(
        fit.network.graph, contiguous(10, 5), n_samples=120, link="8Mbit,5ms", n_components=k,
        **options,
    )  # fmt: skip
    for what in ("bytes", "latencies", "flops", "transfer"):
        assert told["time"][what] > plain["time"][what]


COMPRESSED = [
    ("star", 5, {"compress": "natural:12bits"}),
    ("star", 5, {"compress": "topk:0.05"}),
    ("star", 5, {"compress": "float32", "hops": 1}),
    ("path", 6, {"compress": "natural:12bits", "sum": "tree"}),
    ("geometric", 12, {"compress": "topk:0.2", "sum": "tree", "hops": 1}),
    ("cycle", 8, {"compress": "natural:12bits", "hops": 1}),
    ("cycle", 8, {"compress": "qsgd:8bits:100", "acceleration": "none"}),
    ("path", 4, {"compress": "float16", "n_rounds": 60}),
    ("geometric", 15, {"compress": "natural:10bits", "hops": 2, "seed": 3}),
]


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
@each_once(graph=COMPRESSED, mixture=[(2, "float64"), (3, "float32")])
def test_compressed_messages_have_their_true_size(graph, mixture, overlapping):
    (topology, n, options), (k, dtype) = graph, mixture
    told, fit = foretold(
        overlapping, topology, n, n + 3, options, rows=401, draw=1, n_components=k, dtype=dtype,
        tol=1e-2, max_iter=2,
    )  # fmt: skip
    sent, network = told["communication"], fit.network
    estimated = network.total.way == "consensus" or len(network.hubs) > 1
    compare_counts(fit.communication["by_kind"], of_fit(sent, fit.n_iter), estimated)
    assert (told["rounds"], told["compress"]) == (network.n_rounds, network.compress)
    assert (told["consensus_error"], sent["is_expected"]) == (network.consensus_error, True)
    if len(network.hubs) > 1:
        # A codec that would send as much is expected to leave it to float64.
        codecs = parse_codec(options["compress"]), parse_codec("float64")
        sizes = [8 + one.message_size(401 * (k - 1)) for one in codecs]
        kind = sent["last"]["by_kind"]["estep" if network.total.way != "server" else "server"]
        assert kind["bytes"] / kind["messages"] == sizes[options["compress"].startswith("topk")]


def compare_counts(found, wanted, estimated):
    """Hold what was sent against a plan: where agents decide how many messages go, roughly."""
    if not estimated:
        assert found == wanted
        return
    assert found.keys() == wanted.keys()
    for kind, row in found.items():
        if kind == "flooding":
            assert row["messages"] > 0
            assert wanted[kind]["messages"] > 0
        elif kind in ("estep", "server") and wanted[kind]["messages"]:
            assert wanted[kind]["bytes"] / 4 < row["bytes"] < 4 * wanted[kind]["bytes"]
        else:
            assert row == wanted[kind]


@each(("graph", "batch_size", "step_size"), [
    (("star", 5, {}), 33, None),
    (("cycle", 8, {"hops": 1}), 120, 0.7),
    (("path", 6, {"n_rounds": 90, "hops": 2}), 33, 0.7),
    (("star", 5, {"compress": "natural:12bits"}), 500, None),
    (("cycle", 5, {"compress": "qsgd:8bits"}), 50, None),
])  # fmt: skip
def test_batches_are_counted_by_the_pass(graph, batch_size, step_size, overlapping):
    topology, n, options = graph
    told, fit = foretold(
        overlapping, topology, n, 2 * n, options, rows=120, tol=1e-2, batch_size=batch_size,
        step_size=step_size,
    )  # fmt: skip
    sent, held = told["communication"], contiguous(2 * n, n)
    assert told["batch_size"] == batch_size
    compare_counts(fit.communication["by_kind"], of_fit(sent, fit.n_iter), "compress" in options)
    graph = fit.network.graph
    whole = plan(graph, held, n_samples=min(batch_size, 120), **options)["communication"]
    assert sent["batch"] == whole["last"]
    if "compress" not in options:
        # Compressed sums go on from those of the same batch.
        assert sent["last"] == plan(graph, held, n_samples=120, **options)["communication"]["last"]


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
def test_of_workers_the_first_pass_of_batches_is_one_sum(overlapping):
    graph, how = make_graph("star", 5), {"n_components": 2, "batch_size": 8}
    told = plan(graph, [3, *[0] * 4], split="rows", n_samples=150, **how)["communication"]
    fit = fit_em(
        overlapping(0, 150, 3), evenly(150, 5), connect_workers(graph), init=[0, 1], tol=1e-13,
        max_iter=3, reg_covar=0.01, **how,
    )  # fmt: skip
    sums = [told[part]["by_kind"]["server"]["rounds"] for part in ("batch", "iteration", "last")]
    assert sums[1] == 4 * sums[0]
    found = fit.communication["by_kind"]["server"]["rounds"]
    assert found == sums[0] + (fit.n_iter - 1) * sums[1] + sums[2]


def test_a_pass_of_many_batches_is_quick_to_plan():
    graph = make_graph("cycle", 6)
    sent = plan(graph, [1] * 6, n_samples=10**9 + 7, batch_size=10)["communication"]
    # One number more of every batch after the first, and agreement.
    more = 8 * 10**8 * sent["batch"]["messages"]
    assert sent["iteration"]["bytes"] == sent["last"]["bytes"] + more + 12 * 3
    assert sent["iteration"]["rounds"] == (10**8 + 1) * sent["batch"]["rounds"] + 3


FAULTS = [
    ("cycle", 8, {"link_failure": 0.2}),
    ("cycle", 8, {"stragglers": 0.1, "hops": 1}),
    ("geometric", 15, {"agent_dropout": 0.02, "hops": 1}),
    ("geometric", 12, {"link_failure": 0.1, "agent_dropout": 0.02, "n_rounds": 100}),
    ("grid", 9, {"agent_dropout": 0.02, "compress": "float32", "n_rounds": 12}),
]


def faulty(topology, n, options, seed, overlapping, max_iter):
    """Return a plan with faults, and a fit of so many iterations."""
    told, fit = foretold(
        overlapping, topology, n, n, {"seed": seed, **options}, rows=30, tol=1e-14,
        max_iter=max_iter,
    )  # fmt: skip
    assert told["rounds"] == fit.network.n_rounds
    assert told["faults"] == asdict(fit.network.faults)
    return told["communication"], fit


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
@each(("graph", "seed"), zip(FAULTS[:4:3], (0, 2), strict=True))
def test_where_something_fails_means_are_told(graph, seed, overlapping, monkeypatch):
    topology, n, options = graph
    monkeypatch.setattr(forecast, "MOST_DRAWN", 60)
    max_iter = 40 if "agent_dropout" in options else 8
    told, fit = faulty(topology, n, options, seed, overlapping, max_iter)
    assert told["is_expected"]
    assert 30 <= told["n_drawn"] <= 60
    assert told["partitioned"] < 0.1
    n_sums = fit.n_iter + len(fit.partitions)
    expected = of_fit(told, n_sums)
    near = 0.05 if "agent_dropout" in options else 0.02
    for kind, row in fit.communication["by_kind"].items():
        for what, value in row.items():
            if kind == "stopping":
                expected[kind][what] *= fit.n_iter / n_sums / (1 - told["partitioned"])
            assert value == pytest.approx(expected[kind][what], rel=near), (kind, what)


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
@each(("topology", "n", "options"), FAULTS)
def test_means_are_of_the_sums_that_the_fit_draws(topology, n, options, overlapping, monkeypatch):
    monkeypatch.setattr(forecast, "MOST_DRAWN", 9)
    for seed in range(2, 20):
        told, fit = faulty(topology, n, options, seed, overlapping, max_iter=9)
        assert told["n_drawn"] == 9
        assert told["partitioned"] == len(fit.partitions) / 9
        if not fit.partitions:
            break
    assert fit.n_iter == 9
    # All agreements to the byte, and all sums but the last, with agreements of silent agents less.
    stopping = told["iteration"]["by_kind"]["stopping"]["bytes"]
    counted = fit.communication["by_kind"]["stopping"]["bytes"]
    assert counted == pytest.approx(9 * stopping, rel=1e-12)
    if "compress" in options:  # sums go on until agents agree
        return
    sent = told["setup"]["bytes"] + 9 * (told["iteration"]["bytes"] - stopping)
    before = fit.communication["bytes_by_iteration"][-1] - sent
    assert counted - 2 * fit.network.graph.n_edges * fit.network.total.diameter <= before + 1e-6
    assert before <= counted + 1e-6


def test_means_are_those_of_the_probabilities():
    p, q, d = 0.2, 0.1, 0.05
    graph = make_graph("geometric", 12, seed=0)
    faults = {"link_failure": p, "stragglers": q, "agent_dropout": d}
    sent = plan(graph, [1] * 12, n_samples=50, n_rounds=60, **faults)["communication"]
    up = (1 - p) * (1 - q) ** 2
    every = 2 * graph.n_edges * 60
    last, step = sent["last"]["by_kind"]["estep"], sent["iteration"]["by_kind"]["estep"]
    assert last["messages"] == pytest.approx(every * up, rel=2e-3)
    assert step["messages"] == pytest.approx(every * up * (1 - d) ** 2, rel=2e-2)
    assert step["bytes"] == pytest.approx(step["messages"] * (50 + 1) * 8)
    assert sent["iteration"]["busiest_link"]["between"] in graph.edges.tolist()


def test_a_network_that_falls_apart_is_warned_of(monkeypatch):
    monkeypatch.setattr(forecast, "MOST_DRAWN", 60)
    graph = make_graph("path", 6)
    with pytest.warns(VpemWarning, match=r"is disconnected in \d+% of the sums"):
        sent = plan(graph, [1] * 6, n_rounds=2, link_failure=0.5)["communication"]
    assert sent["partitioned"] > 0.5
    stopping = sent["iteration"]["by_kind"]["stopping"]["rounds"]
    assert stopping == pytest.approx((1 - sent["partitioned"]) * 5)


@each(("topology", "n"), [("cycle", 9), ("grid", 12), ("geometric", 40), ("tree", 15)])
def test_what_is_told_of_the_graph(topology, n):
    graph = make_graph(topology, n, seed=5)
    told = plan(graph, [1] * n, hops=1, seed=3)
    oracle = nx.from_edgelist(graph.edges.tolist())
    degrees = [degree for _, degree in oracle.degree]
    assert told["degrees"] == {
        "min": min(degrees), "mean": pytest.approx(np.mean(degrees)), "max": max(degrees),
    }  # fmt: skip
    assert told["diameter"] == nx.diameter(oracle)
    assert (told["n_agents"], told["n_edges"], told["server"]) == (n, graph.n_edges, None)
    hubs = find_hubs(graph, 1, seed=3)
    assert told["hubs"] == [
        {"root": hub.root, "agents": list(hub.agents), "n_features": len(hub.agents)}
        for hub in hubs
    ]
    assert json.loads(json.dumps(told, allow_nan=False)) == told


@each("weights", ["metropolis", "max-degree"])
def test_what_is_told_of_mixing(weights, monkeypatch):
    monkeypatch.setattr(module, "SMALL", 20)
    graph = make_graph("geometric", 20, seed=0)
    hubs = find_hubs(graph, 1)
    told = plan(graph, [1] * 20, hops=1, weights=weights, n_rounds=50)
    rates = {row["weights"]: row["rate"] for row in told["mixing"]}
    assert list(rates) == ["metropolis", "laplacian", "max-degree", "fastest"]
    for name, rate in rates.items():
        assert rate == mixing_rate(mixing_matrix(graph, name))
    assert all(row["spectral_gap"] == 1 - row["rate"] for row in told["mixing"])
    W = mixing_matrix(graph, weights)
    rate = rates[weights]
    assert [row["rounds"] for row in told["consensus_errors"]] == [10, 30, 50, 100, 300]
    for row in told["consensus_errors"]:
        assert row["none"] == ConsensusSum(W, hubs, row["rounds"]).error
        assert row["chebyshev"] == ConsensusSum(W, hubs, row["rounds"], rate=rate).error
        assert not row["none_is_bound"]
    assert [row["consensus_error"] for row in told["rounds_needed"]] == [1e-3, 1e-6, 1e-9]
    for row in told["rounds_needed"]:
        error = row["consensus_error"]
        assert row["none"] == rounds_needed(W, hubs, rate, error)
        assert row["chebyshev"] == rounds_needed(W, hubs, rate, error, accelerated=True)
    assert told["rounds"] == 50


def test_a_server_needs_no_rounds_and_widths_are_as_good_as_a_partition():
    told = plan(make_graph("star", 6), [1] * 6)
    assert told["mixing"] == told["consensus_errors"] == told["rounds_needed"] == []
    assert (told["server"], told["diameter"], told["rounds"]) == (6, 2, None)
    assert told["degrees"] == {"min": 1, "mean": 1.0, "max": 1}
    graph = make_graph("cycle", 5)
    assert plan(graph, [3, 3, 3, 2, 2], hops=1) == plan(graph, contiguous(13, 5), hops=1)
    relays = plan(graph, [0, 4, 0, 1, 2], hops=1)
    assert relays["n_features"] == sum(hub["n_features"] for hub in relays["hubs"]) == 7


def test_what_takes_long_to_find_is_bounded(monkeypatch):
    graph = make_graph("path", 30)
    exact = plan(graph, [1] * 30)
    monkeypatch.setattr(module, "MOST_WORK", 1e5)
    quick = plan(graph, [1] * 30)
    assert any(row["none_is_bound"] for row in quick["rounds_needed"])
    for table in ("consensus_errors", "rounds_needed"):
        for one, other in zip(exact[table], quick[table], strict=True):
            for name in ("none", "chebyshev"):
                assert other[name] >= one[name]
                assert other[f"{name}_is_bound"] or other[name] == one[name]


@each("absent", ["cvxpy", "cvxopt"])
def test_the_fastest_weights_are_shown_where_they_can_be(monkeypatch, absent):
    monkeypatch.undo()
    names = [row["weights"] for row in plan(make_graph("cycle", 51), [1] * 51)["mixing"]]
    assert "fastest" not in names
    real = module.importlib.util.find_spec
    monkeypatch.setattr(
        module.importlib.util, "find_spec", lambda name: None if name == absent else real(name)
    )
    monkeypatch.setitem(sys.modules, absent, None)
    names = [row["weights"] for row in plan(make_graph("cycle", 6), [1] * 6)["mixing"]]
    assert names == ["metropolis", "laplacian", "max-degree"]
    with pytest.raises(InputError, match=r"pip install 'vpem\[sdp\]'"):
        plan(make_graph("cycle", 6), [1] * 6, weights="fastest")


@each(
    ("change", "message"),
    [
        ({"dtype": "float16"}, "dtype must be one of float64, float32"),
        ({"partition": [1, 1]}, "5 agents"),
        ({"compress": "qsgd:8bits", "eigenvalue": "estimated"}, "mixing rate must be known"),
        ({"stragglers": 0.1, "acceleration": "chebyshev"}, "which Chebyshev acceleration needs"),
        ({"stragglers": 0.1, "weights": "laplacian"}, "take weights=.metropolis"),
        ({"partition": [1, 1, 1, 1, -1]}, "number of features of an agent must be"),
        ({"partition": [0] * 5}, "at least one feature"),
        ({"graph": from_edges([(0, 1), (2, 3), (3, 4)])}, "2 components"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(change, message):
    options = {"graph": make_graph("cycle", 5), "partition": [1] * 5, **change}
    with pytest.raises(InputError, match=message):
        plan(**options)


# ---- how long an iteration takes -----------------------------------------------------------------

AGREEMENTS = 2
RATES = (1e9, 1e8)


def times(topology, n, link, *, rows=400, split="features", widths=None, k=2, **how):
    graph = make_graph(topology, n)
    held = contiguous(n, n) if widths is None else widths
    found = plan(graph, held, n_samples=rows, n_components=k, link=link, split=split, **how)
    settings = PlanSettings.resolve(None, n_components=k, **how)
    partition = held if widths is None else contiguous(sum(widths), 1)
    network = _network(graph, partition, settings, split)
    work = _work(network, partition, settings, rows, split)
    return found, iteration_time(network, found["communication"],
                                 parse_link(link), work, RATES)  # fmt: skip


@each(
    ("text", "link"),
    [
        ("100Mbit,30ms", (1e8, 0.03)), (" 10 Gbit/s , 0.1 ms ", (1e10, 1e-4)),
        ("9.6kbit,2s", (9600, 2)), ("1gbit,0us", (1e9, 0)), ("", None), ("100Mbit", None),
        ("30ms,100Mbit", None), ("-1Mbit,3ms", None), ("0kbit,1ms", None), ("1Mbit,1h", None),
        ("1e3Mbit,1ms", None),
    ],
)  # fmt: skip
def test_links_are_read_and_other_words_are_refused(text, link):
    if link is not None:
        assert parse_link(text) == LinkSpeed(*map(pytest.approx, link))
        return
    with pytest.raises(InputError, match="link is bandwidth and one-way latency"):
        parse_link(text)


@each("n", [2, 7, 100])
def test_a_server_takes_all_terms_and_sends_their_sum(n):
    """2 N messages of M (K - 1) numbers pass its link: a round up, and one down."""
    _, found = times("star", n, "8Mbit,5ms")
    assert found["bytes"] == pytest.approx(2 * n * (400 + 1) * 8, rel=1e-3)
    assert found["transfer"] == pytest.approx(found["bytes"] / 1e6)
    assert found["latency"] == pytest.approx(0.005 * 2)
    assert found["additions"] == n * 400
    assert found["handling"] == 2 * n * module.HANDLED
    parts = sum(found[part] for part in ("computing", "handling", "latency", "transfer"))
    assert found["iteration"] == pytest.approx(parts)
    assert found["computing"] == found["flops"] / 1e9 + found["additions"] / 1e8


def test_rounds_among_neighbours_take_both_directions_at_once():
    """Each agent of a cycle sends two messages a round, and hears two meanwhile."""
    plan, found = times("cycle", 10, "8Mbit,5ms", n_rounds=20)
    assert found["bytes"] == pytest.approx(20 * 2 * 3208, rel=1e-3)
    assert found["latencies"] == 20 + AGREEMENTS * plan["diameter"]


def test_large_messages_take_as_many_rounds_and_many_rows_go_in_chunks():
    _, small = times("cycle", 4, "8Mbit,5ms", rows=1000, n_rounds=20)
    _, large = times("cycle", 4, "8Mbit,5ms", rows=10_000, n_rounds=20)
    assert large["latencies"] == small["latencies"]
    assert small["chunks"] == large["chunks"] == 1
    _, several = times("cycle", 4, "8Mbit,5ms", rows=1_000_000, n_rounds=20)
    assert several["chunks"] > 10
    working = several["computing"] + several["handling"]
    longest = max(working, several["latency"] + several["transfer"])
    parts = working + several["latency"] + several["transfer"]
    assert longest < several["iteration"] < parts


def test_workers_send_statistics_whatever_rows_they_have():
    """K (1 + d + d (d + 1) / 2) numbers and a log-likelihood; each computes with its own rows."""
    few, more = (
        times("star", 4, "8Mbit,5ms", rows=rows, split="rows", widths=[6, 0, 0, 0], k=3)[1]
        for rows in (400, 4000)
    )
    assert few["transfer"] == more["transfer"]
    assert few["bytes"] == pytest.approx(2 * 4 * 8 * (3 * 28 + 1), rel=1e-2)
    assert more["flops"] == 10 * few["flops"]


@each("how", [{"topology": "star"}, {"topology": "cycle"}, {"topology": "cycle", "sum": "tree"}])
def test_a_pass_in_batches_computes_and_sends_what_an_iteration_does(how):
    """It waits for the rounds of every batch, and for an agreement after each."""
    topology, more = how["topology"], {k: v for k, v in how.items() if k != "topology"}
    _, whole = times(topology, 6, "8Mbit,5ms", rows=1000, **more)
    _, parts = times(topology, 6, "8Mbit,5ms", rows=1000, batch_size=100, **more)
    for part in ("flops", "additions", "transfer"):
        assert parts[part] == pytest.approx(whole[part], rel=1e-2)
    plan, _ = times(topology, 6, "8Mbit,5ms", rows=1000, batch_size=100, **more)
    agreed = plan["communication"]["iteration"]["by_kind"]["stopping"]["rounds"]
    rounds = plan["communication"]["last"]["rounds"]
    assert parts["latencies"] == 10 * (rounds + agreed) + agreed
    in_rounds = how == {"topology": "cycle"}  # else all go on by the total
    assert whole["latencies"] == rounds + 2 * agreed * in_rounds


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
@over(how=[{}, {"sum": "tree"}, {"sum": "consensus"}], size=[None, 7])
def test_what_workers_send_is_foretold_to_the_byte(how, size, overlapping):
    """The start at given rows, every iteration or pass, and the last E-step.

    A first pass is an E-step over all rows, of one sum.
    """
    X = overlapping(1, 120, 4)
    graph = make_graph("cycle" if how else "star", 5)
    network = connect_workers(graph, **how)
    given = {"n_components": 2, "init": [0, 30], "tol": 1e-12, "batch_size": size}
    fit = fit_em(X, evenly(120, 5), network, max_iter=3, **given)
    sent = plan(graph, [4, 0, 0, 0, 0], n_samples=120, split="rows", batch_size=size, **how)
    sent = sent["communication"]
    pass_ = sent["iteration"]
    for what in ("messages", "bytes", "rounds"):
        first = pass_[what]
        if size is not None:
            first = sent["batch"][what] + pass_["by_kind"]["stopping"][what]
        foretold = sent["setup"][what] + first + 2 * pass_[what] + sent["last"][what]
        assert fit.communication[what] == foretold, what
