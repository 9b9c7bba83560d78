"""Topics of a corpus: what a fit of latent Dirichlet allocation says, as a file keeps it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_int
from vpem.errors import InputError, did_you_mean
from vpem.files.models import current_versions
from vpem.network.holdings import Workers
from vpem.network.schema import Report
from vpem.saem.conditional import Conditional, sample_conditional
from vpem.saem.corpus import in_words
from vpem.saem.gibbs import Gibbs
from vpem.saem.individuals import Individuals
from vpem.saem.models.lda import LdaModel
from vpem.saem.models.model import Vector
from vpem.saem.results import SaemFit
from vpem.saem.streams import Streams
from vpem.shown import Shown

__all__ = ["TOP", "Heard", "Topics", "coherence_of", "top_words", "topics_of"]

TOP = 10
"""Words of a topic that speak for it."""

BURN_IN, DRAWS = 50, 200
"""Of the proportions of a document that topics are held against."""


@dataclass(frozen=True)
class Topics(
    Shown,
    facts="{n_topics:topic}, {n_words:word}, {converged:converged|not converged} after "
    "{n_iter:iteration}",
):
    """Topics of a corpus, without its documents' words.

    Attributes
    ----------
    words : tuple of str
        The vocabulary, (V,).
    topics : ndarray of shape (K, V)
        Probabilities of the words in each topic.
    shares : ndarray of shape (K,)
        What share of the corpus' words is of each topic.
    coherence : ndarray of shape (K,)
        How often its first words come in the same documents, see `coherence_of`.
    names : tuple of str
        Of the documents, (n,); none where they stayed on their devices.
    proportions, lower, upper : ndarray of shape (n, K)
        Of the topics in each document: means, and ends of intervals.
    level : float
        Probability of an interval.
    each : ndarray of shape (n,)
        Lower bound of each document's log-likelihood.
    log_likelihood : float
        The same of all documents.
    n_tokens : float
        How many words all documents have.
    device_names : tuple of str
        Of the devices, (D,).
    device_shares : ndarray of shape (D, K)
        Share of each topic in the words of each device; (0, K) where sums were masked.
    trace : ndarray of shape (n_iter + 1, K)
        Over how many words each topic is spread, by iteration, the start first.
    bytes : ndarray of shape (n_iter,)
        Payload bytes sent until each iteration.
    n_iter, converged, change, grounds
        As in `vpem.saem.saved.SavedSaem`.
    model_options, settings, communication, versions : dict
        As there.
    """

    words: tuple[str, ...]
    topics: Vector
    shares: Vector
    coherence: Vector
    names: tuple[str, ...]
    proportions: Vector
    lower: Vector
    upper: Vector
    level: float
    each: Vector
    log_likelihood: float
    n_tokens: float
    device_names: tuple[str, ...]
    device_shares: Vector
    trace: Vector
    bytes: NDArray[np.int64]
    n_iter: int
    converged: bool
    change: float
    grounds: str = ""
    model_options: Report = field(default_factory=dict)
    settings: Report = field(default_factory=dict)
    communication: Report = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def n_topics(self) -> int:
        """Number of topics, K."""
        return len(self.topics)

    @property
    def n_words(self) -> int:
        """Size of the vocabulary, V."""
        return len(self.words)

    @property
    def perplexity(self) -> float:
        """Perplexity of a word of the corpus, by the bound."""
        return math.exp(min(-self.log_likelihood / self.n_tokens, 700.0))

    @property
    def order(self) -> NDArray[np.intp]:
        """Topics, the largest first."""
        return np.argsort(-self.shares, kind="stable")

    def top(self, count: int = TOP) -> list[list[tuple[str, float]]]:
        """Most probable words of each topic, with their probabilities."""
        places = top_words(self.topics, count)
        return [
            [(self.words[v], float(own[v])) for v in some]
            for own, some in zip(self.topics, places.tolist(), strict=True)
        ]

    def documents(self, names: Sequence[str] | None = None) -> NDArray[np.intp]:
        """Return the numbers of documents of these names, or of all.

        Raises
        ------
        InputError
            If there is none of a name, or the fit holds nothing of documents.
        """
        if not self.names:
            raise InputError(
                "the fit holds nothing of documents, which stayed on their devices; give them"
            )
        where = {name: place for place, name in enumerate(self.names)}
        for name in names or ():
            if name not in where:
                raise InputError(
                    f"the fit has no document {name!r}{did_you_mean(name, self.names)}; give it"
                )
        wanted = self.names if names is None else names
        return np.array([where[name] for name in wanted], dtype=np.intp)

    def hear(self, corpus: Individuals) -> Heard:
        """Hold the topics against documents, whose words may be others.

        Raises
        ------
        InputError
            If no document has a word of the vocabulary.
        """
        known, n_unknown = in_words(corpus, self.words)
        alpha, eta = (self.model_options.get(name) for name in ("alpha", "eta"))
        model = LdaModel(known, self.n_topics, alpha, eta, self.n_words)
        return Heard(self, model, n_unknown, corpus.n_individuals - known.n_individuals)


@dataclass(frozen=True)
class Heard:
    """Documents that topics are held against.

    Attributes
    ----------
    topics : Topics
        The topics.
    model : LdaModel
        Of the documents that have words of theirs.
    n_unknown : float
        How often words come that the topics do not know.
    n_left_out : int
        Documents of which no word is known.
    """

    topics: Topics
    model: LdaModel
    n_unknown: float
    n_left_out: int

    @property
    def n_tokens(self) -> float:
        """How many words are known."""
        return float(self.model.individuals.values.sum())

    @property
    def _theta(self) -> Vector:
        found: Vector = self.topics.topics.ravel()
        return found

    def proportions(self, seed: int = 0) -> Conditional:
        """Draw proportions of the topics of each document, given its words."""
        model, theta, sampler = self.model, self._theta, Gibbs()
        streams = Streams.of(model.individuals.names, seed)
        chains = sampler.begin(model, theta, np.zeros((model.n, self.topics.n_topics)), 1)
        for k in range(BURN_IN):
            sampler.move(model, theta, chains, streams, k + 1, 0)
        return sample_conditional(
            model, theta, sampler, chains, streams, after=BURN_IN, late=1, n_iter=DRAWS,
            level=self.topics.level,
        )  # fmt: skip

    def log_likelihood(self) -> Vector:
        """Lower bound of the log-likelihood of each document, (n,)."""
        return self.model.marginal(self._theta)

    def completion(self, seed: int = 0) -> tuple[Vector, Vector]:
        """Log-likelihood of half of each document given the other, (n,), and words of that half."""
        return self.model.completion(self._theta, seed)


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


def topics_of(fit: SaemFit, told: SaemFit, held: Workers) -> Topics:
    """Return the topics that a fit of the model `lda` has found; in all processes, together.

    Parameters
    ----------
    fit : SaemFit
        The fit, as each process has it.
    told : SaemFit
        The same with the documents that are to be told of.
    held : Workers
        Which device holds which documents.

    Raises
    ------
    InputError
        If it is of another model.
    """
    model, given = fit.model, told.given
    if not isinstance(model, LdaModel):
        raise InputError(f"topics are those of the model lda, not of {fit.model_name}")
    corpus = model.individuals
    topics = fit.theta.reshape(model.n_topics, model.n_words)
    words = corpus.words or tuple(map(str, range(model.n_words)))
    lengths = corpus.sums(corpus.values) if corpus.n_individuals else np.zeros(0)
    n_tokens = float(corpus.total(lengths))
    of_topics = fit.given.means * lengths[:, None]
    options = {"alpha": model.alpha, "eta": model.eta}
    return Topics(
        words, topics, corpus.total(of_topics) / n_tokens, coherence_of(topics, corpus),
        told.people.names, given.means, given.lower, given.upper, given.level,
        told.log_likelihood.each, fit.log_likelihood.value, n_tokens,
        tuple(held.names), _by_device(corpus, of_topics, held), fit.trace, fit.bytes, fit.n_iter,
        fit.converged, fit.change, fit.grounds, {**fit.model_options, **options},
        {
            "data": corpus.source, "n_individuals": fit.people.n_individuals,
            "n_rows": fit.people.n_rows, **fit.settings, **fit.network,
        },
        fit.ledger.summary(), current_versions(),
    )  # fmt: skip


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
