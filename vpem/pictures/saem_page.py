"""A page that tells of a fit of SAEM and shows it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vpem.errors import VpemError
from vpem.files.hdf5 import atomic_write
from vpem.pictures.figure import check_matplotlib
from vpem.pictures.latents import ABOUT, TITLES, draw_saem
from vpem.pictures.page import (
    as_source,
    fill_page,
    list_left_out,
    list_warnings,
    sent_by_phase,
    show_picture,
    table,
    text,
)
from vpem.pictures.saved import counted_by_kind
from vpem.pictures.style import said_bytes
from vpem.saem.individuals import Individuals
from vpem.saem.models.catalogue import OWN
from vpem.saem.prediction import Predictor
from vpem.saem.saved import SavedSaem

__all__ = ["make_saem_page", "write_saem_page"]

MOST_ROWS = 60
"""Parameters, or latents, of a table."""

MOST_CURVES = 12
"""Individuals whose curves are drawn."""

FLAT = 0.9
"""Shrinkage above which a latent hardly varies between individuals."""


def write_saem_page(
    path: str | os.PathLike[str],
    file: str | os.PathLike[str],
    saved: SavedSaem,
    individuals: Individuals | None = None,
    *,
    force: bool = False,
) -> dict[str, VpemError]:
    """Write the page of a fit of SAEM.

    Parameters
    ----------
    path : path
        An .html file, written completely or not at all.
    file : path
        Where the fit is from.
    saved : SavedSaem
        The fit.
    individuals : Individuals, optional
        Data to hold it against; curves of the first 12 are drawn.
    force : bool
        Replace an existing file.

    Returns
    -------
    dict of str to VpemError
        Kinds of pictures that were left out, and why.

    Raises
    ------
    InputError
        If matplotlib is not installed, or the individuals do not fit the model.
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    """
    page, left_out = make_saem_page(file, saved, individuals)
    with atomic_write(path, force, "reports") as temporary:
        temporary.write_text(page, encoding="utf-8")
    return left_out


def make_saem_page(
    file: str | os.PathLike[str], saved: SavedSaem, individuals: Individuals | None = None
) -> tuple[str, dict[str, VpemError]]:
    """Return the page of `write_saem_page` and the pictures that were left out."""
    check_matplotlib()
    quality = _quality(saved, individuals)
    pictures, left_out = _pictures(file, saved, individuals)
    sections = [
        ("warnings", "Warnings", _warnings(saved)),
        ("fitted", "What was fitted", _fitted(saved)),
        ("quality", "How well", quality),
        ("parameters", "Estimates", _estimates(saved)),
        ("latents", "Latents of individuals", _latents(saved)),
        ("sent", "What was sent", _sent(saved)),
        ("pictures", "Pictures", pictures),
    ]
    n, p = len(saved.names), len(saved.parameters)
    title = (
        f"{os.path.basename(file)}: {_model(saved)}, {p} parameter{'' if p == 1 else 's'}, {n} "
        f"individual{'' if n == 1 else 's'}"
    )
    return fill_page(title, "Fitted by SAEM, stochastic approximation EM.", sections), left_out


# ---- what is said -------------------------------------------------------------------------------


def _model(saved: SavedSaem) -> str:
    return saved.model_class if saved.model == OWN else saved.model


def _told(saved: SavedSaem, name: str) -> str:
    """Return a setting as text; a file may hold anything there."""
    value = saved.settings.get(name)
    if value is None or isinstance(value, list | dict):
        return "not told"
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _number(value: float, digits: int = 7) -> str:
    return f"{value:.{digits}g}" if math.isfinite(value) else "not known"


def _asked(saved: SavedSaem) -> bool:
    """Whether the run was asked if it converged."""
    return saved.settings.get("tol") != 0


def _warnings(saved: SavedSaem) -> str:
    """What a reader must know before believing the rest."""
    said = []
    if _asked(saved) and not saved.converged:
        said.append(
            f"The fit has not converged in {saved.n_iter} iterations"
            f"{f': {saved.grounds}' if saved.grounds else ''}."
        )
    if not np.isfinite(saved.standard_errors).all():
        told = (
            "There are no standard errors: the observed information is not positive definite at "
            "the estimates"
        )
        flat = [
            name for name, share in zip(saved.latents, saved.shrinkage, strict=True) if share > FLAT
        ]
        if flat and not saved.discrete:
            told += f"; between individuals {' and '.join(flat)} hardly var"
            told += "y" if len(flat) > 1 else "ies"
        said.append(f"{told}.")
    return list_warnings(said)


def _fitted(saved: SavedSaem) -> str:
    settings = saved.settings
    options = "; ".join(
        f"{name.replace('_', ' ')} "
        f"{', '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in saved.model_options.items()
    )
    facts: list[tuple[str, object]] = [
        ("data", _told(saved, "data")),
        ("size", f"{len(saved.names)} individuals, {_told(saved, 'n_rows')} rows"),
        ("model", _model(saved)),
        ("its options", options or "none"),
        ("parameters", len(saved.parameters)),
        ("devices", _told(saved, "devices")),
        ("sampler", _told(saved, "sampler")),
    ]
    moves = settings.get("sampler_options")
    if isinstance(moves, dict) and moves:
        told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in moves.items())
        facts.append(("sampler's options", told))
    facts += [
        ("chains of an individual", _told(saved, "n_chains")),
        ("the server averages", _told(saved, "average")),
    ]
    if settings.get("codec"):
        facts.append(
            ("statistics sent by", f"{_told(saved, 'codec')}, feedback {_told(saved, 'feedback')}")
        )
    if settings.get("participation") != 1:
        facts.append(("participation", _told(saved, "participation")))
    versions = ", ".join(f"{name} {value}" for name, value in saved.versions.items())
    facts += [("seed", _told(saved, "seed")), ("versions", versions or "not told")]
    return table(facts, numbers=False)


def _with_error(value: float, error: float) -> str:
    exact = "" if error == 0 else f", Monte Carlo error {_number(error, 2)}"
    return f"{_number(value, 9)}{exact}"


def _quality(saved: SavedSaem, individuals: Individuals | None) -> str:
    likelihood = saved.log_likelihood
    p, n = len(saved.parameters), len(saved.names)
    converged = "not asked for" if not _asked(saved) else "yes" if saved.converged else "no"
    facts: list[tuple[str, object]] = [
        ("log-likelihood (nats)", _with_error(likelihood.value, likelihood.error)),
        ("BIC, of individuals (less is better)", _number(p * math.log(n) - 2 * likelihood.value)),
        ("AIC (less is better)", _number(2 * p - 2 * likelihood.value)),
        ("iterations", f"{saved.n_iter}, of which {_told(saved, 'burn_in')} burn-in"),
        ("converged", f"{converged}{f': {saved.grounds}' if saved.grounds else ''}"),
    ]
    least = float(np.min(likelihood.effective))
    if math.isfinite(least):
        facts.append(("fewest effective draws of an individual", f"{least:.0f}"))
    rates = saved.acceptance
    if rates is not None:
        facts.append((
            "accepted moves",
            f"{rates.mean():.2f}, {rates.min():.2f} to {rates.max():.2f} of an individual's",
        ))  # fmt: skip
    body = table(facts, caption="As the fit told", numbers=False)
    if individuals is None:
        return body + "<p>No data were given to hold it against.</p>"
    facts = [
        ("data", individuals.source),
        ("size", f"{individuals.n_individuals} individuals, {individuals.n_rows} rows"),
    ]
    if saved.model != OWN:
        score = Predictor(saved).score(individuals)
        facts.append(("log-likelihood (nats)", _with_error(score.value, score.error)))
    return body + table(facts, caption="Held against these data", numbers=False)


def _estimates(saved: SavedSaem) -> str:
    rows = [
        (name, _number(estimate), _number(error, 3))
        for (name, estimate), error in zip(
            saved.estimates.items(), saved.standard_errors.tolist(), strict=True
        )
    ]
    body = table(rows[:MOST_ROWS], ["parameter", "estimate", "standard error"])
    return body + _more(len(rows), "parameters")


def _latents(saved: SavedSaem) -> str:
    if saved.discrete:
        return ""
    rows: list[Sequence[object]] = []
    for j, name in enumerate(saved.latents):
        means = saved.means[:, j]
        rows.append((
            name, *(f"{value:.5g}" for value in (means.min(), np.median(means), means.max())),
            f"{saved.shrinkage[j]:.3f}",
        ))  # fmt: skip
    heads = ["latent", "least mean", "median mean", "most mean", "shrinkage"]
    told = (
        "<p>Conditional means over individuals. Shrinkage is near 0 where the rows tell the "
        "latent, near 1 where the population does.</p>"
    )
    return table(rows[:MOST_ROWS], heads) + told + _more(len(rows), "latents")


def _more(count: int, what: str) -> str:
    left = count - MOST_ROWS
    return f"<p>{left} more {what} are in the file.</p>" if left > 0 else ""


def _sent(saved: SavedSaem) -> str:
    kinds = counted_by_kind(saved.communication)
    if kinds is None:
        return f"<p>{text('The file does not say what was sent.')}</p>"
    body = sent_by_phase(kinds)
    if kinds and saved.n_iter > 1:
        each = int(saved.bytes[-1] - saved.bytes[0]) / (saved.n_iter - 1)
        body += f"<p>An iteration took {text(said_bytes(each))}, in the mean.</p>"
    return body


# ---- what is shown ------------------------------------------------------------------------------


def _pictures(
    file: str | os.PathLike[str], saved: SavedSaem, individuals: Individuals | None
) -> tuple[str, dict[str, VpemError]]:
    """Draw every kind that can be drawn; say why of the others."""
    made = []
    left_out: dict[str, VpemError] = {}
    for name, about in ABOUT.items():
        try:
            picture: Any = draw_saem(name, Path(file), saved, individuals, MOST_CURVES)
            source = as_source(picture.figure)
        except VpemError as error:
            left_out[name] = error
            continue
        made.append(show_picture(TITLES[name], source, picture.alt, about, picture.notes))
    return "\n".join([*made, *list_left_out(left_out)]), left_out
