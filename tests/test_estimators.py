"""The estimator: scikit-learn's contract, its names, and what it passes on to the fit."""

import pickle
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vpem import (
    VPEM,
    DistributedKMeans,
    FedMissEM,
    InputError,
    NotConvergedWarning,
    NumericalError,
    VpemWarning,
    connect,
    fit_vpem,
    make_graph,
)
from vpem.network.partition import contiguous
from vpem.settings import COVARIANCE_TYPES

from .estimator_support import EXCUSED, check_as_scikit_learn_does
from .tables import each, over


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
        VPEM(1, graph="cycle", hops=1),
        VPEM(1, covariance_type="diag"),
        VPEM(1, graph="path", covariance_type="tied", scale="standard", init="random"),
        VPEM(1, agents=1, covariance_type="spherical"),
    ],
    ids=str,
)
def test_scikit_learns_own_checks(estimator):
    check_as_scikit_learn_does(estimator, EXCUSED if estimator.n_components > 1 else None)


def test_clone_and_parameters():
    ours = VPEM(4, agents=[[0, 1], [2]], graph="path", hops=0, n_rounds=7, weights="laplacian")
    copy = clone(ours)
    assert copy.get_params() == ours.get_params()
    assert copy.set_params(n_components=2).n_components == 2
    assert ours.n_components == 4


def test_a_fitted_model_survives_pickling(X):
    ours = model().fit(X)
    again = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(again.predict_proba(X), ours.predict_proba(X))
    np.testing.assert_array_equal(again.covariances_, ours.covariances_)


def test_in_a_pipeline(X):
    pipeline = make_pipeline(StandardScaler(), model())
    labels = pipeline.fit_predict(X)
    np.testing.assert_array_equal(labels, pipeline.predict(X))


@each("use", ["predict", "predict_proba", "score", "score_samples", "bic", "sample"])
def test_use_before_fit_is_refused(use, X):
    with pytest.raises(NotFittedError):
        getattr(VPEM(), use)(*([] if use == "sample" else [X]))
    assert not hasattr(VPEM(), "covariances_")


def test_another_number_of_features_is_refused(X):
    ours = model().fit(X)
    with pytest.raises(ValueError, match="5 features"):
        ours.predict(X[:, :5])


# ---- results -------------------------------------------------------------------------------------


@each("kind", COVARIANCE_TYPES)
def test_shapes_of_attributes(kind, X):
    ours = model(covariance_type=kind, hops=0).fit(X)
    shape = {
        "full": (3, 6, 6),
        "tied": (6, 6),
        "diag": (3, 6),
        "tied-diag": (6,),
        "spherical": (3, 6),
        "tied-spherical": (6,),
    }[kind]
    assert ours.covariances_.shape == shape
    assert ours.weights_.shape == (3,)
    assert ours.means_.shape == (3, 6)
    assert ours.history_.shape == (ours.n_iter_, 6)
    assert len(ours.hubs_) == 6
    assert ours.converged_
    assert ours.n_features_in_ == 6
    assert ours.lower_bound_ == pytest.approx(ours.history_[-1].mean() / 250)
    assert ours.weights_.sum() == pytest.approx(1)


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


def test_one_agent_scores_like_scikit_learn(X):
    rows = [10, 90, 200]
    ours = VPEM(3, agents=1, graph="star", hops=0, init=rows, tol=1e-10, max_iter=5000).fit(X)
    start = np.linalg.inv(np.cov(X.T, bias=True) + 1e-6 * np.eye(6))
    theirs = GaussianMixture(
        3,
        weights_init=np.full(3, 1 / 3),
        means_init=X[rows],
        precisions_init=np.stack([start] * 3),
        tol=1e-10,
        max_iter=5000,
    ).fit(X)
    assert ours.bic(X) == pytest.approx(theirs.bic(X), rel=1e-7)
    assert ours.aic(X) == pytest.approx(theirs.aic(X), rel=1e-7)
    assert ours.score(X) == pytest.approx(theirs.score(X), rel=1e-7)
    assert ours.lower_bound_ == pytest.approx(theirs.lower_bound_, rel=1e-7)
    np.testing.assert_allclose(ours.score_samples(X), theirs.score_samples(X), rtol=1e-4)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-3)


@pytest.mark.parametrize("graph", ["cycle", "star"])
def test_fit_predict_is_fit_and_predict(graph, X):
    options = {"graph": graph, "hops": 0}
    np.testing.assert_array_equal(
        model(**options).fit_predict(X), model(**options).fit(X).predict(X)
    )


def test_sample(X):
    ours = model().fit(X)
    drawn, labels = ours.sample(40)
    assert drawn.shape == (40, 6)
    assert labels.shape == (40,)
    np.testing.assert_array_equal(ours.sample(40)[0], drawn)
    assert ours.sample()[0].shape == (1, 6)
    with pytest.raises(InputError, match="n_samples"):
        ours.sample(0)


def test_single_precision_data_are_fitted_in_single_precision(X):
    single = model().fit(X.astype(np.float32))
    double = model().fit(X)
    assert single.fit_.mixture.means.dtype == np.float64
    assert not np.array_equal(single.history_[0], double.history_[0])
    np.testing.assert_allclose(single.history_[0], double.history_[0], rtol=1e-5)


def test_integer_and_list_data(X):
    whole = np.round(10 * X).astype(int)
    one = model().fit(whole)
    two = model().fit(whole.astype(float).tolist())
    np.testing.assert_array_equal(one.means_, two.means_)


def test_labels_are_ignored(X):
    y = np.arange(250)
    np.testing.assert_array_equal(model().fit(X, y).means_, model().fit(X).means_)


def test_sample_weight_reaches_the_fit(X):
    weights = np.ones(250)
    weights[100:] = 0
    ours = model(init=[1, 2, 3]).fit(X, sample_weight=weights)
    kept = model(init=[1, 2, 3]).fit(X[:100])
    np.testing.assert_allclose(ours.means_, kept.means_, rtol=1e-9)
    assert ours.lower_bound_ == pytest.approx(kept.lower_bound_, rel=1e-10)
    twice = model(init=[1, 2, 3]).fit(X[:100], sample_weight=[2] * 100)
    np.testing.assert_allclose(twice.means_, kept.means_, rtol=1e-9)


# ---- agents and graphs ---------------------------------------------------------------------------


def test_only_those_that_take_weights_can_request_them():
    with config_context(enable_metadata_routing=True):
        for kind in (VPEM, DistributedKMeans):
            kind().set_fit_request(sample_weight=True)
        assert not hasattr(FedMissEM(), "set_fit_request")
        assert not clone(FedMissEM()).get_metadata_routing().fit.requests


def test_agents(X):
    holdings = {
        None: [[0], [1], [2], [3], [4], [5]],
        4: [[0, 1], [2, 3], [4], [5]],
        1: [[0, 1, 2, 3, 4, 5]],
    }
    for agents, parts in holdings.items():
        ours = model(agents=agents, hops=0, n_rounds=150).fit(X)
        found = [columns.tolist() for columns in ours.mixture_.blocks.features]
        assert found == parts
    lists = [[5, 0], [1, 2, 3], [4]]
    for given in (lists, tuple(map(tuple, lists)), [np.array(part) for part in lists]):
        ours = model(agents=given, hops=0).fit(X)
        found = [columns.tolist() for columns in ours.mixture_.blocks.features]
        assert found == [[0, 5], [1, 2, 3], [4]]


def test_graphs(X):
    by_name = model(graph="path", hops=0, n_rounds=150).fit(X)
    for graph in (nx.path_graph(6), make_graph("path", 6)):
        ours = model(graph=graph, hops=0, n_rounds=150).fit(X)
        np.testing.assert_array_equal(ours.graph_.edges, by_name.graph_.edges)
        np.testing.assert_array_equal(ours.means_, by_name.means_)


@each(
    ("options", "match"),
    [
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
)
def test_parameters_out_of_range_are_refused(options, match, X):
    with pytest.raises(InputError, match=match):
        model(**options).fit(X)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(bad, X):
    X[17, 3] = bad
    with pytest.raises(InputError, match="row 17, feature 3") as told:
        model().fit(X)
    assert ("missing='marginalize'" in str(told.value)) == np.isnan(bad)
    fitted = model().fit(np.delete(X, 17, axis=0))
    with pytest.raises(InputError, match="row 17, feature 3"):
        fitted.predict(X)


def test_a_hub_of_everyone_is_warned_about(X):
    with pytest.warns(VpemWarning, match="centralizes"):
        model(graph="complete").fit(X)


# ---- again ---------------------------------------------------------------------------------------


def test_warm_start_goes_on_where_the_last_fit_ended(X):
    ours = model(warm_start=True, max_iter=4, tol=0.0)
    with pytest.warns(NotConvergedWarning):
        ours.fit(X)
    first = ours.history_
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
    for init in ("random", "k-means++", "kmeans"):
        options = {"graph": "geometric", "hops": 0, "n_rounds": 300, "init": init}
        one, two = (model(random_state=7, **options).fit(X) for _ in range(2))
        np.testing.assert_array_equal(one.means_, two.means_)
        np.testing.assert_array_equal(one.graph_.edges, two.graph_.edges)
    a, b = (model(random_state=np.random.RandomState(5), init="random").fit(X) for _ in range(2))
    np.testing.assert_array_equal(a.means_, b.means_)
    starts = {model(random_state=s, init="random").fit(X).fit_.init_rows for s in range(4)}
    assert len(starts) > 1


def test_not_converged_is_told_and_marked(X):
    with pytest.warns(NotConvergedWarning, match="after 2 iterations"):
        ours = model(max_iter=2).fit(X)
    assert not ours.converged_
    assert ours.n_iter_ == 2


# ---- batches -------------------------------------------------------------------------------------


def batches(X, size):
    return [X[start : start + size] for start in range(0, len(X), size)]


@pytest.mark.parametrize("options", [{}, {"batch_size": 50}, {"batch_size": 9, "step_size": 0.7}])
def test_batches_reach_the_fit(options, X, monkeypatch):
    given = {}

    def spy(data, network, how, **rest):
        given.update(batch_size=how.batch_size, step_size=how.step_size)
        return fit_vpem(data, network, how, **rest)

    monkeypatch.setattr("vpem.fits.estimators.mixtures.fit_vpem", spy)
    model(**options).fit(X)
    assert given == {"batch_size": None, "step_size": None, **options}


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
    scores = ours.score_samples(X)
    assert np.isfinite(scores).all()


@over(seed=[0, 1, 5], options=[{"graph": "star"}])
def test_a_stream_comes_close_to_the_fit(seed, options, overlapping):
    X = overlapping(seed, 4000, 4)
    whole = VPEM(2, random_state=0, init="k-means++", **options).fit(X)
    stream = VPEM(2, random_state=seed, **options)
    order = np.random.default_rng(seed)
    for _ in range(4):
        for part in batches(order.permutation(X), 400):
            stream.partial_fit(part)
    assert stream.n_batches_seen_ == 40
    assert stream.score(X) > whole.score(X) - 0.05


@pytest.mark.parametrize("kind", ["full", "diag", "tied"])
def test_units_of_a_stream_change_nothing(kind, X):
    options = {"init": [0, 20, 40], "reg_covar": 0.0, "covariance_type": kind, "graph": "star"}
    one, two = (model(scale=scale, hops=0, **options) for scale in ("none", "standard"))
    for part in batches(X, 50):
        one.partial_fit(part)
        two.partial_fit(part)
    np.testing.assert_allclose(one.means_, two.means_, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(one.covariances_, two.covariances_, rtol=1e-7, atol=1e-8)


def test_a_stream_is_the_same_again_and_survives_pickling(X):
    one, two = model(), model()
    for part in batches(X, 50):
        one.partial_fit(part)
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
    assert ours.n_batches_seen_ == 1
    assert ours._weight_seen == seen
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

    def streamed(**more):
        # On a cycle of three a single round without a codec is exact.
        agents = 6 if how["graph"] == "cycle" else 3
        ours = VPEM(2, agents=agents, hops=0, random_state=0, **how, **more)
        sent = []
        for begin in range(0, 1200, 200):
            ours.partial_fit(rows[begin : begin + 200])
            sent.append(ours.fit_.communication["bytes"])
        return ours, sent

    packed, few = streamed(compress="natural:12bits")
    plain, many = streamed()
    assert abs(packed.score(rows) - plain.score(rows)) < 0.01
    if "agent_dropout" in how:
        # Others are absent from other batches.
        assert len(set(many[1:])) > 1
    else:
        assert max(few[1:]) < 0.8 * min(many[1:])
