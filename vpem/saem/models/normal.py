"""The normal law of latents, its numbers computed elementwise: the same whoever else is there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError
from vpem.saem.individuals import Individuals
from vpem.terms.matrices import lower_half

Vector = NDArray[np.float64]
LOG_2_PI = float(np.log(2 * np.pi))
LEAST = 1e-10
"""Least eigenvalue of a matrix of correlations; least variance, relative to that of the values."""


def quadratic(d: Vector, matrices: NDArray[np.floating]) -> Vector:
    """``d^T A d`` of differences (..., n, q) and symmetric matrices (q, q) or (n, q, q)."""
    q = d.shape[-1]
    total: Vector = np.zeros(d.shape[:-1])
    for i in range(q):
        total += matrices[..., i, i] * d[..., i] ** 2
        for j in range(i):
            total += 2.0 * matrices[..., i, j] * (d[..., i] * d[..., j])
    return total


def times(matrices: NDArray[np.floating], d: Vector) -> Vector:
    """``A d`` of matrices (q, q) or (n, q, q) and vectors (..., n, q)."""
    out = np.zeros(d.shape)
    for i in range(d.shape[-1]):
        for j in range(d.shape[-1]):
            out[..., i] += matrices[..., i, j] * d[..., j]
    return out


def log_normal(z: Vector, mean: Vector, covariance: Vector) -> Vector:
    """Log-density of latents (..., q) under one normal law, (...,)."""
    inverse = np.linalg.inv(covariance)
    constant = len(covariance) * LOG_2_PI + np.linalg.slogdet(covariance)[1]
    found: Vector = -0.5 * (constant + quadratic(z - mean, inverse))
    return found


def products(apart: Vector) -> Vector:
    """Latents ``z`` (..., q) and half ``z z^T``, side by side."""
    half = lower_half(apart[..., :, None] * apart[..., None, :])
    return np.concatenate([apart, half], axis=-1)


def gradient_normal(z: Vector, mean: Vector, covariance: Vector) -> Vector:
    """Gradient of `log_normal` in the latents."""
    return -times(np.linalg.inv(covariance), z - mean)


def triangle_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of variances and covariances, in the order of `triangle`."""
    rows, columns = np.tril_indices(len(names))
    return tuple(
        f"var({names[i]})" if i == j else f"cov({names[j]}, {names[i]})"
        for i, j in zip(rows, columns, strict=True)
    )


def floored(covariance: Vector, least: Vector | float = LEAST) -> Vector:
    """Make a symmetric matrix (q, q) a covariance.

    Variances are raised to ``least`` (q,), and correlations until the matrix is positive definite,
    so that units do not matter. A matrix that is one is returned as it is.
    """
    q = len(covariance)
    diagonal = np.maximum(np.diag(covariance), least)
    sd = np.sqrt(diagonal)
    correlation = np.clip(covariance / np.outer(sd, sd), -1.0, 1.0)
    correlation[range(q), range(q)] = 1.0
    values, vectors = np.linalg.eigh(correlation)
    if values.min() >= LEAST:
        if (np.diag(covariance) >= least).all():
            return covariance
    else:
        correlation = (vectors * np.maximum(values, LEAST)) @ vectors.T
        correlation = (correlation + correlation.T) / 2
    raised: Vector = correlation * np.outer(sd, sd)
    return raised


def is_floored(covariance: Vector, least: Vector | float = LEAST) -> bool:
    """Whether `floored` changes a matrix."""
    return bool((floored(covariance, least) != covariance).any())


def known_scale(values: Vector, scale: float, source: str) -> None:
    """Check that there is a scale of a model's values, which fits need."""
    if not (np.isfinite(scale) and scale > 0):
        raise InputError(
            f"{source}: all values are {values[0]:g}, of which a model says nothing; take other "
            "values"
        )


def crossed(data: Individuals, left: Vector, right: Vector) -> Vector:
    """Products ``L^T R`` (n, l, r) of columns (N, l) and (N, r), over each individual's rows."""
    found = np.empty((data.n_individuals, left.shape[1], right.shape[1]))
    for i in range(left.shape[1]):
        for j in range(right.shape[1]):
            found[:, i, j] = data.sums(left[:, i] * right[:, j])
    return found
