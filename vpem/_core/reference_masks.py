"""NumPy twins of the kernels of masked sums: the same names and arguments, and the same words.

A *ring vector* has words of 64 bits that are added modulo 2^64. A value ``x`` in units of
``1 / scale`` is the word ``round(x scale) mod 2^64``, halves to even: negative numbers are the
upper half. ``scales`` has one number for all values, or one for each, all powers of two.

``n_threads`` is accepted and has no effect.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["add_scaled", "add_tag", "values_of"]

Words = NDArray[np.uint64]

PRIME = 2**127 - 1
"""Tags are numbers modulo this."""

BLOCK = 64
"""Words of a tag at a time."""


def add_scaled(
    values: NDArray[np.floating[Any]],
    scales: NDArray[np.float64],
    limit: float,
    ring: Words,
    n_threads: int,
) -> int:
    """Add ``round(values scales)`` to a ring vector.

    Returns the place of the first value for which ``|values scales| <= limit`` does not hold (NaN
    among them), -1 if there is none; with one the ring vector is of no use.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values.astype(np.float64) * scales
        fits = np.abs(scaled) <= limit
    if not fits.all():
        return int(fits.argmin())
    ring += np.rint(scaled).astype(np.int64).view(np.uint64)
    return -1


def values_of(
    ring: Words,
    scales: NDArray[np.float64],
    most: float,
    values: NDArray[np.float64],
    n_threads: int,
) -> int:
    """Put ``ring / scales`` into ``values``, words of the upper half as negative numbers.

    Returns the place of the first word whose magnitude, as a float64, is above ``most``, -1 if
    there is none.
    """
    numbers = ring.view(np.int64).astype(np.float64)
    values[:] = numbers / scales
    fits = np.abs(numbers) <= most
    return -1 if fits.all() else int(fits.argmin())


def add_tag(ring: Words, powers: Words, tag: Words) -> None:
    """Go on with a tag by the words of a ring vector, as signed numbers ``x_1 ... x_P``.

    The tag ``t`` becomes ``t s^P + x_1 s^P + ... + x_P s`` modulo `PRIME`, in two words, the lower
    one first. Row ``j`` of ``powers`` (BLOCK, 4) has ``s^n``, ``n = BLOCK - j``, and in its last
    two words ``-2^63 (s + ... + s^n)``, which the kernel wants.
    """
    point = int(powers[-1, 0]) + (int(powers[-1, 1]) << 64)
    found = int(tag[0]) + (int(tag[1]) << 64)
    for word in ring.view(np.int64).tolist():
        found = (found + word) * point % PRIME
    tag[:] = found & (2**64 - 1), found >> 64
