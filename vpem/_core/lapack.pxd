"""The LAPACK calls of the kernels for float and double, in row-major terms.

LAPACK is column-major: it reads a row-major matrix as its transpose. The names below hide that.
"""
from scipy.linalg.cython_lapack cimport dpotrf, dtrtri, spotrf, strtri

from vpem._core.real cimport real


cdef inline int cholesky(real* matrix, int n) noexcept nogil:
    """Overwrite the lower triangle of a row-major (n, n) matrix by its Cholesky factor."""
    cdef int info = 0
    cdef char uplo = b"U"
    if real is double:
        dpotrf(&uplo, &n, matrix, &n, &info)
    else:
        spotrf(&uplo, &n, matrix, &n, &info)
    return info


cdef inline int invert_lower(real* matrix, int n) noexcept nogil:
    """Overwrite a row-major lower triangular (n, n) matrix by its inverse."""
    cdef int info = 0
    cdef char uplo = b"U"
    cdef char diagonal = b"N"
    if real is double:
        dtrtri(&uplo, &diagonal, &n, matrix, &n, &info)
    else:
        strtri(&uplo, &diagonal, &n, matrix, &n, &info)
    return info
