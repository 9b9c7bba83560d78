"""Pictures of the runs for Figure 6."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .figure6 import METHODS, NAMES, K
from .figure6_told import gaps_of
from .pictures import COLOURS, LINES, MARKERS, blank, draw_graph, tidy, write
from .report import write_csv
from .runs import over_runs

STYLES = {
    METHODS[0]: {"color": COLOURS[0], "linestyle": LINES[0], "linewidth": 1.6},
    METHODS[1]: {"color": "0.7", "linestyle": LINES[0], "linewidth": 5.0},
    METHODS[2]: {"color": COLOURS[3], "linestyle": LINES[1], "linewidth": 1.8},
}


def draw(found: dict[str, Any], folder: Path) -> None:
    """Draw the curves, two marginals, and the gap against K."""
    _curves(found, folder)
    _marginals(found, folder)
    _components(found, folder)


def _curves(found: dict[str, Any], folder: Path) -> None:
    figure = blank(9.6, 3.9)
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    rows = []
    everywhere = over_runs([run[m]["history"] for m in METHODS for run in found["runs"]])
    parts = np.split(everywhere, len(METHODS))
    for method, curves in zip(METHODS, parts, strict=True):
        mean = curves.mean(axis=0)
        left.plot(np.arange(1, len(mean) + 1), mean, label=method, **STYLES[method])
        rows += [[method, i, value] for i, value in enumerate(mean.tolist())]
    left.set_xscale("log")
    left.xaxis.set_major_formatter("{x:g}")
    tidy(left, f"K = {K}, mean of {len(found['runs'])} samples", "iteration",
         "log-likelihood per sample")  # fmt: skip
    left.legend(frameon=False, fontsize=9, handlelength=4)
    draw_graph(right, {"edges": found["edges"], "hubs": found["hubs"]}, "5 agents, 1 hop",
               [name.replace(" ", "\n") for name in NAMES], size=1500.0)  # fmt: skip
    write(figure, folder / "figure6-curves.png")
    write_csv(folder / "figure6-curves.csv", ["method", "iteration", "log-likelihood"], rows)


def _marginals(found: dict[str, Any], folder: Path) -> None:
    figure = blank(9.6, 3.6)
    shown = found["shown"]
    rows = []
    for axes, j in zip(figure.subplots(1, 2), (0, 4), strict=True):
        edges, counts = np.array(shown["edges"][j]), np.array(shown["histograms"][j])
        axes.stairs(counts / counts.sum() / np.diff(edges), edges, fill=True, color="0.85")
        x = np.linspace(edges[0] - 0.3, edges[-1] + 0.3, 300)
        for name, mixture in shown["mixtures"].items():
            means, variances = (
                np.array(mixture["means"])[:, j],
                np.array(mixture["variances"])[:, j],
            )
            parts = np.exp(-0.5 * (x[:, None] - means) ** 2 / variances)
            density = parts @ (np.array(mixture["weights"]) / np.sqrt(2 * np.pi * variances))
            axes.plot(x, density, label=name, **STYLES[name])
            rows += [[NAMES[j], name, *pair]
                     for pair in zip(x.tolist(), density.tolist(), strict=True)]  # fmt: skip
        tidy(axes, NAMES[j], "standardized mean ink", "density" if j == 0 else "")
    axes.legend(frameon=False, fontsize=9, handlelength=4)
    write(figure, folder / "figure6-marginals.png")
    write_csv(folder / "figure6-marginals.csv", ["feature", "method", "value", "density"], rows)


def _components(found: dict[str, Any], folder: Path) -> None:
    figure = blank(6.4, 3.8)
    axes = figure.subplots()
    rows = []
    ks = found["components"]
    gaps = np.array([gaps_of(found, k) for k in ks])
    axes.fill_between(ks, gaps.min(axis=1), gaps.max(axis=1), color=COLOURS[2], alpha=0.15)
    axes.plot(ks, gaps.mean(axis=1), color=COLOURS[2], marker=MARKERS[0])
    for k, row in zip(ks, gaps, strict=True):
        rows += [[k, sample, value] for sample, value in enumerate(row.tolist())]
    axes.set_ylim(bottom=min(0.0, float(gaps.min())))
    tidy(axes, "EM above VP-EM: mean and range over samples", "components, K",
         "nats per sample")  # fmt: skip
    write(figure, folder / "figure6-components.png")
    write_csv(folder / "figure6-components-shown.csv", ["K", "sample", "gap"], rows)
