"""Degenerate components, singular but for the floor, and those that coincide.

The likelihood of a Gaussian mixture has no maximum: a component of few rows, or of rows that do not
vary in some direction, gains without end as its variance there shrinks. Only what is added to
variances, the floor, ends that. How high such a likelihood is says how low the floor is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vpem.checks import Doubles, Mask
from vpem.rules import DECOMPOSED
from vpem.terms.mixture import Mixture, variances_of

AT_FLOOR = 1.1
"""Variances, in floors, up to which they are at the floor: the rows add less than a tenth of it."""

WIDENED, MARGIN = 0.1, 20.0
"""Of covariances of one volume: lengths of the shortest, in its own, of one that may have been at
the floor before its volume was raised to that of all, and by how much less that may be wrong."""

COINCIDES = 1e-6
"""Part of a standard deviation, covariance or rate by which components do not differ."""

IN_NOISE = 1e-3
"""The same where a fit ends while noise still moves it: differences of copies settle slowly."""

ROUNDING = 64 * np.finfo(np.float64).eps
"""Variances of standardised features that may be of rounding alone, a floor where there is none."""


def degenerate(terms: Any, mixture: Any, rows: float | None = None) -> Mask:
    """Return which components (K,) of Gaussian, t or log-normal features are so in a hub here.

    ``terms`` have the floors, and how many ``rows`` there are unless that is said. A prior makes
    every component proper.
    """
    flags = np.zeros(mixture.n_components, dtype=np.bool_)
    if mixture.is_proper or terms.is_proper:
        return flags
    if rows is None:
        # Rows that weigh less than 1 on average are rows all the same.
        rows = max(terms.total_weight, terms.n_samples)
    if mixture.kinds is None:
        return degenerate_in_hubs(mixture, terms.reg_covar, rows)
    for part, part_terms in zip(mixture.parts, terms.parts, strict=True):
        if part.core is not None:
            flags |= degenerate_in_hubs(part.core, part_terms.reg_covar, rows)
    return flags


def degenerate_in_hubs(mixture: Any, floors: Doubles, rows: float) -> Mask:
    """Return which components (K,) are so in any hub, by floors (d,) and of so many rows in all.

    They are where their variance in some direction is at the floor, though that of all rows is not,
    or where their rows are too few for a covariance without one.
    """
    blocks, k = mixture.blocks, mixture.n_components
    every = np.broadcast_to(mixture.weights, (blocks.n_blocks, k))
    floors = np.maximum(floors, ROUNDING)
    flags = np.zeros(k, dtype=np.bool_)
    bands, views = blocks.bands, None if mixture.is_diagonal else mixture.covariance_blocks
    family = mixture.covariance_type if mixture.covariance_type in DECOMPOSED else ""
    own_shape_at_one_volume = family.startswith("EV")
    if mixture.is_diagonal and not mixture.n_factors and not own_shape_at_one_volume:
        # Each column is judged by itself.
        every, columns = every[blocks.block_of], slice(0, blocks.n_features)
        bands = [(columns, columns, 1)] if blocks.n_features else []
    for columns, hubs, width in bands:
        count, weights = hubs.stop - hubs.start, every[hubs]
        shape = (k, count, width)
        units = 1 / np.sqrt(floors[columns].reshape(count, 1, width))
        means = mixture.means[:, columns].reshape(shape).swapaxes(0, 1) * units
        if views is None:
            variances = mixture.covariances[:, columns].reshape(-1, count, width).swapaxes(0, 1)
            spreads = variances[..., None] * np.eye(width)
        else:
            spreads = np.stack(views[hubs.start : hubs.stop])
        if mixture.n_factors:
            q = mixture.n_factors
            loadings = mixture.loadings[:, columns].reshape(*shape, q).swapaxes(0, 1)
            spreads = spreads + loadings @ loadings.swapaxes(2, 3)
        spreads = spreads * (units[..., None] * units[..., None, :])
        about = means - weights[:, None] @ means
        whole = np.broadcast_to(spreads, (count, k, width, width))
        total = np.einsum("nk,nkij->nij", weights, whole)
        total += (about * weights[..., None]).swapaxes(1, 2) @ about
        varying = (np.diagonal(total, axis1=1, axis2=2) > AT_FLOOR).sum(axis=1)
        if mixture.is_diagonal:
            varying = np.minimum(varying, 1 + mixture.n_factors)
        # A covariance needs one row more than it has columns, for the mean; a tied one, of all
        # rows, one for each mean; a volume or variances along common axes two rows, if all rows
        # are enough for one covariance. Counts are near whole numbers most often: half a row
        # decides.
        found, needed = rows * weights, varying + 1.0
        if family not in ("", "EVV"):
            needed = np.minimum(varying, 1) + 1.0
        if mixture.is_tied:
            needed = varying + (found > 0).sum(axis=1)
            found = np.broadcast_to(found.sum(axis=1)[:, None], found.shape)
        few = (found < needed[:, None] - 0.5) | (rows < varying[:, None] + 0.5)
        flags |= (few & (varying > 0)[:, None]).any(axis=0)
        if own_shape_at_one_volume:
            # A component at the floor in one direction is the wider in all: as long as any is.
            longest = np.linalg.eigvalsh(spreads)[..., -1:]
            shorter = longest.min(axis=1, keepdims=True) / longest
            spreads = spreads * (np.where(shorter < WIDENED, shorter / MARGIN, 1.0))[..., None]
        # At a floor of 1 in directions where all rows are not.
        low = np.zeros(spreads.shape[:2], dtype=np.bool_)
        try:
            np.linalg.cholesky(spreads - AT_FLOOR * np.eye(spreads.shape[-1]))
        except np.linalg.LinAlgError:
            low = np.linalg.eigvalsh(spreads)[..., 0] <= AT_FLOOR
            for hub in np.flatnonzero(low.any(axis=1)):
                values, vectors = np.linalg.eigh(total[hub])
                varied = vectors[:, values > AT_FLOOR]
                inside = varied.T @ spreads[hub] @ varied
                low[hub] = np.linalg.eigvalsh(inside).min(axis=1, initial=np.inf) <= AT_FLOOR
        flags |= low.any(axis=0)
    # Those that were given up are no part of the mixture.
    flags &= (mixture.weights > 0).any(axis=0)
    return flags


def coinciding(mixture: Mixture) -> Mask:
    """Return which components (K, K) have the same parameters in all hubs here.

    Loadings of factors, known up to a rotation that hubs share, are not looked at. Components that
    a posterior does not use are all as the prior is, those that were given up as all rows are; they
    coincide with none.
    """
    if not mixture.blocks.n_blocks:  # hubs are elsewhere, and say what they find
        return np.ones((mixture.n_components, mixture.n_components), dtype=np.bool_)
    same: Mask = mixture.in_use & mixture.in_use[:, None]
    if mixture.kinds is None:
        return same & _same_normals(mixture)
    for part in mixture.parts:
        if part.core is not None:
            same &= _same_normals(part.core)
        for name, table in part.tables.items():
            sizes = np.abs(table) if part.law.domains[name] == "positive" else np.ones_like(table)
            same &= _near(table, sizes)
    return same


def copies_in_noise(mixture: Mixture, is_noisy: bool) -> list[int]:
    """Return components of one hub that coincide with earlier ones, as far as noise lets see.

    Means are held beside standard deviations, and covariances beside two of these.
    """
    nearness = IN_NOISE if is_noisy else COINCIDES
    spreads = np.sqrt(variances_of(mixture))
    copies = []
    for k in range(1, mixture.n_components):
        units = np.minimum(spreads[:k], spreads[k])
        near = (np.abs(mixture.means[:k] - mixture.means[k]) <= nearness * units).all(axis=1)
        near &= (np.abs(spreads[:k] - spreads[k]) <= nearness * units).all(axis=1)
        if not mixture.is_diagonal and not mixture.is_tied and near.any():
            for covariances in mixture.covariance_blocks:
                apart = np.abs(covariances[:k] - covariances[k])
                near &= (apart <= nearness * units[:, :, None] * units[:, None]).all(axis=(1, 2))
        if near.any():
            copies.append(k)
    return copies


def _same_normals(mixture: Mixture) -> Mask:
    """Return which components (K, K) have the same means and covariances."""
    k = mixture.n_components
    if not mixture.n_features:
        return np.ones((k, k), dtype=np.bool_)
    spreads = variances_of(mixture)
    full = [] if mixture.is_diagonal else mixture.covariance_blocks
    flat = [np.broadcast_to(view, (k, *view.shape[1:])).reshape(k, -1) for view in full]
    means = mixture.means[:, mixture.blocks.position]
    values = np.concatenate([means, spreads, *flat], axis=1)
    return _near(values, np.concatenate([np.sqrt(spreads), spreads, *map(np.abs, flat)], axis=1))


def _near(values: Doubles, sizes: Doubles) -> Mask:
    """Return which rows (K, K) of values (K, n) are the same beside their sizes."""
    least = COINCIDES * (sizes + np.finfo(np.float64).tiny)
    rows = [(np.abs(values - one) <= np.minimum(least, tolerance)).all(axis=1)
            for one, tolerance in zip(values, least, strict=True)]  # fmt: skip
    return np.array(rows).reshape(len(values), len(values))
