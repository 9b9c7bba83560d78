"""Terms and sums of features that are independent within a component: categories and products."""
import numpy as np

from cython.parallel cimport prange, threadid
from libc.math cimport isnan, lgamma, log

from vpem._core.real cimport real
from vpem._core.shares cimport add_shares, all_kept, at_once, share_begin, worth

cdef enum:
    TILE = 256
    SIDE = 4              # components that are added to at once, in steps of 4
    KNOWN = 256           # counts whose log-factorial is looked up
    POISSON = 1           # what a value becomes: (1, x), with 2 log x! in each term
    LOGARITHM = 2         # (1, x, log x)

FACTORIALS = np.array([2.0 * lgamma(x + 1.0) for x in range(KNOWN)])


def side_by_side(table, dtype):
    """Return rows (C, K), each filled up with zeros to a multiple of SIDE, and their length."""
    width = -(-table.shape[1] // SIDE) * SIDE
    wide = np.zeros((table.shape[0], width), dtype=dtype)
    wide[:, : table.shape[1]] = table
    return wide, width


cdef inline void add_four(double* into, const double* row) noexcept nogil:
    cdef double a = into[0] + row[0], b = into[1] + row[1]
    cdef double c = into[2] + row[2], d = into[3] + row[3]
    into[0] = a
    into[1] = b
    into[2] = c
    into[3] = d


cdef inline void add_four_times(double* into, const double* row, double value) noexcept nogil:
    cdef double a = into[0] + row[0] * value, b = into[1] + row[1] * value
    cdef double c = into[2] + row[2] * value, d = into[3] + row[3] * value
    into[0] = a
    into[1] = b
    into[2] = c
    into[3] = d


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
    const real* table,               # IN  (C + 2, width)
    Py_ssize_t width,
    real[:, :, ::1] terms,           # INOUT (B, M, K)  row m
    Py_ssize_t m,
) noexcept nogil:
    cdef Py_ssize_t b, k, j, i, n_components = terms.shape[2]
    cdef real a0, a1, a2, a3
    cdef const real* at
    cdef real* out
    for b in range(offsets.shape[0] - 1):
        if offsets[b] == offsets[b + 1]:
            continue
        out = &terms[b, m, 0]
        for k in range(0, width, 4):
            a0 = a1 = a2 = a3 = 0
            for j in range(offsets[b], offsets[b + 1]):
                at = table + cells[j] + k
                a0 = a0 + at[0]
                a1 = a1 + at[1]
                a2 = a2 + at[2]
                a3 = a3 + at[3]
            i = n_components - k
            out[k] += a0
            if i > 1:
                out[k + 1] += a1
            if i > 2:
                out[k + 2] += a2
            if i > 3:
                out[k + 3] += a3


def cell_terms(
    const real[:, ::1] rows,            # IN  (M, n)       levels, in the order of the blocks
    const Py_ssize_t[::1] offsets,      # IN  (B + 1,)
    const Py_ssize_t[::1] firsts,       # IN  (n + 1,)     first cell of each feature
    const real[:, ::1] table,           # IN  (C + 2, K)   a row a cell; of none; of no level
    real[:, :, ::1] terms,              # INOUT (B, M, K)  added to
    int n_threads,
):
    """Add the terms of features that are categories, looked up.

    See `vpem._core.reference_families.cell_terms`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], n = rows.shape[1], m, width
    cdef double work = 2.0 * n + 0.5 * n * table.shape[1] + 3.0 * offsets.shape[0]
    if n_samples == 0 or n == 0:
        return
    n_threads = worth(n_threads, n_samples, work * n_samples)
    wide, width = side_by_side(np.asarray(table), np.float64 if real is double else np.float32)
    cdef const real[:, ::1] values = wide
    cdef Py_ssize_t[:, ::1] cells = np.empty((n_threads, n), dtype=np.intp)
    for m in prange(
        n_samples, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_samples, n_threads),
    ):
        find_cells(&rows[m, 0], n, &firsts[0], width, &cells[threadid(), 0])
        row_terms_cells(&cells[threadid(), 0], offsets, &values[0, 0], width, terms, m)


cdef void tile_moments_cells(
    const real* rows,                          # IN   (n_rows, n)
    Py_ssize_t n_rows,
    Py_ssize_t n,
    const real[:, :, ::1] responsibilities,    # IN   (R, M, K)  rows first..first + n_rows
    Py_ssize_t first,
    const Py_ssize_t[::1] offsets,             # IN   (B + 1,)
    const Py_ssize_t[::1] firsts,              # IN   (n + 1,)
    Py_ssize_t width,
    Py_ssize_t* cells,                         # WORK (n,)
    double* shares,                            # WORK (width,)
    double* counts,                            # INOUT (C + 2, width)
) noexcept nogil:
    cdef Py_ssize_t n_components = responsibilities.shape[2], b, m, j, k
    cdef Py_ssize_t n_roots = responsibilities.shape[0]
    cdef double* into
    for m in range(n_rows):
        find_cells(rows + m * n, n, &firsts[0], width, cells)
        for b in range(offsets.shape[0] - 1):
            if b == 0 or n_roots > 1:
                widen(&responsibilities[b, first + m, 0], n_components, shares, width)
            for j in range(offsets[b], offsets[b + 1]):
                into = counts + cells[j]
                for k in range(0, width, 4):
                    add_four(into + k, shares + k)


def cell_moments(
    const real[:, ::1] rows,                   # IN  (M, n)
    const real[:, :, ::1] responsibilities,    # IN  (R, M, K)
    const Py_ssize_t[::1] offsets,             # IN  (B + 1,)
    const Py_ssize_t[::1] firsts,              # IN  (n + 1,)
    double[:, ::1] counts,                     # INOUT (C, K)  added to
    int n_threads,
):
    """Add the responsibilities of these rows to the counts of each feature's levels.

    See `vpem._core.reference_families.cell_moments`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], n = rows.shape[1]
    cdef Py_ssize_t n_components = responsibilities.shape[2], n_cells = counts.shape[0] + 2
    cdef Py_ssize_t n_tiles = (n_samples + TILE - 1) // TILE, tile, share, n_shares, first
    cdef Py_ssize_t width = (n_components + SIDE - 1) // SIDE * SIDE
    cdef double work = 2.0 * n + 0.7 * n * width
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
        for tile in range(
            share_begin(share, n_shares, n_tiles), share_begin(share + 1, n_shares, n_tiles)
        ):
            first = tile * TILE
            tile_moments_cells(
                &rows[first, 0], min(<Py_ssize_t>TILE, n_samples - first), n, responsibilities,
                first, offsets, firsts, width, &cells[threadid(), 0], &shares[threadid(), 0],
                &found[share, 0, 0],
            )
    add_shares(&found[0, 0, 0], n_shares, n_cells * width, &total[0, 0])
    np.asarray(counts)[...] += np.asarray(total)[: n_cells - 2, :n_components]


# ---- products -----------------------------------------------------------------------------------


cdef inline void expand(
    const real* row,                 # IN  (n,)
    Py_ssize_t n,
    int kind,
    Py_ssize_t n_functions,
    real* functions,                 # OUT (n, n_functions)  0 where the value is missing
) noexcept nogil:
    cdef Py_ssize_t j
    cdef real value
    for j in range(n):
        value = row[j]
        functions[0] = 1
        functions[1] = value
        if isnan(value):
            functions[0] = functions[1] = 0
        if kind == LOGARITHM:
            functions[2] = 0 if isnan(value) else <real>log(value)
        functions += n_functions


cdef inline double constants_of(
    const real* row, Py_ssize_t begin, Py_ssize_t end, const double* factorials,
) noexcept nogil:
    """Twice the log-factorials of some counts; of a missing one none."""
    cdef double total = 0, value
    cdef Py_ssize_t j
    for j in range(begin, end):
        value = row[j]
        if 0 <= value < KNOWN:
            total += factorials[<Py_ssize_t>value]
        elif value >= KNOWN:
            total += 2 * lgamma(value + 1)
    return total


cdef void row_terms_products(
    const real* functions,           # IN  (n * n_functions,)
    const real* row,                 # IN  (n,)
    int kind,
    Py_ssize_t n_functions,
    const Py_ssize_t[::1] offsets,   # IN  (B + 1,)
    const real* table,               # IN  (n * n_functions, width)
    const double* factorials,        # IN  (KNOWN,)
    Py_ssize_t width,
    real[:, :, ::1] terms,           # INOUT (B, M, K)  row m
    Py_ssize_t m,
) noexcept nogil:
    cdef Py_ssize_t b, k, j, i, n_components = terms.shape[2]
    cdef real a0, a1, a2, a3, value, constant
    cdef const real* at
    cdef real* out
    for b in range(offsets.shape[0] - 1):
        if offsets[b] == offsets[b + 1]:
            continue
        constant = 0
        if kind == POISSON:
            constant = <real>constants_of(row, offsets[b], offsets[b + 1], factorials)
        out = &terms[b, m, 0]
        for k in range(0, width, 4):
            a0 = a1 = a2 = a3 = constant
            for j in range(offsets[b] * n_functions, offsets[b + 1] * n_functions):
                at = table + j * width + k
                value = functions[j]
                a0 = a0 + value * at[0]
                a1 = a1 + value * at[1]
                a2 = a2 + value * at[2]
                a3 = a3 + value * at[3]
            i = n_components - k
            out[k] += a0
            if i > 1:
                out[k + 1] += a1
            if i > 2:
                out[k + 2] += a2
            if i > 3:
                out[k + 3] += a3


def product_terms(
    const real[:, ::1] rows,            # IN  (M, n)       features in the order of the blocks
    const Py_ssize_t[::1] offsets,      # IN  (B + 1,)
    int kind,                           # IN               which functions of a value: see the twin
    const real[:, ::1] table,           # IN  (n * F, K)   what each of F functions is multiplied by
    real[:, :, ::1] terms,              # INOUT (B, M, K)  added to
    int n_threads,
):
    """Add terms that are sums of a few functions of each value, times parameters.

    See `vpem._core.reference_families.product_terms`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], n = rows.shape[1], m, width
    cdef Py_ssize_t n_functions = 3 if kind == LOGARITHM else 2
    cdef double work = 3.0 * n + 0.5 * n_functions * n * table.shape[1] + 3.0 * offsets.shape[0]
    if n_samples == 0 or n == 0:
        return
    dtype = np.float64 if real is double else np.float32
    n_threads = worth(n_threads, n_samples, work * n_samples)
    wide, width = side_by_side(np.asarray(table), dtype)
    cdef const real[:, ::1] values = wide
    cdef const double[::1] factorials = FACTORIALS
    cdef real[:, ::1] functions = np.empty((n_threads, n * n_functions), dtype=dtype)
    for m in prange(
        n_samples, nogil=True, num_threads=n_threads, schedule="dynamic",
        chunksize=at_once(n_samples, n_threads),
    ):
        expand(&rows[m, 0], n, kind, n_functions, &functions[threadid(), 0])
        row_terms_products(
            &functions[threadid(), 0], &rows[m, 0], kind, n_functions, offsets, &values[0, 0],
            &factorials[0], width, terms, m,
        )


cdef void tile_moments_products(
    const real* rows,                          # IN   (n_rows, n)
    Py_ssize_t n_rows,
    Py_ssize_t n,
    const real[:, :, ::1] responsibilities,    # IN   (R, M, K)  rows first..first + n_rows
    Py_ssize_t first,
    const Py_ssize_t[::1] offsets,             # IN   (B + 1,)
    int kind,
    Py_ssize_t n_functions,
    Py_ssize_t width,
    real* functions,                           # WORK (n * n_functions,)
    double* shares,                            # WORK (width,)
    double* sums,                              # INOUT (n * n_functions, width)
) noexcept nogil:
    cdef Py_ssize_t n_components = responsibilities.shape[2], b, m, j, k
    cdef Py_ssize_t n_roots = responsibilities.shape[0]
    for m in range(n_rows):
        expand(rows + m * n, n, kind, n_functions, functions)
        for b in range(offsets.shape[0] - 1):
            if b == 0 or n_roots > 1:
                widen(&responsibilities[b, first + m, 0], n_components, shares, width)
            for j in range(offsets[b] * n_functions, offsets[b + 1] * n_functions):
                for k in range(0, width, 4):
                    add_four_times(sums + j * width + k, shares + k, functions[j])


def product_moments(
    const real[:, ::1] rows,                   # IN  (M, n)
    const real[:, :, ::1] responsibilities,    # IN  (R, M, K)
    const Py_ssize_t[::1] offsets,             # IN  (B + 1,)
    int kind,                                  # IN             as of `product_terms`
    double[:, ::1] sums,                       # INOUT (n * F, K)  added to
    int n_threads,
):
    """Add each function of these rows' values, times responsibilities, to the sums.

    See `vpem._core.reference_families.product_moments`.
    """
    cdef Py_ssize_t n_samples = rows.shape[0], n = rows.shape[1]
    cdef Py_ssize_t n_functions = 3 if kind == LOGARITHM else 2, n_sums = n * n_functions
    cdef Py_ssize_t n_components = responsibilities.shape[2]
    cdef Py_ssize_t n_tiles = (n_samples + TILE - 1) // TILE, tile, share, n_shares, first
    cdef Py_ssize_t width = (n_components + SIDE - 1) // SIDE * SIDE
    cdef double work = 2.0 * n + 0.5 * n_sums * width
    if n_samples == 0 or n == 0:
        return
    n_shares = all_kept(n_tiles, n_sums * width)
    n_threads = worth(n_threads, n_shares, work * n_samples)
    dtype = np.float64 if real is double else np.float32
    cdef double[:, :, ::1] found = np.zeros((n_shares, n_sums, width))
    cdef real[:, ::1] functions = np.empty((n_threads, n_sums), dtype=dtype)
    cdef double[:, ::1] shares = np.empty((n_threads, width))
    cdef double[:, ::1] total = np.zeros((n_sums, width))
    for share in prange(
        n_shares, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1,
    ):
        for tile in range(
            share_begin(share, n_shares, n_tiles), share_begin(share + 1, n_shares, n_tiles)
        ):
            first = tile * TILE
            tile_moments_products(
                &rows[first, 0], min(<Py_ssize_t>TILE, n_samples - first), n, responsibilities,
                first, offsets, kind, n_functions, width, &functions[threadid(), 0],
                &shares[threadid(), 0], &found[share, 0, 0],
            )
    add_shares(&found[0, 0, 0], n_shares, n_sums * width, &total[0, 0])
    np.asarray(sums)[...] += np.asarray(total)[:, :n_components]
