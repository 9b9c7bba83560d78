"""One oral dose, absorbed and eliminated at rates of first order; log-normal parameters."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from vpem._core.latents import Curves
from vpem._core.reference_compartments import BY_CL_AND_KE, ORAL
from vpem.checks import check_number
from vpem.errors import InputError, check_choice, shorten
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import Counts, SaemModel, Vector
from vpem.saem.models.normal import (
    LEAST,
    LOG_2_PI,
    floored,
    gradient_normal,
    is_floored,
    known_scale,
    log_normal,
    log_normal_total,
    moments,
    scatter_of,
    triangle_names,
)
from vpem.saem.structures.one_dose import concentration
from vpem.terms.matrices import lower_half, symmetric

__all__ = ["ERRORS", "OneCompartmentModel"]

ERRORS = ("constant", "proportional")
"""Residual errors: of one sd, or of an sd that is a part of the prediction."""

LATENTS = ("log ka", "log cl", "log ke")


class OneCompartmentModel(SaemModel):
    """``y = f(t; ka, cl, ke) + e``, the logarithms of an individual's ka, cl and ke normal.

    Parameters are the means of the logarithms, the (co)variances of those that vary, and the
    residual sd (of a proportional error: as a part of the prediction). Statistics are ``z``, the
    lower triangle of ``z z^T``, both about a shift that does not change, and the (relative)
    residual sum of squares.

    Parameters
    ----------
    individuals : Individuals
        With the covariate ``dose``, which is not negative; times from the dose on, increasing.
    error : {"constant", "proportional"}
        Law of the residuals.
    random : sequence of str
        Which of ``ka``, ``cl`` and ``ke`` vary between individuals.
    covariance : {"diagonal", "full"}
        Of those that vary.
    spread : float
        Sd of the logarithm of those that do not: SAEM's statistics need some variance of each, a
        small one that is kept (Kuhn and Lavielle 2005). The smaller, the slower.
    first : sequence of float, optional
        Log ka, log cl and log ke to begin with; by default from each individual's curve.
    shift : ndarray of shape (3,), optional
        By default the middle of where individuals begin.

    Raises
    ------
    InputError
        If the data do not fit the model.
    """

    latents = LATENTS
    normal_rows = True

    def __init__(
        self,
        individuals: Individuals,
        error: str = "constant",
        random: Sequence[str] = ("ka", "cl", "ke"),
        covariance: str = "diagonal",
        spread: float = 0.05,
        first: Sequence[float] | Vector | None = None,
        shift: Vector | None = None,
    ) -> None:
        self.error = check_choice("error", error, ERRORS)
        self.covariance = check_choice("covariance", covariance, ("diagonal", "full"))
        self.random = tuple(check_choice("random parameter", one, ("ka", "cl", "ke"))
                            for one in random)  # fmt: skip
        self.spread = check_number("spread", spread, least=1e-6)
        self.first = None if first is None else np.array(first, dtype=np.float64)
        if self.first is not None and self.first.shape != (3,):
            raise InputError(f"first must be log ka, log cl and log ke, got {first!r}")
        self.individuals = individuals
        if shift is None:
            individuals.need_rows(2)
        individuals.need_rising_times()
        self._dose = individuals.constant("dose")[individuals.individual_of]
        self._check(individuals, self._dose)
        self._check_errors(individuals)
        kept = [name.removeprefix("log ") in self.random for name in LATENTS]
        self._free = np.outer(kept, kept)
        if covariance == "diagonal":
            self._free &= np.eye(3, dtype=bool)
        self._in_triangle = lower_half(self._free)
        varying = [name for name, free in zip(triangle_names(LATENTS), self._in_triangle,
                                              strict=True) if free]  # fmt: skip
        self.parameters = (*LATENTS, *varying, "residual sd")
        self.pieces = (slice(0, 3), slice(3, 9), slice(9, 10))
        self._size = float(individuals.mean_of_rows(individuals.values**2))
        self._floor = LEAST * (self._size if error == "constant" else 1.0)
        self.shift: Vector = individuals.median(self._begin()) if shift is None else shift

    @staticmethod
    def _check(individuals: Individuals, dose: Vector) -> None:
        """Refuse doses and rows that have no meaning."""
        for what, wrong in (
            ("a dose that is negative", dose < 0),
            ("a time before the dose", individuals.times < 0),
        ):
            if wrong.any():
                who = individuals.individual_of[int(wrong.argmax())]
                value = (dose if "neg" in what else individuals.times)[int(wrong.argmax())]
                raise InputError(
                    f"{individuals.source}: individual {individuals.names[who]!r} has {what}, "
                    f"{value:g}; times count from the dose, and doses are not negative"
                )

    def _check_errors(self, individuals: Individuals) -> None:
        """Refuse rows that a proportional error would make certain."""
        nothing = (individuals.times == 0) | (self._dose == 0)
        if self.error == "proportional" and nothing.any():
            who = sorted({individuals.names[i] for i in individuals.individual_of[nothing]})
            raise InputError(
                f"{individuals.source}: {shorten([repr(one) for one in who])} have rows at time 0 "
                "or of no dose, where the prediction is 0 and a proportional error none; leave "
                "out such rows, or take a constant error"
            )

    def take(self, which: NDArray[np.intp]) -> OneCompartmentModel:
        """Return the same model of some of the individuals."""
        part = copy(self)
        part.individuals = self.individuals.take(which)
        part._dose = part.individuals.constant("dose")[part.individuals.individual_of]
        return part

    def start(self) -> tuple[Vector, Vector]:
        """Rates and clearance read from each curve; variances are large at first."""
        known_scale(self.individuals.values, self._size, self.individuals.source)
        z = np.clip(self._begin(), self.shift - 1.0, self.shift + 1.0)
        theta = self.maximize(self.individuals.total(self.statistics(z[None])), self.counts)
        variances = lower_half(np.eye(3))[self._in_triangle] * 0.25
        theta[3:-1] = np.maximum(theta[3:-1] * (variances > 0), variances)
        return theta, z

    def _begin(self) -> Vector:
        """Latents to begin with, (n, 3)."""
        if self.first is not None:
            return np.tile(self.first, (self.n, 1))
        found = np.array([self._read(one) for one in range(self.n)]).reshape(self.n, 3)
        unknown = np.isnan(found)
        if not self.individuals.total(~unknown).all():
            raise InputError(
                f"{self.individuals.source}: no individual has a dose and a value above 0, from "
                "which a curve could be read; give them, or the model's option first"
            )
        return np.where(unknown, self.individuals.median(found), found)

    def _read(self, one: int) -> Vector:
        """Logarithms of ka, cl and ke from the area, the peak and the tail of a curve."""
        data = self.individuals
        rows = slice(data.first[one], data.first[one + 1])
        t, y = data.times[rows], np.maximum(data.values[rows], 0.0)
        top = int(y.argmax())
        low = max(1e-3 * y[top], 1e-300)
        tail = slice(max(top, len(t) - 4), len(t))
        ke = 0.0
        if tail.stop - tail.start >= 2:
            ke = -float(np.polyfit(t[tail], np.log(np.maximum(y[tail], low)), 1)[0])
        span = max(float(t[-1]), 1e-12)
        ke = min(max(ke, 0.2 / span), 50.0 / span)
        area = float(np.sum((y[1:] + y[:-1]) * np.diff(t)) / 2) + y[-1] / ke
        peak = max(float(t[top]), 0.02 / ke)
        ka = max(2.0 / peak, 1.5 * ke)
        dose = float(self._dose[rows][0])
        if not dose > 0 or not area > 0:  # as others' then
            return np.log([ka, np.nan, ke])
        return np.log([ka, dose / area, ke])

    # ---- the density ----------------------------------------------------------------------------

    def unpack(self, theta: Vector) -> tuple[Vector, Vector, float]:
        """Return means (3,), covariance (3, 3) and residual sd."""
        lower = np.zeros(6)
        lower[self._in_triangle] = theta[3:-1]
        omega = symmetric(lower, 3)
        held = ~np.diag(self._free)
        omega[held, held] = self.spread**2
        return theta[:3], omega, float(theta[-1])

    def predict(self, z: Vector) -> tuple[Vector, Vector]:
        """Concentrations (chains, N) at the rows, and their derivatives (chains, N, 3)."""
        of_rows = z[..., self.individuals.individual_of, :]
        return concentration(self.individuals.times, self._dose, of_rows)

    def population(self, theta: Vector) -> tuple[Vector, Vector]:
        """Mean and covariance of the logarithms."""
        return self.unpack(theta)[:2]

    def curve(self, z: Vector, at: Individuals) -> Vector:
        """Concentrations (chains, N)."""
        dose = at.constant("dose")[at.individual_of]
        self._check(at, dose)
        return concentration(at.times, dose, z[..., at.individual_of, :])[0]

    def row_sds(self, z: Vector, theta: Vector, at: Individuals) -> Vector:
        """The residual sd, of a proportional error that part of the concentration."""
        if self.error == "proportional":
            return float(theta[-1]) * self.curve(z, at)
        return np.full((len(z), at.n_rows), theta[-1])

    def _residuals(self, z: Vector) -> tuple[Vector, Vector, Vector]:
        """Residuals in units of the sd, their derivatives, and predictions."""
        f, slopes = self.predict(z)
        rest = self.individuals.values - f
        if self.error == "constant":
            return rest, -slopes, f
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            share = slopes / f[..., None]
            return rest / f, -(self.individuals.values / f)[..., None] * share, f

    def log_complete(self, z: Vector, theta: Vector) -> Vector:
        """Logarithm of the complete density of each individual, (chains, n); -inf: none."""
        means, omega, sd = self.unpack(theta)
        rest, _, f = self._residuals(z)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            each = -0.5 * (rest / sd) ** 2 - np.log(sd) - 0.5 * LOG_2_PI
            if self.error == "proportional":
                each = each - np.log(f)
            found = self.individuals.sums(each) + log_normal(z, means, omega)
        return np.where(np.isfinite(found), found, -np.inf)

    def gradient(self, z: Vector, theta: Vector) -> Vector:
        """Gradient of `log_complete` in the latents, (chains, n, 3)."""
        means, omega, sd = self.unpack(theta)
        rest, bends, f = self._residuals(z)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            each = -(rest / sd**2)[..., None] * bends
            if self.error == "proportional":
                each = each - self.predict(z)[1] / f[..., None]
        parts = [self.individuals.sums(np.ascontiguousarray(each[..., j])) for j in range(3)]
        return np.stack(parts, axis=-1) + gradient_normal(z, means, omega)

    def kernels(self, theta: Vector) -> Curves:
        """Law of the logarithms."""
        means, omega, sd = self.unpack(theta)
        data, n = self.individuals, self.n
        error = [[sd, 0.0] if self.error == "constant" else [0.0, sd]]
        each = np.zeros(n)
        return Curves(
            np.tile(means, (n, 1)), np.linalg.inv(omega), ORAL | BY_CL_AND_KE, np.zeros((n, 3)),
            np.arange(3), data.first, data.times, np.zeros((0, 3)), data.values,
            np.zeros(data.n_rows, np.uint8), np.zeros(data.n_rows, np.int8),
            np.zeros(1, np.int32), np.array(error), np.arange(n + 1), each,
            self._dose[data.first[:-1]], each,
        )  # fmt: skip

    def statistics(self, z: Vector) -> Vector:
        """Statistic of each individual, the mean over chains, (n, 10)."""
        squares = self.individuals.sums(self._residuals(z)[0] ** 2).mean(axis=0)
        return np.concatenate([moments(z - self.shift), squares[:, None]], axis=1)

    def _omega(self, total: Vector, counts: Counts) -> Vector:
        """Covariance that a total has, those that do not vary as they are kept."""
        _, scatter = scatter_of(total[:-1], counts.individuals, 3)
        return np.where(self._free, scatter, np.diag(np.full(3, self.spread**2)))

    def holds(self, total: Vector, counts: Counts) -> bool:
        """Whether latents and residuals have such moments."""
        left = float(total[9]) / counts.rows
        return left >= self._floor and not is_floored(self._omega(total, counts))

    def maximize(self, total: Vector, counts: Counts) -> Vector:
        """Moments of the logarithms, and the root of the mean residual square."""
        apart = total[:3] / counts.individuals
        omega = floored(self._omega(total, counts))
        sd = np.sqrt(max(total[9] / counts.rows, self._floor))
        return np.concatenate([self.shift + apart, lower_half(omega)[self._in_triangle], [sd]])

    def log_density(self, total: Vector, counts: Counts, theta: Vector) -> float:
        """Complete log-likelihood of a total of statistics, up to what theta is not in."""
        means, omega, sd = self.unpack(theta)
        latent = log_normal_total(total[:-1], counts.individuals, means - self.shift, omega)
        rows = counts.rows * (LOG_2_PI + 2 * np.log(sd)) + total[9] / sd**2
        return float(latent - 0.5 * rows)
