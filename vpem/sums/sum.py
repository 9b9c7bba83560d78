"""What every distributed sum answers to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vpem.engines.crew import Crew
from vpem.network.schema import Schema

__all__ = ["Sum"]


class Sum(Protocol):
    """How it is summed."""

    n_roots: int
    values_per_item: int
    mix: NDArray[np.float64] | None
    """The sum as a matrix (R, B) over the hubs' terms, or None where it is not one."""
    whole: bool
    """Whether `reduce` wants the terms of all rows at once."""
    silent: NDArray[np.bool_] | None
    """Roots (R,) that take no part in the sum begun last; None where all do."""
    bytes_sent: int
    """Payload bytes that have been sent up to now."""

    def begin(self, kind: str, n_samples: int, n_components: int, itemsize: int) -> None:
        """Begin a sum over so many rows and components: "estep", "setup" for a start, or "check".

        A "check" is the E-step after the last iteration, in which all take part. Raises
        PartitionedError where the network falls apart meanwhile.
        """

    def reduce(self, terms: NDArray[Any], rows: slice) -> NDArray[Any]:
        """Sum terms (B, m, K) of some rows over the hubs: one estimate a root, or one for all."""

    def flow(
        self, chunks: Iterator[slice], local: Callable[[slice], NDArray[Any]]
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """`reduce` what is local in one chunk after the other."""

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        """Let all agents know what they decide together, in a message of so many bytes.

        Or what one of them has, the ``source``.
        """

    # Agents may be spread over processes, each with the terms of its own hubs; every process runs
    # the same loop. In one process all of these return what they are given.

    crew: Crew
    """Who of the workers, where there are some, is in which process."""
    n_roots_of_all: int
    """Roots of all processes."""
    leads: bool
    """Whether this process knows what the first root finds."""

    def report(self, found: NDArray[np.float64]) -> NDArray[np.float64]:
        """What every root found, from what the roots of this process did, (R,)."""

    def pool(self, events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """All processes' events, whose second entry is the number of a hub."""

    def some(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether any process has each of some flags."""

    def tell(self, value: Any) -> Any:
        """What the process that leads has, in every process."""

    def state(self) -> dict[str, Any]:
        """What is kept from one sum to the next; of this process."""

    def schema(self) -> Schema:
        """What that must be."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what was kept, which has been checked."""
