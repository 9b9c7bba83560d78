"""A few exact numbers of each holder, which travel in the messages of a sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats

SCALAR_BYTES = 8
"""Of each of them, whatever else is sent: no codec and no other precision touches it."""


@dataclass
class Scalars:
    """Exact numbers that are summed with the terms, in the same messages.

    Where terms are summed a chunk of rows at a time they go with the last chunk: they may be sums
    over all rows, which holders know then.

    Attributes
    ----------
    own : ndarray of shape (B, n)
        Of each holder of this process.
    found : ndarray of shape (R, n)
        Their sums, one estimate a root, or one for all, once the sum is taken.
    exponent : int
        Power of two by which their units are larger than the terms' where sums are masked.
    """

    own: NDArray[np.float64]
    found: NDArray[Any]
    exponent: int = 0

    @classmethod
    def empty(cls, n_holders: int, n_roots: int, n_scalars: int = 1) -> Scalars:
        """Return so many zeros."""
        return cls(np.zeros((n_holders, n_scalars)), np.zeros((n_roots, n_scalars)))


def message_bytes(n_samples: int, n_values: int, itemsize: int, n_scalars: int) -> int:
    """Bytes of a message of so many rows of values, and of scalars."""
    return n_samples * n_values * itemsize + n_scalars * SCALAR_BYTES


def with_scalars(
    chunks: Iterator[slice], scalars: Scalars | None
) -> Iterator[tuple[slice, Scalars | None]]:
    """Yield chunks of rows, the last of them with the scalars."""
    ahead = next(chunks, None)
    while ahead is not None:
        rows, ahead = ahead, next(chunks, None)
        yield rows, scalars if ahead is None else None


def beside(terms: Floats, scalars: Scalars | None) -> list[NDArray[Any]]:
    """Return a vector of each block's terms (B, m K), and its scalars: what one message has."""
    flat = np.ascontiguousarray(terms).reshape(len(terms), int(np.prod(terms.shape[1:])))
    return [flat] if scalars is None else [flat, scalars.own]


def flattened(terms: Floats, scalars: Scalars | None = None) -> NDArray[np.float64]:
    """Terms (B, m, K) as a float64 vector of each block (B, K m), and after them its scalars.

    Component by component, so that a bucket of a codec holds values of one.
    """
    n_blocks, m, n_components = terms.shape
    if scalars is None:
        return beside(terms.transpose(0, 2, 1), None)[0].astype(np.float64, copy=False)
    flat = np.empty((n_blocks, n_components * m + scalars.own.shape[1]))
    values = flat[:, : n_components * m].reshape(n_blocks, n_components, m)  # a view
    values[...] = terms.transpose(0, 2, 1)
    flat[:, n_components * m :] = scalars.own
    return flat


def unflattened(flat: NDArray[np.float64], terms: Floats, scalars: Scalars | None = None) -> Floats:
    """Vectors (R, K m) as sums (R, m, K) in the type and shape of terms (B, m, K).

    What stands after them is the sum of the scalars.
    """
    m, n_components = terms.shape[1:]
    n_values = m * n_components
    if scalars is not None:
        scalars.found = flat[:, n_values:].copy()
    turned = flat[:, :n_values].reshape(len(flat), n_components, m).transpose(0, 2, 1)
    return np.ascontiguousarray(turned, dtype=terms.dtype)
