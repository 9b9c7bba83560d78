"""The engine of a single process, in which all agents live: nothing is sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Never

from numpy.typing import NDArray

from vpem.engines.engine import Signs
from vpem.network.faults import Outlast


class _Arrived:
    """Nothing is on its way."""

    def wait(self) -> None:
        """Return at once."""


class OneProcess:
    """All agents live here (`vpem.engines.engine.Engine`)."""

    rank = 0
    size = 1
    apart = False
    timeout: float | None = None
    crowded = False
    seats: Sequence[int] | None = None
    topic = ""
    watch: Callable[[str, int], None] | None = None
    limit: Callable[[Sequence[int], int, Sequence[str]], None] | None = None
    copies = 0
    open = True
    signs: Signs | None = None
    outlast: Outlast | None = None

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
        """Put the array put by first in its place."""
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

    def part(self, reason: str, patient: bool = True, code: int = 2) -> bool:
        """Return that all processes end, since this is all."""
        return True

    def abort(self, code: int) -> None:
        """End the process."""
        raise SystemExit(code)
