/* Sums over features and over rows of tables with a column a component, for every instruction set. */
#ifndef VPEM_CELLS_H
#define VPEM_CELLS_H

#include "tile.h"

#define SUFFIX _base
#define TARGET
#include "cells.inc"
#if VPEM_X86
#define SUFFIX _avx2
#define TARGET VPEM_AVX2
#include "cells.inc"
#define VPEM_OF_TWO(name, set, call) ((set) > 0 ? name##_avx2 call : name##_base call)
#else
#define VPEM_OF_TWO(name, set, call) ((void)(set), name##_base call)
#endif

static void vpem_look_up(int set, const isize *cells, isize n, const double *table, isize width,
    double *out)
{ VPEM_OF_TWO(look_up, set, (cells, n, table, width, out)); }

static void vpem_count(int set, const isize *cells, isize n, const double *shares, isize width,
    double *counts)
{ VPEM_OF_TWO(count, set, (cells, n, shares, width, counts)); }

static void vpem_times(int set, const double *values, isize n_rows, isize n, const double *table,
    isize width, double *out)
{ VPEM_OF_TWO(times, set, (values, n_rows, n, table, width, out)); }

static void vpem_sum_products(int set, const double *values, isize n_rows, isize n,
    const double *shares, isize width, double *sums)
{ VPEM_OF_TWO(sum_products, set, (values, n_rows, n, shares, width, sums)); }

#endif
