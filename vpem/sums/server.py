"""The exact sum, at a server that every agent reaches."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.network.ledger import Ledger

__all__ = ["ServerSum"]


class ServerSum:
    """Adds the terms of all blocks and returns the total to every root, Valdeira et al., (10).

    Parameters
    ----------
    n_blocks : int
        Number of blocks, B. With one there is nothing to add and nothing is sent.
    """

    n_roots = 1
    """All roots receive the same total."""
    error = 0.0
    """Consensus error: none."""
    whole = False
    silent = None

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self.values_per_item = n_blocks
        self.mix = np.ones((1, n_blocks))
        self.ledger: Ledger | None = None

    def on(self, ledger: Ledger) -> ServerSum:
        """Return the same sum, whose messages are counted there."""
        counted = copy(self)
        counted.ledger = ledger
        return counted

    def begin(self, kind: str, n_samples: int, n_components: int, itemsize: int) -> None:
        """Count a sum: every agent sends its terms to the server and receives the total."""
        if self.ledger is not None and self.n_blocks > 1:
            size = n_samples * n_components * itemsize
            self.ledger.send("setup" if kind == "setup" else "server", size, rounds=2)

    def agree(self, kind: str, size: int = 1) -> None:
        """Count how the server tells all agents what it has decided."""
        if self.ledger is not None and self.n_blocks > 1:
            down = self.ledger.sources == self.ledger.n_nodes - 1
            self.ledger.send(kind, size, links=down, rounds=1)

    @property
    def bytes_sent(self) -> int:
        """Payload bytes counted up to now."""
        return 0 if self.ledger is None else self.ledger.bytes

    def reduce(self, terms: NDArray[Any], rows: slice = slice(None)) -> NDArray[Any]:
        """Sum terms (B, m, K) over the blocks, shape (1, m, K)."""
        total: NDArray[Any] = terms.sum(axis=0, keepdims=True)
        return total
