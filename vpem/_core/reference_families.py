"""NumPy twins of `vpem._core.families` and `rising`: names, arguments, and the equations.

Shapes: ``M`` rows, ``n`` features in the order of the blocks, ``K`` components, ``B`` blocks with
``offsets (B + 1,)``, ``R`` roots with an estimate of their own (1 or B). Values that are missing
are NaN; they add nothing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln, polygamma

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.intp]

__all__ = [
    "cell_moments",
    "cell_terms",
    "product_moments",
    "product_terms",
    "rising_moments",
    "rising_terms",
]

POISSON, LOGARITHM = 1, 2


def _blocks(offsets: Indices) -> list[tuple[int, slice]]:
    """Blocks that have features, and which."""
    runs = enumerate(pairwise(offsets))
    return [(b, slice(int(i), int(j))) for b, (i, j) in runs if i < j]


def _cells(rows: Floats, firsts: Indices) -> Indices:
    """Cell of each value (M, n): of a missing one C, of one that is no level C + 1."""
    end = firsts[-1]
    known = (rows >= 0) & (rows < np.diff(firsts))
    cells = np.where(known, rows, 0).astype(np.intp) + firsts[:-1]
    return np.where(known, cells, np.where(np.isnan(rows), end, end + 1))


def cell_terms(
    rows: Floats,
    offsets: Indices,
    firsts: Indices,
    table: Floats,
    terms: Floats,
    n_threads: int,
) -> None:
    """Terms of categories: ``terms[b, m, k] += sum_j table[firsts[j] + x_mj, k]``, j in block b.

    Row C of the table is what a missing value adds, row C + 1 what one adds that is no level.
    """
    cells = _cells(rows, firsts)
    for b, block in _blocks(offsets):
        found = np.zeros(terms.shape[1:])
        for column in cells[:, block].T:
            found += table[column]
        terms[b] += found.astype(terms.dtype, copy=False)


def cell_moments(
    rows: Floats,
    responsibilities: Floats,
    offsets: Indices,
    firsts: Indices,
    counts: Floats,
    n_threads: int,
) -> None:
    """Counts of levels: ``counts[firsts[j] + l, k] += sum_m gamma_mk [x_mj = l]``."""
    cells, end = _cells(rows, firsts), int(firsts[-1])
    for b, block in _blocks(offsets):
        shares = responsibilities[b if len(responsibilities) > 1 else 0].T
        for j, column in enumerate(cells[:, block].T, block.start):
            own = slice(firsts[j], firsts[j + 1])
            for k, weights in enumerate(shares):
                counts[own, k] += np.bincount(column, weights, end + 2)[own]


def _functions(rows: Floats, kind: int) -> list[Floats]:
    """Functions of each value, (M, n) each: 1, x, and log x for `LOGARITHM`; 0 of a missing one."""
    rows = rows.astype(np.float64, copy=False)
    seen = ~np.isnan(rows)
    found = [seen.astype(np.float64), np.where(seen, rows, 0)]
    if kind == LOGARITHM:
        found.append(np.log(np.where(seen, rows, 1)))
    return found


def product_terms(
    rows: Floats, offsets: Indices, kind: int, table: Floats, terms: Floats, n_threads: int
) -> None:
    """Terms of exponential families: ``terms[b, m, k] += sum_j h(x_mj) + T(x_mj) . eta_jk``.

    ``T(x) = (1, x)`` and ``h(x) = 0`` for ``kind`` 0, ``h(x) = 2 log x!`` for 1 (counts), and
    ``T(x) = (1, x, log x)``, ``h(x) = 0`` for 2. ``table`` (F, n, K) holds ``eta``, in double
    precision: what is large may cancel.
    """
    functions = _functions(rows, kind)
    for b, block in _blocks(offsets):
        found = np.zeros(terms.shape[1:])
        for values, factors in zip(functions, table, strict=True):
            found += values[:, block] @ factors[block]
        if kind == POISSON:
            found += 2 * gammaln(functions[1][:, block] + 1).sum(axis=1)[:, None]
        terms[b] += found.astype(terms.dtype, copy=False)


def product_moments(
    rows: Floats,
    responsibilities: Floats,
    offsets: Indices,
    kind: int,
    sums: Floats,
    n_threads: int,
) -> None:
    """Sums over rows: ``sums[f, j, k] += sum_m gamma_mk T_f(x_mj)``, T as in `product_terms`."""
    functions = _functions(rows, kind)
    for b, block in _blocks(offsets):
        shares = responsibilities[b if len(responsibilities) > 1 else 0]
        for values, into in zip(functions, sums, strict=True):
            into[block] += values[:, block].T @ shares.astype(np.float64, copy=False)


def rising_terms(
    rows: Floats,
    first: float,
    offsets: Indices,
    line: Floats,
    sizes: Floats,
    terms: Floats,
    n_threads: int,
) -> None:
    """Terms of negative binomial counts ``x >= T`` (``first``), for sizes ``r``.

    ``terms[b, m, k] += sum_j line_j0k + line_j1k x - 2 log(Gamma(x + r) / Gamma(r + T)) - ...``:
    of the rising factorial ``(r + T) (r + T + 1) .. (r + x - 1)`` its logarithm without that of
    ``(r + T)^(x - T)``, which is in the line. Of ``log x!`` all is added.
    """
    for b, block in _blocks(offsets):
        for j in range(block.start, block.stop):
            own = np.flatnonzero(rows[:, j] >= first)
            x = rows[own, j, None].astype(np.float64)
            base = sizes[j] + first
            rising = gammaln(x - first + base) - gammaln(base) - (x - first) * np.log(base)
            found = line[j, 0] + line[j, 1] * x + 2 * (gammaln(x + 1) - rising)
            terms[b, own] += found.astype(terms.dtype)


def rising_moments(
    rows: Floats,
    edges: Floats,
    responsibilities: Floats,
    offsets: Indices,
    sizes: Floats,
    sums: Floats,
    n_threads: int,
) -> None:
    """Derivatives by ``log r`` of ``log Gamma(x + r) / Gamma(r + e)``, by the edge e below x.

    Over the rows whose count x lies from ``edges[p]`` on and below the next one:
    ``sums[j, p, 0, k] += gamma_mk``, ``sums[j, p, 1, k] += gamma_mk sum_i r / (r + i)`` and
    ``sums[j, p, 2, k] += gamma_mk sum_i r i / (r + i)^2``, i from ``edges[p]`` to x - 1. These are
    ``r (psi(x + r) - psi(e + r))``, and that less ``r^2 (psi'(e + r) - psi'(x + r))``.
    """
    for b, block in _blocks(offsets):
        shares = responsibilities[b if len(responsibilities) > 1 else 0].astype(np.float64)
        for j in range(block.start, block.stop):
            bins = np.searchsorted(edges, rows[:, j], side="right") - 1
            bins[np.isnan(rows[:, j])] = -1
            for p, first in enumerate(edges):
                own = np.flatnonzero(bins == p)
                x, size = rows[own, j, None].astype(np.float64), sizes[j]
                slope = size * (digamma(x + size) - digamma(first + size))
                square = size**2 * (polygamma(1, first + size) - polygamma(1, x + size))
                for f, found in enumerate((np.ones_like(slope), slope, slope - square)):
                    sums[j, p, f] += (shares[own] * found).sum(axis=0)
