"""NumPy twins of `vpem._core.families`: the same names and arguments, and the equations.

Shapes: ``M`` rows, ``n`` features in the order of the blocks, ``K`` components, ``B`` blocks with
``offsets (B + 1,)``, ``R`` roots with an estimate of their own (1 or B). Values that are missing
are NaN; they add nothing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.intp]

__all__ = ["cell_moments", "cell_terms", "product_moments", "product_terms"]

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
        for column in cells[:, block].T:
            terms[b] += table[column]


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


def _functions(rows: Floats, kind: int) -> Floats:
    """Functions of each value (M, n, F): 1, x, and log x for `LOGARITHM`; 0 of a missing one."""
    seen = ~np.isnan(rows)
    found = [seen.astype(rows.dtype), np.where(seen, rows, 0)]
    if kind == LOGARITHM:
        found.append(np.log(np.where(seen, rows, 1)))
    return np.stack(found, axis=2)


def product_terms(
    rows: Floats, offsets: Indices, kind: int, table: Floats, terms: Floats, n_threads: int
) -> None:
    """Terms of exponential families: ``terms[b, m, k] += sum_j h(x_mj) + T(x_mj) . eta_jk``.

    ``T(x) = (1, x)`` and ``h(x) = 0`` for ``kind`` 0, ``h(x) = 2 log x!`` for 1 (counts), and
    ``T(x) = (1, x, log x)``, ``h(x) = 0`` for 2. ``table`` holds ``eta``, a row for each function
    of each feature.
    """
    functions = _functions(rows, kind)
    n_functions = functions.shape[2]
    flat = functions.reshape(len(rows), rows.shape[1] * n_functions)
    for b, block in _blocks(offsets):
        own = slice(block.start * n_functions, block.stop * n_functions)
        terms[b] += flat[:, own] @ table[own]
        if kind == POISSON:
            constants = 2 * gammaln(functions[:, block, 1].astype(np.float64) + 1)
            terms[b] += constants.sum(axis=1)[:, None].astype(terms.dtype)


def product_moments(
    rows: Floats,
    responsibilities: Floats,
    offsets: Indices,
    kind: int,
    sums: Floats,
    n_threads: int,
) -> None:
    """Sums over rows: ``sums[j F + f, k] += sum_m gamma_mk T_f(x_mj)``, T as in `product_terms`."""
    functions = _functions(rows, kind).astype(np.float64)
    n_functions = functions.shape[2]
    flat = functions.reshape(len(rows), rows.shape[1] * n_functions)
    for b, block in _blocks(offsets):
        own = slice(block.start * n_functions, block.stop * n_functions)
        shares = responsibilities[b if len(responsibilities) > 1 else 0]
        sums[own] += flat[:, own].T @ shares.astype(np.float64)
