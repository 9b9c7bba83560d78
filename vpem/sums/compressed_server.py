"""The sum at a server that every agent reaches, in compressed messages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, check_int
from vpem.network.ledger import Ledger
from vpem.network.schema import COUNT, Array, Maybe, Schema, State
from vpem.sums.contraction import codec_of, contraction
from vpem.sums.counted import SUM_KIND, AtServer
from vpem.sums.quantizer import Quantizer
from vpem.sums.wrappers import (
    Channel,
    Compressed,
    Memory,
    flattened,
    short_keys,
    unflattened,
)

if TYPE_CHECKING:
    from vpem.network.codecs import Codec

__all__ = ["CompressedServerSum"]

MANY = 3
"""Messages of an agent in a sum, by default, where the codec leaves out much."""


class CompressedServerSum(AtServer):
    """Adds the terms of all blocks at a server, compressed up and down.

    Agent b sends ``Q(Q_b - V_b)``, how its terms differ from a memory V_b that the server holds
    too, and both add what was decoded, scaled as in `vpem.sums.contraction.contraction`. The server
    does the same with the total of the memories, which it sends to all. Memories go on from one
    E-step to the next, so that the error vanishes as the terms settle.

    Parameters
    ----------
    n_blocks : int
        Number of blocks, B. With one there is nothing to add and nothing is sent.
    codec : Codec
        How messages are written.
    n_rounds : int, optional
        Messages of each agent in a sum, and of the server after them: each tells what those before
        left out. None takes one, or `MANY` where more than half of a message may be lost.
    seed : int
        Of the codec.
    n_threads : int
        Threads of the codec.

    Raises
    ------
    InputError
        If an option is out of range.
    """

    whole = True
    mix = None

    def __init__(
        self,
        n_blocks: int,
        codec: Codec,
        n_rounds: int | None = None,
        *,
        seed: int = 0,
        n_threads: int = 1,
    ) -> None:
        self.n_blocks = check_int("n_blocks", n_blocks, least=1)
        super().__init__(self.n_blocks)
        self.codec: Codec = codec
        self._coder = codec
        self.n_rounds = None if n_rounds is None else check_int("n_rounds", n_rounds, least=1)
        self.seed = check_int("seed", seed, least=0)
        self.n_threads = n_threads
        self.values_per_item = n_blocks
        self._number = 0
        self._kind = "setup"
        self._terms: NDArray[np.float64] | None = None
        self._total: NDArray[np.float64] | None = None

    def on(self, ledger: Ledger) -> Self:
        """Return the same sum from its beginning, whose messages are counted there."""
        counted = super().on(ledger)
        counted._number, counted._terms, counted._total = 0, None, None
        return counted

    def state(self) -> State:
        """Return the memories, and how many sums there were."""
        return {"number": self._number, "kind": self._kind, "up": self._terms, "down": self._total}

    def schema(self) -> Schema:
        """Return what that must be."""
        up, down = Array("f8", (self.n_blocks, "V")), Array("f8", (1, "V"))
        return {"number": COUNT, "kind": SUM_KIND, "up": Maybe(up), "down": Maybe(down)}

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        self._number, self._kind = state["number"], state["kind"]
        self._terms, self._total = state["up"], state["down"]

    def begin(self, kind: str, n_samples: int, n_components: int, itemsize: int) -> None:
        """Begin a sum, whose messages are counted as they are formed."""
        if self._kind == "setup" and kind != "setup":
            # What is summed for a start has nothing to do with terms.
            self._terms = self._total = None
        self._kind = kind
        self.charge_as(kind)
        self._coder = codec_of(kind, self.codec)
        self._number += 1

    def reduce(self, terms: Floats, rows: slice = slice(None)) -> NDArray[Any]:
        """Sum terms (B, m, K) over the blocks, shape (1, m, K).

        Compressed sums take all rows at once.
        """
        if self.n_blocks == 1:
            exact: Floats = terms.sum(axis=0, keepdims=True)
            return exact
        flat = flattened(terms)
        if self._terms is None or self._total is None or self._terms.shape != flat.shape:
            self._terms, self._total = np.zeros_like(flat), np.zeros((1, flat.shape[1]))
        believed, omega = contraction(self._coder, flat.shape[1])
        n_messages = self.n_rounds or (1 if omega <= 1 else MANY)
        rng = np.random.default_rng([self.seed, self._number])

        def memory(inner: AtServer, values: NDArray[np.float64]) -> Memory:
            quantizer = Quantizer(self._coder, flat.shape[1], self.n_threads)
            return Memory(Compressed(inner, quantizer, partial(short_keys, rng)), believed, values)

        up = memory(self, self._terms)
        for _ in range(n_messages):
            up.send(flat)
        down = memory(Channel(1, lambda sizes, _: self.broadcast(sizes)), self._total)
        total = self.aggregate(self._terms)
        for _ in range(n_messages):
            down.send(total)
        found = unflattened(self._total, terms)
        if self._kind == "check":
            self._terms = self._total = None
        return found
