"""What there is to say of topics."""

from __future__ import annotations

import os

import numpy as np

from vpem.pictures.contents import Contents, Fact, Listing, Section, Table, facts, sent_by_phase
from vpem.pictures.reported import counted_by_kind
from vpem.pictures.saved import SavedTopics
from vpem.saem.individuals import Individuals
from vpem.saem.topics import Topics

Items = list[Table | Listing | str]

MOST_DOCUMENTS = 60
FIRST = 6
"""Words of a topic in a table."""


def contents_of_topics(saved: SavedTopics, corpus: Individuals | None) -> Contents:
    """Return what there is to say of topics, and of documents that they are held against."""
    found = saved.stored
    warned: Items = []
    if found.saved.settings.get("tol") != 0 and not found.saved.converged:
        why = f": {found.saved.grounds}" if found.saved.grounds else ""
        warned = [Listing([f"The fit has not converged in {found.saved.n_iter} iterations{why}."])]
    course = [] if warned else ["No warnings were given."]
    sections = [
        *([Section("warnings", "Warnings", warned)] if warned else []),
        Section("topics", "Topics", _topics(found), ("topics",)),
        Section("devices", "Devices", _devices(found), ("shares",)),
        Section("quality", "How well", _quality(found, corpus)),
        Section("course", "How the fit went", course, ("spreads",)),
        Section("sent", "What was sent", _sent(found)),
        Section("fitted", "Settings", [facts(_fitted(found))]),
    ]
    title = (
        f"{os.path.basename(saved.path)}: {found.n_topics} topics of {found.n_words} words in "
        f"{_setting(found, 'n_individuals')} documents"
    )
    first = int(found.order[0])
    lead = (
        f"{found.n_topics} topics of {_setting(found, 'n_individuals')} documents: the largest, "
        f"topic {first}, has {100 * found.shares[first]:.0f} % of the words, most often "
        f"{', '.join(word for word, _ in found.top(FIRST)[first])}."
    )
    return Contents(title, f"{lead} Fitted by SAEM: latent Dirichlet allocation.", sections)


def _setting(found: Topics, name: str) -> str:
    """Return a setting as text; a file may hold anything there."""
    value = found.saved.settings.get(name)
    if value is None or isinstance(value, list | dict):
        return "not said"
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _topics(found: Topics) -> Items:
    tops = found.top(FIRST)
    rows = [
        (
            f"topic {k}", f"{found.shares[k]:.1%}", f"{found.coherence[k]:.2f}",
            ", ".join(f"{word} {weight:.3f}" for word, weight in tops[k]),
        )
        for k in found.order.tolist()
    ]  # fmt: skip
    what = (
        "Shares are of all words. Coherence is near 1 where the first ten words come in the same "
        "documents, 0 where by chance, -1 never."
    )
    return [Table(rows, ("topic", "share", "coherence", "words"), numbers=False), what]


def _devices(found: Topics) -> Items:
    if not len(found.device_shares):
        return ["What devices are of is not told: sums were masked."]
    rows = []
    for name, own in zip(found.device_names, found.device_shares, strict=True):
        first = np.argsort(-own, kind="stable")[:3].tolist()
        rows.append((name, ", ".join(f"topic {k} {own[k]:.0%}" for k in first)))
    items: Items = [Table(rows[:MOST_DOCUMENTS], ("device", "largest topics"), numbers=False)]
    left = len(rows) - MOST_DOCUMENTS
    return items + ([f"{left} more devices are in the file."] if left > 0 else [])


def _quality(found: Topics, corpus: Individuals | None) -> Items:
    converged = "yes" if found.saved.converged else "no"
    if found.saved.settings.get("tol") == 0:
        converged = "not asked for"
    told: list[Fact] = [
        ("words", f"{found.n_tokens:.0f}"),
        ("log-likelihood, a lower bound (nats)", f"{found.saved.log_likelihood.value:.9g}"),
        ("perplexity, by this bound", f"{found.perplexity:.6g}"),
        ("iterations", f"{found.saved.n_iter}, of which {_setting(found, 'burn_in')} burn-in"),
        ("converged", f"{converged}{f': {found.saved.grounds}' if found.saved.grounds else ''}"),
    ]
    items: Items = [facts(told, "As the fit reported")]
    if corpus is None:
        return items
    heard = found.hear(corpus)
    told = [
        ("data", corpus.source),
        ("documents", heard.model.n),
        ("words of the vocabulary", f"{heard.n_tokens:.0f}"),
        ("other words", f"{heard.n_unknown:.0f}"),
        ("perplexity, by the bound", f"{heard.perplexity:.6g}"),
    ]
    if heard.completed is not None:
        what = "perplexity of half of the words, given the other half"
        told.append((what, f"{heard.completed:.6g}"))
    return [*items, facts(told, "Held against these data")]


def _sent(found: Topics) -> Items:
    kinds = counted_by_kind(found.saved.communication)
    if kinds is None:
        return ["The file does not say what was sent."]
    return [sent_by_phase(kinds)]


def _fitted(found: Topics) -> list[Fact]:
    options = "; ".join(f"{name.replace('_', ' ')} {value}"
                        for name, value in found.saved.model_options.items())  # fmt: skip
    versions = ", ".join(f"{name} {value}" for name, value in found.saved.versions.items())
    sent: list[Fact] = [("statistics sent by", _setting(found, "codec")),
                        ("feedback", _setting(found, "feedback"))]  # fmt: skip
    sent = sent if found.saved.settings.get("codec") else []
    return [
        ("data", _setting(found, "data")),
        ("model", "lda"),
        ("its options", options or "none"),
        ("devices", _setting(found, "devices")),
        ("sampler", _setting(found, "sampler")),
        ("chains of a document", _setting(found, "n_chains")),
        *sent,
        ("participation", _setting(found, "participation")),
        ("seed", _setting(found, "seed")),
        ("versions", versions or "not said"),
    ]  # fmt: skip
