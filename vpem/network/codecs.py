"""Codecs: how the values of a message become bytes, and what the receiver makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
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


@dataclass(frozen=True)
class Dither(_Packed):
    """A norm for every bucket, and of each value its sign and a level, rounded at random: unbiased.

    Random dithering (QSGD), Alistarh et al. 2017: with l levels above zero a value takes
    ``1 + ceil(log2(l + 1))`` bits. The values of a bucket share a norm; the last bucket may be
    shorter. A value falls between two levels with variance ``f (1 - f) (norm / l)^2``, f its place
    between them, which is at most 1/4 and at most ``x - x^2`` below the first level. In a bucket of
    d values the sum is largest where they are equal: ``omega = sqrt(d)/l - 1`` where
    ``2 l <= sqrt(d)``, else ``d / (4 l^2)``. It is never above ``min(d/l^2, sqrt(d)/l)``. The bound
    holds where norms are normal float32 numbers (1.2e-38 or more); below, only the mean is kept.

    Block-p quantization, Mishchenko et al. 2019, has one level: ``-|v|_p``, 0 or ``|v|_p``, in 2
    bits, of buckets that it calls blocks, with p 2 or infinity. ``E|Q(v)|^2 = |v|_1 |v|_p`` in each
    block, so that ``omega = sqrt(d) - 1`` for p = 2, and ``(sqrt(d) - 1) / 2`` for infinity: the
    largest ratio of ``|v|_1 |v|_inf`` to ``|v|_2^2`` is ``(1 + sqrt(d)) / 2``.
    """

    levels: int
    bucket: int = BUCKET
    block_norm: str = ""  # p, "2" or "inf", of block-p quantization
    _kernels = dither_encode, dither_decode, dither_transmit
    _to_decode = 2
    _bound = f"whose norms are float32 (at most {LARGEST_FLOAT:.6g})"

    def __post_init__(self) -> None:
        check_int("levels of qsgd", self.levels, least=1, most=MOST)
        bucket = "block of blockp" if self.block_norm else "bucket of qsgd"
        check_int(bucket, self.bucket, least=1, most=MOST)
        # It is named in bits where the levels fill them, else in levels.
        bits = int(self.levels).bit_length() + 1
        full = bits <= 16 and self.levels == 2 ** (bits - 1) - 1
        name = f"qsgd:{bits}bits" if full else f"qsgd:{self.levels}levels"
        largest = self.block_norm == "inf"
        if self.block_norm:
            name = f"blockp:{self.bucket}" + ":inf" * largest
        elif self.bucket != BUCKET:
            name = f"{name}:{self.bucket}"
        known = (self.levels, self.bucket, largest), self._bound
        vars(self).update(name=name, _width=bits, _known=known)

    def message_size(self, n: int) -> int:
        """Bytes: 4 a norm, and the bits of all values together, ``ceil(n width / 8)``."""
        return 4 * -(-n // self.bucket) + super().message_size(n)

    def variance(self, n: int) -> float:
        d = min(n, self.bucket)
        if d == 0:
            return 0.0
        # A norm rounded up makes levels coarser by so much.
        if self.block_norm == "inf":
            return (1 + sqrt(d)) / 2 * (1 + ROUNDING) - 1
        if self.levels == 1 or 2 * self.levels <= sqrt(d):
            return sqrt(d) / self.levels * (1 + ROUNDING) - 1
        return d / (4 * self.levels**2) * (1 + ROUNDING) ** 2


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


CODECS = ("qsgd", "blockp", "natural", "topk", "randk", "float16", "float32", "float64")
"""What a codec's name can begin with."""


def parse_codec(text: str | Codec) -> Codec:
    """Make a codec of its name, or take one as it is; InputError if there is none.

    Names are ``qsgd:8bits`` (bits a value with its sign, 2 to 16) and ``qsgd:100levels``, each with
    a bucket if not 256 (``qsgd:8bits:512``); ``blockp:64`` and ``blockp:64:inf``;
    ``natural:10bits`` (9 to 24); ``topk:0.01``; ``randk:0.1``; ``float16``, ``float32`` and
    ``float64``. A codec's ``name`` may be another text for the same.

    >>> parse_codec("qsgd:127levels").name
    'qsgd:8bits'
    """
    if isinstance(text, Codec):
        return text
    kind, *options = text.split(":") if isinstance(text, str) else [text]
    kind = check_choice("the codec", kind, CODECS)
    if kind == "qsgd":
        example = "'qsgd:8bits', 'qsgd:100levels' or 'qsgd:8bits:512'"
        if not 1 <= len(options) <= 2:
            raise InputError(
                f"qsgd takes bits or levels, and a bucket if any; try {example}: {text!r}"
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
        bucket = _count("bucket of qsgd", options[1], text) if len(options) == 2 else BUCKET
        return Dither(levels, bucket)
    if kind == "blockp":
        if not 1 <= len(options) <= 2:
            raise InputError(
                f"blockp takes a block, and a norm if any, got {text!r}; try 'blockp:64' or "
                "'blockp:64:inf'"
            )
        norm = check_choice("norm of blockp", options[1], ("2", "inf")) if options[1:] else "2"
        return Dither(1, _count("block of blockp", options[0], text), norm)
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
