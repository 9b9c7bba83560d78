"""How pictures look: told apart in grey and by the colour-blind, numbers beside them as CSV."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import plots

COLOURS = ("#000000", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442")
"""Okabe and Ito's."""

FILLS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#D55E00", "#0072B2", "#BBBBBB")
LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)))
SHADES = 256
"""Colours of a picture: lines are smooth with fewer than all."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


blank = partial(plots.blank, dpi=120)


def write(figure: Any, path: Path) -> None:
    """Write a small PNG file, of few colours."""
    from PIL import Image

    whole = io.BytesIO()
    figure.canvas.print_png(whole)  # what savefig writes, which draws twice to lay it out
    with Image.open(whole) as picture:
        picture.convert("RGB").quantize(SHADES, method=Image.Quantize.FASTOCTREE).save(
            path, optimize=True
        )


def tidy(axes: Any, title: str = "", x: str = "", y: str = "") -> None:
    """Name axes, and take frames away that say nothing."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)


def _places(drawn: dict[str, Any], n: int) -> Any:
    """Where each agent stands: where it is known to be, on a ring, or by the graph."""
    if drawn.get("positions") is not None:
        return np.array(drawn["positions"], dtype=float)
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    ring = np.column_stack([np.cos(angle), np.sin(angle)])
    if drawn.get("topology") != "tree":
        return ring
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(drawn["edges"])
    found = nx.kamada_kawai_layout(graph, pos=dict(enumerate(ring)))
    return np.array([found[node] for node in range(n)])


def draw_graph(
    axes: Any,
    drawn: dict[str, Any],
    title: str,
    names: Sequence[str] = (),
    size: float | None = None,
) -> None:
    """Draw agents coloured by hub, with its number or names; roots square, links inside dark.

    ``drawn`` has ``edges``, ``hubs`` (each its root, then its agents), and maybe ``positions``.
    """
    from matplotlib.collections import LineCollection

    edges, hubs = np.array(drawn["edges"]), drawn["hubs"]
    n = sum(len(hub) - 1 for hub in hubs)
    places = _places(drawn, n)
    hub_of = np.empty(n, dtype=int)
    for number, (_, *agents) in enumerate(hubs):
        hub_of[agents] = number
    inside = hub_of[edges[:, 0]] == hub_of[edges[:, 1]]
    many = len(edges) > 300
    for chosen, colour, width in ((~inside, "0.75", 0.4), (inside, "0.25", 0.5 if many else 1.8)):
        axes.add_collection(
            LineCollection(places[edges[chosen]], colors=colour, linewidths=width, zorder=1)
        )
    size = size or (90.0 if n > 30 else 420.0)
    roots = np.array([hub[0] for hub in hubs])
    for nodes, marker, edge in (
        (np.setdiff1d(np.arange(n), roots), "o", 0.7), (roots, "s", 2.2),
    ):  # fmt: skip
        axes.scatter(
            *places[nodes].T, s=size, marker=marker, linewidths=edge, edgecolors="black", zorder=3,
            c=[FILLS[hub_of[node] % len(FILLS)] for node in nodes],
        )  # fmt: skip
    for node in range(n):
        axes.annotate(
            names[node] if names else str(hub_of[node] + 1), places[node], ha="center",
            va="center", fontsize=5.5 if n > 30 else 9, zorder=4, fontweight="bold",
            color="white" if FILLS[hub_of[node] % len(FILLS)] == "#0072B2" else "black",
        )  # fmt: skip
    axes.set_aspect("equal")
    axes.margins(0.1 if size < 1000 else 0.25)
    axes.set_axis_off()
    axes.set_title(title, fontsize=10)
