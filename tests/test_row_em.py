"""Rows that workers hold: which worker has which, and EM over them as over pooled rows.

Ways, engines and splits are cells of the table (cells_em_rows.py).
"""

import json
import warnings

import numpy as np
import pytest

from vpem import InputError, Kinds, connect, fit_fedem, fit_vpem, make_graph
from vpem.errors import FileError, NotConvergedWarning, VpemError, VpemWarning
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.networks import read_workers
from vpem.fits.rows import fit_em
from vpem.network.ledger import Ledger
from vpem.network.partition import Blocks, Workers, by_label, contiguous, evenly, from_worker_of_row
from vpem.settings import COVARIANCE_TYPES
from vpem.steps import em
from vpem.sums.connect import connect_workers
from vpem.sums.counted import add_vectors
from vpem.terms.features import FeatureTerms
from vpem.terms.row_statistics import WorkerTerms
from vpem.terms.statistics import Message
from vpem.terms.units import Scaling

from .tables import each, each_once, over

ROWS = [3, 57, 110]

# ---- who holds which rows ------------------------------------------------------------------------


def test_workers_are_runs_of_rows_or_those_of_a_label_or_named_row_by_row():
    workers = evenly(10, 3)
    assert [part.tolist() for part in workers.rows] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert workers.names == ("worker 0", "worker 1", "worker 2")
    assert workers.counts.tolist() == [4, 3, 3]
    assert workers.runs == [slice(0, 4), slice(4, 7), slice(7, 10)]
    assert workers.worker_of.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    labels = np.array(["b", "a", "b", "a", "a", "b"])
    unlike = by_label(labels, 2)
    assert [set(labels[part]) for part in unlike.rows] == [{"a"}, {"b"}]
    assert all((np.diff(part) > 0).all() for part in unlike.rows)
    named = from_worker_of_row(["x", "y", "x"])
    assert (named.names, named.rows[0].tolist()) == (("x", "y"), [0, 2])
    numbered = from_worker_of_row([3, 0, 0, 1])
    assert numbered.counts.tolist() == [2, 1, 0, 1]
    assert from_worker_of_row([0, 0], ["a", "b"]).counts.tolist() == [2, 0]
    assert numbered.of_rows(np.array([0, 2])).counts.tolist() == [1, 0, 0, 1]


def of_rows(*rows):
    parts = tuple(np.array(part, dtype=np.intp) for part in rows)
    return Workers(parts, tuple(f"{n}" for n in range(len(parts))))


@each(
    ("make", "given", "message"),
    [
        (from_worker_of_row, ([0, -1],), "row 1 has worker -1"),
        (from_worker_of_row, ([0, 5],), "row 1 is given to worker 5, but there are 2 rows"),
        (from_worker_of_row, ([0, 2], ["a", "b"]), "to worker 2, but there are 2 names"),
        (from_worker_of_row, ([0.5, 1],), "must be numbers from 0, or names"),
        (from_worker_of_row, ([],), "must be a list, one a row"),
        (from_worker_of_row, ([[0]],), "must be a list, one a row"),
        (from_worker_of_row, ([0, 1], ["a", "a"]), "two workers are called 'a'"),
        (of_rows, ([0, 1], [1]), "each row must be held by exactly one worker"),
        (of_rows, ([1, 0], [2]), "must be increasing"),
        (of_rows, ([0, 3],), "each row must be held by exactly one worker"),
        (of_rows, ([],), "the workers hold no rows"),
        *((evenly, (10, number), "workers") for number in (0, -1, 2.5, "3", 11)),
        *((by_label, (np.zeros(10), number), "workers") for number in (0, -1, 2.5, "3", 11)),
        (connect_workers, (3,), r"connect_workers takes a vpem.Graph"),
    ],
)
def test_what_divides_no_rows_is_refused(make, given, message):
    with pytest.raises(InputError, match=message):
        make(*given)


def test_workers_of_files(tmp_path):
    file = tmp_path / "w.json"
    file.write_text(json.dumps({"east": [2, 0], "west": [], "north": [1]}))
    workers = read_workers(file, 3)
    assert workers.names == ("east", "west", "north")
    assert [part.tolist() for part in workers.rows] == [[0, 2], [], [1]]
    kept = from_worker_of_row([1, 0, 1], ["a", "b", "idle"])
    write_dataset(tmp_path / "d.h5", Dataset(np.eye(3), ("x", "y", "z"), workers=kept))
    found = read_dataset(tmp_path / "d.h5").workers
    assert (found.names, found.worker_of.tolist()) == (kept.names, [1, 0, 1])
    with pytest.raises(InputError, match="the workers hold 3 rows, but X has 2"):
        Dataset(np.ones((2, 1)), ("x",), workers=kept)
    with pytest.raises(FileError, match="does not exist"):
        read_workers(tmp_path / "none.json", 3)


@each(
    ("text", "message"),
    [
        ("[1]", "must hold"),
        ('{"a": 1}', "must hold"),
        ('{"a": [0, 1, 2, 3]}', "rows are numbered 0 to 2"),
        ('{"a": [true]}', "has row True"),
        ('{"a": [0, 1], "b": [1, 2]}', "row 1 is given twice, last to 'b'"),
        ('{"a": [0, 2]}', "gives row 1 to no worker"),
        *((text, "is not a JSON file") for text in ("{", "[" * 100_000, '{"a": NaN}')),
        ('{"a": [0, 1], "a": [2]}', "is not a JSON file"),
    ],
)
def test_files_that_say_nothing_of_workers(text, message, tmp_path):
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(VpemError, match=message):
        read_workers(tmp_path / "w.json", 3)


@each(
    ("topology", "how"),
    [
        ("star", {}),
        ("cycle", {}),
        ("cycle", {"consensus": "rounds"}),
        ("path", {"n_rounds": 40}),
        ("complete", {"link_failure": 0.2}),
    ],
)
def test_vectors_are_added(topology, how):
    for n in (5, 1) if topology == "star" else (5,):
        network = connect_workers(make_graph(topology, n), **how)
        ledger = Ledger(network.graph)
        values = np.random.default_rng(0).normal(size=(n, 7))
        sums = add_vectors(network.total.counted_on(ledger), values)
        assert sums.shape == (network.total.n_roots, 7)
        np.testing.assert_allclose(sums, np.tile(values.sum(axis=0), (len(sums), 1)), atol=1e-4)
        if topology == "star":
            sent, n_sent = ledger.summary()["by_kind"]["server"], 2 * n * (n > 1)
            assert (sent["messages"], sent["bytes"]) == (n_sent, n_sent * 7 * 8)


# ---- EM over them --------------------------------------------------------------------------------


def split(X, how):
    if isinstance(how, int):
        return evenly(len(X), how)
    if how == "unlike":
        return by_label((X[:, 0] > 0).astype(int), 4)
    if how == "uneven":
        # One worker holds nothing, one a single row, the last the rest, in a mixed order.
        of = np.full(len(X), 3)
        of[:40], of[41], of[60:70] = 0, 2, 0
        return from_worker_of_row(of, ["a", "b", "c", "d"])
    return from_worker_of_row(np.random.default_rng(0).integers(0, 5, len(X)))


def fit(X, workers, topology="star", n_iter=25, init=ROWS, network=None, **options):
    workers = split(X, workers) if isinstance(workers, int | str) else workers
    joined = connect_workers(make_graph(topology, workers.n_workers), **(network or {}))
    common = {"n_components": 3, "init": init, "tol": 0.0, "max_iter": n_iter}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        return fit_em(X, workers, joined, **{**common, **options})


def pooled(X, n_iter=25, init=ROWS, **options):
    network = connect(make_graph("star", 1), contiguous(X.shape[1], 1), hops=0)
    common = {"n_components": 3, "init": init, "tol": 0.0, "max_iter": n_iter}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        return fit_vpem(X, network, **{**common, **options})


def assert_same(one, two, tolerance=1e-10):
    scale = np.abs(two.history).max()
    assert np.abs(one.history - two.history[:, :1]).max() <= tolerance * scale
    assert abs(one.log_likelihood - two.log_likelihood) <= tolerance * abs(two.log_likelihood)
    for name in ("weights", "means", "covariances"):
        mine, other = getattr(one.mixture, name), getattr(two.mixture, name)
        np.testing.assert_allclose(mine, other, rtol=1e3 * tolerance, atol=1e3 * tolerance)


@each_once(kind=COVARIANCE_TYPES, how=[3, 7, 150, "uneven", "mixed", "unlike"])
def test_workers_fit_what_pooled_rows_do(kind, how, overlapping):
    X = overlapping(0, 150, 4)
    ours = fit(X, how, covariance_type=kind, n_threads=2)
    assert_same(ours, pooled(X, covariance_type=kind))
    assert ours.history.shape == (25, 1)


@over(kind=COVARIANCE_TYPES, path=["operator", "rounds"])
def test_peers_differ_by_consensus_error_only(kind, path, overlapping):
    X = overlapping(2, 150, 4)
    network = {"consensus": path, "consensus_tol": 1e-9}
    ours = fit(X, "uneven", "path", network=network, covariance_type=kind, n_iter=8)
    whole = pooled(X, covariance_type=kind, n_iter=8)
    assert (len(ours.mixtures), ours.history.shape) == (4, (8, 4))
    for one in ours.mixtures:
        np.testing.assert_allclose(one.means, whole.mixture.means, atol=1e-6)
    assert ours.network.consensus_error <= 1e-9


def test_few_rounds_still_give_covariances(overlapping):
    """A root's sums are those of rows that weigh other than they do: still a mixture's."""
    with pytest.warns(VpemWarning, match="consensus"):
        ours = fit(
            overlapping(4, 120, 4), 8, "cycle", network={"n_rounds": 2, "acceleration": "none"}
        )
    assert np.isfinite(ours.history).all()
    for mixture in ours.mixtures:
        assert np.linalg.eigvalsh(mixture.assembled_covariances).min() > 0


@over(topology=["star", "cycle"], init=["random", "k-means++", "kmeans"])
def test_a_start_is_that_of_pooled_rows_over_any_split(topology, init, overlapping, monkeypatch):
    for module in ("steps.starts", "fits.local_rows"):  # so that it matters when k-means stops
        monkeypatch.setattr(f"vpem.{module}.LLOYD_TOLERANCE", 3e-3)
    X = overlapping(6, 200, 3)
    whole = pooled(X, init=init, n_iter=3, seed=3)
    for n in (1, 5):
        found = fit(X, n, topology if n > 2 else "star", init=init, n_iter=3, seed=3)
        assert found.init_rows == whole.init_rows
        assert_same(found, whole, 1e-10 if topology == "star" else 1e-5)


def test_from_a_model_and_with_restarts(overlapping):
    X = overlapping(8, 200, 3)
    first = fit(X, 5, n_iter=3)
    again = fit(X, 5, init=first.mixture, n_iter=4)
    assert again.history[0, 0] / 200 == pytest.approx(first.log_likelihood)
    assert again.init_rows is None
    one, best = (fit(X, 4, init="random", n_init=n, n_iter=15, seed=0) for n in (1, 4))
    assert best.log_likelihood >= one.log_likelihood - 1e-12


@each("topology", ["star", "cycle"])
def test_a_component_that_collapses_is_placed_anew_alike(topology, overlapping):
    X = overlapping(0, 200, 4)
    X[:3] = 40.0
    with pytest.warns(VpemWarning, match="reinitialised"):
        ours = fit(X, 5, topology, init=[0, 60, 120], reg_covar=0.0, n_iter=40)
    with pytest.warns(VpemWarning, match="reinitialised"):
        whole = pooled(X, init=[0, 60, 120], reg_covar=0.0, n_iter=40)
    assert [one.row for one in ours.recoveries] == [one.row for one in whole.recoveries]
    for mixture in ours.mixtures:
        np.testing.assert_allclose(mixture.means, whole.mixture.means, atol=1e-3)


# ---- messages ------------------------------------------------------------------------------------


@each(
    ("kind", "numbers"),
    [("full", 3 + 3 * 4 + 3 * 10), ("tied", 3 + 12 + 10), ("diag", 3 + 12 + 12)],
)
def test_what_a_star_and_a_cycle_send(kind, numbers, overlapping):
    """One vector up and its sum down an E-step; n iterations have n + 1 of them."""
    X, how = overlapping(0, 150, 4), {"covariance_type": kind, "n_iter": 7}
    ours = fit(X, 5, **how)
    counted = ours.communication["by_kind"]["server"]
    assert counted["messages"] == 8 * 2 * 5
    assert counted["bytes"] == 8 * 2 * 5 * 8 * (numbers + 1)
    assert ours.communication["bytes_by_iteration"][-1] < ours.communication["bytes"]
    counted = fit(X, 5, "cycle", network={"n_rounds": 11}, **how).communication["by_kind"]["estep"]
    assert counted["messages"] == 8 * 11 * 10
    assert counted["bytes"] == 8 * 11 * 10 * 8 * (numbers + 1)


@each("kind", COVARIANCE_TYPES)
def test_messages_are_read_as_they_were_written(kind, overlapping):
    X = overlapping(0, 60, 4)
    terms = FeatureTerms(X, Blocks.one(4), kind, scaling=Scaling.none(4))
    centres = terms.at_rows(np.array([0, 20, 40]))
    start = terms.start(centres)
    layout = Message(terms, centres + 0.3)
    rows = WorkerTerms(terms, [slice(0, 60)], np.array([60]), terms.rows)
    message = rows.message(0, start, terms.prepare(start), layout)
    assert message.shape == (layout.size,)
    statistics, found = layout.unpacked(message)
    np.testing.assert_allclose(layout.packed(statistics, found), message, rtol=1e-12)
    direct = terms.empty(start.means, 1)
    total = em.expect(terms, connect(make_graph("star", 1), contiguous(4, 1), hops=0).total, start,
                      terms.prepare(start), direct)  # fmt: skip
    assert found + terms.log_constant == pytest.approx(total[0])
    one, two = terms.update(statistics), terms.update(direct)
    np.testing.assert_allclose(one.covariances, two.covariances, rtol=1e-9, atol=1e-12)


# ---- refusals ------------------------------------------------------------------------------------


def test_what_makes_no_sense_is_refused(overlapping):
    X, three = overlapping(0, 60, 3), connect_workers(make_graph("star", 3))
    hubs = connect(make_graph("cycle", 4), contiguous(4, 4), hops=1)
    squeezed = connect_workers(make_graph("star", 3), compress="float16")
    for rows, workers, network, sentence in (
        (60, evenly(50, 3), three, "the workers hold 50 rows, but the data have 60"),
        (60, evenly(60, 2), three, "the graph has 3 agents, but there are 2 workers"),
        (60, 2, three, r"workers must be vpem\.Workers, got int"),
        (60, evenly(60, 4), hubs, r"connect_workers, got one of vpem\.connect, whose hubs"),
        (60, evenly(60, 3), squeezed, "corrects this: vpem fedem --compress"),
        (3, evenly(3, 3), three, "components need at least as many rows"),
    ):
        with pytest.raises(InputError, match=sentence):
            fit_em(X[:rows], workers, network, n_components=4)


@each("door", [fit_em, fit_fedem])
def test_a_start_of_other_families_is_refused(overlapping, door):
    X = overlapping(0, 60, 2)
    X[:, 0] = np.abs(X[:, 0]).round()
    hubs = connect(make_graph("star", 2), contiguous(2, 2), hops=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        start = fit_vpem(X, hubs, n_components=2, kinds=Kinds(("poisson", "gaussian")), max_iter=1)
    with pytest.raises(InputError, match=r"families \(1 gaussian, 1 poisson\), but over rows"):
        door(X, evenly(60, 3), n_components=2, init=start.mixture)
