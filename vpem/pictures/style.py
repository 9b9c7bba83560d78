"""What all pictures share: colours with lines, marks and hatches that tell in grey, and labels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.ticker import Formatter


COLOURS = (
    "#20408F", "#DD7400", "#A8123C", "#1B96F3", "#14604A",
    "#EE55C2", "#6A10C8", "#8E9060", "#5E2C06", "#868686",
)  # fmt: skip
"""Of components and clusters, and of nothing else: dark and light in turns, so that neighbours
differ in grey too. On white paper each has the contrast of 3 that small marks need, and the
colour-blind tell any two apart."""

HUBS = ("#99DDFF", "#EEDD88", "#FFAABB", "#BBCC33", "#77AADD", "#EE8866", "#44BB99", "#DDDDDD")
"""Of hubs: Paul Tol's light ones, on which black numbers are read."""

CONTENDERS = ("#332288", "#CC6677", "#117733", "#DDCC77", "#882255", "#44AA99", "#999933")
"""Of fits held against each other: Paul Tol's muted ones."""

LineStyle = Literal["-", "--", "-.", ":"] | tuple[float, tuple[float, ...]]

LINES: tuple[LineStyle, ...] = (
    "-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 3)), (0, (9, 3)),
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p")
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "||||", "++++")
GRID = "#E6E6E6"
PALE, BAND, FAINT, SHADE, RULE, INK = (
    "#EBEBEB",
    "#BDBDBD",
    "#B8B8B8",
    "#777777",
    "#555555",
    "#333333",
)
"""Greys from light to dark: of data, ranges, links, sums, lines that mark a place, and text."""
CURVE, LIGHT = "#3B4A54", "#DCE3E7"
"""A curve that is of no component, hub or contender; what lies below it or around it."""

SHARES = ("#FFFFFF", "#1F2D36")
"""Of shares: 0 and 1 of every map that has them."""

PATCH = 0.09
"""Inches from an axis to the middle of a patch at it."""

LABELLED = (0.5, 0.24)
"""Inches from a panel to the labels of its axes, with room for short numbers between."""


def place_panels(
    figure: Figure, shape: tuple[int, int], margins: tuple[float, ...], gaps: tuple[float, float]
) -> None:
    """Place a grid of panels and their labels without measuring what stands at their axes.

    Measuring, which makes all ticks and lays out their texts, takes half of the drawing. In inches:
    ``margins`` at the left, right, bottom and top, ``gaps`` between columns and between rows.
    """
    left, right, bottom, top = margins
    width, height = figure.get_size_inches()
    rows, columns = shape
    wide = (width - left - right - gaps[0] * (columns - 1)) / columns
    high = (height - bottom - top - gaps[1] * (rows - 1)) / rows
    figure.subplots_adjust(
        left / width, bottom / height, 1 - right / width, 1 - top / height,
        gaps[0] / wide, gaps[1] / high,
    )  # fmt: skip
    for axes in figure.axes:
        axes.xaxis.set_label_coords(0.5, -LABELLED[1] / high)
        axes.yaxis.set_label_coords(-LABELLED[0] / wide, 0.5)


def colour(number: int) -> str:
    """Colour of a component or cluster, the same in every picture; they come back after ten."""
    return COLOURS[number % len(COLOURS)]


def hub_colour(number: int) -> str:
    """Colour of a hub, the same in every picture."""
    return HUBS[number % len(HUBS)]


def contender(number: int) -> str:
    """Colour of one of several fits held against each other."""
    return CONTENDERS[number % len(CONTENDERS)]


def map_of_shares() -> Colormap:
    """Return the colours of shares from 0, white, to 1, nearly black."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shares", SHARES)


def mark_components(axes: Axes, components: Iterable[int], along: Literal["x", "y"]) -> None:
    """Draw a patch of each component's colour at its tick, as it is in the other pictures."""
    from matplotlib.transforms import ScaledTranslation

    inches = axes.figure.dpi_scale_trans
    if along == "x":
        places = axes.get_xaxis_transform() + ScaledTranslation(0, -PATCH, inches)
    else:
        places = axes.get_yaxis_transform() + ScaledTranslation(-PATCH, 0, inches)
    for place, number in enumerate(components):
        at = (place, 0.0) if along == "x" else (0.0, place)
        axes.plot(
            *at, marker="s", markersize=7, color=colour(number), linestyle="", clip_on=False,
            markeredgecolor="black", markeredgewidth=0.4, transform=places,
        )  # fmt: skip
    axes.tick_params(axis=along, length=0, pad=12)


def line(number: int) -> LineStyle:
    """Style of a line; with the colour they come back together after 70."""
    return LINES[number % len(LINES)]


def hatch(number: int) -> str:
    """Hatch of a cluster's rows; with the colour they come back together after 80."""
    return HATCHES[(number + number // len(COLOURS)) % len(HATCHES)]


def marker(number: int) -> str:
    """Mark of a component's rows."""
    return MARKERS[number % len(MARKERS)]


def halo() -> list[Any]:
    """Return what sets a line or a letter off from what it lies on."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.8, foreground="white")]


def tidy(axes: Axes, grid: Literal["both", "x", "y"] | None = "both") -> None:
    """Take the frame above and at the right away, and draw a pale grid."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(visible=True, axis=grid, color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)


def of_bytes(values: Iterable[float]) -> tuple[float, str]:
    """Return the unit in which the largest of these bytes is read best: its size and name."""
    most = max((float(value) for value in values), default=0.0)
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if most >= size:
            return size, name
    return 1.0, "bytes"


def said_bytes(count: float) -> str:
    """Write a number of bytes for a reader: 912 B, 4.61 MB."""
    size, name = of_bytes([count])
    return f"{count:.0f} B" if size == 1 else f"{count / size:.3g} {name}"


def whole_numbers(axis: Axis, most: int = 8) -> None:
    """Let an axis of numbers that are whole have ticks at such only, even where there is one."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=most))


def few_ticks(axes: Axes, places: int | None, whole: bool = False) -> None:
    """Let a small panel have few ticks, with short numbers; None: those across as they are.

    ``whole``: those across are at whole numbers.
    """
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(_short_numbers())
    if places is not None:
        axes.xaxis.set_major_locator(MaxNLocator(places, integer=whole))
        axes.xaxis.set_major_formatter(_short_numbers())


def _short_numbers() -> Formatter:
    from matplotlib.ticker import Formatter

    class ShortNumbers(Formatter):
        """Writes each number whole, powers of ten too, with as few digits as tell them apart."""

        def __call__(self, value: float, pos: int | None = None) -> str:
            return shorten_numbers([value])[0]

        def format_ticks(self, values: Iterable[float]) -> list[str]:
            return shorten_numbers(list(values))

    return ShortNumbers()


def shorten_numbers(values: Sequence[float]) -> list[str]:
    """Write numbers with as few digits as tell them apart: 0.02, 1500, 2e6, -3e-4."""
    least = 1e-9 * max(map(abs, values), default=0.0)
    values = [0.0 if abs(value) < least else value for value in values]
    gaps = [abs(two - one) for one, two in itertools.pairwise(sorted(values)) if two != one]
    near = 0.02 * min(gaps, default=math.inf)
    # All of an axis look alike: with powers of ten, or without where these are no longer.
    plain = _apart(values, near, powers=False)
    if not values or 1e-3 <= max(map(abs, values)) < 1e5:
        return plain
    return min(plain, _apart(values, near, powers=True), key=lambda texts: max(map(len, texts)))


def _apart(values: Sequence[float], near: float, powers: bool) -> list[str]:
    """Write numbers with digits enough for each to be read to within ``near``."""
    written: list[str] = []
    for digits in range(3, 13):
        written = [_short(value, digits, powers) for value in values]
        read = [float(text.replace("\N{MINUS SIGN}", "-")) for text in written]
        if all(abs(one - two) <= near for one, two in zip(read, values, strict=True)):
            break
    return written


def _short(value: float, digits: int, powers: bool) -> str:
    if value == 0:
        return "0"
    if not powers:
        # Digits before the point are all written, whatever their number.
        whole = max(digits, int(math.log10(abs(value))) + 1)
        text = f"{Decimal(f'{value:.{whole}g}'):f}"
    else:
        factor, _, power = f"{value:.{digits - 1}e}".partition("e")
        factor = factor.rstrip("0").rstrip(".") if "." in factor else factor
        text = f"{factor}e{int(power)}"
    return text.replace("-", "\N{MINUS SIGN}")
