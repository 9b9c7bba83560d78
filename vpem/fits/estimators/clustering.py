"""k-means over workers or agents, with scikit-learn's interface and names."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin

from vpem._core.assign import distances_to
from vpem._core.threads import thread_count
from vpem.checks import Floats, check_weights
from vpem.errors import InputError, Setting, check_choice
from vpem.files.results import StoredClustering, write_clustering
from vpem.fits.clustering import Clustering
from vpem.fits.estimators.base import (
    AGENTS,
    WORKERS,
    OnGraph,
    Rows,
    number_in,
    with_settings,
    workers_of,
)
from vpem.fits.feature_kmeans import kmeans_features
from vpem.fits.row_kmeans import kmeans_rows
from vpem.fits.settings import OVER_FEATURES, PrivacySettings
from vpem.records import changed, setting
from vpem.settings import SPLITS, KmeansSettings, SumSettings
from vpem.sums.connect import connect, connect_workers
from vpem.terms.missing import nearest, squares_of_observed
from vpem.terms.rows import check_values
from vpem.terms.units import Scaling


@with_settings(
    KmeansSettings,
    SumSettings,
    PrivacySettings,
    first=("n_clusters", "split", "workers", "agents", "graph"),
    without={
        "hubs": "of k-means nothing is joint in a hub",
        "release_epsilon": "it is for mixtures",
    },
)
class DistributedKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, OnGraph):
    """k-means of rows that workers hold, or of features that agents hold.

    At a server (``graph="star"``) it is Lloyd's algorithm on pooled data, from the same start; on
    any other graph sums are taken by consensus. ``method="grid"`` is the one-shot clustering of
    Ding et al. (2016) over features, at a server.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (K, d)
        The centres; where every worker has its own, their mean.
    labels_ : ndarray of shape (M,)
        Cluster of each row.
    inertia_ : float
        Weighted sum of squared distances of the rows to the centres of their clusters.
    n_iter_ : int
        Iterations of the best restart.
    clustering_ : Clustering
        The full result, messages included.

    Examples
    --------
    >>> import numpy as np
    >>> from vpem import DistributedKMeans
    >>> X = np.array([[1, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]], dtype=float)
    >>> model = DistributedKMeans(n_clusters=2, workers=3, random_state=0).fit(X)
    >>> sorted(model.cluster_centers_.tolist())
    [[1.0, 2.0], [10.0, 2.0]]
    """

    split: str = setting(
        "rows", "What is distributed: rows over workers, or features over agents.", choices=SPLITS
    )
    workers: object = setting(1, WORKERS)
    agents: object = setting(None, AGENTS + " Default: one feature each.")
    n_init: int | str = changed(KmeansSettings, "n_init")
    _also: ClassVar = {
        "init": "Or row indices (K,), or centres (K, d).",
        "n_init": 'Or "auto": 1 with k-means++, 10 with random.',
        "bounds": "Or a pair of numbers or arrays. There is no inertia then, and the noise comes "
        "from the system, not from ``random_state``.",
    }

    def _fit_to(self, data: Floats, **known: Any) -> Clustering:
        over_rows = check_choice("split", self.split, SPLITS) == "rows"
        if over_rows and (self.agents is not None or self.hops != 0):
            raise InputError("agents and hops are for split='features'; with 'rows' give workers")
        if not over_rows and not (isinstance(self.workers, int) and self.workers == 1):
            raise InputError("workers are for split='rows'; with 'features' give agents")
        seed = self._seed()
        sums = self._settings(SumSettings, seed=seed)
        privacy = self._settings(PrivacySettings)
        dtype = np.dtype(np.float64) if privacy.is_asked else data.dtype
        n_init = self.n_init
        if n_init == "auto":
            n_init = 10 if isinstance(self.init, str) and self.init == "random" else 1
        settings = self._settings(KmeansSettings, seed=seed, dtype=dtype, n_init=n_init)
        if over_rows:
            workers = workers_of(self.workers, len(data))
            self._holders = workers.names
            network = connect_workers(self._graph(workers.n_workers, seed), sums)
            clustering = kmeans_rows(data, workers, network, settings, privacy=privacy, **known)
        elif privacy.is_asked:
            raise InputError(Setting("epsilon"), *OVER_FEATURES[1])
        else:
            partition = self._partition_of(self.agents, data.shape[1], True)
            graph = self._graph(partition.n_agents, seed)
            self._holders = graph.names or partition.names
            network = connect(graph, partition, sums)
            clustering = kmeans_features(data, network, settings, **known)
        self.clustering_: Clustering = clustering
        self._place(clustering.centres, clustering.scaling, data.dtype)
        self.labels_ = clustering.labels
        self.inertia_ = clustering.inertia
        self.n_iter_ = clustering.n_iter
        return clustering

    def _place(
        self, centres: NDArray[np.float64], scaling: Scaling | None, dtype: np.dtype[np.floating]
    ) -> None:
        self._centres, self._scaling = centres, scaling
        self.cluster_centers_ = centres.astype(dtype)
        self._n_features_out = len(centres)

    _noun = "cluster"
    _result = "cluster_centers_", "clustering_"
    _without: ClassVar = {
        "algorithm": "it is Lloyd's algorithm",
        "copy_x": "data are never changed",
        "tol": "it stops when no row changes its cluster",
    }

    def fit_predict(
        self, X: Rows, y: object = None, sample_weight: ArrayLike | None = None
    ) -> NDArray[np.int32]:
        """Cluster the rows and return the cluster of each, shape (M,)."""
        return self.fit(X, y, sample_weight).labels_

    _write: ClassVar = staticmethod(write_clustering)

    def _assign(self, X: Rows) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Nearest centre of each row and its squared distance."""
        self._check_fitted("cluster_centers_")
        data = self._validate(X, reset=False)
        check_values(data)
        scaling = self._scaling or Scaling.none(data.shape[1])
        return nearest(data, self._centres, scaling, thread_count(self.n_threads))

    def predict(self, X: Rows) -> NDArray[np.int32]:
        """Nearest centre of each row of X (M, d), shape (M,)."""
        return self._assign(X)[0]

    def transform(self, X: Rows) -> NDArray[np.float64]:
        """Distance of each row to each centre, shape (M, K)."""
        self._check_fitted("cluster_centers_")
        data = self._validate(X, reset=False)
        centres, scaling = self._centres, self._scaling
        rows = np.ascontiguousarray(data if scaling is None else scaling.apply(data))
        out = np.empty((len(centres), len(data)))
        places = centres if scaling is None else scaling.apply(centres)
        there = ~np.isnan(rows)
        if there.all():
            distances_to(rows, places, out, thread_count(self.n_threads))
        else:
            threads = thread_count(self.n_threads)
            out[...] = squares_of_observed(rows, there.astype(np.uint8), places, threads).T
        distances: NDArray[np.float64] = np.sqrt(out).T.astype(data.dtype)
        return distances

    def score(self, X: Rows, y: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Minus the weighted sum of squared distances to the nearest centres."""
        distances = self._assign(X)[1]
        if sample_weight is not None:
            distances = distances * check_weights(np.asarray(sample_weight), len(distances))
        return -float(distances.sum())


def kmeans_of(stored: StoredClustering) -> DistributedKMeans:
    estimator = DistributedKMeans.of_stored(stored)
    estimator._place(stored.centres, stored.scaling, np.dtype(np.float64))
    estimator.labels_ = stored.labels
    estimator.inertia_ = number_in(stored.report, "inertia")
    return estimator
