"""The exact sum at a server or along a tree, and how sums over several processes flow.

Every process runs the same recipe with the terms of its own hubs. Two chunks of rows are under way
at a time: while what one needs from elsewhere travels, the terms of the next are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import repeat

import numpy as np

from vpem.checks import AnyArray, Doubles, Floats, Indices
from vpem.engines.engine import set_topic
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.network.faults import FewerError
from vpem.network.hubs import Routes
from vpem.sums.counted import TAG_BYTES, Addends, AtServer
from vpem.sums.exchanges import TreeWays, finished, row_bytes
from vpem.sums.sum import ALL, Scalars, Sum, with_scalars

IN_FLIGHT = 2
"""Chunks of rows that are under way at a time."""

Flying = Generator[None, None, Callable[[], Floats]]
"""Goes on where what it has sent for should be there; returns what reads the sum.

Sums are read in the order in which they began, everywhere, however they arrive.
"""


def _arriving(work: Flying) -> Iterator[Callable[[], Floats] | None]:
    """Yield None wherever a sum has to wait, and from then on what reads it."""
    read = yield from work
    yield from repeat(read)


class ByChunks(Sum):
    """A sum that begins with some rows, and may have to wait for what comes from elsewhere."""

    whole = False
    steady = True

    def _sum(self, terms: Floats, scalars: Scalars | None) -> Flying:
        """Sum terms (B, m, K) of this process's hubs, and their scalars."""
        raise NotImplementedError

    def reduce(self, terms: Floats, rows: slice = ALL, scalars: Scalars | None = None) -> AnyArray:
        return finished(self._sum(terms, scalars))()

    def flow(
        self,
        chunks: Iterator[slice],
        local: Callable[[slice], Floats],
        scalars: Scalars | None = None,
    ) -> Iterator[tuple[slice, Floats]]:
        """Sum what is local in one chunk after the other, two of them under way at a time.

        In one process nothing has to be waited for.
        """
        if not self.holders.apart:
            yield from super().flow(chunks, local, scalars)
            return
        under_way: list[tuple[slice, Iterator[Callable[[], Floats] | None]]] = []
        for rows, row_scalars in with_scalars(chunks, scalars):
            # While this is computed, what the chunk ahead has sent is under way.
            behind = _arriving(self._sum(local(rows), row_scalars))
            next(behind)
            under_way.append((rows, behind))
            if len(under_way) == IN_FLIGHT:
                first, ahead = under_way.pop(0)
                while (read := next(ahead)) is None:
                    next(behind)
                yield first, read()
        for last, ahead in under_way:
            yield last, next(filter(None, ahead))()


class ServerSum(ByChunks, AtServer):
    """The sum of all blocks at a server, Valdeira et al., (10), which returns it to every root.

    Terms of other processes are added by all-reduce. Or it is taken along a tree
    (`vpem.network.mixing.grow_tree`): the numbers are a server's, and between processes messages go
    only where their agents are joined in it. Agents of one depth after the other send their sums to
    their parents, which add them to theirs. Then the total goes from parents to children, to each
    process once.
    """

    error = 0.0
    """Consensus error: none."""
    exact = True

    @property
    def is_alike(self) -> bool:
        # Where sums go on without a process that is lost no numbers may be summed twice.
        return not self._alone and self.holders.engine.outlast is None

    def __init__(
        self, n_blocks: int, tree: Routes | None = None, agents: Indices | None = None
    ) -> None:
        super().__init__(n_blocks, tree, agents)
        self._live(self.holders, self.holders)

    def _live(self, agents: Placement, holders: Placement, following: bool = False) -> None:
        super()._live(agents, holders, following)
        self.values_per_item, self.mix = self.n_senders, None
        if holders.engine.size == 1 and holders.masks is None:
            # Nothing has to be waited for between terms and responsibilities.
            self.mix = np.ones((1, self.n_senders))
        self.ordered = holders.engine.in_order and holders.masks is None
        if not holders.apart:
            return
        self.values_per_item = IN_FLIGHT * (int(np.bincount(holders.ranks).max()) + 1)
        if self.tree is None:
            return
        if holders.masks is not None and holders.engine.outlast is not None:
            raise InputError(
                "masked sums along a tree need all members: let the study wait for a lost one "
                "(vpem study change --if-lost wait), or have a server"
            )
        self._near = TreeWays(agents, holders, self)
        self.values_per_item, self.mix = IN_FLIGHT * self._near.most, None

    def aggregate(self, received: Doubles, senders: Indices | None = None) -> Doubles:
        """Add up what some senders (a, P), or all, have sent: (1, P); along a tree on its way."""
        if self._near is not None:
            if self.holders.masks is not None:
                self.count_tag(senders)
            who = np.arange(self.n_senders) if senders is None else senders
            every = np.zeros((self.n_senders, received.shape[1]), dtype=received.dtype)
            every[who] = received if self.weights is None else self.weights[who, None] * received
            summed = finished(self._sum(every[self.holders.own][:, None], None, senders))()
            return summed[:, 0].astype(np.float64, copy=False)
        with set_topic(self.holders.engine, self.charge):
            total = super().aggregate(received, senders)
        if self.holders.engine.size > 1:
            self.traffic.add(self.charge, 0, total.nbytes * self.holders.engine.copies)
        return total

    def _sum(self, terms: Floats, scalars: Scalars | None, who: Indices | None = None) -> Flying:
        addends = Addends(self.holders, terms, scalars, self.exponents, who, self.objection)
        if self._near is not None:
            return (yield from self._up_and_down(addends, self._near))
        parts, charge, fewer = addends.together(), self.charge, False
        masks, engine = self.holders.masks, self.holders.engine
        sent = None
        if masks is not None and masks.outlast is not None:
            sent = masks.latest
            self.count_tag(tag=TAG_BYTES * (terms.dtype != np.bool_))
        if engine.size > 1:
            # Of several types they are under way at the same time.
            with set_topic(engine, charge):
                waits = [engine.iallreduce(part) for part in parts]
            yield
            try:
                for wait in waits:
                    wait()
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

    def _up_and_down(self, addends: Addends, near: TreeWays) -> Flying:
        """Add along the tree, between agents of several processes."""
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
