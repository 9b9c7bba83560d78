"""The engine of the ranks of an MPI job.

Every wait polls, so that signals are seen, processors are shared, and a rank that does not answer
within a deadline is named. Nothing else in the project knows MPI.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

# MPICH's own words at an abort say no more than ours.
os.environ.setdefault("MPIR_CVAR_SUPPRESS_ABORT_MESSAGE", "1")

import numpy as np
from mpi4py import MPI

from vpem.checks import AnyArray
from vpem.engines.engine import Engine, Neighbours, StalledError, Wait
from vpem.errors import Setting
from vpem.network.messages import decode, encode

YIELD = getattr(os, "sched_yield", lambda: time.sleep(0))
"""Gives the processor to processes that wait for it."""

SPINS = (200, 5)
"""Polls before a wait begins to sleep between them: where ranks have a processor each, and where
they are more than processors, so that polls keep others from computing."""

PAUSES = (2e-5, 1e-3)
"""Seconds slept between polls: at first, and at most."""

LATER = 0.1
"""Of the time waited up to now, by how much a pause may add to it."""

ANSWER, ROLL_CALL, FAILED = 0, 1, 7
"""Tags of the question who is there, of the answer, and of the news that a rank has failed."""

LOOK_EVERY = 0.1
"""Seconds between looks at the clock and at questions of others, while waiting."""

GRACE = 1.0
"""Seconds in which a rank that is there answers such a question."""

HEAR_OUT = 0.3
"""Seconds in which the first rank waits to hear whether all others fail alike."""

GIVE_WAY = (0.45, 0.3)
"""Seconds in which other ranks let the first speak: at least, and more by number."""

OPERATIONS = {"sum": MPI.SUM, "max": MPI.MAX}


def join() -> tuple[Engine, str]:
    """Return the engine of all processes that the launcher started, and which MPI it is."""
    return MpiEngine(), str(MPI.Get_library_version()).strip().split("\n")[0]


class MpiEngine(Engine):
    """Ranks of an MPI communicator, which is duplicated."""

    apart = True
    copies = 1

    def __init__(self, comm: MPI.Intracomm | None = None, *, timeout: float | None = None) -> None:
        self._given = MPI.COMM_WORLD if comm is None else comm
        self._comm = self._given.Dup()
        self._bell = self._comm.Dup()
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self.names = [f"rank {rank}" for rank in range(self.size)]
        self.timeout = timeout
        self.crowded = False
        self._said: list[AnyArray] = []

    def send(self, value: object, to: int) -> None:
        message = np.frombuffer(encode(value), dtype=np.uint8)
        size = np.array([len(message)], dtype=np.int64)
        requests = [self._comm.Isend(size, dest=to), self._comm.Isend(message, dest=to)]
        for request in requests:
            self._wait(request)

    def recv(self, source: int) -> Any:
        size = np.empty(1, dtype=np.int64)
        self._wait(self._comm.Irecv(size, source=source))
        buffer = np.empty(int(size[0]), dtype=np.uint8)
        self._wait(self._comm.Irecv(buffer, source=source))
        return decode(buffer.data)

    def send_array(self, values: AnyArray, to: int) -> None:
        self._wait(self._comm.Isend(values, dest=to))

    def recv_array(self, values: AnyArray, source: int) -> None:
        self._wait(self._comm.Irecv(values, source=source))

    def bcast(self, value: object, root: int = 0) -> Any:
        is_root = self.rank == root
        buffer = np.array(bytearray(encode(value) if is_root else b""), dtype=np.uint8)
        size = np.array([len(buffer)], dtype=np.int64)
        self._wait(self._comm.Ibcast(size, root=root))
        if not is_root:
            buffer = np.empty(int(size[0]), dtype=np.uint8)
        self._wait(self._comm.Ibcast(buffer, root=root))
        return value if is_root else decode(buffer.data)

    def bcast_array(self, values: AnyArray, root: int = 0) -> None:
        self._wait(self._comm.Ibcast(values, root=root))

    def gather(self, value: object, root: int | None = 0) -> list[Any] | None:
        message = np.frombuffer(encode(value), dtype=np.uint8)
        sizes = np.empty(self.size, dtype=np.int64)
        length = np.array([len(message)], dtype=np.int64)
        self._wait(self._comm.Iallgather(length, sizes))
        gets = root in (None, self.rank)
        buffer = np.empty(int(sizes.sum()) if gets else 0, dtype=np.uint8)
        into = [buffer, sizes.tolist()] if gets else None
        if root is None:
            self._wait(self._comm.Iallgatherv(message, into))
        else:
            self._wait(self._comm.Igatherv(message, into, root=root))
        if not gets:
            return None
        ends = np.cumsum([0, *sizes.tolist()])
        return [decode(buffer[begin:end].data) for begin, end in pairwise(ends)]

    def iallreduce(self, values: AnyArray, op: str = "sum", *, masked: bool = True) -> Wait:
        request = self._comm.Iallreduce(MPI.IN_PLACE, values, op=OPERATIONS[op])
        return partial(self._wait, request)

    def neighbours(self, ranks: Sequence[int]) -> Neighbours:
        self.barrier()  # what follows cannot be waited for with a deadline
        comm = self._comm.Create_dist_graph_adjacent(list(ranks), list(ranks))
        return lambda sent, n_sent, received, n_received: partial(
            self._wait, comm.Ineighbor_alltoallv([sent, n_sent], [received, n_received])
        )

    def barrier(self) -> None:
        self._wait(self._comm.Ibarrier())

    def _wait(self, request: MPI.Request) -> None:
        polls = 0
        look = began = time.monotonic()
        while not request.Test():
            polls += 1
            if polls <= SPINS[self.crowded]:
                YIELD()
                continue
            now = time.monotonic()
            time.sleep(min(max(PAUSES[0], LATER * (now - began)), PAUSES[1]))
            if now - look >= LOOK_EVERY:
                look = now
                for source, _ in self._heard(ROLL_CALL):
                    self._say(source, ANSWER)
                if self.timeout is not None and now - began > self.timeout:
                    self._call_the_roll(request, now - began)

    def _heard(self, tag: int) -> list[tuple[int, int]]:
        """Return who has said something, and the number that was said."""
        heard, status, number = [], MPI.Status(), np.empty(1, dtype=np.int64)
        while self._bell.Iprobe(tag=tag, status=status):
            self._bell.Recv(number, source=status.Get_source(), tag=tag)
            heard.append((status.Get_source(), int(number[0])))
        return heard

    def _say(self, rank: int, tag: int, number: int = 0) -> None:
        # To a rank that is stalled it is never delivered: this one does not wait for that.
        self._said.append(np.array([number], dtype=np.int64))
        self._bell.Isend(self._said[-1], dest=rank, tag=tag).Free()

    def _call_the_roll(self, request: MPI.Request, waited: float) -> None:
        """Ask all ranks whether they are there, and name those that are not."""
        inactive = set(range(self.size)) - {self.rank}
        for rank in inactive:
            self._say(rank, ROLL_CALL)
        until = time.monotonic() + GRACE
        while inactive and time.monotonic() < until:
            for source, _ in self._heard(ROLL_CALL):  # others, who ask the same
                self._say(source, ANSWER)
            heard = self._heard(ANSWER)
            inactive.difference_update(rank for rank, _ in heard)
            if not heard:
                if request.Test():
                    return
                time.sleep(PAUSES[1])
        # The first of those that are left speaks for all.
        ahead = sum(rank not in inactive for rank in range(self.rank))
        time.sleep(min(0.3 * ahead, 3.0))
        who = ", ".join(self.names[rank] for rank in sorted(inactive)) or "no rank"
        raise StalledError(
            f"{who} has not answered for {waited:.0f} s (",
            Setting("timeout", self.timeout),
            "): it is stopped, or still computing; look at its machine, or allow more time",
        )

    def announce_end(self, reason: str, patient: bool = True, code: int = 2) -> bool:
        """Report to the first rank why this one ends; there, return whether all end for that."""
        number = zlib.crc32(reason.encode())
        if self.rank:
            self._say(0, FAILED, number)
            at_least, more = GIVE_WAY
            time.sleep(at_least + more * self.rank / self.size if patient else 0.0)
            return False
        heard: list[int] = []
        until = time.monotonic() + HEAR_OUT
        while len(heard) < self.size - 1 and time.monotonic() < until:
            heard += [said for _, said in self._heard(FAILED)]
            time.sleep(0.005)
        return heard == [number] * (self.size - 1)

    def abort(self, code: int) -> None:
        self._given.Abort(code)
        os._exit(code)
