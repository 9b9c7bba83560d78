"""Topics of a corpus, by a fit of latent Dirichlet allocation, and what they say of documents."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vpem.checks import Doubles, Indices, check_int
from vpem.errors import InputError
from vpem.network.partition import Workers
from vpem.network.schema import Report
from vpem.saem.conditional import Conditional
from vpem.saem.individuals import Individuals, in_words
from vpem.saem.models.model import MODELS, SaemModel, model_class
from vpem.saem.results import CorpusFacts, SaemFit, SavedSaem

TOP = 10
"""Words of a topic that speak for it."""


def is_wide(saved: SavedSaem) -> bool:
    """Whether a fit has a wide model (`SaemModel.wide`) of vpem."""
    return saved.model in MODELS and bool(model_class(saved.model).wide)


def corpus_facts(
    model: SaemModel,
    theta: Doubles,
    conditional: Conditional,
    workers: Workers,
    looks: Sequence[tuple[int, float]],
) -> CorpusFacts | None:
    """Facts of a corpus, in all processes together; None of other data."""
    if not model.wide:
        return None
    corpus = model.individuals
    topics = theta.reshape(len(model.latents), -1)
    lengths = corpus.sums(corpus.values) if corpus.n_individuals else np.zeros(0)
    n_tokens = float(corpus.total(lengths))
    of_topics = conditional.means * lengths[:, None]
    device_shares: Doubles = np.zeros((0, len(model.latents)))
    if not corpus.masked:
        together = corpus.together
        numbers = np.arange(workers.n_samples) if together is None else together.numbers
        sums = np.zeros((workers.n_workers, len(model.latents)))
        np.add.at(sums, workers.worker_of[numbers], of_topics)
        summed = np.asarray(corpus.add(sums[None]))
        device_shares = summed / summed.sum(axis=1, keepdims=True)
    return CorpusFacts(
        corpus.total(of_topics) / n_tokens,
        coherence_of(topics, corpus),
        n_tokens,
        tuple(workers.names),
        device_shares,
        np.array(looks, dtype=np.float64).reshape(-1, 2),
    )


def top_words(topics: Doubles, count: int = TOP) -> Indices:
    """Numbers of the most probable words of each topic (K, V), the first the most."""
    count = min(check_int("count", count, least=1), topics.shape[1])
    words = np.argpartition(-topics, count - 1, axis=1)[:, :count]
    words.sort(axis=1)
    order = np.argsort(-np.take_along_axis(topics, words, axis=1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(words, order, axis=1), np.intp)


def coherence_of(topics: Doubles, corpus: Individuals) -> Doubles:
    """How often the first words of each topic come in the same documents, (K,).

    The mean over pairs of its `TOP` words of their normalized pointwise mutual information
    (Bouma 2009) over the documents: 1 where they always come together, 0 where by chance, -1 never.
    """
    coherence = np.zeros(len(topics))
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
        coherence[k] = score.mean()
    return coherence


class Topics:
    """Topics of a corpus, as a fit of ``lda`` has found them.

    Probabilities of ``words`` (V,), which may be numbers, in each of ``topics`` (K, V), whose
    ``order`` (K,) is the largest first; what else there is is as in
    `vpem.saem.results.CorpusFacts`. The ``perplexity`` is that of a word of the corpus, by the
    lower bound of the log-likelihood.
    """

    def __init__(self, fit: SaemFit | SavedSaem) -> None:
        self.saved = saved = fit.saved
        if saved.corpus is None:
            raise InputError(f"topics are those of the model lda, not of {saved.model}")
        self.topics: Doubles = saved.theta.reshape(len(saved.latents), -1)
        self.words = saved.words or tuple(map(str, range(self.topics.shape[1])))
        self.n_topics, self.n_words = len(self.topics), len(self.words)
        facts = saved.corpus
        self.shares, self.coherence, self.n_tokens = facts.shares, facts.coherence, facts.n_tokens
        self.device_names, self.device_shares = facts.device_names, facts.device_shares
        self.perplexities = facts.perplexities
        self.perplexity = perplexity_of(saved.log_likelihood.value, self.n_tokens)
        self.order: Indices = np.argsort(-self.shares, kind="stable")

    def top(self, count: int = TOP) -> list[list[tuple[str, float]]]:
        """Most probable words of each topic, with their probabilities."""
        places = top_words(self.topics, count)
        return [
            [(self.words[v], float(chances[v])) for v in some]
            for chances, some in zip(self.topics, places.tolist(), strict=True)
        ]

    def columns(self) -> Report:
        """Words and their probabilities in each topic, as columns of a table."""
        named = {f"topic {k}": chances for k, chances in enumerate(self.topics)}
        return {"word": np.array(self.words, dtype=np.str_), **named}

    def as_json(self) -> Report:
        return {
            "topics": self.describe(),
            "n_tokens": self.n_tokens,
            "log_likelihood": {"lower_bound": self.saved.log_likelihood.value},
            "perplexity": self.perplexity,
        }

    def describe(self) -> list[Report]:
        """Share, coherence and first words of each topic."""
        facts = zip(self.shares.tolist(), self.coherence.tolist(), self.top(), strict=True)
        return [
            {"topic": k, "share": share, "coherence": coherence, "words": dict(words)}
            for k, (share, coherence, words) in enumerate(facts)
        ]


def heard_in(saved: SavedSaem, individuals: Individuals) -> tuple[Individuals, float, int]:
    """Take documents in the vocabulary of a fit; individuals of others as they are.

    Also returned: how often words come that the topics have not, and documents of such words alone,
    which are left out.
    """
    if not is_wide(saved) or not (saved.words or individuals.words):
        return individuals, 0.0, 0
    if individuals.words is None:
        raise InputError(
            f"{individuals.source} has numbers for words, but the topics are of words with names; "
            "give documents with the words' names"
        )
    known, n_unknown = in_words(individuals, Topics(saved).words)
    return known, n_unknown, individuals.n_individuals - known.n_individuals


def perplexity_of(log_likelihood: float, n_tokens: float) -> float:
    return math.exp(min(-log_likelihood / n_tokens, 700.0))
