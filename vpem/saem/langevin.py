"""Langevin dynamics of the latents: as they are, with a coded gradient, or adjusted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.errors import NumericalError
from vpem.network.codecs import Codec, Dither
from vpem.saem.chains import Chains, curvature_scales, propose_by_kernel, spread
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.streams import Streams

__all__ = ["Langevin", "Mala"]

EVERY = 10
"""Iterations of the burn-in between looks at the curvature, after as many with one each."""

TAME = 5.0
"""Largest drift of an adjusted step, so that no chain is stuck where the density is steep."""


@dataclass(frozen=True)
class Langevin:
    """Unadjusted Langevin dynamics: ``z <- z + (h/2) M g + sqrt(h M) N(0, I)``.

    M is diagonal: the curvature's variances of each individual's latents, looked at in the burn-in
    (without ``precondition``: 1). Its law is biased by the step h; for a normal posterior of
    variance M it has the variance ``M / (1 - h / 4)``.

    Parameters
    ----------
    n_steps : int
        Steps a move.
    step : float
        h, in units of M.
    decay : float
        After the burn-in h falls as ``(1 + late)^-decay``.
    codec : Codec, optional
        Which sends ``sqrt(M) g`` of each individual and chain, as a device with little arithmetic
        would: a dithered gradient.
    precondition : bool
        Whether M is adapted.
    n_threads : int
        Threads of the kernel or the codec; they do not show in the result.
    """

    n_steps: int = 10
    step: float = 0.5
    decay: float = 1 / 3
    codec: Codec | None = None
    precondition: bool = True
    n_threads: int = 1
    name = "langevin"

    def begin(self, model: SaemModel, theta: Vector, z: Vector, n_chains: int) -> Chains:
        """Start all chains at z (n, q)."""
        scales = curvature_scales(model, theta, z) if self.precondition else np.ones(z.shape)
        return Chains(spread(z, n_chains), scales, np.ones(len(z)))

    def move(
        self, model: SaemModel, theta: Vector, chains: Chains, streams: Streams, now: int, late: int
    ) -> None:
        """Take ``n_steps`` steps.

        Raises
        ------
        NumericalError
            If they run away.
        """
        _look(self, model, theta, chains, now, late)
        h = float(self.step * (1.0 + late) ** -self.decay)
        if self._move_by_kernel(model, theta, chains, streams, now, h):
            return
        n_chains, _, q = chains.z.shape
        for step in range(self.n_steps):
            slope: Vector = chains.scales * model.gradient(chains.z, theta)
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
            chains.z = chains.z + chains.scales * (0.5 * h * slope + np.sqrt(h) * noise)

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
        keys = streams.keys_at(now, 2 * self.n_steps)
        z = chains.z.copy()
        scales = np.ascontiguousarray(chains.scales)
        noise, dithers = np.ascontiguousarray(keys[::2]), np.ascontiguousarray(keys[1::2])
        threads = thread_count(self.n_threads)
        faults = model.langevin(theta, z, scales, noise, dithers, h, levels, threads)
        if faults is None:
            return False
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


@dataclass(frozen=True)
class Mala:
    """Langevin steps that are accepted or not, so that their law is the posterior's.

    The drift of a step is bounded (Roberts and Tweedie 1996).

    Parameters
    ----------
    n_steps : int
        Steps a move.
    step : float
        First h, in units of M, see `Langevin`.
    target : float
        Acceptance rate to which each individual's h is adapted in the burn-in.
    precondition : bool
        Whether M is adapted.
    n_threads : int
        Threads of the kernel; they do not show in the result.
    """

    n_steps: int = 5
    step: float = 1.0
    target: float = 0.574
    precondition: bool = True
    n_threads: int = 1
    name = "mala"

    def begin(self, model: SaemModel, theta: Vector, z: Vector, n_chains: int) -> Chains:
        """Start all chains at z (n, q)."""
        scales = curvature_scales(model, theta, z) if self.precondition else np.ones(z.shape)
        return Chains(spread(z, n_chains), scales, np.full(len(z), float(self.step)))

    def move(
        self, model: SaemModel, theta: Vector, chains: Chains, streams: Streams, now: int, late: int
    ) -> None:
        """Propose and accept ``n_steps`` times."""
        _look(self, model, theta, chains, now, late)
        steps = chains.steps.copy()
        if propose_by_kernel(
            model, theta, chains, streams, now, late, steps, self.n_steps, self.target,
            self.n_threads,
        ):  # fmt: skip
            chains.steps = steps
            return
        z, scales = chains.z, chains.scales
        n_chains, _, q = z.shape
        before = model.log_complete(z, theta)
        before = np.where(np.isfinite(before), before, -np.finfo(np.float64).max)
        slope = _tame(scales * model.gradient(z, theta))
        for step in range(self.n_steps):
            h = chains.steps[:, None]
            noise = streams.at(now, 2 * step).normals(n_chains, q)
            with np.errstate(over="ignore", invalid="ignore"):
                proposed = z + scales * (0.5 * h * slope + np.sqrt(h) * noise)
                after = model.log_complete(proposed, theta)
                slope_after = _tame(scales * model.gradient(proposed, theta))
                back = (z - proposed) / scales - 0.5 * h * slope_after
                odds = after - before - 0.5 * _squares(back) / chains.steps + 0.5 * _squares(noise)
            chance = np.log(streams.at(now, 2 * step + 1).uniforms(n_chains, 1)[..., 0])
            accept = chance < odds  # false where it is not a number
            z = np.where(accept[..., None], proposed, z)
            slope = np.where(accept[..., None], slope_after, slope)
            before = np.where(accept, after, before)
            if late:
                chains.note(accept.sum(axis=0), n_chains)
            else:
                gain = 1.0 / np.sqrt(now)
                chains.steps = chains.steps * np.exp(gain * (accept.mean(axis=0) - self.target))
        chains.z = z


def _tame(slope: Vector) -> Vector:
    """Drift that is bounded, in units of the scales."""
    return np.fmin(np.fmax(slope, -TAME), TAME)


def _squares(d: Vector) -> Vector:
    """Sums over the last axis, always in the same order."""
    total: Vector = np.zeros(d.shape[:-1])
    for j in range(d.shape[-1]):
        total += d[..., j] ** 2
    return total


def _look(
    sampler: Langevin | Mala, model: SaemModel, theta: Vector, chains: Chains, now: int, late: int
) -> None:
    """Adapt scales to the curvature, now and then in the burn-in."""
    if sampler.precondition and not late and (now <= EVERY or now % EVERY == 0):
        # Up halfway, so that one odd look does little; down at once, else steps run away.
        seen = curvature_scales(model, theta, chains.z.mean(axis=0))
        chains.scales = np.minimum(seen, np.sqrt(chains.scales * seen))
