"""The distributed sum: exact at a server, by rounds, and by the small matrix equal to them."""

import networkx as nx
import numpy as np
import pytest

from vpem import InputError, VpemWarning, connect, find_hubs, make_graph, mixing_matrix, mixing_rate
from vpem.network.hubs import Hub
from vpem.network.partition import contiguous
from vpem.sums.consensus import ConsensusSum, consensus_error_bound, rounds_needed
from vpem.sums.server import ServerSum

from .tables import each, over

WEIGHTS = ("metropolis", "laplacian", "max-degree")
GRAPHS = [("cycle", 9), ("path", 8), ("geometric", 40), ("small-world", 18), ("grid", 12)]


def made(topology, n, hops, weights="metropolis", seed=0):
    graph = make_graph(topology, n, seed=seed)
    return graph, mixing_matrix(graph, weights), find_hubs(graph, hops, seed=seed)


def dense_metropolis(graph):
    """Mixing weights by their definition."""
    net = nx.from_edgelist(graph.edges.tolist())
    W = np.zeros((graph.n_agents, graph.n_agents))
    for i, j in net.edges:
        W[i, j] = W[j, i] = 1 / (1 + max(net.degree[i], net.degree[j]))
    return W + np.diag(1 - W.sum(axis=1))


def sum_by_hand(W, hubs, n_rounds, terms):
    """What each root holds after the rounds, agent by agent."""
    n = len(W)
    state = np.zeros((n, *terms.shape[1:]))
    for b, hub in enumerate(hubs):
        for agent in hub.agents:
            state[agent] = n / len(hub.agents) * terms[b]
    for _ in range(n_rounds):
        state = np.array([sum(W[i, j] * state[j] for j in np.flatnonzero(W[i])) for i in range(n)])
    return state[[hub.root for hub in hubs]]


def test_server_adds_all_blocks():
    terms = np.random.default_rng(0).normal(size=(4, 10, 3))
    total = ServerSum(4)
    assert total.n_roots == 1
    np.testing.assert_allclose(total.reduce(terms), terms.sum(axis=0)[None], rtol=1e-15)


@over(network=GRAPHS, hops=[0, 1, 2], path=["operator", "rounds"], n_rounds=[1, 2, 13])
def test_rounds_agent_by_agent(network, hops, path, n_rounds):
    topology, n = network
    graph, mixing, hubs = made(topology, n, hops)
    terms = np.random.default_rng(1).normal(size=(len(hubs), 7, 2))
    total = ConsensusSum(mixing, hubs, n_rounds, path=path)
    assert total.path == path
    assert total.n_roots == len(hubs)
    wanted = sum_by_hand(dense_metropolis(graph), hubs, n_rounds, terms)
    np.testing.assert_allclose(total.reduce(terms), wanted, rtol=1e-10, atol=1e-11)


@over(network=GRAPHS, hops=[0, 1, 2], weights=WEIGHTS)
def test_operator_keeps_what_is_alike(network, hops, weights):
    """Agents that start from one value keep it: ``C w = 1`` for ``w_b = |H_b| / N``."""
    topology, n = network
    _, mixing, hubs = made(topology, n, hops, weights)
    shares = np.array([len(hub.agents) / n for hub in hubs])
    for n_rounds in (1, 5, 40):
        operator = ConsensusSum(mixing, hubs, n_rounds, path="operator").operator
        np.testing.assert_allclose(operator @ shares, 1, rtol=1e-12)


@over(network=GRAPHS, weights=WEIGHTS)
def test_many_rounds_become_the_exact_sum(network, weights):
    topology, n = network
    _, mixing, hubs = made(topology, n, 1, weights)
    needed = rounds_needed(mixing, hubs, mixing_rate(mixing), 1e-12)
    total = ConsensusSum(mixing, hubs, needed, path="operator")
    np.testing.assert_allclose(total.operator, 1, atol=1e-12)
    terms = np.random.default_rng(2).normal(size=(len(hubs), 5, 2))
    exact = np.broadcast_to(terms.sum(axis=0), terms.shape)
    np.testing.assert_allclose(total.reduce(terms), exact, atol=1e-10)


def test_an_operator_of_ones_is_shared_by_all_roots():
    _, mixing, hubs = made("complete", 6, 0)
    terms = np.random.default_rng(3).normal(size=(6, 5, 2))
    shared = ConsensusSum(mixing, hubs, 1, path="operator")
    assert shared.n_roots == 1
    np.testing.assert_array_equal(shared.reduce(terms), ServerSum(6).reduce(terms))
    apart = ConsensusSum(mixing, hubs, 1, path="rounds")
    assert apart.n_roots == 6
    np.testing.assert_allclose(
        apart.reduce(terms), np.repeat(shared.reduce(terms), 6, axis=0), rtol=1e-12, atol=1e-12
    )


@over(dtype=[np.float32, np.float64], path=["operator", "rounds"])
def test_precision_is_that_of_the_terms(dtype, path):
    _, mixing, hubs = made("cycle", 6, 0)
    terms = np.random.default_rng(4).normal(size=(6, 300, 2)).astype(dtype)
    total = ConsensusSum(mixing, hubs, 9, path=path, n_threads=2)
    found = total.reduce(terms)
    assert found.dtype == dtype
    wanted = ConsensusSum(mixing, hubs, 9, path="rounds").reduce(terms.astype(np.float64))
    tolerance = 200 * np.finfo(dtype).eps
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def test_terms_are_left_as_they_were():
    _, mixing, hubs = made("path", 5, 0)
    terms = np.random.default_rng(5).normal(size=(5, 4, 2))
    before = terms.copy()
    for path in ("operator", "rounds"):
        ConsensusSum(mixing, hubs, 3, path=path).reduce(terms)
        np.testing.assert_array_equal(terms, before)


@over(network=GRAPHS, weights=WEIGHTS)
def test_the_mean_of_the_states_is_kept_in_every_round(network, weights):
    topology, n = network
    from vpem._core.consensus import consensus_rounds

    _, mixing, _ = made(topology, n, 0, weights)
    csr = (mixing.indptr.astype(np.int32), mixing.indices.astype(np.int32), mixing.data)
    states = np.random.default_rng(6).normal(size=(n, 11)) + 5
    mean = states.mean(axis=0)
    spread = np.linalg.norm(states - mean)
    for _ in range(60):
        consensus_rounds(*csr, states, np.ones(1), 1)
        np.testing.assert_allclose(states.mean(axis=0), mean, rtol=1e-13)
        now = np.linalg.norm(states - mean)
        assert now <= spread * (mixing_rate(mixing) + 1e-12) + 1e-12
        spread = now


# ---- how many rounds -----------------------------------------------------------------------------


@over(network=GRAPHS, hops=[0, 1, 2], weights=WEIGHTS)
def test_the_bound_is_one(network, hops, weights):
    topology, n = network
    _, mixing, hubs = made(topology, n, hops, weights)
    rate = mixing_rate(mixing)
    for n_rounds in (1, 2, 3, 8, 21, 60):
        error = ConsensusSum(mixing, hubs, n_rounds, path="operator").error
        bound = consensus_error_bound(rate, hubs, n, n_rounds)
        assert error <= bound * (1 + 1e-9) + 1e-12


@over(network=GRAPHS, hops=[0, 1, 2], tolerance=[1e-1, 1e-3, 1e-8])
def test_rounds_needed_reach_the_tolerance(network, hops, tolerance):
    topology, n = network
    _, mixing, hubs = made(topology, n, hops)
    needed = rounds_needed(mixing, hubs, mixing_rate(mixing), tolerance)
    assert ConsensusSum(mixing, hubs, needed, path="operator").error <= tolerance
    fewer = needed * 8 // 10
    if fewer:
        assert ConsensusSum(mixing, hubs, fewer, path="operator").error > tolerance


def test_rounds_needed_without_the_operator(monkeypatch):
    _, mixing, hubs = made("cycle", 12, 1)
    rate = mixing_rate(mixing)
    close = rounds_needed(mixing, hubs, rate, 1e-3)
    monkeypatch.setattr("vpem.sums.consensus.MOST_OPERATOR_VALUES", 1)
    bound = rounds_needed(mixing, hubs, rate, 1e-3)
    assert close <= bound <= 3 * close
    assert consensus_error_bound(rate, hubs, 12, bound) <= 1e-3
    total = ConsensusSum(mixing, hubs, 10)
    assert total.operator is None
    assert total.error is None
    assert total.path == "rounds"


def test_one_round_is_enough_where_all_are_neighbours():
    _, mixing, hubs = made("complete", 5, 0)
    assert rounds_needed(mixing, hubs, mixing_rate(mixing), 1e-9) == 1


@pytest.mark.parametrize("seed", range(4))
def test_too_few_rounds_are_warned_about_with_a_number_that_does(seed):
    graph = make_graph("tree", 14, seed=seed)
    partition = contiguous(14, 14)
    with pytest.warns(VpemWarning, match=r"5 rounds are too few .* (\d+) rounds would do") as told:
        few = connect(graph, partition, hops=1, n_rounds=5, seed=seed)
    assert few.consensus_error > 1e-3
    enough = int(str(told[0].message).split("; ")[-1].split()[0])
    network = connect(graph, partition, hops=1, n_rounds=enough, seed=seed)
    assert network.consensus_error <= 1e-3


def test_a_network_too_large_for_its_operator_is_judged_by_the_bound(monkeypatch):
    monkeypatch.setattr("vpem.sums.consensus.MOST_OPERATOR_VALUES", 1)
    graph, partition = make_graph("cycle", 9), contiguous(9, 9)
    with pytest.warns(VpemWarning, match="too few") as told:
        network = connect(graph, partition, hops=0, n_rounds=3, acceleration="none")
    bound = consensus_error_bound(network.mixing_rate, network.hubs, 9, 3)
    assert network.consensus_error == pytest.approx(bound)
    enough = int(str(told[0].message).split("; ")[-1].split()[0])
    enough_of_them = connect(graph, partition, hops=0, n_rounds=enough, acceleration="none")
    assert enough_of_them.consensus_error <= 1e-3


# ---- set-up --------------------------------------------------------------------------------------


def test_auto_takes_the_cheaper_way():
    _, mixing, hubs = made("path", 30, 0)
    assert ConsensusSum(mixing, hubs, 100).path == "operator"
    assert ConsensusSum(mixing, hubs, 1).path == "rounds"


@each("n_rounds", [-1, 1.5, True])
def test_rounds_must_be_a_positive_integer(n_rounds):
    _, mixing, hubs = made("cycle", 4, 0)
    with pytest.raises(InputError, match="rounds must be an integer of at least 0"):
        ConsensusSum(mixing, hubs, n_rounds)


def test_an_unknown_path_is_refused():
    _, mixing, hubs = made("cycle", 4, 0)
    with pytest.raises(InputError, match="did you mean 'rounds'"):
        ConsensusSum(mixing, hubs, 3, path="round")


def test_hubs_of_unequal_size_weigh_alike_in_the_sum():
    graph = make_graph("path", 5)
    hubs = [Hub(1, (0, 1, 2)), Hub(3, (3, 4))]
    total = ConsensusSum(mixing_matrix(graph), hubs, 400, path="rounds")
    terms = np.array([[[1.0]], [[10.0]]])
    np.testing.assert_allclose(total.reduce(terms), 11.0, rtol=1e-9)


@each(
    ("options", "match"),
    [
        ({"hops": -1}, "hops"),
        ({"hops": 1.5}, "hops"),
        ({"n_rounds": 0}, "rounds"),
        ({"weights": "metro"}, "did you mean 'metropolis'"),
        ({"consensus": "fast"}, "consensus must be one of auto"),
        ({"n_threads": 0}, "threads"),
    ],
)
def test_connect_refuses_options_out_of_range(options, match):
    with pytest.raises(InputError, match=match):
        connect(make_graph("cycle", 6), contiguous(6, 6), **options)


def test_connect_refuses_another_number_of_agents():
    with pytest.raises(InputError, match="5 agents but the features are held by 6"):
        connect(make_graph("cycle", 5), contiguous(6, 6))


def test_a_star_sums_exactly():
    network = connect(make_graph("star", 4), contiguous(7, 4), hops=0)
    assert isinstance(network.total, ServerSum)
    assert network.consensus_error == 0
    assert network.mixing_rate is None
    assert network.n_rounds is None
    assert network.weights is None
