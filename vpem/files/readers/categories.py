"""Columns of tables that are categories: text, and what a file declares to be one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vpem.errors import InputError, Setting, VpemError
from vpem.files.arrow import (
    check_strings,
    decoded,
    is_bytes,
    is_numeric,
    is_text,
    numbers_in,
    plain_kind,
)
from vpem.files.families import Asked
from vpem.files.levels import MOST_LEVELS, check_levels, in_order, named_numbers
from vpem.files.readers.common import marked_numbers
from vpem.files.readers.frames import Frame, Wanted
from vpem.files.readers.leaving_out import ID_NAMES
from vpem.files.readers.text_numbers import check_writing, numbers_of, without_marks

ROWS_A_LEVEL = 2
"""Text with fewer rows a level, on average, is taken for a category only if somebody says so."""


@dataclass(frozen=True)
class Category:
    """A column as codes."""

    codes: pa.ChunkedArray  # of levels; NaN: missing
    names: tuple[str, ...]  # of the levels


def take_categories(
    frame: Frame, columns: dict[int, pa.ChunkedArray], wanted: Wanted
) -> tuple[dict[int, Category], dict[str, str]]:
    """Return the columns that are categories, by number, and why others of text are none."""
    asked = Asked.of(wanted.table.family)
    assert asked is not None
    found: dict[int, Category] = {}
    left_out: dict[str, str] = {}
    for place, column in columns.items():
        name = frame.names[place]
        said = asked.named.get(name) == "categorical"
        if not said and (place in frame.index or name.casefold() in ID_NAMES):
            continue
        if wanted.lenient and name not in asked.named:  # no feature of the model
            continue
        declared = pa.types.is_dictionary(frame.kinds[place])
        if not asked.may_be_category(name, frame.names) or not _is_category(
            column, declared, wanted
        ):
            continue
        if not (said or declared) and is_text(plain_kind(column.type)):
            _check_writing(frame, name, column, wanted)
        try:
            one = _category(frame, name, column, wanted, said or wanted.columns is not None)
        except VpemError:
            if said:
                raise
            left_out[name] = "text, long"
            continue
        if isinstance(one, str):
            left_out[name] = one
        elif one.names:
            found[place] = one
    return found, left_out


def _check_writing(frame: Frame, name: str, column: pa.ChunkedArray, wanted: Wanted) -> None:
    """Raise InputError where text is meant to hold numbers, unless it is said to be names."""
    try:
        check_writing({name: column}, wanted.table, frame.source)
    except InputError as error:
        names = Setting("family", f"{name}=categorical")
        raise InputError(*error.parts, "; if these are names say ", names) from None


def _is_category(column: pa.ChunkedArray, declared: bool, wanted: Wanted) -> bool:
    """Whether a column holds text that is no numbers, or is declared a category by its file."""
    kind = plain_kind(column.type)
    if is_text(kind):
        return not is_bytes(kind) and (declared or numbers_of(column, wanted.table) is None)
    return declared and is_numeric(kind)


def _category(
    frame: Frame, name: str, column: pa.ChunkedArray, wanted: Wanted, said: bool
) -> Category | str:
    """Return a column as codes; or why it is not taken for a category, unless somebody says so."""
    if is_text(plain_kind(column.type)):
        check_strings(name, column, frame.source, frame.file)
        text = without_marks(column, wanted.table).dictionary_encode().combine_chunks()
        words: list[str] = text.dictionary.to_pylist()
        called = in_order(words)
        place = {name: code for code, name in enumerate(called)}
        rank = np.array([place[word] for word in words], dtype=np.float64)
    else:
        values = decoded(column).cast(pa.float64())
        text = _unmarked(values, wanted).dictionary_encode().combine_chunks()
        numbers, _ = numbers_in(pa.chunked_array([text.dictionary]))
        called = named_numbers(np.sort(numbers))
        rank = np.argsort(np.argsort(numbers)).astype(np.float64)
    n_levels, n_values = len(called), len(column) - text.null_count
    lenient = wanted.lenient
    if not (said or lenient):
        if n_levels > min(MOST_LEVELS, n_values / ROWS_A_LEVEL):
            return f"text, {n_levels} different"
        if n_levels == 1 and len(column) > 1 and not wanted.keep_constant:
            return "constant"
    if not lenient:
        check_levels(name, n_levels, n_values, frame.source)
    places, missing = numbers_in(pa.chunked_array([text.indices]))
    codes = np.full(len(column), np.nan)
    codes[~missing] = rank[places[~missing]]
    one = pa.Array.from_buffers(pa.float64(), len(codes), [None, pa.py_buffer(codes)])
    return Category(pa.chunked_array([one]), called)


def _unmarked(values: pa.ChunkedArray, wanted: Wanted) -> pa.ChunkedArray:
    """Return numbers without NaN, and without those that stand for missing values."""
    gone = pc.is_null(values, nan_is_null=True)
    for mark in marked_numbers(wanted.table):
        gone = pc.or_(gone, pc.fill_null(pc.equal(values, mark), False))
    return pc.if_else(gone, pa.NULL, values)
