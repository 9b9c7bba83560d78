"""k-means over features that agents hold: Lloyd's algorithm, or in one shot.

In one shot each party clusters its own features, and a server joins the cells:
Ding, Liu, Huang and Li, "K-means clustering with distributed dimensions" (ICML 2016). Party b
clusters its features of all rows into K and sends the centres and the label of each row. Rows with
the same labels at all parties are one cell, placed at the product of the centres; the server runs
weighted k-means on the cells that are not empty.

Let D be the sum of the parties' inertias, q(x) the cell of row x, C the server's centres, and O the
least inertia there is. A best clustering, seen by one party, is a clustering of its features, so
the least inertias of the parties sum to at most O: ``D <= lambda O`` where each party is within
lambda of its least. By the triangle inequality over rows the cells cost the best centres at most
``(sqrt(D) + sqrt(O))^2``, the server's centres cost them at most gamma times that, and the rows at
most ``(sqrt(D) + sqrt(cost of the cells))^2``. Together the inertia is at most
``(sqrt(lambda) + sqrt(gamma) (1 + sqrt(lambda)))^2 O``: 9 O where all solve their k-means. With
expectations in place of costs the same holds by Minkowski's inequality,
and k-means++ is within ``8 (log K + 2)`` of the least in expectation (Arthur and Vassilvitskii).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Floats
from vpem.engines.engine import set_topic
from vpem.errors import InputError
from vpem.files.matrix import FileMatrix, is_stored
from vpem.fits.clustering import (
    Callback,
    Clustering,
    check_network,
    describe_kmeans,
    distances_of_all,
    lasting,
    pace_of,
    prepare,
    warn_of_outcome,
)
from vpem.fits.labels import charge_clusters
from vpem.fits.local_rows import AllRows
from vpem.fits.parts import complete, join_centres, own_columns_of_hubs
from vpem.fits.prepare import Prepared, refuse_first, restart_numbers
from vpem.fits.spread import bring
from vpem.fits.vpem import check_kept
from vpem.network.ledger import Ledger
from vpem.network.schema import Report
from vpem.rules import LEAST_STARTS
from vpem.settings import KmeansSettings
from vpem.steps.feature_lloyd import lloyd_features
from vpem.steps.lloyd import Lloyd, kept_of_lloyd
from vpem.steps.recovery import Saver
from vpem.steps.restarts import Restart, Restarts
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.row_sampling import RowStream, WorkerRows
from vpem.steps.starts import seed_features, seed_rows, teller
from vpem.steps.summing import agree_on_units
from vpem.sums.connect import Network
from vpem.sums.server import ServerSum
from vpem.sums.sum import Sum
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import nearest, weighed

SERVER_STREAM = 0
"""Number of the server's random stream; party b has b + 1."""

CENTRE_BYTES = 8
"""Of a number of a centre."""

INERTIA_BYTES = 8
"""Of the inertia that a party sends."""


@dataclass(frozen=True)
class OneShot:
    """What is known of a one-shot clustering.

    Proven: the inertia is at most ``factor`` times the least there is, where each party's and the
    server's k-means are solved (9, and 1 for one party), and ``factor_of_starts`` times in
    expectation of k-means++, whatever its runs find. ``party_inertia`` (B,) are the inertias of the
    parties' clusterings of their own features: where these are the least there are, their sum is a
    lower bound of any clustering's. ``cell_inertia`` is that of the server's weighted k-means,
    ``n_cells`` are those that are not empty.
    """

    factor: float
    factor_of_starts: float
    party_inertia: NDArray[np.float64]
    cell_inertia: float
    n_cells: int

    def describe(self, inertia: float) -> Report:
        """Describe it and the clustering's inertia in values that JSON can hold."""
        bound = float(self.party_inertia.sum())
        return {
            "factor": self.factor,
            "factor_of_starts": self.factor_of_starts,
            "party_inertia": self.party_inertia.tolist(),
            "lower_bound": bound,
            "inertia_over_lower_bound": inertia / bound if bound > 0 else None,
            "cell_inertia": self.cell_inertia,
            "n_cells": self.n_cells,
        }


def proven_factor(party: float = 1.0, server: float = 1.0) -> float:
    """How far from the least inertia a one-shot clustering can be.

    ``party`` and ``server`` are the factors within which they solve their own k-means.
    """
    return (sqrt(party) + sqrt(server) * (1.0 + sqrt(party))) ** 2


def one_shot(
    inputs: Prepared, network: Network, ledger: Ledger, settings: KmeansSettings
) -> Clustering:
    """Cluster rows by one message of each party (a hub of a star) to the server, and one back.

    Up go centres, labels and an inertia, down centres and labels, and up the inertia of what came
    of it. A row's cluster is that of its cell.
    """
    _check(inputs, network, settings)
    threads, holders = thread_count(settings.n_threads), network.total.holders
    terms = FeatureTerms(
        inputs.X, network.blocks, "spherical", scaling=inputs.scaling,
        row_weights=inputs.row_weights, n_threads=threads, dtype=inputs.precision,
    )  # fmt: skip
    data, offsets = terms.rows.read(slice(0, terms.n_samples)), terms.blocks.offsets
    clustered: dict[int, Report] = {}
    for block, party in enumerate(holders.own.tolist()):
        block_data = np.ascontiguousarray(data[:, offsets[block] : offsets[block + 1]])
        if block_data.shape[1]:
            run, took = _best(block_data, inputs.row_weights, settings, party + 1, threads)
            clustered[party] = {
                "centres": run.centres[0],
                "labels": run.labels,
                "inertia": float(run.inertia[0]),
                "converged": run.converged,
                "iterations": took,
            }
    with set_topic(holders.engine, "server"):
        sent = holders.gather(clustered, holders.n_agents)
        answer = None if sent is None else _join_cells(sent, inputs, settings, threads)
        joined, parts = holders.bcast(None if answer is None else answer[0], holders.n_agents), []
        for party in joined["parties"]:
            part = None if answer is None else answer[1].pop(party)
            part = holders.send(part, holders.n_agents, party)
            parts += [] if part is None or not holders.mine(party) else [part]
    local_centres = np.concatenate([np.empty((settings.n_clusters, 0)), *parts], axis=1)
    labels = joined["labels"]
    distances = distances_of_all(holders, terms, local_centres, labels)
    alone = len(joined["parties"]) == 1
    if not alone and joined["parties"]:
        total = network.whole.total.server.counted_on(ledger)
        blocks, parties = network.whole.blocks, joined["parties"]
        roots, widths = np.array(blocks.roots)[parties], blocks.widths[parties]
        # Labels of all rows, each in as many bits as it needs.
        label_bytes = -(-terms.n_samples * (settings.n_clusters - 1).bit_length() // 8)
        sizes = settings.n_clusters * widths * CENTRE_BYTES + label_bytes
        total.count(sizes + INERTIA_BYTES, roots)
        total.broadcast(sizes, roots)
        total.count(INERTIA_BYTES, roots)
    assert inputs.deviations is not None
    centres, scaling, deviations = join_centres(
        network, local_centres, inputs.scaling, inputs.deviations
    )
    inertia = weighed(distances, inputs.row_weights)
    expected = 8.0 * (log(settings.n_clusters) + 2.0)
    return Clustering(
        centres=centres,
        labels=labels,
        distances=np.sqrt(distances),
        inertia=inertia,
        root_inertia=np.array([inertia]),
        counts=np.bincount(labels, inputs.row_weights, settings.n_clusters).astype(np.float64),
        history=[inertia],
        converged=joined["converged"],
        split="features",
        method="grid",
        network=network.whole,
        scaling=None if scaling.is_none else scaling,
        deviations=deviations,
        total_iterations=joined["iterations"],
        communication={**ledger.summary(), "bytes_by_iteration": [ledger.bytes]},
        one_shot=OneShot(
            factor=1.0 if alone else proven_factor(),
            factor_of_starts=expected if alone else proven_factor(expected, expected),
            party_inertia=joined["party_inertia"],
            cell_inertia=joined["cell_inertia"],
            n_cells=joined["n_cells"],
        ),
    )


def _join_cells(
    sent: dict[int, Report], inputs: Prepared, settings: KmeansSettings, n_threads: int
) -> tuple[Report, dict[int, NDArray[np.float64]]]:
    """Cluster the cells at the server: what it sends all parties, and centres (K, d_b) of each."""
    n_samples = len(inputs.X)
    cells = np.zeros(n_samples, dtype=np.intp)
    for said in sent.values():
        both = cells * settings.n_clusters + said["labels"]
        cells = np.unique(both, return_inverse=True)[1].reshape(-1)
    n_cells = int(cells.max()) + 1
    first = np.full(n_cells, n_samples)
    np.minimum.at(first, cells, np.arange(n_samples))
    # At the product of the parties' centres.
    places = np.concatenate([said["centres"][said["labels"][first]] for said in sent.values()], 1)
    heavy = np.bincount(cells, inputs.row_weights, n_cells).astype(np.float64)
    clustered, took = _best(places, heavy, settings, SERVER_STREAM, n_threads)
    ends = np.cumsum([said["centres"].shape[1] for said in sent.values()])
    answer = {
        "parties": list(sent),
        "labels": clustered.labels[cells],
        "converged": clustered.converged and all(said["converged"] for said in sent.values()),
        "iterations": took + sum(said["iterations"] for said in sent.values()),
        "party_inertia": np.array([said["inertia"] for said in sent.values()]),
        "cell_inertia": float(clustered.inertia[0]),
        "n_cells": n_cells,
    }
    return answer, dict(zip(sent, np.split(clustered.centres[0], ends[:-1], axis=1), strict=True))


def _check(inputs: Prepared, network: Network, settings: KmeansSettings) -> None:
    refuse_first(
        (not network.graph.has_server, (
            "one-shot k-means joins the parties' cells at a server, but the graph has none; take "
            "the topology star, or method lloyd",
        )),
        (inputs.misses, (
            "values are missing, but the proven factor of one shot needs distances in all features "
            "to join cells; take {method=lloyd}",
        )),
        (is_stored(inputs.X), (
            "one-shot k-means keeps each party's features in memory, but the data are read from "
            "disk; raise the memory limit, or take method lloyd",
        )),
    )  # fmt: skip


def _best(
    data: Floats,
    weights: NDArray[np.float64] | None,
    settings: KmeansSettings,
    number: int,
    n_threads: int,
) -> tuple[Lloyd, int]:
    """Best of several runs of k-means over local data, and the iterations of all."""
    alone: Sum = ServerSum(1)
    parts = WorkerRows.in_memory(data)
    positive = len(data) if weights is None else int(np.count_nonzero(weights))
    runs = []
    for start in range(max(LEAST_STARTS, settings.n_init)):
        stream = RowStream(
            np.random.default_rng([settings.seed, number, start]), weights, len(data)
        )
        rows = seed_rows(
            parts, alone, min(settings.n_clusters, positive), stream,
            n_trials=1 if start == 0 else None, n_threads=n_threads,
        )  # fmt: skip
        # Fewer cells than clusters: some clusters begin at the same one, and stay empty.
        centres = data[np.resize(rows, settings.n_clusters)].astype(np.float64)
        runs.append(
            lloyd_rows(
                parts, alone, centres, stream, max_iter=settings.max_iter, n_threads=n_threads
            )
        )
    best = min(runs, key=lambda run: run.inertia[0])
    return best, sum(len(run.history) for run in runs)


def kmeans_features(
    X: Floats | FileMatrix | None,
    network: Network,
    settings: KmeansSettings | None = None,
    *,
    sample_weight: Floats | None = None,
    feature_names: Sequence[str] | None = None,
    callback: Callback | None = None,
    saver: Saver | None = None,
    labels: bool = False,
    **changes: object,
) -> Clustering:
    """k-means over features that agents hold: Lloyd's algorithm, or in one shot.

    Each iteration of "lloyd" sums squared distances over the hubs, as the terms of VP-EM's E-step
    are; every hub's root assigns the rows by the sum that it finds, and places its own part of the
    centres. "grid" is one-shot clustering (Ding et al. 2016; `vpem.fits.feature_kmeans`).

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data; column j is seen by the agent that holds feature j and, once, by its root. Where
        agents live in several processes, the columns of this process's agents, in the order of
        `vpem.fits.spread.own_columns`, or None if it has none. Every process calls with the same
        options.
    network : Network
        From `vpem.connect`; a star for "grid".
    settings, sample_weight, feature_names, **changes
        As for `kmeans_rows`; names are of the columns of ``X``, and sample weights those of the
        first process. For "grid" ``init`` must be "k-means++", and ``n_init`` counts the
        starts of each party and of the server.
    callback : callable, optional
        Called after every iteration.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from; not with "grid".
    labels : bool
        Count what it takes to send all agents the clusters of rows, and distances.

    Returns
    -------
    Clustering
        Labels and distances are of all rows in every process; centres and units of all features in
        the first, in others of their own hubs' features.

    Raises
    ------
    InputError
        If the data or an option cannot be used.

    Warns
    -----
    NotConvergedWarning
        If the iterations ran out.
    VpemWarning
        If clusters are empty.
    """
    began = time.perf_counter()
    settings = KmeansSettings.resolve(settings, **changes)
    check_network(network, settings, over_rows=False)
    n_features = network.whole.blocks.n_features
    if n_features == 0:
        raise InputError("the network's agents hold no features; make it with vpem.connect")
    if network.agents.apart:
        sample_weight = network.agents.bcast(sample_weight)
        X, feature_names = bring(X, network, feature_names, settings.missing)
    inputs = prepare(
        X, network.blocks.n_features, settings, sample_weight, feature_names,
        AllRows(network.total.holders), n_of_centres=n_features,
    )  # fmt: skip
    if settings.method == "lloyd":
        check_kept(inputs.X, network, settings.n_clusters, settings.batch_size)
    ledger = Ledger(network.graph)
    network.charge_setup(ledger, len(inputs.X), inputs.precision.itemsize)
    if saver is not None and settings.method == "grid":
        raise InputError(
            "one-shot clustering has no iterations, hence no checkpoints; leave out the "
            "checkpoint, or take method lloyd"
        )
    if saver is not None:
        saver.begin(describe_kmeans("kmeans-features", inputs, network, settings))
    if settings.method == "grid":
        if labels:
            charge_clusters(network, ledger, len(inputs.X))
        clustering = one_shot(inputs, network, ledger, settings)
        clustering.seconds = time.perf_counter() - began
        warn_of_outcome(clustering, settings.max_iter)
        return clustering
    threads = thread_count(settings.n_threads)
    with one_blas_thread():
        terms = FeatureTerms(
            inputs.X, network.blocks, "spherical", missing=inputs.misses, scaling=inputs.scaling,
            row_weights=inputs.row_weights, n_threads=threads, dtype=inputs.precision,
        )  # fmt: skip
        complete(terms, network, in_sums=True)  # k-means has no log-likelihoods
        agree_on_units(terms, network.total, ledger)
        shape = (settings.n_clusters, network.blocks.n_features)
        places = np.argsort(terms.blocks.order)
        runs = kept_of_lloyd(
            shape, terms.n_samples, network.total,
            undo=lambda centres: inputs.scaling.undo(centres[:, places]),
        )  # fmt: skip

        def attempt(restart: Restart) -> tuple[Lloyd, NDArray[np.intp] | None]:
            total, k, n = restart.total, settings.n_clusters, terms.n_samples
            stream = RowStream(restart.rng, inputs.row_weights, n)
            chosen = inputs.rows
            if restart.saved is not None:
                start, chosen = restart.loop["centres"], restart.drawn()
            elif restart.start is not None:
                begun = runs.begun_at(restart.start)
                start, chosen = inputs.scaling.apply(begun)[:, terms.blocks.order], None
            elif inputs.centres is not None:
                columns = slice(None) if network.part_of is None else own_columns_of_hubs(network)
                start = inputs.scaling.apply(inputs.centres[:, columns])[:, terms.blocks.order]
            else:
                if chosen is None and settings.init != "random":
                    farthest = settings.init == "farthest"
                    tell = teller(callback)
                    chosen = seed_features(terms, total, k, stream, tell, farthest=farthest)
                elif chosen is None:
                    chosen = stream.draw_distinct(k)
                start = terms.at_rows(chosen)
            run = lloyd_features(
                terms, lasting(total, network, settings), start, stream,
                pace=pace_of(network, settings, min(settings.batch_size or n, n) * (k - 1)),
                max_iter=settings.max_iter, callback=callback,
                saver=restart.saver(rows=chosen),
            )  # fmt: skip
            return run, chosen

        numbers = restart_numbers(settings)
        restarts = Restarts(
            saver, ledger, numbers, settings.seed, settings.max_iter, runs, callback
        )
        run, chosen = restarts.best(network.total, attempt)
        if labels:
            charge_clusters(network, ledger, terms.n_samples)
        clustering = _clustering(run, chosen, inputs, terms, network, restarts.outcome(began))
    warn_of_outcome(clustering, settings.max_iter)
    return clustering


def _clustering(
    run: Lloyd,
    chosen: NDArray[np.intp] | None,
    inputs: Prepared,
    terms: FeatureTerms,
    network: Network,
    outcome: Report,
) -> Clustering:
    holders, roots = network.total.holders, network.total.roots
    assert inputs.deviations is not None
    centres, scaling, deviations = join_centres(
        network, run.centres, inputs.scaling, inputs.deviations
    )
    inertia, disagreement = run.inertia, 0.0
    if network.whole.total.n_roots > 1:
        # By the centres that are returned, not as some root finds it.
        if network.agents.apart:
            n_rows = terms.n_samples
            labels, distances = np.empty(n_rows, np.int32), np.empty(n_rows)
            for rows in terms.chunks(len(run.centres)):
                parts = terms.squares(run.centres, rows).sum(axis=0, dtype=np.float64)
                squares = network.agents.allreduce(parts)
                labels[rows], distances[rows] = squares.argmin(axis=1), squares.min(axis=1)
        else:
            labels, distances = nearest(inputs.X, centres, inputs.scaling, terms.n_threads)
        counts = np.bincount(labels, inputs.row_weights, len(centres)).astype(np.float64)
        first = roots.bcast(run.labels[0] if roots.mine(0) else None)
        disagreement = float(holders.any((run.labels != first).any(axis=0)).mean())
    else:
        # On a graph that mixes in one round too all have the same.
        some = (run.labels[0], run.counts[0]) if roots.mine(0) else None
        labels, counts = roots.bcast(some)
        distances = distances_of_all(holders, terms, run.centres, labels)
        inertia = inertia[:1]
    return Clustering(
        centres=centres,
        labels=labels,
        distances=np.sqrt(distances),
        inertia=weighed(distances, inputs.row_weights),
        root_inertia=inertia,
        counts=counts,
        history=run.history,
        split="features",
        network=network.whole,
        scaling=None if scaling.is_none else scaling,
        deviations=deviations,
        disagreement=disagreement,
        reseeded=run.reseeded,
        partitions=run.partitions,
        init_rows=None if chosen is None else tuple(int(row) for row in chosen),
        **outcome,
    )
