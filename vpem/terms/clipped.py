"""Moments that no row can move by more than 1: rows are clipped, in units of what is known of them.

A row counts for component k by its responsibility r_k, and what it adds to the moments of a block
is measured from that component's mean and in its covariance, ``z = L^-1 (x - mu)``, with z
shortened to a ball of radius ``rho``. Such numbers are of order one whatever the units, and few
rows are clipped once the parameters are near: noise of order one then does little harm.

Of a row all components and blocks together hold the vector of ``a r_k``, ``b r_k z`` and
``c r_k (z z^T - kappa I)``. As ``sum_k r_k <= 1``, its norm is at most that of one component's part
with r = 1, and `Clip` chooses a, b and c such that this is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vpem.terms.covariances import block_views, is_diagonal, is_tied
from vpem.terms.mixture import Mixture

__all__ = ["Clip", "ClippedMoments", "floored", "moved", "n_moments"]

Vector = NDArray[np.float64]

LONGEST_STEP = 3.0
"""Standard deviations that a mean moves in one step at most."""

NARROWEST, WIDEST = 0.1, 10.0
"""Factors by which the variance in any direction may change in one step."""

LEAST_SHARE = 0.02
"""Of its equal share of the rows, what a component counts for at least."""

LEAST_VARIANCE = 1e-6
"""In units of half the bounds, squared."""


@dataclass(frozen=True)
class Clip:
    """How far rows are clipped, and what their moments are multiplied by.

    Attributes
    ----------
    radii : ndarray of shape (B,)
        Square of the radius ``rho`` of each block.
    kappa : ndarray of shape (B,)
        ``E |z|^2 / d`` of a clipped standard normal: what `moved` takes for the unit of variance,
        so that clipping does not shrink covariances.
    counts : float
        a; 0 where the counts are not made private.
    first, second : ndarray of shape (B,)
        b and c of each block.
    """

    radii: Vector
    kappa: Vector
    counts: float
    first: Vector
    second: Vector

    @classmethod
    def of(cls, widths: NDArray[np.intp], covariance_type: str, n_components: int) -> Self:
        """Choose radii by what a normal row reaches, and factors by what noise does to the fit.

        The radius is two standard deviations of ``|z|^2`` above its mean, and 2.

        Parameters
        ----------
        widths : ndarray of shape (B,)
            Features of each block, of all processes.
        covariance_type : str
            Of the mixture.
        n_components : int
            Number of components, K.
        """
        from scipy.stats import chi2

        radii: Vector = widths + 2 * np.sqrt(2.0 * widths) + 2
        inside: Vector = chi2.cdf(radii, widths + 2)
        below: Vector = chi2.sf(radii, np.maximum(widths, 1))
        kappa: Vector = np.where(widths > 0, inside + radii * below / np.maximum(widths, 1), 1.0)
        return cls._balanced(widths, covariance_type, n_components, radii, kappa, 1.0)

    @classmethod
    def of_box(cls, widths: NDArray[np.intp], covariance_type: str) -> Self:
        """Return the same for one component in the middle of the bounds, whose count is known.

        A quarter of the width of the bounds is its standard deviation, so that a row is at most
        ``2 sqrt(d)`` away; ``sqrt(2 d)`` are allowed.
        """
        radii, ones = 2.0 * widths.astype(np.float64), np.ones(len(widths))
        return cls._balanced(widths, covariance_type, 1, radii, ones, 0.0)

    @classmethod
    def _balanced(
        cls,
        widths: NDArray[np.intp],
        covariance_type: str,
        n_components: int,
        radii: Vector,
        kappa: Vector,
        counted: float,
    ) -> Self:
        """Share the unit of sensitivity out by what noise on each part costs in log-likelihood.

        To second order noise of variance ``s^2`` on a part of n numbers costs a component of N rows
        ``n s^2 / 2 N`` where they are counts or first moments, and half that for second moments.
        With factors w^2 the cost is ``sum A / w^2`` under ``sum B w^2 = 1``: w^2 is proportional to
        ``sqrt(A / B)``.
        """
        squared = kappa**2 * widths
        farthest = np.maximum(radii**2 - 2 * kappa * radii, 0.0) + squared
        if covariance_type.endswith("spherical"):
            along = np.maximum(kappa**2 * widths**2, (radii - kappa * widths) ** 2)
            farthest = along / np.maximum(widths, 1)
        sizes = np.array([n_moments(int(width), covariance_type) for width in widths])
        tied = n_components**2 if is_tied(covariance_type) else 1
        cost = np.concatenate([[0.5 * counted], 0.5 * widths, 0.25 * sizes / tied])
        reach = np.concatenate([[1.0], radii, farthest])
        share = np.sqrt(cost / np.maximum(reach, 1e-300))
        share[cost == 0] = 0.0
        factors = np.sqrt(share / (share * reach).sum())
        first, second = factors[1:].reshape(2, len(widths))
        return cls(radii, kappa, float(factors[0]), first, second)

    def only(self, blocks: NDArray[np.intp]) -> Self:
        """Return what this is for some of the blocks."""
        parts = (self.radii, self.kappa, self.first, self.second)
        radii, kappa, first, second = (part[blocks] for part in parts)
        return type(self)(radii, kappa, self.counts, first, second)


def n_moments(width: int, covariance_type: str) -> int:
    """Second moments of a block of so many features."""
    if covariance_type.endswith("spherical"):
        return min(width, 1)
    return width if is_diagonal(covariance_type) else width * (width + 1) // 2


class ClippedMoments:
    """Moments of clipped rows about a mixture, block by block.

    Parameters
    ----------
    mixture : Mixture
        About whose means, and in whose covariances.
    clip : Clip
        Of its blocks.
    """

    def __init__(self, mixture: Mixture, clip: Clip) -> None:
        self.mixture, self.clip = mixture, clip
        self.roots = _roots(mixture)
        self._inverse = [_inverted(root, mixture.is_diagonal) for root in self.roots]
        k, copies = mixture.n_components, mixture.n_copies
        self.counts = np.zeros(k)
        widths = mixture.blocks.widths.tolist()
        self.first = [np.zeros((k, width)) for width in widths]
        sizes = [n_moments(width, mixture.covariance_type) for width in widths]
        self.second = [np.zeros((copies, size)) for size in sizes]

    def add(self, rows: Vector, responsibilities: Vector) -> None:
        """Add rows (m, d), in block order, which count by responsibilities (m, K) of sum 1."""
        blocks, mixture = self.mixture.blocks, self.mixture
        self.counts += responsibilities.sum(axis=0)
        for b in np.flatnonzero(blocks.widths):
            columns = slice(blocks.offsets[b], blocks.offsets[b + 1])
            for k in range(mixture.n_components):
                copy = 0 if mixture.is_tied else k
                share = responsibilities[:, k]
                off = rows[:, columns] - mixture.means[k, columns]
                inverse = self._inverse[b][copy]
                z = off * inverse if mixture.is_diagonal else off @ inverse.T
                length = np.einsum("ij,ij->i", z, z)
                far = length > self.clip.radii[b]
                z[far] *= np.sqrt(self.clip.radii[b] / length[far])[:, None]
                self.first[b][k] += share @ z
                self.second[b][copy] += self._squares(z, share, float(self.clip.kappa[b]))

    def _squares(self, z: Vector, share: Vector, kappa: float) -> Vector:
        """Return the weighted sum of ``z z^T - kappa I``, as numbers of which norms are the same.

        The entries below the diagonal count twice in the norm of the matrix.
        """
        kind, width = self.mixture.covariance_type, z.shape[1]
        if self.mixture.is_diagonal:
            found: Vector = share @ (z**2 - kappa)
            if kind.endswith("spherical"):
                found = found.sum(keepdims=True) / np.sqrt(width)
            return found
        matrix = (z * share[:, None]).T @ z - kappa * share.sum() * np.eye(width)
        return _flattened(matrix)

    def block(self, b: int) -> Vector:
        """Return the moments of a block, multiplied such that they and all others are private."""
        parts = (self.clip.first[b] * self.first[b], self.clip.second[b] * self.second[b])
        return np.concatenate([part.ravel() for part in parts])


def moved(
    moments: ClippedMoments, counts: Vector, found: list[Vector], box: Vector, reg_covar: float
) -> Mixture:
    """M-step: the mixture about which noisy moments were taken, moved by them.

    Noise may make any number of them: a mean moves by `LONGEST_STEP` at most and stays inside the
    bounds, variances change by factors from `NARROWEST` to `WIDEST`.

    Parameters
    ----------
    moments : ClippedMoments
        What `found` was made of; nothing is read of it but how it is laid out.
    counts : ndarray of shape (K,)
        Noisy counts.
    found : list of ndarray
        Noisy `ClippedMoments.block` of each block.
    box : ndarray of shape (2, d)
        Bounds of the features, in block order.
    reg_covar : float
        Added to the diagonal of covariances.
    """
    mixture, clip = moments.mixture, moments.clip
    kind, k = mixture.covariance_type, mixture.n_components
    means = mixture.means.copy()
    made = [root.copy() for root in moments.roots]
    for b in np.flatnonzero(mixture.blocks.widths):
        columns = slice(mixture.blocks.offsets[b], mixture.blocks.offsets[b + 1])
        root, width = moments.roots[b], int(mixture.blocks.widths[b])
        first, second = np.split(found[b], [k * width])
        steps = first.reshape(k, width) / (clip.first[b] * counts[:, None])
        norms = np.linalg.norm(steps, axis=1, keepdims=True)
        steps = steps * np.minimum(1.0, LONGEST_STEP / np.maximum(norms, 1e-300))
        second = second.reshape(mixture.n_copies, -1) / (clip.second[b] * clip.kappa[b])
        own = counts if not mixture.is_tied else counts.sum(keepdims=True)
        half = 0.5 * (box[1, columns] - box[0, columns])
        for copy in range(mixture.n_copies):
            some = range(k) if mixture.is_tied else [copy]
            weights = counts[list(some)] / own[copy]
            between = (steps[list(some)].T * weights) @ steps[list(some)]
            change = _matrix(second[copy] / own[copy], width, kind) - between
            made[b][copy] = _changed(root[copy], change, half, kind, reg_covar)
        for component in range(k):
            one = root[0 if mixture.is_tied else component]
            step = steps[component]
            means[component, columns] += one * step if mixture.is_diagonal else one @ step
        means[:, columns] = np.clip(means[:, columns], box[0, columns], box[1, columns])
    if mixture.is_diagonal:
        nothing = np.empty((mixture.n_copies, 0))
        covariances = np.concatenate([nothing, *made], axis=1)
    else:
        covariances = np.concatenate([np.empty(0), *(part.ravel() for part in made)])
    return Mixture(
        mixture.blocks, kind, (counts / counts.sum())[None], means, covariances, mixture.scaling
    )


def _changed(root: Vector, change: Vector, half: Vector, kind: str, reg_covar: float) -> Vector:
    """Return a block's covariance after a change in its own units, within limits."""
    if is_diagonal(kind):
        factors = np.clip(1.0 + np.diagonal(change), NARROWEST, WIDEST)
        if kind.endswith("spherical"):
            factors, half = factors.mean(), half.max()
        made: Vector = np.clip(root**2 * factors, LEAST_VARIANCE * half**2, half**2) + reg_covar
        return made
    values, vectors = np.linalg.eigh(np.eye(len(half)) + change)
    inner = (vectors * np.clip(values, NARROWEST, WIDEST)) @ vectors.T
    outer = root @ inner @ root.T / np.outer(half, half)
    values, vectors = np.linalg.eigh((outer + outer.T) / 2)
    outer = (vectors * np.clip(values, LEAST_VARIANCE, len(half))) @ vectors.T
    scaled: Vector = outer * np.outer(half, half) + reg_covar * np.eye(len(half))
    return scaled


def floored(counts: Vector, n_samples: float) -> Vector:
    """Return noisy counts (K,) with none below `LEAST_SHARE` of its equal share."""
    found: Vector = np.maximum(counts, LEAST_SHARE * n_samples / len(counts))
    return found


def _roots(mixture: Mixture) -> list[Vector]:
    """Return a root L of each block's covariances: (copies, d_b, d_b), or (copies, d_b)."""
    if mixture.is_diagonal:
        ends = mixture.blocks.offsets[1:-1]
        return np.split(np.sqrt(mixture.covariances), ends, axis=1)
    views = block_views(mixture.covariances, mixture.blocks.widths, mixture.n_copies)
    return [np.asarray(np.linalg.cholesky(view), dtype=np.float64) for view in views]


def _inverted(root: Vector, diagonal: bool) -> Vector:
    inverse: Vector = 1.0 / root if diagonal else np.linalg.inv(root).astype(np.float64)
    return inverse


def _flattened(matrix: Vector) -> Vector:
    """Write a symmetric matrix as numbers of which the norm is the same."""
    row, column = np.tril_indices(len(matrix))
    numbers: Vector = matrix[row, column] * np.where(row == column, 1.0, np.sqrt(2.0))
    return numbers


def _matrix(numbers: Vector, width: int, kind: str) -> Vector:
    """Return the symmetric matrix that some numbers stand for."""
    if kind.endswith("spherical"):
        return np.diag(np.full(width, numbers[0] / np.sqrt(width)))
    if is_diagonal(kind):
        return np.diag(numbers)
    row, column = np.tril_indices(width)
    matrix: Vector = np.empty((width, width))
    matrix[row, column] = numbers / np.where(row == column, 1.0, np.sqrt(2.0))
    matrix[column, row] = matrix[row, column]
    return matrix
