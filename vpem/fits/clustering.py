"""Data and options of every kind of k-means, their checks, sums that last, and the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, log, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.checks import (
    Floats,
    Labels,
    check_kind,
    check_rows,
    check_weights,
    extremes,
    precision_of,
    row_blocks,
)
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting, not_converged, warn
from vpem.files.checkpoints import describe_run
from vpem.files.models import current_versions
from vpem.files.results import Assigning, StoredClustering
from vpem.fits.answer import Answer, spread_of_clusters
from vpem.fits.local_rows import AllRows
from vpem.fits.prepare import LARGEST_VALUE, Prepared, look_at, refuse_large
from vpem.fits.results import SUMMED, NetworkResult, listed, reported, warn_of_partitions
from vpem.network.graph import Graph
from vpem.network.schema import Report
from vpem.records import Sentence
from vpem.rules import MASKED_ABSENT, OF_ITERATIONS, summing
from vpem.settings import CLUSTER_INITS, KmeansSettings, SumSettings
from vpem.steps.lloyd import KMeansProgress, Pace
from vpem.sums.connect import Network, uncompressed
from vpem.sums.partial import HeardAtServer, HeardByNeighbours
from vpem.sums.quantizer import contraction
from vpem.sums.sum import Sum
from vpem.terms.features import FeatureTerms
from vpem.terms.rows import blank_row, check_columns, observed_moments
from vpem.terms.units import TENFOLD, Add, RunningMoments, Scaling, spreads_apart

if TYPE_CHECKING:
    from vpem.fits.feature_kmeans import OneShot


OBSERVED_VALUES = ("cluster by observed values with ", Setting("missing", "marginalize"))
"""Advice where values are missing."""


SOME_VALUES = 1 << 16
"""Values of rows whose moments are taken at once, while they are in the cache."""


def prepare(
    X: Any,
    n_features: int,
    settings: KmeansSettings,
    sample_weight: Any,
    feature_names: Sequence[str] | None,
    rows: AllRows,
    n_of_centres: int | None = None,
) -> Prepared:
    """Check the data and options of k-means.

    ``rows`` says what other processes have. Where workers hold rows, X and weights are those of
    this process's, and the weights of `Prepared` those of all. Centres to start from have
    ``n_of_centres`` features, by default those of X.
    """
    n_clusters, init = settings.n_clusters, settings.init
    rows.refuse_showing(settings, "k-means++")
    precision = precision_of(settings.dtype)
    watched = None
    if settings.scale == "none" and not rows.masked:
        watched = _Watched(n_features, sample_weight)
    watch: Callable[[Any], Any] = (lambda data: data) if watched is None else watched.watch
    missing = settings.missing
    data, misses, ends = look_at(
        X, n_features, feature_names, missing, OBSERVED_VALUES, rows, watch
    )
    n_samples = n_positive = rows.count_all(len(data))
    if ends is None:
        ends = extremes(data if misses else watch(data))
    misses = missing != "refuse" and bool(rows.any(np.array([misses]))[0])  # in any process
    if misses:
        blank = np.flatnonzero(~rows.seen(~np.isnan(data).all(axis=1)))
        if len(blank):
            raise blank_row(rows.number(int(blank[0])))
        check_columns(data, feature_names, elsewhere=rows.in_columns)
    weights = None
    if sample_weight is not None:
        weights = check_weights(sample_weight, len(data), some=not rows.here)
        if not rows.masked:
            weights = check_weights(rows.everyones(weights), n_samples)
        n_positive = rows.count(weights > 0)
    if n_positive < n_clusters:
        raise InputError(
            f"{n_clusters} clusters need at least as many rows, got {n_positive}"
            f"{'' if weights is None else ' with a positive weight'}; try fewer clusters"
        )
    refuse_large(data, ends, feature_names, precision)
    scaling, deviations = Scaling.none(n_features), None
    if not rows.masked:
        add, row_weights = rows.add, None if weights is None else rows.mine(weights)
        if misses:
            shift, deviations = observed_moments(data, row_weights, add)
            scaling = Scaling.standardize(shift, deviations) if watched is None else scaling
        elif watched is not None:
            deviations = watched.deviations(add)
        else:
            scaling = Scaling.standard(data, row_weights, add)
            deviations = scaling.scale
    prepared = Prepared(
        data, n_samples, weights, None, None, precision, misses, n_samples, scaling=scaling,
        deviations=deviations,
    )  # fmt: skip
    if isinstance(init, str):
        return prepared
    most = LARGEST_VALUE[precision.itemsize]
    start = np.asarray(init) if isinstance(init, Sequence | np.ndarray) else np.empty(0)
    if start.ndim == 2:
        width = n_of_centres or n_features
        if start.shape != (n_clusters, width) or start.dtype.kind not in "iuf":
            raise InputError(
                f"starting centres must be {n_clusters} x {width} numbers, got shape "
                f"{start.shape} of type {start.dtype}"
            )
        if not (np.abs(start) <= most).all():
            raise InputError(f"starting centres must be finite and at most {most:g} in magnitude")
        return replace(prepared, centres=start.astype(np.float64))
    if start.ndim == 1 and start.size:
        if len(start) != n_clusters:
            raise InputError(f"{n_clusters} clusters need as many init rows, got {len(start)}")
        return replace(prepared, rows=check_rows(start, n_clusters, n_samples))
    raise InputError(
        f"init must be {' or '.join(CLUSTER_INITS)}, row indices, or centres of shape "
        f"({n_clusters}, {n_of_centres or n_features}), got {init!r}"
    )


class _Watched:
    """Moments of rows, taken as they are checked: nothing is read twice.

    Weights (m,) are not checked yet; moments by wrong ones are never used.
    """

    def __init__(self, n_features: int, weights: Any) -> None:
        self._n_features = n_features
        self._given = weights

    def watch(self, data: Any) -> _Watched:
        """Return itself, a `vpem.checks.Matrix` of some rows whose moments are taken."""
        self._data, self.shape = data, data.shape
        self._moments = RunningMoments(self._n_features)
        weights = np.asarray(1.0 if self._given is None else self._given)
        wrong = weights.shape not in ((), (len(data),)) or weights.dtype.kind not in "iufb"
        self._weights = np.broadcast_to(1.0 if wrong else weights.astype(np.float64), len(data))
        self._mass = float(self._weights.sum())
        return self

    def runs(self) -> Iterator[tuple[int, Floats]]:
        """Yield (first row, rows) as `vpem.checks.row_blocks` does."""
        step = max(1, SOME_VALUES // max(self._n_features, 1))
        for start, rows in row_blocks(self._data):
            yield start, rows
            with np.errstate(all="ignore"):
                for begin in range(0, len(rows), step):
                    some = rows[begin : begin + step]
                    share = self._weights[start + begin :][: len(some)] / self._mass
                    self._moments.add_rows(some, share)

    def deviations(self, add: Add) -> NDArray[np.float64]:
        """Return standard deviations (d,) over the rows of all processes."""
        total = add(np.array([self._mass]))[0]
        return self._moments.joined(add, self._mass / total)[1]


SETTLED = 1e-6
"""Part of what a codec left out of a sum that may remain when it stops."""

MEMORIES_OF_ROUNDS = 2
"""Sums by compressed rounds, each of which leaves 0.0001 of that, until as little remains."""

CYCLES = 3
"""Times that all must have been heard, after the first, where agents are inactive by turns."""


ANSWERING: Sentence = (
    Setting("participation"), " applies to workers or agents of a server; leave it out, or on a "
    "graph take ", Setting("agent_dropout"),
)  # fmt: skip
INACTIVE: Sentence = (
    Setting("agent_dropout"), " applies to rounds between the agents of a graph; leave it out, or "
    "at a server or along a tree take ", Setting("participation"),
)  # fmt: skip


def check_absent(graph: Graph, sums: SumSettings, settings: KmeansSettings) -> None:
    """Raise InputError, before any sums are prepared, where no agent can be absent this way."""
    answered = graph.has_server or summing(sums.sum).has_root
    if settings.participation < 1 and not answered:
        raise InputError(*ANSWERING)
    if sums.agent_dropout and answered:
        raise InputError(*INACTIVE)


def check_network(network: Network, settings: KmeansSettings, *, over_rows: bool) -> None:
    check_kind("the network must come from vpem.connect or connect_workers", network, Network)
    if settings.participation < 1 and not network.whole.total.at_server:
        raise InputError(*ANSWERING)
    # Over features k-means can show more than sums under masks do.
    masked = network.agents.masks is not None
    if masked and settings.method == "grid":
        raise InputError(
            Setting("secure_sum"), " hides the terms of sums, but in one shot the server joins the "
            "labels and centres of each party; leave it out, or take ", Setting("method", "lloyd"),
        )  # fmt: skip
    if masked and settings.participation < 1:
        raise InputError(Setting("secure_sum"), *MASKED_ABSENT)
    if settings.batch_size is not None and not over_rows:
        absent = ("participation", settings.participation < 1), ("agent_dropout", network.dropout)
        for name, value in absent:
            if value:
                raise InputError(
                    Setting(name), " lets the last distances of absent agents count, but each "
                    "batch has other rows; leave it out, or ", Setting("batch_size"),
                )  # fmt: skip
    if settings.method == "grid" and network.compress is not None:
        raise InputError(Setting("compress"), *OF_ITERATIONS[1])


def distances_of_all(
    holders: Placement,
    terms: FeatureTerms,
    centres: NDArray[np.float64],
    labels: NDArray[np.int32],
) -> NDArray[np.float64]:
    """Squared distances (M,) of rows to the centres of their clusters, in features of all hubs."""
    distances, ends = np.empty(len(labels)), terms.blocks.offsets.tolist()
    for rows in terms.chunks(holders.n_agents):
        off = terms.rows.read(rows) - centres[labels[rows]]  # in block order
        if terms.observed is not None:
            off *= terms.observed[rows]
        squares = np.empty((terms.blocks.n_blocks, len(off)))
        for of_block, (begin, end) in zip(squares, pairwise(ends), strict=True):
            np.einsum("mj,mj->m", off[:, begin:end], off[:, begin:end], out=of_block)
        distances[rows] = holders.add_up(squares, columns=1)
    return distances


def lasting(total: Sum, network: Network, settings: KmeansSettings) -> Sum:
    """Return the sum of a restart, in which the last messages of absent agents count."""
    if network.dropout:
        return HeardByNeighbours(total)
    if settings.participation == 1:
        return total
    total = total.server
    codec = network.whole.total.codec
    if codec is not None:
        # Here messages are compressed around the sum, and by what they differ from.
        assert total.ledger is not None
        total = uncompressed(network).server.counted_on(total.ledger)
    return HeardAtServer(
        total, settings.participation, seed=settings.seed, codec=codec,
        n_threads=thread_count(settings.n_threads),
    )  # fmt: skip


def pace_of(network: Network, settings: KmeansSettings, n_values: int) -> Pace:
    """Return how Lloyd's iterations go over sums of vectors of so many values.

    Where messages are compressed and some agents are absent, all must have been heard without a
    change as often as it takes until a millionth remains of what the codec left out of the last sum
    that changed; where sums are rounded or rounds fail, once more; and where some are inactive on a
    graph, of whom others have different estimates meanwhile, three times.
    """
    total, faults, patience = network.whole.total, network.faults, 1
    codec = total.codec
    steady = (faults is None or total.exact) and network.compress is None
    if steady and settings.participation == 1:
        patience = 0
    elif network.dropout:
        patience = CYCLES
    elif codec is not None and not total.at_server:
        patience = MEMORIES_OF_ROUNDS
    elif codec is not None and settings.participation < 1:
        _, omega = contraction(codec, n_values)
        left = sqrt(omega / (1.0 + omega))
        hops = 1 if total.tree is None else total.tree.hops
        patience = ceil(log(SETTLED) / log(left)) + hops - 1 if 0 < left < 1 else 1
    return Pace(patience, settings.batch_size)


Callback = Callable[[KMeansProgress], None]


@dataclass(kw_only=True)
class Clustering(
    NetworkResult,
    Assigning,
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
        Weighted sum of squared ``distances``.
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
        Iteration, cluster and row, of clusters that were empty and reinitialised.
    partitions : list of (int, str)
        Iterations that found the network disconnected and changed nothing, and why.
    one_shot : OneShot or None
        What is known of a one-shot clustering (`vpem.fits.feature_kmeans`).
    scaling : Scaling or None
        Units in which distances were taken, where features were standardized.
    deviations : ndarray of shape (d,) or None
        Standard deviation of each feature over all rows, in the user's units; None: not measured,
        where rows are protected or the links of a network failed too often.
    n_rows : int or None
        Rows of all processes, of which some may know their own labels only; None: those of
        ``labels``.
    within : ndarray of shape (d,) or None
        Variances within clusters, where noise was put on them; None: the inertia has them.
    clipped : dict of int to int
        As `vpem.fits.results.RowFit.clipped`.
    network, init_rows, best_restart, total_iterations, guarantee, seconds, communication
        See `vpem.fits.results.NetworkResult`.
    """

    noun = "clusters"
    centres: NDArray[np.float64]
    labels: NDArray[np.int32]
    distances: NDArray[np.float64]
    inertia: float
    root_inertia: NDArray[np.float64]
    counts: NDArray[np.float64]
    history: list[float]
    split: str
    method: str = "lloyd"
    root_centres: NDArray[np.float64] | None = None
    disagreement: float = 0.0
    reseeded: list[tuple[int, int, int]] = field(default_factory=list)
    partitions: list[tuple[int, str]] = field(default_factory=list)
    one_shot: OneShot | None = None
    scaling: Scaling | None = None
    deviations: NDArray[np.float64] | None = None
    n_rows: int | None = None
    within: NDArray[np.float64] | None = None
    clipped: dict[int, int] = field(default_factory=dict)

    @property
    def n_clusters(self) -> int:
        """Number of clusters, K."""
        return len(self.centres)

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return int(self.centres.shape[1])

    @property
    def sizes(self) -> NDArray[np.float64]:
        """Weight of each cluster, (K,)."""
        return self.counts

    @property
    def in_use(self) -> NDArray[np.bool_]:
        """Clusters (K,) that have rows."""
        return self.counts > 0

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
            **reported(self, "split", "method"),
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
            **reported(self, "converged", "n_iter"),
            "init_rows": self._starts,
            "restart": self.best_restart,
            "reseeded": [
                {"iteration": iteration, "cluster": cluster, "row": row}
                for iteration, cluster, row in self.reseeded
            ],
            "partitions": listed(self.partitions),
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
        feature_names: Sequence[str] | None = None,
        report: Report | None = None,
        options: Report | None = None,
        ids: Labels | None = None,
    ) -> StoredClustering:
        """Return the clustering that a file keeps, of features (d,) and rows (M,) with these names.

        The report is that of `describe`, with what else there is to say, of which ``clusters``
        follow from the rest and are left out. Where rows are protected neither ids nor labels are
        kept. Without names features and holders have numbers.
        """
        names, holders = self.own_names()
        names = names if feature_names is None else tuple(feature_names)
        report = self.describe(names, holders) if report is None else report
        rows = slice(None if self.guarantee is None else 0)
        if self.guarantee is not None:
            report, ids = {**report, "warnings": []}, None
        report = {name: value for name, value in report.items() if name != "clusters"}
        return StoredClustering(
            self.centres,
            self.labels[rows],
            self.distances[rows],
            names,
            ids,
            self.root_centres,
            report,
            options or {},
            current_versions(),
            self.scaling,
            self.deviations,
        )


def warn_of_outcome(clustering: Clustering, max_iter: int) -> None:
    """Warn where iterations ran out, clusters are empty, or features of large numbers decide."""
    apart = 1.0 if clustering.deviations is None else spreads_apart(clustering.deviations)
    if clustering.scaling is None and clustering.guarantee is None and apart >= TENFOLD:
        warn(
            f"standard deviations of features differ {apart:,.0f}-fold, and distances are made of "
            "the largest; try ", Setting("scale", "standard"),
        )  # fmt: skip
    if not clustering.converged:
        warn(
            f"rows still changed their clusters after {max_iter} iterations; try more",
            kind=not_converged,
        )
    warn_of_partitions(clustering.partitions)
    empty = int((clustering.counts <= 0).sum())
    if empty:
        warn(
            f"{empty} of {clustering.n_clusters} clusters are empty: fewer rows are different than "
            "there are clusters; try fewer clusters"
        )


def describe_kmeans(
    name: str, inputs: Prepared, network: Network, settings: KmeansSettings
) -> Report:
    """Describe a run by what must be the same when it goes on."""
    settings = settings.changed(
        dtype=inputs.precision.name, n_threads=thread_count(settings.n_threads)
    )
    return describe_run(name, inputs.X, inputs.row_weights, network, **settings.values("method"))
