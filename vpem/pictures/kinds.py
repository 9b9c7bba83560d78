"""The kinds of pictures of files: of which fits they are, what each needs, what to look at next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vpem.errors import InputError, Setting, check_choice
from vpem.pictures.figure import Picture
from vpem.pictures.reported import Saved, SavedFit

if TYPE_CHECKING:
    from vpem.pictures.samples import EvaluationData
    from vpem.pictures.saved import SavedLatents, SavedMixture
    from vpem.saem.individuals import Individuals

    Data = EvaluationData | Individuals


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

    def draw(self, saved: Saved, *data: Data | None, **options: Any) -> Picture:
        """Draw a file, or the fit of latent variables in it, with data if it shows any."""
        module, name = self.drawn.split(".")
        draw: Callable[..., Picture] = getattr(import_module(f"vpem.pictures.{module}"), name)
        return draw(saved if isinstance(saved, SavedFit) else saved.stored, *data, **options)


def _check_two(saved: SavedFit) -> None:
    from vpem.pictures.families import in_a_plane

    d = len(saved.feature_names)
    if d < 2:
        raise InputError(
            f"pairs and projections need two features, {saved.path} has {d}; try marginals"
        )
    in_a_plane(saved, None, [])


def _check_covariance(saved: SavedMixture) -> None:
    from vpem.pictures.families import families_of
    from vpem.terms.families.kinds import LOCATED

    families = families_of(saved)
    if families is not None and not set(families) & set(LOCATED):
        told = " and ".join(sorted(set(families)))
        raise InputError(f"{saved.path} has no covariance: its features are {told}")


def _check_curves(saved: SavedLatents) -> None:
    from vpem.saem.models.catalogue import OWN, has_curves

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


MIXTURES = ("mixtures",)
FITS = ("mixtures", "clusters")
LATENTS = ("fits of SAEM",)
TOPICS = ("topics",)

KINDS: dict[str, Kind] = {
    "profile": Kind(
        "What they are", "how far the mean of each lies from that of all rows", FITS, "no",
        "profiles.draw_profile", options=("features", "ax"),
    ),
    "projection": Kind(
        "How they lie apart", "all features at once, in the plane that separates best", FITS,
        "optional", "projections.draw_projection", options=("ax",), check=_check_two,
    ),
    "marginals": Kind(
        "Feature by feature", "densities over histograms", FITS, "optional",
        "densities.draw_marginals", options=("features",),
    ),
    "pairs": Kind(
        "Pairs of features", "rows with the components' ellipses", FITS, "optional",
        "scatters.draw_pairs", options=("features",), check=_check_two,
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
        "no", "curves.draw_history",
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
        "no", "traffic.draw_communication",
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
        LATENTS, "needed", "diagnostics.draw_observed", check=_check_curves,
    ),
    "residuals": Kind(
        "Residuals", "residuals against time, prediction and the normal law", LATENTS, "needed",
        "diagnostics.draw_residuals", check=_check_curves,
    ),
    "vpc": Kind(
        "Visual predictive check",
        "percentiles of measurements over time, beside those of simulated data", LATENTS, "needed",
        "diagnostics.draw_check", check=_check_curves,
    ),
    "effects": Kind(
        "Random effects", "latents of individuals about the population's, and against covariates",
        LATENTS, "needed", "diagnostics.draw_effects", check=_check_curves,
    ),
    "topics": Kind(
        "Words of the topics", "the most probable words of each topic", TOPICS, "no",
        "topics.draw_topics",
    ),
    "shares": Kind(
        "Topics of the devices", "what share of the words of each device is of which topic",
        TOPICS, "no", "topics.draw_shares",
    ),
    "spreads": Kind(
        "How the topics went", "over how many words each topic is spread, by iteration", TOPICS,
        "no", "topics.draw_spreads",
    ),
}  # fmt: skip
"""All kinds; the first of a file is drawn by default."""


def kinds_of(saved: Saved) -> dict[str, Kind]:
    """Return the kinds of pictures of files like this; pairs come first where there is but one."""
    found = {name: kind for name, kind in KINDS.items() if saved.plural in kind.of}
    if isinstance(saved, SavedFit) and len(saved.feature_names) == 2:
        from vpem.pictures.families import levels_drawn

        if all(levels_drawn(saved, j) is None for j in (0, 1)):
            found = {"pairs": found["pairs"], **found}
    return found


def check_kind(kind: str, saved: Saved) -> Kind:
    """Return the kind of this name, or raise `InputError` unless it is drawn of such files."""
    check_choice("kind", kind, KINDS)
    found = KINDS[kind]
    if saved.plural not in found.of:
        raise InputError(
            f"{kind} is drawn of {' and '.join(found.of)}, and {saved.path} holds {saved.holds}; "
            "take ",
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
