"""The assignment kernel against its twin, and what it promises: ties, threads, how rows are cut."""

import numpy as np
import pytest

from vpem._core import assign, reference_assign

from .tables import each, over

NONE = np.empty(0)


def run(module, X, centres, weights=NONE, labels=None, n_threads=1, bounds=None):
    """Labels, distances, counts, sums, inertias and rows that changed, a worker each."""
    centres = centres if centres.ndim == 3 else centres[None]
    bounds = np.array([0, len(X)] if bounds is None else bounds, dtype=np.intp)
    n, m, k = len(bounds) - 1, len(X), centres.shape[1]
    labels = np.full(m, -1, dtype=np.int32) if labels is None else labels.copy()
    distances, counts, sums = np.empty(m), np.zeros((n, k)), np.zeros((n, *centres.shape[1:]))
    inertias, changes = np.zeros(n), np.zeros(n, dtype=np.intp)
    module.assign_rows(
        X, weights, bounds, centres, labels, distances, counts, sums, inertias, changes, n_threads
    )
    return labels, distances, counts, sums, inertias, changes


@over(
    dtype=[np.float64, np.float32],
    n=[1, 2, 255, 256, 257, 4096, 4097, 9000],
    shape=[(1, 1), (1, 5), (3, 2), (4, 7), (9, 33)],
)
def test_kernel_is_its_twin(dtype, n, shape):
    d, k = shape
    rng = np.random.default_rng([n, d, k])
    X = rng.normal(size=(n, d)).astype(dtype)
    centres = rng.normal(size=(k, d))
    before = rng.integers(k, size=n).astype(np.int32)
    weights = rng.random(n)
    for heavy in (NONE, weights):
        found = run(assign, X, centres, heavy, before)
        wanted = run(reference_assign, X, centres, heavy, before)
        np.testing.assert_array_equal(found[0], wanted[0])
        for mine, theirs in zip(found[1:5], wanted[1:5], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(found[5], wanted[5])


@over(dtype=[np.float64, np.float32], own=[False, True])
def test_workers_are_told_apart(dtype, own):
    rng = np.random.default_rng(5)
    X, weights = rng.normal(size=(20_000, 3)).astype(dtype), rng.random(20_000)
    bounds = [0, 0, 1, 300, 300, 15_000, 20_000]
    centres = rng.normal(size=(6 if own else 1, 4, 3))
    found = run(assign, X, centres, weights, bounds=bounds, n_threads=2)
    wanted = run(reference_assign, X, centres, weights, bounds=bounds)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-11)
    assert found[5].tolist() == [0, 1, 299, 0, 14_700, 5_000]


@over(dtype=[np.float64, np.float32], offset=[0, 2**20])
def test_a_tie_goes_to_the_first_centre(dtype, offset):
    # Between centres at even places lie rows at odd ones; all of it is exact in either precision.
    X = (np.arange(1, 99, 2)[:, None] * np.ones(3) + offset).astype(dtype)
    centres = np.arange(0, 101, 2)[:, None] * np.ones(3) + offset
    labels, distances, *_ = run(assign, X, centres)
    np.testing.assert_array_equal(labels, np.arange(49))
    np.testing.assert_array_equal(distances, 3.0)
    labels, *_ = run(assign, X, centres[::-1].copy())
    np.testing.assert_array_equal(labels, np.arange(49, 0, -1))


@each("dtype", [np.float64, np.float32])
def test_equal_centres_are_the_first_of_them(dtype):
    X = np.random.default_rng(0).normal(size=(700, 5)).astype(dtype)
    centres = np.repeat(X[:3].astype(np.float64), 4, axis=0)
    labels, *_ = run(assign, X, centres)
    assert set(labels) == {0, 4, 8}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rows_far_from_the_origin_lose_nothing(dtype):
    far = 1e9 if dtype is np.float64 else 1e5
    rng = np.random.default_rng(1)
    X = (far + rng.normal(size=(1000, 6))).astype(dtype)
    centres = X[:40].astype(np.float64)
    found, wanted = run(assign, X, centres), run(reference_assign, X, centres)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_labels_and_distances_do_not_depend_on_how_rows_are_cut(dtype):
    # Centres so near each other that the products alone could not tell them apart.
    rng = np.random.default_rng(2)
    X = rng.normal(size=(1500, 7)).astype(dtype)
    tiny = 1e-14 if dtype is np.float64 else 1e-6
    centres = X[:1].astype(np.float64) + tiny * rng.normal(size=(30, 7))
    whole = run(assign, X, centres)
    for size in (1, 3, 100, 256, 700):
        parts = [run(assign, X[i : i + size], centres) for i in range(0, len(X), size)]
        np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), whole[0])
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), whole[1])
    assert len(set(whole[0])) > 5


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_threads_change_nothing(dtype):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(30_000, 4)).astype(dtype)
    weights = rng.random(len(X))
    one = run(assign, X, X[:9].astype(np.float64), weights)
    for n_threads in (2, 3, 8):
        other = run(assign, X, X[:9].astype(np.float64), weights, n_threads=n_threads)
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_no_rows_and_no_features():
    labels, *_, inertias, changes = run(assign, np.empty((0, 3)), np.ones((2, 3)))
    assert (len(labels), inertias.tolist(), changes.tolist()) == (0, [0.0], [0])
    labels, distances, counts, *_ = run(assign, np.empty((4, 0)), np.empty((2, 0)))
    assert labels.tolist() == [0] * 4
    assert distances.tolist() == [0.0] * 4
    assert counts.tolist() == [[4.0, 0.0]]


def test_everything_is_added_to():
    X = np.array([[1.0], [2.0], [10.0]])
    labels, distances = np.zeros(3, dtype=np.int32), np.empty(3)
    counts, sums = np.array([[5.0, 0.0]]), np.array([[[100.0], [0.0]]])
    inertias, changes = np.array([1000.0]), np.array([7], dtype=np.intp)
    assign.assign_rows(
        X, np.array([1.0, 2.0, 3.0]), np.array([0, 3], dtype=np.intp), np.array([[[0.0], [9.0]]]),
        labels, distances, counts, sums, inertias, changes, 1,
    )  # fmt: skip
    assert changes.tolist() == [8]
    assert inertias.tolist() == [1000 + 1.0 + 2 * 4.0 + 3 * 1.0]
    assert counts.tolist() == [[8.0, 3.0]]
    assert sums.tolist() == [[[105.0], [30.0]]]


@over(dtype=[np.float64, np.float32], n=[0, 1, 300])
def test_distances_to_points(dtype, n):
    rng = np.random.default_rng(4)
    X, points = rng.normal(size=(n, 11)).astype(dtype), rng.normal(size=(3, 11))
    found, wanted = np.empty((3, n)), np.empty((3, n))
    assign.distances_to(X, points, found, 2)
    reference_assign.distances_to(X, points, wanted, 1)
    np.testing.assert_allclose(found, wanted, rtol=1e-13)


@over(dtype=[np.float64, np.float32], d=[63, 64, 65, 255, 256, 257, 515], k=[1, 2, 3, 4, 7, 24, 25])
def test_wide_rows_by_panels_and_without_copies(dtype, d, k):
    rng = np.random.default_rng([d, k])
    X = (rng.normal(size=(70, d)) + 3).astype(dtype)
    centres = rng.normal(size=(k, d)) + 3
    found, wanted = (run(module, X, centres) for module in (assign, reference_assign))
    np.testing.assert_array_equal(found[0], wanted[0])
    for mine, theirs in zip(found[1:5], wanted[1:5], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("d", [4, 300])
def test_wide_rows_that_are_nearly_as_near_to_several_centres(dtype, d):
    rng = np.random.default_rng(d)
    X = rng.normal(size=(300, d)).astype(dtype)
    tiny = 1e-14 if dtype is np.float64 else 1e-6
    centres = X[:1].astype(np.float64) + tiny * rng.normal(size=(12, d))
    centres = np.concatenate([centres, centres[:3]])
    found = run(assign, X, centres)[0]
    # The distances themselves, in the kernel's own order of summation.
    every = np.empty((len(centres), len(X)))
    assign.distances_to(X, centres, every, 1)
    np.testing.assert_array_equal(found, every.argmin(axis=0))
    assert len(set(found)) > 5


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("own", [False, True])
def test_many_small_workers_beside_large_ones(dtype, own):
    rng = np.random.default_rng(11)
    sizes = np.concatenate([rng.integers(0, 5, 400), [9000, 0, 1, 2049], rng.integers(0, 700, 9)])
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    X, weights = rng.normal(size=(bounds[-1], 5)).astype(dtype), rng.random(bounds[-1])
    centres = rng.normal(size=(len(sizes) if own else 1, 6, 5))
    before = rng.integers(6, size=len(X)).astype(np.int32)
    wanted = run(reference_assign, X, centres, weights, before, bounds=bounds)
    for n_threads in (1, 2):
        found = run(assign, X, centres, weights, before, n_threads, bounds)
        for mine, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-11)
