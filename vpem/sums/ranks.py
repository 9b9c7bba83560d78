"""Sums over agents that live in several processes: all-reduced, or by rounds between neighbours.

Every process runs the same recipe with the terms of its own hubs. Two chunks of rows are under way
at a time: while what one needs from elsewhere travels, the terms of the next are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.consensus import consensus_rounds, neighbour_round
from vpem.network.mixing import chebyshev_steps
from vpem.network.routes import Routes
from vpem.network.schema import COUNT, Mapping, Schema
from vpem.sums.consensus import _OverHubs
from vpem.sums.counted import AtServer, Counted

if TYPE_CHECKING:
    from vpem.engines.mpi import MpiTeam

__all__ = ["Handed", "RankConsensusSum", "RankServerSum"]

ROUND_WIDTH = 32
"""Values of a round's states are a multiple of this, and begin at a multiple of `ALIGNED`."""

ALIGNED = 64

IN_FLIGHT = 2
"""Chunks of rows that are under way at a time."""

Flying = Generator[None, None, NDArray[Any]]
"""Goes on where what it has sent for should be there; returns a sum."""


@dataclass
class Handed:
    """Payload bytes that really went from agent to agent, by kind, as this process sent them.

    Attributes
    ----------
    delivered : dict
        Over links between agents, also inside this process.
    on_wire : dict
        Of these, what was handed to MPI. A state that several agents of another process want
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

    def __init__(self, rows: slice, work: Flying) -> None:
        self.rows = rows
        self.result: NDArray[Any] | None = None
        self._work = work

    def go_on(self) -> bool:
        """Go on until something has to be waited for; whether it has arrived."""
        if self.result is None:
            try:
                next(self._work)
            except StopIteration as end:
                self.result = end.value
        return self.result is not None


class _OnRanks(Counted):
    """What both sums share: the hubs of this process and those of others.

    The hub at place i of this process has the number ``numbers[i]`` in the network.
    """

    team: MpiTeam
    numbers: NDArray[np.intp]
    whole = False
    silent = None
    mix: NDArray[np.float64] | None = None
    n_roots: int

    @property
    def exact(self) -> bool:
        """Whether all share one estimate, which has no error."""
        return self._shared

    @property
    def n_roots_of_all(self) -> int:
        """Roots of all ranks."""
        return 1 if self._shared else len(self._places)

    def _settle_hubs(self, team: MpiTeam, homes: NDArray[np.intp]) -> None:
        """Take note of the rank (B,) that each hub's root lives on."""
        self.team = team
        self.numbers = np.flatnonzero(homes == team.rank)
        self._counts = np.bincount(homes, minlength=team.size).tolist()
        # Values in the order of the ranks, put in the order of the hubs.
        self._places = np.argsort(np.argsort(homes, kind="stable"), kind="stable")
        self._shared = False
        self._leader = int(homes[0])
        self.leads = self._leader == team.rank
        self.handed = Handed()
        self._charge = "estep"

    def _sum(self, terms: NDArray[Any]) -> Flying:
        """Sum terms (B, m, K) of this process's hubs."""
        raise NotImplementedError

    def reduce(self, terms: NDArray[Any], rows: slice = slice(None)) -> NDArray[Any]:
        """Sum terms (B, m, K) of this process's hubs: (R, m, K)."""
        flight = _Flight(rows, self._sum(terms))
        while not flight.go_on():
            pass
        assert flight.result is not None
        return flight.result

    def flow(
        self, chunks: Iterator[slice], local: Callable[[slice], NDArray[Any]]
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
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

    def report(self, found: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what every root found, (R,), the same in every process to the last bit."""
        if self._shared:
            told: NDArray[np.float64] = self.team.tell_array(found, self._leader)
            return told
        gathered = self.team.gather_all(np.asarray(found, dtype=np.float64), self._counts)
        return gathered[self._places]

    def pool(self, events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the events of all processes, hubs by their number in the network.

        Where all share one estimate, what is found by it ("weight") is the first hub's.
        """
        if not self.team.largest(np.array([len(events)], dtype=np.int64))[0]:
            return []
        own = []
        for component, hub, *rest in events:
            ours = self._shared and rest[:1] == ["weight"]
            own.append((component, 0 if ours else int(self.numbers[hub]), *rest))
        return self.team.everyones(own)

    def some(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether any process has each of some flags."""
        return self.team.largest(np.array(flags, dtype=np.uint8)).astype(np.bool_)

    def tell(self, value: Any) -> Any:
        """Return what the process of the first root has."""
        return self.team.tell_from(value, self._leader)

    def state(self) -> dict[str, Any]:
        """Return what was handed over up to now, of this process."""
        return {"delivered": dict(self.handed.delivered), "on_wire": dict(self.handed.on_wire)}

    def schema(self) -> Schema:
        """Return what that must be."""
        return {"delivered": Mapping(COUNT), "on_wire": Mapping(COUNT)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what was handed over."""
        for name in ("delivered", "on_wire"):
            counted = getattr(self.handed, name)
            counted.clear()
            counted.update(state[name])


class RankServerSum(_OnRanks, AtServer):
    """Adds the terms of all hubs, those of other processes by all-reduce.

    Parameters
    ----------
    team : MpiTeam
        Where agents live.
    roots : sequence of int
        Agent (or server) that each hub's root is.
    """

    error = 0.0
    """Consensus error: none."""

    def __init__(self, team: MpiTeam, roots: Sequence[int]) -> None:
        AtServer.__init__(self, len(roots))
        self._settle_hubs(team, team.ranks[list(roots)])
        self._shared = self.leads = True
        self.n_roots = 1
        self.values_per_item = IN_FLIGHT * (max(self._counts) + 1)
        if team.size == 1:
            # Nothing has to be waited for between terms and responsibilities.
            self.mix = np.ones((1, len(roots)))

    def begin(self, kind: str, n_samples: int, n_components: int, itemsize: int) -> None:
        """Count a sum: every agent sends its terms to the server and receives the total."""
        size = n_samples * n_components * itemsize
        self._charge = "setup" if kind == "setup" else "server"
        self._send(self._charge, size, rounds=2)

    def _sum(self, terms: NDArray[Any]) -> Flying:
        total: NDArray[Any] = np.ascontiguousarray(terms.sum(axis=0, keepdims=True))
        if self.team.size > 1:
            request = self.team.begin_add(total)
            yield
            self.team.wait(request)
            self.handed.add(self._charge, 0, total.nbytes)
        return total


class RankConsensusSum(_OnRanks, _OverHubs):
    """Consensus rounds of agents in several processes, with messages between neighbours only.

    Processes whose agents are neighbours are neighbours of an MPI distributed graph. A round is one
    neighbourhood exchange of the states that agents elsewhere need. The numbers are those of
    `vpem.sums.consensus.ConsensusSum` with its rounds run one by one.

    Parameters
    ----------
    team : MpiTeam
        Where agents live.
    mixing : sparse matrix of shape (N, N)
        Mixing weights W.
    hubs : sequence of Hub
        ``root`` and ``agents`` of each.
    n_rounds : int
        Rounds of each average.
    rate : float or None
        Bound of the mixing rate of W where rounds are accelerated; None: they are plain.
    routes : Routes, optional
        Ways inside the hubs, by which the roots tell their terms. None: hubs of one agent.
    diameter : int
        Hops between the agents farthest apart; for counting messages.
    n_threads : int
        Threads of the rounds.
    """

    def __init__(
        self,
        team: MpiTeam,
        mixing: Any,
        hubs: Sequence[Any],
        n_rounds: int,
        *,
        rate: float | None = None,
        routes: Routes | None = None,
        diameter: int = 0,
        n_threads: int = 1,
    ) -> None:
        _OverHubs.__init__(self, routes, diameter)
        n_agents = mixing.shape[0]
        homes = team.ranks[:n_agents]
        roots = np.array([hub.root for hub in hubs], dtype=np.intp)
        self._settle_hubs(team, team.ranks[roots])
        self.n_roots = len(self.numbers)
        self.n_rounds = n_rounds
        self.rate = rate
        self.n_threads = n_threads
        own = np.array(team.own, dtype=np.intp)
        place = np.full(n_agents, -1, dtype=np.intp)
        place[own] = np.arange(len(own))

        # Who needs whose state: each state goes once to each process with neighbours of its agent.
        to = np.repeat(np.arange(n_agents), np.diff(mixing.indptr))
        of = mixing.indices.astype(np.intp)
        pairs, used = np.unique(
            (of * team.size + homes[to])[homes[of] != homes[to]], return_counts=True
        )
        states, readers = np.divmod(pairs, team.size)
        self._apart = bool(len(pairs))
        neighbours = np.union1d(readers[homes[states] == team.rank],
                                homes[states[readers == team.rank]]).astype(np.intp)  # fmt: skip
        ghosts = states[readers == team.rank]
        place[ghosts] = len(own) + np.arange(len(ghosts))
        self._n_own, self._n_states = len(own), len(own) + len(ghosts)
        self._comm = team.link_up(neighbours.tolist()) if self._apart else None
        self._round = _Exchange.between(self._comm, team, neighbours, states, readers, states,
                                        place)  # fmt: skip
        reads = homes[states] == team.rank
        inside = (homes[to] == team.rank) & (homes[of] == team.rank) & (to != of)
        self._links = int(used[reads].sum() + inside.sum())

        begin, end = (int(own[0]), int(own[-1]) + 1) if len(own) else (0, 0)
        indptr = mixing.indptr[begin : end + 1].astype(np.int32)
        inner = slice(int(indptr[0]), int(indptr[-1]))
        self._indptr = indptr - indptr[0]
        self._indices = place[of[inner]].astype(np.int32)
        self._weights = np.ascontiguousarray(mixing.data[inner], dtype=np.float64)

        self._roots = place[roots[self.numbers]]
        sizes = np.array([len(hub.agents) for hub in hubs])
        self._scale = (n_agents / sizes)[self.numbers]
        self._levels = self._find_levels(routes, homes, place, neighbours)

        most = np.bincount(homes, minlength=team.size) + np.bincount(readers, minlength=team.size)
        # States, those before, and what is sent.
        self.values_per_item = IN_FLIGHT * 3 * int(most.max())

    def _find_levels(
        self,
        routes: Routes | None,
        homes: NDArray[np.intp],
        place: NDArray[np.intp],
        neighbours: NDArray[np.intp],
    ) -> list[_Level]:
        """How roots tell their terms: first to those one hop away, which tell the next."""
        levels = []
        for depth in range(1, 1 + (0 if routes is None else routes.hops)):
            assert routes is not None
            told = np.flatnonzero(routes.depth[: len(homes)] == depth)
            parents = routes.parent[told]
            here, there = homes[parents], homes[told]
            apart = here != there
            local = (here == self.team.rank) & ~apart
            exchange = None
            if apart.any():
                exchange = _Exchange.between(
                    self._comm, self.team, neighbours, parents[apart], there[apart], told[apart],
                    place,
                )  # fmt: skip
            levels.append(_Level(exchange, place[parents[local]], place[told[local]]))
        return levels

    def begin(self, kind: str, n_samples: int, n_components: int, itemsize: int) -> None:
        """Count a sum: roots tell their agents the hub's term, then each round every neighbour."""
        self._charge = "setup" if kind == "setup" else "estep"
        self._count(kind, n_samples * n_components * itemsize, self.n_rounds, self.n_rounds)

    def _steps(self) -> Iterator[float]:
        if self.rate is None:
            return repeat(1.0, self.n_rounds)
        return iter(chebyshev_steps(self.rate, self.n_rounds).tolist())

    def _sum(self, terms: NDArray[Any]) -> Flying:
        flat = terms.reshape(len(terms), int(np.prod(terms.shape[1:])))
        n_values, kind = flat.shape[1], self._charge
        row_bytes = n_values * flat.itemsize
        states = _aligned(self._n_states, n_values, flat.dtype)
        states[self._roots, :n_values] = flat * self._scale.astype(flat.dtype)[:, None]
        for level in self._levels:
            told = len(level.sources)
            states[level.targets, :n_values] = states[level.sources, :n_values]
            if level.exchange is not None:
                work = level.exchange.run(self.team, states, n_values)
                yield from work
                told += level.exchange.n_sent
                self.handed.add(kind, 0, level.exchange.n_sent * row_bytes)
            self.handed.add(kind, told * row_bytes, 0)
        weights = self._weights.astype(flat.dtype, copy=False)
        if not self._apart:
            steps = np.fromiter(self._steps(), dtype=np.float64, count=self.n_rounds)
            consensus_rounds(self._indptr, self._indices, weights, states, steps, self.n_threads)
            self.handed.add(kind, self.n_rounds * self._links * row_bytes, 0)
            return np.array(states[self._roots, :n_values]).reshape(terms.shape)
        mixed = _aligned(self._n_states, n_values, flat.dtype)
        for step in self._steps():
            yield from self._round.run(self.team, states, n_values)
            neighbour_round(
                self._indptr, self._indices, weights, states, mixed, step, self.n_threads
            )
            states, mixed = mixed, states
            self.handed.add(kind, self._links * row_bytes, self._round.n_sent * row_bytes)
        return np.array(states[self._roots, :n_values]).reshape(terms.shape)


@dataclass
class _Level:
    """Who hears a hub's term from whom: in other processes, and in this one."""

    exchange: _Exchange | None
    sources: NDArray[np.intp]
    targets: NDArray[np.intp]


class _Exchange:
    """Rows of the states that go to neighbouring processes, and rows that come from them."""

    def __init__(
        self, comm: Any, sent: list[NDArray[np.intp]], received: list[NDArray[np.intp]]
    ) -> None:
        self.comm = comm
        self._sent = np.concatenate([np.empty(0, dtype=np.intp), *sent])
        self._received = np.concatenate([np.empty(0, dtype=np.intp), *received])
        self._n_sent = [len(rows) for rows in sent]
        self._n_received = [len(rows) for rows in received]
        self.n_sent = len(self._sent)

    @classmethod
    def between(
        cls,
        comm: Any,
        team: MpiTeam,
        neighbours: NDArray[np.intp],
        sources: NDArray[np.intp],
        readers: NDArray[np.intp],
        targets: NDArray[np.intp],
        place: NDArray[np.intp],
    ) -> _Exchange:
        """The state of agent ``sources[i]`` goes to process ``readers[i]``, for ``targets[i]``."""
        homes = team.ranks[sources]
        sent = [place[sources[(homes == team.rank) & (readers == q)]] for q in neighbours]
        received = [place[targets[(homes == q) & (readers == team.rank)]] for q in neighbours]
        return cls(comm, sent, received)

    def run(self, team: MpiTeam, states: NDArray[Any], n_values: int) -> Generator[None]:
        """Send and receive these rows; goes on where they should be there."""
        out = np.ascontiguousarray(states[self._sent, :n_values])
        into = np.empty((len(self._received), n_values), dtype=states.dtype)
        request = self.comm.Ineighbor_alltoallv(
            [out, [n * n_values for n in self._n_sent]],
            [into, [n * n_values for n in self._n_received]],
        )
        yield
        team.wait(request)
        states[self._received, :n_values] = into


def _aligned(n_rows: int, n_values: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros where the vectors of a round want them; a few values more a row."""
    width = -(-n_values // ROUND_WIDTH) * ROUND_WIDTH
    memory = np.zeros(n_rows * width + ALIGNED, dtype=dtype)
    skip = -memory.ctypes.data % ALIGNED // dtype.itemsize
    return memory[skip : skip + n_rows * width].reshape(n_rows, width)
