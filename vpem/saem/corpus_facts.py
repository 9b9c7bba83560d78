"""What a fit of topics says of its corpus beside them: shares, and which words come together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_int
from vpem.network.partition import Workers
from vpem.saem.conditional import Conditional
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import SaemModel, Vector

TOP = 10
"""Words of a topic that speak for it."""


@dataclass(frozen=True)
class CorpusFacts:
    """Of which topics a corpus is.

    ``device_shares`` are shares of each topic in the words of each device; (0, K) where sums were
    masked. ``perplexities`` are iterations at which it was seen, and what it was by the lower
    bound.
    """

    shares: Vector  # (K,) of each topic in all words
    coherence: Vector  # (K,), see `coherence_of`
    n_tokens: float  # words of all documents
    device_names: tuple[str, ...]  # (D,)
    device_shares: Vector  # (D, K)
    perplexities: Vector  # (m, 2)


def corpus_facts(
    model: SaemModel,
    theta: Vector,
    given: Conditional,
    held: Workers,
    looks: Sequence[tuple[int, float]],
) -> CorpusFacts | None:
    """Return what there is to say of a corpus, in all processes together; None of other data."""
    if not model.wide:
        return None
    corpus = model.individuals
    topics = theta.reshape(len(model.latents), -1)
    lengths = corpus.sums(corpus.values) if corpus.n_individuals else np.zeros(0)
    n_tokens = float(corpus.total(lengths))
    of_topics = given.means * lengths[:, None]
    return CorpusFacts(
        corpus.total(of_topics) / n_tokens, coherence_of(topics, corpus), n_tokens,
        tuple(held.names), _by_device(corpus, of_topics, held),
        np.array(looks, dtype=np.float64).reshape(-1, 2),
    )  # fmt: skip


def top_words(topics: Vector, count: int = TOP) -> NDArray[np.intp]:
    """Return the numbers of the most probable words of each topic (K, V), the first the most."""
    count = min(check_int("count", count, least=1), topics.shape[1])
    some = np.argpartition(-topics, count - 1, axis=1)[:, :count]
    some.sort(axis=1)
    order = np.argsort(-np.take_along_axis(topics, some, axis=1), axis=1, kind="stable")
    found: NDArray[np.intp] = np.take_along_axis(some, order, axis=1)
    return found


def coherence_of(topics: Vector, corpus: Individuals) -> Vector:
    """How often the first words of each topic come in the same documents, (K,).

    The mean over pairs of its `TOP` words of their normalized pointwise mutual information
    (Bouma 2009) over the documents: 1 where they always come together, 0 where by chance, -1 never.
    """
    found = np.zeros(len(topics))
    documents, places = corpus.individual_of, corpus.times.astype(np.intp)
    n = corpus.everyone[0]
    for k, words in enumerate(top_words(topics)):
        column = np.full(topics.shape[1], -1, dtype=np.intp)
        column[words] = np.arange(len(words))
        at = column[places]
        there = np.zeros((corpus.n_individuals, len(words)))
        there[documents[at >= 0], at[at >= 0]] = 1.0
        both = np.asarray(corpus.products(there)) / n
        alone = np.diagonal(both)
        i, j = np.triu_indices(len(words), 1)
        if not len(i):
            continue
        joint, chance = both[i, j], alone[i] * alone[j]
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.log(joint / chance) / -np.log(joint)
        score[joint <= 0] = -1.0
        score[joint >= 1] = 1.0
        found[k] = score.mean()
    return found


def _by_device(corpus: Individuals, of_topics: Vector, held: Workers) -> Vector:
    """Share of each topic in the words of each device, (D, K); none where sums are masked."""
    if corpus.masked:
        return np.zeros((0, of_topics.shape[1]))
    together = corpus.together
    numbers = np.arange(held.n_samples) if together is None else together.numbers
    found = np.zeros((held.n_workers, of_topics.shape[1]))
    np.add.at(found, held.worker_of[numbers], of_topics)
    summed: Vector = np.asarray(corpus.add(found[None]))
    shares: Vector = summed / summed.sum(axis=1, keepdims=True)
    return shares
