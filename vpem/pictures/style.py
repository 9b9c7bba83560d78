"""What all pictures share: colours with lines, marks and hatches that tell in grey, and labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = [
    "BAND",
    "COLOURS",
    "DARK",
    "FAINT",
    "GRID",
    "HATCHES",
    "INK",
    "LIGHT",
    "PALE",
    "RULE",
    "SHADE",
    "WARNING",
    "LineStyle",
    "colour",
    "few_ticks",
    "hatch",
    "line",
    "marker",
    "of_bytes",
    "place_panels",
    "said_bytes",
    "tidy",
    "whole_numbers",
]

COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#D55E00", "#0072B2", "#999999")
"""Okabe and Ito's, which the colour-blind tell apart."""

ORDER = (6, 1, 5, 0, 2, 4, 7, 3)
"""Of the colours: dark and light in turns, so that neighbours differ in grey too."""

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
LIGHT, WARNING = "#D3E8F5", COLOURS[5]
"""Behind a curve; what is unsure or wrong."""

DARK = {COLOURS[number] for number in (2, 5, 6)}
"""Colours on which text is white."""

LABELLED = (0.45, 0.24)
"""Inches from a panel to the labels of its axes, with room for short numbers between."""


def place_panels(
    figure: Figure, shape: tuple[int, int], margins: tuple[float, ...], gaps: tuple[float, float]
) -> None:
    """Place a grid of panels and their labels without measuring what stands at their axes.

    Measuring, which makes all ticks and lays out their texts, takes half of the drawing.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        One that does not place its parts itself.
    shape : (int, int)
        Rows and columns of panels.
    margins : (float, float, float, float)
        Inches at the left, right, bottom and top of the grid.
    gaps : (float, float)
        Inches between columns and between rows.
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
    """Colour of a component or line."""
    return COLOURS[ORDER[number % len(ORDER)]]


def line(number: int) -> LineStyle:
    """Style of a line; with the colour they come back together after 56."""
    return LINES[number % len(LINES)]


def hatch(number: int) -> str:
    """Hatch of a cluster's rows; with the colour they come back together after 64."""
    return HATCHES[(number + number // len(ORDER)) % len(HATCHES)]


def marker(number: int) -> str:
    """Mark of a component's rows."""
    return MARKERS[number % len(MARKERS)]


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


def whole_numbers(axis: Axis) -> None:
    """Let an axis of numbers that are whole have ticks at such only, even where there is one."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=8))


def few_ticks(axes: Axes, places: int) -> None:
    """Let a small panel have few ticks, with powers of ten apart."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(places))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.ticklabel_format(scilimits=(-2, 4))
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_offset_text().set_fontsize(7)
