"""Sums of clusters that move as the rows of a batch do: incremental Lloyd.

A row that goes from one cluster to another leaves the sum of the one and enters that of the other,
and the centres follow before the next batch is assigned. With exact sums neither step raises the
inertia. What is kept is found anew from the labels when a pass begins, so that rounding does not
add up over passes, and a run that goes on from its labels goes on alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.steps.held_rows import CHUNK_ROWS, HeldRows

Labels = NDArray[np.int32]


class ClusterSums:
    """Weights, sums and squares, about a point (d,), of rows in clusters."""

    def __init__(self, n_clusters: int, about: NDArray[np.float64], gaps: bool) -> None:
        self.about = about
        self.counts = np.zeros(n_clusters)
        self._sums = np.zeros((n_clusters, len(about)))
        self._there = np.zeros_like(self._sums) if gaps else None
        self._squares = np.zeros(len(about))

    @property
    def there(self) -> NDArray[np.float64]:
        """Weight of what there is of each feature in each cluster, (K, d)."""
        if self._there is None:
            return np.broadcast_to(self.counts[:, None], self._sums.shape)
        return self._there

    def sums(self, about: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Sums of the clusters (K, d), about points (K, d) or nothing."""
        points = self.about if about is None else self.about - about
        return self._sums + self.there * points

    def inertia(self, centres: NDArray[np.float64]) -> NDArray[np.float64]:
        """Inertia of these rows in their clusters about centres (K, d), by feature, (d,)."""
        off = centres - self.about
        found = self._squares + (off * (off * self.there - 2.0 * self._sums)).sum(axis=0)
        least: NDArray[np.float64] = np.maximum(found, 0.0)
        return least

    def move(
        self,
        data: Floats,
        weights: NDArray[np.float64],
        before: Labels,
        after: Labels,
        observed: NDArray[np.uint8] | None = None,
    ) -> int:
        """Move rows (m, d) from clusters to others, -1 being none: how many have moved."""
        moved = np.flatnonzero(before != after)
        if not len(moved):
            return 0
        values = data[moved].astype(np.float64) - self.about
        there = None if observed is None else observed[moved]
        if there is not None:
            values *= there
        own = weights[moved]
        fresh = before[moved] < 0
        self._squares += own[fresh] @ values[fresh] ** 2
        self._add(values, own, after[moved], there, 1.0)
        left = ~fresh
        if left.any():
            self._add(
                values[left], own[left], before[moved][left],
                None if there is None else there[left], -1.0,
            )  # fmt: skip
        return len(moved)

    def _add(
        self,
        values: NDArray[np.float64],
        weights: NDArray[np.float64],
        labels: Labels,
        there: NDArray[np.uint8] | None,
        sign: float,
    ) -> None:
        hard = by_cluster(labels, sign * weights, len(self.counts))
        self.counts += np.bincount(labels, sign * weights, len(self.counts))
        self._sums += hard @ values
        if self._there is not None and there is not None:
            self._there += hard @ there


class RowBatches:
    """Rows of the workers of this process, some of each worker's in a batch.

    Of all workers together a batch has ``batch_size`` rows.
    """

    def __init__(self, held: HeldRows, n_clusters: int, batch_size: int) -> None:
        self.held = held
        self.n_batches = -(-held.n_rows // batch_size)
        self._n_clusters = n_clusters
        first = held.read(slice(0, 1)) if held.n_here else np.zeros((1, held.width))
        self._about: NDArray[np.float64] = np.asarray(first[0], dtype=np.float64)
        if held.reach is not None:  # the same wherever workers live
            self._about = held.reach.points.centre
        self.own: list[ClusterSums] = []

    def begin(self, labels: Labels) -> None:
        """Find the workers' sums anew from the labels (m,) of their rows, -1 being none."""
        gaps = self.held.observed is not None
        self.own = []
        for run in self.held.runs:
            sums = ClusterSums(self._n_clusters, self._about, gaps)
            for start in range(run.start, run.stop, CHUNK_ROWS):
                rows = slice(start, min(start + CHUNK_ROWS, run.stop))
                none = np.full(rows.stop - rows.start, -1, dtype=np.int32)
                sums.move(*self._read(rows), none, labels[rows], self._observed(rows))
            self.own.append(sums)

    def rows(self, worker: int, number: int) -> slice:
        """Return the rows of a worker of this process that are in a batch."""
        run = self.held.runs[worker]
        many = run.stop - run.start
        first, last = (many * place // self.n_batches for place in (number, number + 1))
        return slice(run.start + first, run.start + last)

    def move(self, worker: int, rows: slice, before: Labels, after: Labels) -> int:
        """Move rows of a worker from clusters to others: how many have moved."""
        return self.own[worker].move(*self._read(rows), before, after, self._observed(rows))

    def _read(self, rows: slice) -> tuple[Floats, NDArray[np.float64]]:
        weights = self.held.weights
        own = weights[rows] if len(weights) else np.ones(rows.stop - rows.start)
        return self.held.read(rows), own

    def _observed(self, rows: slice) -> NDArray[np.uint8] | None:
        return None if self.held.observed is None else self.held.observed[rows]


def by_cluster(labels: Labels, weights: NDArray[np.float64], n: int) -> Any:
    """The sparse matrix (K, m) that adds rows up by cluster."""
    from scipy.sparse import csr_array

    starts = np.arange(len(labels) + 1)
    return csr_array((weights, labels, starts), shape=(len(labels), n)).T


def with_sums(found: NDArray[np.float64], sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """What lies between the counts and the inertia, with other sums."""
    flat = sums.reshape(len(sums), sums.shape[1] * sums.shape[2])
    return np.concatenate([flat, found[:, flat.shape[1] :]], axis=1)
