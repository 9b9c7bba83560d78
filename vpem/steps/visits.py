"""Visits of batches: the sums they take, what is found, and the record of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.errors import PartitionedError
from vpem.network.schema import COUNT, Array, Schema, State
from vpem.steps.em import expect, log_likelihood
from vpem.steps.reinitialise import REINITIALISED_BYTES, Reinitialiser
from vpem.steps.runs import Run, note_partition
from vpem.steps.summing import begin_differences
from vpem.sums.sum import Sum
from vpem.terms.covariances import Factors
from vpem.terms.mixture import Mixture
from vpem.terms.statistics import Statistics
from vpem.terms.terms import BatchTerms, Terms


class Visits:
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
        self.factors: Factors
        total.turn_to(0, len(batches))
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

    def begin(self, number: int, n_samples: int, kind: str = "estep") -> bool:
        """Begin a sum over a batch; False where the network fell apart, which is noted."""
        self.n_sums += 1
        self.total.turn_to(number, len(self.batches))
        try:
            k = self.run.mixture.n_components
            begin_differences(self.total, kind, n_samples, k, self.terms.itemsize)
        except PartitionedError as error:
            note_partition(self.run.partitions, self.n_sums, error)
            return False
        return True

    def begin_surely(self, number: int, n_samples: int) -> None:
        """Begin a sum in which all take part, as often as it needs."""
        while not self.begin(number, n_samples, "check"):
            pass

    def check(self) -> NDArray[np.float64]:
        """Log-likelihood of the parameters, in sums in which all take part."""
        terms, total, mixture = self.terms, self.total, self.run.mixture
        if not total.whole:
            return expect(terms, total, mixture, self.factors, kind="check")
        # Sums that go on from others are of one batch each.
        found = np.zeros(total.n_roots)
        order = np.arange(len(self.batches))
        for number in range(len(order)):
            part = self.part(order, number)
            self.begin_surely(number, part.n_samples)
            found += log_likelihood(part, total, mixture, self.factors)
        return total.roots.join(found + terms.log_constant)

    def part(self, order: NDArray[np.intp], place: int) -> Terms:
        """Terms of the batch at this place of the order."""
        later = self.batches[order[place + 1]] if place + 1 < len(order) else None
        return self.terms.part(self.batches[order[place]], later)

    def look(self, number: int, part: Terms, kept: Floats | None = None) -> Statistics:
        """E-step on a batch for which a sum has begun: statistics about the current means."""
        run = self.run
        fresh = self.terms.empty(run.mixture.means, self.total.n_roots)
        found = log_likelihood(part, self.total, run.mixture, self.factors, fresh, kept)
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
        see: Callable[[int, Terms], Statistics],
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
            part = self.part(order, place)
            self.begin_surely(int(number), part.n_samples)
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
        self,
        roots: NDArray[np.bool_],
        statistics: Statistics,
        update: Callable[[Statistics], Mixture],
    ) -> bool:
        """M-step at the hubs of these roots; True where components had collapsed."""
        if not self.total.holders.any(np.array([roots.any()]))[0]:
            return False
        updated, counts = update(statistics), statistics.counts
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


def towards(
    terms: BatchTerms,
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
