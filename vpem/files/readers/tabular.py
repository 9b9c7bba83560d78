"""Tables as datasets: columns become features, and what is noted of the rows.

Columns of Parquet, Feather and Arrow files are looked at before they are read; records, of NumPy or
of HDF5, are tables too. Of a plain table some columns are no features, and one word says why. A
profile says what each column holds, and what a fit makes of it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vpem.checks import (
    COUNTED,
    DIFFERENT,
    NEARLY,
    AnyArray,
    Labels,
    ids_by_name,
    is_whole,
    no_measurement,
    read_float,
)
from vpem.errors import FileError, InputError, Setting, VpemWarning, shorten
from vpem.files.arrow import (
    annotation_of,
    check_strings,
    decoded,
    give_back,
    is_bytes,
    is_empty,
    is_numeric,
    is_text,
    longest_text,
    matrix_of,
    numbers_in,
    plain_kind,
)
from vpem.files.datasets import Dataset, as_weights, names_apart
from vpem.files.families import FamilyChoice
from vpem.files.hdf5 import LONGEST_STRING
from vpem.files.lakes import Stored
from vpem.files.opening import check_unpacked, damaged, open_regular
from vpem.files.readers.frames import (
    GUESSED,
    MOST_NUMBERS,
    OF_ROWS,
    ColumnRoles,
    LazyFrame,
    ReadOptions,
    blank_marks,
    choose,
    labels_of_columns,
    only_guesses,
    refuse_large,
    take_counts,
    warn_of_guesses,
    warn_of_marks,
)
from vpem.files.table_settings import ID_NAMES, TableSettings
from vpem.network.partition import from_worker_of_row
from vpem.network.schema import Report

if TYPE_CHECKING:
    from vpem.files.readers.text_columns import Category


KINDS = (
    (pa.types.is_boolean, "true/false"),
    (pa.types.is_integer, "whole numbers"),
    (pa.types.is_floating, "numbers"),
    (pa.types.is_decimal, "numbers"),
    (pa.types.is_temporal, "dates"),
    (is_text, "text"),
    (pa.types.is_null, "no values"),
    (pa.types.is_union, "unlike in files"),
)
"""What a column holds, by its type."""


PROFILE = ("name", "kind", "use", "missing", "different", "least", "most")
"""What is said of a column: its name, what it holds (numbers, text, dates, ...) and is used for
(feature, ids, labels, not used, left out (why)); how many values are missing and how many there are
(None: it was not read), and the first and last of these (None: there is none)."""


def profile_of(
    frame: LazyFrame,
    dataset: Dataset,
    read: Mapping[int, pa.ChunkedArray],
    features: Mapping[int, pa.ChunkedArray],
    noted: Mapping[str, int],
) -> list[Report]:
    """Return what the columns of a table hold: `PROFILE` of each.

    ``read`` and ``features``, as numbers, are by number; ``noted`` are ids, labels and the like.
    """
    uses = {place: f"{what}s" for what, place in noted.items()}
    uses |= dict.fromkeys(features, "feature")
    numbers = dict(zip(features, dataset.X.T, strict=True))
    levels = {place: dataset.coded[n] for n, place in enumerate(features) if n in dataset.coded}
    profiles = []
    for place, name in enumerate(frame.names):
        why = dataset.left_out.get(name)
        use = uses.get(place, "not used" if why is None else f"left out ({why})")
        column = read.get(place) if place in levels else features.get(place, read.get(place))
        plain = plain_kind(frame.kinds[place] if column is None else column.type)
        kind = next((word for test, word in KINDS if test(plain)), "lists")
        facts: tuple[Any, ...] = ()
        if place in levels:
            names = levels[place]
            facts = int(np.isnan(numbers[place]).sum()), len(names), names[0][:40], names[-1][:40]
        elif place in numbers:
            missing = np.isnan(numbers[place])
            values = np.unique(numbers[place][~missing])
            facts = int(missing.sum()), len(values)
            if len(values):
                facts += f"{values[0]:.6g}", f"{values[-1]:.6g}"
        elif column is not None:
            import pyarrow.compute as pc

            column = decoded(column)
            if is_text(column.type):
                column = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
                column = pc.if_else(is_empty(column), pa.NULL, column)
            there = column.drop_null()
            facts = len(column) - len(there), 0
            if len(there):
                ends = pc.min_max(there)
                shown = (str(ends[end].as_py())[:40] for end in ("min", "max"))
                facts = facts[0], pc.count_distinct(there).as_py(), *shown
        profiles.append(dict(zip_longest(PROFILE, (name, kind, use, *facts))))
    return profiles


Columns = dict[int, pa.ChunkedArray]
"""Columns that were read, by their number in the table."""


def dataset_of(frame: LazyFrame, options: ReadOptions) -> Dataset:
    table, names = options.table, names_apart(frame.names, frame.source)
    frame = replace(frame, names=names)
    choice = choose(names, options, frame.source)
    table_columns = _read(frame, choice)
    n_rows = len(next(iter(table_columns.values())))
    if n_rows == 0:
        raise InputError(f"{frame.source} has no rows")
    rest = {n: values for n, values in table_columns.items() if n not in choice.taken}
    left_out: dict[str, str] = {}
    said = () if (choices := FamilyChoice.parse(table.family)) is None else choices.named
    open_ = {n: table_columns[n] for n in choice.features} if choice.chosen else rest
    categories: dict[int, Category] = {}
    no_categories: dict[str, str] = {}
    if table.family is not None:
        from vpem.files.readers.text_columns import take_categories

        categories, no_categories = take_categories(frame, open_, options)
    coded = {n: codes for n, (codes, _) in categories.items()}
    if choice.chosen:
        features = {n: values for n, values in open_.items() if n not in coded}
        features = _numbers(frame, features, table) | coded
        features = {n: features[n] for n in choice.features}
        rest = {n: values for n, values in rest.items() if n not in choice.features}
    else:
        rest = {n: values for n, values in rest.items() if n not in coded}
        features, left_out = sort_columns(frame, rest, table, options.keep_constant, said)
        left_out |= {name: why for name, why in no_categories.items() if name in left_out}
        rest |= features
        features = dict(sorted((features | coded).items()))
    ids = choice.noted.get("id")
    likely = {n: values for n, values in rest.items() if names[n] not in said}
    if ids is None and (ids := find_ids(frame, likely)) is not None:
        features.pop(ids, None)
        if left_out.pop(names[ids], "") in GUESSED and not choice.chosen:
            left_out = {names[ids]: OF_ROWS} | left_out
    if not features:
        raise nothing_left(frame, left_out)
    chosen = [names[n] for n in features]
    warn_of_guesses(frame.source, left_out, names, chosen)
    warn_of_numbers(frame, list(features))
    if options.columns is not None or options.keep_constant:
        empty = [n for n, values in features.items() if pa.types.is_null(values.type)]
        features |= dict.fromkeys(empty, pa.chunked_array([pa.nulls(n_rows, pa.float64())]))
    refuse_large(n_rows * len(features) * 8, options.memory_limit, frame.source)
    give_back()
    X = matrix_of(list(zip(chosen, features.values(), strict=True)), n_rows, frame.source)
    places = list(features)
    if ids is not None and options.profiles is None:  # X has what these columns have
        table_columns = {n: table_columns[n] for n in {*choice.taken, ids}}
        for columns_of_features in (features, rest, open_, likely):
            columns_of_features.clear()
    columns = choice.noted | ({} if ids is None else {"id": ids})
    X = blank_marks(X, table, [place for place, n in enumerate(places) if n not in coded])
    if options.columns is None:
        warn_of_marks(frame.source, X, chosen)
    dataset = Dataset(
        X,
        tuple(chosen),
        **noted_in(frame, columns, choice.known, table_columns, table),
        source=frame.source,
        left_out=left_out,
        table=table if ids is None else table.changed(id_column=names[ids]),
        counted=None if ids is not None else counted_by(frame, table_columns),
        coded={p: categories[n][1] for p, n in enumerate(places) if n in categories},
    )
    if options.profiles is not None:
        options.profiles.extend(profile_of(frame, dataset, table_columns, features, columns))
    return dataset


def _read(frame: LazyFrame, choice: ColumnRoles) -> Columns:
    """Read the columns that are used, and those that may name the rows."""
    names, noted = frame.names, choice.noted
    called: list[int] = []
    named = {n for n in choice.free if ids_by_name(names[n])}
    if "id" not in noted:
        free = set(choice.free) - {*choice.taken, *(choice.features if choice.chosen else ())}
        kinds = {n: plain_kind(frame.kinds[n]) for n in free}
        likely = [[n for n in free if test(kinds[n])] for test in (is_text, pa.types.is_integer)]
        most = MOST if choice.chosen else 0
        called = sorted(
            free
            & {*named, *frame.index, *(n for some in likely if len(some) <= most for n in some)}
        )
    used = [*choice.taken, *(choice.features if choice.chosen else ())]
    for n in used:
        kind = plain_kind(frame.kinds[n])
        known = (is_text, is_numeric, pa.types.is_temporal, pa.types.is_null)
        if not any(test(kind) for test in known):
            raise InputError(
                f"{frame.source}: column {names[n]!r} holds {str(kind)[:80]}, not text or "
                "numbers; leave it out with ",
                Setting("drop"),
            )
    chosen = sorted({*choice.features, *choice.taken, *called})
    # What is nested could become anything, and is no feature.
    chosen = [n for n in chosen if not pa.types.is_nested(frame.kinds[n])]
    # "007" is to stay "007".
    texts = [n for what, n in noted.items() if what != "weight"]
    texts += [*choice.known, *(n for n in called if n in named and n not in frame.index)]
    texts = [n for n in texts if n in chosen]
    read = frame.read(chosen, texts)
    give_back()
    return dict(zip(chosen, read, strict=True))


def _numbers(frame: LazyFrame, columns: Columns, table: TableSettings) -> Columns:
    """Return columns that the user calls features: text must read as numbers."""
    converted, texts = dict(columns), {}
    written = [n for n, column in columns.items() if is_text(plain_kind(column.type))]
    if not written:
        return converted
    from vpem.files.readers.text_columns import check_writing, numbers_of

    for place in written:
        numbers = numbers_of(columns[place], table)
        if numbers is None:
            texts[frame.names[place]] = columns[place]
        else:
            converted[place] = numbers
    check_writing(texts, table, frame.source)
    return converted


def noted_in(
    frame: LazyFrame,
    noted: dict[str, int],
    known: Sequence[int],  # columns of labels for the fit
    columns: Columns,
    table: TableSettings,
) -> Report:
    """Return what is noted of the rows, as `Dataset` takes it."""
    values: Report = {}
    for what, place in noted.items():
        name, column = frame.names[place], columns[place]
        if what == "weight":
            plain = decoded(column)
            if not is_numeric(plain.type):
                raise InputError(
                    f"{frame.source}: column {name!r} holds {plain.type}, but weights are numbers"
                )
            numbers, missing = numbers_in(plain)
            weights = np.where(missing, np.nan, numbers)
            where = f"{frame.source}, column {name!r}"
            values["sample_weight"] = as_weights(weights, len(weights), where)
        elif what == "worker":
            workers, names_of = annotation_of(name, column, frame.source, frame.file, what), None
            if place in frame.folders and workers.dtype.kind != "U":  # names, as all of folders
                called, workers = np.unique(workers, return_inverse=True)
                names_of = tuple(map(str, called.tolist()))
            values["workers"] = from_worker_of_row(workers, names_of)
        else:
            values[f"{what}s"] = annotation_of(name, column, frame.source, frame.file, what)
    names = [frame.names[place] for place in known]
    for name, place in zip(names, known, strict=True):
        check_strings(name, columns[place], frame.source, frame.file)
    if known:
        words = [decoded(columns[place]).to_pylist() for place in known]
        values["labels_for_fit"] = labels_of_columns(words, names, table.marks, frame.source)
    return values


PIECE_BYTES, BUFFER_BYTES, GROUPS = 1 << 22, 1 << 20, 16
"""Bytes of Parquet that are decoded at a time, and read of a column; groups of columns."""


def parquet_frame(file: Stored) -> LazyFrame:
    from pyarrow import parquet

    source = file.source
    said = f"{source} cannot be read as Parquet"
    with damaged(said, FAILURES), parquet.ParquetFile(file.open()) as opened:
        schema, about = opened.schema_arrow, opened.metadata
    names = list(schema.names)
    text = [field.name for field in schema if is_text(field.type)]
    counts = tuple(int(about.row_group(n).num_rows) for n in range(about.num_row_groups))

    def read(columns: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        with damaged(said, FAILURES):
            chosen = [names[column] for column in columns]
            # Text that is many times the same stays in a dictionary until it is known to be short.
            with parquet.ParquetFile(
                file.open(), read_dictionary=text, buffer_size=BUFFER_BYTES, pre_buffer=False
            ) as opened:
                groups = map(opened.metadata.row_group, range(opened.metadata.num_row_groups))
                stored = (group.column(n) for group in groups for n in range(group.num_columns))
                declared = sum(
                    int(part.total_uncompressed_size)
                    for part in stored
                    if part.path_in_schema in set(chosen)
                )
                least = int(opened.metadata.num_rows) * len(set(chosen)) * 8
                check_unpacked(max(least, declared), file.path, source, file.state()[0])
                if len(set(names)) < len(names):
                    alike = [n for n, name in enumerate(names) if name in chosen]
                    read = dict(zip(alike, opened.read(columns=chosen).columns, strict=True))
                    return [read[n] for n in columns]
                # What unpacks a column takes memory, however short it is. A part of a column that
                # is nested is read with one of its name, "a.b", and is none.
                width = 1 + len(chosen) // GROUPS
                parts = (chosen[n : n + width] for n in range(0, len(chosen), width))
                return [
                    column for part in parts
                    for column in opened.read(part, use_threads=False).select(part).columns
                ]  # fmt: skip

    opened_as = file.state()

    def pieces(columns: Sequence[int], first: int) -> Iterator[list[pa.ChunkedArray]]:
        if file.state() != opened_as:
            raise FileError(f"{source} was changed while it was read; run again")
        chosen = [names[column] for column in columns]
        n_rows = max(1, PIECE_BYTES // (8 * max(len(chosen), 1)))
        with (
            damaged(said, FAILURES),
            parquet.ParquetFile(file.open(), buffer_size=BUFFER_BYTES, pre_buffer=False) as opened,
        ):
            groups = range(first, len(counts))
            for rows in opened.iter_batches(n_rows, row_groups=groups, columns=chosen):
                yield [pa.chunked_array([rows.column(name)]) for name in chosen]

    path = Path(file.path) if file.system is None else None
    frame = LazyFrame(
        source, tuple(names), tuple(schema.types), read, _index(schema), file=path, parts=counts,
        pieces=pieces,
    )  # fmt: skip
    return replace(frame, ranged=_with_range(frame, schema))


def arrow_frame(where: Stored) -> LazyFrame:
    """Open a Feather file (version 2), which is one of Arrow."""
    from pyarrow import ipc

    file, source = Path(where.path), where.source
    said = f"{source} cannot be read as Feather or Arrow"
    with damaged(said, FAILURES), open_regular(file) as stream, ipc.open_file(stream) as opened:
        schema, count = opened.schema, opened.num_record_batches

    def read(columns: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        options = ipc.IpcReadOptions(use_threads=False, included_fields=list(columns))
        parts: list[list[pa.Array]] = [[] for _ in columns]
        n_bytes = 0
        with (
            damaged(said, FAILURES),
            open_regular(file) as stream,
            ipc.open_file(stream, options=options) as opened,
        ):
            for number in range(count):
                batch = opened.get_batch(number)
                n_bytes += batch.get_total_buffer_size()
                check_unpacked(n_bytes, file, source)
                for part, column in zip(parts, batch.columns, strict=True):
                    column.validate(full=True)
                    part.append(column)
        types = [schema.types[column] for column in columns]
        return [pa.chunked_array(part, type=one) for part, one in zip(parts, types, strict=True)]

    return LazyFrame(
        source, tuple(schema.names), tuple(schema.types), read, _index(schema), file=file
    )


def frame_of_records(records: NDArray[np.void], source: str) -> LazyFrame:
    """Return a frame of records (M,), after `check_fields`; wide fields are several columns."""
    assert records.dtype.names is not None
    columns: dict[str, pa.ChunkedArray] = {}
    for name in records.dtype.names:
        values = records[name]
        if values.ndim == 1:
            columns[name] = _as_arrow(values)
            continue
        flat = values.reshape(len(values), math.prod(values.shape[1:]))
        columns |= {f"{name} {n}": _as_arrow(flat[:, n]) for n in range(flat.shape[1])}
    arrays = list(columns.values())

    def read(chosen: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        return [arrays[column] for column in chosen]

    return LazyFrame(source, tuple(columns), tuple(column.type for column in arrays), read)


def _as_arrow(values: AnyArray) -> pa.ChunkedArray:
    """Return a column of Arrow; bytes are UTF-8 text."""
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind == "S":
        native = np.char.decode(native, "utf-8", "replace")
    if native.dtype.kind == "f" and native.dtype.itemsize > 8:
        native = native.astype(np.float64)
    return pa.chunked_array([pa.array(np.ascontiguousarray(native))])


def _with_range(frame: LazyFrame, schema: pa.Schema) -> LazyFrame | None:
    """Return a frame with the index that pandas keeps as a rule alone; None if it counts from 0."""
    stored = (schema.pandas_metadata or {}).get("index_columns", [])
    rules = [one for one in stored if isinstance(one, dict) and one.get("kind") == "range"]
    rule = rules[0] if rules else {"start": 0, "step": 1}
    start, step, label = rule.get("start"), rule.get("step"), rule.get("name")
    if not isinstance(start, int) or not isinstance(step, int) or (start, step) == (0, 1):
        return None
    if max(abs(start), abs(step)) >= 2**31:
        return None
    n_columns = len(frame.names)
    name = label if isinstance(label, str) and label not in frame.names else "row index"

    def read(columns: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        arrays = frame.read(
            [n for n in columns if n < n_columns], [n for n in as_text if n < n_columns]
        )
        numbers = pa.chunked_array([pa.array(start + step * np.arange(frame.n_rows))])
        return [*arrays, numbers] if n_columns in columns else arrays

    return replace(
        frame,
        names=(*frame.names, name),
        kinds=(*frame.kinds, pa.int64()),
        read=read,
        index=frame.index | {n_columns},
    )


def _index(schema: pa.Schema) -> frozenset[int]:
    stored = (schema.pandas_metadata or {}).get("index_columns", [])
    index = {name for name in stored if isinstance(name, str)}
    return frozenset(n for n, name in enumerate(schema.names) if name in index)


FAILURES = (pa.ArrowException, OSError, ValueError, MemoryError)
"""What pyarrow raises on damaged files."""

MOST = 20
"""Columns of text among which ids are looked for."""

OF_FOLDERS = "of folders"
"""Why a column is no feature that has the value of ``key=value``: it says where rows were filed."""

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
        elif place in frame.folders and name not in said:
            why = OF_FOLDERS
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
