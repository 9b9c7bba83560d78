"""Where processes are other organisations', what a result says of rows and entries stays there."""

import numpy as np

from vpem.fits.imputation import fit_imputation
from vpem.fits.row_kmeans import kmeans_rows
from vpem.network.graph import make_graph
from vpem.network.partition import evenly
from vpem.sums.connect import connect_workers, spread_workers
from vpem.terms.lowrank.entries import from_triplets

from .cli_support import overlapping
from .thread_engine import ThreadEngine, together

N = 3


class AtHome(ThreadEngine):
    """A member of a study that is a thread."""

    open = False


def star():
    return connect_workers(make_graph("star", N))


def test_an_observer_has_values_that_it_saw_and_fitted_ones_else():
    rng = np.random.default_rng(0)
    observer, row, column = np.nonzero(rng.random((N, 12, 4)) < 0.6)
    found = from_triplets(
        observer, row, column, rng.normal(size=len(row)), names=list("abc"),
        row_names=[f"r{one}" for one in range(12)], column_names=list("wxyz"),
    )  # fmt: skip
    alone = fit_imputation(found, rank=1, max_iter=3, tol=0.0)

    def fit(engine):
        network = spread_workers(star(), engine)
        own = found.seen_by({engine.rank})
        return fit_imputation(own, network=network, rank=1, max_iter=3, tol=0.0), own

    for ours, own in together(N, fit, AtHome):
        np.testing.assert_allclose(ours.fitted, alone.fitted, rtol=1e-10)
        np.testing.assert_array_equal(ours.seen.times, alone.seen.times)
        np.testing.assert_array_equal(np.isnan(ours.seen.mean), own.times_seen == 0)
        saw = own.times_seen > 0
        np.testing.assert_array_equal(ours.imputed[~saw], ours.fitted[~saw])


def test_a_worker_knows_the_clusters_of_its_own_rows():
    X, _ = overlapping()
    workers = evenly(len(X), N)
    alone = kmeans_rows(X, workers, star(), n_clusters=3, seed=1)

    def fit(engine):
        network = spread_workers(star(), engine)
        return kmeans_rows(X[workers.rows[engine.rank]], workers, network, n_clusters=3, seed=1)

    for rank, ours in enumerate(together(N, fit, AtHome)):
        np.testing.assert_array_equal(ours.labels, alone.labels[workers.rows[rank]])
        np.testing.assert_allclose(ours.inertia, alone.inertia, rtol=1e-12)
        assert ours.describe([], [])["n_samples"] == len(X)
