"""Labels of some rows, for a fit: from columns of the data, or from a file of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Labels
from vpem.errors import InputError, Setting, did_you_mean, shorten
from vpem.files.datasets import Dataset
from vpem.files.opening import format_of
from vpem.files.readers.frames import SomeLabels, known_label, labels_of_columns
from vpem.files.table_settings import ID_NAMES, ROW_NAMES, TableSettings


def settle_labels(
    found: SomeLabels | None,
    asked: Any,
    data: Sequence[Dataset],
    ids: Labels | None,
    table: TableSettings,
    folder: str = "",
) -> SomeLabels | None:
    """Return labels that were read with the data, or read them from a file of their own.

    Rows of the files of ``data`` follow one another and are called ``ids`` (M,). A file is looked
    for from ``folder``; InputError if there is neither such a column nor a file that goes with the
    rows.
    """
    if asked is None or found is not None:
        return found
    path, first = Path(folder, str(asked)), data[0]
    if not isinstance(asked, str) or not path.is_file():
        names = (*first.feature_names, *first.left_out)
        hint = did_you_mean(str(asked), names)
        raise InputError(
            f"{first.source}: ", Setting("labels_for_fit"), f" names {str(asked)!r}, which is "
            f"neither a column{hint} nor a file; the columns are {shorten(names, 10)}",
        )  # fmt: skip
    return _of_file(path, ids, sum(one.n_samples for one in data), table)


def _of_file(path: Path, ids: Labels | None, n_rows: int, table: TableSettings) -> SomeLabels:
    """Read labels of their own file: one a row, or with an id each."""
    from vpem.files.data import open_frame

    how = TableSettings().changed(**table.values(*NOT_OF_LABELS, "labels_for_fit"))
    source = os.fspath(path)
    frame = open_frame(path, how.changed(no_header=False))
    if frame is None:
        raise InputError(f"{source}: labels for the fit are read from a table (CSV, Parquet)")
    head = frame.names[0].strip().casefold()
    keyed = head in (*ID_NAMES, *ROW_NAMES) and len(frame.names) > 1
    packed = path.suffix.lower() in (".gz", ".bz2", ".xz", ".zip", ".zst")
    is_text = not packed and format_of(path, source, how.encoding) == "text"
    if len(frame.names) == 1 and is_text:
        columns = [_lines_of(path, how, n_rows)]
    else:
        places = range(len(frame.names))
        columns = [one.to_pylist() for one in frame.read(places, places)]
    if keyed:
        named, marks = frame.names[1:], how.marks
        own = labels_of_columns(columns[1:], named, marks, source)
        return own.at(_lines(columns[0], head in ROW_NAMES, ids, n_rows, source))
    if len(columns[0]) != n_rows:
        raise InputError(
            f"{source} has {len(columns[0])} lines, but the data have {n_rows} rows; give one a "
            "row, blank where it is unknown, or a first column 'id' (or 'row', counted from 0)"
        )
    return labels_of_columns(columns, frame.names, how.marks, source)


def _lines_of(path: Path, how: TableSettings, n_rows: int) -> list[str]:
    """Return the lines of a text, blank ones too, without a head if there is one."""
    try:
        lines = path.read_text(encoding=how.encoding or "utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {error}; see ", Setting("encoding")) from None
    return [line.strip().strip('"') for line in lines[len(lines) == n_rows + 1 :]]


NOT_OF_LABELS = ("features", "drop", "family", "id_column", "label_column", "worker_column")
"""Settings of tables that are about the columns of the data."""


def _lines(
    column: Sequence[Any], numbered: bool, ids: Labels | None, n_rows: int, source: str
) -> NDArray[np.intp]:
    """Return which line is of each row; -1: none."""
    if numbered:
        known = {str(row): row for row in range(n_rows)}
    elif ids is None:
        raise InputError(
            f"{source} has labels by id, but the data have no ids; name their column with ",
            Setting("id_column"), ", or call the first column 'row' and count from 0",
        )  # fmt: skip
    else:
        known = {known_label(one, frozenset()): row for row, one in enumerate(ids.tolist())}
    line = np.full(n_rows, -1, dtype=np.intp)
    strange = []
    for number, one in enumerate(column):
        word = known_label(one, frozenset())
        row = known.get(word)
        if row is None:
            strange.append(word)
        elif line[row] >= 0:
            raise InputError(f"{source} has two labels of {word[:40]!r}; leave one out")
        else:
            line[row] = number
    if strange:
        listed = shorten((repr(word[:40]) for word in strange), 3)
        what = "a label of" if len(strange) == 1 else f"labels of {len(strange)} rows,"
        raise InputError(f"{source} has {what} {listed}, of which the data have no row")
    return line
