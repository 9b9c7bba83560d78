"""The estimators: scikit-learn's contract, its names, what they pass on, and what a file keeps."""

import pickle
from dataclasses import asdict, replace
from unittest.mock import patch

import networkx as nx
import numpy as np
import pyarrow
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vpem import (
    VPEM,
    DistributedGaussianMixture,
    DistributedKMeans,
    FedEM,
    FedMissEM,
    NotConvergedWarning,
    NumericalError,
    VpemWarning,
    connect,
    fit_vpem,
    kmeans_rows,
    make_graph,
)
from vpem.errors import FileError, InputError
from vpem.files.hdf5 import open_read
from vpem.files.models import read_model, write_model
from vpem.files.results import read_clustering, write_clustering
from vpem.fits.mixture_imputation import write_imputation
from vpem.network.partition import contiguous, evenly
from vpem.pictures.page import draw, kinds_of
from vpem.pictures.saved import saved_of
from vpem.settings import COVARIANCE_TYPES

from .cli_support import overlapping as overlapping_rows
from .estimator_support import EXCUSED, check_as_scikit_learn_does
from .kmeans_support import HOLES, START
from .tables import each, each_once, over

ESTIMATORS = [VPEM, DistributedGaussianMixture, FedEM, DistributedKMeans, FedMissEM]


@pytest.fixture
def X(overlapping):
    return overlapping(0, 250, 6)


def model(**options):
    return VPEM(**{"n_components": 3, "graph": "cycle", "hops": 1, "tol": 1e-4, **options})


# ---- scikit-learn's contract ---------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # the checks fit tiny, constant and unnamed data on purpose
@pytest.mark.parametrize(
    "estimator",
    [
        VPEM(),
        VPEM(1, graph="path", hops=1, covariance_type="tied", scale="standard", init="random"),
        VPEM(1, agents=1, covariance_type="spherical"),
        DistributedGaussianMixture(1, covariance_type="diag", init="random", graph="complete"),
        DistributedKMeans(n_clusters=3, graph="cycle", init="random"),
        DistributedKMeans(n_clusters=2, split="features", graph="path", agents=1),
    ],
    ids=str,
)
def test_scikit_learns_own_checks(estimator):
    alone = getattr(estimator, "n_components", 2) == 1
    check_as_scikit_learn_does(estimator, None if alone else EXCUSED)


@each("kind", ESTIMATORS)
def test_clone_and_parameters(kind):
    ours = kind(graph="path", n_rounds=7, weights="laplacian", random_state=4)
    copy = clone(ours)
    assert copy.get_params() == ours.get_params() == asdict(ours)  # no field without a value
    assert copy.set_params(n_rounds=2).n_rounds == 2
    assert ours.n_rounds == 7
    for name, why in kind._without.items():
        with pytest.raises(TypeError, match=f"has no parameter {name!r}: {why}"):
            kind(**{name: 1})


def test_only_those_that_take_weights_can_request_them():
    with config_context(enable_metadata_routing=True):
        for kind in (VPEM, DistributedKMeans):
            kind().set_fit_request(sample_weight=True)
        assert not hasattr(FedMissEM(), "set_fit_request")
        assert not clone(FedMissEM()).get_metadata_routing().fit.requests


def test_in_a_pipeline(X):
    pipeline = make_pipeline(StandardScaler(), model())
    labels = pipeline.fit_predict(X)
    np.testing.assert_array_equal(labels, pipeline.predict(X))


@each("use", ["predict", "predict_proba", "score", "score_samples", "bic", "aic", "sample"])
def test_use_before_fit_is_refused(use, X):
    with pytest.raises(NotFittedError):
        getattr(VPEM(), use)(*([] if use == "sample" else [X]))
    assert not hasattr(VPEM(), "covariances_")


# ---- features ------------------------------------------------------------------------------------

SHAPES = {
    "full": (3, 6, 6), "tied": (6, 6), "diag": (3, 6), "tied-diag": (6,), "spherical": (3, 6),
    "tied-spherical": (6,),
}  # fmt: skip


@each("kind", COVARIANCE_TYPES)
def test_shapes_of_attributes(kind, X):
    ours = model(covariance_type=kind, hops=0).fit(X)
    assert ours.covariances_.shape == ours.precisions_.shape == SHAPES[kind]
    inverse = np.linalg.inv if kind in ("full", "tied") else np.reciprocal
    np.testing.assert_allclose(ours.precisions_, inverse(ours.covariances_), rtol=1e-6, atol=1e-9)
    assert (ours.weights_.shape, ours.means_.shape) == ((3,), (3, 6))
    assert ours.history_.shape == (ours.n_iter_, 6)
    assert (len(ours.hubs_), ours.converged_, ours.n_features_in_) == (6, True, 6)
    assert ours.lower_bound_ == pytest.approx(ours.history_[-1].mean() / 250)


def test_covariances_are_block_diagonal_over_hubs(X):
    ours = model(graph="path").fit(X)
    hub_of = np.empty(6, dtype=int)
    for number, hub in enumerate(ours.hubs_):
        hub_of[list(hub.agents)] = number
    same = hub_of[:, None] == hub_of
    assert not same.all()
    assert (ours.covariances_[:, ~same] == 0).all()
    assert (ours.covariances_[:, same] != 0).all()


def test_it_is_the_fit_of_the_recipe(X):
    ours = model(graph="tree", agents=6, n_rounds=200, random_state=3).fit(X)
    network = connect(make_graph("tree", 6, seed=3), contiguous(6, 6), hops=1, n_rounds=200, seed=3)
    fit = fit_vpem(X, network, n_components=3, seed=3, tol=1e-4)
    np.testing.assert_array_equal(ours.history_, fit.history)
    np.testing.assert_array_equal(ours.means_, fit.mixture.assembled_means)
    np.testing.assert_array_equal(ours.predict(X), fit.mixture.predict(X))
    assert ours.mixing_rate_ == network.mixing_rate
    assert ours.consensus_error_ == network.consensus_error


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
def test_pooled_data_have_the_mixture_of_scikit_learn(X):
    rows, short = [10, 90, 200], {"tol": 0.0, "max_iter": 30, "reg_covar": 1e-6}
    start = np.linalg.inv(np.cov(X.T, bias=True) + 1e-6 * np.eye(6))
    theirs = GaussianMixture(
        3, weights_init=np.full(3, 1 / 3), means_init=X[rows], precisions_init=[start] * 3, **short
    )
    with pytest.warns(ConvergenceWarning):
        theirs.fit(X)
    named = {"south": range(100, 250), "north": range(100)}
    workers = (4, np.int64(3), [0, 1] * 125, ["x", "y"] * 125, evenly(250, 6), named)
    for ours in (VPEM(3, 1), *(DistributedGaussianMixture(3, one) for one in workers)):
        ours.set_params(init=rows, **short).fit(X)
        for name in ("bic", "aic", "score"):
            assert getattr(ours, name)(X) == pytest.approx(getattr(theirs, name)(X), rel=1e-7)
        assert ours.lower_bound_ == pytest.approx(theirs.lower_bound_, rel=1e-7)
        for name in ("means_", "covariances_"):
            np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), 1e-6, 1e-8)
        np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
        np.testing.assert_allclose(ours.score_samples(X), theirs.score_samples(X), rtol=1e-5)
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    assert ours.workers_.names == ("south", "north")
    assert [len(rows) for rows in ours.workers_.rows] == [150, 100]


def test_samples_are_drawn_by_the_random_state(X):
    ours = model().fit(X)
    drawn, labels = ours.sample(40)
    assert (drawn.shape, labels.shape) == ((40, 6), (40,))
    np.testing.assert_array_equal(ours.sample(40)[0], drawn)
    assert ours.sample()[0].shape == (1, 6)
    with pytest.raises(InputError, match="n_samples"):
        ours.sample(0)


def test_data_of_other_types(X):
    whole = np.round(10 * X).astype(int)
    listed = model().fit(whole.astype(float).tolist(), np.arange(250))  # labels are ignored
    np.testing.assert_array_equal(model().fit(whole).means_, listed.means_)
    single, double = model().fit(X.astype(np.float32)), model().fit(X)
    assert single.fit_.mixture.means.dtype == np.float64
    assert not np.array_equal(single.history_[0], double.history_[0])
    np.testing.assert_allclose(single.history_[0], double.history_[0], rtol=1e-5)
    X[17, 3] = np.nan
    for call in (model().fit, double.predict):
        with pytest.raises(InputError, match=r"row 17, feature 3 is NaN.*missing='marginalize'"):
            call(X)


def test_sample_weight_reaches_the_fit(X):
    weights = np.ones(250)
    weights[100:] = 0
    ours = model(init=[1, 2, 3]).fit(X, sample_weight=weights)
    kept = model(init=[1, 2, 3]).fit(X[:100])
    np.testing.assert_allclose(ours.means_, kept.means_, rtol=1e-9)
    assert ours.lower_bound_ == pytest.approx(kept.lower_bound_, rel=1e-10)
    twice = model(init=[1, 2, 3]).fit(X[:100], sample_weight=[2] * 100)
    np.testing.assert_allclose(twice.means_, kept.means_, rtol=1e-9)


@each("kind", [VPEM, DistributedGaussianMixture, FedEM, DistributedKMeans])
def test_fit_predict_takes_weights_as_fit_does(kind, X):
    weights = np.arange(250) % 3.0
    labels = kind(3, random_state=1).fit_predict(X, sample_weight=weights)
    one = kind(3, random_state=1).fit(X, sample_weight=weights)
    np.testing.assert_array_equal(labels, one.predict(X))


LISTS = [[5, 0], [1, 2, 3], [4]]


@each(
    ("agents", "parts"),
    [
        (None, [[0], [1], [2], [3], [4], [5]]),
        (4, [[0, 1], [2, 3], [4], [5]]),
        (1, [[0, 1, 2, 3, 4, 5]]),
        *(
            (given, [[0, 5], [1, 2, 3], [4]])
            for given in (LISTS, tuple(map(tuple, LISTS)), [np.array(part) for part in LISTS])
        ),
    ],
)
def test_agents(agents, parts, X):
    ours = model(agents=agents, hops=0, n_rounds=150).fit(X)
    assert [columns.tolist() for columns in ours.mixture_.blocks.features] == parts


def test_graphs(X):
    by_name = model(graph="path", hops=0, n_rounds=150).fit(X)
    for graph in (nx.path_graph(6), make_graph("path", 6)):
        ours = model(graph=graph, hops=0, n_rounds=150).fit(X)
        np.testing.assert_array_equal(ours.graph_.edges, by_name.graph_.edges)
        np.testing.assert_array_equal(ours.means_, by_name.means_)


REFUSED = {
    model: [
        ({"agents": 0}, "agents must be an integer of at least 1"),
        ({"agents": 7}, "7 agents cannot share 6 features"),
        ({"agents": True}, "agents"),
        ({"agents": "two"}, "agents must be None"),
        ({"agents": 2.5}, "agents must be None"),
        ({"agents": [[0, 1], [2, 3]]}, "misses feature 4, 5"),
        ({"agents": [[0, 1, 2, 3, 4, 5], [0]]}, "repeats feature 0"),
        ({"graph": "ring"}, "topology must be one of"),
        ({"graph": 3}, "graph must be"),
        ({"graph": nx.path_graph(5)}, "5 nodes"),
        ({"graph": make_graph("cycle", 5)}, "5 agents but the features are held by 6"),
        ({"graph": nx.empty_graph(6)}, "not connected"),
        ({"n_components": 0}, "n_components"),
        ({"n_components": 251}, "251 components need at least as many rows"),
        ({"covariance_type": "ful"}, "did you mean 'full'"),
        ({"init": "k-mean"}, "did you mean"),
        ({"tol": -1}, "tol"),
        ({"max_iter": -1}, "max_iter"),
        ({"reg_covar": -1e-9}, "reg_covar"),
        ({"n_init": 0}, "n_init"),
        ({"scale": "robust"}, "scale must be one of"),
        ({"consensus": "exact"}, "consensus must be one of auto"),
        ({"hops": -1}, "hops"),
        ({"n_rounds": 0}, "rounds"),
        ({"weights": "equal"}, "weights must be one of"),
        ({"random_state": -1}, "random_state"),
        ({"n_threads": 0}, "threads"),
    ],
    DistributedGaussianMixture: [
        ({"workers": "three"}, "workers must be a number of workers"),
        ({"workers": 2.5}, "workers must be a number of workers"),
        ({"workers": None}, "workers must be a number of workers"),
        ({"workers": 300}, "300 workers cannot share 250 rows"),
    ],
    DistributedKMeans: [
        ({"split": "columns"}, "split must be one of features, rows"),
        ({"method": "grid"}, "needs split='features'"),
        ({"agents": 3}, "with 'rows' give workers"),
        ({"hops": 1}, "with 'rows' give workers"),
        ({"split": "features", "workers": 3}, "with 'features' give agents"),
        ({"workers": 1000}, "1000 workers cannot share 250 rows"),
        ({"workers": "all"}, "workers must be a number"),
        ({"split": "features", "agents": 2.5}, "agents must be None"),
        ({"graph": 3}, "graph must be a topology"),
    ],
}


@each(
    ("make", "options", "match"),
    [(make, *case) for make, cases in REFUSED.items() for case in cases],
)
def test_parameters_out_of_range_are_refused(make, options, match, X):
    with pytest.raises(InputError, match=match):
        make(**options).fit(X)


def test_warm_start_goes_on_where_the_last_fit_ended(X):
    ours = model(warm_start=True, max_iter=4, tol=0.0)
    with pytest.warns(NotConvergedWarning, match="after 4 iterations"):
        ours.fit(X)
    first = ours.history_
    assert (ours.converged_, ours.n_iter_) == (False, 4)
    with pytest.warns(NotConvergedWarning):
        ours.fit(X)
    with pytest.warns(NotConvergedWarning):
        whole = model(max_iter=8, tol=0.0).fit(X)
    # Roots that share one estimate lose nothing when their weights are averaged.
    np.testing.assert_allclose(np.concatenate([first, ours.history_]), whole.history_, rtol=1e-6)
    with pytest.warns(NotConvergedWarning):
        cold = model(max_iter=4, tol=0.0).fit(X)
    np.testing.assert_array_equal(cold.history_, first)


def test_the_same_state_gives_the_same_model(X):
    options = {"graph": "geometric", "hops": 0, "n_rounds": 300, "init": "random"}
    one, two = (model(random_state=7, **options).fit(X) for _ in range(2))
    np.testing.assert_array_equal(one.means_, two.means_)
    np.testing.assert_array_equal(one.graph_.edges, two.graph_.edges)
    a, b = (model(random_state=np.random.RandomState(5), init="random").fit(X) for _ in range(2))
    np.testing.assert_array_equal(a.means_, b.means_)
    starts = {model(random_state=s, init="random").fit(X).fit_.init_rows for s in range(4)}
    assert len(starts) > 1


# ---- batches -------------------------------------------------------------------------------------


def batches(X, size):
    return [X[start : start + size] for start in range(0, len(X), size)]


def streamed(X, size, **options):
    ours = model(**options)
    for part in batches(X, size):
        ours.partial_fit(part)
    return ours


@over(kind=COVARIANCE_TYPES, graph=["star", "cycle"], weighted=[False, True])
def test_a_stream_of_one_component_is_a_weighted_mean(kind, graph, weighted, overlapping):
    X = overlapping(0, 400, 4)
    weights = np.random.default_rng(0).uniform(0.5, 2, 400) if weighted else np.ones(400)
    ours = VPEM(1, agents=2, graph=graph, hops=0, covariance_type=kind, step_size=0.75)
    mean, second = np.zeros(4), np.zeros((4, 4))
    for t, (part, own) in enumerate(zip(batches(X, 100), batches(weights, 100), strict=True)):
        assert ours.partial_fit(part, sample_weight=own if weighted else None) is ours
        rho = (t + 1) ** -0.75
        here = own @ part / own.sum()
        here_second = (part * own[:, None]).T @ part / own.sum()
        mean = mean + rho * (here - mean)
        second = second + rho * (here_second - second)
        assert ours.n_batches_seen_ == ours.n_iter_ == t + 1
    np.testing.assert_allclose(ours.means_[0], mean, rtol=1e-6, atol=1e-9)
    if kind == "full":
        whole = second - np.outer(mean, mean) + 1e-6 * np.eye(4)
        whole[:2, 2:] = whole[2:, :2] = 0
        np.testing.assert_allclose(ours.covariances_[0], whole, rtol=1e-5, atol=1e-8)
    assert np.isfinite(ours.score_samples(X)).all()


def test_a_stream_comes_close_to_the_fit(overlapping):
    X = overlapping(1, 4000, 4)
    whole = VPEM(2, random_state=0, init="k-means++", graph="star").fit(X)
    stream = VPEM(2, random_state=1, graph="star")
    for part in batches(np.random.default_rng(1).permutation(np.tile(X, (4, 1))), 400):
        stream.partial_fit(part)
    assert stream.n_batches_seen_ == 40
    assert stream.score(X) > whole.score(X) - 0.05


@each("kind", ["full", "diag", "tied"])
def test_units_of_a_stream_change_nothing(kind, X):
    options = {"init": [0, 20, 40], "reg_covar": 0.0, "covariance_type": kind, "graph": "star"}
    one, two = (streamed(X, 50, scale=scale, hops=0, **options) for scale in ("none", "standard"))
    np.testing.assert_allclose(one.means_, two.means_, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(one.covariances_, two.covariances_, rtol=1e-7, atol=1e-8)


def test_a_stream_is_the_same_again_and_survives_pickling(X):
    one, two = streamed(X, 50), model()
    for part in batches(X, 50):
        two = pickle.loads(pickle.dumps(two)).partial_fit(part)
    np.testing.assert_array_equal(one.means_, two.means_)
    np.testing.assert_array_equal(one.covariances_, two.covariances_)


def test_a_stream_goes_on_from_a_fit_and_a_fit_forgets_it(X):
    fitted = model().fit(X)
    before = fitted.means_
    fitted.partial_fit(X[:50])
    assert fitted.n_batches_seen_ == 2
    assert not np.array_equal(fitted.means_, before)
    np.testing.assert_array_equal(fitted.fit(X).means_, before)
    assert fitted.n_batches_seen_ == 1


def test_messages_of_a_batch_are_those_of_its_rows(X):
    sent = []
    ours = model(agents=3, hops=0).partial_fit(X)
    for size in (40, 80, 120):
        told = ours.partial_fit(X[:size]).fit_.communication
        sent.append(told["by_kind"]["estep"]["bytes"])
        assert told["by_kind"]["setup"]["bytes"] == 0
    # And a number a message.
    assert sent[2] - sent[1] == sent[1] - sent[0] > 0.9 * sent[0]


def test_a_batch_that_cannot_be_used_changes_nothing(X):
    ours = model().partial_fit(X)
    before, seen = ours.means_, ours._weight_seen
    bad = X.copy()
    bad[3, 1] = np.nan
    with pytest.raises(InputError, match="row 3, feature 1"):
        ours.partial_fit(bad)
    with pytest.raises(ValueError, match="5 features"):
        ours.partial_fit(X[:, :5])
    with pytest.raises(InputError, match="250 numbers"):
        ours.partial_fit(X, sample_weight=[1, 2])
    with pytest.raises(NumericalError, match="log-likelihood of root 0"):
        ours.partial_fit(1e200 * X)
    assert (ours.n_batches_seen_, ours._weight_seen) == (1, seen)
    np.testing.assert_array_equal(ours.means_, before)
    with pytest.raises(InputError, match="step_size must be a number above"):
        ours.set_params(step_size=0.5).partial_fit(X)


def test_a_component_that_the_stream_left_is_placed_anew(overlapping):
    X = overlapping(0, 300, 3, 1)
    ours = VPEM(2, agents=1, graph="star", hops=0, init=[0, 1], random_state=0)
    ours.partial_fit(np.concatenate([X, X[:3] + 1e3]))
    ours.mixture_ = replace(ours.mixture_, means=ours.mixture_.means + np.array([[0.0], [1e4]]))

    def go_on():
        for _ in range(100):
            ours.partial_fit(X)
            if ours.fit_.recoveries:
                break

    with pytest.warns(VpemWarning, match="reinitialised .* at batch"):
        go_on()
    assert ours.fit_.recoveries[0].iteration == ours.n_batches_seen_
    assert np.abs(ours.means_).max() < 10


@each("how", [{"graph": "star"}, {"graph": "cycle"}, {"graph": "complete", "agent_dropout": 0.2}])
def test_streams_are_compressed_and_agents_absent(how, overlapping):
    """Every batch has rows of its own, of which nobody knows anything yet."""
    rows = overlapping(0, 1200, 6, 2)

    def sending(**more):
        # On a cycle of three a single round without a codec is exact.
        agents = 6 if how["graph"] == "cycle" else 3
        ours = VPEM(2, agents=agents, hops=0, random_state=0, **how, **more)
        return ours, [ours.partial_fit(part).fit_.communication["bytes"]
                      for part in batches(rows, 200)]  # fmt: skip

    packed, few = sending(compress="natural:12bits")
    plain, many = sending()
    assert abs(packed.score(rows) - plain.score(rows)) < 0.01
    if "agent_dropout" in how:
        # Others are absent from other batches.
        assert len(set(many[1:])) > 1
    else:
        assert max(few[1:]) < 0.8 * min(many[1:])


# ---- rows, and clusters --------------------------------------------------------------------------


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
    digits = load_digits().data[:600]
    ours = DistributedKMeans(6, workers=4, random_state=0)
    labels = ours.fit_predict(digits)
    np.testing.assert_array_equal(labels, ours.predict(digits))
    far = ours.transform(digits)
    np.testing.assert_array_equal(far.argmin(axis=1), labels)
    squares, weights = far.min(axis=1) ** 2, np.arange(600.0)
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


# ---- files ---------------------------------------------------------------------------------------

short_fits = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
ROWS, _ = overlapping_rows(n_samples=80, n_features=4)
NAMES = ("height", "weight", "pulse", "age")
FRAME = pyarrow.table({name: ROWS[:, j] for j, name in enumerate(NAMES)})

MIXTURES = {
    "features": VPEM(2, agents=2, graph="star", max_iter=5, tol=0, random_state=3),
    "own graph": VPEM(
        2, agents=[[0, 3], [1], [2]], graph=nx.path_graph(3), n_rounds=4, max_iter=3, tol=0,
        covariance_type="diag", scale="standard", init=[3, 40],
        random_state=np.random.default_rng(1),
    ),
    "rows": DistributedGaussianMixture(2, workers=3, max_iter=4, tol=0, random_state=0),
    "peers": DistributedGaussianMixture(
        2, workers=[0, 1] * 40, graph="path", n_rounds=2, max_iter=3, tol=0, random_state=0
    ),
    "fedem": FedEM(2, workers=4, step_size=lambda k: 0.5, max_iter=4, random_state=0),
}  # fmt: skip
WRITERS = {
    write_model: [*MIXTURES.values()],
    write_clustering: [DistributedKMeans(3, workers=2)],
    write_imputation: [FedMissEM()],
}


@short_fits
@each_once(name=MIXTURES, data=[ROWS, FRAME])
def test_a_mixture_that_is_read_back_is_that_of_the_estimator(tmp_path, name, data):
    ours = MIXTURES[name].fit(data)
    path = tmp_path / "m.h5"
    write_model(path, ours)
    found = read_model(path)
    np.testing.assert_array_equal(found.mixture.predict_proba(ROWS), ours.predict_proba(data))
    names = NAMES if data is FRAME else tuple(f"feature {j}" for j in range(4))
    assert found.feature_names == names
    history = found.history if found.root_history is None else found.root_history
    np.testing.assert_array_equal(history, ours.fit_.history)
    assert (found.report["converged"], found.report["n_iter"]) == (ours.converged_, ours.n_iter_)
    assert "history" not in found.report
    assert set(found.options) == set(ours.get_params())
    assert set(found.versions) >= {"vpem", "numpy"}
    # The file has what pictures are drawn of.
    saved = saved_of(str(path), found)
    for kind, about in kinds_of(saved).items():
        if about.data != "needed":
            draw(kind, saved)


@short_fits
@each("split", ["rows", "features"])
def test_a_clustering_that_is_read_back_is_that_of_the_estimator(tmp_path, split):
    ours = DistributedKMeans(3, split=split, scale="standard", random_state=2).fit(FRAME)
    write_clustering(tmp_path / f"{split}.h5", ours)
    found = read_clustering(tmp_path / f"{split}.h5")
    np.testing.assert_array_equal(found.labels, ours.labels_)
    np.testing.assert_array_equal(found.assign(ROWS)[0], ours.predict(FRAME))
    assert found.feature_names == NAMES
    assert found.report["inertia"] == ours.inertia_
    assert found.report["seed"] == found.options["random_state"] == 2


@short_fits
def test_an_imputation_is_written_of_the_estimator(tmp_path):
    holes = ROWS.copy()
    holes[::7, 1] = np.nan
    ours = FedMissEM(rank=9, ridge=1.0, max_iter=5, tol=0, random_state=0).fit(holes)
    assert ours.factors_[0].shape == (80, 4)  # of rank four at most
    write_imputation(tmp_path / "i.h5", ours)
    with open_read(tmp_path / "i.h5") as file:
        np.testing.assert_array_equal(file["imputed"][()], ours.impute())


@short_fits
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_what_is_no_fit_of_that_kind_is_refused_and_nothing_written(tmp_path, write):
    own = WRITERS[write]
    others = [one for kind, models in WRITERS.items() if kind is not write for one in models]
    for value, said in [
        *((type(one)(), f"this {type(one).__name__} is not fitted: call fit") for one in own),
        (type(own[0]), f"got the class {type(own[0]).__name__}"),
        (clone(others[0]).fit(ROWS), f"got {type(others[0]).__name__}"),
        (ROWS, "got ndarray"),
        (None, "got NoneType"),
    ]:
        with pytest.raises(InputError, match=said):
            write(tmp_path / "m.h5", value)
    assert not list(tmp_path.iterdir())


@short_fits
def test_a_written_estimator_replaces_a_file_only_if_forced(tmp_path):
    ours = MIXTURES["features"].fit(ROWS)
    write_model(tmp_path / "m.h5", ours)
    with pytest.raises(FileError, match="exists"):
        write_model(tmp_path / "m.h5", ours)
    write_model(tmp_path / "m.h5", ours, force=True)
