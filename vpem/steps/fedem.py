"""FedEM and VR-FedEM: EM with statistics that are compressed, sampled, and sent by some workers.

Dieuleveut, Fort, Moulines and Robin 2021. This is the whole algorithm; *whose* statistics these
are is a `StatisticModel`, *how* they travel and who keeps their mean is in `vpem.steps.fedem_sums`,
*what* a worker computes of its rows in `vpem.steps.estimates`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.engines.engine import about
from vpem.errors import InputError, NumericalError, PartitionedError, Setting
from vpem.network.codecs import Codec
from vpem.network.ledger import Ledger
from vpem.network.schema import State
from vpem.settings import FedSettings
from vpem.steps.estimates import ELSEWHERE, Estimates
from vpem.steps.fedem_states import fedem_state, restore_fedem
from vpem.steps.fedem_sums import Central, Local, statistic_keeper
from vpem.steps.fedruns import (
    FedHistory,
    FedProgress,
    FedRun,
    StatisticModel,
    parse_step_size,
    weights_of,
)
from vpem.steps.resting import Drift, Rest, looks_needed, stays_noisy
from vpem.steps.runs import note_partition
from vpem.steps.safe_steps import SafeSteps
from vpem.steps.saver import NoSaver, Saver, check_length
from vpem.sums.connect import Network
from vpem.sums.quantizer import Basis, Quantizer

Vector = NDArray[np.float64]


def first_statistics(model: StatisticModel, parameters: Any) -> Vector:
    """Statistics (n, P) of all workers at parameters that they all know; zero without rows."""
    found = np.zeros((len(model.counts), model.size))
    for worker in np.flatnonzero(model.counts):
        found[worker] = model.expect(int(worker), parameters, None)
    return found


def run_fedem(
    model: StatisticModel,
    start: Vector | None,
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
    and begins anew with all its rows in every outer loop.

    Parameters
    ----------
    model : StatisticModel
        What the statistics are of.
    start : ndarray of shape (P,) or (n, P), or None where there is a saved state
        A statistic that all know; or each worker's own at parameters that all know
        (`first_statistics`): these are sent once, the mean of what is received is the start, and
        one epoch is counted.
    settings : FedSettings, optional
        None: the defaults. Where anything is drawn or quantized, corrections must be below ``tol``
        in so many iterations in a row (`vpem.steps.resting.looks_needed`). Noise that stays above
        it ends a run of constant steps once it alone moves the statistic
        (`vpem.steps.resting.Drift`). Steps may be a function too (`parse_step_size`).
    codec : Codec, optional
        How workers send corrections to the server; None: as float64. A codec that is biased by
        more than rounding needs memories, and takes ``alpha = 1`` and ``H`` the mean of the
        memories as they become, without ``1/p``: error feedback, EF21 of Richtarik et al. 2021.
    first_codec : Codec, optional
        How workers send their first statistics or corrections to the server; None: as float64. Its
        noise is on all of the statistic, so that it should be finer than that of corrections.
    basis : Basis, optional
        Units in which codecs work, on the vector as one piece, and norms are taken for ``tol``;
        None: on the model's pieces as they are.
    network : Network, optional
        From `vpem.sums.connect.connect_workers`. None or a star: a server. On any other graph every
        worker keeps a statistic of its own, and the network's sum takes ``mean (S_i + step H_i)``;
        compression is the network's.
    ledger : Ledger, optional
        Where messages are counted; one of its own otherwise.
    rng : Generator
        Draws the active workers, the minibatches and the codec's keys.
    callback : callable, optional
        Told of every iteration.
    saver : Saver, optional
        Is offered the state in every iteration; the random stream and the ledger are part of it.
    **changes
        Settings that differ: see `vpem.settings.FedSettings`.

    Returns
    -------
    FedRun

    Raises
    ------
    InputError
        If an option is out of range or makes no sense with another.
    NumericalError
        If a statistic is no longer finite, or the network falls apart for long.
    """
    how = FedSettings.of(settings, **changes)
    weights = weights_of(model, how.weighting)
    n_threads = thread_count(how.n_threads)
    first = Quantizer(first_codec, model.pieces, n_threads, basis)
    later = Quantizer(codec, model.pieces, n_threads, basis)
    alpha = _memory_step(how.alpha, how.memory, later)
    among = np.flatnonzero(model.counts)
    keeper = statistic_keeper(network, ledger, weights, first, later, how.participation, among, rng)
    keeper.take_bounds(getattr(model, "bounds", None))
    held = model.counts[model.counts > 0]
    stays_on = stays_noisy(how, int(held.max()), later.omega)
    least = getattr(model, "least_batch", 1)
    steps = SafeSteps.of(how, alpha, later, held, least, stays_on)
    chosen = {"step_size": steps.taken, "batch_size": steps.batch_size, "inner": steps.inner}
    how = how.changed(max_iter=steps.max_iter, **chosen)
    reduced = how.variance_reduction and how.batch_size is not None
    estimates = Estimates(model, how.batch_size, reduced, how.inner, rng)
    noisy = later.omega > 0 or how.participation < 1 or estimates.batch_size is not None
    looks = looks_needed(noisy or keeper.is_noisy, how.participation, estimates.inner)
    drift = Drift((keeper.n_roots, model.size), basis) if how.tol > 0 and stays_on else None
    rest = Rest(how.tol, looks, basis, drift)
    loop = _Loop(model, how, weights, keeper, estimates, rest, rng)
    saver = saver or NoSaver()
    if saver.saved is None:
        assert start is not None
        run = loop.start(start, alpha, later.omega).iterate(saver, callback)
    else:
        run = loop.resume(saver, alpha, later.omega).iterate(saver, callback)
    run.steps = steps
    return run


def _memory_step(alpha: float | None, memory: str, quantizer: Quantizer) -> float:
    """Step of the memories."""
    name = quantizer.name
    if memory == "none":
        if alpha is not None:
            raise InputError(
                Setting("alpha"),
                " is the step of the memories, of which ",
                Setting("memory", "none"),
                " leaves none",
            )
        if quantizer.biased:
            raise InputError(
                f"the codec {name} is biased, which only memories make up for; take ",
                Setting("memory", "first"),
                ", or an unbiased codec such as qsgd:8bits or randk:0.1",
            )
        return 0.0
    if alpha is None:
        return 1.0 if quantizer.biased else 1 / (1 + quantizer.omega)
    if alpha == 0:
        raise InputError(
            Setting("alpha"),
            " must be above 0: memories that never move are ",
            Setting("memory", "none"),
        )
    if quantizer.biased and alpha != 1:
        raise InputError(
            f"the codec {name} is biased, and error feedback needs memories that take all of what "
            "is sent: ",
            Setting("alpha"),
            f" must be 1, got {alpha:g}",
        )
    return alpha


class _Loop:
    """The iterations of one run, and all that they go by."""

    run: FedRun
    parameters: list[Any]

    def __init__(
        self,
        model: StatisticModel,
        how: FedSettings,
        weights: Vector,
        keeper: Central | Local,
        estimates: Estimates,
        rest: Rest,
        rng: np.random.Generator,
    ) -> None:
        self.model = model
        self.how, self.max_iter = how, how.max_iter or 0  # chosen, if nobody gave any
        self.steps = parse_step_size(how.step_size)
        self.most_epochs = inf if how.n_epochs is None else how.n_epochs
        self.weights = weights
        self.keeper = keeper
        self.estimates = estimates
        self.rest = rest
        self.parts = (model, keeper, estimates, rest, rng)
        self.saved: State | None = None

    def start(self, start: Vector, alpha: float, omega: float) -> _Loop:
        """Send first statistics and memories."""
        statistics, memories, memory = self._first(start)
        everywhere = np.broadcast_to(self.keeper.every(statistics), memories.shape)
        self.run = FedRun(
            self.weights @ everywhere,
            statistics,
            None,
            FedHistory(),
            memories,
            memory,
            alpha=alpha,
            omega=omega,
        )
        self.keeper.remember(self.run)
        self._maximize()
        self._record()
        return self

    def resume(self, saver: Saver, alpha: float, omega: float) -> _Loop:
        """Put a run together again, in the middle of an iteration."""
        self.run = restore_fedem(saver, *self.parts)
        self.run.alpha, self.run.omega = alpha, omega
        check_length(self.run.n_iter, self.max_iter)
        self.keeper.remember(self.run)
        self.saved = saver.saved
        return self

    def iterate(self, saver: Saver, callback: Callable[[FedProgress], None] | None) -> FedRun:
        """Iterate to the end."""
        run, saved = self.run, self.saved
        for iteration in range(run.n_iter + (saved is None), self.max_iter + 1):
            if saved is not None:
                # The statistic of this iteration was saved: what is left to do follows.
                n_active, step, saved = saved["active"], saved["step"], None
            else:
                n_active, step = self._move(iteration)
                state = partial(fedem_state, run, n_active, step, *self.parts)
                saver.offer(state, last=self._is_last())
            self._maximize()
            if self.how.tol > 0:
                self.keeper.agree()
            last = self._is_last()
            if last:
                self.keeper.finish(self.model.size)
            if last or iteration % self.how.record_every == 0:
                self._record()
            if callback is not None:
                callback(self._progress(n_active, step))
            if last:
                break
        run.epochs = self.estimates.epochs
        run.projections = self.keeper.count(run.projections)
        return run

    def _first(self, start: Vector) -> tuple[Vector, Vector, Vector]:
        """Statistics (R, P), memories (n, P) and their mean (P,) to start from."""
        model, keeper, remembered = self.model, self.keeper, self.how.memory == "first"
        shape = (len(model.counts), model.size)
        start = np.asarray(start, dtype=np.float64)
        if start.shape not in (shape, shape[1:]) or not np.isfinite(start).all():
            raise InputError(
                f"the start must be finite, a statistic of {shape[1]} numbers or one for each of "
                f"{shape[0]} workers, got shape {start.shape}"
            )
        memories = np.zeros(shape)
        if start.ndim == 2:
            received, statistics = keeper.collect(start)
            first = received - statistics
            self.estimates.count_all()
        else:
            statistics = np.repeat(start[None], keeper.n_roots, axis=0)
            statistics[[keeper.others(root) for root in range(keeper.n_roots)]] = 0.0
            if not remembered:
                return statistics, memories, np.zeros(model.size)
            parameters, _ = model.maximize(start)
            first = keeper.keep(first_statistics(model, parameters) - statistics)
            self.estimates.count_all()
        if not remembered:
            return statistics, memories, np.zeros(model.size)
        first = np.where((model.counts > 0)[:, None], first, 0.0)
        here = np.isin(np.arange(len(memories)), keeper.holders.own)
        memories = np.where(here[:, None], first, 0.0)
        if start.ndim == 2 and len(statistics) == 1:  # what was received is about its own mean
            return statistics, memories, (1 - self.weights[model.counts > 0].sum()) * statistics[0]
        return statistics, memories, keeper.mean(first, memories)

    def _move(self, iteration: int) -> tuple[int, float]:
        """Move the statistic by what active workers send: how many there were, and the step."""
        run, parameters = self.run, self.parameters
        active = self.keeper.draw(self.model.size)
        self.estimates.begin(iteration)
        own = [parameters[0 if len(parameters) == 1 else worker] for worker in active]
        local = self.estimates.of(active, own)
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
        moving = self.rest.look(run.statistics, moved, step, self.estimates.epochs)
        # What any process finds holds for all.
        found = np.array([not np.isfinite(moved).all(), *moving], dtype=np.uint8)
        bad, *moving = self.keeper.holders.allreduce(found, "max")
        if bad:
            raise NumericalError(
                f"the statistic is no longer finite at iteration {iteration}: noise outgrew "
                "the steps; try a smaller step size, a finer codec or more participation"
            )
        run.statistics = moved
        run.n_iter = iteration
        if heard:
            run.converged, run.in_noise = self.rest.note(*moving)
        return len(active), step

    def _is_last(self) -> bool:
        """Whether this is the last iteration."""
        run = self.run
        spent = run.n_iter == self.max_iter or self.estimates.epochs >= self.most_epochs
        return run.converged or spent

    def _maximize(self) -> None:
        """Find the parameters of each root."""
        run = self.run
        self.parameters = []
        for root, statistic in enumerate(run.statistics):
            if self.keeper.others(root):
                self.parameters.append(ELSEWHERE)
                continue
            parameters, projected = self.model.maximize(statistic, root)
            run.projections += projected
            if projected and run.projected[-1:] != [run.n_iter]:
                run.projected.append(run.n_iter)
            self.parameters.append(parameters)

    def _record(self) -> None:
        """Write down how things stand; none of this is part of the algorithm."""
        run, model = self.run, self.model
        statistics = self.keeper.every(run.statistics)
        mean = statistics.mean(axis=0)
        far = 0.0
        run.statistic, run.parameters = mean, self.parameters[0]
        if len(statistics) > 1:
            run.parameters, _ = model.maximize(mean, len(statistics))
            apart = np.sqrt(((statistics - mean) ** 2).sum(axis=1).max())
            far = float(apart / max(np.sqrt((mean**2).sum()), np.finfo(float).tiny))
        with about(self.keeper.holders.engine, "check"):
            full = self.keeper.add(first_statistics(model, run.parameters))
        history = run.history
        history.iteration.append(run.n_iter)
        history.epochs.append(self.estimates.epochs)
        up, every = self.keeper.bytes_sent()
        history.bytes_up.append(up)
        history.bytes.append(every)
        history.objective.append(float(model.objective(run.parameters)))
        with np.errstate(over="ignore"):
            history.mean_field.append(float(((full - mean) ** 2).sum()))
        if not np.isfinite([history.objective[-1], history.mean_field[-1]]).all():
            raise NumericalError(
                f"the objective or the mean field is no longer finite at iteration {run.n_iter}: "
                "the statistic is too large; try scaled data, a smaller step size or a finer codec"
            )
        history.disagreement.append(far)

    def _progress(self, n_active: int, step: float) -> FedProgress:
        """Return what a callback is told of an iteration."""
        run, history = self.run, self.run.history
        shown = history.iteration[-1] == run.n_iter
        return FedProgress(
            run.n_iter,
            self.estimates.epochs,
            step,
            n_active,
            history.objective[-1] if shown else None,
            history.mean_field[-1] if shown else None,
            run.memories,
            run.memory,
        )
