"""Every kernel against its NumPy twin."""

import numpy as np
import pytest

from vpem._core.cholesky import cholesky_blocks
from vpem._core.consensus import consensus_rounds, neighbour_round
from vpem._core.covariances import covariances_diag, covariances_full
from vpem._core.mahalanobis import mahalanobis_diag, mahalanobis_full
from vpem._core.moments import moments_diag, moments_full
from vpem._core.normalise import differences, normalise
from vpem._core.threads import one_blas_thread
from vpem.network.graph import make_graph
from vpem.network.mixing import mixing_matrix

from .tables import each, over
from .twins import mixture as twins

LAYOUTS = {
    "one feature": (1,),
    "one block": (7,),
    "singles": (1, 1, 1),
    "unequal": (1, 4, 2),
    "empty blocks": (0, 3, 0, 2, 0),
    "wide": (1, 40),
}
ROWS_AND_THREADS = ((1, 1), (200, 2), (256, 1), (257, 1), (257, 2))  # a tile has 256 rows
KINDS = [  # components, one covariance for all, one estimate for all roots
    (1, False, True),
    (3, False, True),
    (3, True, True),
    (3, False, False),
    (3, True, False),
]
DTYPES = (np.float64, np.float32)


@pytest.fixture(autouse=True, scope="module")
def blas():
    """Keep BLAS out of the kernels' way, as a fit does."""
    with one_blas_thread():
        yield


class Problem:
    """Random arguments of the kernels for one layout of blocks."""

    def __init__(self, layout, k, tied, shared, dtype, m=1, scale=1.0):
        rng = np.random.default_rng([m, k, len(layout)])
        widths = LAYOUTS[layout]
        d = sum(widths)
        self.dtype = dtype
        self.copies = 1 if tied else k
        self.roots = 1 if shared else len(widths)
        self.n_blocks = len(widths)
        self.offsets = np.concatenate([[0], np.cumsum(widths)]).astype(np.intp)
        self.rows = (scale * rng.normal(size=(m, d)) + 3 * scale).astype(dtype)
        self.means = (scale * rng.normal(size=(k, d)) + 3 * scale).astype(dtype)
        soft = rng.dirichlet(np.full(k, 0.3), size=(self.roots, m))
        self.responsibilities = np.ascontiguousarray(soft, dtype=dtype)
        covariances = []
        for width in widths:
            root = rng.normal(size=(self.copies, width, width)) / np.sqrt(max(width, 1))
            block = root @ root.transpose(0, 2, 1) + 0.5 * np.eye(width)
            covariances.append(block.ravel() * scale**2)
        self.covariances = np.concatenate(covariances).astype(dtype)
        self.precisions = (rng.uniform(0.2, 4, size=(self.copies, d)) / scale**2).astype(dtype)
        self.log_dets = rng.normal(size=(self.copies, self.n_blocks)).astype(dtype)
        self.counts = rng.uniform(0.5, 9, size=(self.roots, k))

    def whitened(self, kernel):
        """Outputs of a Cholesky kernel: whiteners, log-determinants, failures."""
        out = (
            np.full_like(self.covariances, 7),
            np.full((self.copies, self.n_blocks), 7, dtype=self.dtype),
            np.full((self.copies, self.n_blocks), 7, dtype=np.uint8),
        )
        any_failed = kernel(self.covariances, self.offsets, self.copies, *out)
        assert bool(any_failed) == bool(out[2].any())
        return out

    def terms(self, kernel, factors, log_dets, n_threads):
        out = np.full((self.n_blocks, len(self.rows), len(self.means)), np.nan, dtype=self.dtype)
        kernel(self.rows, self.offsets, self.means, factors, log_dets, out, n_threads)
        return out

    def moments(self, kernel, full, n_threads):
        """Moments added to what is there already."""
        first = np.full(self.means.shape, 0.5)
        if full:
            second = np.zeros(len(self.covariances))
        else:
            second = np.full((self.copies, self.means.shape[1]), 0.25)
        arguments = (self.rows, self.responsibilities, self.offsets, self.means)
        kernel(*arguments, first, second, n_threads)
        return first, second


def assert_close(found, wanted, dtype):
    """Equal but for some ten units in the last place of the largest entry."""
    assert found.shape == wanted.shape
    assert np.isfinite(found).all()
    size = np.abs(wanted).max(initial=0.0)
    tolerance = 50 * np.finfo(dtype).eps
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * max(size, 1e-300))


@over(layout=LAYOUTS, dtype=DTYPES, kind=[(1, False), (3, False), (3, True)])
def test_cholesky_blocks(layout, dtype, kind):
    k, tied = kind
    problem = Problem(layout, k, tied, True, dtype)
    found = problem.whitened(cholesky_blocks)
    wanted = problem.whitened(twins.cholesky_blocks)
    assert not found[2].any()
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=200 * np.finfo(dtype).eps)


@each("layout", LAYOUTS)
def test_whiteners_turn_covariances_into_the_identity(layout):
    problem = Problem(layout, 3, False, True, np.float64)
    whiteners, log_dets, _ = problem.whitened(cholesky_blocks)
    start = 0
    for b, width in enumerate(LAYOUTS[layout]):
        for k in range(3):
            part = slice(start, start + width * width)
            whitener = whiteners[part].reshape(width, width)
            covariance = problem.covariances[part].reshape(width, width)
            np.testing.assert_array_equal(whitener, np.tril(whitener))
            white = whitener @ covariance @ whitener.T
            np.testing.assert_allclose(white, np.eye(width), atol=1e-9)
            sign, log_det = np.linalg.slogdet(covariance) if width else (1.0, 0.0)
            assert sign == 1
            assert log_dets[k, b] == pytest.approx(log_det, rel=1e-10, abs=1e-10)
            start += width * width


@over(layout=LAYOUTS, size=ROWS_AND_THREADS, dtype=DTYPES)
def test_mahalanobis_full(layout, size, dtype):
    m, n_threads = size
    for k, tied, shared in KINDS[:3]:
        problem = Problem(layout, k, tied, shared, dtype, m)
        whiteners, log_dets, _ = problem.whitened(twins.cholesky_blocks)
        found = problem.terms(mahalanobis_full, whiteners, log_dets, n_threads)
        wanted = problem.terms(twins.mahalanobis_full, whiteners, log_dets, 1)
        assert_close(found, wanted, dtype)


@over(layout=LAYOUTS, size=ROWS_AND_THREADS, dtype=DTYPES)
def test_mahalanobis_diag(layout, size, dtype):
    m, n_threads = size
    for k, tied, shared in KINDS[:3]:
        problem = Problem(layout, k, tied, shared, dtype, m)
        factors = (problem.precisions, problem.log_dets)
        found = problem.terms(mahalanobis_diag, *factors, n_threads)
        wanted = problem.terms(twins.mahalanobis_diag, *factors, 1)
        assert_close(found, wanted, dtype)


@over(
    dtype=DTYPES,
    n_threads=[1, 2],
    roots=[1, 4],
    size=[(1, 1), (1, 3), (257, 1), (257, 5)],
    implied=[0, 1],
)
def test_normalise(roots, size, dtype, n_threads, implied):
    m, k = size
    rng = np.random.default_rng([roots, m, k])
    sums = (30 * rng.normal(size=(roots, m, k - implied))).astype(dtype)
    log_weights = np.log(rng.dirichlet(np.ones(k), size=roots))
    results = []
    for kernel in (normalise, twins.normalise):
        responsibilities = np.full((roots, m, k), np.nan, dtype=dtype)
        log_likelihoods = np.full((roots, m), np.nan)
        kernel(sums, log_weights, responsibilities, log_likelihoods, n_threads)
        results.append((responsibilities, log_likelihoods))
    (found, found_log), (wanted, wanted_log) = results
    assert_close(found, wanted, dtype)
    assert_close(found_log, wanted_log, np.float64)
    np.testing.assert_allclose(found.sum(axis=2), 1, rtol=10 * np.finfo(dtype).eps)


@over(
    dtype=DTYPES,
    n_threads=[1, 2],
    blocks=[0, 1, 3],
    size=[(1, 1), (1024, 2), (1025, 5)],
    weighted=[False, True],
    limit=[20.0, np.inf],
)
def test_differences(blocks, size, dtype, n_threads, weighted, limit):
    m, k = size
    rng = np.random.default_rng([blocks, m, k])
    terms = (30 * rng.normal(size=(blocks, m, k))).astype(dtype)
    weights = rng.gamma(1.0, size=m if weighted else 0)
    results = []
    for kernel in (differences, twins.differences):
        out, firsts = np.full((blocks, m, k - 1), np.nan, dtype=dtype), np.ones(blocks)
        kernel(terms, weights, out, firsts, limit, n_threads)
        results.append((out, firsts))
    (found, firsts), (wanted, others) = results
    assert_close(found, wanted, dtype)
    np.testing.assert_allclose(firsts, others, rtol=1e-11, atol=1e-9)


@over(layout=LAYOUTS, size=ROWS_AND_THREADS, dtype=DTYPES, full=[True, False])
def test_moments(layout, size, dtype, full):
    m, n_threads = size
    kernel = moments_full if full else moments_diag
    twin = twins.moments_full if full else twins.moments_diag
    for kind in KINDS:
        problem = Problem(layout, *kind, dtype, m)
        first, second = problem.moments(kernel, full, n_threads)
        wanted_first, wanted_second = problem.moments(twin, full, 1)
        assert_close(first, wanted_first, dtype)
        if full:
            second, wanted_second = (lower(problem, s) for s in (second, wanted_second))
        assert_close(second, wanted_second, dtype)


def lower(problem, flat):
    """Lower triangles of flat blocks: the kernels promise nothing above the diagonal."""
    parts = []
    start = 0
    for width in np.diff(problem.offsets):
        for _ in range(problem.copies):
            block = flat[start : start + width * width].reshape(width, width)
            parts.append(block[np.tril_indices(width)])
            start += width * width
    return np.concatenate(parts)


@over(full=[True, False], tied=[False, True])
def test_moments_of_a_hub_are_the_same_bits_whatever_hubs_are_beside_it(full, tied):
    rng = np.random.default_rng(3)
    rows, weights = rng.normal(size=(6000, 8)), rng.dirichlet(np.ones(3), size=(1, 6000))
    copies = 1 if tied else 3

    def first_of(n):
        own, means = np.ascontiguousarray(rows[:, :n]), np.zeros((3, n))
        first, second = np.zeros((3, n)), np.zeros(copies * n if full else (copies, n))
        kernel = moments_full if full else moments_diag
        kernel(own, weights, np.arange(n + 1), means, first, second, 1)
        return first[:, 0], second[:copies] if full else second[:, 0]

    for beside, alone in zip(first_of(8), first_of(1), strict=True):
        np.testing.assert_array_equal(beside, alone)


@over(layout=LAYOUTS, full=[True, False])
def test_moments_of_two_halves_are_the_moments_of_the_whole(layout, full):
    kernel = moments_full if full else moments_diag
    problem = Problem(layout, 3, False, False, np.float64, 600)
    whole = problem.moments(kernel, full, 1)
    first = np.full_like(whole[0], 0.5)
    second = np.zeros_like(whole[1]) if full else np.full_like(whole[1], 0.25)
    for part in (slice(0, 301), slice(301, 600)):
        kernel(
            np.ascontiguousarray(problem.rows[part]),
            np.ascontiguousarray(problem.responsibilities[:, part]),
            problem.offsets,
            problem.means,
            first,
            second,
            2,
        )
    np.testing.assert_allclose(first, whole[0], rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(second, whole[1], rtol=1e-12, atol=1e-10)


@over(layout=LAYOUTS, kind=KINDS, reg_covar=[0.0, 1e-3])
def test_covariances_full(layout, kind, reg_covar):
    problem = Problem(layout, *kind, np.float64, 200)
    first, second = problem.moments(twins.moments_full, True, 1)
    counts = problem.responsibilities.sum(axis=1)
    floors = reg_covar * np.arange(1.0, first.shape[1] + 1)
    results = []
    for kernel in (covariances_full, twins.covariances_full):
        out = np.full_like(second, np.nan)
        kernel(first, second, counts, problem.offsets, floors, out)
        results.append(out)
    assert_close(*results, np.float64)


@over(layout=LAYOUTS, kind=KINDS, spherical=[True, False])
def test_covariances_diag(layout, kind, spherical):
    problem = Problem(layout, *kind, np.float64, 200)
    first, second = problem.moments(twins.moments_diag, False, 1)
    counts = problem.responsibilities.sum(axis=1)
    floors = 1e-3 * np.arange(1.0, first.shape[1] + 1)
    results = []
    for kernel in (covariances_diag, twins.covariances_diag):
        out = np.full_like(second, np.nan)
        kernel(first, second, counts, problem.offsets, floors, spherical, out)
        results.append(out)
    assert_close(*results, np.float64)
    if spherical:
        for left, right in zip(problem.offsets[:-1], problem.offsets[1:], strict=True):
            assert (results[0][:, left:right] == results[0][:, left : left + 1]).all()


@over(
    dtype=DTYPES,
    n_threads=[1, 2],
    n_agents=[1, 2, 9],
    n_rounds=[0, 1, 2, 7],
    n_values=[0, 1, 33, 5000],
)
def test_consensus_rounds(n_agents, n_rounds, n_values, dtype, n_threads):
    mixing = mixing_matrix(make_graph("path", n_agents))
    csr = (mixing.indptr.astype(np.int32), mixing.indices.astype(np.int32))
    weights = mixing.data.astype(dtype)
    start = np.random.default_rng(n_agents).normal(size=(n_agents, n_values)).astype(dtype)
    found, wanted = start.copy(), start.copy()
    consensus_rounds(*csr, weights, found, np.ones(n_rounds), n_threads)
    twins.consensus_rounds(*csr, weights, wanted, np.ones(n_rounds), 1)
    assert_close(found, wanted, dtype)
    power = np.linalg.matrix_power(mixing.toarray(), n_rounds)
    assert_close(found, (power @ start).astype(dtype), dtype)


@over(dtype=[np.float64, np.float32], n_threads=[1, 2])
def test_neighbour_rounds_are_those_of_all_agents(dtype, n_threads):
    """Two processes with the states of each other's agents run the rounds of one."""
    mixing = mixing_matrix(make_graph("geometric", 9, seed=2))
    rng = np.random.default_rng(0)
    memory = np.zeros((2, 9 * 64 + 64), dtype=dtype)
    here, there = (
        row[-row.ctypes.data % 64 // row.itemsize :][: 9 * 64].reshape(9, 64) for row in memory
    )
    here[...] = rng.standard_normal((9, 64))
    wanted = here.copy()
    steps = np.array([1.0, 1.7, 1.4, 1.3])
    csr = (mixing.indptr.astype(np.int32), mixing.indices.astype(np.int32))
    weights = mixing.data.astype(dtype)
    twins.consensus_rounds(*csr, weights, wanted, steps, 1)
    loose = 1e-4 if dtype == np.float32 else 1e-12
    for step in steps:
        twin = there.copy()
        for rows in (slice(0, 4), slice(4, 9)):
            indptr = csr[0][rows.start : rows.stop + 1]
            inner = slice(indptr[0], indptr[-1])
            part = (indptr - indptr[0], csr[1][inner], weights[inner], here)
            twins.neighbour_round(*part, twin[rows], step, 1)
            neighbour_round(*part, there[rows], step, n_threads)
        np.testing.assert_allclose(there, twin, rtol=loose, atol=loose)
        here, there = there, here
    np.testing.assert_allclose(here, wanted, rtol=loose, atol=loose)


def test_neighbour_round_refuses_states_it_cannot_work_on():
    one = (np.array([0, 1], dtype=np.int32), np.zeros(1, dtype=np.int32), np.ones(1))
    with pytest.raises(ValueError, match="aligned"):
        neighbour_round(*one, np.zeros((1, 5)), np.zeros((1, 5)), 1.0, 1)
