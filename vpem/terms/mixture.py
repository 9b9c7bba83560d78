"""The fitted mixture: covariances in blocks, densities, conditional laws of missing values.

Parameters are points of a vector space, too (`Coordinates`), in which nothing is out of bounds: log
mixing weights, means, loadings where there are factors, and of every covariance, less a floor, the
Cholesky factor with the logarithms of its diagonal (of a variance half the logarithm). Whatever
lies on the line through two mixtures is one too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem._core.cholesky import cholesky_blocks
from vpem._core.mahalanobis import mahalanobis_diag, mahalanobis_full
from vpem._core.threads import thread_count
from vpem.checks import Doubles, Floats, Indices, Mask, check_number
from vpem.errors import InputError, NumericalError, check_choice, former
from vpem.network.partition import Blocks
from vpem.network.schema import KEPT, Array, Report, Schema, State, check
from vpem.rules import DECOMPOSED
from vpem.settings import COVARIANCES
from vpem.terms.decomposed import INVARIANT, ON_AXES, bounded, constrained, n_free
from vpem.terms.density import Density, Runs, runs_of_roots
from vpem.terms.missing import Gaps
from vpem.terms.units import Scaling, sum_features

SMALLEST_DIRECTION = 1e-10
"""Eigenvalues, of at most 2, from which on components differ along a direction."""


@cache
def is_diagonal(covariance_type: str) -> bool:
    return covariance_type not in ("full", "tied", *DECOMPOSED) or covariance_type in ON_AXES


def covariance_shape(blocks: Blocks, covariance_type: str, n_components: int) -> tuple[int, ...]:
    """Shape of the array of all covariances, which is flat where blocks are full."""
    copies = 1 if covariance_type.startswith("tied") else n_components
    if is_diagonal(covariance_type):
        return copies, blocks.n_features
    return (copies * blocks.n_entries,)


def block_views(flat: Doubles, widths: Indices, copies: int) -> list[Doubles]:
    """Views of shape (copies, d_b, d_b), one a block, into a flat array of covariances."""
    views, start = [], 0
    for width in widths.tolist():
        stop = start + copies * width * width
        views.append(flat[start:stop].reshape(copies, width, width))
        start = stop
    return views


@dataclass(frozen=True)
class Factors:
    """What the E-step needs of a mixture, in the precision of the data."""

    means: Floats  # (K, d) in block order
    inverse: Floats  # inverse Cholesky factors, flat, or inverse variances of shape (n_copies, d)
    log_dets: Floats  # (n_copies, B) ``log|Sigma|`` of every block
    failed: NDArray[np.uint8]  # (n_copies, B) 1 where a block is not positive definite
    covariances: Doubles  # that they are of, in double precision
    without_prior: Factors | None = field(default=None, kw_only=True)
    """The same where each row has its part of a prior in the log-determinants."""

    @property
    def plain(self) -> Factors:
        """The factors without what a prior adds."""
        return self.without_prior or self

    def tempered(self, power: float) -> Factors:
        """Return those whose terms are ``power`` times these."""
        root = np.sqrt(power) if self.inverse.ndim == 1 else power
        inverse = (self.inverse * root).astype(self.inverse.dtype)
        log_dets = (self.log_dets * power).astype(self.log_dets.dtype)
        under = self.without_prior and self.without_prior.tempered(power)
        return replace(self, inverse=inverse, log_dets=log_dets, without_prior=under)

    def terms(self, rows: Floats, offsets: Indices, n_threads: int) -> Floats:
        """Local terms ``Q`` of these rows, shape (B, m, K), Valdeira et al., equation (12)."""
        out = np.empty((len(offsets) - 1, len(rows), len(self.means)), dtype=rows.dtype)
        kernel = mahalanobis_full if self.inverse.ndim == 1 else mahalanobis_diag
        kernel(rows, offsets, self.means, self.inverse, self.log_dets, out, n_threads)
        return out


def factorise(mixture: Mixture, dtype: DTypeLike) -> Factors:
    """Cholesky factors and log-determinants of every block of ``mixture``."""
    blocks = mixture.blocks
    copies = mixture.n_copies
    log_dets = np.zeros((copies, blocks.n_blocks))
    failed = np.zeros((copies, blocks.n_blocks), dtype=np.uint8)
    covariances = mixture.covariances
    if covariances.ndim == 1:
        inverse = np.empty_like(covariances)
        cholesky_blocks(covariances, blocks.offsets, copies, inverse, log_dets, failed)
    else:
        good = np.isfinite(covariances) & (covariances > 0)
        safe = np.where(good, covariances, 1.0)
        inverse = np.where(good, 1.0 / safe, 0.0)
        for copy, logs in enumerate(np.log(safe)):
            log_dets[copy] = sum_features(blocks, logs)
        for at in np.flatnonzero(~good.all(axis=1)):
            failed[at] = sum_features(blocks, ~good[at]) > 0
    return Factors(
        np.ascontiguousarray(mixture.means, dtype=dtype),
        np.ascontiguousarray(inverse, dtype=dtype),
        np.ascontiguousarray(log_dets, dtype=dtype),
        failed,
        covariances,
    )


def variances_of(mixture: Mixture) -> Doubles:
    """Return the variances (K, d) of each component, in the user's order and in units of fitting.

    They are the diagonals of covariances, which are not put together for that.
    """
    shape = mixture.means.shape
    if mixture.is_diagonal:
        variances = np.broadcast_to(mixture.covariances, shape)
    else:
        blocks = [np.diagonal(view, axis1=1, axis2=2) for view in mixture.covariance_blocks]
        variances = np.broadcast_to(np.concatenate(blocks, axis=1), shape)
    total: Doubles = variances + mixture.explained
    return total[:, mixture.blocks.position]


@dataclass(frozen=True)
class Mixture(Density, facts="{n_components:component}, {n_features:feature}, {covariance_type}"):
    """A Gaussian mixture whose covariances are block-diagonal over hubs.

    Parameters
    ----------
    blocks : Blocks
        Which features lie in which block.
    covariance_type : str
        One of `COVARIANCES`.
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
    weights: Doubles
    means: Doubles
    covariances: Doubles
    scaling: Scaling

    named: ClassVar[dict[str, str]] = {
        "weights": "roots", "means": "columns", "covariances": "blocks"
    }  # fmt: skip
    """Arrays, and where hubs are in each: see `runs_over`."""
    kinds = None
    explained: ClassVar[Any] = 0.0
    """Variances (K, d) of features by factors that hubs share."""

    def __post_init__(self) -> None:
        check_choice("covariance_type", self.covariance_type, COVARIANCES)
        d = self.blocks.n_features
        if self.weights.ndim != 2 or self.means.shape != (self.n_components, d):
            raise InputError(
                f"a mixture of {self.weights.shape[-1]} components over {d} features needs means "
                f"of shape {(self.weights.shape[-1], d)}, got {self.means.shape}"
            )
        if len(self.weights) not in (1, self.blocks.n_blocks):
            raise InputError(
                f"mixing weights must be shared or one set per hub ({self.blocks.n_blocks}), "
                f"got {len(self.weights)} sets"
            )
        expected = covariance_shape(self.blocks, self.covariance_type, self.n_components)
        if self.covariances.shape != expected:
            raise InputError(
                f"{self.covariance_type} covariances of this mixture must have shape {expected}, "
                f"got {self.covariances.shape}"
            )

    @classmethod
    def blank(
        cls, blocks: Blocks, covariance_type: str, n_components: int, scaling: Scaling | None = None
    ) -> Mixture:
        """Return a mixture with everything but parameters, for its shapes."""
        shape = covariance_shape(blocks, covariance_type, n_components)
        return cls(
            blocks, covariance_type, np.full((1, n_components), 1.0 / n_components),
            np.broadcast_to(0.0, (n_components, blocks.n_features)), np.broadcast_to(1.0, shape),
            scaling or Scaling.none(blocks.n_features),
        )  # fmt: skip

    def arrays(self) -> State:
        return {name: getattr(self, name) for name in self.named}

    def schema(self, n_roots: int = 1) -> dict[str, Schema]:
        arrays = self.arrays().items()
        schema: dict[str, Schema] = {name: Array("f8", array.shape) for name, array in arrays}
        schema["weights"] = Array("f8", ((1, n_roots), self.n_components), least=0, sums=1)
        return schema

    def having(self, arrays: State, **others: Any) -> Mixture:
        """Return a mixture like this one with other parameters, and other blocks or units."""
        return replace(self, **arrays, **others)

    # ---- parameters of some hubs ---------------------------------------------------------------

    hub_arrays = arrays
    """All arrays that are `named`; in a file some belong to the recipe."""

    def runs_over(self, blocks: Blocks) -> dict[str, Runs]:
        """Return where parameters of each hub lie in arrays of such a mixture over other blocks."""
        roots, columns = runs_of_roots(blocks.n_blocks), Runs(1, blocks.widths)
        lying = {
            "roots": roots,
            "hubs": Runs(0, roots.counts),
            "columns": columns,
            "blocks": columns,
            "block": columns,
        }
        if not self.is_diagonal:
            squares = blocks.widths**2
            lying |= {"blocks": Runs(0, self.n_copies * squares), "block": Runs(0, squares)}
        lying["features"] = Runs(0, blocks.widths)
        return {name: lying[where] for name, where in self.named.items()}

    @cached_property
    def runs(self) -> dict[str, Runs]:
        """Where parameters of each hub lie in the arrays of this mixture."""
        return self.runs_over(self.blocks)

    def sent(self) -> State:
        """Return what `join_hubs` takes of some hubs: arrays and units."""
        return self.hub_arrays() | {"shift": self.scaling.shift, "scale": self.scaling.scale}

    def of_hubs(self, numbers: Sequence[int] | Indices) -> Mixture:
        """Return some hubs of the mixture, whose features are counted from 0, hub by hub."""
        runs, blocks = self.runs, self.blocks.of_hubs(numbers)
        arrays = {n: runs[n].take(array, numbers) for n, array in self.hub_arrays().items()}
        scaling = self.scaling.take_features(self.blocks.columns_of(numbers))
        return self.having(arrays, blocks=blocks, scaling=scaling)

    def join_hubs(
        self, blocks: Blocks, parts: Sequence[Report], scaling: Scaling | None = None
    ) -> Mixture:
        """Return such a mixture over these blocks, from the parts that several processes have.

        Each has the ``numbers`` of its hubs, and what is `sent` of these: arrays, and units in
        the order of these hubs, unless some are given.
        """
        arrays, units = {}, Runs(0, blocks.widths)
        for name, runs in self.runs_over(blocks).items():
            arrays[name] = runs.join([(one["numbers"], one[name]) for one in parts if name in one])
        if scaling is None:
            shift, scale = (
                units.join([(one["numbers"], one[name]) for one in parts if name in one])
                for name in ("shift", "scale")
            )
            scaling = Scaling(shift[blocks.position], scale[blocks.position])
        return self.having(arrays, blocks=blocks, scaling=scaling)

    def with_hubs_of(self, other: Mixture, hubs: Mask) -> Mixture:
        """Return the mixture with the parameters that these hubs (B,) have in another."""
        ours, theirs = self.hub_arrays(), other.hub_arrays()
        return self.having({n: self.runs[n].where(hubs, theirs[n], ours[n]) for n in ours})

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

    def block(self, b: int) -> tuple[Doubles, ...]:
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
    def covariance_blocks(self) -> list[Doubles]:
        """Views of shape (n_copies, d_b, d_b), one a block (full covariances only)."""
        return block_views(self.covariances, self.blocks.widths, self.n_copies)

    def permuted(self, order: Indices) -> Mixture:
        covariances = self.covariances
        if not self.is_tied:
            if self.is_diagonal:
                covariances = covariances[order]
            else:
                covariances = np.concatenate(
                    [np.empty(0), *(view[order].ravel() for view in self.covariance_blocks)]
                )
        located: Any = {
            n: getattr(self, n)[order] for n in self.named if self.named[n] == "columns"
        }
        return replace(self, weights=self.weights[:, order], covariances=covariances, **located)

    def factored(self, dtype: DTypeLike) -> Factors:
        """Factor every block for the E-step; `Factors.failed` marks those that cannot be."""
        return factorise(self, dtype)

    @property
    def common(self) -> State:
        """What mixtures of all kinds have, by name."""
        return {one.name: getattr(self, one.name) for one in fields(Mixture)}

    @property
    def plain(self) -> Mixture:
        """The Gaussian mixture of these means and covariances, and nothing else."""
        return Mixture(**self.common)

    @property
    def shares(self) -> Doubles:
        """What of the mixing weights is extrapolated, (R, K), which adds up to 1."""
        return self.weights

    @property
    def located(self) -> Doubles:
        """What of a mixture may be any number, (n, d): means."""
        return self.means

    def replace_parameters(self, shares: Doubles, means: Doubles, covariances: Doubles) -> Mixture:
        """Return the mixture at another point, which has such `shares`; means as `located`."""
        return replace(self, weights=shares, means=means, covariances=covariances)

    at = former("at", "replace_parameters")

    def constrained(
        self, counts: Doubles | None = None, before: Doubles | None = None,
        ratio: float | None = None,
    ) -> Self:  # fmt: skip
        """Return the mixture in its family, of covariances that were found without: its M-step.

        ``counts`` (R, K) or (B, K) are rows of the components; by default their weights. With a
        ``ratio`` that of eigenvalues in a hub is at most so much.
        """
        counts = self.weights if counts is None else counts
        if ratio is not None:
            return replace(self, covariances=bounded(self.blocks, self.covariances, counts, ratio))
        if self.covariance_type not in DECOMPOSED:
            return self
        family, blocks = self.covariance_type, self.blocks
        found = constrained(family, blocks, self.covariances, counts, before)
        return replace(self, covariances=found)

    def coordinates(self, floor: Doubles) -> Coordinates:
        """Return the coordinates of this mixture; NaN of a covariance not above the floor.

        Its blocks are positive definite. The floor (d,) is a diagonal matrix below its covariances,
        from which coordinates count them.
        """
        weights = np.log(np.where(self.shares > 0, self.shares, 1.0))
        hubs, common = self.blocks.block_of, (self.blocks.n_blocks, weights)
        if self.is_diagonal:
            spreads = 0.5 * np.log(self.covariances - floor)
            return Coordinates(*common, hubs, (self.located, spreads))
        spreads, widths = np.empty_like(self.covariances), self.blocks.widths
        floors = [floor[a:b] for a, b in pairwise(self.blocks.offsets)]
        views = block_views(spreads, widths, self.n_copies)
        for view, block, least in zip(views, self.covariance_blocks, floors, strict=True):
            diagonals = _diagonals(view)
            view[...] = block
            diagonals -= least
            try:
                view[...] = np.linalg.cholesky(view)
            except np.linalg.LinAlgError:  # at the edge of rounding
                view[...] = np.nan
            np.log(diagonals, out=diagonals)
        return Coordinates(*common, hubs, (self.located,), spreads, self.n_copies * widths**2)

    def at_coordinates(self, point: Coordinates, floor: Doubles) -> Mixture:
        """Return the mixture at a point, over the same floor as in `coordinates`.

        What is not in the coordinates is as here, and components without weight stay as they are.
        """
        weights = point.shares(self.shares)
        if self.is_diagonal:
            covariances = np.exp(2 * point.columns[1]) + floor
        else:
            covariances = np.empty_like(point.flat)
            widths, copies = self.blocks.widths, self.n_copies
            logarithms = block_views(point.flat, widths, copies)
            floors = [floor[a:b] for a, b in pairwise(self.blocks.offsets)]
            views = block_views(covariances, widths, copies)
            for view, logs, least in zip(views, logarithms, floors, strict=True):
                factors = logs.copy()
                np.exp(_diagonals(logs), out=_diagonals(factors))
                np.matmul(factors, factors.swapaxes(1, 2), out=view)
                diagonals = _diagonals(view)
                diagonals += least
        return self.replace_parameters(weights, point.columns[0], covariances).constrained()

    # ---- the assembled view, in the user's order and units -------------------------------------

    @property
    def assembled_means(self) -> Doubles:
        """Means (K, d) in the user's order and units."""
        return self.scaling.undo(self.means[:, self.blocks.position])

    @property
    def assembled_covariances(self) -> Doubles:
        """Covariances in the user's order and units, shaped as in scikit-learn.

        (K, d, d) full, (d, d) tied, (K, d) diagonal, (d,) tied-diagonal. Spherical: (K,) with one
        hub, (K, B) with B hubs, without the K when tied; diagonal instead where features of a hub
        have scales of their own, since a sphere in scaled units is none in the user's.
        """
        scale = self.scaling.scale
        position = self.blocks.position
        if self.is_diagonal:
            variances = self.covariances[:, position] * scale**2
            order, widths = self.blocks.order, self.blocks.widths
            first = order[self.blocks.offsets[:-1][widths > 0]]
            alike = np.array_equal(np.repeat(scale[first], widths[widths > 0]), scale[order])
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
        k = self.n_components
        if self.covariance_type in DECOMPOSED:
            return k - 1 + k * self.n_features + n_free(self.covariance_type, widths, k)
        if self.covariance_type.endswith("spherical"):
            entries = len(widths)
        elif self.is_diagonal:
            entries = int(widths.sum())
        else:
            entries = int((widths * (widths + 1) // 2).sum())
        return k - 1 + k * self.n_features + self.n_copies * entries

    def moments(self) -> Iterator[tuple[Indices, Doubles, Doubles]]:
        columns = np.arange(self.n_features)
        yield columns, self.means[:, self.blocks.position], variances_of(self)

    def terms_of(self, values: Doubles, there: Mask) -> tuple[Floats, Doubles | float]:
        blocks, scaling, threads = self.blocks, self.scaling, thread_count(None)
        factors = self.factors
        if there.all():
            constant = -0.5 * self.n_features * np.log(2 * np.pi) - np.log(scaling.scale).sum()
            data = blocks.arrange(scaling.apply(values), np.float64)
            return factors.terms(data, blocks.offsets, threads), constant
        gaps = Gaps(blocks.arrange(there, np.uint8), blocks, self.is_diagonal)
        filled = blocks.arrange(np.where(there, scaling.apply(values), 0.0), np.float64)
        terms = gaps.terms(filled, factors, slice(None), threads)
        return terms, there @ (-0.5 * np.log(2 * np.pi) - np.log(scaling.scale))

    def drawn(self, labels: Indices, rng: np.random.Generator) -> Doubles:
        return self.spread(labels, rng.standard_normal((len(labels), self.n_features)))

    def spread(self, labels: Indices, drawn: Doubles) -> Doubles:
        """Return rows of these components (m, d), of standard normals in block order, not kept."""
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

    def convert_to(self, blocks: Blocks, covariance_type: str, scaling: Scaling) -> Mixture:
        """Return this mixture's parameters over other blocks, as a start for a new fit.

        Entries of the covariances that lie in no block of the new kind are dropped, those that lie
        in no block of this one are zero. Every root starts from the assembled weights.

        Raises
        ------
        InputError
            If the number of features is another.
        """
        self.check_start(blocks)
        k = self.n_components
        means = scaling.apply(self.assembled_means)[:, blocks.order]
        ratio = self.scaling.scale / scaling.scale
        tied, diagonal = covariance_type.startswith("tied"), is_diagonal(covariance_type)
        weights = self.assembled_weights
        own_block = self.blocks.block_of[self.blocks.position]
        own_place = self.blocks.position
        parts = []
        for columns in blocks.features:
            part = np.zeros((k, len(columns), len(columns)))
            for b in np.unique(own_block[columns]):
                inside = np.flatnonzero(own_block[columns] == b)
                places = own_place[columns[inside]]
                part[:, inside[:, None], inside] = self.dense(int(b), places)
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
        ).constrained()

    def directions(self, share: float = 1.0) -> tuple[Doubles, Doubles]:
        """Find the directions along which components differ most, and by how much.

        With ``S`` the covariance of the whole mixture, ``M`` that of its means, and ``D_k`` how far
        the covariance of component k lies from their mean, these solve ``(2 share M S^-1 M + 2 (1 -
        share) sum_k w_k D_k S^-1 D_k) v = l S v``: all from parameters, none from rows. Between
        hubs ``S`` has what the means say, and no more.

        Parameters
        ----------
        share : float
            From 0 to 1, of the means: 1 leaves out how covariances differ, 0.5 counts both alike.

        Returns
        -------
        directions : ndarray of shape (d, p)
            Of length one, in the user's units; p is how many eigenvalues are not zero, at most d.
        values : ndarray of shape (p,)
            Eigenvalues, the largest first.

        Raises
        ------
        InputError
            If the share is none.

        Notes
        -----
        Scrucca (2010), Statistics and Computing 20, 471-484, section 3; scores are ``(X - mean) @
        directions``, to which every hub adds those of its own features (`project`).
        """
        share = check_number("share", share, least=0.0, most=1.0)
        weights, scale, mixture = self.assembled_weights, self.scaling.scale, cast(Any, self)
        one = Blocks.one(self.n_features)
        joint = mixture.joint if self.n_factors else self.convert_to(one, "full", self.scaling)
        means, full = joint.means, joint.covariance_blocks[0]
        away, off = means - weights @ means, full - np.tensordot(weights, full, axes=1)
        between = away.T @ (weights[:, None] * away)
        total = between + np.tensordot(weights, full, axes=1)
        unit = 1 / np.sqrt(np.diagonal(total))
        values, vectors = np.linalg.eigh(total * np.outer(unit, unit))
        whiten = unit[:, None] * vectors / np.sqrt(values)
        between, off = whiten.T @ between @ whiten, whiten.T @ off @ whiten
        kernel = share * between @ between + (1 - share) * np.tensordot(weights, off @ off, axes=1)
        values, vectors = np.linalg.eigh(2 * kernel)
        values, vectors = values[::-1], (whiten @ vectors)[:, ::-1] / scale[:, None]
        kept = values > SMALLEST_DIRECTION
        directions = vectors[:, kept] / np.linalg.norm(vectors[:, kept], axis=0)
        largest = np.abs(directions).argmax(axis=0)
        return directions * np.sign(directions[largest, range(len(largest))]), values[kept]

    def marginal(self, features: Sequence[int]) -> Mixture:
        """Return the mixture of some of the features: all others are integrated out.

        A marginal of a Gaussian has the rows and columns of its mean and covariance that are of
        these features, in each block. Some families of covariances are then no more: each
        component has one of its own.

        Parameters
        ----------
        features : sequence of int
            Which, in the user's numbering, in the order that they are to have.
        """
        chosen = np.asarray(features, dtype=np.intp)
        inside = [np.flatnonzero(np.isin(block, chosen)) for block in self.blocks.features]
        starts = zip(self.blocks.offsets, inside, strict=False)
        columns = np.concatenate([begin + one for begin, one in starts])
        if self.is_diagonal:
            covariances = self.covariances[:, columns]
        else:
            views = zip(self.covariance_blocks, inside, strict=True)
            covariances = np.concatenate(
                [view[:, one[:, None], one].ravel() for view, one in views]
            )
        located: Any = {
            name: np.ascontiguousarray(getattr(self, name)[:, columns])
            for name, where in self.named.items()
            if where == "columns"
        }
        kind = self.covariance_type
        if kind in DECOMPOSED and kind not in INVARIANT:
            kind = "diag" if self.is_diagonal else "full"
        return replace(
            self,
            **located,
            covariance_type=kind,
            blocks=self.blocks.among(chosen),
            covariances=np.ascontiguousarray(covariances),
            scaling=self.scaling.take_features(chosen),
        )

    def renumbered(self, columns: Sequence[int]) -> Mixture:
        """Return the same mixture of data whose columns stand in another order.

        Parameters
        ----------
        columns : sequence of int
            New column of each feature, shape (d,).
        """
        place = np.asarray(columns, dtype=np.intp)
        blocks = self.blocks.renumbered(place)
        shift, scale = np.empty(len(place)), np.empty(len(place))
        shift[place], scale[place] = self.scaling.shift, self.scaling.scale
        return replace(self, blocks=blocks, scaling=Scaling(shift, scale))

    def dense(self, b: int, places: Indices | None = None) -> Doubles:
        """Covariances (K, d_b, d_b) of block b, in scaled units, whatever they are stored as.

        Or those (K, n, n) of some of its features, given by place in block order.
        """
        k = self.n_components
        if places is None:
            places = np.arange(self.blocks.offsets[b], self.blocks.offsets[b + 1])
        if self.is_diagonal:
            variances = np.broadcast_to(self.covariances, self.means.shape)[:, places]
            return variances[:, :, None] * np.eye(len(places))
        inside = places - self.blocks.offsets[b]
        view = self.covariance_blocks[b]
        return np.broadcast_to(view, (k, *view.shape[1:]))[:, inside[:, None], inside]


@dataclass(frozen=True)
class Coordinates:
    """A mixture in unconstrained coordinates, or the difference of two.

    What lies over hubs has columns, or is ``flat``, hub by hub. Those of several families are
    ``inner`` ones, in which mixing weights do not count.
    """

    n_hubs: int  # B
    weights: Doubles  # (R, K) log mixing weights; 0 of components without weight
    hubs: Indices  # (n,) of each column
    columns: tuple[Doubles, ...] = ()  # (L, n) each: means and loadings, spreads, cells
    flat: Doubles = field(default_factory=lambda: np.zeros(0))
    """Log-Cholesky factors, as the mixture's covariances lie."""
    sizes: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.intp))  # (B,) of these
    inner: tuple[Coordinates, ...] = ()

    def minus(self, other: Coordinates) -> Coordinates:
        return replace(
            self,
            weights=self.weights - other.weights,
            columns=tuple(a - b for a, b in zip(self.columns, other.columns, strict=True)),
            flat=self.flat - other.flat,
            inner=tuple(a.minus(b) for a, b in zip(self.inner, other.inner, strict=True)),
        )

    def moved(self, steps: Doubles, along: Coordinates) -> Coordinates:
        """Return this point moved ``along`` a direction, each root (R,) by a step of its own."""
        of_columns = of_flat = steps
        if len(steps) > 1:
            of_columns = steps[self.hubs]
            of_flat = np.repeat(steps, self.sizes) if len(self.flat) else self.flat
        both = zip(self.columns, along.columns, strict=True)
        return replace(
            self,
            weights=self.weights + steps[:, None] * along.weights,
            columns=tuple(a + of_columns * b for a, b in both),
            flat=self.flat + of_flat * along.flat,
            inner=tuple(a.moved(steps, b) for a, b in zip(self.inner, along.inner, strict=True)),
        )

    def dot(self, other: Coordinates, share: float = 1.0) -> Doubles:
        """Inner product of each hub's part, (B,), with a share of its root's mixing weights."""
        weights = share * (self.weights * other.weights).sum(axis=1)
        products = np.broadcast_to(weights, self.n_hubs).copy()
        ends = [0, *np.cumsum(self.sizes).tolist()]
        if len(self.flat):
            products += [self.flat[a:b] @ other.flat[a:b] for a, b in pairwise(ends)]
        columns = np.zeros(len(self.hubs))
        for one, two in zip(self.columns, other.columns, strict=True):
            columns += (one * two).sum(axis=0)
        products += np.bincount(self.hubs, columns, self.n_hubs)
        for part, way in zip(self.inner, other.inner, strict=True):
            products += part.dot(way, 0.0)
        return products

    def shares(self, before: Doubles) -> Doubles:
        """Mixing weights (R, K) at this point, of those components that had some ``before``."""
        logs = np.where(before > 0, self.weights, -np.inf)
        weights: Doubles = np.exp(logs - logs.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return weights


def _diagonals(block: Doubles) -> Doubles:
    """View of the diagonals (n_copies, d_b) of matrices that lie one after the other."""
    copies, width, _ = block.shape
    return block.reshape(copies, width * width)[:, :: width + 1]


def start_of_mixture(mixture: Density) -> State:
    """Return the parameters in units of the data, to begin another fit at."""
    none = Scaling.none(mixture.n_features)
    return mixture.convert_to(mixture.blocks, mixture.covariance_type, none).arrays()


def mixture_of_start(start: State, like: Density) -> Density:
    """Return the mixture of checked parameters that `start_of_mixture` found.

    ``like`` has the blocks, and the number of components, that they must have.
    """
    none = Scaling.none(like.n_features)
    like = like.convert_to(like.blocks, like.covariance_type, none)
    check(like.schema(), start, KEPT)
    return like.having(start)
