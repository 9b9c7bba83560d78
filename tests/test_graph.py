"""Graphs of agents: topologies, from labels and files, how they mix; and who holds what."""

import json
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.networks import EDGE_LISTS, read_graph, read_partition
from vpem.network.graph import Graph, check_connected, from_edges, from_networkx, make_graph
from vpem.network.mixing import mixing_matrix, mixing_rate
from vpem.network.partition import Partition, contiguous, from_agent_of_feature, from_lists
from vpem.settings import TOPOLOGIES

from .tables import each, over

WEIGHTS = ("metropolis", "laplacian", "max-degree")  # "fastest": see test_mixing.py
RANDOM = ("geometric", "erdos-renyi", "small-world", "scale-free", "tree")
MIXING = [topology for topology in TOPOLOGIES if topology != "star"]


def to_networkx(graph):
    oracle = nx.empty_graph(graph.n_nodes)
    oracle.add_edges_from(graph.edges.tolist())
    return oracle


def dense_rate(W):
    n = W.shape[0]
    return np.abs(np.linalg.eigvalsh(W.toarray() - 1.0 / n)).max()


# --- topologies


@over(topology=TOPOLOGIES, n=[1, 2, 3, 4, 5, 7, 12, 31])
def test_every_topology_is_connected_and_in_order(topology, n):
    graph = make_graph(topology, n, seed=n)
    assert graph.topology == topology
    assert graph.n_nodes == n + (topology == "star")
    assert nx.is_connected(to_networkx(graph))
    check_connected(graph)
    assert (graph.edges[:, 0] < graph.edges[:, 1]).all()
    edges = [tuple(edge) for edge in graph.edges.tolist()]
    assert edges == sorted(set(edges))
    oracle, (indptr, indices) = to_networkx(graph), graph.adjacency
    assert indptr.dtype == indices.dtype == np.int32
    for node in range(graph.n_nodes):
        assert indices[indptr[node] : indptr[node + 1]].tolist() == sorted(oracle[node])
        assert graph.degrees[node] == oracle.degree(node)
    assert graph.mean_degree == pytest.approx(np.mean([d for _, d in oracle.degree]))


@each(
    ("topology", "n", "oracle"),
    [
        ("star", 6, nx.star_graph(6)), ("cycle", 7, nx.cycle_graph(7)),
        ("cycle", 2, nx.path_graph(2)), ("path", 7, nx.path_graph(7)),
        ("complete", 7, nx.complete_graph(7)), ("grid", 12, nx.grid_2d_graph(3, 4)),
        ("grid", 27, nx.grid_2d_graph(3, 9)), ("erdos-renyi", 5, nx.complete_graph(5)),
    ],
)  # fmt: skip
def test_fixed_topologies(topology, n, oracle):
    assert nx.is_isomorphic(to_networkx(make_graph(topology, n)), oracle)


def test_star_has_a_server_after_its_agents():
    graph = make_graph("star", 3, names=("a", "b", "c"))
    assert graph.has_server
    assert graph.edges.tolist() == [[0, 3], [1, 3], [2, 3]]
    assert graph.name(1) == "b"
    assert graph.name(3) == "the server"


def test_incomplete_grid_has_rows_of_the_root_of_n():
    graph = make_graph("grid", 7)
    assert graph.positions.tolist() == [[i % 3, i // 3] for i in range(7)]
    near = np.abs(graph.positions[:, None] - graph.positions[None]).sum(axis=-1) == 1
    assert graph.edges.tolist() == np.argwhere(np.triu(near)).tolist()


@each("topology", RANDOM)
def test_a_seed_fixes_the_graph_and_another_changes_it(topology):
    graphs = [make_graph(topology, 40, seed=seed).edges for seed in (0, 0, 1, 2)]
    assert np.array_equal(graphs[0], graphs[1])
    assert not np.array_equal(graphs[0], graphs[2])
    assert not np.array_equal(graphs[2], graphs[3])
    generator = make_graph(topology, 40, seed=np.random.default_rng(0)).edges
    assert np.array_equal(graphs[0], generator)


@each("mean_degree", [8.0, 11.3, 60.0, 199.0])
def test_geometric_joins_the_nearest_pairs_of_the_mean_degree(mean_degree):
    graph = make_graph("geometric", 200, seed=1, mean_degree=mean_degree)
    assert abs(graph.n_edges - 200 * mean_degree / 2) <= 0.5
    distance = np.linalg.norm(graph.positions[:, None] - graph.positions[None], axis=-1)
    joined = np.zeros((200, 200), bool)
    joined[graph.edges[:, 0], graph.edges[:, 1]] = True
    apart = np.triu(~joined, 1)
    assert not apart.any() or distance[joined].max() < distance[apart].min()


def test_geometric_with_a_radius_joins_what_is_nearer():
    graph = make_graph("geometric", 60, seed=2, radius=0.3)
    distance = np.linalg.norm(graph.positions[:, None] - graph.positions[None], axis=-1)
    assert graph.edges.tolist() == np.argwhere(np.triu(distance <= 0.3, 1)).tolist()
    assert (graph.positions >= 0).all()
    assert (graph.positions <= 1).all()


def test_default_mean_degrees():
    assert make_graph("geometric", 300).mean_degree == pytest.approx(2 * np.log(300), abs=0.01)
    assert make_graph("geometric", 5).mean_degree == 4.0
    assert make_graph("small-world", 300).mean_degree == 4.0
    assert make_graph("scale-free", 300).mean_degree == pytest.approx(4, abs=0.05)
    degrees = [make_graph("erdos-renyi", 300, seed=seed).mean_degree for seed in range(8)]
    assert np.mean(degrees) == pytest.approx(2 * np.log(300), abs=0.2)


@each("wanted", [2, 5, 9, 14])
def test_small_world_and_scale_free_take_the_nearest_degree(wanted):
    n = 30
    small = make_graph("small-world", n, seed=5, mean_degree=wanted).mean_degree
    assert small % 2 == 0
    assert abs(small - wanted) <= 1
    possible = [2 * m * (n - m) / n for m in range(1, n)]
    free = make_graph("scale-free", n, seed=5, mean_degree=wanted).mean_degree
    assert abs(free - wanted) == pytest.approx(min(abs(p - wanted) for p in possible))
    for n, most in ((10, "5"), (9, "4.444")):
        with pytest.warns(VpemWarning, match=f"mean degree of {most} at most"):
            found = make_graph("scale-free", n, mean_degree=n - 1).mean_degree
        assert f"{found:.4g}" == most


def test_trees_are_uniform_over_labelled_trees():
    shapes = [tuple(map(tuple, make_graph("tree", 4, seed=s).edges.tolist())) for s in range(400)]
    counts = Counter(shapes)
    assert len(counts) == 16  # Cayley: 4^2
    assert min(counts.values()) > 6
    assert max(counts.values()) < 52


def test_disconnected_draws_are_drawn_again_until_it_is_an_error():
    # At this density about three draws in four are disconnected.
    for seed in range(8):
        check_connected(make_graph("erdos-renyi", 20, seed=seed, mean_degree=3))
    with pytest.raises(InputError, match=r"none of 100 geometric .* raise radius"):
        make_graph("geometric", 50, radius=0.001)
    with pytest.raises(InputError, match=r"none of 100 erdos-renyi .* raise mean_degree"):
        make_graph("erdos-renyi", 100, mean_degree=0.5)


@each(
    ("arguments", "options", "message"),
    [
        (("cyle", 5), {}, "did you mean 'cycle'"),
        ((3, 5), {}, "topology must be one of"),
        (("cycle", 0), {}, "n_agents must be an integer of at least 1, got 0"),
        (("cycle", 2.5), {}, "n_agents must be an integer"),
        (("cycle", True), {}, "n_agents must be an integer"),
        (("cycle", 5), {"radius": 0.1}, "radius is for geometric, a cycle graph has none"),
        (("tree", 5), {"mean_degree": 3}, "mean_degree is for geometric, erdos-renyi"),
        (("star", 5), {"mean_degree": 3}, "a star graph has none"),
        (("geometric", 9), {"radius": 0.5, "mean_degree": 3}, "not both"),
        (("geometric", 9), {"radius": 0}, "radius must be a number above 0, got 0"),
        (("geometric", 9), {"radius": float("nan")}, "radius must be"),
        (("geometric", 9), {"radius": float("inf")}, "radius must be"),
        (("geometric", 9), {"radius": "wide"}, "radius must be"),
        (("geometric", 9), {"mean_degree": 9}, "above 0 and at most 8 for 9 agents, got 9"),
        (("small-world", 9), {"mean_degree": -1}, "above 0 and at most 8"),
        (("erdos-renyi", 9), {"mean_degree": float("nan")}, "above 0 and at most 8"),
        (("erdos-renyi", 1), {"mean_degree": 2}, "single agent"),
        (("cycle", 5), {"seed": -1}, "seed must be an integer of at least 0"),
        (("cycle", 5), {"seed": "x"}, "seed must be an integer"),
        (("cycle", 3), {"names": ("a", "b")}, "3 agents but 2 names"),
        (("cycle", 3), {"names": ("a", "b", "a")}, "stand twice: a"),
        (("cycle", 3), {"names": "abc"}, "must be a list of names"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(arguments, options, message):
    with pytest.raises(InputError, match=message):
        make_graph(*arguments, **options)


@each("edges", [[[1, 0]], [[0, 0]], [[0, 3]], [[1, 2], [0, 1]], [[0, 1], [0, 1]]])
def test_graph_refuses_edges_out_of_order(edges):
    with pytest.raises(InputError, match="ascending order"):
        Graph(3, np.array(edges), "custom")


# --- graphs from labels


@each(
    ("edges", "options", "expected", "names"),
    [
        ([(2, 1), (0, 1), (1, 2), ("0", "1")], {"n_agents": 4}, [[0, 1], [1, 2]], None),
        *[(np.array([[1, 0], [2, 1]]).astype(kind), {"n_agents": 3}, [[0, 1], [1, 2]], None)
          for kind in (np.int32, np.int64, np.float64, "S4", "U4", object)],
        # Names go before numbers.
        ([("lab", "ward"), ("ward", "clinic")], {"names": ["clinic", "lab", "ward"]},
         [[0, 2], [1, 2]], ("clinic", "lab", "ward")),
        ([(1, 2)], {"names": ["2", "1", "0"]}, [[0, 1]], ("2", "1", "0")),
        ([(0, 2)], {"names": ["a", "b", "c"]}, [[0, 2]], ("a", "b", "c")),
        # Labels without names become names, in natural order.
        ([("b10", "b2"), ("a", "b10")], {}, [[0, 2], [1, 2]], ("a", "b2", "b10")),
        ([(10, 9), *((i, i + 1) for i in range(1, 9))], {"n_agents": 10},
         [[i, i + 1] for i in range(9)], tuple(str(i) for i in range(1, 11))),
        ([], {"n_agents": 1}, [], None),
    ],
)  # fmt: skip
def test_from_edges_matches_names_then_numbers_then_labels(edges, options, expected, names):
    graph = from_edges(edges, **options)
    assert graph.edges.tolist() == expected
    assert graph.names == names
    assert (graph.topology, graph.has_server) == ("custom", False)
    assert from_edges(edges, topology="dataset", **options).topology == "dataset"


def test_an_agent_of_no_edge_is_lonely():
    graph = from_edges([(0, 1)], 4, names=["a", "b", "c", "d"])
    assert graph.degrees.tolist() == [1, 1, 0, 0]
    with pytest.raises(InputError, match=r"3 components, \(a, b\), \(c\), \(d\)"):
        check_connected(graph)


def test_from_networkx_takes_any_kind_of_graph():
    oracle, shuffled = nx.gnp_random_graph(15, 0.3, seed=0), nx.Graph()
    shuffled.add_nodes_from(np.random.default_rng(0).permutation(15).tolist())
    shuffled.add_edges_from((v, u) for u, v in oracle.edges)
    graph = from_networkx(shuffled, 15)
    assert sorted(map(tuple, graph.edges.tolist())) == sorted(oracle.edges)
    for kind in (nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph):
        graph = from_networkx(kind([(0, 1), (1, 0), (1, 2)]))
        assert graph.edges.tolist() == [[0, 1], [1, 2]]
    grid = from_networkx(nx.grid_2d_graph(3, 4))
    assert nx.is_isomorphic(to_networkx(grid), nx.grid_2d_graph(3, 4))
    assert grid.names[5] == "(1, 1)"
    star = from_networkx(nx.star_graph(4), 5)  # is a graph among agents
    assert not star.has_server
    assert mixing_matrix(star).shape == (5, 5)


def test_self_loops_are_dropped_with_a_warning():
    with pytest.warns(VpemWarning, match="self-loops of the graph were dropped, at 1"):
        graph = from_edges([(0, 1), (1, 1)])
    assert graph.edges.tolist() == [[0, 1]]


@each(
    ("make", "message"),
    [
        (lambda: from_networkx(nx.path_graph(4), 5), "has 4 nodes but there are 5 agents"),
        (lambda: from_networkx(nx.path_graph(6), 5), "has 6 nodes but there are 5 agents"),
        (lambda: from_networkx(nx.path_graph(2), names=["a"]), "2 nodes but there are 1 agents"),
        (lambda: from_networkx(nx.Graph()), "has no nodes"),
        (lambda: from_networkx(nx.Graph([(1, "1")])), "stand for two nodes each: 1"),
        (lambda: from_networkx([[0, 1]]), "expected a networkx graph, got list"),
        (lambda: from_edges([]), "has no nodes"),
        (lambda: from_edges([(0, 3), (1, 2), (0, 1)], 3), "has 4 nodes but there are 3 agents"),
        (lambda: from_edges([("a", "b")], 3), "need the names of the agents: a, b"),
        (lambda: from_edges([("a", "z")], names=["a", "b"]), "are no agents: z; the agents are a"),
        (lambda: from_edges([(0, 2)], names=["a", "b"]), "are no agents: 0, 2"),
        (lambda: from_edges([(0, 1), (0, 1, 2)]), r"edge 1 must be a pair of nodes, got \(0, 1, 2"),
        (lambda: from_edges(["ab"]), "edge 0 must be a pair of nodes, got 'ab'"),
        (lambda: from_edges([0, 1]), "edge 0 must be a pair of nodes, got 0"),
        (lambda: from_edges([(0, 1)], 2, names=["a"]), "2 agents but 1 names"),
        (lambda: from_edges([(0, 1)], "two"), "n_agents must be an integer"),
        (lambda: mixing_matrix(make_graph("star", 4)), "server takes the exact sum"),
        (lambda: mixing_matrix(make_graph("cycle", 4), "metropols"), "did you mean 'metropolis'"),
        (lambda: mixing_rate(np.ones((2, 3))), "square"),
        (lambda: mixing_rate(np.array([[0.5, 0.5], [0.2, 0.8]])), "symmetric with rows"),
        (lambda: mixing_rate(np.full((2, 2), np.nan)), "symmetric with rows"),
    ],
)
def test_labels_and_weights_that_do_not_fit_are_refused_in_a_sentence(make, message):
    with pytest.raises(InputError, match=message):
        make()


# --- mixing


@over(weights=WEIGHTS, topology=MIXING, n=[1, 2, 3, 10, 41])
def test_mixing_matrix_is_symmetric_stochastic_and_sparse_and_contracts_at_its_rate(
    weights, topology, n
):
    graph = make_graph(topology, n, seed=4)
    W = mixing_matrix(graph, weights)
    dense = W.toarray()
    assert np.array_equal(dense, dense.T)
    np.testing.assert_allclose(dense.sum(axis=1), 1.0, atol=1e-14)
    joined = nx.to_numpy_array(to_networkx(graph)) > 0
    assert np.array_equal((dense != 0) & ~np.eye(n, dtype=bool), joined)
    assert W.nnz == 2 * graph.n_edges + n
    assert W.has_sorted_indices
    assert (W.indices.dtype, W.indptr.dtype, W.dtype) == (np.int32, np.int32, np.float64)
    rate = mixing_rate(W)
    assert rate < 1
    assert rate == pytest.approx(dense_rate(W), abs=1e-12)


def test_metropolis_and_max_degree_by_hand():
    graph = from_edges([(0, 1), (1, 2), (1, 3)])
    quarter = 0.25
    expected = np.diag([0.75, 0.25, 0.75, 0.75])
    expected[1, [0, 2, 3]] = expected[[0, 2, 3], 1] = quarter
    np.testing.assert_allclose(mixing_matrix(graph).toarray(), expected)
    longer = from_edges([(0, 1), (1, 2), (1, 3), (3, 4)])
    assert mixing_matrix(longer)[3, 4] == pytest.approx(1 / 3)
    assert mixing_matrix(longer, "max-degree")[3, 4] == pytest.approx(1 / 4)


@each("topology", ["path", "grid", "geometric", "scale-free", "tree"])
def test_the_laplacian_constant_is_the_best_one(topology):
    graph = make_graph(topology, 25, seed=6)
    best = mixing_rate(mixing_matrix(graph, "laplacian"))
    L = nx.laplacian_matrix(to_networkx(graph), nodelist=range(25)).toarray()
    values = np.linalg.eigvalsh(L.astype(float))
    assert best == pytest.approx((values[-1] - values[1]) / (values[-1] + values[1]), abs=1e-12)
    alpha = 2 / (values[-1] + values[1])
    for factor in (0.9, 0.99, 1.01, 1.1):
        assert mixing_rate(np.eye(25) - factor * alpha * L) > best + 1e-6


def test_cycle_rates_are_known():
    assert mixing_rate(mixing_matrix(make_graph("cycle", 8))) == pytest.approx(0.80474, abs=5e-6)
    for n in (8, 401, 10_000):
        rate = mixing_rate(mixing_matrix(make_graph("cycle", n)))
        assert rate == pytest.approx(1 / 3 + 2 / 3 * np.cos(2 * np.pi / n), abs=1e-12)


@over(n=[2, 9, 410], weights=WEIGHTS)
def test_a_complete_graph_mixes_in_one_round(n, weights):
    assert mixing_rate(mixing_matrix(make_graph("complete", n), weights)) == 0.0


@over(
    weights=WEIGHTS,
    graph=[("path", None), ("grid", None), ("tree", None), ("geometric", 12), ("scale-free", 10)],
)
def test_sparse_eigenvalues_equal_dense_ones(graph, weights):
    topology, degree = graph
    W = mixing_matrix(make_graph(topology, 410, seed=1, mean_degree=degree), weights)
    assert mixing_rate(W) == mixing_rate(W.copy())
    assert mixing_rate(W) == pytest.approx(dense_rate(W), abs=1e-10)


def test_a_slow_graph_with_many_edges_is_factorised():
    # A long ladder: too slow for Lanczos, too many edges for a tree.
    n = 4000
    edges = [(i, j) for i in range(n) for j in (i + 1, i + 2) if j < n]
    W = mixing_matrix(from_edges(edges, n), "max-degree")
    alpha = 1 / 5
    square = (np.arange(n) + 0.5) * np.pi / n
    mode = np.cos(square)  # the slowest mode of a path, nearly that of the ladder
    quotient = 1 - alpha * sum(((mode[i] - mode[j]) ** 2) for i, j in edges) / (mode @ mode)
    rate = mixing_rate(W)
    assert quotient <= rate < 1
    assert 1 - rate == pytest.approx(1 - quotient, rel=1e-3)


def test_a_disconnected_graph_never_agrees():
    graph = from_edges([(0, 1), (2, 3)])
    assert mixing_rate(mixing_matrix(graph)) == pytest.approx(1.0)
    with pytest.raises(InputError, match=r"2 components, \(0, 1\), \(2, 3\)"):
        mixing_matrix(graph, "laplacian")


@each("n", [5, 450])
def test_the_negative_end_of_the_spectrum_counts(n):
    graph = make_graph("cycle", n)
    L = nx.laplacian_matrix(to_networkx(graph), nodelist=range(n)).toarray()
    W = np.eye(n) - 0.6 * L
    assert mixing_rate(W) == pytest.approx(0.6 * np.linalg.eigvalsh(L)[-1] - 1, abs=1e-10)


# --- graphs from files

PATH = [[0, 1], [1, 2]]


@pytest.fixture
def write(tmp_path):
    def save(name, content):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return save


@over(
    ending=EDGE_LISTS,
    content=[
        "0 1\n1 2\n",
        "# a path\n\n0 1  # first\n  2   1\n0 1",
        "0,1\n1, 2\n",
        "0\t1\r\n1\t2\r\n",
        "source,target\n0,1\n1,2\n",
        '"From","To"\n"0","1"\n"1","2"\n',
        "\ufeff0 1\n1 2\n",
        "0 1 {}\n1 2 {}\n",
        "0,1,\n1,2,\n",
    ],
)
def test_edge_lists(write, ending, content):
    graph = read_graph(write("g" + ending, content))
    assert graph.edges.tolist() == PATH
    assert graph.topology == "file"
    assert graph.names is None


def test_edge_list_of_names_with_blanks(write):
    file = write("g.csv", "north ward, south ward\nsouth ward, lab")
    names = ("lab", "north ward", "south ward")
    graph = read_graph(file, 3, names)
    assert graph.edges.tolist() == [[0, 2], [1, 2]]
    assert graph.names == names
    assert read_graph(file).names == names


def test_columns_after_the_nodes_are_ignored_with_a_warning(write):
    for content in ("0 1 2.5\n1 2 1e3\n", "0 1 {'weight': 3}\n1 2 {'weight': 4}\n"):
        with pytest.warns(VpemWarning, match="not used, here on 2 lines"):
            graph = read_graph(write("g.edges", content))
        assert graph.edges.tolist() == PATH


def test_what_networkx_writes_is_read(tmp_path):
    named = nx.Graph([("c", "a"), ("a", "b")])
    for oracle in (nx.gnm_random_graph(12, 30, seed=0), nx.gnm_random_graph(12, 30, seed=1), named):
        nx.write_edgelist(oracle, tmp_path / "g.edgelist")
        nx.write_graphml(oracle, tmp_path / "g.graphml")
        (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(oracle, edges="edges")))
        (tmp_path / "h.json").write_text(json.dumps(nx.node_link_data(oracle, edges="links")))
        for name in ("g.edgelist", "g.graphml", "g.json", "h.json"):
            file = str(tmp_path / name)
            if oracle is named:
                assert read_graph(file, 3, ("b", "c", "a")).edges.tolist() == [[0, 2], [1, 2]]
                assert read_graph(file).names == ("a", "b", "c")
            else:
                graph = read_graph(file, 12)
                assert sorted(map(tuple, graph.edges.tolist())) == sorted(oracle.edges), name


def test_one_agent_and_isolated_ones(write):
    assert read_graph(write("g.json", '{"nodes": [{"id": "me"}], "edges": []}')).n_agents == 1
    graph = read_graph(write("g.txt", "0 1\n1 3\n"), 4)
    with pytest.raises(InputError, match=r"2 components, \(0, 1, 3\), \(2\)"):
        check_connected(graph)


@each(
    ("name", "content", "message"),
    [
        ("g.dot", "graph {}", "must end in .txt"),
        ("graph", "0 1", "must end in .txt"),
        ("g.txt", "", "is empty"),
        ("g.json", "  \n", "is empty"),
        ("g.graphml", "", "is empty"),
        ("g.txt", "# nothing\n\n", "holds no edges"),
        ("g.csv", "source,target\n", "holds no edges"),
        ("g.txt", b"\x89HDF\r\n\x1a\n\xff\xfe", "not UTF-8 text"),
        ("g.txt", b"0 1\n\x00\x00", "not UTF-8 text"),
        ("g.json", b"\xff\xfe{}", "not UTF-8 text"),
        ("g.graphml", b"\x00\xff\x01", "not a valid GraphML file"),
        ("g.txt", "0 1\n2\n", "line 2 of .* must hold two nodes, got '2'"),
        ("g.csv", "0,1\n,2\n", "line 2 of .* must hold two nodes"),
        ("g.txt", "north ward south ward\n", "put a comma between names"),
        ("g.graphml", "<graphml><graph>", "not a valid GraphML file"),
        ("g.graphml", "<html></html>", "not a valid GraphML file"),
        ("g.graphml", "0 1", "not a valid GraphML file"),
        ("g.json", "{", "not a node-link JSON file"),
        ("g.json", "[" * 100_000, "not a node-link JSON file"),
        ("g.json", "[1, 2]", 'has no list "nodes"'),
        ("g.json", '{"nodes": 3, "edges": []}', 'has no list "nodes"'),
        ("g.json", '{"nodes": []}', 'has no list "edges" or "links"'),
        ("g.json", '{"nodes": [3], "edges": []}', "node 0 must have an"),
        ("g.json", '{"nodes": [{"id": [1]}], "edges": []}', "node 0 must have an"),
        ("g.json", '{"nodes": [{"id": 1}, {"id": 1}], "edges": []}', "node 1 must have an"),
        (
            "g.json",
            '{"nodes": [{"id": 0}], "edges": [{"source": 0, "target": 1}]}',
            "edge 0 must have the",
        ),
        ("g.json", '{"nodes": [{"id": 0}], "links": [7]}', "edge 0 must have the"),
    ],
)
def test_files_that_cannot_be_used_are_refused_in_a_sentence(write, name, content, message):
    with pytest.raises(FileError, match=message) as caught:
        read_graph(write(name, content))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@each(
    ("name", "message"),
    [("none.txt", "not exist"), ("x.txt", "is a folder, not a file"), ("\0.txt", "cannot be read")],
)
def test_missing_files_and_folders_are_refused(tmp_path, name, message):
    (tmp_path / "x.txt").mkdir(exist_ok=True)
    with pytest.raises(FileError, match=message):
        read_graph(f"{tmp_path}/{name}")


@each(
    ("content", "options", "message"),
    [
        ("0 1\n1 2\n", {"n_agents": 2}, "g.txt: the graph has 3 nodes but there are 2 agents"),
        ("a b\n", {"names": ("a", "c")}, "g.txt: these nodes of the graph are no agents: b"),
        ("a b\n", {"n_agents": 3}, "g.txt: the graph has 2 nodes but there are 3 agents"),
    ],
)
def test_nodes_that_are_not_the_agents_are_refused_with_the_file(write, content, options, message):
    with pytest.raises(InputError, match=message):
        read_graph(write("g.txt", content), **options)


def test_graphml_attributes_of_unknown_kind_do_not_matter(write):
    content = (
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="d0" for="edge"'
        ' attr.name="w"/><graph edgedefault="undirected"><node id="0"/><node id="1"/>'
        '<edge source="1" target="0"><data key="d0">x</data></edge></graph></graphml>'
    )
    assert read_graph(write("g.graphml", content)).edges.tolist() == [[0, 1]]


@each("ending", ["txt", "json", "graphml"])
def test_damaged_files_never_give_a_traceback(tmp_path, write, ending):
    oracle = nx.cycle_graph(5)
    nx.write_graphml(oracle, tmp_path / "g.graphml")
    (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(oracle, edges="edges")))
    nx.write_edgelist(oracle, tmp_path / "g.txt")
    whole = (tmp_path / f"g.{ending}").read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(80):
        damaged = bytearray(whole[: rng.integers(1, len(whole) + 1)])
        for place in rng.integers(len(damaged), size=rng.integers(4)):
            damaged[place] = rng.integers(32, 127)
        try:
            read_graph(write(f"d.{ending}", bytes(damaged)))
        except (FileError, InputError):
            refused += 1
        except VpemWarning:
            continue
    assert refused > 10


# --- partitions of features


def columns(partition):
    return [part.tolist() for part in partition.features]


def test_contiguous_is_nearly_equal():
    partition = contiguous(10, 4)
    assert columns(partition) == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    assert partition.names == ("agent 0", "agent 1", "agent 2", "agent 3")
    assert (partition.n_agents, partition.n_features) == (4, 10)
    assert partition.agent_of.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert contiguous(2, 2, ["left", "right"]).names == ("left", "right")
    assert columns(from_lists(np.array([[3, 1], [0, 2]]), 4)) == [[1, 3], [0, 2]]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_ways_to_make_a_partition_agree(data):
    n_agents = data.draw(st.integers(1, 6))
    rest = data.draw(st.lists(st.integers(0, n_agents - 1), max_size=20))
    agent_of = data.draw(st.permutations([*range(n_agents), *rest]))
    made = from_agent_of_feature(agent_of)
    assert made.agent_of.tolist() == list(agent_of)
    shuffled = [data.draw(st.permutations(part.tolist())) for part in made.features]
    assert columns(from_lists(shuffled, len(agent_of))) == columns(made)


def test_a_named_agent_without_features_is_a_relay():
    with pytest.warns(VpemWarning, match="'hub' holds no features"):
        partition = from_agent_of_feature([0, 2, 2], ["a", "hub", "b"])
    assert columns(partition) == [[0], [], [1, 2]]
    with pytest.warns(VpemWarning, match="'agent 1', 'agent 2' hold no features"):
        partition = from_lists([[0], [], []], 1)
    assert partition.agent_of.tolist() == [0]


def of_agents(agent_of, names=None):
    return lambda: from_agent_of_feature(agent_of, names)


def of_lists(lists):
    return lambda: from_lists(lists, 4)


def by_hand(columns):
    return lambda: Partition((np.array(columns, dtype=int),), ("a",))


@each(
    ("make", "sentence"),
    [
        *[(lambda n=n: contiguous(4, n), "agents") for n in (0, -1, 5, 2.0, True, None)],
        (lambda: contiguous(4, 2, ["a"]), "2 agents but 1 agent names"),
        (lambda: contiguous(4, 2, ["a", "a"]), "two agents are called 'a'"),
        (lambda: contiguous(4, 2, ["a", ""]), "non-empty"),
        (lambda: contiguous(4, 2, ["a", 3]), "strings"),
        (of_agents([0, 2]), "agent 1 holds no feature although agent 2 does"),
        (of_agents([1, 1]), "agent 0 holds no feature"),
        (of_agents([0, -1]), "feature 1 has agent -1"),
        (of_agents([0, 3], ["a", "b"]), "feature 1 is given to agent 3, but only 2"),
        (of_agents([0.0, 1.0]), "integers"),
        (of_agents([True, False]), "integers"),
        (of_agents([]), "integers"),
        (of_agents([[0, 1]]), r"shape \(1, 2\)"),
        (of_lists([[0, 1], [3]]), "misses feature 2;"),
        (of_lists([[0, 1, 1], [2, 3]]), "repeats feature 1;"),
        (of_lists([[0, 1], [1]]), "misses feature 2, 3 and repeats feature 1;"),
        (of_lists([[0, 1], [2, 3, 4]]),
         "names feature 4, but the 4 features are numbered 0 to 3"),
        (of_lists([[0, 1], [2, -1]]), "names feature -1"),
        (of_lists([[0, 1], [2, 3.0]]), "agent 1: features are given by integers, got 3.0"),
        (of_lists([[0, True], [2, 3]]), "agent 0: features are given by integers, got True"),
        (of_lists([[0, 10**30], [2, 3]]), "there is no feature 10000"),
        (of_lists([[0, 1], 2]), "agent 1 must have a list"),
        (of_lists([[0, 1], "23"]), "agent 1 must have a list"),
        (of_lists([]), "at least one agent"),
        (of_lists(7), "list of lists"),
        (of_lists("0123"), "list of lists"),
        *((by_hand(bad), "increasing") for bad in ([1, 0], [0, 0])),
        (by_hand([0, 2]), "exactly one"),
        (by_hand([]), "at least one feature"),
    ],
)  # fmt: skip
def test_what_is_no_partition_is_refused_in_a_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


def test_a_partition_is_read_by_name_and_number(tmp_path):
    path = tmp_path / "partition.json"
    path.write_text(json.dumps({"lab": ["pulse", 0], "ward": [1]}))
    partition = read_partition(path, 3, ["age", "height", "pulse"])
    assert partition.names == ("lab", "ward")
    assert columns(partition) == [[0, 2], [1]]
    path.write_text("[[2, 0], [1]]")
    assert columns(read_partition(path, 3)) == [[0, 2], [1]]


@each(
    ("text", "names", "kind", "sentence"),
    [
        *[(text, ["age", "height", "pulse"], kind, sentence) for text, kind, sentence in (
            ("{", FileError, "not a JSON file"),
            ("\u20ac", FileError, "not a JSON file"),
            ("[" * 100_000, FileError, "not a JSON file"),
            ("[[" + "9" * 10_000 + "]]", FileError, "not a JSON file"),
            ("[[NaN]]", FileError, "NaN is not finite"),
            ('"text"', InputError, "list of lists"),
            ("[0, 1, 2]", InputError, "list of lists"),
            ('{"a": 0}', InputError, "list of lists"),
            ("[]", InputError, "at least one agent"),
            ('{"a": [0], "a": [1, 2]}', FileError, "'a' appears more than once"),
            ('[["puls"], [0, 1]]', InputError, r"no feature 'puls' \(did you mean 'pulse'\?\)"),
            ("[[0, 1]]", InputError, "misses feature 2"),
            ("[[0, 1.5, 2]]", InputError, "integers, got 1.5"),
            ("[[0, null, 2]]", InputError, "integers, got None"),
            ('{"": [0, 1, 2]}', InputError, "non-empty"),
        )],
        ('[["a", 1], [0]]', ["a", "a", "b"], InputError, "several features are called 'a'"),
        ('[["a", 1], [0]]', None, InputError, "have no names"),
        (None, None, FileError, "does not exist"),
    ],
)  # fmt: skip
def test_files_that_are_no_partition_are_refused(tmp_path, text, names, kind, sentence):
    path = tmp_path / "partition.json"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(kind, match=sentence) as caught:
        read_partition(path, 3, names)
    assert str(path) in str(caught.value)
