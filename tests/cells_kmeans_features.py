"""k-means over features, every way (see test_table.py)."""

from functools import partial

import numpy as np
import pytest

from vpem import InputError, connect, kmeans_features, make_graph
from vpem._core.threads import one_blas_thread
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.fits.spread import own_columns
from vpem.network.partition import from_lists
from vpem.sums.connect import spread

from .cells_support import files_of_columns, first_of, opened, over_members
from .kmeans_support import (
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
from .resume_support import check_resumes
from .thread_engine import together

NAMES = ("a", "b", "c", "d")
FEATURES = ("u", "v", "w", "x", "y", "z")
HELD = from_lists([[0, 4], [1], [3], [2, 5]], 6, NAMES)

MASKED = {"network": {"secure_sum": True}}
MASKED_TREE = {"topology": "path", "network": MASKED["network"] | {"sum": "tree"}}
GRID = {"method": "grid", "init": "k-means++"}


def cluster(data=X, topology="star", network=None, engine=None, held=HELD, **options):
    """Four agents on the ranks of an engine or in one process."""
    options = {"n_clusters": 4, "init": START, "n_threads": 1, **options}
    joined = connect(make_graph(topology, 4), held, **(network or {}))
    if engine is None:
        return kmeans_features(data, joined, **options)
    ranked = spread(joined, engine)
    columns = own_columns(ranked)
    if not len(columns):
        return kmeans_features(None, ranked, **options)
    own = data[:, columns] if isinstance(data, np.ndarray) else data.select(columns.tolist())
    return kmeans_features(own, ranked, **options)


LAWS = Ways(cluster, (*KEPT, {"batch_size": 50, "network": {"compress": "natural:12bits"}}))


def compressed(folder):
    LAWS.compressed(folder)
    for topology in ("star", "cycle"):
        network = {"compress": "natural:12bits"}
        is_at_rest(cluster(topology=topology, network=network, batch_size=50))


def masked(folder):
    """Inertia to 1e-12 of the plain one, in any units, and the same bits along a tree."""
    for size in (1e-30, 1e12):
        for how in ({"init": "k-means++"}, {"batch_size": 50}):
            wanted = cluster(size * X, **how)
            found, along = (cluster(size * X, **how, **way) for way in (MASKED, MASKED_TREE))
            np.testing.assert_array_equal(found.labels, wanted.labels)
            np.testing.assert_allclose(found.history, wanted.history, 1e-12)
            np.testing.assert_array_equal(along.history, found.history)
    check_resumes(lambda saver: cluster(**MASKED_TREE, saver=saver))
    with one_blas_thread():
        for run, way in ((partial(together, 2), MASKED), (partial(over_members, 4), MASKED_TREE)):
            ours = first_of(run(lambda engine, way=way: cluster(engine=engine, **way)))
            theirs = cluster(**way)
            np.testing.assert_array_equal(ours.history, theirs.history)
            assert ours.communication == theirs.communication
    for how in (GRID, {"participation": 0.5}):
        with pytest.raises(InputError, match=r"^secure_sum"):
            cluster(**MASKED, **how)
    tells_of_far_values(lambda data: cluster(data, **MASKED, init="k-means++"), 1e6)


def disk(folder):
    path = folder / "data.h5"
    write_dataset(path, Dataset(X, FEATURES, partition=HELD))
    stored = read_dataset(path, memory_limit=2 * X.nbytes - 1).X
    assert not isinstance(stored, np.ndarray)
    same(cluster(stored), cluster())


def parties(folder):
    files = files_of_columns(folder, X, FEATURES, HELD, NAMES)
    report = in_shell(*files, "--parties", "--split", "features")
    np.testing.assert_allclose(report["history"], cluster().history, 1e-10)
    assert report["agent_names"] == list(NAMES)
    assert report["alignment"]["rows"] == len(X)


FEW = ("few rounds", "disk")
"""Ways over more ranks than there are agents."""


def in_processes(folder, compare):
    """Compare clusterings in several processes with one process."""
    files = files_of_columns(folder, X, FEATURES, HELD, NAMES)
    write_dataset(folder / "data.h5", Dataset(X, FEATURES))
    stored = read_dataset(folder / "data.h5", memory_limit=1).X.in_reads_of(80)
    ways = {
        **OVER_RANKS,
        "consensus": {"topology": "cycle", "network": {"hops": 1}},
        "grid": GRID,
        "grid of hubs": {**GRID, "sample_weight": WEIGHTS, "scale": "standard"},
        "disk": {"data": stored, "max_iter": 4, "network": {"hops": 1}},
    }

    def of_parties(engine):
        joined = opened(engine, files, NAMES, rows=False)
        network = spread(connect(make_graph("star", 4), joined.partition), engine)
        return kmeans_features(joined.X, network, n_clusters=4, init=START, n_threads=1)

    compare(of_parties, ways, FEW)


def mpi(folder):
    in_processes(folder, LAWS.over_ranks)


def tls(folder):
    in_processes(folder, LAWS.over_members)


CELLS = LAWS.cells(
    masked=masked, compressed=compressed, disk=disk, parties=parties, mpi=mpi, tls=tls
)
