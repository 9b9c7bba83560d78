"""Concentration after one oral dose, absorbed and eliminated at rates of first order."""

from __future__ import annotations

import numpy as np

from vpem.saem.structures.structure import Vector

__all__ = ["concentration"]

SMALL = 0.05
"""Below it a series is more accurate than a difference."""


def concentration(times: Vector, dose: Vector, z: Vector) -> tuple[Vector, Vector]:
    """Concentration after a dose at time 0, and its gradient.

    ``f = D ke ka / (cl (ka - ke)) (exp(-ke t) - exp(-ka t))``, also where the rates are equal.

    Parameters
    ----------
    times, dose : ndarray of shape (N,)
        Of each row.
    z : ndarray of shape (..., N, 3)
        Logarithms of the rate of absorption, the clearance and the rate of elimination.

    Returns
    -------
    f : ndarray of shape (..., N)
        Concentrations.
    slopes : ndarray of shape (..., N, 3)
        Derivatives of f in z.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        ka, cl, ke = np.exp(z[..., 0]), np.exp(z[..., 1]), np.exp(z[..., 2])
        low, high = np.minimum(ka, ke), np.maximum(ka, ke)
        x = (high - low) * times
        small = x < SMALL
        safe = np.where(small, 1.0, x)
        gone = np.exp(-safe)
        # (1 - exp(-x)) / x and its derivative.
        mean = np.where(small, 1 - x / 2 + x**2 / 6 - x**3 / 24 + x**4 / 120 - x**5 / 720
                        + x**6 / 5040, (1 - gone) / safe)  # fmt: skip
        bend = np.where(small, -1 / 2 + x / 3 - x**2 / 8 + x**3 / 30 - x**4 / 144 + x**5 / 840
                        - x**6 / 5760, (gone - (1 - gone) / safe) / safe)  # fmt: skip
        decay = dose / cl * np.exp(-low * times) * times
        f = ka * ke * decay * mean
        of_high = ka * ke * decay * times * bend * high
        of_low = -low * times * f - ka * ke * decay * times * bend * low
        fast = ka >= ke
        slopes = np.stack(
            [f + np.where(fast, of_high, of_low), -f, f + np.where(fast, of_low, of_high)], axis=-1
        )
    return f, slopes
