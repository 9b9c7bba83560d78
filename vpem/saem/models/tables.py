"""Individuals as rows of a table of items, of which some may be missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vpem.saem.individuals import Individuals
from vpem.saem.models.model import Vector


def table_of(individuals: Individuals, items: Sequence[float] | None) -> tuple[Vector, Vector]:
    """Return the values (n, d), NaN where they are missing, and the items (d,).

    By default the items are those that all individuals have.
    """
    if items is None:
        return individuals.matrix()
    known = np.array(items, dtype=np.float64)
    return individuals.table(known), known


def is_incomplete(individuals: Individuals, items: Sequence[float] | None) -> bool:
    """Whether any individual of any process lacks an item."""
    if items is None:
        return False
    fewer = bool((individuals.counts < len(items)).any())
    return bool(individuals.largest(np.array([fewer], dtype=np.uint8))[0])
