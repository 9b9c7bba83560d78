"""A picture of an imputation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.fits.completed import Imputation
from vpem.pictures.figure import WIDTH, Picture, new_figure, words
from vpem.pictures.style import CURVE, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NAMED = 16
"""Rows or columns up to which each is named."""

MARKED = 60
"""Rows or columns up to which each has a mark."""


def draw_imputation(found: Imputation) -> Picture:
    """Draw trends, and the objective against epochs and against bytes."""
    figure = new_figure(WIDTH, 6.2)
    axes = figure.subplots(2, 2)
    given, unit = found.observations, found.law.unit
    _draw_trend(axes[0, 0], "columns", given.column_names, found.column_trend, unit)
    _draw_trend(axes[0, 1], "rows", given.row_names, found.row_trend, unit)
    history = found.run.history
    marks = "o" if len(history.epochs) <= MARKED else ""
    for drawn, along, label, values, what in (
        (axes[1, 0], history.epochs, "epochs", history.objective, "objective (nats an entry)"),
        (axes[1, 1], np.array(history.bytes) / 1e6, "MB sent", history.mean_field,
         "mean field, squared norm"),
    ):  # fmt: skip
        drawn.plot(along, values, color=CURVE, linewidth=1.6, marker=marks, markersize=3.5)
        drawn.set(xlabel=label, ylabel=what)
        drawn.ticklabel_format(useOffset=False)
    field = np.array(history.mean_field)
    if (field > 0).all():
        axes[1, 1].set_yscale("log")
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
    """Draw a trend over rows or columns, a mark each: there is nothing between two of them."""
    places = np.arange(len(trend))
    many = len(trend) > MARKED
    axes.plot(places, trend, color=CURVE, marker="o", markersize=2 if many else 4.5, linestyle="")
    if not many:
        axes.vlines(places, min(0.0, float(trend.min())), trend, color=CURVE, linewidth=0.8)
    axes.set(xlabel=what, ylabel=f"mean fitted {unit}".replace("mean fitted mean", "mean fitted"))
    ticks = places
    if len(trend) > NAMED:
        ticks = np.unique(np.linspace(0, len(trend) - 1, 8).round().astype(int))
    shown = [words(names[tick], 14) for tick in ticks.tolist()]
    axes.set_xticks(ticks, shown, rotation=30, ha="right", fontsize=8)
