"""What mixed fits need of a family: its part of a mixture, its part of the terms, its columns.

A mixture of several families is a list of parts, one a family, each over all hubs. A family is a
law: what it says of parameters that are found; its terms hold rows and find them. Columns are read
through the rows that all families share. Families whose features are independent within a component
have tables of cells (`IndependentLaw`); those of `vpem.terms.families.located`, which answer to the
same, have locations and scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem._core.threads import thread_count
from vpem.checks import Doubles, Floats, Indices, Mask, Matrix, row_blocks
from vpem.network.partition import Blocks
from vpem.network.schema import Array, Schema, State
from vpem.terms.families.family import Family, Features, Table, Tables
from vpem.terms.mixture import Mixture
from vpem.terms.rows import Rows, Shaped
from vpem.terms.statistics import Sums
from vpem.terms.units import Scaling

Change = Callable[[Floats], Floats]
"""What becomes of values before they are scaled."""

RANGES: dict[str, tuple[float, float]] = {
    "positive": (0.0, np.inf), "probability": (0.0, 1.0), "simplex": (0.0, 1.0),
    "any": (-np.inf, np.inf),
}  # fmt: skip
"""What numbers of a domain are between. Some that are positive may come to be 0."""

CHUNK_VALUES = 1 << 20
"""Values of rows that are looked at together for what all of them have in common."""


class Columns(Shaped):
    """The columns of one family as a matrix of their own, which arranges its own rows.

    ``X`` (M, d) has all columns, in the user's order and units, ``rows`` the same in block order;
    ``change`` makes something else of values: their logarithms, say.
    """

    def __init__(
        self, X: Matrix, rows: Rows, features: Features, blocks: Blocks, change: Change | None
    ) -> None:
        self._X, self._rows, self._columns, self._change = X, rows, features.columns, change
        self._places = blocks.position[features.columns[features.blocks.order]]
        self.shape = (len(X), features.n_features)
        self.dtype = rows.dtype

    def __getitem__(self, rows: slice) -> Floats:
        return self._own(self._X[rows])

    def _own(self, part: Floats) -> Floats:
        values = part[:, self._columns]
        return values if self._change is None else self._change(values)

    def runs(self) -> Iterator[tuple[int, Floats]]:
        """Yield runs of rows with the number of the first of each."""
        for start, part in row_blocks(self._X):
            yield start, self._own(part)

    def arranged(self, blocks: Blocks, scaling: Scaling, dtype: DTypeLike) -> PartRows:
        """Return the rows in block order, in the units and precision of fitting."""
        precision: np.dtype[np.floating] = np.empty(0, dtype).dtype
        units = None if scaling.is_none else scaling.take_features(blocks.order)
        return PartRows(self._rows, self._places, units, precision, self._change)


@dataclass
class PartRows:
    """Rows of one family's columns (`vpem.terms.rows.Rows`)."""

    whole: Rows  # all, in block order and the user's units
    places: Indices  # (n,) of the columns
    units: Scaling | None  # of fitting, for these columns
    dtype: np.dtype[np.floating]
    change: Change | None  # of values, before
    n_samples: int = field(init=False)

    def __post_init__(self) -> None:
        self.n_samples = self.whole.n_samples

    def runs(self) -> Iterator[slice]:
        """Runs of rows that are best read whole, in order."""
        return self.whole.runs()

    def cut(self, step: int) -> None:
        """Let runs have so many rows, as those of other processes have."""
        self.whole.cut(step)

    def read(self, rows: slice) -> Floats:
        """A run of rows, shape (m, n), C-contiguous."""
        return self._fitted(self.whole.read(rows))

    def take(self, indices: Indices) -> Floats:
        """Some rows, shape (len(indices), n)."""
        return self._fitted(self.whole.take(indices))

    def _fitted(self, rows: Floats) -> Floats:
        values = rows[:, self.places]
        if self.change is not None:
            values = self.change(values)
        if self.units is not None:
            values = self.units.apply(values)
        return np.ascontiguousarray(values, dtype=self.dtype)

    def select_rows(self, indices: Indices) -> PartRows:
        return replace(self, whole=self.whole.select_rows(indices))

    def slice_rows(self, rows: slice, following: slice | None = None) -> PartRows:
        """A run of rows as rows of their own, counted from 0."""
        return replace(self, whole=self.whole.slice_rows(rows, following))


@dataclass(frozen=True)
class Part:
    """Parameters of the features of one family, over all hubs.

    Tables (K, C) are in block order; `IndependentLaw.hubs_of_cells` says whose the cells are. A
    family that has locations and scatter keeps them in ``core``, over ``features.blocks``; its
    columns are those of ``features.columns``, from 0, and its mixing weights those of the whole
    mixture.
    """

    family: str
    features: Features
    tables: Tables = field(default_factory=dict)
    core: Mixture | None = None

    def arrays(self) -> State:
        """Parameters as arrays: tables, and what the core has but mixing weights."""
        core = {} if self.core is None else self.core.arrays()
        return self.tables | {name: core[name] for name in core if name != "weights"}

    def schema(self, domains: dict[str, str]) -> Schema:
        """Say what `arrays` must be, of tables of these domains."""
        core = {} if self.core is None else self.core.schema()
        assert isinstance(core, dict)
        schema: dict[str, Schema] = {
            name: Array("f8", table.shape, *RANGES[domains[name]])
            for name, table in self.tables.items()
        }
        return schema | {name: one for name, one in core.items() if name != "weights"}

    def having(self, arrays: State) -> Part:
        """Return the same part with other parameters."""
        tables = {name: arrays[name] for name in self.tables}
        core = self.core
        if core is not None:
            of_core = {name: one for name, one in arrays.items() if name not in tables}
            core = core.having({"weights": core.weights, **of_core})
        return replace(self, tables=tables, core=core)

    def weighing(self, weights: Doubles) -> Part:
        """Return the same part, its core with these mixing weights (R, K)."""
        core = None if self.core is None else replace(self.core, weights=weights)
        return replace(self, core=core)

    def permuted(self, order: Indices) -> Part:
        """Return the same part with its components in another order."""
        tables = {name: table[order] for name, table in self.tables.items()}
        core = None if self.core is None else self.core.permuted(order)
        return replace(self, tables=tables, core=core)


@dataclass
class Made:
    """What the E-step needs of a part's parameters."""

    ready: Any  # what the family makes of them
    failed: NDArray[np.uint8] | None = None  # (n_copies, B), 1: unusable


@dataclass(frozen=True)
class How:
    """How a part's terms are to be taken."""

    covariance_type: str  # of families that have scatter
    row_weights: Doubles | None  # (M,); None: 1
    reg_covar: float | str  # see `vpem.terms.units.floors_of`
    n_threads: int
    dtype: np.dtype[np.floating]  # of the terms
    skip_negligible: bool  # see `vpem.terms.features.FeatureTerms`
    scale: str  # of families with locations: "none", "standard"


@dataclass
class Cells(Sums):
    """Statistics in tables (K, C) by name, summed over rows."""

    tables: Tables


class IndependentTerms:
    """Rows of a family whose features are independent within a component."""

    def __init__(
        self, law: IndependentLaw, columns: Columns, features: Features, settings: How
    ) -> None:
        self.law, self.family, self.features = law, law.name, features
        self.scaling = Scaling.none(features.n_features)
        """Units of fitting, in the order of ``features.columns``: those of the data."""
        self.reg_covar = np.zeros(features.n_features)
        """Added to variances (n,), in block order and units of fitting."""
        self.rows: Rows = columns.arranged(features.blocks, self.scaling, settings.dtype)
        self.n_threads = settings.n_threads
        self._ready: dict[str, Floats] | None = None
        self._whole = (self.rows, settings.row_weights)

    @cached_property
    def pooled(self) -> Tables:
        """Parameters (1, C) of all rows in one component."""
        rows, weights = self._whole
        statistics = self.law.family.empty(self.features, 1)
        step = max(64, CHUNK_VALUES // max(self.features.n_features, 1))
        for run in rows.runs():
            for start in range(run.start, run.stop, step):
                some = slice(start, min(start + step, run.stop))
                row_weights = np.ones(some.stop - some.start) if weights is None else weights[some]
                shares = np.ascontiguousarray(row_weights[None, :, None], dtype=rows.dtype)
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

    def add_terms(self, prepared: Made, rows: slice, out: Floats) -> None:
        """Add ``-2 log f`` of each hub to ``out`` (B, m, K), constants included."""
        data = self.rows.read(rows)
        self.law.family.add_terms(prepared.ready, self.features, data, out, self.n_threads)

    def empty(self, centres: Floats, n_roots: int) -> Cells:
        """Statistics of no rows, which are about no centres."""
        return Cells(self.law.family.empty(self.features, len(centres)))

    def summarize(self, statistics: Cells, responsibilities: Floats, rows: slice) -> None:
        """Add these rows to the statistics; responsibilities are (R, m, K)."""
        self.law.family.add_moments(
            statistics.tables, self._ready, self.features, self.rows.read(rows), responsibilities,
            self.n_threads,
        )  # fmt: skip

    def update(self, statistics: Cells, weights: Doubles, row: float | None = None) -> Part:
        """M-step: the part with these mixing weights (R, K), of few rows that count this much."""
        tables = self.law.family.update(statistics.tables, self.features, self.pooled)
        # Where statistics of a batch were taken away sums may be below 0 by rounding.
        for name, table in tables.items():
            np.clip(table, *RANGES[self.law.domains[name]], out=table)
        return Part(self.law.name, self.features, tables)

    def recentred(self, statistics: Cells, centres: Floats) -> Cells:
        """Return the same statistics in tables of their own: they are about no centres."""
        return Cells({name: table.copy() for name, table in statistics.tables.items()})

    def with_hubs_of(self, statistics: Cells, other: Cells, hubs: Mask) -> Cells:
        """Return the statistics with those hubs' (B,) part taken from other ones."""
        features, n = self.features, max(self.features.n_features, 1)
        tables = {}
        for name, table in statistics.tables.items():
            by_level = table.shape[1] == features.level_offsets[-1] != n
            counts = features.n_levels if by_level else np.full(n, table.shape[1] // n)
            cells = features.blocks.block_of[features.cells(counts)]
            tables[name] = np.where(hubs[cells], other.tables[name], table)
        return Cells(tables)

    def blank(self, n_components: int) -> Part:
        """Return a part of so many components with everything but parameters."""
        cells = self.law.features_of_cells(self.features)
        tables = {name: np.zeros((n_components, len(features))) for name, features in cells.items()}
        return Part(self.family, self.features, tables)

    @property
    def usual(self) -> Table:
        """Values (n,) that are usual in all rows together."""
        return np.asarray(self.law.family.means(self.pooled, self.features)).reshape(-1)

    def start(self, centres: Table, weights: Doubles) -> Part:
        """Parameters to start from at centres (K, n), in block order and units of fitting."""
        tables = self.law.family.start_near(centres, self.features, self.pooled)
        return Part(self.law.name, self.features, tables)

    def reseeded(self, part: Part, component: int, centre: Table) -> Part:
        """Reinitialise one component at a centre (n,)."""
        fresh = self.law.family.start_near(centre[None], self.features, self.pooled)
        tables = {name: table.copy() for name, table in part.tables.items()}
        for name, table in tables.items():
            table[component] = fresh[name][0]
        return replace(part, tables=tables)

    def embedded(self, rows: slice) -> Floats:
        """Rows (m, n) in block order for distances: numbers, or codes; NaN missing."""
        return self.rows.read(rows)

    def take_rows(self, rows: slice | Indices, also: Any) -> Self:
        """Return the terms of some rows, counted from 0: of a run, or as listed.

        With a run go those that will follow it (None: none), with a list weights of its rows.
        """
        assert self.pooled is not None  # of all rows, for which they are found before
        chosen = copy(self)
        if isinstance(rows, slice):
            chosen.rows = self.rows.slice_rows(rows, also)
        else:
            chosen.rows = self.rows.select_rows(rows)
        return chosen


class IndependentLaw:
    """A `Family` among the families of a mixed fit.

    Of ``domains`` tables may hold "positive" numbers, a "probability", a "simplex" or "any".
    """

    has_core: ClassVar[bool] = False
    """Whether it has locations and scatter."""
    change: Change | None = None
    """What becomes of values before they are fitted: their logarithms, say."""
    terms: ClassVar[type[Any]] = IndependentTerms
    """Of data."""

    def __init__(self, family: Family) -> None:
        self.family, self.name, self.domains = family, family.name, family.domains

    def hubs_of_cells(self, features: Features) -> dict[str, Indices]:
        """Hub (C,) that has each cell of each table."""
        hubs = features.blocks.block_of
        return {name: hubs[owners] for name, owners in self.features_of_cells(features).items()}

    def cells_of_hubs(self, features: Features) -> dict[str, Indices]:
        """How many cells of each table each hub (B,) has, side by side: in a file far too many."""
        offsets = features.blocks.offsets
        counts = {}
        for name, count in self.family.a_feature(features).items():
            ends = np.concatenate([[0], np.cumsum(count)])
            counts[name] = np.diff(ends[offsets]).astype(np.intp)
        return counts

    def features_of_cells(self, features: Features) -> dict[str, Indices]:
        """Feature (C,), in block order, of each cell of each table; -1 of a hub's own."""
        counts = self.family.a_feature(features)
        return {name: features.cells(count) for name, count in counts.items()}

    def tables_over(self, part: Part, features: Features, origin: Indices) -> Tables:
        """Tables of some of a part's features over other hubs.

        ``origin`` (n,) says which feature of the part each is, both in block order.
        """
        owners, tables = self.features_of_cells(part.features), {}
        for name, table in part.tables.items():
            cells = [np.flatnonzero(owners[name] == feature) for feature in origin]
            chosen = np.concatenate([np.empty(0, dtype=np.intp), *cells])
            tables[name] = np.ascontiguousarray(table[:, chosen])
        return tables

    def n_parameters(self, part: Part, n_components: int) -> int:
        """Free parameters of all components."""
        return n_components * self.family.n_free(part.features)

    def wrong(self, values: Floats) -> Mask:
        """Which values (m,), none of them missing, a feature of this family cannot have."""
        return self.family.wrong(values)

    def terms_of(self, part: Part, values: Doubles, there: Mask) -> Floats:
        """``-2 log f`` (B, m, K) of each hub, constants included, of what is there of rows.

        ``values`` (m, n) are in the order of ``part.features.columns`` and in the user's units.
        """
        features = part.features
        data = features.blocks.arrange(np.where(there, values, np.nan), np.float64)
        k = len(next(iter(part.tables.values())))
        out = np.zeros((features.blocks.n_blocks, len(data), k))
        ready = self.family.ready(part.tables, features, np.float64)
        self.family.add_terms(ready, features, data, out, thread_count(None))
        return out

    def locations(self, part: Part) -> Table:
        """Where components lie, (K, n) in block order and units of fitting."""
        return self.family.means(part.tables, part.features)

    def means(self, part: Part) -> Table:
        """Expected values (K, n) in the user's order and units; of a category its mode."""
        means = self.family.means(part.tables, part.features)
        ordered: Table = means[:, part.features.blocks.position]
        return ordered

    def variances(self, part: Part) -> Table:
        """Variances within components (K, n) as `means`; see `Family.variances`."""
        variances = self.family.variances(part.tables, part.features)
        ordered: Table = variances[:, part.features.blocks.position]
        return ordered

    def draw(self, part: Part, labels: Indices, rng: np.random.Generator) -> Table:
        """Draw rows of these components, (m, n) as `means`."""
        drawn = self.family.draw(part.tables, part.features, labels, rng)
        ordered: Table = drawn[:, part.features.blocks.position]
        return ordered
