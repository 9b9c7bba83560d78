"""Where k-means starts if no row may be shown: means of cells, found by masked sums.

Points are drawn about the mean of all rows, and every row counts in the cell of the nearest. Cells
of few rows are dropped, since their means would nearly be rows, and points near the mean of a cell
of many, about which rows still spread, take their place. What all agents know in the end are means
of cells and their weights; starts are drawn among these as among rows, as often as needed, at no
further communication.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vpem._core.assign import nearest_rows
from vpem.checks import Doubles
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.row_sampling import HeldRows, RowStream, WorkerRows
from vpem.steps.starts import seed_rows
from vpem.sums.counted import add_vectors
from vpem.sums.server import ServerSum
from vpem.sums.sum import Sum
from vpem.terms.units import Reach, exponents_of

LEAST_OF_CELL = 5
"""Fewest rows of a cell whose mean is published."""

CELLS_A_CLUSTER = 12
MOST_CELLS = 512

ROUNDS = 4
"""Times that all rows are assigned."""

TINY = 1e-300

TRIALS = 20
"""Starts among cells, of which the best is taken."""


def draw_cells(
    parts: WorkerRows,
    total: Sum,
    n_clusters: int,
    stream: RowStream,  # of points
    n_threads: int = 1,
    tell: Callable[[str], None] | None = None,
) -> Doubles:
    """Draw centres (K, d) by masked sums of the rows (m_i, d) that each of the workers holds.

    They are the best of some starts of k-means among the means of cells. Where cells are fewer than
    clusters, points are drawn besides. ``tell`` gets a message of what is done.
    """
    assert stream.reach is not None
    if tell is not None:
        tell("means of groups of rows, by masked sums")
    means, weights = find_cells(parts, total, n_clusters, stream, n_threads)
    rng, points = stream.rng, stream.reach.points
    if len(means) <= n_clusters:
        lacking = n_clusters - len(means)
        about = np.repeat(points.centre[None], lacking, axis=0)
        return np.concatenate([means, points.near(rng, about, np.ones(lacking))])
    best, least = means[:n_clusters], np.inf
    for _ in range(TRIALS):
        among = RowStream(rng, weights, len(means))
        alone, cells = ServerSum(1), WorkerRows.in_memory(means)
        rows = seed_rows(cells, alone, n_clusters, among)
        run = lloyd_rows(cells, alone, means[rows], among, kind="setup")
        if run.inertia[0] < least:
            best, least = run.centres[0], float(run.inertia[0])
    return best


def find_cells(
    parts: WorkerRows,
    total: Sum,
    n_clusters: int,
    stream: RowStream,
    n_threads: int,
) -> tuple[Doubles, Doubles]:
    """Find cells by masked sums: means (L, d), and what rows of each weigh (L,).

    A row counts as one in a mean, whatever it weighs. There are many more cells than clusters if
    rows are enough.
    """
    rng, reach = stream.rng, stream.reach
    assert reach is not None
    data = HeldRows(parts, total, stream.row_weights, reach)
    points = reach.points
    most = data.n_rows // (2 * LEAST_OF_CELL)
    count = max(1, min(CELLS_A_CLUSTER * n_clusters, MOST_CELLS, most))
    centres = points.near(rng, np.repeat(points.centre[None], count, axis=0), np.ones(count))
    means, weights = points.centre[None], np.array([reach.mass])
    labels = np.zeros(data.n_here, dtype=np.int32)
    for _ in range(ROUNDS):
        counts, weights, inertias = _count_cells(data, reach, centres, labels, n_threads)
        while len(counts) > 1 and counts.min() < LEAST_OF_CELL:
            centres = centres[counts >= LEAST_OF_CELL]
            if not len(centres):
                centres = points.centre[None]
            counts, weights, inertias = _count_cells(data, reach, centres, labels, n_threads)
        centres = means = _cell_means(data, reach, centres, labels, counts)
        lacking = count - len(means)
        if lacking:
            # Rows of heavy and wide cells are many and far apart: more means describe them.
            shares = inertias + TINY
            chosen = rng.choice(len(means), lacking, p=shares / shares.sum())
            sizes = np.sqrt(inertias / counts / max(points.variances.sum(), TINY))
            new = points.near(rng, means[chosen], sizes[chosen])
            centres = np.concatenate([means, new])
    return means, weights


def _ones(data: HeldRows) -> Doubles:
    """Return 1 for each row of this process that counts: rows of no weight do not."""
    return (data.weights > 0).astype(np.float64) if data.weighed else np.ones(data.n_here)


def _count_cells(
    data: HeldRows, reach: Reach, centres: Doubles, labels: NDArray[np.int32], n_threads: int
) -> list[Doubles]:
    """Assign all rows: how many each cell (L,) has, their weight, their squared distances.

    Rows of no weight do not count, and others count as one: where one is heavy, the mean of a cell
    would be nearly it. Labels (m,) are those of the nearest centres (L, d) from then on.
    """
    off, ones = np.empty(data.n_here), _ones(data)
    centres = np.ascontiguousarray(centres)
    for rows in data.rows.runs():
        nearest_rows(data.rows.read(rows), centres, labels[rows], off[rows], n_threads)
    size = len(centres)
    weighed = [data.weights] if data.weighed else []
    each = [ones, *weighed, ones * off]
    local_sums = [
        np.concatenate([np.bincount(labels[run], one[run], size) for one in each])
        for run in data.runs
    ]
    farthest = (reach.off(centres) ** 2).sum(axis=1)
    alike = np.ones(size)
    heavy = [reach.exponents(alike)] if data.weighed else []
    # Counts and distances are of rows that weigh 1.
    first = exponents_of(reach.n_rows * alike, reach.n_parties)
    units = [first, *heavy, exponents_of(reach.n_rows * farthest, reach.n_parties)]
    values = np.array(local_sums).reshape(len(local_sums), len(units) * size)
    sums = add_vectors(data.total, values, "setup", np.concatenate(units))[0]
    totals = sums.reshape(len(units), size)
    counts = np.rint(totals[0])
    return [counts, totals[1] if data.weighed else counts, np.maximum(totals[-1], 0.0)]


def _cell_means(
    data: HeldRows, reach: Reach, centres: Doubles, labels: NDArray[np.int32], counts: Doubles
) -> Doubles:
    """Means (L, d) of the rows of each cell, by sums about the centres."""
    size, ones = len(centres), _ones(data)
    local_sums = np.zeros((len(data.runs), size, data.width))
    for rows in data.rows.runs():
        part, cells, ends = data.rows.read(rows), labels[rows], data.within(rows)
        for worker in range(len(data.runs)):
            some = slice(int(ends[worker]), int(ends[worker + 1]))
            off = part[some] - centres[cells[some]]
            off *= ones[rows][some, None]
            for feature in range(data.width):
                local_sums[worker, :, feature] += np.bincount(
                    cells[some], off[:, feature], minlength=size
                )
    units = exponents_of(reach.n_rows * reach.off(centres).ravel(), reach.n_parties)
    values = local_sums.reshape(len(local_sums), size * data.width)
    shifts = add_vectors(data.total, values, "setup", units)[0].reshape(size, data.width)
    means: Doubles = centres + shifts / np.maximum(counts, 1.0)[:, None]
    return means
