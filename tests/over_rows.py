"""Recipes over rows on the ranks of any engine against one process: the same numbers and ledger.

The first rank runs one process besides (see test_engines.py).
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
        options = {"n_components": 3, "max_iter": 4, "tol": 0.0, "seed": 1, **options}
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
        options = {"n_components": 3, "max_iter": 4, "seed": 1, **options}
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
    X = overlapping()
    n = agents_on(engine)
    holders = np.random.default_rng(5).choice(n, size=len(X), p=SHARES[n])
    names = [f"worker {worker}" for worker in range(n)]
    compare = Comparison(engine, X, from_worker_of_row(holders, names))
    # Of the last, so few rounds that workers differ much.
    few = {"n_rounds": 8, "acceleration": "none"}
    networks = [
        connect_workers(make_graph("star", n)),
        connect_workers(make_graph("cycle", n)),
        connect_workers(make_graph("geometric", n, seed=0, radius=0.6), **few),
    ]
    first = fit_em(X, compare.workers, networks[0], n_components=3, max_iter=2).mixture
    starts = ("random", "k-means++", "kmeans", [3, 77, 120], first)
    for number, network in enumerate(networks):
        for place, start in enumerate(starts):
            if (number + place) % 3 == 0:
                compare.em(network, init=start, n_init=2 if number == place else 1)
        for start in ("k-means++", "random", [3, 77, 120], X[:3])[number::4]:
            compare.kmeans(network, init=start)
    compare.kmeans(networks[1], scale="standard", n_init=2)
    grown = connect_workers(make_graph("grid", n), sum="tree")
    compare.em(grown, init="kmeans")
    compare.kmeans(grown)
    # Messages of a codec go to the root as they are: a link carries those of all below it.
    compare.fedem(grown, compress="natural:12bits", init="kmeans", participation=0.6)
    compare_data(compare, networks, starts, brief)
    compare_fedem(compare, networks, first, brief)
    compare_disturbed(compare, brief)
    if not brief:
        compare_disk(compare, networks, starts)
        compare_kinds(compare, networks, starts)
        compare_repairs(compare, networks, first)
        check_refusals(compare, networks)
    return f"compared {compare.n_compared}"


def compare_fedem(compare, networks, first, brief):
    """Codecs, participation, minibatches, memories: streams go on alike on all ranks."""
    star = networks[0]
    cases = [
        {"init": "kmeans"},
        {"compress": "qsgd:4bits:32", "step_size": 1.0, "init": "k-means++"},
        {"compress": "natural:12bits", "init": "kmeans", "participation": 0.6, "batch_size": 9},
        {"compress": "topk:0.3", "memory": "zero"},
        {"compress": "randk:0.3", "variance_reduction": True, "participation": 0.7},
        {"memory": "none", "scale": "standard", "tol": 1e-3, "max_iter": 10},
        {"covariance_type": "tied", "compress": "float32", "init": [3, 77, 120]},
        {"init": first, "variance_reduction": True, "inner": 2, "record_every": 2},
    ]
    for options in cases[:5:2] if brief else cases:
        compare.fedem(star, **options)
    n = star.graph.n_agents
    chances = tuple(np.linspace(0.3, 1, n).tolist())
    turns = tuple((one, (one + 1) % n) for one in range(n)) if n > 1 else ((0,), ())
    tree = connect_workers(make_graph("path", n), sum="tree")
    compare.fedem(networks[1], participation=turns, init="kmeans")
    compare.fedem(tree, participation=chances, init="kmeans")
    for network in (star, tree):
        compare.fedem(network, participation=turns, compress="blockp:3,20:inf", init="kmeans")
    compare.fedem(networks[1], init="kmeans", participation=0.6, batch_size=27)
    if not brief:
        compare.fedem(star, participation=chances, memory="naive", init="kmeans")
        some = {"memory": "zero", "participation": 0.9}
        compare.fedem(networks[2], variance_reduction=True, tol=1e-3, max_iter=8, **some)


def compare_data(compare, networks, starts, brief):
    """Weights, missing values and both; rows that nothing is known of, or that weigh nothing."""
    rng = np.random.default_rng(2)
    weights = rng.integers(0, 3, size=len(compare.X)).astype(float)
    weights[[3, 77, 120]] = 1.5
    holes = np.where(rng.random(compare.X.shape) < 0.15, np.nan, compare.X)
    holes[[5, 70, 149]] = np.nan
    # Of this worker's rows a feature is never there.
    holes[compare.workers.rows[1], 1] = np.nan
    holes[[3, 77, 120]] = compare.X[[3, 77, 120]]
    missing = {"X": holes, "missing": "marginalize"}
    kinds = ("full", "diag", "tied", "spherical")
    for number, network in enumerate(networks):
        common = {"init": starts[number], "covariance_type": kinds[number]}
        compare.em(network, sample_weight=weights, **common)
        compare.em(network, **missing, **common)
        if not brief:
            compare.em(network, **missing, sample_weight=weights, init=starts[3 - number])
    if not brief:
        star, cycle, near = networks
        compare.em(star, sample_weight=weights, init=starts[2], scale="standard")
        compare.em(cycle, **missing, scale="standard", init=starts[2])
        compare.em(near, **missing, dtype=np.float32, init="random", tolerance=2e-3)


def compare_disk(compare, networks, starts):
    """Rows that are read a run at a time: the same numbers, starts, recoveries and ledger."""
    with tempfile.TemporaryDirectory() as folder:
        with h5py.File(f"{folder}/x.h5", "w") as file:
            file["X"] = compare.X
        matrix = FileMatrix(f"{folder}/x.h5").in_reads_of(41)
        weights = np.random.default_rng(2).integers(0, 3, size=len(matrix)).astype(float)
        compare.em(networks[0], X=matrix, init=starts[2], scale="standard")
        compare.em(networks[2], X=matrix, init=starts[2], sample_weight=weights)
        matrix.close()


def compare_disturbed(compare, brief):
    """Links that fail, and compressed rounds of FedEM."""
    n, few = compare.workers.n_workers, {"n_rounds": 8}
    graph = make_graph("geometric", n, seed=0, radius=0.6)
    failing = connect_workers(graph, link_failure=0.2, stragglers=0.05, **few)
    compare.em(failing, init="random")
    both = connect_workers(graph, compress="qsgd:8bits", link_failure=0.1, **few)
    compare.fedem(both, init=[3, 77, 120], batch_size=9)
    if not brief:
        compare.fedem(failing, variance_reduction=True, participation=0.6)
        codec = connect_workers(make_graph("cycle", n), compress="natural:12bits")
        compare.fedem(codec, participation=0.6, init="random")


def compare_kinds(compare, networks, starts):
    """Covariances, units, precision."""
    for number, kind in enumerate(("diag", "tied", "tied-spherical")):
        compare.em(networks[number], covariance_type=kind, init=starts[number])
    star, _, near = networks
    compare.em(near, scale="standard", tol=1e-3, max_iter=60)
    compare.em(star, tol=1e-3, max_iter=60, every_weight=True)
    single = compare.X.astype(np.float32)
    compare.em(star, X=single, dtype=np.float32, tolerance=1e-3, init="random")
    # Centres far away: their clusters are empty, and placed anew.
    far = compare.X[:3] + np.array([0.0, 0.0, 900.0])[:, None]
    for network in networks:
        assert compare.kmeans(network, init=far, max_iter=20).reseeded


def compare_repairs(compare, networks, first):
    """Components that hold nothing, or are flat, are placed anew."""
    means, flat = first.means.copy(), first.covariances.copy()
    means[2] += 90.0
    flat[9:18] = 0.0
    for number, network in enumerate(networks):
        start = replace(first, **({"means": means} if number else {"covariances": flat}))
        mended = compare.em(network, init=start)
        reason = "weight" if number else "covariance"
        assert {event.reason for event in mended.recoveries} == {reason}


def check_refusals(compare, networks):
    """What cannot be done is said alike on all ranks."""
    engine, workers = compare.engine, compare.workers
    star = spread_workers(networks[0], engine)
    own = read_rows(compare.X, [workers.rows[worker] for worker in star.agents.own])
    with pytest.raises(InputError, match="this rank hold"):
        fit_em(np.zeros((len(own) + 1, 3)), workers, star)
