"""Steps of FedMissEM that noise does not outgrow, and how many of them are enough."""

from __future__ import annotations

from vpem.network.codecs import Codec
from vpem.steps.fedruns import StepSize, parse_step_size
from vpem.sums.quantizer import Quantizer

__all__ = ["MOST_ITERATIONS", "WHOLE_STEPS", "enough_iterations", "safe_step"]

WHOLE_STEPS = 1000
"""Whole steps of EM, of length 1, that the default of ``max_iter`` is worth."""

MOST_ITERATIONS = 20_000
"""The largest default of ``max_iter``, however short the steps."""


def safe_step(
    codec: Codec | None, participation: float, shape: tuple[int, int], drawn: float = 1.0
) -> float:
    """Choose a step that noise does not outgrow.

    Take an entry that one observer alone has seen, where theta follows the statistic fully. With x
    the distance yet to go and v its memory, an iteration is ``x -= step (v + xi D / p)`` and
    ``v += alpha xi D``, where xi is 1 with probability p, else 0, and D is ``x - v`` with a
    variance of omega by the codec. Second moments of (x, v) fall for steps below ``c t``,
    ``t = p / (1 + omega)``: c is 0.6 for small t, 0.9 at t = 1/2 and 1 at t = 1, and they fall
    fastest at about half of that where t < 0.8. So the step is t / 2 there, and grows to t at t =
    1. Where the observer draws a batch, p is the chance that both are drawn.

    Parameters
    ----------
    codec : Codec or None
        Of what observers send.
    participation : float
        Probability p that an observer takes part.
    shape : tuple of int
        Of the matrix.
    drawn : float
        Share of its entries that an observer draws.

    Returns
    -------
    float
        Above 0 and at most 1.
    """
    noise = Quantizer(codec, (slice(0, shape[0] * shape[1]),)).omega
    certain = participation * drawn / (1.0 + noise)
    return max(certain * max(0.5, 2.5 * certain - 1.5), 1e-4)


def enough_iterations(step_size: str | float | StepSize, noise_stays: bool = False) -> int:
    """Choose how many iterations a fit may take: as many steps as are worth `WHOLE_STEPS`.

    Parameters
    ----------
    step_size : str, float or callable
        As `vpem.steps.fedruns.parse_step_size` takes it.
    noise_stays : bool
        Whether noise remains however long the fit goes on (of batches without variance reduction):
        it ends where noise alone moves it, which needs no more iterations where steps are short.

    Returns
    -------
    int
        From `WHOLE_STEPS` to `MOST_ITERATIONS`; the former where steps are a function.
    """
    if noise_stays or callable(step_size):
        return WHOLE_STEPS
    steps = parse_step_size(step_size)
    gone, iteration = 0.0, 0
    while gone < WHOLE_STEPS * (1 - 1e-9) and iteration < MOST_ITERATIONS:
        iteration += 1
        gone += float(steps(iteration))
    return max(iteration, WHOLE_STEPS)
