"""How processes talk: the one protocol by which anything crosses between agents.

The words are those of mpi4py. All processes call the same methods in the same order (`Engine.send`
and `Engine.recv`, and those of arrays, in pairs). Values are None, bool, int, float, str, bytes,
arrays of numbers or of text of fixed width, and lists, tuples and dicts of such
(`vpem.network.messages`). In one process (`OneProcess`) each method returns its argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Never, Protocol

from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.errors import VpemError
from vpem.network.faults import Outlast


class StalledError(VpemError):
    """Processes that did not answer within the deadline."""

    exit_code = 4


class Pending(Protocol):
    """What is on its way."""

    def wait(self) -> None:
        """Wait until it has arrived; raises StalledError if that takes too long."""


class Neighbours(Protocol):
    """Processes that exchange messages with this one, in an order that stays."""

    def ialltoallv(
        self, sent: Floats, n_sent: Sequence[int], received: Floats, n_received: Sequence[int]
    ) -> Pending:
        """Begin to send each neighbour its run of the values in ``sent``, and to receive others."""


class Signs(Protocol):
    """How processes that have an identity prove what they say.

    Attributes
    ----------
    facts : list of str
        What all who sign must agree on.
    """

    facts: list[str]

    def sign(self, message: bytes) -> bytes:
        """Return this process's signature of a message."""

    def holds(self, rank: int, message: bytes, signature: bytes) -> bool:
        """Whether a signature of a message is that of a process."""

    def seal(self, number: int, message: bytes) -> bytes:
        """Return a message that another process passes on, signed, by its number in the run."""

    def unseal(self, rank: int, number: int, sealed: Any) -> bytes:
        """Return the message that a process has signed; InputError if it has signed another."""


class Engine(Protocol):
    """The processes that agents live in.

    Attributes
    ----------
    rank, size : int
        Number of this process, and how many there are.
    apart : bool
        Whether agents may live in other processes, so that each has the data of its own only.
    names : list of str
        What each process is called in messages.
    timeout : float or None
        Seconds after which a process that others wait for is said to be stalled; None: never.
    crowded : bool
        Whether processes are more than processors, so that those that wait had better sleep.
    seats : sequence of int or None
        Processes that have one agent each, in the agents' order, and are called as these are
        already; others have none. None: agents are spread evenly over all.
    topic : str
        Kind of what is exchanged at present, as ledgers call it; "alignment" of parties' rows, and
        "agreement" where processes agree on how to go on. See `set_topic`.
    watch : callable or None
        Called with every sum that begins, its kind and the rows it shows, before anything of it is
        sent; what it raises ends the run.
    limit : callable or None
        Called with the rows of all parties, a party's number and all names, where ids will be
        compared, before any is sent; what it raises ends the run.
    copies : int
        How often this process sends an array, or others their total, where those of all are added.
    open : bool
        Whether sentences about data of one process may be said in all.
    signs : Signs or None
        How processes prove who they are, where others pass on what they say; None: they have no
        identity apart from that of the user who started them all.
    outlast : Outlast or None
        What is known of masked sums where these go on without a process that is lost; None: they
        need all. `iallreduce`, which all of them go by, then raises FewerError as one is lost.
    """

    rank: int
    size: int
    apart: bool
    names: list[str]
    timeout: float | None = None
    crowded: bool = False
    seats: Sequence[int] | None = None
    topic: str = ""
    watch: Callable[[str, int], None] | None = None
    limit: Callable[[Sequence[int], int, Sequence[str]], None] | None = None
    copies: int
    open: bool = True
    signs: Signs | None = None
    outlast: Outlast | None = None

    def send(self, value: Any, to: int) -> None:
        """Send a value to another process."""

    def recv(self, source: int) -> Any:
        """Return the value that another process has sent."""

    def send_array(self, values: NDArray[Any], to: int) -> None:
        """Send an array, without a word of what it is, to another process."""

    def recv_array(self, values: NDArray[Any], source: int) -> None:
        """Receive an array that another process has sent, of this shape and kind, in its place."""

    def bcast(self, value: Any, root: int = 0) -> Any:
        """Return, in every process, the root's value."""

    def bcast_array(self, values: NDArray[Any], root: int = 0) -> None:
        """Put the root's array, which comes without a word of what it is, in this one's place."""

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        """Return every process's value at the root, None elsewhere."""

    def allgather(self, value: Any) -> list[Any]:
        """Return every process's value in every process."""

    def allreduce(self, values: NDArray[Any], op: str = "sum") -> NDArray[Any]:
        """Return the "sum" or the "max" of all processes' arrays, the same to the last bit."""

    def iallreduce(self, values: NDArray[Any]) -> Pending:
        """Begin to add all processes' arrays, in place."""

    def neighbours(self, ranks: Sequence[int]) -> Neighbours:
        """Join this process with those that it exchanges with, who name it too."""

    def barrier(self) -> None:
        """Wait for all processes."""

    def announce_end(self, reason: str, patient: bool = True, code: int = 2) -> bool:
        """Tell others why this process ends the job, and with which code.

        Returns whether all end for the same reason, or say it each. Processes other than the first
        otherwise give way to it, if they are ``patient``.
        """

    def abort(self, code: int) -> None:
        """End all processes with this code, other than by the end of the program."""


@contextmanager
def set_topic(engine: Engine, topic: str) -> Iterator[None]:
    """Say of what kind all is that is exchanged in here."""
    before, engine.topic = engine.topic, topic
    try:
        yield
    finally:
        engine.topic = before


class _Arrived:
    """Nothing is on its way."""

    def wait(self) -> None:
        """Return at once."""


class OneProcess(Engine):
    """All agents live here."""

    rank = 0
    size = 1
    apart = False
    copies = 0

    def __init__(self) -> None:
        self.names = ["this process"]
        self._sent: deque[Any] = deque()

    def send(self, value: Any, to: int) -> None:
        """Put a value by."""
        self._sent.append(value)

    def recv(self, source: int) -> Any:
        """Return the value put by first."""
        return self._sent.popleft()

    def send_array(self, values: NDArray[Any], to: int) -> None:
        """Put an array by."""
        self._sent.append(values.copy())

    def recv_array(self, values: NDArray[Any], source: int) -> None:
        """Put the array that was put by first in this one's place."""
        values[...] = self._sent.popleft()

    def bcast(self, value: Any, root: int = 0) -> Any:
        """Return the value."""
        return value

    def bcast_array(self, values: NDArray[Any], root: int = 0) -> None:
        """Leave the array as it is."""

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        """Return the value, alone in a list."""
        return [value]

    def allgather(self, value: Any) -> list[Any]:
        """Return the value, alone in a list."""
        return [value]

    def allreduce(self, values: NDArray[Any], op: str = "sum") -> NDArray[Any]:
        """Return the values."""
        return values

    def iallreduce(self, values: NDArray[Any]) -> _Arrived:
        """Leave the values as they are."""
        return _Arrived()

    def neighbours(self, ranks: Sequence[int]) -> Never:
        """Raise ValueError: a single process has none."""
        raise ValueError("a single process has no neighbours")

    def barrier(self) -> None:
        """Return at once."""

    def announce_end(self, reason: str, patient: bool = True, code: int = 2) -> bool:
        """Return that all processes end, since this is all."""
        return True

    def abort(self, code: int) -> None:
        """End the process."""
        raise SystemExit(code)
