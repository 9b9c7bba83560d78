"""Pictures of the runs for Table 1: Figure 7, accuracies, likelihoods, more components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .pictures import COLOURS, LINES, MARKERS, blank, draw_graph, tidy, write
from .report import write_csv
from .table1 import SETUPS, setup
from .table1_told import MORE, PAPER, TITLES, by_method, is_scaled, more_runs, percent


def draw(found: dict[str, Any], folder: Path) -> None:
    """Draw Figure 7, every run's accuracy, likelihood against accuracy, and more components."""
    _figure7(found, folder)
    _accuracy(found, folder)
    _likelihoods(found, folder)
    _more(found, folder)


def _figure7(found: dict[str, Any], folder: Path) -> None:
    figure = blank(10.0, 4.3)
    rows = []
    groups = by_method(found)
    for axes, (name, topology) in zip(figure.subplots(1, 3), SETUPS.items(), strict=True):
        near = min(groups[name], key=lambda run: abs(100 * run["accuracy"] - PAPER[name]))
        network, _ = setup(topology, near["seed"], len(found["names"]))
        drawn = {
            "edges": network.graph.edges.tolist(),
            "hubs": [[hub.root, *hub.agents] for hub in network.hubs],
            "positions": None if network.graph.positions is None
            else np.asarray(network.graph.positions).tolist(),
        }  # fmt: skip
        held = _held(network)
        draw_graph(axes, drawn, f"{TITLES[name]}: {100 * near['accuracy']:.1f} %"
                   f" (paper {PAPER[name]})", [str(feature + 1) for feature in held])  # fmt: skip
        rows += [[name, held[a], held[b]] for a, b in drawn["edges"]]
    listed = ", ".join(f"{i + 1} {name}" for i, name in enumerate(found["names"]))
    figure.supxlabel(f"colour: hub; square: its root. Features: {listed}", fontsize=8)
    write(figure, folder / "table1-figure7.png")
    write_csv(folder / "table1-figure7.csv", ["setup", "feature", "neighbour's feature"], rows)


def _held(network: Any) -> list[int]:
    """Return the feature that each agent holds."""
    held = [0] * network.graph.n_agents
    for hub, features in zip(network.hubs, network.blocks.features, strict=True):
        for agent, feature in zip(hub.agents, features, strict=True):
            held[agent] = int(feature)
    return held


def _accuracy(found: dict[str, Any], folder: Path) -> None:
    figure = blank(8.6, 4.8)
    axes = figure.subplots()
    rng = np.random.default_rng(0)
    groups = by_method(found)
    rows = []
    for place, (name, runs) in enumerate(groups.items()):
        values = percent(runs)
        heights = place + 0.28 * rng.uniform(-1, 1, len(values))
        axes.scatter(values, heights, s=14, color="0.35", alpha=0.45, linewidths=0,
                     label="a run" if place == 0 else None)  # fmt: skip
        axes.plot([np.median(values)] * 2, [place - 0.36, place + 0.36], color=COLOURS[2],
                  linewidth=2.5, label="median" if place == 0 else None)  # fmt: skip
        if name in PAPER:
            axes.scatter(PAPER[name], place, s=70, marker="D", facecolor=COLOURS[1],
                         edgecolor="black", zorder=4,
                         label="the paper" if name == "k-means" else None)  # fmt: skip
        rows += [[TITLES[name], run["start"], run["seed"], run.get("hubs", ""), value]
                 for run, value in zip(runs, values.tolist(), strict=True)]  # fmt: skip
    most = 100 * found["share of the larger class"]
    axes.axvline(most, color="black", linestyle="--", linewidth=1.2, label="all negative")
    axes.set_yticks(range(len(groups)), [TITLES[name] for name in groups])
    axes.invert_yaxis()
    tidy(axes, "Every run: two clusters, mapped one to one", "accuracy, per cent")
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    write(figure, folder / "table1-accuracy.png")
    heads = ["method", "start", "seed", "hubs", "accuracy"]
    write_csv(folder / "table1-accuracy-runs.csv", heads, rows)


def _likelihoods(found: dict[str, Any], folder: Path) -> None:
    figure = blank(7.2, 4.6)
    axes = figure.subplots()
    groups = by_method(found)
    rows = []
    for place, name in enumerate((*SETUPS, "0 hops", "EM")):
        runs = groups[name]
        x = [run["log-likelihood"] for run in runs]
        y = percent(runs).tolist()
        axes.scatter(x, y, s=26 if name in SETUPS else 80, marker=MARKERS[place], zorder=3 + place,
                     facecolor="none" if name in SETUPS else COLOURS[place + 1],
                     edgecolor=COLOURS[place], linewidths=0.9, label=TITLES[name])  # fmt: skip
        rows += [[TITLES[name], *pair] for pair in zip(x, y, strict=True)]
    axes.axhline(100 * found["share of the larger class"], color="black", linestyle="--",
                 linewidth=1.2, label="all negative")  # fmt: skip
    tidy(axes, "Two components: how well they fit and how well they agree with the labels",
         "log-likelihood per sample", "accuracy, per cent")  # fmt: skip
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    write(figure, folder / "table1-likelihood.png")
    heads = ["method", "log-likelihood per sample", "accuracy"]
    write_csv(folder / "table1-likelihood.csv", heads, rows)


def _more(found: dict[str, Any], folder: Path) -> None:
    figure = blank(10.0, 4.8)
    left, right = figure.subplots(1, 2)
    rows = []
    most = 100 * found["share of the larger class"]
    for place, name in enumerate(MORE):
        for asked, line, fill in ((True, "-", COLOURS[place]), (False, ":", "white")):
            middle = []
            for k in found["components"]:
                runs = [r for r in more_runs(found, k, name) if is_scaled(r) is asked]
                values = percent(runs, "majority accuracy")
                middle.append(float(np.median(values)))
                rows += [["majority", f"{TITLES[name]}, {run['start']}", k, value]
                         for run, value in zip(runs, values.tolist(), strict=True)]  # fmt: skip
            left.plot(found["components"], middle, color=COLOURS[place], linestyle=line,
                      marker=MARKERS[place], markerfacecolor=fill,
                      label=f"{TITLES[name]}, {'standardized' if asked else 'raw'}")  # fmt: skip
    left.axhline(most, color="0.5", linestyle="--", linewidth=1, label="all negative")
    tidy(left, "Named by the majority of all rows (raw, standardized: in starts)", "components, K",
         "accuracy, per cent")  # fmt: skip
    left.legend(frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    who = [name for name in found["few labels"] if name in ("classifier", "2", "5", "6")]
    for place, name in enumerate(who):
        items = found["few labels"][name]
        x = [item["labels"] for item in items]
        low, mid, high = ([100 * i[what] for i in items] for what in ("low", "median", "high"))
        title = "logistic regression" if name == "classifier" else f"VP1, K = {name}"
        right.fill_between(x, low, high, color=COLOURS[place], alpha=0.12)
        right.plot(x, mid, color=COLOURS[place], linestyle=LINES[place], marker=MARKERS[place],
                   label=title)  # fmt: skip
        rows += [["few labels", title, *pair] for pair in zip(x, mid, strict=True)]
    right.axhline(most, color="0.5", linestyle="--", linewidth=1)
    right.set_xscale("log")
    right.set_xticks(x, [str(value) for value in x])
    right.minorticks_off()
    tidy(right, "Named by a few labelled rows: median, 10 to 90 %", "labelled rows",
         "accuracy, per cent")  # fmt: skip
    right.legend(frameon=False, fontsize=8, loc="lower right")
    write(figure, folder / "table1-components.png")
    write_csv(folder / "table1-components-shown.csv", ["panel", "line", "at", "accuracy"], rows)
