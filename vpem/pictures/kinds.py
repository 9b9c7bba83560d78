"""The kinds of pictures, what each needs, and what to look at next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vpem.errors import InputError, Setting, check_choice
from vpem.pictures.assignments import draw_confusion, draw_responsibilities
from vpem.pictures.curves import draw_history
from vpem.pictures.densities import draw_marginals
from vpem.pictures.network import draw_graph, draw_sparsity
from vpem.pictures.samples import Rows
from vpem.pictures.saved import Saved
from vpem.pictures.scatters import draw_pairs
from vpem.pictures.style import Picture
from vpem.pictures.traffic import draw_communication

__all__ = ["KINDS", "Kind", "draw", "next_kinds"]

Features = Sequence[str] | None


@dataclass(frozen=True)
class Kind:
    """One kind of picture.

    Attributes
    ----------
    title : str
        Above it in a page.
    about : str
        What it shows, to be said in a hint.
    data : str
        "no", "optional" or "needed".
    labels : bool
        Whether rows must have labels.
    of_clusters : bool
        Whether it can be drawn of clusters.
    draw : callable
        Makes it.
    """

    title: str
    about: str
    data: str
    draw: Callable[[Saved, Rows | None, Features], Picture]
    labels: bool = False
    of_clusters: bool = True


def _needed(rows: Rows | None) -> Rows:
    if rows is None:
        raise InputError("the picture shows rows of data; give the data after the model")
    return rows


KINDS: dict[str, Kind] = {
    "history": Kind(
        "How the fit went", "log-likelihood by iteration and root, and against bytes", "no",
        lambda saved, rows, features: draw_history(saved),
    ),
    "graph": Kind(
        "Who took part", "agents coloured by hub, or workers, with their links", "no",
        lambda saved, rows, features: draw_graph(saved),
    ),
    "sparsity": Kind(
        "Blocks of the covariance", "which entries of the covariance are estimated", "no",
        lambda saved, rows, features: draw_sparsity(saved), of_clusters=False,
    ),
    "communication": Kind(
        "What was sent", "bytes by phase, link and agent", "no",
        lambda saved, rows, features: draw_communication(saved),
    ),
    "marginals": Kind(
        "Feature by feature", "densities over histograms", "optional", draw_marginals,
    ),
    "pairs": Kind(
        "Pairs of features", "rows with the components' ellipses", "optional", draw_pairs,
    ),
    "responsibilities": Kind(
        "How surely rows are assigned", "rows by component and uncertainty", "needed",
        lambda saved, rows, features: draw_responsibilities(saved, _needed(rows)),
        of_clusters=False,
    ),
    "confusion": Kind(
        "Agreement with labels", "labels against components or clusters, matched", "needed",
        lambda saved, rows, features: draw_confusion(saved, _needed(rows)),
        labels=True,
    ),
}  # fmt: skip
"""All kinds, in the order in which a page has them."""


def draw(kind: str, saved: Saved, rows: Rows | None = None, features: Features = None) -> Picture:
    """Draw one kind of picture.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    saved : Saved
        From `vpem.pictures.saved.read_saved`.
    rows : Rows, optional
        Data to hold it against.
    features : sequence of str, optional
        Names or numbers of the features that "marginals" or "pairs" draw.

    Returns
    -------
    Picture

    Raises
    ------
    InputError
        If it cannot be drawn of that file, or needs rows or labels that are not there.
    """
    check_choice("kind", kind, KINDS)
    if features is not None and kind not in ("marginals", "pairs"):
        raise InputError(Setting("features"), f" are for marginals and pairs, not for {kind}")
    return KINDS[kind].draw(saved, rows, features)


def next_kinds(kind: str, saved: Saved, rows: Rows | None) -> dict[str, list[str]]:
    """Return other kinds that can be drawn of this file, by what they need besides.

    Keys are "" (nothing but what was given), "DATA" and "DATA with labels", where there are any.
    """
    found: dict[str, list[str]] = {}
    for name, one in KINDS.items():
        if name == kind or (saved.clusters is not None and not one.of_clusters):
            continue
        if name == "pairs" and len(saved.feature_names) < 2:
            continue
        needs = ""
        if one.labels and (rows is None or rows.labels is None):
            needs = "DATA with labels"
        elif rows is None and one.data != "no":
            needs = "DATA"
        found.setdefault(needs, []).append(name)
    return found
