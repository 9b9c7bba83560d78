"""A picture of a selection: the criterion by number of components."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from vpem.fits.selection.search import Selection
from vpem.fits.selection.trials import name_hops
from vpem.pictures.figure import check_picture, save_figure, whole_numbers

__all__ = ["LABELS", "draw_selection", "plot_selection"]

LABELS = {
    "bic": "BIC (lower is better)",
    "aic": "AIC (lower is better)",
    "icl": "ICL (lower is better)",
    "heldout": "held-out log-likelihood per sample (higher is better)",
}

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's without the yellow, which is too light for a line."""

MARK = 6.5
"""Points across a mark."""

SAME = 0.01
"""Share of the height within which marks lie on one another."""

MARKERS = "osD^vPX<>h"
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)))


def plot_selection(
    path: str | os.PathLike[str], selection: Selection, *, force: bool = False
) -> None:
    """Draw the criterion by number of components, a line for each of hops and covariance type.

    Lines differ in colour, mark and dashes, and in the width of their bars' ends. Bars show the
    restarts from the least to the largest, or one standard error of the held-out likelihood up and
    down. Open marks did not converge, what failed is not there, and the best is ringed. Of marks on
    one spot those drawn first are larger, so that none hides another.

    Parameters
    ----------
    path : path
        A .png, .svg or .pdf file, written completely or not at all.
    selection : Selection
        From `vpem.fits.selection.search.search`.
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
    save_figure(path, draw_selection(selection), force=force, dpi=150)


def draw_selection(selection: Selection) -> Any:
    """Return the figure of `plot_selection`."""
    from matplotlib.figure import Figure

    criterion, cells = selection.criterion, selection.cells
    kinds = list(dict.fromkeys(_kind(cell) for cell in cells))
    figure = Figure(figsize=(8.5, 5.0), layout="constrained")
    axes = figure.add_subplot()
    places: dict[int, tuple[float, float]] = {}
    for number, kind in enumerate(kinds):
        own = [index for index, cell in enumerate(cells) if _kind(cell) == kind]
        label = _label(kind, kinds)
        places |= _draw_line(axes, selection, own, number, label)
    _draw_hidden(axes, selection, kinds, places)
    choice = selection.choice
    axes.scatter(*places[choice.best], s=260, facecolors="none", edgecolors="black",
                 linewidths=1.8, zorder=5, label="best")  # fmt: skip
    if choice.one_standard_error is not None:
        best = cells[choice.best]
        axes.axhline(
            best["heldout"] - best["standard_error"],
            color="#666666",
            linewidth=0.9,
            linestyle=(0, (2, 2)),
            zorder=1,
            label="best less 1 standard error",
        )
        axes.scatter(
            *places[choice.one_standard_error],
            s=330,
            marker="s",
            facecolors="none",
            edgecolors="black",
            linewidths=1.2,
            zorder=5,
            label="fewest parameters\nwithin 1 standard error",
        )
    axes.set_xlabel("components")
    axes.set_ylabel(LABELS[criterion])
    whole_numbers(axes.xaxis)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(_title(selection), fontsize=10)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9, markerscale=0.6)
    return figure


Kind = tuple[tuple[int, ...], str]
"""Numbers of hops, and a covariance type."""


def _kind(cell: dict[str, Any]) -> Kind:
    """Say to which line a cell belongs."""
    return tuple(cell["stands_for_hops"]), cell["covariance_type"]


def _label(kind: Kind, kinds: list[Kind]) -> str:
    """Name a line by what tells it from the others."""
    hops = name_hops(kind[0])
    if len({other[1] for other in kinds}) == 1:
        return hops
    return kind[1] if len({other[0] for other in kinds}) == 1 else f"{hops}, {kind[1]}"


def _draw_line(
    axes: Any, selection: Selection, own: list[int], number: int, label: str
) -> dict[int, tuple[float, float]]:
    """Draw the cells of one line, and return where each is."""
    cells, criterion = selection.cells, selection.criterion
    colour = COLOURS[number % len(COLOURS)]
    marker = MARKERS[number % len(MARKERS)]
    there = {
        index: (cells[index]["n_components"], cells[index][criterion])
        for index in own
        if cells[index]["status"] != "failed"
    }
    # A line is broken where a model failed.
    line = [there.get(index, (cells[index]["n_components"], np.nan)) for index in own]
    axes.plot(*np.transpose(line), color=colour, linewidth=1.4,
              linestyle=DASHES[number % len(DASHES)], marker=marker, markersize=MARK,
              markeredgecolor="black", markeredgewidth=0.6, label=label, zorder=3)  # fmt: skip
    for index, (x, y) in there.items():
        low, high = _spread(cells[index], criterion)
        if high > low:
            axes.errorbar(x, y, yerr=[[max(y - low, 0)], [max(high - y, 0)]], color=colour,
                          linewidth=1.0, capsize=2 + 1.5 * number, zorder=2)  # fmt: skip
        if cells[index]["status"] != "converged":
            shape: dict[str, Any] = {"marker": marker, "markersize": MARK, "linestyle": ""}
            edge = {"markeredgecolor": colour, "markeredgewidth": 1.4}
            axes.plot(x, y, markerfacecolor="white", zorder=3, **shape, **edge)
    return there


def _draw_hidden(
    axes: Any, selection: Selection, kinds: list[Kind], places: dict[int, tuple[float, float]]
) -> None:
    """Draw larger marks of cells on which others lie, below those: each stays in sight."""
    heights = [y for _, y in places.values()]
    near = SAME * (max(heights) - min(heights))
    drawn = list(places)
    for at, index in enumerate(drawn):
        x, y = places[index]
        above = sum(
            places[other][0] == x and abs(places[other][1] - y) <= near for other in drawn[at + 1 :]
        )
        if above:
            cell = selection.cells[index]
            number = kinds.index(_kind(cell))
            colour = COLOURS[number % len(COLOURS)]
            done = cell["status"] == "converged"
            axes.plot(x, y, linestyle="", marker=MARKERS[number % len(MARKERS)],
                      markersize=MARK + 6 * above, markerfacecolor=colour if done else "white",
                      markeredgecolor="black" if done else colour,
                      markeredgewidth=0.6 if done else 1.4, zorder=3 - 0.01 * above)  # fmt: skip


def _spread(cell: dict[str, Any], criterion: str) -> tuple[float, float]:
    """Return from where to where the bar of a cell goes."""
    if criterion == "heldout":
        return (
            cell["heldout"] - cell["standard_error"],
            cell["heldout"] + cell["standard_error"],
        )
    values = [one[criterion] for one in cell["restarts"]]
    return min(values), max(values)


def _title(selection: Selection) -> str:
    """Say what is best, and what bars and marks mean."""
    best = selection.grid[selection.choice.best]
    cells = selection.cells
    parts = [f"best: {best}"]
    if selection.criterion == "heldout":
        parts.append(f"bars: 1 standard error over {len(_folds(cells))} folds")
    elif any(len(cell.get("restarts", ())) > 1 for cell in cells):
        parts.append("bars: least to largest of the restarts")
    if any(cell["status"] == "not converged" for cell in cells):
        parts.append("open marks: not converged")
    failed = sum(cell["status"] == "failed" for cell in cells)
    if failed:
        parts.append(f"{failed} failed")
    return ";  ".join(parts)


def _folds(cells: list[dict[str, Any]]) -> list[float]:
    return next(cell["folds"] for cell in cells if "folds" in cell)
