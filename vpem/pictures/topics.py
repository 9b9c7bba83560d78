"""Pictures of topics: their words, what devices and documents are of, and how a fit went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vpem.pictures.figure import WIDTH, Picture, legend_below, new_figure, words
from vpem.pictures.style import CURVE, GRID, INK, colour, hatch, tidy, whole_numbers
from vpem.saem.corpus_facts import TOP
from vpem.saem.topics import Topics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_TOPICS = 24
"""Topics up to which all are drawn."""

MOST_DEVICES = 40

COLUMNS = 4


def draw_topics(found: Topics, most: int = MOST_TOPICS) -> Picture:
    """Draw the most probable words of each topic as bars, the largest topics first."""
    shown = found.order[:most]
    figure, panels = _grid(len(shown), 1.95)
    tops = found.top()
    longest = max(tops[k][0][1] for k in shown)
    for axes, k in zip(panels, shown.tolist(), strict=True):
        names = [words(word, 16) for word, _ in tops[k]]
        places = np.arange(len(names))
        axes.barh(places, [weight for _, weight in tops[k]], height=0.72, color=CURVE, zorder=3)
        axes.set_yticks(places, names, fontsize=8)
        axes.set_ylim(TOP - 0.4, -0.6)
        axes.set_xlim(0, 1.05 * longest)
        axes.tick_params(axis="y", length=0)
        axes.set_title(
            f"topic {k}: {found.shares[k]:.1%}\ncoherence {found.coherence[k]:.2f}", fontsize=9
        )
    for axes in panels[max(0, len(panels) - COLUMNS) :]:
        axes.set_xlabel("probability", fontsize=8)
    some = "; ".join(
        f"topic {k} ({found.shares[k]:.1%}): {', '.join(word for word, _ in tops[k][:5])}"
        for k in shown.tolist()
    )
    alt = f"The most probable words of {len(shown)} of {found.n_topics} topics: {some}."
    return Picture(figure, alt, _left_out(len(shown), found.n_topics, "topics, the largest,"))


def draw_shares(found: Topics) -> Picture:
    """Draw what share of the words of each device, and of all of them, is of which topic."""
    shown = found.device_names[:MOST_DEVICES] if len(found.device_shares) else ()
    rows = np.vstack([found.shares, found.device_shares[: len(shown)]])
    names = ["all", *shown]
    order = found.order
    many = len(order) > MOST_TOPICS
    parts = order[: MOST_TOPICS - 1] if many else order
    figure = new_figure(WIDTH, 0.34 * len(names) + 1.0 + 0.22 * (-(-len(parts) // 5)))
    axes: Axes = figure.subplots()
    tidy(axes)
    places, left = np.arange(len(names)), np.zeros(len(names))
    for number, k in enumerate(parts.tolist()):
        axes.barh(
            places, rows[:, k], left=left, height=0.74, color=colour(number), edgecolor="white",
            linewidth=0.5, hatch=hatch(number), label=f"topic {k}", zorder=3,
        )  # fmt: skip
        left = left + rows[:, k]
    if many:
        axes.barh(places, 1 - left, left=left, height=0.74, color="white", edgecolor=INK,
                  linewidth=0.5, label="others", zorder=3)  # fmt: skip
    axes.set_yticks(places, [words(name, 24) for name in names], fontsize=9)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the words", fontsize=9)
    legend_below(figure, axes.get_legend_handles_labels()[0], size=8)
    largest = ", ".join(
        f"{name} topic {int(row.argmax())} with {row.max():.0%}"
        for name, row in zip(names, rows, strict=True)
    )
    alt = f"Shares of {found.n_topics} topics in the words of devices; the largest: {largest}."
    return Picture(figure, alt, _left_out(len(shown), len(found.device_shares), "devices"))


def draw_spreads(found: Topics) -> Picture:
    """Draw the perplexity, and over how many words each topic is spread, by iteration.

    The perplexity is of the documents' words, where it was seen, and of each topic's; the burn-in
    is shaded.
    """
    shown = found.order[:MOST_TOPICS]
    seen = len(found.perplexities) > 0
    figure, panels = _grid(len(shown) + seen, 1.35)
    burn_in = found.saved.settings.get("burn_in")
    for axes in panels:
        if isinstance(burn_in, int) and burn_in > 0:
            axes.axvspan(0, min(burn_in, found.saved.n_iter), color=GRID, linewidth=0, zorder=0)
        axes.set_xlim(0, found.saved.n_iter)
        whole_numbers(axes.xaxis, 4)
    if seen:
        axes = panels[0]
        axes.plot(*found.perplexities.T, color=CURVE, linewidth=1.0, marker=".", ms=3, zorder=3)
        axes.set_title("perplexity of all words", fontsize=8)
    steps, first = np.arange(found.saved.n_iter + 1), found.top(3)
    for axes, k in zip(panels[seen:], shown.tolist(), strict=True):
        axes.plot(steps, found.saved.trace[:, k], color=CURVE, linewidth=1.0, zorder=3)
        axes.set_title(
            f"topic {k}: {words(', '.join(word for word, _ in first[k]), 20)}", fontsize=8
        )
    for axes in panels[max(0, len(panels) - COLUMNS) :]:
        axes.set_xlabel("iteration", fontsize=8)
    for axes in panels[::COLUMNS]:
        axes.set_ylabel("words", fontsize=8)
    ends = ", ".join(f"topic {k} {found.saved.trace[-1, k]:.4g}" for k in shown.tolist())
    alt = (
        f"Over how many words topics are spread, by iteration of {found.saved.n_iter}; at the end: "
        f"{ends}."
    )
    return Picture(figure, alt, _left_out(len(shown), found.n_topics, "topics, the largest,"))


def _grid(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """Figure with so many panels, and the panels."""
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure = new_figure(max(3.4, WIDTH * columns / COLUMNS), height * rows + 0.5)
    panels: list[Axes] = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels[:count]:
        tidy(axes)
        axes.tick_params(labelsize=8)
    return figure, panels[:count]


def _left_out(shown: int, count: int, what: str) -> list[str]:
    return [] if shown == count else [f"{shown} of {count} {what} are drawn"]
