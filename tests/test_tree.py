"""The sum along a tree: grown, counted and added message by message."""

import numpy as np
import pytest
from scipy.stats import nbinom

from vpem import InputError, connect, connect_workers, fit_vpem, kmeans_features, make_graph
from vpem.network.codecs import parse_codec
from vpem.network.graph import from_edges
from vpem.network.ledger import Ledger
from vpem.network.mixing import grow_tree
from vpem.network.partition import contiguous
from vpem.sums.consensus import agreed_within
from vpem.sums.counted import add_vectors

from .tables import each, over
from .test_ledger import GRAPHS, by_link, neighbours

pytestmark = pytest.mark.filterwarnings("ignore:hops=:vpem.errors.VpemWarning")


class Messages(dict):
    """Messages and bytes over directed links."""

    def send(self, source, target, size):
        count, total = self.get((source, target), (0, 0))
        self[source, target] = (count + 1, total + size)


def flood(around, sent):
    """Agents learn how far others are, round by round: distances, and neighbours that are nearer.

    An agent knows nothing but its neighbours and what they send.
    """
    far = {node: {node: 0} for node in around}
    nearer = {node: {} for node in around}
    fresh = {node: [node] for node in around}
    rounds = 0
    while any(fresh.values()):
        rounds += 1
        heard = {node: {} for node in around}
        for node, numbers in fresh.items():
            for other in around[node] if numbers else ():
                sent.send(node, other, 4 * len(numbers))
                for number in numbers:
                    heard[other].setdefault(number, []).append(node)
        for node, numbers in heard.items():
            fresh[node] = [number for number in numbers if number not in far[node]]
            for number in fresh[node]:
                far[node][number], nearer[node][number] = rounds, min(numbers[number])
    return far, nearer, rounds


@over(made=GRAPHS, seed=[0, 1, 2])
def test_a_tree_is_grown_message_by_message(made, seed):
    topology, n, options = made
    graph = make_graph(topology, n, seed=seed, **options)
    around, sent = neighbours(graph), Messages()
    far, nearer, rounds = flood(around, sent)
    reach = {node: max(known.values()) for node, known in far.items()}
    least = {node: (reach[node], node) for node in around}
    for _ in range(max(reach.values())):
        for node, others in around.items():
            for other in others:
                sent.send(node, other, 8)
        least = {node: min(least[one] for one in {node, *around[node]}) for node in around}
        rounds += 1
    assert len(set(least.values())) == 1
    radius, centre = least[0]
    for node in set(around) - {centre}:
        sent.send(node, nearer[node][centre], 1)

    ledger = Ledger(graph)
    tree = grow_tree(graph, ledger)
    assert by_link(ledger) == sent
    assert ledger.rounds == ledger.of_kind("flooding")["rounds"] == rounds + 1
    assert tree.hops == radius
    parents = {node: int(tree.parent[node]) for node in around}
    assert parents == {node: nearer[node].get(centre, centre) for node in around}
    assert {node: int(tree.depth[node]) for node in around} == {
        node: far[node][centre] for node in around
    }


@over(made=GRAPHS, hops=[0, 1, 2], seed=[0, 1])
def test_terms_are_added_on_their_way_and_sent_back(made, hops, seed):
    topology, n, options = made
    graph = make_graph(topology, n, seed=seed, **options)
    network = connect(graph, contiguous(n, n), sum="tree", hops=hops)
    tree, roots = network.total.tree, [hub.root for hub in network.hubs]
    terms = np.random.default_rng(seed).standard_normal((len(roots), 7, 2))
    held = dict(zip(roots, terms, strict=True))
    sent = Messages()
    for node in tree.leaves.tolist():
        if node in held:
            parent = int(tree.parent[node])
            sent.send(node, parent, 7 * 2 * 8)
            held[parent] = held.get(parent, 0) + held[node]
    heard = {node for node in held if node not in tree.leaves}
    for node in reversed(tree.leaves.tolist()):
        if node in held:
            assert tree.parent[node] in heard
            sent.send(int(tree.parent[node]), node, 7 * 2 * 8)
            heard.add(node)
    (centre,) = np.flatnonzero(tree.depth == 0)

    total = network.total.counted_on(Ledger(graph))
    total.begin("estep", 7, 2, 8)
    np.testing.assert_allclose(total.reduce(terms)[0], held[centre], 1e-12, 1e-12)
    assert total.exact
    if len(roots) == 1:
        assert total.ledger.messages == 0
        return
    assert by_link(total.ledger) == sent
    assert set(roots) <= heard
    assert total.ledger.rounds == 2 * max(tree.depth[root] for root in roots)
    if hops == 0:
        assert total.ledger.messages == 2 * (n - 1)
        assert total.ledger.rounds == 2 * tree.hops


@over(made=GRAPHS, source=[None, 0, 3, 5])
def test_what_is_agreed_goes_over_every_link_of_the_tree_once(made, source):
    topology, n, options = made
    graph = make_graph(topology, n, seed=1, **options)
    total = connect_workers(graph, sum="tree").total.counted_on(Ledger(graph))
    tree, sent, rounds = total.tree, Messages(), 0
    joined = {node: {int(tree.parent[node])} - {node} for node in range(n)}
    for node in tree.leaves.tolist():
        joined[int(tree.parent[node])].add(node)
    new = {source} if source is not None else set(np.flatnonzero(tree.depth == 0).tolist())
    heard = set(new)
    while len(heard) < n:
        told = {(node, other) for node in new for other in joined[node] - heard}
        for link in told:
            sent.send(*link, 9)
        new, rounds = {other for _, other in told}, rounds + 1
        heard |= new
    total.agree("flooding", 9, source)
    assert by_link(total.ledger) == sent
    assert (total.ledger.messages, total.ledger.rounds) == (n - 1, rounds)


def test_some_agents_alone_take_part():
    graph = from_edges([(0, 1), (1, 2), (2, 3), (3, 4), (2, 5)], 6)
    total = connect_workers(graph, sum="tree").total.counted_on(Ledger(graph))
    values = np.arange(12.0).reshape(6, 2)
    some = np.array([0, 5])
    received = total.send(values[some], some)
    np.testing.assert_array_equal(total.aggregate(received, some), [[10, 12]])
    total.broadcast(8, some)
    assert by_link(total.ledger) == {
        (0, 1): (1, 16), (1, 2): (1, 16), (5, 2): (1, 16),
        (2, 1): (1, 8), (1, 0): (1, 8), (2, 5): (1, 8),
    }  # fmt: skip
    assert total.ledger.rounds == 4


def test_messages_of_codecs_travel_as_they_are():
    graph = from_edges([(0, 1), (1, 2), (2, 3), (3, 4), (2, 5)], 6)
    total = connect_workers(graph, sum="tree").total.counted_on(Ledger(graph))
    total.count(np.array([7, 11, 13]), np.array([0, 1, 4]))
    total.broadcast(np.array([5, 9]), np.array([1, 4]))
    assert by_link(total.ledger) == {
        (0, 1): (1, 7), (1, 2): (1, 18), (4, 3): (1, 13), (3, 2): (1, 13),
        (2, 1): (1, 9), (2, 3): (1, 9), (3, 4): (1, 9),
    }  # fmt: skip
    assert total.ledger.rounds == 4


@over(made=GRAPHS, hops=[0, 1, 2], codec=["natural:12bits", "qsgd:4bits", "topk:0.3"])
def test_what_every_hop_rounds_is_a_change(made, hops, codec):
    topology, n, options = made
    graph = make_graph(topology, n, seed=1, **options)
    exact, total = (
        connect(graph, contiguous(n, n), hops=hops, sum="tree", **how).total.counted_on(
            Ledger(graph)
        )
        for how in ({}, {"compress": codec})
    )
    terms = np.random.default_rng(2).standard_normal((total.n_senders, 9, 3))
    wanted, errors = terms.sum(axis=0), []
    for _ in range(80):
        total.begin("estep", 9, 3, 8)
        errors.append(np.abs(total.reduce(terms)[0] - wanted).max())
    assert max(errors) <= 10 * agreed_within(np.abs(terms).max())
    exact.begin("estep", 9, 3, 8)
    first = connect(graph, contiguous(n, n), hops=hops, sum="tree", compress=codec)
    again = first.total.counted_on(Ledger(graph))
    again.n_rounds = 2
    again.begin("estep", 9, 3, 8)
    again.reduce(terms)
    size = parse_codec(codec).message_size(27)
    assert by_link(again.ledger) == dict.fromkeys(by_link(exact.ledger), (2, 2 * size))


@over(made=GRAPHS, hops=[0, 1], codec=[None, "qsgd:8bits"], seed=[0, 3])
def test_where_links_fail_messages_wait(made, hops, codec, seed):
    topology, n, options = made
    graph = make_graph(topology, n, seed=1, **options)
    common = {"hops": hops, "sum": "tree", "compress": codec, "seed": seed}
    sure, failing = (
        connect(graph, contiguous(n, n), **common, **faults).total.counted_on(Ledger(graph))
        for faults in ({}, {"link_failure": 0.3, "stragglers": 0.2})
    )
    terms = np.random.default_rng(2).standard_normal((sure.n_senders, 5, 2))
    for kind in ("estep", "check"):
        found = []
        for total in (sure, failing):
            total.begin(kind, 5, 2, 8)
            found.append(total.reduce(terms))
            total.agree("stopping")
        np.testing.assert_array_equal(*found)
    assert by_link(sure.ledger) == by_link(failing.ledger)
    assert (failing.ledger.rounds > sure.ledger.rounds) == (sure.ledger.messages > 0)


@each("faults", [{"link_failure": 0.3}, {"stragglers": 0.2}])
def test_an_agent_alone_waits_for_nobody(faults):
    graph, X = make_graph("cycle", 1), np.random.default_rng(0).normal(size=(30, 2))
    sure, failing = (
        kmeans_features(X, connect(graph, contiguous(2, 1), sum="tree", **more))
        for more in ({}, faults)
    )
    assert failing.history == sure.history
    assert failing.communication == sure.communication


@pytest.mark.parametrize(
    ("edges", "times"),
    [
        ([(0, 1)], 1.0),  # a message goes when its link is up: 1 / p rounds
        ([(0, 1), (1, 2), (2, 3), (3, 4)], 2.0),  # two hops, one after the other on either side
        ([(0, leaf) for leaf in range(1, 9)], 1.0),
    ],
)
def test_rounds_are_as_many_as_the_slowest_message_takes(edges, times):
    p, graph = 0.6, from_edges(edges, 1 + max(map(max, edges)))
    total = connect_workers(graph, sum="tree", link_failure=1 - p).total.counted_on(Ledger(graph))
    n_sides, n_sums = (1, 2, 8)[[1, 4, 8].index(len(edges))], 600
    for _ in range(n_sums):
        total.begin("estep", 1, 1, 8)
    # The slowest of independent sides, each as many trials as it has successes to wait for.
    rounds = np.arange(1, 80)
    hops = int(times)
    chance = nbinom.cdf(rounds - hops, hops, p) ** n_sides
    mean = hops + (1 - chance[hops - 1 :]).sum()
    assert total.ledger.rounds / n_sums == pytest.approx(2 * mean, rel=0.05)


def test_vectors_are_added_as_at_a_server():
    values = np.random.default_rng(0).standard_normal((9, 5))
    found, wanted = (
        add_vectors(connect_workers(make_graph(kind, 9), sum="tree").total, values)
        for kind in ("grid", "star")
    )
    np.testing.assert_array_equal(found, wanted)


def test_a_network_says_how_it_sums(overlapping):
    ways = {"star": ("server", None), "cycle": ("tree", "tree"), "path": ("consensus", None)}
    for topology, (way, asked) in ways.items():
        network = connect(make_graph(topology, 4), contiguous(4, 4), sum=asked)
        tree = {"root": 0, "hops": 2} if way == "tree" else None
        assert network.describe("sum", "tree") == {"sum": way, "tree": tree}
        report = fit_vpem(overlapping(0, 90, 4), network, n_components=2).describe("abcd", "pqrs")
        assert report["sum"] == way
        assert (report["rounds"] is None, report["consensus_error"] == 0) == (
            way != "consensus",
        ) * 2


@each(
    ("topology", "options", "said"),
    [
        ("star", {"sum": "consensus"}, "agents that reach only a server"),
        ("cycle", {"sum": "server"}, "sum='server' needs a server that every agent reaches"),
        ("cycle", {"sum": "tree", "n_rounds": 9}, "n_rounds is about consensus rounds"),
        ("cycle", {"sum": "tree", "weights": "laplacian"}, "weights is about consensus rounds"),
        ("cycle", {"sum": "tree", "acceleration": "none"}, "acceleration is about consensus"),
        ("cycle", {"sum": "tree", "consensus_tol": 1e-3}, "consensus_tol is about consensus"),
        ("cycle", {"sum": "tree", "consensus": "rounds"}, "consensus is about consensus rounds"),
        ("cycle", {"sum": "tree", "eigenvalue": "estimated"}, "eigenvalue is about consensus"),
        ("cycle", {"sum": "tree", "agent_dropout": 0.1}, "in a tree one path joins two agents"),
        ("cycle", {"secure_sum": True}, "secure_sum is for sums in which masks are added up"),
        ("star", {"secure_sum": True, "hops": 1}, "hops above 0 shows their features to a root"),
        ("star", {"secure_sum": True, "compress": "float32"}, "and cannot be added"),
    ],
)
def test_what_a_sum_cannot_be_had_with_is_refused(topology, options, said):
    with pytest.raises(InputError, match=said):
        connect(make_graph(topology, 5), contiguous(5, 5), **options)


@over(how=[{}, {"sum": "tree"}], codec=[None, "natural:12bits"])
def test_sums_pickled_before_a_tree_and_a_server_were_one_class_are_taken(how, codec):
    graph = make_graph("path" if how else "star", 5)
    total = connect(graph, contiguous(5, 5), compress=codec, **how).total
    new = ("way", "kind", "path", *(() if how else ("tree", "agents", "_near", "routes")))
    before = {name: value for name, value in vars(total).items() if name not in new}
    again = type(total).__new__(type(total))
    again.__setstate__(before)
    terms = np.random.default_rng(0).standard_normal((5, 7, 2))
    found = []
    for one in (total, again):
        counted = one.counted_on(Ledger(graph))
        counted.begin("estep", 7, 2, 8)
        found.append((counted.reduce(terms).tolist(), counted.ledger.summary(), counted.way))
    assert found[0] == found[1]
