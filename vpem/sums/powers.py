"""How large the largest of what holders have is, as a power of two: all learn it, not whose."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem.engines.placement import DIGIT, LEAST_POWER, MOST_POWER
from vpem.sums.adding import MASKED_BYTES
from vpem.sums.sum import Sum

LOOKS = 2 * (DIGIT - 1)
"""Powers of two of which holders say whether they have a larger one, until the largest is known."""


def powers_above(total: Sum, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Powers of two (P,) that sizes (n, P) are below, of all holders; 0 where all are 0.

    Under masks all learn the largest, and nobody whose it is.
    """
    total.begin("setup", 0, 0, MASKED_BYTES, LOOKS * sizes.shape[1])
    powers = np.where(sizes > 0, np.frexp(sizes)[1], LEAST_POWER).clip(LEAST_POWER, MOST_POWER)
    found = total.holders.largest(powers, LEAST_POWER, MOST_POWER)
    return np.where(found > LEAST_POWER, np.ldexp(1.0, found), 0.0)


def power_beyond(total: Sum, values: NDArray[np.float64], exponents: NDArray[np.int64]) -> int:
    """By how many powers of two units (P,) are too fine for what holders have (n, P), 0 to 31.

    One number, of all values of all holders: under masks nobody learns whose it is, nor which.
    """
    masks = total.holders.masks
    if masks is None:
        return 0
    total.begin("setup", 0, 0, MASKED_BYTES, DIGIT - 1)
    room = masks.fixed.powers + exponents
    beyond = np.where(values == 0, 0, np.frexp(values)[1] - room).max(axis=1, initial=0)
    found = total.holders.largest(beyond[:, None].clip(0, DIGIT - 1), 0, DIGIT - 1)
    return int(found[0])
