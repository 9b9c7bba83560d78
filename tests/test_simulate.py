import numpy as np
import pytest
from scipy.stats import multivariate_normal

from vpem.errors import InputError
from vpem.files.examples import simulate

from .tables import each, each_once


def densities(X, truth):
    parts = zip(truth["weights"], truth["means"], truth["covariances"], strict=True)
    return np.column_stack([np.log(w) + multivariate_normal(m, c).logpdf(X) for w, m, c in parts])


@each_once(
    seed=range(3), mixture=[(1, 3, 0.2), (2, 2, 0.45), (6, 4, 0.05), (10, 3, 0.01), (12, 5, 0.7)]
)
def test_the_true_mixture_errs_as_often_as_asked(seed, mixture):
    n_features, n_components, overlap = mixture
    data, truth = simulate(20_000, n_features, n_components, overlap=overlap, seed=seed)
    logs = densities(data.X, truth)
    wrong = np.mean(logs.argmax(axis=1) != data.labels)
    # Standard errors of the share here and of the estimate at 20,000 points inside.
    spread = np.sqrt(overlap * (1 - overlap) * (1 / 20_000 + 1 / 20_000))
    assert abs(wrong - overlap) < 5 * spread
    assert truth["overlap"] == pytest.approx(overlap, rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_the_data_have_the_moments_of_the_truth(seed):
    data, truth = simulate(40_000, 4, 3, overlap=0.1, weights=[0.2, 0.3, 0.5], seed=seed)
    assert np.bincount(data.labels) / 40_000 == pytest.approx([0.2, 0.3, 0.5], abs=0.01)
    for k in range(3):
        rows = data.X[data.labels == k]
        centred = (rows - truth["means"][k]) @ np.linalg.inv(
            np.linalg.cholesky(truth["covariances"][k])
        ).T
        np.testing.assert_allclose(centred.mean(axis=0), 0, atol=5 / np.sqrt(len(rows)))
        np.testing.assert_allclose(np.cov(centred.T), np.eye(4), atol=8 / np.sqrt(len(rows)))


def test_covariances_are_full_and_differ():
    _, truth = simulate(10, 5, 3, overlap=0.05, seed=1)
    covariances = truth["covariances"]
    np.testing.assert_array_equal(covariances, np.swapaxes(covariances, 1, 2))
    off_diagonal = covariances[:, ~np.eye(5, dtype=bool)]
    assert np.abs(off_diagonal).max() > 0.1
    assert np.abs(covariances[0] - covariances[1]).max() > 0.05
    assert np.linalg.eigvalsh(covariances).min() > 0.01


def test_seeds_decide():
    first, again, other = (simulate(50, 3, 2, seed=seed)[0] for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.X, again.X)
    np.testing.assert_array_equal(first.labels, again.labels)
    assert not np.allclose(first.X, other.X)


def test_the_mixture_does_not_depend_on_the_number_of_samples():
    few, many = (simulate(n, 3, 2, seed=0)[1] for n in (10, 50_000))
    np.testing.assert_array_equal(few["means"], many["means"])


def test_one_component_needs_no_overlap():
    data, truth = simulate(100, 2, 1, overlap=0.9)
    assert truth["overlap"] == 0
    assert set(data.labels.tolist()) == {0}


def test_tiny_overlaps_are_reached():
    assert simulate(10, 2, 2, overlap=1e-9)[1]["overlap"] == pytest.approx(1e-9, rel=0.01)


def test_the_dataset_is_complete():
    data, truth = simulate(20, 6, 3, n_agents=4)
    assert data.X.shape == (20, 6)
    assert data.feature_names[5] == "feature 5"
    assert data.partition.n_agents == 4
    assert data.source == "simulated with seed 0"
    assert {name: value.shape for name, value in truth.items()} == {
        "weights": (3,),
        "means": (3, 6),
        "covariances": (3, 6, 6),
        "overlap": (),
    }
    assert simulate(20, 6, 3)[0].partition is None


@each(
    ("change", "sentence"),
    [
        ({"n_samples": 0}, "n_samples must be an integer of at least 1, got 0"),
        ({"n_features": -1}, "n_features must"),
        ({"n_components": 1.5}, "n_components must"),
        ({"n_components": True}, "n_components must"),
        ({"overlap": 0}, "overlap must lie above 0 and below 0.6667"),
        ({"overlap": 2 / 3}, "overlap must"),
        ({"overlap": float("nan")}, "overlap must"),
        ({"overlap": "much"}, "overlap must .* got 'much'"),
        ({"overlap": 0.3, "weights": [0.8, 0.1, 0.1]}, "below 0.2 "),
        ({"weights": [0.5, 0.5]}, "weights must be 3 positive numbers"),
        ({"weights": [0.5, 0.5, 0.5]}, "sum to 1"),
        ({"weights": [1.5, -0.25, -0.25]}, "positive"),
        ({"weights": [0.5, 0.5, float("nan")]}, "positive"),
        ({"n_agents": 9}, "9 agents cannot share 4 features"),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"seed": None}, "seed must"),
        ({"n_samples": 10**15}, "a dataset of 1000000000000000 x 4 needs 3.2e\\+07 GB"),
        ({"n_features": 10**8, "n_samples": 1}, "the covariances of the mixture needs"),
    ],
)
def test_bad_arguments_are_refused(change, sentence):
    arguments = {"n_samples": 10, "n_features": 4, "n_components": 3, **change}
    with pytest.raises(InputError, match=sentence):
        simulate(**arguments)
