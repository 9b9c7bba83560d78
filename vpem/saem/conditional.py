"""The latents given the rows, at parameters that stay, and what follows from them.

Means, intervals and moments of statistics by draws or formulas; the observed information by Louis'
formula, what completed rows say less what latents hide; the log-likelihood by importance sampling,
and that of a model whose curves are made linear in the latents.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from functools import partial

import numpy as np

from vpem.checks import Doubles, check_int, check_memory, check_number
from vpem.errors import InputError, NumericalError
from vpem.network.schema import Report
from vpem.saem import special
from vpem.saem.individuals import Individuals, Streams
from vpem.saem.models.model import LOG_2_PI, SaemModel
from vpem.saem.samplers import Chains, Sampler

FAINT = 0.05
"""Correlation from which on draws are as good as independent."""

STRONG = 0.3
"""Correlation at the largest lag by which draws stay alike."""

MOST_NUMBERS = 1 << 24
"""Of draws of a wide model that are in memory at a time."""

DROP = 5e-5
"""Of a log-density, by a nudge of one parameter: a hundredth of its standard error, were no latents
hidden, whatever its units."""

DISTINCT = 5.0
"""Least share of a parameter's complete information that draws can tell from none, if independent
ones of as many individuals: over the root of their number."""

NUDGE = 1e-4
"""Of a latent, in its sd between individuals, for the slopes of curves."""

BATCH = 250
MOST_DRAWN = 1 << 22
"""Of draws of rows that are in memory at a time."""

FEW = 20
"""Draws a latent below which their correlations are shrunk."""


@dataclass(frozen=True)
class Conditional:
    """What draws of the latents given the rows say.

    ``spread`` is the total of the conditional covariances of each individual's statistic.
    ``shrinkage`` is the share of a latent's variance between individuals (of those with the same
    covariates) that their means do not show: 0 where rows say all of it, 1 where they say nothing.
    ``times`` are iterations that are worth one independent draw, over all individuals: inf where
    draws stay alike for as long as was looked, NaN for a wide model.
    """

    means: Doubles  # (n, q) of latents as they are reported
    covariances: Doubles  # (n, q, q); wide: (n, 0, 0)
    lower: Doubles  # (n, q) end of an interval
    upper: Doubles  # (n, q)
    level: float  # probability of an interval
    statistics: Doubles  # (P,) total of conditional means; wide: (0,)
    spread: Doubles  # (P, P); wide: (0, 0)
    shrinkage: Doubles  # (q,)
    n_draws: int  # of each individual; 0: formulas
    times: Doubles  # (q,)


def sample_conditional(
    model: SaemModel,
    theta: Doubles,
    sampler: Sampler,
    chains: Chains,
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
        return _sample_blocks(model, theta, sampler, chains, after, late, n_iter, level)
    model = model.expand_about(theta)
    n_chains, n, q = chains.z.shape
    n_draws = n_iter * n_chains
    check_memory(2 * 8 * n_draws * n * q, "the draws of all individuals")
    draws = np.empty((n_draws, n, q))
    middle = model.statistics(chains.z)  # about which squares are added: nothing cancels
    among, size = model.individuals, middle.shape[1]
    first = np.zeros_like(middle)  # sums of statistics (n, P), and of their products, by part
    second = np.zeros((len(among.parts), size, size))
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(n_iter):
            sampler.move(model, theta, chains, after + k + 1, max(1, late + k))
            draws[k * n_chains : (k + 1) * n_chains] = chains.z
            apart = model.statistics_by_chain(chains.z) - middle
            first += apart.sum(axis=0)
            heavy = apart if among.weights is None else apart * among.weights[:, None]
            for moments, part in zip(second, among.parts, strict=True):
                moments += apart[:, part].reshape(-1, size).T @ heavy[:, part].reshape(-1, size)
    _check_finite(second, sampler)
    first /= n_draws
    heavy = among.weighed(first, among.weights)
    parts = zip(second / n_draws, among.parts, strict=True)
    # Second moments of each part about the means of its individuals.
    second = np.array([moments - first[part].T @ heavy[part] for moments, part in parts])
    means = draws.mean(axis=0)
    apart = draws - means
    covariances = np.einsum("cni,cnj->nij", apart, apart) / n_draws
    reported = model.shown(draws)
    lower, upper = np.quantile(reported, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Conditional(
        means,
        covariances,
        lower,
        upper,
        level,
        among.total(middle + first),
        among.add(second.reshape(len(second), size, size)),
        _shrinkage(model, theta, means, reported.var(axis=0)),
        n_draws,
        np.ones(q) if sampler.name == "exact" else _times(draws, means, n_chains, among),
    )


def _sample_blocks(
    model: SaemModel,
    theta: Doubles,
    sampler: Sampler,
    chains: Chains,
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
        block = np.arange(begin, min(n, begin + size))
        part, some = model.take_individuals(block), chains.take_individuals(block)
        draws = np.empty((n_iter * n_chains, len(block), q))
        for k in range(n_iter):
            sampler.move(part, theta, some, after + k + 1, max(1, late + k))
            draws[k * n_chains : (k + 1) * n_chains] = part.shown(some.z)
        chains.put(block, some)
        means[block], variances[block] = draws.mean(axis=0), draws.var(axis=0)
        lower[block], upper[block] = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    _check_finite(means, sampler)
    among = model.individuals
    within, between = among.mean(variances), among.variance(means)
    none = np.empty((0, 0))
    return Conditional(
        means, np.empty((n, 0, 0)), lower, upper, level, none[0:0].ravel(), none,
        np.divide(within, within + between, out=np.zeros(q), where=within + between > 0),
        n_iter * n_chains, np.full(q, np.nan),
    )  # fmt: skip


def exact_conditional(model: SaemModel, theta: Doubles, level: float) -> Conditional:
    """Say the same of latents whose law given the rows is normal, without draws."""
    check_number("level", level, least=0.01, most=0.999)
    model = model.expand_about(theta)
    means, covariances = model.posterior(theta)
    variances = np.einsum("nii->ni", covariances)
    half = special.ndtri((1 + level) / 2) * np.sqrt(np.maximum(variances, 0.0))
    none = np.empty((0, 0))
    return Conditional(
        means, covariances, means - half, means + half, level, none.ravel(), none,
        _shrinkage(model, theta, means, variances), 0, np.ones(means.shape[1]),
    )  # fmt: skip


def _shrinkage(model: SaemModel, theta: Doubles, means: Doubles, variances: Doubles) -> Doubles:
    """Share (q,) of latents' variances between individuals that their means do not show."""
    within = model.individuals.mean(variances)
    total = within + model.individuals.variance(
        model.shown(means) - model.shown(model.typical(theta))
    )
    return np.asarray(np.divide(within, total, out=np.zeros(len(total)), where=total > 0))


def _times(draws: Doubles, means: Doubles, n_chains: int, among: Individuals) -> Doubles:
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


def _check_finite(moments: Doubles, sampler: Sampler) -> None:
    if not np.isfinite(moments).all():
        raise NumericalError(
            "latents ran away at the estimates; take smaller steps, or another sampler than "
            f"{sampler.name}"
        )


@dataclass(frozen=True)
class Certainty:
    """How sure estimates are; `information` and `covariance` are (0, 0) of a wide model.

    ``freedom`` are degrees of freedom of the t laws by which intervals and tests of coefficients
    are: of lines Satterthwaite's, else the individuals less the coefficients. Infinite: a normal
    law. ``test_errors`` are standard errors for these: of lines by the variances of restricted
    maximum likelihood.
    """

    information: Doubles  # (p, p)
    covariance: Doubles  # (p, p)
    errors: Doubles  # (p,); NaN: there are none
    freedom: Doubles  # (p,)
    test_errors: Doubles  # (p,)

    @staticmethod
    def from_draws(model: SaemModel, theta: Doubles, conditional: Conditional) -> Certainty:
        """By draws of latents; of a wide model nothing is known."""
        if model.wide:
            none, unknown = np.empty((0, 0)), np.full(len(theta), np.nan)
            return Certainty(none, none, unknown, unknown, unknown)
        information = observed_information(model, theta, conditional)
        covariance = covariance_of(information, model.constraints(theta))
        errors, freedom = np.sqrt(np.diag(covariance)), np.full(len(theta), np.inf)
        p = model.n_coefficients
        freedom[:p] = max(1.0, model.individuals.number[0] - p)
        return Certainty(information, covariance, errors, freedom, errors)

    def turned(self, by: Doubles) -> Certainty:
        """Of parameters that are ``by`` (p, p) times these; NaN if of none that has an error."""
        sure = ~np.isnan(np.diag(self.covariance))
        known = (by[:, sure] != 0).any(axis=1)
        block = np.ix_(known, known)
        information, covariance = np.full((2, *by.shape), np.nan)
        part = by[np.ix_(known, sure)]
        covariance[block] = part @ self.covariance[np.ix_(sure, sure)] @ part.T
        if sure.all():
            back = np.linalg.inv(by)
            information = back.T @ self.information @ back
        else:
            information[block] = np.linalg.pinv(covariance[block], rcond=1e-14, hermitian=True)
        errors = np.sqrt(np.diag(covariance))
        return Certainty(information, covariance, errors, self.freedom, errors)


def covariance_of(information: Doubles, constraints: Doubles | None = None) -> Doubles:
    """Covariance (p, p) of estimates, the inverse of their information; NaN where that is.

    Rows and columns are scaled before, so that units do not matter. Parameters whose information is
    NaN are taken as known; where the others' is not positive definite all are NaN. Information is
    of parameters as if each could change alone; the covariance is that of changes of which the sums
    ``constraints`` (c, p) are zero (`SaemModel.constraints`).
    """
    covariance = np.full(information.shape, np.nan)
    keep = np.flatnonzero(~np.isnan(np.diag(information)))
    part = information[np.ix_(keep, keep)]
    sizes = np.sqrt(np.maximum(np.diag(part), 0.0))
    if not len(keep) or not (sizes > 0).all() or not np.isfinite(part).all():
        return covariance
    free = np.eye(len(keep))  # directions in which parameters can change
    if constraints is not None and len(constraints):
        from scipy.linalg import null_space  # takes long to load

        free = null_space(constraints[:, keep] / sizes)
        free[np.abs(free) < 1e-12] = 0.0
    values, vectors = np.linalg.eigh(free.T @ (part / np.outer(sizes, sizes)) @ free)
    if len(values) and values[0] > 1e-10:
        root = (free @ vectors) / np.sqrt(values) / sizes[:, None]
        covariance[np.ix_(keep, keep)] = root @ root.T
    return covariance


def observed_information(model: SaemModel, theta: Doubles, conditional: Conditional) -> Doubles:
    """Return the observed information (p, p), ``-d^2 log g(y; theta)``, at a maximum.

    Louis 1982: the mean of ``-d^2 log f`` over the latents less the variance of ``d log f``. Both
    follow from the statistics' conditional means and covariances, which devices can add up, and
    from derivatives of ``phi`` and ``psi``, by central differences. NaN for a parameter of which
    rows say so little (a variance that is zero, say) that draws cannot tell it from nothing.
    Latents with such a variance are taken to move with their means, of which rows say something.
    """

    def information_of(at: SaemModel) -> Doubles:
        complete, hidden = complete_and_hidden(at, theta, conditional)
        information: Doubles = complete - hidden
        lost = np.diag(information) <= least * np.maximum(np.diag(complete), 0.0)
        information[lost] = information[:, lost] = np.nan
        return information

    least = least_share(model, conditional)
    information = information_of(model)
    diagonal = zip(model.parameters, np.diag(information), strict=True)
    lost = {name for name, value in diagonal if np.isnan(value)}
    flat = np.array([f"var({latent})" in lost for latent in model.latents], dtype=np.bool_)
    if not flat.any():
        return information
    moved = copy(model.expand_about(theta))
    moved.carried = flat
    return information_of(moved)


def least_share(model: SaemModel, conditional: Conditional) -> float:
    """Least share of a parameter's complete information that draws can tell from none."""
    return min(
        0.5, DISTINCT / float(np.sqrt(conditional.n_draws * max(model.counts.individuals, 1)))
    )


def complete_and_hidden(
    model: SaemModel, theta: Doubles, conditional: Conditional
) -> tuple[Doubles, Doubles]:
    """Complete information (p, p), and what latents hide of it: the rest is observed."""
    p = len(theta)
    density = partial(model.log_density, conditional.statistics, model.counts)
    middle = density(theta)
    noise = 1e4 * np.finfo(np.float64).eps * max(abs(middle), 1.0)
    # Steps, up and down, that change the log-density by about `DROP`.
    sizes = np.array([1e-5 * abs(float(one)) or 1e-12 for one in theta])
    for i, unit in enumerate(np.eye(p)):
        for _ in range(60):
            nudge = sizes[i] * unit
            with np.errstate(all="ignore"):
                change = abs(density(theta + nudge) + density(theta - nudge) - 2 * middle) / 2
            if DROP / 2 <= change <= 2 * DROP:
                break
            if not np.isfinite(change):
                sizes[i] /= 4
            elif change <= noise:
                sizes[i] *= 8
            else:
                sizes[i] *= float(np.clip(np.sqrt(DROP / change), 1 / 8, 8))
    steps = np.diag(sizes)
    hessian = np.empty((p, p))
    for i in range(p):
        ends = density(theta + steps[i]) + density(theta - steps[i])
        hessian[i, i] = (ends - 2 * middle) / sizes[i] ** 2
        for j in range(i):
            same = density(theta + steps[i] + steps[j]) + density(theta - steps[i] - steps[j])
            cross = density(theta + steps[i] - steps[j]) + density(theta - steps[i] + steps[j])
            hessian[i, j] = hessian[j, i] = (same - cross) / (4 * sizes[i] * sizes[j])
    slopes = np.array([model.natural(theta + one) - model.natural(theta - one) for one in steps])
    slopes /= 2 * sizes[:, None]
    hidden = slopes @ conditional.spread @ slopes.T
    return -hessian, (hidden + hidden.T) / 2


@dataclass(frozen=True)
class LogLikelihood:
    """A log-likelihood and its Monte Carlo error.

    It is ``linearized`` with curves that are made linear in the latents, as nlme has it; NaN where
    measurements given the latents are not normal.
    """

    value: float  # of all individuals
    error: float  # standard error; 0: there is a formula
    each: Doubles  # (n,)
    effective: Doubles  # (n,) draws' worth; inf: there is a formula
    linearized: float = math.nan

    def describe(self, least_effective: float) -> Report:
        """As JSON, with the least of the draws' worth, which may be another process's."""
        value, error, tangent = self.value, self.error, self.linearized
        return {"value": value, "error": error, "least_effective_draws": least_effective,
                "linearized": tangent}  # fmt: skip


def importance_log_likelihood(
    model: SaemModel,
    theta: Doubles,
    conditional: Conditional,
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
    n, q = conditional.means.shape
    among = model.individuals
    each = model.marginal(theta)
    if each is not None or model.discrete or model.wide:
        if each is None:
            raise InputError(
                f"{type(model).__name__} is wide, or has discrete latents, and no marginal: give "
                "it that method"
            )
        return LogLikelihood(float(among.total(each)), 0.0, each, np.full(n, np.inf))
    roots = _roots(conditional)
    log_det = np.log(np.einsum("nii->ni", roots)).sum(axis=1)
    over, under = special.gammaln([(freedom + q) / 2, freedom / 2])
    constant = over - under - q / 2 * np.log(freedom * np.pi)
    most = np.full(n, -np.inf)
    first, second = np.zeros(n), np.zeros(n)
    done = 0
    while done < n_draws:
        size = min(BATCH, n_draws - done)
        now = after + 1 + done // BATCH
        normals = streams.derive_stream(now, 0).normals(size, q)
        chi = special.chdtri(freedom, streams.derive_stream(now, 1).uniforms(size, 1))
        apart = normals * np.sqrt(freedom / chi)
        z = conditional.means + np.einsum("nij,cnj->cni", roots, apart)
        tail = np.log1p((apart**2).sum(axis=-1) / freedom)
        log_proposal = constant - log_det - (freedom + q) / 2 * tail
        pieces = np.array_split(z, max(1, min(size, size * among.n_rows // MOST_DRAWN)))
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
    tangent = linearized_log_likelihood(model, theta, conditional.means)
    return LogLikelihood(float(among.total(each)), error, each, effective, tangent)


def _roots(conditional: Conditional) -> Doubles:
    """Lower roots (n, q, q) of conditional covariances, which few draws may leave singular.

    Correlations of few draws are shrunk, so that no direction is left out, and variances that are
    zero are taken as small ones.
    """
    q = conditional.means.shape[1]
    sd = np.sqrt(np.einsum("nii->ni", conditional.covariances))
    sd = np.where(sd > 0, sd, 1e-8 * np.maximum(np.abs(conditional.means), 1e-8))
    correlations = conditional.covariances / (sd[:, :, None] * sd[:, None, :])
    if conditional.n_draws < FEW * (q + 1):
        correlations *= 1 - min(0.5, (q + 1) / conditional.n_draws)
    correlations[:, range(q), range(q)] = 1.0
    values, vectors = np.linalg.eigh(correlations)
    values = np.maximum(values, 1e-12)
    roots: Doubles = np.linalg.cholesky(np.einsum("nij,nj,nkj->nik", vectors, values, vectors))
    return sd[:, :, None] * roots


def linearized_log_likelihood(model: SaemModel, theta: Doubles, means: Doubles) -> float:
    """Log-likelihood where each curve is its tangent at the individual's latents, (n, q).

    Measurements of an individual are then normal, with mean ``f(z) + J (m - z)`` and covariance
    ``J Omega J^T + Sigma(z)``: J the slopes of the curve, m and Omega the latents' mean and
    covariance before rows, Sigma the residual variances. Exact where curves are lines. NaN where
    measurements given the latents are not normal, or limits, or certain.
    """
    if not model.normal_rows:
        return float("nan")
    model, mine, q = model.expand_about(theta), model.individuals, means.shape[1]
    with np.errstate(all="ignore"):
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
        known = np.linalg.solve(np.where(np.isnan(inner), np.eye(q), inner), right[..., None])[
            ..., 0
        ]
        squares = mine.sums(rest**2) - (right * known).sum(axis=1)
        sizes = mine.sums(2 * np.log(sds)) + np.linalg.slogdet(inner)[1]
        each = np.asarray(-0.5 * (mine.counts * LOG_2_PI + squares + sizes), np.float64)
    censored = mine.covariates.get("censored")
    if censored is not None:
        each = np.where(mine.sums(np.abs(censored)) > 0, np.nan, each)
    return float(mine.total(each))
