"""k-means over rows, every way (see test_table.py)."""

import numpy as np

from vpem import connect_workers, kmeans_rows, make_graph
from vpem.engines.one_process import OneProcess
from vpem.engines.placement import Placement
from vpem.files.datasets import Dataset, read_dataset, write_dataset
from vpem.files.parties.joining import stack_parties
from vpem.files.parties.manifest import Party
from vpem.fits.local_rows import read_rows
from vpem.network.holdings import evenly, from_worker_of_row
from vpem.sums.spread import spread_workers

from .kmeans_support import (
    HOLES,
    START,
    WEIGHTS,
    X,
    first_of,
    in_shell,
    is_at_rest,
    is_lloyd,
    same,
    same_optimum,
)
from .resume_support import check_resumes
from .thread_engine import together

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
    return kmeans_rows(data, held, ranked, **options)


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


def compressed(folder):
    for topology in ("star", "cycle"):
        found = cluster(topology=topology, network={"compress": "natural:12bits"})
        plain = cluster(topology=topology)
        same_optimum(found, plain, 1e-5)
        few, many = (
            one.communication["bytes"] / one.communication["messages"] for one in (found, plain)
        )
        assert few < 0.35 * many
        for seed, codec in enumerate(("qsgd:8bits", "qsgd:4bits:32", "topk:0.3")):
            network = {"compress": codec, "seed": seed}
            is_at_rest(cluster(topology=topology, network=network, init="random", seed=seed))


def absent(folder):
    for seed in range(3):
        drawn = {"init": "random", "seed": seed}
        for compress in (None, "natural:12bits"):
            network = {"agent_dropout": 0.3, "compress": compress, "seed": seed}
            is_at_rest(cluster(topology="complete", network=network, **drawn))
            network = {"compress": compress, "seed": seed}
            is_at_rest(cluster(network=network, participation=0.4, **drawn))
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
        for seed in range(2):
            is_at_rest(cluster(**how, **holes, seed=seed), HOLES, how.get("sample_weight"))
    same(cluster(participation=1 - 1e-12), cluster(), more=1)


def links(folder):
    faults = {"link_failure": 0.2, "stragglers": 0.1}
    for topology in ("cycle", "complete"):
        same_optimum(cluster(topology=topology, network=faults), cluster(), 1e-7)
    few = {**faults, "n_rounds": 2}
    assert cluster(topology="path", network=few, max_iter=30).partitions


def batches(folder):
    same(cluster(batch_size=len(X)), cluster())
    for how in ({}, {"data": HOLES, "missing": "marginalize"}):
        for seed in range(3):
            found = cluster(batch_size=37, init="random", seed=seed, **how)
            is_at_rest(found, how.get("data", X))
            assert (np.diff(found.history) <= 1e-12 * found.history[0]).all()
            np.testing.assert_allclose(found.history[-1], found.inertia, 1e-10)
    same_optimum(cluster(topology="cycle", batch_size=37), cluster(batch_size=37), 1e-5)
    weighed = {"sample_weight": WEIGHTS, "init": np.flatnonzero(WEIGHTS)[:4]}
    assert cluster(batch_size=37, **weighed).converged


def missing(folder):
    same(cluster(missing="marginalize"), cluster())
    found = cluster(HOLES, missing="marginalize")
    is_lloyd(found, HOLES, START)
    assert (np.diff(found.history) < 0).all()
    weighed = {"sample_weight": WEIGHTS + 1, "missing": "marginalize"}
    is_lloyd(cluster(HOLES, **weighed), HOLES, START, WEIGHTS + 1)


def weights(folder):
    start = np.flatnonzero(WEIGHTS)[[0, 30, 60, 90]]
    is_lloyd(cluster(init=start, sample_weight=WEIGHTS), X, start, WEIGHTS)


KEPT = (
    {},
    {"batch_size": 37, "data": HOLES, "missing": "marginalize"},
    {"topology": "cycle", "init": "k-means++", "n_init": 2},
    {"network": {"compress": "natural:12bits"}, "participation": 0.6},
    {"topology": "complete", "network": {"compress": "natural:12bits", "agent_dropout": 0.2}},
    {"topology": "path", "network": {"link_failure": 0.3, "n_rounds": 3}, "max_iter": 20},
)


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


def checkpoint(folder):
    for how in KEPT:
        check_resumes(lambda saver, how=how: cluster(saver=saver, **how))


def shared(folder):
    """A file of each party."""
    files = []
    for name, rows in zip(NAMES, WORKERS.rows, strict=True):
        files.append(folder / f"{name}.h5")
        write_dataset(files[-1], Dataset(X[rows], FEATURES))
    return files


def parties(folder):
    report = in_shell(*shared(folder), "--parties")
    np.testing.assert_allclose(report["history"], cluster().history, 1e-10)
    assert report["worker_names"] == list(NAMES)


OVER_RANKS = {
    "server": {},
    "consensus": {"topology": "cycle"},
    "few rounds": {"topology": "path", "network": {"n_rounds": 5, "acceleration": "none"}},
    "tree": {"topology": "path", "network": {"sum": "tree"}},
    "absent": {"participation": 0.5, "init": "random"},
    "compressed": {"network": {"compress": "qsgd:8bits"}},
    "compressed, absent": {"network": {"compress": "qsgd:8bits"}, "participation": 0.5},
    "rounds": {"topology": "cycle", "network": {"compress": "natural:12bits"}, "max_iter": 6},
    "silent": {"topology": "complete", "network": {"agent_dropout": 0.2}, "max_iter": 6},
    "links": {"topology": "cycle", "network": {"link_failure": 0.2}, "max_iter": 6},
    "one round": {"topology": "complete"},
    "start": {"init": "k-means++", "n_init": 2, "scale": "standard"},
    "batches": {"batch_size": 37, "topology": "cycle"},
    "missing in batches": {"data": HOLES, "missing": "marginalize", "batch_size": 50},
    "missing": {"data": HOLES, "missing": "marginalize", "scale": "standard"},
    "missing, absent": {"data": HOLES, "missing": "marginalize", "participation": 0.5},
    "weights": {"sample_weight": WEIGHTS, "init": "random"},
    "centres": {"init": X[START] + 0.1, "topology": "cycle"},
    "empty": {"init": X[START] + 99.0 * np.arange(4)[:, None], "topology": "cycle"},
}


FEW = ("few rounds", "weights", "missing, absent", "disk")
"""Ways over more ranks than there are agents."""


def mpi(folder):
    files = shared(folder)
    write_dataset(folder / "data.h5", Dataset(X, FEATURES))

    def of_parties(engine):
        place = Placement.evenly(engine, 4, NAMES) if engine.apart else Placement.here(4)
        held = [Party(name, str(path)) for name, path in zip(NAMES, files, strict=True)]
        joined = stack_parties(held, holders=place)
        network = spread_workers(connect_workers(make_graph("star", 4)), engine)
        how = {"n_clusters": 4, "init": START, "n_threads": 1}
        return kmeans_rows(joined.X, joined.workers, network, **how)

    stored = read_dataset(folder / "data.h5", memory_limit=1).X.in_reads_of(37)
    ways = {**OVER_RANKS, "disk": {"data": stored, "init": "k-means++"}}

    def work(engine):
        some = ways if engine.size == 2 else FEW
        found = [
            of_parties(engine),
            *(cluster(engine=engine, **ways[name]) for name in some),
        ]
        if engine.size == 2:
            check_resumes(lambda saver: cluster(topology="cycle", engine=engine, saver=saver))
        return found

    wanted = [of_parties(OneProcess()), *(cluster(**how) for how in ways.values())]
    few = [wanted[0], *(wanted[1 + list(ways).index(name)] for name in FEW)]
    for n_ranks, expected in ((2, wanted), (5, few)):
        for ours, theirs in zip(first_of(together(n_ranks, work)), expected, strict=True):
            same(ours, theirs)
            assert ours.communication == theirs.communication


CELLS = {
    "server": server,
    "consensus": consensus,
    "tree": tree,
    "compressed": compressed,
    "absent": absent,
    "links": links,
    "disk": disk,
    "batches": batches,
    "missing": missing,
    "weights": weights,
    "checkpoint": checkpoint,
    "parties": parties,
    "mpi": mpi,
}
