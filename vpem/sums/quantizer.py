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
        """Bytes of a message of vectors that are one piece."""
        assert self.codec is not None
        coded = self.codec.message_size(self.n_values) if self.n_values else 0
        return coded + ITEM * self.n_exact

    def by(self, codec: Codec) -> Quantizer:
        """Return what compresses such vectors by another codec."""
        return Quantizer(codec, self.pieces, self.n_threads, self.basis, self.n_exact)

    @property
    def steps(self) -> float | Doubles:
        """By what a message is scaled before it is believed (`contraction`): exact numbers by 1."""
        assert self.codec is not None
        believed, _ = contraction(self.codec, self.n_values)
        if not self.n_exact:
            return believed
        return np.append(np.full(self.n_values, believed), np.ones(self.n_exact))

    def transmit(
        self, values: Doubles, draw: Callable[[int], Keys], is_local: Mask | None = None
    ) -> tuple[Doubles, NDArray[np.int64]]:
        """Return what is received of a message a row (a, P), and the bytes (a,) of each.

        ``draw`` draws the keys of so many messages: also of senders in other processes, where
        ``is_local`` (a,) is False; what is received of them and their bytes are zero.
        """
        if is_local is None or is_local.all():
            return self._compress(values, [draw(len(values)) for _ in self.pieces])
        received, sizes = np.zeros(values.shape), np.zeros(len(is_local), dtype=np.int64)
        keys = [draw(len(values))[is_local] for _ in self.pieces]
        received[is_local], sizes[is_local] = self._compress(values[is_local], keys)
        return received, sizes

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

    def _compress(self, values: Doubles, keys: list[Keys]) -> tuple[Doubles, NDArray[np.int64]]:
        """Send every row, each piece by keys of its own."""
        assert self.codec is not None
        if not len(values):
            return np.empty_like(values), np.zeros(0, dtype=np.int64)
        basis = self._units
        if basis is not None:
            values = basis.apply(values)
        received: Any
        if len(self.pieces) == 1 and not self.n_exact:
            received, sizes = self.codec.transmit(
                np.ascontiguousarray(values), keys[0], self.n_threads
            )
        else:
            received = np.empty_like(values)
            received[:, self.n_values :] = values[:, self.n_values :]
            sizes = np.full(len(values), ITEM * self.n_exact, dtype=np.int64)
            for piece, piece_keys in zip(self.pieces, keys, strict=True):
                if piece.start == piece.stop:
                    continue
                part = np.ascontiguousarray(values[:, piece])
                received[:, piece], bytes_of_piece = self.codec.transmit(
                    part, piece_keys, self.n_threads
                )
                sizes += bytes_of_piece
        return received if basis is None else basis.undo(received), sizes
