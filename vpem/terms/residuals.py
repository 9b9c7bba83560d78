"""What is sent of rows about components that all know, and how far one row can move it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]

WIDEST = 3.5
"""Standard deviations at which single coordinates are clipped, where their squares are summed."""


def farthest(n_features: int) -> float:
    """Return the squared distance, in standard deviations, at which residuals are clipped.

    Of a Gaussian's rows it is d on average, with a standard deviation of ``sqrt(2 d)``: two of
    these above it, and 2 more where there are few features, lie fewer than 4 in 100.
    """
    return n_features + 2 * sqrt(2 * n_features) + 2


@dataclass(frozen=True)
class Parts:
    """Components as all know them, in bounded units: where residuals are taken from.

    ``spreads`` are lower Cholesky factors (K, d, d) of the covariances, or standard deviations (K,
    d).
    """

    weights: Vector  # (K,)
    means: Vector  # (K, d) within -1 and 1
    spreads: Vector
    kind: str
    hard: bool = False  # the nearest alone, as in k-means

    @property
    def is_tied(self) -> bool:
        """Whether components share one spread."""
        return self.kind.startswith("tied")

    @property
    def is_spherical(self) -> bool:
        """Whether all standard deviations of a component are one."""
        return self.kind.endswith("spherical")

    def residuals(self, rows: Vector, component: int) -> Vector:
        """Return rows (m, d) about a mean, in units of the component's spread."""
        from scipy.linalg import solve_triangular

        spread, found = self.spreads[component], rows - self.means[component]
        if spread.ndim == 1:
            found /= spread
        else:
            found = solve_triangular(spread, found.T, lower=True, check_finite=False).T
        return np.asarray(found)

    def log_volumes(self) -> Vector:
        """Return the logarithms of the determinants of the spreads, (K,)."""
        spreads = self.spreads
        own = spreads if spreads.ndim == 2 else np.diagonal(spreads, axis1=1, axis2=2)
        found: Vector = np.log(own).sum(axis=1)
        return np.asarray(found)

    def responsibilities(self, norms: Vector) -> Vector:
        """Return the responsibilities (m, K) of rows with squared residuals (m, K)."""
        if self.hard:
            nearest: Vector = np.eye(len(self.weights))[norms.argmin(axis=1)]
            return nearest
        logs = np.log(self.weights) - self.log_volumes() - 0.5 * norms
        logs -= logs.max(axis=1, keepdims=True)
        shares = np.exp(logs)
        shares /= shares.sum(axis=1, keepdims=True)
        return shares


@dataclass(frozen=True)
class Residuals:
    """Which statistics of residuals are sent, how, and what one row can move.

    A row adds, to each component k, ``g_k (1, z_k, z_k z_k' - I)``: its responsibility times what
    there is of its residual z_k, which is clipped to the length ``r``. Responsibilities are not
    negative and add up to at most 1, so that what a row adds lies in the convex hull of zero and
    of what it would add if it belonged to one component alone: no norm of it is longer than the
    longest of these. With ``t = |z|^2`` from 0 to ``r^2`` the squared lengths of the three parts
    are 1, t, and ``t^2 - 2 t + d`` where all second moments are sent, which is largest at an end.

    Parameters
    ----------
    kind : str
        Covariance type.
    n_components, n_features : int
        K and d.
    """

    kind: str
    n_components: int
    n_features: int

    @property
    def radius(self) -> float:
        """Squared length at which residuals are clipped, r^2."""
        return farthest(self.n_features)

    @property
    def copies(self) -> int:
        """Second moments that are sent: of each component, or of all together."""
        return 1 if self.kind.startswith("tied") else self.n_components

    @property
    def n_second(self) -> int:
        """Numbers of one of them."""
        d = self.n_features
        return {"full": d * (d + 1) // 2, "diag": d, "spherical": 1}[self.shape]

    @property
    def shape(self) -> str:
        """What is sent of second moments: "full", "diag" or "spherical"."""
        if self.kind in ("full", "tied"):
            return "full"
        return self.kind.removeprefix("tied-")

    @property
    def size(self) -> int:
        """Numbers of a message, P."""
        return self.n_components * (1 + self.n_features) + self.copies * self.n_second

    @property
    def lengths(self) -> Vector:
        """Largest squared lengths of what a row adds to counts, first and second moments, (3,)."""
        d, r = self.n_features, self.radius
        second = {
            "full": max(d, r * r - 2 * r + d),
            "diag": min(r * r - 2 * r, (WIDEST**2 - 2) * r) + d,
            "spherical": max(d, r - d) ** 2,
        }
        return np.array([1.0, r, second[self.shape]])

    @property
    def losses(self) -> Vector:
        """What noise of variance 1 on each costs, relative to a component of one row, (3,).

        Half the relative error of a count; of a mean half its square; of a covariance a quarter
        of the sum of the squared errors of its entries: the Kullback-Leibler divergence, in nats,
        of the component from the one without noise, to second order.
        """
        d = self.n_features
        second = {"full": d * (d + 1) / 8, "diag": d / 4, "spherical": 1 / (4 * d)}[self.shape]
        if self.copies < self.n_components:
            second /= self.n_components**2
        return np.array([0.5, d / 2, second])

    @property
    def scales(self) -> Vector:
        """Standard deviations (3,) of noise of multiplier 1 that costs least.

        What a row adds, divided by them, is never longer than 1.
        """
        return balanced([self])[0]

    @property
    def cost(self) -> float:
        """Nats that noise of multiplier 1 costs, relative to a component of one row."""
        return float(np.sqrt(self.losses * self.lengths).sum() ** 2)

    def deviations(self, scales: Vector | None = None) -> Vector:
        """Return the standard deviation of each number of a message for a multiplier of 1, (P,).

        Where others send of the same rows, scales (3,) are those of `balanced`.
        """
        count, first, second = self.scales if scales is None else scales
        k, d = self.n_components, self.n_features
        one = np.full(self.n_second, second)
        if self.shape == "full":
            # Off the diagonal a number stands for two entries of the matrix.
            rows, columns = np.tril_indices(d)
            one[rows != columns] /= sqrt(2)
        return np.concatenate([np.full(k, count), np.full(k * d, first), np.tile(one, self.copies)])

    def packed(self, counts: Integers, firsts: Integers, seconds: Integers) -> Integers:
        """Lay out counts (K,), first (K, d) and second moments (copies, n_second), shape (P,)."""
        return np.concatenate([counts, firsts.ravel(), seconds.ravel()])

    def unpacked(self, message: Vector) -> tuple[Vector, Vector, Vector]:
        """Return counts (K,), first moments (K, d), and second ones.

        These are of shape (copies, d, d), or of the diagonal alone (copies, d).
        """
        k, d = self.n_components, self.n_features
        counts, firsts, seconds = np.split(message, [k, k + k * d])
        seconds = seconds.reshape(self.copies, self.n_second)
        if self.shape == "spherical":
            seconds = np.repeat(seconds / d, d, axis=1)
        elif self.shape == "full":
            rows, columns = np.tril_indices(d)
            full = np.empty((self.copies, d, d))
            full[:, rows, columns] = full[:, columns, rows] = seconds
            seconds = full
        return counts, firsts.reshape(k, d), seconds


def balanced(layouts: Sequence[Residuals]) -> list[Vector]:
    """Return the `Residuals.scales` of several holders of features of the same rows.

    What a row adds to counts, of which all have the same, and to all their moments, divided by
    these, is never longer than 1.
    """
    lengths = np.concatenate([[1.0], *(one.lengths[1:] for one in layouts)])
    losses = np.concatenate([[0.5], *(one.losses[1:] for one in layouts)])
    spent = np.sqrt(losses * lengths)
    found = np.sqrt(lengths * spent.sum() / spent)
    pairs = found[1:].reshape(len(layouts), 2)
    return [np.concatenate([found[:1], pair]) for pair in pairs]
