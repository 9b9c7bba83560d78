"""What hubs know of factors that they share, and what is known of them once that is added up.

Given its own features alone hub b has of the factors of component k the precision
``G_b = L_b' Psi_b^-1 L_b`` and of a row ``u_b = L_b' Psi_b^-1 (x_b - mu_b)``, beside the noise's
term ``c_b = (x_b - mu_b)' Psi_b^-1 (x_b - mu_b) + log|Psi_b|``. All three add up over hubs. With
their sums G, U, C and ``B = (I + G)^-1``:

    -2 log p(x) = C - U' B U - log|B| + d log 2 pi,   E f = B U,   cov f = B

which is the identity of Woodbury for a covariance ``L L' + Psi`` with block-diagonal Psi.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.checks import Floats
from vpem.terms.covariances import Factors, block_views, factorise

if TYPE_CHECKING:
    from vpem.network.partition import Blocks
    from vpem.terms.factor_mixture import FactorMixture


Vector = NDArray[np.float64]


@dataclass(frozen=True)
class LoadedFactors(Factors):
    """What the E-step needs of a mixture with factors; of its noise as `Factors` has it.

    Attributes
    ----------
    blocks : Blocks
        Features of each hub.
    projections : ndarray of shape (d, K q)
        ``Psi^-1 L``, in block order.
    centre : ndarray of shape (d,)
        A point near to all means, which is taken off rows before they are projected.
    offsets : ndarray of shape (B, K q)
        ``L' Psi^-1 (mu - centre)`` of each hub.
    grams : ndarray of shape (B, K, q, q)
        ``G = L' Psi^-1 L`` of each hub, in float64.
    """

    blocks: Blocks
    projections: Floats
    centre: Floats
    offsets: Floats
    grams: Vector

    @classmethod
    def of(cls, mixture: FactorMixture, dtype: DTypeLike) -> Self:
        """Factor every block of the noise, and project the loadings."""
        blocks, (k, d, q) = mixture.blocks, mixture.loadings.shape
        factors, tied = factorise(mixture, np.float64), mixture.is_tied
        projections = np.empty((d, k, q))
        grams = np.zeros((blocks.n_blocks, k, q, q))
        offsets = np.zeros((blocks.n_blocks, k, q))
        centre = mixture.means.mean(axis=0)
        lower: list[Vector] = []
        if not mixture.is_diagonal:
            lower = block_views(factors.inverse.astype(np.float64), blocks.widths, mixture.n_copies)
        for columns, hubs, width in blocks.bands:
            shape = (k, hubs.stop - hubs.start, width)
            loadings = mixture.loadings[:, columns].reshape(*shape, q).swapaxes(0, 1)
            if lower:
                root = np.stack(lower[hubs])
                white = root @ loadings
                found = root.swapaxes(2, 3) @ white
            else:
                inverse = np.sqrt(factors.inverse[:, columns].astype(np.float64))
                root = inverse.reshape(1 if tied else k, *shape[1:], 1).swapaxes(0, 1)
                white = root * loadings
                found = root * white
            grams[hubs] = white.swapaxes(2, 3) @ white
            away = (mixture.means - centre)[:, columns].reshape(shape).swapaxes(0, 1)
            offsets[hubs] = (away[:, :, None] @ found)[:, :, 0]
            projections[columns] = found.swapaxes(1, 2).reshape(-1, k, q)
        kept = (factors.means, factors.inverse, factors.log_dets)
        made = (projections.reshape(d, k * q), centre, offsets.reshape(-1, k * q))
        noise = [own.astype(dtype, copy=False) for own in kept]
        onto = [own.astype(dtype, copy=False) for own in made]
        return cls(
            noise[0], noise[1], noise[2], factors.failed, blocks, onto[0], onto[1], onto[2], grams
        )

    def projected(self, rows: Floats) -> Floats:
        """Return u of each hub for rows (m, d) in block order: (B, m, K q)."""
        out = np.zeros((len(self.offsets), len(rows), self.projections.shape[1]), dtype=rows.dtype)
        centred = rows - self.centre
        for columns, hubs, width in self.blocks.bands:
            own = centred[:, columns].reshape(len(rows), -1, width).swapaxes(0, 1)
            onto = self.projections[columns].reshape(-1, width, self.projections.shape[1])
            np.matmul(own, onto, out=out[hubs])
        out -= self.offsets[:, None]
        return out

    def projected_together(self, rows: Floats) -> Floats:
        """Return the sum U of all hubs for rows (m, d) in block order: (1, m, K q)."""
        found: Floats = (rows - self.centre) @ self.projections - self.offsets.sum(axis=0)
        return found[None]


@dataclass(frozen=True)
class Posterior:
    """What is known of the factors of any row of a component.

    Attributes
    ----------
    covariances : ndarray of shape (R, K, q, q)
        ``B = (I + G)^-1``, as each root finds it; R = 1 where all share one sum.
    log_dets : ndarray of shape (R, K)
        ``log|B|``.
    """

    covariances: Vector
    log_dets: Vector

    @classmethod
    def of(cls, grams: Vector) -> Self:
        """Invert ``I + G`` of sums G (R, K, q, q).

        An estimate of a root's need not be positive semi-definite as the sum is: eigenvalues that
        the error of the rounds made negative count as 0.
        """
        values, vectors = np.linalg.eigh(grams)
        inverse = 1.0 / (1.0 + np.maximum(values, 0.0))
        covariances = (vectors * inverse[..., None, :]) @ vectors.swapaxes(-1, -2)
        return cls(covariances, np.log(inverse).sum(axis=-1))

    def explain(self, onto: Floats) -> tuple[Floats, Floats]:
        """Expected factors (R, m, K, q), and what they take off C, (R, m, K), for sums U."""
        n_roots, k, q, _ = self.covariances.shape
        onto = onto.reshape(n_roots, onto.shape[1], k, q)
        expected = np.empty_like(onto)
        inverse = self.covariances.astype(onto.dtype, copy=False)
        np.matmul(onto.swapaxes(1, 2), inverse, out=expected.swapaxes(1, 2))
        explained = np.einsum("rmkq,rmkq->rmk", onto, expected)
        explained += self.log_dets[:, None].astype(onto.dtype, copy=False)
        return expected, explained
