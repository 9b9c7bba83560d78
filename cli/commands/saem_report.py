"""Reports of `vpem saem` on a fit, or on topics: as JSON, on a terminal, and as tables."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from ..display import ProgressLine, Screen, communication, number, plural, show, table
from ..runner import FitOutcome
from .kinds import as_printed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from vpem.network.partition import Workers
    from vpem.network.schema import Report
    from vpem.saem.results import SaemFit
    from vpem.saem.topics import Topics

    from .saem import SaemOutput


MOST_ROWS = 60
"""Printed parameters; --json has them all."""


class SaemCounter(ProgressLine):
    """Progress of a long run: iterations, and then the draws at the estimates."""

    def __init__(self, quiet: bool, unkept: str | None = None, burn_in: int = 0) -> None:
        super().__init__(quiet, unkept)
        self.burn_in = burn_in

    def place(self, progress: Any) -> str:
        self.most = progress.n_iter
        return super().place(progress)

    def facts(self, progress: Any) -> Iterator[str]:
        if progress.iteration <= self.burn_in:
            yield "burn-in"


def _latent_values(estimates: Any) -> list[Any]:
    """Return means, standard deviations and ends of intervals of latents, (n, q) each."""
    import numpy as np

    variances = np.einsum("nii->ni", estimates.covariances)
    return [estimates.means, np.sqrt(np.maximum(variances, 0.0)), estimates.lower, estimates.upper]


def latent_columns(latents: Sequence[str], estimates: Any) -> Report:
    """Return the mean, sd and interval of each latent as columns."""
    parts = list(zip(("", " sd", " lower", " upper"), _latent_values(estimates), strict=True))
    return {f"{name}{end}": part[:, j] for j, name in enumerate(latents) for end, part in parts}


def latents_of(latents: Sequence[str], estimates: Any) -> list[Report]:
    """Return the mean, sd and interval of each latent of each individual."""
    parts = list(zip(("mean", "sd", "lower", "upper"), _latent_values(estimates), strict=True))
    return [
        {
            latent: {name: float(part[one, j]) for name, part in parts}
            for j, latent in enumerate(latents)
        }
        for one in range(len(estimates.means))
    ]


def _individuals(fit: SaemFit, device_of: list[str]) -> list[Report]:
    """Return the latents of every individual, or probabilities of components."""
    model, people, odds = fit.model, fit.people, fit.people.probabilities
    continuous = odds is None and not model.discrete
    latents = latents_of(model.latents, fit.given) if continuous else []
    individuals = []
    for one, name in enumerate(people.names):
        facts: Report = {
            "id": name,
            "rows": int(people.rows[one]),
            "device": device_of[one],
            "acceptance": None if fit.acceptance is None else float(fit.acceptance[one]),
            "log_likelihood": float(fit.log_likelihood.each[one]),
        }
        if odds is not None:
            facts["component"] = int(odds[one].argmax())
            facts["probabilities"] = odds[one]
        elif continuous:
            facts["latents"] = latents[one]
        individuals.append(facts)
    return individuals


def _advice(fit: SaemFit) -> str:
    """Return what to try where there are no standard errors."""
    from vpem.saem.estimates import flat_latents

    flat = []
    if fit.model_name == "one-compartment":
        flat = flat_latents(fit.model.latents, fit.given.shrinkage)
    if not flat:
        return "take more iterations or draws, or a simpler model"
    others = [name.removeprefix("log ") for name in fit.model.latents if name not in flat]
    return (
        f"{' and '.join(flat)} hardly {'vary' if len(flat) > 1 else 'varies'} between individuals: "
        f"try --random {','.join(others) or 'none'}"
    )


def report_of(fit: SaemFit, devices: Workers, screen: Screen) -> Report:
    """Return the report of a fit, and warn of missing standard errors."""
    from vpem.saem.estimates import criteria_of, few_individuals, lacking_errors, summary_of
    from vpem.saem.results import as_saved

    model, likelihood, people = fit.model, fit.log_likelihood, fit.people
    if said := lacking_errors(model.parameters, fit.standard_errors, fit.given.n_draws > 0):
        screen.warn(f"{said}; {_advice(fit)}")
    if few := few_individuals(people.n_individuals, fit.certain.freedom):
        screen.warn(few)
    saved = as_saved(fit)
    device_of = [devices.names[device] for device in devices.worker_of]
    effective = fit.least_effective
    return {
        "algorithm": "saem",
        "n_individuals": people.n_individuals,
        "n_samples": people.n_rows,
        "n_devices": devices.n_workers,
        "device_names": list(devices.names),
        "device_individuals": devices.counts,
        "latents": list(model.latents),
        "n_parameters": len(model.parameters),
        "estimates": fit.estimates,
        "standard_errors": {
            name: value if isfinite(value) else None for name, value in fit.errors.items()
        },
        "log_likelihood": {
            "value": likelihood.value,
            "error": likelihood.error,
            "least_effective_draws": effective if isfinite(effective) else None,
            "linearized": likelihood.linearized,
        },
        "criteria": criteria_of(saved, likelihood.value, people.n_individuals, people.n_rows),
        "summary": summary_of(saved).as_json(),
        "converged": fit.converged if fit.settings["tol"] > 0 else None,
        "iterations": fit.n_iter,
        "change": fit.change if isfinite(fit.change) else None,
        "grounds": fit.grounds or None,
        "shrinkage": None
        if model.discrete
        else dict(zip(model.latents, fit.given.shrinkage.tolist(), strict=True)),
        "acceptance": None
        if fit.accepted is None
        else dict(zip(("mean", "least", "most"), fit.accepted, strict=True)),
        "individuals": _individuals(fit, device_of),
        "traces": dict(zip(model.parameters, fit.trace.T.tolist(), strict=True)),
        "bytes_by_iteration": fit.bytes,
        "communication": fit.ledger.summary(),
        "settings": {
            "model": fit.model_name,
            "model_options": fit.model_options,
            **fit.settings,
            **fit.network,
            "level": fit.given.level,
        },
    }


def write_individual_table(path: Path, fit: SaemFit, force: bool, quote_formulas: bool) -> None:
    """Write a row an individual: mean, sd and interval of each latent, or its component."""
    import numpy as np

    from vpem.files.results import write_columns

    model, estimates, people = fit.model, fit.given, fit.people
    columns: Report = {"id": np.array(people.names, dtype=np.str_), "rows": people.rows}
    odds = people.probabilities
    if odds is not None:
        columns["component"] = odds.argmax(axis=1)
        columns |= {f"proba_{k}": column for k, column in enumerate(odds.T)}
    elif not model.discrete:
        columns |= latent_columns(model.latents, estimates)
    columns["log-likelihood"] = fit.log_likelihood.each
    if fit.acceptance is not None:
        columns["acceptance"] = fit.acceptance
    write_columns(path, columns, "vpem-saem-individuals", force, quote_formulas)


def algorithm_of(settings: Report) -> str:
    """Describe in a line how it was fitted."""
    moves = settings["sampler_options"]
    parts = [settings["sampler"], plural(settings["n_chains"], "chain")]
    if "n_steps" in moves:
        parts.insert(1, plural(moves["n_steps"], "step"))
    if moves.get("codec"):
        parts.append(f"gradients by {moves['codec']}")
    if settings["average"] == "models":
        parts.append(f"models averaged over {settings['shares']}")
    if settings["codec"] is not None:
        parts.append(f"statistics by {settings['codec']}")
    if settings["feedback"] != "none":
        parts.append(f"feedback {settings['feedback']}")
    if settings["participation"] < 1:
        parts.append(f"participation {settings['participation']:g}")
    if settings["longest_step"] < 1:
        parts.append(
            f"steps up to {settings['longest_step']:.3g} (codec omega {settings['omega']:.3g}, "
            f"alpha {settings['memory_step']:.3g})"
        )
    if settings["compress"] is not None:
        parts.append(f"rounds by {settings['compress']}")
    if settings["batch_size"] is not None:
        parts.append(f"batches of {settings['batch_size']}")
    return ", ".join(parts)


def devices_of(report: Report, what: str = "individual") -> str:
    """Describe in a line who held individuals, and how their sums were taken."""
    settings, sizes = report["settings"], report["device_individuals"]
    fewest, most = int(min(sizes)), int(max(sizes))
    if report["n_devices"] == 1:
        return f"one, all {what}s"
    each = plural(most, what) if fewest == most else f"{fewest} to {most} {what}s"
    network = f"{report['n_devices']}, {each} each"
    if settings["sum"] == "consensus":
        network += f", {settings['topology']}, {plural(settings['rounds'], 'round')}"
        network += f", statistics up to {settings['disagreement']:.2g} apart"
    elif settings["sum"] == "tree":
        network += f", {settings['topology']}, added up along a tree"
    return network + (", sums under masks" if settings.get("secure_sum") else "")


def _ran(report: Report, *files: str) -> list[tuple[str, str]]:
    """Return lines of a table on iterations, messages and files."""
    burn_in = min(report["settings"]["burn_in"], report["iterations"])
    seconds = number(report["seconds"], 3)
    facts = [("iterations", f"{report['iterations']}, of which {burn_in} burn-in, {seconds} s")]
    if report["converged"] is not None:
        whether = "yes" if report["converged"] else "no"
        facts.append(("converged", f"{whether}: {report['grounds']}"))
    if (rates := report.get("acceptance")) is not None:
        facts.append(("accepted", f"{rates['mean']:.2f} of the moves, {rates['least']:.2f} to "
                      f"{rates['most']:.2f} of an individual's"))  # fmt: skip
    facts += [
        ("communication", communication(report["communication"], report["device_names"])),
        ("model file", report["model"] or "not kept (give --output)"),
    ]
    written = [(name, report[f"{name}_file"]) for name in files]
    return [*facts, *((name, file) for name, file in written if file is not None)]


def show_report(report: Report, fit: SaemFit) -> None:
    """Print the tables of a fit."""
    from vpem.pictures.saem_contents import estimate_tables
    from vpem.saem.estimates import summary_of
    from vpem.saem.results import as_saved

    log_likelihood, costs = report["log_likelihood"], report["criteria"]
    likelihood = f"{log_likelihood['value']:.3f}"
    if log_likelihood["error"]:
        likelihood += f", Monte Carlo error {log_likelihood['error']:.2g}"
    linearized = log_likelihood["linearized"]
    if linearized is not None and linearized == linearized:  # NaN is None at other members
        likelihood += f"; linearized {linearized:.3f}"
    named = (("-2LL", "minus_2_log_likelihood"), ("AIC", "aic"), ("BIC", "bic"), ("BICc", "bicc"))
    criteria = [f"{name} {costs[key]:.2f}" for name, key in named if costs[key] is not None]
    individuals, rows = plural(report["n_individuals"], "individual"), report["n_samples"]
    parameters = plural(report["n_parameters"], "parameter")
    facts = [
        ("data", f"{individuals}, {plural(rows, 'row')}"),
        ("model", f"{report['settings']['model']}, {parameters}"),
        ("devices", devices_of(report)),
        ("algorithm", algorithm_of(report["settings"])),
        ("log-likelihood", likelihood),
        ("criteria", ", ".join(criteria)),
        *_ran(report, "individuals", "traces"),
    ]
    show(table(facts, "", ""), *map(as_printed, estimate_tables(summary_of(as_saved(fit)))))
    left = len(report["estimates"]) - MOST_ROWS
    if left > 0:
        show(f"{plural(left, 'more parameter')} (see --json)\n")


SHOWN = 5
"""Printed words of a topic."""


def topics_result(
    fit: SaemFit, devices: Workers, facts: Callable[[], Report], out: SaemOutput
) -> FitOutcome:
    """Return the outcome of a fit of topics."""
    from vpem.saem.formats.fits import save_saem
    from vpem.saem.topics import Topics

    topics = Topics(fit)

    return FitOutcome(
        fit.converged, lambda: _report(topics, devices, fit) | facts(),
        lambda path, report: save_saem(path, fit, force=out.force), _show,
        own=lambda _: {"labels_files": None, **_write(topics, out)},
    )  # fmt: skip


def topic_facts(topics: Topics) -> list[Report]:
    """Return the report of each topic, in their order."""
    return [
        {
            "topic": k,
            "share": float(topics.shares[k]),
            "coherence": float(topics.coherence[k]),
            "words": dict(words),
        }
        for k, words in enumerate(topics.top())
    ]


def _report(topics: Topics, devices: Workers, fit: SaemFit) -> Report:
    device_of = [devices.names[device] for device in devices.worker_of]
    return {
        "algorithm": "saem",
        "n_individuals": fit.people.n_individuals,
        "n_samples": fit.people.n_rows,
        "n_tokens": topics.n_tokens,
        "n_words": topics.n_words,
        "n_topics": topics.n_topics,
        "n_devices": devices.n_workers,
        "device_names": list(devices.names),
        "device_individuals": devices.counts,
        "device_shares": topics.device_shares,
        "topics": topic_facts(topics),
        "log_likelihood": {"lower_bound": fit.log_likelihood.value},
        "perplexity": topics.perplexity,
        "converged": fit.converged if fit.settings["tol"] > 0 else None,
        "iterations": fit.n_iter,
        "change": fit.change if isfinite(fit.change) else None,
        "grounds": fit.grounds or None,
        "individuals": [
            {
                "id": name, "device": device_of[one],
                "log_likelihood": float(fit.log_likelihood.each[one]),
                "proportions": fit.given.means[one],
            }
            for one, name in enumerate(fit.people.names)
        ],
        "traces": dict(zip([f"topic {k}" for k in range(topics.n_topics)],
                           fit.trace.T.tolist(), strict=True)),
        "perplexities": topics.perplexities,
        "bytes_by_iteration": fit.bytes,
        "communication": fit.ledger.summary(),
        "settings": {
            "model": "lda", "model_options": fit.model_options, **fit.settings, **fit.network,
            "level": fit.given.level,
        },
    }  # fmt: skip


def document_columns(names: Any, means: Any, lower: Any, upper: Any) -> Report:
    """Return proportions of the topics of documents, and intervals, as columns."""
    import numpy as np

    columns: Report = {"id": np.array(names, dtype=np.str_)}
    for k in range(means.shape[1]):
        columns[f"topic {k}"] = means[:, k]
        columns[f"topic {k} lower"] = lower[:, k]
        columns[f"topic {k} upper"] = upper[:, k]
    return columns


def _write(topics: Topics, out: SaemOutput) -> Report:
    import numpy as np

    from vpem.files.results import write_columns

    if out.topics is not None:
        columns: Report = {"word": np.array(topics.words, dtype=np.str_)}
        columns |= {f"topic {k}": weights for k, weights in enumerate(topics.topics)}
        write_columns(out.topics, columns, "vpem-topic-words", out.force, out.quote_formulas)
    if out.individuals is not None:
        saved = topics.saved
        columns = document_columns(saved.names, saved.means, saved.lower, saved.upper)
        columns["log-likelihood"] = saved.log_likelihood.each
        write_columns(
            out.individuals, columns, "vpem-saem-individuals", out.force, out.quote_formulas
        )
    if out.traces is not None:
        from vpem.pictures.figure import save_picture
        from vpem.pictures.saem import draw_spreads

        save_picture(out.traces, draw_spreads(topics), force=out.force)
    files = {"individuals_file": out.individuals, "topics_file": out.topics,
             "traces_file": out.traces}  # fmt: skip
    return {name: None if file is None else str(file) for name, file in files.items()}


def _show(report: Report) -> None:
    documents, words = plural(report["n_individuals"], "document"), int(report["n_tokens"])
    facts = [
        ("data", f"{documents}, {plural(words, 'word')}, {report['n_words']} different"),
        ("model", f"lda, {plural(report['n_topics'], 'topic')}"),
        ("devices", devices_of(report, "document")),
        ("algorithm", algorithm_of(report["settings"])),
        ("perplexity", f"{number(report['perplexity'], 5)} of these documents, by a lower bound"),
        *_ran(report, "individuals", "topics", "traces"),
    ]
    lines = []
    for one in sorted(report["topics"], key=lambda one: -one["share"]):
        first = [f"{word} {weight:.3f}" for word, weight in list(one["words"].items())[:SHOWN]]
        shares = f"{one['share']:.1%}", f"{one['coherence']:.2f}"
        lines.append((str(one["topic"]), *shares, ", ".join(first)))
    heads = ("topic", "share", "coherence", "words")
    show(table(facts, "", ""), table(lines, *heads, title="Topics", right=heads[1:3]))
