"""Messages and bytes by hand, by formulas and played through; sums at a server, along trees."""

import numpy as np
import pytest
from scipy.stats import nbinom

from vpem import (
    connect,
    connect_workers,
    find_hubs,
    fit_vpem,
    kmeans_features,
    make_graph,
)
from vpem.network.codecs import parse_codec
from vpem.network.graph import from_edges
from vpem.network.hubs import charge_features, charge_flooding, find_routes
from vpem.network.ledger import KINDS, Ledger
from vpem.network.mixing import grow_tree
from vpem.network.partition import contiguous
from vpem.sums.compressed_server import CompressedServerSum
from vpem.sums.consensus import agreed_within, codec_within
from vpem.sums.counted import add_vectors

from .tables import each, over
from .test_gossip import CODECS, SHAPE, draw_terms, error_of, summed

# Hubs of a star, or wide ones, centralize; that is told elsewhere.
pytestmark = [
    pytest.mark.filterwarnings("ignore:hops=:vpem.errors.VpemWarning"),
    pytest.mark.filterwarnings("ignore:3 rounds are too few:vpem.errors.VpemWarning"),
]

GRAPHS = [
    ("cycle", 9, {}),
    ("path", 12, {}),
    ("grid", 12, {}),
    ("tree", 25, {}),
    ("geometric", 30, {"mean_degree": 5}),
    ("complete", 6, {}),
]


def graph_of(made, seed=1):
    topology, n, options = made
    return make_graph(topology, n, seed=seed, **options)


def neighbours(graph):
    around = {node: set() for node in range(graph.n_nodes)}
    for i, j in graph.edges.tolist():
        around[i].add(j)
        around[j].add(i)
    return around


def by_link(ledger):
    """Messages and bytes of each directed link that carried any."""
    links = zip(ledger.sources, ledger.targets, *ledger.of_links(), strict=True)
    return {(int(i), int(j)): (int(m), int(b)) for i, j, m, b in links if m or b}


def counted(n, graph, **how):
    """The sum of agents with a feature each, on a ledger."""
    return connect(graph, contiguous(n, n), **how).total.counted_on(Ledger(graph))


class Messages(dict):
    """Messages and bytes over directed links."""

    def send(self, source, target, size):
        count, total = self.get((source, target), (0, 0))
        self[source, target] = (count + 1, total + size)


# ---- the ledger itself --------------------------------------------------------------------------


def test_counts_by_hand():
    star = Ledger(make_graph("star", 3))
    pairs = list(zip(star.sources.tolist(), star.targets.tolist(), strict=True))
    assert pairs == [(0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2)]
    assert [star.link(*pair) for pair in pairs] == list(range(6))
    for wrong in ((0, 1), (1, 1), (3, 3), (2, 0)):
        with pytest.raises(KeyError, match="not neighbours"):
            star.link(*wrong)

    ledger = Ledger(make_graph("path", 3))  # links 0-1, 1-0, 1-2, 2-1
    ledger.send("setup", 10, links=[ledger.link(1, 2)], times=3, rounds=2)
    ledger.send("estep", np.array([1, 2, 3, 4]), times=np.array([1, 0, 2, 1]), rounds=1)
    ledger.send("setup", 0, times=0, rounds=1)
    ledger.grow("setup", 5, links=[ledger.link(1, 0)])
    assert by_link(ledger) == {(0, 1): (1, 1), (1, 0): (0, 5), (1, 2): (5, 36), (2, 1): (1, 4)}
    with pytest.raises(ValueError, match="not in"):
        ledger.send("gossip", 1)
    found = ledger.summary()
    assert (ledger.messages, ledger.bytes, ledger.rounds) == (7, 46, 4)
    assert [found[name] for name in ("messages", "bytes", "rounds")] == [7, 46, 4]
    nothing = {"messages": 0, "bytes": 0, "rounds": 0}
    assert found["by_kind"] == dict.fromkeys(KINDS, nothing) | {
        "setup": {"messages": 3, "bytes": 35, "rounds": 3},
        "estep": {"messages": 4, "bytes": 11, "rounds": 1},
    }
    assert found["by_agent"] == {
        "messages_sent": [1, 5, 1],
        "bytes_sent": [1, 41, 4],
        "messages_received": [0, 2, 5],
        "bytes_received": [5, 5, 36],
    }
    assert found["busiest_link"] == {"between": [1, 2], "messages": 6, "bytes": 40}
    assert found["busiest_agent"] == {"agent": 1, "messages": 7, "bytes": 46}
    # All that another has counted, as of one kind; so many times; and by kind.
    other = Ledger(make_graph("path", 3))
    other.charge("server", ledger)
    assert other.of_kind("server") == {"messages": 7, "bytes": 46, "rounds": 4}
    assert by_link(other) == by_link(ledger)
    other.add(ledger.times(3))
    assert other.of_kind("setup") == {"messages": 9, "bytes": 105, "rounds": 9}
    assert (ledger.bytes, other.bytes) == (46, 4 * 46)
    for graph in (make_graph("path", 1), make_graph("cycle", 5)):
        found = Ledger(graph).summary()
        assert (found["messages"], found["busiest_link"], found["busiest_agent"]) == (0, None, None)


@each("made", GRAPHS)
def test_the_parts_of_a_summary_make_the_whole(made):
    graph = graph_of(made, 3)
    ledger = Ledger(graph)
    rng, count = np.random.default_rng(made[1]), len(ledger.sources)
    for kind in KINDS:
        ledger.send(kind, rng.integers(50, size=count), times=rng.integers(3, size=count), rounds=2)
    found, links = ledger.summary(), by_link(ledger)
    for what in ("messages", "bytes"):
        assert sum(kind[what] for kind in found["by_kind"].values()) == found[what]
        for way in ("sent", "received"):
            assert sum(found["by_agent"][f"{what}_{way}"]) == found[what]
    assert found["rounds"] == 2 * len(KINDS)
    both = {
        (i, j): np.add(links.get((i, j), (0, 0)), links.get((j, i), (0, 0))).tolist()
        for i, j in graph.edges.tolist()
    }
    told = found["busiest_link"]
    assert [told["messages"], told["bytes"]] == both[tuple(told["between"])]
    assert told["bytes"] == max(size for _, size in both.values())
    of_agents = np.add(found["by_agent"]["bytes_sent"], found["by_agent"]["bytes_received"])
    told = found["busiest_agent"]
    assert (told["agent"], told["bytes"]) == (of_agents.argmax(), of_agents.max())


# ---- finding hubs and trees ---------------------------------------------------------------------


def flood(around, sizes, sent):
    """Agents pass on what they hear for the first time, round by round: records of these sizes.

    An agent knows nothing but its neighbours and what they send. Returns how far others are from
    each, which of its neighbours of smallest number is nearer to them, and the rounds.
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
                sent.send(node, other, sum(sizes[number] for number in numbers))
                for number in numbers:
                    heard[other].setdefault(number, []).append(node)
        for node, numbers in heard.items():
            fresh[node] = [number for number in numbers if number not in far[node]]
            for number in fresh[node]:
                far[node][number], nearer[node][number] = rounds, min(numbers[number])
    return far, nearer, rounds


@over(made=GRAPHS, seed=[0, 1, 2])
def test_hubs_and_trees_are_found_message_by_message(made, seed):
    graph = graph_of(made, seed)
    around, sent, ledger = neighbours(graph), Messages(), Ledger(graph)
    # Of the graph each has its number, and those of its neighbours.
    _, _, rounds = flood(around, {node: 4 * (1 + len(around[node])) for node in around}, sent)
    charge_flooding(ledger, graph)
    assert by_link(ledger) == sent
    assert ledger.of_kind("flooding")["rounds"] == ledger.rounds == rounds

    sent = Messages()
    far, nearer, rounds = flood(around, dict.fromkeys(around, 4), sent)
    reach = {node: max(known.values()) for node, known in far.items()}
    least = {node: (reach[node], node) for node in around}
    for _ in range(max(reach.values())):
        for node, others in around.items():
            for other in others:
                sent.send(node, other, 8)
        least = {node: min(least[one] for one in {node, *around[node]}) for node in around}
        rounds += 1
    ((radius, centre),) = set(least.values())
    for node in set(around) - {centre}:
        sent.send(node, nearer[node][centre], 1)
    ledger = Ledger(graph)
    tree = grow_tree(graph, ledger)
    assert by_link(ledger) == sent
    assert ledger.rounds == ledger.of_kind("flooding")["rounds"] == rounds + 1
    assert tree.hops == radius
    assert tree.parent.tolist() == [nearer[node].get(centre, centre) for node in around]
    assert tree.depth.tolist() == [far[node][centre] for node in around]


@over(made=GRAPHS, hops=[0, 1, 2, 3], seed=[0, 1])
def test_features_walk_to_their_roots(made, hops, seed):
    graph = graph_of(made, seed)
    hubs = find_hubs(graph, hops, seed=seed)
    routes, around, walked = find_routes(graph, hubs), neighbours(graph), Messages()
    widths = np.random.default_rng(seed).integers(4, size=graph.n_agents)
    for hub in hubs:
        for agent in hub.agents:
            node, steps = agent, 0
            while node != hub.root:
                parent = int(routes.parent[node])
                assert parent in around[node]
                assert parent in hub.agents
                if widths[agent]:
                    walked.send(node, parent, int(widths[agent]) * 7 * 4)
                node, steps = parent, steps + 1
            assert steps == routes.depth[agent] <= hops
    ledger = Ledger(graph)
    charge_features(ledger, routes, widths.tolist(), 7, 4)
    assert by_link(ledger) == walked
    assert ledger.rounds == routes.hops == max(routes.depth)
    assert set(routes.leaves.tolist()) == set(range(graph.n_agents)) - {hub.root for hub in hubs}


# ---- whole fits ---------------------------------------------------------------------------------

M, K = 40, 2
ITEMS = M * (K - 1) * 8 + 8
"""How terms differ from the first component's, and the sum of these."""
BARBELL = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)]
"""Two triangles and a bridge, whose ends have most neighbours."""


def on_a_cycle(n):
    steps = 3 * (n + 1)
    estep = (12 * steps, 12 * steps * ITEMS, steps)
    return {"estep": estep, "stopping": (36 * n, 36 * n, 3 * n)}


def in_hubs(hops, depths):
    """On a path of six, of whom those in hubs are so far from their roots.

    Eccentricities are 5, 4, 3, 3, 4, 5, after which there is one round more.
    """
    leaves = sum(depth > 0 for depth in depths)

    def expected(n):
        steps = (n + 1) * (leaves + 3 * 10)
        return {
            "setup": (sum(depths), sum(depths) * M * 8, max(depths)),
            "flooding": (48, 10 * 4 * (6 + 10), 6),
            "estep": (steps, steps * ITEMS, (n + 1) * (hops + 3)),
            "stopping": (n * 5 * 10, n * 5 * 10, n * 5),
        }

    return expected


def at_a_server(agents):
    return lambda n: {
        "server": (2 * agents * (n + 1), 2 * agents * (n + 1) * ITEMS, 2 * (n + 1)),
    }


@each(
    ("graph", "d", "how", "expected", "busiest"),
    [
        (make_graph("cycle", 6), 12, {"hops": 0, "acceleration": "none"}, on_a_cycle, None),
        (make_graph("cycle", 6), 12, {"hops": 0, "acceleration": "chebyshev"}, on_a_cycle, None),
        # One hop: three agents twice; two hops: five agents and one.
        (make_graph("path", 6), 6, {"hops": 1}, in_hubs(1, [1, 0, 1, 1, 0, 1]), None),
        (make_graph("path", 6), 6, {"hops": 2}, in_hubs(2, [2, 1, 0, 1, 2, 0]), None),
        (make_graph("star", 2), 4, {"n_rounds": "auto"}, at_a_server(2), 2),
        (make_graph("star", 5), 10, {"n_rounds": "auto"}, at_a_server(5), 5),
        (make_graph("star", 4), 8, {"n_rounds": "auto", "hops": 1},
         lambda n: {"setup": (4, 8 * M * 8, 1)}, 4),
        (make_graph("path", 1), 3, {"n_rounds": "auto", "hops": 0}, lambda n: {}, None),
        (from_edges(BARBELL), 6, {"n_rounds": "auto", "hops": 0}, None, 2),
    ],
)  # fmt: skip
def test_a_fit_by_hand(graph, d, how, expected, busiest):
    X = np.random.default_rng(0).standard_normal((M, d))
    network = connect(graph, contiguous(d, graph.n_agents), **{"n_rounds": 3, **how})
    fit = fit_vpem(X, network, n_components=K, init=[0, 1], tol=1e-2)
    sent, n = fit.communication, fit.n_iter
    if expected is not None:
        found = {kind: tuple(counts.values()) for kind, counts in sent["by_kind"].items()}
        assert found == dict.fromkeys(KINDS, (0, 0, 0)) | expected(n)
    if expected is on_a_cycle:
        each_one = [36 * ITEMS] + [36 * ITEMS + 36] * (n - 1)
        assert sent["bytes_by_iteration"] == np.cumsum(each_one).tolist()
    if busiest is not None:
        assert sent["busiest_agent"]["agent"] == busiest
        assert graph.n_nodes == graph.n_agents or sent["busiest_agent"]["bytes"] == sent["bytes"]


# ---- along a tree -------------------------------------------------------------------------------


@over(made=GRAPHS, hops=[0, 1, 2], seed=[0, 1])
def test_terms_are_added_on_their_way_and_sent_back(made, hops, seed):
    graph, n = graph_of(made, seed), made[1]
    network = connect(graph, contiguous(n, n), sum="tree", hops=hops)
    tree, roots = network.total.tree, [hub.root for hub in network.hubs]
    terms = np.random.default_rng(seed).standard_normal((len(roots), 7, 2))
    held, sent = dict(zip(roots, terms, strict=True)), Messages()
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
        assert (total.ledger.messages, total.ledger.rounds) == (2 * (n - 1), 2 * tree.hops)


@over(made=GRAPHS, source=[None, 0, 3, 5])
def test_what_is_agreed_goes_over_every_link_of_the_tree_once(made, source):
    graph, n = graph_of(made), made[1]
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


def test_some_agents_alone_take_part_and_messages_of_codecs_travel_as_they_are():
    graph = from_edges([(0, 1), (1, 2), (2, 3), (3, 4), (2, 5)], 6)
    network = connect_workers(graph, sum="tree")
    total = network.total.counted_on(Ledger(graph))
    values, some = np.arange(12.0).reshape(6, 2), np.array([0, 5])
    np.testing.assert_array_equal(total.aggregate(total.send(values[some], some), some), [[10, 12]])
    total.broadcast(8, some)
    assert by_link(total.ledger) == {
        (0, 1): (1, 16), (1, 2): (1, 16), (5, 2): (1, 16),
        (2, 1): (1, 8), (1, 0): (1, 8), (2, 5): (1, 8),
    }  # fmt: skip
    coded = network.total.counted_on(Ledger(graph))
    coded.count(np.array([7, 11, 13]), np.array([0, 1, 4]))
    coded.broadcast(np.array([5, 9]), np.array([1, 4]))
    assert by_link(coded.ledger) == {
        (0, 1): (1, 7), (1, 2): (1, 18), (4, 3): (1, 13), (3, 2): (1, 13),
        (2, 1): (1, 9), (2, 3): (1, 9), (3, 4): (1, 9),
    }  # fmt: skip
    assert total.ledger.rounds == coded.ledger.rounds == 4


@over(made=GRAPHS, hops=[0, 1, 2], codec=["natural:12bits", "qsgd:4bits", "topk:0.3"])
def test_what_every_hop_rounds_is_a_change(made, hops, codec):
    graph, n = graph_of(made), made[1]
    exact = counted(n, graph, hops=hops, sum="tree")
    total, again = (counted(n, graph, hops=hops, sum="tree", compress=codec) for _ in range(2))
    terms = np.random.default_rng(2).standard_normal((total.n_senders, 9, 3))
    errors = [np.abs(summed(total, terms)[0] - terms.sum(axis=0)).max() for _ in range(30)]
    assert max(errors) <= 10 * agreed_within(np.abs(terms).max())
    exact.begin("estep", 9, 3, 8)
    again.least, again._flood = 2, lambda *numbers, upward=True: numbers
    summed(again, terms)
    size = parse_codec(codec).message_size(27)
    assert by_link(again.ledger) == dict.fromkeys(by_link(exact.ledger), (2, 2 * size))


@each("topology", ["path", "tree", "geometric"])
def test_a_parent_adds_what_it_has_heard_of_its_children(topology):
    """And not what these have: what was lost on one link is lost on the next."""
    network = connect(make_graph(topology, 9), contiguous(9, 9), sum="tree", compress="topk:0.3")
    total, tree = network.total, network.total.tree
    total.least = 1
    terms = np.random.default_rng(3).standard_normal((9, 5, 4))
    summed(total, terms)
    known, own = total._memories[0].up, terms.transpose(0, 2, 1).reshape(9, 20)
    for node in tree.leaves:
        said = own[node] + known[tree.parent == node].sum(axis=0)
        sent = known[node] != 0
        assert sent.sum() == 6
        np.testing.assert_allclose(known[node][sent], said[sent], rtol=1e-6)


@over(made=GRAPHS, hops=[0, 1], codec=[None, "qsgd:8bits"], seed=[0, 3])
def test_where_links_fail_messages_wait(made, hops, codec, seed):
    common = {"hops": hops, "sum": "tree", "compress": codec, "seed": seed}
    sure, failing = (
        counted(made[1], graph_of(made), **common, **faults)
        for faults in ({}, {"link_failure": 0.3, "stragglers": 0.2})
    )
    terms = np.random.default_rng(2).standard_normal((sure.n_senders, 5, 2))
    for kind in ("estep", "check"):
        np.testing.assert_array_equal(summed(sure, terms, kind), summed(failing, terms, kind))
        for total in (sure, failing):
            total.agree("stopping")
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


@each(
    ("edges", "hops", "sides"),
    [
        ([(0, 1)], 1, 1),  # a message goes when its link is up: 1 / p rounds
        ([(0, 1), (1, 2), (2, 3), (3, 4)], 2, 2),  # two hops, one after the other on either side
        ([(0, leaf) for leaf in range(1, 9)], 1, 8),
    ],
)
def test_rounds_are_as_many_as_the_slowest_message_takes(edges, hops, sides):
    p, graph, n_sums = 0.6, from_edges(edges, 1 + max(map(max, edges))), 600
    total = connect_workers(graph, sum="tree", link_failure=1 - p).total.counted_on(Ledger(graph))
    for _ in range(n_sums):
        total.begin("estep", 1, 1, 8)
    # The slowest of independent sides, each as many trials as it has successes to wait for.
    chance = nbinom.cdf(np.arange(1, 80) - hops, hops, p) ** sides
    mean = hops + (1 - chance[hops - 1 :]).sum()
    assert total.ledger.rounds / n_sums == pytest.approx(2 * mean, rel=0.05)


def test_a_network_says_how_it_sums(overlapping):
    ways = {"star": ("server", None), "cycle": ("tree", "tree"), "path": ("consensus", None)}
    for topology, (way, asked) in ways.items():
        network = connect(make_graph(topology, 4), contiguous(4, 4), sum=asked)
        tree = {"root": 0, "hops": 2} if way == "tree" else None
        assert network.describe("sum", "tree") == {"sum": way, "tree": tree}
        report = fit_vpem(overlapping(0, 90, 4), network, n_components=2).describe("abcd", "pqrs")
        rounds = way == "consensus"
        assert report["sum"] == way
        assert ((network.mixing_rate, network.n_rounds, network.weights) != (None,) * 3) == rounds
        assert (report["rounds"] is None, report["consensus_error"] == 0) == (not rounds,) * 2
    values = np.random.default_rng(0).standard_normal((9, 5))
    found, wanted = (
        add_vectors(connect_workers(make_graph(kind, 9), sum="tree").total, values)
        for kind in ("grid", "star")
    )
    np.testing.assert_array_equal(found, wanted)


@over(how=[{}, {"sum": "tree"}], codec=[None, "natural:12bits"])
def test_sums_pickled_before_a_tree_and_a_server_were_one_class_are_taken(how, codec):
    graph = make_graph("path" if how else "star", 5)
    total = connect(graph, contiguous(5, 5), compress=codec, **how).total
    new = ("way", "kind", "path", *(() if how else ("tree", "agents", "_near", "routes")))
    again = type(total).__new__(type(total))
    again.__setstate__({name: value for name, value in vars(total).items() if name not in new})
    terms, found = np.random.default_rng(0).standard_normal((5, 7, 2)), []
    for one in (total, again):
        ours = one.counted_on(Ledger(graph))
        found.append((summed(ours, terms).tolist(), ours.ledger.summary(), ours.way))
    assert found[0] == found[1]


# ---- compressed, at a server --------------------------------------------------------------------


@each("name", CODECS)
def test_a_server_that_settles_is_exact(name):
    total, terms, errors = CompressedServerSum(6, parse_codec(name)), draw_terms(6), []
    assert (total.n_roots, total.whole) == (1, True)
    while not errors or (errors[-1] >= 1e-7 and len(errors) < 400):
        found = summed(total, terms)
        assert found.shape == (1, *SHAPE)
        errors.append(error_of(found, terms))
    assert errors[-1] < 1e-7


@over(
    name=CODECS, size=[1e-3, 1.0, 1e7],
    way=[("star", 6), ("path", 6), ("geometric", 9)], rounded=[False, True],
)  # fmt: skip
def test_sums_at_a_server_and_along_a_tree_are_right_at_once(name, size, way, rounded):
    """From the first sum on, and at no more bytes than float64 takes, but for what decides that."""
    topology, n = way
    how = {} if topology == "star" else {"sum": "tree"}
    graph, terms = make_graph(topology, n, seed=1), size * draw_terms(n)
    total, plain = (counted(n, graph, hops=0, compress=one, **how) for one in (name, None))
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
    total = CompressedServerSum(6, parse_codec(name)).counted_on(Ledger(make_graph("star", 6)))
    total.least = n_rounds
    for kind, charged, codec in (
        ("setup", "setup", codec_within(np.inf, total.codec)),
        ("estep", "server", total.codec),
    ):
        summed(total, draw_terms(6), kind)
        count, size = 12 * n_rounds, codec.message_size(80)
        wanted = {"messages": count, "bytes": count * size, "rounds": 2 * n_rounds}
        assert total.ledger.of_kind(charged) == wanted
    total.agree("stopping")
    assert total.ledger.of_kind("stopping") == {"messages": 6, "bytes": 6, "rounds": 1}


def test_memories_of_a_server_end_with_the_run_and_one_block_sends_nothing():
    total, terms = CompressedServerSum(6, parse_codec("qsgd:4bits")), draw_terms(6)
    total.least = 1
    first = error_of(summed(total, terms), terms)
    for _ in range(30):
        summed(total, terms)
    assert error_of(summed(total, terms, "check"), terms) < 1e-3 * first
    assert error_of(summed(total, terms), terms) > 0.1 * first
    assert summed(total, draw_terms(6, 1, (10, 3))).shape == (1, 10, 3)
    alone = CompressedServerSum(1, parse_codec("qsgd:4bits"))
    np.testing.assert_array_equal(summed(alone, draw_terms(1)), draw_terms(1))
