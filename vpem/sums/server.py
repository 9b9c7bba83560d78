"""The exact sum, at a server that every agent reaches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.sums.counted import AtServer
from vpem.sums.scalars import Scalars

__all__ = ["Exact", "ServerSum"]


class Exact(AtServer):
    """Adds the terms of all blocks and returns the total to every root.

    Parameters
    ----------
    n_blocks : int
        Number of blocks, B. With one there is nothing to add and nothing is sent.
    """

    error = 0.0
    """Consensus error: none."""
    whole = False

    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.n_blocks = n_blocks
        self.values_per_item = n_blocks
        self.mix = np.ones((1, n_blocks))

    def reduce(
        self, terms: Floats, rows: slice = slice(None), scalars: Scalars | None = None
    ) -> NDArray[Any]:
        """Sum terms (B, m, K) over the blocks, shape (1, m, K)."""
        if scalars is not None:
            scalars.found = scalars.own.sum(axis=0, keepdims=True)
        total: Floats = terms.sum(axis=0, keepdims=True)
        return total


class ServerSum(Exact):
    """The sum of all blocks at a server, Valdeira et al., (10).

    Parameters
    ----------
    n_blocks : int
        As for `Exact`.
    """
