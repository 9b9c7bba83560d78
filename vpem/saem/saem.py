"""The loop of SAEM: simulate, statistics, stochastic approximation, maximise; on many devices.

Delyon, Lavielle and Moulines 1999. Devices have individuals: each simulates the latents of its own,
smooths their statistics or makes a model of its own, and what reaches the server, in
`vpem.saem.server`, are statistics (or models). How a run goes is what a checkpoint keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from vpem.checks import Doubles, Indices, check_int, check_memory
from vpem.errors import (
    InputError,
    NumericalError,
    PartitionedError,
    Setting,
    VpemError,
    not_converged,
    warn,
)
from vpem.network.partition import Workers
from vpem.network.schema import (
    COUNT,
    FLAG,
    TEXT,
    Array,
    As,
    Integer,
    ListOf,
    Number,
    Schema,
    Stateful,
    check,
    or_nan,
)
from vpem.saem.individuals import Streams
from vpem.saem.models.model import Counts, SaemModel, check_model
from vpem.saem.samplers import Chains, Sampler
from vpem.saem.server import SaemNeighbours, SaemServer
from vpem.saem.stopping import PerplexityWatch, Watch
from vpem.settings import SaemSettings
from vpem.steps.recovery import COUNTED_STREAM, NoSaver, Saver, check_length
from vpem.steps.runs import Tracer, note_partition, tracer
from vpem.terms.units import Scaling

DRAWN = (1 << 20) - 1
"""Use of an individual's random numbers, the last, by which batches are drawn."""

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


@dataclass(frozen=True)
class SaemProgress:
    """What a callback gets after an iteration."""

    iteration: int
    n_iter: int
    theta: Doubles


@dataclass
class SaemRun(Stateful):
    """How a run went.

    ``holds`` says whether the last M-step took statistics as they were, or had to make parameters
    valid. At the last look the farthest parameter was ``change`` standard errors from where it
    settles; NaN if never looked at. In ``partitions`` the network was disconnected, and parameters
    stayed as they were. Where formulas ended the run they are ``integrated``, from theta on.
    """

    theta: Doubles  # (p,) at the end
    chains: Chains  # latents of all individuals
    trace: list[Doubles] = field(default_factory=list)  # (p,) each; `SaemModel.followed`
    bytes: list[int] = field(default_factory=list)  # payload sent so far
    n_active: list[int] = field(default_factory=list)  # devices that took part
    n_iter: int = 0
    steps: list[float] = field(default_factory=list)  # of the approximation
    converged: bool = False  # parameters had settled
    change: float = float("nan")
    grounds: str = ""  # a sentence that says so
    holds: bool = True
    lost: int = 0  # last invalid iteration; 0: none
    looks: list[tuple[int, float]] = field(default_factory=list)  # iteration, perplexity
    partitions: list[tuple[int, str]] = field(default_factory=list)
    integrated: Any = None

    def canonical(self, model: SaemModel) -> tuple[Doubles, Doubles]:
        """Turn latents, and return parameters and their trace, to the form that is reported."""
        theta, first = model.canonical(self.theta, self.chains.z)
        trace = np.array(self.trace)
        if not np.array_equal(theta, self.theta):  # signs, say, are turned: those before as well
            trace = np.array([model.canonical(one, self.chains.z)[0] for one in self.trace])
        self.chains.z = first
        return theta, trace

    def schema(self) -> dict[str, Schema]:
        counts, start = ListOf(COUNT, "iterations"), self.trace[0]
        return {
            "n_iter": Integer(1, size="iterations"),
            "bytes": counts,
            "n_active": counts,
            "steps": ListOf(Number(0, 1), "iterations"),
            "converged": FLAG,
            "grounds": TEXT,
            "holds": FLAG,
            "lost": COUNT,
            "partitions": ListOf((COUNT, TEXT)),
            "looks": ListOf((COUNT, Number(0))),
            "theta": Array("f8", self.theta.shape),
            "start": As(
                Array("f8", start.shape), lambda trace: trace[0], lambda saved: [saved], "trace"
            ),
            "trace": As(
                Array("f8", ("iterations", len(start))),
                lambda trace: np.array(trace[1:]),
                lambda later: [*self.trace[:1], *later],
            ),
            "change": or_nan(Number(0)),
        }


def run_saem(
    model: SaemModel,
    devices: Workers,
    sampler: Sampler,
    server: SaemServer | SaemNeighbours,  # how devices reach the server, or each other
    settings: SaemSettings | None = None,
    *,
    start: Doubles | None = None,  # (p,) instead of the model's
    callback: Callable[[SaemProgress], None] | None = None,  # called after every iteration
    saver: Saver | None = None,  # offered the state after every iteration
    **changes: object,
) -> SaemRun:
    """Run SAEM; each device computes its own part of the model.

    With ``average`` "statistics" it is Algorithm 2 of the draft, with "models" Algorithm 1. Where
    devices take part with a probability, what the server has of the others stays; steps are divided
    by it, so that the mean is that of all; none is longer than ``longest_step``. ``tol`` and
    ``window``: see `vpem.saem.stopping`; where a part of the devices takes part, there are so many
    iterations between looks in which each does.

    With ``method`` "fl-saem" nothing is averaged over iterations, as the draft writes it: the
    M-step takes the mean statistic of the latest draws of those that take part. With "mcem" (Wei
    and Tanner 1990) steps are 1, and iteration r takes the mean over ``r^growth`` draws of each
    chain.
    NumericalError if parameters are not finite, or a sampler runs away; NotConvergedWarning if
    compressed statistics end as none that latents have.
    """
    settings = in_full(SaemSettings.resolve(settings, **changes))
    loop = _Loop(model, devices, sampler, server, settings, start)
    run = loop.iterate(saver or NoSaver(), callback)
    if server.codec is not None and not run.holds:
        warn(
            f"after {run.n_iter} iterations no latents have the server's statistics, and variances "
            f"are as good as zero: {server.codec.name} is too coarse with feedback "
            f"{server.feedback}; take feedback memory or error, or a finer codec",
            kind=not_converged,
        )
    return run


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


def in_full(settings: SaemSettings) -> SaemSettings:
    """Return the settings with what a method decides: all but SAEM run all iterations."""
    return settings if settings.method == "saem" else settings.changed(tol=0.0)


def draws_until(settings: SaemSettings, iteration: int) -> int:
    """Draws of each chain in the iterations from 1 to this one."""
    if settings.method != "mcem":
        return iteration
    each = np.arange(1, iteration + 1, dtype=np.float64) ** settings.growth
    return int(np.ceil(each).sum())


def step_size(iteration: int, burn_in: int, decay: float) -> float:
    """Step of the stochastic approximation: 1 in the burn-in, then ``(r - burn_in)^-decay``."""
    return 1.0 if iteration <= burn_in else float((iteration - burn_in) ** -decay)


def exact_at(server: SaemServer | SaemNeighbours, settings: SaemSettings) -> bool:
    """Whether a fit may go to the maximum by formulas, and is not to end where its algorithm does.

    It ends there with ``tol`` 0, as all methods but SAEM have, where models are averaged, where
    codecs go uncorrected, and under a penalty.
    """
    plain = settings.average == "statistics" and (server.codec is None or server.feedback != "none")
    return settings.tol > 0 and plain and settings.penalty is None


class _Loop(Stateful):
    """The iterations of one run, and what devices of this process have; parameters of `run_saem`.

    Where there are several processes, the individuals of one are those of its devices, device by
    device. An iteration simulates ``batch_size`` individuals of each device, by default all; the
    others stay where they are, and count with that. ``smoothed`` (D, P) is the mean statistic of
    each device's individuals, averaged over iterations; zero of others.
    """

    def __init__(
        self,
        model: SaemModel,
        devices: Workers,
        sampler: Sampler,
        server: SaemServer | SaemNeighbours,
        settings: SaemSettings,
        start: Doubles | None,
    ) -> None:
        n = model.individuals.number[0]
        if devices.n_samples != n:
            raise InputError(f"devices hold {devices.n_samples} individuals, but the model has {n}")
        if not devices.counts.all():
            empty = devices.names[int(devices.counts.argmin())]
            raise InputError(f"{empty!r} holds no individuals; leave such devices out")
        if settings.average == "models" and server.estimates is not None:
            raise InputError(
                Setting("average", "models"), " needs weights that are not negative, or "
                "covariances would be invalid, and rounds between neighbours have negative "
                "weights; average statistics, or take ", Setting("sum", "tree"),
            )  # fmt: skip
        if settings.average == "models" and (server.codec is not None or server.feedback != "none"):
            raise InputError(
                "averaged models are sent exactly: leave out the codec and its feedback, or "
                "average statistics"
            )
        latest = settings.method == "fl-saem"
        if latest and server.estimates is not None and settings.participation < 1:
            raise InputError(
                Setting("method", "fl-saem"), " takes the mean of the devices that take part, and "
                "among neighbours none knows which do; take a server or ", Setting("sum", "tree"),
                ", or leave out ", Setting("participation"),
            )  # fmt: skip
        self.model, self.server, self.given, self.sampler = model, server, settings, sampler
        server.latest = latest
        server.longest = None if settings.longest_step == "auto" else float(settings.longest_step)
        self.burn_in = check_int(
            "burn_in", burn_in_of(settings.n_iter, settings.burn_in), least=0, most=settings.n_iter
        )
        try:
            theta, z = (np.asarray(one) for one in model.start())
        except VpemError:
            raise
        except (ValueError, IndexError, TypeError, KeyError) as error:
            raise InputError(
                f"start of model {type(model).__name__} fails: {error}; statistics, pieces (of "
                f"{model.size} numbers together) and maximize must fit each other, see SaemModel"
            ) from error
        if start is not None:
            theta = np.array(start, dtype=np.float64)
        check_model(model, theta, z)
        theta = np.asarray(server.holders.bcast(theta))
        self.rng = np.random.Generator(np.random.Philox(settings.seed))
        if model.wide:
            n_bytes = KEPT_STATISTICS * 8 * devices.n_workers * model.size
            check_memory(n_bytes, f"the statistics of {devices.n_workers} devices")
        units = model.expand_about(theta).units(z[None])
        self.units = Scaling(np.zeros(len(units)), units)
        n_chains = chains_of(sampler, devices.n_samples, settings.n_chains)
        self.chains = sampler.begin(model, theta, z, n_chains, settings.seed)
        self._hold(devices, z, theta)
        self.thetas = theta[None]
        self.weights = (
            np.ones(devices.n_workers) if settings.shares == "devices" else server.weights
        )
        self.run = SaemRun(theta, self.chains, [model.followed(theta)])
        # As much is seen of each device in between.
        self.often = settings.participation * self.share
        looks = math.ceil(settings.window / self.often)
        exact = exact_at(server, settings)
        often = self.burn_in, settings.tol, min(looks, settings.n_iter) if exact else looks
        self.watch: Watch | PerplexityWatch = (
            PerplexityWatch(model, server, *often)
            if model.wide
            else Watch(model, sampler, server, *often, exact)
        )
        if settings.tol > 0:
            self.run.grounds = (
                f"parameters are looked at from iteration {self.burn_in + 2 * looks} on"
            )

    def schema(self) -> dict[str, Schema]:
        return {
            "stream": As(COUNTED_STREAM, at="rng.bit_generator.state"),
            "run": self.run,
            "devices": As(self._held(), at="."),
            "server": self.server,
            "watch": self.watch,
        }

    def iterate(self, saver: Saver, callback: Callable[[SaemProgress], None] | None) -> SaemRun:
        run, n_iter, server = self.run, self.given.n_iter, self.server
        common = (self.units, self.given.participation, self.rng)
        if saver.saved is None:
            server.begin(self.smoothed, *common)
        else:
            server.join(self.smoothed.copy(), *common)
            check(self, saver.saved, saver.place)
            self.restore(saver.saved)
            self._tell(run.theta)
            check_length(run.n_iter, n_iter, "n_iter")

        if server.damping > server.safe:
            warn(
                f"steps of up to {server.damping:.3g} are longer than noise of omega "
                f"{server.omega:.3g} and memories' steps of {server.alpha:.3g} allow: "
                f"{server.safe:.3g} is safe; take ",
                Setting("longest_step", "auto"),
                level=4,
            )
        trace = tracer(callback)
        if trace is not None and saver.saved is None:
            self._tell_trace(trace)
        # Steps of other methods do not fall.
        burn_in = self.burn_in if self.given.method == "saem" else n_iter
        while run.n_iter < n_iter and not run.converged:
            r = run.n_iter + 1
            step = step_size(r, burn_in, self.given.decay)
            active = server.draw(len(run.theta))
            theta = self._move(r, step, active) if len(active) else run.theta
            if not np.isfinite(theta).all():
                raise NumericalError(
                    f"parameters are not finite after iteration {r}; take another start, or a "
                    "finer codec"
                )
            taken = step if server.latest else min(step, self.often * server.damping)
            run.theta, run.n_iter = theta, r
            run.trace.append(self.model.followed(theta))
            run.bytes.append(server.ledger.bytes)
            run.n_active.append(len(active))
            run.steps.append(taken)
            if callback is not None:
                callback(SaemProgress(r, n_iter, self.model.outside(theta)))
            if trace is not None:
                self._tell_trace(trace)
            settled = bool(server.holders.bcast(self.watch.has_settled(run)))
            saver.offer(self.state, last=settled or r == n_iter)
        return run

    def _tell_trace(self, trace: Tracer) -> None:
        """Say where the parameters are, and the statistic of which they were made."""
        run, model = self.run, self.model
        wide = model.wide or self.given.average == "models"
        theta = model.followed(run.theta) if model.wide else model.outside(run.theta)
        statistic = None
        if not wide:  # on a graph the first device's
            estimates = self.server.estimates
            statistic = (self.server.statistic if estimates is None else estimates[0]).copy()
        trace(
            run.n_iter, {"theta": theta}, epochs=run.n_iter * self.share, statistic=statistic,
            names=model.parameters if len(theta) == len(model.parameters) else (),
            step=run.steps[-1] if run.steps else None,
            n_active=run.n_active[-1] if run.n_active else None,
        )  # fmt: skip

    def _move(self, r: int, step: float, active: Indices) -> Doubles:
        """Simulate on the active devices; the parameters that follow."""
        run, server = self.run, self.server
        model = self.model.expand_about(run.theta)
        late = max(0, r - self.burn_in)
        first, last = (draws_until(self.given, iteration) for iteration in (r - 1, r))
        drawn = self.simulate(self.thetas, active, first + 1, late)
        for now in range(first + 2, last + 1):
            drawn += (self.simulate(self.thetas, active, now, late) - drawn) / (now - first)
        # A device that is seldom active takes larger steps, so that all forget alike.
        rate = 1.0 if server.latest else min(server.damping, step / self.given.participation)
        self.smoothed[active] += rate * (drawn - self.smoothed[active])
        if self.given.average == "models":  # at a server
            # The mean of the last models of all devices (D, p), by shares (D,).
            thetas, shares = self.maximize(run.theta, active, self.weights)
            server.total.send(thetas[active], active)
            holders = server.holders
            if holders.masks is not None:
                total = holders.add_up(shares[holders.own, None] * thetas[holders.own])
            else:
                total = holders.allreduce(shares @ thetas)
            theta = np.asarray(total / shares.sum(), np.float64)
        else:
            try:
                server.gather(drawn, self.smoothed[active], step)
            except PartitionedError as error:
                note_partition(run.partitions, r, error, "links")
                return run.theta
            total = server.statistic * model.counts.individuals
            theta = np.asarray(model.maximize(total, model.counts))
            run.holds = model.holds(total, model.counts)
            run.lost = run.lost if run.holds else r
        self._tell(theta)
        return theta

    def _tell(self, theta: Doubles) -> None:
        last, self.thetas = self.thetas, theta[None]
        if self.server.estimates is not None:
            counts = self.model.counts
            self.thetas = np.zeros((len(self.server.estimates), len(theta)))
            for one in self.rows if len(self.thetas) > 1 else (0,):
                total = self.server.estimates[one] * counts.individuals
                before = self.model.expand_about(last[min(one, len(last) - 1)])
                self.thetas[one] = before.maximize(total, counts)

    def _hold(self, workers: Workers, z: Doubles, theta: Doubles) -> None:
        """Set up what devices have, at first latents (n, q) and parameters (p,)."""
        model, place, batch_size = self.model, self.server.holders, self.given.batch_size
        # Least share of a device's individuals that an iteration simulates.
        self.share = min(1.0, (batch_size or np.inf) / int(workers.counts.max()))
        self.rows: dict[int, Indices] = {int(one): workers.rows[one] for one in place.own}
        if place.apart:
            ends = np.cumsum([0, *workers.counts[place.own]])
            self.rows = {
                int(one): np.arange(*pair)
                for one, pair in zip(place.own, pairwise(ends), strict=True)
            }
        # Of each individual, or of a wide model of none.
        first = model.expand_about(theta)
        self._each = np.empty((0, model.size)) if model.wide else first.statistics(z[None])
        # Individuals whose statistics last longer than an iteration.
        self._kept = 0 if self.share == 1 else len(self._each)
        self._weights = model.individuals.weights
        self.smoothed = self._means(np.arange(workers.n_workers), theta[None], z[None])
        data = model.individuals
        self._counts = {one: Counts(*data.take(rows).everyone) for one, rows in self.rows.items()}
        self._models = np.zeros((workers.n_workers, len(theta)))  # the last of each device
        self._models[place.own] = theta
        self._known = np.zeros(workers.n_workers, dtype=np.bool_)

    def simulate(self, thetas: Doubles, active: Indices, now: int, late: int) -> Doubles:
        """Move the chains of the active devices; the mean statistic of each (a, P).

        Parameters (R, p) are of all devices (R = 1) or of each; ``now`` and ``late`` are as for
        `vpem.saem.samplers.Sampler.move`.
        """
        local = [int(one) for one in active if int(one) in self.rows]
        if len(thetas) > 1:
            for one in local:
                self._move_chains(self._drawn(one, now), thetas[one], now, late)
        elif len(local) == len(self.rows) and self.share == 1:
            model, theta = self.model.expand_about(thetas[0]), thetas[0]
            self.sampler.move(model, theta, self.chains, now, late)
            if not model.wide:
                self._each = model.statistics(self.chains.z)
        elif local:
            which = np.concatenate([self._drawn(one, now) for one in local])
            self._move_chains(which, thetas[0], now, late)
        return self._means(active, thetas, self.chains.z)

    def _drawn(self, device: int, now: int) -> Indices:
        """Individuals of a device that an iteration simulates."""
        rows, size = self.rows[device], self.given.batch_size
        if size is None or size >= len(rows):
            return rows
        streams = Streams(self.chains.streams.keys[rows]).derive_stream(now, DRAWN)
        chances = streams.words(1, 1)[0, :, 0]
        return np.asarray(rows[np.sort(np.argsort(chances)[:size])], np.intp)

    def _move_chains(self, which: Indices, theta: Doubles, now: int, late: int) -> None:
        part, some = self.chains.take_individuals(which), self.model.take_individuals(which)
        some = some.expand_about(theta)
        self.sampler.move(some, theta, part, now, late)
        self.chains.put(which, part)
        if not some.wide:
            self._each[which] = some.statistics(part.z)

    def _means(self, devices: Indices, thetas: Doubles, z: Doubles) -> Doubles:
        """Mean statistic of some devices' individuals; zero of those that are elsewhere.

        Of a wide model those that an iteration left where they are count with its parameters.
        """
        means = np.zeros((len(devices), self.model.size))
        if self.model.wide:
            local = [place for place, one in enumerate(devices.tolist()) if one in self.rows]
            shared = [local] if len(thetas) == 1 else [[place] for place in local]
            for places in shared:
                theta = thetas[0 if len(thetas) == 1 else devices[places[0]]]
                groups = [self.rows[int(devices[place])] for place in places]
                if groups:
                    means[places] = self.model.expand_about(theta).means(z, groups)
            return means
        for place, one in enumerate(devices.tolist()):
            if one in self.rows:
                rows = self.rows[one]
                if self._weights is None:
                    means[place] = self._each[rows].mean(axis=0)
                else:
                    weights = self._weights[rows]
                    means[place] = weights @ self._each[rows] / weights.sum()
        return means

    def maximize(
        self, theta: Doubles, active: Indices, weights: Doubles
    ) -> tuple[Doubles, Doubles]:
        """Make models of the active devices: the last of all (D, p), of weights (D,), 0 of none."""
        model = self.model.expand_about(theta)
        for one in active.tolist():
            if one in self.rows:
                total = self.smoothed[one] * self._counts[one].individuals
                self._models[one] = model.maximize(total, self._counts[one])
        self._known[active] = True
        return self._models, weights * self._known

    def _held(self) -> dict[str, Schema]:
        kept, each = self._kept, self._each
        return {
            "chains": self.chains,
            "each": As(
                Array("f8", (kept, each.shape[1])),
                lambda whole: whole[:kept],
                lambda saved: np.concatenate([saved, each[kept:]]),
            ),
            "smoothed": Array("f8", self.smoothed.shape),
            "models": Array("f8", self._models.shape),
            "known": Array("b1", self._known.shape),
        }
