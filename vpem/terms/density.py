"""Mixtures as densities of rows: what all of them have in common, and their responsibilities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from vpem._core.normalise import normalise
from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import (
    Doubles,
    Floats,
    Indices,
    Mask,
    Matrix,
    as_matrix,
    check_finite,
    check_int,
    check_memory,
)
from vpem.errors import InputError, Setting, check_choice, former
from vpem.network.partition import Blocks
from vpem.network.schema import Schema, State
from vpem.records import Shown
from vpem.settings import MISSINGS
from vpem.terms.rows import check_missing
from vpem.terms.units import Scaling

if TYPE_CHECKING:
    from vpem.terms.factors import LoadedFactors
    from vpem.terms.families.family import Part
    from vpem.terms.families.kinds import Kinds

CHUNK_VALUES = 1 << 20
"""Values of the largest temporary array when a mixture is evaluated."""


OUTLIER = -1
"""Label of rows that belong to no component, as in scikit-learn."""


def as_rows_of(mixture: Density, X: Any, missing: str) -> Matrix:
    """Return rows (M, d) of as many features as a mixture has, or raise InputError."""
    check_choice("missing", missing, MISSINGS)
    rows: Matrix = as_matrix("the data", X)
    if rows.ndim != 2 or rows.shape[1] != mixture.n_features:
        got = f"{rows.shape[1]}" if rows.ndim == 2 else f"an array of {rows.ndim} dimensions"
        raise InputError(f"the model has {mixture.n_features} features, the data have {got}")
    return rows


def posteriors(
    mixture: Density, X: Matrix, missing: str = "refuse"
) -> Iterator[tuple[slice, Doubles, Doubles]]:
    """Responsibilities (m, K) and log-likelihoods (m,) of the assembled mixture, chunk by chunk.

    Rows (M, d) are in the user's order and units; missing values are refused or marginalized.
    """
    X = as_rows_of(mixture, X, missing)
    n_terms = max(mixture.blocks.n_blocks, 1) * mixture.n_components
    size = max(64, CHUNK_VALUES // max(n_terms, mixture.n_features))
    with one_blas_thread():
        for start in range(0, len(X), size):
            rows = slice(start, min(start + size, len(X)))
            terms, constant = mixture.local_terms(X, rows, missing)
            sums = terms.sum(axis=0, keepdims=True)
            responsibilities, log_likelihoods = normalised(mixture, sums)
            yield rows, responsibilities, log_likelihoods + constant


def normalised(mixture: Density, sums: Floats) -> tuple[Doubles, Doubles]:
    """Responsibilities (m, K) and log-densities (m,) of the sum (1, m, K) of all blocks' terms."""
    log_weights = mixture.assembled_log_weights[None, :]
    responsibilities = np.empty_like(sums)
    log_likelihoods = np.empty(sums.shape[:2])
    normalise(sums, log_weights, responsibilities, log_likelihoods, thread_count(None))
    return mixture.judged(responsibilities, log_likelihoods, sums)[0], log_likelihoods[0]


def labels_of(shares: Floats, n_components: int) -> Indices:
    """Return the component (m,) of the largest responsibility; -1 of what is beside these."""
    labels = shares.argmax(axis=1)
    return np.where(labels < n_components, labels, OUTLIER)


def reweighted(weights: Doubles, component: int, weight: float) -> Doubles:
    """Return mixing weights (R, K) of which one is so much, and the others as they were."""
    weights = weights.copy()
    others = np.delete(np.arange(weights.shape[1]), component)
    rest = weights[:, others].sum(axis=1, keepdims=True)
    weights[:, others] *= (1 - weight) / np.where(rest > 0, rest, 1.0)
    weights[:, component] = weight
    return weights


@dataclass(frozen=True)
class Runs:
    """Where parameters of each hub lie in an array: in block order along an axis, a run a hub.

    An array that is shorter has one entry there, which all hubs share.
    """

    axis: int
    counts: Indices  # (B,) length of each run
    of_roots: bool = False  # one entry is what all share, though there be one hub

    @cached_property
    def ends(self) -> list[int]:
        """Where the runs begin, and the end of the last: hubs are written one by one."""
        return [0, *np.cumsum(self.counts).tolist()]

    def take(self, array: Doubles, numbers: Sequence[int] | Indices) -> Doubles:
        """Return the runs of some hubs, one after the other."""
        length = array.shape[self.axis]
        if length != self.ends[-1] or (self.of_roots and length == 1):
            return array
        places = [np.arange(self.ends[b], self.ends[b + 1]) for b in numbers]
        chosen = np.concatenate([np.empty(0, dtype=np.intp), *places])
        return np.ascontiguousarray(array.take(chosen, self.axis))

    def join(self, parts: Sequence[tuple[Indices, Doubles]]) -> Doubles:
        """Join what several processes have, each of hubs of these numbers."""
        runs: dict[int, Doubles] = {}
        for numbers, array in parts:
            counts = self.counts[numbers]
            if array.shape[self.axis] != counts.sum():
                return next(shared for _, shared in parts if len(shared))
            pieces = np.split(array, np.cumsum(counts), self.axis)
            runs |= dict(zip(numbers, pieces, strict=False))
        return np.concatenate([runs[b] for b in sorted(runs)], self.axis)

    def where(self, hubs: Mask, one: Doubles, other: Doubles) -> Doubles:
        """Return the runs of these hubs (B,) of one array, the others of another."""
        chosen = np.repeat(hubs, self.counts)
        after = max(one.ndim, other.ndim) - self.axis - 1
        return np.where(chosen.reshape(-1, *[1] * after), one, other)


def runs_of_roots(n_hubs: int) -> Runs:
    """Return where hubs lie in what each root has, such as mixing weights, or all share."""
    return Runs(0, np.ones(n_hubs, dtype=np.intp), of_roots=True)


class Density(ABC, Shown, facts="{n_components:component}, {n_features:feature}"):
    """A mixture whose log-densities are sums over hubs."""

    blocks: Blocks  # which features lie in which hub
    covariance_type: str
    weights: Doubles  # (R, K) of each root; R = 1 where all share one estimate
    means: Doubles  # (K, d) in block order and in the units of fitting
    named: ClassVar[dict[str, str]] = {"weights": "roots"}
    """Arrays of all hubs together, and where the parameters of each lie in them."""
    n_factors: ClassVar[int] = 0  # that hubs share (`vpem.terms.factors.FactorMixture`)
    n_beside: ClassVar[int] = 0
    """Columns that terms have before those of components (`vpem.terms.outliers`)."""
    of_roots: ClassVar[tuple[str, ...]] = ()  # what each root finds of outliers
    is_proper: ClassVar[bool] = False
    """Whether a prior keeps every component from being degenerate."""
    kinds: Kinds | None  # family of each feature; None: all are Gaussian
    parts: tuple[Part, ...] = ()  # of each family; none where all are Gaussian
    loaded: LoadedFactors | None = None  # what an E-step needs of factors that hubs share

    @property
    def n_components(self) -> int:
        """Number of components, K."""
        return int(self.weights.shape[1])

    @property
    def outliers(self) -> str | None:
        """What rows are that belong to no component: "noise" or "trimmed"; None: all do."""
        return None

    @property
    def outlier_share(self) -> float:
        """Share of the noise, among all rows."""
        return 0.0

    @property
    def n_terms(self) -> int:
        """Terms of a row that a hub adds to the sum."""
        return self.n_components + self.n_beside

    @property
    def n_judged(self) -> int:
        """Parts to which rows that count may belong: components, and noise."""
        return self.n_components + (self.outliers == "noise")

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return self.blocks.n_features

    @property
    def is_tied(self) -> bool:
        """Whether all components share one covariance."""
        return self.covariance_type.startswith("tied")

    def check_start(self, blocks: Blocks) -> None:
        """Raise InputError where a start has another number of features than blocks of the data."""
        if blocks.n_features != self.n_features:
            raise InputError(
                f"the starting model has {self.n_features} features, the data {blocks.n_features}"
            )

    def weighing(self, other: Self) -> Self:
        """Return the same mixture with another one's mixing weights."""
        of_roots = [name for name, where in self.named.items() if where == "roots"]
        changed: Any = {name: getattr(other, name) for name in of_roots}
        return replace(self, **changed)  # type: ignore[type-var]

    @cached_property
    @np.errstate(divide="ignore")
    def log_weights(self) -> Doubles:
        """Logarithms of the mixing weights, as each root holds them."""
        return np.log(self.weights)

    @property
    def in_use(self) -> Mask:
        """Components (K,) that are in use: those with weight at any root."""
        in_use: Mask = ~(self.weights == 0).all(axis=0)
        return in_use

    @property
    def assembled_weights(self) -> Doubles:
        """Mixing weights (K,): the mean over roots, renormalised."""
        mean = self.weights.mean(axis=0)
        weights: Doubles = mean / mean.sum()
        return weights

    @property
    def assembled_log_weights(self) -> Doubles:
        """Logarithms (K,) by which responsibilities weigh components, of all roots together."""
        with np.errstate(divide="ignore"):
            return np.log(self.assembled_weights)

    def score_samples(self, X: Matrix, *, missing: str = "refuse") -> Doubles:
        """Log-likelihood of each row, in nats and in the user's units.

        Parameters
        ----------
        X : ndarray of shape (M, d)
            In the user's order and units.
        missing : {"refuse", "marginalize"}
            What is done where values are missing (NaN). "marginalize" takes the density of what is
            there; of a row with nothing that is 1, and its responsibilities are the mixing weights.

        Returns
        -------
        ndarray of shape (M,)

        Raises
        ------
        InputError
            If the number of features is another.
        """
        scores = np.empty(len(X))
        for rows, _, log_likelihoods in posteriors(self, X, missing):
            scores[rows] = log_likelihoods
        return scores

    def predict_proba(self, X: Matrix, *, missing: str = "refuse") -> Doubles:
        """Responsibilities of each row, shape (M, K); see `score_samples`.

        With noise, or trimming, there is one column more, that of rows that are so.
        """
        proba = np.empty((len(X), self.n_terms))
        for rows, responsibilities, _ in posteriors(self, X, missing):
            proba[rows] = responsibilities
        return proba

    def predict(self, X: Matrix, *, missing: str = "refuse") -> Indices:
        """Most responsible component of each row, shape (M,); -1 of noise, or where trimmed."""
        labels = np.empty(len(X), dtype=np.intp)
        for rows, responsibilities, _ in posteriors(self, X, missing):
            labels[rows] = labels_of(responsibilities, self.n_components)
        return labels

    def refuse_outliers(self, what: str) -> None:
        """Raise InputError where rows may belong to no component, of which ``what`` is said."""
        if self.outliers:
            raise InputError(
                f"{what}, but in this model rows may be {self.outliers}; fit one without ",
                Setting("noise" if self.outliers == "noise" else "trim"),
            )

    def counts_rows(self, scores: Doubles) -> Mask:
        """Whether rows of these log-likelihoods (M,) count: those that are not trimmed."""
        return np.ones(len(scores), dtype=np.bool_)

    def judged(self, shares: Floats, log_densities: Doubles, sums: Floats) -> Floats:
        """Return responsibilities (R, m, K) of sums that gave these log-densities (R, m)."""
        return shares

    def directions(self, share: float = 1.0) -> tuple[Doubles, Doubles]:
        """Raise InputError: only a `vpem.Mixture` has directions."""
        raise InputError(
            "directions in which components differ are of Gaussian features alone, and this model "
            "has others; take a picture of marginals, or the contribution of features"
        )

    def project(self, X: Floats, share: float = 1.0) -> Doubles:
        """Return scores (M, p) of rows (M, d) along `directions`, from the mixture's mean."""
        directions = self.directions(share)[0]
        rows = np.asarray(as_rows_of(self, X, MISSINGS[0]))
        check_finite(rows, None)
        scores: Doubles = (rows - self.assembled_weights @ self.assembled_means) @ directions
        return scores

    def bic(self, log_likelihood: float, n_samples: float) -> float:
        """Bayesian information criterion of a total log-likelihood; lower is better."""
        return -2 * log_likelihood + self.n_parameters * float(np.log(n_samples))

    def aic(self, log_likelihood: float) -> float:
        """Akaike information criterion of a total log-likelihood; lower is better."""
        return -2 * log_likelihood + 2 * self.n_parameters

    def criteria(self, log_likelihood: float, n_samples: float, entropy: float) -> dict[str, float]:
        """Criteria of a total log-likelihood, and of the entropy of responsibilities in nats.

        ``sabic`` is BIC with (M + 2) / 24 in the place of M rows (Sclove 1987), ``caic`` charges
        log M + 1 for each parameter (Bozdogan 1987), ``icl`` is BIC plus twice the entropy.
        ``relative_entropy`` is ``1 - entropy / (M log K)``: 1 if every row belongs to one component
        (Celeux and Soromenho 1996), also if there is one.
        """
        bic, p = self.bic(log_likelihood, n_samples), self.n_parameters
        most = n_samples * np.log(self.n_judged)
        return {
            "bic": bic,
            "aic": self.aic(log_likelihood),
            "icl": bic + 2 * entropy,
            "sabic": -2 * log_likelihood + p * float(np.log((n_samples + 2) / 24)),
            "caic": bic + p,
            "relative_entropy": float(1 - entropy / most) if most > 0 else 1.0,
        }

    def sample(self, n_samples: int, rng: np.random.Generator) -> tuple[Doubles, Indices]:
        """Draw rows from the assembled mixture.

        Returns
        -------
        X : ndarray of shape (n_samples, d)
            In the user's order and units.
        labels : ndarray of shape (n_samples,)
            Component each row was drawn from; rows are sorted by it.
        """
        n_samples = check_int("n_samples", n_samples, least=0)
        check_memory(8 * n_samples * (self.n_features + 1), f"a sample of {n_samples} rows")
        counts = rng.multinomial(n_samples, self.assembled_weights)
        labels = np.repeat(np.arange(self.n_components), counts)
        return self.drawn(labels, rng), labels

    @property
    def assembled_loadings(self) -> Doubles:
        """Loadings (K, d, q) of factors that hubs share, in the user's order and units."""
        return np.zeros((self.n_components, self.n_features, 0))

    def local_terms(self, X: Matrix, rows: slice, missing: str) -> tuple[Floats, Doubles | float]:
        """Terms (B, m, K) of each block for some rows, and what their density has besides, (m,)."""
        part = np.asarray(X[rows], dtype=np.float64)
        there = np.isfinite(part)
        if not there.all() and (missing == "refuse" or np.isinf(part).any()):
            (check_finite if missing == "refuse" else check_missing)(X)
        return self.terms_of(part, there)

    hub_terms = local_terms
    """The same, but of factors c and u of each hub (B, m, K + K q)."""

    def joined(self, total: Floats, onto: Floats) -> Floats:
        """Return what sums of `hub_terms` over all hubs come to, (R, m, K)."""
        return total

    # ---- what each kind of mixture has of its own ------------------------------------------------

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Free parameters."""

    @property
    @abstractmethod
    def assembled_means(self) -> Doubles:
        """Expected values (K, d) in the user's order and units."""

    @abstractmethod
    def moments(self) -> Iterator[tuple[Indices, Doubles, Doubles]]:
        """Yield columns of features, their means and variances (K, n) in units of fitting."""

    @abstractmethod
    def terms_of(self, values: Doubles, there: Mask) -> tuple[Floats, Doubles | float]:
        """Terms (B, m, K) of each hub for some rows, and what their log-density has besides, (m,).

        Values (m, d) are in the user's order and units; ``there`` (m, d) marks those present.
        """

    @abstractmethod
    def arrays(self) -> State:
        """Parameters as arrays; partition and units belong to the recipe."""

    @abstractmethod
    def schema(self, n_roots: int = 1) -> dict[str, Schema]:
        """Schema of `arrays` of such a mixture with so many roots."""

    @abstractmethod
    def having(self, arrays: State) -> Density:
        """Return a mixture like this one with other parameters, which have been checked."""

    @abstractmethod
    def convert_to(self, blocks: Blocks, covariance_type: str, scaling: Scaling) -> Density:
        """Return these parameters over other blocks, as a start for a new fit."""

    over = former("over", "convert_to")

    @abstractmethod
    def permuted(self, order: Indices) -> Density:
        """Return the same mixture with its components in another order."""

    @abstractmethod
    def drawn(self, labels: Indices, rng: np.random.Generator) -> Doubles:
        """Draw rows of these components (m,), (m, d) in the user's order and units."""

    @abstractmethod
    def marginal(self, features: Sequence[int]) -> Density:
        """Return the mixture of some features: all others are integrated out."""

    @abstractmethod
    def renumbered(self, columns: Sequence[int]) -> Density:
        """Return the same mixture of data whose columns stand in another order."""
