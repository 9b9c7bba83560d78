"""NumPy twins of the kernels: the same names and arguments, and the equations they compute.

The twins are what tests compare with and what a reader reads first. They write into the same
output arguments; ``n_threads`` is accepted and has no effect.

Shapes: ``M`` rows, ``d`` features in the order of the blocks, ``K`` components, ``B`` blocks of
``d_b`` features each with ``offsets (B + 1,)``, ``R`` roots with an estimate of their own (1 when
all blocks share one, else B), ``n_copies`` covariances a block (K, or 1 when tied). Full covariance
blocks lie in one flat array: block by block, copy by copy, row by row.
"""

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.special


def _block_views(flat, offsets, n_copies):
    """Views of shape (n_copies, d_b, d_b) into a flat array of covariance blocks."""
    views = []
    start = 0
    for width in np.diff(offsets):
        size = n_copies * int(width) ** 2
        views.append(flat[start : start + size].reshape(n_copies, int(width), int(width)))
        start += size
    return views


def cholesky_blocks(covariances, offsets, n_copies, whiteners, log_dets, failed):
    """Whitening factor and log-determinant of every covariance block; return whether any failed.

    ``Sigma = L L^T`` (Cholesky), ``whitener = L^-1``, ``log|Sigma| = 2 sum_i log L_ii``. A block
    gets ``failed = 1``, a zero whitener and zero log_det where ``L_ii^2 <= 64 d eps Sigma_ii``:
    what is left of that variance, given the columns before it, may be of rounding.
    """
    into = _block_views(whiteners, offsets, n_copies)
    for b, blocks in enumerate(_block_views(covariances, offsets, n_copies)):
        for c, block in enumerate(blocks):
            failed[c, b] = 0
            log_dets[c, b] = 0
            if block.size == 0:
                continue
            try:
                lower = np.linalg.cholesky(block)
                least = 64 * len(block) * np.finfo(block.dtype).eps * np.diagonal(block)
                left = np.square(np.diagonal(lower))
                if not (np.isfinite(lower).all() and (left > least).all()):
                    raise np.linalg.LinAlgError
            except np.linalg.LinAlgError:
                failed[c, b] = 1
                into[b][c] = 0
                continue
            into[b][c] = scipy.linalg.solve_triangular(lower, np.eye(len(block)), lower=True)
            log_dets[c, b] = 2 * np.log(np.diagonal(lower)).sum()
    return bool(failed.any())


def mahalanobis_full(rows, offsets, means, whiteners, log_dets, terms, n_threads):
    """Local terms of the E-step, Valdeira et al., equation (12).

    ``terms[b, m, k] = log|Sigma_k^b| + || L_k^b^-1 (x_m^b - mu_k^b) ||^2``.
    """
    n_copies = len(log_dets)
    for b, factors in enumerate(_block_views(whiteners, offsets, n_copies)):
        block = slice(offsets[b], offsets[b + 1])
        for k in range(len(means)):
            c = k if n_copies > 1 else 0
            white = (rows[:, block] - means[k, block]) @ factors[c].T
            terms[b, :, k] = log_dets[c, b] + (white**2).sum(axis=1)


def mahalanobis_diag(rows, offsets, means, precisions, log_dets, terms, n_threads):
    """Local terms with diagonal blocks.

    ``terms[b, m, k] = log|Sigma_k^b| + sum_{j in b} (x_mj - mu_kj)^2 p_kj``.
    """
    n_copies = len(log_dets)
    for b in range(len(offsets) - 1):
        block = slice(offsets[b], offsets[b + 1])
        for k in range(len(means)):
            c = k if n_copies > 1 else 0
            squares = (rows[:, block] - means[k, block]) ** 2
            terms[b, :, k] = log_dets[c, b] + squares @ precisions[c, block]


def normalise(sums, log_weights, responsibilities, log_likelihoods, n_threads):
    """Responsibilities and per-row log-likelihood, Valdeira et al., equations (4) and (8).

    ``log g~_mk = log pi_k - s_mk / 2``; responsibilities are its softmax over k, the log-likelihood
    of row m its log-sum-exp (the constant ``-d/2 log(2 pi)`` is not in it). Where every component
    is at ``-inf`` the log-likelihood is ``-inf`` and the responsibilities are the mixing weights.

    Of `differences` (R, M, K - 1) from ``s_m1`` responsibilities are the same, since they do not
    change with what all components share, and the log-likelihood is without ``-s_m1 / 2``.
    """
    scores = np.repeat(log_weights[:, None, :], sums.shape[1], axis=1)
    scores[:, :, log_weights.shape[1] - sums.shape[2] :] -= 0.5 * sums.astype(np.float64)
    log_likelihoods[...] = scipy.special.logsumexp(scores, axis=2)
    unreached = np.isneginf(log_likelihoods)
    soft = scipy.special.softmax(np.where(unreached[:, :, None], 0.0, scores), axis=2)
    responsibilities[...] = np.where(unreached[:, :, None], np.exp(log_weights)[:, None, :], soft)


def differences(terms, row_weights, out, firsts, limit, n_threads):
    """How values differ from the first of their row, and the sum of the first ones over the rows.

    ``out[b, m, k - 1] = t_bmk - t_bm1`` for ``k > 1``; to ``firsts[b]`` is added ``sum_m w_m
    t_bm1``. No weights are weights of 1.

    A difference keeps no more digits than the larger of two values has, so that one far away would
    hide how others differ: what is more than the limit L above the least of its row, by x, counts
    as ``L (2 - L / x)`` above it. Infinite values become finite so, but where all of a row are:
    these do not differ, and the sum of the first ones is infinite.
    """
    values = terms.astype(np.float64)
    least = np.fmin.reduce(values, axis=2, keepdims=True, initial=np.inf)
    nowhere = np.isposinf(least)
    apart = np.where(nowhere, 0.0, values - np.where(nowhere, 0.0, least))
    if limit < np.inf:
        apart = np.where(apart > limit, limit * (2 - limit / np.maximum(apart, limit)), apart)
    out[...] = apart[:, :, 1:] - apart[:, :, :1]
    first = (apart[:, :, :1] + least)[:, :, 0]
    firsts += first.sum(axis=1) if not len(row_weights) else first @ row_weights


def _of_block(responsibilities, b):
    """Responsibilities of the root of block b (M, K)."""
    shared = responsibilities[b if len(responsibilities) > 1 else 0]
    return shared


def moments_full(rows, responsibilities, offsets, shifts, first_moment, second_moment, n_threads):
    """Add the weighted moments of these rows about ``shifts``.

    ``first[k] += sum_m g_mk (x_m - c_k)`` and, a block,
    ``second[k] += sum_m g_mk (x_m - c_k)(x_m - c_k)^T`` (lower triangle; summed over k when tied).
    """
    squares = int((np.diff(offsets) ** 2).sum())
    tied = len(shifts) > 1 and len(second_moment) == squares
    views = _block_views(second_moment, offsets, 1 if tied else len(shifts))
    for b, view in enumerate(views):
        block = slice(offsets[b], offsets[b + 1])
        weights = _of_block(responsibilities, b).astype(np.float64)
        for k in range(len(shifts)):
            centred = (rows[:, block] - shifts[k, block]).astype(np.float64)
            first_moment[k, block] += weights[:, k] @ centred
            view[0 if tied else k] += np.tril((weights[:, k, None] * centred).T @ centred)


def moments_diag(rows, responsibilities, offsets, shifts, first_moment, second_moment, n_threads):
    """Add the weighted moments of these rows about ``shifts``, feature by feature.

    As `moments_full` with ``second[k, j] += sum_m g_mk (x_mj - c_kj)^2``.
    """
    tied = len(second_moment) < len(shifts)
    for b in range(len(offsets) - 1):
        block = slice(offsets[b], offsets[b + 1])
        weights = _of_block(responsibilities, b).astype(np.float64)
        for k in range(len(shifts)):
            centred = (rows[:, block] - shifts[k, block]).astype(np.float64)
            first_moment[k, block] += weights[:, k] @ centred
            second_moment[0 if tied else k, block] += weights[:, k] @ centred**2


def covariances_full(first_moment, second_moment, counts, offsets, reg_covar, covariances):
    """Covariance blocks from moments about a shift, Valdeira et al., equation (11).

    ``Sigma_k = U_k / n_k - (t_k / n_k)(t_k / n_k)^T + diag(reg_covar)``; tied:
    ``Sigma = (sum_k U_k - sum_k t_k t_k^T / n_k) / sum_k n_k + diag(reg_covar)``.
    A component without any weight gets ``diag(reg_covar)``.
    """
    squares = int((np.diff(offsets) ** 2).sum())
    tied = len(first_moment) > 1 and len(second_moment) == squares
    n_copies = 1 if tied else len(first_moment)
    into = _block_views(covariances, offsets, n_copies)
    for b, seconds in enumerate(_block_views(second_moment, offsets, n_copies)):
        block = slice(offsets[b], offsets[b + 1])
        own = counts[b if len(counts) > 1 else 0]
        for c, second in enumerate(seconds):
            members = range(len(own)) if tied else [c]
            total = sum(own[k] for k in members)
            scatter = np.tril(second) + np.tril(second, -1).T
            for k in members:
                if own[k] > 0:
                    scatter = scatter - np.outer(*[first_moment[k, block]] * 2) / own[k]
            block_covariance = scatter / total if total > 0 else np.zeros_like(scatter)
            diagonal = np.maximum(np.diagonal(block_covariance), 0) + reg_covar[block]
            np.fill_diagonal(block_covariance, diagonal)
            into[b][c] = block_covariance


def covariances_diag(first_moment, second_moment, counts, offsets, reg_covar, spherical, variances):
    """Variances from moments about a shift; their mean over the block if ``spherical``."""
    tied = len(first_moment) > 1 and len(second_moment) == 1
    for b in range(len(offsets) - 1):
        block = slice(offsets[b], offsets[b + 1])
        own = counts[b if len(counts) > 1 else 0]
        for c in range(len(second_moment)):
            members = [k for k in (range(len(own)) if tied else [c]) if own[k] > 0]
            total = sum(own[k] for k in members)
            scatter = second_moment[c, block] - sum(
                first_moment[k, block] ** 2 / own[k] for k in members
            )
            value = np.maximum(scatter / total, 0) if total > 0 else 0 * scatter
            value = value + reg_covar[block]
            variances[c, block] = value.mean() if spherical and len(value) else value


def consensus_rounds(indptr, indices, weights, states, steps, n_threads):
    """Run rounds of consensus on ``states (N, V)``, one for each number in ``steps``.

    ``z^{s+1} = step_s (W z^s - z^{s-1}) + z^{s-1}``. With all steps 1 this is ``W^S states``,
    Valdeira et al., equation (6); see `vpem.network.mixing.chebyshev_steps` for
    others. The first step must be 1.
    """
    n_agents = len(states)
    mixing = scipy.sparse.csr_matrix((weights, indices, indptr), shape=(n_agents, n_agents))
    before = np.zeros_like(states)
    for step in steps.astype(states.dtype):
        after = step * (mixing @ states) + (1 - step) * before
        before = states.copy()
        states[...] = after


def neighbour_round(indptr, indices, weights, states, mixed, step, n_threads):
    """Run one round of consensus for the agents whose rows of W are given.

    ``mixed = step W states + (1 - step) mixed``: one of the rounds of `consensus_rounds`, where the
    states of neighbours come from elsewhere.
    """
    n_agents = len(indptr) - 1
    mixing = scipy.sparse.csr_matrix((weights, indices, indptr), shape=(n_agents, len(states)))
    far = states.dtype.type(step)
    before = (1 - far) * mixed[:n_agents] if step != 1 else 0
    mixed[:n_agents] = far * (mixing @ states) + before


def sweep(
    rows,
    row_weights,
    offsets,
    means,
    inverse,
    diagonal,
    log_dets,
    mix,
    log_weights,
    counts,
    first_moment,
    second_moment,
    least,
    n_threads,
):
    """Run the E-step and add up statistics of the M-step in one sweep; return log-likelihoods (R,).

    ``Q`` by `mahalanobis_full` or `mahalanobis_diag`, ``s = C Q`` over the blocks, responsibilities
    and log-likelihoods by `normalise`, times the row weights, and the moments about the means by
    `moments_full` or `moments_diag`, leaving out responsibilities up to ``least``. The compiled
    sweep takes these for zero where it can tell without computing them. The result is each root's
    sum over all rows, without the constant of 2 pi.
    """
    n_blocks, n_components = len(offsets) - 1, len(means)
    terms = np.empty((n_blocks, len(rows), n_components), dtype=rows.dtype)
    if diagonal:
        precisions = inverse.reshape(len(log_dets), -1)
        mahalanobis_diag(rows, offsets, means, precisions, log_dets, terms, n_threads)
    else:
        mahalanobis_full(rows, offsets, means, inverse, log_dets, terms, n_threads)
    sums = np.tensordot(mix.astype(rows.dtype), terms, axes=1)
    responsibilities = np.empty_like(sums)
    log_likelihoods = np.empty(sums.shape[:2])
    normalise(sums, log_weights, responsibilities, log_likelihoods, n_threads)
    weights = row_weights if len(row_weights) else np.ones(len(rows))
    if len(counts):
        responsibilities *= weights[:, None].astype(rows.dtype)
        counts += responsibilities.sum(axis=1, dtype=np.float64)
        kept = np.where(responsibilities > least, responsibilities, 0)
        if diagonal:
            second = second_moment.reshape(len(log_dets), -1)
            moments_diag(rows, kept, offsets, means, first_moment, second, n_threads)
        else:
            moments_full(rows, kept, offsets, means, first_moment, second_moment, n_threads)
    return log_likelihoods @ weights
