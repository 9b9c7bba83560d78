"""Named algorithms over rows: distributed EM, at a server or among peers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import as_array, check_int
from vpem.errors import InputError, Setting
from vpem.files.matrix import FileMatrix, FileRows
from vpem.fits.fingerprint import checksum, describe_run
from vpem.fits.local_rows import LocalRows, SharedRows, check_alone
from vpem.fits.prepare import Prepared, _scaling, prepare
from vpem.fits.results import RowFit, _warn_of_outcome
from vpem.network.blocks import Blocks
from vpem.network.holdings import Workers
from vpem.network.ledger import Ledger
from vpem.settings import BY_FEATURES, FitSettings
from vpem.steps.em import iterate
from vpem.steps.restarts import Restart, Restarts
from vpem.steps.row_em import OverRows, sample_roots
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.runs import MixtureRuns, Progress, Run
from vpem.steps.saver import Saver
from vpem.steps.seeding import seed_rows
from vpem.steps.streams import ROW_BYTES, PlacedStream, RowStream
from vpem.sums.connect import Network
from vpem.sums.counted import add_vectors
from vpem.sums.sum import Sum
from vpem.terms.covariances import is_diagonal
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import MissingTerms, terms_of
from vpem.terms.mixture import Mixture
from vpem.terms.mixture_states import mixture_state
from vpem.terms.row_statistics import Message, RowTerms

__all__ = ["charge_scaling", "fit_em", "n_columns"]


def fit_em(
    X: NDArray[Any] | FileMatrix,
    workers: Workers,
    network: Network,
    settings: FitSettings | None = None,
    *,
    first_restart: int = 0,
    sample_weight: NDArray[Any] | None = None,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
    **changes: Any,
) -> RowFit:
    """Fit a Gaussian mixture to rows that workers hold: distributed EM.

    Every worker runs the E-step on its rows and sends ``(n_k, t_k, U_k)``. Summed at a server this
    is centralized EM, iteration by iteration; summed by consensus every worker ends with a model
    of its own, and they differ by consensus error.

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data (on MPI ranks the rank's own, see `vpem.fits.spread.spread_workers`); a row is seen
        by the worker that holds it, and by nobody else but where it is drawn as a start. From a
        file, workers must hold runs of rows in the file's order.
    workers : Workers
        Who holds which rows.
    network : Network
        From `vpem.connect_workers`.
    settings, first_restart, sample_weight, feature_names, callback, saver, **changes
        As for `vpem.fit_vpem`.

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
        If features are constant, or components collapsed and were placed anew.
    """
    began = time.perf_counter()
    how = FitSettings.of(settings, **changes)
    if not isinstance(X, FileMatrix):
        X = as_array("data", X)
    _check_network(network, workers)
    if how.batch_size is not None:
        raise InputError(Setting("batch_size"), *BY_FEATURES[1])
    holders = network.total.holders
    missing_asked = None if how.missing == "refuse" else how.missing
    check_alone(holders, sample_weight=sample_weight, missing=missing_asked)
    here = LocalRows(holders, workers.counts) if holders.apart else None
    if here is not None:
        here.check(X)
    given = prepare(
        X,
        n_columns(X),
        how,
        sample_weight=sample_weight,
        feature_names=feature_names,
        dtype=how.dtype,
        missing=how.missing,
        here=here,
    )
    first_restart = check_int("first_restart", first_restart, least=0)
    if workers.n_samples != given.n_samples:
        raise InputError(
            f"the workers hold {workers.n_samples} rows, but the data have {given.n_samples}"
        )
    threads = thread_count(how.n_threads)
    how = how.changed(n_threads=threads, dtype=given.precision.name)
    if saver is not None:
        saver.begin(
            describe_run(
                "em-rows",
                given.X,
                given.row_weights,
                network,
                **how.values("batch_size", "step_size"),
                **({"first_restart": first_restart} if first_restart else {}),
                **{"who holds which rows": checksum(workers.order, workers.counts)},
            )
        )
    held = workers if given.kept is None else workers.of_rows(given.kept)
    order = held.order
    place = np.argsort(order)
    data, weights = given.X, given.row_weights
    if here is None and not np.array_equal(order, np.arange(len(order))):
        if isinstance(data, FileMatrix):
            raise InputError(
                "the data are read from disk, but the rows of the workers do not follow each other "
                "there; raise the memory limit, or store the rows worker by worker"
            )
        data = data[order]
        weights = None if weights is None else weights[order]
    scaling = _scaling(data, weights, how.scale, given.precision, given.misses, here)
    blocks = Blocks((np.arange(data.shape[1]),), (0,), (tuple(range(workers.n_workers)),))
    ledger = Ledger(network.graph)
    with one_blas_thread(), np.errstate(over="ignore"):
        whole = terms_of(
            data,
            blocks,
            how.covariance_type,
            missing=given.misses,
            scaling=scaling,
            row_weights=weights,
            reg_covar=how.reg_covar,
            n_threads=threads,
            dtype=given.precision,
            skip_negligible=not how.every_weight,
        )
        runs = held.runs
        if here is not None:
            whole, runs = whole.among(SharedRows(whole.rows, here), here.n_samples), here.own_runs
        terms = RowTerms(whole, runs, held.counts)
        network.charge_setup(ledger, given.n_samples, whole.itemsize)
        total = network.total.on(ledger)
        if how.scale == "standard" or not scaling.is_none:
            charge_scaling(total, whole.blocks.n_features)
        if given.misses:
            # Every feature's weight, mean and variance, by which missing values are filled first.
            d = blocks.n_features
            total.begin("setup", 1, 3 * d, 8)
            total.agree("setup", 2 * d * 8)
        kept = MixtureRuns(whole, total, how.n_components, over_rows=True)
        stop = {"tol": how.tol, "max_iter": how.max_iter, "callback": callback}
        numbers = range(first_restart, first_restart + how.n_init)
        numbers = numbers if isinstance(how.init, str) else range(1)
        restarts = Restarts(saver, ledger, numbers, how.seed, how.max_iter, kept)
        best = restarts.best(
            network.total,
            lambda restart: _Start(terms, restart, kept, place).run(how.init, given.rows, stop),
        )
    run = best.run
    mixtures, roots = _gathered(run, kept, network.total), slice(None)
    if network.whole.total.n_roots == 1:
        # On a graph that mixes in one round too all have the same.
        mixtures, roots = mixtures[:1], slice(1)
    recoveries = [
        replace(one, hub=0, row=None if one.row is None else _user_row(given, order[one.row]))
        for one in run.recoveries
    ]
    fit = RowFit(
        mixture=run.mixture,
        network=network.whole,
        history=np.array(run.history)[:, roots],
        root_log_likelihood=run.log_likelihood[roots],
        total_weight=whole.total_weight,
        n_samples=given.n_samples,
        converged=run.converged,
        recoveries=recoveries,
        init_rows=given.number(best.rows),
        best_restart=best.restart,
        seconds=time.perf_counter() - began + restarts.seconds,
        total_iterations=restarts.iterations,
        partitions=run.partitions,
        communication={**ledger.summary(), "bytes_by_iteration": run.bytes_sent},
        mixtures=mixtures,
        workers=workers,
    )
    _warn_of_outcome(fit, how.max_iter, how.tol)
    return fit


def _user_row(given: Prepared, row: int) -> int:
    """Return the user's number of a row of the data."""
    return int(row if given.kept is None else given.kept[row])


def _gathered(run: Run, kept: MixtureRuns, total: Sum) -> list[Mixture]:
    """Return the mixtures of all roots at the first process; at others those that it has."""
    if total.roots.n_agents == 1 or not total.holders.apart:
        return run.mixtures
    own = [mixture_state(one) for one in run.mixtures[: len(total.holders.own)]]
    parts = total.holders.engine.gather(own) or [own]
    return kept.mixtures({"mixtures": [state for part in parts for state in part]})


def _check_network(network: Network, workers: Workers) -> None:
    """Raise InputError unless the sum fits: exact, or by rounds, of one root a worker."""
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
        raise InputError(
            "a lossy codec on second moments makes covariances that are none; vpem fedem sends "
            "compressed statistics and mends them"
        )
    if network.faults is not None and network.faults.agent_dropout:
        raise InputError(
            "a worker that is silent takes its rows out of the sum, and log-likelihoods of "
            "iterations cannot be compared; vpem fedem has --participation for that"
        )


def n_columns(X: Any) -> int:
    """Columns of what should be a matrix; 0 of anything else, which later checks refuse."""
    shape = np.shape(X) if not isinstance(X, FileMatrix) else X.shape
    return int(shape[1]) if len(shape) == 2 else 0


def charge_scaling(total: Any, n_features: int) -> None:
    """Count what units cost: sums of weights, values and squares, then the agreed units."""
    total.begin("setup", 1, 2 * n_features + 1, 8)
    total.agree("setup", 2 * n_features * 8)


Started = tuple[list[Mixture], NDArray[np.float64], NDArray[np.intp] | None]
"""Parameters of every root, points that all know, and the rows they came from."""


class _Start:
    """Where one restart of EM over rows starts, and its run."""

    def __init__(
        self, terms: RowTerms, restart: Restart, kept: MixtureRuns, place: NDArray[np.intp]
    ) -> None:
        self.terms = terms
        self.restart = restart
        self.total = restart.total
        self.kept = kept
        self.n_components = kept.n_components
        self.place = place
        whole = terms.whole
        # The same stream over rows as the user numbers them, and as they stand among the workers.
        weights = whole.row_weights
        own = None if weights is None else weights[place]
        self.stream = RowStream(restart.rng, own, whole.n_samples)
        self.local = PlacedStream(restart.rng, weights, np.argsort(place))
        self.roots: list[FeatureTerms] = []

    def run(
        self, init: Any, given: NDArray[np.intp] | None, stop: dict[str, Any]
    ) -> tuple[Run, NDArray[np.intp] | None]:
        """Run the restart; returns also the rows that it started at."""
        if self.restart.saved is not None:
            starts, shifts, rows = self._again()
        elif isinstance(init, Mixture):
            starts, shifts, rows = self._at_model(init)
        elif given is not None:
            starts, shifts, rows = self._at(self.place[given], given)
        else:
            starts, shifts, rows = self._drawn(init)
        known = [root.sample_covariance for root in self.roots]
        saver = self.restart.saver(shifts=shifts, rows=rows, covariances=known)
        step = OverRows(self.terms, self.total, self.roots, shifts)
        return iterate(step, starts, draw_row=self._draw_row, saver=saver, **stop), rows

    def _draw_row(self) -> int:
        """Next row of the shared stream, by its place among the workers'."""
        return int(self.place[self.stream.draw()])

    def _again(self) -> Started:
        """Return what was saved of a start, with the parameters as they were saved last."""
        for covariances in self.restart.drawn("covariances"):
            own = copy(self.terms.whole)
            own._sample_covariance = covariances
            self.roots.append(own)
        starts = self.kept.mixtures(self.restart.loop)
        return starts, self.restart.drawn("shifts"), self.restart.drawn()

    def _at(self, places: NDArray[np.intp], rows: NDArray[np.intp]) -> Started:
        """Means at these rows, equal weights, the sample covariance."""
        whole = self.terms.whole
        centres = whole.at_rows(places)
        size = ROW_BYTES + whole.blocks.n_features * whole.itemsize
        ends = np.cumsum(self.terms.counts)
        for owner in np.searchsorted(ends, places, side="right"):
            self.total.agree("flooding", size, int(owner))
        self.roots = sample_roots(self.terms, self.total, centres[0])
        return [root.start(centres) for root in self.roots], centres, rows

    def _at_model(self, model: Mixture) -> Started:
        """Parameters of a model, which all know."""
        whole = self.terms.whole
        start = model.over(whole.blocks, whole.covariance_type, whole.scaling)
        if start.n_components != self.n_components:
            raise InputError(
                f"the starting model has {start.n_components} components, {self.n_components} "
                "were asked for"
            )
        self.roots = sample_roots(self.terms, self.total, start.means[0])
        return [start] * len(self.roots), start.means, None

    def _drawn(self, init: str) -> Started:
        """Rows drawn from the shared stream, and Lloyd's iterations from there."""
        if init == "random":
            rows = self.stream.draw_distinct(self.n_components)
            return self._at(self.place[rows], rows)
        whole = self.terms.whole
        if isinstance(whole.rows, FileRows):
            raise InputError(
                f"the start {init} looks at all rows of a worker at once, but the data are read "
                "from disk; raise the memory limit, or start at random rows"
            )
        parts = [part.rows.read(slice(0, part.n_samples)) for part in self.terms.parts]
        given: dict[str, Any] = {"n_threads": whole.n_threads}
        if isinstance(whole, MissingTerms):
            given["observed"] = whole.observed
        places = seed_rows(parts, self.total, self.n_components, self.local, **given)
        rows = np.argsort(self.place)[places]
        starts, centres, _ = self._at(places, rows)
        if init == "k-means++":
            return starts, centres, rows
        return self._from_clusters(parts, centres, given), centres, rows

    def _from_clusters(
        self, parts: list[NDArray[Any]], centres: NDArray[np.float64], given: dict[str, Any]
    ) -> list[Mixture]:
        """Parameters of the clusters that Lloyd's iterations find from some centres."""
        whole = self.terms.whole
        known: Sequence[NDArray[np.float64] | None] = [None] * len(parts)
        misses = isinstance(whole, MissingTerms)
        if misses:
            given["fill"] = not is_diagonal(whole.covariance_type)
        found = lloyd_rows(parts, self.total, centres, self.local, kind="setup", **given)
        layout = Message(whole, centres)
        if misses:
            known = list(np.broadcast_to(found.centres, (len(parts), *centres.shape)))
        ends = np.cumsum([len(part) for part in parts], dtype=np.intp)
        values = [
            self.terms.hard(worker, found.labels[end - len(part) : end], layout, own)
            for worker, (part, end, own) in enumerate(zip(parts, ends, known, strict=True))
        ]
        sums = add_vectors(self.total, layout.stacked(values), "setup")
        return [
            root.update(layout.unpacked(one)[0]) for root, one in zip(self.roots, sums, strict=True)
        ]
