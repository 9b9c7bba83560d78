"""A page that tells of a fit and shows it: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import io
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

import vpem
from vpem.errors import VpemError, printable
from vpem.files.hdf5 import atomic_write
from vpem.files.models import assembled
from vpem.pictures.assignments import agreement_of
from vpem.pictures.figure import check_matplotlib, render
from vpem.pictures.kinds import KINDS, draw
from vpem.pictures.samples import Rows
from vpem.pictures.saved import Saved, numbers
from vpem.pictures.style import said_bytes
from vpem.pictures.traffic import MEANINGS

__all__ = [
    "as_source",
    "fill_page",
    "list_left_out",
    "list_warnings",
    "make_page",
    "sent_by_phase",
    "show_picture",
    "table",
    "text",
    "write_page",
]

MOST_FEATURES = 60
"""Rows of the table of means."""

MOST_LINKS = 10
LARGEST_SVG = 1 << 20
"""Bytes beyond which a drawing is kept as dots."""

DOTS = 110
"""An inch, of what is kept as dots."""

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 62rem; margin: 0 auto; padding: 1rem 1.25rem 3rem; }
h1 { font-size: 1.7rem; margin: 0.5rem 0 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 0.6rem; border-bottom: 1px solid #bbb; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 0.4rem; }
p.lead { margin: 0.2rem 0 1rem; color: #444; }
nav ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0.3rem 1.2rem; }
a { color: #00508c; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.6rem 0 1rem; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.3rem; }
th, td { padding: 0.22rem 0.8rem 0.22rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid #e3e3e3; overflow-wrap: break-word; max-width: 40rem; }
th { font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
code { font-family: ui-monospace, monospace; font-size: 0.92em; overflow-wrap: anywhere; }
.warnings { border-left: 6px solid #b34700; background: #fff5ec; padding: 0.5rem 1rem; }
figure { margin: 0.6rem 0 1.6rem; }
figure img { max-width: 100%; height: auto; }
figcaption { color: #444; font-size: 0.92rem; }
footer { margin-top: 3rem; color: #555; font-size: 0.9rem; }
@media print {
  body { max-width: none; font-size: 11pt; padding: 0; }
  nav { display: none; }
  .wide { overflow: visible; }
  figure, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="lead">{lead}</p>
</header>
<nav aria-label="Contents"><ul>{contents}</ul></nav>
<main>
{sections}
</main>
<footer>Made by vpem {version}. Everything shown here is in this file.</footer>
</body>
</html>
"""


def text(value: object) -> str:
    """Return any value as text of a page: escaped, in one line, without control characters."""
    return escape(printable(value), quote=True)


def table(
    rows: Iterable[Sequence[object]],
    heads: Sequence[str] = (),
    caption: str = "",
    numbers: bool = True,
) -> str:
    """Return a table whose first column names its rows."""
    kind = ' class="n"' if numbers else ""
    parts = ["<div class='wide'><table>"]
    if caption:
        parts.append(f"<caption>{text(caption)}</caption>")
    if heads:
        cells = [f'<th scope="col">{text(heads[0])}</th>']
        cells += [f'<th scope="col"{kind}>{text(head)}</th>' for head in heads[1:]]
        parts.append(f"<thead><tr>{''.join(cells)}</tr></thead>")
    parts.append("<tbody>")
    for first, *others in rows:
        cells = [f'<th scope="row">{text(first)}</th>']
        cells += [f"<td{kind}>{text(cell)}</td>" for cell in others]
        parts.append(f"<tr>{''.join(cells)}</tr>")
    return "".join([*parts, "</tbody></table></div>"])


def write_page(
    path: str | os.PathLike[str],
    saved: Saved,
    rows: Rows | None = None,
    *,
    command: str | None = None,
    force: bool = False,
) -> dict[str, VpemError]:
    """Write the page of a model or clustering.

    Parameters
    ----------
    path : path
        An .html file, written completely or not at all.
    saved : Saved
        From `vpem.pictures.saved.read_saved`.
    rows : Rows, optional
        Data to hold it against.
    command : str, optional
        The command that fitted it.
    force : bool
        Replace an existing file.

    Returns
    -------
    dict of str to VpemError
        Kinds of pictures that were left out, and why.

    Raises
    ------
    InputError
        If matplotlib is not installed.
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    """
    page, left_out = make_page(saved, rows, command)
    with atomic_write(path, force, "reports") as temporary:
        temporary.write_text(page, encoding="utf-8")
    return left_out


def make_page(
    saved: Saved, rows: Rows | None = None, command: str | None = None
) -> tuple[str, dict[str, VpemError]]:
    """Return the page of `write_page` and the pictures that were left out."""
    check_matplotlib()
    pictures, left_out = _pictures(saved, rows)
    sections = [
        ("warnings", "Warnings", _warnings(saved)),
        ("fitted", "What was fitted", _fitted(saved, command)),
        ("quality", "How well", _quality(saved, rows)),
        ("parameters", "Mixing weights and means" if saved.model else "Centres", _means(saved)),
        ("sent", "What was sent", _sent(saved)),
        ("pictures", "Pictures", pictures),
    ]
    name = os.path.basename(saved.path)
    noun = "component" if saved.model is not None else "cluster"
    k, d = saved.n_components, len(saved.feature_names)
    title = f"{name}: {k} {noun}{'' if k == 1 else 's'}, {d} feature{'' if d == 1 else 's'}"
    return fill_page(title, _lead(saved), sections), left_out


def fill_page(title: str, lead: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """Return a page of sections: name, heading and HTML of each; those that are empty are not."""
    there = [section for section in sections if section[2]]
    return PAGE.format(
        title=text(title),
        lead=text(lead),
        style=STYLE,
        version=text(vpem.__version__),
        contents="".join(f'<li><a href="#{key}">{text(head)}</a></li>' for key, head, _ in there),
        sections="\n".join(
            f'<section id="{key}" aria-labelledby="{key}-head">'
            f'<h2 id="{key}-head">{text(head)}</h2>\n{body}\n</section>'
            for key, head, body in there
        ),
    )


# ---- what is said -------------------------------------------------------------------------------


ALGORITHMS = {
    "vp-em": "VP-EM over split features",
    "em-rows": "distributed EM over split rows",
    "fedem": "FedEM over split rows",
    "vr-fedem": "VR-FedEM over split rows",
    "k-means": "k-means",
}


def _lead(saved: Saved) -> str:
    algorithm = saved.told("algorithm", str)
    kind = ALGORITHMS.get(algorithm or "", algorithm or "a Gaussian mixture")
    if algorithm == "k-means":
        kind += f" over split {saved.report.get('split', 'data')}"
    return f"Fitted by {kind}."


def _number(value: Any, digits: int = 7) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "not told"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _warnings(saved: Saved) -> str:
    """What a reader must know before believing the rest; also that there is nothing."""
    said = [str(one) for one in saved.told("warnings", list) or []]
    converged = saved.told("converged", bool)
    if converged is False and saved.report.get("participation") is None:
        steps = saved.told("n_iter", int)
        said.insert(0, f"The fit has not converged: it still changed after {steps} iterations.")
    for name, what in (
        ("recoveries", "components collapsed and were placed anew"),
        ("partitions", "iterations found the network fallen apart and changed nothing"),
        ("reseeded", "empty clusters were placed anew"),
    ):
        listed = saved.told(name, list) or []
        if listed:
            said.append(f"{len(listed)} {what}.")
    return list_warnings(said)


def list_warnings(said: Sequence[str]) -> str:
    """Return warnings as a list, each once; or that there are none."""
    if not said:
        return "<p>None were given.</p>"
    unique = list(dict.fromkeys(said))
    return f"<ul class='warnings'>{''.join(f'<li>{text(one)}</li>' for one in unique)}</ul>"


def _fitted(saved: Saved, command: str | None) -> str:
    report, options = saved.report, saved.stored.options
    over_rows = saved.over_rows
    d = len(saved.feature_names)
    facts: list[tuple[str, object]] = [
        ("data", report.get("data", "not told")),
        ("size", f"{_number(report.get('n_samples'))} rows, {d} features"),
        ("split", "rows over workers" if over_rows else "features over agents"),
    ]
    count = report.get("n_workers" if over_rows else "n_agents")
    facts.append(("workers" if over_rows else "agents", _number(count)))
    held = numbers(report.get("worker_rows"))
    if held is not None and held.size:
        facts.append(("rows of a worker", f"{held.min():.0f} to {held.max():.0f}"))
    facts.append(("topology", report.get("topology", "not told")))
    hubs = saved.told("hubs", list)
    if not over_rows:
        facts.append(("hops", _number(report.get("hops"))))
        if hubs is not None:
            facts.append(("hubs", len(hubs)))
    facts.append(("sum", _summed(saved)))
    for name in ("compress", "participation", "step_size", "batch_size"):
        if report.get(name) is not None:
            facts.append((name.replace("_", " "), report[name]))
    if saved.model is not None:
        mixture = saved.model.mixture
        facts += [
            ("components", mixture.n_components),
            ("covariances", mixture.covariance_type),
            ("parameters", mixture.n_parameters),
        ]
    else:
        facts.append(("clusters", saved.n_components))
    for name in ("scale", "missing", "init"):
        if options.get(name) is not None:
            facts.append((name, options[name]))
    facts.append(("seed", _number(options.get("seed", report.get("seed")))))
    versions = ", ".join(f"{name} {value}" for name, value in saved.stored.versions.items())
    facts.append(("versions", versions or "not told"))
    body = table(facts, numbers=False)
    if command is not None:
        body += f"<p>The command (paths as they were given):</p><p><code>{text(command)}</code></p>"
    return body


def _summed(saved: Saved) -> str:
    report = saved.report
    if report.get("rounds") is None:
        return "at the server" if report.get("server") is not None else "not told"
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


def _quality(saved: Saved, rows: Rows | None) -> str:
    report = saved.report
    facts: list[tuple[str, object]] = []
    if saved.model is not None:
        facts += [
            ("log-likelihood per sample (nats)", _number(report.get("log_likelihood"), 9)),
            ("BIC (less is better)", _number(report.get("bic"), 9)),
            ("AIC (less is better)", _number(report.get("aic"), 9)),
        ]
    else:
        facts.append(("inertia", _number(report.get("inertia"), 9)))
    facts.append(("iterations", _number(report.get("n_iter"))))
    converged = saved.told("converged", bool)
    facts.append(("converged", "not told" if converged is None else "yes" if converged else "no"))
    if isinstance(report.get("seconds"), float):
        facts.append(("seconds", f"{report['seconds']:.3g}"))
    body = table(facts, caption="As the fit told", numbers=False)
    if rows is None:
        return body + "<p>No data were given to hold it against.</p>"
    facts = [("data", rows.where), ("rows", len(rows))]
    if saved.model is not None:
        scores = saved.model.mixture.score_samples(rows.X, missing="marginalize")
        facts.append(("log-likelihood per sample (nats)", f"{scores.mean():.9g}"))
    else:
        assert saved.clusters is not None
        facts.append(("inertia", f"{saved.clusters.assign(rows.X)[1].sum():.9g}"))
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


def _means(saved: Saved) -> str:
    d = len(saved.feature_names)
    k = saved.n_components
    made: list[Sequence[object]] = []
    if saved.model is not None:
        one = assembled(saved.model)
        means = one["means"]
        made.append(("mixing weight", *(f"{weight:.4f}" for weight in one["weights"])))
        weights = saved.model.mixture.weights
        if len(weights) > 1:
            spread = np.ptp(weights, axis=0)
            made.append(("spread over roots", *(f"{value:.2g}" for value in spread)))
        heads = ["mean of", *(f"component {c}" for c in range(k))]
    else:
        assert saved.clusters is not None
        means = saved.clusters.centres
        sizes = np.bincount(saved.clusters.labels, minlength=k)
        made.append(("rows", *(str(size) for size in sizes)))
        heads = ["centre in", *(f"cluster {c}" for c in range(k))]
    for j in range(min(d, MOST_FEATURES)):
        made.append((saved.feature_names[j], *(f"{value:.6g}" for value in means[:, j])))
    body = table(made, heads)
    if d > MOST_FEATURES:
        body += f"<p>{d - MOST_FEATURES} more features are in the file.</p>"
    return body


def _sent(saved: Saved) -> str:
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
        told = f"The setup took {said_bytes(setup)}, {100 * setup / total_bytes:.3g} % of all."
        each = _sent_each(saved)
        if each is not None:
            told += (
                f" An iteration took {said_bytes(each)}, in the mean over those after the first."
            )
        body += f"<p>{told}</p>"
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


def sent_by_phase(kinds: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table of messages, bytes and rounds by kind, with their sums."""
    if not kinds:
        return "<p>Nothing was sent.</p>"
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
    return table(made, ["phase", "messages", "payload", "rounds"], "By phase")


def _sent_each(saved: Saved) -> float | None:
    """Mean bytes of an iteration, or None where the file does not say."""
    try:
        record = saved.record()
    except VpemError:
        return None
    steps = record.iteration[-1] - record.iteration[0]
    if record.sent is None or steps < 1:
        return None
    return float(record.sent[-1] - record.sent[0]) / float(steps)


# ---- what is shown ------------------------------------------------------------------------------


def _pictures(saved: Saved, rows: Rows | None) -> tuple[str, dict[str, VpemError]]:
    """Draw every kind that can be drawn; say why of the others."""
    made = []
    left_out: dict[str, VpemError] = {}
    for name, kind in KINDS.items():
        try:
            picture = draw(name, saved, rows)
            source = as_source(picture.figure)
        except VpemError as error:
            left_out[name] = error
            continue
        made.append(show_picture(kind.title, source, picture.alt, kind.about, picture.notes))
    return "\n".join([*made, *list_left_out(left_out)]), left_out


def show_picture(title: str, source: str, alt: str, about: str, notes: Sequence[str]) -> str:
    """Return a picture of a page, with its heading and what is said below it."""
    said = f"{about[:1].upper()}{about[1:]}." + "".join(f" Note: {note}." for note in notes)
    return (
        f"<h3>{text(title)}</h3>\n<figure><img src='{source}' alt='{text(alt)}'>"
        f"<figcaption>{text(said)}</figcaption></figure>"
    )


def list_left_out(left_out: Mapping[str, VpemError]) -> list[str]:
    """Return the list of pictures that were not drawn, and why; nothing where all were."""
    if not left_out:
        return []
    items = "".join(f"<li>{text(f'{kind}: {why}')}</li>" for kind, why in left_out.items())
    return [f"<h3>Not drawn</h3>\n<ul>{items}</ul>"]


def as_source(figure: Any) -> str:
    """Return a figure as an address that holds it: lines as SVG, or dots where they are many."""
    import matplotlib as mpl

    # Letters as shapes: the page looks the same everywhere.
    with (
        mpl.rc_context({"svg.hashsalt": "vpem", "svg.fonttype": "path"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph ")
        stream = io.BytesIO()
        render(figure, stream, "svg", DOTS)
        kind = "svg+xml"
        if stream.tell() > LARGEST_SVG:
            stream = io.BytesIO()
            render(figure, stream, "png", DOTS)
            kind = "png"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"
