"""Pictures, drawn by matplotlib."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from vpem.errors import VpemWarning, printable
from vpem.files.hdf5 import atomic_write, check_writable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        """Show it in a notebook."""
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


def one_panel(
    ax: Axes | None, width: float, height: float, layout: Layout = "constrained"
) -> tuple[Figure, Axes]:
    """Return the axes that are given with their figure, or those of a new one of this size."""
    if ax is not None:
        whole = ax.get_figure(root=True)
        assert whole is not None
        return whole, ax
    figure = new_figure(width, height, layout)
    return figure, figure.add_subplot()


def check_picture(path: str | os.PathLike[str], force: bool = False) -> None:
    """Raise an error unless a picture can be written there."""
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


def _legible(figure: Figure) -> None:
    """Take control characters out of every text of a figure: SVG with them is no XML."""
    from matplotlib.axis import Axis
    from matplotlib.text import Text
    from matplotlib.ticker import FixedFormatter

    def lines(text: str) -> str:
        return "\n".join(map(printable, text.split("\n")))

    for part in _parts(figure):
        if isinstance(part, Text):
            part.set_text(lines(part.get_text()))
        elif isinstance(part, Axis):
            for names in (part.get_major_formatter(), part.get_minor_formatter()):
                if isinstance(names, FixedFormatter):
                    names.seq = [lines(str(name)) for name in names.seq]


def render(figure: Figure, target: BinaryIO, ending: str, dpi: int) -> None:
    """Draw a figure once, the same bytes as its ``savefig``, which draws it twice to lay it out.

    ``dpi`` is of "png", and of what is drawn as dots in "svg" and "pdf".
    """
    from importlib import import_module

    backend = import_module(f"matplotlib.backends.backend_{'agg' if ending == 'png' else ending}")
    _legible(figure)
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
        warnings.warn(
            f"{path}: names have characters that the font of pictures has not; they are boxes",
            VpemWarning,
            stacklevel=2,
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
