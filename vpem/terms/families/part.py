"""What mixed fits ask of a family: its part of a mixture, and its part of the terms.

A mixture of several families is a list of parts, one a family, each over all hubs. A family is a
`Law`: what it says of parameters that are found; its `PartTerms` hold rows and find them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.network.schema import Array, Schema, State
from vpem.terms.families.columns import Change, Columns
from vpem.terms.families.family import Features, Table, Tables
from vpem.terms.mixture import Mixture
from vpem.terms.scaling import Scaling

RANGES: dict[str, tuple[float, float]] = {
    "positive": (0.0, np.inf), "probability": (0.0, 1.0), "simplex": (0.0, 1.0),
    "any": (-np.inf, np.inf),
}  # fmt: skip
"""What numbers of a domain are between. Some that are positive may come to be 0."""


@dataclass(frozen=True)
class Part:
    """Parameters of the features of one family, over all hubs.

    Tables (K, C) are in block order; `Law.hubs_of_cells` says whose the cells are. A family that
    has locations and scatter keeps them in ``core``, over ``features.blocks``; its columns are
    those of ``features.columns``, from 0, and its mixing weights those of the whole mixture.
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
        found: dict[str, Schema] = {
            name: Array("f8", table.shape, *RANGES[domains[name]])
            for name, table in self.tables.items()
        }
        return found | {name: own for name, own in core.items() if name != "weights"}

    def having(self, arrays: State) -> Part:
        """Return the same part with other parameters."""
        tables = {name: arrays[name] for name in self.tables}
        core = self.core
        if core is not None:
            own = {name: one for name, one in arrays.items() if name not in tables}
            core = core.having({"weights": core.weights, **own})
        return replace(self, tables=tables, core=core)

    def weighing(self, weights: NDArray[np.float64]) -> Part:
        """Return the same part, its core with these mixing weights (R, K)."""
        core = None if self.core is None else replace(self.core, weights=weights)
        return replace(self, core=core)

    def permuted(self, order: NDArray[np.intp]) -> Part:
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
    row_weights: NDArray[np.float64] | None  # (M,); None: 1
    reg_covar: float | str  # see `vpem.terms.scaling.floors_of`
    n_threads: int
    dtype: np.dtype[np.floating]  # of the terms
    skip_negligible: bool  # see `vpem.terms.features.FeatureTerms`
    scale: str  # of families with locations: "none", "standard"


class Law(ABC):
    """A family, as mixed fits and mixed mixtures ask for it."""

    name: ClassVar[str]
    has_core: ClassVar[bool] = False
    """Whether it has locations and scatter."""
    change: Change | None = None
    """What becomes of values before they are fitted: their logarithms, say."""

    @property
    @abstractmethod
    def domains(self) -> dict[str, str]:
        """Tables, and what each may hold: "positive", "probability", "simplex", "any"."""

    @abstractmethod
    def hubs_of_cells(self, features: Features) -> dict[str, NDArray[np.intp]]:
        """Hub (C,) that has each cell of each table."""

    def cells_of_hubs(self, features: Features) -> dict[str, NDArray[np.intp]]:
        """How many cells of each table each hub (B,) has; a hub's lie side by side."""
        hubs = self.hubs_of_cells(features)
        n_hubs = features.blocks.n_blocks
        return {name: np.bincount(own, minlength=n_hubs) for name, own in hubs.items()}

    @abstractmethod
    def features_of_cells(self, features: Features) -> dict[str, NDArray[np.intp]]:
        """Feature (C,), in block order, of each cell of each table; -1 of a hub's own."""

    def tables_over(self, part: Part, features: Features, origin: NDArray[np.intp]) -> Tables:
        """Tables of some of a part's features over other hubs.

        ``origin`` (n,) says which feature of the part each is, both in block order.
        """
        owners, tables = self.features_of_cells(part.features), {}
        for name, table in part.tables.items():
            cells = [np.flatnonzero(owners[name] == own) for own in origin]
            chosen = np.concatenate([np.empty(0, dtype=np.intp), *cells])
            tables[name] = np.ascontiguousarray(table[:, chosen])
        return tables

    @abstractmethod
    def n_parameters(self, part: Part, n_components: int) -> int:
        """Free parameters of all components."""

    @abstractmethod
    def wrong(self, values: Floats) -> NDArray[np.bool_]:
        """Which values (m,), none of them missing, a feature of this family cannot have."""

    @abstractmethod
    def terms_of(self, part: Part, values: NDArray[np.float64], there: NDArray[np.bool_]) -> Floats:
        """``-2 log f`` (B, m, K) of each hub, constants included, of what is there of rows.

        ``values`` (m, n) are in the order of ``part.features.columns`` and in the user's units.
        """

    @abstractmethod
    def locations(self, part: Part) -> Table:
        """Where components lie, (K, n) in block order and units of fitting."""

    @abstractmethod
    def means(self, part: Part) -> Table:
        """Expected values (K, n) in the order of ``features.columns``, in the user's units."""

    @abstractmethod
    def variances(self, part: Part) -> Table:
        """Variances within components (K, n), as `means`; see `Family.variances`."""

    @abstractmethod
    def draw(self, part: Part, labels: NDArray[np.intp], rng: np.random.Generator) -> Table:
        """Draw rows of these components, (m, n) as `means`."""

    @abstractmethod
    def terms(self, columns: Columns, features: Features, how: How) -> PartTerms:
        """Return the terms of data."""


class PartTerms(ABC):
    """Rows of the features of one family, and what is found of them."""

    family: str
    features: Features

    @property
    def scaling(self) -> Scaling:
        """Units of fitting, in the order of ``features.columns``: those of the data."""
        return Scaling.none(self.features.n_features)

    @property
    def reg_covar(self) -> NDArray[np.float64]:
        """Added to variances (n,), in block order and units of fitting."""
        return np.zeros(self.features.n_features)

    @abstractmethod
    def prepare(self, part: Part) -> Made:
        """Make what the E-step needs, and remember it for expected values of the M-step."""

    @abstractmethod
    def forget(self) -> None:
        """Remember no parameters: a start follows."""

    @abstractmethod
    def add_terms(self, made: Made, rows: slice, out: Floats) -> None:
        """Add ``-2 log f`` of each hub to ``out`` (B, m, K), constants included."""

    @abstractmethod
    def empty(self, centres: Floats, n_roots: int) -> Any:
        """Statistics of no rows about centres (K, n), in block order and units of fitting."""

    @abstractmethod
    def summarize(self, statistics: Any, responsibilities: Floats, rows: slice) -> None:
        """Add these rows to the statistics; responsibilities are (R, m, K)."""

    @abstractmethod
    def update(self, statistics: Any, weights: NDArray[np.float64]) -> Part:
        """M-step: the part with these mixing weights (R, K)."""

    def update_early(self, statistics: Any, row: float, weights: NDArray[np.float64]) -> Part:
        """M-step from few rows, each of which counts this much."""
        return self.update(statistics, weights)

    @abstractmethod
    def recentred(self, statistics: Any, centres: Floats) -> Any:
        """Return the same statistics about other centres (K, n), in arrays of their own."""

    @abstractmethod
    def with_hubs_of(self, statistics: Any, other: Any, hubs: NDArray[np.bool_]) -> Any:
        """Return the statistics with those hubs' (B,) part taken from other ones."""

    @abstractmethod
    def keep(self, part: Part, before: Part, hubs: NDArray[np.bool_]) -> Part:
        """Return the part with the parameters that these hubs (B,) had before."""

    @abstractmethod
    def blank(self, n_components: int) -> Part:
        """Return a part of so many components with everything but parameters."""

    @abstractmethod
    def at_rows(self, indices: NDArray[np.intp]) -> Table:
        """Rows of the data as centres (L, n); what is missing is as in all rows together."""

    @abstractmethod
    def start(self, centres: Table, weights: NDArray[np.float64]) -> Part:
        """Parameters to start from at centres (K, n)."""

    @abstractmethod
    def reseeded(self, part: Part, component: int, centre: Table) -> Part:
        """Place one component anew, at a centre (n,)."""

    @abstractmethod
    def middle(self, part: Part, weights: NDArray[np.float64]) -> Table:
        """A centre (n,) that is no row, by mixing weights (K,)."""

    @abstractmethod
    def embedded(self, rows: slice) -> Floats:
        """Rows (m, n) in block order for distances: numbers, or codes; NaN missing."""

    @abstractmethod
    def part(self, rows: slice, following: slice | None = None) -> PartTerms:
        """Return the terms of a run of rows, which are counted from 0 in it."""

    @abstractmethod
    def some(self, rows: NDArray[np.intp], row_weights: NDArray[np.float64] | None) -> PartTerms:
        """Return the terms of some rows."""
