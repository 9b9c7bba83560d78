"""Columns of text: numbers as people write them, and categories."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vpem.errors import InputError, Setting, VpemError, printable, shorten
from vpem.files.arrow import (
    check_strings,
    decoded,
    is_bytes,
    is_empty,
    is_numeric,
    is_text,
    longest_text,
    numbers_in,
    plain_kind,
)
from vpem.files.families import AUTO, FamilyChoice
from vpem.files.levels import MOST_LEVELS, check_levels, in_order, named_numbers
from vpem.files.readers.frames import (
    LONG,
    MISSING_MARKS,
    ZEROS,
    LazyFrame,
    ReadOptions,
    marked_numbers,
)
from vpem.files.table_settings import ID_NAMES, TableSettings

WRITINGS = (
    (".", None), (",", None), (".", ","), (",", "."), (".", " "), (",", " "), (".", "'"),
    (",", "'"), (",", "\u00a0"), (",", "\u202f"), (".", "\u2019"), (".", "_"),
)  # fmt: skip
"""Decimal marks and marks of thousands that are tried where a column does not read as numbers."""

SIGNED = r"^(?:[+-]?[$\x{20ac}\x{a3}\x{a5}] ?[+-]?[0-9.,]+|[+-]?[0-9.,]+ ?[%\x{20ac}\x{a3}])$"
"""Percentages and sums of money."""

LONGEST_NUMBER = 64  # bytes of a number, or of what stands among numbers
MOSTLY = 0.8  # share of numbers from which a column of text is meant to be one of numbers


def numbers_of(column: pa.ChunkedArray, table: TableSettings) -> pa.ChunkedArray | None:
    """Return text as numbers (nulls: missing); None if it has anything else, or no value at all."""
    if not _is_short(column):
        return None
    text = without_marks(column, table)
    if text.null_count == len(text):
        return None
    is_number = pc.match_substring_regex(text, _pattern(table.point, table.thousands))
    if not pc.all(is_number).as_py():
        return None
    if table.thousands is not None:
        text = pc.replace_substring(text, table.thousands, "")
    if table.point != ".":
        text = pc.replace_substring(text, table.point, ".")
    return text.cast(pa.float64())


def check_writing(columns: dict[str, pa.ChunkedArray], table: TableSettings, source: str) -> None:
    """Raise InputError where columns of text are meant to hold numbers, with what would help."""
    texts = {
        name: without_marks(column, table) for name, column in columns.items() if _is_short(column)
    }
    for decimal, thousands in WRITINGS:
        pattern = _pattern(decimal, thousands)
        same = [
            name
            for name, text in texts.items()
            if text.null_count < len(text)
            and pc.all(pc.match_substring_regex(text, pattern)).as_py()
        ]
        if not same:
            continue
        known = texts[same[0]].drop_null()
        others = known.filter(pc.invert(pc.match_substring_regex(known, _pattern(".", None))))
        shown = printable(str((others if len(others) else known)[0].as_py())[:40])
        listed = shorten(map(repr, same))
        they_hold = f"column {listed} holds" if len(same) == 1 else f"columns {listed} hold"
        said = [f"{source}: {they_hold} numbers written as {shown!r}; pass "]
        settings: list[str | Setting] = []
        if decimal != table.point:
            settings.append(Setting("decimal", decimal))
        if thousands is not None:
            settings += [" and "] * (decimal != table.point) + [Setting("thousands", thousands)]
        elif decimal == "," and all(
            pc.all(pc.match_substring_regex(texts[name], _pattern(".", ","))).as_py()
            for name in same
        ):
            between = " if the comma stands between thousands"
            settings += [", or ", Setting("thousands", ","), between]
        raise InputError(*said, *settings)
    for name, text in texts.items():
        if text.null_count < len(text) and pc.all(pc.match_substring_regex(text, SIGNED)).as_py():
            raise InputError(
                f"{source}: column {name!r} holds numbers written as "
                f"{printable(text.drop_null()[0].as_py())!r}; write them without the sign, or "
                "leave the column out with ",
                Setting("drop", name),
            )
        _check_marks(name, text, table, source)


def _check_marks(name: str, text: pa.ChunkedArray, table: TableSettings, source: str) -> None:
    """Raise InputError where a few words stand among numbers."""
    known = text.drop_null()
    numbers = pc.match_substring_regex(known, _pattern(table.point, table.thousands))
    count = pc.sum(pc.cast(numbers, pa.int64())).as_py() or 0
    others = known.filter(pc.invert(numbers))
    words = pc.unique(others)
    alone = len(words) == 1 and not str(words[0])[:1].isalnum()
    if not count or (count < MOSTLY * len(known) and not alone):
        return
    shown = [printable(word.as_py())[:40] for word in words[:3]]
    row, place = (pc.index(column, words[0]).as_py() for column in (text, known))
    listed = shorten(map(repr, shown), 3)
    more = "" if len(words) <= 3 else " and others"
    marks = ",".join(f'"{word}"' if "," in word else word for word in shown)
    remedy = "if that stands for missing values pass "
    if len(others) == 1 and place in (0, len(known) - 1) and str(words[0])[:1].isalpha():
        first = "units, or what stands above it if it holds the names"
        remedy = f"remove that row if it holds {'totals' if place else first}; or {remedy}"
    raise InputError(
        f"{source}: column {name!r} holds numbers but for {len(others)} "
        f"value{'s' * (len(others) > 1)}, {listed}{more} (first in row {row}, counted from 0); "
        f"{remedy}",
        Setting("na", marks),
        ", or leave the column out with ",
        Setting("drop", name),
    )


def code_of_digits(values: pa.ChunkedArray, table: TableSettings) -> str:
    """Return why text that is digits is a code, no measurement; nothing if it may be one."""
    text = without_marks(values, table)
    if not pc.all(pc.match_substring_regex(text, "^[0-9]+$")).as_py():
        return ""
    reasons = ((ZEROS, "^0[0-9]+$"), (LONG, "^[0-9]{19,}$"))
    return next(
        (why for why, one in reasons if pc.any(pc.match_substring_regex(text, one)).as_py()), ""
    )


def is_blank(column: pa.ChunkedArray) -> bool:
    if not _is_short(column):
        return False
    return bool(pc.all(is_empty(pc.utf8_trim_whitespace(decoded(column)))).as_py())


def _is_short(column: pa.ChunkedArray) -> bool:
    return not is_bytes(plain_kind(column.type)) and longest_text(column) <= LONGEST_NUMBER


def without_marks(column: pa.ChunkedArray, table: TableSettings) -> pa.ChunkedArray:
    """Return text without white space around it, and null where a value is missing."""
    text = pc.utf8_trim_whitespace(decoded(column).cast(pa.large_string()))
    # Not by `pyarrow.array`, which loads pandas where that is installed.
    coded = [mark.encode() for mark in (*MISSING_MARKS, *table.marks)]
    ends = np.cumsum([0, *map(len, coded)], dtype=np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(coded))]
    marks = pa.Array.from_buffers(pa.large_string(), len(coded), buffers)
    return pc.if_else(pc.is_in(text, marks), pa.NULL, text)


def _pattern(decimal: str, thousands: str | None) -> str:
    point = re.escape(decimal)
    whole = r"\d+" if thousands is None else rf"(?:\d+|\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+)"
    return rf"^[+-]?(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?$"


ROWS_A_LEVEL = 2
"""Text with fewer rows a level, on average, is a category only if the user says so."""


Category = tuple[pa.ChunkedArray, tuple[str, ...]]
"""A column as codes of levels, NaN where it is missing, and the names of the levels."""


def take_categories(
    frame: LazyFrame, columns: dict[int, pa.ChunkedArray], options: ReadOptions
) -> tuple[dict[int, Category], dict[str, str]]:
    """Return the columns that are categories, by number, and why others of text are none."""
    choice = FamilyChoice.parse(options.table.family)
    assert choice is not None
    categories: dict[int, Category] = {}
    left_out: dict[str, str] = {}
    for place, column in columns.items():
        name = frame.names[place]
        said = choice.named.get(name) == "categorical"
        if not said and (place in frame.index or name.casefold() in ID_NAMES):
            continue
        if options.lenient and name not in choice.named:  # no feature of the model
            continue
        words = {choice.word(name)}
        if name not in choice.named:  # an agent may be meant
            words |= {word for one, word in choice.named.items() if one not in set(frame.names)}
        if words.isdisjoint((AUTO, "categorical")):
            continue
        declared, kind = pa.types.is_dictionary(frame.kinds[place]), plain_kind(column.type)
        if is_text(kind):
            # Numbers written as text are categories only if their file says so.
            may_be = not is_bytes(kind) and (declared or numbers_of(column, options.table) is None)
        else:
            may_be = declared and is_numeric(kind)
        if not may_be:
            continue
        if not (said or declared) and is_text(kind):
            try:
                check_writing({name: column}, options.table, frame.source)
            except InputError as error:
                names = Setting("family", f"{name}=categorical")
                raise InputError(*error.parts, "; if these are categories, pass ", names) from None
        try:
            one = _category(frame, name, column, options, said or options.columns is not None)
        except VpemError:
            if said:
                raise
            left_out[name] = "text, long"
            continue
        if isinstance(one, str):
            left_out[name] = one
        elif one[1]:
            categories[place] = one
    return categories, left_out


def _category(
    frame: LazyFrame, name: str, column: pa.ChunkedArray, options: ReadOptions, said: bool
) -> Category | str:
    """Return a column as codes; or why it is no category, unless the user says so."""
    if is_text(plain_kind(column.type)):
        check_strings(name, column, frame.source, frame.file)
        text = without_marks(column, options.table).dictionary_encode().combine_chunks()
        words: list[str] = text.dictionary.to_pylist()
        called = in_order(words)
        place = {name: code for code, name in enumerate(called)}
        rank = np.array([place[word] for word in words], dtype=np.float64)
    else:
        values = decoded(column).cast(pa.float64())
        gone = pc.is_null(values, nan_is_null=True)
        for mark in marked_numbers(options.table):
            gone = pc.or_(gone, pc.fill_null(pc.equal(values, mark), False))
        text = pc.if_else(gone, pa.NULL, values).dictionary_encode().combine_chunks()
        numbers, _ = numbers_in(pa.chunked_array([text.dictionary]))
        called = named_numbers(np.sort(numbers))
        rank = np.argsort(np.argsort(numbers)).astype(np.float64)
    n_levels, n_values = len(called), len(column) - text.null_count
    lenient = options.lenient
    if not (said or lenient):
        if n_levels > min(MOST_LEVELS, n_values / ROWS_A_LEVEL):
            return f"text, {n_levels} different"
        if n_levels == 1 and len(column) > 1 and not options.keep_constant:
            return "constant"
    if not lenient:
        check_levels(name, n_levels, n_values, frame.source)
    places, missing = numbers_in(pa.chunked_array([text.indices]))
    codes = np.full(len(column), np.nan)
    codes[~missing] = rank[places[~missing]]
    one = pa.Array.from_buffers(pa.float64(), len(codes), [None, pa.py_buffer(codes)])
    return pa.chunked_array([one]), called
