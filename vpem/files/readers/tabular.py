"""Datasets of frames: columns of a table become features and what is noted of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from vpem.checks import ids_by_name
from vpem.errors import InputError
from vpem.files.arrow import (
    annotation_of,
    check_kinds,
    check_strings,
    decoded,
    is_text,
    matrix_of,
    plain_kind,
    weights_of,
)
from vpem.files.datasets import Dataset
from vpem.files.families import Asked
from vpem.files.labels_for_fit import SomeLabels, labels_of_columns
from vpem.files.readers.choosing import Choice, choose
from vpem.files.readers.common import (
    GUESSED,
    OF_ROWS,
    blank_marks,
    refuse_large,
    warn_of_guesses,
    warn_of_marks,
)
from vpem.files.readers.frames import Frame, Wanted
from vpem.files.readers.leaving_out import (
    MOST,
    counted_by,
    find_ids,
    nothing_left,
    sort_columns,
    told_apart,
    warn_of_numbers,
)
from vpem.files.table_settings import TableSettings
from vpem.network.partition import from_worker_of_row

if TYPE_CHECKING:
    from vpem.files.readers.categories import Category


Columns = dict[int, pa.ChunkedArray]
"""Columns that were read, by their number in the table."""


def dataset_of(frame: Frame, wanted: Wanted) -> Dataset:
    """Read a frame."""
    table, frame = wanted.table, told_apart(frame)
    names = frame.names
    choice = choose(names, wanted, frame.source)
    found = _read(frame, choice)
    n_rows = len(next(iter(found.values())))
    if n_rows == 0:
        raise InputError(f"{frame.source} has no rows")
    rest = {n: values for n, values in found.items() if n not in choice.taken}
    left_out: dict[str, str] = {}
    said = () if (asked := Asked.of(table.family)) is None else asked.named
    open_ = {n: found[n] for n in choice.features} if choice.chosen else rest
    categories: dict[int, Category] = {}
    no_categories: dict[str, str] = {}
    if table.family is not None:
        from vpem.files.readers.categories import take_categories

        categories, no_categories = take_categories(frame, open_, wanted)
    coded = {n: one.codes for n, one in categories.items()}
    if choice.chosen:
        numbers = {n: values for n, values in open_.items() if n not in coded}
        features = _numbers(frame, numbers, table) | coded
        features = {n: features[n] for n in choice.features}
        rest = {n: values for n, values in rest.items() if n not in choice.features}
    else:
        rest = {n: values for n, values in rest.items() if n not in coded}
        features, left_out = sort_columns(frame, rest, table, wanted.keep_constant, said)
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
    if wanted.columns is not None or wanted.keep_constant:
        empty = [n for n, values in features.items() if pa.types.is_null(values.type)]
        features |= dict.fromkeys(empty, pa.chunked_array([pa.nulls(n_rows, pa.float64())]))
    refuse_large(n_rows * len(features) * 8, wanted.memory_limit, frame.source)
    X = matrix_of(list(zip(chosen, features.values(), strict=True)), n_rows, frame.source)
    columns = choice.noted | ({} if ids is None else {"id": ids})
    places = [place for place, n in enumerate(features) if n not in coded]
    X = blank_marks(X, table, places)
    if wanted.columns is None:
        warn_of_marks(frame.source, X, chosen)
    made = Dataset(
        X,
        tuple(chosen),
        **_noted(frame, columns, found),
        source=frame.source,
        left_out=left_out,
        table=table if ids is None else table.changed(id_column=names[ids]),
        labels_for_fit=_known(frame, choice, found, table),
        counted=None if ids is not None else counted_by(frame, found),
        coded={p: categories[n].names for p, n in enumerate(features) if n in categories},
    )
    if wanted.profiles is not None:
        from vpem.files.readers.profiles import profile_of

        wanted.profiles.extend(profile_of(frame, made, found, features, columns))
    return made


def _read(frame: Frame, choice: Choice) -> Columns:
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
    asked = [*choice.features] if choice.chosen else []
    check_kinds([(names[n], frame.kinds[n]) for n in (*choice.taken, *asked)], frame.source)
    kept = sorted({*choice.features, *choice.taken, *called})
    # What is nested could become anything, and is no feature.
    kept = [n for n in kept if not pa.types.is_nested(frame.kinds[n])]
    # "007" is to stay "007".
    texts = [n for what, n in noted.items() if what != "weight"]
    texts += [*choice.known, *(n for n in called if n in named and n not in frame.index)]
    return dict(zip(kept, frame.read(kept, texts), strict=True))


def _numbers(frame: Frame, columns: Columns, table: TableSettings) -> Columns:
    """Return columns that are features because somebody says so: text must read as numbers."""
    found, texts = dict(columns), {}
    written = [n for n, column in columns.items() if is_text(plain_kind(column.type))]
    if not written:
        return found
    from vpem.files.readers.text_numbers import check_writing, numbers_of

    for place in written:
        numbers = numbers_of(columns[place], table)
        if numbers is None:
            texts[frame.names[place]] = columns[place]
        else:
            found[place] = numbers
    check_writing(texts, table, frame.source)
    return found


def _known(frame: Frame, choice: Choice, found: Columns, table: TableSettings) -> SomeLabels | None:
    """Return labels for the fit, where columns have them."""
    if not choice.known:
        return None
    for place in choice.known:
        check_strings(frame.names[place], found[place], frame.source, frame.file)
    columns = [decoded(found[place]).to_pylist() for place in choice.known]
    names = [frame.names[place] for place in choice.known]
    return labels_of_columns(columns, names, table.marks, frame.source)


def _noted(frame: Frame, noted: dict[str, int], found: Columns) -> dict[str, Any]:
    """Return what is noted of the rows, as `Dataset` takes it."""
    values: dict[str, Any] = {}
    for what, place in noted.items():
        name, column = frame.names[place], found[place]
        if what == "weight":
            values["sample_weight"] = weights_of(name, column, frame.source)
        elif what == "worker":
            values["workers"] = from_worker_of_row(
                annotation_of(name, column, frame.source, frame.file, what)
            )
        else:
            values[f"{what}s"] = annotation_of(name, column, frame.source, frame.file, what)
    return values
