"""k-means over rows by noisy sums: what it finds, what it tells, and what it refuses."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from vpem import DistributedKMeans, InputError, connect_workers, kmeans_rows
from vpem.fits.settings import PrivacySettings
from vpem.network.graph import make_graph
from vpem.network.partition import from_worker_of_row
from vpem.pictures.saved import SavedClusters

pytestmark = pytest.mark.filterwarnings("ignore:its noise can be repeated")

PRIVATE = PrivacySettings(epsilon=1.0, delta=1e-5, bounds=(-9, 9), repeatable_noise=3)


@pytest.fixture(scope="module")
def clusters():
    """Rows of three clusters, dealt out to four workers at random."""
    rng = np.random.default_rng(1)
    labels = rng.integers(3, size=3000)
    centres = np.array([[4.0, 0, 0, 1], [-3, 3, 0, 0], [0, -4, 2, 0]])
    X = centres[labels] + rng.standard_normal((3000, 4))
    return X, labels, from_worker_of_row(rng.integers(4, size=3000))


@pytest.fixture(scope="module")
def star():
    return connect_workers(make_graph("star", 4))


def inertia(X, centres):
    return float((((X[:, None] - centres) ** 2).sum(axis=2)).min(axis=1).sum())


def test_noisy_clusters_are_nearly_those_without_noise(clusters, star):
    X, labels, workers = clusters
    plain = kmeans_rows(X, workers, star, n_clusters=3, seed=1)
    found = kmeans_rows(X, workers, star, n_clusters=3, seed=1, privacy=PRIVATE)
    assert inertia(X, found.centres) < 1.01 * plain.inertia
    # Labels are in the user's order, of the centres that are published.
    nearest = (((X[:, None] - found.centres) ** 2).sum(axis=2)).argmin(axis=1)
    np.testing.assert_array_equal(found.labels, nearest)
    assert adjusted_rand_score(labels, found.labels) > 0.95
    assert np.abs(found.counts - np.bincount(nearest)).max() < 300
    assert (found.counts != np.bincount(nearest)).all()
    again = kmeans_rows(X, workers, star, n_clusters=3, seed=1, privacy=PRIVATE)
    np.testing.assert_array_equal(found.centres, again.centres)


def test_files_of_noisy_clusters_tell_nothing_of_rows(clusters, star):
    X, _, workers = clusters
    found = kmeans_rows(X, workers, star, n_clusters=3, privacy=PRIVATE)
    report = found.describe(list("abcd"), list("ABCD"))
    assert report["inertia"] is None
    assert report["root_inertia"] is None
    assert not report["history"]
    assert report["n_iter"] == 10
    assert "no privacy" in report["privacy"]["warning"]
    kept = found.kept(list("abcd"), {**report, "warnings": ["a row"]}, {}, np.arange(3000))
    assert kept.labels.size == kept.distances.size == 0
    assert kept.ids is None
    assert not kept.report["warnings"]
    saved = SavedClusters("clusters.h5", kept)
    assert saved.summaries() == {"noisy rows": [f"{size:.0f}" for size in found.counts]}
    with pytest.raises(InputError, match="its rows are protected by noise"):
        saved.history()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"init": "random"}, "it looks at rows"),
        ({"init": np.zeros((3, 4))}, "it looks at rows"),
        ({"n_init": 3}, "every start would spend"),
        ({"participation": 0.5}, "absent workers"),
        ({"batch_size": 100}, "every batch"),
        ({"missing": "marginalize"}, "for each feature"),
        ({"scale": "standard"}, "exact standard deviations"),
        ({"sample_weight": np.ones(3000)}, "a row of more weight"),
    ],
)
def test_what_noise_cannot_go_with_is_refused(clusters, star, options, said):
    X, _, workers = clusters
    with pytest.raises(InputError, match=said):
        kmeans_rows(X, workers, star, n_clusters=3, privacy=PRIVATE, **options)


def test_bounds_of_different_widths_keep_distances_as_they_are(clusters, star):
    X, _, workers = clusters
    wide = PRIVATE.changed(bounds=([-9, -9, -40, -9], [9, 9, 40, 9]))
    found = kmeans_rows(X, workers, star, n_clusters=3, privacy=wide)
    plain = kmeans_rows(X, workers, star, n_clusters=3, seed=1)
    assert inertia(X, found.centres) < 1.05 * plain.inertia


def test_the_estimator_protects_rows_as_the_recipe_does(clusters):
    X, labels, _ = clusters
    asked = {"epsilon": 4.0, "delta": 1e-5, "bounds": (-9, 9)}
    # Noise, and with it a start, is fresh in every fit: one in some hundred is at other clusters.
    fits = [DistributedKMeans(3, workers=4, **asked).fit(X) for _ in range(4)]
    found = max(fits, key=lambda fit: adjusted_rand_score(labels, fit.labels_))
    assert adjusted_rand_score(labels, found.labels_) > 0.95
    assert np.isnan(found.inertia_)
    with pytest.raises(InputError, match="over features"):
        DistributedKMeans(3, split="features", **asked).fit(X)


def test_rows_are_clipped_to_their_own_bounds_and_counted(clusters, star):
    X, _, workers = clusters
    narrow = ([-9, -9, -40, -1], [9, 9, 40, 1])
    beyond = (np.abs(X[:, 3]) > 1) | (np.abs(X[:, :2]) > 9).any(axis=1)
    found = kmeans_rows(X, workers, star, n_clusters=3, privacy=PRIVATE.changed(bounds=narrow))
    assert sum(found.clipped.values()) == beyond.sum()
    one = kmeans_rows(X, workers, star, n_clusters=1, privacy=PRIVATE.changed(bounds=narrow))
    # A mean of rows that are clipped lies inside; that of all, which is 0.33, is far above.
    assert one.centres[0, 3] == pytest.approx(np.clip(X[:, 3], -1, 1).mean(), abs=0.02)
