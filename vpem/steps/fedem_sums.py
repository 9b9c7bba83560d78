"""What FedEM works on and returns (the model's protocol, steps, history, run), and its sums.

The statistic moves at a server that keeps it (`StatisticKeeper`), or at every worker on a graph
(`NeighbourKeepers`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from vpem.checks import AnyArray, Doubles, Indices, least_participation, read_float
from vpem.engines.engine import set_topic
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting
from vpem.network.codecs import Codec
from vpem.network.graph import make_graph
from vpem.network.ledger import Ledger
from vpem.network.schema import As, Report, Stateful
from vpem.rules import MASKED_ABSENT, MASKED_CODES
from vpem.sums.connect import Network
from vpem.sums.counted import AtServer, add_vectors
from vpem.sums.partial import Presence, Uplink
from vpem.sums.quantizer import ITEM, Quantizer
from vpem.sums.server import ServerSum

FEW = 10
"""Iterations below which no share is judged."""

MOST = 0.5
"""Share of the later iterations that project something, beyond which nothing has converged."""

StepSize = Callable[[int], float]
"""The step of each iteration, which are counted from 1."""


class StatisticModel(Stateful, Protocol):
    """A latent variable model whose EM is a map of one statistic, a vector of P numbers.

    Expected statistics are linear in the rows, and an M-step that is given a convex combination of
    them is valid; what noise pushes outside of that set is projected and counted. Its state has
    what the next M-step depends on besides the statistic.
    """

    size: int
    """Numbers of a statistic, P."""
    pieces: tuple[slice, ...]
    """Parts of it that are quantized with a scale of their own; together they cover it in order."""
    counts: Indices
    """Rows (or observations) that each worker holds, (n,)."""
    bounds: Doubles | None
    """What no worker's statistic is beyond (P,), as all know: masked sums need it where numbers are
    beyond a million."""
    least_batch: int
    """Rows that have second moments which are not singular."""
    is_judged: bool
    """Whether the history may say how well it does: not where every statistic costs privacy."""

    @property
    def masses(self) -> AnyArray:
        """What they weigh, (n,)."""

    def draw(
        self, worker: int, count: int, rng: np.random.Generator, replace: bool = False
    ) -> Indices:
        """Draw some of a worker's rows, so that the mean of their statistics is unbiased.

        Each independently of the others with ``replace``.

        The stream goes on alike in processes that have none of the worker's rows.
        """

    def expect(self, worker: int, parameters: Any, rows: Indices | None) -> Doubles:
        """Mean expected statistic (P,) of some of a worker's rows, counted from 0 in it; None: all.

        It is never called for a worker without rows.
        """

    def maximize(self, statistic: Doubles, root: int = 0) -> tuple[Any, int]:
        """Parameters of a statistic (P,), and how many things had to be projected to be valid.

        Whose statistic it is counts where an M-step sets out from that root's last parameters: the
        server's is 0, and on a graph of n workers the mean of theirs is n.
        """

    def objective(self, parameters: Any) -> float:
        """What the history shows: a log-likelihood per sample, say. The larger the better."""

    def parameters_schema(self) -> As:
        """Parameters as arrays."""

    def traced(self, parameters: Any) -> Any:
        """Parameters as traces have them: a mixture, or arrays by name."""


def parse_step_size(text: str | float | StepSize) -> StepSize:
    """Parse step sizes: "constant:0.5", "decreasing:0.8,0.6", a number, or a function of k.

    The step of iteration k = 1, 2, ... is 0.5, or ``0.8 k^-0.6``, the power from 0 to 1
    (``decreasing:0.8`` is ``0.8 k^-0.5``). A number, as text too, is a constant. Raises InputError
    if there are no such steps, or they are not above 0 and at most 1.
    """
    if callable(text):
        return text
    kind, colon, rest = str(text).partition(":")
    if not colon and (read_float(kind) is not None or not isinstance(text, str)):
        kind, rest = "constant", kind
    if kind not in ("constant", "decreasing"):
        raise InputError(
            Setting("step_size"),
            f" must be like constant:0.5, 0.5 or decreasing:0.8,0.6, got {str(text)!r}",
        )
    words = rest.split(",")
    most = 1 if kind == "constant" else 2
    numbers = [number for number in map(read_float, words) if number is not None]
    if not len(numbers) == len(words) <= most or not 0 < numbers[0] <= 1:
        example = "constant:0.5" if kind == "constant" else "decreasing:0.8,0.6"
        raise InputError(
            f"a {kind} ",
            Setting("step_size"),
            f" is {'a number' if most == 1 else 'one or two numbers'}, the first above 0 and at "
            f"most 1, got {text!r}; try {example}",
        )
    if kind == "constant":
        return lambda iteration: numbers[0]
    power = numbers[1] if len(numbers) == 2 else 0.5
    if not 0 <= power <= 1:
        raise InputError(
            "the power of a decreasing ", Setting("step_size"),
            f" must be from 0 to 1, got {text!r}",
        )  # fmt: skip
    return lambda iteration: float(numbers[0] * iteration**-power)


@dataclass
class FedHistory:
    """What is known of the iterations that were recorded; 0 is the start."""

    iteration: list[int] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    """Conditional expectations computed, divided by the number of rows. The passes that record the
    objective and the mean field are no part of the algorithm and are not counted."""
    bytes_up: list[int] = field(default_factory=list)  # payload sent by workers
    bytes: list[int] = field(default_factory=list)  # all payload
    objective: list[float] = field(default_factory=list)  # `StatisticModel.objective`
    mean_field: list[float] = field(default_factory=list)
    """``||h||^2``, h the mean of the workers' full statistics minus the current one."""
    disagreement: list[float] = field(default_factory=list)
    """Largest distance of a worker's statistic from their mean, relative to it; 0 at a server."""


@dataclass(frozen=True)
class FedProgress:
    """What a callback gets after every iteration.

    ``objective`` and ``mean_field`` are None where they were not recorded. ``memories`` (n, P) and
    ``memory`` (P,) are the run's own arrays: to be read, not kept.
    """

    iteration: int
    epochs: float
    step: float
    n_active: int
    objective: float | None
    mean_field: float | None
    memories: Doubles
    memory: Doubles

    def facts(self) -> list[str] | None:
        """Say how the iteration went; None where it was not recorded."""
        if self.objective is None:
            return None
        return [f"penalized log-likelihood an entry {self.objective:.6f}"]


@dataclass
class FedRun:
    """One run of FedEM."""

    statistic: Doubles  # (P,) the last one; on a graph the mean over workers
    statistics: Doubles  # (R, P) as each root has it; R = 1 at a server
    parameters: Any  # of ``statistic``
    history: FedHistory
    memories: Doubles  # (n, P) ``V_i``
    memory: Doubles  # (P,) ``V``, the mean of them that the server keeps
    n_iter: int = 0
    epochs: float = 0.0  # conditional expectations computed, divided by the number of rows
    projections: int = 0  # of all M-steps
    converged: bool = False
    in_noise: bool = False  # converged since only noise, which stays, moved the statistic
    alpha: float = 0.0  # step of the memories
    omega: float = 0.0  # variance of the codec, relative to the message
    partitions: list[tuple[int, str]] = field(default_factory=list)
    """Iterations in which the network was disconnected, and how; nothing changed in them."""
    projected: list[int] = field(default_factory=list)  # iterations after which something was
    steps: Any = None  # `vpem.steps.fedem_steps.SafeSteps`
    settings: Any = None  # `vpem.settings.FedSettings`, with what was chosen of them

    def __setstate__(self, state: Report) -> None:
        """Become a copy, also one of before the settings of a run said what was chosen of them."""
        vars(self).update(state)
        said = vars(self.steps) if self.settings is None and self.steps else {}
        if "taken" in said:
            self.settings = SimpleNamespace(step_size=said["taken"], **said)

    @property
    def spoiled(self) -> bool:
        """Whether most of the later iterations led to statistics that no rows can have."""
        return self.n_iter >= FEW and self.projected_share > MOST

    def describe(self) -> Report:
        """Return what reports say of the iterations; ``history`` has the objectives."""
        history = self.history
        return {
            "partitions": [{"iteration": at, "reason": reason} for at, reason in self.partitions],
            "disagreement": history.disagreement[-1],
            "history": history.objective,
            "mean_field": history.mean_field,
            "epochs": history.epochs,
            "bytes_up": history.bytes_up,
        }

    @property
    def projected_share(self) -> float:
        """Share of the later half of the iterations after which something was projected."""
        half = self.n_iter // 2
        late = sum(iteration > half for iteration in self.projected)
        return late / (self.n_iter - half) if self.n_iter else 0.0


def weights_of(counts: Indices, masses: AnyArray, weighting: str) -> Doubles:
    """Weight in a mean of each worker (n,), by how many rows it has and what they weigh."""
    if weighting == "rows":
        share: Doubles = masses / masses.sum()
        return share
    if not counts.all():
        raise InputError(
            f"worker {int(np.argmin(counts))} holds no rows, so workers cannot count alike; take "
            "weighting rows"
        )
    return np.full(len(counts), 1.0 / len(counts))


class StatisticKeeper:
    """A server, or the root of a tree, keeps the mean statistic of members, and of their memories.

    ``weights`` (n,) are the members' shares of a mean; a network of None is a server's. Messages
    are counted in ``ledger``. Vectors of members that live in other processes are zero.
    """

    central = True
    n_roots = 1
    is_noisy = False
    members: Uplink
    """Who takes part, from `take_part` on."""
    _apart = False
    """Whether roots that have their own live in several processes."""

    def __init__(
        self, network: Network | None, weights: Doubles, ledger: Ledger | None = None
    ) -> None:
        n = len(weights)
        if ledger is None:
            ledger = Ledger(make_graph("star", n) if network is None else network.graph)
        self.network, self.weights, self.ledger = network, weights, ledger
        total: Any = ServerSum(n) if network is None else network.total
        total = total.server.weighted(weights) if total.at_server else total
        self.total = total.counted_on(ledger)
        self.holders: Placement = self.total.holders
        self._server: AtServer = self.total
        """To which members send, if there is one."""

    def take_part(
        self,
        participation: object,
        rng: np.random.Generator,
        quantizer: Quantizer | None = None,
        among: Indices | None = None,
        first: Quantizer | None = None,
        *,
        naive: bool = False,
    ) -> None:
        """Say who of the members sends, when (`Presence`), and how.

        ``first`` is how first statistics are sent; ``rng`` draws active members and codecs' keys.
        Where it is ``naive`` means are over those who are there.
        """
        names = [str(number) for number in range(len(self.weights))]
        presence = Presence.of(participation, names, self.weights if naive else None)
        self.first = Uplink(self._server, first, rng)
        self.members = Uplink(self._server, quantizer, rng, presence, among)

    def draw(self, size: int, iteration: int = 0) -> Indices:
        """Draw the active members, and send them the statistic of so many numbers."""
        self.members.iteration = iteration
        self.members.begin("estep", 1, size, ITEM)
        return self.members.senders

    # ---- what FedEM sends ------------------------------------------------------------------------

    def add(self, values: Doubles) -> Doubles:
        """Average a vector a member (n, P) exactly: what all find (P,)."""
        average: Doubles
        if self.holders.masks is None:
            average = self.holders.allreduce(self.weights @ values)
            return average
        self.holders.begin("check", 1)
        average = self.total.aggregate(values)[0]
        return average

    def mean(self, received: Doubles, local: Doubles) -> Doubles:
        """Average what the server has received of all (n, P), since `keep` began.

        ``local`` are those of members here.
        """
        if self.holders.masks is not None:
            return np.asarray(self.total.aggregate(local)[0])
        return np.asarray(self.first.aggregate(received)[0])

    def collect(self, values: Doubles) -> tuple[Doubles, Doubles]:
        """Send a vector a member (n, P) to the server, once: what it receives, and the mean (1, P).

        The mean is that of what was received, which each sender knows too.
        """
        received = self.keep(values)
        return received, self.first.aggregate(received)

    def keep(self, values: Doubles) -> Doubles:
        """First memories (n, P), as the server knows them."""
        self.holders.begin("setup", 1)
        self.total.charge_as("setup")
        received = self.first.send(values)
        self.total.charge_as("estep")
        return received

    def remember(self, run: FedRun) -> None:
        """Begin with the memories of a run, which are moved in place."""
        self.members.remember(run.alpha, run.memories, run.memory[None])

    def move(self, run: FedRun, local: Doubles, step: float) -> Doubles:
        """Move memories by the corrections of the active members; the new statistics (R, P)."""
        moved: Doubles = run.statistics + step * self.members.estimate(local, run.statistics)
        return moved

    # ---- what roots have -------------------------------------------------------------------------

    def every(self, values: Doubles) -> Doubles:
        """Values of all roots, given this process's."""
        return self.holders.allreduce(values, announced=True) if self._apart else values

    def others(self, member: int) -> bool:
        """Whether a root lives in another process."""
        return self._apart and not self.holders.mine(member)


class NeighbourKeepers(StatisticKeeper):
    """Members on a graph, each of which keeps a statistic of its own.

    Member i has ``x_i = S_i + step H_i``, ``H_i`` its memory plus its correction, and the network's
    sum gives each its estimate of the mean of them. That mean moves as the server's statistic does,
    and how far members are apart is mixed away again in every iteration, so that errors of the
    rounds do not pile up. Corrections stay where they are: what is compressed are the rounds.
    """

    network: Network
    central = False

    def __init__(self, network: Network, weights: Doubles, ledger: Ledger | None = None) -> None:
        super().__init__(network, weights, ledger)
        self.n_roots = network.whole.total.n_roots
        self._apart = self.holders.apart and self.n_roots > 1
        self.is_noisy = network.compress is not None or network.faults is not None
        self._server = ServerSum(len(weights))  # vectors stay where they are

    def draw(self, size: int, iteration: int = 0) -> Indices:
        """Draw the active members; each has a statistic."""
        self.members.iteration = iteration
        self.members.draw()
        return self.members.senders

    def add_up(self, values: Doubles, kind: str = "estep") -> Doubles:
        """Sum a vector a member (n, P), as each root finds it (R, P); zeros for others."""
        sums = add_vectors(self.total, values[self.holders.own], kind)
        shared: Doubles = self.holders.padded(sums) if self._apart else sums
        return shared[: self.n_roots]

    def mean(self, received: Doubles, local: Doubles) -> Doubles:
        return self.add(local)

    def collect(self, values: Doubles) -> tuple[Doubles, Doubles]:
        """Average a vector a member (n, P): them, and what each root has (R, P)."""
        return values, self.add_up(self.weights[:, None] * values, "setup")

    def keep(self, values: Doubles) -> Doubles:
        """First memories (n, P): a member's is its own, and nothing is sent."""
        return values

    def move(self, run: FedRun, local: Doubles, step: float) -> Doubles:
        active = self.members.senders
        statistics = np.broadcast_to(run.statistics, run.memories.shape)
        corrections = self.members.differ(local, statistics[active])
        if not self._apart and self.holders.apart:
            is_local = np.isin(active, self.holders.own)
            corrections = np.where(is_local[:, None], corrections, 0.0)
        moves = run.memories.copy()
        chance = self.members.chance
        moves[active] += corrections / (chance if isinstance(chance, float) else chance[:, None])
        moved = self.add_up(self.weights[:, None] * (statistics + step * moves))
        self.members.add_received(corrections)
        with set_topic(self.holders.engine, "check"):
            run.memory[...] = self.holders.allreduce(self.weights @ run.memories)
        return moved


def disagreement(statistics: Doubles) -> float:
    """Largest distance of a statistic (R, P) from their mean, relative to it; 0 of one."""
    mean = statistics.mean(axis=0)
    apart = np.sqrt(((statistics - mean) ** 2).sum(axis=1).max())
    return float(apart / max(np.sqrt((mean**2).sum()), np.finfo(float).tiny))


def check_keeper(
    network: Network, n: int, codec: Codec | None, algorithm: str, member: str, sent: str
) -> None:
    """Raise InputError where a network is not one of n members, or what they send is unclear."""
    if network.graph.n_agents != n:
        raise InputError(
            f"the graph joins {network.graph.n_agents} agents, but there are {n} {member}s"
        )
    if network.total.at_server:
        if network.compress is not None:
            raise InputError(
                f"at a server {algorithm} compresses {sent} itself: give the codec to it, and a "
                "network without compress"
            )
        return
    if codec is not None:
        raise InputError(
            f"without a server {member}s send no {sent.split()[-1]}, but rounds of a sum: give ",
            Setting("compress"), f" to connect_workers, not a codec to {algorithm}",
        )  # fmt: skip
    if network.dropout:
        raise InputError(
            f"a {member} that drops out of {algorithm} is one that does not take part: give ",
            Setting("participation"), ", not ", Setting("agent_dropout"),
        )  # fmt: skip


def check_masked(network: Network, codec: Codec | None, participation: object) -> None:
    """Raise InputError where sums cannot be masked, or would reveal more than totals."""
    if network.agents.masks is None:
        return
    if codec is not None:
        raise InputError(Setting("secure_sum"), *MASKED_CODES)
    if least_participation(participation) < 1:
        raise InputError(Setting("secure_sum"), *MASKED_ABSENT)
