"""SAEM among neighbours: every device keeps a statistic of its own, and parameters made of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError, Setting
from vpem.network.codecs import Codec
from vpem.network.ledger import Ledger
from vpem.network.schema import Array, Schema, State
from vpem.network.trees import grow_tree
from vpem.saem.models.model import Vector
from vpem.saem.server import SaemServer, Units, moments_of
from vpem.sums.connect import Network
from vpem.sums.counted import AtServer, add_vectors
from vpem.sums.partial import Channel, Partial
from vpem.sums.quantizer import ITEM
from vpem.sums.tree import TreeSum


class SaemNeighbours:
    """Devices on a graph, each of which has its own estimate of the mean statistic of all.

    Device i adds to its estimate what has changed in its smoothed statistic since it last did, and
    the network's sum gives each an estimate of the mean of the results: dynamic average consensus
    (Zhu and Martinez 2010). The mean of the estimates is that of the smoothed statistics in every
    iteration, whatever rounds, codecs and links that fail leave between them, and how far they are
    apart is mixed away again. ``weights`` (D,) are devices' shares of the individuals.
    """

    codec = None
    feedback = "none"
    omega, alpha, safe = 0.0, 1.0, 1.0
    longest: float | None = None

    def __init__(self, network: Network, weights: Vector, size: int) -> None:
        self.network, self.weights = network, weights
        self.ledger = Ledger(network.graph)
        self.total = network.total.on(self.ledger)
        self.holders = self.total.holders
        n_roots = network.whole.total.n_roots
        self._apart = self.holders.apart and n_roots > 1
        self.estimates = np.zeros((n_roots, size))
        self.told = np.zeros((len(weights), size))
        # What is needed of all devices at some times is added up exactly.
        tree = grow_tree(network.graph)
        self._tree = TreeSum(tree, np.arange(len(weights))).on(self.ledger)

    @property
    def damping(self) -> float:
        """Longest step of the devices."""
        return self.longest or self.safe

    def begin(
        self, local: Vector, units: Units, participation: float, rng: np.random.Generator
    ) -> None:
        """Average first statistics (D, P)."""
        self.network.charge_setup(self.ledger, 0, ITEM)
        grow_tree(self.network.graph, self.ledger)
        self.told = local.copy()
        self.estimates = self._add(self.weights[:, None] * local, "setup")
        self.join(local, units, participation, rng)

    def join(
        self, memories: Vector, units: Units, participation: float, rng: np.random.Generator
    ) -> None:
        """Say who draws the devices that take part."""
        stays = Channel(len(self.weights), lambda sizes, senders: None)
        self.devices = Partial(stays, participation, rng)

    def _add(self, values: Vector, kind: str = "estep") -> Vector:
        """Add up a vector a device (D, P), as each finds it (R, P); zero of those elsewhere."""
        found = add_vectors(self.total, values[self.holders.own], kind)
        shared: Vector = self.holders.padded(found) if self._apart else found
        return shared[: len(self.estimates)]

    def _every(self) -> Vector:
        """Return what all devices have, (R, P)."""
        if not self._apart:
            return self.estimates
        return self.holders.allreduce(self.estimates, told=True)

    @property
    def statistic(self) -> Vector:
        """Mean (P,) of the devices' estimates."""
        found: Vector = self._every().mean(axis=0)
        return found

    @property
    def disagreement(self) -> float:
        """How far the farthest estimate is from their mean, of the size of that."""
        every = self._every()
        mean = every.mean(axis=0)
        apart = np.sqrt(((every - mean) ** 2).sum(axis=1).max())
        return float(apart / max(np.sqrt((mean**2).sum()), np.finfo(float).tiny))

    def draw(self, size: int) -> NDArray[np.intp]:
        """Draw the active devices, each of which has parameters."""
        self.devices.draw()
        return self.devices.active

    def gather(self, local: Vector, smoothed: Vector, step: float) -> None:
        """Let all know what has changed in the active devices' smoothed statistics (a, P).

        If the network falls apart meanwhile (PartitionedError), they tell it when they take part
        again.
        """
        active = self.devices.active
        moves = np.zeros_like(self.told)
        moves[active] = smoothed - self.told[active]
        known = np.broadcast_to(self.estimates, self.told.shape) / len(self.told)
        self.estimates = self._add(known + self.weights[:, None] * moves)
        self.told[active] = smoothed

    def sum_up(self, more: int = 2, wide: bool = False) -> None:
        """Count what is added up along a tree: estimates, moments of statistics, and more."""
        size = self.estimates.shape[1]
        for count in (self._tree.count, self._tree.broadcast):
            count(ITEM * (size + (0 if wide else moments_of(size)) + more))

    def add_formulas(self, size: int, sums: int, p: int) -> None:
        """Count sums of so many numbers along a tree, each at parameters (p,) of its root."""
        self._tree.count(ITEM * self.estimates.shape[1])  # of which the first are made
        for _ in range(sums):
            self._tree.broadcast(ITEM * p)
            self._tree.count(ITEM * size)

    def state(self) -> State:
        """Return what devices keep of messages, to go on from."""
        return {
            "estimates": self.estimates,
            "told": self.told,
            "sum": self.total.state(),
        }

    def schema(self) -> Schema:
        """Return what that must be."""
        return {
            "estimates": Array("f8", self.estimates.shape),
            "told": Array("f8", self.told.shape),
            "sum": self.total.schema(),
        }

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        self.estimates, self.told = state["estimates"], state["told"]
        self.total.restore(state["sum"])


def keeper_of(
    network: Network | None,
    weights: Vector,
    codec: Codec | None,
    feedback: str,
    pieces: tuple[slice, ...],
) -> SaemServer | SaemNeighbours:
    """Say who keeps the statistic, by the network: a server, or every device."""
    if network is None:
        return SaemServer(weights, codec, feedback, pieces)
    n = network.graph.n_agents
    if n != len(weights):
        raise InputError(f"the graph joins {n} agents, but there are {len(weights)} devices")
    if isinstance(network.total, AtServer):
        if network.compress is not None:
            raise InputError(
                "at a server SAEM compresses statistics itself: give the codec to it, and a "
                "network without compress"
            )
        return SaemServer(weights, codec, feedback, pieces, network)
    if codec is not None:
        raise InputError(
            "without a server devices send no statistics, but rounds of a sum: give ",
            Setting("compress"), " to connect_workers, not a codec to SAEM",
        )  # fmt: skip
    if network.faults is not None and network.faults.agent_dropout > 0:
        raise InputError(
            "a device that drops out of SAEM is one that does not take part: give ",
            Setting("participation"), ", not ", Setting("agent_dropout"),
        )  # fmt: skip
    return SaemNeighbours(network, weights, pieces[-1].stop)
