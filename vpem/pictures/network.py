"""The graph of agents and their hubs, the blocks of the covariance, and bytes sent.

Bytes are drawn by phase, by agent, by link, and by iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError, shorten
from vpem.network.graph import Graph
from vpem.network.hubs import Hub
from vpem.network.schema import Report
from vpem.pictures.contents import MEANINGS, size
from vpem.pictures.figure import (
    BAND,
    CURVE,
    FAINT,
    HATCHES,
    HUBS,
    LIGHT,
    RULE,
    WIDTH,
    Picture,
    halo,
    hub_colour,
    legend_below,
    new_figure,
    of_bytes,
    one_panel,
    tidy,
    whole_numbers,
    words,
)
from vpem.pictures.saved import SavedFit, SavedMixture
from vpem.terms.mixture import is_diagonal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


BLOCKS_NAMED = 40
"""Features up to which axes bear their names."""

BLOCKS_NAMED_OF_TWO = 30
"""The same, of two panels side by side."""

WIDTH_NUMBERED = 0.033
"""Share of the panel's side from which a block bears its number."""


NAMED_AGENTS = 16
"""Agents up to which their blocks bear their names."""


Panel = tuple[str, list[NDArray[np.intp]], list[int], Sequence[str]]
"""A title, and blocks: their features, the hub of each, and the agents that they are of, if not
hubs'."""


def draw_graph(saved: SavedFit, ax: Axes | None = None) -> Picture:
    graph, hubs = saved.graph(), saved.hubs()
    return draw_hubs(graph, hubs, saved.node_names(graph.n_nodes), ax)


def draw_sparsity(saved: SavedMixture) -> Picture:
    """Draw which entries of the covariance are estimated, with 0 hops beside those of the fit.

    Features stand hub by hub, and agent by agent in a hub, so that blocks lie on the diagonal.
    """
    mixture = saved.mixture
    blocks = mixture.blocks
    notes: list[str] = []
    diagonal = is_diagonal(mixture.covariance_type)
    # The features of each block, and its hub, which has a block of each family with a covariance.
    filled = np.flatnonzero(blocks.widths).tolist()
    inside = [blocks.features[b] for b in filled]
    if mixture.kinds is not None:
        numbered = []
        for part in mixture.parts:
            if part.core is not None:
                hubs = enumerate(part.features.blocks.features)
                numbered += [(b, part.features.columns[one]) for b, one in hubs if len(one)]
        numbered.sort(key=lambda one: one[0])
        inside, filled = [columns for _, columns in numbered], [b for b, _ in numbered]
        there = np.concatenate([np.empty(0, dtype=np.intp), *inside])
        rest = np.setdiff1d(np.arange(mixture.n_features), there).tolist()
        if rest:
            listed = shorten((saved.feature_names[j] for j in rest), 6)
            notes.append(f"left out, as their families have no covariance: {listed}")
    hops = saved.reported("hops", int)
    if saved.over_rows or blocks.n_blocks == 1:
        title = (
            "rows are split, features are not" if saved.over_rows else "one root has all features"
        )
    else:
        title = f"{'?' if hops is None else hops} hop{'' if hops == 1 else 's'}"
    panels: list[Panel] = [(title, inside, filled, ())]
    agents = None if saved.over_rows else saved.agents_of_features()
    if saved.over_rows:
        pass
    elif agents is None:
        notes.append(
            str(saved.missing("which agent holds which feature (for the blocks of 0 hops)"))
        )
    else:
        runs = [_runs(columns, agents) for columns in inside]
        apart = [part for run in runs for part in run]
        if len(apart) > len(inside):
            owners = [hub for hub, run in zip(filled, runs, strict=True) for _ in run]
            panels.insert(0, ("0 hops", apart, owners, _holders(saved, apart, agents)))
        elif len(inside) > 1:
            # Every agent is a hub of its own: as on the graph, colours have nothing to say.
            panels = [(title, inside, [-1] * len(inside), _holders(saved, inside, agents))]
        if hops and len(apart) == len(inside):
            notes.append("with 0 hops the blocks would be the same")
    figure = new_figure(5.8 if len(panels) == 1 else WIDTH, 5.6, "compressed")
    order = np.concatenate(inside)
    most = BLOCKS_NAMED if len(panels) == 1 else BLOCKS_NAMED_OF_TWO
    for place, axes in enumerate(np.atleast_1d(figure.subplots(1, len(panels)))):
        _draw_blocks(axes, panels[place], diagonal)
        if len(order) > most:
            axes.set_xlabel("features, hub by hub")
            continue
        shown = [words(saved.feature_names[j], 22) if place == 0 else "" for j in order]
        small = 8 if len(order) <= BLOCKS_NAMED_OF_TWO else 6.5
        axes.set_xticks([])
        axes.set_xlabel("the same features", fontsize=9)
        axes.set_yticks(range(len(order)), shown, fontsize=small)
        axes.tick_params(length=2)
    figure.suptitle(
        f"entries of a {mixture.covariance_type} covariance that are estimated; the rest is 0",
        fontsize=11,
    )
    shares = [f"{title}: {_count(parts, diagonal)} of {len(order) ** 2} entries"
              for title, parts, *_ in panels]  # fmt: skip
    if len(order) > most:
        notes.append(f"names of features are left out, as there are more than {most}")
    return Picture(figure, f"Blocks of the covariance. {'; '.join(shares)}.", notes)


def _holders(
    saved: SavedMixture, parts: Sequence[NDArray[np.intp]], agents: NDArray[np.intp]
) -> list[str]:
    """Return who holds each of these features; nothing where the feature says it by its name."""
    names, features = saved.node_names(int(agents.max()) + 1), saved.feature_names
    holders = [names[agents[part[0]]] for part in parts]
    same = [name == features[part[0]] for name, part in zip(holders, parts, strict=True)]
    return ["" if one else name for name, one in zip(holders, same, strict=True)]


def _runs(columns: NDArray[np.intp], agents: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    cuts = np.flatnonzero(np.diff(agents[columns])) + 1
    return list(np.split(columns, cuts))


def _count(parts: Sequence[NDArray[np.intp]], diagonal: bool) -> int:
    return sum(len(part) if diagonal else len(part) ** 2 for part in parts)


def _draw_blocks(axes: Axes, panel: Panel, diagonal: bool) -> None:
    from matplotlib.patches import Rectangle

    title, parts, hubs, agents = panel
    d = sum(map(len, parts))
    begin = 0
    crowded = len(parts) > 200
    for place, (part, hub) in enumerate(zip(parts, hubs, strict=True)):
        width = len(part)
        box = (begin - 0.5, begin - 0.5)
        style: Report = {
            "facecolor": hub_colour(hub) if hub >= 0 else LIGHT,
            "edgecolor": "black",
            "linewidth": 0.5,
        }
        if crowded:
            # What is smaller than a dot is seen by its edge.
            style |= {"edgecolor": style["facecolor"], "linewidth": 0.8}
        if not crowded and width / d > WIDTH_NUMBERED:
            style["hatch"] = HATCHES[max(hub, 0) // len(HUBS) % len(HATCHES)]
        if diagonal:
            axes.add_patch(Rectangle(box, width, width, fill=False, lw=0.5, ec=BAND))
            for at in range(begin, begin + width):
                axes.add_patch(Rectangle((at - 0.5, at - 0.5), 1, 1, **style))
        else:
            axes.add_patch(Rectangle(box, width, width, **style))
        middle = begin + (width - 1) / 2
        if agents and len(parts) <= NAMED_AGENTS:
            left = middle > d / 2
            beside = begin - 0.5 if left else begin + width - 0.5
            axes.annotate(
                words(agents[place], 18), (beside, middle),
                xytext=(-3 if left else 3, 0), textcoords="offset points", fontsize=8,
                ha="right" if left else "left", va="center",
            )  # fmt: skip
        elif width / d > WIDTH_NUMBERED and len(parts) > 1 and not agents:
            axes.annotate(
                str(hub), (middle, middle), ha="center", va="center",
                fontsize=float(np.clip(90 * width / d, 8, 11)),
                bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.75}
                if hub >= len(HUBS) else None,
            )  # fmt: skip
        begin += width
    axes.set_xlim(-0.5, d - 0.5)
    axes.set_ylim(d - 0.5, -0.5)
    axes.set_aspect("equal")
    count = _count(parts, diagonal)
    kinds = f"{len(parts)} block{'' if len(parts) == 1 else 's'}"
    if agents:
        coloured = hubs[0] >= 0
        who = ", of agents" + ("\nin the colours of their hubs" if coloured else "")
    else:
        numbered = len(parts) > 1 and max(map(len, parts)) / d > WIDTH_NUMBERED
        who = " (number: hub)" if numbered else ""
    axes.set_title(
        f"{title}: {kinds}{who}\n{count} of {d * d} entries ({100 * count / d**2:.3g} %)",
        fontsize=9,
    )


HUBS_NAMED = 60
"""Agents up to which each bears its name."""

UPRIGHT = 25
"""Agents on a circle up to which names stand upright."""

RINGS = ("cycle", "complete", "small-world")
"""Graphs without a server whose agents are drawn on a circle."""

HUBS_NUMBERED = 150
"""Agents up to which each bears the number of its hub."""

WORKED_OUT = 400
"""Agents up to which places come from path lengths, beyond from springs."""


def draw_hubs(
    graph: Graph, hubs: Sequence[Hub], names: Sequence[str] | None = None, ax: Axes | None = None
) -> Picture:
    """Draw a graph coloured by hub, roots as squares with a thick edge.

    Agents bear the number of their hub and, where they are few, their name. In grey the hubs differ
    by these numbers, and by the links inside them, which are thick. Without hubs agents are
    workers, and where every agent is a hub of its own there is nothing for colours to say.
    """
    from matplotlib.collections import LineCollection

    names = list(names or graph.names or map(str, range(graph.n_agents)))
    hub_of = np.full(graph.n_nodes, -1)
    for number, hub in enumerate(hubs):
        hub_of[[hub.root, *hub.agents]] = number
    places = _places(graph)
    figure, axes = one_panel(ax, 6.6, 6.0)
    shared = any(len(hub.agents) > 1 for hub in hubs)
    fills = [hub_colour(hub) if shared and hub >= 0 else LIGHT for hub in hub_of.tolist()]
    numbers = [str(hub) if hub >= 0 else "" for hub in hub_of.tolist()] if shared else []
    if graph.has_server and hub_of[-1] < 0:
        fills[-1] = "white"
    # Links between hubs are thin and grey, links inside one thick and in its colour.
    one, two = graph.edges.T
    thick = 2.6 if graph.n_agents <= HUBS_NUMBERED else 1.1
    inside = (hub_of[one] == hub_of[two]) & (hub_of[one] >= 0)
    lines = places[graph.edges]
    axes.add_collection(LineCollection(lines[~inside], colors=FAINT, linewidths=0.7, zorder=1))
    # A dark edge, for pale colours on white paper.
    axes.add_collection(
        LineCollection(lines[inside], colors=RULE, linewidths=thick + 1.0, zorder=1.5)
    )
    colours = [hub_colour(hub) for hub in hub_of[one[inside]]]
    axes.add_collection(LineCollection(lines[inside], colors=colours, linewidths=thick, zorder=2))
    _draw_nodes(axes, graph, hubs, fills, numbers, places)
    if graph.n_agents <= HUBS_NAMED:
        _draw_names(axes, graph, names, places)
    axes.set_aspect("equal")
    axes.set_axis_off()
    upright = not _is_crowded(graph)
    axes.margins((0.12 if upright else 0.2) if graph.n_agents <= HUBS_NAMED else 0.06)
    low, high = places.min(axis=0), places.max(axis=0)
    # A line of nodes would leave a panel without width.
    spare = 0.25 * max(float((high - low).max()), 1.0)
    axes.update_datalim([(low + high) / 2 - spare, (low + high) / 2 + spare])
    counts = [(graph.n_agents, "agent" if hubs else "worker"), (graph.n_edges, "link")]
    counts += [(len(hubs), "hub")] if hubs else []
    sizes = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    axes.set_title(f"{words(graph.topology)}: {sizes}")
    entries = _legend(hubs, graph, numbered=bool(numbers))
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
    if graph.n_agents > HUBS_NAMED:
        what = "names" if graph.n_agents <= HUBS_NUMBERED or not numbers else "names and numbers"
        notes.append(f"{what} are left out, as they would cover each other")
    return Picture(figure, alt, notes)


def _name(names: Sequence[str], node: int) -> str:
    return names[node] if node < len(names) else "server"


Places = NDArray[np.float64]
"""Where nodes are drawn, (n_nodes, 2)."""


def _places(graph: Graph) -> Places:
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
        layout = nx.kamada_kawai_layout(drawn, pos=dict(enumerate(ring)))
    else:
        layout = nx.spring_layout(drawn, seed=0)
    return np.array([layout[node] for node in range(n)])


def _draw_nodes(
    axes: Axes, graph: Graph, hubs: Sequence[Hub], fills: list[str], numbers: list[str], at: Places
) -> None:
    """Draw agents as discs, roots as squares, a server that is no root as a diamond."""
    many = graph.n_agents > HUBS_NUMBERED
    size = float(np.clip(14000 / graph.n_nodes, 10 if many else 18, 420))
    if graph.topology in RINGS and not numbers:
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
            at[nodes, 0], at[nodes, 1], s=size * scale, marker=marker,
            c=[fills[node] for node in nodes], edgecolors="black", linewidths=width, zorder=3,
        )  # fmt: skip
    if many or not numbers:
        return
    for node in np.concatenate([plain, roots]):
        axes.annotate(
            numbers[node], at[node], ha="center", va="center", zorder=4,
            fontsize=float(np.clip(0.42 * np.sqrt(size), 6.3, 9)),
        )  # fmt: skip


SIDES = ((0, 1), (1, 0), (0, -1), (-1, 0), (0.8, 0.8), (0.8, -0.8), (-0.8, -0.8), (-0.8, 0.8))
"""Of a node, where its name may stand; upright ones are taken first where they are as free."""


def _draw_names(axes: Axes, graph: Graph, names: Sequence[str], places: Places) -> None:
    """Write each node's name at the side where it is farthest from links, and rather outside."""
    sides = np.array(SIDES)
    outward = places - places.mean(axis=0)
    reach = np.sqrt(np.clip(14000 / graph.n_nodes, 18, 420)) / 2 + 6
    ring = _is_crowded(graph)
    for node, place in enumerate(places):
        name = words(_name(names, node), 18)
        if ring and np.linalg.norm(place) > 0.5:
            # Outwards from its node, so that neighbours on a circle leave each other room.
            out = place / np.linalg.norm(place)
            turn, left = float(np.degrees(np.arctan2(out[1], out[0]))), bool(out[0] < -1e-9)
            axes.annotate(
                name, (float(place[0]), float(place[1])), textcoords="offset points",
                xytext=(float(out[0] * reach), float(out[1] * reach)), zorder=5, fontsize=6.5,
                rotation=turn + 180 if left else turn, rotation_mode="anchor",
                ha="right" if left else "left", va="center", path_effects=halo(),
            )  # fmt: skip
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
            name, place, textcoords="offset points", zorder=5,
            xytext=(x * reach, y * reach), fontsize=9 if graph.n_agents <= UPRIGHT else 6.5,
            ha="center" if not x else "left" if x > 0 else "right",
            va="center" if not y else "bottom" if y > 0 else "top", path_effects=halo(),
        )  # fmt: skip


def _is_crowded(graph: Graph) -> bool:
    """Whether agents stand on a circle, where so many names have no room side by side."""
    ring = graph.has_server or graph.topology in RINGS
    return graph.positions is None and graph.n_agents > UPRIGHT and ring


def _legend(hubs: Sequence[Hub], graph: Graph, *, numbered: bool) -> list[Line2D]:
    from matplotlib.lines import Line2D

    def mark(marker: str, colour: str, label: str, width: float = 0.8) -> Line2D:
        shape: Report = {"marker": marker, "markersize": 9, "linestyle": ""}
        edge: Report = {"markeredgecolor": "black", "markeredgewidth": width}
        return Line2D([], [], label=label, markerfacecolor=colour, **shape, **edge)

    server = graph.has_server and graph.n_agents not in [hub.root for hub in hubs]
    entries = [mark("D", "white", "server")] if server else []
    if not hubs or not numbered:
        nodes = mark("s", LIGHT, "agent, alone in its hub", 2.2) if hubs else None
        link = Line2D([], [], color=FAINT, linewidth=0.7, label="link")
        return [nodes or mark("o", LIGHT, "worker"), *entries, link]
    numbering = "with its hub's number" if graph.n_agents <= HUBS_NUMBERED else "coloured by hub"
    return [
        mark("o", "white", f"agent, {numbering}"),
        mark("s", "white", "root of a hub", 2.2),
        *entries,
        Line2D([], [], color=RULE, linewidth=2.6, label="link inside a hub"),
        Line2D([], [], color=FAINT, linewidth=0.7, label="link between hubs"),
    ]


SHADES = {
    "setup": "#B9C4CB",
    "flooding": "#F2F4F5",
    "estep": "#5B6F7B",
    "stopping": "#D9DFE3",
    "server": "#5B6F7B",
    "labels": "#8C9DA7",
}
"""Greys, which no component and no hub has, with a hatch each."""

SENT, RECEIVED = CURVE, LIGHT

BARS = 12
"""Links or agents that have a bar each; the others have one together."""

LONGEST = 3.0
"""Times the longest other bar up to which the one of all others is drawn whole."""


def draw_communication(saved: SavedFit) -> Picture:
    kinds = saved.sent_by_kind()
    if not kinds:
        raise InputError(f"{saved.path}: nothing was sent, so there is no communication to draw")
    notes: list[str] = []
    figure = new_figure(WIDTH, 7.2)
    (phase, when), (link, agent) = figure.subplots(2, 2, height_ratios=[1, 1.6])
    tidy(phase, "x")
    sizes = [counted["bytes"] for counted in kinds.values()]
    unit, name = of_bytes(sizes)
    for place, (kind, counted) in enumerate(kinds.items()):
        phase.barh(place, counted["bytes"] / unit, **_style(kind))
        text = f" {size(counted['bytes'])}, {counted['messages']:,.0f} messages"
        phase.annotate(text, (counted["bytes"] / unit, place), va="center", fontsize=8)
    phase.set_yticks(range(len(kinds)), [MEANINGS.get(k, words(k)) for k in kinds], fontsize=9)
    phase.invert_yaxis()
    phase.set_xlim(0, (max(sizes) / unit or 1.0) * 2.6)
    phase.set_xlabel(name)
    phase.set_title("by phase", fontsize=10)
    setup = kinds.get("setup", {}).get("bytes", 0.0)
    drawn: list[tuple[Axes, Callable[[Axes, SavedFit], None], str]] = [
        (when, partial(_when, setup=setup), "when it was sent"),
        (link, _links, "what each link carried"),
        (agent, _agents, "what each agent sent"),
    ]
    for axes, draw, what in drawn:
        try:
            draw(axes, saved)
        except InputError as error:
            notes.append(str(error))
            axes.set_axis_off()
            axes.text(0.5, 0.5, f"the file does not say {what}", ha="center", va="center",
                      transform=axes.transAxes, fontsize=9)  # fmt: skip
    total = sum(counted["bytes"] for counted in kinds.values())
    messages = sum(counted["messages"] for counted in kinds.values())
    figure.suptitle(f"{size(total)} in {messages:,.0f} messages", fontsize=11)
    listed = ", ".join(f"{MEANINGS.get(k, k)} {size(c['bytes'])}" for k, c in kinds.items())
    return Picture(figure, f"{size(total)} sent: {listed}.", notes)


def _style(kind: str) -> Report:
    hatch = HATCHES[list(SHADES).index(kind) % len(HATCHES)] if kind in SHADES else "++"
    shade = SHADES.get(kind, "#FFFFFF")
    return {"facecolor": shade, "hatch": hatch, "edgecolor": "black", "linewidth": 0.4}


def _when(axes: Axes, saved: SavedFit, setup: float) -> None:
    history = saved.history()
    if history.sent is None:
        raise InputError(f"{saved.path} does not say what was sent by which iteration")
    tidy(axes)
    unit, name = of_bytes(history.sent)
    setup = min(setup, float(history.sent[0]))
    sent = history.sent / unit
    style: Report = {"marker": "o", "markersize": 3} if len(sent) == 1 else {}
    axes.fill_between(history.iteration, setup / unit, sent, color=LIGHT, linewidth=0)
    axes.plot(history.iteration, sent, color=CURVE, label="all by then", **style)
    if setup:
        axes.fill_between(history.iteration, 0, setup / unit, **_style("setup"), label="setup")
    axes.set_ylim(0, float(sent[-1]) * 1.05 or 1.0)
    axes.set(xlabel="iteration", ylabel=name)
    whole_numbers(axes.xaxis)
    axes.legend(fontsize=8, loc="lower right", framealpha=0.9)
    axes.set_title("setup and iterations", fontsize=10)


Part = tuple[str, float, Report]
"""A part of a bar: what it is, how many bytes, how it looks."""


def _bars(axes: Axes, bars: list[tuple[str, list[Part]]], rest: str, left: int) -> str:
    """Draw bars on top of each other, those of all that are left in one; return the unit.

    Where that one would leave no room for the others it is cut, and says how long it is.
    """
    tidy(axes, "x")
    longest = max((sum(part[1] for part in parts) for _, parts in bars), default=0.0)
    if left:
        shown = bars[:-1]
        longest = max((sum(part[1] for part in parts) for _, parts in shown), default=0.0)
    unit, name = of_bytes([longest])
    end = LONGEST * longest
    for place, (_, parts) in enumerate(bars):
        total = sum(part[1] for part in parts)
        scale = min(1.0, end / total) if total > 0 else 1.0
        begin = 0.0
        for _, part, style in parts:
            axes.barh(place, part * scale / unit, left=begin / unit, **style)
            begin += part * scale
        if left and place == len(bars) - 1:
            cut = scale < 1
            axes.annotate(
                f"{' // ' if cut else ' '}{size(total)}", (begin / unit, place), va="center",
                ha="left", fontsize=8,
            )  # fmt: skip
            axes.set_xlim(0, max(longest, begin) / unit * 1.28)
    names = [text for text, _ in bars]
    if left:
        names[-1] = f"{left} other {rest}"
    axes.set_yticks(range(len(bars)), names, fontsize=8)
    axes.invert_yaxis()
    return name


def _draw_busiest(
    axes: Axes,
    places: NDArray[np.intp],
    name_of: Callable[[int], str],
    parts_of: Callable[[NDArray[np.intp]], list[Part]],
    rest: str,
) -> str:
    """Draw a bar for each of the busiest, which come first, and one of all others; their unit."""
    shown = places if len(places) <= BARS + 1 else places[:BARS]
    others = places[len(shown) :]
    bars = [(name_of(int(at)), parts_of(np.array([at]))) for at in shown]
    bars += [("", parts_of(others))] if len(others) else []
    return _bars(axes, bars, rest, len(others))


def _links(axes: Axes, saved: SavedFit) -> None:
    ends, by_kind = saved.links()
    total = sum(by_kind.values(), np.zeros(len(ends)))
    names = saved.node_names(saved.graph().n_nodes)
    order = np.argsort(-total, kind="stable")

    def parts(at: NDArray[np.intp]) -> list[Part]:
        return [(kind, float(values[at].sum()), _style(kind)) for kind, values in
                by_kind.items() if values[at].any()]  # fmt: skip

    def ends_of(at: int) -> str:
        return " \N{EN DASH} ".join(words(names[end], 18) for end in ends[at])

    name = _draw_busiest(axes, order[total[order] > 0], ends_of, parts, "links")
    axes.set_xlabel(f"{name}, both directions\n(phases look as above)", fontsize=9)
    axes.set_title("busiest links", fontsize=10)


def _agents(axes: Axes, saved: SavedFit) -> None:
    out, into = saved.sent_by_agent()
    names = saved.node_names(len(out))
    noun = "worker" if saved.over_rows else "agent"
    looks: Report = {"edgecolor": "black", "linewidth": 0.4}

    def parts(at: NDArray[np.intp]) -> list[Part]:
        received = {"color": RECEIVED, "hatch": "////", **looks}
        return [
            ("sent", float(out[at].sum()), {"color": SENT, **looks}),
            ("received", float(into[at].sum()), received),
        ]

    order = np.argsort(-(out + into), kind="stable")
    name = _draw_busiest(axes, order, lambda at: words(names[at], 20), parts, f"{noun}s")
    axes.set_xlabel(f"{name}\nsent (dark), received (hatched)", fontsize=9)
    axes.set_title(f"by {noun}", fontsize=10)
