"""Links and agents that fail: what is drawn, the sum that is left, and when there is none."""

import dataclasses
import warnings

import numpy as np
import pytest

from vpem import InputError, connect, find_hubs, fit_vpem, make_graph, mixing_matrix, mixing_rate
from vpem.errors import PartitionedError, VpemWarning
from vpem.network.faults import DrawnFaults, Faults, MixingLinks, failing_rounds
from vpem.network.graph import Graph, from_edges
from vpem.network.hubs import Hub, diameter, find_routes
from vpem.network.ledger import Ledger
from vpem.network.partition import contiguous
from vpem.sums.consensus import ConsensusSum
from vpem.sums.gossip import GossipSum

from .tables import each, over, pairwise

SEEDS = range(4)


def gossip(graph, hops, n_rounds, faults, seed=0, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hubs = find_hubs(graph, hops)
    mixing = mixing_matrix(graph)
    return hubs, GossipSum(
        graph,
        mixing,
        hubs,
        n_rounds,
        rate=mixing_rate(mixing),
        faults=faults,
        seed=seed,
        routes=find_routes(graph, hubs),
        diameter=diameter(graph),
        **options,
    )


def draw_terms(n_hubs, seed=0, shape=(7, 2)):
    return np.random.default_rng(seed).gamma(1.0, 5.0, size=(n_hubs, *shape))


@over(
    name=["link_failure", "agent_dropout", "stragglers"], value=[-0.1, 1.0, 1.5, np.nan, "a", None]
)
def test_probabilities_are_checked(name, value):
    with pytest.raises(InputError, match=f"^{name} must be"):
        Faults(**{name: value})


def test_nothing_fails_by_default():
    assert not Faults().any
    assert Faults(stragglers=0.1).any


@each("seed", SEEDS)
def test_links_fail_as_often_as_was_asked(seed):
    graph = make_graph("geometric", 30, seed=seed)
    rng = np.random.default_rng(seed)
    drawn = Faults(link_failure=0.3, stragglers=0.2).draw(graph, 2000, rng, dropout=True)
    assert drawn.awake.all()
    # Neither the link nor one of its ends.
    assert drawn.up.mean() == pytest.approx(0.7 * 0.8**2, abs=0.01)
    together = (drawn.up[:, 0] & drawn.up[:, -1]).mean()
    assert together == pytest.approx((0.7 * 0.8**2) ** 2, abs=0.05)


@each("seed", SEEDS)
def test_silent_agents_and_their_links(seed):
    graph = make_graph("geometric", 60, seed=seed)
    faults = Faults(agent_dropout=0.3)
    rng = np.random.default_rng(seed)
    drawn = faults.draw(graph, 5, rng, dropout=True)
    assert 5 < (~drawn.awake).sum() < 32
    both = drawn.awake[graph.edges].all(axis=1)
    np.testing.assert_array_equal(drawn.up, np.broadcast_to(both, drawn.up.shape))
    assert faults.draw(graph, 5, rng, dropout=False).awake.all()


@each("seed", SEEDS)
def test_weights_are_metropolis_of_what_is_up(seed):
    from scipy.sparse import csr_array

    graph = make_graph("small-world", 20, seed=seed)
    up = np.random.default_rng(seed).random(graph.n_edges) < 0.6
    links = MixingLinks(graph)
    found = csr_array((links.metropolis(up), links.indices, links.indptr), shape=(20, 20))
    left = Graph(20, graph.edges[up], "custom")
    wanted = mixing_matrix(left).toarray()
    np.testing.assert_allclose(found.toarray(), wanted, atol=1e-15)
    np.testing.assert_array_equal(found.toarray(), found.toarray().T)


def test_links_are_those_of_the_ledger():
    graph = make_graph("geometric", 25, seed=3)
    ledger, links = Ledger(graph), MixingLinks(graph)
    ends = np.sort(np.column_stack([ledger.sources, ledger.targets]), axis=1)
    np.testing.assert_array_equal(graph.edges[links.edge_of_link], ends)


def test_no_faults_are_the_plain_rounds():
    graph = make_graph("geometric", 20, seed=1)
    hubs, total = gossip(graph, 1, 9, Faults())
    terms = draw_terms(len(hubs))
    total.begin("estep", 7, 2, 8)
    wanted = ConsensusSum(mixing_matrix(graph), hubs, 9, path="rounds").reduce(terms)
    np.testing.assert_allclose(total.reduce(terms), wanted, rtol=1e-13)


@pairwise(seed=SEEDS, hops=[0, 1])
def test_the_mean_is_kept_in_every_round(seed, hops, monkeypatch):
    graph = make_graph("geometric", 20, seed=seed)
    hubs, total = gossip(graph, hops, 8, Faults(0.2, 0.05, 0.1), seed)
    terms = draw_terms(len(hubs), seed)
    seen = []
    mix = GossipSum._mix

    def watched(self, states, up):
        mix(self, states, up)
        seen.append(states[0][self._drawn.awake].sum(axis=0).copy())

    monkeypatch.setattr(GossipSum, "_mix", watched)
    total = begun(total, "estep")
    total.reduce(terms)
    silent = np.zeros(len(hubs), bool) if total.silent is None else total.silent
    taken = terms[~silent].sum(axis=0).ravel()
    assert len(seen) == 8
    for mean in np.array(seen) / total._drawn.awake.sum():
        np.testing.assert_allclose(mean, taken, rtol=1e-12)


def begun(total, kind, n_samples=7, n_components=2):
    """Begin sums until one does not fall apart."""
    for _ in range(200):
        try:
            total.begin(kind, n_samples, n_components, 8)
            return total
        except PartitionedError:
            continue
    raise AssertionError("the network falls apart in every draw")


@over(seed=SEEDS, hops=[0, 1, 2])
def test_many_rounds_give_the_sum_of_those_who_take_part(seed, hops):
    graph = make_graph("geometric", 20, seed=seed, radius=0.55)
    hubs, total = gossip(graph, hops, 400, Faults(0.2, 0.15, 0.1), seed)
    terms = draw_terms(len(hubs), seed)
    left_out = 0
    for _ in range(4):
        begun(total, "estep")
        silent = np.zeros(len(hubs), bool) if total.silent is None else total.silent
        awake = total._drawn.awake
        np.testing.assert_array_equal(silent, [not awake[hub.root] for hub in hubs])
        found = total.reduce(terms)
        wanted = np.broadcast_to(terms[~silent].sum(axis=0), found.shape)
        np.testing.assert_allclose(found[~silent], wanted[~silent], rtol=1e-6)
        left_out += silent.sum()
    assert left_out > 0 or len(hubs) < 4


@each("seed", SEEDS)
def test_rounds_by_their_definition(seed):
    """Every agent that is awake takes the weighted mean of those it hears in the round."""
    graph = make_graph("geometric", 12, seed=seed, radius=0.5)
    _, total = gossip(graph, 0, 6, Faults(0.3, 0.1, 0.1), seed)
    terms = draw_terms(12, seed)
    found = begun(total, "estep").reduce(terms)
    awake = total._drawn.awake
    states = awake.sum() * terms * awake[:, None, None]
    for up in total._drawn.up:
        mixing = mixing_matrix(Graph(12, graph.edges[up], "custom")).toarray()
        states = np.tensordot(mixing, states, axes=1)
    np.testing.assert_allclose(found, states, rtol=1e-12)


@pytest.mark.parametrize("kind", ["setup", "check"])
def test_all_take_part_in_sums_of_the_start_and_the_end(kind):
    graph = make_graph("geometric", 20, seed=0)
    hubs, total = gossip(graph, 0, 1500, Faults(agent_dropout=0.5, stragglers=0.1))
    terms = draw_terms(len(hubs))
    total.begin(kind, 7, 2, 8)
    assert total.silent is None
    wanted = np.broadcast_to(terms.sum(axis=0), terms.shape)
    np.testing.assert_allclose(total.reduce(terms), wanted, rtol=1e-9)


def test_the_term_of_a_hub_goes_where_its_root_reaches(monkeypatch):
    """A path 0-1-2-3-4 with root 0: where 2 is silent, 3 and 4 do not hear of the hub's term."""
    graph = make_graph("path", 5)
    hubs = [Hub(0, (0, 1, 2, 3, 4))]
    mixing, routes = mixing_matrix(graph), find_routes(graph, hubs)
    total = GossipSum(
        graph, mixing, hubs, 3, rate=mixing_rate(mixing), faults=Faults(0.1), routes=routes
    )
    awake = np.array([True, True, False, True, True])
    drawn = DrawnFaults(awake, np.ones((3, 4), bool))
    monkeypatch.setattr(Faults, "draw", lambda *given, **more: drawn)
    total.begin("estep", 1, 1, 8)
    np.testing.assert_array_equal(total._informed, [True, True, False, False, False])
    starts = total._spread([np.ones((1, 1))], total._informed)[0][:, 0]
    np.testing.assert_allclose(starts, [2, 2, 0, 0, 0])
    assert starts[awake].mean() == 1


@each("seed", SEEDS)
def test_nothing_depends_on_chunks_or_threads(seed):
    graph = make_graph("geometric", 20, seed=seed, radius=0.4)
    terms = draw_terms(20, seed, (64, 2))
    found = []
    for n_threads, chunks in ((1, 1), (2, 4)):
        _, total = gossip(graph, 0, 12, Faults(0.2, 0.1, 0.1), seed, n_threads=n_threads)
        begun(total, "estep")
        parts = [total.reduce(part) for part in np.split(terms, chunks, axis=1)]
        found.append(np.concatenate(parts, axis=1))
    np.testing.assert_array_equal(*found)
    _, other = gossip(graph, 0, 12, Faults(0.2, 0.1, 0.1), seed + 1)
    assert not np.array_equal(begun(other, "estep").reduce(terms), found[0])
    begun(total, "estep")
    assert not np.array_equal(total.reduce(terms), found[1])


def test_parts_of_a_network_are_named():
    graph = from_edges([("a", "b"), ("b", "c"), ("c", "d")], names=["a", "b", "c", "d"])
    up = np.array([[True, False, False], [False, False, True]])
    with pytest.raises(PartitionedError, match=r"2 parts .* 2 rounds: \('a', 'b'\), \('c', 'd'\)"):
        DrawnFaults(np.ones(4, bool), up).check_whole(graph)
    DrawnFaults(
        np.ones(4, bool), np.array([[True, False, True], [False, True, False]])
    ).check_whole(graph)
    DrawnFaults(np.array([False, True, True, False]), up | True).check_whole(graph)
    with pytest.raises(PartitionedError, match=r"\('a'\), \('c', 'd'\)"):
        DrawnFaults(np.array([True, False, True, True]), up[1:]).check_whole(graph)


def test_a_sum_whose_network_falls_apart_is_refused():
    graph = make_graph("path", 8)
    _, total = gossip(graph, 0, 2, Faults(link_failure=0.9))
    counted = total.counted_on(Ledger(graph))
    with pytest.raises(PartitionedError, match="parts"):
        counted.begin("estep", 7, 2, 8)
    assert counted._number == 1
    assert counted.ledger.of_kind("estep")["messages"] == 2 * counted._drawn.up.sum()
    for kind in ("setup", "check"):
        fresh = total.counted_on(Ledger(graph))
        with pytest.raises(PartitionedError, match="parts"):
            fresh.begin(kind, 7, 2, 8)
        assert fresh._number == 20


def test_no_root_awake():
    graph = make_graph("complete", 3)
    _, total = gossip(graph, 0, 2, Faults(agent_dropout=0.9))
    messages = set()
    for _ in range(30):
        try:
            total.begin("estep", 7, 2, 8)
        except PartitionedError as error:
            messages.add(str(error))
    assert "the roots of all hubs are silent during a sum" in messages


@each("seed", SEEDS)
def test_messages_over_links_that_are_up_are_counted(seed):
    graph = make_graph("geometric", 20, seed=seed, radius=0.4)
    hubs, total = gossip(graph, 1, 6, Faults(0.3, 0.05, 0.1), seed)
    total = begun(total.counted_on(Ledger(graph)), "setup")
    ledger, size = total.ledger, 7 * 2 * 8
    drawn = total._drawn
    told = 20 - len(hubs)
    rounds = total._number * (6 + total.routes.hops)
    found = ledger.of_kind("setup")
    if total._number == 1:
        wanted = told + 2 * int(drawn.up.sum())
        assert found == {"messages": wanted, "bytes": wanted * size, "rounds": rounds}
    flooding = ledger.of_kind("flooding")
    wanted = 2 * graph.n_edges * diameter(graph) * total._number
    assert flooding["messages"] == wanted
    assert flooding["bytes"] == 3 * wanted
    links, _ = ledger.of_links()
    assert links.sum() == ledger.messages


@pytest.mark.parametrize("seed", range(2))
def test_a_fit_converges_over_links_that_fail(overlapping, seed):
    """Within consensus error: every sum is nearly exact after so many rounds."""
    X = overlapping(seed, n_samples=100, n_features=10, k=2)
    graph = make_graph("geometric", 10, seed=seed, radius=0.6)
    partition = contiguous(10, 10)
    network = connect(graph, partition, hops=0)
    _, total = gossip(graph, 0, 150, Faults(link_failure=0.2, stragglers=0.1), seed)
    options = {"init": "random", "seed": seed, "max_iter": 2000}
    exact = fit_vpem(X, network, **options)
    found = fit_vpem(X, dataclasses.replace(network, total=total), **options)
    assert found.log_likelihood == pytest.approx(exact.log_likelihood, abs=1e-6)


def test_one_hub_has_automatic_rounds_too():
    with pytest.warns(VpemWarning, match="hops=1"):
        network = connect(make_graph("complete", 4), contiguous(4, 4), hops=1, agent_dropout=0.1)
    assert network.n_rounds == 1


@pytest.mark.parametrize("failure", [{"link_failure": 0.3}, {"stragglers": 0.3}])
@pytest.mark.parametrize(("topology", "n"), [("complete", 5), ("cycle", 8)])
def test_automatic_rounds_are_enough_though_links_fail(topology, n, failure):
    """A complete graph mixes in one round where nothing fails, but not where something does."""
    graph = make_graph(topology, n)
    network = connect(graph, contiguous(n, n), hops=0, **failure)
    total = network.total.counted_on(Ledger(graph))
    values = np.random.default_rng(0).normal(size=(n, 3, 2))
    for _ in range(20):
        total.begin("estep", 3, 2, 8)
        np.testing.assert_allclose(
            total.reduce(values), np.tile(values.sum(axis=0), (n, 1, 1)), atol=1e-5
        )


def test_rounds_where_nothing_is_up_and_of_one_agent():
    assert failing_rounds(make_graph("complete", 1), Faults(link_failure=0.3), 1e-6) == 1
    assert failing_rounds(make_graph("cycle", 6), Faults(link_failure=1 - 1e-9), 1e-6) > 10**8


def test_silent_agents_take_no_part_in_agreements():
    """A path of 4 whose last agent is silent: 2 links left, 3 rounds of flooding."""
    graph = make_graph("path", 4)
    network = connect(graph, contiguous(4, 4), hops=0, agent_dropout=0.35, n_rounds=40)
    for seed in range(200):
        total = dataclasses.replace(network).total.counted_on(Ledger(graph))
        total.seed = seed
        try:
            total.begin("estep", 5, 2, 8)
        except PartitionedError:
            continue
        awake = total._drawn.awake
        total.agree("stopping")
        links = sum(awake[a] and awake[b] for a, b in graph.edges)
        assert total.ledger.of_kind("stopping")["messages"] == 2 * 3 * links
        if not awake.all():
            return
    raise AssertionError("nobody was silent")


@pytest.mark.parametrize("failure", [{"link_failure": 0.5}, {"stragglers": 0.5}])
def test_one_hub_needs_no_links(failure, overlapping):
    graph = make_graph("cycle", 8)
    with pytest.warns(VpemWarning, match="hops=4"):
        network = connect(graph, contiguous(8, 8), hops=4, **failure)
    with pytest.warns(VpemWarning, match="hops=4"):
        whole = connect(graph, contiguous(8, 8), hops=4)
    X = overlapping(0, 100, 8)
    ours, other = (fit_vpem(X, one, init=[3, 50], max_iter=300) for one in (network, whole))
    assert not ours.partitions
    assert ours.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-12)
