"""A mixture whose components have factors that hubs share: what correlates across them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.errors import InputError
from vpem.network.partition import Blocks
from vpem.network.schema import Array, Schema, State
from vpem.terms.loadings import LoadedFactors, Posterior
from vpem.terms.mixture import Mixture
from vpem.terms.scaling import Scaling

if TYPE_CHECKING:
    from collections.abc import Sequence


FACTS = "{n_components:component}, {n_features:feature}, {covariance_type}, {n_factors:factor}"


@dataclass(frozen=True)
class FactorMixture(Mixture, facts=FACTS):
    """A mixture of factor analysers whose noise is block-diagonal over hubs.

    Of component k the features of hub b are ``x_b = mu_kb + L_kb f + e_b`` with factors
    ``f ~ N(0, I_q)`` that all hubs share and noise ``e_b ~ N(0, Psi_kb)`` of the hub's own, so that
    the covariance of all features is ``L_k L_k' + diag(Psi_k1, ..., Psi_kB)`` (Ghahramani and
    Hinton 1996, with blocks in the place of a diagonal).

    Parameters
    ----------
    blocks, covariance_type, weights, means, scaling
        As for `Mixture`.
    covariances : ndarray
        Of the noise, in scaled units, shaped as for `Mixture`.
    loadings : ndarray of shape (K, d, q)
        In block order, in scaled units. They are known up to a rotation of the factors.
    """

    loadings: NDArray[np.float64]

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = (self.n_components, self.n_features)
        if self.loadings.ndim != 3 or self.loadings.shape[:2] != wanted:
            raise InputError(
                f"loadings of {wanted[0]} components over {wanted[1]} features must have shape "
                f"({wanted[0]}, {wanted[1]}, q), got {self.loadings.shape}"
            )

    @property
    def n_factors(self) -> int:  # type: ignore[override]
        """Number of factors, q."""
        return int(self.loadings.shape[2])

    @property
    def explained(self) -> NDArray[np.float64]:
        """Variances (K, d) of features by factors that hubs share, in block order."""
        found: NDArray[np.float64] = np.square(self.loadings).sum(axis=2)
        return found

    @property
    def located(self) -> NDArray[np.float64]:
        """Means, and below them each component's loadings, factor by factor: (K (1 + q), d)."""
        rows = self.n_components * self.n_factors, self.n_features
        return np.concatenate([self.means, self.loadings.swapaxes(1, 2).reshape(rows)])

    def at(
        self,
        shares: NDArray[np.float64],
        means: NDArray[np.float64],
        covariances: NDArray[np.float64],
    ) -> Mixture:
        """Return the mixture at another point; means as `located`."""
        k, shape = self.n_components, (self.n_components, self.n_factors, self.n_features)
        loadings = np.ascontiguousarray(means[k:].reshape(shape).swapaxes(1, 2))
        return replace(
            self, weights=shares, means=means[:k], covariances=covariances, loadings=loadings
        )

    def arrays(self) -> State:
        """Parameters as arrays."""
        return super().arrays() | {"loadings": self.loadings}

    def schema(self, n_roots: int = 1) -> Schema:
        """Say what `arrays` must be."""
        plain: Any = super().schema(n_roots)
        return {**plain, "loadings": Array("f8", self.loadings.shape)}

    @property
    def n_parameters(self) -> int:
        """Free parameters: loadings count ``d q - q (q - 1) / 2`` a component, without rotation."""
        d, q = self.n_features, self.n_factors
        return super().n_parameters + self.n_components * (d * q - q * (q - 1) // 2)

    @property
    def assembled_loadings(self) -> NDArray[np.float64]:
        """Loadings (K, d, q) in the user's order and units."""
        found: NDArray[np.float64] = self.loadings[:, self.blocks.position]
        return found * self.scaling.scale[:, None]

    @property
    def assembled_noise(self) -> NDArray[np.float64]:
        """Covariances of the noise as `Mixture.assembled_covariances` has covariances."""
        return super().assembled_covariances

    @property
    def assembled_covariances(self) -> NDArray[np.float64]:
        """Covariances (K, d, d) in the user's order and units: ``L_k L_k'`` and the noise."""
        k, d, scale = self.n_components, self.n_features, self.scaling.scale
        found = self.assembled_loadings
        found = found @ found.swapaxes(1, 2)
        if self.is_diagonal:
            variances = self.covariances[:, self.blocks.position] * scale**2
            found[:, np.arange(d), np.arange(d)] += variances
            return found
        for columns, view in zip(self.blocks.features, self.covariance_blocks, strict=True):
            units = np.outer(scale[columns], scale[columns])
            noise = np.broadcast_to(view * units, (k, len(columns), len(columns)))
            found[:, columns[:, None], columns] += noise
        return found

    def block_loadings(self, b: int) -> NDArray[np.float64]:
        """Loadings (K, d_b, q) of block b, in scaled units."""
        return self.loadings[:, self.blocks.offsets[b] : self.blocks.offsets[b + 1]]

    def permuted(self, order: NDArray[np.intp]) -> Mixture:
        """Return the same mixture with its components in another order."""
        return replace(super().permuted(order), loadings=self.loadings[order])  # type: ignore[call-arg]

    def marginal(self, features: Sequence[int]) -> Mixture:
        """Return the mixture of some of the features: all others are integrated out."""
        chosen = np.asarray(features, dtype=np.intp)
        loadings = self.loadings[:, self.blocks.position[chosen]]
        plain = Mixture.marginal(self.noise, features)
        return mixture_of(
            plain.blocks, plain.covariance_type, plain.scaling, weights=plain.weights,
            means=plain.means, covariances=plain.covariances,
            loadings=np.ascontiguousarray(loadings[:, plain.blocks.order]),
        )  # fmt: skip

    @property
    def noise(self) -> Mixture:
        """The mixture without its factors: means, and the noise's covariances."""
        return Mixture(
            self.blocks, self.covariance_type, self.weights, self.means, self.covariances,
            self.scaling,
        )  # fmt: skip

    @property
    def joint(self) -> Mixture:
        """The same density as a mixture of one hub, with full covariances."""
        blocks = Blocks((np.arange(self.n_features),), (0,), ((0,),))
        covariances = self.assembled_covariances / np.outer(self.scaling.scale, self.scaling.scale)
        means = np.ascontiguousarray(self.means[:, self.blocks.position])
        weights = self.assembled_weights[None]
        return Mixture(blocks, "full", weights, means, covariances.ravel(), self.scaling)

    def over(self, blocks: Blocks, covariance_type: str, scaling: Scaling) -> Mixture:
        """Return this mixture's parameters over other blocks, as a start for a new fit.

        Factors stay; of the noise see `Mixture.over`.
        """
        noise = self.noise.over(blocks, covariance_type, scaling)
        loadings = self.assembled_loadings[:, blocks.order]
        loadings /= scaling.scale[blocks.order][:, None]
        return mixture_of(
            blocks, covariance_type, scaling, weights=noise.weights, means=noise.means,
            covariances=noise.covariances, loadings=loadings,
        )  # fmt: skip

    def terms_of(
        self, values: NDArray[np.float64], there: NDArray[np.bool_]
    ) -> tuple[Floats, NDArray[np.float64] | float]:
        """Return what the term of all hubs together is, (1, m, K); see `Density.terms_of`.

        Of rows with missing values those with the same ones are looked at together, each by the
        marginal of what is there.
        """
        if not there.all():
            return self._terms_of_patterns(values, there)
        own, constant = super().terms_of(values, there)
        rows = self.blocks.arrange(self.scaling.apply(values), np.float64)
        sums = own.sum(axis=0, keepdims=True), self.loaded.projected_together(rows)
        return self.joined(*sums), constant

    def apart(self, values: NDArray[np.float64]) -> tuple[Floats, NDArray[np.float64] | float]:
        """Return c and u of each hub for rows in which nothing is missing, (B, m, K + K q)."""
        own, constant = super().terms_of(values, np.ones(values.shape, dtype=np.bool_))
        rows = self.blocks.arrange(self.scaling.apply(values), np.float64)
        return np.concatenate([own, self.loaded.projected(rows)], axis=2), constant

    def joined(self, total: Floats, onto: Floats) -> Floats:
        """Return the term of all hubs together, (1, m, K), of C (1, m, K) and U (1, m, K q)."""
        posterior = Posterior.of(self.loaded.grams.sum(axis=0)[None])
        return np.ascontiguousarray(total - posterior.explain(onto)[1])

    def _terms_of_patterns(
        self, values: NDArray[np.float64], there: NDArray[np.bool_]
    ) -> tuple[Floats, NDArray[np.float64]]:
        patterns, which = np.unique(there, axis=0, return_inverse=True)
        found = np.zeros((1, len(values), self.n_components))
        constants = np.zeros(len(values))
        for number, pattern in enumerate(patterns):
            rows = which.reshape(-1) == number
            if pattern.any():
                kept = self.marginal(np.flatnonzero(pattern).tolist())
                own = values[rows][:, pattern]
                found[:, rows], constants[rows] = kept.terms_of(own, np.ones(own.shape, dtype=bool))
        return found, constants

    @cached_property
    def loaded(self) -> LoadedFactors:
        """What an E-step needs, in double precision."""
        return LoadedFactors.of(self, np.float64)

    def drawn(self, labels: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw rows of these components (m,), (m, d) in the user's order and units."""
        rows = super().drawn(labels, rng)
        factors = rng.standard_normal((len(labels), self.n_factors))
        for k, loadings in enumerate(self.assembled_loadings):
            rows[labels == k] += factors[labels == k] @ loadings.T
        return rows


def mixture_of(
    blocks: Blocks, covariance_type: str, scaling: Scaling, **parameters: Any
) -> Mixture:
    """Return a mixture of these parameters, with factors where there are ``loadings``."""
    made = FactorMixture if "loadings" in parameters else Mixture
    return made(blocks, covariance_type, scaling=scaling, **parameters)
