"""Plans of ten thousand agents and 10^12 rows: quick, exact, and held against what fits need."""

import tracemalloc

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from vpem import InputError, connect, fit_em, fit_vpem, make_graph
from vpem.fits.plan import LINKED, PADDED, PADDED_NUMBER, Work, message_size, plan
from vpem.network.graph import from_edges
from vpem.network.hubs import diameter
from vpem.network.ledger import Ledger
from vpem.network.partition import Blocks, contiguous, evenly
from vpem.sums.consensus import _Layout
from vpem.sums.counted import TAG_BYTES
from vpem.terms.features import FeatureTerms
from vpem.terms.statistics import Message
from vpem.terms.units import Scaling

from .tables import each

ROWS, N, K = 10**12, 10_000, 8


def planned(topology, n=N, split="features", n_features=20, **how):
    held = [n_features, *[0] * (n - 1)] if split == "rows" else [1] * n
    how = {"n_samples": ROWS, "n_components": K, "link": "100Mbit,30ms", **how}
    return plan(make_graph(topology, n, seed=0), held, split=split, **how)


@pytest.fixture
def multiplied(monkeypatch):
    """Count the multiplications of rounds that a plan runs."""
    counted = [0]
    run = _Layout.run

    def count(layout, states, steps, n_threads):
        counted[0] += states.size * len(steps) * len(layout.indices) // layout.n_agents
        assert counted[0] < 2e9
        run(layout, states, steps, n_threads)

    monkeypatch.setattr(_Layout, "run", count)
    return counted


@each(("topology", "how", "messages", "numbers"), [
    ("star", {"split": "rows"}, 2 * N, K * (1 + 20 + 210) + 1),
    ("star", {}, 2 * N, ROWS * (K - 1) + 1),
    ("star", {"secure_sum": True, "split": "rows"}, 2 * N, K * (1 + 20 + 210) + 1),
    ("tree", {"sum": "tree", "split": "rows"}, 2 * (N - 1), K * (1 + 20 + 210) + 1),
])  # fmt: skip
def test_ten_thousand_agents_are_planned_without_their_rows(topology, how, messages, numbers):
    """Messages up and down, of so many numbers of 8 bytes; memory is of links, not of rows."""
    traced = how == {"split": "rows"}
    if traced:
        tracemalloc.start()
    found = planned(topology, **how)
    if traced:
        assert tracemalloc.get_traced_memory()[1] < 1e8
        tracemalloc.stop()
    last, tag = found["communication"]["last"], TAG_BYTES * ("secure_sum" in how)
    assert last["messages"] == messages
    assert last["bytes"] == pytest.approx(messages * (8 * numbers + tag), rel=1e-14)
    if "secure_sum" in how:
        time, pads = found["time"], N - 1
        assert found["n_parties"] == N
        assert time["masking"] == pytest.approx(pads * (PADDED + numbers * PADDED_NUMBER))


def test_more_bytes_are_counted_than_fit_in_64_bits():
    """S rounds over E links both ways; the operator of the hubs is not formed."""
    found = planned("cycle", 1500, hops=0)
    sent, rounds = found["communication"]["last"], found["rounds"]
    wanted = rounds * 2 * 1500 * 8 * (ROWS * (K - 1) + 1)
    assert wanted > 2**63
    assert sent["bytes"] == pytest.approx(wanted, rel=1e-14)
    assert sum(sent["by_agent"]["bytes_sent"]) == pytest.approx(wanted, rel=1e-12)
    assert min(sent["by_link"]["bytes"]["estep"]) > 0
    both = Ledger(make_graph("cycle", 3))
    both.send("estep", 2**61, rounds=1)
    both.add(both.times(2))
    assert both.bytes == 3 * 6 * 2**61


def test_rounds_of_many_hubs_are_bounded_and_not_run(multiplied):
    found = planned("cycle", 1500, hops=1)
    assert found["consensus_error_is_bound"]
    assert 0 < found["consensus_error"] < 1e-6
    assert found["rounds"] > 1000


def test_the_diameter_of_a_directed_graph_is_that_of_all_shortest_paths():
    around = [(i, (i + 1) % 40) for i in range(40)]
    graph = from_edges(
        [*around, *((i, (7 * i + 3) % 40) for i in range(0, 40, 9))], 40, directed=True
    )
    source, target = graph.arcs
    matrix = csr_array((np.ones(len(source)), (source, target)), shape=(40, 40))
    assert diameter(graph) == shortest_path(matrix, unweighted=True).max() > 3


@each(("k", "d"), [(1, 1), (3, 4), (5, 2)])
def test_a_worker_sends_counts_means_and_lower_halves(k, d):
    terms = FeatureTerms(np.zeros((1, d)), Blocks.one(d), "full", scaling=Scaling.none(d))
    assert message_size(k, d) == Message(terms, np.zeros((k, d))).size


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
@each(("split", "dtype", "d"), [
    ("features", "float64", 8), ("features", "float32", 8), ("rows", "float64", 4),
])  # fmt: skip
def test_a_fit_takes_the_memory_that_is_foretold(split, dtype, d):
    """Of one process, besides the rows that were read; it grows as rows do."""
    rows, n = 400_000, 4
    X = np.random.default_rng(0).standard_normal((rows, d))
    X[::2] += 3
    given = {"n_components": 3, "init": [0, 1, 2], "tol": 0.0, "max_iter": 1}
    graph = make_graph("star", n)
    tracemalloc.start()
    if split == "rows":
        fit_em(X, evenly(rows, n), **given)
    else:
        fit_vpem(X, connect(graph, contiguous(d, n)), dtype=dtype, **given)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = contiguous(d, n) if split == "features" else [d, 0, 0, 0]
    options = {"dtype": dtype} if split == "features" else {}
    needed = plan(graph, held, n_samples=rows, n_components=3, split=split, **options)["memory"]
    assert 0.7 < (needed["one_process"] - X.nbytes) / peak < 1.4


def test_a_server_has_what_all_send_it_at_a_time():
    by_rows = planned("star", 100, split="rows")["memory"]
    assert by_rows["server"] == 100 * (LINKED + 8 * message_size(K, 20))
    assert by_rows["agent"] > 16 * 20 * ROWS // 100
    by_features = [planned("star", n, n_samples=10**9)["memory"]["server"] for n in (50, 100)]
    assert by_features[1] == 2 * by_features[0] < 10**9
    assert planned("cycle", 10, n_samples=100)["memory"]["server"] is None


def test_too_many_links_are_refused_before_they_are_counted():
    edges = np.stack(np.triu_indices(1100, 1), axis=1)
    graph = make_graph("star", 3)
    vars(graph)["n_edges"] = len(edges)
    with pytest.raises(InputError, match=r"at most 500,000, but the graph \(star\) has 604,450"):
        plan(graph, [1] * 3)


def test_a_complete_graph_takes_memory_of_its_links():
    graph = make_graph("complete", 1500)
    assert graph.n_edges == 1500 * 1499 // 2 == len(graph.edges)
    with pytest.raises(InputError, match="a graph of 300000 agents needs 1800 GB"):
        make_graph("complete", 300_000)


def test_batches_have_all_rows():
    assert Work(10, 2, 3, (10, 1), 8, n_sums=2.5).samples == 25
