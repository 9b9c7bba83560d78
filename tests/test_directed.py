"""Mixing weights of one's own, links that lead one way (push-sum), and graphs that take turns."""

import json
import re
from contextlib import nullcontext

import networkx as nx
import numpy as np
import pytest

from vpem import (
    FileError,
    InputError,
    PrivacySettings,
    VpemWarning,
    connect,
    fit_em,
    fit_fedem,
    fit_vpem,
    make_graph,
    mixing_matrix,
)
from vpem.files.networks import read_graph, read_weights
from vpem.network.faults import turning_rate
from vpem.network.graph import from_edges, in_turn
from vpem.network.ledger import Ledger
from vpem.network.mixing import push_rate
from vpem.network.partition import contiguous, evenly
from vpem.sums.connect import connect_workers, spread_workers
from vpem.sums.counted import add_vectors

from .cli_support import done, run
from .tables import each
from .thread_engine import together

RING = make_graph("cycle", 6)
ARCS = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3), (2, 5)]
ONE_WAY = from_edges(ARCS, directed=True)
TURNS = in_turn([
    from_edges([(0, 1), (2, 3), (4, 5)], 6),
    from_edges([(1, 2), (3, 4)], 6),
    from_edges([(5, 0), (0, 1)], 6),
])  # fmt: skip
VALUES = np.random.default_rng(3).standard_normal((6, 4)) * [1, 10, 100, 1e-3]


def estimates(network):
    total = network.total.counted_on(Ledger(network.graph))
    return add_vectors(total, VALUES), total.ledger


def metropolis(pairs, n=6):
    """``W_ij = 1 / (1 + max(deg_i, deg_j))``, by loops."""
    degree = np.zeros(n)
    for i, j in pairs:
        degree[[i, j]] += 1
    W = np.zeros((n, n))
    for i, j in pairs:
        W[i, j] = W[j, i] = 1 / (1 + max(degree[i], degree[j]))
    return W + np.diag(1 - W.sum(axis=1))


# ---- a matrix of one's own ----------------------------------------------------------------------


def own_matrix(n=6):
    weights = np.linspace(0.1, 0.4, n)
    W = np.zeros((n, n))
    for i, weight in enumerate(weights):
        W[i, (i + 1) % n] = W[(i + 1) % n, i] = weight
    return W + np.diag(1 - W.sum(axis=1))


@each("weights", [own_matrix(), 0.2, "0.2"])
def test_rounds_are_those_of_the_matrix(weights):
    laplacian = np.diag(RING.degrees) - (metropolis(RING.edges) > 0) + np.eye(6)
    W = np.eye(6) - 0.2 * laplacian if np.ndim(weights) == 0 else weights
    plain = {"acceleration": "none", "n_rounds": 40}
    for path in ("operator", "rounds"):
        network = connect_workers(RING, weights=weights, consensus=path, **plain)
        found, _ = estimates(network)
        wanted = 6 * np.linalg.matrix_power(W, 40) @ VALUES
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
        rate = np.sort(np.abs(np.linalg.eigvalsh(W)))[-2]
        assert network.mixing_rate == pytest.approx(rate, abs=1e-12)
    found, _ = estimates(connect_workers(RING, weights=weights, consensus_tol=1e-12))
    np.testing.assert_allclose(found, np.tile(VALUES.sum(axis=0), (6, 1)), rtol=1e-9)


def test_two_matrices_have_two_names():
    names = {connect_workers(RING, weights=one).weights for one in (own_matrix(), 0.2, 0.25)}
    names.add(connect_workers(RING, weights=metropolis(RING.edges)).weights)
    assert len(names) == 4


BAD = [
    (own_matrix(5), "shape (6, 6)"),
    (own_matrix() * 1.01, "sums to 1.01"),
    (own_matrix() + np.outer(np.eye(6)[0], [0, 0.1, 0, 0, 0, -0.1]), "symmetric"),
    (np.full((6, 6), 1 / 6), "no neighbours"),
    (np.eye(6), "spectral gap above 0"),
    (np.where(np.eye(6) > 0, np.nan, 0), "finite"),
    ("0.5", "below 2 / lambda_max(L) = 0.5"),
    (-0.1, "above 0"),
    (np.inf, "above 0"),
    ([["a"]], "a number or a matrix"),
    ("quick", "one of metropolis"),
    (own_matrix() + 0.1j, "of type complex128"),
    (np.ma.masked_equal(own_matrix(), 0), "masked values"),
    (own_matrix().astype(str), "of type <U32"),
    (np.zeros((2, 6, 6)), "got shape (2, 6, 6)"),
    (1e-9, "take 1.4e+10 plain rounds"),
    (3.3e-7, "plain rounds for a consensus error of 1e-06"),
    (np.eye(6) * (1 - 1e-7) + own_matrix() * 1e-7, "plain rounds"),
]


@each(("weights", "said"), BAD)
def test_what_is_no_mixing_matrix_is_refused(weights, said):
    with pytest.raises(InputError, match=re.escape(said)):
        connect_workers(RING, weights=weights)


def test_weights_that_are_small_are_taken_down_to_a_millionth_of_the_usual_gap():
    """Metropolis weights of a ring of 6 have the gap 1/3, and a constant alpha has alpha."""
    assert mixing_matrix(RING, 3.4e-7)[0, 1] == 3.4e-7
    assert connect_workers(RING, weights=1e-4).consensus_error <= 1e-6


def test_files_of_weights(tmp_path):
    W, graph = own_matrix(), RING
    np.savetxt(tmp_path / "w.csv", W, delimiter=",", fmt="%.17g")
    np.savetxt(tmp_path / "w.txt", W, fmt="%.17g")
    np.save(tmp_path / "w.npy", W)
    for name in ("w.csv", "w.txt", "w.npy"):
        np.testing.assert_allclose(read_weights(tmp_path / name, graph), W, atol=1e-16)
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "g.csv").write_text("1,2\n3,4\n")
    (tmp_path / "b.csv").write_bytes(b"\xff\x00")
    (tmp_path / "w.dat").write_text("1")
    refused = {"o.npy": "o.npy", "g.csv": "6 by 6 numbers", "b.csv": "^[^ ]*b.csv is not UTF-8",
               "w.dat": "from .csv, .txt, .tsv, .npy files"}  # fmt: skip
    for name, said in refused.items():
        with pytest.raises(FileError, match=said):
            read_weights(tmp_path / name, graph)


# ---- links that lead one way --------------------------------------------------------------------


def pushed(n_rounds):
    """Push-sum by loops: every agent sends equal parts of its value and its weight."""
    values, weights = VALUES * 6, np.ones(6)
    out = {i: [i, *(j for k, j in ARCS if k == i)] for i in range(6)}
    for _ in range(n_rounds):
        new, heavy = np.zeros_like(values), np.zeros(6)
        for i, targets in out.items():
            for j in targets:
                new[j] += values[i] / len(targets)
                heavy[j] += weights[i] / len(targets)
        values, weights = new, heavy
    return values / weights[:, None]


def test_push_sum_is_that_of_loops():
    for n_rounds in (1, 7, 60):
        for path in ("operator", "rounds"):
            with pytest.warns(VpemWarning, match="too few") if n_rounds < 60 else nullcontext():
                network = connect_workers(ONE_WAY, n_rounds=n_rounds, consensus=path)
            found, _ = estimates(network)
            np.testing.assert_allclose(found, pushed(n_rounds), rtol=1e-12, atol=1e-13)
    A = mixing_matrix(ONE_WAY).toarray()
    np.testing.assert_allclose(A.sum(axis=0), 1, atol=1e-15)
    rate = np.sort(np.abs(np.linalg.eigvals(A)))[-2]
    assert push_rate(mixing_matrix(ONE_WAY)) == pytest.approx(rate, abs=1e-12)


def test_push_sum_finds_the_sum_and_sends_one_way():
    network = connect_workers(ONE_WAY, consensus_tol=1e-12)
    found, ledger = estimates(network)
    np.testing.assert_allclose(found, np.tile(VALUES.sum(axis=0), (6, 1)), rtol=1e-10)
    messages, sizes = ledger.of_links()
    there = {(int(i), int(j)) for i, j in zip(ledger.sources, ledger.targets, strict=True)}
    for source, target, count, size in zip(
        ledger.sources, ledger.targets, messages, sizes, strict=True
    ):
        is_arc = (source, target) in ARCS
        assert count == is_arc * network.n_rounds
        assert size == is_arc * network.n_rounds * 8 * VALUES.shape[1]
    assert set(ARCS) < there
    assert network.prepared.of_kind("setup")["bytes"] == 8 * len(ARCS) * network.n_rounds


def test_both_ways_are_the_same_graph():
    both = from_edges([*ARCS, *((j, i) for i, j in ARCS)], directed=True)
    assert not both.is_directed
    plain = connect_workers(from_edges(ARCS))
    assert connect_workers(both).n_rounds == plain.n_rounds


@pytest.mark.filterwarnings("ignore::vpem.errors.NotConvergedWarning")
def test_a_fit_over_directed_links_is_that_of_a_server():
    X = np.random.default_rng(0).standard_normal((60, 6)) + np.repeat([[0], [2]], 30, axis=0)
    parts = contiguous(6, 6)
    same = {"n_components": 2, "init": [3, 40], "max_iter": 15, "tol": 0.0}
    wanted = fit_vpem(X, connect(make_graph("star", 6), parts), **same)
    for graph in (ONE_WAY, TURNS):
        found = fit_vpem(X, connect(graph, parts, consensus_tol=1e-12), **same)
        np.testing.assert_allclose(
            found.root_log_likelihood, np.repeat(wanted.root_log_likelihood[0], 6), rtol=1e-9
        )


CANNOT = [
    (ONE_WAY, {"sum": "tree"}, "both ways"),
    *((ONE_WAY, how, "directed graph") for how in (
        {"compress": "qsgd:8bits"}, {"link_failure": 0.1}, {"agent_dropout": 0.1},
        {"stragglers": 0.1}, {"eigenvalue": "estimated"},
    )),
    (ONE_WAY, {"acceleration": "chebyshev"}, "not symmetric"),
    (ONE_WAY, {"weights": 0.2}, "weights of its own"),
    (ONE_WAY, {"weights": own_matrix()}, "weights of its own"),
    (ONE_WAY, {"hops": 1}, "both ways"),
    (ONE_WAY, {"sum": "consensus", "secure_sum": True}, "masks"),
    (ONE_WAY, {"secure_sum": True}, "masks would not cancel; leave it out"),
    (TURNS, {"acceleration": "chebyshev"}, "in turn"),
    (TURNS, {"weights": "laplacian"}, "in turn"),
    (TURNS, {"consensus": "operator"}, "no powers of one matrix"),
    (TURNS, {"eigenvalue": "estimated"}, "is off"),
    (TURNS, {"hops": 1}, "from round to round"),
    (TURNS, {"secure_sum": True}, "masks"),
]  # fmt: skip


@each(("graph", "how", "said"), CANNOT)
def test_what_directed_graphs_and_graphs_in_turn_cannot_have(graph, how, said):
    with pytest.raises(InputError, match=re.escape(said)):
        connect(graph, contiguous(6, 6), **how)


def test_private_fits_advise_what_works():
    X, known = np.random.default_rng(0).uniform(size=(400, 6)), {"delta": 1e-5, "bounds": (0, 1)}
    released, private = (
        PrivacySettings(release_epsilon=5.0, **known),
        PrivacySettings(epsilon=5.0, **known),
    )
    said = "whose links lead both ways, but this graph is directed; leave out directed=True"
    network, workers = connect(ONE_WAY, contiguous(6, 6)), connect_workers(ONE_WAY)
    with pytest.raises(InputError, match=said):
        fit_vpem(X, network, n_components=2, privacy=released)
    for fit in (fit_em, fit_fedem):
        with pytest.raises(InputError, match=said):
            fit(X, evenly(400, 6), workers, n_components=2, privacy=private)


def test_all_must_hear_of_all():
    with pytest.raises(InputError, match="not strongly connected"):
        connect_workers(from_edges([(0, 1), (1, 2), (2, 1)], directed=True))
    with pytest.raises(InputError, match="not connected"):
        connect_workers(in_turn([from_edges([(0, 1)], 4), from_edges([(2, 3)], 4)]))


# ---- graphs that take turns ---------------------------------------------------------------------

LISTS = [[(0, 1), (2, 3), (4, 5)], [(1, 2), (3, 4)], [(5, 0), (0, 1)]]


def test_rounds_over_graphs_in_turn_are_products_of_their_matrices():
    matrices = [metropolis(pairs) for pairs in LISTS]

    def product_of(n_rounds):
        product = np.eye(6)
        for number in range(n_rounds):
            product = matrices[number % 3] @ product
        return product

    product = product_of(50)
    network = connect_workers(TURNS, n_rounds=50)
    found, ledger = estimates(network)
    np.testing.assert_allclose(found, 6 * product @ VALUES, rtol=1e-12, atol=1e-12)
    assert network.consensus_error == pytest.approx(np.abs(6 * product - 1).max(), abs=1e-14)
    once = matrices[2] @ matrices[1] @ matrices[0]
    rate = np.sort(np.abs(np.linalg.eigvals(once)))[-2] ** (1 / 3)
    assert turning_rate(TURNS) == pytest.approx(rate, abs=1e-12)
    # Graphs 0 and 1 have 17 rounds, graph 2 has 16; each link carries a message either way.
    assert ledger.messages == 2 * (17 * 3 + 17 * 2 + 16 * 2)
    auto = connect_workers(TURNS)
    assert auto.consensus_error <= 1e-6 < np.abs(6 * product_of(auto.n_rounds - 1) - 1).max()


@each("how", [
    {"compress": "natural:12bits"}, {"link_failure": 0.2}, {"stragglers": 0.1}, {"sum": "tree"},
])  # fmt: skip
def test_graphs_in_turn_go_with_codecs_faults_and_trees(how):
    found, ledger = estimates(connect_workers(TURNS, **how))
    np.testing.assert_allclose(found, np.tile(VALUES.sum(axis=0), (len(found), 1)), rtol=1e-3)
    assert ledger.messages > 0


@pytest.mark.filterwarnings("ignore::vpem.errors.NotConvergedWarning")
@each("how", [{"n_factors": 1}, {"accelerate": "squarem"}])
def test_sums_over_graphs_in_turn_are_the_same_every_time(how):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 6)) @ rng.normal(size=(6, 6)) + 3 * (np.arange(60) < 30)[:, None]
    rounds, tree = (
        connect(TURNS, contiguous(6, 6), **sums)
        for sums in ({"consensus_tol": 1e-9}, {"sum": "tree"})
    )
    ours, exact = (
        fit_vpem(X, one, n_components=2, max_iter=4, tol=0, **how) for one in (rounds, tree)
    )
    assert ours.log_likelihood == pytest.approx(exact.log_likelihood, abs=1e-8)
    assert rounds.describe("faults") == {"faults": None}


@each("graph", [ONE_WAY, TURNS])
def test_agents_in_several_processes_find_the_same(graph):
    joined = connect_workers(graph)
    wanted, ledger = estimates(joined)

    def work(engine):
        network = spread_workers(joined, engine)
        total = network.total.counted_on(Ledger(graph))
        found = add_vectors(total, VALUES[network.agents.own])
        return found, total.ledger.summary(), dict(total.traffic.delivered)

    answers = together(3, work)
    found = np.concatenate([one for one, _, _ in answers])
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert all(summary == ledger.summary() for _, summary, _ in answers)
    assert sum(went["estep"] for _, _, went in answers) == ledger.of_kind("estep")["bytes"]


# ---- files, and the shell -----------------------------------------------------------------------


def test_files_of_graphs(tmp_path):
    text = "\n---\n".join("\n".join(f"{i},{j}" for i, j in pairs) for pairs in LISTS)
    (tmp_path / "turns.csv").write_text(text)
    nodes = [{"id": i} for i in range(6)]
    graphs = [
        {"nodes": nodes, "edges": [{"source": i, "target": j} for i, j in pairs]} for pairs in LISTS
    ]
    (tmp_path / "turns.json").write_text(json.dumps(graphs))
    for name in ("turns.csv", "turns.json"):
        graph = read_graph(tmp_path / name)
        np.testing.assert_array_equal(graph.edges, TURNS.edges)
        np.testing.assert_array_equal(graph.turns, TURNS.turns)
        with pytest.raises(InputError, match="undirected"):
            read_graph(tmp_path / name, directed=True)
    one = {"directed": True, "nodes": nodes, "edges": [
        {"source": i, "target": j} for i, j in ARCS]}  # fmt: skip
    (tmp_path / "one.json").write_text(json.dumps(one))
    nx.write_graphml(nx.DiGraph(ARCS), tmp_path / "one.graphml")
    for name in ("one.json", "one.graphml"):
        graph = read_graph(tmp_path / name, directed=True)
        np.testing.assert_array_equal(graph.arrows, ONE_WAY.arrows)
        with pytest.warns(VpemWarning, match=f"{name} has edges that lead one way"):
            assert not read_graph(tmp_path / name).is_directed
    (tmp_path / "ends.csv").write_text(f"---\n---\n{text}\n---\n")
    assert (read_graph(tmp_path / "ends.csv").turns == TURNS.turns).all()
    (tmp_path / "alone.csv").write_text("0,1\n1,2\n---\n")
    assert read_graph(tmp_path / "alone.csv").turns is None
    (tmp_path / "both.json").write_text(json.dumps(graphs[0]))
    with pytest.raises(InputError, match="no direction"):
        read_graph(tmp_path / "both.json", directed=True)


def test_the_shell_takes_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = "\n".join(",".join(f"{x:.3f}" for x in row) for row in rng.normal(size=(40, 6)))
    (tmp_path / "x.csv").write_text("a,b,c,d,e,f\n" + rows)
    (tmp_path / "ways.csv").write_text("\n".join(f"{i},{j}" for i, j in ARCS))
    np.savetxt(tmp_path / "w.csv", own_matrix(), delimiter=",")
    fit = ["fit", "x.csv", "-k", "2", "--agents", "6", "--max-iter", "3", "--json", "--quiet"]
    found = json.loads(done(capsys, *fit, "--graph", "ways.csv", "--directed").out)
    assert (found["weights"], found["topology"]) == ("push-sum", "directed")
    found = json.loads(done(capsys, *fit, "--topology", "cycle", "--weights", "w.csv").out)
    assert found["weights"].startswith("own-")
    words = "select x.csv -k 1-2 --agents 6 --graph ways.csv --directed --jobs 1"
    refused = run(capsys, *words.split())
    assert refused.code == 2
    assert "lead both ways" in refused.err
