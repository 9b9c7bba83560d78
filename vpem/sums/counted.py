"""How what holders have becomes one total: added as it is, or under masks that cancel.

Masks are of whole numbers (`vpem.network.masks`): what is masked is in fixed point, in units of a
power of two that all know, and travels as 8 bytes a number. All sums count their messages, where a
ledger is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Doubles, Floats, Indices, Mask
from vpem.engines.engine import set_topic
from vpem.engines.placement import Placement
from vpem.network.faults import Faults, Objection, Waits
from vpem.network.graph import Graph
from vpem.network.hubs import Routes
from vpem.network.ledger import Ledger
from vpem.network.masks import KEY_BYTES, SEALED_BYTES, TAG_WORDS
from vpem.network.schema import Choice, State
from vpem.sums.exchanges import TreeWays, finished
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
    counted, an int or (K,). Of holders that are not among ``who`` terms count as nothing. Where an
    ``objection`` is raised no term is a number, and so none of the total.
    """

    def __init__(
        self,
        holders: Placement,
        terms: Floats,
        scalars: Scalars | None = None,
        exponents: Exponents = 0,
        who: Indices | None = None,
        objection: Objection | None = None,
    ) -> None:
        self.objection, self.scalars = objection, scalars
        if objection is not None and objection.raised:
            no_number = np.nan if holders.masks is None else 0.0  # then `Masks.hide` sees to it
            terms = np.full_like(terms, no_number)
            if scalars is not None:
                scalars.own[:] = no_number
        self.masks, self.who = holders.masks, who if holders.masks is None else holders.left(who)
        self._here = slice(None) if who is None else np.isin(holders.own, who)
        self.terms = terms
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
            values[self._here], exponents=self._exponents, who=self.who, tag=self._tag, apart=True,
            objection=self.objection,
        )  # fmt: skip
        sent = np.zeros((len(values), shares.shape[1]), dtype=np.uint64)
        sent[self._here] = shares
        return [sent]

    def together(self) -> list[AnyArray]:
        """What this process sends, the sums of its holders: vectors (P,), as few as can be."""
        if self.masks is not None:
            values = self._values()[self._here]
            return [
                self.masks.hide(
                    values, exponents=self._exponents, who=self.who, tag=self._tag,
                    objection=self.objection,
                )
            ]  # fmt: skip
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
            parts = [self.masks.total(parts[0], self._exponents, self._tag, self.objection)]
        elif self.objection is not None:
            self.objection.heard |= bool(np.isnan(parts[-1][-1:]).any())
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
    """A sum at one place, from which all hear it: a server, or the root of a tree of agents.

    A server is the last node of the ledger's graph, one hop from every sender. Along a ``tree``
    each agent waits for what its children send, adds its own and sends the sum to its parent. What
    arrives at the root is the total, which travels the same links back. Both ways take as many
    rounds as the tree is high, and one message a link: no agent needs to be reached by all. One
    that has nothing to add only forwards, and takes no part where no agent below it has anything;
    ``agents`` (n,) are those that have. Messages of which every sender has a size of its own, as
    codecs have written them, cannot be added: they travel to the root as they are, those of all
    agents below in one message a link. Where links fail, or agents are late, a message waits until
    its link is up: sums are the same, and take more rounds (`vpem.network.faults`).

    It has two halves, around which an `vpem.sums.partial.Uplink` may stand: what senders `send`,
    and what the server has of them once it adds it up, `aggregate`. With one sender there is
    nothing to add and nothing is sent.
    """

    n_roots = 1
    """All roots receive the same total."""
    at_server = True
    agents: Indices
    weights: Doubles | None = None
    exponents: Exponents = 0
    """Powers of two in which numbers are counted where sums are masked."""
    waits: Waits | None = None
    """How long messages take where links fail or agents are late; None: each a round."""
    _all_ways: dict[bool, tuple[Indices, int]]
    """Links up and down, and rounds, of messages of all: found once for a ledger."""
    _near: TreeWays | None = None
    """How messages travel between agents, where that matters."""

    def __init__(
        self, n_senders: int, tree: Routes | None = None, agents: Indices | None = None
    ) -> None:
        super().__init__(n_senders)
        self.n_senders = n_senders
        self._alone = n_senders <= 1
        self._up: Indices = np.empty(0, dtype=np.intp)
        self._down = self._up
        self._root_in(tree, np.arange(n_senders) if agents is None else agents)

    def _root_in(self, tree: Routes | None, agents: Indices) -> None:
        self.tree, self.agents = tree, agents
        self.way, self.kind = ("server", "server") if tree is None else ("tree", "estep")
        self.path = None if tree is None else "tree"
        self.charge = self.kind
        self._all_ways = {}

    def __setstate__(self, state: State) -> None:
        """Become a copy, also one of before sums along a tree were of this class."""
        vars(self).update(state)
        if "way" not in state:
            self._root_in(state.get("tree"), state.get("agents", np.arange(self.n_senders)))

    def _live(self, agents: Placement, holders: Placement, following: bool = False) -> None:
        super()._live(agents, holders, following)
        if holders.apart:
            self.roots = Placement(holders.engine, holders.ranks[:1])

    def counted_on(self, ledger: Ledger) -> Self:
        counted = super().counted_on(ledger)
        counted._all_ways = {}
        if self.tree is None:
            server = ledger.n_nodes - 1
            counted._up = np.flatnonzero(ledger.targets == server)
            counted._down = np.flatnonzero(ledger.sources == server)
        else:
            counted._up = self.tree.links_up(ledger)
            counted._down = self.tree.links_down(ledger)
        return counted

    # ---- its tree --------------------------------------------------------------------------------

    def failing(self, graph: Graph, faults: Faults, seed: int) -> Self:
        """Return the same sum where links of a graph fail."""
        assert self.tree is not None
        failing = copy(self)
        failing.waits = Waits(graph, self.tree, faults, seed)
        return failing

    @property
    def shape(self) -> dict[str, int] | None:
        return None if self.tree is None else {"root": self.root, "hops": self.tree.hops}

    @cached_property
    def routes(self) -> Routes:
        """Ways to the root: those of the tree, or one hop from each sender to a server."""
        if self.tree is not None:
            return self.tree
        n = self.n_senders
        return Routes(np.full(n + 1, n, dtype=np.intp), (np.arange(n + 1) < n).astype(np.intp))

    @property
    def root(self) -> int:
        """Agent at the root; a server has the number after the last."""
        return int(self.routes.depth.argmin())

    @cached_property
    def _levels(self) -> list[Indices]:
        """Agents by hops to the root, from 1."""
        return [np.flatnonzero(self.routes.depth == hops + 1) for hops in range(self.routes.hops)]

    @cached_property
    def every_way(self) -> Mask:
        """Which nodes lie on the way of any who has something to add."""
        return self._ways(self.agents)

    def _ways(self, agents: Indices) -> Mask:
        """Which nodes lie on the ways of some agents to the root."""
        on = np.zeros(len(self.routes.parent), dtype=np.bool_)
        on[agents] = True
        for level in () if self._alone else reversed(self._levels):
            on[self.routes.parent[level[on[level]]]] = True
        return on

    def _on_ways(self, who: Indices | None) -> Mask:
        return self.every_way if who is None else self._ways(self.agents[who])

    def _used(self, links: Indices, who: Indices | None) -> Indices:
        """Return those of the links of each sender, or leaf, on the ways of some, or of all."""
        if self.ledger is None:
            return links
        if self.tree is not None:
            return links[self._on_ways(who)[self.tree.leaves]]
        return links if who is None else links[who]

    def _rounds(self, on: Mask, hops: Indices, source: int | None = None) -> int:
        """Rounds until the nodes that are on have sent to the root, or heard from the source."""
        if self.waits is None or self.ledger is None:
            return int(hops[on].max(initial=0))
        # What no two messages share: how many were sent before, and in how many rounds.
        return self.waits.taken(on, (self.ledger.messages, self.ledger.rounds), source)

    def _over(self, size: int | NDArray[np.int64], who: Indices | None, *, upward: bool) -> None:
        """Count messages of one size, or one a link, over the links on the ways of some."""
        known = self._all_ways if who is None and self.waits is None else {}
        if upward not in known:
            links = self._used(self._up if upward else self._down, who)
            source = None if upward else self.root
            on = self._on_ways(who)
            known[upward] = links, self._rounds(on, self.routes.depth, source) if len(links) else 0
        links, rounds = known[upward]
        if len(links):
            self._send(self.charge, size, links=links, rounds=rounds)

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
        """Count a sum: terms of every agent go to the root, and the total comes back."""
        self.holders.begin(kind, n_samples)
        self.charge_as(kind)
        if self._alone:
            return
        masked = self.holders.masks is not None
        itemsize = MASKED_BYTES if masked else itemsize
        size = message_bytes(n_samples, n_values, itemsize, n_scalars)
        size += TAG_BYTES * (masked and n_samples > 0 and not self._opens)
        self.count(size)
        self.broadcast(size)

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        """Count how all agents hear what the root has decided, or what one of them has.

        A server hears of it, and tells all; over every link of a tree goes one message, away from
        who has it.
        """
        if self.tree is None:
            if source is not None and self.ledger is not None:
                self._send(kind, size, links=self._up[[source]], rounds=1)
            self._send(kind, size, links=self._down, rounds=1)
            return
        leaves, parent = self.tree.leaves, self.tree.parent
        on = np.zeros(len(parent), dtype=np.bool_)
        hops = self.tree.depth
        start = self.root if source is None else int(self.agents[source])
        if source is not None:
            hops, node = np.zeros_like(hops), start
            while parent[node] != node:
                on[node] = True
                hops[parent[node]] = hops[node] + 1
                node = int(parent[node])
            for level in self._levels:
                others = level[~on[level]]
                hops[others] = hops[parent[others]] + 1
        if self.ledger is not None:
            links = np.where(on[leaves], self._up, self._down)
            rounds = self._rounds(np.ones_like(on), hops, start)
            self._send(kind, size, links=links, rounds=rounds)

    def count(self, sizes: int | NDArray[np.int64], senders: Indices | None = None) -> None:
        """Count sums of this size on their way to the root, of some senders or of all.

        Or of each sender a message of its own size.
        """
        if self.tree is not None and np.ndim(sizes):
            # Bytes of all that senders who are a leaf or below it send, of each leaf.
            carried = np.zeros(len(self.tree.parent), dtype=np.int64)
            carried[self.agents if senders is None else self.agents[senders]] = sizes
            for level in reversed(self._levels):
                np.add.at(carried, self.tree.parent[level], carried[level])
            sizes = self._used(carried[self.tree.leaves], senders)
        self._over(sizes, senders, upward=True)

    def broadcast(self, size: int | NDArray[np.int64], receivers: Indices | None = None) -> None:
        """Count a message of the root to some of the senders, or to all: the longest, in a tree."""
        size = size if self.tree is None else int(np.max(size, initial=0))
        self._over(size, receivers, upward=False)

    def charge_keys(self) -> None:
        """Count how senders agree on masks: the public key of each goes to all."""
        self.charge_as("setup")
        sealed = SEALED_BYTES * (self.n_senders - 1)
        self.count(np.full(self.n_senders, KEY_BYTES) + sealed * (np.arange(self.n_senders) == 0))
        self.broadcast(self.n_senders * KEY_BYTES + sealed)

    @property
    def bytes_up(self) -> int:
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

        They go process by process, in the senders' order; along a tree hop by hop.
        """
        engine, ranks = self.holders.engine, self.holders.ranks
        ranks = ranks if senders is None else ranks[senders]
        near, is_local = self._near, self.here(senders)
        if self.tree is not None:
            if near is None or is_local is None or self._alone:
                return messages
            every = np.zeros((len(ranks), messages.shape[1]), dtype=np.uint8)
            every[is_local] = messages
            for exchange in near.relay(self.agents if senders is None else self.agents[senders]):
                finished(exchange.run([every], self.charge, self.traffic))
            return every if self.is_here else messages
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
    def home(self) -> int:
        """Process that has the total first."""
        return 0 if self._near is None else self._near.home

    def as_at_home(self, values: Doubles) -> Doubles:
        """Return what the process that has totals first has found in one (n,): it is for all."""
        self.holders.engine.bcast_array(values, self.home)
        if self.holders.masks is not None:
            self.holders.masks.hear(values)
        return values

    @property
    def is_here(self) -> bool:
        return self.holders.engine.rank == self.home

    def to_all(self, values: AnyArray) -> AnyArray:
        """Return what the server has (1, P) in every process; elsewhere values are (0, P)."""
        engine, near = self.holders.engine, self._near
        if self.tree is not None and near is not None:
            rows = np.zeros((near.n_states, values.shape[1]), values.dtype)
            rows[near.n_states - len(values) :] = values
            finished(near.send_total([rows], self.charge, self.traffic))
            return near.follow(rows[-1:].copy())
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

    def in_order(self, values: Doubles) -> Doubles:
        """Add vectors of agents (n, P) at the first process, in the agents' order: (1, P)."""
        objection = self.objection
        if objection is not None and objection.raised:
            values = np.full_like(values, np.nan)
        with set_topic(self.holders.engine, self.charge):
            total: Doubles = self.holders.in_order(values)
        if objection is not None:
            objection.heard |= bool(np.isnan(total[0, -1:]).any())
        self.traffic.add(self.charge, 0, values.nbytes + total.nbytes * self.holders.engine.copies)
        return total

    @property
    def _opens(self) -> bool:
        """Whether each masked vector has a tag of its own, and is opened by keys of all senders."""
        return self.holders.masks is not None and self.holders.masks.outlast is not None

    def count_tag(self, senders: Indices | None = None, tag: int = TAG_BYTES) -> None:
        """Count what stands behind messages under masks, and what opens them: there and back."""
        if self.ledger is not None and not self._alone:
            up, down = self._used(self._up, senders), self._used(self._down, None)
            key_bytes = KEY_BYTES * self._opens
            self.ledger.grow(self.charge, tag + key_bytes, up)
            self.ledger.grow(self.charge, tag + self.n_senders * key_bytes, down)

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
    if total.ordered:
        return total.server.in_order(values)
    return total.reduce(values[:, None], slice(0, 1))[:, 0]
