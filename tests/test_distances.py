"""Eccentricities and the diameter against networkx."""

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from vpem import make_graph
from vpem._core import balls
from vpem.network.graph import from_networkx
from vpem.network.hubs import diameter, eccentricities
from vpem.settings import TOPOLOGIES

from .tables import over


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
@settings(max_examples=30, deadline=None)
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
    assert diameter(make_graph("path", 2000)) == 1999
    assert len(searches) <= 10
    searches.clear()
    graph = make_graph("geometric", 500, mean_degree=10, seed=0)
    assert diameter(graph) == nx.diameter(as_networkx(graph), usebounds=True)
    assert len(searches) <= 100
