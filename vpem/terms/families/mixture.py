"""A fitted mixture whose features are of several families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.errors import InputError
from vpem.network.partition import Blocks
from vpem.network.schema import Array, Schema, State
from vpem.terms.covariances import is_tied
from vpem.terms.density import Density
from vpem.terms.families.family import Features
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.laws import law_of
from vpem.terms.families.part import Law, Part
from vpem.terms.families.values import wrong_value
from vpem.terms.mixture import Mixture
from vpem.terms.scaling import Scaling


@dataclass(frozen=True)
class MixedMixture(Density, facts="{n_components:component}, {n_features:feature}, {told}"):
    """A mixture of several families, of which features in a hub are independent in a component."""

    blocks: Blocks  # of all families
    kinds: Kinds  # family of each feature
    covariance_type: str  # of those that have scatter
    weights: NDArray[np.float64]  # (R, K); R = 1: one estimate for all
    parts: tuple[Part, ...]  # in the order of `vpem.settings.FAMILY_NAMES`

    def __post_init__(self) -> None:
        parts = tuple(part.weighing(self.weights) for part in self.parts)
        object.__setattr__(self, "parts", parts)

    @property
    def told(self) -> str:
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
        own = zip(self.laws, self.parts, strict=True)
        return k - 1 + sum(law.n_parameters(part, k) for law, part in own)

    @cached_property
    def means(self) -> NDArray[np.float64]:  # type: ignore[override]  # computed, not kept
        """Where components lie, (K, d), in block order and in the units of fitting."""
        found = np.empty((self.n_components, self.n_features))
        for law, part in zip(self.laws, self.parts, strict=True):
            own = part.features
            found[:, self.blocks.position[own.columns[own.blocks.order]]] = law.locations(part)
        return found

    @property
    def assembled_means(self) -> NDArray[np.float64]:
        """Expected values (K, d) in the user's order and units; of a category its mode."""
        found = np.empty((self.n_components, self.n_features))
        for law, part in zip(self.laws, self.parts, strict=True):
            found[:, part.features.columns] = law.means(part)
        return found

    def terms_of(
        self, values: NDArray[np.float64], there: NDArray[np.bool_]
    ) -> tuple[Floats, NDArray[np.float64] | float]:
        """Terms (B, m, K) of each hub for some rows; what their log-density has besides is 0."""
        if (wrong := wrong_value(self.kinds, np.where(there, values, np.nan))) is not None:
            raise InputError(f"{wrong[1]}, as the model has been fitted to")
        found = np.zeros((self.blocks.n_blocks, len(values), self.n_components))
        for law, part in zip(self.laws, self.parts, strict=True):
            columns = part.features.columns
            found += law.terms_of(part, values[:, columns], there[:, columns])
        return found, 0.0

    def arrays(self) -> State:
        """Parameters as arrays, family by family."""
        parts = {part.family: part.arrays() for part in self.parts}
        return {"weights": self.weights, "parts": parts}

    def schema(self, n_roots: int = 1) -> Schema:
        """Say what `arrays` must be."""
        own = zip(self.laws, self.parts, strict=True)
        return {
            "weights": Array("f8", ((1, n_roots), self.n_components), least=0, sums=1),
            "parts": {part.family: part.schema(law.domains) for law, part in own},
        }

    def having(self, arrays: State) -> MixedMixture:
        """Return a mixture like this one with other parameters."""
        parts = tuple(part.having(arrays["parts"][part.family]) for part in self.parts)
        return replace(self, weights=arrays["weights"], parts=parts)

    def weighing(self, other: MixedMixture) -> MixedMixture:
        """Return the same mixture with another one's mixing weights."""
        return replace(self, weights=other.weights)

    def permuted(self, order: NDArray[np.intp]) -> MixedMixture:
        """Return the same mixture with its components in another order."""
        parts = tuple(part.permuted(order) for part in self.parts)
        return replace(self, weights=self.weights[:, order], parts=parts)

    def drawn(self, labels: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw rows of these components (m,), (m, d) in the user's order and units."""
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

    def over(self, blocks: Blocks, covariance_type: str, scaling: Scaling) -> MixedMixture:
        """Return this mixture's parameters over other blocks; see `Mixture.over`."""
        if blocks.n_features != self.n_features:
            raise InputError(
                f"the starting model has {self.n_features} features, the data {blocks.n_features}"
            )
        columns = np.arange(self.n_features, dtype=np.intp)
        parts = []
        for part, features in zip(self.parts, self.kinds.split(blocks).values(), strict=True):
            core = part.core
            if core is not None:
                units = scaling.of(features.columns)
                core = core.over(features.blocks, covariance_type, units)
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
        inside = [place[own] for own in self.blocks.features]
        blocks = replace(self.blocks, features=tuple(own[own >= 0] for own in inside))
        kinds, parts = self.kinds.of(chosen), []
        for part in self.parts:
            if part.family in kinds.present:
                own = kinds.features(part.family, blocks)
                core = part.core
                if core is not None:
                    columns = np.searchsorted(part.features.columns, chosen[own.columns])
                    core = core.marginal(columns.tolist())
                parts.append(self._moved(part, own, chosen, core))
        return replace(self, blocks=blocks, kinds=kinds, parts=tuple(parts))

    def renumbered(self, columns: Sequence[int]) -> MixedMixture:
        """Return the same mixture of data whose columns stand in another order."""
        place = np.asarray(columns, dtype=np.intp)
        blocks = replace(self.blocks, features=tuple(place[f] for f in self.blocks.features))
        order = np.argsort(place)
        kinds, parts = self.kinds.of(order), []
        for part in self.parts:
            own = kinds.features(part.family, blocks)
            core = part.core
            if core is not None:
                before = np.searchsorted(own.columns, place[part.features.columns])
                core = core.renumbered(before.tolist())
            parts.append(self._moved(part, own, order, core))
        return replace(self, blocks=blocks, kinds=kinds, parts=tuple(parts))

    def _moved(
        self, part: Part, features: Features, columns: NDArray[np.intp], core: Mixture | None
    ) -> Part:
        """Return a part of other features, whose columns were these (d,), or over other hubs."""
        before = columns[features.columns[features.blocks.order]]
        inside = np.searchsorted(part.features.columns, before)
        origin = part.features.blocks.position[inside]
        tables = law_of(part.family).tables_over(part, features, origin)
        return replace(part, features=features, tables=tables, core=core)


def scaling_of(features: Sequence[Features], units: Sequence[Scaling]) -> Scaling:
    """Join the units that each part has of its own features."""
    n_features = sum(len(own.columns) for own in features)
    shift, scale = np.zeros(n_features), np.ones(n_features)
    for own, one in zip(features, units, strict=True):
        shift[own.columns], scale[own.columns] = one.shift, one.scale
    return Scaling(shift, scale)
