"""EM over features with noise in every M-step: what is published of it tells little of one row.

Terms are summed and responsibilities found as ever. Then every hub clips its rows and adds noise to
its moments, and whoever has the sum adds noise to the counts, once for all: parameters are made of
noisy numbers alone, each iteration's of those before it and of one *release*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from vpem.engines.engine import about
from vpem.errors import InputError
from vpem.network.blocks import Blocks
from vpem.network.noise import Noise
from vpem.steps.summing import FARTHEST, Differences, begin_differences
from vpem.sums.sum import Sum
from vpem.terms.clipped import Clip, ClippedMoments, floored, moved, n_moments
from vpem.terms.covariances import is_diagonal
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture

__all__ = ["NoisyEM"]

Vector = NDArray[np.float64]

MOST_BITS, LEAST_BITS = 40, 30
"""Fraction bits of the integers that moments are rounded to: as many as leave room for all rows."""

ROOM = 61
"""Bits of the largest sum that is drawn on."""

LONGEST_CHUNK = 1 << 21
"""Rows that are added up at a time, at most."""


@dataclass
class NoisyEM:
    """A fit of a mixture to features, of which the parameters are private.

    Attributes
    ----------
    terms : FeatureTerms
        Of the hubs of this process.
    total : Sum
        How terms are summed: exactly, so that all have the same responsibilities.
    blocks : Blocks
        Of all processes.
    box : ndarray of shape (2, d)
        Bounds of the features of this process, in block order.
    n_components : int
        Number of components, K.
    noise_seed : int or None
        Of noise that can be repeated, and gives no privacy; None: of the system.
    n_clipped : int
        Values of this process found beyond the bounds.
    """

    terms: FeatureTerms
    total: Sum
    blocks: Blocks
    box: Vector
    n_components: int
    noise_seed: int | None = None
    n_clipped: int = 0

    def __post_init__(self) -> None:
        n_rows = self.terms.n_samples
        self.fraction_bits = min(MOST_BITS, ROOM - n_rows.bit_length())
        if self.fraction_bits < LEAST_BITS:
            raise InputError(
                f"sums over {n_rows} rows are beyond the integers that noise is drawn on; give "
                f"fewer than {1 << (ROOM - LEAST_BITS)}"
            )
        hubs = self.total.holders.own.tolist()
        self._noise = [Noise(self.noise_seed, hub + 1) for hub in hubs]
        self._noise_of_counts = Noise(self.noise_seed, 0)

    def scale(self, multiplier: float) -> int:
        """Return the scale of noise, in units of the integers, for a noise multiplier.

        What a row can move is 1 in real numbers. Rounding each of P numbers to an integer adds
        sqrt(P) of these, and floating-point sums of M vectors of norm 1 err by at most
        ``(longest chunk + chunks) eps M``, four times as the sums of squares have it.
        """
        n_rows, width = self.terms.n_samples, self.n_numbers
        chunks = min(n_rows, LONGEST_CHUNK) + n_rows / 64 + 100
        slack = sqrt(width) * 2.0**-self.fraction_bits + 4 * n_rows * chunks * 2.0**-53
        return ceil(multiplier * (1 + slack) * 2.0**self.fraction_bits)

    @property
    def n_numbers(self) -> int:
        """Numbers of a release, of all processes, P."""
        kind, k = self.terms.covariance_type, self.n_components
        second = sum(n_moments(int(width), kind) for width in self.blocks.widths)
        return int(k * (1 + self.blocks.n_features + second))

    def start(self, multiplier: float, rng: np.random.Generator) -> Mixture:
        """Return parameters to start from: all moments once, with noise, and directions drawn.

        Means lie one standard deviation a feature from the noisy mean of all rows, in directions
        that are as different as can be; every covariance is the noisy one of all rows.

        Parameters
        ----------
        multiplier : float
            Noise multiplier of the moments.
        rng : Generator
            The stream that all processes share, by which directions are drawn; no row is.
        """
        terms, widths = self.terms, self.blocks.widths
        half = 0.5 * (self.box[1] - self.box[0])
        if terms.covariance_type.endswith("spherical"):
            half = np.array([half[columns].max(initial=0.0) for columns in self._columns])[
                terms.blocks.block_of
            ]
        middle = self.box.mean(axis=0)
        spread = (0.5 * half) ** 2
        if not is_diagonal(terms.covariance_type):
            parts = [np.diag(spread[columns]).ravel() for columns in self._columns]
            one = np.concatenate([np.empty(0), *parts])
        else:
            one = spread[None]
        box = Mixture(
            terms.blocks, terms.covariance_type, np.ones((1, 1)), middle[None], one, terms.scaling
        )
        clip = Clip.of_box(widths, terms.covariance_type).only(self.total.holders.own)
        moments = ClippedMoments(box, clip)
        for rows in terms.chunks(terms.blocks.n_features):
            data = self._clipped(rows, count=True)
            moments.add(data, np.ones((len(data), 1)))
        counts = np.array([float(terms.n_samples)])
        found = self._with_noise(moments, self.scale(multiplier))
        whole = moved(moments, counts, found, self.box, terms.reg_covar)
        return self._apart(whole, _directions(self.n_components, self.blocks.n_features, rng))

    @property
    def _columns(self) -> list[slice]:
        return [slice(*pair) for pair in pairwise(self.terms.blocks.offsets.tolist())]

    def _apart(self, whole: Mixture, directions: Vector) -> Mixture:
        """Return K components about the mean of one, in these directions (K, d), block order."""
        k, offsets = self.n_components, self.blocks.offsets
        parts = [directions[:, offsets[b] : offsets[b + 1]] for b in self.total.holders.own]
        own = np.concatenate([np.empty((k, 0)), *parts], axis=1)
        terms = self.terms.with_sample_covariance(whole.covariances)
        start = terms.start(np.repeat(whole.means, k, axis=0))
        for b, columns in enumerate(self._columns):
            if whole.is_diagonal:
                step = own[:, columns] * np.sqrt(whole.covariances[0, columns])
            else:
                step = own[:, columns] @ np.linalg.cholesky(whole.covariance_blocks[b][0]).T
            start.means[:, columns] += step
        np.clip(start.means, self.box[0], self.box[1], out=start.means)
        return start

    def iterate(
        self,
        mixture: Mixture,
        multipliers: Sequence[float],
        callback: Callable[[int], None] | None = None,
    ) -> Mixture:
        """Run as many iterations as there are noise multipliers.

        Parameters
        ----------
        mixture : Mixture
            Parameters to start from, which may depend on the data by releases only.
        multipliers : sequence of float
            Of the release of each iteration.
        callback : callable, optional
            Gets the number of each iteration that is over.
        """
        terms, total = self.terms, self.total
        clip = Clip.of(self.blocks.widths, terms.covariance_type, self.n_components)
        clip = clip.only(total.holders.own)
        for iteration, multiplier in enumerate(multipliers, 1):
            moments = ClippedMoments(mixture, clip)
            factors = terms.prepare(mixture)
            begin_differences(total, "estep", terms.n_samples, self.n_components, terms.itemsize)
            local = lambda rows, made=factors: terms.local(made, rows)  # noqa: E731
            differ = Differences(terms, total, self.n_components, local, FARTHEST[terms.itemsize])
            for rows, sums in differ:
                shares = terms.responsibilities(mixture, sums, rows)[0][0].astype(np.float64)
                shares /= shares.sum(axis=1, keepdims=True)
                moments.add(self._clipped(rows), shares)
            scale = self.scale(multiplier)
            counts = self._counts(moments, scale)
            found = self._with_noise(moments, scale)
            mixture = moved(moments, counts, found, self.box, terms.reg_covar)
            if callback is not None:
                callback(iteration)
        return mixture

    def _clipped(self, rows: slice, *, count: bool = False) -> Vector:
        """Return some rows inside the bounds, in block order."""
        data = self.terms.rows.read(rows).astype(np.float64)
        inside = np.clip(data, self.box[0], self.box[1])
        if count:
            self.n_clipped += int(np.count_nonzero(inside != data))
        return inside

    def _counts(self, moments: ClippedMoments, scale: int) -> Vector:
        """Return noisy counts (K,), the same everywhere: integers, as others get them."""
        factor, holders = moments.clip.counts, self.total.holders
        noisy = np.zeros(self.n_components, dtype=np.int64)
        if holders.engine.rank == 0:
            noisy = self._noisy(factor * moments.counts, scale, self._noise_of_counts)
        with about(holders.engine, "flooding"):
            noisy = holders.allreduce(noisy)
        self.total.agree("flooding", noisy.nbytes)
        return floored(self._values(noisy) / factor, self.terms.n_samples)

    def _with_noise(self, moments: ClippedMoments, scale: int) -> list[Vector]:
        """Return every block's moments with noise of its own hub."""
        every = enumerate(self._noise)
        return [self._values(self._noisy(moments.block(b), scale, own)) for b, own in every]

    def _noisy(self, values: Vector, scale: int, noise: Noise) -> NDArray[np.int64]:
        """Round values to integers, and add noise to them."""
        exact = np.rint(np.ldexp(values, self.fraction_bits)).astype(np.int64)
        return exact + noise.gaussian(scale, len(exact))

    def _values(self, noisy: NDArray[np.int64]) -> Vector:
        """Return what integers stand for."""
        return np.ldexp(noisy.astype(np.float64), -self.fraction_bits)


def _directions(n_components: int, n_features: int, rng: np.random.Generator) -> Vector:
    """Draw directions (K, d) of length sqrt(d), at right angles before their mean is taken off."""
    drawn = rng.standard_normal((n_features, n_components))
    if n_components <= n_features:
        drawn = np.linalg.qr(drawn)[0]
    found = drawn.T - (drawn.mean(axis=1) if n_components > 1 else 0.0)
    length = np.linalg.norm(found, axis=1, keepdims=True)
    made: Vector = found * (sqrt(n_features) / np.maximum(length, 1e-300))
    return made
