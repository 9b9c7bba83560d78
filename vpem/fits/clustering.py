"""What k-means ends with, and what every kind of it asks of data and options."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.checks import Floats, Labels, check_data, check_rows, check_weights, row_blocks
from vpem.errors import InputError, NotConvergedWarning, VpemWarning
from vpem.files.clusterings import StoredClustering
from vpem.files.fingerprint import describe_run
from vpem.files.models import current_versions
from vpem.fits.local_rows import LocalRows
from vpem.fits.prepare import precision_of
from vpem.fits.results import SUMMED, NetworkResult, warn_of_partitions
from vpem.network.schema import Report
from vpem.settings import CLUSTER_INITS, KmeansSettings
from vpem.sums.connect import Network
from vpem.terms.scaling import Scaling, alone

if TYPE_CHECKING:
    from vpem.fits.one_shot import OneShot

__all__ = [
    "Callback",
    "Clustering",
    "KMeansProgress",
    "Wanted",
    "describe_kmeans",
    "prepare",
    "progress_of",
    "warn_of_outcome",
]

LARGEST_VALUE = {8: 1e140, 4: 1e17}
"""Largest value to be squared and summed, by bytes of the precision."""


@dataclass(frozen=True)
class KMeansProgress:
    """What a callback gets after every iteration; ``changed``: rows in other clusters."""

    iteration: int
    inertia: float
    changed: int


Callback = Callable[[KMeansProgress], None]


@dataclass(kw_only=True)
class Clustering(NetworkResult):
    """Rows in clusters, and how that came about.

    Attributes
    ----------
    centres : ndarray of shape (K, d)
        In the user's units and order of the features; where every worker has its own, their mean.
    root_centres : ndarray of shape (R, K, d) or None
        Of each worker, where data split by rows are summed by consensus; else None.
    labels : ndarray of shape (M,)
        Cluster of each row: the nearest of ``centres``; in one shot that of the row's cell.
    distances : ndarray of shape (M,)
        Squared distance of each row to the centre of its cluster, in the units of ``scaling``.
    inertia : float
        Sum of ``distances`` times row weights: of ``centres``, whatever roots found on the way.
    root_inertia : ndarray of shape (R,)
        The inertia as each root finds it by consensus; R is 1 where all share one sum.
    disagreement : float
        Under consensus, share of the rows in another cluster by the centres of the worker that
        holds them (data split by rows), or that roots have in different clusters.
    counts : ndarray of shape (K,)
        Weight of each cluster.
    history : list of float
        Inertia of the assignment in each iteration, as the first root finds it.
    converged : bool
        Whether no row changed its cluster in the last iteration, or in as many as it takes where
        sums err or some are absent.
    split, method : str
        "rows" or "features"; "lloyd" or "grid".
    reseeded : list of (int, int, int)
        Iteration, cluster and row, of clusters that were empty and placed anew.
    partitions : list of (int, str)
        Iterations that found the network fallen apart and changed nothing, and why.
    one_shot : OneShot or None
        What is known of a one-shot clustering (`vpem.fits.one_shot`).
    scaling : Scaling or None
        Units in which distances were taken, where features were standardized.
    network, init_rows, best_restart, total_iterations, seconds, communication
        See `vpem.fits.results.NetworkResult`.
    """

    centres: NDArray[np.float64]
    labels: NDArray[np.int32]
    distances: NDArray[np.float64]
    inertia: float
    root_inertia: NDArray[np.float64]
    counts: NDArray[np.float64]
    history: list[float]
    split: str
    method: str
    root_centres: NDArray[np.float64] | None = None
    disagreement: float = 0.0
    reseeded: list[tuple[int, int, int]] = field(default_factory=list)
    partitions: list[tuple[int, str]] = field(default_factory=list)
    one_shot: OneShot | None = None
    scaling: Scaling | None = None

    @property
    def n_clusters(self) -> int:
        """Number of clusters, K."""
        return len(self.centres)

    @property
    def n_iter(self) -> int:
        """Iterations of the restart that was kept."""
        return len(self.history)

    def describe(self, feature_names: Sequence[str], holders: Sequence[str]) -> Report:
        """Summarize the clustering in values that JSON can hold; see `NetworkResult.describe`."""
        network, over_rows = self.network, self.split == "rows"
        return {
            "algorithm": "k-means",
            "split": self.split,
            "method": self.method,
            "n_samples": len(self.labels),
            "n_features": self.centres.shape[1],
            "n_workers" if over_rows else "n_agents": network.graph.n_agents,
            "worker_names" if over_rows else "agent_names": list(holders),
            "feature_names": list(feature_names),
            "n_clusters": self.n_clusters,
            "cluster_sizes": self.counts.tolist(),
            "scale": "none" if self.scaling is None else "standard",
            "inertia": self.inertia,
            "root_inertia": self.root_inertia.tolist(),
            "disagreement": self.disagreement,
            "history": list(self.history),
            "converged": self.converged,
            "n_iter": self.n_iter,
            "init_rows": self._starts,
            "restart": self.best_restart,
            "reseeded": [
                {"iteration": iteration, "cluster": cluster, "row": row}
                for iteration, cluster, row in self.reseeded
            ],
            "partitions": [
                {"iteration": iteration, "reason": reason} for iteration, reason in self.partitions
            ],
            "one_shot": None if self.one_shot is None else self.one_shot.describe(self.inertia),
            **network.describe("server", "edges", "topology"),
            "hops": None if over_rows else network.hops,
            "hubs": None
            if over_rows
            else [[int(agent) for agent in hub.agents] for hub in network.hubs],
            "roots": None if over_rows else [int(hub.root) for hub in network.hubs],
            **network.describe("positions", *SUMMED, "compress", "faults"),
            "communication": self.communication,
            "seconds": self.seconds,
        }

    def kept(
        self,
        feature_names: Sequence[str],
        report: Report,
        options: Report,
        ids: Labels | None = None,
    ) -> StoredClustering:
        """Return the clustering that a file keeps.

        Parameters
        ----------
        feature_names : sequence of str
            Names of the features (d,).
        report, options : dict
            From `describe`, with what else there is to say; and how the fit was asked for.
        ids : ndarray of shape (M,), optional
            What the rows are called.
        """
        return StoredClustering(
            self.centres,
            self.labels,
            self.distances,
            tuple(feature_names),
            ids,
            self.root_centres,
            report,
            options,
            current_versions(),
            self.scaling,
        )


@dataclass
class Wanted:
    """Data and options that were checked.

    Attributes
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data.
    row_weights : ndarray of shape (M,) or None
        Weight of each row.
    rows : ndarray of shape (K,) or None
        Rows to start from.
    centres : ndarray of shape (K, d) or None
        Centres to start from.
    init : str or None
        How else to start.
    restarts : int
        How often to start.
    dtype : dtype
        Precision of the rows.
    scaling : Scaling
        Units to cluster in; X and the centres to start from are in the user's.
    """

    X: Any
    row_weights: NDArray[np.float64] | None
    rows: NDArray[np.intp] | None
    centres: NDArray[np.float64] | None
    init: str | None
    restarts: int
    dtype: np.dtype[np.floating]
    scaling: Scaling

    @property
    def kept_scaling(self) -> Scaling | None:
        """The units, where they are not the user's."""
        return None if self.scaling.is_none else self.scaling


def prepare(
    X: Any,
    n_features: int,
    how: KmeansSettings,
    sample_weight: Any,
    feature_names: Sequence[str] | None,
    here: LocalRows | None = None,
    n_of_centres: int | None = None,
) -> Wanted:
    """Check what every kind of k-means is given.

    With ``here`` X has the rows of this process's workers, and others have more. Centres to start
    from are of ``n_of_centres`` features, by default of those of X.

    Raises
    ------
    InputError
        If data or an option cannot be used.
    """
    n_clusters, init = how.n_clusters, how.init
    precision = precision_of(how.dtype)
    data = check_data(X, n_features, feature_names, least_rows=int(here is None))
    weights = None
    n_samples = n_positive = len(data) if here is None else here.n_samples
    if sample_weight is not None:
        weights = check_weights(sample_weight, len(data))
        n_positive = int(np.count_nonzero(weights))
    if n_positive < n_clusters:
        raise InputError(
            f"{n_clusters} clusters need at least as many rows, got {n_positive}"
            f"{'' if weights is None else ' with a positive weight'}; try fewer clusters"
        )
    most = LARGEST_VALUE[precision.itemsize]
    for start, part in row_blocks(data):
        if max(float(part.max(initial=0)), -float(part.min(initial=0))) > most:
            row, column = divmod(int(np.abs(part).argmax()), part.shape[1])
            name = "" if feature_names is None else f" ({feature_names[column]!r})"
            raise InputError(
                f"row {start + row}, feature {column}{name} is {float(part[row, column]):g}: its "
                f"square cannot be computed with in {precision.name}; scale the features first"
            )
    scaling = Scaling.none(n_features)
    if how.scale == "standard":
        add = alone if here is None else here.holders.allreduce
        scaling = Scaling.standard(data, weights, add)
    rows = centres = None
    if isinstance(init, str):
        return Wanted(data, weights, None, None, init, how.n_init, precision, scaling)
    given = np.asarray(init) if isinstance(init, Sequence | np.ndarray) else np.empty(0)
    if given.ndim == 2:
        centres = _check_centres(given, n_clusters, n_of_centres or n_features, most)
    elif given.ndim == 1 and given.size:
        if len(given) != n_clusters:
            raise InputError(f"{n_clusters} clusters need as many init rows, got {len(given)}")
        rows = check_rows(given, n_clusters, n_samples)
    else:
        raise InputError(
            f"init must be {' or '.join(CLUSTER_INITS)}, row indices, or centres of shape "
            f"({n_clusters}, {n_of_centres or n_features}), got {init!r}"
        )
    return Wanted(data, weights, rows, centres, None, 1, precision, scaling)


def _check_centres(
    given: Floats, n_clusters: int, n_features: int, most: float
) -> NDArray[np.float64]:
    if given.shape != (n_clusters, n_features) or given.dtype.kind not in "iuf":
        raise InputError(
            f"starting centres must be {n_clusters} x {n_features} numbers, got shape "
            f"{given.shape} of type {given.dtype}"
        )
    if not (np.abs(given) <= most).all():
        raise InputError(f"starting centres must be finite and at most {most:g} in magnitude")
    return given.astype(np.float64)


def warn_of_outcome(found: Clustering, max_iter: int) -> None:
    """Warn where iterations ran out, clusters are empty, or roots disagree.

    Warns
    -----
    NotConvergedWarning
        If rows still changed their cluster in the last iteration.
    VpemWarning
        If there are fewer different rows than clusters, or much consensus error.
    """
    if not found.converged:
        warnings.warn(
            f"rows still changed their clusters after {max_iter} iterations; try more",
            NotConvergedWarning,
            stacklevel=3,
        )
    warn_of_partitions(found.partitions)
    empty = int((found.counts <= 0).sum())
    if empty:
        warnings.warn(
            f"{empty} of {found.n_clusters} clusters are empty: fewer rows are different than "
            "there are clusters; try fewer clusters",
            VpemWarning,
            stacklevel=3,
        )


def describe_kmeans(name: str, asked: Wanted, network: Network, how: KmeansSettings) -> Report:
    """Describe a run by what must be the same when it goes on."""
    how = how.changed(dtype=asked.dtype.name, n_threads=thread_count(how.n_threads))
    return describe_run(name, asked.X, asked.row_weights, network, **how.values("method"))


def progress_of(callback: Callback | None) -> Callable[[int, float, int], None] | None:
    """Return a callback of Lloyd's iterations that calls one of a recipe."""
    if callback is None:
        return None
    return lambda iteration, inertia, changed: callback(KMeansProgress(iteration, inertia, changed))
