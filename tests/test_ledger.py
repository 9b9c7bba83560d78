"""Messages and bytes by hand, by formulas and played through; sums at a server, along trees."""

import numpy as np
import pytest
from scipy.stats import nbinom

from vpem import (
    InputError,
    connect,
    connect_workers,
    find_hubs,
    fit_em,
    fit_vpem,
    kmeans_features,
    kmeans_rows,
    make_graph,
)
from vpem.network.codecs import parse_codec
from vpem.network.graph import from_edges
from vpem.network.hubs import charge_features, charge_flooding, find_routes
from vpem.network.ledger import KINDS, Ledger
from vpem.network.mixing import grow_tree
from vpem.network.partition import contiguous, evenly
from vpem.sums.compressed_server import CompressedServerSum
from vpem.sums.connect import spread_workers
from vpem.sums.consensus import agreed_within, codec_within
from vpem.sums.counted import add_vectors

from .tables import each, over
from .test_gossip import CODECS, SHAPE, draw_terms, error_of, summed
from .thread_engine import together

# Hubs of a star, or wide ones, centralize; that is told elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore:hops=:vpem.errors.VpemWarning")

GRAPHS = [
    ("cycle", 9, {}),
    ("path", 12, {}),
    ("grid", 12, {}),
    ("tree", 25, {}),
    ("geometric", 30, {"mean_degree": 5}),
    ("complete", 6, {}),
]


def neighbours(graph):
    around = {node: set() for node in range(graph.n_nodes)}
    for i, j in graph.edges.tolist():
        around[i].add(j)
        around[j].add(i)
    return around


def by_link(ledger):
    """Messages and bytes of each directed link that carried any."""
    messages, sizes = ledger.of_links()
    return {
        (int(i), int(j)): (int(m), int(b))
        for i, j, m, b in zip(ledger.sources, ledger.targets, messages, sizes, strict=True)
        if m or b
    }


# ---- the ledger itself --------------------------------------------------------------------------


def test_links_are_both_directions_of_every_edge_and_of_the_server():
    graph = make_graph("star", 3)
    ledger = Ledger(graph)
    pairs = list(zip(ledger.sources.tolist(), ledger.targets.tolist(), strict=True))
    assert pairs == [(0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2)]
    assert [ledger.link(*pair) for pair in pairs] == list(range(6))
    for wrong in ((0, 1), (1, 1), (3, 3), (2, 0)):
        with pytest.raises(KeyError, match="not neighbours"):
            ledger.link(*wrong)


def test_sending_adds_up():
    ledger = Ledger(make_graph("path", 3))  # links 0-1, 1-0, 1-2, 2-1
    ledger.send("setup", 10, links=[ledger.link(1, 2)], times=3, rounds=2)
    ledger.send("estep", np.array([1, 2, 3, 4]), times=np.array([1, 0, 2, 1]), rounds=1)
    ledger.grow("setup", 5, links=[ledger.link(1, 0)])
    assert by_link(ledger) == {(0, 1): (1, 1), (1, 0): (0, 5), (1, 2): (5, 36), (2, 1): (1, 4)}
    assert ledger.of_kind("setup") == {"messages": 3, "bytes": 35, "rounds": 2}
    assert ledger.of_kind("estep") == {"messages": 4, "bytes": 11, "rounds": 1}
    assert ledger.of_kind("server") == {"messages": 0, "bytes": 0, "rounds": 0}
    assert (ledger.messages, ledger.bytes, ledger.rounds) == (7, 46, 3)
    with pytest.raises(ValueError, match="not in"):
        ledger.send("gossip", 1)
    # All that another has counted, as of one kind; so many times; and by kind.
    other = Ledger(make_graph("path", 3))
    other.charge("server", ledger)
    assert other.of_kind("server") == {"messages": 7, "bytes": 46, "rounds": 3}
    assert by_link(other) == by_link(ledger)
    other.add(ledger.times(3))
    assert other.of_kind("setup") == {"messages": 9, "bytes": 105, "rounds": 6}
    assert (ledger.bytes, other.bytes) == (46, 4 * 46)


def test_summary_by_hand():
    ledger = Ledger(make_graph("path", 3))
    ledger.send("setup", 10, links=[ledger.link(1, 2)], times=3, rounds=2)
    ledger.send("stopping", 1, times=2, rounds=2)
    found = ledger.summary()
    assert {name: found[name] for name in ("messages", "bytes", "rounds")} == {
        "messages": 11, "bytes": 38, "rounds": 4,
    }  # fmt: skip
    assert list(found["by_kind"]) == list(KINDS)
    assert found["by_agent"] == {
        "messages_sent": [2, 7, 2],
        "bytes_sent": [2, 34, 2],
        "messages_received": [2, 4, 5],
        "bytes_received": [2, 4, 32],
    }
    assert found["busiest_link"] == {"between": [1, 2], "messages": 7, "bytes": 34}
    assert found["busiest_agent"] == {"agent": 1, "messages": 11, "bytes": 38}


def test_nothing_sent_names_nobody():
    for graph in (make_graph("path", 1), make_graph("cycle", 5)):
        found = Ledger(graph).summary()
        assert (found["messages"], found["busiest_link"], found["busiest_agent"]) == (0, None, None)


@each(("topology", "n", "options"), GRAPHS)
def test_the_parts_of_a_summary_make_the_whole(topology, n, options):
    graph = make_graph(topology, n, seed=3, **options)
    ledger = Ledger(graph)
    rng = np.random.default_rng(n)
    for kind in KINDS:
        count = len(ledger.sources)
        ledger.send(kind, rng.integers(50, size=count), times=rng.integers(3, size=count), rounds=2)
    found = ledger.summary()
    for what in ("messages", "bytes"):
        assert sum(kind[what] for kind in found["by_kind"].values()) == found[what]
        for way in ("sent", "received"):
            assert sum(found["by_agent"][f"{what}_{way}"]) == found[what]
    assert found["rounds"] == 2 * len(KINDS)
    links = by_link(ledger)
    both = {
        (i, j): [
            a + b for a, b in zip(links.get((i, j), (0, 0)), links.get((j, i), (0, 0)), strict=True)
        ]
        for i, j in graph.edges.tolist()
    }
    most = max(both, key=lambda pair: both[pair][1])
    told = found["busiest_link"]
    assert [told["messages"], told["bytes"]] == both[tuple(told["between"])]
    assert told["bytes"] == both[most][1]
    of_agents = np.add(found["by_agent"]["bytes_sent"], found["by_agent"]["bytes_received"])
    assert found["busiest_agent"]["bytes"] == of_agents.max()
    assert found["busiest_agent"]["agent"] == of_agents.argmax()


# ---- finding hubs -------------------------------------------------------------------------------


def flooded(graph):
    """Play the flooding of the graph through: (messages, bytes) of each link, and the rounds."""
    around = neighbours(graph)
    size = {node: 4 * (1 + len(around[node])) for node in around}  # its number and theirs
    known = {node: {node} for node in around}
    fresh = {node: {node} for node in around}
    sent = {}
    rounds = 0
    while any(fresh.values()):
        rounds += 1
        arriving = {node: set() for node in around}
        for node, records in fresh.items():
            if not records:
                continue
            for other in around[node]:
                messages, payload = sent.get((node, other), (0, 0))
                sent[node, other] = messages + 1, payload + sum(size[r] for r in records)
                arriving[other] |= records
        fresh = {node: arriving[node] - known[node] for node in around}
        for node in around:
            known[node] |= fresh[node]
    assert all(records == set(around) for records in known.values())
    return sent, rounds


@over(made=GRAPHS, seed=[0, 1, 2])
def test_flooding_message_by_message(made, seed):
    topology, n, options = made
    graph = make_graph(topology, n, seed=seed, **options)
    ledger = Ledger(graph)
    charge_flooding(ledger, graph)
    sent, rounds = flooded(graph)
    assert by_link(ledger) == sent
    assert ledger.of_kind("flooding")["rounds"] == ledger.rounds == rounds


# ---- features to their roots --------------------------------------------------------------------


def test_features_on_a_path_by_hand():
    graph = make_graph("path", 5)
    hubs = find_hubs(graph, 2)
    assert [hub.root for hub in hubs] == [2]
    ledger = Ledger(graph)
    charge_features(ledger, find_routes(graph, hubs), (1, 2, 3, 4, 5), 10, 8)
    assert by_link(ledger) == {
        (0, 1): (1, 1 * 80), (1, 2): (2, 3 * 80), (4, 3): (1, 5 * 80), (3, 2): (2, 9 * 80),
    }  # fmt: skip
    assert ledger.of_kind("setup") == {"messages": 6, "bytes": 1440, "rounds": 2}


@over(made=GRAPHS, hops=[0, 1, 2, 3], seed=[0, 1])
def test_features_walk_to_their_roots(made, hops, seed):
    topology, n, options = made
    graph = make_graph(topology, n, seed=seed, **options)
    hubs = find_hubs(graph, hops, seed=seed)
    routes = find_routes(graph, hubs)
    around = neighbours(graph)
    widths = np.random.default_rng(seed).integers(4, size=n)
    walked = {}
    for hub in hubs:
        for agent in hub.agents:
            node, steps = agent, 0
            while node != hub.root:
                parent = int(routes.parent[node])
                assert parent in around[node]
                assert parent in hub.agents
                if widths[agent]:
                    messages, size = walked.get((node, parent), (0, 0))
                    walked[node, parent] = messages + 1, size + int(widths[agent]) * 7 * 4
                node, steps = parent, steps + 1
            assert steps == routes.depth[agent] <= hops
    ledger = Ledger(graph)
    charge_features(ledger, routes, widths.tolist(), 7, 4)
    assert by_link(ledger) == walked
    assert ledger.rounds == routes.hops == max(routes.depth)
    assert set(routes.leaves.tolist()) == set(range(n)) - {hub.root for hub in hubs}


# ---- whole fits ---------------------------------------------------------------------------------

M, K = 40, 2
ITEMS = M * (K - 1) * 8 + 8
"""How terms differ from the first component's, and the sum of these."""


def sent_by(graph, n_features, n_rounds=3, **options):
    """Communication of a fit of few iterations from given rows, and their number."""
    X = np.random.default_rng(0).standard_normal((M, n_features))
    network = connect(graph, contiguous(n_features, graph.n_agents), n_rounds=n_rounds, **options)
    fit = fit_vpem(X, network, n_components=K, init=[0, 1], tol=1e-2)
    return fit.communication, fit.n_iter


@pytest.mark.filterwarnings("ignore:3 rounds are too few:vpem.errors.VpemWarning")
@pytest.mark.parametrize("acceleration", ["none", "chebyshev"])
def test_a_fit_on_a_cycle_by_hand(acceleration):
    sent, n_iter = sent_by(make_graph("cycle", 6), 12, hops=0, acceleration=acceleration)
    steps = 3 * (n_iter + 1)
    assert sent["by_kind"] == {
        "setup": {"messages": 0, "bytes": 0, "rounds": 0},
        "flooding": {"messages": 0, "bytes": 0, "rounds": 0},
        "estep": {"messages": 12 * steps, "bytes": 12 * steps * ITEMS, "rounds": steps},
        "stopping": {"messages": 36 * n_iter, "bytes": 36 * n_iter, "rounds": 3 * n_iter},
        "server": {"messages": 0, "bytes": 0, "rounds": 0},
        "labels": {"messages": 0, "bytes": 0, "rounds": 0},
    }
    assert len(sent["bytes_by_iteration"]) == n_iter
    assert sent["bytes_by_iteration"][0] == 36 * ITEMS
    assert np.diff(sent["bytes_by_iteration"]).tolist() == [36 * ITEMS + 36] * (n_iter - 1)


@pytest.mark.filterwarnings("ignore:3 rounds are too few:vpem.errors.VpemWarning")
@pytest.mark.parametrize("hops", [1, 2])
def test_a_fit_with_hubs_on_a_path_by_hand(hops):
    graph = make_graph("path", 6)
    sent, n_iter = sent_by(graph, 6, hops=hops)
    # One hop: three agents, then two or one; two hops: five agents and one.
    hubs = find_hubs(graph, hops)
    leaves = 6 - len(hubs)
    depth = find_routes(graph, hubs).depth
    kinds = sent["by_kind"]
    steps = n_iter + 1
    assert kinds["setup"] == {
        "messages": depth.sum(), "bytes": depth.sum() * M * 8, "rounds": depth.max(),
    }  # fmt: skip
    # Eccentricities 5, 4, 3, 3, 4, 5 and one round more; ends 1, 2, 2, 2, 2, 1.
    assert kinds["flooding"] == {
        "messages": 6 + 10 + 8 + 8 + 10 + 6, "bytes": 10 * 4 * (6 + 10), "rounds": 6,
    }  # fmt: skip
    assert kinds["estep"] == {
        "messages": steps * (leaves + 3 * 10),
        "bytes": steps * (leaves + 3 * 10) * ITEMS,
        "rounds": steps * (hops + 3),
    }
    assert kinds["stopping"] == {
        "messages": n_iter * 5 * 10, "bytes": n_iter * 5 * 10, "rounds": n_iter * 5,
    }  # fmt: skip


@pytest.mark.parametrize("n", [2, 5])
def test_a_fit_on_a_star_by_hand(n):
    sent, n_iter = sent_by(make_graph("star", n), 2 * n, n_rounds="auto")
    steps = n_iter + 1
    assert sent["by_kind"]["server"] == {
        "messages": 2 * n * steps, "bytes": 2 * n * steps * ITEMS, "rounds": 2 * steps,
    }  # fmt: skip
    assert sent["by_kind"]["stopping"] == {
        "messages": n * n_iter, "bytes": n * n_iter, "rounds": n_iter,
    }  # fmt: skip
    assert sent["by_kind"]["setup"]["messages"] == sent["by_kind"]["estep"]["messages"] == 0
    assert sent["busiest_agent"]["agent"] == n  # the server
    assert sent["busiest_agent"]["bytes"] == sent["bytes"]


def test_a_centralized_star_sends_features_once():
    sent, _ = sent_by(make_graph("star", 4), 8, n_rounds="auto", hops=1)
    assert sent["by_kind"]["setup"] == {"messages": 4, "bytes": 8 * M * 8, "rounds": 1}
    assert (sent["messages"], sent["rounds"]) == (4, 1)


def test_a_single_agent_sends_nothing():
    sent, _ = sent_by(make_graph("path", 1), 3, n_rounds="auto", hops=0)
    assert (sent["messages"], sent["bytes"], sent["rounds"]) == (0, 0, 0)


def test_the_middle_of_a_barbell_is_busiest():
    # Two triangles and a bridge: the bridge's ends have most neighbours.
    graph = from_edges([(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)])
    sent, _ = sent_by(graph, 6, n_rounds="auto", hops=0)
    assert sent["busiest_agent"]["agent"] == 2


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
    for _ in range(30):
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


@each("topology", ["path", "tree", "geometric"])
def test_a_parent_adds_what_it_has_heard_of_its_children(topology):
    """And not what these have: what was lost on one link is lost on the next."""
    network = connect(make_graph(topology, 9), contiguous(9, 9), sum="tree", compress="topk:0.3")
    total, tree = network.total, network.total.tree
    total.n_rounds = 1
    terms = np.random.default_rng(3).standard_normal((9, 5, 4))
    total.begin("estep", 5, 4, 8)
    total.reduce(terms)
    known, own = total._memories[0].up, terms.transpose(0, 2, 1).reshape(9, 20)
    for node in tree.leaves:
        said = own[node] + known[tree.parent == node].sum(axis=0)
        sent = known[node] != 0
        assert sent.sum() == 6
        np.testing.assert_allclose(known[node][sent], said[sent], rtol=1e-6)


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
        names = (network.mixing_rate, network.n_rounds, network.weights)
        assert names == (None,) * 3 or way == "consensus"
        assert (report["rounds"] is None, report["consensus_error"] == 0) == (
            way != "consensus",
        ) * 2


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


# ---- compressed, at a server --------------------------------------------------------------------


@each("name", CODECS)
def test_a_server_that_settles_is_exact(name):
    total = CompressedServerSum(6, parse_codec(name))
    terms = draw_terms(6)
    assert total.n_roots == 1
    assert total.whole
    errors = []
    for _ in range(400):
        found = summed(total, terms)
        assert found.shape == (1, *SHAPE)
        errors.append(error_of(found, terms))
        if errors[-1] < 1e-7:
            break
    assert errors[-1] < 1e-7


@over(
    name=CODECS, size=[1e-3, 1.0, 1e7],
    way=[("star", 6), ("path", 6), ("geometric", 9)], rounded=[False, True],
)  # fmt: skip
def test_sums_at_a_server_and_along_a_tree_are_right_at_once(name, size, way, rounded):
    """From the first sum on, and at no more bytes than float64 takes, but for what decides that."""
    topology, n = way
    how = {} if topology == "star" else {"sum": "tree"}
    graph = make_graph(topology, n, seed=1)
    total = connect(graph, contiguous(n, n), hops=0, compress=name, **how).total.counted_on(
        Ledger(graph)
    )
    plain = connect(graph, contiguous(n, n), hops=0, **how).total.counted_on(Ledger(graph))
    terms = size * draw_terms(n)
    for number in range(4):
        if rounded:
            terms = terms + size * 10.0 ** (-2 * number) * draw_terms(n, number)
        allowed = 10 * agreed_within(np.abs(terms).max())
        assert np.abs(summed(total, terms) - terms.sum(axis=0)).max() <= allowed
        summed(plain, terms)
    kind = "server" if topology == "star" else "estep"
    sent, most = total.ledger.of_kind(kind)["bytes"], plain.ledger.of_kind(kind)["bytes"]
    assert 0 < sent <= most
    if not rounded:
        assert sent <= most / 4 + 1e-9 + most * 0.1


@over(n_rounds=[1, 3], name=["qsgd:8bits", "topk:0.05", "float16"])
def test_bytes_up_and_down(name, n_rounds):
    graph = make_graph("star", 6)
    total = CompressedServerSum(6, parse_codec(name), n_rounds).counted_on(Ledger(graph))
    terms = draw_terms(6)
    summed(total, terms, "setup")
    size = total.codec.message_size(80)
    wanted = {"messages": 12 * n_rounds, "bytes": 12 * n_rounds * size, "rounds": 2 * n_rounds}
    size = codec_within(np.inf, total.codec).message_size(80)
    assert total.ledger.of_kind("setup") == {**wanted, "bytes": 12 * n_rounds * size}
    summed(total, terms)
    assert total.ledger.of_kind("server") == wanted
    total.agree("stopping")
    assert total.ledger.of_kind("stopping") == {"messages": 6, "bytes": 6, "rounds": 1}


def test_memories_of_a_server_end_with_the_run():
    total = CompressedServerSum(6, parse_codec("qsgd:4bits"), 1)
    terms = draw_terms(6)
    first = summed(total, terms)
    for _ in range(30):
        summed(total, terms)
    assert error_of(summed(total, terms, "check"), terms) < 1e-3 * error_of(first, terms)
    assert error_of(summed(total, terms), terms) > 0.1 * error_of(first, terms)
    other = draw_terms(6, 1, (10, 3))
    assert summed(total, other).shape == (1, 10, 3)


def test_one_block_sends_nothing():
    total = CompressedServerSum(1, parse_codec("qsgd:4bits"))
    terms = draw_terms(1)
    np.testing.assert_array_equal(summed(total, terms), terms)


# ---- stopping without a byte ---------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["star", "path"])
@pytest.mark.parametrize("rows", [False, True])
def test_no_byte_for_stopping_where_all_have_the_same_total(topology, rows):
    """The paper: "no additional communication"; what is found, and all else, is the same."""
    X = np.random.default_rng(0).standard_normal((80, 4)) + np.repeat([[0], [3]], 40, axis=0)
    way = {"sum": "tree"} if topology == "path" else {}
    found = {}
    for stopping in ("messages", "alike"):
        graph = make_graph(topology, 4)
        if rows:
            network = connect_workers(graph, stopping=stopping, **way)
            found[stopping] = fit_em(X, evenly(80, 4), network, n_components=2, seed=1)
        else:
            network = connect(graph, contiguous(4, 4), stopping=stopping, **way)
            found[stopping] = fit_vpem(X, network, n_components=2, seed=1)
    told, alike = found["messages"].communication, found["alike"].communication
    n_iter = found["messages"].n_iter
    links = 4 if topology == "star" else 3
    of_rows = alike["by_kind"]["stopping"]["bytes"]  # k-means of the start
    assert (of_rows > 0) == rows
    assert told["by_kind"]["stopping"]["bytes"] - of_rows == links * n_iter
    assert alike["bytes"] == told["bytes"] - links * n_iter
    np.testing.assert_array_equal(found["messages"].history, found["alike"].history)


def test_where_totals_differ_stopping_takes_messages():
    with pytest.raises(InputError, match="estimates of their own"):
        connect(make_graph("cycle", 4), contiguous(4, 4), stopping="alike")
    network = connect_workers(make_graph("star", 4), stopping="alike")
    with pytest.raises(InputError, match="changed its cluster"):
        kmeans_rows(np.zeros((8, 2)), evenly(8, 4), network, n_clusters=2)

    def work(engine):
        with pytest.raises(InputError, match="one process"):
            spread_workers(network, engine)

    together(2, work)
