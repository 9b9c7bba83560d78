"""Labels of some rows as a term of the sum: 0 for what a row is known to be, else out of reach.

With a label ``y`` the term of the hub whose party has it grows by 0 for component ``y`` and by a
number too large to be outweighed for all others, with probabilities ``p_k`` by ``-2 log p_k``. The
sum is then ``-2 log p_k f_k(x)``, so that EM maximizes the log-likelihood of the rows and of what
is known of them (McLachlan and Peel, Finite Mixture Models, section 2.19).
"""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats

LEAST_APART, A_FEATURE = 2.0**12, 64.0
"""Twice the nats by which features of a row may at least speak against its label, in vain, and
for each feature where there are many: it may lie eight standard deviations away in all of them."""

MOST_APART = {8: 2.0**24, 4: 2.0**14}
"""The most by bytes of a number, whose digits hold the log-likelihoods of labelled rows too."""


def out_of_reach(n_features: int, itemsize: int) -> float:
    """Return what is added for components that a row does not belong to: a power of two.

    Terms keep digits beside it: a log-likelihood per sample is as exact as ``eps`` times it.
    """
    wanted = max(LEAST_APART, A_FEATURE * n_features)
    return float(min(2.0 ** np.ceil(np.log2(wanted)), MOST_APART[itemsize]))


class Known:
    """What is known of some rows, by one of the hubs of this process.

    From the cost ``far`` on a component is out of reach; see `out_of_reach`. ``astray`` (n,) are
    responsibilities of such components at the latest E-step, at most at a root. To the hub's terms
    of ``rows`` (n,), ascending, ``costs`` (n, K) are added.
    """

    def __init__(
        self, hub: int, rows: NDArray[np.intp], costs: NDArray[np.float64], far: float
    ) -> None:
        self.hub, self.rows, self.costs, self.far = hub, rows, costs, far
        self.astray = np.zeros(len(rows))

    def _in(self, rows: slice) -> slice:
        return slice(*np.searchsorted(self.rows, [rows.start, rows.stop]))

    def add(self, terms: Floats, rows: slice) -> None:
        """Add to the terms (B, m, K) of these rows."""
        own = self._in(rows)
        terms[self.hub, self.rows[own] - rows.start] += self.costs[own].astype(terms.dtype)

    def look(self, responsibilities: Floats, rows: slice) -> None:
        """Note whether these rows (R, m, K) are where they belong."""
        own = self._in(rows)
        shares = responsibilities[:, self.rows[own] - rows.start]
        beyond = np.where(self.costs[own] >= self.far, shares, 0).sum(axis=2)
        self.astray[own] = beyond.max(axis=0, initial=0.0)

    def part(self, rows: slice) -> Known:
        """Return what is known of a run of rows, which are counted from 0 in it."""
        own = self._in(rows)
        return Known(self.hub, self.rows[own] - rows.start, self.costs[own], self.far)

    def some(self, rows: NDArray[np.intp]) -> Known:
        """Return what is known of some rows, which may come twice."""
        place = np.searchsorted(self.rows, rows)
        place[place == len(self.rows)] = 0
        found = np.flatnonzero(self.rows[place] == rows) if len(self.rows) else place[:0]
        return Known(self.hub, found, self.costs[place[found]], self.far)

    def in_hub(self, hub: int) -> Known:
        """Return the same, as another number of a hub."""
        chosen = copy(self)
        chosen.hub = hub
        return chosen
