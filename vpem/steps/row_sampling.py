"""Rows that workers hold: which worker has which, and how all agents draw and share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vpem._core.assign import distances_to
from vpem.checks import Doubles, Floats, Indices, Mask
from vpem.engines.engine import set_topic
from vpem.sums.sum import Sum
from vpem.terms.missing import squares_of_observed
from vpem.terms.rows import MemoryRows, Rows
from vpem.terms.units import Reach

MOST_DRAWS = 50
"""Draws per row before rows that were drawn are excluded."""

ROW_BYTES = 8
"""Of a row's number in a message."""

CHUNK_ROWS = 1 << 14
"""Rows with missing values that are assigned at a time."""


class RowStream:
    """Rows drawn in proportion to their weights (M,), if any, from a stream all agents share.

    Where rows stand worker by worker, ``order`` (M,) has their numbers as the user has them: the
    same rows are drawn however workers hold them.
    """

    reach: Reach | None = None
    """Where rows lie, if none may be shown (`PointStream`)."""

    def __init__(
        self,
        rng: np.random.Generator,
        row_weights: Doubles | None,
        n_samples: int,
        order: Indices | None = None,
    ) -> None:
        self.rng, self.row_weights, self.n_samples = rng, row_weights, n_samples
        self._of_users: tuple[Indices, RowStream] | None = None
        if order is not None:
            place = np.argsort(order)
            weights = None if row_weights is None else row_weights[place]
            self._of_users = place, RowStream(rng, weights, n_samples)

    def draw(self, potential: Floats | None = None) -> int:
        """Draw one row, in proportion to weight times ``potential`` if given."""
        if potential is None and self._of_users is not None:
            places, stream = self._of_users
            return int(places[stream.draw()])
        place = self.rng.random()
        if potential is not None:
            ends = np.cumsum(self.weigh(potential), dtype=np.float64)
            if ends[-1] > 0:
                return self._at(ends, place)
        if self.row_weights is None:
            return min(int(place * self.n_samples), self.n_samples - 1)
        return self._at(np.cumsum(self.row_weights), place)

    def sample(self, count: int) -> tuple[Indices, RowStream]:
        """Draw some of the rows, at most so many, and the stream that goes on over them.

        Weights are cut in as many parts as rows are drawn, of one row each: rows stand as they do
        among all, and one that weighs more than a part is drawn as often as it weighs.
        """
        places = (np.arange(count) + self.rng.random(count)) / count
        if self.row_weights is None:
            drawn = np.minimum((places * self.n_samples).astype(np.intp), self.n_samples - 1)
        else:
            ends = np.cumsum(self.row_weights)
            below = np.minimum(places * ends[-1], np.nextafter(ends[-1], 0))
            drawn = np.searchsorted(ends, below, side="right")
        rows, times = np.unique(drawn, return_counts=True)
        weights = None if (times == 1).all() else times.astype(np.float64)
        return rows, RowStream(self.rng, weights, len(rows))

    def weigh(self, values: Floats) -> Floats:
        if self.row_weights is None:
            return values
        weighed: Floats = values * self.row_weights.astype(values.dtype)
        return weighed

    @staticmethod
    def _at(ends: Doubles, place: float) -> int:
        below = min(place * ends[-1], np.nextafter(ends[-1], 0))
        return int(np.searchsorted(ends, below, side="right"))

    def draw_distinct(self, count: int) -> Indices:
        if self._of_users is not None:
            places, stream = self._of_users
            return places[stream.draw_distinct(count)]
        drawn: dict[int, None] = {}
        for _ in range(MOST_DRAWS * count):
            drawn[self.draw()] = None
            if len(drawn) == count:
                break
        else:
            # A few rows outweigh all others: draw the rest from what is left.
            left = self.weigh(np.ones(self.n_samples))
            while len(drawn) < count:
                left[list(drawn)] = 0.0
                drawn[self._at(np.cumsum(left), self.rng.random())] = None
        return np.array(list(drawn), dtype=np.intp)


class PointStream(RowStream):
    """Draws numbers of points (`vpem.terms.units.Points`), where no row may be shown.

    ``reach`` says where rows lie; weights (m,) are of the rows of this process.
    """

    reach: Reach

    def __init__(
        self, rng: np.random.Generator, reach: Reach, row_weights: Doubles | None = None
    ) -> None:
        super().__init__(rng, row_weights, 0)
        self.reach = reach

    def draw(self, potential: Floats | None = None) -> int:
        return -1 - int(self.rng.integers(1 << 31))

    def draw_distinct(self, count: int) -> Indices:
        return np.array([self.draw() for _ in range(count)], dtype=np.intp)


@dataclass(frozen=True)
class WorkerRows:
    """Rows of the workers of this process, in memory or read a run at a time."""

    rows: Rows  # of all of them, worker by worker
    counts: Indices  # (n,) how many each has
    observed: NDArray[np.uint8] | None = None  # (m, d) 1 where a value is there; None: all are

    @classmethod
    def in_memory(cls, rows: Floats, counts: Sequence[int] | None = None) -> WorkerRows:
        """Rows (m, d) of an array, of one worker or, worker by worker, of several."""
        data = MemoryRows.wrap(np.ascontiguousarray(rows))
        return cls(data, np.array([len(rows)] if counts is None else counts, dtype=np.intp))


class HeldRows:
    """Rows of the workers of this process; rows of all workers are numbered worker by worker.

    ``parts`` are rows (m_i, d) of each worker, ``weights`` (M,) of the rows of all workers, or
    where sums are masked of this process. Where sums are masked and no row is shown ``reach`` says
    where rows lie.
    """

    def __init__(
        self,
        parts: WorkerRows,
        total: Sum,
        weights: Doubles | None = None,
        reach: Reach | None = None,
    ) -> None:
        self.total, self.reach = total, reach
        self.holders = holders = total.holders
        self.rows, counts, self.observed = parts.rows, parts.counts, parts.observed
        own_width = self.rows.take(np.empty(0, dtype=np.intp)).shape[1]
        self.width = int(holders.allreduce(np.array([own_width]), "max")[0])
        self.bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
        self.n_workers, self.n_here = holders.n_agents, int(self.bounds[-1])
        """Workers of all processes, N, and rows of this one."""
        ends: list[int] = self.bounds.tolist()
        self.runs = [slice(begin, end) for begin, end in pairwise(ends)]
        self.own, self.first = holders.own, 0
        if reach is None:
            every = holders.join(counts)
            self.ends = np.cumsum(every)
            """Where the rows of each worker of all processes end; unknown where sums are masked."""
            self.n_rows = int(self.ends[-1])
            self.first = int(self.ends[self.own[0]] - every[self.own[0]]) if len(self.own) else 0
        else:
            self.ends, self.n_rows = np.empty(0, dtype=np.intp), reach.n_rows
        self.weights = np.empty(0)
        self.weighed = weights is not None
        """Whether rows have weights."""
        self.lightest = 1.0
        if weights is not None:
            local_weights = weights[self.first : self.first + self.n_here]
            self.weights = np.ascontiguousarray(local_weights, dtype=np.float64)
            positive = weights[weights > 0]
            self.lightest = float(positive.min()) if reach is None else reach.lightest

    def within(self, rows: slice) -> Indices:
        """Where each worker's rows begin and end in a run of them, (n + 1,)."""
        return np.asarray(np.clip(self.bounds, rows.start, rows.stop) - rows.start)

    def here(self, rows: Sequence[int] | Indices) -> Mask:
        """Which of some rows are in this process."""
        place = np.asarray(rows, dtype=np.intp) - self.first
        return np.asarray((place >= 0) & (place < self.n_here))

    def gather_rows(self, rows: Sequence[int] | Indices) -> Doubles:
        """Some rows (L, d), in every process, which all know already."""
        places, is_local = np.asarray(rows, dtype=np.intp) - self.first, self.here(rows)
        points = np.zeros((len(places), self.width))
        points[is_local] = self.rows.take(places[is_local])
        with set_topic(self.holders.engine, "flooding"):
            return self.holders.allreduce(points)

    def distances(self, points: Doubles, out: Doubles, n_threads: int) -> None:
        """Squared distances of all rows to points (L, d), into (L, M)."""
        if self.observed is None:
            for run in self.rows.runs():
                off = out if run.stop - run.start == self.n_here else np.empty_like(out[:, run])
                distances_to(self.rows.read(run), points, off, n_threads)
                if off is not out:
                    out[:, run] = off
            return
        for begin in range(0, self.n_here, CHUNK_ROWS):
            some = slice(begin, begin + CHUNK_ROWS)
            out[:, some] = self.by_observed(points, some, n_threads).T

    def by_observed(
        self, points: Doubles, rows: slice, n_threads: int, *, by_share: bool = True
    ) -> Floats:
        """Squared distances (m, L) over observed features, ``by_share`` over the share of these."""
        assert self.observed is not None
        data, observed = self.rows.read(rows), self.observed[rows]
        squares = squares_of_observed(data, observed, points, n_threads)
        if not by_share:
            return squares
        width, there = data.shape[1], observed.sum(axis=1, dtype=np.intp)
        scaled: Floats = squares * (width / np.maximum(there, 1))[:, None].astype(squares.dtype)
        return scaled

    def share(self, rows: Sequence[int] | Indices, itemsize: int = 8) -> Doubles:
        """Rows (L, d) that their holders send to all; in 4 bytes a number, as float32.

        Where sums are masked points take their place, which all draw alike.
        """
        if self.reach is not None:
            return self.reach.points.draw_points(np.asarray(rows, dtype=np.intp))
        points = self.gather_rows(rows).astype(f"f{itemsize}").astype(np.float64)
        size = ROW_BYTES + itemsize * points.shape[1]
        for row in rows:
            # The worker that holds the row shows it.
            owner = int(np.searchsorted(self.ends, int(row), side="right"))
            self.total.agree("flooding", size, owner)
        return points
