"""The exact sum along a spanning tree, toward its root and back, in one process or in several."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Doubles, Floats, Indices, Mask
from vpem.engines.engine import set_topic
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.network.faults import Faults, Waits
from vpem.network.graph import Graph
from vpem.network.hubs import Routes
from vpem.network.ledger import Ledger
from vpem.sums.counted import TAG_BYTES, Addends, AtServer
from vpem.sums.exchanges import Exchange, Joined, finished, row_bytes
from vpem.sums.server import IN_FLIGHT, Flying, ServerSum
from vpem.sums.sum import Scalars, Traffic

Ranks = NDArray[np.intp]
T = TypeVar("T")


class AlongTree(AtServer):
    """A sum at the root of a tree, to which messages go from agent to agent, and back to all.

    Each agent waits for what its children send, adds its own and sends the sum to its parent. What
    arrives at the root is the total, which travels the same links back. Both ways take as many
    rounds as the tree is high, and one message a link: no agent needs to be reached by all. One
    that has nothing to add only forwards, and takes no part where no agent below it has anything.

    Messages of which every sender has a size of its own, as codecs have written them, cannot be
    added: they travel to the root as they are, those of all agents below in one message a link.

    Where links fail, or agents are late, a message waits until its link is up: sums are the same,
    and take more rounds (`vpem.network.faults`).

    To whatever takes a sum at a server (`vpem.sums.counted.AtServer`) the root is one.
    """

    way = path = "tree"
    kind = "estep"
    tree: Routes
    agents: Indices
    """Of each that has something to add."""
    waits: Waits | None = None
    """How long messages take where links fail or agents are late; None: each a round."""
    _near: TreeWays | None = None
    """How they travel, where that is known."""

    def failing(self, graph: Graph, faults: Faults, seed: int) -> Self:
        """Return the same sum where links of a graph fail."""
        failing = copy(self)
        failing.waits = Waits(graph, self.tree, faults, seed)
        return failing

    @property
    def _sent_before(self) -> tuple[int, int]:
        """What no two messages share: how many were sent before, and in how many rounds."""
        return (0, 0) if self.ledger is None else (self.ledger.messages, self.ledger.rounds)

    @property
    def shape(self) -> dict[str, int]:
        return {"root": self.root, "hops": self.tree.hops}

    @property
    def root(self) -> int:
        """Agent at the root."""
        return int(self.tree.depth.argmin())

    @cached_property
    def _levels(self) -> list[Indices]:
        """Agents by hops to the root, from 1."""
        return [np.flatnonzero(self.tree.depth == hops + 1) for hops in range(self.tree.hops)]

    @cached_property
    def every_way(self) -> Mask:
        """Which nodes lie on the way of any who has something to add."""
        return self._ways(self.agents)

    @property
    def is_here(self) -> bool:
        """Whether the root lives in this process."""
        return super().is_here if self._near is None else self._near.root >= 0

    def to_all(self, values: AnyArray) -> AnyArray:
        near = self._near
        if near is None:
            return super().to_all(values)
        rows = np.zeros((near.n_states, values.shape[1]), values.dtype)
        rows[near.n_states - len(values) :] = values
        finished(near.send_total([rows], self.charge, self.traffic))
        return near.follow(rows[-1:].copy())

    def _links(self, ledger: Ledger) -> tuple[Indices, Indices]:
        """Links of each agent, in the order of `Routes.leaves`, to its parent and back."""
        leaves = self.tree.leaves
        pairs = list(zip(leaves.tolist(), self.tree.parent[leaves].tolist(), strict=True))
        up = np.array([ledger.link(*pair) for pair in pairs], dtype=np.intp)
        return up, self.tree.links_down(ledger)

    def _ways(self, agents: Indices) -> Mask:
        """Which nodes lie on the ways of some agents to the root."""
        on = np.zeros(len(self.tree.parent), dtype=np.bool_)
        on[agents] = True
        for level in () if self._alone else reversed(self._levels):
            on[self.tree.parent[level[on[level]]]] = True
        return on

    def _over(self, size: int | NDArray[np.int64], who: Indices | None, *, upward: bool) -> None:
        """Count messages of one size, or of each leaf's, over the links on the ways of some."""
        on = self.every_way if who is None else self._ways(self.agents[who])
        rounds = int(self.tree.depth[on].max(initial=0))
        links = self._up if upward else self._down
        if rounds and len(links):
            if self.waits is not None:
                rounds = self.waits.taken(on, self._sent_before, None if upward else self.root)
            used = on[self.tree.leaves]
            sizes = size if np.ndim(size) == 0 else np.asarray(size)[used]
            self._send(self.charge, sizes, links=links[used], rounds=rounds)

    def count(self, sizes: int | NDArray[np.int64], senders: Indices | None = None) -> None:
        """Count sums of this size on their way to the root, of some senders or of all.

        Or of each sender a message of its own size.
        """
        if np.ndim(sizes):
            # Bytes of all that senders who are a leaf or below it send, of each leaf.
            carried = np.zeros(len(self.tree.parent), dtype=np.int64)
            carried[self.agents if senders is None else self.agents[senders]] = sizes
            for level in reversed(self._levels):
                np.add.at(carried, self.tree.parent[level], carried[level])
            sizes = carried[self.tree.leaves]
        self._over(sizes, senders, upward=True)

    def broadcast(self, size: int | NDArray[np.int64], receivers: Indices | None = None) -> None:
        self._over(int(np.max(size, initial=0)), receivers, upward=False)

    def count_tag(self, senders: Indices | None = None, tag: int = TAG_BYTES) -> None:
        if self.ledger is not None and len(self._up):
            for who, links in ((senders, self._up), (None, self._down)):
                on = self.every_way if who is None else self._ways(self.agents[who])
                self.ledger.grow(self.charge, tag, links[on[self.tree.leaves]])

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        """Count how all agents hear what the root has decided, or what one of them has.

        Over every link of the tree goes one message, away from who has it.
        """
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
            links, rounds = np.where(on[leaves], self._up, self._down), int(hops.max(initial=0))
            if self.waits is not None:
                rounds = self.waits.taken(np.ones_like(on), self._sent_before, start)
            self._send(kind, size, links=links, rounds=rounds)


class TreeWays:
    """Who sends what to whom along a tree whose agents live in several processes, or in one.

    An array of states has a row for each agent of this process that is on the way of one which has
    something to add (``own``: those that have it themselves), one for each of their children
    elsewhere, and one for the total; ``most`` is a bound of its rows in all processes. ``home`` is
    the root's process, ``root`` its row there (-1 elsewhere). ``upward`` says what each depth
    sends, from the deepest on, ``downward`` how the total comes to each process.
    """

    def __init__(self, agents: Placement, holders: Placement, total: AlongTree) -> None:
        self.engine, self.tree, self._homes = agents.engine, total.tree, agents.ranks
        engine, homes, on = agents.engine, agents.ranks, total.every_way
        # Those that send something, by hops to the root; none where one has all.
        levels = [] if total._alone else [level[on[level]] for level in total._levels]
        root = int(total.agents[0] if not levels else self.tree.depth.argmin())
        self.home = int(homes[root])
        self._all_hear = len(np.unique(homes[on])) == engine.size

        leaves = np.concatenate([root, *levels], axis=None)[1:].astype(np.intp)
        parents = self.tree.parent[leaves]
        apart = homes[leaves] != homes[parents]
        self._joined = Joined(engine, np.stack([homes[leaves], homes[parents]])[:, apart])

        # Agents here, children elsewhere, and the total.
        local = np.flatnonzero(on & (homes == engine.rank))
        ghosts = leaves[apart & (homes[parents] == engine.rank)]
        place = np.full(agents.n_agents, -1, dtype=np.intp)
        place[local], place[ghosts] = np.arange(len(local)), len(local) + np.arange(len(ghosts))
        self.n_states = len(local) + len(ghosts) + 1
        self.most = int(np.bincount(homes[on]).max() + len(leaves) + 1)
        self.own = place[total.agents[holders.own]]
        self.root = int(place[root])
        self.upward, rank = [], engine.rank
        for level in reversed(levels):
            parents_of = self.tree.parent[level]
            ends = np.stack([homes[level], homes[parents_of]])
            apart, added, sent = ends[0] != ends[1], ends[1] == rank, ends[0] == rank
            self.upward.append(
                TreeLevel(
                    self._joined.exchange(ends[:, apart], [place[level[apart]]] * 2),
                    level[sent],
                    place[level[sent]],
                    place[level[added & ~sent]],
                    place[level[added]].tolist(),
                    place[parents_of[added]].tolist(),
                )
            )
        self.downward: list[Exchange | None] = []
        heard = {self.home}
        for level in levels:
            sources: dict[int, int] = {}
            for child, parent in zip(homes[level], homes[self.tree.parent[level]], strict=True):
                if child not in heard:
                    sources.setdefault(int(child), int(parent))
            heard |= set(sources)
            ends = np.array([list(sources.values()), list(sources)], dtype=np.intp)
            total_row = np.full(ends.shape[1], self.n_states - 1)
            self.downward.append(self._joined.exchange(ends, [total_row] * 2))
        self.n_children = int((homes[parents] == engine.rank).sum())

    def relay(self, agents: Ranks) -> Iterator[Exchange]:
        """How messages of some agents, a row each, go on to the root as they are, hop by hop."""
        depth, parent = self.tree.depth, self.tree.parent
        at, rows = agents.copy(), np.arange(len(agents))
        for hops in range(int(depth[at].max(initial=0)), 0, -1):
            moved = rows[depth[at] == hops]
            ends = self._homes[np.stack([at[moved], parent[at[moved]]])]
            apart = ends[0] != ends[1]
            exchange = self._joined.exchange(ends[:, apart], [moved[apart]] * 2)
            if exchange is not None:
                yield exchange
            at[moved] = parent[at[moved]]

    def send_total(
        self, states: Sequence[AnyArray], kind: str, traffic: Traffic
    ) -> Generator[None]:
        """Bring the total, the last row of some arrays, to all processes on the way down."""
        for exchange in self.downward:
            if exchange is not None:
                yield from exchange.run(states, kind, traffic)

    def follow(self, total: T) -> T:
        """Let processes without an agent on the way know the total: they run the same loop."""
        if self._all_hear:
            return total
        with set_topic(self.engine, "following"):
            same: T = self.engine.bcast(total, self.home)
        return same


@dataclass
class TreeLevel:
    """What agents of one depth send to their parents.

    ``agents`` are of this process, ``rows`` theirs; ``heard`` are rows of those elsewhere whose
    parents are here, ``children`` and ``parents`` rows of all whose parents are here, and of these.
    """

    exchange: Exchange | None
    agents: Ranks
    rows: Ranks
    heard: Ranks
    children: list[int]
    parents: list[int]


class TreeSum(AlongTree, ServerSum):
    """The exact sum along a tree (`vpem.network.mixing.grow_tree`): the numbers are a server's.

    Between processes messages go only where their agents are joined in it. Agents of one depth
    after the other send their sums to their parents, which add them to theirs. Then the total goes
    from parents to children, to each process once.
    """

    def __init__(self, tree: Routes, agents: Indices) -> None:
        self.tree, self.agents = tree, agents
        super().__init__(len(agents))

    def _live(self, agents: Placement, holders: Placement, following: bool = False) -> None:
        super()._live(agents, holders, following)
        if not holders.apart:
            return
        if holders.masks is not None and holders.engine.outlast is not None:
            raise InputError(
                "masked sums along a tree need all members: let the study wait for a lost one "
                "(vpem study change --if-lost wait), or have a server"
            )
        self._near = TreeWays(agents, holders, self)
        self.values_per_item, self.mix = IN_FLIGHT * self._near.most, None

    def _sum(self, terms: Floats, scalars: Scalars | None, who: Indices | None = None) -> Flying:
        near = self._near
        if near is None:
            return (yield from super()._sum(terms, scalars))
        addends = Addends(self.holders, terms, scalars, self.exponents, who)
        values, kind = addends.apart(), self.charge
        states = [np.zeros((near.n_states, one.shape[1]), dtype=one.dtype) for one in values]
        for each, value in zip(states, values, strict=True):
            each[near.own] = value
        size = row_bytes(states)
        for level in near.upward:
            if level.exchange is not None:
                yield from level.exchange.run(states, kind, self.traffic)
            for child, parent in zip(level.children, level.parents, strict=True):
                for each in states:
                    each[parent] += each[child]
            self.traffic.add(kind, len(level.rows) * size, 0)
        if near.root >= 0:
            for each in states:
                each[-1] = each[near.root]
        yield from near.send_total(states, kind, self.traffic)
        self.traffic.add(kind, near.n_children * size, 0)
        return lambda: addends.total(near.follow([each[-1].copy() for each in states]))

    def hear(
        self, messages: NDArray[np.uint8], senders: Indices | None = None
    ) -> NDArray[np.uint8]:
        is_local, near = self.here(senders), self._near
        if near is None or is_local is None or self._alone:
            return messages
        every = np.zeros((len(is_local), messages.shape[1]), dtype=np.uint8)
        every[is_local] = messages
        for exchange in near.relay(self.agents if senders is None else self.agents[senders]):
            finished(exchange.run([every], self.charge, self.traffic))
        return every if self.is_here else messages

    def aggregate(self, received: Doubles, senders: Indices | None = None) -> Doubles:
        """Add up what some senders (a, P), or all, have sent on its way to the root: (1, P)."""
        if self._near is None:
            return super().aggregate(received, senders)
        if self.holders.masks is not None:
            self.count_tag(senders)
        who = np.arange(self.n_senders) if senders is None else senders
        every = np.zeros((self.n_senders, received.shape[1]), dtype=received.dtype)
        every[who] = received if self.weights is None else self.weights[who, None] * received
        total = finished(self._sum(every[self.holders.own][:, None], None, senders))()
        return total[:, 0].astype(np.float64, copy=False)
