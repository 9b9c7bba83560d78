"""Units in which numbers of any size can be added under masks, which holders agree on.

A masked sum is of numbers in a range (`vpem.network.masks.FixedPoint`), in units of a power of two.
Where none is known beforehand, holders find by masked counts how large the largest is of all.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from vpem.engines.placement import Placement
from vpem.errors import InputError, VpemWarning
from vpem.network.masks import Masks
from vpem.sums.adding import MASKED_BYTES
from vpem.sums.counted import AtServer, add_vectors
from vpem.sums.sum import Sum

__all__ = ["add_numbers", "check_digits", "in_common_units"]

LEAST_POWER = -480
"""Numbers below this power of two count as nothing where units are agreed on."""

MOST_ROUNDING = 1e-2
"""Of usual squared distances, beyond which rounding decides for one row in 100 or more."""

MUCH_ROUNDING = 1e-5
"""Of them, beyond which one row in 100,000 may be near enough to two centres to change clusters."""

STEP = 32
"""Powers of two are found in two steps: which run of so many, and which of the run."""


def in_common_units(total: AtServer, values: NDArray[np.float64]) -> AtServer:
    """Return the same sum in units in which numbers of all holders can be added under masks.

    Holders count, under masks too, how many of them have their largest numbers in each of some runs
    of powers of two, and then at each power of the last run: of whom that is nobody hears.
    ``values`` (B, P) are of the holders of this process.
    """
    masks = total.holders.masks
    if masks is None:
        return total
    counting = total.in_units(0)
    counting.weights = None

    def last(places: NDArray[np.int64]) -> NDArray[np.int64]:
        own = total.holders.padded(_one_hot(places))
        counts = counting.aggregate(counting.send(own))[0]
        counting.broadcast(own.shape[1] * MASKED_BYTES)
        return _last_of(counts)

    powers = _powers_of(values)
    run = last(powers // STEP)
    place = last(np.where(powers // STEP == run, powers % STEP, -1))
    return total.in_units(_units_below(STEP * run + place, masks))


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


def _powers_of(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Powers of two that numbers are below, counted from the least that matters, `LEAST_POWER`."""
    found = np.frexp(values)[1].astype(np.int64) - LEAST_POWER
    found[values == 0] = 0
    return found.clip(0, STEP**2 - 1)


def _one_hot(places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Ones at places (B, P) of `STEP` each among zeros, (B, P `STEP`); none at places below 0."""
    found: NDArray[np.float64] = (places[:, :, None] == np.arange(STEP)).astype(np.float64)
    return found.reshape(len(places), places.shape[1] * STEP)


def _last_of(counts: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the last of `STEP` places each (P,) at which anybody has something."""
    there = counts.reshape(-1, STEP)[:, ::-1] > 0.5
    found: NDArray[np.int64] = STEP - 1 - there.argmax(axis=1)
    return found


def _units_below(powers: NDArray[np.int64], masks: Masks) -> NDArray[np.int64]:
    """Powers of two (P,) in which numbers below these can be added under masks."""
    return powers + LEAST_POWER - (int(np.frexp(masks.fixed.largest)[1]) - 1)
