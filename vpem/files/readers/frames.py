"""Frames: the named columns of a table before they are read, their roles, and marks of gaps."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import (
    BY_NAME,
    CLASSED,
    CODED,
    COUNTED,
    DIFFERENT,
    NEARLY,
    NO_MEASUREMENT,
    AnyArray,
    Floats,
    missing_marks,
    no_measurement,
    read_float,
    read_int,
)
from vpem.errors import InputError, OwnDataWarning, Setting, brief, did_you_mean, shorten
from vpem.files.table_settings import TableSettings
from vpem.network.schema import Report
from vpem.records import words_in

if TYPE_CHECKING:
    import pyarrow as pa


MISSING_MARKS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NAN", "NULL", "NaN", "None", "Null", "n/a", "na", "nan", "none", "null",
)  # fmt: skip
"""What stands for a missing value in text by itself."""


OF_ROWS, ZEROS, LONG = "ids of rows", "zeros in front", "more digits than a number can keep"
GUESSED = (OF_ROWS, ZEROS, LONG, *NO_MEASUREMENT)
"""Why numbers are no features although the user has not said so."""

MOST_NUMBERS = 3
"""Columns of whole numbers that all differ, as far as they may number the rows."""


def marked_numbers(table: TableSettings) -> list[float]:
    """Return the numbers that stand for missing values."""
    return [number for number in map(read_float, table.marks) if number is not None]


def blank_marks(X: Floats, table: TableSettings, columns: Sequence[int] | None = None) -> Floats:
    """Make NaN of numbers that stand for missing values, in place; in some columns or all."""
    for mark in marked_numbers(table):
        if columns is None or len(columns) == X.shape[1]:
            np.putmask(X, np.equal(X, mark), np.nan)
        else:
            for j in columns:
                np.putmask(X[:, j], np.equal(X[:, j], mark), np.nan)
    return X


def refuse_marks(table: TableSettings, source: str) -> None:
    """Raise InputError where numbers of what stays on disk stand for missing values."""
    if marked_numbers(table):
        raise InputError(
            Setting("na"), f" changes values, which are read from disk of {source}; raise the "
            "memory limit",
        )  # fmt: skip


def with_features(names: Sequence[str]) -> Setting:
    """Return the setting that names these features, or if they are many the setting alone."""
    plain = len(names) <= 6 and not any("," in name or '"' in name for name in names)
    return Setting("features", ",".join(names) if plain else None)


def only_guesses(source: str, left_out: dict[str, str]) -> InputError:
    """Return the error of a table of which all columns are left out, some by a guess."""
    listed = shorten((f"{name!r} ({why})" for name, why in left_out.items()), 10)
    guessed = [name for name, why in left_out.items() if why in GUESSED]
    return InputError(
        f"{source}: no column is left for the features: {listed}; if some of these are "
        "measurements, name them: ",
        with_features(guessed),
    )


def warn_of_guesses(
    source: str, left_out: dict[str, str], names: Sequence[str], features: Sequence[str]
) -> None:
    """Warn of numbers left out without the user having said so; ``names`` are in order."""
    why = {name: one for name, one in left_out.items() if one in GUESSED}
    if not why:
        return
    listed = shorten((f"{name!r} ({one})" for name, one in why.items()), 5)
    first = next(iter(why))
    use = {OF_ROWS: "id_column", COUNTED: "id_column", DIFFERENT: "id_column"}
    use[CLASSED] = "label_column"
    is_, them = ("is", "it is a measurement") if len(why) == 1 else ("are", "they are measurements")
    _warn(
        f"{source}: {listed} {is_} left out of the features; to confirm that, pass ",
        Setting(use.get(why[first], "drop"), first),
        f"; if {them}, name all features: ",
        with_features([name for name in names if name in why or name in features]),
    )


def _warn(*parts: str | Setting) -> None:
    warnings.warn(OwnDataWarning(*parts), stacklevel=5)


def ask_of_ids(source: str, names: Sequence[str], X: Floats) -> None:
    """Warn of features of a dataset that are called as ids are."""
    ids = [name for n, name in enumerate(names) if no_measurement(name, X[:, n]) == BY_NAME]
    if ids:
        _warn(
            f"{source}: {shorten(map(repr, ids))} is among the features, but is named like an id; "
            "if it names the rows, leave it out with ",
            Setting("drop", ids[0]),
        )


def take_counts(source: str, left_out: dict[str, str]) -> dict[str, str]:
    """Return what is left out, without whole numbers that may well be measurements.

    Those nearly all differ, or repeat as codes do; or, where many columns differ as counts do, are
    all of these: hardly any numbers the rows. There is a warning unless that is plain.
    """
    doubtful = {name: why for name, why in left_out.items() if why in (DIFFERENT, NEARLY)}
    are_counts = len(doubtful) > MOST_NUMBERS
    taken = [name for name, why in doubtful.items() if are_counts or why == NEARLY]
    coded = [name for name, why in left_out.items() if why == CODED]
    plain = are_counts and DIFFERENT not in doubtful.values()
    which = f"which {'all' if are_counts else 'nearly all'} differ, number the rows"
    for names, what in (([] if plain else taken, which), (coded, "which repeat, are codes or ids")):
        is_, whose, them = ("is taken for a measurement", "its", "it")
        if len(names) > 1:
            is_, whose, them = ("are taken for measurements", "their", "them")
        if names:
            _warn(
                f"{source}: {shorten(map(repr, names))} {is_}; if {whose} whole numbers, {what}, "
                f"leave {them} out with ",
                Setting("drop", names[0] if len(names) == 1 else None),
            )
    return {name: why for name, why in left_out.items() if name not in (*taken, *coded)}


def warn_of_marks(source: str, X: Floats, names: Sequence[str]) -> None:
    """Warn of numbers by which people write that a value is missing, where no others are near."""
    marked = {names[place]: marks for place, marks in missing_marks(X).items()}
    if marked:
        listed = shorten((f"{', '.join(marks)} in {name!r}" for name, marks in marked.items()), 5)
        every = dict.fromkeys(mark for marks in marked.values() for mark in marks)
        _warn(
            f"{source}: {listed}: apart from all other values there; if this stands for missing "
            "values, pass ",
            Setting("na", ",".join(every)),
        )


def refuse_large(n_bytes: int, memory_limit: int | None, source: str) -> None:
    if memory_limit is not None and 2 * n_bytes > memory_limit:
        raise InputError(
            f"{source} takes {2 * n_bytes / 1e6:.4g} MB, more than the memory limit of "
            f"{memory_limit / 1e6:.4g} MB; 'vpem data import' makes an HDF5 file of it, which is "
            "read in parts"
        )


@dataclass(frozen=True)
class LazyFrame:
    """The columns of a table, which are read when it is known which.

    ``read`` takes numbers of columns in increasing order, and those of them to be read as text
    where that is possible; ``file`` is where columns are packed, None if they are in memory.
    """

    source: str
    names: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]  # text as far as its beginning shows
    read: Callable[[Sequence[int], Sequence[int]], list[pa.ChunkedArray]]
    index: frozenset[int] = frozenset()  # an index of rows, or nameless
    header: bool = True  # names are the file's own
    file: Path | None = None
    parts: tuple[int, ...] | None = None  # rows of each part that is read apart; None: one alone
    pieces: Callable[[Sequence[int], int], Iterator[list[pa.ChunkedArray]]] | None = None
    """Reads columns from a part on, some rows at a time; None: all at once."""
    folders: frozenset[int] = frozenset()  # what folders say of all rows, not files

    ranged: LazyFrame | None = None  # with the index that pandas keeps as a rule, if it does

    @property
    def n_rows(self) -> int:
        """Number of rows, for which a file may have to be read."""
        return len(self.read([0], [])[0]) if self.parts is None else sum(self.parts)

    def pieces_from(self, columns: Sequence[int], part: int) -> Iterator[list[pa.ChunkedArray]]:
        """Yield columns of consecutive rows, from a part on."""
        if self.pieces is None or self.parts is None:
            return iter([self.read(columns, [])])
        return self.pieces(columns, part)


@dataclass(frozen=True)
class ReadOptions:
    table: TableSettings  # with what a model keeps
    dataset: str | None = None  # path of a matrix inside an HDF5 file
    memory_limit: int | None = None  # in bytes
    sample_weight: str | int | None = None  # a column, or a path in HDF5
    weights_needed: bool = True
    columns: Sequence[str] | frozenset[str] | None = None  # in this order; of a set those there
    lacking: tuple[str, ...] = ()  # of "label", "id", "worker": may be absent
    keep_constant: bool = False  # columns of one value, or none, stay: other rows may vary
    on_disk: bool = False  # however little memory values of HDF5 would take
    profiles: list[Report] | None = None  # filled, one a column, as `profile_of` has them
    lenient: bool = False  # any number of levels: a model knows them

    @property
    def in_memory(self) -> int | None:
        """Bytes of which values of HDF5 are read; None: however many."""
        return 0 if self.on_disk else self.memory_limit


def check_fields(dtype: np.dtype[Any], source: str) -> None:
    assert dtype.names is not None
    for name in dtype.names:
        if dtype[name].base.kind not in "iufbSU":
            raise InputError(
                f"{source}: field {name!r} holds {dtype[name].base}, not text or numbers; write "
                "the table without it"
            )


NOTED = ("label", "id", "worker", "weight")
"""What columns may hold beside features."""


@dataclass(frozen=True)
class ColumnRoles:
    """What the columns of a table are, by their numbers."""

    noted: dict[str, int]  # labels, ids, workers and weights that there are
    features: list[int]
    chosen: bool  # by name, one by one; else all other columns
    free: list[int]  # not dropped
    known: list[int] = field(default_factory=list)  # labels for the fit

    @property
    def taken(self) -> set[int]:
        """Columns that hold something beside features."""
        return {*self.noted.values(), *self.known}


def choose(names: Sequence[str], options: ReadOptions, source: str) -> ColumnRoles:
    """Say what the columns of a table are, after checking that each is there and for one thing."""
    table, columns = options.table, options.columns
    lacking = options.lacking if options.weights_needed else (*options.lacking, "weight")
    known = list(names)
    noted: dict[str, int] = {}
    for what in NOTED:
        column = options.sample_weight if what == "weight" else getattr(table, f"{what}_column")
        if column is None or (what in lacking and column not in known):
            continue
        place = resolve_column(f"{what} column", column, known, source)
        assert place is not None
        for other, taken in noted.items():
            if taken == place:
                raise InputError(
                    f"{source}: column {known[place]!r} cannot hold both {other}s and {what}s"
                )
        noted[what] = place
    fitted = columns_of_labels(table.labels_for_fit, known)
    for place in fitted:
        also = [what for what, one in noted.items() if one == place and what != "label"]
        if also:
            raise InputError(
                f"{source}: column {known[place]!r} cannot hold both {also[0]}s and labels"
            )
    dropped = set(columns_in("drop", table.drop, known, source))
    for what, place in noted.items():
        if place in dropped:
            raise InputError(f"{source}: the {what} column {known[place]!r} is also dropped")
    free = [n for n in range(len(known)) if n not in dropped]
    chosen = columns is not None or table.features is not None
    if isinstance(columns, frozenset):
        features = [n for n, name in enumerate(known) if name in columns]
        if not features:
            raise InputError(
                f"{source} has none of the features {shorten(map(repr, sorted(columns)))}; its "
                f"columns are {shorten(known, 10)}"
            )
    elif columns is not None:
        places = (resolve_column("column", name, known, source) for name in columns)
        features = [place for place in places if place is not None]
    elif table.features is not None:
        features = columns_in("features", table.features, known, source)
    else:
        features = [n for n in free if n not in noted.values() and n not in fitted]
    holders = {place: what for what, place in noted.items()} | dict.fromkeys(fitted, "label")
    seen: set[int] = set()
    for place in features:
        why = f"holds {holders[place]}s" if place in holders else ""
        why = why or ("is dropped" if place in dropped else "is one already" * (place in seen))
        if why:
            raise InputError(f"{source}: {known[place]!r} cannot be a feature: it {why}")
        seen.add(place)
    first: dict[str, int] = {}
    for place, name in enumerate(known):
        if first.setdefault(name, place) != place:
            raise InputError(
                f"{source}: columns {first[name]} and {place} are both called {name!r}; rename "
                "one, or pass ",
                Setting("no_header", True),
                " if the first row is data",
            )
    if not features:
        raise InputError(f"{source}: no column is left for the features")
    return ColumnRoles(noted, features, chosen, free, fitted)


def columns_in(setting: str, value: object, names: list[str], source: str) -> list[int]:
    """Return the columns that a list of names, places and ranges of places names, in its order."""
    # A column may have a comma in its name.
    words = (value,) if isinstance(value, str) and value in names else words_in(setting, value)
    columns: list[int] = []
    for word in words:
        ends = re.fullmatch("([0-9]{1,9})-([0-9]{1,9})", word) if isinstance(word, str) else None
        if ends is not None and word not in names:
            low, high = (int(end) for end in ends.groups())
            if not low <= high < len(names):
                raise InputError(
                    f"{source}: there are no columns {word}; the {len(names)} columns are "
                    f"numbered from 0 to {len(names) - 1}"
                )
            columns += range(low, high + 1)
            continue
        place = resolve_column("column", word, names, source)
        assert place is not None
        columns.append(place)
    return columns


def resolve_column(
    what: str, column: str | int | None, names: list[str], source: str
) -> int | None:
    if column is None:
        return None
    if isinstance(column, str):
        if names.count(column) > 1:
            raise InputError(f"{source}: several columns are called {column!r}; give a number")
        if column in names:
            return names.index(column)
        number = read_int(column)
        if number is None:
            raise InputError(
                f"{source}: there is no {what} {brief(column)}{did_you_mean(column, names)}; the "
                f"columns are {shorten(names, 10)}"
            )
        column = number
    if isinstance(column, bool | np.bool_) or not isinstance(column, int | np.integer):
        raise InputError(f"{what} must be a name or a number, got {column!r}")
    if not -len(names) <= column < len(names):
        raise InputError(
            f"{source}: there is no {what} {column}; the {len(names)} columns are numbered from 0 "
            f"to {len(names) - 1}, or from -1 backwards"
        )
    return int(column) % len(names)


UNKNOWN = frozenset(("", "?", "-1", "na", "n/a", "nan", "null", "none"))
"""Words that stand for no label, whatever else does."""


@dataclass(frozen=True)
class SomeLabels:
    values: AnyArray  # (M,) labels, "" or NaN: none; or (M, K) probabilities
    names: tuple[str, ...] = ()  # of the K columns of probabilities

    def take_rows(self, rows: NDArray[np.intp]) -> SomeLabels:
        """Return those of these rows, of which -1 has none."""
        values = self.values[np.maximum(rows, 0)]
        values[rows < 0] = "" if values.dtype.kind == "U" else np.nan
        return SomeLabels(values, self.names)


def columns_of_labels(setting: object, names: Sequence[str]) -> list[int]:
    """Return the columns meant by labels for the fit; [] where a file or a path in one is meant."""
    if isinstance(setting, str) and setting in names:
        return [list(names).index(setting)]
    places: list[int] = []
    for word in words_in("labels_for_fit", setting):
        place = list(names).index(str(word)) if word in names else read_int(str(word))
        if place is None or not -len(names) <= place < len(names):
            return []
        places.append(place % len(names))
    return places


def labels_of_columns(
    columns: Sequence[Iterable[object]], names: Sequence[str], marks: Sequence[str], source: str
) -> SomeLabels:
    """Return the labels (M,) of one column, or the probabilities (M, K) of several."""
    unknown = UNKNOWN | {mark.casefold() for mark in marks}
    words = [[known_label(one, unknown) for one in column] for column in columns]
    if len(words) == 1:
        there = [word for word in words[0] if word]
        if there and all(re.fullmatch("-?[0-9]{1,15}", word) for word in there):
            return SomeLabels(np.array([float(word or "nan") for word in words[0]]))
        return SomeLabels(np.array(words[0], dtype=str))
    probabilities = np.empty((len(words[0]), len(words)))
    for place, column in enumerate(words):
        for row, word in enumerate(column):
            number = read_float(word or "nan")
            if number is None:
                raise InputError(
                    f"{source}: row {row} (counted from 0) has {word[:40]!r} in column "
                    f"{names[place]!r}; several columns of ", Setting("labels_for_fit"),
                    " are probabilities of the components",
                )  # fmt: skip
            probabilities[row, place] = number
    return SomeLabels(probabilities, tuple(names))


def known_label(value: Any, unknown: frozenset[str]) -> str:
    """Return a label as people write it, "" where there is none."""
    if value is None or value != value:
        return ""
    whole = isinstance(value, float) and value.is_integer()
    word = str(int(value) if whole else value).strip()
    return "" if word.casefold() in unknown else word
