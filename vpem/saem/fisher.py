"""Observed information by Louis' formula: what completed rows say, less what latents hide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import null_space

from vpem.saem.conditional import Conditional
from vpem.saem.models.integrated import Integrated
from vpem.saem.models.model import Counts, SaemModel, Vector

DROP = 5e-5
"""Of a log-density, by a nudge of one parameter: a hundredth of its standard error, were no latents
hidden, whatever its units."""
TOLD = 5.0
"""Least share of a parameter's complete information that draws can tell from none, if independent
ones of as many individuals: over the root of their number."""


def observed_information(model: SaemModel, theta: Vector, given: Conditional) -> Vector:
    """Return the observed information (p, p), ``-d^2 log g(y; theta)``, at a maximum.

    Louis 1982: the mean of ``-d^2 log f`` over the latents less the variance of ``d log f``. Both
    follow from the statistics' conditional means and covariances, which devices can add up, and
    from derivatives of ``phi`` and ``psi``, by central differences. NaN for a parameter of which
    rows say so little (a variance that is zero, say) that draws cannot tell it from nothing.
    Latents with such a variance are taken to move with their means, of which rows tell, given it.
    """

    def told(at: SaemModel) -> Vector:
        complete, hidden = complete_and_hidden(at, theta, given)
        found: Vector = complete - hidden
        lost = np.diag(found) <= least * np.maximum(np.diag(complete), 0.0)
        found[lost] = found[:, lost] = np.nan
        return found

    least = least_share(model, given)
    found = told(model)
    lost = {name for name, at in zip(model.parameters, np.diag(found), strict=True) if np.isnan(at)}
    flat = np.array([f"var({latent})" in lost for latent in model.latents], dtype=np.bool_)
    return told(model.about(theta).carrying(flat)) if flat.any() else found


def least_share(model: SaemModel, given: Conditional) -> float:
    """Least share of a parameter's complete information that draws can tell from none."""
    return min(0.5, TOLD / float(np.sqrt(given.n_draws * max(model.counts.individuals, 1))))


def complete_and_hidden(
    model: SaemModel, theta: Vector, given: Conditional
) -> tuple[Vector, Vector]:
    """Return the complete information (p, p), and what latents hide of it.

    Their difference is the observed information; arguments as of `observed_information`.
    """
    p, size = len(theta), model.size

    def density(at: Vector) -> float:
        return model.log_density(given.statistics, model.counts, at)

    here = density(theta)
    steps = np.diag([_nudge(density, theta, here, i) for i in range(p)])
    sizes = np.diag(steps)
    bend = np.empty((p, p))
    for i in range(p):
        ends = density(theta + steps[i]) + density(theta - steps[i])
        bend[i, i] = (ends - 2 * here) / sizes[i] ** 2
        for j in range(i):
            same = density(theta + steps[i] + steps[j]) + density(theta - steps[i] - steps[j])
            cross = density(theta + steps[i] - steps[j]) + density(theta - steps[i] + steps[j])
            bend[i, j] = bend[j, i] = (same - cross) / (4 * sizes[i] * sizes[j])
    nobody = Counts(0, 0)
    slopes = np.empty((p, size))  # of phi
    for i in range(p):
        for k, unit in enumerate(np.eye(size)):
            up, down = (model.log_density(unit, nobody, theta + s * steps[i]) for s in (1, -1))
            slopes[i, k] = (up - down) / (2 * sizes[i])
    hidden = slopes @ given.spread @ slopes.T
    return -bend, (hidden + hidden.T) / 2


@dataclass(frozen=True)
class Certainty:
    """How sure estimates are; `information` and `covariance` are (0, 0) of a wide model.

    ``freedom`` are degrees of freedom of the t laws by which intervals and tests of coefficients
    are: of lines Satterthwaite's, else the individuals less the coefficients. Infinite: a normal
    law. ``test_errors`` are standard errors for these: of lines by the variances of restricted
    maximum likelihood.
    """

    information: Vector  # (p, p)
    covariance: Vector  # (p, p)
    errors: Vector  # (p,); NaN: there are none
    freedom: Vector  # (p,)
    test_errors: Vector  # (p,)

    @staticmethod
    def of(model: SaemModel, theta: Vector, given: Conditional) -> Certainty:
        """Say it by draws of latents; of a wide model nothing."""
        if model.wide:
            none, unknown = np.empty((0, 0)), np.full(len(theta), np.nan)
            return Certainty(none, none, unknown, unknown, unknown)
        information = observed_information(model, theta, given)
        covariance = covariance_of(information, model.constraints(theta))
        errors, freedom = np.sqrt(np.diag(covariance)), np.full(len(theta), np.inf)
        p = model.n_coefficients
        freedom[:p] = max(1.0, model.individuals.number[0] - p)
        return Certainty(information, covariance, errors, freedom, errors)

    def turned(self, by: Vector) -> Certainty:
        """Say it of parameters that are ``by`` (p, p) times these, where some may be known.

        What is made of nothing but parameters without errors has none.
        """
        sure = ~np.isnan(np.diag(self.covariance))
        known = (by[:, sure] != 0).any(axis=1)
        here = np.ix_(known, known)
        information, covariance = np.full((2, *by.shape), np.nan)
        part = by[np.ix_(known, sure)]
        covariance[here] = part @ self.covariance[np.ix_(sure, sure)] @ part.T
        if sure.all():
            back = np.linalg.inv(by)
            information = back.T @ self.information @ back
        else:
            information[here] = np.linalg.pinv(covariance[here], rcond=1e-14, hermitian=True)
        errors = np.sqrt(np.diag(covariance))
        return Certainty(information, covariance, errors, self.freedom, errors)

    @staticmethod
    def by(found: Integrated) -> Certainty:
        """Say it by formulas."""
        errors = np.sqrt(np.diag(found.covariance))
        tested = np.where(np.isfinite(found.errors), found.errors, errors)
        return Certainty(found.information, found.covariance, errors, found.freedom, tested)


def _nudge(density: Callable[[Vector], float], theta: Vector, here: float, i: int) -> float:
    """Step of one parameter, up and down, that changes a log-density by about `DROP`."""
    noise = 1e4 * np.finfo(np.float64).eps * max(abs(here), 1.0)
    size = 1e-5 * abs(float(theta[i])) or 1e-12
    for _ in range(60):
        nudge = np.zeros(len(theta))
        nudge[i] = size
        with np.errstate(all="ignore"):
            change = abs(density(theta + nudge) + density(theta - nudge) - 2 * here) / 2
        if DROP / 2 <= change <= 2 * DROP:
            break
        if not np.isfinite(change):
            size /= 4
        elif change <= noise:
            size *= 8
        else:
            size *= float(np.clip(np.sqrt(DROP / change), 1 / 8, 8))
    return size


def standard_errors(information: Vector, constraints: Vector | None = None) -> Vector:
    """Standard errors (p,) of an information matrix, as `covariance_of`; NaN where it is."""
    found: Vector = np.sqrt(np.diag(covariance_of(information, constraints)))
    return found


def covariance_of(information: Vector, constraints: Vector | None = None) -> Vector:
    """Covariance (p, p) of estimates, the inverse of their information; NaN where that is.

    Rows and columns are scaled before, so that units do not matter. Parameters whose information is
    NaN are taken as known; where the others' is not positive definite all are NaN. Information is
    of parameters as if each could change alone; the covariance is that of changes of which the sums
    ``constraints`` (c, p) are zero (`SaemModel.constraints`).
    """
    found = np.full(information.shape, np.nan)
    keep = np.flatnonzero(~np.isnan(np.diag(information)))
    part = information[np.ix_(keep, keep)]
    sizes = np.sqrt(np.maximum(np.diag(part), 0.0))
    if not len(keep) or not (sizes > 0).all() or not np.isfinite(part).all():
        return found
    free = np.eye(len(keep))  # directions in which parameters can change
    if constraints is not None and len(constraints):
        free = null_space(constraints[:, keep] / sizes)
        free[np.abs(free) < 1e-12] = 0.0
    values, vectors = np.linalg.eigh(free.T @ (part / np.outer(sizes, sizes)) @ free)
    if len(values) and values[0] > 1e-10:
        root = (free @ vectors) / np.sqrt(values) / sizes[:, None]
        found[np.ix_(keep, keep)] = root @ root.T
    return found
