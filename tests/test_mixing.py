"""The fastest mixing weights; rounds accelerated by Chebyshev's polynomials."""

import sys

import numpy as np
import pytest
from numpy.polynomial import Chebyshev

from vpem import InputError, VpemWarning, find_hubs, make_graph, mixing_matrix, mixing_rate
from vpem.network import mixing as module
from vpem.network.graph import from_edges
from vpem.network.mixing import MOST_FASTEST, chebyshev_bound, chebyshev_steps
from vpem.settings import WEIGHTS
from vpem.sums.consensus import ConsensusSum, consensus_error_bound, rounds_needed

from .tables import each, over, pairwise

RANDOM = [
    ("geometric", 20, {}),
    ("erdos-renyi", 15, {}),
    ("scale-free", 20, {}),
    ("small-world", 20, {}),
    ("tree", 15, {}),
    ("grid", 12, {}),
]

# ---- the fastest weights ------------------------------------------------------------------------


def norm(W):
    """Spectral norm of ``W - 11^T/N``."""
    return np.linalg.norm(W.toarray() - 1 / W.shape[0], 2)


@pairwise(made=RANDOM, seed=[0, 1])
def test_fastest_is_a_mixing_matrix_of_the_graph(made, seed):
    topology, n, options = made
    graph = make_graph(topology, n, seed=seed, **options)
    W = mixing_matrix(graph, "fastest")
    dense = W.toarray()
    np.testing.assert_array_equal(dense, dense.T)
    np.testing.assert_allclose(dense.sum(axis=1), 1.0, atol=1e-14)
    assert W.nnz == 2 * graph.n_edges + n
    off = dense - np.diag(np.diag(dense))
    allowed = np.zeros((n, n), dtype=bool)
    allowed[tuple(graph.edges.T)] = allowed[tuple(graph.edges[:, ::-1].T)] = True
    assert not off[~allowed].any()
    rate = mixing_rate(W)
    assert rate == pytest.approx(norm(W), abs=1e-12)
    for other in WEIGHTS:
        assert rate <= mixing_rate(mixing_matrix(graph, other)) + 1e-12


@pytest.mark.parametrize(("topology", "n", "options"), RANDOM)
def test_no_weights_near_the_fastest_are_faster(topology, n, options):
    # The problem is convex: what is least nearby is least.
    graph = make_graph(topology, n, seed=2, **options)
    W = mixing_matrix(graph, "fastest")
    one, two = graph.edges.T
    weight = W[one, two]
    best = mixing_rate(W)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(30):
            changed = weight + size * rng.standard_normal(len(weight)) / np.sqrt(len(weight))
            assert norm(module._weighted(graph, changed)) >= best - 1e-6


@each("n", [2, 3, 9])
def test_complete_graphs_mix_at_once(n):
    assert mixing_rate(mixing_matrix(make_graph("complete", n), "fastest")) == 0.0


def test_the_smallest_graphs():
    assert mixing_matrix(make_graph("path", 1), "fastest").toarray().tolist() == [[1.0]]
    pair = mixing_matrix(make_graph("path", 2), "fastest")
    np.testing.assert_allclose(pair.toarray(), 0.5)
    assert mixing_rate(pair) == 0.0


@each("n", [4, 5, 8, 13, 24])
def test_cycles_have_a_closed_form(n):
    # Edges of a cycle are all alike, so that one weight is best: 2 / (lambda_2 + lambda_max) of L.
    values = 2 - 2 * np.cos(2 * np.pi * np.arange(n) / n)
    second, last = np.sort(values)[[1, -1]]
    rate = mixing_rate(mixing_matrix(make_graph("cycle", n), "fastest"))
    assert rate == pytest.approx((last - second) / (last + second), abs=1e-12)


def test_a_star_among_agents_has_a_closed_form():
    # Edges alike again; the Laplacian's eigenvalues are 0, 1 and n.
    n = 7
    graph = from_edges([(0, other) for other in range(1, n)])
    rate = mixing_rate(mixing_matrix(graph, "fastest"))
    assert rate == pytest.approx((n - 1) / (n + 1), abs=1e-9)


def test_a_geometric_graph_gains():
    graph = make_graph("geometric", 50, seed=0)
    fastest = mixing_rate(mixing_matrix(graph, "fastest"))
    others = [mixing_rate(mixing_matrix(graph, name)) for name in WEIGHTS if name != "fastest"]
    assert fastest == pytest.approx(0.9344325, abs=1e-6)  # as two other solvers find
    assert (1 - fastest) > 1.5 * (1 - min(others))


def test_negative_weights_are_kept_where_they_help():
    graph = make_graph("geometric", 30, seed=1)
    W = mixing_matrix(graph, "fastest")
    assert W.data.min() < -1e-3
    state = np.random.default_rng(0).standard_normal(30)
    assert (W @ state).mean() == pytest.approx(state.mean(), abs=1e-14)


def test_too_many_agents_are_refused():
    graph = make_graph("cycle", MOST_FASTEST + 1)
    with pytest.raises(InputError, match=r"at most 150 agents, the graph has 151; try laplacian"):
        mixing_matrix(graph, "fastest")


def test_disconnected_graphs_are_refused():
    with pytest.raises(InputError, match="2 components"):
        mixing_matrix(from_edges([(0, 1), (2, 3)]), "fastest")


@pairwise(absent=["cvxpy", "cvxopt"], topology=["grid", "complete"])
def test_without_cvxpy_the_extra_is_named(monkeypatch, absent, topology):
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(InputError, match=r"pip install 'vpem\[sdp\]'"):
        mixing_matrix(make_graph(topology, 6), "fastest")


def test_a_solver_that_falls_short_is_told_of(monkeypatch):
    graph = make_graph("geometric", 20, seed=0)
    monkeypatch.setattr(module, "_solved", lambda graph: np.full(graph.n_edges, 0.01))
    with pytest.warns(VpemWarning, match="fell short .* laplacian weights are taken"):
        W = mixing_matrix(graph, "fastest")
    assert (mixing_matrix(graph, "laplacian") != W).nnz == 0


def test_a_solver_that_fails_is_told_of(monkeypatch):
    import cvxpy

    def fails(*_, **__):
        raise cvxpy.error.SolverError("no")

    monkeypatch.setattr(cvxpy.Problem, "solve", fails)
    with pytest.warns(VpemWarning, match=r"fell short \(mixing rate 1\.0"):
        W = mixing_matrix(make_graph("grid", 9), "fastest")
    assert mixing_rate(W) < 1


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


def test_steps_by_their_recurrence():
    rate = 0.9
    steps = chebyshev_steps(rate, 40)
    assert steps[0] == 1.0
    assert steps[1] == pytest.approx(2 / (2 - rate**2))
    np.testing.assert_allclose(steps[2:], 1 / (1 - rate**2 * steps[1:-1] / 4))
    assert steps[-1] == pytest.approx(2 * (1 - np.sqrt(1 - rate**2)) / rate**2)  # its limit
    assert chebyshev_steps(0.0, 5).tolist() == [1.0] * 5
    assert len(chebyshev_steps(0.5, 0)) == 0


@over(rate=[1e-6, 0.1, 0.9, 0.999], n_rounds=[0, 1, 2, 7])
def test_the_bound_is_one_over_the_polynomial(rate, n_rounds):
    expected = 1 / Chebyshev.basis(n_rounds)(1 / rate)
    assert chebyshev_bound(rate, n_rounds) == pytest.approx(expected, rel=1e-6)


def test_bounds_at_the_ends():
    assert chebyshev_bound(0.0, 3) == 0.0
    assert chebyshev_bound(0.0, 0) == 1.0
    assert 0 <= chebyshev_bound(0.5, 100_000) < 1e-300


@over(seed=range(4), weights=WEIGHTS)
def test_the_mean_is_kept_at_every_round_and_the_bound_holds(seed, weights):
    W = mixing_matrix(make_graph("small-world", 30, seed=seed), weights)
    rate = mixing_rate(W)
    states = np.random.default_rng(seed).standard_normal((30, 4))
    start = np.linalg.norm(states - states.mean(axis=0), axis=0)
    for n_rounds in range(40):
        now = accelerated(W, states, rate, n_rounds)
        np.testing.assert_allclose(now.mean(axis=0), states.mean(axis=0), atol=1e-13)
        left = np.linalg.norm(now - now.mean(axis=0), axis=0)
        assert (left <= chebyshev_bound(rate, n_rounds) * start + 1e-12).all()


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


@over(mean_degree=[9.7, 25.0], hops=[0, 1], seed=[0, 1, 2])
def test_a_third_of_the_rounds_do_what_a_hundred_plain_ones_do(mean_degree, hops, seed):
    graph = make_graph("geometric", 100, mean_degree=mean_degree, seed=seed)
    W = mixing_matrix(graph)
    hubs = find_hubs(graph, hops, seed=seed)
    plain = ConsensusSum(W, hubs, 100)
    fast = ConsensusSum(W, hubs, 33, rate=mixing_rate(W))
    assert fast.error <= plain.error


# ---- the fewest rounds --------------------------------------------------------------------------


@over(
    made=[("cycle", 9), ("path", 12), ("geometric", 30)],
    hops=[0, 1],
    tolerance=[1e-2, 1e-6],
    fast=[True, False],
)
def test_rounds_needed_are_the_fewest(made, hops, tolerance, fast):
    topology, n = made
    graph = make_graph(topology, n, seed=1)
    W = mixing_matrix(graph)
    hubs = find_hubs(graph, hops)
    rate = mixing_rate(W)
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
