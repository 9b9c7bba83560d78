"""The kinds of pictures of files: of which fits they are, what each needs, what to look at next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vpem.errors import InputError, Setting, check_choice
from vpem.pictures.assignments import draw_confusion, draw_responsibilities
from vpem.pictures.curves import draw_history
from vpem.pictures.densities import draw_marginals
from vpem.pictures.diagnostics import draw_check, draw_effects, draw_observed, draw_residuals
from vpem.pictures.families import families_of, in_a_plane, levels_drawn
from vpem.pictures.figure import Picture
from vpem.pictures.network import draw_graph, draw_sparsity
from vpem.pictures.profiles import draw_profile
from vpem.pictures.projections import draw_projection
from vpem.pictures.reported import Saved, SavedFit
from vpem.pictures.saem import MOST_PANELS, draw_curves, draw_traces
from vpem.pictures.samples import EvaluationData
from vpem.pictures.saved import SavedClusters, SavedLatents, SavedMixture, SavedTopics
from vpem.pictures.scatters import draw_pairs
from vpem.pictures.topics import draw_shares, draw_spreads, draw_topics
from vpem.pictures.traffic import draw_communication
from vpem.saem.individuals import Individuals
from vpem.saem.models.catalogue import OWN, has_curves
from vpem.saem.saved import SavedSaem
from vpem.terms.families.kinds import LOCATED

__all__ = ["KINDS", "Kind", "check_kind", "draw", "kinds_of", "next_kinds"]

Data = EvaluationData | Individuals


@dataclass(frozen=True)
class Kind:
    """One kind of picture."""

    title: str  # above it in a page
    about: str  # what it shows, for a hint
    of: tuple[type[Saved], ...]  # files it is drawn of
    data: str  # "no", "optional" or "needed"
    draw: Callable[..., Picture]  # of the file, data if any, options
    options: tuple[str, ...] = ()
    labels: bool = False  # rows must have some
    check: Callable[[Any], None] | None = None  # raises InputError


def _check_two(saved: SavedFit) -> None:
    d = len(saved.feature_names)
    if d < 2:
        raise InputError(
            f"pairs and projections need two features, {saved.path} has {d}; try marginals"
        )
    in_a_plane(saved, None, [])


def _check_covariance(saved: SavedMixture) -> None:
    families = families_of(saved)
    if families is not None and not set(families) & set(LOCATED):
        told = " and ".join(sorted(set(families)))
        raise InputError(f"{saved.path} has no covariance: its features are {told}")


def _check_curves(saved: SavedLatents) -> None:
    fit = saved.stored
    if fit.model == OWN and not fit.discrete:
        raise InputError(
            f"{saved.path} is of a user's own model, which a file does not hold: draw in Python, "
            "vpem.pictures.saem.draw_curves(fit, individuals, model=...)"
        )
    if not has_curves(fit.model, fit.model_options):
        raise InputError(
            f"{saved.path} is of the model {fit.model}, whose latents have no curves over time; "
            "take ",
            Setting("kind", "traces"),
        )


def _curves(saved: SavedLatents, individuals: Individuals, most: int = MOST_PANELS) -> Picture:
    return draw_curves(saved.stored, individuals, most=most)


def _of_stored(drawn: Callable[[SavedSaem, Individuals], Picture]) -> Callable[..., Picture]:
    """Draw of a file what is drawn of the fit in it."""
    return lambda saved, individuals: drawn(saved.stored, individuals)


MIXTURES = (SavedMixture,)
FITS = (SavedMixture, SavedClusters)
LATENTS = (SavedLatents,)
TOPICS = (SavedTopics,)

KINDS: dict[str, Kind] = {
    "profile": Kind(
        "What they are", "how far the mean of each lies from that of all rows", FITS, "no",
        draw_profile, options=("features", "ax"),
    ),
    "projection": Kind(
        "How they lie apart", "all features at once, in the plane that separates best", FITS,
        "optional", draw_projection, options=("ax",), check=_check_two,
    ),
    "marginals": Kind(
        "Feature by feature", "densities over histograms", FITS, "optional", draw_marginals,
        options=("features",),
    ),
    "pairs": Kind(
        "Pairs of features", "rows with the components' ellipses", FITS, "optional", draw_pairs,
        options=("features",), check=_check_two,
    ),
    "responsibilities": Kind(
        "How surely rows are assigned", "rows by component and uncertainty", MIXTURES, "needed",
        draw_responsibilities,
    ),
    "confusion": Kind(
        "Agreement with labels", "labels against components or clusters, matched", FITS, "needed",
        draw_confusion, options=("ax",), labels=True,
    ),
    "history": Kind(
        "Iteration by iteration", "log-likelihood by iteration and root, and against bytes", FITS,
        "no", draw_history,
    ),
    "graph": Kind(
        "Agents and links", "agents coloured by hub, or workers, with their links", FITS, "no",
        draw_graph, options=("ax",),
    ),
    "sparsity": Kind(
        "Blocks of the covariance", "which entries of the covariance are estimated", MIXTURES,
        "no", draw_sparsity, check=_check_covariance,
    ),
    "communication": Kind(
        "Bytes by phase, link and agent", "how much was sent, when, by whom and where", FITS,
        "no", draw_communication,
    ),
    "traces": Kind(
        "How the parameters went",
        "every parameter by iteration, with its mean since the burn-in and its estimate", LATENTS,
        "no", lambda saved: draw_traces(saved.stored),
    ),
    "curves": Kind(
        "Curves of individuals",
        "curves of individuals given their rows, with intervals, over what was measured", LATENTS,
        "needed", _curves, options=("most",), check=_check_curves,
    ),
    "observed": Kind(
        "Measured and predicted", "measurements against predictions, of population and individuals",
        LATENTS, "needed", _of_stored(draw_observed), check=_check_curves,
    ),
    "residuals": Kind(
        "Residuals", "residuals against time, prediction and the normal law", LATENTS, "needed",
        _of_stored(draw_residuals), check=_check_curves,
    ),
    "vpc": Kind(
        "Visual predictive check",
        "percentiles of measurements over time, beside those of simulated data", LATENTS, "needed",
        _of_stored(draw_check), check=_check_curves,
    ),
    "effects": Kind(
        "Random effects", "latents of individuals about the population's, and against covariates",
        LATENTS, "needed", _of_stored(draw_effects), check=_check_curves,
    ),
    "topics": Kind(
        "Words of the topics", "the most probable words of each topic", TOPICS, "no",
        lambda saved: draw_topics(saved.stored),
    ),
    "shares": Kind(
        "Topics of the devices", "what share of the words of each device is of which topic",
        TOPICS, "no", lambda saved: draw_shares(saved.stored),
    ),
    "spreads": Kind(
        "How the topics went", "over how many words each topic is spread, by iteration", TOPICS,
        "no", lambda saved: draw_spreads(saved.stored),
    ),
}  # fmt: skip
"""All kinds; the first of a file is drawn by default."""


def kinds_of(saved: Saved) -> dict[str, Kind]:
    """Return the kinds of pictures of files like this; pairs come first where there is but one."""
    found = {name: kind for name, kind in KINDS.items() if isinstance(saved, kind.of)}
    if (
        isinstance(saved, SavedFit)
        and len(saved.feature_names) == 2
        and all(levels_drawn(saved, j) is None for j in (0, 1))
    ):
        found = {"pairs": found["pairs"], **found}
    return found


def check_kind(kind: str, saved: Saved) -> Kind:
    """Return the kind of this name, or raise `InputError` unless it is drawn of such files."""
    check_choice("kind", kind, KINDS)
    found = KINDS[kind]
    if not isinstance(saved, found.of):
        files = " and ".join(one.plural for one in found.of)
        raise InputError(
            f"{kind} is drawn of {files}, and {saved.path} holds {saved.holds}; take ",
            Setting("kind", next(iter(kinds_of(saved)))),
        )
    return found


def draw(kind: str, saved: Saved, data: Data | None = None, **options: Any) -> Picture:
    """Draw one of `KINDS`; data are rows, or individuals of a fit of SAEM.

    Options are ``features``, names or numbers of those that "profile", "marginals" or "pairs" draw;
    ``most``, individuals of "curves"; ``ax``, where "profile", "projection", "confusion" and
    "graph", which have one panel, are drawn, by default in a figure of their own.
    """
    found = check_kind(kind, saved)
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in found.options:
            takers = [one for one, other in KINDS.items() if name in other.options]
            listed = ", ".join(takers[:-1]) + " and " + takers[-1] if takers[1:] else takers[0]
            raise InputError(Setting(name), f" are for {listed}, not for {kind}")
    if found.check is not None:
        found.check(saved)
    if found.data == "no":
        return found.draw(saved, **given)
    if data is None and found.data == "needed":
        raise InputError(f"the picture shows {saved.units}; give the data after the model")
    return found.draw(saved, data, **given)


def next_kinds(kind: str, saved: Saved, data: Data | None) -> dict[str, list[str]]:
    """Return other kinds that can be drawn of this file, by what they need besides.

    Keys are "" (nothing but what was given), "DATA" and "DATA with labels", where there are any.
    """
    found: dict[str, list[str]] = {"": []}
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
        found.setdefault(needs, []).append(name)
    return {needs: names for needs, names in found.items() if names}
