"""EM in fewer sums: what is tried beyond M-steps, what is taken back, and what it costs."""

import json

import h5py
import numpy as np
import pytest

from vpem import connect, connect_workers, fit_em, fit_vpem, make_graph, read_dataset
from vpem.errors import InputError
from vpem.files.matrix import FileMatrix
from vpem.network.ledger import Ledger
from vpem.network.partition import contiguous, evenly
from vpem.steps import accelerate
from vpem.steps.accelerate import LocalSteps, parse_acceleration
from vpem.steps.em import expect
from vpem.terms.features import FeatureTerms

from .cli_support import done, overlapping
from .tables import each

pytestmark = pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")

X, _ = overlapping(240, 6, 3, seed=1)
HOW = {"n_components": 3, "tol": 1e-8, "max_iter": 2000, "n_threads": 1, "init": "k-means++"}


def network(topology="star", n_agents=3, **how):
    return connect(make_graph(topology, n_agents), contiguous(6, n_agents), hops=0, **how)


def per_sample(fit):
    return fit.history / fit.total_weight


CASES = {
    "full": (network(), {}),
    "tied": (network(), {"covariance_type": "tied"}),
    "diag": (network(n_agents=6), {"covariance_type": "diag"}),
    "tied-diag": (network(n_agents=2), {"covariance_type": "tied-diag"}),
    "spherical": (network(), {"covariance_type": "spherical", "seed": 1}),
    "one agent": (network(n_agents=1), {}),
    "tree": (network("cycle", sum="tree"), {}),
    "consensus": (network("cycle", 4, n_rounds=30), {"tol": 1e-7}),
    "weights": (network(), {"sample_weight": np.arange(240) % 3 + 0.5, "scale": "standard"}),
    "missing": (network(), {"missing": "marginalize", "tol": 1e-7}),
}


NAMES = ("squarem", "local:8", "local:8,squarem")


def data_of(how):
    return (
        np.where(np.random.default_rng(2).random(X.shape) < 0.05, np.nan, X)
        if "missing" in how
        else X
    )


@each("case", CASES)
def test_an_accelerated_fit_takes_fewer_sums_to_no_lower_end_and_never_goes_down(case):
    network, how = CASES[case]
    data = data_of(how)
    plain = fit_vpem(data, network, **HOW | how)
    assert plain.lost == []
    for name in NAMES if case in ("full", "consensus") else [NAMES[len(case) % 3]]:
        if len(network.hubs) == 1 and "local" in name:
            with pytest.raises(InputError, match="of a single hub"):
                fit_vpem(data, network, accelerate=name, **HOW | how)
            continue
        fast = fit_vpem(data, network, accelerate=name, **HOW | how)
        assert fast.converged, name
        assert fast.n_iter + len(fast.lost) < 0.8 * plain.n_iter, name
        assert fast.log_likelihood >= plain.log_likelihood - 1e-6, name
        exact = network.total.exact
        assert np.diff(per_sample(fast), axis=0).min() >= (0 if exact else -1e-6), name
        assert fast.log_likelihood >= per_sample(fast)[-1].mean() - 1e-6, name


def test_where_reg_covar_weighs_an_accelerated_fit_ends_where_em_does():
    """There M-steps find less at times, far from where they come to rest."""
    data = read_dataset("data/wine.h5").X
    how = {"covariance_type": "diag", "reg_covar": 0.5, "scale": "standard", "init": "random"}
    hubs = connect(make_graph("star", 4), contiguous(13, 4), hops=0)
    plain, *fast = (
        fit_vpem(data, hubs, **(HOW | how), seed=1, accelerate=pace)
        for pace in (None, "squarem", "local:8", "local:8,squarem")
    )
    for fit in fast:
        assert fit.converged
        assert fit.log_likelihood / 178 >= plain.log_likelihood / 178 - 1e-6
        assert len(fit.history) + len(fit.lost) <= 1.2 * len(plain.history)


@each(
    ["topology", "codec", "name"],
    [
        ("star", "natural:12bits", "local:8,squarem"),
        ("star", "float32", "squarem"),
        ("cycle", "natural:12bits", "local:8"),
    ],
)
def test_with_a_codec_an_accelerated_fit_ends_where_em_does(topology, codec, name):
    coded, how = network(topology, compress=codec), HOW | {"tol": 1e-5}
    plain = fit_vpem(X, coded, **how)
    fast = fit_vpem(X, coded, accelerate=name, **how)
    assert fast.converged
    assert fast.log_likelihood >= plain.log_likelihood - 2e-3


def test_a_step_that_a_sum_shows_to_be_too_long_is_taken_back(monkeypatch):
    monkeypatch.setattr(accelerate, "REACH", 1e6)
    monkeypatch.setattr(accelerate, "BEGINS_BELOW", np.inf)
    plain = fit_vpem(X, network(), **HOW | {"max_iter": 4, "tol": 0})
    reached = []

    def far(self, lines):
        reached.append(self.reach)
        return [np.full(1, 20.0)]

    monkeypatch.setattr(accelerate.Accelerated, "_lengths", far)
    fast = fit_vpem(X, network(), accelerate="squarem", **HOW | {"max_iter": 8, "tol": 0})
    assert reached[:2] == [1e6, 1.0]  # the next one may not go as far
    # The fourth sum is of a step far out: the fifth is of the M-step of the third.
    assert fast.lost[:1] == [4]
    np.testing.assert_array_equal(fast.history[:4], plain.history[:4])
    assert fast.n_iter + len(fast.lost) == 8
    assert np.diff(fast.history[:, 0]).min() >= 0
    # What was only tried when the iterations ran out is not what the run ends with.
    assert fast.log_likelihood >= per_sample(fast)[-1, 0]


@each(["network", "how"], [CASES[name] for name in ("full", "tied-diag", "consensus", "missing")])
def test_a_local_step_from_where_the_sum_was_taken_is_the_m_step(network, how):
    data = data_of(how)
    start = fit_vpem(data, network, **HOW | how | {"max_iter": 5}).mixture
    options = {"missing": how.get("missing") == "marginalize", "scaling": start.scaling}
    terms = FeatureTerms(data, network.blocks, start.covariance_type, **options)
    local = LocalSteps(terms, len(network.hubs), start.n_components, 0.5)
    total, factors = network.total.counted_on(Ledger(network.graph)), terms.prepare(start)
    statistics = terms.empty(start.means, total.n_roots)
    expect(terms, total, start, factors, statistics, rest=local.rest)
    wanted = terms.update(statistics)
    found, _ = local.take_steps(start, factors, 1)
    np.testing.assert_array_equal(found.weights, start.weights)
    np.testing.assert_allclose(found.means, wanted.means, rtol=1e-9)
    np.testing.assert_allclose(found.covariances, wanted.covariances, rtol=1e-9, atol=1e-12)


def test_an_extrapolation_costs_two_numbers_a_hub_and_roots_hear_their_sum():
    plain = fit_vpem(X, network(), **HOW | {"max_iter": 30, "tol": 0})
    fast = fit_vpem(X, network(), accelerate="squarem", **HOW | {"max_iter": 30, "tol": 0})
    more = fast.communication["bytes"] - plain.communication["bytes"]
    decisions = 16 * 3 * 30
    assert (more - decisions) % (2 * 3 * 16) == 0
    assert 5 <= (more - decisions) / (2 * 3 * 16) <= 15


@each("topology", ["star", "cycle"])
def test_over_rows_roots_extrapolate_what_they_have_without_a_message_more(topology):
    workers, how = evenly(240, 3), HOW | {"max_iter": 400}
    joined = connect_workers(make_graph(topology, 3))
    plain = fit_em(X, workers, joined, **how)
    fast = fit_em(X, workers, joined, accelerate="squarem", **how)
    assert fast.converged
    assert fast.n_iter + len(fast.lost) < 0.7 * plain.n_iter
    assert fast.log_likelihood >= plain.log_likelihood - 1e-6
    short = {"max_iter": 12}
    one = fit_em(X, workers, joined, accelerate="squarem", **how | short)
    other = fit_em(X, workers, joined, **how | short)
    assert one.communication["bytes"] == other.communication["bytes"]


@each("covariance_type", ["full", "tied", "diag", "spherical", "tied-diag", "tied-spherical"])
def test_coordinates_are_those_of_a_vector_space(covariance_type):
    mixture = fit_vpem(
        X, network(), n_components=3, covariance_type=covariance_type, max_iter=3, n_threads=1
    ).mixture
    floors = np.full(X.shape[1], 1e-7)
    here = mixture.coordinates(floors)
    again = mixture.at_coordinates(here, floors)
    for name in ("weights", "means", "covariances"):
        np.testing.assert_allclose(getattr(again, name), getattr(mixture, name), rtol=1e-12)
    # Far out in any direction there is a mixture with covariances above the floor.
    before = fit_vpem(
        X, network(), n_components=3, covariance_type=covariance_type, max_iter=1, n_threads=1
    ).mixture
    ahead = here.minus(before.coordinates(floors))
    for step in (-30.0, 30.0):
        far = mixture.at_coordinates(here.moved(np.array([step]), ahead), floors)
        np.testing.assert_allclose(far.weights.sum(), 1)
        assert not far.factors.failed.any()
    parts = ahead.dot(ahead, 1 / 3)
    total = sum((one**2).sum() for one in (ahead.weights, *ahead.columns, ahead.flat))
    np.testing.assert_allclose(parts.sum(), total)


@each(
    ("call", "said"),
    [
        *((lambda name=name: parse_acceleration(name), r"must be squarem, local:N .* got")
          for name in ("", "squarem,squarem", "local", "local:0", "local:1001", "local:x",
                       "anderson", ",", 3, -7.5)),
        (lambda: fit_vpem(X, network(), accelerate="squarem", batch_size=20),
         "no sum over a batch shows"),
        (lambda: fit_vpem(X, network("complete", link_failure=0.1, n_rounds=9),
                          accelerate="squarem"),
         r"by consensus differ by which agents were heard; .* sum='tree'"),
        (lambda: fit_vpem(X, network("cycle", 4, compress="natural:12bits"), accelerate="squarem"),
         "would be mistaken for such changes; take accelerate='local:8'"),
        (lambda: fit_em(X, evenly(240, 3), connect_workers(make_graph("star", 3)),
                        accelerate="local:8"),
         "no worker has parameters of its own"),
    ],
)  # fmt: skip
def test_what_cannot_be_accelerated_is_refused_with_the_reason(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_where_messages_along_a_tree_wait_it_is_as_ever():
    along = {"n_components": 2, "accelerate": "local:2,squarem", "max_iter": 9}
    plain, waiting = (
        fit_vpem(X, network("cycle", 4, sum="tree", link_failure=failure), **along)
        for failure in (0.0, 0.3)
    )
    np.testing.assert_array_equal(waiting.history, plain.history)


def test_local_steps_read_from_disk_what_is_there_and_keep_no_more_than_they_may(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = X
    how = HOW | {"accelerate": "local:8", "max_iter": 30}
    stored = FileMatrix(tmp_path / "x.h5")
    stored.memory_limit = 1 << 16
    found = fit_vpem(stored, network(), **how)
    np.testing.assert_allclose(found.history, fit_vpem(X, network(), **how).history)
    stored.memory_limit = 10_000
    with pytest.raises(InputError, match="of every row and component, is kept in memory and"):
        fit_vpem(stored, network(), **how)


@each("words", [["--split", "rows", "--workers", "3"], ["--agents", "3", "--topology", "star"]])
def test_the_command_reports_how_a_fit_was_accelerated(tmp_path, capsys, words):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = X
    fit = ["fit", str(tmp_path / "x.h5"), "-k", "3", *words]
    assert "rejected" not in done(capsys, *fit).out
    report = json.loads(done(capsys, *fit, "--accelerate", "squarem", "--json").out)
    assert report["accelerate"] == "squarem"
    assert len(report["lost_sums"]) + report["n_iter"] <= 1000
    lost = len(report["lost_sums"])
    shown = done(capsys, *fit, "--accelerate", "squarem").out
    assert (f"{lost} sum" in shown) == (lost > 0)
