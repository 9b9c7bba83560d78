"""Bi-factor analysis: every item measures one general factor and one of several group factors.

Items that some individuals lack are integrated out.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from vpem.checks import Doubles, Indices, as_array
from vpem.errors import InputError, NumericalError, shorten
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import LEAST, LOG_2_PI, Counts, SaemModel, floored, slices_of, times
from vpem.terms.units import lower_half, symmetric

LEAST_SEEN = 1e-6
"""Least number of individuals that have an item, of all of them, that a statistic may say."""


class BifactorModel(SaemModel):
    """``y_j = mu_j + general_j z_0 + loading_j z_g(j) + e_j``, factors standard normal.

    Each individual has the same items; the time of a row is the item. Parameters are the means, the
    general and the group loadings and the residual variances of the items; statistics are ``z``,
    the lower triangle of ``z z^T``, and ``y_j``, ``y_j z_0``, ``y_j z_g(j)`` and ``y_j^2`` of each
    item, its values about a shift that does not change. Groups of items, in the order of the rows,
    are 0 to G - 1, of two items at least.

    Given the factors items are independent, so that one that is missing at random drops out of the
    density. Those who have an item are then others for every item: statistics are the squares of
    the factors, and of each item, over those who have it, how many there are, the moments of its
    two factors up to the second, ``y_j``, ``y_j z_0``, ``y_j z_g(j)`` and ``y_j^2``.
    """

    def __init__(
        self,
        individuals: Individuals,
        groups: Sequence[int],
        items: Sequence[float] | None = None,  # some may lack these; None: what all have
    ) -> None:
        if items is None:
            few = np.flatnonzero(individuals.counts < 2)
            if len(few):
                who = shorten([repr(individuals.names[one]) for one in few])
                raise InputError(
                    f"{individuals.source}: the model needs at least 2 observations per "
                    f"individual, but {who} {'has' if len(few) == 1 else 'have'} fewer (the first "
                    f"{individuals.counts[few[0]]}); leave such individuals out"
                )
        self.individuals, self.gaps = individuals, individuals.lack(items)
        self._y, known = individuals.matrix(items)
        numbers = as_array("groups", groups)
        if numbers.shape != known.shape or numbers.dtype.kind not in "iu":
            raise InputError(
                f"the {len(known)} items need a group each, whole numbers from 0, got {groups!r}"
            )
        fine = numbers.min() >= 0 and numbers.max() < len(known)
        held = np.bincount(numbers) if fine else np.zeros(1)
        if held.min() < 2:
            raise InputError(
                "groups must be numbered 0, 1, ... and have at least two items each, got "
                f"{numbers.tolist()}"
            )
        self._means, spread = self._moments()
        self._floors: Doubles = LEAST * spread
        self.shift: Doubles = self._means
        self.groups = numbers.astype(np.intp)
        self.n_groups = len(held)
        q = 1 + self.n_groups
        self.latents = ("general", *(f"group {g}" for g in range(self.n_groups)))
        d = len(known)
        self.parameters = tuple(
            f"{what} {item:g}"
            for what in ("mean", "general loading", "group loading", "residual variance")
            for item in known
        )
        sizes = [q, *([d] * 10)] if self.gaps else [q, q * (q + 1) // 2, *([d] * 4)]
        self.pieces = slices_of(*sizes)

    def _moments(self) -> tuple[Doubles, Doubles]:
        """Mean and variance of each item, (d,), over those who have it."""
        if not self.gaps:
            return self.individuals.mean(self._y), self.individuals.variance(self._y)
        seen = ~np.isnan(self._y)
        n = np.maximum(self.individuals.total(seen.astype(np.float64)), LEAST_SEEN)
        means: Doubles = self.individuals.total(np.where(seen, self._y, 0.0)) / n
        apart = np.where(seen, self._y - means, 0.0)
        return means, self.individuals.total(apart**2) / n

    def take_individuals(self, which: Indices) -> BifactorModel:
        part = copy(self)
        part.individuals, part._y = self.individuals.take(which), self._y[which]
        return part

    def unpack(self, theta: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        """Means (d,), loadings (d, q) with their zeros, and residual variances (d,)."""
        means, general, group, variances = theta.reshape(4, -1)
        loadings = np.zeros((len(means), 1 + self.n_groups))
        loadings[:, 0] = general
        loadings[np.arange(len(means)), 1 + self.groups] = group
        return means, loadings, variances

    def start(self) -> tuple[Doubles, Doubles]:
        """Factors by means of standardised items: of all, and of what they leave of each group."""
        data, seen = self.individuals, ~np.isnan(self._y)
        means, variances = self._moments()
        if not (variances > 0).all():
            item = int(variances.argmin())
            name = self.parameters[item].removeprefix("mean ")
            raise InputError(
                f"{data.source}: item {name} is {means[item]:g} for all individuals; leave it out"
            )
        spread = np.sqrt(variances)
        rest = np.where(seen, (self._y - means) / spread, 0.0)
        z = np.empty((self.n, 1 + self.n_groups))
        z[:, 0] = rest.sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
        size = max(float(np.sqrt(data.variance(z[:, 0]))), 1e-12)
        z[:, 0] /= size
        rest = np.where(seen, rest - size * z[:, :1], 0.0)
        for g in range(self.n_groups):
            mine = self.groups == g
            z[:, 1 + g] = rest[:, mine].sum(axis=1) / np.maximum(seen[:, mine].sum(axis=1), 1)
            z[:, 1 + g] /= max(float(np.sqrt(data.variance(z[:, 1 + g]))), 1e-12)
        return self.maximize(data.total(self.statistics(z[None])), self.counts), z

    def _residuals(self, z: Doubles, theta: Doubles) -> Doubles:
        """Residuals (chains, n, d); zero where an item is missing."""
        means, general, group, _ = theta.reshape(4, -1)
        fitted: Doubles = means + general * z[..., :1] + group * z[..., 1 + self.groups]
        rest = self._y - fitted
        return np.nan_to_num(rest, nan=0.0, posinf=np.inf, neginf=-np.inf) if self.gaps else rest

    def log_complete(self, z: Doubles, theta: Doubles) -> Doubles:
        variances = theta.reshape(4, -1)[3]
        each = self._residuals(z, theta) ** 2 / variances
        if self.gaps:
            each = each + np.where(np.isnan(self._y), 0.0, np.log(variances) + LOG_2_PI)
        else:
            each = each + np.log(variances) + LOG_2_PI
        latent = (z**2 + LOG_2_PI).sum(axis=-1)
        return np.asarray(-0.5 * (each.sum(axis=-1) + latent), np.float64)

    def gradient(self, z: Doubles, theta: Doubles) -> Doubles:
        _, loadings, variances = self.unpack(theta)
        rest = self._residuals(z, theta) / variances
        out = -z
        out[..., 0] += (rest * loadings[:, 0]).sum(axis=-1)
        for g in range(self.n_groups):
            mine = np.flatnonzero(self.groups == g)
            out[..., 1 + g] += (rest[..., mine] * loadings[mine, 1 + g]).sum(axis=-1)
        return out

    def statistics(self, z: Doubles) -> Doubles:
        if self.gaps:
            seen = (~np.isnan(self._y)).astype(np.float64)
            y = np.where(seen > 0, self._y - self.shift, 0.0)
            mean, squares = z.mean(axis=0), (z**2).mean(axis=0)
            mine = 1 + self.groups
            cross = (z[..., :1] * z[..., mine]).mean(axis=0)
            group = mean[:, mine]
            parts = (
                squares, seen, seen * mean[:, :1], seen * group, seen * squares[:, :1],
                seen * cross, seen * squares[:, mine], y, y * mean[:, :1], y * group, y**2,
            )  # fmt: skip
            return np.concatenate(parts, axis=1)
        mean = z.mean(axis=0)
        products = lower_half(z[..., :, None] * z[..., None, :]).mean(axis=0)
        group = mean[:, 1 + self.groups]
        y = self._y - self.shift
        return np.concatenate([mean, products, y, y * mean[:, :1], y * group, y**2], axis=1)

    def _of_items(self, total: Doubles, n: float) -> tuple[Doubles, ...]:
        """Squares of the factors (q,), and what a total says of each item over those who have it.

        How many there are (d,), moments ``a, c, aa, ac, cc`` of its two factors, and ``y, ya, yc,
        yy``. Where nobody lacks an item, all have the moments of all n.
        """
        if self.gaps:
            return tuple(total[piece] for piece in self.pieces)
        first, products, *own = (total[piece] for piece in self.pieces)
        moments, k = symmetric(products, 1 + self.n_groups), 1 + self.groups
        seen, a, aa = (np.full(len(k), float(one)) for one in (n, first[0], moments[0, 0]))
        return moments.diagonal(), seen, a, first[k], aa, moments[0, k], moments[k, k], *own

    def maximize(self, total: Doubles, counts: Counts) -> Doubles:
        """Regress every item on its two factors, over those who have it.

        A total that no latents have is made definite.
        """
        _, seen, *parts = self._of_items(total, counts.individuals)
        sizes = np.maximum(seen, LEAST_SEEN * counts.individuals)
        a, c, aa, ac, cc, y, ya, yc, squares = (part / sizes for part in parts)
        out = np.empty((4, len(seen)))
        for j in range(len(seen)):
            moments = np.array([[1.0, a[j], c[j]], [a[j], aa[j], ac[j]], [c[j], ac[j], cc[j]]])
            values, vectors = np.linalg.eigh(moments)
            values = np.maximum(values, 1e-8 * max(float(np.abs(values).max()), 1e-12))
            right = np.array([y[j], ya[j], yc[j]])
            coefficients = vectors @ ((vectors.T @ right) / values)
            out[:3, j] = coefficients
            out[3, j] = max(squares[j] - coefficients @ right, self._floors[j])
        out[0] += self.shift
        return out.ravel()

    def holds(self, total: Doubles, counts: Counts) -> bool:
        """Whether residuals have such moments, and factors; of those who have each item."""
        if self.gaps:
            _, seen, a, c, aa, _, cc, *_ = self._of_items(total, counts.individuals)
            spread = np.minimum(aa * seen - a**2, cc * seen - c**2)
            fine = bool((seen > 0).all() and (spread > 0).all())
        else:
            first, products = (total[piece] / counts.individuals for piece in self.pieces[:2])
            scatter = symmetric(products, 1 + self.n_groups) - np.outer(first, first)
            fine = not (floored(scatter) != scatter).any()
        left = self.maximize(total, counts).reshape(4, -1)[3]
        return fine and bool((left > self._floors).all())

    def log_density(self, total: Doubles, counts: Counts, theta: Doubles) -> float:
        n = counts.individuals
        means, general, group, variances = theta.reshape(4, -1)
        means = means - self.shift
        latent, seen, a, c, aa, ac, cc, y, ya, yc, squares = self._of_items(total, n)
        rest = squares - 2 * (means * y + general * ya + group * yc) + seen * means**2
        rest = rest + 2 * means * (general * a + group * c)
        rest = rest + general**2 * aa + 2 * general * group * ac + group**2 * cc
        items = seen * (LOG_2_PI + np.log(variances)) + rest / variances
        return float(-0.5 * (items.sum() + latent.sum() + n * len(latent) * LOG_2_PI))

    def posterior(self, theta: Doubles) -> tuple[Doubles, Doubles]:
        means, loadings, variances = self.unpack(theta)
        weighed = loadings / variances[:, None]
        if self.gaps:
            q = loadings.shape[1]
            precision = np.tile(np.eye(q), (self.n, 1, 1))
            right = np.zeros((self.n, q))
            for j in range(len(means)):
                seen = ~np.isnan(self._y[:, j])
                precision += seen[:, None, None] * np.outer(weighed[j], loadings[j])
                right += np.where(seen, self._y[:, j] - means[j], 0.0)[:, None] * weighed[j]
            precision = (precision + precision.transpose(0, 2, 1)) / 2
            covariances: Doubles = np.asarray(np.linalg.inv(precision), np.float64)
            return times(covariances, right), covariances
        covariance = np.linalg.inv(np.eye(loadings.shape[1]) + loadings.T @ weighed)
        right = np.zeros((self.n, loadings.shape[1]))
        for j in range(len(means)):
            right += (self._y[:, j] - means[j])[:, None] * weighed[j]
        mean = times(covariance, right)
        return mean, np.broadcast_to(covariance, (self.n, *covariance.shape)).copy()

    def population(self, theta: Doubles) -> tuple[Doubles, Doubles]:
        q = 1 + self.n_groups
        return np.zeros(q), np.eye(q)

    def marginal(self, theta: Doubles) -> Doubles:
        """Log-likelihood of each individual: a normal law of the items.

        Where some lack items it is Bayes' rule at the posterior mean.
        """
        if self.gaps:
            means, covariances = self.posterior(theta)
            complete = self.log_complete(means[None], theta)[0]
            log_density: Doubles = complete + 0.5 * (
                means.shape[1] * LOG_2_PI + np.linalg.slogdet(covariances)[1]
            )
            return log_density
        means, loadings, variances = self.unpack(theta)
        covariance = loadings @ loadings.T + np.diag(variances)
        sd = np.sqrt(np.diag(covariance))
        try:
            root = sd[:, None] * np.linalg.cholesky(covariance / np.outer(sd, sd))
        except np.linalg.LinAlgError as error:
            raise NumericalError(
                "the items' covariance is singular at the estimates: some residual variance is "
                "zero; take fewer factors, or a finer codec"
            ) from error
        rest = np.linalg.solve(root, (self._y - means).T)
        constant = len(means) * LOG_2_PI + 2 * np.log(np.diag(root)).sum()
        return np.asarray(-0.5 * ((rest**2).sum(axis=0) + constant), np.float64)

    def canonical(self, theta: Doubles, z: Doubles) -> tuple[Doubles, Doubles]:
        """Turn every factor so that its loadings add up to a positive number."""
        _, loadings, _ = self.unpack(theta)
        signs = np.where(loadings.sum(axis=0) < 0, -1.0, 1.0)
        turned = theta.reshape(4, -1).copy()
        turned[1] *= signs[0]
        turned[2] *= signs[1 + self.groups]
        return turned.ravel(), z * signs
