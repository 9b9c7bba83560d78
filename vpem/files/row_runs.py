"""Some rows of a file, numbered anew, and the reads that fetch them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WASTE = 8
"""Rows may be read along with those wanted, so many times as many."""

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Read:
    """Rows of a file that are read at once."""

    rows: slice
    chosen: Indices | None  # (m,) of these, those wanted; None: all
    places: slice | Indices  # where they go


class RowRuns:
    """Rows of a file, run after run, counted from 0; those of each group (m_i,) increase."""

    def __init__(self, rows: Sequence[Indices]) -> None:
        begins, lengths = [np.empty(0, dtype=np.intp)], [np.empty(0, dtype=np.intp)]
        for group in rows:
            if len(group):
                breaks = np.flatnonzero(np.diff(group) != 1) + 1
                ends = np.concatenate([[0], breaks, [len(group)]])
                begins.append(group[ends[:-1]])
                lengths.append(np.diff(ends))
        self._begins = np.concatenate(begins)
        self._ends = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.intp)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def of(self, indices: Indices) -> Indices:
        """Return the rows of the file that have these numbers here."""
        run = np.searchsorted(self._ends, indices, side="right") - 1
        found: Indices = self._begins[run] + indices - self._ends[run]
        return found

    def reads(self, start: int, stop: int, most: int) -> Iterator[Read]:
        """Yield reads of at most ``most`` rows that fetch the rows from ``start`` to ``stop``."""
        first = int(np.searchsorted(self._ends, start, side="right")) - 1
        last = int(np.searchsorted(self._ends, stop, side="left"))
        mean = (stop - start) / max(last - first, 1)
        if mean < WASTE:
            yield from reads_of(self.of(np.arange(start, stop)), most)
            return
        for run in range(first, last):
            begin, end = max(start, int(self._ends[run])), min(stop, int(self._ends[run + 1]))
            shift = int(self._begins[run]) - int(self._ends[run])
            places = slice(begin - start, end - start)
            yield Read(slice(begin + shift, end + shift), None, places)


def reads_of(rows: Indices, most: int) -> Iterator[Read]:
    """Yield reads of at most ``most`` rows of a file that fetch some, in whatever order."""
    order = np.argsort(rows, kind="stable")
    inside = rows[order]
    # Apart where more would be read along than `WASTE` rows for each that is wanted.
    breaks = np.flatnonzero(np.diff(inside) > WASTE) + 1
    for begin, end in zip([0, *breaks], [*breaks, len(rows)], strict=True):
        while begin < end:
            low = int(inside[begin])
            cut = min(end, int(np.searchsorted(inside, low + most, side="left")))
            wanted = inside[begin:cut]
            yield Read(slice(low, int(wanted[-1]) + 1), wanted - low, order[begin:cut])
            begin = cut
