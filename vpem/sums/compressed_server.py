"""The sum at a server that every agent reaches, in compressed messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_int
from vpem.network.ledger import Ledger
from vpem.schema import COUNT, Array, Maybe, Schema
from vpem.sums.contraction import codec_of, contraction
from vpem.sums.counted import SUM_KIND, AtServer

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

    n_roots = 1
    """All roots receive the same total."""
    whole = True
    silent = None
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
        self._coder: Codec | None = codec
        self.n_rounds = None if n_rounds is None else check_int("n_rounds", n_rounds, least=1)
        self.seed = check_int("seed", seed, least=0)
        self.n_threads = n_threads
        self.values_per_item = n_blocks
        self._number = 0
        self._kind = "setup"
        self._up: NDArray[np.float64] | None = None
        self._down: NDArray[np.float64] | None = None

    def on(self, ledger: Ledger) -> Self:
        """Return the same sum from its beginning, whose messages are counted there."""
        counted = super().on(ledger)
        counted._number, counted._up, counted._down = 0, None, None
        return counted

    def state(self) -> dict[str, Any]:
        """Return the memories, and how many sums there were."""
        return {"number": self._number, "kind": self._kind, "up": self._up, "down": self._down}

    def schema(self) -> Schema:
        """Return what that must be."""
        up, down = Array("f8", (self.n_blocks, "V")), Array("f8", (1, "V"))
        return {"number": COUNT, "kind": SUM_KIND, "up": Maybe(up), "down": Maybe(down)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what was kept."""
        self._number, self._kind = state["number"], state["kind"]
        self._up, self._down = state["up"], state["down"]

    def begin(self, kind: str, n_samples: int, n_components: int, itemsize: int) -> None:
        """Begin a sum, whose messages are counted as they are formed."""
        if self._kind == "setup" and kind != "setup":
            # What is summed for a start has nothing to do with terms.
            self._up = self._down = None
        self._kind = kind
        self._coder = codec_of(kind, self.codec)
        self._number += 1

    def reduce(self, terms: NDArray[Any], rows: slice = slice(None)) -> NDArray[Any]:
        """Sum terms (B, m, K) over the blocks, shape (1, m, K).

        Compressed sums take all rows at once.
        """
        if self.n_blocks == 1:
            exact: NDArray[Any] = terms.sum(axis=0, keepdims=True)
            return exact
        # Component by component, so that a bucket of the codec holds values of one.
        turned = np.ascontiguousarray(terms.transpose(0, 2, 1))
        flat = turned.reshape(len(terms), -1).astype(np.float64, copy=False)
        if self._up is None or self._down is None or self._up.shape != flat.shape:
            self._up, self._down = np.zeros_like(flat), np.zeros((1, flat.shape[1]))
        rng = np.random.default_rng([self.seed, self._number])
        self._follow(self._up, flat, rng)
        self._follow(self._down, self._up.sum(axis=0, keepdims=True), rng)
        total = self._down.reshape(1, *turned.shape[1:]).transpose(0, 2, 1)
        found = np.ascontiguousarray(total, dtype=terms.dtype)
        if self._kind == "check":
            self._up = self._down = None
        return found

    def _follow(
        self,
        memories: NDArray[np.float64],
        values: NDArray[np.float64],
        rng: np.random.Generator,
    ) -> None:
        """Move memories (n, V) towards values (n, V) by so many messages, and count them."""
        assert self._coder is not None
        believed, omega = contraction(self._coder, values.shape[1])
        for _ in range(self.n_rounds or (1 if omega <= 1 else MANY)):
            keys = rng.integers(1 << 63, size=len(values), dtype=np.uint64)
            decoded, sizes = self._coder.transmit(values - memories, keys, self.n_threads)
            decoded *= believed
            memories += decoded
            going = self._to_agents if len(values) == 1 else ~self._to_agents
            self._send("setup" if self._kind == "setup" else "server", sizes, links=going, rounds=1)
