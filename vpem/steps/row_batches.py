"""EM over rows in batches: every worker visits some of its rows, and sends sums over all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vpem.checks import Doubles
from vpem.errors import PartitionedError
from vpem.network.schema import COUNT, NOTHING, Array, ListOf, Maybe, Schema
from vpem.settings import FitSettings
from vpem.steps.batches import Passes, towards
from vpem.steps.em import OverRows, add_messages, maximize
from vpem.steps.recovery import Saver
from vpem.steps.runs import Progress, Run, note_partition
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Factors, Mixture
from vpem.terms.statistics import Statistics, saved_like


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
    `vpem.steps.batches.fit_batches`: history and ``max_iter`` count passes, and states are offered
    after each. Raises NumericalError if a log-likelihood is not finite, or no component is left.
    """
    run = Run(list(starts), over_rows=True)
    passes = _Passes(step, settings, rng, run, draw_row, callback, saver)
    passes.begin(starts)
    passes.iterate()
    run.check_heard()
    run.end(step.roots, step.total, step.expect(run.mixtures, passes.factors, "check")[0])
    return run


@dataclass
class _Worker:
    """What a worker knows of its batches."""

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


class _Passes(Passes):
    """Passes over rows that workers hold."""

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

    def advance(self) -> None:
        log_likelihoods = self._visit()
        if log_likelihoods is not None:
            self.run.converged = self.record_pass(log_likelihoods) and not self.full_pass

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
