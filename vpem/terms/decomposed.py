"""Covariances whose volume, shape or orientation all components have in common.

Celeux and Govaert (1995), Gaussian parsimonious clustering models, write a covariance as
``lambda_k D_k A_k D_k^T``: its volume ``lambda_k = |Sigma_k|^(1/d)``, its shape ``A_k``, diagonal
and of determinant 1, and its orientation ``D_k``, orthogonal. Each is equal (E) or varies (V). The
M-step takes the covariances ``S_k`` of components as they would be alone, with what is added to
variances, and weights ``n_k``, and minimises

    sum_k n_k (log|Sigma_k| + tr(Sigma_k^-1 S_k))

within a family, hub by hub. So it has whatever a free M-step has: rows or features that are spread,
weights, missing values. What is common is common to components, never to hubs: shapes and
orientations of different features have nothing in common, and volumes of hubs change by different
factors in other units. As the floor is inside ``S_k``, families hold exactly, and no covariance is
singular.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vpem._core.axes import common_axes
from vpem.checks import Doubles
from vpem.network.partition import Blocks

SETTLED = 1e-12
"""Change, in nats per row, at which iterations inside an M-step end."""

MOST = 1000
"""Such iterations at most; any of them lowers what is minimised."""

AGAIN = 15
"""The same of axes where those of the last M-step are known, from which the next goes on."""

ON_AXES = ("VEI", "EVI")
"""Families whose orientation is that of the axes: covariances are variances."""

ON_COMMON = ("EVE", "VVE")
"""Families whose components have axes in common, and shapes of their own."""

IN_UNITS = ("EVE", "VVE", "EEV", "VEV")
"""Families that depend on the units of columns: eigenvalues of one covariance are others in other
units. A change of units changes all volumes, and all shapes along axes or of one matrix, alike."""

INVARIANT = ("VEI", "VEE")
"""Families that covariances of some of the features are in, too."""


def n_free(family: str, widths: np.ndarray, k: int) -> int:
    """Count the free parameters of K covariances in hubs of these widths, as mclust does."""
    volumes, shapes, turns = (k if letter == "V" else 1 for letter in family)
    turns = 0 if family in ON_AXES else turns
    d = widths[widths > 0].astype(np.int64)
    return int((volumes + shapes * (d - 1) + turns * (d * (d - 1) // 2)).sum())


def constrained(
    family: str,
    blocks: Blocks,
    covariances: Doubles,
    counts: Doubles,
    before: Doubles | None = None,
) -> Doubles:
    """Return the covariances of a family that are the M-step, laid out as they are given.

    ``counts`` (R, K) are rows of components, of all hubs or of each. Orientations are sought from
    those ``before``, too, from which the M-step then never leads uphill.
    """
    k = counts.shape[1]
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.where(totals > 0, counts / np.where(totals > 0, totals, 1.0), 1.0 / k)
    if len(shares) < blocks.n_blocks:
        shares = np.broadcast_to(shares, (blocks.n_blocks, k))
    out = np.empty_like(covariances)
    theirs = _banded(before, blocks, k) if before is not None and family in ON_COMMON else None
    pairs = zip(_banded(covariances, blocks, k), _banded(out, blocks, k), strict=True)
    for (hubs, given), (_, found) in pairs:
        earlier = None if theirs is None else next(theirs)[1]
        with np.errstate(all="ignore"):
            if np.isfinite(given).all():
                found[...] = _within(family, given, shares[hubs], earlier)
                continue
            found[...] = given  # where they are not finite, for the E-step to find
            good = np.isfinite(given).all(axis=tuple(range(1, given.ndim)))
            earlier = None if earlier is None else earlier[good]
            found[good] = _within(family, given[good], shares[hubs][good], earlier)
    return out


def bounded(blocks: Blocks, covariances: Doubles, counts: Doubles, ratio: float) -> Doubles:
    """Return covariances of which no eigenvalue in a hub is more than ``ratio`` times another.

    They are the M-step under that bound (Fritz, Garcia-Escudero and Mayo-Iscar 2013): eigenvalues
    below some threshold m are raised to it, those above ``ratio m`` lowered to that.
    """
    out, widths = np.empty_like(covariances), blocks.widths.astype(np.int64)
    k = len(covariances)
    if covariances.ndim == 1:
        k = covariances.size // max(int((widths**2).sum()), 1)
    every = np.broadcast_to(counts, (blocks.n_blocks, counts.shape[1]))
    every = every if k == every.shape[1] else every.sum(axis=1, keepdims=True)
    pairs = zip(_banded(covariances, blocks, k), _banded(out, blocks, k), strict=True)
    for (hubs, given), (_, found) in pairs:
        found[...] = given  # where they are not finite, for the E-step to find
        for S, left, weights in zip(given, found, every[hubs], strict=True):
            if not np.isfinite(S).all() or not S.size:
                continue
            if covariances.ndim == 2:
                left[...] = within_ratio(S, weights, ratio)
                continue
            values, vectors = np.linalg.eigh(S)
            changed = within_ratio(values, weights, ratio)
            if changed is not values:
                left[...] = (vectors * changed[:, None, :]) @ vectors.swapaxes(1, 2)
    return out


def within_ratio(values: Doubles, weights: Doubles, ratio: float) -> Doubles:
    """Return eigenvalues (K, w) at the best threshold, of components that weigh so much (K,).

    It minimises ``sum_kj n_k (log l_kj + d_kj / l_kj)`` over ``l_kj`` from m to ``ratio m``.
    Between two of the values d and d / ratio it is known which are moved, and the best m is a mean.
    """
    if values.max() <= ratio * values.min():
        return values
    flat = np.maximum(values.ravel(), np.finfo(np.float64).tiny)
    order = np.argsort(flat)
    d, n = flat[order], np.repeat(weights, values.shape[1])[order]
    sums = np.cumsum([[0, *one] for one in (n, n * d, n * np.log(d))], axis=1)
    edges = np.sort(np.concatenate([d, d / ratio]))
    between = np.concatenate([edges[:1] / 2, (edges[1:] + edges[:-1]) / 2, edges[-1:] * 2])

    def split(m: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        """Sums below m, between, and above ``ratio m``: of n, n d and n log d."""
        low = sums[:, np.searchsorted(d, m)]
        high = sums[:, np.searchsorted(d, ratio * m, "right")]
        return low, high - low, sums[:, -1:] - high

    low, _, high = split(between)
    moved = low[0] + high[0]
    m = (low[1] + high[1] / ratio)[moved > 0] / moved[moved > 0]
    low, middle, high = split(m)
    value = low[0] * np.log(m) + low[1] / m + middle[0] + middle[2]
    value += high[0] * np.log(ratio * m) + high[1] / (ratio * m)
    best = m[np.argmin(value)]
    return np.asarray(np.clip(values, best, ratio * best))


def _banded(flat: Doubles, blocks: Blocks, k: int) -> Iterator[tuple[slice, Doubles]]:
    """Views, one a band of equal hubs, (n, K, w) of variances or (n, K, w, w) of covariances."""
    start = 0
    for columns, hubs, width in blocks.bands:
        n = hubs.stop - hubs.start
        if flat.ndim == 2:
            yield hubs, flat[:, columns].reshape(k, n, width).swapaxes(0, 1)
            continue
        stop = start + n * k * width * width
        yield hubs, flat[start:stop].reshape(n, k, width, width)
        start = stop


def _within(family: str, S: Doubles, shares: Doubles, before: Doubles | None) -> Doubles:
    """The M-step of hubs of equal width: S (n, K, w) or (n, K, w, w), shares (n, K)."""
    width = S.shape[-1]
    if not S.size:
        return S
    if family in ON_AXES:
        return equal_shape(S, shares) if family == "VEI" else equal_volume(S, shares)
    if width == 1:  # with a volume and nothing else
        return S if family[0] == "V" else np.einsum("nk,nkij->nij", shares, S)[:, None] + 0 * S
    if family == "EVV":
        signs, logs = np.linalg.slogdet(S)
        volumes = np.exp(np.where(signs > 0, logs, -np.inf) / width)[..., None, None]
        common = (shares[..., None, None] * volumes).sum(axis=1, keepdims=True)
        return np.asarray(S * (common / volumes))
    if family == "VEE":
        return _scaled_copies(S, shares)
    if family in ON_COMMON:
        pairs = zip(S, shares, [None] * len(S) if before is None else before, strict=True)
        return np.stack([_on_common_axes(family, *one) for one in pairs])
    values, vectors = np.linalg.eigh(S)  # EEV, VEV
    if family == "EEV":
        values = np.einsum("nk,nkw->nw", shares, values)[:, None]
    else:
        values = equal_shape(values, shares)
    return np.asarray((vectors * values[..., None, :]) @ vectors.swapaxes(-1, -2))


def equal_volume(variances: Doubles, shares: Doubles) -> Doubles:
    """Shapes of their own at one volume, the mean of theirs: EVI, and EVE along its axes."""
    volumes = np.exp(np.log(variances).mean(axis=-1, keepdims=True))
    common = (shares[..., None] * volumes).sum(axis=1, keepdims=True)
    return np.asarray(variances * (common / volumes))


def equal_shape(variances: Doubles, shares: Doubles) -> Doubles:
    """Volumes of their own times one shape, found in turns: convex in their logarithms.

    Neither is scaled on the way: ratios of new volumes to old have the weighted mean 1.
    """
    width = variances.shape[-1]
    ahead = variances.sum(axis=-1) / width
    for _ in range(MOST):
        volumes = ahead
        shape = (shares / volumes)[:, None] @ variances
        ahead = (variances / shape).sum(axis=-1) / width
        if not (shares * np.abs(ahead / volumes - 1)).max() > SETTLED:
            break
    return np.asarray(ahead[..., None] * shape)


def _scaled_copies(S: Doubles, shares: Doubles) -> Doubles:
    """Volumes of their own times one matrix, found in turns as in `equal_shape`: VEE."""
    width, flat = S.shape[-1], S.reshape(*S.shape[:2], -1)
    ahead = np.trace(S, axis1=-2, axis2=-1) / width
    for _ in range(MOST):
        volumes = ahead
        matrix = ((shares / volumes)[:, None] @ flat).reshape(-1, width, width)
        try:
            inverse = np.linalg.inv(matrix)
        except np.linalg.LinAlgError:
            inverse = np.full_like(matrix, np.nan)
        ahead = (flat @ inverse.reshape(len(S), -1, 1))[..., 0] / width
        if not (shares * np.abs(ahead / volumes - 1)).max() > SETTLED:
            break
    return np.asarray(ahead[..., None, None] * matrix[:, None])


def _on_common_axes(family: str, S: Doubles, shares: Doubles, before: Doubles | None) -> Doubles:
    """Variances of their own along common axes, at one volume (EVE) or any (VVE), of one hub.

    Axes D minimise ``sum_k n_k sum_j log (D^T S_k D)_jj`` (Flury 1984), with one volume the
    logarithm of ``sum_k n_k |diag(D^T S_k D)|^(1/d)``. Flury and Gautschi's algorithm turns one
    pair of axes after the other; here all pairs turn at once, each by its own Newton step, to which
    limited-memory BFGS adds what the last steps tell of pairs together.
    """
    matrices = [(shares[:, None, None] * S).sum(axis=0), *S]
    if before is not None:
        matrices.append((before / np.trace(before, axis1=1, axis2=2)[:, None, None]).sum(axis=0))
    starts = np.linalg.eigh(np.stack(matrices))[1]
    axes, spreads, equal = np.empty(S.shape[1:]), np.empty(S.shape[:2]), family == "EVE"
    most = MOST if before is None else AGAIN
    S, shares = np.ascontiguousarray(S), np.ascontiguousarray(shares)
    common_axes(S, shares, starts, equal, most, SETTLED, axes, spreads)
    if equal:
        spreads = equal_volume(spreads[None], shares[None])[0]
    return np.asarray((axes * spreads[:, None]) @ axes.T)
