"""Parameters of a mixture as points of a vector space: nothing in it is out of bounds.

Log mixing weights, means, loadings where there are factors, and of every covariance, less what it
is at least, the Cholesky factor with the logarithms of its diagonal (of a variance half the
logarithm). Whatever lies on the line through two mixtures is one too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vpem.network.partition import Blocks
from vpem.terms.covariances import block_views
from vpem.terms.mixture import Mixture

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Coordinates:
    """A mixture in unconstrained coordinates, or the difference of two."""

    blocks: Blocks  # of the mixture
    weights: Vector  # (R, K) log mixing weights; 0 of components without weight
    means: Vector  # (K, d), or (K (1 + q), d): with q factors the loadings follow
    spreads: Vector  # log-Cholesky factors, shaped as the mixture's covariances

    @classmethod
    def of(cls, mixture: Mixture, floor: Vector) -> Coordinates:
        """Return the coordinates of a mixture; NaN of a covariance that is not above the floor.

        Its blocks are positive definite. The floor (d,) is a diagonal matrix below its covariances,
        from which coordinates count them.
        """
        shares = mixture.shares
        weights = np.log(np.where(shares > 0, shares, 1.0))
        if mixture.is_diagonal:
            return cls(
                mixture.blocks,
                weights,
                mixture.located,
                0.5 * np.log(mixture.covariances - floor),
            )
        spreads = np.empty_like(mixture.covariances)
        widths, copies = mixture.blocks.widths, mixture.n_copies
        floors = _by_block(mixture.blocks, floor)
        for view, block, least in zip(
            block_views(spreads, widths, copies), mixture.covariance_blocks, floors, strict=True
        ):
            diagonals = _diagonals(view)
            view[...] = block
            diagonals -= least
            try:
                view[...] = np.linalg.cholesky(view)
            except np.linalg.LinAlgError:  # at the edge of rounding
                view[...] = np.nan
            np.log(diagonals, out=diagonals)
        return cls(mixture.blocks, weights, mixture.located, spreads)

    def minus(self, other: Coordinates) -> Coordinates:
        """Return how this one differs from another."""
        return Coordinates(
            self.blocks,
            self.weights - other.weights,
            self.means - other.means,
            self.spreads - other.spreads,
        )

    def moved(self, steps: Vector, along: Coordinates) -> Coordinates:
        """Return this point moved ``along`` a direction, each root (R,) by a step of its own."""
        blocks = self.blocks
        if len(steps) == 1:
            of_columns = of_spreads = steps
        else:
            of_columns = steps[blocks.block_of]
            of_spreads = of_columns
            if self.spreads.ndim == 1:
                of_spreads = np.repeat(steps, _sizes(blocks, self.spreads))
        return Coordinates(
            blocks,
            self.weights + steps[:, None] * along.weights,
            self.means + of_columns * along.means,
            self.spreads + of_spreads * along.spreads,
        )

    def dot(self, other: Coordinates, share: float = 1.0) -> Vector:
        """Inner product of each block's part, (B,), with a share of its root's mixing weights."""
        blocks = self.blocks
        weights = share * (self.weights * other.weights).sum(axis=1)
        columns = (self.means * other.means).sum(axis=0)
        found = np.broadcast_to(weights, blocks.n_blocks).copy()
        if self.spreads.ndim == 2:
            columns += (self.spreads * other.spreads).sum(axis=0)
        else:
            one, two = self.spreads, other.spreads
            ends = [0, *np.cumsum(_sizes(blocks, one)).tolist()]
            found += [one[a:b] @ two[a:b] for a, b in pairwise(ends)]
        found += np.bincount(blocks.block_of, columns, minlength=blocks.n_blocks)
        return found

    def mixture(self, like: Mixture, floor: Vector) -> Mixture:
        """Return the mixture at this point, over the same floor as in `of`.

        What is not in the coordinates is as in ``like``, and components without weight stay as they
        are there.
        """
        logs = np.where(like.shares > 0, self.weights, -np.inf)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        if like.is_diagonal:
            covariances = np.exp(2 * self.spreads) + floor
        else:
            covariances = np.empty_like(self.spreads)
            widths, copies = self.blocks.widths, like.n_copies
            logarithms = block_views(self.spreads, widths, copies)
            floors = _by_block(self.blocks, floor)
            for view, logs, least in zip(
                block_views(covariances, widths, copies), logarithms, floors, strict=True
            ):
                factors = logs.copy()
                np.exp(_diagonals(logs), out=_diagonals(factors))
                np.matmul(factors, factors.swapaxes(1, 2), out=view)
                diagonals = _diagonals(view)
                diagonals += least
        return like.at(weights, self.means, covariances)


def _by_block(blocks: Blocks, values: Vector) -> list[Vector]:
    """What each block has of values (d,)."""
    return [values[a:b] for a, b in pairwise(blocks.offsets)]


def _sizes(blocks: Blocks, flat: Vector) -> NDArray[np.int64]:
    """Numbers that each block has in a flat array of covariances, (B,)."""
    return blocks.widths.astype(np.int64) ** 2 * (len(flat) // max(blocks.n_entries, 1))


def _diagonals(block: Vector) -> Vector:
    """View of the diagonals (n_copies, d_b) of matrices that lie one after the other."""
    copies, width, _ = block.shape
    return block.reshape(copies, width * width)[:, :: width + 1]
