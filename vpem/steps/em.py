"""Expectation-maximization with one distributed sum.

This is the whole algorithm. *What* each hub adds to the sum `FeatureTerms` say, or others that
answer to the same, *how* the sum is taken a `Sum`; neither knows of the other.

Over rows that workers hold (`OverRows`) statistics are summed and not terms of log-densities. Where
all share the sum there is one model; under consensus every worker has its own, and they differ by
consensus error only.

With factors that hubs share there are two sums an iteration, one of which is small: first hubs add
up G, what each knows of a component's factors (q x q numbers), then of every row c and u (q + 1
numbers a component). See `vpem.terms.factors` for what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from vpem.checks import Doubles, Floats, Mask
from vpem.errors import InputError, PartitionedError
from vpem.network.faults import Objection
from vpem.network.schema import COUNT, Array, As, Field, Integer, ListOf, Schema, Stateful, check
from vpem.settings import FitSettings
from vpem.steps.accelerate import Accelerated, Acceleration, LocalSteps, PlainSteps
from vpem.steps.recovery import NoSaver, Saver, check_length
from vpem.steps.runs import (
    REINITIALISED_BYTES,
    Progress,
    Reinitialiser,
    Run,
    check_finite,
    least_weight,
    mean_over_roots,
    note_partition,
    saved_parameters,
    saved_record,
    tracer,
)
from vpem.steps.summing import FARTHEST, Differences
from vpem.sums.counted import add_vectors, farthest
from vpem.sums.private import add_numbers, power_beyond
from vpem.sums.quantizer import ITEM
from vpem.sums.sum import DECISION_BYTES, Sum
from vpem.terms.factors import FactorTerms, LoadedFactors, Posterior
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Factors, Mixture
from vpem.terms.row_statistics import WorkerTerms, mean_statistic
from vpem.terms.statistics import Message, Statistics

UNSURE = 64.0
"""By how many roundings processes may differ in what they find in the same total."""


@dataclass
class EStep:
    """How all roots find log-likelihoods and statistics of their parameters.

    Here roots of hubs that hold features, and share one mixture.
    """

    whole: FeatureTerms  # of all rows
    total: Sum
    local: LocalSteps | None = None  # what roots can do between sums
    over_rows = False
    goes_on = True
    """Whether all may go on by one total; not where sums of parameters go ahead of it."""
    reinitialised_bytes = REINITIALISED_BYTES
    """Of the message that says which component was re-initialised, and at which row."""

    def __post_init__(self) -> None:
        self.roots: Sequence[FeatureTerms] = [self.whole]
        """Who takes the M-steps: one for all roots that share a mixture, or each root its own."""

    def expect(
        self, mixtures: Sequence[Mixture], factors: Sequence[Factors], kind: str
    ) -> tuple[Doubles, list[Statistics]]:
        """Log-likelihoods (R,), and statistics of each of ``roots``, but none for a "check"."""
        terms, total, mixture = self.whole, self.total, mixtures[0]
        if kind == "check":
            return expect(terms, total, mixture, factors[0], kind=kind), []
        statistics = terms.empty(mixture.means, total.n_roots)
        rest = None if self.local is None else self.local.rest
        return expect(terms, total, mixture, factors[0], statistics, kind, rest), [statistics]


def fit(
    terms: FeatureTerms, total: Sum, start: Mixture, settings: FitSettings, **options: Any
) -> Run:
    """Fit a mixture by EM, with settings and options as for `iterate`."""
    step, pace = EStep(terms, total), options.get("accelerate")
    if pace is not None and pace.local:
        n_hubs, least = len(total.holders.own), least_weight(terms)
        step.local = LocalSteps(terms, n_hubs, start.n_components, least)
    return iterate(step, [start], settings, **options)


def fit_with_factors(
    terms: FactorTerms, total: Sum, start: Mixture, settings: FitSettings, **options: Any
) -> Run:
    """Fit a mixture with factors by EM, as `fit` does one without."""
    return iterate(_OverFactors(terms, total), [start], settings, **options)


def iterate(
    step: EStep,
    starts: Sequence[Mixture],
    settings: FitSettings,
    *,
    draw_row: Callable[[], int],
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
    accelerate: Acceleration | None = None,
    last: Doubles | None = None,
    powers: Sequence[float] = (),
) -> Run:
    """Run EM, from parameters of each of ``step.roots``, or on from a saved state.

    Each root watches its own log-likelihood per sample (nats) and proposes to stop when it changed
    by less than ``settings.tol``, or than the rounding of the terms; the network stops when all
    roots propose it at the same iteration. With ``tol = 0`` none ever does. ``last`` (R,) is that
    of the run that this one goes on from, in its last iteration. ``draw_row`` is the next row of
    the stream shared by all agents, for re-initialising collapsed components.

    Before the first iteration are as many as there are ``powers`` (Gaussian features only), in
    which responsibilities are those of densities to one of these (deterministic annealing: Ueda and
    Nakano 1998); they are not in the history.

    Of what is tried beyond M-steps (`vpem.steps.accelerate`) iterations whose sum was lost count
    among ``max_iter``, and have no entry in the history.
    """
    run = Run(list(starts), step.over_rows, last=last)
    loop = Loop(step, run, settings, draw_row, accelerate, callback, saver)
    loop.begin(starts)
    for power in powers:
        loop.anneal(power)
    found = None
    while found is None:
        loop.iterate()
        run.mixtures, loop.factors = loop.pace.settled(run.mixtures, loop.factors)
        run.check_heard()
        found = loop.take_sum(run.mixtures, loop.factors, "check")
    run.end(step.roots, step.total, found[0])
    run.mixtures = [root.settle(one) for root, one in zip(step.roots, run.mixtures, strict=True)]
    loop.end_trace()
    return run


class Loop(Stateful):
    """Iterations of a run, whose state is that of the run, of its sum, and what else they keep.

    A loop ``by_passes`` has a pass over batches for an iteration, in any of which the network may
    be disconnected, and an M-step after every batch.
    """

    def __init__(
        self,
        step: EStep,
        run: Run,
        settings: FitSettings,
        draw_row: Callable[[], int],
        accelerate: Acceleration | None,
        callback: Callable[[Progress], None] | None,
        saver: Saver | None,
        by_passes: bool = False,
    ) -> None:
        self.step, self.run, self.settings, total = step, run, settings, step.total
        self.callback, self.saver = callback, saver or NoSaver()
        self.trace = tracer(callback)
        self.reinitialiser = Reinitialiser(
            step.whole, total, draw_row, run.recoveries, step.over_rows
        )
        self.by_passes = by_passes
        self.iteration = 0
        """How many there were."""
        self.pace = PlainSteps()
        if accelerate is not None:
            self.pace = Accelerated(
                accelerate, step.roots, total, step.over_rows, step.local, run.mixture
            )
        self.factors: list[Factors] = []
        self.asks = by_passes or not (total.is_alike and step.goes_on)
        """Whether all agree after each sum on what came of it, as they must where totals differ."""
        rounds = step.whole.itemsize < ITEM and settings.tol > 0
        self.follows = not (self.asks or step.over_rows) and (self.pace.decides or rounds)
        """Whether one process finds for all what a sum came to, which rounding may decide."""
        self.counts = [np.full((1, run.mixture.n_components), np.inf)]
        """Effective samples (R, K) of each of the roots' mixtures, at the last M-step."""
        self.objects = False
        """Whether this process objects to what the last M-step came to."""
        self.agreed = False
        """Whether all have agreed on that since the last sum: none may object again."""

    def begin(self, starts: Sequence[Mixture]) -> None:
        step, run = self.step, self.run
        if self.saver.saved is None:
            self.take(self.reinitialiser.start(step.roots, starts))
            if self.trace is not None:
                self.trace(0, run.mixture)
            return
        self.resume()
        pairs = zip(step.roots, run.mixtures, strict=True)
        self.factors = [root.prepare(one) for root, one in pairs]
        self.object()

    def iterate(self) -> None:
        """Iterate until log-likelihoods change by less than tol, or as often as they may."""
        run, max_iter = self.run, self.settings.max_iter
        while self.iteration < max_iter and not run.converged:
            if self.advance():
                self.saver.offer(self.state, last=run.converged or self.iteration == max_iter)

    def record_pass(self, log_likelihoods: Doubles) -> bool:
        """Record what roots (R,) found in a pass; whether it changed by less than tol."""
        check_finite(log_likelihoods, len(self.run.history) + 1)
        self.iteration += 1
        terms, total, run = self.step.whole, self.step.total, self.run
        if self.trace is not None:
            # Where a run goes on, the one before has what it was worth when that ended.
            found, *before = map(self.per_sample, [log_likelihoods, *run.history[-1:]])
            self.trace(
                self.iteration, run.mixture, epochs=run.n_passes, objective=found,
                last=before[0] if before else None,
            )  # fmt: skip
        return run.record_iteration(
            terms, total, log_likelihoods, self.settings, self.callback, self.agree_to_stop
        )

    def agree_to_stop(self) -> None:
        """Count how all know whether to stop: nothing is sent where each finds it in the total."""
        if self.follows or (self.asks and (self.settings.tol > 0 or self.pace.decides)):
            self.step.total.agree("stopping", DECISION_BYTES if self.follows else 1)

    def per_sample(self, log_likelihoods: Doubles) -> float:
        """Mean over roots of what they found (R,), per sample."""
        return mean_over_roots(log_likelihoods) / self.step.whole.total_weight

    def end_trace(self) -> None:
        """Say what the last parameters are, and are worth, priors included as in the history."""
        run = self.run
        if self.trace is not None:
            mixture = run.mixture if self.pace.decides else None
            self.trace(None, mixture, last=self.per_sample(run.log_likelihood + run.log_prior))

    def conclude(self, small: bool, *, undisturbed: bool) -> None:
        """Decide whether the run is over: the one place in which EM does, in batches or not.

        It is after a ``small`` change, in an iteration that was one of EM and that was
        ``undisturbed``: nothing was re-initialised, and no root silent.
        """
        self.run.converged = small and undisturbed

    def take(self, found: tuple[list[Mixture], list[Factors], bool]) -> bool:
        """Take on what the reinitialiser returns; True where components had collapsed."""
        self.run.mixtures, self.factors, again = found
        if again:
            self.step.total.agree("flooding", self.step.reinitialised_bytes)
        return again

    def take_sum(
        self, mixtures: Sequence[Mixture], factors: Sequence[Factors], kind: str
    ) -> tuple[Doubles, list[Statistics]] | None:
        """Take a sum, or None: a process objects to its parameters, which are others now."""
        step, total = self.step, self.step.total
        if self.asks:
            return step.expect(mixtures, factors, kind)
        objection = total.objection = Objection(self.objects)
        try:
            with np.errstate(all="ignore") if self.objects else nullcontext():
                found, statistics = step.expect(mixtures, factors, kind)
        finally:
            total.objection = None
        if self.objects and total.holders.apart and not objection.heard:
            raise InputError(
                "the total of a sum does not show that this process objects to the last one: it "
                "was changed on its way, or not all run the same version of vpem"
            )
        if objection.heard or self.objects:
            if self.agree():
                return None
            if objection.error is not None:
                raise objection.error
        self.agreed = False
        return total.roots.join(found) if kind == "check" else found, statistics

    def object(self) -> None:
        """Object to what the last M-step came to, if not all others know what this process finds.

        That is where a component has collapsed, and where rounding decides whether the run is over.
        A process that adds nothing to sums cannot say so, and leaves it to others.
        """
        run, total = self.run, self.step.total
        if self.asks or not len(total.holders.own):
            return
        failed = any(one.failed.any() for one in self.factors)
        self.objects = failed or self.reinitialiser.are_few(self.counts)
        if not self.follows and run.history:
            near = partial(run.is_small, self.step.whole, run.history[-1], self.settings.tol)
            self.objects |= near(UNSURE, 1) != near(-UNSURE, 1)

    def agree(self) -> bool:
        """Agree on what the last M-step came to, if any process does object to it."""
        run, total, pace = self.run, self.step.total, self.pace
        if not total.holders.any([self.objects])[0]:
            return False
        if self.agreed:
            raise InputError(
                "a process objects again to what all have just agreed on; do all run the same "
                "version of vpem?"
            )
        self.objects, self.agreed = False, True
        tried = pace.decides and not run.converged  # something beyond the last M-step
        found = self.reinitialiser.check(
            self.step.roots, pace.kept if tried else run.mixtures, self.counts, self.iteration
        )  # fmt: skip
        if found[2]:
            self.take(found)
            self.counts = [np.full_like(one, np.inf) for one in self.counts]
            pace.restart()
            run.converged = False
            if self.trace is not None:
                self.trace(None, run.mixture)
        elif run.history and not pace.decides:
            small = run.is_small(self.step.whole, run.history[-1], self.settings.tol, 0, 1)
            total.agree("stopping")
            self.conclude(bool(total.roots.join(np.array([small]))[0]), undisturbed=True)
        return True

    def schema(self) -> dict[str, Schema]:
        run, total, terms = self.run, self.step.total, self.step.whole
        k, d = run.mixture.n_components, run.mixture.n_features
        component = Integer(most=k - 1)
        mixtures = saved_parameters(run.mixture, total.n_roots, run.over_rows)
        state: dict[str, Schema] = {
            "iteration": COUNT,
            **{name: replace(one, at="run.mixtures") for name, one in mixtures.items()},
            "record": As(
                saved_record(k, terms.n_samples, total.roots.n_agents, over=False), at="run"
            ),
            "sum": total,
            "collapsed": _by_component("counts", component, Integer(1)),
            "given_up": _by_component("given_up", component, Array("f8", (d,))),
        }
        if not self.asks:  # one root's, in one process or in several
            state["counts"] = ListOf(Array("f8", (1, k), 0, inf=True), 1)
        return state | ({"acceleration": self.pace} if self.pace.decides else {})

    def resume(self) -> None:
        """Restore what was saved, which is checked before anything is used."""
        saver = self.saver
        state = dict(saver.saved or {})
        if self.run.over_rows:  # the start, which vpem 0.1.0 once kept beside the others
            state.pop("mixture", None)
        if not self.asks:  # states of before have settled what came of sums
            state.setdefault("counts", self.counts)
        check(self, state, saver.place)
        self.restore(state)
        run = self.run
        counted = len(run.history)
        counted += 0 if self.by_passes else len(run.partitions) + len(run.lost)
        if self.iteration != counted or (run.converged and not run.history):
            expected = f"{counted}, as many as there are in the record"
            saver.place.inside("iteration").refuse(expected, str(self.iteration))
        check_length(self.iteration, self.settings.max_iter)

    def anneal(self, power: float) -> None:
        """Take an M-step by responsibilities of densities to a power; nothing ends there."""
        step, run, found = self.step, self.run, None
        while found is None:
            before = run.mixtures
            mixtures = [replace(one, weights=one.weights**power) for one in before]
            factors = [one.tempered(power) for one in self.factors]
            try:
                found = self.take_sum(mixtures, factors, "estep")
            except PartitionedError:
                return
        self.move_to(*maximize(step.roots, before, found[1], step.total.silent))
        if isinstance(self.pace, Accelerated):
            self.pace.kept = run.mixtures  # to which another process may object

    def move_to(self, updated: Sequence[Mixture], counts: list[Doubles]) -> bool:
        """Go on from an M-step; whether components had collapsed, where all agree after each sum.

        Elsewhere it shows in the next sum.
        """
        roots = self.step.roots
        if self.asks:
            found = self.reinitialiser.check(roots, updated, counts, self.iteration)
            return self.take(found)
        self.run.mixtures, self.factors = self.reinitialiser.prepared(roots, updated)
        self.counts = counts
        self.object()
        return False

    def advance(self) -> bool:
        """Take a sum and, unless it is lost or the network is disconnected, an M-step.

        It returns False where a process objected to the last one, which was no other iteration.
        """
        step, run, pace, total = self.step, self.run, self.pace, self.step.total
        iteration = self.iteration + 1
        before, factors = run.mixtures, self.factors
        try:
            found = self.take_sum(before, factors, "estep")
        except PartitionedError as error:
            self.iteration = iteration
            note_partition(run.partitions, iteration, error)
            return True
        if found is None:
            return False
        self.iteration = iteration
        log_likelihoods, statistics = found
        silent = total.silent
        if silent is not None:  # of all roots, wherever they live
            silent = total.roots.any(total.roots.padded(silent))
            log_likelihoods = np.where(silent, np.nan, log_likelihoods)
        counts = [one.counts for one in statistics]
        emptied = partial(self.reinitialiser.emptied, counts)
        if self.follows:
            found_here = np.append(log_likelihoods, self.reinitialiser.are_few(counts))
            found_there = total.server.as_at_home(found_here)
            log_likelihoods, emptied = found_there[:-1], partial(bool, found_there[-1])
        small = run.is_small(step.whole, log_likelihoods, self.settings.tol)
        if pace.refuses(log_likelihoods, emptied, small):
            run.mixtures, self.factors = pace.undo()
            run.lost.append(iteration)
            self.conclude(pace.ended, undisturbed=True)
            self.agree_to_stop()
            return True
        check_finite(log_likelihoods if silent is None else log_likelihoods[~silent], iteration)
        updated, counts = maximize(step.roots, before, statistics, total.silent)
        small = run.record_iteration(
            step.whole, total, log_likelihoods, self.settings, self.callback, self.agree_to_stop,
            small,
        )  # fmt: skip
        again = self.move_to(updated, counts)
        undisturbed = not again and silent is None and pace.tried == "step"
        self.conclude(small, undisturbed=undisturbed)
        if again:
            pace.restart()
        elif self.objects and pace.decides and not run.converged:
            updated = run.mixtures
            pace.next(before, list(before), factors, log_likelihoods, small)  # as all others do
            pace.kept = updated
        elif not run.converged:
            run.mixtures, self.factors = pace.next(
                before, run.mixtures, self.factors, log_likelihoods, small
            )
        if self.trace is not None:
            if pace.decides:  # those tried may have been given up, or settled at an end before
                self.trace(None, before[0])
            # Else the statistic is not that of the parameters.
            others = pace.decides or again
            mean = None if others else mean_statistic(step.roots[0], statistics[0])
            self.trace(
                iteration, run.mixture, epochs=len(run.history), statistic=mean,
                last=self.per_sample(log_likelihoods), steady=total.steady,
                step=None if mean is None else 1.0,
            )  # fmt: skip
        return True


def _by_component(name: str, component: Field, item: Field) -> As:
    """Schema of a table of the reinitialiser by component: two lists."""
    return As(
        [ListOf(component, name), ListOf(item, name)],
        lambda table: [list(table), list(table.values())],
        lambda lists: dict(zip(*lists, strict=True)),
        f"reinitialiser.{name}",
    )


def expect(
    terms: FeatureTerms,
    total: Sum,
    mixture: Mixture,
    factors: Factors,
    statistics: Statistics | None = None,
    kind: str = "estep",
    rest: Floats | None = None,
) -> Doubles:
    """Run one E-step over all rows: total log-likelihood (R,) as each root finds it.

    A sum that is a fixed matrix is taken inside one compiled sweep; any other is applied chunk by
    chunk between the two halves of the same arithmetic. Into ``rest`` (B, M, K - 1) goes what
    others add to the sum (`vpem.steps.accelerate.LocalSteps`).
    """
    total.begin(kind, terms.n_samples, mixture.n_terms - 1, terms.itemsize, 1)
    log_likelihoods = log_likelihood(terms, total, mixture, factors, statistics, rest=rest)
    return total.known_to_all(log_likelihoods + terms.log_constant)


def log_likelihood(
    terms: FeatureTerms,
    total: Sum,
    mixture: Mixture,
    factors: Factors,
    statistics: Statistics | None = None,
    out: Floats | None = None,
    rest: Floats | None = None,
) -> Doubles:
    """Run the E-step in a sum that has begun: log-likelihood (R,) without the constant.

    Where the sum is no fixed matrix hubs send how their terms differ from those of the first
    component, ``t_k - t_1``, and the sum of ``t_1`` over the rows: responsibilities are the softmax
    of ``log pi_k - (s_k - s_1) / 2``, and the log-likelihood is that of their normalisers minus
    half the sum of ``s_1``.

    With ``out`` (R, m, K) the responsibilities are written there; those of inactive roots stay.
    With ``rest`` (B, m, K - 1) what others add to each hub's terms is.
    """
    if out is None and rest is None and total.mix is not None:
        return terms.sweep(mixture, factors, total.mix, statistics)
    totals = np.zeros(total.n_roots)
    silent = total.silent
    local = partial(terms.local, factors)
    limit = farthest(total.holders, FARTHEST[terms.itemsize])
    constants = -2.0 * terms.constants() if terms.constant_in_sums else 0.0
    differ = Differences(terms, total, mixture.n_terms, local, limit, rest, constants)
    for rows, sums in terms.seen_whole(mixture, differ):
        responsibilities, log_likelihoods = terms.responsibilities(mixture, sums, rows)
        totals += log_likelihoods
        if out is not None:
            if silent is not None:
                responsibilities[silent] = out[silent, rows]
            out[:, rows] = responsibilities
        if statistics is not None:
            terms.summarize(statistics, responsibilities, rows)
    return totals - 0.5 * differ.firsts


def maximize(
    roots: Sequence[FeatureTerms],
    before: Sequence[Mixture],
    statistics: Sequence[Statistics],
    silent: Mask | None,
) -> tuple[list[Mixture], list[Doubles]]:
    """M-step: parameters and counts; inactive roots (R,) keep what they had.

    Roots share one mixture, of which each has a part, or each has its own.
    """
    if silent is None:
        updated = [root.update(one) for root, one in zip(roots, statistics, strict=True)]
        return updated, [one.counts for one in statistics]
    masks = [silent] if len(roots) == 1 else np.split(silent, len(silent))
    mixtures, counts = [], []
    for terms, old, one, mask in zip(roots, before, statistics, masks, strict=True):
        # A root that has heard no agent has no statistics to take a step from.
        new = old if mask.all() else terms.update(one).with_hubs_of(old, mask)
        mixtures.append(new)
        counts.append(np.where(mask[:, None], np.inf, one.counts))
    return mixtures, counts


def add_messages(
    terms: WorkerTerms,
    total: Sum,
    layout: Message,
    values: Sequence[Doubles],
    kind: str,
    n_more: int = 0,
) -> Doubles:
    """Sum messages (P,) of the workers here, (R, P), in units that suffice if sums are masked.

    What is expected of missing values may lie farther out than any row, as parameters have it. How
    much farther no worker knows of the others, so all find out first. ``n_more`` numbers at the end
    of a message, of the size of its log-likelihood, are not in the layout.
    """
    stacked = np.stack(values) if len(values) else np.empty((0, layout.size + n_more))
    units = None if terms.reach is None else layout.exponents(terms.reach)
    if units is not None:
        units = np.append(units, np.repeat(units[-1], n_more))
        if layout.expects:
            units += power_beyond(total, stacked, units)
    return add_vectors(total, stacked, kind, units)


def sample_roots(terms: WorkerTerms, total: Sum, about: Doubles) -> list[FeatureTerms]:
    """Return terms for every root, with the sample covariance as it finds it by one sum.

    ``about`` (d,) is a point among the data, known to all.
    """
    layout = Message(terms.whole, about[None])
    values = [  # all rows of a worker are in one component
        terms.hard(worker, np.zeros(part.n_samples, dtype=np.int32), layout)
        for worker, part in enumerate(terms.parts)
    ]
    return [
        terms.whole.knowing(layout.unpacked(message)[0])
        for message in add_messages(terms, total, layout, values, "setup")
    ]


def numbers_of_a_row(n_components: int, n_factors: int) -> int:
    """Numbers of a row in a message: u of each component, and how c differ from the first."""
    return n_components * (n_factors + 1) - 1


def numbers_of_a_component(n_factors: int) -> int:
    """Numbers of a component in a message: the lower half of G."""
    return n_factors * (n_factors + 1) // 2


def posterior_of(total: Sum, factors: LoadedFactors, kind: str) -> Posterior:
    """Sum what hubs know of the factors: what all of them know, as each root finds it.

    ``kind`` is as in `vpem.sums.sum.Sum.begin`.
    """
    n_hubs, k, q, _ = factors.grams.shape
    lower = np.tril_indices(q)
    flat = factors.grams[:, :, *lower].reshape(n_hubs, k * numbers_of_a_component(q))
    sums = add_numbers(total, flat, kind)
    grams = np.zeros((len(sums), k, q, q))
    grams[:, :, *lower] = sums.reshape(len(sums), k, numbers_of_a_component(q))
    grams[:, :, lower[1], lower[0]] = grams[:, :, *lower]
    return Posterior.from_grams(grams)


class OverRows(EStep):
    """The E-step of workers that hold rows.

    ``roots`` (R) are from `sample_roots`. Where there are several, statistics are sent about
    ``shifts`` (K, d), points known to all; one root sends its means, and statistics are about
    these.
    """

    over_rows = True

    def __init__(
        self, terms: WorkerTerms, total: Sum, roots: Sequence[FeatureTerms], shifts: Doubles
    ) -> None:
        # Parameters are those of all rows: there are no local steps of one worker.
        super().__init__(terms.whole, total)
        self.terms, self.roots, whole = terms, roots, terms.whole
        # Which component, at which row, and the row itself.
        self.reinitialised_bytes = REINITIALISED_BYTES + whole.blocks.n_features * whole.itemsize
        self._fixed = None if total.roots.n_agents == 1 else Message(whole, shifts)

    def layout(self, mixture: Mixture) -> Message:
        """Lay out messages of roots that share this mixture, or have their own."""
        return self._fixed or Message(self.whole, mixture.means)

    def expect(
        self, mixtures: Sequence[Mixture], factors: Sequence[Factors], kind: str
    ) -> tuple[Doubles, list[Statistics]]:
        """E-step of every worker with its own root's parameters, and the sum."""
        layout = self.layout(mixtures[0])
        shared = len(mixtures) == 1
        values = [
            self.terms.message(worker, mixtures[at], factors[at], layout)
            for worker in range(len(self.terms.parts))
            for at in (0 if shared else worker,)
        ]
        sums = add_messages(self.terms, self.total, layout, values, kind)
        log_likelihoods = self.total.known_to_all(sums[:, -1].copy())
        log_likelihoods = log_likelihoods + self.whole.log_constant
        return log_likelihoods, [] if kind == "check" else [layout.unpacked(one)[0] for one in sums]


@dataclass
class _OverFactors(EStep):
    """The E-step of hubs that hold features with factors in common."""

    whole: FactorTerms
    goes_on = False

    def expect(
        self, mixtures: Sequence[Mixture], factors: Sequence[Factors], kind: str
    ) -> tuple[Doubles, list[Statistics]]:
        terms, total, mixture = self.whole, self.total, mixtures[0]
        loaded = cast(LoadedFactors, factors[0])
        statistics = None if kind == "check" else terms.empty_factors(mixture, total.n_roots)
        posterior = posterior_of(total, loaded, kind)
        n_numbers = numbers_of_a_row(mixture.n_components, terms.n_factors)
        total.begin(kind, terms.n_samples, n_numbers, terms.itemsize, 1)
        if total.mix is not None:
            log_likelihoods = terms.sweep_factors(mixture, loaded, posterior, total.mix, statistics)
        else:
            local = partial(terms.local, loaded)
            sums = factor_sums(terms, total, mixture, local, terms.itemsize)
            log_likelihoods = np.zeros(total.n_roots)
            for rows, numbers in sums:
                apart, onto = split_factors(numbers, mixture.n_components)
                log_likelihoods += terms.summarize_sums(
                    mixture, loaded, posterior, apart, onto, rows, statistics
                )
            log_likelihoods = log_likelihoods - 0.5 * sums.firsts
        log_likelihood = total.known_to_all(log_likelihoods + terms.log_constant)
        return log_likelihood, [] if statistics is None else [statistics]


def factor_sums(
    terms: FeatureTerms,
    total: Sum,
    mixture: Mixture,
    local: Callable[[slice], Floats],
    itemsize: int,
) -> Differences:
    """Return sums of c and u of every row, of a sum that has begun or will, chunk by chunk.

    `split_factors` parts them. ``local`` has c and u of each hub of this process for some rows,
    (B, m, K + K q), of ``itemsize`` bytes a number. Rows that are too far from a component for
    their numbers to be added are moved towards its mean: c falls by the square of what u does, so
    that neither outweighs the other.
    """
    k, limit = mixture.n_components, farthest(total.holders, FARTHEST[itemsize])

    def near(rows: slice) -> Floats:
        numbers = local(rows)
        far = np.abs(numbers).max(axis=(1, 2), initial=0.0) > limit
        for b in np.flatnonzero(far):
            u = numbers[b, :, k:].reshape(numbers.shape[1], k, -1)
            c = numbers[b, :, :k]
            most = np.maximum(np.sqrt(np.maximum(c, 0.0) / limit), np.abs(u).max(axis=2) / limit)
            share = 1.0 / np.maximum(most, 1.0)
            u *= share[..., None]
            c *= share**2
        return numbers

    return Differences(terms, total, k, near, more=k * mixture.n_factors)


def split_factors(sums: Floats, n_components: int) -> tuple[Floats, Floats]:
    """Part sums (R, m, K - 1 + K q): how the sums C differ from the first, (R, m, K), and U."""
    apart = np.zeros((*sums.shape[:2], n_components), dtype=sums.dtype)
    apart[:, :, 1:] = sums[:, :, : n_components - 1]
    return apart, np.ascontiguousarray(sums[:, :, n_components - 1 :])
