"""FedEM and VR-FedEM: EM with statistics that are compressed, sampled, and sent by some workers.

Dieuleveut, Fort, Moulines and Robin 2021. This is the whole algorithm; *whose* statistics these
are is a `StatisticModel`, *how* corrections travel is in `vpem.sums.corrections`, *what* a
worker computes of its rows in `vpem.steps.estimates`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_int, check_number
from vpem.errors import InputError, NumericalError, PartitionedError, Setting, check_choice
from vpem.network.codecs import Codec
from vpem.network.ledger import Ledger
from vpem.steps.estimates import ELSEWHERE, Estimates
from vpem.steps.fedem_states import fedem_state, restore_fedem
from vpem.steps.fedruns import (
    FedHistory,
    FedProgress,
    FedRun,
    StatisticModel,
    StepSize,
    parse_step_size,
)
from vpem.steps.resting import Rest, looks_needed
from vpem.steps.saver import NoSaver, Saver, check_length
from vpem.sums.connect import Network
from vpem.sums.corrections import AtServer, Basis, Between, Quantizer

__all__ = [
    "MEMORIES",
    "WEIGHTINGS",
    "FedHistory",
    "FedProgress",
    "FedRun",
    "StatisticModel",
    "StepSize",
    "first_statistics",
    "parse_step_size",
    "run_fedem",
]

Vector = NDArray[np.float64]
WEIGHTINGS = ("rows", "workers")
"""Means over workers: each row counts alike, or each worker."""

MEMORIES = ("first", "zero", "none")
"""What the memories of the workers start from; "none": there are none."""

MOST_PARTITIONED = 20
"""Iterations in a row in which the network falls apart before the run is given up."""


def first_statistics(model: StatisticModel, parameters: Any) -> Vector:
    """Statistics (n, P) of all workers at parameters that they all know; zero without rows."""
    found = np.zeros((len(model.counts), model.size))
    for worker in np.flatnonzero(model.counts):
        found[worker] = model.expect(int(worker), parameters, None)
    return found


def run_fedem(
    model: StatisticModel,
    start: Vector | None,
    *,
    n_iter: int,
    n_epochs: float | None = None,
    step_size: str | float | StepSize = "constant:0.5",
    codec: Codec | None = None,
    first_codec: Codec | None = None,
    basis: Basis | None = None,
    alpha: float | None = None,
    participation: float = 1.0,
    batch_size: int | None = None,
    variance_reduction: bool = False,
    inner: int | None = None,
    weighting: str = "rows",
    memory: str = "first",
    network: Network | None = None,
    ledger: Ledger | None = None,
    tol: float = 1e-10,
    record_every: int = 1,
    rng: np.random.Generator,
    n_threads: int = 1,
    callback: Callable[[FedProgress], None] | None = None,
    saver: Saver | None = None,
) -> FedRun:
    """Run FedEM, or VR-FedEM with ``variance_reduction``.

    Parameters
    ----------
    model : StatisticModel
        What the statistics are of.
    start : ndarray of shape (P,) or (n, P), or None where there is a saved state
        A statistic that all know; or each worker's own at parameters that all know
        (`first_statistics`): these are sent once, the mean of what is received is the start, and
        one epoch is counted.
    n_iter : int
        Most iterations; with variance reduction, inner ones.
    n_epochs : float, optional
        Stop after the iteration that reaches so many epochs.
    step_size : str, float or callable
        See `parse_step_size`.
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
    alpha : float, optional
        Step of the memories; None: ``1/(1 + omega)`` of the codec.
    participation : float
        Probability p that a worker is active in an iteration, above 0 and at most 1.
    batch_size : int, optional
        Rows a worker draws of its own in an iteration, without replacement; None: all of them, or
        with variance reduction the square root of the mean number of rows.
    variance_reduction : bool
        SPIDER: a worker corrects its last statistic by the difference of two minibatches, and
        begins anew with all its rows in every outer loop.
    inner : int, optional
        Iterations of an outer loop; None: as many as cost one more pass over the rows.
    weighting : {"rows", "workers"}
        What the mean over workers counts alike.
    memory : {"first", "zero", "none"}
        Memories start at the workers' first corrections (as they are received), at zero, or there
        are none.
    network : Network, optional
        From `vpem.sums.connect.connect_workers`. None or a star: a server. On any other graph every
        worker keeps a statistic of its own, and the network's sum takes ``mean (S_i + step H_i)``;
        compression is the network's.
    ledger : Ledger, optional
        Where messages are counted; one of its own otherwise.
    tol : float
        Stop when the squared norm of ``H`` is at most this part of that of the statistic, for
        every root; 0: never. Where anything is drawn or quantized, in so many iterations in a row
        (`vpem.steps.resting.looks_needed`): noise that stays above it ends nothing.
    record_every : int
        Iterations from one record of objective and mean field to the next; a record costs a pass.
    rng : Generator
        Draws the active workers, the minibatches and the codec's keys.
    n_threads : int
        Of the codec.
    callback : callable, optional
        Told of every iteration.
    saver : Saver, optional
        Is offered the state in every iteration; the random stream and the ledger are part of it.

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
    n_iter = check_int("n_iter", n_iter, least=0)
    record_every = check_int("record_every", record_every, least=1)
    tol = check_number("tol", tol, least=0.0)
    most_epochs = inf if n_epochs is None else check_number("n_epochs", n_epochs, least=0.0)
    if most_epochs == 0:
        raise InputError(Setting("n_epochs"), " must be above 0, got 0: the start alone takes one")
    participation = check_number("participation", participation, least=0.0, most=1.0, above=True)
    steps = parse_step_size(step_size)
    weights = _weights(model.counts, weighting)
    quantizer = Quantizer(codec, model.pieces, n_threads, basis)
    check_choice("memory", memory, MEMORIES)
    rate = _memory_step(alpha, memory, quantizer)
    links: AtServer | Between
    if network is None or network.graph.has_server:
        first = Quantizer(first_codec, model.pieces, n_threads, basis)
        links = AtServer(weights, quantizer, rate, participation, network, ledger, first)
    else:
        links = Between(weights, quantizer, rate, participation, network, ledger)
    estimates = Estimates(model, batch_size, variance_reduction, inner, rng)
    noisy = quantizer.omega > 0 or participation < 1 or estimates.batch_size is not None
    if isinstance(links, Between):
        noisy |= links.is_noisy
    rest = Rest(tol, looks_needed(noisy, participation, estimates.inner), basis)
    saver = saver or NoSaver()
    saved = saver.saved
    parts = (model, links, estimates, rest, rng)
    if saved is None:
        assert start is not None
        statistics, memories = _begin(model, start, memory, links, estimates, rng)
        run = FedRun(
            weights @ np.broadcast_to(links.every(statistics), memories.shape),
            statistics,
            None,
            FedHistory(),
            memories,
            links.crew.add(weights @ memories),
            alpha=rate,
            omega=quantizer.omega,
        )
        parameters = _maximize(model, statistics, run, links)
        _record(model, run, parameters, weights, links, estimates)
    else:
        run = restore_fedem(saver, *parts)
        run.alpha, run.omega = rate, quantizer.omega
    can_work = np.flatnonzero(model.counts)
    if saved is not None:
        check_length(run.n_iter, n_iter)
    for iteration in range(run.n_iter + (saved is None), n_iter + 1):
        if saved is not None:
            # The statistic of this iteration was saved: what is left to do follows.
            n_active, step, saved = saved["active"], saved["step"], None
        else:
            active = can_work
            if participation < 1:
                active = can_work[rng.random(len(can_work)) < participation]
            n_active = len(active)
            links.announce(active, model.size)
            estimates.begin(iteration)
            own = [parameters[0 if len(parameters) == 1 else worker] for worker in active]
            local = estimates.of(active, own)
            step = float(steps(iteration))
            if not 0 < step <= 1:
                raise InputError(
                    f"steps must be above 0 and at most 1, got {step} in iteration {iteration}"
                )
            heard = n_active > 0
            try:
                moved = links.correct(run, local, active, step, rng)
            except PartitionedError as error:
                _note_partition(run, iteration, error)
                moved, heard = run.statistics, False
            small = rest.is_small(run.statistics, moved, step)
            # What any process finds holds for all.
            bad, moving = links.crew.largest(
                np.array([not np.isfinite(moved).all(), not small], dtype=np.uint8)
            )
            if bad:
                raise NumericalError(
                    f"the statistic is no longer finite at iteration {iteration}: noise outgrew "
                    "the steps; try a smaller step size, a finer codec or more participation"
                )
            run.statistics = moved
            run.n_iter = iteration
            run.converged = heard and rest.note(not moving)
            saver.offer(
                partial(fedem_state, run, n_active, step, *parts),
                last=run.converged or iteration == n_iter or estimates.epochs >= most_epochs,
            )
        parameters = _maximize(model, run.statistics, run, links)
        if tol > 0:
            links.agree()
        last = run.converged or iteration == n_iter or estimates.epochs >= most_epochs
        if last:
            links.announce(None, model.size)
        if last or iteration % record_every == 0:
            _record(model, run, parameters, weights, links, estimates)
        if callback is not None:
            shown = run.history.iteration[-1] == iteration
            callback(
                FedProgress(
                    iteration,
                    estimates.epochs,
                    step,
                    n_active,
                    run.history.objective[-1] if shown else None,
                    run.history.mean_field[-1] if shown else None,
                    run.memories,
                    run.memory,
                )
            )
        if last:
            break
    run.epochs = estimates.epochs
    run.projections = links.count(run.projections)
    return run


def _weights(counts: NDArray[np.intp], weighting: str) -> Vector:
    """What each worker weighs in a mean (n,)."""
    check_choice("weighting", weighting, WEIGHTINGS)
    if weighting == "rows":
        share: Vector = counts / counts.sum()
        return share
    if not counts.all():
        raise InputError(
            f"worker {int(np.argmin(counts))} holds no rows, so workers cannot count alike; take "
            "weighting rows"
        )
    return np.full(len(counts), 1.0 / len(counts))


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
    alpha = check_number("alpha", alpha, least=0.0, most=1.0)
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


def _begin(
    model: StatisticModel,
    start: Vector,
    memory: str,
    links: AtServer | Between,
    estimates: Estimates,
    rng: np.random.Generator,
) -> tuple[Vector, Vector]:
    """Statistics (R, P) and memories (n, P) to start from."""
    shape = (len(model.counts), model.size)
    start = np.asarray(start, dtype=np.float64)
    if start.shape not in (shape, shape[1:]) or not np.isfinite(start).all():
        raise InputError(
            f"the start must be finite, a statistic of {shape[1]} numbers or one for each of "
            f"{shape[0]} workers, got shape {start.shape}"
        )
    memories = np.zeros(shape)
    if start.ndim == 2:
        received, statistics = links.collect(start, rng)
        first = received - statistics
        estimates.count_all()
    else:
        statistics = np.repeat(start[None], links.n_roots, axis=0)
        if memory != "first":
            return statistics, memories
        parameters, _ = model.maximize(start)
        first = links.keep(first_statistics(model, parameters) - statistics, rng)
        estimates.count_all()
    if memory == "first":
        here = np.isin(np.arange(len(memories)), list(links.crew.own(len(memories))))
        memories = np.where((here & (model.counts > 0))[:, None], first, 0.0)
    return statistics, memories


def _maximize(
    model: StatisticModel, statistics: Vector, run: FedRun, links: AtServer | Between
) -> list[Any]:
    """Parameters of each root."""
    found = []
    for root, statistic in enumerate(statistics):
        if links.others(root):
            found.append(ELSEWHERE)
            continue
        parameters, projected = model.maximize(statistic)
        run.projections += projected
        if projected and run.projected[-1:] != [run.n_iter]:
            run.projected.append(run.n_iter)
        found.append(parameters)
    return found


def _record(
    model: StatisticModel,
    run: FedRun,
    parameters: list[Any],
    weights: Vector,
    links: AtServer | Between,
    estimates: Estimates,
) -> None:
    """Write down how things stand; none of this is part of the algorithm."""
    statistics = links.every(run.statistics)
    mean = statistics.mean(axis=0)
    far = 0.0
    run.statistic, run.parameters = mean, parameters[0]
    if len(statistics) > 1:
        run.parameters, _ = model.maximize(mean)
        apart = np.sqrt(((statistics - mean) ** 2).sum(axis=1).max())
        far = float(apart / max(np.sqrt((mean**2).sum()), np.finfo(float).tiny))
    full = links.crew.add(weights @ first_statistics(model, run.parameters))
    history = run.history
    history.iteration.append(run.n_iter)
    history.epochs.append(estimates.epochs)
    up, every = links.bytes_sent()
    history.bytes_up.append(up)
    history.bytes.append(every)
    history.objective.append(float(model.objective(run.parameters)))
    with np.errstate(over="ignore"):
        history.mean_field.append(float(((full - mean) ** 2).sum()))
    if not np.isfinite([history.objective[-1], history.mean_field[-1]]).all():
        raise NumericalError(
            f"the objective or the mean field is no longer finite at iteration {run.n_iter}: the "
            "statistic is too large; try scaled data, a smaller step size or a finer codec"
        )
    history.disagreement.append(far)


def _note_partition(run: FedRun, iteration: int, error: PartitionedError) -> None:
    """Keep it in the record, or give the run up where it goes on like this."""
    run.partitions.append((iteration, str(error)))
    recent = [number for number, _ in run.partitions[-MOST_PARTITIONED:]]
    if recent == list(range(iteration - MOST_PARTITIONED + 1, iteration + 1)):
        raise NumericalError(
            f"the network fell apart in {MOST_PARTITIONED} iterations in a row, last at iteration "
            f"{iteration}: {error}; try more rounds, or links that fail less often"
        ) from error
