"""EM in small batches: incremental, with every batch's statistics swapped, or stochastic.

An iteration works on the rows of one batch, so that neither its cost nor what it sends depends on
how many rows there are. As `em.fit`, it knows terms and sum only by their protocols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_int
from vpem.errors import InputError, PartitionedError, Setting, check_choice
from vpem.network.schema import COUNT, FLAG, NOTHING, NUMBER, Array, ListOf, Maybe, Schema, State
from vpem.steps import em
from vpem.steps.reinitialise import REINITIALISED_BYTES, Recovery, Reinitialiser
from vpem.steps.runs import Progress, Run, check_finite
from vpem.steps.saver import STREAM, NoSaver, Saver, set_stream, stream_state
from vpem.sums.sum import Sum
from vpem.terms.mixture import Factors, Mixture
from vpem.terms.terms import BatchTerms, Terms

__all__ = [
    "KEEPS",
    "STEP_SIZE",
    "check_batches",
    "check_step_size",
    "fit_batches",
    "step",
]

KEEPS = ("auto", "statistics", "responsibilities")
"""What incremental EM remembers of a batch."""

STEP_SIZE = 0.6
"""Exponent of the steps where none is given, as Cappe and Moulines advise."""

RECORD_BYTES = 1 << 10
"""What the objects around one batch's statistics take."""


def check_step_size(step_size: float) -> float:
    """Return the exponent of the steps, or raise InputError if it is not in (0.5, 1]."""
    if isinstance(step_size, bool) or not isinstance(step_size, int | float | np.number):
        size = np.nan
    else:
        size = float(step_size)
    if not 0.5 < size <= 1:
        raise InputError(
            Setting("step_size"),
            f" must be a number above 0.5 and at most 1, got {step_size!r}; try {STEP_SIZE:g}",
        )
    return size


def check_batches(batch_size: object, step_size: float | None) -> tuple[int | None, float | None]:
    """Return the rows of a batch and the exponent of its steps, or raise InputError."""
    if step_size is not None:
        step_size = check_step_size(step_size)
        if batch_size is None:
            raise InputError(
                Setting("step_size"),
                " is how far the statistics move toward a batch's, but there are no batches; give ",
                Setting("batch_size"),
            )
    return None if batch_size is None else check_int("batch_size", batch_size, least=1), step_size


def fit_batches(
    terms: BatchTerms,
    total: Sum,
    start: Mixture,
    *,
    batch_size: int,
    step_size: float | None = None,
    tol: float,
    max_iter: int,
    draw_row: Callable[[], int],
    rng: np.random.Generator,
    keep: str = "auto",
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
) -> Run:
    """Fit a mixture by EM in batches.

    Every iteration runs the E-step on one batch (a fixed run of neighbouring rows) and an M-step.
    A pass takes all batches, in an order that the agents draw alike from a shared seed and keep, so
    that what is replaced is always what is oldest. In the first pass the M-steps of incremental EM
    are stochastic ones: what was found under the first, poor parameters is soon forgotten.

    Parameters
    ----------
    terms : BatchTerms
        What each hub adds to the sum.
    total : Sum
        How the sum is taken. In the first pass all agents take part in it.
    start : Mixture
        Parameters to start from.
    batch_size : int
        Rows of a batch. With as many as there are it is `em.fit`, iteration by iteration.
    step_size : float, optional
        None: incremental EM (Neal and Hinton 1993): the batch's new statistics replace its old
        ones, and with exact sums the free energy never falls. A number in (0.5, 1]: stochastic EM
        (Cappe and Moulines 2009), which keeps nothing: statistics a unit weight move by
        ``S += rho (S_batch - S)``, ``rho_t = t^-step_size`` at the t-th batch.
    tol : float
        In nats per sample. Each root watches its log-likelihood over a pass, the sum of the
        batches' as it found them when it was last there; the network stops when it changed by less
        at all roots, each of which heard most of the batches.
    max_iter : int
        Most passes over the data, the first included.
    draw_row : callable
        Next row of the stream shared by all agents, for placing collapsed components. After that
        the next pass of incremental EM is one E-step over all rows; stochastic EM goes on from the
        statistics that its parameters stand for.
    rng : Generator
        Draws the order of the batches.
    keep : {"auto", "statistics", "responsibilities"}
        What a root of incremental EM remembers of a batch, to take out when it comes again: its
        statistics, or its responsibilities, from which the statistics are formed anew, at the cost
        of a second look at the rows; the same numbers up to rounding. "auto" takes what is
        smaller: ``K sum d_b^2`` numbers a batch, or ``R K`` numbers a row. Statistics allow the
        fused sweep, which never writes responsibilities down.
    callback : callable, optional
        Told of every pass.
    saver : Saver, optional
        Is offered the state after every pass; ``start`` is what it has saved, if anything.

    Returns
    -------
    Run

    Raises
    ------
    InputError
        If an option is out of range.
    NumericalError
        If a log-likelihood is not finite, or no component is left.

    Notes
    -----
    Statistics stand about the means of their own E-step and are moved to a common shift (the means
    at the start of the pass) only where they are added, so that they lose no digits. As every batch
    is visited once a pass, the sum of what was new in the pass replaces the running total at its
    end: rounding does not add up over passes.

    In the first pass a hub takes no M-step from fewer rows than `BatchTerms.enough` asks for: as
    many as would vary as much, were all batches worth the same. A hub that never had enough takes
    one at the end of the pass, from all rows.
    """
    size = min(check_int("batch_size", batch_size, least=1), terms.n_samples)
    check_choice("keep", keep, KEEPS)
    edges = [*range(0, terms.n_samples, size), terms.n_samples]
    batches = [slice(begin, end) for begin, end in pairwise(edges)]
    run = Run([start])
    visits = _Visits(terms, total, batches, run, draw_row)
    fitting = (
        _Incremental(visits, start, keep)
        if step_size is None
        else _Stochastic(visits, check_step_size(step_size))
    )
    saver = saver or NoSaver()
    anew = True
    opening = None if len(batches) == 1 else fitting.step_size
    if saver.saved is None:
        visits.start(start)
        order = rng.permutation(len(batches))
    else:
        visits.factors = terms.prepare(start)
        own = {
            "visits": visits.schema(),
            "anew": FLAG,
            "fitting": fitting.schema(saver.saved.get("anew") is True),
            "order": Array("i", (len(batches),), 0, len(batches) - 1),
            "stream": STREAM,
        }
        run.restore(saver, total, visits.reinitialiser, max_iter, batches=own)
        visits.restore(saver.saved["visits"])
        fitting.restore(saver.saved["fitting"])
        order, anew, opening = saver.saved["order"], saver.saved["anew"], None
        set_stream(rng, saver.saved["stream"])

    def state() -> State:
        return {
            **run.state(total, visits.reinitialiser, len(run.history)),
            "visits": visits.state(),
            "fitting": fitting.state(),
            "order": order,
            "anew": anew,
            "stream": stream_state(rng),
        }

    while len(run.history) < max_iter and not run.converged:
        visits.begin_pass()
        if run.history and not fitting.restarts:
            order = rng.permutation(len(batches))
        complete = fitting.first(order, opening) if anew else fitting.later(order)
        opening = None
        again = visits.reinitialised
        anew = again and (fitting.restarts or not complete)
        if not complete:
            saver.offer(state)
            continue
        found = total.report(visits.log_likelihoods.sum(axis=0) + terms.log_constant)
        check_finite(found, len(run.history) + 1)
        small = run.note(terms, total, found, tol, callback)
        run.converged = small and not again and bool((2 * visits.heard > len(batches)).all())
        saver.offer(state, last=run.converged or len(run.history) == max_iter)
    run.log_likelihood = em.expect(terms, total, run.mixture, visits.factors, kind="check")
    check_finite(run.log_likelihood, len(run.history))
    return run


def step(
    terms: BatchTerms,
    total: Sum,
    mixture: Mixture,
    factors: Any,
    *,
    rate: float,
    seen: float,
    draw_row: Callable[[], int],
) -> tuple[Mixture, NDArray[np.float64], list[Recovery]]:
    """Take one step of stochastic EM with all rows that the terms hold: one batch of a stream.

    Parameters
    ----------
    terms : BatchTerms
        Of the batch.
    total : Sum
        How the sum is taken.
    mixture : Mixture
        Current parameters, which stand for all that was seen before.
    factors
        ``terms.prepare(mixture)``.
    rate : float
        How far the statistics move towards the batch's, in (0, 1].
    seen : float
        Weight of all rows of the stream up to now, these included: what decides whether a
        component has collapsed.
    draw_row : callable
        Next row of the batch, for placing collapsed components.

    Returns
    -------
    mixture : Mixture
        Parameters after the M-step.
    log_likelihood : ndarray of shape (R,)
        Total log-likelihood of the batch before it, as each root finds it.
    recoveries : list of Recovery
        Components that collapsed.
    """
    recoveries: list[Recovery] = []
    reinitialiser = Reinitialiser(terms, total, draw_row, recoveries)
    total.begin("estep", terms.n_samples, mixture.n_components, terms.itemsize)
    fresh = terms.empty(mixture.means, total.n_roots)
    found = total.report(_visit(terms, total, mixture, factors, fresh) + terms.log_constant)
    check_finite(found, 1)
    moved = _averaged(terms, mixture, fresh, rate, seen, terms.total_weight, total)
    mixtures, _, _ = reinitialiser.check([terms], [terms.update(moved)], [moved.counts], 1)
    return mixtures[0], found, recoveries


def _averaged(
    terms: BatchTerms,
    mixture: Mixture,
    fresh: Any,
    rate: float,
    weight: float,
    batch_weight: float,
    total: Sum,
) -> Any:
    """Move the statistics that a mixture stands for towards a batch's, at the hubs heard of."""
    before = terms.statistics_of(mixture, weight, total.n_roots)
    moved = _towards(terms, before, fresh, rate, weight, batch_weight)
    silent = total.silent
    return moved if silent is None else terms.with_hubs_of(moved, before, silent)


def _towards(
    terms: BatchTerms, before: Any, fresh: Any, rate: float, weight: float, batch_weight: float
) -> Any:
    """Move statistics of this weight towards a batch's, about the batch's centres."""
    if rate == 1.0:
        moved = terms.recentred(fresh, fresh.shifts)
        moved.scale(weight / batch_weight)
        return moved
    moved = terms.recentred(before, fresh.shifts)
    moved.scale(1 - rate)
    moved.add(fresh, rate * weight / batch_weight)
    return moved


def _visit(
    part: Terms,
    total: Sum,
    mixture: Mixture,
    factors: Any,
    statistics: Any,
    kept: NDArray[Any] | None = None,
) -> NDArray[np.float64]:
    """E-step on a part's rows in a sum that has begun: log-likelihood (R,) without the constant.

    With ``kept`` (R, m, K) the responsibilities are written there; those of silent roots stay.
    """
    if kept is None and total.mix is not None:
        return part.sweep(mixture, factors, total.mix, statistics)
    found = np.zeros(total.n_roots)
    silent = total.silent
    width = mixture.n_components
    for rows, sums in em.summed(part, total, width, partial(part.local, factors)):
        responsibilities, log_likelihoods = part.responsibilities(mixture, sums, rows)
        if kept is not None:
            if silent is not None:
                responsibilities[silent] = kept[silent, rows]
            kept[:, rows] = responsibilities
        part.summarize(statistics, responsibilities, rows)
        found += log_likelihoods
    return found


class _Visits:
    """Visits of batches: the sums they take, what is found, and the record of it."""

    def __init__(
        self,
        terms: BatchTerms,
        total: Sum,
        batches: list[slice],
        run: Run,
        draw_row: Callable[[], int],
    ) -> None:
        self.terms = terms
        self.total = total
        self.batches = batches
        self.run = run
        self.reinitialiser = Reinitialiser(terms, total, draw_row, run.recoveries)
        self.factors: Any = None
        self.log_likelihoods = np.zeros((len(batches), total.n_roots))
        self.heard = np.zeros(total.n_roots, dtype=np.intp)
        self.reinitialised = False
        self.n_sums = 0

    def start(self, start: Mixture) -> None:
        """Begin at a mixture, with singular components re-initialised."""
        self._take(*self.reinitialiser.start([self.terms], [start]))

    def state(self) -> State:
        """Return what is kept from one pass to the next."""
        return {"log_likelihoods": self.log_likelihoods, "n_sums": self.n_sums}

    def schema(self) -> Schema:
        """Return what that must be."""
        return {"log_likelihoods": Array("f8", self.log_likelihoods.shape), "n_sums": COUNT}

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        self.log_likelihoods[...] = state["log_likelihoods"]
        self.n_sums = state["n_sums"]

    @property
    def number(self) -> int:
        """Of this pass, from 1."""
        return len(self.run.history) + 1

    def begin_pass(self) -> None:
        """Nobody has been heard, nothing has been re-initialised."""
        self.heard[:] = 0
        self.reinitialised = False

    def begin(self, n_samples: int, kind: str = "estep") -> bool:
        """Begin a sum; False where the network fell apart, which is noted."""
        self.n_sums += 1
        try:
            self.total.begin(kind, n_samples, self.run.mixture.n_components, self.terms.itemsize)
        except PartitionedError as error:
            self.run.note_partition(self.n_sums, error)
            return False
        return True

    def begin_surely(self, n_samples: int) -> None:
        """Begin a sum in which all take part, as often as it needs."""
        while not self.begin(n_samples, "check"):
            pass

    def part(self, order: NDArray[np.intp], place: int) -> Terms:
        """Terms of the batch at this place of the order."""
        later = self.batches[order[place + 1]] if place + 1 < len(order) else None
        return self.terms.part(self.batches[order[place]], later)

    def look(self, number: int, part: Terms, kept: NDArray[Any] | None = None) -> Any:
        """E-step on a batch for which a sum has begun: statistics about the current means."""
        run = self.run
        fresh = self.terms.empty(run.mixture.means, self.total.n_roots)
        found = _visit(part, self.total, run.mixture, self.factors, fresh, kept)
        silent = self.total.silent
        if silent is not None:
            found = np.where(silent, self.log_likelihoods[number], found)
        self.log_likelihoods[number] = found
        self.heard += 1 if silent is None else ~silent
        run.n_passes += part.n_samples / self.terms.n_samples
        return fresh

    def begin_with_all(
        self,
        order: NDArray[np.intp],
        see: Callable[[int, Terms], Any],
        step_size: float | None,
    ) -> Any:
        """First pass, in which all take part: statistics of all rows, or None if it was broken off.

        With a step size there are M-steps between batches. What was found before would undo that a
        component is re-initialised there: the pass is broken off.
        """
        terms, weight = self.terms, self.terms.total_weight
        everything = terms.empty(self.run.mixture.means, self.total.n_roots)
        recent, spread, time = None, 1.0, 0
        moved = np.zeros(self.total.n_roots, dtype=bool)
        for place, number in enumerate(order):
            part = self.part(order, place)
            self.begin_surely(part.n_samples)
            fresh = see(int(number), part)
            everything.add(terms.recentred(fresh, everything.shifts))
            if step_size is None or part.total_weight == 0:
                continue
            time += 1
            rate = time**-step_size
            recent = _towards(terms, recent, fresh, rate, weight, part.total_weight)
            n_rows = part.total_weight / min(1.0, weight / terms.n_samples)
            spread = (1 - rate) ** 2 * spread + rate**2 / n_rows
            ready = terms.enough(recent.counts / (weight * spread))
            moved |= ready
            if self._settle_at(ready, recent):
                return None
        return None if self._settle_at(~moved, everything) else everything

    def _settle_at(self, roots: NDArray[np.bool_], statistics: Any) -> bool:
        """M-step at the hubs of these roots; True where components had collapsed."""
        if not self.total.some(np.array([roots.any()]))[0]:
            return False
        updated, counts = self.terms.update(statistics), statistics.counts
        if not roots.all():
            updated = self.terms.keep(updated, self.run.mixture, ~roots)
            counts = np.where(roots[:, None], counts, np.inf)
        return self.settle(updated, counts)

    def settle(self, updated: Mixture, counts: NDArray[np.float64]) -> bool:
        """Take on what an M-step gave; True where components had collapsed."""
        return self._take(*self.reinitialiser.check([self.terms], [updated], [counts], self.number))

    def _take(self, mixtures: list[Mixture], factors: list[Factors], again: bool) -> bool:
        self.run.mixtures, self.factors = mixtures, factors[0]
        self.reinitialised = self.reinitialised or again
        if again:
            self.total.agree("flooding", REINITIALISED_BYTES)
        return again


class _Incremental:
    """Statistics of all rows, in which those of one batch are replaced at a time."""

    restarts = True
    """Whether an E-step over all rows follows a re-initialisation: statistics would undo it."""
    step_size: float = STEP_SIZE
    """In the first pass."""

    def __init__(self, visits: _Visits, start: Mixture, keep: str) -> None:
        self.visits = visits
        terms, total, batches = visits.terms, visits.total, visits.batches
        n_batches, n_components = len(batches), start.n_components
        one = terms.empty(start.means, total.n_roots)
        numbers = total.n_roots * terms.n_samples * n_components
        if keep == "auto":
            fewer = numbers * terms.itemsize < n_batches * (one.nbytes + RECORD_BYTES)
            keep = "responsibilities" if fewer and n_batches > 1 else "statistics"
        visits.run.kept = keep
        self.statistics: list[Any] = [None] * n_batches
        self.responsibilities: NDArray[Any] | None = None
        if keep == "responsibilities":
            shape = (total.n_roots, terms.n_samples, n_components)
            self.responsibilities = np.zeros(shape, dtype=f"f{terms.itemsize}")
        # One estimate that all share is exact: compressed sums, which are not, know no batches.
        exact = getattr(total, "exact", total.mix is not None and bool((total.mix == 1).all()))
        self.entropies = np.zeros(n_batches) if exact else None
        self.entropy = 0.0
        self.total: Any = None

    def state(self) -> State:
        """Return what is kept from one pass to the next."""
        return {
            "statistics": [None if one is None else dict(vars(one)) for one in self.statistics],
            "responsibilities": self.responsibilities,
            "entropies": self.entropies,
            "entropy": self.entropy,
            "total": None if self.total is None else dict(vars(self.total)),
        }

    def schema(self, anew: bool) -> Schema:
        """Return what that must be, where the next pass begins ``anew`` or not."""
        visits, kept = self.visits, self.responsibilities
        blank = vars(visits.terms.empty(visits.run.mixture.means, visits.total.n_roots))
        one: Schema = {name: Array(own.dtype.str[1:], own.shape) for name, own in blank.items()}
        return {
            "statistics": ListOf(
                NOTHING if kept is not None else Maybe(one) if anew else one, len(self.statistics)
            ),
            "responsibilities": NOTHING if kept is None else Array(kept.dtype.str[1:], kept.shape),
            "entropies": NOTHING if self.entropies is None else Array("f8", self.entropies.shape),
            "entropy": NUMBER,
            "total": Maybe(one) if anew else one,
        }

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        visits = self.visits
        blank = visits.terms.empty(visits.run.mixture.means, visits.total.n_roots)
        self.statistics[:] = [
            None if one is None else replace(blank, **one) for one in state["statistics"]
        ]
        if self.responsibilities is not None:
            self.responsibilities[...] = state["responsibilities"]
        if self.entropies is not None:
            self.entropies[...] = state["entropies"]
        self.entropy = state["entropy"]
        self.total = None if state["total"] is None else replace(blank, **state["total"])

    def first(self, order: NDArray[np.intp], step_size: float | None) -> bool:
        """Look at all rows; whether the pass got to its end."""
        found = self.visits.begin_with_all(order, self._look, step_size)
        if found is None:
            return step_size is None
        self.total = found
        self._end_pass()
        self._note()
        return True

    def later(self, order: NDArray[np.intp]) -> bool:
        """One pass, batch by batch; whether it got to the end."""
        visits, terms = self.visits, self.visits.terms
        shift = visits.run.mixture.means
        self.total = terms.recentred(self.total, shift)
        anew = terms.empty(shift, visits.total.n_roots)
        for place, number in enumerate(order):
            part = visits.part(order, place)
            last = place + 1 == len(order)
            before = self._before(int(number), part)
            fresh = before
            if visits.begin(part.n_samples):
                fresh = self._look(int(number), part, before)
            fresh = terms.recentred(fresh, shift)
            anew.add(fresh)
            if last:
                self.total = anew
                self._end_pass()
            else:
                self.total.add(fresh)
                self.total.add(terms.recentred(before, shift), -1.0)
            if self._update():
                return last
        return True

    def _before(self, number: int, part: Terms) -> Any:
        """Statistics of a batch as they were found last."""
        if self.responsibilities is None:
            return self.statistics[number]
        visits = self.visits
        found = visits.terms.empty(visits.run.mixture.means, visits.total.n_roots)
        kept = self.responsibilities[:, visits.batches[number]]
        for rows in part.chunks(visits.total.values_per_item * kept.shape[2]):
            part.summarize(found, np.ascontiguousarray(kept[:, rows]), rows)
        return found

    def _look(self, number: int, part: Terms, before: Any = None) -> Any:
        """E-step on a batch: its statistics, which are remembered."""
        visits, terms = self.visits, self.visits.terms
        kept = self.responsibilities
        if kept is None:
            fresh = visits.look(number, part)
            silent = visits.total.silent
            if silent is not None and before is not None:
                fresh = terms.with_hubs_of(fresh, before, silent)
            self.statistics[number] = fresh
        else:
            fresh = visits.look(number, part, kept[:, visits.batches[number]])
        if self.entropies is not None:
            # Where gamma is the posterior, sum gamma log g~ - sum gamma log gamma is the
            # log-likelihood.
            own = float(visits.log_likelihoods[number, 0])
            entropy = own - terms.expected(fresh, visits.run.mixture, visits.factors)
            self.entropy += entropy - self.entropies[number]
            self.entropies[number] = entropy
        return fresh

    def _end_pass(self) -> None:
        if self.entropies is not None:
            self.entropy = float(self.entropies.sum())

    def _update(self) -> bool:
        """M-step; True where components had collapsed."""
        visits, terms = self.visits, self.visits.terms
        again = visits.settle(terms.update(self.total), self.total.counts)
        if not again:
            # Statistics of before say nothing of a re-initialised component.
            self._note()
        return again

    def _note(self) -> None:
        """Note the free energy."""
        visits, terms = self.visits, self.visits.terms
        if self.entropies is not None:
            expected = terms.expected(self.total, visits.run.mixture, visits.factors)
            visits.run.free_energy.append(float(expected + self.entropy + terms.log_constant))


class _Stochastic:
    """Statistics that move towards each batch's by ever smaller steps; nothing else is kept.

    The parameters stand for them: `BatchTerms.statistics_of` gives them back.
    """

    restarts = False

    def __init__(self, visits: _Visits, step_size: float) -> None:
        self.visits = visits
        self.step_size = step_size
        self.time = 0

    def state(self) -> State:
        """Return how many batches there were."""
        return {"time": self.time}

    def schema(self, anew: bool) -> Schema:
        """Return what that must be."""
        return {"time": COUNT}

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        self.time = state["time"]

    def first(self, order: NDArray[np.intp], step_size: float | None) -> bool:
        """Look at all rows; whether the pass got to its end."""
        self.time = len(order)
        found = self.visits.begin_with_all(order, self.visits.look, step_size)
        return found is not None or step_size is None

    def later(self, order: NDArray[np.intp]) -> bool:
        """One pass, batch by batch."""
        visits, terms = self.visits, self.visits.terms
        for place, number in enumerate(order):
            part = visits.part(order, place)
            if not visits.begin(part.n_samples):
                continue
            fresh = visits.look(int(number), part)
            self.time += 1
            if part.total_weight == 0:
                continue
            moved = _averaged(
                terms,
                visits.run.mixture,
                fresh,
                self.time**-self.step_size,
                terms.total_weight,
                part.total_weight,
                visits.total,
            )
            visits.settle(terms.update(moved), moved.counts)
        return True
