"""Named algorithms over rows: distributed EM, at a server or among peers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Floats, check_int
from vpem.engines.engine import about
from vpem.errors import InputError
from vpem.files.fingerprint import checksum, describe_run
from vpem.files.matrix import FileMatrix
from vpem.fits.accelerated import acceleration_of
from vpem.fits.agreed_rows import agree_on_rows, parts_of, units_by_reach
from vpem.fits.factored import refuse_over_rows
from vpem.fits.local_rows import (
    DrawnRows,
    LocalRows,
    SharedRows,
    by_worker,
    charge_weights,
    check_rows_held,
)
from vpem.fits.outcomes import copies_of, warn_of_few_values, warn_of_outcome
from vpem.fits.prepare import (
    Prepared,
    check_distinct,
    make_terms,
    prepare,
    restart_numbers,
    started,
    units_of,
)
from vpem.fits.priors import believing, mode_prior
from vpem.fits.private_rows import fit_private_rows
from vpem.fits.results import RowFit
from vpem.fits.row_starts import RowRestart
from vpem.fits.settings import PrivacySettings
from vpem.network.ledger import Ledger
from vpem.network.partition import Blocks, Workers
from vpem.network.schema import Report, State
from vpem.settings import FitSettings
from vpem.steps.reinitialise import DRAWN, Recovery
from vpem.steps.restarts import Restarts
from vpem.steps.runs import MixtureRuns, Progress, Run
from vpem.steps.saver import Saver
from vpem.sums.connect import Network
from vpem.sums.stale import HeardByNeighbours
from vpem.sums.sum import Sum
from vpem.table import refusal
from vpem.terms.features import lightest_of
from vpem.terms.mixture import Mixture
from vpem.terms.row_statistics import RowTerms
from vpem.terms.scaling import sharing


def fit_em(
    X: Floats | FileMatrix,
    workers: Workers,
    network: Network,
    settings: FitSettings | None = None,
    *,
    first_restart: int = 0,
    sample_weight: Floats | None = None,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
    privacy: PrivacySettings | None = None,
    **changes: Any,
) -> RowFit:
    """Fit a Gaussian mixture to rows that workers hold: distributed EM.

    Every worker runs the E-step on its rows and sends ``(n_k, t_k, U_k)``. Summed at a server this
    is centralized EM, iteration by iteration; summed by consensus every worker ends with a model
    of its own, and they differ by consensus error. Whoever is silent counts with the statistics
    that were heard of it last (incremental EM, Neal and Hinton 1998).

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data (on MPI ranks the rank's own, worker by worker, see
        `vpem.sums.connect.spread_workers`, as are sample weights); a row is seen by the worker that
        holds it, and by nobody else but where it is drawn as a start.
    workers : Workers
        Who holds which rows.
    network : Network
        From `vpem.connect_workers`.
    settings, first_restart, sample_weight, feature_names, callback, saver, **changes
        As for `vpem.fit_vpem`.
    privacy : PrivacySettings, optional
        With an ``epsilon``: noise in every sum (`vpem.fits.private_rows.fit_private_rows`).

    Returns
    -------
    RowFit

    Raises
    ------
    InputError
        If the data or an option cannot be used.
    NumericalError
        If a computation has no finite answer.

    Warns
    -----
    NotConvergedWarning
        If the iterations ran out.
    VpemWarning
        If features are constant, components collapsed and were placed anew, or some are degenerate.
    """
    began = time.perf_counter()
    how = FitSettings.of(settings, **changes)
    _check_network(network, workers, how)
    if privacy is not None and privacy.is_asked:
        return fit_private_rows(
            X, workers, network, how, privacy, sample_weight=sample_weight,
            feature_names=feature_names, callback=callback, saver=saver,
        )  # fmt: skip
    began_at, how = started(how)
    X, sample_weight = by_worker(X, sample_weight, workers, network.total.holders)
    here = LocalRows.of(network.total.holders, workers, X)
    given = prepare(
        X, n_columns(X), how, sample_weight=sample_weight, feature_names=feature_names,
        dtype=how.dtype, missing=how.missing, here=here,
    )  # fmt: skip
    first_restart = check_int("first_restart", first_restart, least=0)
    check_rows_held(workers, given.n_samples)
    how = how.changed(n_threads=thread_count(how.n_threads), dtype=given.precision.name)
    batches = _batches(how)
    steps = batches or {"accelerate": acceleration_of(how, network, over_rows=True)}
    if saver is not None:
        saver.begin(_facts(given, workers, network, how, first_restart))
    held, here = _used(workers, given, here)
    ledger, total = Ledger(network.graph), network.total
    if network.faults is not None and network.faults.agent_dropout:
        total = HeardByNeighbours(total)
    with one_blas_thread(), np.errstate(over="ignore"):
        terms, weights = _terms(given, held, here, how, network.total.on(ledger))
        _charge_setup(terms, given, network, ledger, how)
        kept = MixtureRuns(terms.whole, total, how.n_components, how.floor_fits, over_rows=True)
        stop = {"tol": how.tol, "max_iter": how.max_iter, "callback": callback, **steps}
        numbers = restart_numbers(how, first_restart)
        restarts = Restarts(saver, ledger, numbers, how.seed, how.max_iter, kept, callback)
        place = None if held.in_order else np.argsort(held.order)
        start = partial(RowRestart, terms, weights, kept, place)
        best = restarts.best(total, lambda one: start(one).run(began_at, given.rows, stop))
    run = best.run
    # Where all share one sum, on a graph that mixes in one round too, all have the same.
    roots = slice(1 if network.whole.total.n_roots == 1 else None)
    fit = RowFit(
        mixture=run.mixture,
        network=network.whole,
        history=np.array(run.history).reshape(-1, len(run.log_likelihood))[:, roots],
        root_log_likelihood=run.log_likelihood[roots],
        prior=mode_prior(how, terms.whole.blocks),
        log_prior=float(run.log_prior[roots].mean()),
        total_weight=terms.whole.total_weight,
        n_samples=given.n_samples,
        recoveries=[_for_user(one, given, held) for one in run.recoveries],
        degenerate=run.degenerate,
        copies=copies_of(run.mixtures, total.on(ledger)),
        init_rows=given.number(best.rows),
        partitions=run.partitions,
        mixtures=_gathered(run, kept, network.total)[roots],
        workers=workers,
        **batches,
        n_passes=run.n_passes if batches else None,
        free_energy=run.free_energy,
        accelerate=how.accelerate,
        lost=run.lost,
        **restarts.outcome(began),
    )
    warn_of_outcome(fit, how)
    warn_of_few_values(fit, given.X, feature_names, how, over_rows=True)
    return fit


def _facts(
    given: Prepared, workers: Workers, network: Network, how: FitSettings, first_restart: int
) -> State:
    """Return what tells this run from others."""
    facts = how.values()
    facts |= {"first_restart": first_restart} if first_restart else {}
    facts["who holds which rows"] = checksum(workers.order, workers.counts)
    return describe_run("em-rows", given.X, given.row_weights, network, **facts)


def _used(
    workers: Workers, given: Prepared, here: LocalRows | None
) -> tuple[Workers, LocalRows | None]:
    """Return who holds which of the rows that are used; where sums are masked, which of all."""
    if here is not None and here.masked:
        return workers, here.keeping(given.kept, given.n_used)
    held = workers if given.kept is None else workers.of_rows(given.kept)
    return held, None if here is None else LocalRows(here.holders, held.counts)


def _batches(how: FitSettings) -> Report:
    """Return how rows are worked on in batches, if they are."""
    sizes = {"batch_size": how.batch_size, "step_size": how.step_size}
    return {} if how.batch_size is None else sizes


def _terms(
    given: Prepared, held: Workers, here: LocalRows | None, how: FitSettings, total: Sum
) -> tuple[RowTerms, NDArray[np.float64] | None]:
    """Return the terms of the workers' rows, worker by worker, and the weights of all rows."""
    data, weights = given.X, given.row_weights
    check_distinct(data, how, here is None and held.counts.max() == len(data))
    blocks = Blocks((np.arange(data.shape[1]),), (0,), (tuple(range(held.n_workers)),))
    if here is not None and here.masked:
        return _masked_terms(given, blocks, here, held.counts, how, total), None
    if not held.in_order:
        weights = None if weights is None else weights[held.order]
        if here is None:
            stored = isinstance(data, FileMatrix)
            data = data.of_rows(held.rows) if stored else data[held.order]
    own = weights if here is None or weights is None else weights[here.rows]
    scaling = units_of(data, own, blocks, how, given.misses, here)
    whole = believing(make_terms(data, own, blocks, scaling, given, how, here), how)
    if here is None:
        return RowTerms(whole, held.runs, held.counts, whole.rows), weights
    own_rows = whole.rows
    weighs = () if weights is None else (float(weights.sum()), lightest_of(weights))
    whole = whole.among(SharedRows(own_rows, here), here.n_samples, *weighs)
    return RowTerms(whole, here.own_runs, held.counts, own_rows), weights


def _masked_terms(
    given: Prepared,
    blocks: Blocks,
    here: LocalRows,
    counts: NDArray[np.intp],
    how: FitSettings,
    total: Sum,
) -> RowTerms:
    """Return the terms of rows of which nothing is told but masked sums.

    ``counts`` are rows that each worker holds: how many of them it uses is not told either.
    """
    weights = given.row_weights
    reach = agree_on_rows(
        parts_of(given.X, here, weights), total, here.n_samples, blocks.n_features,
        misses=given.misses, weighted=weights is not None,
    )  # fmt: skip
    scaling = units_by_reach(reach, sharing(blocks, how.covariance_type, how.scale))
    reach = reach.scaled(scaling)
    whole = make_terms(given.X, weights, blocks, scaling, given, how, here, reach)
    whole = believing(whole, how)
    rows = DrawnRows(whole.rows, here, reach.points)
    whole = whole.among(rows, here.n_samples, reach.mass, reach.lightest)
    return RowTerms(whole, here.own_runs, counts, rows.own, reach)


def _charge_setup(
    terms: RowTerms, given: Prepared, network: Network, ledger: Ledger, how: FitSettings
) -> None:
    """Count what workers send before they start."""
    whole = terms.whole
    network.charge_setup(ledger, given.n_samples, whole.itemsize)
    total, d = network.total.on(ledger), whole.blocks.n_features
    if terms.reach is not None:
        return
    charge_scaling(total, d)
    if given.row_weights is not None:
        charge_weights(total, terms.counts)
    if given.misses:
        # Every feature's weight, mean and variance, by which missing values are filled first.
        total.begin("setup", 0, 0, 8, 3 * d)  # which were counted as they travelled
        total.agree("setup", 2 * d * 8)


def _for_user(found: Recovery, given: Prepared, held: Workers) -> Recovery:
    """Return a recovery with the user's number of the row."""
    row = found.row
    if row is not None and row != DRAWN:
        row = row if held.in_order else int(held.order[row])
        row = row if given.kept is None else int(given.kept[row])
    return replace(found, hub=0, row=row)


def _gathered(run: Run, kept: MixtureRuns, total: Sum) -> list[Mixture]:
    """Return the mixtures of all roots at the first process; at others those that it has."""
    if total.roots.n_agents == 1 or not total.holders.apart:
        return run.mixtures
    own = [one.arrays() for one in run.mixtures[: len(total.holders.own)]]
    with about(total.holders.engine, "result"):
        parts = total.holders.engine.gather(own) or [own]
    return kept.mixtures({"mixtures": [state for part in parts for state in part]})


def _check_network(network: Network, workers: Workers, how: FitSettings) -> None:
    """Raise InputError unless the sum fits: exact, or by rounds, of one root a worker."""
    refuse_over_rows(how)
    if not isinstance(network, Network) or not isinstance(workers, Workers):
        raise InputError(
            "the network must come from vpem.connect_workers and the workers be vpem.Workers, got "
            f"{type(network).__name__} and {type(workers).__name__}"
        )
    if network.graph.n_agents != workers.n_workers:
        raise InputError(
            f"the graph has {network.graph.n_agents} agents, but there are {workers.n_workers} "
            "workers; give a graph of as many"
        )
    if network.compress is not None:
        raise refusal("em-rows", "compressed")


def n_columns(X: Any) -> int:
    """Columns of what should be a matrix; 0 of anything else, which later checks refuse."""
    shape = np.shape(X) if not isinstance(X, FileMatrix) else X.shape
    return int(shape[1]) if len(shape) == 2 else 0


def charge_scaling(total: Any, n_features: int) -> None:
    """Count what units cost: sums of weights, values and squares, then the agreed units."""
    charge_moments(total, n_features)
    total.agree("setup", 2 * n_features * 8)


def charge_moments(total: Any, n_features: int) -> None:
    """Count what standard deviations cost: sums of weights, values and squares."""
    total.begin("setup", 0, 0, 8, 2 * n_features + 1)  # which were counted as they travelled
