"""k-means over workers or agents, with scikit-learn's interface and names."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from vpem._core.assign import distances_to
from vpem._core.threads import thread_count
from vpem.checks import check_weights
from vpem.errors import InputError, Setting, check_choice
from vpem.files.results import StoredClustering, write_clustering
from vpem.fits.clustering import Clustering
from vpem.fits.estimators.base import OnGraph, Rows
from vpem.fits.estimators.rows import workers_of
from vpem.fits.feature_kmeans import kmeans_features
from vpem.fits.row_kmeans import kmeans_rows
from vpem.fits.settings import OVER_FEATURES, PrivacySettings
from vpem.network.schema import Report
from vpem.settings import SPLITS, KmeansSettings, SumSettings
from vpem.sums.connect import connect, connect_workers
from vpem.terms.missing import nearest, squares_of_observed
from vpem.terms.rows import check_values
from vpem.terms.units import Scaling


@dataclass(eq=False, repr=False)
class DistributedKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, OnGraph):
    """k-means of rows that workers hold, or of features that agents hold.

    At a server (``graph="star"``) it is Lloyd's algorithm on pooled data, from the same start; on
    any other graph sums are taken by consensus. ``method="grid"`` is the one-shot clustering of
    Ding et al. (2016) over features.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters, K.
    split : {"rows", "features"}, default="rows"
        What is distributed: rows over workers, or features over agents.
    workers : int, sequence, dict or vpem.Workers, default=1
        With ``split="rows"``: that many contiguous nearly equal parts, the worker of each row
        (number or name), the rows of each by its name, or the workers themselves.
    agents : None, int, dict, list of lists or vpem.Partition, default=None
        With ``split="features"``: one feature each, that many contiguous nearly equal parts, or the
        features of each, by name or number; see `vpem.VPEM`.
    graph : str, networkx.Graph or vpem.Graph, default="star"
        The communication graph. "star" sums exactly at a server; every other graph by consensus.
    method : {"lloyd", "grid"}, default="lloyd"
        "grid" needs ``split="features"`` and a star.
    init : {"k-means++", "random"}, row indices (K,) or centres (K, d), default="k-means++"
        Where to start.
    n_init : int or "auto", default=1
        Restarts; the one of least inertia is kept. "auto": 1 with k-means++, 10 with "random".
    max_iter : int, default=300
        Maximum number of iterations; it stops when no row changes its cluster.
    batch_size : int, optional
        Rows of a batch, after which centres are updated (incremental Lloyd); an iteration is then a
        pass over all rows.
    scale : {"none", "standard"}, default="none"
        "standard" clusters standardized features: `cluster_centers_` keep the data's units,
        distances and `inertia_` are those of standardized features.
    missing : {"refuse", "marginalize"}, default="refuse"
        With "marginalize" values may be missing (NaN): distances and means of observed values.
    hops : int, default=0
        With ``split="features"``: agents at most this many hops from a root send it their
        features, once.
    sum : {"server", "tree", "consensus"}, optional
        How they sum. Default: at a server on a star, else by consensus; "tree" is exact on any
        graph.
    n_rounds : int or "auto", default="auto"
        Consensus rounds of each average.
    weights : {"metropolis", "laplacian", "max-degree"}, default="metropolis"
        Mixing weights of the consensus.
    acceleration : {"chebyshev", "none"}, optional
        Whether rounds are accelerated. Default: they are.
    consensus_tol : float, default=1e-6
        Consensus error to reach, where the number of rounds is "auto".
    eigenvalue, consensus
        Of the rounds; see `vpem.VPEM`.
    compress : str, optional
        Codec of the messages, such as "natural:12bits".
    link_failure, agent_dropout, stragglers : float, default=0.0
        Probabilities with which links and agents fail, on graphs without a server.
    secure_sum : bool, default=False
        Whether sums are masked: only totals are seen, no party's own terms (`vpem.SumSettings`).
    epsilon, delta, bounds, repeatable_noise : float, float, str or pair of arrays, int, optional
        Over rows: differential privacy of one row, by noisy sums (`vpem.PrivacySettings`). There is
        no inertia then, and the noise comes from the system, not from ``random_state``.
    colluding : int, optional
        With ``epsilon`` and ``secure_sum``: number of workers that may collude, without whose noise
        that of the others must do. Default: 1.
    participation : float, default=1.0
        At a server: probability that a worker or agent takes part in an iteration. The last message
        of an absent one still counts.
    random_state : int, Generator, RandomState or None, default=0
        Seed of graph, start, codecs and faults; None: another one in every fit.
    verbose, verbose_interval : int, default=0 and 10
        1: print progress, a line every so many iterations; 2: a line every iteration.
    n_threads : int or None, default=None
        Threads of the kernels; results do not depend on it.

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

    n_clusters: int = 2
    split: str = "rows"
    workers: Any = 1
    agents: Any = None
    graph: Any = "star"
    _: KW_ONLY
    method: str = "lloyd"
    init: object = "k-means++"
    n_init: int | str = 1
    max_iter: int = 300
    batch_size: int | None = None
    scale: str = "none"
    missing: str = "refuse"
    hops: int = 0
    n_rounds: int | str = "auto"
    compress: str | None = None
    agent_dropout: float = 0.0
    epsilon: float | None = None
    delta: float | None = None
    bounds: object = None
    repeatable_noise: int | None = None
    colluding: int | None = None
    participation: float = 1.0

    def fit(
        self, X: Rows, y: object = None, sample_weight: ArrayLike | None = None
    ) -> DistributedKMeans:
        """Cluster the rows.

        Parameters
        ----------
        X : array of shape (M, d), data frame or Dataset
            One row per sample; a dataset brings names of features and weights of rows.
        y : ignored
            Present by scikit-learn's convention.
        sample_weight : array of shape (M,), optional
            Weight of each row: zero has no effect, an integer equals as many copies.

        Returns
        -------
        DistributedKMeans
            This estimator.

        Raises
        ------
        InputError
            A ValueError, if the data or a parameter cannot be used.
        """
        data = self._validate(X, reset=True)
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
        lines = self._lines()
        options: Report = {
            "callback": lines,
            "sample_weight": self._weights_of(X, sample_weight),
            "feature_names": self._given_names,
        }
        if over_rows:
            workers = workers_of(self.workers, len(data))
            self._holders = workers.names
            network = connect_workers(self._graph(workers.n_workers, seed), sums)
            clustering = kmeans_rows(data, workers, network, settings, privacy=privacy, **options)
        elif privacy.is_asked:
            raise InputError(Setting("epsilon"), *OVER_FEATURES[1])
        else:
            partition = self._partition_of(self.agents, data.shape[1], True)
            graph = self._graph(partition.n_agents, seed)
            self._holders = graph.names or partition.names
            network = connect(graph, partition, sums)
            clustering = kmeans_features(data, network, settings, **options)
        if lines is not None:
            lines.end(clustering.converged, clustering.n_iter)
        self.clustering_: Clustering = clustering
        self._place(clustering.centres, clustering.scaling, data.dtype)
        self.labels_ = clustering.labels
        self.inertia_ = clustering.inertia
        self.n_iter_ = clustering.n_iter
        return self

    def _place(
        self, centres: NDArray[np.float64], scaling: Scaling | None, dtype: np.dtype[np.floating]
    ) -> None:
        self._centres, self._scaling = centres, scaling
        self.cluster_centers_ = centres.astype(dtype)
        self._n_features_out = len(centres)

    _noun = "cluster"
    _without: ClassVar = {
        "algorithm": "it is Lloyd's algorithm",
        "copy_x": "data are never changed",
        "tol": "it stops when no row changes its cluster",
    }

    def __sklearn_is_fitted__(self) -> bool:
        """Whether `fit` was called."""
        return hasattr(self, "cluster_centers_")

    def fit_predict(
        self, X: Rows, y: object = None, sample_weight: ArrayLike | None = None
    ) -> NDArray[np.int32]:
        """Cluster the rows and return the cluster of each, shape (M,)."""
        return self.fit(X, y, sample_weight).labels_

    _write: ClassVar = staticmethod(write_clustering)

    def kept(self) -> StoredClustering:
        """Return the clustering that a file keeps, as `vpem kmeans` writes it.

        Its options are the estimator's parameters; InputError if nothing was fitted.
        """
        self._refuse_unfitted("cluster_centers_")
        if not hasattr(self, "clustering_"):
            stored: StoredClustering = self._stored  # the file that it was loaded from
            return stored
        names = self._names(self.clustering_.centres.shape[1])
        options = self._options()
        report = self.clustering_.describe(names, self._holders)
        report["seed"] = options["random_state"]
        return self.clustering_.kept(names, report, options)

    def _assign(self, X: Rows) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Nearest centre of each row and its squared distance."""
        check_is_fitted(self, "cluster_centers_")
        data = self._validate(X, reset=False)
        check_values(data)
        scaling = self._scaling or Scaling.none(data.shape[1])
        return nearest(data, self._centres, scaling, thread_count(self.n_threads))

    def predict(self, X: Rows) -> NDArray[np.int32]:
        """Nearest centre of each row of X (M, d), shape (M,)."""
        return self._assign(X)[0]

    def transform(self, X: Rows) -> NDArray[np.float64]:
        """Distance of each row to each centre, shape (M, K)."""
        check_is_fitted(self, "cluster_centers_")
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
