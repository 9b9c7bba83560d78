"""Fits over the ranks of any engine are those of one process (see test_engines.py).

At the first rank both are there and compared, iteration by iteration, from the same start. Most
ways are cells of the table, too (cells_vp_em.py); here they meet an engine of real processes.
"""

import tempfile
from dataclasses import replace

import h5py
import numpy as np
import pytest

from tests import over_sums
from vpem.errors import InputError
from vpem.files.matrix import FileMatrix
from vpem.fits.settings import PrivacySettings
from vpem.fits.spread import fit_spread, own_columns
from vpem.fits.vpem import fit_vpem
from vpem.network.graph import make_graph
from vpem.network.partition import from_lists
from vpem.settings import FitSettings
from vpem.sums.connect import connect, spread
from vpem.terms.mixture import block_views

HELD = {
    3: [[0, 4, 1], [2, 3], [5, 6, 7]],
    5: [[0, 4], [1], [2, 3], [], [5, 6, 7]],
}
"""Features of agents, by how many there are."""


def overlapping(n_samples=150, n_features=8, seed=0):
    rng = np.random.default_rng(seed)
    centres = 1.1 * rng.standard_normal((3, n_features))
    mixing = np.eye(n_features) + 0.3 * rng.standard_normal((n_features, n_features))
    return (
        centres[rng.integers(3, size=n_samples)]
        + rng.standard_normal((n_samples, n_features)) @ mixing
    )


class Comparison:
    """Fits the same in one process and over ranks, and compares at the first."""

    def __init__(self, engine, X):
        self.engine, self.X = engine, X
        self.n_compared = 0

    def __call__(self, network, *, tolerance=1e-10, sample_weight=None, X=None, **options):
        X = self.X if X is None else X
        options = {"n_components": 3, "max_iter": 3, "tol": 0.0, "seed": 1, **options}
        ranked = spread(network, self.engine)
        columns = own_columns(ranked)
        names = [f"feature {column}" for column in columns]
        stored = isinstance(X, FileMatrix)
        own = (X.select(columns) if stored else X[:, columns]) if len(names) else None
        weights = sample_weight if ranked.agents.mine(0) else None
        found = fit_spread(own, ranked, sample_weight=weights, feature_names=names, **options)
        if self.engine.rank:
            assert found.mixture.blocks.n_blocks == len(ranked.total.holders.own)
            return found
        wanted = fit_vpem(X, network, sample_weight=sample_weight, **options)
        self.n_compared += 1
        close = {"rtol": tolerance, "atol": tolerance}
        np.testing.assert_allclose(found.history, wanted.history, **close)
        np.testing.assert_allclose(found.root_log_likelihood, wanted.root_log_likelihood, **close)
        of_outliers = wanted.mixture.of_roots
        for name in ("weights", "means", "covariances", *of_outliers):
            values = (getattr(one.mixture, name) for one in (found, wanted))
            np.testing.assert_allclose(*np.broadcast_arrays(*values), **close)
        assert found.network is network
        assert found.communication == wanted.communication
        assert found.init_rows == wanted.init_rows
        assert found.recoveries == wanted.recoveries
        assert found.best_restart == wanted.best_restart
        assert found.converged == wanted.converged
        assert found.n_passes == wanted.n_passes
        assert found.lost == wanted.lost
        # A graph that mixes in one round has one estimate in one process, over ranks one a root.
        alike = ranked.total.exact == network.total.exact
        np.testing.assert_allclose(found.free_energy, wanted.free_energy if alike else [], **close)
        return found


def main(engine, brief=False):
    partition = from_lists(HELD[over_sums.agents_on(engine)], 8)
    compare = Comparison(engine, overlapping())

    def joined(topology, hops=0, **how):
        graph = make_graph(topology, partition.n_agents, seed=3)
        return connect(graph, partition, hops=hops, **how)

    star, cycle, near = joined("star"), joined("cycle"), joined("geometric", 1)
    first = fit_vpem(compare.X, star, n_components=3, max_iter=2).mixture
    private = PrivacySettings(release_epsilon=9, delta=1e-4, bounds=(-5, 5), repeatable_noise=1)
    noisy = {"privacy": private, "tol": FitSettings().tol, "covariance_type": "tied", "max_iter": 2}
    # A component that holds nothing, and one that is flat in one hub.
    means, flat = first.means.copy(), first.covariances.copy()
    means[2] += 60.0
    block_views(flat, first.blocks.widths, 3)[-1][1] = 0.0
    failing = {"link_failure": 0.1, "n_rounds": 6}
    absent = {"agent_dropout": 0.15, "stragglers": 0.05, "n_rounds": 6}
    rows = [3, 77, 120]
    cases = [
        (star, {"init": "random", "n_init": 2}),
        (cycle, {"init": "k-means++", "covariance_type": "diag"}),
        (near, {"init": "kmeans", "scale": "standard", "covariance_type": "tied"}),
        (joined("geometric", sum="tree"), {"init": rows, "covariance_type": "tied-diag"}),
        (near, {"batch_size": 40, "step_size": 0.7, "init": "random"}),
        (cycle, {"accelerate": "local:2,squarem", "max_iter": 5, "tolerance": 1e-7}),
        (joined("geometric", 1, compress="qsgd:8bits", **failing), {}),
        (joined("star", compress="natural:12bits"), {"init": "kmeans"}),
        (joined("geometric", **absent), {"init": first}),
        (star, noisy),
        (cycle, {"noise": True}),
        (near, {"trim": 0.1}),
        (near, {"init": replace(first, means=means)}),
        (cycle, {"init": replace(first, covariances=flat), "batch_size": 50}),
    ]
    if not brief:
        single = {"dtype": np.float32, "tolerance": 1e-3}
        weights = np.random.default_rng(4).integers(0, 3, size=len(compare.X)).astype(float)
        cases += [
            (joined("path", 1, sum="tree"), {"init": rows}),
            (joined("cycle", 2), {"init": rows}),
            (joined("path", n_rounds=3, acceleration="none"), {"covariance_type": "spherical"}),
            (star, {"batch_size": 40}),
            (star, {"noise": True}),
            (joined("cycle", 1, compress="natural:12bits"), {"init": "k-means++", "tol": 1e-3}),
            (joined("star", compress="float32"), single),
            # Few iterations: a codec may round last bits to other words, and more of them travel.
            (joined("cycle", compress="natural:12bits"), {"batch_size": 40}),
            (joined("geometric", agent_dropout=0.1, **failing), {"batch_size": 40}),
            (cycle, {"tol": 1e-3, "max_iter": 60, "covariance_type": "tied-spherical"}),
            (star, {"sample_weight": weights, "init": "k-means++"}),
            (near, {"sample_weight": weights}),
            (near, {"X": compare.X.astype(np.float32), "init": "random", **single}),
        ]
    for network, options in cases:
        found = compare(network, **options)
        if isinstance(options.get("init"), type(first)) and options["init"] is not first:
            reason = "weight" if network is near else "covariance"
            assert {event.reason for event in found.recoveries} == {reason}
    with tempfile.TemporaryDirectory() as folder:  # and features that are read a run at a time
        with h5py.File(f"{folder}/x.h5", "w") as file:
            file["X"] = compare.X
        matrix = FileMatrix(f"{folder}/x.h5").in_reads_of(41 + 8 * engine.rank)
        compare(near, X=matrix, init="kmeans", scale="standard")
        compare(cycle, X=matrix, batch_size=40, step_size=0.7)
        matrix.close()
    if engine.size > 1:  # what cannot be done is said alike on all ranks
        ranked = spread(cycle, engine)
        columns = own_columns(ranked)
        own = np.zeros((10 + engine.rank, len(columns))) if len(columns) else None
        with pytest.raises(InputError, match="same rows"):
            fit_spread(own, ranked, n_components=2)
    return f"compared {compare.n_compared}"
