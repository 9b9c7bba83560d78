"""The mixture feature by feature: densities over histograms, and standardized means of components.

The latter are how far the mean of each component lies from that of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Labels, is_whole, read_int
from vpem.errors import InputError, brief, did_you_mean
from vpem.files.datasets import powers_of
from vpem.fits.answer import Answer, most_telling, standardized_means
from vpem.pictures.figure import (
    BAND,
    INK,
    PALE,
    WIDTH,
    Picture,
    colour,
    contender,
    few_ticks,
    halo,
    hatch,
    legend_below,
    line,
    mark_components,
    new_figure,
    one_panel,
    place_panels,
    shorten_numbers,
    tidy,
    words,
)
from vpem.pictures.saved import (
    DrawnParts,
    EvaluationData,
    SavedFit,
    densities_of,
    draw_levels,
    levels_drawn,
)
from vpem.terms.families.kinds import LAWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PANELS = 18
"""Features of the marginals, unless they are chosen."""

MOST_PANELS = 60
ROWS_OF_HISTOGRAM = 200_000
MOST_BINS = 400
CROWDED = 6
"""Components beyond which they are drawn higher than their part of the mixture, if they can be."""

TAIL = 0.002
"""Share of the rows at either end that may lie beyond the axis."""

FAR = 1.6
"""Times the range of all but these rows that an axis takes to show them too."""

BESIDE, BELOW = 0.52, 0.56
"""Inches at the left of each panel, for the numbers of its axis, and between rows of panels."""

LABEL = 0.2
"""Inches more at the left of all panels, for what their heights are."""


def others(most: int) -> str:
    return f"--features names others, up to {most} (in Python: features)"


def pick_features(saved: SavedFit, features: Sequence[str] | None, most: int) -> list[int] | None:
    if features is None:
        return None
    names = saved.feature_names
    places = []
    for word in features:
        place = names.index(word) if word in names else read_int(word)
        if place is None or not 0 <= place < len(names):
            raise InputError(
                f"{saved.path} has no feature {brief(word)}{did_you_mean(word, names)}; give "
                f"names, or numbers from 0 to {len(names) - 1}"
            )
        places.append(place)
    if len(set(places)) < len(places) or not places:
        raise InputError(f"features must be named once each, got {', '.join(features)}")
    if len(places) > most:
        raise InputError(f"this picture has room for {most} features, got {len(places)}")
    return places


def span(values: NDArray[np.float64]) -> tuple[float, float]:
    """Ends of the values, but for a few that lie far out."""
    low, high = values.min(), values.max()
    inner = (np.quantile(values, TAIL, method="higher"), np.quantile(values, 1 - TAIL,
             method="lower"))  # fmt: skip
    if high - low > FAR * (inner[1] - inner[0]) > 0:
        low, high = inner
    return float(low), float(high)


def are_counts(values: NDArray[np.float64]) -> bool:
    there = values[np.isfinite(values)]
    # Halves of larger ones are lost in the floats.
    return is_whole(there) and bool((np.abs(there) < 1e15).all())


def histogram(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Heights (n,), which integrate to 1, and edges (n + 1,) of one feature's histogram.

    Widths are half of those of Freedman and Diaconis, which suit one mode, not several; there are
    at least 20 bins where rows suffice. Where tails are so long that there would be too many, each
    tail is one. Bins of whole numbers hold equally many of them, from half below to half above.
    """
    low, high = float(values.min()), float(values.max())
    whole = are_counts(values)
    if not high > low:
        half = 0.5 if whole else max(abs(low), 1.0) * 0.05
        return np.array([1.0 / (2 * half)]), np.array([low - half, low + half])
    first, third = np.quantile(values, (0.25, 0.75))
    width = (third - first) * len(values) ** (-1 / 3)
    ends = span(values)
    inner = ends[1] - ends[0]
    fewest = np.clip(1.2 * np.sqrt(len(values)), 5, 20)
    width = np.clip(width, inner / 60, inner / fewest) if inner > 0 else high - low
    half = 0.0
    if whole:
        width, half = max(1.0, float(np.round(width))), 0.5
    if high - low <= MOST_BINS * width:
        ends = (low, high)
    first, last = ends[0] - half, ends[1] + half
    count = int(np.clip(np.ceil((last - first) / width), 1, MOST_BINS))
    edges = np.linspace(first, first + count * width if whole else last, count + 1)
    ends = (low - half, max(high + half, edges[-1]))
    return np.histogram(values, np.unique([ends[0], *edges, ends[1]]), density=True)


def draw_marginals(
    saved: SavedFit,
    rows: EvaluationData | None = None,
    features: Sequence[str] | None = None,
    over: Sequence[SavedFit] = (),
) -> Picture:
    """Draw densities over histograms; of models laid ``over`` each other the mixtures alone."""
    notes: list[str] = []
    parts = saved.parts()
    clusters = parts.variances is None
    d = len(saved.feature_names)
    columns = pick_features(saved, features, MOST_PANELS)
    if columns is None and d <= PANELS:
        columns = list(range(d))
    elif columns is None:  # those whose components differ most
        notes.append(
            f"{PANELS} of {d} features are drawn, in which components differ most; "
            f"{others(MOST_PANELS)}"
        )
        columns = sorted(saved.answer.telling[:PANELS].tolist())
    families = saved.families
    if features is None and families is not None:
        columns = [j for j in columns if families[j] != "covariate"]
    X = labels = None
    if rows is not None:
        X = rows.sample(ROWS_OF_HISTOGRAM)
        if len(X) < len(rows):
            notes.append(f"histograms are of {len(X)} of {len(rows)} rows, drawn at random")
        if clusters:
            labels = saved.assign(X)
    elif clusters:
        raise InputError(
            f"{saved.path} holds clusters, which have no density: give the data, whose histograms "
            "are drawn cluster by cluster"
        )
    wide = min(3, len(columns))
    high = -(-len(columns) // wide)
    size = max(2.4 * wide + 0.6, 6.4), (1.85 if high > 1 else 3.0) * high + 0.7
    figure = new_figure(*size, None)
    panels = figure.subplots(high, wide, squeeze=False)
    heights: list[str] = []
    for place, axes in enumerate(panels.flat):
        if place >= len(columns):
            axes.set_axis_off()
            continue
        j = columns[place]
        values = None if X is None else X[:, j]
        tidy(axes, None)
        axes.set_xlabel(words(saved.feature_names[j]), fontsize=8.5)
        axes.tick_params(labelsize=7.5)
        levels = None if clusters else levels_drawn(saved, j)
        if over:
            _lay_over(axes, [saved, *over], saved.feature_names[j], values)
            few_ticks(axes, 3 if wide > 2 else 5, whole=values is not None and are_counts(values))
        elif levels is not None:
            there = None if values is None else values[np.isfinite(values)]
            draw_levels(axes, levels, parts.weights, there)
            few_ticks(axes, None)
        else:
            _draw_marginal(axes, saved, parts, j, values, labels)
            whole = values is not None and are_counts(values)
            few_ticks(axes, 3 if wide > 2 else 5, whole=whole)
        is_count = families is not None and LAWS[families[j]].whole
        heights.append("share" if is_count or levels is not None else "density")
    for row, axes in enumerate(panels[:, 0]):
        beside = dict.fromkeys(heights[row * wide : (row + 1) * wide])
        axes.set_ylabel(" or ".join(beside), fontsize=8)
    bars = not clusters and any(levels_drawn(saved, j) is not None for j in columns)
    if over:
        handles = panels.flat[0].get_legend_handles_labels()[0]
        legend = legend_below(figure, handles)
    else:
        legend = _legend(figure, saved, parts, X is not None, bars)
    margins = (BESIDE + LABEL, 0.2, legend + 0.55, 0.14)
    place_panels(figure, (high, wide), margins, (BESIDE, BELOW))
    what = "Clusters in histograms" if clusters else "Densities over histograms"
    listed = ", ".join(saved.feature_names[j] for j in columns[:12])
    alt = f"{what} of {len(columns)} features: {listed}{', ...' if len(columns) > 12 else ''}."
    return Picture(figure, alt, notes)


def _draw_marginal(
    axes: Axes,
    saved: SavedFit,
    parts: DrawnParts,
    j: int,
    values: NDArray[np.float64] | None,
    labels: Labels | None,
) -> None:
    tallest = 0.0
    means = parts.means[:, j]
    if values is not None:
        there = np.isfinite(values)
        values = values[there]
        if len(values):
            heights, edges = histogram(values)
            tallest = float(heights.max())
            if labels is None:
                axes.stairs(
                    heights, edges, fill=True, facecolor=PALE, edgecolor=BAND, linewidth=0.5
                )
            else:
                _stack(axes, values, labels[there], len(means), edges)
    k = len(means)
    if parts.variances is None:
        # Of many clusters lines would hide the bars: they end above these.
        lowest = 0.9 if k > CROWDED and tallest else 0.0
        if lowest:
            axes.set_ylim(0, tallest / lowest)
        for c, mean in enumerate(means):
            axes.axvline(
                mean, lowest, color=colour(c), linestyle=line(c), linewidth=1.5, path_effects=halo()
            )
    else:
        grid, densities = densities_of(saved, j, values, parts)
        total = densities.sum(axis=0)
        peak, remarks = float(total.max()), []
        # A component of few rows can be so narrow that nothing else would be seen.
        cut = tallest > 0 and peak > 3 * tallest
        if cut:
            remarks.append(f"peak {shorten_numbers([float(f'{peak:.2g}')])[0]}")
        room = tallest if cut else peak
        peaks = densities.max(axis=1)
        times, large = _raised(peaks, room)
        if times > 1:
            remarks.append(f"components \N{MULTIPLICATION SIGN} {times}")
            remarks += [f"{_listed(large)} \N{MULTIPLICATION SIGN} 1"] if len(large) else []
        if k > 1:
            for c, density in enumerate(densities):
                drawn = density if c in large else times * density
                axes.plot(grid, drawn, color=colour(c), linestyle=line(c), linewidth=1.3)
        axes.plot(grid, total, color="black", linewidth=1.8, zorder=1.9)
        if remarks:
            axes.text(0.98, 0.97, "\n".join(remarks), transform=axes.transAxes, fontsize=7.5,
                      ha="right", va="top", path_effects=halo(), zorder=5)  # fmt: skip
        above = 1.6 * tallest if cut else 1.25 * max(tallest, peak)
        axes.set_ylim(0, above if remarks else None)
    if values is not None and len(values):
        low, high = span(values)
        pad = 0.06 * (high - low) or max(abs(low), 1.0) * 0.06
        pad = max(pad, 0.6) if are_counts(values) else pad
        axes.set_xlim(low - pad, high + pad)


def _lay_over(
    axes: Axes, models: Sequence[SavedFit], name: str, values: NDArray[np.float64] | None
) -> None:
    """Draw the density of one feature under each of several mixtures, over its histogram."""
    if values is not None:
        values = values[np.isfinite(values)]
        axes.stairs(*histogram(values), fill=True, facecolor=PALE, edgecolor=BAND, linewidth=0.5,
                    label="data")  # fmt: skip
    first = models[0]
    for number, one in enumerate(models):
        if one.holds != "a mixture" or name not in one.feature_names:
            raise InputError(f"{one.path} has no density of {name}; lay mixtures of it over it")
        j = one.feature_names.index(name)
        if powers_of(one.stored)[j] != powers_of(first.stored)[first.feature_names.index(name)]:
            raise InputError(
                f"{one.path} has {name} in other units than {first.path}: it is transformed by "
                "another power; lay models of the same units over each other"
            )
        if levels_drawn(one, j) is not None:
            raise InputError(f"{name} has levels, and no density; choose others by --features")
        grid, densities = densities_of(one, j, values, one.parts())
        axes.plot(grid, densities.sum(axis=0), color=contender(number), linestyle=line(number),
                  linewidth=1.6, label=words(Path(one.path).stem))  # fmt: skip
    axes.set_ylim(bottom=0)
    if values is not None:
        low, high = span(values)
        pad = 0.06 * (high - low) or 1.0
        axes.set_xlim(low - pad, high + pad)


def _raised(peaks: NDArray[np.float64], room: float) -> tuple[int, list[int]]:
    """Times how much many components are drawn higher, and the large ones that are not.

    One or two may be far higher than the others, and would leave the frame.
    """
    fitting = peaks[(peaks > 0) & (peaks <= room)]
    if len(peaks) <= CROWDED or not len(fitting):
        return 1, []
    times = int(room / (1.25 * float(np.quantile(fitting, 0.9, method="lower"))))
    return max(times, 1), np.flatnonzero(times * peaks > 1.1 * room).tolist()


def _listed(components: list[int]) -> str:
    if len(components) > 3:
        return f"{len(components)} largest"
    return f"component{'s' if len(components) > 1 else ''} {', '.join(map(str, components))}"


def _stack(
    axes: Axes, values: NDArray[np.float64], labels: Labels, k: int, edges: NDArray[np.float64]
) -> None:
    """Stack the histograms of clusters, whose heights together integrate to 1."""
    below = np.zeros(len(edges) - 1)
    scale = 1.0 / (len(values) * np.diff(edges))
    for number in range(k):
        top = below + np.histogram(values[labels == number], edges)[0] * scale
        axes.stairs(
            top, edges, baseline=below, fill=True, facecolor=colour(number), edgecolor="white",
            hatch=hatch(number), linewidth=0.3, alpha=0.85,
        )  # fmt: skip
        below = top


def _legend(
    figure: Figure, saved: SavedFit, parts: DrawnParts, with_data: bool, bars: bool
) -> float:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    k = len(parts.weights)
    entries: list[Any] = []
    if parts.variances is None:
        entries = [
            Patch(
                facecolor=colour(c), hatch=hatch(c), edgecolor="white", label=f"cluster {c}",
                alpha=0.85,
            )
            for c in range(k)
        ]  # fmt: skip
        entries.append(Line2D([], [], color=INK, linewidth=1.5, label="lines: centres"))
    else:
        if with_data:
            entries.append(Patch(facecolor=PALE, edgecolor=BAND, label="data"))
        entries.append(Line2D([], [], color="black", linewidth=1.8, label="mixture"))
        if k > 1:
            entries += [
                Line2D([], [], color=colour(c), linestyle=line(c), label=saved.called(c))
                for c in range(k)
            ]
            if bars:
                said = "bars: components from left to right"
                entries.append(Line2D([], [], linestyle="", label=said))
    return legend_below(figure, entries)


MOST_FEATURES = 30
"""Features that are drawn, unless they are chosen."""

MOST_CHOSEN = 200

LEVELS = 4
"""Levels of a category that have lines."""

WRITTEN = 14
"""Components up to which cells bear their numbers."""

FAR_BELOW = 0.5
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
        # By the component in which they are highest, the highest first.
        highest = away.argmax(axis=0)
        keys = [(highest[at], -away[highest[at], at], at) for at in range(away.shape[1])]
        order = [at for *_, at in sorted(keys)]
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
    # Each number where there is room, else a minus where it is below the mean.
    for (row, column), value in np.ndenumerate(away):
        if k <= WRITTEN:
            written = f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")
            text = "0" if abs(value) < 0.05 else written
        elif value <= -FAR_BELOW:
            text = "\N{MINUS SIGN}"
        else:
            continue
        axes.text(
            column, row, text, ha="center", va="center",
            fontsize=8 if k <= WRITTEN and d <= MOST_FEATURES else 6,
            color="white" if abs(value) > 0.72 * reach else "black",
        )  # fmt: skip
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
    """What stands in each line (K, n), and its name: a line a feature, or a level of one.

    Of a category with two levels the second is drawn, which says all; of others those that tell
    components apart best.
    """
    lines, names = [], []
    for j in columns:
        name = answer.feature_names[j]
        if j not in answer.levels:
            lines.append(answer.standardized[:, j])
            names.append(words(name, 30))
            continue
        levels = answer.levels[j]
        whole = answer.weights @ levels.shares
        spread = np.sqrt(whole * (1 - whole))
        each = standardized_means(answer.weights, levels.shares, spread)
        best = most_telling(answer.weights, each)[:LEVELS]
        for level in [1] if len(whole) == 2 else sorted(best.tolist()):
            lines.append(each[:, level])
            names.append(words(f"{words(name, 18)}: {levels.names[level]}", 30))
    return np.array(lines).T.reshape(len(answer.weights), len(lines)), names
