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
from vpem.network.schema import (
    COUNT,
    FLAG,
    TEXT,
    Array,
    Integer,
    ListOf,
    Maybe,
    Number,
    Schema,
    State,
    check,
)  # fmt: skip
from vpem.saem.chains import Chains, Sampler
from vpem.saem.devices import Devices
from vpem.saem.models.model import SaemModel, Vector, begin_model, check_model
from vpem.saem.server import SaemServer, Units
from vpem.saem.stopping import Watch
from vpem.settings import SaemSettings
from vpem.steps.saver import (
    COUNTED_STREAM,
    NoSaver,
    Saver,
    check_length,
    set_stream,
    stream_state,
)  # fmt: skip

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

    def state(self) -> State:
        """Return how the run went, to go on from."""
        plain = ("n_iter", "bytes", "n_active", "steps", "converged", "grounds", "holds", "lost")
        return {
            **{name: getattr(self, name) for name in plain},
            "start": self.trace[0],
            "trace": np.array(self.trace[1:]),
            "change": None if math.isnan(self.change) else self.change,
        }

    def schema(self) -> dict[str, Schema]:
        """Return what that must be."""
        p = len(self.theta)
        return {
            "n_iter": Integer(1, size="iterations"),
            "start": Array("f8", (p,)),
            "trace": Array("f8", ("iterations", p)),
            "bytes": ListOf(COUNT, "iterations"),
            "n_active": ListOf(COUNT, "iterations"),
            "steps": ListOf(Number(0, 1), "iterations"),
            "converged": FLAG,
            "change": Maybe(Number(0)),
            "grounds": TEXT,
            "holds": FLAG,
            "lost": COUNT,
        }

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        saved = dict(state)
        self.trace = [saved.pop("start"), *saved.pop("trace")]
        self.theta = self.trace[-1]
        change = saved.pop("change")
        self.change = math.nan if change is None else change
        for name, value in saved.items():
            setattr(self, name, value)


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
    saver: Saver | None = None,
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
    saver : Saver, optional
        Is offered the state at the end of every iteration.

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
    loop = _Loop(model, devices, sampler, server, SaemSettings.of(settings, **changes), start)
    run = loop.iterate(saver or NoSaver(), callback)
    if server.codec is not None and not run.holds:
        warnings.warn(
            f"after {run.n_iter} iterations the server's statistics are of no latents, and "
            f"variances are as good as zero: {server.codec.name} is too coarse with feedback "
            f"{server.feedback}; take feedback memory or error, or a finer codec",
            NotConvergedWarning,
            stacklevel=3,
        )
    return run


class _Loop:
    """The iterations of one run, and all that they go by; parameters as of `run_saem`."""

    def __init__(
        self,
        model: SaemModel,
        devices: Workers,
        sampler: Sampler,
        server: SaemServer,
        given: SaemSettings,
        start: Vector | None,
    ) -> None:
        _check(model, devices, server, given.average)
        self.model, self.server, self.given = model, server, given
        self.burn_in = check_int(
            "burn_in", burn_in_of(given.n_iter, given.burn_in), least=0, most=given.n_iter
        )
        theta, z = begin_model(model)
        if start is not None:
            theta = np.array(start, dtype=np.float64)
        check_model(model, theta, z)
        self.rng = np.random.Generator(np.random.Philox(given.seed))
        self.first = model.statistics(z[None])
        chains = sampler.begin(model, theta, z, chains_of(sampler, model.n, given.n_chains))
        self.local = Devices(model, devices, sampler, chains, given.seed, self.first, theta)
        self.weights = np.ones(devices.n_workers) if given.shares == "devices" else server.weights
        self.run = SaemRun(theta, chains, [theta])
        # As much is seen of each device in between.
        looks = math.ceil(given.window / given.participation)
        self.watch = Watch(
            model, sampler, self.local.streams, server, self.burn_in, given.tol, looks
        )
        if given.tol > 0:
            self.run.grounds = (
                f"parameters are looked at from iteration {self.burn_in + 2 * looks} on"
            )

    def iterate(self, saver: Saver, callback: Callable[[SaemProgress], None] | None) -> SaemRun:
        """Iterate to the end, from the beginning or from what was saved."""
        run, n_iter, server = self.run, self.given.n_iter, self.server
        common = (Units.of(self.first), self.given.participation, self.rng)
        if saver.saved is None:
            server.begin(self.local.smoothed, *common)
        else:
            server.join(self.local.smoothed.copy(), *common)
            self._restore(saver)
        while run.n_iter < n_iter and not run.converged:
            r = run.n_iter + 1
            step = step_size(r, self.burn_in, self.given.decay)
            active = server.draw(len(run.theta))
            theta = self._move(r, step, active) if len(active) else run.theta
            if not np.isfinite(theta).all():
                raise NumericalError(
                    f"parameters are not finite after iteration {r}; take another start, or a "
                    "finer codec"
                )
            taken = min(step, self.given.participation * server.damping)
            run.note(theta, server.ledger.bytes, len(active), taken)
            if callback is not None:
                callback(SaemProgress(r, n_iter, theta))
            settled = self.watch.has_settled(run)
            saver.offer(self._state, last=settled or r == n_iter)
        return run

    def _move(self, r: int, step: float, active: NDArray[np.intp]) -> Vector:
        """Simulate on the active devices; the parameters that follow."""
        run, local, server, model = self.run, self.local, self.server, self.model
        drawn = local.simulate(run.theta, active, r, max(0, r - self.burn_in))
        # A device that is seldom active takes larger steps, so that all forget alike.
        local.smooth(drawn, active, min(server.damping, step / self.given.participation))
        if self.given.average == "models":
            return server.average_models(*local.maximize(active, self.weights))
        server.gather(drawn, local.smoothed[active], step)
        total = server.statistic * model.n
        run.holds = model.holds(total, model.counts)
        run.lost = run.lost if run.holds else r
        return np.asarray(model.maximize(total, model.counts))

    def _parts(self) -> dict[str, Devices | SaemServer | Watch | SaemRun]:
        """Return what keeps something from one iteration to the next."""
        return {"run": self.run, "devices": self.local, "server": self.server, "watch": self.watch}

    def _state(self) -> State:
        """Return the state at the end of an iteration."""
        parts = {name: part.state() for name, part in self._parts().items()}
        return {"stream": stream_state(self.rng), **parts}

    def _restore(self, saver: Saver) -> None:
        """Go on from what was saved."""
        parts, state = self._parts(), saver.saved
        assert state is not None
        schema = {name: part.schema() for name, part in parts.items()}
        check({"stream": COUNTED_STREAM, **schema}, state, saver.place)
        set_stream(self.rng, state["stream"])
        for name, part in parts.items():
            part.restore(state[name])
        check_length(self.run.n_iter, self.given.n_iter, "n_iter")


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
