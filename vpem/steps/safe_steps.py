"""Steps of FedEM that noise does not outgrow, their batches, and how many are enough.

Theorems 1 to 3 of Dieuleveut et al. 2021 bound steps by constants that nobody knows: of the
expected statistics and of the Lyapunov function (`theorem_step` has 1 for all of them). What is
taken deviates in two ways. Steps do not grow with the number of workers (`step_ceiling`), since
what only one worker has seen is averaged over nobody; and batches, and loops of variance reduction,
do not follow the codec (`batches_of`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.errors import Setting, VpemWarning
from vpem.steps.fedruns import StepSize, parse_step_size

if TYPE_CHECKING:
    from vpem.settings import FedSettings
    from vpem.sums.quantizer import Quantizer


WHOLE_STEPS = 1000
"""Whole steps of EM, of length 1, that the default of ``max_iter`` is worth."""

MOST_ITERATIONS = 20_000
"""The largest default of ``max_iter``, however short the steps."""

LEAST = 1e-4
"""The shortest safe step."""


def noise_of(quantizer: Quantizer) -> float:
    """Return the omega of what is sent: of error feedback that of noise which keeps as much."""
    omega = quantizer.omega
    return omega / (1.0 - omega) if quantizer.biased else omega


def step_ceiling(omega: float, participation: float, alpha: float | None = None) -> float:
    """Find the longest step that noise does not outgrow.

    Take a number of the statistic that one worker alone has seen, and which follows the statistic
    fully: workers unlike each other can come to that, and noise is averaged over nobody. With x the
    distance yet to go and w that of what the worker sends, an iteration is ``x += step (N - x)``
    and ``w -= alpha M - step (N - x)``. M is w with noise of variance ``omega w^2``, with
    probability p, else 0; and ``N = w - M / p``, of variance ``omega_p w^2``, ``omega_p = (1 +
    omega) / p - 1`` (Dieuleveut et al. 2021, theorem 3). Second moments of (x, w) fall for steps
    below the ceiling. Their theorems have unknown constants in its place: how much workers average
    out depends on how alike they are, between not at all and all of it.

    Omega is the codec's (`noise_of`), p the probability that a worker takes part, alpha the step of
    the memories: 0 without any, ``1 / (1 + omega)`` by default. The ceiling is at most 2, where
    there is no noise, and 0 where memories never settle.
    """
    certain = participation / (1.0 + omega)
    if certain == 1.0 or alpha == 0.0:
        return 2.0 * certain
    step = 1.0 / (1.0 + omega) if alpha is None else alpha
    low, high = 0.0, 2.0
    for _ in range(40):
        middle = (low + high) / 2
        if _growth(middle, certain, step * participation) < 1:
            low = middle
        else:
            high = middle
    return low


def _growth(step: float, certain: float, taken: float) -> float:
    """Largest eigenvalue of what an iteration makes of the mean x^2, x w and w^2."""
    omega, rest = 1 / certain - 1, 1 - step
    moments = [
        [rest**2, 0.0, step**2 * omega],
        [-step * rest, rest * (1 - taken), step * (step + taken) * omega],
        [step**2, -2 * step * (1 - taken), (1 - taken) ** 2 + (step + taken) ** 2 * omega],
    ]
    return float(np.abs(np.linalg.eigvals(np.array(moments))).max())


def safe_step(
    omega: float, participation: float, alpha: float | None = None, reduced: bool = False
) -> float:
    """Choose half the ceiling, at which second moments fall about as fast as they can; at most 1.

    With ``t = p / (1 + omega)`` that is 0.3 t for small t, 0.46 t at t = 1/2, and EM's 1 at t = 1.
    With variance reduction (``reduced``) it is at most t / 3: that is theorem 2's where there is no
    codec. Where rows of which each has numbers of its own are drawn, p is the chance that both
    worker and row are.
    """
    most = participation / (1.0 + omega) / 3 if reduced else 1.0
    return max(min(step_ceiling(omega, participation, alpha) / 2, most), LEAST)


def theorem_step(
    omega: float, participation: float, n_workers: int, reduced: bool = False
) -> float:
    """Step that theorem 3 allows, or that theorem 2 takes (``reduced``), all constants being 1.

    With ``omega_p = (1 + omega) / p - 1`` it is ``p sqrt(n) / (2 sqrt(2) (1 + omega)
    sqrt(omega_p))`` and at most 1/2 (theorem 1 for p = 1); and ``1 / (1 + 4 sqrt(2) (1 + omega)
    sqrt((omega + (1 + 10 omega) / 8) / n))``, of which the theorem has all workers take part.
    """
    if reduced:
        spread = (omega + (1 + 10 * omega) / 8) / n_workers
        return 1 / (1 + 4 * sqrt(2.0) * (1 + omega) * sqrt(spread))
    noise = (1 + omega) / participation - 1
    if noise == 0:
        return 0.5
    return min(0.5, participation * sqrt(n_workers / (8 * noise)) / (1 + omega))


def batches_of(
    held: float,
    omega: float,
    participation: float,
    batch_size: int | None,
    inner: int | None,
    least: int = 1,
) -> tuple[int | None, int | None]:
    """Choose batches and outer loops of variance reduction, where they are not given.

    A worker of m rows computes m in an outer loop and 2 b in each of its other iterations: for
    ``b = sqrt(m / 2)`` in loops of ``k = m / (2 b p)`` as much in both. Theorem 2 of Dieuleveut et
    al. 2021 asks for ``b >= k / (1 + omega)^2`` and lets loops become longer, and batches smaller,
    the coarser a codec is, with steps that fall by another ``sqrt(1 + omega)``. Steps are longer
    here and so loops are not: a codec's noise is of what batches have got wrong too.

    A batch has at least so many rows as second moments need that are not singular (``least``):
    with fewer, noise leads to other optima than EM. All rows are taken (None) where they are no
    more than the 2 b that a batch computes: that is FedEM.
    """
    if batch_size is None:
        loops = 0.0 if inner is None else inner * (participation / (1.0 + omega)) ** 2
        batch_size = ceil(max(sqrt(held / 2), loops, least))
        if inner is None and 2 * batch_size >= held:
            return None, None
    if inner is None:
        inner = max(2, ceil(held / (2 * batch_size * participation)))
    return batch_size, inner


@dataclass(frozen=True)
class SafeSteps:
    """Which steps noise allows a run, and which it takes.

    Attributes
    ----------
    ceiling, safe, theorem : float
        The longest step that noise does not outgrow, the default, and that of `theorem_step`.
    taken : str, float or callable
        What the run takes, as `vpem.steps.fedruns.parse_step_size` takes it.
    batch_size, inner : int or None
        Batches and outer loops.
    max_iter : int
        Most iterations.
    """

    ceiling: float
    safe: float
    theorem: float
    taken: str | float | StepSize
    batch_size: int | None
    inner: int | None
    max_iter: int

    @classmethod
    def of(
        cls,
        how: FedSettings,
        alpha: float,
        quantizer: Quantizer,
        rows: NDArray[np.intp],
        least: int,
        stays: bool,
    ) -> SafeSteps:
        """Choose what settings leave open, and warn of long steps.

        Workers have so many ``rows`` (n,), a batch so many at least (`batches_of`); ``stays`` says
        whether noise remains however long the run goes on.
        """
        held = float(rows.mean())
        omega, p = noise_of(quantizer), how.participation
        memory_step = None if quantizer.biased else alpha
        batch_size, inner = how.batch_size, how.inner
        if how.variance_reduction:
            batch_size, inner = batches_of(held, omega, p, batch_size, inner, least)
        drawn = 1.0 if batch_size is None else min(1.0, batch_size / held)
        reduced = how.variance_reduction and drawn < 1
        chance = p if how.variance_reduction else p * drawn
        ceiling = step_ceiling(omega, p, memory_step)
        safe = safe_step(omega, chance, memory_step, reduced)
        theorem = theorem_step(omega, p, len(rows), reduced)
        auto = isinstance(how.step_size, str) and how.step_size == "auto"
        taken = f"constant:{safe:g}" if auto else how.step_size
        enough = enough_iterations(taken, stays) if how.max_iter is None else how.max_iter
        made = cls(ceiling, safe, theorem, taken, batch_size, inner, enough)
        made._warn(omega, p, alpha)
        return made

    def _warn(self, omega: float, participation: float, alpha: float) -> None:
        """Warn of steps that are still above the ceiling halfway."""
        step = float(parse_step_size(self.taken)(max(1, self.max_iter // 2)))
        if step <= self.ceiling or step <= self.safe:
            return
        warnings.warn(
            VpemWarning(
                f"steps of {step:g} are above {self.ceiling:.3g}, the longest that noise of omega "
                f"{omega:.3g}, participation {participation:g} and memories' steps of {alpha:.3g} "
                f"cannot outgrow: {self.safe:.3g} is safe; take ", Setting("step_size", "auto"),
            ),
            stacklevel=4,
        )  # fmt: skip


def enough_iterations(step_size: str | float | StepSize, noise_stays: bool = False) -> int:
    """Choose how many iterations a fit may take: as many steps as are worth `WHOLE_STEPS`.

    It is at most `MOST_ITERATIONS`, and `WHOLE_STEPS` where steps are a function. Where noise stays
    however long the fit goes on (of batches without variance reduction), it ends where noise alone
    moves it, which needs no more iterations where steps are short.
    """
    if noise_stays or callable(step_size):
        return WHOLE_STEPS
    steps = parse_step_size(step_size)
    gone, iteration = 0.0, 0
    while gone < WHOLE_STEPS * (1 - 1e-9) and iteration < MOST_ITERATIONS:
        iteration += 1
        gone += float(steps(iteration))
    return max(iteration, WHOLE_STEPS)
