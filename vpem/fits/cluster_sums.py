"""How k-means sums where messages are compressed, links fail, or some are absent."""

from __future__ import annotations

from math import ceil, log, sqrt

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting
from vpem.network.graph import Graph
from vpem.records import Sentence
from vpem.settings import KmeansSettings, SumSettings
from vpem.steps.lloyd import Pace
from vpem.sums.connect import Network, uncompressed
from vpem.sums.consensus import contraction
from vpem.sums.counted import AtServer, at_server
from vpem.sums.stale import HeardAtServer, HeardByNeighbours
from vpem.sums.sum import Sum
from vpem.sums.tree import AlongTree
from vpem.terms.features import FeatureTerms
from vpem.terms.nearest import distances_within

SETTLED = 1e-6
"""Part of what a codec left out of a sum that may be left when it stops."""

MEMORIES_OF_ROUNDS = 2
"""Sums by compressed rounds, each of which leaves 0.0001 of that, until as little is left."""

CYCLES = 3
"""Times that all must have been heard, after the first, where agents are silent by turns."""


ANSWERING: Sentence = (
    Setting("participation"), " is of those who answer a server; leave it out, or on a graph take ",
    Setting("agent_dropout"),
)  # fmt: skip
SILENT: Sentence = (
    Setting("agent_dropout"), " is of agents of a graph; leave it out, or for those who answer a "
    "server, or add along a tree, take ", Setting("participation"),
)  # fmt: skip


def check_absent(graph: Graph, sums: SumSettings, how: KmeansSettings) -> None:
    """Raise InputError, before any sums are prepared, where they let nobody be absent this way."""
    answered = graph.has_server or sums.sum == "tree"
    if how.participation < 1 and not answered:
        raise InputError(*ANSWERING)
    if sums.agent_dropout and answered:
        raise InputError(*SILENT)


def check_network(network: Network, how: KmeansSettings, *, over_rows: bool) -> None:
    """Raise InputError where k-means cannot be had over a network, saying why."""
    if not isinstance(network, Network):
        raise InputError(
            f"the network must come from vpem.connect or connect_workers, got "
            f"{type(network).__name__}"
        )
    if how.participation < 1 and not isinstance(network.whole.total, AtServer):
        raise InputError(*ANSWERING)
    if network.agents.masks is not None:
        _check_masked(how)
    of_sums = (("compress", network.compress), ("participation", how.participation))
    if how.batch_size is not None and not over_rows:
        dropout = ("agent_dropout", getattr(network.faults, "agent_dropout", 0.0) or None)
        for name, value in (of_sums[1], dropout):
            if value not in (None, 1.0):
                raise InputError(
                    Setting(name), " lets who is absent count with the distances heard of it last, "
                    "but each batch has other rows; leave it out, or ",
                    Setting("batch_size"),
                )  # fmt: skip
    if how.method == "grid":
        for name, value in (*of_sums, ("batch_size", how.batch_size)):
            if value not in (None, 1.0):
                raise InputError(
                    Setting(name), " is about sums of many iterations, but one shot sends labels, "
                    "once; leave it out, or take ",
                    Setting("method", "lloyd"),
                )  # fmt: skip


def distances_of_all(
    holders: Placement,
    terms: FeatureTerms,
    centres: NDArray[np.float64],
    labels: NDArray[np.int32],
) -> NDArray[np.float64]:
    """Squared distances (M,) of rows to the centres of their clusters, in features of all hubs."""
    found = np.empty(len(labels))
    for rows in terms.chunks(holders.n_agents):
        own = distances_within(terms, centres, labels, rows)
        found[rows] = holders.add_up(own, columns=1)
    return found


def _check_masked(how: KmeansSettings) -> None:
    """Raise InputError where k-means over features shows more than sums under masks do."""
    if how.method == "grid":
        raise InputError(
            Setting("secure_sum"), " hides what is added up, but in one shot the server joins the "
            "labels and centres of each party; leave it out, or take ",
            Setting("method", "lloyd"),
        )  # fmt: skip
    if how.participation < 1:
        raise InputError(
            Setting("secure_sum"), " shows totals, and two of them over nearly the same parties "
            "differ by what one has; leave it out, or ",
            Setting("participation"),
        )  # fmt: skip


def lasting(total: Sum, network: Network, how: KmeansSettings) -> Sum:
    """Return the sum of a restart, in which the absent count with what was last heard of them."""
    if network.faults is not None and network.faults.agent_dropout:
        return HeardByNeighbours(total)
    if how.participation == 1:
        return total
    assert isinstance(total, AtServer)
    codec = getattr(network.whole.total, "codec", None)
    if codec is not None:
        # Here messages are compressed around the sum, and by what they differ from.
        assert total.ledger is not None
        total = at_server(uncompressed(network)).on(total.ledger)
    threads = thread_count(how.n_threads)
    seed = how.seed
    return HeardAtServer(total, how.participation, seed=seed, codec=codec, n_threads=threads)


def pace_of(network: Network, how: KmeansSettings, n_values: int) -> Pace:
    """Return how Lloyd's iterations go over sums of vectors of so many values.

    Where messages are compressed and some are absent, all must have been heard without a change as
    often as it takes until a millionth is left of what the codec left out of the last sum that
    changed; where sums are rounded or rounds fail once more, and where some are silent on a graph,
    of whom others have different estimates meanwhile, three times.
    """
    steady = network.faults is None or network.whole.total.exact
    steady = steady and network.compress is None and how.participation == 1
    return Pace(0 if steady else _patience(network, n_values, how.participation), how.batch_size)


def _patience(network: Network, n_values: int, participation: float) -> int:
    if network.faults is not None and network.faults.agent_dropout:
        return CYCLES
    total = network.whole.total
    codec = getattr(total, "codec", None)
    if codec is None:
        return 1
    if total.way == "consensus":
        return MEMORIES_OF_ROUNDS
    if participation == 1:
        return 1
    _, omega = contraction(codec, n_values)
    left = sqrt(omega / (1.0 + omega))
    hops = total.tree.hops if isinstance(total, AlongTree) else 1
    return ceil(log(SETTLED) / log(left)) + hops - 1 if 0 < left < 1 else 1
