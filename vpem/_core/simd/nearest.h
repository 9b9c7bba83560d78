/* Rows against centres, for every precision and instruction set, chosen when the program runs. */
#ifndef VPEM_NEAREST_H
#define VPEM_NEAREST_H

#include <float.h>

#include "tile.h"

#if VPEM_X86
#include <immintrin.h>
#define VPEM_FUSED(a, b, c) \
    ((NAME(four))_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#endif

/* Rounding must not be optimised away where what it loses is kept: an attribute of the function to
 * GCC, to Clang a line at the top of its body. */
#if defined(__clang__)
#define VPEM_AS_WRITTEN
#define VPEM_EACH_ROUNDED _Pragma("clang fp contract(off)")
#else
#define VPEM_AS_WRITTEN __attribute__((optimize("fp-contract=off")))
#define VPEM_EACH_ROUNDED
#endif

enum { VPEM_STEP = 64 }; /* rows that are multiplied together: a multiple of GROUP * LANES of all */

#define REAL double
#define INTEGER int64_t
#define REAL_IS_DOUBLE 1
#define REAL_SQRT sqrt

#define SUFFIX _d_base
#define TARGET
#define LANES 2
#define GROUP 2
#define MOST_CENTRES 4
#include "nearest.inc"
#if VPEM_X86
#define LOWER(a, b) ((NAME(lanes))_mm256_min_pd((__m256d)(a), (__m256d)(b)))
#define UPPER(a, b) ((NAME(lanes))_mm256_max_pd((__m256d)(a), (__m256d)(b)))
#define PICK(a, b, x, y) ((NAME(lanes))_mm256_blendv_pd( \
    (__m256d)(y), (__m256d)(x), _mm256_cmp_pd((__m256d)(a), (__m256d)(b), _CMP_LT_OQ)))
#define FUSED VPEM_FUSED
#define SIDE 8
#define TABLE_OF(few, table, n)
#define LOOK_UP(few, table, n, k) ((NAME(floats))_mm256_i32gather_ps(table, (__m256i)(k), 4))
#define NOT_NEGATIVE(k) ((NAME(ints))_mm256_max_epi32((__m256i)(k), _mm256_setzero_si256()))
#define LARGER(a, b) ((NAME(floats))_mm256_max_ps((__m256)(a), (__m256)(b)))
#define NOT_BELOW(a, b) (255u ^ (unsigned)_mm256_movemask_ps( \
    _mm256_cmp_ps((__m256)(a), (__m256)(b), _CMP_LT_OQ)))
#define SUFFIX _d_avx2
#define TARGET VPEM_AVX2
#define LANES 4
#define GROUP 2
#define MOST_CENTRES 6
#include "nearest.inc"
#define LOWER(a, b) ((NAME(lanes))_mm512_min_pd((__m512d)(a), (__m512d)(b)))
#define UPPER(a, b) ((NAME(lanes))_mm512_max_pd((__m512d)(a), (__m512d)(b)))
#define PICK(a, b, x, y) ((NAME(lanes))_mm512_mask_blend_pd( \
    _mm512_cmp_pd_mask((__m512d)(a), (__m512d)(b), _CMP_LT_OQ), (__m512d)(y), (__m512d)(x)))
#define SIDE 16
#define TABLE_OF(few, table, n) const __m512 few = \
    _mm512_maskz_loadu_ps((n) < 16 ? (__mmask16)((1 << (n)) - 1) : 65535, table)
#define LOOK_UP(few, table, n, k) ((NAME(floats))((n) <= 16 \
    ? _mm512_permutexvar_ps((__m512i)(k), few) : _mm512_i32gather_ps((__m512i)(k), table, 4)))
#define NOT_NEGATIVE(k) ((NAME(ints))_mm512_max_epi32((__m512i)(k), _mm512_setzero_si512()))
#define LARGER(a, b) ((NAME(floats))_mm512_max_ps((__m512)(a), (__m512)(b)))
#define NOT_BELOW(a, b) (65535u ^ (unsigned)_mm512_cmp_ps_mask((__m512)(a), (__m512)(b), _CMP_LT_OQ))
#define SUFFIX _d_avx512
#define TARGET VPEM_AVX512
#define LANES 8
#define GROUP 4
#define MOST_CENTRES 6
#include "nearest.inc"
#undef FUSED
#endif

#undef REAL
#undef INTEGER
#undef REAL_IS_DOUBLE
#undef REAL_SQRT

#define REAL float
#define INTEGER int32_t
#define REAL_IS_DOUBLE 0
#define REAL_SQRT sqrtf

#define SUFFIX _f_base
#define TARGET
#define LANES 4
#define GROUP 2
#define MOST_CENTRES 4
#include "nearest.inc"
#if VPEM_X86
#define LOWER(a, b) ((NAME(lanes))_mm256_min_ps((__m256)(a), (__m256)(b)))
#define UPPER(a, b) ((NAME(lanes))_mm256_max_ps((__m256)(a), (__m256)(b)))
#define PICK(a, b, x, y) ((NAME(lanes))_mm256_blendv_ps( \
    (__m256)(y), (__m256)(x), _mm256_cmp_ps((__m256)(a), (__m256)(b), _CMP_LT_OQ)))
#define FUSED VPEM_FUSED
#define SUFFIX _f_avx2
#define TARGET VPEM_AVX2
#define LANES 8
#define GROUP 2
#define MOST_CENTRES 6
#include "nearest.inc"
#define LOWER(a, b) ((NAME(lanes))_mm512_min_ps((__m512)(a), (__m512)(b)))
#define UPPER(a, b) ((NAME(lanes))_mm512_max_ps((__m512)(a), (__m512)(b)))
#define PICK(a, b, x, y) ((NAME(lanes))_mm512_mask_blend_ps( \
    _mm512_cmp_ps_mask((__m512)(a), (__m512)(b), _CMP_LT_OQ), (__m512)(y), (__m512)(x)))
#define SUFFIX _f_avx512
#define TARGET VPEM_AVX512
#define LANES 16
#define GROUP 4
#define MOST_CENTRES 6
#include "nearest.inc"
#undef FUSED
#endif

#undef REAL
#undef INTEGER
#undef REAL_IS_DOUBLE
#undef REAL_SQRT

#define VPEM_NEAREST(type, REAL) \
    static double vpem_apart_##type(int set, const REAL *row, const double *centre, isize d) \
    { return VPEM_CHOOSE(apart, type, set, (row, centre, d)); } \
    static void vpem_apart_from_four_##type(int set, const REAL *rows, isize n_rows, isize d, \
        const double *points, double *out, isize stride) \
    { VPEM_CHOOSE(apart_from_four, type, set, (rows, n_rows, d, points, out, stride)); } \
    static double vpem_measure_##type(int set, const REAL *rows, isize n_rows, isize d, \
        const double *weights, const double *centres, const int *labels, double *distances) \
    { return VPEM_CHOOSE(measure, type, set, (rows, n_rows, d, weights, centres, labels, \
        distances)); } \
    static void vpem_enter_##type(int set, const REAL *row, isize d, double weight, double *high, \
        double *low) \
    { VPEM_CHOOSE(enter, type, set, (row, d, weight, high, low)); } \
    static void vpem_squares_##type(int set, const REAL *rows, const isize *at, isize n_rows, \
        const double *about, isize d, const double *weights, double *high, double *low) \
    { VPEM_CHOOSE(squares, type, set, (rows, at, n_rows, about, d, weights, high, low)); } \
    static void vpem_fetch_##type(int set, const REAL *rows, const isize *at, isize n_rows, isize d) \
    { VPEM_CHOOSE(fetch, type, set, (rows, at, n_rows, d)); } \
    static void vpem_turn_##type(int set, const REAL *rows, const isize *at, isize known, \
        isize stride, const REAL *shift, isize width, REAL *out, REAL *lengths) \
    { VPEM_CHOOSE(turn, type, set, (rows, at, known, stride, shift, width, out, lengths)); } \
    static void vpem_products_##type(int set, const REAL *near, isize width, const REAL *centres, \
        isize n_centres, isize stride, const REAL *norms, REAL *values) \
    { VPEM_CHOOSE(products, type, set, (near, width, centres, n_centres, stride, norms, values)); } \
    static void vpem_least_##type(int set, const REAL *values, const REAL *lengths, \
        isize n_centres, double rounding, double reach, REAL *limits, int *place, char *tied, \
        float *upper, float *lower) \
    { VPEM_CHOOSE(least, type, set, (values, lengths, n_centres, rounding, reach, limits, place, \
        tied, upper, lower)); }

VPEM_NEAREST(d, double)
VPEM_NEAREST(f, float)

static isize vpem_doubtful(int set, const int *labels, float *upper, float *lower, isize n_rows,
    const float *moves, isize n_centres, isize first, isize *at)
{ return VPEM_CHOOSE(doubtful, d, set, (labels, upper, lower, n_rows, moves, n_centres, first, at)); }

#endif
