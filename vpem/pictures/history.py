"""The course of a fit: log-likelihood or inertia by iteration and root, and against bytes.

Also mean field and objective of FedEM runs against epochs and bytes, and of a selection the
criterion by number of components.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Mask
from vpem.errors import InputError
from vpem.fits.selection.search import Selection
from vpem.fits.selection.trials import name_hops
from vpem.network.schema import Report
from vpem.pictures.figure import (
    BAND,
    CURVE,
    INK,
    RULE,
    WIDTH,
    LineStyle,
    Picture,
    contender,
    hub_colour,
    legend_below,
    line,
    marker,
    new_figure,
    of_bytes,
    tidy,
    whole_numbers,
    words,
)
from vpem.pictures.saved import History, SavedFit
from vpem.rules import ALGORITHMS
from vpem.steps.fedem_sums import FedHistory

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

LEAST = 1e-300

LABELS = {
    "bic": "BIC (lower is better)",
    "sabic": "sample-size adjusted BIC (lower is better)",
    "caic": "CAIC (lower is better)",
    "aic": "AIC (lower is better)",
    "icl": "ICL (lower is better)",
    "heldout": "held-out log-likelihood per sample (higher is better)",
}

MARK = 6.5
"""Points across a mark."""

SAME = 0.01
"""Share of the height within which marks lie on one another."""

Place = tuple[float, float]

OBJECTIVE = "log-likelihood per sample (nats)"
IN_TWO_LINES = (" per sample (nats)", "\nper sample (nats)")
"""Where the name of a quantity is broken."""

Line = tuple[tuple[int, ...], str]
"""Numbers of hops, and a covariance type."""


def draw_history(saved: SavedFit, over: Sequence[SavedFit] = ()) -> Picture:
    """Draw the history of a fit, root by root where they differ.

    Panels: the value against iterations and against bytes, its change from one iteration to the
    next, and how far roots are apart, or FedEM's mean field. With others laid ``over`` it the value
    alone, the mean over those that were fitted alike.
    """
    if over:
        return _mean_histories([saved, *over])
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


def _mean_histories(fits: Sequence[SavedFit]) -> Picture:
    """Draw the mean value by iteration of each group of fits, and the range of its runs.

    What has converged stays where it is until the longest of its group ends.
    """
    groups: dict[str, list[Doubles]] = {}
    quantities: dict[str, None] = {}
    for one in fits:
        history = one.history()
        quantities[history.quantity] = None
        groups.setdefault(_how_fitted(one), []).append(history.means())
    if len(quantities) > 1:
        raise InputError(f"{' and '.join(quantities)} have no axis in common; draw them apart")
    figure = new_figure(WIDTH, 4.0)
    axes = figure.add_subplot()
    tidy(axes)
    for number, (name, curves) in enumerate(groups.items()):
        longest = max(map(len, curves))
        values = np.array([np.pad(one, (0, longest - len(one)), "edge") for one in curves])
        runs = f", mean of {len(curves)} runs" if len(curves) > 1 else ""
        across, shade = np.arange(1, longest + 1), contender(number)
        axes.plot(across, values.mean(axis=0), color=shade, linestyle=line(number),
                  label=words(name + runs, 80))  # fmt: skip
        if len(curves) > 1:
            axes.fill_between(across, values.min(axis=0), values.max(axis=0), color=shade,
                              alpha=0.15, linewidth=0)  # fmt: skip
    [quantity] = quantities
    axes.set(xscale="log", xlabel="iteration", ylabel=quantity)
    axes.xaxis.set_major_formatter("{x:g}")
    legend_below(figure, axes.get_legend_handles_labels()[0])
    return Picture(figure, f"{quantity} by iteration: {'; '.join(groups)}.")


def _how_fitted(one: SavedFit) -> str:
    """Say by which algorithm and over which network a fit was made, the same of all like it."""
    name, agents = str(one.report.get("algorithm")), one.reported("n_agents", int) or 1
    pooled = agents == 1 and name in ("vp-em", "em-rows")
    parts = ["EM" if pooled else ALGORITHMS.get(name, "a fit"), f"K = {one.n_components}"]
    if agents > 1:
        parts.append(f"{agents} {'workers' if one.over_rows else 'agents'}")
        parts += [str(one.report.get(key)) for key in ("topology", "sum") if one.report.get(key)]
        parts += [f"hops {hops}"] if (hops := one.reported("hops", int)) is not None else []
    return ", ".join(dict.fromkeys(parts))


def _spread(values: Doubles) -> Doubles:
    """How far roots are apart in each iteration, (n,)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        spread = np.nanmax(values, axis=1) - np.nanmin(values, axis=1)
    return np.where(np.isfinite(spread), spread, 0.0)


def _marks(n: int, number: int = 0) -> Report:
    return {"marker": marker(number), "markersize": 4} if n <= MARKED else {}


def _height(values: Doubles) -> tuple[float, float]:
    """How high a panel of these values is, and its middle; rounding is not magnified."""
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
    axes.set(xlabel=_x_of(history), ylabel=history.quantity.replace(*IN_TWO_LINES))
    _whole_numbers(axes, history)
    events = saved.reported("recoveries", list) or []
    iterations = [event.get("iteration") for event in events if isinstance(event, dict)]
    placed = {at for at in iterations if isinstance(at, int)}
    for at in sorted(placed):
        axes.axvline(at, color=RULE, linestyle=":", linewidth=1.0)
    if placed:
        _tell(axes, "dotted: a component was reinitialised")


def _whole_numbers(axes: Axes, history: History) -> None:
    whole_numbers(axes.xaxis)
    first, last = history.iteration[[0, -1]]
    edge = 0.04 * (last - first) or 0.5
    axes.set_xlim(first - edge, last + edge)


def _against_bytes(axes: Axes, history: History, saved: SavedFit) -> None:
    assert history.sent is not None
    unit, name = of_bytes(history.sent)
    _lines(axes, history.sent / unit, history, "worker" if saved.over_rows else "root")
    what = history.quantity.replace(*IN_TWO_LINES)
    axes.set(xlabel=f"sent by then ({name})", ylabel=what)
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


def _changes(history: History) -> tuple[Mask, Doubles]:
    """Where the value changed from one iteration to the next, and by how much."""
    change = np.abs(np.diff(history.means()))
    return np.isfinite(change) & (change > 0), change


def _curve(
    axes: Axes, history: History, values: Doubles, there: Mask, label: str, log: bool = True
) -> None:
    steps = history.iteration[-len(values) :][there]
    axes.plot(steps, values[there], color=CURVE, **_marks(len(steps)))
    axes.set(xlabel=_x_of(history), ylabel=label)
    if log and len(steps):
        axes.set_yscale("log")
    _whole_numbers(axes, history)


def _change(axes: Axes, history: History, saved: SavedFit) -> None:
    there, change = _changes(history)
    _curve(axes, history, change, there, f"change of {history.quantity.split(' per')[0]}")
    if history.tol is not None:
        axes.axhline(history.tol, color=RULE, linestyle="--", linewidth=1.0)
        axes.annotate(
            f" tol {history.tol:g}", (0.0, history.tol), xycoords=("axes fraction", "data"),
            ha="left", va="bottom", fontsize=8, color=INK,
        )  # fmt: skip


def _apart(axes: Axes, history: History, saved: SavedFit) -> None:
    spread = _spread(history.values)
    there, noun = spread > 0, "workers" if saved.over_rows else "roots"
    log = bool(spread.max() > 30 * spread[there].min())
    _curve(axes, history, spread, there, f"between highest and lowest\nof {noun}", log)
    if not log:
        axes.set_ylim(0, 1.1 * spread.max())
        axes.ticklabel_format(axis="y", scilimits=(-3, 4))


def _mean_field(axes: Axes, history: History, saved: SavedFit) -> None:
    assert history.mean_field is not None
    _curve(axes, history, history.mean_field, history.mean_field > 0, "squared mean field")


def draw_histories(histories: Sequence[tuple[str, Sequence[FedHistory]]], *, title: str) -> Picture:
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
    panels[1, 0].set(ylabel=OBJECTIVE)
    # What runs astray for a moment, or for good, would leave no room for the others.
    low, high = min(float(np.median(lows)), highs[0]), max(highs)
    if high > low and len(histories) > 1:
        panels[1, 0].set_ylim(low - 0.1 * (high - low), high + 0.05 * (high - low))
    panels[1, 0].set(xlabel="epochs")
    panels[1, 1].set(xlabel="MB sent by workers")
    for axes in panels.flat:
        tidy(axes)
    figure.suptitle(title, fontsize=11)
    if len(histories) > 1:
        legend_below(figure, panels[0, 0].get_legend_handles_labels()[0], size=10)
    listed = ", ".join(name for name, _ in histories)
    return Picture(figure, f"Mean field and {OBJECTIVE} against epochs and bytes: {listed}.")


def _draw(
    axes: Axes,
    runs: Sequence[FedHistory],
    what: tuple[bool, bool],
    style: tuple[str, LineStyle],
    name: str,
) -> Doubles:
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


def draw_selection(selection: Selection) -> Picture:
    """Draw the criterion by number of components, a line for each of hops and covariance type.

    Lines differ in colour, mark and dashes, and in the width of their bars' ends. Bars show the
    restarts from the least to the largest, or one standard error of the held-out likelihood up and
    down. Open marks did not converge or have degenerate components, what failed is not there, and
    the best is ringed. Of marks on one spot those drawn first are larger, so that none hides
    another.
    """
    criterion, cells = selection.criterion, selection.cells
    line_of: list[Line] = [
        (tuple(cell["stands_for_hops"]), cell["covariance_type"]) for cell in cells
    ]
    lines = list(dict.fromkeys(line_of))
    figure = new_figure(WIDTH, 5.0)
    axes = figure.add_subplot()
    places: dict[int, Place] = {}
    for number, one in enumerate(lines):
        indices = [index for index, line in enumerate(line_of) if line == one]
        places |= _draw_line(axes, selection, indices, number, _label(one, lines))
    # Larger marks of cells on which others lie, below those: each stays in sight.
    heights = [y for _, y in places.values()]
    near = SAME * (max(heights) - min(heights))
    drawn = list(places)
    for at, index in enumerate(drawn):
        x, y = places[index]
        above = sum(
            places[other][0] == x and abs(places[other][1] - y) <= near for other in drawn[at + 1 :]
        )
        if above:
            number = lines.index(line_of[index])
            _mark(axes, (x, y), number, _is_sound(cells[index]), 6 * above, 0.01 * above)
    choice = selection.choice
    axes.scatter(
        *places[choice.best], s=260, facecolors="none", edgecolors="black", linewidths=1.8,
        zorder=5, label="best",
    )  # fmt: skip
    if choice.one_standard_error is not None:
        best = cells[choice.best]
        axes.axhline(
            best["heldout"] - best["standard_error"], color=RULE, linewidth=0.9,
            linestyle=(0, (2, 2)), zorder=1, label="best less 1 standard error",
        )  # fmt: skip
        axes.scatter(
            *places[choice.one_standard_error], s=330, marker="s", facecolors="none",
            edgecolors="black", linewidths=1.2, zorder=5,
            label="fewest parameters\nwithin 1 standard error",
        )  # fmt: skip
    axes.set_xlabel("components")
    axes.set_ylabel(LABELS[criterion])
    whole_numbers(axes.xaxis)
    tidy(axes, "y")
    parts = [f"best: {selection.grid[choice.best]}"]
    if criterion == "heldout":
        folds = next(cell["folds"] for cell in cells if "folds" in cell)
        parts.append(f"bars: 1 standard error over {len(folds)} folds")
    elif any(len(cell.get("restarts", ())) > 1 for cell in cells):
        parts.append("bars: least to largest of the restarts")
    done = [cell for cell in cells if cell["status"] != "failed"]
    why = ["not converged"] * any(cell["status"] == "not converged" for cell in done)
    why += ["degenerate"] * any(cell["degenerate"] for cell in done)
    if why:
        parts.append(f"open marks: {' or '.join(why)}")
    if len(done) < len(cells):
        parts.append(f"{len(cells) - len(done)} failed")
    title = ";  ".join(parts)
    axes.set_title(title.replace(";  bars", "\nbars"), fontsize=10, loc="left")
    legend_below(figure, axes.get_legend_handles_labels()[0], size=9, markerscale=0.6)
    return Picture(figure, f"{LABELS[criterion]} of {len(cells)} models; {title}.")


def _label(one: Line, lines: list[Line]) -> str:
    hops = name_hops(one[0])
    if len({other[1] for other in lines}) == 1:
        return hops
    return one[1] if len({other[0] for other in lines}) == 1 else f"{hops}, {one[1]}"


def _draw_line(
    axes: Axes, selection: Selection, indices: list[int], number: int, label: str
) -> dict[int, Place]:
    cells, criterion = selection.cells, selection.criterion
    there = {
        index: (cells[index]["n_components"], cells[index][criterion])
        for index in indices
        if cells[index]["status"] != "failed"
    }
    # A line is broken where a model failed.
    across, up = zip(
        *(there.get(index, (cells[index]["n_components"], np.nan)) for index in indices),
        strict=True,
    )
    axes.plot(
        across, up, color=contender(number), linewidth=1.4, linestyle=line(number),
        marker=marker(number), markersize=MARK, markeredgecolor="black", markeredgewidth=0.6,
        label=label, zorder=3,
    )  # fmt: skip
    for index, (x, y) in there.items():
        cell = cells[index]
        if criterion == "heldout":
            low, high = y - cell["standard_error"], y + cell["standard_error"]
        else:
            values = [one[criterion] for one in cell["restarts"]]
            low, high = min(values), max(values)
        if high > low:
            axes.errorbar(
                x, y, yerr=[[max(y - low, 0)], [max(high - y, 0)]], color=contender(number),
                linewidth=1.0, capsize=2 + 1.5 * number, zorder=2,
            )  # fmt: skip
        if not _is_sound(cells[index]):
            _mark(axes, (x, y), number, sound=False)
    return there


def _mark(
    axes: Axes, place: Place, number: int, sound: bool, more: float = 0.0, below: float = 0.0
) -> None:
    colour = contender(number)
    axes.plot(
        *place, linestyle="", marker=marker(number), markersize=MARK + more,
        markerfacecolor=colour if sound else "white",
        markeredgecolor="black" if sound else colour,
        markeredgewidth=0.6 if sound else 1.4, zorder=3 - below,
    )  # fmt: skip


def _is_sound(cell: Report) -> bool:
    return cell["status"] == "converged" and not cell["degenerate"]
