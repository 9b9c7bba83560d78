"""What devices have: chains of their individuals, smoothed statistics, models of their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem.network.holdings import Workers
from vpem.network.schema import Array, Schema, State
from vpem.saem.chains import Chains, Sampler
from vpem.saem.models.model import Counts, SaemModel, Vector
from vpem.saem.streams import Streams

__all__ = ["Devices"]


class Devices:
    """What devices have: chains of their individuals, smoothed statistics, models of their own.

    Parameters
    ----------
    model : SaemModel
        Of all individuals.
    held : Workers
        Who holds which.
    sampler : Sampler
        Of the latents.
    chains : Chains
        Of all individuals, changed in place.
    seed : int
        Of individuals' random numbers.
    statistics : ndarray of shape (n, P)
        First statistics.
    theta : ndarray of shape (p,)
        First parameters.

    Attributes
    ----------
    smoothed : ndarray of shape (D, P)
        Mean statistic of each device's individuals, averaged over iterations.
    """

    def __init__(
        self,
        model: SaemModel,
        held: Workers,
        sampler: Sampler,
        chains: Chains,
        seed: int,
        statistics: Vector,
        theta: Vector,
    ) -> None:
        self.model, self.held, self.sampler, self.chains = model, held, sampler, chains
        self.streams = Streams.of(model.individuals.names, seed)
        self.smoothed = np.stack([statistics[rows].mean(axis=0) for rows in held.rows])
        rows_of = model.individuals.counts
        self._counts = [Counts(len(rows), int(rows_of[rows].sum())) for rows in held.rows]
        self._models = np.tile(theta, (held.n_workers, 1))  # the last of each device
        self._known = np.zeros(held.n_workers, dtype=np.bool_)

    def simulate(self, theta: Vector, active: NDArray[np.intp], now: int, late: int) -> Vector:
        """Move the chains of the active devices; the mean statistic of each (a, P)."""
        model, chains = self.model, self.chains
        if len(active) == self.held.n_workers:
            self.sampler.move(model, theta, chains, self.streams, now, late)
            each = model.statistics(chains.z)
            return np.stack([each[rows].mean(axis=0) for rows in self.held.rows])
        held = [self.held.rows[one] for one in active]
        which = np.concatenate(held)
        part, some = chains.take(which), model.take(which)
        self.sampler.move(some, theta, part, self.streams.take(which), now, late)
        chains.put(which, part)
        ends = np.cumsum([len(rows) for rows in held])[:-1]
        return np.stack([one.mean(axis=0) for one in np.split(some.statistics(part.z), ends)])

    def smooth(self, drawn: Vector, active: NDArray[np.intp], step: float) -> None:
        """Take a step of the stochastic approximation to what was drawn (a, P)."""
        self.smoothed[active] += step * (drawn - self.smoothed[active])

    def maximize(self, active: NDArray[np.intp], weights: Vector) -> tuple[Vector, Vector]:
        """Make models of the active devices: the last of all (D, p), of weights (D,), 0 of none."""
        for one in active:
            total = self.smoothed[one] * self._counts[one].individuals
            self._models[one] = self.model.maximize(total, self._counts[one])
        self._known[active] = True
        return self._models, weights * self._known

    def state(self) -> State:
        """Return what devices have, to go on from."""
        return {
            "chains": self.chains.state(),
            "smoothed": self.smoothed,
            "models": self._models,
            "known": self._known,
        }

    def schema(self) -> Schema:
        """Return what that must be."""
        return {
            "chains": self.chains.schema(),
            "smoothed": Array("f8", self.smoothed.shape),
            "models": Array("f8", self._models.shape),
            "known": Array("b1", self._known.shape),
        }

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        self.chains.restore(state["chains"])
        self.smoothed, self._models, self._known = (
            state[name] for name in ("smoothed", "models", "known")
        )
