"""The log-likelihood by importance sampling, and how far off it may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, gammaln

from vpem.checks import check_int, check_number
from vpem.errors import InputError
from vpem.saem.conditional import Conditional
from vpem.saem.linearized import linearized_log_likelihood
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.streams import Streams

BATCH = 250
MOST_NUMBERS = 1 << 22
"""Of draws of rows that are held at a time."""
FEW = 20
"""Draws a latent below which their correlations are shrunk."""


@dataclass(frozen=True)
class LogLikelihood:
    """A log-likelihood and its Monte Carlo error.

    It is ``linearized`` with curves that are made linear in the latents, as nlme has it; NaN where
    measurements given the latents are not normal.
    """

    value: float  # of all individuals
    error: float  # standard error; 0: there is a formula
    each: Vector  # (n,)
    effective: Vector  # (n,) draws' worth; inf: there is a formula
    linearized: float = math.nan


def importance_log_likelihood(
    model: SaemModel,
    theta: Vector,
    given: Conditional,
    streams: Streams,
    *,
    after: int,  # iterations that have used the streams
    n_draws: int = 5000,  # of each individual
    freedom: float = 5.0,  # degrees of freedom of the t law
) -> LogLikelihood:
    """Estimate the log-likelihood with a t law about each individual's conditional mean.

    A model with discrete latents, or a wide one, has a formula, which is taken. The error is by the
    delta method, individuals independent.
    """
    check_int("importance draws", n_draws, least=10)
    check_number("degrees of freedom", freedom, least=1, most=1000)
    n, q = given.means.shape
    among = model.individuals
    each = model.marginal(theta)
    if each is not None or model.discrete or model.wide:
        if each is None:
            raise InputError(
                f"{type(model).__name__} is wide, or has discrete latents, and no marginal: give "
                "it that method"
            )
        return LogLikelihood(float(among.total(each)), 0.0, each, np.full(n, np.inf))
    roots = _roots(given)
    log_det = np.log(np.einsum("nii->ni", roots)).sum(axis=1)
    constant = gammaln((freedom + q) / 2) - gammaln(freedom / 2) - q / 2 * np.log(freedom * np.pi)
    most = np.full(n, -np.inf)
    first, second = np.zeros(n), np.zeros(n)
    done = 0
    while done < n_draws:
        size = min(BATCH, n_draws - done)
        now = after + 1 + done // BATCH
        normals = streams.at(now, 0).normals(size, q)
        chi = chdtri(freedom, streams.at(now, 1).uniforms(size, 1))
        apart = normals * np.sqrt(freedom / chi)
        z = given.means + np.einsum("nij,cnj->cni", roots, apart)
        tail = np.log1p((apart**2).sum(axis=-1) / freedom)
        log_proposal = constant - log_det - (freedom + q) / 2 * tail
        pieces = np.array_split(z, max(1, min(size, size * among.n_rows // MOST_NUMBERS)))
        each_draw = np.concatenate([model.log_complete(some, theta) for some in pieces])
        log_weights = each_draw - log_proposal
        top = np.maximum(most, log_weights.max(axis=0))
        top = np.where(np.isfinite(top), top, 0.0)
        shrink = np.exp(most - top)
        weights = np.exp(log_weights - top)
        first = first * shrink + weights.sum(axis=0)
        second = second * shrink**2 + (weights**2).sum(axis=0)
        most = top
        done += size
    mean = first / n_draws
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.log(mean) + most
        variance = (second / n_draws - mean**2) / (mean**2 * n_draws)
        effective = first**2 / second
    # Copies of an individual have the same draws.
    error = float(np.sqrt(among.total(among.weighed(np.maximum(variance, 0.0), among.weights))))
    tangent = linearized_log_likelihood(model, theta, given.means)
    return LogLikelihood(float(among.total(each)), error, each, effective, tangent)


def _roots(given: Conditional) -> Vector:
    """Lower roots (n, q, q) of conditional covariances, which few draws may leave singular.

    Correlations of few draws are shrunk, so that no direction is left out, and variances that are
    zero are taken as small ones.
    """
    q = given.means.shape[1]
    sd = np.sqrt(np.einsum("nii->ni", given.covariances))
    sd = np.where(sd > 0, sd, 1e-8 * np.maximum(np.abs(given.means), 1e-8))
    correlations = given.covariances / (sd[:, :, None] * sd[:, None, :])
    if given.n_draws < FEW * (q + 1):
        correlations *= 1 - min(0.5, (q + 1) / given.n_draws)
    correlations[:, range(q), range(q)] = 1.0
    values, vectors = np.linalg.eigh(correlations)
    values = np.maximum(values, 1e-12)
    found: Vector = np.linalg.cholesky(np.einsum("nij,nj,nkj->nik", vectors, values, vectors))
    return sd[:, :, None] * found
