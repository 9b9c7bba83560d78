"""The processes that agents live in: ranks of MPI, with one agent each or several.

Every wait polls, so that signals are seen, processors are shared, and a rank that does not answer
within a deadline is named.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

# MPICH's own words at an abort say no more than ours.
os.environ.setdefault("MPIR_CVAR_SUPPRESS_ABORT_MESSAGE", "1")

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from vpem.errors import Setting, VpemError
from vpem.network.messages import decode, encode

__all__ = ["MPI", "MpiTeam", "StalledError"]

SPINS = 200
"""Polls before a wait begins to sleep between them."""

PAUSES = (2e-5, 1e-3)
"""Seconds slept between polls: at first, and at most."""

PIECE_BYTES = 1 << 24
"""Of rows that are sent at a time."""

LATER = 0.1
"""Of the time waited up to now, by how much a pause may add to it."""

ROLL_CALL = 1
"""Tag of the question who is there, and of the answer."""

LOOK_EVERY = 0.1
"""Seconds between looks at the clock and at questions of others, while waiting."""

GRACE = 1.0
"""Seconds in which a rank that is there answers such a question."""


class StalledError(VpemError):
    """Ranks that did not answer within the deadline."""


class MpiTeam:
    """Ranks of an MPI communicator, over which agents are spread in runs, as evenly as can be.

    Parameters
    ----------
    n_agents : int
        Number of agents, N. With more ranks than agents the last ranks have none: they only take
        part in what all ranks do together.
    comm : MPI communicator, optional
        Default: all processes. It is duplicated.
    names : sequence of str, optional
        Of the agents, for messages.
    timeout : float, optional
        Seconds after which a rank that others wait for is said to be stalled. None: never.
    bell : MPI communicator, optional
        A copy of ``comm`` to ask who is there; tags 0 and 1 are used.

    Attributes
    ----------
    rank, size : int
        Number of this process, and how many there are.
    ranks : ndarray of shape (N + 1,)
        Rank of each agent; the last entry is that of a server, which lives on rank 0.
    own : range
        Agents of this rank.
    seen : float
        When this rank last got on (`time.monotonic`).
    """

    def __init__(
        self,
        n_agents: int,
        comm: Any = None,
        *,
        names: Sequence[str] = (),
        timeout: float | None = None,
        bell: Any = None,
    ) -> None:
        self.comm = MPI.COMM_WORLD if comm is None else comm
        self._bell = self.comm.Dup() if bell is None else bell
        self.rank = self.comm.Get_rank()
        self.size = self.comm.Get_size()
        self.n_agents = n_agents
        self.names = tuple(names)
        self.timeout = timeout
        used = min(self.size, n_agents)
        ends = (np.arange(used + 1) * n_agents) // max(used, 1)
        self.ranks = np.zeros(n_agents + 1, dtype=np.intp)
        self.ranks[:n_agents] = np.repeat(np.arange(used), np.diff(ends))
        mine = np.flatnonzero(self.ranks[:n_agents] == self.rank)
        self.own = range(int(mine[0]), int(mine[-1]) + 1) if len(mine) else range(0)
        self.seen = time.monotonic()
        self._asking: list[Any] = []
        self.wait(self.comm.Ibarrier())
        self.comm = self.comm.Dup()

    def mine(self, agent: int) -> bool:
        """Whether an agent lives on this rank."""
        return bool(self.ranks[agent] == self.rank)

    def describe(self, rank: int) -> str:
        """Name a rank and its agents: ``rank 2 (lab)``."""
        held = np.flatnonzero(self.ranks[: self.n_agents] == rank)
        if not len(held):
            return f"rank {rank} (no agent)"
        first, last = (
            self.names[a] if a < len(self.names) else f"agent {a}" for a in (held[0], held[-1])
        )
        return f"rank {rank} ({first if len(held) == 1 else f'{first} to {last}'})"

    # ---- values between agents -----------------------------------------------------------------

    def collect(self, values: dict[int, Any], to: int | None = 0) -> dict[int, Any] | None:
        """Bring together what agents have.

        Parameters
        ----------
        values : dict
            By agent; of this rank's agents.
        to : int or None
            Agent that gets them; None: all do.

        Returns
        -------
        dict or None
            By agent, in their order; None on a rank that gets nothing.
        """
        rank = None if to is None else int(self.ranks[to])
        parts = self._gather(values, rank)
        if parts is None:
            return None
        found: dict[int, Any] = {}
        for part in parts:
            found.update(part)
        return dict(sorted(found.items()))

    def everyones(self, items: list[Any]) -> list[Any]:
        """Return the items of all ranks, in their order."""
        parts = self._gather(items, None)
        assert parts is not None
        return [item for part in parts for item in part]

    def _gather(self, value: Any, rank: int | None) -> list[Any] | None:
        """Return every rank's value, on one rank or, with None, on all."""
        message = np.frombuffer(encode(value), dtype=np.uint8)
        sizes = self.gather_all(np.array([len(message)], dtype=np.int64)).tolist()
        gets = rank is None or rank == self.rank
        buffer = np.empty(sum(sizes) if gets else 0, dtype=np.uint8)
        into = [buffer, sizes, MPI.BYTE] if gets else None
        own = [message, MPI.BYTE]
        if rank is None:
            self.wait(self.comm.Iallgatherv(own, into))
        else:
            self.wait(self.comm.Igatherv(own, into, root=rank))
        if not gets:
            return None
        ends = np.cumsum([0, *sizes])
        return [decode(buffer[a:b].data) for a, b in pairwise(ends)]

    def tell(self, value: Any, owner: int = 0) -> Any:
        """Return what the owner, an agent, has, on every rank."""
        return self.tell_from(value, int(self.ranks[owner]))

    def tell_from(self, value: Any, rank: int) -> Any:
        """Return what a rank has, on every rank."""
        own = self.rank == rank
        message = np.frombuffer(encode(value), dtype=np.uint8) if own else None
        size = np.array([len(message) if message is not None else 0], dtype=np.int64)
        self.wait(self.comm.Ibcast(size, root=rank))
        buffer = np.array(message) if message is not None else np.empty(int(size[0]), np.uint8)
        self.wait(self.comm.Ibcast([buffer, MPI.BYTE], root=rank))
        return value if own else decode(buffer.data)

    def gather_at(self, value: Any, rank: int) -> list[Any] | None:
        """Return every rank's value on one rank; None elsewhere."""
        return self._gather(value, rank)

    def tell_array(self, values: NDArray[Any], rank: int) -> NDArray[Any]:
        """Return a rank's array on every rank; all give one of the same shape and precision."""
        told = np.array(values)
        self.wait(self.comm.Ibcast(told, root=rank))
        return told

    def pass_on(self, value: Any, source: int, target: int) -> Any:
        """Send a value from one agent to another: what the target gets, None on other ranks."""
        here, there = int(self.ranks[source]), int(self.ranks[target])
        if here == there:
            return value if self.rank == here else None
        if self.rank == here:
            message = np.frombuffer(encode(value), dtype=np.uint8)
            size = np.array([len(message)], dtype=np.int64)
            first = self.comm.Isend(size, dest=there)
            second = self.comm.Isend([message, MPI.BYTE], dest=there)
            self.wait(first)
            self.wait(second)
        elif self.rank == there:
            size = np.empty(1, dtype=np.int64)
            self.wait(self.comm.Irecv(size, source=here))
            buffer = np.empty(int(size[0]), dtype=np.uint8)
            self.wait(self.comm.Irecv([buffer, MPI.BYTE], source=here))
            return decode(buffer.data)
        return None

    def pass_rows(
        self,
        rows: NDArray[Any] | None,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        source: int,
        target: int,
    ) -> NDArray[Any] | None:
        """Send rows (m, d) from one agent to another, some of them at a time.

        Returns
        -------
        ndarray or None
            On the target's rank; None on others.
        """
        here, there = int(self.ranks[source]), int(self.ranks[target])
        if here == there:
            return rows
        if self.rank not in (here, there):
            return None
        step = max(1, PIECE_BYTES // max(1, shape[1] * dtype.itemsize))
        found = np.empty(shape, dtype) if self.rank == there else None
        for begin in range(0, shape[0], step):
            piece = slice(begin, begin + step)
            if found is not None:
                self.wait(self.comm.Irecv(found[piece], source=here))
            else:
                assert rows is not None
                own = np.ascontiguousarray(rows[piece], dtype=dtype)
                self.wait(self.comm.Isend(own, dest=there))
        return found

    # ---- arrays, by all ranks together ---------------------------------------------------------

    def begin_add(self, values: NDArray[Any]) -> Any:
        """Begin to add arrays of all ranks, in place; `wait` for what this returns."""
        return self.comm.Iallreduce(MPI.IN_PLACE, values, op=MPI.SUM)

    def add(self, values: NDArray[Any]) -> NDArray[Any]:
        """Add arrays of all ranks, in place."""
        self.wait(self.begin_add(values))
        return values

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        """Largest of all ranks' values, in place."""
        self.wait(self.comm.Iallreduce(MPI.IN_PLACE, values, op=MPI.MAX))
        return values

    def gather_all(self, values: NDArray[Any], counts: Sequence[int] | None = None) -> NDArray[Any]:
        """Join arrays of all ranks, (n,), in the order of the ranks; ``counts`` where they differ.

        Returns
        -------
        ndarray
            Of the sum of the counts.
        """
        counts = [len(values)] * self.size if counts is None else list(counts)
        found = np.empty(sum(counts), dtype=values.dtype)
        self.wait(self.comm.Iallgatherv(np.ascontiguousarray(values), [found, counts]))
        return found

    def link_up(self, neighbours: list[int]) -> Any:
        """Return a communicator in which this rank's neighbours are these, by all ranks together.

        Who is whose neighbour is mutual.
        """
        self.wait(self.comm.Ibarrier())  # what follows cannot be waited for with a deadline
        return self.comm.Create_dist_graph_adjacent(neighbours, neighbours)

    # ---- waiting -------------------------------------------------------------------------------

    def wait(self, request: Any) -> None:
        """Wait for a request, with the processor given to others meanwhile.

        Raises
        ------
        StalledError
            If a rank does not answer within the deadline.
        """
        polls = 0
        look = began = time.monotonic()
        while not request.Test():
            polls += 1
            if polls <= SPINS:
                os.sched_yield()
                continue
            now = time.monotonic()
            time.sleep(min(max(PAUSES[0], LATER * (now - began)), PAUSES[1]))
            if now - look >= LOOK_EVERY:
                look = now
                self._answer()
                if self.timeout is not None and now - began > self.timeout:
                    self._call_the_roll(request, now - began)
        self.seen = time.monotonic()

    def _answer(self) -> None:
        """Answer those who ask who is there; their number is asked with."""
        status = MPI.Status()
        while self._bell.Iprobe(tag=ROLL_CALL, status=status):
            asked = np.empty(1, dtype=np.int64)
            self._bell.Recv(asked, source=status.Get_source(), tag=ROLL_CALL)
            self._say(status.Get_source(), 0)

    def _say(self, rank: int, tag: int) -> None:
        # To a rank that is stalled it is never delivered: nobody waits for that.
        self._asking.append(np.array([self.rank], dtype=np.int64))
        self._bell.Isend(self._asking[-1], dest=rank, tag=tag).Free()

    def _call_the_roll(self, request: Any, waited: float) -> None:
        """Ask all ranks whether they are there, and name those that are not."""
        silent = set(range(self.size)) - {self.rank}
        for rank in silent:
            self._say(rank, ROLL_CALL)
        until = time.monotonic() + GRACE
        status = MPI.Status()
        while silent and time.monotonic() < until:
            self._answer()
            if self._bell.Iprobe(tag=0, status=status):
                self._bell.Recv(np.empty(1, dtype=np.int64), source=status.Get_source(), tag=0)
                silent.discard(status.Get_source())
            elif request.Test():
                return
            else:
                time.sleep(PAUSES[1])
        # The first of those that are left speaks for all.
        ahead = sum(rank not in silent for rank in range(self.rank))
        time.sleep(min(0.3 * ahead, 3.0))
        who = ", ".join(self.describe(rank) for rank in sorted(silent)) or "no rank"
        raise StalledError(
            f"{who} has not answered for {waited:.0f} s (",
            Setting("timeout", self.timeout),
            "): it is stopped, or still computing; look at its machine, or allow more time",
        )
