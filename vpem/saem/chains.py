"""Chains of latents, what moves them, and how wide their law is in each coordinate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.network.schema import Array, Schema, State
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.streams import Streams

__all__ = ["Chains", "Sampler", "curvature_scales", "propose_by_kernel", "spread"]

NUDGE = 1e-4
"""Relative step of the differences that give curvatures."""


@dataclass
class Chains:
    """Several chains for each individual, and how they move.

    Attributes
    ----------
    z : ndarray of shape (chains, n, q)
        Where they are.
    scales : ndarray of shape (n, q)
        Standard deviations that moves have in each coordinate.
    steps : ndarray of shape (n,)
        Factors of an individual's moves.
    accepted, tried : ndarray of shape (n,)
        Moves accepted and proposed after the burn-in.
    """

    z: Vector
    scales: Vector
    steps: Vector
    accepted: Vector = field(init=False)
    tried: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.accepted = np.zeros(self.z.shape[1])
        self.tried = np.zeros(self.z.shape[1])

    def take(self, which: NDArray[np.intp]) -> Chains:
        """Return a copy of those of some individuals."""
        part = Chains(self.z[:, which], self.scales[which], self.steps[which])
        part.accepted, part.tried = self.accepted[which], self.tried[which]
        return part

    def put(self, which: NDArray[np.intp], part: Chains) -> None:
        """Put them back."""
        self.z[:, which] = part.z
        for name in ("scales", "steps", "accepted", "tried"):
            getattr(self, name)[which] = getattr(part, name)

    def note(self, accepted: NDArray[np.integer], tried: int) -> None:
        """Count moves of each individual: how many were accepted (n,), of how many."""
        self.accepted += accepted
        self.tried += tried

    def state(self) -> State:
        """Return where chains are and how they move, to go on from."""
        return {name: getattr(self, name) for name in self.schema()}

    def schema(self) -> dict[str, Schema]:
        """Return what that must be."""
        each = (self.z.shape[1],)
        return {
            "z": Array("f8", self.z.shape),
            "scales": Array("f8", self.scales.shape, 0),
            "steps": Array("f8", each, 0),
            "accepted": Array("f8", each, 0),
            "tried": Array("f8", each, 0),
        }

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        for name, value in state.items():
            setattr(self, name, value)


class Sampler(Protocol):
    """Moves chains under a model, so that their law is, or tends to, that of the latents."""

    name: str

    def begin(self, model: SaemModel, theta: Vector, z: Vector, n_chains: int) -> Chains:
        """Start all chains at z (n, q)."""

    def move(
        self, model: SaemModel, theta: Vector, chains: Chains, streams: Streams, now: int, late: int
    ) -> None:
        """Move them once.

        Parameters
        ----------
        model : SaemModel
            Of the individuals of the chains.
        theta : ndarray of shape (p,)
            Parameters.
        chains : Chains
            Changed in place.
        streams : Streams
            Of the same individuals.
        now : int
            Iteration, from 1: no two calls with the same for one individual.
        late : int
            Iterations since the burn-in; 0 in it, when moves are adapted.
        """


def spread(z: Vector, n_chains: int) -> Vector:
    """Latents (n, q) of so many chains, (chains, n, q)."""
    return np.repeat(np.asarray(z, dtype=np.float64)[None], n_chains, axis=0)


def propose_by_kernel(
    model: SaemModel,
    theta: Vector,
    chains: Chains,
    streams: Streams,
    now: int,
    late: int,
    steps: Vector,
    n_moves: int,
    target: float,
    n_threads: int,
) -> bool:
    """Make all moves of an iteration by the model's kernel, if it has one; steps are changed."""
    keys = streams.keys_at(now, 2 * n_moves)
    z, scales = np.ascontiguousarray(chains.z), np.ascontiguousarray(chains.scales)
    gain = 0.0 if late else 1.0 / float(np.sqrt(now))
    threads = thread_count(n_threads)
    moves, chances = np.ascontiguousarray(keys[::2]), np.ascontiguousarray(keys[1::2])
    accepted = model.propose(theta, z, scales, steps, moves, chances, gain, target, threads)
    if accepted is None:
        return False
    chains.z, chains.scales = z, scales
    if late:
        chains.note(accepted, n_moves * len(z))
    return True


def curvature_scales(model: SaemModel, theta: Vector, z: Vector) -> Vector:
    """Sd (n, q) of each latent, the others held, by the curvature of the log-density at z (n, q).

    From differences of the gradient; where the density is not concave, by the size of it. Far from
    the top it is no larger than two over the gradient, so that no step of that size runs away.
    """
    scales = np.empty(z.shape)
    for j in range(z.shape[1]):
        nudge = NUDGE * np.maximum(np.abs(z[:, j]), 1.0)
        both = np.repeat(z[None], 2, axis=0)
        both[0, :, j] += nudge
        both[1, :, j] -= nudge
        slope = model.gradient(both, theta)[..., j]
        bend = np.abs(slope[0] - slope[1]) / (2 * nudge)
        bend = np.maximum(bend, (slope[0] + slope[1]) ** 2 / 16)
        fine = np.isfinite(bend) & (bend > 0)
        scales[:, j] = np.where(fine, 1 / np.sqrt(np.where(fine, bend, 1.0)), 1.0)
    return scales
