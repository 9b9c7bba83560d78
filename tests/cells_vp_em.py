"""VP-EM, every way (see test_table.py)."""

from functools import partial

import numpy as np
import pytest

from vpem import InputError, connect, fit_vpem, make_graph
from vpem._core.threads import one_blas_thread
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.fits.spread import fit_spread, own_columns
from vpem.network.partition import contiguous
from vpem.sums.connect import spread

from .cells_support import (
    compare_over,
    em_by_hand,
    files_of_columns,
    first_of,
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
FEATURES = ("u", "v", "w", "x", "y", "z")
HELD = contiguous(6, 4)
X, _ = overlapping(120, 6, 2, gap=3.0, seed=4)
HOLES = with_holes(X, 1)
WEIGHTS = np.random.default_rng(2).integers(0, 3, len(X)).astype(float)
START = [3, 77]

COMPRESSED = {"topology": "cycle", "network": {"compress": "natural:12bits"}}
ALONG_A_TREE = {"topology": "path", "network": COMPRESSED["network"] | {"sum": "tree"}}
MASKED = {"network": {"secure_sum": True}}
MASKED_TREE = {"topology": "path", "network": MASKED["network"] | {"sum": "tree"}}
ABSENT = {"topology": "complete", "network": {"agent_dropout": 0.05}, "max_iter": 30}
FAILING = {"topology": "complete", "network": {"link_failure": 0.2, "stragglers": 0.1}}
FAILING_TREE = {"network": FAILING["network"] | {"sum": "tree"}}
MISSING = {"data": HOLES, "missing": "marginalize"}
BATCHES = {"batch_size": 30}


def fit(data=X, topology="star", network=None, engine=None, held=HELD, **options):
    """Four agents of one or two features, with the ranks of an engine or in one process."""
    options = {"n_components": 2, "max_iter": 6, "tol": 0.0, "init": START, **options}
    joined = connect(make_graph(topology, held.n_agents), held, hops=0, **(network or {}))
    if engine is None:
        return fit_vpem(data, joined, n_threads=1, **options)
    ranked = spread(joined, engine)
    columns = own_columns(ranked)
    own = data[:, columns] if len(columns) else None
    return fit_spread(own, ranked, n_threads=1, **options)


def same_optimum(tolerance, plain=None, **how):
    """To the end, where the plain algorithm comes to."""
    ended = {"tol": 1e-9, "max_iter": 400}
    found, wanted = fit(**ended | how), fit(**ended | (plain or {}))
    assert wanted.converged
    assert abs(found.log_likelihood - wanted.log_likelihood) < tolerance
    means = found.mixture.means - wanted.mixture.means
    assert np.abs(means).max() < 30 * tolerance**0.5
    return found


def server(folder):
    found = fit(reg_covar=1e-6)
    history, means = em_by_hand(X, START, HELD.features, 6)
    np.testing.assert_allclose(found.history[:, 0], history, 1e-10)
    np.testing.assert_allclose(found.mixture.assembled_means, means, 1e-8, 1e-8)


def tree(folder):
    grown = {"topology": "path", "network": {"sum": "tree"}}
    same(fit(**grown), fit())
    same(fit(**grown, **BATCHES), fit(**BATCHES))
    check_resumes(lambda saver: fit(**grown, saver=saver))


def consensus(folder):
    same(fit(topology="cycle", network={"consensus_tol": 1e-12}), fit())
    operator = fit(topology="cycle", network={"consensus": "operator"})
    same(fit(topology="cycle", network={"consensus": "rounds"}), operator)


def masked(folder):
    """As plain sums to 1e-8 nats a sample; the same bits along a tree, and whoever lives where."""
    ways = (BATCHES, MISSING, {"init": "kmeans"}, {"accelerate": "local:8,squarem"})
    ways = (*ways, {"sample_weight": WEIGHTS, "init": [0, 77], "held": contiguous(6, 3)})
    for how in ways:
        found = fit(**MASKED, **how)
        plain = fit(**how)
        np.testing.assert_allclose(found.history, plain.history, 0, 1e-8 * plain.total_weight)
        along = fit(**MASKED_TREE, **how)
        np.testing.assert_array_equal(along.history, found.history)
    check_resumes(lambda saver: fit(**MASKED_TREE, init="kmeans", saver=saver))
    np.testing.assert_allclose(
        fit(read_dataset(written(folder), memory_limit=2 * X.nbytes - 1).X, **MASKED).history,
        fit(**MASKED).history,
        rtol=1e-14,
    )
    with one_blas_thread():
        for run, how in ((partial(together, 2), MASKED), (partial(over_members, 4), MASKED_TREE)):
            ours = first_of(run(lambda engine, how=how: fit(engine=engine, **how)))
            theirs = fit(**how)
            # Deviations of columns are summed by those that have them.
            np.testing.assert_allclose(ours.history, theirs.history, rtol=1e-13)
            assert ours.communication == theirs.communication


def compressed(folder):
    found = same_optimum(1e-6, **COMPRESSED)
    server = same_optimum(1e-6, network=COMPRESSED["network"])
    tree = same_optimum(1e-6, **ALONG_A_TREE)
    check_resumes(lambda saver: fit(**ALONG_A_TREE, saver=saver))
    for one, plain in ((found, fit(topology="cycle")), (server, fit()), (tree, fit())):
        each = (each.communication for each in (one, plain))
        few, many = (sent["bytes"] / sent["messages"] for sent in each)
        assert few < 0.25 * many


def absent(folder):
    found = same_optimum(0.02, **ABSENT)
    assert np.isnan(found.history).any()
    same(fit(topology="complete", network={"agent_dropout": 1e-9}), fit(topology="complete"), 1e-5)


def links(folder):
    same(fit(**ALONG_A_TREE | FAILING_TREE), fit())
    check_resumes(lambda saver: fit(**ALONG_A_TREE | FAILING_TREE, saver=saver))
    found = same_optimum(1e-6, **FAILING)
    assert lost_messages(found.communication["by_kind"]["estep"], found.network.graph.n_edges)


def batches(folder):
    same(fit(batch_size=len(X)), fit())
    found = same_optimum(1e-6, **BATCHES)
    assert (np.diff(found.free_energy) > -1e-9 * abs(found.free_energy[0])).all()
    for how in (COMPRESSED, {"network": COMPRESSED["network"]}):
        same(fit(**how, batch_size=len(X)), fit(**how))
        same_optimum(1e-6, **how, **BATCHES)
    same_optimum(1e-6, **FAILING, **BATCHES)
    same_optimum(0.02, **ABSENT, **BATCHES)


def missing(folder):
    same(fit(missing="marginalize"), fit())
    found = fit(**MISSING)
    same(fit(**MISSING, batch_size=len(X)), found)
    same_optimum(1e-6, MISSING, **MISSING, **BATCHES)
    scores = observed_scores(found.mixture, HOLES)
    np.testing.assert_allclose(found.log_likelihood, scores.mean(), 1e-10)
    assert (np.diff(found.history[:, 0]) > 0).all()


def weights(folder):
    weighed = {"init": [0, 77], "sample_weight": WEIGHTS}
    copies = np.repeat(X, WEIGHTS.astype(int), axis=0)
    rows = np.flatnonzero((copies[:, None] == X[weighed["init"]]).all(axis=2).any(axis=1))
    same(fit(**weighed), fit(copies, init=rows[[0, -1]]))


def written(folder):
    """The data in a file, which is larger than the memory that they may take."""
    path = folder / "data.h5"
    write_dataset(path, Dataset(X, FEATURES, partition=HELD))
    return path


def disk(folder):
    stored = read_dataset(written(folder), memory_limit=2 * X.nbytes - 1).X
    assert not isinstance(stored, np.ndarray)
    same(fit(stored), fit())
    same(fit(stored, **BATCHES), fit(**BATCHES))
    with pytest.raises(InputError, match="know of every agent, row and component is kept in mem"):
        fit(stored, **COMPRESSED)
    wide = X[:, np.arange(36) % 6] + np.random.default_rng(3).standard_normal((120, 36))
    write_dataset(folder / "wide.h5", Dataset(wide, tuple(f"x{j}" for j in range(36))))
    stored = read_dataset(folder / "wide.h5", memory_limit=2 * wide.nbytes - 1).X
    how = {"held": contiguous(36, 4), "network": COMPRESSED["network"], **BATCHES}
    same(fit(stored, **how), fit(wide, **how))


def checkpoint(folder):
    check_resumes(lambda saver: fit(saver=saver))


def parties(folder):
    common = ["--topology", "star", "--init-rows", "3,77", "--max-iter", 6, "--tol", 0]
    files = files_of_columns(folder, X, FEATURES, HELD, NAMES)
    report = report_of("fit", *files, "--parties", *common)
    np.testing.assert_allclose(report["log_likelihood"], fit().log_likelihood, 1e-10)
    assert report["agent_names"] == list(NAMES)


OVER_RANKS = {
    "server": {},
    "tree": {"topology": "path", "network": {"sum": "tree"}},
    "consensus": {"topology": "cycle", "network": {"n_rounds": 8}},
    "compressed": COMPRESSED,
    "compressed at a server, in batches": {"network": COMPRESSED["network"]} | BATCHES,
    "compressed along a tree, in batches": ALONG_A_TREE | BATCHES,
    "links, along a tree": ALONG_A_TREE | FAILING_TREE,
    "links fail, in batches": FAILING | BATCHES,
    "all of it": MISSING
    | BATCHES
    | {"topology": "complete", "network": {"compress": "qsgd:8bits", "agent_dropout": 0.05}},
    "missing in batches": MISSING | BATCHES,
    "weights": {"sample_weight": WEIGHTS, "init": [0, 77]},
    "start": {"init": "kmeans"},
}


def mpi(folder):
    in_processes(folder, partial(together, 2), OVER_RANKS)


def tls(folder):
    ways = ("compressed at a server, in batches", "missing in batches")  # rounds: those of parties
    in_processes(folder, partial(over_members, 4), {way: OVER_RANKS[way] for way in ways})


def in_processes(folder, run, ways):
    files = files_of_columns(folder, X, FEATURES, HELD, NAMES)

    def of_parties(engine):
        held = opened(engine, files, NAMES, rows=False)
        network = connect(make_graph("cycle", 4), held.partition, hops=0, n_rounds=8)
        how = {"n_components": 2, "max_iter": 3, "tol": 0.0, "init": START, "n_threads": 1}
        return fit_spread(held.X, spread(network, engine), **how)

    compare_over(run, fit, [how | {"max_iter": 3} for how in ways.values()], of_parties)


CELLS = {
    "server": server,
    "tree": tree,
    "consensus": consensus,
    "masked": masked,
    "compressed": compressed,
    "absent": absent,
    "links": links,
    "batches": batches,
    "missing": missing,
    "disk": disk,
    "weights": weights,
    "checkpoint": checkpoint,
    "parties": parties,
    "mpi": mpi,
    "tls": tls,
}
