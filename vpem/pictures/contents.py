"""Reports of a mixture or of clusters: sections of tables and sentences."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vpem.errors import VpemError
from vpem.fits.answer import NAMED, SEEN, as_table
from vpem.pictures.assignments import agreement_of
from vpem.pictures.facts import (
    HOW_WELL,
    NETWORK,
    WHAT,
    Fact,
    hubs_of,
    lines_of,
    plural,
    promised,
    size,
)
from vpem.pictures.network import MEANINGS
from vpem.pictures.saved import EvaluationData, SavedFit

MOST_FEATURES = 60
"""Rows of the table of means."""

MOST_LINKS = 10

MOST_HUBS = 50

MOST_POINTS = 8
"""Of a curve."""

ALGORITHMS = {
    "vp-em": "VP-EM over split features",
    "em-rows": "distributed EM over split rows",
    "fedem": "FedEM over split rows",
    "vr-fedem": "VR-FedEM over split rows",
    "k-means": "k-means",
}


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows; ``numbers``: whether the others are numbers."""

    rows: Sequence[Sequence[object]]
    heads: Sequence[str] = ()
    caption: str = ""
    numbers: bool = True


@dataclass(frozen=True)
class Listing:
    """Sentences of warnings."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Section:
    """Part of a report: its name and heading, tables and sentences, and kinds of pictures."""

    name: str
    heading: str
    items: Sequence[Table | Listing | str]
    pictures: Sequence[str] = ()


Items = list[Table | Listing | str]


@dataclass(frozen=True)
class Contents:
    """A report of a fit; sections without items are left out."""

    title: str
    lead: str
    sections: Sequence[Section]


def facts(listed: Sequence[Fact], caption: str = "") -> Table:
    """A table of facts."""
    return Table(listed, caption=caption, numbers=False)


def sent_by_phase(kinds: Mapping[str, Mapping[str, float]]) -> Table | str:
    """Messages, bytes and rounds by kind, with their sums."""
    if not kinds:
        return "Nothing was sent."
    rows, columns = [], ("messages", "bytes", "rounds")
    totals = {name: sum(counted[name] for counted in kinds.values()) for name in columns}
    for kind, counted in {**kinds, "all": totals}.items():
        messages, rounds = f"{counted['messages']:,.0f}", f"{counted['rounds']:,.0f}"
        rows.append((MEANINGS.get(kind, kind), messages, size(counted["bytes"]), rounds))
    return Table(rows, ("phase", "messages", "payload", "rounds"), "By phase")


def contents_of_fit(saved: SavedFit, rows: EvaluationData | None) -> Contents:
    """Contents of a fit, and of rows that it is held against."""
    warned = Section("warnings", "Warnings", _warnings(saved))
    has_warnings = isinstance(warned.items[0], Listing)
    course = [] if has_warnings else warned.items
    promises = promised(saved.reported("privacy", dict) or {})
    k, d = saved.n_components, len(saved.feature_names)
    heads, listed = as_table(saved.answer.describe(), noisy="privacy" in saved.report)
    table = Table(listed, (saved.noun, *heads[1:]), numbers=False)
    components: Items = [table, *saved.answer.notes]
    checks = ("confusion", "responsibilities")
    # Of two features the projection is the one pair.
    pictures = ("marginals", "pairs") if d > 2 else ("marginals",)
    sections = [
        *([warned] if has_warnings else []),
        Section("components", f"{saved.noun.capitalize()}s", components, ("profile", "projection")),
        Section("quality", "How well", _quality(saved, rows), checks),
        Section("parameters", saved.heading, _means(saved), pictures),
        Section("course", "How the fit went", course, ("history",)),
        Section("privacy", "Privacy of rows", [facts(promises)] if promises else []),
        Section("hubs", "Who took part", _hubs(saved), ("graph", "sparsity")),
        Section("sent", "What was sent", _sent(saved), ("communication",)),
        Section("fitted", "Settings", [facts(_fitted(saved))]),
    ]
    name = os.path.basename(saved.path)
    title = f"{name}: {k} {saved.noun}{'' if k == 1 else 's'}, {d} feature{'' if d == 1 else 's'}"
    algorithm = saved.reported("algorithm", str)
    kind = ALGORITHMS.get(algorithm or "", algorithm or "a Gaussian mixture")
    if algorithm == "k-means":
        kind += f" over split {saved.report.get('split', 'data')}"
    return Contents(title, f"{_lead(saved)} Fitted by {kind}.", sections)


def _lead(saved: SavedFit) -> str:
    """Say how many components of how many rows, the largest, and in which features they differ."""
    answer, noun, k = saved.answer, saved.noun, saved.n_components
    n = saved.reported("n_samples", int)
    of = "" if n is None else f" of {plural(n, 'row')}"
    empty = sum(not used for used in saved.reported("in_use", list) or ())
    if empty:
        of = f", {empty} of them empty,{of}"
    if k == 1:
        return f"One {noun}{of}."
    first = int(answer.weights.argmax())
    label = f" ({answer.labels[first]})" if first < len(answer.labels) else ""
    about = "about " if "privacy" in saved.report else ""
    share = f"{about}{100 * answer.weights[first]:.0f} %"
    named = [answer.feature_names[j] for j in answer.telling[:NAMED]
             if answer.telling_shares[j] > SEEN**2]  # fmt: skip
    listed = " and ".join(filter(None, (", ".join(named[:-1]), *named[-1:])))
    apart = f"{noun}s differ most in {listed}" if named else f"means of {noun}s hardly differ"
    return f"{k} {noun}s{of}: the largest, {noun} {first}{label}, has {share} of the rows; {apart}."


def _warnings(saved: SavedFit) -> Items:
    said = [str(one) for one in saved.reported("warnings", list) or []]
    privacy = saved.reported("privacy", dict) or {}
    if privacy.get("repeatable"):
        said.insert(0, f"Privacy: {privacy.get('warning')}.")
    converged = saved.reported("converged", bool)
    if converged is False and saved.report.get("participation") is None:
        steps = saved.reported("n_iter", int)
        what = f"The fit has not converged: it still changed after {steps} iterations."
        said.insert(0, what if steps else "This is where a fit starts: no iteration was run.")
    for name, what in (
        ("recoveries", "components collapsed and were reinitialised"),
        ("partitions", "iterations found the network disconnected and changed nothing"),
        ("reseeded", "empty clusters were reinitialised"),
    ):
        listed = saved.reported(name, list) or []
        if listed:
            said.append(f"{len(listed)} {what}.")
    return [Listing(list(dict.fromkeys(said))) if said else "No warnings were given."]


def _fitted(saved: SavedFit) -> list[Fact]:
    report, options = saved.report, saved.stored.options
    fitted: list[Fact] = [("read from", saved.reported("data", str) or "not said")]
    fitted += lines_of(report, WHAT)
    alignment = saved.alignment()
    if alignment is not None:
        fitted.append(("parties", alignment))
    fitted += lines_of(report, NETWORK)
    said = options | {name: value for name, value in report.items() if value is not None}
    for name in ("step_size", "batch_size", "accelerate", "scale", "missing", "init", "seed"):
        if said.get(name) is not None:
            fitted.append((name.replace("_", " "), said[name]))
    versions = ", ".join(f"{name} {value}" for name, value in saved.stored.versions.items())
    return [*fitted, ("versions", versions or "not said")]


def _quality(saved: SavedFit, rows: EvaluationData | None) -> Items:
    items: Items = [facts(lines_of(saved.report, HOW_WELL), "As the fit reported")]
    if rows is None:
        return items
    what, value = saved.score(rows.X)
    quality: list[Fact] = [("data", rows.where), ("rows", len(rows)), (what, f"{value:.9g}")]
    if rows.labels is not None:
        try:
            quality += agreement_of(saved, rows).facts()
        except VpemError as error:
            quality.append(("labels", str(error)))
    return [*items, facts(quality, "Held against these data")]


def _hubs(saved: SavedFit) -> Items:
    """Hubs, where features are split and the file says who formed them."""
    listed = hubs_of(saved.report, MOST_HUBS)
    more = len(saved.reported("hubs", list) or ()) - MOST_HUBS
    return _with_more([Table(*listed, numbers=False)], more, "hubs") if listed else []


def _with_more(items: Items, left: int, what: str) -> Items:
    return [*items, f"{left} more {what} are in the file."] if left > 0 else items


def _means(saved: SavedFit) -> Items:
    d = len(saved.feature_names)
    k = saved.n_components
    means, first = saved.parts().means, saved.summaries()
    rows: list[Sequence[object]] = [(name, *values) for name, values in first.items()]
    heads = [saved.centre, *(f"{saved.noun} {c}" for c in range(k))]
    for j in range(min(d, MOST_FEATURES)):
        levels = saved.answer.levels.get(j)
        cells = [f"{value:.6g}" for value in means[:, j]] if levels is None else levels.modes()
        rows.append((saved.feature_names[j], *cells))
    return _with_more([Table(rows, heads)], d - MOST_FEATURES, "features")


def _sent(saved: SavedFit) -> Items:
    try:
        kinds = saved.sent_by_kind()
    except VpemError as error:
        return [str(error)]
    items: Items = [sent_by_phase(kinds)]
    total = sum(counted["bytes"] for counted in kinds.values())
    if not total:
        return items
    setup = kinds.get("setup", {}).get("bytes", 0.0)
    said = f"The setup took {size(setup)}, {100 * setup / total:.3g} % of all."
    try:
        history = saved.history()
    except VpemError:
        return [*items, said, *_busiest(saved)]
    steps = int(history.iteration[-1] - history.iteration[0])
    if history.sent is None or steps < 1:
        return [*items, said, *_busiest(saved)]
    sent, means = history.sent, history.means()
    each = float(sent[-1] - sent[0]) / steps
    said += f" An iteration took {size(each)} on average, the first left out."
    shown = np.unique(np.linspace(0, len(sent) - 1, MOST_POINTS).round().astype(int))
    rows = [(str(history.iteration[at]), f"{means[at]:.8g}", size(sent[at])) for at in shown]
    name = history.quantity[:1].upper() + history.quantity.split(" per")[0][1:]
    heads = ("iteration", history.quantity, "sent by then")
    return [*items, said, Table(rows, heads, f"{name} against bytes"), *_busiest(saved)]


def _busiest(saved: SavedFit) -> Items:
    try:
        links = saved.links()
        names = saved.node_names(saved.graph().n_nodes)
    except VpemError as error:
        return [str(error)]
    total = links.total
    listed = [
        (f"{names[links.ends[at, 0]]} - {names[links.ends[at, 1]]}", size(total[at]))
        for at in np.argsort(-total, kind="stable")[:MOST_LINKS]
        if total[at]
    ]
    caption = f"Busiest of {len(total)} links, both directions"
    return [Table(listed, ("link", "payload"), caption)]
