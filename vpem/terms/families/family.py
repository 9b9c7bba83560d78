"""What a family of densities answers to: what it says of its part of a mixture, and its rows.

A mixture of several families is a list of parts, one a family, each over all hubs. A `Family` says
what the parameters of a part mean; its terms hold rows and find them. Columns are read through the
rows that all families share.

Parameters and statistics of families whose features are independent within a component are tables
of K rows: every feature has some cells of each, side by side in block order. What is done with
tables whatever they mean (adding, sending, keeping, joining) is therefore done once, for all
families. Those of `vpem.terms.families.located` have locations and scatter besides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem._core.families import cell_terms, product_moments, product_terms
from vpem._core.rising import rising_terms
from vpem._core.threads import thread_count
from vpem.checks import Doubles, Floats, Indices, Mask, Matrix, row_blocks
from vpem.network.partition import Blocks
from vpem.network.schema import Array, Schema, State
from vpem.terms.density import Runs
from vpem.terms.mixture import Mixture
from vpem.terms.rows import Rows, Shaped
from vpem.terms.statistics import Sums
from vpem.terms.units import Scaling

if TYPE_CHECKING:
    from vpem.terms.families.mixed import MixedTerms

Table = NDArray[np.float64]
Tables = dict[str, Table]
"""Parameters or statistics by name, each of shape (K, C) with C cells in block order."""

Change = Callable[[Floats], Floats]
"""What becomes of values before they are scaled."""

RANGES: dict[str, tuple[float, float]] = {
    "positive": (0.0, np.inf), "probability": (0.0, 1.0), "simplex": (0.0, 1.0),
    "any": (-np.inf, np.inf),
}  # fmt: skip
"""What numbers of a domain are between. Some that are positive may come to be 0."""

ABOVE_0 = 5e-324
"""The least positive number."""

CHUNK_VALUES = 1 << 20
"""Values of rows that are looked at together for what all of them have in common."""


@dataclass(frozen=True)
class Features:
    """The features of one family, over all hubs."""

    columns: Indices  # (n,) among all features of the user, ascending
    blocks: Blocks  # each hub's of these n; width 0: none
    n_levels: Indices  # (n,) in block order; 0: no category

    @property
    def n_features(self) -> int:
        return self.blocks.n_features

    @cached_property
    def ordered(self) -> Indices:
        """Among all features of the user (n,), in block order."""
        return self.columns[self.blocks.order]

    @cached_property
    def level_offsets(self) -> Indices:
        """First cell of each feature where each has a cell a level, and the end; (n + 1,)."""
        return np.concatenate([[0], np.cumsum(self.n_levels)]).astype(np.intp)

    def cells(self, each: str) -> Indices:
        """Cells that each hub (B,) has of a table with one a "feature", "level", or "hub".

        A hub's lie side by side; hubs without features have none.
        """
        if each == "level":
            return np.diff(self.level_offsets[self.blocks.offsets])
        return np.minimum(self.blocks.widths, 1) if each == "hub" else self.blocks.widths


@dataclass(frozen=True)
class Part:
    """Parameters of the features of one family, over all hubs.

    Tables (K, C) are in block order; `Features.cells` says whose the cells are. A family that has
    locations and scatter keeps them in ``core``, over ``features.blocks``; its columns are those of
    ``features.columns``, from 0, and its mixing weights those of the whole mixture.
    """

    law: Family
    features: Features
    tables: Tables = field(default_factory=dict)
    core: Any = None  # a `Mixture`

    @property
    def family(self) -> str:
        return self.law.name

    def arrays(self) -> State:
        """Parameters as arrays: tables, and what the core has but mixing weights."""
        core = {} if self.core is None else self.core.arrays()
        return self.tables | {name: core[name] for name in core if name != "weights"}

    def sent(self) -> State:
        """Parameters as arrays, and units of the core; see `Mixture.sent`."""
        core = {} if self.core is None else self.core.sent()
        return self.tables | {name: core[name] for name in core if name != "weights"}

    def schema(self) -> dict[str, Schema]:
        core = {} if self.core is None else self.core.schema()
        return {
            **{
                name: Array("f8", table.shape, *RANGES[self.law.domains[name]])
                for name, table in self.tables.items()
            },
            **{name: one for name, one in core.items() if name != "weights"},
        }

    def having(self, arrays: State) -> Part:
        tables = {name: arrays[name] for name in self.tables}
        core = self.core
        if core is not None:
            of_core = {name: one for name, one in arrays.items() if name not in tables}
            core = core.having({"weights": core.weights, **of_core})
        return replace(self, tables=tables, core=core)

    @cached_property
    def cells(self) -> Runs:
        """Where tables have the cells of each hub."""
        return Runs(1, self.features.cells(self.law.each))


def where_seen(totals: Table, seen: Table, name: str, pooled: Tables | None) -> Table:
    """Return totals by responsibilities, (K, C); where there are none, the pooled ``name``."""
    some = seen > 0
    averages = np.divide(totals, seen, out=np.zeros_like(totals), where=some)
    return averages if pooled is None else np.where(some, averages, pooled[name])


def row_shares(n_components: int) -> Table:
    """Return what part of a start is the row's own, (K, 1): about half, of each another.

    Of discrete data rows may be equal, and components that start alike would stay alike.
    """
    return 0.45 + 0.1 * (np.arange(n_components)[:, None] + 0.5) / n_components


class Family(ABC):
    """What is said of a part of a mixture; values in the user's order and units where not said."""

    name: ClassVar[str]
    domains: ClassVar[dict[str, str]] = {}
    """Tables, and what their numbers may be (`RANGES`); the cells of a feature in a "simplex" add
    up to 1."""
    each: ClassVar[str] = "feature"
    """What has a cell of its own in each table; see `Features.cells`."""
    has_core: ClassVar[bool] = False
    """Whether it has locations and scatter."""
    change: Change | None = None
    """What becomes of values before they are fitted: their logarithms, say."""
    between: ClassVar[tuple[float, float]] = (-np.inf, np.inf)
    """The least and the largest value that a feature can have; none is infinite."""
    whole: ClassVar[bool] = False
    """Whether values are whole numbers."""
    has_levels: ClassVar[bool] = False
    """Whether these are levels, between which there is no distance."""
    values: ClassVar[str] = "finite numbers"
    """What values are, in words."""
    near_normal: ClassVar[Callable[..., Any]] = np.asarray
    """By which values lie about as far apart as those of a normal family."""
    terms: ClassVar[type[Any]]
    """Of data."""

    def blank(
        self,
        features: Features,
        covariance_type: str,
        n_components: int,
        units: Scaling | None = None,
    ) -> Part:
        """Return a part with everything but parameters, for its shapes."""
        shape = (n_components, int(features.cells(self.each).sum()))
        core = None
        if self.has_core:
            core = Mixture.blank(features.blocks, covariance_type, n_components, units)
        tables = {name: np.broadcast_to(0.0, shape) for name in self.domains}
        return Part(self, features, tables, core)

    def tables_over(self, part: Part, features: Features, origin: Indices) -> Tables:
        """Tables of some of a part's features over other hubs.

        ``origin`` (n,) says which feature of the part each is, both in block order.
        """
        ends = np.arange(part.features.n_features + 1)
        if self.each == "level":
            ends = part.features.level_offsets
        cells = [np.arange(ends[j], ends[j + 1], dtype=np.intp) for j in origin]
        chosen = np.concatenate([np.empty(0, dtype=np.intp), *cells])
        return {name: np.ascontiguousarray(table[:, chosen]) for name, table in part.tables.items()}

    def n_parameters(self, part: Part) -> int:
        """Free parameters of all components, but mixing weights."""
        n_free = 0
        for name, domain in self.domains.items():
            k, n_cells = part.tables[name].shape
            n_free += k * (n_cells - (part.features.n_features if domain == "simplex" else 0))
        core = part.core
        return n_free if core is None else n_free + core.n_parameters - (core.n_components - 1)

    def wrong(self, values: Floats) -> Mask:
        """Which values (m,) of a feature, none of them missing, this family cannot have."""
        low, high = self.between
        fits = np.isfinite(values) & (values >= low) & (values <= high)
        if self.whole:
            fits &= values == np.floor(values)
        return ~fits

    @abstractmethod
    def terms_of(self, part: Part, values: Doubles, there: Mask) -> Floats:
        """``-2 log f`` (B, m, K) of each hub, constants included, of what is there of rows.

        ``values`` (m, n) are in the order of ``part.features.columns``.
        """

    @abstractmethod
    def means(self, part: Part) -> Table:
        """Expected value of each feature in each component (K, n), in block order.

        Of a category its mode; without a core they are where components lie.
        """

    @abstractmethod
    def variances(self, part: Part) -> Table:
        """Variance of each feature in each component (K, n), in block order.

        Of a category that of all levels, ``1 - sum_l p_l^2``: the variances of zeros and ones that
        say which level it is.
        """

    @abstractmethod
    def draw(self, part: Part, labels: Indices, rng: np.random.Generator) -> Table:
        """Draw rows of these components (m,), shape (m, n), in block order."""


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
        for start, part in row_blocks(self._X):
            yield start, self._own(part)

    def arranged(self, blocks: Blocks, scaling: Scaling, dtype: DTypeLike) -> PartRows:
        precision: np.dtype[np.floating] = np.empty(0, dtype).dtype
        units = None if scaling.is_none else scaling.take_features(blocks.order)
        return PartRows(self._rows, self._places, units, precision, self._change)


@dataclass
class PartRows:
    """Rows of one family's columns (`vpem.terms.rows.Rows`)."""

    whole: Rows  # all, in block order and the user's units
    places: Indices | slice  # (n,) of the columns
    units: Scaling | None  # of fitting, for these columns
    dtype: np.dtype[np.floating]
    change: Change | None  # of values, before
    n_samples: int = field(init=False)
    runs: Callable[[], Iterator[slice]] = field(init=False)  # those of all
    cut: Callable[[int], None] = field(init=False)

    def __post_init__(self) -> None:
        self.n_samples = self.whole.n_samples
        self.runs, self.cut = self.whole.runs, self.whole.cut

    def read(self, rows: slice) -> Floats:
        return self._fitted(self.whole.read(rows))

    def take(self, indices: Indices) -> Floats:
        return self._fitted(self.whole.take(indices))

    def _fitted(self, rows: Floats) -> Floats:
        values = rows[:, self.places]
        if self.change is not None:
            values = self.change(values)
        if self.units is not None:
            values = self.units.apply(values)
        return np.ascontiguousarray(values, dtype=self.dtype)

    def select_rows(self, indices: Indices) -> Rows:
        return replace(self, whole=self.whole.select_rows(indices))

    def slice_rows(self, rows: slice, following: slice | None = None) -> Rows:
        return replace(self, whole=self.whole.slice_rows(rows, following))


@dataclass
class Cells(Sums):
    """Statistics in tables (K, C) by name, summed over rows."""

    tables: Tables


class IndependentTerms:
    """Rows of a family whose features are independent within a component."""

    latest: dict[str, Floats] | None = None
    """What was made for the E-step, for expected values of the M-step; None: a start follows."""

    def __init__(
        self, law: Independent, columns: Columns, features: Features, whole: MixedTerms
    ) -> None:
        self.law, self.features = law, features
        self.scaling = Scaling.none(features.n_features)
        """Units of fitting, in the order of ``features.columns``: those of the data."""
        self.reg_covar = np.zeros(features.n_features)
        """Added to variances (n,), in block order and units of fitting."""
        self.rows: Rows = columns.arranged(features.blocks, self.scaling, whole.dtype)
        self.n_threads = whole.n_threads
        self._whole = (self.rows, whole.row_weights)

    @cached_property
    def pooled(self) -> Tables:
        """Parameters (1, C) of all rows in one component."""
        rows, weights = self._whole
        statistics = self.law.empty(self.features, 1)
        step = max(64, CHUNK_VALUES // max(self.features.n_features, 1))
        for run in rows.runs():
            for start in range(run.start, run.stop, step):
                some = slice(start, min(start + step, run.stop))
                row_weights = np.ones(some.stop - some.start) if weights is None else weights[some]
                shares = np.ascontiguousarray(row_weights[None, :, None], dtype=rows.dtype)
                self.law.add_moments(
                    statistics, None, self.features, rows.read(some), shares, self.n_threads
                )
        return self.law.update(statistics, self.features, None)

    @property
    def sums(self) -> Self:
        """What keeps and summarizes statistics of the rows."""
        return self

    def forget(self) -> None:
        """Expect nothing by earlier parameters: a start follows."""
        self.latest = None

    def prepare(self, part: Part) -> tuple[dict[str, Floats], None]:
        """Make what the E-step needs, and remember it for expected values of the M-step.

        Of families that have scatter a table (n_copies, B) comes with it, 1 where it is unusable.
        """
        self.latest = self.law.ready(part.tables, self.features)
        return self.latest, None

    def add_terms(self, ready: dict[str, Floats], rows: slice, out: Floats) -> None:
        """Add ``-2 log f`` of each hub to ``out`` (B, m, K), constants included."""
        self.law.add_terms(ready, self.features, self.rows.read(rows), out, self.n_threads)

    def empty(self, centres: Floats, n_roots: int) -> Cells:
        """Statistics of no rows, which are about no centres."""
        return Cells(self.law.empty(self.features, len(centres)))

    def summarize(self, statistics: Cells, responsibilities: Floats, rows: slice) -> None:
        """Add these rows to the statistics; responsibilities are (R, m, K)."""
        self.law.add_moments(
            statistics.tables, self.latest, self.features, self.rows.read(rows), responsibilities,
            self.n_threads,
        )  # fmt: skip

    def update(self, statistics: Cells, weights: Doubles, row: float | None = None) -> Part:
        """M-step: the part with these mixing weights (R, K), of few rows that count this much."""
        tables = self.law.update(statistics.tables, self.features, self.pooled)
        # Where statistics of a batch were taken away sums may be below 0 by rounding.
        for name, table in tables.items():
            np.clip(table, *RANGES[self.law.domains[name]], out=table)
        return Part(self.law, self.features, tables)

    def recentred(self, statistics: Cells, centres: Floats) -> Cells:
        """Return the same statistics in tables of their own: they are about no centres."""
        return Cells({name: table.copy() for name, table in statistics.tables.items()})

    def with_hubs_of(self, statistics: Cells, other: Cells, hubs: Mask) -> Cells:
        """Return the statistics with those hubs' (B,) part taken from other ones."""
        features, tables = self.features, {}
        for name, table in statistics.tables.items():
            n_cells = self.law.sums[name]
            counts = n_cells * features.cells("feature") if n_cells else features.cells("level")
            tables[name] = np.where(np.repeat(hubs, counts), other.tables[name], table)
        return Cells(tables)

    def numbers(self, rows: slice) -> Floats:
        """Values (m, n) of some rows, in block order and units of fitting; NaN: missing."""
        return self.rows.read(rows)

    def at_rows(self, indices: Indices) -> Doubles:
        """Some rows as centres; what is missing is as in all rows together."""
        rows = self.rows.take(indices).astype(np.float64)
        return np.where(np.isnan(rows), self.usual, rows)

    def middle(self, part: Part, weights: Doubles) -> Doubles:
        """A centre (n,) that is no row, of a part with mixing weights (K,)."""
        return self.usual

    @property
    def usual(self) -> Table:
        """Values (n,) that are usual in all rows together."""
        return self.law.means(Part(self.law, self.features, self.pooled)).reshape(-1)

    def start(self, centres: Table, weights: Doubles) -> Part:
        """Parameters to start from at centres (K, n), in block order and units of fitting."""
        tables = self.law.start_near(centres, self.features, self.pooled)
        return Part(self.law, self.features, tables)

    def reseeded(self, part: Part, component: int, centre: Table) -> Part:
        """Reinitialise one component at a centre (n,)."""
        fresh = self.law.start_near(centre[None], self.features, self.pooled)
        tables = {name: table.copy() for name, table in part.tables.items()}
        for name, table in tables.items():
            table[component] = fresh[name][0]
        return replace(part, tables=tables)

    def take_rows(
        self, rows: slice | Indices, following: slice | None = None, weights: Doubles | None = None
    ) -> Self:
        """Return the terms of some rows, counted from 0: of a run, or as listed.

        With a run go those that will follow it (None: none), with a list weights of its rows.
        """
        assert self.pooled is not None  # of all rows, for which they are found before
        chosen = copy(self)
        if isinstance(rows, slice):
            chosen.rows = self.rows.slice_rows(rows, following)
        else:
            chosen.rows = self.rows.select_rows(rows)
        return chosen


class Independent(Family):
    """Densities of features that are independent of each other within a component.

    Data come a run of rows at a time, (m, n) in block order, in the user's units; NaN where a value
    is missing, which adds nothing to a term and nothing to statistics. Responsibilities have shape
    (R, m, K) with the weights of rows in them; R is 1 where all hubs share them, else B, and each
    feature takes those of its own hub. The first table has the expected values, unless a family
    says otherwise.
    """

    terms = IndependentTerms
    sums: ClassVar[dict[str, int]] = {"seen": 1, "total": 1}
    """Statistics, which are sums over rows, and how many cells a feature has of each; 0: one a
    level. "seen" are responsibilities of rows that have the feature, "total" those times values."""
    kind: ClassVar[int]
    """Which functions of a value have factors, as `tests.twins.models.product_terms` numbers."""
    looked_up: ClassVar[int] = 0
    """Values whose terms are looked up, of each feature where these are not levels of its own."""

    def __init_subclass__(cls) -> None:
        if cls.change is not None:  # whose density only families with a core take into account
            raise TypeError(f"{cls.__name__} has a change, but independent features may have none")

    @abstractmethod
    def ready(self, parameters: Tables, features: Features) -> dict[str, Floats]:
        """What kernels take of the parameters: logarithms, constants; finite everywhere.

        ``factors`` of functions, a ``table`` of terms to look up, or ``line`` and ``sizes`` for
        values that are not in it.
        """

    def firsts(self, features: Features) -> Indices:
        """First of the values of each feature that are looked up, and the end; (n + 1,)."""
        if self.each == "level":
            return features.level_offsets
        return self.looked_up * np.arange(features.n_features + 1, dtype=np.intp)

    def add_terms(
        self,
        ready: dict[str, Floats],
        features: Features,
        data: Floats,
        out: Floats,
        n_threads: int,
    ) -> None:
        """Add ``-2 log f`` of each hub's features to ``out`` (B, m, K), constants included."""
        offsets = features.blocks.offsets
        if "factors" in ready:
            product_terms(data, offsets, self.kind, ready["factors"], out, n_threads)
        if "table" in ready:
            cell_terms(data, offsets, self.firsts(features), ready["table"], out, n_threads)
        if "line" in ready:
            line, sizes = ready["line"], ready["sizes"]
            rising_terms(data, self.looked_up, offsets, line, sizes, out, n_threads)

    def empty(self, features: Features, n_components: int) -> Tables:
        """Statistics of no rows: `sums`."""
        n, n_levels = features.n_features, int(features.level_offsets[-1])
        return {
            name: np.zeros((n_components, n_cells * n if n_cells else n_levels))
            for name, n_cells in self.sums.items()
        }

    def add_moments(
        self,
        statistics: Tables,
        ready: dict[str, Floats] | None,
        features: Features,
        data: Floats,
        responsibilities: Floats,
        n_threads: int,
    ) -> None:
        """Add some rows to the statistics: sums of those functions of values that have factors.

        ``ready`` is made of the parameters that responsibilities were found with, for statistics
        that are expected values under them; None where there were none yet (a start).
        """
        n_components = responsibilities.shape[2]
        moments = np.zeros((len(self.sums), features.n_features, n_components))
        offsets = features.blocks.offsets
        product_moments(data, responsibilities, offsets, self.kind, moments, n_threads)
        for name, moment in zip(self.sums, moments, strict=True):
            statistics[name] += moment.T

    @abstractmethod
    def update(self, statistics: Tables, features: Features, pooled: Tables | None) -> Tables:
        """M-step: parameters from the statistics.

        ``pooled`` (1, C) are those of all rows in one component, which a component has of a feature
        that none of its rows has; None: these are being found, of features that some row has.
        """

    def start_near(self, centres: Table, features: Features, pooled: Tables) -> Tables:
        """Parameters to start from near rows of the data (K, n): between them and the pooled.

        Of other parameters than expected values those of all rows.
        """
        first, *others = self.domains
        repeated = {name: np.repeat(pooled[name], len(centres), axis=0) for name in others}
        share, usual = row_shares(len(centres)), pooled[first]
        between = share * centres + (1 - share) * usual
        return {first: np.where(np.isnan(centres), usual, between), **repeated}

    def terms_of(self, part: Part, values: Doubles, there: Mask) -> Floats:
        features = part.features
        data = features.blocks.arrange(np.where(there, values, np.nan), np.float64)
        k = len(next(iter(part.tables.values())))
        out = np.zeros((features.blocks.n_blocks, len(data), k))
        self.add_terms(self.ready(part.tables, features), features, data, out, thread_count(None))
        return out

    def means(self, part: Part) -> Table:
        return part.tables[next(iter(self.domains))]
