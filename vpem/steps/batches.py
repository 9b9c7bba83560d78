"""EM in small batches: incremental, with every batch's statistics swapped, or stochastic.

Incremental EM (Neal and Hinton 1993): every batch's new statistics replace its old ones. Stochastic
EM (Cappe and Moulines 2009): statistics move towards those of each batch.

An iteration works on the rows of one batch, so that neither its cost nor what it sends depends on
how many rows there are. As `em.fit`, it knows terms and sum only by their protocols.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Floats, Indices, Mask, check_memory
from vpem.errors import PartitionedError, check_choice
from vpem.network.schema import (
    COUNT,
    FLAG,
    NOTHING,
    NUMBER,
    Array,
    As,
    ListOf,
    Maybe,
    Schema,
    Stateful,
)
from vpem.settings import FitSettings
from vpem.steps.em import expect, log_likelihood
from vpem.steps.recovery import STREAM, NoSaver, Saver
from vpem.steps.runs import (
    REINITIALISED_BYTES,
    Passes,
    Progress,
    Recovery,
    Reinitialiser,
    Run,
    check_finite,
    note_partition,
)
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
    visits = Visits(terms, total, batches, Run([start]), draw_row)
    fitting: Incremental | Stochastic
    if settings.step_size is None:
        fitting = Incremental(visits, start, keep, STEP_SIZE)
    else:
        fitting = Stochastic(visits, settings.step_size)
    saver = saver or NoSaver()
    passes = _Passes(visits, fitting, rng)
    passes.begin(start, saver, settings.max_iter)
    passes.iterate(settings, callback, saver)
    visits.run.end([terms], total, visits.check())
    return visits.run


class Visits(Stateful):
    """Visits of batches: the sums they take, what these find, and the record of it."""

    def __init__(
        self,
        terms: FeatureTerms,
        total: Sum,
        batches: list[slice],
        run: Run,
        draw_row: Callable[[], int],
    ) -> None:
        self.terms, self.total, self.batches, self.run = terms, total, batches, run
        self.reinitialiser = Reinitialiser(terms, total, draw_row, run.recoveries)
        self.factors: Factors
        total.turn_to(0, len(batches))
        self.log_likelihoods = np.zeros((len(batches), total.n_roots))
        self.heard = np.zeros(total.n_roots, dtype=np.intp)
        self.reinitialised = False
        self.full_pass = True
        """Whether the next pass is an E-step over all rows."""
        self.n_sums = 0

    def schema(self) -> dict[str, Schema]:
        return {"log_likelihoods": Array("f8", self.log_likelihoods.shape), "n_sums": COUNT}

    def begin(self, number: int, n_samples: int, kind: str = "estep") -> bool:
        """Begin a sum over a batch; False if the network is disconnected, which is noted."""
        self.n_sums += 1
        self.total.turn_to(number, len(self.batches))
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
            return expect(terms, total, mixture, self.factors, kind="check")
        # Sums that go on from others are of one batch each.
        log_likelihoods = np.zeros(total.n_roots)
        order = np.arange(len(self.batches))
        for number in range(len(order)):
            part = self.batch(order, number)
            while not self.begin(number, part.n_samples, "check"):
                continue
            log_likelihoods += log_likelihood(part, total, mixture, self.factors)
        return total.roots.join(log_likelihoods + terms.log_constant)

    def batch(self, order: Indices, place: int) -> FeatureTerms:
        """Terms of the batch at this place of the order."""
        later = self.batches[order[place + 1]] if place + 1 < len(order) else None
        return self.terms.slice_rows(self.batches[order[place]], later)

    def look(
        self, number: int, part: FeatureTerms, responsibilities: Floats | None = None
    ) -> Statistics:
        """E-step on a batch for which a sum has begun: statistics about the current means."""
        run = self.run
        fresh = self.terms.empty(run.mixture.means, self.total.n_roots)
        log_likelihoods = log_likelihood(
            part, self.total, run.mixture, self.factors, fresh, responsibilities
        )
        silent = self.total.silent
        if silent is not None:
            log_likelihoods = np.where(silent, self.log_likelihoods[number], log_likelihoods)
        self.log_likelihoods[number] = log_likelihoods
        self.heard += 1 if silent is None else ~silent
        run.n_passes += part.n_samples / self.terms.n_samples
        return fresh

    def begin_with_all(
        self,
        order: Indices,
        see: Callable[[int, FeatureTerms], Statistics],
        step_size: float | None,
    ) -> Statistics | None:
        """First pass, in which all take part: statistics of all rows, or None if it was broken off.

        With a step size there are M-steps between batches. What was found before would undo that a
        component is re-initialised there: the pass is broken off.
        """
        terms, weight = self.terms, self.terms.total_weight
        everything = terms.empty(self.run.mixture.means, self.total.n_roots)
        recent, spread, time = everything, 1.0, 0
        moved = np.zeros(self.total.n_roots, dtype=bool)
        for place, number in enumerate(order):
            part = self.batch(order, place)
            while not self.begin(int(number), part.n_samples, "check"):
                continue
            fresh = see(int(number), part)
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
            early = partial(terms.update_early, row=weight * spread)
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
        return self.take(
            *self.reinitialiser.check([self.terms], [updated], [counts], len(self.run.history) + 1)
        )

    def take(self, mixtures: list[Mixture], factors: list[Factors], again: bool) -> bool:
        """Take on parameters; True where components have been re-initialised."""
        self.run.mixtures, self.factors = mixtures, factors[0]
        self.reinitialised = self.reinitialised or again
        if again:
            self.total.agree("flooding", REINITIALISED_BYTES)
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


class Incremental(Stateful):
    """Statistics of all rows, in which those of one batch are replaced at a time."""

    restarts = True
    """Whether an E-step over all rows follows a re-initialisation: statistics would undo it."""

    def __init__(self, visits: Visits, start: Mixture, keep: str, step_size: float) -> None:
        self.visits = visits
        self.step_size = step_size
        """In the first pass."""
        terms, total, batches = visits.terms, visits.total, visits.batches
        n_batches, n_components = len(batches), start.n_components
        one = terms.empty(start.means, total.n_roots)
        numbers = total.n_roots * terms.n_samples * n_components
        size = sum(array.nbytes for array in leaves(arrays_of(one)))
        n_bytes = n_batches * (size + RECORD_BYTES)
        if keep == "auto" and terms.by_responsibilities:
            fewer = numbers * terms.itemsize < n_bytes
            keep = "responsibilities" if fewer and n_batches > 1 else "statistics"
        if not terms.by_responsibilities:
            keep = "statistics"
            check_memory(n_bytes, f"remembering what {n_batches} batches expected of their values")
        visits.run.kept = keep
        self.statistics: list[Statistics | None] = [None] * n_batches
        self.responsibilities: NDArray[np.floating] | None = None
        if keep == "responsibilities":
            shape = (total.n_roots, terms.n_samples, n_components)
            self.responsibilities = np.zeros(shape, dtype=f"f{terms.itemsize}")
        tells = total.exact and terms.tells_expected
        self.entropies = np.zeros(n_batches) if tells else None
        self.entropy = 0.0
        self.total: Statistics | None = None

    def schema(self) -> dict[str, Schema]:
        """What is saved from one pass to the next."""
        visits, responsibilities = self.visits, self.responsibilities
        one: Schema = saved_like(visits.terms.empty(visits.run.mixture.means, visits.total.n_roots))
        one = Maybe(one) if visits.full_pass else one
        each = one if responsibilities is None else NOTHING
        return {
            "statistics": ListOf(each, len(visits.batches)),
            "responsibilities": NOTHING
            if responsibilities is None
            else Array(responsibilities.dtype.str[1:], responsibilities.shape),
            "entropies": NOTHING if self.entropies is None else Array("f8", self.entropies.shape),
            "entropy": NUMBER,
            "total": one,
        }

    def first(self, order: Indices, step_size: float | None) -> bool:
        """Visit all rows; whether the pass got to its end."""
        statistics = self.visits.begin_with_all(order, self._look, step_size)
        if statistics is None:
            return step_size is None
        self.total = statistics
        self._end_pass()
        self._note(statistics)
        return True

    def later(self, order: Indices) -> bool:
        """One pass, batch by batch; whether it got to the end."""
        visits, terms = self.visits, self.visits.terms
        shift = visits.run.mixture.means
        assert self.total is not None
        total = terms.recentred(self.total, shift)
        renewed = terms.empty(shift, visits.total.n_roots)
        for place, number in enumerate(order):
            part = visits.batch(order, place)
            last = place + 1 == len(order)
            before = self._before(int(number), part)
            fresh = before
            if visits.begin(int(number), part.n_samples):
                fresh = self._look(int(number), part, before)
            fresh = terms.recentred(fresh, shift)
            renewed.add(fresh)
            if last:
                total = renewed
                self._end_pass()
            else:
                total.add(fresh)
                total.add(terms.recentred(before, shift), -1.0)
            self.total = total
            if visits.settle(terms.update(total), total.counts):
                # Statistics of before say nothing of a re-initialised component.
                return last
            self._note(total)
        return True

    def _before(self, number: int, part: FeatureTerms) -> Statistics:
        if self.responsibilities is None:
            known = self.statistics[number]
            assert known is not None
            return known
        visits = self.visits
        statistics = visits.terms.empty(visits.run.mixture.means, visits.total.n_roots)
        responsibilities = self.responsibilities[:, visits.batches[number]]
        for rows in part.chunks(visits.total.values_per_item * responsibilities.shape[2]):
            part.summarize(statistics, np.ascontiguousarray(responsibilities[:, rows]), rows)
        return statistics

    def _look(
        self, number: int, part: FeatureTerms, before: Statistics | None = None
    ) -> Statistics:
        visits, terms = self.visits, self.visits.terms
        responsibilities = self.responsibilities
        if responsibilities is None:
            fresh = visits.look(number, part)
            silent = visits.total.silent
            if silent is not None and before is not None:
                fresh = terms.with_hubs_of(fresh, before, silent)
            self.statistics[number] = fresh
        else:
            fresh = visits.look(number, part, responsibilities[:, visits.batches[number]])
        if self.entropies is not None:
            # Where gamma is the posterior, sum gamma log g~ - sum gamma log gamma is the
            # log-likelihood.
            loglike = float(visits.log_likelihoods[number, 0])
            entropy = loglike - terms.expected(fresh, visits.run.mixture, visits.factors)
            self.entropy += entropy - self.entropies[number]
            self.entropies[number] = entropy
        return fresh

    def _end_pass(self) -> None:
        if self.entropies is not None:
            self.entropy = float(self.entropies.sum())

    def _note(self, total: Statistics) -> None:
        visits, terms = self.visits, self.visits.terms
        if self.entropies is not None:
            expected = terms.expected(total, visits.run.mixture, visits.factors)
            visits.run.free_energy.append(float(expected + self.entropy + terms.log_constant))


class Stochastic(Stateful):
    """Statistics that move towards each batch's by ever smaller steps; nothing else is kept.

    The parameters stand for them: `FeatureTerms.statistics_of` gives them back.
    """

    restarts = False

    def __init__(self, visits: Visits, step_size: float) -> None:
        self.visits = visits
        self.step_size = step_size
        self.time = 0

    def schema(self) -> dict[str, Schema]:
        """The number of batches visited."""
        return {"time": COUNT}

    def first(self, order: Indices, step_size: float | None) -> bool:
        """Visit all rows; whether the pass got to its end."""
        self.time = len(order)
        statistics = self.visits.begin_with_all(order, self.visits.look, step_size)
        return statistics is not None or step_size is None

    def later(self, order: Indices) -> bool:
        """One pass, batch by batch."""
        visits, terms = self.visits, self.visits.terms
        for place, number in enumerate(order):
            part = visits.batch(order, place)
            if not visits.begin(int(number), part.n_samples):
                continue
            fresh = visits.look(int(number), part)
            self.time += 1
            if part.total_weight == 0:
                continue
            mixture, rate = visits.run.mixture, self.time**-self.step_size
            weights = terms.total_weight, part.total_weight
            moved = _averaged(terms, mixture, fresh, rate, *weights, visits.total)
            visits.settle(terms.update(moved), moved.counts)
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


class _Passes(Passes):
    """One pass over all batches after the other."""

    def __init__(
        self, visits: Visits, fitting: Incremental | Stochastic, rng: np.random.Generator
    ) -> None:
        self.visits, self.fitting, self.rng = visits, fitting, rng
        self.run, self.reinitialiser, self.terms = visits.run, visits.reinitialiser, visits.terms
        self.n_batches = len(visits.batches)
        self.order = np.empty(0, dtype=np.intp)
        self._opening = None if self.n_batches == 1 else fitting.step_size

    def begin(self, start: Mixture, saver: Saver, max_iter: int) -> None:
        visits, saved = self.visits, saver.saved
        if saved is None:
            visits.take(*visits.reinitialiser.start([visits.terms], [start]))
            self.order = self.rng.permutation(self.n_batches)
            return
        visits.factors = visits.terms.prepare(start)
        visits.full_pass, self._opening = saved.get("anew") is True, None
        self.resume(saver, max_iter)

    def schema(self) -> dict[str, Schema]:
        return super().schema() | {
            "visits": self.visits,
            "fitting": self.fitting,
            "order": Array("i", (self.n_batches,), 0, self.n_batches - 1),
            "anew": As(FLAG, at="visits.full_pass"),
            "stream": As(STREAM, at="rng.bit_generator.state"),
        }

    def advance(self) -> Doubles | None:
        visits, fitting = self.visits, self.fitting
        visits.heard[:] = 0
        visits.reinitialised = False
        if visits.run.history and not fitting.restarts:
            self.order = self.rng.permutation(self.n_batches)
        if visits.full_pass:
            complete = fitting.first(self.order, self._opening)
        else:
            complete = fitting.later(self.order)
        self._opening = None
        visits.full_pass = visits.reinitialised and (fitting.restarts or not complete)
        if not complete:
            return None
        local = visits.log_likelihoods.sum(axis=0) + visits.terms.log_constant
        return visits.total.roots.join(local)

    def may_end(self) -> bool:
        heard = 2 * self.visits.total.roots.join(self.visits.heard) > self.n_batches
        return bool(heard.all()) and not self.visits.reinitialised
