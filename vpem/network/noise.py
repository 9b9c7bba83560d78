"""Noise on integers: the discrete Gaussian, drawn exactly from bits of the system.

What is made private is rounded to integers first, and so is the noise: differences of floating
point numbers have gaps that tell what was added to what (Mironov 2012), integers have none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from math import exp, isqrt

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_int
from vpem.errors import InputError

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

LARGEST_SCALE = 2**52
"""Largest standard deviation: 2^11 of them are still an int64."""

REACH = 16
"""Scales from 0 within which noise is compared with Gaussian noise; beyond lie 5e-56 of it."""

SLACK = 1.05
"""Candidates drawn for each value that may still be missing after the rejections expected."""

ACCEPTED = 0.45
"""Less than the probability that a candidate is accepted, for every scale."""


class Noise:
    """A source of discrete Gaussian noise.

    A ``seed`` makes it repeatable, for tests. **Noise that can be repeated gives no privacy**: who
    knows the seed can subtract it. Without one bits come from the system (`os.urandom`), and can
    neither be repeated nor known. With a seed every ``agent``'s noise differs.
    """

    def __init__(self, seed: int | None = None, agent: int = 0) -> None:
        self.repeatable = seed is not None
        self._bytes: Callable[[int], bytes] = os.urandom
        if seed is not None:
            entropy = np.random.SeedSequence([check_int("seed", seed, least=0), agent])
            self._bytes = np.random.Generator(np.random.Philox(entropy)).bytes

    def gaussian(self, scale: int, size: int) -> Integers:
        """Draw integers (n,) from the discrete Gaussian: ``P(y)`` goes as ``exp(-y^2 / 2 s^2)``.

        Canonne, Kamath and Steinke (2020), Algorithm 3, for an integer s: a candidate of the
        discrete Laplace law of scale s is accepted with probability ``exp(-(|y| - s)^2 / 2 s^2)``.
        Written as ``|y| = s v + u`` with ``0 <= u < s``, every probability is a product of some of
        ``exp(-1)``, ``exp(-1/2)``, ``exp(-u/s)`` and ``exp(-(u/s)^2 / 2)``, and a coin of each is
        tossed by comparing uniform integers. There is no floating point number and no rounding: the
        law is exact, if the bits are. s is from 1 to `LARGEST_SCALE`: the standard deviation, to
        `ratio_to_gaussian`.

        How long it takes depends on what is drawn, and not on what it will be added to.
        """
        if not isinstance(scale, int | np.integer) or not 1 <= scale <= LARGEST_SCALE:
            raise InputError(
                f"the scale of discrete noise must be an integer from 1 to 2^52, got {scale!r}"
            )
        scale, parts, missing = int(scale), [np.empty(0, dtype=np.int64)], size
        while missing > 0:
            accepted = self._accepted(scale, int(SLACK * missing / ACCEPTED) + 16)[:missing]
            parts.append(accepted)
            missing -= len(accepted)
        return np.concatenate(parts)

    def of_scales(self, scales: Integers, n: int = 1) -> Integers:
        """Draw a value of each of some scales (P,), or the `share` of one of n agents."""
        noise = np.empty(len(scales), dtype=np.int64)
        for scale in np.unique(scales):
            which = scales == scale
            noise[which] = self.gaussian(share(int(scale), n), int(which.sum()))
        return noise

    def _accepted(self, scale: int, n: int) -> Integers:
        """Draw n candidates: those that are accepted."""
        rest = self._below(scale, n)
        # The discrete Laplace law: u by exp(-u/s), v geometric with exp(-1), a sign; one zero.
        rest = rest[self._coin(len(rest), lambda left: self._below(scale, len(left)) < rest[left])]
        whole = self._run(len(rest), lambda n: self._coin(n, lambda left: np.ones(len(left), bool)))
        negative = self._below(2, len(rest)) == 1
        single = ~(negative & (rest == 0) & (whole == 0))
        rest, whole, negative = rest[single], whole[single], negative[single]
        # (|y| - s)^2 / 2 s^2 = w^2 / 2 + w x + x^2 / 2, with w = v - 1 and x = u / s; for v = 0 it
        # is x^2 / 2 with x = 1 - u / s.
        above = np.maximum(whole - 1, 0)
        part = np.where(whole == 0, scale - rest, rest)

        def by_part(part: Integers, left: Integers) -> Mask:
            drawn: Mask = self._below(scale, len(left)) < part[left]
            return drawn

        def half(left: Integers) -> Mask:
            drawn: Mask = self._below(2, len(left)) == 0
            return drawn

        accepted = self._coin(
            len(part), lambda left: by_part(part, left) & by_part(part, left) & half(left)
        )
        accepted &= self._run(len(part), lambda n: self._coin(n, half)) >= above**2
        for step in range(int(above.max(initial=0))):
            going = np.flatnonzero(accepted & (above > step))
            accepted[going] = self._coin(len(going), partial(by_part, part[going]))
        size: Integers = whole[accepted] * scale + rest[accepted]
        return np.where(negative[accepted], -size, size)

    def _coin(self, n: int, trial: Callable[[Integers], Mask]) -> Mask:
        """Toss n coins of probability exp(-g); a trial of each, by index, succeeds with g.

        The first k of 1, 2, ... at which a coin of probability g / k fails is odd with probability
        ``1 - g + g^2 / 2 - ... = exp(-g)`` (von Neumann 1951; Algorithm 1 of the paper).
        """
        odd = np.zeros(n, dtype=np.bool_)
        left, k = np.arange(n), 1
        while len(left):
            again = trial(left)
            if k > 1:
                again = again & (self._below(k, len(left)) == 0)
            odd[left[~again]] = k % 2 == 1
            left, k = left[again], k + 1
        return odd

    def _run(self, n: int, coins: Callable[[int], Mask]) -> Integers:
        """Count how often each of n coins falls on its head before it falls on its tail."""
        heads = np.zeros(n, dtype=np.int64)
        left = np.arange(n)
        while len(left):
            left = left[coins(len(left))]
            heads[left] += 1
        return heads

    def _below(self, bound: int, n: int) -> Integers:
        """Draw n uniform integers from 0 to ``bound - 1``."""
        bits = (bound - 1).bit_length()
        if bits == 0:
            return np.zeros(n, dtype=np.int64)
        width = next(size for size in (1, 2, 4, 8) if bits <= 8 * size)
        mask, uniform, left = (1 << bits) - 1, np.empty(n, dtype=np.int64), np.arange(n)
        while len(left):
            drawn = np.frombuffer(self._bytes(width * len(left)), dtype=f"<u{width}")
            drawn = (drawn & drawn.dtype.type(mask)).astype(np.int64)
            uniform[left] = drawn
            left = left[drawn >= bound]
        return uniform


def share(scale: int, n: int) -> int:
    """Return the least scale t of the noise of each of n agents for which ``n t^2 >= scale^2``.

    Discrete Gaussians do not add up to one, but nearly (Kairouz, Liu and Steinke 2021, Theorem 1):
    the largest logarithm of the ratio of the probabilities of n of a scale t together to those of
    one of scale ``t sqrt(n)`` is at most ``10 sum_{k<n} exp(-2 pi^2 t^2 k / (k + 1))``; the least
    exponent is that of k = 1. With t = 4 and 1,000 agents that is 1e-64 nats; here t is thousands
    of times larger.

    Who knows the noise of some agents knows that of the total but for the others': where c of n
    work together against the rest, what is left has ``(n - c) / n`` of the variance.
    """
    exact, rest = divmod(scale**2, n)
    root = isqrt(exact)
    return root if root**2 == exact and not rest else root + 1


def ratio_to_gaussian(scale: int, n_values: int) -> float:
    """Bound, in nats, how far so many values of the noise together are from rounded Gaussian noise.

    A Gaussian of standard deviation s that is rounded to integers has at y the probability
    ``q(y)``, the integral of its density f over ``y +- 1/2``, so that ``q(y) / f(y)`` is the mean
    of ``cosh(y t / s^2) exp(-t^2 / 2 s^2)`` over t within a half of 0. As ``cosh x`` is from 1 to
    ``exp(x^2 / 2)``, the logarithm of that is from ``-1 / 8 s^2`` to ``y^2 / 8 s^4``. The discrete
    Gaussian is f divided by its sum over the integers, which is from 1 to
    ``1 + 3 exp(-2 pi^2 s^2)``. Hence up to `REACH` scales from 0 the logarithm of the ratio of both
    is at most ``(REACH^2 + 1) / 8 s^2``; how rarely a value lies beyond says `beyond_reach`. Values
    are those of all sums that may depend on each other, and s is at least 64.

    What is Gaussian noise on an integer, rounded, is the rounded sum: a function of the output of
    the Gaussian mechanism. Where that gives (epsilon, delta), discrete noise with a ratio of r nats
    gives ``(epsilon + 2 r, exp(r) delta + (1 + exp(epsilon + r)) beyond)``.
    """
    if scale < 64:
        raise InputError(
            f"noise of scale {scale} is too coarse for its grid; a grid must be fine enough for 64"
        )
    return n_values * (REACH**2 + 1) / (8 * float(scale) ** 2)


def beyond_reach(n_values: int) -> float:
    """Bound the probability that one of so many values lies farther than `REACH` scales from 0.

    A discrete Gaussian is subgaussian as a Gaussian is (Canonne, Kamath and Steinke 2020): both
    tails have at most ``2 exp(-REACH^2 / 2)``, and those of a Gaussian that is rounded less.
    """
    return n_values * 2.0 * exp(-(REACH**2) / 2)
