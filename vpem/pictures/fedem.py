"""Mean field and objective of FedEM runs against epochs and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.pictures.figure import WIDTH, Picture, legend_below, new_figure, words
from vpem.pictures.style import LineStyle, contender, line, tidy
from vpem.steps.fedruns import FedHistory

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LEAST = 1e-300


def draw_histories(
    histories: Sequence[tuple[str, Sequence[FedHistory]]],
    *,
    objective: str = "log-likelihood per sample (nats)",
    title: str = "",
) -> Picture:
    """Draw the squared mean field and the objective, each against epochs and bytes up.

    Of several runs of a name that were recorded at the same iterations the median is drawn, and the
    range of the middle half.
    """
    figure = new_figure(WIDTH, 6.2)
    panels = figure.subplots(2, 2, sharey="row", sharex="col")
    lows: list[float] = []
    highs: list[float] = []
    for number, (name, runs) in enumerate(histories):
        for row, column in np.ndindex(2, 2):
            style = (contender(number), line(number))
            drawn = _draw(panels[row, column], runs, (bool(row), bool(column)), style, name)
        lows.append(float(np.quantile(drawn, 0.02)))
        highs.append(float(drawn.max()))
    panels[0, 0].set(yscale="log", ylabel="squared mean field")
    panels[1, 0].set(ylabel=objective)
    # What runs astray for a moment, or for good, would leave no room for the others.
    low, high = min(float(np.median(lows)), highs[0]), max(highs)
    if high > low and len(histories) > 1:
        panels[1, 0].set_ylim(low - 0.1 * (high - low), high + 0.05 * (high - low))
    panels[1, 0].set(xlabel="epochs")
    panels[1, 1].set(xlabel="MB sent by workers")
    for axes in panels.flat:
        tidy(axes)
    if title:
        figure.suptitle(title, fontsize=11)
    if len(histories) > 1:
        legend_below(figure, panels[0, 0].get_legend_handles_labels()[0], size=10)
    listed = ", ".join(name for name, _ in histories)
    return Picture(figure, f"Mean field and {objective} against epochs and bytes: {listed}.")


def _draw(
    axes: Axes,
    runs: Sequence[FedHistory],
    what: tuple[bool, bool],
    style: tuple[str, LineStyle],
    name: str,
) -> NDArray[np.float64]:
    """Draw one quantity of one contender against one cost; return its values (n,)."""
    objective, in_bytes = what
    shortest = min(len(run.iteration) for run in runs)
    costs = [run.bytes_up if in_bytes else run.epochs for run in runs]
    across = np.median([cost[:shortest] for cost in costs], axis=0) / (1e6 if in_bytes else 1.0)
    values = np.array([(run.objective if objective else run.mean_field)[:shortest] for run in runs])
    if not objective:
        values = np.maximum(values, LEAST)
    label = words(name, 60)
    middle = np.median(values, axis=0)
    axes.plot(across, middle, linewidth=1.5, label=label, color=style[0], linestyle=style[1])
    if len(runs) > 1:
        low, high = np.quantile(values, (0.25, 0.75), axis=0)
        axes.fill_between(across, low, high, color=style[0], alpha=0.15, linewidth=0)
    return np.asarray(middle)
