"""Sums over agents that live in several processes: all-reduced, or by rounds between neighbours.

Every process runs the same recipe with the terms of its own hubs. Two chunks of rows are under way
at a time: while what one needs from elsewhere travels, the terms of the next are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.consensus import consensus_rounds, neighbour_round
from vpem.checks import Floats
from vpem.engines.engine import Neighbours
from vpem.engines.placement import Placement
from vpem.network.mixing import chebyshev_steps
from vpem.network.routes import Routes
from vpem.network.schema import COUNT, Mapping, Schema, State
from vpem.sums.consensus import _OverHubs
from vpem.sums.counted import AtServer, Counted

__all__ = ["ConsensusOverEngine", "ServerOverEngine", "Traffic"]

ROUND_WIDTH = 32
"""Values of a round's states are a multiple of this, and begin at a multiple of `ALIGNED`."""

ALIGNED = 64

IN_FLIGHT = 2
"""Chunks of rows that are under way at a time."""

Flying = Generator[None, None, Floats]
"""Goes on where what it has sent for should be there; returns a sum."""


@dataclass
class Traffic:
    """Payload bytes that really went from agent to agent, by kind, as this process sent them.

    Attributes
    ----------
    delivered : dict
        Over links between agents, also inside this process.
    on_wire : dict
        Of these, what the engine was given. A state that several agents of another process want
        travels once.
    """

    delivered: dict[str, int] = field(default_factory=dict)
    on_wire: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, delivered: int, on_wire: int) -> None:
        """Count."""
        self.delivered[kind] = self.delivered.get(kind, 0) + delivered
        self.on_wire[kind] = self.on_wire.get(kind, 0) + on_wire


class _Flight:
    """A chunk of rows on its way."""

    result: Floats | None = None

    def __init__(self, rows: slice, work: Flying) -> None:
        self.rows, self._work = rows, work

    def go_on(self) -> bool:
        """Go on until something has to be waited for; whether it has arrived."""
        if self.result is None:
            try:
                next(self._work)
            except StopIteration as end:
                self.result = end.value
        return self.result is not None


class _OverEngine(Counted):
    """What both sums share: some holders in this process, and others elsewhere."""

    whole = False
    silent = None
    mix: NDArray[np.float64] | None = None
    traffic: Traffic
    charge: str
    """Kind that messages are counted as."""

    def _sum(self, terms: Floats) -> Flying:
        """Sum terms (B, m, K) of this process's hubs."""
        raise NotImplementedError

    def reduce(self, terms: Floats, rows: slice = slice(None)) -> NDArray[Any]:
        """Sum terms (B, m, K) of this process's hubs: (R, m, K)."""
        flight = _Flight(rows, self._sum(terms))
        while not flight.go_on():
            pass
        assert flight.result is not None
        return flight.result

    def flow(
        self, chunks: Iterator[slice], local: Callable[[slice], Floats]
    ) -> Iterator[tuple[slice, Floats]]:
        """Sum what is local in one chunk after the other, two of them under way at a time."""
        ahead: _Flight | None = None
        for rows in chunks:
            # While this is computed, what the chunk ahead has sent is under way.
            behind = _Flight(rows, self._sum(local(rows)))
            behind.go_on()
            if ahead is not None:
                while not ahead.go_on():
                    behind.go_on()
                assert ahead.result is not None
                yield ahead.rows, ahead.result
            ahead = behind
        if ahead is not None:
            while not ahead.go_on():
                pass
            assert ahead.result is not None
            yield ahead.rows, ahead.result

    def state(self) -> State:
        """Return what went up to now, as this process sent it."""
        return {"delivered": dict(self.traffic.delivered), "on_wire": dict(self.traffic.on_wire)}

    def schema(self) -> Schema:
        """Return what that must be."""
        return {"delivered": Mapping(COUNT), "on_wire": Mapping(COUNT)}

    def restore(self, state: State) -> None:
        """Go on from what went."""
        for name in ("delivered", "on_wire"):
            counted = getattr(self.traffic, name)
            counted.clear()
            counted.update(state[name])


class ServerOverEngine(_OverEngine, AtServer):
    """Adds the terms of all holders, those of other processes by all-reduce.

    Parameters
    ----------
    holders : Placement
        Who has something to add, and where.
    """

    n_roots = 1
    exact = True

    def __init__(self, holders: Placement) -> None:
        super().__init__(holders.n_agents)
        self.holders = holders
        self.roots = Placement(holders.engine, holders.ranks[:1])
        self.traffic = Traffic()
        most = int(np.bincount(holders.ranks).max())
        self.values_per_item = IN_FLIGHT * (most + 1)
        if holders.engine.size == 1:
            # Nothing has to be waited for between terms and responsibilities.
            self.mix = np.ones((1, holders.n_agents))

    def _sum(self, terms: Floats) -> Flying:
        total: Floats = np.ascontiguousarray(terms.sum(axis=0, keepdims=True))
        if self.holders.engine.size > 1:
            request = self.holders.engine.iallreduce(total)
            yield
            request.wait()
            self.traffic.add(self.charge, 0, total.nbytes)
        return total


class ConsensusOverEngine(_OverEngine, _OverHubs):
    """Consensus rounds of agents in several processes, with messages between neighbours only.

    Processes whose agents are neighbours are neighbours of the engine. A round is one exchange of
    the states that agents elsewhere need. The numbers are those of
    `vpem.sums.consensus.ConsensusSum` with its rounds run one by one.

    Parameters
    ----------
    agents, holders : Placement
        Where agents live, and where the hubs' roots do.
    mixing : sparse matrix of shape (N, N)
        Mixing weights W.
    hubs : sequence of Hub
        ``root`` and ``agents`` of each.
    n_rounds : int
        Rounds of each average.
    rate : float or None
        Bound of the mixing rate of W where rounds are accelerated; None: they are plain.
    routes : Routes, optional
        Ways inside the hubs, by which the roots send their terms. None: hubs of one agent.
    diameter : int
        Hops between the agents farthest apart; for counting messages.
    n_threads : int
        Threads of the rounds.
    following : bool
        Whether a process without roots is sent what the first root finds, so that it runs the same
        loop with parameters of somebody.
    """

    charge = "estep"

    def __init__(
        self,
        agents: Placement,
        holders: Placement,
        mixing: Any,
        hubs: Sequence[Any],
        n_rounds: int,
        *,
        rate: float | None = None,
        routes: Routes | None = None,
        diameter: int = 0,
        n_threads: int = 1,
        following: bool = False,
    ) -> None:
        super().__init__(len(hubs), routes, diameter)
        self.holders = self.roots = holders
        self.traffic = Traffic()
        n_here = np.bincount(holders.ranks, minlength=holders.engine.size)
        self._some_follow = following and 0 in n_here
        self.n_roots = max(int(following), len(holders.own))
        self.n_rounds, self.rate, self.n_threads = n_rounds, rate, n_threads
        place = self._find_states(agents, mixing)
        roots = np.array([hub.root for hub in hubs], dtype=np.intp)
        self._roots = place[roots[holders.own]]
        sizes = np.array([len(hub.agents) for hub in hubs])
        self._scale = (agents.n_agents / sizes)[holders.own]
        self._levels = self._find_levels(agents, routes, place)

    def _find_states(self, agents: Placement, mixing: Any) -> NDArray[np.intp]:
        """Find whose states go where in a round; place (N,) of each agent's state here, or -1."""
        engine, homes = agents.engine, agents.ranks
        n_agents, rank, size = agents.n_agents, engine.rank, engine.size
        own = agents.own
        place = np.full(n_agents, -1, dtype=np.intp)
        place[own] = np.arange(len(own))

        # Who needs whose state: each state goes once to each process with neighbours of its agent.
        to = np.repeat(np.arange(n_agents), np.diff(mixing.indptr))
        of = mixing.indices.astype(np.intp)
        apart = homes[of] != homes[to]
        pairs, used = np.unique((of * size + homes[to])[apart], return_counts=True)
        states, readers = np.divmod(pairs, size)
        sent, received = homes[states] == rank, readers == rank
        self._near = np.union1d(readers[sent], homes[states[received]]).astype(np.intp)
        ghosts = states[received]
        place[ghosts] = len(own) + np.arange(len(ghosts))
        self._n_states = len(own) + len(ghosts)
        self._joined = engine.neighbours(self._near.tolist()) if len(pairs) else None
        self._round = self._exchange(agents, states, readers, states, place)
        inside = (homes[to] == rank) & (homes[of] == rank) & (to != of)
        self._links = int(used[sent].sum() + inside.sum())

        begin, end = (int(own[0]), int(own[-1]) + 1) if len(own) else (0, 0)
        indptr = mixing.indptr[begin : end + 1].astype(np.int32)
        inner = slice(int(indptr[0]), int(indptr[-1]))
        self._indptr = indptr - indptr[0]
        self._indices = place[of[inner]].astype(np.int32)
        self._weights = np.ascontiguousarray(mixing.data[inner], dtype=np.float64)

        most = np.bincount(homes, minlength=size) + np.bincount(readers, minlength=size)
        # States, those before, and what is sent.
        self.values_per_item = IN_FLIGHT * 3 * int(most.max())
        return place

    def _exchange(
        self,
        agents: Placement,
        sources: NDArray[np.intp],
        readers: NDArray[np.intp],
        targets: NDArray[np.intp],
        place: NDArray[np.intp],
    ) -> _Exchange | None:
        """The state of agent ``sources[i]`` goes to process ``readers[i]``, for ``targets[i]``."""
        if self._joined is None:
            return None
        homes, rank = agents.ranks[sources], agents.engine.rank
        sent = [place[sources[(homes == rank) & (readers == near)]] for near in self._near]
        received = [place[targets[(homes == near) & (readers == rank)]] for near in self._near]
        return _Exchange(self._joined, sent, received)

    def _find_levels(
        self, agents: Placement, routes: Routes | None, place: NDArray[np.intp]
    ) -> list[_Level]:
        """How roots send their terms: first to those one hop away, which pass them on."""
        levels = []
        homes = agents.ranks
        for depth in range(1, 1 + (0 if routes is None else routes.hops)):
            assert routes is not None
            leaves = np.flatnonzero(routes.depth[: len(homes)] == depth)
            parents = routes.parent[leaves]
            here, there = homes[parents], homes[leaves]
            apart = here != there
            local = (here == agents.engine.rank) & ~apart
            exchange = None
            if apart.any():
                exchange = self._exchange(
                    agents, parents[apart], there[apart], leaves[apart], place
                )
            levels.append(_Level(exchange, place[parents[local]], place[leaves[local]]))
        return levels

    def begin(self, kind: str, n_samples: int, n_components: int, itemsize: int) -> None:
        """Count a sum: roots send their agents the hub's term, then each round every neighbour."""
        self.charge = "setup" if kind == "setup" else "estep"
        self._count(kind, n_samples * n_components * itemsize, self.n_rounds, self.n_rounds)

    def _steps(self) -> Iterator[float]:
        if self.rate is None:
            return repeat(1.0, self.n_rounds)
        return iter(chebyshev_steps(self.rate, self.n_rounds).tolist())

    def reduce(self, terms: Floats, rows: slice = slice(None)) -> NDArray[Any]:
        """Sum terms (B, m, K) of this process's hubs: (R, m, K)."""
        found = super().reduce(terms, rows)
        if not self._some_follow:
            return found
        first = self.roots.bcast(found[:1] if self.roots.mine(0) else None)
        return found if len(found) else np.asarray(first)

    def _sum(self, terms: Floats) -> Flying:
        flat = terms.reshape(len(terms), int(np.prod(terms.shape[1:])))
        n_values, kind = flat.shape[1], self.charge
        row_bytes = n_values * flat.itemsize
        states = _aligned(self._n_states, n_values, flat.dtype)
        states[self._roots, :n_values] = flat * self._scale.astype(flat.dtype)[:, None]
        for level in self._levels:
            n_sent = len(level.sources)
            states[level.targets, :n_values] = states[level.sources, :n_values]
            if level.exchange is not None:
                yield from level.exchange.run(states, n_values)
                n_sent += level.exchange.n_sent
                self.traffic.add(kind, 0, level.exchange.n_sent * row_bytes)
            self.traffic.add(kind, n_sent * row_bytes, 0)
        weights = self._weights.astype(flat.dtype, copy=False)
        if self._round is None:
            steps = np.fromiter(self._steps(), dtype=np.float64, count=self.n_rounds)
            consensus_rounds(self._indptr, self._indices, weights, states, steps, self.n_threads)
            self.traffic.add(kind, self.n_rounds * self._links * row_bytes, 0)
            return np.array(states[self._roots, :n_values]).reshape(terms.shape)
        mixed = _aligned(self._n_states, n_values, flat.dtype)
        for step in self._steps():
            yield from self._round.run(states, n_values)
            neighbour_round(
                self._indptr, self._indices, weights, states, mixed, step, self.n_threads
            )
            states, mixed = mixed, states
            self.traffic.add(kind, self._links * row_bytes, self._round.n_sent * row_bytes)
        return np.array(states[self._roots, :n_values]).reshape(terms.shape)


@dataclass
class _Level:
    """Who is sent a hub's term by whom: in other processes, and in this one."""

    exchange: _Exchange | None
    sources: NDArray[np.intp]
    targets: NDArray[np.intp]


class _Exchange:
    """Rows of the states that go to neighbouring processes, and rows that come from them."""

    def __init__(
        self,
        joined: Neighbours,
        sent: list[NDArray[np.intp]],
        received: list[NDArray[np.intp]],
    ) -> None:
        self._joined = joined
        self._sent = np.concatenate([np.empty(0, dtype=np.intp), *sent])
        self._received = np.concatenate([np.empty(0, dtype=np.intp), *received])
        self._n_sent = [len(rows) for rows in sent]
        self._n_received = [len(rows) for rows in received]
        self.n_sent = len(self._sent)

    def run(self, states: Floats, n_values: int) -> Generator[None]:
        """Send and receive these rows; goes on where they should be there."""
        out = np.ascontiguousarray(states[self._sent, :n_values])
        into = np.empty((len(self._received), n_values), dtype=states.dtype)
        request = self._joined.ialltoallv(
            out,
            [n * n_values for n in self._n_sent],
            into,
            [n * n_values for n in self._n_received],
        )
        yield
        request.wait()
        states[self._received, :n_values] = into


def _aligned(n_rows: int, n_values: int, dtype: np.dtype[np.floating]) -> Floats:
    """Zeros where the vectors of a round want them; a few values more a row."""
    width = -(-n_values // ROUND_WIDTH) * ROUND_WIDTH
    memory = np.zeros(n_rows * width + ALIGNED, dtype=dtype)
    skip = -memory.ctypes.data % ALIGNED // dtype.itemsize
    return memory[skip : skip + n_rows * width].reshape(n_rows, width)
