"""A picture of an imputation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vpem.files.imputations import PathLike
from vpem.fits.imputation import Imputation
from vpem.fits.imputed import NAMED
from vpem.pictures.figure import check_picture, save_figure, words

__all__ = ["plot_imputation"]


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
