"""NumPy twins of the laws in `vpem._core.latents`: the same names and arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr

from vpem._core.reference_compartments import curves

Floats = NDArray[np.float64]

__all__ = ["Curves", "Lines"]


class Population:
    """Latents that are normal without rows."""

    mean: Floats
    precision: Floats

    def population(self) -> tuple[Floats, Floats, Floats]:
        """Mean (n, q), precision and root of the covariance of latents without rows."""
        return self.mean, self.precision, np.linalg.cholesky(np.linalg.inv(self.precision))


class Lines(Population):
    """``-(z - m)^T P (z - m) / 2 - (z - own)^T cross (z - own) / (2 variance)``."""

    def __init__(
        self, mean: Floats, precision: Floats, own: Floats, cross: Floats, variance: float
    ) -> None:
        self.mean, self.precision = mean, precision
        self.own, self.cross, self.variance = own, cross, variance

    def density(self, z: Floats, values: Floats, slopes: Floats) -> None:
        """Fill the log-density (chains, n) and its gradient (chains, n, q)."""
        prior = np.einsum("ij,cnj->cni", self.precision, z - self.mean)
        rows = np.einsum("nij,cnj->cni", self.cross, z - self.own) / self.variance
        found = -0.5 * (prior * (z - self.mean) + rows * (z - self.own)).sum(axis=-1)
        values[...] = np.where(np.isfinite(found), found, -np.inf)
        slopes[...] = -prior - rows


class Curves(Population):
    """Rows about ``f``, of laws 0 normal, 1 log-normal, 2 Bernoulli (logit f), 3 Poisson (log f).

    Normal rows have the variance ``a^2 + b^2 f^2``, logarithms of log-normal ones ``a^2``.
    """

    def __init__(
        self, mean: Floats, precision: Floats, code: int, base: Floats, places: Any, first: Any,
        times: Floats, columns: Floats, values: Floats, outcomes: Any, censored: Any, kinds: Any,
        noise: Floats, first_dose: Any, dose_times: Floats, amounts: Floats, durations: Floats,
    ) -> None:  # fmt: skip
        self.mean, self.precision, self.code, self.base = mean, precision, code, base
        self.places, self.first, self.times, self.columns = places, first, times, columns
        self.values, self.censored = values, censored
        self.kinds, (self.a, self.b) = kinds[outcomes], noise[outcomes].T
        self.doses = (first_dose, dose_times, amounts, durations)

    def density(self, z: Floats, values: Floats, slopes: Floats) -> None:
        """Fill the log-density (chains, n) and its gradient (chains, n, q)."""
        phi = np.repeat(self.base[None], len(z), axis=0)
        phi[..., self.places] = z
        with np.errstate(all="ignore"):
            f, bends = self._predict(phi)
            each, weight = self._rows(f)
            prior = np.einsum("ij,cnj->cni", self.precision, z - self.mean)
            found = np.add.reduceat(each, self.first[:-1], axis=1)
            found = found - 0.5 * (prior * (z - self.mean)).sum(axis=-1)
            added = np.add.reduceat(weight[..., None] * bends, self.first[:-1], axis=1)
        values[...] = np.where(np.isfinite(found), found, -np.inf)
        slopes[...] = added[..., self.places] - prior

    def _predict(self, phi: Floats) -> tuple[Floats, Floats]:
        """Predictions (chains, N) and their derivatives (chains, N, m) of parameters."""
        of = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        if self.code < 0:
            return (self.columns * phi[:, of]).sum(axis=-1), self.columns[None]
        found = np.empty((len(phi), len(of)))
        slopes = np.empty((*found.shape, phi.shape[2]))
        curves(self.code, phi, self.first, self.times, *self.doses, found, slopes, 1)
        return found, slopes

    def _rows(self, f: Floats) -> tuple[Floats, Floats]:
        """Log-density of rows (chains, N), and its derivative in the predictions."""
        y, a, b = self.values, self.a, self.b
        variance = np.where(self.kinds == 1, a**2, a**2 + (b * f) ** 2)
        sd = np.sqrt(variance)
        u = np.where(self.kinds == 1, np.log(y / f), y - f) / sd
        bend = np.where(self.kinds == 1, 0.0, b**2 * f / variance)
        slope = np.where(self.kinds == 1, -1 / (a * f), -1 / sd - u * bend)
        each, weight = -0.5 * u**2 - np.log(sd), -u * slope - bend
        side = self.censored.astype(np.float64)
        tail = log_ndtr(side * u)
        held = side * slope * np.exp(-0.5 * u**2 - tail) / np.sqrt(2 * np.pi)
        each, weight = np.where(side, tail, each), np.where(side, held, weight)
        choose = [self.kinds == 2, self.kinds == 3]
        each = np.select(choose, [y * f - np.logaddexp(0, f), y * f - np.exp(f)], each)
        return each, np.select(choose, [y - expit(f), y - np.exp(f)], weight)
