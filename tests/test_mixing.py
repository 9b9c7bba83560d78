"""Mixing weights and rates, as they are and as agents estimate them; rounds by Chebyshev."""

import itertools
import sys

import numpy as np
import pytest
from numpy.polynomial import Chebyshev

from vpem import InputError, VpemWarning, find_hubs, make_graph, mixing_matrix, mixing_rate
from vpem.network import mixing as module
from vpem.network.graph import from_edges
from vpem.network.hubs import diameter
from vpem.network.ledger import Ledger
from vpem.network.mixing import (
    LEAST,
    MARGIN,
    MOST_FASTEST,
    chebyshev_bound,
    chebyshev_steps,
    estimate_rate,
)
from vpem.settings import WEIGHTS
from vpem.sums.consensus import ConsensusSum, consensus_error_bound, rounds_needed

from .tables import each, over, pairwise

RANDOM = [
    ("geometric", 20), ("erdos-renyi", 15), ("scale-free", 20), ("small-world", 20), ("tree", 15),
    ("grid", 12),
]  # fmt: skip

RING = make_graph("cycle", 4)

# ---- the fastest weights ------------------------------------------------------------------------


def norm(W):
    """Spectral norm of ``W - 11^T/N``."""
    return np.linalg.norm(W.toarray() - 1 / W.shape[0], 2)


@pytest.mark.parametrize(("topology", "n"), RANDOM)
def test_fastest_is_a_mixing_matrix_of_the_graph_and_none_near_is_faster(topology, n):
    graph = make_graph(topology, n, seed=1)
    W = mixing_matrix(graph, "fastest")
    dense = W.toarray()
    np.testing.assert_array_equal(dense, dense.T)
    np.testing.assert_allclose(dense.sum(axis=1), 1.0, atol=1e-14)
    assert W.nnz == 2 * graph.n_edges + n
    apart = np.ones((n, n), dtype=bool)
    apart[tuple(graph.edges.T)] = apart[tuple(graph.edges[:, ::-1].T)] = False
    assert not dense[apart & ~np.eye(n, dtype=bool)].any()
    rate = mixing_rate(W)
    assert rate == pytest.approx(norm(W), abs=1e-12)
    for other in WEIGHTS:
        assert rate <= mixing_rate(mixing_matrix(graph, other)) + 1e-12
    # The problem is convex: what is least nearby is least.
    rng, weight = np.random.default_rng(0), W[*graph.edges.T]
    for size in np.repeat([1e-3, 1e-2, 0.1], 20):
        changed = weight + size * rng.standard_normal(len(weight)) / np.sqrt(len(weight))
        assert norm(module.weighted(graph, changed)) >= rate - 1e-6


def of_cycle(n):
    """Of edges that are all alike one weight is best: 2 / (lambda_2 + lambda_max) of L."""
    values = 2 - 2 * np.cos(2 * np.pi * np.arange(n) / n)
    second, last = np.sort(values)[[1, -1]]
    return make_graph("cycle", n), (last - second) / (last + second)


@each(
    ("graph", "rate"),
    [
        *((make_graph("complete", n), 0.0) for n in (2, 3, 9)),
        *((make_graph("path", n), 0.0) for n in (1, 2)),
        *map(of_cycle, (4, 5, 8, 13, 24)),
        # The Laplacian's eigenvalues are 0, 1 and n.
        (from_edges([(0, other) for other in range(1, 7)]), (7 - 1) / (7 + 1)),
    ],
)
def test_the_fastest_weights_have_a_closed_form_where_edges_are_alike(graph, rate):
    W = mixing_matrix(graph, "fastest")
    assert mixing_rate(W) == pytest.approx(rate, abs=1e-9 if graph.topology == "custom" else 1e-12)
    if rate == 0:
        assert mixing_rate(W) == 0
    if graph.n_agents < 3:
        np.testing.assert_allclose(W.toarray(), 1 / graph.n_agents)


def test_a_rate_is_the_same_bits_again():
    W = mixing_matrix(make_graph("scale-free", module.DENSE + 10, seed=1), "laplacian")
    assert len({mixing_rate(W) for _ in range(4)}) == 1


REFUSED = [
    (lambda: mixing_matrix(make_graph("cycle", MOST_FASTEST + 1), "fastest"),
     r"at most 150 agents, the graph has 151; try laplacian"),
    (lambda: mixing_matrix(from_edges([(0, 1), (2, 3)]), "fastest"), "2 components"),
    (lambda: estimate_rate(np.eye(4), make_graph("star", 4), None, diameter=2),
     "a star has no mixing rate"),
    (lambda: estimate(RING, mixing_matrix(RING), n_rounds=1),
     r"rounds of power iteration must be .* got 1"),
    (lambda: estimate(RING, 1.8 * mixing_matrix(RING) - 0.8 * np.eye(4)), "never come to agree"),
    (lambda: estimate(RING, mixing_matrix(RING), seed=-1), "seed must be"),
]  # fmt: skip


@each(("call", "said"), REFUSED)
def test_what_has_no_weights_or_rate_is_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()


@pairwise(absent=["cvxpy", "cvxopt"], topology=["grid", "complete"])
def test_without_cvxpy_the_extra_is_named(monkeypatch, absent, topology):
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(InputError, match=r"pip install 'vpem\[sdp\]'"):
        mixing_matrix(make_graph(topology, 6), "fastest")


def test_a_solver_that_falls_short_or_fails_is_told_of(monkeypatch):
    import cvxpy

    def fails(*_, **__):
        raise cvxpy.error.SolverError("no")

    for place, name, instead, said in (
        (cvxpy.Problem, "solve", fails, r"fell short \(mixing rate 1\.0"),
        (module, "_solved", lambda graph: np.full(graph.n_edges, 0.01), "laplacian weights are"),
    ):
        graph = make_graph("geometric", 20, seed=0)
        monkeypatch.setattr(place, name, instead)
        with pytest.warns(VpemWarning, match=said):
            W = mixing_matrix(graph, "fastest")
        assert (mixing_matrix(graph, "laplacian") != W).nnz == 0


# ---- Chebyshev ----------------------------------------------------------------------------------


def accelerated(W, states, rate, n_rounds):
    """Run the recurrence of Chebyshev rounds as it is written."""
    before, now = states, states
    for step in chebyshev_steps(rate, n_rounds):
        before, now = now, step * (W @ now - before) + before
    return now


@over(n_rounds=[0, 1, 2, 3, 10, 31], weights=WEIGHTS, factor=[0.9, 1.0, 1.02])
def test_rounds_apply_the_polynomial(n_rounds, weights, factor):
    graph = make_graph("geometric", 25, seed=3)
    W = mixing_matrix(graph, weights).toarray()
    rate = min(factor * mixing_rate(W), 0.999)
    values, vectors = np.linalg.eigh(W)
    polynomial = Chebyshev.basis(n_rounds)
    scaled = polynomial(values / rate) / polynomial(1 / rate)
    expected = (vectors * scaled) @ vectors.T
    found = accelerated(W, np.eye(25), rate, n_rounds)
    np.testing.assert_allclose(found, expected, atol=1e-10)


@over(rate=[1e-6, 0.1, 0.9, 0.999], n_rounds=[0, 1, 2, 7])
def test_the_bound_is_one_over_the_polynomial(rate, n_rounds):
    expected = 1 / Chebyshev.basis(n_rounds)(1 / rate)
    assert chebyshev_bound(rate, n_rounds) == pytest.approx(expected, rel=1e-6)


def test_steps_and_bounds_at_the_ends():
    assert chebyshev_steps(0.9, 40)[-1] == pytest.approx(2 * (1 - np.sqrt(0.19)) / 0.81)
    assert chebyshev_steps(0.0, 5).tolist() == [1.0] * 5
    assert len(chebyshev_steps(0.5, 0)) == 0
    assert (chebyshev_bound(0.0, 3), chebyshev_bound(0.0, 0)) == (0.0, 1.0)
    assert 0 <= chebyshev_bound(0.5, 100_000) < 1e-300


@over(made=[("cycle", 9), ("path", 8), ("geometric", 40)], hops=[0, 1, 2], n_rounds=[1, 2, 17])
def test_the_operator_is_the_rounds(made, hops, n_rounds):
    topology, n = made
    graph = make_graph(topology, n, seed=0)
    W = mixing_matrix(graph)
    hubs = find_hubs(graph, hops)
    rate = mixing_rate(W)
    terms = np.random.default_rng(n).standard_normal((len(hubs), 11, 3))
    one, other = (
        ConsensusSum(W, hubs, n_rounds, rate=rate, path=path).reduce(terms)
        for path in ("operator", "rounds")
    )
    np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)
    # And both are the recurrence, read at the roots.
    start = np.empty((n, 33))
    for hub, term in zip(hubs, terms, strict=True):
        start[list(hub.agents)] = n / len(hub.agents) * term.ravel()
    by_hand = accelerated(W, start, rate, n_rounds)[[hub.root for hub in hubs]]
    np.testing.assert_allclose(one.reshape(by_hand.shape), by_hand, rtol=1e-10, atol=1e-10)


# ---- the fewest rounds --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:hops=:vpem.VpemWarning")
@over(
    made=[("cycle", 9), ("path", 12), ("geometric", 30), ("grid", 12), ("complete", 5)],
    hops=[0, 1, 2],
    tolerance=[1e-1, 1e-3, 1e-8, 1e-10],
    fast=[True, False],
)
def test_rounds_needed_are_the_fewest(made, hops, tolerance, fast):
    topology, n = made
    graph = make_graph(topology, n, seed=1)
    W = mixing_matrix(graph)
    hubs = find_hubs(graph, hops)
    rate = mixing_rate(W)
    if len(hubs) == 1:
        assert rounds_needed(W, hubs, rate, tolerance, accelerated=fast) == 0
        return
    enough = rounds_needed(W, hubs, rate, tolerance, accelerated=fast)
    given = rate if fast else None
    errors = [ConsensusSum(W, hubs, count, rate=given).error for count in range(enough + 1)]
    assert errors[-1] <= tolerance
    assert min(errors[:-1]) > tolerance
    bound = rounds_needed(W, hubs, rate, tolerance, accelerated=fast, by_bound=True)
    assert enough <= bound
    fall = [consensus_error_bound(rate, hubs, n, s, accelerated=fast) for s in (bound - 1, bound)]
    assert fall[1] <= tolerance < fall[0]


def test_rounds_needed_where_plain_rounds_are_very_many():
    graph = make_graph("path", 60)
    W = mixing_matrix(graph)
    hubs = find_hubs(graph, 1)
    enough = rounds_needed(W, hubs, mixing_rate(W), 1e-3)
    assert enough > 2000
    assert ConsensusSum(W, hubs, enough).error <= 1e-3 < ConsensusSum(W, hubs, enough - 1).error
    fast = rounds_needed(W, hubs, mixing_rate(W), 1e-3, accelerated=True)
    assert fast < enough / 10


RATE_GRAPHS = [
    ("cycle", 8), ("cycle", 31), ("path", 20), ("grid", 36), ("geometric", 50), ("geometric", 100),
    ("erdos-renyi", 60), ("small-world", 60), ("scale-free", 60), ("tree", 40), ("path", 2),
]  # fmt: skip


def estimate(graph, W, seed=0, n_rounds=None):
    ledger = Ledger(graph)
    found = estimate_rate(W, graph, ledger, n_rounds=n_rounds, seed=seed, diameter=diameter(graph))
    return found, ledger


@over(made=RATE_GRAPHS, seed=range(2), weights=["metropolis", "laplacian"])
def test_chebyshev_with_the_estimate_reaches_the_tolerance(made, seed, weights):
    topology, n = made
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


def test_too_low_a_rate_slows_and_too_high_a_rate_hardly_does():
    graph = make_graph("geometric", 40, seed=0)
    W, hubs = mixing_matrix(graph), find_hubs(graph, 0)
    gap, needed = 1 - mixing_rate(W), []
    for factor in (1.0, 0.8, 1.25, 2.0):
        rate = 1 - factor * gap
        errors = (ConsensusSum(W, hubs, n, rate=rate).error <= 1e-6 for n in itertools.count(1))
        needed.append(1 + next(n for n, enough in enumerate(errors) if enough))
    assert needed[0] <= needed[1] <= 1.2 * needed[0]
    assert 1.1 * needed[1] < needed[2] < needed[3]
    # The mean is kept whatever the rate.
    total = ConsensusSum(W, hubs, 50, rate=1 - 2 * gap)
    np.testing.assert_allclose(total.operator.sum(axis=1), len(hubs), rtol=1e-10)


@each(("topology", "n"), [("cycle", 9), ("geometric", 40)])
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


def test_a_seed_fixes_the_estimate():
    graph = make_graph("geometric", 50, seed=1)
    W = mixing_matrix(graph)
    again = [estimate(graph, W, 3) for _ in range(2)]
    assert again[0][0] == again[1][0]
    assert again[0][1].summary() == again[1][1].summary()
    assert len({estimate(graph, W, seed)[0] for seed in range(4)}) == 4


def test_a_sign_that_alternates_is_seen():
    graph = make_graph("cycle", 8)
    W = 1.4 * mixing_matrix(graph) - 0.4 * np.eye(8)  # its least eigenvalue leads
    values = np.linalg.eigvalsh(W)
    assert -values[0] > values[-2]
    found, _ = estimate(graph, W)
    assert found == pytest.approx(-values[0] + MARGIN * (1 + values[0]), rel=1e-2)


@each(("topology", "n"), [("complete", 2), ("complete", 12), ("path", 1)])
def test_where_one_round_is_exact_the_rate_is_next_to_nothing(topology, n):
    graph = make_graph(topology, n)
    found, ledger = estimate(graph, mixing_matrix(graph))
    if n == 1:
        assert (found, ledger.messages, ledger.rounds) == (0.0, 0, 0)
    else:
        assert 0 < found <= 10 * LEAST
        assert ledger.of_kind("setup")["rounds"] == 3
