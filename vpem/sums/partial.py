"""Around a sum at a server: messages that are compressed, memories, and senders that are absent.

Each wrapper takes the sum inside it and does one thing. FedEM's are
``Memory(Partial(Compressed(server)))``: how vectors differ from memories is sent, by some of the
senders, in few bits. Innermost is a sum at a server (`vpem.sums.counted.AtServer`). Rounds between
neighbours carry states and not terms: they are compressed by `vpem.sums.gossip.GossipSum`, whose
copies are memories too. Compressed sums remember all rows, or those of every batch apart.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Doubles, Floats
from vpem.network.codecs import Codec, Keys, draw_keys
from vpem.network.ledger import Ledger
from vpem.network.schema import COUNT, Maybe, Schema, State, restore, save
from vpem.sums.consensus import codec_of
from vpem.sums.counted import SUM_KIND, AtServer
from vpem.sums.quantizer import Quantizer
from vpem.sums.sum import ALL, WENT, Scalars, Sum, flattened, message_bytes, unflattened

Senders = NDArray[np.intp]

Carry = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
"""Brings messages (a, size) of this process to others; returns those that it hears itself."""


class Wrapper(Sum):
    """A sum around another at a server; what it does not change is that of the inner.

    Nothing of it is kept but memories, by their owners.
    """

    n_roots = 1
    whole = at_server = True

    def __init__(self, inner: AtServer | Wrapper) -> None:
        self.inner = inner
        self.ledger, self.way = self.server.ledger, self.server.way
        self.holders = self.server.holders
        self.probability: float = inner.probability
        """Probability with which a sender is active."""
        self.biased: bool = inner.biased
        """Whether the mean of what is received is something else than what was sent."""

    # ---- the two halves of a sum -----------------------------------------------------------------

    @property
    def server(self) -> AtServer:
        return self.inner.server

    @property
    def everyone(self) -> Senders:
        return np.arange(self.server.n_senders)

    @property
    def active(self) -> Senders | None:
        return self.inner.active

    def count(self, sizes: int | NDArray[np.int64], senders: Senders | None = None) -> None:
        """Count messages of these sizes, of some senders or of all."""
        self.inner.count(sizes, senders)

    def send(self, values: Doubles, senders: Senders | None = None) -> Doubles:
        """Send a vector of each active sender (a, P): what the server has of them then."""
        return self.inner.send(values, self.active if senders is None else senders)

    def aggregate(self, received: Doubles, senders: Senders | None = None) -> Doubles:
        """Add up what the server has of the active senders (a, P), or of some: shape (1, P)."""
        return self.inner.aggregate(received, self.active if senders is None else senders)

    def broadcast(self, size: int, receivers: Senders | None = None) -> None:
        """Count a message of the server to the active senders, or to some."""
        self.inner.broadcast(size, self.active if receivers is None else receivers)

    def draw(self) -> None:
        """Draw who takes part in the next sum."""
        self.inner.draw()

    def add(self, values: Doubles) -> Doubles:
        """Estimate the sum (1, P) of all senders' vectors by those of the active ones (a, P)."""
        total = self.aggregate(self.send(values))
        return total if self.probability == 1 else total / self.probability

    # ---- as a sum of terms -----------------------------------------------------------------------

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        """Begin a sum: the server sends those that take part what it had; see `Sum.begin`.

        Messages to the server are counted as they are formed.
        """
        self.server.holders.begin(kind, n_samples)
        self.draw()
        self.server.charge_as(kind)
        self.broadcast(message_bytes(n_samples, n_values, itemsize, n_scalars))

    def reduce(self, terms: Floats, rows: slice = ALL, scalars: Scalars | None = None) -> AnyArray:
        """Sum terms (a, m, K), all rows at once: shape (1, m, K)."""
        flat = flattened(terms, scalars)
        if self.holders.apart:
            flat = self.holders.padded(flat)
        return unflattened(self.add(flat), terms, scalars)

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        self.server.agree(kind, size, source)

    def schema(self) -> dict[str, Schema]:
        return {}


class Compressed(Wrapper):
    """Vectors are sent in the few bytes of a codec.

    ``keys`` draw the keys of so many messages; a generator does as `draw_keys`. Where messages go
    to other processes by themselves, and come from them, ``carry`` is how they travel, and keys are
    of those of this process, out of those of all. What is received is then decoded from its bytes
    by all who hear it: by its sender too, so that all have the same of it.
    """

    def __init__(
        self,
        inner: AtServer | Wrapper,
        quantizer: Quantizer,
        keys: np.random.Generator | Callable[[int], Keys],
        carry: Carry | None = None,
    ) -> None:
        if inner.remembers:
            raise TypeError("memories are of what was received: they stand around Compressed")
        super().__init__(inner)
        self.quantizer = quantizer
        self._draw = keys if callable(keys) else partial(draw_keys, keys)
        self.biased = quantizer.biased or inner.biased
        self._carry = carry

    def send(self, values: Doubles, senders: Senders | None = None) -> Doubles:
        """Send a vector of each sender (a, P): what is decoded of them, then of those elsewhere."""
        senders = self.active if senders is None else senders
        if self._carry is not None:
            messages = self.quantizer.pack(values, self._draw)
            self.inner.count(messages.shape[1], senders)
            return self.quantizer.unpack(np.concatenate([messages, self._carry(messages)]))
        is_local = self.server.here(senders)
        if is_local is None or not self.server.carries:
            received, sizes = self.quantizer.transmit(values, self._draw, is_local)
            self.inner.count(self.holders.allreduce(sizes, announced=True), senders)
            return received
        messages = self.quantizer.pack(values, self._draw, is_local)
        self.inner.count(np.full(len(values), messages.shape[1]), senders)
        heard = self.quantizer.unpack(self.server.hear(messages, senders))
        if len(heard) == len(values):  # at the server, where all are heard
            return heard
        received = np.zeros(values.shape)
        received[is_local] = heard
        return received

    def aggregate(self, received: Doubles, senders: Senders | None = None) -> Doubles:
        if self.server.carries:
            return self.server.announce(received, senders)
        return super().aggregate(received, senders)


class Memory(Wrapper):
    """The receiver has a vector of each sender, who has it too: only what differs is sent.

    Both add what was received of a message, times the step, so that they keep the same whatever the
    codec loses; as vectors settle messages become small, and their noise with them. DIANA,
    Mishchenko et al. 2019; of biased codecs EF21, Richtarik et al. 2021.

    The ``step``, one or (P,), is the part of a message that is added: ``1 / (1 + omega)`` for
    noise, 1 for biased codecs. ``values`` (n, P) are the first states, which are moved in place;
    ``kept`` (1, P) is their sum, likewise, for `estimate`.
    """

    remembers = True

    def __init__(
        self,
        inner: AtServer | Wrapper,
        step: float | Doubles,
        values: Doubles,
        kept: Doubles | None = None,
    ) -> None:
        super().__init__(inner)
        self.step, self.values, self.kept = step, values, kept

    def differ(
        self, values: Doubles, about: Doubles | None = None, senders: Senders | None = None
    ) -> Doubles:
        """Return vectors (a, P), or their distances from others, less the states.

        They may be those of the first senders only, where others are heard from elsewhere.
        """
        changes: Doubles = values - self.values[self._held(senders)][: len(values)]
        return changes if about is None else changes - about

    def add_received(self, received: Doubles, senders: Senders | None = None) -> None:
        """Add what was received (a, P), times the step, in its own memory."""
        received *= self.step
        self.values[self._held(senders)] += received

    def _held(self, senders: Senders | None) -> Senders | slice:
        senders = self.active if senders is None else senders
        return slice(None) if senders is None else senders

    def send(self, values: Doubles, senders: Senders | None = None) -> Doubles:
        """Send how vectors (a, P) differ: what the server has of the senders then."""
        self.add_received(self.inner.send(self.differ(values, None, senders), senders), senders)
        return self.values[self._held(senders)]

    def add(self, values: Doubles) -> Doubles:
        """Sum what the server has of all senders (1, P), once the active ones have sent theirs."""
        self.send(values)
        return self.total()

    def total(self) -> Doubles:
        """Sum what the server has of all senders (1, P)."""
        return self.inner.aggregate(self.values, self.inner.everyone)

    def estimate(self, values: Doubles, about: Doubles) -> Doubles:
        """Estimate the sum of vectors (a, P) of the active senders without bias: shape (1, P).

        It is the sum of the memories as they were, which the server keeps, plus an estimate of what
        differs. Of biased messages it is that of the memories as they become. Vectors are taken
        about ``about``, which all know.
        """
        assert self.kept is not None
        received = self.inner.send(self.differ(values, about))
        seen = self.inner.aggregate(received)
        share = 1.0 if self.biased else 1.0 / self.probability
        total: Doubles = self.kept + share * seen
        # Sum and memories begin as they are elsewhere: a process keeps those of its own.
        self.add_received(self.server.ours(received, self.active))
        self.kept += self.step * seen
        return total


class Partial(Wrapper):
    """Some of the senders take part in a sum, each with the same probability.

    Their total is divided by it, so that it is that of all on average. ``among`` are those who can
    take part; None: all.
    """

    def __init__(
        self,
        inner: AtServer | Wrapper,
        probability: float,
        rng: np.random.Generator,
        among: Senders | None = None,
    ) -> None:
        super().__init__(inner)
        self._probability = probability
        self.probability *= probability
        self.rng = rng
        self.among = self.everyone if among is None else among
        self._active = self.among

    @property
    def active(self) -> Senders:
        """Senders (a,) of the sum begun last."""
        return self._active

    def draw(self) -> None:
        super().draw()
        self._active = self.among
        if self._probability < 1:
            self._active = self.among[self.rng.random(len(self.among)) < self._probability]


class Channel(AtServer):
    """Messages that are not summed: whichever agent hears them keeps what they say.

    ``count`` counts messages of these sizes, of some senders or of all.
    """

    def __init__(
        self, n_senders: int, count: Callable[[int | NDArray[np.int64], Senders | None], None]
    ) -> None:
        super().__init__(n_senders)
        self._heard = count

    def count(self, sizes: int | NDArray[np.int64], senders: Senders | None = None) -> None:
        self._heard(sizes, senders)


def short_keys(rng: np.random.Generator, n_messages: int) -> Keys:
    """Draw keys of 63 bits, as sums of terms do."""
    return rng.integers(1 << 63, size=n_messages, dtype=np.uint64)


class GoesOn(Sum):
    """A sum in a codec that goes on from the one before of the same rows, and draws again in each.

    It has a memory, a record of arrays, of the sum taken last, or in batches one of each.
    """

    codec: Codec | None
    seed: int
    _coder: Codec | None
    n_rounds: int | None
    least: int
    make_memory: type[Any]
    unnamed: tuple[str, ...] = ()
    """Arrays of a memory that stand in states by themselves, and not in one of a "memory"."""
    _number = 0
    """Of sums up to now, which seeds what is drawn."""
    _kind = "setup"
    _batch = 0
    _lasting = False
    """Whether a sum in which all take part is followed by others.

    In batches it is the first, and else the last.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._memories: list[Any] = [None]

    def counted_on(self, ledger: Ledger) -> Self:
        counted = super().counted_on(ledger)
        counted._number, counted._memories = 0, [None]
        counted._batch, counted._lasting = 0, False
        return counted

    def turn_to(self, batch: int, n_batches: int | None) -> None:
        """Go on from the sums of a batch; see `vpem.sums.sum.Sum.turn_to`."""
        if n_batches is None:  # rows come once: there is nothing to go on from
            self._memories, self._number = [None], batch
            return
        if not self._lasting or len(self._memories) != n_batches:
            self._memories, self._lasting = [None] * n_batches, True
        self._batch = batch

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        """Begin a sum, whose messages are counted as they are formed."""
        self.holders.begin(kind, n_samples)
        if self._kind == "setup" and kind != "setup":
            # What is summed for a start has nothing to do with terms.
            self._memories[self._batch] = None
        self._kind = kind
        self.charge_as(kind)
        self._coder = None if self.codec is None else codec_of(kind, self.codec)
        self._number += 1

    def _keep(self, memory: object) -> None:
        """Keep the memory of the sum begun last, if others go on from it."""
        ended = self._kind == "check" and not self._lasting
        self._memories[self._batch] = None if ended else memory

    def state(self) -> State:
        """Return memories, how many sums there were, and of several processes what went."""
        every = [None if one is None else dict(vars(one)) for one in self._memories]
        kept: State = {"batches": every}
        if not self._lasting:
            kept = {"memory": every[0]}
            if self.unnamed:
                kept = every[0] or dict.fromkeys(self.unnamed)
        went = save(WENT, self) if self.holders.apart else {}
        return {"number": self._number, "kind": self._kind, **kept, **went}

    def expect(self, n_values: int) -> None:
        self.least = self.n_rounds or 0

    def memory_schema(self, n_values: str) -> dict[str, Schema]:
        """What a memory must be; ``n_values`` names how many there are of an agent."""
        raise NotImplementedError

    def schema(self) -> dict[str, Schema]:
        n_batches = len(self._memories)
        kept: dict[str, Schema] = {
            "batches": [Maybe(self.memory_schema(f"V{number}")) for number in range(n_batches)]
        }
        if not self._lasting:
            kept = {"memory": Maybe(self.memory_schema("V0"))}
            if self.unnamed:
                kept = {name: Maybe(one) for name, one in self.memory_schema("V").items()}
        return {"number": COUNT, "kind": SUM_KIND, **kept, **(WENT if self.holders.apart else {})}

    def restore(self, state: State) -> None:
        self._number, self._kind = state["number"], state["kind"]
        if self._lasting:
            every = state["batches"]
        elif self.unnamed:
            arrays = {name: state[name] for name in self.unnamed}
            every = [None if any(one is None for one in arrays.values()) else arrays]
        else:
            every = [state["memory"]]
        self._memories = [None if one is None else self.make_memory(**one) for one in every]
        if self.holders.apart:
            restore(WENT, self, state)
