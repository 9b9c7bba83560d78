"""The log-likelihood of a model whose curves are made linear in the latents."""

from __future__ import annotations

import numpy as np

from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.models.normal import LOG_2_PI

NUDGE = 1e-4
"""Of a latent, in its sd between individuals, for the slopes of curves."""


def linearized_log_likelihood(model: SaemModel, theta: Vector, means: Vector) -> float:
    """Return the log-likelihood where each curve is its tangent at the individual's latents.

    Measurements of an individual are then normal, with mean ``f(z) + J (m - z)`` and covariance
    ``J Omega J^T + Sigma(z)``: J the slopes of the curve, m and Omega the latents' mean and
    covariance before rows, Sigma the residual variances. Exact where curves are lines. Tangents
    touch at conditional means (n, q). NaN where measurements given the latents are not normal, or
    limits, or certain.
    """
    if not model.normal_rows:
        return float("nan")
    mine, model = model.individuals, model.about(theta)
    with np.errstate(all="ignore"):
        each = _each(model, theta, means)
    censored = mine.covariates.get("censored")
    if censored is not None:
        each = np.where(mine.sums(np.abs(censored)) > 0, np.nan, each)
    return float(mine.total(each))


def _each(model: SaemModel, theta: Vector, means: Vector) -> Vector:
    """Log-likelihoods (n,)."""
    model = model.about(theta)
    mine, q = model.individuals, means.shape[1]
    prior, omega = model.prior(theta, mine)
    values, vectors = np.linalg.eigh(omega)
    root = vectors * np.sqrt(np.maximum(values, 0.0))  # omega may have no inverse
    steps = NUDGE * np.where(np.diag(omega) > 0, np.sqrt(np.diag(omega)), 1.0)
    nudges = np.concatenate([np.zeros((1, q)), np.diag(steps), -np.diag(steps)])
    curves = model.curve(means + nudges[:, None, :], mine)
    slopes = ((curves[1 : q + 1] - curves[q + 1 :]) / (2 * steps[:, None])).T  # (N, q)
    sds = model.row_sds(means[None], theta, mine)[0]
    of_rows = (means - prior)[mine.individual_of]
    rest = (mine.values - curves[0] + (slopes * of_rows).sum(axis=1)) / sds
    slopes = slopes @ root / sds[:, None]
    inner = np.empty((len(means), q, q))
    right = np.empty((len(means), q))
    for i in range(q):
        right[:, i] = mine.sums(slopes[:, i] * rest)
        for j in range(q):
            inner[:, i, j] = mine.sums(slopes[:, i] * slopes[:, j])
    inner[:, range(q), range(q)] += 1.0
    inner[~np.isfinite(inner).all(axis=(1, 2))] = np.nan * np.eye(q)
    known = np.linalg.solve(np.where(np.isnan(inner), np.eye(q), inner), right[..., None])[..., 0]
    squares = mine.sums(rest**2) - (right * known).sum(axis=1)
    sizes = mine.sums(2 * np.log(sds)) + np.linalg.slogdet(inner)[1]
    found: Vector = -0.5 * (mine.counts * LOG_2_PI + squares + sizes)
    return found
