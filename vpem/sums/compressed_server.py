"""The sum at a server that every agent reaches, in compressed messages."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, check_int
from vpem.engines.engine import about
from vpem.engines.placement import Placement
from vpem.network.ledger import Ledger
from vpem.network.schema import COUNT, Array, Maybe, Schema, State
from vpem.sums.carried import Carried, Carry
from vpem.sums.contraction import codec_of, contraction, messages_alone
from vpem.sums.counted import SUM_KIND, AtServer
from vpem.sums.memories import GoesOn, Memories
from vpem.sums.neighbours import Traffic
from vpem.sums.quantizer import Quantizer
from vpem.sums.scalars import Scalars, flattened, unflattened
from vpem.sums.wrappers import Channel, Compressed, Memory, short_keys

if TYPE_CHECKING:
    from vpem.network.codecs import Codec, Keys

__all__ = ["CompressedServerSum"]

MANY = 3
"""Messages of an agent in a sum, by default, where the codec leaves out much."""


@dataclass
class _Kept:
    """What is known of the blocks' terms (n_rows, V), and all know of their total (1, V)."""

    up: NDArray[np.float64]
    down: NDArray[np.float64]


class CompressedServerSum(GoesOn, AtServer):
    """Adds the terms of all blocks at a server, compressed up and down.

    Agent b sends ``Q(Q_b - V_b)``, how its terms differ from a memory V_b that the server holds
    too, and both add what was decoded, scaled as in `vpem.sums.contraction.contraction`. The server
    does the same with the total of the memories, which it sends to all. Memories go on from one
    E-step to the next, so that the error vanishes as the terms settle.

    Where blocks live in several processes (`over`) the server lives in the first, and the codec's
    bytes are what travels.

    Parameters
    ----------
    n_blocks : int
        Number of blocks, B. With one there is nothing to add and nothing is sent.
    codec : Codec
        How messages are written.
    n_rounds : int, optional
        Messages of each agent in a sum, and of the server after them: each tells what those before
        left out. None takes one, or `MANY` where more than half of a message may be lost; where
        rows come once, `vpem.sums.contraction.messages_alone`.
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
        self.traffic = Traffic()
        self._number = 0
        self._kind = "setup"
        self._memories: Memories[_Kept] = Memories()

    @staticmethod
    def messages(omega: float) -> int:
        """Messages of an agent in a sum, by default, of a codec of this noise."""
        return 1 if omega <= 1 else MANY

    def on(self, ledger: Ledger) -> Self:
        """Return the same sum from its beginning, whose messages are counted there."""
        counted = super().on(ledger)
        counted._number, counted._memories = 0, Memories()
        return counted

    def over(self, agents: Placement, holders: Placement) -> Self:
        """Return the same sum of blocks that live in several processes."""
        spread = copy(self)
        spread.holders = holders
        spread.roots = Placement(holders.engine, holders.ranks[:1])
        spread.traffic = Traffic()
        return spread

    @property
    def _is_server(self) -> bool:
        """Whether the server lives in this process: in the first."""
        return self.holders.engine.rank == 0

    @property
    def _n_rows(self) -> int:
        """Blocks whose memories are here: this process's, and at the server then all others."""
        return self.n_blocks if self._is_server else len(self.holders.own)

    def state(self) -> State:
        """Return the memories, how many sums there were, and of several processes what went."""
        went = self.traffic.state() if self.holders.apart else {}
        kept = self._memories.state("memory", lambda one: dict(vars(one)))
        if "memory" in kept:
            kept = kept["memory"] or {"up": None, "down": None}
        return {"number": self._number, "kind": self._kind, **kept, **went}

    def schema(self) -> Schema:
        """Return what that must be."""

        def one(values: str) -> Schema:
            return {"up": Array("f8", (self._n_rows, values)), "down": Array("f8", (1, values))}

        went = self.traffic.schema() if self.holders.apart else {}
        kept = self._memories.schema("memory", one)
        if "memory" in kept:
            up, down = Array("f8", (self._n_rows, "V")), Array("f8", (1, "V"))
            kept = {"up": Maybe(up), "down": Maybe(down)}
        return {"number": COUNT, "kind": SUM_KIND, **kept, **went}

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        self._number, self._kind = state["number"], state["kind"]
        if "up" in state:
            up, down = state["up"], state["down"]
            both = None if up is None or down is None else {"up": up, "down": down}
            state = {**state, "memory": both}
        self._memories.restore("memory", state, lambda kept: _Kept(**kept))
        if self.holders.apart:
            self.traffic.restore(state)

    def kept_bytes(self, n_values: int) -> int:
        """Bytes that a sum leaves behind, of so many values of a block."""
        return 8 * n_values * (self._n_rows + 1)

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        """Begin a sum, whose messages are counted as they are formed."""
        self.holders.begin(kind, n_samples)
        if self._kind == "setup" and kind != "setup":
            # What is summed for a start has nothing to do with terms.
            self._memories.last = None
        self._kind = kind
        self.charge_as(kind)
        self._coder = codec_of(kind, self.codec)
        self._number += 1

    def reduce(
        self, terms: Floats, rows: slice = slice(None), scalars: Scalars | None = None
    ) -> NDArray[Any]:
        """Sum terms (B, m, K) over the blocks, shape (1, m, K).

        Compressed sums take all rows at once.
        """
        if self.n_blocks == 1:
            flat = self.holders.bcast(flattened(terms, scalars))
            return unflattened(flat, terms, scalars)
        flat = flattened(terms, scalars)
        n_exact = 0 if scalars is None else scalars.own.shape[1]
        shape = (self._n_rows, flat.shape[1])
        known = self._memories.last
        if known is None or known.up.shape != shape:
            known = _Kept(np.zeros(shape), np.zeros((1, shape[1])))
        _, omega = contraction(self._coder, shape[1] - n_exact)
        n_messages = self.n_rounds or self.messages(omega)
        if self.n_rounds is None and self._memories.once:
            n_messages = messages_alone(omega)
        rng = np.random.default_rng([self.seed, self._number])
        quantizer = Quantizer(self._coder, shape[1] - n_exact, self.n_threads, n_exact=n_exact)
        total = self._told(flat, known.up, quantizer, rng, n_messages)
        down = self._memory(
            quantizer,
            Channel(1, lambda size, _: self.broadcast(size)),
            known.down,
            lambda n: short_keys(rng, 1)[:n],
            self._to_all,
        )
        for _ in range(n_messages):
            down.send(total)
        self.traffic.add(self.charge, n_messages * self._delivered * quantizer.message_size, 0)
        found = unflattened(known.down, terms, scalars)
        ended = self._kind == "check" and not self._memories.lasting
        self._memories.last = None if ended else known
        return found

    @property
    def _delivered(self) -> int:
        """Messages of one kind that agents here send, and the server then: up, and down."""
        return len(self.holders.own) + (self.n_blocks if self._is_server else 0)

    def _told(
        self,
        flat: NDArray[np.float64],
        known: NDArray[np.float64],
        quantizer: Quantizer,
        rng: np.random.Generator,
        n_messages: int,
    ) -> NDArray[np.float64]:
        """Tell the server terms (B, P) of the blocks here, which moves in place what is known.

        The total (1, P) is found there; elsewhere there are no rows.
        """
        own = self.holders.own
        up = self._memory(
            quantizer, self, known, lambda n: short_keys(rng, self.n_blocks)[own], self._to_server
        )
        for _ in range(n_messages):
            up.send(flat)
        return self._summed(known)

    def _memory(
        self,
        quantizer: Quantizer,
        inner: AtServer,
        values: NDArray[np.float64],
        keys: Callable[[int], Keys],
        carry: Carry,
    ) -> Memory:
        """Return what is known of senders, some of whom may be in other processes."""
        believed, _ = contraction(self._coder, values.shape[1] - quantizer.n_exact)
        steps = quantizer.steps(believed)
        if self.holders.engine.size == 1:
            return Memory(Compressed(inner, quantizer, keys), steps, values)
        return Memory(Carried(inner, quantizer, keys, carry), steps, values)

    def _summed(self, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the total (1, P) at the server, who alone has one."""
        if not self._is_server:
            return terms[:0]
        if self.holders.apart:
            by_process = np.argsort(self.holders.ranks, kind="stable")
            terms = terms[np.argsort(by_process)]
        total: NDArray[np.float64] = terms.sum(axis=0, keepdims=True)
        return total

    def _to_server(self, messages: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Bring the blocks' messages to the server, process by process."""
        engine, own = self.holders.engine, len(self.holders.own)
        with about(engine, self.charge):
            if not self._is_server:
                if own:
                    engine.send_array(np.ascontiguousarray(messages), 0)
                self.traffic.add(self.charge, 0, messages.nbytes)
                return messages[:0]
            heard = np.empty((self.n_blocks - own, messages.shape[1]), np.uint8)
            begin = 0
            for rank, count in enumerate(np.bincount(self.holders.ranks)):
                if rank and count:
                    engine.recv_array(heard[begin : begin + count], rank)
                    begin += count
        return heard

    def _to_all(self, messages: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Bring the server's message to all processes."""
        engine = self.holders.engine
        heard = messages if self._is_server else np.empty((1, messages.shape[1]), np.uint8)
        heard = np.ascontiguousarray(heard)
        with about(engine, self.charge):
            engine.bcast_array(heard)
        self.traffic.add(self.charge, 0, messages.nbytes * engine.copies)
        return messages[:0] if self._is_server else heard
