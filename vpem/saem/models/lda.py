"""Latent Dirichlet allocation: documents are of topics, and topics of words."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vpem._core.threads import thread_count
from vpem._core.topics import bound_of_topics, density_of_topics, means_of_topics, sweep_topics
from vpem.checks import Doubles, Indices, check_int, check_memory, check_number
from vpem.errors import InputError
from vpem.saem.individuals import Individuals, Keys, Streams
from vpem.saem.models.model import LEAST_UNIT, Counts, SaemModel

SWEEPS, CLOSE = 200, 1e-3
"""Of the bound: most iterations, and the largest change of a topic's words at which they end."""

UNLIKE = 0.3
"""How unlike the proportions are that a fit begins with: more of it ends in worse topics."""

MOST_COUNT = 10_000_000
"""Of a word in a document: a topic is drawn for each."""

AT_ONCE = 1 << 20
"""Numbers that are held at a time where words are predicted."""


@dataclass(frozen=True, eq=False, repr=False)
class TopicNames(Sequence[str]):
    """Names of the probabilities of words in topics, (K V,), each made when it is needed.

    Without a vocabulary words are numbers.
    """

    n_topics: int
    n_words: int
    words: Sequence[str] | None = None

    def __len__(self) -> int:
        return self.n_topics * self.n_words

    def __getitem__(self, place: int | slice) -> Any:  # a name, or a list of some
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        k, v = divmod(range(len(self))[place], self.n_words)
        return f"topic {k} {v if self.words is None else self.words[v]}"


class LdaModel(SaemModel):
    """Topics of documents (Blei, Ng and Jordan 2003).

    A document's proportions ``theta`` of the topics are Dirichlet (alpha, ..., alpha); each of its
    words has a topic, drawn by these, and is drawn by the topic's probabilities ``phi_k``, which
    are the parameters. Latents z are any numbers: ``theta_k = exp(z_k) / sum_j exp(z_j)``, and the
    mean of z, which says nothing, is standard normal. The density is smooth in them, and its
    gradient no larger than the number of words.

    The statistic is the expected number of words v of topic k in a document, given its proportions
    and the topics of the moment (`expand_about`), K x V: it is taken of devices, never of a
    document.

    ``eta`` is added to each number of words before topics are made of them. ``seed`` draws the
    proportions that a fit begins with, which depend on the names of documents, but not on how these
    are split.
    """

    wide = True

    def __init__(
        self,
        individuals: Individuals,
        n_topics: int = 10,
        alpha: float | None = None,  # None: 1 / K
        eta: float | None = None,  # None: 1 / K
        n_words: int | None = None,  # V; None: of the vocabulary, or the largest number and one
        seed: int = 0,
    ) -> None:
        self.individuals = individuals
        K = self.n_topics = check_int("n_topics", n_topics, least=1, most=10_000)
        self.alpha = check_number("alpha", 1 / K if alpha is None else alpha, least=1e-4, most=1e6)
        self.eta = check_number("eta", 1 / K if eta is None else eta, least=1e-9, most=1e6)
        self.seed = check_int("seed", seed, least=0, most=2**64 - 1)
        data = self.individuals
        for what, values in (("word (time)", data.times), ("count (value)", data.values)):
            wrong = ~((values >= 0) & (values == np.rint(values)) & (values < 2**53))
            if wrong.any():
                row = int(wrong.argmax())
                raise InputError(
                    f"{data.source}: document {data.names[data.individual_of[row]]!r} has the "
                    f"{what} {values[row]:g}; words are numbers from 0, and counts how often they "
                    "come; give a corpus to the model lda"
                )
        most = int(data.values.argmax()) if data.n_rows else 0
        if data.n_rows and data.values[most] > MOST_COUNT:
            raise InputError(
                f"{data.source}: a word comes {data.values[most]:.0f} times in document "
                f"{data.names[data.individual_of[most]]!r}, more than {MOST_COUNT}, and a topic is "
                "drawn for each; count in larger units, or split the document"
            )
        last = float(data.largest(np.array([data.times.max(initial=-1.0)]))[0])
        if n_words is None:
            n_words = int(last) + 1 if data.words is None else len(data.words)
        else:
            check_int("n_words", n_words, least=1, most=2**31 - 1)
            if last >= n_words:
                raise InputError(
                    f"{data.source} has the word {last:g}, but the vocabulary of the topics has "
                    f"{n_words} words, numbered from 0; give documents of these words"
                )
        V = self.n_words = n_words
        check_memory(4 * 8 * K * V, f"{K} topics of {V} words")
        self._first = np.ascontiguousarray(individuals.first, dtype=np.intp)
        self._words = individuals.times.astype(np.intp)
        self._counts = np.ascontiguousarray(individuals.values, dtype=np.float64)
        self._topics: Doubles | None = None
        self.latents = tuple(f"topic {k}" for k in range(K))
        self.parameters = TopicNames(K, V, individuals.words)
        self.pieces = (slice(0, K * V),)
        self.found = {"n_words": V}

    def take_individuals(self, which: Indices) -> LdaModel:
        some = copy(self)
        some.__dict__.pop("_by_word", None)
        some.individuals = self.individuals.take(which)
        some._first = np.ascontiguousarray(some.individuals.first, dtype=np.intp)
        some._words = some.individuals.times.astype(np.intp)
        some._counts = np.ascontiguousarray(some.individuals.values, dtype=np.float64)
        return some

    def expand_about(self, theta: Doubles) -> LdaModel:
        """Return the model whose statistics are expected under topics theta (p,)."""
        model = copy(self)
        model._topics = self.topics(theta)
        return model

    def topics(self, theta: Doubles) -> Doubles:
        """Probabilities of words by topics, (V, K)."""
        return np.ascontiguousarray(theta.reshape(self.n_topics, self.n_words).T, dtype=np.float64)

    @cached_property
    def _by_word(self) -> tuple[Indices, Indices, Doubles]:
        """Rows word by word: where each word begins (V + 1,), documents and counts (N,)."""
        order = np.argsort(self._words, kind="stable")
        sizes = np.bincount(self._words, minlength=self.n_words)
        first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)
        return first, self.individuals.individual_of[order].astype(np.intp), self._counts[order]

    # ---- statistics ----------------------------------------------------------------------------

    def start(self) -> tuple[Doubles, Doubles]:
        """Topics of words at proportions that are drawn for each document by its name."""
        data = self.individuals
        streams = Streams.from_names(data.names, self.seed)
        uniforms = streams.derive_stream(0, 0).uniforms(1, self.n_topics)
        z = UNLIKE * np.log(-np.log(uniforms))
        alike = np.ones((self.n_words, self.n_topics))
        return self.maximize(data.add(self._totals(z, alike)), self.counts), z[0]

    def _totals(
        self, z: Doubles, topics: Doubles | None, groups: Sequence[Indices] | None = None
    ) -> Doubles:
        """Total statistic of groups of documents, by weights, (m, P).

        None: all of this process, those of each device where sums are masked.
        """
        assert topics is not None, "statistics of topics are those of the model about some"
        if groups is None:
            groups = [np.arange(self.n)[part] for part in self.individuals.parts]
        weights = self.individuals.weights
        out = np.zeros((len(groups), self.n_topics, self.n_words))
        group = np.full(self.n, -1, dtype=np.intp)
        for place, rows in enumerate(groups):
            group[rows] = place
        means_of_topics(
            *self._by_word, topics, np.ascontiguousarray(self.shown(z)), group,
            np.ones(self.n) if weights is None else weights, out, thread_count(None),
        )  # fmt: skip
        return out.reshape(len(groups), self.size)

    def means(self, z: Doubles, groups: Sequence[Indices]) -> Doubles:
        totals = self._totals(z, self._topics, groups)
        weights = self.individuals.weights
        for total, rows in zip(totals, groups, strict=True):
            total /= len(rows) if weights is None else weights[rows].sum()
        return totals

    def units(self, z: Doubles) -> Doubles:
        """Roots of the mean statistic, for numbers of words vary as counts do, (P,)."""
        data = self.individuals
        total: Doubles = data.add(self._totals(z, self._topics))
        roots = np.sqrt(np.maximum(total, 0.0) / data.everyone[0])
        least = LEAST_UNIT * float(roots.max(initial=0.0))
        return np.maximum(roots, least) if least > 0 else np.ones(self.size)

    def statistics(self, z: Doubles) -> Doubles:
        """Not of each document: they would be n x K x V numbers."""
        raise InputError("statistics of topics are those of devices, not of each document")

    def maximize(self, total: Doubles, counts: Counts) -> Doubles:
        """Shares of the words of each topic, (K, V), each with eta more; none below zero."""
        topics = np.maximum(total.reshape(self.n_topics, self.n_words), 0.0) + self.eta
        topics /= topics.sum(axis=1, keepdims=True)
        return topics.ravel()

    def log_density(self, total: Doubles, counts: Counts, theta: Doubles) -> float:
        """Log-likelihood of the words of topics, whose proportions do not depend on parameters."""
        return float(total @ np.log(theta))

    def followed(self, theta: Doubles) -> Doubles:
        """Over how many words each topic is spread: the perplexity of its law, (K,)."""
        phi = theta.reshape(self.n_topics, self.n_words)
        perplexities: Doubles = np.exp(-(phi * np.log(phi)).sum(axis=1))
        return perplexities

    # ---- documents -----------------------------------------------------------------------------

    def shown(self, z: Doubles) -> Doubles:
        """Proportions (..., K) of topics."""
        from scipy.special import softmax  # takes long to load

        return np.asarray(softmax(z, axis=-1), np.float64)

    def sweep(self, theta: Doubles, z: Doubles, keys: Keys, n_threads: int) -> None:
        """Draw topics of words, and proportions given these, in place."""
        sweep_topics(
            self._first,
            self._words,
            self._counts,
            self.topics(theta),
            self.alpha,
            keys,
            z,
            n_threads,
        )

    def _density(self, z: Doubles, theta: Doubles) -> tuple[Doubles, Doubles]:
        value, slope = np.empty(z.shape[:2]), np.empty(z.shape)
        density_of_topics(
            self._first, self._words, self._counts, self.topics(theta), self.alpha,
            np.ascontiguousarray(z), value, slope, thread_count(None),
        )  # fmt: skip
        return value, slope

    def log_complete(self, z: Doubles, theta: Doubles) -> Doubles:
        """Logarithm of the density of words and latents, topics of words summed over."""
        return self._density(z, theta)[0]

    def gradient(self, z: Doubles, theta: Doubles) -> Doubles:
        return self._density(z, theta)[1]

    def steepest(self) -> Doubles:
        """Curvature of a topic that has half of a document's words, (n,).

        Topics that it lacks have next to none, but in units of that steps would lead out of those
        that it has.
        """
        bounds: Doubles = (self.individuals.sums(self._counts) + self.n_topics * self.alpha) / 4
        return bounds

    def bound(self, theta: Doubles, counts: Doubles | None = None) -> tuple[Doubles, Doubles]:
        """Return a lower bound of the log-likelihood of each document (n,), and gamma (n, K).

        Dirichlet (gamma) is the law of its proportions with which the bound is the largest, words
        and proportions taken as independent. Words may come with other ``counts`` (N,).
        """
        counts = self._counts if counts is None else counts
        gamma, value = np.empty((self.n, self.n_topics)), np.empty(self.n)
        bound_of_topics(
            self._first, self._words, counts, self.topics(theta), self.alpha, SWEEPS, CLOSE, gamma,
            value, thread_count(None),
        )  # fmt: skip
        return value, gamma

    def marginal(self, theta: Doubles) -> Doubles:
        """Lower bound of the log-likelihood of each document, (n,), see `bound`."""
        return self.bound(theta)[0]

    def perplexity(self, theta: Doubles) -> float:
        """Perplexity of a word, by the bound: no less than it is."""
        data = self.individuals
        words = data.total(data.sums(self._counts))
        return float(np.exp(-data.total(self.marginal(theta)) / words))

    def completion(self, theta: Doubles, seed: int = 0) -> tuple[Doubles, Doubles]:
        """Log-likelihood of one half of each document given the other (n,), and its words (n,).

        Each word is in either half by chance, of its document's own. The first half gives the
        proportions, as means of the law of `bound`; the words of the second are taken as drawn
        from the topics with these.
        """
        data, topics = self.individuals, self.topics(theta)
        tokens = self._counts.astype(np.intp)
        lengths = data.sums(self._counts).astype(np.intp)
        coins = Streams.from_names(data.names, seed).derive_stream(0, 1).coins(lengths)
        row = np.repeat(np.arange(len(tokens)), tokens)
        first = np.bincount(row, coins, len(tokens)).astype(np.float64)
        left = self._counts - first
        gamma = self.bound(theta, first)[1]
        shares = gamma / gamma.sum(axis=1, keepdims=True)
        whose, each = data.individual_of, np.zeros(data.n_rows)
        size = max(1, AT_ONCE // self.n_topics)
        for begin in range(0, data.n_rows, size):
            some = slice(begin, begin + size)
            odds = (shares[whose[some]] * topics[self._words[some]]).sum(axis=1)
            each[some] = left[some] * np.log(odds)
        return data.sums(each), data.sums(left)
