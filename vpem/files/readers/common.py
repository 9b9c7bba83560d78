"""What readers of all formats do: marks of missing values, and the bound of memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vpem.checks import ALL_DIFFERENT, SOME_ALIKE, SOME_LACKING, Floats, read_float
from vpem.errors import InputError
from vpem.files.table_settings import TableSettings

__all__ = [
    "GUESSED",
    "MISSING_MARKS",
    "OF_ROWS",
    "ZEROS",
    "blank_marks",
    "marked_numbers",
    "refuse_large",
]

MISSING_MARKS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NAN", "NULL", "NaN", "None", "Null", "n/a", "na", "nan", "none", "null",
)  # fmt: skip
"""What stands for a missing value in text without anybody saying so."""


OF_ROWS, ZEROS = "ids of rows", "zeros in front"
GUESSED = (OF_ROWS, ZEROS, ALL_DIFFERENT, SOME_ALIKE, SOME_LACKING)
"""Why numbers are no features although nobody has said so."""


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


def refuse_large(n_bytes: int, memory_limit: int | None, source: str) -> None:
    """Raise InputError if a table takes more memory than it may."""
    if memory_limit is not None and 2 * n_bytes > memory_limit:
        raise InputError(
            f"{source} takes {2 * n_bytes / 1e6:.4g} MB, more than the memory limit of "
            f"{memory_limit / 1e6:.4g} MB; 'vpem data import' makes an HDF5 file of it, which is "
            "read in parts"
        )
