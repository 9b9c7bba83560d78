"""What a private fit publishes: sums with noise, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from vpem.sums.noisy import Noisy
from vpem.terms.bounded_rows import BoundedRows

Vector = NDArray[np.float64]


@dataclass
class Releases:
    """Sums with noise, one after the other; the first of the ``multipliers`` is taken next."""

    rows: BoundedRows
    total: Noisy
    multipliers: list[float]

    def take(
        self,
        deviations: Vector,
        local: Callable[[int], NDArray[np.int64]],
        kind: str,
        *,
        whole: bool = False,
    ) -> tuple[Vector, float]:
        """Sum what each worker has (P,), with noise; return it with its noise multiplier.

        ``local`` has units of the rows' grid, or ``whole`` counts; ``deviations`` (P,) are those of
        multiplier 1.
        """
        multiplier, grid = self.multipliers.pop(0), self.rows.grid
        scales = scales_of(deviations, multiplier, grid.unit, rounds=grid.rounds and not whole)
        every = [local(worker) for worker in range(self.rows.n_workers)]
        values = [one.astype(np.float64) if whole else grid.sent(one) for one in every]
        stacked = np.stack(values) if values else np.empty((0, len(deviations)))
        return self.total.add(stacked, scales, grid.unit, kind), multiplier


def scales_of(
    deviations: Vector, multiplier: float, unit: float, *, rounds: bool
) -> NDArray[np.int64]:
    """Return integer scales of noise of a multiplier, in units: rounded up.

    Where each worker has rounded what it sends, a row moves every number by up to a unit more.
    """
    scales = np.ceil(deviations * multiplier / unit)
    if rounds:
        more = sqrt(float(np.square(1 / scales).sum()))
        scales = np.ceil(scales * (1 + multiplier * more))
    return scales.astype(np.int64)
