"""Statistics of rows that workers hold: what is summed where data are split by rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vpem.terms.covariances import Factors
from vpem.terms.features import FeatureTerms
from vpem.terms.matrix import Rows
from vpem.terms.mixture import Mixture
from vpem.terms.reach import MOST_NATS, Reach
from vpem.terms.statistics import MissingStatistics, Statistics


class Message:
    """How statistics about ``shifts`` (K, d), known to all, and a log-likelihood are a vector."""

    def __init__(self, terms: FeatureTerms, shifts: NDArray[np.float64]) -> None:
        self.terms = terms
        one = terms.empty(shifts, 1)
        self.shifts = one.shifts
        width = terms.blocks.n_features
        self._is_dense = one.second.ndim == 1
        copies = one.second.size // width**2
        self._shape = (copies, width, width) if self._is_dense else one.second.shape
        # Of symmetric matrices the lower half is sent.
        self._lower = np.tril_indices(width)
        n_second = copies * len(self._lower[0]) if self._is_dense else one.second.size
        # Of one dense block every row that is used has something: seen is the counts.
        self._misses = isinstance(one, MissingStatistics)
        n_seen = one.first.size if self._misses and not self._is_dense else 0
        self._ends = np.cumsum([one.counts.size, one.first.size, n_second, n_seen])
        self.size = int(self._ends[-1]) + 1
        """Numbers of a message, P."""

    def packed(self, statistics: Statistics, log_likelihood: float = 0.0) -> NDArray[np.float64]:
        """Lay out the statistics of one root, shape (P,)."""
        about = self.terms.recentred(statistics, self.shifts)
        second = about.second
        if self._is_dense:
            second = second.reshape(self._shape)[:, self._lower[0], self._lower[1]]
        parts = [about.counts, about.first, second]
        if isinstance(about, MissingStatistics) and not self._is_dense:
            parts.append(about.seen)
        return np.concatenate([*(part.ravel() for part in parts), [log_likelihood]])

    @property
    def expects(self) -> bool:
        """Whether statistics are of expected values, which may lie farther out than any row."""
        return self._misses and self._is_dense

    def exponents(self, reach: Reach) -> NDArray[np.int64]:
        """Return powers of two (P,) in units of which the sum of messages is in fixed point."""
        off = reach.off(self.shifts.astype(np.float64))
        left, right = self._lower if self._is_dense else (slice(None), slice(None))
        second = off[:, left] * off[:, right]
        if self._shape[0] == 1:
            # One covariance of all components, whose counts add up to the rows.
            second = second.max(axis=0)
        ones = np.ones(self._ends[0])
        seen = np.ones(self._ends[3] - self._ends[2])
        return reach.exponents(ones, off, second, seen, MOST_NATS)

    def unpacked(self, message: NDArray[np.float64]) -> tuple[Statistics, float]:
        """Return the statistics in a message (P,), and the log-likelihood."""
        counts, first, second, seen, found = np.split(message, self._ends)
        if self._is_dense:
            full = np.empty(self._shape)
            half = second.reshape(self._shape[0], -1)
            full[:, self._lower[0], self._lower[1]] = half
            full[:, self._lower[1], self._lower[0]] = half
            second = full.ravel()
        statistics = Statistics(
            counts.reshape(1, -1).copy(),
            first.reshape(self.shifts.shape).copy(),
            second.reshape(-1 if self._is_dense else self._shape).copy(),
            self.shifts,
        )
        if self._misses:
            own = statistics.counts if self._is_dense else seen.reshape(self.shifts.shape)
            statistics = MissingStatistics(**vars(statistics), seen=own.copy())
        return statistics, float(found[0])


class RowTerms:
    """What each worker adds to the sum: ``(n_k, t_k, U_k)`` of its rows, and their log-likelihood.

    A worker runs the E-step on its own rows with the parameters that it knows. As consensus weighs
    all numbers of a message alike, what a root finds are the statistics of rows that weigh a little
    more or less than they do: covariances stay positive definite.
    """

    def __init__(
        self,
        whole: FeatureTerms,  # worker by worker, all features in one block
        runs: Sequence[slice],  # each worker's rows
        counts: NDArray[np.intp],  # (N,) rows of all workers
        local: Rows,  # rows of this process
        reach: Reach | None = None,  # in units of fitting, where sums are masked
    ) -> None:
        self.whole = whole
        self.local = local
        self.reach = reach
        # From a file the next worker's rows are read ahead, and after the last the first's.
        filled = [run for run in runs if run.stop > run.start]
        after = dict(zip([run.start for run in filled], filled[1:] + filled[:1], strict=True))
        self.parts = [whole.part(run, after.get(run.start)) for run in runs]
        self.counts = counts

    @property
    def n_workers(self) -> int:
        """Number of workers, N."""
        return len(self.counts)

    def exponents(self, layout: Message) -> NDArray[np.int64] | None:
        """Return the units of masked sums of messages; None where sums are not masked."""
        return None if self.reach is None else layout.exponents(self.reach)

    def message(
        self, worker: int, mixture: Mixture, factors: Factors, layout: Message
    ) -> NDArray[np.float64]:
        """Run the E-step on a worker's rows: its statistics and log-likelihood, shape (P,)."""
        part = self.parts[worker]
        statistics = part.empty(mixture.means, 1)
        found = 0.0
        if part.n_samples:
            found = float(part.sweep(mixture, factors, np.ones((1, 1)), statistics)[0])
        return layout.packed(statistics, found)

    def moments(self, worker: int, layout: Message) -> NDArray[np.float64]:
        """Return the statistics of a worker's rows in one component, shape (P,)."""
        nothing = np.zeros(self.parts[worker].n_samples, dtype=np.int32)
        return self.hard(worker, nothing, layout)

    def hard(
        self,
        worker: int,
        labels: NDArray[np.int32],
        layout: Message,
        centres: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Return the statistics of a worker's rows, each in the component of its label, (P,).

        Missing values are filled by the centres (K, d) that the worker knows.
        """
        part = self.parts[worker]
        statistics = part.empty(layout.shifts if centres is None else centres, 1)
        n_components = len(layout.shifts)
        for rows in part.chunks(part.blocks.n_features) if part.n_samples else ():
            own = (labels[rows, None] == np.arange(n_components)).astype(part.rows.dtype)
            if part.row_weights is not None:
                own *= part.row_weights[rows, None].astype(own.dtype)
            part.summarize(statistics, own[None], rows)
        return layout.packed(statistics)
