"""Features with a few values: categories of named levels, and zeros and ones."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import numpy as np

from vpem._core.families import cell_moments
from vpem.checks import Floats, Indices
from vpem.terms.families.family import (
    Features,
    Independent,
    Part,
    Table,
    Tables,
    row_shares,
    where_seen,
)

LEAST_PROBABILITY = 1e-300
"""What a probability counts as in a term where it is smaller.

So small that no evidence of other features brings a level back of which a component has none (as
in textbook EM, where zero stays zero), and that what it adds to a likelihood is below rounding; the
term, 1382, is still no larger than those of points a few dozen standard deviations away.
"""


class Levels(Independent):
    """Features that have one of some levels, with a probability each.

    A level that no row of the fit had is as improbable in every component: it changes no
    responsibility, and the log-likelihood tells of it.
    """

    whole = has_levels = True
    counted: ClassVar[str]
    """Statistic that has responsibilities of the rows with each level, or with a one."""

    def ready(self, parameters: Tables, features: Features) -> dict[str, Floats]:
        """Minus twice the logarithms, a row a level; one for missing values, one for no level."""
        levels = parameters["probabilities"]
        if self.each == "feature":  # of ones: those of zeros stand before each
            levels = np.stack([1 - levels, levels], axis=2).reshape(len(levels), -1)
        probabilities = np.maximum(levels.T, LEAST_PROBABILITY)
        table = np.full(
            (len(probabilities) + 2, probabilities.shape[1]), -2 * np.log(LEAST_PROBABILITY)
        )
        table[:-2] = -2 * np.log(probabilities)
        table[-2] = 0
        return {"table": table}

    def add_moments(
        self,
        statistics: Tables,
        ready: dict[str, Floats] | None,
        features: Features,
        data: Floats,
        responsibilities: Floats,
        n_threads: int,
    ) -> None:
        """Add responsibilities of the rows that have each level, and of those that have any."""
        firsts = self.firsts(features)
        cells = np.zeros((int(firsts[-1]), responsibilities.shape[2]))
        cell_moments(data, responsibilities, features.blocks.offsets, firsts, cells, n_threads)
        statistics[self.counted] += cells.T if self.each == "level" else cells.T[:, 1::2]
        statistics["seen"] += np.add.reduceat(cells.T, firsts[:-1], axis=1)

    def update(self, statistics: Tables, features: Features, pooled: Tables | None) -> Tables:
        """Probabilities as levels are counted: ``p_l = counts_l / seen``."""
        counts, seen = statistics[self.counted], statistics["seen"]
        if self.each == "level":
            seen = np.repeat(seen, features.n_levels, axis=1)
        probabilities = where_seen(counts, seen, "probabilities", pooled)
        return {"probabilities": np.minimum(probabilities, 1.0)}


class Categorical(Levels):
    """Categories: codes 0 .. L - 1 with a probability each, as in latent class analysis."""

    name = "categorical"
    values = "codes from 0 to one less than there are levels"
    domains: ClassVar[dict[str, str]] = {"probabilities": "simplex"}
    each = "level"
    between = (0.0, np.inf)
    sums: ClassVar[dict[str, int]] = {"seen": 1, "counts": 0}
    counted = "counts"

    def start_near(self, centres: Table, features: Features, pooled: Tables) -> Tables:
        """Half of a row's own level, half of all rows'."""
        probabilities = np.repeat(pooled["probabilities"], len(centres), axis=0)
        shares = row_shares(len(centres))[:, 0]
        firsts = features.level_offsets
        for k, j in np.argwhere(~np.isnan(centres)):
            probabilities[k, firsts[j] : firsts[j + 1]] *= 1 - shares[k]
            probabilities[k, firsts[j] + int(centres[k, j])] += shares[k]
        return {"probabilities": probabilities}

    def means(self, part: Part) -> Table:
        """Level that is most probable, the first of them."""
        probabilities, features = part.tables["probabilities"], part.features
        runs = pairwise(features.level_offsets)
        modes = np.array([probabilities[:, i:j].argmax(axis=1) for i, j in runs], dtype=np.float64)
        return modes.reshape(features.n_features, len(probabilities)).T

    def variances(self, part: Part) -> Table:
        squares = np.square(part.tables["probabilities"])
        variances: Table = 1 - np.add.reduceat(squares, part.features.level_offsets[:-1], axis=1)
        return variances

    def draw(self, part: Part, labels: Indices, rng: np.random.Generator) -> Table:
        """Draw levels by inversion of each component's distribution."""
        probabilities, features = part.tables["probabilities"], part.features
        drawn = np.empty((len(labels), features.n_features))
        members = [np.flatnonzero(labels == k) for k in range(len(probabilities))]
        for j in range(features.n_features):
            levels = slice(*features.level_offsets[j : j + 2])
            points = rng.random(len(labels))
            for rows, chances in zip(members, probabilities[:, levels], strict=True):
                below = np.cumsum(chances)[:-1] / chances.sum()
                drawn[rows, j] = np.searchsorted(below, points[rows], side="right")
        return drawn


class Bernoulli(Levels):
    """Zeros and ones, with the probability of a one."""

    name = "bernoulli"
    values = "0 or 1"
    domains: ClassVar[dict[str, str]] = {"probabilities": "probability"}
    between = (0.0, 1.0)
    looked_up = 2
    sums: ClassVar[dict[str, int]] = {"seen": 1, "ones": 1}
    counted = "ones"

    def variances(self, part: Part) -> Table:
        ones = part.tables["probabilities"]
        return ones * (1 - ones)

    def draw(self, part: Part, labels: Indices, rng: np.random.Generator) -> Table:
        chances = part.tables["probabilities"][labels]
        return (rng.random(chances.shape) < chances).astype(np.float64)
