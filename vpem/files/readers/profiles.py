"""Profiles of tables: what each column holds, and what a fit makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vpem.checks import Floats
from vpem.files.arrow import decoded, is_empty, is_text, plain_kind
from vpem.files.datasets import Dataset
from vpem.files.readers.frames import Frame

KINDS = (
    (pa.types.is_boolean, "true/false"),
    (pa.types.is_integer, "whole numbers"),
    (pa.types.is_floating, "numbers"),
    (pa.types.is_decimal, "numbers"),
    (pa.types.is_temporal, "dates"),
    (is_text, "text"),
    (pa.types.is_null, "no values"),
)
"""What a column holds, by its type."""


@dataclass(frozen=True)
class ColumnProfile:
    """What a column of a table holds."""

    name: str
    kind: str  # numbers, whole numbers, true/false, text, dates, ...
    use: str  # feature, ids, labels, ..., left out (why), dropped
    missing: int | None = None  # None: not read
    different: int | None = None  # how many values
    least: str | None = None  # the first of them
    most: str | None = None  # the last of them


def profile_of(
    frame: Frame,
    found: Dataset,
    read: Mapping[int, pa.ChunkedArray],
    features: Mapping[int, pa.ChunkedArray],
    noted: Mapping[str, int],
) -> list[ColumnProfile]:
    """Return what the columns of a table hold, in its order.

    ``read`` and ``features``, as numbers, are by number of the column; ``noted`` are columns of
    labels, ids, workers and weights.
    """
    uses = {place: f"{what}s" for what, place in noted.items()}
    uses |= dict.fromkeys(features, "feature")
    numbers = dict(zip(features, found.X.T, strict=True))
    levels = {place: found.coded[n] for n, place in enumerate(features) if n in found.coded}
    profiles = []
    for place, name in enumerate(frame.names):
        why = found.left_out.get(name)
        use = uses.get(place, "not used" if why is None else f"left out ({why})")
        column = read.get(place) if place in levels else features.get(place, read.get(place))
        kind = _kind(frame.kinds[place] if column is None else column.type)
        facts: tuple[Any, ...] = ()
        if place in levels:
            names = levels[place]
            facts = int(np.isnan(numbers[place]).sum()), len(names), names[0][:40], names[-1][:40]
        elif place in numbers:
            facts = _of_numbers(numbers[place])
        elif column is not None:
            facts = _of_others(decoded(column))
        profiles.append(ColumnProfile(name, kind, use, *facts))
    return profiles


def _of_numbers(values: Floats) -> tuple[Any, ...]:
    """Return of a feature how many values are missing and different, the least and the most."""
    there = np.unique(values[~np.isnan(values)])
    lacking = int(np.isnan(values).sum())
    if not len(there):
        return lacking, 0
    return lacking, len(there), f"{there[0]:.6g}", f"{there[-1]:.6g}"


def _of_others(column: pa.ChunkedArray) -> tuple[Any, ...]:
    """Return the same of a column that is no feature."""
    if is_text(column.type):
        column = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
        column = pc.if_else(is_empty(column), pa.NULL, column)
    there = column.drop_null()
    if not len(there):
        return len(column), 0
    ends = pc.min_max(there)
    least, most = (str(ends[end].as_py())[:40] for end in ("min", "max"))
    return len(column) - len(there), pc.count_distinct(there).as_py(), least, most


def _kind(kind: pa.DataType) -> str:
    """Return what a column of a type holds."""
    plain = plain_kind(kind)
    return next((word for test, word in KINDS if test(plain)), "lists")
