"""Counts that vary more than those of a Poisson: negative binomial."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.special import gammaln

from vpem._core.families import cell_moments, cell_terms, product_moments
from vpem._core.rising import rising_moments, rising_terms
from vpem.checks import Floats
from vpem.terms.families.counts import LEAST_RATE, no_count
from vpem.terms.families.family import Family, Features, Table, Tables, halfway, where_seen

__all__ = ["LARGEST_SIZE", "LEAST_SIZE", "NegativeBinomial", "size_from"]

LEAST_SIZE, LARGEST_SIZE = 1e-6, 1e8
"""Bounds of sizes; at the larger one counts of a mean below 1000 are Poisson to five digits."""

LOOKED_UP = 64
"""Counts below have tables of their terms."""

HALVINGS = 60
"""Of the range of a logarithm of sizes: to the last digit."""


class NegativeBinomial(Family):
    """Counts with a mean and a size r, ``variance = mean + mean^2 / r``: Poisson as r grows.

    ``f = Gamma(x + r) / (Gamma(r) x!) (r / (r + mean))^r (mean / (r + mean))^x``.

    The likelihood is greatest at the mean of the counts whatever the size. For the size, the sums
    over rows of ``F = log Gamma(x + r) / Gamma(r)`` are needed as a function of ``s = log r``.
    ``F = sum_i log(e^s + i)``, i < x, whose second derivatives ``w (1 - w)``, ``w = r / (r + i)``,
    change by no more than themselves, so that for any step D from where slope F' and curvature F''
    are known

        ``F(s + D) >= F(s) + F' D + F'' (exp(-|D|) - 1 + |D|)``.

    `update` goes where this bound is greatest: a minorise-maximise step (Hunter and Lange, A
    tutorial on MM algorithms, 2004), which never lowers the likelihood. The bound has the slope
    and curvature of the likelihood itself, so that steps converge as Newton's do, and is the
    likelihood where r is large, so that counts that vary no more than those of a Poisson are at
    the largest size in a few steps, where gamma mixtures of Poissons take thousands.
    """

    name = "negative-binomial"
    domains: ClassVar[dict[str, str]] = {"means": "positive", "sizes": "positive"}

    def a_feature(self, features: Features) -> dict[str, NDArray[np.intp]]:
        """A mean and a size."""
        return dict.fromkeys(self.domains, np.ones(features.n_features, dtype=np.intp))

    def n_free(self, features: Features) -> int:
        """Two a feature."""
        return 2 * features.n_features

    def wrong(self, values: Floats) -> NDArray[np.bool_]:
        """Whatever is no whole number, or negative."""
        return no_count(values)

    def ready(self, parameters: Tables, features: Features, dtype: DTypeLike) -> dict[str, Floats]:
        """Terms of counts below `LOOKED_UP`, what larger ones' are made of, and the sizes."""
        means = np.maximum(np.ascontiguousarray(parameters["means"].T), LEAST_RATE)
        sizes = np.clip(np.ascontiguousarray(parameters["sizes"].T), LEAST_SIZE, LARGEST_SIZE)
        shares = np.log1p(means / sizes)
        ahead, slopes = -sizes * shares, np.log(means) - shares
        counts = np.arange(LOOKED_UP, dtype=np.float64)
        rising = _summed(np.log1p(counts[:, None, None] / sizes))
        logs = rising[:-1] + ahead + counts[:, None, None] * slopes
        logs -= gammaln(counts + 1)[:, None, None]
        table = np.zeros((LOOKED_UP * len(sizes) + 2, sizes.shape[1]))
        table[:-2] = -2 * logs.swapaxes(0, 1).reshape(-1, sizes.shape[1])
        base = np.log1p(LOOKED_UP / sizes)
        line = np.stack([rising[-1] - LOOKED_UP * base + ahead, base + slopes], axis=1)
        return {"table": table, "line": -2 * line, "sizes": sizes}

    def add_terms(
        self,
        ready: dict[str, Floats],
        features: Features,
        data: Floats,
        out: Floats,
        n_threads: int,
    ) -> None:
        """Look terms up, or compute them."""
        offsets, firsts = features.blocks.offsets, _firsts(features)
        cell_terms(data, offsets, firsts, ready["table"], out, n_threads)
        rising_terms(data, LOOKED_UP, offsets, ready["line"], ready["sizes"], out, n_threads)

    def empty(self, features: Features, n_components: int) -> Tables:
        """Sums of no rows."""
        names = ("seen", "total", "slopes", "curves", "places", "squares")
        return {name: np.zeros((n_components, features.n_features)) for name in names}

    def add_moments(
        self,
        statistics: Tables,
        ready: dict[str, Floats] | None,
        features: Features,
        data: Floats,
        responsibilities: Floats,
        n_threads: int,
    ) -> None:
        """Add counts, and slope and curvature in ``log r`` at the sizes.

        ``places`` are logarithms of sizes, weighted by curvature: sums at several sizes, of
        batches, are those of one parabola. Where no sizes are known yet they are taken to be 1,
        and squares are added.
        """
        n, n_components = features.n_features, responsibilities.shape[2]
        offsets = features.blocks.offsets
        sizes = np.ones((n, n_components)) if ready is None else ready["sizes"]
        sums, squares = np.zeros((2, 2, n, n_components))
        product_moments(data, responsibilities, offsets, 0, sums, n_threads)
        counts = np.zeros((n * LOOKED_UP, n_components))
        cell_moments(data, responsibilities, offsets, _firsts(features), counts, n_threads)
        below = np.arange(LOOKED_UP, dtype=np.float64)[:, None, None]
        each = np.stack([sizes / (sizes + below), sizes * below / (sizes + below) ** 2], axis=2)
        until = _summed(each)  # what a count of so many adds to slope and curvature
        found = np.zeros((n, 2, n_components))
        heads = np.ascontiguousarray(until[-1])
        rising_moments(data, LOOKED_UP, responsibilities, offsets, sizes, heads, found, n_threads)
        found += np.einsum("jxk,xjdk->jdk", counts.reshape(n, LOOKED_UP, -1), until[:-1])
        statistics["seen"] += sums[0].T
        statistics["total"] += sums[1].T
        statistics["slopes"] += found[:, 0].T
        statistics["curves"] += found[:, 1].T
        statistics["places"] += (found[:, 1] * np.log(sizes)).T
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

    def at(self, centres: Table, features: Features, pooled: Tables) -> Tables:
        """Means halfway between a row and the mean, sizes of all."""
        sizes = np.repeat(pooled["sizes"], len(centres), axis=0)
        return {"means": halfway(centres, pooled["means"]), "sizes": sizes}

    def means(self, parameters: Tables, features: Features) -> Table:
        """Means."""
        return parameters["means"]

    def variances(self, parameters: Tables, features: Features) -> Table:
        """``mean + mean^2 / r``."""
        means = parameters["means"]
        return means + np.square(means) / parameters["sizes"]

    def draw(
        self,
        parameters: Tables,
        features: Features,
        labels: NDArray[np.intp],
        rng: np.random.Generator,
    ) -> Table:
        """Draw counts: of Poissons, whose rates are drawn from a gamma."""
        means, sizes = parameters["means"][labels], parameters["sizes"][labels]
        return rng.poisson(rng.gamma(sizes, means / sizes)).astype(np.float64)


def size_from(statistics: Tables, means: Table) -> Table:
    """Return the sizes (K, n) where the bound is greatest; of statistics as of `NegativeBinomial`.

    In either direction from where slope and curvature are known the bound has one slope that is
    zero at most: as a function of ``exp(-|D|)`` (times that, downwards) it is concave, or convex.
    """
    slopes, curves, seen = statistics["slopes"], statistics["curves"], statistics["seen"]
    place = np.divide(statistics["places"], curves, out=np.zeros_like(curves), where=curves > 0)

    def rises(step: Table) -> NDArray[np.bool_]:
        sizes = np.exp(place + step)
        bent = slopes - curves * np.sign(step) * np.expm1(-np.abs(step))
        return np.asarray(bent >= seen * sizes * np.log1p(means / sizes))

    zero = np.zeros_like(place)
    upwards = rises(zero)
    low = np.where(upwards, zero, np.log(LEAST_SIZE) - place)
    high = np.where(upwards, np.log(LARGEST_SIZE) - place, zero)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        higher = rises(middle)
        low, high = np.where(higher, middle, low), np.where(higher, high, middle)
    return np.clip(np.exp(place + (low + high) / 2), LEAST_SIZE, LARGEST_SIZE)


def _firsts(features: Features) -> NDArray[np.intp]:
    """Where the table of each feature's counts begins."""
    return LOOKED_UP * np.arange(features.n_features + 1, dtype=np.intp)


def _summed(each: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of none, one, two .. of some tables."""
    return np.concatenate([np.zeros_like(each[:1]), np.cumsum(each, axis=0)])
