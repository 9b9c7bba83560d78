"""Imputation by a Gaussian mixture: what no observer saw of a row, by what was seen of it.

The mixture is fitted to what was seen, over columns (`vpem.fits.vpem`) or rows (`vpem.fits.rows`),
and the holder of a gap fills it by the responsibilities of its row and its own columns of the row.
Draws are proper (Rubin 1987): each comes from a fit to rows with the weights of a Bayesian
bootstrap. At the end, how imputations of any kind are written.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, as_kept, check_memory
from vpem.engines.engine import set_topic
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting, VpemWarning, warn
from vpem.files.elements import write_elements
from vpem.files.hdf5 import describe_element, write_array, write_file
from vpem.files.models import current_versions
from vpem.files.opening import PathLike
from vpem.files.results import IMPUTATION, VERSION, Imputed, write_imputed
from vpem.files.table_settings import TableSettings
from vpem.files.temporaries import ENDINGS, check_ending
from vpem.fits.labels import responsibilities_of_workers
from vpem.fits.observers import Completed, Observers
from vpem.fits.results import SUMMED, Fit, reported, warn_of_degenerate
from vpem.fits.rows import fit_em
from vpem.fits.settings import ImputeSettings, parse_numbers
from vpem.fits.spread import fit_spread, own_columns
from vpem.network.ledger import Ledger
from vpem.network.partition import Blocks, Partition, Workers
from vpem.network.schema import Report
from vpem.settings import FitSettings
from vpem.steps.recovery import Saver
from vpem.steps.runs import mean_over_roots
from vpem.sums.connect import Network, spread
from vpem.terms.lowrank.entries import Hidden
from vpem.terms.lowrank.observations import Observations, make_law
from vpem.terms.mixture import Mixture
from vpem.terms.units import Scaling

WEIGHTS, VALUES = 3, 4
"""Set the streams of draws apart: of rows' weights, and of components and values."""


@dataclass(kw_only=True)
class MixtureImputation(
    Completed,
    facts="{fit.mixture.n_components:component}, {observations.shape[0]:row}, "
    "{observations.shape[1]:column}, {converged:converged|not converged} after {n_iter:iteration}",
):
    """A matrix with nothing missing, as a Gaussian mixture fills it, and how it was found.

    ``held`` says who holds which columns, or rows. ``filled`` (I, J) is the completed matrix; where
    processes are others' NaN but for what this one holds. ``gaps`` (n,) are the entries imputed
    here, ``row * J + column``, and ``draws`` (M, n) their values in each of the multiple
    imputations; ``drawing`` has number, iterations and bytes of all. This process had ``ran_on`` of
    the network.
    """

    fit: Fit
    held: Partition | Workers
    filled: Doubles
    gaps: NDArray[np.intp]
    draws: Doubles
    drawing: Report
    ran_on: Network

    @property
    def n_iter(self) -> int:
        """Iterations."""
        return self.fit.n_iter

    @property
    def fitted(self) -> Doubles:
        """Expectation of every entry given all that was seen, shape (I, J)."""
        return self.filled

    @property
    def column_trend(self) -> Doubles:
        """Means of the completed columns, shape (J,); where processes are others', of the law."""
        if np.isnan(self.filled).any():
            mixture = self.fit.mixture
            return np.asarray(mixture.assembled_weights @ mixture.assembled_means)
        return np.asarray(self.filled.mean(axis=0))

    def completed(self, draw: int) -> Doubles:
        """Return the matrix of one of the draws, from 0, shape (I, J)."""
        values = self.filled.copy()
        values.ravel()[self.gaps] = self.draws[draw]
        return values

    def drawn(self) -> Doubles | None:
        """Return the matrices (M, I, J) of all draws, if there are any."""
        count = len(self.draws)
        if not count:
            return None
        check_memory(16 * count * self.fitted.size, f"tables of {count} draws")
        return np.stack([self.completed(draw) for draw in range(count)])

    def fill(self, rows: Doubles) -> Doubles:
        """Fill gaps by the responsibilities of each row."""
        mixture = self.fit.mixture
        shares = mixture.predict_proba(rows, missing="marginalize")
        return fill_gaps(mixture, rows, dict.fromkeys(range(mixture.blocks.n_blocks), shares))

    def describe(self) -> Report:
        """Summarize in values that JSON can hold; log-likelihood and history are in nats a row."""
        fit = self.fit
        return {
            "algorithm": "mixture-imputation",
            **self._common(),
            "split": f"{self.held.held}s",
            **reported(fit.mixture, "n_components", "covariance_type", "n_parameters"),
            "mixing_weights": fit.mixture.assembled_weights.tolist(),
            "bic": fit.bic,
            "draws": self.drawing or None,
            **self.network.describe("topology", "edges", "server", *SUMMED, "faults"),
            "history": [mean_over_roots(found) / fit.total_weight for found in fit.history],
            "recoveries": len(fit.recoveries),
        }


def impute_by_mixture(
    observations: Observations,
    settings: ImputeSettings,
    network: Network,
    callback: Callable[[Any], None] | None = None,
    saver: Saver | None = None,
) -> MixtureImputation:
    """Impute by a mixture; parameters and result are those of `vpem.fit_imputation`."""
    began = time.perf_counter()
    work = _Work(observations, settings, network)
    counts = parse_numbers("n_components", str(settings.n_components), least=1)
    if len(counts) > 1 and saver is not None:
        raise InputError(
            Setting("n_components", settings.n_components),
            " means several fits, but a checkpoint holds one; give one number, or no checkpoint",
        )
    with warnings.catch_warnings():
        # Of the one that is taken there is a warning below, by options that there are here.
        warnings.filterwarnings("ignore", "[0-9]+ of [0-9]+ components are degenerate", VpemWarning)
        fits = [work.fit(n_components=k, callback=callback, saver=saver) for k in counts]
    fit = min(fits, key=lambda fit: work.agreed([bool(fit.degenerate), fit.bic]))
    warn_of_degenerate(fit, settings)
    filled = work.filled(fit)
    gaps = np.flatnonzero(np.isnan(work.seen.mean) & ~np.isnan(filled))
    draws, drawing = work.draws(fit, settings.draws or 0, gaps)
    return MixtureImputation(
        observations=work.observations,
        seen=work.seen,
        law=make_law("gaussian"),
        log_likelihood=fit.log_likelihood,
        network=network.whole,
        scaling=fit.mixture.scaling,
        options={"scale": settings.scale, "tol": settings.tol, "max_iter": work.settings.max_iter},
        fit=fit,
        held=work.held,
        filled=filled,
        gaps=gaps,
        draws=draws,
        drawing=drawing,
        ran_on=work.network,
        converged=fit.converged,
        communication=fit.communication,
        seconds=time.perf_counter() - began,
    )


def fill_gaps(
    mixture: Mixture, values: Doubles, shares: Mapping[int, Doubles], noise: Doubles | None = None
) -> Doubles:
    """Return values (m, d), in the user's order and units, without the gaps of some hubs.

    ``shares`` are responsibilities g (m, K) of the rows, by hub. What a hub lacks of a row becomes

        sum_k g_k (mu_mk + S_mok S_ook^-1 (x_o - mu_ok)),

    or where all are 0 but one, with standard normal noise (m, d), a draw from that component.
    """
    from scipy.linalg import solve_triangular

    scaled, completed = mixture.scaling.apply(values), values.copy()
    noise = np.zeros(values.shape) if noise is None else noise
    for b, block_shares in shares.items():
        columns, means, covariances = (
            mixture.blocks.features[b],
            mixture.block(b)[1],
            mixture.dense(b),
        )
        part, there = scaled[:, columns], ~np.isnan(scaled[:, columns])
        filled, drawn = np.where(there, part, 0.0), noise[:, columns]
        lacking = np.flatnonzero(~there.all(axis=1))
        patterns, number = np.unique(there[lacking], axis=0, return_inverse=True)
        order, counts = np.argsort(number.ravel(), kind="stable"), np.bincount(number.ravel())
        groups = np.split(lacking[order], np.cumsum(counts)[:-1])
        for pattern, rows in zip(patterns, groups, strict=False):
            seen, gaps = np.flatnonzero(pattern), np.flatnonzero(~pattern)
            both, n = np.concatenate([seen, gaps]), len(seen)
            for k in np.flatnonzero(block_shares[rows].any(axis=0)):
                # One factor has what explains the gaps, and below it what is left of them.
                lower = np.linalg.cholesky(covariances[k][both[:, None], both])
                some = rows[block_shares[rows, k] > 0]
                known = (part[some[:, None], seen] - means[k, seen]).T
                known = solve_triangular(lower[:n, :n], known, lower=True) if n else known
                left = lower[n:, n:] @ drawn[some[:, None], gaps].T
                expected = means[k, gaps] + (lower[n:, :n] @ known + left).T
                filled[some[:, None], gaps] += block_shares[some, k, None] * expected
        filled = mixture.scaling.take_features(columns).undo(filled)
        completed[:, columns] = np.where(there, values[:, columns], filled)
    return completed


class _Work:
    """What this process has of the matrix, and what is fitted to it and filled in."""

    def __init__(
        self, observations: Observations, settings: ImputeSettings, network: Network
    ) -> None:
        observers = Observers(observations, network, Ledger(network.graph))
        self.observations, self.seen = observers.given, observers.seen()
        self.mean = self.observations.mean
        placed = Placement(network.agents.engine, network.agents.ranks)
        partition, self.workers = _holdings_of(observations, placed)
        self.weights = _row_weights(self.observations, partition is None, placed)
        self.held: Partition | Workers
        if self.workers is not None:
            self.held = self.workers
        elif partition is not None:
            self.held = partition
            blocks = Blocks.from_hubs(network.hubs, partition.features)
            whole = replace(network.whole, blocks=blocks, features=tuple(partition.features))
            network = spread(whole, placed.engine)
        self.network, self.holders = network, network.agents
        self.own, self.seed = self.holders.own.tolist(), settings.seed
        self.settings = settings.into(
            FitSettings, n_components=1, missing="marginalize", step_size=None,
            max_iter=1000 if settings.max_iter is None else settings.max_iter,
        )  # fmt: skip
        check_memory(8 * 6 * self.mean.size, f"imputing a matrix of {self.mean.shape}")

    def agreed(self, value: Any) -> Any:
        """Return what the first process has of a result, which may round differently."""
        if not self.holders.apart:
            return value
        with set_topic(self.holders.engine, "result"):
            return self.holders.bcast(value)

    def fit(self, weights: NDArray[np.float64] | None = None, **changes: Any) -> Fit:
        """Fit the mixture to rows with these weights, by default the given ones.

        All processes have all parameters of it.
        """
        names = self.observations.column_names
        weights = self.weights if weights is None else weights
        apart, d = self.holders.apart, len(self.observations.column_names)
        if self.workers is not None:
            rows = self._rows(self.workers) if apart else slice(None)
            return fit_em(
                self.mean[rows], self.workers, self.network, self.settings,
                sample_weight=None if weights is None else weights[rows], feature_names=names,
                **changes,
            )  # fmt: skip
        columns = own_columns(self.network) if apart else np.arange(d)
        fit = fit_spread(
            self.mean[:, columns] if len(columns) else None, self.network, self.settings,
            sample_weight=weights, feature_names=[names[j] for j in columns],
            labels=self.own, **changes,
        )  # fmt: skip
        if not apart:
            return fit
        arrays = self.agreed({**fit.mixture.arrays(), **vars(fit.mixture.scaling)})
        units = Scaling(arrays.pop("shift"), arrays.pop("scale"))
        blocks, kind = self.network.whole.blocks, self.settings.covariance_type
        k = len(arrays["means"])
        whole = Mixture.blank(blocks, kind, k, units).having(arrays)
        return replace(fit, mixture=whole, network=self.network.whole)

    def _rows(self, workers: Workers) -> NDArray[np.intp]:
        """Rows of this process's workers, worker by worker."""
        parts = (workers.rows[worker] for worker in self.own)
        return np.concatenate([np.empty(0, dtype=np.intp), *parts])

    def filled(self, fit: Fit, draw: int | None = None) -> Doubles:
        """Fill the gaps by a fit, in expectation or by one draw; (I, J).

        All draw the same components of all rows, and noise for what they hold.
        """
        values = self.mean.copy()
        noise = np.zeros(values.shape)
        if draw is not None:
            rng = np.random.default_rng([self.seed, VALUES, draw])
            uniform, noise = rng.random((len(values), 1)), rng.standard_normal(values.shape)

        def fill(
            mixture: Mixture, rows: slice | NDArray[np.intp], shares: dict[int, Doubles]
        ) -> None:
            if draw is not None:
                for b, block_shares in shares.items():
                    reached = np.cumsum(block_shares, axis=1)
                    label = (reached < uniform[rows] * reached[:, -1:]).sum(axis=1)
                    shares[b] = np.eye(block_shares.shape[1])[label]
            values[rows] = fill_gaps(mixture, values[rows], shares, noise[rows])

        if self.workers is not None:
            X = self.mean[self._rows(self.workers)] if self.holders.apart else self.mean
            mixtures = fit.mixtures
            every = responsibilities_of_workers(
                X, self.workers, mixtures, self.holders, "marginalize"
            )
            for place, (worker, shares) in enumerate(every.items()):
                at = place if len(mixtures) > 1 else 0
                fill(mixtures[at], self.workers.rows[worker], {0: shares})
        else:
            hubs = self.network.total.holders.own.tolist()
            roots = {b: fit.network.hubs[b].root for b in hubs}
            fill(fit.mixture, slice(None), {b: fit.responsibilities[roots[b]] for b in hubs})
        engine = self.holders.engine
        if not engine.apart or not engine.open:
            return values
        with set_topic(engine, "result"):
            return engine.allreduce(np.nan_to_num(values))

    def draws(self, fit: Fit, count: int, gaps: NDArray[np.intp]) -> tuple[Doubles, Report]:
        """Draw imputations: the values of each at the gaps, and their costs."""
        check_memory(8 * count * len(gaps), f"{count} draws of {len(gaps)} entries")
        values, unfinished = np.empty((count, len(gaps))), 0
        costs: Report = {"n_draws": count, "n_iter": 0, "bytes": 0} if count else {}
        mixture = fit.mixture
        if self.holders.apart:
            mixture = mixture.having(self.agreed(mixture.arrays()))
        for draw in range(count):
            rng = np.random.default_rng([self.seed, WEIGHTS, draw])
            weights = rng.exponential(size=len(self.mean))
            weights *= 1.0 if self.weights is None else self.weights
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", VpemWarning)
                drawn = self.fit(weights, n_components=mixture.n_components, init=mixture, n_init=1)
            values[draw] = self.filled(drawn, draw).ravel()[gaps]
            costs["n_iter"] += drawn.n_iter
            costs["bytes"] += drawn.communication["bytes"]
            unfinished += not drawn.converged
        if unfinished:
            text = f"{unfinished} of {count} draws have not converged; try a larger "
            warn(text, Setting("max_iter"), level=4)
        return values, costs


def _holdings_of(seen: Observations, holders: Placement) -> tuple[Partition | None, Workers | None]:
    """Return who holds which columns or, where several have one column, which rows.

    All learn it. Rows of which no observer has anything are the first one's.
    """
    for by_column in (1, 0):
        count, indices = seen.shape[by_column], {}
        for one in holders.own.tolist():
            pair = np.divmod(seen.places[one], seen.shape[1])
            indices[one] = np.unique(pair[by_column]).tolist()
        with set_topic(holders.engine, "setup"):
            every = [np.array(part, dtype=np.intp) for part in holders.allgather(indices).values()]
        owners = np.bincount(np.concatenate(every), minlength=count)
        if owners.max() == 1:
            every[0] = np.sort(np.concatenate([every[0], np.flatnonzero(owners == 0)]))
            if by_column:
                return Partition(tuple(every), seen.names), None
            return None, Workers(tuple(every), seen.names)
    raise InputError(
        f"{seen.source}: a mixture needs observers that have whole columns or whole rows, but "
        f"several have row {seen.row_names[int(owners.argmax())]!r} and columns in common; split "
        "rows or columns, or take ", Setting("method", "lowrank"),
    )  # fmt: skip


def _row_weights(
    observations: Observations, over_rows: bool, holders: Placement
) -> NDArray[np.float64] | None:
    """Return weights of rows, (I,), or raise InputError where entries of one row differ.

    An observer of whole rows keeps their weights to itself.
    """
    if observations.weights is None:
        return None
    rows = np.concatenate(observations.places) // observations.shape[1]
    row_weights = np.zeros(observations.shape[0])
    weights = np.concatenate(observations.weights)
    np.maximum.at(row_weights, rows, weights)
    if not over_rows:
        row_weights = holders.allreduce(row_weights, "max")
    unlike = rows[weights != row_weights[rows]]
    if len(unlike):
        raise InputError(
            f"{observations.source}: a mixture weights rows, but entries of row "
            f"{observations.row_names[unlike[0]]!r} have different weights; give all entries of "
            "a row one weight, or take ", Setting("method", "lowrank"),
        )  # fmt: skip
    return np.where(row_weights > 0, row_weights, 1.0)


def imputed_of(imputation: Completed, hidden: Hidden | None = None) -> Imputed:
    """Return the completed matrix of an imputation, with hidden entries as they were observed.

    Where processes belong to different parties: this process's part of it.
    """
    observations, values, times = imputation.observations, imputation.imputed, imputation.seen.times
    drawn = imputation.drawn()
    if hidden is not None:
        again = np.bincount(hidden.places, minlength=values.size).reshape(values.shape)
        total = np.bincount(hidden.places, hidden.values, values.size).reshape(values.shape)
        values = np.where(again > 0, total / np.maximum(again, 1), values)
        drawn = None if drawn is None else np.where(again > 0, values, drawn)
        times = times + again
    grid = _here(values)
    rows = tuple(observations.row_names[row] for row in grid[0].ravel())
    columns = tuple(observations.column_names[column] for column in grid[1].ravel())
    drawn, fitted = None if drawn is None else drawn[:, grid[0], grid[1]], imputation.fitted[grid]
    return Imputed(
        values[grid], times[grid], rows, columns, observations.source, observations.long, drawn,
        fitted.mean(axis=1), fitted.mean(axis=0), imputation.describe(),
        current_versions(),
    )  # fmt: skip


def _here(values: NDArray[np.float64]) -> tuple[NDArray[np.intp], ...]:
    """Return which rows and columns of a completed matrix (I, J) this process has."""
    finite = np.isfinite(values)
    return np.ix_(np.flatnonzero(finite.any(axis=1)), np.flatnonzero(finite.any(axis=0)))


def write_imputation(
    path: PathLike,
    found: object,
    report: Report | None = None,
    force: bool = False,
    hidden: Hidden | None = None,
    quote_formulas: bool = False,
    table: TableSettings | None = None,
) -> None:
    """Write matrices, trends and factors to HDF5, or the completed matrix to a table.

    ``found`` is an imputation, or a `vpem.FedMissEM` after `fit`; a file that ends in .csv or
    .parquet has the table of `write_imputed`, with what was seen of the ``hidden`` entries, and all
    columns of the one table that was imputed, if ``table`` says how that was read. The report (by
    default `Imputation.describe`) is kept in HDF5, as JSON text. All is written or nothing.
    """
    sentence = "an imputation is written of an Imputation or a FedMissEM"
    found = as_kept(found, Completed, sentence)  # type: ignore[type-abstract]
    is_table = check_ending(path, "imputations") in ENDINGS["imputed values"]
    completed, grid = imputed_of(found, hidden if is_table else None), _here(found.fitted)
    if is_table:
        filled = None
        if table is not None and not completed.long:
            from vpem.files.data import filled_columns

            filled = filled_columns(completed.source, table, completed)
        write_imputed(path, completed, force, quote_formulas, filled)
        return
    if report is not None:
        completed = replace(completed, report=report)
    with write_file(path, force, "imputations", Imputed.encoding, VERSION) as file:
        write_elements(file, IMPUTATION, vars(completed) | {
            "imputed": completed.values, "trends/rows": completed.row_trend,
            "trends/columns": completed.column_trend,
        })  # fmt: skip
        write_array(file, "fitted", found.fitted[grid])
        groups = ["trends"]
        if found.factors is not None:
            groups.insert(0, "factors")
            write_array(file, "factors/rows", found.factors.U)
            write_array(file, "factors/columns", found.factors.V)
            write_array(file, "factors/singular_values", found.factors.singular_values)
        if hidden is not None:
            groups.append("holdout")
            rows, columns = np.divmod(hidden.places, found.observations.shape[1])
            write_array(file, "holdout/rows", rows.astype(np.int64))
            write_array(file, "holdout/columns", columns.astype(np.int64))
            write_array(file, "holdout/values", hidden.values)
        for name in groups:
            describe_element(file[name], "dict", "0.1.0")
