"""The exact sum, at a server that every agent reaches."""

from __future__ import annotations

from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.engines.placement import Placement
from vpem.sums.adding import Addends
from vpem.sums.counted import AtServer
from vpem.sums.scalars import Scalars


class Exact(AtServer):
    """Adds the terms of all blocks and returns the total to every root.

    Parameters
    ----------
    n_blocks : int
        Number of blocks, B. With one there is nothing to add and nothing is sent.
    """

    error = 0.0
    """Consensus error: none."""
    exact = True
    whole = False

    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.n_blocks = n_blocks
        self.values_per_item = n_blocks
        self.mix = np.ones((1, n_blocks))

    def masked(self, holders: Placement) -> Self:
        """Return the same sum under the masks of its holders."""
        masked = copy(self)
        masked.holders, masked.mix = holders, None
        return masked

    def reduce(
        self, terms: Floats, rows: slice = slice(None), scalars: Scalars | None = None
    ) -> NDArray[Any]:
        """Sum terms (B, m, K) over the blocks, shape (1, m, K)."""
        own = Addends(self.holders, terms, scalars, self.exponents)
        return own.total(own.together())


class ServerSum(Exact):
    """The sum of all blocks at a server, Valdeira et al., (10).

    Parameters
    ----------
    n_blocks : int
        As for `Exact`.
    """
