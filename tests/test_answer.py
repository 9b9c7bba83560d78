"""What fits say: sizes and differences of components, reports, and agreement with labels."""

import json
from dataclasses import replace
from itertools import permutations

import h5py
import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.metrics import adjusted_rand_score, confusion_matrix, normalized_mutual_info_score

from vpem import Blocks, connect, connect_workers, fit_vpem, kmeans_features, kmeans_rows
from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.models import Model, model_as_json
from vpem.files.results import StoredClustering, read_clustering, write_clustering
from vpem.fits.answer import (
    NOT_MEASURED,
    Answer,
    CategoryLevels,
    answer_of,
    as_table,
    compare,
    most_telling,
    note_of_one,
    read_labels,
    standardized_means,
    telling_shares,
)
from vpem.network.graph import make_graph
from vpem.network.partition import contiguous, evenly
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.units import Scaling

from .missing_support import dense, random_mixture
from .tables import each, over, pairwise

NAMES = tuple("abcdef")


# ---- sizes and differences, from parameters alone ------------------------------------------------


@each("kind", COVARIANCE_TYPES)
def test_differences_are_in_standard_deviations_of_the_whole_mixture(kind):
    blocks = Blocks((np.array([3, 0, 4]), np.array([2, 1])), (0, 1), ((0,), (1,)))
    rng = np.random.default_rng(3)
    mixture = random_mixture(rng, blocks, kind, 3)
    mixture = replace(mixture, scaling=Scaling(rng.normal(size=5), rng.uniform(0.1, 10, size=5)))
    weights, (means, covariances) = mixture.assembled_weights, dense(mixture)
    whole = weights @ means
    second = weights @ (np.diagonal(covariances, axis1=1, axis2=2) + means**2)
    expected = (means - whole) / np.sqrt(second - whole**2)
    found = Answer.of_mixture(mixture, NAMES[:5], 200.0)
    np.testing.assert_allclose(found.standardized, expected, rtol=1e-9)
    np.testing.assert_allclose(found.means, means)
    np.testing.assert_allclose(found.sizes, 200 * weights)
    listed = found.describe()[1]["differs_most_in"]
    order = np.argsort(-np.abs(expected[1]))[:3]
    assert [one["feature"] for one in listed] == [NAMES[j] for j in order]
    np.testing.assert_allclose([one["deviations"] for one in listed], expected[1, order])
    np.testing.assert_allclose([one["mean"] for one in listed], means[1, order])


def test_features_are_ordered_by_the_share_of_variance_between_components():
    weights, means = np.array([0.5, 0.5]), np.array([[0.0, 1.0, 7.0], [0.0, 3.0, 9.0]])
    standardized = standardized_means(weights, means, np.sqrt([1.0, 2.0, 1.0]))
    np.testing.assert_allclose(telling_shares(weights, standardized), [0, 0.5, 1])
    assert most_telling(weights, standardized).tolist() == [2, 1, 0]
    # Of two levels differences are in standard deviations too, of one there are none.
    levels = CategoryLevels(("no", "yes"), np.array([[0.8, 0.2], [0.1, 0.9]]))
    away = standardized_means(weights, levels.shares[:, 1:], np.sqrt([0.55 * 0.45]))
    np.testing.assert_allclose(levels.away(weights), np.abs(away[:, 0]))
    assert not CategoryLevels(("yes",), np.ones((2, 1))).away(weights).any()
    # A constant feature tells nothing.
    assert not standardized_means(weights, np.ones((2, 1)), np.zeros(1)).any()


WINE = [str(j) for j in range(13)]


def clustered(scale):
    X = load_wine().data
    network = connect_workers(make_graph("star", 2))
    return X, kmeans_rows(X, evenly(len(X), 2), network, n_clusters=3, scale=scale)


def test_clusters_of_standardized_features_differ_in_their_deviations():
    X, found = clustered("standard")
    answer = found.answer(WINE)
    np.testing.assert_allclose(
        answer.standardized, (found.centres - X.mean(axis=0)) / X.std(axis=0), atol=1e-9
    )
    assert answer.sizes.tolist() == np.bincount(found.labels).tolist()
    stored = found.kept(WINE, found.describe(WINE, ["u", "w"]), {})
    labels, distances = stored.assign(X)
    assert labels.tolist() == found.labels.tolist()
    np.testing.assert_allclose(distances, found.distances)


@pytest.mark.filterwarnings("ignore:standard deviations of features differ")
@pairwise(topology=["star", "cycle"], weighed=[False, True], holed=[False, True])
def test_clusters_in_any_units_differ_in_measured_deviations(topology, weighed, holed, tmp_path):
    X = load_wine().data
    weights = np.random.default_rng(0).integers(0, 3, len(X)).astype(float) if weighed else None
    X[4:40:9, 2] = np.nan if holed else X[4:40:9, 2]
    how = {"n_clusters": 3, "missing": "marginalize" if holed else "refuse"}
    how["sample_weight"] = weights
    graph, workers = make_graph(topology, 7), evenly(len(X), 7)
    mass, there = np.ones(len(X)) if weights is None else weights, ~np.isnan(X)

    def mean(values):
        """Of what there is of each column."""
        return mass @ np.nan_to_num(values) / (mass @ there)

    spread = np.sqrt(mean((X - mean(X)) ** 2))
    masked = connect_workers(graph, secure_sum=topology == "star")
    for found in (
        kmeans_rows(X, workers, connect_workers(graph), **how),
        kmeans_rows(X, workers, masked, **how),
        kmeans_features(X, connect(graph, contiguous(13, 7)), **how),
    ):
        np.testing.assert_allclose(found.spread, spread, rtol=1e-9)
        answer = found.answer(WINE)
        assert answer.notes == []
        shares = found.counts / found.counts.sum()
        expected = (found.centres - shares @ found.centres) / spread
        np.testing.assert_allclose(answer.standardized, expected, rtol=1e-9, atol=1e-12)
    report = found.describe(WINE, WINE[:7])
    write_clustering(tmp_path / "clusters.h5", found.kept(WINE, report, {}))
    kept = read_clustering(tmp_path / "clusters.h5")
    np.testing.assert_array_equal(kept.deviations, found.deviations)
    np.testing.assert_array_equal(answer_of(kept).standardized, answer.standardized)


@pytest.mark.filterwarnings("ignore:standard deviations of features differ")
def test_without_measured_deviations_clusters_differ_where_k_means_has_looked():
    X, found = clustered("none")
    assert found.answer(WINE).leading == ("12", pytest.approx(0.9995, abs=1e-4))
    found = replace(found, deviations=None)
    answer = found.answer(WINE)
    assert answer.notes == [NOT_MEASURED]
    assert answer.differences(1)[0].feature == "12", "proline has all the spread"
    within = sum(((X[found.labels == k] - found.centres[k]) ** 2).sum() for k in range(3)) / X.size
    shares = np.bincount(found.labels) / len(X)
    between = shares @ (found.centres - X.mean(axis=0)) ** 2
    expected = (found.centres - X.mean(axis=0)) / np.sqrt(between + within)
    np.testing.assert_allclose(answer.standardized, expected, atol=1e-9)
    # A file has the same answer, also where it has no labels, or nothing but these.
    kept = found.kept(WINE, found.describe(WINE, ["u", "w"]), {})
    bare = StoredClustering(kept.centres, kept.labels[:0], kept.distances[:0], kept.feature_names)
    for one in (kept, replace(bare, report=kept.report), replace(kept, report={})):
        np.testing.assert_allclose(answer_of(one).standardized, expected, atol=1e-9)
        assert answer_of(one).notes == [NOT_MEASURED]


@each(
    ("sizes", "words"),
    [
        ((-3, 10), ["-3", "10"]),
        ((139.93, 64.001, 96.07), ["139.9", "64.0", "96.1"]),
        ((1234.5, 0.4), ["1234", "0"]),
        ((0.0125, 0.5), ["0.0125", "0.5000"]),
    ],
)
def test_sizes_have_as_many_decimals_as_fit_the_largest_and_noise_below_zero_is_nobodys(
    sizes, words
):
    k = len(sizes)
    answer = Answer.of_clusters(np.eye(k), np.array(sizes, float), np.ones(k), NAMES[:k])
    assert [row[1] for row in as_table(answer.describe("cluster"), "cluster").rows] == words
    if min(sizes) < 0:
        assert answer.weights.tolist() == [0, 1]
        assert answer.sizes.tolist() == [-3, 10]
        assert [str(one) for one in answer.differences(0)] == ["a +1.0 sd", "b -1.0 sd"]
        assert answer.differences(1) == []


@each(("share", "said"), [(0.95, True), (0.5, False), (float("nan"), False)])
def test_only_a_large_share_that_is_known_decides_alone(share, said):
    assert bool(note_of_one("a", share, "all squares", "columns")) == said


# ---- reports -------------------------------------------------------------------------------------

AGENTS = ("north", "east", "south", "west")
REPORTED = [
    ("star", {}),
    ("path", {}),
    ("cycle", {"hops": 1, "weights": "laplacian"}),
    ("path", {"consensus": "rounds", "n_rounds": 60}),
]


def fitted(overlapping, topology, hops=0, **options):
    partition, graph = contiguous(6, 4, names=AGENTS), make_graph(topology, 4, names=AGENTS)
    network = connect(graph, partition, hops=hops, **options)
    return fit_vpem(overlapping(0, 150), network, n_components=2, seed=1)


@each(("topology", "options"), REPORTED)
def test_a_report_is_strict_json_of_the_fit(topology, options, overlapping):
    fit = fitted(overlapping, topology, **options)
    report = fit.describe(NAMES, AGENTS)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    sizes = ("n_samples", "n_features", "n_agents", "n_components", "converged")
    assert [report[name] for name in sizes] == [150, 6, 4, 2, True]
    assert report["n_iter"] == len(report["history"])
    assert report["history"] == fit.history.tolist()
    assert report["log_likelihood"] == pytest.approx(np.mean(report["root_log_likelihood"]))
    total = 150 * report["log_likelihood"]
    assert report["aic"] == pytest.approx(2 * report["n_parameters"] - 2 * total)
    assert report["bic"] == pytest.approx(np.log(150) * report["n_parameters"] - 2 * total)
    assert sum(report["mixing_weights"]) == pytest.approx(1)
    rate = fit.total_iterations / report["seconds"]
    assert report["iterations_per_second"] == pytest.approx(rate)
    assert report["agent_names"] == list(AGENTS)
    assert report["feature_names"] == list(NAMES)
    # Hubs divide agents and features.
    held, hubs = contiguous(6, 4).features, report["hubs"]
    assert sorted(agent for hub in hubs for agent in hub["agents"]) == [0, 1, 2, 3]
    assert sorted(column for hub in hubs for column in hub["features"]) == list(range(6))
    for hub in hubs:
        assert hub["features"] == np.concatenate([held[n] for n in hub["agents"]]).tolist()
        assert hub["root"] in hub["agents"]
    assert {len(hubs)} == {len(entry) for entry in report["history"]}
    assert len(hubs) == len(report["root_log_likelihood"]) == fit.mixture.blocks.n_blocks
    summed = [report[name] for name in ("consensus_path", "rounds", "weights", "server", "edges")]
    if topology == "star":
        assert summed == ["server", None, None, 4, [[0, 4], [1, 4], [2, 4], [3, 4]]]
        assert (report["consensus_error"], report["mixing_rate"]) == (0, None)
        assert [hub["root"] for hub in hubs] == [0, 1, 2, 3]
    elif "n_rounds" in options:
        assert summed == ["rounds", 60, "metropolis", None, [[0, 1], [1, 2], [2, 3]]]
        # Metropolis weights of a path of four: 1/3 on the edges.
        assert report["mixing_rate"] == pytest.approx((1 + 2 * np.cos(np.pi / 4)) / 3)
        assert 0 < report["consensus_error"] < 1e-3


def test_recoveries_and_a_start_from_a_model_are_told(overlapping):
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
    again = fit_vpem(overlapping(0, 150), first.network, n_components=2, init=first.mixture)
    report = again.describe(NAMES, AGENTS)
    assert first.describe(NAMES, AGENTS)["init_rows"] is not None
    assert report["init_rows"] is None
    assert report["n_iter"] <= 3
    model = Model(again.mixture, NAMES, report, again.history)
    json.dumps(model_as_json(model), allow_nan=False)


# ---- agreement with labels that fitting never saw ------------------------------------------------


@over(seed=range(5), sizes=[(3, 3), (2, 5), (5, 2), (1, 3), (4, 1)])
def test_measures_against_their_definitions(sizes, seed):
    n_labels, n_clusters = sizes
    rng = np.random.default_rng(seed)
    truth = np.concatenate([np.arange(n_labels), rng.integers(n_labels, size=60 - n_labels)])
    clusters = np.where(rng.random(60) < 0.6, truth % n_clusters, rng.integers(n_clusters, size=60))
    found, larger = compare(truth, clusters, n_clusters), max(sizes)
    # Of every one-to-one mapping the best.
    mappings = map(np.array, permutations(range(larger)))
    assert found.accuracy == max(np.mean(mapping[clusters] == truth) for mapping in mappings)
    assert len(found.mapping) == len(set(found.mapping.values())) == min(sizes)
    given = np.array([found.mapping.get(cluster, -1) for cluster in clusters.tolist()])
    assert np.mean(given == truth) == found.accuracy
    assert found.adjusted_rand_index == pytest.approx(adjusted_rand_score(truth, clusters))
    assert found.normalized_mutual_information == pytest.approx(
        normalized_mutual_info_score(truth, clusters)
    )
    wanted = confusion_matrix(truth, clusters, labels=range(larger))
    np.testing.assert_array_equal(found.confusion, wanted[:n_labels, :n_clusters])
    assert found.classes.tolist() == list(range(n_labels))
    # The numbers of clusters are of no account.
    other = compare(truth, rng.permutation(n_clusters)[clusters], n_clusters)
    assert other.accuracy == found.accuracy
    assert other.adjusted_rand_index == pytest.approx(found.adjusted_rand_index)


def test_labels_may_be_words_or_all_differ_and_clusters_may_be_empty():
    found = compare(np.array(["well", "ill", "ill"]), np.array([3, 1, 1]), 4)
    assert found.accuracy == 1
    assert (found.mapping[3], found.mapping[1]) == ("well", "ill")
    assert found.confusion.tolist() == [[0, 2, 0, 0], [0, 0, 0, 1]]
    assert compare([0, 0, 1, 1, 2], [3, 3, 0, 0, 2], 4).order == [3, 0, 2, 1]
    assert compare(np.arange(40) + 0.5, np.arange(40) % 2, 2).accuracy == 2 / 40


@each(("truth", "clusters"), [([0, 1], [0]), ([], []), ([[0], [1]], [0, 1])])
def test_rows_without_labels_are_refused(truth, clusters):
    with pytest.raises(InputError, match="need as many labels"):
        compare(np.array(truth), np.array(clusters), 2)


@pytest.fixture
def data(tmp_path):
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["X"] = np.ones((3, 2))
        file["other/truth"] = [5, 6, 5]
        file["words"] = ["a", "b", "a"]
        file["table"] = np.ones((3, 2))
    return tmp_path / "d.h5"


def test_labels_from_a_text_file_or_the_dataset_file(tmp_path, data):
    for content in (b"x\ny\nx\n", b"x\ny\nx", b"x\r\ny\r\nx\r\n"):
        (tmp_path / "labels.txt").write_bytes(content)
        assert read_labels(str(tmp_path / "labels.txt"), data, 3).tolist() == ["x", "y", "x"]
    assert read_labels("other/truth", data, 3).tolist() == [5, 6, 5]
    assert read_labels("words", data, 3).tolist() == ["a", "b", "a"]


@each(
    ("where", "content", "kind", "sentence"),
    [
        ("nowhere", None, FileError, "neither a file 'nowhere' nor such a dataset"),
        ("x" * 5000, None, FileError, "neither a file"),
        ("table", None, FileError, "table"),
        ("other", None, FileError, "other"),
        ("words", None, InputError, "has 4 rows, words has 3 labels"),
        ("labels.txt", b"x\ny\n", InputError, r"has 4 rows, .*labels.txt has 2 labels"),
        ("labels.bin", b"\xff\xfe\xff", FileError, "is not UTF-8 text"),
    ],
)
def test_labels_that_cannot_be_had(tmp_path, data, where, content, kind, sentence):
    if content is not None:
        (tmp_path / where).write_bytes(content)
        where = str(tmp_path / where)
    with pytest.raises(kind, match=sentence):
        read_labels(where, data, 4)
