"""Counts: Poisson."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.terms.families.family import Features, Table, Tables, where_seen
from vpem.terms.families.products import Products

LEAST_RATE = 1e-300
"""What a rate counts as in a term where it is smaller: zero stays zero in EM, and terms finite."""

LARGEST_COUNT = 2.0**53
"""Whole numbers up to here are all different in double precision."""


def no_count(values: Floats) -> NDArray[np.bool_]:
    """Which values are no whole numbers from 0 to `LARGEST_COUNT`."""
    counts = (values >= 0) & (values <= LARGEST_COUNT) & (values == np.floor(values))
    return np.asarray(~counts)


class Poisson(Products):
    """Counts with a rate: ``log f = x log rate - rate - log x!``."""

    name = "poisson"
    domains: ClassVar[dict[str, str]] = {"rates": "positive"}
    kind = 1

    def wrong(self, values: Floats) -> NDArray[np.bool_]:
        """Whatever is no whole number, or negative."""
        return no_count(values)

    def factors(self, parameters: Tables) -> list[Table]:
        """Twice the rate of 1, minus twice its logarithm of x."""
        rates = np.maximum(parameters["rates"], LEAST_RATE)
        return [2 * rates, -2 * np.log(rates)]

    def update(self, statistics: Tables, features: Features, pooled: Tables | None) -> Tables:
        """Rates are means: ``rate = total / seen``."""
        total, seen = statistics["total"], statistics["seen"]
        return {"rates": where_seen(total, seen, "rates", pooled)}

    def variances(self, parameters: Tables, features: Features) -> Table:
        """Rates."""
        return parameters["rates"]

    def draw(
        self,
        parameters: Tables,
        features: Features,
        labels: NDArray[np.intp],
        rng: np.random.Generator,
    ) -> Table:
        """Draw counts."""
        return rng.poisson(parameters["rates"][labels]).astype(np.float64)
