"""Observers of a matrix, and the completed matrix.

Observers agree on units and copies before the first iteration, and sum up what they saw after the
last. Entries hidden from a fit show how well it imputes: against column means, and scikit-learn.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Doubles, check_memory
from vpem.engines.placement import Placement, for_each
from vpem.errors import InputError, warn
from vpem.fits.answer import note_of_one
from vpem.fits.results import SUMMED, Result, reported
from vpem.fits.settings import Dealing
from vpem.network.ledger import Ledger
from vpem.network.schema import Report
from vpem.records import Sentence
from vpem.settings import BINOMIAL
from vpem.steps.fedem_sums import FedRun
from vpem.sums.connect import Network
from vpem.sums.counted import add_vectors
from vpem.sums.private import powers_above
from vpem.sums.quantizer import ITEM
from vpem.terms.lowrank.entries import Hidden, hide, split, split_columns
from vpem.terms.lowrank.model import LowRank, fit_rows
from vpem.terms.lowrank.observations import EntryLaw, Observations, check_law
from vpem.terms.units import Scaling

NEWTON_STEPS = 100
"""Most steps for the factors of rows that were not in the fit."""


@dataclass(frozen=True)
class Seen:
    """What all observers saw together.

    ``times`` (I, J) counts the observers of an entry, ``mean`` (I, J) is their weighted mean, NaN
    where none saw it; ``column_means`` (J,) are those of all entries seen of each column.
    """

    times: NDArray[np.intp]
    mean: Doubles
    column_means: Doubles


@dataclass(kw_only=True)
class Completed(Result):
    """A completed matrix.

    Of the ``observations`` there is only the number of those of other processes' observers;
    ``seen`` is what they saw together, ``law`` that of the entries, which were fitted in units of
    ``scaling``. ``log_likelihood`` of what was seen is in nats: per entry with a matrix of low
    rank, per row with a mixture. ``choice`` says how method, rank and ridge were chosen by held-out
    entries, where they were. ``factors`` are U and V of theta, of a matrix of low rank; on a graph
    those of the mean of the observers' statistics.
    """

    _in_notebooks = "vpem.pictures.public.in_html"

    observations: Observations
    seen: Seen
    law: EntryLaw
    log_likelihood: float
    network: Network
    scaling: Scaling
    options: Report = field(default_factory=dict)
    choice: Report | None = None
    factors: LowRank | None = None

    @property
    @abstractmethod
    def fitted(self) -> Doubles:
        """Expectation of every entry, in the law's mean units, shape (I, J)."""

    def note_of_scale(self) -> Sentence:
        """Return a note if one column with large values decides the imputed values."""
        return ()

    @abstractmethod
    def describe(self) -> Report:
        """Summarize the imputation in values that JSON can hold."""

    @abstractmethod
    def fill(self, rows: Doubles) -> Doubles:
        """Return rows (m, J), which need not have been in the fit, without gaps."""

    def drawn(self) -> Doubles | None:
        """Return the matrices (M, I, J) of multiple imputations, where there are some."""
        return None

    @property
    def imputed(self) -> Doubles:
        """Entries as seen (their mean over observers), and the fitted ones elsewhere, (I, J)."""
        return np.where(np.isnan(self.seen.mean), self.fitted, self.seen.mean)

    @property
    def row_trend(self) -> Doubles:
        """Mean of the fitted matrix along each row, shape (I,)."""
        trend: Doubles = self.fitted.mean(axis=1)
        return trend

    @property
    def column_trend(self) -> Doubles:
        """Mean of the fitted matrix along each column, shape (J,)."""
        trend: Doubles = self.fitted.mean(axis=0)
        return trend

    def _common(self) -> Report:
        """Report what is common to all methods."""
        observations = self.observations
        rows, columns = observations.shape
        return {
            "n_samples": rows,
            "n_features": columns,
            "n_workers": observations.n_observers,
            "worker_names": list(observations.names),
            "n_entries": observations.n_entries,
            "share_seen": float((self.seen.times > 0).mean()),
            "law": self.law.name,
            "variance": None,
            "log_likelihood": self.log_likelihood,
            "column_trend": self.column_trend.tolist(),
            **reported(self, "converged", "n_iter"),
            **self.options,
            **reported(self, "choice", "communication", "seconds"),
        }


@dataclass(kw_only=True)
class Imputation(
    Completed,
    facts="rank {rank}, {observations.shape[0]:row}, {observations.shape[1]:column}, "
    "{converged:converged|not converged} after {n_iter:iteration}",
):
    """A matrix that was completed with one of low rank.

    ``intercepts`` of each observer of this process, by name, are added to theta for its entries, in
    the units of the fit. `fitted` is as of an observer that has 0. None: observers have none.
    """

    factors: LowRank
    rank: int
    ridge: float
    n_copies: float
    run: FedRun
    compress: str | None
    intercepts: dict[str, float] | None = None

    @property
    def n_iter(self) -> int:
        """Iterations."""
        return self.run.n_iter

    @property
    def fitted(self) -> Doubles:
        """Expectation of every entry, in the law's mean units, shape (I, J)."""
        return self.law.mean(self.factors.theta) * self.scaling.scale + self.scaling.shift

    def note_of_scale(self) -> Sentence:
        """Return a note if one column has most of the squares."""
        squares, names = (self.fitted**2).sum(axis=0), self.observations.column_names
        share = squares.max() / squares.sum() if squares.any() and len(squares) > 1 else 0.0
        return note_of_one(names[squares.argmax()], share, "all squares", "columns")

    def fill(self, rows: Doubles) -> Doubles:
        """Fill gaps by factors of the rows, with those of the columns fixed: see `fit_rows`."""
        seen = ~np.isnan(rows)
        if not seen.any(axis=1).all():
            raise InputError(
                f"row {int(np.argmin(seen.any(axis=1)))} has no values, so nothing can be imputed "
                "there; leave it out"
            )
        law, units, V = self.law, self.scaling, self.factors.V
        # What one observer saw, whether or not every column was.
        places = np.flatnonzero(seen)
        names = tuple(f"row {row}" for row in range(len(rows)))
        columns = tuple(f"column {column}" for column in range(rows.shape[1]))
        one = Observations((places,), (rows.ravel()[places],), names, columns, ("the caller",))
        check_law(replace(one, source="the rows"), law)
        scaled = (rows - units.shift) / units.scale
        # The columns' factors may be zero in some direction, where the ridge alone decides.
        ridge = self.ridge * self.n_copies * law.dispersion
        ridge = max(ridge, 1e-12 * float((V**2).sum()), 1e-300)
        steps = 1 if law.name == "gaussian" else NEWTON_STEPS
        U = fit_rows(
            law, np.zeros((len(rows), self.rank)), V, np.where(seen, scaled, 0.0), ridge,
            seen.astype(np.float64), steps,
        )  # fmt: skip
        filled: Doubles = np.where(seen, rows, law.mean(U @ V.T) * units.scale + units.shift)
        return filled

    def describe(self) -> Report:
        """Summarize the imputation in values that JSON can hold.

        Log-likelihoods are in nats per entry seen; ``history`` is the penalized one, of the start
        and after every iteration, as are ``mean_field``, ``epochs`` and ``bytes_up``.
        """
        run, network = self.run, self.network
        return {
            "algorithm": "fedmissem",
            **self._common(),
            "variance": self.law.dispersion if self.law.name == "gaussian" else None,
            **({} if self.law.name != BINOMIAL else {"trials": self.law.trials}),
            **reported(self, "rank", "ridge", "n_copies"),
            **({} if self.intercepts is None else {"intercepts": self.intercepts}),
            "singular_values": self.factors.singular_values.tolist(),
            "row_trend": self.row_trend.tolist(),
            "objective": run.history.objective[-1],
            **reported(run, "in_noise", "projections"),
            "compress": self.compress,
            **network.describe("topology", "edges", "server", *SUMMED, "faults"),
            **run.describe(),
        }


MOST_WORK = 2e9
"""Rows times the third power of columns beyond which scikit-learn's imputer would take minutes:
it regresses every column on all others, ten times."""


def iterative_imputer(seen: Doubles, seed: int) -> Doubles:
    """Impute by scikit-learn's `IterativeImputer`, which sees everything, shape (I, J).

    ``seen`` has the mean over observers of each entry, NaN where none saw it.
    """
    n_rows, n_columns = seen.shape
    if n_columns < 2:
        raise InputError("it regresses each column on the others, but there is only one")
    work = n_rows * n_columns**3
    if work > MOST_WORK:
        raise InputError(
            f"it regresses each of {n_columns} columns on all others, which would take too long "
            f"on {n_rows} rows"
        )
    check_memory(8 * 6 * n_rows * n_columns, "it")
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        filled: Doubles = IterativeImputer(random_state=seed).fit_transform(seen)
    return filled


def score_holdout(
    imputation: Completed, hidden: Hidden, share: float, seed: int, *, compare: bool = True
) -> Report:
    """Compare imputations of hidden entries, made without these, with what had been seen there.

    It returns ``share`` as given, ``n_entries``, ``n_values`` (an entry seen by two observers has
    two); and for ``model``, ``column_means`` and
    ``iterative_imputer`` a dict of losses: ``rmse``, under the Poisson law ``deviance`` too, under
    the Bernoulli law ``log_loss``, and of standardized columns ``standardized_rmse``, in which an
    error counts in standard deviations of its column. Where scikit-learn's imputer was not run:
    ``{"skipped": why}``. ``by_column`` has ``column``, ``n_entries`` and the losses of ``model``
    and ``column_means`` of every column with hidden entries.
    """
    low, high = imputation.law.domain
    columns = hidden.places % imputation.observations.shape[1]
    units = np.broadcast_to(imputation.scaling.scale, imputation.observations.shape[1])[columns]

    def losses(means: Doubles, some: slice | NDArray[np.intp] = slice(None)) -> dict[str, float]:
        clipped = np.clip(means[some], low, high)
        lost = imputation.law.losses(hidden.values[some], clipped)
        if imputation.options.get("scale", "none") != "none":
            away = (clipped - hidden.values[some]) / units[some]
            lost["standardized_rmse"] = float(np.sqrt(np.mean(away**2)))
        return lost

    other: Report = {"skipped": "it was not requested"}
    if compare:
        try:
            other = losses(iterative_imputer(imputation.seen.mean, seed).ravel()[hidden.places])
        except InputError as error:
            other = {"skipped": str(error)}
    fitted, means = imputation.fitted.ravel()[hidden.places], imputation.seen.column_means[columns]
    order = np.argsort(columns, kind="stable")
    numbers, begins = np.unique(columns[order], return_index=True)
    by_column = [
        {
            "column": imputation.observations.column_names[number],
            "n_entries": len(np.unique(hidden.places[some])),
            "model": losses(fitted, some),
            "column_means": losses(means, some),
        }
        for number, some in zip(numbers, np.split(order, begins)[1:], strict=True)
    ]
    return {
        "share": share,
        "n_entries": hidden.n_places,
        "n_values": len(hidden.values),
        "model": losses(fitted),
        "column_means": losses(means),
        "iterative_imputer": other,
        "by_column": by_column,
    }


MOST_BITS = int(np.array(np.finfo(np.float64).max).view(np.int64))
"""Of the largest number, as a whole one."""

Measure = Callable[[NDArray[np.intp], Doubles, Doubles | None], Doubles]
"""Of places, values and weights of entries."""


class Observers:
    """Observers, of whom each process has its own, and the sum that joins them.

    The network is from `vpem.sums.connect.connect_workers`, or `spread_workers`. ``given`` is what
    observers of this process saw; ``observations`` the same in the units of ``scaling``, which
    `standardize` finds for the columns, with weights relative to the largest of all.
    """

    def __init__(self, observations: Observations, network: Network, ledger: Ledger) -> None:
        self.total = network.total.counted_on(ledger)
        self.holders = self.total.holders
        self._n_roots = network.whole.total.n_roots
        self._server = self.total.server if self.total.at_server else None
        local_observers = self.holders.own.tolist()
        # At a server the observers of a process are summed as one; else each is a root, or masked.
        each = self._server is None or self.holders.masks is not None
        self._groups = [[one] for one in local_observers] if each else [local_observers]
        if self.holders.apart:
            observations = observations.seen_by(set(local_observers))
        self.given = self.observations = observations
        self.scaling = Scaling.none(observations.shape[1])
        if observations.weights is None:
            return
        # Weights count relative to the largest of all observers.
        weights = [observations.weights[one] for one in local_observers]
        most = np.array([each.max(initial=0.0) for each in weights]).reshape(
            len(local_observers), 1
        )
        # Positive numbers are ordered as their bits are.
        bits = self.holders.largest(most.view(np.int64), 0, MOST_BITS)
        largest = float(bits.view(np.float64)[0])
        if self._server is None:
            self.total.agree("flooding", ITEM)
        else:
            self._server.begin("setup", 0, 0, ITEM, 1)
        related = tuple(each / largest for each in observations.weights)
        self.observations = replace(observations, weights=related)

    def add_up(self, values: Doubles) -> float:
        """Add up a number of each of the `parts` of all processes."""
        return float(self.holders.add_up(values[:, None])[0])

    @property
    def parts(self) -> list[Observations]:
        """What observers of this process saw: of all together, or where sums are masked of each."""
        return self._parts_of(self.observations)

    def _parts_of(self, whole: Observations) -> list[Observations]:
        if self.holders.masks is None:
            return [whole]
        return [whole.seen_by({one}) for one in self.holders.own.tolist()]

    def _add(
        self,
        size: int,
        measure: Measure,
        sent: tuple[int, int] | None = None,
        columns: int | None = None,
    ) -> Doubles:
        """Sum ``size`` numbers of every observer; for ``columns`` see `Placement.add_up`.

        ``sent`` counts the numbers to and from a server, if they are not these.
        """
        sums = [measure(*self.observations.entries(group)) for group in self._groups]
        if self._server is not None:
            self._server.charge_as("setup")
            up, down = (size, size) if sent is None else sent
            if up:
                self._server.count(ITEM * up)
                self._server.broadcast(ITEM * down)
            values = np.array(sums).reshape(len(sums), size)
            return self.holders.add_up(values, columns=columns)
        sums_of_roots = add_vectors(self.total, np.array(sums).reshape(len(sums), size), "setup")
        if self._n_roots > 1:
            self.total.agree("flooding", ITEM * size)
        shared: Doubles = np.asarray(self.total.roots.bcast(sums_of_roots[0]))
        return shared

    def most(self) -> float | None:
        """Power of two that all observers' values are below, if sums are masked."""
        if self.holders.masks is None:
            return None
        moduli = [np.abs(self.observations.values[one]) for one in self.holders.own.tolist()]
        sizes = np.array([values.max(initial=0.0) for values in moduli]).reshape(len(moduli), 1)
        return float(powers_above(self.total, sizes)[0])

    def count_copies(self, copies: str) -> float:
        """Return the number of copies of the matrix that the observers saw parts of.

        "fewest": the largest number of times that an entry was seen, by a sum over observers of how
        often each saw it (its weight, relative to the largest).
        """
        observations = self.observations
        if copies == "auto" and observations.n_copies is not None:
            return observations.n_copies
        if copies != "fewest":
            return observations.n_observers
        size = observations.shape[0] * observations.shape[1]
        each = self._add(size, lambda at, _, weights: _sums(at, weights, size), columns=1)
        most = float(each.max())
        return round(most) if observations.weights is None else most

    def standardize(self, law: str) -> None:
        """Centre columns and divide them by their standard deviation; `scaling` says by what."""
        if law != "gaussian":
            raise InputError(
                f"only entries of the gaussian law have units to scale, those of the {law} law "
                "have none; take scale none"
            )
        n = self.observations.shape[1]

        def second(at: NDArray[np.intp], values: Doubles, weights: Doubles | None) -> Doubles:
            squares = (values - means[at % n]) ** 2
            return _sums(at % n, squares if weights is None else weights * squares, n)

        # To a server observers send squares about means of their own, in one message.
        counts, sums = self.column_sums((3 * n, 2 * n))
        # Of entries that are hidden for a while a column may have no others.
        counts = np.where(counts > 0, counts, 1.0)
        means = sums / counts
        spread = np.sqrt(self._add(n, second, (0, 0)) / counts)
        spread[spread <= 1e-12 * np.abs(means)] = 1.0
        spread[spread == 0] = 1.0
        self.scale_by(Scaling(means, spread))

    def scale_by(self, scaling: Scaling) -> None:
        """Take entries in these units of their columns."""
        n = self.observations.shape[1]
        parts = zip(self.observations.places, self.observations.values, strict=True)
        scaled = tuple(
            (values - scaling.shift[at % n]) / scaling.scale[at % n] for at, values in parts
        )
        self.scaling = scaling
        self.observations = replace(self.observations, values=scaled)

    def column_sums(self, sent: tuple[int, int] | None = None) -> Doubles:
        """Sum weights of each column's entries, and their weighted values, (2, J)."""
        n = self.observations.shape[1]

        def both(at: NDArray[np.intp], values: Doubles, weights: Doubles | None) -> Doubles:
            heavy = values if weights is None else weights * values
            return np.concatenate([_sums(at % n, weights, n), _sums(at % n, heavy, n)])

        return self._add(2 * n, both, sent).reshape(2, n)

    def sum_of(self, value: Callable[[Doubles], Doubles]) -> float:
        """Sum something of all entries, by their weights."""

        def one(_: NDArray[np.intp], values: Doubles, weights: Doubles | None) -> Doubles:
            terms = value(values)
            return np.array([(terms if weights is None else weights * terms).sum()])

        return float(self._add(1, one)[0])

    def hold_out(self, hidden: NDArray[np.bool_]) -> tuple[Observers, Observers, Observations]:
        """Split entries into those at some places (I J,), which all know, and the rest.

        Nothing is sent; an observer that would have nothing left keeps one. Returned are the rest,
        what is hidden (of which all know the total number only), and the rest with weights as they
        were given.
        """
        sizes = self.observations.counts
        taken = [hidden[places] for places in self.observations.places]
        for mask in taken:
            mask[:1] &= not mask.all()
        left = [~mask for mask in taken]
        rest, heldout = copy(self), copy(self)
        rest.observations = replace(self.observations.chosen(left), sizes=sizes)
        heldout.observations = replace(self.observations.chosen(taken), sizes=sizes)
        return rest, heldout, self.given.chosen(left)

    def errors(self, law: EntryLaw, means: Doubles, columns: Doubles) -> Doubles:
        """Sum weights and deviances of entries by column, from means (I J,) and of columns (J,).

        Columns of which none knows the mean count nothing. Shape (3, J).
        """
        n = self.observations.shape[1]

        def lost(at: NDArray[np.intp], values: Doubles, weights: Doubles | None) -> Doubles:
            known = np.isfinite(columns[at % n])
            at, values = at[known], values[known]
            heavy = np.ones(len(at)) if weights is None else weights[known]
            both = (law.deviance(values, guess) for guess in (means[at], columns[at % n]))
            parts = [heavy, *(heavy * one for one in both)]
            return np.concatenate([_sums(at % n, part, n) for part in parts])

        return self._add(3 * n, lost).reshape(3, n)

    def log_units(self) -> float:
        """Logarithm of the units that entries are scaled by, summed over all entries."""
        logs, n = np.log(self.scaling.scale), len(self.scaling.scale)
        losses = []
        for part in self.parts:
            at, _, weights = part.entries(range(part.n_observers))
            losses.append((logs[at % n] if weights is None else weights * logs[at % n]).sum())
        return self.add_up(np.array(losses))

    def seen(self) -> Seen:
        """Sum up what all observers saw, for a result: all know it by the mean statistic.

        Where processes belong to different parties, each keeps its values to itself.
        """
        observations, shared = self.given, self.holders.engine.open
        columns = self._summed(lambda some: some.column_sums())
        weight, total = observations.sums()
        if shared:
            weight, total = self._summed(lambda some: np.stack(some.sums()))
        mean = np.full(observations.shape, np.nan)
        np.divide(total, weight, out=mean, where=weight > 0)
        times = weight
        if observations.weights is not None or not shared:
            times = self._summed(lambda some: some.times_seen)
        return Seen(np.rint(times).astype(np.intp), mean, columns[1] / columns[0])

    def _summed(self, find: Callable[[Observations], AnyArray]) -> AnyArray:
        """Sum over all observers what ``find`` returns of some of them."""
        each = [find(part) for part in self._parts_of(self.given)]
        shape = (each[0] if each else find(self.given)).shape
        flat = np.array(each).reshape(len(each), int(np.prod(shape)))
        return self.holders.add_up(flat, columns=shape[-1]).reshape(shape)


def _sums(at: NDArray[np.intp], values: Doubles | None, size: int) -> Doubles:
    """Sums of values by where they are, or how many there are."""
    return np.bincount(at, values, size).astype(np.float64, copy=False)


def check_laws(observations: Observations, law: EntryLaw, holders: Placement) -> None:
    """Raise InputError, in every process the same, where a value cannot be of the law."""
    for_each(
        holders, range(observations.n_observers), lambda one: check_law(observations, law, [one])
    )


def deal(observations: Observations, dealing: Dealing, usual: str, seed: int) -> Observations:
    """Deal what the one observer saw out to several, if anybody says so; ``usual`` says how."""
    count = dealing.agents if dealing.workers is None else dealing.workers
    if dealing.partition is not None:
        from vpem.files.networks import read_partition

        n_columns, names = observations.shape[1], observations.column_names
        return split_columns(observations, read_partition(dealing.partition, n_columns, names))
    if count is None:
        return observations
    by = "features" if dealing.agents else dealing.split or usual
    return split(observations, count, by, np.random.default_rng([seed, 1]))


def hide_entries(
    observations: Observations, share: float, rng: np.random.Generator, holders: Placement
) -> tuple[Observations, Hidden]:
    """Hide entries as `vpem.terms.lowrank.entries.hide` does, of observers in several processes.

    All learn which entries were seen by whom, and the first process what was hidden. Share and
    generator are the same in every process.
    """
    local_places = {one: observations.places[one] for one in holders.own.tolist()}
    every: Any = holders.allgather(local_places)
    rest, hidden = hide(
        observations, share, rng, tuple(every[one] for one in range(observations.n_observers))
    )
    parts = holders.engine.gather([hidden.places, hidden.values])
    if parts is not None:
        places, values = (np.concatenate([part[i] for part in parts]) for i in range(2))
        hidden = replace(hidden, places=places, values=values)
    if hidden.n_places < round(share * hidden.n_seen):
        warn(
            f"only {hidden.n_places} of {hidden.n_seen} entries are held out, not {share:g} of "
            "them: every row, column and observer keeps one",
            level=2,
        )
    return rest, hidden
