"""What a fit says of individuals: their latents, curves with intervals, classes, log-likelihood.

The model of a fit is made again, of whichever individuals. Parameters stay at the estimates.
Intervals are those of the curve without error, by draws of the latents: new measurements scatter
more, and the estimates are not certain either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from itertools import pairwise
from typing import ClassVar, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from vpem.checks import Doubles, Indices, as_array, check_int, check_number, read_float
from vpem.errors import InputError, Setting, brief
from vpem.network.schema import Report
from vpem.saem.conditional import (
    Conditional,
    LogLikelihood,
    importance_log_likelihood,
    sample_conditional,
)
from vpem.saem.estimates import criteria_of
from vpem.saem.individuals import Individuals, Streams
from vpem.saem.models.model import (
    MODELS,
    OWN,
    POSITIVE,
    SaemModel,
    has_curves,
    make_model,
    model_class,
)
from vpem.saem.results import Latents, SaemFit, SavedSaem, heard_in, perplexity_of, rows_of
from vpem.saem.samplers import Gibbs, Metropolis
from vpem.saem.structures.formulas import is_own

MOST_TIMES = 100_000

LARGEST = 1 << 22
"""Numbers of draws at once."""

BURN_IN, GIBBS_BURN_IN = 150, 50
CHAINS = 10

P = ParamSpec("P")
R = TypeVar("R")

Maker = Callable[[Individuals], SaemModel]


def finite(compute: Callable[P, R]) -> Callable[P, R]:
    """Refuse numbers that are not finite: a file may hold estimates that nothing follows from."""

    @wraps(compute)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        nothing = "nothing finite follows from the fit's estimates and these individuals"
        try:
            with np.errstate(all="ignore"):
                result = compute(*arguments, **options)
        except (np.linalg.LinAlgError, ArithmeticError) as error:
            raise InputError(f"{nothing} ({error})") from error
        parts: tuple[object, ...] = (
            result if isinstance(result, tuple) else (getattr(result, "each", result),)
        )
        if not all(np.isfinite(np.asarray(part)).all() for part in parts):
            raise InputError(f"{nothing}; give data like those of the fit")
        return result

    return checked


@dataclass(frozen=True)
class FittedCurves:
    """Curves of individuals, without error, at their conditional mean latents."""

    kind: ClassVar = "vpem-saem-curves"

    at: Individuals  # whose, when; values where there were rows, else NaN
    fitted: Doubles  # (N,)
    lower: Doubles  # (N,) end of the interval of the curve
    upper: Doubles  # (N,)
    level: float  # probability of an interval

    def columns(self) -> Report:
        """A row for each time of each individual; values where any was measured."""
        at = self.at
        measured = {"value": at.values} if np.isfinite(at.values).any() else {}
        ends = {name: getattr(self, name) for name in ("fitted", "lower", "upper")}
        return {"id": at.ids[at.individual_of], "time": at.times, **measured, **ends}

    def describe(self) -> Report:
        columns = self.columns()
        curves = [
            {"id": name} | {key: columns[key][first:last] for key in columns if key != "id"}
            for name, (first, last) in zip(self.at.names, pairwise(self.at.first), strict=True)
        ]
        return {"level": self.level, "interval_of": "curve", "curves": curves}


def check_law(model: SaemModel, theta: Doubles) -> None:
    """Refuse parameters from a file that are no law."""
    if model.wide:
        if not (theta > 0).all():
            raise InputError(
                "the fit's estimates define no law: they must be positive probabilities"
            )
        return
    for name, value in zip(model.parameters, theta.tolist(), strict=True):
        if name.startswith(POSITIVE) and not value > 0:
            raise InputError(f"the fit's estimate of {name!r} must be positive, got {value:g}")
    covariances = model.covariances(theta)
    try:
        least = float(np.linalg.eigvalsh(covariances).min())
    except np.linalg.LinAlgError:
        least = 0.0
    if not least > 0:
        raise InputError("the fit's estimates define no law: a covariance is not positive definite")


def in_batches(at: Individuals, width: int, n_draws: int) -> Iterator[Individuals]:
    """Yield individuals in parts whose draws, of latents (width) or of rows, take little memory."""
    sizes = np.cumsum(np.maximum(at.counts, width)) * n_draws // LARGEST
    for part in np.unique(sizes):
        yield at.take(np.flatnonzero(sizes == part))


def parse_times(text: str) -> list[float]:
    """Read times, typed with commas between or as from:to:step, such as 0:24:0.5."""
    words = text.split(":" if ":" in text else ",")
    numbers = [n for n in (read_float(word, finite=True) for word in words) if n is not None]
    if len(numbers) == len(words) <= MOST_TIMES and ":" not in text:
        return numbers
    if len(numbers) == len(words) == 3 and numbers[2] > 0:
        first, last, step = numbers
        count = (last - first) / step * (1 + 1e-12) + 1e-9
        if 0 <= count < MOST_TIMES:
            return [first + place * step for place in range(int(count) + 1)]
    raise InputError(
        Setting("times"), " must be from:to:step with a step above 0, such as 0:24:0.5, or numbers "
        f"with commas between, at most {MOST_TIMES}, got {brief(text)}",
    )  # fmt: skip


def at_times(
    names: Sequence[str], times: ArrayLike, covariates: Mapping[str, Doubles], source: str
) -> Individuals:
    """Individuals at the same times, (T,) or as typed, with constant covariates (n,), no values."""
    grid = as_array("the times", parse_times(times) if isinstance(times, str) else times)
    if grid.ndim != 1 or grid.dtype.kind not in "iuf" or not 0 < len(grid) <= MOST_TIMES:
        raise InputError(
            f"the times must be 1 to {MOST_TIMES} numbers, got shape {grid.shape} of type "
            f"{grid.dtype}"
        )
    grid = grid.astype(np.float64)
    if not np.isfinite(grid).all():
        raise InputError("the times must be finite")
    n, width = len(names), len(grid)
    ends: Indices = np.arange(n + 1, dtype=np.intp) * width
    repeated = {name: np.repeat(values, width) for name, values in covariates.items()}
    nothing = np.full(n * width, np.nan)
    return Individuals(tuple(names), ends, np.tile(grid, n), nothing, repeated, source)


class Predictor:
    """A fit at work: it makes the model of the fit again, of other individuals."""

    def __init__(
        self,
        fit: SaemFit | SavedSaem,
        model: Maker | None = None,  # of a user's own model that was read from a file
        *,
        level: float | None = None,  # probability of intervals; None: that of the fit
        n_draws: int = 1000,  # of the latents of each individual
        seed: int = 0,
    ) -> None:
        self.saved = fit.saved
        self.level = check_number(
            "level", self.saved.level if level is None else level, least=0.01, most=0.999
        )
        self.n_draws = check_int("n_draws", n_draws, least=20, most=1_000_000)
        self.seed = check_int("seed", seed, least=0, most=2**64 - 1)
        self._maker = model
        if model is None and isinstance(fit, SaemFit):
            self.form = fit.model.expand_about(fit.theta)
        elif model is None and self.saved.model == OWN:
            raise InputError(
                f"the model {self.saved.model_class} is a user's own, which a file does not hold: "
                "predict in Python, vpem.saem.prediction.Predictor(fit, model=...)"
            )

    @property
    def reads(self) -> list[str]:
        """Covariates that a model by name reads."""
        options = self.saved.model_options
        if self.saved.model == OWN:
            return []
        return list(model_class(self.saved.model, options).reads(options))

    def for_individuals(self, individuals: Individuals) -> SaemModel:
        """Make the fitted model of other individuals."""
        saved = self.saved
        if self._maker is not None:
            model = self._maker(individuals)
        elif saved.model == OWN:
            raise InputError(
                f"the model {saved.model_class} is a user's own: give what makes it of other "
                "individuals, Predictor(fit, model=...)"
            )
        else:
            options = dict(saved.model_options)
            curve = options.get("curve")
            if isinstance(curve, str) and is_own(curve):
                if not is_own(self.saved.own_curve):
                    raise InputError(
                        f"the fit has a user-defined curve, {curve[:200]}, and loading a fit runs "
                        "no code: name the curve again, --curve FILE.py:NAME (in Python, "
                        "dataclasses.replace(fit, own_curve='FILE.py:NAME'))"
                    )
                options["curve"] = self.saved.own_curve
            if has_curves(saved.model, saved.model_options):  # else found by these rows' fit
                options["shift"] = 0.0
            try:
                model = make_model(saved.model, individuals, **options)
            except (TypeError, ValueError, KeyError, IndexError) as error:
                if isinstance(error, InputError) and str(error).startswith(individuals.source):
                    raise  # a fault of the data
                raise InputError(
                    f"the options of the fit make no model {saved.model} of {individuals.source} "
                    f"({error}); fit it again"
                ) from error
        got = (model.parameters, tuple(model.latents))
        fitted = (saved.parameters, saved.latents)
        if [*map(len, got)] != [*map(len, fitted)] or (not model.wide and got != fitted):
            raise InputError(
                f"{individuals.source}: the model of these individuals has other parameters or "
                f"latents than the one that was fitted ({len(got[0])} and {len(got[1])}, not "
                f"{len(saved.parameters)} and {len(saved.latents)}); give data with the same items"
            )
        check_law(model, saved.theta)
        return model.expand_about(saved.theta)

    @cached_property
    def form(self) -> SaemModel:
        """Some model of the fitted kind, whose individuals do not matter."""
        saved = self.saved
        if saved.model in MODELS and not has_curves(saved.model, saved.model_options):
            raise InputError(
                f"latents of the model {saved.model} have no curves over time; ask for the "
                "latents of individuals with rows"
            )
        columns = {name: np.ones(2) for name in ("dose", *self.reads, *saved.covariates)}
        columns["outcome"] = np.zeros(2)
        named = saved.settings.get("columns")
        blank = Individuals(
            ("",), np.array([0, 2]), np.array([1.0, 2.0]), np.zeros(2), columns,
            columns=dict(named) if isinstance(named, dict) else {},
        )  # fmt: skip
        return self.for_individuals(blank)

    def latents(self, individuals: Individuals) -> Latents:
        """Latents of individuals given their rows.

        Where their law is normal its means and covariances are exact; else they come from
        Metropolis draws, of documents from Gibbs sampling, which depend on the individual's rows
        and name and on the seed only.
        """
        self._need_continuous()
        individuals = heard_in(self.saved, individuals)[0]
        parts: list[tuple[Doubles, ...]] = []
        for some in in_batches(individuals, len(self.saved.latents), self.n_draws):
            model = self.for_individuals(some)
            if model.wide:
                theta, sampler = self.saved.theta, Gibbs()
                first = np.zeros((model.n, len(model.latents)))
                chains = sampler.begin(model, theta, first, CHAINS, self.seed)
                for now in range(GIBBS_BURN_IN):
                    sampler.move(model, theta, chains, now + 1, 0)
                drawn = sample_conditional(
                    model, theta, sampler, chains, after=GIBBS_BURN_IN, late=1,
                    n_iter=max(2, -(-self.n_draws // CHAINS)), level=self.level,
                )  # fmt: skip
                parts.append((drawn.means, drawn.lower, drawn.upper, drawn.covariances))
                continue
            draws, means, covariances = self._given(model)
            parts.append((means, *self._ends(draws), covariances))
        means, lower, upper, covariances = (
            np.concatenate(part) for part in zip(*parts, strict=True)
        )
        names = individuals.names, self.saved.latents
        return Latents(*names, means, lower, upper, covariances, self.level)

    @finite
    def _given(self, model: SaemModel) -> tuple[Doubles, Doubles, Doubles]:
        """Draws (draws, n, q), means and covariances of the latents given the rows."""
        theta = self.saved.theta
        if type(model).posterior is not SaemModel.posterior:
            means, covariances = model.posterior(theta)
            streams = Streams.from_names(model.individuals.names, self.seed)
            return self._normal(means, covariances, streams), means, covariances
        if type(model).population is not SaemModel.population:
            first = model.prior(theta, model.individuals)[0]
        else:
            first = model.start()[1]
        sampler = Metropolis()
        chains = sampler.begin(model, theta, first, CHAINS, self.seed)
        n_iter = -(-self.n_draws // CHAINS)
        draws = np.empty((n_iter * CHAINS, *first.shape))
        for k in range(BURN_IN + n_iter):
            sampler.move(model, theta, chains, k + 1, max(0, k + 1 - BURN_IN))
            if k >= BURN_IN:
                place = (k - BURN_IN) * CHAINS
                draws[place : place + CHAINS] = chains.z
        means = draws.mean(axis=0)
        apart = draws - means
        return draws, means, np.einsum("cni,cnj->nij", apart, apart) / len(draws)

    def _normal(self, means: Doubles, covariances: Doubles, streams: Streams) -> Doubles:
        """Draws (draws, n, q) of normal laws, of each individual by its own stream."""
        values, vectors = np.linalg.eigh(covariances)
        roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        normals = streams.derive_stream(0, 0).normals(self.n_draws, means.shape[1])
        return np.asarray(means + np.einsum("nij,cnj->cni", roots, normals), np.float64)

    def _ends(self, draws: Doubles) -> tuple[Doubles, Doubles]:
        low, high = np.quantile(draws, [(1 - self.level) / 2, (1 + self.level) / 2], axis=0)
        return low, high

    def _need_continuous(self) -> None:
        if self.saved.discrete:
            raise InputError(
                f"latents of the model {self.saved.model} are classes, with no curves or "
                "intervals; ask for the classes of individuals with rows"
            )

    def changing(self, individuals: Individuals) -> bool:
        """Whether covariates of the model change in time, so that there are curves at rows only."""
        return any(len(individuals.changes(name)) for name in self._needed(individuals))

    def _moved(self, individuals: Individuals, times: ArrayLike) -> Individuals:
        """Individuals at other times than those of rows, at which covariates must be the same."""
        why = "there are curves at the times of its rows only, not at others"
        covariates = {name: individuals.constant(name, why) for name in self._needed(individuals)}
        moved = at_times(individuals.names, times, covariates, individuals.source)
        return replace(moved, doses=individuals.doses)

    def curves(self, individuals: Individuals, times: ArrayLike | None = None) -> FittedCurves:
        """Curves of individuals given their rows, at these or at times, (T,) or "0:24:0.5".

        Covariates must then be constant.
        """
        self._need_continuous()
        targets = individuals
        if times is not None:
            targets = self._moved(individuals, times)

        def given(_: Individuals, whose: Indices) -> tuple[SaemModel, Doubles, Doubles]:
            model = self.for_individuals(individuals.take(whose))
            draws, means, _covariances = self._given(model)
            return model, means, draws

        return self._curves(targets, given)

    def _needed(self, individuals: Individuals | None) -> list[str]:
        """Covariates that the model reads; of a user's own model, those that do not change."""
        if self.saved.model in MODELS:
            has_doses = (self.saved if individuals is None else individuals).doses is not None
            return [name for name in self.reads if name != "dose" or not has_doses]
        if individuals is None:
            return []
        each = individuals.first[:-1]
        return [
            name
            for name, values in individuals.covariates.items()
            if (values == values[each][individuals.individual_of]).all()
        ]

    def stored(
        self, names: Sequence[str] | None = None, times: ArrayLike | None = None
    ) -> FittedCurves:
        """Curves of individuals of the fit, by the stored law of their latents, taken as normal.

        By default of all, at 50 times from the first to the last of the fit's rows.
        """
        self._need_continuous()
        saved = self.saved
        which = saved.places(names)
        chosen_names = tuple(saved.names[place] for place in which)
        covariates = {name: values[which] for name, values in saved.covariates.items()}
        for name in self._needed(None):
            if name not in covariates:
                raise InputError(
                    f"the covariate {name!r} of the fit's individuals changes from row to row, and "
                    "a fit does not hold it; give their rows"
                )
        times = np.linspace(*saved.time_range, 50) if times is None else times
        at = at_times(chosen_names, times, covariates, "the individuals of the fit")
        if saved.doses is not None:
            at = replace(at, doses=saved.doses.take_individuals(which))

        def given(some: Individuals, whose: Indices) -> tuple[SaemModel, Doubles, Doubles]:
            means, streams = saved.means[which[whose]], Streams.from_names(some.names, self.seed)
            draws = self._normal(means, saved.covariances[which[whose]], streams)
            return self.form, means, draws

        return self._curves(at, given)

    def stored_latents(self, names: Sequence[str] | None = None) -> Latents:
        """Latents of individuals of the fit, by default all, as it found them, at its level."""
        self._need_continuous()
        saved = self.saved
        which = saved.places(names)
        names = tuple(saved.names[place] for place in which)
        listed = ("means", "lower", "upper", "covariances")
        parts = {name: getattr(saved, name)[which] for name in listed}
        return Latents(names, saved.latents, level=saved.level, **parts)

    def population(
        self,
        times: ArrayLike | None = None,
        covariates: Mapping[str, float] | str | None = None,  # as typed: "dose=4.5,sex=male"
        individuals: Individuals | None = None,
    ) -> FittedCurves:
        """Curve of the mean latents of the population: of an individual without rows.

        Its interval is that of the curves of individuals. With individuals their times and
        covariates are taken, their values are not used; else times are by default 50 from the first
        to the last of the fit's rows.
        """
        self._need_continuous()
        if individuals is None:
            values = self._said(covariates) if isinstance(covariates, str) else covariates or {}
            columns = {name: np.array([float(value)]) for name, value in values.items()}
            if self.saved.doses is not None and "dose" not in columns:
                raise InputError(
                    "the fit's individuals have doses of their own, and the population has none: "
                    "give the covariate dose, given at time 0 (dose=100), or rows of doses"
                )
            times = np.linspace(*self.saved.time_range, 50) if times is None else times
            at = at_times(("population",), times, columns, "the population")
        elif times is None:
            at = individuals
        else:
            at = self._moved(individuals, times)
        model = self.form
        mean, covariance = model.population(self.saved.theta)
        apart = self._normal(
            np.zeros((1, len(mean))), covariance[None], Streams.from_names([""], self.seed)
        )

        def given(some: Individuals, _: Indices) -> tuple[SaemModel, Doubles, Doubles]:
            means = model.prior(self.saved.theta, some)[0]
            return model, means, means + apart

        return self._curves(at, given)

    def _said(self, text: str) -> dict[str, float]:
        """Read values of covariates, which are numbers or words of the fit."""
        words = (self.saved.settings.get("columns") or {}).get("words") or {}
        values: dict[str, float] = {}
        for part in text.split(","):
            name, _, word = (piece.strip() for piece in part.partition("="))
            value, known = read_float(word, finite=True), list(words.get(name, ()))
            if known:
                value = float(known.index(word)) if word in known else None
            if value is None or not name or name in values:
                raise InputError(
                    "without DATA ", Setting("covariates"), " must be values with commas between, "
                    f"such as dose=4.5,weight=70, got {brief(text)}",
                )  # fmt: skip
            values[name] = value
            values |= {f"{name}={one}": float(at == value) for at, one in enumerate(known)}
        return values

    def _curves(
        self,
        at: Individuals,
        given: Callable[[Individuals, Indices], tuple[SaemModel, Doubles, Doubles]],
    ) -> FittedCurves:
        """Curves of the model, latents (n, q) and draws of some individuals, by their places."""
        parts, place = [], 0
        for some in in_batches(at, len(self.saved.latents), self.n_draws):
            whose = np.arange(place, place := place + some.n_individuals)
            parts.append(self._curve(some, *given(some, whose)))
        fitted, lower, upper = (np.concatenate(part) for part in zip(*parts, strict=True))
        return FittedCurves(at, fitted, lower, upper, self.level)

    @finite
    def _curve(
        self, at: Individuals, model: SaemModel, means: Doubles, draws: Doubles
    ) -> tuple[Doubles, Doubles, Doubles]:
        """Curve and interval (N,) of latents (n, q) and draws of them."""
        fitted = model.curve(means[None], at)[0]
        return fitted, *self._ends(model.curve(draws, at))

    @finite
    def responsibilities(self, individuals: Individuals) -> Doubles:
        """Probability of each class given the rows, (n, K), for the model ``gmm``."""
        odds = self.for_individuals(individuals).responsibilities(self.saved.theta)
        if odds is None:
            raise InputError(f"the model {self.saved.model_class} has no classes; ask for curves")
        return np.asarray(odds, np.float64)

    @finite
    def score(self, individuals: Individuals, n_importance: int = 5000) -> LogLikelihood:
        """Log-likelihood of individuals at the estimates, by formula or importance sampling."""
        individuals, parts = heard_in(self.saved, individuals)[0], []
        for some in in_batches(individuals, len(self.saved.latents), self.n_draws):
            model = self.for_individuals(some)
            each = model.marginal(self.saved.theta)
            if each is not None:
                full = np.full(len(each), np.inf)
                parts.append(LogLikelihood(float(each.sum()), 0.0, each, full))
                continue
            draws, means, covariances = self._given(model)
            empty = np.zeros(0)
            conditional = Conditional(
                means, covariances, *self._ends(draws), self.level, empty, empty, empty,
                len(draws), empty,
            )  # fmt: skip
            parts.append(
                importance_log_likelihood(
                    model, self.saved.theta, conditional, Streams.from_names(some.names, self.seed),
                    after=BURN_IN + len(draws), n_draws=n_importance,
                )
            )  # fmt: skip
        each = np.concatenate([part.each for part in parts])
        effective = np.concatenate([part.effective for part in parts])
        error = float(np.sqrt(sum(part.error**2 for part in parts)))
        tangent = float(sum(part.linearized for part in parts))
        return LogLikelihood(float(each.sum()), error, each, effective, tangent)

    def describe_score(self, individuals: Individuals) -> Report:
        """Report how well the fit describes individuals: `score`, and what follows."""
        if self.saved.corpus is not None:
            documents, n_unknown, n_left_out = heard_in(self.saved, individuals)
            each = self.score(documents).each
            model, n_tokens = self.for_individuals(documents), float(documents.values.sum())
            halves, words = model.completion(self.saved.theta, self.seed)
            done = perplexity_of(float(halves.sum()), float(words.sum())) if words.any() else None
            return {
                "n_individuals": documents.n_individuals,
                "n_tokens": n_tokens,
                "n_unknown": n_unknown,
                "n_left_out": n_left_out,
                "log_likelihood": {"lower_bound": each.sum()},
                "perplexity": perplexity_of(float(each.sum()), n_tokens),
                "perplexity_of_completion": done,
                "individuals": rows_of({"id": documents.names, "log_likelihood": each}),
            }
        n, n_rows, score = individuals.n_individuals, individuals.n_rows, self.score(individuals)
        return {
            "n_individuals": n,
            "n_samples": n_rows,
            "n_parameters": len(self.saved.parameters),
            "log_likelihood": score.describe(np.min(score.effective)),
            "individuals": rows_of({"id": individuals.names, "log_likelihood": score.each}),
            **criteria_of(self.saved, score.value, n, n_rows),
        }
