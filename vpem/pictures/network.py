"""Who took part and who shares covariances: the graph, and the blocks of the covariance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import shorten
from vpem.network.schema import Report
from vpem.pictures.figure import WIDTH, Picture, new_figure, words
from vpem.pictures.hubs import draw_hubs
from vpem.pictures.reported import SavedFit
from vpem.pictures.saved import SavedMixture
from vpem.pictures.style import BAND, HATCHES, HUBS, LIGHT, hub_colour
from vpem.terms.covariances import is_diagonal
from vpem.terms.families.mixture import MixedMixture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NAMED = 40
"""Features up to which axes bear their names."""

NAMED_OF_TWO = 30
"""The same, of two panels side by side."""

NUMBERED = 0.033
"""Share of the panel's side from which a block bears its number."""


NAMED_AGENTS = 16
"""Agents up to which their blocks bear their names."""


@dataclass(frozen=True)
class Panel:
    """Blocks: their features, the hub of each, and the agents that they are of, or hubs'."""

    title: str
    parts: list[NDArray[np.intp]]
    hubs: list[int]
    agents: Sequence[str] = ()


def draw_graph(saved: SavedFit, ax: Axes | None = None) -> Picture:
    """Draw agents coloured by hub with their links, or workers."""
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
    inside, filled = _covariance_blocks(mixture, notes, saved.feature_names)
    hops = saved.reported("hops", int)
    if saved.over_rows or blocks.n_blocks == 1:
        title = (
            "rows are split, features are not" if saved.over_rows else "one root has all features"
        )
    else:
        title = f"{'?' if hops is None else hops} hop{'' if hops == 1 else 's'}"
    panels = [Panel(title, inside, filled)]
    agents = None if saved.over_rows else saved.agents_of_features()
    if saved.over_rows:
        pass
    elif agents is None:
        notes.append(
            str(saved.missing("which agent holds which feature (for the blocks of 0 hops)"))
        )
    else:
        runs = [_runs(columns, agents) for columns in inside]
        apart = [part for own in runs for part in own]
        if len(apart) > len(inside):
            owners = [hub for hub, own in zip(filled, runs, strict=True) for _ in own]
            panels.insert(0, Panel("0 hops", apart, owners, _holders(saved, apart, agents)))
        elif len(inside) > 1:
            # Every agent is a hub of its own: as on the graph, colours have nothing to say.
            panels = [Panel(title, inside, [-1] * len(inside), _holders(saved, inside, agents))]
        if hops and len(apart) == len(inside):
            notes.append("with 0 hops the blocks would be the same")
    figure = new_figure(5.8 if len(panels) == 1 else WIDTH, 5.6, "compressed")
    order = np.concatenate(inside)
    most = NAMED if len(panels) == 1 else NAMED_OF_TWO
    for place, axes in enumerate(np.atleast_1d(figure.subplots(1, len(panels)))):
        _draw_blocks(axes, panels[place], diagonal)
        _name_features(axes, [saved.feature_names[j] for j in order], most, names_left=place == 0)
    figure.suptitle(
        f"entries of a {mixture.covariance_type} covariance that are estimated; the rest is 0",
        fontsize=11,
    )
    shares = [f"{one.title}: {_count(one.parts, diagonal)} of {len(order) ** 2} entries"
              for one in panels]  # fmt: skip
    if len(order) > most:
        notes.append(f"names of features are left out, as there are more than {most}")
    return Picture(figure, f"Blocks of the covariance. {'; '.join(shares)}.", notes)


def _covariance_blocks(
    mixture: Any, notes: list[str], names: Sequence[str]
) -> tuple[list[NDArray[np.intp]], list[int]]:
    """Return the features of each block of the covariance, and its hub; ``notes`` tell of others.

    A hub has a block of each family with a covariance.
    """
    if not isinstance(mixture, MixedMixture):
        blocks = mixture.blocks
        filled = np.flatnonzero(blocks.widths).tolist()
        return [blocks.features[b] for b in filled], filled
    found = []
    for part in mixture.parts:
        if part.core is not None:
            own = enumerate(part.features.blocks.features)
            found += [(b, part.features.columns[one]) for b, one in own if len(one)]
    inside = np.concatenate([np.empty(0, dtype=np.intp), *(columns for _, columns in found)])
    others = np.setdiff1d(np.arange(mixture.n_features), inside).tolist()
    if others:
        listed = shorten((names[j] for j in others), 6)
        notes.append(f"left out, as their families have no covariance: {listed}")
    found.sort(key=lambda one: one[0])
    return [columns for _, columns in found], [b for b, _ in found]


def _holders(
    saved: SavedMixture, parts: Sequence[NDArray[np.intp]], agents: NDArray[np.intp]
) -> list[str]:
    """Return who holds each of these features; nothing where the feature says it by its name."""
    names, features = saved.node_names(int(agents.max()) + 1), saved.feature_names
    found = [names[agents[part[0]]] for part in parts]
    same = [name == features[part[0]] for name, part in zip(found, parts, strict=True)]
    return ["" if one else name for name, one in zip(found, same, strict=True)]


def _runs(columns: NDArray[np.intp], agents: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Cut a hub's features, which stand by agent, into those of each agent."""
    cuts = np.flatnonzero(np.diff(agents[columns])) + 1
    return list(np.split(columns, cuts))


def _count(parts: Sequence[NDArray[np.intp]], diagonal: bool) -> int:
    """Entries that are estimated."""
    return sum(len(part) if diagonal else len(part) ** 2 for part in parts)


def _draw_blocks(axes: Axes, panel: Panel, diagonal: bool) -> None:
    from matplotlib.patches import Rectangle

    parts = panel.parts
    d = sum(map(len, parts))
    begin = 0
    crowded = len(parts) > 200
    for place, (part, hub) in enumerate(zip(parts, panel.hubs, strict=True)):
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
        if not crowded and width / d > NUMBERED:
            style["hatch"] = HATCHES[max(hub, 0) // len(HUBS) % len(HATCHES)]
        if diagonal:
            axes.add_patch(Rectangle(box, width, width, fill=False, lw=0.5, ec=BAND))
            for at in range(begin, begin + width):
                axes.add_patch(Rectangle((at - 0.5, at - 0.5), 1, 1, **style))
        else:
            axes.add_patch(Rectangle(box, width, width, **style))
        middle = begin + (width - 1) / 2
        if panel.agents and len(parts) <= NAMED_AGENTS:
            left = middle > d / 2
            beside = begin - 0.5 if left else begin + width - 0.5
            axes.annotate(
                words(panel.agents[place], 18), (beside, middle),
                xytext=(-3 if left else 3, 0), textcoords="offset points", fontsize=8,
                ha="right" if left else "left", va="center",
            )  # fmt: skip
        elif width / d > NUMBERED and len(parts) > 1 and not panel.agents:
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
    if panel.agents:
        coloured = panel.hubs[0] >= 0
        who = ", of agents" + ("\nin the colours of their hubs" if coloured else "")
    else:
        numbered = len(parts) > 1 and max(map(len, parts)) / d > NUMBERED
        who = " (number: hub)" if numbered else ""
    axes.set_title(
        f"{panel.title}: {kinds}{who}\n{count} of {d * d} entries ({100 * count / d**2:.3g} %)",
        fontsize=9,
    )


def _name_features(axes: Axes, names: Sequence[str], most: int, names_left: bool) -> None:
    if len(names) > most:
        axes.set_xlabel("features, hub by hub")
        return
    small = 8 if len(names) <= NAMED_OF_TWO else 6.5
    shown = [words(name, 22) for name in names]
    axes.set_xticks([])
    axes.set_xlabel("the same features", fontsize=9)
    axes.set_yticks(range(len(names)), shown if names_left else [""] * len(names), fontsize=small)
    axes.tick_params(length=2)
