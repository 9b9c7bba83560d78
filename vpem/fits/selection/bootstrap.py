"""The bootstrap: standard errors and intervals of a mixture, and tests of its components.

Rows are weighed at random, or drawn from the fitted model: component labels from a seed that all
know, then the features of each hub, or the rows of each worker, from a stream of its own, so that
nobody sees more than in a fit. Refits for standard errors begin at the fit, and their components
are matched with the fit's. Of agents in several processes each keeps what it has of a replicate:
weighted means by known weights, of as many replicates as there are rows, would show these.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vpem.checks import Doubles, check_int, check_number
from vpem.engines.engine import set_topic
from vpem.errors import InputError, NumericalError, Setting, VpemWarning, check_choice
from vpem.files.matrix import FileMatrix
from vpem.fits.parts import own_columns_of_hubs
from vpem.fits.results import Fit
from vpem.fits.selection.search import Record, run_trials, waiting
from vpem.fits.selection.trials import Cell, Outcome, Problem
from vpem.network.schema import COUNT, FLAG, NUMBER, TEXT, Array, Choice, Report, Schema
from vpem.settings import BOOTSTRAPS
from vpem.terms.mixture import Mixture, variances_of

BOOTSTRAP = 3
"""Sets the streams of the bootstrap apart from those of starts, batches and folds."""

ENOUGH = 20
"""Statistics at least as large as the observed one after which no more are drawn."""

NEAR = 1e-3
"""Part by which a log-likelihood may differ from that of the fit: sums are not always exact."""

SENT = ("messages", "bytes")


def parameters_of(mixture: Mixture) -> dict[str, Doubles]:
    """Return mixing weights, means and covariances, in the user's order and units.

    Of spheres these are variances of each feature.
    """
    covariances = mixture.assembled_covariances
    if mixture.covariance_type.endswith("spherical"):
        variances = variances_of(mixture) * mixture.scaling.scale**2
        covariances = variances[0] if mixture.is_tied else variances
    return {
        "weights": mixture.assembled_weights,
        "means": mixture.assembled_means,
        "covariances": covariances,
    }


def check_resampling(problem: Problem, kind: str) -> None:
    """Raise InputError where rows cannot be drawn again."""
    check_choice("kind", kind, BOOTSTRAPS)
    if isinstance(problem.X, FileMatrix):
        raise InputError(
            "the bootstrap draws data again in memory, but these are read from disk; raise ",
            Setting("memory_limit"),
        )  # fmt: skip
    if problem.options.get("max_iter") == 0:
        raise InputError(
            Setting("max_iter", 0), " leaves refits where they start, so that they say nothing; "
            "leave it out",
        )  # fmt: skip
    if problem.options.get("n_factors") or problem.options.get("kinds") is not None:
        raise InputError(
            "the bootstrap takes Gaussian features without factors: levels that are not drawn "
            "again, and factors that are turned, have no standard errors; leave them out"
        )
    if problem.sample_weight is not None and kind == "parametric":
        raise InputError(
            "rows that are drawn from a model have no weights: a row of weight 2 stands for "
            "two that differ; repeat rows, leave out weights, or take ",
            Setting("kind", "weighted"),
        )  # fmt: skip
    outliers = [one for one in ("noise", "trim") if problem.options.get(one)]
    if outliers and kind == "parametric":
        raise InputError(
            "rows are drawn from components, but some belong to none with ", Setting(outliers[0]),
            "; leave it out, or take ", Setting("kind", "weighted"),
        )  # fmt: skip
    hidden = problem.masked or not problem.engine.open
    if kind == "weighted" and problem.workers is not None and hidden:
        raise InputError(
            "weights of rows come from a seed that all know, and from as many sums by known "
            "weights as there are rows all learn the rows; take ", Setting("kind", "parametric"),
        )  # fmt: skip


def check_rows(what: str, then: Any, weighed: Any, log_likelihood: float, weight: float) -> None:
    """Raise InputError where rows are not those of the fit ``what``, by figures of both."""
    if not (isinstance(then, float) and isinstance(weighed, int | float)):
        return
    near = math.isclose(weight, weighed, rel_tol=NEAR)
    if not near or abs(log_likelihood - then) > NEAR * max(1.0, abs(then)):
        raise InputError(
            f"{what} was fitted to other rows or weights, or by other agents: {weighed:g} rows had "
            f"a log-likelihood of {then:.6f} each, {weight:g} here have {log_likelihood:.6f}; "
            "give those of its fit"
        )


class Resampling:
    """Data that are drawn again, and what fits of a cell to them find.

    That are the parameters of fits that begin at ``fit``, or the likelihood ratio of fits of as
    many components and of one more, with ``n_init`` starts each as the fits to the rows had.
    """

    def __init__(
        self, problem: Problem, cell: Cell, fit: Fit, kind: str, seed: int,
        n_init: int | None = None,
    ) -> None:  # fmt: skip
        check_resampling(problem, kind)
        self.problem, self.cell, self.kind, self.seed, self.n_init = (
            problem, cell, kind, seed, n_init
        )  # fmt: skip
        self.held = held = problem.held(cell.hops)
        held.count()
        self.mixture = held.known(fit)
        self._missing = np.isnan(held.X)
        k = cell.n_components
        self._shares = None if n_init else held.responsibilities(self.mixture)[:, :k]

    def mapped(self) -> Resampling:
        """Return the same as processes that this one starts should have it."""
        other = copy(self)
        other.problem = self.problem.mapped()
        other.held = other.problem.held(self.cell.hops)
        return other

    def draw(self, number: int) -> tuple[Any, Doubles | None]:
        """Return the rows of a replicate that are here, and what they weigh."""
        held, seeds = self.held, [self.seed, BOOTSTRAP, number]
        if self.kind == "parametric":
            values = held.drawn(self.mixture, seeds)
            return np.where(self._missing, np.nan, values).astype(held.X.dtype), None
        weights = np.ones(len(held.X))
        if held.weights is not None:
            weights = np.asarray(held.weights, dtype=np.float64)
        drawn = held.weighed_at_random(weights, seeds)
        sums = held.total(lambda rows: np.array([weights[rows].sum(), drawn[rows].sum()]), 2)
        return held.X, drawn * (sums[0] / sums[1])

    def matching(self, refitted: Mixture) -> Any:
        """Return which component of a refit is each of the fit's: that with most rows in common."""
        from scipy.optimize import linear_sum_assignment

        k = self.cell.n_components  # what is beside components stays
        found = self.held.responsibilities(refitted)[:, :k]
        weights = self.held.weights
        ours: Any = self._shares
        if weights is not None:
            ours = np.asarray(weights)[:, None] * ours
        shared = self.held.total(lambda rows: (ours[rows].T @ found[rows]).ravel(), k * k)
        return linear_sum_assignment(shared.reshape(k, k), maximize=True)[1]

    def run(self, number: int) -> Outcome:
        """Do a replicate; where it fails or is degenerate, ``status`` says so.

        One of several processes may find that a fit fails while others work on it: it raises that.
        """
        held, engine, cell = self.held, self.problem.engine, self.cell
        held.count()
        counts, how = [cell.n_components], Report({"init": self.mixture, "n_init": 1})
        if self.n_init is not None:
            counts, how = [cell.n_components, cell.n_components + 1], {"n_init": self.n_init}
        problem = self.problem.having(cell.hops, *self.draw(number))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", VpemWarning)
                fits = [problem.fit(replace(cell, n_components=k), **how) for k in counts]
        except (InputError, NumericalError) as error:
            if engine.apart:
                raise
            return {"status": "failed", "reason": str(error)} | dict.fromkeys(SENT, 0)
        found: Report = {"status": "done"}
        if engine.bcast(any(fit.degenerate for fit in fits)):
            found = {"status": "failed", "reason": "degenerate"}
        elif self.n_init is not None:
            found["statistic"] = engine.bcast(ratio_of(*fits))
        else:
            refitted = held.known(fits[0])
            order = np.asarray(engine.bcast(self.matching(refitted)))
            found["moved"] = not np.array_equal(order, np.arange(len(order)))
            found |= parameters_of(refitted.permuted(order))
        for name in SENT:
            found[name] = sum(fit.communication[name] for fit in fits) + getattr(held.sent, name)
        return found

    @property
    def results(self) -> dict[str, dict[str, Schema]]:
        """What there is in the result of a replicate that is kept."""
        done: dict[str, Schema] = {"status": Choice(("done",)), **dict.fromkeys(SENT, COUNT)}
        if self.n_init is not None:
            done["statistic"] = NUMBER
        else:
            arrays = parameters_of(self.mixture).items()
            done |= {name: Array("f8", one.shape) for name, one in arrays} | {"moved": FLAG}
        failed: dict[str, Schema] = {"status": Choice(("failed",)), "reason": TEXT}
        return {"failed": failed | dict.fromkeys(SENT, COUNT), "restart": done}

    def replicates(
        self, n: int, n_jobs: int, tell: Callable[[int, int], None] | None,
        record: Record | None = None,
    ) -> Iterator[Outcome]:  # fmt: skip
        """Yield the results of replicates 0, 1, ... in this order, whatever ends first.

        ``record`` has what was done before, and keeps what is done; ``tell`` hears how many of all.
        """
        record = Record(None, {}) if record is None else record
        keys = [f"{self.cell.n_components}/replicate {number}" for number in range(n)]
        done = record.of(keys, self.results)
        runner: Any = self
        to_do: Any = [number for number, key in enumerate(keys) if key not in done]
        n_done, n_jobs = len(done), 1 if self.problem.engine.apart else n_jobs
        with closing(run_trials(runner, to_do, n_jobs)) as trials, record.writing():  # type: ignore[type-var]
            for key in keys:
                while key not in done:
                    number, outcome = next(trials)
                    done[keys[number]] = outcome  # type: ignore[call-overload]
                    if not outcome.get("lost"):
                        with waiting():
                            record.add(keys[number], outcome, soon=True)  # type: ignore[call-overload]
                    n_done += 1
                    if tell is not None:
                        tell(n_done, n)
                yield done.pop(key)


def ratio_of(fit: Fit, larger: Fit) -> float:
    """Twice the difference of the log-likelihoods of all rows."""
    return 2 * (total_of(larger) - total_of(fit))


def total_of(fit: Fit) -> float:
    """Log-likelihood of all rows."""
    return float(fit.log_likelihood * fit.total_weight)


@dataclass(frozen=True)
class Errors:
    """Standard errors of a mixture's parameters, by the bootstrap.

    By name, of ``weights`` (K,), ``means`` (K, d) and ``covariances`` (shaped as
    `vpem.Mixture.assembled_covariances`; of spheres as diagonals), in the user's units:
    ``estimates`` of the fit, ``standard_errors`` over replicates (divisor n - 1), and the ends
    ``lower`` and ``upper`` of percentile intervals of a ``level``. Replicates of the ``kind``
    "weighted" or "parametric" were used, or failed or were degenerate, ``n_left_out``; of those
    used the components of ``n_relabelled`` were not in the fit's order before they were matched.
    For them ``messages`` and ``bytes`` were sent. Of agents in several processes the first has all
    parameters, others those of their hubs.
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
    messages: int
    bytes: int


def bootstrap_errors(
    resampling: Resampling,
    n_replicates: int = 999,
    level: float = 0.95,
    n_jobs: int = 1,
    tell: Callable[[int, int], None] | None = None,
    record: Record | None = None,
) -> Errors:
    """Find standard errors and percentile intervals by refits that begin at the fit.

    "weighted": rows weigh as independent exponentials, divided by their mean (Newton and Raftery
    1994), of a row of weight w as the sum of w, since it stands for as many rows. "parametric":
    rows are drawn from the model (McLachlan and Peel 2000, section 2.16).
    """
    n_replicates = check_int("n_replicates", n_replicates, least=2)
    n_jobs = check_int("n_jobs", n_jobs, least=1)
    level = check_number("level", level, least=0.0, most=1.0, above=True)
    outcomes = list(resampling.replicates(n_replicates, n_jobs, tell, record))
    done = [one for one in outcomes if one["status"] == "done"]
    if len(done) < 2:
        raise InputError(
            f"{len(outcomes) - len(done)} of {len(outcomes)} replicates failed or were degenerate; "
            "take fewer components, or a covariance of fewer parameters"
        )
    estimates = parameters_of(resampling.mixture)
    values = {name: np.array([one[name] for one in done]) for name in estimates}
    ends = (1 - level) / 2, (1 + level) / 2
    intervals = {name: np.quantile(drawn, ends, axis=0) for name, drawn in values.items()}
    found = [
        estimates,
        {name: drawn.std(axis=0, ddof=1) for name, drawn in values.items()},
        {name: pair[0] for name, pair in intervals.items()},
        {name: pair[1] for name, pair in intervals.items()},
    ]
    if resampling.problem.workers is None and resampling.problem.engine.apart:
        found = _joined(found, resampling)
    estimates, errors, lower, upper = found
    messages, sizes = (sum(one[name] for one in outcomes) for name in SENT)
    return Errors(
        estimates, errors, lower, upper, level, resampling.kind, len(done),
        len(outcomes) - len(done), sum(one["moved"] for one in done), messages, sizes,
    )  # fmt: skip


def _joined(found: list[dict[str, Doubles]], resampling: Resampling) -> list[dict[str, Doubles]]:
    """Return what is found of all hubs in the first process, of those that are there in others."""
    network = resampling.problem.networks[resampling.cell.hops]
    engine, columns = resampling.problem.engine, own_columns_of_hubs(network)
    with set_topic(engine, "result"):
        parts = engine.gather([columns, *found])
    if parts is None:
        return found
    d, joined = network.whole.blocks.n_features, []
    square = not resampling.mixture.is_diagonal
    for place, one in enumerate(found, 1):
        means = np.zeros((*one["means"].shape[:-1], d))
        n_axes = 1 + square
        covariances = np.zeros((*one["covariances"].shape[:-n_axes], *(d,) * n_axes))
        for columns, *theirs in parts:
            at = (..., columns[:, None], columns) if square else (..., columns)
            means[:, columns] = theirs[place - 1]["means"]
            covariances[at] = theirs[place - 1]["covariances"]
        joined.append({"weights": one["weights"], "means": means, "covariances": covariances})
    return joined


def check_components(
    problem: Problem,
    covariance_type: str,
    n_components: Sequence[int],
    *,
    n_init: int = 1,
    n_replicates: int = 999,
    significance: float = 0.05,
    n_jobs: int = 1,
    tell: Callable[[int, int], None] | None = None,
    record: Record | None = None,
) -> list[Report]:
    """Test each number of components against one more, until one is not rejected.

    The likelihood ratio statistic, twice the difference of the log-likelihoods, is compared with
    those of rows drawn from the smaller model, to which both are fitted from the same starts as to
    the data (McLachlan 1987). Drawing stops once `ENOUGH` were as large, and p is their share
    (Besag and Clifford 1991); else it is (1 + larger) / (1 + n).
    """
    n_replicates = check_int("n_replicates", n_replicates, least=2)
    n_jobs = check_int("n_jobs", n_jobs, least=1)
    check_number("significance", significance, least=0.0, most=1.0, above=True)
    check_resampling(problem, "parametric")
    tests: list[Report] = []
    fits: dict[int, Fit] = {}
    for k in n_components:
        cell = Cell(k, min(problem.networks), covariance_type)
        for count in (k, k + 1):
            if count not in fits:
                fits[count] = problem.fit(replace(cell, n_components=count), n_init=n_init)
            if problem.engine.bcast(bool(fits[count].degenerate)):
                raise InputError(
                    f"the fit of {count} components has degenerate ones, whose likelihood says "
                    "nothing; test fewer, or take more starts, ", Setting("n_init"),
                )  # fmt: skip
        statistic = problem.engine.bcast(ratio_of(fits[k], fits[k + 1]))
        seed = int(np.random.default_rng([problem.seed, BOOTSTRAP, k]).integers(1 << 31))
        resampling = Resampling(problem, cell, fits[k], "parametric", seed, n_init)
        used = larger = left_out = 0
        sent = [sum(fits[count].communication[name] for count in (k, k + 1)) for name in SENT]
        with closing(resampling.replicates(n_replicates, n_jobs, tell, record)) as drawing:  # type: ignore[type-var]
            for one in drawing:
                sent = [before + one[name] for before, name in zip(sent, SENT, strict=True)]
                if one["status"] != "done":
                    left_out += 1
                    continue
                used, larger = used + 1, larger + (one["statistic"] >= statistic)
                if larger == ENOUGH:
                    break
        if not used:
            raise InputError(
                f"all {left_out} replicates of {k} components failed or were degenerate; test fewer"
            )
        early = larger == ENOUGH
        if not early and (least := 1 / (1 + used)) > significance:
            said = f"{used} replicates of {k} components give no p below {least:.3g}, so that none "
            said += f"is rejected at {significance:g}; draw more"
            warnings.warn(VpemWarning(said), stacklevel=2)
        p_value = larger / used if early else (1 + larger) / (1 + used)
        tests.append({
            "n_components": k, "statistic": statistic, "p_value": p_value,
            "n_replicates": used, "n_larger": larger, "n_left_out": left_out,
            "stopped_early": early and used + left_out < n_replicates,
            **dict(zip(SENT, sent, strict=True)),
        })  # fmt: skip
        if tests[-1]["p_value"] > significance:
            break
    return tests
