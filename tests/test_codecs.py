"""Codecs: bytes as the twin packs them, sizes by hand, means and variances over many draws."""

from itertools import pairwise
from math import ceil, inf, log2, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vpem
from vpem._core import codecs as kernels
from vpem.errors import InputError, NumericalError
from vpem.network.codecs import Dither, Natural, Sparse, draw_keys, parse_codec
from vpem.network.partition import contiguous, evenly

from .tables import each, over
from .twins import codecs as twins

SIZES = (1, 2, 64, 65, 255, 257, 1000)
DTYPES = (np.float64, np.float32)
BOTH = (kernels, twins)
TILE = 4096  # values that a kernel packs at a time, about

DITHERS = [  # levels, bucket, order
    (127, 256, 2), (1, 64, 2), (1, 64, inf), (7, 10, 2), (100_000, 33, 2), (2**31 - 1, 7, 2),
    (1, 1, 2), (3, 10_000, 2), (1, 64, 1), (15, 50, 1), (1, 30, 3.5), (7, 256, 1.5), (5, 40, inf),
]  # fmt: skip
BITS = (9, 10, 11, 12, 16, 17, 24)
EDGES = [5e-324, -5e-324, -0.0, 2.0**-127, -(2.0**-126), np.nextafter(2.0**-127, 0)]
NAMES = [
    "qsgd:8bits", "qsgd:2bits", "qsgd:16bits", "qsgd:5levels", "qsgd:8bits:10", "blockp:64",
    "blockp:7:inf", "blockp:3,50,9:1", "qsgd:4bits:5,64:3.5", "natural:9bits", "natural:10bits",
    "natural:24bits", "topk:0.01", "topk:1", "randk:0.1", "randk:1", "float16", "float32",
    "float64",
]  # fmt: skip
LOSSY = [one for one in NAMES if parse_codec(one).is_unbiased and one != "float64"]

names = each("name", NAMES)


def draw(n, dtype=np.float64, n_rows=3):
    """Rows of values of many magnitudes, some zero, some equal, one row all zero."""
    rng = np.random.default_rng([n, n_rows])
    values = rng.normal(size=(n_rows, n)) * 10.0 ** rng.integers(-6, 4, size=(n_rows, n))
    values[rng.random((n_rows, n)) < 0.2] = 0
    values[rng.random((n_rows, n)) < 0.2] = -1.5
    values[-1] = 0
    return values.astype(dtype), draw_keys(rng, n_rows)


def sent_often(name, vector, n_draws, seed=3):
    """What is received of a vector under so many keys."""
    keys = draw_keys(np.random.default_rng(seed), n_draws)
    codec = parse_codec(name) if isinstance(name, str) else name
    return codec.transmit(np.tile(vector, (n_draws, 1)), keys)[0]


# ---- compiled and twin --------------------------------------------------------------------------


def run(module, name, values, arguments, outputs):
    """Run a kernel or a twin with outputs of its own; the faults come last."""
    out = [array.copy() for array in outputs]
    getattr(module, name)(*values, *arguments, *out, 1)
    return out


def kept(share, n):
    return max(1, round(share * n))


KERNELS = [  # kind, settings for n values, bytes of n values
    *(
        (
            "dither", lambda n, one=one: one,
            lambda n, one=one: 4 * ceil(n / one[1]) + ceil(n * (ceil(log2(one[0] + 1)) + 1) / 8),
        )
        for one in DITHERS
    ),
    *(
        (
            "sparse", lambda n, one=one: (kept(one[0], n), one[1]),
            lambda n, one=one: ceil(kept(one[0], n) * ceil(log2(n)) / 8) + 4 * kept(one[0], n),
        )
        for one in ((0.01, False), (0.01, True), (0.3, False), (0.3, True), (1, False), (1, True))
    ),
    *(("natural", lambda n, b=b: (b - 9,), lambda n, b=b: ceil(n * b / 8)) for b in BITS),
    *(("cast", lambda n, size=size: (size,), lambda n, size=size: n * size) for size in (2, 4, 8)),
]  # fmt: skip
NATURAL = dict(zip(BITS, (one for one in KERNELS if one[0] == "natural"), strict=True))


def compare(kernel, values, keys):
    """Encode and decode by both, to the byte; the kernel's transmit is decode of encode."""
    (kind, arguments, size), n = kernel, values.shape[1]
    arguments, blank = arguments(n), np.full_like(values, 7)
    faults = np.zeros(len(values), dtype=np.uint8)
    given = (values,) if kind == "cast" else (values, keys)

    def agree(way, sent, known, out):
        found = [run(module, f"{kind}_{way}", sent, known, (out, faults)) for module in BOTH]
        for one, other in zip(*found, strict=True):
            assert one.dtype == other.dtype
            assert one.tobytes() == other.tobytes()
        assert not found[0][1].any()
        return found[0][0]

    messages = agree("encode", given, arguments, np.zeros((len(values), size(n)), np.uint8))
    received = agree("decode", (messages,), arguments[: 2 if kind == "dither" else 1], blank)
    sent, wrong = run(kernels, f"{kind}_transmit", given, arguments, (blank, faults))
    assert sent.tobytes() == received.tobytes()
    assert not wrong.any()
    return received


@over(
    n=[*SIZES[:-1], TILE - 1, TILE, TILE + 1, 2 * TILE + 77],
    scale=[1.0, 1e-300, 1e-160, 1e-45, 1e-41, 2.0**-127, 1e-38, 1e30],
    kernel=KERNELS,
    dtype=DTYPES,
)
def test_kernels_equal_their_twins(n, scale, dtype, kernel):
    values, keys = draw(n)
    if scale != 1:
        values[:-1] *= scale
        values[1, : len(EDGES)] = EDGES[:n]
    if kernel[0] == "cast":  # float16 ends before
        values = values.clip(-6e4, 6e4)
    values = values.astype(dtype)
    received = compare(kernel, values, keys)
    assert np.isfinite(received).all()
    assert not received[-1].any()
    if kernel[0] == "sparse":
        assert (np.count_nonzero(received, axis=1) <= kernel[1](n)[0]).all()
    elif kernel[0] == "natural":
        step = 2.0 ** -kernel[1](n)[0]
        assert (np.abs(received - values) <= step * np.maximum(np.abs(values), 2.0**-127)).all()


def test_half_precision_is_that_of_numpy_for_every_number_and_the_middle_between_two():
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middle = (halves[1:] + halves[:-1]) / 2
    near = np.concatenate([np.nextafter(middle, 0), middle, np.nextafter(middle, 1e5)])
    values = np.concatenate([halves, -halves, near, -near, [5e-324, 1e-30, 65504]])[None]
    received = compare(KERNELS[-3], values, np.zeros(1, dtype=np.uint64))
    np.testing.assert_array_equal(received[0, : len(halves)], halves)


@over(bad=[np.nan, np.inf, -np.inf, 1e39, 1e200], kernel=KERNELS[:-1], n=[100, TILE + 500])
def test_kernel_and_twin_refuse_the_same_rows(bad, kernel, n):
    kind, arguments, size = kernel
    if kind == "sparse" and np.isfinite(bad) and arguments(n)[1] and arguments(n)[0] < n:
        return  # it may not be sent
    values, keys = draw(n, n_rows=4)
    values[2, n - 9] = bad
    given = (values,) if kind == "cast" else (values, keys)
    messages, faults = np.zeros((4, size(n)), np.uint8), np.full(4, 9, dtype=np.uint8)
    for module, way, out in (
        *((module, "encode", messages) for module in BOTH), (kernels, "transmit", values),
    ):  # fmt: skip
        wrong = run(module, f"{kind}_{way}", given, arguments(n), (out, faults))[1]
        np.testing.assert_array_equal(wrong, [0, 0, 1, 0])


def test_kernel_and_twin_refuse_the_same_messages():
    rng = np.random.default_rng(0)
    seen = np.zeros(2, dtype=int)
    for name, arguments, size in (
        ("dither_decode", (5, 16), 12 + 19), ("sparse_decode", (2,), 2 + 8),
        ("cast_decode", (2,), 74), ("cast_decode", (4,), 148),
    ):  # fmt: skip
        noise = rng.integers(256, size=(400, size), dtype=np.uint8)
        noise[::2, : size // 2] &= 0x23
        outputs = (np.zeros((400, 37)), np.zeros(400, dtype=np.uint8))
        found = (run(module, name, (noise,), arguments, outputs) for module in BOTH)
        (one, wrong), (other, also_wrong) = found
        np.testing.assert_array_equal(wrong, also_wrong)
        np.testing.assert_array_equal(one[wrong == 0], other[wrong == 0])
        assert np.isfinite(one[wrong == 0]).all()
        seen += np.bincount(wrong, minlength=2)
    assert seen.min() > 50


# ---- messages -----------------------------------------------------------------------------------


@over(name=NAMES, n=SIZES, dtype=DTYPES)
def test_transmit_is_decode_of_encode(name, n, dtype):
    codec = parse_codec(name)
    values, _ = draw(n, dtype)
    keys = draw_keys(np.random.default_rng(5), len(values))
    rng = np.random.default_rng(5)
    decoded, message_bytes = codec.transmit(values, keys)
    assert decoded.dtype == dtype
    packed = codec.pack(values, keys, 2)
    for row in range(len(values)):
        message = codec.encode(values[row], rng)
        assert len(message) == message_bytes[row] == codec.message_size(n)
        assert message == packed[row].tobytes()
        np.testing.assert_array_equal(codec.decode(message, n, dtype), decoded[row])
    assert codec.pack(values[:0], keys[:0]).shape == (0, codec.message_size(n))
    unpacked = codec.unpack(packed, n, 2)
    assert unpacked.dtype == np.float64
    np.testing.assert_array_equal(unpacked.astype(dtype), decoded)
    assert not decoded[-1].any()


@names
def test_threads_and_other_messages_do_not_show(name):
    codec = parse_codec(name)
    values, keys = draw(3 * TILE + 5, n_rows=5)
    one, _ = codec.transmit(values, keys, 1)
    for n_threads in (2, 8):
        np.testing.assert_array_equal(codec.transmit(values, keys, n_threads)[0], one)
    alone, _ = codec.transmit(values[2:3], keys[2:3], 2)
    np.testing.assert_array_equal(alone[0], one[2])


@each("n", SIZES)
def test_sizes_are_those_of_the_formula(n):
    by_hand = {
        "qsgd:8bits": 4 * ceil(n / 256) + n,
        "qsgd:4bits": 4 * ceil(n / 256) + ceil(n / 2),
        "qsgd:5levels": 4 * ceil(n / 256) + ceil(4 * n / 8),
        "qsgd:8levels": 4 * ceil(n / 256) + ceil(5 * n / 8),
        "qsgd:8bits:512": 4 * ceil(n / 512) + n,
        "blockp:64": 4 * ceil(n / 64) + ceil(n / 4),
        "randk:1": ceil(n * ceil(log2(n)) / 8) + 4 * n,
        "topk:0.0001": ceil(ceil(log2(n)) / 8) + 4,
        **{f"float{8 * size}": size * n for size in (2, 4, 8)},
        **{f"natural:{bits}bits": ceil(n * bits / 8) for bits in BITS},
    }
    for name, size in by_hand.items():
        message = parse_codec(name).encode(draw(n)[0][0], np.random.default_rng(0))
        assert len(message) == size, name


def test_messages_written_by_hand():
    def encode(name, *values, seed=0):
        return parse_codec(name).encode(np.array(values), np.random.default_rng(seed))

    # norm 5; levels of 4 (bits 100): 3/5 of 4 = 2.4, 4/5 of 4 = 3.2; sign lowest
    seen = set()
    for seed in range(200):
        message = encode("qsgd:4levels", 3.0, -4.0, seed=seed)
        assert message[:4] == np.array([5], dtype="<f4").tobytes()
        first, second = message[4] & 15, message[4] >> 4
        assert (first & 1, second & 1) == (0, 1)
        seen.add((first >> 1, second >> 1))
    assert seen == {(2, 3), (2, 4), (3, 3), (3, 4)}
    largest = bytes([0b1001]) + np.array([3, -4], dtype="<f4").tobytes()
    assert encode("topk:0.5", 0.0, 3, -4, 1) == largest
    # 10 bits: sign, mantissa, exponent; -1.5 is 1, 1, 128 and 0.25 is 0, 0, 126
    number = (1 | 1 << 1 | 128 << 2) | (126 << 2) << 10
    assert encode("natural:10bits", -1.5, 0.25, 0.0) == number.to_bytes(4, "little")
    # A norm that is no float is rounded up.
    for name in ("qsgd:8bits", "blockp:64", "qsgd:2bits", "blockp:64:1", "blockp:64:3"):
        for value in (0.1, 1 / 3, 1 + 2.0**-30, 1e-50):
            norm = float(np.frombuffer(encode(name, value, 0.0)[:4], "<f4")[0])
            assert value <= norm <= max(value * (1 + 2.0**-23), 2.0**-149)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 80), st.sampled_from(NAMES))
def test_any_bytes_are_values_or_refused(message, n, name):
    try:
        values = parse_codec(name).decode(message, n)
    except InputError:
        return
    assert values.shape == (n,)
    assert np.isfinite(values).all()


# ---- mean and variance --------------------------------------------------------------------------

SPREADS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "one": lambda rng, n: np.eye(n)[n // 2] * 3.25,
    "equal": lambda rng, n: np.full(n, -0.125),
    "heavy": lambda rng, n: rng.standard_cauchy(size=n),
    "half steps": lambda rng, n: rng.choice([-1.0, 1.0], size=n) * (1 + np.arange(n) % 3),
}


@over(name=[*LOSSY, "qsgd:3bits", "qsgd:40levels:16", "blockp:64:inf"], spread=SPREADS)
def test_mean_and_variance(name, spread):
    n, n_draws = 130, 700
    vector = SPREADS[spread](np.random.default_rng(17), n)
    errors = sent_often(name, vector, n_draws) - vector
    # z-scores of the mean at each place, and of the mean along the vector itself
    spread_of = np.maximum(errors.std(axis=0, ddof=1), 1e-6 * np.abs(vector) + 1e-300)
    counts = np.abs(errors.mean(axis=0)) / (spread_of / sqrt(n_draws))
    varied = (np.count_nonzero(np.abs(errors - errors[0]) > 0, axis=0)) > 30
    assert counts[varied].max(initial=0) < 6
    along = errors @ np.sign(vector)
    assert abs(along.mean()) <= 5 * along.std(ddof=1) / sqrt(n_draws) + 1e-9 * abs(vector).sum()
    squares = (errors**2).sum(axis=1)
    slack = 5 * squares.std(ddof=1) / sqrt(n_draws)
    assert squares.mean() <= parse_codec(name).variance(n) * (vector @ vector) + slack


def variance_of(values, levels, order, blocks):
    """``E|Q(v) - v|^2 / |v|^2`` by the formula: a value lies between two levels of its block."""
    total = 0.0
    for block in blocks:
        norm = np.linalg.norm(values[block], order)
        place = levels * np.abs(values[block]) / norm
        part = place - np.floor(place)
        total += (norm / levels) ** 2 * (part * (1 - part)).sum()
    return total / (values @ values)


@over(order=[1, 1.3, 2, 2.2, 3, 8, inf], levels=[1, 2, 7], d=[1, 2, 9, 64])
def test_no_values_vary_more_than_omega(order, levels, d):
    omega = parse_codec(f"qsgd:{levels}levels:{d}:{order}").variance(d)
    rng = np.random.default_rng(d)
    alike = [np.r_[ratio, np.ones(d - 1)] for ratio in np.geomspace(1, 60, 400)]
    spread = [*rng.normal(size=(40, d)), *rng.standard_cauchy(size=(40, d)), *alike]
    found = max(variance_of(values, levels, order, [slice(d)]) for values in spread)
    assert found <= omega + 1e-12
    if levels == 1 and d > 1:  # where it is attained
        assert found > (1 - 1e-3) * omega


@over(d=[2, 9, 64, 1000], levels=[1, 3])
def test_omega_of_dithering_is_the_formula(d, levels):
    at = lambda order: parse_codec(f"qsgd:{levels}levels:{d}:{order}").variance(d)  # noqa: E731
    for order in (1, 1.5, 2):
        reach = d ** (1 / order)
        formula = reach / levels - 1 if levels == 1 or reach >= 2 * levels else (
            reach**2 / (4 * levels**2)
        )  # fmt: skip
        assert at(order) == pytest.approx(formula, rel=1e-6)
    assert at("inf") == pytest.approx((sqrt(1 + (d - 1) / levels**2) - 1) / 2, rel=1e-6, abs=1e-6)
    if levels == 1:
        close = at(2.000001), at(1e4)
        assert close == (pytest.approx(at(2), rel=1e-4), pytest.approx(at("inf"), rel=0.02))
    assert parse_codec("randk:0.25").variance(4 * d) == pytest.approx(3)
    assert [parse_codec(f"float{n}").variance(d) for n in (16, 32, 64)] == [4.0**-11, 4.0**-24, 0]


@over(order=[1, 2, 4.5, inf], sizes=[(130,), (3, 9, 40), (1, 200)])
def test_blocks_of_several_sizes_and_any_norm_are_the_formula(order, sizes):
    rng = np.random.default_rng(0)
    n, n_draws = 130, 2000
    ends = [0, *np.cumsum(sizes[:-1])]
    ends += [*range(ends[-1] + sizes[-1], n, sizes[-1]), n]
    blocks = [slice(*pair) for pair in pairwise(ends)]
    values = rng.normal(size=n) * rng.gamma(1.0, size=n)
    codec = parse_codec(f"blockp:{','.join(map(str, sizes))}:{order}")
    received = sent_often(codec, values, n_draws)
    for block in blocks:
        sent = np.unique(np.abs(received[:, block]))
        norm = np.linalg.norm(values[block], order)
        assert (np.abs(sent[sent > 0] / norm - 1) <= 2.0**-23).all()
        there = (received[:, block] != 0).mean(axis=0)
        chance = np.abs(values[block]) / norm
        spread = np.sqrt(chance * (1 - chance) / n_draws)
        assert (np.abs(there - chance) <= 5 * spread + 3 / n_draws).all()
    squares = ((received - values) ** 2).sum(axis=1) / (values @ values)
    known = variance_of(values, 1, order, blocks)
    assert abs(squares.mean() - known) < 5 * squares.std(ddof=1) / sqrt(n_draws)
    assert known <= codec.variance(n)
    by_hand = {1: [4 + 33], 2: [4 + 1, 4 + 33], 3: [4 + 1, 4 + 3, 3 * 4 + 30]}
    assert codec.message_size(n) == sum(by_hand[len(sizes)])


def test_blocks_draw_by_keys_of_their_own():
    first, second = (sent_often("blockp:3,4", np.ones(7), 900)[:, at] != 0 for at in (0, 3))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / sqrt(900)


def test_a_value_between_two_floats_is_sent_without_bias():
    received = sent_often(Sparse(1.0, True), [1 + 0.25 * 2.0**-23], 20_000)
    assert set(received.ravel()) == {1.0, 1 + 2.0**-23}
    assert abs((received > 1).mean() - 0.25) < 5 * sqrt(0.25 * 0.75 / 20_000)


@over(n=SIZES, fraction=[0.01, 0.25, 1.0])
def test_topk_takes_the_largest_and_of_equal_ones_the_first(n, fraction):
    codec = parse_codec(f"topk:{fraction}")
    rng = np.random.default_rng(n)
    for vector in (rng.normal(size=n), rng.integers(-2, 3, size=n) * 1.0, np.full(n, 2.0)):
        (received,) = sent_often(codec, vector, 1)
        order = sorted(range(n), key=lambda j: (-abs(vector[j]), j))
        expected = np.zeros(n)
        first = order[: max(1, int(fraction * n + 0.5))]
        expected[first] = vector[first].astype(np.float32)
        np.testing.assert_array_equal(received, expected)
        error = received - vector
        assert error @ error <= (codec.variance(n) + 2.0**-47) * (vector @ vector)


def test_randk_takes_every_subset_as_often():
    received = sent_often("randk:0.4", np.ones(5), 20_000)
    assert set(np.unique(received)) == {0.0, 2.5}
    found, counts = np.unique((received > 0) @ (1 << np.arange(5)), return_counts=True)
    assert len(found) == 10
    assert ((counts - 2000) ** 2 / 2000).sum() < 35  # chi squared of 9, p < 1e-4


# ---- natural compression ------------------------------------------------------------------------


def numbers(bits):
    """All numbers of so many bits that are not negative, in rising order."""
    fractions = np.arange(2 ** (bits - 9)) / 2 ** (bits - 9)
    small = fractions * 2.0**-127
    return np.concatenate([small, *((1 + fractions) * 2.0**e for e in range(-127, 128))])


@over(bits=[9, 10, 12, 16], dtype=DTYPES)
def test_every_number_is_received_as_it_is_and_every_code_is_one_of_its_own(bits, dtype):
    exact = numbers(bits)
    assert len(exact) == 2 ** (bits - 1)
    assert exact[-1] == (2 - 2.0 ** (9 - bits)) * 2.0**127
    assert (np.diff(exact) > 0).all()
    values = np.concatenate([exact, -exact])[None].astype(dtype)
    for key in range(3):
        received = compare(NATURAL[bits], values, np.array([key], dtype=np.uint64))
        np.testing.assert_array_equal(received, values)
    codes = np.arange(2**bits, dtype=np.uint64)
    spread = (codes[:, None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)
    message = np.packbits(spread.astype(np.uint8).ravel(), bitorder="little").tobytes()
    decoded = Natural(bits).decode(message, 2**bits, dtype)
    np.testing.assert_array_equal(decoded[::2], exact)
    np.testing.assert_array_equal(decoded[1::2], -exact)
    assert not np.signbit(decoded[:2]).any()


@each("bits", [9, 10, 12, 16])
def test_values_go_to_one_of_their_two_neighbours(bits):
    exact = numbers(bits)
    rng = np.random.default_rng(bits)
    at = rng.integers(len(exact) - 1, size=3000)
    at[:100] = 0  # between zero and the least number
    low, high, share = exact[at], exact[at + 1], rng.random(3000)
    received = sent_often(Natural(bits), low + share * (high - low), 200)
    assert ((received == low) | (received == high)).all()
    up = (received == high).sum(axis=0)
    scores = (up - 200 * share) / np.sqrt(200 * share * (1 - share) + 1)
    assert np.abs(scores).max() < 6
    for some in (scores, scores[:100]):
        assert abs(some.mean()) < 5 / sqrt(some.size)
    assert 0.9 < scores.std() < 1.1


@each("bits", BITS)
def test_the_variance_bound_of_natural_is_attained_and_never_passed(bits):
    step, omega = 2.0 ** (9 - bits), Natural(bits).variance(5)
    assert omega == pytest.approx(step**2 / (4 + 4 * step), rel=1e-15)
    # the neighbours a and b of many v, and the expected square in exact form
    places = np.linspace(1, 2, 2**17, endpoint=False) + 2.0**-30
    low = np.floor(places / step) * step
    ratio = (places - low) * (low + step - places) / places**2
    assert ratio.max() == pytest.approx(omega, rel=1e-3)
    assert ratio.max() <= omega * (1 + 1e-12)


# ---- names and errors ---------------------------------------------------------------------------


CANONICAL = {
    "qsgd:127levels": "qsgd:8bits", "qsgd:8bits:256": "qsgd:8bits", "topk:0.010": "topk:0.01",
    "qsgd:100levels:9": "qsgd:100levels:9", "qsgd:65535levels": "qsgd:65535levels",
    "qsgd:32767levels": "qsgd:16bits", "blockp:64:2": "blockp:64", "topk:1e-5": "topk:1e-05",
    "randk:1.0": "randk:1", "float32": "float32", "natural:010bits": "natural:10bits",
    "blockp:64,64": "blockp:64", "blockp:3,9,9:2": "blockp:3,9", "blockp:64:1.0": "blockp:64:1",
    "qsgd:8bits:256:2": "qsgd:8bits", "qsgd:8bits:256:inf": "qsgd:8bits:256:inf",
    "qsgd:2bits:64:inf": "qsgd:2bits:64:inf", "blockp:64:inf": "blockp:64:inf",
}  # fmt: skip


@each(("text", "name"), CANONICAL.items())
def test_names_are_canonical(text, name):
    assert parse_codec(text).name == name
    assert parse_codec(text) == parse_codec(name)
    assert hash(parse_codec(text)) == hash(parse_codec(name))


@each(
    ("text", "words"),
    [
        ("qsdg:8bits", r"codec must be one of .*, got 'qsdg' \(did you mean 'qsgd'\?\)"),
        ("", "codec must be one of"),
        (8, "codec must be one of .*, got 8"),
        (None, "codec must be one of"),
        ("qsgd", "try 'qsgd:8bits'"),
        ("qsgd:8", "takes bits or levels, got '8'"),
        ("qsgd:1bits", "from 2 to 16"),
        ("qsgd:17bits", "from 1 to 16, got '17'"),
        ("qsgd:0levels", "levels of qsgd must be an integer from 1"),
        ("qsgd:-3levels", "got '-3'"),
        ("qsgd:99999999999levels", "levels of qsgd"),
        ("qsgd:8bits:0", "bucket of qsgd"),
        ("qsgd:8bits:5:6:7", "qsgd takes bits or levels"),
        ("qsgd:8bits:", "bucket of qsgd must be an integer from 1 .* got ''"),
        ("blockp", "try 'blockp:64'"),
        ("blockp:x", "block of blockp must be an integer"),
        ("blockp:64:0.9", "norm of blockp must be a number of at least 1, or inf, got '0.9'"),
        ("blockp:64:nan", "norm of blockp must be a number of at least 1, or inf, got 'nan'"),
        ("qsgd:4bits:64:x", "norm of qsgd must be a number of at least 1, or inf, got 'x'"),
        ("blockp:64,0", "block of blockp must be an integer from 1 .* got '0'"),
        ("blockp:64,,3", "block of blockp must be an integer from 1 .* got ''"),
        ("topk", "try 'topk:0.1'"),
        ("topk:0", "the fraction of topk must be above 0 and at most 1, got 0.0"),
        ("topk:nan", "fraction of topk"),
        ("randk:1.5", "fraction of randk must be above 0 and at most 1, got 1.5"),
        ("randk:a", "try 'randk:0.1'"),
        ("float16:2", "a cast takes no options"),
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


@over(name=NAMES, bad=[np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(name, bad):
    codec = parse_codec(name)
    values, keys = draw(70)
    values[1, 66] = bad
    with pytest.raises(NumericalError, match=rf"value 66 of message 1 is .*{name.split(':')[0]}"):
        codec.transmit(values, keys)
    with pytest.raises(NumericalError, match="value 66 is "):
        codec.encode(values[1], np.random.default_rng(0))


LARGEST = float(np.finfo(np.float32).max)


@each(
    ("name", "largest", "above", "words"),
    [
        ("float16", 65504.0, 65504.01, "too large for 'float16', which ends at 65504"),
        ("float32", LARGEST, 3.5e38, "which ends at 3.40282e"),
        ("qsgd:8bits", LARGEST, 3.5e38, r"whose norms are float32 \(at most 3.40282e"),
        ("qsgd:8bits", LARGEST, 1e200, "whose norms are float32"),
        ("blockp:1", LARGEST, 3.5e38, "whose norms are float32"),
        ("topk:1", LARGEST, 1e39, "sends values as float32"),
        ("randk:1", LARGEST, 3.5e38, "sends values times 1 as float32"),
        ("natural:9bits", numbers(9)[-1], 1.8e38, "which ends at 1.70141e"),
        ("natural:10bits", numbers(10)[-1], 2.56e38, r"reach 2.56e\+38, .*ends at 2.55212e"),
        ("natural:16bits", numbers(16)[-1], 3.4e38, "which ends at 3.38953e"),
        ("float64", 1e308, np.inf, "value 0 is -inf"),
    ],
)
def test_the_largest_that_can_be_sent(name, largest, above, words):
    codec = parse_codec(name)
    for dtype in DTYPES if name != "float64" else DTYPES[:1]:
        values = np.array([[-largest]], dtype=dtype)
        received, _ = codec.transmit(values, np.zeros(1, dtype=np.uint64))
        np.testing.assert_allclose(received, values, rtol=1e-15)
    with pytest.raises(NumericalError, match=words):
        codec.encode(np.array([-above]), np.random.default_rng(0))


@names
def test_numbers_of_any_kind_that_lie_apart_or_are_none_at_all(name):
    codec, rng = parse_codec(name), np.random.default_rng(0)
    message = codec.encode(np.arange(5), rng)
    assert codec.message_size(np.int64(5)) == codec.message_size(5) == len(message)
    np.testing.assert_array_equal(
        codec.decode(bytearray(message), np.int64(5)), codec.decode(message, 5)
    )
    if not name.startswith(("topk", "randk")):
        assert not codec.decode(memoryview(bytes(2 * len(message)))[::2], 5).any()
    values, keys = draw(40, n_rows=4)
    values.setflags(write=False)
    whole, _ = codec.transmit(values[::2, ::-1].copy(), keys[::2].copy())
    apart, _ = codec.transmit(values[::2, ::-1], keys[::2])
    np.testing.assert_array_equal(apart, whole)
    assert codec.variance(0) == 0
    assert codec.encode(np.empty(0), rng) == b""
    assert codec.decode(b"", 0).shape == (0,)
    for shape in ((0, 3), (3, 0), (0, 0)):
        keys = np.zeros(shape[0], dtype=np.uint64)
        decoded, message_bytes = codec.transmit(np.empty(shape), keys)
        assert decoded.shape == shape
        assert (message_bytes == 0).all()


def test_settings_may_be_of_numpy():
    dither, natural = Dither(np.int64(7), np.int32(9)), Natural(np.int8(10))
    for one, name in ((dither, "qsgd:4bits:9"), (natural, "natural:10bits")):
        assert one == parse_codec(name)
        assert one.name == name
    assert Natural(np.int8(24)).message_size(10**6) == 3 * 10**6


RNG = np.random.default_rng(0)
TOPK, QSGD = parse_codec("topk:0.5"), parse_codec("qsgd:8bits")
SENT = TOPK.encode(np.arange(6.0), RNG)
WIDE = parse_codec("float64").encode(np.array([1e300]), RNG)
KEYS, ROWS = "2 messages need as many keys", np.ones((2, 4))
NUMBERS = "a message must be an array of numbers"


@each(
    ("call", "words"),
    [
        *((lambda bad=bad: Sparse(bad, True), "the fraction of randk")
          for bad in ("a", None, np.nan, -1)),
        *((lambda bad=bad: Natural(bad), "bits of natural must be an integer of at least 9")
          for bad in (8, 25, 10.0, "10", None)),
        (lambda: TOPK.decode(SENT[:-1], 6), r"by 'topk:0\.5' has 14 bytes, got 13"),
        (lambda: TOPK.decode(b"\xff\xff" + SENT[2:], 6), "no message of 6 values"),
        (lambda: TOPK.decode(b"\x00\x00" + SENT[2:], 6), "no message of 6 values"),
        *((lambda bad=bad: TOPK.unpack(bad, 6), "are rows of 14 bytes, got shape")
          for bad in (np.zeros((2, 13), np.uint8), np.zeros((2, 14)), np.zeros(14, np.uint8))),
        (lambda: TOPK.decode("x" * 14, 6), "must be bytes, got str"),
        (lambda: TOPK.decode(SENT, 6, np.int64), "float32 or float64, got int64"),
        (lambda: TOPK.decode(SENT, -1), "values of a message must be an integer"),
        (lambda: parse_codec("float64").decode(WIDE, 1, np.float32), "out of range"),
        (lambda: QSGD.decode(b"\0\0\x80\x7f\x01", 1), "out of range"),
        (lambda: parse_codec("qsgd:5levels").decode(bytes(4) + b"\x0f", 1), "out of range"),
        *((lambda bad=bad: QSGD.encode(bad, RNG), NUMBERS)
          for bad in (np.ones((2, 2)), np.array(["a"]), np.array([1j]), 3.0)),
        *((lambda bad=bad: QSGD.transmit(ROWS, bad), KEYS)
          for bad in (np.zeros(2), np.zeros(3, np.uint64), np.zeros(2, np.int64))),
    ],
)  # fmt: skip
def test_refusals(call, words):
    with pytest.raises(InputError, match=words):
        call()


METHODS = ("variance", "message_size", "encode", "decode", "pack", "unpack", "transmit")
Own = type(
    "Own", (), {"name": "mine", "is_unbiased": True}
    | {name: staticmethod(getattr(QSGD, name)) for name in METHODS}
)  # fmt: skip
"""A codec of somebody else's, with the methods of `vpem.Codec` alone."""


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
def test_everything_takes_a_codec_of_the_protocol():
    X, workers = np.random.default_rng(0).normal(size=(60, 4)), evenly(60, 3)
    plain = {"n_components": 2, "max_iter": 2, "seed": 0}
    star, cycle = (vpem.make_graph(name, 4) for name in ("star", "cycle"))
    held, ring = contiguous(4, 4), vpem.make_graph("cycle", 3)

    def fits(codec):
        yield vpem.fit_fedem(X, workers, compress=codec, **plain)
        yield vpem.fit_vpem(X, vpem.connect(star, held, compress=codec), **plain)
        yield vpem.fit_vpem(X, vpem.connect(cycle, held, compress=codec), **plain)
        joined = vpem.connect_workers(ring, compress=codec)
        yield vpem.fit_fedem(X, workers, joined, **plain)
        yield vpem.kmeans_features(X, vpem.connect(star, held, compress=codec), n_clusters=2)
        yield vpem.FedEM(2, 3, compress=codec, max_iter=2, random_state=0).fit(X)

    assert isinstance(Own(), vpem.Codec)
    for ours, theirs in zip(fits(Own()), fits("qsgd:8bits"), strict=True):
        for name in ("log_likelihood", "inertia", "means_"):
            if hasattr(theirs, name):
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    for wrong in (3, object(), "fine"):
        with pytest.raises(vpem.InputError, match="the codec must be"):
            vpem.fit_fedem(X, workers, compress=wrong, **plain)
