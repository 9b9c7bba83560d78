"""Greedy k-means++ (Arthur and Vassilvitskii 2007), over features and over rows.

Rows are drawn far from each other: each in proportion to its potential, the squared distance to the
nearest row that is chosen. Of several trials the one that leaves the least potential is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.steps.held_rows import HeldRows, StoredParts
from vpem.steps.streams import ROW_BYTES, RowStream
from vpem.steps.summing import in_units_of_squares, summed
from vpem.sums.counted import add_vectors
from vpem.sums.sum import Sum
from vpem.terms.terms import StartTerms

MANY_WORKERS = 16
"""Workers from which on their sums are taken in one call, row by row and not in pairs."""


class Potential(Protocol):
    """Squared distances of all rows to the nearest of those that are chosen."""

    def look(self, rows: Sequence[int]) -> int:
        """Measure from rows that were drawn: which of them leaves the least potential."""

    def keep(self, trial: int, chosen: Sequence[int]) -> None:
        """Take one of these for chosen."""

    def left(self) -> bool:
        """Whether any row is away from all that are chosen."""

    def draw(self, count: int) -> list[int]:
        """Draw rows, which all agents then know."""


def _seed(
    potential: Potential,
    total: Sum,
    n_components: int,
    stream: RowStream,
    n_trials: int | None,
    tell: Callable[[str], None] | None,
    begun: bool = False,
) -> NDArray[np.intp]:
    """Choose rows (K,); the first at random, unless something is ``begun`` with."""
    if n_trials is None:
        n_trials = 2 + int(np.log(n_components))
    chosen: list[int] = []
    if not begun:
        latest = [stream.draw()]
        chosen.append(latest[potential.look(latest)])
        potential.keep(0, chosen)
    while len(chosen) < n_components:
        if not potential.left():
            # Fewer different rows than components: the rest are drawn among those not taken.
            rest = stream.draw_distinct(n_components)
            fresh = [int(row) for row in rest if row not in chosen]
            chosen += fresh[: n_components - len(chosen)]
            break
        # One that is drawn twice is looked at once.
        latest = list(dict.fromkeys(potential.draw(n_trials)))
        best = potential.look(latest)
        chosen.append(latest[best])
        total.agree("flooding", ROW_BYTES)
        potential.keep(best, chosen)
        if tell is not None:
            tell(f"k-means++, row {len(chosen)} of {n_components}")
    return np.array(chosen, dtype=np.intp)


# ---- features ------------------------------------------------------------------------------------


def summed_distances(
    terms: StartTerms,
    total: Sum,
    centres: NDArray[np.float64],
) -> Iterator[tuple[slice, Floats]]:
    """Squared distances to centres (L, d) summed over hubs, (R, m, L), a chunk of rows a time."""
    total.begin("setup", terms.n_samples, len(centres), terms.itemsize)
    local = partial(terms.distances, centres)
    for rows, sums in summed(terms, total, len(centres), local):
        yield rows, np.maximum(sums, 0)


def seed_features(
    terms: StartTerms,
    total: Sum,
    n_components: int,
    stream: RowStream,
    tell: Callable[[str], None] | None = None,
    near: NDArray[np.float64] | None = None,
) -> NDArray[np.intp]:
    """Choose rows (K,) by the first root's sums of squared distances over hubs.

    ``tell`` is told of every row that is chosen. With centres ``near`` (L, d), in block order, only
    K - L rows are chosen, far from these, too.
    """
    total = in_units_of_squares(terms, total)
    potential = _OverFeatures(terms, total, stream)
    if near is not None:
        potential.begin(near)
        n_components -= len(near)
    begun = near is not None
    return _seed(potential, total, n_components, stream, None, tell, begun)


class _OverFeatures:
    """The potential as the first root finds it."""

    def __init__(self, terms: StartTerms, total: Sum, stream: RowStream) -> None:
        self.terms = terms
        self.total = total
        self.stream = stream
        self.nearest: NDArray[Any] | None = None
        self.trials: list[Floats] = []

    def begin(self, centres: NDArray[np.float64]) -> None:
        """Measure from centres that are chosen already."""
        for some, distances in summed_distances(self.terms, self.total, centres):
            if self.total.roots.mine(0):
                if self.nearest is None:
                    self.nearest = np.empty(self.terms.n_samples, distances.dtype)
                self.nearest[some] = distances[0].min(axis=1)

    def look(self, rows: Sequence[int]) -> int:
        terms, total, nearest = self.terms, self.total, self.nearest
        self.trials = []
        centres = terms.at_rows(np.array(rows))
        for some, distances in summed_distances(terms, total, centres):
            if not total.roots.mine(0):
                continue
            if not self.trials:
                self.trials = [np.empty(terms.n_samples, distances.dtype) for _ in rows]
            for trial, column in zip(self.trials, distances[0].T, strict=True):
                trial[some] = column if nearest is None else np.minimum(column, nearest[some])
        left = [float(self.stream.weigh(trial).sum(dtype=np.float64)) for trial in self.trials]
        return int(total.roots.bcast(int(np.argmin(left)) if total.roots.mine(0) else None))

    def keep(self, trial: int, chosen: Sequence[int]) -> None:
        if self.total.roots.mine(0):
            self.nearest = self.trials[trial]
            self.nearest[chosen] = 0.0

    def left(self) -> bool:
        nearest = self.nearest
        left = nearest is None or bool(self.stream.weigh(nearest).any())
        return bool(self.total.roots.bcast(left))

    def draw(self, count: int) -> list[int]:
        # In other processes too, so that the shared stream goes on alike.
        drawn: list[int] = self.total.roots.bcast(
            [self.stream.draw(self.nearest) for _ in range(count)]
        )
        self.total.agree("flooding", ROW_BYTES * count)
        return drawn


# ---- rows ----------------------------------------------------------------------------------------


def seed_rows(
    parts: Sequence[Floats] | StoredParts,
    total: Sum,  # of workers, each a root, or a server's
    n_components: int,
    stream: RowStream,  # weights are worker by worker
    *,
    n_trials: int | None = None,  # drawn a step; 1: as published; None: 2 + log K
    n_threads: int = 1,
    observed: NDArray[np.uint8] | None = None,
    tell: Callable[[str], None] | None = None,  # told of every row that is chosen
) -> NDArray[np.intp]:
    """Choose rows of those (m_i, d) that each of the workers holds; return their numbers (K,).

    Each worker sends the potential of its rows, added up, in a place of its own of one vector, so
    that all know from which worker a shared random number draws; that worker draws among its own
    rows and sends the row to all. The first worker's sum decides. It is the draw of the same
    algorithm over all rows at one place, in the order of the workers. Distances are by what is
    ``observed`` (M, d), times the share of features it is.
    """
    held = HeldRows(parts, total, stream.row_weights, observed)
    potential = _OverRows(held, total, stream, n_threads)
    return _seed(potential, total, n_components, stream, n_trials, tell)


class _OverRows:
    """The potential of every worker's rows."""

    def __init__(self, held: HeldRows, total: Sum, stream: RowStream, n_threads: int) -> None:
        self.held = held
        self.total = total
        self.stream = stream
        self.n_threads = n_threads
        self.trials = self.sums = self.remaining = np.empty(0)
        self.nearest: NDArray[Any] | None = None

    def look(self, rows: Sequence[int]) -> int:
        held = self.held
        points = held.share(rows)
        self.trials = np.empty((len(points), held.n_here))
        held.distances(points, self.trials, self.n_threads)
        if self.nearest is not None:
            np.minimum(self.trials, self.nearest, out=self.trials)
        # (L, N): what every worker has left after each trial, as the first worker knows it.
        self.sums = self._by_worker(self._potentials())
        return int(np.argmin(self.sums.sum(axis=1)))

    def _potentials(self) -> NDArray[np.float64]:
        """Weighted sums over each worker's rows after each trial, shape (N, L)."""
        held, trials = self.held, self.trials
        if len(held.weights):
            trials = trials * held.weights
        filled = np.flatnonzero(np.diff(held.bounds))
        found = np.zeros((len(held.runs), len(trials)))
        if len(filled) < MANY_WORKERS:
            for worker in filled:
                found[worker] = trials[:, held.runs[worker]].sum(axis=1)
        else:
            found[filled] = np.add.reduceat(trials, held.bounds[filled], axis=1).T
        return found

    def _by_worker(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Send potentials (n, L), each worker's in a place of its own: (L, N)."""
        total, n_trials, n_workers = self.total, sums.shape[1], self.held.n_workers
        if total.mix is not None and len(total.mix) == 1 and (total.mix == 1).all():
            # An exact sum of vectors that have one entry each that is not zero.
            total.begin("setup", 1, sums.size, sums.itemsize)
            return np.ascontiguousarray(sums.T)
        values = np.zeros((len(sums), n_workers, n_trials))
        values[np.arange(len(sums)), self.held.own] = sums
        summed = add_vectors(total, values.reshape(len(sums), n_workers * n_trials), "setup")
        left: NDArray[np.float64] = np.asarray(total.roots.bcast(summed[0]))
        return left.reshape(n_workers, n_trials).T

    def keep(self, trial: int, chosen: Sequence[int]) -> None:
        held = self.held
        self.nearest = self.trials[trial].copy()
        self.nearest[np.array(chosen)[held.here(chosen)] - held.first] = 0.0
        self.remaining = self.sums[trial]

    def left(self) -> bool:
        return bool(self.remaining.any())

    def draw(self, count: int) -> list[int]:
        remaining = np.maximum(self.remaining, 0.0)
        return [self._draw(remaining) for _ in range(count)]

    def _draw(self, remaining: NDArray[np.float64]) -> int:
        """Draw a row in proportion to weight times potential: first the worker, then its row."""
        held, nearest = self.held, self.nearest
        assert nearest is not None
        ends = np.cumsum(remaining)
        place = min(self.stream.rng.random() * ends[-1], np.nextafter(ends[-1], 0))
        worker = int(np.searchsorted(ends, place, side="right"))
        place -= ends[worker] - remaining[worker]
        row = None
        if held.holders.mine(worker):
            run = held.runs[worker - held.own[0]]
            values = nearest[run] * held.weights[run] if len(held.weights) else nearest[run]
            own = np.cumsum(values)
            inside = min(place, np.nextafter(own[-1], 0))
            row = held.first + run.start + int(np.searchsorted(own, inside, side="right"))
        return int(held.holders.bcast(row, worker))
