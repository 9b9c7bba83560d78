"""What every distributed sum answers to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.engines.placement import Placement
from vpem.network.ledger import Ledger
from vpem.network.schema import Schema, State
from vpem.sums.scalars import Scalars


class Sum(Protocol):
    """How it is summed."""

    ledger: Ledger | None
    """Where messages are counted."""
    way: str
    """One of `vpem.settings.SUMS`."""
    n_roots: int
    """Estimates that this process has: one a root, or one where all share it."""
    values_per_item: int
    whole: bool
    """Whether `reduce` wants the terms of all rows at once."""

    @property
    def mix(self) -> NDArray[np.float64] | None:
        """The sum as a matrix (R, B) over the hubs' terms, or None where it is not one."""

    @property
    def exact(self) -> bool:
        """Whether all roots share one estimate, which has no error."""

    @property
    def silent(self) -> NDArray[np.bool_] | None:
        """Roots (R,) that take no part in the sum begun last; None where all do."""

    @property
    def bytes_sent(self) -> int:
        """Payload bytes that have been sent up to now."""

    @property
    def holders(self) -> Placement:
        """Who has something to add (hubs, by their roots, or workers), and in which process."""

    @property
    def roots(self) -> Placement:
        """Who finds the sum: all holders, or one of them whose estimate all share."""

    def on(self, ledger: Ledger) -> Self:
        """Return the same sum from its beginning, whose messages are counted there."""

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        """Begin a sum: "estep", "setup" for a start, "check", or "labels".

        A message has so many values of each of so many rows, and so many scalars. A "check" is the
        E-step after the last iteration, in which all take part, as they do in "labels", which says
        what rows belong to. Raises PartitionedError where the
        network falls apart meanwhile.
        """

    def reduce(
        self, terms: Floats, rows: slice = slice(None), scalars: Scalars | None = None
    ) -> NDArray[Any]:
        """Sum terms (B, m, K) of some rows over the hubs: one estimate a root, or one for all.

        Scalars travel in the same messages, and what is found of them is put in their place.
        """

    def flow(
        self,
        chunks: Iterator[slice],
        local: Callable[[slice], Floats],
        scalars: Scalars | None = None,
    ) -> Iterator[tuple[slice, Floats]]:
        """`reduce` what is local in one chunk after the other; scalars go with the last."""

    def turn_to(self, batch: int, n_batches: int | None) -> None:
        """Sums to come are of the rows of this batch, of so many, or (None) of a stream.

        Those of one batch go on from each other; rows of a stream come once, so that there is
        nothing to go on from, and its batches differ in what is drawn at random.
        """

    def kept_bytes(self, n_values: int) -> int:
        """Bytes that a sum leaves behind for the next one, of so many values of a holder."""

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        """Let all agents know what they decide together, in a message of so many bytes.

        Or what one of them has, the ``source``.
        """

    def state(self) -> State:
        """What is kept from one sum to the next; of this process."""

    def schema(self) -> Schema:
        """What that must be."""

    def restore(self, state: State) -> None:
        """Go on from what was kept, which has been checked."""
