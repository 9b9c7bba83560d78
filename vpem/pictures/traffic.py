"""What was sent: by phase and by agent, over which links most, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError
from vpem.network.schema import Report
from vpem.pictures.figure import Picture, new_figure, words
from vpem.pictures.reported import SavedFit
from vpem.pictures.style import COLOURS, HATCHES, LIGHT, of_bytes, said_bytes, tidy, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MEANINGS", "busiest_links", "draw_communication"]

MEANINGS = {
    "setup": "setup",
    "flooding": "agreeing",
    "estep": "rounds of E-steps",
    "stopping": "agreeing to stop",
    "server": "sums at the server",
    "labels": "labels",
}
"""What the ledger's kinds are, in a word or two."""

SHADES = {"setup": 1, "flooding": 4, "estep": 0, "stopping": 2, "server": 6, "labels": 3}
BARS = 15
BARS_OF_AGENTS = 30


def busiest_links(saved: SavedFit, most: int) -> list[tuple[str, dict[str, float]]]:
    """Return the links that carried most: their names, and bytes by kind."""
    links = saved.links()
    names = saved.node_names(saved.graph().n_nodes)
    total = links.total
    found = []
    for at in np.argsort(-total, kind="stable")[:most]:
        one, two = links.ends[at]
        carried = {kind: float(values[at]) for kind, values in links.by_kind.items() if values[at]}
        if carried:
            found.append((f"{words(names[one], 18)} - {words(names[two], 18)}", carried))
    return found


def draw_communication(saved: SavedFit) -> Picture:
    """Draw bytes by phase, of the busiest links, by agent, and setup against iterations."""
    kinds = saved.sent_by_kind()
    if not kinds:
        raise InputError(f"{saved.path}: nothing was sent, so there is no communication to draw")
    notes: list[str] = []
    links: list[tuple[str, dict[str, float]]] = []
    try:
        links = busiest_links(saved, BARS)
        n_links = len(saved.graph().edges)
        if n_links > BARS:
            notes.append(f"the {BARS} busiest of {n_links} links are drawn")
    except InputError as error:
        notes.append(str(error))
    try:
        agents = saved.sent_by_agent()
    except InputError as error:
        agents = None
        notes.append(str(error))
    figure = new_figure(10.0, 7.6)
    (phase, when), (link, agent) = figure.subplots(2, 2, height_ratios=[1, 1.6])
    _phases(phase, kinds)
    _when(when, saved, kinds, notes)
    _links(link, links, saved)
    if agents is None:
        _nothing(agent, "the file does not say what each agent sent")
    else:
        _agents(agent, saved, *agents, notes)
    total = sum(counted["bytes"] for counted in kinds.values())
    messages = sum(counted["messages"] for counted in kinds.values())
    figure.suptitle(f"{said_bytes(total)} in {messages:,.0f} messages", fontsize=11)
    listed = ", ".join(f"{MEANINGS.get(k, k)} {said_bytes(c['bytes'])}" for k, c in kinds.items())
    return Picture(figure, f"{said_bytes(total)} sent: {listed}.", notes)


def _legend_below(axes: Axes) -> None:
    """Put the legend where no bar is."""
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12))


def _nothing(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, fontsize=9)


def _style(kind: str) -> Report:
    number = SHADES.get(kind, 7)
    hatch = HATCHES[list(SHADES).index(kind) % len(HATCHES)] if kind in SHADES else "++"
    return {"facecolor": COLOURS[number], "hatch": hatch, "edgecolor": "black", "linewidth": 0.4}


def _phases(axes: Axes, kinds: dict[str, dict[str, float]]) -> None:
    tidy(axes, "x")
    sizes = [counted["bytes"] for counted in kinds.values()]
    unit, name = of_bytes(sizes)
    wide = max(sizes) > 200 * max(min(sizes), 1)
    for place, (kind, counted) in enumerate(kinds.items()):
        axes.barh(place, counted["bytes"] / unit, **_style(kind))
        text = f" {said_bytes(counted['bytes'])}, {counted['messages']:,.0f} messages"
        axes.annotate(text, (counted["bytes"] / unit, place), va="center", fontsize=8)
    axes.set_yticks(range(len(kinds)), [MEANINGS.get(k, words(k)) for k in kinds], fontsize=9)
    axes.invert_yaxis()
    most = max(sizes) / unit
    if wide:
        axes.set_xscale("log")
        low = max(min(size for size in sizes if size) if any(sizes) else 1.0, 1.0) / unit / 2
        axes.set_xlim(low, most * (most / low) ** 0.7)
    else:
        axes.set_xlim(0, most * 1.9)
    axes.set_xlabel(f"{name}{' (log scale)' if wide else ''}")
    axes.set_title("by phase", fontsize=10)


def _when(
    axes: Axes, saved: SavedFit, kinds: dict[str, dict[str, float]], notes: list[str]
) -> None:
    """Draw bytes sent by each iteration, those of the setup below them."""
    try:
        history = saved.history()
    except InputError as error:
        notes.append(str(error))
        _nothing(axes, "the file does not say when it was sent")
        return
    if history.sent is None:
        notes.append(f"{saved.path} does not say what was sent by which iteration")
        _nothing(axes, "the file does not say when it was sent")
        return
    tidy(axes)
    unit, name = of_bytes(history.sent)
    setup = min(kinds.get("setup", {}).get("bytes", 0.0), float(history.sent[0]))
    sent = history.sent / unit
    style: Report = {"marker": "o", "markersize": 3} if len(sent) == 1 else {}
    axes.fill_between(history.iteration, setup / unit, sent, color=LIGHT, linewidth=0)
    axes.plot(history.iteration, sent, color=COLOURS[6], label="all by then", **style)
    if setup:
        axes.fill_between(history.iteration, 0, setup / unit, **_style("setup"), label="setup")
    axes.set_ylim(0, float(sent[-1]) * 1.05 or 1.0)
    axes.set(xlabel="iteration", ylabel=name)
    whole_numbers(axes.xaxis)
    axes.legend(fontsize=8, loc="lower right", framealpha=0.9)
    axes.set_title("setup and iterations", fontsize=10)


def _links(axes: Axes, links: list[tuple[str, dict[str, float]]], saved: SavedFit) -> None:
    if not links:
        _nothing(axes, "the file does not say what each link carried")
        return
    tidy(axes, "x")
    unit, name = of_bytes([sum(carried.values()) for _, carried in links])
    seen: set[str] = set()
    for place, (_, carried) in enumerate(links):
        left = 0.0
        for kind, size in carried.items():
            label = None if kind in seen else MEANINGS.get(kind, kind)
            seen.add(kind)
            axes.barh(place, size / unit, left=left / unit, label=label, **_style(kind))
            left += size
    axes.set_yticks(range(len(links)), [text for text, _ in links], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"{name}, both directions")
    axes.set_title("busiest links", fontsize=10)
    _legend_below(axes)


def _agents(
    axes: Axes,
    saved: SavedFit,
    out: NDArray[np.float64],
    into: NDArray[np.float64],
    notes: list[str],
) -> None:
    """Draw what each agent sent and received: bars where they are few, else curves by rank."""
    tidy(axes, "x" if len(out) <= BARS_OF_AGENTS else "both")
    names = saved.node_names(len(out))
    order = np.argsort(-(out + into), kind="stable")
    unit, name = of_bytes(out + into)
    noun = "worker" if saved.over_rows else "agent"
    axes.set_title(f"by {noun}", fontsize=10)
    bars: Report = {"edgecolor": "black", "linewidth": 0.4}
    if len(out) <= BARS_OF_AGENTS:
        places = np.arange(len(out))
        axes.barh(places, out[order] / unit, color=COLOURS[6], label="sent", **bars)
        axes.barh(
            places, into[order] / unit, left=out[order] / unit, color=COLOURS[1], hatch="////",
            label="received", **bars,
        )  # fmt: skip
        size = 8 if len(out) <= 16 else 6
        axes.set_yticks(places, [words(names[agent], 20) for agent in order], fontsize=size)
        axes.invert_yaxis()
        axes.set_xlabel(name)
    else:
        rank = np.arange(1, len(out) + 1)
        axes.plot(rank, np.sort(out)[::-1] / unit, color=COLOURS[6], label="sent")
        axes.plot(rank, np.sort(into)[::-1] / unit, color=COLOURS[5], ls="--", label="received")
        positive = np.concatenate([out, into])
        positive = positive[positive > 0]
        if len(positive) and positive.max() > 50 * positive.min():
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set(xlabel=f"rank of the {noun}", ylabel=name)
        whole_numbers(axes.xaxis)
        top = ", ".join(words(names[agent], 16) for agent in order[:3])
        axes.text(0.97, 0.8, f"busiest: {top}", ha="right", transform=axes.transAxes, fontsize=8)
        notes.append(f"{len(out)} nodes are drawn by rank, as names would cover each other")
    _legend_below(axes)
