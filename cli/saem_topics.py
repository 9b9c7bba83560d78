"""What `vpem saem --model lda` tells of topics: to programs, to readers, and as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .output import communication, number, plural, show
from .results import Result
from .saem_report import algorithm_of, devices_of, iterations_of
from .tables import table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vpem.network.partition import Workers
    from vpem.network.schema import Report
    from vpem.saem.results import SaemFit
    from vpem.saem.topics import Topics

    from .saem import SaemOutput


SHOWN = 5
"""Words of a topic that are printed."""


def topics_result(
    told: SaemFit, held: Workers, facts: Callable[[], Report], out: SaemOutput
) -> Result:
    """Return what there is to tell of topics."""
    from vpem.saem.formats.fits import save_saem
    from vpem.saem.topics import Topics

    found = Topics(told)

    def write(path: Path, report: Report) -> None:
        save_saem(path, told, force=out.force)

    return Result(
        told.converged, lambda: _report(found, held, told) | facts(), write, _show,
        own=lambda _: {"labels_files": None, **_write(found, out)},
    )  # fmt: skip


def topic_facts(found: Topics) -> list[Report]:
    """Return what there is to say of each topic, in their order."""
    return [
        {
            "topic": k,
            "share": float(found.shares[k]),
            "coherence": float(found.coherence[k]),
            "words": dict(words),
        }
        for k, words in enumerate(found.top())
    ]


def _report(found: Topics, held: Workers, fit: SaemFit) -> Report:
    """Return all that is told, for `print_json`."""
    from math import isfinite

    device_of = [held.names[device] for device in held.worker_of]
    return {
        "algorithm": "saem",
        "n_individuals": fit.people.n_individuals,
        "n_samples": fit.people.n_rows,
        "n_tokens": found.n_tokens,
        "n_words": found.n_words,
        "n_topics": found.n_topics,
        "n_devices": held.n_workers,
        "device_names": list(held.names),
        "device_individuals": held.counts,
        "device_shares": found.device_shares,
        "topics": topic_facts(found),
        "log_likelihood": {"lower_bound": fit.log_likelihood.value},
        "perplexity": found.perplexity,
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
        "traces": dict(zip([f"topic {k}" for k in range(found.n_topics)],
                           fit.trace.T.tolist(), strict=True)),
        "perplexities": found.perplexities,
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


def _write(found: Topics, out: SaemOutput) -> Report:
    """Write what is asked for beside the model; the files' names."""
    import numpy as np

    from vpem.files.tables import write_columns

    if out.topics is not None:
        columns: Report = {"word": np.array(found.words, dtype=np.str_)}
        columns |= {f"topic {k}": own for k, own in enumerate(found.topics)}
        write_columns(out.topics, columns, "vpem-topic-words", out.force, out.quote_formulas)
    if out.individuals is not None:
        saved = found.saved
        columns = document_columns(saved.names, saved.means, saved.lower, saved.upper)
        columns["log-likelihood"] = saved.log_likelihood.each
        write_columns(
            out.individuals, columns, "vpem-saem-individuals", out.force, out.quote_formulas
        )
    if out.traces is not None:
        from vpem.pictures.figure import save_picture
        from vpem.pictures.saem import draw_spreads

        save_picture(out.traces, draw_spreads(found), force=out.force)
    files = {"individuals_file": out.individuals, "topics_file": out.topics,
             "traces_file": out.traces}  # fmt: skip
    return {name: None if file is None else str(file) for name, file in files.items()}


def topic_lines(topics: list[Report], most: int = SHOWN) -> list[tuple[str, ...]]:
    """Return a line each topic, the largest first: its share, coherence and first words."""
    return [
        (
            str(one["topic"]),
            f"{one['share']:.1%}",
            f"{one['coherence']:.2f}",
            ", ".join(f"{word} {weight:.3f}" for word, weight in list(one["words"].items())[:most]),
        )
        for one in sorted(topics, key=lambda one: -one["share"])
    ]


def _show(report: Report) -> None:
    """Print what a reader wants to know."""
    facts = [
        ("data", f"{plural(report['n_individuals'], 'document')}, "
                 f"{plural(int(report['n_tokens']), 'word')}, {report['n_words']} different"),
        ("model", f"lda, {plural(report['n_topics'], 'topic')}"),
        ("devices", devices_of(report, "document")),
        ("algorithm", algorithm_of(report["settings"])),
        ("perplexity", f"{number(report['perplexity'], 5)} of these documents, by a lower bound"),
        ("iterations", iterations_of(report)),
    ]  # fmt: skip
    if report["converged"] is not None:
        whether = "yes" if report["converged"] else "no"
        facts.append(("converged", f"{whether}: {report['grounds']}"))
    facts += [
        ("communication", communication(report["communication"], report["device_names"])),
        ("model file", report["model"] or "not kept (give --output)"),
    ]
    for name, key in (("individuals", "individuals_file"), ("topics", "topics_file"),
                      ("traces", "traces_file")):  # fmt: skip
        if report[key] is not None:
            facts.append((name, report[key]))
    heads = ("topic", "share", "coherence", "words")
    made: list[Any] = [table(facts, "", "")]
    made.append(table(topic_lines(report["topics"]), *heads, title="Topics", right=heads[1:3]))
    show(*made)
