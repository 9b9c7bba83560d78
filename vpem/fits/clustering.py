"""What k-means ends with, and what is told of it meanwhile."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.checks import (
    Labels,
)
from vpem.errors import Setting, VpemWarning, not_converged
from vpem.files.clusterings import StoredClustering
from vpem.files.fingerprint import describe_run
from vpem.files.models import current_versions
from vpem.fits.answer import Answer, spread_of_clusters
from vpem.fits.cluster_data import Wanted
from vpem.fits.outcomes import warn_of_partitions
from vpem.fits.privacy import Guarantee
from vpem.fits.results import SUMMED, NetworkResult
from vpem.network.schema import Report
from vpem.settings import KmeansSettings
from vpem.sums.connect import Network
from vpem.terms.scaling import TENFOLD, Scaling, spreads_apart

if TYPE_CHECKING:
    from vpem.fits.one_shot import OneShot


@dataclass(frozen=True)
class KMeansProgress:
    """What a callback gets after every iteration; ``changed``: rows in other clusters."""

    iteration: int
    inertia: float
    changed: int


Callback = Callable[[KMeansProgress], None]


@dataclass(kw_only=True)
class Clustering(
    NetworkResult,
    facts="{n_clusters:cluster}, {converged:converged|not converged} after {n_iter:iteration}, "
    "inertia {inertia:.6g}",
):
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
        Distance of each row to the centre of its cluster, in the units of ``scaling``.
    inertia : float
        Sum of squared ``distances`` times row weights: of ``centres``, whatever roots found
        on the way.
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
    deviations : ndarray of shape (d,) or None
        Standard deviation of each feature over all rows, in the user's units; None: not measured,
        where rows are protected or the links of a network failed too often.
    n_rows : int or None
        Rows of all processes, of which some may know their own labels only; None: those of
        ``labels``.
    guarantee : Guarantee or None
        What is promised of rows; then there is no inertia, and sizes are noisy.
    within : ndarray of shape (d,) or None
        Variances within clusters, where noise was put on them; None: the inertia has them.
    clipped : dict of int to int
        As `vpem.fits.results.RowFit.clipped`.
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
    deviations: NDArray[np.float64] | None = None
    n_rows: int | None = None
    guarantee: Guarantee | None = None
    within: NDArray[np.float64] | None = None
    clipped: dict[int, int] = field(default_factory=dict)

    @property
    def n_clusters(self) -> int:
        """Number of clusters, K."""
        return len(self.centres)

    @property
    def n_iter(self) -> int:
        """Iterations of the restart that was kept."""
        return len(self.history) if self.guarantee is None else self.total_iterations

    @property
    def spread(self) -> NDArray[np.float64]:
        """Standard deviations (d,) of features over all rows (`vpem.fits.answer`)."""
        if self.deviations is not None:
            return self.deviations
        within = self.within
        if within is None:
            values = max(float(self.counts.sum()), 1.0) * self.centres.shape[1]
            within = np.full(self.centres.shape[1], self.inertia / values)
        return spread_of_clusters(self.centres, self.counts, within, self.scaling)

    def answer(self, feature_names: Sequence[str]) -> Answer:
        """Return how large clusters are, and in which features each differs."""
        measured = self.deviations is not None
        return Answer.of_clusters(self.centres, self.counts, self.spread, feature_names, measured)

    def describe(self, feature_names: Sequence[str], holders: Sequence[str]) -> Report:
        """Summarize the clustering in values that JSON can hold; see `NetworkResult.describe`."""
        network, over_rows = self.network, self.split == "rows"
        return {
            "algorithm": "k-means",
            "split": self.split,
            "method": self.method,
            "n_samples": len(self.labels) if self.n_rows is None else self.n_rows,
            "n_features": self.centres.shape[1],
            "n_workers" if over_rows else "n_agents": network.graph.n_agents,
            "worker_names" if over_rows else "agent_names": list(holders),
            "feature_names": list(feature_names),
            "n_clusters": self.n_clusters,
            "cluster_sizes": self.counts.tolist(),
            "spread": self.spread.tolist(),
            "spread_measured": self.deviations is not None,
            "scale": "none" if self.scaling is None else "standard",
            "inertia": self.inertia,
            "root_inertia": self.root_inertia.tolist(),
            "disagreement": self.disagreement,
            "history": list(self.history),
            "seconds": self.seconds,
            **({} if self.guarantee is None else self.guarantee.in_report("inertia")),
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
            From `describe`, with what else there is to say, of which ``clusters`` follow from the
            rest and are left out; and how the fit was asked for.
        ids : ndarray of shape (M,), optional
            What the rows are called; where rows are protected neither this nor labels are kept.
        """
        told = slice(None if self.guarantee is None else 0)
        if self.guarantee is not None:
            report, ids = {**report, "warnings": []}, None
        report = {name: value for name, value in report.items() if name != "clusters"}
        return StoredClustering(
            self.centres,
            self.labels[told],
            self.distances[told],
            tuple(feature_names),
            ids,
            self.root_centres,
            report,
            options,
            current_versions(),
            self.scaling,
            self.deviations,
        )


def warn_of_outcome(found: Clustering, max_iter: int) -> None:
    """Warn where iterations ran out, clusters are empty, or features of large numbers decide."""
    apart = 1.0 if found.deviations is None else spreads_apart(found.deviations)
    if found.scaling is None and found.guarantee is None and apart >= TENFOLD:
        message = VpemWarning(
            f"standard deviations of features differ {apart:,.0f}-fold, and distances are made of "
            "the largest; try ", Setting("scale", "standard"),
        )  # fmt: skip
        warnings.warn(message, stacklevel=3)
    if not found.converged:
        warnings.warn(
            not_converged(
                f"rows still changed their clusters after {max_iter} iterations; try more"
            ),
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
