"""A plan says what a fit will do: its messages are held against a real run's, kind by kind."""

import json
import sys

import networkx as nx
import numpy as np
import pytest

from vpem import InputError, connect, find_hubs, fit_vpem, make_graph, mixing_matrix, mixing_rate
from vpem import planning as module
from vpem.graph import from_edges
from vpem.network.ledger import KINDS
from vpem.partition import contiguous
from vpem.planning import plan
from vpem.sums.consensus import ConsensusSum, rounds_needed

CASES = [
    ("cycle", 8, {"hops": 1}),
    ("cycle", 6, {"hops": 0, "n_rounds": 40, "acceleration": "none"}),
    ("path", 7, {"hops": 2}),
    ("geometric", 20, {"hops": 1, "weights": "laplacian"}),
    ("geometric", 20, {"hops": 0, "weights": "fastest", "consensus_tol": 1e-3}),
    ("cycle", 7, {"hops": 1, "eigenvalue": "estimated"}),
    ("star", 5, {"hops": 0}),
    ("complete", 4, {"hops": 0}),
]


def times(kind, count):
    return {what: count * value for what, value in kind.items()}


@pytest.mark.parametrize(("topology", "n", "options"), CASES)
@pytest.mark.parametrize(("n_components", "dtype"), [(2, "float64"), (3, "float32")])
def test_the_prediction_is_what_a_fit_sends(topology, n, options, n_components, dtype, overlapping):
    graph = make_graph(topology, n, seed=1)
    held = contiguous(2 * n + 1, n)
    X = overlapping(0, n_samples=120, n_features=2 * n + 1)
    told = plan(
        graph, held, n_samples=120, n_components=n_components, dtype=dtype, seed=2, **options
    )
    network = connect(graph, held, seed=2, **options)
    fit = fit_vpem(
        X, network, n_components=n_components, init=range(n_components), tol=1e-3, dtype=dtype
    )
    assert fit.n_iter > 1
    sent = fit.communication
    setup, iteration = (told["communication"][part]["by_kind"] for part in ("setup", "iteration"))
    for kind in KINDS:
        count = fit.n_iter if kind == "stopping" else fit.n_iter + 1
        expected = {
            what: setup[kind][what] + value for what, value in times(iteration[kind], count).items()
        }
        assert sent["by_kind"][kind] == expected, kind
    assert setup["estep"]["messages"] == setup["stopping"]["messages"] == 0
    assert told["communication"]["iteration"]["bytes"] > 0
    assert told["rounds"] == network.n_rounds
    assert told["consensus_error"] == network.consensus_error
    assert told["mixing_rate"] == network.mixing_rate
    assert [hub["root"] for hub in told["hubs"]] == [hub.root for hub in network.hubs]


def test_agents_and_links_too(overlapping):
    graph = make_graph("geometric", 15, seed=0)
    held = contiguous(15, 15)
    told = plan(graph, held, hops=1, n_samples=80)["communication"]
    fit = fit_vpem(overlapping(1, 80, 15), connect(graph, held, hops=1), init=[0, 1], tol=1e-3)
    count = fit.n_iter
    by_agent = {
        name: np.array(told["setup"]["by_agent"][name])
        + (count + 1) * np.array(told["iteration"]["by_agent"][name])
        for name in told["setup"]["by_agent"]
    }
    ends = graph.degrees * plan(graph, held, hops=1)["diameter"]  # one agreement less than E-steps
    for name, found in fit.communication["by_agent"].items():
        np.testing.assert_array_equal(found, by_agent[name] - ends)


@pytest.mark.parametrize(
    ("topology", "n"), [("cycle", 9), ("grid", 12), ("geometric", 40), ("tree", 15)]
)
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


@pytest.mark.parametrize("weights", ["metropolis", "max-degree"])
def test_what_is_told_of_mixing(weights):
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


def test_a_server_needs_no_rounds():
    told = plan(make_graph("star", 6), [1] * 6)
    assert told["mixing"] == told["consensus_errors"] == told["rounds_needed"] == []
    assert (told["server"], told["diameter"], told["rounds"]) == (6, 2, None)
    assert told["degrees"] == {"min": 1, "mean": 1.0, "max": 1}


def test_widths_are_as_good_as_a_partition():
    graph = make_graph("cycle", 5)
    assert plan(graph, [3, 3, 3, 2, 2], hops=1) == plan(graph, contiguous(13, 5), hops=1)
    relays = plan(graph, [0, 4, 0, 1, 2], hops=1)
    assert relays["n_features"] == 7
    assert sum(hub["n_features"] for hub in relays["hubs"]) == 7


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


def test_large_slow_graphs_are_quick_to_plan():
    told = plan(make_graph("path", 150), [1] * 150)
    assert all(row["none_is_bound"] for row in told["rounds_needed"])
    assert all(row["chebyshev"] < row["none"] / 20 for row in told["rounds_needed"])


@pytest.mark.parametrize("absent", ["cvxpy", "cvxopt"])
def test_the_fastest_weights_are_shown_where_they_can_be(monkeypatch, absent):
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_samples": 0}, "n_samples must be"),
        ({"n_components": 1.5}, "n_components must be"),
        ({"dtype": "float16"}, "dtype must be one of float64, float32"),
        ({"hops": -1}, "hops must be"),
        ({"n_rounds": 0}, "rounds must be"),
        ({"weights": "metropols"}, "did you mean 'metropolis'"),
        ({"eigenvalue": "guessed"}, "eigenvalue must be one of computed, estimated"),
        ({"acceleration": "chebychev"}, "did you mean 'chebyshev'"),
        ({"consensus_tol": 2.0}, "consensus_tol must be"),
        ({"partition": [1, 1]}, "5 agents"),
        ({"partition": [1, 1, 1, 1, -1]}, "number of features of an agent must be"),
        ({"partition": [0] * 5}, "at least one feature"),
        ({"graph": from_edges([(0, 1), (2, 3), (3, 4)])}, "2 components"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(change, message):
    options = {"graph": make_graph("cycle", 5), "partition": [1] * 5, **change}
    with pytest.raises(InputError, match=message):
        plan(**options)
