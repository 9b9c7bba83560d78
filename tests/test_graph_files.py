import json

import networkx as nx
import numpy as np
import pytest

from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.networks import EDGE_LISTS, read_graph
from vpem.network.graph import check_connected

from .tables import each, over

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
    for seed in range(4):
        oracle = nx.gnm_random_graph(12, 30, seed=seed)
        nx.write_edgelist(oracle, tmp_path / "g.edgelist")
        nx.write_graphml(oracle, tmp_path / "g.graphml")
        (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(oracle, edges="edges")))
        (tmp_path / "h.json").write_text(json.dumps(nx.node_link_data(oracle, edges="links")))
        for name in ("g.edgelist", "g.graphml", "g.json", "h.json"):
            graph = read_graph(tmp_path / name, 12)
            assert sorted(map(tuple, graph.edges.tolist())) == sorted(oracle.edges), name


def test_named_nodes_are_matched_in_every_format(tmp_path):
    oracle = nx.Graph([("c", "a"), ("a", "b")])
    nx.write_graphml(oracle, tmp_path / "g.graphml")
    (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(oracle, edges="edges")))
    nx.write_edgelist(oracle, tmp_path / "g.txt", data=False)
    for name in ("g.graphml", "g.json", "g.txt"):
        file = str(tmp_path / name)
        assert read_graph(file, 3, ("b", "c", "a")).edges.tolist() == [[0, 2], [1, 2]]
        assert read_graph(file).names == ("a", "b", "c")


def test_isolated_agents_are_named_as_components(write):
    graph = read_graph(write("g.txt", "0 1\n1 3\n"), 4)
    with pytest.raises(InputError, match=r"2 components, \(0, 1, 3\), \(2\)"):
        check_connected(graph)


def test_one_agent(write):
    assert read_graph(write("g.json", '{"nodes": [{"id": "me"}], "edges": []}')).n_agents == 1


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


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(FileError, match="does not exist"):
        read_graph(tmp_path / "none.txt")
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(FileError, match="is a folder, not a file"):
        read_graph(tmp_path / "folder.txt")
    with pytest.raises(FileError, match="cannot be read"):
        read_graph("nul\0byte.txt")


@pytest.mark.parametrize(
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
        ' attr.name="w"/><graph edgedefault="directed"><node id="0"/><node id="1"/>'
        '<edge source="1" target="0"><data key="d0">x</data></edge></graph></graphml>'
    )
    assert read_graph(write("g.graphml", content)).edges.tolist() == [[0, 1]]


@pytest.mark.parametrize("ending", ["txt", "json", "graphml"])
def test_damaged_files_never_give_a_traceback(tmp_path, write, ending):
    oracle = nx.cycle_graph(5)
    nx.write_graphml(oracle, tmp_path / "g.graphml")
    (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(oracle, edges="edges")))
    nx.write_edgelist(oracle, tmp_path / "g.txt")
    whole = (tmp_path / f"g.{ending}").read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole[: rng.integers(1, len(whole) + 1)])
        for place in rng.integers(len(damaged), size=rng.integers(4)):
            damaged[place] = rng.integers(32, 127)
        try:
            read_graph(write(f"d.{ending}", bytes(damaged)))
        except (FileError, InputError):
            refused += 1
        except VpemWarning:
            continue
    assert refused > 20
