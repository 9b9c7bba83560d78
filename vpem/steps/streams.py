"""Rows drawn from a stream that all agents share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.terms.reach import Reach

MOST_DRAWS = 50
"""Draws a row wanted before rows that were drawn are put aside."""

ROW_BYTES = 8
"""Of the number of a row that a root sends the others."""


class RowStream:
    """Rows drawn in proportion to their weights (M,), if any, from a stream all agents share."""

    def __init__(
        self, rng: np.random.Generator, row_weights: NDArray[np.float64] | None, n_samples: int
    ) -> None:
        self.rng = rng
        self.reach: Reach | None = None
        self.row_weights = row_weights
        self.n_samples = n_samples

    def draw(self, potential: NDArray[np.float64] | None = None) -> int:
        """Draw one row, in proportion to weight times ``potential`` if given."""
        place = self.rng.random()
        if potential is not None:
            ends = np.cumsum(self.weigh(potential), dtype=np.float64)
            if ends[-1] > 0:
                return self._at(ends, place)
        if self.row_weights is None:
            return min(int(place * self.n_samples), self.n_samples - 1)
        return self._at(np.cumsum(self.row_weights), place)

    def sample(self, count: int) -> tuple[NDArray[np.intp], RowStream]:
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

    def weigh(self, values: Floats, rows: slice | None = None) -> Floats:
        """Multiply values of all rows, or of some, by the rows' weights."""
        if self.row_weights is None:
            return values
        weights = self.row_weights if rows is None else self.row_weights[rows]
        weighed: Floats = values * weights.astype(values.dtype)
        return weighed

    @staticmethod
    def _at(ends: NDArray[np.float64], place: float) -> int:
        below = min(place * ends[-1], np.nextafter(ends[-1], 0))
        return int(np.searchsorted(ends, below, side="right"))

    def draw_distinct(self, count: int) -> NDArray[np.intp]:
        """Draw ``count`` different rows."""
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


class PlacedStream(RowStream):
    """A stream that draws the same rows, as the user numbers them, however workers hold them.

    Weights are in the order of the workers; ``order`` (M,) has the user's numbers, worker by
    worker.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        row_weights: NDArray[np.float64] | None,
        order: NDArray[np.intp],
    ) -> None:
        super().__init__(rng, row_weights, len(order))
        self._place = np.argsort(order)
        weights = None if row_weights is None else row_weights[self._place]
        self._users = RowStream(rng, weights, len(order))

    def draw(self, potential: NDArray[np.float64] | None = None) -> int:
        """Draw the place of one row; by a potential, in the order of the workers."""
        if potential is not None:
            return super().draw(potential)
        return int(self._place[self._users.draw()])

    def draw_distinct(self, count: int) -> NDArray[np.intp]:
        """Draw the places of ``count`` different rows."""
        return self._place[self._users.draw_distinct(count)]


class PointStream(RowStream):
    """Draws numbers of points (`vpem.terms.points.Points`), where no row may be shown.

    ``reach`` says where rows lie; weights (m,) are of the rows of this process.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        reach: Reach,
        row_weights: NDArray[np.float64] | None = None,
    ) -> None:
        super().__init__(rng, row_weights, 0)
        self.reach = reach

    def draw(self, potential: NDArray[np.float64] | None = None) -> int:
        """Draw the number of a point."""
        return -1 - int(self.rng.integers(1 << 31))

    def draw_distinct(self, count: int) -> NDArray[np.intp]:
        """Draw the numbers of so many points."""
        return np.array([self.draw() for _ in range(count)], dtype=np.intp)
