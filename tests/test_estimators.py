"""The estimators: scikit-learn's contract, what they pass on, keep, open, draw, say and refuse."""

import inspect
import itertools
import pickle
import warnings
from dataclasses import asdict
from importlib.util import find_spec
from types import SimpleNamespace
from unittest.mock import patch

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn.mixture.tests.test_gaussian_mixture as theirs
from matplotlib.figure import Figure
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.mixture import GaussianMixture

import vpem
from vpem import (
    VPEM,
    DistributedGaussianMixture,
    DistributedKMeans,
    FedEM,
    FedMissEM,
    InputError,
    NotConvergedWarning,
    kmeans_rows,
    make_graph,
    write_model,
)
from vpem.files.checkpoints import write_state
from vpem.files.hdf5 import open_read
from vpem.files.models import read_model
from vpem.files.results import write_clustering
from vpem.fits.estimators import base
from vpem.fits.estimators.base import workers_of
from vpem.fits.mixture_imputation import write_imputation
from vpem.network.partition import evenly
from vpem.pictures.page import draw, kinds_of
from vpem.pictures.saved import saved_of
from vpem.records import Shown
from vpem.settings import COVARIANCE_TYPES

from .estimator_support import EXCUSED, check_as_scikit_learn_does
from .kmeans_support import HOLES, START
from .tables import each

NAMES = ("ast", "alt", "age", "bmi")
AGENTS = {"lab": ["ast", "bmi"], "ward": ["age", "alt"]}
quiet = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")


@pytest.fixture(scope="module")
def X(overlapping):
    return overlapping(0, 120, 4)


@pytest.fixture(scope="module")
def frame(X):
    """A data frame as scikit-learn knows them."""
    return pa.table(dict(zip(NAMES, X.T, strict=True)))


def model(**options):
    return VPEM(**{"n_components": 3, "graph": "cycle", "hops": 1, "tol": 1e-4, **options})


# ---- scikit-learn's contract ---------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # the checks fit tiny, constant and unnamed data on purpose
@pytest.mark.parametrize(
    ("estimator", "excused"),
    [
        (VPEM(), EXCUSED),
        (VPEM(1, graph="path", hops=1, covariance_type="tied", scale="standard"), None),
        (DistributedGaussianMixture(1, covariance_type="diag", init="random"), None),
        (DistributedKMeans(n_clusters=3, graph="cycle", init="random"), EXCUSED),
        (DistributedKMeans(n_clusters=2, split="features", graph="path", agents=1), EXCUSED),
        (FedEM(compress="qsgd:8bits", max_iter=10, tol=0.0), EXCUSED),
        (
            FedMissEM(rank=1, ridge=1.0, n_workers=2, scale="standard"),
            {"check_fit2d_1sample": "more workers than entries"},
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_scikit_learns_own_checks(estimator, excused):
    check_as_scikit_learn_does(estimator, excused)


OF_PRIVATE_FUNCTIONS = "of functions of scikit-learn that are not public"
NOT_OURS = {
    "test_suffstat_sk_full": OF_PRIVATE_FUNCTIONS,
    "test_suffstat_sk_tied": OF_PRIVATE_FUNCTIONS,
    "test_suffstat_sk_diag": OF_PRIVATE_FUNCTIONS,
    "test_gaussian_suffstat_sk_spherical": OF_PRIVATE_FUNCTIONS,
    "test_compute_log_det_cholesky": OF_PRIVATE_FUNCTIONS,
    "test_gaussian_mixture_log_probabilities": OF_PRIVATE_FUNCTIONS,
    "test_gaussian_mixture_precisions_init": OF_PRIVATE_FUNCTIONS,
    "test_gaussian_mixture_all_init_does_not_estimate_gaussian_parameters": "counts calls of one",
    "test_gaussian_mixture_array_api_compliance": "arrays are NumPy's",
    "test_gaussian_mixture_raises_where_array_api_not_implemented": "arrays are NumPy's",
}
"""Tests of scikit-learn's GaussianMixture that say nothing of VPEM, and why."""


def their_cases():
    """Names of tests and what they are called with."""
    for name, test in vars(theirs).items():
        if not name.startswith("test_") or name in NOT_OURS:
            continue
        tables = []
        for mark in getattr(test, "pytestmark", []):
            if mark.name == "parametrize":
                names = mark.args[0].replace(" ", "").split(",")
                rows = [row if len(names) > 1 else (row,) for row in mark.args[1]]
                tables.append([dict(zip(names, row, strict=True)) for row in rows])
        rows = list(itertools.product(*tables))
        wanted = inspect.signature(test).parameters
        common = {"global_random_seed": 42} if "global_random_seed" in wanted else {}
        if "global_dtype" in wanted:  # of several rows each has one of the two
            rows *= 2 if len(rows) == 1 else 1
            kinds = itertools.cycle([np.float64, np.float32])
            rows = [(*row, {"global_dtype": kind}) for row, kind in zip(rows, kinds, strict=False)]
        for parts in rows:
            yield name, {key: value for part in (*parts, common) for key, value in part.items()}


@pytest.mark.filterwarnings("ignore")  # as theirs do, of fits that are short on purpose
@each(("name", "given"), list(their_cases()))
def test_what_holds_of_gaussian_mixture_holds_of_one_agent_at_a_server(name, given, monkeypatch):
    """But for sentences: errors and warnings are of the kinds that they expect, in our words."""

    def mixture(n_components=1, **options):
        return VPEM(n_components, agents=1, graph="star", **options)

    sentences = SimpleNamespace(
        raises=lambda error, match: pytest.raises(error),
        warns=lambda warning, match: pytest.warns(warning),
    )
    parameters = property(lambda self: lambda: self.mixture_.n_parameters)
    with monkeypatch.context() as patched:
        patched.setattr(theirs, "GaussianMixture", mixture)
        patched.setattr(theirs, "pytest", sentences)
        patched.setattr(VPEM, "_n_parameters", parameters, raising=False)
        if name == "test_monotonic_likelihood":  # which fits anew for every iteration
            patched.setattr(theirs, "COVARIANCE_TYPE", ["tied"])
        getattr(theirs, name)(**given)


def test_what_is_left_out_of_theirs_is_there_and_most_is_not():
    names = {name for name in vars(theirs) if name.startswith("test_")}
    assert set(NOT_OURS) <= names
    assert len(names - set(NOT_OURS)) > 2 * len(NOT_OURS)


@each("kind", [VPEM, DistributedGaussianMixture, FedEM, DistributedKMeans, FedMissEM])
def test_clone_parameters_and_weights(kind, X):
    ours = kind(graph="path", n_rounds=7, weights="laplacian", random_state=4)
    copy = clone(ours)
    assert copy.get_params() == ours.get_params() == asdict(ours)  # no field without a value
    assert copy.set_params(n_rounds=2).n_rounds == 2
    assert ours.n_rounds == 7
    for name, why in kind._without.items():
        with pytest.raises(TypeError, match=f"has no parameter {name!r}: {why}"):
            kind(**{name: 1})
    with config_context(enable_metadata_routing=True):
        assert hasattr(kind(), "set_fit_request") == (kind is not FedMissEM)
        if kind is FedMissEM:
            assert not clone(kind()).get_metadata_routing().fit.requests
            return
        kind().set_fit_request(sample_weight=True)
    weights = np.arange(120) % 3.0
    labels = kind(3, random_state=1).fit_predict(X, sample_weight=weights)
    one = kind(3, random_state=1).fit(X, sample_weight=weights)
    np.testing.assert_array_equal(labels, one.predict(X))


def test_use_before_fit_is_refused(X):
    for use in ("predict", "predict_proba", "score", "score_samples", "bic", "aic", "sample"):
        with pytest.raises(NotFittedError):
            getattr(VPEM(), use)(*([] if use == "sample" else [X]))
    assert not hasattr(VPEM(), "covariances_")


@each(
    ("given", "words"),
    [
        ({"k": 3}, "it is called n_components"),
        ({"seed": 3}, "it is called random_state"),
        ({"covarance_type": "full"}, "did you mean 'covariance_type'"),
    ],
)
def test_parameters_that_there_are_not_are_refused_with_the_right_name(given, words):
    with pytest.raises(TypeError, match=words):
        VPEM(**given)
    with pytest.raises(TypeError, match="'tol': it stops when no row changes"):
        DistributedKMeans(2, tol=1e-4)

    class Own(VPEM):
        def __init__(self, colour="red", **options):
            super().__init__(**options)
            self.colour = colour

    assert Own("blue", tol=1.0).tol == 1.0


# ---- what they pass on ---------------------------------------------------------------------------

PRECISIONS = {
    "full": np.stack([np.diag([1.0, 2, 3, 4])] * 2),
    "tied": np.diag([1.0, 2, 3, 4]),
    "diag": np.array([[1.0, 2, 3, 4]] * 2),
    "spherical": np.array([1.0, 2]),
}
NAMED = {"south": range(50, 120), "north": range(50)}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@each("kind", list(PRECISIONS))
def test_given_starts_are_those_of_scikit_learn_whatever_workers_are_given_as(kind, X):
    start = {"weights_init": [0.3, 0.7], "means_init": X[[0, 100]]}
    start |= {"precisions_init": PRECISIONS[kind], "covariance_type": kind}
    how = {"max_iter": 4, "tol": 0.0, "reg_covar": 1e-6, **start}
    theirs = GaussianMixture(2, **how).fit(X)
    workers = (4, np.int64(3), [0, 1] * 60, ["x", "y"] * 60, evenly(120, 6), NAMED)
    by_rows = (DistributedGaussianMixture(2, one, **how) for one in workers)
    for ours in (VPEM(2, 1, **how), *by_rows):
        ours.fit(X)
        for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
            np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), 1e-6, 1e-12)
        np.testing.assert_allclose(ours.lower_bounds_, theirs.lower_bounds_, rtol=1e-9)
        for name in ("bic", "aic", "score"):
            assert getattr(ours, name)(X) == pytest.approx(getattr(theirs, name)(X), rel=1e-7)
        np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    assert ours.workers_.names == ("south", "north")
    assert [len(rows) for rows in ours.workers_.rows] == [70, 50]


def test_workers_are_a_column_of_names_or_masks():
    site = pa.array(np.where(np.arange(120) < 50, "a", "b"))
    masks = {name: np.asarray(site) == name for name in "ab"}
    for workers in (pa.chunked_array([site]), masks, np.asarray(site)):
        found = workers_of(workers, 120)
        assert [len(part) for part in found.rows] == [50, 70]
        assert found.names == ("a", "b")


@each("graph", ["star", "cycle"])
def test_a_start_is_given_in_part_over_hubs_and_units(graph, X):
    how = {"graph": graph, "scale": "standard", "max_iter": 0, "covariance_type": "diag"}
    precisions = PRECISIONS["diag"]
    ours = VPEM(2, 4, means_init=X[[3, 4]], precisions_init=precisions, **how).fit(X)
    drawn = VPEM(2, 4, **how).fit(X)
    np.testing.assert_allclose(ours.means_, X[[3, 4]])
    np.testing.assert_allclose(ours.precisions_, precisions)
    np.testing.assert_allclose(ours.weights_, drawn.weights_)
    assert (ours.n_iter_, ours.converged_, ours.history_.shape) == (0, False, (0, 4))
    assert ours.lower_bound_ == pytest.approx(ours.score(X))
    with pytest.raises(AttributeError, match="no setter"):
        ours.means_ = X[:2]
    rows = DistributedGaussianMixture(2, 3, graph, weights_init=[0.25, 0.75], max_iter=0).fit(X)
    np.testing.assert_allclose(rows.weights_, [0.25, 0.75])


SHAPES = {
    "full": (3, 4, 4), "tied": (4, 4), "diag": (3, 4), "tied-diag": (4,), "spherical": (3, 4),
    "tied-spherical": (4,),
}  # fmt: skip


@each("kind", COVARIANCE_TYPES)
def test_shapes_of_attributes(kind, X):
    ours = model(covariance_type=kind, hops=0).fit(X)
    assert ours.covariances_.shape == ours.precisions_.shape == SHAPES[kind]
    inverse = np.linalg.inv if kind in ("full", "tied") else np.reciprocal
    np.testing.assert_allclose(ours.precisions_, inverse(ours.covariances_), rtol=1e-6, atol=1e-9)
    assert (ours.weights_.shape, ours.means_.shape) == ((3,), (3, 4))
    assert ours.history_.shape == (ours.n_iter_, 4)
    assert (len(ours.hubs_), ours.converged_, ours.n_features_in_) == (4, True, 4)
    assert ours.lower_bound_ == pytest.approx(ours.history_[-1].mean() / 120)


def test_data_of_other_types(X):
    whole = np.round(10 * X).astype(int)
    listed = model().fit(whole.astype(float).tolist(), np.arange(120))  # labels are ignored
    np.testing.assert_array_equal(model().fit(whole).means_, listed.means_)
    holed = np.where(np.arange(480).reshape(120, 4) == 71, np.nan, X)
    for call in (model().fit, listed.predict):
        with pytest.raises(InputError, match=r"row 17, feature 3 is NaN.*missing='marginalize'"):
            call(holed)
    single, double = model(n_components=2).fit(X.astype(np.float32)), model(n_components=2).fit(X)
    np.testing.assert_allclose(single.history_[0], double.history_[0], rtol=1e-5)
    again = pickle.loads(pickle.dumps(single))
    for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
        assert getattr(again, name).dtype == np.float32, name
    assert single.predict_proba(X.astype(np.float32)).dtype == np.float32
    assert single.score_samples(X).dtype == np.float64
    filling = FedMissEM(rank=1, ridge=1.0, max_iter=3, tol=1.0)
    assert filling.fit_transform(X.astype(np.float32)).dtype == np.float32
    assert filling.transform(X[:3].astype(np.float32)).dtype == np.float32
    assert filling.transform(X[:3]).dtype == np.float64


LISTS = [[3, 0], [1, 2]]


@each(
    ("agents", "parts"),
    [
        (None, [[0], [1], [2], [3]]),
        (3, [[0, 1], [2], [3]]),
        (1, [[0, 1, 2, 3]]),
        *((given, [[0, 3], [1, 2]])
          for given in (LISTS, tuple(map(tuple, LISTS)), [np.array(part) for part in LISTS])),
    ],
)  # fmt: skip
def test_agents(agents, parts, X):
    ours = model(agents=agents, hops=0, n_rounds=150).fit(X)
    assert [columns.tolist() for columns in ours.mixture_.blocks.features] == parts


def test_graphs_and_agents_by_names(X, frame):
    by_name = model(graph="path", hops=0, n_rounds=150).fit(X)
    for graph in (nx.path_graph(4), make_graph("path", 4)):
        ours = model(graph=graph, hops=0, n_rounds=150).fit(X)
        np.testing.assert_array_equal(ours.graph_.edges, by_name.graph_.edges)
        np.testing.assert_array_equal(ours.means_, by_name.means_)
    named = VPEM(2, AGENTS, tol=1e-3).fit(frame)
    assert [one.tolist() for one in named.mixture_.blocks.features] == [[0, 3], [1, 2]]
    assert named.kept().report["agent_names"] == ["lab", "ward"]
    with pytest.raises(InputError, match="have no names"):
        VPEM(2, AGENTS).fit(X)


def test_a_dataset_is_fitted_on_the_network_that_it_has():
    """As the command fits it."""
    held = vpem.read_dataset(vpem.example_path("breast_cancer"))
    made = VPEM(2).fit(held)
    assert made.graph_.topology == "dataset"
    assert [list(hub.agents) for hub in made.hubs_] == [[n] for n in range(held.partition.n_agents)]
    assert VPEM(2, agents=1).fit(held).graph_.topology == "star"
    assert VPEM(2).fit(held.X).graph_.n_agents == 1
    assert VPEM(2, graph="cycle").fit(held.X).graph_.n_agents == held.n_features


def test_warm_start_goes_on_where_the_last_fit_ended(X):
    ours, short = model(warm_start=True, max_iter=4, tol=0.0), model(max_iter=4, tol=0.0)
    with pytest.warns(NotConvergedWarning, match="after 4 iterations"):
        first = ours.fit(X).history_
    with pytest.warns(NotConvergedWarning):
        ours.fit(X), short.fit(X)
    with pytest.warns(NotConvergedWarning):
        whole = model(max_iter=8, tol=0.0).fit(X)
    # Roots that share one estimate lose nothing when their weights are averaged.
    np.testing.assert_allclose(np.concatenate([first, ours.history_]), whole.history_, rtol=1e-6)
    np.testing.assert_array_equal(short.history_, first)


def test_the_same_state_gives_the_same_model(X):
    options = {"graph": "geometric", "hops": 0, "n_rounds": 300, "init": "random"}
    one, two = (model(random_state=7, **options).fit(X) for _ in range(2))
    np.testing.assert_array_equal(one.means_, two.means_)
    np.testing.assert_array_equal(one.graph_.edges, two.graph_.edges)
    np.testing.assert_array_equal(one.sample(40)[0], two.sample(40)[0])
    with pytest.raises(InputError, match="n_samples"):
        one.sample(0)
    a, b = (model(random_state=np.random.RandomState(5), init="random").fit(X) for _ in range(2))
    np.testing.assert_array_equal(a.means_, b.means_)
    starts = {model(random_state=s, init="random").fit(X).fit_.init_rows for s in range(4)}
    assert len(starts) > 1


def test_peers_have_models_of_their_own(X):
    ours = DistributedGaussianMixture(2, 5, nx.cycle_graph(5), random_state=0, warm_start=True)
    ours.fit(X)
    assert len(ours.mixtures_) == 5
    assert ours.history_.shape == (ours.n_iter_, 5)
    pooled = DistributedGaussianMixture(2, 5, random_state=0).fit(X)
    assert len(pooled.mixtures_) == 1
    assert ours.score(X) == pytest.approx(pooled.score(X), abs=1e-6)
    assert ours.fit(X).n_iter_ <= 3


@pytest.mark.filterwarnings("ignore:standard deviations of features differ")
def test_methods_of_clusters():
    digits = load_digits().data[:400]
    ours = DistributedKMeans(6, workers=4, random_state=0)
    labels = ours.fit_predict(digits)
    np.testing.assert_array_equal(labels, ours.predict(digits))
    far = ours.transform(digits)
    np.testing.assert_array_equal(far.argmin(axis=1), labels)
    squares, weights = far.min(axis=1) ** 2, np.arange(400.0)
    assert squares.sum() == pytest.approx(ours.inertia_, rel=1e-12)
    assert ours.score(digits) == pytest.approx(-ours.inertia_, rel=1e-12)
    weighed = ours.score(digits, sample_weight=weights)
    assert weighed == pytest.approx(-squares @ weights, rel=1e-12)
    assert ours.n_iter_ == len(ours.clustering_.history)
    for init, starts in (("random", 10), ("k-means++", 1)):
        with patch("vpem.fits.estimators.clustering.kmeans_rows", wraps=kmeans_rows) as recipe:
            DistributedKMeans(2, init=init, n_init="auto").fit(digits)
        assert recipe.call_args.args[3].n_init == starts
    assert list(ours.get_feature_names_out()) == [f"distributedkmeans{k}" for k in range(6)]


@each("split", ["rows", "features"])
def test_rows_that_miss_values_go_to_the_nearest_by_what_is_there(split):
    ours = DistributedKMeans(4, split, init=START, missing="marginalize", random_state=0)
    labels = ours.fit_predict(HOLES)
    np.testing.assert_array_equal(ours.predict(HOLES), labels)
    np.testing.assert_array_equal(ours.transform(HOLES).argmin(axis=1), labels)
    assert ours.score(HOLES) == pytest.approx(-ours.inertia_, rel=1e-10)
    blank = HOLES.copy()
    blank[7] = np.nan
    for call in (ours.fit, ours.predict):
        with pytest.raises(InputError, match="row 7 has no value at all"):
            call(blank)


REST = {"ward": ["age", "alt"]}
PRIVATE = {"release_epsilon": 5.0, "delta": 1e-3, "bounds": "-9,9"}
REFUSED = {
    VPEM: [
        *(({"agents": agents}, match) for agents, match in (
            (0, "agents must be an integer of at least 1"), (5, "5 agents cannot share 4 features"),
            (True, "agents"), ("two", "agents must be None"), (2.5, "agents must be None"),
            ([[0, 1]], "misses feature 'age', 'bmi'"),
            ([[0, 1, 2, 3], [0]], "repeats feature 'ast'"),
            ({"lab": ["ast", "bmj"], **REST}, "did you mean 'bmi'"),
            ({"lab": ["ast"], **REST}, "misses feature 'bmi'"),
            ({"lab": "ast", "ward": ["age", "alt", "bmi"]}, "'lab' must have a list of features"),
            ({"lab": slice(2), "ward": ["age", "bmi"]}, "'lab' must have a list of features"),
            ({"lab": [["ast"]], "ward": ["age", "alt", "bmi"]}, "'lab': features are given by"),
            ({"lab": [0, -1], "ward": [1, 2]}, "names feature -1"),
        )),
        *(({"agents": 4, "graph": graph}, match) for graph, match in (
            ("ring", "topology must be one of"), (3, "graph must be"),
            (nx.path_graph(3), "3 nodes"), (nx.empty_graph(4), "not connected"),
            (make_graph("cycle", 3), "3 agents but the features are held by 4"),
        )),
        *(({"agents": 1, **options}, match) for options, match in (
            ({"covariance_type": "ful"}, "did you mean 'full'"),
            ({"random_state": -1}, "random_state"), ({"n_threads": 0}, "threads"),
            ({"weights_init": [0.5, 0.6]}, "add up to 1"),
            ({"weights_init": [1.0]}, r"shape \(2,\)"),
            ({"means_init": [[0.0] * 3] * 2}, r"shape \(2, 4\)"),
            ({"means_init": [[np.nan] * 4] * 2}, "finite"),
            ({"means_init": "x"}, "must be numbers"),
            ({"precisions_init": -PRECISIONS["full"]}, "positive definite"),
            ({"precisions_init": -PRECISIONS["diag"], "covariance_type": "diag"}, "positive"),
            ({"init_params": "best"}, "init_params must be one of"),
            ({"init_params": "random", "init": "random"}, "give one of them"),
            ({"verbose": -1}, "verbose"), ({"verbose": "x"}, "verbose must be"),
            ({"warm_start": "no"}, "true or false"),
            ({"means_init": np.zeros((2, 4)), **PRIVATE}, "leave out init"),
            ({"max_iter": 0, **PRIVATE}, "at least 1"),
        )),
    ],
    DistributedGaussianMixture: [({"workers": workers}, match) for workers, match in (
        ("three", "workers must be a number of workers"),
        (None, "workers must be a number of workers"), (300, "300 workers cannot share 120 rows"),
        ({"a": range(60), "b": range(59, 120)}, "row 59 is given twice"),
        ({"a": range(60)}, "row 60 has no worker"),
        ({"a": range(121)}, "beyond those of the data"), ({"a": [0.5]}, "row numbers"),
        ({"a": np.ones(100, bool)}, "of 120 truth values, got bool"),
    )],
    DistributedKMeans: [
        ({"split": "columns"}, "split must be one of features, rows"),
        ({"method": "grid"}, "needs split='features'"),
        ({"agents": 3}, "with 'rows' give workers"),
        ({"hops": 1}, "with 'rows' give workers"),
        ({"split": "features", "workers": 3}, "with 'features' give agents"),
        ({"workers": "all"}, "workers must be a number"),
        ({"split": "features", "agents": 2.5}, "agents must be None"),
        ({"graph": 3}, "graph must be a topology"),
    ],
}  # fmt: skip


@each(
    ("kind", "how", "match"),
    [(kind, *case) for kind, cases in REFUSED.items() for case in cases],
)
def test_what_cannot_be_is_refused(kind, how, match, frame):
    with pytest.raises(InputError, match=match):
        kind(2, **how).fit(frame)


# ---- files ---------------------------------------------------------------------------------------

ESTIMATORS = {
    "features": lambda: VPEM(2, AGENTS, tol=1e-3),
    "own graph": lambda: VPEM(
        2, agents=[[0, 3], [1], [2]], graph=nx.path_graph(3), n_rounds=4, max_iter=3, tol=0,
        covariance_type="diag", scale="standard", init=[3, 40],
        random_state=np.random.default_rng(1),
    ),
    "rows": lambda: DistributedGaussianMixture(2, {"a": range(50), "b": range(50, 120)}, tol=1e-3),
    "peers": lambda: DistributedGaussianMixture(
        2, workers=[0, 1] * 60, graph="path", n_rounds=2, max_iter=3, tol=0, random_state=0
    ),
    "fedem": lambda: FedEM(2, 2, step_size=lambda k: 0.5, tol=1e-4),
    "kmeans": lambda: DistributedKMeans(2, workers=[0] * 40 + [1] * 80),
    "kmeans of features": lambda: DistributedKMeans(
        2, "features", agents=AGENTS, scale="standard", n_init="auto"
    ),
}  # fmt: skip
COMMON = [name for name in ESTIMATORS if name not in ("own graph", "peers")]
SPELT = {"workers", "graph", "random_state", "step_size"}
"""Parameters that are objects, of which a file keeps what they say."""


@pytest.fixture(scope="module", params=ESTIMATORS)
def fitted(request, frame):
    return ESTIMATORS[request.param]().fit(frame)


def fit_of(estimator):
    """What the recipe returned, with what it knows of the rows."""
    return estimator.clustering_ if hasattr(estimator, "clustering_") else estimator.fit_


@quiet
def test_fits_and_their_estimators_are_saved_and_opened_as_they_were_and_drawn(
    fitted, frame, X, tmp_path
):
    found, path, again = fit_of(fitted), tmp_path / "model.h5", tmp_path / "again.h5"
    np.testing.assert_array_equal(found.predict(X), fitted.predict(frame))
    fitted.save(path)
    found.save(again)
    for one, file in ((fitted, path), (found, again)):
        with pytest.raises(vpem.FileError, match="exists"):
            one.save(file)
    nameless, opened = vpem.load(again), vpem.load(path, type(fitted))
    assert type(opened) is type(nameless) is type(fitted)
    np.testing.assert_array_equal(opened.predict(frame), fitted.predict(frame))
    assert opened.score(frame) == pytest.approx(fitted.score(frame), rel=1e-12)
    assert opened.feature_names_in_.tolist() == list(NAMES)
    assert (opened.n_iter_, opened.summary()) == (fitted.n_iter_, fitted.summary())
    np.testing.assert_array_equal(nameless.predict(X), found.predict(X))
    np.testing.assert_array_equal(nameless.kept().predict(X), found.predict(X))
    told, ours, kept = opened.get_params(), fitted.get_params(), opened.kept()
    apart = {name for name in ours if told[name] is not ours[name] and told[name] != ours[name]}
    assert apart <= SPELT
    assert (set(kept.versions) >= {"vpem", "numpy"}, kept.report["n_features"]) == (True, 4)
    opened.save(again, force=True)
    assert vpem.load(again).summary() == fitted.summary()
    with pytest.raises(InputError, match="4 features"):
        found.predict(X[:, :3])
    holed = np.where(np.arange(4) == 1, np.nan, X)
    with pytest.raises(InputError, match="feature 1 is NaN"):
        found.predict(holed)
    if apart <= {"workers"}:
        opened.fit(frame)
    if hasattr(fitted, "clustering_"):
        np.testing.assert_array_equal(kept.labels, fitted.labels_)
        assert kept.report["inertia"] == fitted.inertia_
        return
    history = kept.history if kept.root_history is None else kept.root_history
    np.testing.assert_array_equal(history, fitted.fit_.history)
    assert kept.report["converged"] == fitted.converged_
    assert "history" not in kept.report
    assert set(read_model(path).options) == set(ours)
    saved = saved_of(str(path), read_model(path))  # the file has what pictures are drawn of
    for kind, about in kinds_of(saved).items():
        if about.data != "needed":
            draw(kind, saved)
    for name in ("predict_proba", "score_samples"):
        wanted = getattr(fitted.mixture_, name)(holed, missing="marginalize")
        np.testing.assert_array_equal(getattr(found, name)(holed, missing="marginalize"), wanted)
    rows, components = found.sample(5, seed=3)
    np.testing.assert_array_equal(nameless.kept().sample(5, seed=3)[0], rows)
    assert (rows.shape, components.shape) == ((5, 4), (5,))


WRITERS = {
    write_model: [VPEM(2), DistributedGaussianMixture(2), FedEM(2)],
    write_clustering: [DistributedKMeans(3, workers=2)],
    write_imputation: [FedMissEM()],
}


@quiet
@each("write", WRITERS)
def test_what_is_no_fit_of_that_kind_is_refused_and_nothing_written(tmp_path, write, X):
    own = WRITERS[write]
    others = [one for kind, models in WRITERS.items() if kind is not write for one in models]
    for value, said in [
        *((type(one)(), f"this {type(one).__name__} is not fitted: call fit") for one in own),
        (type(own[0]), f"got the class {type(own[0]).__name__}"),
        (clone(others[0]).fit(X), f"got {type(others[0]).__name__}"),
        (X, "got ndarray"),
        (None, "got NoneType"),
    ]:
        with pytest.raises(InputError, match=said):
            write(tmp_path / "m.h5", value)
    assert not list(tmp_path.iterdir())


def test_a_fit_goes_on_from_a_file(X, tmp_path):
    ours = VPEM(2, agents=1, tol=1e-6, warm_start=True).fit(X)
    ours.save(tmp_path / "m.h5")
    write_model(tmp_path / "m.h5", ours, force=True)
    opened = vpem.load(tmp_path / "m.h5")
    with pytest.raises(InputError, match="warm_start"):
        opened.partial_fit(X)
    assert opened.fit(X).n_iter_ == 1


def test_any_file_of_ours_is_opened_and_others_are_refused(X, tmp_path):
    path = tmp_path / "data.h5"
    vpem.write_dataset(path, vpem.Dataset(X, NAMES))
    assert isinstance(vpem.load(path), vpem.Dataset)
    with pytest.raises(vpem.FileError, match="opens as Dataset, not as VPEM; leave the kind out"):
        vpem.load(path, VPEM)
    holes = np.where(np.eye(120, 4, dtype=bool), np.nan, X)
    imputed = FedMissEM(9, ridge=1.0, max_iter=2, tol=1.0).fit(holes)
    assert imputed.factors_[0].shape == (120, 4)  # of rank four at most
    imputed.save(tmp_path / "i.h5")
    assert vpem.load(tmp_path / "i.h5").values.shape == (120, 4)
    assert "rank 4, 120 x 4" in imputed.summary()
    assert "120 rows x 4 columns" in imputed.imputation_._repr_html_()
    assert vpem.plot(imputed).alt
    with open_read(tmp_path / "i.h5") as file:
        np.testing.assert_array_equal(file["imputed"][()], imputed.impute())
    with pytest.raises(vpem.FileError):
        vpem.load(tmp_path / "none.h5")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4.5\n")
    assert vpem.load(tmp_path / "t.csv").feature_names == ("a", "b")
    write_state(tmp_path / "c.ckpt", {})
    with pytest.raises(vpem.FileError, match="is a checkpoint"):
        vpem.load(tmp_path / "c.ckpt")
    for unfitted in (VPEM(), DistributedKMeans(), FedMissEM()):
        with pytest.raises(InputError, match="not fitted"):
            unfitted.save(tmp_path / "u.h5")
        assert "nothing" not in unfitted._repr_html_()
    assert not (tmp_path / "u.h5").exists()


# ---- pictures ------------------------------------------------------------------------------------


def test_fits_are_drawn_with_data_of_any_form(frame, X, tmp_path):
    model = VPEM(2, AGENTS, tol=1e-3).fit(frame)
    path = tmp_path / "m.h5"
    model.save(path)
    labels = np.arange(120) // 60
    shuffled = vpem.Dataset(X[:, ::-1], NAMES[::-1], labels=labels)
    drawn = [
        vpem.plot(model, "marginals", frame, features=["age"]).alt,
        vpem.plot(path, "marginals", shuffled, features=["age"]).alt,
        vpem.plot(model.kept(), "marginals", X, features=[2]).alt,
    ]
    assert len(set(drawn)) == 1
    assert vpem.plot(model.fit_, "history").alt == vpem.plot(model, "history").alt
    confusion = vpem.plot(model, "confusion", frame, labels)
    assert vpem.plot(path, "confusion", shuffled).alt == confusion.alt
    own = Figure().add_subplot()
    assert vpem.plot(model, "profile", ax=own).figure is own.figure
    with pytest.raises(InputError, match="not for history"):
        vpem.plot(model, "history", ax=own)
    assert vpem.plot(model)._repr_png_().startswith(b"\x89PNG")
    vpem.plot(model).save(tmp_path / "p.svg")
    small = VPEM(2, 1, tol=1.0).fit(X[:, :1])  # of which there are few pictures
    assert vpem.report(small, path=tmp_path / "r.html") == tmp_path / "r.html"


@each(
    ("given", "match"),
    [
        ((3,), "a fitted estimator"),
        ((VPEM(),), "not fitted"),
        (("model", "mean"), "kind must be one of"),
        (("model", "confusion"), "give the data"),
        (("model", None, None, [1]), "give X too"),
        (("model", "pairs", "wine.csv"), r"give vpem.read_dataset\('wine.csv'\)"),
    ],
)
def test_what_cannot_be_drawn_is_refused(given, match, X):
    first = VPEM(2, agents=1, tol=1.0).fit(X) if given[0] == "model" else given[0]
    with pytest.raises(InputError, match=match):
        vpem.plot(first, *given[1:])


# ---- names, lines, and what is shown -------------------------------------------------------------


@each("kind", COMMON)
def test_a_dataset_brings_names_and_weights(kind, X, frame):
    weights = np.linspace(0.5, 2, 120)
    whole = vpem.Dataset(X, NAMES, sample_weight=weights)
    ours, same = ESTIMATORS[kind]().fit(whole), ESTIMATORS[kind]().fit(frame, sample_weight=weights)
    assert ours.summary() == same.summary()
    other = vpem.Dataset(X[:, ::-1], NAMES[::-1])
    np.testing.assert_array_equal(ours.predict(other), same.predict(frame))
    with pytest.raises(InputError, match="lack features of the model: 'bmi'"):
        ours.predict(vpem.Dataset(X[:, :3], NAMES[:3]))


@each("kind", COMMON)
def test_verbose_fits_say_how_far_they_are(kind, frame, capsys):
    said = []
    for how in ({"verbose": 1, "verbose_interval": 2}, {"verbose": 2}, {}):
        ESTIMATORS[kind]().set_params(**how).fit(frame)
        said.append(f"\n{capsys.readouterr().out}")
    assert "\niteration 2, " in said[0]
    assert "\niteration 3, " not in said[0]
    assert "\niteration 1, " in said[1]
    assert "converged after" in said[0].splitlines()[-1]
    assert said[2] == "\n"


def test_restarts_are_counted(X, capsys):
    part, whole = {"means_init": X[:2], "n_init": 2, "tol": 1e-2}, {"weights_init": [0.5, 0.5]}
    whole["precisions_init"] = PRECISIONS["full"]
    for given, count in (({}, 1), (whole, 0)):  # of a start that is given whole there is one
        VPEM(2, 1, verbose=1, **part, **given).fit(X)
        assert capsys.readouterr().out.count("restart 2 of 2") == count
    VPEM(2, 1, n_init=2, tol=1.0, verbose=1, init="random").fit(X)
    assert capsys.readouterr().out.splitlines()[:2] == ["restart 1 of 2", "restart 2 of 2"]


def test_summaries_name_what_differs(fitted):
    lines = fitted.summary().splitlines()
    assert len(lines) == 5
    assert lines[2].split()[:3] == [fitted._noun, "size", "share"]
    assert " sd" in lines[3]
    assert lines[3].split()[-3] in NAMES
    shown = fitted._repr_mimebundle_()
    assert "differs most in" in shown["text/html"]
    assert "differs most in" in fitted._repr_html_()


def test_objects_show_facts_and_no_arrays(X, tmp_path):
    model = VPEM(2, 2, tol=1e-3).fit(X)
    clusters = DistributedKMeans(2).fit(X)
    facts = {
        repr(model.graph_): "Graph(2 agents, 2 edges, star)",
        repr(model.mixture_): "Mixture(2 components, 4 features, full)",
        repr(model.kept()): "Model(2 components, 4 features)",
        repr(evenly(4, 1)): "Workers(1 worker, 4 rows)",
        repr(clusters.kept()): "StoredClustering(2 clusters, 4 features)",
        repr(vpem.Dataset(X, NAMES)): "Dataset(120 rows, 4 features, data)",
    }
    assert list(facts) == list(facts.values())
    assert repr(model.fit_).startswith("Fit(2 components, 4 features, converged after ")
    assert "<table" in model.mixture_._repr_html_()

    class Odd(Shown, facts="{name}"):
        name = "<b>\n"

    assert "<b>" not in Odd()._repr_html_()
    assert "\n" not in repr(Odd())
    boys = vpem.read_individuals(vpem.example_path("oxford_boys"))
    growth = vpem.fit_saem(boys, n_iter=5, burn_in=2, tol=0)
    vpem.save_saem(tmp_path / "growth.h5", growth)
    for fit in (growth, vpem.load(tmp_path / "growth.h5")):
        shown = fit._repr_html_()
        assert all(f">{one}<" in shown for one in ("Estimates", "s.e.", "intercept"))


def test_warnings_of_fits_that_have_not_converged_are_scikit_learns(X):
    assert issubclass(vpem.NotConvergedWarning, ConvergenceWarning)
    for short in (VPEM(2, max_iter=1), FedEM(2, max_iter=1), DistributedKMeans(2, max_iter=1)):
        with pytest.warns(ConvergenceWarning) as caught:
            short.fit(X)
        assert isinstance(caught[0].message, vpem.NotConvergedWarning)


def test_what_scikit_learn_refuses_of_arrays_is_refused_in_its_words(X):
    """A matrix with gaps may have those alone."""
    endless = X.copy()
    endless[3, 1] = np.inf
    for asked in (vpem.FedMissEM(rank=1).fit, vpem.FedMissEM(rank=1).fit(X).transform):
        with pytest.raises(ValueError, match="Input X contains infinity"):
            asked(endless)


def looked_at(X, before):
    """What `validated` makes of rows, in a fit or after one, and of the estimator."""
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings(record=True) as said:
        model = VPEM()
        warnings.simplefilter("always")
        try:
            if before is not None:
                patched.setattr(base, "_numbers_in", lambda X: None)
                base.validated(model, before, reset=True)
                patched.undo()
            rows = base.validated(model, X, reset=before is None)
            found = type(rows), rows.dtype, rows.shape, rows.tobytes()
        except (ValueError, TypeError) as error:
            found = type(error), str(error)
    names = getattr(model, "feature_names_in_", np.empty(0)).tolist()
    return found, names, model.n_features_in_, [str(one.message) for one in said]


def test_rows_of_numbers_are_read_as_scikit_learn_reads_them(monkeypatch):
    numbers = np.arange(1.0, 13).reshape(4, 3)
    table = pd.DataFrame(numbers, columns=[*"abc"])
    given = [numbers.astype(kind) for kind in ("f8", "f4", "f2", "g", "i8", "u1", "?")]
    given += [one.tolist() for one in given] + [
        [*numbers.astype("f4")],
        [[True, 2.5]],
        [["1", 2.0]],
        [[None, 1]],
    ]
    given += [table.astype({"b": kind}) for kind in ("f8", "f4", "i2", "u8", "Int64", "object")]
    given += [table.astype("f4"), table[::2], table.where(table > 3), table[["b", "a", "c"]]]
    given += [table.set_axis(names, axis=1) for names in ([1, 2, 3], [1, 2.5, ()], ["a", "b", "d"])]
    if find_spec("polars"):
        import polars as pl

        given += [
            pl.DataFrame(table),
            pl.DataFrame(table).cast({"b": pl.Int8}),
            pl.DataFrame(table).cast(pl.Float32),
        ]
    fast = [looked_at(X, before) for X in given for before in (None, numbers, table)]
    monkeypatch.setattr(base, "_numbers_in", lambda X: None)
    slow = [looked_at(X, before) for X in given for before in (None, numbers, table)]
    assert fast == slow
