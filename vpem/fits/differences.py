"""How components differ: in means, in the levels of categories, in the tails of t features."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from vpem.network.schema import Report
from vpem.terms.density import Density
from vpem.terms.families.mixture import MixedMixture
from vpem.terms.families.student import dof_of

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """How a component differs from all rows in one feature.

    Attributes
    ----------
    feature : str
        Its name.
    deviations : float
        Mean of the component less that of all rows, in standard deviations of all rows; of a
        category see `Levels.away`.
    mean : float or None
        Of the component, in the data's units; None of categories.
    level : str or None
        Of a category: the level that the component has most more of than all rows.
    share, share_of_all : float or None
        Of this level, in the component and in all rows.
    """

    feature: str
    deviations: float
    mean: float | None = None
    level: str | None = None
    share: float | None = None
    share_of_all: float | None = None

    def __str__(self) -> str:
        if self.level is None:
            return f"{self.feature} {self.deviations:+.1f} sd"
        return f"{self.feature} {self.level} {self.share:.0%} (all {self.share_of_all:.0%})"

    def describe(self) -> Report:
        """Return what JSON tells of it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Levels:
    """The levels of a category."""

    names: tuple[str, ...]  # what they are called; numbers where they have no names
    shares: Vector  # (K, L) of each level in each component

    def away(self, weights: Vector) -> Vector:
        """How far the shares of each component (K,) lie from those of all rows.

        ``sqrt(sum_l (p_kl - p_l)^2 / (1 - sum_l p_l^2))``: of two levels these are standard
        deviations, and the weighted mean of their squares is the share of the whole variance of
        levels that lies between components (the tau of Goodman and Kruskal 1954).
        """
        whole = weights @ self.shares
        variance = 1 - whole @ whole
        squares = np.square(self.shares - whole).sum(axis=1)
        return np.sqrt(squares / variance) if variance > 1e-12 else np.zeros(len(weights))

    def modes(self) -> list[str]:
        """The most frequent level of each component, with its share."""
        return [f"{self.names[own.argmax()]} {own.max():.0%}" for own in self.shares]

    def most(self, weights: Vector, component: int) -> int:
        """The level that a component has most more of than all rows."""
        return int(np.argmax(self.shares[component] - weights @ self.shares))


def levels_of(mixture: Density) -> dict[int, Levels]:
    """Return the levels of each feature of a mixture that is a category, by its column."""
    found: dict[int, Levels] = {}
    if not isinstance(mixture, MixedMixture):
        return found
    for part in mixture.parts:
        features = part.features
        if part.family != "categorical":
            continue
        for place, j in enumerate(features.columns[features.blocks.order].tolist()):
            own = slice(*features.level_offsets[place : place + 2])
            shares = part.tables["probabilities"][:, own]
            numbers = tuple(map(str, range(shares.shape[1])))
            found[j] = Levels(mixture.kinds.levels.get(j, numbers), shares)
    return found


def degrees_of_freedom_of(mixture: Density) -> Vector | None:
    """Return those of t features, (K, B), NaN of hubs without any; None where none are."""
    for part in mixture.parts if isinstance(mixture, MixedMixture) else ():
        if part.family == "t":
            return np.where(part.features.blocks.widths > 0, dof_of(part), np.nan)
    return None
