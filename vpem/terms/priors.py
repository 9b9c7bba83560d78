"""Conjugate priors of a Gaussian mixture: Dirichlet weights, normal-Wishart hubs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError, Setting
from vpem.network.partition import Blocks
from vpem.terms.covariances import block_views, is_independent
from vpem.terms.mixture import Mixture

Vector = NDArray[np.float64]

DIRICHLET = "dirichlet_distribution"
"""Prior of mixing weights, by scikit-learn's name."""


@dataclass(frozen=True)
class Prior:
    """What is believed of a mixture before its rows are seen.

    A hub's precision matrix is Wishart with ``degrees_of_freedom`` and the inverse scale matrix
    ``covariances``; its mean, given the precision, is normal about ``means``. The prior covariance
    of a component that sees no row is thus ``covariances / degrees_of_freedom``.

    Attributes
    ----------
    kind : str
        "dirichlet_distribution", or "dirichlet_process": sticks of Beta(1, concentration) broken
        K times.
    concentration : float
        Of the mixing weights; the less, the fewer components are in use.
    mean_precision : float
        Rows that the prior mean is worth.
    degrees_of_freedom : ndarray of shape (B,)
        Of each hub's Wishart distribution, above its number of features less one.
    means : ndarray of shape (d,)
        In block order and units of fitting.
    covariances : ndarray
        Shaped as the covariances of a mixture of one component.
    """

    kind: str
    concentration: float
    mean_precision: float
    degrees_of_freedom: Vector
    means: Vector
    covariances: Vector

    def concentrations(self, counts: Vector) -> Vector:
        """Parameters of the weights' posterior (R, C, K), given effective rows (R, K).

        C is 1 for a Dirichlet distribution; the two of each Beta distribution for a process.
        """
        if self.kind == DIRICHLET:
            return (self.concentration + counts)[:, None]
        after = np.zeros_like(counts)
        after[:, :-1] = np.cumsum(counts[:, :0:-1], axis=1)[:, ::-1]
        return np.stack([1.0 + counts, self.concentration + after], axis=1)

    def log_weights(self, counts: Vector) -> Vector:
        """Expected logarithms of the mixing weights (R, K), given effective rows (R, K)."""
        from scipy.special import digamma

        found = self.concentrations(counts)
        if self.kind == DIRICHLET:
            return np.asarray(digamma(found[:, 0]) - digamma(found.sum(axis=2)))
        taken, left = digamma(found).swapaxes(0, 1)
        whole = digamma(found.sum(axis=1))
        before = np.zeros_like(counts)
        before[:, 1:] = np.cumsum(left - whole, axis=1)[:, :-1]
        return np.asarray(taken - whole + before)

    def weights(self, counts: Vector) -> Vector:
        """Expected mixing weights (R, K), given effective rows (R, K); they add up to 1."""
        found = self.concentrations(counts)
        if self.kind == DIRICHLET:
            return np.asarray(found[:, 0] / found.sum(axis=2))
        taken, left = (found / found.sum(axis=1, keepdims=True)).swapaxes(0, 1)
        before = np.ones_like(counts)
        before[:, 1:] = np.cumprod(left, axis=1)[:, :-1]
        weights = taken * before
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def divergence(self, counts: Vector) -> Vector:
        """Kullback-Leibler divergence (R,) of the weights' posterior from the prior, in nats."""
        from scipy.special import betaln, digamma, gammaln

        found = self.concentrations(counts)
        if self.kind == DIRICHLET:
            own, k = found[:, 0], counts.shape[1]
            normal = gammaln(own.sum(axis=1)) - gammaln(own).sum(axis=1)
            normal -= gammaln(k * self.concentration) - k * gammaln(self.concentration)
            return np.asarray(normal + (counts * self.log_weights(counts)).sum(axis=1))
        taken, left = found.swapaxes(0, 1)
        parts = betaln(1.0, self.concentration) - betaln(taken, left)
        parts += (taken - 1) * digamma(taken) + (left - self.concentration) * digamma(left)
        parts += (1 + self.concentration - taken - left) * digamma(taken + left)
        return np.asarray(parts.sum(axis=1))


@dataclass(frozen=True)
class Beliefs:
    """What a prior is made of beside what hubs know of their own features.

    Attributes
    ----------
    kind, concentration, mean_precision
        As of `Prior`.
    degrees_of_freedom : float or None
        Of every hub; None: as many as it has features.
    scale : float
        Prior scale matrix in sample covariances.
    reg_covar : ndarray of shape (d,)
        Added to the diagonal of the prior scale matrix, in block order and units of fitting.
    """

    kind: str
    concentration: float
    mean_precision: float
    degrees_of_freedom: float | None
    scale: float
    reg_covar: Vector

    def prior(self, sample: Mixture, weight: float) -> Prior:
        """Return the prior about the sample mean and covariance of rows of this weight, above 1.

        ``sample`` is one component fitted to all rows, with nothing added to its covariance.
        """
        sizes = wishart_sizes(sample.blocks, sample.covariance_type)
        freedom, widths = self.degrees_of_freedom, sample.blocks.widths
        check_prior(self.kind, weight, sizes if freedom is None else freedom, sizes)
        covariances = self.scale * (weight / (weight - 1)) * sample.covariances
        if sample.is_diagonal:
            covariances += self.reg_covar
        else:
            ends = pairwise(sample.blocks.offsets)
            for view, (a, b) in zip(block_views(covariances, widths, 1), ends, strict=True):
                view += np.diag(self.reg_covar[a:b])
        return self.with_known(sizes, sample.means[0], covariances)

    def with_known(self, sizes: NDArray[np.intp], means: Vector, covariances: Vector) -> Prior:
        """Return the prior of these means and this scale matrix, of matrices of these sizes."""
        degrees = sizes.astype(np.float64)
        if self.degrees_of_freedom is not None:
            degrees[:] = self.degrees_of_freedom
        return Prior(
            self.kind, self.concentration, self.mean_precision, degrees, means, covariances
        )


def wishart_sizes(blocks: Blocks, covariance_type: str) -> NDArray[np.intp]:
    """Features (B,) whose precision matrix has one distribution: a hub's, or each its own."""
    return np.ones_like(blocks.widths) if is_independent(covariance_type) else blocks.widths.clip(1)


def check_prior(kind: str, weight: float, freedom: Any, sizes: NDArray[np.intp]) -> None:
    """Refuse a prior beside rows of little weight, or of too few degrees of freedom (B,)."""
    if not weight > 1:
        raise InputError(
            Setting("weight_concentration_prior_type", kind), " counts what rows weigh against a "
            f"prior that is worth whole rows, but all together weigh {weight:g}; multiply their "
            "weights, or leave it out",
        )  # fmt: skip
    few = np.flatnonzero(freedom <= sizes - 1)
    if len(few):
        widest = int(sizes.max())
        asked = float(np.broadcast_to(freedom, sizes.shape)[few[0]])
        raise InputError(
            Setting("degrees_of_freedom_prior", asked), " must be above the number of features of "
            f"the widest hub less 1, {widest - 1}: a Wishart distribution has no fewer",
        )  # fmt: skip
