"""Which family of densities each feature has, and how features are split among families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from vpem.checks import Indices, Mask, Matrix, row_blocks
from vpem.errors import InputError, former
from vpem.network.partition import Blocks
from vpem.records import Shown
from vpem.settings import FAMILY_NAMES
from vpem.terms.families.categories import Bernoulli, Categorical
from vpem.terms.families.counts import Exponential, Gamma, NegativeBinomial, Poisson
from vpem.terms.families.covariates import Covariate
from vpem.terms.families.family import Family, Features
from vpem.terms.families.located import GaussianLaw, LogNormalLaw
from vpem.terms.families.student import StudentLaw

LAWS: dict[str, Family] = {
    law.name: law
    for law in (
        GaussianLaw(),
        StudentLaw(),
        LogNormalLaw(),
        Categorical(),
        Bernoulli(),
        Poisson(),
        NegativeBinomial(),
        Exponential(),
        Gamma(),
        Covariate(),
    )
}
"""All families, by their names."""

MOST_LEVELS = 1 << 20
"""A category has no more levels."""


@dataclass(frozen=True)
class Kinds(Shown, facts="{summary}"):
    """Family of each feature.

    Parameters
    ----------
    families : tuple of str
        A name of `vpem.settings.FAMILY_NAMES` for each feature (d,), in the user's order.
    n_levels : tuple of int
        Levels of each feature that is a category; 0 of all others, and where data are still to
        tell (`counted`). Empty: all 0.
    levels : dict of int to tuple of str
        Names of the levels of a feature, by its number, where they have some.

    Raises
    ------
    InputError
        If a name is unknown, or levels do not go with it.
    """

    families: tuple[str, ...]
    n_levels: tuple[int, ...] = ()
    levels: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = list(self.n_levels or [0] * len(self.families))
        if len(counts) != len(self.families):
            raise InputError(
                f"{len(self.families)} families need as many numbers of levels, got {len(counts)}"
            )
        for feature, names in self.levels.items():
            if not 0 <= feature < len(counts) or counts[feature] not in (0, len(names)):
                raise InputError(
                    f"feature {feature} does not have the {len(names)} levels named for it"
                )
            counts[feature] = len(names)
        for feature, (family, count) in enumerate(zip(self.families, counts, strict=True)):
            if family not in FAMILY_NAMES:
                raise InputError(
                    f"feature {feature}: a family is one of {', '.join(FAMILY_NAMES)}, "
                    f"got {family!r}"
                )
            if count and family != "categorical":
                raise InputError(f"feature {feature} is {family} and has no levels, got {count}")
            if not 0 <= count <= MOST_LEVELS:
                raise InputError(
                    f"feature {feature} has {count} levels, but no more than {MOST_LEVELS} are "
                    "fitted; join those that are rare"
                )
        object.__setattr__(self, "families", tuple(self.families))
        object.__setattr__(self, "n_levels", tuple(counts))

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return len(self.families)

    @property
    def is_gaussian(self) -> bool:
        """Whether all features are Gaussian, which is what a fit without families has."""
        return all(family == "gaussian" for family in self.families)

    @property
    def present(self) -> tuple[str, ...]:
        """Families that some feature has, in the order of `vpem.settings.FAMILY_NAMES`."""
        return tuple(family for family in FAMILY_NAMES if family in self.families)

    @cached_property
    def summary(self) -> str:
        """How many features have each family, in words."""
        return ", ".join(f"{self.families.count(family)} {family}" for family in self.present)

    told = former("told", "summary")

    @property
    def located(self) -> Mask:
        """Which features (d,) have locations and scatter."""
        return np.array([LAWS[family].has_core for family in self.families], dtype=np.bool_)

    def columns_of(self, *families: str) -> Indices:
        """Features of some families, as the user numbers them, in ascending order."""
        return np.flatnonzero([family in families for family in self.families])

    def take_features(self, columns: Sequence[int] | Indices) -> Kinds:
        """Return the families of some features, in this order."""
        chosen = [int(column) for column in columns]
        return Kinds(
            tuple(self.families[j] for j in chosen),
            tuple(self.n_levels[j] for j in chosen),
            {place: self.levels[j] for place, j in enumerate(chosen) if j in self.levels},
        )

    of = former("of", "take_features")

    def counted(self, X: Matrix) -> Kinds:
        """Return the same with as many levels as the codes of data (M, d) have, if none are known.

        Values are not looked at here: what is no code is refused elsewhere.
        """
        unknown = [j for j in self.columns_of("categorical") if not self.n_levels[j]]
        if not unknown:
            return self
        most = np.zeros(len(unknown))
        for _, part in row_blocks(X):
            values = part[:, unknown].astype(np.float64)
            most = np.fmax(most, np.where(np.isfinite(values), values, 0.0).max(axis=0, initial=0))
        counts = list(self.n_levels)
        for feature, value in zip(unknown, np.clip(most, 0, MOST_LEVELS), strict=True):
            counts[feature] = int(value) + 1
        return Kinds(self.families, tuple(counts), self.levels)

    def features(self, family: str, blocks: Blocks) -> Features:
        """Return the features of one family over all hubs of ``blocks``; see `split`."""
        columns = self.columns_of(family)
        inner = blocks.among(columns)
        n_levels = np.array(self.n_levels, dtype=np.intp)[columns]
        return Features(columns, inner, n_levels[inner.order])

    def split(self, blocks: Blocks) -> dict[str, Features]:
        """Return the features of each family that is present, hub by hub."""
        return {family: self.features(family, blocks) for family in self.present}
