"""Hubs by likelihood: what they gain, how they are found, and what finding them shows."""

import itertools
import json

import h5py
import numpy as np
import pytest

from vpem import VPEM, fit_vpem, make_graph
from vpem.errors import InputError
from vpem.files.models import read_model
from vpem.fits.likely_hubs import connect_by_likelihood
from vpem.fits.plan import plan
from vpem.network.hubs import find_hubs, find_meetings, gains, search_hubs
from vpem.network.partition import contiguous, from_lists
from vpem.settings import FitSettings, SumSettings
from vpem.sums.connect import connect, spread

from .cli_support import done
from .tables import each, over
from .thread_engine import together

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
@over(topology=("cycle", "geometric", "tree"), hops=(1, 2), seed=range(3))
def test_hubs_of_few_agents_are_the_best_of_all_partitions(topology, hops, seed, monkeypatch):
    rng = np.random.default_rng(seed)
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
