"""Units in which numbers of any size can be added under masks, which holders agree on.

A masked sum is of numbers in a range (`vpem.network.masks.FixedPoint`), in units of a power of two.
Where none is known beforehand, holders find out how large the largest is of all.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from vpem.engines.placement import DIGIT, Placement
from vpem.errors import InputError, VpemWarning
from vpem.sums.adding import MASKED_BYTES
from vpem.sums.counted import AtServer, add_vectors
from vpem.sums.sum import Sum

__all__ = ["add_numbers", "check_digits", "in_common_units"]

MOST_ROUNDING = 1e-2
"""Of usual squared distances, beyond which rounding decides for one row in 100 or more."""

MUCH_ROUNDING = 1e-5
"""Of them, beyond which one row in 100,000 may be near enough to two centres to change clusters."""

MESSAGES = 2
"""In which holders find a power of two, a digit in each."""


def in_common_units(total: AtServer, values: NDArray[np.float64]) -> AtServer:
    """Return the same sum in units in which numbers of all holders can be added under masks.

    Of each number all learn the largest power of two of all holders, and nobody whose it is.

    Parameters
    ----------
    total : AtServer
        How they are summed.
    values : ndarray of shape (B, P)
        What each holder of this process has.
    """
    if total.holders.masks is None:
        return total
    for _ in range(MESSAGES):
        size = (DIGIT - 1) * values.shape[1] * MASKED_BYTES
        total.count(size)
        total.broadcast(size)
    return total.in_units(total.holders.exponents(values))


def check_digits(
    holders: Placement, sizes: NDArray[np.float64], exponent: int, times: float = 1.0
) -> None:
    """Compare the rounding of a masked sum of squared distances with what is usual among them.

    All learn whether any holder can tell what is usual, and whether any has enough digits of it or
    many; of whom that is they learn nothing.

    Parameters
    ----------
    holders : Placement
        Who adds, under masks.
    sizes : ndarray of shape (n,)
        Squared distances that are usual at each holder of this process; 0: it cannot tell.
    exponent : int
        The sum is in units of 2 to this power, in fixed point.
    times : float
        How many such distances are added up before they are rounded.

    Raises
    ------
    InputError
        If rounding takes the digits of usual distances.

    Warns
    -----
    VpemWarning
        If it takes many of them.
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


def add_numbers(total: Sum, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum a few numbers of every holder, exactly where there is one place that adds them up.

    No codec touches them there, and nothing that is remembered of terms changes. They may be of any
    size: where sums are masked their units are agreed on first.

    Parameters
    ----------
    total : Sum
        How.
    values : ndarray of shape (B, P)
        What each holder of this process has.

    Returns
    -------
    ndarray of shape (R, P)
        The sum, as each root finds it; R is 1 where all share one.
    """
    if not isinstance(total, AtServer):
        return add_vectors(total, values)
    total.charge_as("estep")
    total = in_common_units(total, values)
    found = total.aggregate(total.send(total.holders.padded(values)))
    total.broadcast(values.shape[1] * values.itemsize)
    return found
