"""Parameters of several families as points of a vector space: nothing in it is out of bounds.

Numbers that are positive are there by their logarithms, probabilities by their log-odds, those of a
category by their logarithms, which are normalised on the way back; cores as
`vpem.terms.coordinates.Coordinates`. Zeros stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.terms.coordinates import Coordinates
from vpem.terms.density import Density
from vpem.terms.families.family import Tables
from vpem.terms.families.mixture import MixedMixture
from vpem.terms.families.part import Law, Part
from vpem.terms.mixture import Mixture

Vector = NDArray[np.float64]

TINY = 1e-300
"""Numbers that are less count as this much."""


def coordinates_of(mixture: Density, floor: Vector) -> Any:
    """Return `Coordinates` or `MixedCoordinates` of a mixture; see `Coordinates.of`."""
    if isinstance(mixture, MixedMixture):
        return MixedCoordinates.of(mixture, floor)
    assert isinstance(mixture, Mixture)
    return Coordinates.of(mixture, floor)


@dataclass(frozen=True)
class _Point:
    """Coordinates of one part: its tables', and its core's."""

    tables: Tables
    hubs: dict[str, NDArray[np.intp]]
    core: Coordinates | None


@dataclass(frozen=True)
class MixedCoordinates:
    """A mixture of several families in unconstrained coordinates, or the difference of two."""

    n_hubs: int  # B
    weights: Vector  # (R, K) logarithms; 0: no weight
    points: tuple[_Point, ...]  # of each part

    @classmethod
    def of(cls, mixture: MixedMixture, floor: Vector) -> MixedCoordinates:
        """Return the coordinates of a mixture."""
        weights = np.log(np.where(mixture.weights > 0, mixture.weights, 1.0))
        points = []
        for law, part in zip(mixture.laws, mixture.parts, strict=True):
            tables = {name: _free(law.domains[name], own) for name, own in part.tables.items()}
            core = None
            if part.core is not None:
                core = Coordinates.of(part.core, floor[_places(mixture, part)])
            points.append(_Point(tables, law.hubs_of_cells(part.features), core))
        return cls(mixture.blocks.n_blocks, weights, tuple(points))

    def minus(self, other: MixedCoordinates) -> MixedCoordinates:
        """Return how this one differs from another."""
        points = []
        for one, two in zip(self.points, other.points, strict=True):
            tables = {name: own - two.tables[name] for name, own in one.tables.items()}
            core = None
            if one.core is not None and two.core is not None:
                core = one.core.minus(two.core)
            points.append(replace(one, tables=tables, core=core))
        return replace(self, weights=self.weights - other.weights, points=tuple(points))

    def moved(self, steps: Vector, along: MixedCoordinates) -> MixedCoordinates:
        """Return this point moved ``along`` a direction, each root (R,) by a step of its own."""
        points = []
        for one, way in zip(self.points, along.points, strict=True):
            tables = {
                name: own + (steps if len(steps) == 1 else steps[one.hubs[name]]) * way.tables[name]
                for name, own in one.tables.items()
            }
            core = None
            if one.core is not None and way.core is not None:
                core = one.core.moved(steps, way.core)
            points.append(replace(one, tables=tables, core=core))
        weights = self.weights + steps[:, None] * along.weights
        return replace(self, weights=weights, points=tuple(points))

    def dot(self, other: MixedCoordinates, share: float = 1.0) -> Vector:
        """Inner product of each hub's part, (B,), with a share of its root's mixing weights."""
        weights = share * (self.weights * other.weights).sum(axis=1)
        found = np.broadcast_to(weights, self.n_hubs).copy()
        for one, two in zip(self.points, other.points, strict=True):
            for name, own in one.tables.items():
                cells = (own * two.tables[name]).sum(axis=0)
                found += np.bincount(one.hubs[name], cells, self.n_hubs)
            if one.core is not None and two.core is not None:
                found += one.core.dot(two.core, 0.0)
        return found

    def mixture(self, like: MixedMixture, floor: Vector) -> MixedMixture:
        """Return the mixture at this point; see `vpem.terms.coordinates.Coordinates.mixture`."""
        logs = np.where(like.weights > 0, self.weights, -np.inf)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        own = zip(like.laws, like.parts, self.points, strict=True)
        parts = tuple(
            _part(law, part, point, floor[_places(like, part)]) for law, part, point in own
        )
        return replace(like, weights=weights, parts=parts)


def _places(mixture: MixedMixture, part: Part) -> NDArray[np.intp]:
    """Where a part's features (n,) stand among all, both in block order."""
    found: NDArray[np.intp] = mixture.blocks.position[
        part.features.columns[part.features.blocks.order]
    ]
    return found


def _part(law: Law, like: Part, point: _Point, floor: Vector) -> Part:
    """Return the part at a point."""
    tables = {}
    for name, own in point.tables.items():
        found = _bound(law.domains[name], own, law.features_of_cells(like.features)[name])
        found[like.tables[name] == 0] = 0.0
        tables[name] = found
    core = like.core
    if core is not None and point.core is not None:
        core = point.core.mixture(core, floor)
    return replace(like, tables=tables, core=core)


def _free(domain: str, values: Vector) -> Vector:
    """Return numbers of a domain as any numbers."""
    if domain == "any":
        return values
    found = np.log(np.maximum(values, TINY))
    return found - np.log(np.maximum(1 - values, TINY)) if domain == "probability" else found


def _bound(domain: str, values: Vector, features: NDArray[np.intp]) -> Vector:
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
    found = np.exp(values - np.maximum.reduceat(values, firsts, axis=1)[:, groups])
    total: Vector = np.add.reduceat(found, firsts, axis=1)[:, groups]
    return found / total
