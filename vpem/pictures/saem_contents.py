"""What there is to say of a fit of SAEM."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np

from vpem.errors import shorten
from vpem.pictures.contents import (
    Contents,
    Fact,
    Listing,
    Section,
    Table,
    facts,
    sent_by_phase,
)
from vpem.pictures.estimates import MOST_ROWS, correlation_table, estimate_tables
from vpem.pictures.reported import counted_by_kind
from vpem.pictures.saved import SavedLatents
from vpem.pictures.style import said_bytes
from vpem.saem.estimates import (
    criteria_of,
    few_individuals,
    flat_latents,
    lacking_errors,
    summary_of,
)
from vpem.saem.individuals import Individuals
from vpem.saem.models.catalogue import OWN
from vpem.saem.prediction import Predictor
from vpem.saem.saved import SavedSaem

MOST_TOLD = 4
"""Estimates of the sentence with which all begins."""

Items = list[Table | Listing | str]

CHECKS = ("observed", "residuals", "vpc", "effects")
"""Pictures of whether the model describes data."""


def contents_of_latents(saved: SavedLatents, individuals: Individuals | None) -> Contents:
    """Return what there is to say of a fit of SAEM, and of individuals that it is held against."""
    fit = saved.stored
    warned = Section("warnings", "Warnings", _warnings(fit))
    told = isinstance(warned.items[0], Listing)
    sections = [
        *([warned] if told else []),
        Section("parameters", "Estimates", _estimates(fit)),
        Section("latents", "Latents of individuals", _latents(fit), ("curves",)),
        Section("quality", "How well", _quality(fit, individuals), CHECKS),
        Section("course", "How the fit went", [] if told else warned.items, ("traces",)),
        Section("sent", "What was sent", _sent(fit)),
        Section("fitted", "Settings", [facts(_fitted(fit))]),
    ]
    n, p = fit.n_individuals, len(fit.parameters)
    of = f"{n} individual{'' if n == 1 else 's'}"
    title = (
        f"{os.path.basename(saved.path)}: {_model(fit)}, {p} parameter{'' if p == 1 else 's'}, {of}"
    )
    estimates = shorten((
        f"{name} {value:.4g}{f' (s.e. {error:.2g})' if error > 0 else ''}"
        for name, value, error in zip(fit.parameters, fit.theta, fit.standard_errors, strict=True)
    ), MOST_TOLD)  # fmt: skip
    lead = f"Estimates of {of}: {estimates}. Fitted by SAEM, stochastic approximation EM."
    return Contents(title, lead, sections)


def _model(saved: SavedSaem) -> str:
    return saved.model_class if saved.model == OWN else saved.model


def _setting(saved: SavedSaem, name: str) -> str:
    """Return a setting as text; a file may hold anything there."""
    value = saved.settings.get(name)
    if value is None or isinstance(value, list | dict):
        return "not said"
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _number(value: float, digits: int = 7) -> str:
    return f"{value:.{digits}g}" if math.isfinite(value) else "not known"


def _asked(saved: SavedSaem) -> bool:
    """Whether the run was asked if it converged."""
    return saved.settings.get("tol") != 0


def _warnings(saved: SavedSaem) -> Items:
    """What a reader must know before believing the rest."""
    said = []
    if _asked(saved) and not saved.converged:
        said.append(
            f"The fit has not converged in {saved.n_iter} iterations"
            f"{f': {saved.grounds}' if saved.grounds else ''}."
        )
    why = lacking_errors(saved.parameters, saved.standard_errors, saved.n_draws > 0)
    if why:
        flat = flat_latents(saved.latents, saved.shrinkage)
        if flat and not saved.discrete:
            why += f"; between individuals {' and '.join(flat)} hardly var"
            why += "y" if len(flat) > 1 else "ies"
        said.append(f"{why[0].upper()}{why[1:]}.")
    few = few_individuals(saved.n_individuals, saved.freedom)
    if few:
        said.append(f"{few[0].upper()}{few[1:]}.")
    return [Listing(said) if said else "No warnings were given."]


def _fitted(saved: SavedSaem) -> list[Fact]:
    settings = saved.settings
    options = "; ".join(
        f"{name.replace('_', ' ')} "
        f"{', '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in saved.model_options.items()
    )
    found: list[Fact] = [
        ("data", _setting(saved, "data")),
        ("size", f"{saved.n_individuals} individuals, {_setting(saved, 'n_rows')} rows"),
        ("model", _model(saved)),
        ("its options", options or "none"),
        ("parameters", len(saved.parameters)),
        ("devices", _setting(saved, "devices")),
        ("sampler", _setting(saved, "sampler")),
    ]
    moves = settings.get("sampler_options")
    if isinstance(moves, dict) and moves:
        listed = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in moves.items())
        found.append(("sampler's options", listed))
    found += [
        ("chains of an individual", _setting(saved, "n_chains")),
        ("the server averages", _setting(saved, "average")),
    ]
    if settings.get("codec"):
        found.append(
            (
                "statistics sent by",
                f"{_setting(saved, 'codec')}, feedback {_setting(saved, 'feedback')}",
            )
        )
    if settings.get("participation") != 1:
        found.append(("participation", _setting(saved, "participation")))
    versions = ", ".join(f"{name} {value}" for name, value in saved.versions.items())
    found += [("seed", _setting(saved, "seed")), ("versions", versions or "not said")]
    return found


def _with_error(value: float, error: float) -> str:
    exact = "" if error == 0 else f", Monte Carlo error {_number(error, 2)}"
    return f"{_number(value, 9)}{exact}"


def _criteria(saved: SavedSaem) -> list[Fact]:
    """What charges for parameters."""
    rows, value = saved.settings.get("n_rows"), saved.log_likelihood.value
    found = criteria_of(saved, value, saved.n_individuals, rows)
    said: list[Fact] = []
    if math.isfinite(saved.log_likelihood.linearized):
        said.append(("the same, linearized", _number(saved.log_likelihood.linearized, 9)))
    for name, key in (
        ("-2 log-likelihood", "minus_2_log_likelihood"),
        ("AIC (less is better)", "aic"),
        ("BIC, of individuals (less is better)", "bic"),
        ("BICc, of individuals and rows (less is better)", "bicc"),
    ):
        if found[key] is not None:
            said.append((name, _number(found[key])))
    return said


def _quality(saved: SavedSaem, individuals: Individuals | None) -> Items:
    likelihood = saved.log_likelihood
    converged = "not asked for" if not _asked(saved) else "yes" if saved.converged else "no"
    found: list[Fact] = [
        ("log-likelihood (nats)", _with_error(likelihood.value, likelihood.error)),
        *_criteria(saved),
        ("iterations", f"{saved.n_iter}, of which {_setting(saved, 'burn_in')} burn-in"),
        ("converged", f"{converged}{f': {saved.grounds}' if saved.grounds else ''}"),
    ]
    least = float(np.min(likelihood.effective, initial=np.inf))
    if math.isfinite(least):
        found.append(("fewest effective draws of an individual", f"{least:.0f}"))
    rates = saved.acceptance
    if rates is not None and len(rates):
        found.append((
            "accepted moves",
            f"{rates.mean():.2f}, {rates.min():.2f} to {rates.max():.2f} of an individual's",
        ))  # fmt: skip
    items: Items = [facts(found, "As the fit reported")]
    if individuals is None:
        return items
    found = [
        ("data", individuals.source),
        ("size", f"{individuals.n_individuals} individuals, {individuals.n_rows} rows"),
    ]
    if saved.model != OWN:
        score = Predictor(saved).score(individuals)
        found.append(("log-likelihood (nats)", _with_error(score.value, score.error)))
    return [*items, facts(found, "Held against these data")]


def _estimates(saved: SavedSaem) -> Items:
    summary = summary_of(saved)
    together = correlation_table(summary)
    left = len(saved.parameters) - MOST_ROWS
    return [
        *estimate_tables(summary),
        *([] if together is None else [together]),
        *([f"{left} more parameters are in the file."] if left > 0 else []),
    ]


def _latents(saved: SavedSaem) -> Items:
    if saved.discrete:
        return []
    if not saved.names:
        return ["Latents stayed on the devices of their individuals."]
    rows: list[Sequence[object]] = []
    for j, name in enumerate(saved.latents):
        means = saved.means[:, j]
        rows.append(
            (name, *(f"{value:.5g}" for value in (means.min(), np.median(means), means.max())))
        )
    heads = ["latent", "least mean", "median mean", "most mean"]
    what = (
        "Conditional means over individuals. Shrinkage, above, is near 0 where the rows determine "
        "the latent, near 1 where the population does."
    )
    left = len(rows) - MOST_ROWS
    more = [f"{left} more latents are in the file."] if left > 0 else []
    return [Table(rows[:MOST_ROWS], heads), what, *more]


def _sent(saved: SavedSaem) -> Items:
    kinds = counted_by_kind(saved.communication)
    if kinds is None:
        return ["The file does not say what was sent."]
    items: Items = [sent_by_phase(kinds)]
    if kinds and saved.n_iter > 1:
        each = int(saved.bytes[-1] - saved.bytes[0]) / (saved.n_iter - 1)
        items.append(f"An iteration took {said_bytes(each)}, in the mean.")
    return items
