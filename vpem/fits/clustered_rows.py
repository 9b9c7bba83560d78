"""Rows of the workers of one process, as k-means takes them: in memory or not, whole or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.files.matrix import FileMatrix
from vpem.fits.cluster_data import Wanted
from vpem.fits.local_rows import LocalRows
from vpem.network.partition import Blocks, Workers
from vpem.steps.held_rows import StoredParts
from vpem.terms.nearest import nearest
from vpem.terms.scaling import Scaling


class ClusteredRows:
    """Rows of the workers of this process, worker by worker, in the units of clustering.

    ``parts`` are rows (m_i, d) of each worker, with missing values, where ``observed`` (m, d) is 0,
    filled by the mean of what all have of the feature. ``every_weight`` (M,) has the rows of all
    processes, worker by worker, and is None where sums are masked; ``weights`` (m,) has those of
    this process. The mean ``centre`` (d,) of the features may be known already.
    """

    parts: Sequence[Floats] | StoredParts

    def __init__(
        self,
        asked: Wanted,
        workers: Workers,
        here: LocalRows,
        n_threads: int,
        centre: NDArray[np.float64] | None = None,
    ) -> None:
        self.n_threads = n_threads
        self.n_here = len(asked.X)
        self.width = asked.X.shape[1]
        self.observed: NDArray[np.uint8] | None = None
        order, weights = workers.order, asked.row_weights
        apart = here.holders.apart
        self.every_weight = None if weights is None or here.masked else weights[order]
        self.weights = weights if self.every_weight is None else self.every_weight[here.rows]
        in_order = apart or here.masked or bool((np.diff(order) > 0).all())
        if isinstance(asked.X, FileMatrix):
            data = asked.X if in_order else asked.X.of_rows(list(workers.rows))
            stored = data.arranged(Blocks.one(self.width), asked.scaling, asked.dtype)
            self.parts = StoredParts(stored, here.counts[here.own])
            return
        rows = asked.scaling.apply(asked.X if in_order else asked.X[order])
        self._rows: Floats = np.ascontiguousarray(rows, dtype=asked.dtype)
        if asked.misses:
            self._fill(self._means(here) if centre is None else centre)
        self.parts = [self._rows[run] for run in here.own_runs]

    def _fill(self, means: NDArray[np.float64]) -> None:
        """Fill what is missing by the mean of each feature over the rows of all workers."""
        there = ~np.isnan(self._rows)
        self.observed = there.astype(np.uint8)
        self._rows = np.where(there, self._rows, means.astype(self._rows.dtype))

    def _means(self, here: LocalRows) -> NDArray[np.float64]:
        """Means (d,) of what there is of the rows of all workers."""
        there = ~np.isnan(self._rows)
        known = np.where(there, self._rows, 0)
        weights = np.ones(self.n_here) if self.weights is None else self.weights
        sums = [
            [weights[run] @ known[run].astype(np.float64), weights[run] @ there[run]]
            for run in here.own_runs
        ]
        found = here.holders.add_up(np.array(sums).reshape(len(sums), 2 * self.width))
        total, count = found.reshape(2, self.width)
        means: NDArray[np.float64] = total / np.where(count > 0, count, 1.0)
        return means

    def nearest(
        self, centres: NDArray[np.float64]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Nearest of some centres (K, d) to each row, and its squared distance."""
        same = Scaling.none(self.width)
        if not isinstance(self.parts, StoredParts):
            return nearest(self._rows, centres, same, self.n_threads, self.observed)
        labels, distances = np.empty(self.n_here, dtype=np.int32), np.empty(self.n_here)
        for run in self.parts.rows.runs():
            rows = self.parts.rows.read(run)
            labels[run], distances[run] = nearest(rows, centres, same, self.n_threads)
        return labels, distances
