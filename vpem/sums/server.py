"""The exact sum at a server that every agent reaches, and sums over several processes.

These are all-reduced, or go by rounds between neighbours. Every process runs the same recipe with
the terms of its own hubs. Two chunks of rows are under way at a time: while what one needs from
elsewhere travels, the terms of the next are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem._core.consensus import consensus_rounds, neighbour_round
from vpem.checks import Doubles, Floats, Indices
from vpem.engines.engine import set_topic
from vpem.engines.placement import Placement
from vpem.network.faults import FewerError
from vpem.network.hubs import Routes
from vpem.network.mixing import chebyshev_steps
from vpem.sums.consensus import _OverHubs
from vpem.sums.counted import TAG_BYTES, Addends, AtServer, Counted, charged
from vpem.sums.exchanges import Neighbourhood, finished, row_bytes
from vpem.sums.sum import Scalars, Traffic, beside, message_bytes, with_scalars

ROUND_WIDTH = 32
"""Values of a round's states are a multiple of this, and begin at a multiple of `ALIGNED`."""

ALIGNED = 64

IN_FLIGHT = 2
"""Chunks of rows that are under way at a time."""

Flying = Generator[None, None, Callable[[], Floats]]
"""Goes on where what it has sent for should be there; returns what reads the sum.

Sums are read in the order in which they began, everywhere, however they arrive.
"""


class ExactSum(AtServer):
    """Adds the terms of all blocks and returns the total to every root."""

    error = 0.0
    """Consensus error: none."""
    exact = True
    whole = False

    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.n_blocks = n_blocks
        self.values_per_item = n_blocks
        self.mix = np.ones((1, n_blocks))

    def masked(self, holders: Placement) -> Self:
        """Return the same sum under the masks of its holders."""
        masked = copy(self)
        masked.holders, masked.mix = holders, None
        return masked

    def reduce(
        self, terms: Floats, rows: slice = slice(None), scalars: Scalars | None = None
    ) -> NDArray[Any]:
        """Sum terms (B, m, K) over the blocks, shape (1, m, K)."""
        addends = Addends(self.holders, terms, scalars, self.exponents)
        return addends.total(addends.together())


class ServerSum(ExactSum):
    """The sum of all blocks at a server, Valdeira et al., (10)."""


@dataclass
class _Flight:
    """A chunk of rows on its way."""

    rows: slice
    work: Flying
    result: Callable[[], Floats] | None = None

    def go_on(self) -> bool:
        """Go on until something has to be waited for; whether it has arrived."""
        if self.result is None:
            try:
                next(self.work)
            except StopIteration as end:
                self.result = end.value
        return self.result is not None


class _OverEngine(Counted):
    """What both sums share: some holders in this process, and others elsewhere."""

    whole = False
    traffic: Traffic
    charge: str
    """Kind that messages are counted as."""

    def _sum(self, terms: Floats, scalars: Scalars | None) -> Flying:
        """Sum terms (B, m, K) of this process's hubs, and their scalars."""
        raise NotImplementedError

    def reduce(
        self, terms: Floats, rows: slice = slice(None), scalars: Scalars | None = None
    ) -> NDArray[Any]:
        """Sum terms (B, m, K) of this process's hubs: (R, m, K)."""
        return finished(self._sum(terms, scalars))()

    def flow(
        self,
        chunks: Iterator[slice],
        local: Callable[[slice], Floats],
        scalars: Scalars | None = None,
    ) -> Iterator[tuple[slice, Floats]]:
        """Sum what is local in one chunk after the other, two of them under way at a time."""
        ahead: _Flight | None = None
        for rows, row_scalars in with_scalars(chunks, scalars):
            # While this is computed, what the chunk ahead has sent is under way.
            behind = _Flight(rows, self._sum(local(rows), row_scalars))
            behind.go_on()
            if ahead is not None:
                while not ahead.go_on():
                    behind.go_on()
                assert ahead.result is not None
                yield ahead.rows, ahead.result()
            ahead = behind
        if ahead is not None:
            while not ahead.go_on():
                pass
            assert ahead.result is not None
            yield ahead.rows, ahead.result()


class ServerOverEngine(_OverEngine, AtServer):
    """Adds the terms of all holders, those of other processes by all-reduce."""

    n_roots = 1
    exact = True

    carries = True

    def __init__(self, holders: Placement) -> None:
        super().__init__(holders.n_agents)
        self.holders = holders
        self.roots = Placement(holders.engine, holders.ranks[:1])
        self.traffic = Traffic()
        most = int(np.bincount(holders.ranks).max())
        self.values_per_item = IN_FLIGHT * (most + 1)
        if holders.engine.size == 1 and holders.masks is None:
            # Nothing has to be waited for between terms and responsibilities.
            self.mix = np.ones((1, holders.n_agents))

    def aggregate(self, received: Doubles, senders: Indices | None = None) -> Doubles:
        with set_topic(self.holders.engine, self.charge):
            total = super().aggregate(received, senders)
        if self.holders.engine.size > 1:
            self.traffic.add(self.charge, 0, total.nbytes * self.holders.engine.copies)
        return total

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

    def announce(self, received: Doubles, senders: Indices | None = None) -> Doubles:
        engine, total = self.holders.engine, np.empty((1, received.shape[1]))
        if engine.rank == 0:
            total[0] = self.added(received, senders)
        with set_topic(engine, self.charge):
            engine.bcast_array(total)
        self.traffic.add(self.charge, 0, 0 if engine.rank else total.nbytes * engine.copies)
        return total

    def _sum(self, terms: Floats, scalars: Scalars | None) -> Flying:
        addends = Addends(self.holders, terms, scalars, self.exponents)
        parts, charge, fewer = addends.together(), self.charge, False
        masks, engine = self.holders.masks, self.holders.engine
        sent = None
        if masks is not None and masks.outlast is not None:
            sent = masks.latest
            self.count_tag(tag=TAG_BYTES * (terms.dtype != np.bool_))
        if engine.size > 1:
            # Of several types they are under way at the same time.
            with set_topic(engine, charge):
                requests = [engine.iallreduce(part) for part in parts]
            yield
            try:
                for request in requests:
                    request.wait()
            except FewerError:
                fewer = True
            size = sum(part.nbytes for part in parts)
            self.traffic.add(self.charge, 0, size * engine.copies)

        def read() -> Floats:
            if sent is None:
                return addends.total(parts)
            with set_topic(engine, charge):
                if fewer:
                    return addends.total([self.holders.summed(addends.again)])
                return addends.total([self.holders.opened(parts[0], sent)])

        return read


class ConsensusOverEngine(_OverEngine, _OverHubs):
    """Consensus rounds of agents in several processes, with messages between neighbours only.

    Processes whose agents are neighbours are neighbours of the engine. A round is one exchange of
    the states that agents elsewhere need. The numbers are those of
    `vpem.sums.consensus.ConsensusSum`, whose parameters these are, with its rounds run one by one;
    ``following`` is as for `Neighbourhood`.
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
        roots = np.array([hub.root for hub in hubs], dtype=np.intp)
        self._near = near = Neighbourhood(
            agents, holders, mixing, roots, routes, following=following
        )
        self.traffic, self.n_roots = near.traffic, near.n_roots
        self.n_rounds, self.rate, self.n_threads = n_rounds, rate, n_threads
        sizes = np.array([len(hub.agents) for hub in hubs])
        self._scale = (agents.n_agents / sizes)[holders.own]
        indptr, self._indices, values = near.rows_of(mixing)
        self._indptr = indptr[: len(near.own) + 1]
        self._weights = np.ascontiguousarray(mixing.data[values], dtype=np.float64)
        # States, those before, and what is sent.
        self.values_per_item = IN_FLIGHT * 3 * near.most

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        """Count a sum: roots send their agents the hub's term, then each round every neighbour."""
        self.holders.begin(kind, n_samples)
        self.charge = charged(kind, "estep")
        size = message_bytes(n_samples, n_values, itemsize, n_scalars)
        self._count(kind, size, self.n_rounds, self.n_rounds)

    def reduce(
        self, terms: Floats, rows: slice = slice(None), scalars: Scalars | None = None
    ) -> NDArray[Any]:
        estimates = self._near.follow(super().reduce(terms, rows, scalars))
        if scalars is not None:
            scalars.found = self._near.follow(scalars.found)
        return estimates

    def _sum(self, terms: Floats, scalars: Scalars | None) -> Flying:
        near, kind = self._near, self.charge
        values = beside(terms, scalars)
        parts = [_States(near.n_rows, each.shape[1], each.dtype) for each in values]
        for part, each in zip(parts, values, strict=True):
            part.sent[near.roots] = each * self._scale.astype(each.dtype)[:, None]
        yield from near.send_terms([part.sent for part in parts], kind)
        weights = [self._weights.astype(each.dtype, copy=False) for each in values]
        size = row_bytes(values)
        pattern = self._indptr, self._indices
        exchange = near.exchange
        steps = np.ones(self.n_rounds)
        if self.rate is not None:
            steps = chebyshev_steps(self.rate, self.n_rounds)
        if exchange is None:
            for part, link_weights in zip(parts, weights, strict=True):
                consensus_rounds(*pattern, link_weights, part.now, steps, self.n_threads)
            self.traffic.add(kind, self.n_rounds * near.n_links * size, 0)
        else:
            for step in steps.tolist():
                yield from exchange.run([part.sent for part in parts], kind)
                for part, link_weights in zip(parts, weights, strict=True):
                    neighbour_round(
                        *pattern, link_weights, part.now, part.mixed, step, self.n_threads
                    )
                    part.now, part.mixed = part.mixed, part.now
                self.traffic.add(kind, near.n_links * size, exchange.n_sent * size)
        if scalars is not None:
            scalars.found = np.array(parts[1].sent[near.roots])
        total = np.array(parts[0].sent[near.roots]).reshape(terms.shape)
        return lambda: total


class _States:
    """States of agents (n_rows, n_values), as they are and as they are to be.

    They lie where the vectors of a round want them, with a few values more a row.
    """

    def __init__(self, n_rows: int, n_values: int, dtype: np.dtype[np.floating]) -> None:
        self.n_values = n_values
        width = -(-n_values // ROUND_WIDTH) * ROUND_WIDTH
        states = []
        for _ in range(2):
            memory = np.zeros(n_rows * width + ALIGNED, dtype=dtype)
            skip = -memory.ctypes.data % ALIGNED // dtype.itemsize
            states.append(memory[skip : skip + n_rows * width].reshape(n_rows, width))
        self.now, self.mixed = states

    @property
    def sent(self) -> Floats:
        return self.now[:, : self.n_values]
