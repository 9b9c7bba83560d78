"""Vectors as messages: piece by piece, or in units of their own, and what is received of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Mask
from vpem.errors import InputError
from vpem.network.codecs import Codec, Keys

ITEM = 8
"""Bytes of a number that is sent exactly."""

ROUNDING = 1e-6
"""Variance of a codec below which its bias is but rounding: casts to float16 and float32."""


class Basis(Protocol):
    """Units in which one scale fits a whole vector, as those of a `Scaling` about zero; linear."""

    def apply(self, statistics: Doubles, /) -> Doubles:
        """Vectors (m, P) in these units."""

    def undo(self, statistics: Doubles, /) -> Doubles:
        """Vectors (m, P) as they were."""


def contraction(codec: Codec, n_values: int) -> tuple[float, float]:
    """Return by what a decoded message of so many values is scaled, and its noise ``omega``.

    Scaled so, a message leaves at most ``omega / (1 + omega)`` of the squared norm behind; a codec
    that may leave all of it is refused. An unbiased codec of variance omega is scaled by ``1 / (1 +
    omega)``; a biased one not at all.
    """
    if not n_values:
        return 1.0, 0.0
    variance = codec.variance(n_values)
    if codec.is_unbiased:
        return 1.0 / (1.0 + variance), variance
    if not variance < 1:
        raise InputError(
            f"the codec {codec.name} is biased and may lose all of a message; take one that keeps "
            "a part"
        )
    return 1.0, variance / (1.0 - variance)


class Quantizer:
    """Compresses vectors piece by piece, so that each piece has scales of its own.

    ``pieces`` are the numbers of a vector, or its parts, which together cover it in order. In the
    units of a ``basis`` vectors are compressed as one piece. After the pieces stand ``n_exact``
    numbers, which are sent as they are. Without a codec all are, and there is nothing to transmit.
    """

    def __init__(
        self,
        codec: Codec | None,
        pieces: int | tuple[slice, ...],
        n_threads: int = 1,
        basis: Basis | None = None,
        n_exact: int = 0,
    ) -> None:
        if isinstance(pieces, int):
            pieces = (slice(0, pieces),)
        self.codec = codec
        self.pieces = pieces if basis is None else (slice(0, pieces[-1].stop),)
        self.basis, self.n_threads, self.n_exact = basis, n_threads, n_exact
        self.name = "float64" if codec is None else codec.name
        self.omega = 0.0
        """Bound of ``E|Q(v) - v|^2 / |v|^2``: the largest of the pieces."""
        self.biased = False
        """Whether the mean of what is received is something else than what was sent."""
        if codec is not None:
            widths = [piece.stop - piece.start for piece in self.pieces]
            self.omega = max((float(codec.variance(width)) for width in widths), default=0.0)
            self.biased = not codec.is_unbiased and self.omega > ROUNDING
        self.n_values = int(self.pieces[-1].stop)
        """Where the pieces end, and what is exact begins."""
        self._units = basis
        """Units of what is sent: none are needed where it is exact."""
        if codec is not None and codec.is_unbiased and self.omega == 0:
            self._units = None

    @property
    def message_size(self) -> int:
        """Bytes of a message: they are as many, whatever it says."""
        assert self.codec is not None
        widths = [piece.stop - piece.start for piece in self.pieces]
        return sum(map(self.codec.message_size, filter(None, widths))) + ITEM * self.n_exact

    def by(self, codec: Codec) -> Quantizer:
        return Quantizer(codec, self.pieces, self.n_threads, self.basis, self.n_exact)

    @property
    def steps(self) -> float | Doubles:
        """By what a message is scaled before it is believed (`contraction`): exact numbers by 1."""
        assert self.codec is not None
        believed, _ = contraction(self.codec, self.n_values)
        if not self.n_exact:
            return believed
        return np.append(np.full(self.n_values, believed), np.ones(self.n_exact))

    def transmit(self, values: Doubles, draw: Callable[[int], Keys]) -> Doubles:
        """Return what is received of a message a row (a, P): `unpack` of `pack`, without the bytes.

        ``draw`` draws the keys of so many messages.
        """
        assert self.codec is not None
        keys = [draw(len(values)) for _ in self.pieces]
        if not len(values):
            return np.empty_like(values)
        if self._units is not None:
            values = self._units.apply(values)
        received: Any = np.empty_like(values)
        received[:, self.n_values :] = values[:, self.n_values :]
        for piece, piece_keys in zip(self.pieces, keys, strict=True):
            if piece.start == piece.stop:
                continue
            part = np.ascontiguousarray(values[:, piece])
            decoded = self.codec.transmit(part, piece_keys, self.n_threads)[0]
            if part.shape == values.shape:  # it is all of it
                received = decoded
            else:
                received[:, piece] = decoded
        return received if self._units is None else self._units.undo(received)

    def pack(
        self, values: Doubles, draw: Callable[[int], Keys], local: Mask | slice = slice(None)
    ) -> NDArray[np.uint8]:
        """Return the bytes (a, size) of a message of each row that is ``local``."""
        assert self.codec is not None
        keys = [draw(len(values))[local] for _ in self.pieces]
        values = values[local]
        if self._units is not None:
            values = self._units.apply(values)
        parts = [
            self.codec.pack(np.ascontiguousarray(values[:, piece]), piece_keys, self.n_threads)
            for piece, piece_keys in zip(self.pieces, keys, strict=True)
            if piece.start < piece.stop
        ]
        if self.n_exact:
            exact = np.ascontiguousarray(values[:, self.n_values :], dtype="<f8")
            parts.append(exact.view(np.uint8))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def unpack(self, messages: NDArray[np.uint8]) -> Doubles:
        """Return what is received of such messages (a, size): shape (a, P)."""
        assert self.codec is not None
        received, begin = np.empty((len(messages), self.n_values + self.n_exact)), 0
        for piece in self.pieces:
            width = piece.stop - piece.start
            if width:
                end = begin + self.codec.message_size(width)
                part = np.ascontiguousarray(messages[:, begin:end])
                received[:, piece] = self.codec.unpack(part, width, self.n_threads)
                begin = end
        if self.n_exact:
            received[:, self.n_values :] = np.ascontiguousarray(messages[:, begin:]).view("<f8")
        return received if self._units is None else self._units.undo(received)
