"""The latents given the rows, at parameters that stay: means, intervals, moments of statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from vpem.checks import check_int, check_memory, check_number
from vpem.errors import NumericalError
from vpem.saem.chains import Chains, Sampler
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.streams import Streams

FAINT = 0.05
"""Correlation from which on draws are as good as independent."""

STRONG = 0.3
"""Correlation at the largest lag by which draws stay alike."""

MOST_NUMBERS = 1 << 24
"""Of draws of a wide model that are held at a time."""


@dataclass(frozen=True)
class Conditional:
    """What draws of the latents given the rows say.

    ``spread`` is the total of the conditional covariances of each individual's statistic.
    ``shrinkage`` is the share of a latent's variance between individuals (of those with the same
    covariates) that their means do not show: 0 where rows say all of it, 1 where they say nothing.
    ``times`` are iterations that are worth one independent draw, over all individuals: inf where
    draws stay alike for as long as was looked, NaN for a wide model.
    """

    means: Vector  # (n, q) of latents as they are reported
    covariances: Vector  # (n, q, q); wide: (n, 0, 0)
    lower: Vector  # (n, q) end of an interval
    upper: Vector  # (n, q)
    level: float  # probability of an interval
    statistics: Vector  # (P,) total of conditional means; wide: (0,)
    spread: Vector  # (P, P); wide: (0, 0)
    shrinkage: Vector  # (q,)
    n_draws: int  # of each individual; 0: formulas
    times: Vector  # (q,)


def sample_conditional(
    model: SaemModel,
    theta: Vector,
    sampler: Sampler,
    chains: Chains,
    streams: Streams,
    *,
    after: int,  # iterations that have used the streams
    late: int,  # iterations since the burn-in
    n_iter: int = 200,
    level: float = 0.95,  # probability of the intervals
) -> Conditional:
    """Move chains on at fixed parameters and average what they show, with steps 1/k.

    The sampler is not adapted any more, chains are changed in place, and ``n_iter`` draws are taken
    of each.
    """
    check_int("n_conditional", n_iter, least=2)
    check_number("level", level, least=0.01, most=0.999)
    if model.wide:
        return _sample_blocks(model, theta, sampler, chains, streams, after, late, n_iter, level)
    model = model.about(theta)
    n_chains, n, q = chains.z.shape
    check_memory(2 * 8 * n_iter * n_chains * n * q, "the draws of all individuals")
    draws = np.empty((n_iter * n_chains, n, q))
    middle = model.statistics(chains.z)  # about which squares are added: nothing cancels
    with np.errstate(over="ignore", invalid="ignore"):
        first, second = _walk(model, theta, sampler, chains, streams, draws, middle, after, late)
    if not np.isfinite(second).all():
        raise NumericalError(
            "latents ran away at the estimates; take smaller steps, or another sampler than "
            f"{sampler.name}"
        )
    n_draws = n_iter * n_chains
    first /= n_draws
    means = draws.mean(axis=0)
    apart = draws - means
    covariances = np.einsum("cni,cnj->nij", apart, apart) / n_draws
    seen, among = model.shown(draws), model.individuals
    lower, upper = np.quantile(seen, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Conditional(
        means,
        covariances,
        lower,
        upper,
        level,
        among.total(middle + first),
        among.add(_about(second / n_draws, first, among)),
        _shrinkage(model, theta, means, seen.var(axis=0)),
        n_draws,
        np.ones(q) if sampler.name == "exact" else _times(draws, means, n_chains, among),
    )


def exact_conditional(model: SaemModel, theta: Vector, level: float) -> Conditional:
    """Say the same of latents whose law given the rows is normal, without draws."""
    check_number("level", level, least=0.01, most=0.999)
    model = model.about(theta)
    means, covariances = model.posterior(theta)
    variances = np.einsum("nii->ni", covariances)
    half = ndtri((1 + level) / 2) * np.sqrt(np.maximum(variances, 0.0))
    none = np.empty((0, 0))
    return Conditional(
        means, covariances, means - half, means + half, level, none.ravel(), none,
        _shrinkage(model, theta, means, variances), 0, np.ones(means.shape[1]),
    )  # fmt: skip


def _shrinkage(model: SaemModel, theta: Vector, means: Vector, variances: Vector) -> Vector:
    """Share (q,) of latents' variances between individuals that their means do not show."""
    within = model.individuals.mean(variances)
    total = within + model.individuals.variance(
        model.shown(means) - model.shown(model.typical(theta))
    )
    return np.asarray(np.divide(within, total, out=np.zeros(len(total)), where=total > 0))


def _times(draws: Vector, means: Vector, n_chains: int, among: Individuals) -> Vector:
    """Autocorrelation times (q,) of draws (iterations x chains, n, q), in iterations.

    Correlations are about the mean over all chains, so that chains that are apart and stay there
    are alike, and are averaged over individuals.
    """
    apart = (draws - means).reshape(len(draws) // n_chains, n_chains, *means.shape)
    variances = (apart**2).mean(axis=(0, 1))
    times, alike = np.ones(means.shape[1]), np.ones(means.shape[1])
    for lag in range(1, len(apart) // 2 + 1):
        products = np.einsum("tcnj,tcnj->nj", apart[lag:], apart[:-lag])
        products /= n_chains * (len(apart) - lag)
        each = np.divide(products, variances, out=np.ones_like(products), where=variances > 0)
        alike = np.where(alike > FAINT, among.mean(each), 0.0)
        times += 2 * np.maximum(alike, 0.0)
        if not (alike > FAINT).any():
            break
    return np.where(alike > STRONG, np.inf, times)


def _sample_blocks(
    model: SaemModel,
    theta: Vector,
    sampler: Sampler,
    chains: Chains,
    streams: Streams,
    after: int,
    late: int,
    n_iter: int,
    level: float,
) -> Conditional:
    """Draw latents of a wide model, of some individuals at a time, and no statistics."""
    n_chains, n, q = chains.z.shape
    means, variances, lower, upper = np.zeros((4, n, q))
    size = max(1, MOST_NUMBERS // (n_iter * n_chains * q))
    for begin in range(0, n, size):
        some = np.arange(begin, min(n, begin + size))
        own, part, keys = model.take(some), chains.take(some), streams.take(some)
        draws = np.empty((n_iter * n_chains, len(some), q))
        for k in range(n_iter):
            sampler.move(own, theta, part, keys, after + k + 1, max(1, late + k))
            draws[k * n_chains : (k + 1) * n_chains] = own.shown(part.z)
        chains.put(some, part)
        means[some], variances[some] = draws.mean(axis=0), draws.var(axis=0)
        lower[some], upper[some] = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    if not np.isfinite(means).all():
        raise NumericalError(
            f"latents ran away at the estimates; take smaller steps, or another sampler than "
            f"{sampler.name}"
        )
    among = model.individuals
    within, between = among.mean(variances), among.variance(means)
    none = np.empty((0, 0))
    return Conditional(
        means, np.empty((n, 0, 0)), lower, upper, level, none[0:0].ravel(), none,
        np.divide(within, within + between, out=np.zeros(q), where=within + between > 0),
        n_iter * n_chains, np.full(q, np.nan),
    )  # fmt: skip


def _about(second: Vector, first: Vector, among: Individuals) -> Vector:
    """Second moments (m, P, P) of each part about the means of its individuals (n, P)."""
    heavy = among.weighed(first, among.weights)
    parts = zip(second, among.parts, strict=True)
    each = [own - first[part].T @ heavy[part] for own, part in parts]
    return np.array(each).reshape(second.shape)


def _walk(
    model: SaemModel,
    theta: Vector,
    sampler: Sampler,
    chains: Chains,
    streams: Streams,
    draws: Vector,
    middle: Vector,
    after: int,
    late: int,
) -> tuple[Vector, Vector]:
    """Fill draws; sums of statistics (n, P), and of all their products about a middle, by part."""
    n_chains, size, data = len(chains.z), middle.shape[1], model.individuals
    first = np.zeros_like(middle)
    second = np.zeros((len(data.parts), size, size))
    for k in range(len(draws) // n_chains):
        sampler.move(model, theta, chains, streams, after + k + 1, max(1, late + k))
        draws[k * n_chains : (k + 1) * n_chains] = chains.z
        apart = model.statistics_by_chain(chains.z) - middle
        first += apart.sum(axis=0)
        heavy = apart if data.weights is None else apart * data.weights[:, None]
        for own, part in zip(second, data.parts, strict=True):
            own += apart[:, part].reshape(-1, size).T @ heavy[:, part].reshape(-1, size)
    return first, second
