"""What a dataset of an HDF5 file stores, and whether what it declares can be made of that.

Everything is checked before a value is read: shapes, chunks and filters are claims by the writer of
the file. Sizes are in bytes. `Unpacking` unpacks packed chunks by several threads at once.
"""

from __future__ import annotations

import math
import os
import random
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import processors
from vpem.checks import Floats
from vpem.errors import FileError
from vpem.files.opening import EXPANSION, advice, read_limit

if TYPE_CHECKING:
    import h5py


Lengths = Iterator[NDArray[np.uint32]]

DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALEOFFSET, LZF = 1, 2, 3, 4, 5, 6, 32000
FILTERS = (DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALEOFFSET, LZF)
PACKING = (DEFLATE, SZIP, LZF)
DEFLATED = 1032  # bytes that one byte of deflate can stand for
OF_A_COLUMN = 64  # what a column, or a string, takes in memory at least
OF_A_CHUNK = 4096  # what HDF5 takes to read a chunk, however small
PACKED = 6
"""How many times the limit may be made of what is packed as tightly as deflate can: two copies of
that, as fitting has them, are less than a gigabyte."""


def most_of(stored: int) -> int:
    """Return how many bytes may be made of so many that are stored."""
    limit = read_limit()
    return max(limit, EXPANSION * stored, min(PACKED * limit, DEFLATED * stored))


def check_storage(dataset: h5py.Dataset, where: str, text: bool = False) -> int:
    """Return the memory that an unread dataset takes; refuse one out of proportion to its file.

    FileError beyond `most_of` what is stored, for chunks that are far larger than the dataset or
    too many, and for ways of packing that are not read here. If ``text``, values become strings.
    """
    import h5py

    limit, shape, dtype = read_limit(), dataset.shape, dataset.dtype
    # Integers become real numbers, text strings. Most of a string of fixed length may be padding,
    # which takes time but no memory.
    width = dtype.itemsize if dtype.kind == "f" else max(dtype.itemsize, 8)
    width = OF_A_COLUMN + dtype.itemsize // 16 if text else width
    n_bytes: int = math.prod(shape) * width
    if len(shape) == 2:
        n_bytes = max(n_bytes, shape[1] * OF_A_COLUMN)
    plist = dataset.id.get_create_plist()
    if plist.get_layout() == h5py.h5d.CHUNKED:
        each = math.prod(dataset.chunks) * _width(dataset)
        if each > max(limit, 4 * n_bytes):
            raise FileError(
                f"{where} has chunks of {_size(each)}, far larger than itself; {advice(each)}"
            )
        # Filters must be known, come once, and claim no other size than that of the chunks.
        filters = [plist.get_filter(number) for number in range(plist.get_nfilters())]
        codes = [code for code, *_ in filters]
        for code in codes:
            if code not in FILTERS:
                raise FileError(
                    f"{where} is packed by the filter {code}, which is not read here; write it "
                    "with gzip, lzf, or as it is"
                )
        packing = [place for place, code in enumerate(codes) if code in PACKING]
        last = packing[0] if packing else len(codes)
        if len(set(codes)) < len(codes) or len(packing) > 1 or {*codes[last + 1 :]} - {FLETCHER32}:
            raise FileError(f"{where} is packed several times over; write it with one filter")
        for code, _, values, _ in filters:
            claimed = 0
            if code in (NBIT, SCALEOFFSET) and len(values) > 4:
                claimed = values[2] * values[4]
            elif code == LZF and len(values) > 2:
                claimed = values[2]
            if claimed > 2 * each:
                raise FileError(f"{where} says that its chunks of {each} bytes unpack to {claimed}")
    if n_bytes > limit and n_bytes > most_of(stored := _stored(dataset, where)):
        words = " x ".join(map(str, shape)) or "a single value"
        raise FileError(
            f"{where} declares {words} values, which would take {_size(n_bytes)}, but the file "
            f"stores {_size(stored)} of it; {advice(n_bytes)}"
        )
    if dataset.chunks is not None:
        # To find very many chunks would take far more than they hold.
        pairs = zip(shape, dataset.chunks, strict=True)
        count = math.prod(-(-length // chunk) for length, chunk in pairs)
        to_find = OF_A_CHUNK * count
        if to_find > PACKED * limit and to_find > EXPANSION * _stored(dataset, where):
            raise FileError(
                f"{where} is in {count} chunks of {' x '.join(map(str, dataset.chunks))}, which "
                f"would take {_size(to_find)} to read; write it with larger chunks, or, "
                f"{advice(to_find / PACKED)}"
            )
    return n_bytes


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.4g} GB" if n_bytes > 1e8 else f"{n_bytes} bytes"


def _stored(dataset: h5py.Dataset, where: str) -> int:
    """Return how many bytes of the file belong to a dataset; 0: it has its fill value only."""
    stored = int(dataset.id.get_storage_size())
    have = os.path.getsize(dataset.file.filename)
    if stored > have:
        raise FileError(f"{where} says that {stored} bytes of it are stored in a file of {have}")
    return stored


class Inflation:
    """Looks at packed chunks before they are read: none may unpack to more than a chunk.

    None may be stored in more than its own size either, which needs no look inside. Chunks each of
    which could take more than the limit are unpacked once, with a bound; of the others as many as
    declare the limit together, chosen at random: what is missed then can hardly take more than a
    few times what all of them declare.
    """

    def __init__(self, dataset: h5py.Dataset, where: str) -> None:
        self._dataset = dataset
        self._where = where
        self._left: list[tuple[int, ...]] = []
        self._codes = [] if dataset.chunks is None else codes_of(dataset)
        stored = int(dataset.id.get_storage_size())
        if {SZIP, DEFLATE, LZF}.isdisjoint(self._codes) or (
            SZIP not in self._codes and stored * DEFLATED <= read_limit()
        ):
            return
        self._each = math.prod(dataset.chunks) * _width(dataset)
        chunks = _chunks(dataset, where)
        # What a filter cannot pack it stores as it is, with a few bytes that say so.
        self._most = self._each + self._each // 100 + 1024
        largest = max((int(chunk.size) for chunk in chunks), default=0)
        if largest > self._most:
            raise FileError(
                f"{where} has a chunk of {self._each} bytes that is stored in {largest}; the file "
                "is damaged"
            )
        if LZF in self._codes:
            return
        small = max(read_limit(), 4 * self._each) // DEFLATED
        others: list[tuple[int, ...]] = []
        for chunk in chunks:
            if SZIP in self._codes or chunk.size > small:
                self._left.append(chunk.chunk_offset)
            elif self._each < chunk.size * DEFLATED:
                others.append(chunk.chunk_offset)
        count = read_limit() // max(self._each, 1)
        if count < len(others):
            # A file cannot be made to avoid them: the seed is no part of a result.
            others = random.SystemRandom().sample(others, count)
        self._left += others

    def check(self, rows: slice | None = None) -> None:
        """Refuse chunks of rows, by default all, which unpack to more than they may."""
        if not self._left:
            return
        height = self._dataset.chunks[0]
        due = [
            first
            for first in self._left
            if rows is None or rows.start - height < first[0] < rows.stop
        ]
        for first in due:
            mask, packed = self._dataset.id.read_direct_chunk(first)
            # Through the filters that the mask leaves, as far as one of them says how large it is.
            codes = [code for place, code in enumerate(self._codes) if not mask >> place & 1]
            fits = True
            if DEFLATE in codes:
                codes = codes[: codes.index(DEFLATE)]
                with suppress(zlib.error):  # HDF5 stops at the same place, and says so
                    fits = inflate(packed, self._most) is not None
            if SZIP in codes and struct.unpack_from("<I", packed.ljust(4))[0] > self._most:
                fits = False
            if not fits:
                raise FileError(
                    f"{self._where} has a chunk that unpacks to more than its {self._each} bytes"
                )
        done = set(due)
        self._left = [first for first in self._left if first not in done]


def _width(dataset: h5py.Dataset) -> int:
    """Return the bytes of an element in the file; of strings of variable length, where they are."""
    import h5py

    text = h5py.check_string_dtype(dataset.dtype)
    if text is None or text.length is not None:
        return int(dataset.dtype.itemsize)
    return 8 + int(dataset.file.id.get_create_plist().get_sizes()[0])


def codes_of(dataset: h5py.Dataset) -> list[int]:
    """Return the filters that chunks went through, in order."""
    plist = dataset.id.get_create_plist()
    return [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]


def inflate(packed: bytes, most: int) -> bytes | None:
    """Return what deflate packed, or None if that is longer than ``most``."""
    content = zlib.decompressobj().decompress(packed, most + 1)
    return content if len(content) <= most else None


def _chunks(dataset: h5py.Dataset, where: str) -> list[h5py.h5d.StoreInfo]:
    """Return where the chunks of a dataset are, no more of them than the file can hold."""
    have = os.path.getsize(dataset.file.filename)
    chunks: list[h5py.h5d.StoreInfo] = []
    total = 0

    def record_chunk(chunk: h5py.h5d.StoreInfo) -> bool | None:
        nonlocal total
        total += max(int(chunk.size), 1)
        chunks.append(chunk)
        return True if total > have else None

    dataset.id.chunk_iter(record_chunk)
    if total > have:
        raise FileError(f"{where} has chunks that lie upon each other; the file is damaged")
    return chunks


def lengths_of_strings(dataset: h5py.Dataset, where: str) -> Lengths | None:
    """Yield runs of lengths (bytes) of strings, found at their references; None if packed."""
    if dataset.chunks is None:
        known = dataset.id.get_offset() is not None
    else:
        known = {*codes_of(dataset)} <= {DEFLATE, SHUFFLE, FLETCHER32}
    width = _width(dataset)

    def first_words(content: bytes) -> NDArray[np.uint32]:
        """Return the first four bytes of every reference as numbers."""
        whole = np.frombuffer(content[: len(content) // width * width], dtype=np.uint8)
        return np.ascontiguousarray(whole.reshape(-1, width)[:, :4]).view("<u4").reshape(-1)

    return map(first_words, _references(dataset, where, width)) if known else None


def _references(dataset: h5py.Dataset, where: str, width: int) -> Iterator[bytes]:
    """Yield what a dataset stores, in one piece or in chunks, part by part and unpacked."""
    if dataset.chunks is None:
        with open(dataset.file.filename, "rb") as file:
            file.seek(dataset.id.get_offset())
            left = dataset.size * width
            while left > 0 and (part := file.read(min(left, width << 16))):
                left -= len(part)
                yield part
        return
    codes = codes_of(dataset)
    each = math.prod(dataset.chunks) * width
    for chunk in _chunks(dataset, where):
        mask, packed = dataset.id.read_direct_chunk(chunk.chunk_offset)
        for place in range(len(codes) - 1, -1, -1):
            if mask >> place & 1:
                continue
            if codes[place] == DEFLATE:
                try:
                    content = inflate(packed, each + 4)
                except zlib.error as error:
                    raise FileError(f"{where} has a chunk that is damaged ({error})") from error
                if content is None:
                    raise FileError(f"{where} has a chunk that unpacks to more than its size")
                packed = content
            elif codes[place] == FLETCHER32:
                packed = packed[:-4]
            else:
                rest = len(packed) % width
                whole = np.frombuffer(packed[: len(packed) - rest], dtype=np.uint8)
                packed = whole.reshape(width, -1).T.tobytes()
        yield packed


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
    def for_dataset(cls, dataset: h5py.Dataset) -> Unpacking | None:
        """Return what unpacks a dataset, or None if HDF5 does that as well."""
        import h5py

        codes = [] if dataset.chunks is None else codes_of(dataset)
        if codes not in ([DEFLATE], [SHUFFLE, DEFLATE]) or processors() == 1:
            return None
        # Numbers with fewer bits than their bytes have are not what NumPy makes of the bytes.
        if not h5py.h5t.py_create(dataset.dtype).equal(dataset.id.get_type()):
            return None
        unpacking = cls(dataset)
        return unpacking if SMALL <= unpacking._each <= LARGE else None

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
