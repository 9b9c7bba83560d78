"""A page that tells of a fit and shows it: one HTML file that needs nothing else."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vpem.errors import VpemError
from vpem.files.hdf5 import atomic_write
from vpem.pictures.contents import Contents
from vpem.pictures.html import as_source, fill_page, show_picture, text
from vpem.pictures.kinds import draw, kinds_of
from vpem.pictures.reported import Saved, SavedFit
from vpem.pictures.saved import SavedLatents

if TYPE_CHECKING:
    from vpem.pictures.kinds import Data


MOST_CURVES = 12
"""Individuals whose curves are drawn."""


def contents_of(saved: Saved, data: Data | None = None) -> Contents:
    """Return what there is to say of a fit, and of data that it is held against."""
    say: Callable[[Any, Any], Contents]
    if isinstance(saved, SavedFit):
        from vpem.pictures.fit_contents import contents_of_fit as say
    elif isinstance(saved, SavedLatents):
        from vpem.pictures.saem_contents import contents_of_latents as say
    else:
        from vpem.pictures.topic_contents import contents_of_topics as say
    return say(saved, data)


def write_page(
    path: str | os.PathLike[str],
    saved: Saved,
    data: Data | None = None,
    *,
    command: str | None = None,
    force: bool = False,
) -> dict[str, VpemError]:
    """Write the page of a model, a clustering or a fit of SAEM, completely or not at all.

    Returned are the kinds of pictures that were left out, and why. Of data that the fit is held
    against, curves of the first 12 individuals are drawn; ``command`` is the one that fitted it.
    """
    contents = contents_of(saved, data)
    if data is None:
        lead = f"{contents.lead} No data were given to hold it against."
        contents = replace(contents, lead=lead)
    pictures, left_out = _pictures(saved, data)
    more = []
    if command is not None:
        said = f"<p>Paths as they were given:</p><p><code>{text(command)}</code></p>"
        more.append(("command", "The command", said))
    if left_out:
        items = "".join(f"<li>{text(f'{kind}: {why}')}</li>" for kind, why in left_out.items())
        more.append(("not-drawn", "Not drawn", f"<ul>{items}</ul>"))
    with atomic_write(path, force, "reports") as temporary:
        temporary.write_text(fill_page(contents, pictures, more), encoding="utf-8")
    return left_out


def _pictures(
    saved: Saved, data: Data | None
) -> tuple[dict[str, tuple[str, str]], dict[str, VpemError]]:
    """Draw every kind that can be drawn, as title and HTML; say why of the others."""
    made = {}
    left_out: dict[str, VpemError] = {}
    with _uncollected():
        for name, kind in kinds_of(saved).items():
            options = {"most": MOST_CURVES} if "most" in kind.options else {}
            try:
                picture = draw(name, saved, data, **options)
                source = as_source(picture.figure)
            except VpemError as error:
                left_out[name] = error
                continue
            shown = show_picture(name, kind.title, source, picture.alt, kind.about, picture.notes)
            made[name] = kind.title, shown
    return made, left_out


@contextmanager
def _uncollected() -> Iterator[None]:
    """Leave cycles of objects for later: looking for them takes a quarter of the drawing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
