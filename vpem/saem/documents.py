"""What topics of a fit say of documents: those that they know words of, and their proportions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vpem.errors import InputError
from vpem.saem.conditional import Conditional, sample_conditional
from vpem.saem.corpus import in_words
from vpem.saem.gibbs import Gibbs
from vpem.saem.individuals import Individuals
from vpem.saem.models.catalogue import MODELS, model_class
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.streams import Streams

if TYPE_CHECKING:
    from vpem.saem.prediction import Predictor
    from vpem.saem.saved import SavedSaem


BURN_IN = 50
CHAINS = 10


def is_wide(saved: SavedSaem) -> bool:
    """Whether a fit is of a wide model (`SaemModel.wide`) of vpem."""
    return saved.model in MODELS and bool(model_class(saved.model).wide)


def in_words_of(saved: SavedSaem, found: Individuals) -> Individuals:
    """Return documents in the vocabulary of a fit; words that it has not are left out."""
    if saved.words and found.words is None:
        raise InputError(
            f"{found.source} has numbers for words, but the topics are of words with names; give "
            "documents with the words' names"
        )
    return in_words(found, saved.words)[0] if saved.words else found


def draw_latents(
    model: SaemModel, theta: Vector, n_draws: int, seed: int, level: float
) -> Conditional:
    """Draw latents of individuals given their rows by Gibbs sampling."""
    sampler, streams = Gibbs(), Streams.of(model.individuals.names, seed)
    chains = sampler.begin(model, theta, np.zeros((model.n, len(model.latents))), CHAINS)
    for now in range(BURN_IN):
        sampler.move(model, theta, chains, streams, now + 1, 0)
    return sample_conditional(
        model, theta, sampler, chains, streams,
        after=BURN_IN, late=1, n_iter=max(2, -(-n_draws // CHAINS)), level=level,
    )  # fmt: skip


@dataclass(frozen=True)
class Completion:
    """How well one half of each document tells the other, see `LdaModel.completion`."""

    each: Vector  # (n,) log-likelihood of the second half
    words: Vector  # (n,) in the second half

    @property
    def perplexity(self) -> float:
        """Perplexity of a word of a second half."""
        return float(np.exp(-self.each.sum() / self.words.sum()))


def completion(predictor: Predictor, documents: Individuals) -> Completion:
    """Tell how well the topics of a fit complete documents, halved by the predictor's seed."""
    if not is_wide(predictor.saved):
        raise InputError(
            f"the model {predictor.saved.model} has no topics by which documents are completed; "
            "ask for the log-likelihood"
        )
    model = predictor.model.of(in_words_of(predictor.saved, documents))
    each, words = model.completion(predictor.saved.theta, predictor.seed)
    if not words.any():
        raise InputError(
            f"{documents.source}: the halves of the documents to be completed have no words; give "
            "longer documents"
        )
    return Completion(each, words)
