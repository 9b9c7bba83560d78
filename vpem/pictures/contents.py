"""Reports of a mixture or of clusters: sections of tables and sentences, for pages and terminals.

Those of a private fit say against whom, and how, its rows are protected.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vpem.errors import VpemError, shorten
from vpem.fits.answer import NAMED, SEEN, as_table
from vpem.pictures.assignments import agreement_of
from vpem.pictures.figure import said_bytes
from vpem.pictures.network import MEANINGS
from vpem.pictures.saved import EvaluationData, SavedFit, numbers

Fact = tuple[str, object]

COVERS = {
    "hubs": "outsiders who see the model alone; parties see terms and responsibilities, "
    "against which this is no protection",
    "server": "all who see what is published; the server sees sums without noise",
    "root": "all who see what is published; the root of the tree sees sums without noise",
    "workers": "all who see what is published; every worker adds its share of the noise",
}
"""Against whom rows are protected, by who adds the noise."""

UNPUBLISHED = "not published, to protect rows"
"""In the place of the quality of a private fit, which would reveal something of its rows."""

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
        rows.append((MEANINGS.get(kind, kind), messages, said_bytes(counted["bytes"]), rounds))
    return Table(rows, ("phase", "messages", "payload", "rounds"), "By phase")


def promised(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines of a table: the guarantee, against whom it holds, and whether it can be trusted.

    ``privacy`` is from `vpem.fits.privacy.Guarantee.describe`. A file may hold anything there: what
    makes no sense is left out.
    """
    lines = []
    epsilon, delta = (_number(privacy.get(name)) for name in ("epsilon", "delta"))
    if epsilon is not None and delta is not None:
        lines.append(("privacy", f"epsilon {epsilon:g}, delta {delta:g}, of one row"))
    covers = COVERS.get(str(privacy.get("noise_by")))
    if covers is not None:
        lines.append(("protects from", covers))
    listed = privacy.get("noise_multipliers")
    multipliers = [_number(one) for one in listed] if isinstance(listed, list | tuple) else []
    known = [one for one in multipliers if one is not None]
    against = privacy.get("against")
    epsilons = []  # against each, of a row that takes part or not
    for who, one in against.items() if isinstance(against, Mapping) else ():
        number = _number(one.get("add_or_remove")) if isinstance(one, Mapping) else None
        if number is not None:
            epsilons.append((str(who), f"{number:.3g}"))
    if len({number for _, number in epsilons}) > 1:
        lines.append(("epsilon against", ", ".join(f"{who} {number}" for who, number in epsilons)))
    if known:
        releases = f"{len(known)} release{'' if len(known) == 1 else 's'}"
        lines.append(("noise", f"{releases}, least multiplier {min(known):.3g}"))
    if privacy.get("repeatable"):
        lines.append(("no privacy", str(privacy.get("warning"))))
    return lines


def _number(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if good else None  # type: ignore[arg-type]


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
    n = saved.report.get("n_samples")
    of = "" if n is None else f" of {counted(n, 'row')}"
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


def _stated(value: object, digits: int = 7) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "not said"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def counted(count: object, noun: str) -> str:
    """Write "1 row", "3 rows", or "? rows" of what a file does not say."""
    if isinstance(count, bool) or not isinstance(count, int):
        return f"? {noun}s"
    return f"{count} {noun}{'' if count == 1 else 's'}"


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
    over_rows = saved.over_rows
    d = len(saved.feature_names)
    fitted: list[Fact] = [
        ("data", saved.reported("data", str) or "not said"),
        ("size", f"{counted(report.get('n_samples'), 'row')}, {counted(d, 'feature')}"),
    ]
    alignment = saved.alignment()
    if alignment is not None:
        fitted.append(("parties", alignment))
    count = report.get("n_workers" if over_rows else "n_agents")
    agents = counted(count, "worker" if over_rows else "agent")
    fitted.append(("split", f"{'rows' if over_rows else 'features'} over {agents}"))
    sizes = numbers(report.get("worker_rows"))
    if sizes is not None and sizes.size:
        fitted.append(("rows of a worker", f"{sizes.min():.0f} to {sizes.max():.0f}"))
    fitted.append(("topology", saved.reported("topology", str) or "not said"))
    hubs = saved.reported("hubs", list)
    if not over_rows:
        fitted.append(("hops", _stated(report.get("hops"))))
        if hubs is not None:
            fitted.append(("hubs", len(hubs)))
    fitted.append(("sum", _summed(saved)))
    for name in ("compress", "participation", "step_size", "batch_size", "accelerate"):
        if report.get(name) is not None:
            fitted.append((name.replace("_", " "), report[name]))
    fitted += saved.size()
    for name in ("scale", "missing", "init"):
        if options.get(name) is not None:
            fitted.append((name, options[name]))
    fitted.append(("seed", _stated(options.get("seed", report.get("seed")))))
    versions = ", ".join(f"{name} {value}" for name, value in saved.stored.versions.items())
    fitted.append(("versions", versions or "not said"))
    return fitted


def _summed(saved: SavedFit) -> str:
    report = saved.report
    if report.get("rounds") is None:
        at_server = "at the server" if report.get("server") is not None else "not said"
        where = "along a tree" if report.get("sum") == "tree" else at_server
        return f"{where}, under masks (--secure-sum)" if report.get("secure_sum") is True else where
    parts = [f"{counted(report['rounds'], 'round')} between neighbours"]
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
    quality: list[Fact] = []
    for name, what in saved.judged_by.items():
        is_private = report.get(name) is None and "privacy" in report
        quality.append((what, UNPUBLISHED if is_private else _stated(report.get(name), 9)))
    quality.append(("iterations", _stated(report.get("n_iter"))))
    if report.get("accelerate") is not None:
        quality.append(("rejected steps", len(saved.reported("lost_sums", list) or [])))
    converged = saved.reported("converged", bool)
    rest = "yes, to within noise" if saved.reported("in_noise", bool) else "yes"
    quality.append(("converged", "not said" if converged is None else rest if converged else "no"))
    if isinstance(report.get("seconds"), float):
        quality.append(("seconds", f"{report['seconds']:.3g}"))
    items: Items = [facts(quality, "As the fit reported")]
    if rows is None:
        return items
    what, value = saved.score(rows.X)
    quality = [("data", rows.where), ("rows", len(rows)), (what, f"{value:.9g}")]
    if rows.labels is not None:
        try:
            quality += agreement_of(saved, rows).facts()
        except VpemError as error:
            quality.append(("labels", str(error)))
    return [*items, facts(quality, "Held against these data")]


def _hubs(saved: SavedFit) -> Items:
    """Hubs, where features are split and the file says who formed them."""
    try:
        hubs, holder = saved.hubs(), saved.agents_of_features()
        names = saved.node_names(saved.graph().n_nodes)
    except VpemError:
        return []
    rows = []
    for number, hub in enumerate(hubs[:MOST_HUBS]):
        columns = [] if holder is None else np.flatnonzero(np.isin(holder, hub.agents)).tolist()
        features = shorten((saved.feature_names[j] for j in columns), 6)
        agents = shorten((names[agent] for agent in hub.agents), 12)
        rows.append((str(number), names[hub.root], agents, features))
    table = Table(rows, ("hub", "root", "agents", "features"), numbers=False)
    return _with_more([table] if rows else [], len(hubs) - MOST_HUBS, "hubs")


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
    said = f"The setup took {said_bytes(setup)}, {100 * setup / total:.3g} % of all."
    try:
        history = saved.history()
    except VpemError:
        return [*items, said, *_busiest(saved)]
    steps = int(history.iteration[-1] - history.iteration[0])
    if history.sent is None or steps < 1:
        return [*items, said, *_busiest(saved)]
    sent, means = history.sent, history.means()
    each = float(sent[-1] - sent[0]) / steps
    said += f" An iteration took {said_bytes(each)} on average, the first left out."
    shown = np.unique(np.linspace(0, len(sent) - 1, MOST_POINTS).round().astype(int))
    rows = [(str(history.iteration[at]), f"{means[at]:.8g}", said_bytes(sent[at])) for at in shown]
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
        (f"{names[links.ends[at, 0]]} - {names[links.ends[at, 1]]}", said_bytes(total[at]))
        for at in np.argsort(-total, kind="stable")[:MOST_LINKS]
        if total[at]
    ]
    caption = f"Busiest of {len(total)} links, both directions"
    return [Table(listed, ("link", "payload"), caption)]
