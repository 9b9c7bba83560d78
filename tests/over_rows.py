"""Recipes over rows on the ranks of any engine against one process: the same numbers and ledger.

The first rank runs one process besides (see test_engines.py). Most ways are cells of the table, too
(cells_em_rows.py, cells_fedem.py, cells_kmeans_rows.py); here they meet real processes.
"""

import tempfile
from dataclasses import replace

import h5py
import numpy as np
import pytest

from tests.over_sums import agents_on, pooled
from vpem.errors import InputError
from vpem.files.matrix import FileMatrix
from vpem.fits.fedem import fit_fedem
from vpem.fits.local_rows import read_rows
from vpem.fits.row_kmeans import kmeans_rows
from vpem.fits.rows import fit_em
from vpem.network.graph import make_graph
from vpem.network.partition import from_worker_of_row
from vpem.sums.connect import connect_workers, spread_workers

SHARES = {3: [0.5, 0.3, 0.2], 5: [0.3, 0.2, 0.1, 0, 0.4]}
"""Of the rows that each worker holds, by how many there are."""
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def overlapping(n_samples=160, n_features=3, seed=0):
    rng = np.random.default_rng(seed)
    centres = 1.3 * rng.standard_normal((3, n_features))
    mixing = np.eye(n_features) + 0.3 * rng.standard_normal((n_features, n_features))
    labels = rng.integers(3, size=n_samples)
    return 5.0 + centres[labels] + rng.standard_normal((n_samples, n_features)) @ mixing


class Comparison:
    """Runs a recipe over ranks and, at the first, in one process."""

    def __init__(self, engine, X, workers):
        self.engine, self.X, self.workers = engine, X, workers
        self.n_compared = 0

    def both(self, recipe, network, X=None, **options):
        X = self.X if X is None else X
        ranked = spread_workers(network, self.engine)
        self.mine = ranked.agents.own
        rows = [self.workers.rows[worker] for worker in self.mine]
        ours = dict(options)
        if "sample_weight" in options:
            ours["sample_weight"] = read_rows(options["sample_weight"], rows)
        own = X.of_rows(rows) if isinstance(X, FileMatrix) else read_rows(X, rows)
        found = recipe(own, self.workers, ranked, **ours)
        assert found.network is network
        if self.engine.rank:
            return found, None
        wanted = recipe(X, self.workers, network, **options)
        self.n_compared += 1
        if self.rounds_vary(network):
            ours, theirs = found.communication["bytes"], wanted.communication["bytes"]
            assert abs(ours / theirs - 1) < 0.05, (ours, theirs)
        else:
            assert found.communication == wanted.communication
        assert found.init_rows == wanted.init_rows
        return found, wanted

    @staticmethod
    def rounds_vary(network):
        """A last digit decides between two levels of qsgd, and so how many rounds are needed."""
        return network.compress is not None and "qsgd" in network.compress and network.faults

    def em(self, network, *, tolerance=1e-10, **options):
        options = {"n_components": 3, "max_iter": 2, "tol": 0.0, "seed": 1, **options}
        found, wanted = self.both(fit_em, network, **options)
        if wanted is None:
            assert len(found.mixtures) <= max(1, len(self.mine))
            return found
        close = {"rtol": tolerance, "atol": tolerance}
        assert found.history.shape == wanted.history.shape
        np.testing.assert_allclose(found.history, wanted.history, **close)
        np.testing.assert_allclose(found.root_log_likelihood, wanted.root_log_likelihood, **close)
        assert len(found.mixtures) == len(wanted.mixtures)
        for ours, theirs in zip(found.mixtures, wanted.mixtures, strict=True):
            for name in ("weights", "means", "covariances"):
                np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), **close)
        for name in ("recoveries", "best_restart", "converged", "n_samples", "total_weight"):
            assert getattr(found, name) == getattr(wanted, name)
        return found

    def kmeans(self, network, **options):
        options = {"n_clusters": 3, "seed": 1, **options}
        found, wanted = self.both(kmeans_rows, network, **options)
        if self.engine.rank or not self.engine.open:
            assert len(found.labels) == sum(len(self.workers.rows[worker]) for worker in self.mine)
        found = pooled(found, self.workers, self.engine)
        if wanted is None:
            return found
        for name in ("centres", "distances", "inertia", "root_inertia", "history"):
            np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), **CLOSE)
        assert (found.root_centres is None) == (wanted.root_centres is None)
        if found.root_centres is not None:
            np.testing.assert_allclose(found.root_centres, wanted.root_centres, **CLOSE)
        np.testing.assert_array_equal(found.labels, wanted.labels)
        np.testing.assert_array_equal(found.counts, wanted.counts)
        for name in ("reseeded", "disagreement", "best_restart", "converged", "total_iterations"):
            assert getattr(found, name) == getattr(wanted, name)
        return found

    def fedem(self, network, **options):
        options = {"n_components": 3, "max_iter": 3, "seed": 1, **options}
        found, wanted = self.both(fit_fedem, network, **options)
        if wanted is None:
            return found
        ours, theirs = found.run, wanted.run
        np.testing.assert_allclose(ours.statistic, theirs.statistic, **CLOSE)
        np.testing.assert_allclose(ours.memory, theirs.memory, **CLOSE)
        for name in ("objective", "mean_field", "disagreement"):
            values = (getattr(run.history, name) for run in (ours, theirs))
            np.testing.assert_allclose(*values, **CLOSE)
        exact = ("epochs", "iteration")
        for name in exact if self.rounds_vary(network) else (*exact, "bytes", "bytes_up"):
            assert getattr(ours.history, name) == getattr(theirs.history, name)
        for name in ("weights", "means", "covariances"):
            values = (getattr(fit.mixture, name) for fit in (found, wanted))
            np.testing.assert_allclose(*values, **CLOSE)
        for name in ("projections", "converged", "n_iter", "epochs"):
            assert getattr(ours, name) == getattr(theirs, name)
        return found


def main(engine, brief=False):
    X, n = overlapping(), agents_on(engine)
    holders = np.random.default_rng(5).choice(n, size=len(X), p=SHARES[n])
    names = [f"worker {worker}" for worker in range(n)]
    compare = Comparison(engine, X, from_worker_of_row(holders, names))

    def joined(topology, **how):
        return connect_workers(make_graph(topology, n, seed=0), **how)

    # Of the last, so few rounds that workers differ much.
    star, cycle = joined("star"), joined("cycle")
    near = joined("geometric", n_rounds=8, acceleration="none")
    tree, failing = joined("grid", sum="tree"), {"link_failure": 0.2, "n_rounds": 8}
    first = fit_em(X, compare.workers, star, n_components=3, max_iter=2).mixture
    rows, missing, weighed = [3, 77, 120], holed(compare), weights_of(compare)
    chances = tuple(np.linspace(0.3, 1, n).tolist())
    turns = tuple((one, (one + 1) % n) for one in range(n)) if n > 1 else ((0,), ())
    # A component that holds nothing, one that is flat, and centres far from all rows.
    means, flat = first.means.copy(), first.covariances.copy()
    means[2] += 90.0
    flat[9:18] = 0.0
    far = X[:3] + np.array([0.0, 0.0, 900.0])[:, None]
    em, fedem, kmeans = compare.em, compare.fedem, compare.kmeans
    cases = [
        (em, star, {"init": "random", "n_init": 2}),
        (em, cycle, {"init": "k-means++", "covariance_type": "tied"}),
        (em, near, {"init": "kmeans", "scale": "standard", "covariance_type": "diag"}),
        (em, tree, {"init": "kmeans"}),
        (em, star, {"init": replace(first, means=means)}),
        (em, cycle, {"init": replace(first, covariances=flat)}),
        (em, joined("geometric", stragglers=0.05, **failing), {"init": "random"}),
        (em, cycle, {"sample_weight": weighed, "init": rows}),
        (em, star, {**missing, "sample_weight": weighed, "init": "random"}),
        (em, near, {**missing, "covariance_type": "tied", "init": "kmeans"}),
        (kmeans, star, {"init": "k-means++", "scale": "standard", "n_init": 2}),
        (kmeans, cycle, {"init": rows}),
        (kmeans, near, {"init": X[:3]}),
        (kmeans, tree, {"init": far, "max_iter": 20}),
        # Messages of a codec go to the root as they are: a link carries those of all below it.
        (fedem, tree, {"compress": "natural:12bits", "init": "kmeans", "participation": 0.6}),
        (fedem, star, {"compress": "qsgd:4bits:32", "step_size": 1.0, "init": "k-means++"}),
        (fedem, star, {"compress": "randk:0.3", "variance_reduction": True, "participation": 0.7}),
        (fedem, star, {"participation": turns, "compress": "blockp:3,20:inf", "init": "kmeans"}),
        (fedem, near, {"init": "kmeans", "participation": 0.6, "batch_size": 27}),
        (fedem, joined("path", sum="tree"), {"participation": chances, "init": "kmeans"}),
        (fedem, joined("cycle", compress="qsgd:8bits", **failing), {"init": rows, "batch_size": 9}),
    ]
    if not brief:
        reduced = {"variance_reduction": True, "tol": 1e-3, "max_iter": 8, "participation": 0.9}
        single = {"dtype": np.float32, "init": "random"}
        cases += [
            (em, near, {"covariance_type": "spherical", "init": first}),
            (em, star, {"tol": 1e-3, "max_iter": 60, "every_weight": True}),
            (em, cycle, {**single, "tolerance": 1e-3}),
            (em, cycle, {**missing, **single, "tolerance": 2e-3}),
            (fedem, star, {"compress": "topk:0.3", "memory": "zero"}),
            (fedem, star, {"memory": "none", "scale": "standard", "tol": 1e-3, "max_iter": 10}),
            (fedem, star, {"covariance_type": "tied", "compress": "float32", "init": rows}),
            (fedem, star, {"participation": chances, "memory": "naive", "init": "kmeans"}),
            (fedem, star, {"init": first, "variance_reduction": True, "inner": 2}),
            (fedem, cycle, {"memory": "zero", **reduced}),
            (fedem, joined("cycle", compress="natural:12bits"), {"participation": turns}),
        ]
    for recipe, network, options in cases:
        found = recipe(network, **options)
        if options.get("init") is far:
            assert found.reseeded
        if isinstance(options.get("init"), type(first)) and options["init"] is not first:
            reason = "weight" if network is star else "covariance"
            assert {event.reason for event in found.recoveries} == {reason}
    with tempfile.TemporaryDirectory() as folder:  # and rows that are read a run at a time
        with h5py.File(f"{folder}/x.h5", "w") as file:
            file["X"] = X
        matrix = FileMatrix(f"{folder}/x.h5").in_reads_of(41)
        em(star, X=matrix, init="kmeans", scale="standard")
        em(near, X=matrix, init="k-means++", sample_weight=weighed)
        matrix.close()
    ranked = spread_workers(star, engine)
    own = np.zeros((1 + sum(len(compare.workers.rows[one]) for one in ranked.agents.own), 3))
    with pytest.raises(InputError, match="this rank hold"):  # what cannot be is said on all ranks
        fit_em(own, compare.workers, ranked)
    return f"compared {compare.n_compared}"


def weights_of(compare):
    """Weights of rows, of which some are zero and those of a start are not."""
    weights = np.random.default_rng(2).integers(0, 3, size=len(compare.X)).astype(float)
    weights[[3, 77, 120]] = 1.5
    return weights


def holed(compare):
    """Rows that miss values: nothing is known of some, nor of a feature of a worker."""
    holes = np.where(np.random.default_rng(2).random(compare.X.shape) < 0.15, np.nan, compare.X)
    holes[[5, 70, 149]] = np.nan
    holes[compare.workers.rows[1], 1] = np.nan
    holes[[3, 77, 120]] = compare.X[[3, 77, 120]]
    return {"X": holes, "missing": "marginalize"}
