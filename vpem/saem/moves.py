"""Moves of latents that are accepted or not: by a kernel, or the same in NumPy.

Units are an individual's root L and centre c, see `vpem.saem.chains.Chains`; ``g`` is the gradient
of the log-density, ``t`` what keeps numbers between -5 and 5, so that no chain is stuck where the
density is steep.

walk
    Sweeps: along each column j of L in turn ``z + s_j N L_j``, then an independent proposal: in
    the first sweep ``c + L T``, T of a t law with 6 degrees of freedom; in the second a draw from
    the population, and so on. While there is a gain, each scale ``s_j`` is multiplied by
    ``exp(gain (share of the chains that moved - target))``; the step h below too.
drift
    ``z + L ((h / 2) t(L^T g) + h^(1/2) N)``, h the individual's step: adjusted Langevin.
leap
    Hamiltonian: leapfrog steps of size h, times 0.8 to 1.2, of a pace that begins as N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vpem._core.proposals import propose as by_kernel
from vpem._core.threads import thread_count
from vpem.saem.chains import Chains
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.models.normal import quadratic
from vpem.saem.streams import Keys, Stream, Streams

WALK, DRIFT, LEAP = 0, 1, 2

TAME = 5.0
"""Largest gradient in units of the root."""

TAIL = 6
"""Degrees of freedom of independent proposals."""


class Law(Protocol):
    """Log-density of latents, up to a constant."""

    def density(self, z: Vector, values: Vector, slopes: Vector) -> None:
        """Fill it (chains, n), -inf: none, and its gradient (chains, n, q), of z."""

    def population(self) -> tuple[Vector, Vector, Vector] | None:
        """Mean (n, q), precision and root of the covariance without rows, where that is normal."""


@dataclass(frozen=True)
class Moves:
    """Which moves an iteration makes, and how they are adapted."""

    kind: int  # WALK, DRIFT or LEAP
    count: int  # of sweeps: each coordinate and the independent proposal
    target: float  # acceptance that walks, or steps, are adapted to
    n_leaps: int = 1  # leapfrog steps of one move

    def make(
        self, model: SaemModel, theta: Vector, chains: Chains, streams: Streams, now: int,
        late: int, n_threads: int,
    ) -> None:  # fmt: skip
        """Move chains once."""
        n_chains, n, q = chains.z.shape
        keys = streams.keys_at(now, 2 * self.count)
        gain = 0.0 if late else 1.0 / float(np.sqrt(now))
        laws = model.kernels(theta)
        accepted = np.zeros(n, dtype=np.int64)
        moving = {name: getattr(chains, name).copy() for name in ("scales", "steps", "z")}
        units = (np.ascontiguousarray(chains.roots), chains.centres, moving["scales"],
                 moving["steps"], np.ascontiguousarray(keys[::2]),
                 np.ascontiguousarray(keys[1::2]), gain)  # fmt: skip
        if laws is None:
            law = _Slow(model, theta, self.kind != WALK)
            propose(law, self, *units, moving["z"], accepted)
        else:
            room = np.empty((n, n_chains * (1 + q)))
            by_kernel(
                laws, self.kind, self.n_leaps, *units, self.target, moving["z"], room, accepted,
                thread_count(n_threads),
            )  # fmt: skip
        for name, value in moving.items():
            setattr(chains, name, value)
        walks = self.count - self.count // (q + 1) if self.kind == WALK else self.count
        if late:
            chains.note(accepted, walks * n_chains)


@dataclass(frozen=True)
class _Slow:
    """The law of a model without a kernel."""

    model: SaemModel
    theta: Vector
    with_slopes: bool

    def density(self, z: Vector, values: Vector, slopes: Vector) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            values[...] = self.model.log_complete(z, self.theta)
            if self.with_slopes:
                slopes[...] = self.model.gradient(z, self.theta)

    def population(self) -> tuple[Vector, Vector, Vector] | None:
        if type(self.model).population is SaemModel.population or self.model.n_imputed:
            return None
        mean, covariance = self.model.population(self.theta)
        each = np.broadcast_to(mean, (self.model.n, len(covariance)))
        precision = np.asarray(np.linalg.inv(covariance), np.float64)
        return each, precision, np.asarray(np.linalg.cholesky(covariance), np.float64)


def propose(
    law: Law, how: Moves, roots: Vector, centres: Vector, scales: Vector, steps: Vector,
    moves: Keys, chances: Keys, gain: float, z: Vector, accepted: NDArray[np.int64],
) -> None:  # fmt: skip
    """Propose and accept latents z (chains, n, q), as `vpem._core.proposals.propose` does.

    Of ``moves`` normal numbers of chain c are from index ``c q`` (of a walk c) on. Of ``chances``
    its chance is at c, what a leap's size is multiplied by at ``chains + c``, and three for the
    square of T from ``chains + 3 c`` on. How many walks, or moves, were taken fills ``accepted``.
    Roots (n, q, q) and centres (n, q) are units; scales (n, q), steps (n,) and z are changed in
    place, the first two while there is a gain (0: none). Keys are (moves, n), ``accepted`` (n,).
    """
    n_chains, _, q = z.shape
    accepted[:] = 0
    kind, n_leaps = how.kind, how.n_leaps
    here = _Place(law, roots, z)
    wide = law.population() if kind == WALK else None
    for number, (one, other) in enumerate(zip(moves, chances, strict=True)):
        j = number % (q + 1)
        chance = np.log(Stream(other).uniforms(n_chains, 1)[..., 0])
        with np.errstate(all="ignore"):
            if kind == WALK and j == q:
                second = number // (q + 1) % 2 == 1
                jump = _Jump(roots, centres, wide if second else None)
                proposed, there, odds = jump.make(here, law, one, other)
            elif kind == WALK:
                far = Stream(one).normals(n_chains, 1)[..., 0] * scales[:, j]
                proposed = z + far[..., None] * roots[:, :, j]
                there = _Place(law, roots, proposed)
                odds = there.values - here.values
            elif kind == DRIFT:
                proposed, there, odds = _drift(here, law, steps, one)
            else:
                proposed, there, odds = _leap(here, law, steps, n_leaps, one, other)
            taken = chance < odds  # false where it is not a number
        z[...] = np.where(taken[..., None], proposed, z)
        here.take(there, taken)
        if kind == WALK and j == q:
            continue
        accepted += taken.sum(axis=0)
        if gain > 0:
            factor = np.exp(gain * (taken.mean(axis=0) - how.target))
            if kind == WALK:
                scales[:, j] *= factor
            else:
                steps *= factor
            if kind == LEAP:  # no way is longer than to the far side of a normal law
                np.minimum(steps, np.pi / 2 / n_leaps, out=steps)


class _Place:
    """Where chains are: log-density (chains, n), and the bounded gradient in units of the root."""

    def __init__(self, law: Law, roots: Vector, z: Vector) -> None:
        self.z, self.roots = z, roots
        self.values, slopes = np.empty(z.shape[:2]), np.zeros(z.shape)
        law.density(z, self.values, slopes)
        self.values = np.where(np.isfinite(self.values), self.values, -np.inf)
        with np.errstate(all="ignore"):
            self.slopes = np.fmin(np.fmax(turn_back(roots, slopes), -TAME), TAME)
        self._least = -np.finfo(np.float64).max

    def take(self, there: _Place, taken: NDArray[np.bool_]) -> None:
        """Be there, where chains were taken."""
        self.values = np.where(taken, there.values, np.maximum(self.values, self._least))
        self.slopes = np.where(taken[..., None], there.slopes, self.slopes)


@dataclass(frozen=True)
class _Jump:
    """Proposals about the centre, or of the population where that is given, wherever chains are."""

    roots: Vector
    centres: Vector
    wide: tuple[Vector, Vector, Vector] | None

    def make(self, here: _Place, law: Law, one: Keys, other: Keys) -> tuple[Vector, _Place, Vector]:
        n_chains, _, q = here.z.shape
        u = Stream(one).normals(n_chains, q)
        if self.wide is None:
            words = Stream(other).uniforms(1, 4 * n_chains)[0, :, n_chains:]
            spread = -2 * np.log(words.reshape(-1, n_chains, 3).prod(axis=-1).T)
            proposed = self.centres + turn(self.roots, u * np.sqrt(TAIL / spread)[..., None])
        else:
            mean, _, root = self.wide
            proposed = mean + turn(np.broadcast_to(root, self.roots.shape), u)
        there = _Place(law, here.roots, proposed)
        odds = there.values - here.values + self._density(here.z) - self._density(proposed)
        return proposed, there, odds

    def _density(self, z: Vector) -> Vector:
        """Logarithm of the proposals' density, up to a constant."""
        if self.wide is not None:
            mean, precision, _ = self.wide
            found: Vector = -0.5 * quadratic(z - mean, precision)
            return found
        u: Vector = np.asarray(np.linalg.solve(self.roots, (z - self.centres)[..., None]))[..., 0]
        tail: Vector = -0.5 * (TAIL + z.shape[-1]) * np.log1p(squares(u) / TAIL)
        return tail


def _drift(here: _Place, law: Law, steps: Vector, one: Keys) -> tuple[Vector, _Place, Vector]:
    """Adjusted Langevin steps."""
    n_chains, _, q = here.z.shape
    h = steps[:, None]
    noise = Stream(one).normals(n_chains, q)
    way = 0.5 * h * here.slopes + np.sqrt(h) * noise
    proposed = here.z + turn(here.roots, way)
    there = _Place(law, here.roots, proposed)
    back = squares(way + 0.5 * h * there.slopes) / steps
    return proposed, there, there.values - here.values - 0.5 * back + 0.5 * squares(noise)


def _leap(
    here: _Place, law: Law, steps: Vector, n_leaps: int, one: Keys, other: Keys
) -> tuple[Vector, _Place, Vector]:
    """Hamiltonian moves."""
    n_chains, _, q = here.z.shape
    jitter = Stream(other).uniforms(1, 2 * n_chains)[0, :, n_chains:].T
    h = (steps * (0.8 + 0.4 * jitter))[..., None]
    noise = Stream(one).normals(n_chains, q)
    there, pace = here, noise
    for leap in range(n_leaps):
        pace = pace + (0.5 if leap == 0 else 1.0) * h * there.slopes
        there = _Place(law, here.roots, there.z + h * turn(here.roots, pace))
    back = squares(pace + 0.5 * h * there.slopes)
    return there.z, there, there.values - here.values - 0.5 * back + 0.5 * squares(noise)


def turn(roots: Vector, x: Vector) -> Vector:
    """``L x`` of lower triangles (n, q, q) and x (chains, n, q), always in the same order."""
    out = np.zeros(x.shape)
    for i in range(x.shape[-1]):
        for j in range(i + 1):
            out[..., i] += roots[:, i, j] * x[..., j]
    return out


def turn_back(roots: Vector, x: Vector) -> Vector:
    """``L^T x``."""
    out = np.zeros(x.shape)
    for i in range(x.shape[-1]):
        for j in range(i, x.shape[-1]):
            out[..., i] += roots[:, j, i] * x[..., j]
    return out


def squares(d: Vector) -> Vector:
    """Sums of squares over the last axis, always in the same order."""
    total: Vector = np.zeros(d.shape[:-1])
    for j in range(d.shape[-1]):
        total += d[..., j] ** 2
    return total
