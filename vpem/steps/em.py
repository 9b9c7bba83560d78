"""Expectation-maximization with one distributed sum.

This is the whole algorithm. *What* each hub adds to the sum is a `Terms`, *how* the sum is taken is
a `Sum`; neither knows of the other, and this loop knows of both only what the protocols say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vpem.errors import NumericalError, PartitionedError, Setting
from vpem.steps.saver import NoSaver, Saver
from vpem.steps.states import restore_run, run_state
from vpem.sums.sum import Sum
from vpem.terms.mixture import Mixture

__all__ = ["Progress", "Recovery", "Run", "Terms", "expect", "fit"]

LEAST_WEIGHT = 0.5
"""Effective samples (sum of responsibilities) below which a component has collapsed.

Where rows weigh less than 1 on average it shrinks with them.
"""

MENDED_BYTES = 12
"""Of the message that tells which component was placed anew, and at which row."""

MOST_PARTITIONED = 20
"""Iterations in a row in which the network falls apart before the run is given up."""

MOST_RECOVERIES = 3
"""Times one component is placed anew before it is given up with mixing weight zero."""


class Terms(Protocol):
    """What is summed."""

    n_samples: int
    total_weight: float
    log_constant: float
    itemsize: int
    """Bytes of a number that is sent."""
    resolution: float
    """Relative change of a log-likelihood that rounding alone can make."""

    def chunks(self, n_values: int) -> Iterator[slice]:
        """Runs of rows for which ``n_values`` numbers a row fit in the working memory."""

    def prepare(self, mixture: Mixture) -> Any:
        """Factor the parameters for an E-step."""

    def local(self, factors: Any, rows: slice) -> NDArray[Any]:
        """Terms of each hub for these rows, shape (B, m, K)."""

    def responsibilities(
        self, mixture: Mixture, sums: NDArray[Any], rows: slice
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Responsibilities (R, m, K) and log-likelihood (R,) of these rows from the sums."""

    def sweep(
        self, mixture: Mixture, factors: Any, mix: NDArray[np.float64], statistics: Any | None
    ) -> NDArray[np.float64]:
        """Do it all in one pass for the sum ``mix @ terms``: log-likelihood (R,)."""

    def empty(self, centres: NDArray[np.float64], n_roots: int) -> Any:
        """Statistics of no rows."""

    def summarize(self, statistics: Any, responsibilities: NDArray[Any], rows: slice) -> None:
        """Add these rows to the statistics."""

    def update(self, statistics: Any) -> Mixture:
        """Parameters from the total."""

    def keep(self, mixture: Mixture, before: Mixture, hubs: NDArray[np.bool_]) -> Mixture:
        """Return the mixture with the parameters that these hubs (B,) had before."""

    def at_rows(self, indices: NDArray[np.intp]) -> NDArray[np.float64]:
        """Rows of the data as centres."""

    def reseeded(
        self, mixture: Mixture, component: int, centre: NDArray[np.float64], weight: float
    ) -> Mixture:
        """Place one component anew."""


@dataclass(frozen=True)
class Recovery:
    """A component that collapsed and was placed anew.

    Attributes
    ----------
    iteration : int
        Counted from 1; 0 is the start.
    component, hub : int
        Which component, and the hub whose root found it.
    reason : str
        "weight" or "covariance".
    row : int or None
        Row its mean was placed at; None when the component was given up with mixing weight zero.
    """

    iteration: int
    component: int
    hub: int
    reason: str
    row: int | None


@dataclass(frozen=True)
class Progress:
    """What a callback is told after every iteration: log-likelihood per sample, mean over roots."""

    iteration: int
    log_likelihood: float
    change: float | None


@dataclass
class Run:
    """One run of EM.

    Attributes
    ----------
    mixture : Mixture
        Parameters after the last M-step.
    history : list of ndarray of shape (R,)
        Total log-likelihood as each root finds it in the E-step of each iteration; the first entry
        belongs to the start. Of a silent root it is nan.
    log_likelihood : ndarray of shape (R,)
        Total log-likelihood of `mixture`, as each root finds it.
    converged : bool
        Whether all roots proposed to stop.
    recoveries : list of Recovery
        Components that collapsed.
    bytes_sent : list of int
        Payload bytes sent when each entry of the history was known, since the fit began.
    partitions : list of (int, str)
        Iterations in which the network fell apart, and how; parameters stayed as they were.
    """

    mixture: Mixture
    history: list[NDArray[np.float64]] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)
    partitions: list[tuple[int, str]] = field(default_factory=list)
    log_likelihood: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    converged: bool = False
    recoveries: list[Recovery] = field(default_factory=list)

    def recall(self, recoveries: Sequence[Sequence[Any]]) -> None:
        """Take the recoveries of a saved run, each as its fields, for those of this one."""
        self.recoveries[:] = [Recovery(*one) for one in recoveries]


def expect(
    terms: Terms,
    total: Sum,
    mixture: Mixture,
    factors: Any,
    statistics: Any | None = None,
    kind: str = "estep",
) -> NDArray[np.float64]:
    """Run one E-step over all rows: total log-likelihood (R,) as each root finds it.

    A sum that is a fixed matrix is taken inside one compiled sweep; any other is applied chunk by
    chunk between the two halves of the same arithmetic.

    Parameters
    ----------
    terms, total
        What is summed and how.
    mixture : Mixture
        Current parameters.
    factors
        ``terms.prepare(mixture)``.
    statistics : optional
        Where the statistics of the M-step are added.
    kind : str
        What the sum is for; see `Sum.begin`.
    """
    total.begin(kind, terms.n_samples, mixture.n_components, terms.itemsize)
    if total.mix is not None:
        return total.report(
            terms.sweep(mixture, factors, total.mix, statistics) + terms.log_constant
        )
    found = np.zeros(total.n_roots)
    for rows, sums in summed(terms, total, mixture.n_components, partial(terms.local, factors)):
        responsibilities, log_likelihoods = terms.responsibilities(mixture, sums, rows)
        found += log_likelihoods
        if statistics is not None:
            terms.summarize(statistics, responsibilities, rows)
    return total.report(found + terms.log_constant)


def summed(
    terms: Terms, total: Sum, width: int, local: Callable[[slice], NDArray[Any]]
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Take a sum that has begun chunk by chunk, or of all rows at once where it must be.

    Parameters
    ----------
    terms, total
        Whose rows, and how they are summed.
    width : int
        Numbers a row that each hub has.
    local : callable
        These numbers for some rows, (B, m, width).

    Yields
    ------
    rows : slice
    sums : ndarray of shape (R, m, width)
    """
    chunks = terms.chunks(total.values_per_item * width)
    if not total.whole:
        yield from total.flow(chunks, local)
        return
    parts = [(rows, local(rows)) for rows in chunks]
    every = np.concatenate([part for _, part in parts], axis=1)
    sums = total.reduce(every, slice(0, terms.n_samples))
    for rows, _ in parts:
        yield rows, np.ascontiguousarray(sums[:, rows])


def fit(
    terms: Terms,
    total: Sum,
    start: Mixture,
    *,
    tol: float,
    max_iter: int,
    draw_row: Callable[[], int],
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
) -> Run:
    """Fit a mixture by EM.

    Each root watches its own log-likelihood per sample and proposes to stop when it changed by less
    than ``tol``, or than the rounding of the terms; the network stops when all roots propose it at
    the same iteration. With ``tol = 0`` none ever does.

    Parameters
    ----------
    terms : Terms
        What each hub adds to the sum.
    total : Sum
        How the sum is taken.
    start : Mixture
        Parameters to start from, or to go on from where there is a saved state.
    tol : float
        In nats per sample.
    max_iter : int
        Most iterations.
    draw_row : callable
        Next row of the stream shared by all agents, for placing collapsed components.
    callback : callable, optional
        Told of every iteration.
    saver : Saver, optional
        Is offered the state after every iteration.

    Returns
    -------
    Run

    Raises
    ------
    NumericalError
        If a log-likelihood is not finite, or no component is left.
    """
    run = Run(start)
    repairs = _Repairs(terms, total, draw_row, run.recoveries)
    saver = saver or NoSaver()
    done = 0
    if saver.saved is None:
        run.mixture, factors = begin_soundly(repairs, total, start)
    else:
        done = restore_run(saver, run, total, repairs, max_iter)
        factors = terms.prepare(start)
    for iteration in range(done + 1, max_iter + 1):
        if run.converged:
            break
        state = partial(run_state, run, total, repairs, iteration)
        statistics = terms.empty(run.mixture.means, total.n_roots)
        try:
            found = expect(terms, total, run.mixture, factors, statistics)
        except PartitionedError as error:
            _note_partition(run, iteration, error)
            saver.offer(state, last=iteration == max_iter)
            continue
        silent = total.silent
        counts = statistics.counts
        updated = terms.update(statistics)
        if silent is not None:
            # A silent root knows nothing new: it keeps what it had.
            found = np.where(silent, np.nan, found)
            counts = np.where(silent[:, None], np.inf, counts)
            updated = terms.keep(updated, run.mixture, silent)
        _check_finite(found if silent is None else found[~silent], iteration)
        small = _note_iteration(run, terms, total, found, tol, callback)
        run.mixture, factors, mended = repairs.mend(updated, counts, iteration)
        if mended:
            total.agree("flooding", MENDED_BYTES)
        run.converged = small and not mended and silent is None
        saver.offer(state, last=run.converged or iteration == max_iter)
    _check_heard(run)
    run.log_likelihood = expect(terms, total, run.mixture, factors, kind="check")
    _check_finite(run.log_likelihood, len(run.history))
    return run


def mean_over_roots(values: NDArray[np.float64]) -> float:
    """Mean of what the roots found, of those that took part; nan where none did."""
    heard = values[~np.isnan(values)]
    return float(heard.mean()) if len(heard) else float("nan")


def begin_soundly(repairs: _Repairs, total: Sum, start: Mixture) -> tuple[Mixture, Any]:
    """Return the start with singular components placed anew, and its factors."""
    enough = np.full((1, start.n_components), np.inf)
    mixture, factors, mended = repairs.mend(start, enough, 0)
    if mended:
        total.agree("flooding", MENDED_BYTES)
    return mixture, factors


def _note_iteration(
    run: Run,
    terms: Any,
    total: Sum,
    found: NDArray[np.float64],
    tol: float,
    callback: Callable[[Progress], None] | None,
) -> bool:
    """Keep what the roots found, (R,), in the record; whether it changed by less than ``tol``."""
    change = (found - run.history[-1]) / terms.total_weight if run.history else None
    run.history.append(found)
    run.bytes_sent.append(total.bytes_sent)
    if tol > 0:
        total.agree("stopping")
    if callback is not None:
        told = None if change is None else mean_over_roots(change)
        callback(Progress(len(run.history), mean_over_roots(found) / terms.total_weight, told))
    if change is None:
        return False
    rounding = terms.resolution * np.abs(found) / terms.total_weight if tol > 0 else 0.0
    return bool((np.abs(change) < np.maximum(tol, rounding)).all())


def _check_heard(run: Run) -> None:
    if not run.history:
        raise NumericalError(
            f"the network fell apart in every iteration: {run.partitions[-1][1]}; try more rounds, "
            "or links and agents that fail less often"
        )


def _note_partition(run: Run, iteration: int, error: PartitionedError) -> None:
    """Keep it in the record, or give the run up where it goes on like this."""
    run.partitions.append((iteration, str(error)))
    recent = [number for number, _ in run.partitions[-MOST_PARTITIONED:]]
    if recent == list(range(iteration - MOST_PARTITIONED + 1, iteration + 1)):
        raise NumericalError(
            f"the network fell apart in {MOST_PARTITIONED} iterations in a row, last at iteration "
            f"{iteration}: {error}; try more rounds, or links and agents that fail less often"
        ) from error


def _check_finite(found: NDArray[np.float64], iteration: int) -> None:
    if not np.isfinite(found).all():
        root = int(np.flatnonzero(~np.isfinite(found))[0])
        raise NumericalError(
            f"the log-likelihood of root {root} is {found[root]} at iteration {iteration}: some "
            "rows lie too far from every component; try scaled features or a larger ",
            Setting("reg_covar"),
        )


class _Repairs:
    """Finds components that collapsed and places them anew at a row drawn by all agents alike."""

    def __init__(
        self, terms: Terms, total: Sum, draw_row: Callable[[], int], recoveries: list[Recovery]
    ) -> None:
        self.terms = terms
        self.total = total
        self.draw_row = draw_row
        self.recoveries = recoveries
        self.least = LEAST_WEIGHT * min(1.0, terms.total_weight / terms.n_samples)
        self.counts: dict[int, int] = {}
        self.given_up: dict[int, NDArray[np.float64]] = {}

    def mend(
        self, mixture: Mixture, counts: NDArray[np.float64], iteration: int
    ) -> tuple[Mixture, Any, bool]:
        """Return the mixture with collapsed components placed anew, and its factors."""
        mixtures, factors, mended = self.mend_all([self.terms], [mixture], [counts], iteration)
        return mixtures[0], factors[0], mended

    def mend_all(
        self,
        terms: Sequence[Terms],
        mixtures: Sequence[Mixture],
        counts: Sequence[NDArray[np.float64]],
        iteration: int,
    ) -> tuple[list[Mixture], list[Any], bool]:
        """Mend the mixtures of several roots alike: what one finds collapsed, all place anew."""
        mixtures = list(mixtures)
        for component, centre in self.given_up.items():
            mixtures = self._placed(terms, mixtures, component, centre, 0.0)
        factors = [own.prepare(mixture) for own, mixture in zip(terms, mixtures, strict=True)]
        events: list[tuple[int, int, str]] = []
        for made, count in zip(factors, counts, strict=True):
            events += self._collapsed(made.failed, count)
        found: dict[int, tuple[int, str]] = {}
        for component, hub, reason in sorted(self.total.pool(events)):
            if component not in found or (reason, hub) < found[component][::-1]:
                found[component] = (hub, reason)
        if not found:
            return mixtures, factors, False
        for component, (hub, reason) in found.items():
            if mixtures[0].is_tied and reason == "covariance":
                raise NumericalError(
                    f"the tied covariance of hub {hub} is not positive definite at iteration "
                    f"{iteration}; try a larger ",
                    Setting("reg_covar"),
                    ", or fewer components",
                )
            self.counts[component] = self.counts.get(component, 0) + 1
            row = self.draw_row()
            centre = self.terms.at_rows(np.array([row], dtype=np.intp))[0]
            give_up = self.counts[component] > MOST_RECOVERIES
            if give_up:
                self.given_up[component] = centre
                if len(self.given_up) == mixtures[0].n_components:
                    raise NumericalError(
                        f"every component has collapsed by iteration {iteration}; try fewer "
                        "components or a larger ",
                        Setting("reg_covar"),
                    )
            weight = 0.0 if give_up else 1.0 / mixtures[0].n_components
            mixtures = self._placed(terms, mixtures, component, centre, weight)
            self.recoveries.append(
                Recovery(iteration, component, hub, reason, None if give_up else row)
            )
        factors = [own.prepare(mixture) for own, mixture in zip(terms, mixtures, strict=True)]
        still = [
            (int(copy), int(hub)) for made in factors for copy, hub in np.argwhere(made.failed)
        ]
        still = sorted(self.total.pool(still))
        if still:
            raise NumericalError(
                f"the sample covariance of hub {still[0][1]} is not positive definite: its "
                "features are constant or linearly dependent; try a larger ",
                Setting("reg_covar"),
                ", or scaled features",
            )
        return mixtures, factors, True

    @staticmethod
    def _placed(
        terms: Sequence[Terms],
        mixtures: Sequence[Mixture],
        component: int,
        centre: NDArray[np.float64],
        weight: float,
    ) -> list[Mixture]:
        """Place one component of every mixture anew."""
        return [
            own.reseeded(mixture, component, centre, weight)
            for own, mixture in zip(terms, mixtures, strict=True)
        ]

    def _collapsed(
        self, failed: NDArray[np.uint8], counts: NDArray[np.float64]
    ) -> list[tuple[int, int, str]]:
        """Components, each with a hub that found it collapsed, and the reason."""
        events = [(int(copy), int(hub), "covariance") for copy, hub in np.argwhere(failed)]
        for root, component in np.argwhere(counts < self.least):
            if int(component) not in self.given_up:
                events.append((int(component), int(root), "weight"))
        return events
