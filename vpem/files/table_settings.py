"""How a table is read: what its columns are, and how its numbers are written.

Labels of some rows, for a fit: from columns of the data, or from a file of their own.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Labels, read_float, read_int
from vpem.errors import InputError, Setting, did_you_mean, shorten
from vpem.files.datasets import Dataset
from vpem.files.opening import format_of
from vpem.idle import BY_ROWS, OF_SUMS_OVER_HUBS, UNPROTECTED
from vpem.records import Settings, setting
from vpem.settings import FAMILY_NAMES

OF_ONE_FIT = ("features", "drop", "family")
"""Settings by which features are chosen: a model knows its own."""

DECIMALS = (".", ",")
THOUSANDS = (",", ".", "'", "\u2019", " ", "\u00a0", "\u202f", "_")


# fmt: off
class TableSettings(Settings, heading="Data"):
    """What the columns of a table are, and how its numbers are written."""

    labels_for_fit: ClassVar[Any] = None
    """Who fits says more of labels: `LabelledTable`."""

    features: Any = setting(None, "Only these columns are features, with commas. Names, or places "
        "from 0, also a range: 3-7.", local=True)
    drop: Any = setting(None, "Columns to leave out, with commas. Names, places, or a range.",
        local=True)
    family: Any = setting(None, "Family of features: lab=t,sex=categorical, or auto. "
        "It is said by column or agent, or once for all (poisson); auto, as types show, goes for "
        "those not named. Families: gaussian, t, log-normal, categorical, bernoulli, poisson, "
        "negative-binomial, exponential, gamma. Without it numbers are Gaussian and text is left "
        "out.",
        heading="Model", words=("auto", *FAMILY_NAMES), local=True)
    id_column: Any = setting(None, "Column that names the rows. Its name or place. Without it one "
        "called id or ids, one called patient or the like, or the only one of text or whole "
        "numbers in which no value stands twice.", local=True)
    label_column: Any = setting(None, "Column of known classes, no feature. Its name or place (-1 "
        "is the last); evaluate compares with it. Of .h5ad a column of obs.", local=True)
    worker_column: Any = setting(None, "Column that says which worker holds each row. Its name or "
        "place.", local=True, idle=BY_ROWS)
    na: Any = setting(None, "What else stands for a missing value, with commas: '?,-999'. Empty "
        "cells, NA, N/A, NaN, null and None do without.", local=True)
    decimal: str | None = setting(None, "Decimal mark of numbers in text, a comma (,) or the "
        "point. Default: the point.", choices=DECIMALS, local=True)
    thousands: str | None = setting(None, "Mark between thousands of numbers in text: . or , or ' "
        "or a blank.", local=True)
    encoding: str | None = setting(None, "Encoding of text: latin-1, cp1252, utf-16. Default: "
        "UTF-8, or what a byte order mark says.", local=True)
    delimiter: str | None = setting(None, "Character between fields, or 'tab'; found in the first "
        "line if absent.", local=True)
    no_header: bool = setting(False, "The first row is data, not names.", local=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.thousands is not None and self.thousands not in THOUSANDS:
            raise InputError(Setting("thousands"), " must be one of . , ' _ or a blank, got "
                f"{self.thousands!r}")
        if self.thousands == self.point:
            raise InputError(Setting("thousands", self.thousands), " and ",
                Setting("decimal", self.point), " are the same mark; give two")
        if self.encoding is not None:
            _check_encoding(self.encoding)
        for name in ("features", "drop", "na"):
            words_in(name, getattr(self, name))
        if self.family is not None:
            from vpem.files.families import Asked

            Asked.of(self.family)

    @property
    def point(self) -> str:
        """The decimal mark."""
        return self.decimal or "."

    @property
    def marks(self) -> tuple[str, ...]:
        """What stands for missing values beside the usual marks."""
        return tuple(str(word) for word in words_in("na", self.na))

    def with_defaults_of(self, other: TableSettings) -> TableSettings:
        """Return the record with values of another in place of all that are defaults here.

        A mark that has another meaning here is not taken over, as a point between thousands where
        the point is the decimal mark now.
        """
        if other.labels_for_fit is not None and not isinstance(self, LabelledTable):
            return self.into(LabelledTable).with_defaults_of(other)
        changes = {
            one.name: getattr(other, one.name)
            for one in self.fields()
            if getattr(self, one.name) == one.default
        }
        for mine, others in (("decimal", "thousands"), ("thousands", "decimal")):
            if mine not in changes and changes.get(others) == getattr(self, mine):
                changes.pop(others, None)
        return self.changed(**changes)

    def without_choice(self) -> TableSettings:
        """Return the record as whoever uses a model needs it, which has features of its own."""
        return self.changed(features=None, drop=None)


class LabelledTable(TableSettings, heading="Data"):
    """What the columns of a table are, of which some may be labels for the fit."""

    labels_for_fit: Any = setting(None, "Labels of some rows, which the fit takes: each is a "  # type: ignore[misc]
        "component, in ascending order. A column, which is no feature (blank or ? where it is "
        "unknown), a file (a label a row, or id,label), or a path inside HDF5; several columns are "
        "probabilities of the components. All roots learn the components of labelled rows, and "
        "everybody the labels' names and how many rows have each.",
        local=True, file="read", idle=[OF_SUMS_OVER_HUBS, UNPROTECTED])
# fmt: on


def words_in(name: str, value: Any) -> tuple[str | int, ...]:
    """Return the words of a sequence, or of text with commas between, quoted if they have some."""
    if value is None:
        return ()
    if isinstance(value, str):
        rows = list(csv.reader([value], skipinitialspace=True))
        return tuple(word.strip() for word in rows[0]) if rows else ()
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    items = list(value) if isinstance(value, Sequence) else None
    if items is None or not all(isinstance(one, str | int | float) for one in items):
        raise InputError(Setting(name), f" must be words with commas, or a list, got {value!r}")
    return tuple(one if isinstance(one, int) else str(one) for one in items)


LISTS = ("features", "drop", "na")
COLUMNS = (*LISTS, "id_column", "label_column", "worker_column")
"""Settings that are lists of words, and those whose words may be numbers."""


def settings_in(
    content: Mapping[str, Any], where: str, keys: Mapping[str, str] | None = None
) -> TableSettings:
    """Return the settings that a file has, whatever it holds.

    ``where`` is the file, for messages; ``keys`` are its own names of settings, where they differ.
    """
    for name, value in content.items():
        _check_type(name, value, f"{where}: {(keys or {}).get(name, name)}")
    try:
        kind = LabelledTable if "labels_for_fit" in content else TableSettings
        return kind(**content)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _check_type(name: str, value: Any, what: str) -> None:
    """Raise InputError where a file has a value of another type than a setting has."""
    if name == "no_header":
        right, wanted = isinstance(value, bool), "true or false"
    elif name == "family":
        words = [*value, *value.values()] if isinstance(value, dict) else [value]
        wanted = "the name of a family, or a table with one for each column"
        right = bool(words) and all(isinstance(word, str) and word for word in words)
    else:
        wanted = "a list of names" if name in LISTS else "a string"
        words = value if name in LISTS and isinstance(value, list) else [value]
        kinds = (str, int) if name in COLUMNS else str
        right = bool(words) and all(
            isinstance(word, kinds) and not isinstance(word, bool) and word != "" for word in words
        )
    if not right:
        raise InputError(f"{what} must be {wanted}, got {value!r}")


def _check_encoding(encoding: str) -> None:
    """Raise InputError if Python knows no text encoding of this name."""
    try:
        known = codecs.lookup(encoding)
        text = getattr(known, "_is_text_encoding", True)
    except (LookupError, ValueError):
        text = False
    if not text:
        usual = shorten(("utf-8", "latin-1", "cp1252", "utf-16", "mac-roman", "shift-jis"), 6)
        raise InputError(Setting("encoding"), f" must be one of {usual}, ..., got {encoding!r}")


UNKNOWN = frozenset(("", "?", "-1", "na", "n/a", "nan", "null", "none"))
"""Words that stand for no label, whatever else does."""

ID_NAMES, ROW_NAMES = ("id", "ids"), ("row", "rows")
"""Heads of a first column that says which row a line is of: by its id, or counted from 0."""


@dataclass(frozen=True)
class SomeLabels:
    """What is known of some rows."""

    values: NDArray[Any]  # (M,) labels, "" or NaN: none; or (M, K) probabilities
    names: tuple[str, ...] = ()  # of the K columns of probabilities

    def at(self, rows: NDArray[np.intp]) -> SomeLabels:
        """Return those of these rows, of which -1 has none."""
        found = self.values[np.maximum(rows, 0)]
        found[rows < 0] = "" if found.dtype.kind == "U" else np.nan
        return SomeLabels(found, self.names)


def columns_of_labels(asked: Any, names: Sequence[str]) -> list[int]:
    """Return the columns meant by labels for the fit; [] where a file or a path in one is meant."""
    if isinstance(asked, str) and asked in names:
        return [list(names).index(asked)]
    places: list[int] = []
    for word in words_in("labels_for_fit", asked):
        place = list(names).index(str(word)) if word in names else read_int(str(word))
        if place is None or not -len(names) <= place < len(names):
            return []
        places.append(place % len(names))
    return places


def labels_of_columns(
    columns: Sequence[Iterable[Any]], names: Sequence[str], marks: Sequence[str], source: str
) -> SomeLabels:
    """Return the labels (M,) of one column, or the probabilities (M, K) of several.

    ``marks`` are what else stands for a missing value.
    """
    unknown = UNKNOWN | {mark.casefold() for mark in marks}
    words = [[_word(one, unknown) for one in column] for column in columns]
    if len(words) == 1:
        there = [word for word in words[0] if word]
        if there and all(re.fullmatch("-?[0-9]{1,15}", word) for word in there):
            return SomeLabels(np.array([float(word or "nan") for word in words[0]]))
        return SomeLabels(np.array(words[0], dtype=str))
    found = np.empty((len(words[0]), len(words)))
    for place, column in enumerate(words):
        for row, word in enumerate(column):
            number = read_float(word or "nan")
            if number is None:
                raise InputError(
                    f"{source}: row {row} (counted from 0) has {word[:40]!r} in column "
                    f"{names[place]!r}; several columns of ", Setting("labels_for_fit"),
                    " are probabilities of the components",
                )  # fmt: skip
            found[row, place] = number
    return SomeLabels(found, tuple(names))


def _word(value: Any, unknown: frozenset[str]) -> str:
    """Return a label as people write it, "" where there is none."""
    if value is None or value != value:
        return ""
    whole = isinstance(value, float) and value.is_integer()
    word = str(int(value) if whole else value).strip()
    return "" if word.casefold() in unknown else word


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
    if len(frame.names) == 1 and _is_plain_text(path, how):
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


def _is_plain_text(path: Path, how: TableSettings) -> bool:
    """Whether a table is text that is not packed."""
    packed = path.suffix.lower() in (".gz", ".bz2", ".xz", ".zip", ".zst")
    return not packed and format_of(path, os.fspath(path), how.encoding) == "text"


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
        known = {_word(one, frozenset()): row for row, one in enumerate(ids.tolist())}
    line = np.full(n_rows, -1, dtype=np.intp)
    strange = []
    for number, one in enumerate(column):
        word = _word(one, frozenset())
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
