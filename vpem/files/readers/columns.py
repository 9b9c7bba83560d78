"""What of a plain table is no feature, and why: one word a column."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from vpem.checks import (
    COUNTED,
    DIFFERENT,
    NEARLY,
    Labels,
    ids_by_name,
    is_whole,
    no_measurement,
    read_float,
)
from vpem.errors import InputError, Setting, VpemWarning, shorten
from vpem.files.arrow import (
    annotation_of,
    decoded,
    is_bytes,
    is_empty,
    is_numeric,
    is_text,
    longest_text,
    numbers_in,
    plain_kind,
)
from vpem.files.hdf5 import LONGEST_STRING
from vpem.files.readers.frames import GUESSED, MOST_NUMBERS, LazyFrame, only_guesses, take_counts
from vpem.files.table_settings import TableSettings

ID_NAMES = ("id", "ids")
"""Of columns that are hardly meant to be features, in any case of letters."""

MOST = 20
"""Columns of text among which ids are looked for."""

UNTELLING = ("constant", "no values")
"""Why columns of numbers are no features, which may be otherwise in other rows."""


def sort_columns(
    frame: LazyFrame,
    columns: dict[int, pa.ChunkedArray],
    table: TableSettings,
    keep_constant: bool,
    said: Collection[str],
) -> tuple[dict[int, pa.ChunkedArray], dict[str, str]]:
    """Tell features, columns of numbers, from columns that are none, with the reason, by name.

    Those given have no other meaning; InputError where one is meant to hold numbers and does not.
    If ``keep_constant``, columns with one value, or none at all, are features.
    """
    features: dict[int, pa.ChunkedArray] = {}
    left_out: dict[str, str] = {
        frame.names[n]: "lists" for n, kind in enumerate(frame.kinds) if pa.types.is_nested(kind)
    }
    texts: dict[str, pa.ChunkedArray] = {}
    for place, values in columns.items():
        name = frame.names[place]
        is_named = name.casefold() in ID_NAMES
        if is_text(plain_kind(values.type)) and place not in frame.index and not is_named:
            from vpem.files.readers.text_columns import code_of_digits, is_blank, numbers_of

            numbers = numbers_of(values, table)
            if numbers is None and not is_blank(values):
                texts[name], left_out[name] = values, "text"
                continue
            if numbers is not None and name not in said and (why := code_of_digits(values, table)):
                left_out[name] = why
                continue
            values = pa.chunked_array([pa.nulls(len(values))]) if numbers is None else numbers
        values = values if is_text(plain_kind(values.type)) else decoded(values)
        if place in frame.index:
            why = "index"
        elif is_named:
            why = "ids that repeat"
        else:
            why = _why_not(values)
            why = why or ("" if name in said else _why_ids(name, values, keep_constant))
        features[place] = values
        if why and not (keep_constant and why in UNTELLING):
            left_out[name] = why
    left_out = take_counts(frame.source, left_out)
    features = {n: values for n, values in features.items() if frame.names[n] not in left_out}
    if texts:
        from vpem.files.readers.text_columns import check_writing

        check_writing(texts, table, frame.source)
    return features, {name: left_out[name] for name in frame.names if name in left_out}


def _why_not(values: pa.ChunkedArray) -> str:
    """Return why a column is no feature; nothing if it is one."""
    kind, n_rows = values.type, len(values)
    if pa.types.is_null(kind) or values.null_count == len(values):
        return "no values"
    if pa.types.is_temporal(kind):
        return "dates"
    if not is_numeric(kind):
        return "no numbers"
    numbers, missing = numbers_in(values)
    known = numbers[~missing] if missing.any() else numbers
    if not len(known):
        return "no values"
    return "constant" if n_rows > 1 and known.min() == known.max() else ""


def _why_ids(name: str, values: pa.ChunkedArray, some: bool) -> str:
    """Return why a column of numbers is hardly a measurement; nothing if it may be one."""
    if not is_numeric(values.type) or values.null_count == len(values):
        return ""
    numbers, missing = numbers_in(values)
    known = numbers.astype(np.float64, copy=False)
    return no_measurement(name, np.where(missing, np.nan, known) if missing.any() else known, some)


def find_ids(frame: LazyFrame, columns: dict[int, pa.ChunkedArray]) -> int | None:
    """Return the column that names the rows where the user has not named one.

    That is the one called ``id`` or ``ids``, an index of text or with the name of ids, the first
    that is called as such (``patient``), another index that does more than count, or else the only
    one of text, or of whole numbers that are no counts, that has no value twice and none empty.
    """
    names = frame.names
    called = [place for place in columns if names[place].casefold() in ID_NAMES]
    if called:
        return called[0] if len(called) == 1 and _all_differ(columns[called[0]]) else None
    kinds = {n: plain_kind(column.type) for n, column in columns.items()}
    named = [n for n, one in columns.items() if ids_by_name(names[n]) and len(one) > 2]
    index = [n for n in columns if n in frame.index and not _counts(columns[n])]
    # An index of numbers without a name is what pandas leaves of a table that was longer.
    of_text = [n for n in index if is_text(kinds[n])]
    for place in (*(n for n in index if n in named), *of_text, *named, *index):
        if _all_differ(columns[place]):
            return place
    text = [n for n, kind in kinds.items() if is_text(kind) and n not in frame.index]
    different = [n for n in text if _all_differ(columns[n])] if len(text) <= MOST else []
    if not different:
        why = {n: _why_ids(names[n], columns[n], some=False) for n in kinds if n not in frame.index}
        likely = [n for n, one in why.items() if one not in ("", NEARLY)]
        different = [n for n in likely if _all_differ(columns[n])]
        are_counts = sum(one in (DIFFERENT, NEARLY) for one in why.values()) > MOST_NUMBERS
        counted = [n for n in different if why[n] == COUNTED]
        different = counted or ([] if are_counts else different)
    return different[0] if len(different) == 1 else None


def counted_by(frame: LazyFrame, columns: dict[int, pa.ChunkedArray]) -> Labels | None:
    """Return what rows are called that have no ids: by an index, or ids some of which are alike."""
    names = frame.names
    for place in [
        *sorted(frame.index & set(columns)),
        *(n for n in columns if names[n].casefold() in ID_NAMES or ids_by_name(names[n])),
    ]:
        try:
            called = annotation_of(names[place], columns[place], frame.source, frame.file)
        except InputError:  # some rows have none
            continue
        if called.dtype.kind == "f" and is_whole(called) and np.abs(called).max() < 2**53:
            called = called.astype(np.int64)
        return called
    return None


def _all_differ(column: pa.ChunkedArray) -> bool:
    """Whether a column of text or whole numbers has no value twice, and none empty."""
    kind = plain_kind(column.type)
    if column.null_count or is_bytes(kind) or not (is_text(kind) or pa.types.is_integer(kind)):
        return False
    coded = pa.types.is_dictionary(column.type)
    if coded and sum(len(chunk.dictionary) for chunk in column.chunks) < len(column):
        return False
    if not is_text(kind):
        return len(np.unique(numbers_in(decoded(column))[0])) == len(column)
    if longest_text(column) > 4 * LONGEST_STRING:
        return False
    import pyarrow.compute as pc

    values = pc.utf8_trim_whitespace(decoded(column).cast(pa.large_string()))
    if pc.any(is_empty(values)).as_py():
        return False
    return bool(pc.count_distinct(values).as_py() == len(values))


def _counts(column: pa.ChunkedArray) -> bool:
    """Whether a column only counts the rows, from 0 or 1."""
    values = decoded(column)
    if not is_numeric(values.type):
        return False
    plain = numbers_in(values)[0]
    return bool(plain[0] in (0, 1) and np.array_equal(plain, plain[0] + np.arange(len(plain))))


def nothing_left(frame: LazyFrame, left_out: dict[str, str]) -> InputError:
    """Return the error of a table without features."""
    if {*GUESSED} & {*left_out.values()}:
        return only_guesses(frame.source, left_out)
    listed = shorten((f"{name} ({why})" for name, why in left_out.items()), 10)
    sentence = f"{frame.source}: no column is left for the features: {listed or 'it has ids alone'}"
    if {*UNTELLING} & {*left_out.values()}:
        return InputError(f"{sentence}; name the features with ", Setting("features"))
    if len(frame.names) - len(frame.index) > 1:
        return InputError(f"{sentence}; features are columns of numbers")
    return InputError(
        f"{sentence}; remove the lines above the column names, or give the delimiter with ",
        Setting("delimiter"),
    )


def warn_of_numbers(frame: LazyFrame, features: Sequence[int]) -> None:
    """Warn where the names of features look like a row of data."""
    if frame.header and features and None not in [read_float(frame.names[one]) for one in features]:
        warnings.warn(
            VpemWarning(
                f"{frame.source}: the first row was taken for names although it holds numbers; if "
                "it is data, pass ",
                Setting("no_header", True),
            ),
            stacklevel=3,
        )
