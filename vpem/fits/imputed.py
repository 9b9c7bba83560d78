"""What is reported and written of an imputation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import as_kept, check_memory
from vpem.files.endings import ENDINGS, check_ending
from vpem.files.hdf5 import (
    atomic_write,
    create,
    describe_element,
    write_array,
    write_attribute,
    write_strings,
)
from vpem.files.imputations import ENCODING, VERSION, Imputed, PathLike, write_imputed
from vpem.files.json_text import write_json_element
from vpem.files.table_settings import TableSettings
from vpem.fits.completed import Completed, Imputation
from vpem.fits.mixture_imputation import MixtureImputation
from vpem.network.schema import Report
from vpem.terms.lowrank.dealing import Hidden


def imputed_of(found: Completed, hidden: Hidden | None = None) -> Imputed:
    """Return the completed matrix of an imputation, with what was hidden from it as it was seen.

    Of a mixture over others' processes: as much of it as this one holds.
    """
    given, values, times = found.observations, found.imputed, found.seen.times
    drawn = _draws(found)
    if hidden is not None:
        again = np.bincount(hidden.places, minlength=values.size).reshape(values.shape)
        total = np.bincount(hidden.places, hidden.values, values.size).reshape(values.shape)
        values = np.where(again > 0, total / np.maximum(again, 1), values)
        drawn = None if drawn is None else np.where(again > 0, values, drawn)
        times = times + again
    here = _here(values)
    rows = tuple(given.row_names[row] for row in here[0].ravel())
    columns = tuple(given.column_names[column] for column in here[1].ravel())
    drawn = None if drawn is None else drawn[:, here[0], here[1]]
    return Imputed(values[here], times[here], rows, columns, given.source, given.long, drawn)


def _here(values: NDArray[np.float64]) -> tuple[NDArray[np.intp], ...]:
    """Return which rows and columns of a completed matrix (I, J) this process has."""
    own = np.isfinite(values)
    return np.ix_(np.flatnonzero(own.any(axis=1)), np.flatnonzero(own.any(axis=0)))


def _draws(found: Completed) -> NDArray[np.float64] | None:
    """Return the completed matrices of all draws, (M, I, J), if there are any."""
    if not isinstance(found, MixtureImputation) or not len(found.draws):
        return None
    check_memory(16 * len(found.draws) * found.fitted.size, f"tables of {len(found.draws)} draws")
    return np.stack([found.completed(draw) for draw in range(len(found.draws))])


def write_imputation(
    path: PathLike,
    found: Any,
    report: Report | None = None,
    force: bool = False,
    hidden: Hidden | None = None,
    quote_formulas: bool = False,
    table: TableSettings | None = None,
) -> None:
    """Write matrices, trends and factors to HDF5, or the completed matrix to a table.

    ``found`` is an imputation, or a `vpem.FedMissEM` after `fit`; a file that ends in .csv or
    .parquet has the table of `write_imputed`, with what was seen of the ``hidden`` entries, and all
    columns of the one table that was imputed, if ``table`` says how that was read. The report (by
    default `Imputation.describe`) is kept in HDF5, as JSON text. All is written or nothing.
    """
    sentence = "an imputation is written of an Imputation or a FedMissEM"
    found = as_kept(found, Completed, sentence)  # type: ignore[type-abstract]
    if check_ending(path, "imputations") in ENDINGS["imputed values"]:
        completed = imputed_of(found, hidden)
        filled = None
        if table is not None and not completed.long:
            from vpem.files.filled import filled_columns

            filled = filled_columns(completed.source, table, completed)
        write_imputed(path, completed, force, quote_formulas, filled)
        return
    given, completed, here = found.observations, imputed_of(found), _here(found.fitted)
    report = found.describe() if report is None else report
    with (
        atomic_write(path, force, "imputations") as temporary,
        create(temporary, ENCODING, VERSION) as file,
    ):
        write_attribute(file, "source", given.source)
        file.attrs["long"] = given.long
        write_array(file, "imputed", completed.values)
        write_array(file, "fitted", found.fitted[here])
        write_array(file, "times_seen", completed.times_seen)
        write_strings(file, "row_names", completed.row_names)
        write_strings(file, "column_names", completed.column_names)
        groups = ["trends"]
        if completed.draws is not None:
            write_array(file, "draws", completed.draws)
        if isinstance(found, Imputation):
            groups.insert(0, "factors")
            write_array(file, "factors/rows", found.factors.U)
            write_array(file, "factors/columns", found.factors.V)
            write_array(file, "factors/singular_values", found.factors.singular_values)
        write_array(file, "trends/rows", found.fitted[here].mean(axis=1))
        write_array(file, "trends/columns", found.fitted[here].mean(axis=0))
        write_json_element(file, "report", report)
        if hidden is not None:
            groups.append("holdout")
            rows, columns = np.divmod(hidden.places, given.shape[1])
            write_array(file, "holdout/rows", rows.astype(np.int64))
            write_array(file, "holdout/columns", columns.astype(np.int64))
            write_array(file, "holdout/values", hidden.values)
        for name in groups:
            describe_element(file[name], "dict", "0.1.0")
