"""Kernels of families against their NumPy twins."""

import numpy as np
import pytest
from scipy.special import gammaln

from vpem._core import families, rising

from .tables import over
from .twins import models as numpy_twins

LAYOUTS = {"one": (1,), "block": (5,), "singles": (1, 1, 1), "empty hubs": (0, 3, 0, 2, 0)}
ROWS_AND_THREADS = ((0, 1), (1, 1), (256, 2), (257, 1), (1300, 2))  # a tile has 256 rows
PRODUCTS = {"plain": 0, "counts": 1, "logarithms": 2}


class Problem:
    """Rows with missing values, shares of components and tables, for one layout of blocks."""

    def __init__(self, layout, dtype, m, k, shared):
        rng = np.random.default_rng([m, k, len(layout)])
        widths = LAYOUTS[layout]
        self.n, self.k, self.dtype = sum(widths), k, dtype
        self.offsets = np.concatenate([[0], np.cumsum(widths)]).astype(np.intp)
        self.missing = rng.random((m, self.n)) < 0.2
        roots = 1 if shared else len(widths)
        self.shares = rng.dirichlet(np.full(k, 0.3), (roots, m)).astype(dtype)
        self.terms = rng.normal(size=(len(widths), m, k)).astype(dtype)
        self.rng = rng

    def rows(self, values):
        return np.where(self.missing, np.nan, values).astype(self.dtype)

    def categories(self):
        """Levels, of which some are none, and where each feature's begin."""
        n_levels = np.arange(self.n) % 4 + 1
        values = self.rng.integers(0, n_levels, self.missing.shape).astype(float)
        odd = self.rng.random(values.shape) < 0.05
        values[odd] = self.rng.choice([-1, 4, 1e30, np.inf, -np.inf], odd.sum())
        return self.rows(values), np.concatenate([[0], np.cumsum(n_levels)]).astype(np.intp)

    def values(self, kind):
        """Counts, of which some are large, or positive numbers of all sizes."""
        spread = 10.0 ** self.rng.uniform(-3, 6, self.missing.shape)
        return self.rows(np.floor(spread) if kind == 1 else spread)


def same(found, wanted, dtype):
    assert np.isfinite(found).all()
    rounding = 60 * np.finfo(dtype).eps
    size = np.abs(wanted).max(initial=0.0)
    np.testing.assert_allclose(found, wanted, rtol=rounding, atol=rounding * size)


@over(layout=LAYOUTS, dtype=(np.float64, np.float32), m_threads=ROWS_AND_THREADS)
@pytest.mark.parametrize("k", [1, 3, 8])
def test_categories(layout, dtype, m_threads, k):
    m, n_threads = m_threads
    problem = Problem(layout, dtype, m, k, shared=k != 3)
    rows, firsts = problem.categories()
    table = problem.rng.normal(size=(firsts[-1] + 2, k))
    table[-2] = 0
    terms, counts = [], []
    for home, threads in ((families, n_threads), (numpy_twins, 1), (families, 1)):
        terms.append(problem.terms.copy())
        home.cell_terms(rows, problem.offsets, firsts, table, terms[-1], threads)
        counts.append(np.full((firsts[-1], k), 0.5))
        home.cell_moments(rows, problem.shares, problem.offsets, firsts, counts[-1], threads)
    same(terms[0], terms[1], dtype)
    same(counts[0], counts[1], np.float64)
    assert terms[0].tobytes() == terms[2].tobytes()
    assert counts[0].tobytes() == counts[2].tobytes()


@over(layout=LAYOUTS, dtype=(np.float64, np.float32), m_threads=ROWS_AND_THREADS)
@pytest.mark.parametrize("kind", PRODUCTS.values(), ids=PRODUCTS)
def test_products(layout, dtype, m_threads, kind):
    m, n_threads = m_threads
    k = 3 if kind else 5
    problem = Problem(layout, dtype, m, k, shared=bool(kind))
    rows = problem.values(kind)
    n_functions = 3 if kind == 2 else 2
    table = problem.rng.normal(size=(n_functions, problem.n, k))
    terms, sums = [], []
    for home, threads in ((families, n_threads), (numpy_twins, 1), (families, 1)):
        terms.append(problem.terms.copy())
        home.product_terms(rows, problem.offsets, kind, table, terms[-1], threads)
        sums.append(np.full((n_functions, problem.n, k), 0.5))
        home.product_moments(rows, problem.shares, problem.offsets, kind, sums[-1], threads)
    same(terms[0], terms[1], dtype)
    same(sums[0], sums[1], np.float64)
    assert terms[0].tobytes() == terms[2].tobytes()
    assert sums[0].tobytes() == sums[2].tobytes()


@over(layout=LAYOUTS, dtype=(np.float64, np.float32), m_threads=ROWS_AND_THREADS)
def test_large_counts(layout, dtype, m_threads):
    m, n_threads = m_threads
    k = 1 + m % 3
    problem = Problem(layout, dtype, m, k, shared=m % 2)
    rows, edges = problem.values(1), np.array([64.0, 256, 1024])
    sizes = 10 ** problem.rng.uniform(-4, 4, (problem.n, k))
    line = problem.rng.normal(size=(problem.n, 2, k))
    terms, sums = [], []
    for home, threads in ((rising, n_threads), (numpy_twins, 1), (rising, 1)):
        terms.append(problem.terms.copy())
        home.rising_terms(rows, 64.0, problem.offsets, line, sizes, terms[-1], threads)
        sums.append(np.full((problem.n, len(edges), 3, k), 0.5))
        home.rising_moments(rows, edges, problem.shares, problem.offsets, sizes, sums[-1], threads)
    same(terms[0], terms[1], np.float64 if dtype == np.float64 else np.float32)
    for part in range(3):  # counts, slopes, curvatures
        same(sums[0][:, :, part], sums[1][:, :, part], np.float32 if part else np.float64)
    assert terms[0].tobytes() == terms[2].tobytes()
    assert sums[0].tobytes() == sums[2].tobytes()


def test_terms_of_large_sizes_are_those_of_a_poisson():
    x = np.array([64.0, 100, 1000, 1e6])[:, None]
    size, terms = np.full((1, 1), 1e8), np.zeros((1, 4, 1))
    exact = np.array([sum(np.log1p(np.arange(64, int(v)) / 1e8)) for v in x[:3, 0]])
    args = (np.array([0, 1]), np.zeros((1, 2, 1)), size, terms, 1)
    rising.rising_terms(x, 64.0, *args)
    ahead = (x[:3, 0] - 64) * np.log1p(64 / 1e8)
    wanted = 2 * (gammaln(x[:3, 0] + 1) - (exact - ahead))
    np.testing.assert_allclose(terms[0, :3, 0], wanted, rtol=1e-14)
