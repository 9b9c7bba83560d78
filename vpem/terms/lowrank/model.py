"""FedMissEM's statistic and its M-step: copies of a matrix, filled in, and factors of low rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.network.schema import Array, Schema, State
from vpem.terms.lowrank.factors import LowRank, descend, shrink
from vpem.terms.lowrank.laws import Gaussian, Law
from vpem.terms.lowrank.observations import Observations

__all__ = ["ImputationModel"]

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
    n_copies : int
        Copies of the matrix of which the observers saw parts: at least as many as observers saw
        any one entry.

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
        self, observations: Observations, law: Law, rank: int, ridge: float, n_copies: int
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
        self._point = LowRank.zeros(*self.shape, rank)
        self._known: tuple[LowRank, Matrix] | None = None
        every = np.concatenate(observations.places)
        values = np.concatenate(observations.values)
        self._seen = np.bincount(every, minlength=self.size)
        self._total = np.bincount(every, values, self.size)
        self._base = float(law.base(values).sum())

    def means(self, parameters: LowRank) -> Matrix:
        """Expectations of all entries (I J,), kept from one observer's turn to the next."""
        if self._known is None or self._known[0] is not parameters:
            self._known = (parameters, self.law.mean(parameters.theta.ravel()))
        return self._known[1]

    def expect(self, worker: int, parameters: Any, rows: NDArray[np.intp] | None) -> Matrix:
        """Fill an observer's copy: what it saw, and elsewhere what the parameters foretell.

        Parameters
        ----------
        worker : int
            Which observer.
        parameters : LowRank
            Current ones.
        rows : ndarray or None
            Some of the entries that it saw, which stand for all of them; None: all.

        Returns
        -------
        ndarray of shape (I J,)
        """
        means = self.means(parameters)
        found = means.copy()
        places = self.observations.places[worker]
        values = self.observations.values[worker]
        share = self._share
        if rows is not None:
            share *= len(places) / len(rows)
            places, values = places[rows], values[rows]
        np.add.at(found, places, share * (values - means[places]))
        return found

    def maximize(self, statistic: Matrix) -> tuple[LowRank, int]:
        """Fit theta to a statistic (I J,); means outside the law's domain are moved to its edge."""
        low, high = self.law.domain()
        outside = (statistic < low - OUTSIDE) | (statistic > high + OUTSIDE)
        filled = np.clip(statistic, low, high).reshape(self.shape)
        if isinstance(self.law, Gaussian):
            point = shrink(filled, self.ridge * self.law.dispersion, self.rank)
        else:
            point = self._point = descend(self.law, filled, self.ridge, self._point)
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
        """Return where an M-step that is a descent sets out from."""
        return self.pack(self._point)

    def schema(self) -> Schema:
        """Return what that must be."""
        return self.packed()

    def restore(self, state: State) -> None:
        """Go on from there."""
        self._point = self.unpack(state)

    def log_likelihood(self, parameters: LowRank) -> float:
        """Log-likelihood of all entries seen together, in nats."""
        theta = parameters.theta.ravel()
        fit = float(self._total @ theta - self._seen @ self.law.cumulant(theta))
        return fit / self.law.dispersion + self._base

    def objective(self, parameters: LowRank) -> float:
        """Penalized log-likelihood an entry seen: EM never lowers it."""
        penalty = self.n_copies * self.ridge * parameters.penalty
        return (self.log_likelihood(parameters) - penalty) / int(self.counts.sum())
