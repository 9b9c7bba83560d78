"""Traces of a fit of SAEM, and curves of individuals over their rows."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from vpem.checks import check_int
from vpem.pictures.figure import (
    COLOURS,
    check_picture,
    legend_below,
    save_figure,
    whole_numbers,
    words,
)
from vpem.saem.fit import SaemFit
from vpem.saem.individuals import Individuals
from vpem.saem.prediction import Maker, Predictor
from vpem.saem.saved import SavedSaem, as_saved

__all__ = ["draw_curves", "draw_traces", "plot_curves", "plot_traces"]

MOST_PANELS = 36
"""Parameters, or individuals, up to which all are drawn."""

DOTS = 150
"""An inch, of pictures made of dots."""

DARK, LIGHT = COLOURS[6], COLOURS[5]
"""Blue and vermilion: far apart in grey where one is broken."""


def plot_traces(
    path: str | os.PathLike[str], fit: SaemFit | SavedSaem, *, force: bool = False
) -> None:
    """Draw every parameter against the iterations.

    A panel has the parameter as it went, the mean of it since the burn-in, which is shaded, and
    the final estimate, whose standard error stands above it.

    Parameters
    ----------
    path : path
        A .png, .svg or .pdf file, written completely or not at all.
    fit : SaemFit or SavedSaem
        Of many parameters the first 36 are drawn.
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
    save_figure(path, draw_traces(fit), force=force, dpi=DOTS)


def draw_traces(fit: SaemFit | SavedSaem) -> Any:
    """Return the figure of `plot_traces`."""
    saved = as_saved(fit)
    burn_in = _burn_in(saved)
    shown = min(len(saved.parameters), MOST_PANELS)
    figure, panels = _grid(shown, 1.9)
    steps = np.arange(saved.n_iter + 1)
    late = saved.trace[burn_in + 1 :]
    means = np.cumsum(late, axis=0) / np.arange(1, len(late) + 1)[:, None]
    for j, axes in enumerate(panels[:shown]):
        axes.axvspan(0, burn_in, color="#E6E6E6", linewidth=0, label="burn-in", zorder=0)
        axes.plot(
            steps, saved.trace[:, j], color=DARK, linewidth=0.9, label="parameter", zorder=3
        )  # fmt: skip
        if len(late) > 1:
            axes.plot(
                steps[burn_in + 1 :], means[:, j], color="black", linewidth=1.3,
                linestyle=(0, (5, 3)), label="mean since the burn-in", zorder=4,
            )  # fmt: skip
        axes.plot(
            [saved.n_iter * 1.04], [saved.theta[j]], color=LIGHT, marker="D", markersize=5.5,
            markeredgecolor="black", markeredgewidth=0.6, linestyle="", label="estimate", zorder=5,
        )  # fmt: skip
        error = saved.standard_errors[j]
        told = f"{saved.theta[j]:.4g}" + (f" (s.e. {error:.2g})" if error > 0 else "")
        axes.set_title(f"{words(saved.parameters[j], 32)}: {told}", fontsize=9)
        _tidy(axes)
        axes.set_xlim(0, saved.n_iter * 1.07)
        whole_numbers(axes.xaxis)
    for axes in panels[max(0, shown - figure.columns) : shown]:
        axes.set_xlabel("iteration", fontsize=9)
    part = "" if shown == len(saved.parameters) else f", {shown} of {len(saved.parameters)}"
    figure.suptitle(f"SAEM, {words(saved.model)}: parameters{part}", fontsize=11)
    legend_below(figure, panels[0].get_legend_handles_labels()[0], size=9)
    return figure


def _burn_in(saved: SavedSaem) -> int:
    """Iterations of the burn-in; a file may hold anything there."""
    found = saved.settings.get("burn_in")
    return min(found, saved.n_iter) if isinstance(found, int) and found >= 0 else 0


def _grid(count: int, height: float) -> tuple[Any, list[Any]]:
    """Figure with so many panels, which knows its ``columns``, and the panels."""
    from matplotlib.figure import Figure

    columns = min(count, 2 if count <= 4 else 3 if count <= 12 else 4)
    rows = -(-count // columns)
    figure: Any = Figure(figsize=(3.1 * columns + 0.4, height * rows + 1.1), layout="constrained")
    figure.columns = columns
    panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#E6E6E6", linewidth=0.6)
    axes.tick_params(labelsize=8)


def plot_curves(
    path: str | os.PathLike[str],
    fit: SaemFit | SavedSaem,
    individuals: Individuals,
    *,
    model: Maker | None = None,
    n_times: int = 120,
    force: bool = False,
) -> None:
    """Draw the curve of each individual given its rows, over what was measured.

    A panel an individual: its values, its curve with the interval, and that of the population
    with the individual's covariates.

    Parameters
    ----------
    path : path
        A .png, .svg or .pdf file, written completely or not at all.
    fit : SaemFit or SavedSaem
        Of a model that has curves.
    individuals : Individuals
        Of the fit, or others; of many the first 36 are drawn.
    model : callable, optional
        As for `vpem.saem.prediction.Predictor`.
    n_times : int
        Times at which curves are computed.
    force : bool
        Replace an existing file.

    Raises
    ------
    InputError
        If the model has no curves, the individuals do not fit it, matplotlib is not installed, or
        the file's name has another ending.
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    """
    check_picture(path, force)
    save_figure(path, draw_curves(fit, individuals, model=model, n_times=n_times), force=force,
                dpi=DOTS)  # fmt: skip


def draw_curves(
    fit: SaemFit | SavedSaem,
    individuals: Individuals,
    *,
    model: Maker | None = None,
    n_times: int = 120,
    most: int = MOST_PANELS,
) -> Any:
    """Return the figure of `plot_curves`, of the first ``most`` individuals."""
    saved = as_saved(fit)
    predictor = Predictor(fit, model)
    shown = min(individuals.n_individuals, most)
    some = individuals.take(np.arange(shown))
    times = np.linspace(some.times.min(), some.times.max(), check_int("n_times", n_times, least=2))
    given = predictor.curves(some, times)
    typical = predictor.population(times, individuals=some)
    figure, panels = _grid(shown, 2.0)
    low, high = some.values.min(), some.values.max()
    low, high = min(low, given.lower.min()), max(high, given.upper.max())
    margin = 0.05 * (high - low or 1.0)
    for i, axes in enumerate(panels[:shown]):
        part, rows = slice(i * len(times), (i + 1) * len(times)), slice(*some.first[i : i + 2])
        axes.fill_between(
            times, given.lower[part], given.upper[part], color=COLOURS[0], alpha=0.45,
            linewidth=0, label=f"{100 * saved.level:.3g} % interval of the curve", zorder=2,
        )  # fmt: skip
        axes.plot(
            times, typical.fitted[part], color="black", linewidth=1.1, linestyle=(0, (5, 3)),
            label="population", zorder=3,
        )  # fmt: skip
        axes.plot(times, given.fitted[part], color=DARK, linewidth=1.6, label="fitted", zorder=4)
        axes.plot(
            some.times[rows], some.values[rows], color="white", marker="o", markersize=4,
            markeredgecolor="black", linestyle="", label="measured", zorder=5,
        )  # fmt: skip
        axes.set_title(words(some.names[i], 32), fontsize=9)
        axes.set_ylim(low - margin, high + margin)
        _tidy(axes)
    for axes in panels[max(0, shown - figure.columns) : shown]:
        axes.set_xlabel("time", fontsize=9)
    part_of = (
        "" if shown == individuals.n_individuals else f", {shown} of {individuals.n_individuals}"
    )
    figure.suptitle(f"SAEM, {words(saved.model)}: individuals{part_of}", fontsize=11)
    legend_below(figure, panels[0].get_legend_handles_labels()[0], size=9)
    return figure
