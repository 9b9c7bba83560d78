"""Fits of SAEM: as they are made, as a file keeps them, without the rows, and their topics.

What they say of individuals stays in the process of these, or is brought together from all; of a
corpus they say how large its topics are, and which words come together.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Indices, check_int
from vpem.engines.engine import set_topic
from vpem.engines.placement import Placement
from vpem.errors import InputError, did_you_mean, warn
from vpem.files.hdf5 import SAEM_FIT
from vpem.files.models import current_versions
from vpem.network.ledger import Ledger
from vpem.network.partition import Workers
from vpem.network.schema import Report
from vpem.records import Shown
from vpem.saem.conditional import Certainty, Conditional, LogLikelihood
from vpem.saem.doses import Doses
from vpem.saem.individuals import Individuals, in_words
from vpem.saem.models.model import INCOMPLETE, MODELS, SaemModel, model_class

FEWEST = 0.01
"""Share of importance draws that weighted ones are worth, below which chains are doubted."""

OF_GIVEN = ("means", "covariances", "lower", "upper")
CERTAIN = ("covariance", "freedom", "test_errors")
OF_FIT = (
    "names", "covariates", "time_range", "doses", "model_options", "theta", "standard_errors",
    "information", "log_likelihood", "acceptance", "trace", "bytes", "n_iter", "converged",
    "change", "grounds", "corpus",
)  # fmt: skip


def individuals_of(model: SaemModel, theta: Doubles) -> Report:
    """What a `SaemFit` says of the individuals of this process, and how many there are in all."""
    data = model.individuals
    ends = [-data.times.min(initial=np.inf), data.times.max(initial=-np.inf)]
    first, last = data.largest(np.array(ends)).tolist()
    found = {
        "names": data.names, "rows": data.counts, "covariates": data.constant_covariates(),
        "probabilities": model.responsibilities(theta), "time_range": (-first, last),
        "doses": data.doses,
    }  # fmt: skip
    return found | dict(zip(("n_individuals", "n_rows"), data.number, strict=True))


def collect(fit: SaemFit, workers: Workers, place: Placement) -> SaemFit:
    """Bring what a fit says of individuals together in the first process; others keep their own."""
    doses = fit.doses
    dosing = [] if doses is None else [doses.first, *doses.columns]
    local = _columns(fit)
    with set_topic(place.engine, "result"):
        parts = place.engine.gather([local, list(fit.names), dosing])
    if parts is None:
        return fit
    devices = np.argsort(place.ranks, kind="stable")
    order = np.argsort(np.concatenate([workers.rows[one] for one in devices]))
    names = [name for _, some, _ in parts for name in some]
    columns = {name: np.concatenate([part[0][name] for part in parts])[order] for name in local}
    each = [Doses(*part[2]) for part in parts if dosing]
    joined = Doses.chain(each).take_individuals(order) if dosing else None
    return _with(fit, tuple(names[one] for one in order), columns, joined)


def leave_out(fit: SaemFit) -> SaemFit:
    """Return a fit that says nothing of single individuals."""
    return _with(fit, (), {name: values[:0] for name, values in _columns(fit).items()})


def _columns(fit: SaemFit) -> Report:
    """All arrays (n, ...) that a fit has of individuals."""
    columns = {
        "rows": fit.rows,
        "probabilities": fit.probabilities,
        "acceptance": fit.acceptance,
        "each": fit.log_likelihood.each,
        "effective": fit.log_likelihood.effective,
        **{name: getattr(fit.given, name) for name in OF_GIVEN},
        **{f"covariate {name}": values for name, values in fit.covariates.items()},
    }
    return {name: values for name, values in columns.items() if values is not None}


def _with(
    fit: SaemFit, names: tuple[str, ...], columns: Report, doses: Doses | None = None
) -> SaemFit:
    likelihood = replace(fit.log_likelihood, each=columns["each"], effective=columns["effective"])
    return replace(
        fit,
        names=names,
        rows=columns["rows"],
        probabilities=columns.get("probabilities"),
        covariates={name: columns[f"covariate {name}"] for name in fit.covariates},
        doses=doses,
        given=replace(fit.given, **{name: columns[name] for name in OF_GIVEN}),
        log_likelihood=likelihood,
        acceptance=columns.get("acceptance"),
    )


@dataclass(frozen=True)
class CorpusFacts:
    """Of which topics a corpus is.

    ``device_shares`` are shares of each topic in the words of each device; (0, K) where sums were
    masked. ``perplexities`` are iterations at which it was seen, and what it was by the lower
    bound.
    """

    shares: Doubles  # (K,) of each topic in all words
    coherence: Doubles  # (K,), see `coherence_of`
    n_tokens: float  # words of all documents
    device_names: tuple[str, ...]  # (D,)
    device_shares: Doubles  # (D, K)
    perplexities: Doubles  # (m, 2)


class _Estimated:
    """What has estimates of parameters, (p,)."""

    encoding: ClassVar = SAEM_FIT
    parameters: Sequence[str]
    theta: Doubles
    standard_errors: Doubles

    @property
    def estimates(self) -> dict[str, float]:
        """Estimates by the names of the parameters."""
        return dict(zip(self.parameters, self.theta.tolist(), strict=True))

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors by the names of the parameters."""
        return dict(zip(self.parameters, self.standard_errors.tolist(), strict=True))


@dataclass(frozen=True)
class SaemFit(
    Shown, _Estimated, facts="{theta.size:parameter}, {converged:converged|not converged}"
):
    """A fitted model.

    Individuals, of which there are n here, are in several processes those of this one, see
    `collect`.
    """

    _in_notebooks = "vpem.pictures.public.in_html"

    model: SaemModel  # of all individuals
    parameters: Sequence[str]  # (p,) names
    theta: Doubles  # (p,) estimates
    standard_errors: Doubles  # (p,) NaN where the information is not positive definite
    information: Doubles  # (p, p) observed
    log_likelihood: LogLikelihood
    given: Conditional  # latents of each individual
    names: tuple[str, ...]  # (n,)
    rows: Indices  # (n,)
    covariates: dict[str, Doubles]  # (n,) constant within individuals
    probabilities: Doubles | None  # (n, K) of a mixture's components
    time_range: tuple[float, float]  # of all rows, of other processes too
    n_individuals: int  # in all processes
    n_rows: int  # in all processes
    doses: Doses | None
    acceptance: Doubles | None  # (n,) share of moves accepted after the burn-in; None: all are
    accepted: tuple[float, float, float] | None  # mean, least and most of it, of all individuals
    least_effective: float  # least of the draws that an individual's importance draws are worth
    trace: Doubles  # (n_iter + 1, p) parameters, the start first
    bytes: NDArray[np.int64]  # (n_iter,) of payload sent until each iteration
    n_iter: int
    converged: bool  # whether the parameters had settled, to ``tol``
    change: float  # at the last look, of the farthest, in its standard error; NaN: not looked at
    grounds: str  # a sentence on whether it converged; empty with ``tol`` 0
    ledger: Ledger
    model_name: str  # one of `MODELS`, or ``own``
    model_options: Report  # all of a model that is named, as JSON can hold them
    settings: Report  # likewise
    network: Report  # who was joined to whom, and how they summed
    corpus: CorpusFacts | None  # of the model ``lda``
    seconds: float  # wall time, with that of a run that it resumed
    certain: Certainty

    @property
    def people(self) -> SaemFit:
        """Former home of `names`, `rows`, `covariates`, `doses` and the like: the fit itself."""
        said = "people is the fit itself now: its fields are the fit's"
        warnings.warn(said, DeprecationWarning, stacklevel=2)
        return self

    @property
    def latents(self) -> Latents:
        """Latents of each individual."""
        given = self.given
        return Latents(
            self.names, tuple(self.model.latents), given.means, given.lower, given.upper,
            given.covariances, given.level,
        )  # fmt: skip

    @cached_property
    def saved(self) -> SavedSaem:
        """What a file would keep of the fit."""
        model, conditional = self.model, self.given
        q = len(model.latents)  # without values that are drawn with them
        gaps = self.model_name in INCOMPLETE and model.gaps
        facts = {"data": model.individuals.source, "n_individuals": self.n_individuals}
        saved: Report = {name: getattr(self, name) for name in OF_FIT}
        if not model.wide:
            saved |= {name: getattr(self.certain, name) for name in CERTAIN}
        return SavedSaem(
            model=self.model_name,
            model_class=f"{'Incomplete' * gaps}{type(model).__name__}",
            parameters=model.parameters if model.wide else tuple(model.parameters),
            latents=tuple(model.latents),
            discrete=model.discrete,
            means=conditional.means[:, :q],
            covariances=conditional.covariances[:, :q, :q],
            lower=conditional.lower[:, :q],
            upper=conditional.upper[:, :q],
            level=conditional.level,
            shrinkage=conditional.shrinkage[:q],
            n_draws=conditional.n_draws,
            settings={**facts, "n_rows": self.n_rows, **self.settings, **self.network},
            communication=self.ledger.summary(),
            versions=current_versions(),
            words=model.individuals.words or (),
            own_curve=str(self.model_options.get("curve") or ""),
            **saved,
        )

    def columns(self) -> Report:
        """Latents of individuals, or their classes, as columns of a table."""
        model, odds = self.model, self.probabilities
        columns: Report = {"id": np.array(self.names, dtype=np.str_)}
        if not model.wide:
            columns["rows"] = self.rows
        if odds is not None:
            columns["component"] = odds.argmax(axis=1)
            columns |= {f"proba_{k}": one for k, one in enumerate(odds.T)}
        elif not model.discrete:
            columns |= self.latents.columns()
        columns["log-likelihood"] = self.log_likelihood.each
        if self.acceptance is not None and not model.wide:
            columns["acceptance"] = self.acceptance
        return columns


def rows_of(columns: Mapping[str, object]) -> list[Report]:
    """Return a dict for each individual, of what each column says of it."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)]


@dataclass(frozen=True)
class Latents:
    """Latents given the rows."""

    kind: ClassVar = "vpem-saem-individuals"

    names: tuple[str, ...]  # (n,) of the individuals
    latents: tuple[str, ...]  # (q,) names
    means: Doubles  # (n, q), or more, which have no name
    lower: Doubles  # likewise, end of an interval
    upper: Doubles
    covariances: Doubles  # (n, q, q); wide: (n, 0, 0)
    level: float  # probability of an interval

    def columns(self) -> Report:
        """Mean, sd and interval of each latent, a row an individual; no sd of wide models."""
        parts = {"": self.means, " lower": self.lower, " upper": self.upper}
        if self.covariances.shape[1]:
            variances = np.einsum("nii->ni", self.covariances)
            parts = {"": self.means, " sd": np.sqrt(np.maximum(variances, 0.0)), **parts}
        named = enumerate(self.latents)
        columns = {f"{name}{end}": part[:, j] for j, name in named for end, part in parts.items()}
        return {"id": np.array(self.names, np.str_), **columns}

    def by_name(self) -> list[Report]:
        """Mean, sd and interval of each latent, by individual and name."""
        ends = {"mean": "", "sd": " sd", "lower": " lower", "upper": " upper"}
        return [
            {name: {what: row[name + end] for what, end in ends.items()} for name in self.latents}
            for row in rows_of(self.columns())
        ]

    def describe(self) -> Report:
        """As JSON: by name, or where there are many as arrays."""
        columns: Report = {"id": self.names}
        if self.covariances.shape[1]:
            columns["latents"] = self.by_name()
        else:
            columns |= {"proportions": self.means, "lower": self.lower, "upper": self.upper}
        return {"level": self.level, "individuals": rows_of(columns)}


@dataclass(frozen=True)
class Classes:
    """Classes of individuals given the rows, and with ``proba`` the probability of each."""

    kind: ClassVar = "vpem-predictions"

    names: tuple[str, ...]  # (n,) of the individuals
    shares: Doubles  # (n, K)
    proba: bool = False

    def columns(self) -> Report:
        columns: Report = {"id": np.array(self.names, np.str_), "label": self.shares.argmax(axis=1)}
        more = enumerate(self.shares.T) if self.proba else ()
        return columns | {f"proba_{k}": column for k, column in more}

    def describe(self) -> Report:
        labels = self.shares.argmax(axis=1)
        counts = np.bincount(labels, minlength=self.shares.shape[1])
        proba = {"proba": self.shares} if self.proba else {}
        return {"counts": counts, "labels": labels, **proba}


def warn_of_few(likelihood: LogLikelihood, names: Sequence[str], n_draws: int) -> None:
    """Warn where the draws of latents cannot be those of their law: chains that hardly move."""
    if not len(names):
        return
    who = int(np.argmin(likelihood.effective))
    if likelihood.effective[who] < FEWEST * n_draws:
        warn(
            f"the {n_draws} importance draws of individual {names[who]!r} are worth "
            f"{likelihood.effective[who]:.1f}: its chains have not seen all of the latents' law, "
            "and estimates may be off; take the sampler exact where the model has it, centre "
            "times, or make more sampling steps"
        )


def spread_of(individuals: Individuals, rates: Doubles) -> tuple[float, float, float]:
    """Mean, least and most of a number of each individual."""
    low, high = individuals.largest(
        np.array([-rates.min(initial=np.inf), rates.max(initial=-np.inf)])
    ).tolist()
    return float(individuals.mean(rates)), -low, high


@dataclass(frozen=True)
class SavedSaem(
    Shown,
    _Estimated,
    facts="{model}, {theta.size:parameter}, {converged:converged|not converged} after "
    "{n_iter:iteration}",
):
    """A fit as a file keeps it: all that `SaemFit` and its `Conditional` say, without the rows.

    ``own_curve`` is the curve of the user's own, ``FILE.py:NAME``, that may be run: what the user
    named now. A file that is read says nothing of it, and so runs nothing.
    """

    _in_notebooks = "vpem.pictures.public.in_html"

    model: str  # one of `vpem.saem.models.model.MODELS`, or ``own`` for a user's own
    model_class: str
    model_options: Report  # what it is made with, besides individuals
    parameters: Sequence[str]  # (p,) names
    latents: tuple[str, ...]  # (q,) names
    discrete: bool  # whether latents are numbers of classes
    theta: Doubles  # (p,)
    standard_errors: Doubles  # (p,) NaN: unknown
    information: Doubles  # (p, p); wide: (0, 0)
    log_likelihood: LogLikelihood
    names: tuple[str, ...]  # (n,)
    means: Doubles  # (n, q)
    covariances: Doubles  # (n, q, q); wide: (n, 0, 0)
    lower: Doubles  # (n, q)
    upper: Doubles  # (n, q)
    level: float
    shrinkage: Doubles  # (q,)
    n_draws: int
    acceptance: Doubles | None  # (n,)
    trace: Doubles  # (n_iter + 1, p)
    bytes: NDArray[np.int64]  # (n_iter,)
    n_iter: int
    converged: bool
    change: float  # without ``grounds``, from an older vpem, a relative one
    covariates: dict[str, Doubles]  # (n,) those that are constant within all; NaN: missing
    time_range: tuple[float, float]
    settings: Report = field(default_factory=dict)
    communication: Report = field(default_factory=dict)  # `vpem.network.ledger.Ledger.summary`
    versions: dict[str, str] = field(default_factory=dict)
    grounds: str = ""
    words: tuple[str, ...] = ()  # (V,) vocabulary of a corpus whose words have names
    corpus: CorpusFacts | None = None
    doses: Doses | None = None
    own_curve: str = ""
    # As `vpem.saem.conditional.Certainty` has them; None of wide models, and of older vpem.
    covariance: Doubles | None = None
    freedom: Doubles | None = None
    test_errors: Doubles | None = None

    @property
    def saved(self) -> SavedSaem:
        """The fit itself."""
        return self

    @property
    def wide(self) -> bool:
        """Whether the model is a wide one of vpem (`SaemModel.wide`)."""
        return self.model in MODELS and bool(model_class(self.model).wide)

    @property
    def accepted(self) -> tuple[float, float, float] | None:
        """Mean, least and most of `acceptance`; None where all moves are, or it is not known."""
        rates = self.acceptance
        if rates is None or not len(rates):
            return None
        return float(rates.mean()), float(rates.min()), float(rates.max())

    @property
    def least_effective(self) -> float:
        """Least of the draws that an individual's importance draws are worth."""
        return float(np.min(self.log_likelihood.effective, initial=np.inf))

    @property
    def n_individuals(self) -> int:
        """How many there were, of whom `names` may be none where they stayed on their devices."""
        return len(self.names) or max(1, int(self.settings.get("n_individuals") or 1))

    def places(self, names: Sequence[str] | None = None) -> Indices:
        """Numbers of individuals of these names, or of all."""
        if not self.names:
            raise InputError(
                "the fit holds nothing of individuals, which stayed on their devices; give rows"
            )
        where = {name: place for place, name in enumerate(self.names)}
        for name in names or ():
            if name not in where:
                raise InputError(
                    f"the fit has no individual {name!r}{did_you_mean(name, self.names)}; give its "
                    "rows"
                )
        chosen = self.names if names is None else names
        return np.array([where[name] for name in chosen], dtype=np.intp)


TOP = 10
"""Words of a topic that speak for it."""


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
    if not saved.wide or not (saved.words or individuals.words):
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
