"""Traces of a fit of SAEM, and curves of individuals over their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_int
from vpem.pictures.figure import Picture, legend_below, new_figure, words
from vpem.pictures.style import CURVE, GRID, LIGHT, tidy, whole_numbers
from vpem.saem.fitted import Maker
from vpem.saem.individuals import Individuals
from vpem.saem.prediction import Predictor
from vpem.saem.results import SaemFit
from vpem.saem.saved import SavedSaem, as_saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_PANELS = 36
"""Parameters, or individuals, up to which all are drawn."""

BROKEN = (0, (5, 3))


def draw_traces(fit: SaemFit | SavedSaem) -> Picture:
    """Draw every parameter, of many the first 36, against the iterations.

    A panel has the parameter as it went, the mean of it since the burn-in, which is shaded, and the
    final estimate, whose standard error stands above it.
    """
    saved = as_saved(fit)
    burn_in = _burn_in(saved)
    count = len(saved.parameters)
    shown = min(count, MOST_PANELS)
    figure, panels, columns = _grid(shown, 1.9)
    late = saved.trace[burn_in + 1 :]
    means = np.cumsum(late, axis=0) / np.arange(1, len(late) + 1)[:, None]
    for j, axes in enumerate(panels):
        _draw_trace(axes, saved, j, burn_in, means[:, j])
    for axes in panels[max(0, shown - columns) :]:
        axes.set_xlabel("iteration", fontsize=9)
    _finish(figure, panels, saved, "parameters", shown, count)
    some = ", ".join(f"{name} {value:.4g}" for name, value in list(saved.estimates.items())[:shown])
    alt = (
        f"{shown} parameters of the model {saved.model} over {saved.n_iter} iterations, and the "
        f"estimates: {some}."
    )
    return Picture(figure, alt, _left_out(shown, count, "parameters"))


def _draw_trace(
    axes: Axes, saved: SavedSaem, j: int, burn_in: int, means: NDArray[np.float64]
) -> None:
    """Draw one parameter."""
    steps = np.arange(saved.n_iter + 1)
    axes.axvspan(0, burn_in, color=GRID, linewidth=0, label="burn-in", zorder=0)
    axes.plot(steps, saved.trace[:, j], color=CURVE, linewidth=0.9, label="parameter", zorder=3)
    if len(means) > 1:
        axes.plot(
            steps[burn_in + 1 :], means, color="black", linewidth=1.3, linestyle=BROKEN,
            label="mean since the burn-in", zorder=4,
        )  # fmt: skip
    axes.plot(
        [saved.n_iter * 1.04], [saved.theta[j]], color="white", marker="D", markersize=5.5,
        markeredgecolor="black", markeredgewidth=1.2, linestyle="", label="estimate", zorder=5,
    )  # fmt: skip
    error = saved.standard_errors[j]
    estimate = f"{saved.theta[j]:.4g}" + (f" (s.e. {error:.2g})" if error > 0 else "")
    axes.set_title(f"{words(saved.parameters[j], 32)}\n{estimate}", fontsize=9)
    axes.set_xlim(0, saved.n_iter * 1.07)
    axes.ticklabel_format(axis="y", useOffset=False)
    whole_numbers(axes.xaxis)


def _burn_in(saved: SavedSaem) -> int:
    """Iterations of the burn-in; a file may hold anything there."""
    found = saved.settings.get("burn_in")
    return min(found, saved.n_iter) if isinstance(found, int) and found >= 0 else 0


def _grid(count: int, height: float) -> tuple[Figure, list[Axes], int]:
    """Figure with so many panels, the panels, and in how many columns they are."""
    columns = min(count, 2 if count <= 4 else 3)
    rows = -(-count // columns)
    figure = new_figure(
        (3.1 if columns < 3 else 2.6) * columns + 0.4, (height if rows <= 6 else 1.5) * rows + 1.1
    )
    panels: list[Axes] = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels[:count]:
        tidy(axes)
        axes.tick_params(labelsize=8)
    return figure, panels[:count], columns


def _finish(
    figure: Figure, panels: list[Axes], saved: SavedSaem, what: str, shown: int, count: int
) -> None:
    """Write above the panels what they are of, and the legend below."""
    part = "" if shown == count else f", {shown} of {count}"
    figure.suptitle(f"SAEM, {words(saved.model)}: {what}{part}", fontsize=11)
    legend_below(figure, panels[0].get_legend_handles_labels()[0], size=9)


def _left_out(shown: int, count: int, what: str) -> list[str]:
    return [] if shown == count else [f"the first {shown} of {count} {what} are drawn"]


def draw_curves(
    fit: SaemFit | SavedSaem,
    individuals: Individuals,
    *,
    model: Maker | None = None,
    n_times: int = 120,
    most: int = MOST_PANELS,
) -> Picture:
    """Draw the curve of each individual given its rows, over what was measured.

    A panel an individual, up to ``most``: its values, its curve with the interval at ``n_times``
    times, and that of the population with the individual's covariates; where these change in time,
    at the times of its rows. ``model`` is as for `vpem.saem.prediction.Predictor`.
    """
    saved = as_saved(fit)
    predictor = Predictor(fit, model)
    count = individuals.n_individuals
    shown = min(count, most)
    some = individuals.take(np.arange(shown))
    times = np.linspace(some.times.min(), some.times.max(), check_int("n_times", n_times, least=2))
    at_rows = predictor.changing(some)
    given = predictor.curves(some, None if at_rows else times)
    typical = predictor.population(None if at_rows else times, individuals=some)
    figure, panels, columns = _grid(shown, 2.0)
    low = min(some.values.min(), given.lower.min(), typical.fitted.min())
    high = max(some.values.max(), given.upper.max(), typical.fitted.max())
    margin = 0.05 * (high - low or 1.0)
    for i, axes in enumerate(panels):
        rows = slice(*some.first[i : i + 2])
        part = np.arange(i * len(times), (i + 1) * len(times))
        if at_rows:
            part = rows.start + np.argsort(some.times[rows], kind="stable")
            times = some.times[part]
        axes.fill_between(
            times, given.lower[part], given.upper[part], color=LIGHT, linewidth=0,
            label=f"{100 * saved.level:.3g} % interval of the curve", zorder=2,
        )  # fmt: skip
        axes.plot(
            times, typical.fitted[part], color="black", linewidth=1.1, linestyle=BROKEN,
            label="population", zorder=3,
        )  # fmt: skip
        axes.plot(times, given.fitted[part], color=CURVE, linewidth=1.6, label="fitted", zorder=4)
        axes.plot(
            some.times[rows], some.values[rows], color="white", marker="o", markersize=4,
            markeredgecolor="black", linestyle="", label="measured", zorder=5,
        )  # fmt: skip
        axes.set_title(words(some.names[i], 32), fontsize=9)
        axes.set_ylim(low - margin, high + margin)
    for axes in panels[max(0, shown - columns) :]:
        axes.set_xlabel(words(str(individuals.columns.get("time", "time")), 32), fontsize=9)
    for axes in panels[::columns]:
        axes.set_ylabel(words(str(individuals.columns.get("value", "value")), 32), fontsize=9)
    _finish(figure, panels, saved, "individuals", shown, count)
    alt = (
        f"Measured values, fitted curves with {100 * saved.level:.3g} % intervals, and the "
        f"population's curve, of {shown} of {count} individuals, times "
        f"{individuals.times.min():.4g} to {individuals.times.max():.4g}."
    )
    return Picture(figure, alt, _left_out(shown, count, "individuals"))
