"""A picture of agents and their hubs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.network.graph import Graph
from vpem.network.hubs import Hub
from vpem.network.schema import Report
from vpem.pictures.figure import Picture, legend_below, one_panel, words
from vpem.pictures.style import FAINT, LIGHT, RULE, halo, hub_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


NAMED = 60
"""Agents up to which each bears its name."""

UPRIGHT = 25
"""Agents on a circle up to which names stand upright."""

RINGS = ("cycle", "complete", "small-world")
"""Graphs without a server whose agents are drawn on a circle."""

NUMBERED = 150
"""Agents up to which each bears the number of its hub."""

WORKED_OUT = 400
"""Agents up to which places come from path lengths, beyond from springs."""


def draw_hubs(
    graph: Graph,
    hubs: Sequence[Hub],
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Picture:
    """Draw a graph coloured by hub, roots as squares with a thick edge.

    Agents bear the number of their hub and, where they are few, their name. In grey the hubs differ
    by these numbers, and by the links inside them, which are thick. Without hubs agents are
    workers, and where every agent is a hub of its own there is nothing for colours to say.
    """
    names = list(names or graph.names or map(str, range(graph.n_agents)))
    hub_of = np.full(graph.n_nodes, -1)
    for number, hub in enumerate(hubs):
        hub_of[[hub.root, *hub.agents]] = number
    places = _places(graph)
    figure, axes = one_panel(ax, 6.6, 6.0)
    shared = any(len(hub.agents) > 1 for hub in hubs)
    looks = Looks(
        [hub_colour(hub) if shared and hub >= 0 else LIGHT for hub in hub_of.tolist()],
        [str(hub) if hub >= 0 else "" for hub in hub_of.tolist()] if shared else [],
    )
    if graph.has_server and hub_of[-1] < 0:
        looks.fills[-1] = "white"
    _draw_links(axes, graph, hub_of, places)
    _draw_nodes(axes, graph, hubs, looks, places)
    if graph.n_agents <= NAMED:
        _draw_names(axes, graph, names, places)
    axes.set_aspect("equal")
    axes.set_axis_off()
    upright = not _is_crowded(graph)
    axes.margins((0.12 if upright else 0.2) if graph.n_agents <= NAMED else 0.06)
    low, high = places.min(axis=0), places.max(axis=0)
    # A line of nodes would leave a panel without width.
    spare = 0.25 * max(float((high - low).max()), 1.0)
    axes.update_datalim([(low + high) / 2 - spare, (low + high) / 2 + spare])
    counts = [(graph.n_agents, "agent" if hubs else "worker"), (graph.n_edges, "link")]
    counts += [(len(hubs), "hub")] if hubs else []
    sizes = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    axes.set_title(f"{words(graph.topology)}: {sizes}")
    entries = _legend(hubs, graph, looks)
    if ax is None:
        legend_below(figure, entries, size=9)
    else:
        axes.legend(
            handles=entries, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2,
            frameon=False,
        )  # fmt: skip
    alt = f"The {graph.topology} graph with {graph.n_agents} "
    if hubs:
        roots = ", ".join(_name(names, hub.root) for hub in hubs[:12])
        alt += f"agents in {len(hubs)} hubs; roots: {roots}{', ...' if len(hubs) > 12 else ''}."
    else:
        alt += f"workers and {graph.n_edges} links."
    notes = []
    if graph.n_agents > NAMED:
        what = "names" if graph.n_agents <= NUMBERED or not looks.numbers else "names and numbers"
        notes.append(f"{what} are left out, as they would cover each other")
    return Picture(figure, alt, notes)


def _name(names: Sequence[str], node: int) -> str:
    return names[node] if node < len(names) else "server"


def _places(graph: Graph) -> NDArray[np.float64]:
    """Where to draw each node (n_nodes, 2): where it is if that is known, else by the graph."""
    if graph.positions is not None:
        return np.asarray(graph.positions, dtype=np.float64)
    n = graph.n_agents
    angle = 0.5 * np.pi - 2.0 * np.pi * np.arange(n) / n
    ring = np.column_stack([np.cos(angle), np.sin(angle)])
    if graph.has_server:
        return np.vstack([ring, [[0.0, 0.0]]])
    if n <= 2 or graph.topology in RINGS:
        return ring
    import networkx as nx

    drawn = nx.Graph()
    drawn.add_nodes_from(range(n))
    drawn.add_edges_from(graph.edges.tolist())
    if n <= WORKED_OUT:
        found = nx.kamada_kawai_layout(drawn, pos=dict(enumerate(ring)))
    else:
        found = nx.spring_layout(drawn, seed=0)
    return np.array([found[node] for node in range(n)])


def _draw_links(
    axes: Axes, graph: Graph, hub_of: NDArray[np.intp], places: NDArray[np.float64]
) -> None:
    """Draw links between hubs thin and grey, links inside one thick and in its colour."""
    from matplotlib.collections import LineCollection

    one, two = graph.edges.T
    thick = 2.6 if graph.n_agents <= NUMBERED else 1.1
    inside = (hub_of[one] == hub_of[two]) & (hub_of[one] >= 0)
    lines = places[graph.edges]
    axes.add_collection(LineCollection(lines[~inside], colors=FAINT, linewidths=0.7, zorder=1))
    # A dark edge, for pale colours on white paper.
    axes.add_collection(
        LineCollection(lines[inside], colors=RULE, linewidths=thick + 1.0, zorder=1.5)
    )
    colours = [hub_colour(hub) for hub in hub_of[one[inside]]]
    axes.add_collection(LineCollection(lines[inside], colors=colours, linewidths=thick, zorder=2))


@dataclass(frozen=True)
class Looks:
    """How nodes look: ``fills`` of all, and ``numbers`` of their hubs, or none."""

    fills: list[str]
    numbers: list[str]


def _draw_nodes(
    axes: Axes, graph: Graph, hubs: Sequence[Hub], looks: Looks, places: NDArray[np.float64]
) -> None:
    """Draw agents as discs, roots as squares, a server that is no root as a diamond."""
    many = graph.n_agents > NUMBERED
    size = float(np.clip(14000 / graph.n_nodes, 10 if many else 18, 420))
    if graph.topology in RINGS and not looks.numbers:
        # On a circle they stand close together, and squares more so where it goes aslant.
        size = min(size, max(18.0, (560 / graph.n_nodes - 2) ** 2))
    roots = np.array([hub.root for hub in hubs], dtype=np.intp)
    plain = np.setdiff1d(np.arange(graph.n_nodes), roots)
    server = plain[plain == graph.n_agents] if graph.has_server else plain[:0]
    plain = np.setdiff1d(plain, server)
    for nodes, marker, scale, width in (
        (plain, "o", 1.0, 0.8),
        (roots, "s", 1.15, 1.0 if many else 2.2),
        (server, "D", 1.0, 0.8),
    ):
        axes.scatter(
            places[nodes, 0], places[nodes, 1], s=size * scale, marker=marker,
            c=[looks.fills[node] for node in nodes], edgecolors="black", linewidths=width, zorder=3,
        )  # fmt: skip
    if many or not looks.numbers:
        return
    for node in np.concatenate([plain, roots]):
        axes.annotate(
            looks.numbers[node], places[node], ha="center", va="center", zorder=4,
            fontsize=float(np.clip(0.42 * np.sqrt(size), 6.3, 9)),
        )  # fmt: skip


SIDES = ((0, 1), (1, 0), (0, -1), (-1, 0), (0.8, 0.8), (0.8, -0.8), (-0.8, -0.8), (-0.8, 0.8))
"""Of a node, where its name may stand; upright ones are taken first where they are as free."""


def _draw_names(
    axes: Axes, graph: Graph, names: Sequence[str], places: NDArray[np.float64]
) -> None:
    """Write each node's name at the side where it is farthest from links, and rather outside."""
    sides = np.array(SIDES)
    outward = places - places.mean(axis=0)
    reach = np.sqrt(np.clip(14000 / graph.n_nodes, 18, 420)) / 2 + 6
    ring = _is_crowded(graph)
    for node, place in enumerate(places):
        if ring and np.linalg.norm(place) > 0.5:
            _name_radially(axes, words(_name(names, node), 18), place, reach)
            continue
        ends = graph.edges[(graph.edges == node).any(axis=1)]
        ways = places[ends[ends != node]] - place
        if len(ways):
            ways = ways / np.maximum(np.linalg.norm(ways, axis=1, keepdims=True), 1e-12)
            taken = (sides @ ways.T).max(axis=1) / np.linalg.norm(sides, axis=1)
        else:
            taken = np.zeros(len(sides))
        far = max(float(np.linalg.norm(outward[node])), 1e-12)
        free = np.maximum(taken, 0.5) - 0.3 * (sides @ outward[node]) / far
        x, y = SIDES[int(free.argmin())]
        axes.annotate(
            words(_name(names, node), 18), place, textcoords="offset points", zorder=5,
            xytext=(x * reach, y * reach), fontsize=9 if graph.n_agents <= UPRIGHT else 6.5,
            ha="center" if not x else "left" if x > 0 else "right",
            va="center" if not y else "bottom" if y > 0 else "top", path_effects=halo(),
        )  # fmt: skip


def _is_crowded(graph: Graph) -> bool:
    """Whether agents stand on a circle, where so many names have no room side by side."""
    ring = graph.has_server or graph.topology in RINGS
    return graph.positions is None and graph.n_agents > UPRIGHT and ring


def _name_radially(axes: Axes, name: str, place: NDArray[np.float64], reach: float) -> None:
    """Write a name outwards from its node, so that neighbours on a circle leave each other room."""
    out = place / np.linalg.norm(place)
    turn = float(np.degrees(np.arctan2(out[1], out[0])))
    left = bool(out[0] < -1e-9)
    axes.annotate(
        name, (float(place[0]), float(place[1])), textcoords="offset points", fontsize=6.5,
        xytext=(float(out[0] * reach), float(out[1] * reach)), zorder=5,
        rotation=turn + 180 if left else turn, rotation_mode="anchor",
        ha="right" if left else "left", va="center", path_effects=halo(),
    )  # fmt: skip


def _legend(hubs: Sequence[Hub], graph: Graph, looks: Looks) -> list[Line2D]:
    """Say what marks, lines and numbers mean."""
    from matplotlib.lines import Line2D

    def mark(marker: str, colour: str, label: str, width: float = 0.8) -> Line2D:
        shape: Report = {"marker": marker, "markersize": 9, "linestyle": ""}
        edge: Report = {"markeredgecolor": "black", "markeredgewidth": width}
        return Line2D([], [], label=label, markerfacecolor=colour, **shape, **edge)

    server = graph.has_server and graph.n_agents not in [hub.root for hub in hubs]
    entries = [mark("D", "white", "server")] if server else []
    if not hubs or not looks.numbers:
        nodes = mark("s", LIGHT, "agent, alone in its hub", 2.2) if hubs else None
        link = Line2D([], [], color=FAINT, linewidth=0.7, label="link")
        return [nodes or mark("o", LIGHT, "worker"), *entries, link]
    numbered = ", with its hub's number" if graph.n_agents <= NUMBERED else ", coloured by hub"
    return [
        mark("o", "white", f"agent{numbered}"),
        mark("s", "white", "root of a hub", 2.2),
        *entries,
        Line2D([], [], color=RULE, linewidth=2.6, label="link inside a hub"),
        Line2D([], [], color=FAINT, linewidth=0.7, label="link between hubs"),
    ]
