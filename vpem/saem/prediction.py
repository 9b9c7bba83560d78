"""What a fit says of individuals: their latents, curves with intervals, classes, log-likelihood.

Parameters stay at the estimates. Intervals are those of the curve without error, by draws of the
latents: new measurements scatter more, and the estimates are not certain either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from vpem.checks import check_int, check_number
from vpem.errors import InputError
from vpem.saem.conditional import Conditional
from vpem.saem.curves import Curves, Latents, at_times, finite, in_batches, moved_to
from vpem.saem.documents import draw_latents, in_words_of
from vpem.saem.fitted import FittedModel, Maker
from vpem.saem.individuals import Individuals
from vpem.saem.likelihood import LogLikelihood, importance_log_likelihood
from vpem.saem.models.catalogue import MODELS, OWN
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.results import SaemFit
from vpem.saem.samplers import Metropolis
from vpem.saem.saved import SavedSaem, as_saved
from vpem.saem.streams import Streams

BURN_IN = 150
CHAINS = 10


class Predictor:
    """A fit at work.

    Parameters
    ----------
    fit : SaemFit or SavedSaem
        The fit.
    model : callable, optional
        Makes the model of individuals, where it is a user's own that was read from a file.
    level : float, optional
        Probability of intervals; by default that of the fit.
    n_draws : int
        Draws of the latents of each individual.
    seed : int
        Of the draws, from 0 to 2^64 - 1.

    Raises
    ------
    InputError
        If the model is a user's own and not given, or not the one that was fitted.
    """

    def __init__(
        self,
        fit: SaemFit | SavedSaem,
        model: Maker | None = None,
        *,
        level: float | None = None,
        n_draws: int = 1000,
        seed: int = 0,
    ) -> None:
        self.saved = as_saved(fit)
        self.level = check_number(
            "level", self.saved.level if level is None else level, least=0.01, most=0.999
        )
        self.n_draws = check_int("n_draws", n_draws, least=20, most=1_000_000)
        self.seed = check_int("seed", seed, least=0, most=2**64 - 1)
        self.model = FittedModel(self.saved, model)
        if model is None and isinstance(fit, SaemFit):
            self.model.form = fit.model.about(fit.theta)
        elif model is None and self.saved.model == OWN:
            raise InputError(
                f"the model {self.saved.model_class} is a user's own, which a file does not hold: "
                "predict in Python, vpem.saem.prediction.Predictor(fit, model=...)"
            )

    def latents(self, individuals: Individuals) -> Latents:
        """Latents of individuals given their rows.

        Where their law is normal its means and covariances are exact; else they come from
        Metropolis draws, which depend on the individual's rows and name and on the seed only.
        """
        self._need_continuous()
        individuals = in_words_of(self.saved, individuals)
        found: list[tuple[Vector, ...]] = []
        for some in in_batches(individuals, len(self.saved.latents), self.n_draws):
            model = self.model.of(some)
            if model.wide:
                given = draw_latents(model, self.saved.theta, self.n_draws, self.seed, self.level)
                found.append((given.means, given.lower, given.upper, given.covariances))
                continue
            draws, means, covariances = self._given(model)
            found.append((means, *self._ends(draws), covariances))
        means, lower, upper, covariances = (
            np.concatenate(part) for part in zip(*found, strict=True)
        )
        return Latents(individuals.names, means, lower, upper, covariances, self.level)

    @finite
    def _given(self, model: SaemModel) -> tuple[Vector, Vector, Vector]:
        """Draws (draws, n, q), means and covariances of the latents given the rows."""
        theta = self.saved.theta
        streams = Streams.of(model.individuals.names, self.seed)
        if type(model).posterior is not SaemModel.posterior:
            means, covariances = model.posterior(theta)
            return self._normal(means, covariances, streams), means, covariances
        if type(model).population is not SaemModel.population:
            first = model.prior(theta, model.individuals)[0]
        else:
            first = model.start()[1]
        sampler = Metropolis()
        chains = sampler.begin(model, theta, first, CHAINS)
        n_iter = -(-self.n_draws // CHAINS)
        draws = np.empty((n_iter * CHAINS, *first.shape))
        for k in range(BURN_IN + n_iter):
            sampler.move(model, theta, chains, streams, k + 1, max(0, k + 1 - BURN_IN))
            if k >= BURN_IN:
                place = (k - BURN_IN) * CHAINS
                draws[place : place + CHAINS] = chains.z
        means = draws.mean(axis=0)
        apart = draws - means
        return draws, means, np.einsum("cni,cnj->nij", apart, apart) / len(draws)

    def _normal(self, means: Vector, covariances: Vector, streams: Streams) -> Vector:
        """Draws (draws, n, q) of normal laws, of each individual by its own stream."""
        values, vectors = np.linalg.eigh(covariances)
        roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        normals = streams.at(0, 0).normals(self.n_draws, means.shape[1])
        found: Vector = means + np.einsum("nij,cnj->cni", roots, normals)
        return found

    def _ends(self, draws: Vector) -> tuple[Vector, Vector]:
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

    def _held(self, individuals: Individuals) -> dict[str, Vector]:
        """Covariates for other times than those of rows, at which they must be the same."""
        why = "there are curves at the times of its rows only, not at others"
        return {name: individuals.constant(name, why) for name in self._needed(individuals)}

    def curves(self, individuals: Individuals, times: ArrayLike | None = None) -> Curves:
        """Curves of individuals given their rows.

        Parameters
        ----------
        individuals : Individuals
            Of the fit, or others.
        times : array-like of shape (T,), optional
            When; by default at their rows. Covariates must then be constant.
        """
        self._need_continuous()
        targets = individuals
        if times is not None:
            targets = moved_to(individuals, times, self._held(individuals))
        start = 0
        found: list[tuple[Vector, ...]] = []
        for one in in_batches(targets, len(self.saved.latents), self.n_draws):
            some = individuals.take(np.arange(start, start + one.n_individuals))
            start += one.n_individuals
            model = self.model.of(some)
            draws, means, _ = self._given(model)
            found.append(self._curve(model, one, means, draws))
        return self._joined(targets, found)

    def _needed(self, individuals: Individuals | None) -> list[str]:
        """Covariates that the model reads; of a user's own model, those that do not change."""
        if self.saved.model in MODELS:
            given = (self.saved if individuals is None else individuals).doses is not None
            return [name for name in self.model.reads if name != "dose" or not given]
        if individuals is None:
            return []
        each = individuals.first[:-1]
        return [
            name
            for name, values in individuals.covariates.items()
            if (values == values[each][individuals.individual_of]).all()
        ]

    def stored(self, names: Sequence[str] | None = None, times: ArrayLike | None = None) -> Curves:
        """Curves of individuals of the fit, by the stored law of their latents, taken as normal.

        Parameters
        ----------
        names : sequence of str, optional
            Which; by default all.
        times : array-like of shape (T,), optional
            When; by default 50 times from the first to the last of the fit's rows.
        """
        self._need_continuous()
        saved = self.saved
        which = saved.places(names)
        wanted = tuple(saved.names[place] for place in which)
        held = {name: values[which] for name, values in saved.covariates.items()}
        for name in self._needed(None):
            if name not in held:
                raise InputError(
                    f"the covariate {name!r} of the fit's individuals changes from row to row, and "
                    "a fit does not hold it; give their rows"
                )
        model, place = self.model.form, 0
        found: list[tuple[Vector, ...]] = []
        times = np.linspace(*saved.time_range, 50) if times is None else times
        at = at_times(wanted, times, held, "the individuals of the fit")
        if saved.doses is not None:
            at = replace(at, doses=saved.doses.take(which))
        for some in in_batches(at, len(saved.latents), self.n_draws):
            chosen = which[place : place + some.n_individuals]
            place += some.n_individuals
            streams = Streams.of(some.names, self.seed)
            means = saved.means[chosen]
            draws = self._normal(means, saved.covariances[chosen], streams)
            found.append(self._curve(model, some, means, draws))
        return self._joined(at, found)

    def stored_latents(self, names: Sequence[str] | None = None) -> Latents:
        """Latents of individuals of the fit, as it found them, at its level.

        Parameters
        ----------
        names : sequence of str, optional
            Which; by default all.
        """
        self._need_continuous()
        saved = self.saved
        which = saved.places(names)
        return Latents(
            tuple(saved.names[place] for place in which),
            saved.means[which],
            saved.lower[which],
            saved.upper[which],
            saved.covariances[which],
            saved.level,
        )

    def population(
        self,
        times: ArrayLike | None = None,
        covariates: Mapping[str, float] | None = None,
        individuals: Individuals | None = None,
    ) -> Curves:
        """Curve of the mean latents of the population: of an individual without rows.

        Its interval is that of the curves of individuals.

        Parameters
        ----------
        times : array-like of shape (T,), optional
            When; by default 50 times from the first to the last of the fit's rows, or those of
            individuals that are given.
        covariates : mapping of str to float, optional
            Of it.
        individuals : Individuals, optional
            With whose times and covariates, instead of covariates; their values count for nothing.
        """
        self._need_continuous()
        if individuals is None:
            held = {name: np.array([float(value)]) for name, value in (covariates or {}).items()}
            if self.saved.doses is not None and "dose" not in held:
                raise InputError(
                    "the fit's individuals have doses of their own, and the population has none: "
                    "give the covariate dose, given at time 0 (dose=100), or rows of doses"
                )
            times = np.linspace(*self.saved.time_range, 50) if times is None else times
            at = at_times(("population",), times, held, "the population")
        elif times is None:
            at = individuals
        else:
            at = moved_to(individuals, times, self._held(individuals))
        model = self.model.form
        found: list[tuple[Vector, ...]] = []
        mean, covariance = model.population(self.saved.theta)
        apart = self._normal(
            np.zeros((1, len(mean))), covariance[None], Streams.of([""], self.seed)
        )
        for some in in_batches(at, len(mean), self.n_draws):
            means = model.prior(self.saved.theta, some)[0]
            found.append(self._curve(model, some, means, means + apart))
        return self._joined(at, found)

    @finite
    def _curve(
        self, model: SaemModel, at: Individuals, means: Vector, draws: Vector
    ) -> tuple[Vector, Vector, Vector]:
        """Curve and interval (N,) of latents (n, q) and draws of them."""
        fitted = model.curve(means[None], at)[0]
        return fitted, *self._ends(model.curve(draws, at))

    def _joined(self, at: Individuals, found: list[tuple[Vector, ...]]) -> Curves:
        fitted, lower, upper = (np.concatenate(part) for part in zip(*found, strict=True))
        return Curves(at, fitted, lower, upper, self.level)

    @finite
    def responsibilities(self, individuals: Individuals) -> Vector:
        """Probability of each class given the rows, (n, K), for the model ``gmm``."""
        model = self.model.of(individuals)
        if not hasattr(model, "responsibilities"):
            raise InputError(f"the model {self.saved.model_class} has no classes; ask for curves")
        found: Vector = model.responsibilities(self.saved.theta)
        return found

    @finite
    def score(self, individuals: Individuals, n_importance: int = 5000) -> LogLikelihood:
        """Log-likelihood of individuals at the estimates, by formula or importance sampling."""
        individuals, parts = in_words_of(self.saved, individuals), []
        for some in in_batches(individuals, len(self.saved.latents), self.n_draws):
            model = self.model.of(some)
            each = model.marginal(self.saved.theta)
            if each is not None:
                full = np.full(len(each), np.inf)
                parts.append(LogLikelihood(float(each.sum()), 0.0, each, full))
                continue
            draws, means, covariances = self._given(model)
            empty = np.zeros(0)
            given = Conditional(
                means, covariances, *self._ends(draws), self.level, empty, empty, empty,
                len(draws), empty,
            )  # fmt: skip
            parts.append(
                importance_log_likelihood(
                    model, self.saved.theta, given, Streams.of(some.names, self.seed),
                    after=BURN_IN + len(draws), n_draws=n_importance,
                )
            )  # fmt: skip
        each = np.concatenate([part.each for part in parts])
        effective = np.concatenate([part.effective for part in parts])
        error = float(np.sqrt(sum(part.error**2 for part in parts)))
        tangent = float(sum(part.linearized for part in parts))
        return LogLikelihood(float(each.sum()), error, each, effective, tangent)
