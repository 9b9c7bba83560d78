"""Partial matrices: which entries (say, site and time) each observer saw, and their distributions.

Entries are Gaussian, Poisson or Bernoulli, by their natural parameter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Indices, Mask, check_number
from vpem.errors import InputError, check_choice, former
from vpem.records import Shown
from vpem.settings import LAWS

Values = NDArray[np.float64]

LARGEST_VALUE = 1e100
"""Magnitude of an entry up to which squares can be summed."""

LARGEST_COUNT = 2.0**53
"""Counts up to which float64 holds every integer."""

NEAR_ZERO = 1e-12
"""Probabilities and intensities that losses are taken at are at least this."""


class EntryLaw(ABC):
    """Density ``h(y) exp((y theta - psi(theta)) / dispersion)`` of an entry y."""

    name: ClassVar[str]  # one of `LAWS`
    unit: ClassVar[str]  # of means, in words
    domain: ClassVar[tuple[float, float]]  # smallest and largest mean there can be
    loss: ClassVar[str] = ""  # what a mean deviance is called, where it is more than a square
    dispersion = 1.0  # or the variance of a Gaussian law

    @abstractmethod
    def cumulant(self, theta: Values) -> Values:
        """Return ``psi(theta)``."""

    @abstractmethod
    def mean(self, theta: Values) -> Values:
        """Return ``psi'(theta)``, the expectation of y."""

    @abstractmethod
    def slopes(self, theta: Values) -> tuple[Values, Values]:
        """Return ``psi'(theta)`` and ``psi''(theta)``, the variance of y over the dispersion."""

    @abstractmethod
    def base(self, values: Values) -> Values:
        """Return ``log h(y)``."""

    @abstractmethod
    def fault(self, values: Values) -> tuple[Mask, str]:
        """Which values cannot be of this law, and what they must be."""

    def deviance(self, values: Values, means: Values) -> Values:
        """How far each is: its square, deviance or log-loss."""
        return np.asarray((values - means) ** 2)

    def losses(self, values: Values, means: Values) -> dict[str, float]:
        """How far means are from values that were not seen."""
        losses = {"rmse": float(np.sqrt(np.mean((values - means) ** 2)))}
        if self.loss:
            losses[self.loss] = float(self.deviance(values, means).mean())
        return losses


class Gaussian(EntryLaw):
    """Normal entries of known variance about their mean, which is theta."""

    name = "gaussian"
    unit = "mean"
    domain = -np.inf, np.inf

    def __init__(self, variance: float = 1.0) -> None:
        self.dispersion = variance

    def cumulant(self, theta: Values) -> Values:
        """Return half the square."""
        return 0.5 * theta * theta

    def mean(self, theta: Values) -> Values:
        return theta

    def slopes(self, theta: Values) -> tuple[Values, Values]:
        return theta, np.ones_like(theta)

    def base(self, values: Values) -> Values:
        """Return ``-(y^2 / variance + log(2 pi variance)) / 2``."""
        constant = float(np.log(2 * np.pi * self.dispersion))
        return np.asarray(-0.5 * (values**2 / self.dispersion + constant))

    def fault(self, values: Values) -> tuple[Mask, str]:
        """Refuse values whose squares cannot be summed."""
        large: Mask = np.abs(values) > LARGEST_VALUE
        return large, f"be at most {LARGEST_VALUE:g} in magnitude"


class PoissonEntry(EntryLaw):
    """Counts; theta is the logarithm of the intensity."""

    name = "poisson"
    unit = "intensity"
    domain = 0.0, np.inf
    loss = "deviance"  # 2 x log-likelihood ratio an entry

    def cumulant(self, theta: Values) -> Values:
        """Return ``exp(theta)``, infinite where it is too large."""
        with np.errstate(over="ignore"):
            values: Values = np.exp(theta)
        return values

    mean = cumulant  # the intensity

    def slopes(self, theta: Values) -> tuple[Values, Values]:
        """Return the intensity twice."""
        rates = self.cumulant(theta)
        return rates, rates

    def base(self, values: Values) -> Values:
        """Return ``-log(y!)``."""
        from scipy.special import gammaln

        constants: Values = -gammaln(values + 1.0)
        return constants

    def fault(self, values: Values) -> tuple[Mask, str]:
        """Refuse what is no count."""
        wrong = (values < 0) | (values != np.floor(values)) | (values > LARGEST_COUNT)
        return wrong, "be counts (0, 1, 2, ...)"

    def deviance(self, values: Values, means: Values) -> Values:
        """Return twice the log-likelihood ratio."""
        safe = np.maximum(means, NEAR_ZERO)
        positive = np.where(values > 0, values, 1.0)
        ratio = np.where(values > 0, values * np.log(positive / safe), 0.0)
        deviances: Values = 2 * (ratio - values + safe)
        return deviances


class BernoulliEntry(EntryLaw):
    """Zeros and ones; theta is the log odds of a one."""

    name = "bernoulli"
    unit = "probability"
    domain = 0.0, 1.0
    loss = "log_loss"  # minus the log-likelihood an entry, in nats

    def cumulant(self, theta: Values) -> Values:
        """Return ``log(1 + exp(theta))``."""
        values: Values = np.logaddexp(0.0, theta)
        return values

    def mean(self, theta: Values) -> Values:
        from scipy.special import expit

        values: Values = expit(theta)
        return values

    def slopes(self, theta: Values) -> tuple[Values, Values]:
        """Return the probability p and ``p (1 - p)``, at most 1/4."""
        chance = self.mean(theta)
        return chance, chance * (1.0 - chance)

    def base(self, values: Values) -> Values:
        return np.zeros_like(values)

    def fault(self, values: Values) -> tuple[Mask, str]:
        """Refuse what is neither 0 nor 1."""
        return (values != 0) & (values != 1), "be 0 or 1"

    def deviance(self, values: Values, means: Values) -> Values:
        """Return minus the log-likelihood."""
        safe = np.clip(means, NEAR_ZERO, 1 - NEAR_ZERO)
        deviances: Values = -np.where(values > 0, np.log(safe), np.log1p(-safe))
        return deviances


def make_law(name: str, variance: Any = 1.0) -> EntryLaw:
    """Make the law "gaussian", "poisson" or "bernoulli".

    The variance is that of an entry about its mean; only the Gaussian has one, others take 1.
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
    return PoissonEntry() if name == "poisson" else BernoulliEntry()


@dataclass(frozen=True)
class Observations(
    Shown, facts="{n_observers:observer}, {n_entries} entries of {shape[0]} x {shape[1]}"
):
    """Entries of an I x J matrix as n observers saw them; several may have seen the same one."""

    places: tuple[Indices, ...]  # (m_i,) ``row * J + column``, increasing
    values: tuple[Doubles, ...]  # (m_i,) what each observer saw there
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]
    names: tuple[str, ...]  # of the observers, all different
    n_copies: int | None = None
    """Copies of the matrix that observers hold parts of, where they are fewer than the observers: 1
    for parts of one matrix."""
    source: str = "the observations"  # for messages
    weights: tuple[Doubles, ...] | None = None
    """Of each entry (m_i,), above 0; only their ratios matter. None: all the same."""
    sizes: Indices | None = None
    """Entries of each observer (n,), where those of some are elsewhere (`seen_by`)."""
    long: bool = False  # from tables with a line an entry, as results then have too
    by_position: bool = False  # only their places say which rows of several files are the same

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix, I and J."""
        return len(self.row_names), len(self.column_names)

    @property
    def n_observers(self) -> int:
        """Number of observers, n."""
        return len(self.places)

    @property
    def counts(self) -> Indices:
        """Number of entries that each observer saw, shape (n,)."""
        if self.sizes is not None:
            return self.sizes
        return np.array([part.size for part in self.places], dtype=np.intp)

    @property
    def n_seen(self) -> int:
        """Different entries of the matrix that any observer saw."""
        return len(np.unique(np.concatenate(self.places)))

    @property
    def n_entries(self) -> int:
        """Entries of all observers together."""
        return int(self.counts.sum())

    @property
    def times_seen(self) -> Indices:
        """How many observers saw each entry, shape (I, J)."""
        rows, columns = self.shape
        every = np.concatenate(self.places)
        return np.bincount(every, minlength=rows * columns).reshape(self.shape)

    @property
    def mean(self) -> Doubles:
        """Mean over observers of each entry, NaN where none saw it, (I, J)."""
        weight, total = self.sums()
        mean = np.full(self.shape, np.nan)
        np.divide(total.reshape(self.shape), weight, out=mean, where=weight > 0)
        return mean

    def sums(self) -> tuple[NDArray[Any], Doubles]:
        """Return the weight (how often it was seen) and the weighted sum of each entry, (I, J)."""
        every, values, weights = self.entries(range(self.n_observers))
        size = self.shape[0] * self.shape[1]
        # What nothing is added to are whole numbers, whatever weights there are.
        heavy = values if weights is None else weights * values
        total = np.bincount(every, heavy, size).astype(np.float64, copy=False)
        weight: Any = np.bincount(every, weights, size)
        if weights is not None:
            weight = weight.astype(np.float64, copy=False)
        return weight.reshape(self.shape), total.reshape(self.shape)

    def column_sums(self) -> Doubles:
        """Return the weight of each column's entries, and their weighted sum, shape (2, J)."""
        every, values, weights = self.entries(range(self.n_observers))
        columns, n = every % self.shape[1], self.shape[1]
        heavy = values if weights is None else weights * values
        return np.stack([np.bincount(columns, part, n) for part in (weights, heavy)], dtype=float)

    def entries(self, observers: Collection[int]) -> tuple[Indices, Doubles, Doubles | None]:
        """Return places, values and weights of some observers' entries, one after another."""
        none = np.empty(0)

        def of(parts: tuple[NDArray[Any], ...]) -> NDArray[Any]:
            return np.concatenate([none.astype(parts[0].dtype), *(parts[i] for i in observers)])

        weights = None if self.weights is None else of(self.weights)
        return of(self.places), of(self.values), weights

    def chosen(self, which: Sequence[NDArray[Any]]) -> Observations:
        """Return some of every observer's entries, by masks or numbers."""

        def some(parts: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
            return tuple(part[keep] for part, keep in zip(parts, which, strict=True))

        weights = None if self.weights is None else some(self.weights)
        return replace(self, places=some(self.places), values=some(self.values), weights=weights)

    def seen_by(self, observers: Collection[int]) -> Observations:
        """Return what some observers saw, and of the others only how many entries."""

        def kept(parts: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
            return tuple(one if i in observers else one[:0] for i, one in enumerate(parts))

        return replace(
            self,
            places=kept(self.places),
            values=kept(self.values),
            weights=None if self.weights is None else kept(self.weights),
            sizes=self.counts,
        )

    part = former("part", "seen_by")

    def matrix(self, observer: int) -> Doubles:
        """What one observer saw, NaN elsewhere, shape (I, J)."""
        matrix = np.full(self.shape, np.nan)
        matrix.ravel()[self.places[observer]] = self.values[observer]
        return matrix


def check_law(
    observations: Observations, law: EntryLaw, observers: Collection[int] | None = None
) -> None:
    """Raise InputError where a value cannot be of the law: counts that are no counts, say."""
    n_columns = observations.shape[1]
    for one in range(observations.n_observers) if observers is None else observers:
        name, places, values = (
            observations.names[one],
            observations.places[one],
            observations.values[one],
        )
        wrong, rule = law.fault(values)
        if wrong.any():
            first = int(np.argmax(wrong))
            row, column = divmod(int(places[first]), n_columns)
            others = f"; {int(wrong.sum())} of its values are not" if wrong.sum() > 1 else ""
            raise InputError(
                f"{observations.source}: under the {law.name} law values must {rule}, but what "
                f"{name} saw at row {observations.row_names[row]!r}, column "
                f"{observations.column_names[column]!r} is {values[first]:g}{others}"
            )
