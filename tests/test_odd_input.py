"""What a user may give by mistake, or oddly: one sentence, no traceback from elsewhere."""

import networkx as nx
import numpy as np
import pytest

from vpem import InputError, VpemWarning, connect, fit_vpem, make_graph
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.models import read_model
from vpem.network.partition import contiguous

from .cli_support import done
from .tables import each


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 4)) + rng.choice([0.0, 2.0], size=60)[:, None]


@pytest.fixture(scope="module")
def network():
    return connect(make_graph("star", 2), contiguous(4, 2), hops=0)


SEED = "seed must be an integer of at least 0"


@each(
    ("given", "said"),
    [
        *(({"seed": seed}, SEED) for seed in (-1, 1.5, None, "a", True)),
        *(({"dtype": dtype}, r"dtype must be .*float32") for dtype in ("foo", np.float16, int)),
        ({"dtype": "f8,f8"}, r"dtype must be .*float32"),
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
def test_arguments_of_a_fit(X, network, given, said):
    with pytest.raises(InputError, match=said):
        fit_vpem(**{"X": X, "network": network, **given})


@each(
    ("given", "said"),
    [
        *(({"seed": seed}, SEED) for seed in (-1, 1.5, None, "a", True)),
        *(({"n_rounds": n}, "at least 1 and at most") for n in (10**9 + 1, 10**20)),
    ],
)
def test_arguments_of_a_network(X, given, said):
    with pytest.raises(InputError, match=said):
        connect(make_graph("cycle", 2), contiguous(4, 2), **given)
    for graph in (nx.cycle_graph(2), "cycle"):
        with pytest.raises(InputError, match=r"connect takes a vpem\.Graph"):
            connect(graph, contiguous(4, 2))
    with pytest.raises(InputError, match=r"the network must come from vpem\.connect, got NoneType"):
        fit_vpem(X, None)


def test_masked_values_are_not_taken_for_numbers(X, network):
    masked = np.ma.masked_greater(X, 2.0)
    with pytest.raises(InputError, match="the data have masked values"):
        fit_vpem(masked, network)
    whole = np.ma.array(X)
    assert fit_vpem(whole, network).log_likelihood == fit_vpem(X, network).log_likelihood


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


def test_a_mixture_by_itself(X, network):
    mixture = fit_vpem(X, network, dtype=None).mixture
    assert mixture.means.dtype == np.float64
    assert mixture.predict(X.tolist()).tolist() == mixture.predict(X).tolist()
    bad = X.copy()
    bad[7, 2] = np.nan
    for use in (mixture.predict, mixture.predict_proba, mixture.score_samples):
        with pytest.raises(InputError, match="row 7, feature 2 is NaN"):
            use(bad)
    with pytest.raises(InputError, match="n_samples must be an integer of at least 0, got -1"):
        mixture.sample(-1, np.random.default_rng(0))


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
def test_negligible_is_meant_of_the_mean_weight():
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(200, 30)) + rng.choice([0.0, 2.0], size=200)[:, None]
    network = connect(make_graph("star", 1), contiguous(30, 1), hops=0)
    common = {"n_components": 2, "init": [5, 55], "max_iter": 6, "tol": 0}
    one, light = (
        fit_vpem(wide, network, sample_weight=weight, **common).mixture.means
        for weight in (None, np.full(200, 1e-30))
    )
    np.testing.assert_allclose(light, one, atol=1e-9)


NAMES = ("height", "weight", "pulse", "age", "iron")
ORDER = [3, 0, 4, 2, 1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two files of the same numbers, the second with its columns in another order."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 5)) * [1, 5, 0.1, 3, 2] + rng.choice([0, 2], size=120)[:, None]
    write_dataset("a.h5", Dataset(X, NAMES))
    write_dataset("b.h5", Dataset(X[:, ORDER], tuple(NAMES[j] for j in ORDER)))
    return tmp_path


@each(("agents", "scale"), [(2, "none"), (5, "standard")])
def test_a_start_finds_its_features_by_name(folder, capsys, agents, scale):
    common = ["--scale", scale, "-q", "--force"]
    done(capsys, "fit", "a.h5", "-k", 3, "--agents", agents, "-o", "m.h5", "--max-iter", 9, *common)
    words = ["--agents", 1, "--init-model", "m.h5", *common, "--max-iter", 1]
    for data in ("a.h5", "b.h5"):
        done(capsys, "fit", data, "-o", f"from-{data}", *words)
    one, two = (read_model(f"from-{data}") for data in ("a.h5", "b.h5"))
    assert one.report["n_components"] == two.report["n_components"] == 3
    np.testing.assert_allclose(one.history, two.history, rtol=1e-12)
    np.testing.assert_allclose(
        two.mixture.assembled_means, one.mixture.assembled_means[:, ORDER], rtol=1e-9
    )
