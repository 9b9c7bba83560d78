"""Expectation-maximization with one distributed sum.

This is the whole algorithm. *What* each hub adds to the sum is a `Terms`, *how* the sum is taken is
a `Sum`; neither knows of the other, and this loop knows of both only what the protocols say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.errors import PartitionedError
from vpem.network.schema import State
from vpem.steps.accelerate import Accelerated, Acceleration, PlainSteps
from vpem.steps.local_steps import LocalSteps
from vpem.steps.reinitialise import REINITIALISED_BYTES, Reinitialiser, least_weight
from vpem.steps.runs import Progress, Run, check_finite, note_partition
from vpem.steps.saver import NoSaver, Saver
from vpem.steps.summing import FARTHEST, Differences, begin_differences
from vpem.sums.adding import farthest
from vpem.sums.sum import Sum
from vpem.terms.covariances import Factors
from vpem.terms.mixture import Mixture
from vpem.terms.statistics import Statistics
from vpem.terms.terms import Terms


def expect(
    terms: Terms,
    total: Sum,
    mixture: Mixture,
    factors: Factors,
    statistics: Statistics | None = None,
    kind: str = "estep",
    rest: Floats | None = None,
) -> NDArray[np.float64]:
    """Run one E-step over all rows: total log-likelihood (R,) as each root finds it.

    A sum that is a fixed matrix is taken inside one compiled sweep; any other is applied chunk by
    chunk between the two halves of the same arithmetic. Into ``rest`` (B, M, K - 1) goes what
    others add to the sum (`vpem.steps.local_steps.LocalSteps`).
    """
    begin_differences(total, kind, terms.n_samples, mixture.n_components, terms.itemsize)
    found = log_likelihood(terms, total, mixture, factors, statistics, rest=rest)
    return total.roots.join(found + terms.log_constant)


def log_likelihood(
    terms: Terms,
    total: Sum,
    mixture: Mixture,
    factors: Factors,
    statistics: Statistics | None = None,
    kept: Floats | None = None,
    rest: Floats | None = None,
) -> NDArray[np.float64]:
    """Run the E-step in a sum that has begun: log-likelihood (R,) without the constant.

    Where the sum is no fixed matrix hubs send how their terms differ from those of the first
    component, ``t_k - t_1``, and the sum of ``t_1`` over the rows: responsibilities are the softmax
    of ``log pi_k - (s_k - s_1) / 2``, and the log-likelihood is that of their normalisers minus
    half the sum of ``s_1``.

    With ``kept`` (R, m, K) the responsibilities are written there; those of silent roots stay. With
    ``rest`` (B, m, K - 1) what others add to each hub's terms is.
    """
    if kept is None and rest is None and total.mix is not None:
        return terms.sweep(mixture, factors, total.mix, statistics)
    found = np.zeros(total.n_roots)
    silent = total.silent
    local = partial(terms.local, factors)
    limit = farthest(total.holders, FARTHEST[terms.itemsize])
    constants = -2.0 * terms.constants() if terms.constant_in_sums else 0.0
    differ = Differences(terms, total, mixture.n_components, local, limit, rest, constants)
    for rows, sums in differ:
        responsibilities, log_likelihoods = terms.responsibilities(mixture, sums, rows)
        found += log_likelihoods
        if kept is not None:
            if silent is not None:
                responsibilities[silent] = kept[silent, rows]
            kept[:, rows] = responsibilities
        if statistics is not None:
            terms.summarize(statistics, responsibilities, rows)
    return found - 0.5 * differ.firsts


class EStep(Protocol):
    """How all roots find log-likelihoods and statistics of their parameters."""

    total: Sum
    over_rows: bool
    reinitialised_bytes: int
    """Of the message that says which component was re-initialised, and at which row."""
    local: LocalSteps | None
    """What roots can do between sums."""

    @property
    def whole(self) -> Terms:
        """All rows."""

    @property
    def roots(self) -> Sequence[Terms]:
        """Who takes the M-steps: one for all roots that share a mixture, or each root its own."""

    def expect(
        self, mixtures: Sequence[Mixture], factors: Sequence[Factors], kind: str
    ) -> tuple[NDArray[np.float64], list[Statistics]]:
        """Log-likelihoods (R,), and statistics of each of ``roots``, but none for a "check"."""


@dataclass
class _OverFeatures:
    """The E-step of hubs that hold features, which have one mixture together."""

    whole: Terms
    total: Sum
    local: LocalSteps | None = None
    reinitialised_bytes = REINITIALISED_BYTES
    over_rows = False

    def __post_init__(self) -> None:
        self.roots: Sequence[Terms] = [self.whole]

    def expect(
        self, mixtures: Sequence[Mixture], factors: Sequence[Factors], kind: str
    ) -> tuple[NDArray[np.float64], list[Statistics]]:
        terms, total, mixture = self.whole, self.total, mixtures[0]
        if kind == "check":
            return expect(terms, total, mixture, factors[0], kind=kind), []
        statistics = terms.empty(mixture.means, total.n_roots)
        rest = None if self.local is None else self.local.rest
        return expect(terms, total, mixture, factors[0], statistics, kind, rest), [statistics]


def fit(terms: Terms, total: Sum, start: Mixture, **how: Any) -> Run:
    """Fit a mixture by EM; ``how`` is as for `iterate`."""
    step, pace = _OverFeatures(terms, total), how.get("accelerate")
    if pace is not None and pace.local:
        n_hubs, least = len(total.holders.own), least_weight(terms)
        step.local = LocalSteps(terms, n_hubs, start.n_components, least)
    return iterate(step, [start], **how)


def iterate(
    step: EStep,
    starts: Sequence[Mixture],
    *,
    tol: float,
    max_iter: int,
    draw_row: Callable[[], int],
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
    accelerate: Acceleration | None = None,
    last: NDArray[np.float64] | None = None,
) -> Run:
    """Run EM, from parameters of each of ``step.roots``, or on from a saved state.

    Each root watches its own log-likelihood per sample (nats) and proposes to stop when it changed
    by less than ``tol``, or than the rounding of the terms; the network stops when all roots
    propose it at the same iteration. With ``tol = 0`` none ever does. ``last`` (R,) is that of the
    run that this one goes on from, in its last iteration. ``draw_row`` is the next row of the
    stream shared by all agents, for re-initialising collapsed components.

    Of what is tried beyond M-steps (`vpem.steps.accelerate`) iterations whose sum was lost count
    among ``max_iter``, and have no entry in the history.
    """
    run = Run(list(starts), step.over_rows, last=last)
    loop = _Loop(step, run, draw_row, accelerate)
    saver = saver or NoSaver()
    done = loop.begin(starts, saver, max_iter)
    for iteration in range(done + 1, max_iter + 1):
        if run.converged:
            break
        loop.advance(iteration, tol, callback)
        state = partial(loop.state, iteration)
        saver.offer(state, last=run.converged or iteration == max_iter)
    loop.end()
    return run


class _Loop:
    """One iteration of EM after the other."""

    def __init__(
        self, step: EStep, run: Run, draw_row: Callable[[], int], accelerate: Acceleration | None
    ) -> None:
        self.step, self.run = step, run
        whole, total = step.whole, step.total
        self.reinitialiser = Reinitialiser(whole, total, draw_row, run.recoveries, step.over_rows)
        self.pace = PlainSteps()
        if accelerate is not None:
            self.pace = Accelerated(accelerate, step.roots, total, step.over_rows, step.local)
        self.factors: list[Factors] = []

    def begin(self, starts: Sequence[Mixture], saver: Saver, max_iter: int) -> int:
        """Begin at the starts, or go on from what was saved: how many iterations there were."""
        step, run = self.step, self.run
        if saver.saved is None:
            run.mixtures, self.factors, again = self.reinitialiser.start(step.roots, starts)
            if again:
                step.total.agree("flooding", step.reinitialised_bytes)
            return 0
        own, like = self.pace.schema(starts[0]), starts[0]
        done = run.restore(saver, step.total, self.reinitialiser, max_iter, own=own)
        self.pace.restore(saver.saved, like)
        self.factors = [root.prepare(one) for root, one in zip(step.roots, starts, strict=True)]
        return done

    def state(self, iteration: int) -> State:
        """Return what is kept from one iteration to the next."""
        state = self.run.state(self.step.total, self.reinitialiser, iteration)
        return state | self.pace.state()

    def advance(
        self, iteration: int, tol: float, callback: Callable[[Progress], None] | None
    ) -> None:
        """Take a sum and, unless it is lost or the network fell apart, an M-step."""
        step, run, pace, total = self.step, self.run, self.pace, self.step.total
        before = run.mixtures
        try:
            found, statistics = step.expect(before, self.factors, "estep")
        except PartitionedError as error:
            note_partition(run.partitions, iteration, error)
            return
        silent = total.silent
        if silent is not None:  # of all roots, wherever they live
            silent = total.roots.any(total.roots.padded(silent))
            found = np.where(silent, np.nan, found)
        emptied = partial(self.reinitialiser.emptied, [one.counts for one in statistics])
        if pace.refuses(found, emptied, run.is_small(step.whole, found, tol)):
            run.mixtures, self.factors = pace.undo()
            run.lost.append(iteration)
            run.converged = pace.ended
            total.agree("stopping")
            return
        check_finite(found if silent is None else found[~silent], iteration)
        updated, counts = maximize(step.roots, before, statistics, total.silent)
        small = run.note(step.whole, total, found, tol, callback, pace.decides)
        run.mixtures, self.factors, again = self.reinitialiser.check(
            step.roots, updated, counts, iteration
        )
        run.converged = small and not again and silent is None and pace.tried == "step"
        if again:
            total.agree("flooding", step.reinitialised_bytes)
            pace.restart()
        elif not run.converged:
            run.mixtures, self.factors = pace.next(before, run.mixtures, self.factors, found, small)

    def end(self) -> None:
        """Find the log-likelihood of what the run ends with."""
        run = self.run
        run.mixtures, factors = self.pace.settled(run.mixtures, self.factors)
        run.check_heard()
        found = self.step.expect(run.mixtures, factors, "check")[0]
        run.end(self.step.roots, self.step.total, found)


def maximize(
    roots: Sequence[Terms],
    before: Sequence[Mixture],
    statistics: Sequence[Statistics],
    silent: NDArray[np.bool_] | None,
) -> tuple[list[Mixture], list[NDArray[np.float64]]]:
    """M-step: parameters and counts; silent roots (R,) keep what they had.

    Roots share one mixture, of which each has a part, or each has its own.
    """
    if silent is None:
        updated = [own.update(one) for own, one in zip(roots, statistics, strict=True)]
        return updated, [one.counts for one in statistics]
    masks = [silent] if len(roots) == 1 else np.split(silent, len(silent))
    mixtures, counts = [], []
    for own, old, one, mask in zip(roots, before, statistics, masks, strict=True):
        # A root that has heard of nobody has no statistics to take a step from.
        new = old if mask.all() else own.keep(own.update(one), old, mask)
        mixtures.append(new)
        counts.append(np.where(mask[:, None], np.inf, one.counts))
    return mixtures, counts
