"""How what holders have becomes one total: added as it is, or under masks that cancel.

Masks are of whole numbers (`vpem.network.masks`): what is masked is in fixed point, in units of a
power of two that all know, and travels as 8 bytes a number. All sums count their messages, where a
ledger is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Doubles, Floats, Indices, Mask
from vpem.engines.engine import set_topic
from vpem.engines.placement import Placement
from vpem.network.ledger import Ledger
from vpem.network.masks import KEY_BYTES, SEALED_BYTES, TAG_WORDS
from vpem.network.schema import Choice
from vpem.sums.sum import Scalars, Sum, beside, message_bytes

TAG_BYTES = 8 * TAG_WORDS
"""Behind what is masked: what shows that no agent has changed the total."""

MASKED_BYTES = 8
"""Of a number under a mask, whatever its precision was."""

Exponents = int | NDArray[np.int64]

SUM_KIND = Choice(("setup", "estep", "check"))
"""What a sum is for; see `vpem.sums.sum.Sum.begin`."""


class Addends:
    """What the holders of this process add to a total of all, and the total once it is there.

    Terms (B, m, K) are of the holders of this process; where they are flags under masks, the total
    says whether any holder has each. ``exponents`` are powers of two in which masked terms are
    counted, an int or (K,). Of holders that are not among ``who`` terms count as nothing.
    """

    def __init__(
        self,
        holders: Placement,
        terms: Floats,
        scalars: Scalars | None = None,
        exponents: Exponents = 0,
        who: Indices | None = None,
    ) -> None:
        self.masks, self.who = holders.masks, who if holders.masks is None else holders.left(who)
        self._here = slice(None) if who is None else np.isin(holders.own, who)
        self.terms, self.scalars = terms, scalars
        if self.masks is not None:
            # Powers of two of all numbers of a message (P,).
            self._exponents = np.broadcast_to(exponents, terms.shape[1:]).ravel()
            if scalars is not None:
                of_scalars = int(np.max(exponents)) + scalars.exponent
                of_each = np.full(scalars.own.shape[1], of_scalars)
                self._exponents = np.append(self._exponents, of_each)
            self._tag = None
            if terms.dtype != np.bool_:
                self._tag = self.masks.tag(terms.shape[1] if who is None else None)

    def again(self, who: Indices | None) -> AnyArray:
        """What this process sends in another sum, of those who are left."""
        assert self.masks is not None
        self.who, self._tag = who, self._tag and self.masks.tag()
        return self.together()[0]

    def _values(self) -> AnyArray:
        """All numbers of a message, of each holder (B, P)."""
        if self.masks is not None and self.terms.dtype == np.bool_:
            return self.masks.words(self.terms.reshape(len(self.terms), len(self._exponents)) > 0)
        values = beside(self.terms, self.scalars)
        return values[0] if len(values) == 1 else np.concatenate(values, axis=1)

    def apart(self) -> list[AnyArray]:
        """What each holder sends: vectors (B, P) of one type each, which are added up."""
        if self.masks is None:
            return beside(self.terms, self.scalars)
        values = self._values()
        shares = self.masks.hide(
            values[self._here], exponents=self._exponents, who=self.who, tag=self._tag, apart=True
        )
        sent = np.zeros((len(values), shares.shape[1]), dtype=np.uint64)
        sent[self._here] = shares
        return [sent]

    def together(self) -> list[AnyArray]:
        """What this process sends, the sums of its holders: vectors (P,), as few as can be."""
        if self.masks is not None:
            values = self._values()[self._here]
            return [self.masks.hide(values, exponents=self._exponents, who=self.who, tag=self._tag)]
        parts: list[AnyArray] = [self.terms.sum(axis=0).ravel()]
        if self.scalars is not None:
            parts.append(self.scalars.own.sum(axis=0))
            if self.terms.dtype == np.float64:
                parts = [np.concatenate(parts)]
        return parts

    def total(self, parts: list[AnyArray]) -> Floats:
        """Read what all holders have sent, added up (P,): the sum of terms (1, m, K)."""
        if self.masks is not None and self.terms.dtype == np.bool_:
            parts = [self.masks.anybody(parts[0])]
        elif self.masks is not None:
            parts = [self.masks.total(parts[0], self._exponents, self._tag)]
        shape = (1, *self.terms.shape[1:])
        if self.scalars is not None:
            self.scalars.found = parts[-1][-self.scalars.own.shape[1] :][None]
        total: Floats = parts[0][: int(np.prod(shape))].reshape(shape)
        return total.astype(self.terms.dtype, copy=False)


def farthest(holders: Placement, usual: float) -> float:
    """By how much two numbers of a row may differ that are summed, at most the ``usual``.

    Masks are of numbers in a range; `tests.twins.mixture.differences` gives twice as much at most.
    """
    masks = holders.masks
    return usual if masks is None else min(usual, masks.fixed.largest / 4)


def largest_of(place: Placement, numbers: Sequence[float]) -> list[float]:
    """Return the largest of what agents have, which they learn by flooding."""
    with set_topic(place.engine, "flooding"):
        return [float(one) for one in place.allreduce(np.array(numbers), "max")]


class AtServer(Sum):
    """A sum at one place, from which all hear it: a server, the last node of the ledger's graph.

    It has two halves, around which an `vpem.sums.partial.Uplink` may stand: what senders `send`,
    and what the server has of them once it adds it up, `aggregate`. With one sender there is
    nothing to add and nothing is sent.
    """

    way = "server"
    n_roots = 1
    """All roots receive the same total."""
    kind = "server"
    at_server = direct = True
    weights: Doubles | None = None
    exponents: Exponents = 0
    """Powers of two in which numbers are counted where sums are masked."""

    def __init__(self, n_senders: int) -> None:
        super().__init__(n_senders)
        self.charge = self.kind
        self.n_senders = n_senders
        self._alone = n_senders <= 1
        self._up: Indices = np.empty(0, dtype=np.intp)
        self._down = self._up

    def _live(self, agents: Placement, holders: Placement, following: bool = False) -> None:
        super()._live(agents, holders, following)
        if holders.apart:
            self.roots = Placement(holders.engine, holders.ranks[:1])

    def counted_on(self, ledger: Ledger) -> Self:
        counted = super().counted_on(ledger)
        counted._up, counted._down = self._links(ledger)
        return counted

    def _links(self, ledger: Ledger) -> tuple[Indices, Indices]:
        """Links of each sender to the server, and back."""
        server = ledger.n_nodes - 1
        return np.flatnonzero(ledger.targets == server), np.flatnonzero(ledger.sources == server)

    def weighted(self, weights: Doubles) -> Self:
        """Return the same sum of vectors that weigh so much each, (n,)."""
        weighted = copy(self)
        weighted.weights = weights
        return weighted

    def in_units(self, exponents: Exponents) -> Self:
        """Return the same sum of numbers that under masks are counted in powers of two."""
        if self.holders.masks is None:
            return self
        changed = copy(self)
        changed.exponents = exponents
        return changed

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        """Count a sum: every agent sends its terms to the server and receives the total."""
        self.holders.begin(kind, n_samples)
        self.charge_as(kind)
        masked = self.holders.masks is not None
        itemsize = MASKED_BYTES if masked else itemsize
        size = message_bytes(n_samples, n_values, itemsize, n_scalars)
        size += TAG_BYTES * (masked and n_samples > 0 and not self._opens)
        self.count(size)
        self.broadcast(size)

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        """Count how the server sends all agents what it has decided, or what one of them has."""
        if source is not None and self.ledger is not None:
            self._send(kind, size, links=self._up[[source]], rounds=1)
        self._send(kind, size, links=self._down, rounds=1)

    def count(self, sizes: int | NDArray[np.int64], senders: Indices | None = None) -> None:
        """Count messages of these sizes to the server, of some senders or of all."""
        links = self._up if senders is None else self._up[senders]
        if len(links):
            self._send(self.charge, sizes, links=links, rounds=1)

    def broadcast(self, size: int | NDArray[np.int64], receivers: Indices | None = None) -> None:
        """Count a message of the server to some of the senders, or to all."""
        links = self._down if receivers is None else self._down[receivers]
        if len(links):
            self._send(self.charge, size, links=links, rounds=1)

    def charge_keys(self) -> None:
        """Count how senders agree on masks: the public key of each goes to all."""
        self.charge_as("setup")
        sealed = SEALED_BYTES * (self.n_senders - 1)
        self.count(np.full(self.n_senders, KEY_BYTES) + sealed * (np.arange(self.n_senders) == 0))
        self.broadcast(self.n_senders * KEY_BYTES + sealed)

    @property
    def bytes_up(self) -> int:
        """Payload bytes that senders have sent up to now."""
        return 0 if self.ledger is None else int(self.ledger.of_links()[1][self._up].sum())

    def send(self, values: Doubles, senders: Indices | None = None) -> Doubles:
        """Send a vector of each sender (a, P), exactly: what the server has of them.

        Vectors are those of the senders of all processes; of others' zeros are returned.
        """
        self.count(values.shape[1] * values.itemsize, senders)
        return self.ours(values, senders)

    def ours(self, values: Doubles, senders: Indices | None = None) -> Doubles:
        """Return vectors (a, P) of some senders, or of all: zeros of those that live elsewhere."""
        is_local = self.here(senders)
        return values if is_local is None else np.where(is_local[:, None], values, 0.0)

    def hear(
        self, messages: NDArray[np.uint8], senders: Indices | None = None
    ) -> NDArray[np.uint8]:
        """Bring messages (a, size) of the senders here to the server, which has those of all.

        They go process by process, in the senders' order.
        """
        engine, ranks = self.holders.engine, self.holders.ranks
        ranks = ranks if senders is None else ranks[senders]
        with set_topic(engine, self.charge):
            if engine.rank:
                if len(messages):
                    engine.send_array(np.ascontiguousarray(messages), 0)
                self.traffic.add(self.charge, 0, messages.nbytes)
                return messages
            heard = np.empty((len(ranks), messages.shape[1]), np.uint8)
            heard[ranks == 0] = messages
            for rank in np.unique(ranks[ranks > 0]).tolist():
                part = np.empty((int((ranks == rank).sum()), messages.shape[1]), np.uint8)
                engine.recv_array(part, rank)
                heard[ranks == rank] = part
        return heard

    @property
    def is_here(self) -> bool:
        """Whether the server lives in this process."""
        return self.holders.engine.rank == 0

    def to_all(self, values: AnyArray) -> AnyArray:
        """Return what the server has (1, P) in every process; elsewhere values are (0, P)."""
        engine = self.holders.engine
        same = values if self.is_here else np.empty((1, values.shape[1]), values.dtype)
        same = np.ascontiguousarray(same)
        with set_topic(engine, self.charge):
            engine.bcast_array(same)
        self.traffic.add(self.charge, 0, values.nbytes * engine.copies)
        return same

    def announce(self, received: Doubles, senders: Indices | None = None) -> Doubles:
        """Let all know the sum of what the server has received of some senders, or of all."""
        here = self.is_here
        return self.to_all(self.added(received, senders)[None] if here else received[:0])

    @property
    def server(self) -> AtServer:  # type: ignore[override]
        return self

    def aggregate(self, received: Doubles, senders: Indices | None = None) -> Doubles:
        """Add up what the server has of some senders (a, P), or of all: shape (1, P).

        Some holder has begun the sum (`Placement.begin`) before. Under masks the server has nothing
        of any, and what they have sent is added up on its way.
        """
        if self.holders.masks is None:
            return self.holders.allreduce(self.added(received, senders)[None], announced=True)
        is_local, weights = self.here(senders), self._weights_of(senders)
        vectors = received if is_local is None else received[is_local]
        if weights is not None:
            vectors = (weights if is_local is None else weights[is_local])[:, None] * vectors
        self.count_tag(senders)
        units = np.broadcast_to(self.exponents, received.shape[1:])
        return self.holders.add(vectors, who=senders, exponents=units, announced=True)[None]

    @property
    def _opens(self) -> bool:
        """Whether each masked vector has a tag of its own, and is opened by keys of all senders."""
        return self.holders.masks is not None and self.holders.masks.outlast is not None

    def count_tag(self, senders: Indices | None = None, tag: int = TAG_BYTES) -> None:
        """Count what stands behind messages under masks, and what opens them: there and back."""
        if self.ledger is not None and not self._alone:
            up = self._up if senders is None else self._up[senders]
            key_bytes = KEY_BYTES * self._opens
            self.ledger.grow(self.charge, tag + key_bytes, up)
            self.ledger.grow(self.charge, tag + self.n_senders * key_bytes, self._down)

    def added(self, received: Doubles, senders: Indices | None) -> Doubles:
        """Weigh and add the vectors of some senders (a, P), or of all: shape (P,)."""
        weights = self._weights_of(senders)
        total: Doubles
        total = received.sum(axis=0) if weights is None else weights @ received
        return total

    def _weights_of(self, senders: Indices | None) -> Doubles | None:
        return self.weights if senders is None or self.weights is None else self.weights[senders]

    def here(self, senders: Indices | None = None) -> Mask | None:
        """Which of some senders, or of all, are in this process; None where all are."""
        if not self.holders.apart:
            return None
        every = np.zeros(self.n_senders, dtype=np.bool_)
        every[self.holders.own] = True
        return every if senders is None else every[senders]

    def _send(self, kind: str, size: int | NDArray[np.integer], **options: Any) -> None:
        if not self._alone:
            super()._send(kind, size, **options)


def add_vectors(
    total: Sum, values: Doubles, kind: str = "estep", exponents: NDArray[np.int64] | None = None
) -> Doubles:
    """Sum one vector an agent, (N, P), of N agents that are roots of their own: (R, P).

    Each root finds its own sum; R is 1 where all share one. Where sums are masked numbers are
    counted in powers of two, ``exponents`` (P,), by default 1.
    """
    if exponents is not None:
        total = total.server.in_units(exponents)
    total.begin(kind, 1, values.shape[1], values.itemsize)
    if total.mix is not None:
        return total.mix @ values
    return total.reduce(values[:, None], slice(0, 1))[:, 0]
