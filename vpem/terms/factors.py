"""Hubs that share factors: the E-step on sums of what they know, and the M-step of each.

The M-step of a hub is the regression of its own features on ``[1, E f]``, with ``cov f`` added to
the second moments of the factors (Ghahramani and Hinton 1996). See `vpem.terms.loadings` for what
is summed.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.terms.covariances import Factors, block_views
from vpem.terms.factor_mixture import FactorMixture
from vpem.terms.features import FeatureTerms
from vpem.terms.loadings import LoadedFactors, Posterior
from vpem.terms.mixture import Mixture
from vpem.terms.statistics import Statistics

START = 2.0
"""What all features together know of a factor at a start, in what is known before them."""

TILE_BYTES = 1 << 19
"""Size aimed at for what is computed of a tile of rows, so that it stays in cache."""

Vector = NDArray[np.float64]


@dataclass
class FactorStatistics(Statistics):
    """Expected sufficient statistics of rows and their factors."""

    scores: Vector  # (R, K, q) ``sum g E f``
    squares: Vector  # (R, K, q, q) ``sum g E f f'``, which is ``sum g (E f E f' + B)``
    products: Vector  # (K, d, q) ``sum g (x - shift) E f'``

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take."""
        own = (self.scores, self.squares, self.products)
        return super().nbytes + sum(part.nbytes for part in own)

    def add(self, other: Statistics, times: float = 1.0) -> None:
        """Add so many times the statistics of other rows about the same shift."""
        assert isinstance(other, FactorStatistics)
        super().add(other, times)
        self.scores += times * other.scores
        self.squares += times * other.squares
        self.products += times * other.products

    def scale(self, factor: float) -> None:
        """Multiply all of it."""
        super().scale(factor)
        for part in (self.scores, self.squares, self.products):
            part *= factor


class FactorTerms(FeatureTerms):
    """Terms of hubs whose features have factors in common; the parameters are of `FeatureTerms`.

    Attributes
    ----------
    n_factors : int
        Number of factors, q.
    directions : ndarray of shape (K, d, q)
        Random numbers of which loadings of a start are made, in block order.
    """

    directions: Vector

    def __init__(self, *arguments: Any, n_factors: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.n_factors = n_factors

    def blank(self, n_components: int) -> FactorMixture:
        """Return a mixture of so many components with everything but parameters."""
        plain = super().blank(n_components)
        loadings = np.broadcast_to(0.0, (*plain.means.shape, self.n_factors))
        return FactorMixture(**vars(plain), loadings=loadings)

    def drawn(self, rng: np.random.Generator, n_components: int, columns: NDArray[np.intp]) -> Self:
        """Return the same terms, which start at loadings of their own.

        All agents draw alike, for all features; ``columns`` (d,) are those of this process as the
        user numbers them, in block order.
        """
        chosen = copy(self)
        shape = (n_components, self.n_features, self.n_factors)
        chosen.directions = rng.standard_normal(shape)[:, columns]
        return chosen

    # ---- E-step --------------------------------------------------------------------------------

    def prepare(self, mixture: Mixture) -> LoadedFactors:
        """Factor every block of the noise, and project the loadings."""
        assert isinstance(mixture, FactorMixture)
        return LoadedFactors.of(mixture, self.rows.dtype)

    def local(self, factors: Factors, rows: slice) -> Floats:
        """Return c and u of each hub for these rows, (B, m, K + K q)."""
        assert isinstance(factors, LoadedFactors)
        onto = factors.projected(self.rows.read(rows))
        return np.concatenate([super().local(factors, rows), onto], axis=2)

    def take(
        self,
        mixture: Mixture,
        factors: LoadedFactors,
        posterior: Posterior,
        total: Floats,
        onto: Floats,
        rows: slice,
        statistics: FactorStatistics | None,
    ) -> Vector:
        """Find what follows from the sums of some rows: their log-likelihood (R,), and statistics.

        ``total`` (R, m, K) are sums C, of which the same may have been taken off all components of
        a row, ``onto`` (R, m, K q) sums U.
        """
        expected, explained = posterior.explain(onto)
        left = np.ascontiguousarray(total - explained)
        responsibilities, found = self.responsibilities(mixture, left, rows)
        if statistics is not None:
            self.summarize(statistics, responsibilities, rows)
            self._correlate(statistics, factors, posterior, responsibilities, expected, rows)
        return found

    def _correlate(
        self,
        statistics: FactorStatistics,
        factors: LoadedFactors,
        posterior: Posterior,
        responsibilities: Floats,
        expected: Floats,
        rows: slice,
    ) -> None:
        """Add moments of the factors, and of features with them."""
        n_roots, m, k, q = expected.shape
        weighted = expected * responsibilities[..., None]
        scores = weighted.sum(axis=1, dtype=np.float64)
        counts = responsibilities.sum(axis=1, dtype=np.float64)
        statistics.scores += scores
        each = weighted.transpose(0, 2, 3, 1) @ expected.swapaxes(1, 2)
        statistics.squares += each + counts[..., None, None] * posterior.covariances
        centred = self.rows.read(rows) - factors.centre
        flat = weighted.reshape(n_roots, m, k * q)
        away = factors.centre.astype(np.float64) - statistics.shifts
        products = statistics.products
        products += away[..., None] * self._of_feature(scores)
        if n_roots == 1:
            products += (centred.T @ flat[0]).reshape(-1, k, q).swapaxes(0, 1)
            return
        for columns, hubs, width in self.blocks.bands:
            own = centred[:, columns].reshape(m, -1, width).transpose(1, 2, 0)
            products[:, columns] += (own @ flat[hubs]).reshape(-1, k, q).swapaxes(0, 1)

    def sweep_factors(
        self,
        mixture: Mixture,
        factors: LoadedFactors,
        posterior: Posterior,
        mix: Vector,
        statistics: FactorStatistics | None = None,
    ) -> Vector:
        """Take the sums ``mix @ local`` and all that depends on them, a tile of rows at a time."""
        k, q, n_hubs = mixture.n_components, self.n_factors, self.blocks.n_blocks
        found = np.zeros(len(mix))
        shared = len(mix) == 1 and bool((mix == 1).all())
        a_row = self.blocks.n_features + k * (n_hubs + 4 * q)
        step = max(64, TILE_BYTES // (self.itemsize * a_row * (1 if shared else n_hubs)))
        matrix: Any = mix.astype(self.rows.dtype, copy=False)
        for run in self.chunks(a_row):
            for begin in range(run.start, run.stop, step):
                rows = slice(begin, min(begin + step, run.stop))
                if shared:
                    own = FeatureTerms.local(self, factors, rows)
                    distances: Floats = own.sum(axis=0, keepdims=True)
                    onto = factors.projected_together(self.rows.read(rows))
                else:
                    every: Any = np.tensordot(matrix, self.local(factors, rows), axes=1)
                    distances, onto = every[..., :k], every[..., k:]
                found += self.take(mixture, factors, posterior, distances, onto, rows, statistics)
        return found

    # ---- M-step --------------------------------------------------------------------------------

    def empty_factors(self, mixture: Mixture, n_roots: int) -> FactorStatistics:
        """Statistics of no rows about the means of a mixture."""
        plain = self.empty(mixture.means, n_roots)
        k, d, q = mixture.n_components, self.blocks.n_features, self.n_factors
        return FactorStatistics(
            **vars(plain),
            scores=np.zeros((n_roots, k, q)),
            squares=np.zeros((n_roots, k, q, q)),
            products=np.zeros((k, d, q)),
        )

    def update(self, statistics: Statistics) -> Mixture:
        """Parameters from the statistics: own features regressed on ``[1, E f]``.

        Those of a start, whose rows have no factors yet, are without (see `begun`).
        """
        plain = super().update(statistics)
        if not isinstance(statistics, FactorStatistics):
            return plain
        counts = statistics.counts
        used = (counts > 0)[..., None]
        n = np.where(used, counts[..., None], 1.0)
        means = statistics.scores / n
        squares = statistics.squares / n[..., None] - means[..., None] * means[..., None, :]
        squares = np.where(used[..., None], squares, np.eye(self.n_factors))
        of_feature = self._of_feature
        own, centres = of_feature(n)[..., 0], of_feature(means)
        about = statistics.first / own
        crossed = statistics.products / own[..., None] - about[..., None] * centres
        inverse: Any = np.linalg.inv(squares)
        loadings = (crossed[..., None, :] @ of_feature(inverse))[..., 0, :]
        shifted = (loadings * centres).sum(axis=2)
        covariances = self._unexplained(plain.covariances, loadings, crossed, counts)
        return FactorMixture(
            self.blocks, self.covariance_type, plain.weights, plain.means - shifted, covariances,
            self.scaling, loadings,
        )  # fmt: skip

    def _of_feature(self, per_root: Vector) -> Vector:
        """Expand what each root holds, (R, K, ...), to what each feature sees, (K, d or 1, ...)."""
        if len(per_root) == 1:
            return per_root.swapaxes(0, 1)
        expanded: Vector = per_root[self.blocks.block_of]
        return expanded.swapaxes(0, 1)

    def _unexplained(
        self, covariances: Vector, loadings: Vector, crossed: Vector, counts: Vector
    ) -> Vector:
        """Take what the factors explain off covariances of the features."""
        k = len(loadings)
        if self._is_tied:
            shares = self.blocks.of_feature(counts)
            shares = shares / shares.sum(axis=0)
            loadings = loadings * shares[..., None]
        if self._is_diagonal:
            explained: Vector = (loadings * crossed).sum(axis=2)
            if self._is_tied:
                explained = explained.sum(axis=0, keepdims=True)
            if self.covariance_type.endswith("spherical"):
                for columns, hubs, width in self.blocks.bands:
                    shape = (len(explained), hubs.stop - hubs.start, width)
                    mean = explained[:, columns].reshape(shape).mean(axis=2)
                    explained[:, columns] = np.repeat(mean, width, axis=1)
            unexplained: Vector = covariances - explained
            return unexplained
        found = covariances.copy()
        copies = 1 if self._is_tied else k
        for columns, count, width, view in self._banded(found, copies):
            left, right = (
                part[:, columns].reshape(k, count, width, -1).swapaxes(0, 1)
                for part in (loadings, crossed)
            )
            explained = left @ right.swapaxes(2, 3)
            explained = 0.5 * (explained + explained.swapaxes(2, 3))
            view -= explained.sum(axis=1, keepdims=True) if self._is_tied else explained
        return found

    def keep(self, mixture: Mixture, before: Mixture, hubs: NDArray[np.bool_]) -> Mixture:
        """Return the mixture with the parameters that these hubs (B,) had before."""
        assert isinstance(mixture, FactorMixture)
        assert isinstance(before, FactorMixture)
        columns = hubs[self.blocks.block_of][:, None]
        loadings = np.where(columns, before.loadings, mixture.loadings)
        kept = super().keep(mixture, before, hubs)
        assert isinstance(kept, FactorMixture)
        return replace(kept, loadings=loadings)

    # ---- starts and repairs ---------------------------------------------------------------------

    def begun(self, start: Mixture) -> Mixture:
        """Return a start, which gets loadings that were drawn if it has none.

        In standard deviations of each hub's features, made white, they are normal: G is about
        `START`. Without loadings EM would stay without.
        """
        if isinstance(start, FactorMixture):
            return start
        return FactorMixture(
            start.blocks, start.covariance_type, start.weights, start.means,
            start.covariances, start.scaling, self._spread(start, self.directions),
        )  # fmt: skip

    def _spread(self, mixture: Mixture, directions: Vector) -> Vector:
        """Directions (K, d, q) in the units of each hub's covariances, made small."""
        size = np.sqrt(START / self.n_features)
        if self._is_diagonal:
            deviations: Vector = np.sqrt(np.maximum(mixture.covariances, 0.0))[..., None]
            spread: Vector = size * deviations * directions
            return spread
        found = np.zeros_like(directions)
        for b, view in enumerate(
            block_views(mixture.covariances, self.blocks.widths, mixture.n_copies)
        ):
            part = slice(self.blocks.offsets[b], self.blocks.offsets[b + 1])
            values, vectors = np.linalg.eigh(view)
            root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None]
            found[:, part] = size * root @ vectors.swapaxes(1, 2) @ directions[:, part]
        return found

    def reseeded(self, mixture: Mixture, component: int, centre: Vector, weight: float) -> Mixture:
        """Place one component anew, with the loadings that it began with."""
        placed = super().reseeded(mixture, component, centre, weight)
        assert isinstance(placed, FactorMixture)
        loadings = placed.loadings.copy()
        loadings[component] = self._spread(placed, self.directions)[component]
        return replace(placed, loadings=loadings)
