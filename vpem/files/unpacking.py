"""Packed chunks of a dataset, unpacked by several threads at once."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING

import numpy as np

from vpem._core.threads import processors
from vpem.checks import Floats
from vpem.files.storage import DEFLATE, SHUFFLE, codes_of, inflate

if TYPE_CHECKING:
    import h5py


SMALL, LARGE = 1 << 14, 1 << 23
"""Bytes of a chunk worth the way to another thread, and of one that each thread may hold."""


class Unpacking:
    """Reads a matrix in chunks of deflate (gzip); HDF5 itself unpacks one after the other.

    None becomes larger than a chunk may be. What is not as expected (chunks that are not stored,
    that left a filter out, or are damaged) is left to HDF5, and to its messages.
    """

    def __init__(self, dataset: h5py.Dataset) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._dataset = dataset
        self._shape: tuple[int, int] = dataset.chunks
        self._dtype = dataset.dtype
        self._each = math.prod(self._shape) * self._dtype.itemsize
        self._is_shuffled = SHUFFLE in codes_of(dataset)
        self._workers = ThreadPoolExecutor(processors(), thread_name_prefix="vpem-unpack")

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> Unpacking | None:
        """Return what unpacks a dataset, or None if HDF5 does that as well."""
        import h5py

        codes = [] if dataset.chunks is None else codes_of(dataset)
        if codes not in ([DEFLATE], [SHUFFLE, DEFLATE]) or processors() == 1:
            return None
        # Numbers with fewer bits than their bytes have are not what NumPy makes of the bytes.
        if not h5py.h5t.py_create(dataset.dtype).equal(dataset.id.get_type()):
            return None
        found = cls(dataset)
        return found if SMALL <= found._each <= LARGE else None

    def read_into(self, out: Floats, start: int) -> None:
        """Fill ``out``, shape (m, columns), with the rows from ``start`` on."""
        height, width = self._shape
        firsts = [
            (row, column)
            for row in range(start - start % height, start + len(out), height)
            for column in range(0, out.shape[1], width)
        ]

        def place(first: tuple[int, int]) -> None:
            row, column = first
            rows = slice(max(row, start), min(row + height, start + len(out)))
            columns = slice(column, min(column + width, out.shape[1]))
            places = np.s_[rows.start - start : rows.stop - start, columns]
            values = self._values(first)
            if values is None:
                self._dataset.read_direct(out, np.s_[rows, columns], places)
            else:
                inside = values[rows.start - row : rows.stop - row, : columns.stop - column]
                with np.errstate(over="ignore"):  # what is too large is infinite, as in HDF5
                    out[places] = inside

        for _ in self._workers.map(place, firsts):
            pass

    def _values(self, first: tuple[int, int]) -> Floats | None:
        """Return the values of a chunk, or None where HDF5 will see to it."""
        try:
            mask, packed = self._dataset.id.read_direct_chunk(first)
            content = None if mask else inflate(packed, self._each)
        except (OSError, RuntimeError, ValueError, zlib.error):
            return None
        if content is None or len(content) != self._each:
            return None
        if not self._is_shuffled:
            return np.frombuffer(content, dtype=self._dtype).reshape(self._shape)
        values = np.empty(self._shape, dtype=self._dtype)
        parts = np.frombuffer(content, dtype=np.uint8).reshape(self._dtype.itemsize, -1)
        for target, part in zip(
            values.view(np.uint8).reshape(parts.shape[::-1]).T, parts, strict=True
        ):
            target[...] = part
        return values
