"""Curves by formulas that are known by name, as R's self-starting models are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np

from vpem.errors import check_choice
from vpem.saem.individuals import Individuals
from vpem.saem.structures.structure import SCALES, Structure, Vector


@dataclass(frozen=True)
class _Kind:
    """A formula: its parameters with their scales, and a guess of them from a course."""

    parameters: Mapping[str, str]
    of: Callable[..., Vector]
    guess: Callable[[Vector, Vector], Sequence[float]]


def _line(x: Vector, y: Vector) -> tuple[float, float]:
    """Slope and intercept of a line through points; NaN where there is none."""
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    apart = x - x.mean() if len(x) else x
    if not apart.any():
        return np.nan, np.nan
    slope = float(apart @ y / (apart @ apart))
    return slope, float(y.mean() - slope * x.mean())


def _logistic(t: Vector, y: Vector) -> tuple[float, ...]:
    """Asymptote, midpoint and scale: the logit of the share of the asymptote is a line."""
    top = 1.05 * y.max()
    slope, height = _line(t, np.log(y / (top - y)))
    return top, -height / slope, 1 / slope


def _gompertz(t: Vector, y: Vector) -> tuple[float, ...]:
    """Asymptote, depth and what a unit of time leaves of it."""
    top = 1.05 * y.max()
    slope, height = _line(t, np.log(-np.log(y / top)))
    return top, np.exp(height), np.exp(slope)


def _falling(t: Vector, y: Vector) -> tuple[float, ...]:
    """Asymptote, value at 0 and rate: least squares of the two that are linear, rates of a grid."""
    length = float(np.ptp(t))
    if not length > 0 or len(t) < 3:
        return (np.nan,) * 3
    best = (np.inf, np.nan, np.nan, np.nan)
    for rate in np.geomspace(0.2, 50.0, 60) / length:
        left = np.exp(-rate * t)
        columns = np.stack([1 - left, left], axis=-1)
        (end, start), *_ = np.linalg.lstsq(columns, y, rcond=None)
        squares = float(np.sum((y - columns @ [end, start]) ** 2))
        best = min(best, (squares, float(end), float(start), float(rate)))
    return best[1:]


def _biexponential(t: Vector, y: Vector) -> tuple[float, ...]:
    """Amplitudes and rates: of the last half of the logarithms, and of what it leaves."""
    half = max(len(t) // 2, len(t) - 4)
    slow, height = _line(t[half:], np.log(y[half:]))
    rest = y - np.exp(height + slow * t)
    fast, before = _line(t[:half], np.log(rest[:half]))
    return np.exp(before), -fast, np.exp(height), -slow


def _saturating(t: Vector, y: Vector) -> tuple[float, float]:
    """Highest value and the half-way point: t / y is a line in t."""
    slope, height = _line(t[y > 0], t[y > 0] / y[y > 0])
    return 1 / slope, height / slope


def _emax(t: Vector, y: Vector) -> tuple[float, ...]:
    """Value at 0, the rise above it, and where half of it is."""
    base = y[int(t.argmin())]
    return base, *_saturating(t, y - base)


def _four(t: Vector, y: Vector) -> tuple[float, ...]:
    """Both asymptotes, midpoint and scale."""
    low = y.min() - 0.05 * (y.max() - y.min())
    high, middle, scale = _logistic(t, y - low)
    return low, low + high, middle, scale


FORMULAS = {
    "logistic": _Kind(
        {"asymptote": "identity", "midpoint": "identity", "scale": "identity"},
        lambda t, top, middle, scale: top / (1 + np.exp((middle - t) / scale)),
        _logistic,
    ),
    "four-parameter-logistic": _Kind(
        {"low": "identity", "high": "identity", "midpoint": "identity", "scale": "identity"},
        lambda t, low, high, middle, scale: low + (high - low) / (1 + np.exp((middle - t) / scale)),
        _four,
    ),
    "gompertz": _Kind(
        {"asymptote": "identity", "depth": "identity", "ratio": "logit"},
        lambda t, top, depth, ratio: top * np.exp(-depth * ratio**t),
        _gompertz,
    ),
    "asymptotic": _Kind(
        {"asymptote": "identity", "start": "identity", "rate": "log"},
        lambda t, end, start, rate: end + (start - end) * np.exp(-rate * t),
        _falling,
    ),
    "biexponential": _Kind(
        {"a1": "identity", "rate1": "log", "a2": "identity", "rate2": "log"},
        lambda t, a, fast, b, slow: a * np.exp(-fast * t) + b * np.exp(-slow * t),
        _biexponential,
    ),
    "michaelis-menten": _Kind(
        {"vmax": "identity", "km": "identity"},
        lambda t, top, half: top * t / (half + t),
        _saturating,
    ),
    "emax": _Kind(
        {"e0": "identity", "emax": "identity", "ec50": "log"},
        lambda t, base, top, half: base + top * t / (half + t),
        _emax,
    ),
}
"""Formulas by name; the time is what they are curves over: a dose or a concentration, too.

SSlogis, SSfpl, SSgompertz, SSasymp, SSbiexp and SSmicmen are what R calls the first six.
"""


class Formula(Structure):
    """A curve of `FORMULAS`, some of whose parameters may have other ``scales``."""

    def __init__(self, name: str, scales: Mapping[str, str] | None = None) -> None:
        kind = FORMULAS[check_choice("formula", name, FORMULAS)]
        for parameter, scale in (scales or {}).items():
            check_choice(f"parameter of {name}", parameter, kind.parameters)
            check_choice(f"scale of {parameter}", scale, SCALES)
        chosen = {**kind.parameters, **(scales or {})}
        self.names, self.scales = tuple(chosen), tuple(chosen.values())
        self._kind = kind

    def predict(self, phi: Vector, at: Individuals) -> Vector:
        """Return what the formula says."""
        with np.errstate(all="ignore"):
            rows = np.moveaxis(self.natural(phi)[:, at.individual_of], -1, 0)
            return np.asarray(self._kind.of(at.times, *rows), dtype=np.float64)

    def begin(self, individuals: Individuals) -> Vector:
        """Return each individual's guess, by lines through transformed values."""
        found = np.full((individuals.n_individuals, len(self.names)), np.nan)
        for one in range(individuals.n_individuals):
            rows = slice(individuals.first[one], individuals.first[one + 1])
            order = np.argsort(individuals.times[rows], kind="stable")
            with np.errstate(all="ignore"):
                found[one] = self._kind.guess(
                    individuals.times[rows][order], individuals.values[rows][order]
                )
        with np.errstate(all="ignore"):
            guess = self.scaled(found)
        return np.where(np.isfinite(guess), guess, np.nan)


class LinearPredictor(Structure):
    """A sum of columns: what a link makes a probability or a rate of.

    Columns are covariates of rows, ``time``, or products of such, ``time:x``. If ``linked``, a link
    stands between the sum and the values, so that these tell nothing at first.
    """

    linear = True

    def __init__(
        self, columns: Sequence[str] = ("time",), intercept: bool = True, *, linked: bool = True
    ) -> None:
        self.linked = linked
        self._others: Callable[[Individuals], Vector] | None = None
        self._last: tuple[Individuals, Vector] | None = None
        self.columns, self.intercept = tuple(columns), intercept
        slopes = tuple("slope" if name == "time" else f"slope of {name}" for name in columns)
        self.names = (("intercept",) if intercept else ()) + slopes
        self.scales = ("identity",) * len(self.names)
        parts = [part for name in columns for part in name.split(":")]
        self.needs = tuple(name for name in parts if name != "time")

    code = -1

    def among(self, names: tuple[str, ...], design: Callable[[Individuals], Vector]) -> Self:
        """Return a sum of other columns (N, k), by names of their coefficients."""
        part = copy(self)
        part.names, part.scales, part._others = names, ("identity",) * len(names), design
        part._last = None
        return part

    def design(self, at: Individuals) -> Vector:
        """Columns of the rows, (N, m)."""
        if self._others is not None:
            if self._last is None or self._last[0] is not at:
                self._last = (at, self._others(at))
            return self._last[1]
        columns = [at.product(name) for name in self.columns]
        return np.stack(([np.ones(at.n_rows)] if self.intercept else []) + columns, axis=-1)

    def predict(self, phi: Vector, at: Individuals) -> Vector:
        """Return the sums."""
        return self.slopes(phi, at)[0]

    def slopes(self, phi: Vector, at: Individuals) -> tuple[Vector, Vector]:
        """Return the sums, and the columns."""
        design = self.design(at)
        rows = phi[:, at.individual_of]
        total = np.zeros(rows.shape[:2])
        for j in range(design.shape[1]):
            total += rows[..., j] * design[:, j]
        return total, np.broadcast_to(design, rows.shape)

    def begin(self, individuals: Individuals) -> Vector:
        """Return zeros, where any link has a value; without one each individual's least squares."""
        n = individuals.n_individuals
        if self.linked:
            return np.zeros((n, len(self.names)))
        cuts = individuals.first[1:-1]
        each = zip(
            np.split(self.design(individuals), cuts), np.split(individuals.values, cuts),
            strict=True,
        )  # fmt: skip
        found = [np.linalg.lstsq(X, y, rcond=1e-7)[0] for X, y in each]  # few rows tell few apart
        return np.array(found).reshape(n, len(self.names))
