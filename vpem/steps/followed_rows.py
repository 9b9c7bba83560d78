"""Rows in clusters, followed from pass to pass: few are looked at again, and sums only change.

Of each row two bounds are kept, how far its own centre is at most and any other at least. Both
follow how far centres have moved; while the one is below the other the row stays where it is, and
is not even read (Hamerly, *Making k-means even faster*, SDM 2010). Labels are those of Lloyd's
algorithm: what rounding may lose is in the bounds.

Counts, sums and squares are kept in two parts of double precision each, to which rows that change
are added: they are what sums taken anew would be, to the last digit but for the rarest chance, and
the inertia follows from them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem._core.assign import follow_rows, inertias_of, measure_rows
from vpem.steps.held_rows import HeldRows

FEW_ROWS = 12
"""Of a worker and centre, below which distances of all rows cost less than moments of centres."""

SURE = 1e-12
"""Share of the squares about the start that an inertia has at least to be told by moments."""


class FollowedRows:
    """Rows of the workers of this process, in clusters that start at ``centres`` (K, d)."""

    def __init__(self, held: HeldRows, centres: NDArray[np.float64], n_threads: int) -> None:
        self.held = held
        self.n_threads = n_threads
        self._about = np.ascontiguousarray(centres.mean(axis=0), dtype=np.float64)
        self._before: NDArray[np.float64] | None = None
        self._upper = np.full(held.n_here, np.nan, dtype=np.float32)
        self._lower = np.zeros(held.n_here, dtype=np.float32)
        self._totals = np.zeros((len(held.runs), 2, centres.size + len(centres) + 1))
        self._few = held.n_here < FEW_ROWS * len(centres) * len(held.runs)

    def assign(self, centres: NDArray[np.float64], labels: NDArray[np.int32]) -> NDArray[np.intp]:
        """Assign all rows to the nearest centres; return how many of each worker (n,) changed.

        Centres (R, K, d) are one set for all workers, or one for each of this process; ``labels``
        (m,) are changed in place.
        """
        held, changes = self.held, np.zeros(len(self.held.runs), dtype=np.intp)
        centres = np.ascontiguousarray(centres)
        before = centres if self._before is None else self._before
        if before.shape != centres.shape:
            before = np.ascontiguousarray(np.broadcast_to(before, centres.shape))
        for rows in held.runs_of_rows() if held.runs else ():
            follow_rows(
                held.read(rows), held.weights[rows], held.within(rows), centres, before,
                self._about, labels[rows], self._upper[rows], self._lower[rows], self._totals,
                changes, self.n_threads,
            )  # fmt: skip
        self._before = centres.copy()
        return changes

    def totals(self, out: NDArray[np.float64]) -> None:
        """Counts (K) and sums (K d) of each worker's clusters, side by side, into (n, K + K d)."""
        np.add(self._totals[:, 0, :-1], self._totals[:, 1, :-1], out=out)

    def inertias(
        self, centres: NDArray[np.float64], labels: NDArray[np.int32]
    ) -> NDArray[np.float64]:
        """Inertia of each worker's rows (n,) about centres (R, K, d) that they are assigned to."""
        found = np.zeros(len(self._totals))
        if not self._few:
            inertias_of(self._totals, self._about, np.ascontiguousarray(centres), found)
            unsure = found < SURE * self._totals[:, 0, -1]
            if not unsure.any():
                return found
            return np.where(unsure, self.measure(centres, labels)[1], found)
        return self.measure(centres, labels)[1]

    def measure(
        self, centres: NDArray[np.float64], labels: NDArray[np.int32]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Squared distances of rows (m,) to their centres, and sums over each worker's (n,)."""
        held, distances = self.held, np.empty(self.held.n_here)
        found = np.zeros(len(held.runs))
        for rows in held.runs_of_rows() if held.runs else ():
            measure_rows(
                held.read(rows), held.weights[rows], held.within(rows),
                np.ascontiguousarray(centres), labels[rows], distances[rows], found,
                self.n_threads,
            )  # fmt: skip
        return distances, found
