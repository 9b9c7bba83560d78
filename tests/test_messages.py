"""Messages between parties: what can be sent comes back, and nothing else is read."""

import contextlib

import numpy as np
import pytest

from vpem.errors import InputError
from vpem.network.messages import decode, encode

from .tables import each

VALUES = [
    None, True, 3, -2.5, float("inf"), "héllo", b"\x00\xff", [], (), {}, [1, [2, (3, {"a": None})]],
    {1: "one", "two": 2, (1, 2): [3]}, np.float32(1.5), np.int64(7),
    np.zeros((0, 3)), np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::-1], np.array(2.5),
    np.array([b"ab", b"c"]), np.array([["x", "yz"]]), np.array([True, False]), np.array([""]),
]  # fmt: skip


@each("value", VALUES)
def test_messages_come_back(value):
    back = decode(encode(value))
    assert type(back) is type(value)
    np.testing.assert_equal(back, value)
    if isinstance(value, np.ndarray):
        assert back.dtype == value.dtype
        assert back.shape == value.shape


def test_nan_comes_back():
    assert np.isnan(decode(encode(float("nan"))))


@each(
    "value", [object(), {1, 2}, np.array([object()]), [lambda: 0], 1j, np.datetime64("2020-01-01")]
)
def test_nothing_else_is_sent(value):
    with pytest.raises(TypeError, match="cannot be sent"):
        encode(value)


def test_damaged_messages_are_refused():
    whole = encode({"x": np.arange(4.0), "y": [1, b"abc"]})
    damaged = [whole[:end] for end in range(len(whole))] + [whole + b"x", b"", b"vpem" * 9]
    for message in damaged:
        with pytest.raises(InputError, match="damaged"):
            decode(message)


HEADERS = [
    '{"a":"|O","s":[1],"g":false}', '{"a":"<f8","s":[-1],"g":false}', "[1]",
    '{"a":"<U1000000000","s":[0,1],"g":false,"b":8}', '{"a":"<U0","s":[1000000000],"g":false}',
    '{"a":"<f8","s":[4294967296,4294967296],"g":false}', '{"a":"<f8","s":[1.0],"g":false}',
    '{"a":"f8,f8","s":[1],"g":false}', '{"a":"<M8","s":[1],"g":false}', '{"b":8.0}', '{"b":true}',
    '{"a":"<f8","s":[1],"g":true}', '{"a":"<f8","s":[' + "1," * 99 + '1],"g":false}',
    '{"d":[[1,2],[1,3]]}', '{"d":[[{"l":[]},2]]}', '{"d":[[1]]}', '{"l":{"b":8}}', '{"x":[]}', "{}",
    '{"l":[],"t":[]}', '{"l":' * 100 + "1" + "}" * 100, "[" * 100_000, "1" * 5000,
]  # fmt: skip


@each("header", HEADERS)
def test_no_header_makes_what_is_not_there(header):
    text = header.encode()
    for rest in (b"", bytes(8)):
        with pytest.raises(InputError, match="damaged"):
            decode(b"vpem" + len(text).to_bytes(8, "little") + text + rest)


def test_mutated_messages_are_read_or_refused():
    rng = np.random.default_rng(0)
    wholes = [encode(value) for value in VALUES] + [encode(VALUES)]
    for number in range(3000):
        message = bytearray(wholes[number % len(wholes)])
        for _ in range(rng.integers(1, 4)):
            at = rng.integers(len(message))
            message[at : at + rng.integers(3)] = rng.bytes(rng.integers(3))
        with contextlib.suppress(InputError):
            encode(decode(message))
