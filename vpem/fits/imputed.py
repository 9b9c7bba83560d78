"""What is reported and written of an imputation."""

from __future__ import annotations

from typing import Any

import numpy as np

from vpem.checks import as_kept
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
from vpem.fits.completed import Imputation
from vpem.network.schema import Report
from vpem.terms.lowrank.dealing import Hidden

__all__ = ["imputed_of", "write_imputation"]


def imputed_of(found: Imputation, hidden: Hidden | None = None) -> Imputed:
    """Return the completed matrix of an imputation, with what was hidden from it as it was seen."""
    given, values, times = found.observations, found.imputed, found.seen.times
    if hidden is not None:
        again = np.bincount(hidden.places, minlength=values.size).reshape(values.shape)
        total = np.bincount(hidden.places, hidden.values, values.size).reshape(values.shape)
        values = np.where(again > 0, total / np.maximum(again, 1), values)
        times = times + again
    return Imputed(values, times, given.row_names, given.column_names, given.source, given.long)


def write_imputation(
    path: PathLike,
    found: Any,
    report: Report | None = None,
    force: bool = False,
    hidden: Hidden | None = None,
    quote_formulas: bool = False,
    table: TableSettings | None = None,
) -> None:
    """Write matrices, factors and trends to HDF5, or the completed matrix to a table.

    Parameters
    ----------
    path : path
        The file, written completely or not at all; .csv or .parquet for the table of
        `write_imputed`.
    found : Imputation or fitted estimator
        What to write: an imputation, or a `vpem.FedMissEM` after `fit`.
    report : dict, optional
        Kept beside it, as JSON text. Default: `Imputation.describe`.
    force : bool
        Replace an existing file.
    hidden : Hidden, optional
        Entries that were kept from the fit; a table has what was seen of them.
    quote_formulas : bool
        In a table, as `vpem.files.tables.write_columns`.
    table : TableSettings, optional
        How the one table was read that was imputed: what is written has all of its columns.

    Raises
    ------
    InputError
        If it is something else, or not fitted.
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    """
    found = as_kept(found, Imputation, "an imputation is written of an Imputation or a FedMissEM")
    if check_ending(path, "imputations") in ENDINGS["imputed values"]:
        completed = imputed_of(found, hidden)
        filled = None
        if table is not None and not completed.long:
            from vpem.files.filled import filled_columns

            filled = filled_columns(completed.source, table, completed)
        write_imputed(path, completed, force, quote_formulas, filled)
        return
    given = found.observations
    report = found.describe() if report is None else report
    with (
        atomic_write(path, force, "imputations") as temporary,
        create(temporary, ENCODING, VERSION) as file,
    ):
        write_attribute(file, "source", given.source)
        file.attrs["long"] = given.long
        write_array(file, "imputed", found.imputed)
        write_array(file, "fitted", found.fitted)
        write_array(file, "times_seen", found.seen.times)
        write_strings(file, "row_names", given.row_names)
        write_strings(file, "column_names", given.column_names)
        write_array(file, "factors/rows", found.factors.U)
        write_array(file, "factors/columns", found.factors.V)
        write_array(file, "factors/singular_values", found.factors.singular_values)
        write_array(file, "trends/rows", found.row_trend)
        write_array(file, "trends/columns", found.column_trend)
        write_json_element(file, "report", report)
        groups = ["factors", "trends"]
        if hidden is not None:
            groups.append("holdout")
            rows, columns = np.divmod(hidden.places, given.shape[1])
            write_array(file, "holdout/rows", rows.astype(np.int64))
            write_array(file, "holdout/columns", columns.astype(np.int64))
            write_array(file, "holdout/values", hidden.values)
        for name in groups:
            describe_element(file[name], "dict", "0.1.0")
