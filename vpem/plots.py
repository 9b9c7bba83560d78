"""Pictures, drawn by matplotlib where it is installed."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError, VpemWarning, printable
from vpem.files.hdf5 import atomic_write, check_writable
from vpem.graphs.graph import Graph
from vpem.graphs.hubs import Hub

__all__ = [
    "COLOURS",
    "check_matplotlib",
    "check_picture",
    "draw_hubs",
    "legend_below",
    "plot_hubs",
    "render",
    "save_figure",
    "whole_numbers",
    "words",
]

COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#D55E00", "#0072B2", "#999999")
"""Okabe and Ito's, which the colour-blind tell apart."""

LISTED = 16
"""Hubs up to which the legend tells of each."""

NUMBERED = 150
"""Agents up to which each bears the number of its hub."""

LONGEST = 28
"""Characters of a name that is drawn."""

MOST_COLUMNS = 6
"""Of a legend."""

WORKED_OUT = 400
"""Agents up to which places come from path lengths, beyond from springs."""


def check_picture(path: str | os.PathLike[str], force: bool = False) -> None:
    """Raise an error unless a picture can be drawn and written there."""
    check_writable(path, force, "pictures")
    check_matplotlib()


def check_matplotlib() -> None:
    """Raise `InputError` unless matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(
            "pictures are drawn by matplotlib, which is not installed: pip install 'vpem[plot]'"
        ) from error


def _metadata_of(ending: str) -> dict[str, None] | None:
    """Return what keeps the time of day out of a picture, by the ending of its file."""
    return {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)


def words(text: object, most: int = LONGEST) -> str:
    """Return a name as it can be drawn: in one line, not too long, and never a formula."""
    shown = printable(text)
    if len(shown) > most:
        shown = shown[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    # Dollars would begin a formula, and what begins with an underscore is left out of legends.
    return (" " if shown.startswith("_") else "") + shown.replace("$", r"\$")


def _parts(artist: Any) -> Iterator[Any]:
    """Yield an artist and all that is in it but ticks, which looking for them would make."""
    from matplotlib.axis import Axis

    yield artist
    if isinstance(artist, Axis):
        yield from (artist.label, artist.get_offset_text())
        return
    for child in artist.get_children():
        yield from _parts(child)


def _legible(figure: Any) -> None:
    """Take control characters out of every text of a figure: SVG with them is no XML."""
    from matplotlib.axis import Axis
    from matplotlib.text import Text
    from matplotlib.ticker import FixedFormatter

    def lines(text: str) -> str:
        return "\n".join(map(printable, text.split("\n")))

    for part in _parts(figure):
        if isinstance(part, Text):
            part.set_text(lines(part.get_text()))
        elif isinstance(part, Axis):
            for told in (part.get_major_formatter(), part.get_minor_formatter()):
                if isinstance(told, FixedFormatter):
                    told.seq = [lines(str(name)) for name in told.seq]


def render(figure: Any, target: Any, ending: str, dpi: int) -> None:
    """Draw a figure once, the same bytes as its ``savefig``, which draws it twice to lay it out.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        What to draw.
    target : path or binary stream
        Where to.
    ending : {"png", "svg", "pdf"}
        The format.
    dpi : int
        Dots an inch of "png", and of what is drawn as dots in others.
    """
    from importlib import import_module

    backend = import_module(f"matplotlib.backends.backend_{'agg' if ending == 'png' else ending}")
    _legible(figure)
    figure.set_dpi(dpi)
    canvas = backend.FigureCanvas(figure)
    getattr(canvas, f"print_{ending}")(target, metadata=_metadata_of(ending))


def save_figure(
    path: str | os.PathLike[str], figure: Any, *, force: bool = False, dpi: int = 160
) -> None:
    """Write a figure completely or not at all, the same bytes for the same figure.

    Parameters
    ----------
    path : path
        A .png, .svg or .pdf file.
    figure : matplotlib.figure.Figure
        What to write.
    force : bool
        Replace an existing file.
    dpi : int
        Dots an inch of a .png file, and of what is drawn as dots in others.

    Raises
    ------
    FileError
        If the file exists and ``force`` is False, or cannot be written.

    Warns
    -----
    VpemWarning
        If a name has characters that the font has not.
    """
    import matplotlib as mpl

    ending = Path(path).suffix.lower()[1:]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with (
            mpl.rc_context({"svg.hashsalt": "vpem", "svg.fonttype": "none"}),
            atomic_write(path, force, "pictures") as temporary,
        ):
            # Drawn in memory: matplotlib does not always say of a full disk that it is one.
            drawn = io.BytesIO()
            render(figure, drawn, ending, dpi)
            temporary.write_bytes(drawn.getvalue())
    for one in caught:
        if not str(one.message).startswith("Glyph "):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if any(str(one.message).startswith("Glyph ") for one in caught):
        warnings.warn(
            f"{path}: names have characters that the font of pictures has not; they are boxes",
            VpemWarning,
            stacklevel=2,
        )


def legend_below(
    figure: Any, handles: Sequence[Any], size: float = 8, title: str | None = None
) -> float:
    """Put a legend below all panels, in as many columns as the figure has room for.

    Rows of it beyond two make the figure higher, rather than its panels lower.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        One that places its parts itself, or whose panels leave room for the legend.
    handles : sequence of artists
        What is told of, each with its label.
    size : float
        Of the letters, in points.
    title : str, optional
        Above it.

    Returns
    -------
    float
        Inches that it takes of the figure's height.
    """
    width, height = figure.get_size_inches()
    for columns in range(min(len(handles), MOST_COLUMNS), 0, -1):
        legend = figure.legend(
            handles=handles, loc="outside lower center", ncols=columns, frameon=False,
            fontsize=size, handlelength=3, title=title, title_fontsize=size,
        )  # fmt: skip
        box = legend.get_window_extent()
        if columns == 1 or box.width <= figure.bbox.width:
            break
        legend.remove()
    taken = float(box.height / figure.dpi)
    figure.set_size_inches(width, height + max(0.0, taken - 0.05 * size))
    return taken


def whole_numbers(axis: Any) -> None:
    """Let an axis of numbers that are whole have ticks at such only, even where there is one."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=8))


def plot_hubs(
    path: str | os.PathLike[str],
    graph: Graph,
    hubs: Sequence[Hub],
    names: Sequence[str] | None = None,
    *,
    force: bool = False,
) -> None:
    """Draw a graph coloured by hub, roots as squares with a thick edge.

    In grey the hubs can be told by the numbers that agents bear, and by the links inside them,
    which are thick.

    Parameters
    ----------
    path : path
        A .png, .svg or .pdf file, written completely or not at all.
    graph : Graph
        The agents and their links, and the server if there is one.
    hubs : sequence of Hub
        From `vpem.find_hubs`.
    names : sequence of str, optional
        Names of the agents, by default those of the graph, or numbers.
    force : bool
        Replace an existing file.

    Raises
    ------
    InputError
        If matplotlib is not installed, or the file's name has another ending.
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    """
    check_picture(path, force)
    save_figure(path, draw_hubs(graph, hubs, names), force=force)


def draw_hubs(graph: Graph, hubs: Sequence[Hub], names: Sequence[str] | None = None) -> Any:
    """Return the figure of `plot_hubs`; without hubs agents are workers, which bear numbers."""
    from matplotlib.figure import Figure

    names = list(names or graph.names or map(str, range(graph.n_agents)))
    hub_of = np.full(graph.n_nodes, -1)
    for number, hub in enumerate(hubs):
        hub_of[[hub.root, *hub.agents]] = number
    places = _places(graph)
    wide = len(hubs) <= LISTED
    figure = Figure(figsize=(9.0 if wide else 7.5, 6.5), layout="constrained")
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
    who = "agent" if hubs else "worker"
    counts = [(graph.n_agents, who), (graph.n_edges, "link"), (len(hubs), "hub")]
    counts = counts if hubs else counts[:2]
    told = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    axes.set_title(f"{words(graph.topology)}: {told}")
    figure.legend(
        handles=_legend(hubs, names, graph),
        loc="outside right upper" if wide else "outside lower center",
        ncols=1 if wide else 4,
        frameon=False,
        fontsize=9,
    )
    return figure


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


def _draw_links(axes: Any, graph: Graph, hub_of: Any, places: NDArray[np.float64]) -> None:
    """Draw links between hubs thin and grey, links inside one thick and in its colour."""
    from matplotlib.collections import LineCollection

    one, two = graph.edges.T
    thick = 2.6 if graph.n_agents <= NUMBERED else 1.1
    inside = (hub_of[one] == hub_of[two]) & (hub_of[one] >= 0)
    lines = places[graph.edges]
    axes.add_collection(LineCollection(lines[~inside], colors="#B8B8B8", linewidths=0.7, zorder=1))
    colours = [COLOURS[hub % len(COLOURS)] for hub in hub_of[one[inside]]]
    axes.add_collection(LineCollection(lines[inside], colors=colours, linewidths=thick, zorder=2))


def _draw_nodes(
    axes: Any, graph: Graph, hubs: Sequence[Hub], hub_of: Any, places: NDArray[np.float64]
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
            *places[nodes].T,
            s=size * scale,
            c=[COLOURS[hub % len(COLOURS)] if hubs else COLOURS[0] for hub in hub_of[nodes]],
            marker=marker,
            edgecolors="black",
            linewidths=width,
            zorder=3,
        )
    axes.scatter(*places[server].T, s=size, c="white", marker="D", edgecolors="black", zorder=3)
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
            color="white" if colour in ("#0072B2", "#D55E00", "#009E73") else "black",
            zorder=4,
        )


def _legend(hubs: Sequence[Hub], names: Sequence[str], graph: Graph) -> list[Any]:
    """Entries of the legend: every hub where they are few, and what the marks mean."""
    from matplotlib.lines import Line2D

    def mark(marker: str, colour: str, label: str, width: float = 0.8) -> Line2D:
        shape: dict[str, Any] = {"marker": marker, "markersize": 9, "linestyle": ""}
        edge: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": width}
        return Line2D([], [], label=label, markerfacecolor=colour, **shape, **edge)

    if not hubs:
        numbered = ", with its number" if graph.n_agents <= NUMBERED else ""
        server = [mark("D", "white", "server")] if graph.has_server else []
        link = Line2D([], [], color="#B8B8B8", linewidth=0.7, label="link")
        return [mark("o", COLOURS[0], f"worker{numbered}"), *server, link]
    entries = [
        mark("s", "white", "root of a hub", 2.2),
        Line2D([], [], color="#555555", linewidth=2.6, label="link inside a hub"),
        Line2D([], [], color="#B8B8B8", linewidth=0.7, label="link between hubs"),
    ]
    if len(hubs) < graph.n_agents:
        numbered = ", with its hub's number" if graph.n_agents <= NUMBERED else ""
        entries.insert(0, mark("o", "white", f"agent{numbered}"))
    if graph.has_server and graph.n_agents not in [hub.root for hub in hubs]:
        entries.insert(0, mark("D", "white", "server"))
    if len(hubs) > LISTED:
        return entries
    for number, hub in enumerate(hubs):
        root = names[hub.root] if hub.root < len(names) else "server"
        count = f"{len(hub.agents)} agent{'' if len(hub.agents) == 1 else 's'}"
        label = f"hub {number}: root {words(root, 24)}, {count}"
        entries.append(mark("o", COLOURS[number % len(COLOURS)], label))
    return entries
