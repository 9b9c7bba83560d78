"""Where k-means starts if no row may be shown: means of cells, found by masked sums.

Points are drawn about the mean of all rows, and every row counts in the cell of the nearest. Cells
of few rows are dropped, since their means would nearly be rows, and points near the mean of a cell
of many, about which rows still spread, take their place. What all agents know in the end are means
of cells and their weights; starts are drawn among these as among rows, as often as needed, at no
further communication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vpem._core.assign import nearest_rows
from vpem.checks import Doubles, Floats
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.row_sampling import HeldRows, PointStream, RowStream, StoredParts
from vpem.steps.starts import seed_rows
from vpem.sums.counted import add_vectors
from vpem.sums.server import ServerSum
from vpem.sums.sum import Sum
from vpem.terms.units import Points, Reach, exponents_of

LEAST_OF_CELL = 5
"""Fewest rows of a cell whose mean is published."""

CELLS_A_CLUSTER = 12
MOST_CELLS = 512

ROUNDS = 4
"""Times that all rows are assigned."""

TINY = 1e-300

TRIALS = 20
"""Starts among cells, of which the best is taken."""


@dataclass
class SeedingCells:
    """Means of cells and what rows of each weigh.

    A row counts as one in the means (L, d), whatever it weighs (L,); ``points`` are drawn where
    cells are fewer than clusters.
    """

    means: Doubles
    weights: Doubles
    points: Points

    def draw(self, n_clusters: int, rng: np.random.Generator) -> Doubles:
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
    """Report, if a callback wants reports of a start, that cells are looked for."""
    if tell is not None:
        tell("means of groups of rows, by masked sums")


def find_cells(
    parts: Sequence[Floats] | StoredParts,
    total: Sum,
    n_clusters: int,
    stream: PointStream,
    n_threads: int = 1,
) -> SeedingCells:
    """Find cells of rows (m_i, d) that each of the workers holds, by masked sums.

    There are many more cells than clusters if rows are enough.
    """
    rng, reach = stream.rng, stream.reach
    assert reach is not None
    data = HeldRows(parts, total, stream.row_weights, reach=reach)
    points = reach.points
    most = data.n_rows // (2 * LEAST_OF_CELL)
    count = max(1, min(CELLS_A_CLUSTER * n_clusters, MOST_CELLS, most))
    centres = points.near(rng, np.repeat(points.centre[None], count, axis=0), np.ones(count))
    means, weights = points.centre[None], np.array([reach.mass])
    for _ in range(ROUNDS):
        assigned = _Assigned(data, total, reach, n_threads)
        counts, weights, inertias = assigned.count(centres)
        while len(counts) > 1 and counts.min() < LEAST_OF_CELL:
            centres = centres[counts >= LEAST_OF_CELL]
            if not len(centres):
                centres = points.centre[None]
            counts, weights, inertias = assigned.count(centres)
        means = assigned.means(counts)
        centres = means
        lacking = count - len(means)
        if lacking:
            # Rows of heavy and wide cells are many and far apart: more means describe them.
            shares = inertias + TINY
            chosen = rng.choice(len(means), lacking, p=shares / shares.sum())
            sizes = np.sqrt(inertias / counts / max(points.variances.sum(), TINY))
            new = points.near(rng, means[chosen], sizes[chosen])
            centres = np.concatenate([means, new])
    return SeedingCells(means, weights, points)


class _Assigned:
    """Rows of this process, each in the cell of the nearest centre."""

    def __init__(self, data: HeldRows, total: Sum, reach: Reach, n_threads: int) -> None:
        self.data, self.total, self.reach, self.n_threads = data, total, reach, n_threads
        self.labels = np.zeros(data.n_here, dtype=np.int32)
        self.ones = np.ones(data.n_here)
        """1 for each row that counts."""
        if data.weighed:
            self.ones = (data.weights > 0).astype(np.float64)
        self.centres = np.empty((0, data.width))

    def count(self, centres: Doubles) -> list[Doubles]:
        """Assign all rows: how many each cell (L,) has, their weight, their squared distances.

        Rows of no weight do not count, and others count as one: where one is heavy, the mean of a
        cell would be nearly it.
        """
        data, reach, self.centres = self.data, self.reach, np.ascontiguousarray(centres)
        off = np.empty(data.n_here)
        for rows in data.runs_of_rows():
            nearest_rows(data.read(rows), self.centres, self.labels[rows], off[rows],
                         self.n_threads)  # fmt: skip
        size = len(centres)
        weighed = [data.weights] if data.weighed else []
        each = [self.ones, *weighed, self.ones * off]
        local_sums = [
            np.concatenate([np.bincount(self.labels[run], one[run], size) for one in each])
            for run in data.runs
        ]
        farthest = (reach.off(self.centres) ** 2).sum(axis=1)
        ones = np.ones(size)
        heavy = [reach.exponents(ones)] if data.weighed else []
        # Counts and distances are of rows that weigh 1.
        first = exponents_of(reach.n_rows * ones, reach.n_parties)
        units = [first, *heavy, exponents_of(reach.n_rows * farthest, reach.n_parties)]
        values = np.array(local_sums).reshape(len(local_sums), len(units) * size)
        sums = add_vectors(self.total, values, "setup", np.concatenate(units))[0]
        totals = sums.reshape(len(units), size)
        counts = np.rint(totals[0])
        return [counts, totals[1] if data.weighed else counts, np.maximum(totals[-1], 0.0)]

    def means(self, counts: Doubles) -> Doubles:
        """Means (L, d) of the rows of each cell, by sums about the centres."""
        data, size = self.data, len(self.centres)
        local_sums = np.zeros((len(data.runs), size, data.width))
        for rows in data.runs_of_rows():
            part, labels, ends = data.read(rows), self.labels[rows], data.within(rows)
            for worker in range(len(data.runs)):
                some = slice(int(ends[worker]), int(ends[worker + 1]))
                off = part[some] - self.centres[labels[some]]
                off *= self.ones[rows][some, None]
                for feature in range(data.width):
                    local_sums[worker, :, feature] += np.bincount(
                        labels[some], off[:, feature], minlength=size
                    )
        reach = self.reach
        units = exponents_of(reach.n_rows * reach.off(self.centres).ravel(), reach.n_parties)
        values = local_sums.reshape(len(local_sums), size * data.width)
        shifts = add_vectors(self.total, values, "setup", units)[0].reshape(size, data.width)
        means: Doubles = self.centres + shifts / np.maximum(counts, 1.0)[:, None]
        return means
