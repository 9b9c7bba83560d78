"""Covariances block by block: their kinds, their shapes, and their Cholesky factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem._core.cholesky import cholesky_blocks
from vpem._core.mahalanobis import mahalanobis_diag, mahalanobis_full
from vpem.checks import Floats
from vpem.network.partition import Blocks

if TYPE_CHECKING:
    from vpem.terms.mixture import Mixture


Vector = NDArray[np.float64]


def is_tied(covariance_type: str) -> bool:
    """Whether all components share one covariance."""
    return covariance_type.startswith("tied")


def is_diagonal(covariance_type: str) -> bool:
    """Whether covariances of this type are stored as variances."""
    return not covariance_type.endswith(("full", "tied"))


def is_independent(covariance_type: str) -> bool:
    """Whether the features of a hub have variances of their own, and no covariances."""
    return covariance_type.endswith("diag")


def covariance_shape(blocks: Blocks, covariance_type: str, n_components: int) -> tuple[int, ...]:
    """Shape of the array of all covariances, which is flat where blocks are full."""
    copies = 1 if is_tied(covariance_type) else n_components
    if is_diagonal(covariance_type):
        return copies, blocks.n_features
    return (copies * blocks.n_entries,)


def block_views(
    flat: NDArray[np.float64], widths: NDArray[np.intp], copies: int
) -> list[NDArray[np.float64]]:
    """Views of shape (copies, d_b, d_b), one a block, into a flat array of covariances."""
    views, start = [], 0
    for width in widths.tolist():
        stop = start + copies * width * width
        views.append(flat[start:stop].reshape(copies, width, width))
        start = stop
    return views


@dataclass(frozen=True)
class Factors:
    """What the E-step needs of a mixture, in the precision of the data."""

    means: Floats  # (K, d) in block order
    inverse: Floats  # inverse Cholesky factors, flat, or inverse variances of shape (n_copies, d)
    log_dets: Floats  # (n_copies, B) ``log|Sigma|`` of every block
    failed: NDArray[np.uint8]  # (n_copies, B) 1 where a block is not positive definite

    def terms(self, rows: Floats, offsets: NDArray[np.intp], n_threads: int) -> Floats:
        """Local terms ``Q`` of these rows, shape (B, m, K), Valdeira et al., equation (12)."""
        out = np.empty((len(offsets) - 1, len(rows), len(self.means)), dtype=rows.dtype)
        kernel = mahalanobis_full if self.inverse.ndim == 1 else mahalanobis_diag
        kernel(rows, offsets, self.means, self.inverse, self.log_dets, out, n_threads)
        return out


def factorise(mixture: Mixture, dtype: DTypeLike) -> Factors:
    """Cholesky factors and log-determinants of every block of ``mixture``."""
    blocks = mixture.blocks
    copies = mixture.n_copies
    log_dets = np.zeros((copies, blocks.n_blocks))
    failed = np.zeros((copies, blocks.n_blocks), dtype=np.uint8)
    covariances = mixture.covariances
    if covariances.ndim == 1:
        inverse = np.empty_like(covariances)
        cholesky_blocks(covariances, blocks.offsets, copies, inverse, log_dets, failed)
    else:
        good = np.isfinite(covariances) & (covariances > 0)
        safe = np.where(good, covariances, 1.0)
        inverse = np.where(good, 1.0 / safe, 0.0)
        member = np.zeros((copies, blocks.n_blocks))
        for copy in range(copies):
            np.add.at(log_dets[copy], blocks.block_of, np.log(safe[copy]))
            np.add.at(member[copy], blocks.block_of, ~good[copy])
        failed[...] = member > 0
    return Factors(
        np.ascontiguousarray(mixture.means, dtype=dtype),
        np.ascontiguousarray(inverse, dtype=dtype),
        np.ascontiguousarray(log_dets, dtype=dtype),
        failed,
    )


def variances_of(mixture: Mixture) -> Vector:
    """Return the variances (K, d) of each component, in the user's order and in units of fitting.

    They are the diagonals of covariances, which are not put together for that.
    """
    shape = mixture.means.shape
    if mixture.is_diagonal:
        found = np.broadcast_to(mixture.covariances, shape)
    else:
        blocks = [np.diagonal(view, axis1=1, axis2=2) for view in mixture.covariance_blocks]
        found = np.broadcast_to(np.concatenate(blocks, axis=1), shape)
    found = found + mixture.explained
    return found[:, mixture.blocks.position]
