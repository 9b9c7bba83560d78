"""k-means over split features in one shot: each party clusters its own, a server joins the cells.

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
``(sqrt(lambda) + sqrt(gamma) (1 + sqrt(lambda)))^2 O``: 9 O where everybody solves its
k-means. With expectations in place of costs the same holds by Minkowski's inequality,
and k-means++ is within ``8 (log K + 2)`` of the least in expectation (Arthur and Vassilvitskii).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.checks import Floats
from vpem.engines.engine import about
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting
from vpem.files.matrix import FileMatrix
from vpem.fits.cluster_data import Wanted
from vpem.fits.cluster_sums import distances_of_all
from vpem.fits.clustering import Clustering
from vpem.fits.parts import join_centres
from vpem.idle import LEAST_STARTS
from vpem.network.ledger import Ledger
from vpem.network.schema import Report
from vpem.settings import KmeansSettings
from vpem.steps.lloyd import Lloyd
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.seeding import seed_rows
from vpem.steps.streams import RowStream
from vpem.sums.connect import Network
from vpem.sums.counted import at_server
from vpem.sums.server import ServerSum
from vpem.terms.features import FeatureTerms
from vpem.terms.nearest import weighed

SERVER_STREAM = 0
"""Number of the server's random stream; party b has b + 1."""

CENTRE_BYTES = 8
"""Of a number of a centre."""

INERTIA_BYTES = 8
"""Of the inertia that a party sends."""


@dataclass(frozen=True)
class OneShot:
    """What is known of a one-shot clustering.

    Attributes
    ----------
    factor : float
        Proven: the inertia is at most this times the least there is, where each party's and the
        server's k-means are solved; 9, and 1 for one party.
    factor_of_starts : float
        Proven in expectation of k-means++, whatever its runs find.
    party_inertia : ndarray of shape (B,)
        Inertia of each party's clustering of its own features. Where these are the least there
        are, their sum is a lower bound of any clustering's inertia.
    cell_inertia : float
        Of the server's weighted k-means.
    n_cells : int
        Cells that are not empty.
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


def one_shot(asked: Wanted, network: Network, ledger: Ledger, how: KmeansSettings) -> Clustering:
    """Cluster rows by one message of each party (a hub of a star) to the server, and one back.

    Up go centres, labels and an inertia, down centres and labels, and up the inertia of what came
    of it. A row's cluster is that of its cell.
    """
    _check(asked, network)
    blocks, threads = network.blocks, thread_count(how.n_threads)
    terms = FeatureTerms(
        asked.X,
        blocks,
        "spherical",
        scaling=asked.scaling,
        row_weights=asked.row_weights,
        n_threads=threads,
        dtype=asked.dtype,
    )
    holders = network.total.holders
    clustered = _cluster_parties(asked, terms, holders, how, threads)
    with about(holders.engine, "server"):
        sent = holders.gather(clustered, holders.n_agents)
        answer = None if sent is None else _join_cells(sent, asked, how, threads)
        told, parts = holders.bcast(None if answer is None else answer[0], holders.n_agents), []
        for party in told["parties"]:
            part = None if answer is None else answer[1].pop(party)
            part = holders.send(part, holders.n_agents, party)
            parts += [] if part is None or not holders.mine(party) else [part]
    own = np.concatenate([np.empty((how.n_clusters, 0)), *parts], axis=1)
    labels = told["labels"]
    distances = distances_of_all(holders, terms, own, labels)
    if len(told["parties"]) > 1:
        _count_messages(network, ledger, told["parties"], terms.n_samples, how.n_clusters)
    assert asked.deviations is not None
    centres, scaling, deviations = join_centres(network, own, asked.scaling, asked.deviations)
    inertia = weighed(distances, asked.row_weights)
    expected = 8.0 * (log(how.n_clusters) + 2.0)
    alone = len(told["parties"]) == 1
    return Clustering(
        centres=centres,
        labels=labels,
        distances=np.sqrt(distances),
        inertia=inertia,
        root_inertia=np.array([inertia]),
        counts=np.bincount(labels, asked.row_weights, how.n_clusters).astype(np.float64),
        history=[inertia],
        converged=told["converged"],
        split="features",
        method="grid",
        network=network.whole,
        scaling=None if scaling.is_none else scaling,
        deviations=deviations,
        total_iterations=told["iterations"],
        communication={**ledger.summary(), "bytes_by_iteration": [ledger.bytes]},
        one_shot=OneShot(
            factor=1.0 if alone else proven_factor(),
            factor_of_starts=expected if alone else proven_factor(expected, expected),
            party_inertia=told["party_inertia"],
            cell_inertia=told["cell_inertia"],
            n_cells=told["n_cells"],
        ),
    )


def _cluster_parties(
    asked: Wanted, terms: FeatureTerms, holders: Placement, how: KmeansSettings, n_threads: int
) -> dict[int, Report]:
    """Cluster the features of each party of this process: what it sends the server."""
    data, offsets = terms.rows.read(slice(0, terms.n_samples)), terms.blocks.offsets
    sent: dict[int, Report] = {}
    for block, party in enumerate(holders.own.tolist()):
        own = np.ascontiguousarray(data[:, offsets[block] : offsets[block + 1]])
        if own.shape[1]:
            weights, stream = asked.row_weights, party + 1
            run, took = _best(own, weights, how, stream, asked.restarts, n_threads)
            sent[party] = {
                "centres": run.centres[0],
                "labels": run.labels,
                "inertia": float(run.inertia[0]),
                "converged": run.converged,
                "iterations": took,
            }
    return sent


def _join_cells(
    sent: dict[int, Report], asked: Wanted, how: KmeansSettings, n_threads: int
) -> tuple[Report, dict[int, NDArray[np.float64]]]:
    """Cluster the cells at the server: what it sends all parties, and centres (K, d_b) of each."""
    n_samples = len(asked.X)
    cells = np.zeros(n_samples, dtype=np.intp)
    for said in sent.values():
        both = cells * how.n_clusters + said["labels"]
        cells = np.unique(both, return_inverse=True)[1].reshape(-1)
    n_cells = int(cells.max()) + 1
    first = np.full(n_cells, n_samples)
    np.minimum.at(first, cells, np.arange(n_samples))
    # At the product of the parties' centres.
    places = np.concatenate([said["centres"][said["labels"][first]] for said in sent.values()], 1)
    heavy = np.bincount(cells, asked.row_weights, n_cells).astype(np.float64)
    joined, took = _best(places, heavy, how, SERVER_STREAM, asked.restarts, n_threads)
    ends = np.cumsum([said["centres"].shape[1] for said in sent.values()])
    told = {
        "parties": list(sent),
        "labels": joined.labels[cells],
        "converged": joined.converged and all(said["converged"] for said in sent.values()),
        "iterations": took + sum(said["iterations"] for said in sent.values()),
        "party_inertia": np.array([said["inertia"] for said in sent.values()]),
        "cell_inertia": float(joined.inertia[0]),
        "n_cells": n_cells,
    }
    return told, dict(zip(sent, np.split(joined.centres[0], ends[:-1], axis=1), strict=True))


def _count_messages(
    network: Network, ledger: Ledger, parties: list[int], n_samples: int, n_clusters: int
) -> None:
    """Count what the parties and the server send."""
    total = at_server(network.whole.total).on(ledger)
    blocks = network.whole.blocks
    roots, widths = np.array(blocks.roots)[parties], blocks.widths[parties]
    # Labels of all rows, each in as many bits as it needs.
    label_bytes = -(-n_samples * (n_clusters - 1).bit_length() // 8)
    sizes = n_clusters * widths * CENTRE_BYTES + label_bytes
    total.count(sizes + INERTIA_BYTES, roots)
    total.broadcast(sizes, roots)
    total.count(INERTIA_BYTES, roots)


def _check(asked: Wanted, network: Network) -> None:
    """Refuse what makes no sense in one shot."""
    if not network.graph.has_server:
        raise InputError(
            "one-shot k-means joins the parties' cells at a server, but the graph has none; take "
            "the topology star, or method lloyd"
        )
    if asked.misses:
        raise InputError(
            "values are missing, but one shot joins cells by distances of all features, which the "
            "factor it is proven to be within needs; take ",
            Setting("method", "lloyd"),
        )
    if asked.init != "k-means++":
        raise InputError(
            "one-shot k-means starts each party's own clustering by k-means++: rows, centres or "
            "random rows to start from are for method lloyd"
        )
    if isinstance(asked.X, FileMatrix):
        raise InputError(
            "one-shot k-means keeps each party's features in memory, but the data are read from "
            "disk; raise the memory limit, or take method lloyd"
        )


def _best(
    data: Floats,
    weights: NDArray[np.float64] | None,
    how: KmeansSettings,
    number: int,
    restarts: int,
    n_threads: int,
) -> tuple[Lloyd, int]:
    """Best of several runs of k-means by one who has the data, and the iterations of all."""
    alone: Any = ServerSum(1)
    positive = len(data) if weights is None else int(np.count_nonzero(weights))
    runs = []
    for start in range(max(LEAST_STARTS, restarts)):
        stream = RowStream(np.random.default_rng([how.seed, number, start]), weights, len(data))
        rows = seed_rows(
            [data], alone, min(how.n_clusters, positive), stream,
            n_trials=1 if start == 0 else None, n_threads=n_threads,
        )  # fmt: skip
        # Fewer cells than clusters: some clusters begin at the same one, and stay empty.
        centres = data[np.resize(rows, how.n_clusters)].astype(np.float64)
        runs.append(
            lloyd_rows([data], alone, centres, stream, max_iter=how.max_iter, n_threads=n_threads)
        )
    best = min(runs, key=lambda run: run.inertia[0])
    return best, sum(len(run.history) for run in runs)
