"""What FedEM works on and what it leaves behind: the model's protocol, steps, history, result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vpem.checks import read_float
from vpem.errors import InputError, Setting
from vpem.network.schema import Schema, State

Vector = NDArray[np.float64]

FEW = 10
"""Iterations of which no share is told."""

MOST = 0.5
"""Share of the later iterations that project something, beyond which nothing has converged."""

StepSize = Callable[[int], float]
"""The step of each iteration, which are counted from 1."""


class StatisticModel(Protocol):
    """A latent variable model whose EM is a map of one statistic, a vector of P numbers.

    A model may have ``bounds`` (P,), which no worker's statistic is beyond and all know: masked
    sums need them where numbers are beyond a million; and a ``least_batch``, rows of which there
    must be so many for second moments that are not singular.
    Expected statistics are linear in the rows, and an M-step that is given a convex combination of
    them is valid; what noise pushes outside of that set is projected and counted.
    """

    size: int
    """Numbers of a statistic, P."""
    pieces: tuple[slice, ...]
    """Parts of it that are quantized with a scale of their own; together they cover it in order."""
    counts: NDArray[np.intp]
    """Rows (or observations) that each worker holds, (n,)."""

    @property
    def masses(self) -> NDArray[Any]:
        """What they weigh, (n,)."""

    def draw(self, worker: int, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
        """Draw some of a worker's rows, so that the mean of their statistics is unbiased.

        The stream goes on alike in processes that have none of the worker's rows.
        """

    def expect(
        self, worker: int, parameters: Any, rows: NDArray[np.intp] | None
    ) -> NDArray[np.float64]:
        """Mean expected statistic (P,) of some of a worker's rows, counted from 0 in it; None: all.

        A worker without rows is never asked.
        """

    def maximize(self, statistic: NDArray[np.float64], root: int = 0) -> tuple[Any, int]:
        """Parameters of a statistic (P,), and how many things had to be projected to be valid.

        Whose statistic it is counts where an M-step sets out from that root's last parameters: the
        server's is 0, and on a graph of n workers the mean of theirs is n.
        """

    def objective(self, parameters: Any) -> float:
        """What the history shows: a log-likelihood per sample, say. The larger the better."""

    # For checkpoints.

    def pack(self, parameters: Any) -> State:
        """Parameters as arrays."""

    def packed(self) -> Schema:
        """What these must be."""

    def unpack(self, state: State) -> Any:
        """Parameters of these arrays."""

    def state(self) -> State:
        """What the next M-step depends on besides its statistic."""

    def schema(self) -> Schema:
        """What that must be."""

    def restore(self, state: State) -> None:
        """Go on from there."""


def parse_step_size(text: str | float | StepSize) -> StepSize:
    """Make step sizes of their name.

    Parameters
    ----------
    text : str, float or callable
        ``constant:0.5``; ``decreasing:0.8,0.6``, which is ``0.8 k^-0.6`` in iteration k, the power
        from 0 to 1 (``decreasing:0.8`` is ``0.8 k^-0.5``); a number, as text too, which is a
        constant; or a function of k.

    Returns
    -------
    callable
        The step of iteration k = 1, 2, ...

    Raises
    ------
    InputError
        If there are no such steps, or they are not above 0 and at most 1.
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
    """What is known of some iterations, those that were recorded; 0 is the start.

    Attributes
    ----------
    iteration : list of int
        Which ones.
    epochs : list of float
        Conditional expectations computed, divided by the number of rows. The passes that record
        the objective and the mean field are no part of the algorithm and are not counted.
    bytes_up : list of int
        Payload bytes sent by workers: to the server, or to each other.
    bytes : list of int
        All payload bytes.
    objective : list of float
        `StatisticModel.objective` of the current parameters.
    mean_field : list of float
        ``||h||^2``, h the mean of the workers' full statistics minus the current one.
    disagreement : list of float
        Largest distance of a worker's statistic from their mean, relative to it; 0 at a server.
    """

    iteration: list[int] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    bytes_up: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    objective: list[float] = field(default_factory=list)
    mean_field: list[float] = field(default_factory=list)
    disagreement: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class FedProgress:
    """What a callback is told after every iteration.

    ``objective`` and ``mean_field`` are None where they were not recorded. ``memories`` (n, P) and
    ``memory`` (P,) are the run's own arrays: to be read, not kept.
    """

    iteration: int
    epochs: float
    step: float
    n_active: int
    objective: float | None
    mean_field: float | None
    memories: Vector
    memory: Vector


@dataclass
class FedRun:
    """One run of FedEM.

    Attributes
    ----------
    statistic : ndarray of shape (P,)
        The last one; on a graph the mean over workers.
    statistics : ndarray of shape (R, P)
        As each root has it; R = 1 at a server.
    parameters
        Of ``statistic``.
    history : FedHistory
        Objective, mean field, epochs and bytes.
    memories : ndarray of shape (n, P)
        ``V_i``.
    memory : ndarray of shape (P,)
        ``V``, the mean of them that the server keeps.
    n_iter : int
        Iterations.
    epochs : float
        Conditional expectations computed, divided by the number of rows.
    projections : int
        What was projected in all M-steps.
    converged : bool
        Whether the run came to rest.
    in_noise : bool
        Whether that is since noise, which stays, was all that moved the statistic.
    alpha : float
        Step of the memories.
    omega : float
        Variance of the codec, relative to the message.
    projected : list of int
        Iterations after which something was projected.
    partitions : list of (int, str)
        Iterations in which the network fell apart, and how; nothing changed in them.
    steps : SafeSteps or None
        Which steps noise allows, and which were taken (`vpem.steps.safe_steps.SafeSteps`).
    """

    statistic: Vector
    statistics: Vector
    parameters: Any
    history: FedHistory
    memories: Vector
    memory: Vector
    n_iter: int = 0
    epochs: float = 0.0
    projections: int = 0
    converged: bool = False
    in_noise: bool = False
    alpha: float = 0.0
    omega: float = 0.0
    partitions: list[tuple[int, str]] = field(default_factory=list)
    projected: list[int] = field(default_factory=list)
    steps: Any = None

    @property
    def spoiled(self) -> bool:
        """Whether most of the later iterations asked for what no rows can have."""
        return self.n_iter >= FEW and self.projected_share > MOST

    @property
    def projected_share(self) -> float:
        """Share of the iterations of the later half after which something was projected."""
        half = self.n_iter // 2
        late = sum(iteration > half for iteration in self.projected)
        return late / (self.n_iter - half) if self.n_iter else 0.0


def weights_of(model: StatisticModel, weighting: str) -> Vector:
    """What each worker weighs in a mean (n,)."""
    if weighting == "rows":
        share: Vector = model.masses / model.masses.sum()
        return share
    counts = model.counts
    if not counts.all():
        raise InputError(
            f"worker {int(np.argmin(counts))} holds no rows, so workers cannot count alike; take "
            "weighting rows"
        )
    return np.full(len(counts), 1.0 / len(counts))
