"""Links between agents: how much they carry in a second, and how long a message is on its way.

Messages between parties: values written down so that reading them runs nothing.

A message is a header of JSON, which says what the value is made of, and the bytes of its arrays.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from vpem.errors import InputError, Setting, brief

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
NUMBER = r"([0-9]+(?:\.[0-9]+)?)"


@dataclass(frozen=True)
class Link:
    """What connects an agent to all others; both directions at once."""

    bandwidth: float  # bits a second, sent and received
    latency: float  # seconds a message takes one way, however short

    def transfer(self, n_bytes: float) -> float:
        """Seconds that so many bytes take to leave an agent, or to reach it."""
        return 8 * n_bytes / self.bandwidth


def parse_link(text: str) -> Link:
    """Read bandwidth and latency, such as 100Mbit,30ms or 10Gbit/s,0.1ms."""
    bits, seconds = "|".join(BITS), "|".join(SECONDS)
    pattern = rf"{NUMBER}\s*({bits})(?:/s)?\s*,\s*{NUMBER}\s*({seconds})"
    found = re.fullmatch(pattern, text.strip(), flags=re.IGNORECASE)
    link = None
    if found:
        bandwidth = float(found[1]) * BITS[found[2].lower()]
        link = Link(bandwidth, float(found[3]) * SECONDS[found[4].lower()])
    if link is None or not 0 < link.bandwidth < math.inf or link.latency == math.inf:
        raise InputError(
            Setting("link"),
            " is bandwidth and one-way latency, such as 100Mbit,30ms (units: kbit, Mbit, Gbit; us, "
            f"ms, s), got {brief(text)}",
        )
    return link


MAGIC = b"vpem"
LENGTH = struct.Struct("<4sQ")
KINDS = "biufcSU"
"""Of arrays: truth values, integers, floats, complex numbers, and texts of fixed width."""
DTYPE = re.compile(rf"[<>|=]?[{KINDS}][0-9]{{1,9}}")
DEEPEST = 64
"""Levels of lists in lists."""
LONGEST_HEADER = 1 << 25
"""Bytes of a header that is read: what it becomes takes some dozen times as much."""
MOST_AXES = 64
LARGEST = 1 << 48
"""Entries along an axis."""


def encode(value: object) -> bytes:
    """Write down a plain value: None, bool, int, float, str, bytes, an array, or a list of such.

    Arrays hold numbers or fixed-width text; lists, tuples and dicts hold any of these. Anything
    else is a TypeError.
    """
    parts: list[bytes] = []
    header = json.dumps(_describe(value, parts), separators=(",", ":")).encode()
    return b"".join([LENGTH.pack(MAGIC, len(header)), header, *parts])


def decode(message: bytes | bytearray | memoryview) -> Any:
    """Read a value that `encode` has written, or raise InputError.

    A message may come from anybody: nothing is run, and what is allocated for arrays are their own
    bytes, which are there.
    """
    data = memoryview(message).cast("B")
    try:
        magic, length = LENGTH.unpack_from(data)
        begin = LENGTH.size + length
        if magic != MAGIC or begin > len(data) or length > LONGEST_HEADER:
            raise ValueError
        header = json.loads(bytes(data[LENGTH.size : begin]))
        reader = _Reader(data, begin)
        value = reader.read(header)
        if reader.place != len(data):
            raise ValueError
    except (ValueError, LookupError, TypeError, ArithmeticError, struct.error, RecursionError):
        raise InputError(
            f"a message of {len(data)} bytes between parties is damaged; are all of them of the "
            "same version of vpem?"
        ) from None
    return value


def _describe(value: object, parts: list[bytes]) -> object:
    """What the value is made of; bytes of arrays are added to the parts."""
    if value is None or (isinstance(value, bool | int | float | str) and type(value) in _PLAIN):
        return value
    if isinstance(value, bytes):
        parts.append(value)
        return {"b": len(value)}
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind not in KINDS:
            raise TypeError(f"an array of {array.dtype} cannot be sent")
        parts.append(array.tobytes())
        scalar = isinstance(value, np.generic)
        return {"a": array.dtype.str, "s": list(array.shape), "g": scalar}
    if isinstance(value, list | tuple):
        kind = "l" if isinstance(value, list) else "t"
        return {kind: [_describe(item, parts) for item in value]}
    if isinstance(value, dict):
        pairs = [[_describe(k, parts), _describe(v, parts)] for k, v in value.items()]
        return {"d": pairs}
    raise TypeError(f"a {type(value).__name__} cannot be sent")


_PLAIN = (bool, int, float, str)


class _Reader:
    """Reads arrays one after the other."""

    def __init__(self, data: memoryview, place: int) -> None:
        self.data = data
        self.place = place

    def take(self, size: int) -> memoryview:
        end = self.place + size
        if size < 0 or end > len(self.data):
            raise ValueError
        found = self.data[self.place : end]
        self.place = end
        return found

    def read(self, header: Any, depth: int = 0) -> Any:
        if depth > DEEPEST:
            raise ValueError
        if not isinstance(header, dict):
            if isinstance(header, list):
                raise ValueError
            return header
        if "a" in header:
            return self.read_array(header)
        ((kind, held),) = header.items()
        if kind == "b":
            return bytes(self.take(_count(held)))
        if not isinstance(held, list) or kind not in ("d", "l", "t"):
            raise ValueError
        if kind == "d":
            found = {self.read(k, depth + 1): self.read(v, depth + 1) for k, v in held}
            if len(found) != len(held):
                raise ValueError  # a key that is there twice
            return found
        items = [self.read(item, depth + 1) for item in held]
        return items if kind == "l" else tuple(items)

    def read_array(self, header: dict[str, Any]) -> Any:
        described, sizes, scalar = header["a"], header["s"], header["g"]
        if len(header) != 3 or not isinstance(sizes, list) or len(sizes) > MOST_AXES:
            raise ValueError
        if not isinstance(described, str) or not DTYPE.fullmatch(described):
            raise ValueError
        dtype, shape = np.dtype(described), tuple(map(_count, sizes))
        if dtype.itemsize == 0 or type(scalar) is not bool or (scalar and shape):
            raise ValueError
        raw = self.take(math.prod(shape) * dtype.itemsize)
        array = np.frombuffer(raw, dtype).reshape(shape).copy()
        return array[()] if scalar else array


def _count(value: object) -> int:
    """Return a size that is one."""
    if type(value) is not int or not 0 <= value < LARGEST:
        raise ValueError
    return value
