"""What an imputation has to say: the JSON of `vpem impute`, its file, and its picture."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import FileError
from vpem.files.elements import Elements, Strings, read_elements
from vpem.files.endings import check_ending
from vpem.files.hdf5 import check_encoding, open_read
from vpem.files.tables import write_columns
from vpem.network.schema import FLAG, LARGEST_COUNT, TEXT, Array, Maybe
from vpem.shown import Shown

PathLike = str | os.PathLike[str]
ENCODING = "vpem-imputation"
VERSION = "0.1.0"


@dataclass(frozen=True)
class Imputed(Shown, facts="{values.shape[0]:row}, {values.shape[1]:column}"):
    """A completed matrix."""

    values: NDArray[np.float64]  # (I, J): seen (mean over observers) or fitted
    times_seen: NDArray[np.intp]  # (I, J); 0: imputed
    row_names: tuple[str, ...]  # (I,)
    column_names: tuple[str, ...]  # (J,)
    source: str  # where the observations are from
    long: bool = False  # that was a table with a line an entry
    draws: NDArray[np.float64] | None = None  # (M, I, J): of which tables then consist

    @property
    def stacked(self) -> tuple[NDArray[np.float64], int]:
        """What tables have, (M I, J), and how many times each row is in it."""
        if self.draws is None:
            return self.values, 1
        return self.draws.reshape(-1, self.draws.shape[2]), len(self.draws)

    def numbered(self, taken: Collection[str]) -> dict[str, NDArray[np.intp]]:
        """Return the column of a table that says which draw a row is of, if there are any."""
        if self.draws is None:
            return {}
        name = "draw"
        while name in taken:
            name += "_"
        return {name: np.repeat(np.arange(1, len(self.draws) + 1), len(self.row_names))}


IMPUTATION: Elements = {
    "row_names": Strings("rows", least=1),
    "column_names": Strings("columns", least=1),
    "imputed": Array("f", ("rows", "columns")),
    "times_seen": Array("i", ("rows", "columns"), 0, LARGEST_COUNT),
    "@source": Maybe(TEXT),
    "@long": Maybe(FLAG),
    "draws": Maybe(Array("f", ("draws", "rows", "columns"))),
}
"""What is read of the file; factors, trends and the report are for others."""


def read_imputed(path: PathLike) -> Imputed:
    """Read the completed matrix of a file of `write_imputation`."""
    with open_read(path) as file:
        if check_encoding(file, ENCODING, VERSION) != ENCODING:
            raise FileError(f"{path} is not a {ENCODING} file; 'vpem impute -o' writes one")
        found = read_elements(file, IMPUTATION)
    return Imputed(
        found["imputed"],
        found["times_seen"].astype(np.intp),
        found["row_names"],
        found["column_names"],
        found["source"] or "",
        bool(found["long"]),
        found["draws"],
    )


def write_imputed(
    path: PathLike,
    found: Imputed,
    force: bool = False,
    quote_formulas: bool = False,
    filled: Mapping[str, Any] | None = None,
) -> None:
    """Write a completed matrix as a .csv or .parquet table, all or nothing.

    Of observations from a long table the table is long too: row, column, value, times_seen (0 where
    the value was imputed). Else it is the matrix, a line a row and its name first; or all columns
    of the table that was imputed, which are ``filled`` (`vpem.files.filled.filled_columns`). With
    draws there is one such table below the other, and a column draw that counts them from 1.
    """
    check_ending(path, "imputed values")
    values, times = found.stacked
    rows, columns = np.tile(np.array(found.row_names), times), np.array(found.column_names)
    table: Mapping[str, Any]
    if filled is not None:
        table = filled
    elif found.long:
        drawn = found.numbered(())
        table = {name: np.repeat(number, len(columns)) for name, number in drawn.items()} | {
            "row": np.repeat(rows, len(columns)),
            "column": np.tile(columns, len(rows)),
            "value": values.ravel(),
            "times_seen": np.tile(found.times_seen.ravel(), times),
        }
    else:
        first = "row"
        while first in found.column_names:
            first += "_"
        taken = (first, *found.column_names)
        table = found.numbered(taken) | dict(zip(taken, (rows, *values.T), strict=True))
    write_columns(path, table, "vpem-imputed", force, quote_formulas)
