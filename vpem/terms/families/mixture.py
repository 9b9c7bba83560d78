"""A fitted mixture whose features are of several families, and the values they can have.

As points of a vector space (`MixedCoordinates`) parameters have nothing out of bounds: numbers that
are positive are there by their logarithms, probabilities by their log-odds, those of a category by
their logarithms, which are normalised on the way back; cores as `vpem.terms.mixture.Coordinates`.
Zeros stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from vpem.checks import Doubles, Floats, Indices, Mask, Matrix, row_blocks
from vpem.errors import InputError
from vpem.network.partition import Blocks
from vpem.network.schema import Array, Schema, State
from vpem.terms.density import Density
from vpem.terms.families.family import Features, Tables
from vpem.terms.families.kinds import FAMILIES, Kinds
from vpem.terms.families.located import GaussianLaw, LogNormalLaw
from vpem.terms.families.part import IndependentLaw, Part
from vpem.terms.families.student import StudentLaw
from vpem.terms.mixture import Coordinates, Mixture, is_tied
from vpem.terms.units import Scaling

Law = GaussianLaw | IndependentLaw

LAWS: dict[str, GaussianLaw] = {
    law.name: law for law in (GaussianLaw(), StudentLaw(), LogNormalLaw())
}
"""Families with locations and scatter, by their names; all others are in `FAMILIES`."""

MAY_BE = {
    "categorical": "codes from 0 to one less than there are levels",
    "bernoulli": "0 or 1",
    "poisson": "counts: 0, 1, 2, ...",
    "negative-binomial": "counts: 0, 1, 2, ...",
    "exponential": "numbers that are 0 or above",
    "gamma": "numbers above 0",
    "log-normal": "numbers above 0",
}
"""What they are. All others are finite numbers."""

TINY = 1e-300
"""Numbers that are less count as this much."""


def law_of(name: str) -> Law:
    """Return a family by its name."""
    if name in LAWS:
        return LAWS[name]
    if name in FAMILIES:
        return IndependentLaw(FAMILIES[name])
    raise InputError(f"features cannot be {name!r}: there is no such family")


def check_values_of(kinds: Kinds, X: Matrix, feature_names: Sequence[str] | None = None) -> None:
    """Raise InputError at the first value that its feature's family cannot have.

    Missing values (NaN) are not looked at.
    """
    for start, part in row_blocks(X):
        wrong = wrong_value(kinds, part, feature_names)
        if wrong is not None:
            row, said = wrong
            raise InputError(f"row {start + row}, {said}; give it another family")


def wrong_value(
    kinds: Kinds, rows: Floats, feature_names: Sequence[str] | None = None
) -> tuple[int, str] | None:
    """Return a row (of m) with a value that is wrong, and what is wrong with it; None: all fit."""
    for j, family in enumerate(kinds.families):
        column = rows[:, j].astype(np.float64)
        there = np.flatnonzero(~np.isnan(column))
        wrong = law_of(family).wrong(column[there])
        if family == "categorical":
            wrong = wrong | (column[there] >= kinds.n_levels[j])
        if wrong.any():
            row = int(there[np.flatnonzero(wrong)[0]])
            name = "" if feature_names is None else f" ({feature_names[j]!r})"
            what = MAY_BE.get(family, "finite numbers")
            return row, f"feature {j}{name} is {column[row]:g}, but {family} features are {what}"
    return None


@dataclass(frozen=True)
class MixedMixture(Density, facts="{n_components:component}, {n_features:feature}, {summary}"):
    """A mixture of several families, of which features in a hub are independent in a component."""

    blocks: Blocks  # of all families
    kinds: Kinds  # family of each feature
    covariance_type: str  # of those that have scatter
    weights: Doubles  # (R, K); R = 1: one estimate for all
    parts: tuple[Part, ...]  # in the order of `vpem.settings.FAMILY_NAMES`

    def __post_init__(self) -> None:
        parts = tuple(part.weighing(self.weights) for part in self.parts)
        object.__setattr__(self, "parts", parts)

    @property
    def summary(self) -> str:
        """How many features have each family, in words."""
        return ", ".join(f"{part.features.n_features} {part.family}" for part in self.parts)

    @cached_property
    def laws(self) -> tuple[Law, ...]:
        """The family of each part."""
        return tuple(law_of(part.family) for part in self.parts)

    @property
    def is_tied(self) -> bool:
        """Whether all components share one covariance."""
        return is_tied(self.covariance_type)

    @property
    def n_parameters(self) -> int:
        """Free parameters: K - 1 weights, and those of every part."""
        k = self.n_components
        pairs = zip(self.laws, self.parts, strict=True)
        return k - 1 + sum(law.n_parameters(part, k) for law, part in pairs)

    @cached_property
    def means(self) -> Doubles:  # type: ignore[override]  # computed, not kept
        """Where components lie, (K, d), in block order and in the units of fitting."""
        means = np.empty((self.n_components, self.n_features))
        for law, part in zip(self.laws, self.parts, strict=True):
            features = part.features
            means[:, self.blocks.position[features.columns[features.blocks.order]]] = law.locations(
                part
            )
        return means

    @property
    def assembled_means(self) -> Doubles:
        """Expected values (K, d) in the user's order and units; of a category its mode."""
        means = np.empty((self.n_components, self.n_features))
        for law, part in zip(self.laws, self.parts, strict=True):
            means[:, part.features.columns] = law.means(part)
        return means

    def terms_of(self, values: Doubles, there: Mask) -> tuple[Floats, Doubles | float]:
        """Terms (B, m, K) of each hub for some rows; what their log-density has besides is 0."""
        if (wrong := wrong_value(self.kinds, np.where(there, values, np.nan))) is not None:
            raise InputError(f"{wrong[1]}, as the model has been fitted to")
        terms = np.zeros((self.blocks.n_blocks, len(values), self.n_components))
        for law, part in zip(self.laws, self.parts, strict=True):
            columns = part.features.columns
            terms += law.terms_of(part, values[:, columns], there[:, columns])
        return terms, 0.0

    def arrays(self) -> State:
        """Parameters as arrays, family by family."""
        parts = {part.family: part.arrays() for part in self.parts}
        return {"weights": self.weights, "parts": parts}

    def schema(self, n_roots: int = 1) -> Schema:
        """Say what `arrays` must be."""
        pairs = zip(self.laws, self.parts, strict=True)
        return {
            "weights": Array("f8", ((1, n_roots), self.n_components), least=0, sums=1),
            "parts": {part.family: part.schema(law.domains) for law, part in pairs},
        }

    def having(self, arrays: State) -> MixedMixture:
        parts = tuple(part.having(arrays["parts"][part.family]) for part in self.parts)
        return replace(self, weights=arrays["weights"], parts=parts)

    def weighing(self, other: MixedMixture) -> MixedMixture:
        """Return the same mixture with another one's mixing weights."""
        return replace(self, weights=other.weights)

    def permuted(self, order: Indices) -> MixedMixture:
        parts = tuple(part.permuted(order) for part in self.parts)
        return replace(self, weights=self.weights[:, order], parts=parts)

    def drawn(self, labels: Indices, rng: np.random.Generator) -> Doubles:
        drawn = np.empty((len(labels), self.n_features))
        for law, part in zip(self.laws, self.parts, strict=True):
            drawn[:, part.features.columns] = law.draw(part, labels, rng)
        return drawn

    # ---- the same mixture over other blocks -----------------------------------------------------

    @property
    def scaling(self) -> Scaling:
        """Units of fitting, of each feature as the user numbers them."""
        units = [
            Scaling.none(part.features.n_features) if part.core is None else part.core.scaling
            for part in self.parts
        ]
        return scaling_of([part.features for part in self.parts], units)

    def convert_to(self, blocks: Blocks, covariance_type: str, scaling: Scaling) -> MixedMixture:
        """Return this mixture's parameters over other blocks; see `Mixture.convert_to`."""
        if blocks.n_features != self.n_features:
            raise InputError(
                f"the starting model has {self.n_features} features, the data {blocks.n_features}"
            )
        columns = np.arange(self.n_features, dtype=np.intp)
        parts = []
        for part, features in zip(self.parts, self.kinds.split(blocks).values(), strict=True):
            core = part.core
            if core is not None:
                units = scaling.take_features(features.columns)
                core = core.convert_to(features.blocks, covariance_type, units)
            parts.append(self._moved(part, features, columns, core))
        weights = self.assembled_weights[None].copy()
        return replace(
            self, blocks=blocks, covariance_type=covariance_type, weights=weights,
            parts=tuple(parts),
        )  # fmt: skip

    def marginal(self, features: Sequence[int]) -> MixedMixture:
        """Return the mixture of some of the features; see `Mixture.marginal`."""
        chosen = np.asarray(features, dtype=np.intp)
        place = np.full(self.n_features, -1, dtype=np.intp)
        place[chosen] = np.arange(len(chosen))
        inside = [place[members] for members in self.blocks.features]
        blocks = replace(self.blocks, features=tuple(numbers[numbers >= 0] for numbers in inside))
        kinds, parts = self.kinds.take_features(chosen), []
        for part in self.parts:
            if part.family in kinds.present:
                remaining = kinds.features(part.family, blocks)
                core = part.core
                if core is not None:
                    columns = np.searchsorted(part.features.columns, chosen[remaining.columns])
                    core = core.marginal(columns.tolist())
                parts.append(self._moved(part, remaining, chosen, core))
        return replace(self, blocks=blocks, kinds=kinds, parts=tuple(parts))

    def renumbered(self, columns: Sequence[int]) -> MixedMixture:
        place = np.asarray(columns, dtype=np.intp)
        blocks = replace(self.blocks, features=tuple(place[f] for f in self.blocks.features))
        order = np.argsort(place)
        kinds, parts = self.kinds.take_features(order), []
        for part in self.parts:
            features = kinds.features(part.family, blocks)
            core = part.core
            if core is not None:
                before = np.searchsorted(features.columns, place[part.features.columns])
                core = core.renumbered(before.tolist())
            parts.append(self._moved(part, features, order, core))
        return replace(self, blocks=blocks, kinds=kinds, parts=tuple(parts))

    def _moved(
        self, part: Part, features: Features, columns: Indices, core: Mixture | None
    ) -> Part:
        """Return a part of other features, whose columns were these (d,), or over other hubs."""
        before = columns[features.columns[features.blocks.order]]
        inside = np.searchsorted(part.features.columns, before)
        origin = part.features.blocks.position[inside]
        tables = law_of(part.family).tables_over(part, features, origin)
        return replace(part, features=features, tables=tables, core=core)


def scaling_of(features: Sequence[Features], units: Sequence[Scaling]) -> Scaling:
    """Join the units that each part has of its own features."""
    n_features = sum(len(part.columns) for part in features)
    shift, scale = np.zeros(n_features), np.ones(n_features)
    for part, one in zip(features, units, strict=True):
        shift[part.columns], scale[part.columns] = one.shift, one.scale
    return Scaling(shift, scale)


def coordinates_of(mixture: Density, floor: Doubles) -> Any:
    """Return `Coordinates` or `MixedCoordinates` of a mixture; see `Coordinates.from_mixture`."""
    if isinstance(mixture, MixedMixture):
        return MixedCoordinates.from_mixture(mixture, floor)
    assert isinstance(mixture, Mixture)
    return Coordinates.from_mixture(mixture, floor)


@dataclass(frozen=True)
class _Point:
    """Coordinates of one part: its tables', and its core's."""

    tables: Tables
    hubs: dict[str, Indices]
    core: Coordinates | None


@dataclass(frozen=True)
class MixedCoordinates:
    """A mixture of several families in unconstrained coordinates, or the difference of two."""

    n_hubs: int  # B
    weights: Doubles  # (R, K) logarithms; 0: no weight
    points: tuple[_Point, ...]  # of each part

    @classmethod
    def from_mixture(cls, mixture: MixedMixture, floor: Doubles) -> MixedCoordinates:
        weights = np.log(np.where(mixture.weights > 0, mixture.weights, 1.0))
        points = []
        for law, part in zip(mixture.laws, mixture.parts, strict=True):
            tables = {name: _free(law.domains[name], table) for name, table in part.tables.items()}
            core = None
            if part.core is not None:
                core = Coordinates.from_mixture(part.core, floor[_places(mixture, part)])
            points.append(_Point(tables, law.hubs_of_cells(part.features), core))
        return cls(mixture.blocks.n_blocks, weights, tuple(points))

    def minus(self, other: MixedCoordinates) -> MixedCoordinates:
        """Return how this one differs from another."""
        points = []
        for one, two in zip(self.points, other.points, strict=True):
            tables = {name: table - two.tables[name] for name, table in one.tables.items()}
            core = None
            if one.core is not None and two.core is not None:
                core = one.core.minus(two.core)
            points.append(replace(one, tables=tables, core=core))
        return replace(self, weights=self.weights - other.weights, points=tuple(points))

    def moved(self, steps: Doubles, along: MixedCoordinates) -> MixedCoordinates:
        """Return this point moved ``along`` a direction, each root (R,) by a step of its own."""
        points = []
        for one, way in zip(self.points, along.points, strict=True):
            tables = {
                name: table
                + (steps if len(steps) == 1 else steps[one.hubs[name]]) * way.tables[name]
                for name, table in one.tables.items()
            }
            core = None
            if one.core is not None and way.core is not None:
                core = one.core.moved(steps, way.core)
            points.append(replace(one, tables=tables, core=core))
        weights = self.weights + steps[:, None] * along.weights
        return replace(self, weights=weights, points=tuple(points))

    def dot(self, other: MixedCoordinates, share: float = 1.0) -> Doubles:
        """Inner product of each hub's part, (B,), with a share of its root's mixing weights."""
        weights = share * (self.weights * other.weights).sum(axis=1)
        products = np.broadcast_to(weights, self.n_hubs).copy()
        for one, two in zip(self.points, other.points, strict=True):
            for name, table in one.tables.items():
                cells = (table * two.tables[name]).sum(axis=0)
                products += np.bincount(one.hubs[name], cells, self.n_hubs)
            if one.core is not None and two.core is not None:
                products += one.core.dot(two.core, 0.0)
        return products

    def mixture(self, like: MixedMixture, floor: Doubles) -> MixedMixture:
        """Return the mixture at this point; see `vpem.terms.mixture.Coordinates.mixture`."""
        logs = np.where(like.weights > 0, self.weights, -np.inf)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        triples = zip(like.laws, like.parts, self.points, strict=True)
        parts = tuple(
            _part(law, part, point, floor[_places(like, part)]) for law, part, point in triples
        )
        return replace(like, weights=weights, parts=parts)


def _places(mixture: MixedMixture, part: Part) -> Indices:
    """Where a part's features (n,) stand among all, both in block order."""
    places: Indices = mixture.blocks.position[part.features.columns[part.features.blocks.order]]
    return places


def _part(law: Law, like: Part, point: _Point, floor: Doubles) -> Part:
    tables = {}
    for name, table in point.tables.items():
        values = _bound(law.domains[name], table, law.features_of_cells(like.features)[name])
        values[like.tables[name] == 0] = 0.0
        tables[name] = values
    core = like.core
    if core is not None and point.core is not None:
        core = point.core.mixture(core, floor)
    return replace(like, tables=tables, core=core)


def _free(domain: str, values: Doubles) -> Doubles:
    """Return numbers of a domain as any numbers."""
    if domain == "any":
        return values
    logs = np.log(np.maximum(values, TINY))
    return logs - np.log(np.maximum(1 - values, TINY)) if domain == "probability" else logs


def _bound(domain: str, values: Doubles, features: Indices) -> Doubles:
    """Return numbers of a domain; those of one feature, if of a category, add up to 1."""
    if domain == "any":
        return values
    if domain == "probability":
        return 1 / (1 + np.exp(-values))
    if domain == "positive":
        return np.exp(values)
    firsts = np.flatnonzero(np.diff(features, prepend=-1))
    if not len(firsts):
        return values.copy()
    groups = np.cumsum(np.diff(features, prepend=-1) != 0) - 1
    odds = np.exp(values - np.maximum.reduceat(values, firsts, axis=1)[:, groups])
    total: Doubles = np.add.reduceat(odds, firsts, axis=1)[:, groups]
    return odds / total
