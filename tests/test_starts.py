"""Where EM starts: rows shared by all agents, rows far apart, k-means over split features."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.cluster import KMeans

from vpem import (
    VPEM,
    FedEM,
    InputError,
    VpemWarning,
    connect,
    fit_vpem,
    make_graph,
)
from vpem.fits.feature_kmeans import kmeans_features
from vpem.fits.fedem import fit_fedem
from vpem.fits.row_kmeans import kmeans_rows
from vpem.fits.rows import fit_em
from vpem.network.ledger import Ledger
from vpem.network.partition import contiguous, evenly, from_lists
from vpem.settings import INITS
from vpem.steps import starts
from vpem.steps.row_sampling import RowStream
from vpem.steps.starts import SMALL_RUN, SMALL_STARTS, SMALL_TOLERANCE, draw_start
from vpem.sums.connect import connect_workers
from vpem.sums.server import ServerSum
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling

from .resume_support import check_resumes
from .tables import each, each_once, over


def network_of(topology, d=6, n_rounds=60):
    how = {} if topology == "star" else {"hops": 1, "n_rounds": n_rounds}
    return connect(make_graph(topology, d), contiguous(d, d), **how)


def terms_of(X, network, kind="full", weights=None):
    none = Scaling.none(X.shape[1])
    return FeatureTerms(X, network.blocks, kind, scaling=none, row_weights=weights)


def stream_of(X, seed=0, weights=None):
    return RowStream(np.random.default_rng(seed), weights, len(X))


# ---- the shared stream ---------------------------------------------------------------------------


def test_rows_are_drawn_in_proportion_to_their_weights():
    weights = np.array([1.0, 0.0, 5.0, 2.0])
    stream = RowStream(np.random.default_rng(0), weights, 4)
    counts = np.bincount([stream.draw() for _ in range(8000)], minlength=4)
    np.testing.assert_allclose(counts / 8000, weights / 8, atol=0.02)
    potential = np.array([8.0, 1.0, 0.0, 4.0])
    counts = np.bincount([stream.draw(potential) for _ in range(8000)], minlength=4)
    np.testing.assert_allclose(counts / 8000, [0.5, 0, 0, 0.5], atol=0.02)
    # Without potential by weight; and distinct ones can be all.
    one = RowStream(np.random.default_rng(0), np.array([0.0, 3.0, 0.0]), 3)
    assert {one.draw(np.zeros(3)) for _ in range(20)} == {1}
    every = RowStream(np.random.default_rng(0), None, 40).draw_distinct(40)
    assert sorted(every) == list(range(40))


# ---- every start ---------------------------------------------------------------------------------


@over(init=INITS, topology=["star", "cycle"])
def test_rows_differ_and_depend_on_the_seed_only(init, topology, overlapping):
    X = overlapping(0, 250, 6)
    network = network_of(topology)
    chosen = []
    for seed in range(3):
        runs = [
            draw_start(init, terms_of(X, network), network.total, 4, stream_of(X, seed))
            for _ in range(2)
        ]
        (one, rows), (two, again) = runs
        assert len(set(rows.tolist())) == 4
        if init != "kmeans":
            np.testing.assert_allclose(one.assembled_means, X[rows], rtol=1e-15)
            np.testing.assert_allclose(one.weights, 0.25)
        np.testing.assert_array_equal(rows, again)
        np.testing.assert_array_equal(one.means, two.means)
        chosen.append(tuple(rows.tolist()))
    assert len(set(chosen)) > 1
    if init == "random":  # the same on every network
        network = network_of("path", n_rounds=200)
        again = draw_start(init, terms_of(X, network), network.total, 4, stream_of(X, 0))[1]
        assert tuple(again.tolist()) == chosen[0]


class OthersAreWrong(ServerSum):
    """A sum of which all roots but the first get nothing to do with the truth."""

    n_roots = 3

    def reduce(self, terms, rows=slice(None), scalars=None):
        exact = super().reduce(terms, rows)
        return np.concatenate([exact, 0 * exact, exact.max() - exact])


def test_the_first_root_draws_by_its_own_distances(overlapping):
    X = overlapping(15, 250, 6)
    network = network_of("star")
    for seed in range(5):
        pair = []
        for total in (network.total, OthersAreWrong(6)):
            terms = terms_of(X, network)
            pair.append(draw_start("k-means++", terms, total, 4, stream_of(X, seed))[1])
        np.testing.assert_array_equal(*pair)


class Listener:
    """A callback that keeps what it is told of a start."""

    def __init__(self):
        self.steps, self.n_iterations = [], 0

    def __call__(self, progress):
        self.n_iterations += 1

    def starting(self, step):
        assert self.n_iterations == 0
        self.steps.append(step)


@each("split", ["features", "rows", "fedem", "kmeans-rows", "kmeans-features"])
def test_a_callback_is_told_of_every_step_of_a_start(split, overlapping):
    X, workers = overlapping(16, 200, 6), evenly(200, 3)
    heard, among = Listener(), connect_workers(make_graph("star", 3))
    if split == "features":
        fit_vpem(X, network_of("star"), n_components=4, tol=1e-2, callback=heard)
    elif split == "kmeans-features":
        kmeans_features(X, network_of("star"), n_clusters=4, callback=heard)
    elif split == "kmeans-rows":
        kmeans_rows(X, workers, among, n_clusters=4, callback=heard)
    else:
        recipe = fit_em if split == "rows" else fit_fedem
        stop = {"tol": 1e-2} if split == "rows" else {"max_iter": 3, "init": "kmeans"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VpemWarning)
            recipe(X, workers, among, n_components=4, callback=heard, **stop)
    assert heard.steps[:3] == [f"k-means++, row {number} of 4" for number in (2, 3, 4)]
    wanted = [f"k-means, iteration {n} of at most 60" for n in range(1, len(heard.steps) - 2)]
    assert heard.steps[3:] == wanted
    assert bool(wanted) == ("kmeans" not in split)
    assert heard.n_iterations > 0


# ---- k-means -------------------------------------------------------------------------------------


def lloyd_by_hand(X, centres, weights, operator, columns_of):
    """Lloyd's iterations of roots, each with its own estimate, until all hubs propose to stop."""
    d = X.shape[1]
    variances = weights @ (X - weights @ X / weights.sum()) ** 2 / weights.sum()
    for _ in range(starts.MOST_LLOYD_OF_START):
        parts = [(X[:, None, own] - centres[:, own]) ** 2 for own in columns_of]
        squares = np.array([part.sum(axis=2) for part in parts])
        labels = np.tensordot(operator, squares, axes=1).argmin(axis=2)
        moved = centres.copy()
        for b, own in enumerate(columns_of):
            root = labels[b if len(labels) > 1 else 0]
            for k in range(len(centres)):
                moved[k, own] = np.average(X[root == k][:, own], axis=0, weights=weights[root == k])
        shifts = ((moved - centres) ** 2).sum(axis=0)
        centres = moved
        if all(shifts[own].sum() <= 1e-4 * variances[own].sum() / d for own in columns_of):
            break
    return centres, labels


@each_once(weighted=[False, True], seed=range(2))
def test_kmeans_start_is_one_m_step_from_the_last_of_lloyds_iterations(seed, weighted, overlapping):
    X = overlapping(seed, 300, 6)
    weights = np.random.default_rng(seed).uniform(0.2, 3, size=300) if weighted else None
    if weighted:  # about which variances are taken
        weights[0], X[0] = 0.0, 1e3
    parts = [[0, 1, 5], [2, 3, 4]]
    network = connect(make_graph("star", 2), from_lists(parts, 6), hops=0)
    terms = terms_of(X, network, weights=weights)
    start, rows = draw_start("kmeans", terms, network.total, 3, stream_of(X, seed, weights))
    w = np.ones(300) if weights is None else weights
    centres, labels = lloyd_by_hand(X, X[rows], w, np.ones((1, 2)), parts)
    np.testing.assert_allclose(start.assembled_means, centres, rtol=1e-10)
    for k in range(3):
        own = labels[0] == k
        assert start.weights[0, k] == pytest.approx(w[own].sum() / w.sum(), rel=1e-12)
        for columns in parts:
            found = start.assembled_covariances[k][np.ix_(columns, columns)]
            wanted = np.cov(X[own][:, columns].T, bias=True, aweights=w[own])
            np.testing.assert_allclose(found, wanted + 1e-6 * np.eye(3), rtol=1e-8, atol=1e-10)
    # Within the tolerance of scikit-learn's k-means, if not out of iterations.
    how = {"algorithm": "lloyd", "tol": 1e-4, "max_iter": starts.MOST_LLOYD_OF_START}
    lloyd = KMeans(3, init=X[rows], n_init=1, **how).fit(X, sample_weight=w)
    assert ((centres - lloyd.cluster_centers_) ** 2).sum() <= 20 * 1e-4 * X.var(axis=0).mean()


@each("kind", ["full", "diag"])
def test_of_many_rows_a_start_looks_at_some(kind, overlapping, monkeypatch):
    X = overlapping(0, 3000, 6)
    monkeypatch.setattr(starts, "SAMPLE_ROWS", 1000)
    for topology in ("star", "cycle"):
        network = network_of(topology, n_rounds=400)
        terms = terms_of(X, network, kind)
        ledger = Ledger(network.graph)
        start, rows = draw_start("kmeans", terms, network.total.counted_on(ledger), 4, stream_of(X))
        of_some = ledger.summary()["by_kind"]["setup"]["bytes"]
        numbers, own = stream_of(X).sample(1000)
        assert np.isin(rows, numbers).all()
        few = terms_of(X[numbers], network, kind, own.row_weights)
        again, places = draw_start("kmeans", few, network.total.counted_on(ledger), 4, own)
        np.testing.assert_array_equal(rows, numbers[places])
        np.testing.assert_allclose(start.means, again.means, rtol=1e-12)
        np.testing.assert_allclose(start.covariances, again.covariances, rtol=1e-12)
        assert ledger.summary()["by_kind"]["setup"]["bytes"] == 2 * of_some


def test_rows_of_a_sample_stand_as_they_do_among_all():
    weights = np.array([1.0, 0.0, 50.0, *np.ones(949)])
    for seed in range(5):
        rows, sample = stream_of(np.empty(952), seed, weights).sample(100)
        assert (np.diff(rows) > 0).all()
        assert sample.row_weights.sum() == 100
        assert 1 not in rows
        assert sample.row_weights[rows == 2] == pytest.approx(5, abs=1)
        # As many copies of a row in its place are the same draw.
        copies = np.repeat(np.arange(952), weights.astype(int))
        again, _ = stream_of(copies, seed).sample(100)
        np.testing.assert_array_equal(np.unique(copies[again]), rows)


@pytest.mark.filterwarnings("ignore:.*rounds are too few:vpem.VpemWarning")
def test_each_root_assigns_rows_by_its_own_distances(overlapping):
    X = overlapping(5, 300, 6)
    few = connect(make_graph("path", 6), contiguous(6, 6), hops=0, n_rounds=8)
    start, rows = draw_start("kmeans", terms_of(X, few), few.total, 3, stream_of(X))
    assert start.weights.shape == (6, 3)
    assert np.ptp(start.weights, axis=0).max() > 0
    each_one = [[j] for j in range(6)]
    centres, labels = lloyd_by_hand(X, X[rows], np.ones(300), few.total.operator, each_one)
    np.testing.assert_allclose(start.assembled_means, centres, rtol=1e-8)
    shares = np.array([np.bincount(own, minlength=3) / 300 for own in labels])
    np.testing.assert_allclose(start.weights, shares, rtol=1e-12)


# ---- few different rows --------------------------------------------------------------------------


@each_once(init=INITS, topology=["star", "cycle"], distinct=[1, 2, 3])
def test_fewer_different_rows_than_components(init, topology, distinct, overlapping):
    X = np.tile(overlapping(6, 40, 6)[:distinct], (20, 1))
    network = network_of(topology)
    for seed in range(2):
        start, rows = draw_start(init, terms_of(X, network), network.total, 5, stream_of(X, seed))
        assert len(set(rows.tolist())) == 5
        assert np.isfinite(start.means).all()
        assert np.isfinite(start.covariances).all()
        np.testing.assert_allclose(start.weights.sum(axis=1), 1)


def test_spread_rows_take_every_different_row_before_any_twice(overlapping):
    base = overlapping(7, 40, 6)[:4]
    X = np.repeat(base, 30, axis=0)
    network = network_of("star")
    for seed in range(4):
        rows = draw_start("k-means++", terms_of(X, network), network.total, 4, stream_of(X, seed))[
            1
        ]
        assert sorted(rows // 30) == [0, 1, 2, 3]
    network = connect(make_graph("star", 3), contiguous(3, 3), hops=0)
    for init in INITS:  # as many components as rows
        X = overlapping(8, 12, 3)
        _, rows = draw_start(init, terms_of(X, network), network.total, 12, stream_of(X))
        assert sorted(rows) == list(range(12))


# ---- from rows, from a model ---------------------------------------------------------------------


def test_from_a_model_of_the_same_blocks_the_first_entry_is_its_log_likelihood(
    overlapping, iterate
):
    X = overlapping(10, 200, 6)
    network = network_of("star")
    before = iterate(X, network, 5, n_components=3)
    after = iterate(X, network, 4, n_components=3, init=before.mixture)
    whole = iterate(X, network, 9, n_components=3)
    np.testing.assert_allclose(after.history[0], before.root_log_likelihood, rtol=1e-12)
    np.testing.assert_allclose(after.history, whole.history[5:], rtol=1e-10)
    assert after.init_rows is None


@each("target", ["full", "diag", "tied", "spherical", "tied-diag"])
def test_from_a_model_of_other_blocks(target, overlapping, iterate):
    X = overlapping(11, 200, 6)
    one = connect(make_graph("star", 1), contiguous(6, 1), hops=0)
    before = iterate(X, one, 5, n_components=2).mixture
    network = network_of("cycle")
    fit = iterate(X, network, 2, n_components=2, init=before, covariance_type=target)
    start = before.convert_to(network.blocks, target, Scaling.none(6))
    np.testing.assert_allclose(fit.history[0], start.score_samples(X).sum(), rtol=1e-6)


@each(
    ("init", "match"),
    [
        ("kmean", "did you mean 'kmeans'"),
        ([1, 2, 3], "2 components need as many init rows, got 3"),
        ([1, 1], "must differ"),
        ([0, 200], "between 0 and 199"),
        ([-1, 3], "between 0 and 199"),
        ([0.0, 1.0], "list of row indices"),
        ([[0, 1]], "list of row indices"),
        ("model", "3 components, the fit has 2"),
    ],
)
def test_starts_that_cannot_be_used(init, match, overlapping, iterate):
    X, network = overlapping(14, 200, 6), network_of("star")
    if init == "model":
        init = iterate(X, network, 2, n_components=3).mixture
    with pytest.raises(InputError, match=match):
        fit_vpem(X, network, n_components=2, init=init)


# ---- the row least similar to any that is chosen -------------------------------------------------


def farthest_rows(X, first, k):
    """Each next row is the one whose nearest chosen row is farthest away."""
    chosen = [first]
    while len(chosen) < k:
        off = [min(((x - X[row]) ** 2).sum() for row in chosen) for x in X]
        chosen.append(int(np.argmax(off)))
    return chosen


@each("topology", ["star", "cycle"])
def test_farthest_takes_the_row_least_similar_to_any_before(topology):
    X = np.random.default_rng(4).standard_normal((70, 6))
    X = (X - X.mean(axis=0)) / X.std(axis=0)  # as mixtures measure distances
    network = network_of(topology)
    for rows in (
        kmeans_features(X, network, n_clusters=5, init="farthest", seed=3).init_rows,
        fit_vpem(X, network, n_components=5, init="farthest", seed=3, max_iter=0).init_rows,
        kmeans_rows(
            X, evenly(70, 4), connect_workers(make_graph(topology, 4)),
            n_clusters=5, init="farthest", seed=3,
        ).init_rows,
        fit_em(
            X, evenly(70, 4), connect_workers(make_graph(topology, 4)),
            n_components=5, init="farthest", seed=3, max_iter=0,
        ).init_rows,
    ):  # fmt: skip
        assert list(rows) == farthest_rows(X, rows[0], 5)
    masked = connect_workers(make_graph("star", 4), secure_sum=True)
    with pytest.raises(InputError, match="farthest"):
        kmeans_rows(X, evenly(70, 4), masked, n_clusters=3, init="farthest")


# ---- the best of short runs ----------------------------------------------------------------------

SMALL = {"n_components": 3, "init": "small-em", "seed": 2, "n_threads": 1}


def annealed(mixture, powers, X, network, others):
    """EM by densities to a power, which are those of wider components."""
    for power in powers:
        wider = sum(np.linalg.slogdet(one)[1] for one in mixture.covariance_blocks)
        weights = mixture.weights**power * np.exp((1 - power) / 2 * wider)
        hot = replace(
            mixture, weights=weights / weights.sum(), covariances=mixture.covariances / power
        )
        mixture = fit_vpem(X, network, **others | {"init": hot, "max_iter": 1}).mixture
    return mixture


def test_small_em_goes_on_from_the_best_of_short_runs(overlapping):
    X, network = overlapping(8, 160, 6), network_of("star")
    others = SMALL | {"n_init": 1}
    short = {"max_iter": SMALL_RUN, "tol": SMALL_TOLERANCE, "accelerate": "squarem"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = fit_vpem(X, network, **others | {"init": "kmeans", "max_iter": 0}).mixture
        assert [name for name, _ in SMALL_STARTS[0]] == ["kmeans"] * 3
        runs = [
            fit_vpem(
                X, network, **others | short | {"init": annealed(start, powers, X, network, others)}
            )
            for _, powers in SMALL_STARTS[0]
        ]
    scores = [run.log_likelihood for run in runs]
    assert len({round(score, 6) for score in scores}) == 3
    start = runs[int(np.argmax(scores))]
    fit = fit_vpem(X, network, **SMALL)
    assert fit.history[0, 0] / len(X) == pytest.approx(max(scores), rel=1e-8)
    best = fit_vpem(X, network, **SMALL | {"init": start.mixture})
    np.testing.assert_allclose(fit.mixture.means, best.mixture.means, rtol=1e-5)
    # Every sum is counted: those of the start in the kind of the fit's, up and down.
    rounds = [one.communication["by_kind"]["server"]["rounds"] for one in (fit, best, *runs)]
    assert rounds[0] == sum(rounds[1:]) + 2 * sum(len(powers) for _, powers in SMALL_STARTS[0])


def test_small_em_leaves_degenerate_runs_to_others():
    X = np.random.default_rng(1).standard_normal((60, 4))
    X[30:] += 2
    network = connect(make_graph("complete", 1), contiguous(4, 1), hops=0)
    lone = SMALL | {"n_components": 4, "seed": 1, "max_iter": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = fit_vpem(X, network, **lone, floor_fits="keep")
    last = fit_vpem(X, network, **lone)
    assert kept.degenerate
    assert not last.degenerate
    assert kept.log_likelihood > last.log_likelihood


def test_small_em_by_features_and_rows_in_one_place_is_the_same(overlapping):
    X = overlapping(8, 160, 6)
    alone = fit_vpem(X, connect(make_graph("complete", 1), contiguous(6, 1), hops=0), **SMALL)
    for workers in (1, 4):
        fit = fit_em(X, evenly(160, workers), **SMALL)
        assert fit.log_likelihood == pytest.approx(alone.log_likelihood, rel=1e-12)
    network = connect(make_graph("cycle", 6), contiguous(6, 6), hops=0, n_rounds=60)
    assert fit_vpem(X, network, **SMALL).log_likelihood == pytest.approx(
        fit_vpem(X, network_of("star"), **SMALL).log_likelihood, rel=1e-4
    )


def test_short_runs_look_at_some_of_many_rows(overlapping, monkeypatch):
    X, network = overlapping(8, 400, 6), network_of("star")
    whole = fit_vpem(X, network, **SMALL)
    monkeypatch.setattr(starts, "SMALL_SAMPLE", 130)
    some = fit_vpem(X, network, **SMALL)
    assert some.log_likelihood == pytest.approx(whole.log_likelihood, abs=0.1)
    assert some.communication["bytes"] < 0.7 * whole.communication["bytes"]
    cycle = connect(make_graph("cycle", 6), contiguous(6, 6), hops=0, n_rounds=60)
    assert fit_vpem(X, cycle, **SMALL).log_likelihood == pytest.approx(
        some.log_likelihood, rel=1e-4
    )
    # A row that weighs twice is two in the same place.
    weights = np.where(np.arange(400) % 3 == 0, 2.0, 1.0)
    fits = [
        fit_vpem(X, network, sample_weight=weights, **SMALL),
        fit_vpem(np.repeat(X, weights.astype(int), axis=0), network, **SMALL),
    ]
    assert fits[0].log_likelihood == pytest.approx(fits[1].log_likelihood, rel=1e-9)


def test_small_em_resumes_to_the_bit(overlapping):
    X, network = overlapping(8, 120, 6), network_of("star")
    check_resumes(lambda saver: fit_vpem(X, network, saver=saver, **SMALL | {"n_init": 2}))
    check_resumes(lambda saver: fit_em(X, evenly(120, 3), saver=saver, **SMALL | {"max_iter": 9}))


@each(
    ("make", "match"),
    [
        (lambda X: fit_vpem(X, network_of("star"), n_factors=1, **SMALL), "n_factors=1 are drawn"),
        (lambda X: VPEM(3, agents=2, init="small-em", means_init=X[:3]).fit(X), "some are given"),
        (lambda X: FedEM(3, workers=2, init="small-em").fit(X), "init must be one of"),
        (lambda X: kmeans_features(X, network_of("star"), init="small-em"), "init must be"),
    ],
)
def test_small_em_is_refused_where_it_cannot_be(make, match, overlapping):
    with pytest.raises(InputError, match=match):
        make(overlapping(8, 120, 6))
