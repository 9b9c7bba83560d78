"""Rows as the workers of FedEM hold them: in memory or in a file, with weights or without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.engines.placement import Placement
from vpem.files.matrix import FileMatrix
from vpem.fits.fedem_moments import HeldPart
from vpem.fits.local_rows import LocalRows
from vpem.fits.prepare import Prepared
from vpem.network.partition import Blocks, Workers
from vpem.steps.held_rows import StoredParts
from vpem.terms.features import FeatureTerms
from vpem.terms.matrix import arrange_rows
from vpem.terms.missing import terms_of
from vpem.terms.scaling import Scaling
from vpem.terms.statistic_map import StatisticMap

Vector = NDArray[np.float64]


class HeldByWorkers:
    """Rows of this process's workers, worker by worker, and what all know of those of all.

    Parameters
    ----------
    given : Prepared
        The data: in one process in the user's order; else those of this process's workers.
    workers : Workers
        Who holds which rows.
    holders : Placement
        Where workers live.

    Attributes
    ----------
    runs : list of slice
        Where each worker's rows are in this process's; empty ones for workers of others.
    counts : ndarray of shape (n,)
        Rows of each worker of all processes.
    masses : ndarray of shape (n,)
        What they weigh.
    all_weights : ndarray of shape (M,) or None
        Of all rows, worker by worker; None: all weigh 1.
    weights : ndarray of shape (m,) or None
        Of this process's.
    misses : bool
        Whether values are missing, in any process.
    """

    def __init__(self, given: Prepared, workers: Workers, holders: Placement) -> None:
        self.holders = holders
        self.misses = given.misses
        self.data = given.X
        self.n_features = int(self.data.shape[1])
        held = workers if given.kept is None else workers.of_rows(given.kept)
        self._numbers = None if held.in_order else held.order
        """In the data, of each row of all worker by worker; None: 0, 1, ..."""
        self._number = given.number
        here = LocalRows(holders, held.counts)
        self.runs, self._own = here.runs, here.own_runs
        if not holders.apart and self._numbers is not None:
            stored = isinstance(self.data, FileMatrix)
            self.data = self.data.of_rows(held.rows) if stored else self.data[self._numbers]
        self.counts = held.counts
        self.masses: NDArray[Any] = self.counts
        self.all_weights: Vector | None = None
        self.weights: Vector | None = None
        if given.row_weights is not None:
            self.all_weights = self._by_worker(given.row_weights)
            self.weights = self.all_weights[here.rows]
            self.masses = np.array([self.all_weights[run].sum() for run in held.runs])

    def _by_worker(self, values: Vector) -> Vector:
        """Values of all rows (M,), worker by worker, of those as they are numbered in the data."""
        return values if self._numbers is None else values[self._numbers]

    @property
    def n_rows(self) -> int:
        """Rows of positive weight of all processes."""
        return int(self.counts.sum())

    def parts(self) -> list[HeldPart]:
        """Rows of each of this process's workers, in the user's units."""
        rows = arrange_rows(self.data, self._block(1), Scaling.none(self.n_features), np.float64)
        return [
            HeldPart(
                rows.part(run),
                None if self.weights is None else self.weights[run],
                float(self.masses[worker]),
            )
            for worker, run in zip(self.holders.own, self._own, strict=True)
        ]

    def terms(self, to_mixture: StatisticMap, n_threads: int) -> FeatureTerms:
        """Rows in units of fitting, of which statistics are taken."""
        others = {"add": self.holders.allreduce} if self.misses and self.holders.apart else {}
        return terms_of(
            self.data,
            to_mixture.blocks,
            to_mixture.covariance_type,
            missing=self.misses,
            scaling=to_mixture.scaling,
            row_weights=self.weights,
            reg_covar=to_mixture.reg_covar,
            n_threads=n_threads,
            **others,
        )

    def _block(self, n_workers: int) -> Blocks:
        """All features in one block."""
        return Blocks((np.arange(self.n_features),), (0,), (tuple(range(n_workers)),))

    # ---- starts ----------------------------------------------------------------------------------

    def to_seed(self, terms: FeatureTerms) -> Sequence[Floats] | StoredParts:
        """Rows of this process's workers as k-means takes them, in units of fitting."""
        sizes = [run.stop - run.start for run in self._own]
        if isinstance(self.data, FileMatrix):
            return StoredParts(terms.rows, np.array(sizes, dtype=np.intp))
        parts = [terms.rows.part(run) for run in self._own]
        return [part.read(slice(0, size)) for part, size in zip(parts, sizes, strict=True)]

    def places(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Places of rows among those of all, worker by worker, of their numbers in the data."""
        return rows if self._numbers is None else np.argsort(self._numbers)[rows]

    def numbers(self, places: NDArray[np.intp]) -> tuple[int, ...]:
        """The user's numbers of rows, of their places."""
        rows = places if self._numbers is None else self._numbers[places]
        found = self._number(rows)
        assert found is not None
        return found

    def weights_by_number(self) -> Vector | None:
        """Weights of the rows of all processes as they are numbered in the data."""
        if self.all_weights is None or self._numbers is None:
            return self.all_weights
        found = np.empty_like(self.all_weights)
        found[self._numbers] = self.all_weights
        return found
