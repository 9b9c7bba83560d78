"""A picture of an imputation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.fits.completed import Imputation
from vpem.pictures.figure import Picture, new_figure, words
from vpem.pictures.style import colour, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_imputation"]

NAMED = 12
"""Rows or columns up to which each is named."""

MARKED = 60
"""Rows or columns up to which each has a mark."""


def draw_imputation(found: Imputation) -> Picture:
    """Draw trends, and the objective against epochs and against bytes.

    Parameters
    ----------
    found : Imputation
        What to draw.

    Returns
    -------
    Picture
    """
    figure = new_figure(10, 6.5)
    axes = figure.subplots(2, 2)
    given, unit = found.observations, found.law.unit
    _draw_trend(axes[0, 0], "columns", given.column_names, found.column_trend, unit)
    _draw_trend(axes[0, 1], "rows", given.row_names, found.row_trend, unit)
    history = found.run.history
    gap = max(history.objective) - np.array(history.objective)
    field = np.array(history.mean_field)
    for drawn, along, label, values, what in (
        (axes[1, 0], history.epochs, "epochs", gap, "objective below its best (nats an entry)"),
        (axes[1, 1], np.array(history.bytes) / 1e6, "MB sent", field, "mean field, squared norm"),
    ):
        positive = np.where(values > 0, values, np.nan)
        drawn.plot(along, positive, color=colour(0), linewidth=1.6)
        if (values > 0).any():
            drawn.set_yscale("log")
        drawn.set(xlabel=label, ylabel=what)
    for drawn in axes.flat:
        tidy(drawn)
    rows, columns = given.shape
    alt = (
        f"Mean fitted values of {columns} columns and {rows} rows, and how the objective and the "
        f"mean field went in {found.n_iter} iterations."
    )
    return Picture(figure, alt)


def _draw_trend(
    axes: Axes, what: str, names: Sequence[str], trend: NDArray[np.float64], unit: str
) -> None:
    """Draw a trend over rows or columns, by name where these are few."""
    marker = "o" if len(trend) <= MARKED else ""
    axes.plot(np.arange(len(trend)), trend, color=colour(2), marker=marker, markersize=3.5)
    axes.set(xlabel=what, ylabel=f"mean fitted {unit}".replace("mean fitted mean", "mean fitted"))
    ticks = np.arange(len(trend))
    if len(trend) > NAMED:
        ticks = np.unique(np.linspace(0, len(trend) - 1, 8).round().astype(int))
    shown = [words(names[tick], 14) for tick in ticks.tolist()]
    axes.set_xticks(ticks, shown, rotation=30, ha="right", fontsize=8)
