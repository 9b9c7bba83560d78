"""Tables as datasets: columns become features, and what is noted of the rows.

Columns of Parquet, Feather and Arrow files are looked at before they are read. A profile says what
each column of a table holds, and what a fit makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from vpem.checks import ids_by_name
from vpem.errors import FileError, InputError, Setting, VpemError
from vpem.files.arrow import (
    annotation_of,
    check_strings,
    decoded,
    is_empty,
    is_numeric,
    is_text,
    matrix_of,
    plain_kind,
    weights_of,
)
from vpem.files.datasets import Dataset, names_apart
from vpem.files.families import FamilyChoice
from vpem.files.opening import check_unpacked, open_regular
from vpem.files.readers.columns import (
    MOST,
    counted_by,
    find_ids,
    nothing_left,
    sort_columns,
    warn_of_numbers,
)
from vpem.files.readers.frames import (
    GUESSED,
    OF_ROWS,
    ColumnRoles,
    LazyFrame,
    ReadOptions,
    SomeLabels,
    blank_marks,
    choose,
    labels_of_columns,
    refuse_large,
    warn_of_guesses,
    warn_of_marks,
)
from vpem.files.table_settings import TableSettings
from vpem.network.partition import from_worker_of_row

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
)
"""What a column holds, by its type."""


@dataclass(frozen=True)
class ColumnProfile:
    """What a column of a table holds."""

    name: str
    kind: str  # numbers, whole numbers, true/false, text, dates, ...
    use: str  # feature, ids, labels, ..., left out (why), dropped
    missing: int | None = None  # None: not read
    different: int | None = None  # how many values
    least: str | None = None  # the first of them
    most: str | None = None  # the last of them


def profile_of(
    frame: LazyFrame,
    dataset: Dataset,
    read: Mapping[int, pa.ChunkedArray],
    features: Mapping[int, pa.ChunkedArray],
    noted: Mapping[str, int],
) -> list[ColumnProfile]:
    """Return what the columns of a table hold.

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
        kind = _kind(frame.kinds[place] if column is None else column.type)
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
            facts = _of_others(decoded(column))
        profiles.append(ColumnProfile(name, kind, use, *facts))
    return profiles


def _of_others(column: pa.ChunkedArray) -> tuple[Any, ...]:
    """Return how many values of no feature are missing and different, the least and the most."""
    import pyarrow.compute as pc

    if is_text(column.type):
        column = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
        column = pc.if_else(is_empty(column), pa.NULL, column)
    there = column.drop_null()
    if not len(there):
        return len(column), 0
    ends = pc.min_max(there)
    least, most = (str(ends[end].as_py())[:40] for end in ("min", "max"))
    return len(column) - len(there), pc.count_distinct(there).as_py(), least, most


def _kind(kind: pa.DataType) -> str:
    plain = plain_kind(kind)
    return next((word for test, word in KINDS if test(plain)), "lists")


Columns = dict[int, pa.ChunkedArray]
"""Columns that were read, by their number in the table."""


def dataset_of(frame: LazyFrame, options: ReadOptions) -> Dataset:
    """Read a frame."""
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
    coded = {n: one.codes for n, one in categories.items()}
    if choice.chosen:
        numbers = {n: values for n, values in open_.items() if n not in coded}
        features = _numbers(frame, numbers, table) | coded
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
    X = matrix_of(list(zip(chosen, features.values(), strict=True)), n_rows, frame.source)
    columns = choice.noted | ({} if ids is None else {"id": ids})
    places = [place for place, n in enumerate(features) if n not in coded]
    X = blank_marks(X, table, places)
    if options.columns is None:
        warn_of_marks(frame.source, X, chosen)
    dataset = Dataset(
        X,
        tuple(chosen),
        **_noted(frame, columns, table_columns),
        source=frame.source,
        left_out=left_out,
        table=table if ids is None else table.changed(id_column=names[ids]),
        labels_for_fit=_known(frame, choice, table_columns, table),
        counted=None if ids is not None else counted_by(frame, table_columns),
        coded={p: categories[n].names for p, n in enumerate(features) if n in categories},
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
    return dict(zip(chosen, frame.read(chosen, texts), strict=True))


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


def _known(
    frame: LazyFrame, choice: ColumnRoles, table_columns: Columns, table: TableSettings
) -> SomeLabels | None:
    if not choice.known:
        return None
    for place in choice.known:
        check_strings(frame.names[place], table_columns[place], frame.source, frame.file)
    columns = [decoded(table_columns[place]).to_pylist() for place in choice.known]
    names = [frame.names[place] for place in choice.known]
    return labels_of_columns(columns, names, table.marks, frame.source)


def _noted(frame: LazyFrame, noted: dict[str, int], columns: Columns) -> dict[str, Any]:
    """Return what is noted of the rows, as `Dataset` takes it."""
    values: dict[str, Any] = {}
    for what, place in noted.items():
        name, column = frame.names[place], columns[place]
        if what == "weight":
            values["sample_weight"] = weights_of(name, column, frame.source)
        elif what == "worker":
            values["workers"] = from_worker_of_row(
                annotation_of(name, column, frame.source, frame.file, what)
            )
        else:
            values[f"{what}s"] = annotation_of(name, column, frame.source, frame.file, what)
    return values


def parquet_frame(file: Path, source: str) -> LazyFrame:
    """Open a Parquet file."""
    from pyarrow import parquet

    with _said(source, "Parquet"), parquet.ParquetFile(file) as opened:
        schema, n_rows = opened.schema_arrow, int(opened.metadata.num_rows)
    names = list(schema.names)
    text = [field.name for field in schema if is_text(field.type)]

    def read(columns: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        with _said(source, "Parquet"):
            chosen = [names[column] for column in columns]
            # Text that is many times the same stays in a dictionary until it is known to be short.
            with parquet.ParquetFile(file, read_dictionary=text) as opened:
                groups = map(opened.metadata.row_group, range(opened.metadata.num_row_groups))
                parts = (group.column(n) for group in groups for n in range(group.num_columns))
                declared = sum(
                    int(part.total_uncompressed_size)
                    for part in parts
                    if part.path_in_schema in set(chosen)
                )
                least = int(opened.metadata.num_rows) * len(set(chosen)) * 8
                check_unpacked(max(least, declared), file, source)
                return list(opened.read(columns=chosen).columns)

    frame = LazyFrame(source, tuple(names), tuple(schema.types), read, _index(schema), file=file)
    return _with_range(frame, schema, n_rows)


def arrow_frame(file: Path, source: str) -> LazyFrame:
    """Open a Feather file (version 2), which is one of Arrow."""
    from pyarrow import ipc

    kind = "Feather or Arrow"
    with _said(source, kind), open_regular(file) as stream, ipc.open_file(stream) as opened:
        schema, count = opened.schema, opened.num_record_batches

    def read(columns: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        options = ipc.IpcReadOptions(use_threads=False, included_fields=list(columns))
        parts: list[list[pa.Array]] = [[] for _ in columns]
        n_bytes = 0
        with (
            _said(source, kind),
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


def _with_range(frame: LazyFrame, schema: pa.Schema, n_rows: int) -> LazyFrame:
    """Return a frame with the index that pandas keeps as a rule alone, unless it counts from 0."""
    stored = (schema.pandas_metadata or {}).get("index_columns", [])
    rules = [one for one in stored if isinstance(one, dict) and one.get("kind") == "range"]
    rule = rules[0] if rules else {"start": 0, "step": 1}
    start, step, label = rule.get("start"), rule.get("step"), rule.get("name")
    if not isinstance(start, int) or not isinstance(step, int) or (start, step) == (0, 1):
        return frame
    if max(abs(start), abs(step)) >= 2**31:
        return frame
    n_columns = len(frame.names)
    name = label if isinstance(label, str) and label not in frame.names else "row index"

    def read(columns: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        arrays = frame.read(
            [n for n in columns if n < n_columns], [n for n in as_text if n < n_columns]
        )
        numbers = pa.chunked_array([pa.array(start + step * np.arange(n_rows))])
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


@contextmanager
def _said(source: str, kind: str) -> Iterator[None]:
    try:
        yield
    except VpemError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise FileError(f"{source} cannot be read as {kind} ({error})") from error
