"""What compressed sums remember: of all rows, or of those of every batch apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from vpem.network.schema import Maybe, Schema, State

M = TypeVar("M")


class Memories(Generic[M]):
    """The memory that a sum goes on from, out of those of all batches.

    Attributes
    ----------
    last : memory or None
        Of the sum taken last of these rows.
    lasting : bool
        Whether a sum in which all take part is followed by others: in batches it is the first, and
        else the last.
    once : bool
        Whether rows come once: there is nothing to go on from.
    """

    def __init__(self) -> None:
        self._every: list[M | None] = [None]
        self._batch = 0
        self.lasting = self.once = False

    @property
    def last(self) -> M | None:
        """Of the sum taken last of these rows."""
        return self._every[self._batch]

    @last.setter
    def last(self, memory: M | None) -> None:
        self._every[self._batch] = memory

    def turn_to(self, batch: int, n_batches: int | None) -> None:
        """Go on from the sums of a batch; see `vpem.sums.sum.Sum.turn_to`."""
        self.once = n_batches is None
        if n_batches is None:
            self._every = [None]
            return
        if not self.lasting or len(self._every) != n_batches:
            self._every, self.lasting = [None] * n_batches, True
        self._batch = batch

    def state(self, name: str, plain: Callable[[M], State]) -> State:
        """Return them by name, or in batches a list of them, in arrays and numbers."""
        each = [None if memory is None else plain(memory) for memory in self._every]
        return {"batches": each} if self.lasting else {name: each[0]}

    def schema(self, name: str, one: Callable[[str], Schema]) -> dict[str, Schema]:
        """Return what that must be; ``one`` is given a name for the number of values."""
        each: list[Schema] = [Maybe(one(f"V{number}")) for number in range(len(self._every))]
        return {"batches": each} if self.lasting else {name: each[0]}

    def restore(self, name: str, state: State, made: Callable[[State], M]) -> None:
        """Go on from what was kept."""
        each = state["batches"] if self.lasting else [state[name]]
        self._every = [None if one is None else made(one) for one in each]


class GoesOn:
    """A sum that goes on from the one before of the same rows, and draws anew in each."""

    _memories: Memories[Any]
    _number: int
    """Of sums up to now, which seeds what is drawn."""

    def turn_to(self, batch: int, n_batches: int | None) -> None:
        """Go on from the sums of a batch; see `vpem.sums.sum.Sum.turn_to`."""
        self._memories.turn_to(batch, n_batches)
        if n_batches is None:
            self._number = batch
