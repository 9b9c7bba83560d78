"""The bootstrap: standard errors and intervals of a mixture, and tests of its components.

Rows are weighed at random, or drawn from the fitted model: component labels from a seed that all
know, then the features of each hub from a stream of its own, so that nobody sees more than in a
fit. Every refit begins at the fit, and its components are matched with the fit's.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vpem.checks import Doubles, Floats, check_int, check_number
from vpem.errors import InputError, NumericalError, Setting, VpemWarning, check_choice
from vpem.files.matrix import FileMatrix
from vpem.fits.results import Fit
from vpem.fits.selection.search import run_trials
from vpem.fits.selection.trials import Outcome
from vpem.network.schema import Report
from vpem.settings import BOOTSTRAPS
from vpem.terms.mixture import Mixture

BOOTSTRAP = 3
"""Sets the streams of the bootstrap apart from those of starts, batches and folds."""

ENOUGH = 20
"""Statistics at least as large as the observed one after which no more are drawn."""

Refit = Callable[..., Fit]
"""Fits rows X, with weights or None, and so many components; more are settings that differ."""


def parameters_of(mixture: Mixture) -> dict[str, Doubles]:
    """Return mixing weights, means and covariances, in the user's order and units."""
    return {
        "weights": mixture.assembled_weights,
        "means": mixture.assembled_means,
        "covariances": mixture.assembled_covariances,
    }


def matching(fitted: Mixture, refitted: Mixture, X: Any, missing: str) -> Any:
    """Return which component of a refit is each of the fit's: those that share most of the rows."""
    from scipy.optimize import linear_sum_assignment

    k = fitted.n_components  # what is beside components stays
    one, other = (mixture.predict_proba(X, missing=missing) for mixture in (fitted, refitted))
    shared = one[:, :k].T @ other[:, :k]
    return linear_sum_assignment(shared, maximize=True)[1]


@dataclass
class Resampling:
    """Data that are drawn again, and what is found by fits to them.

    With an ``alternative``, a fit of one component more, that is the likelihood ratio of both.
    """

    refit: Refit
    X: Any  # (M, d)
    sample_weight: Floats | None
    fitted: Mixture
    kind: str  # of `vpem.settings.BOOTSTRAPS`
    seed: int
    alternative: Mixture | None = None

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, BOOTSTRAPS)
        if isinstance(self.X, FileMatrix):
            raise InputError(
                "the bootstrap draws data again in memory, but these are read from disk; raise ",
                Setting("memory_limit"),
            )  # fmt: skip
        if self.fitted.kinds is not None or self.fitted.n_factors:
            raise InputError(
                "the bootstrap takes Gaussian features without factors: levels that are not drawn "
                "again, and factors that are turned, have no standard errors; leave them out"
            )
        if self.kind == "parametric":
            self.fitted.refuse_outliers("rows are drawn from components")
        if self.sample_weight is not None and self.kind == "parametric":
            raise InputError(
                "rows that are drawn from a model have no weights: a row of weight 2 stands for "
                "two that differ; repeat rows, leave out weights, or take ",
                Setting("kind", "weighted"),
            )  # fmt: skip
        self._missing = "marginalize" if np.isnan(self.X).any() else "refuse"

    def draw(self, number: int) -> tuple[Any, Doubles | None]:
        """Return the rows of a replicate, and what they weigh."""
        widths = self.fitted.blocks.widths
        streams = np.random.default_rng([self.seed, BOOTSTRAP, number]).spawn(1 + len(widths))
        if self.kind == "weighted":
            weights = np.ones(len(self.X))
            if self.sample_weight is not None:
                weights = np.asarray(self.sample_weight, dtype=np.float64)
            drawn = weights * streams[0].exponential(size=len(weights))
            return self.X, drawn * (weights.sum() / drawn.sum())
        k, n, shares = self.fitted.n_components, len(self.X), self.fitted.assembled_weights
        labels = streams[0].choice(k, size=n, p=shares)
        of_hubs = zip(streams[1:], widths, strict=True)
        noise = np.hstack([own.standard_normal((n, width)) for own, width in of_hubs])
        values = self.fitted.spread(labels, noise)
        return np.where(np.isnan(self.X), np.nan, values).astype(self.X.dtype), None

    def run(self, number: int) -> Outcome:
        """Do a replicate; where it fails or is degenerate, ``status`` says so."""
        X, weights = self.draw(number)
        k, at_fit = self.fitted.n_components, {"init": self.fitted, "n_init": 1}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", VpemWarning)
                fit = self.refit(X, weights, k, **at_fit)
                fits = [fit]
                if self.alternative is not None:
                    begun = {"init": self.alternative, "n_init": 1}
                    tried = [self.refit(X, None, k + 1, **more) for more in ({}, begun)]
                    sound = [one for one in tried if not one.degenerate] or tried
                    fits.append(max(sound, key=total_of))
        except (InputError, NumericalError) as error:
            return {"status": "failed", "reason": str(error)}
        if any(one.degenerate for one in fits):
            return {"status": "degenerate"}
        if self.alternative is not None:
            return {"status": "done", "statistic": 2 * (total_of(fits[1]) - total_of(fit))}
        order = matching(self.fitted, fit.mixture, self.X, self._missing)
        moved = not np.array_equal(order, np.arange(k))
        return {"status": "done", "moved": moved} | parameters_of(fit.mixture.permuted(order))

    def replicates(
        self, n: int, n_jobs: int, tell: Callable[[int], None] | None
    ) -> Iterator[Outcome]:
        """Yield the results of replicates 0, 1, ... in this order, whatever ends first."""
        waiting: dict[int, Outcome] = {}
        following = 0
        runner: Any = self
        numbers: Any = range(n)
        for number, outcome in run_trials(runner, numbers, n_jobs):
            waiting[int(number)] = outcome  # type: ignore[call-overload]
            if tell is not None:
                tell(n)
            while following in waiting:
                yield waiting.pop(following)
                following += 1


def total_of(fit: Fit) -> float:
    """Log-likelihood of all rows."""
    return float(fit.log_likelihood * fit.total_weight)


@dataclass(frozen=True)
class Errors:
    """Standard errors of a mixture's parameters, by the bootstrap.

    Attributes
    ----------
    estimates, standard_errors, lower, upper : dict of str to ndarray
        Of ``weights`` (K,), ``means`` (K, d) and ``covariances`` (shaped as
        `vpem.Mixture.assembled_covariances`), in the user's units: the fit's; standard deviations
        over replicates (divisor n - 1); and the ends of percentile intervals.
    level : float
        Of the intervals.
    kind : str
        "weighted" or "parametric".
    n_replicates, n_left_out, n_relabelled : int
        Replicates that were used; that failed or were degenerate; and those of which components
        were not in the fit's order before they were matched.
    """

    estimates: dict[str, Doubles]
    standard_errors: dict[str, Doubles]
    lower: dict[str, Doubles]
    upper: dict[str, Doubles]
    level: float
    kind: str
    n_replicates: int
    n_left_out: int
    n_relabelled: int


def bootstrap_errors(
    resampling: Resampling,
    n_replicates: int = 999,
    level: float = 0.95,
    n_jobs: int = 1,
    tell: Callable[[int], None] | None = None,
) -> Errors:
    """Find standard errors and percentile intervals by refits that begin at the fit.

    "weighted": rows weigh as independent exponentials, divided by their mean (Newton and Raftery
    1994). "parametric": rows are drawn from the model (McLachlan and Peel 2000, section 2.16).
    """
    n_replicates = check_int("n_replicates", n_replicates, least=2)
    n_jobs = check_int("n_jobs", n_jobs, least=1)
    level = check_number("level", level, least=0.0, most=1.0, above=True)
    outcomes = list(resampling.replicates(n_replicates, n_jobs, tell))
    done = [one for one in outcomes if one["status"] == "done"]
    if len(done) < 2:
        raise InputError(
            f"{len(outcomes) - len(done)} of {len(outcomes)} replicates failed or were degenerate; "
            "take fewer components, or a covariance of fewer parameters"
        )
    estimates = parameters_of(resampling.fitted)
    values = {name: np.array([one[name] for one in done]) for name in estimates}
    ends = (1 - level) / 2, (1 + level) / 2
    intervals = {name: np.quantile(drawn, ends, axis=0) for name, drawn in values.items()}
    return Errors(
        estimates,
        {name: drawn.std(axis=0, ddof=1) for name, drawn in values.items()},
        {name: pair[0] for name, pair in intervals.items()},
        {name: pair[1] for name, pair in intervals.items()},
        level, resampling.kind, len(done), len(outcomes) - len(done),
        sum(one["moved"] for one in done),
    )  # fmt: skip


def check_components(
    refit: Refit,
    X: Any,
    n_components: Sequence[int],
    *,
    seed: int = 0,
    n_replicates: int = 999,
    significance: float = 0.05,
    n_jobs: int = 1,
    tell: Callable[[int], None] | None = None,
) -> list[Report]:
    """Test each number of components against one more, until one is not rejected.

    The likelihood ratio statistic, twice the difference of the log-likelihoods, is compared with
    those of rows drawn from the smaller model (McLachlan 1987). Drawing stops once `ENOUGH` were as
    large, and p is their share (Besag and Clifford 1991); else it is (1 + larger) / (1 + n).

    Returns
    -------
    list of dict
        Of each test ``n_components``, ``statistic``, ``p_value``, ``n_replicates`` that were used,
        ``n_larger``, ``n_left_out`` and ``stopped_early``.
    """
    n_replicates = check_int("n_replicates", n_replicates, least=2)
    n_jobs = check_int("n_jobs", n_jobs, least=1)
    check_number("significance", significance, least=0.0, most=1.0, above=True)
    tests: list[Report] = []
    fits: dict[int, Fit] = {}
    for k in n_components:
        for count in (k, k + 1):
            if count not in fits:
                fits[count] = refit(X, None, count)
            if fits[count].degenerate:
                raise InputError(
                    f"the fit of {count} components has degenerate ones, whose likelihood says "
                    "nothing; test fewer, or take more starts, ", Setting("n_init"),
                )  # fmt: skip
        statistic = 2 * (total_of(fits[k + 1]) - total_of(fits[k]))
        seeds = int(np.random.default_rng([seed, BOOTSTRAP, k]).integers(1 << 31))
        resampling = Resampling(
            refit, X, None, fits[k].mixture, "parametric", seeds, fits[k + 1].mixture
        )
        used = larger = left_out = 0
        drawing = resampling.replicates(n_replicates, n_jobs, tell)
        for one in drawing:
            if one["status"] != "done":
                left_out += 1
                continue
            used, larger = used + 1, larger + (one["statistic"] >= statistic)
            if larger == ENOUGH:
                break
        drawing.close()  # type: ignore[attr-defined]
        early = larger == ENOUGH
        p_value = larger / used if early else (1 + larger) / (1 + used)
        tests.append({
            "n_components": k, "statistic": statistic, "p_value": p_value if used else math.nan,
            "n_replicates": used, "n_larger": larger, "n_left_out": left_out,
            "stopped_early": early and used + left_out < n_replicates,
        })  # fmt: skip
        if not tests[-1]["p_value"] <= significance:
            break
    return tests
