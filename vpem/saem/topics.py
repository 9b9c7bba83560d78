"""Topics of a corpus, by a fit of latent Dirichlet allocation, and what they say of documents."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vpem.checks import Doubles, Indices
from vpem.errors import InputError
from vpem.network.schema import Report
from vpem.saem.conditional import Conditional, sample_conditional
from vpem.saem.individuals import Individuals, Streams, in_words
from vpem.saem.models.model import MODELS, SaemModel, model_class
from vpem.saem.results import TOP, SaemFit, SavedSaem, as_saved, top_words
from vpem.saem.samplers import Gibbs

BURN_IN = 50
CHAINS = 10


def is_wide(saved: SavedSaem) -> bool:
    """Whether a fit has a wide model (`SaemModel.wide`) of vpem."""
    return saved.model in MODELS and bool(model_class(saved.model).wide)


def draw_latents(
    model: SaemModel, theta: Doubles, n_draws: int, seed: int, level: float
) -> Conditional:
    """Draw latents of individuals given their rows by Gibbs sampling."""
    sampler, streams = Gibbs(), Streams.from_names(model.individuals.names, seed)
    chains = sampler.begin(model, theta, np.zeros((model.n, len(model.latents))), CHAINS)
    for now in range(BURN_IN):
        sampler.move(model, theta, chains, streams, now + 1, 0)
    return sample_conditional(
        model, theta, sampler, chains, streams,
        after=BURN_IN, late=1, n_iter=max(2, -(-n_draws // CHAINS)), level=level,
    )  # fmt: skip


class Topics:
    """Topics of a corpus, as a fit of ``lda`` has found them.

    Probabilities of ``words`` (V,), which may be numbers, in each of ``topics`` (K, V), whose
    ``order`` (K,) is the largest first; what else there is is as in
    `vpem.saem.results.CorpusFacts`.
    """

    def __init__(self, fit: SaemFit | SavedSaem) -> None:
        self.saved = saved = as_saved(fit)
        if saved.corpus is None:
            raise InputError(f"topics are those of the model lda, not of {saved.model}")
        self.topics: Doubles = saved.theta.reshape(len(saved.latents), -1)
        self.words = saved.words or tuple(map(str, range(self.topics.shape[1])))
        self.n_topics, self.n_words = len(self.topics), len(self.words)
        facts = saved.corpus
        self.shares, self.coherence, self.n_tokens = facts.shares, facts.coherence, facts.n_tokens
        self.device_names, self.device_shares = facts.device_names, facts.device_shares
        self.perplexities = facts.perplexities
        self.order: Indices = np.argsort(-self.shares, kind="stable")

    @cached_property
    def perplexity(self) -> float:
        """Perplexity of a word of the corpus, by the lower bound of the log-likelihood."""
        return perplexity_of(self.saved.log_likelihood.value, self.n_tokens)

    def top(self, count: int = TOP) -> list[list[tuple[str, float]]]:
        """Most probable words of each topic, with their probabilities."""
        places = top_words(self.topics, count)
        return [
            [(self.words[v], float(chances[v])) for v in some]
            for chances, some in zip(self.topics, places.tolist(), strict=True)
        ]

    def describe(self) -> list[Report]:
        """Share, coherence and first words of each topic."""
        facts = zip(self.shares.tolist(), self.coherence.tolist(), self.top(), strict=True)
        return [
            {"topic": k, "share": share, "coherence": coherence, "words": dict(words)}
            for k, (share, coherence, words) in enumerate(facts)
        ]


@dataclass(frozen=True)
class Heard:
    """Documents by the words of topics, which some of theirs may not be."""

    documents: Individuals  # that have any
    n_unknown: float  # how often words come that the topics have not
    n_left_out: int  # documents of such words alone

    @staticmethod
    def by(saved: SavedSaem, individuals: Individuals) -> Heard:
        """Take documents in the vocabulary of a fit; individuals of others as they are."""
        if not is_wide(saved) or not (saved.words or individuals.words):
            return Heard(individuals, 0.0, 0)
        if individuals.words is None:
            raise InputError(
                f"{individuals.source} has numbers for words, but the topics are of words with "
                "names; give documents with the words' names"
            )
        known, n_unknown = in_words(individuals, Topics(saved).words)
        return Heard(known, n_unknown, individuals.n_individuals - known.n_individuals)

    @property
    def n_tokens(self) -> float:
        """Words that the topics have."""
        return float(self.documents.values.sum())


def perplexity_of(log_likelihood: float, n_tokens: float) -> float:
    """Perplexity of a word of so many."""
    return math.exp(min(-log_likelihood / n_tokens, 700.0))
