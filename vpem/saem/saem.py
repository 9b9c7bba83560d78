"""The loop of SAEM: simulate, statistics, stochastic approximation, maximise; on many devices.

Delyon, Lavielle and Moulines 1999. Devices hold individuals: each simulates the latents of its own,
and what reaches the server, in `vpem.saem.server`, are statistics (or models).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_int
from vpem.errors import InputError, NotConvergedWarning, NumericalError
from vpem.network.holdings import Workers
from vpem.saem.chains import Chains, Sampler
from vpem.saem.models.model import Counts, SaemModel, Vector, begin_model, check_model
from vpem.saem.server import SaemServer, Units
from vpem.saem.stopping import Watch
from vpem.saem.streams import Streams
from vpem.settings import SaemSettings

__all__ = [
    "SaemProgress",
    "SaemRun",
    "burn_in_of",
    "chains_of",
    "run_saem",
    "step_size",
]

EXACT_CHAINS = 50
"""Chains of each individual where latents are drawn exactly."""

MOST_DRAWS = 1_000_000
"""Chains of all individuals, from which on there are fewer of each."""


@dataclass(frozen=True)
class SaemProgress:
    """What a callback is told after an iteration."""

    iteration: int
    n_iter: int
    theta: Vector


@dataclass
class SaemRun:
    """How a run went.

    Attributes
    ----------
    theta : ndarray of shape (p,)
        Parameters at the end.
    chains : Chains
        Latents of all individuals.
    trace : list of ndarray of shape (p,)
        Parameters, the start first.
    bytes : list of int
        Payload bytes sent so far.
    n_active : list of int
        Devices that took part in each iteration.
    n_iter : int
        Iterations.
    steps : list of float
        Of the stochastic approximation, as they were taken.
    converged : bool
        Whether the parameters had settled.
    change : float
        How far the farthest was at the last look from where it settles, in its standard error; NaN
        if never looked at.
    grounds : str
        A sentence that says so; empty where none was asked for.
    holds : bool
        Whether the last M-step took statistics as they were, or had to make parameters valid.
    lost : int
        Last iteration that had to; 0: none.
    """

    theta: Vector
    chains: Chains
    trace: list[Vector] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    n_active: list[int] = field(default_factory=list)
    n_iter: int = 0
    steps: list[float] = field(default_factory=list)
    converged: bool = False
    change: float = float("nan")
    grounds: str = ""
    holds: bool = True
    lost: int = 0

    def note(self, theta: Vector, n_bytes: int, n_active: int, step: float) -> None:
        """Keep how an iteration ended."""
        self.theta, self.n_iter = theta, self.n_iter + 1
        self.trace.append(theta)
        self.bytes.append(n_bytes)
        self.n_active.append(n_active)
        self.steps.append(step)


def burn_in_of(n_iter: int, burn_in: int | None = None) -> int:
    """Iterations of burn-in: as many as are given, else 200, or two fifths of fewer than 500."""
    return min(200, 2 * n_iter // 5) if burn_in is None else burn_in


def chains_of(sampler: Sampler, n: int, n_chains: int | None = None) -> int:
    """Chains of each of n individuals: as many as are given, else 4, or more where draws are exact.

    Where rows say little of a parameter, it wanders with the noise of the draws for very long.
    """
    if n_chains is None:
        exact = sampler.name == "exact"
        return max(4, min(EXACT_CHAINS, MOST_DRAWS // max(n, 1))) if exact else 4
    return check_int("n_chains", n_chains, least=1, most=10_000)


def step_size(iteration: int, burn_in: int, decay: float) -> float:
    """Step of the stochastic approximation: 1 in the burn-in, then ``(r - burn_in)^-decay``."""
    return 1.0 if iteration <= burn_in else float((iteration - burn_in) ** -decay)


def run_saem(
    model: SaemModel,
    devices: Workers,
    sampler: Sampler,
    server: SaemServer,
    settings: SaemSettings | None = None,
    *,
    start: Vector | None = None,
    callback: Callable[[SaemProgress], None] | None = None,
    **changes: Any,
) -> SaemRun:
    """Run SAEM.

    Parameters
    ----------
    model : SaemModel
        Of all individuals; each device computes its own part of it.
    devices : Workers
        Which device holds which individuals, one at least.
    sampler : Sampler
        Of the latents.
    server : SaemServer
        How devices reach the server.
    settings, changes : SaemSettings
        How it is run, and what is to be otherwise. With ``average`` "statistics" it is Algorithm 2
        of the draft, with "models" Algorithm 1. Where devices take part with a probability, what
        the server has of the others stays; steps are divided by it, so that the mean is that of
        all. ``tol`` and ``window``: see `vpem.saem.stopping`; where a part of the devices takes
        part, there are so many iterations between looks in which each does.
    start : ndarray of shape (p,), optional
        Parameters to begin with, instead of the model's.
    callback : callable, optional
        Told of every iteration.

    Returns
    -------
    SaemRun

    Raises
    ------
    InputError
        If options or the model do not fit.
    NumericalError
        If parameters are not finite, or a sampler runs away.

    Warns
    -----
    NotConvergedWarning
        If compressed statistics end as none that latents have.
    """
    given = SaemSettings.of(settings, **changes)
    n_iter, participation, tol = given.n_iter, given.participation, given.tol
    burn_in = check_int("burn_in", burn_in_of(n_iter, given.burn_in), least=0, most=n_iter)
    _check(model, devices, server, given.average)
    theta, z = begin_model(model)
    if start is not None:
        theta = np.array(start, dtype=np.float64)
    check_model(model, theta, z)
    rng = np.random.Generator(np.random.Philox(given.seed))
    statistics = model.statistics(z[None])
    chains = sampler.begin(model, theta, z, chains_of(sampler, model.n, given.n_chains))
    local = Devices(model, devices, sampler, chains, given.seed, statistics, theta)
    server.begin(local.smoothed, Units.of(statistics), participation, rng)
    run = SaemRun(theta, chains, [theta])
    looks = math.ceil(given.window / participation)  # as much is seen of each device in between
    watch = Watch(model, sampler, local.streams, server, burn_in, tol, looks)
    if tol > 0:
        run.grounds = f"parameters are looked at from iteration {burn_in + 2 * looks} on"
    for r in range(1, n_iter + 1):
        step = step_size(r, burn_in, given.decay)
        active = server.draw(len(theta))
        if len(active):
            drawn = local.simulate(theta, active, r, max(0, r - burn_in))
            # A device that is seldom active takes larger steps, so that all forget alike.
            local.smooth(drawn, active, min(server.damping, step / participation))
            if given.average == "models":
                alike = given.shares == "devices"
                weights = np.ones(devices.n_workers) if alike else server.weights
                theta = server.average_models(*local.maximize(active, weights))
            else:
                server.gather(drawn, local.smoothed[active], step)
                total = server.statistic * model.n
                run.holds = model.holds(total, model.counts)
                run.lost = run.lost if run.holds else r
                theta = np.asarray(model.maximize(total, model.counts))
        if not np.isfinite(theta).all():
            raise NumericalError(
                f"parameters are not finite after iteration {r}; take another start, or a finer "
                "codec"
            )
        run.note(theta, server.ledger.bytes, len(active), min(step, participation * server.damping))
        if callback is not None:
            callback(SaemProgress(r, n_iter, theta))
        if watch.has_settled(run):
            break
    if server.codec is not None and not run.holds:
        warnings.warn(
            f"after {run.n_iter} iterations the server's statistics are of no latents, and "
            f"variances are as good as zero: {server.codec.name} is too coarse with feedback "
            f"{server.feedback}; take feedback memory or error, or a finer codec",
            NotConvergedWarning,
            stacklevel=3,
        )
    return run


class Devices:
    """What devices have: chains of their individuals, smoothed statistics, models of their own.

    Parameters
    ----------
    model : SaemModel
        Of all individuals.
    held : Workers
        Who holds which.
    sampler : Sampler
        Of the latents.
    chains : Chains
        Of all individuals, changed in place.
    seed : int
        Of individuals' random numbers.
    statistics : ndarray of shape (n, P)
        First statistics.
    theta : ndarray of shape (p,)
        First parameters.

    Attributes
    ----------
    smoothed : ndarray of shape (D, P)
        Mean statistic of each device's individuals, averaged over iterations.
    """

    def __init__(
        self,
        model: SaemModel,
        held: Workers,
        sampler: Sampler,
        chains: Chains,
        seed: int,
        statistics: Vector,
        theta: Vector,
    ) -> None:
        self.model, self.held, self.sampler, self.chains = model, held, sampler, chains
        self.streams = Streams.of(model.individuals.names, seed)
        self.smoothed = np.stack([statistics[rows].mean(axis=0) for rows in held.rows])
        rows_of = model.individuals.counts
        self._counts = [Counts(len(rows), int(rows_of[rows].sum())) for rows in held.rows]
        self._models = np.tile(theta, (held.n_workers, 1))  # the last of each device
        self._known = np.zeros(held.n_workers, dtype=np.bool_)

    def simulate(self, theta: Vector, active: NDArray[np.intp], now: int, late: int) -> Vector:
        """Move the chains of the active devices; the mean statistic of each (a, P)."""
        model, chains = self.model, self.chains
        if len(active) == self.held.n_workers:
            self.sampler.move(model, theta, chains, self.streams, now, late)
            each = model.statistics(chains.z)
            return np.stack([each[rows].mean(axis=0) for rows in self.held.rows])
        held = [self.held.rows[one] for one in active]
        which = np.concatenate(held)
        part, some = chains.take(which), model.take(which)
        self.sampler.move(some, theta, part, self.streams.take(which), now, late)
        chains.put(which, part)
        ends = np.cumsum([len(rows) for rows in held])[:-1]
        return np.stack([one.mean(axis=0) for one in np.split(some.statistics(part.z), ends)])

    def smooth(self, drawn: Vector, active: NDArray[np.intp], step: float) -> None:
        """Take a step of the stochastic approximation to what was drawn (a, P)."""
        self.smoothed[active] += step * (drawn - self.smoothed[active])

    def maximize(self, active: NDArray[np.intp], weights: Vector) -> tuple[Vector, Vector]:
        """Make models of the active devices: the last of all (D, p), of weights (D,), 0 of none."""
        for one in active:
            total = self.smoothed[one] * self._counts[one].individuals
            self._models[one] = self.model.maximize(total, self._counts[one])
        self._known[active] = True
        return self._models, weights * self._known


def _check(
    model: SaemModel,
    devices: Workers,
    server: SaemServer,
    average: str,
) -> None:
    """Refuse options that do not fit each other."""
    if devices.n_samples != model.n:
        raise InputError(
            f"devices hold {devices.n_samples} individuals, but the model is of {model.n}"
        )
    if not devices.counts.all():
        empty = devices.names[int(devices.counts.argmin())]
        raise InputError(f"{empty!r} holds no individuals; leave such devices out")
    if average == "models" and (server.codec is not None or server.feedback != "none"):
        raise InputError(
            "averaged models are sent exactly: leave out the codec and its feedback, or average "
            "statistics"
        )
