"""Symmetric matrices: their lower halves, and units in which they are the identity."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Kind = TypeVar("Kind", bound=np.generic)

SMALLEST = 1e-8
"""Least eigenvalue of the data's correlations; below, directions are noise."""


def lower_half(matrices: NDArray[Kind]) -> NDArray[Kind]:
    """Entries on and below the diagonal of matrices (..., d, d), shape (..., d (d + 1) / 2)."""
    rows, columns = _places(matrices.shape[-1])
    half: NDArray[Kind] = matrices[..., rows, columns]
    return half


def symmetric(half: Vector, width: int) -> Vector:
    """Symmetric matrices (..., d, d) of their lower halves."""
    rows, columns = _places(width)
    out = np.empty((*half.shape[:-1], width, width))
    out[..., rows, columns] = half
    out[..., columns, rows] = half
    return out


@lru_cache(maxsize=64)
def _places(width: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of a lower half: SAEM asks thousands of times."""
    return np.tril_indices(width)


def are_positive(matrices: Vector) -> bool:
    """Whether all of these matrices (n, d, d) are positive definite."""
    try:
        np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        return False
    return True


def white_units(matrix: Vector) -> tuple[Vector, Vector]:
    """Linear maps (d, d) to units in which data of these second moments are white, and back."""
    deviations = np.sqrt(np.diagonal(matrix))
    values, vectors = np.linalg.eigh(matrix / np.outer(deviations, deviations))
    roots = np.sqrt(np.maximum(values, SMALLEST))
    return (vectors / roots).T / deviations, deviations[:, None] * vectors * roots
