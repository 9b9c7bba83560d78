"""Columns of Arrow tables as NumPy arrays, and what they may hold."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vpem.checks import BLOCK_VALUES, AnyArray, Floats, Labels, check_memory, read_float
from vpem.errors import FileError, InputError, MissingIdError, Setting, shorten
from vpem.files.hdf5 import LONGEST_STRING
from vpem.files.opening import check_unpacked


def check_strings(
    name: str, column: pa.ChunkedArray, source: str, file: Path | None = None
) -> None:
    """Raise FileError if text is longer than names are or takes far more than its file."""
    if not is_text(plain_kind(column.type)):
        return
    longest = longest_text(column)
    if longest > 4 * LONGEST_STRING:
        raise FileError(
            f"{source}: column {name!r} holds a text of {longest} bytes, more than "
            f"{LONGEST_STRING} characters; leave it out with ",
            Setting("drop"),
        )
    n_bytes = 4 * longest * len(column)  # as numpy has text
    if file is None:
        check_memory(n_bytes, source)
    else:
        check_unpacked(n_bytes, file, source)


def longest_text(column: pa.ChunkedArray) -> int:
    """Return the bytes of the longest text of a column, dictionaries not unpacked."""
    import pyarrow.compute as pc

    longest = 0
    for chunk in column.chunks:
        texts = chunk.dictionary if hasattr(chunk, "dictionary") else chunk
        longest = max(longest, pc.max(pc.binary_length(texts)).as_py() or 0)
    return longest


def matrix_of(columns: list[tuple[str, pa.ChunkedArray]], n_rows: int, source: str) -> Floats:
    """Return the feature columns side by side, float32 if they all are, float64 otherwise."""
    for refusal, test in (
        ("text", is_text),
        ("dates or times", pa.types.is_temporal),
        ("no values", pa.types.is_null),
    ):
        bad = [(name, column) for name, column in columns if test(plain_kind(column.type))]
        if bad:
            listed = shorten((repr(name) for name, _ in bad), 10)
            columns_hold = f"column {listed} holds" if len(bad) == 1 else f"columns {listed} hold"
            example = ""
            if refusal == "text":
                example = f" (for example {bad[0][1][0].as_py()!r})"
                for row, value in enumerate(bad[0][1]):
                    text = value.as_py()
                    is_number = isinstance(text, str) and read_float(text) is not None
                    if text not in (None, "") and not is_number:
                        example = f" (for example {text[:40]!r} in row {row}, counted from 0)"
                        break
            raise InputError(
                f"{source}: {columns_hold} {refusal}{example}, but features are numbers; leave "
                f"{'it' if len(bad) == 1 else 'them'} out of the features"
            )
    plain = [(name, decoded(column)) for name, column in columns]
    small = all(column.type in (pa.float32(), pa.float16()) for _, column in plain)
    dtype = np.dtype(np.float32 if small else np.float64)
    check_memory(n_rows * len(plain) * dtype.itemsize, source)
    X = np.empty((n_rows, len(plain)), dtype=dtype)
    step = max(LEAST_ROWS, BLOCK_VALUES // max(len(plain), 1))  # rows that a cache has
    for start in range(0, n_rows, step):
        for position, (_, column) in enumerate(plain):
            fill_column(X[start : start + step, position], column.slice(start, step))
    return X


LEAST_ROWS = 1 << 12
"""Rows of columns that are copied one after the other."""


def fill_column(out: Floats, column: pa.ChunkedArray) -> None:
    """Copy a column of numbers to ``out``, shape (m,); NaN is missing."""
    start = 0
    for values, missing in _chunks(column):
        part = out[start : start + len(values)]
        part[:] = values
        if missing is not None:
            part[missing] = np.nan
        start += len(values)


def numbers_in(column: pa.ChunkedArray) -> tuple[Labels, NDArray[np.bool_]]:
    """Return the numbers of a column of any numeric kind, and which rows have none."""
    chunks = list(_chunks(column)) or [(np.empty(0), None)]
    values = np.concatenate([part for part, _ in chunks])
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    start = 0
    for part, gaps in chunks:
        if gaps is not None:
            missing[start : start + len(part)] |= gaps
        start += len(part)
    return values, missing


def _chunks(column: pa.ChunkedArray) -> Iterator[tuple[Labels, NDArray[np.bool_] | None]]:
    """Yield numbers, chunk by chunk, and which of them are missing, if any.

    To read them from pyarrow's memory takes neither `pyarrow.compute`, which its casts load, nor
    pandas, which its `to_numpy` loads where that is installed: either takes longer than most fits.
    """
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64(), safe=False)
    for chunk in column.chunks:
        end = chunk.offset + len(chunk)
        there, data = chunk.buffers()
        if not len(chunk):
            continue
        if pa.types.is_boolean(chunk.type):
            values: AnyArray = _bits(data, chunk.offset, end)
        else:
            values = np.frombuffer(data, chunk.type.to_pandas_dtype(), end)[chunk.offset :]
        missing = _bits(there, chunk.offset, end) == 0 if chunk.null_count else None
        yield values, missing


def _bits(packed: pa.Buffer, start: int, end: int) -> NDArray[np.uint8]:
    first = start // 8  # what is before was unpacked with the slices before
    part = np.frombuffer(packed, np.uint8)[first : end // 8 + 1]
    return np.unpackbits(part, count=end - 8 * first, bitorder="little")[start - 8 * first :]


def is_empty(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return which texts are empty; to compare them with "" loads pandas, as `pyarrow.array`."""
    import pyarrow.compute as pc

    return pc.match_substring_regex(values, "^$")


def annotation_of(
    name: str, column: pa.ChunkedArray, source: str, file: Path | None = None, what: str = "label"
) -> Labels:
    """Return ids or labels, ``what`` each is called, as an array of integers, floats or strings.

    Text is without white space around it; where it is whole numbers alone it becomes integers.
    """
    check_strings(name, column, source, file)
    values = decoded(column)
    if pa.types.is_temporal(values.type) and not pa.types.is_duration(values.type):
        import pyarrow.compute as pc

        values = values.cast(pa.string())
        # Parts of seconds, or times of day, that none of the moments has are left out.
        for ending in (r"\.0+$", " 00:00:00$"):
            if pc.all(pc.match_substring_regex(values, ending), skip_nulls=False).as_py():
                values = pc.replace_substring_regex(values, ending, "")
    if is_text(values.type) and not is_bytes(values.type):
        import pyarrow.compute as pc

        values = pc.utf8_trim_whitespace(values.cast(pa.large_string()))
        broken, missing = numbers_in(pc.match_substring(values, "\n"))
        broken[missing] = 0
        if broken.any():
            raise InputError(
                f"{source}: row {int(np.argmax(broken))} (counted from 0) has a line break in "
                f"column {name!r}; is a quotation mark left open?"
            )
        _check_there(name, missing | (numbers_in(is_empty(values))[0] == 1), source, what)
        if pc.all(pc.match_substring_regex(values, r"^(0|-?[1-9][0-9]{0,17})$")).as_py():
            return numbers_in(values.cast(pa.int64()))[0]
        texts = np.empty(len(values), f"U{pc.max(pc.utf8_length(values)).as_py() or 1}")
        for start in range(0, len(values), LEAST_ROWS):  # few at a time are objects of Python
            texts[start : start + LEAST_ROWS] = values.slice(start, LEAST_ROWS).to_pylist()
        return texts
    if not is_numeric(values.type):
        raise InputError(f"{source}: column {name!r} holds {values.type}, not text or numbers")
    numbers, missing = numbers_in(values)
    _check_there(name, missing, source, what)
    return numbers.astype(np.int8) if pa.types.is_boolean(values.type) else numbers


def _check_there(name: str, missing: Labels, source: str, what: str) -> None:
    if missing.any():
        row = f"{source}: row {int(np.argmax(missing))} (counted from 0)"
        if what == "id":
            raise MissingIdError(
                f"{row} has no id in column {name!r}; fill it in, or remove the row"
            )
        raise InputError(
            f"{row} has no value in column {name!r}, which holds {what}s; fill it in, or leave "
            "the column out with ",
            Setting("drop"),
        )


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replace dictionary codes by their values."""
    return column.cast(plain_kind(column.type)) if pa.types.is_dictionary(column.type) else column


def plain_kind(kind: pa.DataType) -> pa.DataType:
    """Return the type of values, whether or not they are in a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a column holds strings, or bytes, as pyarrow reads text that is not UTF-8."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, is_bytes)
    return any(test(kind) for test in tests)


def is_bytes(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )  # fmt: skip
    return any(test(kind) for test in tests) and not pa.types.is_decimal(kind)


def is_numeric(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def give_back() -> None:
    """Give the system memory back that is no longer used, of pyarrow and of its parser (C)."""
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
