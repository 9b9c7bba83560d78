"""NumPy twins of the kernels for rows that miss values; shapes as in `vpem._core.reference`.

``observed`` (M, d) is 1 where a value is there. A tile is a run of ``order`` with rows of one
block; a row that misses all of a block is in none of its tiles.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vpem._core.reference import Floats, Indices, _block_views

__all__ = ["marginal_diag", "marginal_full", "marginal_moments_diag", "marginal_moments_full"]


def _listed(
    offsets: Indices, tiles: NDArray[np.intc], order: NDArray[np.intc], observed: NDArray[np.uint8]
) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
    """Block, row, and what the row has of it, of every row of the tiles."""
    for b, begin, end, _ in tiles:
        for row in order[begin:end]:
            yield int(b), int(row), observed[row, offsets[b] : offsets[b + 1]].astype(bool)


def marginal_full(
    rows: Floats,
    observed: NDArray[np.uint8],
    offsets: Indices,
    tiles: NDArray[np.intc],
    order: NDArray[np.intc],
    pattern: NDArray[np.intc],
    means: Floats,
    covariances: Floats,
    whiteners: Floats,
    log_dets: Floats,
    terms: Floats,
    n_threads: int,
) -> None:
    """Local terms of what is observed.

    ``terms[b, m, k] = log|Sigma_oo| + (x_o - mu_o)^T Sigma_oo^-1 (x_o - mu_o)``, with ``o`` what
    row m has of block b, and mean and covariance those of component k.
    """
    n_copies = len(log_dets)
    views = _block_views(covariances, offsets, n_copies)
    for b, row, there in _listed(offsets, tiles, order, observed):
        columns = np.flatnonzero(there) + offsets[b]
        for k in range(len(means)):
            own = views[b][k if n_copies > 1 else 0][np.ix_(there, there)]
            away = rows[row, columns].astype(np.float64) - means[k, columns]
            terms[b, row, k] = np.linalg.slogdet(own)[1] + away @ np.linalg.solve(own, away)


def marginal_moments_full(
    rows: Floats,
    observed: NDArray[np.uint8],
    offsets: Indices,
    tiles: NDArray[np.intc],
    order: NDArray[np.intc],
    pattern: NDArray[np.intc],
    responsibilities: Floats,
    spread_weights: Floats,
    means: Floats,
    covariances: Floats,
    whiteners: Floats,
    shifts: Floats,
    first_moment: Floats,
    second_moment: Floats,
    seen: Floats,
    n_threads: int,
) -> None:
    """Add expected moments of the blocks, given what is observed of them.

    Missing values are filled by ``mu_m + Sigma_mo Sigma_oo^-1 (x_o - mu_o)``, and their second
    moment has ``Sigma_mm - Sigma_mo Sigma_oo^-1 Sigma_om`` besides, with weights of its own: the
    responsibilities again where what is missing is Gaussian. ``seen`` adds responsibilities of the
    rows in the tiles of a block.
    """
    n_components = len(means)
    squares = int((np.diff(offsets).astype(np.int64) ** 2).sum())
    n_copies = len(second_moment) // max(squares, 1)
    views = _block_views(covariances, offsets, n_copies)
    seconds = _block_views(second_moment, offsets, n_copies)
    for b, row, there in _listed(offsets, tiles, order, observed):
        part = slice(offsets[b], offsets[b + 1])
        for k in range(n_components):
            weight = float(responsibilities[b if len(responsibilities) > 1 else 0, row, k])
            of_spread = float(spread_weights[b if len(spread_weights) > 1 else 0, row, k])
            own = views[b][k if n_copies > 1 else 0]
            filled = rows[row, part].astype(np.float64)
            mean = means[k, part]
            gain = np.linalg.solve(own[np.ix_(there, there)], own[np.ix_(there, ~there)]).T
            filled[~there] = mean[~there] + gain @ (filled[there] - mean[there])
            spread = np.zeros_like(own)
            spread[np.ix_(~there, ~there)] = (
                own[np.ix_(~there, ~there)] - gain @ own[np.ix_(there, ~there)]
            )
            away = filled - shifts[k, part]
            seen[b, k] += weight
            first_moment[k, part] += weight * away
            change = weight * np.outer(away, away) + of_spread * spread
            seconds[b][k if n_copies > 1 else 0] += np.tril(change)


def marginal_diag(
    rows: Floats,
    observed: NDArray[np.uint8],
    offsets: Indices,
    means: Floats,
    precisions: Floats,
    log_variances: Floats,
    terms: Floats,
    n_threads: int,
) -> None:
    """Local terms of what is observed with diagonal blocks.

    ``terms[b, m, k] = sum_j o_mj (log s_kj + (x_mj - mu_kj)^2 / s_kj)`` over the features of b.
    """
    n_copies = len(precisions)
    for b in range(len(offsets) - 1):
        part = slice(offsets[b], offsets[b + 1])
        for k in range(len(means)):
            c = k if n_copies > 1 else 0
            away = rows[:, part].astype(np.float64) - means[k, part]
            each = log_variances[c, part] + away**2 * precisions[c, part]
            terms[b, :, k] = (each * observed[:, part]).sum(axis=1)


def marginal_moments_diag(
    rows: Floats,
    observed: NDArray[np.uint8],
    responsibilities: Floats,
    offsets: Indices,
    shifts: Floats,
    first_moment: Floats,
    second_moment: Floats,
    seen: Floats,
    n_threads: int,
) -> None:
    """Add weighted moments of what is observed, feature by feature: ``sum g o (x - shift)^p``."""
    n_copies = len(second_moment)
    for b in range(len(offsets) - 1):
        part = slice(offsets[b], offsets[b + 1])
        own = responsibilities[b if len(responsibilities) > 1 else 0].astype(np.float64)
        for k in range(len(shifts)):
            weights = own[:, k, None] * observed[:, part]
            away = (rows[:, part] - shifts[k, part]).astype(np.float64)
            seen[k, part] += weights.sum(axis=0)
            first_moment[k, part] += (weights * away).sum(axis=0)
            second_moment[k if n_copies > 1 else 0, part] += (weights * away**2).sum(axis=0)
