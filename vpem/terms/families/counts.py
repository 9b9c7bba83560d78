"""Exponential families: log-densities that are linear in a few functions of a value.

Counts are Poisson, or negative binomial where they vary more; numbers that are not negative are
exponential or gamma.
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import numpy as np

from vpem._core.families import cell_moments, product_moments
from vpem._core.rising import rising_moments
from vpem.checks import Floats, Indices, Mask
from vpem.terms.families.family import (
    ABOVE_0,
    Features,
    Independent,
    Part,
    Table,
    Tables,
    where_seen,
)

LEAST_RATE = 1e-300
"""What a rate counts as in a term where it is smaller: zero stays zero in EM, and terms finite."""

LARGEST_COUNT = 2.0**53
"""Whole numbers up to here are all different in double precision."""

LEAST_SIZE, LARGEST_SIZE = 1e-6, 1e8
"""Bounds of sizes; at the larger one counts of a mean below 1000 are Poisson to five digits."""

EDGES = 4.0 ** np.arange(8)
"""From where on curvatures are added up apart: 1 to 3, 4 to 15, .., from 16384 on."""

LOOKED_UP = 64
"""Counts below have tables; one of the edges."""

SMALL, LARGE = EDGES[EDGES < LOOKED_UP], EDGES[EDGES >= LOOKED_UP]

LAST = np.append(EDGES[1:] - 1, np.inf)
"""Largest number of each run that begins at an edge."""

HALVINGS = 60
"""Of the range of a logarithm of sizes: to the last digit."""

LEAST_PART = 1e-9
"""Of the mean of all rows, what a component's is at least: all its values may be 0."""

LEAST_SHAPE, LARGEST_SHAPE = 1e-4, 1e6
"""Bounds of shapes: at the larger one, values vary by a thousandth of their mean."""

STEPS = 6
"""Of Newton's method, whose number of right digits each step doubles at least, from two."""


def _factors(*each: Table) -> dict[str, Floats]:
    """What each function is multiplied by in a term, by function and feature.

    In double precision, as large ones cancel.
    """
    return {"factors": np.ascontiguousarray(np.stack([one.T for one in each]))}


class Poisson(Independent):
    """Counts with a rate: ``log f = x log rate - rate - log x!``."""

    name = "poisson"
    domains: ClassVar[dict[str, str]] = {"rates": "positive"}
    between = (0.0, LARGEST_COUNT)
    values = "counts: 0, 1, 2, ..."
    whole, near_normal = True, np.log1p
    kind = 1

    def ready(self, parameters: Tables, features: Features) -> dict[str, Floats]:
        """Twice the rate of 1, minus twice its logarithm of x."""
        rates = np.maximum(parameters["rates"], LEAST_RATE)
        return _factors(2 * rates, -2 * np.log(rates))

    def update(self, statistics: Tables, features: Features, pooled: Tables | None) -> Tables:
        """Rates are means: ``rate = total / seen``."""
        total, seen = statistics["total"], statistics["seen"]
        return {"rates": where_seen(total, seen, "rates", pooled)}

    def variances(self, part: Part) -> Table:
        return part.tables["rates"]

    def draw(self, part: Part, labels: Indices, rng: np.random.Generator) -> Table:
        return rng.poisson(part.tables["rates"][labels]).astype(np.float64)


class NegativeBinomial(Independent):
    """Counts with a mean and a size r, ``variance = mean + mean^2 / r``: Poisson as r grows.

    ``f = Gamma(x + r) / (Gamma(r) x!) (r / (r + mean))^r (mean / (r + mean))^x``.

    The likelihood is greatest at the mean of the counts whatever the size. For the size, the sums
    over rows of ``F = log Gamma(x + r) / Gamma(r)`` are needed as a function of ``s = log r``.
    ``F = sum_i log(e^s + i)``, i < x, and second derivatives of its parts, ``w (1 - w)`` with
    ``w = r / (r + i)``, change by factors that are monotone in i. Of all i from c to C together,
    with curvature F'' at s, that at s + D is therefore at least what it would be if all i were c
    (D > 0) or C (D < 0), and the slope at least, or at most,

        ``F' + F'' (exp(D) - 1) (c + r) / (c + r exp(D))``, or with C for c.

    `update` goes where the bound of the likelihood that these slopes have is greatest: a
    minorise-maximise step (Hunter and Lange, A tutorial on MM algorithms, 2004), which never
    lowers it. The bound has the slope and curvature of the likelihood, so that steps converge as
    Newton's do; and as c and C are near each other (`EDGES`) it is close to it far away too. Counts
    that vary no more than those of a Poisson are at the largest size in a few steps, where EM by
    gamma mixtures of Poissons takes thousands.
    """

    name = "negative-binomial"
    domains: ClassVar[dict[str, str]] = {"means": "positive", "sizes": "positive"}
    between, values = Poisson.between, Poisson.values
    whole, near_normal = True, np.log1p
    looked_up = LOOKED_UP
    sums: ClassVar[dict[str, int]] = {
        "seen": 1, "total": 1, "slopes": 1, "curves": len(EDGES), "places": 1, "squares": 1,
    }  # fmt: skip

    def ready(self, parameters: Tables, features: Features) -> dict[str, Floats]:
        """Terms of counts below `LOOKED_UP`, what larger ones' are made of, and the sizes."""
        from scipy.special import gammaln

        means = np.maximum(np.ascontiguousarray(parameters["means"].T), LEAST_RATE)
        sizes = np.clip(np.ascontiguousarray(parameters["sizes"].T), LEAST_SIZE, LARGEST_SIZE)
        shares = np.log1p(means / sizes)
        ahead, slopes = -sizes * shares, np.log(means) - shares
        counts = np.arange(LOOKED_UP, dtype=np.float64)
        each = np.log1p(counts[:, None, None] / sizes)
        rising = np.concatenate([np.zeros_like(each[:1]), np.cumsum(each, axis=0)])
        logs = rising[:-1] + ahead + counts[:, None, None] * slopes
        logs -= gammaln(counts + 1)[:, None, None]
        table = np.zeros((LOOKED_UP * len(sizes) + 2, sizes.shape[1]))
        table[:-2] = -2 * logs.swapaxes(0, 1).reshape(-1, sizes.shape[1])
        base = np.log1p(LOOKED_UP / sizes)
        line = np.stack([rising[-1] - LOOKED_UP * base + ahead, base + slopes], axis=1)
        return {"table": table, "line": -2 * line, "sizes": sizes}

    def add_moments(
        self,
        statistics: Tables,
        ready: dict[str, Floats] | None,
        features: Features,
        data: Floats,
        responsibilities: Floats,
        n_threads: int,
    ) -> None:
        """Add counts, and slope and curvatures in ``log r`` at the sizes.

        ``places`` are logarithms of sizes, weighted by curvature: sums at several sizes, of
        batches, are those of one parabola. Where no sizes are known yet they are taken to be 1,
        and squares are added.
        """
        n, n_components = features.n_features, responsibilities.shape[2]
        offsets = features.blocks.offsets
        known = np.ones((n, n_components)) if ready is None else ready["sizes"]
        sizes = known.astype(np.float64, copy=False)
        sums, squares = np.zeros((2, 2, n, n_components))
        product_moments(data, responsibilities, offsets, 0, sums, n_threads)
        counts = np.zeros((n * LOOKED_UP, n_components))
        cell_moments(data, responsibilities, offsets, self.firsts(features), counts, n_threads)
        large = np.zeros((n, len(LARGE), 3, n_components))
        rising_moments(data, LARGE, responsibilities, offsets, sizes, large, n_threads)
        derivatives = _bent(sizes, counts.reshape(n, LOOKED_UP, n_components), large)
        statistics["seen"] += sums[0].T
        statistics["total"] += sums[1].T
        statistics["slopes"] += derivatives[:, 0].T
        statistics["curves"] += derivatives[:, 1:].reshape(-1, n_components).T
        statistics["places"] += (derivatives[:, 1:].sum(axis=1) * np.log(sizes)).T
        if ready is None:
            product_moments(data**2, responsibilities, offsets, 0, squares, n_threads)
            statistics["squares"] += squares[1].T

    def update(self, statistics: Tables, features: Features, pooled: Tables | None) -> Tables:
        """Means, and sizes where the bound is greatest; those of the variances to start with."""
        seen = statistics["seen"]
        means = where_seen(statistics["total"], seen, "means", pooled)
        started = (statistics["places"] == 0) & (statistics["squares"] > 0)
        more = where_seen(statistics["squares"], seen, "means", pooled) - means**2 - means
        first = np.divide(means**2, more, out=np.full_like(more, LARGEST_SIZE), where=more > 0)
        first = np.clip(first, LEAST_SIZE, LARGEST_SIZE)
        sizes = np.where(started, first, size_from(statistics, means))
        if pooled is not None:
            sizes = np.where(seen > 0, sizes, pooled["sizes"])
        return {"means": means, "sizes": sizes}

    def variances(self, part: Part) -> Table:
        means = part.tables["means"]
        return means + np.square(means) / part.tables["sizes"]

    def draw(self, part: Part, labels: Indices, rng: np.random.Generator) -> Table:
        """Draw counts: of Poissons, whose rates are drawn from a gamma."""
        means, sizes = part.tables["means"][labels], part.tables["sizes"][labels]
        return rng.poisson(rng.gamma(sizes, means / sizes)).astype(np.float64)


def size_from(statistics: Tables, means: Table) -> Table:
    """Return the sizes (K, n) where the bound of `NegativeBinomial` is greatest.

    From where slope and curvatures are known it has one peak in the direction in which it rises, as
    far as is known, which is found by halving: of counts of a few far values, drawn at random, none
    had two.
    """
    slopes, seen = statistics["slopes"], statistics["seen"]
    curves = np.maximum(statistics["curves"].reshape(*seen.shape, len(EDGES)), 0)
    whole = curves.sum(axis=2)
    place = np.divide(statistics["places"], whole, out=np.zeros_like(whole), where=whole > 0)
    before = np.exp(place)[..., None]

    def rises(step: Table) -> Mask:
        sizes, moved = np.exp(place + step), step[..., None]
        with np.errstate(invalid="ignore"):
            upwards = (EDGES + before) / (EDGES + sizes[..., None])
            downwards = (LAST + before) / (LAST + sizes[..., None])
        downwards[..., -1] = 1
        bent = curves * np.expm1(moved) * np.where(moved > 0, upwards, downwards)
        slope = slopes + bent.sum(axis=2)
        return np.asarray(slope >= seen * sizes * np.log1p(means / sizes))

    zero = np.zeros_like(place)
    upwards = rises(zero)
    low = np.where(upwards, zero, np.log(LEAST_SIZE) - place)
    high = np.where(upwards, np.log(LARGEST_SIZE) - place, zero)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        higher = rises(middle)
        low, high = np.where(higher, middle, low), np.where(higher, high, middle)
    size: Table = np.clip(np.exp(place + (low + high) / 2), LEAST_SIZE, LARGEST_SIZE)
    return size


def _bent(sizes: Table, counts: Table, large: Table) -> Table:
    """Slope, and curvature of each run of numbers, in ``log r``: (n, 1 + runs, K).

    Sizes are (n, K), responsibilities by count (n, LOOKED_UP, K), and of larger ones (n, P, 3, K)
    as `vpem._core.rising.rising_moments` has them.
    """
    below = np.arange(LOOKED_UP, dtype=np.float64)[:, None, None]
    ratios = sizes / (sizes + below)
    bends = ratios * below / (sizes + below)
    run = np.searchsorted(SMALL, below, side="right") - 1
    each = [ratios] + [np.where(run == one, bends, 0) for one in range(len(SMALL))]
    adds = np.cumsum(np.stack(each, axis=2), axis=0)
    until = np.concatenate([np.zeros_like(adds[:1]), adds])  # what a count of so many adds
    derivatives = np.zeros((len(sizes), 1 + len(EDGES), sizes.shape[1]))
    derivatives[:, : 1 + len(SMALL)] = np.einsum("jxk,xjdk->jdk", counts, until[:-1])
    if not large[:, :, 0].any():
        return derivatives
    # What lies beyond an edge adds all that is below it.
    beyond = np.cumsum(large[:, ::-1, 0], axis=1)[:, ::-1]
    derivatives[:, : 1 + len(SMALL)] += beyond[:, :1] * until[-1]
    for p, (first, last) in enumerate(pairwise(np.append(LARGE, LARGE[-1]))):
        derivatives[:, 0] += large[:, p, 1]
        derivatives[:, 1 + len(SMALL) + p] += large[:, p, 2]
        if p + 1 < len(LARGE):
            # Sums of ``r / (r + i)`` and ``r i / (r + i)^2`` over the whole run of numbers i by
            # series of digamma and trigamma, without what cancels where r is large.
            z = np.stack([1 / (sizes + first), 1 / (sizes + last)])
            digammas = -z / 2 - z**2 / 12 + z**4 / 120 - z**6 / 252  # less logarithms
            trigammas = z + z**2 / 2 + z**3 / 6 - z**5 / 30 + z**7 / 42
            slope = np.log1p((last - first) * z[0]) + digammas[1] - digammas[0]
            bend = sizes * (slope - sizes * (trigammas[0] - trigammas[1]))
            derivatives[:, 0] += beyond[:, p + 1] * (sizes * slope)
            derivatives[:, 1 + len(SMALL) + p] += beyond[:, p + 1] * bend
    return derivatives


class Exponential(Independent):
    """Numbers from 0 up with a mean: ``log f = -log mean - x / mean``."""

    name = "exponential"
    domains: ClassVar[dict[str, str]] = {"means": "positive"}
    between, values = (0.0, np.inf), "numbers that are 0 or above"
    near_normal = np.cbrt  # of Wilson and Hilferty, which 0 has too
    kind = 0

    def ready(self, parameters: Tables, features: Features) -> dict[str, Floats]:
        """Twice the logarithm of the mean of 1, and twice its inverse of x."""
        return _factors(2 * np.log(parameters["means"]), 2 / parameters["means"])

    def update(self, statistics: Tables, features: Features, pooled: Tables | None) -> Tables:
        """Means, at least `LEAST_PART` of that of all rows; 1 where all of these are 0."""
        means = where_seen(statistics["total"], statistics["seen"], "means", pooled)
        if pooled is None:
            return {"means": np.where(means > 0, means, 1.0)}
        return {"means": np.maximum(means, LEAST_PART * pooled["means"])}

    def variances(self, part: Part) -> Table:
        return np.square(part.tables["means"])

    def draw(self, part: Part, labels: Indices, rng: np.random.Generator) -> Table:
        return rng.exponential(part.tables["means"][labels])


class Gamma(Independent):
    """Positive numbers with a mean and a shape a, ``variance = mean^2 / a``.

    ``log f = (a - 1) log x - a x / mean - log Gamma(a) + a log(a / mean)``.
    """

    name = "gamma"
    domains: ClassVar[dict[str, str]] = {"means": "positive", "shapes": "positive"}
    between, values = (ABOVE_0, np.inf), "numbers above 0"
    near_normal = np.cbrt
    kind = 2
    sums: ClassVar[dict[str, int]] = {"seen": 1, "total": 1, "logs": 1}

    def ready(self, parameters: Tables, features: Features) -> dict[str, Floats]:
        """What multiplies 1, x and its logarithm."""
        from scipy.special import gammaln

        means, shapes = parameters["means"], parameters["shapes"]
        rates = shapes / means
        ahead = 2 * (gammaln(shapes) - shapes * np.log(rates))
        return _factors(ahead, 2 * rates, 2 - 2 * shapes)

    def update(self, statistics: Tables, features: Features, pooled: Tables | None) -> Tables:
        """Means, and shapes by their likelihood given these, which is greatest at the mean."""
        seen = statistics["seen"]
        means = where_seen(statistics["total"], seen, "means", pooled)
        some = np.divide(statistics["logs"], seen, out=np.zeros_like(seen), where=seen > 0)
        shapes = shape_of(np.log(means) - some)
        if pooled is not None:
            shapes = np.where(seen > 0, shapes, pooled["shapes"])
        return {"means": means, "shapes": shapes}

    def variances(self, part: Part) -> Table:
        return np.square(part.tables["means"]) / part.tables["shapes"]

    def draw(self, part: Part, labels: Indices, rng: np.random.Generator) -> Table:
        """Draw numbers; those that are too small for a double are the least there is."""
        means, shapes = part.tables["means"][labels], part.tables["shapes"][labels]
        drawn = rng.gamma(shapes, means / shapes)
        return np.maximum(drawn, np.finfo(np.float64).tiny)


def shape_of(gap: Table) -> Table:
    """Return the shape a of a gamma where ``log(mean) - mean(log)`` is so much, within bounds.

    That is the solution of ``log a - digamma(a) = gap``, by the steps of Minka, Estimating a gamma
    distribution (2002): Newton's for a likelihood that has the form ``c0 + c1 a + c2 log a``.
    """
    from scipy.special import digamma, polygamma

    gap = np.maximum(gap, 0.5 / LARGEST_SHAPE)
    shape = (3 - gap + np.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    for _ in range(STEPS):
        shape = np.clip(shape, LEAST_SHAPE, LARGEST_SHAPE)
        slope = np.log(shape) - digamma(shape) - gap
        shape = 1 / (1 / shape + slope / (shape**2 * (1 / shape - polygamma(1, shape))))
    return np.clip(shape, LEAST_SHAPE, LARGEST_SHAPE)
