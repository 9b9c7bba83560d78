"""Covariates: columns that are no features, but move the mixing weights.

With concomitant variables z (Dayton and Macready 1988) mixing weights are a multinomial logit,
``pi_k(z) = exp(eta_k) / sum_l exp(eta_l)`` with ``eta_k = a_k + b_k' z`` and ``eta_1 = 0``. All
roots add ``log pi_k`` to the sum, so what the hub of the covariates adds is the rest,
``log pi_k(z) - log pi_k``: nothing new is sent. At the maximum the mean of ``pi_k(z)`` over rows is
that of the responsibilities, so mixing weights mean what they always do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from vpem.checks import Doubles, Floats, Indices, Mask, check_weights
from vpem.errors import InputError
from vpem.terms.families.family import (
    Cells,
    Columns,
    Features,
    Independent,
    IndependentTerms,
    Part,
    Table,
    Tables,
)

if TYPE_CHECKING:
    from vpem.terms.families.mixed import MixedTerms

MOST_STEPS = 100
"""Newton steps of an M-step. It takes a few, unless covariates separate components."""
UNKNOWN = 1e-9
"""Of the information of a row: what is less is none."""
LEAST_WEIGHT = 1e-300
"""Mixing weights that are less count as this much."""


class CovariateTerms(IndependentTerms):
    """Rows of covariates, all of one hub."""

    def __init__(
        self, law: Independent, columns: Columns, features: Features, whole: MixedTerms
    ) -> None:
        super().__init__(law, columns, features, whole)
        self.row_weights = whole.row_weights
        if any(np.isnan(self.rows.read(run)).any() for run in self.rows.runs()):
            raise InputError(INCOMPLETE)

    def _weights_of(self, run: slice) -> Doubles:
        if self.row_weights is None:
            return np.ones(run.stop - run.start)
        return self.row_weights[run]

    def update(self, statistics: Cells, weights: Doubles, row: float | None = None) -> Part:
        """M-step: Newton steps to the logit of the responsibilities, whose sums are sufficient."""
        tables = self.law.update(statistics.tables, self.features, self.pooled)
        seen = statistics.tables["seen"]
        shares = np.maximum(seen / seen.sum(axis=0), LEAST_WEIGHT)
        centre = self.pooled
        scale = np.sqrt(centre["variances"][0])
        scale[scale == 0] = 1.0
        shift = centre["means"][0]
        sums = np.hstack([seen[:, :1], (statistics.tables["total"] - seen * shift) / scale])
        start = np.zeros_like(sums)
        start[:, 0] = np.log(shares[:, 0])
        if self.latest is not None and len(self.latest["eta"]) == len(sums):
            eta = self.latest["eta"]
            start = np.hstack([eta[:, :1] + (eta[:, 1:] @ shift)[:, None], eta[:, 1:] * scale])
        found = self._climb(start - start[0], sums, shift, scale)
        slopes = found[:, 1:] / scale
        tables["coefficients"] = slopes
        tables["intercepts"] = np.repeat((found[:, 0] - slopes @ shift)[:, None], len(shift), 1)
        tables["log_weights"] = np.log(shares)
        return Part(self.law, self.features, tables)

    def _climb(self, at: Doubles, sums: Doubles, shift: Doubles, scale: Doubles) -> Doubles:
        """Coefficients (K, 1 + q) of most likelihood, of covariates in units of their own."""
        value, gradient, information = self._likelihood(at, sums, shift, scale)
        for _ in range(MOST_STEPS):
            step = np.linalg.lstsq(information, gradient.ravel(), rcond=1e-12)[0]
            gain = float(step @ gradient.ravel())
            if not gain > 1e-22 * max(1.0, abs(value)):
                break
            length = 1.0
            while length > 1e-6:
                tried = at.copy()
                tried[1:] += length * step.reshape(gradient.shape)
                found = self._likelihood(tried, sums, shift, scale)
                if found[0] >= value - 1e-14 * abs(value):
                    break
                length /= 2
            else:
                break
            at, (value, gradient, information) = tried, found
        return at

    def _likelihood(
        self, at: Doubles, sums: Doubles, shift: Doubles, scale: Doubles
    ) -> tuple[float, Doubles, Doubles]:
        """``sum_k a_k' S_k - sum_i w_i log sum_k exp(a_k' x_i)``, gradient, information."""
        from scipy.special import logsumexp, softmax

        k, p = at.shape
        value, gradient = float((at * sums).sum()), sums[1:].copy()
        information = np.zeros((k - 1, p, k - 1, p))
        for run in self.rows.runs():
            z = (self.rows.read(run).astype(np.float64) - shift) / scale
            x, weights = np.hstack([np.ones((len(z), 1)), z]), self._weights_of(run)
            eta = x @ at.T
            value -= float(weights @ logsumexp(eta, axis=1))
            chances = softmax(eta, axis=1)[:, 1:]
            weighted = chances * weights[:, None]
            gradient -= weighted.T @ x
            for c in range(k - 1):
                for d in range(c + 1):
                    both = weighted[:, c] * ((c == d) - chances[:, d])
                    information[c, :, d] += (x * both[:, None]).T @ x
                    information[d, :, c] = information[c, :, d].T
        size = (k - 1) * p
        return value, gradient, information.reshape(size, size)

    def start(self, centres: Table, weights: Doubles) -> Part:
        """Mixing weights that no covariate moves."""
        tables = {name: np.repeat(one, len(centres), 0) for name, one in self.pooled.items()}
        return Part(self.law, self.features, tables)

    def reseeded(self, part: Part, component: int, centre: Table) -> Part:
        """Begin again without what covariates say of any component: they add up to 1 over all."""
        return self.start(part.tables["means"], np.empty(0))

    def take_rows(
        self, rows: slice | Indices, following: slice | None = None, weights: Doubles | None = None
    ) -> Self:
        chosen = super().take_rows(rows, following, weights)
        if isinstance(rows, slice) and self.row_weights is not None:
            weights = self.row_weights[rows]
        chosen.row_weights = weights
        return chosen


SEVERAL_HUBS = (
    "covariates are of several hubs, but the mixing weights need them together; give them to one "
    "agent, or to agents whose hubs are one"
)
INCOMPLETE = (
    "a covariate has missing values, and nothing says how it is distributed; fill them in first, "
    "or leave these rows out"
)


class Covariate(Independent):
    """Columns that move the mixing weights: a multinomial logit."""

    name = "covariate"
    domains: ClassVar[dict[str, str]] = {
        "means": "any", "variances": "positive", "coefficients": "any", "intercepts": "any",
        "log_weights": "any",
    }  # fmt: skip
    """Intercepts and logarithms of mixing weights stand in every cell of a component."""
    sums: ClassVar[dict[str, int]] = {"seen": 1, "total": 1, "squares": 1}
    terms = CovariateTerms
    near_normal = staticmethod(np.zeros_like)  # they form no clusters

    def ready(self, parameters: Tables, features: Features) -> dict[str, Floats]:
        intercepts = parameters["intercepts"][:, :1]
        eta = np.hstack([intercepts, parameters["coefficients"]])
        return {"eta": eta, "log_weights": parameters["log_weights"][:, 0]}

    def add_terms(
        self, ready: dict[str, Floats], features: Features, data: Floats, out: Floats,
        n_threads: int,
    ) -> None:  # fmt: skip
        """Add ``-2 (log pi_k(z) - log pi_k)``; nothing before the first M-step."""
        from scipy.special import logsumexp

        eta, log_weights = ready["eta"], ready["log_weights"]
        if not log_weights.any() and not eta.any():
            return
        scores = data.astype(np.float64) @ eta[:, 1:].T + eta[:, 0]
        scores -= logsumexp(scores, axis=1, keepdims=True) + log_weights
        out[int(features.blocks.widths.argmax())] += -2 * scores

    def add_moments(
        self, statistics: Tables, ready: dict[str, Floats] | None, features: Features, data: Floats,
        responsibilities: Floats, n_threads: int,
    ) -> None:  # fmt: skip
        root = int(features.blocks.widths.argmax()) if len(responsibilities) > 1 else 0
        shares, values = responsibilities[root].T.astype(np.float64), data.astype(np.float64)
        statistics["seen"] += shares.sum(axis=1, keepdims=True)
        statistics["total"] += shares @ values
        statistics["squares"] += shares @ np.square(values)

    def update(self, statistics: Tables, features: Features, pooled: Tables | None) -> Tables:
        """Means and variances in each component; what moves the weights needs rows, and is 0."""
        some = np.maximum(statistics["seen"], LEAST_WEIGHT)
        means = statistics["total"] / some
        variances = np.maximum(statistics["squares"] / some - np.square(means), 0.0)
        others = {name: np.zeros_like(means) for name in [*self.domains][2:]}
        return {"means": means, "variances": variances, **others}

    def terms_of(self, part: Part, values: Doubles, there: Mask) -> Floats:
        if not there.all():
            raise InputError(INCOMPLETE)
        return super().terms_of(part, values, there)

    def tables_over(self, part: Part, features: Features, origin: Indices) -> Tables:
        if len(origin) < part.features.n_features:
            raise InputError(
                "the mixing weights of this model need all of its covariates, of which some are "
                "left out; keep all, or none"
            )
        return super().tables_over(part, features, origin)

    def n_parameters(self, part: Part) -> int:
        n_free: int = part.tables["coefficients"][1:].size
        return n_free

    def variances(self, part: Part) -> Table:
        return part.tables["variances"]

    def draw(self, part: Part, labels: Indices, rng: np.random.Generator) -> Table:
        """The means: nothing says how covariates are distributed."""
        return part.tables["means"][labels]


def logit_coefficients(mixture: Any) -> Doubles | None:
    """Return how covariates move the mixing weights of a mixture: a multinomial logit.

    Parameters
    ----------
    mixture : Mixture
        Of a fit (``fit.mixture``) or a model.

    Returns
    -------
    ndarray of shape (K, 1 + q) or None
        Intercept and a slope for each covariate, in the order and units of the data; those of the
        first component, the reference, are 0. None if the mixture has no covariates.
    """
    for part in mixture.parts if mixture.kinds is not None else ():
        if part.family == Covariate.name:
            tables, position = part.tables, part.features.blocks.position
            slopes = tables["coefficients"][:, position]
            found: Doubles = np.hstack([tables["intercepts"][:, :1], slopes])
            found -= found[0].copy()
            return found
    return None


def logit_errors(
    mixture: Any, X: Floats, sample_weight: Doubles | None = None, labels: ArrayLike | None = None
) -> Doubles:
    """Return standard errors of `logit_coefficients`, from their observed information.

    Other parameters count as known. The information is that of the logit less that of the labels,
    which are not observed (Louis 1982): over rows, of responsibilities r_i and ``x_i = [1, z_i]``,
    ``sum_i w_i (D(pi_i) - pi_i pi_i' - D(r_i) + r_i r_i') (x) x_i x_i'``.

    Parameters
    ----------
    mixture : Mixture
        With covariates.
    X : ndarray of shape (M, d)
        The rows it was fitted to, features (nan where they are missing) and covariates.
    sample_weight : ndarray of shape (M,), optional
        Weight of each row.
    labels : ndarray of shape (M,) or (M, K), optional
        Known components of rows that the fit was given, from 0, and -1 where none is known; or
        probabilities, and nan.

    Returns
    -------
    ndarray of shape (K, 1 + q)
        0 of the first component, the reference; nan where rows do not tell coefficients apart.

    Raises
    ------
    InputError
        If the mixture has no covariates, or these are no rows, weights or labels for it.
    """
    from scipy.special import softmax

    at = logit_coefficients(mixture)
    if at is None:
        raise InputError("this model has no covariates")
    columns = mixture.kinds.columns_of(Covariate.name)
    rows = mixture.predict_proba(X, missing="marginalize")
    if labels is not None:
        rows = _by_labels(rows, np.asarray(labels, dtype=np.float64))
    z = np.asarray(X, dtype=np.float64)[:, columns]
    weights = check_weights(np.ones(len(z)) if sample_weight is None else sample_weight, len(z))
    centre = np.average(z, axis=0, weights=weights)
    scale = np.sqrt(np.average(np.square(z - centre), axis=0, weights=weights))
    scale[~(scale > 0)] = 1.0
    x = np.column_stack([np.ones(len(X)), (z - centre) / scale])
    chances = softmax(at[:, 0] + z @ at[:, 1:].T, axis=1)
    size = at[1:].size
    information = np.zeros((size, size))
    for sign, shares in ((1, chances), (-1, rows)):
        p = shares[:, 1:]
        both = p[:, :, None] * (np.eye(len(at) - 1) - p[:, None, :]) * weights[:, None, None]
        information += sign * np.einsum("ikl,ip,iq->kplq", both, x, x).reshape(size, size)
    # Of what rows say next to nothing (covariates that determine each other) there is no error.
    move = np.diag([1.0, *1 / scale])
    move[0, 1:] = -centre / scale
    move = np.kron(np.eye(len(at) - 1), move)
    values, ways = np.linalg.eigh(information)
    known = values > UNKNOWN * weights.sum()
    variances = np.square(move @ ways[:, known]) @ (1 / values[known])
    lost = abs(move @ ways[:, ~known]).max(axis=1, initial=0.0)
    variances[lost > UNKNOWN * abs(move).max(axis=1, initial=0.0)] = np.nan
    return np.vstack([np.zeros(at.shape[1]), np.sqrt(variances).reshape(at[1:].shape)])


def _by_labels(rows: Doubles, labels: Doubles) -> Doubles:
    """Responsibilities (M, K) where some components are known, as in a fit."""
    n, k = rows.shape
    labels = np.where(np.isnan(labels), -1, labels) if labels.ndim == 1 else labels
    if labels.shape == (n,) and np.isin(labels, np.arange(-1, k)).all():
        labels = np.where(labels[:, None] < 0, np.nan, labels[:, None] == np.arange(k))
    if labels.shape != (n, k) or (labels < 0).any():
        raise InputError(
            f"labels must be a component from 0 to {k - 1}, or -1, for each of {n} rows, or their "
            f"probabilities of shape {(n, k)}"
        )
    both = rows * labels
    total = both.sum(axis=1, keepdims=True)
    return np.where(total > 0, both / np.where(total > 0, total, 1.0), rows)
