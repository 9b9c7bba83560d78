"""The kinds of pictures of a fit of SAEM: traces of its parameters, curves of individuals."""

from __future__ import annotations

from vpem.errors import InputError, Setting, check_choice
from vpem.pictures.kinds import KINDS
from vpem.pictures.saem import MOST_PANELS, draw_curves, draw_traces
from vpem.pictures.style import Picture
from vpem.saem.individuals import Individuals
from vpem.saem.models.catalogue import OWN
from vpem.saem.prediction import CURVES
from vpem.saem.saved import SavedSaem

__all__ = ["ABOUT", "TITLES", "check_kind", "draw_saem", "next_of_saem"]

ABOUT = {
    "traces": "every parameter by iteration, with its mean since the burn-in and its estimate",
    "curves": "curves of individuals given their rows, with intervals, over what was measured",
}
"""All kinds, and what each shows, to be said in a hint."""

TITLES = {"traces": "How the parameters went", "curves": "Curves of individuals"}


def check_kind(kind: str, path: object, saem: bool) -> None:
    """Raise `InputError` unless pictures of this kind are of such a file.

    Parameters
    ----------
    kind : str
        One of ``KINDS`` or ``ABOUT``.
    path : path
        The file.
    saem : bool
        Whether it is a fit of SAEM.
    """
    check_choice("kind", kind, (*KINDS, *ABOUT))
    if saem and kind in KINDS:
        raise InputError(
            f"{kind} is drawn of mixtures and clusters, and {path} is a fit of SAEM; take ",
            Setting("kind", "traces"),
            ", or curves with DATA",
        )
    if not saem and kind in ABOUT:
        verb = "are drawn of fits of SAEM" if kind == "traces" else "are those of fits of SAEM"
        raise InputError(
            f"{kind} {verb} ('vpem saem --output'), which {path} is not; take ",
            Setting("kind", "history"),
        )


def draw_saem(
    kind: str,
    path: object,
    saved: SavedSaem,
    individuals: Individuals | None = None,
    most: int = MOST_PANELS,
) -> Picture:
    """Draw one kind of picture of a fit of SAEM.

    Parameters
    ----------
    kind : {"traces", "curves"}
        Which.
    path : path
        Where the fit is from.
    saved : SavedSaem
        The fit.
    individuals : Individuals, optional
        Data for curves.
    most : int
        Individuals up to which all are drawn.

    Returns
    -------
    Picture

    Raises
    ------
    InputError
        If the model has no curves, or there are no individuals.
    """
    check_kind(kind, path, saem=True)
    if kind == "traces":
        shown = min(len(saved.parameters), MOST_PANELS)
        notes = _left_out(shown, len(saved.parameters), "parameters")
        some = ", ".join(
            f"{name} {value:.4g}" for name, value in list(saved.estimates.items())[:shown]
        )
        alt = (
            f"{shown} parameters of the model {saved.model} over {saved.n_iter} iterations, and "
            f"the estimates: {some}."
        )
        return Picture(draw_traces(saved), alt, notes)
    if not has_curves(saved):
        raise InputError(
            f"{path} is of the model {saved.model}, whose latents have no curves over time; take ",
            Setting("kind", "traces"),
        )
    if saved.model == OWN:
        raise InputError(
            f"{path} is of a user's own model, which a file does not hold: draw in Python, "
            "vpem.pictures.saem.plot_curves(path, fit, individuals, model=...)"
        )
    if individuals is None:
        raise InputError("the picture shows individuals; give the data after the model")
    shown = min(individuals.n_individuals, most)
    alt = (
        f"Measured values, fitted curves with {100 * saved.level:.3g} % intervals, and the "
        f"population's curve, of {shown} of {individuals.n_individuals} individuals, times "
        f"{individuals.times.min():.4g} to {individuals.times.max():.4g}."
    )
    notes = _left_out(shown, individuals.n_individuals, "individuals")
    return Picture(draw_curves(saved, individuals, most=most), alt, notes)


def has_curves(saved: SavedSaem) -> bool:
    """Whether a model has curves over time; a user's own may."""
    return saved.model in CURVES or (saved.model == OWN and not saved.discrete)


def _left_out(shown: int, count: int, what: str) -> list[str]:
    return [] if shown == count else [f"the first {shown} of {count} {what} are drawn"]


def next_of_saem(kind: str, saved: SavedSaem, data: bool) -> dict[str, list[str]]:
    """Return the other kind if it can be drawn, by what it needs besides: "" or "DATA"."""
    if kind == "curves":
        return {"": ["traces"]}
    drawn = saved.model in CURVES
    return {"" if data else "DATA": ["curves"]} if drawn else {}
