"""NumPy twins of the kernels in `missing` and `assign`; shapes as in `vpem._core.reference`.

Rows (M, d) may be in either precision; weights (M,) or (0,): all rows alike; centres (K, d), or (R,
K, d) where N workers have their own, R = 1 or N. ``observed`` (M, d) is 1 where a value is there. A
tile is a run of ``order`` with rows of one block; a row that misses all of a block is in none.
"""

from itertools import pairwise

import numpy as np

from .mixture import _block_views


def _listed(offsets, tiles, order, observed):
    """Block, row, and what the row has of it, of every row of the tiles."""
    for b, begin, end, _ in tiles:
        for row in order[begin:end]:
            yield int(b), int(row), observed[row, offsets[b] : offsets[b + 1]].astype(bool)


def marginal_full(
    rows,
    observed,
    offsets,
    tiles,
    order,
    pattern,
    means,
    covariances,
    whiteners,
    log_dets,
    terms,
    n_threads,
):
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
    rows,
    observed,
    offsets,
    tiles,
    order,
    pattern,
    responsibilities,
    spread_weights,
    means,
    covariances,
    whiteners,
    shifts,
    first_moment,
    second_moment,
    seen,
    n_threads,
):
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


def marginal_diag(rows, observed, offsets, means, precisions, log_variances, terms, n_threads):
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
    rows, observed, responsibilities, offsets, shifts, first_moment, second_moment, seen, n_threads
):
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


def nearest_rows(rows, centres, labels, distances, n_threads):
    """Find the nearest centres of rows, and their squared distances.

    ``label_m = argmin_k ||x_m - c_k||^2``, the first of several that are equally near. The kernel
    compares ``||c||^2 - 2 x.c`` about the mean of the centres, of some rows at a time. Where the
    two least differ by less than this can lose to rounding, it compares the distances themselves,
    summed in double precision feature by feature: a label does not depend on how rows are cut in
    tiles, or on which worker holds them.
    """
    every = np.empty((len(centres), len(rows)))
    distances_to(rows, centres, every, n_threads)
    labels[:] = every.argmin(axis=0)
    distances[:] = every[labels, np.arange(len(rows))]


def follow_rows(
    rows, weights, bounds, centres, before, about, labels, upper, lower, totals, changes, n_threads
):
    """Assign the rows of workers after their centres have moved, and keep their clusters' sums.

    Labels are those of `nearest_rows`. A row is not looked at where its bounds, moved as far as the
    centres have (Hamerly, SDM 2010), leave no doubt: ``upper_m + |move of its centre|`` is below
    ``lower_m - max |move of another|``, or below half the distance from its centre to the nearest
    other. What single precision loses goes to the safe side. The distance of a row to its centre is
    at most ``upper``, to any other at least ``lower``; before a row is looked at first these are
    NaN and 0; then it enters the totals. These are, worker by worker, counts ``sum_m w_m`` and sums
    ``sum_m w_m x_m`` of its clusters, and ``sum_m w_m ||x_m - about||^2``, each as the sum of two
    numbers: rows that change their cluster leave the one and enter the other.

    ``bounds`` (N + 1,) are where workers' rows begin, and M; ``before`` the centres that ``upper``
    and ``lower`` are about, ``about`` (d,) a place near the rows, the same in every call. To
    ``changes`` (N,) are added labels that changed. ``totals`` are (N, 2, K + K d + 1).
    """
    n_centres, width = centres.shape[1:]
    for worker, (begin, end) in enumerate(pairwise(bounds)):
        own, some = rows[begin:end].astype(np.float64), slice(begin, end)
        places = centres[min(worker, len(centres) - 1)]
        nearest, off = np.empty(len(own), dtype=np.int32), np.empty(len(own))
        nearest_rows(rows[some], places, nearest, off, n_threads)
        heavy = weights[some] if len(weights) else np.ones(len(own))
        fresh, changed = np.isnan(upper[some]), nearest != labels[some]
        counts, sums = np.zeros(n_centres), np.zeros((n_centres, width))
        for enters, who in ((1, changed | fresh), (-1, changed & ~fresh)):
            clusters = (nearest if enters == 1 else labels[some])[who]
            np.add.at(counts, clusters, enters * heavy[who])
            np.add.at(sums, clusters, enters * heavy[who, None] * own[who])
        squares = heavy[fresh] @ ((own[fresh] - about) ** 2).sum(axis=1)
        totals[worker, 0] += np.concatenate([counts, sums.ravel(), [squares]])
        every = np.empty((n_centres, len(own)))
        distances_to(rows[some], places, every, n_threads)
        every[nearest, np.arange(len(own))] = np.inf
        labels[some], upper[some] = nearest, np.sqrt(off)
        lower[some] = np.sqrt(every.min(axis=0, initial=np.inf))
        changes[worker] += changed.sum()


def inertias_of(totals, about, centres, inertias):
    """Inertias (N,) ``sum_m w_m ||x_m - c_label||^2`` of workers' rows by moments of `follow_rows`.

    ``Q - sum_k g_k.(2 (s_k - n_k a) - n_k g_k)``, where ``g_k = c_k - a``: Q the squares about a, n
    and s the counts and sums. The kernel has about twice the digits of a number.
    """
    n_centres, width = centres.shape[1:]
    for worker, parts in enumerate(totals.sum(axis=1)):
        counts, sums = parts[:n_centres], parts[n_centres:-1].reshape(n_centres, width)
        far = centres[min(worker, len(centres) - 1)] - about
        off = 2 * (sums - counts[:, None] * about) - counts[:, None] * far
        inertias[worker] = parts[-1] - (far * off).sum()


def measure_rows(rows, weights, bounds, centres, labels, distances, inertias, n_threads):
    """Squared distances (M,) of rows to their clusters' centres; weighted sums (N,) are added.

    Rows, weights, bounds and centres are as for `follow_rows`.
    """
    for worker, (begin, end) in enumerate(pairwise(bounds)):
        places = centres[min(worker, len(centres) - 1)]
        off = rows[begin:end].astype(np.float64) - places[labels[begin:end]]
        distances[begin:end] = (off**2).sum(axis=1)
        heavy = weights[begin:end] if len(weights) else np.ones(end - begin)
        inertias[worker] += heavy @ distances[begin:end]


def distances_to(rows, points, out, n_threads):
    """Squared distances (L, M) of all rows to a few points (L, d), ``out_lm = ||x_m - p_l||^2``.

    They are computed in double precision and without cancellation.
    """
    for point, squares in zip(points, out, strict=True):
        squares[:] = ((rows.astype(np.float64) - point) ** 2).sum(axis=1)


def assign_features(
    rows,
    observed,
    weights,
    offsets,
    centres,
    mix,
    labels,
    counts,
    sums,
    there,
    first,
    least,
    changes,
    n_threads,
):
    """Assign rows to their nearest centres by differences that hubs have, in every root's eyes.

    Hub b has ``D_bmk = ||x_m - c_k||^2 - ||x_m - c_1||^2`` over its features of a row that are
    there, and root r the sum ``S_rmk = sum_b C_rb D_bmk``: ``label_rm = argmin_k S_rmk``, the first
    of several. Each root adds up its own features of the rows of a cluster.

    ``observed`` may be (0, d): all values are there. To all but ``labels`` (R, M) is added:
    ``counts`` (R, K); ``sums`` (K, d) and ``there``, the weight of what is there; ``first`` (B,),
    ``sum_m w_m ||x_m - c_1||^2`` over a hub's features; ``least`` (R,), ``sum_m w_m min_k S_rmk``;
    ``changes`` (R,), labels that changed.
    """
    seen = observed.astype(np.float64) if len(observed) else np.ones(rows.shape)
    heavy = weights if len(weights) else np.ones(len(rows))
    known = np.where(seen > 0, rows.astype(np.float64), 0.0)
    squares = seen[:, None] * (known[:, None] - centres) ** 2
    local = np.array([squares[:, :, a:b].sum(axis=2) for a, b in pairwise(offsets)])
    first += local[:, :, 0] @ heavy
    found = np.tensordot(mix, local - local[:, :, :1], axes=1)
    for root, (own, differences) in enumerate(zip(labels, found, strict=True)):
        nearest = differences.argmin(axis=1).astype(labels.dtype)
        least[root] += heavy @ differences.min(axis=1)
        changes[root] += (nearest != own).sum()
        own[:] = nearest
        hard = heavy[:, None] * (nearest[:, None] == np.arange(len(centres)))
        counts[root] += hard.sum(axis=0)
        columns = slice(0, rows.shape[1])
        if len(mix) > 1:
            columns = slice(int(offsets[root]), int(offsets[root + 1]))
        sums[:, columns] += hard.T @ known[:, columns]
        if len(observed):
            there[:, columns] += hard.T @ seen[:, columns]
