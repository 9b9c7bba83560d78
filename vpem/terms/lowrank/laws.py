"""Laws of one entry of a matrix: Gaussian, Poisson and Bernoulli, by their natural parameter."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_number
from vpem.errors import InputError, check_choice
from vpem.settings import LAWS

Values = NDArray[np.float64]

LARGEST_VALUE = 1e100
"""Magnitude of an entry up to which squares can be summed."""

LARGEST_COUNT = 2.0**53
"""Counts up to which float64 holds every integer."""

NEAR_ZERO = 1e-12
"""Probabilities and intensities that losses are taken at are at least this."""


class Law(Protocol):
    """Density ``h(y) exp((y theta - psi(theta)) / dispersion)`` of an entry y.

    Attributes
    ----------
    name : str
        One of `LAWS`.
    unit : str
        What means are called.
    dispersion : float
        1, or the variance of a Gaussian law.
    """

    name: str
    unit: str
    dispersion: float

    def cumulant(self, theta: Values) -> Values:
        """Return ``psi(theta)``."""

    def mean(self, theta: Values) -> Values:
        """Return ``psi'(theta)``, the expectation of y."""

    def slopes(self, theta: Values) -> tuple[Values, Values]:
        """Return ``psi'(theta)`` and ``psi''(theta)``, the variance of y over the dispersion."""

    def base(self, values: Values) -> Values:
        """Return ``log h(y)``."""

    def domain(self) -> tuple[float, float]:
        """Smallest and largest mean there can be."""

    def fault(self, values: Values) -> tuple[NDArray[np.bool_], str]:
        """Which values cannot be of this law, and what they must be."""

    def losses(self, values: Values, means: Values) -> dict[str, float]:
        """How far means are from values that were not seen."""

    def deviance(self, values: Values, means: Values) -> Values:
        """How far each is: its square, deviance or log-loss."""


class _Entry:
    """What all laws share."""

    name = ""
    unit = ""
    dispersion = 1.0

    def losses(self, values: Values, means: Values) -> dict[str, float]:
        """Root mean squared error."""
        return {"rmse": float(np.sqrt(np.mean((values - means) ** 2)))}

    def deviance(self, values: Values, means: Values) -> Values:
        """Return the squares of the errors."""
        found: Values = (values - means) ** 2
        return found


class Gaussian(_Entry):
    """Normal entries of known variance; theta is the mean.

    Parameters
    ----------
    variance : float
        Of an entry about its mean.
    """

    name = "gaussian"
    unit = "mean"

    def __init__(self, variance: float = 1.0) -> None:
        self.dispersion = variance

    def cumulant(self, theta: Values) -> Values:
        """Return half the square."""
        return 0.5 * theta * theta

    def mean(self, theta: Values) -> Values:
        """Return theta itself."""
        return theta

    def slopes(self, theta: Values) -> tuple[Values, Values]:
        """Return theta and ones."""
        return theta, np.ones_like(theta)

    def base(self, values: Values) -> Values:
        """Return ``-(y^2 / variance + log(2 pi variance)) / 2``."""
        constant = float(np.log(2 * np.pi * self.dispersion))
        found: Values = -0.5 * (values**2 / self.dispersion + constant)
        return found

    def domain(self) -> tuple[float, float]:
        """Any mean."""
        return -np.inf, np.inf

    def fault(self, values: Values) -> tuple[NDArray[np.bool_], str]:
        """Refuse values whose squares cannot be summed."""
        large: NDArray[np.bool_] = np.abs(values) > LARGEST_VALUE
        return large, f"be at most {LARGEST_VALUE:g} in magnitude"


class Poisson(_Entry):
    """Counts; theta is the logarithm of the intensity."""

    name = "poisson"
    unit = "intensity"

    def cumulant(self, theta: Values) -> Values:
        """Return ``exp(theta)``, infinite where it is too large."""
        with np.errstate(over="ignore"):
            found: Values = np.exp(theta)
        return found

    def mean(self, theta: Values) -> Values:
        """Return the intensity, ``exp(theta)``."""
        return self.cumulant(theta)

    def slopes(self, theta: Values) -> tuple[Values, Values]:
        """Return the intensity twice."""
        found = self.cumulant(theta)
        return found, found

    def base(self, values: Values) -> Values:
        """Return ``-log(y!)``."""
        from scipy.special import gammaln

        found: Values = -gammaln(values + 1.0)
        return found

    def domain(self) -> tuple[float, float]:
        """Intensities are not negative."""
        return 0.0, np.inf

    def fault(self, values: Values) -> tuple[NDArray[np.bool_], str]:
        """Refuse what is no count."""
        wrong = (values < 0) | (values != np.floor(values)) | (values > LARGEST_COUNT)
        return wrong, "be counts (0, 1, 2, ...)"

    def losses(self, values: Values, means: Values) -> dict[str, float]:
        """Root mean squared error, and mean deviance (2 x log-likelihood ratio an entry)."""
        deviance = float(self.deviance(values, means).mean())
        return super().losses(values, means) | {"deviance": deviance}

    def deviance(self, values: Values, means: Values) -> Values:
        """Return twice the log-likelihood ratio."""
        safe = np.maximum(means, NEAR_ZERO)
        positive = np.where(values > 0, values, 1.0)
        ratio = np.where(values > 0, values * np.log(positive / safe), 0.0)
        found: Values = 2 * (ratio - values + safe)
        return found


class Bernoulli(_Entry):
    """Zeros and ones; theta is the log odds of a one."""

    name = "bernoulli"
    unit = "probability"

    def cumulant(self, theta: Values) -> Values:
        """Return ``log(1 + exp(theta))``."""
        found: Values = np.logaddexp(0.0, theta)
        return found

    def mean(self, theta: Values) -> Values:
        """Return the probability of a one."""
        from scipy.special import expit

        found: Values = expit(theta)
        return found

    def slopes(self, theta: Values) -> tuple[Values, Values]:
        """Return the probability p and ``p (1 - p)``, at most 1/4."""
        chance = self.mean(theta)
        return chance, chance * (1.0 - chance)

    def base(self, values: Values) -> Values:
        """Return zeros."""
        return np.zeros_like(values)

    def domain(self) -> tuple[float, float]:
        """Probabilities."""
        return 0.0, 1.0

    def fault(self, values: Values) -> tuple[NDArray[np.bool_], str]:
        """Refuse what is neither 0 nor 1."""
        return (values != 0) & (values != 1), "be 0 or 1"

    def losses(self, values: Values, means: Values) -> dict[str, float]:
        """Root mean squared error, and log-loss (minus the log-likelihood an entry, in nats)."""
        loss = float(self.deviance(values, means).mean())
        return super().losses(values, means) | {"log_loss": loss}

    def deviance(self, values: Values, means: Values) -> Values:
        """Return minus the log-likelihood."""
        safe = np.clip(means, NEAR_ZERO, 1 - NEAR_ZERO)
        found: Values = -np.where(values > 0, np.log(safe), np.log1p(-safe))
        return found


def make_law(name: str, variance: Any = 1.0) -> Law:
    """Make the law "gaussian", "poisson" or "bernoulli".

    The variance is of an entry about its mean; only the Gaussian has one, and others take 1.
    """
    check_choice("law", name, LAWS)
    variance = check_number("variance", variance, least=1e-100, most=LARGEST_VALUE)
    if name == "gaussian":
        return Gaussian(variance)
    if variance != 1.0:
        raise InputError(
            f"only the gaussian law has a variance of its own: the {name} law's follows from the "
            f"mean; leave variance at 1, got {variance:g}"
        )
    return Poisson() if name == "poisson" else Bernoulli()
