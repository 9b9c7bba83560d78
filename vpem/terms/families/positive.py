"""Numbers that are not negative: exponential and gamma."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.terms.families.family import Features, Table, Tables, where_seen
from vpem.terms.families.products import Products

LEAST_PART = 1e-9
"""Of the mean of all rows, what a component's is at least: all its values may be 0."""

LEAST_SHAPE, LARGEST_SHAPE = 1e-4, 1e6
"""Bounds of shapes: at the larger one, values vary by a thousandth of their mean."""

STEPS = 6
"""Of Newton's method, whose number of right digits each step doubles at least, from two."""


class Exponential(Products):
    """Numbers from 0 up with a mean: ``log f = -log mean - x / mean``."""

    name = "exponential"
    domains: ClassVar[dict[str, str]] = {"means": "positive"}
    kind = 0

    def wrong(self, values: Floats) -> NDArray[np.bool_]:
        """Whatever is negative, or infinite."""
        return np.asarray(~(np.isfinite(values) & (values >= 0)))

    def factors(self, parameters: Tables) -> list[Table]:
        """Twice the logarithm of the mean of 1, and twice its inverse of x."""
        return [2 * np.log(parameters["means"]), 2 / parameters["means"]]

    def update(self, statistics: Tables, features: Features, pooled: Tables | None) -> Tables:
        """Means, at least `LEAST_PART` of that of all rows; 1 where all of these are 0."""
        found = where_seen(statistics["total"], statistics["seen"], "means", pooled)
        if pooled is None:
            return {"means": np.where(found > 0, found, 1.0)}
        return {"means": np.maximum(found, LEAST_PART * pooled["means"])}

    def variances(self, parameters: Tables, features: Features) -> Table:
        """Squares of the means."""
        return np.square(parameters["means"])

    def draw(
        self,
        parameters: Tables,
        features: Features,
        labels: NDArray[np.intp],
        rng: np.random.Generator,
    ) -> Table:
        """Draw numbers."""
        return rng.exponential(parameters["means"][labels])


class Gamma(Products):
    """Positive numbers with a mean and a shape a, ``variance = mean^2 / a``.

    ``log f = (a - 1) log x - a x / mean - log Gamma(a) + a log(a / mean)``.
    """

    name = "gamma"
    domains: ClassVar[dict[str, str]] = {"means": "positive", "shapes": "positive"}
    kind = 2
    sums = ("seen", "total", "logs")

    def wrong(self, values: Floats) -> NDArray[np.bool_]:
        """Whatever is not positive, or infinite; the density of 0 is 0 or infinite."""
        return np.asarray(~(np.isfinite(values) & (values > 0)))

    def factors(self, parameters: Tables) -> list[Table]:
        """What multiplies 1, x and its logarithm."""
        from scipy.special import gammaln

        means, shapes = parameters["means"], parameters["shapes"]
        rates = shapes / means
        return [2 * (gammaln(shapes) - shapes * np.log(rates)), 2 * rates, 2 - 2 * shapes]

    def update(self, statistics: Tables, features: Features, pooled: Tables | None) -> Tables:
        """Means, and shapes by their likelihood given these, which is greatest at the mean."""
        seen = statistics["seen"]
        means = where_seen(statistics["total"], seen, "means", pooled)
        some = np.divide(statistics["logs"], seen, out=np.zeros_like(seen), where=seen > 0)
        shapes = shape_of(np.log(means) - some)
        if pooled is not None:
            shapes = np.where(seen > 0, shapes, pooled["shapes"])
        return {"means": means, "shapes": shapes}

    def variances(self, parameters: Tables, features: Features) -> Table:
        """``mean^2 / a``."""
        return np.square(parameters["means"]) / parameters["shapes"]

    def draw(
        self,
        parameters: Tables,
        features: Features,
        labels: NDArray[np.intp],
        rng: np.random.Generator,
    ) -> Table:
        """Draw numbers; those that are too small for a double are the least there is."""
        means, shapes = parameters["means"][labels], parameters["shapes"][labels]
        drawn = rng.gamma(shapes, means / shapes)
        return np.maximum(drawn, np.finfo(np.float64).tiny)


def shape_of(gap: Table) -> Table:
    """Return the shape a of a gamma where ``log(mean) - mean(log)`` is so much, within bounds.

    That is the solution of ``log a - digamma(a) = gap``, by the steps of Minka, Estimating a gamma
    distribution (2002): Newton's for a likelihood that has the form ``c0 + c1 a + c2 log a``.
    """
    from scipy.special import digamma, polygamma

    gap = np.maximum(gap, 0.5 / LARGEST_SHAPE)
    found = (3 - gap + np.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    for _ in range(STEPS):
        found = np.clip(found, LEAST_SHAPE, LARGEST_SHAPE)
        slope = np.log(found) - digamma(found) - gap
        found = 1 / (1 / found + slope / (found**2 * (1 / found - polygamma(1, found))))
    return np.clip(found, LEAST_SHAPE, LARGEST_SHAPE)
