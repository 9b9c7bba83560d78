"""What sums share whatever they add: their messages are counted, where a ledger is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.engines.crew import Crew
from vpem.network.ledger import Ledger
from vpem.schema import Choice, Schema
from vpem.sums.sum import Sum

__all__ = ["SUM_KIND", "AmongNeighbours", "AtServer", "Counted", "add_vectors"]

SUM_KIND = Choice(("setup", "estep", "check"))
"""What a sum is for; see `vpem.sums.sum.Sum.begin`."""


class Counted:
    """A sum in one process, whose messages are counted in a ledger if it has one."""

    leads = True
    crew: Crew = Crew()
    n_roots: int

    def __init__(self) -> None:
        self.ledger: Ledger | None = None

    def reduce(self, terms: NDArray[Any], rows: slice) -> NDArray[Any]:
        """Sum terms (B, m, K) of some rows over the hubs."""
        raise NotImplementedError

    def flow(
        self, chunks: Iterator[slice], local: Callable[[slice], NDArray[Any]]
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """`reduce` what is local in one chunk after the other."""
        for rows in chunks:
            yield rows, self.reduce(local(rows), rows)

    def report(self, found: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return it: all roots are here."""
        return found

    def pool(self, events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return them: all hubs are here."""
        return events

    def some(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return them: all agents are here."""
        return flags

    def tell(self, value: Any) -> Any:
        """Return it: all agents are here."""
        return value

    @property
    def n_roots_of_all(self) -> int:
        """Roots of all processes."""
        return self.n_roots

    def on(self, ledger: Ledger) -> Self:
        """Return the same sum from its beginning, whose messages are counted there."""
        counted = copy(self)
        counted.ledger = ledger
        return counted

    def state(self) -> dict[str, Any]:
        """Return what is kept from one sum to the next: nothing."""
        return {}

    def schema(self) -> Schema:
        """Return what that must be."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what was kept."""

    @property
    def bytes_sent(self) -> int:
        """Payload bytes counted up to now."""
        return 0 if self.ledger is None else self.ledger.bytes

    def _send(self, kind: str, size: int | NDArray[Any], **how: Any) -> None:
        """Count messages; ``how`` as in `Ledger.send`."""
        if self.ledger is not None:
            self.ledger.send(kind, size, **how)


class AtServer(Counted):
    """A sum at a server, which is the last node of the ledger's graph.

    Parameters
    ----------
    n_senders : int
        How many have something to add. With one there is nothing to add and nothing is sent.
    """

    def __init__(self, n_senders: int) -> None:
        super().__init__()
        self._alone = n_senders <= 1
        self._to_agents: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)

    def on(self, ledger: Ledger) -> Self:
        """Return the same sum from its beginning, whose messages are counted there."""
        counted = super().on(ledger)
        counted._to_agents = ledger.sources == ledger.n_nodes - 1
        return counted

    def agree(self, kind: str, size: int = 1) -> None:
        """Count how the server tells all agents what it has decided."""
        self._send(kind, size, links=self._to_agents, rounds=1)

    def _send(self, kind: str, size: int | NDArray[Any], **how: Any) -> None:
        """Count messages, if there is anything to add."""
        if not self._alone:
            super()._send(kind, size, **how)


class AmongNeighbours(Counted):
    """A sum by messages between neighbours.

    Parameters
    ----------
    diameter : int
        Hops between the agents farthest apart.
    """

    def __init__(self, diameter: int) -> None:
        super().__init__()
        self.diameter = diameter

    def agree(self, kind: str, size: int = 1) -> None:
        """Count one agreement by flooding: every agent tells its neighbours, diameter rounds."""
        self._send(kind, size, times=self.diameter, rounds=self.diameter)


def add_vectors(
    total: Sum, values: NDArray[np.float64], kind: str = "estep"
) -> NDArray[np.float64]:
    """Sum one vector an agent, of N agents that are roots of their own.

    Parameters
    ----------
    total : Sum
        How.
    values : ndarray of shape (N, P)
        What each agent has.
    kind : str
        What the sum is for; see `Sum.begin`.

    Returns
    -------
    ndarray of shape (R, P)
        The sum, as each root finds it; R is 1 where all share one.
    """
    total.begin(kind, 1, values.shape[1], values.itemsize)
    if total.mix is not None:
        return total.mix @ values
    return total.reduce(values[:, None], slice(0, 1))[:, 0]
