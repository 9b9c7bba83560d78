"""Pictures of the runs for Figures 4 and 5."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .figures45 import JUDGED_ROUNDS, METHODS
from .figures45_told import EXACT, gather, of_density
from .pictures import COLOURS, LINES, blank, draw_graph, tidy, write
from .report import write_csv
from .runs import over_runs

STYLES = {
    METHODS[0]: {"color": COLOURS[0], "linestyle": LINES[0], "linewidth": 1.6},
    METHODS[1]: {"color": "0.7", "linestyle": LINES[0], "linewidth": 5.0},
    METHODS[2]: {"color": COLOURS[3], "linestyle": LINES[1], "linewidth": 1.8},
    METHODS[3]: {"color": COLOURS[2], "linestyle": LINES[2], "linewidth": 2.0},
}


def draw(found: dict[str, Any], folder: Path) -> None:
    """Draw Figures 4 and 5, and the error against rounds."""
    _figure4(found, folder)
    _figure5(found, folder)
    _rounds(found, folder)


def _figure4(found: dict[str, Any], folder: Path) -> None:
    figure = blank(10.0, 5.4)
    rows = []
    for axes, density in zip(figure.subplots(1, 2), found["degrees"], strict=True):
        run = next(run for run in of_density(found, density) if "drawn" in run)
        drawn = run["drawn"]
        title = f"{density}: mean degree {run['mean degree']:.3g}, {run['hubs']} hubs"
        draw_graph(axes, drawn, title)
        rows += [[density, *edge] for edge in drawn["edges"]]
    figure.supxlabel(
        "number and colour: hub; square: its root; dark links lie inside a hub", fontsize=9
    )
    write(figure, folder / "figures45-figure4.png")
    write_csv(folder / "figures45-figure4.csv", ["networks", "agent", "neighbour"], rows)


def _figure5(found: dict[str, Any], folder: Path) -> None:
    figure = blank(10.0, 8.4)
    panels = figure.subplots(3, 2, sharex="col")
    panels[2, 1].sharey(panels[2, 0])
    rows = []
    for column, density in enumerate(found["degrees"]):
        top, zoomed, bottom = panels[:, column]
        runs = of_density(found, density)
        curves = {method: over_runs(gather(runs, method, "history")) for method in METHODS}
        steps = max(curve.shape[1] for curve in curves.values())
        axis = np.arange(1, steps + 1)
        whole = {method: _to_length(curve, steps) for method, curve in curves.items()}
        for method, curve in whole.items():
            mean = curve.mean(axis=0)
            top.plot(axis, mean, label=method, **STYLES[method])
            gap = np.abs(curve - whole[EXACT]).mean(axis=0)
            if method != "EM":
                zoomed.plot(axis, mean, **STYLES[method])
            if method not in ("EM", EXACT):
                bottom.semilogy(axis, np.maximum(gap, 1e-12), **STYLES[method])
            values = zip(mean.tolist(), gap.tolist(), strict=True)
            rows += [[density, method, i, *pair] for i, pair in enumerate(values)]
        top.set_xscale("log")
        top.xaxis.set_major_formatter("{x:g}")
        _frame(top, [curve.mean(axis=0)[1:] for curve in whole.values()])
        _frame(zoomed, [whole[method].mean(axis=0)[3:] for method in METHODS[1:]])
        left = column == 0
        tidy(top, f"{density}, mean of {len(runs)} networks", "",
             "log-likelihood per sample" if left else "")  # fmt: skip
        tidy(zoomed, "the same without EM", "", "log-likelihood per sample" if left else "")
        tidy(bottom, "distance to block EM (mean over networks)", "iteration",
             "nats per sample" if left else "")  # fmt: skip
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4,
                  frameon=False, fontsize=9, handlelength=4)  # fmt: skip
    write(figure, folder / "figures45-figure5.png")
    columns = ["networks", "method", "iteration", "log-likelihood per sample", "to block EM"]
    write_csv(folder / "figures45-figure5.csv", columns, rows)


def _frame(axes: Any, curves: Sequence[Any]) -> None:
    """Leave out what lies far below: where curves begin."""
    low = min(float(curve.min()) for curve in curves)
    high = max(float(curve.max()) for curve in curves)
    axes.set_ylim(low - 0.03 * (high - low), high + 0.08 * (high - low))


def _to_length(curves: Any, steps: int) -> Any:
    """Cut curves, or let them stay where they ended."""
    more = max(0, steps - curves.shape[1])
    return np.pad(curves, ((0, 0), (0, more)), mode="edge")[:, :steps]


def _rounds(found: dict[str, Any], folder: Path) -> None:
    figure = blank(7.2, 4.4)
    axes = figure.subplots()
    rows = []
    styles = {("dense", "none"): (COLOURS[3], "-", "o"), ("dense", "chebyshev"): (COLOURS[3],
              "--", "s"), ("sparse", "none"): (COLOURS[2], "-", "^"),
              ("sparse", "chebyshev"): (COLOURS[2], "--", "D")}  # fmt: skip
    names = {"none": "plain", "chebyshev": "accelerated"}
    for density in found["degrees"]:
        for how, name in names.items():
            values = np.array([run["errors by rounds"][how] for run in of_density(found, density)])
            colour, line, marker = styles[density, how]
            shown = np.maximum(values, 1e-14)
            axes.fill_between(JUDGED_ROUNDS, shown.min(0), shown.max(0), color=colour, alpha=0.15)
            axes.plot(JUDGED_ROUNDS, np.median(shown, axis=0), color=colour, linestyle=line,
                      marker=marker, markersize=5, label=f"{density}, {name}")  # fmt: skip
            for at, column in zip(JUDGED_ROUNDS, values.T, strict=True):
                rows.append([density, name, at, *np.percentile(column, [0, 50, 100]).tolist()])
    axes.set_yscale("log")
    axes.axvline(100, color="0.6", linewidth=1)
    axes.annotate("the paper's 100", (100, axes.get_ylim()[1]), (4, -9), fontsize=8,
                  textcoords="offset points", color="0.3")  # fmt: skip
    tidy(axes, "Consensus error of the sum: median and range over networks", "rounds",
         "max |C - 1|")  # fmt: skip
    axes.legend(frameon=False, fontsize=9)
    write(figure, folder / "figures45-rounds.png")
    heads = ["networks", "rounds are", "rounds", "least", "median", "most"]
    write_csv(folder / "figures45-rounds.csv", heads, rows)
