"""Samplers of the latents given the rows, by name: all but `Langevin` are here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from vpem._core.threads import thread_count
from vpem.checks import check_int, check_number
from vpem.errors import InputError, check_choice
from vpem.network.schema import Report
from vpem.saem.chains import Chains, Sampler, begin_chains, learn
from vpem.saem.gibbs import Gibbs
from vpem.saem.langevin import Langevin
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.moves import DRIFT, LEAP, WALK, Moves
from vpem.saem.streams import Streams

WIDTH = 2.4
"""First walks, in standard deviations: the best for a normal law."""

LEAPS = 3
"""Leapfrog steps of a Hamiltonian move."""


@dataclass(frozen=True)
class Exact:
    """Independent draws from the posterior, where a model knows it."""

    name = "exact"

    def begin(self, model: SaemModel, theta: Vector, z: Vector, n_chains: int) -> Chains:
        """Start all chains at z (n, q)."""
        return begin_chains(model, theta, z, n_chains, curved=False)

    def move(
        self, model: SaemModel, theta: Vector, chains: Chains, streams: Streams, now: int, late: int
    ) -> None:
        """Draw anew."""
        chains.z = model.draw(theta, streams.at(now, 0), len(chains.z))


@dataclass(frozen=True)
class Metropolis:
    """Random walk along one axis of each individual's law after the other, and jumps.

    A sweep ends with a proposal that does not depend on where the chain is, from two laws in turn:
    a t law about where chains were in the burn-in, with the covariance that the curvature says
    (Karimi, Lavielle and Moulines 2020), and the population, which knows of modes far apart.
    """

    n_steps: int = 2  # sweeps a move
    target: float = 0.44  # acceptance of each walk, adapted in the burn-in
    n_threads: int = 1
    name = "metropolis"

    def begin(self, model: SaemModel, theta: Vector, z: Vector, n_chains: int) -> Chains:
        """Start all chains at z (n, q), in units of the curvature there."""
        chains = begin_chains(model, theta, z, n_chains, curved=True)
        chains.scales *= WIDTH
        return chains

    def move(
        self, model: SaemModel, theta: Vector, chains: Chains, streams: Streams, now: int, late: int
    ) -> None:
        """Sweep ``n_steps`` times."""
        learn(model, theta, chains, now, late)
        moves = Moves(WALK, self.n_steps * (chains.z.shape[2] + 1), self.target)
        moves.make(model, theta, chains, streams, now, late, self.n_threads)


@dataclass(frozen=True)
class Mala:
    """Langevin steps that are accepted or not, so that their law is the posterior's.

    The drift of a step is bounded (Roberts and Tweedie 1996). Each individual's h is adapted to the
    acceptance rate ``target`` in the burn-in.
    """

    n_steps: int = 5  # a move
    step: float = 1.0  # first h, in units of the curvature's covariances
    target: float = 0.574
    precondition: bool = True  # units are the curvature's
    n_threads: int = 1
    name = "mala"

    def begin(self, model: SaemModel, theta: Vector, z: Vector, n_chains: int) -> Chains:
        """Start all chains at z (n, q)."""
        return begin_chains(
            model, theta, z, n_chains, curved=self.precondition, step=self.step
        )  # fmt: skip

    def move(
        self, model: SaemModel, theta: Vector, chains: Chains, streams: Streams, now: int, late: int
    ) -> None:
        """Propose and accept ``n_steps`` times."""
        if self.precondition:
            learn(model, theta, chains, now, late)
        moves = Moves(DRIFT, self.n_steps, self.target)
        moves.make(model, theta, chains, streams, now, late, self.n_threads)


@dataclass(frozen=True)
class Hmc:
    """Hamiltonian moves: a few leapfrog steps, of a size that is adapted and never the same.

    Together they are at most a quarter of the period of a normal law in units of its curvature,
    after which a chain has forgotten where it was.
    """

    n_steps: int = 2  # moves of `LEAPS` steps each
    target: float = 0.8  # acceptance of each step, adapted in the burn-in
    n_threads: int = 1
    name = "hmc"

    def begin(self, model: SaemModel, theta: Vector, z: Vector, n_chains: int) -> Chains:
        """Start all chains at z (n, q), in units of the curvature there."""
        return begin_chains(model, theta, z, n_chains, curved=True, step=np.pi / 2 / LEAPS)

    def move(
        self, model: SaemModel, theta: Vector, chains: Chains, streams: Streams, now: int, late: int
    ) -> None:
        """Propose and accept ``n_steps`` times."""
        learn(model, theta, chains, now, late)
        moves = Moves(LEAP, self.n_steps, self.target, LEAPS)
        moves.make(model, theta, chains, streams, now, late, self.n_threads)


SAMPLERS: Report = {
    "exact": Exact,
    "metropolis": Metropolis,
    "langevin": Langevin,
    "mala": Mala,
    "hmc": Hmc,
    "gibbs": Gibbs,
}
"""Samplers by name."""

AUTO = "auto"
"""Stands for what `usual_sampler` chooses."""


def usual_sampler(model: type[SaemModel], options: Iterable[str]) -> str:
    """Name the sampler that is taken where none is asked for.

    ``exact`` where the model's latents can be drawn so, unless an option was given that
    ``metropolis`` has and it has not; ``gibbs`` likewise; else ``metropolis``. Threads make no
    difference.
    """
    asked = {one for one in options if one != "n_threads"}
    known = set(Metropolis.__dataclass_fields__)
    if model.is_drawn_exactly() and (model.discrete or not asked & known):
        return Exact.name
    if model.sweep is not SaemModel.sweep and asked <= set(Gibbs.__dataclass_fields__):
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
    made: Sampler = kind(**options)
    return made


def options_of(sampler: Sampler) -> Report:
    """Options of a sampler of vpem that results depend on, a codec by its name."""
    if not is_dataclass(sampler):
        return {}
    held = {one.name: getattr(sampler, one.name) for one in fields(sampler)
            if one.name != "n_threads"}  # fmt: skip
    return {one: getattr(value, "name", value) for one, value in held.items()}
