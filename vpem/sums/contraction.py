"""How much of a compressed message is believed, and by what steps rounds are stable."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from vpem.errors import InputError

if TYPE_CHECKING:
    from vpem.network.codecs import Codec

__all__ = [
    "RoundSteps",
    "codec_of",
    "compressed_rounds",
    "contraction",
    "messages_alone",
    "stable_steps",
]

NOISE_PER_GAP = 1.5
"""Acceleration stays stable while ``sqrt(1 - rate^2)`` is at least this times ``sqrt(omega)``."""

CAUTION = 1.25
"""Times the noise, in the step of rounds that are not accelerated."""

FALL = 1e-4
"""By what the rounds of one compressed sum reduce the distance to the mean, by default.

Early iterations decide where EM goes: with 0.001 and more some fits of breast_cancer end elsewhere
than those with exact sums. Starts at which a component holds very few rows, and terms reach 1e6 and
more, may do so with this too: a norm shared by many values drowns the small ones."""


def codec_of(kind: str, codec: Codec) -> Codec:
    """Return the codec of a sum's messages, by what the sum is for.

    Squared distances, which are summed for a start, may be larger than float16 can be, where terms
    of an E-step are not: they travel as float32.
    """
    if kind == "setup" and codec.name == "float16":
        from vpem.network.codecs import parse_codec

        return parse_codec("float32")
    return codec


def contraction(codec: Codec, n_values: int) -> tuple[float, float]:
    """Return by what a decoded message is scaled, and its noise ``omega``.

    Scaled so, a message leaves at most ``omega / (1 + omega)`` of the squared norm behind. An
    unbiased codec of variance omega is scaled by ``1 / (1 + omega)``; a biased one not at all.

    Parameters
    ----------
    codec : Codec
        How messages are written.
    n_values : int
        Values of a message.

    Raises
    ------
    InputError
        If the codec may leave all of a message behind.
    """
    if not n_values:
        return 1.0, 0.0
    variance = codec.variance(n_values)
    if codec.is_unbiased:
        return 1.0 / (1.0 + variance), variance
    if not variance < 1:
        raise InputError(
            f"the codec {codec.name} is biased and may lose all of a message; take one that keeps "
            "a part"
        )
    return 1.0, variance / (1.0 - variance)


@dataclass(frozen=True)
class RoundSteps:
    """By what steps compressed rounds go.

    Attributes
    ----------
    step : float
        Weight of what the neighbours say.
    rate : float
        Eigenvalue bound that Chebyshev's polynomials are made for; 0 where rounds are plain.
    """

    step: float
    rate: float

    def fall(self, mixing_rate: float, n_rounds: int) -> float:
        """Return by what so many rounds reduce the distance to the mean, were there no noise."""
        if self.rate <= 0:
            return float((1.0 - self.step * (1.0 - mixing_rate)) ** n_rounds)
        # T_S(mixing_rate / rate) / T_S(1 / rate), without forming either.
        slow = n_rounds * np.arccosh(max(mixing_rate / self.rate, 1.0))
        fast = n_rounds * np.arccosh(1.0 / self.rate)
        return float(np.exp(slow - fast) * (1 + np.exp(-2 * slow)) / (1 + np.exp(-2 * fast)))


def stable_steps(rate: float, omega: float, *, fixed: bool = True) -> RoundSteps:
    """Return the fastest steps that are stable under the noise of the messages.

    Where noise is small against the spectral gap rounds are accelerated by Chebyshev's
    polynomials; for a bound below ``rate`` where it is not so small, which accelerates less. With
    much noise they are plain, with a step of about ``1 / omega``.

    Parameters
    ----------
    rate : float
        Second largest eigenvalue modulus of the mixing weights.
    omega : float
        Noise of the messages, see `contraction`.
    fixed : bool
        Whether the mixing weights are the same in every round; else rounds are plain.

    Notes
    -----
    The constants were found by trial on cycles, paths, trees, geometric and complete graphs of 2
    to 100 agents: the step is about half of the largest with which the error falls.
    """
    if fixed and 0 < rate < 1:
        gap = max(np.sqrt(1.0 - rate**2), NOISE_PER_GAP * np.sqrt(omega))
        if gap < 1:
            return RoundSteps(1.0, float(np.sqrt(1.0 - gap**2)))
    return RoundSteps(1.0 / (1.0 + CAUTION * omega * (1.0 + rate)), 0.0)


def messages_alone(omega: float, fall: float = FALL) -> int:
    """Return the messages that leave so little behind, each of what those before left out."""
    left = sqrt(omega / (1.0 + omega))
    return ceil(log(fall) / log(left)) if left > 0 else 1


def compressed_rounds(rate: float, omega: float, *, fall: float = FALL) -> int:
    """Return the rounds of a compressed sum that are enough, as each goes on from the one before.

    Parameters
    ----------
    rate, omega : float
        As for `stable_steps`.
    fall : float
        By what the rounds of one sum reduce the distance to the mean, below 1.
    """
    stable = stable_steps(rate, omega)
    if rate <= 0 and omega == 0:
        return 1
    least = messages_alone(omega, fall)
    high = 1
    while stable.fall(rate, high) > fall:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if stable.fall(rate, middle) <= fall else (middle, high)
    return max(high, least)
