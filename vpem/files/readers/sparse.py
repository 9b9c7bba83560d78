"""Sparse matrices made dense, after what they say of themselves is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.errors import FileError
from vpem.files.opening import check_unpacked
from vpem.files.readers.common import refuse_large

Parts = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Values, their columns (rows), and where each row (column) begins."""


def dense_of(
    parts: Parts,
    shape: tuple[int, int],
    kind: str,
    file: Path,
    source: str,
    memory_limit: int | None,
) -> Floats:
    """Return a sparse matrix ("csr", "csc") as a dense one (M, d).

    ``parts`` are the values, their columns (rows), and where each row (column) begins. The result
    is float32 where values are real numbers of at most 32 bits, else float64; FileError if it takes
    far more than the file, InputError if it exceeds ``memory_limit`` (bytes).
    """
    import scipy.sparse

    data, indices, indptr = check_parts(parts, shape, kind, source)
    small = data.dtype.kind == "f" and data.dtype.itemsize <= 4
    dtype = np.dtype(np.float32 if small else np.float64)
    n_bytes = shape[0] * shape[1] * dtype.itemsize
    check_unpacked(n_bytes, file, source)
    refuse_large(n_bytes, memory_limit, source)
    made = scipy.sparse.csr_matrix if kind == "csr" else scipy.sparse.csc_matrix
    sparse = made((data.astype(dtype), indices, indptr), shape=shape)
    return np.ascontiguousarray(sparse.toarray(), dtype=dtype)


def check_parts(parts: Parts, shape: tuple[int, int], kind: str, source: str) -> Parts:
    """Return the parts of a sparse matrix, as `dense_of` takes them, if they fit each other."""
    data, indices, indptr = (np.asarray(part) for part in parts)
    runs, across = shape if kind == "csr" else shape[::-1]
    fits = (
        data.ndim == indices.ndim == indptr.ndim == 1
        and data.dtype.kind in "iufb"
        and indices.dtype.kind in "iu"
        and indptr.dtype.kind in "iu"
        and len(data) == len(indices)
        and len(indptr) == runs + 1
        and indptr[0] == 0
        and indptr[-1] == len(data)
        and bool((indptr[1:] >= indptr[:-1]).all())
        and (not len(indices) or (indices.min() >= 0 and indices.max() < across))
    )
    if not fits:
        raise FileError(f"{source}: the parts of the sparse matrix do not fit each other")
    return data, indices, indptr
