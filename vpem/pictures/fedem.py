"""Mean field and objective of FedEM runs against epochs and bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from vpem.pictures.figure import COLOURS, check_picture, legend_below, save_figure, words
from vpem.steps.fedruns import FedHistory

__all__ = ["plot_histories"]

LINES = ("-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 3)))
ORDER = (6, 5, 2, 4, 0, 1, 7, 3)
"""Of the colours: the dark ones first, since these are lines on white."""

LEAST = 1e-300


def plot_histories(
    path: str | os.PathLike[str],
    histories: Sequence[tuple[str, Sequence[FedHistory]]],
    *,
    objective: str = "log-likelihood per sample (nats)",
    title: str = "",
    force: bool = False,
) -> None:
    """Draw the squared mean field and the objective, each against epochs and bytes up.

    Parameters
    ----------
    path : path
        A .png, .svg or .pdf file, written completely or not at all.
    histories : sequence of (str, sequence of FedHistory)
        A name and its runs. Of several runs that were recorded at the same iterations the median
        is drawn, and the range of the middle half.
    objective : str
        What the objective is.
    title : str
        Above the panels.
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

    figure = Figure(figsize=(9.0, 6.2), layout="constrained")
    panels = figure.subplots(2, 2, sharey="row", sharex="col")
    lows: list[float] = []
    highs: list[float] = []
    for number, (name, runs) in enumerate(histories):
        style = {
            "color": COLOURS[ORDER[number % len(ORDER)]],
            "linestyle": LINES[number % len(LINES)],
        }
        for row, column in np.ndindex(2, 2):
            drawn = _draw(panels[row, column], runs, row, column, style, name)
        lows.append(np.quantile(drawn, 0.02))
        highs.append(drawn.max())
    panels[0, 0].set(yscale="log", ylabel="squared mean field")
    panels[1, 0].set(ylabel=objective)
    # What runs astray for a moment, or for good, would leave no room for the others.
    low, high = min(float(np.median(lows)), highs[0]), max(highs)
    if high > low and len(histories) > 1:
        panels[1, 0].set_ylim(low - 0.1 * (high - low), high + 0.05 * (high - low))
    panels[1, 0].set(xlabel="epochs")
    panels[1, 1].set(xlabel="MB sent by workers")
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, color="#E6E6E6", linewidth=0.6)
    if title:
        figure.suptitle(title, fontsize=11)
    if len(histories) > 1:
        legend_below(figure, panels[0, 0].get_legend_handles_labels()[0], size=10)
    save_figure(path, figure, force=force, dpi=150)


def _draw(
    axes: Any,
    runs: Sequence[FedHistory],
    row: int,
    column: int,
    style: dict[str, Any],
    name: str,
) -> Any:
    """Draw one quantity of one contender against one cost; return its values (n,)."""
    shortest = min(len(run.iteration) for run in runs)
    costs = [run.bytes_up if column else run.epochs for run in runs]
    across = np.median([cost[:shortest] for cost in costs], axis=0) / (1e6 if column else 1.0)
    values = np.array([(run.objective if row else run.mean_field)[:shortest] for run in runs])
    if row == 0:
        values = np.maximum(values, LEAST)
    label = words(name, 60)
    middle = np.median(values, axis=0)
    axes.plot(across, middle, linewidth=1.5, label=label, **style)
    if len(runs) > 1:
        low, high = np.quantile(values, (0.25, 0.75), axis=0)
        axes.fill_between(across, low, high, color=style["color"], alpha=0.15, linewidth=0)
    return middle
