"""The assignment kernels against their twins, and what they promise: ties, cuts, digits."""

import math

import numpy as np
import pytest

from vpem._core import assign, differences

from .tables import each, over
from .twins import assign as numpy_twins

NONE = np.empty(0)
BOTH = (assign, numpy_twins)


def nearest(module, X, centres, n_threads=1):
    """Labels and distances."""
    labels, distances = np.full(len(X), -1, dtype=np.int32), np.empty(len(X))
    module.nearest_rows(X, centres, labels, distances, n_threads)
    return labels, distances


def follow(module, X, path, weights=NONE, labels=None, n_threads=1, bounds=None):
    """Yield labels, bounds, totals, inertias and changes after each move of the centres."""
    first = path[0] if path[0].ndim == 3 else path[0][None]
    bounds = np.array([0, len(X)] if bounds is None else bounds, dtype=np.intp)
    (_, k, d), m, n = first.shape, len(X), len(bounds) - 1
    labels = np.full(m, -1, dtype=np.int32) if labels is None else labels.copy()
    upper, lower = np.full(m, np.nan, dtype=np.float32), np.zeros(m, dtype=np.float32)
    totals, about, before = np.zeros((n, 2, k + k * d + 1)), first[0].mean(axis=0), first
    for places in path:
        centres = places if places.ndim == 3 else places[None]
        changes, inertias = np.zeros(n, dtype=np.intp), np.zeros(n)
        module.follow_rows(
            X, weights, bounds, centres, before, about, labels, upper, lower, totals, changes,
            n_threads,
        )  # fmt: skip
        module.inertias_of(totals, about, centres, inertias)
        yield labels.copy(), upper.copy(), lower.copy(), totals.sum(axis=1), inertias, changes
        before = centres


def wander(rng, centres, n=6):
    """Return centres that come to rest as those of Lloyd's do, with a leap on the way."""
    path = [centres]
    for i in range(n):
        path.append(path[-1] + 0.2**i * rng.normal(size=centres.shape))
    path.append(path[-1].copy())
    path[-1][..., 0, :] += 1.0
    return [*path, path[-1]]


def measure(module, X, centres, labels, weights=NONE, n_threads=1, bounds=None):
    """Distances and inertias."""
    centres = centres if centres.ndim == 3 else centres[None]
    bounds = np.array([0, len(X)] if bounds is None else bounds, dtype=np.intp)
    distances, inertias = np.empty(len(X)), np.zeros(len(bounds) - 1)
    module.measure_rows(X, weights, bounds, centres, labels, distances, inertias, n_threads)
    return distances, inertias


@over(
    dtype=[np.float64, np.float32],
    n=[1, 2, 63, 65, 511, 513, 2100],
    shape=[(1, 1), (1, 5), (3, 2), (4, 7), (9, 33), (130, 4)],
)
def test_rows_are_followed_as_the_twin_does(dtype, n, shape):
    d, k = shape
    rng = np.random.default_rng([n, d, k])
    X = rng.normal(size=(n, d)).astype(dtype)
    path = wander(rng, rng.normal(size=(k, d)), 4)
    before = rng.integers(k, size=n).astype(np.int32)
    for heavy in (NONE, rng.random(n)):
        pairs = zip(*(follow(module, X, path, heavy, before) for module in BOTH), strict=True)
        for centres, (found, wanted) in zip(path, pairs, strict=True):
            np.testing.assert_array_equal(found[0], wanted[0])
            assert (found[1] >= wanted[1] * (1 - 1e-7)).all()
            assert (found[2] <= wanted[2] * (1 + 1e-7)).all()
            for mine, theirs in zip(found[3:5], wanted[3:5], strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-11)
            np.testing.assert_array_equal(found[5], wanted[5])
            labels, off = nearest(assign, X, centres)
            np.testing.assert_array_equal(labels, found[0])
            np.testing.assert_array_equal(measure(assign, X, centres, labels, heavy)[0], off)


@over(dtype=[np.float64, np.float32], own=[False, True])
def test_workers_are_told_apart(dtype, own):
    rng = np.random.default_rng(11)
    sizes = np.concatenate([rng.integers(0, 5, 100), [5000, 0, 1, 2049], rng.integers(0, 700, 5)])
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    X, weights = rng.normal(size=(bounds[-1], 5)).astype(dtype), rng.random(bounds[-1])
    path = wander(rng, rng.normal(size=(len(sizes) if own else 1, 6, 5)), 2)
    before = rng.integers(6, size=len(X)).astype(np.int32)
    wanted = list(follow(numpy_twins, X, path, weights, before, bounds=bounds))
    for n_threads in (1, 2):
        runs = follow(assign, X, path, weights, before, n_threads, bounds)
        for mine, theirs in zip(runs, wanted, strict=True):
            for i in (0, 3, 4, 5):
                np.testing.assert_allclose(mine[i], theirs[i], rtol=1e-11, atol=1e-11)


@over(dtype=[np.float64, np.float32], offset=[0, 2**20])
def test_a_tie_goes_to_the_first_centre(dtype, offset):
    # Between centres at even places lie rows at odd ones; all of it is exact in either precision.
    X = (np.arange(1, 99, 2)[:, None] * np.ones(3) + offset).astype(dtype)
    centres = np.arange(0, 101, 2)[:, None] * np.ones(3) + offset
    labels, distances = nearest(assign, X, centres)
    np.testing.assert_array_equal(labels, np.arange(49))
    np.testing.assert_array_equal(distances, 3.0)
    labels, _ = nearest(assign, X, centres[::-1].copy())
    np.testing.assert_array_equal(labels, np.arange(49, 0, -1))
    labels, _ = nearest(assign, X, np.repeat(X[:3].astype(np.float64), 4, axis=0))
    assert set(labels) == {0, 4, 8}
    # Also where bounds are followed: the centres leave the rows, and come back to the tie.
    path = [centres, centres + 2.0**-9, centres, centres, centres - 2.0**-9, centres]
    found = [one[0] for one in follow(assign, X, path)]
    wanted = [one[0] for one in follow(numpy_twins, X, path)]
    np.testing.assert_array_equal(found, wanted)


@each("dtype", [np.float64, np.float32])
def test_rows_of_a_grid_have_labels_of_plain_passes(dtype):
    # Integers: many rows are exactly as near to several centres, and many are the same.
    rng = np.random.default_rng(8)
    X = rng.integers(0, 5, size=(4000, 3)).astype(dtype)
    centres = rng.integers(0, 5, size=(8, 3)).astype(np.float64)
    path = [centres]
    for i in range(12):
        step = np.zeros_like(centres)
        step[rng.integers(8), rng.integers(3)] = 2.0 ** -(i // 2)
        path.append(path[-1] + step * rng.choice([-1, 1]))
    for centres, found in zip(path, follow(assign, X, path), strict=True):
        np.testing.assert_array_equal(found[0], nearest(numpy_twins, X, centres)[0])


@over(
    case=[(np.float64, scale) for scale in (1e-150, 1e-44, 1e-43, 1e-38, 1e37, 1e38, 1e39, 1e150)]
    + [(np.float32, scale) for scale in (1e-43, 1e-38, 1e36)]
)
def test_bounds_beyond_single_precision_hide_no_row(case):
    dtype, scale = case
    rng = np.random.default_rng(3)
    X, centres = rng.normal(size=(3000, 2)), rng.normal(size=(20, 2))
    path = [places * scale for places in wander(rng, centres)]
    X = (X * scale).astype(dtype)
    for places, found in zip(path, follow(assign, X, path), strict=True):
        np.testing.assert_array_equal(found[0], nearest(numpy_twins, X, places)[0])


@over(dtype=[np.float64, np.float32], offset=[0.0, 1e3, 1e9], weighted=[False, True])
def test_sums_and_inertias_keep_their_digits_whatever_changes(dtype, offset, weighted):
    rng = np.random.default_rng(12)
    offset = min(offset, 1e5) if dtype is np.float32 else offset
    X = (offset + rng.normal(size=(3000, 4))).astype(dtype)
    X[:1500] += 0.1 * (1 + offset)
    weights = rng.random(len(X)) if weighted else NONE
    rows = [X[i : i + 5].astype(np.float64) for i in range(0, 1000, 20)]
    for centres, found in zip(rows, follow(assign, X, rows, weights), strict=True):
        heavy = weights if weighted else np.ones(len(X))
        off = measure(numpy_twins, X, centres, found[0])[0]
        assert found[4][0] == pytest.approx(math.fsum(heavy * off), rel=1e-12)
    clusters = found[0][:, None] == np.arange(5)
    counts, sums = found[3][0, :5], found[3][0, 5:-1].reshape(5, 4)
    heavy = heavy.astype(np.longdouble)[:, None, None]
    exact = (heavy * clusters[:, :, None] * X.astype(np.longdouble)[:, None, :]).sum(axis=0)
    np.testing.assert_allclose(counts, (heavy[:, :, 0] * clusters).sum(axis=0).astype(float), 1e-15)
    np.testing.assert_allclose(sums, exact.astype(np.float64), rtol=4e-16)


@each("dtype", [np.float64, np.float32])
def test_sums_are_those_of_rows_that_are_added_up_anew(dtype):
    rng = np.random.default_rng(13)
    X, weights = rng.normal(size=(5000, 6)).astype(dtype), rng.random(5000)
    path = wander(rng, rng.normal(size=(7, 6)))
    *_, moved = follow(assign, X, path, weights)
    (anew,) = follow(assign, X, path[-1:], weights)
    np.testing.assert_array_equal(moved[0], anew[0])
    np.testing.assert_array_equal(moved[3][:, :-1], anew[3][:, :-1])


def test_rows_that_leave_no_doubt_are_not_read():
    rng = np.random.default_rng(14)
    X = np.concatenate([rng.normal(size=(500, 3)), 9 + rng.normal(size=(500, 3))])
    centres = np.array([[0.0] * 3, [9.0] * 3])
    labels, upper = np.full(1000, -1, dtype=np.int32), np.full(1000, np.nan, dtype=np.float32)
    lower, totals = np.zeros(1000, dtype=np.float32), np.zeros((1, 2, 2 + 6 + 1))
    changes, bounds = np.zeros(1, dtype=np.intp), np.array([0, 1000], dtype=np.intp)
    for step, rows in ((0.0, X), (0.1, X[::-1].copy())):
        assign.follow_rows(
            rows, NONE, bounds, centres[None] + step, centres[None], np.zeros(3), labels, upper,
            lower, totals, changes, 1,
        )  # fmt: skip
    # The second time the rows of the clusters had been exchanged.
    assert labels.tolist() == [0] * 500 + [1] * 500
    assert changes.tolist() == [1000]


@each("dtype", [np.float64, np.float32])
def test_rows_far_from_the_origin_lose_nothing(dtype):
    far = 1e9 if dtype is np.float64 else 1e5
    rng = np.random.default_rng(1)
    X = (far + rng.normal(size=(1000, 6))).astype(dtype)
    centres = X[:40].astype(np.float64)
    found, wanted = nearest(assign, X, centres), nearest(numpy_twins, X, centres)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)


@each("dtype", [np.float64, np.float32])
def test_threads_change_nothing(dtype):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(30_000, 4)).astype(dtype)
    weights = rng.random(len(X))
    path = wander(rng, X[:9].astype(np.float64))
    one = list(follow(assign, X, path, weights))
    for n_threads in (2, 3, 8):
        for mine, theirs in zip(
            one, follow(assign, X, path, weights, None, n_threads), strict=True
        ):
            for mine_is, theirs_is in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(mine_is, theirs_is)
        labels, off = nearest(assign, X, path[-1], n_threads)
        np.testing.assert_array_equal(labels, one[-1][0])
        measured = measure(assign, X, path[-1], labels, weights, n_threads)
        plain = measure(assign, X, path[-1], labels, weights)
        np.testing.assert_array_equal(measured[0], off)
        np.testing.assert_array_equal(measured[1], plain[1])


@each("module", BOTH)
def test_no_rows_and_no_features(module):
    for X, centres in ((np.empty((0, 3)), np.ones((2, 3))), (np.empty((4, 0)), np.empty((2, 0)))):
        ((labels, _, _, totals, inertias, changes),) = follow(module, X, [centres])
        assert labels.tolist() == [0] * len(X)
        assert totals.tolist() == [[float(len(X)), 0.0] + [0.0] * (2 * X.shape[1] + 1)]
        assert (inertias.tolist(), changes.tolist()) == ([0.0], [len(X)])
        assert nearest(module, X, centres)[0].tolist() == [0] * len(X)
        assert measure(module, X, centres, labels)[0].tolist() == [0.0] * len(X)


@over(dtype=[np.float64, np.float32], d=[127, 128, 129, 256, 515], k=[1, 2, 3, 5, 6, 7, 13])
def test_wide_rows_by_panels(dtype, d, k):
    rng = np.random.default_rng([d, k])
    X = (rng.normal(size=(70, d)) + 3).astype(dtype)
    centres = rng.normal(size=(k, d)) + 3
    found, wanted = (nearest(module, X, centres) for module in BOTH)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)


@over(dtype=[np.float64, np.float32], d=[4, 300])
def test_rows_nearly_as_near_to_several_centres(dtype, d):
    """Products alone cannot tell them apart: distances do, in the kernel's order of summation."""
    rng = np.random.default_rng(d)
    X = rng.normal(size=(700, d)).astype(dtype)
    tiny = 1e-14 if dtype is np.float64 else 1e-6
    centres = X[:1].astype(np.float64) + tiny * rng.normal(size=(12, d))
    centres = np.concatenate([centres, centres[:3]])
    labels, off = nearest(assign, X, centres)
    every = np.empty((len(centres), len(X)))
    assign.distances_to(X, centres, every, 1)
    np.testing.assert_array_equal(labels, every.argmin(axis=0))
    np.testing.assert_array_equal(off, every.min(axis=0))
    assert len(set(labels)) > 5
    for size in (1, 3, 100, 256):
        parts = [nearest(assign, X[i : i + size], centres) for i in range(0, len(X), size)]
        np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), labels)
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), off)


# ---- features that hubs have --------------------------------------------------------------------


def assigned(module, X, centres, bounds):
    """What the kernel of differences finds of all rows and values, by one root."""
    k, d = centres.shape
    given = [X, np.empty((0, d), dtype=np.uint8), NONE, np.array(bounds), centres]
    out = [np.full((1, len(X)), -1, dtype=np.int32), np.zeros((1, k)), *np.zeros((2, k, d))]
    out += [np.zeros(len(bounds) - 1), np.zeros(1), np.zeros(1, dtype=np.intp)]
    module.assign_features(*given, np.ones((1, len(bounds) - 1)), *out, 1)
    return out


def test_by_differences_a_tie_goes_to_the_first_and_rows_far_away_lose_little():
    rng = np.random.default_rng(0)
    X = rng.integers(-3, 4, size=(500, 5)).astype(np.float64)
    squares = ((X[:, None] - X[:7]) ** 2).sum(axis=2)
    labels = assigned(differences, X, X[:7], [0, 2, 5])[0][0]
    np.testing.assert_array_equal(labels, squares.argmin(axis=1))
    assert ((squares == squares.min(axis=1, keepdims=True)).sum(axis=1) > 1).any()
    for dtype, far in ((np.float64, 1e6), (np.float32, 1e3)):
        X = (rng.standard_normal((3000, 30)) + far).astype(dtype)
        centres = X[:7] + 0.1 * rng.standard_normal((7, 30))
        found, wanted = (
            assigned(module, X, centres, range(0, 31, 3)) for module in (differences, numpy_twins)
        )
        assert (found[0] != wanted[0]).mean() <= 1e-3
        np.testing.assert_allclose(found[4], wanted[4], rtol=1e-9)
