"""The kernels for rows that miss values are their twins; plans list every row once."""

import itertools

import numpy as np

from vpem._core import missing as kernels
from vpem.network.partition import Blocks
from vpem.terms.missing import pattern_plan

from .missing_support import random_mixture
from .tables import over
from .twins import assign as twins


def kernel_case(m, widths, k, seed, dtype, tied=False, share=0.4, roots=1):
    rng = np.random.default_rng(seed)
    ends = np.concatenate([[0], np.cumsum(widths)]).astype(np.intp)
    d = int(ends[-1])
    columns = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    count = len(widths)
    blocks = Blocks(tuple(columns), tuple(range(count)), ((0,),) * count)
    mixture = random_mixture(rng, blocks, "tied" if tied else "full", k)
    observed = (rng.random((m, d)) > share).astype(np.uint8)
    plan = pattern_plan(observed, blocks)
    rows = rng.standard_normal((m, d)).astype(dtype)
    shares = rng.dirichlet(np.ones(k), size=(count if roots > 1 else 1, m)).astype(dtype)
    return blocks, mixture, observed, plan, rows, shares, rng


@over(
    dtype=[np.float64, np.float32],
    tied=[False, True],
    shape=[
        (1, [1], 1, 0.0),
        (1, [3], 2, 0.6),
        (255, [4], 2, 0.2),
        (257, [2, 0, 5, 1], 3, 0.5),
        (300, [9], 1, 0.9),
        (300, [12], 2, 0.1),
        (40, [2, 2], 2, 1.0),
    ],
)
def test_full_kernels_are_their_twins(shape, tied, dtype):
    m, widths, k, share = shape
    blocks, mixture, observed, plan, rows, shares, rng = kernel_case(
        m, widths, k, 0, dtype, tied, share, roots=len(widths)
    )
    varying = rng.random((1 if tied else len(widths), m, k)).astype(dtype)
    factors = mixture.factors
    tiles = (blocks.offsets, *plan)
    found = []
    for home, threads in ((kernels, 1), (kernels, 2), (twins, 1)):
        terms = np.zeros((blocks.n_blocks, m, k), dtype)
        home.marginal_full(
            rows, observed, *tiles, mixture.means, mixture.covariances, factors.inverse,
            factors.log_dets, terms, threads,
        )  # fmt: skip
        shifts = (mixture.means + 0.1).astype(dtype)
        first, second = np.zeros((k, blocks.n_features)), np.zeros(mixture.covariances.size)
        seen = np.zeros((blocks.n_blocks, k))
        home.marginal_moments_full(
            rows, observed, *tiles, shares, varying, mixture.means, mixture.covariances,
            factors.inverse, shifts, first, second, seen, threads,
        )  # fmt: skip
        if home is kernels:
            copies = mixture.n_copies
            start = 0
            for width in blocks.widths:
                view = second[start : start + copies * width**2].reshape(copies, width, width)
                view[...] = np.tril(view)
                start += copies * width**2
        found.append((terms, first, second, seen))
    for one, two, twin in zip(*found, strict=True):
        close = (
            {"rtol": 1e-9, "atol": 1e-9} if dtype == np.float64 else {"rtol": 1e-5, "atol": 1e-4}
        )
        np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-11)
        np.testing.assert_allclose(one, twin, **close)


@over(
    dtype=[np.float64, np.float32],
    copies=[1, 3],
    shape=[(1, [1]), (257, [2, 0, 3]), (520, [1] * 4)],
)
def test_diagonal_kernels_are_their_twins(shape, copies, dtype):
    m, widths = shape
    blocks, mixture, observed, _, rows, shares, rng = kernel_case(
        m, widths, 3, 1, dtype, roots=len(widths)
    )
    d = blocks.n_features
    precisions, logs = rng.uniform(0.5, 2, (2, copies, d))
    found = []
    for home, threads in ((kernels, 1), (kernels, 2), (twins, 1)):
        terms = np.empty((blocks.n_blocks, m, 3), dtype)
        home.marginal_diag(
            rows, observed, blocks.offsets, mixture.means, precisions, logs, terms, threads
        )
        first, second, seen = np.zeros((3, d)), np.zeros((copies, d)), np.zeros((3, d))
        shifts = mixture.means.astype(dtype)
        home.marginal_moments_diag(
            rows, observed, shares, blocks.offsets, shifts, first, second, seen, threads
        )
        found.append((terms, first, second, seen))
    for one, two, twin in zip(*found, strict=True):
        close = 1e-10 if dtype == np.float64 else 1e-4
        np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-11)
        np.testing.assert_allclose(one, twin, rtol=close, atol=close)


@over(full=[True, False], tied=[False, True])
def test_moments_of_a_hub_are_the_same_bits_whatever_hubs_are_beside_it(full, tied):
    blocks, mixture, observed, _, rows, shares, _rng = kernel_case(6000, [1] * 6, 3, 3, float, tied)
    found = []
    for n in (1, 6):
        own = Blocks(blocks.features[:n], blocks.roots[:n], blocks.agents[:n])
        cells, values = observed[:, :n].copy(), rows[:, :n].copy()
        means, size = mixture.means[:, :n].copy(), n * mixture.n_copies
        first, seen = np.zeros((3, n)), np.zeros((n, 3) if full else (3, n))
        second = np.zeros(size if full else (mixture.n_copies, n))
        if full:
            plan = pattern_plan(cells, own)
            kernels.marginal_moments_full(
                values, cells, own.offsets, *plan, shares, shares,
                means, mixture.covariances[:size], mixture.factors.inverse[:size], means, first,
                second, seen, 1,
            )  # fmt: skip
            found.append((first[:, 0], second[: mixture.n_copies], seen[0]))
        else:
            kernels.marginal_moments_diag(
                values, cells, shares, own.offsets, means, first, second, seen, 1
            )
            found.append((first[:, 0], second[:, 0], seen[:, 0]))
    for alone, beside in zip(*found, strict=True):
        np.testing.assert_array_equal(alone, beside)


def test_a_plan_lists_every_row_that_has_something_of_a_block_once():
    rng = np.random.default_rng(0)
    observed = (rng.random((600, 12)) > 0.5).astype(np.uint8)
    observed[:, :2] = 1
    blocks = Blocks(
        (np.arange(2), np.arange(2, 3), np.arange(3, 12)), (0, 1, 2), ((0,), (1,), (2,))
    )
    tiles, order, pattern = pattern_plan(observed, blocks)
    for b in range(3):
        own = observed[:, blocks.offsets[b] : blocks.offsets[b + 1]].astype(bool)
        listed = []
        for block, begin, end, direct in tiles:
            if block == b:
                rows = order[begin:end]
                assert 0 < len(rows) <= 256
                assert ((2 * own[rows].sum(axis=1) < own.shape[1]) == direct).all()
                ids = pattern[begin:end]
                same = ids[1:] == ids[:-1]
                assert (same == (own[rows[1:]] == own[rows[:-1]]).all(axis=1)).all()
                listed.extend(rows)
        assert sorted(listed) == list(np.flatnonzero(own.any(axis=1)))
