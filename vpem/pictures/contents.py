"""What there is to say of a fit: sections of tables and sentences, for pages and for terminals.

What is said of a fit whose rows are protected by noise: to whom that is promised, and how.

What there is to say of a mixture or of clusters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import VpemError, shorten
from vpem.fits.answer import NAMED, SEEN, as_table
from vpem.pictures.assignments import agreement_of
from vpem.pictures.figure import said_bytes
from vpem.pictures.network import MEANINGS
from vpem.pictures.saved import EvaluationData, History, SavedFit, numbers

Fact = tuple[str, object]


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows; ``numbers``: whether the others are numbers."""

    rows: Sequence[Sequence[object]]
    heads: Sequence[str] = ()
    caption: str = ""
    numbers: bool = True


@dataclass(frozen=True)
class Listing:
    """Sentences that a reader must know."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Section:
    """Part of what is said: its name and heading, tables and sentences, and kinds of pictures."""

    name: str
    heading: str
    items: Sequence[Table | Listing | str]
    pictures: Sequence[str] = ()


@dataclass(frozen=True)
class Contents:
    """All that is said of a fit; a section without items is none."""

    title: str
    lead: str
    sections: Sequence[Section]


def facts(listed: Sequence[Fact], caption: str = "") -> Table:
    """Return a table of facts."""
    return Table(listed, caption=caption, numbers=False)


def sent_by_phase(kinds: Mapping[str, Mapping[str, float]]) -> Table | str:
    """Return messages, bytes and rounds by kind, with their sums."""
    if not kinds:
        return "Nothing was sent."
    made = [
        (
            MEANINGS.get(kind, kind),
            f"{counted['messages']:,.0f}",
            said_bytes(counted["bytes"]),
            f"{counted['rounds']:,.0f}",
        )
        for kind, counted in kinds.items()
    ]
    totals = [sum(counted[name] for counted in kinds.values())
              for name in ("messages", "bytes", "rounds")]  # fmt: skip
    made.append(("all", f"{totals[0]:,.0f}", said_bytes(totals[1]), f"{totals[2]:,.0f}"))
    return Table(made, ("phase", "messages", "payload", "rounds"), "By phase")


COVERS = {
    "hubs": "outsiders who see the model alone; parties see terms and responsibilities, "
    "against which this is no protection",
    "server": "all who see what is published; the server sees sums without noise",
    "root": "all who see what is published; the root of the tree sees sums without noise",
    "workers": "all who see what is published; every worker adds its share of the noise",
}
"""By who adds the noise: against whom rows are protected."""

UNPUBLISHED = "not published, to protect rows"
"""In the place of how good a private fit is, which would tell of its rows."""


def promised(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return lines of a table: what is promised, against whom, and whether that can be trusted.

    ``privacy`` is as `vpem.fits.privacy.Guarantee.describe` says. A file may hold anything there:
    what makes no sense is left out.
    """
    lines = []
    epsilon, delta = (_number(privacy.get(name)) for name in ("epsilon", "delta"))
    if epsilon is not None and delta is not None:
        lines.append(("privacy", f"epsilon {epsilon:g}, delta {delta:g}, of one row"))
    covers = COVERS.get(str(privacy.get("noise_by")))
    if covers is not None:
        lines.append(("protects from", covers))
    listed = privacy.get("noise_multipliers")
    found = [_number(one) for one in listed] if isinstance(listed, list | tuple) else []
    known = [one for one in found if one is not None]
    against = privacy.get("against")
    told = [f"{who} {number:.3g}" for who, number in _epsilons(against)]
    if len({line.rpartition(" ")[2] for line in told}) > 1:
        lines.append(("epsilon against", ", ".join(told)))
    if known:
        releases = f"{len(known)} release{'' if len(known) == 1 else 's'}"
        lines.append(("noise", f"{releases}, least multiplier {min(known):.3g}"))
    if privacy.get("repeatable"):
        lines.append(("no privacy", str(privacy.get("warning"))))
    return lines


def _epsilons(against: object) -> list[tuple[str, float]]:
    """Return the epsilon against each, of a row that takes part or not."""
    listed = against.items() if isinstance(against, Mapping) else ()
    found = [(str(who), _number(one["add_or_remove"])) for who, one in listed
             if isinstance(one, Mapping) and "add_or_remove" in one]  # fmt: skip
    return [(who, number) for who, number in found if number is not None]


def _number(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if good else None  # type: ignore[arg-type]


MOST_FEATURES = 60
"""Rows of the table of means."""

MOST_LINKS = 10

MOST_HUBS = 50

MOST_POINTS = 8
"""Of a curve."""

Items = list[Table | Listing | str]


def contents_of_fit(saved: SavedFit, rows: EvaluationData | None) -> Contents:
    """Return what there is to say of a fit, and of rows that it is held against."""
    warned = Section("warnings", "Warnings", _warnings(saved))
    told = isinstance(warned.items[0], Listing)
    promises = promised(saved.reported("privacy", dict) or {})
    k, d = saved.n_components, len(saved.feature_names)
    # Of two features the projection is the one pair.
    pictures = ("marginals", "pairs") if d > 2 else ("marginals",)
    sections = [
        *([warned] if told else []),
        Section(
            "components", f"{saved.noun.capitalize()}s",
            [_components(saved), *saved.answer.notes],
            ("profile", "projection"),
        ),
        Section(
            "quality", "How well", _quality(saved, rows), ("confusion", "responsibilities")
        ),
        Section("parameters", saved.heading, _means(saved), pictures),
        Section("course", "How the fit went", [] if told else warned.items, ("history",)),
        Section("privacy", "Privacy of rows", [facts(promises)] if promises else []),
        Section("hubs", "Who took part", _hubs(saved), ("graph", "sparsity")),
        Section("sent", "What was sent", _sent(saved), ("communication",)),
        Section("fitted", "Settings", [facts(_fitted(saved))]),
    ]  # fmt: skip
    name = os.path.basename(saved.path)
    title = f"{name}: {k} {saved.noun}{'' if k == 1 else 's'}, {d} feature{'' if d == 1 else 's'}"
    return Contents(title, f"{_found(saved)} {_lead(saved)}", sections)


ALGORITHMS = {
    "vp-em": "VP-EM over split features",
    "em-rows": "distributed EM over split rows",
    "fedem": "FedEM over split rows",
    "vr-fedem": "VR-FedEM over split rows",
    "k-means": "k-means",
}


def _found(saved: SavedFit) -> str:
    """Say in a sentence what was found: how many of how many rows, the largest, and in what."""
    answer, noun, k = saved.answer, saved.noun, saved.n_components
    n = saved.report.get("n_samples")
    of = "" if n is None else f" of {_counted(n, 'row')}"
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


def _lead(saved: SavedFit) -> str:
    algorithm = saved.reported("algorithm", str)
    kind = ALGORITHMS.get(algorithm or "", algorithm or "a Gaussian mixture")
    if algorithm == "k-means":
        kind += f" over split {saved.report.get('split', 'data')}"
    return f"Fitted by {kind}."


def _components(saved: SavedFit) -> Table:
    """Say how large components are, and in which features each differs."""
    heads, rows = as_table(saved.answer.describe(), noisy="privacy" in saved.report)
    return Table(rows, (saved.noun, *heads[1:]), numbers=False)


def _stated(value: object, digits: int = 7) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "not said"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _counted(count: object, noun: str) -> str:
    """Write "1 row", "3 rows", or "? rows" of what a file does not say."""
    if isinstance(count, bool) or not isinstance(count, int):
        return f"? {noun}s"
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _warnings(saved: SavedFit) -> Items:
    """What a reader must know before believing the rest; also that there is nothing."""
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
        ("recoveries", "components collapsed and were placed anew"),
        ("partitions", "iterations found the network fallen apart and changed nothing"),
        ("reseeded", "empty clusters were placed anew"),
    ):
        listed = saved.reported(name, list) or []
        if listed:
            said.append(f"{len(listed)} {what}.")
    return [Listing(list(dict.fromkeys(said))) if said else "No warnings were given."]


def _fitted(saved: SavedFit) -> list[Fact]:
    report, options = saved.report, saved.stored.options
    over_rows = saved.over_rows
    d = len(saved.feature_names)
    found: list[Fact] = [
        ("data", saved.reported("data", str) or "not said"),
        ("size", f"{_counted(report.get('n_samples'), 'row')}, {_counted(d, 'feature')}"),
    ]
    alignment = saved.alignment()
    if alignment is not None:
        found.append(("parties", alignment))
    count = report.get("n_workers" if over_rows else "n_agents")
    holders = _counted(count, "worker" if over_rows else "agent")
    found.append(("split", f"{'rows' if over_rows else 'features'} over {holders}"))
    held = numbers(report.get("worker_rows"))
    if held is not None and held.size:
        found.append(("rows of a worker", f"{held.min():.0f} to {held.max():.0f}"))
    found.append(("topology", saved.reported("topology", str) or "not said"))
    hubs = saved.reported("hubs", list)
    if not over_rows:
        found.append(("hops", _stated(report.get("hops"))))
        if hubs is not None:
            found.append(("hubs", len(hubs)))
    found.append(("sum", _summed(saved)))
    for name in ("compress", "participation", "step_size", "batch_size", "accelerate"):
        if report.get(name) is not None:
            found.append((name.replace("_", " "), report[name]))
    found += saved.size()
    for name in ("scale", "missing", "init"):
        if options.get(name) is not None:
            found.append((name, options[name]))
    found.append(("seed", _stated(options.get("seed", report.get("seed")))))
    versions = ", ".join(f"{name} {value}" for name, value in saved.stored.versions.items())
    found.append(("versions", versions or "not said"))
    return found


def _summed(saved: SavedFit) -> str:
    report = saved.report
    if report.get("rounds") is None:
        at_server = "at the server" if report.get("server") is not None else "not said"
        where = "along a tree" if report.get("sum") == "tree" else at_server
        return f"{where}, under masks (--secure-sum)" if report.get("secure_sum") is True else where
    parts = [f"{_counted(report['rounds'], 'round')} between neighbours"]
    if report.get("acceleration") == "chebyshev":
        parts[0] += " (Chebyshev)"
    if report.get("weights"):
        parts.append(f"{report['weights']} mixing weights")
    if isinstance(report.get("mixing_rate"), float):
        parts.append(f"mixing rate {report['mixing_rate']:.4f}")
    if isinstance(report.get("consensus_error"), int | float):
        parts.append(f"consensus error {report['consensus_error']:.2g}")
    return ", ".join(parts)


def _quality(saved: SavedFit, rows: EvaluationData | None) -> Items:
    report = saved.report
    found: list[Fact] = []
    for name, what in saved.judged_by.items():
        untold = report.get(name) is None and "privacy" in report
        found.append((what, UNPUBLISHED if untold else _stated(report.get(name), 9)))
    found.append(("iterations", _stated(report.get("n_iter"))))
    if report.get("accelerate") is not None:
        found.append(("sums taken back", len(saved.reported("lost_sums", list) or [])))
    converged = saved.reported("converged", bool)
    rest = "yes, to within noise" if saved.reported("in_noise", bool) else "yes"
    found.append(("converged", "not said" if converged is None else rest if converged else "no"))
    if isinstance(report.get("seconds"), float):
        found.append(("seconds", f"{report['seconds']:.3g}"))
    items: Items = [facts(found, "As the fit reported")]
    if rows is not None:
        what, value = saved.score(rows.X)
        found = [("data", rows.where), ("rows", len(rows)), (what, f"{value:.9g}")]
        items.append(facts([*found, *_agreement(saved, rows)], "Held against these data"))
    return items


def _agreement(saved: SavedFit, rows: EvaluationData) -> list[Fact]:
    """Say how well rows agree with their labels, where these have any."""
    if rows.labels is None:
        return []
    try:
        return [*agreement_of(saved, rows).facts()]
    except VpemError as error:
        return [("labels", str(error))]


def _hubs(saved: SavedFit) -> Items:
    """List hubs, where features are split and the file says who formed them."""
    try:
        hubs, holder = saved.hubs(), saved.agents_of_features()
        names = saved.node_names(saved.graph().n_nodes)
    except VpemError:
        return []
    made = []
    for number, hub in enumerate(hubs[:MOST_HUBS]):
        held = [] if holder is None else np.flatnonzero(np.isin(holder, hub.agents)).tolist()
        features = shorten((saved.feature_names[j] for j in held), 6)
        agents = shorten((names[agent] for agent in hub.agents), 12)
        made.append((str(number), names[hub.root], agents, features))
    table = Table(made, ("hub", "root", "agents", "features"), numbers=False)
    return _with_more([table] if made else [], len(hubs) - MOST_HUBS, "hubs")


def _with_more(items: Items, left: int, what: str) -> Items:
    """Say how many of these are in the file besides."""
    return [*items, f"{left} more {what} are in the file."] if left > 0 else items


def _means(saved: SavedFit) -> Items:
    d = len(saved.feature_names)
    k = saved.n_components
    means, first = saved.parts().means, saved.summaries()
    made: list[Sequence[object]] = [(name, *values) for name, values in first.items()]
    heads = [saved.centre, *(f"{saved.noun} {c}" for c in range(k))]
    for j in range(min(d, MOST_FEATURES)):
        own = saved.answer.levels.get(j)
        told = [f"{value:.6g}" for value in means[:, j]] if own is None else own.modes()
        made.append((saved.feature_names[j], *told))
    return _with_more([Table(made, heads)], d - MOST_FEATURES, "features")


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
    said = f"The setup took {said_bytes(setup)}, {100 * setup / total:.3g} % of all."
    try:
        history = saved.history()
    except VpemError:
        return [*items, said, *_busiest(saved)]
    steps = int(history.iteration[-1] - history.iteration[0])
    if history.sent is None or steps < 1:
        return [*items, said, *_busiest(saved)]
    each = float(history.sent[-1] - history.sent[0]) / steps
    said += f" An iteration took {said_bytes(each)}, in the mean over those after the first."
    return [*items, said, _curve(history, history.sent), *_busiest(saved)]


def _curve(history: History, sent: NDArray[np.float64]) -> Table:
    """Return some points of what was reached by how many bytes."""
    shown = np.unique(np.linspace(0, len(sent) - 1, MOST_POINTS).round().astype(int))
    means = history.means()
    rows = [(str(history.iteration[at]), f"{means[at]:.8g}", said_bytes(sent[at])) for at in shown]
    name = history.quantity[:1].upper() + history.quantity.split(" per")[0][1:]
    heads = ("iteration", history.quantity, "sent by then")
    return Table(rows, heads, f"{name} against bytes")


def _busiest(saved: SavedFit) -> Items:
    """List the links that carried most."""
    try:
        links = saved.links()
        names = saved.node_names(saved.graph().n_nodes)
    except VpemError as error:
        return [str(error)]
    total = links.total
    listed = [
        (f"{names[links.ends[at, 0]]} - {names[links.ends[at, 1]]}", said_bytes(total[at]))
        for at in np.argsort(-total, kind="stable")[:MOST_LINKS]
        if total[at]
    ]
    caption = f"Busiest of {len(total)} links, both directions"
    return [Table(listed, ("link", "payload"), caption)]
