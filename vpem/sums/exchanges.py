"""Rows that go to neighbouring processes, and rows that come from them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.engines.engine import Engine, Neighbours, about

Agents = NDArray[np.intp]
Mask = NDArray[np.bool_]
Joined = tuple[Engine, Neighbours]


class Exchange:
    """Rows that go to neighbouring processes, and rows that come from them.

    Parameters
    ----------
    joined : tuple of Engine and Neighbours
        The processes, and those of them.
    sent, received : sequence of ndarray of int
        Rows for each of these, and rows of each.

    Attributes
    ----------
    n_sent : int
        Rows that are sent.
    """

    def __init__(self, joined: Joined, sent: Sequence[Agents], received: Sequence[Agents]) -> None:
        self._joined = joined
        self._sent = np.concatenate([np.empty(0, dtype=np.intp), *sent])
        self._received = np.concatenate([np.empty(0, dtype=np.intp), *received])
        self._n_sent = [len(rows) for rows in sent]
        self._n_received = [len(rows) for rows in received]
        self.n_sent = len(self._sent)

    def run(self, states: Sequence[NDArray[Any]], kind: str) -> Generator[None]:
        """Send and receive these rows, messages of a kind; goes on where they should be there.

        Rows of several arrays (n_rows, ...) go in one message.
        """
        parts = [np.ascontiguousarray(each[self._sent]) for each in states]
        out = parts[0]
        if len(parts) > 1:
            out = np.concatenate([part.view(np.uint8) for part in parts], axis=1)
        width = out.shape[1]
        into = np.empty((len(self._received), width), dtype=out.dtype)
        engine, near = self._joined
        with about(engine, kind):
            request = near.ialltoallv(
                out,
                [n * width for n in self._n_sent],
                into,
                [n * width for n in self._n_received],
            )
        yield
        request.wait()
        if len(parts) == 1:
            states[0][self._received] = into
            return
        begin = 0
        for each in states:
            end = begin + row_bytes([each])
            each[self._received] = np.ascontiguousarray(into[:, begin:end]).view(each.dtype)
            begin = end


def row_bytes(states: Sequence[NDArray[Any]]) -> int:
    """Bytes of a row of all of these."""
    return sum(each.shape[1] * each.itemsize for each in states)


class Ways(Exchange):
    """An exchange of which some ways may be closed.

    Parameters
    ----------
    joined : tuple of Engine and Neighbours
        The processes, and those of them.
    agents : tuple of ndarray
        Of every way: who speaks, and whose row it is elsewhere.
    place : ndarray of shape (N,)
        Row of each agent.
    sent, received : list of ndarray of int
        Ways to each process, and ways from each.
    """

    def __init__(
        self,
        joined: Joined,
        agents: tuple[Agents, Agents],
        place: Agents,
        sent: Sequence[Agents],
        received: Sequence[Agents],
    ) -> None:
        self.speakers, self.targets = agents
        self._places = place[self.speakers], place[self.targets]
        self._ways = sent, received
        super().__init__(joined, *self._rows(np.ones(len(self.speakers), dtype=np.bool_)))

    def _rows(self, opened: Mask) -> tuple[list[Agents], list[Agents]]:
        """Rows that go, and rows that come."""
        sent, received = (
            [place[one[opened[one]]] for one in ways]
            for place, ways in zip(self._places, self._ways, strict=True)
        )
        return sent, received

    def among(self, opened: Mask | None) -> Exchange:
        """Return the exchange over some of the ways; None: over all."""
        if opened is None or opened.all():
            return self
        return Exchange(self._joined, *self._rows(opened))
