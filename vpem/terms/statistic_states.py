"""Statistics of whatever kind as what checkpoints keep: tables of arrays, within each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.network.schema import Array, Schema


def arrays_of(statistics: Any) -> Any:
    """Return the arrays of statistics: a record is a table by its fields, a tuple a list."""
    if is_dataclass(statistics):
        own = fields(statistics)
        return {field.name: arrays_of(getattr(statistics, field.name)) for field in own}
    if isinstance(statistics, dict):
        return {name: arrays_of(own) for name, own in statistics.items()}
    if isinstance(statistics, tuple):
        return [arrays_of(own) for own in statistics]
    return statistics


def schema_of_arrays(arrays: Any) -> Schema:
    """Say what such arrays must be: of these shapes, and of this precision."""
    if isinstance(arrays, dict):
        return {name: schema_of_arrays(own) for name, own in arrays.items()}
    if isinstance(arrays, list):
        return [schema_of_arrays(own) for own in arrays]
    assert isinstance(arrays, np.ndarray)
    return Array(arrays.dtype.str[1:], arrays.shape)


def leaves(arrays: Any) -> Iterator[NDArray[Any]]:
    """Yield all arrays of such tables, in order."""
    if isinstance(arrays, dict | list):
        for own in arrays.values() if isinstance(arrays, dict) else arrays:
            yield from leaves(own)
    else:
        yield arrays


def having_arrays(blank: Any, arrays: Any) -> Any:
    """Return statistics like ``blank`` that have these arrays, which have been checked."""
    if is_dataclass(blank) and not isinstance(blank, type):
        own = {name: having_arrays(getattr(blank, name), one) for name, one in arrays.items()}
        return replace(blank, **own)
    if isinstance(blank, dict):
        return {name: having_arrays(own, arrays[name]) for name, own in blank.items()}
    if isinstance(blank, tuple):
        return tuple(having_arrays(own, one) for own, one in zip(blank, arrays, strict=True))
    return arrays
