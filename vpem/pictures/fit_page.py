"""What a page says of a mixture or of clusters."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from vpem.errors import VpemError
from vpem.pictures.assignments import agreement_of
from vpem.pictures.html import Contents, list_warnings, sent_by_phase, table, text
from vpem.pictures.reported import SavedFit, numbers
from vpem.pictures.samples import EvaluationData
from vpem.pictures.style import said_bytes

__all__ = ["contents_of_fit"]

MOST_FEATURES = 60
"""Rows of the table of means."""

MOST_LINKS = 10

Fact = tuple[str, object]


def contents_of_fit(saved: SavedFit, rows: EvaluationData | None, command: str | None) -> Contents:
    """Return what a page says; ``command`` is the one that fitted it, where it is known."""
    sections = [
        ("warnings", "Warnings", _warnings(saved)),
        ("fitted", "What was fitted", _fitted(saved, command)),
        ("quality", "How well", _quality(saved, rows)),
        ("parameters", saved.heading, _means(saved)),
        ("sent", "What was sent", _sent(saved)),
    ]
    name = os.path.basename(saved.path)
    k, d = saved.n_components, len(saved.feature_names)
    title = f"{name}: {k} {saved.noun}{'' if k == 1 else 's'}, {d} feature{'' if d == 1 else 's'}"
    return Contents(title, _lead(saved), sections)


ALGORITHMS = {
    "vp-em": "VP-EM over split features",
    "em-rows": "distributed EM over split rows",
    "fedem": "FedEM over split rows",
    "vr-fedem": "VR-FedEM over split rows",
    "k-means": "k-means",
}


def _lead(saved: SavedFit) -> str:
    algorithm = saved.reported("algorithm", str)
    kind = ALGORITHMS.get(algorithm or "", algorithm or "a Gaussian mixture")
    if algorithm == "k-means":
        kind += f" over split {saved.report.get('split', 'data')}"
    return f"Fitted by {kind}."


def _number(value: object, digits: int = 7) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "not said"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _warnings(saved: SavedFit) -> str:
    """What a reader must know before believing the rest; also that there is nothing."""
    said = [str(one) for one in saved.reported("warnings", list) or []]
    converged = saved.reported("converged", bool)
    if converged is False and saved.report.get("participation") is None:
        steps = saved.reported("n_iter", int)
        said.insert(0, f"The fit has not converged: it still changed after {steps} iterations.")
    for name, what in (
        ("recoveries", "components collapsed and were placed anew"),
        ("partitions", "iterations found the network fallen apart and changed nothing"),
        ("reseeded", "empty clusters were placed anew"),
    ):
        listed = saved.reported(name, list) or []
        if listed:
            said.append(f"{len(listed)} {what}.")
    return list_warnings(said)


def _fitted(saved: SavedFit, command: str | None) -> str:
    report, options = saved.report, saved.stored.options
    over_rows = saved.over_rows
    d = len(saved.feature_names)
    facts: list[Fact] = [
        ("data", report.get("data", "not said")),
        ("size", f"{_number(report.get('n_samples'))} rows, {d} features"),
        ("split", "rows over workers" if over_rows else "features over agents"),
    ]
    count = report.get("n_workers" if over_rows else "n_agents")
    facts.append(("workers" if over_rows else "agents", _number(count)))
    held = numbers(report.get("worker_rows"))
    if held is not None and held.size:
        facts.append(("rows of a worker", f"{held.min():.0f} to {held.max():.0f}"))
    facts.append(("topology", report.get("topology", "not said")))
    hubs = saved.reported("hubs", list)
    if not over_rows:
        facts.append(("hops", _number(report.get("hops"))))
        if hubs is not None:
            facts.append(("hubs", len(hubs)))
    facts.append(("sum", _summed(saved)))
    for name in ("compress", "participation", "step_size", "batch_size"):
        if report.get(name) is not None:
            facts.append((name.replace("_", " "), report[name]))
    facts += saved.size()
    for name in ("scale", "missing", "init"):
        if options.get(name) is not None:
            facts.append((name, options[name]))
    facts.append(("seed", _number(options.get("seed", report.get("seed")))))
    versions = ", ".join(f"{name} {value}" for name, value in saved.stored.versions.items())
    facts.append(("versions", versions or "not said"))
    body = table(facts, numbers=False)
    if command is not None:
        body += f"<p>The command (paths as they were given):</p><p><code>{text(command)}</code></p>"
    return body


def _summed(saved: SavedFit) -> str:
    report = saved.report
    if report.get("rounds") is None:
        return "at the server" if report.get("server") is not None else "not said"
    parts = [f"{report['rounds']} rounds between neighbours"]
    if report.get("acceleration") == "chebyshev":
        parts[0] += " (Chebyshev)"
    if report.get("weights"):
        parts.append(f"{report['weights']} mixing weights")
    if isinstance(report.get("mixing_rate"), float):
        parts.append(f"mixing rate {report['mixing_rate']:.4f}")
    if isinstance(report.get("consensus_error"), int | float):
        parts.append(f"consensus error {report['consensus_error']:.2g}")
    return ", ".join(parts)


def _quality(saved: SavedFit, rows: EvaluationData | None) -> str:
    report = saved.report
    facts: list[Fact] = []
    facts += [(what, _number(report.get(name), 9)) for name, what in saved.judged_by.items()]
    facts.append(("iterations", _number(report.get("n_iter"))))
    converged = saved.reported("converged", bool)
    facts.append(("converged", "not said" if converged is None else "yes" if converged else "no"))
    if isinstance(report.get("seconds"), float):
        facts.append(("seconds", f"{report['seconds']:.3g}"))
    body = table(facts, caption="As the fit reported", numbers=False)
    if rows is None:
        return body + "<p>No data were given to hold it against.</p>"
    facts = [("data", rows.where), ("rows", len(rows))]
    what, value = saved.score(rows.X)
    facts.append((what, f"{value:.9g}"))
    if rows.labels is not None:
        try:
            agreement = agreement_of(saved, rows)
        except VpemError as error:
            facts.append(("labels", str(error)))
        else:
            facts += [
                ("accuracy, best one-to-one mapping", f"{agreement.accuracy:.4f}"),
                ("adjusted Rand index", f"{agreement.adjusted_rand_index:.4f}"),
                (
                    "normalized mutual information",
                    f"{agreement.normalized_mutual_information:.4f}",
                ),
            ]
    return body + table(facts, caption="Held against these data", numbers=False)


def _means(saved: SavedFit) -> str:
    d = len(saved.feature_names)
    k = saved.n_components
    means, first = saved.parts().means, saved.summaries()
    made: list[Sequence[object]] = [(name, *values) for name, values in first.items()]
    heads = [saved.centre, *(f"{saved.noun} {c}" for c in range(k))]
    for j in range(min(d, MOST_FEATURES)):
        made.append((saved.feature_names[j], *(f"{value:.6g}" for value in means[:, j])))
    body = table(made, heads)
    if d > MOST_FEATURES:
        body += f"<p>{d - MOST_FEATURES} more features are in the file.</p>"
    return body


def _sent(saved: SavedFit) -> str:
    try:
        kinds = saved.sent_by_kind()
    except VpemError as error:
        return f"<p>{text(error)}</p>"
    body = sent_by_phase(kinds)
    if not kinds:
        return body
    total_bytes = sum(counted["bytes"] for counted in kinds.values())
    setup = kinds.get("setup", {}).get("bytes", 0.0)
    if total_bytes:
        said = f"The setup took {said_bytes(setup)}, {100 * setup / total_bytes:.3g} % of all."
        each = _sent_each(saved)
        if each is not None:
            said += (
                f" An iteration took {said_bytes(each)}, in the mean over those after the first."
            )
        body += f"<p>{said}</p>"
    try:
        links = saved.links()
        names = saved.node_names(saved.graph().n_nodes)
    except VpemError as error:
        return body + f"<p>{text(error)}</p>"
    total = links.total
    busy = np.argsort(-total, kind="stable")[:MOST_LINKS]
    listed = [
        (f"{names[links.ends[at, 0]]} - {names[links.ends[at, 1]]}", said_bytes(total[at]))
        for at in busy
        if total[at]
    ]
    caption = f"Busiest of {len(total)} links, both directions"
    return body + table(listed, ["link", "payload"], caption)


def _sent_each(saved: SavedFit) -> float | None:
    """Mean bytes of an iteration, or None where the file does not say."""
    try:
        history = saved.history()
    except VpemError:
        return None
    steps = history.iteration[-1] - history.iteration[0]
    if history.sent is None or steps < 1:
        return None
    return float(history.sent[-1] - history.sent[0]) / float(steps)
