"""Natural compression: bytes as the twin packs them, each number exact, errors as derived."""

from math import ceil, sqrt

import numpy as np
import pytest

from vpem._core import codecs as kernels
from vpem.errors import InputError, NumericalError
from vpem.network.codecs import Natural, draw_keys, parse_codec

from .tables import each, over
from .twins import codecs as twins

SIZES = (1, 2, 7, 8, 9, 63, 257, 4095, 4096, 4097, 12_365)
BITS = (9, 10, 11, 12, 16, 17, 24)


def largest(bits):
    """Largest number of so many bits."""
    return (2 - 2.0 ** (9 - bits)) * 2.0**127


def numbers(bits):
    """All numbers of so many bits that are not negative, in rising order."""
    m = bits - 9
    fractions = np.arange(2**m) / 2**m
    small = fractions * 2.0**-127
    return np.concatenate([small, *((1 + fractions) * 2.0**e for e in range(-127, 128))])


def run(module, values, keys, bits):
    """Messages, what is decoded of them, what transmit gives, and the faults of the three."""
    n_rows, n = values.shape
    messages = np.zeros((n_rows, ceil(n * bits / 8)), dtype=np.uint8)
    decoded, sent = np.full_like(values, 7), np.full_like(values, 7)
    faults = np.full((3, n_rows), 9, dtype=np.uint8)
    module.natural_encode(values, keys, bits - 9, messages, faults[0], 1)
    module.natural_decode(messages, bits - 9, decoded, faults[1], 1)
    module.natural_transmit(values, keys, bits - 9, sent, faults[2], 1)
    return messages, decoded, sent, faults


def agree(values, keys, bits):
    """Hold kernel and twin together to the byte, and return what is received."""
    compiled, twin = (run(module, values, keys, bits) for module in (kernels, twins))
    for one, other in zip(compiled, twin, strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
    _, decoded, sent, faults = compiled
    assert not faults.any()
    assert decoded.tobytes() == sent.tobytes()
    return sent


@over(bits=BITS, dtype=[np.float64, np.float32], n=SIZES)
def test_kernel_equals_its_twin(bits, dtype, n):
    rng = np.random.default_rng([n, bits])
    values = rng.normal(size=(3, n)) * 10.0 ** rng.integers(-37, 37, size=(3, n))
    values[rng.random((3, n)) < 0.2] = 0
    values[-1] = 0
    received = agree(values.astype(dtype), draw_keys(rng, 3), bits)
    assert not received[-1].any()


@over(bits=BITS, scale=[1e-300, 1e-45, 1e-41, 2.0**-127, 1e-38, 1e37])
def test_very_small_and_very_large_values_equal_the_twin(bits, scale):
    rng = np.random.default_rng(bits)
    edges = [5e-324, -5e-324, -0.0, 2.0**-127, -(2.0**-126), np.nextafter(2.0**-127, 0)]
    values = np.concatenate([rng.uniform(-2, 2, size=200) * scale, edges])[None]
    received = agree(values, draw_keys(rng, 1), bits)
    step = 2.0 ** (9 - bits)
    assert (np.abs(received - values) <= step * np.maximum(np.abs(values), 2.0**-127)).all()


@over(bits=[9, 10, 12, 16], dtype=[np.float64, np.float32])
def test_every_number_is_received_as_it_is(bits, dtype):
    exact = numbers(bits)
    assert len(exact) == 2 ** (bits - 1)
    assert exact[-1] == largest(bits)
    assert (np.diff(exact) > 0).all()
    values = np.concatenate([exact, -exact])[None].astype(dtype)
    for seed in range(3):
        np.testing.assert_array_equal(
            agree(values, draw_keys(np.random.default_rng(seed), 1), bits), values
        )


@each("bits", [9, 10, 12, 16])
def test_every_code_is_a_number_of_its_own(bits):
    codes = np.arange(2**bits, dtype=np.uint64)
    spread = (codes[:, None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)
    message = np.packbits(spread.astype(np.uint8).ravel(), bitorder="little").tobytes()
    for dtype in (np.float64, np.float32):
        values = Natural(bits).decode(message, 2**bits, dtype)
        np.testing.assert_array_equal(values[::2], numbers(bits))
        np.testing.assert_array_equal(values[1::2], -numbers(bits))
        assert not np.signbit(values[:2]).any()


@each("bits", [9, 10, 12, 16])
def test_values_go_to_one_of_their_two_neighbours(bits):
    exact = numbers(bits)
    rng = np.random.default_rng(bits)
    at = rng.integers(len(exact) - 1, size=3000)
    low, high = exact[at], exact[at + 1]
    share = rng.random(3000)
    values = low + share * (high - low)
    up = np.zeros(3000)
    for key in draw_keys(rng, 200):
        (received,) = agree(values[None], np.array([key]), bits)
        assert ((received == low) | (received == high)).all()
        up += received == high
    scores = (up - 200 * share) / np.sqrt(200 * share * (1 - share) + 1)
    assert np.abs(scores).max() < 6
    assert abs(scores.mean()) < 5 / sqrt(3000)
    assert 0.9 < scores.std() < 1.1


@each("bits", BITS)
def test_the_variance_bound_is_attained_and_never_passed(bits):
    codec = Natural(bits)
    step = 2.0 ** (9 - bits)
    omega = codec.variance(5)
    assert omega == pytest.approx(step**2 / (4 + 4 * step), rel=1e-15)
    # the neighbours a and b of many v, and the expected square in exact form
    places = np.linspace(1, 2, 2**17, endpoint=False) + 2.0**-30
    low = np.floor(places / step) * step
    ratio = (places - low) * (low + step - places) / places**2
    assert ratio.max() <= omega * (1 + 1e-12)
    worst = 2 * (1 + step) / (2 + step)
    rng = np.random.default_rng(bits)
    for scale in (1.0, -(2.0**-127), 2.0**120):
        received, _ = codec.transmit(np.full((40, 500), scale * worst), draw_keys(rng, 40))
        squares = ((received / scale - worst) ** 2 / worst**2).ravel()
        slack = 5 * squares.std() / sqrt(squares.size) + 1e-3 * omega
        assert squares.mean() == pytest.approx(omega, abs=slack)


def test_without_a_mantissa_it_is_that_of_the_paper():
    assert Natural(9).variance(1) == 1 / 8
    assert Natural(10).variance(1) == 1 / 24
    assert Natural(9).variance(0) == 0


@over(bits=[9, 10, 16], share=[0.01, 0.3, 0.9])
def test_what_is_below_the_least_number_is_zero_or_that_number(bits, share):
    codec = Natural(bits)
    least = numbers(bits)[1]
    values = np.full((20, 1000), -share * least)
    received, _ = codec.transmit(values, draw_keys(np.random.default_rng(bits), 20))
    assert set(np.unique(received)) == {-least, 0.0}
    up = (received < 0).mean()
    assert abs(up - share) < 5 * sqrt(share * (1 - share) / values.size)


def test_large_values_do_not_drown_small_ones():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(1, 256))
    values[0, 0] = 1e6
    keys = draw_keys(rng, 1)
    natural, _ = parse_codec("natural:10bits").transmit(values, keys)
    dithered, _ = parse_codec("qsgd:8bits").transmit(values, keys)
    small = values[0, 1:]
    assert np.linalg.norm(natural[0, 1:] - small) < 0.25 * np.linalg.norm(small)
    assert np.linalg.norm(dithered[0, 1:] - small) >= np.linalg.norm(small)


@each("bits", BITS)
def test_what_cannot_be_sent_is_a_fault_of_its_row(bits):
    most = largest(bits)
    keys = np.arange(4, dtype=np.uint64)
    values = np.ones((4, 5000))
    values[0, 4999] = -most
    for bad in (np.nan, np.inf, -np.inf, np.nextafter(most, np.inf), -1e300):
        values[2, 4500] = bad
        for module in (kernels, twins):
            _, _, _, faults = run(module, values, keys, bits)
            np.testing.assert_array_equal(faults, [[0, 0, 1, 0], [0] * 4, [0, 0, 1, 0]])


def test_a_message_written_by_hand():
    # 10 bits: sign, mantissa, exponent; -1.5 is 1, 1, 128 and 0.25 is 0, 0, 126
    message = Natural(10).encode(np.array([-1.5, 0.25, 0.0]), np.random.default_rng(0))
    number = (1 | 1 << 1 | 128 << 2) | (126 << 2) << 10
    assert message == number.to_bytes(4, "little")


@each("n", SIZES)
def test_sizes(n):
    for bits in BITS:
        message = Natural(bits).encode(np.ones(n), np.random.default_rng(0))
        assert len(message) == Natural(bits).message_size(n) == ceil(n * bits / 8)


def test_threads_do_not_show_in_the_kernels():
    rng = np.random.default_rng(1)
    values, keys = rng.normal(size=(3, 12_365)), draw_keys(rng, 3)
    messages, decoded, sent, _ = run(kernels, values, keys, 11)
    for n_threads in (2, 5):
        other, faults = np.zeros_like(messages), np.zeros(3, dtype=np.uint8)
        kernels.natural_encode(values, keys, 2, other, faults, n_threads)
        np.testing.assert_array_equal(other, messages)
        for name, given, expected in (
            ("natural_decode", (messages,), decoded),
            ("natural_transmit", (values, keys), sent),
        ):
            out = np.zeros_like(values)
            getattr(kernels, name)(*given, 2, out, faults, n_threads)
            np.testing.assert_array_equal(out, expected)


@each("bits", [8, 25, 10.0, "10", None])
def test_bits_out_of_range(bits):
    with pytest.raises(InputError, match="bits of natural must be an integer of at least 9"):
        Natural(bits)


def test_integers_of_any_kind():
    assert Natural(np.int8(10)) == parse_codec("natural:10bits")
    assert Natural(np.int8(10)).name == "natural:10bits"
    assert Natural(np.int8(24)).message_size(10**6) == 3 * 10**6


def test_the_largest_that_can_be_sent():
    codec, rng = Natural(10), np.random.default_rng(0)
    for dtype in (np.float64, np.float32):
        most = np.array([-largest(10)], dtype=dtype)
        np.testing.assert_array_equal(codec.decode(codec.encode(most, rng), 1, dtype), most)
        words = r"values reach 2.55212e\+38, too large for 'natural:10bits', which ends at 2.55212e"
        with pytest.raises(NumericalError, match=words):
            codec.encode(np.nextafter(most, dtype(-np.inf)), rng)


@each(
    ("text", "words"),
    [
        ("natural", "natural takes the bits of a value, got 'natural'; try 'natural:10bits'"),
        ("natural:10", "try 'natural:10bits'"),
        ("natural:10bits:2", "try 'natural:10bits'"),
        ("natural:bits", "bits of natural must be an integer from 9 to 24, got ''"),
        ("natural:8bits", "bits of natural must be an integer from 9 to 24, got '8'"),
        ("natural:25bits", "bits of natural must be an integer from 9 to 24, got '25'"),
        ("natrual:10bits", "did you mean 'natural'"),
    ],
)
def test_names_that_mean_nothing(text, words):
    with pytest.raises(InputError, match=words):
        parse_codec(text)


def test_names_are_canonical():
    assert parse_codec("natural:010bits").name == "natural:10bits"
    for bits in range(9, 25):
        assert parse_codec(f"natural:{bits}bits") == Natural(bits)
        assert parse_codec(Natural(bits).name) == Natural(bits)
