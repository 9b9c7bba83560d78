"""What was sent: by phase and by agent, over which links most, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError
from vpem.network.schema import Report
from vpem.pictures.figure import WIDTH, Picture, new_figure, words
from vpem.pictures.reported import SavedFit
from vpem.pictures.style import CURVE, HATCHES, LIGHT, of_bytes, said_bytes, tidy, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MEANINGS = {
    "setup": "setup",
    "flooding": "agreeing",
    "estep": "rounds of E-steps",
    "stopping": "agreeing to stop",
    "server": "sums at the server",
    "labels": "labels",
}
"""What the ledger's kinds are, in a word or two."""

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
    """Draw bytes by phase, of the busiest links, by agent, and setup against iterations."""
    kinds = saved.sent_by_kind()
    if not kinds:
        raise InputError(f"{saved.path}: nothing was sent, so there is no communication to draw")
    notes: list[str] = []
    figure = new_figure(WIDTH, 7.2)
    (phase, when), (link, agent) = figure.subplots(2, 2, height_ratios=[1, 1.6])
    _phases(phase, kinds)
    _when(when, saved, kinds, notes)
    _links(link, saved, notes)
    _agents(agent, saved, notes)
    total = sum(counted["bytes"] for counted in kinds.values())
    messages = sum(counted["messages"] for counted in kinds.values())
    figure.suptitle(f"{said_bytes(total)} in {messages:,.0f} messages", fontsize=11)
    listed = ", ".join(f"{MEANINGS.get(k, k)} {said_bytes(c['bytes'])}" for k, c in kinds.items())
    return Picture(figure, f"{said_bytes(total)} sent: {listed}.", notes)


def _nothing(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, fontsize=9)


def _style(kind: str) -> Report:
    hatch = HATCHES[list(SHADES).index(kind) % len(HATCHES)] if kind in SHADES else "++"
    shade = SHADES.get(kind, "#FFFFFF")
    return {"facecolor": shade, "hatch": hatch, "edgecolor": "black", "linewidth": 0.4}


def _phases(axes: Axes, kinds: dict[str, dict[str, float]]) -> None:
    tidy(axes, "x")
    sizes = [counted["bytes"] for counted in kinds.values()]
    unit, name = of_bytes(sizes)
    for place, (kind, counted) in enumerate(kinds.items()):
        axes.barh(place, counted["bytes"] / unit, **_style(kind))
        text = f" {said_bytes(counted['bytes'])}, {counted['messages']:,.0f} messages"
        axes.annotate(text, (counted["bytes"] / unit, place), va="center", fontsize=8)
    axes.set_yticks(range(len(kinds)), [MEANINGS.get(k, words(k)) for k in kinds], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, (max(sizes) / unit or 1.0) * 2.6)
    axes.set_xlabel(name)
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
        kept = bars[:-1]
        longest = max((sum(part[1] for part in parts) for _, parts in kept), default=0.0)
    unit, name = of_bytes([longest])
    end = LONGEST * longest
    for place, (_, parts) in enumerate(bars):
        total = sum(part[1] for part in parts)
        scale = min(1.0, end / total) if total > 0 else 1.0
        begin = 0.0
        for _, size, style in parts:
            axes.barh(place, size * scale / unit, left=begin / unit, **style)
            begin += size * scale
        if left and place == len(bars) - 1:
            cut = scale < 1
            axes.annotate(
                f"{' // ' if cut else ' '}{said_bytes(total)}", (begin / unit, place), va="center",
                ha="left", fontsize=8,
            )  # fmt: skip
            axes.set_xlim(0, max(longest, begin) / unit * 1.28)
    names = [text for text, _ in bars]
    if left:
        names[-1] = f"{left} other {rest}"
    axes.set_yticks(range(len(bars)), names, fontsize=8)
    axes.invert_yaxis()
    return name


def _links(axes: Axes, saved: SavedFit, notes: list[str]) -> None:
    try:
        links = saved.links()
        names = saved.node_names(saved.graph().n_nodes)
    except InputError as error:
        notes.append(str(error))
        _nothing(axes, "the file does not say what each link carried")
        return
    order = np.argsort(-links.total, kind="stable")
    order = order[links.total[order] > 0]
    shown = order if len(order) <= BARS + 1 else order[:BARS]
    rest = np.setdiff1d(order, shown)

    def parts(at: NDArray[np.intp]) -> list[Part]:
        return [(kind, float(values[at].sum()), _style(kind)) for kind, values in
                links.by_kind.items() if values[at].any()]  # fmt: skip

    bars = [
        (
            " \N{EN DASH} ".join(words(names[end], 18) for end in links.ends[at]),
            parts(np.array([at])),
        )
        for at in shown
    ]
    bars += [("", parts(rest))] if len(rest) else []
    name = _bars(axes, bars, "links", len(rest))
    axes.set_xlabel(f"{name}, both directions\n(phases look as above)", fontsize=9)
    axes.set_title("busiest links", fontsize=10)


def _agents(axes: Axes, saved: SavedFit, notes: list[str]) -> None:
    """Draw what each agent sent and received, the busiest first."""
    try:
        out, into = saved.sent_by_agent()
    except InputError as error:
        notes.append(str(error))
        _nothing(axes, "the file does not say what each agent sent")
        return
    names = saved.node_names(len(out))
    noun = "worker" if saved.over_rows else "agent"
    looks: Report = {"edgecolor": "black", "linewidth": 0.4}
    styles: list[Report] = [
        {"color": SENT, **looks}, {"color": RECEIVED, "hatch": "////", **looks},
    ]  # fmt: skip
    order = np.argsort(-(out + into), kind="stable")
    shown = order if len(order) <= BARS + 1 else order[:BARS]
    groups = [(words(names[at], 20), np.array([at])) for at in shown]
    left = len(order) - len(shown)
    groups += [("", order[len(shown) :])] if left else []
    bars = [
        (name, [("sent", float(out[at].sum()), styles[0]),
                ("received", float(into[at].sum()), styles[1])])
        for name, at in groups
    ]  # fmt: skip
    name = _bars(axes, bars, f"{noun}s", left)
    axes.set_xlabel(f"{name}\nsent (dark), received (hatched)", fontsize=9)
    axes.set_title(f"by {noun}", fontsize=10)
