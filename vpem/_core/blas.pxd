"""The BLAS calls of the kernels for float and double, in row-major terms.

BLAS is column-major: a row-major matrix is read there as its transpose. The names below hide that.
"""
from scipy.linalg.cython_blas cimport dsyrk, dtrmm, ssyrk, strmm

from vpem._core.real cimport real


cdef inline void multiply_lower(const real* lower, real* rows, int n_rows, int n) noexcept nogil:
    """Overwrite each row r of the row-major (n_rows, n) matrix by ``lower @ r``."""
    cdef char side = b"L"
    cdef char uplo = b"U"
    cdef char trans = b"T"
    cdef char diagonal = b"N"
    cdef real one = 1
    if real is double:
        dtrmm(&side, &uplo, &trans, &diagonal, &n, &n_rows, &one, <double*>lower, &n, rows, &n)
    else:
        strmm(&side, &uplo, &trans, &diagonal, &n, &n_rows, &one, <float*>lower, &n, rows, &n)


cdef inline void add_gram(
    const real* rows, real* gram, int n_rows, int n, real keep,
) noexcept nogil:
    """Lower triangle of ``gram`` (n, n) becomes ``keep * gram + rows.T @ rows``."""
    cdef char uplo = b"U"
    cdef char trans = b"N"
    cdef real one = 1
    if real is double:
        dsyrk(&uplo, &trans, &n, &n_rows, &one, <double*>rows, &n, &keep, gram, &n)
    else:
        ssyrk(&uplo, &trans, &n, &n_rows, &one, <float*>rows, &n, &keep, gram, &n)
