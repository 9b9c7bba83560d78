"""What an imputation has to say: the JSON of `vpem impute`, its file, and its picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import as_kept
from vpem.errors import FileError
from vpem.files.elements import Elements, Strings, read_elements
from vpem.files.endings import check_ending, ending_of
from vpem.files.hdf5 import (
    atomic_write,
    check_encoding,
    create,
    describe_element,
    open_read,
    read_attribute,
    write_array,
    write_attribute,
    write_strings,
)
from vpem.files.json_text import write_json_element
from vpem.files.schema import LARGEST_COUNT, TEXT, Array, Maybe
from vpem.imputing.imputation import Imputation
from vpem.imputing.observations import Hidden
from vpem.plots import check_picture, save_figure, words
from vpem.tables import write_columns

__all__ = [
    "Imputed",
    "describe_imputation",
    "is_imputation",
    "plot_imputation",
    "read_imputed",
    "write_imputation",
    "write_imputed",
]

PathLike = str | os.PathLike[str]
ENCODING = "vpem-imputation"
VERSION = "0.1.0"
NAMED = 12
"""Rows or columns up to which a picture names each."""


def describe_imputation(found: Imputation) -> dict[str, Any]:
    """Summarize an imputation in values that JSON can hold.

    Parameters
    ----------
    found : Imputation
        From `vpem.imputing.imputation.fit_imputation`.

    Returns
    -------
    dict
        Log-likelihoods are in nats an entry seen; ``history`` is the penalized one, of the start
        and after every iteration, as are ``mean_field``, ``epochs`` and ``bytes_up``.
    """
    given = found.observations
    run = found.run
    rows, columns = given.shape
    return {
        "algorithm": "fedmissem",
        "n_samples": rows,
        "n_features": columns,
        "n_workers": given.n_observers,
        "worker_names": list(given.names),
        "n_entries": given.n_entries,
        "share_seen": float((given.times_seen > 0).mean()),
        "law": found.law.name,
        "variance": found.law.dispersion if found.law.name == "gaussian" else None,
        "rank": found.rank,
        "ridge": found.ridge,
        "n_copies": found.n_copies,
        "singular_values": found.factors.singular_values.tolist(),
        "log_likelihood": found.log_likelihood,
        "objective": run.history.objective[-1],
        "row_trend": found.row_trend.tolist(),
        "column_trend": found.column_trend.tolist(),
        "converged": run.converged,
        "n_iter": run.n_iter,
        "projections": run.projections,
        "compress": found.compress,
        **found.options,
        "history": run.history.objective,
        "mean_field": run.history.mean_field,
        "epochs": run.history.epochs,
        "bytes_up": run.history.bytes_up,
        "communication": found.communication,
        "seconds": found.seconds,
    }


@dataclass(frozen=True)
class Imputed:
    """A completed matrix.

    Attributes
    ----------
    values : ndarray of shape (I, J)
        What was seen (mean over observers), and the fitted mean elsewhere.
    times_seen : ndarray of shape (I, J)
        How many observers saw an entry; 0 where it was imputed.
    row_names, column_names : tuple of str
        Of rows (I,) and columns (J,).
    source : str
        Where the observations were from.
    """

    values: NDArray[np.float64]
    times_seen: NDArray[np.intp]
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]
    source: str


def imputed_of(found: Imputation) -> Imputed:
    """Return the completed matrix of an imputation."""
    given = found.observations
    return Imputed(
        found.imputed, given.times_seen, given.row_names, given.column_names, given.source
    )


def is_imputation(path: PathLike) -> bool:
    """Whether a file says that it is an imputation; `FileError` if it cannot be read."""
    with open_read(path) as file:
        return read_attribute(file, "encoding-type") == ENCODING


IMPUTATION: Elements = {
    "row_names": Strings("rows", least=1),
    "column_names": Strings("columns", least=1),
    "imputed": Array("f", ("rows", "columns")),
    "times_seen": Array("i", ("rows", "columns"), 0, LARGEST_COUNT),
    "@source": Maybe(TEXT),
}
"""What is read of the file; factors, trends and the report are for others."""


def read_imputed(path: PathLike) -> Imputed:
    """Read the completed matrix of a file of `write_imputation`.

    Raises
    ------
    FileError
        If the file cannot be read, or is no imputation.
    """
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
    )


def write_imputed(
    path: PathLike, found: Imputed, force: bool = False, quote_formulas: bool = False
) -> None:
    """Write a completed matrix as a CSV table, all or nothing.

    Of observations from a long table the table is long too: row, column, value, times_seen (0
    where the value was imputed). Else it is the matrix, a line a row and its name first.

    Parameters
    ----------
    path : path
        A .csv file.
    found : Imputed
        What to write.
    force : bool
        Replace an existing file.
    quote_formulas : bool
        As `vpem.tables.write_columns`.

    Raises
    ------
    InputError
        If the file's name has another ending.
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    """
    check_ending(path, "imputed values")
    rows, columns = np.array(found.row_names), np.array(found.column_names)
    if ending_of(found.source) == ".csv":
        table = {
            "row": np.repeat(rows, len(columns)),
            "column": np.tile(columns, len(rows)),
            "value": found.values.ravel(),
            "times_seen": found.times_seen.ravel(),
        }
    else:
        first = "row"
        while first in found.column_names:
            first += "_"
        table = {first: rows, **dict(zip(found.column_names, found.values.T, strict=True))}
    write_columns(path, table, "vpem-imputed", force, quote_formulas)


def write_imputation(
    path: PathLike,
    found: Any,
    report: dict[str, Any] | None = None,
    force: bool = False,
    hidden: Hidden | None = None,
    quote_formulas: bool = False,
) -> None:
    """Write matrices, factors and trends to HDF5, or the completed matrix to CSV.

    Parameters
    ----------
    path : path
        The file, written completely or not at all; .csv for the table of `write_imputed`.
    found : Imputation or fitted estimator
        What to write: an imputation, or a `vpem.FedMissEM` after `fit`.
    report : dict, optional
        Kept beside it, as JSON text. Default: `describe_imputation`.
    force : bool
        Replace an existing file.
    hidden : Hidden, optional
        Entries that were kept from the fit.
    quote_formulas : bool
        In a table, as `vpem.tables.write_columns`.

    Raises
    ------
    InputError
        If it is something else, or not fitted.
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    """
    found = as_kept(found, Imputation, "an imputation is written of an Imputation or a FedMissEM")
    if check_ending(path, "imputations") == ".csv":
        write_imputed(path, imputed_of(found), force, quote_formulas)
        return
    given = found.observations
    report = describe_imputation(found) if report is None else report
    with (
        atomic_write(path, force, "imputations") as temporary,
        create(temporary, ENCODING, VERSION) as file,
    ):
        write_attribute(file, "source", given.source)
        write_array(file, "imputed", found.imputed)
        write_array(file, "fitted", found.fitted)
        write_array(file, "times_seen", given.times_seen)
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


def plot_imputation(path: PathLike, found: Imputation, *, force: bool = False) -> None:
    """Draw trends, and the objective against epochs and against bytes.

    Parameters
    ----------
    path : path
        A .png, .svg or .pdf file, written completely or not at all.
    found : Imputation
        What to draw.
    force : bool
        Replace an existing file.

    Raises
    ------
    InputError
        If matplotlib is not installed, or the file's name has another ending.
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    """
    check_picture(path, force)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.5), layout="constrained")
    axes = figure.subplots(2, 2)
    given = found.observations
    for place, (what, names, trend) in enumerate(
        (
            ("columns", given.column_names, found.column_trend),
            ("rows", given.row_names, found.row_trend),
        )
    ):
        _draw_trend(axes[0, place], what, names, trend, found.law.unit)
    history = found.run.history
    gap = max(history.objective) - np.array(history.objective)
    field = np.array(history.mean_field)
    for drawn, along, label, values, what in (
        (axes[1, 0], history.epochs, "epochs", gap, "objective below its best (nats an entry)"),
        (axes[1, 1], np.array(history.bytes) / 1e6, "MB sent", field, "mean field, squared norm"),
    ):
        positive = np.where(values > 0, values, np.nan)
        drawn.plot(along, positive, color="#0072B2", linewidth=1.6)
        if (values > 0).any():
            drawn.set_yscale("log")
        drawn.set(xlabel=label, ylabel=what)
    for drawn in axes.flat:
        drawn.spines[["top", "right"]].set_visible(False)
    save_figure(path, figure, force=force, dpi=130)


def _draw_trend(axes: Any, what: str, names: Sequence[str], trend: Any, unit: str) -> None:
    """Draw a trend over rows or columns, by name where these are few."""
    marker = "o" if len(trend) <= 60 else ""
    axes.plot(np.arange(len(trend)), trend, color="#D55E00", marker=marker, markersize=3.5)
    axes.set(xlabel=what, ylabel=f"mean fitted {unit}".replace("mean fitted mean", "mean fitted"))
    ticks: Any = np.arange(len(trend))
    if len(trend) > NAMED:
        ticks = np.unique(np.linspace(0, len(trend) - 1, 8).round().astype(int))
    shown = [words(names[tick], 14) for tick in ticks]
    axes.set_xticks(ticks, shown, rotation=30, ha="right", fontsize=8)
