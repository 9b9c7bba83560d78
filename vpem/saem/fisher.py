"""Observed information by Louis' formula: what completed rows say, less what latents hide."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vpem.saem.conditional import Conditional
from vpem.saem.models.protocol import Counts, SaemModel, Vector

__all__ = ["observed_information", "standard_errors"]

NUDGE = 1e-3
"""First nudges, as parts of parameters."""

SMALLEST = 1e-2
"""Least size of a parameter that a first nudge is relative to, as a part of 1."""

PART = 1e-2
"""Nudges, as parts of the standard errors that parameters would have alone and with no latents
hidden: in any units, and near zero too, the density is close to a parabola so far."""

LOOKS = 12


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

    def density(at: Vector) -> float:
        with np.errstate(invalid="ignore", divide="ignore"):  # of a nudge that is too large
            return model.log_density(given.statistics, model.counts, at)

    here = density(theta)
    bend = np.empty((p, p))
    steps = np.zeros((p, p))
    for i in range(p):
        steps[i, i], bend[i, i] = _along(density, theta, i, here)
    sizes = np.diag(steps)
    for i in range(p):
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


def _along(
    density: Callable[[Vector], float], theta: Vector, i: int, here: float
) -> tuple[float, float]:
    """Find a nudge of parameter i, and the second derivative of the density in it."""
    size = NUDGE * max(abs(float(theta[i])), SMALLEST)
    for _ in range(LOOKS):
        step = np.zeros(len(theta))
        step[i] = size
        bend = (density(theta + step) + density(theta - step) - 2 * here) / size**2
        if not np.isfinite(bend):
            size /= 10
            continue
        wanted = PART / np.sqrt(-bend) if bend < 0 else size
        if size / 3 <= wanted <= 3 * size:
            break
        size = wanted
    return size, float(bend)


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
