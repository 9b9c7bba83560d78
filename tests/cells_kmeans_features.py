"""k-means over features, every way (see test_table.py)."""

import numpy as np

from vpem import connect, kmeans_features, make_graph
from vpem.engines.one_process import OneProcess
from vpem.engines.placement import Placement
from vpem.files.datasets import Dataset, read_dataset, write_dataset
from vpem.files.parties.joining import join_parties
from vpem.files.parties.manifest import Party
from vpem.fits.spread import own_columns
from vpem.network.holdings import from_lists
from vpem.sums.spread import spread

from .kmeans_support import START, WEIGHTS, X, first_of, in_shell, is_lloyd, same
from .resume_support import check_resumes
from .thread_engine import together

NAMES = ("a", "b", "c", "d")
FEATURES = ("u", "v", "w", "x", "y", "z")
HELD = from_lists([[0, 4], [1], [3], [2, 5]], 6, NAMES)

GRID = {"method": "grid", "init": "k-means++"}


def cluster(data=X, topology="star", network=None, engine=None, held=HELD, **options):
    """Four agents on the ranks of an engine or in one process."""
    options = {"n_clusters": 4, "init": START, "n_threads": 1, **options}
    joined = connect(make_graph(topology, 4), held, **(network or {}))
    if engine is None:
        return kmeans_features(data, joined, **options)
    ranked = spread(joined, engine)
    columns = own_columns(ranked)
    return kmeans_features(data[:, columns] if len(columns) else None, ranked, **options)


def server(folder):
    is_lloyd(cluster(), X, START)


def consensus(folder):
    found, wanted = cluster(topology="cycle", network={"consensus_tol": 1e-12}), cluster()
    for name in ("history", "centres", "distances"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), 1e-9)
    np.testing.assert_array_equal(found.labels, wanted.labels)


def tree(folder):
    for topology in ("path", "geometric"):
        same(cluster(topology=topology, network={"sum": "tree"}), cluster())


def weights(folder):
    start = np.flatnonzero(WEIGHTS)[[0, 30, 60, 90]]
    found = cluster(init=start, sample_weight=WEIGHTS)
    is_lloyd(found, X, start, WEIGHTS)


def disk(folder):
    path = folder / "data.h5"
    write_dataset(path, Dataset(X, FEATURES, partition=HELD))
    stored = read_dataset(path, memory_limit=2 * X.nbytes - 1).X
    assert not isinstance(stored, np.ndarray)
    same(cluster(stored), cluster())


def checkpoint(folder):
    for topology in ("star", "cycle"):
        check_resumes(lambda saver, where=topology: cluster(topology=where, saver=saver))


def shared(folder):
    """A file of each party."""
    files = []
    for name, columns in zip(NAMES, HELD.features, strict=True):
        files.append(folder / f"{name}.h5")
        names = tuple(FEATURES[column] for column in columns)
        write_dataset(files[-1], Dataset(X[:, columns], names))
    return files


def parties(folder):
    report = in_shell(*shared(folder), "--parties", "--split", "features")
    np.testing.assert_allclose(report["history"], cluster().history, 1e-10)
    assert report["agent_names"] == list(NAMES)
    assert report["alignment"]["rows"] == len(X)


OVER_RANKS = {
    "server": {},
    "consensus": {"topology": "cycle", "network": {"hops": 1}},
    "few rounds": {"topology": "path", "network": {"n_rounds": 5, "acceleration": "none"}},
    "one round": {"topology": "complete"},
    "start": {"init": "k-means++", "n_init": 2, "scale": "standard"},
    "centres": {"init": X[START] + 0.1, "topology": "cycle"},
    "empty": {"init": X[START] + 99.0 * np.arange(4)[:, None], "topology": "cycle"},
    "weights": {"sample_weight": WEIGHTS, "init": "random"},
    "grid": GRID,
    "grid of hubs": {**GRID, "sample_weight": WEIGHTS, "scale": "standard"},
}


def mpi(folder):
    files = shared(folder)

    def of_parties(engine):
        place = Placement.evenly(engine, 4, NAMES) if engine.apart else Placement.here(4)
        held = [Party(name, str(path)) for name, path in zip(NAMES, files, strict=True)]
        joined, _ = join_parties(held, holders=place)
        network = spread(connect(make_graph("star", 4), joined.partition), engine)
        return kmeans_features(joined.X, network, n_clusters=4, init=START, n_threads=1)

    def work(engine):
        ways = list(OVER_RANKS.values())[:: 1 if engine.size == 2 else 2]
        found = [of_parties(engine), *(cluster(engine=engine, **how) for how in ways)]
        if engine.size == 2:
            check_resumes(lambda saver: cluster(topology="cycle", engine=engine, saver=saver))
        return found

    wanted = [of_parties(OneProcess()), *(cluster(**how) for how in OVER_RANKS.values())]
    for n_ranks, expected in ((2, wanted), (5, [wanted[0], *wanted[1::2]])):
        for ours, theirs in zip(first_of(together(n_ranks, work)), expected, strict=True):
            same(ours, theirs)
            assert ours.communication == theirs.communication


CELLS = {
    "server": server,
    "consensus": consensus,
    "tree": tree,
    "weights": weights,
    "disk": disk,
    "checkpoint": checkpoint,
    "parties": parties,
    "mpi": mpi,
}
