"""Traces of fits: weights and mean field against epochs, of one run or the median of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from vpem.checks import Doubles
from vpem.errors import InputError
from vpem.files.traces import Trace
from vpem.pictures.figure import (
    CURVE,
    WIDTH,
    LineStyle,
    Picture,
    colour,
    contender,
    legend_below,
    line,
    new_figure,
    tidy,
    words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vpem.pictures.saved import Saved

LEAST = 1e-300
MOST_PARAMETERS = 15
"""Parameters of SAEM that have a panel."""

HALF = (0.25, 0.75)
"""Quantiles between which a band lies."""

LABELLED = 10
"""Components up to which a legend names each."""


def draw_trace(saved: Saved, more: Sequence[Trace] | None = None) -> Picture:
    """Draw a trace; with ``more`` of the same algorithm the median of all runs, and a band."""
    return draw_traces({"": [*saved.stored, *(more or ())]})


def no_page(saved: Saved, data: object = None) -> NoReturn:
    raise InputError(f"{saved.path} is a trace, of which there is a picture but no page; plot it")


def draw_traces(groups: Mapping[str, Sequence[Trace]]) -> Picture:
    """Draw weights against epochs, squared norms of mean field and move, and the objective.

    Each group of ``traces`` has a panel of its weights and a curve in the others: the median of
    its runs and the range of their middle half, at the iterates that all have. Components of
    several runs are matched by their last means. Of SAEM its parameters are drawn.
    """
    runs = {
        name: _matched([run for trace in traces for run in trace.runs()])
        for name, traces in groups.items()
    }
    first = next(iter(runs.values()))[0]
    if any(("theta" in run.records[0]["parameters"]) != ("theta" in first.records[0]["parameters"])
           for each in runs.values() for run in each):  # fmt: skip
        raise InputError("traces of SAEM have parameters of their own; draw them apart")
    panels: list[tuple[str, Callable[[Axes], None]]] = []
    notes: list[str] = []
    for name, each in runs.items():
        if "theta" in each[0].records[0]["parameters"]:
            panels += _parameters(each, notes)
        elif each[0].records[0]["weights"] is not None:
            panels.append((f"weights{', ' + name if name else ''}", _weights(each)))
    known = {
        quantity: {
            name: each for name, each in runs.items() if np.isfinite(each[0][quantity]).any()
        }
        for quantity in ("mean_field", "move", "objective")
    }
    labels = {
        "mean_field": r"mean field $\Vert h(S_k)\Vert^2$",
        "move": r"move $\Vert H_k\Vert^2$",
        "objective": "log-likelihood per sample",
    }
    for quantity, some in known.items():
        if some:
            panels.append((labels[quantity], _curves(some, quantity)))
    if not panels:
        raise InputError("the trace has no weights, moves or objectives that could be drawn")
    wide = min(2 if len(panels) < 5 else 3, len(panels))
    high = -(-len(panels) // wide)
    figure = new_figure(WIDTH, max(2.4 * high, 3.2) + 0.3)
    grid = figure.subplots(high, wide, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (label, fill) in zip(grid.flat, panels, strict=False):
        tidy(axes)
        fill(axes)
        if axes.get_yscale() == "linear":
            axes.ticklabel_format(axis="y", useOffset=False)
        axes.set_title(label, fontsize=9.5)
        axes.set_xlabel("epochs")
    n = max(len(each) for each in runs.values())
    if n > 1:
        notes.append(
            f"lines are medians of {n} runs, bands their middle half; components are matched by "
            "their last means"
        )
    handles: dict[str, Any] = {}
    for axes in grid.flat[: len(panels)]:
        found = zip(*axes.get_legend_handles_labels(), strict=True)
        handles |= {text: handle for handle, text in found if text.strip()}
    if handles:
        legend_below(figure, list(handles.values()))
    listed = ", ".join(label for label, _ in panels)
    alt = f"Against epochs: {listed}, of {n} run{'' if n == 1 else 's'}."
    return Picture(figure, alt.replace("$", "").replace(r"\Vert", "|"), notes)


def _matched(runs: Sequence[Trace]) -> list[Trace]:
    """Return runs whose components are in the order of the first one's."""
    if not runs:
        raise InputError("there is no trace to draw")
    shapes = {np.shape(run.records[-1]["weights"]) for run in runs}
    if len(shapes) > 1:
        raise InputError("traces have different numbers of components; draw them apart")
    means = [run.records[-1]["parameters"].get("means") for run in runs]
    if len(runs) == 1 or any(one is None or one.shape != means[0].shape for one in means):
        return list(runs)
    from scipy.optimize import linear_sum_assignment

    units = np.maximum(means[0].std(axis=0), LEAST)
    matched = [runs[0]]
    for run, last in zip(runs[1:], means[1:], strict=True):
        apart = ((means[0][:, None] - last) / units) ** 2
        _, order = linear_sum_assignment(apart.sum(axis=2))
        turned = Trace()
        turned.records = [{**one, "weights": one["weights"][order]} for one in run.records]
        matched.append(turned)
    return matched


def _at_iterates(runs: Sequence[Trace], name: str) -> tuple[Doubles, Doubles]:
    """Epochs (n,), their median, and values (r, n, ...) at those iterates that all runs have."""
    shortest = min(len(run) for run in runs)
    across = np.median([run["epochs"][:shortest] for run in runs], axis=0)
    return across, np.array([run[name][:shortest] for run in runs])


def _median(
    axes: Axes, across: Doubles, values: Doubles, shade: str, dashes: LineStyle, label: str
) -> None:
    """Draw the median of runs (r, n), and the range of their middle half."""
    there = np.isfinite(values).all(axis=0)
    values, across = values[:, there], across[there]
    axes.plot(across, np.median(values, axis=0), color=shade, linestyle=dashes, label=label)
    if len(values) > 1:
        low, high = np.quantile(values, HALF, axis=0)
        axes.fill_between(across, low, high, color=shade, alpha=0.18, linewidth=0)


def _weights(runs: Sequence[Trace]) -> Callable[[Axes], None]:
    def fill(axes: Axes) -> None:
        across, values = _at_iterates(runs, "weights")
        for k in range(values.shape[2]):
            label = f"component {k}" if values.shape[2] <= LABELLED else ""
            _median(axes, across, values[:, :, k], colour(k), line(k), label)
        axes.set_ylim(bottom=0)

    return fill


def _parameters(
    runs: Sequence[Trace], notes: list[str]
) -> list[tuple[str, Callable[[Axes], None]]]:
    """Return a panel for each parameter of SAEM."""
    across, values = _at_iterates(runs, "theta")
    names = runs[0].names or [f"parameter {j}" for j in range(values.shape[2])]
    if len(names) > MOST_PARAMETERS:
        notes.append(f"{MOST_PARAMETERS} of {len(names)} parameters are drawn")

    def of(j: int) -> Callable[[Axes], None]:
        return lambda axes: _median(axes, across, values[:, :, j], CURVE, "-", "")

    return [(words(name), of(j)) for j, name in enumerate(names[:MOST_PARAMETERS])]


def _curves(groups: Mapping[str, Sequence[Trace]], quantity: str) -> Callable[[Axes], None]:
    def fill(axes: Axes) -> None:
        for number, (name, runs) in enumerate(groups.items()):
            across, values = _at_iterates(runs, quantity)
            if quantity != "objective":
                values = np.maximum(values, LEAST)
            shade = contender(number) if name else CURVE
            _median(axes, across, values, shade, line(number), words(name) if name else "")
        if quantity != "objective":
            axes.set_yscale("log")

    return fill
