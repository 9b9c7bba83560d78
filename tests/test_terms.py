"""What each hub adds to the sum and how it updates its block, and the weights of rows."""

import tracemalloc

import numpy as np
import pytest

from vpem import Blocks, InputError, NotConvergedWarning, connect, fit_vpem, make_graph
from vpem.network.partition import contiguous
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling

from .missing_support import dense
from .tables import each, over

FEATURES = ([3, 0], [], [4], [1, 2])


def blocks():
    parts = tuple(np.array(part, dtype=np.intp) for part in FEATURES)
    return Blocks(parts, (0, 1, 2, 3), ((0,), (1,), (2,), (3,)))


def made(X, kind="full", **options):
    options = {"scaling": Scaling.none(X.shape[1]), "reg_covar": 1e-3, **options}
    return FeatureTerms(X, blocks(), kind, **options)


@pytest.fixture
def X(overlapping):
    return overlapping(0, 211, 5)


# ---- E-step --------------------------------------------------------------------------------------


@each("kind", COVARIANCE_TYPES)
def test_size_of_chunks_changes_nothing(kind, X, iterate, monkeypatch):
    network = connect(make_graph("cycle", 5), contiguous(5, 5), hops=0, n_rounds=70)
    options = {"n_components": 3, "covariance_type": kind, "init": "kmeans", "seed": 3}
    options["sample_weight"] = np.random.default_rng(0).uniform(0.5, 2, size=211)
    whole = iterate(X, network, 6, **options)
    monkeypatch.setattr("vpem.terms.rows.CHUNK_BYTES", 1)
    parts = iterate(X, network, 6, **options)
    assert parts.init_rows == whole.init_rows
    np.testing.assert_allclose(parts.history, whole.history, rtol=1e-11)
    np.testing.assert_allclose(parts.mixture.means, whole.mixture.means, rtol=1e-8, atol=1e-9)


@each("kind", COVARIANCE_TYPES)
def test_terms_of_a_block_see_no_other_feature(kind, X):
    terms = made(X, kind)
    mixture = terms.start(terms.at_rows(np.array([3, 30])))
    local = terms.local(terms.prepare(mixture), slice(0, 211))
    assert local.shape == (4, 211, 2)
    assert (local[1] == 0).all()
    for b, columns in enumerate(FEATURES):
        changed = X.copy()
        changed[:, [j for j in range(5) if j not in columns]] += 5
        other = made(changed, kind)
        again = other.local(other.prepare(mixture), slice(0, 211))
        np.testing.assert_array_equal(again[b], local[b])


def test_distances_are_squared_euclidean_by_block(X):
    terms = made(X, "tied")
    centres = X[[4, 40, 140]]
    found = terms.distances(centres[:, terms.blocks.order], slice(10, 100))
    for b, columns in enumerate(FEATURES):
        apart = X[10:100, None, columns] - centres[None][:, :, columns]
        np.testing.assert_allclose(found[b], (apart**2).sum(axis=2), rtol=1e-12)


def test_log_constant_counts_features_weights_and_units(X):
    weights = np.linspace(0.5, 2, 211)
    scaling = Scaling(np.zeros(5), np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    terms = made(X, scaling=scaling, row_weights=weights)
    per_row = -2.5 * np.log(2 * np.pi) - np.log(120)
    assert terms.log_constant == pytest.approx(weights.sum() * per_row, rel=1e-13)
    assert terms.total_weight == pytest.approx(weights.sum())


# ---- starts and repairs --------------------------------------------------------------------------


@over(kind=COVARIANCE_TYPES, weighted=[False, True])
def test_start_has_the_blocks_sample_covariance(kind, weighted, X):
    weights = np.random.default_rng(1).uniform(0.1, 3, size=211) if weighted else None
    terms = made(X, kind, row_weights=weights)
    rows = np.array([5, 17, 99])
    start = terms.start(terms.at_rows(rows))
    np.testing.assert_allclose(start.weights, np.full((1, 3), 1 / 3))
    np.testing.assert_allclose(start.assembled_means, X[rows], rtol=1e-15)
    whole = np.cov(X.T, bias=True, aweights=weights)
    wanted = np.zeros((5, 5))
    for columns in FEATURES:
        block = whole[np.ix_(columns, columns)] + 1e-3 * np.eye(len(columns))
        if kind.endswith("diag"):
            block = np.diag(np.diag(block))
        elif kind.endswith("spherical") and len(columns):
            block = np.eye(len(columns)) * np.diag(block).mean()
        wanted[np.ix_(columns, columns)] = block
    for k in range(3):
        found = dense(start)[1][k]
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


@each("kind", COVARIANCE_TYPES)
def test_reseeded_component(kind, X):
    terms = made(X, kind)
    start = terms.start(terms.at_rows(np.array([1, 2, 3])))
    hard = np.zeros((4, 211, 3))
    hard[np.arange(4)[:, None], np.arange(211), np.arange(211) % 3] = 1
    statistics = terms.empty(start.means, 4)
    terms.summarize(statistics, hard, slice(0, 211))
    mixture = terms.update(statistics)
    centre = terms.at_rows(np.array([50]))[0]
    again = terms.reseeded(mixture, 1, centre, 0.25)
    np.testing.assert_allclose(again.weights.sum(axis=1), 1)
    np.testing.assert_allclose(again.weights[:, 1], 0.25)
    ratio = mixture.weights[:, [0]] / mixture.weights[:, [2]]
    np.testing.assert_allclose(again.weights[:, [0]] / again.weights[:, [2]], ratio)
    np.testing.assert_array_equal(again.means[1], centre)
    np.testing.assert_array_equal(again.means[[0, 2]], mixture.means[[0, 2]])
    for b in range(4):
        before, after, fresh = (m.block(b)[2] for m in (mixture, again, start))
        if kind.startswith("tied"):
            np.testing.assert_array_equal(after, before)
        else:
            np.testing.assert_array_equal(after[1], fresh[1])
            np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])


@each("kind", COVARIANCE_TYPES)
def test_a_component_without_rows_stays_where_it_is(kind, X):
    terms = made(X, kind)
    centres = terms.at_rows(np.array([1, 2]))
    statistics = terms.empty(centres, 1)
    only_first = np.zeros((1, 211, 2))
    only_first[:, :, 0] = 1
    terms.summarize(statistics, only_first, slice(0, 211))
    mixture = terms.update(statistics)
    assert mixture.weights.tolist() == [[1.0, 0.0]]
    np.testing.assert_array_equal(mixture.means[1], centres[1])
    assert np.isfinite(mixture.covariances).all()


def test_statistics_of_single_precision_are_kept_in_double(X):
    terms = made(X, dtype=np.float32)
    statistics = terms.empty(terms.at_rows(np.array([1])), 1)
    terms.summarize(statistics, np.ones((1, 211, 1), np.float32), slice(0, 211))
    assert statistics.second.dtype == statistics.first.dtype == np.float64
    mixture = terms.update(statistics)
    np.testing.assert_allclose(mixture.assembled_means[0], X.mean(axis=0), atol=1e-6)


# ---- weights of rows -----------------------------------------------------------------------------

NETWORKS = ("star", "operator", "rounds")


def network_of(topology):
    if topology == "star":
        return connect(make_graph("star", 5), contiguous(5, 5), hops=0)
    return connect(
        make_graph("cycle", 5), contiguous(5, 5), hops=1, n_rounds=60, consensus=topology
    )


def assert_same_fit(one, two, factor=1):
    np.testing.assert_allclose(factor * one.history, two.history, rtol=1e-10)
    for name in ("weights", "means", "covariances"):
        ours, theirs = getattr(one.mixture, name), getattr(two.mixture, name)
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)


@each(
    ("kind", "topology", "scale"),
    zip(COVARIANCE_TYPES, 2 * NETWORKS, 3 * ("none", "standard"), strict=True),
)
def test_a_row_of_no_weight_is_no_row(kind, topology, scale, X, iterate):
    weights = np.ones(211)
    weights[::5] = 0
    kept = np.flatnonzero(weights)
    options = {"n_components": 3, "covariance_type": kind, "scale": scale}
    rows = [1, 52, 133]
    given = X.copy()
    given[::5] = 1e6
    network = network_of(topology)
    one = iterate(given, network, 6, init=rows, sample_weight=weights, **options)
    two = iterate(X[kept], network, 6, init=np.searchsorted(kept, rows), **options)
    assert one.init_rows == tuple(rows)
    assert_same_fit(one, two)


@each(("topology", "init"), zip(NETWORKS, ("random", "k-means++", "kmeans"), strict=True))
def test_starts_draw_no_row_without_weight(topology, init, X):
    weights = np.zeros(211)
    weights[50:90] = 1
    given = {"n_components": 3, "init": init, "sample_weight": weights, "tol": 1e-3}
    for seed in range(3):
        fit = fit_vpem(X, network_of(topology), seed=seed, floor_fits="keep", **given)
        assert all(50 <= row < 90 for row in fit.init_rows)


@over(topology=NETWORKS, factor=[0.05, 100.0])
def test_only_the_ratio_of_weights_matters(topology, factor, X, iterate):
    weights = np.random.default_rng(3).uniform(0.5, 2, size=211)
    options = {"n_components": 3, "init": [5, 55, 155]}
    network = network_of(topology)
    one = iterate(X, network, 8, sample_weight=weights, **options)
    two = iterate(X, network, 8, sample_weight=factor * weights, **options)
    assert_same_fit(one, two, factor)


@each(
    ("weights", "init", "match"),
    [
        (np.ones(5), [7, 8], "211 numbers"),
        (np.eye(211)[0], "random", "at least as many rows, got 1 with a positive weight"),
        (1.0 - np.eye(211)[7], [7, 8], "weight; take another for row 7"),
        (np.full(211, 1e-60), [7, 8], "cannot be computed with in float32"),
        (np.full(211, 1e60), [7, 8], "cannot be computed with in float32"),
    ],
)
def test_weights_that_cannot_be_used(weights, init, match, X):
    given = {"n_components": 2, "init": init, "sample_weight": weights, "max_iter": 1, "tol": 1e9}
    single = "float32" in match
    with pytest.raises(InputError, match=match):
        fit_vpem(X, network_of("star"), dtype="float32" if single else "float64", **given)
    if single:
        with pytest.warns(NotConvergedWarning):
            fit_vpem(X, network_of("star"), **given)


def test_one_heavy_row_does_not_make_the_others_negligible(X):
    weights = np.ones(211)
    weights[5] = 1e26
    given = {"init": [7, 8], "sample_weight": weights, "floor_fits": "keep", "tol": 1e9}
    fits = [fit_vpem(X, network_of("star"), every_weight=every, **given) for every in (False, True)]
    np.testing.assert_allclose(fits[0].mixture.means, fits[1].mixture.means, rtol=1e-9, atol=1e-9)


# ---- memory --------------------------------------------------------------------------------------


def test_a_fit_adds_its_own_rows_and_little_memory_however_many():
    rows = np.random.default_rng(0).standard_normal((300_000, 12))
    network = connect(make_graph("star", 1), contiguous(12, 1), hops=0)
    tracemalloc.start()
    try:
        with pytest.warns(NotConvergedWarning):
            fit_vpem(rows, network, n_components=3, init=[0, 1, 2], max_iter=2, n_threads=2)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # In units of fitting they are another array.
    assert most - rows.nbytes < 28e6
