"""Pictures of the supplement's nine agents: hubs, and entries of a covariance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .pictures import COLOURS, blank, draw_graph, tidy, write
from .report import write_csv


def draw(found: dict[str, Any], folder: Path) -> None:
    """Draw the hubs and the patterns of a covariance."""
    names = [str(agent + 1) for agent in range(found["n_agents"])]
    figure = blank(9.0, 4.4)
    for axes, run in zip(figure.subplots(1, 2), found["runs"][:2], strict=True):
        drawn = {"edges": found["edges"], "hubs": run["hubs"], "topology": "tree"}
        hops = f"{run['hops']} hop{'' if run['hops'] == 1 else 's'}"
        draw_graph(axes, drawn, f"{hops}: {len(run['hubs'])} hubs", names)
    figure.supxlabel("colour: hub; square: its root; dark links lie inside a hub", fontsize=9)
    write(figure, folder / "example9-hubs.png")
    _patterns(found, folder)


def _patterns(found: dict[str, Any], folder: Path) -> None:
    figure = blank(10.0, 3.9)
    n, d = found["n_agents"], found["n_features"]
    rows = []
    for axes, run in zip(figure.subplots(1, 3), found["runs"], strict=True):
        pattern = np.zeros((d, d))
        for features in run["features"]:
            pattern[np.ix_(features, features)] = 1
        axes.imshow(pattern, cmap="Greys", vmin=0, vmax=1.6, interpolation="nearest")
        ticks = np.arange(n) * (d // n) + (d // n - 1) / 2
        axes.set_xticks(ticks, [str(agent + 1) for agent in range(n)])
        axes.set_yticks(ticks, [str(agent + 1) for agent in range(n)])
        for edge in np.arange(1, n) * (d // n) - 0.5:
            axes.axhline(edge, color="0.85", linewidth=0.5)
            axes.axvline(edge, color="0.85", linewidth=0.5)
        for features in run["features"]:
            if np.ptp(features) == len(features) - 1:
                corner = min(features) - 0.5, len(features)
                axes.add_patch(_square(*corner))
        hops = f"{run['hops']} hop{'' if run['hops'] == 1 else 's'}"
        tidy(axes, f"{hops}: {run['entries']} entries", "agent", "agent" if not run["hops"] else "")
        rows += [[run["hops"], int(i), int(j)] for i, j in np.argwhere(pattern)]
    write(figure, folder / "example9-sparsity.png")
    write_csv(folder / "example9-sparsity.csv", ["hops", "feature", "other feature"], rows)


def _square(corner: float, side: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((corner, corner), side, side, fill=False, edgecolor=COLOURS[3], linewidth=1.6)
