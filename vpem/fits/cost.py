"""How long an iteration takes on a network: what agents compute, what they send, what they wait.

The model has three parts. *Computing*: the flops of the widest hub's E-step and M-step, and the
numbers that are added up, by rates measured on this machine. *Latency*: messages of one round are
on their way together, so that a round takes one, or three where a large message is announced and
asked for first, as MPI does; rows that are summed in several chunks take the rounds for each
`IN_FLIGHT` of them; and agents agree on stopping and, after every sum, on components that
collapsed. *Transfer*: the bytes of the busiest agent by the bandwidth of its link. While one chunk
travels the next is computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np

from vpem._core.threads import one_blas_thread
from vpem.network.links import Link
from vpem.network.partition import Blocks
from vpem.network.schema import Report
from vpem.steps.factors import numbers_of_a_row
from vpem.sums.connect import Network
from vpem.sums.quantizer import ITEM
from vpem.sums.server import IN_FLIGHT
from vpem.sums.tree import AlongTree
from vpem.terms.features import FeatureTerms
from vpem.terms.row_statistics import Message
from vpem.terms.row_terms import CHUNK_BYTES
from vpem.terms.scaling import Scaling

EXPONENTIAL = 20
"""Flops that an exponential and its share of a row's normalisation count as."""

EAGER = 1 << 16
"""Bytes of a message above which it is announced first and sent when it is asked for."""

HANDSHAKE = 2
"""Latencies that this takes."""

WIDEST = 256
"""Features of the block whose flops a second are measured, at most."""

TRIAL_FLOPS = 2e7
"""Of one measurement."""

TRIAL_NUMBERS = 1 << 21
"""Numbers that are added to others, in one measurement."""

TRIALS = 5
"""Measurements, of which the fastest counts."""


@dataclass(frozen=True)
class Work:
    """What the busiest agent does for one sum, of which batches take several in an iteration.

    Attributes
    ----------
    n_samples, n_components, width : int
        Rows, components and features that it computes with.
    values : tuple of int
        Rows and columns of the numbers that it adds to a sum: M x (K - 1) differences of terms, or
        a row of statistics.
    itemsize : int
        Bytes of a number.
    n_sums : float
        Sums of an iteration, as many as all rows are batches.
    n_scalars : int
        Exact numbers of a message besides.
    n_factors : int
        Factors that hubs share.
    """

    n_samples: int
    n_components: int
    width: int
    values: tuple[int, int]
    itemsize: int
    n_sums: float = 1.0
    n_scalars: int = 0
    n_factors: int = 0

    @staticmethod
    def of(
        network: Network,
        n_samples: int,
        n_components: int,
        itemsize: int,
        size: int | None = None,
        n_factors: int = 0,
    ) -> Work:
        """What a hub does where features are split, in batches of this size."""
        width = int(max(network.blocks.widths, default=1))
        own = n_samples if size is None else min(size, n_samples)
        values = (own, numbers_of_a_row(n_components, n_factors))
        n_sums = n_samples / own
        return Work(own, n_components, width, values, itemsize, n_sums, 1, n_factors)

    @staticmethod
    def of_rows(
        network: Network, n_samples: int, n_components: int, n_features: int, size: int | None
    ) -> Work:
        """What a worker does with its share of the rows, in batches of this size."""
        share = ceil(n_samples / network.graph.n_agents)
        own = share if size is None else min(size, share)
        # Where all share an exact sum, those of batches have the entropy of the rows besides.
        entropy = size is not None and network.total.exact and network.total.roots.n_agents == 1
        values = (1, message_size(n_components, n_features) + int(entropy))
        return Work(own, n_components, n_features, values, ITEM, ceil(share / own))

    @property
    def flops(self) -> float:
        """Of an E-step and M-step with full covariances.

        For every row and component a triangular solve and an outer product, ``d^2`` each, and what
        grows with ``d``; with q factors features are projected on them and regressed on them, ``2
        d q`` each, and their moments take ``4 q^2``.
        """
        q = self.n_factors
        a_row = 2.0 * self.width**2 + (6.0 + 4.0 * q) * self.width + 4.0 * q**2 + EXPONENTIAL
        return float(self.n_samples) * self.n_components * a_row


def message_size(n_components: int, n_features: int) -> int:
    """Numbers of a worker's statistics with full covariances, and of its log-likelihood."""
    blocks, units = Blocks((np.arange(n_features),), (0,), ((0,),)), Scaling.none(n_features)
    terms = FeatureTerms(np.zeros((1, n_features)), blocks, "full", scaling=units)
    return Message(terms, np.zeros((n_components, n_features))).size


@dataclass(frozen=True)
class Rates:
    """What one thread of this machine does in a second."""

    flops: float  # of an E-step and M-step
    additions: float  # numbers of 8 bytes that are added to others in memory


def measure_rates(width: int, n_components: int) -> Rates:
    """Measure this machine, on rows of so many features (at most `WIDEST`) that are drawn."""
    width = max(1, min(width, WIDEST))
    one = Work(1, n_components, width, (1, n_components), ITEM)
    n_samples = max(64, int(TRIAL_FLOPS / one.flops))
    rng = np.random.default_rng(0)
    blocks = Blocks((np.arange(width),), (0,), ((0,),))
    rows, units = rng.standard_normal((n_samples, width)), Scaling.none(width)
    terms = FeatureTerms(rows, blocks, "full", scaling=units, reg_covar=1.0)
    means = terms.at_rows(np.arange(n_components) % n_samples)
    mixture, mix = terms.start(means), np.ones((1, 1))

    def sweep() -> None:
        statistics = terms.empty(mixture.means, 1)
        terms.sweep(mixture, terms.prepare(mixture), mix, statistics)
        terms.update(statistics)

    some, more = np.ones(TRIAL_NUMBERS), np.ones(TRIAL_NUMBERS)

    def add() -> None:
        np.add(some, more, out=some)

    with one_blas_thread():
        taken = _fastest(sweep)
    return Rates(n_samples * one.flops / taken, TRIAL_NUMBERS / _fastest(add))


def _fastest(work: Callable[[], None]) -> float:
    """Seconds of the fastest of some calls."""
    found = np.inf
    for _ in range(TRIALS):
        began = time.perf_counter()
        work()
        found = min(found, time.perf_counter() - began)
    return max(float(found), 1e-9)


def iteration_time(
    network: Network,
    sent: Report,
    link: Link,
    work: Work,
    rates: Rates | None = None,
    ahead: float = 0,
) -> Report:
    """Foretell how long an iteration takes where every agent has a machine and a link of its own.

    ``work`` is that of the busiest agent, ``sent`` what `vpem.sums.forecast.communication` says,
    and ``ahead`` the rounds of small sums that come before that of the rows and are not in it;
    without ``rates`` this machine's are measured. It returns seconds ``computing``, ``latency``,
    ``transfer`` and, of a whole ``iteration``; and what they are made of: ``flops`` and
    ``additions`` of the busiest, its ``bytes``, the ``latencies`` one after the other, and
    ``chunks`` of rows.
    """
    rates = rates or measure_rates(work.width, work.n_components)
    one: Report = sent["batch"] if "batch" in sent else sent["iteration"]
    kinds, agreed = one["by_kind"], sent["iteration"]["by_kind"]["stopping"]["rounds"]
    n_rounds = kinds["estep"]["rounds"] + kinds["server"]["rounds"]
    others = one["rounds"] - n_rounds - kinds["stopping"]["rounds"]
    n_values = float(work.values[0]) * work.values[1]
    most, n_bytes = _busiest(network, one)
    terms = float(work.values[0]) * (work.values[1] + 1) * work.itemsize
    chunks = 1 if work.values[0] == 1 else _chunks(network, terms)
    flights = ceil(chunks / IN_FLIGHT)
    messages = max(1, kinds["estep"]["messages"] + kinds["server"]["messages"])
    size = (kinds["estep"]["bytes"] + kinds["server"]["bytes"]) / messages / chunks
    ways = 1 + (HANDSHAKE if size > EAGER else 0)
    # On components that collapsed all agree after every sum, on stopping after an iteration.
    waits = ahead + work.n_sums * (n_rounds * flights * ways + others + agreed) + agreed
    flops, additions = work.n_sums * work.flops, work.n_sums * n_values * most
    computing = flops / rates.flops + additions / rates.additions
    n_bytes = round(work.n_sums * n_bytes)
    latency, transfer = link.latency * waits, link.transfer(n_bytes)
    longer, shorter = sorted((computing, latency + transfer), reverse=True)
    return {
        "bandwidth": link.bandwidth,
        "one_way_latency": link.latency,
        "flops": flops,
        "flops_per_second": rates.flops,
        "additions": additions,
        "additions_per_second": rates.additions,
        "latencies": waits,
        "chunks": chunks,
        "bytes": n_bytes,
        "computing": computing,
        "latency": latency,
        "transfer": transfer,
        "iteration": longer + shorter / flights,
    }


def _busiest(network: Network, sent: Report) -> tuple[int, int]:
    """Terms that are added up one after the other, and bytes that travel so.

    A server has all terms before it sends their sum: its link carries first one direction, then
    the other. Along a tree the parents of one depth wait for all their children's sums, and those
    of the next for theirs. Rounds among neighbours take both directions at once.
    """
    total, n_agents = network.total, network.graph.n_agents
    up, down = (np.array(sent["by_agent"][f"bytes_{way}"]) for way in ("sent", "received"))
    if network.graph.has_server:
        return n_agents, int((up + down).max(initial=0))
    if isinstance(total, AlongTree):
        leaves, parent = total.tree.leaves, total.tree.parent
        children = np.bincount(parent[leaves], minlength=len(parent))
        depth = total.tree.depth
        most = sum(int(children[depth == hops].max(initial=0)) for hops in range(total.tree.hops))
        messages = max(1, sent["by_kind"]["estep"]["messages"])
        return most, 2 * most * (sent["by_kind"]["estep"]["bytes"] // messages)
    rounds = sent["by_kind"]["estep"]["rounds"]
    most = rounds * (int(network.graph.degrees.max(initial=0)) + 1)
    return most, int(np.maximum(up, down).max(initial=0))


def _chunks(network: Network, n_bytes: float) -> int:
    """Chunks of rows whose sums are taken one after the other, of terms of so many bytes."""
    if network.total.whole:
        return 1
    shared = network.graph.has_server or isinstance(network.total, AlongTree)
    states = 2 if shared else 3 * (1 + int(network.graph.degrees.max(initial=0)))
    return max(1, ceil(n_bytes * IN_FLIGHT * states / CHUNK_BYTES))
