"""FedEM: when it stops, where it starts, and what is sent before the first iteration."""

import numpy as np
import pytest

from vpem import InputError, NotConvergedWarning
from vpem.steps.fedem import first_statistics

from .fedem_support import EXACT, ROWS, mixture_model, run


@pytest.fixture
def X(overlapping):
    return overlapping(3, 210, 4) + 5.0


# ---- stopping and starts -------------------------------------------------------------------------


def test_it_stops_when_corrections_are_small(X):
    ours = run(X, covariance_type="tied", max_iter=5000, step_size=1.0, tol=1e-16)
    assert ours.run.converged
    assert ours.run.n_iter < 5000
    assert ours.run.history.mean_field[-1] < 1e-12
    with pytest.warns(NotConvergedWarning, match="not converged within 3 iterations"):
        run(X, max_iter=3, tol=1e-16)


@pytest.mark.parametrize("init", ["random", "k-means++", "kmeans"])
def test_starts(X, init):
    ours = run(X, init=init, max_iter=60, step_size=1.0)
    assert len(set(ours.init_rows)) == 3
    assert ours.log_likelihood > ours.run.history.objective[0]
    # Who holds which rows does not matter to a random start.
    if init == "random":
        assert run(X, 3, init=init, max_iter=1).init_rows == ours.init_rows


def test_it_goes_on_from_a_model(X):
    first = run(X, max_iter=20, **EXACT)
    whole = run(X, max_iter=41, **EXACT)
    second = run(X, init=first.mixture, max_iter=20, **EXACT)
    np.testing.assert_allclose(second.mixture.means, whole.mixture.means, atol=1e-9)
    with pytest.raises(InputError, match="3 components"):
        run(X, init=first.mixture, n_components=2)


def test_units_do_not_matter(X):
    far = 1e6 + X * np.array([1.0, 100.0, 0.01, 1.0])
    common = {"max_iter": 15, "scale": "standard", "reg_covar": 0.0, "compress": "qsgd:8bits"}
    one, other = run(X, **common), run(far, **common)
    # How means are rounded is another, so that noise is.
    np.testing.assert_allclose(one.run.statistic, other.run.statistic, atol=5e-3)
    exact, moved = (run(data, **{**common, "compress": None}) for data in (X, far))
    np.testing.assert_allclose(exact.run.statistic, moved.run.statistic, atol=1e-6)


def test_units_do_not_matter_to_a_codec(X):
    far = 1e3 + X * np.array([1.0, 1e4, 1e-4, 1.0])
    common = {"max_iter": 30, "reg_covar": 0.0, "step_size": 1.0, "init": ROWS}
    ours = run(far, compress="qsgd:4bits:32", **common)
    exact = run(far, **common)
    # It may end at another optimum, but not at noise.
    assert ours.log_likelihood > exact.log_likelihood - 1e-2
    assert ours.run.projections < 5


# ---- what is sent before the first iteration -----------------------------------------------------


@pytest.mark.parametrize("codec", [None, "float64"])
def test_nothing_is_rounded_where_nothing_is_compressed(X, codec):
    one, other = (run(X, max_iter=8, compress=name) for name in (None, codec))
    np.testing.assert_array_equal(one.run.statistic, other.run.statistic)
    assert one.run.history.bytes_up == other.run.history.bytes_up


@pytest.mark.filterwarnings("ignore:weights or covariances")
@pytest.mark.parametrize("codec", ["qsgd:4bits:32", "qsgd:16bits", "randk:0.1", "topk:0.1"])
@pytest.mark.parametrize("seed", range(3))
def test_short_setups_tell_the_data(X, codec, seed):
    ours = run(X, compress=codec, max_iter=1, seed=seed, init=ROWS)
    exact = run(X, max_iter=1, init=ROWS)
    first = [fit.run.history.objective[0] for fit in (ours, exact)]
    assert abs(first[0] - first[1]) < 1e-2 * abs(first[1])
    np.testing.assert_allclose(ours.run.memory, ours.run.memories.mean(axis=0), atol=1e-12)


def test_bytes_of_a_short_setup():
    X = np.random.default_rng(0).normal(size=(40, 3))
    ours = run(X, 4, compress="qsgd:4bits:32", init=[0, 1, 2], max_iter=1)
    # Three rows of the start as float32, and one that means are about, from one worker each.
    rows = 3 * (8 + 12) + (8 + 24)
    # Of four workers: means and factors in 16 bits, a radius, the first statistic of 30 numbers.
    each = 6 + 12 + 4 + (4 + 30)
    assert ours.run.history.bytes_up[0] == rows + 4 * each
    assert ours.run.history.bytes_up[1] == rows + 4 * (each + 4 + 15)
    assert ours.communication["by_kind"]["server"]["bytes"] == 4 * (4 + 15) + 2 * 4 * 240


def test_white_units_are_undone(X):
    from vpem.terms.units import symmetric

    model = mixture_model(X * np.array([1.0, 1e3, 1e-1, 1.0]))
    given = first_statistics(model, model.start(model.terms.at_rows(np.array(ROWS))))
    white = model.apply(given)
    np.testing.assert_allclose(model.undo(white), given, rtol=1e-9, atol=1e-12)
    total = white.mean(axis=0)[12 + 3 :].reshape(3, -1).sum(axis=0)
    np.testing.assert_allclose(symmetric(total, 4), np.eye(4), atol=1e-4)
