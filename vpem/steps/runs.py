"""One run of EM: its parameters, its record, what a checkpoint keeps of both, and its recoveries.

Components that collapse are found, and put at rows by all agents alike (`Reinitialiser`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import Any

import numpy as np

from vpem.checks import Doubles, Mask
from vpem.errors import InputError, NumericalError, PartitionedError, Setting
from vpem.network.schema import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    Array,
    As,
    Choice,
    Integer,
    ListOf,
    Maybe,
    Number,
    Schema,
    State,
    record,
    restore,
    save,
)
from vpem.settings import FitSettings
from vpem.steps.restarts import Kept
from vpem.sums.sum import Sum
from vpem.terms.degenerate import degenerate
from vpem.terms.density import Density
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import (
    Factors,
    Mixture,
    covariance_shape,
    mixture_of_start,
    start_of_mixture,
)

MOST_RECOVERIES = 3
"""Times one component is re-initialised before it is given up with mixing weight zero."""

DRAWN = -1
"""Stands for the number of a row where sums are masked: no row is shown to others."""

REINITIALISED_BYTES = 12
"""Of the message that says which component was re-initialised, and at which row."""

MOST_PARTITIONED = 20
"""Iterations in a row in which the network is disconnected before the run is given up."""


@dataclass(frozen=True)
class Progress:
    """What a callback gets after every iteration: log-likelihood per sample, mean over roots."""

    iteration: int
    log_likelihood: float
    change: float | None

    def facts(self) -> list[str]:
        change = [] if self.change is None else [f"change {self.change:+.0e}"]
        known = [f"log-likelihood {self.log_likelihood:.6f}"] * (not isnan(self.log_likelihood))
        return [*known, *change]


Tracer = Callable[..., None]
"""Gets every iterate, in which nothing is computed for it: `vpem.files.traces.Trace.tracing`."""


def tracer(callback: object) -> Tracer | None:
    """Return a callback's method ``tracing``, if it has one."""
    trace: Tracer | None = getattr(callback, "tracing", None)
    return trace


def refuse_trace(callback: object) -> None:
    """Raise InputError for a trace of a fit with noise for privacy."""
    if tracer(callback) is not None:
        raise InputError(
            "a private fit keeps no trace: log-likelihoods and mean fields of single iterations "
            "are of rows, and no budget covers them; leave out the trace"
        )


@dataclass(frozen=True)
class Recovery:
    """A component that collapsed and was re-initialised, or given up (without a row)."""

    iteration: int  # counted from 1; 0 is the start
    component: int
    hub: int | None  # whose root found it; None under masks, so that no agent learns which
    reason: str  # "weight" or "covariance"
    row: int | None  # where its mean was placed; `DRAWN`: at a point that is no row


@dataclass
class Run:
    """One run of EM.

    ``mixtures`` are the parameters after the last M-step; over rows those of every root. Total
    log-likelihoods (R,) are as each root finds them, a log-prior included in the history.
    """

    mixtures: list[Any]  # of Density
    over_rows: bool = False  # roots have parameters of their own
    history: list[Doubles] = field(default_factory=list)
    """Total log-likelihood (R,) in the E-step of each iteration, the first of the start; nan of an
    inactive root. Of batches there is an entry a pass."""
    bytes_sent: list[int] = field(default_factory=list)
    """Payload bytes since the fit began, when each entry of the history was known."""
    partitions: list[tuple[int, str]] = field(default_factory=list)
    """Iterations in which the network was disconnected, and how; parameters stayed."""
    lost: list[int] = field(default_factory=list)
    """Iterations whose sum found less than the last, at parameters that `vpem.steps.accelerate`
    then gave up; they have no entry in the history."""
    log_likelihood: Doubles = field(default_factory=lambda: np.empty(0))
    log_prior: Doubles = field(default_factory=lambda: np.empty(0))
    converged: bool = False  # all roots proposed to stop
    recoveries: list[Recovery] = field(default_factory=list)
    free_energy: list[float] = field(default_factory=list)
    """Of batches ``F = sum gamma (log g~ - log gamma)`` after the first pass and after every batch
    since; empty where sums are not exact or steps are stochastic."""
    n_passes: float = 0.0
    """Rows that batches worked on, in multiples of all, without the E-step at the end."""
    kept: str = "nothing"  # of every batch: "statistics", "responsibilities", or "nothing"
    last: Doubles | None = None
    """Log-likelihood per sample (R,) before the first iteration of a run that goes on."""
    degenerate: list[int] = field(default_factory=list)
    """Components that are so for any root (`vpem.terms.degenerate`)."""

    @property
    def mixture(self) -> Any:
        """Parameters of the first root."""
        return self.mixtures[0]

    @property
    def score(self) -> float:
        """What the best of several runs maximises: what EM raises, by the first root."""
        return float(self.log_likelihood[0] + self.log_prior[0])

    def end(self, roots: Sequence[FeatureTerms], total: Sum, log_likelihoods: Doubles) -> None:
        """Take the final log-likelihoods (R,) of the roots, priors included."""
        check_finite(log_likelihoods, len(self.history))
        both = zip(roots, self.mixtures, strict=True)
        priors = np.array([terms.log_prior(mixture) for terms, mixture in both])
        self.log_prior = (
            total.roots.join(priors) if self.over_rows else np.resize(priors, log_likelihoods.shape)
        )
        self.log_likelihood = log_likelihoods - self.log_prior

    def judge(self, terms: Any, total: Sum) -> None:
        """Find which components are degenerate for any root; all hear of those that are."""
        flags = np.any([degenerate(terms, one) for one in self.mixtures], axis=0)
        flags = total.holders.any(flags)
        if flags.any():
            total.agree("flooding", len(flags))
        self.degenerate = np.flatnonzero(flags).tolist()

    def record_iteration(
        self,
        terms: FeatureTerms,
        total: Sum,
        log_likelihoods: Doubles,
        settings: FitSettings,
        callback: Callable[[Progress], None] | None,
        agree_to_stop: Callable[[], None],
        small: bool | None = None,  # if that is known
    ) -> bool:
        """Record log-likelihoods (R,) of the roots; whether they changed by less than tol."""
        before = self.before(terms, log_likelihoods)
        if small is None:
            small = self.is_small(terms, log_likelihoods, settings.tol)
        self.history.append(log_likelihoods)
        self.bytes_sent.append(total.bytes_sent)
        agree_to_stop()
        if callback is not None:
            mean = mean_over_roots(log_likelihoods) / terms.total_weight
            moved = None
            if before is not None:
                moved = mean_over_roots((log_likelihoods - before) / terms.total_weight)
            callback(Progress(len(self.history), mean, moved))
        return small

    def is_small(
        self,
        terms: FeatureTerms,
        log_likelihoods: Doubles,
        tol: float,
        more: float = 0.0,
        recorded: int = 0,
    ) -> bool:
        """Whether log-likelihoods (R,) are within tol, or rounding, of the last ones.

        They may be within so many roundings ``more``, and be ``recorded`` (1) already.
        """
        before = self.before(terms, log_likelihoods, recorded)
        if before is None:
            return False
        weight, resolution = terms.total_weight, terms.resolution if tol > 0 else 0.0
        for now, last in zip(log_likelihoods.tolist(), before.tolist(), strict=True):
            rounding = resolution * abs(now) / weight
            # Never where one is infinite or unknown.
            if not abs(now - last) / weight < max(tol, rounding) + more * rounding:
                return False
        return True

    def before(
        self, terms: FeatureTerms, log_likelihoods: Doubles, recorded: int = 0
    ) -> Doubles | None:
        """Log-likelihoods (R,) that roots had found before; None in the first iteration of all."""
        history = self.history[: len(self.history) - recorded]
        if history or self.last is None:
            return history[-1] if history else None
        same = self.last.shape == log_likelihoods.shape
        last = self.last if same else np.full(log_likelihoods.shape, mean_over_roots(self.last))
        return last * terms.total_weight

    def check_heard(self) -> None:
        """Raise NumericalError if in no iteration anything was summed."""
        if not self.history and self.partitions:
            raise NumericalError(
                f"the network was disconnected in every iteration: {self.partitions[-1][1]}; try "
                "more rounds, or links and agents that fail less often"
            )


def kept_of_mixtures(
    terms: Any, total: Sum, n_components: int, floor_fits: str, *, over_rows: bool = False
) -> Kept[Run]:
    """Return what a checkpoint keeps of the restarts of a mixture's recipe.

    ``terms`` are summed, over rows those of all workers. ``floor_fits``: "keep", or runs with
    degenerate components are the best only where all have some ("last"). ``over_rows``: every root
    has parameters, and a sample covariance, of its own.
    """
    n_roots, like = total.n_roots, terms.blank(n_components)
    loop: dict[str, Schema] = {**saved_parameters(like, n_roots, over_rows)}
    known = saved_record(n_components, terms.n_samples, total.roots.n_agents, over=True)
    more: dict[str, Schema] = {}
    if over_rows:
        sample = covariance_shape(terms.blocks, terms.covariance_type, 1)
        more = {
            "shifts": Array("f8", (n_components, terms.blocks.n_features)),
            "covariances": ListOf(Array("f8", sample), n_roots),
        }

    def mixtures(state: State) -> list[Any]:
        saved = state["mixtures"] if over_rows else [state["mixture"]]
        return [like.having(one) for one in saved]

    return Kept(
        rows=Maybe(Array("i", (n_components,), 0, terms.n_samples - 1)),
        best=As(
            loop | {"record": known},
            lambda run: save(loop, run) | {"record": save(known, run)},
            lambda saved: restore(known, Run(mixtures(saved), over_rows), saved["record"]),
        ),
        loop=loop,
        more=more,
        rank=lambda run: (floor_fits == "keep" or not run.degenerate, run.score),
        parameters=mixtures,
        # Of the first root, in units of the data.
        start_of=lambda state: start_of_mixture(mixtures(state)[0]),
        begun_at=lambda start: mixture_of_start(start, like),
    )


def note_partition(
    partitions: list[tuple[int, str]],
    iteration: int,
    error: PartitionedError,
    unreliable: str = "links and agents",
) -> None:
    """Note that the network was disconnected; raise NumericalError if that goes on."""
    partitions.append((iteration, str(error)))
    recent = [number for number, _ in partitions[-MOST_PARTITIONED:]]
    if recent == list(range(iteration - MOST_PARTITIONED + 1, iteration + 1)):
        raise NumericalError(
            f"the network was disconnected in {MOST_PARTITIONED} iterations in a row, last in "
            f"iteration {iteration}: {error}; try more rounds, or {unreliable} that fail less often"
        ) from error


def mean_over_roots(values: Doubles) -> float:
    """Mean over the roots that took part; nan where none did."""
    heard = values[~np.isnan(values)]
    return float(heard.mean()) if len(heard) else float("nan")


def check_finite(log_likelihoods: Doubles, iteration: int) -> None:
    if not all(map(isfinite, log_likelihoods.tolist())):
        root = int(np.flatnonzero(~np.isfinite(log_likelihoods))[0])
        raise NumericalError(
            f"the log-likelihood of root {root} is {log_likelihoods[root]} at iteration "
            f"{iteration}: some rows lie too far from every component; try scaled features or a "
            "larger ",
            Setting("reg_covar"),
        )


def saved_parameters(like: Density, n_roots: int, over_rows: bool) -> dict[str, As]:
    """Schema of the mixtures of a run, which are saved apart from its record."""
    one = like.schema() if over_rows else like.schema(n_roots)
    if over_rows:
        mixture = As(one, lambda mixture: mixture.arrays(), like.having)
        return {"mixtures": As(ListOf(mixture, n_roots), at="mixtures")}
    first = As(one, lambda every: every[0].arrays(), lambda saved: [like.having(saved)], "mixtures")
    return {"mixture": first}


def saved_record(
    n_components: int, n_samples: int, n_roots: int, *, over: bool
) -> dict[str, Schema]:
    """Schema of the record of a run, which is ``over`` or goes on."""
    component = Integer(most=n_components - 1)
    reason, row = Choice(("weight", "covariance")), Maybe(Integer(DRAWN, n_samples - 1))
    return {
        "history": ListOf(Array("f8", (n_roots,), nan=True), "L", least=int(over)),
        "log_likelihood": Array("f8", (n_roots if over else 0,)),
        "log_prior": Array("f8", (n_roots if over else 0,)),
        "bytes_sent": ListOf(COUNT, "L"),
        "partitions": ListOf((COUNT, TEXT)),
        "lost": ListOf(COUNT),
        "converged": FLAG,
        "recoveries": ListOf(record(Recovery, (COUNT, component, Maybe(COUNT), reason, row))),
        "free_energy": ListOf(NUMBER),
        "n_passes": Number(0),
        "degenerate": ListOf(component),
    }


class Reinitialiser:
    """Finds components that collapsed and puts their means at rows that all agents draw alike.

    By ``total`` agents agree on what they found; ``draw_row`` is the next row of the stream shared
    by all. ``over_rows``: every root has a mixture of its own, of one hub.
    """

    def __init__(
        self,
        terms: FeatureTerms,
        total: Sum,
        draw_row: Callable[[], int],
        recoveries: list[Recovery],
        over_rows: bool = False,
    ) -> None:
        self.terms, self.total, self.draw_row = terms, total, draw_row
        self.recoveries = recoveries
        # Numbers in the network of the hubs, and of the roots, that are here.
        self.hubs: list[int] = [0] if over_rows else total.holders.own.tolist()
        self.roots: list[int] = [0] if over_rows else total.roots.own.tolist()
        self.least = least_weight(terms)
        self.counts: dict[int, int] = {}
        self.given_up: dict[int, Doubles] = {}

    def start(
        self, roots: Sequence[FeatureTerms], mixtures: Sequence[Mixture]
    ) -> tuple[list[Mixture], list[Factors], bool]:
        """Return starting parameters with singular components re-initialised; see `check`."""
        enough = [np.full((1, mixtures[0].n_components), np.inf)] * len(mixtures)
        return self.check(roots, mixtures, enough, 0)

    def check(
        self,
        roots: Sequence[FeatureTerms],
        mixtures: Sequence[Mixture],
        counts: Sequence[Doubles],
        iteration: int,
    ) -> tuple[list[Mixture], list[Factors], bool]:
        """Re-initialise collapsed components, of several mixtures alike: what one finds, all do.

        ``counts`` (R, K) are effective samples of the components of each mixture after an M-step;
        iteration 0 is the start. Returned are mixtures, ``prepare`` of each, and whether any was
        re-initialised.
        """
        mixtures, factors = self.prepared(roots, mixtures)
        collapsed = self._collapsed(factors, counts)
        if not collapsed:
            return mixtures, factors, False
        for component, (hub, reason) in collapsed.items():
            if mixtures[0].is_tied and reason == "covariance":
                raise NumericalError(
                    f"the tied covariance of {_named(hub)} is not positive definite at iteration "
                    f"{iteration}; try a larger ",
                    Setting("reg_covar"),
                    ", or fewer components",
                )
            self.counts[component] = self.counts.get(component, 0) + 1
            row = self.draw_row()
            centre = self.terms.at_rows(np.array([row], dtype=np.intp))[0]
            give_up = self.counts[component] > MOST_RECOVERIES
            give_up |= reason == "weight" and self.terms.least_rows >= 1
            if give_up:
                # The model shows its mean, which therefore must be no row's.
                centre = self.terms.middle(mixtures[0])
                self.given_up[component] = centre
                if len(self.given_up) == mixtures[0].n_components:
                    noisy = mixtures[0].outliers == "noise"
                    raise NumericalError(
                        f"every component has collapsed by iteration {iteration}"
                        + noisy * ", so that all rows are noise; try another start,"
                        + (not noisy) * "; try",
                        " fewer components or a larger ",
                        Setting("reg_covar"),
                    )
            weight = 0.0 if give_up else 1.0 / mixtures[0].n_components
            mixtures = _placed(roots, mixtures, component, centre, weight)
            self.recoveries.append(
                Recovery(iteration, component, hub, reason, None if give_up else max(row, DRAWN))
            )
        factors = [terms.prepare(mixture) for terms, mixture in zip(roots, mixtures, strict=True)]
        # Components that were just re-initialised and are singular all the same.
        still: list[tuple[int, int | None]] = [
            (int(copy), self.hubs[hub])
            for root_factors in factors
            for copy, hub in np.argwhere(root_factors.failed)
        ]
        if self.total.holders.masks is None:
            still = sorted(self.total.holders.pool(still))
        elif self.total.holders.any([bool(still)])[0]:
            still = [(0, None)]
        if still:
            raise NumericalError(
                f"the sample covariance of {_named(still[0][1])} is not positive definite: its "
                "features are constant or linearly dependent; try a larger ",
                Setting("reg_covar"),
                ", or scaled features",
            )
        return mixtures, factors, True

    def prepared(
        self, roots: Sequence[FeatureTerms], mixtures: Sequence[Mixture]
    ) -> tuple[list[Mixture], list[Factors]]:
        """Return parameters of an M-step, without components given up, and `prepare` of each."""
        mixtures = list(mixtures)
        for component, centre in self.given_up.items():
            mixtures = _placed(roots, mixtures, component, centre, 0.0)
        pairs = zip(roots, mixtures, strict=True)
        return mixtures, [terms.prepare(mixture) for terms, mixture in pairs]

    def are_few(self, counts: Sequence[Doubles]) -> bool:
        """Whether a root here finds too few effective samples (R, K) of a component in use."""
        return any(np.count_nonzero(self._few(count)) for count in counts)

    def emptied(self, counts: Sequence[Doubles]) -> bool:
        """Whether any root finds too few effective samples (R, K) of a component in use."""
        return bool(self.total.holders.any([self.are_few(counts)])[0])

    def _few(self, count: Doubles) -> Mask:
        """Which components in use have too few effective samples (R, K).

        Of more than a row each it is the smallest alone: once that has gone others have its rows.
        """
        few: Mask = count < self.least
        if self.given_up:
            few[:, list(self.given_up)] = False
        if self.terms.least_rows >= 1 and count.shape[1] - len(self.given_up) == 1:
            few[:] = False  # the last one stays
        elif self.terms.least_rows >= 1:
            smallest = np.where(few, count, np.inf).argmin(axis=1)
            few &= np.arange(count.shape[1]) == smallest[:, None]
        return few

    def _collapsed(
        self, factors: Sequence[Factors], counts: Sequence[Doubles]
    ) -> dict[int, tuple[int | None, str]]:
        """Components that collapsed, each with the first hub that found it, and the reason."""
        if self.total.holders.masks is not None:
            failed = np.any([one.failed.any(axis=1) for one in factors], axis=0)
            few = np.any([self._few(count).any(axis=0) for count in counts], axis=0)
            flags = np.concatenate([np.broadcast_to(failed, few.shape), few])
            failed, few = np.split(self.total.holders.any(flags), 2)
            reasons = np.where(failed, "covariance", "weight")
            return {int(k): (None, str(reasons[k])) for k in np.flatnonzero(failed | few)}
        events: list[tuple[int, str, int]] = []
        for root_factors, count in zip(factors, counts, strict=True):
            few = self._few(count)
            if not np.count_nonzero(few) + np.count_nonzero(root_factors.failed):
                continue
            for copy, hub in zip(*root_factors.failed.nonzero(), strict=True):
                events.append((int(copy), "covariance", self.hubs[hub]))
            for root, component in zip(*few.nonzero(), strict=True):
                # An estimate that all share is looked at in one process.
                if root < len(self.roots):
                    events.append((int(component), "weight", self.roots[root]))
        collapsed: dict[int, tuple[int | None, str]] = {}
        for component, reason, hub in sorted(self.total.holders.pool(events)):
            collapsed.setdefault(component, (hub, reason))
        return collapsed


def least_weight(terms: FeatureTerms) -> float:
    """Effective samples below which a component has collapsed.

    A bound of less than a row shrinks where rows weigh less than 1 on average; one of more counts
    the heaviest rows, so that no row is more of a component than it may be. Components of known
    weights may have as few rows as they like.
    """
    if terms.held is not None and "weights" in terms.held:
        return 0.0
    weights = terms.row_weights
    if terms.least_rows >= 1 and weights is not None and len(weights):
        return terms.least_rows * float(weights.max())
    return terms.least_rows * min(1.0, terms.total_weight / terms.n_samples)


def _named(hub: int | None) -> str:
    """Name a hub in a sentence, unless it must not be said which."""
    return "a hub" if hub is None else f"hub {hub}"


def _placed(
    roots: Sequence[FeatureTerms],
    mixtures: Sequence[Mixture],
    component: int,
    centre: Doubles,
    weight: float,
) -> list[Mixture]:
    return [
        terms.reseeded(mixture, component, centre, weight)
        for terms, mixture in zip(roots, mixtures, strict=True)
    ]
