/* The tile kernels for every precision and instruction set, chosen when the program runs. */
#ifndef VPEM_TILE_H
#define VPEM_TILE_H

#if !defined(__GNUC__) && !defined(__clang__)
#error "vpem is written in the vector types of GCC and Clang: build it with gcc, clang or clang-cl"
#endif

/* Every kernel file includes all of this and calls a part of it. */
#pragma GCC diagnostic ignored "-Wunused-function"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Clang in the place of Microsoft's compiler declares no more than every machine has. */
#if (defined(__x86_64__) || defined(__i386__)) && !defined(_MSC_VER)
#include <immintrin.h>
#define VPEM_X86 1
#define VPEM_AVX2 __attribute__((target("avx2,fma")))
#ifdef __clang__ /* uses registers of the width of its vectors, whatever it prefers */
#define VPEM_AVX512 __attribute__((target("avx512f,avx512dq,avx2,fma")))
#else
#define VPEM_AVX512 __attribute__((target("avx512f,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#else
#define VPEM_X86 0
#endif

/* Sizes and places, as wide as an address: a long is not, on Windows. */
typedef ptrdiff_t isize;

/* Four of the eight numbers in two vectors of four, `places` of integers. */
#if defined(__clang__) || __GNUC__ >= 12
#define VPEM_PICK(places, a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define VPEM_PICK(places, a, b, i, j, k, l) __builtin_shuffle(a, b, (places){i, j, k, l})
#endif

#define REAL double
#define INTEGER int64_t
#define REAL_IS_DOUBLE 1
#define REAL_SQRT sqrt
#define FAR 1e300
#define LANES 2
#define ROWS 4
#define UP 4
#define ACROSS 2
#define SUFFIX _d_base
#define TARGET
#include "tile.inc"
#if VPEM_X86
#define LANES 4
#define ROWS 6
#define UP 4
#define ACROSS 3
#define SUFFIX _d_avx2
#define ABOVE(a, b) _mm256_movemask_pd((__m256d)((a) > (b)))
#define EVERY 15
#define TARGET VPEM_AVX2
#include "tile.inc"
#define LANES 8
#define ROWS 8
#define UP 8
#define ACROSS 3
#define SUFFIX _d_avx512
#define ABOVE(a, b) _mm512_cmp_pd_mask((__m512d)(a), (__m512d)(b), _CMP_GT_OQ)
#define EVERY 255
#define TARGET VPEM_AVX512
#include "tile.inc"
#endif
#undef REAL
#undef INTEGER
#undef REAL_IS_DOUBLE
#undef REAL_SQRT
#undef FAR

#define REAL float
#define INTEGER int32_t
#define REAL_IS_DOUBLE 0
#define REAL_SQRT sqrtf
#define FAR 1e30f
#define LANES 4
#define ROWS 4
#define UP 4
#define ACROSS 2
#define SUFFIX _f_base
#define TARGET
#include "tile.inc"
#if VPEM_X86
#define LANES 8
#define ROWS 6
#define UP 4
#define ACROSS 3
#define SUFFIX _f_avx2
#define ABOVE(a, b) _mm256_movemask_ps((__m256)((a) > (b)))
#define EVERY 255
#define TARGET VPEM_AVX2
#include "tile.inc"
#define LANES 16
#define ROWS 8
#define UP 8
#define ACROSS 3
#define SUFFIX _f_avx512
#define ABOVE(a, b) _mm512_cmp_ps_mask((__m512)(a), (__m512)(b), _CMP_GT_OQ)
#define EVERY 65535
#define TARGET VPEM_AVX512
#include "tile.inc"
#endif
#undef REAL
#undef INTEGER
#undef REAL_IS_DOUBLE
#undef REAL_SQRT
#undef FAR

/* 0: what every machine has, 1: AVX2 with FMA, 2: AVX-512.
 *
 * VPEM_INSTRUCTIONS=base or avx2 keeps to a smaller set than the machine has.
 */
static int vpem_instruction_set(void)
{
    int best = 0;
    const char *wanted = getenv("VPEM_INSTRUCTIONS");
#if VPEM_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        best = 1;
    if (best && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        best = 2;
#endif
    if (wanted && strcmp(wanted, "base") == 0)
        return 0;
    if (wanted && strcmp(wanted, "avx2") == 0 && best > 1)
        return 1;
    return best;
}

#if VPEM_X86
#define VPEM_CHOOSE(name, type, set, call) \
    ((set) == 2 ? name##_##type##_avx512 call : (set) == 1 ? name##_##type##_avx2 call \
                                                           : name##_##type##_base call)
#else
#define VPEM_CHOOSE(name, type, set, call) ((void)(set), name##_##type##_base call)
#endif

#define VPEM_DISPATCH(type, REAL) \
    static void vpem_columns_##type(int set, const REAL *rows, const isize *order, isize n_rows, \
        isize d, isize width, isize stride, REAL *x) \
    { VPEM_CHOOSE(columns, type, set, (rows, order, n_rows, d, width, stride, x)); } \
    static isize vpem_whiten_##type(int set, const REAL *x, isize stride, isize n_rows, isize width, \
        const REAL *mean, const REAL *panels, const REAL *tops, REAL far, REAL *centred, \
        REAL *out) \
    { return VPEM_CHOOSE(whiten, type, set, (x, stride, n_rows, width, mean, panels, tops, far, \
        centred, out)); } \
    static isize vpem_distances_##type(int set, const REAL *x, isize stride, isize n_rows, \
        isize width, const REAL *mean, const REAL *precision, const REAL *tops, REAL far, \
        REAL *out) \
    { return VPEM_CHOOSE(distances, type, set, (x, stride, n_rows, width, mean, precision, tops, \
        far, out)); } \
    static void vpem_blend_##type(int set, const REAL *terms, isize run, isize n_blocks, \
        const REAL *panels, isize n_roots, REAL *gathered, REAL *sums) \
    { VPEM_CHOOSE(blend, type, set, (terms, run, n_blocks, panels, n_roots, gathered, sums)); } \
    static void vpem_raise_##type(int set, const REAL *sums, isize n_rows, REAL log_weight, \
        REAL number, REAL *tops, REAL *places) \
    { VPEM_CHOOSE(raise, type, set, (sums, n_rows, log_weight, number, tops, places)); } \
    static int vpem_soften_##type(int set, REAL *sums, isize tile, isize n_components, \
        const REAL *log_weights, REAL *tops, REAL *scales) \
    { return VPEM_CHOOSE(soften, type, set, (sums, tile, n_components, log_weights, tops, scales)); } \
    static void vpem_line_moments_##type(int set, const REAL *x, isize stride, isize n_rows, \
        isize width, const REAL *mean, const REAL *g, double *first, double *second) \
    { VPEM_CHOOSE(line_moments, type, set, (x, stride, n_rows, width, mean, g, first, second)); } \
    static double vpem_total_##type(int set, const REAL *g, isize n) \
    { return VPEM_CHOOSE(total, type, set, (g, n)); } \
    static void vpem_narrow_moments_##type(int set, const REAL *x, isize stride, isize n_rows, \
        isize width, const REAL *mean, const REAL *g, double *first, double *second, isize across) \
    { VPEM_CHOOSE(narrow_moments, type, set, (x, stride, n_rows, width, mean, g, first, second, \
        across)); } \
    static void vpem_wide_moments_##type(int set, const REAL *rows, isize d, const isize *order, \
        isize n_rows, isize width, const REAL *mean, const REAL *g, REAL least, REAL *roots, \
        REAL *sums, REAL *packed, isize capacity, isize stride, double *first, double *gram) \
    { VPEM_CHOOSE(wide_moments, type, set, (rows, d, order, n_rows, width, mean, g, least, \
        roots, sums, packed, capacity, stride, first, gram)); } \
    static void vpem_mix_##type(int set, const int *indptr, const int *indices, \
        const REAL *weights, const REAL *states, REAL *mixed, isize n_agents, isize width, \
        REAL step) \
    { VPEM_CHOOSE(mix, type, set, (indptr, indices, weights, states, mixed, n_agents, width, \
        step)); }

/* Numbers in one vector register. */
static isize vpem_lanes_d(int set) { return set == 2 ? 8 : set == 1 ? 4 : 2; }
static isize vpem_lanes_f(int set) { return 2 * vpem_lanes_d(set); }

/* Rows of a factor in one panel, and of a Gram matrix at once. */
static isize vpem_panel_rows(int set) { return set == 2 ? 8 : set == 1 ? 6 : 4; }
static isize vpem_gram_rows(int set) { return set == 2 ? 8 : 4; }

VPEM_DISPATCH(d, double)
VPEM_DISPATCH(f, float)

#endif
