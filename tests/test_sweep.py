"""What the fused sweep promises, for every instruction set this machine has."""

import tracemalloc

import numpy as np
import pytest

from vpem import NotConvergedWarning, connect, fit_vpem, make_graph
from vpem._core.sweep import instruction_set, sweep
from vpem._core.threads import one_blas_thread
from vpem.network.partition import contiguous

from .tables import each, over
from .twins import mixture as twins

SETS = ("base", "avx2", "avx512")


@pytest.fixture(params=SETS)
def instructions(request, monkeypatch):
    """Keep to an instruction set; a larger one than the machine has means the machine's best."""
    monkeypatch.setenv("VPEM_INSTRUCTIONS", request.param)
    found = instruction_set()
    assert SETS.index(found) <= SETS.index(request.param)
    return found


def draw(rng, n_samples, widths, n_components, *, tied=False, own=False, diagonal=False, scale=1.0):
    """Arguments of a sweep in double precision, without the accumulators."""
    d, copies = sum(widths), 1 if tied else n_components
    offsets = np.concatenate([[0], np.cumsum(widths)]).astype(np.intp)
    if diagonal:
        inverse = rng.uniform(0.5, 2, copies * d) / scale**2
    else:
        parts = [
            np.tril(rng.normal(size=(w, w))) / np.sqrt(w) + np.eye(w) for w in widths if w
            for _ in range(copies)
        ]  # fmt: skip
        inverse = np.concatenate([np.empty(0), *(part.ravel() / scale for part in parts)])
    own = own and len(widths) > 1
    n_roots = len(widths) if own else 1
    mix = np.ones((1, len(widths)))
    if own:
        mix = 1 + 0.05 * rng.normal(size=(n_roots, n_roots))
    return {
        "rows": scale * rng.normal(size=(n_samples, d)),
        "row_weights": np.empty(0),
        "offsets": offsets,
        "means": 0.5 * scale * rng.normal(size=(n_components, d)),
        "inverse": inverse,
        "diagonal": diagonal,
        "log_dets": rng.normal(size=(copies, len(widths))),
        "mix": mix,
        "log_weights": np.log(rng.dirichlet(np.ones(n_components), size=n_roots)),
    }


def run(function, given, dtype=np.float64, least=0.0, n_threads=1, collect=True):
    """Log-likelihoods, counts, first and second moments."""
    cast = {
        name: value.astype(dtype) if name in ("rows", "means", "inverse", "log_dets") else value
        for name, value in given.items()
    }
    roots, n_components = given["log_weights"].shape
    counts = np.zeros((roots, n_components) if collect else (0, 0))
    first = np.zeros(given["means"].shape)
    second = np.zeros(len(given["inverse"]))
    with one_blas_thread():
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


def test_threads_do_not_show(instructions):
    given = draw(np.random.default_rng(1), 5000, [12, 40, 1], 4, own=True)
    one = run(sweep, given)
    for n_threads in (2, 3, 3):
        for found, wanted in zip(run(sweep, given, n_threads=n_threads), one, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_without_statistics_only_the_log_likelihood_is_found(instructions):
    given = draw(np.random.default_rng(2), 300, [3, 4], 2, own=True)
    alone, counts, first, second = run(sweep, given, collect=False)
    np.testing.assert_array_equal(alone, run(sweep, given)[0])
    assert counts.size == 0
    assert not first.any()
    assert not second.any()


@each("scale", [1e-150, 1e-30, 1e30, 1e150])
def test_huge_and_tiny_units(instructions, scale):
    given = draw(np.random.default_rng(4), 300, [3, 30], 3, scale=scale)
    found, wanted = run(sweep, given), run(twins.sweep, given)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-11)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-10)
    for mine, twin in zip(found[2:], wanted[2:], strict=True):
        assert np.abs(mine - twin).max() <= 1e-11 * np.abs(twin).max()


def test_rows_out_of_reach_of_every_component(instructions):
    given = draw(np.random.default_rng(5), 100, [2], 3)
    given["rows"][17] = 1e200
    with np.errstate(over="ignore"):
        found, wanted = run(sweep, given), run(twins.sweep, given)
    assert found[0] == wanted[0] == -np.inf
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)


def test_a_number_that_is_not_one_is_not_hidden(instructions):
    given = draw(np.random.default_rng(6), 100, [2], 3)
    given["rows"][17, 0] = np.nan
    assert np.isnan(run(sweep, given)[0]).all()


def test_a_component_without_weight_takes_no_row(instructions):
    given = draw(np.random.default_rng(7), 300, [4], 3)
    given["log_weights"][0, 1] = -np.inf
    found, wanted = run(sweep, given), run(twins.sweep, given)
    assert found[1][0, 1] == 0
    assert_close(found, wanted, 1e-11)


def far_apart(widths, n_samples=9001, n_components=6, distance=9.0, **how):
    """Rows of clusters so far apart that nearly all responsibilities are negligible, shuffled."""
    rng = np.random.default_rng(8)
    given = draw(rng, n_samples, widths, n_components, **how)
    d = sum(widths)
    given["means"] = distance * rng.normal(size=(n_components, d))
    given["rows"] = given["means"][rng.integers(n_components, size=n_samples)] + rng.normal(
        size=(n_samples, d)
    )
    return given


@over(
    widths=[[40], [6, 33], [20, 0, 21], [1] * 40],
    how=[{}, {"tied": True}, {"diagonal": True}],
    precision=[(np.float64, 1e-11), (np.float32, 5e-4)],
    weighted=[False, True],
)
def test_components_far_away_are_left_half_computed(instructions, widths, how, precision, weighted):
    dtype, tolerance = precision
    given, least = far_apart(widths, **how), 1e-22 / 9001
    if weighted:
        given["row_weights"] = np.random.default_rng(0).uniform(0.5, 2, 9001)
    some = run(sweep, given, dtype, least)
    assert_close(some, run(twins.sweep, given, dtype, least), tolerance)
    if dtype == np.float64:
        assert_close(some, run(sweep, given), 1e-13)
        assert_close(run(sweep, given, least=least, n_threads=2), some, 1e-13)


def test_a_component_far_from_all_rows_counts_only_where_every_weight_does(instructions):
    given = far_apart([40])
    given["rows"] = given["means"][0] + 0.01 * np.random.default_rng(0).normal(size=(9001, 40))
    step = given["inverse"].reshape(6, 40, 40)[3].sum(axis=1)  # whitened
    given["means"][3] = given["means"][0] + 20 / np.linalg.norm(step)
    assert 1e-110 < run(sweep, given)[1][0, 3] < 1e-60
    assert run(sweep, given, least=1e-25)[1][0, 3] == 0


def test_a_guess_that_is_wrong_changes_nothing(instructions):
    given = far_apart([40])
    given["means"][:, :20] = given["means"][0, :20]  # the first features say nothing
    given["rows"][:, :20] = given["means"][0, :20]
    assert_close(run(sweep, given, least=1e-25), run(twins.sweep, given, least=1e-25), 1e-11)


@each("number", [np.nan, 1e200])
def test_numbers_out_of_range_are_not_hidden_where_components_are_far_apart(instructions, number):
    given = far_apart([40])
    given["rows"][17, 30] = number
    with np.errstate(over="ignore"):
        found, wanted = (run(each, given, least=1e-25) for each in (sweep, twins.sweep))
    np.testing.assert_array_equal(found[0], wanted[0])
    assert not np.isfinite(found[0]).any()


def test_rows_far_from_all_components_are_told_apart(instructions):
    given = far_apart([40])
    given["rows"][:4000] = 1e17 * (1 + np.random.default_rng(0).random((4000, 40)))
    some, every = (run(sweep, given, np.float32, least) for least in (1e-26, 0.0))
    assert_close(some[:2], every[:2], 1e-6)


def test_rows_may_all_weigh_nothing(instructions):
    given = far_apart([40])
    given["row_weights"] = np.zeros(9001)
    found = run(sweep, given, least=1e-26)
    assert found[0] == 0
    assert not found[1].any()


def test_left_out_responsibilities_are_below_rounding(instructions):
    rng = np.random.default_rng(8)
    given = draw(rng, 4000, [6, 33], 3)
    given["means"][1:] += np.array([[4.0], [-6.0]])
    given["rows"][1000:] += rng.choice([0.0, 4.0, -6.0], size=3000)[:, None]
    given["inverse"] *= 0.2
    every = run(sweep, given, least=0.0)
    some = run(sweep, given, least=1e-22 / 4000)
    assert_close(some, every, 1e-14)
    coarse = run(sweep, given, least=1e-3)
    assert not np.allclose(coarse[3], every[3], rtol=1e-9)


# ---- shares --------------------------------------------------------------------------------------


def test_wide_blocks_take_no_more_accumulators_than_threads():
    rows = np.random.default_rng(0).standard_normal((6_000, 500))
    network = connect(make_graph("star", 1), contiguous(500, 1), hops=0)
    peaks = []
    for n_threads in (1, 4):
        tracemalloc.start()
        with pytest.warns(NotConvergedWarning):
            fit_vpem(rows, network, init=[0, 1], max_iter=1, n_threads=n_threads)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    accumulators = 2 * 500**2 * 8
    assert peaks[1] - peaks[0] < 3.5 * 1.1 * accumulators
