"""What components are: how far the mean of each lies from that of all rows, feature by feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.fits.answer import Answer, most_telling, standardized_means
from vpem.pictures.densities import others, pick_features
from vpem.pictures.figure import WIDTH, Picture, one_panel, words
from vpem.pictures.reported import SavedFit
from vpem.pictures.style import mark_components

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_FEATURES = 30
"""Features that are drawn, unless they are chosen."""

MOST_CHOSEN = 200

LEVELS = 4
"""Levels of a category that have lines."""

WRITTEN = 14
"""Components up to which cells bear their numbers."""

BELOW = 0.5
"""Standard deviations below the mean from which a cell without a number bears a minus."""

COLOUR_MAP = "PRGn"
"""Green above, purple below; which of them is said by a sign too, for grey."""


def draw_profile(
    saved: SavedFit, features: Sequence[str] | None = None, ax: Axes | None = None
) -> Picture:
    """Draw standardized means as a map: components beside each other, a feature a line.

    Features stand by the component in which they are highest, the highest first, so that what
    belongs together stands together. Those given, by name or number, keep their order; of more than
    30 by default those are drawn that tell components apart best.
    """
    answer, noun = saved.answer, saved.noun
    notes = list(answer.notes)
    columns = pick_features(saved, features, MOST_CHOSEN)
    if columns is None:
        columns = answer.telling[:MOST_FEATURES].tolist()
        d = len(answer.feature_names)
        if d > len(columns):
            notes.append(
                f"{len(columns)} of {d} features are drawn, those that tell {noun}s apart best; "
                f"{others(MOST_CHOSEN)}"
            )
    away, names = _lines_of(answer, columns)
    if features is None:
        order = _ordered(away)
        away, names = away[:, order], [names[at] for at in order]
    away = away.T
    d, k = away.shape
    longest = max(map(len, names))
    wide = 0.62 * k if k <= WRITTEN else 0.3 * k
    figure, axes = one_panel(
        ax, float(np.clip(wide + 0.09 * longest + 2.2, 5.4, WIDTH)), max(0.25 * d, 0.7) + 1.6
    )
    reach = max(1.0, float(np.abs(away).max(initial=0.0)))
    image = axes.imshow(away, aspect="auto", cmap=COLOUR_MAP, vmin=-reach, vmax=reach)
    label = "standard deviations from the mean of all rows"
    bar = figure.colorbar(
        image, ax=axes, pad=0.02, aspect=25, shrink=min(1.0, 12 / d),
        label=label if d > 9 else "standard deviations",
    )  # fmt: skip
    bar.outline.set_visible(False)
    _write_cells(axes, away, reach)
    shares = [f"{100 * share:.0f} %" if share >= 0.005 else "<1 %" for share in answer.weights]
    axes.set_xticks(
        range(k), [f"{c}\n{share}" if k <= WRITTEN else str(c) for c, share in enumerate(shares)],
        fontsize=9 if k <= 10 else 8,
    )  # fmt: skip
    axes.set_yticks(range(d), names, fontsize=8.5 if d <= MOST_FEATURES else 6)
    axes.tick_params(axis="y", length=0)
    mark_components(axes, range(k), "x")
    axes.spines[:].set_visible(False)
    axes.set_xlabel(f"{noun}, and its share of the rows" if k <= WRITTEN else noun)
    axes.set_title(f"mean of each {noun} beside that of all rows", fontsize=10, loc="left")
    said = []
    for c, share in enumerate(shares[:12]):
        most = ", ".join(map(str, answer.differences(c))) or "nothing"
        said.append(f"{noun} {c} ({share}) differs most in {most}")
    return Picture(figure, f"Standardized means of {d} features: {'; '.join(said)}.", notes)


def _lines_of(answer: Answer, columns: Sequence[int]) -> tuple[NDArray[np.float64], list[str]]:
    """Return what stands in each line (K, n), and its name: a line a feature, or a level of one.

    Of a category with two levels the second is drawn, which says all; of others those that tell
    components apart best.
    """
    found, names = [], []
    for j in columns:
        name = answer.feature_names[j]
        if j not in answer.levels:
            found.append(answer.standardized[:, j])
            names.append(words(name, 30))
            continue
        own = answer.levels[j]
        whole = answer.weights @ own.shares
        spread = np.sqrt(whole * (1 - whole))
        each = standardized_means(answer.weights, own.shares, spread)
        told = most_telling(answer.weights, each)[:LEVELS]
        for level in [1] if len(whole) == 2 else sorted(told.tolist()):
            found.append(each[:, level])
            names.append(words(f"{words(name, 18)}: {own.names[level]}", 30))
    return np.array(found).T.reshape(len(answer.weights), len(found)), names


def _ordered(away: NDArray[np.float64]) -> list[int]:
    """Order lines by the component in which they are highest, the highest first."""
    highest = away.argmax(axis=0)
    return sorted(range(away.shape[1]), key=lambda at: (highest[at], -away[highest[at], at], at))


def _write_cells(axes: Axes, away: NDArray[np.float64], reach: float) -> None:
    """Write each number where there is room, else a minus where it is below the mean."""
    d, k = away.shape
    for (row, column), value in np.ndenumerate(away):
        if k <= WRITTEN:
            written = f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")
            text = "0" if abs(value) < 0.05 else written
        elif value <= -BELOW:
            text = "\N{MINUS SIGN}"
        else:
            continue
        axes.text(
            column, row, text, ha="center", va="center",
            fontsize=8 if k <= WRITTEN and d <= MOST_FEATURES else 6,
            color="white" if abs(value) > 0.72 * reach else "black",
        )  # fmt: skip
