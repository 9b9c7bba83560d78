"""k-means over rows, every way (see test_table.py)."""

import numpy as np
import pytest

from vpem import connect_workers, kmeans_rows, make_graph
from vpem.errors import InputError
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.fits.local_rows import read_rows
from vpem.network.partition import evenly, from_worker_of_row
from vpem.sums.connect import spread_workers

from .cells_support import files_of_rows, opened
from .kmeans_support import (
    HOLES,
    KEPT,
    OVER_RANKS,
    START,
    WEIGHTS,
    Ways,
    X,
    in_shell,
    is_at_rest,
    same,
    tells_of_far_values,
)
from .over_sums import pooled
from .resume_support import check_resumes

NAMES = ("a", "b", "c", "d")
FEATURES = ("u", "v", "w", "x", "y", "z")
WORKERS = evenly(len(X), 4, NAMES)


def cluster(data=X, topology="star", network=None, engine=None, held=WORKERS, **options):
    """Four workers on the ranks of an engine or in one process."""
    options = {"n_clusters": 4, "init": START, "n_threads": 1, **options}
    joined = connect_workers(make_graph(topology, 4), **(network or {}))
    if engine is None:
        return kmeans_rows(data, held, joined, **options)
    ranked = spread_workers(joined, engine)
    own = [held.rows[worker] for worker in ranked.agents.own]
    if "sample_weight" in options:
        options["sample_weight"] = options["sample_weight"][
            np.concatenate([np.empty(0, dtype=np.intp), *own])
        ]
    data = read_rows(data, own) if isinstance(data, np.ndarray) else data.of_rows(own)
    return pooled(kmeans_rows(data, held, ranked, **options), held, engine)


LAWS = Ways(cluster, KEPT)


def absent(folder):
    LAWS.absent(folder)
    holes = {"data": HOLES, "missing": "marginalize", "init": "random"}
    weighed = {"sample_weight": WEIGHTS + 1, "batch_size": 60}
    compressed = {"compress": "natural:12bits"}
    for how in (
        {"participation": 0.4},
        {"participation": 0.4, "topology": "path", "network": {"sum": "tree"}, **weighed},
        {"topology": "complete", "network": {"agent_dropout": 0.2}},
        {"topology": "complete", "network": {"agent_dropout": 0.2}, **weighed},
        {"network": compressed, **weighed},
        {"topology": "cycle", "network": compressed},
    ):
        is_at_rest(cluster(**how, **holes), HOLES, how.get("sample_weight"))


def disk(folder):
    path = folder / "data.h5"
    write_dataset(path, Dataset(X, FEATURES))
    stored = read_dataset(path, memory_limit=2 * X.nbytes - 1).X
    assert not isinstance(stored, np.ndarray)
    stored = stored.in_reads_of(37)
    for how in ({}, {"topology": "cycle", "init": "k-means++", "scale": "standard"}):
        same(cluster(stored, **how), cluster(**how))
    mixed = from_worker_of_row(np.arange(len(X)) % 4, NAMES)
    same(cluster(stored, held=mixed), cluster(held=mixed))


MASKED = {"secure_sum": True}


def masked(folder):
    """As without masks, iteration by iteration; starts are at means of rows, and as good."""
    holes = {"data": HOLES, "missing": "marginalize"}
    weighed = {"sample_weight": 1e3 * WEIGHTS}
    for how in ({"scale": "standard"}, {"batch_size": 37}, weighed, holes | {"batch_size": 37}):
        start = cluster(network=MASKED, init="k-means++", max_iter=1, **how).centres
        same(cluster(network=MASKED, **{**how, "init": start}), cluster(**{**how, "init": start}))
    along = cluster(topology="path", network=MASKED | {"sum": "tree"}, init="k-means++")
    found = [cluster(network=MASKED, init="k-means++", seed=seed) for seed in range(3)]
    np.testing.assert_array_equal(along.centres, found[0].centres)
    usual = [cluster(init="k-means++", seed=seed).inertia for seed in range(3)]
    assert np.median([one.inertia for one in found]) < 1.01 * np.median(usual)
    for how, words in (
        ({}, "the holders of the rows to start at would have to show them"),
        ({"init": "random"}, "which starts at means of many rows"),
        ({"init": "k-means++", "participation": 0.5}, "differ by the terms of single ones"),
    ):
        with pytest.raises(InputError, match=words):
            cluster(network=MASKED, **how)
    again = {"init": "k-means++", "max_iter": 4}
    check_resumes(lambda saver: cluster(network=MASKED, saver=saver, **again))
    tells_of_far_values(lambda data: cluster(data, network=MASKED, **again), 1e7)


def parties(folder):
    report = in_shell(*files_of_rows(folder, X, FEATURES, WORKERS, NAMES), "--parties")
    np.testing.assert_allclose(report["history"], cluster().history, 1e-10)
    assert report["worker_names"] == list(NAMES)


FEW = ("weights", "disk", "masked")
"""Ways over more ranks than there are agents."""


def in_processes(folder, compare):
    """Compare clusterings in several processes with one process."""
    files = files_of_rows(folder, X, FEATURES, WORKERS, NAMES)
    write_dataset(folder / "data.h5", Dataset(X, FEATURES))
    stored = read_dataset(folder / "data.h5", memory_limit=1).X.in_reads_of(37)
    ways = {
        **OVER_RANKS,
        "consensus": {"topology": "cycle"},
        "missing, absent": {"data": HOLES, "missing": "marginalize", "participation": 0.5},
        "disk": {"data": stored, "init": "k-means++"},
        "masked": {
            "network": MASKED,
            "init": "k-means++",
            "batch_size": 60,
            "data": HOLES,
            "missing": "marginalize",
            "sample_weight": WEIGHTS,
            "scale": "standard",
        },
    }

    def of_parties(engine):
        joined = opened(engine, files, NAMES, rows=True)
        network = spread_workers(connect_workers(make_graph("star", 4)), engine)
        how = {"n_clusters": 4, "init": START, "n_threads": 1}
        found = kmeans_rows(joined.X, joined.workers, network, **how)
        return pooled(found, joined.workers, engine)

    compare(of_parties, ways, FEW)


def mpi(folder):
    in_processes(folder, LAWS.over_ranks)


def tls(folder):
    in_processes(folder, LAWS.over_members)


CELLS = LAWS.cells(
    masked=masked, absent=absent, disk=disk, parties=parties, mpi=mpi, tls=tls
)  # fmt: skip
