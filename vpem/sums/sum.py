"""What every distributed sum answers to, and exact numbers that travel in its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Doubles, Floats, Indices, Mask
from vpem.engines.placement import Placement
from vpem.network.codecs import Codec
from vpem.network.faults import Objection
from vpem.network.hubs import Routes
from vpem.network.ledger import Ledger
from vpem.network.schema import COUNT, As, Schema, Stateful, TableOf

if TYPE_CHECKING:
    from vpem.sums.counted import AtServer

ALL = slice(None)
"""Rows."""

SCALAR_BYTES = 8
"""Of each of them, whatever else is sent: no codec and no other precision touches it."""

DECISION_BYTES = 16
"""Of the message by which all go on as the process that has the total first; two numbers."""


@dataclass
class Scalars:
    """Exact numbers that are summed with the terms, in the same messages.

    Where terms are summed a chunk of rows at a time they go with the last chunk: they may be sums
    over all rows, which holders know then.

    ``own`` (B, n) are of each holder of this process; ``found`` (R, n) are their sums, once taken:
    one estimate a root, or one for all. Where sums are masked their units are ``2^exponent``
    times those of the terms.
    """

    own: Doubles
    found: AnyArray
    exponent: int = 0

    @classmethod
    def empty(cls, n_holders: int, n_roots: int, n_scalars: int = 1) -> Scalars:
        return cls(np.zeros((n_holders, n_scalars)), np.zeros((n_roots, n_scalars)))


def message_bytes(n_samples: int, n_values: int, itemsize: int, n_scalars: int) -> int:
    return n_samples * n_values * itemsize + n_scalars * SCALAR_BYTES


def with_scalars(
    chunks: Iterator[slice], scalars: Scalars | None
) -> Iterator[tuple[slice, Scalars | None]]:
    """Yield chunks of rows, the last of them with the scalars."""
    ahead = next(chunks, None)
    while ahead is not None:
        rows, ahead = ahead, next(chunks, None)
        yield rows, scalars if ahead is None else None


def beside(terms: Floats, scalars: Scalars | None) -> list[AnyArray]:
    """Return a vector of each block's terms (B, m K), and its scalars: what one message has."""
    flat = np.ascontiguousarray(terms).reshape(len(terms), int(np.prod(terms.shape[1:])))
    return [flat] if scalars is None else [flat, scalars.own]


def flattened(terms: Floats, scalars: Scalars | None = None) -> Doubles:
    """Terms (B, m, K) as a float64 vector of each block (B, K m), and after them its scalars.

    Component by component, so that a bucket of a codec holds values of one.
    """
    n_blocks, m, n_components = terms.shape
    if scalars is None:
        return beside(terms.transpose(0, 2, 1), None)[0].astype(np.float64, copy=False)
    flat = np.empty((n_blocks, n_components * m + scalars.own.shape[1]))
    values = flat[:, : n_components * m].reshape(n_blocks, n_components, m)  # a view
    values[...] = terms.transpose(0, 2, 1)
    flat[:, n_components * m :] = scalars.own
    return flat


def unflattened(flat: Doubles, terms: Floats, scalars: Scalars | None = None) -> Floats:
    """Vectors (R, K m) as sums (R, m, K) in the type and shape of terms (B, m, K).

    What stands after them is the sum of the scalars.
    """
    m, n_components = terms.shape[1:]
    n_values = m * n_components
    if scalars is not None:
        scalars.found = flat[:, n_values:].copy()
    turned = flat[:, :n_values].reshape(len(flat), n_components, m).transpose(0, 2, 1)
    return np.ascontiguousarray(turned, dtype=terms.dtype)


@dataclass
class Traffic:
    """Payload bytes that really went from agent to agent, by kind, as this process sent them.

    ``delivered`` went over links between agents, also inside this process; ``on_wire`` is what the
    engine was given of it. What several agents of another process want travels once.
    """

    delivered: dict[str, int] = field(default_factory=dict)
    on_wire: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, delivered: int, on_wire: int) -> None:
        self.delivered[kind] = self.delivered.get(kind, 0) + delivered
        self.on_wire[kind] = self.on_wire.get(kind, 0) + on_wire

    def clear(self) -> None:
        self.delivered.clear()
        self.on_wire.clear()


WENT = {
    name: As(TableOf(COUNT), dict, dict, f"traffic.{name}") for name in ("delivered", "on_wire")
}
"""What is saved of the traffic of a sum."""


class Sum(Stateful):
    """How it is summed: by default one chunk after the other, and nothing goes on from another.

    At first it is in one process, and nothing is counted.
    """

    ledger: Ledger | None
    """Where messages are counted."""
    kind = charge = "estep"
    """Kind that messages are counted as, but for those of the setup and of labels, and as now."""
    way: str
    """One of `vpem.settings.SUMS`."""
    n_roots: int
    """Estimates that this process has: one a root, or one where all share it."""
    values_per_item: int
    whole: bool
    """Whether `reduce` wants the terms of all rows at once."""
    mix: Doubles | None = None
    """The sum as a matrix (R, B) over the hubs' terms, or None where it is not one."""
    exact: bool = False
    """Whether all roots share one estimate, which has no error."""
    steady: bool = False
    """Whether each sum has what all add now, and nothing else."""
    codec: Codec | None = None
    """Of messages, where these are compressed."""
    tree: Routes | None = None
    """Ways to its root, if it goes along a tree (`vpem.network.mixing.grow_tree`)."""
    silent: Mask | None = None
    """Roots (R,) that take no part in the sum begun last; None where all do."""
    holders: Placement
    """Who has something to add (hubs, by their roots, or workers), and in which process."""
    traffic: Traffic
    """What really went between processes, where there are several."""
    seed: int | None = None  # of what is drawn at random
    n_threads = 1
    path: str | None = None  # how rounds are taken, or where without them

    objection: Objection | None = None
    """To what the last sum came to, where it goes with the one under way."""
    ordered = False
    """Whether agents' vectors are added in their order, whichever process they live in."""
    at_server = False
    """Whether it is taken at one place, from which all hear it (`vpem.sums.counted.AtServer`)."""
    server: AtServer
    """The sum at that place: this, or the one that this stands around."""
    active: Indices | None = None
    """Senders (a,) of the sum begun last; None: all."""
    starts: dict[Any, Any] | None = None
    """What fits of the same rows have found of their starts (`vpem.steps.starts.draw_start`)."""

    def __init__(self, n_holders: int) -> None:
        self.ledger = None
        self.holders = Placement.here(n_holders)
        self.traffic = Traffic()

    @property
    def absent(self) -> Mask | None:
        """Agents (N,) that were not heard in the sum begun last; None where all were."""
        if self.active is not None:
            return ~np.isin(np.arange(self.holders.n_agents), self.active)
        return None if self.silent is None else self.roots.join(self.silent)

    @cached_property
    def roots(self) -> Placement:
        """Who finds the sum: all holders, or one of them whose estimate all share."""
        return Placement.here(self.n_roots)

    @property
    def shape(self) -> dict[str, int] | None:
        """Of a tree the root, and the hops to the agents farthest from it."""
        return None

    @property
    def bytes_sent(self) -> int:
        """Payload bytes that have been sent up to now."""
        return 0 if self.ledger is None else self.ledger.bytes

    def counted_on(self, ledger: Ledger) -> Self:
        """Return the same sum from its beginning, whose messages are counted there."""
        counted = copy(self)
        counted.ledger = ledger
        return counted

    def spread_over(self, agents: Placement, holders: Placement, following: bool = False) -> Self:
        """Return the same sum of agents in several processes, each with terms of its own holders.

        Where it is following a process without holders has what the first of all finds.
        """
        spread = copy(self)
        spread._live(agents, holders, following)
        return spread

    def _live(self, agents: Placement, holders: Placement, following: bool = False) -> None:
        """Set what depends on where agents live."""
        self.holders, self.traffic = holders, Traffic()

    def charge_as(self, kind: str) -> None:
        """Count what is sent from now on as what the sum is for; see `begin`.

        Messages of a start and of labels are counted apart from the usual ones.
        """
        self.charge = kind if kind in ("setup", "labels") else self.kind

    def _send(self, kind: str, size: int | NDArray[np.integer], **options: Any) -> None:
        if self.ledger is not None:
            self.ledger.send(kind, size, **options)

    def uncompressed(self) -> Sum:
        """Return the same sum of numbers that no codec touches."""
        return self

    def expect(self, n_values: int) -> None:
        """Send, of so many values, as many messages as are expected, whatever there is to say."""

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        """Begin a sum: "estep", "setup" for a start, "check", or "labels".

        A message has so many values of each of so many rows, and so many scalars. A "check" is the
        E-step after the last iteration, in which all take part, as they do in "labels", which says
        what rows belong to. Raises PartitionedError where the network is disconnected meanwhile.
        """
        raise NotImplementedError

    def reduce(self, terms: Floats, rows: slice = ALL, scalars: Scalars | None = None) -> AnyArray:
        """Sum terms (B, m, K) of some rows over the hubs: one estimate a root, or one for all.

        Scalars travel in the same messages, and what is found of them is put in their place.
        """
        raise NotImplementedError

    def flow(
        self,
        chunks: Iterator[slice],
        local: Callable[[slice], Floats],
        scalars: Scalars | None = None,
    ) -> Iterator[tuple[slice, Floats]]:
        """`reduce` what is local in one chunk after the other; scalars go with the last."""
        for rows, row_scalars in with_scalars(chunks, scalars):
            yield rows, self.reduce(local(rows), rows, row_scalars)

    def turn_to(self, batch: int, n_batches: int | None) -> None:
        """Sums to come are of the rows of this batch, of so many, or (None) of a stream.

        Those of one batch go on from each other; rows of a stream come once, so that there is
        nothing to go on from, and its batches differ in what is drawn at random.
        """

    def kept_bytes(self, n_values: int) -> int:
        """Bytes that a sum leaves behind for the next one, of so many values of a holder."""
        return 0

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        """Let all agents know what they decide, or what the ``source`` has, in so many bytes."""
        raise NotImplementedError

    @property
    def is_alike(self) -> bool:
        """Whether all have the same total, to the last bit, in whose messages objections travel."""
        return False

    @property
    def tells_all(self) -> bool:
        """Whether all go on by what that total says to its last bit, without an agreement.

        Under masks they agree, so that a total that not all have had is noticed by all at once.
        """
        return self.is_alike and self.holders.masks is None

    def known_to_all(self, values: Doubles) -> Doubles:
        """Return what all roots have found in a sum, (R,), where this process has its own roots'.

        Where all have the same total, and may object, their own is enough.
        """
        return values if self.objection else self.roots.join(values)

    def schema(self) -> dict[str, Schema]:
        """What is kept from one sum to the next; of this process, if there are others."""
        return dict(WENT) if self.holders.apart else {}
