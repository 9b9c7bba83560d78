"""Reports of a fit of SAEM, and of topics, for pages and terminals.

Tables of estimates have the columns that users of mixed models expect.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vpem.errors import shorten
from vpem.pictures.contents import (
    Contents,
    Fact,
    Items,
    Section,
    communication,
    counted,
    kept,
    lines_of,
    number,
    outcome,
    sent_by_phase,
    size,
    warnings_of,
)
from vpem.records import Table
from vpem.rules import summing
from vpem.saem.estimates import Figure, Summary, criteria_of, doubts, penalised_of
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import OWN
from vpem.saem.prediction import Predictor
from vpem.saem.results import SaemFit, SavedSaem, Topics

if TYPE_CHECKING:
    from vpem.network.schema import Report
    from vpem.pictures.contents import Lines
    from vpem.pictures.saved import Saved

MOST_NAMED = 4
"""Estimates of the sentence with which all begins."""

MOST_ROWS = 60
"""Parameters, or latents, of a table."""

MOST_DOCUMENTS = 60

FIRST = 6
"""Words of a topic in a table."""

CHECKS = ("observed", "residuals", "vpc", "effects")
"""Pictures of whether the model describes data."""


def contents_of_latents(saved: Saved, individuals: Individuals | None) -> Contents:
    fit: SavedSaem = saved.stored
    said = _not_converged(fit) + [f"{one[0].upper()}{one[1:]}." for one in doubts(fit)]
    warned, course = warnings_of(said)
    summary = Summary(fit)
    correlations = correlation_table(summary)
    estimated = [*estimate_tables(summary), *([] if correlations is None else [correlations])]
    latents: Items = []
    if not fit.discrete and not fit.names:
        latents = ["Latents stayed on the devices of their individuals."]
    elif not fit.discrete:
        rows: list[Sequence[object]] = []
        for name, means in zip(fit.latents, fit.means.T, strict=True):
            spread = (means.min(), np.median(means), means.max())
            rows.append((name, *(f"{value:.5g}" for value in spread)))
        heads = ["latent", "least mean", "median mean", "most mean"]
        what = (
            "Conditional means over individuals. Shrinkage, above, is near 0 where the rows "
            "determine the latent, near 1 where the population does."
        )
        left = len(rows) - MOST_ROWS
        more = [f"{left} more latents are in the file."] if left > 0 else []
        latents = [Table(rows[:MOST_ROWS], heads), what, *more]
    sections = [
        *warned,
        Section("parameters", "Estimates", estimated),
        Section("latents", "Latents of individuals", latents, ("curves",)),
        Section("quality", "How well", _quality(fit, individuals), CHECKS),
        Section("course", "How the fit went", course, ("traces",)),
        Section("sent", "What was sent", _sent(fit)),
        Section("fitted", "Settings", [Table(_settings(fit))]),
    ]
    of = counted(fit.n_individuals, "individual")
    size = counted(len(fit.parameters), "parameter")
    title = f"{os.path.basename(saved.path)}: {_model(fit)}, {size}, {of}"
    estimates = shorten((
        f"{name} {value:.4g}{f' (s.e. {error:.2g})' if error > 0 else ''}"
        for name, value, error in zip(fit.parameters, fit.theta, fit.standard_errors, strict=True)
    ), MOST_NAMED)  # fmt: skip
    lead = f"Estimates of {of}: {estimates}. Fitted by SAEM, stochastic approximation EM."
    return Contents(title, lead, sections)


def _model(saved: SavedSaem) -> str:
    return saved.model_class if saved.model == OWN else saved.model


def _setting(saved: SavedSaem, name: str, digits: int = 7) -> str:
    """A setting as text; a file may hold anything there."""
    value = saved.settings.get(name)
    return "not said" if value is None or isinstance(value, list | dict) else _text(value, digits)


def _text(value: object, digits: int = 7) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _not_converged(saved: SavedSaem) -> list[str]:
    if saved.settings.get("tol") == 0 or saved.converged:
        return []
    grounds = f": {saved.grounds}" if saved.grounds else ""
    return [f"The fit has not converged in {saved.n_iter} iterations{grounds}."]


def _settings(saved: SavedSaem) -> list[Fact]:
    repeated: Report = {}  # by other lines
    if saved.corpus is not None:
        repeated = {name: saved.model_options.get(name) for name in ("n_topics", "n_words")}
        repeated["seed"] = saved.settings.get("seed")
    options = "; ".join(
        f"{name.removeprefix('n_').replace('_', ' ')} "
        f"{', '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in saved.model_options.items()
        if value not in (None, "", []) and value != repeated.get(name)
    )
    versions = ", ".join(f"{name} {value}" for name, value in saved.versions.items())
    return [
        ("read from", _setting(saved, "data")),
        *how_fitted(saved).items(),
        *([("options of the model", options)] if options else []),
        ("seed", _setting(saved, "seed")),
        ("versions", versions or "not said"),
    ]


MOVES: Lines = {
    "n_steps": "{n_steps:step}",
    "step": "step size {step:.3g}",
    "decay": "step decay {decay:.3g}",
    "target": "target acceptance {target:.3g}",
    "codec": lambda moves: f"gradients by {moves['codec']}" if moves["codec"] else None,
    "precondition": lambda moves: None if moves["precondition"] else "not preconditioned",
}
"""How samplers move, by their options."""


def how_fitted(saved: SavedSaem, sizes: Sequence[int] = ()) -> dict[str, str]:
    """Facts of data, model, devices (of so many individuals) and algorithm, for any reader."""
    settings, corpus = saved.settings, saved.corpus
    # A file may hold anything there, and not all.
    said = defaultdict(lambda: "not said", {name: _setting(saved, name, 3) for name in settings})
    if corpus is None:
        what, data = "individual", counted(settings.get("n_rows"), "row")
        size = counted(len(saved.parameters), "parameter")
    else:
        different = len(saved.parameters) // len(saved.latents)
        what, data = "document", f"{corpus.n_tokens:.0f} words, {different} different"
        size = counted(len(saved.latents), "topic")
    moves = settings.get("sampler_options")
    if isinstance(moves, dict) and moves:
        others = [f"{one} {_text(value, 3)}" for one, value in moves.items() if one not in MOVES]
        listed = [said["sampler"], *(str(line) for _, line in lines_of(moves, MOVES)), *others]
        said["sampler"] = ", ".join(listed)
    said["chains"] = counted(settings.get("n_chains"), "chain")
    said["rounds"] = counted(settings.get("rounds"), "round")
    ends = dict.fromkeys((min(sizes, default=0), max(sizes, default=0)))
    said["each"] = " to ".join(map(str, ends))
    steps = "steps up to {longest_step} (codec omega {omega}, alpha {memory_step})"
    algorithm = {
        "FL-SAEM (the latest draws alone)": settings.get("method") == "fl-saem",
        "MCEM (r^{growth} draws in iteration r)": settings.get("method") == "mcem",
        "{sampler}, {chains}": True,
        "models averaged over {shares}": settings.get("average") == "models",
        "statistics by {codec}, feedback {feedback}": settings.get("codec"),
        "participation {participation}": settings.get("participation", 1) != 1,
        steps: settings.get("longest_step", 1) != 1,
        "rounds by {compress}": settings.get("compress"),
        "batches of {batch_size}": settings.get("batch_size"),
    }
    rounds = ", {topology}, {rounds}, statistics up to {disagreement} apart"
    way = summing(settings.get("sum"), "server")
    devices = {
        f"one, all {what}s" if settings.get("devices") == 1 else "{devices}": True,
        f", {{each}} {what}s each": len(sizes) > 1,
        rounds: way.has_rounds,
        f", {{topology}}, added up {way.place}": way.has_root,
        ", sums under masks": settings.get("secure_sum"),
    }
    return {
        "data": f"{counted(saved.n_individuals, what)}, {data}",
        "model": f"{_model(saved)}, {size}",
        "devices": "".join(part.format_map(said) for part, there in devices.items() if there),
        "algorithm": ", ".join(part.format_map(said) for part, there in algorithm.items() if there),
    }


def how_well(fit: SaemFit | SavedSaem) -> dict[str, str]:
    """Facts of likelihood, convergence and draws, for any reader."""
    saved = fit.saved
    likelihood, rates = saved.log_likelihood, fit.accepted
    facts: dict[str, str] = {}
    if saved.corpus is None:
        facts["log-likelihood"] = f"{likelihood.value:.3f}"
        if likelihood.error:
            facts["log-likelihood"] += f", Monte Carlo error {likelihood.error:.2g}"
        if math.isfinite(likelihood.linearized):
            facts["log-likelihood"] += f"; linearized {likelihood.linearized:.3f}"
        penalised = penalised_of(saved).get("penalised_log_likelihood")
        if penalised is not None:
            facts["penalised"] = f"{penalised:.3f}, by {_setting(saved, 'penalty')}"
        rows = saved.settings.get("n_rows")
        criteria = criteria_of(saved, likelihood.value, saved.n_individuals, rows)
        named = zip(("-2LL", "AIC", "BIC", "BICc"), criteria.values(), strict=True)
        listed = ", ".join(f"{name} {one:.2f}" for name, one in named if one is not None)
        facts |= {"criteria": listed} if listed else {}
    else:
        facts["log-likelihood"] = f"{likelihood.value:.3f}, a lower bound"
        perplexity = Topics(saved).perplexity
        facts["perplexity"] = f"{perplexity:.5g} of these documents, by this bound"
    converged = outcome(saved.converged, saved.settings.get("tol"))
    burnt: object = saved.settings.get("burn_in")
    burnt = min(burnt, saved.n_iter) if isinstance(burnt, int) else "not said"
    facts["iterations"] = f"{saved.n_iter}, of which {burnt} burn-in, {converged}"
    if saved.converged and saved.grounds:  # else a warning says them
        facts["stopped because"] = saved.grounds
    if math.isfinite(fit.least_effective):
        facts["effective draws"] = f"{fit.least_effective:.0f} of an individual, at least"
    if rates is not None:
        mean, least, most = rates
        ends = f"{least:.2f} to {most:.2f} of an individual's"
        facts["accepted"] = f"{mean:.2f} of the moves, {ends}"
    return facts


def tables_of_saem(fit: SaemFit, report: Report) -> Iterator[Table | str]:
    """Yield what a terminal shows of a fit that was just made: facts, and estimates or topics."""
    saved = fit.saved
    facts = how_fitted(saved, report["device_individuals"]) | how_well(fit)
    facts["iterations"] += f", {number(report['seconds'], 3)} s"
    facts["communication"] = communication(report["communication"], report["device_names"])
    facts["model file"] = kept(report)
    for name in ("individuals", "topics", "traces"):
        if report.get(f"{name}_file") is not None:
            facts[name] = report[f"{name}_file"]
    yield Table([*facts.items()])
    of_topics = fit.corpus is not None
    yield from topic_tables(Topics(saved)) if of_topics else estimate_tables(Summary(saved))


def _quality(saved: SavedSaem, individuals: Individuals | None) -> Items:
    items: Items = [Table([*how_well(saved).items()], caption="As the fit reported")]
    if saved.corpus is None:
        items.append(
            "Logarithms are natural. Of models of the same data those of lower AIC or BIC are "
            "better: BIC charges for parameters by individuals, BICc by individuals and rows."
        )
    if individuals is None:
        return items
    n, n_rows = individuals.n_individuals, individuals.n_rows
    held: list[Fact] = [("data", individuals.source), ("individuals", n), ("rows", n_rows)]
    if saved.model != OWN:
        lines = DESCRIBED if saved.corpus is None else DESCRIBED_BY_TOPICS
        held[1:] = lines_of(Predictor(saved).describe_score(individuals), lines)
    return [*items, Table(held, caption="Held against these data")]


def _total(report: Report) -> str:
    likelihood = report["log_likelihood"]
    error = likelihood["error"]
    return f"{likelihood['value']:.4f}{f', Monte Carlo error {error:.2g}' if error else ''}"


DESCRIBED: Lines = {
    "individuals": "{n_individuals}",
    "rows": "{n_samples}",
    "parameters": "{n_parameters}",
    "log-likelihood, total": _total,
    "log-likelihood per individual": lambda report: (
        f"{report['log_likelihood']['value'] / report['n_individuals']:.8g}"
    ),
    "BIC, of individuals": "{bic:.4f}",
    "AIC": "{aic:.4f}",
}
"""How well a fit describes individuals, `Predictor.describe_score`."""

DESCRIBED_BY_TOPICS: Lines = {
    "documents": "{n_individuals}",
    "words of the vocabulary": "{n_tokens:.0f}",
    "other words": "{n_unknown:.0f}",
    "log-likelihood, a lower bound": "{log_likelihood[lower_bound]:.2f}",
    "perplexity, by this bound": "{perplexity:.6g}",
    "perplexity of half of the words, given the other half": "{perplexity_of_completion:.6g}",
}
"""How well topics describe documents, likewise."""


def _sent(saved: SavedSaem) -> Items:
    from vpem.pictures.saved import counted_by_kind

    kinds = counted_by_kind(saved.communication)
    if kinds is None:
        return ["The file does not say what was sent."]
    items: Items = [sent_by_phase(kinds)]
    if kinds and saved.n_iter > 1:
        each = int(saved.bytes[-1] - saved.bytes[0]) / (saved.n_iter - 1)
        items.append(f"An iteration took {size(each)} on average.")
    return items


def said(value: float, digits: int = 5) -> str:
    """Write a number for a reader; a dash where it is not known."""
    return f"{value:.{digits}g}" if math.isfinite(value) else "-"


def _row(one: Figure, digits: int = 5) -> tuple[str, ...]:
    ends = said(one.lower, 4), said(one.upper, 4)
    return one.name, said(one.value, digits), said(one.error, 3), *ends


def estimate_tables(summary: Summary) -> list[Table | str]:
    ends, tests = (f"{100 * summary.level:.3g} % from", "to"), summary.tests
    freedom = any(math.isfinite(one.freedom) for one in summary.parameters)
    rows: list[tuple[str, ...]] = []
    for one in summary.parameters:
        cells = list(_row(one))
        cells.insert(3, said(one.rse, 3))
        if freedom:
            cells.append(said(one.freedom, 3) if math.isfinite(one.freedom) else "")
        if tests:
            p = tests.get(one.name)
            cells.append("" if p is None else "<1e-4" if p < 1e-4 else said(p, 2))
        rows.append(tuple(cells))
    more = [*(["df"] if freedom else []), *(["p"] if tests else [])]
    heads = ("parameter", "estimate", "s.e.", "RSE %", *ends, *more)
    tables: list[Table | str] = [Table(rows[:MOST_ROWS], heads, "Estimates")]
    if len(rows) > MOST_ROWS:
        tables.append(f"{len(rows) - MOST_ROWS} more parameters are in the file, and in --json.")
    if summary.back:
        rows, heads = list(map(_row, summary.back)), ("parameter", "value", "s.e.", *ends)
        tables.append(Table(rows[:MOST_ROWS], heads, "On their own scale"))
    # How individuals differ: sds, shrinkage, correlations.
    with_cv = bool(summary.variation)
    rows = []
    for name, shrunk in summary.shrinkage.items():
        one = summary.spreads.get(name, Figure(name, *[math.nan] * 4))
        cv = [said(summary.variation.get(name, math.nan), 3)] if with_cv else []
        shares = (f"{share:.3f}" for share in shrunk)
        rows.append((*_row(one), *cv, *shares))
    heads = ("latent", "sd", "s.e.", *ends, *(["CV %"] if with_cv else []), "shrinkage", "of sd")
    if rows and not summary.spreads:
        rows = [(name, *cells[-2:]) for name, *cells in rows]
        heads = ("latent", "shrinkage", "of sd")
    if rows:
        tables.append(Table(rows[:MOST_ROWS], heads, "How individuals differ"))
    if summary.correlations:
        rows = [_row(one, 3) for one in summary.correlations]
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


def contents_of_topics(saved: Saved, corpus: Individuals | None) -> Contents:
    topics: Topics = saved.stored
    fit = topics.saved
    warned, course = warnings_of(_not_converged(fit))
    devices: Items = ["Topics of devices are not known: sums were masked."]
    if len(topics.device_shares):
        rows = []
        for device, shares in zip(topics.device_names, topics.device_shares, strict=True):
            most = np.argsort(-shares, kind="stable")[:3].tolist()
            rows.append((device, ", ".join(f"topic {k} {shares[k]:.0%}" for k in most)))
        devices = [Table(rows[:MOST_DOCUMENTS], ("device", "largest topics"), right=())]
        left = len(rows) - MOST_DOCUMENTS
        devices += [f"{left} more devices are in the file."] if left > 0 else []
    sections = [
        *warned,
        Section("topics", "Topics", topic_tables(topics), ("topics",)),
        Section("devices", "Devices", devices, ("shares",)),
        Section("quality", "How well", _quality(fit, corpus)),
        Section("course", "How the fit went", course, ("spreads",)),
        Section("sent", "What was sent", _sent(fit)),
        Section("fitted", "Settings", [Table(_settings(fit))]),
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


def topic_tables(topics: Topics) -> list[Table | str]:
    rows = []
    tops = topics.top(FIRST)
    for k in topics.order.tolist():
        listed = ", ".join(f"{word} {weight:.3f}" for word, weight in tops[k])
        rows.append((str(k), f"{topics.shares[k]:.1%}", f"{topics.coherence[k]:.2f}", listed))
    what = (
        "Shares are of all words. Coherence is near 1 where the first ten words come in the same "
        "documents, 0 where by chance, -1 never."
    )
    heads = ("topic", "share", "coherence", "words")
    return [Table(rows, heads, "Topics", right=heads[1:3]), what]
