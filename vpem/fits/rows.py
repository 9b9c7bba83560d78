"""Distributed EM over rows that workers hold, at a server or among peers.

And a mixture that follows a stream of batches: what `vpem.VPEM.partial_fit` does to a fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Floats, as_matrix, check_int, check_kind
from vpem.engines.engine import set_topic
from vpem.errors import InputError, Setting, warn
from vpem.files.checkpoints import checksum, describe_run, start_facts
from vpem.files.matrix import FileMatrix, is_stored
from vpem.fits.local_rows import (
    LocalRows,
    RowStarts,
    SharedRows,
    UsedRows,
    agree_on_rows,
    charge_weights,
    units_by_reach,
)
from vpem.fits.prepare import (
    Prepared,
    acceleration_of,
    believing,
    check_distinct,
    check_start,
    make_terms,
    mode_prior,
    network_of_all,
    prepare,
    restart_numbers,
    short_runs,
    started,
    units_of,
)
from vpem.fits.privacy import fit_private_rows
from vpem.fits.results import (
    Fit,
    RowFit,
    copies_of,
    found_by,
    times,
    warn_of_few_values,
    warn_of_outcome,
)
from vpem.fits.settings import PrivacySettings
from vpem.network.ledger import Ledger
from vpem.network.partition import Blocks, Workers
from vpem.network.schema import Report, State
from vpem.records import refused
from vpem.rules import WITH_OUTLIERS, refuse
from vpem.settings import SMALL_EM, FitSettings
from vpem.steps.batches import fit_row_batches, step
from vpem.steps.em import OverRows, add_messages, iterate, sample_roots
from vpem.steps.lloyd import Lloyd
from vpem.steps.recovery import Saver
from vpem.steps.restarts import Kept, Restart, Restarts
from vpem.steps.row_sampling import ROW_BYTES, RowStream
from vpem.steps.runs import DRAWN, Progress, Recovery, Run, kept_of_mixtures, refuse_trace
from vpem.steps.starts import (
    SMALL_STARTS,
    GivenStart,
    Tell,
    best_of_short_runs,
    held_of,
    teller,
)
from vpem.sums.connect import Network
from vpem.sums.partial import HeardByNeighbours
from vpem.sums.sum import Sum
from vpem.terms.degenerate import degenerate
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture, is_diagonal
from vpem.terms.row_statistics import WorkerTerms
from vpem.terms.statistics import Message
from vpem.terms.units import floors_of, sharing

ORDER_OF_BATCHES = 1
"""Sets the stream that orders batches apart from the one that draws rows."""

Started = tuple[list[Mixture], NDArray[np.float64], NDArray[np.intp] | None]
"""Parameters of every root, points that all know, and the rows they came from."""


class RowRestart:
    """Where one restart of EM over rows starts, and its run."""

    def __init__(
        self,
        network: Network,
        terms: WorkerTerms,
        used: UsedRows,
        runs: Kept[Run],
        restart: Restart,
    ) -> None:
        self.network, self.terms, self.used = network, terms, used
        self.restart = restart
        self.total = restart.total
        self.runs = runs
        self.stream = used.stream(restart.rng, terms.reach)
        self.roots: list[FeatureTerms] = []
        self.tell: Tell | None = None

    def run(
        self,
        began_at: GivenStart,
        start_rows: NDArray[np.intp] | None,
        settings: FitSettings,
        pace: Report,
    ) -> tuple[Run, NDArray[np.intp] | None]:
        """Run the restart, and judge it; returns also the rows that it started at."""
        self.tell, self.n_components = teller(pace["callback"]), settings.n_components
        init = began_at.init
        if self.restart.saved is not None:
            starts, shifts, rows = self._again()
        elif self.restart.start is not None:
            starts, shifts, rows = self._at_model(self.runs.begun_at(self.restart.start))
        elif start_rows is not None:
            starts, shifts, rows = self._at(self.used.places(start_rows))
        elif isinstance(init, str):
            small = init == SMALL_EM
            starts, shifts, rows = self._small_em(settings) if small else self._drawn(init)
        else:
            starts, shifts, rows = self._at_model(init)
        if self.restart.saved is None and self.restart.start is None:
            starts = [
                root.begun(began_at.apply_to(start, self._over))
                for root, start in zip(self.roots, starts, strict=True)
            ]
        for root, start in zip([self.terms.whole, *self.roots], [starts[0], *starts], strict=True):
            root.held = held_of(settings.fix, start)
        known = [root.sample_covariance for root in self.roots]
        saver = self.restart.saver(shifts=shifts, rows=rows, covariances=known)
        step = OverRows(self.terms, self.total, self.roots, shifts)
        options: Report = {"draw_row": self.stream.draw, "saver": saver, **pace}
        if settings.batch_size is not None:
            order = np.random.default_rng([*self.restart.seed, ORDER_OF_BATCHES])
            run = fit_row_batches(step, starts, settings, rng=order, **options)
        else:
            run = iterate(step, starts, settings, last=began_at.last, **options)
        run.judge(self.terms.whole, self.total)
        return run, rows

    def _over(self, model: Mixture) -> Mixture:
        whole = self.terms.whole
        return model.convert_to(whole.blocks, whole.covariance_type, whole.scaling)

    def _again(self) -> Started:
        """Return what was saved of a start, with the parameters as they were saved last."""
        known, starts = self.restart.drawn("covariances"), self.runs.parameters(self.restart.loop)
        self.roots = [
            self.terms.whole.with_sample_covariance(one).resuming(start)
            for one, start in zip(known, starts, strict=True)
        ]
        return starts, self.restart.drawn("shifts"), self.restart.drawn()

    def _at(self, places: NDArray[np.intp]) -> Started:
        """Means at these rows, equal weights, the sample covariance."""
        whole = self.terms.whole
        centres = whole.at_rows(places)
        size = ROW_BYTES + whole.blocks.n_features * whole.itemsize
        ends = np.cumsum(self.terms.counts)
        for owner in np.searchsorted(ends, places, side="right"):
            self.total.agree("flooding", size, int(owner))
        self.roots = sample_roots(self.terms, self.total, centres[0])
        return [root.start(centres) for root in self.roots], centres, self.used.at_places(places)

    def _at_model(self, model: Mixture) -> Started:
        """Parameters of a model, which all know."""
        start = self._over(model)
        check_start(start, self.n_components)
        self.roots = sample_roots(self.terms, self.total, start.means[0])
        return [start] * len(self.roots), start.means, None

    def _drawn(self, init: str) -> Started:
        """Rows drawn from the shared stream, and Lloyd's iterations from there.

        Where no row may be shown, centres among means of cells.
        """
        terms, whole = self.terms, self.terms.whole
        starts = RowStarts(
            self.used.workers_rows(terms.local, whole.observed), self.total, self.stream,
            self.n_components, whole.n_threads, self.tell,
        )  # fmt: skip
        if terms.reach is None:
            begun, centres, rows = self._at(starts.choose(init))
        else:
            centres, rows = starts.cells(), None
            self.roots = sample_roots(terms, self.total, terms.reach.points.centre)
            begun = [root.start(centres) for root in self.roots]
        if init != "kmeans":
            return begun, centres, rows
        variances = [  # the mean of the features', by the sample covariance as a root knows it
            float(known.mean())
            if is_diagonal(root.covariance_type)
            else float(np.trace(known.reshape(d, d)) / d)
            for root in self.roots
            for known, d in [(root.sample_covariance, root.blocks.n_features)]
        ]
        fill = not is_diagonal(whole.covariance_type)
        clusters = starts.clusters(centres, np.array(variances), fill)
        return self._at_clusters(clusters, centres), centres, rows

    def _small_em(self, settings: FitSettings) -> Started:
        """Return the best of short runs from some starts."""
        short, pace = short_runs(settings, self.network, over_rows=True)

        def draw(init: str) -> tuple[Started, list[FeatureTerms]]:
            return self._drawn(init), self.roots

        def run(drawn: tuple[Started, list[FeatureTerms]], powers: Sequence[float]) -> Run:
            (starts, shifts, _), roots = drawn
            return iterate(
                OverRows(self.terms, self.total, roots, shifts), starts, short,
                draw_row=self.stream.draw, accelerate=pace, powers=powers,
            )  # fmt: skip

        def rank(run: Run) -> tuple[float, ...]:
            run.judge(self.terms.whole, self.total)
            return self.runs.rank(run)

        best, (start, self.roots) = best_of_short_runs(SMALL_STARTS, draw, run, rank)
        return best.mixtures, *start[1:]

    def _at_clusters(self, clusters: Lloyd, shifts: NDArray[np.float64]) -> list[Mixture]:
        """Parameters of clusters, by one sum of statistics about points that all know."""
        layout, n_parts = Message(self.terms.whole, shifts), len(self.terms.parts)
        known: Sequence[NDArray[np.float64] | None] = [None] * n_parts
        if self.terms.whole.observed is not None:
            known = list(np.broadcast_to(clusters.centres, (n_parts, *shifts.shape)))
        values = [
            self.terms.hard(worker, clusters.labels[run], layout, fill)
            for worker, (run, fill) in enumerate(zip(self.terms.runs, known, strict=True))
        ]
        sums = add_messages(self.terms, self.total, layout, values, "setup")
        return [
            root.update(layout.unpacked(one)[0]) for root, one in zip(self.roots, sums, strict=True)
        ]


def fit_em(
    X: Floats | FileMatrix,
    workers: Workers,
    network: Network | None = None,
    settings: FitSettings | None = None,
    *,
    first_restart: int = 0,
    sample_weight: Floats | None = None,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
    privacy: PrivacySettings | None = None,
    **changes: object,
) -> RowFit:
    """Fit a Gaussian mixture to rows that workers hold: distributed EM.

    Every worker runs the E-step on its rows and sends ``(n_k, t_k, U_k)``. Summed at a server this
    is centralized EM, iteration by iteration; summed by consensus every worker ends with a model
    of its own, and they differ by consensus error. Inactive workers count with the statistics that
    were heard of them last (incremental EM, Neal and Hinton 1998).

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data (on MPI ranks the rank's own, worker by worker, see
        `vpem.sums.connect.spread_workers`, as are sample weights); a row is seen by the worker that
        holds it, and by no other but where it is drawn as a start.
    workers : Workers
        Who holds which rows.
    network : Network, optional
        From `vpem.connect_workers`; None: a server.
    settings, first_restart, sample_weight, feature_names, callback, saver, **changes
        As for `vpem.fit_vpem`.
    privacy : PrivacySettings, optional
        With an ``epsilon``: noise in every sum (`vpem.fits.privacy.fit_private_rows`).

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
        If features are constant, components collapsed and were reinitialised, or some are
        degenerate.
    """
    began = time.perf_counter()
    settings = FitSettings.resolve(settings, **changes)
    network = _network_of(network, workers, settings)
    if privacy is not None and privacy.is_asked:
        refuse_trace(callback)
        return fit_private_rows(
            X, workers, network, settings, privacy, sample_weight=sample_weight,
            feature_names=feature_names, callback=callback, saver=saver,
        )  # fmt: skip
    began_at, settings = started(settings)
    X, local = as_matrix("data", X), LocalRows(network.total.holders, workers)
    prepared = prepare(
        X, n_columns(X), settings, local, sample_weight=sample_weight, feature_names=feature_names,
        dtype=settings.dtype, missing=settings.missing,
    )  # fmt: skip
    first_restart = check_int("first_restart", first_restart, least=0)
    settings = settings.changed(
        n_threads=thread_count(settings.n_threads), dtype=prepared.precision.name
    )
    pace: Report = {"callback": callback}
    if settings.batch_size is None:
        pace["accelerate"] = acceleration_of(settings, network, over_rows=True)
    if saver is not None:
        facts: State = settings.values() | (
            {"first_restart": first_restart} if first_restart else {}
        )
        if settings.fix is not None and began_at.given is not None:
            facts["fixed"] = start_facts(began_at.given)
        facts["who holds which rows"] = checksum(workers.order, workers.counts)
        saver.begin(describe_run("em-rows", prepared.X, prepared.row_weights, network, **facts))
    used = prepared.held(local)
    ledger, total = Ledger(network.graph), network.total
    if network.dropout:
        total = HeardByNeighbours(total)
    with one_blas_thread(), np.errstate(over="ignore"):
        terms = _terms(prepared, used, settings, network.total.counted_on(ledger))
        counted, d = network.total.counted_on(ledger), terms.whole.blocks.n_features
        network.charge_setup(ledger, prepared.n_samples, terms.whole.itemsize)
        if terms.reach is None:
            charge_scaling(counted, d)
        if terms.reach is None and prepared.row_weights is not None:
            charge_weights(counted, terms.counts)
        if terms.reach is None and prepared.misses:
            # Every feature's weight, mean and variance, by which missing values are filled first.
            counted.begin("setup", 0, 0, 8, 3 * d)  # which were counted as they travelled
            counted.agree("setup", 2 * d * 8)
        runs = kept_of_mixtures(
            terms.whole, total, settings.n_components, settings.floor_fits, over_rows=True
        )
        numbers = restart_numbers(settings, first_restart)
        restarts = Restarts(
            saver, ledger, numbers, settings.seed, settings.max_iter, runs, callback
        )
        start = partial(RowRestart, network, terms, used, runs)
        run, start_rows = restarts.best(
            total, lambda one: start(one).run(began_at, prepared.rows, settings, pace)
        )
    # Where all share one sum, on a graph that mixes in one round too, all have the same.
    roots = slice(1 if network.whole.total.n_roots == 1 else None)
    fit = RowFit(
        **found_by(run, settings),
        network=network.whole,
        history=np.array(run.history).reshape(-1, len(run.log_likelihood))[:, roots],
        root_log_likelihood=run.log_likelihood[roots],
        prior=mode_prior(settings, terms.whole.blocks),
        log_prior=float(run.log_prior[roots].mean()),
        total_weight=terms.whole.total_weight,
        n_samples=prepared.n_samples,
        recoveries=[_for_user(one, prepared, used) for one in run.recoveries],
        copies=copies_of(run.mixtures, total.counted_on(ledger)),
        init_rows=prepared.number(start_rows),
        mixtures=_gathered(run, runs, network.total)[roots],
        workers=workers,
        **restarts.outcome(began),
    )
    warn_of_outcome(fit, settings)
    warn_of_few_values(fit, prepared.X, feature_names, settings, over_rows=True)
    return fit


def _terms(prepared: Prepared, used: UsedRows, settings: FitSettings, total: Sum) -> WorkerTerms:
    """Return the terms of the workers' rows, worker by worker.

    Under masks nothing is shown but sums: ``counts`` are those of rows that each worker holds,
    since how many it uses is not shown either.
    """
    data, weights = used.data, used.weights
    alone = used.here and used.counts.max() == used.n_samples
    check_distinct(data, settings, alone)
    blocks = Blocks.one(data.shape[1], used.workers.n_workers)
    bounded = settings.eigenvalue_ratio is not None
    hubs = sharing(blocks, settings.covariance_type, settings.scale, bounded)
    reach, weighs = None, {}
    if used.masked:
        reach = agree_on_rows(
            used.parts(), total, used.n_samples, blocks.n_features, misses=prepared.misses,
            weighted=weights is not None,
        )  # fmt: skip
        scaling = units_by_reach(reach, hubs)
        reach = reach.scaled(scaling)
        weighs = {"total": reach.mass, "lightest": reach.lightest}
    else:
        scaling = units_of(data, weights, blocks, settings, prepared.misses, used)
    if used.every_weight is not None:
        weighs["total"] = float(used.every_weight.sum())
        weighs["lightest"] = float(used.every_weight.min(initial=np.inf))
    whole = make_terms(data, weights, blocks, scaling, prepared, settings, used, reach)
    whole = believing(whole, settings)
    own_rows = whole.rows
    rows = SharedRows(own_rows, used, None if reach is None else reach.points)
    whole = whole.among(rows, used.n_samples, **weighs)
    return WorkerTerms(whole, used.own_runs, used.public_counts, own_rows, reach)


def _for_user(recovery: Recovery, prepared: Prepared, used: UsedRows) -> Recovery:
    """Return a recovery with the user's number of the row."""
    row = recovery.row
    if row is not None and row != DRAWN:
        [row] = prepared.number(used.at_places(np.array([row]))) or ()
    return replace(recovery, hub=0, row=row)


def _gathered(run: Run, runs: Kept[Run], total: Sum) -> list[Mixture]:
    """Return the mixtures of all roots at the first process; at others those that it has."""
    if total.roots.n_agents == 1 or not total.holders.apart:
        return run.mixtures
    states = [one.arrays() for one in run.mixtures[: len(total.holders.own)]]
    with set_topic(total.holders.engine, "result"):
        parts = total.holders.engine.gather(states) or [states]
    every: list[Mixture] = runs.parameters({"mixtures": [one for part in parts for one in part]})
    return every


def _network_of(network: Network | None, workers: Workers, settings: FitSettings) -> Network:
    """Return the network of workers; InputError unless it sums exactly or by rounds."""
    if settings.n_factors:
        raise InputError(
            Setting("n_factors", settings.n_factors),
            " are for correlations that no hub sees, but workers hold all features of their rows, "
            "whose covariances have every correlation; leave it out",
        )
    if settings.seeks_outliers:
        name = "noise" if settings.noise else "trim"
        raise refused(Setting(name, getattr(settings, name)), WITH_OUTLIERS[-1][1])
    check_kind("workers must be vpem.Workers", workers, Workers)
    network = network_of_all(network, workers.n_workers, "workers", workers.names)
    if network.compress is not None:
        refuse({"algorithm": "em-rows"}, ["compress"])
    return network


def n_columns(X: ArrayLike | FileMatrix) -> int:
    """Columns of what should be a matrix; 0 of anything else, which later checks refuse."""
    shape = X.shape if is_stored(X) else np.shape(X)
    return int(shape[1]) if len(shape) == 2 else 0


def charge_scaling(total: Sum, n_features: int) -> None:
    """Count what units cost: sums of weights, values and squares, then the agreed units."""
    charge_moments(total, n_features)
    total.agree("setup", 2 * n_features * 8)


def charge_moments(total: Sum, n_features: int) -> None:
    """Count what standard deviations cost: sums of weights, values and squares."""
    total.begin("setup", 0, 0, 8, 2 * n_features + 1)  # which were counted as they travelled


def fit_next(
    fit: Fit,
    data: Floats,
    weights: NDArray[np.float64] | None,
    *,
    batch: int,
    exponent: float,
    weight_seen: float,
    draws: np.random.Generator,
    reg_covar: float | str,
    scale: str,
    n_threads: int | None,
) -> Fit:
    """Move a fit towards the next batch of a stream, by one step of stochastic EM.

    Batches are counted from 2, as the first began the fit. The statistics move by
    ``batch^-exponent`` towards those of the batch, in the units of the first; ``weight_seen`` is
    the weight of all rows of the batches before. Rows of ``data`` (m, d) without any value, or of
    no weight, are left out already; ``draws`` draws rows for components that collapse, of which it
    warns.

    History, messages and sizes of the result are those of this batch, its recoveries those of all.
    There is no privacy guarantee for the batch's rows, even if there was one before.
    """
    network, mixture = fit.network, fit.mixture
    ledger = Ledger(network.graph)
    with one_blas_thread(), np.errstate(over="ignore"):
        terms = FeatureTerms(
            data,
            network.blocks,
            mixture.covariance_type,
            missing=bool(np.isnan(data).any()),
            scaling=mixture.scaling,
            row_weights=weights,
            reg_covar=floors_of(reg_covar, scale, mixture.scaling),
            n_threads=thread_count(n_threads),
            dtype=data.dtype,
        )
        network.charge_setup(ledger, len(data), terms.itemsize)
        total = network.total.counted_on(ledger)
        total.turn_to(batch - 1, None)
        seen = weight_seen + terms.total_weight
        moved, log_likelihood, recoveries = step(
            terms,
            total,
            mixture,
            terms.prepare(mixture),
            rate=float(batch) ** -exponent,
            seen=seen,
            draw_row=RowStream(draws, weights, len(data)).draw,
        )
    if recoveries:
        warn(
            f"components collapsed and were reinitialised {times(len(recoveries))} at batch "
            f"{batch}; try larger batches, fewer components or a larger reg_covar"
        )
    root_log_likelihood = np.broadcast_to(log_likelihood, (len(network.hubs),)).copy()
    return replace(
        fit,
        mixture=moved,
        history=root_log_likelihood[None],
        root_log_likelihood=root_log_likelihood,
        total_weight=terms.total_weight,
        n_samples=len(data),
        converged=False,
        degenerate=np.flatnonzero(total.holders.any(degenerate(terms, moved, seen))).tolist(),
        copies=copies_of([moved], total),
        recoveries=[*fit.recoveries, *(replace(one, iteration=batch) for one in recoveries)],
        total_iterations=fit.total_iterations + 1,
        guarantee=None,
        communication=ledger.summary(),
    )
