"""Langevin dynamics of the latents, as they are, or with a coded gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpem._core.langevin import langevin
from vpem._core.threads import thread_count
from vpem.errors import NumericalError
from vpem.network.codecs import Codec, Dither
from vpem.saem.chains import Chains, begin_chains, learn
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.moves import turn, turn_back
from vpem.saem.streams import Streams


@dataclass(frozen=True)
class Langevin:
    """Unadjusted Langevin dynamics: ``z <- z + (h/2) L L^T g + sqrt(h) L N(0, I)``.

    ``L L^T`` is the curvature's covariance of each individual's latents, looked at in the burn-in
    (without ``precondition``: 1). Their law is biased by the step h; for a normal posterior of
    covariance M = ``L L^T`` it has the covariance ``M / (1 - h / 4)``. A ``codec`` sends ``L^T g``
    of each individual and chain, as a device with little arithmetic would: a dithered gradient.
    """

    n_steps: int = 10  # a move
    step: float = 0.5  # h, in units of M
    decay: float = 1 / 3  # after the burn-in h falls as (1 + late)^-decay
    codec: Codec | None = None
    precondition: bool = True  # units are the curvature's
    n_threads: int = 1
    name = "langevin"

    def begin(self, model: SaemModel, theta: Vector, z: Vector, n_chains: int) -> Chains:
        """Start all chains at z (n, q)."""
        return begin_chains(model, theta, z, n_chains, curved=self.precondition)

    def move(
        self, model: SaemModel, theta: Vector, chains: Chains, streams: Streams, now: int, late: int
    ) -> None:
        """Take ``n_steps`` steps; NumericalError if they run away."""
        if self.precondition:
            learn(model, theta, chains, now, late)
        h = float(self.step * (1.0 + late) ** -self.decay)
        if self._move_by_kernel(model, theta, chains, streams, now, h):
            return
        n_chains, _, q = chains.z.shape
        for step in range(self.n_steps):
            slope = turn_back(chains.roots, model.gradient(chains.z, theta))
            if not np.isfinite(slope).all():
                wrong = np.max(~np.isfinite(slope), axis=-1)
                raise self._refusal(model, wrong)
            if self.codec is not None:
                keys = streams.at(now, 2 * step + 1).words(n_chains, 1)[..., 0]
                sent = np.ascontiguousarray(slope.reshape(-1, q))
                flat = np.ascontiguousarray(keys.reshape(-1))
                received = self.codec.transmit(sent, flat, self.n_threads)[0]
                slope = received.astype(np.float64, copy=False).reshape(slope.shape)
            noise = streams.at(now, 2 * step).normals(n_chains, q)
            chains.z = chains.z + turn(chains.roots, 0.5 * h * slope + np.sqrt(h) * noise)

    def _move_by_kernel(
        self,
        model: SaemModel,
        theta: Vector,
        chains: Chains,
        streams: Streams,
        now: int,
        h: float,
    ) -> bool:
        """Take all steps by the model's kernel, if it has one for this codec."""
        levels = 0
        if self.codec is not None:
            if not isinstance(self.codec, Dither) or self.codec.bucket < chains.z.shape[2]:
                return False
            levels = self.codec.levels
        law = model.kernels(theta)
        if law is None:
            return False
        keys = streams.keys_at(now, 2 * self.n_steps)
        z, faults = chains.z.copy(), np.zeros(chains.z.shape[:2], dtype=np.uint8)
        noise, dithers = np.ascontiguousarray(keys[::2]), np.ascontiguousarray(keys[1::2])
        langevin(
            law, np.ascontiguousarray(chains.roots), noise, dithers, h, levels, z, faults,
            thread_count(self.n_threads),
        )  # fmt: skip
        if faults.any():
            raise self._refusal(model, faults > 0)
        chains.z = z
        return True

    def _refusal(self, model: SaemModel, wrong: NDArray[np.bool_]) -> NumericalError:
        """Whose chains (chains, n) ran away."""
        who = model.individuals.names[int(wrong.any(axis=0).argmax())]
        return NumericalError(
            f"Langevin steps of individual {who!r} ran away; take a smaller step than "
            f"{self.step:g}, or the sampler mala"
        )
