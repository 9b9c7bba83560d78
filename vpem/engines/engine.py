"""How processes talk: by an engine anything crosses between agents, and one process is one too.

The words are those of mpi4py. All processes call the same methods in the same order (`Engine.send`
and `Engine.recv`, and those of arrays, in pairs). Values are None, bool, int, float, str, bytes,
arrays of numbers or of text of fixed width, and lists, tuples and dicts of such
(`vpem.network.messages`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from vpem.checks import AnyArray, Floats
from vpem.errors import VpemError
from vpem.network.faults import Outlast

if TYPE_CHECKING:
    from vpem.engines.tls.trust import MemberSigns


class StalledError(VpemError):
    """Processes that did not answer within the deadline."""

    exit_code = 4


Wait = Callable[[], None]
"""Waits until what is on its way is there: StalledError if that takes too long."""

Neighbours = Callable[[Floats, Sequence[int], Floats, Sequence[int]], Wait]
"""Begins to send each of some processes its run of values, and to receive others.

It takes the values sent, how many go to each of them, in an order that stays, and the same of those
received: MPI's Ineighbor_alltoallv."""


class Engine:
    """The processes that agents live in; by itself one, where each method returns its argument.

    Agents that are ``apart`` may live in other processes, so that each has the data of its own
    only. Messages call processes by their ``names``; one that others wait for is said to be stalled
    after ``timeout`` seconds (None: never). Where processes are more than processors, ``crowded``,
    those that wait had better sleep. ``seats`` are processes that have one agent each, in the
    agents' order, and are called as these are already; others have none (None: agents are spread
    evenly over all), nor have those before ``first_holder``. ``topic`` is how ledgers call what is
    exchanged at present (`set_topic`): "alignment" of parties' rows, "agreement" where processes
    agree on how to go on.

    Before anything of it is sent, ``watch`` is called with every sum that begins, its kind and the
    rows it shows, and ``limit`` with the rows of all parties, a party's number and all names, where
    ids will be compared; what they raise ends the run. An array of this process, or others' total,
    is sent ``copies`` times where those of all are added. Where it is ``open``, sentences about
    data of one process may be said in all. ``signs`` is how processes prove who they are where
    others pass on what they say; None: the user who started them all is their identity.
    ``in_order`` adds what agents have agent by agent, as one process does: totals have the same
    bits over any number of processes. ``outlast`` is what is known of masked sums that go on
    without a process that is lost; None: they need all. `iallreduce`, which all of them go by, then
    raises FewerError as one is lost.
    """

    rank: int = 0
    size: int = 1
    apart: bool = False
    names: list[str]
    timeout: float | None = None
    crowded: bool = False
    seats: Sequence[int] | None = None
    first_holder: int = 0
    topic: str = ""
    watch: Callable[[str, int], None] | None = None
    limit: Callable[[Sequence[int], int, Sequence[str]], None] | None = None
    copies: int = 0
    open: bool = True
    signs: MemberSigns | None = None
    in_order: bool = False
    outlast: Outlast | None = None

    def __init__(self) -> None:
        self.names = ["this process"]
        self._sent: deque[object] = deque()

    def send(self, value: object, to: int) -> None:
        """Send a value to another process."""
        self._sent.append(value)

    def recv(self, source: int) -> Any:
        """Return the value that another process has sent."""
        return self._sent.popleft()

    def send_array(self, values: AnyArray, to: int) -> None:
        """Send an array, without a word of what it is, to another process."""
        self._sent.append(values.copy())

    def recv_array(self, values: AnyArray, source: int) -> None:
        """Receive an array that another process has sent, of this shape and kind, in its place."""
        values[...] = self._sent.popleft()

    def bcast(self, value: object, root: int = 0) -> Any:
        """Return, in every process, the root's value."""
        return value

    def bcast_array(self, values: AnyArray, root: int = 0) -> None:
        """Put the root's array, which comes without a word of what it is, in this one's place."""

    def gather(self, value: object, root: int | None = 0) -> list[Any] | None:
        """Return every process's value at the root, None elsewhere; in all where root is None."""
        return [value]

    def allgather(self, value: object) -> list[Any]:
        """Return every process's value in every process."""
        values = self.gather(value, None)
        assert values is not None
        return values

    def allreduce(self, values: AnyArray, op: str = "sum") -> AnyArray:
        """Return the "sum" or the "max" of all processes' arrays, the same to the last bit."""
        total = np.array(values, order="C")
        self.iallreduce(total, op, masked=False)()
        return total

    def iallreduce(self, values: AnyArray, op: str = "sum", *, masked: bool = True) -> Wait:
        """Begin to put the sum or the maximum of all processes' arrays in this one's place.

        Sums that are ``masked`` may go on without a process that is lost: see `outlast`.
        """
        return lambda: None

    def neighbours(self, ranks: Sequence[int]) -> Neighbours:
        """Join this process with those that it exchanges with, who name it too."""
        raise ValueError("a single process has no neighbours")

    def barrier(self) -> None:
        """Wait for all processes."""
        self.allgather(None)

    def announce_end(self, reason: str, patient: bool = True, code: int = 2) -> bool:
        """Tell others why this process ends the job, and with which code.

        Returns whether all end for the same reason, or say it each. Processes other than the first
        otherwise give way to it, if they are ``patient``.
        """
        return True

    def abort(self, code: int) -> None:
        """End all processes with this code, other than by the end of the program."""
        raise SystemExit(code)


@contextmanager
def set_topic(engine: Engine, topic: str) -> Iterator[None]:
    """Say of what kind all is that is exchanged in here."""
    before, engine.topic = engine.topic, topic
    try:
        yield
    finally:
        engine.topic = before
