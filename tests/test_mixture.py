"""The fitted mixture against SciPy's and scikit-learn's densities; its blocks and their order."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import scipy.special
import scipy.stats

from vpem import Blocks, InputError, Mixture, NumericalError
from vpem.network.hubs import Hub
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.units import Scaling

from .tables import each, over

K = 3
FEATURES = ([4, 1], [0], [], [5, 2, 3])


def blocks_of(features=FEATURES):
    parts = tuple(np.array(part, dtype=np.intp) for part in features)
    return Blocks(parts, tuple(range(len(parts))), tuple((n,) for n in range(len(parts))))


def made(kind, scaled=False, seed=0, features=FEATURES, per_root=False):
    """Random mixture of this covariance type."""
    rng = np.random.default_rng(seed)
    blocks = blocks_of(features)
    d = blocks.n_features
    copies = 1 if kind.startswith("tied") else K
    if kind in ("full", "tied"):
        parts = []
        for width in blocks.widths:
            root = rng.normal(size=(copies, width, width))
            parts.append((root @ root.transpose(0, 2, 1) + np.eye(width)).ravel())
        covariances = np.concatenate(parts)
    elif kind.endswith("diag"):
        covariances = rng.uniform(0.3, 3, size=(copies, d))
    else:
        own = rng.uniform(0.3, 3, size=(copies, blocks.n_blocks))
        covariances = np.ascontiguousarray(own[:, blocks.block_of])
    scaling = Scaling.none(d)
    if scaled:
        scaling = Scaling(rng.normal(size=d), rng.uniform(0.1, 10, size=d))
    weights = rng.dirichlet(np.full(K, 4.0), size=blocks.n_blocks if per_root else 1)
    return Mixture(blocks, kind, weights, rng.normal(size=(K, d)), covariances, scaling)


def dense(mixture):
    """Means and covariances (K, d, d) in the user's order and units, block by block."""
    d = mixture.n_features
    means, covariances = np.zeros((K, d)), np.zeros((K, d, d))
    shift, scale = mixture.scaling.shift, mixture.scaling.scale
    for b, columns in enumerate(mixture.blocks.features):
        _, own_means, own = mixture.block(b)
        means[:, columns] = own_means * scale[columns] + shift[columns]
        for k in range(K):
            block = own[k if len(own) > 1 else 0]
            block = np.diag(block) if block.ndim == 1 else block
            units = np.outer(scale[columns], scale[columns])
            covariances[k][np.ix_(columns, columns)] = block * units
    return means, covariances


def log_densities(mixture, X):
    """Log of weight times density, (M, K), by SciPy."""
    means, covariances = dense(mixture)
    parts = zip(means, covariances, strict=True)
    columns = [scipy.stats.multivariate_normal(mean, cov).logpdf(X) for mean, cov in parts]
    return np.log(mixture.assembled_weights) + np.column_stack(columns)


def test_rows_far_away_have_finite_densities():
    mixture = made("full")
    X = np.full((2, 6), 1e6)
    np.testing.assert_allclose(mixture.predict_proba(X).sum(axis=1), 1)
    assert (mixture.score_samples(X) < -1e10).all()
    assert np.isfinite(mixture.score_samples(X)).all()


def test_many_rows_are_the_rows_one_by_one(monkeypatch):
    mixture = made("full")
    assert mixture.score_samples(np.empty((0, 6))).shape == (0,)
    assert mixture.predict_proba(np.empty((0, 6))).shape == (0, K)
    X = mixture.sample(300, np.random.default_rng(1))[0]
    whole = mixture.score_samples(X)
    monkeypatch.setattr("vpem.terms.density.CHUNK_VALUES", 1)
    np.testing.assert_allclose(mixture.score_samples(X), whole, rtol=1e-13)
    one = np.concatenate([mixture.score_samples(row[None]) for row in X[:20]])
    np.testing.assert_allclose(one, whole[:20], rtol=1e-13)


@each("shape", [(4, 5), (4, 7), (6,), (1, 2, 6)])
def test_data_of_another_shape_are_refused(shape):
    with pytest.raises(InputError, match="the model has 6 features"):
        made("full").score_samples(np.zeros(shape))
    with pytest.raises(InputError, match="6 features, the data 4"):
        made("full").convert_to(Blocks.one(4), "full", Scaling.none(4))


# ---- assembled view ------------------------------------------------------------------------------


ENTRIES = {"full": 3 + 1 + 6, "diag": 6, "spherical": 3}
"""Of the covariance of a component, over hubs of two, one, no and three features."""


@over(kind=COVARIANCE_TYPES, scaled=[False, True], per_root=[False, True])
def test_what_a_mixture_is_by_its_blocks(kind, scaled, per_root):
    mixture = made(kind, scaled, per_root=per_root)
    means, covariances = dense(mixture)
    np.testing.assert_allclose(mixture.assembled_means, means, rtol=1e-14)
    weights = mixture.weights.mean(axis=0)
    np.testing.assert_allclose(mixture.assembled_weights, weights / weights.sum(), rtol=1e-14)
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    hubs = [columns[0] for columns in mixture.blocks.features if len(columns)]
    wanted = {
        "full": covariances,
        "tied": covariances[0],
        "diag": variances,
        "tied-diag": variances[0],
        "spherical": variances if scaled else variances[:, hubs],
        "tied-spherical": variances[0] if scaled else variances[0][hubs],
    }[kind]
    assert mixture.assembled_covariances.shape == wanted.shape
    np.testing.assert_allclose(mixture.assembled_covariances, wanted, rtol=1e-14)
    shape, copies = kind.removeprefix("tied-"), 1 if kind.startswith("tied") else K
    entries = ENTRIES["full" if shape == "tied" else shape]
    assert mixture.n_parameters == K - 1 + K * 6 + copies * entries
    for b, width in enumerate(mixture.blocks.widths):
        own, own_means, own_covariances = mixture.block(b)
        np.testing.assert_array_equal(own, mixture.weights[b if per_root else 0])
        square = (width, width) if kind in ("full", "tied") else (width,)
        assert (own_means.shape, own_covariances.shape) == ((K, width), (copies, *square))
    again = mixture.convert_to(mixture.blocks, kind, mixture.scaling)
    np.testing.assert_allclose(again.weights, mixture.assembled_weights[None], rtol=1e-15)
    np.testing.assert_allclose(again.means, mixture.means, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(again.covariances, mixture.covariances, rtol=1e-14)
    X = mixture.sample(257, np.random.default_rng(1))[0]
    logs, proba = log_densities(mixture, X), mixture.predict_proba(X)
    totals = scipy.special.logsumexp(logs, axis=1)
    np.testing.assert_allclose(mixture.score_samples(X), totals, rtol=1e-11)
    np.testing.assert_allclose(proba, scipy.special.softmax(logs, axis=1), atol=1e-12)
    np.testing.assert_array_equal(mixture.predict(X), logs.argmax(axis=1))
    order = np.array([2, 0, 1])
    other = mixture.permuted(order)
    np.testing.assert_allclose(other.score_samples(X), totals, rtol=1e-11)
    np.testing.assert_allclose(other.predict_proba(X), proba[:, order], atol=1e-13)


def test_spherical_covariances_of_one_hub_have_scikit_learns_shape():
    mixture = made("spherical", features=([2, 0, 1],))
    assert mixture.assembled_covariances.shape == (K,)


# ---- sampling ------------------------------------------------------------------------------------


@over(kind=COVARIANCE_TYPES, scaled=[False, True])
def test_sample_moments(kind, scaled):
    mixture = made(kind, scaled)
    X, labels = mixture.sample(20_000, np.random.default_rng(2))
    again, other = (mixture.sample(20_000, np.random.default_rng(seed))[0] for seed in (2, 3))
    np.testing.assert_array_equal(again, X)
    assert not np.array_equal(other, X)
    means, covariances = dense(mixture)
    assert (np.diff(labels) >= 0).all()
    for k in range(K):
        own = X[labels == k]
        spread = np.sqrt(np.diagonal(covariances[k]))
        standard = spread / np.sqrt(len(own))
        assert (np.abs(own.mean(axis=0) - means[k]) < 5 * standard).all()
        ratio = (np.cov(own.T) - covariances[k]) / np.outer(spread, spread)
        assert np.abs(ratio).max() < 8 / np.sqrt(len(own))
        expected = mixture.assembled_weights[k]
        assert len(own) / len(X) == pytest.approx(expected, abs=5 / np.sqrt(len(X)))


# ---- order, blocks, validity ---------------------------------------------------------------------


@over(kind=COVARIANCE_TYPES, scaled=[False, True], target=COVARIANCE_TYPES)
def test_over_other_blocks(kind, scaled, target):
    mixture = made(kind, scaled)
    scaling = Scaling(np.arange(6.0), np.linspace(0.5, 3, 6)) if scaled else mixture.scaling
    blocks = blocks_of(([0, 1, 4], [5], [3, 2]))
    other = mixture.convert_to(blocks, target, scaling)
    means, covariances = dense(mixture)
    np.testing.assert_allclose(other.assembled_means, means, rtol=1e-12, atol=1e-13)
    units = 1 / np.outer(scaling.scale, scaling.scale)
    if target.startswith("tied"):
        covariances = np.tensordot(mixture.assembled_weights, covariances, axes=1)[None]
    for b, columns in enumerate(blocks.features):
        found = other.block(b)[2]
        wanted = (covariances * units)[:, columns[:, None], columns]
        if target.endswith(("diag", "spherical")):
            wanted = np.diagonal(wanted, axis1=1, axis2=2)
        if target.endswith("spherical"):
            wanted = np.repeat(wanted.mean(axis=1, keepdims=True), len(columns), axis=1)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_a_singular_covariance_is_named():
    mixture = made("full")
    mixture.covariance_blocks[3][1] = 0
    with pytest.raises(NumericalError, match="component 1 in hub 3"):
        mixture.score_samples(np.zeros((1, 6)))
    other = made("diag")
    other.covariances[2, 2] = 0
    with pytest.raises(NumericalError, match="component 2 in hub 1"):
        other.score_samples(np.zeros((1, 6)))


@each(
    ("change", "match"),
    [
        ({"means": np.zeros((K, 5))}, "means of shape"),
        ({"means": np.zeros((2, 6))}, "means of shape"),
        ({"weights": np.full((2, K), 1 / K)}, "one set per hub"),
        ({"weights": np.full(K, 1 / K)}, "mixture"),
        ({"covariances": np.zeros(3)}, "must have shape"),
        ({"covariance_type": "fulll"}, "did you mean 'full'"),
        ({"covariance_type": "diag"}, "must have shape"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, match):
    with pytest.raises(InputError, match=match):
        replace(made("full"), **change)


# ---- which features form which block, and the order they stand in -------------------------------


def test_features_of_a_hub_stand_by_agent_then_by_column():
    hubs = [Hub(2, (1, 2)), Hub(0, (0, 3))]
    holdings = [np.array(part, dtype=np.intp) for part in ([4], [5, 1], [0], [3, 2])]
    blocks = Blocks.from_hubs(hubs, holdings)
    assert [part.tolist() for part in blocks.features] == [[1, 5, 0], [4, 2, 3]]
    assert blocks.roots == (2, 0)
    assert blocks.agents == ((1, 2), (0, 3))
    assert blocks.order.tolist() == [1, 5, 0, 4, 2, 3]
    assert blocks.order[blocks.position].tolist() == list(range(6))
    assert blocks.position[blocks.order].tolist() == list(range(6))
    assert blocks.widths.tolist() == [3, 3]
    assert blocks.offsets.tolist() == [0, 3, 6]
    assert blocks.block_of.tolist() == [0, 0, 0, 1, 1, 1]
    assert not blocks.in_order


def test_hubs_without_features_have_empty_blocks():
    hubs = [Hub(0, (0,)), Hub(1, (1,)), Hub(2, (2,))]
    nothing = np.empty(0, dtype=np.intp)
    blocks = Blocks.from_hubs(hubs, [nothing, np.array([0, 1]), nothing])
    assert blocks.n_blocks == 3
    assert blocks.widths.tolist() == [0, 2, 0]
    assert blocks.offsets.tolist() == [0, 0, 2, 2]
    assert blocks.block_of.tolist() == [1, 1]
    assert blocks.in_order
    one = Blocks.one(4)
    assert (one.n_blocks, one.n_features, one.in_order) == (1, 4, True)


@each("features", [([0, 1], [1, 2]), ([0, 2],), ([1, 2],), ([0, 0],), ([-1, 0],)])
def test_features_missing_or_repeated_are_refused(features):
    with pytest.raises(InputError, match="every feature exactly once"):
        blocks_of(features)


@over(dtype=[np.float64, np.float32], layout=["C", "F", "strided"])
def test_arrange_puts_columns_in_block_order(layout, dtype):
    X = np.arange(12.0).reshape(3, 4)
    given = {"C": X, "F": np.asfortranarray(X), "strided": np.repeat(X, 2, axis=1)[:, ::2]}[layout]
    for blocks in (blocks_of(([2, 0], [3, 1])), blocks_of(([0, 1], [2, 3]))):
        arranged = blocks.arrange(given, dtype)
        assert arranged.dtype == dtype
        assert arranged.flags.c_contiguous
        np.testing.assert_array_equal(arranged, X[:, blocks.order])


def test_what_each_root_holds_is_spread_over_its_features():
    blocks = blocks_of(([2, 0], [], [1]))
    own = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    assert blocks.of_feature(own).tolist() == [[1, 1, 3], [10, 10, 30]]
    assert blocks.of_feature(own[:1]).tolist() == [[1, 1, 1], [10, 10, 10]]


# ---- where components differ most ----------------------------------------------------------------


@over(kind=COVARIANCE_TYPES, share=[0.0, 0.3, 1.0])
def test_directions_solve_the_problem_of_scrucca(kind, share):
    mixture = made(kind, scaled=True)
    d, weights = mixture.n_features, mixture.assembled_weights
    directions, values = mixture.directions(share)
    one = mixture.convert_to(blocks_of([range(d)]), "full", Scaling.none(d))
    means = one.assembled_means
    full = np.broadcast_to(one.assembled_covariances, (K, d, d))
    away, off = means - weights @ means, full - np.tensordot(weights, full, axes=1)
    between = away.T @ np.diag(weights) @ away
    total = between + np.tensordot(weights, full, axes=1)
    inverse = np.linalg.inv(total)
    of_means = between @ inverse @ between
    of_covariances = sum(w * one @ inverse @ one for w, one in zip(weights, off, strict=True))
    kernel = 2 * share * of_means + 2 * (1 - share) * of_covariances
    wanted = scipy.linalg.eigh(kernel, total, eigvals_only=True)[::-1]
    np.testing.assert_allclose(values, wanted[: len(values)], rtol=1e-7)
    np.testing.assert_allclose(wanted[len(values) :], 0.0, atol=1e-9)
    np.testing.assert_allclose(kernel @ directions, total @ directions * values, atol=1e-8)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=0), 1.0)


def test_scores_are_a_sum_of_what_hubs_add():
    mixture = made("full", scaled=True)
    X = np.random.default_rng(3).normal(size=(20, mixture.n_features))
    directions = mixture.directions(0.5)[0]
    centred = X - mixture.assembled_weights @ mixture.assembled_means
    parts = [centred[:, own] @ directions[own] for own in mixture.blocks.features]
    np.testing.assert_allclose(mixture.project(X, 0.5), sum(parts), atol=1e-12)
    with pytest.raises(InputError, match="share"):
        mixture.directions(1.5)
    with pytest.raises(InputError, match="6 features"):
        mixture.project(X[:, :3])
    with pytest.raises(InputError, match="is NaN"):
        mixture.project(np.full((2, 6), np.nan))
