"""What SAEM asks of a model: one small class, vectorised over chains and individuals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from vpem._core.latents import Latents
from vpem.errors import InputError, NumericalError, VpemError
from vpem.saem.individuals import Individuals
from vpem.saem.streams import Keys, Stream

if TYPE_CHECKING:
    from vpem.saem.models.integrated import Integrated


Vector = NDArray[np.float64]

POSITIVE = ("var(", "residual ", "additive sd", "proportional sd", "weight ")
"""How names of parameters begin that are above 0."""

LEAST_UNIT = 1e-3
"""Of a typical value: the least unit of a number that hardly varies."""


class Counts(NamedTuple):
    """How many there are: of what a total of statistics is the total."""

    individuals: float
    rows: float


class SaemModel(ABC):
    """A model with latent variables z_i (q,) of individuals whose rows are y_i.

    Its complete density is ``h(z, y) exp(<S(z, y), phi(theta)> - psi(theta))``; parameters theta
    are a vector (p,), statistics S a vector (P,). Latents of several chains are arrays
    ``z (chains, n, q)``. A model is that of certain individuals; numbers it computes of one must
    not depend on which others are there.

    Attributes
    ----------
    individuals : Individuals
        Whose rows.
    latents : tuple of str
        Names of the latents, (q,).
    parameters : sequence of str
        Names of the parameters, (p,).
    pieces : tuple of slice
        Parts of a statistic that are compressed with a scale of their own; together they cover it.
    discrete : bool
        Whether latents are numbers of classes: then there must be `draw` and `marginal`.
    has_curves : bool
        Whether it has curves over time, and takes the option ``shift``.
    n_imputed : int
        Latents beside those that have names: values that are drawn with them.
    normal_rows : bool
        Whether measurements are normal about `curve` with `row_sds`, given the latents.
    wide : bool
        Whether statistics are too large to have one of each individual. Then there are `means` of
        many, `marginal` and `perplexity`, and neither information nor standard errors.
    n_coefficients : int
        Parameters, the first, that are coefficients of means: their laws are t where few know them.
    found : mapping
        Options that are needed to make the same model of others, and that data have decided.
    """

    individuals: Individuals
    latents: tuple[str, ...]
    parameters: Sequence[str]
    pieces: tuple[slice, ...]
    discrete: bool = False
    has_curves: bool = False
    n_imputed: int = 0
    normal_rows: bool = False
    wide: bool = False
    n_coefficients: int = 0
    found: Mapping[str, Any] = MappingProxyType({})

    @property
    def n(self) -> int:
        """Number of individuals in this process."""
        return self.individuals.n_individuals

    @property
    def size(self) -> int:
        """Numbers of a statistic, P."""
        return int(self.pieces[-1].stop)

    @property
    def counts(self) -> Counts:
        """All individuals and rows, those of other processes too."""
        return Counts(*self.individuals.everyone)

    @abstractmethod
    def take(self, which: NDArray[np.intp]) -> SaemModel:
        """Return the same model of some of the individuals."""

    @abstractmethod
    def start(self) -> tuple[Vector, Vector]:
        """Return parameters (p,) and latents (n, q) to begin with."""

    @abstractmethod
    def log_complete(self, z: Vector, theta: Vector) -> Vector:
        """Logarithm of the complete density of each individual, (chains, n)."""

    def steepest(self) -> Vector | None:
        """Curvature of all latents of each individual, (n,), where units are to be by that alone.

        None: they are by the curvature where chains are.
        """
        return None

    @abstractmethod
    def gradient(self, z: Vector, theta: Vector) -> Vector:
        """Gradient of `log_complete` in the latents, (chains, n, q)."""

    @abstractmethod
    def statistics(self, z: Vector) -> Vector:
        """Statistic S of each individual, the mean over chains, (n, P)."""

    def statistics_by_chain(self, z: Vector) -> Vector:
        """Statistic of each individual in each chain, (chains, n, P)."""
        return np.array([self.statistics(one[None]) for one in z])

    @abstractmethod
    def maximize(self, total: Vector, counts: Counts) -> Vector:
        """Parameters (p,) that maximise `log_density` of a total of statistics (P,).

        They must be valid whatever the total is: compressed ones may be of no latents at all.
        """

    @abstractmethod
    def log_density(self, total: Vector, counts: Counts, theta: Vector) -> float:
        """``<total, phi(theta)> - psi(theta)``: the complete log-likelihood, up to ``log h``."""

    @classmethod
    def reads(cls, options: Mapping[str, object]) -> tuple[str, ...]:
        """Covariates that a model with such options reads."""
        return ()

    # ---- what some models have ----------------------------------------------------------------

    @classmethod
    def is_drawn_exactly(cls) -> bool:
        """Whether latents can be drawn from their law given the rows: `posterior` or `draw`."""
        return cls.posterior is not SaemModel.posterior or cls.draw is not SaemModel.draw

    def carrying(self, which: NDArray[np.bool_]) -> Self:
        """Return the model where some latents (q,) move with their means; itself if none can."""
        return self

    def about(self, theta: Vector) -> Self:
        """Return the model whose statistics are those at parameters theta (p,); by default itself.

        A complete density that is of no exponential family may still have statistics: the
        coefficients of its expansion about the parameters of the moment. `maximize` and
        `log_density` then take totals of such.
        """
        return self

    def means(self, z: Vector, groups: Sequence[NDArray[np.intp]]) -> Vector:
        """Mean statistic of groups of individuals, by weights and over chains, (m, P), if wide."""
        raise InputError(f"{type(self).__name__} is wide, but has no means of statistics")

    def units(self, z: Vector) -> Vector:
        """Units (P,) in which all numbers of a statistic vary alike, by latents (chains, n, q)."""
        among, each = self.individuals, self.statistics(z)
        typical = np.sqrt(among.mean(each**2))
        spread = np.maximum(np.sqrt(among.variance(each)), LEAST_UNIT * typical)
        return np.where(spread > 0, spread, 1.0)

    def followed(self, theta: Vector) -> Vector:
        """What a trace keeps of parameters: all, or of a wide model a number for each latent."""
        return theta

    def shown(self, z: Vector) -> Vector:
        """Latents (..., q) as they are reported."""
        return z

    def holds(self, total: Vector, counts: Counts) -> bool:
        """Whether `maximize` takes a total (P,) as it is; False: it must make parameters valid."""
        return True

    def constraints(self, theta: Vector) -> Vector:
        """Rows (c, p) of what changes of parameters add up to zero in: weights' have 1, say."""
        return np.zeros((0, len(theta)))

    def posterior(self, theta: Vector) -> tuple[Vector, Vector]:
        """Means (n, q) and covariances (n, q, q) of the latents given the rows, if Gaussian."""
        raise InputError(
            f"the latents of {type(self).__name__} have no Gaussian posterior; take the sampler "
            "metropolis, mala or langevin"
        )

    def draw(self, theta: Vector, stream: Stream, n_chains: int) -> Vector:
        """Draw latents (chains, n, q) from their posterior, where that is known."""
        means, covariances = self.posterior(theta)
        try:
            roots = np.linalg.cholesky(covariances)
        except np.linalg.LinAlgError as error:
            raise NumericalError(
                f"the posterior of {type(self).__name__} has no covariance at these parameters: "
                "variances are as good as zero; take feedback memory or error, or a finer codec"
            ) from error
        q = means.shape[1]
        normals = stream.normals(n_chains, q)
        z = np.repeat(means[None], n_chains, axis=0)
        for i in range(q):
            for j in range(i + 1):
                z[..., i] += roots[:, i, j] * normals[..., j]
        return z

    def marginal(self, theta: Vector) -> Vector | None:
        """Log-likelihood of each individual (n,), where there is a formula; else None."""
        return None

    def integrated(self, theta: Vector, best: bool = True) -> Integrated | None:
        """What formulas say at the maximum of the likelihood, or at theta; None: nothing."""
        return None

    def population(self, theta: Vector) -> tuple[Vector, Vector]:
        """Mean (q,) and covariance (q, q) of the latents of individuals without rows, if normal."""
        raise InputError(
            f"{type(self).__name__} does not tell the law of its latents over the population; give "
            "it the method population"
        )

    def prior(self, theta: Vector, at: Individuals) -> tuple[Vector, Vector]:
        """Means (n, q) of the latents of individuals before their rows, and covariance (q, q).

        Where parameters depend on covariates, means are those of the covariates in ``at``, whose
        values count for nothing. By default everybody's mean is that of `population`.
        """
        mean, covariance = self.population(theta)
        return np.tile(mean, (at.n_individuals, 1)), covariance

    def typical(self, theta: Vector) -> Vector:
        """Means (n, q) of the individuals' latents before their rows; 0 where none are known."""
        kind = type(self)
        if kind.population is SaemModel.population and kind.prior is SaemModel.prior:
            return np.zeros((self.n, len(self.latents) + self.n_imputed))
        return self.prior(theta, self.individuals)[0]

    def curve(self, z: Vector, at: Individuals) -> Vector:
        """Values (chains, N) without error at rows of individuals with latents (chains, n, q).

        What is measured in ``at`` counts for nothing: only times and covariates do.
        """
        raise InputError(
            f"latents of {type(self).__name__} have no curves over time; ask for the latents"
        )

    def row_sds(self, z: Vector, theta: Vector, at: Individuals) -> Vector:
        """Standard deviation (chains, N) of a measurement about `curve`, given the latents.

        Of a combined error the root of ``a^2 + b^2 f^2``; of a yes or no that of p (1 - p), p the
        curve; of a count the root of its mean. 0 where a measurement is certain.
        """
        raise InputError(
            f"{type(self).__name__} does not tell how measurements scatter about its curves; give "
            "it the method row_sds"
        )

    def draw_values(self, z: Vector, theta: Vector, stream: Stream, at: Individuals) -> Vector:
        """Draw measurements (chains, N) at rows of individuals with latents z (chains, n, q).

        As they are before any limit censors them; what is measured in ``at`` counts for nothing.
        Each row has its own number of the stream, whose keys are of the individuals of ``at``:
        ``stream.of_rows(chains, at.first)`` are uniform numbers (chains, N). By default they are
        normal about `curve`, with `row_sds`; laws that are not override this.
        """
        normals = ndtri(stream.of_rows(len(z), at.first))
        drawn: Vector = self.curve(z, at) + self.row_sds(z, theta, at) * normals
        return drawn

    def weighted_residuals(self, z: Vector, theta: Vector) -> Vector:
        """Residuals (chains, N) of the model's own rows in units of `row_sds`.

        NaN where a row has no residual: its value is a limit (censored), or was certain.
        """
        mine = self.individuals
        sds = self.row_sds(z, theta, mine)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            found = (mine.values - self.curve(z, mine)) / sds
        censored = mine.covariates.get("censored", np.zeros(mine.n_rows)) != 0
        return np.where(np.isfinite(found) & ~censored, found, np.nan)

    def kernels(self, theta: Vector) -> Latents | None:
        """Return the law of the latents as kernels know it, where they do: they move chains then.

        One of `vpem._core.latents`; see `vpem.saem.moves`.
        """
        return None

    def sweep(self, theta: Vector, z: Vector, keys: Keys, n_threads: int) -> None:
        """Draw latents (chains, n, q) in place by Gibbs sampling, once for each row of keys.

        Keys (2 sweeps, n) are those of `vpem.saem.streams.Streams.keys_at`.
        """
        raise InputError(
            f"{type(self).__name__} has no Gibbs sampler; take exact, metropolis, mala or langevin"
        )

    def perplexity(self, theta: Vector) -> float:
        """Perplexity of what all individuals have, by `marginal`."""
        raise InputError(f"{type(self).__name__} has no words, of which there is a perplexity")

    def completion(self, theta: Vector, seed: int) -> tuple[Vector, Vector]:
        """Log-likelihood of a half of each individual's words given the other, and words, (n,)."""
        raise InputError(f"{type(self).__name__} has no words, which are completed")

    def canonical(self, theta: Vector, z: Vector) -> tuple[Vector, Vector]:
        """Return parameters and latents that mean the same, in the form to be reported."""
        return theta, z


def begin_model(model: SaemModel) -> tuple[Vector, Vector]:
    """Return a model's parameters (p,) and latents (n, q) to begin with."""
    name = type(model).__name__
    try:
        theta, z = model.start()
    except VpemError:
        raise
    except (ValueError, IndexError, TypeError, KeyError) as error:
        raise InputError(
            f"start of model {name} fails: {error}; statistics, pieces (of {model.size} numbers "
            "together) and maximize must fit each other, see SaemModel"
        ) from error
    return np.asarray(theta), np.asarray(z)


def check_model(model: SaemModel, theta: Vector, z: Vector) -> None:
    """Check that a model's functions fit each other, before they are run many times."""
    name = type(model).__name__
    n, q = model.n, len(model.latents) + model.n_imputed
    p, P = len(model.parameters), model.size

    def check(what: str, got: object, shape: tuple[int, ...]) -> None:
        found = np.shape(np.asarray(got))
        if found != shape:
            raise InputError(
                f"{what} of model {name} must have shape {shape}, got {found}; see SaemModel"
            )

    check("the first parameters", theta, (p,))
    check("the first latents", z, (n, q))
    if not np.isfinite(theta).all() or not np.isfinite(z).all():
        raise InputError(f"the start of model {name} is not finite; give another start")
    chains = np.repeat(np.asarray(z, dtype=np.float64)[None], 2, axis=0)
    model = model.about(np.asarray(theta, dtype=np.float64))
    if model.wide:
        means = np.asarray(model.means(chains, [np.arange(n)] if n else []))
        check("means", means, (min(n, 1), P))
        total = means.sum(axis=0) * n
    else:
        statistics = np.asarray(model.statistics(chains))
        check("statistics", statistics, (n, P))
        total = statistics.sum(axis=0)
    try:
        found = model.maximize(total, model.counts)
    except VpemError:
        raise
    except (ValueError, IndexError, TypeError, KeyError) as error:
        raise InputError(
            f"maximize of model {name} cannot take its statistics of shape {(P,)}: {error}"
        ) from error
    check("maximize", found, (p,))
    complete = model.log_complete(chains, theta)
    check("log_complete", complete, (2, n))
    if np.isnan(complete).any():
        raise InputError(f"log_complete of model {name} is not a number at its start")
    check("log_density", model.log_density(total, model.counts, theta), ())
    if model.discrete:
        return
    try:
        slope = model.gradient(chains, theta)
    except (VpemError, NotImplementedError):  # not every sampler asks for it
        return
    except (ValueError, IndexError, TypeError, KeyError) as error:
        raise InputError(f"gradient of model {name} fails at its start: {error}") from error
    check("gradient", slope, (2, n, q))
    if np.isnan(np.asarray(slope)[np.isfinite(complete)]).any():
        raise InputError(f"gradient of model {name} is not a number at its start")
