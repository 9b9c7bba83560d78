"""Laws of what is measured, given a curve: normal errors of several kinds, yes or no, counts.

The variance of a normal error is a sum ``g^2 = sum_k v_k w_k(f)`` of known functions of the curve f
with parameters v: its standard deviations squared. A value may be censored: it is then known to be
below (or above) a limit, which is written in its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammaln, log_expit, log_ndtr, ndtri, pdtrik

from vpem.errors import InputError
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import Vector

LOG_2_PI = float(np.log(2 * np.pi))


class Rows(NamedTuple):
    """What was measured."""

    values: Vector  # (N,) measurements, or limits
    censored: NDArray[np.int8]  # (N,) 1 where the value is below the limit, -1 above, 0 measured


class Bends(NamedTuple):
    """What a log-density says of the curve and the variances, row by row."""

    slope: Vector  # (chains, N) derivative in the curve
    weight: Vector  # (chains, N) information about the curve, not negative
    variances: Vector  # (k, chains, N) derivatives in the variances v
    cross: Vector  # (k, chains, N) information about curve and variances together
    among: Vector  # (k, k, chains, N) information about the variances


class Law(ABC):
    """Law of a measurement given a curve f, and of parameters.

    Attributes
    ----------
    parameters : tuple of str
        Names of the standard deviations, (k,).
    code : int
        Of kernels.
    """

    parameters: tuple[str, ...] = ()
    code: int

    @abstractmethod
    def check(self, rows: Rows, individuals: Individuals, here: NDArray[np.intp]) -> None:
        """Raise InputError for values that cannot be of this law; ``here`` says which rows."""

    @abstractmethod
    def log_density(self, rows: Rows, f: Vector, sds: Vector) -> Vector:
        """Log-density of the rows (chains, N) given curves (chains, N) and sds (k,)."""

    @abstractmethod
    def bends(self, rows: Rows, f: Vector, sds: Vector) -> Bends:
        """Derivatives and information."""

    @abstractmethod
    def mean(self, f: Vector) -> Vector:
        """Value that is expected (of exponential errors: the median)."""

    @abstractmethod
    def deviation(self, f: Vector, sds: Vector) -> Vector:
        """Standard deviation about `mean`, on the scale of `residuals`."""

    @abstractmethod
    def draw(self, f: Vector, sds: Vector, chances: Vector) -> Vector:
        """Draw measurements of which ``chances`` (chains, N) are the uniform numbers."""

    def residuals(self, values: Vector, f: Vector, sds: Vector) -> Vector:
        """Residuals in units of their standard deviation."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            found: Vector = (values - self.mean(f)) / self.deviation(f, sds)
        return found

    def start(self, values: Vector) -> Vector:
        """Standard deviations (k,) to begin with, of values of which there is one at least."""
        return np.zeros(0)

    def floor(self, size: float) -> float:
        """Least variance, of values whose mean square is ``size``."""
        return 0.0

    def noise(self, sds: Vector) -> tuple[float, float]:
        """Standard deviations a and b, of which a variance is ``a^2 + b^2 f^2``."""
        return (0.0, 0.0)


class Normal(Law):
    """Normal errors; ``exponential``: of logarithms.

    Parameters
    ----------
    kind : {"constant", "proportional", "combined", "exponential"}
        With standard deviations a, b f, ``(a^2 + b^2 f^2)^(1/2)``, or a of the logarithm.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.logs = kind == "exponential"
        self.code = int(self.logs)
        both = ("additive sd", "proportional sd")
        self.parameters = both if kind == "combined" else ("residual sd",)

    @property
    def is_steady(self) -> bool:
        """Whether the variance does not depend on the curve."""
        return self.kind in ("constant", "exponential")

    def check(self, rows: Rows, individuals: Individuals, here: NDArray[np.intp]) -> None:
        """Refuse values without logarithms."""
        wrong = np.flatnonzero(rows.values <= 0)
        if self.logs and len(wrong):
            row = here[wrong[0]]
            who = individuals.names[individuals.individual_of[row]]
            raise InputError(
                f"{individuals.source}: individual {who!r} has the value "
                f"{individuals.values[row]:g}, which has no logarithm, and the error is "
                "exponential; leave out such rows, or take another error"
            )

    def _own(self, f: Vector) -> Vector:
        """Curve on the scale of the errors."""
        if not self.logs:
            return f
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(f)

    def weights(self, f: Vector) -> list[Vector]:
        """Functions w_k (chains, N) of which the variance is a sum."""
        if self.is_steady:
            return [np.ones(f.shape)]
        with np.errstate(over="ignore", invalid="ignore"):
            return [f**2] if self.kind == "proportional" else [np.ones(f.shape), f**2]

    def _variance(self, f: Vector, sds: Vector) -> Vector:
        if self.is_steady:
            return np.full(f.shape, sds[0] ** 2)
        with np.errstate(over="ignore", invalid="ignore"):
            steady = 0.0 if self.kind == "proportional" else sds[0] ** 2
            found: Vector = steady + sds[-1] ** 2 * f**2
        return found

    def log_density(self, rows: Rows, f: Vector, sds: Vector) -> Vector:
        """Log-density, of a censored row the logarithm of its probability."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            variance = self._variance(f, sds)
            y = np.log(rows.values) if self.logs else rows.values
            rest = y - self._own(f)
            found = -0.5 * (rest**2 / variance + np.log(variance) + LOG_2_PI)
            if self.logs:
                found = found - y
            if rows.censored.any():
                where = rows.censored != 0
                u = rows.censored[where] * rest[..., where] / np.sqrt(variance[..., where])
                found[..., where] = log_ndtr(u)
        return found

    def bends(self, rows: Rows, f: Vector, sds: Vector) -> Bends:
        """Derivatives, and expected information; of censored rows the observed one."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            variance, w = self._variance(f, sds), self.weights(f)
            y = np.log(rows.values) if self.logs else rows.values
            rest = y - self._own(f)
            grow = np.zeros(f.shape) if self.is_steady else 2 * sds[-1] ** 2 * f
            of_variance = 0.5 * (rest**2 / variance - 1) / variance
            of_f = rest / variance
            own = 1 / variance
            curve = np.ones(f.shape) if not self.logs else 1 / f
            info = 0.5 / variance**2
            if rows.censored.any():
                where = rows.censored != 0
                sign = rows.censored[where]
                sd = np.sqrt(variance[..., where])
                u = sign * rest[..., where] / sd
                hazard = np.exp(-0.5 * (u**2 + LOG_2_PI) - log_ndtr(u))
                of_f[..., where] = -sign * hazard / sd
                own[..., where] = np.maximum(hazard * (hazard + u), 0.0) / sd**2
                of_variance[..., where] = -0.5 * u * hazard / sd**2
                info[..., where] = of_variance[..., where] ** 2
        slope = of_f * curve + of_variance * grow
        weight = own * curve**2 + info * grow**2
        return Bends(
            slope,
            weight,
            np.array([of_variance * one for one in w]),
            np.array([info * grow * one for one in w]),
            np.array([[info * one * two for two in w] for one in w]),
        )

    def noise(self, sds: Vector) -> tuple[float, float]:
        """Standard deviations a and b."""
        steady = 0.0 if self.kind == "proportional" else float(sds[0])
        return steady, 0.0 if self.is_steady else float(sds[-1])

    def mean(self, f: Vector) -> Vector:
        """Return the curve."""
        return f

    def deviation(self, f: Vector, sds: Vector) -> Vector:
        """Root of the variance."""
        return np.sqrt(self._variance(f, sds))

    def residuals(self, values: Vector, f: Vector, sds: Vector) -> Vector:
        """Residuals in units of their standard deviation, of logarithms where errors are."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            y = np.log(values) if self.logs else values
            found: Vector = (y - self._own(f)) / self.deviation(f, sds)
        return found

    def draw(self, f: Vector, sds: Vector, chances: Vector) -> Vector:
        """Draw measurements."""
        apart = ndtri(chances) * self.deviation(f, sds)
        found: Vector = f * np.exp(apart) if self.logs else f + apart
        return found

    def start(self, values: Vector) -> Vector:
        """Return sds that are large."""
        size = float(np.sqrt(np.mean(values**2))) or 1.0
        parts = {"constant": [0.3 * size], "combined": [0.1 * size, 0.3]}
        return np.array(parts.get(self.kind, [0.3]))

    def floor(self, size: float) -> float:
        """Least variance."""
        return 1e-10 * (size if self.kind in ("constant", "combined") else 1.0)


class Bernoulli(Law):
    """Yes (1) or no (0); the curve is the logit of the probability of yes."""

    code = 2

    def check(self, rows: Rows, individuals: Individuals, here: NDArray[np.intp]) -> None:
        """Refuse other values than 0 and 1."""
        _refuse(np.isin(rows.values, (0.0, 1.0)), "0 or 1, which yes or no", individuals, here)

    def log_density(self, rows: Rows, f: Vector, sds: Vector) -> Vector:
        """Logarithm of the probability."""
        found: Vector = log_expit((2 * rows.values - 1) * f)
        return found

    def bends(self, rows: Rows, f: Vector, sds: Vector) -> Bends:
        """Derivatives and information."""
        p = expit(f)
        return _only(rows.values - p, p * (1 - p))

    def mean(self, f: Vector) -> Vector:
        """Probability of yes."""
        return np.asarray(expit(f))

    def deviation(self, f: Vector, sds: Vector) -> Vector:
        """Root of the variance."""
        return np.asarray(np.sqrt(expit(f) * expit(-f)), dtype=np.float64)

    def draw(self, f: Vector, sds: Vector, chances: Vector) -> Vector:
        """Draw yes or no."""
        return np.asarray(chances < expit(f), dtype=np.float64)


class Poisson(Law):
    """Counts; the curve is the logarithm of the mean."""

    code = 3

    def check(self, rows: Rows, individuals: Individuals, here: NDArray[np.intp]) -> None:
        """Refuse what is no count."""
        fine = (rows.values >= 0) & (rows.values == np.floor(rows.values))
        _refuse(fine, "a whole number from 0 on, which a count", individuals, here)

    def log_density(self, rows: Rows, f: Vector, sds: Vector) -> Vector:
        """Logarithm of the probability."""
        with np.errstate(over="ignore"):
            found: Vector = rows.values * f - np.exp(f) - gammaln(rows.values + 1)
        return found

    def bends(self, rows: Rows, f: Vector, sds: Vector) -> Bends:
        """Derivatives and information."""
        with np.errstate(over="ignore"):
            mean = np.exp(f)
        return _only(rows.values - mean, mean)

    def mean(self, f: Vector) -> Vector:
        """Mean count."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(f), dtype=np.float64)

    def deviation(self, f: Vector, sds: Vector) -> Vector:
        """Root of the mean."""
        return np.asarray(np.sqrt(self.mean(f)), dtype=np.float64)

    def draw(self, f: Vector, sds: Vector, chances: Vector) -> Vector:
        """Draw counts."""
        found: Vector = np.ceil(np.maximum(pdtrik(chances, np.maximum(self.mean(f), 1e-300)), 0.0))
        return found


def _only(slope: Vector, weight: Vector) -> Bends:
    """Bends of a law without parameters."""
    none = np.zeros((0, *slope.shape))
    return Bends(slope, weight, none, none, np.zeros((0, 0, *slope.shape)))


def _refuse(
    fine: NDArray[np.bool_], what: str, individuals: Individuals, here: NDArray[np.intp]
) -> None:
    """Raise InputError for the first value that is not fine."""
    if not fine.all():
        row = here[int(np.argmin(fine))]
        who = individuals.names[individuals.individual_of[row]]
        raise InputError(
            f"{individuals.source}: individual {who!r} has the value "
            f"{individuals.values[row]:g}, but this outcome is {what} is; take another error"
        )


LAWS: Mapping[str, Law] = {
    **{kind: Normal(kind) for kind in ("constant", "proportional", "combined", "exponential")},
    "bernoulli": Bernoulli(),
    "poisson": Poisson(),
}
"""Laws by name."""

LINKED = tuple(name for name, law in LAWS.items() if not law.parameters)
"""Laws whose curve is a logit or a logarithm of a mean."""

NORMAL = tuple(name for name, law in LAWS.items() if isinstance(law, Normal) and not law.logs)
"""Laws of values that are normal about the curve."""
