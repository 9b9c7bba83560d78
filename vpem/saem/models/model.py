"""What SAEM needs of a model, vectorised over chains and individuals, and models by name.

Numbers of one individual are computed elementwise: the same whichever others are there.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from vpem._core.latents import Latents
from vpem.checks import Doubles, Indices, Mask
from vpem.errors import InputError, NumericalError, Setting, VpemError, check_choice, former
from vpem.network.schema import Report
from vpem.saem import special
from vpem.saem.individuals import Individuals, Keys, Streams

if TYPE_CHECKING:
    from vpem.saem.conditional import Conditional
    from vpem.saem.models.linear import Integrated
    from vpem.terms.priors import Penalty


LOG_2_PI = float(np.log(2 * np.pi))
LEAST = 1e-10
"""Least eigenvalue of a matrix of correlations; least variance, relative to that of the values."""

POSITIVE = ("var(", "residual ", "additive sd", "proportional sd", "weight ")
"""How names of parameters begin that are above 0."""

LEAST_UNIT = 1e-3
"""Of a typical value: the least unit of a number that hardly varies."""

MODELS = {
    "linear": ("vpem.saem.models.linear", "LinearModel"),
    "one-compartment": ("vpem.saem.models.mixed", "OneCompartmentModel"),
    "two-compartment": ("vpem.saem.models.mixed", "TwoCompartmentModel"),
    "curve": ("vpem.saem.models.mixed", "CurveModel"),
    "bifactor": ("vpem.saem.models.bifactor", "BifactorModel"),
    "gmm": ("vpem.saem.models.gmm", "GmmModel"),
    "lda": ("vpem.saem.models.lda", "LdaModel"),
}
"""Models by name: module and class."""

GENERALIZED = ("vpem.saem.models.mixed", "GeneralizedLinearModel")
"""Linear predictors whose rows are of other laws than the normal one of constant variance."""

INCOMPLETE = ("bifactor", "gmm")
"""Models of tables of items, of which some may be missing."""

OWN = "own"
"""Stands for a model of a user's own."""


def quadratic(d: Doubles, matrices: NDArray[np.floating]) -> Doubles:
    """``d^T A d`` of differences (..., n, q) and symmetric matrices (q, q) or (n, q, q)."""
    q = d.shape[-1]
    total: Doubles = np.zeros(d.shape[:-1])
    for i in range(q):
        total += matrices[..., i, i] * d[..., i] ** 2
        for j in range(i):
            total += 2.0 * matrices[..., i, j] * (d[..., i] * d[..., j])
    return total


def times(matrices: NDArray[np.floating], d: Doubles) -> Doubles:
    """``A d`` of matrices (q, q) or (n, q, q) and vectors (..., n, q)."""
    out = np.zeros(d.shape)
    for i in range(d.shape[-1]):
        for j in range(d.shape[-1]):
            out[..., i] += matrices[..., i, j] * d[..., j]
    return out


def log_normal(z: Doubles, mean: Doubles, covariance: Doubles) -> Doubles:
    """Log-density of latents (..., q) under one normal law, (...,)."""
    inverse = np.linalg.inv(covariance)
    constant = len(covariance) * LOG_2_PI + np.linalg.slogdet(covariance)[1]
    return np.asarray(-0.5 * (constant + quadratic(z - mean, inverse)), np.float64)


def triangle_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of variances and covariances, in the order of `triangle`."""
    rows, columns = np.tril_indices(len(names))
    return tuple(
        f"var({names[i]})" if i == j else f"cov({names[j]}, {names[i]})"
        for i, j in zip(rows, columns, strict=True)
    )


def floored(covariance: Doubles, least: Doubles | float = LEAST) -> Doubles:
    """Make a symmetric matrix (q, q) a covariance.

    Variances are raised to ``least`` (q,), and correlations until the matrix is positive definite,
    so that units do not matter. A matrix that is one is returned as it is.
    """
    q = len(covariance)
    diagonal = covariance.diagonal()
    sd = np.sqrt(np.maximum(diagonal, least))
    sizes = sd[:, None] * sd
    correlation = np.minimum(np.maximum(covariance / sizes, -1.0), 1.0)
    correlation.flat[:: q + 1] = 1.0
    values, vectors = np.linalg.eigh(correlation)
    if values.min() >= LEAST:
        if (diagonal >= least).all():
            return covariance
    else:
        correlation = (vectors * np.maximum(values, LEAST)) @ vectors.T
        correlation = (correlation + correlation.T) / 2
    return np.asarray(correlation * sizes, np.float64)


def known_scale(values: Doubles, scale: float, source: str) -> None:
    """Check that there is a scale of a model's values, which fits need."""
    if not (np.isfinite(scale) and scale > 0):
        raise InputError(
            f"{source}: all values are {values[0]:g}, which leaves nothing to model; take other "
            "values"
        )


def crossed(data: Individuals, left: Doubles, right: Doubles) -> Doubles:
    """Products ``L^T R`` (n, l, r) of columns (N, l) and (N, r), over each individual's rows."""
    products = np.empty((data.n_individuals, left.shape[1], right.shape[1]))
    columns = np.ascontiguousarray(right.T)
    for i in range(left.shape[1] if right.shape[1] else 0):
        products[:, i] = data.sums(left[:, i] * columns).T
    return products


def slices_of(*sizes: int) -> tuple[slice, ...]:
    """Parts of a vector, one after the other, of these sizes."""
    ends = [0, *accumulate(map(int, sizes))]
    return tuple(slice(*pair) for pair in pairwise(ends))


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
    gaps : bool
        Whether some individuals lack items that others have.
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
    carried : array or None
        Latents (q,) that move with their means in `log_density`, of models where some can.
    """

    individuals: Individuals
    latents: tuple[str, ...]
    parameters: Sequence[str]
    pieces: tuple[slice, ...]
    discrete: bool = False
    gaps: bool = False
    has_curves: bool = False
    n_imputed: int = 0
    normal_rows: bool = False
    wide: bool = False
    n_coefficients: int = 0
    found: Mapping[str, object] = MappingProxyType({})
    carried: Mask | None = None

    def __init_subclass__(cls, **others: object) -> None:
        """Let classes of users define methods under their former names."""
        super().__init_subclass__(**others)
        for old, new in {"about": "expand_about", "take": "take_individuals"}.items():
            if old in vars(cls) and new not in vars(cls):
                warnings.warn(f"{old} is {new} now", DeprecationWarning, stacklevel=3)
                setattr(cls, new, vars(cls)[old])

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
    def take_individuals(self, which: Indices) -> SaemModel:
        """Return the same model of some of the individuals."""

    take = former("take", "take_individuals")

    @abstractmethod
    def start(self) -> tuple[Doubles, Doubles]:
        """Return parameters (p,) and latents (n, q) to begin with."""

    @abstractmethod
    def log_complete(self, z: Doubles, theta: Doubles) -> Doubles:
        """Logarithm of the complete density of each individual, (chains, n)."""

    def steepest(self) -> Doubles | None:
        """Curvature of all latents of each individual, (n,), where units are to be by that alone.

        None: they are by the curvature where chains are.
        """
        return None

    @abstractmethod
    def gradient(self, z: Doubles, theta: Doubles) -> Doubles:
        """Gradient of `log_complete` in the latents, (chains, n, q)."""

    @abstractmethod
    def statistics(self, z: Doubles) -> Doubles:
        """Statistic S of each individual, the mean over chains, (n, P)."""

    def statistics_by_chain(self, z: Doubles) -> Doubles:
        """Statistic of each individual in each chain, (chains, n, P)."""
        return np.array([self.statistics(one[None]) for one in z])

    @abstractmethod
    def maximize(self, total: Doubles, counts: Counts) -> Doubles:
        """Parameters (p,) that maximise `log_density` of a total of statistics (P,).

        They must be valid whatever the total is: compressed ones may be of no latents at all.
        """

    @abstractmethod
    def log_density(self, total: Doubles, counts: Counts, theta: Doubles) -> float:
        """``<total, phi(theta)> - psi(theta)``: the complete log-likelihood, up to ``log h``."""

    def natural(self, theta: Doubles) -> Doubles:
        """Return ``phi(theta)`` (P,), by what statistics are multiplied in `log_density`."""
        units = np.eye(self.size)
        return np.array([self.log_density(one, Counts(0, 0), theta) for one in units])

    def penalty(self, theta: Doubles) -> float:
        """Penalty r of parameters (p,) in nats per individual, by default 0.

        `maximize` then returns what is best of `log_density` less ``counts.individuals`` times it.
        A log-likelihood is reported without and with it; standard errors are of the former.
        """
        return 0.0

    def under(self, penalty: Penalty) -> Self:
        """Return the model under a penalty that is given by words, of models that are known."""
        named = Setting("penalty", penalty.words)
        raise InputError(
            named, f" is for effects and covariances of linear and mixed models, not for "
            f"{type(self).__name__}; a model of your own has its method penalty",
        )  # fmt: skip

    @classmethod
    def reads(cls, options: Mapping[str, object]) -> tuple[str, ...]:
        """Covariates that a model with such options reads."""
        return ()

    # ---- what some models have ----------------------------------------------------------------

    def _lacks(self, what: str) -> NoReturn:
        raise InputError(f"{type(self).__name__} {what}")

    def expand_about(self, theta: Doubles) -> Self:
        """Return the model whose statistics are those at parameters theta (p,); by default itself.

        A complete density outside the exponential family may still have statistics: the
        coefficients of its expansion about the current parameters. `maximize` and `log_density`
        then take totals of these.
        """
        return self

    about = former("about", "expand_about")

    def inside(self) -> SaemModel:
        """Return the model in columns that are unrelated; by default itself."""
        return self

    def outside(self, theta: Doubles) -> Doubles:
        """Parameters (p,) as they are in the user's columns."""
        return theta

    @property
    def jacobian(self) -> Doubles | None:
        """By what (p, p) parameters are multiplied outside; None: columns are always the user's."""
        return None

    def reported(self, conditional: Conditional) -> Conditional:
        """Latents given rows as they are in the user's columns."""
        return conditional

    def means(self, z: Doubles, groups: Sequence[Indices]) -> Doubles:
        """Mean statistic of groups of individuals, by weights and over chains, (m, P), if wide."""
        self._lacks("is wide, but has no means of statistics")

    def units(self, z: Doubles) -> Doubles:
        """Units (P,) in which all numbers of a statistic vary alike, by latents (chains, n, q)."""
        among, each = self.individuals, self.statistics(z)
        typical = np.sqrt(among.mean(each**2))
        spread = np.maximum(np.sqrt(among.variance(each)), LEAST_UNIT * typical)
        return np.where(spread > 0, spread, 1.0)

    def followed(self, theta: Doubles) -> Doubles:
        """What a trace keeps of parameters: all, or of a wide model a number for each latent."""
        return theta

    def shown(self, z: Doubles) -> Doubles:
        """Latents (..., q) as they are reported."""
        return z

    def holds(self, total: Doubles, counts: Counts) -> bool:
        """Whether `maximize` takes a total (P,) as it is; False: it must make parameters valid."""
        return True

    def constraints(self, theta: Doubles) -> Doubles:
        """Rows (c, p) of what changes of parameters add up to zero in: weights' have 1, say."""
        return np.zeros((0, len(theta)))

    def posterior(self, theta: Doubles) -> tuple[Doubles, Doubles]:
        """Means (n, q) and covariances (n, q, q) of the latents given the rows, if Gaussian."""
        raise InputError(
            f"the latents of {type(self).__name__} have no Gaussian posterior; take the sampler "
            "metropolis, mala or langevin"
        )

    def draw(self, theta: Doubles, stream: Streams, n_chains: int) -> Doubles:
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

    def marginal(self, theta: Doubles) -> Doubles | None:
        """Log-likelihood of each individual (n,), where there is a formula; else None."""
        return None

    def integrated(
        self,
        theta: Doubles,
        best: bool = True,
        count: Callable[[int, int, int], None] | None = None,
    ) -> Integrated | None:
        """What formulas say at the maximum of the likelihood, or at theta; None: nothing.

        ``count`` is given the numbers of a sum, of sums that were made, and of parameters.
        """
        return None

    def population(self, theta: Doubles) -> tuple[Doubles, Doubles]:
        """Mean (q,) and covariance (q, q) of the latents of individuals without rows, if normal."""
        self._lacks(
            "does not give the law of its latents over the population; give it the method "
            "population"
        )

    def prior(self, theta: Doubles, at: Individuals) -> tuple[Doubles, Doubles]:
        """Means (n, q) of the latents of individuals before their rows, and covariance (q, q).

        Where parameters depend on covariates, means are those of the covariates in ``at``, whose
        values count for nothing. By default the mean of each is that of `population`.
        """
        mean, covariance = self.population(theta)
        return np.tile(mean, (at.n_individuals, 1)), covariance

    def responsibilities(self, theta: Doubles) -> Doubles | None:
        """Probability of each class given the rows, (n, K); None: latents are no classes."""
        return None

    def covariances(self, theta: Doubles) -> Doubles:
        """Covariances (m, q, q) that parameters must make positive definite, if any."""
        if type(self).population is SaemModel.population:
            return np.ones((1, 1, 1))
        return self.population(theta)[1][None]

    def typical(self, theta: Doubles) -> Doubles:
        """Means (n, q) of the individuals' latents before their rows; 0 where none are known."""
        kind = type(self)
        if kind.population is SaemModel.population and kind.prior is SaemModel.prior:
            return np.zeros((self.n, len(self.latents) + self.n_imputed))
        return self.prior(theta, self.individuals)[0]

    def curve(self, z: Doubles, at: Individuals) -> Doubles:
        """Values (chains, N) without error at rows of individuals with latents (chains, n, q).

        What is measured in ``at`` counts for nothing: only times and covariates do.
        """
        raise InputError(
            f"latents of {type(self).__name__} have no curves over time; ask for the latents"
        )

    def row_sds(self, z: Doubles, theta: Doubles, at: Individuals) -> Doubles:
        """Standard deviation (chains, N) of a measurement about `curve`, given the latents.

        Of a combined error the root of ``a^2 + b^2 f^2``; of a yes or no that of p (1 - p), p the
        curve; of a count the root of its mean. 0 where a measurement is certain.
        """
        self._lacks(
            "does not say how measurements scatter about its curves; give it the method row_sds"
        )

    def draw_values(self, z: Doubles, theta: Doubles, stream: Streams, at: Individuals) -> Doubles:
        """Draw measurements (chains, N) at rows of individuals with latents z (chains, n, q).

        As they are before any limit censors them; what is measured in ``at`` counts for nothing.
        Each row has its own number of the stream, whose keys are of the individuals of ``at``:
        ``stream.of_rows(chains, at.first)`` are uniform numbers (chains, N). By default they are
        normal about `curve`, with `row_sds`; laws that are not override this.
        """
        normals = special.ndtri(stream.of_rows(len(z), at.first))
        return np.asarray(self.curve(z, at) + self.row_sds(z, theta, at) * normals, np.float64)

    def weighted_residuals(self, z: Doubles, theta: Doubles) -> Doubles:
        """Residuals (chains, N) of the model's own rows in units of `row_sds`.

        NaN where a row has no residual: its value is a limit (censored), or was certain.
        """
        mine = self.individuals
        sds = self.row_sds(z, theta, mine)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            residuals = (mine.values - self.curve(z, mine)) / sds
        censored = mine.covariates.get("censored", np.zeros(mine.n_rows)) != 0
        return np.where(np.isfinite(residuals) & ~censored, residuals, np.nan)

    def kernels(self, theta: Doubles) -> Latents | None:
        """Return the law of the latents as kernels know it, where they do: they move chains then.

        One of `vpem._core.latents`; see `vpem.saem.samplers`.
        """
        return None

    def sweep(self, theta: Doubles, z: Doubles, keys: Keys, n_threads: int) -> None:
        """Draw latents (chains, n, q) in place by Gibbs sampling, once for each row of keys.

        Keys (2 sweeps, n) are those of `vpem.saem.individuals.Streams.keys_at`.
        """
        self._lacks("has no Gibbs sampler; take exact, metropolis, mala or langevin")

    def perplexity(self, theta: Doubles) -> float:
        """Perplexity of what all individuals have, by `marginal`."""
        self._lacks("has no words, and so no perplexity")

    def completion(self, theta: Doubles, seed: int) -> tuple[Doubles, Doubles]:
        """Log-likelihood of a half of each individual's words given the other, and words, (n,)."""
        self._lacks("has no words, and so no documents to complete")

    def canonical(self, theta: Doubles, z: Doubles) -> tuple[Doubles, Doubles]:
        """Return parameters and latents that mean the same, in the form to be reported."""
        return theta, z


def check_model(model: SaemModel, theta: Doubles, z: Doubles) -> None:
    """Check that a model's functions fit each other, before they are run many times."""
    name = type(model).__name__
    n, q = model.n, len(model.latents) + model.n_imputed
    p, P = len(model.parameters), model.size

    def check(what: str, got: object, shape: tuple[int, ...]) -> None:
        actual = np.shape(np.asarray(got))
        if actual != shape:
            raise InputError(
                f"{what} of model {name} must have shape {shape}, got {actual}; see SaemModel"
            )

    check("the first parameters", theta, (p,))
    check("the first latents", z, (n, q))
    if not np.isfinite(theta).all() or not np.isfinite(z).all():
        raise InputError(f"the start of model {name} is not finite; give another start")
    chains = np.repeat(np.asarray(z, dtype=np.float64)[None], 2, axis=0)
    model = model.expand_about(np.asarray(theta, dtype=np.float64))
    if model.wide:
        means = np.asarray(model.means(chains, [np.arange(n)] if n else []))
        check("means", means, (min(n, 1), P))
        total = means.sum(axis=0) * n
    else:
        statistics = np.asarray(model.statistics(chains))
        check("statistics", statistics, (n, P))
        total = statistics.sum(axis=0)
    try:
        maximum = model.maximize(total, model.counts)
    except VpemError:
        raise
    except (ValueError, IndexError, TypeError, KeyError) as error:
        raise InputError(
            f"maximize of model {name} cannot take its statistics of shape {(P,)}: {error}"
        ) from error
    check("maximize", maximum, (p,))
    complete = model.log_complete(chains, theta)
    check("log_complete", complete, (2, n))
    if np.isnan(complete).any():
        raise InputError(f"log_complete of model {name} is not a number at its start")
    check("log_density", model.log_density(total, model.counts, theta), ())
    if model.discrete:
        return
    try:
        slope = model.gradient(chains, theta)
    except (VpemError, NotImplementedError):  # not every sampler needs it
        return
    except (ValueError, IndexError, TypeError, KeyError) as error:
        raise InputError(f"gradient of model {name} fails at its start: {error}") from error
    check("gradient", slope, (2, n, q))
    if np.isnan(np.asarray(slope)[np.isfinite(complete)]).any():
        raise InputError(f"gradient of model {name} is not a number at its start")


def make_model(name: str, individuals: Individuals, **options: Any) -> SaemModel:
    kind = model_class(name, options)
    known = list(signature(kind).parameters)[1:]
    for option in options:
        check_choice(f"option of the model {name}", option, known)
    other = model_class(name, {**options, "error": ""})
    if kind is not other and "shift" not in options:
        # Are rows censored, or of several outcomes, in any process?
        rows = [individuals.covariates.get(name, np.zeros(1)) for name in ("censored", "outcome")]
        most = [float(np.abs(one).max(initial=0.0)) for one in rows]
        if (individuals.largest(np.array(most)) > 0).any():
            kind, options = other, {"error": "constant", **options}
    model: SaemModel = kind(individuals, **options)
    return model


def model_class(name: str, options: Mapping[str, object] = MappingProxyType({})) -> Any:
    """Class of a model by its name, and options of which it may depend."""
    module, word = MODELS[check_choice("model", name, MODELS)]
    if name == "linear" and options.get("error", "constant") != "constant":
        module, word = GENERALIZED
    return getattr(import_module(module), word)


def has_curves(name: str, options: Mapping[str, object]) -> bool:
    """Whether a fit's model is known by name, and has curves over time."""
    return name in MODELS and model_class(name, options).has_curves


def all_options(name: str, options: Mapping[str, object]) -> Report:
    """Options of a model that `make_model` made, defaults too, as JSON can hold them.

    Options that are None, because data decide, are left out.
    """
    known = list(signature(model_class(name, options)).parameters.values())[1:]
    values = {**{one.name: one.default for one in known}, **options}
    return {one: _plain(value) for one, value in values.items() if value is not None}


def name_words(options: Report, words: Mapping[str, Sequence[str]]) -> list[str]:
    """Split covariates of words in effects and slopes by words but the first; return notes."""
    notes: dict[str, None] = {}
    for name, known in words.items():
        for option in ("effects", "slopes"):
            parts = [one.split(":") for one in options.get(option, ())]
            if not any(name in one for one in parts):
                continue
            if len(known) < 2:
                raise InputError(
                    f"covariate {name!r} has one word only, {known[0]!r}, so that no effect of it "
                    "can be seen; leave it out"
                )
            options[option] = [
                ":".join(f"{name}={word}" if part == name else part for part in one)
                for one in parts for word in (known[1:] if name in one else known[:1])
            ]  # fmt: skip
            notes[f"{name}: effects are relative to {known[0]}"] = None
    return list(notes)


def _plain(value: object) -> Any:
    """Lists instead of tuples and arrays, Python's own numbers instead of NumPy's."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
