"""The frame of a page: one HTML file that needs nothing else, and what stands in it."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import vpem
from vpem.errors import printable
from vpem.pictures.figure import render
from vpem.pictures.style import said_bytes
from vpem.pictures.traffic import MEANINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Contents",
    "as_source",
    "fill_page",
    "list_warnings",
    "sent_by_phase",
    "show_picture",
    "table",
    "text",
]

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


@dataclass(frozen=True)
class Contents:
    """What a page says: ``sections`` have a name, a heading and HTML each."""

    title: str
    lead: str
    sections: Sequence[tuple[str, str, str]]


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


def fill_page(contents: Contents) -> str:
    """Return the page; sections that are empty are left out."""
    there = [section for section in contents.sections if section[2]]
    return PAGE.format(
        title=text(contents.title),
        lead=text(contents.lead),
        style=STYLE,
        version=text(vpem.__version__),
        contents="".join(f'<li><a href="#{key}">{text(head)}</a></li>' for key, head, _ in there),
        sections="\n".join(
            f'<section id="{key}" aria-labelledby="{key}-head">'
            f'<h2 id="{key}-head">{text(head)}</h2>\n{body}\n</section>'
            for key, head, body in there
        ),
    )


def list_warnings(said: Sequence[str]) -> str:
    """Return warnings as a list, each once; or that there are none."""
    if not said:
        return "<p>None were given.</p>"
    unique = list(dict.fromkeys(said))
    return f"<ul class='warnings'>{''.join(f'<li>{text(one)}</li>' for one in unique)}</ul>"


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


def show_picture(title: str, source: str, alt: str, about: str, notes: Sequence[str]) -> str:
    """Return a picture of a page, with its heading and what is said below it."""
    said = f"{about[:1].upper()}{about[1:]}." + "".join(f" Note: {note}." for note in notes)
    return (
        f"<h3>{text(title)}</h3>\n<figure><img src='{source}' alt='{text(alt)}'>"
        f"<figcaption>{text(said)}</figcaption></figure>"
    )


def as_source(figure: Figure) -> str:
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
