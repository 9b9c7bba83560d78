"""How the corrections of FedEM's workers reach whoever keeps the statistic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vpem.engines.crew import Crew
from vpem.errors import InputError, Setting
from vpem.network.codecs import Codec, draw_keys
from vpem.network.ledger import Ledger
from vpem.network.schema import Schema
from vpem.network.topologies import make_graph
from vpem.sums.connect import Network
from vpem.sums.counted import add_vectors

if TYPE_CHECKING:
    from vpem.steps.fedruns import FedRun

__all__ = ["AtServer", "Basis", "Between", "Quantizer"]

Vector = NDArray[np.float64]

ITEM = 8
"""Bytes of a number that is sent exactly."""

ROUNDING = 1e-6
"""Variance of a codec below which its bias is but rounding: casts to float16 and float32."""


class Basis(Protocol):
    """Units in which one scale fits a whole vector; both ways are linear."""

    def into(self, statistics: Vector) -> Vector:
        """Vectors (m, P) in these units."""

    def back(self, statistics: Vector) -> Vector:
        """Vectors (m, P) as they were."""


class Quantizer:
    """Compresses vectors piece by piece, so that each piece has scales of its own.

    Parameters
    ----------
    codec : Codec or None
        None sends numbers as they are, 8 bytes each.
    pieces : sequence of slice
        Parts of a vector, which together cover it in order.
    n_threads : int
        Threads of the codec.
    basis : Basis, optional
        Units in which vectors are compressed, as one piece. What is sent exactly does not need it.

    Attributes
    ----------
    omega : float
        Bound of ``E|Q(v) - v|^2 / |v|^2``: the largest of the pieces.
    biased : bool
        Whether the mean of what is received is something else than what was sent.
    """

    def __init__(
        self,
        codec: Codec | None,
        pieces: tuple[slice, ...],
        n_threads: int = 1,
        basis: Basis | None = None,
    ) -> None:
        self.codec = codec
        self.pieces = pieces if basis is None else (slice(0, pieces[-1].stop),)
        self.basis = basis
        self.n_threads = n_threads
        self.name = "float64" if codec is None else codec.name
        self.omega = 0.0
        self.biased = False
        if codec is not None:
            widths = [piece.stop - piece.start for piece in self.pieces]
            self.omega = max((float(codec.variance(width)) for width in widths), default=0.0)
            self.biased = not codec.is_unbiased and self.omega > ROUNDING

    def send(
        self, values: Vector, rng: np.random.Generator, here: NDArray[np.bool_] | None = None
    ) -> tuple[Vector, NDArray[np.int64]]:
        """Return what is received of a message a row (a, P), and the bytes of each.

        With ``here`` other rows are of senders elsewhere: keys are drawn for them, and what is
        received of them and their bytes are zero.
        """
        if self.codec is None:
            received = values if here is None else np.where(here[:, None], values, 0.0)
            return received, np.full(len(values), ITEM * values.shape[1], dtype=np.int64)
        if here is None:
            here = np.ones(len(values), dtype=np.bool_)
        values = values[here]
        basis = None if self.codec.is_unbiased and self.omega == 0 else self.basis
        if basis is not None:
            values = basis.into(values)
        received = np.empty_like(values)
        sizes = np.zeros(len(here), dtype=np.int64)
        for piece in self.pieces:
            keys = draw_keys(rng, len(here))[here]
            if len(values):
                part = np.ascontiguousarray(values[:, piece])
                received[:, piece], bytes_of_piece = self.codec.transmit(part, keys, self.n_threads)
                sizes[here] += bytes_of_piece
        if basis is not None and len(values):
            received = basis.back(received)
        if here.all():
            return received, sizes
        every = np.zeros((len(here), values.shape[1]))
        every[here] = received
        return every, sizes


class AtServer:
    """A server keeps the statistic and the mean of the memories, as in the paper.

    Parameters
    ----------
    weights : ndarray of shape (n,)
        What each worker weighs in a mean.
    quantizer : Quantizer
        How corrections are sent.
    alpha : float
        Step of the memories.
    participation : float
        Probability that a worker is active.
    network : Network or None
        A star, or None.
    ledger : Ledger or None
        Where messages are counted.
    first : Quantizer or None
        How first statistics are sent; None: exactly.
    """

    n_roots = 1

    def __init__(
        self,
        weights: Vector,
        quantizer: Quantizer,
        alpha: float,
        participation: float,
        network: Network | None,
        ledger: Ledger | None,
        first: Quantizer | None = None,
    ) -> None:
        self.weights = weights
        self.quantizer = quantizer
        self.first = Quantizer(None, quantizer.pieces) if first is None else first
        self.alpha = alpha
        self.participation = participation
        n = len(weights)
        if network is not None and network.graph.n_agents != n:
            raise InputError(
                f"the graph joins {network.graph.n_agents} agents, but there are {n} workers"
            )
        if network is not None and network.compress is not None:
            raise InputError(
                "at a server FedEM compresses its corrections itself: give the codec to it, and a "
                "network without compress"
            )
        if ledger is None:
            ledger = Ledger(make_graph("star", n) if network is None else network.graph)
        self.ledger = ledger
        server = ledger.n_nodes - 1
        self.crew = Crew() if network is None else network.total.crew
        # Of ranks: it knows what was handed over.
        self._total = network.total if network is not None and self.crew.apart else None
        self._here: NDArray[np.bool_] | None = None
        if self.crew.apart:
            self._here = np.zeros(n, dtype=np.bool_)
            self._here[list(self.crew.own(n))] = True
        self._alone = n <= 1
        self._up = ledger.targets == server
        self._up_of = np.flatnonzero(self._up)
        self._down_of = np.flatnonzero(ledger.sources == server)

    def collect(self, values: Vector, rng: np.random.Generator) -> tuple[Vector, Vector]:
        """Send a vector a worker (n, P) to the server, once: what it receives, and the mean (1, P).

        The mean is that of what was received, which each sender knows too.
        """
        received, sizes = self._send(self.first, values, rng, np.arange(len(values)))
        if not self._alone:
            self.ledger.send("setup", sizes, links=self._up_of, rounds=1)
        return received, self.crew.add((self.weights @ received)[None])

    def _send(
        self,
        quantizer: Quantizer,
        values: Vector,
        rng: np.random.Generator,
        workers: NDArray[np.intp],
    ) -> tuple[Vector, NDArray[np.int64]]:
        """Send a vector of each of some workers: what is received here, and the bytes of all."""
        if self._here is None:
            return quantizer.send(values, rng)
        received, sizes = quantizer.send(values, rng, self._here[workers])
        return received, sizes if quantizer.codec is None else self.crew.add(sizes)

    def every(self, values: Vector) -> Vector:
        """What all roots have, of what this process's do."""
        return values

    def others(self, worker: int) -> bool:
        """Whether a root lives in another process: none does, all share one."""
        return False

    def count(self, found: int) -> int:
        """What all roots counted, of what this process's did: they share one."""
        return found

    def keep(self, values: Vector, rng: np.random.Generator) -> Vector:
        """First memories (n, P), as the server knows them."""
        return self.collect(values, rng)[0]

    def announce(self, active: NDArray[np.intp] | None, size: int) -> None:
        """Count how the server sends its statistic to some workers; None: all."""
        links = self._down_of if active is None else self._down_of[active]
        if not self._alone and len(links):
            self.ledger.send("server", ITEM * size, links=links, rounds=1)

    def correct(
        self,
        run: FedRun,
        local: Vector,
        active: NDArray[np.intp],
        step: float,
        rng: np.random.Generator,
    ) -> Vector:
        """Move memories by the corrections of the active workers; the new statistic (1, P)."""
        corrections = local - run.memories[active] - run.statistics
        received, sizes = self._send(self.quantizer, corrections, rng, active)
        if not self._alone and len(active):
            self.ledger.send("server", sizes, links=self._up_of[active], rounds=1)
        total = self.crew.add(self.weights[active] @ received)
        # Error feedback of a biased codec takes the memories as they will be.
        share = 1.0 if self.quantizer.biased else 1.0 / self.participation
        found: Vector = run.statistics + step * (run.memory + share * total)
        run.memories[active] += self.alpha * received
        run.memory += self.alpha * total
        return found

    def agree(self) -> None:
        """Nothing is said of stopping: workers hear no more."""

    def state(self) -> dict[str, Any]:
        """Return what is kept from one iteration to the next: on ranks, what was handed over."""
        return {} if self._total is None else self._total.state()

    def schema(self) -> Schema:
        """Return what that must be."""
        return {} if self._total is None else self._total.schema()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what was kept."""
        if self._total is not None:
            self._total.restore(state)

    def bytes_sent(self) -> tuple[int, int]:
        """Payload bytes sent by workers, and by all."""
        _, sizes = self.ledger.of_links()
        return int(sizes[self._up].sum()), int(sizes.sum())


class Between:
    """Workers on a graph, each of whom keeps a statistic of its own.

    Worker i has ``x_i = S_i + step H_i``, ``H_i`` its memory plus its correction, and the network's
    sum gives each its estimate of the mean of them. That mean moves as the server's statistic does,
    and how far workers are apart is mixed away again in every iteration, so that errors of the
    rounds do not pile up. Corrections stay where they are: what is compressed are the rounds.

    Parameters
    ----------
    weights, quantizer, alpha, participation, ledger
        As for `AtServer`; the quantizer must be exact.
    network : Network
        From `vpem.sums.connect.connect_workers`.
    """

    def __init__(
        self,
        weights: Vector,
        quantizer: Quantizer,
        alpha: float,
        participation: float,
        network: Network,
        ledger: Ledger | None,
    ) -> None:
        n = len(weights)
        if network.graph.n_agents != n or network.total.n_roots_of_all not in (1, n):
            raise InputError(
                f"the graph joins {network.graph.n_agents} agents, but there are {n} workers; set "
                "it up by connect_workers, each a root of its own"
            )
        if quantizer.codec is not None:
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
        self.weights = weights
        self.quantizer = quantizer
        self.alpha = alpha
        self.participation = participation
        self.ledger = Ledger(network.graph) if ledger is None else ledger
        self.total = network.total.on(self.ledger)
        self.crew = self.total.crew
        self.n_roots = int(self.crew.whole(network).total.n_roots)
        self._apart = self.crew.apart and self.n_roots > 1
        self.is_noisy = network.compress is not None or network.faults is not None

    def collect(self, values: Vector, rng: np.random.Generator) -> tuple[Vector, Vector]:
        """Average a vector a worker (n, P), uncompressed: them, and what each root has (R, P)."""
        return values, self._average(values, "setup")

    def _average(self, values: Vector, kind: str = "estep") -> Vector:
        """Average a vector a worker (n, P), as each root finds it (R, P); zeros for others."""
        own = list(self.crew.own(len(values)))
        found = add_vectors(self.total, (self.weights[:, None] * values)[own], kind)
        if self._apart:
            found = self.crew.place(found, len(values))
        shared: Vector = found[: self.n_roots]
        return shared

    def every(self, values: Vector) -> Vector:
        """What all roots have, of what this process's do."""
        return self.crew.add(values) if self._apart else values

    def others(self, worker: int) -> bool:
        """Whether a root lives in another process."""
        return self._apart and worker not in self.crew.own(len(self.weights))

    def count(self, found: int) -> int:
        """What all roots counted, of what this process's did."""
        return int(self.crew.add(np.array([found]))[0]) if self._apart else found

    def keep(self, values: Vector, rng: np.random.Generator) -> Vector:
        """First memories (n, P): a worker's is its own, and nothing is sent."""
        return values

    def announce(self, active: NDArray[np.intp] | None, size: int) -> None:
        """Nothing is sent: every worker has a statistic."""

    def correct(
        self,
        run: FedRun,
        local: Vector,
        active: NDArray[np.intp],
        step: float,
        rng: np.random.Generator,
    ) -> Vector:
        """Move memories by the corrections of the active workers; the new statistics (R, P)."""
        statistics = np.broadcast_to(run.statistics, run.memories.shape)
        corrections = local - run.memories[active] - statistics[active]
        if not self._apart and self.crew.apart:
            own = np.isin(active, list(self.crew.own(len(self.weights))))
            corrections = np.where(own[:, None], corrections, 0.0)
        moves = run.memories.copy()
        moves[active] += corrections / self.participation
        found = self._average(statistics + step * moves)
        run.memories[active] += self.alpha * corrections
        run.memory = self.crew.add(self.weights @ run.memories)
        return found

    def agree(self) -> None:
        """Count how all agree whether to stop."""
        self.total.agree("stopping")

    def state(self) -> dict[str, Any]:
        """Return what the sum keeps from one iteration to the next."""
        found: dict[str, Any] = self.total.state()
        return found

    def schema(self) -> Schema:
        """Return what that must be."""
        found: Schema = self.total.schema()
        return found

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what was kept."""
        self.total.restore(state)

    def bytes_sent(self) -> tuple[int, int]:
        """Payload bytes sent by workers, twice: there are no others."""
        return self.ledger.bytes, self.ledger.bytes
