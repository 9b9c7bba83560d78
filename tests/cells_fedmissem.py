"""FedMissEM, every way (see test_table.py)."""

import numpy as np

from vpem import connect_workers, fit_imputation, make_graph
from vpem._core.threads import one_blas_thread
from vpem.sums.spread import spread_workers
from vpem.terms.lowrank.entries import from_matrices

from .resume_support import check_resumes
from .thread_engine import together

RNG = np.random.default_rng(3)
THETA = 1 + 0.7 * RNG.normal(size=(9, 2)) @ RNG.normal(size=(2, 6))
NAMES = ("ann", "bob", "eve")
MATRICES = {}
for name in NAMES:
    MATRICES[name] = np.where(RNG.random(THETA.shape) < 0.6, RNG.poisson(np.exp(THETA)), np.nan)
MATRICES["ann"][np.arange(9), np.arange(9) % 6] = 2.0
SEEN = from_matrices(MATRICES)

LAWS = ("gaussian", "poisson")
COMPRESSED = {"compress": "qsgd:8bits"}
ABSENT = {"participation": 0.6}
FAILING = {"topology": "complete", "network": {"link_failure": 0.2, "stragglers": 0.1}}


def fit(seen=SEEN, topology="star", network=None, engine=None, **options):
    """Three observers, on the ranks of an engine or in one process."""
    options = {"rank": 2, "max_iter": 6, "tol": 0.0, "seed": 1, **options}
    joined = connect_workers(make_graph(topology, seen.n_observers), **(network or {}))
    if engine is not None:
        joined = spread_workers(joined, engine)
        seen = seen.part(set(joined.agents.own.tolist()))
    return fit_imputation(seen, network=joined, n_threads=1, **options)


def same(found, wanted, tolerance=1e-10):
    """Iteration by iteration, and at the end."""
    for name in ("objective", "mean_field"):
        ours, theirs = (getattr(one.run.history, name) for one in (found, wanted))
        np.testing.assert_allclose(ours, theirs, tolerance, 1e-12)
    for name in ("fitted", "imputed", "log_likelihood"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), tolerance)


def same_optimum(tolerance, **how):
    """To the end, where the plain algorithm comes to."""
    ended = {"law": "poisson", "tol": 1e-6, "max_iter": 1000}
    found, wanted = fit(**ended | how), fit(**ended)
    assert found.converged
    assert wanted.converged
    np.testing.assert_allclose(found.fitted, wanted.fitted, tolerance, tolerance)
    return found


def server(folder):
    """It is the iterated soft-thresholded singular value decomposition of the mean copy."""
    theta = np.zeros(THETA.shape)
    for _ in range(6):
        filled = np.mean([np.where(np.isnan(Y), theta, Y) for Y in MATRICES.values()], axis=0)
        left, s, right = np.linalg.svd(filled, full_matrices=False)
        theta = (left[:, :2] * np.maximum(s[:2] - 1.0, 0)) @ right[:2]
    np.testing.assert_allclose(fit().fitted, theta, 1e-10)


def consensus(folder):
    tight = {"consensus_tol": 1e-12}
    for law in LAWS:
        found = fit(topology="path", network=tight, law=law)
        same(found, fit(law=law), 1e-8)
        assert 0 < found.run.history.disagreement[-1] < 1e-9
    same(fit(topology="path", network=tight, scale="standard"), fit(scale="standard"), 1e-8)
    same(fit(topology="path", network=tight, copies="fewest"), fit(copies="fewest"), 1e-8)


def tree(folder):
    for how in ({}, {"scale": "standard", "copies": "fewest"}, {"law": "poisson"}):
        same(fit(topology="path", network={"sum": "tree"}, **how), fit(**how))


def compressed(folder):
    few, plain = (same_optimum(1e-4, **how).communication for how in (COMPRESSED, {}))
    each = [sent["by_kind"]["server"] for sent in (few, plain)]
    few, many = (sent["bytes"] / sent["messages"] for sent in each)
    assert few < 0.7 * many
    codec = {"topology": "cycle", "network": {"compress": "natural:12bits"}}
    assert same_optimum(1e-4, **codec).compress == "natural:12bits"


def absent(folder):
    same_optimum(1e-4, **ABSENT)
    same(fit(participation=1 - 1e-12, step_size=1.0), fit())


def links(folder):
    assert same_optimum(1e-4, **FAILING).network.faults.link_failure == 0.2


def batches(folder):
    same(fit(batch_size=100), fit())
    same_optimum(1e-4, batch_size=9, variance_reduction=True)


def missing(folder):
    """Missing values are what it finds: those that were seen stay, others are as of more copies."""
    whole = [np.where(np.isnan(Y), 0.0, Y) for Y in MATRICES.values()]
    found = fit(from_matrices(whole), rank=6, ridge=0.0, max_iter=1)
    np.testing.assert_allclose(found.fitted, np.mean(whole, axis=0), 1e-9, 1e-9)
    gap = fit()
    assert np.isnan(SEEN.mean).any()
    np.testing.assert_array_equal(np.isnan(SEEN.mean), gap.seen.times == 0)
    assert np.isfinite(gap.imputed).all()


def checkpoint(folder):
    check_resumes(lambda saver: fit(saver=saver, law="poisson", batch_size=9, **COMPRESSED))
    check_resumes(lambda saver: fit(saver=saver, law="poisson", **FAILING))


OVER_RANKS = {
    "server": {},
    "scaled": {"scale": "standard", "copies": "fewest"},
    "consensus": {"topology": "path", "law": "poisson"},
    "tree": {"topology": "path", "network": {"sum": "tree"}, "participation": 0.6},
    "scaled on a graph": {"topology": "path", "scale": "standard"},
    "compressed": COMPRESSED | {"law": "poisson"},
    "absent": ABSENT,
    "batches": {"batch_size": 9, "variance_reduction": True},
}
"""What is compared with one process."""


def mpi(folder):
    def everything(engine):
        found = [fit(engine=engine, **how) for how in OVER_RANKS.values()]
        resumed = check_resumes(
            lambda saver: fit(engine=engine, saver=saver, law="poisson", topology="cycle")
        )
        return [*found, resumed]

    wanted = [fit(**how) for how in OVER_RANKS.values()]
    wanted += [fit(law="poisson", topology="cycle")]
    with one_blas_thread():
        ranks = together(2, everything)
    for found in ranks:
        if isinstance(found, BaseException):
            raise found
        for ours, theirs in zip(found, wanted, strict=True):
            same(ours, theirs)
            assert ours.communication == theirs.communication


CELLS = {
    "server": server,
    "tree": tree,
    "consensus": consensus,
    "compressed": compressed,
    "absent": absent,
    "links": links,
    "batches": batches,
    "missing": missing,
    "checkpoint": checkpoint,
    "mpi": mpi,
}
