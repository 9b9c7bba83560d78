"""Families whose log-density is linear in a few functions of a value: exponential families."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem._core.families import product_moments, product_terms
from vpem.checks import Floats
from vpem.terms.families.family import Family, Features, Table, Tables


class Products(Family):
    """Features with a cell of each parameter, and sums over rows of a few functions of each."""

    kind: ClassVar[int]
    """Which functions, as `vpem._core.reference_families.product_terms` numbers them."""

    sums: ClassVar[tuple[str, ...]] = ("seen", "total")
    """Statistics: responsibilities, and those times each of the functions."""

    @abstractmethod
    def factors(self, parameters: Tables) -> list[Table]:
        """What each function is multiplied by in a term, (K, n)."""

    def a_feature(self, features: Features) -> dict[str, NDArray[np.intp]]:
        """One cell of each parameter."""
        return dict.fromkeys(self.domains, np.ones(features.n_features, dtype=np.intp))

    def n_free(self, features: Features) -> int:
        """As many as there are parameters, for each feature."""
        return len(self.domains) * features.n_features

    def ready(self, parameters: Tables, features: Features, dtype: DTypeLike) -> dict[str, Floats]:
        """Factors by function and feature; in double precision, as large ones cancel."""
        factors = [factor.T for factor in self.factors(parameters)]
        return {"table": np.ascontiguousarray(np.stack(factors))}

    def add_terms(
        self,
        ready: dict[str, Floats],
        features: Features,
        data: Floats,
        out: Floats,
        n_threads: int,
    ) -> None:
        """Add the sum over functions of each value of function times factor."""
        product_terms(data, features.blocks.offsets, self.kind, ready["table"], out, n_threads)

    def empty(self, features: Features, n_components: int) -> Tables:
        """Sums of no rows."""
        return {name: np.zeros((n_components, features.n_features)) for name in self.sums}

    def add_moments(
        self,
        statistics: Tables,
        ready: dict[str, Floats] | None,
        features: Features,
        data: Floats,
        responsibilities: Floats,
        n_threads: int,
    ) -> None:
        """Add the sums of these rows."""
        n_components = responsibilities.shape[2]
        found = np.zeros((len(self.sums), features.n_features, n_components))
        offsets = features.blocks.offsets
        product_moments(data, responsibilities, offsets, self.kind, found, n_threads)
        for name, own in zip(self.sums, found, strict=True):
            statistics[name] += own.T
