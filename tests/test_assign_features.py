"""The kernel of differences of squared distances against its twin, and what it promises."""

import numpy as np

from vpem._core import differences

from .tables import over
from .twins import assign as twins

SHAPES = {
    "one of all": (1, [0, 1], 1, 1),
    "uneven hubs": (6, [0, 2, 2, 5, 6], 4, 700),
    "one cluster": (6, [0, 3, 6], 1, 300),
    "two tiles": (40, [0, 40], 3, 257),
    "many": (30, list(range(0, 31, 3)), 7, 3000),
}


def problem(shape, roots, gaps, weighted, dtype, offset=5.0):
    """What the kernel takes but for what it adds to, and what that begins at."""
    d, offsets, k, m = SHAPES[shape]
    rng = np.random.default_rng([m, d, k])
    X = (rng.standard_normal((m, d)) + offset).astype(dtype)
    centres = X[rng.integers(m, size=k)] + 0.1 * rng.standard_normal((k, d))
    n_hubs = len(offsets) - 1
    mix = np.ones((1, n_hubs))
    if roots:
        mix = 1 + 0.05 * rng.standard_normal((n_hubs, n_hubs))
    observed = np.empty((0, d), dtype=np.uint8)
    if gaps:
        observed = (rng.random((m, d)) > 0.3).astype(np.uint8)
    weights = rng.random(m) + 0.1 if weighted else np.empty(0)
    r = len(mix)
    sums = [np.full((r, m), -1, dtype=np.int32), np.ones((r, k)), *np.ones((2, k, d))]
    sums += [np.ones(n_hubs), np.ones(r), np.ones(r, dtype=np.intp)]
    return [X, observed, weights, np.array(offsets, dtype=np.intp), centres, mix], sums


def run(module, given, sums, n_threads=1):
    own = [one.copy() for one in sums]
    module.assign_features(*given, *own, n_threads)
    return own


@over(
    shape=SHAPES, roots=[False, True], gaps=[False, True], weighted=[False, True],
    dtype=[np.float64, np.float32],
)  # fmt: skip
def test_kernel_is_its_twin_and_threads_change_nothing(shape, roots, gaps, weighted, dtype):
    given, sums = problem(shape, roots, gaps, weighted, dtype)
    found, wanted = run(differences, given, sums), run(twins, given, sums)
    single = dtype == np.float32
    # A row nearly as near to two centres may go to either in single precision.
    assert (found[0] != wanted[0]).mean() <= (1e-3 if single else 0)
    for mine, theirs in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(
            mine, theirs, rtol=2e-3 if single else 1e-10, atol=2 if single else 1e-10
        )
    for mine, theirs in zip(found, run(differences, given, sums, 2), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_between_centres_at_whole_numbers_a_tie_goes_to_the_first():
    rng = np.random.default_rng(0)
    X = rng.integers(-3, 4, size=(500, 5)).astype(np.float64)
    offsets, mix = np.array([0, 2, 5]), np.ones((1, 2))
    centres = X[:7]
    given = [X, np.empty((0, 5), dtype=np.uint8), np.empty(0), offsets, centres, mix]
    sums = [np.full((1, 500), -1, dtype=np.int32), np.zeros((1, 7)), *np.zeros((2, 7, 5))]
    sums += [np.zeros(2), np.zeros(1), np.zeros(1, dtype=np.intp)]
    labels = run(differences, given, sums)[0][0]
    squares = ((X[:, None] - centres) ** 2).sum(axis=2)
    np.testing.assert_array_equal(labels, squares.argmin(axis=1))
    assert ((squares == squares.min(axis=1, keepdims=True)).sum(axis=1) > 1).any()


def test_rows_far_from_the_origin_lose_little():
    for dtype, far in ((np.float64, 1e6), (np.float32, 1e3)):
        given, sums = problem("many", False, False, False, dtype, far)
        found, wanted = run(differences, given, sums), run(twins, given, sums)
        assert (found[0] != wanted[0]).mean() <= 1e-3
        np.testing.assert_allclose(found[4], wanted[4], rtol=1e-9)
