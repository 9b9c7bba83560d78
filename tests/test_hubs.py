import warnings

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpem._core import balls
from vpem.errors import InputError, VpemWarning
from vpem.network.graph import from_edges, from_networkx, make_graph
from vpem.network.hubs import Hub, find_hubs
from vpem.settings import TOPOLOGIES

from .tables import each, over
from .twins import codecs as twins

# The nine agents of Valdeira et al., section 6, numbered from 1.
NINE = [(2, 1), (2, 3), (2, 4), (2, 5), (5, 6), (6, 7), (6, 8), (5, 9)]


def quiet_hubs(graph, hops, seed=0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        return find_hubs(graph, hops, seed)


def check_greedy(oracle, hops, hubs):
    """Check each hub against all balls of what is left when it is taken."""
    left = oracle.copy()
    for hub in hubs:
        near = {v: set(nx.single_source_shortest_path_length(left, v, cutoff=hops)) for v in left}
        assert set(hub.agents) == near[hub.root]
        assert len(hub.agents) == max(map(len, near.values()))
        assert list(hub.agents) == sorted(hub.agents)
        left.remove_nodes_from(hub.agents)
    assert len(left) == 0


@each("seed", range(10))
def test_the_nine_agents_of_the_paper(seed):
    graph = from_edges([(i - 1, j - 1) for i, j in NINE], 9)
    hubs = find_hubs(graph, 1, seed)
    assert hubs == [Hub(1, (0, 1, 2, 3, 4)), Hub(5, (5, 6, 7)), Hub(8, (8,))]


@given(
    st.integers(1, 14),
    st.floats(0.05, 0.7),
    st.integers(1, 6),
    st.integers(0, 2**31 - 1),
)
@settings(max_examples=60, deadline=None)
def test_hubs_are_the_greedy_ones(n, p, hops, seed):
    oracle = nx.gnp_random_graph(n, p, seed=seed)
    hubs = quiet_hubs(from_networkx(oracle, n), hops, seed)
    check_greedy(oracle, hops, hubs)


@over(topology=[name for name in TOPOLOGIES if name != "star"], hops=[1, 2, 3, 5, 100])
def test_hubs_of_every_topology_are_the_greedy_ones(topology, hops):
    for seed in (0, 1):
        graph = make_graph(topology, 45, seed=seed)
        oracle = nx.empty_graph(45)
        oracle.add_edges_from(graph.edges.tolist())
        check_greedy(oracle, hops, quiet_hubs(graph, hops, seed))


def test_balls_never_reach_through_removed_agents():
    # A star with rays of two: once the middle has gone, the tips are alone.
    graph = from_edges([(0, i) for i in range(1, 6)] + [(i, i + 5) for i in range(1, 6)], 11)
    hubs = find_hubs(graph, 1)
    assert hubs[0] == Hub(0, (0, 1, 2, 3, 4, 5))
    assert sorted(hub.agents for hub in hubs[1:]) == [(i,) for i in range(6, 11)]


@each("topology", TOPOLOGIES)
def test_without_hops_every_agent_is_a_hub(topology):
    for n in (1, 2, 9):
        graph = make_graph(topology, n)
        assert find_hubs(graph, 0, seed=3) == [Hub(agent, (agent,)) for agent in range(n)]


def test_a_seed_fixes_the_hubs():
    graph = make_graph("cycle", 30)
    assert find_hubs(graph, 1, 5) == find_hubs(graph, 1, 5)
    assert find_hubs(graph, 1, 5) == find_hubs(graph, 1, np.random.default_rng(5))
    assert len({tuple(find_hubs(graph, 1, seed)) for seed in range(10)}) == 10


def test_every_tied_agent_is_equally_likely_to_be_the_first_root():
    graph = make_graph("cycle", 6)
    roots = [find_hubs(graph, 1, seed)[0].root for seed in range(1200)]
    counts = np.bincount(roots, minlength=6)
    assert counts.sum() == 1200
    assert np.abs(counts - 200).max() < 65  # five standard deviations


def test_every_tied_agent_is_reached_below_the_top_too():
    # The middle of a star comes first; each of the paths of two left over is tied.
    edges = [(0, i) for i in range(1, 8)] + [(i, i + 7) for i in (1, 2)] + [(8, 10), (9, 11)]
    graph = from_edges([*edges, (3, 12)], 13)
    seconds = {find_hubs(graph, 1, seed)[1].root for seed in range(60)}
    assert seconds == {8, 9, 10, 11}


def test_a_star_with_hops_centralizes_at_the_server():
    for n in (1, 5):
        with pytest.warns(VpemWarning, match="the server receives the raw features of every agent"):
            hubs = find_hubs(make_graph("star", n), 1)
        assert hubs == [Hub(n, tuple(range(n)))]


def test_one_hub_of_all_agents_warns_and_names_the_root():
    star = from_edges([("mid", end) for end in "abc"])
    with pytest.warns(VpemWarning, match="hops=1 centralizes the data: mid receives"):
        assert find_hubs(star, 1) == [Hub(3, (0, 1, 2, 3))]
    with pytest.warns(VpemWarning, match="agent 0 receives"):
        find_hubs(from_networkx(nx.star_graph(4)), 1)


def test_one_agent_alone_does_not_warn():
    assert find_hubs(make_graph("cycle", 1), 2) == [Hub(0, (0,))]


def test_huge_hops_are_the_whole_graph():
    with pytest.warns(VpemWarning, match="centralizes"):
        assert find_hubs(make_graph("path", 50), 10**30)[0].agents == tuple(range(50))


@each("hops", [-1, 1.5, "1", None, True])
def test_hops_that_are_no_count_are_refused(hops):
    with pytest.raises(InputError, match="hops must be an integer of at least 0"):
        find_hubs(make_graph("cycle", 5), hops)


def test_a_wrong_seed_is_refused():
    with pytest.raises(InputError, match="seed must be an integer"):
        find_hubs(make_graph("cycle", 5), 1, -3)


@each("seed", range(6))
def test_the_kernel_equals_its_twin(seed):
    rng = np.random.default_rng(seed)
    n = 40
    graph = from_networkx(nx.gnp_random_graph(n, 0.08, seed=seed), n)
    removed = rng.random(n) < 0.3
    results = []
    for module in (balls, twins):
        stamp = np.where(removed, np.iinfo(np.int32).max, 0).astype(np.int32)
        queue = np.full(n, -1, np.int32)
        found = []
        for mark, (root, hops) in enumerate(
            ((root, hops) for root in np.flatnonzero(~removed).tolist() for hops in range(6)), 1
        ):
            size = module.ball(*graph.adjacency, root, hops, stamp, mark, queue)
            found.append((size, queue[:size].tolist(), stamp.tolist()))
        results.append(found)
    assert results[0] == results[1]
    assert max(size for size, _, _ in results[0]) > 3
