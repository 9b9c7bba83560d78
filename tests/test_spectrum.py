"""The mixing rate estimated by the agents: near it, enough for Chebyshev, and charged in full."""

import numpy as np
import pytest

from vpem import InputError, find_hubs, make_graph, mixing_matrix, mixing_rate
from vpem.network.hubs import diameter
from vpem.network.ledger import Ledger
from vpem.network.mixing import LEAST, MARGIN, estimate_rate
from vpem.sums.consensus import ConsensusSum, rounds_needed

from .tables import each

GRAPHS = [
    ("cycle", 8), ("cycle", 31), ("path", 20), ("grid", 36), ("geometric", 50), ("geometric", 100),
    ("erdos-renyi", 60), ("small-world", 60), ("scale-free", 60), ("tree", 40), ("path", 2),
]  # fmt: skip
CASES = [
    (topology, n, seed, weights)
    for topology, n in GRAPHS
    for seed in range(2)
    for weights in ("metropolis", "laplacian")
]


def estimate(graph, W, seed=0, n_rounds=None):
    ledger = Ledger(graph)
    found = estimate_rate(W, graph, ledger, n_rounds=n_rounds, seed=seed, diameter=diameter(graph))
    return found, ledger


@each(("topology", "n", "seed", "weights"), CASES)
def test_chebyshev_with_the_estimate_reaches_the_tolerance(topology, n, seed, weights):
    graph = make_graph(topology, n, seed=seed)
    W = mixing_matrix(graph, weights)
    true = mixing_rate(W)
    found, _ = estimate(graph, W, seed)
    assert true < found < 1
    hubs = find_hubs(graph, 0)
    for tolerance in (1e-3, 1e-6, 1e-9):
        enough = rounds_needed(W, hubs, found, tolerance, accelerated=True, by_bound=True)
        assert ConsensusSum(W, hubs, enough, rate=found).error <= tolerance
        if true > 0.5:
            best = rounds_needed(W, hubs, true, tolerance, accelerated=True, by_bound=True)
            assert enough <= 1.25 * best + 1


@each("seed", range(5))
def test_the_margin_stands_over_what_was_seen(seed):
    graph = make_graph("cycle", 12)
    W = mixing_matrix(graph)
    true = mixing_rate(W)
    found, _ = estimate(graph, W, seed)
    assert found == pytest.approx(true + MARGIN * (1 - true), rel=1e-3)


def test_too_low_a_rate_slows_and_too_high_a_rate_hardly_does():
    graph = make_graph("geometric", 60, seed=0)
    W = mixing_matrix(graph)
    hubs = find_hubs(graph, 0)
    true = mixing_rate(W)
    gap = 1 - true
    needed = {
        factor: rounds_needed(W, hubs, true, 1e-6, accelerated=True)
        if factor == 1
        else _first(W, hubs, 1 - factor * gap, 1e-6)
        for factor in (0.5, 0.8, 1.0, 1.25, 2.0)
    }
    assert needed[1.0] <= needed[0.8] <= 1.2 * needed[1.0]
    assert needed[1.25] > 1.1 * needed[0.8]
    assert needed[2.0] > needed[1.25]
    # The mean is kept whatever the rate.
    total = ConsensusSum(W, hubs, 50, rate=1 - 2 * gap)
    np.testing.assert_allclose(total.operator.sum(axis=1), len(hubs), rtol=1e-10)


def _first(W, hubs, rate, tolerance):
    """Fewest accelerated rounds with a rate that is not the true one."""
    for count in range(1, 2000):
        if ConsensusSum(W, hubs, count, rate=rate).error <= tolerance:
            return count
    return np.inf


@pytest.mark.parametrize(("topology", "n"), [("cycle", 9), ("geometric", 40)])
def test_every_message_is_charged(topology, n):
    graph = make_graph(topology, n, seed=0)
    W = mixing_matrix(graph)
    far = diameter(graph)
    for n_rounds, floods in ((2, 1), (3, 1), (4, 2), (5, 2), (7, 3), (8, 3), (100, 7)):
        _, ledger = estimate(graph, W, n_rounds=n_rounds)
        links = 2 * graph.n_edges
        rounds = n_rounds + 1
        assert ledger.of_kind("setup") == {
            "messages": links * rounds, "bytes": 8 * links * rounds, "rounds": rounds,
        }  # fmt: skip
        rounds = 2 * far * floods
        assert ledger.of_kind("flooding") == {
            "messages": links * rounds, "bytes": 8 * links * rounds, "rounds": rounds,
        }  # fmt: skip
        assert ledger.bytes == sum(ledger.of_kind(kind)["bytes"] for kind in ("setup", "flooding"))


@each("n_rounds", [2, 3, 5, 6, 7, 20, 33])
def test_rounds_are_those_of_the_power_iteration(n_rounds):
    graph = make_graph("grid", 20)
    W = mixing_matrix(graph).toarray()
    drawn = np.array([np.random.default_rng([4, n]).standard_normal() for n in range(20)])
    start = drawn - W @ drawn
    last, before = (
        np.abs(np.linalg.matrix_power(W, count) @ start).max() for count in (n_rounds, n_rounds - 2)
    )
    seen = np.sqrt(last / before)
    found, _ = estimate(graph, mixing_matrix(graph), 4, n_rounds)
    assert found == pytest.approx(seen + MARGIN * min(seen, 1 - seen), rel=1e-10)


def test_rounds_grow_with_the_gap():
    for n in (10, 20, 40):
        graph = make_graph("cycle", n)
        W = mixing_matrix(graph)
        gap = 1 - mixing_rate(W)
        _, ledger = estimate(graph, W)
        assert 3 / gap < ledger.of_kind("setup")["rounds"] < 17 / gap


def test_a_seed_fixes_the_estimate():
    graph = make_graph("geometric", 50, seed=1)
    W = mixing_matrix(graph)
    one, ledger = estimate(graph, W, 3)
    again, other = estimate(graph, W, 3)
    assert one == again
    assert ledger.summary() == other.summary()
    assert len({estimate(graph, W, seed)[0] for seed in range(4)}) == 4


def test_a_sign_that_alternates_is_seen():
    graph = make_graph("cycle", 8)
    W = 1.4 * mixing_matrix(graph) - 0.4 * np.eye(8)  # its least eigenvalue leads
    values = np.linalg.eigvalsh(W)
    assert -values[0] > values[-2]
    found, _ = estimate(graph, W)
    assert found == pytest.approx(-values[0] + MARGIN * (1 + values[0]), rel=1e-2)


@each("n", [2, 3, 12])
def test_where_one_round_is_exact_the_rate_is_next_to_nothing(n):
    graph = make_graph("complete", n)
    found, ledger = estimate(graph, mixing_matrix(graph))
    assert 0 < found <= 10 * LEAST
    assert ledger.of_kind("setup")["rounds"] == 3


def test_a_single_agent_has_nobody_to_ask():
    graph = make_graph("path", 1)
    found, ledger = estimate(graph, mixing_matrix(graph))
    assert (found, ledger.messages, ledger.rounds) == (0.0, 0, 0)


def test_what_cannot_be_estimated_is_refused():
    star = make_graph("star", 4)
    with pytest.raises(InputError, match="a star has no mixing rate"):
        estimate_rate(np.eye(4), star, Ledger(star), diameter=2)
    graph = make_graph("cycle", 4)
    W = mixing_matrix(graph)
    with pytest.raises(InputError, match=r"rounds of power iteration must be .* got 1"):
        estimate(graph, W, n_rounds=1)
    with pytest.raises(InputError, match="never come to agree"):
        estimate(graph, 1.8 * W - 0.8 * np.eye(4))
    with pytest.raises(InputError, match="seed must be"):
        estimate(graph, W, seed=-1)
