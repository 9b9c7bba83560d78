"""Compressed messages that other processes hear: what travels are the bytes of the codec."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vpem.network.codecs import Keys
from vpem.sums.counted import AtServer
from vpem.sums.partial import Compressed, Senders, Vector, Wrapper
from vpem.sums.quantizer import Quantizer

Carry = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
"""Lets others hear messages (a, size) of this process; returns those that it hears itself."""


class Carried(Compressed):
    """Messages go to other processes, and come from them.

    What is received of a message is decoded from its bytes, by whoever hears it: by its sender too,
    so that all have the same of it.

    Parameters
    ----------
    inner : AtServer or Wrapper
        The sum of what is received.
    quantizer : Quantizer
        How a vector becomes a message.
    keys : callable
        Draws the keys of the messages of this process, out of those of all.
    carry : callable
        How they travel.
    """

    def __init__(
        self,
        inner: AtServer | Wrapper,
        quantizer: Quantizer,
        keys: Callable[[int], Keys],
        carry: Carry,
    ) -> None:
        super().__init__(inner, quantizer, keys)
        self._carry = carry

    def send(self, values: Vector, senders: Senders | None = None) -> Vector:
        """Send a vector of each sender here (a, P): what is decoded of them, then of others."""
        messages = self.quantizer.pack(values, self._draw)
        self.inner.count(messages.shape[1], senders)
        return self.quantizer.unpack(np.concatenate([messages, self._carry(messages)]))
