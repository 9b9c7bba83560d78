"""The vector kernels of simd/, for the instruction set that the machine has."""

cdef extern from "simd/tile.h" nogil:
    int vpem_instruction_set()
    long vpem_lanes_d(int)
    long vpem_lanes_f(int)
    long vpem_panel_rows(int)
    long vpem_gram_rows(int)
    void vpem_columns_d(
        int, const double*, const long*, long, long, long, long, double*)
    void vpem_columns_f(
        int, const float*, const long*, long, long, long, long, float*)
    long vpem_whiten_d(
        int, const double*, long, long, long, const double*, const double*, const double*, double,
        double*, double*)
    long vpem_whiten_f(
        int, const float*, long, long, long, const float*, const float*, const float*, float,
        float*, float*)
    long vpem_distances_d(
        int, const double*, long, long, long, const double*, const double*, const double*, double,
        double*)
    long vpem_distances_f(
        int, const float*, long, long, long, const float*, const float*, const float*, float,
        float*)
    void vpem_blend_d(
        int, const double*, long, long, const double*, long, double*, double*)
    void vpem_blend_f(
        int, const float*, long, long, const float*, long, float*, float*)
    void vpem_raise_d(int, const double*, long, double, double, double*, double*)
    void vpem_raise_f(int, const float*, long, float, float, float*, float*)
    int vpem_soften_d(int, double*, long, long, const double*, double*, double*)
    int vpem_soften_f(int, float*, long, long, const float*, float*, float*)
    double vpem_total_d(int, const double*, long)
    double vpem_total_f(int, const float*, long)
    void vpem_line_moments_d(
        int, const double*, long, long, long, const double*, const double*, double*, double*)
    void vpem_line_moments_f(
        int, const float*, long, long, long, const float*, const float*, double*, double*)
    void vpem_narrow_moments_d(
        int, const double*, long, long, long, const double*, const double*, double*, double*,
        double*)
    void vpem_narrow_moments_f(
        int, const float*, long, long, long, const float*, const float*, float*, double*, double*)
    void vpem_wide_moments_d(
        int, const double*, long, const long*, long, long, const double*, const double*, double,
        double*, double*, double*, long, long, double*, double*)
    void vpem_wide_moments_f(
        int, const float*, long, const long*, long, long, const float*, const float*, float,
        float*, float*, float*, long, long, double*, double*)
    void vpem_mix_d(
        int, const int*, const int*, const double*, const double*, double*, long, long, double)
    void vpem_mix_f(
        int, const int*, const int*, const float*, const float*, float*, long, long, float)
