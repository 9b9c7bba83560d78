"""EM over rows, every way (see test_table.py)."""

from dataclasses import replace
from functools import partial

import h5py
import numpy as np
import pytest

from vpem import connect_workers, fit_em, make_graph
from vpem.errors import InputError, VpemWarning
from vpem.files.matrix import FileMatrix
from vpem.fits.local_rows import read_rows
from vpem.network.partition import Workers, evenly
from vpem.sums.connect import spread_workers

from .cells_support import (
    PENALISED,
    compare_over,
    em_by_hand,
    files_of_rows,
    keys_exchanged,
    lost_messages,
    opened,
    over_members,
    report_of,
    same,
)
from .cli_support import overlapping
from .missing_support import observed_scores, with_holes
from .resume_support import check_resumes
from .thread_engine import together

NAMES = ("a", "b", "c", "d")
FEATURES = ("u", "v", "w", "x")
X, _ = overlapping(120, 4, 3, seed=4)
HOLES = with_holes(X, 1)
WEIGHTS = np.random.default_rng(2).integers(0, 3, len(X)).astype(float)
START = [3, 44, 77]

WORKERS = evenly(len(X), 4, NAMES)
DEALT = Workers(tuple(np.arange(first, len(X), 4) for first in range(4)), NAMES)

MISSING = {"data": HOLES, "missing": "marginalize"}


def fit(topology="star", network=None, data=X, workers=WORKERS, engine=None, **options):
    """Four workers on the ranks of an engine or in one process."""
    joined = connect_workers(make_graph(topology, 4), **(network or {}))
    options = {"n_components": 3, "max_iter": 6, "tol": 0.0, "init": START, **options}
    if engine is None:
        return fit_em(data, workers, joined, n_threads=1, **options)
    ranked = spread_workers(joined, engine)
    own = [workers.rows[worker] for worker in ranked.agents.own]
    if "sample_weight" in options:
        options["sample_weight"] = read_rows(options["sample_weight"], own)
    part = data.of_rows(own) if isinstance(data, FileMatrix) else read_rows(data, own)
    return fit_em(part, workers, ranked, n_threads=1, **options)


def server(folder):
    history, means = em_by_hand(X, START, [np.arange(4)], 6)
    for workers in (WORKERS, DEALT):
        found = fit(workers=workers, reg_covar=1e-6)
        np.testing.assert_allclose(found.history[:, 0], history, 1e-10)
        np.testing.assert_allclose(found.mixture.assembled_means, means, 1e-8, 1e-8)


def tree(folder):
    found, wanted = fit("path", {"sum": "tree"}), fit()
    same(found, wanted)
    assert len(found.mixtures) == 1


def consensus(folder):
    found, wanted = fit("cycle", {"consensus_tol": 1e-12}), fit()
    assert len(found.mixtures) == 4
    for mixture in found.mixtures:
        np.testing.assert_allclose(mixture.means, wanted.mixture.means, 1e-7)
    np.testing.assert_allclose(found.history, wanted.history + 0 * found.history, 1e-8)


def links(folder):
    """Rounds go on without links that are down, and come to the same optimum."""
    ended = {"tol": 1e-9, "max_iter": 400}
    faults = {"link_failure": 0.2, "stragglers": 0.1, "n_rounds": 40}
    found, wanted = fit("complete", faults, **ended), fit(**ended)
    sent = found.communication["by_kind"]["estep"]
    assert lost_messages(sent, found.network.graph.n_edges)
    np.testing.assert_allclose(found.log_likelihood, wanted.log_likelihood, atol=1e-6)
    np.testing.assert_allclose(found.mixture.means, wanted.mixture.means, atol=1e-3)


def absent(folder):
    """Who is silent counts with what was heard of it last: fixed points are those of EM."""
    ended = {"tol": 1e-8, "max_iter": 400}
    wanted, faults = fit(**ended | {"tol": 1e-9}), {"agent_dropout": 0.2, "n_rounds": 20}
    for more in ({}, {"batch_size": 10}):
        found = fit("complete", faults, **ended, **more)
        assert found.converged
        assert found.network.faults.agent_dropout == 0.2
        np.testing.assert_allclose(found.log_likelihood, wanted.log_likelihood, atol=1e-6)
        np.testing.assert_allclose(found.mixture.means, wanted.mixture.means, atol=1e-3)
    silent = fit("complete", {**faults, "seed": 1}).history
    assert np.isnan(silent).any()
    check_resumes(lambda saver: fit("complete", faults, saver=saver))


def batches(folder):
    """All rows of a worker at once are EM; fewer come to the same optimum, and F never falls."""
    same(fit(batch_size=30, workers=DEALT), fit())
    same(fit("cycle", batch_size=99), fit("cycle"))
    ended = {"tol": 1e-5, "max_iter": 200}
    wanted = fit(**ended)
    for topology in ("star", "cycle"):
        found = fit(topology, **ended, batch_size=15)
        np.testing.assert_allclose(found.log_likelihood, wanted.log_likelihood, atol=1e-3)
    for way in ({}, MISSING, {"sample_weight": WEIGHTS, "init": "kmeans"}):
        energy = fit(**way, batch_size=8).free_energy
        assert np.diff(energy).min() > -1e-10 * abs(energy[0])
    moving = fit(batch_size=8, step_size=0.7, init=wanted.mixture)
    np.testing.assert_allclose(moving.log_likelihood, wanted.log_likelihood, atol=0.02)


def missing(folder):
    same(fit(missing="marginalize"), fit())
    found = fit(**MISSING)
    np.testing.assert_allclose(
        found.log_likelihood, observed_scores(found.mixture, HOLES).mean(), 1e-10
    )
    assert (np.diff(found.history[:, 0]) > 0).all()
    same(fit(**MISSING, workers=DEALT), found)


def weights(folder):
    """An integer weight equals as many copies of a row."""
    weighed = {"init": np.flatnonzero(WEIGHTS)[[3, 30, 60]], "sample_weight": WEIGHTS}
    rows = np.repeat(np.arange(len(X)), WEIGHTS.astype(int))
    start = [int(np.argmax(rows == row)) for row in weighed["init"]]
    copies = fit(data=X[rows], workers=evenly(len(rows), 4), init=start)
    same(fit(**weighed), copies)
    same(fit("cycle", {"consensus_tol": 1e-12}, **weighed), copies, 1e-8)


def stored(folder):
    """The data in a file, of which a few rows are read at a time."""
    with h5py.File(folder / "x.h5", "w") as file:
        file["X"] = X
    return FileMatrix(folder / "x.h5").in_reads_of(13)


def disk(folder):
    matrix = stored(folder)
    for workers in (WORKERS, DEALT):
        for start in (START, "kmeans"):
            same(fit(data=matrix, workers=workers, init=start), fit(workers=workers, init=start))
    same(fit(data=matrix, batch_size=9), fit(batch_size=9))


def checkpoint(folder):
    for topology in ("star", "cycle"):
        check_resumes(lambda saver, where=topology: fit(where, saver=saver))
    for way in (MISSING, {"step_size": 0.7, "topology": "cycle"}):
        check_resumes(lambda saver, way=way: fit(**way, batch_size=15, max_iter=3, saver=saver))
    check_resumes(lambda saver: fit(**PENALISED, saver=saver))


MASKED = {"secure_sum": True}
MASKED_HOLES = MISSING | {"sample_weight": WEIGHTS, "init": "kmeans", "batch_size": 15}


def masked(folder):
    """As without masks to 1e-8 nats a sample, features of any size beside each other; a tree, too.

    Where no row may be shown a start that would need one is refused, and another is as good.
    """
    sizes = np.array([1e-6, 1e6, 1.0, 1e3])
    units = {"data": X * sizes + 5 * sizes}
    holes = {"data": units["data"] + 0 * HOLES, "missing": "marginalize"}
    for how in (
        {"batch_size": 9, **units},
        {"covariance_type": "tied", "sample_weight": WEIGHTS, "workers": DEALT, **units},
        {"covariance_type": "diag", "sample_weight": 1e4 * WEIGHTS, "scale": "standard", **holes},
        {"covariance_type": "full", "batch_size": 9, "max_iter": 4, **holes},
    ):
        start = fit(network=MASKED, init="k-means++", **{**how, "max_iter": 1}).mixture
        found = fit(network=MASKED, **{**how, "init": start})
        wanted = fit(**{**how, "init": start})
        apart = np.abs(found.history - wanted.history) / wanted.total_weight
        assert apart.max() < 1e-8
        assert keys_exchanged(found, wanted)
        along = fit("path", MASKED | {"sum": "tree"}, **{**how, "init": start})
        np.testing.assert_array_equal(along.history, found.history)
    # A model of which what is expected of missing values lies far beyond all rows.
    slope = np.eye(4)
    slope[0, 1] = 100.0
    start = replace(fit().mixture, covariances=np.tile((slope @ slope.T).ravel(), 3))
    far = {"data": HOLES, "missing": "marginalize", "covariance_type": "full", "init": start}
    found, wanted = fit(network=MASKED, **far).history, fit(**far).history
    np.testing.assert_allclose(found / len(X), wanted / len(X), rtol=0, atol=1e-8)
    ended = {"tol": 1e-5, "max_iter": 300, "init": "kmeans"}
    drawn = [fit(network=MASKED, seed=seed, workers=DEALT, **ended) for seed in range(3)]
    usual = [fit(seed=seed, **ended).log_likelihood for seed in range(3)]
    assert max(one.log_likelihood for one in drawn) > max(usual) - 1e-3
    assert drawn[0].init_rows is None
    for how, words in MASKED_REFUSED:
        with pytest.raises(InputError, match=words):
            fit(network=MASKED, **how)
    blank = {"data": np.where(np.arange(len(X))[:, None] % 40 == 7, np.nan, HOLES), "max_iter": 1}
    with pytest.warns(VpemWarning, match="3 of 120 rows have no values"):
        found = fit(network=MASKED, workers=DEALT, init="kmeans", missing="marginalize", **blank)
    assert found.total_weight == 117
    check_resumes(lambda saver: fit(network=MASKED, **MASKED_HOLES, max_iter=2, saver=saver))


MASKED_REFUSED = [
    ({}, "the holders of the rows to start at would have to show them to all"),
    ({"init": "random"}, "take init='kmeans', which starts at means of many rows"),
    ({"init": "kmeans", "batch_size": 4}, "so few rows .* take at least 5"),
    ({"workers": Workers((*WORKERS.rows[:0], np.arange(60), np.arange(60, len(X)),
                          np.arange(0), np.arange(0)), NAMES)}, "got 2: with two each could"),
]  # fmt: skip


def parties(folder):
    words = ["--init-rows", "3,44,77", "--max-iter", 6, "--tol", 0, "-k", 3]
    files = files_of_rows(folder, X, FEATURES, WORKERS, NAMES)
    report = report_of("fit", *files, "--parties", "--split", "rows", *words)
    np.testing.assert_allclose(report["history"], fit().history, 1e-10)
    assert report["worker_names"] == list(NAMES)


OVER_RANKS = {
    "tree": {"topology": "path", "network": {"sum": "tree"}},
    "links": {"topology": "complete", "network": {"link_failure": 0.1, "n_rounds": 8}},
    "absent": {"topology": "complete", "network": {"agent_dropout": 0.2, "n_rounds": 8}},
    "batches": {"batch_size": 15, "workers": DEALT},
    "stochastic": {
        "topology": "cycle",
        "network": {"n_rounds": 8},
        "batch_size": 15,
        "step_size": 0.7,
    },
    "missing": MISSING | {"workers": DEALT, "batch_size": 15},
    "penalty": PENALISED,
    "weights": {"sample_weight": WEIGHTS, "workers": DEALT, "init": "kmeans"},
    "weights of rows that miss values": MISSING | {"sample_weight": WEIGHTS, "init": "k-means++"},
    "masked": MASKED_HOLES | {"network": MASKED, "workers": DEALT, "max_iter": 2},
    "masked tree": {"topology": "path", "network": MASKED | {"sum": "tree"}, "init": "kmeans"},
}


def mpi(folder):
    in_processes(folder, partial(together, 2), OVER_RANKS)


def tls(folder):
    few = ("weights of rows that miss values", "masked")
    ways = {way: OVER_RANKS[way] for way in few}
    in_processes(folder, partial(over_members, 4), ways)


def in_processes(folder, run, ways):
    files, matrix = files_of_rows(folder, X, FEATURES, WORKERS, NAMES), stored(folder)

    def of_parties(engine):
        held = opened(engine, files, NAMES, rows=True)
        network = spread_workers(connect_workers(make_graph("star", 4)), engine)
        how = {"n_components": 3, "max_iter": 6, "tol": 0.0, "init": START, "n_threads": 1}
        return fit_em(held.X, held.workers, network, **how)

    ways = [{"max_iter": 3} | how for how in (*ways.values(), {"data": matrix, "init": "kmeans"})]
    compare_over(run, fit, ways, of_parties)


CELLS = {
    "server": server,
    "tree": tree,
    "consensus": consensus,
    "compressed": lambda folder: fit(network={"compress": "qsgd:8bits"}),
    "absent": absent,
    "links": links,
    "batches": batches,
    "missing": missing,
    "disk": disk,
    "weights": weights,
    "checkpoint": checkpoint,
    "masked": masked,
    "parties": parties,
    "mpi": mpi,
    "tls": tls,
}
