"""The vector kernels of simd/, for the instruction set that the machine has."""

cdef extern from "simd/tile.h" nogil:
    int vpem_instruction_set()
    Py_ssize_t vpem_lanes_d(int)
    Py_ssize_t vpem_lanes_f(int)
    Py_ssize_t vpem_panel_rows(int)
    Py_ssize_t vpem_gram_rows(int)
    void vpem_columns_d(
        int, const double*, const Py_ssize_t*, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t,
        double*)
    void vpem_columns_f(
        int, const float*, const Py_ssize_t*, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t,
        float*)
    Py_ssize_t vpem_whiten_d(
        int, const double*, Py_ssize_t, Py_ssize_t, Py_ssize_t, const double*, const double*,
        const double*, double, double*, double*)
    Py_ssize_t vpem_whiten_f(
        int, const float*, Py_ssize_t, Py_ssize_t, Py_ssize_t, const float*, const float*,
        const float*, float, float*, float*)
    Py_ssize_t vpem_distances_d(
        int, const double*, Py_ssize_t, Py_ssize_t, Py_ssize_t, const double*, const double*,
        const double*, double, double*)
    Py_ssize_t vpem_distances_f(
        int, const float*, Py_ssize_t, Py_ssize_t, Py_ssize_t, const float*, const float*,
        const float*, float, float*)
    void vpem_blend_d(
        int, const double*, Py_ssize_t, Py_ssize_t, const double*, Py_ssize_t, double*, double*)
    void vpem_blend_f(
        int, const float*, Py_ssize_t, Py_ssize_t, const float*, Py_ssize_t, float*, float*)
    void vpem_raise_d(int, const double*, Py_ssize_t, double, double, double*, double*)
    void vpem_raise_f(int, const float*, Py_ssize_t, float, float, float*, float*)
    int vpem_soften_d(int, double*, Py_ssize_t, Py_ssize_t, const double*, double*, double*)
    int vpem_soften_f(int, float*, Py_ssize_t, Py_ssize_t, const float*, float*, float*)
    double vpem_total_d(int, const double*, Py_ssize_t)
    double vpem_total_f(int, const float*, Py_ssize_t)
    void vpem_line_moments_d(
        int, const double*, Py_ssize_t, Py_ssize_t, Py_ssize_t, const double*, const double*,
        double*, double*)
    void vpem_line_moments_f(
        int, const float*, Py_ssize_t, Py_ssize_t, Py_ssize_t, const float*, const float*, double*,
        double*)
    void vpem_narrow_moments_d(
        int, const double*, Py_ssize_t, Py_ssize_t, Py_ssize_t, const double*, const double*,
        double*, double*, Py_ssize_t)
    void vpem_narrow_moments_f(
        int, const float*, Py_ssize_t, Py_ssize_t, Py_ssize_t, const float*, const float*, double*,
        double*, Py_ssize_t)
    void vpem_wide_moments_d(
        int, const double*, Py_ssize_t, const Py_ssize_t*, Py_ssize_t, Py_ssize_t, const double*,
        const double*, double, double*, double*, double*, Py_ssize_t, Py_ssize_t, double*, double*)
    void vpem_wide_moments_f(
        int, const float*, Py_ssize_t, const Py_ssize_t*, Py_ssize_t, Py_ssize_t, const float*,
        const float*, float, float*, float*, float*, Py_ssize_t, Py_ssize_t, double*, double*)
    void vpem_mix_d(
        int, const int*, const int*, const double*, const double*, double*, Py_ssize_t, Py_ssize_t,
        double)
    void vpem_mix_f(
        int, const int*, const int*, const float*, const float*, float*, Py_ssize_t, Py_ssize_t,
        float)
