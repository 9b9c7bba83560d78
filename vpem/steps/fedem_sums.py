"""How FedEM's statistic moves: at a server that keeps it, or at every worker on a graph."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem.engines.engine import about
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting
from vpem.idle import MASKED_ABSENT, MASKED_CODES
from vpem.network.codecs import Codec
from vpem.network.graph import make_graph
from vpem.network.ledger import Ledger
from vpem.network.schema import Schema, State
from vpem.steps.fedruns import FedRun
from vpem.sums.connect import Network
from vpem.sums.counted import AtServer, add_vectors
from vpem.sums.partial import Channel, Compressed, Memory, Partial
from vpem.sums.quantizer import ITEM, Quantizer
from vpem.sums.server import ServerSum
from vpem.sums.sum import Sum
from vpem.terms.reach import exponents_of

Vector = NDArray[np.float64]

ROOM = 2.0**8
"""Corrections may be so much larger than statistics are: they differ by memories and estimates."""


class _Keeping:
    """Who keeps a statistic, by a sum; all roots share one, if nothing else is said."""

    total: AtServer | Sum
    holders: Placement
    weights: Vector

    def take_bounds(self, bounds: Vector | None) -> None:
        """Take note of what no statistic (P,) is beyond, where that is known."""

    def add(self, values: Vector) -> Vector:
        """Average a vector a worker (n, P), zero of others', exactly: what all find (P,)."""
        found: Vector = self.holders.allreduce(self.weights @ values)
        return found

    def mean(self, received: Vector, own: Vector) -> Vector:
        """Average what a root has received of all workers (n, P), of which these are here."""
        return self.add(own)

    def agree(self) -> None:
        """Nothing is said of stopping: workers hear no more."""

    def every(self, values: Vector) -> Vector:
        """What all roots have, of what this process's do."""
        return values

    def others(self, worker: int) -> bool:
        """Whether a root lives in another process: none does, all share one."""
        return False

    def count(self, found: int) -> int:
        """What all roots counted, of what this process's did: they share one."""
        return found

    def state(self) -> State:
        """Return what the sum keeps from one iteration to the next."""
        return self.total.state()

    def schema(self) -> Schema:
        """Return what that must be."""
        return self.total.schema()

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        self.total.restore(state)


class Central(_Keeping):
    """A server keeps the statistic and the mean of the memories, as in the paper.

    Parameters
    ----------
    total : AtServer
        The sum at the server, counted and weighted.
    first, later : Quantizer
        How first statistics and corrections are sent.
    participation : float
        Probability that a worker is active.
    among : ndarray of int
        Workers that have rows.
    rng : Generator
        Draws active workers and the codec's keys.
    """

    total: AtServer
    n_roots = 1
    is_noisy = False

    def __init__(
        self,
        total: AtServer,
        first: Quantizer,
        later: Quantizer,
        participation: float,
        among: NDArray[np.intp],
        rng: np.random.Generator,
    ) -> None:
        assert total.weights is not None
        self.total, self.weights = total, total.weights
        self.holders = total.holders
        self.first = total if first.codec is None else Compressed(total, first, rng)
        inner = total if later.codec is None else Compressed(total, later, rng)
        self.workers = Partial(inner, participation, rng, among)

    def take_bounds(self, bounds: Vector | None) -> None:
        """Count numbers in units of powers of two that suit them, where sums are masked."""
        if bounds is not None and self.holders.masks is not None:
            self.total.exponents = exponents_of(ROOM * bounds, self.holders.n_agents)

    def add(self, values: Vector) -> Vector:
        """Average a vector a worker (n, P), zero of others', exactly: what all find (P,)."""
        if self.holders.masks is None:
            return super().add(values)
        self.holders.begin("check", 1)
        found: Vector = self.total.aggregate(values)[0]
        return found

    def mean(self, received: Vector, own: Vector) -> Vector:
        """Average what the server has received of all workers (n, P), since `keep` began."""
        if self.holders.masks is not None:
            return np.asarray(self.total.aggregate(own)[0])
        return np.asarray(self.first.aggregate(received)[0])

    def collect(self, values: Vector) -> tuple[Vector, Vector]:
        """Send a vector a worker (n, P) to the server, once: what it receives, and the mean (1, P).

        The mean is that of what was received, which each sender knows too.
        """
        received = self.keep(values)
        return received, self.first.aggregate(received)

    def keep(self, values: Vector) -> Vector:
        """First memories (n, P), as the server knows them."""
        self.holders.begin("setup", 1)
        self.total.charge_as("setup")
        received = self.first.send(values)
        self.total.charge_as("estep")
        return received

    def remember(self, run: FedRun) -> None:
        """Go on with the memories of a run, which are moved in place."""
        self.memory = Memory(self.workers, run.alpha, run.memories, run.memory[None])

    def draw(self, size: int) -> NDArray[np.intp]:
        """Draw the active workers, and send them the statistic of so many numbers."""
        self.workers.begin("estep", 1, size, ITEM)
        return self.workers.active

    def move(self, run: FedRun, local: Vector, step: float) -> Vector:
        """Move memories by the corrections of the active workers; the new statistic (1, P)."""
        found: Vector = run.statistics + step * self.memory.estimate(local, run.statistics)
        return found

    def finish(self, size: int) -> None:
        """Send all workers the last statistic."""
        self.total.broadcast(ITEM * size)

    def bytes_sent(self) -> tuple[int, int]:
        """Payload bytes sent by workers, and by all."""
        return self.total.bytes_up, self.total.bytes_sent


class Local(_Keeping):
    """Workers on a graph, each of whom keeps a statistic of its own.

    Worker i has ``x_i = S_i + step H_i``, ``H_i`` its memory plus its correction, and the network's
    sum gives each its estimate of the mean of them. That mean moves as the server's statistic does,
    and how far workers are apart is mixed away again in every iteration, so that errors of the
    rounds do not pile up. Corrections stay where they are: what is compressed are the rounds.

    Parameters
    ----------
    network : Network
        From `vpem.sums.connect.connect_workers`.
    weights : ndarray of shape (n,)
        What each worker weighs in a mean.
    ledger : Ledger
        Where messages are counted.
    participation, among, rng
        As for `Central`.
    """

    total: Sum

    def __init__(
        self,
        network: Network,
        weights: Vector,
        ledger: Ledger,
        participation: float,
        among: NDArray[np.intp],
        rng: np.random.Generator,
    ) -> None:
        self.weights = weights
        self.ledger = ledger
        self.total = network.total.on(ledger)
        self.holders = self.total.holders
        self.n_roots = network.whole.total.n_roots
        self._apart = self.holders.apart and self.n_roots > 1
        self.is_noisy = network.compress is not None or network.faults is not None
        stays = Channel(len(weights), lambda sizes, senders: None)
        self.workers = Partial(stays, participation, rng, among)

    def collect(self, values: Vector) -> tuple[Vector, Vector]:
        """Average a vector a worker (n, P): them, and what each root has (R, P)."""
        return values, self._average(values, "setup")

    def _average(self, values: Vector, kind: str = "estep") -> Vector:
        """Average a vector a worker (n, P), as each root finds it (R, P); zeros for others."""
        own = self.holders.own
        found = add_vectors(self.total, (self.weights[:, None] * values)[own], kind)
        if self._apart:
            found = self.holders.padded(found)
        shared: Vector = found[: self.n_roots]
        return shared

    def keep(self, values: Vector) -> Vector:
        """First memories (n, P): a worker's is its own, and nothing is sent."""
        return values

    def remember(self, run: FedRun) -> None:
        """Go on with the memories of a run, which are moved in place."""
        self.memory = Memory(self.workers, run.alpha, run.memories)

    def draw(self, size: int) -> NDArray[np.intp]:
        """Draw the active workers, each of whom has a statistic."""
        self.workers.draw()
        return self.workers.active

    def move(self, run: FedRun, local: Vector, step: float) -> Vector:
        """Move memories by the corrections of the active workers; the new statistics (R, P)."""
        active = self.workers.active
        statistics = np.broadcast_to(run.statistics, run.memories.shape)
        corrections = self.memory.differ(local, statistics[active])
        if not self._apart and self.holders.apart:
            own = np.isin(active, self.holders.own)
            corrections = np.where(own[:, None], corrections, 0.0)
        moves = run.memories.copy()
        moves[active] += corrections / self.workers.probability
        found = self._average(statistics + step * moves)
        self.memory.take(corrections)
        with about(self.holders.engine, "check"):
            run.memory[...] = self.holders.allreduce(self.weights @ run.memories)
        return found

    def finish(self, size: int) -> None:
        """Nothing is sent: every worker has the last statistic."""

    def agree(self) -> None:
        """Count how all agree whether to stop."""
        self.total.agree("stopping")

    def every(self, values: Vector) -> Vector:
        """What all roots have, of what this process's do."""
        if not self._apart:
            return values
        with about(self.holders.engine, "check"):
            return self.holders.allreduce(values, told=True)

    def others(self, worker: int) -> bool:
        """Whether a root lives in another process."""
        return self._apart and not self.holders.mine(worker)

    def count(self, found: int) -> int:
        """What all roots counted, of what this process's did."""
        if not self._apart:
            return found
        return int(self.holders.allreduce(np.array([found]), told=True)[0])

    def bytes_sent(self) -> tuple[int, int]:
        """Payload bytes sent by workers, twice: there are no others."""
        return self.ledger.bytes, self.ledger.bytes


def statistic_keeper(
    network: Network | None,
    ledger: Ledger | None,
    weights: Vector,
    first: Quantizer,
    later: Quantizer,
    participation: float,
    among: NDArray[np.intp],
    rng: np.random.Generator,
) -> Central | Local:
    """Say who keeps the statistic: by the network a server, the root of a tree, or every worker."""
    n = len(weights)
    if ledger is None:
        ledger = Ledger(make_graph("star", n) if network is None else network.graph)
    total: AtServer
    if network is None:
        total = ServerSum(n).on(ledger).weighted(weights)
        return Central(total, first, later, participation, among, rng)
    if isinstance(network.total, AtServer):
        check_masked(network, later.codec, participation)
        if network.graph.n_agents != n:
            raise InputError(
                f"the graph joins {network.graph.n_agents} agents, but there are {n} workers"
            )
        if network.compress is not None:
            raise InputError(
                "at a server FedEM compresses its corrections itself: give the codec to it, and a "
                "network without compress"
            )
        total = network.total.on(ledger).weighted(weights)
        return Central(total, first, later, participation, among, rng)
    if network.graph.n_agents != n or network.total.roots.n_agents not in (1, n):
        raise InputError(
            f"the graph joins {network.graph.n_agents} agents, but there are {n} workers; set "
            "it up by connect_workers, each a root of its own"
        )
    if later.codec is not None:
        raise InputError(
            "without a server workers send no corrections, but rounds of a sum: give ",
            Setting("compress"),
            " to connect_workers, not a codec to FedEM",
        )
    if network.faults is not None and network.faults.agent_dropout > 0:
        raise InputError(
            "a worker that drops out of FedEM is one that does not take part: give ",
            Setting("participation"),
            ", not ",
            Setting("agent_dropout"),
        )
    return Local(network, weights, ledger, participation, among, rng)


def check_masked(network: Network, codec: Codec | None, participation: float) -> None:
    """Raise InputError where sums cannot be masked, or would tell more than totals."""
    if network.agents.masks is None:
        return
    if codec is not None:
        raise InputError(Setting("secure_sum"), *MASKED_CODES)
    if participation < 1:
        raise InputError(Setting("secure_sum"), *MASKED_ABSENT)
