"""Factors that hubs share: a mixture whose components correlate across hubs, and its E- and M-step.

Given its own features alone hub b has of the factors of component k the precision ``G_b = L_b'
Psi_b^-1 L_b`` and of a row ``u_b = L_b' Psi_b^-1 (x_b - mu_b)``, beside the noise's term ``c_b =
(x_b - mu_b)' Psi_b^-1 (x_b - mu_b) + log|Psi_b|``. All three add up over hubs. With their sums G,
U, C and ``B = (I + G)^-1``:

    -2 log p(x) = C - U' B U - log|B| + d log 2 pi,   E f = B U,   cov f = B

which is the identity of Woodbury for a covariance ``L L' + Psi`` with block-diagonal Psi.

The M-step of a hub is the regression of its own features on ``[1, E f]``, with ``cov f`` added to
the second moments of the factors (Ghahramani and Hinton 1996).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import DTypeLike

from vpem.checks import Doubles, Floats, Indices, Mask, Matrix
from vpem.errors import InputError
from vpem.network.partition import Blocks
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Factors, Mixture, block_views, factorise
from vpem.terms.statistics import Statistics
from vpem.terms.units import Scaling

FACTS = "{n_components:component}, {n_features:feature}, {covariance_type}, {n_factors:factor}"

START = 2.0
"""What all features together know of a factor at a start, in what is known before them."""

TILE_BYTES = 1 << 19
"""Size aimed at for what is computed of a tile of rows, so that it stays in cache."""


@dataclass(frozen=True)
class LoadedFactors(Factors):
    """What the E-step needs of a mixture with factors; of its noise as `Factors` has it."""

    blocks: Blocks
    projections: Floats  # (d, K q) ``Psi^-1 L``, in block order
    centre: Floats  # (d,) near to all means; taken off rows before they are projected
    offsets: Floats  # (B, K q) ``L' Psi^-1 (mu - centre)`` of each hub
    grams: Doubles  # (B, K, q, q) ``G = L' Psi^-1 L`` of each hub, in float64

    @classmethod
    def from_mixture(cls, mixture: FactorMixture, dtype: DTypeLike) -> Self:
        """Factor every block of the noise, and project the loadings."""
        blocks, (k, d, q) = mixture.blocks, mixture.loadings.shape
        factors, tied = factorise(mixture, np.float64), mixture.is_tied
        projections = np.empty((d, k, q))
        grams = np.zeros((blocks.n_blocks, k, q, q))
        offsets = np.zeros((blocks.n_blocks, k, q))
        centre = mixture.means.mean(axis=0)
        lower: list[Doubles] = []
        if not mixture.is_diagonal:
            lower = block_views(factors.inverse.astype(np.float64), blocks.widths, mixture.n_copies)
        for columns, hubs, width in blocks.bands:
            shape = (k, hubs.stop - hubs.start, width)
            loadings = mixture.loadings[:, columns].reshape(*shape, q).swapaxes(0, 1)
            if lower:
                root = np.stack(lower[hubs])
                white = root @ loadings
                scaled = root.swapaxes(2, 3) @ white
            else:
                inverse = np.sqrt(factors.inverse[:, columns].astype(np.float64))
                root = inverse.reshape(1 if tied else k, *shape[1:], 1).swapaxes(0, 1)
                white = root * loadings
                scaled = root * white
            grams[hubs] = white.swapaxes(2, 3) @ white
            away = (mixture.means - centre)[:, columns].reshape(shape).swapaxes(0, 1)
            offsets[hubs] = (away[:, :, None] @ scaled)[:, :, 0]
            projections[columns] = scaled.swapaxes(1, 2).reshape(-1, k, q)
        of_noise = (factors.means, factors.inverse, factors.log_dets)
        of_loadings = (projections.reshape(d, k * q), centre, offsets.reshape(-1, k * q))
        noise = [array.astype(dtype, copy=False) for array in of_noise]
        onto = [array.astype(dtype, copy=False) for array in of_loadings]
        of_mixture = (factors.failed, mixture.covariances, blocks)
        return cls(noise[0], noise[1], noise[2], *of_mixture, onto[0], onto[1], onto[2], grams)

    def projected(self, rows: Floats) -> Floats:
        """Return u of each hub for rows (m, d) in block order: (B, m, K q)."""
        out = np.zeros((len(self.offsets), len(rows), self.projections.shape[1]), dtype=rows.dtype)
        centred = rows - self.centre
        for columns, hubs, width in self.blocks.bands:
            of_hubs = centred[:, columns].reshape(len(rows), -1, width).swapaxes(0, 1)
            onto = self.projections[columns].reshape(-1, width, self.projections.shape[1])
            np.matmul(of_hubs, onto, out=out[hubs])
        out -= self.offsets[:, None]
        return out

    def projected_together(self, rows: Floats) -> Floats:
        """Return the sum U of all hubs for rows (m, d) in block order: (1, m, K q)."""
        projected: Floats = (rows - self.centre) @ self.projections - self.offsets.sum(axis=0)
        return projected[None]


@dataclass(frozen=True)
class Posterior:
    """What is known of the factors of any row of a component."""

    covariances: Doubles  # (R, K, q, q) ``B = (I + G)^-1`` of each root; R = 1 where all share one
    log_dets: Doubles  # (R, K) ``log|B|``

    @classmethod
    def from_grams(cls, grams: Doubles) -> Self:
        """Invert ``I + G`` of sums G (R, K, q, q).

        An estimate of a root's need not be positive semi-definite as the sum is: eigenvalues that
        the error of the rounds made negative count as 0.
        """
        values, vectors = np.linalg.eigh(grams)
        inverse = 1.0 / (1.0 + np.maximum(values, 0.0))
        covariances = (vectors * inverse[..., None, :]) @ vectors.swapaxes(-1, -2)
        return cls(covariances, np.log(inverse).sum(axis=-1))

    def explain(self, onto: Floats) -> tuple[Floats, Floats]:
        """Expected factors (R, m, K, q), and what they take off C, (R, m, K), for sums U."""
        n_roots, k, q, _ = self.covariances.shape
        onto = onto.reshape(n_roots, onto.shape[1], k, q)
        expected = np.empty_like(onto)
        inverse = self.covariances.astype(onto.dtype, copy=False)
        np.matmul(onto.swapaxes(1, 2), inverse, out=expected.swapaxes(1, 2))
        explained = np.einsum("rmkq,rmkq->rmk", onto, expected)
        explained += self.log_dets[:, None].astype(onto.dtype, copy=False)
        return expected, explained


@dataclass(frozen=True)
class FactorMixture(Mixture, facts=FACTS):
    """A mixture of factor analysers whose noise is block-diagonal over hubs.

    Of component k the features of hub b are ``x_b = mu_kb + L_kb f + e_b`` with factors ``f ~ N(0,
    I_q)`` that all hubs share and noise ``e_b ~ N(0, Psi_kb)`` of the hub's own, so that the
    covariance of all features is ``L_k L_k' + diag(Psi_k1, ..., Psi_kB)`` (Ghahramani and Hinton
    1996, with blocks in the place of a diagonal). ``covariances`` are those of the noise, and
    ``loadings`` (K, d, q), in block order and scaled units, are known up to a rotation of the
    factors.
    """

    loadings: Doubles

    named: ClassVar[dict[str, str]] = Mixture.named | {"loadings": "columns"}

    def __post_init__(self) -> None:
        super().__post_init__()
        k, d = self.n_components, self.n_features
        if self.loadings.ndim != 3 or self.loadings.shape[:2] != (k, d):
            raise InputError(
                f"loadings of {k} components over {d} features must have shape "
                f"({k}, {d}, q), got {self.loadings.shape}"
            )

    @property
    def n_factors(self) -> int:  # type: ignore[override]
        """Number of factors, q."""
        return int(self.loadings.shape[2])

    @property
    def explained(self) -> Doubles:
        """Variances (K, d) of features by factors that hubs share, in block order."""
        return np.asarray(np.square(self.loadings).sum(axis=2))

    @property
    def located(self) -> Doubles:
        """Means, and below them each component's loadings, factor by factor: (K (1 + q), d)."""
        rows = self.n_components * self.n_factors, self.n_features
        return np.concatenate([self.means, self.loadings.swapaxes(1, 2).reshape(rows)])

    def replace_parameters(self, shares: Doubles, means: Doubles, covariances: Doubles) -> Mixture:
        k, shape = self.n_components, (self.n_components, self.n_factors, self.n_features)
        loadings = np.ascontiguousarray(means[k:].reshape(shape).swapaxes(1, 2))
        return replace(
            self, weights=shares, means=means[:k], covariances=covariances, loadings=loadings
        )

    @property
    def n_parameters(self) -> int:
        """Free parameters: loadings count ``d q - q (q - 1) / 2`` a component, without rotation."""
        d, q = self.n_features, self.n_factors
        return super().n_parameters + self.n_components * (d * q - q * (q - 1) // 2)

    @property
    def assembled_loadings(self) -> Doubles:
        return np.asarray(self.loadings[:, self.blocks.position] * self.scaling.scale[:, None])

    @property
    def assembled_covariances(self) -> Doubles:
        """Covariances (K, d, d) in the user's order and units: ``L_k L_k'`` and the noise."""
        k, d, scale = self.n_components, self.n_features, self.scaling.scale
        assembled = self.assembled_loadings
        assembled = assembled @ assembled.swapaxes(1, 2)
        if self.is_diagonal:
            variances = self.covariances[:, self.blocks.position] * scale**2
            assembled[:, np.arange(d), np.arange(d)] += variances
            return assembled
        for columns, view in zip(self.blocks.features, self.covariance_blocks, strict=True):
            units = np.outer(scale[columns], scale[columns])
            noise = np.broadcast_to(view * units, (k, len(columns), len(columns)))
            assembled[:, columns[:, None], columns] += noise
        return assembled

    @property
    def joint(self) -> Mixture:
        """The same density as a mixture of one hub, with full covariances."""
        blocks = Blocks((np.arange(self.n_features),), (0,), ((0,),))
        covariances = self.assembled_covariances / np.outer(self.scaling.scale, self.scaling.scale)
        means = np.ascontiguousarray(self.means[:, self.blocks.position])
        weights = self.assembled_weights[None]
        return Mixture(blocks, "full", weights, means, covariances.ravel(), self.scaling)

    def convert_to(self, blocks: Blocks, covariance_type: str, scaling: Scaling) -> Mixture:
        """Return this mixture's parameters over other blocks, as a start for a new fit.

        Factors stay; of the noise see `Mixture.convert_to`.
        """
        noise = self.plain.convert_to(blocks, covariance_type, scaling)
        loadings = self.assembled_loadings[:, blocks.order]
        loadings /= scaling.scale[blocks.order][:, None]
        return FactorMixture(**noise.common, loadings=loadings)

    def terms_of(self, values: Doubles, there: Mask) -> tuple[Floats, Doubles | float]:
        """Return what the term of all hubs together is, (1, m, K); see `Density.terms_of`.

        Of rows with missing values those with the same ones are evaluated together, each by the
        marginal of what is observed.
        """
        if not there.all():
            patterns, which = np.unique(there, axis=0, return_inverse=True)
            terms = np.zeros((1, len(values), self.n_components))
            constants = np.zeros(len(values))
            for number, pattern in enumerate(patterns):
                some = which.reshape(-1) == number
                if pattern.any():
                    marginal = self.marginal(np.flatnonzero(pattern).tolist())
                    seen = values[some][:, pattern]
                    terms[:, some], constants[some] = marginal.terms_of(
                        seen, np.ones(seen.shape, bool)
                    )
            return terms, constants
        of_noise, constant = super().terms_of(values, there)
        rows = self.blocks.arrange(self.scaling.apply(values), np.float64)
        sums = of_noise.sum(axis=0, keepdims=True), self.loaded.projected_together(rows)
        return self.joined(*sums), constant

    def hub_terms(self, X: Matrix, rows: slice, missing: str) -> tuple[Floats, Doubles | float]:
        """Return c and u of each hub for rows in which nothing is missing, (B, m, K + K q)."""
        values = np.asarray(X[rows], dtype=np.float64)
        terms, constant = super().terms_of(values, np.ones(values.shape, dtype=np.bool_))
        scaled = self.blocks.arrange(self.scaling.apply(values), np.float64)
        return np.concatenate([terms, self.loaded.projected(scaled)], axis=2), constant

    def joined(self, total: Floats, onto: Floats) -> Floats:
        """Return the term of all hubs together, (1, m, K), of C (1, m, K) and U (1, m, K q)."""
        posterior = Posterior.from_grams(self.loaded.grams.sum(axis=0)[None])
        return np.ascontiguousarray(total - posterior.explain(onto)[1])

    def factored(self, dtype: DTypeLike) -> LoadedFactors:
        return LoadedFactors.from_mixture(self, dtype)

    @cached_property
    def loaded(self) -> LoadedFactors:  # type: ignore[override]
        """What an E-step needs, in double precision."""
        return self.factored(np.float64)

    def drawn(self, labels: Indices, rng: np.random.Generator) -> Doubles:
        rows = super().drawn(labels, rng)
        factors = rng.standard_normal((len(labels), self.n_factors))
        for k, loadings in enumerate(self.assembled_loadings):
            rows[labels == k] += factors[labels == k] @ loadings.T
        return rows


@dataclass
class FactorStatistics(Statistics):
    """Expected sufficient statistics of rows and their factors."""

    has_factors = True
    scores: Doubles  # (R, K, q) ``sum g E f``
    squares: Doubles  # (R, K, q, q) ``sum g E f f'``, which is ``sum g (E f E f' + B)``
    products: Doubles  # (K, d, q) ``sum g (x - shift) E f'``


class FactorTerms(FeatureTerms):
    """Terms of hubs whose features have q factors in common; parameters are of `FeatureTerms`."""

    directions: Doubles  # (K, d, q) random, of which loadings of a start are made, in block order

    def __init__(self, *arguments: Any, n_factors: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.n_factors = n_factors

    def blank(self, n_components: int) -> FactorMixture:
        plain = super().blank(n_components)
        loadings = np.broadcast_to(0.0, (*plain.means.shape, self.n_factors))
        return FactorMixture(**plain.common, loadings=loadings)

    def drawn(self, seed: list[int], n_components: int, columns: Indices) -> Self:
        """Return the same terms, which start at loadings of their own.

        All agents draw alike, for all features; ``columns`` (d,) are those of this process as the
        user numbers them, in block order.
        """
        chosen = copy(self)
        shape = (n_components, self.n_features, self.n_factors)
        drawn = np.random.default_rng(seed).standard_normal(shape)
        chosen.directions = drawn[:, columns]
        return chosen

    # ---- E-step --------------------------------------------------------------------------------

    def local(self, factors: Factors, rows: slice) -> Floats:
        """Return c and u of each hub for these rows, (B, m, K + K q)."""
        onto = cast(LoadedFactors, factors).projected(self.rows.read(rows))
        return np.concatenate([super().local(factors, rows), onto], axis=2)

    def summarize_sums(
        self,
        mixture: Mixture,
        factors: LoadedFactors,
        posterior: Posterior,
        total: Floats,
        onto: Floats,
        rows: slice,
        statistics: FactorStatistics | None,
    ) -> Doubles:
        """Find what follows from the sums of some rows: their log-likelihood (R,), and statistics.

        ``total`` (R, m, K) are sums C, of which the same may have been taken off all components of
        a row, ``onto`` (R, m, K q) sums U.
        """
        expected, explained = posterior.explain(onto)
        left = np.ascontiguousarray(total - explained)
        responsibilities, log_likelihoods = self.responsibilities(mixture, left, rows)
        if statistics is None:
            return log_likelihoods
        self.summarize(statistics, responsibilities, rows)
        # Moments of the factors, and of features with them.
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
            return log_likelihoods
        for columns, hubs, width in self.blocks.bands:
            of_hubs = centred[:, columns].reshape(m, -1, width).transpose(1, 2, 0)
            products[:, columns] += (of_hubs @ flat[hubs]).reshape(-1, k, q).swapaxes(0, 1)
        return log_likelihoods

    def sweep_factors(
        self,
        mixture: Mixture,
        factors: LoadedFactors,
        posterior: Posterior,
        mix: Doubles,
        statistics: FactorStatistics | None = None,
    ) -> Doubles:
        """Take the sums ``mix @ local`` and all that depends on them, a tile of rows at a time."""
        k, q, n_hubs = mixture.n_components, self.n_factors, self.blocks.n_blocks
        log_likelihoods = np.zeros(len(mix))
        shared = len(mix) == 1 and bool((mix == 1).all())
        a_row = self.blocks.n_features + k * (n_hubs + 4 * q)
        step = max(64, TILE_BYTES // (self.itemsize * a_row * (1 if shared else n_hubs)))
        matrix: Floats = mix.astype(self.rows.dtype, copy=False)
        for run in self.chunks(a_row):
            for begin in range(run.start, run.stop, step):
                rows = slice(begin, min(begin + step, run.stop))
                if shared:
                    terms = FeatureTerms.local(self, factors, rows)
                    distances: Floats = terms.sum(axis=0, keepdims=True)
                    onto = factors.projected_together(self.rows.read(rows))
                else:
                    every: Floats = np.tensordot(matrix, self.local(factors, rows), axes=1)
                    distances, onto = every[..., :k], every[..., k:]
                log_likelihoods += self.summarize_sums(
                    mixture, factors, posterior, distances, onto, rows, statistics
                )
        return log_likelihoods

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

    def update(self, statistics: Statistics, row: float | None = None) -> Mixture:
        """Parameters from the statistics: own features regressed on ``[1, E f]``.

        Those of a start, whose rows have no factors yet, are without (see `begun`).
        """
        plain = super().update(statistics, row)
        if not statistics.has_factors:
            return plain
        statistics = cast(FactorStatistics, statistics)
        counts = statistics.counts
        used = (counts > 0)[..., None]
        n = np.where(used, counts[..., None], 1.0)
        means = statistics.scores / n
        squares = statistics.squares / n[..., None] - means[..., None] * means[..., None, :]
        squares = np.where(used[..., None], squares, np.eye(self.n_factors))
        of_feature = self._of_feature
        counts_of_features, centres = of_feature(n)[..., 0], of_feature(means)
        about = statistics.first / counts_of_features
        crossed = statistics.products / counts_of_features[..., None] - about[..., None] * centres
        inverse: Any = np.linalg.inv(squares)
        loadings = (crossed[..., None, :] @ of_feature(inverse))[..., 0, :]
        shifted = (loadings * centres).sum(axis=2)
        # What the factors explain is taken off the covariances of the features.
        covariances, shared = plain.covariances, loadings
        k, copies = len(loadings), 1 if self._is_tied else len(loadings)
        if self._is_tied:
            shares = self.blocks.of_feature(counts)
            shares = shares / shares.sum(axis=0)
            shared = loadings * shares[..., None]
        if self._is_diagonal:
            explained: Doubles = (shared * crossed).sum(axis=2)
            if self._is_tied:
                explained = explained.sum(axis=0, keepdims=True)
            if self.covariance_type.endswith("spherical"):
                for columns, hubs, width in self.blocks.bands:
                    shape = (len(explained), hubs.stop - hubs.start, width)
                    mean = explained[:, columns].reshape(shape).mean(axis=2)
                    explained[:, columns] = np.repeat(mean, width, axis=1)
            covariances = covariances - explained
        else:
            covariances = covariances.copy()
            for columns, count, width, view in self._banded(covariances, copies):
                left, right = (
                    part[:, columns].reshape(k, count, width, -1).swapaxes(0, 1)
                    for part in (shared, crossed)
                )
                explained = left @ right.swapaxes(2, 3)
                explained = 0.5 * (explained + explained.swapaxes(2, 3))
                view -= explained.sum(axis=1, keepdims=True) if self._is_tied else explained
        moved = plain.common | {"means": plain.means - shifted, "covariances": covariances}
        return FactorMixture(**moved, loadings=loadings)

    def _of_feature(self, per_root: Doubles) -> Doubles:
        """Expand what each root holds, (R, K, ...), to what each feature sees, (K, d or 1, ...)."""
        if len(per_root) == 1:
            return per_root.swapaxes(0, 1)
        expanded: Doubles = per_root[self.blocks.block_of]
        return expanded.swapaxes(0, 1)

    # ---- starts and repairs ---------------------------------------------------------------------

    def begun(self, start: Mixture) -> Mixture:
        """Return a start, which gets loadings that were drawn if it has none.

        In standard deviations of each hub's features, made white, they are normal: G is about
        `START`. Without loadings EM would stay without.
        """
        if start.n_factors:
            return start
        return FactorMixture(**start.common, loadings=self._spread(start, self.directions))

    def _spread(self, mixture: Mixture, directions: Doubles) -> Doubles:
        """Directions (K, d, q) in the units of each hub's covariances, made small."""
        size = np.sqrt(START / self.n_features)
        if self._is_diagonal:
            deviations: Doubles = np.sqrt(np.maximum(mixture.covariances, 0.0))[..., None]
            spread: Doubles = size * deviations * directions
            return spread
        loadings = np.zeros_like(directions)
        for b, view in enumerate(
            block_views(mixture.covariances, self.blocks.widths, mixture.n_copies)
        ):
            part = slice(self.blocks.offsets[b], self.blocks.offsets[b + 1])
            values, vectors = np.linalg.eigh(view)
            root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None]
            loadings[:, part] = size * root @ vectors.swapaxes(1, 2) @ directions[:, part]
        return loadings

    def reseeded(self, mixture: Mixture, component: int, centre: Doubles, weight: float) -> Mixture:
        """Place one component at a new centre, with the loadings that it began with."""
        placed = cast(FactorMixture, super().reseeded(mixture, component, centre, weight))
        loadings = placed.loadings.copy()
        loadings[component] = self._spread(placed, self.directions)[component]
        return replace(placed, loadings=loadings)
