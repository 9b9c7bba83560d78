"""Where EM starts, over features that no agent may show: by shared rows and by the same sum."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.steps import em
from vpem.sums.sum import Sum
from vpem.terms.mixture import Mixture
from vpem.terms.terms import StartTerms

__all__ = ["RowStream", "draw_start"]

MOST_DRAWS = 50
"""Draws a row wanted before rows that were drawn are put aside."""

ROW_BYTES = 8
"""Of the number of a row that a root tells the others."""

MOST_LLOYD = 300
"""Most iterations of the k-means start."""


class RowStream:
    """Rows drawn in proportion to their weights from a stream all agents share.

    Parameters
    ----------
    rng : Generator
        The shared stream.
    row_weights : ndarray of shape (M,) or None
        None: all rows alike.
    n_samples : int
        Number of rows, M.
    """

    def __init__(
        self, rng: np.random.Generator, row_weights: NDArray[np.float64] | None, n_samples: int
    ) -> None:
        self.rng = rng
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

    def weigh(self, values: NDArray[Any], rows: slice | None = None) -> NDArray[Any]:
        """Multiply values of all rows, or of some, by the rows' weights."""
        if self.row_weights is None:
            return values
        weights = self.row_weights if rows is None else self.row_weights[rows]
        weighed: NDArray[Any] = values * weights.astype(values.dtype)
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


def draw_start(
    init: str, terms: StartTerms, total: Sum, n_components: int, stream: RowStream
) -> tuple[Mixture, NDArray[np.intp]]:
    """Starting parameters without pooling a feature.

    Parameters
    ----------
    init : {"random", "k-means++", "kmeans"}
        "random": means at rows that all agents draw from a shared seed. "k-means++": rows drawn far
        from each other, by squared distances summed over hubs as the terms of the E-step are; the
        root of the first hub draws by its own estimate and tells the row's number. "kmeans": from
        there Lloyd's iterations, each root assigning rows by its own estimate of the distances, and
        one M-step from the hard assignment.
    terms : StartTerms
        Distances of each hub's features.
    total : Sum
        How they are summed.
    n_components : int
        Number of components, K.
    stream : RowStream
        The agents' shared random stream.

    Returns
    -------
    mixture : Mixture
        Starting parameters.
    rows : ndarray of shape (K,)
        Rows the means were placed at (before Lloyd's iterations).
    """
    if init == "random":
        rows = stream.draw_distinct(n_components)
        return terms.start(terms.at_rows(rows)), rows
    rows = _spread_rows(terms, total, n_components, stream)
    centres = terms.at_rows(rows)
    if init == "k-means++":
        return terms.start(centres), rows
    return _lloyd(terms, total, centres, stream), rows


def _summed_distances(
    terms: StartTerms, total: Sum, centres: NDArray[np.float64]
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Squared distances to centres, (R, m, L), a chunk of rows a time."""
    total.begin("setup", terms.n_samples, len(centres), terms.itemsize)
    for rows, sums in em.summed(terms, total, len(centres), partial(terms.distances, centres)):
        yield rows, np.maximum(sums, 0)


def _spread_rows(
    terms: StartTerms, total: Sum, n_components: int, stream: RowStream
) -> NDArray[np.intp]:
    """Greedy k-means++ (Arthur and Vassilvitskii 2007), by the first root's distances."""
    n_trials = 2 + int(np.log(n_components))
    chosen = [stream.draw()]
    nearest: NDArray[Any] | None = None
    latest = chosen
    while True:
        if latest is not chosen:
            # The first root drew them by its own distances.
            total.agree("flooding", ROW_BYTES * len(latest))
        trials: list[NDArray[Any]] = []
        for rows, distances in _summed_distances(terms, total, terms.at_rows(np.array(latest))):
            if not total.leads:
                continue
            if not trials:
                trials = [np.empty(terms.n_samples, distances.dtype) for _ in latest]
            for trial, column in zip(trials, distances[0].T, strict=True):
                trial[rows] = column if nearest is None else np.minimum(column, nearest[rows])
        potentials = [float(stream.weigh(trial).sum(dtype=np.float64)) for trial in trials]
        best = int(total.tell(int(np.argmin(potentials)) if total.leads else None))
        if latest is not chosen:
            chosen.append(latest[best])
            total.agree("flooding", ROW_BYTES)
        left = True
        if total.leads:
            nearest = trials[best]
            nearest[chosen] = 0.0
            left = bool(stream.weigh(nearest).any())
        if len(chosen) == n_components:
            return np.array(chosen, dtype=np.intp)
        if not total.tell(left):
            # Fewer different rows than components: the rest are drawn among those not taken.
            rest = stream.draw_distinct(n_components)
            fresh = [int(row) for row in rest if row not in chosen]
            chosen += fresh[: n_components - len(chosen)]
            if len(chosen) == n_components:
                return np.array(chosen, dtype=np.intp)
        # Elsewhere too, so that the shared stream goes on alike.
        latest = total.tell([stream.draw(nearest) for _ in range(n_trials)])


def _lloyd(
    terms: StartTerms, total: Sum, centres: NDArray[np.float64], stream: RowStream
) -> Mixture:
    """Lloyd's iterations, each root by its own distances, then one M-step."""
    n_components = len(centres)
    unknown = n_components
    labels = np.full((total.n_roots, terms.n_samples), unknown, dtype=np.min_scalar_type(unknown))
    for _ in range(MOST_LLOYD):
        statistics = terms.empty(centres, total.n_roots)
        changed = False
        for rows, distances in _summed_distances(terms, total, centres):
            nearest = distances.argmin(axis=2)
            changed = changed or not np.array_equal(nearest, labels[:, rows])
            labels[:, rows] = nearest
            hard = (nearest[:, :, None] == np.arange(n_components)).astype(distances.dtype)
            if stream.row_weights is not None:
                hard *= stream.row_weights[rows][:, None].astype(distances.dtype)
            terms.summarize(statistics, hard, rows)
        mixture = terms.update(statistics)
        centres = mixture.means.copy()
        empty = np.flatnonzero(total.some(np.atleast_1d((statistics.counts <= 0).any(axis=0))))
        for component in empty:
            centres[component] = terms.at_rows(np.array([stream.draw()], dtype=np.intp))[0]
        total.agree("flooding")
        if not total.some(np.array([changed]))[0]:
            break
    return mixture
