"""Stochastic EM (Cappe and Moulines 2009): statistics move towards those of each batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vpem.network.schema import COUNT, Schema, State
from vpem.steps.em import expect
from vpem.steps.reinitialise import Recovery, Reinitialiser
from vpem.steps.runs import check_finite
from vpem.steps.visits import Visits, towards
from vpem.sums.sum import Sum
from vpem.terms.covariances import Factors
from vpem.terms.mixture import Mixture
from vpem.terms.statistics import Statistics
from vpem.terms.terms import BatchTerms


class Stochastic:
    """Statistics that move towards each batch's by ever smaller steps; nothing else is kept.

    The parameters stand for them: `BatchTerms.statistics_of` gives them back.
    """

    restarts = False

    def __init__(self, visits: Visits, step_size: float) -> None:
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
            if not visits.begin(int(number), part.n_samples):
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


def step(
    terms: BatchTerms,
    total: Sum,
    mixture: Mixture,
    factors: Factors,
    *,
    rate: float,
    seen: float,
    draw_row: Callable[[], int],
) -> tuple[Mixture, NDArray[np.float64], list[Recovery]]:
    """Take one step of stochastic EM with all rows that the terms hold: one batch of a stream.

    The mixture stands for all that was seen before, and statistics move by ``rate``, in (0, 1],
    towards the batch's. ``seen`` is the weight of all rows of the stream up to now, these included:
    what decides whether a component has collapsed. Returned are the mixture after the M-step, the
    batch's total log-likelihood (R,) before it, and which components collapsed.
    """
    recoveries: list[Recovery] = []
    reinitialiser = Reinitialiser(terms, total, draw_row, recoveries)
    fresh = terms.empty(mixture.means, total.n_roots)
    found = expect(terms, total, mixture, factors, fresh)
    check_finite(found, 1)
    moved = _averaged(terms, mixture, fresh, rate, seen, terms.total_weight, total)
    mixtures, _, _ = reinitialiser.check([terms], [terms.update(moved)], [moved.counts], 1)
    return mixtures[0], found, recoveries


def _averaged(
    terms: BatchTerms,
    mixture: Mixture,
    fresh: Statistics,
    rate: float,
    weight: float,
    batch_weight: float,
    total: Sum,
) -> Statistics:
    """Move the statistics that a mixture stands for towards a batch's, at the hubs heard of."""
    before = terms.statistics_of(mixture, weight, total.n_roots)
    moved = towards(terms, before, fresh, rate, weight, batch_weight)
    silent = total.silent
    return moved if silent is None else terms.with_hubs_of(moved, before, silent)
