"""Families whose features are independent within a component: tables of cells, and their rows."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.checks import Floats
from vpem.terms.families.columns import Columns
from vpem.terms.families.family import Family, Features, Table, Tables
from vpem.terms.families.part import RANGES, How, Law, Made, Part, PartTerms
from vpem.terms.matrix import Rows
from vpem.terms.scaling import Scaling

CHUNK_VALUES = 1 << 20
"""Values of rows that are looked at together for what all of them have in common."""


@dataclass
class Cells:
    """Statistics in tables (K, C) by name, summed over rows."""

    tables: Tables

    @property
    def nbytes(self) -> int:
        """Bytes that the tables take."""
        return sum(table.nbytes for table in self.tables.values())

    def add(self, other: Cells, times: float = 1.0) -> None:
        """Add so many times the statistics of other rows."""
        for name, table in self.tables.items():
            table += times * other.tables[name]

    def scale(self, factor: float) -> None:
        """Multiply all of it."""
        for table in self.tables.values():
            table *= factor


class IndependentLaw(Law):
    """A `Family` among the families of a mixed fit."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.name = family.name  # type: ignore[misc]  # of this object, not of the class

    @property
    def domains(self) -> dict[str, str]:
        """Tables, and what each may hold."""
        return self.family.domains

    def hubs_of_cells(self, features: Features) -> dict[str, NDArray[np.intp]]:
        """Hub (C,) that has each cell of each table."""
        hubs = features.blocks.block_of
        return {name: hubs[own] for name, own in self.features_of_cells(features).items()}

    def cells_of_hubs(self, features: Features) -> dict[str, NDArray[np.intp]]:
        """How many cells of each table each hub (B,) has: of a file these may be far too many."""
        offsets = features.blocks.offsets
        found = {}
        for name, count in self.family.a_feature(features).items():
            ends = np.concatenate([[0], np.cumsum(count)])
            found[name] = np.diff(ends[offsets]).astype(np.intp)
        return found

    def features_of_cells(self, features: Features) -> dict[str, NDArray[np.intp]]:
        """Feature (C,), in block order, of each cell of each table."""
        counts = self.family.a_feature(features)
        return {name: features.cells(count) for name, count in counts.items()}

    def n_parameters(self, part: Part, n_components: int) -> int:
        """Free parameters of all components."""
        return n_components * self.family.n_free(part.features)

    def wrong(self, values: Floats) -> NDArray[np.bool_]:
        """Which values (m,) a feature of this family cannot have."""
        return self.family.wrong(values)

    def terms_of(self, part: Part, values: NDArray[np.float64], there: NDArray[np.bool_]) -> Floats:
        """``-2 log f`` (B, m, K) of each hub, of what is there of rows."""
        features = part.features
        data = features.blocks.arrange(np.where(there, values, np.nan), np.float64)
        k = len(next(iter(part.tables.values())))
        out = np.zeros((features.blocks.n_blocks, len(data), k))
        ready = self.family.ready(part.tables, features, np.float64)
        self.family.add_terms(ready, features, data, out, thread_count(None))
        return out

    def locations(self, part: Part) -> Table:
        """Where components lie, (K, n) in block order."""
        return self.family.means(part.tables, part.features)

    def means(self, part: Part) -> Table:
        """Expected values (K, n) in the user's order; of a category its mode."""
        found = self.family.means(part.tables, part.features)
        ordered: Table = found[:, part.features.blocks.position]
        return ordered

    def variances(self, part: Part) -> Table:
        """Variances within components (K, n) in the user's order."""
        found = self.family.variances(part.tables, part.features)
        ordered: Table = found[:, part.features.blocks.position]
        return ordered

    def draw(self, part: Part, labels: NDArray[np.intp], rng: np.random.Generator) -> Table:
        """Draw rows of these components, (m, n)."""
        drawn = self.family.draw(part.tables, part.features, labels, rng)
        ordered: Table = drawn[:, part.features.blocks.position]
        return ordered

    def terms(self, columns: Columns, features: Features, how: How) -> IndependentTerms:
        """Return the terms of data."""
        return IndependentTerms(self, columns, features, how)


class IndependentTerms(PartTerms):
    """Rows of a family whose features are independent within a component."""

    def __init__(self, law: IndependentLaw, columns: Columns, features: Features, how: How) -> None:
        self.law, self.family, self.features = law, law.name, features
        none = Scaling.none(features.n_features)
        self.rows: Rows = columns.arranged(features.blocks, none, how.dtype)
        self.n_threads = how.n_threads
        self._ready: dict[str, Floats] | None = None
        self._whole = (self.rows, how.row_weights)

    @cached_property
    def pooled(self) -> Tables:
        """Parameters (1, C) of all rows in one component."""
        rows, weights = self._whole
        statistics = self.law.family.empty(self.features, 1)
        for some in _runs(rows, self.features.n_features):
            own = np.ones(some.stop - some.start) if weights is None else weights[some]
            shares = np.ascontiguousarray(own[None, :, None], dtype=rows.dtype)
            self.law.family.add_moments(
                statistics, None, self.features, rows.read(some), shares, self.n_threads
            )
        return self.law.family.update(statistics, self.features, None)

    def prepare(self, part: Part) -> Made:
        """Make what the E-step needs, and remember it for expected values of the M-step."""
        self._ready = self.law.family.ready(part.tables, self.features, self.rows.dtype)
        return Made(self._ready)

    def forget(self) -> None:
        """Remember no parameters: a start follows."""
        self._ready = None

    def add_terms(self, made: Made, rows: slice, out: Floats) -> None:
        """Add ``-2 log f`` of each hub to ``out`` (B, m, K)."""
        data = self.rows.read(rows)
        self.law.family.add_terms(made.ready, self.features, data, out, self.n_threads)

    def empty(self, centres: Floats, n_roots: int) -> Cells:
        """Statistics of no rows, which are about no centres."""
        return Cells(self.law.family.empty(self.features, len(centres)))

    def summarize(self, statistics: Cells, responsibilities: Floats, rows: slice) -> None:
        """Add these rows to the statistics."""
        self.law.family.add_moments(
            statistics.tables, self._ready, self.features, self.rows.read(rows), responsibilities,
            self.n_threads,
        )  # fmt: skip

    def update(self, statistics: Cells, weights: NDArray[np.float64]) -> Part:
        """M-step."""
        tables = self.law.family.update(statistics.tables, self.features, self.pooled)
        # Where statistics of a batch were taken away sums may be below 0 by rounding.
        for name, table in tables.items():
            np.clip(table, *RANGES[self.law.domains[name]], out=table)
        return Part(self.law.name, self.features, tables)

    def recentred(self, statistics: Cells, centres: Floats) -> Cells:
        """Return the same statistics in tables of their own: they are about no centres."""
        return Cells({name: table.copy() for name, table in statistics.tables.items()})

    def with_hubs_of(self, statistics: Cells, other: Cells, hubs: NDArray[np.bool_]) -> Cells:
        """Return the statistics with those hubs' (B,) part taken from other ones."""
        features, n = self.features, max(self.features.n_features, 1)
        tables = {}
        for name, table in statistics.tables.items():
            by_level = table.shape[1] == features.level_offsets[-1] != n
            counts = features.n_levels if by_level else np.full(n, table.shape[1] // n)
            cells = features.blocks.block_of[features.cells(counts)]
            tables[name] = np.where(hubs[cells], other.tables[name], table)
        return Cells(tables)

    def keep(self, part: Part, before: Part, hubs: NDArray[np.bool_]) -> Part:
        """Return the part with the parameters that these hubs (B,) had before."""
        cells = self.law.hubs_of_cells(self.features)
        tables = {
            name: np.where(hubs[cells[name]], before.tables[name], table)
            for name, table in part.tables.items()
        }
        return replace(part, tables=tables)

    def blank(self, n_components: int) -> Part:
        """Return a part of so many components with everything but parameters."""
        cells = self.law.features_of_cells(self.features)
        tables = {name: np.zeros((n_components, len(own))) for name, own in cells.items()}
        return Part(self.family, self.features, tables)

    def at_rows(self, indices: NDArray[np.intp]) -> Table:
        """Rows of the data as centres (L, n)."""
        rows = self.rows.take(indices).astype(np.float64)
        usual = self.law.family.means(self.pooled, self.features)
        return np.where(np.isnan(rows), usual, rows)

    def start(self, centres: Table, weights: NDArray[np.float64]) -> Part:
        """Parameters to start from at centres (K, n)."""
        tables = self.law.family.at(centres, self.features, self.pooled)
        return Part(self.law.name, self.features, tables)

    def reseeded(self, part: Part, component: int, centre: Table) -> Part:
        """Place one component anew, at a centre (n,)."""
        fresh = self.law.family.at(centre[None], self.features, self.pooled)
        tables = {name: table.copy() for name, table in part.tables.items()}
        for name, table in tables.items():
            table[component] = fresh[name][0]
        return replace(part, tables=tables)

    def middle(self, part: Part, weights: NDArray[np.float64]) -> Table:
        """The usual values of all rows (n,)."""
        usual: Table = self.law.family.means(self.pooled, self.features)
        return np.asarray(usual).reshape(-1)

    def embedded(self, rows: slice) -> Floats:
        """Rows (m, n) in block order; NaN missing."""
        return self.rows.read(rows)

    def part(self, rows: slice, following: slice | None = None) -> Self:
        """Return the terms of a run of rows, which are counted from 0 in it."""
        return self._over(self.rows.part(rows, following))

    def some(self, rows: NDArray[np.intp], row_weights: NDArray[np.float64] | None) -> Self:
        """Return the terms of some rows."""
        return self._over(self.rows.some(rows))

    def _over(self, rows: Any) -> Self:
        assert self.pooled is not None  # of all rows, for which they are found before
        chosen = copy(self)
        chosen.rows = rows
        return chosen


def _runs(rows: Rows, n_features: int) -> Iterator[slice]:
    """Yield runs of rows that are looked at together."""
    step = max(64, CHUNK_VALUES // max(n_features, 1))
    for run in rows.runs():
        for start in range(run.start, run.stop, step):
            yield slice(start, min(start + step, run.stop))
