"""What a run sends: messages, payload bytes and rounds, by kind, by agent and by link."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray
from vpem.network.graph import Graph
from vpem.network.schema import LARGEST_COUNT, Array, As, Report, Schema, Stateful

KINDS = ("setup", "flooding", "estep", "stopping", "server", "labels")
"""Features to roots and sums of the start; agreement by flooding; rounds of the E-steps; agreeing
to stop; sums at a server; the sum of the labels once the fit is over, and its way to the agents."""

LATE = 1
"""Of these, the last, which are sent after the last checkpoint and are in none."""

Nodes = int | NDArray[np.intp]

Links = slice | Sequence[int] | NDArray[np.integer] | NDArray[np.bool_]


MOST_WHOLE = 1 << 62
"""Bytes of a ledger up to which all is counted in whole numbers; beyond, to 16 digits."""


class Ledger(Stateful):
    """Counts every message over every link in either direction.

    A message of an E-step has the values of all rows and components of one agent, however many rows
    a process works on at a time. ``sources`` and ``targets`` (2 n_edges,) are the ends of each
    directed link, by source, then target; links to a server count too.
    """

    def __init__(self, graph: Graph) -> None:
        indptr, indices = graph.adjacency
        self.n_nodes = graph.n_nodes
        self.sources = np.repeat(np.arange(graph.n_nodes), np.diff(indptr))
        self.targets = indices.astype(np.intp)
        shape = (len(KINDS), len(self.targets))
        self._messages = np.zeros(shape, dtype=np.int64)
        self._bytes = np.zeros(shape, dtype=np.int64)
        self._rounds = np.zeros(len(KINDS), dtype=np.int64)
        self._most = 0  # bytes that there may be at most

    def link(self, source: Nodes, target: Nodes) -> NDArray[np.intp]:
        """Number of the directed link between two neighbours, or numbers (n,) of several."""
        numbers = self.sources * self.n_nodes + self.targets  # ascending
        keys = np.asarray(source) * self.n_nodes + target
        places = np.asarray(np.searchsorted(numbers, keys))
        if not np.array_equal(numbers.take(places, mode="clip"), keys):
            raise KeyError(f"nodes {source} and {target} are not neighbours")
        return places

    def among(self, nodes: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mark the directed links between some nodes."""
        both: NDArray[np.bool_] = nodes[self.sources] & nodes[self.targets]
        return both

    def send(
        self,
        kind: str,  # one of `KINDS`
        size: int | NDArray[np.integer],
        *,
        links: Links = slice(None),
        times: int | NDArray[np.integer] = 1,
        rounds: int = 0,
    ) -> None:
        """Count ``times`` messages of ``size`` payload bytes over some links, by default all.

        ``size`` and ``times`` are one number or one a link, each of which is chosen at most once;
        messages of one of ``rounds`` travel at the same time.
        """
        row = KINDS.index(kind)
        self._messages[row, links] += times
        self._rounds[row] += rounds
        self._expect(_largest(times) * _largest(size) * self._bytes[row, links].size)
        self._bytes[row, links] += times * self._counted(size)

    def grow(self, kind: str, size: int | NDArray[np.integer], links: Links = slice(None)) -> None:
        """Add payload to messages that are counted already."""
        row = KINDS.index(kind)
        self._expect(_largest(size) * self._bytes[row, links].size)
        self._bytes[row, links] += self._counted(size)

    def _expect(self, more: int) -> None:
        """Be ready to count so many bytes more."""
        self._most += more
        if self._most > MOST_WHOLE:
            self._bytes = self._bytes.astype(np.float64)

    def _counted(self, size: int | NDArray[np.integer]) -> AnyArray:
        """Return sizes in the type in which bytes are counted, which may be larger than whole."""
        return np.asarray(size, dtype=self._bytes.dtype)

    def schema(self) -> dict[str, Schema]:
        """Counts of all kinds that checkpoints hold."""
        fields: dict[str, Schema] = {}
        counts = {"messages": self._messages, "bytes": self._bytes, "rounds": self._rounds}
        for name, count in counts.items():
            whole = Array("i8", count[:-LATE].shape, 0, LARGEST_COUNT)
            late = partial(np.append, values=count[-LATE:], axis=0)
            fields[name] = As(whole, lambda counted: counted[:-LATE], late)
        return fields

    def add(self, other: Ledger) -> None:
        self._messages += other._messages
        self._expect(other._most)
        self._bytes = self._bytes + other._bytes
        self._rounds += other._rounds

    def times(self, count: int) -> Ledger:
        many = copy(self)
        many._expect(self._most * (count - 1))
        many._messages, many._bytes = self._messages * count, many._bytes * count
        many._rounds = self._rounds * count
        return many

    def charge(self, kind: str, other: Ledger) -> None:
        """Count all that another ledger of the same graph has counted as of one kind."""
        row = KINDS.index(kind)
        self._expect(other._most)
        self._messages[row] += other._messages.sum(axis=0)
        self._bytes[row] += other._bytes.sum(axis=0)
        self._rounds[row] += other._rounds.sum()

    @property
    def messages(self) -> int:
        return int(self._messages.sum())

    @property
    def bytes(self) -> int:
        return int(self._bytes.sum())

    @property
    def rounds(self) -> int:
        return int(self._rounds.sum())

    def of_kind(self, kind: str) -> dict[str, int]:
        row = KINDS.index(kind)
        return {
            "messages": int(self._messages[row].sum()),
            "bytes": int(self._bytes[row].sum()),
            "rounds": int(self._rounds[row]),
        }

    def of_links(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Messages and bytes of every directed link."""
        return self._messages.sum(axis=0), self._bytes.sum(axis=0)

    def summary(self) -> Report:
        """All of it as plain values: totals, kinds, agents, and who is busiest (by bytes).

        A link is counted in both directions; an agent by what it sends and what it receives. Of
        several that are busiest the first is named. Nodes are numbers; a server's is the last.
        Lists of ``by_link`` are in the order of `Graph.edges`, without kinds that sent nothing.
        """
        messages, sizes = self.of_links()
        low = np.minimum(self.sources, self.targets)
        high = np.maximum(self.sources, self.targets)
        pairs, number = np.unique(low * self.n_nodes + high, return_inverse=True)
        sent, received, n_sent, n_received = (
            np.bincount(ends, counts, self.n_nodes)
            for counts in (sizes, messages)
            for ends in (self.sources, self.targets)
        )
        busiest_link = None
        on_link, count, *of_kinds = (
            np.bincount(number, values, len(pairs)) for values in (sizes, messages, *self._bytes)
        )
        if len(pairs) and self.messages:
            most = int(on_link.argmax())
            busiest_link = {
                "between": [int(end) for end in divmod(int(pairs[most]), self.n_nodes)],
                "messages": int(count[most]),
                "bytes": int(on_link[most]),
            }
        busiest_agent = None
        if self.messages:
            agent = int((sent + received).argmax())
            busiest_agent = {
                "agent": agent,
                "messages": int(n_sent[agent] + n_received[agent]),
                "bytes": int(sent[agent] + received[agent]),
            }
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "rounds": self.rounds,
            "by_kind": {kind: self.of_kind(kind) for kind in KINDS},
            "by_agent": {
                "messages_sent": _whole(n_sent),
                "bytes_sent": _whole(sent),
                "messages_received": _whole(n_received),
                "bytes_received": _whole(received),
            },
            "by_link": {
                "messages": _whole(count),
                "bytes": {
                    kind: _whole(sent_by)
                    for kind, sent_by in zip(KINDS, of_kinds, strict=True)
                    if sent_by.any()
                },
            },
            "busiest_link": busiest_link,
            "busiest_agent": busiest_agent,
        }


def _largest(numbers: int | NDArray[np.integer]) -> int:
    """Return the largest of numbers that are not negative, or the only one: that takes no time."""
    return numbers if isinstance(numbers, int) else int(np.max(numbers, initial=0))


def _whole(values: AnyArray) -> list[int]:
    """Return whole numbers, which may be larger than NumPy's."""
    return list(map(int, values.tolist()))
