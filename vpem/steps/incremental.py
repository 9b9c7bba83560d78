"""Incremental EM (Neal and Hinton 1993): every batch's new statistics replace its old ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_memory
from vpem.network.schema import NOTHING, NUMBER, Array, ListOf, Maybe, Schema, State
from vpem.steps.visits import Visits
from vpem.terms.mixture import Mixture
from vpem.terms.statistic_states import arrays_of, having_arrays, schema_of_arrays
from vpem.terms.statistics import Statistics
from vpem.terms.terms import Terms

RECORD_BYTES = 1 << 10
"""What the objects around one batch's statistics take."""


class Incremental:
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
        n_bytes = n_batches * (one.nbytes + RECORD_BYTES)
        if keep == "auto" and terms.by_responsibilities:
            fewer = numbers * terms.itemsize < n_bytes
            keep = "responsibilities" if fewer and n_batches > 1 else "statistics"
        if not terms.by_responsibilities:
            keep = "statistics"
            check_memory(n_bytes, f"remembering what {n_batches} batches expected of their values")
        visits.run.kept = keep
        self.statistics: dict[int, Statistics] = {}
        self.responsibilities: NDArray[np.floating] | None = None
        if keep == "responsibilities":
            shape = (total.n_roots, terms.n_samples, n_components)
            self.responsibilities = np.zeros(shape, dtype=f"f{terms.itemsize}")
        tells = total.exact and terms.tells_expected
        self.entropies = np.zeros(n_batches) if tells else None
        self.entropy = 0.0
        self.total: Statistics | None = None

    def state(self) -> State:
        """Return what is kept from one pass to the next."""
        return {
            "statistics": [
                arrays_of(self.statistics[number]) if number in self.statistics else None
                for number in range(len(self.visits.batches))
            ],
            "responsibilities": self.responsibilities,
            "entropies": self.entropies,
            "entropy": self.entropy,
            "total": None if self.total is None else arrays_of(self.total),
        }

    def schema(self, anew: bool) -> Schema:
        """Return what that must be, where the next pass begins ``anew`` or not."""
        visits, kept = self.visits, self.responsibilities
        blank = visits.terms.empty(visits.run.mixture.means, visits.total.n_roots)
        one = schema_of_arrays(arrays_of(blank))
        return {
            "statistics": ListOf(
                NOTHING if kept is not None else Maybe(one) if anew else one, len(visits.batches)
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
        self.statistics = {
            number: having_arrays(blank, one)
            for number, one in enumerate(state["statistics"])
            if one is not None
        }
        if self.responsibilities is not None:
            self.responsibilities[...] = state["responsibilities"]
        if self.entropies is not None:
            self.entropies[...] = state["entropies"]
        self.entropy = state["entropy"]
        self.total = None if state["total"] is None else having_arrays(blank, state["total"])

    def first(self, order: NDArray[np.intp], step_size: float | None) -> bool:
        """Look at all rows; whether the pass got to its end."""
        found = self.visits.begin_with_all(order, self._look, step_size)
        if found is None:
            return step_size is None
        self.total = found
        self._end_pass()
        self._note(found)
        return True

    def later(self, order: NDArray[np.intp]) -> bool:
        """One pass, batch by batch; whether it got to the end."""
        visits, terms = self.visits, self.visits.terms
        shift = visits.run.mixture.means
        assert self.total is not None
        total = terms.recentred(self.total, shift)
        anew = terms.empty(shift, visits.total.n_roots)
        for place, number in enumerate(order):
            part = visits.part(order, place)
            last = place + 1 == len(order)
            before = self._before(int(number), part)
            fresh = before
            if visits.begin(int(number), part.n_samples):
                fresh = self._look(int(number), part, before)
            fresh = terms.recentred(fresh, shift)
            anew.add(fresh)
            if last:
                total = anew
                self._end_pass()
            else:
                total.add(fresh)
                total.add(terms.recentred(before, shift), -1.0)
            self.total = total
            if self._update(total):
                return last
        return True

    def _before(self, number: int, part: Terms) -> Statistics:
        """Statistics of a batch as they were found last."""
        if self.responsibilities is None:
            return self.statistics[number]
        visits = self.visits
        found = visits.terms.empty(visits.run.mixture.means, visits.total.n_roots)
        kept = self.responsibilities[:, visits.batches[number]]
        for rows in part.chunks(visits.total.values_per_item * kept.shape[2]):
            part.summarize(found, np.ascontiguousarray(kept[:, rows]), rows)
        return found

    def _look(self, number: int, part: Terms, before: Statistics | None = None) -> Statistics:
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

    def _update(self, total: Statistics) -> bool:
        """M-step; True where components had collapsed."""
        visits, terms = self.visits, self.visits.terms
        again = visits.settle(terms.update(total), total.counts)
        if not again:
            # Statistics of before say nothing of a re-initialised component.
            self._note(total)
        return again

    def _note(self, total: Statistics) -> None:
        """Note the free energy."""
        visits, terms = self.visits, self.visits.terms
        if self.entropies is not None:
            expected = terms.expected(total, visits.run.mixture, visits.factors)
            visits.run.free_energy.append(float(expected + self.entropy + terms.log_constant))
