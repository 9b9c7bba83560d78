"""Eccentricities and the diameter against networkx; the kernel against its twin."""

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vpem import make_graph
from vpem._core import balls
from vpem.network.graph import from_networkx
from vpem.network.hubs import diameter, eccentricities
from vpem.settings import TOPOLOGIES

from .tables import each, over
from .twins import codecs as twins


def as_networkx(graph):
    oracle = nx.empty_graph(graph.n_nodes)
    oracle.add_edges_from(graph.edges.tolist())
    return oracle


@over(topology=TOPOLOGIES, n=[1, 2, 3, 7, 40], seed=[0, 1])
def test_topologies(topology, n, seed):
    graph = make_graph(topology, n, seed=seed)
    expected = nx.eccentricity(as_networkx(graph))
    found = eccentricities(graph)
    assert found.tolist() == [expected[node] for node in range(graph.n_nodes)]
    assert diameter(graph) == found.max()


@given(st.integers(2, 30), st.floats(0.0, 0.5), st.integers(0, 2**31 - 1))
@settings(max_examples=60, deadline=None)
def test_random_graphs(n, density, seed):
    oracle = nx.gnp_random_graph(n, density, seed=seed)
    tree = nx.random_labeled_tree(n, seed=seed)
    oracle.add_edges_from(tree.edges)
    graph = from_networkx(oracle, n)
    expected = nx.eccentricity(oracle)
    assert eccentricities(graph).tolist() == [expected[node] for node in range(n)]
    assert diameter(graph) == nx.diameter(oracle)


def test_long_graphs_take_few_searches(monkeypatch):
    searches = []

    def counted(*arguments):
        searches.append(arguments[2])
        return balls.hops_from(*arguments)

    monkeypatch.setattr("vpem.network.hubs.hops_from", counted)
    assert diameter(make_graph("path", 5000)) == 4999
    assert len(searches) <= 10
    searches.clear()
    graph = make_graph("geometric", 1000, mean_degree=10, seed=0)
    assert diameter(graph) == nx.diameter(as_networkx(graph), usebounds=True)
    assert len(searches) <= 100


@each("seed", range(10))
def test_the_kernel_is_its_twin(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    oracle = nx.gnp_random_graph(n, 2.0 / n, seed=seed)  # most have parts that are not reached
    indptr, indices = from_networkx(oracle, n).adjacency
    for root in range(n):
        steps, twin = np.full((2, n), 77, dtype=np.int32)
        queue = np.empty(n, dtype=np.int32)
        found = balls.hops_from(indptr, indices, root, steps, queue)
        expected = twins.hops_from(indptr, indices, root, twin, queue.copy())
        np.testing.assert_array_equal(steps, twin)
        assert found == expected == steps.max()
        lengths = nx.single_source_shortest_path_length(oracle, root)
        assert steps.tolist() == [lengths.get(node, -1) for node in range(n)]
