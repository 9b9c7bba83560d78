"""Hubs by h-hop clustering, and by likelihood: what they gain, and what finding them shows."""

import itertools
import json
import warnings

import h5py
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpem import VPEM, fit_vpem
from vpem._core import balls
from vpem.errors import InputError, VpemWarning
from vpem.files.models import read_model
from vpem.fits.likely_hubs import connect_by_likelihood
from vpem.fits.plan import plan
from vpem.network.graph import from_edges, from_networkx, make_graph
from vpem.network.hubs import (
    Hub,
    charge_features,
    diameter,
    eccentricities,
    find_hubs,
    find_meetings,
    find_routes,
    gains,
    search_hubs,
)
from vpem.network.ledger import Ledger
from vpem.network.partition import contiguous, from_lists
from vpem.settings import TOPOLOGIES, FitSettings, SumSettings
from vpem.sums.connect import connect, spread

from .cli_support import done
from .tables import each, over
from .thread_engine import together
from .twins import codecs as twins

# The nine agents of Valdeira et al., section 6, numbered from 1.
NINE = [(2, 1), (2, 3), (2, 4), (2, 5), (5, 6), (6, 7), (6, 8), (5, 9)]


def quiet_hubs(graph, hops, seed=0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        return find_hubs(graph, hops, seed)


def check_greedy(oracle, hops, hubs):
    """Check each hub against all balls of what is left when it is taken."""
    left = oracle.copy()
    for hub in hubs:
        near = {v: set(nx.single_source_shortest_path_length(left, v, cutoff=hops)) for v in left}
        assert set(hub.agents) == near[hub.root]
        assert len(hub.agents) == max(map(len, near.values()))
        assert list(hub.agents) == sorted(hub.agents)
        left.remove_nodes_from(hub.agents)
    assert len(left) == 0


def test_the_nine_agents_of_the_paper():
    graph = from_edges([(i - 1, j - 1) for i, j in NINE], 9)
    for seed in range(4):
        hubs = find_hubs(graph, 1, seed)
        assert hubs == [Hub(1, (0, 1, 2, 3, 4)), Hub(5, (5, 6, 7)), Hub(8, (8,))]


@given(st.integers(1, 20), st.floats(0.05, 0.7), st.integers(1, 6), st.integers(0, 2**31 - 1))
@settings(max_examples=40, deadline=None)
def test_hubs_are_the_greedy_ones(n, p, hops, seed):
    oracle = nx.gnp_random_graph(n, p, seed=seed)
    hubs = quiet_hubs(from_networkx(oracle, n), hops, seed)
    check_greedy(oracle, hops, hubs)


@each("topology", TOPOLOGIES)
def test_without_hops_every_agent_is_a_hub(topology):
    for n in (1, 2, 9):
        graph = make_graph(topology, n)
        assert find_hubs(graph, 0, seed=3) == [Hub(agent, (agent,)) for agent in range(n)]


def test_a_seed_fixes_the_hubs():
    graph = make_graph("cycle", 30)
    assert find_hubs(graph, 1, 5) == find_hubs(graph, 1, 5)
    assert find_hubs(graph, 1, 5) == find_hubs(graph, 1, np.random.default_rng(5))
    assert len({tuple(find_hubs(graph, 1, seed)) for seed in range(10)}) == 10


def test_every_tied_agent_is_equally_likely_to_be_the_first_root():
    graph = make_graph("cycle", 6)
    roots = [find_hubs(graph, 1, seed)[0].root for seed in range(600)]
    counts = np.bincount(roots, minlength=6)
    assert np.abs(counts - 100).max() < 46  # five standard deviations


def test_every_tied_agent_is_reached_below_the_top_too():
    # The middle of a star comes first; each of the paths of two left over is tied.
    edges = [(0, i) for i in range(1, 8)] + [(i, i + 7) for i in (1, 2)] + [(8, 10), (9, 11)]
    graph = from_edges([*edges, (3, 12)], 13)
    seconds = {find_hubs(graph, 1, seed)[1].root for seed in range(60)}
    assert seconds == {8, 9, 10, 11}


@each(
    ("graph", "hops", "told", "hub"),
    [
        (make_graph("star", 1), 1, "the server receives the raw features of every agent",
         Hub(1, (0,))),
        (make_graph("star", 5), 1, "the server receives the raw features of every agent",
         Hub(5, tuple(range(5)))),
        (from_edges([("mid", end) for end in "abc"]), 1, "hops=1 centralizes .* mid receives",
         Hub(3, (0, 1, 2, 3))),
        (from_networkx(nx.star_graph(4)), 1, "agent 0 receives", Hub(0, tuple(range(5)))),
        (make_graph("path", 50), 10**30, "centralizes", None),
    ],
)  # fmt: skip
def test_one_hub_of_all_agents_warns_and_names_the_root(graph, hops, told, hub):
    with pytest.warns(VpemWarning, match=told):
        (found,) = find_hubs(graph, hops)
    assert found == hub or (hub is None and found.agents == tuple(range(50)))


@each("hops", [-1, 1.5, "1", None, True])
def test_hops_and_seeds_that_are_none_are_refused(hops):
    assert find_hubs(make_graph("cycle", 1), 2) == [Hub(0, (0,))]  # without a warning
    with pytest.raises(InputError, match="hops must be an integer of at least 0"):
        find_hubs(make_graph("cycle", 5), hops)
    for topology, reach in (("cycle", 1), ("cycle", 0), ("star", 1)):  # also where none is drawn
        with pytest.raises(InputError, match="seed must be an integer"):
            find_hubs(make_graph(topology, 5), reach, -3)


def test_features_are_sent_to_their_root_hop_by_hop():
    graph = make_graph("path", 5)
    ledger, routes = Ledger(graph), find_routes(graph, [Hub(2, (0, 1, 2, 3, 4))])
    charge_features(ledger, routes, [1, 2, 0, 3, 1], n_samples=10, itemsize=8)
    assert ledger.summary()["by_link"]["bytes"]["setup"] == [80, 240, 320, 80]
    assert ledger.of_kind("setup")["messages"] == 6


@each("seed", range(3))
def test_the_kernel_equals_its_twin(seed):
    rng = np.random.default_rng(seed)
    n = 40
    graph = from_networkx(nx.gnp_random_graph(n, 0.08, seed=seed), n)
    removed = rng.random(n) < 0.3
    results = []
    for module in (balls, twins):
        stamp = np.where(removed, np.iinfo(np.int32).max, 0).astype(np.int32)
        queue = np.full(n, -1, np.int32)
        found = []
        for mark, (root, hops) in enumerate(
            ((root, hops) for root in np.flatnonzero(~removed).tolist() for hops in range(6)), 1
        ):
            size = module.ball(*graph.adjacency, root, hops, stamp, mark, queue)
            found.append((size, queue[:size].tolist(), stamp.tolist()))
        results.append(found)
    assert results[0] == results[1]
    assert max(size for size, _, _ in results[0]) > 3


# ---- how far agents are from each other ---------------------------------------------------------


@given(st.integers(2, 30), st.floats(0.0, 0.5), st.integers(0, 2**31 - 1))
@settings(max_examples=20, deadline=None)
def test_eccentricities_of_random_graphs(n, density, seed):
    oracle = nx.gnp_random_graph(n, density, seed=seed)
    oracle.add_edges_from(nx.random_labeled_tree(n, seed=seed).edges)
    graph = from_networkx(oracle, n)
    expected = nx.eccentricity(oracle)
    assert eccentricities(graph).tolist() == [expected[node] for node in range(n)]
    assert diameter(graph) == max(expected.values())
    star = make_graph("star", n)
    assert eccentricities(star).tolist() == [2 if n > 1 else 1] * n + [1]
    assert diameter(make_graph("path", 1)) == 0


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
    assert diameter(graph) == nx.diameter(nx.from_edgelist(graph.edges.tolist()), usebounds=True)
    assert len(searches) <= 100


# ---- by likelihood ------------------------------------------------------------------------------

QUIET = pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
FITTED = {"n_components": 2, "tol": 1e-9}


def partitions(agents):
    """Yield every partition of a list, as lists."""
    if not agents:
        yield []
        return
    first, rest = agents[0], agents[1:]
    for size in range(len(rest) + 1):
        for others in itertools.combinations(rest, size):
            for found in partitions([agent for agent in rest if agent not in others]):
                yield [[first, *others], *found]


def is_hub(graph, agents, hops):
    """Whether one of the agents is that near to all others, by ways among them."""
    return ways(graph, agents, hops).all(axis=1).any()


def ways(graph, agents, hops):
    """Count ways of so many steps, or rests, between some agents among themselves."""
    steps = np.eye(graph.n_agents)
    for one, other in graph.edges:
        steps[one, other] = steps[other, one] = 1
    return np.linalg.matrix_power(steps[np.ix_(agents, agents)], hops)


def some_gains(seed, widths):
    """Return gains of random correlations, in two components."""
    rng = np.random.default_rng(seed)
    ends, d = np.cumsum([0, *widths]), sum(widths)
    loadings = rng.normal(size=(2, d, 3))
    covariances = loadings @ loadings.transpose(0, 2, 1) + 2 * np.eye(d)
    scale = np.sqrt(np.einsum("kii->ki", covariances))
    covariances /= scale[:, :, None] * scale[:, None, :]
    columns = [np.arange(*ends[i : i + 2]) for i in range(len(widths))]
    return gains(covariances, np.array([0.3, 0.7]), columns, per_entry=0.03)


def correlated(n_samples=400, seed=0):
    """Return rows of six features of which 0 and 1, 2 and 3, 4 and 5 correlate in components."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=n_samples)
    pairs = rng.normal(size=(n_samples, 3))
    noise = rng.normal(size=(n_samples, 6))
    sign = np.where(labels, 1.0, -1.0)[:, None]
    return np.repeat(pairs, 2, axis=1) * np.where(np.arange(6) % 2, sign, 1.0) + 0.5 * noise + sign


@QUIET
@over(topology=("cycle", "geometric", "tree"), hops=(1, 2))
def test_hubs_of_few_agents_are_the_best_of_all_partitions(topology, hops, monkeypatch):
    seed, rng = 1, np.random.default_rng(1)
    widths = rng.integers(0, 3, size=7).tolist()
    gains, graph = some_gains(seed, widths), make_graph(topology, 7, seed=seed)
    hubs, found = search_hubs(graph, hops, gains, widths, seed)
    worth = {
        hub: gains(frozenset(hub)) if is_hub(graph, hub, hops) else -np.inf
        for size in range(1, 8)
        for hub in itertools.combinations(range(7), size)
    }
    best = max(sum(worth[tuple(hub)] for hub in found) for found in partitions(list(range(7))))
    assert sorted(agent for hub in hubs for agent in hub.agents) == list(range(7))
    assert all(is_hub(graph, list(hub.agents), hops) for hub in hubs)
    assert found == pytest.approx(best, abs=1e-10)
    monkeypatch.setattr("vpem.network.hubs.FEW", 0)  # as for many
    others, near = search_hubs(graph, hops, gains, widths, seed)
    by_size = sum(gains(frozenset(hub.agents)) for hub in find_hubs(graph, hops, seed))
    assert by_size - 1e-10 <= near <= best + 1e-10
    assert all(is_hub(graph, list(hub.agents), hops) for hub in others)
    assert search_hubs(graph, hops, gains, widths, seed)[0] == others


@QUIET
def test_the_root_is_that_to_which_features_have_the_shortest_ways():
    path = make_graph("path", 3)
    for widths, root in (([2, 1, 2], 1), ([5, 1, 1], 0), ([1, 1, 5], 2)):
        ((hub,), _) = search_hubs(path, 2, lambda agents: len(agents) - 1.0, widths)
        assert hub == Hub(root, (0, 1, 2))


@over(topology=("cycle", "geometric", "complete"), hops=(1, 2))
def test_features_of_every_two_that_could_share_a_hub_meet_once_or_more(topology, hops):
    graph = make_graph(topology, 9, seed=1)
    met = {
        pair for one in find_meetings(graph, hops) for pair in itertools.combinations(one.agents, 2)
    }
    balls = map(np.flatnonzero, ways(graph, range(9), hops))
    could = {pair for ball in balls for pair in itertools.combinations(ball.tolist(), 2)}
    assert met == could
    if topology == "complete":
        assert len(find_meetings(graph, hops)) == 1


@QUIET
@each("covariance", ("full", "tied"))
def test_the_likelihood_rises_by_what_is_promised_and_more(covariance):
    X = correlated()
    path = make_graph("path", 6)
    how = FitSettings(covariance_type=covariance, **FITTED)
    sums = SumSettings(hops=1, hubs="likelihood", sum="tree")
    network = connect_by_likelihood(X, path, contiguous(6, 6), sums, how)
    first = fit_vpem(X, connect(path, contiguous(6, 6), sum="tree"), how)
    assert network.chosen.first["log_likelihood"] == first.log_likelihood
    if covariance == "full":  # of the other the signs cancel
        assert [hub.agents for hub in network.hubs] == [(0, 1), (2, 3), (4, 5)]
    after = fit_vpem(X, network, how, init=first.mixture, max_iter=2)
    assert after.log_likelihood >= first.log_likelihood + network.chosen.gain > first.log_likelihood


def test_what_is_constant_in_a_component_and_rows_without_weight_change_nothing():
    X = correlated()
    X[:, 2] = X[:, 0] > 0
    sums = SumSettings(hops=1, hubs="likelihood", sum="tree")
    more = [np.r_[X, X[:50]], np.r_[X, np.full((50, 6), 3.0)]]
    weights = [np.ones(450), np.r_[np.full(50, 2.0), np.ones(350), np.zeros(50)]]
    found = [
        connect_by_likelihood(
            rows, make_graph("path", 6), contiguous(6, 6), sums,
            FitSettings(init=[60, 70], n_components=2), sample_weight=weight,
        ).chosen
        for rows, weight in zip(more, weights, strict=True)
    ]  # fmt: skip
    assert found[0].hubs == found[1].hubs
    assert found[0].gain == pytest.approx(found[1].gain, abs=1e-8)


@QUIET
@each("topology", ("cycle", "path"))
def test_members_choose_as_one_process_does(topology):
    X, graph, held = (
        correlated(),
        make_graph(topology, 6),
        from_lists([[1], [0], [2, 3], [], [5], [4]], 6),
    )
    sums, how = SumSettings(hops=2, hubs="likelihood", sum="tree"), FitSettings(**FITTED)
    alone = connect_by_likelihood(X, graph, held, sums, how).chosen

    def member(engine):
        def over(network):
            return spread(network, engine)

        own = over(connect(graph, held, sum="tree"))
        columns = [c for a in own.agents.own for c in held.features[a]]
        return connect_by_likelihood(X[:, columns], graph, held, sums, how, over=over).chosen

    for chosen in together(3, member):
        assert chosen.hubs == alone.hubs
        assert chosen.gain == pytest.approx(alone.gain, abs=1e-9)
        assert chosen.sent.summary() == alone.sent.summary()


def test_a_command_an_estimator_and_a_plan_have_the_same_hubs(tmp_path, capsys):
    X = correlated()
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["X"] = X
    words = ("--topology", "path", "--hops", 1, "--hubs", "likelihood", "--sum", "tree")
    model = tmp_path / "model.h5"
    checkpoint = ("--checkpoint", tmp_path / "run.ckpt", "--checkpoint-every", 1)
    command = ("fit", tmp_path / "data.h5", *words, *checkpoint, "-o", model, "--force")
    part = done(capsys, *command, "--max-iter", 3, "--json")
    whole = json.loads(done(capsys, *command, "--resume-if-any", "--json").out)
    report = read_model(model).report
    estimator = VPEM(2, graph="path", hops=1, hubs="likelihood", sum="tree").fit(X)
    hubs = [(0, 1), (2, 3), (4, 5)]
    assert json.loads(part.out)["hubs"] == whole["hubs"]
    assert [tuple(hub["agents"]) for hub in whole["hubs"]] == hubs
    assert [hub.agents for hub in estimator.hubs_] == hubs
    assert report["hubs_chosen"] == whole["hubs_chosen"]
    assert whole["hubs_chosen"]["gain"] == estimator.fit_.network.chosen.gain > 0
    assert whole["log_likelihood"] == pytest.approx(estimator.fit_.log_likelihood, abs=1e-9)
    # What is shown and told is foretold, but for the first fit.
    asked = {"n_samples": 400, "hops": 1, "sum": "tree"}
    foretold = [
        plan(make_graph("path", 6), [1] * 6, hubs=way, **asked) for way in ("size", "likelihood")
    ]
    sizes = [one["communication"]["setup"]["bytes"] for one in foretold]
    shown = sum(len(one["agents"]) - 1 for one in whole["hubs_chosen"]["shown"])
    moments = sum(
        4 + 8 * 2 * (1 + d + d * (d + 1) // 2)
        for d in (len(one["agents"]) for one in whole["hubs_chosen"]["shown"])
    )
    assert sizes[1] - sizes[0] == shown * 400 * 8 + moments * 2 * 5
    assert foretold[1]["first_fit"]["bytes"] > 0
    assert foretold[0]["first_fit"] is None


ASKED = {"hubs": "likelihood", "graph": "path", "hops": 1, "sum": "tree"}
REFUSED = [
    ({"graph": "star", "sum": None}, "on a star"),
    ({"hops": 0}, "without hops none do"),
    ({"covariance_type": "diag"}, "independent"),
    ({"missing": "marginalize"}, "those of pairs"),
    ({"release_epsilon": 1.0, "delta": 1e-5, "bounds": "-9,9"}, "without noise"),
]


@each(("changes", "why"), REFUSED)
def test_what_has_no_choice_by_likelihood_is_refused(changes, why):
    with pytest.raises(InputError, match=why):
        VPEM(2, **(ASKED | changes)).fit(correlated(50))
    if why == "on a star":
        with pytest.raises(InputError, match="connect sees none"):
            connect(make_graph("path", 6), contiguous(6, 6), hops=1, hubs="likelihood")
