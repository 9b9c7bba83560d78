"""How a fit went: log-likelihood or inertia by iteration and root, and against bytes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.pictures.figure import whole_numbers
from vpem.pictures.saved import Record, Saved
from vpem.pictures.style import Picture, colour, line, marker, new_figure, of_bytes, tidy

__all__ = ["draw_history"]

MOST_LINES = 8
"""Roots up to which each has a line of its own."""

APART = 0.004
"""Share of the panel's height below which lines of roots lie on one another."""

LEAST_HEIGHT = 1e-4
"""Of a panel, relative to its values."""

MARKED = 40
"""Iterations up to which each has a mark."""


def draw_history(saved: Saved) -> Picture:
    """Draw the history of a fit, root by root where they differ.

    Panels: the value against iterations and against bytes, its change from one iteration to the
    next, and how far roots are apart, or FedEM's mean field.
    """
    record = saved.record()
    notes: list[str] = []
    panels = [_value, _change]
    if record.sent is not None:
        if record.sent[-1] > 0:
            panels.insert(1, _against_bytes)
    else:
        notes.append(f"{saved.path} does not say what was sent by which iteration")
    if record.mean_field is not None:
        panels.append(_mean_field)
    elif np.nanmax(_spread(record.values)) > 0:
        panels.append(_apart)
    rows = 1 if len(panels) <= 2 else 2
    figure = new_figure(9.0, 3.4 if rows == 1 else 6.0)
    grid = figure.subplots(rows, 2, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_axis_off()
            continue
        tidy(axes)
        panels[place](axes, record, saved)
    for axes in grid.flat[len(panels) :]:
        _say_end(axes, record, saved)
    noun = "worker" if saved.over_rows else "root"
    n, roots = record.values.shape
    figure.suptitle(
        f"{record.quantity}: {n} {'record' if record.mean_field is not None else 'iteration'}"
        f"{'' if n == 1 else 's'}" + (f", {roots} {noun}s" if roots > 1 else ""),
        fontsize=11,
    )
    first, last = _mean(record.values)[[0, -1]]
    alt = f"Curves of the {record.quantity}, from {first:.6g} to {last:.6g} in {n} steps."
    return Picture(figure, alt, notes)


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over roots that were heard; nan where none was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values, axis=1))


def _spread(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far roots are apart in each iteration, (n,)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = np.nanmax(values, axis=1) - np.nanmin(values, axis=1)
    return np.where(np.isfinite(found), found, 0.0)


def _marks(n: int, number: int = 0) -> dict[str, Any]:
    return {"marker": marker(number), "markersize": 3.5} if n <= MARKED else {}


def _height(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return how high a panel of these values is, and its middle; rounding is not magnified."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    middle = (low + high) / 2
    return max(high - low, LEAST_HEIGHT * abs(middle), 1e-12), middle


def _lines(axes: Any, across: NDArray[Any], record: Record, noun: str) -> None:
    """Draw a line a root; one for all where they could not be told apart, a band for many."""
    values = record.values
    n, roots = values.shape
    mean, spread = _mean(values), float(_spread(values).max())
    height, middle = _height(values)
    axes.set_ylim(middle - 0.55 * height, middle + 0.55 * height)
    axes.ticklabel_format(axis="y", useOffset=False)
    if roots == 1 or spread <= APART * height:
        axes.plot(across, mean, color=colour(0), **_marks(n))
        if roots > 1:
            agree = "agree" if spread == 0 else f"at most {spread:.1g} apart"
            _tell(axes, f"all {roots} {noun}s, {agree}")
    elif roots <= MOST_LINES:
        for number, column in enumerate(values.T):
            style = {"color": colour(number), "linestyle": line(number)}
            axes.plot(across, column, label=f"{noun} {number}", **style, **_marks(n, number))
        _legend_below(axes)
    else:
        low, high = np.nanmin(values, axis=1), np.nanmax(values, axis=1)
        axes.fill_between(
            across, low, high, color="#BDBDBD", linewidth=0, label="lowest to highest"
        )
        axes.plot(across, mean, color=colour(0), label=f"mean of {roots} {noun}s", **_marks(n))
        _legend_below(axes)


def _legend_below(axes: Any) -> None:
    axes.legend(
        frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.45, -0.2),
        columnspacing=1.0, handlelength=2.6,
    )  # fmt: skip


def _tell(axes: Any, text: str, height: float = 0.05) -> None:
    """Write at the right, above the foot of a panel, where curves that rise leave room."""
    axes.text(
        0.98, height, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=8,
        color="#333333",
    )  # fmt: skip


def _x_of(record: Record) -> str:
    return "iteration (0: the start)" if record.mean_field is not None else "iteration"


def _value(axes: Any, record: Record, saved: Saved) -> None:
    noun = "worker" if saved.over_rows else "root"
    _lines(axes, record.iteration, record, noun)
    axes.set(xlabel=_x_of(record), ylabel=_short(record))
    _whole_numbers(axes, record)
    events = saved.told("recoveries", list) or []
    found = [event.get("iteration") for event in events if isinstance(event, dict)]
    placed = {at for at in found if isinstance(at, int)}
    for at in sorted(placed):
        axes.axvline(at, color="#555555", linestyle=":", linewidth=1.0)
    if placed:
        _tell(axes, "dotted: a component was placed anew", 0.16)


def _short(record: Record) -> str:
    return record.quantity.replace(" per sample (nats)", "\nper sample (nats)")


def _whole_numbers(axes: Any, record: Record) -> None:
    whole_numbers(axes.xaxis)
    first, last = record.iteration[[0, -1]]
    edge = 0.04 * (last - first) or 0.5
    axes.set_xlim(first - edge, last + edge)


def _against_bytes(axes: Any, record: Record, saved: Saved) -> None:
    assert record.sent is not None
    unit, name = of_bytes(record.sent)
    _lines(axes, record.sent / unit, record, "worker" if saved.over_rows else "root")
    axes.set(xlabel=f"sent by then ({name})", ylabel=_short(record))
    setup = saved.sent_by_kind().get("setup", {}).get("bytes", 0.0)
    # Every restart before the one that was kept has sent its own.
    again = saved.told("restart", int) or 0
    if record.sent[-1] > record.sent[0] > 0:
        axes.set_xlim(left=0)
    if 0 < setup < record.sent[-1] and not again:
        axes.axvline(setup / unit, color="#555555", linestyle=":", linewidth=1.0)
        _tell(axes, f"dotted: setup, {100 * setup / record.sent[-1]:.2g} %", 0.16)
    elif again:
        _tell(axes, "with all restarts before", 0.16)


def _change(axes: Any, record: Record, saved: Saved) -> None:
    change = np.abs(np.diff(_mean(record.values)))
    there = np.isfinite(change) & (change > 0)
    axes.set(xlabel=_x_of(record), ylabel=f"change of {record.quantity.split(' per')[0]}")
    _whole_numbers(axes, record)
    if not there.any():
        _tell(axes, "no change")
        axes.set_yticks([])
        return
    steps = record.iteration[1:][there]
    axes.plot(steps, change[there], color=colour(2), **_marks(len(steps)))
    axes.set_yscale("log")
    _whole_numbers(axes, record)
    if record.tol is not None:
        axes.axhline(record.tol, color="#555555", linestyle="--", linewidth=1.0)
        axes.annotate(
            f" tol {record.tol:g}", (0.0, record.tol), xycoords=("axes fraction", "data"),
            ha="left", va="bottom", fontsize=8, color="#333333",
        )  # fmt: skip


def _apart(axes: Any, record: Record, saved: Saved) -> None:
    spread = _spread(record.values)
    there = spread > 0
    noun = "workers" if saved.over_rows else "roots"
    axes.plot(record.iteration[there], spread[there], color=colour(4), **_marks(int(there.sum())))
    if spread.max() > 30 * spread[there].min():
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.1 * spread.max())
        axes.yaxis.get_major_formatter().set_powerlimits((-3, 4))
    axes.set(xlabel=_x_of(record), ylabel=f"between highest and lowest\nof {noun}")
    _whole_numbers(axes, record)


def _mean_field(axes: Any, record: Record, saved: Saved) -> None:
    assert record.mean_field is not None
    there = record.mean_field > 0
    field = record.mean_field[there]
    axes.plot(record.iteration[there], field, color=colour(4), **_marks(len(field)))
    if len(field):
        axes.set_yscale("log")
    axes.set(xlabel=_x_of(record), ylabel="squared mean field")
    _whole_numbers(axes, record)


def _say_end(axes: Any, record: Record, saved: Saved) -> None:
    """Say in the panel that is left how it ended."""
    converged = saved.told("converged", bool)
    end = "" if converged is None else "converged" if converged else "not converged"
    value = _mean(record.values)[-1]
    lines = [f"last {record.quantity.split(' (')[0]}", f"{value:.7g}", end]
    axes.text(0.5, 0.5, "\n".join(lines), ha="center", va="center", transform=axes.transAxes)
