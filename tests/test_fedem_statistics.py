"""The Gaussian mixture as a model of mean statistics: kernel against NumPy, M-step, projection."""

import numpy as np
import pytest

from vpem import InputError, NumericalError
from vpem.network.partition import Blocks
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling, lower_half, symmetric

from .fedem_support import mixture_model
from .tables import each, over


def model_of(X, workers=3, **options):
    """The model of rows that are centred first, and those rows."""
    made = mixture_model(X, workers, **options)
    return made, made.scaling.apply(X)


@pytest.fixture
def X(overlapping):
    return overlapping(3, 200, 4) + 7.0


def by_hand(model, rows, mixture):
    """The mean statistic (P,) of rows, by NumPy alone."""
    gamma = mixture.predict_proba(model.scaling.undo(rows))
    parts = [gamma.mean(axis=0), (gamma.T @ rows / len(rows)).ravel()]
    second = np.einsum("mk,mi,mj->kij", gamma, rows, rows) / len(rows)
    if model.covariance_type == "full":
        parts.append(lower_half(second).ravel())
    elif model.covariance_type == "diag":
        parts.append(np.diagonal(second, axis1=1, axis2=2).ravel())
    elif model.covariance_type == "spherical":
        parts.append(np.trace(second, axis1=1, axis2=2))
    return np.concatenate(parts)


@each("covariance_type", COVARIANCE_TYPES)
def test_statistics_are_those_of_the_responsibilities(X, covariance_type):
    model, rows = model_of(X, covariance_type=covariance_type)
    mixture = model.start(rows[[3, 90, 170]])
    chosen = np.array([0, 5, 40])
    for worker, run in enumerate(model.runs):
        own = rows[run]
        np.testing.assert_allclose(
            model.expect(worker, mixture, None), by_hand(model, own, mixture), atol=1e-12
        )
        np.testing.assert_allclose(
            model.expect(worker, mixture, chosen), by_hand(model, own[chosen], mixture), atol=1e-12
        )
    assert model.objective(mixture) == pytest.approx(mixture.score_samples(X).mean(), abs=1e-12)


@each("covariance_type", COVARIANCE_TYPES)
def test_a_step_is_a_step_of_em(X, covariance_type):
    model, rows = model_of(X, covariance_type=covariance_type)
    terms = FeatureTerms(X, Blocks.one(4), covariance_type, scaling=Scaling.none(4), reg_covar=1e-6)
    start = terms.start(X[[3, 90, 170]])
    ours = model.start(rows[[3, 90, 170]])
    np.testing.assert_allclose(ours.assembled_covariances, start.assembled_covariances)
    statistics = terms.empty(start.means, 1)
    terms.sweep(start, terms.prepare(start), np.ones((1, 1)), statistics)
    wanted = terms.update(statistics)
    weights = model.counts / model.counts.sum()
    mean = weights @ np.stack([model.expect(i, ours, None) for i in range(3)])
    found, projected = model.maximize(mean)
    assert projected == 0
    np.testing.assert_allclose(found.assembled_weights, wanted.assembled_weights, atol=1e-12)
    np.testing.assert_allclose(found.assembled_means, wanted.assembled_means, atol=1e-10)
    np.testing.assert_allclose(
        found.assembled_covariances, wanted.assembled_covariances, atol=1e-10
    )


@each("covariance_type", COVARIANCE_TYPES)
def test_pieces_cover_the_statistic_in_order(X, covariance_type):
    model, _ = model_of(X, covariance_type=covariance_type)
    assert model.pieces[0] == slice(0, 3)
    assert [piece.start for piece in model.pieces[1:]] == [p.stop for p in model.pieces[:-1]]
    assert model.pieces[-1].stop == model.size
    assert model.size == {"full": 3 * 15, "diag": 3 * 9, "spherical": 3 * 6}.get(
        covariance_type, 3 * 5
    )


@each("covariance_type", COVARIANCE_TYPES)
def test_hard_statistics(X, covariance_type):
    model, rows = model_of(X, covariance_type=covariance_type)
    labels = np.arange(len(rows[model.runs[1]])) % 3
    own = rows[model.runs[1]]
    found = model.assigned(1, labels)
    np.testing.assert_allclose(found[:3], np.bincount(labels) / len(own))
    means = found[3:15].reshape(3, 4) / found[:3, None]
    np.testing.assert_allclose(means[2], own[labels == 2].mean(axis=0))
    if covariance_type == "full":
        second = symmetric(found[15:].reshape(3, -1), 4)[2] / found[2]
        np.testing.assert_allclose(second, own[labels == 2].T @ own[labels == 2] / sum(labels == 2))


@over(covariance_type=COVARIANCE_TYPES, seed=range(4))
def test_any_statistic_gives_a_valid_model(X, covariance_type, seed):
    model, rows = model_of(X, covariance_type=covariance_type)
    good = model.expect(0, model.start(rows[[3, 90, 170]]), None)
    rng = np.random.default_rng(seed)
    for size in (1e-3, 0.1, 1.0, 100.0):
        noisy = good + size * rng.normal(size=model.size)
        mixture, projected = model.maximize(noisy)
        assert mixture.assembled_weights.min() > 0
        assert np.isfinite(mixture.score_samples(X)).all()
        # No mean lies farther out than the rows do.
        far = np.sqrt(model.squared_norms(mixture.means))
        assert far.max() <= model.radius * (1 + 1e-6)
        if noisy[:3].min() < 0:
            assert projected > 0


def test_an_emptied_component_comes_back_as_a_wide_one(X):
    model, rows = model_of(X)
    statistic = model.expect(0, model.start(rows[[3, 90, 170]]), None)
    parts = np.split(statistic, [3, 15])
    parts[0][1] = 0.0
    parts[1].reshape(3, 4)[1] = 0.0
    parts[2].reshape(3, -1)[1] = 0.0
    mixture, projected = model.maximize(np.concatenate(parts))
    assert projected == 1
    assert mixture.weights[0, 1] == pytest.approx(1 / len(X), rel=0.2)
    np.testing.assert_allclose(mixture.means[1], 0, atol=1e-12)
    own = mixture.covariance_blocks[0][1]
    np.testing.assert_allclose(own, model.second + 1e-6 * np.eye(4), atol=1e-12)


def test_negative_variances_are_raised_to_their_own_size(X):
    model, rows = model_of(X)
    statistic = model.expect(0, model.start(rows[[3, 90, 170]]), None)
    matrices = symmetric(statistic[15:].reshape(3, -1), 4)
    scale = np.diagonal(model.second)
    # By so much that one eigenvalue of the second component's becomes negative.
    matrices[1] -= 0.8 * statistic[1] * np.diag(scale)
    mixture, projected = model.maximize(np.r_[statistic[:15], lower_half(matrices).ravel()])
    assert projected == 1
    before = matrices[1] / statistic[1] - np.outer(mixture.means[1], mixture.means[1])
    into, back = model._white
    np.testing.assert_allclose(into @ back, np.eye(4), atol=1e-10)
    worst = np.linalg.eigvalsh(into @ (before + 1e-6 * np.eye(4)) @ into.T).min()
    assert worst < 0
    smallest = np.linalg.eigvalsh(into @ mixture.covariance_blocks[0][1] @ into.T).min()
    assert smallest == pytest.approx(-worst, rel=1e-6)


def test_known_covariances(X):
    model, rows = model_of(X, covariance_type="tied", known=np.eye(4))
    assert model.size == 15
    mixture, projected = model.maximize(model.expect(0, model.start(rows[:3]), None))
    assert projected == 0
    np.testing.assert_allclose(mixture.assembled_covariances, np.eye(4))
    each = np.stack([np.eye(4), 2 * np.eye(4), 3 * np.eye(4)])
    model, rows = model_of(X, covariance_type="full", known=each)
    assert model.size == 15
    np.testing.assert_allclose(model.start(rows[:3]).assembled_covariances, each)


@each(
    ("known", "kind", "why"),
    [
        (np.eye(3), "tied", "of shape"),
        (np.eye(4), "full", "of shape"),
        (np.eye(4), "diag", "of shape"),
        (-np.eye(4), "tied", "positive definite"),
        (np.triu(np.ones((4, 4))), "tied", "symmetric"),
        (np.full((4, 4), np.nan), "tied", "positive definite"),
        ("none", "tied", "must be numbers"),
    ],
)
def test_known_covariances_that_are_none(X, known, kind, why):
    with pytest.raises(InputError, match=why):
        model_of(X, covariance_type=kind, known=known)


def test_constant_features(X):
    X[:, 2] = 1.0
    mixture, projected = model_of(X)[0].maximize(np.zeros(45))
    assert np.isfinite(mixture.score_samples(X)).all()
    assert projected == 3
    with pytest.raises(NumericalError, match="feature 2 is constant"):
        model_of(X, reg_covar=0.0)


def test_symmetric_undoes_lower_half():
    matrices = np.random.default_rng(0).normal(size=(3, 5, 5))
    matrices += matrices.swapaxes(1, 2)
    np.testing.assert_array_equal(symmetric(lower_half(matrices), 5), matrices)


def test_batches_of_rows_that_weigh_differently_are_unbiased(X):
    weights = np.random.default_rng(1).integers(1, 9, len(X)) / 2.0
    model = mixture_model(X, 3, row_weights=weights)
    rng = np.random.default_rng(0)
    run = model.runs[1]
    own = weights[run]
    times = np.zeros(len(own))
    for _ in range(4000):
        drawn = model.draw(1, 10, rng)
        assert len(drawn) == 10
        times += np.bincount(drawn, minlength=len(own))
    wanted = 10 * own / own.sum()
    np.testing.assert_allclose(times / 4000, wanted, atol=5 * np.sqrt(wanted.max() / 4000))
    # Slices of one row's weight each: every row once.
    alike = mixture_model(X, 3, row_weights=np.full(len(X), 0.5))
    np.testing.assert_array_equal(alike.draw(1, len(own), rng), np.arange(len(own)))
