"""What SAEM's server makes of the statistics, or models, that devices send.

Among neighbours, without a server, every device keeps a statistic of its own, and parameters made
of it.
"""

from __future__ import annotations

from copy import copy

import numpy as np

from vpem.checks import Doubles, Indices
from vpem.errors import check_choice
from vpem.network.codecs import Codec
from vpem.network.mixing import grow_tree
from vpem.network.schema import Array, As, Schema, State, Stateful
from vpem.settings import FEEDBACKS
from vpem.steps.fedem_sums import (
    NeighbourKeepers,
    StatisticKeeper,
    check_keeper,
    disagreement,
)
from vpem.sums.connect import Network
from vpem.sums.counted import AtServer
from vpem.sums.private import powers_above
from vpem.sums.quantizer import ITEM, Quantizer
from vpem.sums.server import ServerSum
from vpem.terms.units import Scaling, exponents_of

LEAST = 1e-3

ROOM, SMALLER = 2.0**20, 2.0**8
"""Statistics under masks may become so much larger than the first of each number, and than the
largest of a piece."""


class SaemServer(StatisticKeeper, Stateful):
    """The server's mean statistic, and how it moves by what active devices send.

    Vectors of devices that live in other processes are zero. A network sums at a server, or along a
    tree, of whose root all that is said of the server is true. ``weights`` (D,) are devices' shares
    of the individuals, ``statistic`` (P,) is the mean of an individual, as the server has it, and
    ``damping`` the longest step: ``longest``, or where that is None the ``safe`` one. Noise of a
    codec is in proportion to what is sent, and does not build up while the server's statistic moves
    no faster than memories follow, by ``1 / (1 + omega)``; half of that is safe. Absence asks for
    no shorter steps: what is sent is not divided by p, and steps of those who come are. What
    devices do about the error of a codec (None: there is none) is ``feedback``:

    ``none``: statistics are compressed as they are, as in the draft. What top-k leaves out is then
    zero, and the noise of few bits has the size of the statistic: second moments less squared means
    become negative, the M-step makes variances nearly zero, and the E-step keeps them there.
    ``change``: how far statistics are from the server's, which it sends instead of parameters; what
    is left out does not change. ``error``: the same, and what messages left out is added to the
    next (Seide et al. 2014). ``memory``: how far they are from what the server has of each device
    (Richtarik et al. 2021), which both keep.

    If ``latest``, nothing before counts: the statistic is the mean of what those send that take
    part, by their shares of the individuals, as in Algorithm 2 of the draft.
    """

    estimates = None
    disagreement = 0.0
    latest = False

    def __init__(
        self,
        weights: Doubles,
        codec: Codec | None,
        feedback: str,
        pieces: tuple[slice, ...],
        network: Network | None = None,
    ) -> None:
        super().__init__(network, weights)
        self.codec = codec
        self.feedback = check_choice("feedback", feedback, FEEDBACKS)
        self.pieces = pieces
        # Whether messages of other processes come to the server as a codec's bytes.
        self._carries = codec is not None and self.holders.apart
        self.omega, self.alpha = 0.0, 1.0
        self.longest: float | None = None
        self.damping = self.safe = 1.0
        self.statistic = np.zeros(pieces[-1].stop)
        self.left_out = np.zeros((len(weights), pieces[-1].stop))

    def begin(
        self, local: Doubles, units: Scaling, participation: float, rng: np.random.Generator
    ) -> None:
        """Send first statistics (D, P) exactly, and what the units are made of."""
        if self.network is not None:
            self.network.charge_setup(self.ledger, 0, ITEM)
        self._choose_units(local, self.total)
        self.holders.begin("setup", 1)
        self.total.charge_as("setup")
        sent = self.total.send(local)
        if not self._carries:
            self.statistic = self.total.aggregate(sent)[0]
        if self.codec is not None:
            size = ITEM * len(self.statistic)  # sums of squares up, units down
            self.total.count(size)
            self.total.broadcast(size)
        self.join(local.copy(), units, participation, rng)
        if self._carries:
            self.statistic = self.members.total()[0]

    def join(
        self, memories: Doubles, units: Scaling, participation: float, rng: np.random.Generator
    ) -> None:
        """Say how devices send from now on, and what the server has of each (D, P)."""
        # Where a run goes on it was counted when units were chosen first.
        uncounted = copy(self.total)
        uncounted.ledger = None
        self._choose_units(memories, uncounted)
        quantizer = Quantizer(self.codec, self.pieces, basis=units)
        if self.codec is not None:
            self.omega = quantizer.omega
            if not quantizer.biased:
                self.alpha = self.damping = 1.0 / (1.0 + quantizer.omega)
            elif self.feedback != "none":
                self.damping = max(1.0 - quantizer.omega, LEAST)
            if self.feedback != "none":
                self.damping /= 2
        if self.latest:
            self.damping = 1.0
        self.safe = self.damping
        self.damping = self.longest or self.safe
        self._tell(memories)
        self.total.charge_as("estep")
        self.take_part(participation, rng, quantizer)
        self.members.remember(self.alpha, memories)

    def _tell(self, memories: Doubles) -> None:
        """Send the server what each device begins from (D, P), where those are elsewhere."""
        if self._carries:
            local = np.ascontiguousarray(memories[self.holders.own]).view(np.uint8)
            heard = self.total.hear(local).view(np.float64)
            memories[slice(None) if len(heard) == len(memories) else self.holders.own] = heard

    def _choose_units(self, local: Doubles, total: AtServer) -> None:
        """Agree, where sums are masked, on units by the first statistics (D, P), with much room."""
        if self.holders.masks is None or np.ndim(self.total.exponents):
            return
        sizes = powers_above(total, np.abs(local[self.holders.own]))
        for piece in self.pieces:
            most = sizes[piece].max(initial=0.0)
            sizes[piece] = np.maximum(ROOM * sizes[piece], SMALLER * (most or 1.0))
        self.total.exponents = exponents_of(sizes, self.holders.n_agents)

    def draw(self, size: int, iteration: int = 0) -> Indices:
        """Draw the active devices, and send them so many parameters, or what these are made of."""
        if self.codec is not None and self.feedback in ("change", "error"):
            size = len(self.statistic)
        return super().draw(size, iteration)

    def gather(self, local: Doubles, smoothed: Doubles, step: float) -> None:
        """Send statistics of the active devices, and approximate the mean of all.

        Means (a, P) of each device's individuals are as they were simulated (``local``), and
        averaged over iterations by the device (``smoothed``).
        """
        if self.feedback == "memory":
            self.statistic = self.members.add(smoothed)[0]
            return
        # Of all devices in the mean; at most to where the active ones are.
        active, send = self.members.senders, self.members.send
        whole = 1.0 / float(self.weights[active].sum())
        if self.latest:
            self.statistic = whole * self.members.aggregate(self._here(send(local)))[0]
            return
        chance = self.members.chance
        assert isinstance(chance, float)  # the same of all devices
        step = min(step / chance, self.damping, whole)
        if self.feedback == "none":
            moves = step * self._here(send(local) - self.statistic)
        elif self.feedback == "change":
            moves = step * send(local - self.statistic)
        else:
            exact = step * self._here(local - self.statistic) + self.left_out[active]
            moves = self.alpha * send(exact)
            self.left_out[active] = self.total.ours(exact - moves, active)
        self.statistic = self.statistic + self.members.aggregate(moves)[0]

    def _here(self, values: Doubles) -> Doubles:
        """Vectors (a, P) of the active devices, zero of those that others add."""
        return values if self._carries else self.total.ours(values, self.members.senders)

    def sum_up(self, more: int = 2, wide: bool = False) -> None:
        """Count what devices send: moments of statistics, none of a wide model, and what else.

        That is ``more`` numbers, two at a look, and what log-likelihoods need.
        """
        size = len(self.statistic)
        self.total.count(ITEM * ((0 if wide else size + size * (size + 1) // 2) + more))

    def add_formulas(self, size: int, sums: int, p: int) -> None:
        """Count sums of so many numbers, each at parameters (p,) that the server sends."""
        for _ in range(sums):
            self.total.broadcast(ITEM * p)
            self.total.count(ITEM * size)

    def schema(self) -> dict[str, Schema]:
        each = Array("f8", self.left_out.shape)
        return {
            "statistic": Array("f8", self.statistic.shape),
            "left_out": each,
            "memories": As(each, at="members.values"),
            "sum": self.total,
        }

    def restore(self, state: State) -> None:
        self._tell(state["memories"])
        super().restore(state)


class SaemNeighbours(NeighbourKeepers, Stateful):
    """Devices on a graph, each of which has its own estimate of the mean statistic of all.

    Device i adds to its estimate what has changed in its smoothed statistic since it last did, and
    the network's sum gives each an estimate of the mean of the results: dynamic average consensus
    (Zhu and Martinez 2010). The mean of the estimates is that of the smoothed statistics in every
    iteration, whatever rounds, codecs and links that fail leave between them, and how far they are
    apart is mixed away again. ``weights`` (D,) are devices' shares of the individuals.
    """

    codec = None
    feedback = "none"
    omega, alpha, safe, damping = 0.0, 1.0, 1.0, 1.0
    latest = False
    longest: float | None = None

    def __init__(self, network: Network, weights: Doubles, size: int) -> None:
        super().__init__(network, weights)
        self.estimates = np.zeros((self.n_roots, size))
        self.reported = np.zeros((len(weights), size))
        # What is needed of all devices at some times is added up exactly.
        tree = grow_tree(network.graph)
        self._tree = ServerSum(len(weights), tree).counted_on(self.ledger)

    def begin(
        self, local: Doubles, units: Scaling, participation: float, rng: np.random.Generator
    ) -> None:
        """Average first statistics (D, P)."""
        self.network.charge_setup(self.ledger, 0, ITEM)
        grow_tree(self.network.graph, self.ledger)
        self.reported = local.copy()
        self.estimates = self.collect(local)[1]
        self.join(local, units, participation, rng)

    def join(
        self, memories: Doubles, units: Scaling, participation: float, rng: np.random.Generator
    ) -> None:
        """Say who draws the devices that take part."""
        self.damping = self.longest or self.safe
        self.take_part(participation, rng)

    @property
    def statistic(self) -> Doubles:
        """Mean (P,) of the devices' estimates."""
        mean: Doubles = self.every(self.estimates).mean(axis=0)
        return mean

    @property
    def disagreement(self) -> float:
        """How far the farthest estimate is from their mean, of the size of that."""
        return disagreement(self.every(self.estimates))

    def gather(self, local: Doubles, smoothed: Doubles, step: float) -> None:
        """Let all know what has changed in the active devices' smoothed statistics (a, P).

        If the network is disconnected (PartitionedError), they send it when they next take part.
        """
        active = self.members.senders
        moves = np.zeros_like(self.reported)
        moves[active] = smoothed - self.reported[active]
        known = np.broadcast_to(self.estimates, self.reported.shape) / len(self.reported)
        self.estimates = self.add_up(known + self.weights[:, None] * moves)
        self.reported[active] = smoothed

    def sum_up(self, more: int = 2, wide: bool = False) -> None:
        """Count what is added up along a tree: estimates, moments of statistics, and more."""
        size = self.estimates.shape[1]
        for count in (self._tree.count, self._tree.broadcast):
            count(ITEM * (size + (0 if wide else size + size * (size + 1) // 2) + more))

    def add_formulas(self, size: int, sums: int, p: int) -> None:
        """Count sums of so many numbers along a tree, each at parameters (p,) of its root."""
        self._tree.count(ITEM * self.estimates.shape[1])  # of which the first are made
        for _ in range(sums):
            self._tree.broadcast(ITEM * p)
            self._tree.count(ITEM * size)

    def schema(self) -> dict[str, Schema]:
        return {
            "estimates": Array("f8", self.estimates.shape),
            "told": As(Array("f8", self.reported.shape), at="reported"),
            "sum": self.total,
        }


def keeper_of(
    network: Network | None,
    weights: Doubles,
    codec: Codec | None,
    feedback: str,
    pieces: tuple[slice, ...],
) -> SaemServer | SaemNeighbours:
    """Say who keeps the statistic, by the network: a server, or every device."""
    if network is None:
        return SaemServer(weights, codec, feedback, pieces)
    check_keeper(network, len(weights), codec, "SAEM", "device", "statistics")
    if network.total.at_server:
        return SaemServer(weights, codec, feedback, pieces, network)
    return SaemNeighbours(network, weights, pieces[-1].stop)
