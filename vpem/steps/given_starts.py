"""Starts of which some parameters are given, and what a fit that goes on judges its change by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.errors import InputError, Setting
from vpem.network.partition import Blocks
from vpem.terms.covariances import is_diagonal, is_tied
from vpem.terms.mixture import Mixture
from vpem.terms.scaling import Scaling

Vector = NDArray[np.float64]

PARTS = ("weights", "means", "covariances")
"""Of a mixture, by the names of its attributes."""


@dataclass(frozen=True)
class GivenStart:
    """Where EM starts, if that is more than the name of a start."""

    init: Any  # of parameters not given
    given: Mixture | None = None  # features in one block, in the user's units
    parts: tuple[str, ...] = ()  # of "weights", "means", "covariances"
    last: Vector | None = None  # (R,) log-likelihood per sample before, for the first change

    @classmethod
    def of(cls, init: Any) -> GivenStart:
        """Return a start as such, whatever form it has."""
        return init if isinstance(init, cls) else cls(init)

    @classmethod
    def at(
        cls,
        init: Any,
        covariance_type: str,
        shape: tuple[int, int],
        weights: ArrayLike | None = None,
        means: ArrayLike | None = None,
        precisions: ArrayLike | None = None,
    ) -> GivenStart:
        """Return the start at some parameters, and at what ``init`` finds of the others, if any.

        ``shape`` is (K, d), weights (K,), and means (K, d) are in the user's units. Precisions are
        inverse covariances: (K, d, d) full, (d, d) tied, (K, d) diagonal, (d,) tied-diagonal, (K,)
        spherical, one number tied-spherical.
        """
        k, d = shape
        found = {
            "weights": None if weights is None else _weights(weights, k),
            "means": None if means is None else _array("means_init", means, shape),
            "covariances": None
            if precisions is None
            else _covariances(precisions, covariance_type, k, d),
        }
        parts = tuple(name for name in PARTS if found[name] is not None)
        if not parts:
            return cls(init)
        copies = 1 if is_tied(covariance_type) else k
        unknown = np.ones((copies, d))
        if not is_diagonal(covariance_type):
            unknown = np.tile(np.eye(d).ravel(), copies)
        placeholders = {
            "weights": np.full((1, k), 1.0 / k), "means": np.zeros(shape), "covariances": unknown,
        }  # fmt: skip
        values: dict[str, Any] = {
            name: placeholders[name] if value is None else value for name, value in found.items()
        }
        blocks = Blocks((np.arange(d),), (0,), ((0,),))
        mixture = Mixture(blocks, covariance_type, scaling=Scaling.none(d), **values)
        return cls(mixture) if parts == PARTS else cls(init, mixture, parts)

    def over(self, start: Mixture, place: Callable[[Mixture], Mixture]) -> Mixture:
        """Return a start with the parameters that are given.

        ``place`` returns a mixture of all features over the start's blocks and in its units.
        """
        if self.given is None:
            return start
        own = place(self.given)
        values = {name: getattr(own, name) for name in self.parts}
        if "weights" in values:
            values["weights"] = np.broadcast_to(values["weights"], start.weights.shape).copy()
        return replace(start, **values)


def _array(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Vector:
    """Return finite numbers of this shape."""
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(Setting(name), f" must be numbers, got {values!r}") from None
    if found.shape != shape:
        raise InputError(Setting(name), f" must have shape {shape}, got {found.shape}")
    if not np.isfinite(found).all():
        raise InputError(Setting(name), " must be finite")
    return found


def _weights(values: ArrayLike, n_components: int) -> Vector:
    """Return mixing weights (1, K)."""
    found = _array("weights_init", values, (n_components,))
    total = float(found.sum())
    if found.min() < 0 or found.max() > 1 or not np.isclose(total, 1, rtol=1e-6):
        raise InputError(
            Setting("weights_init"),
            f" must be from 0 to 1 and add up to 1, got {found.min():g} to {found.max():g} with "
            f"the sum {total:g}; divide them by it",
        )
    return (found / total)[None]


def _covariances(values: ArrayLike, covariance_type: str, k: int, d: int) -> Vector:
    """Return covariances as a mixture of one block has them, of precisions as users give them."""
    name = "precisions_init"
    copies = () if is_tied(covariance_type) else (k,)
    inner: tuple[int, ...] = (d,) if is_diagonal(covariance_type) else (d, d)
    inner = () if covariance_type.endswith("spherical") else inner
    found = _array(name, values, (*copies, *inner))
    if is_diagonal(covariance_type):
        if not (found > 0).all():
            raise InputError(Setting(name), f" must be positive, got {found.min():g}")
        column = found.reshape(-1, inner[0] if inner else 1)
        return np.ascontiguousarray(np.broadcast_to(1 / column, (len(column), d)))
    stack = found.reshape(-1, d, d)
    if not np.allclose(stack, stack.transpose(0, 2, 1)) or np.linalg.eigvalsh(stack).min() <= 0:
        raise InputError(Setting(name), " must be symmetric and positive definite")
    inverse = np.linalg.inv(stack)
    return ((inverse + inverse.transpose(0, 2, 1)) / 2).ravel()
