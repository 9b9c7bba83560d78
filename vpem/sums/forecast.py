"""What a fit on a network will send, counted by the methods that the fit calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles
from vpem.errors import PartitionedError, Setting
from vpem.network.codecs import Codec
from vpem.network.faults import AT_ONCE
from vpem.network.hubs import charge_answers, find_routes
from vpem.network.ledger import Ledger
from vpem.network.schema import State
from vpem.records import Sentence
from vpem.sums.connect import Network, along_a_tree, uncompressed
from vpem.sums.private import add_numbers
from vpem.sums.quantizer import ITEM
from vpem.sums.sum import DECISION_BYTES, Scalars

MOST_DRAWN = 500
"""Sums whose faults are drawn for a mean."""

MOST_STATES = 5e6
"""Links and agents of all rounds of the sums that are drawn, unless one sum alone has more."""

MOST_RUN = 5e3
"""Rounds of all compressed sums that are drawn, which are run one by one."""


def communication(
    network: Network,
    n_samples: int,
    n_values: int,
    itemsize: int,
    batch_size: int | None = None,
    n_scalars: int = 0,
    n_ahead: int = 0,
) -> State:
    """Count what a fit will send, on ledgers of its own; see `vpem.fits.plan.plan`.

    ``n_values`` are summed of each row, ``itemsize`` is their bytes, ``n_scalars`` are exact
    numbers of a message besides (`vpem.sums.sum`), and ``n_ahead`` numbers that hubs add up
    ahead of every sum, of all rows together.
    """
    graph = network.graph
    setup = Ledger(graph)
    network.charge_setup(setup, n_samples, itemsize)
    size = n_samples if batch_size is None else min(batch_size, n_samples)
    count, rest = divmod(n_samples, size)
    n_drawn = _count_draws(network)

    def sums(kind: str, rows: int, agreed: Ledger | None = None) -> tuple[Ledger, int]:
        n_sums = max(n_drawn, 1)
        # A pass in batches ends even if the network is disconnected during one of them.
        always = batch_size is not None
        message = (rows, n_values, itemsize, n_scalars)
        return _take_sums(network, kind, message, n_sums, agreed, always, n_ahead)

    agreed = Ledger(graph)
    batch, n_whole = sums("estep", size, agreed)
    iteration = batch.times(count)
    if rest:
        iteration.add(sums("estep", rest)[0])
    iteration.add(agreed)
    if network.total.whole and batch_size is not None:
        # Compressed sums go on from those of the same batch.
        last = sums("check", size)[0].times(count)
        if rest:
            last.add(sums("check", rest)[0])
    else:
        last = sums("check", n_samples)[0]
    parts = {"iteration": iteration, "last": last}
    if batch_size is not None:
        parts = {"batch": batch, **parts}
    total = network.total
    return {
        "setup": setup.summary(),
        **{name: _mean(part.summary(), n_drawn) for name, part in parts.items()},
        "is_expected": n_drawn > 0 or total.codec is not None,
        "n_drawn": n_drawn,
        "partitioned": (n_drawn - n_whole) / n_drawn if n_drawn else 0.0,
    }


def labels_sent(
    network: Network, n_samples: int, n_components: int, n_values: int, n_ahead: int = 0
) -> State:
    """Count what is sent once a fit is over, if agents that hold features want labels.

    ``n_values`` are summed of each row, and ``n_ahead`` numbers that hubs add up ahead of it. It is
    `vpem.network.ledger.Ledger.summary`, or its mean where links fail.
    """
    plain, n_drawn = replace(network, total=uncompressed(network)), _count_draws(network)
    message = (n_samples, n_values, ITEM, 1)
    ledger = _take_sums(plain, "labels", message, max(n_drawn, 1), n_ahead=n_ahead)[0]
    routes = find_routes(network.graph, network.hubs)
    for _ in range(max(n_drawn, 1)):
        charge_answers(ledger, routes, n_samples * n_components * ITEM)
    sent: State = _mean(ledger.summary(), n_drawn)
    return sent


def one_sum(network: Network) -> Ledger:
    """Count what one sum sends of a number each agent has."""
    return _take_sums(network.whole, "estep", (1, 1, 1, 0), 1)[0]


def note_of_tree(network: Network) -> Sentence:
    """Return a note, where sums are by consensus, of what they would send along a tree."""
    tree = along_a_tree(network)
    if tree is None:
        return ()
    rounds, along = one_sum(network).messages, one_sum(tree).messages
    if not 0 < along < rounds:
        return ()
    # Along a tree compressed messages may travel exact, and so take several times the bytes.
    fewer = "" if network.compress else f", exact: {rounds / along:,.1f} times fewer bytes"
    sends = f"a sum sends {rounds:,} messages by consensus; along a spanning tree ("
    return sends, Setting("sum", "tree"), f") it would send {along:,}{fewer}"


def _count_draws(network: Network) -> int:
    """Sums of a mean; 0 where nothing fails and all are alike."""
    if not network.fails:
        return 0
    # Along a tree about as many, and messages are counted alone.
    n_rounds = network.n_rounds or AT_ONCE
    states = n_rounds * (network.graph.n_agents + network.graph.n_edges)
    most = min(MOST_DRAWN, MOST_STATES / states)
    if network.compress is not None and network.n_rounds is not None:
        most = min(most, MOST_RUN / network.n_rounds)
    return max(1, int(most))


def _take_sums(
    network: Network,
    kind: str,
    message: tuple[int, int, int, int],
    count: int,
    agreed: Ledger | None = None,
    always: bool = False,
    n_ahead: int = 0,
) -> tuple[Ledger, int]:
    """Take sums as a fit does, one after the other: their ledger, and in how many all were heard.

    Messages are what `vpem.sums.sum.Sum.begin` is given: rows, values, bytes of one, and scalars.
    Messages that are counted as they are formed are formed with one value. On the ledger ``agreed``
    an agreement to stop, if any is sent, is counted after every sum in which all were heard, or
    ``always``, as after the batches of a pass, on each of which all agree.
    ``n_ahead`` as in `communication`.
    """
    ledger = Ledger(network.graph)
    total = network.total.counted_on(ledger)
    compressed = total.codec is not None
    if compressed:
        # Nothing changes in what is formed here: as many messages as are expected.
        n_values = message[0] * message[1]
        total.expect(n_values)
        codec = total.codec
        assert codec is not None
        total.codec = cast(Codec, _Sizes(codec, n_values, codec.name, codec.is_unbiased))
    terms = np.zeros((len(network.hubs), 1, min(1, message[1])))
    scalars = Scalars.empty(len(network.hubs), total.n_roots, message[3]) if message[3] else None
    n_whole, asks = 0, always or n_ahead > 0 or not total.is_alike
    for _ in range(count):
        heard = True
        try:
            if n_ahead:
                add_numbers(total, np.zeros((len(network.hubs), n_ahead)), kind)
            total.begin(kind, *message)
        except PartitionedError:
            heard = False
        n_whole += heard
        if compressed and heard:
            total.reduce(terms, scalars=scalars)
        if agreed is not None and (heard or always):
            total.ledger = agreed
            if asks or message[2] < ITEM:
                total.agree("stopping", 1 if asks else DECISION_BYTES)
            total.ledger = ledger
    return ledger, n_whole


@dataclass(frozen=True)
class _Sizes:
    """A codec whose messages, of whatever is sent, are as long as those of so many values."""

    codec: Codec
    n_values: int
    name: str
    is_unbiased: bool

    def variance(self, _: int) -> float:
        return self.codec.variance(self.n_values)

    def message_size(self, _: int) -> int:
        return self.codec.message_size(self.n_values)

    def transmit(
        self, values: Doubles, _keys: object, _n_threads: int = 1
    ) -> tuple[Doubles, NDArray[np.int64]]:
        sizes = np.full(len(values), self.codec.message_size(self.n_values), dtype=np.int64)
        return np.zeros_like(values), sizes


def _mean(summary: Any, count: int) -> Any:
    """Divide all that was counted; names of agents stay. With 0 nothing is divided."""
    if count == 0 or summary is None:
        return summary
    if isinstance(summary, dict):
        names = ("between", "agent")
        return {
            name: value if name in names else _mean(value, count) for name, value in summary.items()
        }
    if isinstance(summary, list):
        return [_mean(value, count) for value in summary]
    return summary / count
