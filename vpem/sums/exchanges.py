"""Agents of this process and their neighbours in others: what is sent to whom, and what went.

Every process knows the whole graph, and so all find alike what each sends and hears, in rounds
between neighbours (`Neighbourhood`) or along a tree (`TreeWays`). In one process all are here, and
nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Mask
from vpem.engines.engine import Engine, Neighbours, set_topic
from vpem.engines.placement import Placement
from vpem.network.faults import MixingLinks
from vpem.network.hubs import Routes
from vpem.sums.sum import Traffic

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from vpem.sums.consensus import _Layout
    from vpem.sums.counted import AtServer

Agents = NDArray[np.intp]
Ends = Sequence[Agents] | Agents
"""Processes (2, n): where rows come from, and where they go."""

T = TypeVar("T")


class Joined:
    """Processes that exchange rows with this one, by the ``ends`` of all ways."""

    send: Neighbours

    def __init__(self, engine: Engine, ends: Ends) -> None:
        self.engine, (source, target) = engine, ends
        self.near = np.union1d(target[source == engine.rank], source[target == engine.rank])
        if len(source):
            self.send = engine.neighbours(self.near.tolist())

    def exchange(self, ends: Ends, rows: Sequence[Agents]) -> Exchange | None:
        """Return how rows of these numbers, there and here, go some ways; None: there are none."""
        return Exchange(self, ends, rows) if len(ends[0]) else None


class Exchange:
    """Rows that go to neighbouring processes, and rows that come from them.

    They go from processes ``ends[0]`` (n,) to others ``ends[1]``, by ways some of which may be
    closed; where they are sent they have the numbers ``rows[0]``, and where they are received
    ``rows[1]``. ``speakers`` and ``targets`` are who speaks on each way, and whose row it is
    elsewhere.
    """

    speakers: Agents
    targets: Agents

    def __init__(self, joined: Joined, ends: Ends, rows: Sequence[Agents]) -> None:
        self._joined, self._rows = joined, rows
        (source, target), rank = ends, joined.engine.rank
        self._open([
            [np.flatnonzero((source == rank) & (target == one)) for one in joined.near],
            [np.flatnonzero((source == one) & (target == rank)) for one in joined.near],
        ])  # fmt: skip

    def _open(self, ways: list[list[Agents]]) -> None:
        self._ways, none = ways, np.empty(0, dtype=np.intp)
        pairs = zip(self._rows, ways, strict=True)
        self._sent, self._received = (rows[np.concatenate([none, *runs])] for rows, runs in pairs)
        self.n_sent = len(self._sent)
        """Rows that are sent."""

    def among(self, opened: Mask | None) -> Exchange:
        """Return the exchange over some of the ways; None: over all."""
        if opened is None or opened.all():
            return self
        part = copy(self)
        part._open([[ways[opened[ways]] for ways in runs] for runs in self._ways])
        return part

    def run(self, states: Sequence[AnyArray], kind: str, traffic: Traffic) -> Generator[None]:
        """Send and receive these rows, messages of a kind; goes on where they should be there.

        Rows of several arrays (n_rows, ...) go in one message. What is sent is counted.
        """
        parts = [np.ascontiguousarray(each[self._sent]) for each in states]
        out = parts[0]
        if len(parts) > 1:
            out = np.concatenate([part.view(np.uint8) for part in parts], axis=1)
        width = out.shape[1]
        into = np.empty((len(self._received), width), dtype=out.dtype)
        n_sent, n_received = ([len(rows) * width for rows in runs] for runs in self._ways)
        with set_topic(self._joined.engine, kind):
            wait = self._joined.send(out, n_sent, into, n_received)
        yield
        wait()
        traffic.add(kind, 0, out.nbytes)
        if len(parts) == 1:
            states[0][self._received] = into
            return
        begin = 0
        for each in states:
            end = begin + row_bytes([each])
            each[self._received] = np.ascontiguousarray(into[:, begin:end]).view(each.dtype)
            begin = end


def row_bytes(states: Sequence[AnyArray]) -> int:
    return sum(each.shape[1] * each.itemsize for each in states)


def finished(work: Generator[None, None, T]) -> T:
    """Wait for all that some work waits for, and return what it does."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


class Neighbourhood:
    """Agents of this process, and those of others that they hear.

    An array of this process has a row for each of its own agents, in their order, and then one for
    each of those elsewhere that have a link to one of them. ``pattern`` has the ``indptr`` and
    ``indices`` of a sparse matrix (N, N): who is whose neighbour. Without ``routes`` hubs are of
    one agent. Where it is ``following``, a process without roots has the first root's estimates, so
    that it runs the same loop with some agent's parameters.

    ``own`` are agents of this process, ``heard`` those elsewhere that they hear, and
    ``agents_of_rows`` (n_rows,) both; ``place`` (N,) is the row of each agent, or -1, ``roots`` are
    rows of the roots here, and ``most`` the rows of the process that has most. ``from_here`` says
    which directed links, in the order of a ledger, begin here: ``n_links`` of them; ``estimates``
    are the roots whose estimates this process has.
    """

    def __init__(
        self,
        agents: Placement,
        holders: Placement,
        pattern: csr_array | MixingLinks,
        roots: Agents,
        routes: Routes | None = None,
        *,
        following: bool = False,
    ) -> None:
        self.agents, self.holders = agents, holders
        self.traffic = Traffic()
        engine, homes, n = agents.engine, agents.ranks, agents.n_agents
        n_here = np.bincount(holders.ranks, minlength=engine.size)
        self._some_follow = following and 0 in n_here
        self.n_roots = max(int(following), len(holders.own))
        self.estimates = holders.own if len(holders.own) else np.arange(self.n_roots)
        self.own = agents.own
        to = np.repeat(np.arange(n), np.diff(pattern.indptr))
        of = pattern.indices.astype(np.intp)
        to, of = to[to != of], of[to != of]
        self.from_here = homes[to] == engine.rank
        # What an agent says goes once to each process with neighbours of it.
        apart = homes[of] != homes[to]
        pairs, number = np.unique((of * engine.size + homes[to])[apart], return_inverse=True)
        self._apart, self._pair_of_link = np.flatnonzero(apart), number
        speakers, readers = np.divmod(pairs, engine.size)
        self.heard = speakers[readers == engine.rank]
        self.agents_of_rows = np.append(self.own, self.heard)
        self.n_rows, self.n_links = len(self.agents_of_rows), int((homes[of] == engine.rank).sum())
        self.place = np.full(n, -1, dtype=np.intp)
        self.place[self.agents_of_rows] = np.arange(self.n_rows)
        self.roots = self.place[roots[holders.own]]
        rows = [np.bincount(ranks, minlength=engine.size) for ranks in (homes, readers)]
        self.most = int(np.sum(rows, axis=0).max())
        self.exchange: Exchange | None = None
        self._joined = Joined(engine, (homes[speakers], readers))
        if len(pairs):
            self.exchange = self._exchange(speakers, readers, speakers)
        # Roots send their terms to those one hop away first, which pass them on: to agents in other
        # processes, and from parents to leaves in this one.
        self._levels: list[tuple[Exchange | None, Agents, Agents]] = []
        for depth in range(1, 1 + (0 if routes is None else routes.hops)):
            assert routes is not None
            leaves = np.flatnonzero(routes.depth[:n] == depth)
            parents = routes.parent[leaves]
            apart = homes[parents] != homes[leaves]
            exchange = None
            if apart.any():
                exchange = self._exchange(parents[apart], homes[leaves][apart], leaves[apart])
            local = (homes[parents] == engine.rank) & ~apart
            self._levels.append((exchange, parents[local], leaves[local]))

    def _exchange(self, speakers: Agents, readers: Agents, targets: Agents) -> Exchange:
        """What agent ``speakers[i]`` has goes to process ``readers[i]``, for ``targets[i]``."""
        ends = self.agents.ranks[speakers], readers
        exchange = Exchange(self._joined, ends, (self.place[speakers], self.place[targets]))
        exchange.speakers, exchange.targets = speakers, targets
        return exchange

    def rows_of(
        self, pattern: csr_array | MixingLinks | _Layout
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], slice]:
        """Return the rows of this process's agents of a matrix in CSR form, and their values.

        Of ``indptr`` (n_rows + 1,) rows of agents elsewhere are empty; ``indices`` are rows of an
        array of this process; the slice applies to the values of the whole matrix.
        """
        # Agents lie on processes in runs.
        begin, end = (int(self.own[0]), int(self.own[-1]) + 1) if len(self.own) else (0, 0)
        indptr = pattern.indptr[begin : end + 1].astype(np.int32)
        values = slice(int(indptr[0]), int(indptr[-1]))
        indices = self.place[pattern.indices[values]].astype(np.int32)
        indptr = np.append(indptr, np.repeat(indptr[-1:], len(self.heard)))
        return indptr - indptr[0], indices, values

    def send_terms(
        self, states: Sequence[AnyArray], kind: str, informed: Mask | None = None
    ) -> Generator[None]:
        """Send the roots' rows to the agents of their hubs, hop by hop.

        Where ``informed`` (N,) is given only these agents receive them. ``states`` are arrays
        (n_rows, ...) whose rows go in one message, and which are written to.
        """
        size = row_bytes(states)
        for exchange, parents, leaves in self._levels:
            if informed is not None:
                parents, leaves = parents[informed[leaves]], leaves[informed[leaves]]
            for each in states:
                each[self.place[leaves]] = each[self.place[parents]]
            n_sent = 0
            if exchange is not None:
                receivers = None if informed is None else informed[exchange.targets]
                opened = exchange.among(receivers)
                yield from opened.run(states, kind, self.traffic)
                n_sent = opened.n_sent
            self.traffic.add(kind, (len(leaves) + n_sent) * size, 0)

    def meet(self, states: Sequence[AnyArray], kind: str, links: Mask | None = None) -> None:
        """Send the states of agents to their neighbours, over links that are up; None: all are."""
        n_links = int((self.from_here if links is None else self.from_here & links).sum())
        if self.exchange is not None:
            opened: Mask | None = None
            if links is not None:
                n_ways = len(self.exchange.speakers)
                opened = np.bincount(self._pair_of_link, links[self._apart], n_ways) > 0
            finished(self.exchange.among(opened).run(states, kind, self.traffic))
        self.traffic.add(kind, n_links * row_bytes(states), 0)

    def carry(self, messages: NDArray[np.uint8], awake: Mask, kind: str) -> NDArray[np.uint8]:
        """Send messages (a, size) of the agents here that are awake to processes with neighbours.

        It returns what is heard of those elsewhere that are awake, (g, size).
        """
        assert self.exchange is not None
        rows = np.empty((self.n_rows, messages.shape[1]), dtype=np.uint8)
        rows[self.place[self.own[awake[self.own]]]] = messages
        exchange = self.exchange.among(awake[self.exchange.speakers])
        finished(exchange.run([rows], kind, self.traffic))
        heard: NDArray[np.uint8] = rows[self.place[self.heard[awake[self.heard]]]]
        return heard

    def follow(self, estimates: AnyArray) -> AnyArray:
        """Return what this process's roots have, or the first root where it follows that."""
        return follow_first(self.holders, estimates) if self._some_follow else estimates


class TreeWays:
    """Who sends what to whom along a tree, or to a server, from several processes or within one.

    An array of states has a row for each agent of this process that is on the way of one which has
    something to add (``own``: those that have it themselves), one for each of their children
    elsewhere, and one for the total; ``most`` is a bound of its rows in all processes. ``home`` is
    the root's process, ``root`` its row there (-1 elsewhere). ``upward`` says what each depth
    sends, from the deepest on, ``downward`` how the total comes to each process.
    """

    def __init__(self, agents: Placement, holders: Placement, total: AtServer) -> None:
        self.engine, self.tree, on = agents.engine, total.routes, total.every_way
        engine, homes = agents.engine, agents.nodes[: len(on)]
        self._homes = homes
        # Those that send something, by hops to the root; none where one has all.
        levels = [] if total._alone else [level[on[level]] for level in total._levels]
        root = int(total.agents[0] if not levels else self.tree.depth.argmin())
        self.home = int(homes[root])
        self._all_hear = len(np.unique(homes[on])) == engine.size

        leaves = np.concatenate([root, *levels], axis=None)[1:].astype(np.intp)
        parents = self.tree.parent[leaves]
        apart = homes[leaves] != homes[parents]
        self._joined = Joined(engine, np.stack([homes[leaves], homes[parents]])[:, apart])

        # Agents here, children elsewhere, and the total, which is all that a server has.
        local = np.flatnonzero(on & (homes == engine.rank))
        local = local[local < agents.n_agents]
        ghosts = leaves[apart & (homes[parents] == engine.rank)]
        place = np.full(len(homes), -1, dtype=np.intp)
        self.n_states = len(local) + len(ghosts) + 1
        if self.home == engine.rank:
            place[root] = self.n_states - 1
        place[local], place[ghosts] = np.arange(len(local)), len(local) + np.arange(len(ghosts))
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

    def relay(self, agents: Agents) -> Iterator[Exchange]:
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
    agents: Agents
    rows: Agents
    heard: Agents
    children: list[int]
    parents: list[int]


def follow_first(holders: Placement, estimates: AnyArray) -> AnyArray:
    """Return what this process's holders have, or the first of all where none is here."""
    with set_topic(holders.engine, "following"):
        first = holders.bcast(estimates[:1] if holders.mine(0) else None)
    return estimates if len(estimates) else np.asarray(first)
