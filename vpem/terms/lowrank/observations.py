"""Partial matrices: which entries (say, site and time) each observer saw, and their distributions.

Entries are Gaussian, Poisson or Bernoulli, by their natural parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vpem.checks import AnyArray, Doubles, Indices, Mask, check_int, check_number
from vpem.errors import InputError, Setting, check_choice, former
from vpem.records import Shown
from vpem.settings import BINOMIAL, LAWS

LARGEST_VALUE = 1e100
"""Magnitude of an entry up to which squares can be summed."""

LARGEST_COUNT = 2.0**53
"""Counts up to which float64 holds every integer."""

NEWTON_STEPS, LONGEST, SMALLEST_STEP = 100, 2.0, 1e-14
"""Of an observer's intercept, on the scale of logarithms or log odds."""

NEAR_ZERO = 1e-12
"""Probabilities and intensities that losses are taken at are at least this."""


@dataclass(frozen=True)
class EntryLaw:
    """Density ``h(y) exp((y theta - psi(theta)) / dispersion)`` of an entry y.

    Theta is the mean of Gaussian entries, which vary about it by a known variance, the logarithm of
    the intensity of counts, or the log odds of a one, or of a success in each of some trials.
    """

    name: str  # one of `LAWS`, or "binomial"
    unit: str  # of means, in words
    domain: tuple[float, float]  # smallest and largest mean there can be
    loss: str = ""  # what a mean deviance is called, where it is more than a square
    dispersion: float = 1.0  # or the variance of a Gaussian law
    trials: int = 1  # of which binomial entries count the successes

    def cumulant(self, theta: Doubles) -> Doubles:
        """Return ``psi(theta)``; infinite where an intensity is too large."""
        if self.name == "gaussian":
            return 0.5 * theta * theta
        if self.name in LOGISTIC:
            return np.asarray(self.trials * np.logaddexp(0.0, theta))
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(theta))

    def mean(self, theta: Doubles) -> Doubles:
        """Return ``psi'(theta)``, the expectation of y."""
        if self.name == "gaussian":
            return theta
        if self.name == "poisson":
            return self.cumulant(theta)
        from scipy.special import expit

        return np.asarray(self.trials * expit(theta))

    def slopes(self, theta: Doubles) -> tuple[Doubles, Doubles]:
        """Return ``psi'(theta)`` and ``psi''(theta)``, the variance of y over the dispersion."""
        mean = self.mean(theta)
        if self.name == "poisson":
            return mean, mean
        if self.name in LOGISTIC:
            return mean, mean * (1.0 - mean / self.trials)
        return mean, np.ones_like(theta)

    def intercept(
        self, values: Doubles, theta: Doubles, shrinkage: float, weights: Doubles | None = None
    ) -> float:
        """Return the a of one observer under which its entries (m,) of these theta are likeliest.

        It minimizes ``sum w (psi(theta + a) - y a) / dispersion + shrinkage a^2 / 2``.
        """
        heavy = np.ones(len(values)) if weights is None else weights
        shrinkage *= self.dispersion

        def slopes(a: float) -> tuple[float, float]:
            with np.errstate(over="ignore", invalid="ignore"):
                mean, curvature = self.slopes(theta + a)
                first = float(heavy @ (mean - values)) + shrinkage * a
            return first, float(heavy @ curvature) + shrinkage

        a, (slope, bend) = 0.0, slopes(0.0)
        for _ in range(NEWTON_STEPS):
            step = slope / bend
            if self.name != "gaussian":
                step = float(np.clip(step, -LONGEST, LONGEST))
            after, bent = slopes(a - step)
            # The slope rises with a, so that a step that is too long goes beyond its zero.
            while not abs(after) < abs(slope) and abs(step) > SMALLEST_STEP * max(1.0, abs(a)):
                step /= 2
                after, bent = slopes(a - step)
            if not abs(after) < abs(slope):
                break
            a, slope, bend = a - step, after, bent
        return a

    def base(self, values: Doubles) -> Doubles:
        """Return ``log h(y)``; of a Gaussian ``-(y^2 / variance + log(2 pi variance)) / 2``."""
        if self.name == "bernoulli":
            return np.zeros_like(values)
        if self.name in ("poisson", BINOMIAL):
            from scipy.special import gammaln

            below = np.asarray(-gammaln(values + 1.0))
            if self.name == "poisson":
                return below
            return np.asarray(
                below + gammaln(self.trials + 1.0) - gammaln(self.domain[1] - values + 1.0)
            )
        constant = float(np.log(2 * np.pi * self.dispersion))
        return np.asarray(-0.5 * (values**2 / self.dispersion + constant))

    def fault(self, values: Doubles) -> tuple[Mask, str]:
        """Which values cannot be of this law, and what they must be.

        Squares of Gaussian ones must be such as can be summed.
        """
        if self.name == "bernoulli":
            return (values != 0) & (values != 1), "be 0 or 1"
        if self.name == "poisson":
            wrong = (values < 0) | (values != np.floor(values)) | (values > LARGEST_COUNT)
            return wrong, "be counts (0, 1, 2, ...)"
        if self.name == BINOMIAL:
            wrong = (values < 0) | (values != np.floor(values)) | (values > self.trials)
            return wrong, f"be counts out of {self.trials} trials"
        large: Mask = np.abs(values) > LARGEST_VALUE
        return large, f"be at most {LARGEST_VALUE:g} in magnitude"

    def deviance(self, values: Doubles, means: Doubles) -> Doubles:
        """How far each is: its square, twice the log-likelihood ratio, or minus the logarithm."""
        if self.name == "gaussian":
            return np.asarray((values - means) ** 2)
        if self.name == "bernoulli":
            safe = np.clip(means, NEAR_ZERO, 1 - NEAR_ZERO)
            return np.asarray(-np.where(values > 0, np.log(safe), np.log1p(-safe)))
        if self.name == BINOMIAL:
            safe = np.clip(means, NEAR_ZERO, self.trials * (1 - NEAR_ZERO))
            rest = self.trials - values
            failed = np.where(
                rest > 0, rest * np.log(np.maximum(rest, 1) / (self.trials - safe)), 0
            )
            won = np.where(values > 0, values * np.log(np.maximum(values, 1) / safe), 0.0)
            return np.asarray(2 * (won + failed))
        safe = np.maximum(means, NEAR_ZERO)
        positive = np.where(values > 0, values, 1.0)
        ratio = np.where(values > 0, values * np.log(positive / safe), 0.0)
        return np.asarray(2 * (ratio - values + safe))

    def losses(self, values: Doubles, means: Doubles) -> dict[str, float]:
        """How far means are from values that were not seen."""
        losses = {"rmse": float(np.sqrt(np.mean((values - means) ** 2)))}
        if self.loss:
            losses[self.loss] = float(self.deviance(values, means).mean())
        return losses


ENTRY_LAWS = {
    "gaussian": EntryLaw("gaussian", "mean", (-np.inf, np.inf)),
    # Twice the log-likelihood ratio an entry, and minus the log-likelihood of one, in nats.
    "poisson": EntryLaw("poisson", "intensity", (0.0, np.inf), "deviance"),
    "bernoulli": EntryLaw("bernoulli", "probability", (0.0, 1.0), "log_loss"),
    BINOMIAL: EntryLaw(BINOMIAL, "successes", (0.0, np.inf), "deviance"),
}
LOGISTIC = ("bernoulli", BINOMIAL)
"""Laws whose theta are log odds."""


def make_law(name: str, variance: float = 1.0, trials: int | None = None) -> EntryLaw:
    """Make the law "gaussian", "poisson", "bernoulli" or "binomial".

    The variance is that of an entry about its mean; only the Gaussian has one, others take 1. The
    binomial law counts successes in so many trials.
    """
    check_choice("law", name, (*LAWS, BINOMIAL))
    if name == BINOMIAL:
        if trials is None:
            raise InputError(
                Setting("law", BINOMIAL), " counts successes in a number of trials; say how many: ",
                Setting("trials", 10),
            )  # fmt: skip
        trials = check_int("trials", trials, least=1, most=10**9)
        return replace(ENTRY_LAWS[name], trials=trials, domain=(0.0, float(trials)))
    variance = check_number("variance", variance, least=1e-100, most=LARGEST_VALUE)
    if name != "gaussian" and variance != 1.0:
        raise InputError(
            f"only the gaussian law has a variance of its own: the {name} law's follows from the "
            f"mean; leave variance at 1, got {variance:g}"
        )
    return replace(ENTRY_LAWS[name], dispersion=variance)


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

    def sums(self) -> tuple[AnyArray, Doubles]:
        """Return the weight (how often it was seen) and the weighted sum of each entry, (I, J)."""
        every, values, weights = self.entries(range(self.n_observers))
        size = self.shape[0] * self.shape[1]
        # What nothing is added to are whole numbers, whatever weights there are.
        heavy = values if weights is None else weights * values
        total = np.bincount(every, heavy, size).astype(np.float64, copy=False)
        weight: AnyArray = np.bincount(every, weights, size)
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
        places, values, weights = (
            None
            if parts is None
            else np.concatenate([parts[0][:0], *(parts[i] for i in observers)])
            for parts in (self.places, self.values, self.weights)
        )
        assert places is not None
        assert values is not None
        return places, values, weights

    def chosen(self, which: Sequence[Any]) -> Observations:
        """Return some of every observer's entries, by masks, numbers or slices."""
        places, values, weights = (
            ()
            if parts is None
            else tuple(one[keep] for one, keep in zip(parts, which, strict=True))
            for parts in (self.places, self.values, self.weights)
        )
        return replace(
            self, places=places, values=values, weights=None if self.weights is None else weights
        )

    def seen_by(self, observers: Collection[int]) -> Observations:
        """Return what some observers saw, and of the others only how many entries."""
        keep = [slice(None) if i in observers else slice(0) for i in range(self.n_observers)]
        return replace(self.chosen(keep), sizes=self.counts)

    part = former("part", "seen_by")

    def said_of(self, observer: int, wrong: Mask) -> tuple[int, str]:
        """Return the first of an observer's entries (m_i,) that is wrong, and which that is."""
        first = int(np.argmax(wrong))
        row, column = divmod(int(self.places[observer][first]), self.shape[1])
        at = f"row {self.row_names[row]!r}, column {self.column_names[column]!r}"
        return first, f"what {self.names[observer]} saw at {at}"

    def matrix(self, observer: int) -> Doubles:
        """What one observer saw, NaN elsewhere, shape (I, J)."""
        matrix = np.full(self.shape, np.nan)
        matrix.ravel()[self.places[observer]] = self.values[observer]
        return matrix


def check_law(
    observations: Observations, law: EntryLaw, observers: Collection[int] | None = None
) -> None:
    """Raise InputError where a value cannot be of the law: counts that are no counts, say."""
    for one in range(observations.n_observers) if observers is None else observers:
        values = observations.values[one]
        wrong, rule = law.fault(values)
        if wrong.any():
            first, what = observations.said_of(one, wrong)
            others = f"; {int(wrong.sum())} of its values are not" if wrong.sum() > 1 else ""
            raise InputError(
                f"{observations.source}: under the {law.name} law values must {rule}, but {what} "
                f"is {values[first]:g}{others}"
            )
