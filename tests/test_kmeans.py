"""k-means over rows, over features, in one shot: identities with Lloyd's algorithm, messages."""

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
from vpem.errors import FileError
from vpem.files.results import StoredClustering, read_clustering, write_clustering
from vpem.fits.feature_kmeans import proven_factor
from vpem.network.ledger import Ledger
from vpem.network.partition import Blocks, Workers, contiguous, evenly, from_worker_of_row
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.row_sampling import HeldRows, RowStream, WorkerRows
from vpem.steps.starts import draw_start, seed_rows
from vpem.terms.features import FeatureTerms
from vpem.terms.rows import MemoryRows
from vpem.terms.units import Scaling

from .tables import each, over

# Digits have pixels that are next to always empty.
pytestmark = pytest.mark.filterwarnings("ignore:standard deviations of features differ")


@pytest.fixture(scope="module")
def digits():
    data = load_digits().data[:600]
    data.setflags(write=False)
    return data


def workers_on(topology, n, **options):
    return connect_workers(make_graph(topology, n), **options)


def agents_on(topology, n, n_features, hops=0, **options):
    return connect(make_graph(topology, n), contiguous(n_features, n), hops=hops, **options)


def start(X, k, seed):
    return np.random.default_rng(seed).choice(len(X), k, replace=False)


def lloyd(X, rows, **options):
    return KMeans(len(rows), init=X[rows], n_init=1, tol=0, algorithm="lloyd").fit(X, **options)


def odd_workers(M):
    """Workers with no rows, one row, and rows from here and there."""
    owner = np.random.default_rng(9).integers(3, 6, size=M)
    owner[5] = 1
    return from_worker_of_row(owner, [f"w{i}" for i in range(7)])


# ---- rows ---------------------------------------------------------------------------------------


@each("seed", range(4))
def test_over_rows_it_is_lloyds_algorithm(digits, seed):
    rows = start(digits, 10, seed)
    wanted = lloyd(digits, rows)
    many = [evenly(600, 1), evenly(600, 3), evenly(600, 7), evenly(600, 100), odd_workers(600)]
    for workers in many:
        network = workers_on("star", workers.n_workers)
        found = kmeans_rows(digits, workers, network, n_clusters=10, init=rows)
        np.testing.assert_array_equal(found.labels, wanted.labels_)
        np.testing.assert_allclose(found.centres, wanted.cluster_centers_, atol=1e-11)
        assert found.inertia == pytest.approx(wanted.inertia_, rel=1e-12)
        assert found.root_inertia == pytest.approx([wanted.inertia_], rel=1e-12)
        assert found.n_iter == wanted.n_iter_
        assert found.converged
        assert found.init_rows == tuple(rows)
        assert found.root_centres is None


def test_inertia_never_rises(digits):
    history = kmeans_rows(digits, evenly(600, 4), workers_on("star", 4), n_clusters=12).history
    assert len(history) > 5
    assert (np.diff(history) <= 1e-9 * history[0]).all()


def test_threads_and_single_precision(digits):
    rows = start(digits, 6, 0)
    options = {"n_clusters": 6, "init": rows}
    one, two = (
        kmeans_rows(digits, evenly(600, 3), workers_on("star", 3), n_threads=n, **options)
        for n in (1, 2)
    )
    np.testing.assert_array_equal(one.centres, two.centres)
    np.testing.assert_array_equal(one.labels, two.labels)
    # The digits are small integers: exact in either precision.
    single = kmeans_rows(digits, evenly(600, 3), workers_on("star", 3), dtype=np.float32, **options)
    np.testing.assert_array_equal(one.labels, single.labels)
    np.testing.assert_array_equal(one.centres, single.centres)


@pytest.mark.parametrize("topology", ["cycle", "complete", "tree"])
def test_by_consensus_every_worker_has_centres_near_the_same(digits, topology):
    rows = start(digits, 5, 1)
    wanted = lloyd(digits, rows)
    network = workers_on(topology, 6, consensus_tol=1e-9)
    found = kmeans_rows(digits, evenly(600, 6), network, n_clusters=5, init=rows)
    np.testing.assert_array_equal(found.labels, wanted.labels_)
    every = found.centres[None] if found.root_centres is None else found.root_centres
    for centres in every:
        np.testing.assert_allclose(centres, wanted.cluster_centers_, atol=1e-6)
    np.testing.assert_allclose(found.root_inertia, wanted.inertia_, rtol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_a_weight_is_as_many_rows(digits, seed):
    rng = np.random.default_rng(seed)
    X = digits[:200]
    weights = rng.integers(0, 4, size=200)
    rows = rng.choice(np.flatnonzero(weights), 5, replace=False)
    wanted = lloyd(X, rows, sample_weight=weights)
    options = {"n_clusters": 5, "init": rows, "sample_weight": weights}
    over_rows = kmeans_rows(X, evenly(200, 4), workers_on("star", 4), **options)
    over_features = kmeans_features(X, agents_on("star", 4, 64), **options)
    for found in (over_rows, over_features):
        assert found.inertia == pytest.approx(wanted.inertia_, rel=1e-12)
        np.testing.assert_allclose(found.centres, wanted.cluster_centers_, atol=1e-11)
        np.testing.assert_allclose(found.counts, np.bincount(wanted.labels_, weights))


def test_an_empty_cluster_is_placed_at_a_row_the_same_for_all(digits):
    # Two centres far from all rows: nobody is nearest to them.
    far = np.vstack([digits[:3], np.full((2, 64), 1e3), np.full((1, 64), 2e3)])
    runs = [
        kmeans_rows(digits, workers, workers_on("star", workers.n_workers), init=far, n_clusters=6)
        for workers in (evenly(600, 1), evenly(600, 5))
    ]
    runs.append(kmeans_features(digits, agents_on("star", 4, 64), init=far, n_clusters=6))
    for found in runs:
        assert [cluster for at, cluster, _ in found.reseeded if at == 1] == [3, 4, 5]
        assert (found.counts > 0).all()
        assert found.init_rows is None
        assert found.reseeded == runs[0].reseeded
        np.testing.assert_array_equal(found.labels, runs[0].labels)


def test_more_clusters_than_different_rows():
    X = np.repeat(np.arange(12.0).reshape(4, 3), 5, axis=0)
    for workers in (evenly(20, 1), evenly(20, 20)):
        network = workers_on("star", workers.n_workers)
        with pytest.warns(VpemWarning, match="3 of 7 clusters are empty"):
            found = kmeans_rows(X, workers, network, n_clusters=7)
        assert found.converged
        assert found.inertia == 0
    with pytest.warns(VpemWarning, match="3 of 7 clusters are empty"):
        assert kmeans_features(X, agents_on("star", 3, 3), n_clusters=7).inertia == 0
    with pytest.warns(VpemWarning, match="clusters are empty"):
        found = kmeans_features(X, agents_on("star", 3, 3), n_clusters=7, method="grid")
    assert found.inertia == 0
    assert found.one_shot.n_cells == 4


def test_one_row_and_one_cluster():
    found = kmeans_rows(np.ones((1, 2)), evenly(1, 1), workers_on("star", 1), n_clusters=1)
    assert found.inertia == 0
    assert found.labels.tolist() == [0]
    X = np.arange(6.0)[:, None]
    found = kmeans_rows(X, evenly(6, 3), workers_on("star", 3), n_clusters=1)
    assert found.centres.tolist() == [[2.5]]
    assert found.communication["bytes"] > 0


def test_running_out_of_iterations_warns(digits):
    with pytest.warns(NotConvergedWarning, match="after 2 iterations"):
        found = kmeans_rows(digits, evenly(600, 2), workers_on("star", 2), n_clusters=8, max_iter=2)
    assert not found.converged
    # Labels belong to the centres that came out last.
    off = digits[:, None] - found.centres
    np.testing.assert_array_equal(found.labels, (off**2).sum(axis=2).argmin(axis=1))


def test_restarts_keep_the_best(digits):
    def run(n_init):
        return kmeans_rows(
            digits,
            evenly(600, 2),
            workers_on("star", 2),
            n_clusters=9,
            n_init=n_init,
            init="random",
        )

    many = run(6)
    assert many.inertia <= run(1).inertia
    assert many.total_iterations > many.n_iter
    assert 0 <= many.best_restart < 6


# ---- k-means++ over rows ------------------------------------------------------------------------


@over(weighted=[False, True], seed=range(5))
def test_spread_rows_are_those_of_all_rows_at_one_place(digits, seed, weighted):
    weights = np.random.default_rng(seed).integers(1, 5, 600) * 1.0 if weighted else None

    def stream():
        return RowStream(np.random.default_rng(seed), weights, 600)

    alone = agents_on("star", 1, 64)
    terms = FeatureTerms(
        digits, alone.blocks, "diag", scaling=Scaling.none(64), row_weights=weights
    )
    _, wanted = draw_start("k-means++", terms, alone.total, 8, stream())
    for topology, sizes in [("star", [600]), ("star", [0, 1, 299, 0, 300]), ("cycle", [200] * 3)]:
        parts = WorkerRows.in_memory(digits, sizes)
        total = workers_on(topology, len(sizes)).total
        np.testing.assert_array_equal(seed_rows(parts, total, 8, stream()), wanted)


def test_both_splits_draw_the_same_start(digits):
    for init in ("k-means++", "random"):
        rows = kmeans_rows(digits, evenly(600, 4), workers_on("star", 4), n_clusters=5, init=init)
        features = kmeans_features(digits, agents_on("star", 8, 64), n_clusters=5, init=init)
        assert rows.init_rows == features.init_rows
        np.testing.assert_array_equal(rows.labels, features.labels)


@over(topology=["star", "cycle"], weighted=[False, True])
def test_rows_that_are_read_run_by_run(digits, topology, weighted):
    """Runs that end inside workers' rows: the clusters of the same rows in memory."""
    weights = np.random.default_rng(0).integers(1, 5, 600) * 1.0 if weighted else None
    counts = np.array([0, 130, 1, 469, 0])
    total = workers_on(topology, 5).total
    blocks = Blocks((np.arange(64),), (0,), ((0,),))
    stored = InRuns(digits, blocks, Scaling.none(64), np.float64)
    found = []
    for parts in (WorkerRows.in_memory(digits, counts), WorkerRows(stored, counts)):
        stream = RowStream(np.random.default_rng(1), weights, 600)
        rows = seed_rows(parts, total, 6, stream)
        centres = HeldRows(parts, total).share(rows)
        found.append((rows, lloyd_rows(parts, total, centres, stream, max_iter=5)))
    (rows, run), (same, again) = found
    np.testing.assert_array_equal(rows, same)
    np.testing.assert_array_equal(run.labels, again.labels)
    np.testing.assert_allclose(run.centres, again.centres, rtol=1e-12)
    np.testing.assert_allclose(run.history, again.history, rtol=1e-12)


class InRuns(MemoryRows):
    """Rows of which a hundred are there at a time."""

    def runs(self):
        return (slice(begin, min(begin + 100, 600)) for begin in range(0, 600, 100))

    def read(self, rows):
        assert rows.stop - rows.start <= 100
        return super().read(rows)


def test_rows_are_numbered_as_the_user_has_them(digits):
    workers = Workers((np.arange(1, 600, 2), np.arange(0, 600, 2)), ("odd", "even"))
    found = kmeans_rows(digits, workers, workers_on("star", 2), n_clusters=4, init=[7, 2, 400, 31])
    assert found.init_rows == (7, 2, 400, 31)
    np.testing.assert_array_equal(found.labels, lloyd(digits, [7, 2, 400, 31]).labels_)


# ---- features -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_over_features_it_is_lloyds_algorithm(digits, seed):
    rows = start(digits, 10, seed)
    wanted = lloyd(digits, rows)
    for n in (1, 5, 64):
        found = kmeans_features(digits, agents_on("star", n, 64), n_clusters=10, init=rows)
        np.testing.assert_array_equal(found.labels, wanted.labels_)
        np.testing.assert_allclose(found.centres, wanted.cluster_centers_, atol=1e-11)
        assert found.inertia == pytest.approx(wanted.inertia_, rel=1e-12)
        assert found.n_iter == wanted.n_iter_
        assert found.disagreement == 0


@pytest.mark.parametrize("hops", [0, 1])
def test_features_by_consensus(digits, hops):
    rows = start(digits, 6, 3)
    wanted = lloyd(digits, rows)
    network = agents_on("cycle", 5, 64, hops, consensus_tol=1e-9)
    found = kmeans_features(digits, network, n_clusters=6, init=rows)
    np.testing.assert_array_equal(found.labels, wanted.labels_)
    np.testing.assert_allclose(found.centres, wanted.cluster_centers_, atol=1e-11)
    np.testing.assert_allclose(found.root_inertia, wanted.inertia_, rtol=1e-7)
    assert len(found.root_inertia) == len(network.hubs)
    assert found.disagreement == 0


def test_features_in_any_order_and_single_precision(digits):
    rows = start(digits, 5, 4)
    held = [list(range(63, 30, -2)), list(range(62, -1, -2)), list(range(29, 0, -2))]
    model = DistributedKMeans(5, "features", agents=[sorted(part) for part in held], init=rows)
    wanted = lloyd(digits, rows)
    np.testing.assert_array_equal(model.fit_predict(digits), wanted.labels_)
    np.testing.assert_allclose(model.cluster_centers_, wanted.cluster_centers_, atol=1e-11)
    single = model.fit(digits.astype(np.float32))
    np.testing.assert_array_equal(single.labels_, wanted.labels_)
    assert single.cluster_centers_.dtype == np.float32


# ---- one shot -----------------------------------------------------------------------------------


@over(seed=range(4), n=[2, 8, 64])
def test_one_shot_is_within_its_factor(digits, seed, n):
    found = kmeans_features(
        digits, agents_on("star", n, 64), n_clusters=7, method="grid", seed=seed
    )
    best = kmeans_rows(
        digits, evenly(600, 1), workers_on("star", 1), n_clusters=7, n_init=10, seed=seed
    ).inertia
    assert found.one_shot.factor == 9
    assert found.inertia <= 9 * best
    assert found.one_shot.party_inertia.sum() <= best
    # The steps of the proof, with what was found: the rows, their cells, the centres.
    sides = np.sqrt([found.one_shot.party_inertia.sum(), found.one_shot.cell_inertia])
    assert np.sqrt(found.inertia) <= sides.sum() * (1 + 1e-12)
    off = digits - found.centres[found.labels]
    assert found.inertia == pytest.approx((off**2).sum(), rel=1e-12)
    assert found.counts.sum() == 600


def test_one_party_in_one_shot_is_its_own_clustering(digits):
    found = kmeans_features(digits, agents_on("star", 1, 64), n_clusters=7, method="grid")
    assert found.one_shot.factor == 1
    assert found.inertia == pytest.approx(found.one_shot.party_inertia[0], rel=1e-12)
    assert found.communication["messages"] == 0


def test_factor_is_that_of_the_paper_where_everybody_solves():
    assert proven_factor() == 9
    assert proven_factor(4, 1) == 25
    assert proven_factor(1, 4) == 25


# ---- messages -----------------------------------------------------------------------------------


def test_messages_over_rows_counted_by_hand():
    X = np.array([[0.0, 0], [1, 0], [10, 0], [11, 0]])
    found = kmeans_rows(X, evenly(4, 3), workers_on("star", 3), n_clusters=2, init=[0, 2])
    assert found.n_iter == 2
    kinds = found.communication["by_kind"]
    # A row's number and values: from its worker to the server, from there to all three.
    assert kinds["flooding"] == {"messages": 2 * 4, "bytes": 2 * 4 * (8 + 16), "rounds": 4}
    # Counts (2), sums (2 x 2), inertia, rows that changed: up and down, three workers, twice.
    assert kinds["server"] == {"messages": 2 * 6, "bytes": 2 * 6 * 8 * 8, "rounds": 4}
    assert kinds["stopping"] == {"messages": 2 * 3, "bytes": 2 * 3, "rounds": 2}
    # Weights, values and squares, of which standard deviations are: up and down.
    assert kinds["setup"] == {"messages": 6, "bytes": 6 * 5 * 8, "rounds": 2}
    assert kinds["estep"]["messages"] == 0
    assert found.communication["bytes_by_iteration"][-1] == 192 + 240 + 2 * 6 * 64 + 3


def test_messages_of_spreading_rows_counted_by_hand(digits):
    network = workers_on("star", 3)
    ledger = Ledger(network.graph)
    stream = RowStream(np.random.default_rng(0), None, 600)
    parts = WorkerRows.in_memory(digits, [200] * 3)
    seed_rows(parts, network.total.counted_on(ledger), 2, stream)
    # K = 2: the first row, then two trials of the second, of which one is kept.
    row = 4 * (8 + 64 * 8)
    assert ledger.of_kind("flooding")["bytes"] == 3 * row + 3 * 8
    # Three potentials a trial, up and down for each worker, for one row and then two.
    assert ledger.of_kind("setup")["bytes"] == 6 * 3 * 8 * (1 + 2)


def test_messages_of_one_shot_counted_by_hand():
    X = np.random.default_rng(0).normal(size=(20, 6))
    found = kmeans_features(X, agents_on("star", 3, 6), n_clusters=4, method="grid")
    # Up: 4 x 2 values, 20 labels of two bits, an inertia. Down: 4 x 2 values, labels. Up: inertia.
    up, down, last = 64 + 5 + 8, 64 + 5, 8
    assert found.communication["by_kind"]["server"] == {
        "messages": 9, "bytes": 3 * (up + down + last), "rounds": 3,
    }  # fmt: skip
    assert found.communication["messages"] == 9


def test_nothing_is_sent_by_one_worker(digits):
    found = kmeans_rows(digits, evenly(600, 1), workers_on("star", 1), n_clusters=3)
    assert found.communication["messages"] == 0


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
        ({"sample_weight": np.zeros(600)}, "sample weights must not all be zero"),
        ({"sample_weight": np.eye(1, 600)[0]}, "got 1 with a positive weight"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_options_that_cannot_be_used(digits, options, sentence):
    for call in (
        lambda: kmeans_rows(digits, evenly(600, 2), workers_on("star", 2), **options),
        lambda: kmeans_features(digits, agents_on("star", 2, 64), **options),
    ):
        with pytest.raises(InputError, match=sentence) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_what_makes_no_sense_together(digits):
    star = agents_on("star", 2, 64)
    two = evenly(600, 2)
    cases = [
        (lambda: kmeans_rows(digits, two, workers_on("star", 3)), "graph has 3 agents"),
        (lambda: kmeans_rows(digits[:50], two, workers_on("star", 2)), "hold 600 rows"),
        (lambda: kmeans_rows(digits, 2, workers_on("star", 2)), "must be vpem.Workers"),
        (lambda: kmeans_rows(digits, two, make_graph("star", 2)), "must come from vpem.connect"),
        (lambda: kmeans_features(digits[:, :3], star), "the data have 3"),
        (lambda: kmeans_features(digits, star, method="one"), "method must be one of lloyd, grid"),
        (
            lambda: kmeans_features(digits, agents_on("cycle", 4, 64), method="grid"),
            "the graph has none",
        ),
        (lambda: kmeans_features(digits, star, method="grid", init="random"), "by k-means"),
        (lambda: kmeans_rows(digits, two, workers_on("path", 2), participation=0.5), "on a graph"),
        (lambda: kmeans_features(digits, star, method="grid", participation=0.5), "sends labels"),
        (lambda: kmeans_features(digits * 1e200, star), "cannot be squared in"),
        (lambda: kmeans_rows(np.full((4, 2), np.nan), two, workers_on("star", 2)), "is NaN"),
    ]
    for call, sentence in cases:
        with pytest.raises(InputError, match=sentence):
            call()


# ---- files --------------------------------------------------------------------------------------


def test_a_clustering_is_written_and_read(tmp_path):
    stored = StoredClustering(
        np.arange(6.0).reshape(2, 3),
        np.array([0, 1, 1, 0], dtype=np.int32),
        np.arange(4.0),
        ("a", "b", "c"),
        np.array(["p", "q", "r", "s"]),
        np.zeros((2, 2, 3)),
        {"inertia": 6.0},
        {"clusters": 2},
        {"vpem": "x"},
    )
    path = tmp_path / "c.h5"
    write_clustering(path, stored)
    found = read_clustering(path)
    for name in ("centres", "labels", "distances", "root_centres", "ids"):
        np.testing.assert_array_equal(getattr(found, name), getattr(stored, name))
    assert (found.feature_names, found.report) == (stored.feature_names, stored.report)
    before = path.read_bytes()
    with pytest.raises(FileError, match="exists"):
        write_clustering(path, stored)
    write_clustering(path, stored, force=True)
    assert path.read_bytes() == before


def test_files_that_are_no_clustering(tmp_path):
    def write(**changes):
        path = tmp_path / "c.h5"
        good = {
            "centres": np.ones((2, 1)),
            "labels": np.zeros(3, dtype=np.int32),
            "distances": np.zeros(3),
            "feature_names": ("a",),
        }
        write_clustering(path, StoredClustering(**{**good, **changes}), force=True)
        return path

    assert read_clustering(write()).ids is None
    for changes, sentence in [
        ({"labels": np.full(3, 2, dtype=np.int32)}, "labels must be 3 integers from 0 to 1, got 2"),
        (
            {"centres": np.full((2, 1), np.inf)},
            "centres must be 2 x 1 finite real numbers, got inf",
        ),
        ({"ids": np.arange(2)}, "ids must be 3 strings or numbers, got 2"),
        ({"distances": np.zeros(2)}, "must have shape 3"),
    ]:
        path = write(**changes)
        with pytest.raises(FileError, match=sentence):
            read_clustering(path)


@pytest.mark.parametrize("init", ["random", [[0.0, 0.0], [100.0, 100.0], [200.0, 200.0]]])
def test_rows_are_drawn_alike_however_they_are_held(init):
    """A start, and where an empty cluster is placed: by the users' numbers of the rows."""
    X = np.vstack([np.zeros((50, 2)), np.random.default_rng(0).normal(size=(50, 2))])
    found = []
    for workers in (evenly(100, 1), evenly(100, 7), from_worker_of_row(np.arange(100) % 3)):
        network = connect_workers(make_graph("star", workers.n_workers))
        found.append(kmeans_rows(X, workers, network, n_clusters=3, init=init, seed=0))
    for other in found[1:]:
        assert other.reseeded == found[0].reseeded
        assert other.init_rows == found[0].init_rows
        assert other.inertia == pytest.approx(found[0].inertia, rel=1e-12)
        np.testing.assert_array_equal(other.labels, found[0].labels)
    assert found[0].reseeded or init == "random"


@pytest.mark.parametrize("split", ["rows", "features"])
@pytest.mark.parametrize("scale", ["none", "standard"])
@pytest.mark.parametrize("seed", range(3))
def test_inertia_by_consensus_is_that_of_the_centres_returned(split, scale, seed):
    """Few rounds: workers differ much, yet what is reported belongs to what is returned."""
    X = np.random.default_rng(seed).normal(size=(300, 6)) * [1, 2, 3, 4, 5, 6]
    options = {"n_clusters": 7, "seed": seed, "scale": scale, "max_iter": 20}
    weights = np.random.default_rng(seed).random(300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        if split == "rows":
            network = workers_on("cycle", 6, n_rounds=4)
            found = kmeans_rows(X, evenly(300, 6), network, sample_weight=weights, **options)
        else:
            network = agents_on("cycle", 6, 6, n_rounds=4)
            found = kmeans_features(X, network, sample_weight=weights, **options)
    unit = np.ones(6)
    if scale == "standard":
        unit = np.sqrt(np.cov(X.T, aweights=weights, ddof=0).diagonal())
    far = (((X[:, None] - found.centres) / unit) ** 2).sum(axis=2)
    np.testing.assert_array_equal(found.labels, far.argmin(axis=1))
    assert found.inertia == pytest.approx(far.min(axis=1) @ weights, rel=1e-10)
    np.testing.assert_allclose(found.counts, np.bincount(found.labels, weights, 7))
    assert 0 <= found.disagreement < 1
    assert np.abs(found.root_inertia / found.inertia - 1).max() > 1e-9


@pytest.mark.parametrize("method", ["rows", "lloyd", "grid"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_standardized_features(digits, method, dtype):
    X = digits[:, 16:48] * np.geomspace(1e-2, 1e2, 32) + 5
    unit, middle = X.std(axis=0), X.mean(axis=0)
    unit[unit == 0] = 1
    Z = (X - middle) / unit
    rows = start(X, 5, 0)
    model = DistributedKMeans(5, scale="standard", init=X[rows], random_state=0)
    if method != "rows":
        model.set_params(split="features", agents=4, method=method)
    if method == "grid":
        model.set_params(init="k-means++")
    labels = model.fit(X.astype(dtype)).labels_
    loose = 1e-9 if dtype is np.float64 else 1e-4
    if method != "grid":
        wanted = lloyd(Z, rows)
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
    with pytest.raises(InputError, match="scale must be one of none, standard"):
        DistributedKMeans(5, scale="robust").fit(X)


@pytest.mark.parametrize("compress", [None, "natural:12bits"])
def test_what_standard_deviations_and_units_send(compress):
    X = np.random.default_rng(0).normal(size=(40, 3))
    network = workers_on("star", 4, compress=compress)
    plain, scaled = (
        kmeans_rows(X, evenly(40, 4), network, n_clusters=2, init=[0, 1], scale=scale)
        for scale in ("none", "standard")
    )
    # Weights, values and squares up and down, without a codec; then the units to all.
    assert plain.communication["by_kind"]["setup"]["bytes"] == 8 * (8 * 7)
    assert scaled.communication["by_kind"]["setup"]["bytes"] == 8 * (8 * 7) + 4 * (6 * 8)
    np.testing.assert_allclose(plain.deviations, X.std(axis=0))
    assert plain.scaling is None
    np.testing.assert_allclose(scaled.scaling.scale, X.std(axis=0))
