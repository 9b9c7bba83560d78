"""What a user may give a fit in Python by mistake: one sentence, no traceback from elsewhere."""

import networkx as nx
import numpy as np
import pytest

from vpem import VPEM, InputError, VpemWarning, connect, fit_vpem, make_graph
from vpem.network.partition import contiguous


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 4)) + rng.choice([0.0, 2.0], size=60)[:, None]


@pytest.fixture(scope="module")
def network():
    return connect(make_graph("star", 2), contiguous(4, 2), hops=0)


@pytest.mark.parametrize("seed", [-1, 1.5, None, "a", True])
def test_seeds(X, network, seed):
    with pytest.raises(InputError, match="seed must be an integer of at least 0"):
        fit_vpem(X, network, seed=seed)
    with pytest.raises(InputError, match="seed must be an integer of at least 0"):
        connect(make_graph("cycle", 2), contiguous(4, 2), seed=seed)


@pytest.mark.parametrize("dtype", ["foo", np.float16, int, None, "f8,f8"])
def test_precisions(X, network, dtype):
    if dtype is None:
        assert fit_vpem(X, network).mixture.means.dtype == np.float64
        return
    with pytest.raises(InputError, match=r"dtype must be .*float32"):
        fit_vpem(X, network, dtype=dtype)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"X": [[1.0, 2.0], [3.0]]}, "the data must be an array, but their lengths differ"),
        ({"init": [1, [2]]}, "init rows must be an array, but their lengths differ"),
        ({"init": None}, "init must be random, k-means"),
        ({"init": "kmean"}, "did you mean 'kmeans'"),
        ({"sample_weight": [1, [2]]}, "sample weights must be an array"),
        ({"sample_weight": np.full(60, 1e300)}, "sample weights sum to more than 1e\\+100"),
        ({"sample_weight": np.full(60, 1e308)}, "sample weights sum to more than 1e\\+100"),
        ({"n_threads": 10**10}, "threads must be an integer of at least 1 and at most 1024"),
    ],
)
def test_arguments(X, network, given, said):
    data = given.pop("X", X)
    with pytest.raises(InputError, match=said):
        fit_vpem(data, network, **given)


def test_things_in_the_wrong_place(X, network):
    with pytest.raises(InputError, match=r"the network must come from vpem\.connect, got NoneType"):
        fit_vpem(X, None)
    for graph in (nx.cycle_graph(2), "cycle"):
        with pytest.raises(InputError, match=r"connect takes a vpem\.Graph"):
            connect(graph, contiguous(4, 2))


def test_masked_values_are_not_taken_for_numbers(X, network):
    masked = np.ma.masked_greater(X, 2.0)
    with pytest.raises(InputError, match="the data have masked values"):
        fit_vpem(masked, network)
    whole = np.ma.array(X)
    assert fit_vpem(whole, network).log_likelihood == fit_vpem(X, network).log_likelihood


@pytest.mark.parametrize("rounds", [10**9 + 1, 10**20])
def test_rounds_beyond_reason(rounds):
    with pytest.raises(InputError, match="rounds must be an integer of at least 1 and at most"):
        connect(make_graph("cycle", 4), contiguous(4, 4), n_rounds=rounds)


def test_a_thousand_million_rounds_end_when_agents_agree():
    joined = make_graph("cycle", 8), contiguous(8, 8)
    many = connect(*joined, hops=0, n_rounds=10**9, acceleration="none")
    assert many.consensus_error < 1e-12
    assert many.total.n_roots == 1


@pytest.mark.parametrize("scale", [1 / 60, 1e-9, 1.0, 7.0])
def test_weights_of_any_size_tell_the_same(X, network, scale):
    common = {"n_components": 2, "init": [5, 55], "max_iter": 8, "tol": 1e9}
    one = fit_vpem(X, network, **common)
    other = fit_vpem(X, network, sample_weight=np.full(60, scale), **common)
    assert not other.recoveries
    np.testing.assert_allclose(other.mixture.means, one.mixture.means, rtol=1e-8)
    assert other.log_likelihood == pytest.approx(one.log_likelihood, rel=1e-10)


def test_very_uneven_weights_still_give_different_rows(X, network):
    weights = np.r_[1e18, np.ones(59)]
    with pytest.warns(VpemWarning):
        fit = fit_vpem(X, network, init="random", sample_weight=weights, max_iter=1)
    assert fit.init_rows[0] == 0
    assert fit.init_rows[1] != 0


def test_values_that_single_precision_cannot_hold(X, network):
    with pytest.raises(InputError, match=r"values beyond 1e\+17 cannot be squared in float32"):
        fit_vpem(X * 1e20, network, dtype=np.float32)
    for dtype, scale in ((np.float64, "none"), (np.float64, "standard"), (np.float32, "none")):
        with pytest.raises(InputError, match="cannot be squared in float"):
            fit_vpem(X * 1e200, network, dtype=dtype, scale=scale)


def test_single_precision_keeps_the_digits_of_data_far_from_zero(X, network):
    common = {"n_components": 2, "init": [5, 55], "max_iter": 5, "tol": 0}
    with pytest.warns(VpemWarning):
        wide = fit_vpem(X + 1e9, network, **common)
    with pytest.warns(VpemWarning):
        single = fit_vpem(X + 1e9, network, dtype=np.float32, **common)
    np.testing.assert_allclose(single.history, wide.history, rtol=1e-5)
    np.testing.assert_allclose(
        single.mixture.assembled_means, wide.mixture.assembled_means, rtol=1e-12
    )


def test_single_precision_stops_where_it_can_see_no_more(X):
    network = connect(make_graph("path", 4), contiguous(4, 4), hops=0, n_rounds=200)
    fit = fit_vpem(X, network, dtype=np.float32, tol=1e-12, max_iter=3000)
    assert fit.converged


def test_a_mixture_by_itself(X, network):
    mixture = fit_vpem(X, network).mixture
    assert mixture.predict(X.tolist()).tolist() == mixture.predict(X).tolist()
    bad = X.copy()
    bad[7, 2] = np.nan
    for use in (mixture.predict, mixture.predict_proba, mixture.score_samples):
        with pytest.raises(InputError, match="row 7, feature 2 is NaN"):
            use(bad)
    with pytest.raises(InputError, match="n_samples must be an integer of at least 0, got -1"):
        mixture.sample(-1, np.random.default_rng(0))


def test_aic_before_fit_says_so(X):
    for use in ("aic", "bic", "predict", "score"):
        with pytest.raises(ValueError, match="not fitted"):
            getattr(VPEM(), use)(X)


@pytest.mark.parametrize("init", ["random", "k-means++", "kmeans"])
@pytest.mark.parametrize("seed", range(4))
def test_rows_without_weight_are_as_if_they_were_not_there(X, network, init, seed):
    weights = (np.random.default_rng(seed).random(60) > 0.5).astype(float)
    common = {"n_components": 3, "init": init, "seed": seed, "max_iter": 4, "tol": 0}
    with pytest.warns(VpemWarning):
        one = fit_vpem(X, network, sample_weight=weights, **common)
    with pytest.warns(VpemWarning):
        two = fit_vpem(X[weights > 0], network, **common)
    assert one.init_rows == tuple(np.flatnonzero(weights)[list(two.init_rows)])
    np.testing.assert_allclose(one.history, two.history, rtol=1e-10)


def test_negligible_is_meant_of_the_mean_weight():
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(200, 30)) + rng.choice([0.0, 2.0], size=200)[:, None]
    network = connect(make_graph("star", 1), contiguous(30, 1), hops=0)
    common = {"n_components": 2, "init": [5, 55], "max_iter": 6, "tol": 0}
    with pytest.warns(VpemWarning):
        one = fit_vpem(wide, network, **common)
    with pytest.warns(VpemWarning):
        light = fit_vpem(wide, network, sample_weight=np.full(200, 1e-30), **common)
    np.testing.assert_allclose(light.mixture.means, one.mixture.means, atol=1e-9)


def test_single_precision_data_give_no_warning_of_overflow(X, network, recwarn):
    fit_vpem(X.astype(np.float32), network)
    assert not recwarn.list
