"""How much of a compressed message is believed, and by what steps rounds are stable."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from vpem.errors import InputError
from vpem.network.codecs import parse_codec

if TYPE_CHECKING:
    from vpem.network.codecs import Codec


NOISE_PER_GAP = 1.5
"""Acceleration stays stable while ``sqrt(1 - rate^2)`` is at least this times ``sqrt(omega)``."""

CAUTION = 1.25
"""Times the noise, in the step of rounds that are not accelerated."""

FALL = 1e-4
"""By what the rounds of one compressed sum are expected to reduce the distance to the mean.

Early iterations, in which terms change much, take more of them, and late ones fewer."""

NATS = 1e-5
"""By how much no root's sum of log-densities may be off.

Early iterations decide where EM goes: some fits end elsewhere where sums are off by 0.001."""

OF_LARGEST = 1e-11
"""Of the largest number that is added, by how much sums may be off however large it is: float64 has
little more in many rounds, and log-densities so far apart say the same without their last nat."""

FLOAT16 = 3e4
"""Numbers above this may become larger than float16 can be, as accelerated rounds overshoot."""


def codec_of(kind: str, codec: Codec) -> Codec:
    """Return the codec of a sum's messages, by what the sum is for.

    Squared distances, which are summed for a start, may be larger than float16 can be, where terms
    of an E-step are not: they travel as float32.
    """
    if kind == "setup" and codec.name == "float16":
        return parse_codec("float32")
    return codec


def codec_within(largest: float, codec: Codec) -> Codec:
    """Return the codec of messages whose numbers are so large: float16 ends at 65504."""
    if codec.name == "float16" and not largest < FLOAT16:
        return parse_codec("float32")
    return codec


def agreed_within(largest: float) -> float:
    """Return by how much agents may be off where what they add is so large at most.

    In nats, where it is log-densities; relative to what is small, and not below what float64 has.
    """
    return max(NATS * min(largest, 1.0), OF_LARGEST * largest)


def contraction(codec: Codec, n_values: int) -> tuple[float, float]:
    """Return by what a decoded message of so many values is scaled, and its noise ``omega``.

    Scaled so, a message leaves at most ``omega / (1 + omega)`` of the squared norm behind; a codec
    that may leave all of it is refused. An unbiased codec of variance omega is scaled by ``1 / (1 +
    omega)``; a biased one not at all.
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

    def pace(self, mixing_rate: float) -> float:
        """Return by what a round reduces the distance to the mean, once there were some."""
        if self.rate <= 0:
            return 1.0 - self.step * (1.0 - mixing_rate)
        slow = float(np.arccosh(max(mixing_rate / self.rate, 1.0)))
        return float(np.exp(slow - np.arccosh(1.0 / self.rate)))

    def fall(self, mixing_rate: float, n_rounds: int) -> float:
        """Return by what so many rounds reduce the distance to the mean, were there no noise."""
        if self.rate <= 0:
            return float((1.0 - self.step * (1.0 - mixing_rate)) ** n_rounds)
        # T_S(mixing_rate / rate) / T_S(1 / rate), without forming either.
        slow = n_rounds * np.arccosh(max(mixing_rate / self.rate, 1.0))
        fast = n_rounds * np.arccosh(1.0 / self.rate)
        return float(np.exp(slow - fast) * (1 + np.exp(-2 * slow)) / (1 + np.exp(-2 * fast)))


def stable_steps(rate: float, omega: float, *, fixed: bool = True) -> RoundSteps:
    """Return the fastest steps that are stable under the noise of the messages (`contraction`).

    Where noise is small against the spectral gap rounds are accelerated by Chebyshev's polynomials;
    for a bound below ``rate``, the second largest eigenvalue modulus, where it is not so small,
    which accelerates less. With much noise they are plain, with a step of about ``1 / omega``, as
    they are where mixing weights are not the same in every round (``fixed``).

    The constants were found by trial on cycles, paths, trees, geometric and complete graphs of 2 to
    100 agents: the step is about half of the largest with which the error falls.
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


def compressed_rounds(rate: float, omega: float, *, fall: float = FALL, fixed: bool = True) -> int:
    """Return the rounds of a compressed sum that are enough, as each goes on from the one before.

    The rounds of one sum reduce the distance to the mean by ``fall``, below 1; the rest is as for
    `stable_steps`.
    """
    return rounds_of(stable_steps(rate, omega, fixed=fixed), rate, omega, fall)


def rounds_of(stable: RoundSteps, rate: float, omega: float, fall: float) -> int:
    """Return the rounds by such steps that reduce the distance to the mean by ``fall``, below 1."""
    if fall >= 1 or (rate <= 0 and omega == 0):
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


def further_rounds(stable: RoundSteps, rate: float, omega: float, fall: float) -> int:
    """Return how many more rounds reduce the distance to the mean by ``fall``, below 1."""
    pace = max(stable.pace(rate), sqrt(omega / (1.0 + omega)))
    return max(1, ceil(log(fall) / log(pace))) if 0 < pace < 1 else 1
