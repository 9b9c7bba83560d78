"""Units in which numbers of any size can be added under masks, which holders agree on.

A masked sum is of numbers in a range (`vpem.network.masks.FixedPoint`), in units of a power of two.
Where none is known beforehand, holders find by masked questions how large the largest is of all.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.engines.placement import Placement
from vpem.errors import InputError, VpemWarning
from vpem.sums.adding import MASKED_BYTES
from vpem.sums.counted import AtServer, add_vectors
from vpem.sums.sum import Sum

MOST_ROUNDING = 1e-2
"""Of usual squared distances, beyond which rounding decides for one row in 100 or more."""

MUCH_ROUNDING = 1e-5
"""Of them, beyond which one row in 100,000 may be near enough to two centres to change clusters."""


def in_common_units(total: AtServer, values: NDArray[np.float64]) -> AtServer:
    """Return the same sum in units in which numbers of all holders can be added under masks.

    All learn the largest power of two of all holders, and nothing else: they answer under masks
    whether any has a larger number than some. ``values`` (B, P) are of the holders of this process.
    """
    if total.holders.masks is None:
        return total

    def ask(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        size = MASKED_BYTES * (len(flags) + 1)
        total.count(size)
        total.broadcast(size)
        own: NDArray[Any] = np.zeros((len(total.holders.own), 1, len(flags)), dtype=np.bool_)
        own[:1] = flags
        return np.asarray(total.reduce(own)[0, 0])

    return total.in_units(np.asarray(total.holders.exponents(values, ask), dtype=np.int64))


def check_digits(
    holders: Placement, sizes: NDArray[np.float64], exponent: int, times: float = 1.0
) -> None:
    """Compare the rounding of a masked sum of squared distances with what is usual among them.

    All learn whether any holder can tell what is usual, and whether any has enough digits of it or
    many; of whom that is they learn nothing. ``sizes`` (n,) are squared distances that are usual at
    each holder of this process (0: it cannot tell), ``times`` how many are added up before they are
    rounded; the sum is in fixed point, in units of ``2^exponent``. It refuses if rounding takes the
    digits of usual distances, and warns if it takes many.
    """
    assert holders.masks is not None
    fixed = holders.masks.fixed
    rounding = fixed.n_parties * 2.0 ** (exponent - fixed.fraction_bits - 1)
    largest = times * sizes.max(initial=0.0)
    limits = [rounding / MOST_ROUNDING, rounding / MUCH_ROUNDING]
    known, enough, many = holders.any([largest > 0, *(largest > limit for limit in limits)])
    if not known or many:
        return
    words = (
        f"a value lies so far from all others that masked sums have {'few' if enough else 'no'} "
        "digits left for these: look for a code such as 999999999 for unknown, and leave its rows "
        "out or mark it as missing; or clip values before you scale them"
    )
    if not enough:
        raise InputError(words)
    warnings.warn(words, VpemWarning, stacklevel=4)


def add_numbers(
    total: Sum, values: NDArray[np.float64], kind: str = "estep"
) -> NDArray[np.float64]:
    """Sum a few numbers of every holder, exactly where there is one place that adds them up.

    No codec touches them there, and nothing that is remembered of terms changes. They may be of any
    size: where sums are masked their units are agreed on first. ``values`` (B, P) are of the
    holders of this process; the sum (R, P) is as each root finds it, and R is 1 where all share
    one.
    """
    if not isinstance(total, AtServer):
        return add_vectors(total, values, kind)
    total.charge_as(kind)
    total = in_common_units(total, values)
    found = total.aggregate(total.send(total.holders.padded(values)))
    total.broadcast(values.shape[1] * values.itemsize)
    return found
