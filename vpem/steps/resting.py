"""When a run of FedEM has come to rest: by corrections, which are all that its server ever sees."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from vpem.sums.quantizer import Basis

__all__ = ["Rest", "looks_needed"]

LOOKS = 10
"""Small corrections in a row that a noisy run ends with."""


def looks_needed(noisy: bool, participation: float, inner: int) -> int:
    """Say how many corrections in a row must be small before a run is at rest.

    Parameters
    ----------
    noisy : bool
        Whether anything is drawn or quantized: a correction may then be small by chance.
    participation : float
        Probability that a worker takes part: every one should be heard several times.
    inner : int
        Iterations of an outer loop of VR-FedEM, or 0: within one an error of the workers' estimates
        stays, which the next begins without.
    """
    return ceil(max(LOOKS, 2 * inner) / participation) if noisy else 1


class Rest:
    """Counts small corrections in a row.

    Parameters
    ----------
    tol : float
        Largest squared norm of a correction that is small, relative to the statistic's; 0: none is.
    looks : int
        From `looks_needed`.
    basis : Basis or None
        Units in which norms are taken.

    Attributes
    ----------
    count : int
        Small ones in a row so far.
    """

    def __init__(self, tol: float, looks: int, basis: Basis | None) -> None:
        self.tol = tol
        self.looks = looks
        self.basis = basis
        self.count = 0

    def is_small(
        self, statistics: NDArray[np.float64], moved: NDArray[np.float64], step: float
    ) -> bool:
        """Whether the correction that moved every root's statistic (R, P) by a step is small."""
        if self.tol == 0:
            return False
        with np.errstate(over="ignore", invalid="ignore"):
            corrections, sizes = (moved - statistics) / step, moved
            if self.basis is not None:
                corrections, sizes = self.basis.into(corrections), self.basis.into(sizes)
            squares = (corrections**2).sum(axis=1)
            return bool((squares <= self.tol * (sizes**2).sum(axis=1)).all())

    def note(self, small: bool) -> bool:
        """Take note of a correction that workers were heard in; whether the run is at rest."""
        self.count = self.count + 1 if small else 0
        return self.count >= self.looks
