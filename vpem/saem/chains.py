"""Chains of latents, what moves them, and in which units."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vpem.network.schema import Array, Schema, State
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.streams import Streams

NUDGE = 1e-4
"""Relative step of the differences that give curvatures."""

FLAT = 1e-10
"""Least eigenvalue of a precision, of the largest, in units of its diagonal."""

EVERY = 10
"""Iterations of the burn-in between looks at the curvature, after as many with one each."""


@dataclass
class Chains:
    """Several chains for each individual, and how they move.

    Units of moves (``roots``) are lower triangles whose square is about the covariance of an
    individual's latents given the rows; ``centres`` are about where that law has its mean. Moves
    are ``scales`` times each column of the root, and ``steps`` times an individual's. ``accepted``
    and ``tried`` (n,) count moves after the burn-in.
    """

    z: Vector  # (chains, n, q)
    roots: Vector  # (n, q, q)
    centres: Vector  # (n, q)
    scales: Vector  # (n, q)
    steps: Vector  # (n,)
    accepted: Vector = field(init=False)
    tried: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.accepted = np.zeros(self.z.shape[1])
        self.tried = np.zeros(self.z.shape[1])

    def take(self, which: NDArray[np.intp]) -> Chains:
        """Return a copy of those of some individuals."""
        held = (self.roots, self.centres, self.scales, self.steps)
        part = Chains(np.ascontiguousarray(self.z[:, which]), *(one[which] for one in held))
        part.accepted, part.tried = self.accepted[which], self.tried[which]
        return part

    def put(self, which: NDArray[np.intp], part: Chains) -> None:
        """Put them back."""
        self.z[:, which] = part.z
        for name in ("roots", "centres", "scales", "steps", "accepted", "tried"):
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
            "roots": Array("f8", self.roots.shape),
            "centres": Array("f8", self.centres.shape),
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
        """Move the chains once, in place.

        No two calls have the same ``now``, the iteration from 1, for one individual; ``late`` are
        iterations since the burn-in, 0 in it, when moves are adapted.
        """


def spread(z: Vector, n_chains: int) -> Vector:
    """Latents (n, q) of so many chains, (chains, n, q)."""
    return np.repeat(np.asarray(z, dtype=np.float64)[None], n_chains, axis=0)


def begin_chains(
    model: SaemModel, theta: Vector, z: Vector, n_chains: int, *, curved: bool, step: float = 1.0
) -> Chains:
    """Start all chains at z (n, q), in units of the curvature there or in the latents' own."""
    n, q = z.shape
    roots = np.tile(np.eye(q), (n, 1, 1))
    if curved:
        roots = _roots(precisions(model, theta, z))
    steps = np.full(n, float(step))
    return Chains(spread(z, n_chains), roots, np.array(z, np.float64), np.ones((n, q)), steps)


def learn(model: SaemModel, theta: Vector, chains: Chains, now: int, late: int) -> None:
    """Adapt centres to where chains are, and now and then units to the curvature, in burn-in.

    Precisions are averaged with those before: units become wider by a root of two at most, so that
    one odd look does little, and narrower nearly at once, else steps run away.
    """
    if late:
        return
    chains.centres = chains.centres + (chains.z.mean(axis=0) - chains.centres) / np.sqrt(now)
    if now <= EVERY or now % EVERY == 0:
        held = np.linalg.inv(chains.roots)
        before = np.matmul(held.transpose(0, 2, 1), held)
        chains.roots = _roots((before + precisions(model, theta, chains.z.mean(axis=0))) / 2)


def precisions(model: SaemModel, theta: Vector, z: Vector) -> Vector:
    """Curvature (n, q, q) of the log-density at z (n, q), as a precision: positive definite.

    From differences of the gradient; directions in which the density is not concave count by the
    size of their curvature. Far from the top there is more, so that no gradient is larger than two
    in units of the result.
    """
    n, q = z.shape
    bound = model.steepest()
    if bound is not None:
        return bound[:, None, None] * np.eye(q)
    bends, slope = np.empty((n, q, q)), np.zeros((n, q))
    for j in range(q):
        nudge = NUDGE * np.maximum(np.abs(z[:, j]), 1.0)
        both = np.repeat(z[None], 2, axis=0)
        both[0, :, j] += nudge
        both[1, :, j] -= nudge
        up, down = model.gradient(both, theta)
        bends[:, j] = (down - up) / (2 * nudge)[:, None]
        slope += (up + down) / (2 * q)
    bends = (bends + bends.transpose(0, 2, 1)) / 2
    fine = np.isfinite(bends).all(axis=(1, 2)) & np.isfinite(slope).all(axis=1)
    bends[~fine], slope[~fine] = np.eye(q), 0.0
    sizes = np.sqrt(np.abs(np.einsum("nii->ni", bends)))
    sizes = np.where(sizes > 0, sizes, 1.0)
    values, vectors = np.linalg.eigh(bends / (sizes[:, :, None] * sizes[:, None]))
    values = np.abs(values)
    values = np.maximum(values, FLAT * values.max(axis=1, keepdims=True))
    found = np.matmul(vectors * values[:, None], vectors.transpose(0, 2, 1))
    found = found * sizes[:, :, None] * sizes[:, None]
    whole: Vector = found + slope[:, :, None] * slope[:, None] / 4
    return whole


def _roots(found: Vector) -> Vector:
    """Lower triangles whose squares are the inverses of precisions (n, q, q)."""
    sizes = np.sqrt(np.einsum("nii->ni", found))
    scaled = np.linalg.inv(found / (sizes[:, :, None] * sizes[:, None]))
    roots = np.linalg.cholesky((scaled + scaled.transpose(0, 2, 1)) / 2)
    wide: Vector = roots / sizes[:, :, None]
    return wide
