"""FedMissEM's statistic and its M-step: copies of a matrix, filled in, and factors of low rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.network.schema import Array, Schema, State
from vpem.terms.lowrank.factors import LowRank, descend, shrink
from vpem.terms.lowrank.laws import Gaussian, Law
from vpem.terms.lowrank.observations import Observations

Matrix = NDArray[np.float64]

OUTSIDE = 1e-9
"""How far a mean may lie outside its law's domain before this counts as projected."""


class ImputationModel:
    """What FedEM needs to know of imputation (`vpem.steps.fedruns.StatisticModel`).

    Parameters
    ----------
    observations : Observations
        Who saw what.
    law : Law
        Of the entries.
    rank : int
        Of theta.
    ridge : float
        Penalty of the factors.
    n_copies : float
        Copies of the matrix of which the observers saw parts: at least as many as observers saw
        any one entry, or what their weights of it add up to.
    n_roots : int
        How many keep a statistic. Where an M-step is a descent each sets out from where its last
        one ended, and so does that of the mean of them, which the next number stands for.
    parts : sequence of Observations, optional
        What observers of this process saw, in parts of which a number each is added up. None: all.
    add_up : callable
        Adds up a number of each part, those of other processes too.
    most : float, optional
        What no value that was seen is beyond, as all know where sums are masked.

    Attributes
    ----------
    size : int
        Numbers of a statistic, I J.
    pieces : tuple of slice
        The whole of it: entries have one unit.
    counts : ndarray of shape (n,)
        Entries that each observer saw.
    start : ndarray of shape (I J,)
        The statistic of theta = 0, which all know.
    """

    def __init__(
        self,
        observations: Observations,
        law: Law,
        rank: int,
        ridge: float,
        n_copies: float,
        *,
        n_roots: int = 1,
        parts: Sequence[Observations] | None = None,
        add_up: Callable[[Matrix], float] = np.sum,
        most: float | None = None,
    ) -> None:
        self.observations = observations
        self.law = law
        self.rank = rank
        self.ridge = ridge
        self.n_copies = n_copies
        self.shape = observations.shape
        self.size = self.shape[0] * self.shape[1]
        self.pieces: tuple[slice, ...] = (slice(0, self.size),)
        self.counts = observations.counts
        self.start = law.mean(np.zeros(self.size))
        # Observers n, copies c: each has n/c entries' worth of news where it saw one.
        self._share = observations.n_observers / n_copies
        self.bounds: Matrix | None = None
        if most is not None:
            # What is foretold goes beyond what was seen, but not far.
            largest = 2.0 * (1.0 + self._share) * max(most, float(np.abs(self.start).max()), 1.0)
            self.bounds = np.full(self.size, largest)
        self._points = [LowRank.zeros(*self.shape, rank)] * (1 if n_roots == 1 else n_roots + 1)
        self._known: tuple[LowRank, Matrix] | None = None
        self._add_up = add_up
        parts = [observations] if parts is None else parts
        self._seen, self._total = np.zeros((2, len(parts), self.size))
        self._base, masses = np.zeros((2, len(parts)))
        for one, part in enumerate(parts):
            self._seen[one], self._total[one] = (found.ravel() for found in part.sums())
            places, values, weights = part.entries(range(part.n_observers))
            base = law.base(values)
            if isinstance(law, Gaussian):
                # Squares of what is left of a mean: those of the data themselves would cancel.
                mean = self._total[one] / np.where(self._seen[one] > 0, self._seen[one], 1.0)
                self._total[one], base = mean, law.base(values - mean[places])
            self._base[one] = (base if weights is None else weights * base).sum()
            masses[one] = 0.0 if weights is None else weights.sum()
        self.total_weight: float = observations.n_entries
        if observations.weights is not None:
            self.total_weight = add_up(masses)

    @property
    def masses(self) -> NDArray[np.intp]:
        """What each observer's entries weigh, (n,): 1 each."""
        return self.counts

    def draw(self, worker: int, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
        """Draw so many different entries of an observer's, fewer than it saw."""
        drawn: NDArray[np.intp] = rng.choice(
            int(self.counts[worker]), count, replace=False, shuffle=False
        )
        return drawn

    def means(self, parameters: LowRank) -> Matrix:
        """Expectations of all entries (I J,), kept from one observer's turn to the next."""
        if self._known is None or self._known[0] is not parameters:
            self._known = (parameters, self.law.mean(parameters.theta.ravel()))
        return self._known[1]

    def expect(self, worker: int, parameters: Any, rows: NDArray[np.intp] | None) -> Matrix:
        """Fill an observer's copy (I J,): what it saw, and elsewhere what the parameters foretell.

        ``rows`` are some of the entries that it saw, which stand for all of them (None: all). Where
        the observer lives in another process it is zeros.
        """
        places = self.observations.places[worker]
        if not len(places):
            return np.zeros(self.size)
        means = self.means(parameters)
        found = means.copy()
        values = self.observations.values[worker]
        share: Any = self._share
        if self.observations.weights is not None:
            share = share * self.observations.weights[worker]
        if rows is not None:
            share = share * (len(places) / len(rows))
            share = share[rows] if isinstance(share, np.ndarray) else share
            places, values = places[rows], values[rows]
        np.add.at(found, places, share * (values - means[places]))
        return found

    def maximize(self, statistic: Matrix, root: int = 0) -> tuple[LowRank, int]:
        """Fit theta to a statistic (I J,); means outside the law's domain are moved to its edge."""
        low, high = self.law.domain()
        outside = (statistic < low - OUTSIDE) | (statistic > high + OUTSIDE)
        filled = np.clip(statistic, low, high).reshape(self.shape)
        if isinstance(self.law, Gaussian):
            point = shrink(filled, self.ridge * self.law.dispersion, self.rank)
        else:
            point = descend(self.law, filled, self.ridge, self._points[root])
            self._points[root] = point
        return point, int(outside.sum())

    def pack(self, parameters: LowRank) -> State:
        """Parameters as arrays."""
        return {"U": parameters.U, "V": parameters.V}

    def packed(self) -> Schema:
        """Return what these must be."""
        rows, columns = self.shape
        return {"U": Array("f8", (rows, self.rank)), "V": Array("f8", (columns, self.rank))}

    def unpack(self, state: State) -> LowRank:
        """Parameters of these arrays."""
        return LowRank(state["U"], state["V"])

    def state(self) -> State:
        """Return where M-steps that are descents set out from."""
        return {
            "U": np.stack([point.U for point in self._points]),
            "V": np.stack([point.V for point in self._points]),
        }

    def schema(self) -> Schema:
        """Return what that must be."""
        n, (rows, columns) = len(self._points), self.shape
        return {"U": Array("f8", (n, rows, self.rank)), "V": Array("f8", (n, columns, self.rank))}

    def restore(self, state: State) -> None:
        """Go on from there."""
        self._points = [LowRank(U, V) for U, V in zip(state["U"], state["V"], strict=True)]

    def log_likelihood(self, parameters: LowRank) -> float:
        """Log-likelihood of all entries seen together, in nats."""
        theta = parameters.theta.ravel()
        # Part by part: a product with all at once rounds by how many there are in this process.
        pairs = list(zip(self._total, self._seen, strict=True))
        if isinstance(self.law, Gaussian):
            fit = np.array([-0.5 * (seen @ (mean - theta) ** 2) for mean, seen in pairs])
        else:
            cumulant = self.law.cumulant(theta)
            fit = np.array([total @ theta - seen @ cumulant for total, seen in pairs])
        return float(self._add_up(fit / self.law.dispersion + self._base))

    def objective(self, parameters: LowRank) -> float:
        """Penalized log-likelihood an entry seen: EM never lowers it."""
        penalty = self.n_copies * self.ridge * parameters.penalty
        return (self.log_likelihood(parameters) - penalty) / self.total_weight
