"""Terms and sums of features that are independent within a component: categories and products."""
import numpy as np

from cython.parallel cimport prange, threadid
from libc.math cimport isnan, lgamma, log

from vpem._core.real cimport real
from vpem._core.shares cimport add_shares, all_kept, at_once, share_begin, worth

cdef extern from "simd/cells.h" nogil:
    int vpem_instruction_set()
    void vpem_look_up(
        int, const Py_ssize_t*, Py_ssize_t, const double*, Py_ssize_t, double*)
    void vpem_count(
        int, const Py_ssize_t*, Py_ssize_t, const double*, Py_ssize_t, double*)
    void vpem_times(
        int, const double*, Py_ssize_t, Py_ssize_t, const double*, Py_ssize_t, double*)
    void vpem_sum_products(
        int, const double*, Py_ssize_t, Py_ssize_t, const double*, Py_ssize_t, double*)

cdef enum:
    TILE = 128            # rows, a multiple of 4
    KNOWN = 256           # counts whose log-factorial is looked up
    POISSON = 1           # what a value becomes: (1, x), with 2 log x! in each term
    LOGARITHM = 2         # (1, x, log x)

FACTORIALS = np.array([2.0 * lgamma(x + 1.0) for x in range(KNOWN)])


def _side_by_side(table):
    """Return rows (C, K), each filled up with zeros to a multiple of 4."""
    wide = np.zeros((table.shape[0], -(-table.shape[1] // 4) * 4))
    wide[:, : table.shape[1]] = table
    return wide


cdef inline void widen(
    const real* row, Py_ssize_t n, double* into, Py_ssize_t width,
) noexcept nogil:
    """Copy a row, filled up with zeros."""
    cdef Py_ssize_t k
    for k in range(n):
        into[k] = row[k]
    for k in range(n, width):
        into[k] = 0


# ---- categories ---------------------------------------------------------------------------------


cdef inline void find_cells(
    const real* row,                 # IN  (n,)
    Py_ssize_t n,
    const Py_ssize_t* firsts,        # IN  (n + 1,)
    Py_ssize_t width,
    Py_ssize_t* cells,               # OUT (n,)   where the row of each one's cell begins
) noexcept nogil:
    """A value that is missing has the row after the last, one that is no level that after it."""
    cdef Py_ssize_t j, cell, end = firsts[n]
    cdef real value
    for j in range(n):
        value = row[j]
        if 0 <= value < firsts[j + 1] - firsts[j]:
            cell = firsts[j] + <Py_ssize_t>value
        else:
            cell = end if isnan(value) else end + 1
        cells[j] = cell * width


cdef void row_terms_cells(
    const Py_ssize_t* cells,         # IN  (n,)
    const Py_ssize_t[::1] offsets,   # IN  (B + 1,)
    const double* table,             # IN  (C + 2, width)
    Py_ssize_t width,
    real[:, :, ::1] terms,           # INOUT (B, M, K)  row m
    Py_ssize_t m,
    double* sums,                    # WORK (width,)
    int instructions,
) noexcept nogil:
    cdef Py_ssize_t b, k, n
    for b in range(offsets.shape[0] - 1):
        n = offsets[b + 1] - offsets[b]
        if n == 0:
            continue
        for k in range(width):
            sums[k] = 0
        vpem_look_up(instructions, cells + offsets[b], n, table, width, sums)
        for k in range(terms.shape[2]):
            terms[b, m, k] += <real>sums[k]


def cell_terms(
    const real[:, ::1] rows,            # IN  (M, n)       levels, in the order of the blocks
    const Py_ssize_t[::1] offsets,      # IN  (B + 1,)
    const Py_ssize_t[::1] firsts,       # IN  (n + 1,)     first cell of each feature
    const double[:, ::1] table,         # IN  (C + 2, K)   a row a cell; of none; of no level
    real[:, :, ::1] terms,              # INOUT (B, M, K)  added to
    int n_threads,
):
    """Add the terms of features that are categories, looked up.

    See `tests.twins.models.cell_terms`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], n = rows.shape[1], m, width
    cdef double work = 1.5 * n + 0.3 * n * table.shape[1] + 3.0 * offsets.shape[0]
    cdef int instructions = vpem_instruction_set()
    if n_samples == 0 or n == 0:
        return
    n_threads = worth(n_threads, n_samples, work * n_samples)
    cdef const double[:, ::1] wide = _side_by_side(np.asarray(table))
    width = wide.shape[1]
    cdef Py_ssize_t[:, ::1] cells = np.empty((n_threads, n), dtype=np.intp)
    cdef double[:, ::1] sums = np.empty((n_threads, width))
    for m in prange(
        n_samples, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_samples, n_threads),
    ):
        find_cells(&rows[m, 0], n, &firsts[0], width, &cells[threadid(), 0])
        row_terms_cells(
            &cells[threadid(), 0], offsets, &wide[0, 0], width, terms, m, &sums[threadid(), 0],
            instructions,
        )


cdef void row_moments_cells(
    const Py_ssize_t* cells,                   # IN   (n,)
    const real[:, :, ::1] responsibilities,    # IN   (R, M, K)  row m
    Py_ssize_t m,
    const Py_ssize_t[::1] offsets,             # IN   (B + 1,)
    Py_ssize_t width,
    double* shares,                            # WORK (width,)
    double* counts,                            # INOUT (C + 2, width)
    int instructions,
) noexcept nogil:
    cdef Py_ssize_t n_components = responsibilities.shape[2], b, n
    if responsibilities.shape[0] == 1:
        widen(&responsibilities[0, m, 0], n_components, shares, width)
        vpem_count(instructions, cells, offsets[offsets.shape[0] - 1], shares, width, counts)
        return
    for b in range(offsets.shape[0] - 1):
        n = offsets[b + 1] - offsets[b]
        widen(&responsibilities[b, m, 0], n_components, shares, width)
        vpem_count(instructions, cells + offsets[b], n, shares, width, counts)


def cell_moments(
    const real[:, ::1] rows,                   # IN  (M, n)
    const real[:, :, ::1] responsibilities,    # IN  (R, M, K)
    const Py_ssize_t[::1] offsets,             # IN  (B + 1,)
    const Py_ssize_t[::1] firsts,              # IN  (n + 1,)
    double[:, ::1] counts,                     # INOUT (C, K)  added to
    int n_threads,
):
    """Add the responsibilities of these rows to the counts of each feature's levels.

    See `tests.twins.models.cell_moments`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], n = rows.shape[1]
    cdef Py_ssize_t n_components = responsibilities.shape[2], n_cells = counts.shape[0] + 2
    cdef Py_ssize_t n_tiles = (n_samples + TILE - 1) // TILE, share, n_shares, m
    cdef Py_ssize_t width = (n_components + 3) // 4 * 4
    cdef double work = 1.5 * n + 0.5 * n * width
    cdef int instructions = vpem_instruction_set()
    if n_samples == 0 or n == 0:
        return
    n_shares = all_kept(n_tiles, n_cells * width)
    n_threads = worth(n_threads, n_shares, work * n_samples)
    cdef double[:, :, ::1] found = np.zeros((n_shares, n_cells, width))
    cdef Py_ssize_t[:, ::1] cells = np.empty((n_threads, n), dtype=np.intp)
    cdef double[:, ::1] shares = np.empty((n_threads, width))
    cdef double[:, ::1] total = np.zeros((n_cells, width))
    for share in prange(
        n_shares, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1,
    ):
        for m in range(
            TILE * share_begin(share, n_shares, n_tiles),
            min(n_samples, TILE * share_begin(share + 1, n_shares, n_tiles)),
        ):
            find_cells(&rows[m, 0], n, &firsts[0], width, &cells[threadid(), 0])
            row_moments_cells(
                &cells[threadid(), 0], responsibilities, m, offsets, width,
                &shares[threadid(), 0], &found[share, 0, 0], instructions,
            )
    add_shares(&found[0, 0, 0], n_shares, n_cells * width, &total[0, 0])
    np.asarray(counts)[...] += np.asarray(total)[: n_cells - 2, :n_components]


# ---- products -----------------------------------------------------------------------------------


cdef inline Py_ssize_t expand(
    const real* row,                 # IN  (n,)   of one block
    Py_ssize_t n,
    bint logarithms,
    double* values,                  # OUT (n,), or (2 n,) with logarithms; 0 for missing values
) noexcept nogil:
    """Functions of a row's values but the first, which is 1; returns how many are missing."""
    cdef Py_ssize_t j, missing = 0
    cdef double value
    for j in range(n):
        value = row[j]
        if isnan(value):
            missing += 1
            value = 0
        values[j] = value
    if logarithms:
        for j in range(n):
            values[n + j] = 0 if isnan(row[j]) else log(<double>row[j])
    return missing


cdef inline double constants_of(
    const double* values, Py_ssize_t n, const double* factorials,
) noexcept nogil:
    """Twice the log-factorials of some counts."""
    cdef double total = 0, value
    cdef Py_ssize_t j
    for j in range(n):
        value = values[j]
        if 0 <= value < KNOWN:
            total += factorials[<Py_ssize_t>value]
        else:
            total += 2 * lgamma(value + 1)
    return total


cdef void tile_terms_products(
    const real* rows,                # IN  (n_rows, d)  from the block's first feature on
    Py_ssize_t n_rows,
    Py_ssize_t d,
    Py_ssize_t n,                    # features of the block, at least 1
    int kind,
    const double* constants,         # IN  (n + 1, width)  the last row is their sum
    const double* table,             # IN  (n or 2 n, width)
    const double* factorials,        # IN  (KNOWN,)
    Py_ssize_t width,
    real* terms,                     # INOUT (n_rows, n_components)
    Py_ssize_t n_components,
    double* values,                  # WORK (TILE, n or 2 n)
    double* products,                # WORK (TILE, width)
    Py_ssize_t* missing,             # WORK (TILE,)
    int instructions,
) noexcept nogil:
    cdef Py_ssize_t n_values = 2 * n if kind == LOGARITHM else n, m, j, k
    cdef double constant, total
    for m in range(n_rows):
        missing[m] = expand(rows + m * d, n, kind == LOGARITHM, values + m * n_values)
    for m in range(n_rows * n_values, (n_rows + 3) // 4 * 4 * n_values):
        values[m] = 0
    vpem_times(instructions, values, (n_rows + 3) // 4 * 4, n_values, table, width, products)
    for m in range(n_rows):
        constant = 0
        if kind == POISSON:
            constant = constants_of(values + m * n_values, n, factorials)
        for k in range(n_components):
            total = constant + products[m * width + k]
            if missing[m]:
                for j in range(n):
                    if not isnan(rows[m * d + j]):
                        total += constants[j * width + k]
            else:
                total += constants[n * width + k]
            terms[m * n_components + k] += <real>total


def product_terms(
    const real[:, ::1] rows,            # IN  (M, n)       features in the order of the blocks
    const Py_ssize_t[::1] offsets,      # IN  (B + 1,)
    int kind,                           # IN               which functions of a value: see the twin
    const double[:, :, ::1] table,      # IN  (F, n, K)    what each of them is multiplied by
    real[:, :, ::1] terms,              # INOUT (B, M, K)  added to
    int n_threads,
):
    """Add terms that are sums of a few functions of each value, times parameters.

    See `tests.twins.models.product_terms`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], d = rows.shape[1], n_factors = table.shape[0] - 1
    cdef Py_ssize_t n_components = table.shape[2], width = (n_components + 3) // 4 * 4
    cdef Py_ssize_t n_tiles = (n_samples + TILE - 1) // TILE, tile, b, n, first, widest
    cdef double work = (2.0 + 10.0 * (kind == LOGARITHM)) * d + 0.4 * n_factors * d * n_components
    cdef int instructions = vpem_instruction_set()
    cdef const double[:, ::1] constants, factors
    cdef const double[::1] factorials = FACTORIALS
    if n_samples == 0 or d == 0:
        return
    n_threads = worth(n_threads, n_tiles, work * n_samples)
    widest = np.diff(offsets).max()
    cdef double[:, ::1] values = np.empty((n_threads, TILE * n_factors * widest))
    cdef double[:, ::1] products = np.empty((n_threads, TILE * width))
    cdef Py_ssize_t[:, ::1] missing = np.empty((n_threads, TILE), dtype=np.intp)
    for b in range(offsets.shape[0] - 1):
        n = offsets[b + 1] - offsets[b]
        if n == 0:
            continue
        own = np.asarray(table)[:, offsets[b] : offsets[b + 1]]
        wide = _side_by_side(own.reshape(-1, n_components))
        constants = np.concatenate([wide[:n], wide[:n].sum(axis=0, keepdims=True)])
        factors = wide[n:]
        for tile in prange(
            n_tiles, nogil=True, num_threads=n_threads, schedule="dynamic",
            chunksize=at_once(n_tiles, n_threads),
        ):
            first = tile * TILE
            tile_terms_products(
                &rows[first, offsets[b]], min(<Py_ssize_t>TILE, n_samples - first), d, n, kind,
                &constants[0, 0], &factors[0, 0], &factorials[0], width, &terms[b, first, 0],
                n_components, &values[threadid(), 0], &products[threadid(), 0],
                &missing[threadid(), 0], instructions,
            )


cdef void tile_moments_products(
    const real* rows,                # IN   (n_rows, d)  from the block's first feature on
    Py_ssize_t n_rows,
    Py_ssize_t d,
    Py_ssize_t n,                    # features of the block, at least 1
    int kind,
    const double* shares,            # IN   (n_rows, width)
    Py_ssize_t width,
    double* values,                  # WORK (TILE, n or 2 n)
    double* seen,                    # INOUT (n, width)
    double* sums,                    # INOUT (n or 2 n, width)
    double* whole,                   # INOUT (width,)  of rows of which no value is missing
    int instructions,
) noexcept nogil:
    cdef Py_ssize_t n_values = 2 * n if kind == LOGARITHM else n, m, j, k
    for m in range(n_rows):
        if not expand(rows + m * d, n, kind == LOGARITHM, values + m * n_values):
            for k in range(width):
                whole[k] += shares[m * width + k]
            continue
        for j in range(n):
            if not isnan(rows[m * d + j]):
                for k in range(width):
                    seen[j * width + k] += shares[m * width + k]
    vpem_sum_products(instructions, values, n_rows, n_values, shares, width, sums)


cdef void tile_moments_blocks(
    const real[:, ::1] rows,                   # IN   (M, d)     rows first..first + n_rows
    const real[:, :, ::1] responsibilities,    # IN   (R, M, K)
    Py_ssize_t first,
    Py_ssize_t n_rows,
    const Py_ssize_t[::1] offsets,             # IN   (B + 1,)
    int kind,
    Py_ssize_t width,
    double* values,                            # WORK (TILE, widest or twice that)
    double* shares,                            # WORK (TILE, width)
    double* found,                             # INOUT (F d + B, width)  seen, products, whole
    int instructions,
) noexcept nogil:
    cdef Py_ssize_t d = rows.shape[1], n_factors = 2 if kind == LOGARITHM else 1, b, m
    cdef Py_ssize_t n_components = responsibilities.shape[2]
    for b in range(offsets.shape[0] - 1):
        if b == 0 or responsibilities.shape[0] > 1:
            for m in range(n_rows):
                widen(&responsibilities[b, first + m, 0], n_components, shares + m * width, width)
        if offsets[b] == offsets[b + 1]:
            continue
        tile_moments_products(
            &rows[first, offsets[b]], n_rows, d, offsets[b + 1] - offsets[b], kind, shares, width,
            values, found + offsets[b] * width, found + (d + n_factors * offsets[b]) * width,
            found + ((1 + n_factors) * d + b) * width, instructions,
        )


def product_moments(
    const real[:, ::1] rows,                   # IN  (M, n)
    const real[:, :, ::1] responsibilities,    # IN  (R, M, K)
    const Py_ssize_t[::1] offsets,             # IN  (B + 1,)
    int kind,                                  # IN             as of `product_terms`
    double[:, :, ::1] sums,                    # INOUT (F, n, K)  added to
    int n_threads,
):
    """Add each function of these rows' values, times responsibilities, to the sums.

    See `tests.twins.models.product_moments`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], d = rows.shape[1], n_factors = sums.shape[0] - 1
    cdef Py_ssize_t n_components = responsibilities.shape[2], n_blocks = offsets.shape[0] - 1
    cdef Py_ssize_t n_tiles = (n_samples + TILE - 1) // TILE, tile, share, n_shares, widest, b
    cdef Py_ssize_t width = (n_components + 3) // 4 * 4, n_sums = (1 + n_factors) * d + n_blocks
    cdef double work = (2.0 + 10.0 * (kind == LOGARITHM)) * d + 0.4 * n_factors * d * width
    cdef int instructions = vpem_instruction_set()
    if n_samples == 0 or d == 0:
        return
    n_shares = all_kept(n_tiles, n_sums * width)
    n_threads = worth(n_threads, n_shares, work * n_samples)
    widest = np.diff(offsets).max()
    cdef double[:, :, ::1] found = np.zeros((n_shares, n_sums, width))
    cdef double[:, ::1] values = np.empty((n_threads, TILE * n_factors * widest))
    cdef double[:, ::1] shares = np.empty((n_threads, TILE * width))
    cdef double[:, ::1] total = np.zeros((n_sums, width))
    for share in prange(
        n_shares, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1,
    ):
        for tile in range(
            share_begin(share, n_shares, n_tiles), share_begin(share + 1, n_shares, n_tiles)
        ):
            tile_moments_blocks(
                rows, responsibilities, tile * TILE,
                min(<Py_ssize_t>TILE, n_samples - tile * TILE), offsets, kind, width,
                &values[threadid(), 0], &shares[threadid(), 0], &found[share, 0, 0], instructions,
            )
    add_shares(&found[0, 0, 0], n_shares, n_sums * width, &total[0, 0])
    into, whole = np.asarray(sums), np.asarray(total)[:, :n_components]
    for b in range(n_blocks):
        block = slice(offsets[b], offsets[b + 1])
        into[0, block] += whole[block] + whole[(1 + n_factors) * d + b]
        own = whole[d + n_factors * offsets[b] : d + n_factors * offsets[b + 1]]
        into[1:, block] += own.reshape(n_factors, -1, n_components)
