"""Sums that are noisy before anybody hears them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem.network.masks import FRACTION_BITS
from vpem.network.noise import Noise
from vpem.sums.counted import AtServer

Vector = NDArray[np.float64]


def noise_by(masked: bool, way: str) -> str:
    """Say who adds noise to a sum: "server", "root" or "workers"; see `Noisy`."""
    return "workers" if masked else "root" if way == "tree" else "server"


class Noisy:
    """A sum around an exact one: what all hear of it has discrete Gaussian noise.

    At a server the server adds the noise to what workers send, along a tree the root does, before
    the total goes back. Where sums are masked nobody else ever sees the total: there each worker
    adds a share to its own, so that the shares together are at least as large. Whoever adds noise
    knows it, and could subtract it.

    Parameters
    ----------
    inner : AtServer
        The sum, at a server or along a tree.
    colluding : int
        Under masks: workers of whom the noise may be known. The others' alone is enough.
    seed : int, optional
        Makes the noise repeatable, for tests: that gives no privacy; see `vpem.network.noise`.
    """

    def __init__(self, inner: AtServer, colluding: int = 0, seed: int | None = None) -> None:
        self.inner = inner
        holders = inner.holders
        self.masked = holders.masks is not None
        self._enough = holders.n_agents - colluding if self.masked else 1
        self._places = self._adding()
        numbers = holders.own[self._places] if self._places else [holders.n_agents]
        self._sources = [Noise(seed, int(number)) for number in numbers]

    @property
    def by(self) -> str:
        """Who adds the noise: "server", "root" or "workers"."""
        return noise_by(self.masked, self.inner.way)

    def _adding(self) -> list[int]:
        """Which of this process's workers add noise to what they have."""
        own = self.inner.holders.own.tolist()
        if self.masked:
            return list(range(len(own)))
        if self.by == "root":
            root: int = self.inner.root  # type: ignore[attr-defined]
            return [own.index(root)] if root in own else []
        return []

    def add(
        self, values: Vector, scales: NDArray[np.int64], unit: float, kind: str = "estep"
    ) -> Vector:
        """Add up one vector a worker (n, P), and noise: (P,), the same in every process.

        Values are multiples of the unit, a power of two, of which doubles hold the sum and the
        noise exactly; ``scales`` (P,) are standard deviations of the noise, in units.
        """
        holders = self.inner.holders
        # Masked numbers are whole in the units they come in: whatever fits a double fits there.
        inner = self.inner.in_units(int(np.frexp(unit)[1]) - 1 + FRACTION_BITS)
        inner.begin(kind, 1, values.shape[1], values.itemsize)
        if self._places:
            values = values.copy()
            for place, source in zip(self._places, self._sources, strict=True):
                values[place] += source.of_scales(scales, self._enough) * unit
        elif self.by == "server" and holders.engine.rank == 0:
            # The server holds no rows: what it adds is a vector of its own.
            noise = self._sources[0].of_scales(scales) * unit
            values = np.concatenate([values, noise[None]])
        found: Vector = inner.reduce(values[:, None], slice(0, 1))[0, 0]
        return found
