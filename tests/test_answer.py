"""Sizes of components and the features in which each differs, from parameters alone."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_wine

from vpem import Blocks, connect, connect_workers, kmeans_features, kmeans_rows, make_graph
from vpem.files.results import StoredClustering, read_clustering, write_clustering
from vpem.fits.answer import (
    NOT_MEASURED,
    Answer,
    answer_of,
    as_table,
    most_telling,
    note_of_one,
    standardized_means,
    telling_shares,
)
from vpem.network.partition import contiguous, evenly
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.units import Scaling

from .missing_support import dense, random_mixture

NAMES = ("a", "b", "c", "d", "e")


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_differences_are_in_standard_deviations_of_the_whole_mixture(kind):
    blocks = Blocks((np.array([3, 0, 4]), np.array([2, 1])), (0, 1), ((0,), (1,)))
    rng = np.random.default_rng(3)
    mixture = random_mixture(rng, blocks, kind, 3)
    mixture = replace(mixture, scaling=Scaling(rng.normal(size=5), rng.uniform(0.1, 10, size=5)))
    weights, (means, covariances) = mixture.assembled_weights, dense(mixture)
    whole = weights @ means
    second = weights @ (np.diagonal(covariances, axis1=1, axis2=2) + means**2)
    expected = (means - whole) / np.sqrt(second - whole**2)
    found = Answer.of_mixture(mixture, NAMES, 200.0)
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
    # A constant feature tells nothing.
    assert not standardized_means(weights, np.ones((2, 1)), np.zeros(1)).any()


def clustered(scale):
    X = load_wine().data
    network = connect_workers(make_graph("star", 2))
    return X, kmeans_rows(X, evenly(len(X), 2), network, n_clusters=3, scale=scale)


def test_clusters_of_standardized_features_differ_in_their_deviations():
    X, found = clustered("standard")
    answer = found.answer([str(j) for j in range(13)])
    np.testing.assert_allclose(
        answer.standardized, (found.centres - X.mean(axis=0)) / X.std(axis=0), atol=1e-9
    )
    assert answer.sizes.tolist() == np.bincount(found.labels).tolist()


@pytest.mark.filterwarnings("ignore:standard deviations of features differ")
@pytest.mark.parametrize("topology", ["star", "cycle"])
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("holed", [False, True])
def test_clusters_in_any_units_differ_in_measured_deviations(topology, weighed, holed, tmp_path):
    X = load_wine().data
    weights = np.random.default_rng(0).integers(0, 3, len(X)).astype(float) if weighed else None
    X[4:40:9, 2] = np.nan if holed else X[4:40:9, 2]
    how = {"n_clusters": 3, "missing": "marginalize" if holed else "refuse"}
    graph, workers = make_graph(topology, 7), evenly(len(X), 7)
    spread = np.sqrt(_mean((X - _mean(X, weights)) ** 2, weights))
    names = [str(j) for j in range(13)]
    masked = topology == "star"
    for found in (
        kmeans_rows(X, workers, connect_workers(graph), sample_weight=weights, **how),
        kmeans_rows(
            X, workers, connect_workers(graph, secure_sum=masked), sample_weight=weights, **how
        ),
        kmeans_features(X, connect(graph, contiguous(13, 7)), sample_weight=weights, **how),
    ):
        np.testing.assert_allclose(found.spread, spread, rtol=1e-9)
        answer = found.answer(names)
        assert answer.notes == []
        shares = found.counts / found.counts.sum()
        expected = (found.centres - shares @ found.centres) / spread
        np.testing.assert_allclose(answer.standardized, expected, rtol=1e-9, atol=1e-12)
    report = found.describe(names, names[:7])
    write_clustering(tmp_path / "clusters.h5", found.kept(names, report, {}))
    kept = read_clustering(tmp_path / "clusters.h5")
    np.testing.assert_array_equal(kept.deviations, found.deviations)
    np.testing.assert_array_equal(answer_of(kept).standardized, answer.standardized)


def _mean(X, weights):
    """Mean of what there is of each column."""
    weights = np.ones(len(X)) if weights is None else weights
    there = ~np.isnan(X)
    return weights @ np.nan_to_num(X) / (weights @ there)


@pytest.mark.filterwarnings("ignore:standard deviations of features differ")
def test_without_measured_deviations_clusters_differ_where_k_means_has_looked():
    X, found = clustered("none")
    names = [str(j) for j in range(13)]
    assert found.answer(names).leading == ("12", pytest.approx(0.9995, abs=1e-4))
    found = replace(found, deviations=None)
    answer = found.answer(names)
    assert answer.notes == [NOT_MEASURED]
    assert answer.differences(1)[0].feature == "12", "proline has all the spread"
    within = sum(((X[found.labels == k] - found.centres[k]) ** 2).sum() for k in range(3)) / X.size
    shares = np.bincount(found.labels) / len(X)
    between = shares @ (found.centres - X.mean(axis=0)) ** 2
    expected = (found.centres - X.mean(axis=0)) / np.sqrt(between + within)
    np.testing.assert_allclose(answer.standardized, expected, atol=1e-9)
    # A file has the same answer, also where it has no labels, or nothing but these.
    kept = found.kept(names, found.describe(names, ["u", "w"]), {})
    bare = StoredClustering(kept.centres, kept.labels[:0], kept.distances[:0], kept.feature_names)
    for one in (kept, replace(bare, report=kept.report), replace(kept, report={})):
        np.testing.assert_allclose(answer_of(one).standardized, expected, atol=1e-9)
        assert answer_of(one).notes == [NOT_MEASURED]


def test_a_size_with_noise_below_zero_is_nobodys():
    answer = Answer.of_clusters(np.eye(2), np.array([-3.0, 10.0]), np.ones(2), ("a", "b"))
    assert answer.weights.tolist() == [0, 1]
    assert answer.sizes.tolist() == [-3, 10]
    assert [str(one) for one in answer.differences(0)] == ["a +1.0 sd", "b -1.0 sd"]
    assert answer.differences(1) == []


def test_sizes_have_as_many_decimals_as_fit_the_largest():
    shown = {
        (-3, 10): ["-3", "10"],
        (139.93, 64.001, 96.07): ["139.9", "64.0", "96.1"],
        (1234.5, 0.4): ["1234", "0"],
        (0.0125, 0.5): ["0.0125", "0.5000"],
    }
    for sizes, words in shown.items():
        answer = Answer.of_clusters(
            np.eye(len(sizes)), np.array(sizes, float), np.ones(len(sizes)), "abc"[: len(sizes)]
        )
        rows = as_table(answer.describe("cluster"), "cluster").rows
        assert [row[1] for row in rows] == words


def test_a_share_that_is_unknown_decides_nothing():
    assert note_of_one("a", 0.95, "all squares", "columns")
    assert note_of_one("a", 0.5, "all squares", "columns") == ()
    assert note_of_one("a", float("nan"), "all squares", "columns") == ()
