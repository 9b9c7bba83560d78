"""Samplers of the latents given the rows, by name: exact and Metropolis are here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vpem._core.threads import thread_count
from vpem.checks import check_int, check_number
from vpem.errors import InputError, check_choice
from vpem.network.schema import Report
from vpem.saem.chains import Chains, Sampler, curvature_scales, propose_by_kernel, spread
from vpem.saem.langevin import Langevin, Mala
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.streams import Streams

__all__ = [
    "AUTO",
    "SAMPLERS",
    "Chains",
    "Exact",
    "Langevin",
    "Mala",
    "Metropolis",
    "Sampler",
    "sampler_of",
    "usual_sampler",
]

WIDTH = 2.4
"""First proposals, in standard deviations: the best for a normal law."""


@dataclass(frozen=True)
class Exact:
    """Independent draws from the posterior, where a model knows it."""

    name = "exact"

    def begin(self, model: SaemModel, theta: Vector, z: Vector, n_chains: int) -> Chains:
        """Start all chains at z (n, q)."""
        return Chains(spread(z, n_chains), np.ones(z.shape), np.ones(len(z)))

    def move(
        self, model: SaemModel, theta: Vector, chains: Chains, streams: Streams, now: int, late: int
    ) -> None:
        """Draw anew."""
        chains.z = model.draw(theta, streams.at(now, 0), len(chains.z))


@dataclass(frozen=True)
class Metropolis:
    """Random walk in one coordinate after the other.

    Parameters
    ----------
    n_steps : int
        Sweeps over the coordinates a move.
    target : float
        Acceptance rate to which each individual's proposal in each coordinate is adapted in the
        burn-in.
    n_threads : int
        Threads of the kernel; they do not show in the result.
    """

    n_steps: int = 5
    target: float = 0.44
    n_threads: int = 1
    name = "metropolis"

    def begin(self, model: SaemModel, theta: Vector, z: Vector, n_chains: int) -> Chains:
        """Start all chains at z (n, q), proposals by the curvature there."""
        scales = WIDTH * curvature_scales(model, theta, z)
        return Chains(spread(z, n_chains), scales, np.ones(len(z)))

    def move(
        self, model: SaemModel, theta: Vector, chains: Chains, streams: Streams, now: int, late: int
    ) -> None:
        """Propose and accept ``n_steps`` times in each coordinate."""
        z = chains.z
        n_chains, n, q = z.shape
        if propose_by_kernel(
            model, theta, chains, streams, now, late, np.zeros(n), self.n_steps * q, self.target,
            self.n_threads,
        ):  # fmt: skip
            return
        before = model.log_complete(z, theta)
        before = np.where(np.isfinite(before), before, -np.finfo(np.float64).max)
        for step in range(self.n_steps):
            for j in range(q):
                use = 2 * (step * q + j)
                move = streams.at(now, use).normals(n_chains, 1)[..., 0] * chains.scales[:, j]
                proposed = z.copy()
                proposed[..., j] += move
                with np.errstate(over="ignore", invalid="ignore"):
                    after = model.log_complete(proposed, theta)
                chance = np.log(streams.at(now, use + 1).uniforms(n_chains, 1)[..., 0])
                accept = chance < after - before
                z[..., j] = np.where(accept, proposed[..., j], z[..., j])
                before = np.where(accept, after, before)
                if late:
                    chains.note(accept.sum(axis=0), n_chains)
                else:
                    gain = 1.0 / np.sqrt(now)
                    chains.scales[:, j] *= np.exp(gain * (accept.mean(axis=0) - self.target))


SAMPLERS: Report = {
    "exact": Exact,
    "metropolis": Metropolis,
    "langevin": Langevin,
    "mala": Mala,
}
"""Samplers by name."""

AUTO = "auto"
"""Stands for what `usual_sampler` chooses."""


def usual_sampler(model: type[SaemModel], options: Iterable[str]) -> str:
    """Name of the sampler that is taken where none is asked for.

    Parameters
    ----------
    model : type
        Class of the model.
    options : iterable of str
        Names of a sampler's options that were given.

    Returns
    -------
    str
        ``exact`` where the model's latents can be drawn so, unless an option was given that
        ``metropolis`` has and it has not; else ``metropolis``. Threads make no difference.
    """
    asked = {one for one in options if one != "n_threads"}
    known = set(Metropolis.__dataclass_fields__)
    if model.is_drawn_exactly() and (model.discrete or not asked & known):
        return Exact.name
    return Metropolis.name


def sampler_of(name: str | Sampler, **options: Any) -> Sampler:
    """Make a sampler of its name and options, or return one that is made.

    Raises
    ------
    InputError
        If there is none, or it has no such option or value.
    """
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
