"""Where rows that parties have together come from, so that what is found of them can go back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Labels


@dataclass(frozen=True, eq=False)
class Home:
    """The rows of one party's data, in its own order."""

    name: str  # "": of one dataset
    ids: Labels | None  # (m,)
    places: NDArray[np.intp]  # (m,) where each is in the results; -1: nowhere
    counted: Labels | None = None  # (m,) numbers of rows that have no ids; None: from 0

    @classmethod
    def joined(cls, name: str, ids: Labels | None, n_rows: int, rows: NDArray[np.intp]) -> Self:
        """Make one of the party's row that each joined row is of, (M,); -1 where it lacks it."""
        places = np.full(n_rows, -1, dtype=np.intp)
        there = np.flatnonzero(rows >= 0)
        places[rows[there]] = there
        return cls(name, ids, places)

    @property
    def n_lost(self) -> int:
        """Rows of which nothing is found."""
        return int((self.places < 0).sum())

    def columns(self, found: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Return a table of all its rows: what they are called, and what was found of them.

        Of each array (M,), by rows as they were joined, columns (m,) are masked where a row took no
        part.
        """
        numbers = np.arange(len(self.places)) if self.counted is None else self.counted
        called = ("row", numbers) if self.ids is None else ("id", self.ids)
        lost = self.places < 0
        return dict([called]) | {
            name: np.ma.array(np.take(column, np.where(lost, 0, self.places)), mask=lost)
            if lost.any()
            else np.asarray(column)[self.places]
            for name, column in found.items()
        }

    def values(self, found: NDArray[Any]) -> list[Any]:
        """Return what was found (M, ...) of its rows, for JSON: None where a row took no part."""
        return [None if place < 0 else found[place].tolist() for place in self.places.tolist()]
