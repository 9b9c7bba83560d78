"""Agents of this process and their neighbours in others: who is sent what, and what really went.

Every process knows the whole graph, and so all find alike what each sends and hears. In one process
all neighbours are here, and nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vpem.engines.engine import about
from vpem.engines.placement import Placement
from vpem.network.routes import Routes
from vpem.network.schema import COUNT, Mapping, Schema, State
from vpem.sums.exchanges import Ways, row_bytes

T = TypeVar("T")

Agents = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass
class Traffic:
    """Payload bytes that really went from agent to agent, by kind, as this process sent them.

    Attributes
    ----------
    delivered : dict
        Over links between agents, also inside this process.
    on_wire : dict
        Of these, what the engine was given. What several agents of another process want travels
        once.
    """

    delivered: dict[str, int] = field(default_factory=dict)
    on_wire: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, delivered: int, on_wire: int) -> None:
        """Count."""
        self.delivered[kind] = self.delivered.get(kind, 0) + delivered
        self.on_wire[kind] = self.on_wire.get(kind, 0) + on_wire

    def clear(self) -> None:
        """Count from the beginning."""
        self.delivered.clear()
        self.on_wire.clear()

    def state(self) -> State:
        """Return what went up to now."""
        return {"delivered": dict(self.delivered), "on_wire": dict(self.on_wire)}

    @staticmethod
    def schema() -> dict[str, Schema]:
        """Return what that must be."""
        return {"delivered": Mapping(COUNT), "on_wire": Mapping(COUNT)}

    def restore(self, state: State) -> None:
        """Go on from what went."""
        self.clear()
        for name, counted in vars(self).items():
            counted.update(state[name])


def finished(work: Generator[None, None, T]) -> T:
    """Wait for all that some work waits for, and return what it does."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: T = end.value
            return found


class Neighbourhood:
    """Agents of this process, and those of others that they hear.

    An array of this process has a row for each of its own agents, in their order, and then one for
    each of those elsewhere that have a link to one of them.

    Parameters
    ----------
    agents, holders : Placement
        Where agents live, and where the hubs' roots do.
    pattern : sparse matrix of shape (N, N), or whatever has its ``indptr`` and ``indices``
        Who is whose neighbour.
    roots : ndarray of shape (B,)
        Agents that are roots.
    routes : Routes, optional
        Ways inside the hubs. None: hubs of one agent.
    following : bool
        Whether a process without roots has the first root's estimates, so that it runs the same
        loop with parameters of somebody.

    Attributes
    ----------
    own, heard : ndarray of int
        Agents of this process, and those elsewhere that they hear.
    agents_of_rows : ndarray of int
        Both.
    place : ndarray of shape (N,)
        Row of each agent, or -1.
    roots : ndarray of int
        Rows of the roots that live here.
    from_here : ndarray of bool
        Which directed links, in the order of a ledger, begin at an agent of this process.
    estimates : ndarray of int
        Roots whose estimates this process has.
    most : int
        Rows in the process that has most.
    traffic : Traffic
        What went.
    """

    def __init__(
        self,
        agents: Placement,
        holders: Placement,
        pattern: Any,
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
        self.place = np.full(n, -1, dtype=np.intp)
        self.place[self.agents_of_rows] = np.arange(self.n_rows)
        self.roots = self.place[roots[holders.own]]
        rows = [np.bincount(ranks, minlength=engine.size) for ranks in (homes, readers)]
        self.most = int(np.sum(rows, axis=0).max())
        self.exchange: Ways | None = None
        if len(pairs):
            from_here = homes[speakers] == engine.rank
            self._near = np.union1d(readers[from_here], homes[self.heard]).astype(np.intp)
            self._joined = engine.neighbours(self._near.tolist())
            self.exchange = self._exchange(speakers, readers, speakers)
        self._levels = [] if routes is None else self._find_levels(routes)

    def _exchange(self, speakers: Agents, readers: Agents, targets: Agents) -> Ways:
        """What agent ``speakers[i]`` has goes to process ``readers[i]``, for ``targets[i]``."""
        homes, rank = self.agents.ranks[speakers], self.agents.engine.rank
        sent = [np.flatnonzero((homes == rank) & (readers == near)) for near in self._near]
        received = [np.flatnonzero((homes == near) & (readers == rank)) for near in self._near]
        joined = self.agents.engine, self._joined
        return Ways(joined, (speakers, targets), self.place, sent, received)

    def _find_levels(self, routes: Routes) -> list[_Level]:
        """How roots send their terms: first to those one hop away, which pass them on."""
        levels = []
        homes = self.agents.ranks
        for depth in range(1, 1 + routes.hops):
            leaves = np.flatnonzero(routes.depth[: len(homes)] == depth)
            parents = routes.parent[leaves]
            here, there = homes[parents], homes[leaves]
            apart = here != there
            exchange = None
            if apart.any():
                exchange = self._exchange(parents[apart], there[apart], leaves[apart])
            local = (here == self.agents.engine.rank) & ~apart
            levels.append(_Level(exchange, parents[local], leaves[local]))
        return levels

    @property
    def n_rows(self) -> int:
        """Rows of an array of this process."""
        return len(self.agents_of_rows)

    @property
    def n_links(self) -> int:
        """Directed links that begin at an agent of this process."""
        return int(self.from_here.sum())

    def rows_of(self, pattern: Any) -> tuple[NDArray[np.int32], NDArray[np.int32], slice]:
        """Return the rows of this process's agents of a matrix in CSR form, and their values.

        Of ``indptr`` (n_rows + 1,) rows of agents elsewhere are empty; ``indices`` are rows of an
        array of this process; the slice is of the values of the whole matrix.
        """
        # Agents lie on processes in runs.
        begin, end = (int(self.own[0]), int(self.own[-1]) + 1) if len(self.own) else (0, 0)
        indptr = pattern.indptr[begin : end + 1].astype(np.int32)
        values = slice(int(indptr[0]), int(indptr[-1]))
        indices = self.place[pattern.indices[values]].astype(np.int32)
        indptr = np.append(indptr, np.repeat(indptr[-1:], len(self.heard)))
        return indptr - indptr[0], indices, values

    def open_ways(self, links: Mask) -> Mask:
        """Return which neighbours are heard by other processes, where some links are up."""
        n_ways = 0 if self.exchange is None else len(self.exchange.speakers)
        counts = np.bincount(self._pair_of_link, links[self._apart], minlength=n_ways)
        opened: Mask = counts > 0
        return opened

    def tell(
        self, states: Sequence[NDArray[Any]], kind: str, informed: Mask | None = None
    ) -> Generator[None]:
        """Send the roots' rows to the agents of their hubs, hop by hop.

        Where ``informed`` (N,) is given these alone are told. ``states`` are arrays (n_rows, ...)
        whose rows go in one message, and which are written to.
        """
        size = row_bytes(states)
        for level in self._levels:
            parents, leaves = level.parents, level.leaves
            if informed is not None:
                parents, leaves = parents[informed[leaves]], leaves[informed[leaves]]
            for each in states:
                each[self.place[leaves]] = each[self.place[parents]]
            on_wire = 0
            if level.exchange is not None:
                told = None if informed is None else informed[level.exchange.targets]
                exchange = level.exchange.among(told)
                yield from exchange.run(states, kind)
                on_wire = exchange.n_sent
            self.traffic.add(kind, (len(leaves) + on_wire) * size, on_wire * size)

    def meet(self, states: Sequence[NDArray[Any]], kind: str, links: Mask | None = None) -> None:
        """Send the states of agents to their neighbours, over links that are up; None: all are."""
        n_sent = 0
        n_links = int((self.from_here if links is None else self.from_here & links).sum())
        if self.exchange is not None:
            exchange = self.exchange.among(None if links is None else self.open_ways(links))
            finished(exchange.run(states, kind))
            n_sent = exchange.n_sent
        self.traffic.add(kind, n_links * row_bytes(states), n_sent * row_bytes(states))

    def carry(self, messages: NDArray[np.uint8], awake: Mask, kind: str) -> NDArray[np.uint8]:
        """Send messages (a, size) of the agents here that are awake to processes with neighbours.

        It returns what is heard of those elsewhere that are awake, (g, size).
        """
        assert self.exchange is not None
        size = messages.shape[1]
        rows = np.empty((self.n_rows, size), dtype=np.uint8)
        rows[self.place[self.own[awake[self.own]]]] = messages
        exchange = self.exchange.among(awake[self.exchange.speakers])
        finished(exchange.run([rows], kind))
        self.traffic.add(kind, 0, exchange.n_sent * size)
        heard: NDArray[np.uint8] = rows[self.place[self.heard[awake[self.heard]]]]
        return heard

    def follow(self, found: NDArray[Any]) -> NDArray[Any]:
        """Return what this process's roots found, or the first root where it follows that."""
        if not self._some_follow:
            return found
        with about(self.holders.engine, "following"):
            first = self.holders.bcast(found[:1] if self.holders.mine(0) else None)
        return found if len(found) else np.asarray(first)


@dataclass
class _Level:
    """Who is sent a hub's term by whom: in other processes, and in this one."""

    exchange: Ways | None
    parents: Agents
    leaves: Agents
