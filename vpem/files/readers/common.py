"""What readers of all formats do: marks of missing values, and the bound of memory."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from vpem.checks import (
    BY_NAME,
    CLASSED,
    CODED,
    COUNTED,
    DIFFERENT,
    NEARLY,
    NO_MEASUREMENT,
    Floats,
    missing_marks,
    no_measurement,
    read_float,
)
from vpem.errors import InputError, OwnDataWarning, Setting, shorten
from vpem.files.table_settings import TableSettings

MISSING_MARKS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NAN", "NULL", "NaN", "None", "Null", "n/a", "na", "nan", "none", "null",
)  # fmt: skip
"""What stands for a missing value in text without anybody saying so."""


OF_ROWS, ZEROS, LONG = "ids of rows", "zeros in front", "more digits than a number can keep"
GUESSED = (OF_ROWS, ZEROS, LONG, *NO_MEASUREMENT)
"""Why numbers are no features although nobody has said so."""

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
    """Warn of numbers left out that nobody has said to be no features; ``names`` are in order."""
    why = {name: one for name, one in left_out.items() if one in GUESSED}
    if not why:
        return
    listed = shorten((f"{name!r} ({one})" for name, one in why.items()), 5)
    first = next(iter(why))
    use = {OF_ROWS: "id_column", COUNTED: "id_column", DIFFERENT: "id_column"}
    use[CLASSED] = "label_column"
    is_, them = ("is", "it is a measurement") if len(why) == 1 else ("are", "they are measurements")
    warnings.warn(
        OwnDataWarning(
            f"{source}: {listed} {is_} left out of the features; to confirm that, pass ",
            Setting(use.get(why[first], "drop"), first),
            f"; if {them}, name all features: ",
            with_features([name for name in names if name in why or name in features]),
        ),
        stacklevel=4,
    )


def ask_of_ids(source: str, names: Sequence[str], X: Floats) -> None:
    """Warn of features of a dataset that are called as ids are."""
    ids = [name for n, name in enumerate(names) if no_measurement(name, X[:, n]) == BY_NAME]
    if ids:
        warnings.warn(
            OwnDataWarning(
                f"{source}: {shorten(map(repr, ids))} is among the features, but called as ids "
                "are; if it names the rows, leave it out with ",
                Setting("drop", ids[0]),
            ),
            stacklevel=4,
        )


def take_counts(source: str, left_out: dict[str, str]) -> dict[str, str]:
    """Return what is left out, without whole numbers that may well be measurements.

    Those are numbers that nearly all differ, or repeat as codes do, and where many columns are such
    as all differ, as counts do, all of them: hardly any numbers the rows. There is a warning unless
    that is plain.
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
            warnings.warn(
                OwnDataWarning(
                    f"{source}: {shorten(map(repr, names))} {is_}; if {whose} whole numbers, "
                    f"{what}, leave {them} out with ",
                    Setting("drop", names[0] if len(names) == 1 else None),
                ),
                stacklevel=4,
            )
    return {name: why for name, why in left_out.items() if name not in (*taken, *coded)}


def warn_of_marks(source: str, X: Floats, names: Sequence[str]) -> None:
    """Warn of numbers by which people write that a value is missing, where no others are near."""
    found = {names[place]: marks for place, marks in missing_marks(X).items()}
    if found:
        listed = shorten((f"{', '.join(marks)} in {name!r}" for name, marks in found.items()), 5)
        every = dict.fromkeys(mark for marks in found.values() for mark in marks)
        warnings.warn(
            OwnDataWarning(
                f"{source}: {listed}: apart from all other values there; if this stands for "
                "missing values, pass ",
                Setting("na", ",".join(every)),
            ),
            stacklevel=4,
        )


def refuse_large(n_bytes: int, memory_limit: int | None, source: str) -> None:
    """Raise InputError if a table takes more memory than it may."""
    if memory_limit is not None and 2 * n_bytes > memory_limit:
        raise InputError(
            f"{source} takes {2 * n_bytes / 1e6:.4g} MB, more than the memory limit of "
            f"{memory_limit / 1e6:.4g} MB; 'vpem data import' makes an HDF5 file of it, which is "
            "read in parts"
        )
