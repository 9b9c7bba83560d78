"""FedEM and VR-FedEM: EM with statistics that are compressed, sampled, and sent by some workers.

Dieuleveut, Fort, Moulines and Robin 2021. This is the whole algorithm, and what a worker computes
of its rows in an iteration: all, a minibatch, or SPIDER. *Whose* statistics these are
is a `StatisticModel`; *how* they travel and who keeps their mean is in `vpem.steps.fedem_sums`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from vpem._core.threads import thread_count
from vpem.checks import Doubles, Indices, least_participation
from vpem.engines.engine import set_topic
from vpem.errors import InputError, NumericalError, PartitionedError, Setting
from vpem.network.codecs import Codec
from vpem.network.ledger import Ledger
from vpem.network.schema import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    Array,
    As,
    Integer,
    ListOf,
    Maybe,
    Number,
    Schema,
    Stateful,
    check,
    save,
)
from vpem.settings import FedSettings
from vpem.steps.batches import STEP_SIZE
from vpem.steps.fedem_steps import Drift, Rest, SafeSteps, looks_needed
from vpem.steps.fedem_sums import (
    FedHistory,
    FedProgress,
    FedRun,
    NeighbourKeepers,
    StatisticKeeper,
    StatisticModel,
    check_keeper,
    check_masked,
    disagreement,
    parse_step_size,
    weights_of,
)
from vpem.steps.recovery import STREAM, NoSaver, Saver, check_length
from vpem.steps.runs import Tracer, note_partition, tracer
from vpem.sums.connect import Network
from vpem.sums.quantizer import ITEM, Basis, Quantizer
from vpem.terms.units import exponents_of

FORGETFUL = ("none", "naive")
"""Settings of the memories by which there are none."""

ROOM = 2.0**8
"""Corrections may be so much larger than statistics are: they differ by memories and estimates."""

STOP = (41,)
"""Of the stream by which a run ends at a random iteration."""

ELSEWHERE = object()
"""Parameters of a root of another process."""


def first_statistics(model: StatisticModel, parameters: Any) -> Doubles:
    """Statistics (n, P) of all workers at common parameters; zero without rows."""
    statistics = np.zeros((len(model.counts), model.size))
    for worker in np.flatnonzero(model.counts):
        statistics[worker] = model.expect(int(worker), parameters, None)
    return statistics


def run_fedem(
    model: StatisticModel,
    start: Doubles | None,
    settings: FedSettings | None = None,
    *,
    codec: Codec | None = None,
    first_codec: Codec | None = None,
    basis: Basis | None = None,
    network: Network | None = None,
    ledger: Ledger | None = None,
    rng: np.random.Generator,
    callback: Callable[[FedProgress], None] | None = None,
    saver: Saver | None = None,
    **changes: Any,
) -> FedRun:
    """Run FedEM, or VR-FedEM with ``variance_reduction``.

    VR-FedEM (SPIDER): a worker corrects its last statistic by the difference of two minibatches,
    and begins again with all its rows in every outer loop.

    ``start`` (P,) is a statistic that all know; or (n, P) each worker's own at parameters that all
    know (`first_statistics`): these are sent once, the mean of what is received is the start, and
    one epoch is counted. Where there is a saved state it is None.

    Where anything is drawn or quantized, corrections must be below ``tol`` in so many iterations in
    a row (`vpem.steps.fedem_steps.looks_needed`). Noise that stays above it ends a run of constant
    steps once it alone moves the statistic (`vpem.steps.fedem_steps.Drift`). Steps may be a
    function too (`parse_step_size`).

    With ``random_stop`` the run ends after K iterations, K uniform on 0, ..., max_iter - 1: what it
    returns is the ``S_K`` of Theorems 1 and 2.

    Workers send corrections to the server by ``codec`` (None: as float64). A codec that is biased
    by more than rounding needs memories, and takes ``alpha = 1`` and ``H`` the mean of the memories
    as they become, without ``1/p``: error feedback, EF21 of Richtarik et al. 2021. First statistics
    or corrections go by ``first_codec``: its noise is on all of the statistic, so that it should be
    finer. In the units of ``basis`` codecs work on the vector as one piece, and norms are taken for
    ``tol``; None: on the model's pieces as they are.

    ``network`` is from `vpem.sums.connect.connect_workers`. None or a star: a server. On any other
    graph every worker keeps a statistic of its own, and the network's sum takes ``mean (S_i + step
    H_i)``; compression is the network's. ``rng`` draws the active workers, the minibatches and the
    codec's keys; the saver is offered the state, with this stream, in every iteration.

    Raises InputError if a setting is out of range or makes no sense with another, and
    NumericalError if a statistic is no longer finite, or the network stays disconnected.
    """
    settings = FedSettings.resolve(settings, **changes)
    weights = weights_of(model.counts, model.masses, settings.weighting)
    first = Quantizer(first_codec, model.pieces, thread_count(settings.n_threads), basis)
    keeper, later, alpha = _keeper_of(
        model, weights, settings, codec, basis, network, ledger, rng, first
    )
    participation = least_participation(settings.participation)
    counts = model.counts[model.counts > 0]
    # Whether corrections stay noisy however long the run is.
    drawn = settings.batch_size is not None and (
        settings.replacement or settings.batch_size < int(counts.max())
    )
    stays_on = drawn and not settings.variance_reduction
    if settings.memory in FORGETFUL:
        stays_on = stays_on or later.omega > 0 or participation < 1
    steps, settings = SafeSteps.choose(settings, alpha, later, counts, model.least_batch, stays_on)
    if settings.random_stop:
        # Of a stream of its own, so that the run is that without it up to there.
        seeds: Any = rng.bit_generator.seed_seq
        stop = np.random.default_rng(np.random.SeedSequence(seeds.entropy, spawn_key=STOP))
        settings = settings.changed(
            max_iter=int(stop.integers(max(settings.max_iter or 0, 1))), random_stop=False
        )
    reduced = settings.variance_reduction and settings.batch_size is not None
    noisy = later.omega > 0 or participation < 1 or settings.batch_size is not None
    looks = looks_needed(noisy or keeper.is_noisy, participation, settings.inner or 0)
    drift = Drift((keeper.n_roots, model.size), basis) if settings.tol > 0 and stays_on else None
    rest = Rest(settings.tol, looks, basis, drift)
    loop = _Loop(model, settings, weights, keeper, reduced, rest, rng)
    loop.trace = tracer(callback)
    saver = saver or NoSaver()
    loop.begin(saver, start, alpha, later.omega)
    run = loop.iterate(saver, callback)
    run.steps, run.settings = steps, settings
    return run


def go_on(
    run: FedRun,
    model: StatisticModel,
    weights: Doubles,
    settings: FedSettings,
    iteration: int,
    *,
    codec: Codec | None = None,
    basis: Basis | None = None,
    network: Network | None = None,
    ledger: Ledger | None = None,
    rng: np.random.Generator,
) -> FedRun:
    """Take one more iteration, on rows that come once: the online setting of FedEM (A 7).

    The ``model`` has the next rows of a stream; ``weights`` (n,) are the workers' shares of all. A
    worker without rows is absent. Steps of "auto" are ``iteration^-0.6`` (Cappe and Moulines 2009),
    but no longer than noise of codecs and absent workers allows. The run that is given stays as it
    is; the history of the new one is that of these rows.
    """
    keeper, later, alpha = _keeper_of(model, weights, settings, codec, basis, network, ledger, rng)
    keeper.total.turn_to(iteration - 1, None)
    counts, auto = model.counts[model.counts > 0], settings.changed(step_size="auto")
    steps = SafeSteps.choose(auto, alpha, later, counts, 1, True)[0]
    falls = isinstance(settings.step_size, str) and settings.step_size == "auto"
    if falls:
        settings = settings.changed(step_size=f"decreasing:1,{STEP_SIZE}")
    loop = _Loop(model, settings, weights, keeper, False, Rest(0.0, 1, basis), rng)
    if falls:
        fall = loop.steps
        loop.steps = lambda at: min(steps.safe, fall(at))
    loop.run = moved = replace(
        run, memories=run.memories.copy(), memory=run.memory.copy(), history=FedHistory(),
        partitions=list(run.partitions), projected=list(run.projected),
    )  # fmt: skip
    keeper.remember(moved)
    roots = [root for root in range(keeper.n_roots) if not keeper.others(root)]
    loop.parameters = [model.maximize(run.statistics[root], root)[0] for root in roots]
    loop._move(iteration)
    moved.n_iter = run.n_iter + 1
    loop._maximize()
    loop._record(np.where(model.counts > 0, weights, 0.0))
    moved.steps, moved.settings, moved.epochs = steps, settings, run.epochs + loop.epochs
    return moved


def _keeper_of(
    model: StatisticModel,
    weights: Doubles,
    settings: FedSettings,
    codec: Codec | None,
    basis: Basis | None,
    network: Network | None,
    ledger: Ledger | None,
    rng: np.random.Generator,
    first: Quantizer | None = None,
) -> tuple[StatisticKeeper, Quantizer, float]:
    """Who keeps the statistic, with members that take part; how they send, and memories' steps."""
    later = Quantizer(codec, model.pieces, thread_count(settings.n_threads), basis)
    alpha = 0.0 if settings.alpha is None else settings.alpha
    forgets = settings.memory in FORGETFUL
    if forgets:
        if settings.alpha is not None:
            raise InputError(
                Setting("alpha"),
                " is the step of the memories, of which ",
                Setting("memory", settings.memory),
                " leaves none",
            )
        if later.biased:
            raise InputError(
                f"the codec {later.name} is biased, which only memories make up for; take ",
                Setting("memory", "first"),
                ", or an unbiased codec such as qsgd:8bits or randk:0.1",
            )
    elif settings.alpha is None:
        alpha = 1.0 if later.biased else 1 / (1 + later.omega)
    elif alpha == 0:
        raise InputError(
            Setting("alpha"),
            " must be above 0: memories that never move are ",
            Setting("memory", "none"),
        )
    elif later.biased and alpha != 1:
        raise InputError(
            f"the codec {later.name} is biased, and error feedback needs memories that take all of "
            "what is sent: ",
            Setting("alpha"),
            f" must be 1, got {alpha:g}",
        )
    participation, among = settings.participation, np.flatnonzero(model.counts)
    n, central = len(weights), network is None or network.total.at_server
    if network is not None:
        if central:
            check_masked(network, codec, participation)
        elif network.graph.n_agents != n or network.total.roots.n_agents not in (1, n):
            raise InputError(
                f"the graph joins {network.graph.n_agents} agents, but there are {n} workers; set "
                "it up by connect_workers, each a root of its own"
            )
        check_keeper(network, n, codec, "FedEM", "worker", "its corrections")
    kind: type[StatisticKeeper] = StatisticKeeper if central else NeighbourKeepers
    keeper = kind(network, weights, ledger)
    if central and model.bounds is not None and keeper.holders.masks is not None:
        keeper.total.exponents = exponents_of(ROOM * model.bounds, n)
    naive = settings.memory == "naive"
    keeper.take_part(participation, rng, later, among, first, naive=naive)
    return keeper, later, alpha


class _Loop(Stateful):
    """The iterations of one run, and all that they go by.

    A minibatch has ``batch_size`` rows, drawn by the model (None: all rows). With variance
    reduction (``reduced``; SPIDER, Fang et al. 2018) a worker's estimate moves by the difference
    between the statistics of a minibatch at the current and at the previous parameters that it
    worked with; in the first of the ``inner`` iterations of an outer loop in which a worker is
    active it takes all its rows.
    """

    run: FedRun
    parameters: list[Any]
    n_active, step = 0, 1.0
    """Workers, and the step, of the last iteration."""
    resumed = False
    """Whether the statistic of this iteration was saved."""
    trace: Tracer | None = None

    def __init__(
        self,
        model: StatisticModel,
        settings: FedSettings,
        weights: Doubles,
        keeper: StatisticKeeper,
        reduced: bool,
        rest: Rest,
        rng: np.random.Generator,
    ) -> None:
        self.model = model
        self.settings, self.max_iter = settings, settings.max_iter or 0  # chosen if not given
        self.steps = parse_step_size(settings.step_size)
        self.most_epochs = inf if settings.n_epochs is None else settings.n_epochs
        self.weights, self.keeper, self.reduced = weights, keeper, reduced
        self.rest, self.rng = rest, rng
        self.inner, n_workers = settings.inner or 0, len(model.counts)
        self._last: Doubles = np.zeros((n_workers if reduced else 0, model.size))
        self._seen: list[Any] = [None] * n_workers
        self.n_expectations = 0
        """Conditional expectations of a row computed."""

    @property
    def epochs(self) -> float:
        """Conditional expectations computed, divided by the number of rows."""
        return self.n_expectations / int(self.model.counts.sum())

    def begin(self, saver: Saver, start: Doubles | None, alpha: float, omega: float) -> None:
        """Begin at a start, or where there is a saved state go on from that."""
        none, keeper = np.empty(0), self.keeper
        run = FedRun(none, none, None, FedHistory(), none, none, alpha=alpha, omega=omega)
        self.run = run
        if saver.saved is None:
            assert start is not None
            run.statistics, run.memories, run.memory = self._first(start)
            everywhere = np.broadcast_to(self._everyones(), run.memories.shape)
            run.statistic = self.weights @ everywhere
            keeper.remember(run)
            self._maximize()
            self._record()
            self._tell_trace(True)
            return
        # Parameters are found by the M-step that comes next.
        self.resumed = True
        check(self, saver.saved, saver.place)
        self.restore(saver.saved)
        run.statistic = run.statistics.mean(axis=0)
        check_length(run.n_iter, self.max_iter)
        keeper.remember(run)

    def schema(self) -> dict[str, Schema]:
        """State of an iteration, once the statistic has moved and before its M-step."""
        model, keeper, n_workers = self.model, self.keeper, len(self.model.counts)
        counts, sizes = ListOf(COUNT, "H", least=1), ListOf(Number(0), "H")
        history: dict[str, Schema] = {
            "iteration": counts,
            "epochs": sizes,
            "bytes_up": counts,
            "bytes": counts,
            "objective": ListOf(NUMBER, "H"),
            "mean_field": sizes,
            "disagreement": sizes,
        }
        run: dict[str, Schema] = {
            "statistics": Array("f8", (keeper.n_roots, model.size)),
            "memories": Array("f8", (n_workers, model.size)),
            "memory": Array("f8", (model.size,)),
            "projections": COUNT,
            "projected": ListOf(COUNT),
            "converged": FLAG,
            "partitions": ListOf((COUNT, TEXT)),
            "history": history,
        }
        return {
            "iteration": As(Integer(1), at="run.n_iter"),
            "active": As(Integer(most=n_workers), at="n_active"),
            "step": Number(0, 1),
            **{name: As(one, at=f"run.{name}") for name, one in run.items()},
            "model": model,
            "links": keeper.total,
            "estimates": As(self._estimates(), at="."),
            "in_noise": As(FLAG, at="run.in_noise"),
            "rest": self.rest,
            "stream": As(STREAM, at="rng.bit_generator.state"),
        }

    def _estimates(self) -> dict[str, Schema]:
        """What is saved of workers' estimates: parameters once, and who has seen which."""
        one = self.model.parameters_schema()
        distinct = {id(seen): seen for seen in self._seen if seen is not None}
        places: dict[int | None, int] = {key: at for at, key in enumerate(distinct)}
        every = ListOf(Maybe(one) if self.keeper.holders.apart else one, "S")
        local = [None if seen is ELSEWHERE else seen for seen in distinct.values()]
        return {
            "n_expectations": COUNT,
            "last": Array("f8", self._last.shape),
            "parameters": As(
                every,
                lambda _: save(every, local),
                lambda saved: [
                    ELSEWHERE if one is None else one for one in save(every, saved, back=True)
                ],
                "_seen",
            ),
            "seen": As(
                ListOf(Maybe(Integer(below="S")), len(self._seen)),
                lambda seen: [places.get(id(one)) for one in seen],
                lambda saved: [None if at is None else self._seen[at] for at in saved],
            ),
        }

    def estimate(self, iteration: int, active: Indices, parameters: list[Any]) -> Doubles:
        """Estimates (a, P) of the active workers, each at the parameters that it has.

        Iterations are counted from 1; one of them may begin an outer loop.
        """
        if self.reduced and (iteration - 1) % self.inner == 0:
            self._seen = [None] * len(self._seen)
        batch_size, replaced = self.settings.batch_size, self.settings.replacement
        model, estimates = self.model, np.empty((len(active), self.model.size))
        for place, worker in enumerate(active.tolist()):
            rows = None
            if batch_size is not None and (replaced or batch_size < int(model.counts[worker])):
                rows = model.draw(worker, batch_size, self.rng, replaced)
            if not self.reduced:
                estimates[place] = self._expect(worker, parameters[place], rows)
                continue
            before, self._seen[worker] = self._seen[worker], parameters[place]
            if before is None or rows is None:
                estimate = self._expect(worker, parameters[place], None)
            else:
                estimate = self._last[worker] + self._expect(worker, parameters[place], rows)
                estimate -= self._expect(worker, before, rows)
            self._last[worker] = estimates[place] = estimate
        return estimates

    def _expect(self, worker: int, parameters: Any, rows: Indices | None) -> Doubles:
        self.n_expectations += int(self.model.counts[worker]) if rows is None else len(rows)
        return self.model.expect(worker, parameters, rows)

    def iterate(self, saver: Saver, callback: Callable[[FedProgress], None] | None) -> FedRun:
        run = self.run
        for iteration in range(run.n_iter + (not self.resumed), self.max_iter + 1):
            if not self.resumed:  # or the rest of the iteration follows
                self.n_active, self.step = self._move(iteration)
                saver.offer(self.state, last=self._is_last())
            self.resumed = False
            self._maximize()
            if self.settings.tol > 0 and not self.keeper.central:
                self.keeper.total.agree("stopping")
            last = self._is_last()
            if last and self.keeper.central:
                # All workers hear the last statistic, which on a graph each has.
                self.keeper.total.broadcast(ITEM * self.model.size)
            shown = last or iteration % self.settings.record_every == 0
            if shown:
                self._record()
            self._tell_trace(shown)
            if callback is not None:
                callback(FedProgress(
                    run.n_iter, self.epochs, self.step, self.n_active,
                    run.history.objective[-1] if shown else None,
                    run.history.mean_field[-1] if shown else None, run.memories, run.memory,
                ))  # fmt: skip
            if last:
                break
        run.epochs = self.epochs
        run.projections = int(self.keeper.every(np.array([run.projections]))[0])
        return run

    def _everyones(self) -> Doubles:
        """Statistics (R, P) of all roots."""
        with set_topic(self.keeper.holders.engine, "check"):
            return self.keeper.every(self.run.statistics)

    def _first(self, start: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        """Statistics (R, P), memories (n, P) and their mean (P,) to start from."""
        model, keeper, remembered = self.model, self.keeper, self.settings.memory == "first"
        shape = (len(model.counts), model.size)
        start = np.asarray(start, dtype=np.float64)
        if start.shape not in (shape, shape[1:]) or not np.isfinite(start).all():
            raise InputError(
                f"the start must be finite, a statistic of {shape[1]} numbers or one for each of "
                f"{shape[0]} workers, got shape {start.shape}"
            )
        if start.ndim == 2:
            received, statistics = keeper.collect(start)
            first = received - statistics
        else:
            statistics = np.repeat(start[None], keeper.n_roots, axis=0)
            statistics[[keeper.others(root) for root in range(keeper.n_roots)]] = 0.0
            if remembered:
                parameters, _ = model.maximize(start)
                first = keeper.keep(first_statistics(model, parameters) - statistics)
        if start.ndim == 2 or remembered:
            self.n_expectations += int(model.counts.sum())  # made elsewhere
        if not remembered:
            return statistics, np.zeros(shape), np.zeros(model.size)
        first = np.where((model.counts > 0)[:, None], first, 0.0)
        is_local = np.isin(np.arange(shape[0]), keeper.holders.own)
        memories = np.where(is_local[:, None], first, 0.0)
        if start.ndim == 2 and len(statistics) == 1:  # what was received is about its own mean
            return statistics, memories, (1 - self.weights[model.counts > 0].sum()) * statistics[0]
        return statistics, memories, keeper.mean(first, memories)

    def _move(self, iteration: int) -> tuple[int, float]:
        """Move the statistic by what active workers send: how many there were, and the step."""
        run, parameters = self.run, self.parameters
        active = self.keeper.draw(self.model.size, iteration)
        active_parameters = [parameters[0 if len(parameters) == 1 else worker] for worker in active]
        local = self.estimate(iteration, active, active_parameters)
        step = float(self.steps(iteration))
        if not 0 < step <= 1:
            raise InputError(
                f"steps must be above 0 and at most 1, got {step} in iteration {iteration}"
            )
        heard = len(active) > 0
        try:
            moved = self.keeper.move(run, local, step)
        except PartitionedError as error:
            note_partition(run.partitions, iteration, error, "links")
            moved, heard = run.statistics, False
        moving = self.rest.look(run.statistics, moved, step, self.epochs)
        # What any process finds holds for all.
        flags = np.array([not np.isfinite(moved).all(), *moving], dtype=np.uint8)
        bad, *moving = self.keeper.holders.allreduce(flags, "max")
        if bad:
            raise NumericalError(
                f"the statistic is no longer finite at iteration {iteration}: noise outgrew "
                "the steps; try a smaller step size, a finer codec or more participation"
            )
        run.statistics = moved
        run.n_iter = iteration
        if heard:
            run.converged, run.in_noise = self.rest.record_correction(*moving)
        return len(active), step

    def _is_last(self) -> bool:
        run = self.run
        spent = run.n_iter == self.max_iter or self.epochs >= self.most_epochs
        return run.converged or spent

    def _maximize(self) -> None:
        run = self.run
        self.parameters = []
        for root, statistic in enumerate(run.statistics):
            if self.keeper.others(root):
                self.parameters.append(ELSEWHERE)
                continue
            parameters, projected = self.model.maximize(statistic, root)
            run.projections += int(projected)
            if projected and run.projected[-1:] != [run.n_iter]:
                run.projected.append(run.n_iter)
            self.parameters.append(parameters)

    def _tell_trace(self, recorded: bool) -> None:
        """Say where the first root is, and what was recorded of the mean of all."""
        parameters, history = self.parameters[0], self.run.history
        if self.trace is None or parameters is ELSEWHERE:
            return
        self.trace(
            self.run.n_iter, self.model.traced(parameters), epochs=self.epochs,
            statistic=self.run.statistics[0], step=self.step, n_active=self.n_active,
            objective=history.objective[-1] if recorded else None,
            mean_field=history.mean_field[-1] if recorded else None,
        )  # fmt: skip

    def _record(self, weights: Doubles | None = None) -> None:
        """Record the history; none of this is part of the algorithm.

        Of a mean field over some workers ``weights`` (n,) are their shares.
        """
        run, model = self.run, self.model
        statistics = self._everyones()
        mean = statistics.mean(axis=0)
        run.statistic, run.parameters = mean, self.parameters[0]
        if len(statistics) > 1:
            run.parameters, _ = model.maximize(mean, len(statistics))
        full: Doubles | float = np.nan
        if model.is_judged:
            with set_topic(self.keeper.holders.engine, "check"):
                full = self.keeper.add(first_statistics(model, run.parameters))
            if weights is not None:
                full = full / weights.sum()
        history = run.history
        history.iteration.append(run.n_iter)
        history.epochs.append(self.epochs)
        keeper = self.keeper
        up = keeper.total.bytes_up if keeper.central else keeper.total.bytes_sent
        history.bytes_up.append(up)
        history.bytes.append(keeper.total.bytes_sent)
        history.objective.append(float(model.objective(run.parameters)))
        with np.errstate(over="ignore"):
            history.mean_field.append(float(((full - mean) ** 2).sum()))
        if (
            model.is_judged
            and not np.isfinite([history.objective[-1], history.mean_field[-1]]).all()
        ):
            raise NumericalError(
                f"the objective or the mean field is no longer finite at iteration {run.n_iter}: "
                "the statistic is too large; try scaled data, a smaller step size or a finer codec"
            )
        history.disagreement.append(disagreement(statistics))
