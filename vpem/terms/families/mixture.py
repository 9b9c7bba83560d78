"""A fitted mixture whose features are of several families, and the values they can have.

As points of a vector space (`vpem.terms.mixture.Coordinates`) parameters have nothing out of
bounds: numbers that are positive are there by their logarithms, probabilities by their log-odds,
those of a category by their logarithms, which are normalised on the way back. Zeros stay where they
are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from vpem.checks import Doubles, Floats, Indices, Mask, Matrix, row_blocks
from vpem.errors import InputError
from vpem.network.partition import Blocks
from vpem.network.schema import Array, Report, Schema, State
from vpem.terms.density import Density, runs_of_roots
from vpem.terms.families.family import Features, Part
from vpem.terms.families.kinds import LAWS, Kinds
from vpem.terms.mixture import Coordinates, Mixture
from vpem.terms.units import Scaling

TINY = 1e-300
"""Numbers that are less count as this much."""


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
        wrong = LAWS[family].wrong(column[there])
        if family == "categorical":
            wrong = wrong | (column[there] >= kinds.n_levels[j])
        if wrong.any():
            row = int(there[np.flatnonzero(wrong)[0]])
            name = "" if feature_names is None else f" ({feature_names[j]!r})"
            said = f"feature {j}{name} is {column[row]:g}, but {family} features are"
            return row, f"{said} {LAWS[family].values}"
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
        parts = tuple(
            replace(part, core=part.core and replace(part.core, weights=self.weights))
            for part in self.parts
        )
        object.__setattr__(self, "parts", parts)

    @classmethod
    def blank(
        cls,
        blocks: Blocks,
        kinds: Kinds,
        covariance_type: str,
        n_components: int,
        scaling: Scaling | None = None,
    ) -> MixedMixture:
        shares, parts = np.full((1, n_components), 1.0 / n_components), []
        for family, features in kinds.split(blocks).items():
            units = None if scaling is None else scaling.take_features(features.columns)
            parts.append(LAWS[family].blank(features, covariance_type, n_components, units))
        return cls(blocks, kinds, covariance_type, shares, tuple(parts))

    @property
    def summary(self) -> str:
        """How many features have each family, in words."""
        return ", ".join(f"{part.features.n_features} {part.family}" for part in self.parts)

    @property
    def n_parameters(self) -> int:
        """Free parameters: K - 1 weights, and those of every part."""
        n_free = sum(part.law.n_parameters(part) for part in self.parts)
        return self.n_components - 1 + n_free

    @cached_property
    def means(self) -> Doubles:  # type: ignore[override]  # computed, not kept
        """Where components lie, (K, d), in block order and in the units of fitting."""
        means = np.empty((self.n_components, self.n_features))
        for part in self.parts:
            here = part.law.means(part) if part.core is None else part.core.means
            means[:, self.blocks.position[part.features.ordered]] = here
        return means

    @property
    def assembled_means(self) -> Doubles:
        """Expected values (K, d) in the user's order and units; of a category its mode."""
        means = np.empty((self.n_components, self.n_features))
        for part in self.parts:
            means[:, part.features.ordered] = part.law.means(part)
        return means

    def moments(self) -> Iterator[tuple[Indices, Doubles, Doubles]]:
        for part in self.parts:
            position = part.features.blocks.position
            means, variances = part.law.means(part), part.law.variances(part)
            yield part.features.columns, means[:, position], variances[:, position]

    def terms_of(self, values: Doubles, there: Mask) -> tuple[Floats, Doubles | float]:
        """Terms (B, m, K) of each hub for some rows; what their log-density has besides is 0."""
        if (wrong := wrong_value(self.kinds, np.where(there, values, np.nan))) is not None:
            raise InputError(f"{wrong[1]}, as the model has been fitted to")
        terms = np.zeros((self.blocks.n_blocks, len(values), self.n_components))
        for part in self.parts:
            columns = part.features.columns
            terms += part.law.terms_of(part, values[:, columns], there[:, columns])
        return terms, 0.0

    def arrays(self) -> State:
        parts = {part.family: part.arrays() for part in self.parts}
        return {"weights": self.weights, "parts": parts}

    def schema(self, n_roots: int = 1) -> dict[str, Schema]:
        return {
            "weights": Array("f8", ((1, n_roots), self.n_components), least=0, sums=1),
            "parts": {part.family: part.schema() for part in self.parts},
        }

    def having(self, arrays: State) -> MixedMixture:
        parts = tuple(part.having(arrays["parts"][part.family]) for part in self.parts)
        return replace(self, weights=arrays["weights"], parts=parts)

    def of_hubs(self, numbers: Sequence[int] | Indices) -> MixedMixture:
        blocks = self.blocks.of_hubs(numbers)
        columns = [j for b in numbers for j in self.blocks.features[b]]
        kinds = self.kinds.take_features(columns)
        parts = []
        for part in self.parts:
            if part.family in kinds.present:
                tables = {name: part.cells.take(one, numbers) for name, one in part.tables.items()}
                core = None if part.core is None else part.core.of_hubs(numbers)
                features = kinds.features(part.family, blocks)
                parts.append(Part(part.law, features, tables, core))
        weights = runs_of_roots(self.blocks.n_blocks).take(self.weights, numbers)
        return MixedMixture(blocks, kinds, self.covariance_type, weights, tuple(parts))

    def sent(self) -> State:
        return {"weights": self.weights, "parts": {one.family: one.sent() for one in self.parts}}

    def join_hubs(
        self, blocks: Blocks, parts: Sequence[Report], scaling: Scaling | None = None
    ) -> MixedMixture:
        """Return such a mixture over its blocks, from what several processes have of them.

        Each has ``numbers`` of its hubs, ``weights``, and ``parts`` by family, with arrays as those
        of `Mixture.join_hubs`.
        """
        weights = runs_of_roots(blocks.n_blocks).join(
            [(one["numbers"], one["weights"]) for one in parts]
        )
        whole = []
        for part in self.parts:
            units = None if scaling is None else scaling.take_features(part.features.columns)
            sent = [
                {"numbers": one["numbers"], "weights": weights} | one["parts"][part.family]
                for one in parts
                if part.family in one["parts"]
            ]
            tables = {
                name: part.cells.join([(one["numbers"], one[name]) for one in sent])
                for name in part.tables
            }
            core = part.core and part.core.join_hubs(part.features.blocks, sent, units)
            whole.append(replace(part, tables=tables, core=core))
        return replace(self, weights=weights, parts=tuple(whole))

    def with_hubs_of(self, other: MixedMixture, hubs: Mask) -> MixedMixture:
        weights = np.where(hubs[:, None], other.weights, self.weights)
        parts = []
        for part, theirs in zip(self.parts, other.parts, strict=True):
            tables = {
                name: part.cells.where(hubs, theirs.tables[name], table)
                for name, table in part.tables.items()
            }
            core = part.core and part.core.with_hubs_of(theirs.core, hubs)
            parts.append(replace(part, tables=tables, core=core))
        return replace(self, weights=weights, parts=tuple(parts))

    def permuted(self, order: Indices) -> MixedMixture:
        parts = []
        for part in self.parts:
            tables = {name: table[order] for name, table in part.tables.items()}
            core = part.core and part.core.permuted(order)
            parts.append(replace(part, tables=tables, core=core))
        return replace(self, weights=self.weights[:, order], parts=tuple(parts))

    def sample(self, n_samples: int, rng: np.random.Generator) -> tuple[Doubles, Indices]:
        if "covariate" in self.kinds.present:
            raise InputError(
                "covariates have no distribution from which rows could be drawn; draw from a model "
                "without them"
            )
        return super().sample(n_samples, rng)

    def drawn(self, labels: Indices, rng: np.random.Generator) -> Doubles:
        drawn = np.empty((len(labels), self.n_features))
        for part in self.parts:
            drawn[:, part.features.ordered] = part.law.draw(part, labels, rng)
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
        self.check_start(blocks)

        def converted(core: Mixture, columns: Indices, features: Features) -> Mixture:
            units = scaling.take_features(columns)
            return core.convert_to(features.blocks, covariance_type, units)

        others = {
            "covariance_type": covariance_type,
            "weights": self.assembled_weights[None].copy(),
        }
        return self._moved(blocks, np.arange(self.n_features), converted, **others)

    def marginal(self, features: Sequence[int]) -> MixedMixture:
        chosen = np.asarray(features, dtype=np.intp)

        def remaining(core: Mixture, columns: Indices, features: Features) -> Mixture:
            return core.marginal(np.searchsorted(columns, chosen[features.columns]).tolist())

        return self._moved(self.blocks.among(chosen), chosen, remaining)

    def renumbered(self, columns: Sequence[int]) -> MixedMixture:
        place = np.asarray(columns, dtype=np.intp)

        def renumbered(core: Mixture, columns: Indices, features: Features) -> Mixture:
            return core.renumbered(np.searchsorted(features.columns, place[columns]).tolist())

        return self._moved(self.blocks.renumbered(place), np.argsort(place), renumbered)

    def _moved(
        self,
        blocks: Blocks,
        columns: Indices,
        core: Callable[[Mixture, Indices, Features], Mixture],
        **others: Any,
    ) -> MixedMixture:
        """Return these parameters over other hubs, whose features were these ``columns`` (d,).

        ``core`` moves that of a part, whose features had some columns here, to its features there.
        """
        kinds, parts = self.kinds.take_features(columns), []
        for part in self.parts:
            if part.family in kinds.present:
                features = kinds.features(part.family, blocks)
                inside = np.searchsorted(part.features.columns, columns[features.ordered])
                origin = part.features.blocks.position[inside]
                tables = part.law.tables_over(part, features, origin)
                moved = part.core and core(part.core, part.features.columns, features)
                parts.append(replace(part, features=features, tables=tables, core=moved))
        return replace(self, blocks=blocks, kinds=kinds, parts=tuple(parts), **others)

    def coordinates(self, floor: Doubles) -> Coordinates:
        weights = np.log(np.where(self.weights > 0, self.weights, 1.0))
        n_hubs, nowhere, inner = self.blocks.n_blocks, np.zeros((1, 1)), []
        for part in self.parts:
            cells = np.repeat(np.arange(n_hubs), part.features.cells(part.law.each))
            for name, table in part.tables.items():
                columns = (_free(part.law.domains[name], table),)
                inner.append(Coordinates(n_hubs, nowhere, cells, columns))
            if part.core is not None:
                places = self.blocks.position[part.features.ordered]
                inner.append(part.core.coordinates(floor[places]))
        return Coordinates(n_hubs, weights, np.zeros(0, dtype=np.intp), inner=tuple(inner))

    def at_coordinates(self, point: Coordinates, floor: Doubles) -> MixedMixture:
        parts, inner = [], iter(point.inner)
        for part in self.parts:
            tables, core = {}, part.core
            for name, before in part.tables.items():
                (table,) = next(inner).columns
                values = _bound(part.law.domains[name], table, part.features.n_levels)
                values[before == 0] = 0.0
                tables[name] = values
            if core is not None:
                places = self.blocks.position[part.features.ordered]
                core = core.at_coordinates(next(inner), floor[places])
            parts.append(replace(part, tables=tables, core=core))
        return replace(self, weights=point.shares(self.weights), parts=tuple(parts))


def scaling_of(features: Sequence[Features], units: Sequence[Scaling]) -> Scaling:
    """Join the units that each part has of its own features."""
    n_features = sum(len(part.columns) for part in features)
    shift, scale = np.zeros(n_features), np.ones(n_features)
    for part, one in zip(features, units, strict=True):
        shift[part.columns], scale[part.columns] = one.shift, one.scale
    return Scaling(shift, scale)


def _free(domain: str, values: Doubles) -> Doubles:
    """Return numbers of a domain as any numbers."""
    if domain == "any":
        return values
    logs = np.log(np.maximum(values, TINY))
    return logs - np.log(np.maximum(1 - values, TINY)) if domain == "probability" else logs


def _bound(domain: str, values: Doubles, n_levels: Indices) -> Doubles:
    """Return numbers of a domain; those of one feature, if of a category, add up to 1."""
    if domain == "any":
        return values
    if domain == "probability":
        return 1 / (1 + np.exp(-values))
    if domain == "positive":
        return np.exp(values)
    if not len(n_levels):
        return values.copy()
    firsts = np.cumsum(n_levels) - n_levels
    groups = np.repeat(np.arange(len(n_levels)), n_levels)
    odds = np.exp(values - np.maximum.reduceat(values, firsts, axis=1)[:, groups])
    total: Doubles = np.add.reduceat(odds, firsts, axis=1)[:, groups]
    return odds / total
