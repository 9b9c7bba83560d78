/* Rows against centres, for every precision and instruction set, chosen when the program runs. */
#ifndef VPEM_NEAREST_H
#define VPEM_NEAREST_H

#include "tile.h"

#define REAL double
#define INTEGER int64_t
#define SUFFIX _d_base
#define TARGET
#include "nearest.inc"
#undef SUFFIX
#undef TARGET
#if VPEM_X86
#define SUFFIX _d_avx2
#define TARGET __attribute__((target("avx2,fma")))
#include "nearest.inc"
#undef SUFFIX
#undef TARGET
#endif
#undef REAL
#undef INTEGER

#define REAL float
#define INTEGER int32_t
#define SUFFIX _f_base
#define TARGET
#include "nearest.inc"
#undef SUFFIX
#undef TARGET
#if VPEM_X86
#define SUFFIX _f_avx2
#define TARGET __attribute__((target("avx2,fma")))
#include "nearest.inc"
#undef SUFFIX
#undef TARGET
#endif
#undef REAL
#undef INTEGER

#if VPEM_X86
#define VPEM_EITHER(name, type, set, call) ((set) > 0 ? name##_##type##_avx2 call \
                                                      : name##_##type##_base call)
#else
#define VPEM_EITHER(name, type, set, call) ((void)(set), name##_##type##_base call)
#endif

#define VPEM_NEAREST(type, REAL) \
    static double vpem_apart_##type(int set, const REAL *row, const double *centre, long d) \
    { return VPEM_EITHER(apart, type, set, (row, centre, d)); } \
    static double vpem_gather_##type(int set, const REAL *rows, long n_rows, long d, \
        const double *weights, const double *centres, const int *labels, double *distances, \
        double *counts, double *sums) \
    { return VPEM_EITHER(gather, type, set, (rows, n_rows, d, weights, centres, labels, \
        distances, counts, sums)); } \
    static void vpem_move_##type(int set, const REAL *rows, long n_rows, long stride, \
        const REAL *shift, long width, REAL *out, double *lengths) \
    { VPEM_EITHER(move, type, set, (rows, n_rows, stride, shift, width, out, lengths)); } \
    static void vpem_four_rows_##type(int set, const REAL *rows, long width, \
        const REAL *centres, long n_centres, long d, REAL *out, long stride, REAL keep) \
    { VPEM_EITHER(four_rows, type, set, (rows, width, centres, n_centres, d, out, stride, keep)); } \
    static void vpem_least_##type(int set, const REAL *values, long stride, const REAL *norms, \
        long n_centres, REAL *best, REAL *second, REAL *place) \
    { VPEM_EITHER(least, type, set, (values, stride, norms, n_centres, best, second, place)); }

VPEM_NEAREST(d, double)
VPEM_NEAREST(f, float)

#endif
