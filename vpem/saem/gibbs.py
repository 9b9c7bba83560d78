"""Gibbs sampling of latents, where a model has it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vpem._core.threads import thread_count
from vpem.saem.chains import Chains, spread
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.streams import Streams


@dataclass(frozen=True)
class Gibbs:
    """Latents drawn given what else is drawn with them, and that given latents."""

    n_steps: int = 1  # sweeps a move
    n_threads: int = 1
    name = "gibbs"

    def begin(self, model: SaemModel, theta: Vector, z: Vector, n_chains: int) -> Chains:
        """Start all chains at z (n, q), in no units: nothing is proposed."""
        n = len(z)
        none = np.empty((n, 0))
        return Chains(spread(z, n_chains), none[:, :, None], none, none, np.ones(n))

    def move(
        self, model: SaemModel, theta: Vector, chains: Chains, streams: Streams, now: int, late: int
    ) -> None:
        """Sweep ``n_steps`` times."""
        keys = np.ascontiguousarray(streams.keys_at(now, 2 * self.n_steps))
        z = np.ascontiguousarray(chains.z)
        model.sweep(theta, z, keys, thread_count(self.n_threads))
        chains.z = z
