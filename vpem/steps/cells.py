"""Where k-means starts if no row may be shown: means of cells, found by masked sums.

Points are drawn about the mean of all rows, and every row counts in the cell of the nearest. Cells
of few rows are given up, since their means would nearly be rows, and points near the mean of a
cell of many, about which rows still spread, take their place. What all know in the end are means of
cells and their weights; among these starts are drawn as among rows, as often as one likes, for it
costs no message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from vpem._core.assign import nearest_rows
from vpem.checks import Floats
from vpem.steps.held_rows import HeldRows, StoredParts
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.seeding import seed_rows
from vpem.steps.streams import PointStream, RowStream
from vpem.sums.counted import add_vectors
from vpem.sums.server import ServerSum
from vpem.sums.sum import Sum
from vpem.terms.points import Points
from vpem.terms.reach import Reach

__all__ = ["LEAST_OF_CELL", "Cells", "find_cells", "tell_of_cells"]

LEAST_OF_CELL = 5
"""Rows of a cell of which a mean is told."""

CELLS_A_CLUSTER = 12
MOST_CELLS = 512

ROUNDS = 4
"""Times that all rows look for their cells."""

TINY = 1e-300

TRIALS = 20
"""Starts among cells, of which the best is taken."""


class Cells:
    """Means of cells and how many rows each has.

    Parameters
    ----------
    means : ndarray of shape (L, d)
    weights : ndarray of shape (L,)
    points : Points
        What is drawn where cells are fewer than clusters.
    """

    def __init__(
        self, means: NDArray[np.float64], weights: NDArray[np.float64], points: Points
    ) -> None:
        self.means, self.weights, self.points = means, weights, points

    def draw(self, n_clusters: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw centres (K, d): the best of some starts of k-means among the means of cells."""
        means = self.means
        if len(means) <= n_clusters:
            more = self.points.near(
                rng, np.repeat(self.points.centre[None], n_clusters - len(means), axis=0),
                np.ones(n_clusters - len(means)),
            )  # fmt: skip
            return np.concatenate([means, more])
        best, least = means[:n_clusters], np.inf
        for _ in range(TRIALS):
            stream = RowStream(rng, self.weights, len(means))
            alone = ServerSum(1)
            rows = seed_rows([means], alone, n_clusters, stream)
            run = lloyd_rows([means], alone, means[rows], stream, kind="setup")
            if run.inertia[0] < least:
                best, least = run.centres[0], float(run.inertia[0])
        return best


def tell_of_cells(tell: Callable[[str], None] | None) -> None:
    """Say, where anybody is told of a start, that cells are looked for."""
    if tell is not None:
        tell("means of groups of rows, by masked sums")


def find_cells(
    parts: Sequence[Floats] | StoredParts,
    total: Sum,
    n_clusters: int,
    stream: PointStream,
    n_threads: int = 1,
) -> Cells:
    """Find cells of rows that workers hold, by masked sums.

    Parameters
    ----------
    parts : sequence of ndarray of shape (m_i, d), or StoredParts
        Rows of each worker of this process.
    total : Sum
        Counted and masked, among the workers.
    n_clusters : int
        Clusters that are to be found, K; there are many more cells if rows are enough.
    stream : PointStream
        The stream that all workers share.
    n_threads : int
        Threads of the kernels.

    Returns
    -------
    Cells
    """
    held, rng, reach = HeldRows(parts, total), stream.rng, stream.reach
    assert reach is not None
    points = reach.points
    n_samples = int(held.ends[-1])
    count = max(1, min(CELLS_A_CLUSTER * n_clusters, MOST_CELLS, n_samples // (2 * LEAST_OF_CELL)))
    centres = points.near(rng, np.repeat(points.centre[None], count, axis=0), np.ones(count))
    means, weights = points.centre[None], np.array([float(n_samples)])
    for _ in range(ROUNDS):
        assigned = _Assigned(held, total, reach, n_threads)
        weights, inertias = assigned.count(centres)
        while len(weights) > 1 and weights.min() < LEAST_OF_CELL:
            centres = centres[weights >= LEAST_OF_CELL]
            if not len(centres):
                centres = points.centre[None]
            weights, inertias = assigned.count(centres)
        means = assigned.means(weights)
        centres = means
        lacking = count - len(means)
        if lacking:
            # Rows of heavy and wide cells are many and apart: there is more to tell of them.
            shares = inertias + TINY
            chosen = rng.choice(len(means), lacking, p=shares / shares.sum())
            sizes = np.sqrt(inertias / weights / max(points.variances.sum(), TINY))
            new = points.near(rng, means[chosen], sizes[chosen])
            centres = np.concatenate([means, new])
    return Cells(means, weights, points)


class _Assigned:
    """Rows of this process, each in the cell of the nearest centre."""

    def __init__(self, held: HeldRows, total: Sum, reach: Reach, n_threads: int) -> None:
        self.held, self.total, self.reach, self.n_threads = held, total, reach, n_threads
        self.labels = np.zeros(held.n_here, dtype=np.int32)
        self.centres = np.empty((0, held.width))

    def count(
        self, centres: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Assign all rows: how many each cell (L,) has, and their squared distances."""
        held, self.centres = self.held, np.ascontiguousarray(centres)
        off = np.empty(held.n_here)
        for rows in held.runs_of_rows():
            nearest_rows(held.read(rows), self.centres, self.labels[rows], off[rows],
                         self.n_threads)  # fmt: skip
        size = len(centres)
        own = [
            np.concatenate([
                np.bincount(self.labels[run], minlength=size),
                np.bincount(self.labels[run], off[run], minlength=size),
            ]) for run in held.runs
        ]  # fmt: skip
        farthest = (self.reach.off(self.centres) ** 2).sum(axis=1)
        units = self.reach.exponents(np.ones(size), farthest)
        values = np.array(own).reshape(len(own), 2 * size)
        counts, inertias = np.split(add_vectors(self.total, values, "setup", units)[0], 2)
        return np.rint(counts), np.maximum(inertias, 0.0)

    def means(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Means (L, d) of the rows of each cell, by sums about the centres."""
        held, size = self.held, len(self.centres)
        own = np.zeros((len(held.runs), size, held.width))
        for rows in held.runs_of_rows():
            part, labels, ends = held.read(rows), self.labels[rows], held.within(rows)
            for worker in range(len(held.runs)):
                some = slice(int(ends[worker]), int(ends[worker + 1]))
                off = part[some] - self.centres[labels[some]]
                for feature in range(held.width):
                    own[worker, :, feature] += np.bincount(
                        labels[some], off[:, feature], minlength=size
                    )
        units = self.reach.exponents(self.reach.off(self.centres))
        values = own.reshape(len(own), size * held.width)
        found = add_vectors(self.total, values, "setup", units)[0].reshape(size, held.width)
        moved: NDArray[np.float64] = self.centres + found / np.maximum(counts, 1.0)[:, None]
        return moved
