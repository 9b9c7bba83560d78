import json
from dataclasses import replace

import numpy as np
import pytest

from vpem import connect, fit_vpem, make_graph
from vpem.errors import VpemWarning
from vpem.files.models import Model, model_as_json
from vpem.network.partition import contiguous

NAMES = tuple("abcdef")
AGENTS = ("north", "east", "south", "west")


def fitted(overlapping, topology, n_components=2, **options):
    partition = contiguous(6, 4, names=AGENTS)
    graph = make_graph(topology, 4, names=AGENTS)
    network = connect(graph, partition, hops=options.pop("hops", 0), **options)
    return fit_vpem(overlapping(0, 150), network, n_components=n_components, seed=1)


CASES = {
    "star": {"topology": "star"},
    "path": {"topology": "path"},
    "hubs": {"topology": "cycle", "hops": 1, "weights": "laplacian"},
    "rounds": {"topology": "path", "consensus": "rounds", "n_rounds": 60},
}


@pytest.fixture(params=CASES)
def told(request, overlapping):
    fit = fitted(overlapping, **CASES[request.param])
    return fit, fit.describe(NAMES, AGENTS)


def test_a_report_is_strict_json(told):
    _, report = told
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_numbers_of_the_report_are_those_of_the_fit(told):
    fit, report = told
    assert report["n_samples"] == 150
    assert report["n_features"] == 6
    assert report["n_agents"] == 4
    assert report["n_components"] == 2
    assert report["converged"] is True
    assert report["n_iter"] == len(report["history"]) == len(fit.history)
    assert report["history"] == fit.history.tolist()
    assert report["log_likelihood"] == pytest.approx(np.mean(report["root_log_likelihood"]))
    total = 150 * report["log_likelihood"]
    assert report["aic"] == pytest.approx(2 * report["n_parameters"] - 2 * total)
    assert report["bic"] == pytest.approx(np.log(150) * report["n_parameters"] - 2 * total)
    assert sum(report["mixing_weights"]) == pytest.approx(1)
    assert report["seconds"] > 0
    assert report["iterations_per_second"] == pytest.approx(
        fit.total_iterations / report["seconds"]
    )
    assert report["agent_names"] == list(AGENTS)
    assert report["feature_names"] == list(NAMES)


def test_hubs_divide_agents_and_features(told):
    fit, report = told
    held = contiguous(6, 4).features
    assert sorted(agent for hub in report["hubs"] for agent in hub["agents"]) == [0, 1, 2, 3]
    assert sorted(column for hub in report["hubs"] for column in hub["features"]) == list(range(6))
    for hub in report["hubs"]:
        assert hub["features"] == np.concatenate([held[n] for n in hub["agents"]]).tolist()
        assert hub["root"] in hub["agents"]
    assert len(report["root_log_likelihood"]) == len(report["hubs"])
    assert all(len(entry) == len(report["hubs"]) for entry in report["history"])
    assert len(report["hubs"]) == fit.mixture.blocks.n_blocks


def test_an_exact_sum_has_no_rounds(overlapping):
    report = fitted(overlapping, "star").describe(NAMES, AGENTS)
    assert report["server"] == 4
    assert report["consensus_path"] == "server"
    assert report["consensus_error"] == 0
    assert report["rounds"] is report["weights"] is report["mixing_rate"] is None
    assert report["edges"] == [[0, 4], [1, 4], [2, 4], [3, 4]]
    assert [hub["root"] for hub in report["hubs"]] == [0, 1, 2, 3]


def test_a_consensus_says_how_it_mixes(overlapping):
    fit = fitted(overlapping, "path", consensus="rounds", n_rounds=60)
    report = fit.describe(NAMES, AGENTS)
    assert report["server"] is None
    assert report["consensus_path"] == "rounds"
    assert report["rounds"] == 60
    assert report["weights"] == "metropolis"
    assert report["edges"] == [[0, 1], [1, 2], [2, 3]]
    # Metropolis weights of a path of four: 1/3 on the edges; lambda_2 = (1 + 2 cos(pi / 4)) / 3.
    assert report["mixing_rate"] == pytest.approx((1 + 2 * np.cos(np.pi / 4)) / 3)
    assert 0 < report["consensus_error"] < 1e-3


def test_recoveries_are_told(overlapping):
    first = fitted(overlapping, "star")
    means = first.mixture.means.copy()
    means[1] += 1e3  # no row is near
    lost = replace(first.mixture, means=means)
    with pytest.warns(VpemWarning, match=r"component 1 in hub 0 \(weight, iteration 1\)"):
        fit = fit_vpem(overlapping(0, 150), first.network, n_components=2, init=lost)
    report = fit.describe(NAMES, AGENTS)
    told = report["recoveries"][0]
    assert told == {"iteration": 1, "component": 1, "hub": 0, "reason": "weight",
                    "row": told["row"]}  # fmt: skip
    assert 0 <= told["row"] < 150
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_a_start_from_a_model_has_no_rows(overlapping):
    first = fitted(overlapping, "star")
    again = fit_vpem(overlapping(0, 150), first.network, n_components=2, init=first.mixture)
    report = again.describe(NAMES, AGENTS)
    assert first.describe(NAMES, AGENTS)["init_rows"] is not None
    assert report["init_rows"] is None
    assert report["n_iter"] <= 3
    model = Model(again.mixture, NAMES, report, again.history)
    json.dumps(model_as_json(model), allow_nan=False)
