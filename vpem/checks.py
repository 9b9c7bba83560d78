"""Checks of what a user gives, before any work starts."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError

__all__ = ["check_data", "check_int", "check_number", "check_rows", "check_weights"]


def check_int(what: str, value: object, *, least: int) -> int:
    """Return ``value`` as an int of at least ``least``, or raise InputError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{what} must be an integer of at least {least}, got {value!r}")
    return int(value)


def check_number(what: str, value: object, *, least: float) -> float:
    """Return ``value`` as a finite float of at least ``least``, or raise InputError."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else np.nan
    if not np.isfinite(number) or number < least:
        raise InputError(f"{what} must be a finite number of at least {least:g}, got {value!r}")
    return number


def check_data(
    X: Any, n_features: int, feature_names: Sequence[str] | None = None
) -> NDArray[np.floating[Any]]:
    """Return ``X`` as a finite float array of shape (M, d).

    Raises
    ------
    InputError
        If it has another shape or type, no rows, or a value that is not finite (row and feature
        named).
    """
    data = np.asarray(X)
    if data.dtype.kind not in "iufb":
        raise InputError(f"the data must be real numbers, got values of type {data.dtype}")
    if data.ndim != 2:
        raise InputError(f"the data must be 2-D (rows, features), got {data.ndim} dimension(s)")
    if data.shape[1] != n_features:
        raise InputError(f"the agents hold {n_features} features, the data have {data.shape[1]}")
    if len(data) == 0:
        raise InputError("the data have no rows")
    if data.dtype not in (np.float32, np.float64):
        data = data.astype(np.float64)
    bad = ~np.isfinite(data)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        name = f" ({feature_names[column]!r})" if feature_names is not None else ""
        raise InputError(
            f"row {row}, feature {column}{name} is {_word(data[row, column])}"
            f"{_and_others(int(bad.sum()))}; remove or impute values that are not finite"
        )
    return data


def _word(value: float) -> str:
    return "NaN" if np.isnan(value) else str(float(value))


def _and_others(count: int) -> str:
    return f", and so are {count - 1} other values" if count > 1 else ""


def check_weights(weights: Any, n_samples: int) -> NDArray[np.float64]:
    """Return row weights as a non-negative float array of shape (M,), or raise InputError."""
    values = np.asarray(weights)
    if values.dtype.kind not in "iufb" or values.shape not in ((n_samples,), ()):
        raise InputError(
            f"sample weights must be {n_samples} numbers, got shape {values.shape} "
            f"of type {values.dtype}"
        )
    values = np.broadcast_to(values.astype(np.float64), (n_samples,))
    if not np.isfinite(values).all() or (values < 0).any():
        raise InputError("sample weights must be finite and not negative")
    if not values.any():
        raise InputError("sample weights must not all be zero")
    return values


def check_rows(rows: Any, n_components: int, n_samples: int) -> NDArray[np.intp]:
    """Return starting row indices (K,), different and in range, or raise InputError."""
    indices = np.asarray(rows)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise InputError(f"init rows must be a list of row indices, got {rows!r}")
    if len(indices) != n_components:
        raise InputError(f"{n_components} components need as many init rows, got {len(indices)}")
    if len(indices) and (indices.min() < 0 or indices.max() >= n_samples):
        raise InputError(
            f"init rows must lie between 0 and {n_samples - 1}, got {indices.tolist()}"
        )
    if len(np.unique(indices)) != len(indices):
        raise InputError(f"init rows must differ from each other, got {indices.tolist()}")
    return indices.astype(np.intp)
