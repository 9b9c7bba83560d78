"""Samplers of the latents given the rows: chains, what moves them, and in which units.

Moves that are accepted or not are made by a kernel, or alike in NumPy. Units are an individual's
root L and centre c, see `Chains`; ``g`` is the gradient of the log-density, ``t`` what keeps
numbers between -5 and 5, so that no chain is stuck where the density is steep.

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

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.langevin import langevin
from vpem._core.proposals import propose as by_kernel
from vpem._core.threads import thread_count
from vpem.checks import Doubles, Indices, check_int, check_number
from vpem.errors import InputError, NumericalError, check_choice
from vpem.network.codecs import Codec, Dither
from vpem.network.schema import Array, Report, Schema, Stateful
from vpem.saem.individuals import Keys, Streams
from vpem.saem.models.model import SaemModel, floored, quadratic

NUDGE = 1e-4
"""Relative step of the differences that give curvatures."""

FLAT = 1e-10
"""Least eigenvalue of a precision, of the largest, in units of its diagonal."""

EVERY = 10
"""Iterations of the burn-in between looks at the curvature, after as many with one each."""

WALK, DRIFT, LEAP = 0, 1, 2

TAME = 5.0
"""Largest gradient in units of the root."""

TAIL = 6
"""Degrees of freedom of independent proposals."""

WIDTH = 2.4
"""First walks, in standard deviations: the best for a normal law."""

LEAPS = 3
"""Leapfrog steps of a Hamiltonian move."""

AUTO = "auto"
"""Stands for what `usual_sampler` chooses."""


class Sampler(ABC):
    """Moves chains under a model, so that their law is, or tends to, that of the latents."""

    name: str
    precondition = False  # whether units of moves are those of the curvature

    def begin(
        self, model: SaemModel, theta: Doubles, z: Doubles, n_chains: int, seed: int = 0
    ) -> Chains:
        """Start all chains at z (n, q), in units of the curvature there or in the latents' own."""
        n, q = z.shape
        streams = Streams.from_names(model.individuals.names, seed)
        roots = np.tile(np.eye(q), (n, 1, 1))
        if self.precondition:
            roots = _roots(precisions(model, theta, z))
        first = np.array(z, np.float64)
        chains = np.repeat(first[None], n_chains, axis=0)
        return Chains(streams, chains, roots, first, np.ones((n, q)), np.ones(n))

    @abstractmethod
    def move(self, model: SaemModel, theta: Doubles, chains: Chains, now: int, late: int) -> None:
        """Move the chains once, in place.

        No two calls have the same ``now``, the iteration from 1, for one individual; ``late`` are
        iterations since the burn-in, 0 in it, when moves are adapted.
        """


@dataclass
class Chains(Stateful):
    """Several chains for each individual, its random numbers, and how they move.

    Units of moves (``roots``) are lower triangles whose square is about the covariance of an
    individual's latents given the rows; ``centres`` are about where that law has its mean. Moves
    are ``scales`` times each column of the root, and ``steps`` times an individual's. ``accepted``
    and ``tried`` (n,) count moves after the burn-in.
    """

    streams: Streams  # of n individuals
    z: Doubles  # (chains, n, q)
    roots: Doubles  # (n, q, q)
    centres: Doubles  # (n, q)
    scales: Doubles  # (n, q)
    steps: Doubles  # (n,)
    accepted: Doubles = field(init=False)
    tried: Doubles = field(init=False)

    def __post_init__(self) -> None:
        self.accepted = np.zeros(self.z.shape[1])
        self.tried = np.zeros(self.z.shape[1])

    def take_individuals(self, which: Indices) -> Chains:
        """Return a copy of those of some individuals."""
        units = (self.roots, self.centres, self.scales, self.steps)
        streams, z = Streams(self.streams.keys[which]), np.ascontiguousarray(self.z[:, which])
        part = Chains(streams, z, *(one[which] for one in units))
        part.accepted, part.tried = self.accepted[which], self.tried[which]
        return part

    def put(self, which: Indices, part: Chains) -> None:
        self.z[:, which] = part.z
        for name in ("roots", "centres", "scales", "steps", "accepted", "tried"):
            getattr(self, name)[which] = getattr(part, name)

    def schema(self) -> dict[str, Schema]:
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


@dataclass(frozen=True)
class Exact(Sampler):
    """Independent draws from the posterior, where a model knows it."""

    name = "exact"

    def move(self, model: SaemModel, theta: Doubles, chains: Chains, now: int, late: int) -> None:
        chains.z = model.draw(theta, chains.streams.derive_stream(now, 0), len(chains.z))


@dataclass(frozen=True)
class Gibbs(Sampler):
    """Latents drawn given what else is drawn with them, and that given latents."""

    n_steps: int = 1  # sweeps a move
    n_threads: int = 1
    name = "gibbs"

    def begin(
        self, model: SaemModel, theta: Doubles, z: Doubles, n_chains: int, seed: int = 0
    ) -> Chains:
        """Start all chains at z (n, q), in no units: nothing is proposed."""
        n, streams = len(z), Streams.from_names(model.individuals.names, seed)
        none = np.empty((n, 0))
        first = np.repeat(np.asarray(z, dtype=np.float64)[None], n_chains, axis=0)
        return Chains(streams, first, none[:, :, None], none, none, np.ones(n))

    def move(self, model: SaemModel, theta: Doubles, chains: Chains, now: int, late: int) -> None:
        keys = np.ascontiguousarray(chains.streams.keys_at(now, 2 * self.n_steps))
        z = np.ascontiguousarray(chains.z)
        model.sweep(theta, z, keys, thread_count(self.n_threads))
        chains.z = z


class _Accepting(Sampler):
    """Proposes moves, and accepts them or not, in units of the curvature."""

    kind: int  # WALK, DRIFT or LEAP
    n_steps: int  # of walks sweeps: each coordinate and the independent proposal
    target: float  # acceptance that walks, or steps, are adapted to
    n_threads: int
    precondition = True
    width = 1.0  # of the first walks
    step = 1.0  # the first
    n_leaps = 1  # leapfrog steps of one move

    def begin(
        self, model: SaemModel, theta: Doubles, z: Doubles, n_chains: int, seed: int = 0
    ) -> Chains:
        chains = super().begin(model, theta, z, n_chains, seed)
        chains.scales *= self.width
        chains.steps *= self.step
        return chains

    def move(self, model: SaemModel, theta: Doubles, chains: Chains, now: int, late: int) -> None:
        """Propose moves ``n_steps`` times, and adapt scales and steps in the burn-in."""
        if self.precondition:
            learn(model, theta, chains, now, late)
        n_chains, n, q = chains.z.shape
        keys = chains.streams.keys_at(now, 2 * self.n_steps * (q + 1 if self.kind == WALK else 1))
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
                thread_count(self.n_threads),
            )  # fmt: skip
        for name, value in moving.items():
            setattr(chains, name, value)
        if late:
            chains.accepted += accepted
            chains.tried += self.n_steps * (q if self.kind == WALK else 1) * n_chains


@dataclass(frozen=True)
class Metropolis(_Accepting):
    """Random walk along one axis of each individual's law after the other, and jumps.

    A sweep ends with a proposal that does not depend on where the chain is, from two laws in turn:
    a t law about where chains were in the burn-in, with the covariance that the curvature says
    (Karimi, Lavielle and Moulines 2020), and the population, which knows of modes far apart.
    """

    n_steps: int = 2  # sweeps a move
    target: float = 0.44  # acceptance of each walk, adapted in the burn-in
    n_threads: int = 1
    name, kind, width = "metropolis", WALK, WIDTH


@dataclass(frozen=True)
class Mala(_Accepting):
    """Langevin steps that are accepted or not, so that their law is the posterior's.

    The drift of a step is bounded (Roberts and Tweedie 1996). Each individual's h is adapted to the
    acceptance rate ``target`` in the burn-in.
    """

    n_steps: int = 5  # a move
    step: float = 1.0  # first h, in units of the curvature's covariances
    target: float = 0.574
    precondition: bool = True  # units are the curvature's
    n_threads: int = 1
    name, kind = "mala", DRIFT


@dataclass(frozen=True)
class Hmc(_Accepting):
    """Hamiltonian moves: a few leapfrog steps, of a size that is adapted and never the same.

    Together they are at most a quarter of the period of a normal law in units of its curvature,
    after which a chain has forgotten where it was.
    """

    n_steps: int = 2  # moves of `LEAPS` steps each
    target: float = 0.8  # acceptance of each step, adapted in the burn-in
    n_threads: int = 1
    name, kind, n_leaps, step = "hmc", LEAP, LEAPS, np.pi / 2 / LEAPS


@dataclass(frozen=True)
class Langevin(Sampler):
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

    def move(self, model: SaemModel, theta: Doubles, chains: Chains, now: int, late: int) -> None:
        if self.precondition:
            learn(model, theta, chains, now, late)
        h = float(self.step * (1.0 + late) ** -self.decay)
        n_chains, n, q = chains.z.shape
        codec, law = self.codec, model.kernels(theta)
        if law is not None and (
            codec is None
            or (isinstance(codec, Dither) and q <= codec.bucket and codec.is_euclidean)
        ):
            keys = chains.streams.keys_at(now, 2 * self.n_steps)
            noise, dithers = np.ascontiguousarray(keys[::2]), np.ascontiguousarray(keys[1::2])
            z, faults = chains.z.copy(), np.zeros((n_chains, n), dtype=np.uint8)
            langevin(
                law, np.ascontiguousarray(chains.roots), noise, dithers, h,
                0 if codec is None else codec.levels, z, faults, thread_count(self.n_threads),
            )  # fmt: skip
            wrong = faults > 0
        else:
            z, wrong = chains.z, np.zeros((n_chains, n), dtype=np.bool_)
            for step in range(self.n_steps):
                slope = turn_back(chains.roots, model.gradient(z, theta))
                wrong = np.max(~np.isfinite(slope), axis=-1)
                if wrong.any():
                    break
                if codec is not None:
                    stream = chains.streams.derive_stream(now, 2 * step + 1)
                    words = stream.words(n_chains, 1)[..., 0]
                    sent = np.ascontiguousarray(slope.reshape(-1, q))
                    flat = np.ascontiguousarray(words.reshape(-1))
                    received = codec.transmit(sent, flat, self.n_threads)[0]
                    slope = received.astype(np.float64, copy=False).reshape(slope.shape)
                normals = chains.streams.derive_stream(now, 2 * step).normals(n_chains, q)
                z = z + turn(chains.roots, 0.5 * h * slope + np.sqrt(h) * normals)
        if wrong.any():
            who = model.individuals.names[int(wrong.any(axis=0).argmax())]
            raise NumericalError(
                f"Langevin steps of individual {who!r} ran away; take a smaller step than "
                f"{self.step:g}, or the sampler mala"
            )
        chains.z = z


SAMPLERS: Report = {one.name: one for one in (Exact, Metropolis, Langevin, Mala, Hmc, Gibbs)}
"""Samplers by name."""


def usual_sampler(model: type[SaemModel], options: Iterable[str]) -> str:
    """Name the sampler that is taken by default.

    ``exact`` where the model's latents can be drawn so, unless an option was given that
    ``metropolis`` has and it has not; ``gibbs`` likewise; else ``metropolis``. Threads make no
    difference.
    """
    named = {one for one in options if one != "n_threads"}
    known = set(Metropolis.__dataclass_fields__)
    exact = model.posterior is not SaemModel.posterior or model.draw is not SaemModel.draw
    if exact and (model.discrete or not named & known):
        return Exact.name
    if model.sweep is not SaemModel.sweep and named <= set(Gibbs.__dataclass_fields__):
        return Gibbs.name
    return Metropolis.name


def sampler_of(name: str | Sampler, **options: Any) -> Sampler:
    """Make a sampler of its name and options, or return one that is made."""
    if not isinstance(name, str):
        return name
    kind = SAMPLERS[check_choice("sampler", name, SAMPLERS)]
    for option, value in options.items():
        if option not in kind.__dataclass_fields__:
            raise InputError(f"the sampler {name} takes no {option}")
        if option == "n_steps":
            check_int("n_steps", value, least=1, most=10_000)
        elif option == "n_threads":
            thread_count(value)
        elif option == "target":
            check_number(option, value, least=0.05, most=0.95)
        elif option in ("step", "decay"):
            check_number(option, value, least=1e-12 if option == "step" else 0, most=1e6)
    sampler: Sampler = kind(**options)
    return sampler


def options_of(sampler: Sampler) -> Report:
    """Options of a sampler of vpem that results depend on, a codec by its name."""
    if not is_dataclass(sampler):
        return {}
    values = {f.name: getattr(sampler, f.name) for f in fields(sampler) if f.name != "n_threads"}
    return {name: getattr(value, "name", value) for name, value in values.items()}


def learn(model: SaemModel, theta: Doubles, chains: Chains, now: int, late: int) -> None:
    """Adapt centres to where chains are, and now and then units to the curvature, in burn-in.

    Precisions are averaged with those before: units become wider by a root of two at most, so that
    one odd look does little, and narrower nearly at once, else steps run away.
    """
    if late:
        return
    chains.centres = chains.centres + (chains.z.mean(axis=0) - chains.centres) / np.sqrt(now)
    if now <= EVERY or now % EVERY == 0:
        inverse = np.linalg.inv(chains.roots)
        before = np.matmul(inverse.transpose(0, 2, 1), inverse)
        chains.roots = _roots((before + precisions(model, theta, chains.z.mean(axis=0))) / 2)


def precisions(model: SaemModel, theta: Doubles, z: Doubles) -> Doubles:
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
    curvature = np.matmul(vectors * values[:, None], vectors.transpose(0, 2, 1))
    curvature = curvature * sizes[:, :, None] * sizes[:, None]
    return np.asarray(curvature + slope[:, :, None] * slope[:, None] / 4, np.float64)


def _roots(precision: Doubles) -> Doubles:
    """Lower triangles whose squares are the inverses of precisions (n, q, q)."""
    sizes = np.sqrt(np.einsum("nii->ni", precision))
    try:
        scaled = np.linalg.inv(precision / (sizes[:, :, None] * sizes[:, None]))
        roots = np.linalg.cholesky((scaled + scaled.transpose(0, 2, 1)) / 2)
    except np.linalg.LinAlgError:  # singular to rounding, where one slope is all there is
        return _roots(np.stack([floored(one, 0.0) for one in precision]))
    return np.asarray(roots / sizes[:, :, None], np.float64)


@dataclass(frozen=True)
class _Slow:
    """The law of a model without a kernel, as kernels have it: a log-density up to a constant."""

    model: SaemModel
    theta: Doubles
    with_slopes: bool

    def density(self, z: Doubles, values: Doubles, slopes: Doubles) -> None:
        """Fill it (chains, n), -inf: none, and its gradient (chains, n, q), of z."""
        with np.errstate(over="ignore", invalid="ignore"):
            values[...] = self.model.log_complete(z, self.theta)
            if self.with_slopes:
                slopes[...] = self.model.gradient(z, self.theta)

    def population(self) -> tuple[Doubles, Doubles, Doubles] | None:
        """Mean (n, q), precision and root of the covariance without rows, where that is normal."""
        if type(self.model).population is SaemModel.population or self.model.n_imputed:
            return None
        mean, covariance = self.model.population(self.theta)
        each = np.broadcast_to(mean, (self.model.n, len(covariance)))
        precision = np.asarray(np.linalg.inv(covariance), np.float64)
        return each, precision, np.asarray(np.linalg.cholesky(covariance), np.float64)


def propose(
    law: _Slow, how: _Accepting, roots: Doubles, centres: Doubles, scales: Doubles, steps: Doubles,
    moves: Keys, chances: Keys, gain: float, z: Doubles, accepted: NDArray[np.int64],
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
    kind, least = how.kind, -np.finfo(np.float64).max
    current = _Place(law, roots, z)
    wide = law.population() if kind == WALK else None
    for number, (one, other) in enumerate(zip(moves, chances, strict=True)):
        j = number % (q + 1)
        jumps = kind == WALK and j == q
        chance = np.log(Streams(other).uniforms(n_chains, 1)[..., 0])
        with np.errstate(all="ignore"):
            if jumps and wide is not None and number // (q + 1) % 2 == 1:
                mean, precision, root = wide
                noise = Streams(one).normals(n_chains, q)
                there = _Place(law, roots, mean + turn(np.broadcast_to(root, roots.shape), noise))
                # Densities of the proposal at both ends, as logarithms up to a constant.
                before, after = (
                    -0.5 * quadratic(at.z - mean, precision) for at in (current, there)
                )
                odds = there.values - current.values + before - after
            elif jumps:
                noise = Streams(one).normals(n_chains, q)
                words = Streams(other).uniforms(1, 4 * n_chains)[0, :, n_chains:]
                spread = -2 * np.log(words.reshape(-1, n_chains, 3).prod(axis=-1).T)
                far = np.sqrt(TAIL / spread)[..., None]
                there = _Place(law, roots, centres + turn(roots, noise * far))
                apart = np.stack([current.z, there.z]) - centres
                turned: Doubles = np.asarray(np.linalg.solve(roots, apart[..., None]), np.float64)
                before, after = -0.5 * (TAIL + q) * np.log1p(squares(turned[..., 0]) / TAIL)
                odds = there.values - current.values + before - after
            elif kind == WALK:
                far = Streams(one).normals(n_chains, 1)[..., 0] * scales[:, j]
                there = _Place(law, roots, z + far[..., None] * roots[:, :, j])
                odds = there.values - current.values
            else:
                noise = Streams(one).normals(n_chains, q)
                if kind == DRIFT:
                    h = steps[:, None]
                    way = 0.5 * h * current.slopes + np.sqrt(h) * noise
                    there = _Place(law, roots, z + turn(roots, way))
                    back = squares(way + 0.5 * h * there.slopes) / steps
                else:
                    jitter = Streams(other).uniforms(1, 2 * n_chains)[0, :, n_chains:].T
                    h = (steps * (0.8 + 0.4 * jitter))[..., None]
                    there, pace = current, noise
                    for leap in range(how.n_leaps):
                        pace = pace + (0.5 if leap == 0 else 1.0) * h * there.slopes
                        there = _Place(law, roots, there.z + h * turn(roots, pace))
                    back = squares(pace + 0.5 * h * there.slopes)
                odds = there.values - current.values - 0.5 * back + 0.5 * squares(noise)
            taken = chance < odds  # false where it is not a number
        z[...] = np.where(taken[..., None], there.z, z)
        current.values = np.where(taken, there.values, np.maximum(current.values, least))
        current.slopes = np.where(taken[..., None], there.slopes, current.slopes)
        if jumps:
            continue
        accepted += taken.sum(axis=0)
        if gain > 0:
            factor = np.exp(gain * (taken.mean(axis=0) - how.target))
            if kind == WALK:
                scales[:, j] *= factor
            else:
                steps *= factor
            if kind == LEAP:  # no way is longer than to the far side of a normal law
                np.minimum(steps, np.pi / 2 / how.n_leaps, out=steps)


class _Place:
    """Where chains are: log-density (chains, n), and the bounded gradient in units of the root."""

    def __init__(self, law: _Slow, roots: Doubles, z: Doubles) -> None:
        self.z, self.roots = z, roots
        self.values, slopes = np.empty(z.shape[:2]), np.zeros(z.shape)
        law.density(z, self.values, slopes)
        self.values = np.where(np.isfinite(self.values), self.values, -np.inf)
        with np.errstate(all="ignore"):
            self.slopes = np.fmin(np.fmax(turn_back(roots, slopes), -TAME), TAME)


def turn(roots: Doubles, x: Doubles) -> Doubles:
    """``L x`` of lower triangles (n, q, q) and x (chains, n, q), always in the same order."""
    out = np.zeros(x.shape)
    for i in range(x.shape[-1]):
        for j in range(i + 1):
            out[..., i] += roots[:, i, j] * x[..., j]
    return out


def turn_back(roots: Doubles, x: Doubles) -> Doubles:
    """``L^T x``."""
    out = np.zeros(x.shape)
    for i in range(x.shape[-1]):
        for j in range(i, x.shape[-1]):
            out[..., i] += roots[:, j, i] * x[..., j]
    return out


def squares(d: Doubles) -> Doubles:
    """Sums of squares over the last axis, always in the same order."""
    total: Doubles = np.zeros(d.shape[:-1])
    for j in range(d.shape[-1]):
        total += d[..., j] ** 2
    return total
