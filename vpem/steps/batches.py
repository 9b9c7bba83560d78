"""EM in small batches: incremental, with every batch's statistics swapped, or stochastic.

Incremental EM (Neal and Hinton 1993): every batch's new statistics replace its old ones. Stochastic
EM (Cappe and Moulines 2009): statistics move towards those of each batch.

An iteration works on the rows of one batch, so that neither its cost nor what it sends depends on
how many rows there are. As `em.fit`, it knows terms and sum only by their protocols. Over rows
every worker visits some of its own, and sends sums over all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Floats, Indices, Mask, check_memory
from vpem.errors import PartitionedError, check_choice
from vpem.network.schema import COUNT, FLAG, NOTHING, NUMBER, Array, As, ListOf, Maybe, Schema
from vpem.settings import FitSettings
from vpem.steps.em import EStep, Loop, OverRows, add_messages, expect, log_likelihood, maximize
from vpem.steps.recovery import STREAM, Saver
from vpem.steps.runs import Progress, Recovery, Reinitialiser, Run, check_finite, note_partition
from vpem.sums.sum import Sum
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Factors, Mixture
from vpem.terms.statistics import Statistics, arrays_of, leaves, saved_like

RECORD_BYTES = 1 << 10
"""Memory of the objects around one batch's statistics."""

KEEPS = ("auto", "statistics", "responsibilities")
"""What incremental EM remembers of a batch."""

STEP_SIZE = 0.6
"""Exponent of the steps where none is given, as Cappe and Moulines advise."""


def fit_batches(
    terms: FeatureTerms,
    total: Sum,
    start: Mixture,
    settings: FitSettings,
    *,
    draw_row: Callable[[], int],
    rng: np.random.Generator,
    keep: str = "auto",
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
) -> Run:
    """Fit a mixture by EM in batches, from ``start`` or, from the same, on from a saved state.

    Every iteration runs the E-step on one batch (``batch_size`` neighbouring rows) and an M-step.
    With a batch of all rows it is `em.fit`, iteration by iteration. A pass takes all batches, in an
    order that the agents draw alike (``rng``) and keep, so that what is replaced is always what is
    oldest.

    Without a ``step_size`` EM is incremental: the batch's new statistics replace its old ones, and
    with exact sums the free energy never falls. With a number in (0.5, 1] it is stochastic and
    keeps nothing: statistics a unit weight move by ``S += rho (S_batch - S)``, ``rho_t =
    t^-step_size`` at the t-th batch. In the first pass the M-steps of incremental EM are stochastic
    ones: what was found under the first, poor parameters is soon forgotten. All agents take part in
    that pass; in it a hub takes no M-step from fewer rows than `FeatureTerms.enough` asks for: as
    many as would vary as much, were all batches worth the same. A hub that never had enough takes
    one at the end, from all rows.

    ``keep`` says what a root of incremental EM remembers of a batch, to take out when it comes
    again: its "statistics", or its "responsibilities", from which the statistics are formed again,
    at the cost of a second look at the rows; the same numbers up to rounding. "auto" takes what is
    smaller: ``K sum d_b^2`` numbers a batch, or ``R K`` numbers a row. Statistics allow the fused
    sweep, which never writes responsibilities down; and where missing values were expected by what
    others of the block were, they are kept in any case.

    Statistics stand about the means of their own E-step and are moved to a common shift (the means
    at the start of the pass) only where they are added, so that they lose no digits. As every batch
    is visited once a pass, the sum of what was new in the pass replaces the running total at its
    end: rounding does not add up over passes.

    Each root watches its log-likelihood over a pass, the sum of the batches' as it found them when
    it was last there; the network stops when it changed by less than ``tol`` (nats per sample) at
    all roots, each of which heard most of the batches, or after ``max_iter`` passes. ``draw_row``
    is the next row of the stream shared by all agents, for re-initialising collapsed components.
    After that the next pass of incremental EM is one E-step over all rows; stochastic EM goes on
    from the statistics that its parameters stand for. Raises NumericalError if a log-likelihood is
    not finite, or no component is left.
    """
    size = min(settings.batch_size or terms.n_samples, terms.n_samples)
    check_choice("keep", keep, KEEPS)
    edges = [*range(0, terms.n_samples, size), terms.n_samples]
    batches = [slice(begin, end) for begin, end in pairwise(edges)]
    kind = _Incremental if settings.step_size is None else _Stochastic
    step, run = EStep(terms, total), Run([start])
    passes = kind(step, run, settings, draw_row, callback, saver, rng, len(batches))
    passes.remember(batches, keep)
    passes.begin([start])
    passes.iterate()
    run.end([terms], total, passes.check())
    passes.end_trace()
    return run


class Passes(Loop):
    """Passes over batches, in an order that all agents draw alike."""

    def __init__(
        self,
        step: EStep,
        run: Run,
        settings: FitSettings,
        draw_row: Callable[[], int],
        callback: Callable[[Progress], None] | None,
        saver: Saver | None,
        rng: np.random.Generator,
        n_batches: int,
    ) -> None:
        super().__init__(step, run, settings, draw_row, None, callback, saver, by_passes=True)
        self.rng, self.n_batches = rng, n_batches
        self.order = np.arange(n_batches)
        self.full_pass = True
        """Whether the next pass is an E-step over all rows."""
        self.n_sums = 0

    def begin(self, starts: Sequence[Mixture]) -> None:
        saved = self.saver.saved
        self.full_pass = saved is None or saved.get("anew") is True
        super().begin(starts)
        if saved is None:
            self.order = self.rng.permutation(self.n_batches)

    def schema(self) -> dict[str, Schema]:
        return super().schema() | {
            "order": Array("i", (self.n_batches,), 0, self.n_batches - 1),
            "anew": As(FLAG, at="full_pass"),
            "stream": As(STREAM, at="rng.bit_generator.state"),
        }


class _FeaturePasses(Passes):
    restarts: bool
    """Whether an E-step over all rows follows a re-initialisation: statistics would undo it."""

    def remember(self, batches: list[slice], keep: str) -> None:
        """Make room for what is known of each batch, and for what ``keep`` says."""
        self.terms, self.total, self.batches = self.step.whole, self.step.total, batches
        self.total.turn_to(0, self.n_batches)
        self.log_likelihoods = np.zeros((self.n_batches, self.total.n_roots))
        self.heard = np.zeros(self.total.n_roots, dtype=np.intp)
        self.reinitialised = False
        exponent = self.settings.step_size
        self.step_size = STEP_SIZE if exponent is None else exponent
        """Of incremental EM in the first pass."""
        first = self.n_batches > 1 and self.saver.saved is None
        self._opening = self.step_size if first else None

    def schema(self) -> dict[str, Schema]:
        found = {"log_likelihoods": Array("f8", self.log_likelihoods.shape), "n_sums": COUNT}
        own = {"visits": As(found, at="."), "fitting": As(self.kept(), at=".")}
        return super().schema() | own

    def kept(self) -> dict[str, Schema]:
        """What is saved from one pass to the next."""
        raise NotImplementedError

    def first(self, step_size: float | None) -> bool:
        """Visit all rows; whether the pass got to its end."""
        raise NotImplementedError

    def later(self) -> bool:
        """One pass, batch by batch; whether it got to the end."""
        raise NotImplementedError

    def advance(self) -> bool:
        self.heard[:] = 0
        self.reinitialised = False
        if self.run.history and not self.restarts:
            self.order = self.rng.permutation(self.n_batches)
        complete = self.first(self._opening) if self.full_pass else self.later()
        self._opening = None
        self.full_pass = self.reinitialised and (self.restarts or not complete)
        if not complete:
            return True
        roots = self.total.roots
        local = self.log_likelihoods.sum(axis=0) + self.terms.log_constant
        small = self.record_pass(roots.join(local))
        heard = 2 * roots.join(self.heard) > self.n_batches
        self.conclude(small, undisturbed=bool(heard.all()) and not self.reinitialised)
        return True

    def begin_sum(self, number: int, n_samples: int, kind: str = "estep") -> bool:
        """Begin a sum over a batch; False if the network is disconnected, which is noted."""
        self.n_sums += 1
        self.total.turn_to(number, self.n_batches)
        try:
            k = self.run.mixture.n_components
            self.total.begin(kind, n_samples, k - 1, self.terms.itemsize, 1)
        except PartitionedError as error:
            note_partition(self.run.partitions, self.n_sums, error)
            return False
        return True

    def check(self) -> Doubles:
        """Log-likelihood of the parameters, in sums in which all take part."""
        terms, total, mixture = self.terms, self.total, self.run.mixture
        if not total.whole:
            return expect(terms, total, mixture, self.factors[0], kind="check")
        # Sums that go on from others are of one batch each.
        log_likelihoods = np.zeros(total.n_roots)
        for number, part in self.taken(np.arange(self.n_batches)):
            while not self.begin_sum(number, part.n_samples, "check"):
                continue
            log_likelihoods += log_likelihood(part, total, mixture, self.factors[0])
        return total.roots.join(log_likelihoods + terms.log_constant)

    def taken(self, order: Indices) -> Iterator[tuple[int, FeatureTerms]]:
        """Number and terms of one batch after the other."""
        for number, later in zip(order, [*order[1:], None], strict=True):
            coming = None if later is None else self.batches[later]
            yield int(number), self.terms.slice_rows(self.batches[number], coming)

    def look(
        self, number: int, part: FeatureTerms, responsibilities: Floats | None = None
    ) -> Statistics:
        """E-step on a batch for which a sum has begun: statistics about the current means."""
        run = self.run
        fresh = self.terms.empty(run.mixture.means, self.total.n_roots)
        log_likelihoods = log_likelihood(
            part, self.total, run.mixture, self.factors[0], fresh, responsibilities
        )
        silent = self.total.silent
        if silent is not None:
            log_likelihoods = np.where(silent, self.log_likelihoods[number], log_likelihoods)
        self.log_likelihoods[number] = log_likelihoods
        self.heard += 1 if silent is None else ~silent
        run.n_passes += part.n_samples / self.terms.n_samples
        return fresh

    def begin_with_all(
        self, see: Callable[[int, FeatureTerms], Statistics], step_size: float | None
    ) -> Statistics | None:
        """First pass, in which all take part: statistics of all rows, or None if it was broken off.

        With a step size there are M-steps between batches. What was found before would undo that a
        component is re-initialised there: the pass is broken off.
        """
        terms, weight = self.terms, self.terms.total_weight
        everything = terms.empty(self.run.mixture.means, self.total.n_roots)
        recent, spread, time = everything, 1.0, 0
        moved = np.zeros(self.total.n_roots, dtype=bool)
        for number, part in self.taken(self.order):
            while not self.begin_sum(number, part.n_samples, "check"):
                continue
            fresh = see(number, part)
            everything.add(terms.recentred(fresh, everything.shifts))
            if step_size is None or part.total_weight == 0:
                continue
            time += 1
            rate = time**-step_size
            recent = towards(terms, recent, fresh, rate, weight, part.total_weight)
            n_rows = part.total_weight / min(1.0, weight / terms.n_samples)
            spread = (1 - rate) ** 2 * spread + rate**2 / n_rows
            ready = terms.enough(recent.counts / (weight * spread))
            moved |= ready
            early = partial(terms.update, row=weight * spread)
            if self._settle_at(ready, recent, early):
                return None
        return None if self._settle_at(~moved, everything, terms.update) else everything

    def _settle_at(
        self, roots: Mask, statistics: Statistics, update: Callable[[Statistics], Mixture]
    ) -> bool:
        """M-step at the hubs of these roots; True where components had collapsed."""
        if not self.total.holders.any(np.array([roots.any()]))[0]:
            return False
        updated, counts = update(statistics), statistics.counts
        if not roots.all():
            updated = updated.with_hubs_of(self.run.mixture, ~roots)
            counts = np.where(roots[:, None], counts, np.inf)
        return self.settle(updated, counts)

    def settle(self, updated: Mixture, counts: Doubles) -> bool:
        """Take on the parameters of an M-step; True where components had collapsed."""
        iteration = len(self.run.history) + 1
        return self.take(self.reinitialiser.check([self.terms], [updated], [counts], iteration))

    def take(self, found: tuple[list[Mixture], list[Factors], bool]) -> bool:
        again = super().take(found)
        self.reinitialised = self.reinitialised or again
        return again


def towards(
    terms: FeatureTerms,
    before: Statistics,
    fresh: Statistics,
    rate: float,
    weight: float,
    batch_weight: float,
) -> Statistics:
    """Move statistics of this weight towards a batch's, about the batch's centres."""
    if rate == 1.0:
        moved = terms.recentred(fresh, fresh.shifts)
        moved.scale(weight / batch_weight)
        return moved
    moved = terms.recentred(before, fresh.shifts)
    moved.scale(1 - rate)
    moved.add(fresh, rate * weight / batch_weight)
    return moved


class _Incremental(_FeaturePasses):
    """Statistics of all rows, in which those of one batch are replaced at a time."""

    restarts = True

    def remember(self, batches: list[slice], keep: str) -> None:
        super().remember(batches, keep)
        terms, total, n_batches = self.terms, self.total, self.n_batches
        n_components = self.run.mixture.n_components
        one = terms.empty(self.run.mixture.means, total.n_roots)
        numbers = total.n_roots * terms.n_samples * n_components
        size = sum(array.nbytes for array in leaves(arrays_of(one)))
        n_bytes = n_batches * (size + RECORD_BYTES)
        if keep == "auto" and terms.by_responsibilities:
            fewer = numbers * terms.itemsize < n_bytes
            keep = "responsibilities" if fewer and n_batches > 1 else "statistics"
        if not terms.by_responsibilities:
            keep = "statistics"
            check_memory(n_bytes, f"remembering what {n_batches} batches expected of their values")
        self.run.kept = keep
        self.statistics: list[Statistics | None] = [None] * n_batches
        self.responsibilities: NDArray[np.floating] | None = None
        if keep == "responsibilities":
            shape = (total.n_roots, terms.n_samples, n_components)
            self.responsibilities = np.zeros(shape, dtype=f"f{terms.itemsize}")
        tells = total.exact and terms.tells_expected
        self.entropies = np.zeros(n_batches) if tells else None
        self.entropy = 0.0
        self.every: Statistics | None = None
        """Of all batches."""

    def kept(self) -> dict[str, Schema]:
        responsibilities = self.responsibilities
        one: Schema = saved_like(self.terms.empty(self.run.mixture.means, self.total.n_roots))
        one = Maybe(one) if self.full_pass else one
        each = one if responsibilities is None else NOTHING
        return {
            "statistics": ListOf(each, self.n_batches),
            "responsibilities": NOTHING
            if responsibilities is None
            else Array(responsibilities.dtype.str[1:], responsibilities.shape),
            "entropies": NOTHING if self.entropies is None else Array("f8", self.entropies.shape),
            "entropy": NUMBER,
            "total": As(one, at="every"),
        }

    def first(self, step_size: float | None) -> bool:
        statistics = self.begin_with_all(self._look, step_size)
        if statistics is None:
            return step_size is None
        self.every = statistics
        self._end_pass()
        self._note(statistics)
        return True

    def later(self) -> bool:
        terms, shift = self.terms, self.run.mixture.means
        assert self.every is not None
        every = terms.recentred(self.every, shift)
        renewed = terms.empty(shift, self.total.n_roots)
        for number, part in self.taken(self.order):
            last = number == int(self.order[-1])
            fresh = before = self._before(number, part)
            if self.begin_sum(number, part.n_samples):
                fresh = self._look(number, part, before)
            fresh = terms.recentred(fresh, shift)
            renewed.add(fresh)
            if last:
                every = renewed
                self._end_pass()
            else:
                every.add(fresh)
                every.add(terms.recentred(before, shift), -1.0)
            self.every = every
            if self.settle(terms.update(every), every.counts):
                # Statistics of before say nothing of a re-initialised component.
                return last
            self._note(every)
        return True

    def _before(self, number: int, part: FeatureTerms) -> Statistics:
        if self.responsibilities is None:
            known = self.statistics[number]
            assert known is not None
            return known
        statistics = self.terms.empty(self.run.mixture.means, self.total.n_roots)
        responsibilities = self.responsibilities[:, self.batches[number]]
        for rows in part.chunks(self.total.values_per_item * responsibilities.shape[2]):
            part.summarize(statistics, np.ascontiguousarray(responsibilities[:, rows]), rows)
        return statistics

    def _look(
        self, number: int, part: FeatureTerms, before: Statistics | None = None
    ) -> Statistics:
        responsibilities = self.responsibilities
        if responsibilities is None:
            fresh = self.look(number, part)
            silent = self.total.silent
            if silent is not None and before is not None:
                fresh = self.terms.with_hubs_of(fresh, before, silent)
            self.statistics[number] = fresh
        else:
            fresh = self.look(number, part, responsibilities[:, self.batches[number]])
        if self.entropies is not None:
            # Where gamma is the posterior, sum gamma log g~ - sum gamma log gamma is the
            # log-likelihood.
            loglike = float(self.log_likelihoods[number, 0])
            entropy = loglike - self.terms.expected(fresh, self.run.mixture, self.factors[0])
            self.entropy += entropy - self.entropies[number]
            self.entropies[number] = entropy
        return fresh

    def _end_pass(self) -> None:
        if self.entropies is not None:
            self.entropy = float(self.entropies.sum())

    def _note(self, every: Statistics) -> None:
        if self.entropies is not None:
            expected = self.terms.expected(every, self.run.mixture, self.factors[0])
            self.run.free_energy.append(float(expected + self.entropy + self.terms.log_constant))


class _Stochastic(_FeaturePasses):
    """Statistics that move towards each batch's by ever smaller steps; nothing else is kept.

    The parameters stand for them: `FeatureTerms.statistics_of` gives them back.
    """

    restarts = False
    time = 0
    """Batches visited."""

    def kept(self) -> dict[str, Schema]:
        return {"time": COUNT}

    def first(self, step_size: float | None) -> bool:
        self.time = self.n_batches
        return self.begin_with_all(self.look, step_size) is not None or step_size is None

    def later(self) -> bool:
        terms = self.terms
        for number, part in self.taken(self.order):
            if not self.begin_sum(number, part.n_samples):
                continue
            fresh = self.look(number, part)
            self.time += 1
            if part.total_weight == 0:
                continue
            mixture, rate = self.run.mixture, self.time**-self.step_size
            weights = terms.total_weight, part.total_weight
            moved = _averaged(terms, mixture, fresh, rate, *weights, self.total)
            self.settle(terms.update(moved), moved.counts)
        return True


def step(
    terms: FeatureTerms,
    total: Sum,
    mixture: Mixture,
    factors: Factors,
    *,
    rate: float,
    seen: float,
    draw_row: Callable[[], int],
) -> tuple[Mixture, Doubles, list[Recovery]]:
    """Take one step of stochastic EM with all rows that the terms hold: one batch of a stream.

    The mixture stands for all that was seen before, and statistics move by ``rate``, in (0, 1],
    towards the batch's. ``seen`` is the weight of all rows of the stream up to now, these included:
    what decides whether a component has collapsed. Returned are the mixture after the M-step, the
    batch's total log-likelihood (R,) before it, and which components collapsed.
    """
    recoveries: list[Recovery] = []
    reinitialiser = Reinitialiser(terms, total, draw_row, recoveries)
    fresh = terms.empty(mixture.means, total.n_roots)
    log_likelihoods = expect(terms, total, mixture, factors, fresh)
    check_finite(log_likelihoods, 1)
    moved = _averaged(terms, mixture, fresh, rate, seen, terms.total_weight, total)
    mixtures, _, _ = reinitialiser.check([terms], [terms.update(moved)], [moved.counts], 1)
    return mixtures[0], log_likelihoods, recoveries


def _averaged(
    terms: FeatureTerms,
    mixture: Mixture,
    fresh: Statistics,
    rate: float,
    weight: float,
    batch_weight: float,
    total: Sum,
) -> Statistics:
    """Move the statistics that a mixture stands for towards a batch's, at the hubs heard."""
    before = terms.statistics_of(mixture, weight, total.n_roots)
    moved = towards(terms, before, fresh, rate, weight, batch_weight)
    silent = total.silent
    return moved if silent is None else terms.with_hubs_of(moved, before, silent)


# ---- rows that workers hold ---------------------------------------------------------------------


def fit_row_batches(
    step: OverRows,
    starts: Sequence[Mixture],
    settings: FitSettings,
    *,
    draw_row: Callable[[], int],
    rng: np.random.Generator,
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
) -> Run:
    """Fit a mixture to rows that workers hold by EM in batches.

    Every worker cuts its rows in batches, runs of ``batch_size`` neighbours (with as many as any
    worker has it is `vpem.steps.em.iterate`, iteration by iteration). In an iteration it runs the
    E-step on one of them, puts what it finds into the sums over all its rows, and sends these;
    every root takes an M-step from the total. The first pass is one E-step over all rows. A pass
    has as many iterations as the worker of most rows has batches; others come to some of theirs
    more often.

    Without a ``step_size`` EM is incremental (Neal and Hinton 1993): a batch's new statistics
    replace its old ones, which the worker keeps; where all share an exact sum the free energy never
    falls. With a number in (0.5, 1] it is stochastic (Cappe and Moulines 2009): a worker's sums
    move by ``t^-step_size`` at the t-th batch towards those of the batch, as if all rows were like
    it.

    ``starts`` are parameters of each root, to go on from where there is a saved state; ``rng``
    draws the order of the batches, the same for all; the rest is as for
    `fit_batches`: history and ``max_iter`` count passes, and states are offered
    after each. Raises NumericalError if a log-likelihood is not finite, or no component is left.
    """
    run = Run(list(starts), over_rows=True)
    passes = _RowPasses(step, settings, rng, run, draw_row, callback, saver)
    passes.begin(starts)
    passes.iterate()
    run.check_heard()
    run.end(step.roots, step.total, step.expect(run.mixtures, passes.factors, "check")[0])
    passes.end_trace()
    return run


@dataclass
class _Worker:
    batches: list[FeatureTerms]
    log_likelihoods: Doubles  # (n,) of each batch
    entropies: Doubles  # (n,)
    statistics: list[Statistics | None]  # of each as it was found last, where they are kept
    weight: float  # of all its rows
    total: Statistics | None = None  # of them

    @classmethod
    def split(cls, part: FeatureTerms, size: int) -> _Worker:
        batches = [part]
        if part.n_samples > size:
            edges = range(0, part.n_samples, size)
            batches = [part.slice_rows(slice(at, min(at + size, part.n_samples))) for at in edges]
        n = len(batches)
        weight = sum(part.total_weight for part in batches)
        return cls(batches, np.zeros(n), np.zeros(n), [None] * n, weight)

    def look(self, number: int, mixture: Mixture, factors: Factors, rate: float | None) -> None:
        """Run the E-step on a batch and put its statistics in the total."""
        part = self.batches[number]
        fresh = part.empty(mixture.means, 1)
        if part.n_samples:
            log_likelihood = float(part.sweep(mixture, factors, np.ones((1, 1)), fresh)[0])
            self.log_likelihoods[number] = log_likelihood
            self.entropies[number] = log_likelihood - part.expected(fresh, mixture, factors)
        if rate is None:
            before, self.statistics[number] = self.statistics[number], fresh
            if len(self.batches) == 1:
                self.total = fresh
            elif self.total is not None and before is not None:
                self.total = part.recentred(self.total, fresh.shifts)
                self.total.add(fresh)
                self.total.add(part.recentred(before, fresh.shifts), -1.0)
        elif part.total_weight:
            assert self.total is not None
            weights = self.weight, part.total_weight
            self.total = towards(part, self.total, fresh, rate, *weights)

    def add_up(self, shifts: Doubles) -> None:
        """Sum all batches again, so that what swaps lose to rounding does not add up."""
        part = self.batches[0]
        if len(self.batches) > 1:
            self.total = part.empty(shifts, 1)
            for one in self.statistics:
                assert one is not None
                self.total.add(part.recentred(one, self.total.shifts))


class _RowPasses(Passes):
    def __init__(
        self,
        step: OverRows,
        settings: FitSettings,
        rng: np.random.Generator,
        run: Run,
        draw_row: Callable[[], int],
        callback: Callable[[Progress], None] | None,
        saver: Saver | None,
    ) -> None:
        counts, total = step.terms.counts, step.total
        largest = max(1, int(counts.max()))
        size = min(settings.batch_size or largest, largest)
        n_steps = -(-largest // size)
        super().__init__(step, run, settings, draw_row, callback, saver, rng, n_steps)
        self.terms, self.layout, self.step_size = step.terms, step.layout, settings.step_size
        self.workers = [_Worker.split(part, size) for part in self.terms.parts]
        each = np.arange(n_steps)[:, None] % np.maximum(-(-counts // size), 1)
        self.shares = np.minimum(counts - each * size, size).sum(axis=1) / counts.sum()
        """Part of all rows that all workers' batches of an iteration have."""
        self.time = 0
        self.exact = total.exact and total.roots.n_agents == 1

    def begin(self, starts: Sequence[Mixture]) -> None:
        super().begin(starts)
        if self.saver.saved is None:
            return
        for worker in self.workers:
            if len(worker.batches) == 1 and worker.statistics[0] is not None:
                worker.total = worker.statistics[0]

    def schema(self) -> dict[str, Schema]:
        one: Schema = saved_like(self.step.whole.empty(self.run.mixture.means, 1))
        known = Maybe(one) if self.full_pass else one
        statistics = known if self.step_size is None else NOTHING
        return super().schema() | {
            "workers": tuple(
                {
                    "log_likelihoods": Array("f8", worker.log_likelihoods.shape),
                    "entropies": Array("f8", worker.entropies.shape),
                    "statistics": ListOf(statistics, len(worker.batches)),
                    "total": known,
                }
                for worker in self.workers
            ),
            "time": COUNT,
            "n_sums": COUNT,
        }

    def advance(self) -> bool:
        log_likelihoods = self._visit()
        if log_likelihoods is not None:
            small = self.record_pass(log_likelihoods)
            self.conclude(small, undisturbed=not self.full_pass)
        return True

    def _visit(self) -> Doubles | None:
        """Visit all batches: log-likelihoods (R,) of the roots; None: it did not get there."""
        if self.full_pass:
            for at, worker in enumerate(self.workers):
                for batch in range(len(worker.batches)):
                    self._look(at, batch, None)
            self.run.n_passes += 1.0
            self._add_up()
            if self.step_size is not None:
                for worker in self.workers:
                    worker.statistics = [None] * len(worker.batches)
            self.time, self.full_pass = self.n_batches, False
            log_likelihoods = self._sums()
            self.full_pass = self.full_pass or log_likelihoods is None
            return log_likelihoods
        if self.step_size is not None:
            self.order = self.rng.permutation(self.n_batches)
        log_likelihoods = None
        for place, number in enumerate(self.order):
            self.time += 1
            rate = None if self.step_size is None else self.time**-self.step_size
            for at, worker in enumerate(self.workers):
                self._look(at, int(number) % len(worker.batches), rate)
            self.run.n_passes += float(self.shares[number])
            if place + 1 == self.n_batches and rate is None:
                self._add_up()
            sums = self._sums()
            if sums is None:
                continue
            log_likelihoods = sums
            if self.full_pass:
                break
        return log_likelihoods

    def _look(self, at: int, number: int, rate: float | None) -> None:
        index = 0 if len(self.run.mixtures) == 1 else at
        self.workers[at].look(number, self.run.mixtures[index], self.factors[index], rate)

    def _add_up(self) -> None:
        for at, worker in enumerate(self.workers):
            worker.add_up(self.run.mixtures[0 if len(self.run.mixtures) == 1 else at].means)

    def _sums(self) -> Doubles | None:
        """Sum what all workers have, and take the M-steps; None if the network is disconnected."""
        step, run, total = self.step, self.run, self.step.total
        layout = self.layout(run.mixtures[0])
        values = []  # statistics and log-likelihoods, and the entropies of rows
        for worker in self.workers:
            assert worker.total is not None
            message = layout.packed(worker.total, float(worker.log_likelihoods.sum()))
            values.append(np.append(message, worker.entropies.sum()) if self.exact else message)
        self.n_sums += 1
        try:
            sums = add_messages(self.terms, total, layout, values, "estep", int(self.exact))
        except PartitionedError as error:
            note_partition(run.partitions, self.n_sums, error)
            return None
        statistics = [layout.unpacked(one[: layout.size])[0] for one in sums]
        updated, counts = maximize(step.roots, run.mixtures, statistics, total.silent)
        passed = len(run.history) + 1
        if self.take(self.reinitialiser.check(step.roots, updated, counts, passed)):
            # Statistics of before say nothing of a re-initialised component.
            self.full_pass = True
        elif self.exact and self.step_size is None:
            expected = step.roots[0].expected(statistics[0], run.mixture, self.factors[0])
            run.free_energy.append(float(expected + sums[0, -1] + step.whole.log_constant))
        log_likelihoods = total.roots.join(sums[:, layout.size - 1].copy())
        return log_likelihoods + step.whole.log_constant
