"""The loop of SAEM: simulate, statistics, stochastic approximation, maximise; on many devices.

Delyon, Lavielle and Moulines 1999. Devices hold individuals: each simulates the latents of its own,
and what reaches the server, in `vpem.saem.server`, are statistics (or models).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_int, check_memory
from vpem.errors import (
    InputError,
    NumericalError,
    PartitionedError,
    Setting,
    VpemWarning,
    not_converged,
)
from vpem.network.partition import Workers
from vpem.network.schema import (
    State,
    check,
)  # fmt: skip
from vpem.saem.chains import Sampler
from vpem.saem.devices import Devices
from vpem.saem.models.model import SaemModel, Vector, begin_model, check_model
from vpem.saem.neighbours import SaemNeighbours
from vpem.saem.perplexity import PerplexityWatch
from vpem.saem.runs import SaemProgress, SaemRun
from vpem.saem.server import SaemServer, Units
from vpem.saem.stopping import Watch
from vpem.settings import SaemSettings
from vpem.steps.runs import note_partition
from vpem.steps.saver import (
    COUNTED_STREAM,
    NoSaver,
    Saver,
    check_length,
    set_stream,
    stream_state,
)  # fmt: skip

CHAINS = (4, 10)
"""Least and most chains of each individual that are moved, by default."""

ENOUGH = 250
"""Chains of all individuals, up to which there are more of each than the least."""

EXACT_CHAINS = 50
"""Chains of each individual where latents are drawn exactly."""

KEPT_STATISTICS = 6
"""Arrays of a statistic a device that a run holds: smoothed, drawn, sent, remembered, left out."""

MOST_DRAWS = 1_000_000
"""Chains of all individuals, from which on there are fewer of each."""


def burn_in_of(n_iter: int, burn_in: int | None = None) -> int:
    """Iterations of burn-in: as many as are given, else 200, or two fifths of fewer than 500."""
    return min(200, 2 * n_iter // 5) if burn_in is None else burn_in


def chains_of(sampler: Sampler, n: int, n_chains: int | None = None) -> int:
    """Chains of each of n individuals: as many as are given, else 4 to 10, or 50 exact ones.

    Where rows say little of a parameter, it wanders with the noise of the draws for very long. With
    Gibbs sampling it is one: that noise leads out of topics that are two.
    """
    if n_chains is None:
        if sampler.name == "gibbs":
            return 1
        least, most = CHAINS
        if sampler.name == "exact":
            return max(least, min(EXACT_CHAINS, MOST_DRAWS // max(n, 1)))
        return max(least, min(most, ENOUGH // max(n, 1)))
    return check_int("n_chains", n_chains, least=1, most=10_000)


def step_size(iteration: int, burn_in: int, decay: float) -> float:
    """Step of the stochastic approximation: 1 in the burn-in, then ``(r - burn_in)^-decay``."""
    return 1.0 if iteration <= burn_in else float((iteration - burn_in) ** -decay)


def exact_at(server: SaemServer | SaemNeighbours, given: SaemSettings) -> bool:
    """Whether a fit may go to the maximum by formulas, and is not to end where its algorithm does.

    It is where all iterations are asked for, models are averaged, or codecs go uncorrected.
    """
    plain = given.average == "statistics" and (server.codec is None or server.feedback != "none")
    return given.tol > 0 and plain


def run_saem(
    model: SaemModel,
    devices: Workers,
    sampler: Sampler,
    server: SaemServer | SaemNeighbours,  # how devices reach the server, or each other
    settings: SaemSettings | None = None,
    *,
    start: Vector | None = None,  # (p,) instead of the model's
    callback: Callable[[SaemProgress], None] | None = None,  # told of every iteration
    saver: Saver | None = None,  # offered the state after every iteration
    **changes: Any,
) -> SaemRun:
    """Run SAEM; each device computes its own part of the model.

    With ``average`` "statistics" it is Algorithm 2 of the draft, with "models" Algorithm 1. Where
    devices take part with a probability, what the server has of the others stays; steps are divided
    by it, so that the mean is that of all; none is longer than ``longest_step``. ``tol`` and
    ``window``: see `vpem.saem.stopping`; where a part of the devices takes part, there are so many
    iterations between looks in which each does.
    NumericalError if parameters are not finite, or a sampler runs away; NotConvergedWarning if
    compressed statistics end as none that latents have.
    """
    loop = _Loop(model, devices, sampler, server, SaemSettings.of(settings, **changes), start)
    run = loop.iterate(saver or NoSaver(), callback)
    if server.codec is not None and not run.holds:
        warnings.warn(
            not_converged(
                f"after {run.n_iter} iterations the server's statistics are of no latents, and "
                f"variances are as good as zero: {server.codec.name} is too coarse with feedback "
                f"{server.feedback}; take feedback memory or error, or a finer codec"
            ),
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
        server: SaemServer | SaemNeighbours,
        given: SaemSettings,
        start: Vector | None,
    ) -> None:
        _check(model, devices, server, given.average)
        self.model, self.server, self.given = model, server, given
        server.longest = None if given.longest_step == "auto" else float(given.longest_step)
        self.burn_in = check_int(
            "burn_in", burn_in_of(given.n_iter, given.burn_in), least=0, most=given.n_iter
        )
        theta, z = begin_model(model)
        if start is not None:
            theta = np.array(start, dtype=np.float64)
        check_model(model, theta, z)
        theta = np.asarray(server.holders.bcast(theta))
        self.rng = np.random.Generator(np.random.Philox(given.seed))
        if model.wide:
            held = KEPT_STATISTICS * 8 * devices.n_workers * model.size
            check_memory(held, f"the statistics of {devices.n_workers} devices")
        self.units = Units(model.about(theta).units(z[None]))
        chains = sampler.begin(
            model, theta, z, chains_of(sampler, devices.n_samples, given.n_chains)
        )
        self.local = Devices(
            model, devices, server.holders, sampler, chains, given.seed, z, theta,
            given.batch_size,
        )  # fmt: skip
        self.thetas = theta[None]
        self.weights = np.ones(devices.n_workers) if given.shares == "devices" else server.weights
        self.run = SaemRun(theta, chains, [model.followed(theta)])
        # As much is seen of each device in between.
        self.often = given.participation * self.local.share
        looks = math.ceil(given.window / self.often)
        exact = exact_at(server, given)
        often = self.burn_in, given.tol, min(looks, given.n_iter) if exact else looks
        self.watch: Watch | PerplexityWatch = (
            PerplexityWatch(model, server, *often)
            if model.wide
            else Watch(model, sampler, self.local.streams, server, *often, exact)
        )
        if given.tol > 0:
            self.run.grounds = (
                f"parameters are looked at from iteration {self.burn_in + 2 * looks} on"
            )

    def iterate(self, saver: Saver, callback: Callable[[SaemProgress], None] | None) -> SaemRun:
        """Iterate to the end, from the beginning or from what was saved."""
        run, n_iter, server = self.run, self.given.n_iter, self.server
        common = (self.units, self.given.participation, self.rng)
        if saver.saved is None:
            server.begin(self.local.smoothed, *common)
        else:
            server.join(self.local.smoothed.copy(), *common)
            self._restore(saver)
        if server.damping > server.safe:
            _warn_of_long(server)
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
            taken = min(step, self.often * server.damping)
            run.note(theta, self.model.followed(theta), server.ledger.bytes, len(active), taken)
            if callback is not None:
                callback(SaemProgress(r, n_iter, getattr(self.model, "outside", np.asarray)(theta)))
            settled = bool(server.holders.bcast(self.watch.has_settled(run)))
            saver.offer(self._state, last=settled or r == n_iter)
        return run

    def _move(self, r: int, step: float, active: NDArray[np.intp]) -> Vector:
        """Simulate on the active devices; the parameters that follow."""
        run, local, server = self.run, self.local, self.server
        model = self.model.about(run.theta)
        drawn = local.simulate(self.thetas, active, r, max(0, r - self.burn_in))
        # A device that is seldom active takes larger steps, so that all forget alike.
        local.smooth(drawn, active, min(server.damping, step / self.given.participation))
        if isinstance(server, SaemServer) and self.given.average == "models":
            theta = server.average_models(*local.maximize(run.theta, active, self.weights))
        else:
            try:
                server.gather(drawn, local.smoothed[active], step)
            except PartitionedError as error:
                note_partition(run.partitions, r, error, "links")
                return run.theta
            total = server.statistic * model.counts.individuals
            run.holds = model.holds(total, model.counts)
            run.lost = run.lost if run.holds else r
            theta = np.asarray(model.maximize(total, model.counts))
        self._tell(theta)
        return theta

    def _tell(self, theta: Vector) -> None:
        """Let devices have parameters: the same, or each those of its own estimate."""
        last, self.thetas = self.thetas, theta[None]
        if self.server.estimates is not None:
            counts = self.model.counts
            self.thetas = np.zeros((len(self.server.estimates), len(theta)))
            for one in self.local.rows if len(self.thetas) > 1 else (0,):
                total = self.server.estimates[one] * counts.individuals
                before = self.model.about(last[min(one, len(last) - 1)])
                self.thetas[one] = before.maximize(total, counts)

    def _parts(self) -> dict[str, Any]:
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
        self._tell(self.run.theta)
        check_length(self.run.n_iter, self.given.n_iter, "n_iter")


def _warn_of_long(server: SaemServer | SaemNeighbours) -> None:
    """Warn of steps that a codec's noise may outgrow."""
    warnings.warn(
        VpemWarning(
            f"steps of up to {server.damping:.3g} are longer than noise of omega "
            f"{server.omega:.3g} and memories' steps of {server.alpha:.3g} allow: "
            f"{server.safe:.3g} is safe; take ", Setting("longest_step", "auto"),
        ),
        stacklevel=5,
    )  # fmt: skip


def _check(
    model: SaemModel,
    devices: Workers,
    server: SaemServer | SaemNeighbours,
    average: str,
) -> None:
    """Refuse options that do not fit each other."""
    n = model.individuals.number[0]
    if devices.n_samples != n:
        raise InputError(f"devices hold {devices.n_samples} individuals, but the model is of {n}")
    if not devices.counts.all():
        empty = devices.names[int(devices.counts.argmin())]
        raise InputError(f"{empty!r} holds no individuals; leave such devices out")
    if average == "models" and isinstance(server, SaemNeighbours):
        raise InputError(
            Setting("average", "models"), " needs weights that are not negative, or covariances "
            "would not be any, and rounds between neighbours have some that are; average "
            "statistics, or take ", Setting("sum", "tree"),
        )  # fmt: skip
    if average == "models" and (server.codec is not None or server.feedback != "none"):
        raise InputError(
            "averaged models are sent exactly: leave out the codec and its feedback, or average "
            "statistics"
        )
