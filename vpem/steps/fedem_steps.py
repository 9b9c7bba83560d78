"""FedEM's steps, batches and iterations that noise does not outgrow, and when a run is at rest.

Corrections that become small end a run (`Rest`): they are all that its server ever sees. Where
something is drawn in every iteration that nothing makes up for (batches; workers or codecs without
memories), they never do: the statistic ends by moving about a place, and what ends the run is that
this place no longer moves by more than chance (`Drift`).

Theorems 1 to 3 of Dieuleveut et al. 2021 bound steps by unknown constants: of the expected
statistics and of the Lyapunov function (`theorem_step` has 1 for all of them). What is taken
deviates in two ways. Steps do not grow with the number of workers (`step_ceiling`), since what only
one worker has seen is not averaged; and batches, and loops of variance reduction, do not follow the
codec (`batches_of`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from vpem.checks import Doubles, Indices, least_participation
from vpem.errors import InputError, Setting, warn
from vpem.network.schema import COUNT, NOTHING, Array, Integer, Number, Schema, Stateful
from vpem.rules import NOTHING_DRAWN
from vpem.settings import FedSettings
from vpem.steps.fedem_sums import StepSize, parse_step_size
from vpem.sums.quantizer import Basis, Quantizer

LOOKS = 10
"""Small corrections in a row that a noisy run ends with."""

FIRST = 10
"""Fewest iterations of a quarter of the first window over which drift is looked for."""

WINDOW_STEPS = 5.0
"""Fewest whole steps of EM, of length 1, that it is worth: shorter steps forget more slowly."""

GROWTH = 1.5
"""How much longer than the last a window is."""

EPOCHS = 4.0
"""Fewest epochs of a window that says anything: chance must have shown most rows."""

CHANCE = 2.0
"""How many times its variance by chance the squared norm of a drift is that counts for none."""

CONSTANT = 0.9
"""Steps that fall below this part in a window still make noise smaller."""

WHOLE_STEPS = 1000
"""Whole steps of EM, of length 1, that the default of ``max_iter`` is worth."""

MOST_ITERATIONS = 20_000
"""The largest default of ``max_iter``, however short the steps."""

LEAST = 1e-4
"""The shortest safe step."""


def looks_needed(noisy: bool, participation: float, inner: int) -> int:
    """Return how many corrections in a row must be small before a run is at rest.

    Where anything is drawn or quantized (``noisy``) a correction may be small by chance, and every
    worker, which takes part with this probability, should be heard several times. Within an outer
    loop of VR-FedEM (of ``inner`` iterations, or 0) an error of the workers' estimates stays, which
    the next begins without.
    """
    return ceil(max(LOOKS / participation, 2 * inner)) if noisy else 1


@dataclass
class Rest(Stateful):
    """Decides when a run is at rest: after ``looks`` small corrections in a row (`looks_needed`).

    Small is a squared norm of at most ``tol`` times the statistic's, in the units of ``basis``.
    Where noise stays ``drift`` ends a run besides.
    """

    tol: float
    looks: int
    basis: Basis | None
    drift: Drift | None = None
    count: int = 0  # small ones in a row so far

    def look(self, statistics: Doubles, moved: Doubles, step: float, epochs: float) -> list[bool]:
        """Whether the correction that moved every root's statistic (R, P) by a step is not small.

        And where noise stays, whether the statistic may still drift.
        """
        moving = [True]
        if self.tol != 0:
            with np.errstate(over="ignore", invalid="ignore"):
                corrections, sizes = (moved - statistics) / step, moved
                if self.basis is not None:
                    corrections, sizes = self.basis.apply(corrections), self.basis.apply(sizes)
                squares = (corrections**2).sum(axis=1)
                moving = [not bool((squares <= self.tol * (sizes**2).sum(axis=1)).all())]
        if self.drift is not None:
            moving.append(not self.drift.is_over(moved, step, epochs))
        return moving

    def record_correction(self, large: bool, drifting: bool = True) -> tuple[bool, bool]:
        """Note a correction in which workers were heard.

        Returns whether the run is at rest, and whether that is for noise alone still moves it.
        """
        self.count = 0 if large else self.count + 1
        settled = self.count >= self.looks
        return settled or not drifting, not settled and not drifting

    def schema(self) -> dict[str, Schema]:
        """What the next look depends on."""
        return {"count": COUNT, "drift": self.drift or NOTHING}


class Drift(Stateful):
    """Tests, window by window, whether a statistic that noise keeps moving still drifts.

    A window has four quarters. The mean of the later two is compared with that of the earlier two:
    the difference has a variance by chance that shows in how far quarters of a half are apart. A
    drift moves halves four quarters' worth for each quarter, eight times what it adds to that
    variance. Quarters grow from window to window, until they are long beside the time in which the
    statistic forgets where it was. ``shape`` is every root's statistic's, (R, P); norms are in the
    units of ``basis``.
    """

    def __init__(self, shape: tuple[int, ...], basis: Basis | None) -> None:
        self.basis = basis
        self.sums = np.zeros((4, *shape))  # of the statistics of each quarter
        # Iterations of a quarter, which one it is, and those of it so far.
        self.length, self.quarter, self.count = FIRST, 0, 0
        self.epochs, self.step = 0.0, 1.0  # when the window began

    def schema(self) -> dict[str, Schema]:
        """What has been seen of the window."""
        return {
            "length": Integer(1, size="Q"),
            "quarter": Integer(most=3),
            "count": Integer(below="Q"),
            "epochs": Number(0),
            "step": Number(0, 1),
            "sums": Array("f8", self.sums.shape),
        }

    def is_over(self, moved: Doubles, step: float, epochs: float) -> bool:
        """Note every root's statistic (R, P); whether a window has shown no drift."""
        if self.quarter == self.count == 0:
            self.epochs, self.step = epochs, step
            self.length = max(self.length, ceil(WINDOW_STEPS / step))
        self.sums[self.quarter] += moved
        self.count += 1
        if self.count == self.length:
            self.quarter, self.count = self.quarter + 1, 0
        if self.quarter < 4:
            return False
        over = epochs - self.epochs >= EPOCHS and step >= CONSTANT * self.step
        if over:
            # Whether halves of the window are no farther apart than by chance, for all roots.
            a, b, c, d = self.sums
            with np.errstate(over="ignore", invalid="ignore"):
                between = [a - b, c - d, c + d - a - b]
                if self.basis is not None:
                    between = [self.basis.apply(one) for one in between]
                first, second, halves = ((one**2).sum(axis=1) for one in between)
                over = bool((halves <= CHANCE * (first + second)).all())
        self.length, self.quarter = round(GROWTH * self.length), 0
        self.sums[...] = 0.0
        return over


@dataclass(frozen=True)
class SafeSteps:
    """Which steps noise allows a run."""

    ceiling: float  # the longest step that noise does not outgrow
    safe: float  # the default
    theorem: float  # of `theorem_step`

    @classmethod
    def choose(
        cls,
        settings: FedSettings,
        alpha: float,
        quantizer: Quantizer,
        rows: Indices,
        least: int,
        stays: bool,
    ) -> tuple[SafeSteps, FedSettings]:
        """Choose what settings leave open, and return these, too; warn of long steps.

        Workers have so many ``rows`` (n,), a batch so many at least (`batches_of`); ``stays`` says
        whether noise remains however long the run goes on.
        """
        mean_rows = float(rows.mean())
        omega, p = noise_of(quantizer), least_participation(settings.participation)
        memory_step = None if quantizer.biased else alpha
        batch_size, inner = settings.batch_size, settings.inner
        if settings.variance_reduction:
            batch_size, inner = batches_of(mean_rows, omega, p, batch_size, inner, least)
            if settings.replacement and batch_size is None:
                raise InputError(Setting("replacement"), *NOTHING_DRAWN[1])
        drawn = 1.0 if batch_size is None else min(1.0, batch_size / mean_rows)
        reduced = settings.variance_reduction and (drawn < 1 or settings.replacement)
        chance = p if settings.variance_reduction else p * drawn
        ceiling = step_ceiling(omega, p, memory_step)
        safe = safe_step(omega, chance, memory_step, reduced)
        theorem = theorem_step(omega, p, len(rows), reduced)
        auto = isinstance(settings.step_size, str) and settings.step_size == "auto"
        taken = f"constant:{safe:g}" if auto else settings.step_size
        enough = enough_iterations(taken, stays) if settings.max_iter is None else settings.max_iter
        longest = float(parse_step_size(taken)(max(1, enough // 2)))
        if longest > ceiling and longest > safe:
            warn(
                f"steps of {longest:g} are above {ceiling:.3g}, the longest that noise of omega "
                f"{omega:.3g}, participation {p:g} and memories' steps of {alpha:.3g} cannot "
                f"outgrow: {safe:.3g} is safe; take ",
                Setting("step_size", "auto"),
            )
        settings = settings.changed(
            step_size=taken, batch_size=batch_size, inner=inner, max_iter=enough
        )
        return cls(ceiling, safe, theorem), settings


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


def noise_of(quantizer: Quantizer) -> float:
    """Omega of what is sent: of error feedback that of noise which keeps as much."""
    omega = quantizer.omega
    return omega / (1.0 - omega) if quantizer.biased else omega


def step_ceiling(omega: float, participation: float, alpha: float | None = None) -> float:
    """Find the longest step that noise does not outgrow.

    Take a number of the statistic that one worker alone has seen, and which follows the statistic
    fully: workers unlike each other can come to that, and noise is not averaged. With x the
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
    mean_rows: float,
    omega: float,
    participation: float,
    batch_size: int | None,
    inner: int | None,
    least: int = 1,
) -> tuple[int | None, int | None]:
    """Choose batches and outer loops of variance reduction, where they are not given.

    A worker of m rows computes m in an outer loop and 2 b in each of its other iterations: for ``b
    = sqrt(m / 2)`` in loops of ``k = m / (2 b p)`` as much in both. Theorem 2 of Dieuleveut et al.
    2021 requires ``b >= k / (1 + omega)^2`` and lets loops become longer, and batches smaller, the
    coarser a codec is, with steps that fall by another ``sqrt(1 + omega)``. Steps are longer here
    and so loops are not: the noise of a codec applies to the batches' errors too.

    A batch has at least so many rows as second moments need that are not singular (``least``): with
    fewer, noise leads to other optima than EM. All rows are taken (None) where they are no more
    than the 2 b that a batch computes: that is FedEM.
    """
    if batch_size is None:
        loops = 0.0 if inner is None else inner * (participation / (1.0 + omega)) ** 2
        batch_size = ceil(max(sqrt(mean_rows / 2), loops, least))
        if inner is None and 2 * batch_size >= mean_rows:
            return None, None
    if inner is None:
        inner = max(2, ceil(mean_rows / (2 * batch_size * participation)))
    return batch_size, inner
