"""Reports of a fit of SAEM, and of topics, for pages and terminals.

Tables of estimates have the columns that users of mixed models expect.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np

from vpem.errors import shorten
from vpem.pictures.contents import Contents, Fact, Listing, Section, Table, facts, sent_by_phase
from vpem.pictures.figure import said_bytes
from vpem.pictures.saved import SavedLatents, SavedTopics, counted_by_kind
from vpem.saem.estimates import (
    Figure,
    Summary,
    criteria_of,
    few_individuals,
    flat_latents,
    lacking_errors,
    summary_of,
)
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import OWN
from vpem.saem.prediction import Predictor
from vpem.saem.results import SavedSaem
from vpem.saem.topics import Topics

MOST_NAMED = 4
"""Estimates of the sentence with which all begins."""

MOST_ROWS = 60
"""Parameters, or latents, of a table."""

MOST_DOCUMENTS = 60

FIRST = 6
"""Words of a topic in a table."""

Items = list[Table | Listing | str]

CHECKS = ("observed", "residuals", "vpc", "effects")
"""Pictures of whether the model describes data."""


def contents_of_latents(saved: SavedLatents, individuals: Individuals | None) -> Contents:
    """Contents of a fit of SAEM, and of individuals that it is held against."""
    fit = saved.stored
    warned = Section("warnings", "Warnings", _warnings(fit))
    has_warnings = isinstance(warned.items[0], Listing)
    course = [] if has_warnings else warned.items
    summary = summary_of(fit)
    correlations = correlation_table(summary)
    left = len(fit.parameters) - MOST_ROWS
    estimated: Items = [
        *estimate_tables(summary),
        *([] if correlations is None else [correlations]),
        *([f"{left} more parameters are in the file."] if left > 0 else []),
    ]
    sections = [
        *([warned] if has_warnings else []),
        Section("parameters", "Estimates", estimated),
        Section("latents", "Latents of individuals", _latents(fit), ("curves",)),
        Section("quality", "How well", _quality(fit, individuals), CHECKS),
        Section("course", "How the fit went", course, ("traces",)),
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
    ), MOST_NAMED)  # fmt: skip
    lead = f"Estimates of {of}: {estimates}. Fitted by SAEM, stochastic approximation EM."
    return Contents(title, lead, sections)


def _model(saved: SavedSaem) -> str:
    return saved.model_class if saved.model == OWN else saved.model


def _setting(saved: SavedSaem, name: str) -> str:
    """A setting as text; a file may hold anything there."""
    value = saved.settings.get(name)
    if value is None or isinstance(value, list | dict):
        return "not said"
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _number(value: float, digits: int = 7) -> str:
    return f"{value:.{digits}g}" if math.isfinite(value) else "not known"


def _convergence(saved: SavedSaem) -> str:
    """Whether the run converged, and why; with ``tol`` 0 it was not checked."""
    converged = "yes" if saved.converged else "no"
    if saved.settings.get("tol") == 0:
        converged = "not checked"
    return f"{converged}{f': {saved.grounds}' if saved.grounds else ''}"


def _not_converged(saved: SavedSaem) -> list[str]:
    if saved.settings.get("tol") == 0 or saved.converged:
        return []
    grounds = f": {saved.grounds}" if saved.grounds else ""
    return [f"The fit has not converged in {saved.n_iter} iterations{grounds}."]


def _warnings(saved: SavedSaem) -> Items:
    said = _not_converged(saved)
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
    fitted: list[Fact] = [
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
        fitted.append(("sampler's options", listed))
    fitted += [
        ("chains of an individual", _setting(saved, "n_chains")),
        ("the server averages", _setting(saved, "average")),
    ]
    if settings.get("codec"):
        sent = f"{_setting(saved, 'codec')}, feedback {_setting(saved, 'feedback')}"
        fitted.append(("statistics sent by", sent))
    if settings.get("participation") != 1:
        fitted.append(("participation", _setting(saved, "participation")))
    versions = ", ".join(f"{name} {value}" for name, value in saved.versions.items())
    fitted += [("seed", _setting(saved, "seed")), ("versions", versions or "not said")]
    return fitted


CRITERIA = {
    "minus_2_log_likelihood": "-2 log-likelihood",
    "aic": "AIC (less is better)",
    "bic": "BIC, of individuals (less is better)",
    "bicc": "BICc, of individuals and rows (less is better)",
}


def _with_error(value: float, error: float) -> str:
    exact = "" if error == 0 else f", Monte Carlo error {_number(error, 2)}"
    return f"{_number(value, 9)}{exact}"


def _quality(saved: SavedSaem, individuals: Individuals | None) -> Items:
    likelihood = saved.log_likelihood
    rows = saved.settings.get("n_rows")
    criteria = criteria_of(saved, likelihood.value, saved.n_individuals, rows)
    exact = math.isfinite(likelihood.linearized)
    quality: list[Fact] = [
        ("log-likelihood (nats)", _with_error(likelihood.value, likelihood.error)),
        *([("the same, linearized", _number(likelihood.linearized, 9))] if exact else []),
        *((what, _number(criteria[k])) for k, what in CRITERIA.items() if criteria[k] is not None),
        ("iterations", f"{saved.n_iter}, of which {_setting(saved, 'burn_in')} burn-in"),
        ("converged", _convergence(saved)),
    ]
    least = float(np.min(likelihood.effective, initial=np.inf))
    if math.isfinite(least):
        quality.append(("fewest effective draws of an individual", f"{least:.0f}"))
    rates = saved.acceptance
    if rates is not None and len(rates):
        ends = f"{rates.min():.2f} to {rates.max():.2f} of an individual's"
        quality.append(("accepted moves", f"{rates.mean():.2f}, {ends}"))
    items: Items = [facts(quality, "As the fit reported")]
    if individuals is None:
        return items
    quality = [
        ("data", individuals.source),
        ("size", f"{individuals.n_individuals} individuals, {individuals.n_rows} rows"),
    ]
    if saved.model != OWN:
        score = Predictor(saved).score(individuals)
        quality.append(("log-likelihood (nats)", _with_error(score.value, score.error)))
    return [*items, facts(quality, "Held against these data")]


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
        items.append(f"An iteration took {said_bytes(each)} on average.")
    return items


def said(value: float, digits: int = 5) -> str:
    """Write a number for a reader; a dash where it is not known."""
    return f"{value:.{digits}g}" if math.isfinite(value) else "-"


def _interval(one: Figure) -> tuple[str, str]:
    return said(one.lower, 4), said(one.upper, 4)


def estimate_tables(summary: Summary) -> list[Table]:
    """Tables of the parameters, of these on their own scale, and of individuals' spread."""
    ends = (f"{100 * summary.level:.3g} % from", "to")
    tests = summary.tests
    freedom = any(math.isfinite(one.freedom) for one in summary.parameters)
    rows = []
    for one in summary.parameters:
        cells = [one.name, said(one.value), said(one.error, 3), said(one.rse, 3), *_interval(one)]
        if freedom:
            cells.append(said(one.freedom, 3) if math.isfinite(one.freedom) else "")
        if tests:
            p = tests.get(one.name)
            cells.append("" if p is None else "<1e-4" if p < 1e-4 else said(p, 2))
        rows.append(tuple(cells))
    more = [*(["df"] if freedom else []), *(["p"] if tests else [])]
    heads = ("parameter", "estimate", "s.e.", "RSE %", *ends, *more)
    tables = [Table(rows[:MOST_ROWS], heads, "Estimates")]
    if summary.back:
        rows = [
            (one.name, said(one.value), said(one.error, 3), *_interval(one)) for one in summary.back
        ]
        heads = ("parameter", "value", "s.e.", *ends)
        tables.append(Table(rows[:MOST_ROWS], heads, "On their own scale"))
    # How individuals differ: sds, shrinkage, correlations.
    with_cv = bool(summary.variation)
    rows = []
    for name, shrunk in summary.shrinkage.items():
        one = summary.spreads.get(name, Figure(name, *[math.nan] * 4))
        cv = [said(summary.variation.get(name, math.nan), 3)] if with_cv else []
        shares = (f"{share:.3f}" for share in shrunk)
        rows.append((name, said(one.value), said(one.error, 3), *_interval(one), *cv, *shares))
    heads = ("latent", "sd", "s.e.", *ends, *(["CV %"] if with_cv else []), "shrinkage", "of sd")
    if rows and not summary.spreads:
        rows = [(name, *cells[-2:]) for name, *cells in rows]
        heads = ("latent", "shrinkage", "of sd")
    if rows:
        tables.append(Table(rows[:MOST_ROWS], heads, "How individuals differ"))
    if summary.correlations:
        rows = [
            (one.name, said(one.value, 3), said(one.error, 3), *_interval(one))
            for one in summary.correlations
        ]
        heads = ("correlation", "value", "s.e.", *ends)
        tables.append(Table(rows[:MOST_ROWS], heads, "How latents go together"))
    return tables


def correlation_table(summary: Summary, most: int = 12) -> Table | None:
    """Correlations of the estimates; None of too many, or where there are none."""
    names = [one.name for one in summary.parameters]
    known = [one for one, name in enumerate(names) if math.isfinite(summary.together[one, one])]
    if not 1 < len(known) <= most or not math.isfinite(summary.together[known[0], known[1]]):
        return None
    rows = [
        (names[i], *(f"{summary.together[i, j]:.2f}" if j <= i else "" for j in known))
        for i in known
    ]
    return Table(rows, ("", *(names[i] for i in known)), "Correlation of the estimates")


def contents_of_topics(saved: SavedTopics, corpus: Individuals | None) -> Contents:
    """Contents of topics, and of documents that they are held against."""
    topics, fit = saved.stored, saved.stored.saved
    warned = _not_converged(fit)
    course = [] if warned else ["No warnings were given."]
    kinds = counted_by_kind(fit.communication)
    sent = "The file does not say what was sent." if kinds is None else sent_by_phase(kinds)
    named = [(name.replace("_", " "), value) for name, value in fit.model_options.items()]
    versions = ", ".join(f"{name} {value}" for name, value in fit.versions.items())
    has_codec = fit.settings.get("codec")
    by = {"statistics sent by": "codec", "feedback": "feedback"} if has_codec else {}
    settings: list[Fact] = [
        ("data", _setting(fit, "data")),
        ("model", "lda"),
        ("its options", "; ".join(f"{name} {value}" for name, value in named) or "none"),
        ("devices", _setting(fit, "devices")),
        ("sampler", _setting(fit, "sampler")),
        ("chains of a document", _setting(fit, "n_chains")),
        *((name, _setting(fit, setting)) for name, setting in by.items()),
        ("participation", _setting(fit, "participation")),
        ("seed", _setting(fit, "seed")),
        ("versions", versions or "not said"),
    ]
    sections = [
        *([Section("warnings", "Warnings", [Listing(warned)])] if warned else []),
        Section("topics", "Topics", _topics(topics), ("topics",)),
        Section("devices", "Devices", _devices(topics), ("shares",)),
        Section("quality", "How well", _topic_quality(topics, corpus)),
        Section("course", "How the fit went", course, ("spreads",)),
        Section("sent", "What was sent", [sent]),
        Section("fitted", "Settings", [facts(settings)]),
    ]
    documents = f"{_setting(fit, 'n_individuals')} documents"
    name = os.path.basename(saved.path)
    title = f"{name}: {topics.n_topics} topics of {topics.n_words} words in {documents}"
    first = int(topics.order[0])
    lead = (
        f"{topics.n_topics} topics of {documents}: the largest, "
        f"topic {first}, has {100 * topics.shares[first]:.0f} % of the words, most often "
        f"{', '.join(word for word, _ in topics.top(FIRST)[first])}."
    )
    return Contents(title, f"{lead} Fitted by SAEM: latent Dirichlet allocation.", sections)


def _topics(topics: Topics) -> Items:
    rows = []
    tops = topics.top(FIRST)
    for k in topics.order.tolist():
        listed = ", ".join(f"{word} {weight:.3f}" for word, weight in tops[k])
        rows.append((f"topic {k}", f"{topics.shares[k]:.1%}", f"{topics.coherence[k]:.2f}", listed))
    what = (
        "Shares are of all words. Coherence is near 1 where the first ten words come in the same "
        "documents, 0 where by chance, -1 never."
    )
    return [Table(rows, ("topic", "share", "coherence", "words"), numbers=False), what]


def _devices(topics: Topics) -> Items:
    if not len(topics.device_shares):
        return ["Topics of devices are not known: sums were masked."]
    rows = []
    for name, shares in zip(topics.device_names, topics.device_shares, strict=True):
        first = np.argsort(-shares, kind="stable")[:3].tolist()
        rows.append((name, ", ".join(f"topic {k} {shares[k]:.0%}" for k in first)))
    items: Items = [Table(rows[:MOST_DOCUMENTS], ("device", "largest topics"), numbers=False)]
    left = len(rows) - MOST_DOCUMENTS
    return items + ([f"{left} more devices are in the file."] if left > 0 else [])


def _topic_quality(topics: Topics, corpus: Individuals | None) -> Items:
    fit = topics.saved
    quality: list[Fact] = [
        ("words", f"{topics.n_tokens:.0f}"),
        ("log-likelihood, a lower bound (nats)", f"{fit.log_likelihood.value:.9g}"),
        ("perplexity, by this bound", f"{topics.perplexity:.6g}"),
        ("iterations", f"{fit.n_iter}, of which {_setting(fit, 'burn_in')} burn-in"),
        ("converged", _convergence(fit)),
    ]
    items: Items = [facts(quality, "As the fit reported")]
    if corpus is None:
        return items
    heard = topics.hear(corpus)
    quality = [
        ("data", corpus.source),
        ("documents", heard.model.n),
        ("words of the vocabulary", f"{heard.n_tokens:.0f}"),
        ("other words", f"{heard.n_unknown:.0f}"),
        ("perplexity, by the bound", f"{heard.perplexity:.6g}"),
    ]
    if heard.completed is not None:
        what = "perplexity of half of the words, given the other half"
        quality.append((what, f"{heard.completed:.6g}"))
    return [*items, facts(quality, "Held against these data")]
