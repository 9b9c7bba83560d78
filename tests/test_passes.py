"""What passes over rows promise at their limits: the fused sweep, and assignment to centres."""

import math
import tracemalloc

import numpy as np
import pytest

from vpem import NotConvergedWarning, connect, fit_vpem, make_graph
from vpem._core import assign, differences
from vpem._core.sweep import instruction_set, sweep
from vpem._core.threads import one_blas_thread
from vpem.network.partition import contiguous

from .tables import each, over
from .twins import assign as numpy_twins
from .twins import mixture as twins

DTYPES = (np.float64, np.float32)
NONE = np.empty(0)
BOTH = (assign, numpy_twins)

# ---- the sweep, for every instruction set this machine has --------------------------------------

SETS = ("base", "avx2", "avx512")
N_FAR = 9001


@pytest.fixture(params=SETS)
def instructions(request, monkeypatch):
    """Keep to an instruction set; a larger one than the machine has means the machine's best."""
    monkeypatch.setenv("VPEM_INSTRUCTIONS", request.param)
    found = instruction_set()
    assert SETS.index(found) <= SETS.index(request.param)
    return found


def draw(seed, n_samples, widths, k, *, tied=False, own=False, diagonal=False, scale=1.0):
    """Arguments of a sweep in double precision, without the accumulators."""
    rng, d, copies = np.random.default_rng(seed), sum(widths), 1 if tied else k
    if diagonal:
        inverse = rng.uniform(0.5, 2, copies * d) / scale**2
    else:
        parts = [
            np.tril(rng.normal(size=(w, w))) / np.sqrt(w) + np.eye(w) for w in widths if w
            for _ in range(copies)
        ]  # fmt: skip
        inverse = np.concatenate([np.empty(0), *(part.ravel() / scale for part in parts)])
    roots = len(widths) if own else 1
    mix = 1 + 0.05 * rng.normal(size=(roots, roots)) if own else np.ones((1, len(widths)))
    return {
        "rows": scale * rng.normal(size=(n_samples, d)),
        "row_weights": NONE,
        "offsets": np.concatenate([[0], np.cumsum(widths)]).astype(np.intp),
        "means": 0.5 * scale * rng.normal(size=(k, d)),
        "inverse": inverse,
        "diagonal": diagonal,
        "log_dets": rng.normal(size=(copies, len(widths))),
        "mix": mix,
        "log_weights": np.log(rng.dirichlet(np.ones(k), size=roots)),
    }


def far_apart(widths, n_samples=N_FAR, **how):
    """Rows of clusters so far apart that nearly all responsibilities are negligible, shuffled."""
    rng, d = np.random.default_rng(8), sum(widths)
    means = 9.0 * rng.normal(size=(6, d))
    rows = means[rng.integers(6, size=n_samples)] + rng.normal(size=(n_samples, d))
    return draw(8, 1, widths, 6, **how) | {"means": means, "rows": rows}


def run(given, function=sweep, dtype=np.float64, least=0.0, n_threads=1, collect=True):
    """Log-likelihoods, counts, first and second moments."""
    cast = {
        name: value.astype(dtype) if name in ("rows", "means", "inverse", "log_dets") else value
        for name, value in given.items()
    }
    counts = np.zeros(given["log_weights"].shape if collect else (0, 0))
    first, second = np.zeros(given["means"].shape), np.zeros(len(given["inverse"]))
    with one_blas_thread(), np.errstate(over="ignore"):
        found = function(
            *cast.values(), counts=counts, first_moment=first, second_moment=second, least=least,
            n_threads=n_threads,
        )  # fmt: skip
    return found, counts, first, second


def assert_close(found, wanted, tolerance):
    for mine, twin in zip(found, wanted, strict=True):
        assert mine.shape == twin.shape
        size = max(1.0, np.abs(twin).max(initial=0))
        assert np.abs(mine - twin).max(initial=0) <= tolerance * size


@each(("widths", "how", "precision", "weighted"), [
    ([40], {}, (np.float64, 1e-11), True),
    ([6, 33], {"tied": True}, (np.float64, 1e-11), False),
    ([16, 27], {}, (np.float64, 1e-11), True),
    ([20, 0, 21], {"diagonal": True}, (np.float64, 1e-11), True),
    ([1] * 40, {}, (np.float64, 1e-11), False),
    ([20, 0, 21], {}, (np.float32, 5e-4), False),
    ([40], {"diagonal": True}, (np.float32, 5e-4), True),
])  # fmt: skip
def test_components_far_away_are_left_half_computed(instructions, widths, how, precision, weighted):
    dtype, tolerance = precision
    given, least = far_apart(widths, **how), 1e-22 / N_FAR
    if weighted:
        given["row_weights"] = np.random.default_rng(0).uniform(0.5, 2, N_FAR)
    some = run(given, dtype=dtype, least=least)
    assert_close(some, run(given, twins.sweep, dtype, least), tolerance)
    if dtype == np.float64:
        assert_close(some, run(given), 1e-13)
        assert_close(run(given, least=least, n_threads=2), some, 1e-13)


def test_threads_do_not_show_and_the_log_likelihood_may_be_found_alone(instructions):
    given = draw(1, 5000, [12, 40, 1], 4, own=True)
    one = run(given)
    for n_threads in (2, 3, 3):
        for found, wanted in zip(run(given, n_threads=n_threads), one, strict=True):
            np.testing.assert_array_equal(found, wanted)
    given = draw(2, 300, [3, 4], 2, own=True)
    alone, counts, *moments = run(given, collect=False)
    np.testing.assert_array_equal(alone, run(given)[0])
    assert counts.size == 0
    assert not any(one.any() for one in moments)


@each("scale", [1e-150, 1e-30, 1e30, 1e150])
def test_huge_and_tiny_units(instructions, scale):
    given = draw(4, 300, [3, 30], 3, scale=scale)
    for place, (mine, twin) in enumerate(zip(run(given), run(given, twins.sweep), strict=True)):
        if place < 2:
            np.testing.assert_allclose(mine, twin, rtol=1e-10 if place else 1e-11)
        else:
            assert np.abs(mine - twin).max() <= 1e-11 * np.abs(twin).max()


@over(number=[np.nan, 1e200], far=[False, True])
def test_numbers_out_of_range_are_not_hidden(instructions, number, far):
    given = far_apart([40]) if far else draw(5, 100, [2], 3)
    given["rows"][17, -1] = number
    found, wanted = (run(given, one, least=far * 1e-25) for one in (sweep, twins.sweep))
    np.testing.assert_array_equal(found[0], wanted[0])
    assert not np.isfinite(found[0]).any()
    if number == 1e200 and not far:
        assert found[0] == -np.inf
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)


def test_components_and_rows_at_the_ends(instructions):
    weightless = draw(7, 300, [4], 3)
    weightless["log_weights"][0, 1] = -np.inf
    found = run(weightless)
    assert found[1][0, 1] == 0
    assert_close(found, run(weightless, twins.sweep), 1e-11)

    # A component far from all rows counts only where every weight does.
    given = far_apart([40])
    alone = given | {"means": given["means"].copy()}
    alone["rows"] = given["means"][0] + 0.01 * np.random.default_rng(0).normal(size=(N_FAR, 40))
    step = given["inverse"].reshape(6, 40, 40)[3].sum(axis=1)  # whitened
    alone["means"][3] = alone["means"][0] + 20 / np.linalg.norm(step)
    assert 1e-110 < run(alone)[1][0, 3] < 1e-60
    assert run(alone, least=1e-25)[1][0, 3] == 0

    # The first features say nothing: a guess by them is wrong, which changes nothing.
    misled = {name: given[name].copy() for name in ("means", "rows")}
    for values in misled.values():
        values[:, :20] = given["means"][0, :20]
    wanted = run(given | misled, twins.sweep, least=1e-25)
    assert_close(run(given | misled, least=1e-25), wanted, 1e-11)

    # Rows far from all components are told apart; and rows may all weigh nothing.
    given["rows"][:1500] = 1e17 * (1 + np.random.default_rng(0).random((1500, 40)))
    some, every = (run(given, dtype=np.float32, least=least) for least in (1e-26, 0.0))
    assert_close(some[:2], every[:2], 1e-6)
    found = run(given | {"row_weights": np.zeros(N_FAR)}, least=1e-26)
    assert found[0] == 0
    assert not found[1].any()


def test_left_out_responsibilities_are_below_rounding(instructions):
    rng = np.random.default_rng(8)
    given = draw(8, 4000, [6, 33], 3)
    given["means"][1:] += np.array([[4.0], [-6.0]])
    given["rows"][1000:] += rng.choice([0.0, 4.0, -6.0], size=3000)[:, None]
    given["inverse"] *= 0.2
    every = run(given)
    assert_close(run(given, least=1e-22 / 4000), every, 1e-14)
    assert not np.allclose(run(given, least=1e-3)[3], every[3], rtol=1e-9)


def test_wide_blocks_take_no_more_accumulators_than_threads():
    rows = np.random.default_rng(0).standard_normal((3_000, 300))
    network = connect(make_graph("star", 1), contiguous(300, 1), hops=0)
    peaks = []
    for n_threads in (1, 4):
        tracemalloc.start()
        with pytest.warns(NotConvergedWarning):
            fit_vpem(rows, network, init=[0, 1], max_iter=1, n_threads=n_threads)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 3.5 * 1.1 * 2 * 300**2 * 8


# ---- assignment ---------------------------------------------------------------------------------


def nearest(module, X, centres, n_threads=1):
    """Labels and distances."""
    labels, distances = np.full(len(X), -1, dtype=np.int32), np.empty(len(X))
    module.nearest_rows(X, centres, labels, distances, n_threads)
    return labels, distances


def follow(module, X, path, weights=NONE, labels=None, n_threads=1, bounds=None):
    """Yield labels, bounds, totals, inertias and changes after each move of the centres."""
    path = [places if places.ndim == 3 else places[None] for places in path]
    bounds = np.array([0, len(X)] if bounds is None else bounds, dtype=np.intp)
    (_, k, d), m, n = path[0].shape, len(X), len(bounds) - 1
    labels = np.full(m, -1, dtype=np.int32) if labels is None else labels.copy()
    upper, lower = np.full(m, np.nan, dtype=np.float32), np.zeros(m, dtype=np.float32)
    totals, before, about = np.zeros((n, 2, k + k * d + 1)), path[0], path[0][0].mean(axis=0)
    for centres in path:
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


def measure(module, X, centres, labels, weights=NONE, n_threads=1):
    """Distances and inertias."""
    bounds, distances, inertias = (
        np.array([0, len(X)], dtype=np.intp),
        np.empty(len(X)),
        np.zeros(1),
    )
    module.measure_rows(X, weights, bounds, centres[None], labels, distances, inertias, n_threads)
    return distances, inertias


@over(
    dtype=DTYPES,
    n=[1, 2, 63, 65, 511, 513, 9000],
    shape=[(1, 1), (1, 5), (3, 2), (4, 7), (9, 33), (130, 4)],
    weighted=[False, True],
)
def test_rows_are_followed_as_the_twin_does(dtype, n, shape, weighted):
    (d, k), rng = shape, np.random.default_rng([n, *shape])
    X = rng.normal(size=(n, d)).astype(dtype)
    path = wander(rng, rng.normal(size=(k, d)), 2)
    before, heavy = rng.integers(k, size=n).astype(np.int32), rng.random(n) if weighted else NONE
    runs = (follow(*own) for own in ((numpy_twins, X, path, heavy, before),
        *((assign, X, path, heavy, before, n_threads) for n_threads in (1, 2, 8))))  # fmt: skip
    for centres, wanted, found, *more in zip(path, *runs, strict=True):
        for others in more:
            for mine, theirs in zip(found, others, strict=True):
                np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_array_equal(found[0], wanted[0])
        assert (found[1] >= wanted[1] * (1 - 1e-7)).all()
        assert (found[2] <= wanted[2] * (1 + 1e-7)).all()
        for mine, theirs in zip(found[3:5], wanted[3:5], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-11)
        np.testing.assert_array_equal(found[5], wanted[5])
        labels, off = nearest(assign, X, centres, 2)
        np.testing.assert_array_equal(labels, found[0])
        np.testing.assert_array_equal(measure(assign, X, centres, labels, heavy)[0], off)
    # Sums are those of rows that are added up anew, to the bit.
    (anew,) = follow(assign, X, path[-1:], heavy)
    np.testing.assert_array_equal(found[3][:, :-1], anew[3][:, :-1])


@over(dtype=DTYPES, own=[False, True])
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


@over(dtype=DTYPES, offset=[0, 2**20])
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
    found, wanted = ([one[0] for one in follow(module, X, path)] for module in BOTH)
    np.testing.assert_array_equal(found, wanted)


@over(dtype=DTYPES, scale=[0, 1e-150, 1e-44, 1e-43, 1e-38, 1e36, 1e37, 1e38, 1e39, 1e150])
def test_followed_labels_are_those_of_plain_passes(dtype, scale):
    """Where rows of a grid are as near to several centres, and beyond single precision."""
    rng = np.random.default_rng(8)
    if scale == 0:
        X, centres = rng.integers(0, 5, (4000, 3)), rng.integers(0, 5, (8, 3)).astype(float)
        path = [centres]
        for i in range(12):
            step = np.zeros_like(centres)
            step[rng.integers(8), rng.integers(3)] = 2.0 ** -(i // 2)
            path.append(path[-1] + step * rng.choice([-1, 1]))
    elif dtype == np.float64 or 1e-43 <= scale <= 1e36:
        X = scale * rng.normal(size=(1500, 2))
        path = [scale * places for places in wander(rng, rng.normal(size=(20, 2)))]
    else:
        return
    X = X.astype(dtype)
    for places, found in zip(path, follow(assign, X, path), strict=True):
        np.testing.assert_array_equal(found[0], nearest(numpy_twins, X, places)[0])


@over(dtype=DTYPES, offset=[0.0, 1e3, 1e9], weighted=[False, True])
def test_sums_and_inertias_keep_their_digits_whatever_changes(dtype, offset, weighted):
    rng = np.random.default_rng(12)
    offset = min(offset, 1e5) if dtype is np.float32 else offset
    X = (offset + rng.normal(size=(3000, 4))).astype(dtype)
    X[:1500] += 0.1 * (1 + offset)
    weights = rng.random(len(X)) if weighted else NONE
    rows = [X[i : i + 5].astype(np.float64) for i in range(0, 1000, 40)]
    heavy = weights if weighted else np.ones(len(X))
    for centres, found in zip(rows, follow(assign, X, rows, weights), strict=True):
        off = measure(numpy_twins, X, centres, found[0])[0]
        assert found[4][0] == pytest.approx(math.fsum(heavy * off), rel=1e-12)
    clusters = found[0][:, None] == np.arange(5)
    counts, sums = found[3][0, :5], found[3][0, 5:-1].reshape(5, 4)
    heavy = heavy.astype(np.longdouble)[:, None, None]
    exact = (heavy * clusters[:, :, None] * X.astype(np.longdouble)[:, None, :]).sum(axis=0)
    np.testing.assert_allclose(counts, (heavy[:, :, 0] * clusters).sum(axis=0).astype(float), 1e-15)
    np.testing.assert_allclose(sums, exact.astype(np.float64), rtol=4e-16)


def test_rows_that_leave_no_doubt_are_not_read():
    rng = np.random.default_rng(14)
    X = np.concatenate([rng.normal(size=(500, 3)), 9 + rng.normal(size=(500, 3))])
    runs = follow(assign, X, [np.array([[0.0] * 3, [9.0] * 3]) + step for step in (0.0, 0.1)])
    labels, *_, changes = next(runs)
    X[:] = X[::-1].copy()  # the rows of the clusters are exchanged
    second, *_, later = next(runs)
    assert labels.tolist() == second.tolist() == [0] * 500 + [1] * 500
    assert (changes.tolist(), later.tolist()) == ([1000], [0])


@each("module", BOTH)
def test_no_rows_and_no_features(module):
    for X, centres in ((np.empty((0, 3)), np.ones((2, 3))), (np.empty((4, 0)), np.empty((2, 0)))):
        ((labels, _, _, totals, inertias, changes),) = follow(module, X, [centres])
        assert labels.tolist() == nearest(module, X, centres)[0].tolist() == [0] * len(X)
        assert totals.tolist() == [[float(len(X)), 0.0] + [0.0] * (2 * X.shape[1] + 1)]
        assert (inertias.tolist(), changes.tolist()) == ([0.0], [len(X)])
        assert measure(module, X, centres, labels)[0].tolist() == [0.0] * len(X)


@over(dtype=DTYPES, d=[6, 127, 128, 129, 256, 515], k=[1, 2, 3, 5, 6, 7, 13], far=[3, 1e9])
def test_wide_rows_by_panels_and_rows_far_from_the_origin(dtype, d, k, far):
    rng = np.random.default_rng([d, k])
    far = min(far, 1e5) if dtype is np.float32 else far
    X, centres = (rng.normal(size=(70, d)) + far).astype(dtype), rng.normal(size=(k, d)) + far
    found, wanted = (nearest(module, X, centres) for module in BOTH)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)


@over(dtype=DTYPES, d=[4, 300])
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
        for whole, cut in zip((labels, off), zip(*parts, strict=True), strict=True):
            np.testing.assert_array_equal(np.concatenate(cut), whole)


def test_by_differences_a_tie_goes_to_the_first_and_rows_far_away_lose_little():
    def assigned(module, X, centres, bounds):
        k, d = centres.shape
        given = [X, np.empty((0, d), dtype=np.uint8), NONE, np.array(bounds), centres]
        out = [np.full((1, len(X)), -1, dtype=np.int32), np.zeros((1, k)), *np.zeros((2, k, d))]
        out += [np.zeros(len(bounds) - 1), np.zeros(1), np.zeros(1, dtype=np.intp)]
        module.assign_features(*given, np.ones((1, len(bounds) - 1)), *out, 1)
        return out

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
