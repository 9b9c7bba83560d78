"""The kinds of pictures of files, and a page of a fit with all of them.

A kind says which fits it shows, and which data it needs. A page is one HTML file that needs nothing
else.
"""

from __future__ import annotations

import base64
import gc
import io
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

import vpem
from vpem.errors import InputError, Setting, VpemError, check_choice, printable
from vpem.files.hdf5 import atomic_write
from vpem.pictures.contents import Contents
from vpem.pictures.figure import Picture, render
from vpem.pictures.saved import Saved, SavedFit, in_a_plane
from vpem.records import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vpem.pictures.saved import EvaluationData, SavedMixture
    from vpem.saem.individuals import Individuals

    Data = EvaluationData | Individuals


MOST_CURVES = 12
"""Individuals whose curves are drawn."""


def contents_of(saved: Saved, data: Data | None = None) -> Contents:
    contents: Contents = _function(saved.contents)(saved, data)
    return contents


def _function(name: str) -> Any:
    """Load "module.function" of this room."""
    module, function = name.split(".")
    return getattr(import_module(f"vpem.pictures.{module}"), function)


def write_page(
    path: str | os.PathLike[str],
    saved: Saved,
    data: Data | None = None,
    *,
    command: str | None = None,
    force: bool = False,
) -> dict[str, VpemError]:
    """Write the page of a model, clusters, a fit of SAEM or an imputation, all or nothing.

    Returned are the kinds of pictures that were left out, and why. Curves are drawn of the first 12
    individuals of the data; ``command`` is the one that fitted it.
    """
    contents = contents_of(saved, data)
    if data is None and saved.units:
        lead = f"{contents.lead} No data were given to compare it with."
        contents = replace(contents, lead=lead)
    pictures, left_out = {}, {}
    with _uncollected():
        for name, kind in kinds_of(saved).items():
            options = {"most": MOST_CURVES} if "most" in kind.options else {}
            try:
                picture = draw(name, saved, data, **options)
                source = as_source(picture.figure)
            except VpemError as error:
                left_out[name] = error
                continue
            said = "".join(f" Note: {note}." for note in picture.notes)
            pictures[name] = (
                kind.title,
                (
                    f"<h3 id='picture-{name}'>{text(kind.title)}</h3>\n"
                    f"<figure><img src='{source}' alt='{text(picture.alt)}'><figcaption>"
                    f"{text(f'{kind.about[:1].upper()}{kind.about[1:]}.{said}')}</figcaption></figure>"
                ),
            )
    more = []
    if command is not None:
        said = f"<p>Paths as they were given:</p><p><code>{text(command)}</code></p>"
        more.append(("command", "The command", said))
    if left_out:
        items = "".join(f"<li>{text(f'{kind}: {why}')}</li>" for kind, why in left_out.items())
        more.append(("not-drawn", "Not drawn", f"<ul>{items}</ul>"))
    parts: list[tuple[str, str, str]] = []  # name, heading and HTML of each section
    listed = []
    for one in contents.sections:
        drawn = {kind: pictures[kind] for kind in one.pictures if kind in pictures}
        body = "".join([*map(show_item, one.items), *(shown for _, shown in drawn.values())])
        if body:
            parts.append((one.name, one.heading, body))
            below = {f"picture-{kind}": title for kind, (title, _) in drawn.items()}
            listed.append(_listed(one.name, one.heading, below))
    parts += more
    page = PAGE.format(
        title=text(contents.title),
        lead=text(contents.lead),
        style=STYLE,
        version=text(vpem.__version__),
        contents="".join([*listed, *(_listed(name, heading, {}) for name, heading, _ in more)]),
        sections="\n".join(
            f'<section id="{key}" aria-labelledby="{key}-head">'
            f'<h2 id="{key}-head">{text(head)}</h2>\n{body}\n</section>'
            for key, head, body in parts
        ),
    )
    with atomic_write(path, force, "reports") as temporary:
        temporary.write_text(page, encoding="utf-8")
    return left_out


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


@dataclass(frozen=True)
class Kind:
    """One kind of picture."""

    title: str  # above it in a page
    about: str  # what it shows, for a hint
    of: tuple[str, ...]  # files it is drawn of: their `Saved.plural`
    data: str  # "no", "optional" or "needed"
    drawn: str  # "module.function" of this room, which is loaded when something is drawn
    options: tuple[str, ...] = ()
    labels: bool = False  # rows must have some
    check: Callable[[Any], None] | None = None  # raises InputError

    def draw(self, saved: Saved, *data: Data | None, **options: object) -> Picture:
        """Draw a file, or the fit of latent variables in it, with data if it shows any."""
        drawn = saved if saved.draws_file else saved.stored
        picture: Picture = _function(self.drawn)(drawn, *data, **options)
        return picture


def _check_two(saved: SavedFit) -> None:
    d = len(saved.feature_names)
    if d < 2:
        raise InputError(
            f"pairs and projections need two features, {saved.path} has {d}; try marginals"
        )
    in_a_plane(saved, None, [])


def _check_covariance(saved: SavedMixture) -> None:
    from vpem.terms.families.kinds import LAWS

    families = saved.families
    if families is not None and not any(LAWS[one].has_core for one in families):
        listed = " and ".join(sorted(set(families)))
        raise InputError(f"{saved.path} has no covariance: its features are {listed}")


def _check_curves(saved: Saved) -> None:
    from vpem.saem.models.model import OWN, has_curves

    fit = saved.stored
    if fit.model == OWN and not fit.discrete:
        raise InputError(
            f"{saved.path} holds a fit of a user's own model, but not the model: draw in Python, "
            "vpem.pictures.saem.draw_curves(fit, individuals, model=...)"
        )
    if not has_curves(fit.model, fit.model_options):
        raise InputError(
            f"{saved.path} is a fit of the model {fit.model}, whose latents have no curves "
            "over time; take ",
            Setting("kind", "traces"),
        )


MIXTURES = ("mixtures",)
FITS = ("mixtures", "clusters")
LATENTS = ("fits of SAEM",)
TOPICS = ("topics",)
IMPUTATIONS = ("imputations",)
TRACES = ("traces",)

KINDS: dict[str, Kind] = {
    "profile": Kind(
        "What they are", "how far the mean of each lies from that of all rows", FITS, "no",
        "densities.draw_profile", options=("features", "ax"),
    ),
    "projection": Kind(
        "How they lie apart", "all features at once, in the plane that separates best", FITS,
        "optional", "scatters.draw_projection", options=("ax", "directions"), check=_check_two,
    ),
    "marginals": Kind(
        "Feature by feature", "densities over histograms", FITS, "optional",
        "densities.draw_marginals", options=("features", "over"),
    ),
    "pairs": Kind(
        "Pairs of features", "rows with the components' ellipses", FITS, "optional",
        "scatters.draw_pairs", options=("features",), check=_check_two,
    ),
    "boundaries": Kind(
        "Where each is most likely", "regions of components, in two features, and their boundaries",
        FITS, "optional", "scatters.draw_boundaries", options=("features",), check=_check_two,
    ),
    "responsibilities": Kind(
        "How surely rows are assigned", "rows by component and uncertainty", MIXTURES, "needed",
        "assignments.draw_responsibilities",
    ),
    "confusion": Kind(
        "Agreement with labels", "labels against components or clusters, matched", FITS, "needed",
        "assignments.draw_confusion", options=("ax",), labels=True,
    ),
    "history": Kind(
        "Iteration by iteration", "log-likelihood by iteration and root, and against bytes", FITS,
        "no", "history.draw_history", options=("over",),
    ),
    "graph": Kind(
        "Agents and links", "agents coloured by hub, or workers, with their links", FITS, "no",
        "network.draw_graph", options=("ax",),
    ),
    "sparsity": Kind(
        "Blocks of the covariance", "which entries of the covariance are estimated", MIXTURES,
        "no", "network.draw_sparsity", check=_check_covariance,
    ),
    "communication": Kind(
        "Bytes by phase, link and agent", "how much was sent, when, by whom and where", FITS,
        "no", "network.draw_communication",
    ),
    "traces": Kind(
        "How the parameters went",
        "every parameter by iteration, with its mean since the burn-in and its estimate", LATENTS,
        "no", "saem.draw_traces",
    ),
    "curves": Kind(
        "Curves of individuals",
        "curves of individuals given their rows, with intervals, over what was measured", LATENTS,
        "needed", "saem.draw_curves", options=("most",), check=_check_curves,
    ),
    "observed": Kind(
        "Measured and predicted", "measurements against predictions, of population and individuals",
        LATENTS, "needed", "saem.draw_observed", check=_check_curves,
    ),
    "residuals": Kind(
        "Residuals", "residuals against time, prediction and the normal law", LATENTS, "needed",
        "saem.draw_residuals", check=_check_curves,
    ),
    "vpc": Kind(
        "Visual predictive check",
        "percentiles of measurements over time, beside those of simulated data", LATENTS, "needed",
        "saem.draw_check", check=_check_curves,
    ),
    "effects": Kind(
        "Random effects", "latents of individuals about the population's, and against covariates",
        LATENTS, "needed", "saem.draw_effects", check=_check_curves,
    ),
    "topics": Kind(
        "Words of the topics", "the most probable words of each topic", TOPICS, "no",
        "saem.draw_topics",
    ),
    "shares": Kind(
        "Topics of the devices", "which share of each device's words belongs to each topic",
        TOPICS, "no", "saem.draw_shares",
    ),
    "trends": Kind(
        "Trends and convergence",
        "mean fitted values of columns and rows, and how the objective went", IMPUTATIONS, "no",
        "assignments.draw_imputation",
    ),
    "trace": Kind(
        "Iterate by iterate", "weights, mean field and objective against epochs", TRACES,
        "optional", "iterates.draw_trace",
    ),
    "spreads": Kind(
        "How the topics went", "over how many words each topic is spread, by iteration", TOPICS,
        "no", "saem.draw_spreads",
    ),
}  # fmt: skip
"""All kinds; the first of a file is drawn by default."""


def kinds_of(saved: Saved) -> dict[str, Kind]:
    """Kinds of pictures of files like this; pairs come first where there is but one."""
    kinds = {name: kind for name, kind in KINDS.items() if saved.plural in kind.of}
    if saved.is_plane:
        kinds = {"pairs": kinds["pairs"], **kinds}
    return kinds


def check_kind(kind: str, saved: Saved) -> Kind:
    known = KINDS[check_choice("kind", kind, KINDS)]
    if saved.plural not in known.of:
        raise InputError(
            f"{kind} is drawn of {' and '.join(known.of)}, and {saved.path} holds {saved.holds}; "
            "take ",
            Setting("kind", next(iter(kinds_of(saved)))),
        )
    return known


def draw(kind: str, saved: Saved, data: Data | None = None, **options: object) -> Picture:
    """Draw one of `KINDS`; data are rows, or individuals of a fit of SAEM.

    Options are ``features``, names or numbers of those that "profile", "marginals" or "pairs" draw;
    ``directions``, the share of means in those of "projection" (`vpem.Mixture.directions`);
    ``most``, individuals of "curves"; ``ax``, where "profile", "projection", "confusion" and
    "graph", which have one panel, are drawn, by default in a figure of their own.
    """
    picture = check_kind(kind, saved)
    options = {name: value for name, value in options.items() if value is not None}
    for name in options:
        if name not in picture.options:
            takers = [one for one, other in KINDS.items() if name in other.options]
            listed = ", ".join(takers[:-1]) + " and " + takers[-1] if takers[1:] else takers[0]
            raise InputError(Setting(name), f" are for {listed}, not for {kind}")
    if picture.check is not None:
        picture.check(saved)
    if picture.data == "no":
        return picture.draw(saved, **options)
    if data is None and picture.data == "needed":
        raise InputError(f"the picture shows {saved.units}; give the data after the model")
    return picture.draw(saved, data, **options)


def next_kinds(kind: str, saved: Saved, data: Data | None) -> dict[str, list[str]]:
    """Other kinds that can be drawn of this file, by what they need besides.

    Keys are "" (nothing but what was given), "DATA" and "DATA with labels", where there are any.
    """
    kinds: dict[str, list[str]] = {"": []}
    for name, one in kinds_of(saved).items():
        try:
            if one.check is not None:
                one.check(saved)
        except InputError:
            continue
        if name == kind:
            continue
        needs = ""
        if one.labels and getattr(data, "labels", None) is None:
            needs = "DATA with labels"
        elif data is None and one.data != "no":
            needs = "DATA"
        kinds.setdefault(needs, []).append(name)
    return {needs: names for needs, names in kinds.items() if names}


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
    """Any value as text of a page: escaped, in one line, without control characters."""
    return escape(printable(value), quote=True)


def show_item(item: Table | list[str] | str) -> str:
    if isinstance(item, str):
        return f"<p>{text(item)}</p>"
    if isinstance(item, list):
        items = "".join(f"<li>{text(line)}</li>" for line in item)
        return f"<ul class='warnings'>{items}</ul>"
    return item._repr_html_()


def _listed(name: str, heading: str, below: Mapping[str, str]) -> str:
    inner = "".join(_listed(key, title, {}) for key, title in below.items())
    inner = f"<ul>{inner}</ul>" if inner else ""
    return f'<li><a href="#{name}">{text(heading)}</a>{inner}</li>'


def as_source(figure: Figure) -> str:
    """A figure as an address that holds it: lines as SVG, or dots where they are many."""
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
