"""Observed information by Louis' formula: what completed rows say, less what latents hide."""

from __future__ import annotations

import numpy as np

from vpem.saem.conditional import Conditional
from vpem.saem.models.protocol import Counts, SaemModel, Vector

__all__ = ["observed_information", "standard_errors"]

NUDGE = 1e-3
SMALLEST = 1e-2
"""Least size of a parameter that a nudge is relative to, as a part of 1."""


def observed_information(model: SaemModel, theta: Vector, given: Conditional) -> Vector:
    """Return the observed information (p, p), ``-d^2 log g(y; theta)``.

    Louis 1982: the mean of ``-d^2 log f`` over the latents less the variance of ``d log f``. Both
    follow from the statistics' conditional means and covariances, which devices can add up, and
    from derivatives of ``phi`` and ``psi``, by central differences.

    Parameters
    ----------
    model : SaemModel
        Whose ``log_density`` is differentiated.
    theta : ndarray of shape (p,)
        Parameters, a maximum of the likelihood.
    given : Conditional
        Latents at these parameters.

    Returns
    -------
    ndarray of shape (p, p)
        Symmetric.
    """
    p, size = len(theta), model.size
    steps = np.diag(NUDGE * np.maximum(np.abs(theta), SMALLEST))
    sizes = np.diag(steps)

    def density(at: Vector) -> float:
        return model.log_density(given.statistics, model.counts, at)

    here = density(theta)
    bend = np.empty((p, p))
    for i in range(p):
        ends = density(theta + steps[i]) + density(theta - steps[i])
        bend[i, i] = (ends - 2 * here) / sizes[i] ** 2
        for j in range(i):
            same = density(theta + steps[i] + steps[j]) + density(theta - steps[i] - steps[j])
            cross = density(theta + steps[i] - steps[j]) + density(theta - steps[i] + steps[j])
            bend[i, j] = bend[j, i] = (same - cross) / (4 * sizes[i] * sizes[j])
    nobody = Counts(0, 0)
    slopes = np.empty((p, size))  # of phi
    for i in range(p):
        for k, unit in enumerate(np.eye(size)):
            up, down = (model.log_density(unit, nobody, theta + s * steps[i]) for s in (1, -1))
            slopes[i, k] = (up - down) / (2 * sizes[i])
    hidden = slopes @ given.spread @ slopes.T
    found: Vector = -bend - (hidden + hidden.T) / 2
    return found


def standard_errors(information: Vector) -> Vector:
    """Standard errors (p,) of an information matrix; NaN where it is not positive definite.

    Rows and columns are scaled before, so that units do not matter.
    """
    sizes = np.sqrt(np.maximum(np.diag(information), 0.0))
    if not (sizes > 0).all() or not np.isfinite(information).all():
        return np.full(len(information), np.nan)
    scaled = information / np.outer(sizes, sizes)
    values, vectors = np.linalg.eigh(scaled)
    if values[0] <= 1e-10:
        return np.full(len(information), np.nan)
    found: Vector = np.sqrt(((vectors**2) / values).sum(axis=1)) / sizes
    return found
