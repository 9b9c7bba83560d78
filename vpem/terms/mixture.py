"""The fitted mixture: parameters in blocks, their density, and what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.checks import Floats
from vpem.errors import InputError, NumericalError, check_choice
from vpem.network.partition import Blocks
from vpem.network.schema import Array, Schema, State
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.covariances import (
    Factors,
    block_views,
    covariance_shape,
    factorise,
    is_diagonal,
    is_tied,
)
from vpem.terms.density import Density
from vpem.terms.missing_patterns import marginal_terms, pattern_plan
from vpem.terms.scaling import Scaling


@dataclass(frozen=True)
class Mixture(Density, facts="{n_components:component}, {n_features:feature}, {covariance_type}"):
    """A Gaussian mixture whose covariances are block-diagonal over hubs.

    Parameters
    ----------
    blocks : Blocks
        Which features lie in which block.
    covariance_type : str
        One of `COVARIANCE_TYPES`.
    weights : ndarray of shape (R, K)
        Mixing weights as each root estimates them; R = 1 where all roots share one estimate.
    means : ndarray of shape (K, d)
        In block order, in scaled units.
    covariances : ndarray
        In scaled units: flat, block by block, of size ``n_copies sum d_b^2`` where blocks are full,
        variances of shape (n_copies, d) in block order where they are diagonal or spherical.
    scaling : Scaling
        From the user's units to those the mixture was fitted in.
    """

    blocks: Blocks
    covariance_type: str
    weights: NDArray[np.float64]
    means: NDArray[np.float64]
    covariances: NDArray[np.float64]
    scaling: Scaling

    def __post_init__(self) -> None:
        check_choice("covariance_type", self.covariance_type, COVARIANCE_TYPES)
        d = self.blocks.n_features
        if self.weights.ndim != 2 or self.means.shape != (self.n_components, d):
            raise InputError(
                f"a mixture of {self.weights.shape[-1]} components over {d} features needs means "
                f"of shape {(self.weights.shape[-1], d)}, got {self.means.shape}"
            )
        if len(self.weights) not in (1, self.blocks.n_blocks):
            raise InputError(
                f"mixing weights must be shared or one set a hub ({self.blocks.n_blocks}), "
                f"got {len(self.weights)} sets"
            )
        wanted = covariance_shape(self.blocks, self.covariance_type, self.n_components)
        if self.covariances.shape != wanted:
            raise InputError(
                f"{self.covariance_type} covariances of this mixture must have shape {wanted}, "
                f"got {self.covariances.shape}"
            )

    @classmethod
    def blank(
        cls, blocks: Blocks, covariance_type: str, n_components: int, scaling: Scaling | None = None
    ) -> Mixture:
        """Return a mixture with everything but parameters, to say what they must be."""
        shape = covariance_shape(blocks, covariance_type, n_components)
        return cls(
            blocks, covariance_type, np.full((1, n_components), 1.0 / n_components),
            np.broadcast_to(0.0, (n_components, blocks.n_features)), np.broadcast_to(1.0, shape),
            scaling or Scaling.none(blocks.n_features),
        )  # fmt: skip

    def arrays(self) -> State:
        """Parameters as arrays."""
        return {name: getattr(self, name) for name in ("weights", "means", "covariances")}

    def schema(self, n_roots: int = 1) -> Schema:
        """Say what `arrays` must be."""
        k = self.n_components
        return {
            "weights": Array("f8", ((1, n_roots), k), least=0, sums=1),
            "means": Array("f8", (k, self.n_features)),
            "covariances": Array("f8", covariance_shape(self.blocks, self.covariance_type, k)),
        }

    def having(self, arrays: State) -> Mixture:
        """Return a mixture like this one with other parameters."""
        return replace(self, **arrays)

    @property
    def explained(self) -> NDArray[np.float64] | float:
        """Variances (K, d) of features by factors that hubs share, of which there are none."""
        return 0.0

    @property
    def is_tied(self) -> bool:
        """Whether all components share one covariance."""
        return is_tied(self.covariance_type)

    @property
    def is_diagonal(self) -> bool:
        """Whether covariances are stored as variances."""
        return is_diagonal(self.covariance_type)

    @property
    def n_copies(self) -> int:
        """Covariances a block: K, or 1 when tied."""
        return 1 if self.is_tied else self.n_components

    @cached_property
    def factors(self) -> Factors:
        """Double-precision factors of a mixture whose blocks are all positive definite."""
        factors = factorise(self, np.float64)
        if factors.failed.any():
            component, hub = (int(i) for i in np.argwhere(factors.failed)[0])
            raise NumericalError(
                f"the covariance of component {component} in hub {hub} is not positive definite"
            )
        return factors

    def block(self, b: int) -> tuple[NDArray[np.float64], ...]:
        """Weights (K,), means (K, d_b) and covariances of block b as its root holds them.

        Covariances have shape (n_copies, d_b, d_b), or (n_copies, d_b) where they are diagonal;
        means and covariances are in scaled units.
        """
        part = slice(self.blocks.offsets[b], self.blocks.offsets[b + 1])
        weights = self.weights[b if len(self.weights) > 1 else 0]
        if self.is_diagonal:
            return weights, self.means[:, part], self.covariances[:, part]
        return weights, self.means[:, part], self.covariance_blocks[b]

    @cached_property
    def covariance_blocks(self) -> list[NDArray[np.float64]]:
        """Views of shape (n_copies, d_b, d_b), one a block (full covariances only)."""
        return block_views(self.covariances, self.blocks.widths, self.n_copies)

    def permuted(self, order: NDArray[np.intp]) -> Mixture:
        """Return the same mixture with its components in another order."""
        covariances = self.covariances
        if not self.is_tied:
            if self.is_diagonal:
                covariances = covariances[order]
            else:
                covariances = np.concatenate(
                    [np.empty(0), *(view[order].ravel() for view in self.covariance_blocks)]
                )
        return replace(
            self, weights=self.weights[:, order], means=self.means[order], covariances=covariances
        )

    def weighing(self, other: Mixture) -> Mixture:
        """Return the same mixture with another one's mixing weights."""
        return replace(self, weights=other.weights)

    @property
    def shares(self) -> NDArray[np.float64]:
        """What of the mixing weights is extrapolated, (R, K), which adds up to 1."""
        return self.weights

    @property
    def located(self) -> NDArray[np.float64]:
        """What of a mixture may be any number, (n, d): means."""
        return self.means

    def at(
        self,
        shares: NDArray[np.float64],
        means: NDArray[np.float64],
        covariances: NDArray[np.float64],
    ) -> Mixture:
        """Return the mixture at another point, which has such `shares`; means as `located`."""
        return replace(self, weights=shares, means=means, covariances=covariances)

    # ---- the assembled view, in the user's order and units -------------------------------------

    @property
    def assembled_means(self) -> NDArray[np.float64]:
        """Means (K, d) in the user's order and units."""
        return self.scaling.undo(self.means[:, self.blocks.position])

    @property
    def assembled_covariances(self) -> NDArray[np.float64]:
        """Covariances in the user's order and units, shaped as in scikit-learn.

        (K, d, d) full, (d, d) tied, (K, d) diagonal, (d,) tied-diagonal. Spherical: (K,) with one
        hub, (K, B) with B hubs, without the K when tied; diagonal instead where features of a hub
        have scales of their own, since a sphere in scaled units is none in the user's.
        """
        scale = self.scaling.scale
        position = self.blocks.position
        if self.is_diagonal:
            variances = self.covariances[:, position] * scale**2
            own, widths = self.blocks.order, self.blocks.widths
            first = own[self.blocks.offsets[:-1][widths > 0]]
            alike = np.array_equal(np.repeat(scale[first], widths[widths > 0]), scale[own])
            if self.covariance_type.endswith("spherical") and alike:
                variances = variances[:, first]
                variances = variances[:, 0] if self.blocks.n_blocks == 1 else variances
            return variances[0] if self.is_tied else variances
        full = np.zeros((self.n_copies, self.n_features, self.n_features))
        for columns, view in zip(self.blocks.features, self.covariance_blocks, strict=True):
            full[:, columns[:, None], columns] = view * np.outer(scale[columns], scale[columns])
        return full[0] if self.is_tied else full

    @property
    def n_parameters(self) -> int:
        """Free parameters: K - 1 weights, K d means, and the entries of the blocks."""
        widths = self.blocks.widths[self.blocks.widths > 0].astype(np.int64)
        if self.covariance_type.endswith("spherical"):
            entries = len(widths)
        elif self.is_diagonal:
            entries = int(widths.sum())
        else:
            entries = int((widths * (widths + 1) // 2).sum())
        k = self.n_components
        return k - 1 + k * self.n_features + self.n_copies * entries

    def terms_of(
        self, values: NDArray[np.float64], there: NDArray[np.bool_]
    ) -> tuple[Floats, NDArray[np.float64] | float]:
        """Terms (B, m, K) of each block for some rows, and what their log-density has besides."""
        blocks, scaling, threads = self.blocks, self.scaling, thread_count(None)
        factors = self.factors
        if there.all():
            constant = -0.5 * self.n_features * np.log(2 * np.pi) - np.log(scaling.scale).sum()
            data = blocks.arrange(scaling.apply(values), np.float64)
            return factors.terms(data, blocks.offsets, threads), constant
        observed = blocks.arrange(there, np.uint8)
        plan = None if self.is_diagonal else pattern_plan(observed, blocks)
        filled = np.where(there, scaling.apply(values), 0.0)
        terms = marginal_terms(
            blocks.arrange(filled, np.float64), observed, plan, blocks, factors.means,
            self.covariances, factors.inverse, factors.log_dets, threads,
        )  # fmt: skip
        return terms, there @ (-0.5 * np.log(2 * np.pi) - np.log(scaling.scale))

    def drawn(self, labels: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw rows of these components (m,), (m, d) in the user's order and units."""
        drawn = rng.standard_normal((len(labels), self.n_features))
        if self.is_diagonal:
            variances = np.broadcast_to(self.covariances, self.means.shape)
            drawn *= np.sqrt(variances)[labels]
        else:
            for b, view in enumerate(self.covariance_blocks):
                part = slice(self.blocks.offsets[b], self.blocks.offsets[b + 1])
                for k in range(self.n_components):
                    lower = np.linalg.cholesky(view[0 if self.is_tied else k])
                    drawn[labels == k, part] = drawn[labels == k, part] @ lower.T
        drawn += self.means[labels]
        return self.scaling.undo(drawn[:, self.blocks.position])

    # ---- the same mixture over other blocks -----------------------------------------------------

    def over(self, blocks: Blocks, covariance_type: str, scaling: Scaling) -> Mixture:
        """Return this mixture's parameters over other blocks, as a start for a new fit.

        Entries of the covariances that lie in no block of the new kind are dropped, those that lie
        in no block of this one are zero. Every root starts from the assembled weights.

        Raises
        ------
        InputError
            If the number of features is another.
        """
        if blocks.n_features != self.n_features:
            raise InputError(
                f"the starting model has {self.n_features} features, the data {blocks.n_features}"
            )
        k = self.n_components
        means = scaling.apply(self.assembled_means)[:, blocks.order]
        ratio = self.scaling.scale / scaling.scale
        tied, diagonal = is_tied(covariance_type), is_diagonal(covariance_type)
        weights = self.assembled_weights
        own_block = self.blocks.block_of[self.blocks.position]
        own_place = self.blocks.position
        parts = []
        for columns in blocks.features:
            part = np.zeros((k, len(columns), len(columns)))
            for b in np.unique(own_block[columns]):
                inside = np.flatnonzero(own_block[columns] == b)
                places = own_place[columns[inside]]
                part[:, inside[:, None], inside] = self._dense_part(int(b), places)
            part *= np.outer(ratio[columns], ratio[columns])
            parts.append(np.tensordot(weights, part, axes=1)[None] if tied else part)
        if diagonal:
            variances = [np.diagonal(part, axis1=1, axis2=2) for part in parts]
            if covariance_type.endswith("spherical"):
                variances = [
                    np.broadcast_to(v.mean(axis=1, keepdims=True) if v.size else v, v.shape)
                    for v in variances
                ]
            nothing = np.empty((1 if tied else k, 0))
            covariances = np.concatenate([nothing, *variances], axis=1)
        else:
            covariances = np.concatenate([np.empty(0), *(part.ravel() for part in parts)])
        return Mixture(
            blocks,
            covariance_type,
            weights[None, :].copy(),
            np.ascontiguousarray(means),
            np.ascontiguousarray(covariances),
            scaling,
        )

    def marginal(self, features: Sequence[int]) -> Mixture:
        """Return the mixture of some of the features: all others are integrated out.

        A marginal of a Gaussian has the rows and columns of its mean and covariance that are of
        these features, in each block.

        Parameters
        ----------
        features : sequence of int
            Which, in the user's numbering, in the order that they are to have.
        """
        chosen = np.asarray(features, dtype=np.intp)
        place = np.full(self.n_features, -1, dtype=np.intp)
        place[chosen] = np.arange(len(chosen))
        inside = [np.flatnonzero(place[own] >= 0) for own in self.blocks.features]
        own = zip(self.blocks.features, inside, strict=True)
        blocks = replace(self.blocks, features=tuple(place[one[kept]] for one, kept in own))
        starts = zip(self.blocks.offsets, inside, strict=False)
        kept = np.concatenate([begin + one for begin, one in starts])
        if self.is_diagonal:
            covariances = self.covariances[:, kept]
        else:
            views = zip(self.covariance_blocks, inside, strict=True)
            covariances = np.concatenate(
                [view[:, one[:, None], one].ravel() for view, one in views]
            )
        return replace(
            self,
            blocks=blocks,
            means=np.ascontiguousarray(self.means[:, kept]),
            covariances=np.ascontiguousarray(covariances),
            scaling=self.scaling.of(chosen),
        )

    def renumbered(self, columns: Sequence[int]) -> Mixture:
        """Return the same mixture of data whose columns stand in another order.

        Parameters
        ----------
        columns : sequence of int
            New column of each feature, shape (d,).
        """
        place = np.asarray(columns, dtype=np.intp)
        blocks = replace(self.blocks, features=tuple(place[f] for f in self.blocks.features))
        shift, scale = np.empty(len(place)), np.empty(len(place))
        shift[place], scale[place] = self.scaling.shift, self.scaling.scale
        return replace(self, blocks=blocks, scaling=Scaling(shift, scale))

    def dense(self, b: int) -> NDArray[np.float64]:
        """Covariances (K, d_b, d_b) of block b, in scaled units, whatever they are stored as."""
        return self._dense_part(b, np.arange(self.blocks.offsets[b], self.blocks.offsets[b + 1]))

    def _dense_part(self, b: int, places: NDArray[np.intp]) -> NDArray[np.float64]:
        """Covariances (K, n, n) of some features of block b, given by place in block order."""
        k = self.n_components
        if self.is_diagonal:
            variances = np.broadcast_to(self.covariances, self.means.shape)[:, places]
            return variances[:, :, None] * np.eye(len(places))
        inside = places - self.blocks.offsets[b]
        view = self.covariance_blocks[b]
        return np.broadcast_to(view, (k, *view.shape[1:]))[:, inside[:, None], inside]
