"""Topics of a corpus, by a fit of latent Dirichlet allocation, and what they say of documents."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from vpem.checks import Doubles, Indices
from vpem.errors import InputError
from vpem.network.schema import Report
from vpem.saem.conditional import Conditional, sample_conditional
from vpem.saem.individuals import Individuals, Streams, in_words
from vpem.saem.models.lda import LdaModel
from vpem.saem.models.model import MODELS, SaemModel, model_class
from vpem.saem.results import TOP, Latents, SaemFit, SavedSaem, as_saved, rows_of, top_words
from vpem.saem.samplers import Gibbs

BURN_IN = 50
CHAINS = 10


def is_wide(saved: SavedSaem) -> bool:
    """Whether a fit has a wide model (`SaemModel.wide`) of vpem."""
    return saved.model in MODELS and bool(model_class(saved.model).wide)


def in_words_of(saved: SavedSaem, individuals: Individuals) -> Individuals:
    """Return documents in the vocabulary of a fit; words that it has not are left out."""
    if saved.words and individuals.words is None:
        raise InputError(
            f"{individuals.source} has numbers for words, but the topics are of words with names; "
            "give documents with the words' names"
        )
    return in_words(individuals, saved.words)[0] if saved.words else individuals


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
        return math.exp(min(-self.saved.log_likelihood.value / self.n_tokens, 700.0))

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

    def hear(self, corpus: Individuals) -> Heard:
        """Hold the topics against documents, whose words may be others."""
        return Heard(self, corpus)


class Heard:
    """Documents that topics are compared with.

    The ``model`` has those with known words, ``n_tokens`` together; ``n_left_out`` documents have
    none, and words that the topics do not know occur ``n_unknown`` times.
    """

    def __init__(self, topics: Topics, corpus: Individuals) -> None:
        self.topics = topics
        known, self.n_unknown = in_words(corpus, topics.words)
        self.n_left_out = corpus.n_individuals - known.n_individuals
        self.n_tokens = float(known.values.sum())
        alpha, eta = (topics.saved.model_options.get(name) for name in ("alpha", "eta"))
        self.model = LdaModel(known, topics.n_topics, alpha, eta, topics.n_words)

    def latents(self, n_draws: int = 1000, seed: int = 0) -> Latents:
        """Draw proportions of the topics of each document, given its words."""
        saved = self.topics.saved
        drawn = draw_latents(self.model, saved.theta, n_draws, seed, saved.level)
        parts = drawn.means, drawn.lower, drawn.upper, drawn.covariances
        return Latents(self.model.individuals.names, saved.latents, *parts, saved.level)

    def log_likelihood(self) -> Doubles:
        """Lower bound of the log-likelihood of each document, (n,)."""
        return self.model.marginal(self.topics.saved.theta)

    @cached_property
    def perplexity(self) -> float:
        """Perplexity of a word, by this bound."""
        return math.exp(min(-float(self.log_likelihood().sum()) / self.n_tokens, 700.0))

    @cached_property
    def completed(self) -> float | None:
        """Perplexity of half of the words of each document, given the other, if there are any."""
        each, words = self.model.completion(self.topics.saved.theta)
        if not words.any():
            return None
        return math.exp(min(-float(each.sum() / words.sum()), 700.0))

    def describe(self) -> Report:
        """Report how well the topics describe the documents."""
        names, each = self.model.individuals.names, self.log_likelihood()
        return {
            "n_individuals": self.model.n,
            "n_tokens": self.n_tokens,
            "n_unknown": self.n_unknown,
            "n_left_out": self.n_left_out,
            "log_likelihood": {"lower_bound": each.sum()},
            "perplexity": self.perplexity,
            "perplexity_of_completion": self.completed,
            "individuals": rows_of({"id": names, "log_likelihood": each}),
        }
