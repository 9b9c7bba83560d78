"""Pictures, drawn by matplotlib.

What all pictures share: colours with lines, marks and hatches that tell in grey, and labels.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from vpem.errors import printable, warn
from vpem.files.hdf5 import atomic_write, check_writable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.ticker import Formatter


ON_SCREEN = 90
"""Dots an inch in a notebook."""

Layout = Literal["constrained", "compressed"] | None

DPI = 160
"""Dots an inch of a .png file, and of what is drawn as dots in others."""

WIDTH = 8.2
"""Inches of a wide picture: its letters of 8 points still have 6 where it is printed 16 cm wide."""

LONGEST = 28
"""Characters of a name that is drawn."""

EDGE = 0.08
"""Inches around what a figure places by itself."""

MOST_COLUMNS = 6
"""Of a legend."""


@dataclass
class Picture:
    """A figure, and what is to be said of it."""

    figure: Figure
    alt: str  # what it shows, for those who do not see it
    notes: list[str] = field(default_factory=list)  # what is left out

    def __repr__(self) -> str:
        return f"Picture({printable(self.alt)!r})"

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.figure.savefig(drawn, format="png", dpi=ON_SCREEN)
        return drawn.getvalue()

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write it to a .png, .svg or .pdf file, as `save_picture`."""
        save_picture(path, self, force=force)


def new_figure(width: float, height: float, layout: Layout = "constrained") -> Figure:
    """Return an empty figure of this size in inches that places its parts itself."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(w_pad=EDGE, h_pad=EDGE)  # type: ignore[call-arg]
    return figure


def one_panel(ax: Axes | None, width: float, height: float) -> tuple[Figure, Axes]:
    if ax is not None:
        whole = ax.get_figure(root=True)
        assert whole is not None
        return whole, ax
    figure = new_figure(width, height)
    return figure, figure.add_subplot()


def check_picture(path: str | os.PathLike[str], force: bool = False) -> None:
    check_writable(path, force, "pictures")


def words(text: object, most: int = LONGEST) -> str:
    """Return a name as it can be drawn: in one line, not too long, and never a formula."""
    shown = printable(text)
    if len(shown) > most:
        # Names differ at their ends more often than in the middle, and units stand there.
        tail = (most - 1) // 3
        shown = f"{shown[: most - 1 - tail]}\N{HORIZONTAL ELLIPSIS}{shown[-tail:]}"
    # Dollars would begin a formula, and what begins with an underscore is left out of legends.
    return (" " if shown.startswith("_") else "") + shown.replace("$", r"\$")


def _parts(artist: Artist) -> Iterator[Artist]:
    """Yield an artist and all that is in it but ticks, which looking for them would make."""
    from matplotlib.axis import Axis

    yield artist
    if isinstance(artist, Axis):
        yield from (artist.label, artist.get_offset_text())
        return
    for child in artist.get_children():
        yield from _parts(child)


def render(figure: Figure, target: BinaryIO, ending: str, dpi: int) -> None:
    """Draw a figure once, the same bytes as its ``savefig``, which draws it twice to lay it out.

    ``dpi`` applies to "png", and to what is drawn as dots in "svg" and "pdf".
    """
    from importlib import import_module

    from matplotlib.axis import Axis
    from matplotlib.text import Text
    from matplotlib.ticker import FixedFormatter

    def lines(text: str) -> str:
        return "\n".join(map(printable, text.split("\n")))

    backend = import_module(f"matplotlib.backends.backend_{'agg' if ending == 'png' else ending}")
    # Control characters are taken out of every text: SVG with them is no XML.
    for part in _parts(figure):
        if isinstance(part, Text):
            part.set_text(lines(part.get_text()))
        elif isinstance(part, Axis):
            for names in (part.get_major_formatter(), part.get_minor_formatter()):
                if isinstance(names, FixedFormatter):
                    names.seq = [lines(str(name)) for name in names.seq]
    figure.set_dpi(dpi)
    canvas = backend.FigureCanvas(figure)
    # The time of day stays out of the file.
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
    getattr(canvas, f"print_{ending}")(target, metadata=undated)


def save_picture(path: str | os.PathLike[str], picture: Picture, *, force: bool = False) -> None:
    """Write a .png, .svg or .pdf completely or not at all, the same bytes for the same picture.

    It warns if a name has characters that the font has not.
    """
    check_picture(path, force)
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
            render(picture.figure, drawn, ending, DPI)
            temporary.write_bytes(drawn.getvalue())
    for one in caught:
        if not str(one.message).startswith("Glyph "):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if any(str(one.message).startswith("Glyph ") for one in caught):
        warn(
            f"{path}: names have characters that the font of pictures has not; they are boxes",
            level=2,
        )


def legend_below(
    figure: Figure,
    handles: Sequence[Artist],
    size: float = 8,
    title: str | None = None,
    markerscale: float = 1.0,
) -> float:
    """Put a legend below all panels, in as many columns as the figure has room for.

    Rows of it beyond two make the figure higher, rather than its panels lower. Returned are the
    inches that it takes of the height; the figure places its parts itself, or leaves room.
    """
    width, height = figure.get_size_inches()
    most = min(len(handles), MOST_COLUMNS)
    # Rows are even: five entries stand in three columns where four have no room, or two.
    shapes = dict.fromkeys(-(-len(handles) // rows) for rows in range(1, len(handles) + 1))
    for columns in [one for one in shapes if one <= most]:
        legend = figure.legend(
            handles=handles, loc="outside lower center", ncols=columns, frameon=False,
            fontsize=size, handlelength=3, title=title, title_fontsize=size,
            markerscale=markerscale,
        )  # fmt: skip
        box = legend.get_window_extent()
        # Letters of a finer drawing are wider by a hair.
        if columns == 1 or box.width <= 0.97 * figure.bbox.width - 2 * EDGE * figure.dpi:
            break
        legend.remove()
    taken = float(box.height / figure.dpi)
    figure.set_size_inches(width, height + max(0.0, taken - 0.05 * size))
    return taken


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
"""A curve that belongs to no component, hub or contender; what lies below it or around it."""

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
    return HUBS[number % len(HUBS)]


def contender(number: int) -> str:
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
    return MARKERS[number % len(MARKERS)]


def halo() -> list[Any]:
    """Return what sets a line or a letter off from what it lies on."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.8, foreground="white")]


def tidy(axes: Axes, grid: Literal["both", "x", "y"] | None = "both") -> None:
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
