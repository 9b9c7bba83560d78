"""Imputation by a Gaussian mixture: what nobody saw of a row, by what was seen of it.

The mixture is fitted to what was seen, over columns (`vpem.fits.vpem`) or rows (`vpem.fits.rows`),
and who holds a gap fills it by the responsibilities of its row and its own columns of it. Draws
are proper (Rubin 1987): each is of a fit to rows that weigh as a Bayesian bootstrap has it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_memory
from vpem.engines.engine import about
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting, VpemWarning, shorten
from vpem.fits.block_parts import join_parts
from vpem.fits.completed import Completed, Matrix
from vpem.fits.labels import responsibilities_of_workers
from vpem.fits.observers import Observers
from vpem.fits.parts import gathered, outline, own_columns_of_hubs
from vpem.fits.posterior_parts import sent_of_gaussian
from vpem.fits.results import SUMMED, Fit, RowFit
from vpem.fits.rows import fit_em
from vpem.fits.selection.lists import parse_numbers
from vpem.fits.settings import ImputeSettings
from vpem.fits.spread import fit_spread, own_columns
from vpem.network.blocks import Blocks
from vpem.network.holdings import Partition, Workers
from vpem.network.ledger import Ledger
from vpem.network.schema import Report
from vpem.settings import FitSettings
from vpem.sums.connect import Network
from vpem.sums.spread import spread
from vpem.terms.conditional import fill_gaps
from vpem.terms.lowrank.laws import Gaussian
from vpem.terms.lowrank.observations import Observations
from vpem.terms.mixture import Mixture

__all__ = ["MixtureImputation", "holdings_of", "impute_by_mixture"]

WEIGHTS, VALUES = 3, 4
"""Set the streams of draws apart: of rows' weights, and of components and values."""


@dataclass(kw_only=True)
class MixtureImputation(
    Completed,
    facts="{fit.mixture.n_components:component}, {observations.shape[0]:row}, "
    "{observations.shape[1]:column}, {converged:converged|not converged} after {n_iter:iteration}",
):
    """A matrix with nothing missing, as a Gaussian mixture fills it, and how it was found.

    Attributes
    ----------
    fit : Fit
        The mixture; where processes are others' only what all know of it.
    held : Partition or Workers
        Who holds which columns, or rows.
    filled : ndarray of shape (I, J)
        The completed matrix; where processes are others' NaN but for what this one holds.
    means : ndarray of shape (J,)
        Of its columns.
    gaps : ndarray of shape (n,)
        Which entries were imputed here, ``row * J + column``.
    draws : ndarray of shape (M, n)
        What each of the imputations that were asked for has there.
    drawing : dict
        Iterations and bytes of all draws.
    ran_on : Network
        What this process had of the network.
    observations, seen, law, log_likelihood, network, scaling, options
        See `Completed`.
    """

    fit: Fit
    held: Partition | Workers
    filled: Matrix
    means: Matrix
    gaps: NDArray[np.intp]
    draws: Matrix
    drawing: Report = field(default_factory=dict)
    ran_on: Network

    @property
    def n_iter(self) -> int:
        """Iterations."""
        return self.fit.n_iter

    @property
    def fitted(self) -> Matrix:
        """Expectation of every entry given all that was seen, shape (I, J)."""
        return self.filled

    @property
    def column_trend(self) -> Matrix:
        """Mean of the completed matrix along each column, shape (J,)."""
        return self.means

    def completed(self, draw: int) -> Matrix:
        """Return the matrix of one of the draws, from 0, shape (I, J)."""
        found = self.filled.copy()
        found.ravel()[self.gaps] = self.draws[draw]
        return found

    def describe(self) -> Report:
        """Summarize the imputation in values that JSON can hold.

        Returns
        -------
        dict
            The log-likelihood is in nats a row, as is its ``history``.
        """
        fit = self.fit
        return {
            "algorithm": "mixture-imputation",
            **self._common(),
            "split": "features" if isinstance(self.held, Partition) else "rows",
            "n_components": fit.mixture.n_components,
            "covariance_type": fit.mixture.covariance_type,
            "n_parameters": fit.mixture.n_parameters,
            "mixing_weights": fit.mixture.assembled_weights.tolist(),
            "bic": fit.bic,
            "draws": self.drawing or None,
            **self.network.describe("topology", "edges", "server", *SUMMED, "faults"),
            "history": (fit.history.mean(axis=1) / fit.total_weight).tolist(),
            "recoveries": len(fit.recoveries),
        }


def impute_by_mixture(
    observations: Observations,
    how: ImputeSettings,
    network: Network,
    callback: Callable[[Any], None] | None = None,
    saver: Any = None,
) -> MixtureImputation:
    """Impute by a mixture; parameters and result are those of `vpem.fit_imputation`."""
    began = time.perf_counter()
    work = _Work(observations, how, network)
    several = isinstance(how.n_components, str)
    counts = parse_numbers("n_components", str(how.n_components), least=1)
    if several and saver is not None:
        raise InputError(
            Setting("n_components", how.n_components), " are several fits, but a checkpoint is of "
            "one; give one number, or no checkpoint",
        )  # fmt: skip
    fits = [work.fit(n_components=k, callback=callback, saver=saver) for k in counts]
    scores = [work.whole(fit).bic for fit in fits]
    if work.holders.apart:
        scores = work.holders.bcast(scores)
    fit = fits[int(np.argmin(scores))]
    filled, whole = work.filled(fit), work.whole(fit)
    gaps = np.flatnonzero(np.isnan(work.seen.mean) & ~np.isnan(filled))
    draws, drawing = work.draws(fit, how.draws, gaps) if how.draws else (np.empty((0, 0)), {})
    return MixtureImputation(
        observations=work.given,
        seen=work.seen,
        law=Gaussian(1.0),
        log_likelihood=fit.log_likelihood,
        network=whole.network.whole,
        scaling=whole.mixture.scaling,
        options={"scale": how.scale, "tol": how.tol, "max_iter": work.how.max_iter},
        fit=whole,
        held=work.held,
        filled=filled,
        means=work.means(filled),
        gaps=gaps,
        draws=draws,
        drawing=drawing,
        ran_on=work.network,
        converged=fit.converged,
        communication=fit.communication,
        seconds=time.perf_counter() - began,
    )


class _Work:
    """What this process has of the matrix, and what is fitted to it and filled in."""

    def __init__(self, given: Observations, how: ImputeSettings, network: Network) -> None:
        placed = Placement(network.agents.engine, network.agents.ranks)
        observers = Observers(given, network, Ledger(network.graph))
        self.held = holdings_of(given, placed)
        self.over_rows = isinstance(self.held, Workers)
        if isinstance(self.held, Partition):
            network = _over_columns(network, self.held)
        self.network, self.holders = network, network.agents
        self.own, self.alone = self.holders.own.tolist(), not self.holders.apart
        self.given, self.seen = observers.given, observers.seen()
        self.mean, self.weights = self.given.mean, _row_weights(self.given, placed)
        self.seed = how.seed
        self.how = how.into(
            FitSettings, n_components=1, missing="marginalize", step_size=None,
            max_iter=1000 if how.max_iter is None else how.max_iter,
        )  # fmt: skip
        check_memory(8 * 6 * self.mean.size, f"imputing a matrix of {self.mean.shape}")

    def fit(self, weights: NDArray[np.float64] | None = None, **changes: Any) -> Fit:
        """Fit the mixture to rows that weigh so much, by default as they were given."""
        names, weights = self.given.column_names, self.weights if weights is None else weights
        if isinstance(self.held, Workers):
            rows = slice(None) if self.alone else self.rows
            return fit_em(
                self.mean[rows], self.held, self.network, self.how,
                sample_weight=None if weights is None else weights[rows], feature_names=names,
                **changes,
            )  # fmt: skip
        columns = own_columns(self.network)
        if self.alone:
            columns = np.arange(len(names))
        return fit_spread(
            self.mean[:, columns] if len(columns) else None, self.network, self.how,
            sample_weight=weights, feature_names=[names[j] for j in columns], shards=True,
            labels=self.own, **changes,
        )  # fmt: skip

    @property
    def rows(self) -> NDArray[np.intp]:
        """Rows of this process's workers, worker by worker."""
        assert isinstance(self.held, Workers)
        own = (self.held.rows[worker] for worker in self.own)
        return np.concatenate([np.empty(0, dtype=np.intp), *own])

    def whole(self, fit: Fit) -> Fit:
        """Return a fit with all parameters in the first process, unless they are others' own."""
        if self.over_rows or self.alone:
            return fit
        return gathered(fit) if self.holders.engine.open else outline(fit)

    def filled(self, fit: Fit, number: int | None = None) -> Matrix:
        """Fill the gaps by a fit, in expectation or, of a number, by one draw; (I, J).

        Everybody draws the same components for all rows, and noise for what it holds.
        """
        shape, values = self.mean.shape, self.mean.copy()
        uniform = noise = None
        if number is not None:
            rng = np.random.default_rng([self.seed, VALUES, number])
            uniform, noise = rng.random((shape[0], 1)), rng.standard_normal(shape)

        def of(shares: Matrix, rows: NDArray[np.intp] | slice) -> Matrix:
            if uniform is None:
                return shares
            reached = np.cumsum(shares, axis=1)
            label = (reached < uniform[rows] * reached[:, -1:]).sum(axis=1)
            return np.asarray(label[:, None] == np.arange(shares.shape[1]), dtype=np.float64)

        def noise_of(*where: Any) -> Matrix | None:
            return None if noise is None else noise[where]

        if isinstance(self.held, Workers) and isinstance(fit, RowFit):
            X = self.mean if self.alone else self.mean[self.rows]
            every = responsibilities_of_workers(
                X, self.held, fit.mixtures, self.holders, "marginalize"
            )
            for place, (worker, shares) in enumerate(every.items()):
                rows = self.held.rows[worker]
                at = place if len(fit.mixtures) > 1 else 0
                parts = [of(shares, rows)]
                values[rows] = fill_gaps(fit.mixtures[at], values[rows], parts, noise_of(rows))
        else:
            apart = self.network.part_of is not None
            columns = own_columns_of_hubs(self.network) if apart else np.arange(shape[1])
            hubs = [self.network.whole.hubs[b] for b in self.network.total.holders.own]
            parts = [of(fit.responsibilities[hub.root], slice(None)) for hub in hubs]
            if hubs:
                own = fill_gaps(
                    fit.mixture, values[:, columns], parts, noise_of(slice(None), columns)
                )
                values[:, columns] = own
        return self._together(values)

    def _together(self, values: Matrix) -> Matrix:
        """Bring what all processes have filled to each, unless they are others'."""
        if self.alone or not self.holders.engine.open:
            return values
        return self._added(values, values.size, lambda part: part)

    def means(self, filled: Matrix) -> Matrix:
        """Return the means of all columns of the completed matrix, which all learn, (J,)."""
        if self.alone or self.holders.engine.open:
            return np.asarray(filled.mean(axis=0))
        return self._added(filled, filled.shape[1], lambda part: part.mean(axis=0)).ravel()

    def _added(self, values: Matrix, size: int, find: Callable[[Matrix], Matrix]) -> Matrix:
        """Add up what is found of all holders' parts, which are NaN in processes of others."""
        parts = [np.nan_to_num(values)]
        if self.holders.masks is not None:
            parts = [np.zeros_like(values) for _ in self.own]
            for part, one in zip(parts, self.own, strict=True):
                mine = self.held.parts[one]
                place = mine if self.over_rows else (slice(None), mine)
                part[place] = np.nan_to_num(values[place])
        each = np.array([find(part) for part in parts]).reshape(len(parts), size)
        with about(self.holders.engine, "result"):
            total = self.holders.add_up(each, columns=values.shape[1])
        return total.reshape(-1, values.shape[1])

    def draws(self, fit: Fit, count: int, gaps: NDArray[np.intp]) -> tuple[Matrix, Report]:
        """Draw so many imputations: what each has at the gaps, and what it took."""
        check_memory(8 * count * len(gaps), f"{count} draws of {len(gaps)} entries")
        found, start, unfinished = np.empty((count, len(gaps))), self._start(fit), 0
        told: Report = {"n_draws": count, "n_iter": 0, "bytes": 0}
        for number in range(count):
            rng = np.random.default_rng([self.seed, WEIGHTS, number])
            weights = rng.exponential(size=len(self.mean))
            weights *= 1.0 if self.weights is None else self.weights
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", VpemWarning)
                drawn = self.fit(
                    weights, n_components=fit.mixture.n_components, init=start, n_init=1
                )
            found[number] = self.filled(drawn, number).ravel()[gaps]
            told["n_iter"] += drawn.n_iter
            told["bytes"] += drawn.communication["bytes"]
            unfinished += not drawn.converged
        if unfinished:
            warnings.warn(
                VpemWarning(
                    f"{unfinished} of {count} draws have not converged; try a larger ",
                    Setting("max_iter"),
                ),
                stacklevel=4,
            )
        return found, told

    def _start(self, fit: Fit) -> Mixture:
        """Return the mixture of a fit as a start: over columns this process's part counts alone."""
        mixture = fit.mixture
        if self.network.part_of is None:
            return mixture
        if self.over_rows:
            return mixture.having(self.holders.bcast(mixture.arrays()))
        blocks, kind = self.network.whole.blocks, mixture.covariance_type
        blank = Mixture.blank(blocks, kind, mixture.n_components)
        weights = mixture.assembled_weights[None] if len(mixture.weights) else blank.weights
        parts = [sent_of_gaussian(blank, np.arange(blocks.n_blocks))]
        parts += [sent_of_gaussian(mixture, self.network.total.holders.own)]
        for part in parts:
            part["weights"] = weights
        return replace(join_parts(blocks, kind, parts), weights=weights)


def holdings_of(found: Observations, holders: Placement) -> Partition | Workers:
    """Return who holds which columns or, where several have one column, which rows.

    All learn it. Rows of which nobody has anything are the first one's.

    Raises
    ------
    InputError
        If several have entries of one row and of one column.
    """
    width = found.shape[1]
    clash = ""
    for kind, count, names in (
        ("column", width, found.column_names),
        ("row", found.shape[0], found.row_names),
    ):
        own = {}
        for one in holders.own.tolist():
            places = found.places[one]
            places = places % width if kind == "column" else places // width
            own[one] = np.unique(places).tolist()
        with about(holders.engine, "setup"):
            every = holders.allgather(own)
        owner = np.full(count, -1)
        shared: set[int] = set()
        for one, places in every.items():
            at = np.array(places, dtype=np.intp)
            shared |= set(at[owner[at] >= 0].tolist())
            owner[at] = one
        if not shared:
            owner[owner < 0] = 0
            parts = tuple(np.flatnonzero(owner == one) for one in range(found.n_observers))
            return (Partition if kind == "column" else Workers)(parts, found.names)
        some = shorten(repr(names[place]) for place in sorted(shared)[:3])
        clash += f"{' and ' if clash else ''}{kind} {some}"
    raise InputError(
        f"{found.source}: a mixture is fitted where each observer has whole columns or whole rows, "
        f"but several have {clash}; deal out rows or columns, or take ",
        Setting("method", "lowrank"),
    )


def _over_columns(network: Network, held: Partition) -> Network:
    """Return a network of observers as one of agents that hold these columns."""
    whole = network.whole
    blocks = Blocks.from_hubs(whole.hubs, held.features)
    agents = replace(whole, blocks=blocks, features=tuple(held.features))
    return spread(agents, network.agents.engine)


def _row_weights(given: Observations, holders: Placement) -> NDArray[np.float64] | None:
    """Return what rows weigh, (I,), or raise InputError where entries of one row differ."""
    if given.weights is None:
        return None
    places, _, weights = given.entries(range(given.n_observers))
    rows = places // given.shape[1]
    assert weights is not None
    ends = np.full((2, given.shape[0]), -np.inf)
    np.maximum.at(ends[0], rows, weights)
    np.maximum.at(ends[1], rows, -weights)
    ends = holders.allreduce(ends, "max")
    unlike = np.flatnonzero(ends[0] + ends[1] > 0)
    if len(unlike):
        raise InputError(
            f"{given.source}: a mixture weighs rows, but entries of row "
            f"{given.row_names[unlike[0]]!r} weigh from {-ends[1][unlike[0]]:g} to "
            f"{ends[0][unlike[0]]:g}; give all of a row one weight, or take ",
            Setting("method", "lowrank"),
        )
    return np.where(np.isfinite(ends[0]), ends[0], 1.0)
