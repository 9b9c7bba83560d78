"""How a fit went: log-likelihood or inertia by iteration and root, and against bytes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.network.schema import Report
from vpem.pictures.figure import WIDTH, Picture, new_figure
from vpem.pictures.reported import History, SavedFit
from vpem.pictures.style import (
    BAND,
    CURVE,
    INK,
    RULE,
    hub_colour,
    line,
    marker,
    of_bytes,
    tidy,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_LINES = 8
"""Roots up to which each has a line of its own."""

APART = 0.004
"""Share of the panel's height below which lines of roots lie on one another."""

SEEN = 1e-3
"""Share of what the values changed by from which on a panel shows how far roots are apart."""

LEAST_HEIGHT = 1e-4
"""Of a panel, relative to its values."""

MARKED = 40
"""Iterations up to which each has a mark."""


def draw_history(saved: SavedFit) -> Picture:
    """Draw the history of a fit, root by root where they differ.

    Panels: the value against iterations and against bytes, its change from one iteration to the
    next, and how far roots are apart, or FedEM's mean field.
    """
    history = saved.history()
    notes: list[str] = []
    panels = [_value]
    if _changes(history)[0].any():
        panels.append(_change)
    if history.sent is not None:
        if history.sent[-1] > 0:
            panels.insert(1, _against_bytes)
    else:
        notes.append(f"{saved.path} does not say what was sent by which iteration")
    if history.mean_field is not None:
        panels.append(_mean_field)
    elif np.nanmax(_spread(history.values)) > SEEN * np.ptp(history.means()):
        panels.append(_apart)
    rows = 1 if len(panels) <= 2 else 2
    figure = new_figure(WIDTH, 3.4 if rows == 1 else 6.0)
    grid = figure.subplots(rows, 2, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_axis_off()
            continue
        tidy(axes)
        panels[place](axes, history, saved)
    for axes in grid.flat[len(panels) :]:
        converged = saved.reported("converged", bool)
        end = "" if converged is None else "converged" if converged else "not converged"
        value = f"{history.means()[-1]:.7g}".replace("-", "\N{MINUS SIGN}")
        lines = [f"last {history.quantity.split(' (')[0]}", value, end]
        axes.text(0.5, 0.5, "\n".join(lines), ha="center", va="center", transform=axes.transAxes)
    noun = "worker" if saved.over_rows else "root"
    n, roots = history.values.shape
    figure.suptitle(
        f"{history.quantity}: {n} {'record' if history.mean_field is not None else 'iteration'}"
        f"{'' if n == 1 else 's'}" + (f", {roots} {noun}s" if roots > 1 else ""),
        fontsize=11,
    )
    first, last = history.means()[[0, -1]]
    alt = f"Curves of the {history.quantity}, from {first:.6g} to {last:.6g} in {n} steps."
    return Picture(figure, alt, notes)


def _spread(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far roots are apart in each iteration, (n,)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = np.nanmax(values, axis=1) - np.nanmin(values, axis=1)
    return np.where(np.isfinite(found), found, 0.0)


def _marks(n: int, number: int = 0) -> Report:
    return {"marker": marker(number), "markersize": 4} if n <= MARKED else {}


def _height(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return how high a panel of these values is, and its middle; rounding is not magnified."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    middle = (low + high) / 2
    return max(high - low, LEAST_HEIGHT * abs(middle), 1e-12), middle


def _lines(axes: Axes, across: NDArray[np.number], history: History, noun: str) -> None:
    """Draw a line a root; one for all where they would lie on one another, a band for many."""
    values = history.values
    n, roots = values.shape
    mean, spread = history.means(), float(_spread(values).max())
    height, middle = _height(values)
    axes.set_ylim(middle - 0.55 * height, middle + 0.55 * height)
    axes.ticklabel_format(axis="y", useOffset=False)
    if roots == 1 or spread <= APART * height:
        axes.plot(across, mean, color=CURVE, **_marks(n))
        if roots > 1:
            agree = "agree" if spread == 0 else f"at most {spread:.1g} apart"
            _tell(axes, f"all {roots} {noun}s, {agree}")
    elif roots <= MOST_LINES:
        for number, column in enumerate(values.T):
            axes.plot(
                across, column, color=CURVE, linestyle=line(number), linewidth=1.1,
                label=f"{noun} {number}", markerfacecolor=hub_colour(number),
                markeredgewidth=0.6, **_marks(n, number),
            )  # fmt: skip
        _legend_below(axes)
    else:
        low, high = np.nanmin(values, axis=1), np.nanmax(values, axis=1)
        axes.fill_between(across, low, high, color=BAND, linewidth=0, label="lowest to highest")
        axes.plot(across, mean, color=CURVE, label=f"mean of {roots} {noun}s", **_marks(n))
        _legend_below(axes)


def _legend_below(axes: Axes) -> None:
    axes.legend(
        frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.45, -0.2),
        columnspacing=1.0, handlelength=2.6,
    )  # fmt: skip


def _tell(axes: Axes, text: str) -> None:
    """Write above a panel, at the right, where no curve goes; after what is there."""
    there = axes.get_title(loc="right")
    axes.set_title("; ".join(filter(None, (there, text))), loc="right", fontsize=8, color=INK)


def _x_of(history: History) -> str:
    return "iteration (0: the start)" if history.mean_field is not None else "iteration"


def _value(axes: Axes, history: History, saved: SavedFit) -> None:
    noun = "worker" if saved.over_rows else "root"
    _lines(axes, history.iteration, history, noun)
    axes.set(xlabel=_x_of(history), ylabel=_short(history))
    _whole_numbers(axes, history)
    events = saved.reported("recoveries", list) or []
    found = [event.get("iteration") for event in events if isinstance(event, dict)]
    placed = {at for at in found if isinstance(at, int)}
    for at in sorted(placed):
        axes.axvline(at, color=RULE, linestyle=":", linewidth=1.0)
    if placed:
        _tell(axes, "dotted: a component was placed anew")


def _short(history: History) -> str:
    return history.quantity.replace(" per sample (nats)", "\nper sample (nats)")


def _whole_numbers(axes: Axes, history: History) -> None:
    whole_numbers(axes.xaxis)
    first, last = history.iteration[[0, -1]]
    edge = 0.04 * (last - first) or 0.5
    axes.set_xlim(first - edge, last + edge)


def _against_bytes(axes: Axes, history: History, saved: SavedFit) -> None:
    assert history.sent is not None
    unit, name = of_bytes(history.sent)
    _lines(axes, history.sent / unit, history, "worker" if saved.over_rows else "root")
    axes.set(xlabel=f"sent by then ({name})", ylabel=_short(history))
    setup = saved.sent_by_kind().get("setup", {}).get("bytes", 0.0)
    # Every restart before the one that was kept has sent its own.
    again = saved.reported("restart", int) or 0
    if history.sent[-1] > history.sent[0] > 0:
        axes.set_xlim(0, 1.04 * history.sent[-1] / unit)
    if 0 < setup < history.sent[-1] and not again:
        axes.axvline(setup / unit, color=RULE, linestyle=":", linewidth=1.0)
        _tell(axes, f"dotted: setup, {100 * setup / history.sent[-1]:.2g} %")
    elif again:
        _tell(axes, "with all restarts before")


def _changes(history: History) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return where the value changed from one iteration to the next, and by how much."""
    change = np.abs(np.diff(history.means()))
    return np.isfinite(change) & (change > 0), change


def _change(axes: Axes, history: History, saved: SavedFit) -> None:
    there, change = _changes(history)
    axes.set(xlabel=_x_of(history), ylabel=f"change of {history.quantity.split(' per')[0]}")
    steps = history.iteration[1:][there]
    axes.plot(steps, change[there], color=CURVE, **_marks(len(steps)))
    axes.set_yscale("log")
    _whole_numbers(axes, history)
    if history.tol is not None:
        axes.axhline(history.tol, color=RULE, linestyle="--", linewidth=1.0)
        axes.annotate(
            f" tol {history.tol:g}", (0.0, history.tol), xycoords=("axes fraction", "data"),
            ha="left", va="bottom", fontsize=8, color=INK,
        )  # fmt: skip


def _apart(axes: Axes, history: History, saved: SavedFit) -> None:
    spread = _spread(history.values)
    there = spread > 0
    noun = "workers" if saved.over_rows else "roots"
    axes.plot(history.iteration[there], spread[there], color=CURVE, **_marks(int(there.sum())))
    if spread.max() > 30 * spread[there].min():
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.1 * spread.max())
        axes.ticklabel_format(axis="y", scilimits=(-3, 4))
    axes.set(xlabel=_x_of(history), ylabel=f"between highest and lowest\nof {noun}")
    _whole_numbers(axes, history)


def _mean_field(axes: Axes, history: History, saved: SavedFit) -> None:
    assert history.mean_field is not None
    there = history.mean_field > 0
    field = history.mean_field[there]
    axes.plot(history.iteration[there], field, color=CURVE, **_marks(len(field)))
    if len(field):
        axes.set_yscale("log")
    axes.set(xlabel=_x_of(history), ylabel="squared mean field")
    _whole_numbers(axes, history)
