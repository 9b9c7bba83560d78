"""Codecs: how the values of a message become bytes, and what the receiver makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import inf, sqrt
from numbers import Real
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from vpem._core.codecs import (
    cast_decode,
    cast_encode,
    cast_transmit,
    dither_decode,
    dither_encode,
    dither_transmit,
    natural_decode,
    natural_encode,
    natural_transmit,
    sparse_decode,
    sparse_encode,
    sparse_transmit,
)
from vpem._core.threads import thread_count
from vpem.checks import as_array, check_int, read_float, read_int
from vpem.errors import InputError, NumericalError, brief, check_choice

Values = NDArray[np.floating]
Keys = NDArray[np.uint64]
Flags = NDArray[np.uint8]
Packed = NDArray[np.uint8]

BUCKET = 256
"""Values that share a norm in QSGD, if nothing else is said."""

MOST = 2**31 - 1
"""Most values of a message, and most levels."""

LARGEST_FLOAT = float(np.finfo(np.float32).max)

MOST_SIZES = 1000
"""Most sizes of blocks in a codec's name."""

KEYS_APART = 0xD1B54A32D192ED03
"""By what keys differ from one block of a message to the next."""

ROUNDING = 2.0**-23
"""Relative amount by which a norm can grow when it is rounded up to float32."""


@runtime_checkable
class Codec(Protocol):
    """How values are sent: what ``compress`` takes beside the names of codecs.

    A message of n values has the same size whatever they are. Its randomness comes from one key:
    the value at each index has random bits of its own, which depend on key and index alone.
    `unpack` of what `pack` writes is what `transmit` returns, to the bit.
    """

    @property
    def name(self) -> str:
        """What reports call it; of a codec of vpem the text that names it."""

    @property
    def is_unbiased(self) -> bool:
        """Whether the mean of what is received is what was sent."""

    def variance(self, n: int) -> float:
        """Bound omega of ``E|Q(v) - v|^2 <= omega |v|^2`` for n values."""

    def message_size(self, n: int) -> int:
        """Bytes of a message of n values."""

    def encode(self, values: Values, rng: np.random.Generator) -> bytes:
        """Pack values (n,); the key is drawn from ``rng``."""

    def decode(self, message: bytes, n: int, dtype: DTypeLike = np.float64) -> Values:
        """Unpack n values."""

    def pack(self, values: Values, keys: Keys, n_threads: int = 1) -> Packed:
        """Pack every row (N, V) into the bytes of a message (N, message_size(V))."""

    def unpack(self, messages: Packed, n: int, n_threads: int = 1) -> Values:
        """Unpack n values of every message, as float64 (N, n)."""

    def transmit(
        self, values: Values, keys: Keys, n_threads: int = 1
    ) -> tuple[Values, NDArray[np.int64]]:
        """Pack and unpack every row (N, V): what is received, and the bytes of each message."""


def draw_keys(rng: np.random.Generator, n_messages: int) -> Keys:
    """Draw the keys of so many messages, as as many calls of `Codec.encode` would."""
    return rng.integers(0, 2**64, size=n_messages, dtype=np.uint64)


class _Packed(Codec):
    """Checks, memory and refusals of all codecs; ``bad`` (N,) marks rows that cannot be sent."""

    _kernels: ClassVar[tuple[Callable[..., None], ...]]
    """Which encode, decode and transmit; to decode the first ``_to_decode`` settings suffice."""
    _to_decode: ClassVar[int] = 1
    _draws: ClassVar[bool] = True  # kernels that send take keys
    name = ""
    is_unbiased = True
    _width: int  # bits of a value
    _omega: float
    _known: tuple[tuple[int, ...], str]  # see `_settings`

    def variance(self, n: int) -> float:
        return self._omega if n else 0.0

    def message_size(self, n: int) -> int:
        """Bytes: the bits of all values together, ``ceil(n bits / 8)``."""
        return (int(n) * self._width + 7) // 8

    def _settings(self, n: int) -> tuple[tuple[int, ...], str]:
        """What kernels know of the codec, for n values; what bounds these, to end a sentence."""
        return self._known

    def encode(self, values: Values, rng: np.random.Generator) -> bytes:
        """Pack values (n,) into a message; NumericalError if one is not finite or too large.

        One 64-bit key is drawn from ``rng``, whether or not the codec is random.
        """
        return self._pack(_as_floats(values, 1)[None], draw_keys(rng, 1), 1, "").tobytes()

    def decode(self, message: bytes, n: int, dtype: DTypeLike = np.float64) -> Values:
        """Unpack the n values, float32 or float64, of a message by `encode` of an equal codec.

        InputError if these bytes are no such message.
        """
        check_int("values of a message", n, least=0, most=MOST)
        if np.dtype(dtype) not in (np.float32, np.float64):
            raise InputError(f"values are decoded as float32 or float64, got {np.dtype(dtype)}")
        if not isinstance(message, bytes | bytearray | memoryview):
            raise InputError(f"a message must be bytes, got {type(message).__name__}")
        received = np.frombuffer(bytes(message), dtype=np.uint8)
        size = self.message_size(n)
        if len(received) != size:
            raise InputError(
                f"a message of {n} values by {self.name!r} has {size} bytes, got {len(received)}; "
                "give the codec and the number of values it was encoded with"
            )
        result: Values = self._unpack(received[None], np.zeros((1, n), dtype=dtype), 1)[0]
        return result

    def pack(self, values: Values, keys: Keys, n_threads: int = 1) -> Packed:
        """Pack every row (N, V) into a message (N, message_size(V)): `encode`, with its key."""
        rows = _as_floats(values, 2)
        return self._pack(rows, _checked(keys, rows), n_threads, " of message {}")

    def unpack(self, messages: Packed, n: int, n_threads: int = 1) -> Values:
        """Unpack every message (N, message_size(n)): `decode`, as float64 (N, n)."""
        size = self.message_size(n)
        if messages.dtype != np.uint8 or messages.ndim != 2 or messages.shape[1] != size:
            raise InputError(
                f"messages of {n} values by {self.name!r} are rows of {size} bytes, got shape "
                f"{messages.shape} of type {messages.dtype}; give the codec and the number of "
                "values they were packed with"
            )
        return self._unpack(np.ascontiguousarray(messages), np.zeros((len(messages), n)), n_threads)

    def _pack(self, rows: Values, keys: Keys, n_threads: int, whose: str) -> Packed:
        messages = np.empty((len(rows), self.message_size(rows.shape[1])), dtype=np.uint8)
        faults = np.zeros(len(rows), dtype=np.uint8)
        if rows.size:
            given = ((keys,) if self._draws else ()) + self._settings(rows.shape[1])[0]
            self._kernels[0](rows, *given, messages, faults, thread_count(n_threads))
        self._check_sent(rows, faults, whose)
        return messages

    def _unpack(self, messages: Packed, into: Values, n_threads: int) -> Values:
        faults = np.zeros(len(into), dtype=np.uint8)
        if into.size:
            given = self._settings(into.shape[1])[0][: self._to_decode]
            self._kernels[1](messages, *given, into, faults, thread_count(n_threads))
        if faults.any():
            raise InputError(
                f"these {messages.shape[1]} bytes are no message of {into.shape[1]} values by "
                f"{self.name!r}: a number, level or index in them is out of range; send the "
                "message again"
            )
        return into

    def _check_sent(self, rows: Values, bad: Flags, whose: str) -> None:
        """Raise NumericalError where a row cannot be sent; ``whose`` says which, by its number."""
        if not bad.any():
            return
        row = int(bad.argmax())
        values, whose = rows[row], whose.format(row)
        finite = np.isfinite(values)
        if finite.all():
            raise NumericalError(
                f"values{whose} reach {float(np.abs(values).max()):.6g}, too large for "
                f"{self.name!r}, {self._settings(len(values))[1]}; scale the data down or send "
                "them by 'float64'"
            )
        place = int(finite.argmin())
        word = "NaN" if np.isnan(values[place]) else str(float(values[place]))
        raise NumericalError(
            f"value {place}{whose} is {word}, but {self.name!r} sends finite numbers only; look "
            "for what made it"
        )

    def transmit(
        self, values: Values, keys: Keys, n_threads: int = 1
    ) -> tuple[Values, NDArray[np.int64]]:
        """Return what is received of rows (N, V), in their type, and the bytes of each (N,).

        It is `decode` of `encode`, with the key of each row (N,), for any number of threads.
        """
        rows = _as_floats(values, 2)
        keys = _checked(keys, rows)
        decoded = np.empty_like(rows)
        faults = np.zeros(len(rows), dtype=np.uint8)
        sizes = np.full(len(rows), self.message_size(rows.shape[1]), dtype=np.int64)
        if rows.size:
            given = ((keys,) if self._draws else ()) + self._settings(rows.shape[1])[0]
            self._kernels[2](rows, *given, decoded, faults, thread_count(n_threads))
        self._check_sent(rows, faults, " of message {}")
        return decoded, sizes


def _as_floats(values: ArrayLike, n_dims: int) -> Values:
    array = as_array("the values of a message", values)
    if array.dtype.kind not in "iufb" or array.ndim != n_dims or array.shape[-1] > MOST:
        raise InputError(
            f"the values of {'a message' if n_dims == 1 else 'messages'} must be an array of "
            f"numbers of {n_dims} dimension(s), got shape {array.shape} of type {array.dtype}"
        )
    single = array.dtype == np.float32
    return np.ascontiguousarray(array, dtype=np.float32 if single else np.float64)


def _checked(keys: Keys, rows: Values) -> Keys:
    keys = np.ascontiguousarray(keys)
    if keys.dtype != np.uint64 or keys.shape != rows.shape[:1]:
        raise InputError(
            f"{len(rows)} messages need as many keys of type uint64, got shape {keys.shape} "
            f"of type {keys.dtype}; draw them by draw_keys"
        )
    return keys


@cache
def dither_variance(levels: int, d: int, norm: float) -> float:
    """Bound omega of dithering d values with l levels of their p-norm.

    With ``N = |v|_p`` and ``x = l |v_j| / N`` a value has variance ``(N / l)^2 f (1 - f)``, f the
    fraction of x: at most ``h(x) = x - x^2`` up to 1/2 and 1/4 beyond, which is concave. With one
    level it is ``x - x^2``, so that ``E|Q(v) - v|^2 = |v|_1 |v|_p - |v|_2^2``.

    * ``p <= 2``: ``d^(1/p) / l - 1`` where ``2 l <= d^(1/p)``, or l is 1; it is attained where all
      are equal. Else ``d^(2/p) / (4 l^2)``.
    * p infinite: ``(sqrt(1 + (d - 1) / l^2) - 1) / 2``, attained where one value is ``1 + sqrt(1 +
      (d - 1) / l^2)`` times l the others.
    * Between, stationary points of the ratio have one value r times all others, ``r >= 1``: at the
      others' level it is concave, and one value at most is beyond. It is the largest of all r.
    """
    up = 1 + ROUNDING  # of a norm that is rounded up
    if norm == inf:
        most = (1 + sqrt(1 + (d - 1) / levels**2)) / 2
        return most * (up if levels == 1 else up**2) - 1
    if norm <= 2:
        reach = sqrt(d) if norm == 2 else d ** (1 / norm)
        if levels == 1 or 2 * levels <= reach:
            return reach / levels * up - 1
        return float(d ** (2 / norm) / (4 * levels**2) * up**2)
    others, ratios, omega = d - 1, np.geomspace(1, 4 * (1 + sqrt(d)), 257), 0.0
    for _ in range(8):  # about the largest, ever finer
        # Of large r powers would be too large: r^p + (d - 1) is r^p (1 + (d - 1) r^-p).
        size = levels / ratios * (1 + others * ratios**-norm) ** (-1 / norm)
        sizes = np.stack([size, size * ratios])
        spread = sizes - sizes**2
        if levels > 1:
            spread = np.where(sizes < 0.5, spread, 0.25)
        found = (others * spread[0] + spread[1]) / (others * sizes[0] ** 2 + sizes[1] ** 2)
        at = int(found.argmax())
        omega = max(omega, float(found[at]))
        ratios = np.linspace(ratios[max(at - 1, 0)], ratios[min(at + 1, 256)], 257)
    return (1 + omega) * up**2 - 1


@dataclass(frozen=True)
class Dither(_Packed):
    """A norm for every bucket, and of each value its sign and a level, rounded at random: unbiased.

    Random dithering (QSGD), Alistarh et al. 2017: with l levels above zero a value takes
    ``1 + ceil(log2(l + 1))`` bits. The values of a bucket share a p-norm, p = 2 if nothing else is
    said; the last bucket may be shorter. The variance is that of `dither_variance`, for p = 2 never
    above ``min(d/l^2, sqrt(d)/l)`` in a bucket of d values. The bound holds where norms are normal
    float32 numbers (1.2e-38 or more); below, only the mean is kept.

    Block-p quantization, Mishchenko et al. 2019, has one level: ``-|v|_p``, 0 or ``|v|_p``, in 2
    bits, of buckets that it calls blocks.
    """

    levels: int
    bucket: int = BUCKET
    norm: float = 2.0  # p, from 1 to infinity
    is_block: bool = False  # named as block-p quantization
    _kernels = dither_encode, dither_decode, dither_transmit
    _to_decode = 2
    _bound = f"whose norms are float32 (at most {LARGEST_FLOAT:.6g})"

    def __post_init__(self) -> None:
        check_int("levels of qsgd", self.levels, least=1, most=MOST)
        bucket = "block of blockp" if self.is_block else "bucket of qsgd"
        check_int(bucket, self.bucket, least=1, most=MOST)
        if not isinstance(self.norm, Real) or not self.norm >= 1:
            raise InputError(
                f"the norm of a codec must have an order of at least 1, got {self.norm!r}"
            )
        known = (self.levels, self.bucket, float(self.norm)), self._bound
        width = int(self.levels).bit_length() + 1
        vars(self).update(name=self.named(str(self.bucket)), _width=width, _known=known)

    @property
    def is_euclidean(self) -> bool:
        """Whether it is QSGD by the Euclidean norm."""
        return self.norm == 2 and not self.is_block

    def named(self, sizes: str) -> str:
        """Return the text that names this codec of buckets of some sizes."""
        order = "" if self.norm == 2 else f":{float(self.norm)!r}".removesuffix(".0")
        if self.is_block:
            return f"blockp:{sizes}{order}"
        # It is named in bits where the levels fill them, else in levels.
        bits = int(self.levels).bit_length() + 1
        full = bits <= 16 and self.levels == 2 ** (bits - 1) - 1
        name = f"qsgd:{bits}bits" if full else f"qsgd:{self.levels}levels"
        return name if sizes == str(BUCKET) and not order else f"{name}:{sizes}{order}"

    def message_size(self, n: int) -> int:
        """Bytes: 4 a norm, and the bits of all values together, ``ceil(n width / 8)``."""
        return 4 * -(-n // self.bucket) + super().message_size(n)

    def variance(self, n: int) -> float:
        d = min(int(n), int(self.bucket))
        return dither_variance(int(self.levels), d, float(self.norm)) if d else 0.0


@dataclass(frozen=True)
class UnequalBlocks(_Packed):
    """Dithering in blocks of different sizes: one of each, and of the last as many as there are.

    Block-p quantization as Dieuleveut et al. 2021, Appendix B, have it. A message is one of each
    codec after the other, of keys of its own; omega is the largest of the blocks.
    """

    parts: tuple[Dither, ...]  # the bucket of each is the size of its block

    def __post_init__(self) -> None:
        first = self.parts[0]
        name = first.named(",".join(str(one.bucket) for one in self.parts))
        vars(self).update(name=name, _known=first._known)

    def _cut(self, n: int) -> Iterator[tuple[Dither, slice, slice, np.uint64]]:
        """Codec of each part of n values, its values, its bytes, and what its keys differ by."""
        begin = size = 0
        for place, one in enumerate(self.parts):
            end = n if one is self.parts[-1] else min(n, begin + one.bucket)
            if end > begin:
                until = size + one.message_size(end - begin)
                apart = np.uint64(place * KEYS_APART % 2**64)
                yield one, slice(begin, end), slice(size, until), apart
                begin, size = end, until

    def message_size(self, n: int) -> int:
        """Bytes: those of the parts, each of whole bytes."""
        return max((part.stop for _, _, part, _ in self._cut(int(n))), default=0)

    def variance(self, n: int) -> float:
        cut = self._cut(int(n))
        return max((one.variance(own.stop - own.start) for one, own, _, _ in cut), default=0.0)

    def _check_rows(self, rows: Values, whose: str) -> None:
        within = np.abs(rows) <= LARGEST_FLOAT  # no NaN either
        self._check_sent(rows, np.asarray(~within.all(axis=1), dtype=np.uint8), whose)

    def _pack(self, rows: Values, keys: Keys, n_threads: int, whose: str) -> Packed:
        self._check_rows(rows, whose)
        messages = np.empty((len(rows), self.message_size(rows.shape[1])), dtype=np.uint8)
        for one, own, part, apart in self._cut(rows.shape[1]):
            values = np.ascontiguousarray(rows[:, own])
            messages[:, part] = one._pack(values, keys + apart, n_threads, whose)
        return messages

    def _unpack(self, messages: Packed, into: Values, n_threads: int) -> Values:
        for one, own, part, _ in self._cut(into.shape[1]):
            received = np.ascontiguousarray(messages[:, part])
            values = np.zeros((len(into), own.stop - own.start), dtype=into.dtype)
            into[:, own] = one._unpack(received, values, n_threads)
        return into

    def transmit(
        self, values: Values, keys: Keys, n_threads: int = 1
    ) -> tuple[Values, NDArray[np.int64]]:
        rows = _as_floats(values, 2)
        keys, received = _checked(keys, rows), np.empty_like(rows)
        self._check_rows(rows, " of message {}")
        for one, own, _, apart in self._cut(rows.shape[1]):
            received[:, own] = one.transmit(rows[:, own], keys + apart, n_threads)[0]
        return received, np.full(len(rows), self.message_size(rows.shape[1]), dtype=np.int64)


@dataclass(frozen=True)
class Natural(_Packed):
    """Short floating point numbers, rounded at random (natural compression): unbiased.

    Every value is rounded by itself, so that large ones do not drown small ones. Horvath et al.
    2019, with mantissa bits: one bit is the sign, 8 are the exponent, m the mantissa, so that
    ``bits = 9 + m``, from 9 to 24.

    A value v between the neighbours a < b has variance ``(v - a) (b - v)``, at most ``(b - a)^2 /
    (4 a b) v^2``, attained at ``v = 2 a b / (a + b)``. It is largest next to a power of two, where
    ``b = (1 + 2^-m) a``: ``omega = 4^-m / (4 (1 + 2^-m))``, 1/8 without a mantissa. The bound
    holds for magnitudes of 2^-127 (5.9e-39) or more, and for zero, which is exact; below, numbers
    are ``2^(-127 - m)`` apart, and only the mean is kept.
    """

    bits: int
    _kernels = natural_encode, natural_decode, natural_transmit

    def __post_init__(self) -> None:
        check_int("bits of natural", self.bits, least=9, most=24)
        bits = int(self.bits)
        step = 2.0 ** (9 - bits)
        vars(self).update(
            name=f"natural:{self.bits}bits",
            _width=bits,
            _omega=step**2 / (4 * (1 + step)),
            _known=((bits - 9,), f"which ends at {(2 - step) * 2.0**127:.6g}"),
        )


@dataclass(frozen=True)
class Sparse(_Packed):
    """Some values as float32, with their indices: the largest magnitudes, or values at random.

    Of equal magnitudes the lower index is sent. The largest are biased: see `ErrorFeedback`; others
    are times n/k, rounded to float32 at random: unbiased.
    """

    fraction: float  # of the values of a message; their number is rounded, at least one
    is_unbiased: bool
    _kernels = sparse_encode, sparse_decode, sparse_transmit

    def __post_init__(self) -> None:
        word = "randk" if self.is_unbiased else "topk"
        if not isinstance(self.fraction, Real) or not 0 < self.fraction <= 1:
            raise InputError(
                f"the fraction of {word} must be above 0 and at most 1, got {self.fraction!r}"
            )
        # The fraction in as few digits as determine it.
        name = f"{word}:{float(self.fraction)!r}".removesuffix(".0")
        vars(self).update(name=name)

    def n_kept(self, n: int) -> int:
        return min(n, max(1, int(self.fraction * n + 0.5)))

    def message_size(self, n: int) -> int:
        """Bytes: ``ceil(k ceil(log2 n) / 8) + 4 k``."""
        n_kept = self.n_kept(int(n))
        return (n_kept * max(int(n) - 1, 0).bit_length() + 7) // 8 + 4 * n_kept

    def variance(self, n: int) -> float:
        """Bound omega: ``n/k - 1`` of values at random, and what rounding adds to it.

        Of the largest the contraction ``1 - k/n``, attained where all are equal; rounding to
        float32 aside.
        """
        if n == 0:
            return 0.0
        kept = self.n_kept(n)
        return n / kept * (1 + ROUNDING**2 / 4) - 1 if self.is_unbiased else 1 - kept / n

    def _settings(self, n: int) -> tuple[tuple[int, ...], str]:
        kept = self.n_kept(n)
        times = f" times {n / kept:.6g}" if self.is_unbiased else ""
        bound = f"which sends values{times} as float32 (at most {LARGEST_FLOAT:.6g})"
        return (kept, self.is_unbiased), bound


@dataclass(frozen=True)
class Cast(_Packed):
    """Floating point numbers, rounded to nearest."""

    itemsize: int  # bytes of a number: 2, 4, or 8, which is exact, hence unbiased
    _kernels = cast_encode, cast_decode, cast_transmit
    _draws = False

    def __post_init__(self) -> None:
        if self.itemsize not in (2, 4, 8):
            raise InputError(f"numbers are cast to 2, 4 or 8 bytes, got {self.itemsize!r}")
        name = f"float{8 * self.itemsize}"
        vars(self).update(
            name=name,
            is_unbiased=self.itemsize == 8,
            _width=8 * self.itemsize,
            # Square of half the relative distance of numbers, where they are normal ones.
            _omega={2: 2.0**-22, 4: 2.0**-48, 8: 0.0}[self.itemsize],
            _known=((self.itemsize,), f"which ends at {float(np.finfo(name).max):.6g}"),
        )


def _count(what: str, word: str, text: str, most: int = MOST, least: int = 1) -> int:
    number = read_int(word)
    if number is None or not least <= number <= most:
        raise InputError(
            f"{what} must be an integer from {least} to {most}, got {brief(word)} in {brief(text)}"
        )
    return number


def _dither(levels: int, words: list[str], text: str, is_block: bool = False) -> Codec:
    """Make the codec of these words: sizes of buckets, and the order of their norm if not 2."""
    what, order = ("block of blockp" if is_block else "bucket of qsgd"), 2.0
    if words[1:]:
        known = inf if words[1] == "inf" else read_float(words[1])
        if known is None or not known >= 1:
            raise InputError(
                f"the norm of {what.split()[-1]} must be a number of at least 1, or inf, got "
                f"{brief(words[1])} in {brief(text)}; try 2"
            )
        order = known
    sizes = [_count(what, word, text) for word in words[0].split(",", MOST_SIZES)]
    while len(sizes) > 1 and sizes[-1] == sizes[-2]:
        sizes.pop()
    parts = tuple(Dither(levels, size, order, is_block) for size in sizes)
    return parts[0] if len(parts) == 1 else UnequalBlocks(parts)


CODECS = ("qsgd", "blockp", "natural", "topk", "randk", "float16", "float32", "float64")
"""What a codec's name can begin with."""


def parse_codec(text: str | Codec) -> Codec:
    """Make a codec of its name, or take one as it is; InputError if there is none.

    Names are ``qsgd:8bits`` (bits a value with its sign, 2 to 16) and ``qsgd:100levels``, each with
    a bucket if not 256 (``qsgd:8bits:512``) and behind it the order of its norm if not 2
    (``qsgd:8bits:512:inf``); ``blockp:64``, likewise ``blockp:64:1.5``; ``natural:10bits`` (9 to
    24); ``topk:0.01``; ``randk:0.1``; ``float16``, ``float32`` and ``float64``. A bucket, or block,
    may be several sizes, the last of which goes on (``blockp:3,9,64``). A codec's ``name`` may be
    another text for the same.

    >>> parse_codec("qsgd:127levels").name
    'qsgd:8bits'
    """
    if isinstance(text, Codec):
        return text
    kind, *options = text.split(":") if isinstance(text, str) else [text]
    kind = check_choice("the codec", kind, CODECS)
    if kind == "qsgd":
        example = "'qsgd:8bits', 'qsgd:100levels' or 'qsgd:8bits:512'"
        if not 1 <= len(options) <= 3:
            raise InputError(
                f"qsgd takes bits or levels, a bucket and a norm if any; try {example}: {text!r}"
            )
        size = options[0]
        if size.endswith("bits"):
            bits = _count("bits of qsgd", size.removesuffix("bits"), text, 16)
            if bits < 2:
                raise InputError(
                    f"bits of qsgd must be from 2 to 16, the sign included, got {text!r}"
                )
            levels = 2 ** (bits - 1) - 1
        elif size.endswith("levels"):
            levels = _count("levels of qsgd", size.removesuffix("levels"), text)
        else:
            raise InputError(f"qsgd takes bits or levels, got {size!r} in {text!r}; try {example}")
        return _dither(levels, options[1:] or [str(BUCKET)], text)
    if kind == "blockp":
        if not 1 <= len(options) <= 2:
            raise InputError(
                f"blockp takes a block, and a norm if any, got {text!r}; try 'blockp:64' or "
                "'blockp:64:inf'"
            )
        return _dither(1, options, text, is_block=True)
    if kind == "natural":
        if len(options) != 1 or not options[0].endswith("bits"):
            raise InputError(
                f"natural takes the bits of a value, got {text!r}; try 'natural:10bits'"
            )
        return Natural(_count("bits of natural", options[0].removesuffix("bits"), text, 24, 9))
    if kind in ("topk", "randk"):
        fraction = read_float(options[0]) if len(options) == 1 else None
        if fraction is None:
            raise InputError(
                f"{kind} takes the fraction of values to send, got {brief(text)}; try '{kind}:0.1'"
            )
        return Sparse(fraction, kind == "randk")
    if options:
        raise InputError(f"a cast takes no options, got {text!r}; try {kind!r}")
    return Cast(np.dtype(kind).itemsize)
