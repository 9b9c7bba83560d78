"""A picture of a selection: the criterion by number of components."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vpem.fits.selection.search import Selection
from vpem.fits.selection.trials import name_hops
from vpem.network.schema import Report
from vpem.pictures.figure import WIDTH, Picture, legend_below, new_figure
from vpem.pictures.style import RULE, contender, line, marker, tidy, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LABELS = {
    "bic": "BIC (lower is better)",
    "aic": "AIC (lower is better)",
    "icl": "ICL (lower is better)",
    "heldout": "held-out log-likelihood per sample (higher is better)",
}

MARK = 6.5
"""Points across a mark."""

SAME = 0.01
"""Share of the height within which marks lie on one another."""

Line = tuple[tuple[int, ...], str]
"""Numbers of hops, and a covariance type."""


def draw_selection(selection: Selection) -> Picture:
    """Draw the criterion by number of components, a line for each of hops and covariance type.

    Lines differ in colour, mark and dashes, and in the width of their bars' ends. Bars show the
    restarts from the least to the largest, or one standard error of the held-out likelihood up and
    down. Open marks did not converge or have degenerate components, what failed is not there, and
    the best is ringed. Of marks on one spot those drawn first are larger, so that none hides
    another.
    """
    criterion, cells = selection.criterion, selection.cells
    lines = list(dict.fromkeys(_line(cell) for cell in cells))
    figure = new_figure(WIDTH, 5.0)
    axes = figure.add_subplot()
    places: dict[int, tuple[float, float]] = {}
    for number, one in enumerate(lines):
        own = [index for index, cell in enumerate(cells) if _line(cell) == one]
        places |= _draw_line(axes, selection, own, number, _label(one, lines))
    _draw_hidden(axes, selection, lines, places)
    _draw_choice(axes, selection, places)
    axes.set_xlabel("components")
    axes.set_ylabel(LABELS[criterion])
    whole_numbers(axes.xaxis)
    tidy(axes, "y")
    title = _title(selection)
    axes.set_title(title.replace(";  bars", "\nbars"), fontsize=10, loc="left")
    legend_below(figure, axes.get_legend_handles_labels()[0], size=9, markerscale=0.6)
    return Picture(figure, f"{LABELS[criterion]} of {len(cells)} models; {title}.")


def _draw_choice(axes: Axes, selection: Selection, places: dict[int, tuple[float, float]]) -> None:
    """Ring the best, and draw how near to it others are."""
    choice = selection.choice
    x, y = places[choice.best]
    axes.scatter(
        x, y, s=260, facecolors="none", edgecolors="black", linewidths=1.8, zorder=5, label="best"
    )
    if choice.one_standard_error is None:
        return
    best = selection.cells[choice.best]
    axes.axhline(
        best["heldout"] - best["standard_error"], color=RULE, linewidth=0.9,
        linestyle=(0, (2, 2)), zorder=1, label="best less 1 standard error",
    )  # fmt: skip
    x, y = places[choice.one_standard_error]
    axes.scatter(
        x, y, s=330, marker="s", facecolors="none", edgecolors="black", linewidths=1.2, zorder=5,
        label="fewest parameters\nwithin 1 standard error",
    )  # fmt: skip


def _line(cell: Report) -> Line:
    """Say to which line a cell belongs."""
    return tuple(cell["stands_for_hops"]), cell["covariance_type"]


def _label(one: Line, lines: list[Line]) -> str:
    """Name a line by what tells it from the others."""
    hops = name_hops(one[0])
    if len({other[1] for other in lines}) == 1:
        return hops
    return one[1] if len({other[0] for other in lines}) == 1 else f"{hops}, {one[1]}"


def _draw_line(
    axes: Axes, selection: Selection, own: list[int], number: int, label: str
) -> dict[int, tuple[float, float]]:
    """Draw the cells of one line, and return where each is."""
    cells, criterion = selection.cells, selection.criterion
    there = {
        index: (cells[index]["n_components"], cells[index][criterion])
        for index in own
        if cells[index]["status"] != "failed"
    }
    # A line is broken where a model failed.
    across, up = zip(
        *(there.get(index, (cells[index]["n_components"], np.nan)) for index in own), strict=True
    )
    axes.plot(
        across, up, color=contender(number), linewidth=1.4, linestyle=line(number),
        marker=marker(number), markersize=MARK, markeredgecolor="black", markeredgewidth=0.6,
        label=label, zorder=3,
    )  # fmt: skip
    for index, (x, y) in there.items():
        low, high = _spread(cells[index], criterion)
        if high > low:
            axes.errorbar(
                x, y, yerr=[[max(y - low, 0)], [max(high - y, 0)]], color=contender(number),
                linewidth=1.0, capsize=2 + 1.5 * number, zorder=2,
            )  # fmt: skip
        if not _is_sound(cells[index]):
            _mark(axes, (x, y), number, sound=False)
    return there


def _mark(
    axes: Axes,
    place: tuple[float, float],
    number: int,
    sound: bool,
    more: float = 0.0,
    below: float = 0.0,
) -> None:
    """Draw the mark of one cell, open where it is not sound."""
    own = contender(number)
    axes.plot(
        *place, linestyle="", marker=marker(number), markersize=MARK + more,
        markerfacecolor=own if sound else "white",
        markeredgecolor="black" if sound else own,
        markeredgewidth=0.6 if sound else 1.4, zorder=3 - below,
    )  # fmt: skip


def _draw_hidden(
    axes: Axes, selection: Selection, lines: list[Line], places: dict[int, tuple[float, float]]
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
            number = lines.index(_line(cell))
            _mark(axes, (x, y), number, _is_sound(cell), 6 * above, 0.01 * above)


def _is_sound(cell: Report) -> bool:
    """Whether a cell converged, and has no degenerate components."""
    return cell["status"] == "converged" and not cell["degenerate"]


def _spread(cell: Report, criterion: str) -> tuple[float, float]:
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
        folds = next(cell["folds"] for cell in cells if "folds" in cell)
        parts.append(f"bars: 1 standard error over {len(folds)} folds")
    elif any(len(cell.get("restarts", ())) > 1 for cell in cells):
        parts.append("bars: least to largest of the restarts")
    done = [cell for cell in cells if cell["status"] != "failed"]
    why = ["not converged"] * any(cell["status"] == "not converged" for cell in done)
    why += ["degenerate"] * any(cell["degenerate"] for cell in done)
    if why:
        parts.append(f"open marks: {' or '.join(why)}")
    failed = sum(cell["status"] == "failed" for cell in cells)
    if failed:
        parts.append(f"{failed} failed")
    return ";  ".join(parts)
