"""Messages between parties, and the links that they take: bandwidth and latency.

A message is a header of JSON, which says what the value is made of, and the bytes of its arrays;
reading it runs nothing.
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
class LinkSpeed:
    """What connects an agent to all others; both directions at once."""

    bandwidth: float  # bits a second, sent and received
    latency: float  # seconds a message takes one way, however short

    def transfer(self, n_bytes: float) -> float:
        """Seconds that so many bytes take to leave an agent, or to reach it."""
        return 8 * n_bytes / self.bandwidth


def parse_link(text: str) -> LinkSpeed:
    """Read bandwidth and latency, such as 100Mbit,30ms or 10Gbit/s,0.1ms."""
    bits, seconds = "|".join(BITS), "|".join(SECONDS)
    pattern = rf"{NUMBER}\s*({bits})(?:/s)?\s*,\s*{NUMBER}\s*({seconds})"
    match = re.fullmatch(pattern, text.strip(), flags=re.IGNORECASE)
    link = None
    if match:
        bandwidth = float(match[1]) * BITS[match[2].lower()]
        link = LinkSpeed(bandwidth, float(match[3]) * SECONDS[match[4].lower()])
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
PLAIN = (bool, int, float, str)
"""Types, without their subclasses, that JSON holds as they are."""


def encode(value: object) -> bytes:
    """Write a plain value: None, bool, int, float, str, bytes, an array, or a list of such."""
    parts: list[bytes] = []
    header = json.dumps(_describe(value, parts), separators=(",", ":")).encode()
    return b"".join([LENGTH.pack(MAGIC, len(header)), header, *parts])


def decode(message: bytes | bytearray | memoryview) -> Any:
    """Read a value that `encode` has written, or raise InputError.

    It may come from anybody: nothing is run, and arrays take their own bytes, which are there.
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
    if value is None or type(value) in PLAIN:
        return value
    if isinstance(value, bytes):
        parts.append(value)
        return {"b": len(value)}
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind not in KINDS:
            raise TypeError(f"an array of {array.dtype} cannot be sent")
        parts.append(array.tobytes())
        is_scalar = isinstance(value, np.generic)
        return {"a": array.dtype.str, "s": list(array.shape), "g": is_scalar}
    if isinstance(value, list | tuple):
        kind = "l" if isinstance(value, list) else "t"
        return {kind: [_describe(item, parts) for item in value]}
    if isinstance(value, dict):
        return {"d": [[_describe(k, parts), _describe(v, parts)] for k, v in value.items()]}
    raise TypeError(f"a {type(value).__name__} cannot be sent")


class _Reader:
    """Reads arrays one after the other."""

    def __init__(self, data: memoryview, place: int) -> None:
        self.data = data
        self.place = place

    def read_bytes(self, size: int) -> memoryview:
        end = self.place + size
        if size < 0 or end > len(self.data):
            raise ValueError
        taken = self.data[self.place : end]
        self.place = end
        return taken

    def read(self, header: object, depth: int = 0) -> Any:
        if depth > DEEPEST:
            raise ValueError
        if not isinstance(header, dict):
            if isinstance(header, list):
                raise ValueError
            return header
        if "a" in header:
            described, sizes, scalar = header["a"], header["s"], header["g"]
            if len(header) != 3 or not isinstance(sizes, list) or len(sizes) > MOST_AXES:
                raise ValueError
            if not isinstance(described, str) or not DTYPE.fullmatch(described):
                raise ValueError
            dtype, shape = np.dtype(described), tuple(map(_count, sizes))
            if dtype.itemsize == 0 or type(scalar) is not bool or (scalar and shape):
                raise ValueError
            raw = self.read_bytes(math.prod(shape) * dtype.itemsize)
            array = np.frombuffer(raw, dtype).reshape(shape).copy()
            return array[()] if scalar else array
        ((kind, content),) = header.items()
        if kind == "b":
            return bytes(self.read_bytes(_count(content)))
        if not isinstance(content, list) or kind not in ("d", "l", "t"):
            raise ValueError
        if kind == "d":
            table = {self.read(k, depth + 1): self.read(v, depth + 1) for k, v in content}
            if len(table) != len(content):
                raise ValueError  # a key that is there twice
            return table
        items = [self.read(item, depth + 1) for item in content]
        return items if kind == "l" else tuple(items)


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < LARGEST:
        raise ValueError
    return value
