"""A picture of agents and their hubs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.network.graph import Graph
from vpem.network.hubs import Hub
from vpem.network.schema import Report
from vpem.pictures.figure import Picture, new_figure, words
from vpem.pictures.style import COLOURS, DARK, FAINT, RULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = ["LISTED", "NUMBERED", "WORKED_OUT", "draw_hubs"]

LISTED = 16
"""Hubs up to which the legend lists each."""

NUMBERED = 150
"""Agents up to which each bears the number of its hub."""

WORKED_OUT = 400
"""Agents up to which places come from path lengths, beyond from springs."""


def draw_hubs(graph: Graph, hubs: Sequence[Hub], names: Sequence[str] | None = None) -> Picture:
    """Draw a graph coloured by hub, roots as squares with a thick edge.

    In grey the hubs differ by the numbers that agents bear, and by the links inside them,
    which are thick. Without hubs agents are workers, which bear their own numbers.

    Parameters
    ----------
    graph : Graph
        The agents and their links, and the server if there is one.
    hubs : sequence of Hub
        From `vpem.find_hubs`.
    names : sequence of str, optional
        Names of the agents, by default those of the graph, or numbers.

    Returns
    -------
    Picture
    """
    names = list(names or graph.names or map(str, range(graph.n_agents)))
    hub_of = np.full(graph.n_nodes, -1)
    for number, hub in enumerate(hubs):
        hub_of[[hub.root, *hub.agents]] = number
    places = _places(graph)
    wide = len(hubs) <= LISTED
    figure = new_figure(9.0 if wide else 7.5, 6.5)
    axes = figure.add_subplot()
    _draw_links(axes, graph, hub_of, places)
    _draw_nodes(axes, graph, hubs, hub_of, places)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.margins(0.06)
    low, high = places.min(axis=0), places.max(axis=0)
    # A line of nodes would leave a panel without width.
    spare = 0.25 * max(float((high - low).max()), 1.0)
    axes.update_datalim([(low + high) / 2 - spare, (low + high) / 2 + spare])
    counts = [(graph.n_agents, "agent" if hubs else "worker"), (graph.n_edges, "link")]
    counts += [(len(hubs), "hub")] if hubs else []
    sizes = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    axes.set_title(f"{words(graph.topology)}: {sizes}")
    figure.legend(
        handles=_legend(hubs, names, graph),
        loc="outside right upper" if wide else "outside lower center",
        ncols=1 if wide else 4,
        frameon=False,
        fontsize=9,
    )
    alt = f"The {graph.topology} graph with {graph.n_agents} "
    if hubs:
        roots = ", ".join(_name(names, hub.root) for hub in hubs[:12])
        alt += f"agents in {len(hubs)} hubs; roots: {roots}{', ...' if len(hubs) > 12 else ''}."
    else:
        alt += f"workers and {graph.n_edges} links."
    notes = []
    if graph.n_agents > NUMBERED:
        notes.append("numbers are left out, as they would cover each other")
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
    if n <= 2 or graph.topology in ("cycle", "complete", "small-world"):
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
    colours = [COLOURS[hub % len(COLOURS)] for hub in hub_of[one[inside]]]
    axes.add_collection(LineCollection(lines[inside], colors=colours, linewidths=thick, zorder=2))


def _draw_nodes(
    axes: Axes,
    graph: Graph,
    hubs: Sequence[Hub],
    hub_of: NDArray[np.intp],
    places: NDArray[np.float64],
) -> None:
    """Draw agents as discs, roots as squares, a server that is no root as a diamond."""
    many = graph.n_agents > NUMBERED
    size = float(np.clip(14000 / graph.n_nodes, 10 if many else 18, 420))
    roots = np.array([hub.root for hub in hubs], dtype=np.intp)
    plain = np.setdiff1d(np.arange(graph.n_nodes), roots)
    server = plain[plain == graph.n_agents] if graph.has_server else plain[:0]
    plain = np.setdiff1d(plain, server)
    for nodes, marker, scale, width in (
        (plain, "o", 1.0, 0.8),
        (roots, "s", 1.15, 1.0 if many else 2.2),
    ):
        axes.scatter(
            places[nodes, 0],
            places[nodes, 1],
            s=size * scale,
            c=[COLOURS[hub % len(COLOURS)] if hubs else COLOURS[0] for hub in hub_of[nodes]],
            marker=marker,
            edgecolors="black",
            linewidths=width,
            zorder=3,
        )
    axes.scatter(
        places[server, 0],
        places[server, 1],
        s=size,
        c="white",
        marker="D",
        edgecolors="black",
        zorder=3,
    )
    if graph.n_agents > NUMBERED:
        return
    for node in np.concatenate([plain, roots]):
        colour = COLOURS[hub_of[node] % len(COLOURS)] if hubs else COLOURS[0]
        axes.annotate(
            str(hub_of[node] if hubs else node),
            places[node],
            ha="center",
            va="center",
            fontsize=float(np.clip(0.42 * np.sqrt(size), 5, 9)),
            color="white" if colour in DARK else "black",
            zorder=4,
        )


def _legend(hubs: Sequence[Hub], names: Sequence[str], graph: Graph) -> list[Line2D]:
    """Entries of the legend: every hub where they are few, and what the marks mean."""
    from matplotlib.lines import Line2D

    def mark(marker: str, colour: str, label: str, width: float = 0.8) -> Line2D:
        shape: Report = {"marker": marker, "markersize": 9, "linestyle": ""}
        edge: Report = {"markeredgecolor": "black", "markeredgewidth": width}
        return Line2D([], [], label=label, markerfacecolor=colour, **shape, **edge)

    if not hubs:
        numbered = ", with its number" if graph.n_agents <= NUMBERED else ""
        server = [mark("D", "white", "server")] if graph.has_server else []
        link = Line2D([], [], color=FAINT, linewidth=0.7, label="link")
        return [mark("o", COLOURS[0], f"worker{numbered}"), *server, link]
    entries = [
        mark("s", "white", "root of a hub", 2.2),
        Line2D([], [], color=RULE, linewidth=2.6, label="link inside a hub"),
        Line2D([], [], color=FAINT, linewidth=0.7, label="link between hubs"),
    ]
    if len(hubs) < graph.n_agents:
        numbered = ", with its hub's number" if graph.n_agents <= NUMBERED else ""
        entries.insert(0, mark("o", "white", f"agent{numbered}"))
    if graph.has_server and graph.n_agents not in [hub.root for hub in hubs]:
        entries.insert(0, mark("D", "white", "server"))
    if len(hubs) > LISTED:
        return entries
    for number, hub in enumerate(hubs):
        count = f"{len(hub.agents)} agent{'' if len(hub.agents) == 1 else 's'}"
        label = f"hub {number}: root {words(_name(names, hub.root), 24)}, {count}"
        entries.append(mark("o", COLOURS[number % len(COLOURS)], label))
    return entries
