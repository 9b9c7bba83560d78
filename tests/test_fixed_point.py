"""Numbers as integers modulo 2^64, and back: the kernels, their twins, and what does not fit."""

import numpy as np
import pytest

from vpem._core import masks
from vpem.errors import InputError
from vpem.network.masks import FixedPoint, _powers_of

from .tables import over
from .twins import codecs as numpy_twins

TILE = 16384
BOTH = masks, numpy_twins
ONE = np.array([2.0**32])


def encoded(module, values, scales=ONE, limit=2.0**60, n_threads=1):
    ring = np.arange(len(values), dtype=np.uint64)  # is added to
    return module.add_scaled(values, scales, limit, ring, n_threads), ring


def odd_values(dtype):
    """Halves that round to even, both zeros, subnormal numbers, and the ends of the range."""
    unit = 2.0**-32
    tiny = np.finfo(dtype).smallest_subnormal
    found = [0.0, -0.0, tiny, -tiny, 1.0, -1.0, 2.0**27, -(2.0**27), 1 / 3, 2.0**28, -(2.0**28)]
    return np.array([*found, *(k * unit / 2 for k in (-5, -3, -1, 1, 3, 5))], dtype=dtype)


@over(
    dtype=[np.float64, np.float32],
    n=[0, 1, TILE - 1, TILE, 6 * TILE + 1],
    own_scales=[False, True],
    n_threads=[1, 2],
)
def test_compiled_is_twin(dtype, n, own_scales, n_threads):
    rng = np.random.default_rng(n)
    values = (rng.normal(size=n) * 2.0 ** rng.integers(-50, 25, n)).astype(dtype)
    values[: len(odd_values(dtype))] = odd_values(dtype)[:n]
    scales = np.ldexp(1.0, rng.integers(-60, 33, n)) if own_scales and n else ONE
    found = [encoded(module, values, scales, n_threads=n_threads) for module in BOTH]
    assert found[0][0] == found[1][0] == -1
    np.testing.assert_array_equal(found[0][1], found[1][1])
    words, back = rng.integers(0, 2**64, n, dtype=np.uint64), np.empty((2, n))
    words[-1:] = 2**62 + 2**10
    for most in (2.0**62, 2.0**63):
        places = [
            module.values_of(words, scales, most, into, n_threads)
            for module, into in zip(BOTH, back, strict=True)
        ]
        np.testing.assert_array_equal(*back)
        assert places[0] == places[1]
        assert (places[0] == -1) == (n == 0 or most == 2.0**63)


def test_first_value_that_does_not_fit_is_found():
    n = 5 * TILE
    for bad in (np.nan, np.inf, -np.inf, 2.0**29, -np.nextafter(2.0**28, np.inf), 1e308):
        for places in ([0], [n - 1], [3 * TILE, TILE + 7, 4 * TILE]):
            values = np.full(n, 2.0**28)
            values[places] = bad
            for module in BOTH:
                assert encoded(module, values, n_threads=2)[0] == min(places)


def test_halves_round_to_even():
    words = encoded(masks, odd_values(np.float64))[1] - np.arange(17, dtype=np.uint64)
    assert words.view(np.int64)[-6:].tolist() == [-2, -2, 0, 0, 2, 2]


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


@over(point=[1, 2, 2**127 - 2, 2**64, 3**80], n=[0, 1, 63, 64, 65, 1000])
def test_tags_are_the_twins(point, n):
    rng, powers = np.random.default_rng(n), _powers_of(point)
    for ring in (
        rng.integers(0, 2**64, n, dtype=np.uint64),
        *(np.full(n, word, dtype=np.uint64) for word in (0, 2**63 - 1, 2**63, 2**64 - 1)),
    ):
        tags = [np.array([2**64 - 1, 2**63 - 2], dtype=np.uint64) for _ in BOTH]
        for module, tag in zip(BOTH, tags, strict=True):
            module.add_tag(ring, powers, tag)
        np.testing.assert_array_equal(*tags)
