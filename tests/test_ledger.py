"""Messages, bytes and rounds: counted by hand, by formulas, and by playing the messages through."""

import numpy as np
import pytest

from vpem import connect, find_hubs, fit_vpem, make_graph
from vpem.network.graph import from_edges
from vpem.network.hubs import charge_features, charge_flooding, find_routes
from vpem.network.ledger import KINDS, Ledger
from vpem.network.partition import contiguous

from .tables import each, over

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


@each(
    ("topology", "n", "expected"),
    [
        (
            "cycle",
            4,
            (8 * 3, 8 * 48, 3),
        ),  # 8 directed links, 3 rounds, 4 agents with 8 ends of links
        ("path", 3, (3 + 2 * 2 + 3, 4 * 28, 3)),
        ("path", 2, (4, 2 * 16, 2)),
    ],
)
def test_flooding_by_hand(topology, n, expected):
    graph = make_graph(topology, n)
    ledger = Ledger(graph)
    charge_flooding(ledger, graph)
    assert (ledger.messages, ledger.bytes, ledger.rounds) == expected


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


def test_relays_without_features_send_none_of_their_own():
    graph = make_graph("path", 5)
    ledger = Ledger(graph)
    charge_features(ledger, find_routes(graph, find_hubs(graph, 2)), (1, 0, 3, 0, 0), 10, 4)
    assert by_link(ledger) == {(0, 1): (1, 40), (1, 2): (1, 40)}


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
