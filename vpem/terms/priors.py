"""Conjugate priors of a Gaussian mixture, and EM to the mode of the posterior under one.

Weights are Dirichlet and hubs normal-Wishart (`Prior`). For the mode, as mclust's `priorControl`
has it (`MapTerms`), a hub's covariance is inverse Wishart and its mean normal given that, variances
that stand alone are inverse gamma, and mixing weights have no prior (Fraley and Raftery 2007). The
density of the prior travels in the terms of its hub, an equal part of it in every row, so that what
a sum finds is the penalised log-likelihood, which EM never lowers.

A `Penalty` R(theta) is no different: ridge is that normal law without its constant, and lasso
takes the place of its square by what it is the square of, a mean in standard deviations of its own
component. So the M-step has one minimum, by formulas, and no units matter.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from vpem.checks import Doubles, Floats, Indices, read_float
from vpem.errors import InputError, NumericalError, Setting
from vpem.network.partition import Blocks
from vpem.settings import MAP
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Factors, Mixture, factorise
from vpem.terms.statistics import Statistics

DIRICHLET = "dirichlet_distribution"
"""Prior of mixing weights, by scikit-learn's name."""

NO_ROWS = 1e-200
"""Effective rows of a component that has none, where no prior stands for them."""
TINY_WEIGHT = 1e-300

RULES = {
    "ridge": ((0.0, True), 1, 1),
    "lasso": ((0.0, True), 1, 1),
    "elastic-net": ((0.0, True), 2, 2),
    "inverse-wishart": ((0.0, True), 0, 2),
    "dirichlet": ((1.0, False), 1, 1),
}
"""Words of penalties: the least number (or above it), and fewest and most numbers of each."""


@dataclass(frozen=True)
class Penalty:
    """R(theta) of a model, as it is typed: see `parse_penalty`.

    Of means (or coefficients) b, in units that are 1, it is ``ridge / 2 |b|^2 + lasso |b|_1``. An
    inverse Wishart law (``wishart``) of covariances has so many degrees of ``freedom`` and so many
    sample covariances for a ``scale`` (None: what is usual), and weights are Dirichlet.
    """

    words: str
    ridge: float = 0.0
    lasso: float = 0.0
    wishart: bool = False
    freedom: float | None = None
    scale: float | None = None
    concentration: float = 1.0

    @property
    def of_means(self) -> bool:
        """Whether it is one of means."""
        return self.ridge > 0 or self.lasso > 0


def parse_penalty(words: str) -> Penalty:
    """Read a penalty: "ridge:0.1", "lasso:0.1", "elastic-net:0.1:0.5", and others, with commas.

    The last is a strength and the share of the lasso in it, as scikit-learn has them. Others are
    "inverse-wishart", "inverse-wishart:6", "inverse-wishart:6:0.5" (degrees of freedom, and a scale
    in sample covariances) and "dirichlet:2". InputError for all else.
    """
    given: dict[str, list[float]] = {}
    for part in str(words).split(","):
        name, *texts = (text.strip() for text in part.split(":"))
        numbers = [read_float(text, finite=True) for text in texts]
        (least, above), fewest, most = RULES.get(name, ((0.0, False), 1, 0))
        known = [one for one in numbers if one is not None]
        if not fewest <= len(numbers) <= most or len(known) < len(numbers):
            raise InputError(
                Setting("penalty", words), " must be ridge:L, lasso:L, elastic-net:L:SHARE, "
                "inverse-wishart:NU:SCALE (or without numbers) or dirichlet:A, or several of these "
                f"with commas between, got {part!r}; try lasso:0.05",
            )  # fmt: skip
        shares = known[1:] if name == "elastic-net" else [float(name == "lasso")]
        sizes = known[:1] if name == "elastic-net" else known
        wrong = [one for one in sizes if one < least or (above and one == least)]
        if wrong or not 0 <= shares[0] <= 1:
            rule = f"{'above' if above else 'at least'} {least:g}"
            beside = ", and its share of lasso from 0 to 1" if name == "elastic-net" else ""
            raise InputError(
                Setting("penalty", words),
                f": numbers of {name} must be {rule}{beside}, got {part!r}",
            )
        kind = "means" if name in ("ridge", "lasso", "elastic-net") else name
        if kind in given:
            both = " has two penalties of means; give one: elastic-net is ridge and lasso together"
            raise InputError(
                Setting("penalty", words), both if kind == "means" else f" has {name} twice"
            )
        given[kind] = known
        if kind == "means":
            given[kind] = [known[0] * (1 - shares[0]), known[0] * shares[0]]
    ridge, lasso = given.get("means", [0.0, 0.0])
    wishart: list[float | None] = [*given.get("inverse-wishart", []), None, None]
    return Penalty(
        str(words).replace(" ", ""), ridge, lasso, "inverse-wishart" in given, wishart[0],
        wishart[1], given.get("dirichlet", [1.0])[0],
    )  # fmt: skip


@dataclass(frozen=True)
class Prior:
    """The prior of a mixture.

    A hub's precision matrix is Wishart with ``degrees_of_freedom`` and the inverse scale matrix
    ``covariances``; its mean, given the precision, is normal about ``means``. The prior covariance
    of a component that sees no row is thus ``covariances / degrees_of_freedom``.
    """

    kind: str
    """"dirichlet_distribution", or "dirichlet_process": sticks of Beta(1, concentration) broken K
    times."""
    concentration: float  # of the mixing weights; the less, the fewer components are in use
    mean_precision: float  # rows that the prior mean is worth
    degrees_of_freedom: Doubles  # (B,) of each hub, above its number of features less one
    means: Doubles  # (d,) in block order and units of fitting
    covariances: Doubles  # shaped as those of a mixture of one component

    def concentrations(self, counts: Doubles) -> Doubles:
        """Parameters of the weights' posterior (R, C, K), given effective rows (R, K).

        C is 1 for a Dirichlet distribution; the two of each Beta distribution for a process.
        """
        if self.kind == DIRICHLET:
            return (self.concentration + counts)[:, None]
        after = np.zeros_like(counts)
        after[:, :-1] = np.cumsum(counts[:, :0:-1], axis=1)[:, ::-1]
        return np.stack([1.0 + counts, self.concentration + after], axis=1)

    def log_weights(self, counts: Doubles) -> Doubles:
        """Expected logarithms of the mixing weights (R, K), given effective rows (R, K)."""
        from scipy.special import digamma

        concentrations = self.concentrations(counts)
        if self.kind == DIRICHLET:
            return np.asarray(digamma(concentrations[:, 0]) - digamma(concentrations.sum(axis=2)))
        taken, left = digamma(concentrations).swapaxes(0, 1)
        whole = digamma(concentrations.sum(axis=1))
        before = np.zeros_like(counts)
        before[:, 1:] = np.cumsum(left - whole, axis=1)[:, :-1]
        return np.asarray(taken - whole + before)

    def weights(self, counts: Doubles) -> Doubles:
        """Expected mixing weights (R, K), given effective rows (R, K); they add up to 1."""
        concentrations = self.concentrations(counts)
        if self.kind == DIRICHLET:
            return np.asarray(concentrations[:, 0] / concentrations.sum(axis=2))
        taken, left = (concentrations / concentrations.sum(axis=1, keepdims=True)).swapaxes(0, 1)
        before = np.ones_like(counts)
        before[:, 1:] = np.cumprod(left, axis=1)[:, :-1]
        weights = taken * before
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def divergence(self, counts: Doubles) -> Doubles:
        """Kullback-Leibler divergence (R,) of the weights' posterior from the prior, in nats."""
        from scipy.special import betaln, digamma, gammaln

        concentrations = self.concentrations(counts)
        if self.kind == DIRICHLET:
            of_dirichlet, k = concentrations[:, 0], counts.shape[1]
            normal = gammaln(of_dirichlet.sum(axis=1)) - gammaln(of_dirichlet).sum(axis=1)
            normal -= gammaln(k * self.concentration) - k * gammaln(self.concentration)
            return np.asarray(normal + (counts * self.log_weights(counts)).sum(axis=1))
        taken, left = concentrations.swapaxes(0, 1)
        parts = betaln(1.0, self.concentration) - betaln(taken, left)
        parts += (taken - 1) * digamma(taken) + (left - self.concentration) * digamma(left)
        parts += (1 + self.concentration - taken - left) * digamma(taken + left)
        return np.asarray(parts.sum(axis=1))


def wishart_sizes(blocks: Blocks, covariance_type: str) -> Indices:
    """Features (B,) whose precision matrix has one distribution: a hub's, or each its own."""
    of_hub = blocks.widths.clip(1)
    return np.ones_like(of_hub) if covariance_type.endswith("diag") else of_hub


def check_prior(
    kind: str, weight: float, freedom: Doubles, sizes: Indices, penalty: Setting | None = None
) -> None:
    """Refuse a prior beside rows of little weight, or of too few degrees of freedom (B,).

    ``kind`` names the prior, unless it comes from a penalty.
    """
    if not weight > 1:
        raise InputError(
            penalty or Setting("weight_concentration_prior_type", kind), " counts what rows weigh "
            "against a prior that is worth whole rows, but all rows together weigh "
            f"{weight:g}; multiply their weights, or leave it out",
        )  # fmt: skip
    few = np.flatnonzero(freedom <= sizes - 1)
    if len(few):
        given, most = float(freedom[few[0]]), int(sizes.max()) - 1
        rule = (
            " must be above the number of features of the widest hub less 1, "
            f"{most}: a Wishart distribution has no fewer"
        )
        if penalty is not None:
            raise InputError(penalty, ": degrees of freedom", rule)
        raise InputError(Setting("degrees_of_freedom_prior", given), rule)


class ConjugateTerms(FeatureTerms):
    """What terms under a conjugate prior have in common; ``reg_covar`` is in the prior."""

    is_proper = True
    _plain: FeatureTerms
    _expected: Callable[..., Factors]
    """Makes factors of log-densities, in which each row has its part of the prior's, of plain
    ones."""

    @classmethod
    def from_terms(cls, plain: FeatureTerms, **given: Any) -> Self:
        """Return such terms of the rows that plain terms have, with a prior yet to be found.

        What is ``given`` of it are attributes of these terms.
        """
        terms = object.__new__(cls)
        terms.__dict__.update(plain.__dict__, _plain=plain, **given)
        if terms.is_proper:
            terms.reg_covar = np.zeros_like(plain.reg_covar)
        terms._sample_covariance = None
        return terms

    def prepare(self, mixture: Mixture) -> Factors:
        """Factor every block, for terms that have the prior's part in them."""
        self.latest = plain = factorise(mixture, np.float64)
        return self._expected(mixture, plain, np.float64 if self.misses else self.rows.dtype)

    def _maximised(self, statistics: Statistics) -> Mixture:
        """Parameters without the prior, of whatever has been seen at all."""
        if statistics.seen is None:
            return FeatureTerms.update(self, statistics)
        return self._updated(statistics)

    def _log_dets_of_prior(self, means: Doubles, covariances: Doubles) -> Doubles:
        """Log-determinants (B,) of the prior scale matrices; NumericalError where there is none."""
        one = self.mixture(np.ones((1, 1)), means[None], covariances)
        factors = factorise(one, np.float64)
        if factors.failed.any():
            raise NumericalError(
                "the prior covariance of a hub is not positive definite: its features are "
                "constant or linearly dependent; try a larger ", Setting("reg_covar"),
            )  # fmt: skip
        return np.asarray(factors.log_dets[0])

    def _with_shares(
        self, factors: Factors, log_dets: Floats, dtype: DTypeLike, plain: Factors
    ) -> Factors:
        """Return factors with these log-determinants (C, B), in the precision of the data."""
        means, inverse, dets = (
            np.ascontiguousarray(part, dtype=dtype)
            for part in (factors.means, factors.inverse, log_dets)
        )
        return Factors(means, inverse, dets, plain.failed, plain.covariances, without_prior=plain)

    def _scale_hubs(self, covariances: Doubles, factors: Doubles) -> None:
        """Multiply what is shaped as covariances by (n_copies, d), alike within full hubs."""
        if self._is_diagonal:
            covariances *= factors
            return
        for columns, count, width, view in self._banded(covariances, len(factors)):
            of_hubs = factors[:, columns].reshape(len(factors), count, width)[..., 0]
            view *= of_hubs.T[..., None, None]

    def _add_squares(self, covariances: Doubles, away: Doubles, times: Doubles | float) -> None:
        """Add ``times (K, d)`` the squares of ``away (K, d)`` to what is shaped as covariances."""
        heavy = times * away
        if self._is_diagonal:
            squares = heavy * away
            covariances += squares.sum(axis=0) if self._is_tied else squares
            return
        k = len(away)
        for columns, count, width, view in self._banded(covariances, 1 if self._is_tied else k):
            of_hubs, weighed = (
                part[:, columns].reshape(k, count, width).swapaxes(0, 1) for part in (away, heavy)
            )
            if self._is_tied:
                view[:, 0] += weighed.swapaxes(1, 2) @ of_hubs
            else:
                view += weighed[..., None] * of_hubs[:, :, None]


class MapTerms(ConjugateTerms):
    """Local terms of which the M-step finds the mode under a prior about all rows, or a penalty.

    The prior mean is that of all rows, which is 0 in units of fitting, and the scale matrix P part
    of `sample_covariance`. Of ``c`` components that share a covariance, and with x_k and S_k of the
    rows of a component,

        m_k = n_k x_k / (kappa + n_k),
        C = (P + sum_k (n_k S_k + kappa n_k / (kappa + n_k) x_k x_k')) / (a + c + sum_k n_k),

    where ``a`` is nu + d + 1 of a hub of d features, nu + 2 of a variance, (nu + 2) / d of a sphere
    whose P has a d-th of the scale of its variance on the diagonal. A penalty counts no c: it is
    ``M R = kappa / 2 sum m_k' C_k^-1 m_k + lasso sum |m_kj| / sqrt(C_kjj)`` of means, of diagonal
    covariances where there is a lasso, and the density of the prior for the others.
    """

    strengths = (0.0, 0.0)  # of ridge and lasso, for the mean over rows
    pull: float  # kappa, rows that the prior mean is worth
    freedom: Doubles | None  # (B,) degrees of freedom nu of each hub; None: no prior of covariances
    scale: Doubles  # (B,) of each hub, in sample covariances
    lasso: float = 0.0  # of all rows
    concentration: float = 1.0  # of the weights, if all features are in one hub
    penalty: Setting | None = None  # by which all of this was given; None: by a prior
    _scales: Doubles
    """Prior scale matrices, shaped as the covariances of one component."""
    _log_dets: Doubles
    """Of these, (B,)."""
    _power: Doubles
    """``a`` of each hub, (B,); with c the power of a covariance's determinant in the prior's
    density, times -2."""

    def sample(self) -> Mixture:
        """Return the mixture of one component that is fitted to all rows, without the prior."""
        return self._plain.sample()

    def knowing(self, statistics: Statistics) -> Self:
        """Return these terms under the prior about statistics of all rows in one component."""
        return self.with_sample_covariance(self._plain.update(statistics).covariances)

    def with_sample_covariance(self, covariances: Doubles) -> Self:
        """Return these terms under the prior about this sample covariance."""
        terms, blocks, weight = copy(self), self.blocks, self.total_weight
        terms._sample_covariance = covariances
        if self.penalty is not None:
            terms.pull, terms.lasso = (weight * one for one in self.strengths)
        sizes, widths = wishart_sizes(blocks, self.covariance_type), blocks.widths.clip(1)
        if self.freedom is None:
            terms._power, terms._scales = np.zeros(len(sizes)), np.zeros_like(covariances)
            return terms
        check_prior(MAP, weight, self.freedom, sizes, self.penalty)
        factors, terms._power = self.scale * weight / (weight - 1), self.freedom + sizes + 1
        if self.covariance_type.endswith("spherical"):
            # One variance: its density is that of each feature to this power, d times.
            factors, terms._power = factors / widths, (self.freedom + 2) / widths
        terms._scales = covariances.copy()
        self._scale_hubs(terms._scales, self.blocks.of_feature(factors[:, None]))
        terms._log_dets = self._log_dets_of_prior(np.zeros(blocks.n_features), terms._scales)
        return terms

    def _powers(self, like: Mixture) -> Doubles:
        """Power (B,) of the determinant of each of its covariances, times -2."""
        shared = like.n_components // like.n_copies
        return self._power + (shared if self.penalty is None else 0)

    # ---- E-step --------------------------------------------------------------------------------

    def _expected(self, mixture: Mixture, plain: Factors, dtype: DTypeLike) -> Factors:
        """Factors of log-densities, in which each row has its part of the prior's."""
        shared = plain.log_dets
        if not plain.failed.any():
            shared = shared - 2 * self._log_densities(mixture, plain) / self.total_weight
        return self._with_shares(plain, shared, dtype, plain)

    def local(self, factors: Factors, rows: slice) -> Floats:
        terms = super().local(factors, rows)
        if self.misses:
            terms += self._shares(factors)[:, None, None].astype(terms.dtype)
        return terms

    def _shares(self, factors: Factors) -> Floats:
        """What each row has of the prior in the terms of each hub, (B,)."""
        shares: Floats = (factors.log_dets - factors.plain.log_dets)[0]
        return shares

    def _determinants(self, statistics: Statistics, mixture: Mixture, factors: Factors) -> Doubles:
        """Log-determinants (B,) of hubs' covariances, and the prior's part of these rows."""
        if not self.misses:
            return super()._determinants(statistics, mixture, factors)
        determinants = super()._determinants(statistics, mixture, factors.plain)
        return np.asarray(determinants + statistics.counts[0].sum() * self._shares(factors))

    def _log_densities(self, mixture: Mixture, plain: Factors) -> Doubles:
        """Log-density (B,) of each hub's parameters under the prior, less that at its mode."""
        copies = mixture.n_copies
        power, d = self._powers(mixture), self.blocks.widths
        pairs = self._repeated(self._scales, copies)
        self._add_squares(pairs, mixture.means, self.pull)
        densities = power * plain.log_dets.sum(axis=0)
        densities += self._over_hubs(self._lower_precisions(plain) * pairs)
        if self.freedom is not None:
            densities -= copies * power * (self._log_dets - d * np.log(power) + d)
        if self.lasso:
            sizes = np.abs(mixture.means) / np.sqrt(mixture.covariances)
            densities += 2 * self.lasso * self._over_hubs(sizes)
        if self.concentration > 1:
            shares = mixture.n_components * np.maximum(mixture.weights[0], TINY_WEIGHT)
            densities -= 2 * (self.concentration - 1) * np.log(shares).sum()
        return np.asarray(-0.5 * densities)

    def log_prior(self, mixture: Mixture) -> float:
        """Log-density of all hubs' parameters under the prior, less that at its mode, in nats."""
        return self.add_up(self._log_densities(mixture, factorise(mixture, np.float64)))

    # ---- M-step --------------------------------------------------------------------------------

    def update(self, statistics: Statistics, row: float | None = None) -> Mixture:
        """Mode of the posterior of the statistics, which is sound however few rows there are."""
        return self.mode(self._maximised(statistics), statistics.per_feature(self.blocks))

    def mode(self, plain: Mixture, n: Doubles) -> Mixture:
        """Mode, of parameters without the prior and the rows (K, d) that they are of."""
        weights, extra = plain.weights, self.concentration - 1
        if extra:
            whole = self.total_weight + extra * plain.n_components
            weights = (self.total_weight * weights + extra) / whole
        if self.freedom is None:
            n = np.maximum(n, NO_ROWS)
        if self.lasso:
            means, covariances = self._sparse(plain, n)
            return replace(plain, weights=weights, means=means, covariances=covariances)
        share, covariances = n / (self.pull + n), plain.covariances.copy()
        self._scale_hubs(covariances, n.sum(axis=0, keepdims=True) if self._is_tied else n)
        self._add_squares(covariances, plain.means, self.pull * share)
        covariances += self._repeated(self._scales, plain.n_copies)
        if self.covariance_type.endswith("spherical"):
            covariances = self._averaged(covariances)
        self._scale_hubs(covariances, 1 / self._divisors(n, plain))
        return replace(plain, weights=weights, means=share * plain.means, covariances=covariances)

    def _sparse(self, plain: Mixture, n: Doubles) -> tuple[Doubles, Doubles]:
        """Means (K, d) and variances (copies, d) under a lasso, of features in one hub.

        With ``r = 1 / sd`` and ``f = m r`` what is minimized is convex in both (Staedler, Buehlmann
        and van de Geer 2010). Given r, f is ``soft(n r x, lasso) / (n + kappa)``; the slope in r

            -p / r + r A + sum n x (r x - f)

        rises, from one piece to the next as more f are not 0, in each of which its zero is that of
        a quadratic equation. Variances that are shared are of groups of means.
        """
        x, over = plain.means, self._shared_over
        shape = plain.covariances.shape
        scatter = n * plain.covariances
        known = np.broadcast_to(self._scales, shape)
        power = np.broadcast_to(self._powers(plain)[self.blocks.block_of], shape)
        most = n.sum(axis=over, keepdims=True) if over else n
        A = scatter.sum(axis=over, keepdims=True) if over else scatter
        across = tuple(axis for axis in over if axis == 1)
        A = A + (known.sum(axis=across, keepdims=True) if across else known)
        p = most + (power.sum(axis=across, keepdims=True) if across else power)

        def grouped(values: Doubles) -> Doubles:
            """Return an array about each mean (K, d) group by group, (groups, means of one)."""
            order = [axis for axis in (0, 1) if axis not in over] + list(over)
            flat = np.transpose(values, order)
            return flat.reshape(A.size, -1)

        with np.errstate(divide="ignore", invalid="ignore"):
            ends = grouped(self.lasso / (n * np.abs(x)))  # r, above which a mean is not 0
        order = np.argsort(ends, axis=1)
        ends = np.take_along_axis(ends, order, axis=1)
        squares, shrunk, slope = (
            np.take_along_axis(grouped(part), order, axis=1)
            for part in (
                n * x**2, n * x**2 * self.pull / (n + self.pull),
                n * np.abs(x) * self.lasso / (n + self.pull),
            )
        )  # fmt: skip
        # Pieces with none, one, two, ... of a group's means that are not 0.
        none = np.zeros((A.size, 1))
        gain = np.cumsum(np.hstack([none, shrunk - squares]), axis=1)
        second = A.reshape(-1, 1) + squares.sum(axis=1, keepdims=True) + gain
        first = np.cumsum(np.hstack([none, slope]), axis=1)
        powers = p.reshape(-1, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            rising = -powers / ends + ends * second[:, :-1] + first[:, :-1]
        piece = (rising < 0).sum(axis=1)[:, None]
        a, b = (np.take_along_axis(part, piece, axis=1) for part in (second, first))
        sd = ((b + np.sqrt(b * b + 4 * powers * a)) / (2 * powers)).reshape(A.shape)
        soft = np.sign(x) * np.maximum(n * np.abs(x) - self.lasso * sd, 0.0)
        variances = np.broadcast_to(sd**2, shape).copy()
        return soft / (n + self.pull), variances

    @property
    def _shared_over(self) -> tuple[int, ...]:
        """Axes of means (K, d) that have one variance."""
        spherical = self.covariance_type.endswith("spherical")
        return (0,) * self._is_tied + (1,) * spherical

    def _divisors(self, n: Doubles, like: Mixture) -> Doubles:
        """What sums of squares of each feature (n_copies, d) are divided by, of n (K, d) rows."""
        divisors = n.sum(axis=0, keepdims=True) if self._is_tied else n
        divisors = divisors + self._powers(like)[self.blocks.block_of]
        return self._averaged(divisors) if self.covariance_type.endswith("spherical") else divisors

    def _about_means(self, mixture: Mixture, weight: float, n_roots: int) -> Statistics:
        """Statistics for which `update` gives a mixture, about its means."""
        extra = self.concentration - 1
        if extra:
            counts = mixture.weights * (weight + extra * mixture.n_components) - extra
            mixture = replace(mixture, weights=np.maximum(counts, 0.0) / weight)
        statistics = super()._about_means(mixture, weight, n_roots)
        n = statistics.per_feature(self.blocks)
        statistics.first += self.pull * mixture.means
        if self.lasso:
            statistics.first += self.lasso * np.sign(mixture.means) * np.sqrt(mixture.covariances)
        statistics.second[...] = mixture.covariances
        self._scale_hubs(statistics.second, self._divisors(n, mixture))
        statistics.second -= self._repeated(self._scales, mixture.n_copies)
        if self.lasso:
            drop = mixture.means * statistics.first
            statistics.second -= drop.sum(axis=0, keepdims=True) if self._is_tied else drop
        else:
            self._add_squares(statistics.second, mixture.means, -self.pull)
        if self.penalty is not None and self.covariance_type.endswith("spherical"):
            # As much about the mean in every feature: only all of it counts.
            drop = statistics.first**2 / np.maximum(n, NO_ROWS)
            drop = drop.sum(axis=0, keepdims=True) if self._is_tied else drop
            statistics.second[...] = self._averaged(statistics.second - drop) + drop
        return statistics
