"""What devices have: chains of their individuals, smoothed statistics, models of their own."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vpem.engines.placement import Placement
from vpem.network.partition import Workers
from vpem.network.schema import Array, Schema, State
from vpem.saem.chains import Chains, Sampler
from vpem.saem.models.model import Counts, SaemModel, Vector
from vpem.saem.streams import Streams

DRAWN = (1 << 20) - 1
"""Use of an individual's random numbers, the last, by which batches are drawn."""


class Devices:
    """What the devices of this process have.

    Where there are several processes, the individuals of one are those of its devices, device by
    device. An iteration simulates ``batch_size`` individuals of each device, by default all; the
    others stay where they are, and count with that. ``smoothed`` (D, P) is the mean statistic of
    each device's individuals, averaged over iterations; zero of others.
    """

    def __init__(
        self,
        model: SaemModel,
        held: Workers,  # who holds which, of all
        place: Placement,
        sampler: Sampler,
        chains: Chains,  # changed in place
        seed: int,
        z: Vector,  # (n, q) first latents
        theta: Vector,  # (p,) first parameters
        batch_size: int | None = None,
    ) -> None:
        self.model, self.held, self.sampler, self.chains = model, held, sampler, chains
        self.batch_size = batch_size
        self.streams = Streams.of(model.individuals.names, seed)
        self.rows: dict[int, NDArray[np.intp]] = {int(one): held.rows[one] for one in place.own}
        if place.apart:
            ends = np.cumsum([0, *held.counts[place.own]])
            self.rows = {
                int(one): np.arange(*pair)
                for one, pair in zip(place.own, pairwise(ends), strict=True)
            }
        # Of each individual, or of a wide model of none.
        first = model.about(theta)
        self._each = np.empty((0, model.size)) if model.wide else first.statistics(z[None])
        self._weights = model.individuals.weights
        self.smoothed = self._means(np.arange(held.n_workers), theta[None], z[None])
        data = model.individuals
        self._counts = {one: Counts(*data.take(rows).everyone) for one, rows in self.rows.items()}
        self._models = np.zeros((held.n_workers, len(theta)))  # the last of each device
        self._models[place.own] = theta
        self._known = np.zeros(held.n_workers, dtype=np.bool_)

    @property
    def share(self) -> float:
        """Least share of a device's individuals that an iteration simulates."""
        most = int(self.held.counts.max())
        return 1.0 if self.batch_size is None else min(1.0, self.batch_size / most)

    def simulate(self, thetas: Vector, active: NDArray[np.intp], now: int, late: int) -> Vector:
        """Move the chains of the active devices; the mean statistic of each (a, P).

        Parameters (R, p) are of all devices (R = 1) or of each; ``now`` and ``late`` are as for
        `vpem.saem.chains.Sampler.move`.
        """
        here = [int(one) for one in active if int(one) in self.rows]
        if len(thetas) > 1:
            for one in here:
                self._move(self._drawn(one, now), thetas[one], now, late)
        elif len(here) == len(self.rows) and self.share == 1:
            self.sampler.move(self.model, thetas[0], self.chains, self.streams, now, late)
            if not self.model.wide:
                self._each = self.model.about(thetas[0]).statistics(self.chains.z)
        elif here:
            which = np.concatenate([self._drawn(one, now) for one in here])
            self._move(which, thetas[0], now, late)
        return self._means(active, thetas, self.chains.z)

    @property
    def _kept(self) -> int:
        """Individuals whose statistics last longer than an iteration."""
        return 0 if self.share == 1 else len(self._each)

    def _drawn(self, device: int, now: int) -> NDArray[np.intp]:
        """Individuals of a device that an iteration simulates."""
        rows = self.rows[device]
        if self.batch_size is None or self.batch_size >= len(rows):
            return rows
        chances = self.streams.take(rows).at(now, DRAWN).words(1, 1)[0, :, 0]
        found: NDArray[np.intp] = rows[np.sort(np.argsort(chances)[: self.batch_size])]
        return found

    def _move(self, which: NDArray[np.intp], theta: Vector, now: int, late: int) -> None:
        """Move the chains of some individuals."""
        part, some = self.chains.take(which), self.model.take(which)
        self.sampler.move(some, theta, part, self.streams.take(which), now, late)
        self.chains.put(which, part)
        if not some.wide:
            self._each[which] = some.about(theta).statistics(part.z)

    def _means(self, devices: NDArray[np.intp], thetas: Vector, z: Vector) -> Vector:
        """Mean statistic of some devices' individuals; zero of those that are elsewhere.

        Of a wide model those that an iteration left where they are count with its parameters.
        """
        found = np.zeros((len(devices), self.model.size))
        if self.model.wide:
            here = [place for place, one in enumerate(devices.tolist()) if one in self.rows]
            shared = [here] if len(thetas) == 1 else [[place] for place in here]
            for places in shared:
                theta = thetas[0 if len(thetas) == 1 else devices[places[0]]]
                groups = [self.rows[int(devices[place])] for place in places]
                if groups:
                    found[places] = self.model.about(theta).means(z, groups)
            return found
        for place, one in enumerate(devices.tolist()):
            if one in self.rows:
                rows = self.rows[one]
                if self._weights is None:
                    found[place] = self._each[rows].mean(axis=0)
                else:
                    weights = self._weights[rows]
                    found[place] = weights @ self._each[rows] / weights.sum()
        return found

    def smooth(self, drawn: Vector, active: NDArray[np.intp], step: float) -> None:
        """Take a step of the stochastic approximation to what was drawn (a, P)."""
        self.smoothed[active] += step * (drawn - self.smoothed[active])

    def maximize(
        self, theta: Vector, active: NDArray[np.intp], weights: Vector
    ) -> tuple[Vector, Vector]:
        """Make models of the active devices: the last of all (D, p), of weights (D,), 0 of none."""
        model = self.model.about(theta)
        for one in active.tolist():
            if one in self.rows:
                total = self.smoothed[one] * self._counts[one].individuals
                self._models[one] = model.maximize(total, self._counts[one])
        self._known[active] = True
        return self._models, weights * self._known

    def state(self) -> State:
        """Return what devices have, to go on from."""
        return {
            "chains": self.chains.state(),
            "each": self._each[: self._kept],
            "smoothed": self.smoothed,
            "models": self._models,
            "known": self._known,
        }

    def schema(self) -> Schema:
        """Return what that must be."""
        return {
            "chains": self.chains.schema(),
            "each": Array("f8", (self._kept, self._each.shape[1])),
            "smoothed": Array("f8", self.smoothed.shape),
            "models": Array("f8", self._models.shape),
            "known": Array("b1", self._known.shape),
        }

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        self.chains.restore(state["chains"])
        self._each[: self._kept] = state["each"]
        self.smoothed, self._models, self._known = (
            state[name] for name in ("smoothed", "models", "known")
        )
