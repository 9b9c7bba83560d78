"""What estimates say, in the manner of the field: errors, intervals, spreads, criteria.

Intervals are Wald's, of numbers above 0 on the scale of their logarithm and of correlations on
Fisher's. What is computed of several estimates has its error by the delta method, from the inverse
of the observed information.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np

from vpem.checks import Doubles
from vpem.errors import shorten
from vpem.network.partition import Workers
from vpem.network.schema import Report
from vpem.saem import special
from vpem.saem.conditional import covariance_of
from vpem.saem.models.model import POSITIVE, triangle_names
from vpem.saem.results import SaemFit, SavedSaem, Topics, rows_of

FLAT = 0.9
"""Shrinkage above which a latent hardly varies between individuals."""

FEW = 20
"""Individuals below which a report says that they are few."""

TESTED = ("slope", "beta(")
"""How names of parameters begin whose being 0 says that something has no effect."""

SCALES: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "log ": (math.exp, math.exp),
    "logit ": (
        lambda x: float(special.expit(x)),
        lambda x: float(special.expit(x) * special.expit(-x)),
    ),
}
"""By the beginning of a parameter's name: the way back from its scale, and the slope of that."""


@dataclass(frozen=True)
class Figure:
    """A number with its standard error and interval; NaN where they are not known.

    Interval and p value are by a t law of ``freedom`` degrees, with ``test_error`` as the standard
    error; of a number that has none by the normal law.
    """

    name: str
    value: float
    error: float
    lower: float
    upper: float
    freedom: float = math.inf
    test_error: float = math.nan

    @property
    def rse(self) -> float:
        """Relative standard error, in percent; NaN of a number that is 0."""
        return 100 * self.error / abs(self.value) if self.value else math.nan

    @property
    def p_value(self) -> float:
        """Of the t test, two-sided, that the number is 0."""
        error = self.test_error if math.isfinite(self.freedom) else self.error
        if not error > 0:
            return math.nan
        at = -abs(self.value / error)
        t = math.isfinite(self.freedom)
        return float(2 * (special.stdtr(self.freedom, at) if t else special.ndtr(at)))

    def as_json(self) -> Report:
        """Return it as values that JSON can hold, once NaN is None."""
        return {
            "estimate": self.value, "standard_error": self.error, "rse_percent": self.rse,
            "lower": self.lower, "upper": self.upper, "degrees_of_freedom": self.freedom,
            "test_standard_error": self.test_error,
        }  # fmt: skip


def _safe(compute: Callable[[float], float], at: float) -> float:
    try:
        return compute(at)
    except OverflowError:
        return math.inf


class Summary:
    """All that follows from the estimates of a fit.

    Of a fit whose parameters are bound to each other (weights that add up to 1), errors are those
    that it has, and there are no correlations of estimates.
    """

    parameters: tuple[Figure, ...]
    back: tuple[Figure, ...]  # parameters brought back from logarithm or logit
    spreads: dict[str, Figure]  # sd between individuals, by latent
    variation: dict[str, float]  # in percent, where the logarithm is normal
    correlations: tuple[Figure, ...]  # between latents
    tests: dict[str, float]  # P value of each effect
    together: Doubles  # (p, p) correlations of estimates
    shrinkage: dict[str, tuple[float, float]]  # of each latent's variance and sd

    def __init__(self, saved: SavedSaem) -> None:
        if saved.wide:
            none = np.empty(0)
            saved = replace(saved, parameters=(), theta=none, standard_errors=none)
        names, latents = saved.parameters, saved.latents
        covariance = saved.covariance
        if covariance is None:
            covariance = covariance_of(saved.information)
        errors = np.sqrt(np.diag(covariance))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # a file may hold any
            if not np.allclose(errors, saved.standard_errors, rtol=1e-6, equal_nan=True):
                covariance = np.full_like(covariance, np.nan)
                np.fill_diagonal(covariance, saved.standard_errors**2)
                errors = saved.standard_errors
            self.together = covariance / np.outer(errors, errors)
        self._saved, self._covariance, self.level = saved, covariance, saved.level
        self._values = dict(zip(names, saved.theta.tolist(), strict=True))
        self._place = {name: one for one, name in enumerate(names)}
        self.parameters = tuple(map(self._parameter, names))
        self.back = tuple(one for name in names if (one := self._back(name)) is not None)
        spreads = {latent: self._spread(latent) for latent in latents}
        self.spreads = {latent: one for latent, one in spreads.items() if one is not None}
        self.variation = {
            latent: 100 * math.sqrt(_safe(math.expm1, one.value**2))
            for latent, one in self.spreads.items()
            if latent.startswith("log ")
        }
        rows, columns = np.tril_indices(len(latents), -1)
        pairs = [(latents[j], latents[i]) for i, j in zip(rows, columns, strict=True)]
        self.correlations = tuple(
            self._correlation(one, two, name)
            for one, two in pairs
            if (name := triangle_names((one, two))[1]) in self._place
        )
        self.tests = {
            one.name: one.p_value for one in self.parameters if one.name.startswith(TESTED)
        }
        shares = () if saved.discrete else zip(latents, saved.shrinkage.tolist(), strict=True)
        self.shrinkage = {
            latent: (share, 1 - math.sqrt(max(0.0, 1 - share))) for latent, share in shares
        }

    def _figure(self, name: str, value: float, slopes: dict[str, float], scale: str = "") -> Figure:
        """Return a number with the error that estimates' give it, by its slopes in these."""
        rows = np.array([self._place[one] for one in slopes], dtype=np.intp)
        slope = np.array(list(slopes.values()))
        variance = float(slope @ self._covariance[np.ix_(rows, rows)] @ slope)
        error = math.sqrt(variance) if variance >= 0 else math.nan
        half = float(special.ndtri((1 + self.level) / 2)) * error
        low, high = value - half, value + half
        if scale == "positive" and value > 0:
            times = math.exp(min(half / value, 700.0))
            low, high = value / times, value * times
        elif scale == "correlation" and abs(value) < 1:
            middle, half = math.atanh(value), half / (1 - value**2)
            low, high = math.tanh(middle - half), math.tanh(middle + half)
        return Figure(name, value, error, low, high)

    def _parameter(self, name: str) -> Figure:
        at, value = self._place[name], self._values[name]
        scale = "positive" if name.startswith(POSITIVE) else ""
        figure = self._figure(name, value, {name: 1.0}, scale)
        laws, errors = self._saved.freedom, self._saved.test_errors
        if laws is None or errors is None or not math.isfinite(laws[at]):
            return figure
        freedom, error = float(laws[at]), float(errors[at])
        half = float(special.stdtrit(freedom, (1 + self.level) / 2)) * error
        return replace(
            figure, lower=value - half, upper=value + half, freedom=freedom, test_error=error
        )

    def _back(self, name: str) -> Figure | None:
        """Return a parameter brought back from the scale that its name says, or None."""
        for scale, (away, slope) in SCALES.items():
            if name.startswith(scale):
                one = self._parameter(name)
                value, low, high = (_safe(away, at) for at in (one.value, one.lower, one.upper))
                error = abs(_safe(slope, one.value)) * one.error
                return Figure(name.removeprefix(scale), value, error, low, high)
        return None

    def _spread(self, latent: str) -> Figure | None:
        name = f"var({latent})"
        if name not in self._place:
            return None
        sd = math.sqrt(max(0.0, self._values[name]))
        return self._figure(latent, sd, {name: 0.5 / sd if sd > 0 else math.nan}, "positive")

    def _correlation(self, one: str, two: str, name: str) -> Figure:
        first, second = (self._values[f"var({each})"] for each in (one, two))
        scale = math.sqrt(max(0.0, first * second))
        if not scale > 0:
            return Figure(f"cor({one}, {two})", *[math.nan] * 4)
        value = self._values[name] / scale
        slopes = {
            name: 1 / scale, f"var({one})": -value / (2 * first),
            f"var({two})": -value / (2 * second),
        }  # fmt: skip
        return self._figure(f"cor({one}, {two})", value, slopes, "correlation")

    def as_json(self) -> Report:
        """Return it as values that JSON can hold, once NaN is None."""
        return {
            "level": self.level,
            "parameters": {one.name: one.as_json() for one in self.parameters},
            "back_transformed": {one.name: one.as_json() for one in self.back},
            "standard_deviations": {name: one.as_json() for name, one in self.spreads.items()},
            "cv_percent": self.variation,
            "correlations": {one.name: one.as_json() for one in self.correlations},
            "p_values": self.tests,
            "correlation_of_estimates": self.together.tolist(),
            "shrinkage": {
                name: {"variance": variance, "sd": sd}
                for name, (variance, sd) in self.shrinkage.items()
            },
        }


def criteria_of(saved: SavedSaem, value: float, n_individuals: int, n_rows: object) -> Report:
    """Return -2 log-likelihood and what charges for parameters.

    AIC is ``-2LL + 2 p``, BIC ``-2LL + p log n``, n the individuals. BICc charges parameters of the
    individuals (means of latents that vary, their variances, effects on them) by ``log n``, and
    those of rows (residual errors, means that do not vary) by ``log N``, N the rows (Delattre,
    Lavielle and Poursat 2014); None where there are no rows, or no variances.
    """
    minus, p = -2 * value, len(saved.parameters)
    if saved.wide:  # of a bound, and parameters that a prior holds
        return {"minus_2_log_likelihood": None, "aic": None, "bic": None, "bicc": None}
    vary = [one for one in saved.latents if f"var({one})" in saved.parameters]
    prefixes = ("var(", "cov(", *(f"beta({one}, " for one in vary))
    of_rows = sum(name not in vary and not name.startswith(prefixes) for name in saved.parameters)
    charged = None
    if vary and isinstance(n_rows, int) and n_rows > 0:
        charged = minus + (p - of_rows) * math.log(n_individuals) + of_rows * math.log(n_rows)
    return {
        "minus_2_log_likelihood": minus,
        "aic": minus + 2 * p,
        "bic": minus + p * math.log(n_individuals),
        "bicc": charged,
    }


def describe_fit(fit: SaemFit, devices: Workers) -> Report:
    """Report a fit, and what it says of each individual that it has, and of its device."""
    model, likelihood, saved = fit.model, fit.log_likelihood, fit.saved
    given, odds, rates, followed = fit.given, fit.probabilities, fit.accepted, model.parameters
    columns: Report = {
        "id": fit.names,
        "device": [devices.names[device] for device in devices.worker_of],
        "log_likelihood": likelihood.each,
    }
    if fit.corpus is not None:
        topics, followed = Topics(saved), model.latents
        columns["proportions"] = given.means
        more = ("n_words", "n_topics", "device_shares", "perplexities")
        found = topics.as_json() | {name: getattr(topics, name) for name in more}
    else:
        shrinkage = dict(zip(model.latents, given.shrinkage, strict=False))
        columns["rows"] = fit.rows
        columns["acceptance"] = repeat(None) if fit.acceptance is None else fit.acceptance
        if odds is not None:
            columns |= {"component": odds.argmax(axis=1), "probabilities": odds}
        elif not model.discrete:
            columns["latents"] = fit.latents.by_name()
        found = {
            "latents": list(model.latents),
            "n_parameters": len(model.parameters),
            "estimates": fit.estimates,
            "standard_errors": fit.errors,
            "log_likelihood": likelihood.describe(fit.least_effective),
            **penalised_of(saved),
            "criteria": criteria_of(saved, likelihood.value, fit.n_individuals, fit.n_rows),
            "summary": Summary(saved).as_json(),
            "shrinkage": None if model.discrete else shrinkage,
            "acceptance": rates and dict(zip(("mean", "least", "most"), rates, strict=True)),
        }
    return {
        "algorithm": "saem",
        "n_individuals": fit.n_individuals,
        "n_samples": fit.n_rows,
        "n_devices": devices.n_workers,
        "device_names": list(devices.names),
        "device_individuals": devices.counts,
        **found,
        "converged": fit.converged if fit.settings["tol"] > 0 else None,
        "iterations": fit.n_iter,
        "change": fit.change,
        "grounds": fit.grounds or None,
        "individuals": rows_of(columns),
        "traces": dict(zip(followed, fit.trace.T.tolist(), strict=True)),
        "bytes_by_iteration": fit.bytes,
        "communication": fit.ledger.summary(),
        "settings": {
            "model": fit.model_name, "model_options": fit.model_options, **fit.settings,
            **fit.network, "level": given.level,
        },
    }  # fmt: skip


def penalised_of(saved: SavedSaem) -> Report:
    """Return what a report says of a penalty, of all individuals; nothing where there is none."""
    value = saved.settings.get("penalty_value")
    if not isinstance(value, int | float) or not math.isfinite(value):
        return {}
    total = value * saved.n_individuals
    return {"penalty": total, "penalised_log_likelihood": saved.log_likelihood.value - total}


def lacking_errors(names: Sequence[str], errors: Doubles, drawn: bool = True) -> str:
    """Say in a sentence's words which parameters have no standard error; nothing if all do.

    Of latents that were not drawn formulas say all but that of variances at a bound; where these
    alone lack them of others too, coefficients have theirs given the variances.
    """
    lacking = [name for name, error in zip(names, errors.tolist(), strict=True)
               if not math.isfinite(error)]  # fmt: skip
    if not lacking:
        return ""
    if len(lacking) == len(errors):
        return (
            "there are no standard errors, for the observed information is not positive definite "
            "at the estimates"
        )
    if not drawn:
        return (
            f"there are no standard errors of {shorten(lacking)}: variances are at their bound, "
            "zero or a singular covariance, and are held there; those of the others are given these"
        )
    if all(name.startswith(("var(", "cov(")) for name in lacking):
        return (
            f"there are no standard errors of {shorten(lacking)}, which draws cannot tell from "
            "zero, their bound; they are held, and those of the others are given these"
        )
    return (
        f"there are no standard errors of {shorten(lacking)}, of which draws tell too little; "
        "those of the others take them as known, and may be too small"
    )


def doubts(saved: SavedSaem) -> list[str]:
    """Say in sentences' words what makes the estimates of a fit uncertain, and what to try."""
    if saved.corpus is not None:  # of topics there are no errors at all
        return []
    said, n = [], saved.n_individuals
    if lacking := lacking_errors(saved.parameters, saved.standard_errors, saved.n_draws > 0):
        advice, shrunk = (
            "take more iterations or draws, or a simpler model",
            saved.shrinkage.tolist(),
        )
        pairs = [] if saved.discrete else list(zip(saved.latents, shrunk, strict=True))
        if flat := [name for name, share in pairs if share > FLAT]:
            if saved.model == "one-compartment":
                vary = [name.removeprefix("log ") for name, share in pairs if not share > FLAT]
                advice = f"try --random {','.join(vary) or 'none'}"
            verb = "varies" if len(flat) == 1 else "vary"
            advice = f"{' and '.join(flat)} hardly {verb} between individuals: {advice}"
        said.append(f"{lacking}; {advice}")
    if saved.freedom is not None and n < FEW and np.isfinite(saved.freedom).any():
        said.append(
            f"there are {n} individuals only: p values and intervals of coefficients are by t "
            "laws, which are approximate for so few, and variances between individuals are hardly "
            "known"
        )
    return said
