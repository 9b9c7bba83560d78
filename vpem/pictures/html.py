"""What is said of a fit as HTML: one file that needs nothing else."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

import vpem
from vpem.errors import printable
from vpem.pictures.contents import Contents, Listing, Table
from vpem.pictures.figure import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Part = tuple[str, str, str]
"""Name, heading and HTML of a section."""

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
nav { background: #f6f7f8; padding: 0.4rem 1.2rem 0.6rem; margin: 1rem 0; }
nav h2 { margin: 0.2rem 0; border: 0; font-size: 1.05rem; }
nav ol { margin: 0; padding-left: 1.3rem; columns: 18rem; }
nav li { break-inside: avoid; }
nav ul { padding-left: 1rem; margin: 0; font-size: 0.94em; }
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
<nav aria-label="Contents"><h2>Contents</h2><ol>{contents}</ol></nav>
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


def _table(table: Table) -> str:
    kind = ' class="n"' if table.numbers else ""
    parts = ["<div class='wide'><table>"]
    if table.caption:
        parts.append(f"<caption>{text(table.caption)}</caption>")
    if table.heads:
        cells = [f'<th scope="col">{text(table.heads[0])}</th>']
        cells += [f'<th scope="col"{kind}>{text(head)}</th>' for head in table.heads[1:]]
        parts.append(f"<thead><tr>{''.join(cells)}</tr></thead>")
    parts.append("<tbody>")
    for first, *others in table.rows:
        cells = [f'<th scope="row">{text(first)}</th>']
        cells += [f"<td{kind}>{text(cell)}</td>" for cell in others]
        parts.append(f"<tr>{''.join(cells)}</tr>")
    return "".join([*parts, "</tbody></table></div>"])


def show_item(item: Table | Listing | str) -> str:
    """Return a table, a list or a sentence as HTML."""
    if isinstance(item, Table):
        return _table(item)
    if isinstance(item, Listing):
        items = "".join(f"<li>{text(line)}</li>" for line in item.lines)
        return f"<ul class='warnings'>{items}</ul>"
    return f"<p>{text(item)}</p>"


def fill_page(
    contents: Contents, pictures: Mapping[str, tuple[str, str]], more: Sequence[Part]
) -> str:
    """Return the page: sections with their pictures, and others. Empty ones are left out.

    ``pictures`` have by kind the title and HTML of each that was drawn; ``more`` sections, which
    come last, are (name, heading, HTML).
    """
    parts: list[Part] = []
    listed = []
    for one in contents.sections:
        drawn = {kind: pictures[kind] for kind in one.pictures if kind in pictures}
        body = "".join([*map(show_item, one.items), *(shown for _, shown in drawn.values())])
        if body:
            parts.append((one.name, one.heading, body))
            listed.append(_listed(one.name, one.heading, {f"picture-{kind}": title for kind,
                          (title, _) in drawn.items()}))  # fmt: skip
    for name, heading, body in more:
        if body:
            parts.append((name, heading, body))
            listed.append(_listed(name, heading, {}))
    return PAGE.format(
        title=text(contents.title),
        lead=text(contents.lead),
        style=STYLE,
        version=text(vpem.__version__),
        contents="".join(listed),
        sections="\n".join(
            f'<section id="{key}" aria-labelledby="{key}-head">'
            f'<h2 id="{key}-head">{text(head)}</h2>\n{body}\n</section>'
            for key, head, body in parts
        ),
    )


def _listed(name: str, heading: str, below: Mapping[str, str]) -> str:
    """Return a line of the table of contents, with those of the pictures of its section."""
    inner = "".join(_listed(key, title, {}) for key, title in below.items())
    inner = f"<ul>{inner}</ul>" if inner else ""
    return f'<li><a href="#{name}">{text(heading)}</a>{inner}</li>'


def show_picture(
    name: str, title: str, source: str, alt: str, about: str, notes: Sequence[str]
) -> str:
    """Return a picture of a page, with its heading and what is said below it."""
    said = f"{about[:1].upper()}{about[1:]}." + "".join(f" Note: {note}." for note in notes)
    return (
        f"<h3 id='picture-{name}'>{text(title)}</h3>\n"
        f"<figure><img src='{source}' alt='{text(alt)}'>"
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
