"""k-means over rows, over features, in one shot: Lloyd's algorithm, starts, messages, refusals.

Ways, engines and splits are cells of the table (cells_kmeans_rows.py, cells_kmeans_features.py).
"""

import warnings

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from vpem import (
    DistributedKMeans,
    InputError,
    NotConvergedWarning,
    VpemWarning,
    connect,
    connect_workers,
    kmeans_features,
    kmeans_rows,
    make_graph,
)
from vpem.fits.feature_kmeans import proven_factor
from vpem.network.ledger import Ledger
from vpem.network.partition import contiguous, evenly, from_worker_of_row
from vpem.steps.row_sampling import RowStream, WorkerRows
from vpem.steps.starts import draw_start, seed_rows
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling

from .tables import each, over

# Digits have pixels that are next to always empty.
pytestmark = pytest.mark.filterwarnings("ignore:standard deviations of features differ")


@pytest.fixture(scope="module")
def digits():
    data = load_digits().data[:600]
    data.setflags(write=False)
    return data


def over_rows(X, workers, topology="star", *, network=None, **options):
    """Cluster rows of so many workers, or of these."""
    workers = evenly(len(X), workers) if isinstance(workers, int) else workers
    joined = connect_workers(make_graph(topology, workers.n_workers), **(network or {}))
    return kmeans_rows(X, workers, joined, **options)


def over_features(X, n, topology="star", *, network=None, **options):
    """Cluster rows of which so many agents have features."""
    joined = connect(
        make_graph(topology, n), contiguous(X.shape[1], n), **{"hops": 0, **(network or {})}
    )
    return kmeans_features(X, joined, **options)


def lloyd(X, rows, **options):
    return KMeans(len(rows), init=X[rows], n_init=1, tol=0, algorithm="lloyd").fit(X, **options)


def odd_workers(M):
    """Workers with no rows, one row, and rows from here and there."""
    owner = np.random.default_rng(9).integers(3, 6, size=M)
    owner[5] = 1
    return from_worker_of_row(owner, [f"w{i}" for i in range(7)])


WAYS = [
    (over_rows, 1), (over_rows, 100), (over_rows, odd_workers(600)), (over_features, 1),
    (over_features, 5), (over_features, 64),
]  # fmt: skip


@each(("door", "held"), WAYS)
def test_it_is_lloyds_algorithm(digits, door, held):
    rows = np.random.default_rng(3).choice(600, 10, replace=False)
    wanted = lloyd(digits, rows)
    found = door(digits, held, n_clusters=10, init=rows)
    np.testing.assert_array_equal(found.labels, wanted.labels_)
    np.testing.assert_allclose(found.centres, wanted.cluster_centers_, atol=1e-11)
    assert found.inertia == pytest.approx(wanted.inertia_, rel=1e-12)
    assert found.root_inertia == pytest.approx([wanted.inertia_], rel=1e-12)
    assert (found.n_iter, found.converged, found.disagreement) == (wanted.n_iter_, True, 0)
    assert found.init_rows == tuple(rows)
    assert found.root_centres is None


@each("door", [over_rows, over_features])
def test_threads_and_single_precision(digits, door):
    one, two, single = (
        door(digits, 3, n_clusters=6, init=[1, 99, 200, 300, 411, 599], **how)
        for how in ({"n_threads": 1}, {"n_threads": 2}, {"dtype": np.float32})
    )
    # The digits are small integers: exact in either precision.
    for other in (two, single):
        np.testing.assert_array_equal(one.centres, other.centres)
        np.testing.assert_array_equal(one.labels, other.labels)


@each("hops", [0, 1])
def test_hubs_of_features_agree_by_consensus(digits, hops):
    rows = [3, 90, 200, 310, 400, 550]
    wanted = lloyd(digits, rows)
    network = {"consensus_tol": 1e-9, "hops": hops}
    found = over_features(digits, 5, "cycle", network=network, n_clusters=6, init=rows)
    np.testing.assert_array_equal(found.labels, wanted.labels_)
    np.testing.assert_allclose(found.centres, wanted.cluster_centers_, atol=1e-11)
    np.testing.assert_allclose(found.root_inertia, wanted.inertia_, rtol=1e-7)
    assert len(found.root_inertia) == len(found.network.hubs)
    assert found.disagreement == 0


def test_features_in_any_order_and_single_precision(digits):
    held = [list(range(63, 30, -2)), list(range(62, -1, -2)), list(range(29, 0, -2))]
    rows = [3, 90, 200, 310, 400]
    model = DistributedKMeans(5, "features", agents=[sorted(part) for part in held], init=rows)
    wanted = lloyd(digits, rows)
    np.testing.assert_array_equal(model.fit_predict(digits), wanted.labels_)
    np.testing.assert_allclose(model.cluster_centers_, wanted.cluster_centers_, atol=1e-11)
    single = model.fit(digits.astype(np.float32))
    np.testing.assert_array_equal(single.labels_, wanted.labels_)
    assert single.cluster_centers_.dtype == np.float32


@over(split=["rows", "features"], scale=["none", "standard"], seed=range(2))
def test_inertia_by_consensus_is_that_of_the_centres_returned(split, scale, seed):
    """Few rounds: workers differ much, yet what is reported belongs to what is returned."""
    X = np.random.default_rng(seed).normal(size=(300, 6)) * [1, 2, 3, 4, 5, 6]
    weights = np.random.default_rng(seed).random(300)
    how = {"n_clusters": 7, "seed": seed, "scale": scale, "max_iter": 20, "sample_weight": weights}
    door = over_rows if split == "rows" else over_features
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        found = door(X, 6, "cycle", network={"n_rounds": 4}, **how)
    unit = np.ones(6)
    if scale == "standard":
        unit = np.sqrt(np.cov(X.T, aweights=weights, ddof=0).diagonal())
    far = (((X[:, None] - found.centres) / unit) ** 2).sum(axis=2)
    np.testing.assert_array_equal(found.labels, far.argmin(axis=1))
    assert found.inertia == pytest.approx(far.min(axis=1) @ weights, rel=1e-10)
    np.testing.assert_allclose(found.counts, np.bincount(found.labels, weights, 7))
    assert 0 <= found.disagreement < 0.5
    assert np.abs(found.root_inertia / found.inertia - 1).max() > 1e-9
    if split == "rows":
        np.testing.assert_allclose(found.centres, found.root_centres.mean(axis=0))


@over(method=["rows", "lloyd", "grid"], dtype=[np.float64, np.float32])
def test_standardized_features(digits, method, dtype):
    X = digits[:, 16:48] * np.geomspace(1e-2, 1e2, 32) + 5
    unit, rows = X.std(axis=0), [3, 90, 200, 310, 400]
    unit[unit == 0] = 1
    model = DistributedKMeans(5, scale="standard", init=X[rows], random_state=0)
    if method != "rows":
        model.set_params(split="features", agents=4, method=method)
    if method == "grid":
        model.set_params(init="k-means++")
    labels = model.fit(X.astype(dtype)).labels_
    loose = 1e-9 if dtype is np.float64 else 1e-4
    if method != "grid":
        wanted = lloyd((X - X.mean(axis=0)) / unit, rows)
        assert (labels == wanted.labels_).mean() > 1 - 100 * loose
        assert model.inertia_ == pytest.approx(wanted.inertia_, rel=10 * loose)
        np.testing.assert_array_equal(model.predict(X.astype(dtype)), labels)
    off = (X - model.cluster_centers_[labels]) / unit
    assert model.inertia_ == pytest.approx((off**2).sum(), rel=loose)
    far = model.transform(X)
    np.testing.assert_allclose(
        far[np.arange(600), labels], np.sqrt((off**2).sum(axis=1)), rtol=loose
    )
    assert model.score(X) == pytest.approx(-(far.min(axis=1) ** 2).sum(), rel=loose)


# ---- starts, and clusters without rows ----------------------------------------------------------


@over(weighted=[False, True], seed=range(2))
def test_spread_rows_are_those_of_all_rows_at_one_place(digits, seed, weighted):
    weights = np.random.default_rng(seed).integers(1, 5, 600) * 1.0 if weighted else None

    def stream():
        return RowStream(np.random.default_rng(seed), weights, 600)

    alone = connect(make_graph("star", 1), contiguous(64, 1), hops=0)
    terms = FeatureTerms(
        digits, alone.blocks, "diag", scaling=Scaling.none(64), row_weights=weights
    )
    _, wanted = draw_start("k-means++", terms, alone.total, 8, stream())
    for topology, sizes in [("star", [600]), ("star", [0, 1, 299, 0, 300]), ("cycle", [200] * 3)]:
        parts = WorkerRows.in_memory(digits, sizes)
        total = connect_workers(make_graph(topology, len(sizes))).total
        np.testing.assert_array_equal(seed_rows(parts, total, 8, stream()), wanted)


@each("init", ["k-means++", "random"])
def test_a_start_does_not_depend_on_who_holds_what(digits, init):
    found, *others = (
        door(digits, held, n_clusters=5, init=init)
        for door, held in ((over_rows, 4), (over_rows, odd_workers(600)), (over_features, 8))
    )
    for other in others[1 if init == "k-means++" else 0 :]:  # whose potentials are worker by worker
        assert other.init_rows == found.init_rows
        np.testing.assert_array_equal(other.labels, found.labels)


def test_an_empty_cluster_is_placed_at_a_row_the_same_for_all(digits):
    # Three centres far from all rows: nobody is nearest to them.
    far = np.vstack([digits[:3], np.full((2, 64), 1e3), np.full((1, 64), 2e3)])
    first, *others = (door(digits, held, init=far, n_clusters=6) for door, held in WAYS)
    assert [cluster for at, cluster, _ in first.reseeded if at == 1] == [3, 4, 5]
    assert (first.counts > 0).all()
    assert first.init_rows is None
    for other in others:
        assert other.reseeded == first.reseeded
        np.testing.assert_array_equal(other.labels, first.labels)


@each(("door", "held", "how"), [
    (over_rows, 1, {}), (over_rows, 20, {}), (over_features, 3, {}),
    (over_features, 3, {"method": "grid"}),
])  # fmt: skip
def test_more_clusters_than_different_rows(door, held, how):
    X = np.repeat(np.arange(12.0).reshape(4, 3), 5, axis=0)
    with pytest.warns(VpemWarning, match="of 7 clusters are empty" if how else "3 of 7 clusters"):
        found = door(X, held, n_clusters=7, **how)
    assert found.inertia == 0
    assert found.converged
    if how:
        assert found.one_shot.n_cells == 4


def test_one_row_and_one_cluster():
    found = over_rows(np.ones((1, 2)), 1, n_clusters=1)
    assert (found.inertia, found.labels.tolist()) == (0, [0])
    found = over_rows(np.arange(6.0)[:, None], 3, n_clusters=1)
    assert found.centres.tolist() == [[2.5]]
    assert found.communication["bytes"] > 0


def test_running_out_of_iterations_warns(digits):
    with pytest.warns(NotConvergedWarning, match="after 2 iterations"):
        found = over_rows(digits, 2, n_clusters=8, max_iter=2)
    assert not found.converged
    # Labels belong to the centres that came out last.
    off = digits[:, None] - found.centres
    np.testing.assert_array_equal(found.labels, (off**2).sum(axis=2).argmin(axis=1))


def test_restarts_keep_the_best(digits):
    one, many = (over_rows(digits, 2, n_clusters=9, n_init=n, init="random") for n in (1, 6))
    assert many.inertia < one.inertia
    assert many.total_iterations > many.n_iter
    assert 0 < many.best_restart < 6


# ---- one shot -----------------------------------------------------------------------------------


@each(("seed", "n"), [(0, 2), (1, 64)])
def test_one_shot_is_within_its_factor(digits, seed, n):
    found = over_features(digits, n, n_clusters=7, method="grid", seed=seed)
    best = KMeans(7, n_init=10, random_state=seed).fit(digits).inertia_
    assert found.one_shot.factor == 9
    assert found.one_shot.party_inertia.sum() <= best <= found.inertia * (1 + 1e-3) <= 9 * best
    # The steps of the proof, with what was found: the rows, their cells, the centres.
    sides = np.sqrt([found.one_shot.party_inertia.sum(), found.one_shot.cell_inertia])
    assert np.sqrt(found.inertia) <= sides.sum() * (1 + 1e-12)
    off = digits - found.centres[found.labels]
    assert found.inertia == pytest.approx((off**2).sum(), rel=1e-12)
    assert found.counts.sum() == 600


def test_one_party_in_one_shot_is_its_own_clustering(digits):
    found = over_features(digits, 1, n_clusters=7, method="grid")
    assert found.one_shot.factor == 1
    assert found.inertia == pytest.approx(found.one_shot.party_inertia[0], rel=1e-12)
    assert found.communication["messages"] == 0
    # That of the paper where everybody solves its own k-means, and where one side errs fourfold.
    assert (proven_factor(), proven_factor(4, 1), proven_factor(1, 4)) == (9, 25, 25)


# ---- messages, counted by hand ------------------------------------------------------------------


def test_messages_over_rows():
    X = np.array([[0.0, 0], [1, 0], [10, 0], [11, 0]])
    found = over_rows(X, 3, n_clusters=2, init=[0, 2])
    assert found.n_iter == 2
    kinds = found.communication["by_kind"]
    # A row's number and values: from its worker to the server, from there to all three.
    assert kinds["flooding"] == {"messages": 2 * 4, "bytes": 2 * 4 * (8 + 16), "rounds": 4}
    # Counts (2), sums (2 x 2), inertia, rows that changed: up and down, three workers, twice.
    assert kinds["server"] == {"messages": 2 * 6, "bytes": 2 * 6 * 8 * 8, "rounds": 4}
    assert kinds["stopping"]["messages"] == 0  # the total says how many rows changed
    # Weights, values and squares, of which standard deviations are: up and down.
    assert kinds["setup"] == {"messages": 6, "bytes": 6 * 5 * 8, "rounds": 2}
    assert kinds["estep"]["messages"] == 0
    assert found.communication["bytes_by_iteration"][-1] == 192 + 240 + 2 * 6 * 64
    assert over_rows(X, 1, n_clusters=2).communication["messages"] == 0


def test_messages_of_spreading_rows(digits):
    network = connect_workers(make_graph("star", 3))
    ledger = Ledger(network.graph)
    stream = RowStream(np.random.default_rng(0), None, 600)
    parts = WorkerRows.in_memory(digits, [200] * 3)
    seed_rows(parts, network.total.counted_on(ledger), 2, stream)
    # K = 2: the first row, then two trials of the second, of which one is kept.
    row = 4 * (8 + 64 * 8)
    assert ledger.of_kind("flooding")["bytes"] == 3 * row + 3 * 8
    # Three potentials a trial, up and down for each worker, for one row and then two.
    assert ledger.of_kind("setup")["bytes"] == 6 * 3 * 8 * (1 + 2)


def test_messages_of_one_shot():
    X = np.random.default_rng(0).normal(size=(20, 6))
    sent = over_features(X, 3, n_clusters=4, method="grid").communication
    # Up: 4 x 2 values, 20 labels of two bits, an inertia. Down: 4 x 2 values, labels. Up: inertia.
    up, down, last = 64 + 5 + 8, 64 + 5, 8
    assert sent["by_kind"]["server"] == {
        "messages": 9, "bytes": 3 * (up + down + last), "rounds": 3,
    }  # fmt: skip
    assert sent["messages"] == 9


@each("compress", [None, "natural:12bits"])
def test_messages_of_standard_deviations_and_units(compress):
    X, network = np.random.default_rng(0).normal(size=(40, 3)), {"compress": compress}
    plain, scaled = (
        over_rows(X, 4, network=network, n_clusters=2, init=[0, 1], scale=scale)
        for scale in ("none", "standard")
    )
    # Weights, values and squares up and down, without a codec; then the units to all.
    assert plain.communication["by_kind"]["setup"]["bytes"] == 8 * (8 * 7)
    assert scaled.communication["by_kind"]["setup"]["bytes"] == 8 * (8 * 7) + 4 * (6 * 8)
    np.testing.assert_allclose(plain.deviations, X.std(axis=0))
    assert plain.scaling is None
    np.testing.assert_allclose(scaled.scaling.scale, X.std(axis=0))


# ---- what cannot be used ------------------------------------------------------------------------


@each(
    ("options", "sentence"),
    [
        ({"n_clusters": 0}, "n_clusters must be an integer of at least 1"),
        ({"n_clusters": 601}, "601 clusters need at least as many rows, got 600"),
        ({"init": "kmeans"}, "init must be one of k-means"),
        ({"init": None}, "init must be k-means"),
        ({"init": [1, 2, 3]}, "2 clusters need as many init rows, got 3"),
        ({"init": [0, 600]}, "init rows must lie between 0 and 599"),
        ({"init": np.zeros((2, 3))}, "starting centres must be 2 x 64 numbers"),
        ({"init": np.full((2, 64), np.nan)}, "starting centres must be finite"),
        ({"n_init": 0}, "n_init must be an integer"),
        ({"max_iter": 0}, "max_iter must be an integer"),
        ({"dtype": np.int32}, "dtype must be float32 or float64"),
        ({"scale": "robust"}, "scale must be one of none, standard"),
        ({"sample_weight": np.zeros(600)}, "sample weights must not all be zero"),
        ({"sample_weight": np.eye(1, 600)[0]}, "got 1 with a positive weight"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_options_that_cannot_be_used(digits, options, sentence):
    for door in (over_rows, over_features):
        with pytest.raises(InputError, match=sentence) as caught:
            door(digits, 2, **options)
        assert "\n" not in str(caught.value)


@each(
    ("door", "X", "held", "how", "sentence"),
    [
        (over_rows, np.ones((50, 64)), evenly(600, 2), {}, "hold 600 rows"),
        (over_rows, np.full((4, 2), np.nan), 2, {}, "is NaN"),
        (over_rows, None, 2, {"topology": "path", "participation": 0.5}, "on a graph"),
        (over_features, None, 2, {"method": "one"}, "method must be one of lloyd, grid"),
        (over_features, None, 4, {"topology": "cycle", "method": "grid"}, "the graph has none"),
        (over_features, None, 2, {"method": "grid", "init": "random"}, "by k-means"),
        (over_features, None, 2, {"method": "grid", "participation": 0.5}, "sends labels"),
        (over_features, np.full((9, 4), 1e200), 2, {}, "cannot be squared in"),
    ],
)
def test_what_makes_no_sense_together(digits, door, X, held, how, sentence):
    with pytest.raises(InputError, match=sentence):
        door(digits if X is None else X, held, **how)


def test_networks_and_workers_that_are_not_of_the_data(digits):
    two, three = (connect_workers(make_graph("star", n)) for n in (2, 3))
    pair = connect(make_graph("star", 2), contiguous(64, 2), hops=0)
    for call, sentence in (
        (lambda: kmeans_rows(digits, evenly(600, 2), three), "graph has 3 agents"),
        (lambda: kmeans_rows(digits, 2, two), "must be vpem.Workers"),
        (lambda: kmeans_rows(digits, evenly(600, 2), two.graph), "must come from vpem.connect"),
        (lambda: kmeans_features(digits[:, :3], pair), "the data have 3"),
    ):
        with pytest.raises(InputError, match=sentence):
            call()
