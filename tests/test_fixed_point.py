"""Numbers as integers modulo 2^64, and back: the kernels, their twins, and what does not fit."""

import numpy as np
import pytest

from vpem._core import masks
from vpem.errors import InputError
from vpem.network.masks import FixedPoint

from .tables import over
from .twins import codecs as numpy_twins

TILE = 16384
BOTH = masks, numpy_twins
ONE = np.array([2.0**32])


def test_first_value_that_does_not_fit_is_found():
    n = 5 * TILE
    for bad in (np.nan, np.inf, -np.inf, 2.0**29, -np.nextafter(2.0**28, np.inf), 1e308):
        for places in ([0], [n - 1], [3 * TILE, TILE + 7, 4 * TILE]):
            values = np.full(n, 2.0**28)
            values[places] = bad
            for module in BOTH:
                ring = np.zeros(n, dtype=np.uint64)
                assert module.add_scaled(values, ONE, 2.0**60, ring, 2) == min(places)


def test_halves_round_to_even():
    halves = np.array([k * 2.0**-33 for k in (-5, -3, -1, 1, 3, 5)])
    ring = np.zeros(6, dtype=np.uint64)
    assert masks.add_scaled(halves, ONE, 2.0**60, ring, 1) == -1
    assert ring.view(np.int64).tolist() == [-2, -2, 0, 0, 2, 2]


@over(n_parties=[1, 2, 3, 7, 10, 1000, 2**20], bits=[30, 32, 0, 60])
def test_sum_of_all_parties_at_the_limit_does_not_overflow(n_parties, bits):
    fixed = FixedPoint(n_parties, bits)
    assert fixed.limit == int(fixed.limit)
    assert n_parties * int(fixed.limit) <= 2**62 < n_parties * (int(fixed.limit) + 2**10)
    for sign in (1, -1):
        ring = np.zeros(1, dtype=np.uint64)
        assert fixed.add(np.array([sign * fixed.largest]), None, ring) == -1
        ring *= np.uint64(n_parties)
        assert fixed.values(ring, None)[0] == sign * n_parties * fixed.largest
        beyond = np.array([sign * np.nextafter(fixed.largest, np.inf)])
        assert fixed.add(beyond, None, ring) == 0
        ring[:] = 2**63 - (sign < 0)
        with pytest.raises(InputError, match="masks do not cancel"):
            fixed.values(ring, None)


def test_sum_of_rounded_values_is_within_its_bound():
    rng, fixed = np.random.default_rng(0), FixedPoint(9)
    exponents = rng.integers(-900, 900, 4000)
    values = rng.normal(size=(9, 4000)) * np.ldexp(1.0, exponents)
    ring = np.zeros(4000, dtype=np.uint64)
    for own in values:
        assert fixed.add(own, exponents, ring) == -1
    error = np.abs(fixed.values(ring, exponents) - values.sum(axis=0))
    assert (error <= 9 * np.ldexp(1.0, exponents - 33) * 1.0001).all()
    assert (error >= 2 * np.ldexp(1.0, exponents - 33)).any()  # of several, not of one


def test_exponents_that_no_number_has_are_refused():
    with pytest.raises(InputError, match="finite numbers"):
        FixedPoint(3).add(np.ones(1), [1100], np.zeros(1, dtype=np.uint64))
